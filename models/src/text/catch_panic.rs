//! Calls of libraries that panic over files which no tool writes, but anybody can.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `call` returns, or what it panicked with. What it changed on the way must not matter: a cache, a text that is thrown away.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let why = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let why = why.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        format!("it cannot be used: {why}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        assert_eq!(catch_panic(|| -> u8 { panic!("odd") }).unwrap_err(), "it cannot be used: odd");
        let number = 7;
        let said = catch_panic(|| -> u8 { panic!("{number} is odd") }).unwrap_err();
        assert_eq!(said, "it cannot be used: 7 is odd");
    }
}
