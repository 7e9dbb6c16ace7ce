//! The daemon: command line, config, HTTP API, and the commands `serve`, `check`, `generate`, `bench`, `compare` and `sim`.
//! Everything it decides about tokens is decided below, in `faser_actors` and `faser_engine`.

pub mod app;
pub mod bench;
pub mod check;
pub mod cli;
pub mod compare;
pub mod config;
pub mod costs;
pub mod device;
pub mod error;
pub mod fields;
pub mod figures;
pub mod generate;
pub mod http;
pub mod load;
mod locate;
pub mod log;
pub mod metrics;
pub mod output;
mod pair;
mod place;
pub mod progress;
mod random;
pub mod reload;
pub mod sequence;
pub mod serve;
pub mod signals;
pub mod sim;
pub mod stop;
pub mod systemd;
