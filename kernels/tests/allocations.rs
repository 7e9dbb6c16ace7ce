//! A pass allocates nothing: after a first pass of a shape, ops only use what lanes and tensors already have.

mod counting;
#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use counting::allocations;
use faser_kernels::ops::{self, AttentionShape, TOP_TOKENS, Write};
use faser_kernels::sampling::margin;
use faser_kernels::{
    Dtype, History, Isa, KvCache, KvShape, Lane, Matrix, RopeScaling, RopeSpec, RopeTable, Rows, SampleRow,
    Sampling, Source, Table, Tensor, Vector,
};
use reference::{Random, lane};

const ROWS: usize = 20;
const HIDDEN: usize = 256;
const VOCABULARY: usize = 5000;

#[test]
fn a_second_pass_allocates_nothing() {
    let mut random = Random::new(8);
    let spec =
        RopeSpec { head_dim: 64, rotated: 64, theta: 1e4, scaling: RopeScaling::None, max_positions: 64 };
    let rope = RopeTable::new(&spec).unwrap();
    let table = Table::new(HIDDEN, Source::F32(&random.numbers(VOCABULARY * HIDDEN)), Dtype::Bf16).unwrap();
    let qkv =
        Matrix::pack(HIDDEN, &[Source::F32(&random.numbers(3 * HIDDEN * HIDDEN))], Dtype::Bf16).unwrap();
    let head =
        Matrix::pack(HIDDEN, &[Source::F32(&random.numbers(VOCABULARY * HIDDEN))], Dtype::Bf16).unwrap();
    let weight = Vector::new(Source::F32(&random.numbers(HIDDEN)));
    let shape = KvShape { layers: 1, blocks: 4, block_size: 16, kv_heads: 4, head_dim: 64 };
    let mut kv = KvCache::new(shape, Dtype::Bf16).unwrap();
    let [mut x, mut normal, mut out] = [(); 3].map(|()| Tensor::zeros(ROWS, HIDDEN));
    let (mut fused, mut logits) = (Tensor::zeros(ROWS, 3 * HIDDEN), Tensor::zeros(ROWS, VOCABULARY));
    let (tokens, positions): (Vec<u32>, Vec<u32>) = ((0..20).collect(), (0..20).collect());
    let rows = Rows { positions: &positions, table_of: &[0; ROWS], tables: &[&[2, 0]] };
    let sampling = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { top_p: 0.9, presence_penalty: 0.3, ..Sampling::default() },
        Sampling { top_k: 50, ..Sampling::default() },
    ];
    let histories: Vec<History> =
        sampling.iter().map(|sampling| History::new(1, &[1, 2, 3], sampling)).collect();
    let draws: Vec<SampleRow> = (0..ROWS)
        .map(|row| SampleRow {
            row,
            position: 3,
            sampling: &sampling[row % 3],
            history: &histories[row % 3],
            since: &[],
            allowed: None,
        })
        .collect();
    let mut sampled = [0; ROWS];
    let (mut top, mut scores) = ([[0; TOP_TOKENS]; ROWS], [0.0; ROWS * TOP_TOKENS]);
    let mut pass = |lane: &Lane| {
        ops::embed(lane, &table, &tokens, 1.0, x.view_mut(ROWS));
        ops::rms_norm(lane, x.view(ROWS), &weight, 1e-5, normal.view_mut(ROWS), Write::Replace);
        ops::matmul(lane, normal.view(ROWS), &qkv, None, fused.view_mut(ROWS), Write::Replace);
        ops::rope(lane, fused.view_mut(ROWS).columns(0..2 * HIDDEN), &positions, &rope);
        let [q, k, v] = [0, 1, 2].map(|i| fused.view(ROWS).columns(i * HIDDEN..(i + 1) * HIDDEN));
        ops::store_kv(lane, k, v, &mut kv, 0, rows);
        let shape =
            AttentionShape { heads: 4, scale: 0.125, soft_cap: None, window: None, first: 0, sinks: None };
        ops::attention(lane, q, &kv, 0, rows, shape, out.view_mut(ROWS));
        let gated = fused.view(ROWS).columns(0..2 * HIDDEN);
        ops::activate(lane, gated, ops::Activation::Silu, normal.view_mut(ROWS));
        ops::gather_rows(lane, out.view(ROWS), &tokens, normal.view_mut(ROWS));
        ops::matmul(lane, normal.view(ROWS), &head, None, logits.view_mut(ROWS), Write::Replace);
        ops::sample(lane, logits.view(ROWS), &draws, &mut sampled);
        ops::top_tokens(lane, logits.view(ROWS), &mut top);
        ops::score_tokens(lane, normal.view(ROWS), &head, top.as_flattened(), &mut scores);
        for (draw, (alternatives, scores)) in draws.iter().zip(top.iter().zip(scores.chunks(TOP_TOKENS))) {
            assert!(!margin(draw.sampling, draw.position, 3, alternatives, scores, 0.0).is_nan());
        }
        ops::compact_rows(normal.view_mut(ROWS), &[0, 3, 4]);
    };
    // One worker: with helpers, which of them meets its first large op in the second pass is chance.
    let lane = lane(Isa::detect(), 1);
    pass(&lane);
    let before = allocations();
    pass(&lane);
    assert_eq!(allocations(), before);
}
