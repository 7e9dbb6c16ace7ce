//! Grammars, and what may follow them: see `faser::fuzz`.
#![no_main]

mod libraries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    libraries::only_ours_count();
    faser::fuzz::grammars(data);
});
