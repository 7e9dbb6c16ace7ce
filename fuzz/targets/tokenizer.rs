//! tokenizer.json and streams of token ids: see `faser::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser::fuzz::tokenizer(data));
