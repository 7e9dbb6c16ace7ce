//! attention over paged KV against f64, and the same bits whatever the batch, blocks and workers.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use faser_kernels::ops::{AttentionShape, attention, store_kv};
use faser_kernels::{BlockId, Dtype, Isa, KvCache, KvShape, Lane, Rows, Tensor};
use proptest::prelude::*;
use reference::{Random, bf16, bits, close, lane, on_each_isa};

/// Sizes of one test.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    block_size: usize,
    window: Option<usize>,
    first: usize,
    soft_cap: Option<f32>,
    sinks: bool,
    dtype: Dtype,
}

impl Sizes {
    fn shape(&self) -> AttentionShape<'_> {
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        AttentionShape {
            heads: self.kv_heads * self.group,
            scale,
            soft_cap: self.soft_cap,
            window: self.window,
            first: self.first,
            sinks: self.sinks.then(|| &SINKS[..self.kv_heads * self.group]),
        }
    }

    /// What a key, a value or, in int8, a query of a head is held as.
    fn stored(&self, x: &[f32]) -> Vec<f64> {
        let largest = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let (inverse, scale) = (127.0 / largest, f64::from(largest * (1.0 / 127.0)));
        let number = |x: &f32| match self.dtype {
            Dtype::Bf16 => f64::from(bf16(*x)),
            Dtype::Int8 => f64::from((x * inverse).round_ties_even()) * scale,
            _ => f64::from(*x),
        };
        x.iter().map(number).collect()
    }
}

/// Above, among and below the scores, one for each head.
const SINKS: [f32; 32] = {
    let mut sinks = [0.0; 32];
    let mut head = 0;
    while head < 32 {
        sinks[head] = 2.5 * (head as f32 % 7.0) - 7.0;
        head += 1;
    }
    sinks
};

/// A sequence with all its queries, keys and values.
struct Sequence {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    len: usize,
}

impl Sequence {
    fn random(random: &mut Random, sizes: &Sizes, len: usize) -> Sequence {
        let width = sizes.kv_heads * sizes.head_dim;
        let mut tensor = |width: usize, factor: f32| {
            Tensor::from_rows(
                width,
                &random.numbers(len * width).iter().map(|x| x * factor).collect::<Vec<_>>(),
            )
        };
        // Large queries make the softmax sharp, so that a wrong weight shows.
        Sequence { q: tensor(width * sizes.group, 6.0), k: tensor(width, 1.0), v: tensor(width, 1.0), len }
    }

    /// The f64 answer for a position and head.
    fn expected(&self, isa: Isa, sizes: &Sizes, position: usize, head: usize) -> Vec<f64> {
        let dim = sizes.head_dim;
        let columns = head / sizes.group * dim..(head / sizes.group + 1) * dim;
        let rounds = isa == Isa::Avx512Bf16 && sizes.dtype == Dtype::Bf16;
        let q = &self.q.row(position)[head * dim..(head + 1) * dim];
        let q: Vec<f64> = match sizes.dtype {
            Dtype::Int8 => sizes.stored(q),
            _ => q.iter().map(|x| f64::from(if rounds { bf16(*x) } else { *x })).collect(),
        };
        let first = sizes.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let first = first.max(sizes.first.min(position));
        let scores = (first..=position).map(|p| {
            let k = sizes.stored(&self.k.row(p)[columns.clone()]);
            q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(sizes.shape().scale)
        });
        let capped =
            |score: f64| sizes.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
        let scores = scores.map(capped);
        let powers: Vec<f64> = scores.map(f64::exp).collect();
        let sink = sizes.shape().sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let total: f64 = powers.iter().sum::<f64>() + sink;
        let mut out = vec![0.0; dim];
        for (p, power) in (first..).zip(&powers) {
            let v = sizes.stored(&self.v.row(p)[columns.clone()]);
            out.iter_mut().zip(v).for_each(|(out, v)| *out += power / total * v);
        }
        out
    }
}

/// Block tables for some sequences out of a shuffled pool: blocks of a sequence are neither adjacent nor in order.
fn tables(random: &mut Random, sizes: &Sizes, sequences: &[Sequence]) -> (usize, Vec<Vec<BlockId>>) {
    let counts: Vec<usize> = sequences.iter().map(|s| s.len.div_ceil(sizes.block_size)).collect();
    let blocks = counts.iter().sum::<usize>() + 2;
    let mut pool = random.shuffled(blocks).into_iter();
    (blocks, counts.iter().map(|count| pool.by_ref().take(*count).collect()).collect())
}

