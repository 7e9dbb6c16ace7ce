//! What holds of pools and tables.

use std::collections::{HashMap, HashSet};

use super::*;
use proptest::prelude::*;

const SIZE: usize = 4;

fn tokens(n: usize) -> Vec<TokenId> {
    (0..n as u32).collect()
}

#[test]
fn growing_takes_all_that_is_missing_or_nothing() {
    let pool = BlockPool::new(3, SIZE, true);
    let mut a = pool.table(0);
    assert!(a.grow(5));
    assert_eq!((a.capacity(), pool.free()), (8, 1));
    let mut b = pool.table(0);
    assert!(!b.grow(8));
    assert_eq!((b.capacity(), pool.free()), (0, 1));
    drop(a);
    assert!(b.grow(8));
    assert_eq!(pool.free(), 1);
}

#[test]
fn a_registered_prefix_is_found_shared_and_survives_its_owner() {
    let pool = BlockPool::new(4, SIZE, true);
    let text = tokens(10);
    let mut a = pool.table(0);
    assert!(a.grow(10));
    a.register(&text, 9);
    let first_two = a.ids(8);
    drop(a);
    assert_eq!((pool.free(), pool.view().cached), (4, 2));
    // To be asked takes nothing.
    assert_eq!((pool.cached_tokens(&text, 0), pool.cached_tokens(&text[1..], 0), pool.free()), (8, 0, 4));
    assert_eq!((pool.cached_tokens(&text[..8], 0), pool.cached_tokens(&[], 0)), (7, 0));
    let b = pool.table_for_prefix(&text, 0);
    assert_eq!((b.cached_tokens(), b.ids(8)), (8, first_two));
    assert_eq!(pool.free(), 2);
    // Under another salt it is another prefix.
    let mut salted = pool.table_for_prefix(&text, 7);
    assert_eq!((salted.cached_tokens(), pool.cached_tokens(&text, 7)), (0, 0));
    assert!(salted.grow(8));
    salted.register(&text, 8);
    drop(salted);
    assert_eq!((pool.cached_tokens(&text, 7), pool.cached_tokens(&text, 8)), (8, 0));
    // The last token is always left to compute, even where its block is cached.
    let mut whole = pool.table_for_prefix(&text[..8], 0);
    assert_eq!((whole.cached_tokens(), whole.copy_tail()), (4, 7));
    // Same tokens after another beginning are another prefix.
    assert_eq!(pool.table_for_prefix(&tokens(10)[4..], 0).cached_tokens(), 0);
}

#[test]
fn the_end_of_a_cached_prefix_is_evicted_before_its_beginning() {
    let pool = BlockPool::new(3, SIZE, true);
    let text = tokens(13);
    let mut a = pool.table(0);
    assert!(a.grow(12));
    a.register(&text, 12);
    drop(a);
    let mut b = pool.table(0);
    assert!(b.grow(4));
    assert_eq!(pool.table_for_prefix(&text, 0).cached_tokens(), 8);
}

#[test]
fn with_the_cache_off_nothing_is_kept() {
    let pool = BlockPool::new(3, SIZE, false);
    let mut a = pool.table(0);
    assert!(a.grow(12));
    a.register(&tokens(12), 12);
    drop(a);
    assert_eq!(pool.view(), PoolView { total: 3, free: 3, cached: 0 });
}

/// A table with room for all of `text`, from the cache as far as that goes; the tokens it has from there.
fn admit(pool: &BlockPool, text: &[TokenId], salt: u128) -> Option<(BlockTable, usize)> {
    let mut table = pool.table_for_prefix(text, salt);
    let there = table.grow(text.len());
    there.then(|| (table.copy_tail(), table)).map(|(cached, table)| (table, cached))
}

fn copies(pool: &BlockPool) -> Vec<BlockCopy> {
    let mut copies = Vec::new();
    pool.take_copies(&mut copies);
    copies
}

/// Tokens computed of a text and left there.
fn leave(pool: &BlockPool, text: &[TokenId], computed: usize) {
    let (mut table, _) = admit(pool, text, 0).expect("room");
    copies(pool);
    table.leave(text, computed);
}

