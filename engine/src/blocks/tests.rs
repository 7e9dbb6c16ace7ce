//! What holds of pools and tables.

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
    assert_eq!((pool.cached_tokens(&text[..8], 0), pool.cached_tokens(&[], 0)), (4, 0));
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
    assert_eq!(pool.table_for_prefix(&text[..8], 0).cached_tokens(), 4);
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

proptest! {
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
