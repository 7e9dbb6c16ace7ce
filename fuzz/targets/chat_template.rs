//! Chat templates and messages: see `faser::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| faser::fuzz::chat_template(data));