#[test]
fn a_prefix_is_found_to_the_token_and_the_block_it_ends_in_is_copied() {
    let pool = BlockPool::new(9, SIZE, true);
    let text = tokens(12);
    leave(&pool, &text, 11);
    assert_eq!(pool.view(), PoolView { total: 9, free: 9, cached: 3 });
    // Parts inside a full block, inside the one that was filled in part, not at all; the last token is left.
    let with = |n: usize, more: usize| [&text[..n], &vec![99; more]].concat();
    for (prompt, cached) in
        [(with(6, 3), 6), (with(10, 1), 10), (with(10, 9), 10), (with(12, 0), 11), (with(0, 5), 0)]
    {
        assert_eq!(pool.cached_tokens(&prompt, 0), cached, "{prompt:?}");
        let (table, found) = admit(&pool, &prompt, 0).expect("room");
        assert_eq!(found, cached, "{prompt:?}");
        let own = table.ids(usize::MAX / 2)[cached / SIZE..].to_vec();
        let copied = copies(&pool);
        assert_eq!(copied.len(), usize::from(!cached.is_multiple_of(SIZE)));
        assert!(copied.iter().all(|copy| copy.to == own[0] && !own.contains(&copy.from)), "{copied:?}");
    }
    // Under another salt nothing is, and nobody's neighbour in order is taken for one's own.
    assert_eq!((pool.cached_tokens(&text, 1), pool.cached_tokens(&[99, 98], 0)), (0, 0));
}

#[test]
fn a_block_filled_in_part_is_no_parent_and_gives_way_to_a_longer_one() {
    let pool = BlockPool::new(8, SIZE, true);
    let text = tokens(20);
    leave(&pool, &text[..7], 6);
    assert_eq!(pool.view().cached, 2);
    // As far again, less far: what is there is enough.
    leave(&pool, &text[..7], 6);
    leave(&pool, &text[..6], 5);
    assert_eq!((pool.view().cached, pool.cached_tokens(&text, 0)), (2, 6));
    // Farther: in its place. Filled: likewise.
    leave(&pool, &text[..8], 7);
    assert_eq!((pool.view().cached, pool.cached_tokens(&text, 0)), (2, 7));
    leave(&pool, &text[..10], 10);
    assert_eq!((pool.view().cached, pool.cached_tokens(&text, 0)), (3, 10));
    // Two that part go side by side.
    let other = [&text[..9], &[77, 78]].concat();
    leave(&pool, &other, 11);
    assert_eq!((pool.view().cached, pool.cached_tokens(&text, 0)), (4, 10));
    assert_eq!(pool.cached_tokens(&[&other[..], &[1]].concat(), 0), 11);
    // Whoever goes on behind a block that is filled in part fills its own.
    leave(&pool, &text, 20);
    assert_eq!((pool.cached_tokens(&text, 0), pool.cached_tokens(&other, 0)), (19, 10));
    assert!(pool.view().whole());
}

#[test]
fn what_is_copied_may_be_evicted_before_and_be_the_same_block() {
    let pool = BlockPool::new(3, SIZE, true);
    let text = tokens(12);
    leave(&pool, &text, 10);
    // The whole pool is needed: the block that goes on with the prompt is taken for the place that it would be copied to.
    let (mut table, cached) = admit(&pool, &text, 0).expect("room");
    assert_eq!((cached, copies(&pool), pool.view().cached), (10, vec![], 2));
    table.leave(&text, 10);
    assert_eq!(pool.cached_tokens(&text, 0), 10);
    // Another order: it becomes a later block of the same table, and is copied before anybody writes there.
    let pool = BlockPool::new(4, SIZE, true);
    leave(&pool, &text[..7], 6);
    let source = pool.table_for_prefix(&text[..7], 0).tail.expect("a block").block;
    let held = admit(&pool, &[50; 4], 0).expect("room");
    let (table, cached) = admit(&pool, &text, 0).expect("room");
    let (ids, copied) = (table.ids(12), copies(&pool));
    assert_eq!((cached, ids[2]), (6, source));
    assert_eq!(copied, [BlockCopy { rank: 0, from: source, to: ids[1] }]);
    drop(held);
}

