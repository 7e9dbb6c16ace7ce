//! What was used lately, and no more than there is room for.

use std::collections::HashMap;
use std::hash::Hash;

/// Values by their keys, of which those that were not used for longest can be forgotten.
pub(super) struct RecentlyUsed<K, V> {
    /// With the number of the use that was the last.
    all: HashMap<K, (u64, V)>,
    uses: u64,
}

impl<K, V> Default for RecentlyUsed<K, V> {
    fn default() -> RecentlyUsed<K, V> {
        RecentlyUsed { all: HashMap::new(), uses: 0 }
    }
}

impl<K: Eq + Hash, V> RecentlyUsed<K, V> {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Uses it.
    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        self.uses += 1;
        let (last, value) = self.all.get_mut(key)?;
        *last = self.uses;
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.uses += 1;
        self.all.insert(key, (self.uses, value));
    }

    /// Forgets the half that was not used for longest.
    pub(super) fn forget_half(&mut self) {
        let mut uses: Vec<u64> = self.all.values().map(|(last, _)| *last).collect();
        uses.sort_unstable();
        let Some(&stays) = uses.get(uses.len() / 2) else { return };
        self.all.retain(|_, (last, _)| *last >= stays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_lately_stays() {
        let mut kept = RecentlyUsed::default();
        (0..8).for_each(|key| kept.insert(key, 10 * key));
        for key in [1, 0, 3] {
            assert_eq!(kept.get(&key), Some(&(10 * key)));
        }
        kept.forget_half();
        let left: Vec<i32> = (0..8).filter(|key| kept.get(key).is_some()).collect();
        assert_eq!(left, [0, 1, 3, 7]);
        assert_eq!(kept.len(), 4);
        RecentlyUsed::<u8, u8>::default().forget_half();
    }
}
