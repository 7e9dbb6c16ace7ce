//! A pass allocates nothing, whole or in segments: after a first one of its shape, everything is there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../kernels/tests/counting/mod.rs"]
mod counting;

use counting::allocations;
use faser_kernels::{Dtype, Isa, KvCache, Lane, Partition, Rows};
use faser_models::synthetic::{SyntheticSpec, head, pair};
use faser_models::{Features, Pass};

const ROWS: usize = 24;

#[test]
fn a_second_pass_allocates_nothing() {
    let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4];
    let tiny = SyntheticSpec::preset("tiny").unwrap();
    let with_experts = SyntheticSpec { experts: 6, experts_per_token: 3, intermediate: 64, ..tiny.clone() };
    for (spec, dtype) in [tiny, with_experts].iter().flat_map(|spec| dtypes.map(|dtype| (spec, dtype))) {
        let (model, _) = pair(spec, dtype, &mut |_| {}).unwrap();
        // One worker: with helpers, which of them meets its first large op in the second pass is chance.
        let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
        let mut kv = KvCache::new(model.kv_shape(2, 16), model.kv_dtype()).unwrap();
        let mut scratch = model.scratch(ROWS, ROWS);
        let head = head(&model, &[1, 2, 4], 300, 1, dtype).unwrap();
        head.attach(&mut scratch, Features::new(2, 16, head.config().hidden));
        let mut of_head =
            (head.scratch(ROWS, ROWS), KvCache::new(head.kv_shape(2, 16), head.kv_dtype()).unwrap());
        let numbers: Vec<u32> = (0..ROWS as u32).collect();
        let rows = |n| Rows { positions: &numbers[..n], table_of: &[0; ROWS][..n], tables: &[&[1, 0]] };
        let mut scores = [0.0; 4 * ROWS];
        let tokens: Vec<u32> = (0..4 * ROWS as u32).collect();
        let mut pass = || {
            model.forward(
                &lane,
                &mut kv,
                &mut scratch,
                &Pass { tokens: &numbers, rows: rows(ROWS), logits: &numbers },
            );
            model.begin(&lane, &mut scratch, &numbers);
            model.layers(&lane, 0..2, &mut kv, &mut scratch, rows(ROWS));
            model.score(&lane, &mut scratch, ROWS, &numbers, &tokens, &mut scores);
            model.keep(&mut scratch, ROWS, &numbers[..10]);
            model.layers(&lane, 2..4, &mut kv, &mut scratch, rows(10));
            model.finish(&lane, &mut scratch, 10, &[0, 9]);
            let (scratch, kv) = &mut of_head;
            (0..ROWS).for_each(|row| scratch.begins_with(row).fill(0.5));
            head.forward(&lane, kv, scratch, &Pass { tokens: &numbers, rows: rows(ROWS), logits: &[0, 9] });
        };
        pass();
        let before = allocations();
        pass();
        assert_eq!(allocations(), before, "{dtype}, {} experts", spec.experts);
    }
}
