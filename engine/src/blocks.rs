//! Block accounting: which sequence holds which KV block, and which blocks hold the KV of a cached prefix.
//!
//! ```text
//!   empty --take--> held --drop, nothing cached--> empty
//!                    | register (full or in part, computed)
//!                    v
//!                  cached+held --last drop--> cached (evictable, oldest first) --take/evict--> held
//!                       ^______________________find_______________|
//! ```
//! A `BlockTable` is a guard: dropping it gives its blocks back. No memory is touched here; the device has that.
//!
//! A cached prefix counts to the token. Its whole blocks are shared. Behind them comes the cached block whose tokens go on with
//! the prompt furthest: a sequence takes a block of its own for these, and the lane copies that one into it (copy-on-write):
//!
//! ```text
//!   cached     | a b c d | e f g h |          a block that is cached in part is one with fewer tokens
//!   prompt     | a b c d | e f x y z ...
//!   its table    shared    copied, computed from x on
//! ```
//!
//! A copy is wanted at once and made later: copies leave with the next plan of the pool's lane, which makes them before anything else.
//! Until then nothing is written, for only plans write, and a lane has one at a time. So what is copied is what the block holds now, or will
//! hold once the plan that is out is done; whoever fills a block that is cached in part writes behind the tokens that are cached, nowhere
//! else. The block may be evicted and be somebody else's before the copy is made: the new owner writes in the same plan at the
//! earliest, after the copies. Copies are made in their order, as one may write a block that one before it reads. A copy into a block
//! that nobody holds any more is dropped. While its copy is wanted a block enters no cache, so no copy reads what another has yet to bring.

mod told;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::request::TokenId;
use crate::view::PoolView;

pub use told::KvEvent;
use told::Told;

/// A block of KV memory: an index into a pool, the same number in the device's `KvCache`.
pub type BlockId = u32;

/// A block whose KV, keys and values of all layers and slots, becomes that of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCopy {
    /// The rank whose pool has both, where each has a pool of its own; 0 elsewhere.
    pub rank: usize,
    /// The block that is read.
    pub from: BlockId,
    /// The block that is written, another one.
    pub to: BlockId,
}

/// What identifies the content of a block: the block before it, and its own tokens, fewer than a block has if it was not
/// filled. Exact, so that no two prefixes are ever taken for one another. Ordered so that of all keys with the same parent and salt a
/// neighbour has the longest beginning in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PrefixKey {
    /// Serial of the content before, which fills a block; 0 at the beginning of a sequence.
    parent: u64,
    /// Who shares it; see [`crate::Handling::salt`].
    salt: u128,
    tokens: Box<[TokenId]>,
}

impl PrefixKey {
    /// Leading tokens that both have, behind the same content and under the same salt.
    fn common(&self, other: &PrefixKey) -> usize {
        if (self.parent, self.salt) != (other.parent, other.salt) {
            return 0;
        }
        self.tokens.iter().zip(&other.tokens).take_while(|(own, theirs)| own == theirs).count()
    }
}

/// What is cached of a prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Serial of the last whole block; 0 if there is none.
    serial: u64,
    /// The block that goes on with what is behind those.
    tail: Option<Tail>,
}

