//! The operators' side of a daemon: its admin socket and dashboard, reload, the log; and what looks at it from outside, `faser ctl` and
//! `faser top`.

pub mod admin;
pub mod ctl;
pub mod log;
pub mod reload;
pub mod top;
