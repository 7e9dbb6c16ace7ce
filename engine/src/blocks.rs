//! Block accounting: which sequence holds which KV block, and which blocks hold the KV of a cached prefix.
//!
//! ```text
//!   empty --take--> held --drop, nothing cached--> empty
//!                    | register (full, computed)
//!                    v
//!                  cached+held --last drop--> cached (evictable, oldest first) --take/evict--> held
//!                       ^______________________find_______________|
//! ```
//! A `Block` is a guard: dropping it gives the block back. No memory is touched here; the device has that.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use crate::request::TokenId;
use crate::view::PoolView;

/// A block of KV memory: an index into a pool, the same number in the device's `KvCache`.
pub type BlockId = u32;

/// What identifies the content of a full block: the block before it, and its own tokens. Exact, so that no two
/// prefixes are ever taken for one another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrefixKey {
    /// Serial of the content before; 0 at the beginning of a sequence.
    parent: u64,
    /// Who shares it; see [`crate::Handling::salt`].
    salt: u128,
    tokens: Box<[TokenId]>,
}

#[derive(Debug, Default)]
struct Slot {
    holders: usize,
    /// Set while the block holds a cached prefix.
    cached: Option<Cached>,
}

#[derive(Debug)]
struct Cached {
    key: PrefixKey,
    /// Names this content for ever; never used twice.
    serial: u64,
    /// Place in the eviction order while nobody holds the block.
    released_at: u64,
}

#[derive(Debug, Default)]
struct PoolState {
    slots: Vec<Slot>,
    empty: Vec<BlockId>,
    by_prefix: HashMap<PrefixKey, BlockId>,
    /// Cached blocks nobody holds, by the time of release.
    evictable: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl PoolState {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn take(&mut self) -> Option<BlockId> {
        let id = match self.empty.pop() {
            Some(id) => id,
            None => self.evict()?,
        };
        self.slots[id as usize].holders = 1;
        Some(id)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (_, id) = self.evictable.pop_first()?;
        if let Some(cached) = self.slots[id as usize].cached.take() {
            self.by_prefix.remove(&cached.key);
        }
        Some(id)
    }

    fn hold(&mut self, id: BlockId) {
        let slot = &mut self.slots[id as usize];
        slot.holders += 1;
        if let (1, Some(cached)) = (slot.holders, &slot.cached) {
            self.evictable.remove(&cached.released_at);
        }
    }

    fn release(&mut self, id: BlockId) {
        let now = self.tick();
        let slot = &mut self.slots[id as usize];
        slot.holders -= 1;
        if slot.holders > 0 {
            return;
        }
        match &mut slot.cached {
            Some(cached) => {
                cached.released_at = now;
                self.evictable.insert(now, id);
            }
            None => self.empty.push(id),
        }
    }
}

/// A bounded set of KV blocks of one model.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    state: Rc<RefCell<PoolState>>,
    block_size: usize,
    cache_prefixes: bool,
}

/// One block held by one sequence; dropping it gives the block back.
#[derive(Debug)]
struct Block {
    id: BlockId,
    pool: Rc<RefCell<PoolState>>,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.borrow_mut().release(self.id);
    }
}

impl BlockPool {
    /// A pool of `blocks` empty blocks of `block_size` tokens.
    pub(crate) fn new(blocks: usize, block_size: usize, cache_prefixes: bool) -> BlockPool {
        let state = PoolState {
            slots: (0..blocks).map(|_| Slot::default()).collect(),
            // Popped from the end: low numbers go first.
            empty: (0..blocks as BlockId).rev().collect(),
            ..PoolState::default()
        };
        BlockPool { state: Rc::new(RefCell::new(state)), block_size, cache_prefixes }
    }

    /// A table that holds nothing yet, for a sequence of this salt.
    pub(crate) fn table(&self, salt: u128) -> BlockTable {
        BlockTable { pool: self.clone(), blocks: Vec::new(), registered: 0, last_serial: 0, salt }
    }

    /// A table over the longest prefix of `tokens` cached under the same salt, in whole blocks, that leaves at least one token to compute.
    pub(crate) fn table_for_prefix(&self, tokens: &[TokenId], salt: u128) -> BlockTable {
        let mut table = self.table(salt);
        let cacheable = tokens.len().saturating_sub(1) / self.block_size;
        for chunk in tokens.chunks_exact(self.block_size).take(cacheable) {
            let key = PrefixKey { parent: table.last_serial, salt, tokens: chunk.into() };
            let mut state = self.state.borrow_mut();
            let Some(&id) = state.by_prefix.get(&key) else { break };
            let Some(serial) = state.slots[id as usize].cached.as_ref().map(|cached| cached.serial) else {
                break;
            };
            state.hold(id);
            table.blocks.push(Block { id, pool: Rc::clone(&self.state) });
            table.registered += 1;
            table.last_serial = serial;
        }
        table
    }