/// A cached block that begins with the tokens a sequence goes on with.
#[derive(Clone, Copy, Debug)]
struct Tail {
    block: BlockId,
    /// How many: at least one, fewer than a block has.
    tokens: usize,
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
    by_prefix: BTreeMap<PrefixKey, BlockId>,
    /// Cached blocks nobody holds, by the time of release.
    evictable: BTreeMap<u64, BlockId>,
    /// What the next plan is to copy, in order; at most one for each block.
    copies: Vec<BlockCopy>,
    /// There while somebody wants to know what is cached.
    told: Option<Box<Told>>,
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
            self.tell_left(cached.serial);
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
        self.copies.retain(|copy| copy.to != id);
    }

    /// Of the cached blocks that nobody holds it is the last to be evicted, as if it had just been released.
    fn touch(&mut self, id: BlockId) {
        let now = self.tick();
        let slot = &mut self.slots[id as usize];
        if let (0, Some(cached)) = (slot.holders, &mut slot.cached) {
            self.evictable.remove(&cached.released_at);
            cached.released_at = now;
            self.evictable.insert(now, id);
        }
    }

    /// What is cached of `tokens` under this salt, without the last of them: calls `whole` for each whole block.
    fn find(
        &self,
        tokens: &[TokenId],
        salt: u128,
        block_size: usize,
        mut whole: impl FnMut(BlockId),
    ) -> Found {
        let mut found = Found::default();
        let mut rest = tokens.split_last().map_or(tokens, |(_, before)| before);
        if self.by_prefix.is_empty() {
            return found;
        }
        while let Some((chunk, behind)) = rest.split_at_checked(block_size) {
            let key = PrefixKey { parent: found.serial, salt, tokens: chunk.into() };
            let Some(&id) = self.by_prefix.get(&key) else { break };
            let Some(cached) = &self.slots[id as usize].cached else { break };
            (found.serial, rest) = (cached.serial, behind);
            whole(id);
        }
        let tokens = rest[..rest.len().min(block_size)].into();
        found.tail = self.longest(&PrefixKey { parent: found.serial, salt, tokens });
        found
    }

    /// The cached block with the most of a key's tokens in common.
    fn longest(&self, key: &PrefixKey) -> Option<Tail> {
        let before = self.by_prefix.range::<PrefixKey, _>(..key).next_back();
        let behind = self.by_prefix.range::<PrefixKey, _>(key..).next();
        let neighbours = [before, behind].into_iter().flatten();
        let tails = neighbours.map(|(other, &block)| Tail { block, tokens: key.common(other) });
        tails.max_by_key(|tail| tail.tokens).filter(|tail| tail.tokens > 0)
    }

    /// Enters a block into the cache under a key that none has; its serial. A block with a beginning of the same tokens leaves the cache: all
    /// that is found there is found in this one too.
    fn enter(&mut self, key: PrefixKey, id: BlockId) -> u64 {
        // There is one such block at most, and then nothing between: whatever began with its tokens would have replaced it.
        let before = self.by_prefix.range::<PrefixKey, _>(..&key).next_back();
        let shorter = before.filter(|(before, _)| key.common(before) == before.tokens.len());
        if let Some((_, &shorter)) = shorter {
            self.forget(shorter);
        }
        let serial = self.tick();
        self.by_prefix.insert(key.clone(), id);
        if let Some(told) = &mut self.told {
            told.entered(serial, key.parent, key.salt, &key.tokens);
        }
        self.slots[id as usize].cached = Some(Cached { key, serial, released_at: 0 });
        serial
    }

    /// A block leaves the cache; it is empty if nobody holds it.
    fn forget(&mut self, id: BlockId) {
        let slot = &mut self.slots[id as usize];
        let Some(cached) = slot.cached.take() else { return };
        self.by_prefix.remove(&cached.key);
        if slot.holders == 0 {
            self.evictable.remove(&cached.released_at);
            self.empty.push(id);
        }
        self.tell_left(cached.serial);
    }

    /// What is behind a block that left is found no more, even where it is held.
    fn tell_left(&mut self, serial: u64) {
        let PoolState { told: Some(told), by_prefix, slots, .. } = self else { return };
        let mut left = vec![serial];
        while let Some(serial) = left.pop() {
            if !told.left(serial) {
                continue;
            }
            let first = PrefixKey { parent: serial, salt: 0, tokens: [].into() };
            let behind =
                by_prefix.range(first..).take_while(|(key, _)| key.parent == serial && key.salt == 0);
            let cached = behind.filter_map(|(_, &id)| slots[id as usize].cached.as_ref());
            left.extend(cached.map(|cached| cached.serial));
        }
    }
}

