//! Headers of weights and config.json: see `faser_fuzz_entries`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser_fuzz_entries::checkpoint(data));