/// Stores all sequences and attends with the rows `(sequence, position)`, all in one pass.
fn run(
    lane: &Lane,
    sizes: &Sizes,
    sequences: &[Sequence],
    rows: &[(usize, usize)],
    random: &mut Random,
) -> Tensor {
    let (blocks, tables) = tables(random, sizes, sequences);
    let Sizes { kv_heads, head_dim, block_size, .. } = *sizes;
    let mut kv = KvCache::new(KvShape { layers: 2, blocks, block_size, kv_heads, head_dim }, sizes.dtype)
        .expect("sizes are possible");
    poison(lane, &mut kv);
    let tables: Vec<&[BlockId]> = tables.iter().map(Vec::as_slice).collect();
    for (index, sequence) in sequences.iter().enumerate() {
        let positions: Vec<u32> = (0..sequence.len as u32).collect();
        let table_of = vec![index as u32; sequence.len];
        let all = Rows { positions: &positions, table_of: &table_of, tables: &tables };
        store_kv(lane, sequence.k.view(sequence.len), sequence.v.view(sequence.len), &mut kv, 1, all);
    }
    let width = kv_heads * sizes.group * head_dim;
    let queries: Vec<f32> = rows.iter().flat_map(|(s, p)| sequences[*s].q.row(*p).to_vec()).collect();
    let (q, mut out) = (Tensor::from_rows(width, &queries), Tensor::zeros(rows.len(), width));
    let positions: Vec<u32> = rows.iter().map(|(_, p)| *p as u32).collect();
    let table_of: Vec<u32> = rows.iter().map(|(s, _)| *s as u32).collect();
    let rows_of = Rows { positions: &positions, table_of: &table_of, tables: &tables };
    attention(lane, q.view(rows.len()), &kv, 1, rows_of, sizes.shape(), out.view_mut(rows.len()));
    out
}

/// Slots that were never written hold NaN: reading one shows.
fn poison(lane: &Lane, kv: &mut KvCache) {
    let shape = *kv.shape();
    let tables: Vec<Vec<BlockId>> = (0..shape.blocks as u32).map(|block| vec![block]).collect();
    let tables: Vec<&[BlockId]> = tables.iter().map(Vec::as_slice).collect();
    let rows = shape.blocks * shape.block_size;
    let width = shape.kv_heads * shape.head_dim;
    let nan = Tensor::from_rows(width, &vec![f32::NAN; rows * width]);
    let positions: Vec<u32> = (0..rows).map(|r| (r % shape.block_size) as u32).collect();
    let table_of: Vec<u32> = (0..rows).map(|r| (r / shape.block_size) as u32).collect();
    let all = Rows { positions: &positions, table_of: &table_of, tables: &tables };
    for layer in 0..shape.layers {
        store_kv(lane, nan.view(rows), nan.view(rows), kv, layer, all);
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let dims = prop::sample::select(vec![2usize, 16, 20, 22, 32, 64, 80, 128]);
    let window = prop::option::of(1usize..150);
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::Int8]);
    let soft_cap = prop::sample::select(vec![None, Some(2.0)]);
    let first = prop::sample::select(vec![0, 1, 70]);
    (1usize..4, 1usize..9, dims, 1usize..4, window, first, soft_cap, any::<bool>(), dtype).prop_map(
        |(kv_heads, group, head_dim, blocks, window, first, soft_cap, sinks, dtype)| Sizes {
            kv_heads,
            group,
            head_dim,
            block_size: 16 * blocks,
            window,
            first,
            soft_cap,
            sinks,
            dtype,
        },
    )
}

