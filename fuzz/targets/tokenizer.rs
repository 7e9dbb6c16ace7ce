//! tokenizer.json and streams of token ids: see `faser_fuzz_entries`.
#![no_main]

mod libraries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    libraries::only_ours_count();
    faser_fuzz_entries::tokenizer(data);
});
