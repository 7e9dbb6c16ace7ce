//! What requests without a salt find in the target's prefix cache, told as it changes: routers send a request where its prefix is.
//!
//! Told are whole blocks, by a hash of all tokens up to their ends, which two engines give alike. Of a block whose parent has left the cache
//! nobody finds anything: it is told to be gone with its parent, and is not told if it comes later.

use rustc_hash::FxHashMap;

use crate::request::TokenId;

/// A change of what is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block is there, whole.
    Stored {
        /// Hash of all tokens up to its end.
        hash: u64,
        /// That of the block before; none at the beginning of a text.
        parent: Option<u64>,
        /// Its own tokens.
        tokens: Box<[TokenId]>,
    },
    /// A block of this hash is there no more.
    Removed {
        /// As it was stored.
        hash: u64,
    },
    /// No block is there any more.
    Cleared,
}

/// What was told, and what is yet to be.
#[derive(Debug)]
pub(super) struct Told {
    block_size: usize,
    /// Hashes of the blocks that are told to be there, by the serials of their contents.
    hashes: FxHashMap<u64, u64>,
    pub(super) events: Vec<KvEvent>,
}

impl Told {
    pub(super) fn new(block_size: usize) -> Told {
        Told { block_size, hashes: FxHashMap::default(), events: Vec::new() }
    }

    /// A block has entered the cache, behind the content of the serial `before`, 0 for none.
    pub(super) fn entered(&mut self, serial: u64, before: u64, salt: u128, tokens: &[TokenId]) {
        if salt != 0 || tokens.len() != self.block_size {
            return;
        }
        let parent = match before {
            0 => None,
            before => match self.hashes.get(&before) {
                Some(hash) => Some(*hash),
                None => return,
            },
        };
        let hash = chained(parent, tokens);
        self.hashes.insert(serial, hash);
        self.events.push(KvEvent::Stored { hash, parent, tokens: tokens.into() });
    }

    /// A block has left it; whether that had been told to be there.
    pub(super) fn left(&mut self, serial: u64) -> bool {
        let Some(hash) = self.hashes.remove(&serial) else { return false };
        self.events.push(KvEvent::Removed { hash });
        true
    }

    /// All are gone.
    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.events.push(KvEvent::Cleared);
    }
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo; RFC 9923) over the parent's hash, 0 where there is none, and the tokens, little-endian.
fn chained(parent: Option<u64>, tokens: &[TokenId]) -> u64 {
    let begin = parent.unwrap_or(0).to_le_bytes();
    let bytes = begin.into_iter().chain(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_same_everywhere() {
        // What others may have stored must not change with a version: computed by FNV's reference in Python.
        assert_eq!(chained(None, &[]), 0xa8c7_f832_281a_39c5);
        assert_eq!(chained(None, &[1, 2, 3, 4]), REFERENCE_1);
        assert_eq!(chained(Some(REFERENCE_1), &[5, 6, 7, 8]), REFERENCE_2);
    }

    const REFERENCE_1: u64 = 0x7e75_ba25_3efd_3fc1;
    const REFERENCE_2: u64 = 0x6cdb_6eff_5929_1782;
}
