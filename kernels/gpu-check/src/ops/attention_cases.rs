//! attention, plain and on tensor cores, split and merged, over the keys and values that the CPU has.

use super::case_bench::{Bench, in_fp8};
use super::reference::{Random, bf16, close, lane};
use faser_kernels::cuda::{AttentionArgs, AttentionPlan, Chunk, Element, KvElement, NOTHING, Ptr, Tile};
use faser_kernels::ops::{AttentionShape, attention, store_kv};
use faser_kernels::{Dtype, Isa, KvCache, KvShape, Rows, Tensor};
use std::ops::RangeInclusive;

/// Splits of rows that have their own: few, so that short sequences have longer ones too.
const OWN_SPLITS: u32 = 2;

#[derive(Clone, Debug)]
struct Case {
    element: Element,
    kv: KvElement,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    window: Option<usize>,
    /// Nobody sees a position before it.
    first: usize,
    soft_cap: Option<f32>,
    /// A score more for each head; or none.
    sinks: Vec<f32>,
    /// 0: each row's own.
    split: u32,
    /// Of each sequence: its length, and how many rows at its end are in the pass.
    sequences: Vec<(usize, usize)>,
}

/// What a case holds: the CPU's answer and everything that a launch needs.
struct World {
    expected: Tensor,
    q: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    positions: Vec<u32>,
    chunks: Vec<u32>,
    rows: Vec<u32>,
    tables: Vec<u32>,
    stride: usize,
}

impl Case {
    /// Without a cap or sinks, from the first position on.
    fn plain(
        element: Element,
        kv_heads: usize,
        group: usize,
        head_dim: usize,
        window: Option<usize>,
        split: u32,
        sequences: &[(usize, usize)],
    ) -> Case {
        let sequences = sequences.to_vec();
        let (first, soft_cap, sinks) = (0, None, Vec::new());
        let kv = KvElement::Element(element);
        Case { element, kv, kv_heads, group, head_dim, window, first, soft_cap, sinks, split, sequences }
    }