#[test]
fn what_was_copied_is_evicted_after_what_was_not() {
    let pool = BlockPool::new(3, SIZE, true);
    let (older, newer) = ([1, 2, 3], [4, 5, 6]);
    leave(&pool, &older, 2);
    leave(&pool, &newer, 2);
    drop(admit(&pool, &older, 0));
    let both = admit(&pool, &[9; 8], 0).expect("room");
    assert_eq!((pool.cached_tokens(&older, 0), pool.cached_tokens(&newer, 0)), (2, 0));
    drop(both);
    // What is there already counts as used too.
    let pool = BlockPool::new(4, SIZE, true);
    leave(&pool, &older, 2);
    leave(&pool, &newer, 2);
    let mut same = pool.table(0);
    assert!(same.grow(2));
    same.leave(&older, 2);
    let all_but_one = admit(&pool, &[9; 12], 0).expect("room");
    assert_eq!((pool.cached_tokens(&older, 0), pool.cached_tokens(&newer, 0)), (2, 0));
    drop(all_but_one);
}

#[test]
fn a_block_is_found_in_part_while_its_owner_fills_it() {
    let pool = BlockPool::new(8, SIZE, true);
    let text = tokens(12);
    let (mut owner, _) = admit(&pool, &text, 0).expect("room");
    owner.register(&text, 6);
    owner.register_part(&text, 6);
    let (other, cached) = admit(&pool, &text[..7], 0).expect("room");
    let (from, to) = (owner.ids(8)[1], other.ids(8)[1]);
    assert_eq!((cached, copies(&pool)), (6, vec![BlockCopy { rank: 0, from, to }]));
    // The same block is what is cached in part, and then as a whole.
    owner.register(&text, 7);
    assert_eq!((pool.cached_tokens(&text, 0), pool.view().cached), (6, 2));
    owner.register(&text, 9);
    assert_eq!((pool.cached_tokens(&text, 0), pool.view().cached), (8, 2));
    owner.leave(&text, 9);
    assert_eq!((pool.cached_tokens(&text, 0), pool.view().cached), (9, 3));
}

#[test]
fn a_copy_is_dropped_with_the_block_it_is_for_and_never_made_of_one_to_come() {
    let pool = BlockPool::new(8, SIZE, true);
    let text = tokens(8);
    leave(&pool, &text, 6);
    // Two want the same; one goes before the next plan.
    let (first, second) = (admit(&pool, &text, 0), admit(&pool, &text, 0));
    let ((mut first, _), (second, _)) = (first.expect("room"), second.expect("room"));
    let (gone, source) = (first.ids(8)[1], pool.table_for_prefix(&text, 0).tail.expect("a block").block);
    first.leave(&text, 6);
    // What it would have had is not taken for what it has.
    assert_eq!((pool.slots_cached(gone), pool.view().cached), (false, 2));
    assert_eq!(copies(&pool), [BlockCopy { rank: 0, from: source, to: second.ids(8)[1] }]);
    assert_eq!(copies(&pool), []);
    // Without a block to spare for it there is none.
    let small = BlockPool::new(2, SIZE, true);
    let (mut all, _) = admit(&small, &text, 0).expect("room");
    all.register(&text, 8);
    let mut draft = small.table_for_prefix(&text, 0);
    assert_eq!((draft.copy_tail(), copies(&small)), (4, vec![]));
}

impl BlockPool {
    fn slots_cached(&self, id: BlockId) -> bool {
        self.state.borrow().slots[id as usize].cached.is_some()
    }

