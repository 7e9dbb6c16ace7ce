//! The daemon: command line, start-up and shutdown, and what it tells the service manager. Its other parts are crates beside it: `config`,
//! `loading`, `openai`, `operators`, `tools`. Everything it decides about tokens is decided below, in `faser_actors` and `faser_engine`.

pub mod cli;
mod commands;
mod keep_learned;
mod listen;
pub mod manual;
pub mod serve;
mod serve_node;
pub mod systemd;

pub use commands::main;
