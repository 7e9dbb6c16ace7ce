//! Grammars, and what may follow them: see `faser_fuzz_entries`.
#![no_main]

mod libraries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    libraries::only_ours_count();
    faser_fuzz_entries::grammars(data);
});
