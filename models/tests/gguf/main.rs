//! GGUF files: written here from checkpoints and tokenizers of tests/golden, of every quantisation, whole, split and damaged; and one that the
//! package gguf wrote.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod converted;
mod damaged;
mod four_bits;
mod quantised;
#[path = "../forward/session.rs"]
mod session;
mod texts;
mod weights;
mod writer;