    fn world(&self) -> World {
        let Case { kv_heads, group, head_dim, .. } = *self;
        let (heads, width) = (kv_heads * group, kv_heads * head_dim);
        let mut random = Random::new((head_dim * group) as u64 + self.sequences.len() as u64);
        let stride = self.sequences.iter().map(|(len, _)| len.div_ceil(16)).max().expect("a sequence") + 1;
        let blocks = self.sequences.len() * stride;
        let pool = random.shuffled(blocks);
        let tables: Vec<&[u32]> = pool.chunks(stride).collect();
        // The CPU has f32: rounded numbers where the device has bf16, or FP8.
        let round = |x: f32| if self.element == Element::Bf16 { bf16(x) } else { x };
        let kept = |numbers: Vec<f32>| -> Vec<f32> {
            match self.kv {
                KvElement::Element(_) => numbers.into_iter().map(round).collect(),
                KvElement::Fp8 => numbers.chunks(head_dim).flat_map(in_eight_bits).collect(),
            }
        };
        let shape = KvShape { layers: 1, blocks, block_size: 16, kv_heads, head_dim };
        let mut kv = KvCache::new(shape, Dtype::F32).expect("memory");
        // What nobody wrote is not finite: it must not be looked at.
        let unwritten = vec![f32::NAN; blocks * kv_heads * 16 * head_dim];
        let (mut keys, mut values) = (unwritten.clone(), unwritten);
        let cpu = lane(Isa::Portable, 1);
        for (sequence, (len, _)) in self.sequences.iter().enumerate() {
            let [k, v] = [(); 2].map(|()| kept(random.numbers(len * width)));
            let positions: Vec<u32> = (0..*len as u32).collect();
            let table_of = vec![sequence as u32; *len];
            let rows = Rows { positions: &positions, table_of: &table_of, tables: &tables };
            let (tk, tv) = (Tensor::from_rows(width, &k), Tensor::from_rows(width, &v));
            store_kv(&cpu, tk.view(*len), tv.view(*len), &mut kv, 0, rows);
            for p in 0..*len {
                let block = tables[sequence][p / 16] as usize;
                for head in 0..kv_heads {
                    let to = ((block * kv_heads + head) * 16 + p % 16) * head_dim;
                    let from = p * width + head * head_dim;
                    keys[to..to + head_dim].copy_from_slice(&k[from..from + head_dim]);
                    values[to..to + head_dim].copy_from_slice(&v[from..from + head_dim]);
                }
            }
        }
        let (mut positions, mut table_of, mut chunks, mut rows) = (vec![], vec![], vec![], vec![]);
        for (sequence, (len, count)) in self.sequences.iter().enumerate() {
            chunks.extend([positions.len() as u32, *count as u32, NOTHING, 0]);
            rows.push(*count as u32);
            positions.extend((len - count..*len).map(|p| p as u32));
            table_of.extend(vec![sequence as u32; *count]);
        }
        let n = positions.len();
        let q: Vec<f32> = random.numbers(n * heads * head_dim).iter().map(|x| round(x * 4.0)).collect();
        let mut expected = Tensor::zeros(n, heads * head_dim);
        attention(
            &cpu,
            Tensor::from_rows(heads * head_dim, &q).view(n),
            &kv,
            0,
            Rows { positions: &positions, table_of: &table_of, tables: &tables },
            AttentionShape {
                heads,
                scale: self.scale(),
                soft_cap: self.soft_cap,
                window: self.window,
                first: self.first,
                sinks: (!self.sinks.is_empty()).then_some(&*self.sinks),
            },
            expected.view_mut(n),
        );
        World { expected, q, keys, values, positions, chunks, rows, tables: pool, stride }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// The counts of stages that kernels have for it and a block has room for.
    fn stages(&self, bench: &Bench<'_>) -> RangeInclusive<u32> {
        let dim = self.head_dim as u32;
        let most = AttentionArgs::stages(self.element, self.kv, dim, bench.0.most_shared());
        let most = most.expect("two stages fit");
        let both =
            dim == 128 && AttentionArgs::on_tensor_cores(self.element, dim) && self.kv != KvElement::Fp8;
        if both { 2..=most } else { most..=most }
    }

    /// Launches with the tile size of `most` queries; the rows of `out`, which have the same bits whatever the number of stages.
    fn run(&self, bench: &Bench<'_>, world: &World, order: i32, most: u32) -> Vec<f32> {
        let mut found = self.stages(bench).map(|stages| self.run_in(bench, world, order, most, stages));
        let first = found.next().expect("a count of stages");
        found.for_each(|other| assert_eq!(other, first, "{self:?}: the number of stages changes numbers"));
        first
    }

    fn run_in(&self, bench: &Bench<'_>, world: &World, order: i32, most: u32, stages: u32) -> Vec<f32> {
        let Case { element, kv, kv_heads, group, head_dim, split, .. } = *self;
        let (heads, n) = (kv_heads * group, world.positions.len());
        let queries = AttentionArgs::tile_queries(element, head_dim as u32, most, (1, 0));
        let longest = world.positions.iter().max().expect("a sequence") + 1;
        let plan = match split {
            0 => AttentionPlan { split, splits: OWN_SPLITS },
            split => AttentionPlan { split, splits: longest.div_ceil(split) },
        };
        let chunks =
            world.chunks.chunks(4).map(|chunk| &world.positions[chunk[0] as usize..][..chunk[1] as usize]);
        let mut tiles = Vec::new();
        Tile::cover(chunks, plan, group as u32, queries, &mut tiles);
        tiles.push(Tile::PADDING);
        let flat: Vec<u32> = tiles.iter().flat_map(|tile| [tile.chunk, tile.first_query]).collect();
        let splits = plan.splits;
        let [keys, values] = [&world.keys, &world.values].map(|kept| bench.kept(kv, head_dim, kept));
        let out = bench.elements(element, &vec![-5.5; n * heads * head_dim]);
        let places = n * heads * splits as usize;
        let (sums, stats) =
            (bench.floats(&vec![f32::NAN; places * head_dim]), bench.floats(&vec![f32::NAN; places * 2]));
        let tickets = bench.words(&vec![0; tiles.len() * kv_heads]);
        let (tables, tiles_memory) = (bench.words(&world.tables), bench.words(&flat));
        // Queries stand in wider rows, behind other columns.
        let wide: Vec<f32> =
            world.q.chunks(heads * head_dim).flat_map(|row| [row, &[f32::NAN; 8]].concat()).collect();
        let args = AttentionArgs {
            q: bench.lasting(&wide),
            keys: keys.ptr(),
            values: values.ptr(),
            tables: tables.ptr(),
            positions: bench.lasting(&world.positions),
            chunks: bench.lasting(&world.chunks),
            tiles: tiles_memory.ptr(),
            out: out.ptr(),
            sums: sums.ptr(),
            stats: stats.ptr(),
            tickets: tickets.ptr(),
            sinks: if self.sinks.is_empty() { Ptr::NULL } else { bench.lasting(&self.sinks) },
            q_stride: (heads * head_dim + 8) as u32,
            table_stride: world.stride as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            window: self.window.unwrap_or(0) as u32,
            first: self.first as u32,
            split,
            splits,
            scale: self.scale(),
            soft_cap: self.soft_cap.unwrap_or(0.0),
        };
        bench.run(&args.launch((element, kv), queries, stages, tiles.len() as u32), order);
        assert!(tickets.read().iter().all(|ticket| *ticket == 0), "{self:?}: tickets stay taken");
        let _ = (stats.read(), sums.read()); // nothing beside them was written
        out.read()
    }

    fn check(&self, bench: &Bench<'_>, order: i32) {
        let world = self.world();
        let most = world.rows.iter().max().expect("a chunk") * self.group as u32;
        let found = self.run(bench, &world, order, most);
        let cols = world.expected.cols();
        // bf16: the exponentials and the result are rounded to 8 bits; values are at most 1.
        let tolerance = if self.element == Element::F32 { 2e-6 } else { 8e-3 };
        for r in 0..world.positions.len() {
            for (i, expected) in world.expected.row(r).iter().enumerate() {
                let what = format!("{self:?} order {order} row {r} column {i}");
                close(found[r * cols + i], f64::from(*expected), 1.0, tolerance, &what);
            }
        }
    }
}

/// The numbers of a token's head in FP8.
fn in_eight_bits(head: &[f32]) -> Vec<f32> {
    let largest = head.iter().fold(0f32, |most, x| most.max(x.abs()));
    head.iter().map(|x| in_fp8(*x, largest)).collect()
}

// As kernels count it.
const _: () = assert!(size_of::<Chunk>() == 16);

pub(super) fn attention_is_the_cpus(bench: &Bench<'_>) {
    let case = Case::plain;
    use Element::{Bf16, F32};
    let cases = [
        case(F32, 2, 2, 20, None, 64, &[(1, 1), (70, 3), (33, 1)]),
        case(F32, 1, 3, 64, Some(40), 64, &[(150, 5), (17, 2)]),
        case(F32, 1, 1, 256, None, 128, &[(40, 40)]),
        case(Bf16, 1, 2, 48, None, 64, &[(90, 2)]),
        case(Bf16, 1, 2, 256, Some(30), 64, &[(70, 3)]),
        // 16, 32 and 64 queries of a tile, of each head.
        case(Bf16, 2, 4, 128, None, 128, &[(1, 1), (200, 3), (64, 2)]),
        case(Bf16, 1, 4, 128, None, 64, &[(190, 8), (65, 5)]),
        case(Bf16, 1, 8, 128, None, 256, &[(300, 9)]),
        case(Bf16, 2, 2, 64, Some(50), 64, &[(130, 4), (20, 1)]),
        case(Bf16, 1, 7, 64, None, 64, &[(100, 4)]),
        case(Bf16, 1, 2, 64, Some(70), 128, &[(260, 40)]),
        case(Bf16, 2, 1, 32, None, 64, &[(129, 1), (128, 2)]),
        case(Bf16, 1, 3, 32, None, 64, &[(150, 8)]),
        case(Bf16, 1, 1, 32, Some(1), 64, &[(100, 64), (3, 3)]),
    ];
    // Scores of these sizes lie on the bend of the cap.
    let capped = [0, 2, 3, 4, 6, 8].map(|at: usize| Case { soft_cap: Some(3.0), ..cases[at].clone() });
    // Above, among and below the scores.
    let sunk = |case: &Case| Case {
        sinks: (0..case.kv_heads * case.group).map(|head| 2.5 * head as f32 - 4.0).collect(),
        ..case.clone()
    };
    let sunk = cases.each_ref().map(sunk).into_iter().chain(capped.each_ref().map(sunk));
    let sunk: Vec<Case> = sunk.collect();
    // The first block of keys is not all seen, nor is the first split.
    let late =
        [1, 3, 6, 8, 12].map(|at: usize| Case { first: if at == 6 { 50 } else { 1 }, ..cases[at].clone() });
    // Rows on both sides of where splits become longer, in tiles that would have both.
    let own = [
        case(F32, 1, 2, 20, None, 0, &[(514, 5), (30, 1), (1026, 3)]),
        case(Bf16, 1, 2, 48, Some(300), 0, &[(514, 3)]),
        case(Bf16, 1, 4, 64, None, 0, &[(515, 6), (200, 2), (1025, 2)]),
        case(Bf16, 1, 3, 32, Some(270), 0, &[(516, 20), (1030, 12)]),
    ];
    let all: Vec<Case> = cases.into_iter().chain(capped).chain(sunk).chain(late).chain(own).collect();
    let fp8 = all.clone().into_iter().map(|case| Case { kv: KvElement::Fp8, ..case });
    for case in all.into_iter().chain(fp8) {
        for order in bench.orders() {
            case.check(bench, order);
        }
    }
}

pub(super) fn a_row_has_the_same_bits_alone_and_among_others(bench: &Bench<'_>) {
    let case = |element, head_dim, window, split, sequences: &[_]| {
        Case::plain(element, 1, 2, head_dim, window, split, sequences)
    };
    for together in [
        case(Element::F32, 20, None, 64, &[(140, 7), (30, 4)]),
        case(Element::Bf16, 64, None, 64, &[(140, 7), (30, 4)]),
        // Splits of 256 positions, then of 512, whoever is beside.
        case(Element::F32, 20, None, 0, &[(514, 7), (600, 1)]),
        case(Element::Bf16, 64, None, 0, &[(514, 7), (1030, 2)]),
        case(Element::Bf16, 32, Some(300), 0, &[(516, 7), (20, 1)]),
        case(Element::Bf16, 48, None, 0, &[(514, 7)]),
        Case { kv: KvElement::Fp8, ..case(Element::F32, 20, None, 0, &[(514, 7), (30, 1)]) },
        Case { kv: KvElement::Fp8, ..case(Element::Bf16, 64, None, 64, &[(140, 7), (30, 4)]) },
        Case { kv: KvElement::Fp8, ..case(Element::Bf16, 128, None, 0, &[(514, 7), (30, 1)]) },
    ] {
        let world = together.world();
        let all = together.run(bench, &world, 0, 14);
        let cols = world.expected.cols();
        for r in 0..7 {
            // The same sequence, with this row alone in the pass.
            let mut one = together.world();
            one.positions = vec![one.positions[r]];
            one.q = one.q[r * cols..(r + 1) * cols].to_vec();
            one.chunks = vec![0, 1, NOTHING, 0];
            one.rows = vec![1];
            // The number of splits is that of the shorter context: sums do not depend on it.
            assert_eq!(
                together.run(bench, &one, 0, 2),
                all[r * cols..(r + 1) * cols],
                "{together:?} row {r}"
            );
        }
    }
}