    /// All texts without a salt that are cached in whole blocks, from their beginnings on.
    fn texts(&self) -> HashSet<Vec<TokenId>> {
        let state = self.state.borrow();
        let mut texts: HashMap<u64, Vec<TokenId>> = HashMap::from([(0, Vec::new())]);
        // In the order of their parents' serials, which are less than their own.
        for (key, &id) in &state.by_prefix {
            if let Some(before) = texts.get(&key.parent)
                && key.salt == 0
                && key.tokens.len() == self.block_size
            {
                let text = [before, &key.tokens[..]].concat();
                texts.insert(state.slots[id as usize].cached.as_ref().expect("an entry").serial, text);
            }
        }
        texts.into_values().filter(|text| !text.is_empty()).collect()
    }

    /// Each entry is of a block that knows it, each block that is free has one place, and copies are into blocks that are held, once each.
    fn check(&self) {
        let state = self.state.borrow();
        let cached: Vec<_> = state.slots.iter().filter_map(|slot| slot.cached.as_ref()).collect();
        assert_eq!(cached.len(), state.by_prefix.len());
        for (key, &id) in &state.by_prefix {
            let slot = &state.slots[id as usize];
            let cached = slot.cached.as_ref().expect("an entry");
            assert!(cached.key == *key && !key.tokens.is_empty() && key.tokens.len() <= self.block_size);
            assert_eq!(state.evictable.get(&cached.released_at) == Some(&id), slot.holders == 0);
        }
        let free = state.slots.iter().filter(|slot| slot.holders == 0).count();
        assert_eq!(state.empty.len() + state.evictable.len(), free);
        for (i, copy) in state.copies.iter().enumerate() {
            assert!(state.slots[copy.to as usize].holders == 1 && copy.from != copy.to);
            assert!(state.copies[..i].iter().all(|before| before.to != copy.to));
        }
    }
}

/// Whoever is told what is cached: texts by their hashes.
#[derive(Default)]
struct Consumer(HashMap<u64, Vec<TokenId>>);

impl Consumer {
    /// Takes what is new, and has exactly what is cached then.
    fn hear(&mut self, pool: &BlockPool) {
        let mut events = Vec::new();
        pool.take_events(&mut events);
        for event in events {
            match event {
                KvEvent::Stored { hash, parent, tokens } => {
                    let before = parent.map(|parent| self.0[&parent].clone()).unwrap_or_default();
                    let twice = self.0.insert(hash, [before, tokens.into()].concat());
                    assert_eq!(twice, None, "it was there");
                }
                KvEvent::Removed { hash } => drop(self.0.remove(&hash).expect("it was told of")),
                KvEvent::Cleared => self.0.clear(),
            }
        }
        let heard: HashSet<Vec<TokenId>> = self.0.values().cloned().collect();
        assert_eq!(heard.len(), self.0.len());
        assert_eq!(heard, pool.texts());
    }
}

#[test]
fn a_block_whose_parent_left_is_told_to_be_gone_and_never_to_be_there() {
    let pool = BlockPool::new(4, SIZE, true);
    pool.tell();
    let mut consumer = Consumer::default();
    let text = tokens(12);
    // Two compute the same at the same time: the chain goes on under the first one's block.
    let (mut first, mut second) = (pool.table(0), pool.table(0));
    assert!(first.grow(4) && second.grow(8));
    first.register(&text, 4);
    second.register(&text, 8);
    consumer.hear(&pool);
    assert_eq!(consumer.0.len(), 2);
    // The first one's block is evicted; what the second one has behind it is found by nobody.
    drop(first);
    let mut other = pool.table(0);
    assert!(other.grow(8));
    consumer.hear(&pool);
    assert_eq!((consumer.0.len(), pool.view().cached), (0, 1));
    drop(other);
    assert!(second.grow(12));
    second.register(&text, 12);
    consumer.hear(&pool);
    assert_eq!((consumer.0.len(), pool.view().cached), (0, 2));
    // Once it is computed anew it is there again, under the same hash.
    drop(second);
    leave(&pool, &text, 8);
    consumer.hear(&pool);
    let mut again = Consumer::default();
    pool.tell_again();
    again.hear(&pool);
    assert_eq!((again.0.len(), again.0), (2, consumer.0));
}

/// What a slot holds: the salt and all tokens up to it.
type Written = (u128, Vec<TokenId>);

