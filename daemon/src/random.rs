//! Random numbers for ids and for requests without a seed. Not for secrets.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number nobody foresees: the standard library seeds its hash maps from the operating system.
pub(crate) fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A word of 32 hexadecimal digits.
pub(crate) fn id() -> String {
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| super::id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
