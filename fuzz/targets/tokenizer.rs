//! tokenizer.json and streams of token ids: see `faser::fuzz`. Panics of the tokenizer library are caught by faser: they are none of ours.
#![no_main]

use std::sync::Once;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let abort = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.location().is_some_and(|place| place.file().contains("/tokenizers-")) {
                abort(panic);
            }
        }));
    });
    faser::fuzz::tokenizer(data);
});
