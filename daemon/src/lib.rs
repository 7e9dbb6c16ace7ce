//! The daemon: command line, config, HTTP API, and the commands `serve`, `check`, `plan`, `generate`, `bench`, `compare`, `sim`, `ctl`, `top`,
//! `gpu-check`, `completions` and `man`.
//! Everything it decides about tokens is decided below, in `faser_actors` and `faser_engine`.

pub mod access;
pub mod admin;
pub mod app;
pub mod bench;
pub mod check;
pub mod cli;
pub mod compare;
pub mod costs;
pub mod ctl;
pub mod device;
pub mod error;
pub mod figures;
pub mod fuzz;
pub mod generate;
pub mod gpu_check;
pub mod grammars;
pub mod http;
mod listen;
pub mod load;
mod locate;
pub mod log;
pub mod manual;
pub mod metrics;
pub mod names;
mod pair;
pub mod pairs;
mod place;
pub mod plan;
mod random;
pub mod reload;
pub mod sequence;
pub mod serve;
mod shares;
pub mod sim;
pub mod stop;
pub mod systemd;
pub mod top;

pub use faser_config as config;
pub use faser_config::fields;
