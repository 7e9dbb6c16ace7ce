//! Random numbers for ids and for requests without a seed. Not for secrets.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number nobody foresees: the standard library seeds its hash maps from the operating system.
pub fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A number that follows from two others and looks like neither (splitmix64's last step).
pub fn derived(from: u64, number: u64) -> u64 {
    let mut z = from.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A word of 32 hexadecimal digits.
pub fn id() -> String {
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
