//! Headers of weights and config.json: see `faser::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser::fuzz::checkpoint(data));
