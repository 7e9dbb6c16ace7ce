//! GGUF files: see `faser_fuzz_entries`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser_fuzz_entries::gguf(data));