#[test]
fn it_agrees_with_f64() {
    let base = Sizes {
        kv_heads: 2,
        group: 4,
        head_dim: 64,
        block_size: 16,
        window: None,
        first: 0,
        soft_cap: None,
        sinks: false,
        dtype: Dtype::F32,
    };
    let variants = [
        base,
        Sizes { dtype: Dtype::Bf16, ..base },
        Sizes { group: 1, kv_heads: 3, head_dim: 80, block_size: 32, ..base },
        Sizes { group: 8, kv_heads: 1, head_dim: 20, window: Some(50), dtype: Dtype::Bf16, ..base },
        Sizes { window: Some(1), ..base },
        Sizes { first: 1, ..base },
        Sizes { first: 60, window: Some(70), ..base },
        Sizes { soft_cap: Some(2.0), window: Some(70), ..base },
        Sizes { sinks: true, window: Some(90), ..base },
        Sizes { sinks: true, head_dim: 20, dtype: Dtype::Bf16, ..base },
        Sizes { group: 3, head_dim: 128, window: Some(130), ..base },
        Sizes { dtype: Dtype::Int8, ..base },
        Sizes { dtype: Dtype::Int8, group: 1, kv_heads: 3, head_dim: 22, block_size: 32, ..base },
        Sizes { dtype: Dtype::Int8, group: 5, head_dim: 80, window: Some(50), sinks: true, ..base },
        Sizes { dtype: Dtype::Int8, group: 8, kv_heads: 1, head_dim: 128, soft_cap: Some(2.0), ..base },
    ];
    on_each_isa(|isa| {
        for sizes in variants {
            let mut random = Random::new(4);
            let sequences: Vec<Sequence> =
                [1, 16, 200, 65].map(|len| Sequence::random(&mut random, &sizes, len)).into();
            let mut rows = vec![(0, 0), (1, 3), (1, 15)];
            rows.extend((50..80).chain(190..200).map(|p| (2, p)));
            rows.push((3, 64));
            let out = run(&lane(isa, 2), &sizes, &sequences, &rows, &mut random);
            for (r, (sequence, position)) in rows.iter().enumerate() {
                for head in 0..sizes.kv_heads * sizes.group {
                    let expected = sequences[*sequence].expected(isa, &sizes, *position, head);
                    for (i, expected) in expected.into_iter().enumerate() {
                        let actual = out.row(r)[head * sizes.head_dim + i];
                        close(
                            actual,
                            expected,
                            1.0,
                            1e-5,
                            &format!("{isa} {sizes:?} row {r} head {head} element {i}"),
                        );
                    }
                }
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_row_has_the_same_bits_alone_and_in_any_batch(
        sizes in sizes(), lens in prop::collection::vec(1usize..220, 1..5), workers in 1usize..=4, seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let sequences: Vec<Sequence> = lens.iter().map(|len| Sequence::random(&mut random, &sizes, *len)).collect();
        // Of each sequence a run of rows, as in a pass with chunks.
        let rows: Vec<(usize, usize)> = lens.iter().enumerate().flat_map(|(s, len)| {
            let start = random.below(*len);
            let count = 1 + random.below(20).min(len - start - 1);
            (start..start + count).map(move |p| (s, p))
        }).take(64).collect();
        for isa in Isa::available() {
            let batch = run(&lane(isa, workers), &sizes, &sequences, &rows, &mut random);
            let batch = bits(&batch, rows.len());
            let alone = lane(isa, 1);
            for (r, (sequence, position)) in rows.iter().enumerate() {
                let one = run(&alone, &sizes, &sequences[*sequence..=*sequence], &[(0, *position)], &mut random);
                prop_assert_eq!(&bits(&one, 1)[0], &batch[r], "{} row {:?}", isa, (sequence, position));
            }
        }
    }
}

/// A copied block holds all that attention reads of it, in every type, and the first one stays as it was.
#[test]
fn a_copied_block_is_attended_to_as_the_first() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
        let sizes = Sizes {
            kv_heads: 2,
            group: 2,
            head_dim: 22,
            block_size: 16,
            window: None,
            first: 0,
            soft_cap: None,
            sinks: false,
            dtype,
        };
        let (random, lane) = (&mut Random::new(11), lane(Isa::detect(), 1));
        let sequence = Sequence::random(random, &sizes, 16);
        let shape = KvShape { layers: 1, blocks: 3, block_size: 16, kv_heads: 2, head_dim: 22 };
        let mut kv = KvCache::new(shape, dtype).expect("sizes are possible");
        let positions: Vec<u32> = (0..16).collect();
        let rows = Rows { positions: &positions, table_of: &[0; 16], tables: &[&[1]] };
        store_kv(&lane, sequence.k.view(16), sequence.v.view(16), &mut kv, 0, rows);
        kv.copy_block(1, 2);
        let attended = |block: BlockId| {
            let mut out = Tensor::zeros(16, sizes.kv_heads * sizes.group * sizes.head_dim);
            let rows = Rows { positions: &positions, table_of: &[0; 16], tables: &[&[block]] };
            attention(&lane, sequence.q.view(16), &kv, 0, rows, sizes.shape(), out.view_mut(16));
            bits(&out, 16)
        };
        assert_eq!(attended(2), attended(1), "{dtype}");
        assert_ne!(attended(0), attended(1), "{dtype}");
    }
}

#[test]
#[should_panic(expected = "heads over 3 kv heads")]
fn heads_that_do_not_divide_are_refused() {
    let kv =
        KvCache::new(KvShape { layers: 1, blocks: 1, block_size: 16, kv_heads: 3, head_dim: 4 }, Dtype::F32)
            .unwrap();
    let (q, mut out) = (Tensor::zeros(1, 16), Tensor::zeros(1, 16));
    let rows = Rows { positions: &[0], table_of: &[0], tables: &[&[0]] };
    let shape = AttentionShape { heads: 4, scale: 1.0, soft_cap: None, window: None, first: 0, sinks: None };
    attention(&lane(Isa::Portable, 1), q.view(1), &kv, 0, rows, shape, out.view_mut(1));
}