/// Memory of a lane, slot by slot.
struct Memory(Vec<Option<Written>>);

impl Memory {
    fn copy(&mut self, copies: &[BlockCopy]) {
        for BlockCopy { from, to, .. } in copies {
            for slot in 0..SIZE {
                self.0[*to as usize * SIZE + slot] = self.0[*from as usize * SIZE + slot].clone();
            }
        }
    }

    fn at(&mut self, ids: &[BlockId], position: usize) -> &mut Option<Written> {
        &mut self.0[ids[position / SIZE] as usize * SIZE + position % SIZE]
    }
}

struct Reader {
    table: BlockTable,
    text: Vec<TokenId>,
    salt: u128,
    computed: usize,
    /// The plan that is out writes so many positions more, to these blocks.
    out: usize,
}

/// A text of a few that part in many places: at position `i` the digit of a number.
fn text(number: u32, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| number >> (i / 3) & 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever comes and goes, before its plan is made or while it is out: everybody reads his own history, each prefix is cached as far as was
    /// said, no block is lost, what is wanted of a lane is bounded, and whoever is told what is cached knows just that.
    #[test]
    fn what_is_read_is_ones_own_to_the_token(
        actions in prop::collection::vec((0..5usize, 0..8usize, 1..26usize, 0..64u32, 0..2u128), 1..120),
        blocks in 7..16usize,
    ) {
        let pool = BlockPool::new(blocks, SIZE, true);
        pool.tell();
        let mut consumer = Consumer::default();
        let mut memory = Memory(vec![None; blocks * SIZE]);
        let mut readers: Vec<Option<Reader>> = (0..5).map(|_| None).collect();
        // What a plan that is out has yet to write: slots of blocks that may have changed hands.
        let mut late: Vec<(Vec<BlockId>, usize, Written)> = Vec::new();
        for (at, action, n, number, salt) in actions {
            match (action, &mut readers[at]) {
                (0..=2, slot @ None) => {
                    let text = text(number, n);
                    let expected = pool.cached_tokens(&text, salt);
                    prop_assert!(expected < text.len());
                    if let Some((table, computed)) = admit(&pool, &text, salt) {
                        prop_assert_eq!(computed, expected);
                        *slot = Some(Reader { table, text, salt, computed, out: 0 });
                    }
                }
                (3, slot @ None) => {
                    // As a draft does, which takes room as it goes.
                    let text = text(number, n);
                    let mut table = pool.table_for_prefix(&text, salt);
                    let computed = table.copy_tail();
                    *slot = Some(Reader { table, text, salt, computed, out: 0 });
                }
                (0..=3, _) => {
                    // The plan that is out ends.
                    for (ids, position, what) in late.drain(..) {
                        *memory.at(&ids, position) = Some(what);
                    }
                    for reader in readers.iter_mut().flatten() {
                        reader.computed += std::mem::take(&mut reader.out);
                        reader.table.register(&reader.text, reader.computed);
                        if n.is_multiple_of(3) {
                            reader.table.register_part(&reader.text, reader.computed);
                        }
                    }
                    // The next one.
                    let wanted = copies(&pool);
                    prop_assert!(wanted.len() <= readers.len());
                    memory.copy(&wanted);
                    for Reader { table, text, salt, computed, out } in readers.iter_mut().flatten() {
                        let ids = table.ids(text.len());
                        for position in 0..*computed {
                            let right = Some((*salt, text[..=position].to_vec()));
                            prop_assert_eq!(&*memory.at(&ids, position), &right, "position {}", position);
                        }
                        let end = text.len().min(*computed + n);
                        if end > *computed && table.grow(end) {
                            *out = end - *computed;
                            let ids = table.ids(end);
                            let writes = (*computed..end).map(|position| {
                                (ids.clone(), position, (*salt, text[..=position].to_vec()))
                            });
                            late.extend(writes);
                        }
                    }
                }
                (4..=6, slot @ Some(_)) => {
                    let reader = slot.as_mut().expect("it is there");
                    reader.table.leave(&reader.text, reader.computed);
                    *slot = None;
                }
                (_, slot) => *slot = None,
            }
            pool.check();
            consumer.hear(&pool);
        }
        let mut late_comer = Consumer::default();
        pool.tell_again();
        late_comer.hear(&pool);
        drop(readers);
        pool.check();
        prop_assert!(pool.view().whole() && copies(&pool).is_empty());
    }

    /// Whatever tables do, no block is held by two of them unless both hold it as the same cached prefix, and when all
    /// are gone the pool is whole.
    #[test]
    fn blocks_are_never_lost_nor_given_out_twice(
        actions in prop::collection::vec((0..4usize, 0..5usize, 1..20usize, 0..3u32), 1..60),
    ) {
        let pool = BlockPool::new(8, SIZE, true);
        let mut tables: Vec<Option<(BlockTable, Vec<TokenId>)>> = (0..4).map(|_| None).collect();
        for (at, action, n, text) in actions {
            match (action, &mut tables[at]) {
                (0, slot) => {
                    // A private beginning, after which texts 0 to 2 differ.
                    let text: Vec<TokenId> = (0..n as u32).map(|i| if i < 4 { 0 } else { text }).collect();
                    *slot = Some((pool.table_for_prefix(&text, 0), text));
                }
                (1, Some((table, _))) => { let _ = table.grow(n); }
                (2, Some((table, text))) => {
                    let computed = table.capacity().min(text.len());
                    table.register(text, computed);
                }
                (3, Some((table, _))) => { let keep = table.cached_tokens().max(n); table.shrink(keep); }
                (_, slot) => *slot = None,
            }
            let mut holders: HashMap<BlockId, usize> = HashMap::new();
            for (table, _) in tables.iter().flatten() {
                for id in table.ids(usize::MAX / 2) {
                    *holders.entry(id).or_default() += 1;
                }
            }
            prop_assert_eq!(pool.free() + holders.len(), 8);
            let state = pool.state.borrow();
            for (&id, &count) in &holders {
                prop_assert_eq!(state.slots[id as usize].holders, count);
                prop_assert!(count == 1 || state.slots[id as usize].cached.is_some());
            }
        }
        tables.clear();
        prop_assert!(pool.view().whole());
    }
}

