//! Panics of these libraries are caught by faser, and so are none of ours: a fuzzer goes on.

use std::sync::Once;

const CAUGHT: [&str; 2] = ["/tokenizers-", "/minijinja-"];

/// Has every other panic end the fuzzer.
pub fn only_ours_count() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let abort = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let file = panic.location().map_or("", |place| place.file());
            if !CAUGHT.iter().any(|library| file.contains(library)) {
                abort(panic);
            }
        }));
    });
}
