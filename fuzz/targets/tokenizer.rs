//! tokenizer.json and streams of token ids: see `faser::fuzz`.
#![no_main]

mod libraries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    libraries::only_ours_count();
    faser::fuzz::tokenizer(data);
});