#[test]
fn a_branch_holds_what_is_behind_where_it_parts_and_takes_all_or_nothing() {
    let pool = BlockPool::new(5, SIZE, true);
    let mut own = pool.table(3);
    assert!(own.grow(14));
    own.register(&tokens(10), 8);
    let mut branch = pool.table(0);
    // Room for two blocks is not there.
    assert!(!own.fork(9, 4 * SIZE, &mut branch));
    assert!(branch.is_empty() && pool.free() == 1);
    assert!(own.fork(9, 12, &mut branch));
    let (ids, mut plan) = (own.ids(14), vec![7]);
    let range = own.append_branch_ids(9, &branch, &mut plan);
    assert_eq!((range, &plan[1..3], pool.free()), (1..4, &ids[..2], 0));
    assert!(!ids.contains(&plan[3]));
    let mut copies = Vec::new();
    pool.take_copies(&mut copies);
    assert_eq!(copies, [BlockCopy { rank: 0, from: ids[2], to: plan[3] }]);
    // The sequence goes on as the branch: what it had behind the place goes back, and the cache goes on where it stood.
    own.join(9, &mut branch);
    assert_eq!((own.ids(12), pool.free(), branch.is_empty()), (plan[1..].to_vec(), 2, true));
    own.register(&tokens(13), 12);
    assert!(own.bears(15) && !own.bears(16));
    drop(own);
    assert_eq!((pool.free(), pool.cached_tokens(&tokens(13), 3)), (5, 12));
    // At a border nothing is copied.
    let own = pool.table_for_prefix(&tokens(9), 3);
    assert!(own.fork(8, 9, &mut branch));
    pool.take_copies(&mut copies);
    assert_eq!((copies.len(), branch.held()), (1, 1));
    branch.clear();
    drop(own);
    assert!(pool.view().whole());
}
