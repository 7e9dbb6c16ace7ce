//! Chat templates and messages: see `faser::fuzz`.
#![no_main]

mod libraries;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    libraries::only_ours_count();
    faser::fuzz::chat_template(data);
});