    /// Leading tokens that `table_for_prefix` would find; nothing is held.
    pub(crate) fn cached_tokens(&self, tokens: &[TokenId], salt: u128) -> usize {
        let state = self.state.borrow();
        if state.by_prefix.is_empty() {
            return 0;
        }
        let (mut parent, mut found) = (0, 0);
        let cacheable = tokens.len().saturating_sub(1) / self.block_size;
        for chunk in tokens.chunks_exact(self.block_size).take(cacheable) {
            let key = PrefixKey { parent, salt, tokens: chunk.into() };
            let Some(&id) = state.by_prefix.get(&key) else { break };
            let Some(cached) = state.slots[id as usize].cached.as_ref() else { break };
            parent = cached.serial;
            found += self.block_size;
        }
        found
    }

    /// Blocks that can be taken now.
    pub(crate) fn free(&self) -> usize {
        let state = self.state.borrow();
        state.empty.len() + state.evictable.len()
    }

    /// Gauges of this moment.
    pub(crate) fn view(&self) -> PoolView {
        let state = self.state.borrow();
        PoolView {
            total: state.slots.len(),
            free: state.empty.len() + state.evictable.len(),
            cached: state.by_prefix.len(),
        }
    }
}

/// The blocks of one sequence in one pool, in the order of positions. Dropping it gives all of them back.
#[derive(Debug)]
pub(crate) struct BlockTable {
    pool: BlockPool,
    blocks: Vec<Block>,
    /// Leading blocks whose content is in the prefix cache, under this table or another.
    registered: usize,
    last_serial: u64,
    salt: u128,
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        // From the end, so that the beginning of a cached prefix, without which the rest is not found, is evicted last.
        self.shrink(0);
    }
}

impl BlockTable {
    /// Tokens the blocks have room for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.blocks.len() * self.pool.block_size
    }

    /// Tokens covered by cached prefix blocks; their KV is computed.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.registered * self.pool.block_size
    }

    /// Has the table itself not grow again before it covers `tokens` tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        let blocks = tokens.div_ceil(self.pool.block_size);
        self.blocks.reserve(blocks.saturating_sub(self.blocks.len()));
    }

    /// Blocks `grow(tokens)` would have to take.
    pub(crate) fn missing(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.pool.block_size).saturating_sub(self.blocks.len())
    }

    /// Makes room for `tokens` tokens in all. False, with nothing taken, if the pool has too few blocks.
    #[must_use]
    pub(crate) fn grow(&mut self, tokens: usize) -> bool {
        let missing = self.missing(tokens);
        if missing > self.pool.free() {
            return false;
        }
        for _ in 0..missing {
            // `free` has just promised it.
            let Some(id) = self.pool.state.borrow_mut().take() else { return false };
            self.blocks.push(Block { id, pool: Rc::clone(&self.pool.state) });
        }
        true
    }

    /// Gives back blocks beyond `tokens` tokens, the last first: the roll-back of provisional KV.
    pub(crate) fn shrink(&mut self, tokens: usize) {
        while self.blocks.len() > tokens.div_ceil(self.pool.block_size) {
            self.blocks.pop();
        }
    }

    /// Enters every block that `computed` tokens fill into the prefix cache. `tokens` are the sequence's, all committed
    /// as far as `computed`.
    pub(crate) fn register(&mut self, tokens: &[TokenId], computed: usize) {
        if !self.pool.cache_prefixes {
            return;
        }
        let size = self.pool.block_size;
        while (self.registered + 1) * size <= computed {
            let index = self.registered;
            let key = PrefixKey {
                parent: self.last_serial,
                salt: self.salt,
                tokens: tokens[index * size..(index + 1) * size].into(),
            };
            let state = &mut *self.pool.state.borrow_mut();
            if let Some(serial) = state
                .by_prefix
                .get(&key)
                .and_then(|&id| state.slots[id as usize].cached.as_ref())
                .map(|cached| cached.serial)
            {
                // Another sequence computed the same block first. Ours stays private; the chain goes on under theirs.
                self.last_serial = serial;
            } else {
                let id = self.blocks[index].id;
                let serial = state.tick();
                state.by_prefix.insert(key.clone(), id);
                state.slots[id as usize].cached = Some(Cached { key, serial, released_at: 0 });
                self.last_serial = serial;
            }
            self.registered += 1;
        }
    }

    /// The block numbers that cover the first `tokens` positions.
    #[cfg(test)]
    pub(crate) fn ids(&self, tokens: usize) -> Vec<BlockId> {
        let mut ids = Vec::new();
        self.append_ids(tokens, &mut ids);
        ids
    }

    /// Appends the block numbers that cover the first `tokens` positions; the part of `out` they are.
    pub(crate) fn append_ids(&self, tokens: usize, out: &mut Vec<BlockId>) -> Range<usize> {
        let begin = out.len();
        out.extend(self.blocks.iter().take(tokens.div_ceil(self.pool.block_size)).map(|block| block.id));
        begin..out.len()
    }
}

#[cfg(test)]
mod tests;