/// A bounded set of KV blocks of one model.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    state: Rc<RefCell<PoolState>>,
    block_size: usize,
    cache_prefixes: bool,
    rank: usize,
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
        BlockPool { state: Rc::new(RefCell::new(state)), block_size, cache_prefixes, rank: 0 }
    }

    /// The same pool, as that of a rank which has one of its own.
    pub(crate) fn of_rank(self, rank: usize) -> BlockPool {
        BlockPool { rank, ..self }
    }

    /// A table that holds nothing yet, for a sequence of this salt.
    pub(crate) fn table(&self, salt: u128) -> BlockTable {
        BlockTable { pool: self.clone(), blocks: Vec::new(), registered: 0, last_serial: 0, tail: None, salt }
    }

    /// A table over the whole blocks of the longest prefix of `tokens` cached under the same salt that leaves at least one token to compute.
    /// [`BlockTable::copy_tail`] has the rest of that prefix.
    pub(crate) fn table_for_prefix(&self, tokens: &[TokenId], salt: u128) -> BlockTable {
        let mut table = self.table(salt);
        let state = &mut *self.state.borrow_mut();
        let found = state.find(tokens, salt, self.block_size, |id| table.blocks.push(id));
        table.blocks.iter().for_each(|&id| state.hold(id));
        found.tail.iter().for_each(|tail| state.touch(tail.block));
        (table.registered, table.last_serial, table.tail) = (table.blocks.len(), found.serial, found.tail);
        table
    }

    /// Leading tokens that a table for `tokens` would have from the cache; nothing is held.
    pub(crate) fn cached_tokens(&self, tokens: &[TokenId], salt: u128) -> usize {
        let mut whole = 0;
        let found = self.state.borrow().find(tokens, salt, self.block_size, |_| whole += 1);
        whole * self.block_size + found.tail.map_or(0, |tail| tail.tokens)
    }

    /// From now on it is told what of it is cached; what is already, at once.
    pub(crate) fn tell(&self) {
        self.state.borrow_mut().told.get_or_insert_with(|| Box::new(Told::new(self.block_size)));
        self.tell_again();
    }

    /// Has all that is cached told anew, behind [`KvEvent::Cleared`], if anything is told.
    pub(crate) fn tell_again(&self) {
        let PoolState { told: Some(told), by_prefix, slots, .. } = &mut *self.state.borrow_mut() else {
            return;
        };
        // A parent's serial is less than its child's, and so it comes first in the order of keys.
        told.clear();
        for (key, &id) in by_prefix.iter() {
            if let Some(cached) = &slots[id as usize].cached {
                told.entered(cached.serial, key.parent, key.salt, &key.tokens);
            }
        }
    }

    /// Takes over from a pool whose blocks are gone who is told, and what he has yet to hear.
    pub(crate) fn tell_after(self, gone: &BlockPool) -> BlockPool {
        let mut told = gone.state.borrow_mut().told.take();
        told.iter_mut().for_each(|told| told.clear());
        self.state.borrow_mut().told = told;
        self
    }

    /// Appends what has changed since the last call.
    pub(crate) fn take_events(&self, out: &mut Vec<KvEvent>) {
        if let Some(told) = &mut self.state.borrow_mut().told {
            out.append(&mut told.events);
        }
    }

    /// Appends the copies that are wanted: whoever calls it has the pool's lane make them before anything else of its next plan.
    pub(crate) fn take_copies(&self, out: &mut Vec<BlockCopy>) {
        out.append(&mut self.state.borrow_mut().copies);
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
    blocks: Vec<BlockId>,
    /// Leading blocks whose content is in the prefix cache, under this table or another.
    registered: usize,
    last_serial: u64,
    /// What was found behind those, until [`BlockTable::copy_tail`].
    tail: Option<Tail>,
    salt: u128,
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        // From the end, so that the beginning of a cached prefix, without which the rest is not found, is evicted last.
        self.shrink(0);
    }
}

impl BlockTable {
    /// The rank whose pool its blocks are of.
    pub(crate) fn rank(&self) -> usize {
        self.pool.rank
    }

    /// Tokens the blocks have room for.
    pub(crate) fn capacity(&self) -> usize {
        self.blocks.len() * self.pool.block_size
    }

