//! Bodies of requests: see `faser::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser::fuzz::requests(data));
