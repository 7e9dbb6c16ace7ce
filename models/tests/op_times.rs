//! A lane's times of a whole pass: every op of it is counted, and nothing twice.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Instant;

use faser_kernels::{Dtype, Isa, KvCache, Lane, Op, Partition, Rows};
use faser_models::Pass;
use faser_models::synthetic::{SyntheticSpec, pair};

#[test]
fn a_pass_is_the_sum_of_its_ops() {
    let (model, _) = pair(&SyntheticSpec::preset("tiny").unwrap(), Dtype::Bf16, &mut |_| {}).unwrap();
    let lane = Lane::new(&Partition { cores: vec![0, 0] }, Isa::detect()).unwrap();
    let mut kv = KvCache::new(model.kv_shape(1, 16), model.kv_dtype()).unwrap();
    let mut scratch = model.scratch(8, 8);
    let numbers: Vec<u32> = (0..8).collect();
    let rows = Rows { positions: &numbers, table_of: &[0; 8], tables: &[&[0]] };
    let begin = Instant::now();
    model.forward(&lane, &mut kv, &mut scratch, &Pass { tokens: &numbers, rows, logits: &numbers });
    let (whole, times) = (begin.elapsed(), lane.times());

    let layers = model.config().layers.len() as u64;
    for op in Op::all() {
        let calls = match op {
            Op::Embed | Op::GatherRows => 1,
            Op::RmsNorm => 2 * layers + 1,
            Op::Matmul => 4 * layers + 1,
            Op::Rope | Op::StoreKv | Op::Attention | Op::Activate => layers,
            _ => 0,
        };
        assert_eq!(times.of(op).calls, calls, "{op}");
        assert_eq!(times.of(op).total_ns > 0, calls > 0, "{op}");
    }
    assert!(u128::from(times.sum().total_ns) <= whole.as_nanos(), "{times:?} in {whole:?}");
}