    /// Tokens covered by whole blocks of a cached prefix; their KV is computed.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.registered * self.pool.block_size
    }

    /// Has what the cache holds of the block behind the whole ones copied, if the pool has a block for it; the tokens whose KV is there then, whole
    /// blocks included. To be called before the next plan of the pool's lane is made: until then the block that is copied is as it was
    /// found, whoever has taken it since.
    pub(crate) fn copy_tail(&mut self) -> usize {
        let whole = self.cached_tokens();
        let Some(Tail { block: from, tokens }) = self.tail.take() else { return whole };
        if !self.grow(whole + tokens) {
            return whole;
        }
        let to = self.blocks[self.registered];
        // The block itself may have been evicted for this very place.
        if from != to {
            self.pool.state.borrow_mut().copies.push(BlockCopy { rank: self.pool.rank, from, to });
        }
        whole + tokens
    }

    /// Makes `branch`, a table without blocks, the end of another way to go on behind the first `tokens` positions. It holds what is behind the whole
    /// blocks of those, which stay this table's alone; what the block behind them holds is copied, as by [`BlockTable::copy_tail`]. Room is made up to
    /// `room` positions. False, with nothing taken, if the pool has too few blocks.
    #[must_use]
    pub(crate) fn fork(&self, tokens: usize, room: usize, branch: &mut BlockTable) -> bool {
        let size = self.pool.block_size;
        let whole = tokens / size;
        branch.pool = self.pool.clone();
        if !branch.grow(room.saturating_sub(whole * size)) {
            return false;
        }
        if !tokens.is_multiple_of(size) {
            let (from, to) = (self.blocks[whole], branch.blocks[0]);
            self.pool.state.borrow_mut().copies.push(BlockCopy { rank: self.pool.rank, from, to });
        }
        true
    }

    /// Goes on as a branch that parted behind so many positions: its blocks take the place of this table's.
    pub(crate) fn join(&mut self, tokens: usize, branch: &mut BlockTable) {
        self.shrink(tokens / self.pool.block_size * self.pool.block_size);
        self.blocks.append(&mut branch.blocks);
    }

    /// Are the whole blocks of so many positions there, for a branch that parted behind them?
    pub(crate) fn bears(&self, tokens: usize) -> bool {
        tokens / self.pool.block_size <= self.blocks.len()
    }

    /// Has it none of another table's blocks?
    pub(crate) fn is_apart(&self, other: &BlockTable) -> bool {
        self.pool.rank != other.pool.rank || !other.blocks.iter().any(|id| self.blocks.contains(id))
    }

    /// Gives all blocks back; the cache has of them what it had.
    pub(crate) fn clear(&mut self) {
        self.shrink(0);
        (self.registered, self.last_serial, self.tail) = (0, 0, None);
    }

    /// Blocks that its pool could give it.
    pub(crate) fn free(&self) -> usize {
        self.pool.free()
    }

    /// Blocks that it holds.
    pub(crate) fn held(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it holds no block.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
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
        let state = &mut *self.pool.state.borrow_mut();
        self.blocks.extend((0..missing).map_while(|_| state.take()));
        true
    }

    /// Gives back blocks beyond `tokens` tokens, the last first: the roll-back of provisional KV.
    pub(crate) fn shrink(&mut self, tokens: usize) {
        let kept = tokens.div_ceil(self.pool.block_size).min(self.blocks.len());
        let state = &mut *self.pool.state.borrow_mut();
        self.blocks.drain(kept..).rev().for_each(|id| state.release(id));
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
                self.last_serial = state.enter(key, self.blocks[index]);
            }
            self.registered += 1;
        }
    }

    /// Gives all blocks back. All that `computed` tokens fill enters the prefix cache before, the last block with the tokens that it has.
    /// `tokens` as in [`BlockTable::register`].
    pub(crate) fn leave(&mut self, tokens: &[TokenId], computed: usize) {
        self.register(tokens, computed);
        self.register_part(tokens, computed);
        self.shrink(0);
        (self.registered, self.last_serial, self.tail) = (0, 0, None);
    }

    /// Enters the block that `computed` tokens fill in part, those that [`BlockTable::register`] has not. What the table's sequence writes there later
    /// stands behind them.
    pub(crate) fn register_part(&self, tokens: &[TokenId], computed: usize) {
        let part = tokens.get(self.cached_tokens()..computed).unwrap_or_default();
        let Some(&id) = self.blocks.get(self.registered) else { return };
        let state = &mut *self.pool.state.borrow_mut();
        let to_come = || state.copies.iter().any(|copy| copy.to == id);
        if !self.pool.cache_prefixes || part.is_empty() || to_come() {
            return;
        }
        let key = PrefixKey { parent: self.last_serial, salt: self.salt, tokens: part.into() };
        match state.longest(&key) {
            // All of it is there, and was of use just now.
            Some(Tail { block, tokens }) if tokens == part.len() => state.touch(block),
            _ => drop(state.enter(key, id)),
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
        let blocks = tokens.div_ceil(self.pool.block_size).min(self.blocks.len());
        out.extend_from_slice(&self.blocks[..blocks]);
        begin..out.len()
    }

    /// Appends the block numbers of a branch that parted behind `tokens` positions, all that it has; the part of `out` they are.
    pub(crate) fn append_branch_ids(
        &self,
        tokens: usize,
        branch: &BlockTable,
        out: &mut Vec<BlockId>,
    ) -> Range<usize> {
        let begin = out.len();
        self.append_ids(tokens / self.pool.block_size * self.pool.block_size, out);
        out.extend_from_slice(&branch.blocks);
        begin..out.len()
    }
}

#[cfg(test)]
mod tests;
