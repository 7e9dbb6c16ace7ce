//! Time of a pass by roofline: bytes over bandwidth, operations over rate, and what launching costs.
//!
//! ```text
//!   pass = launch + layers x gap  +  products: max(weights / bandwidth, 2 x parameters x rows / rate)
//!                                 +  attention: max(KV read / bandwidth, operations / rate)
//!                                 +  all-reduces, two a layer, if sharded: see [`Links`](super::hardware::Links)
//! ```
//! The max of the products is softened (a p-norm with p = 4), since real kernels overlap the two imperfectly, and rows
//! count in tiles of 64 against the rate. The KV of a chunk is read once, however many rows the chunk has.
//!
//! Where links say so, a pass may go in two halves of its rows: while one half is summed over the ranks the other computes. Weights are
//! then read twice and each half launches for itself, so that is done only where it is faster.
//!
//! A partition gets its share of the SMs' rate, and of the bandwidth what `Hardware::bandwidth_share` says. When both
//! lanes run they share one memory: see [`contention`].

use std::time::Duration;

use super::hardware::Hardware;
use super::pair::{ModelShape, Pair};
use crate::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID, refine};

/// What a pass has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) rows: usize,
    /// Positions whose KV is read, once per chunk.
    pub(super) kv_tokens: usize,
    /// Sum of all rows' positions.
    pub(super) row_context: usize,
}

/// What a pass takes when the other lane is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) seconds: f64,
    /// Share of the device's memory bandwidth it draws in the mean.
    pub(super) bandwidth: f64,
}

/// What running at the same time costs both lanes beyond bandwidth: caches, power, clocks. Assumed.
const INTERFERENCE: f64 = 0.03;
/// Launches of a pruning checkpoint, in those of a layer. Assumed.
const CHECKPOINT_LAUNCHES: f64 = 2.0;
/// Seconds of a pass that takes no time: what clocks still tell from none at all, and the least that cost tables hold.
const FREE_S: f64 = 1e-9;
/// Rows of a tile of a matrix product.
const TILE_ROWS: usize = 64;
/// What of the rate of matrix products attention reaches.
const ATTENTION_RATE: f64 = 0.5;

/// What of the SMs the copies of an all-reduce take from the compute beside them. Assumed.
const ALL_REDUCE_SMS: f64 = 0.08;

/// Where the time of a pass of a model that is split goes, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassParts {
    /// Everything but all-reduces.
    pub compute_s: f64,
    /// All-reduces, if nothing goes on beside them.
    pub all_reduce_s: f64,
    /// The pass in two halves of its rows, the all-reduces of one under the compute of the other.
    pub halves_s: f64,
}

/// A replica's device: its GPUs, the pair on them, and its partitions.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    hardware: Hardware,
    pair: Pair,
    /// Share of the SMs of the draft and of the verify lane; the whole device for both first.
    shares: Vec<(f64, f64)>,
    /// What a draft step takes beyond its roofline, on any part of the device: nothing waits for memory meanwhile.
    draft_wait_s: f64,
    free_drafts: bool,
    /// The draft lane has a GPU of its own, and a memory.
    apart: bool,
}

impl Roofline {
    /// `draft_sms` are the SMs of the draft lane in each partition after the first, which is the whole device.
    pub fn new(hardware: Hardware, pair: Pair, draft_sms: &[usize]) -> Roofline {
        let split = |&sms: &usize| {
            let share = sms as f64 / hardware.sms as f64;
            (share, 1.0 - share)
        };
        let shares = [(1.0, 1.0)].into_iter().chain(draft_sms.iter().map(split)).collect();
        let mut roofline =
            Roofline { hardware, pair, shares, draft_wait_s: 0.0, free_drafts: false, apart: false };
        let alone = roofline.draft(0, Load { rows: 1, ..Load::default() });
        roofline.draft_wait_s = (pair.draft_step_s - alone.seconds).max(0.0);
        roofline
    }

    /// The same device, with one GPU more, on which the draft is alone: both lanes always have all that is theirs.
    #[must_use]
    pub fn with_draft_apart(self) -> Roofline {
        Roofline { shares: vec![(1.0, 1.0); 2], apart: true, ..self }
    }

    /// The same device, on which draft passes take no time and nothing of the memory's bandwidth.
    #[must_use]
    pub fn with_free_drafts(self) -> Roofline {
        Roofline { free_drafts: true, ..self }
    }

    pub(super) fn draft(&self, partition: usize, load: Load) -> Work {
        if self.free_drafts && load.rows > 0 {
            return Work { seconds: FREE_S, bandwidth: 0.0 };
        }
        let work = self.pass(&self.pair.draft, self.shares[partition].0, load);
        if load.rows == 0 {
            return work;
        }
        let seconds = work.seconds + self.draft_wait_s;
        let bandwidth = if self.apart { 0.0 } else { work.bandwidth * work.seconds / seconds };
        Work { seconds, bandwidth }
    }

    pub(super) fn verify(&self, partition: usize, load: Load) -> Work {
        self.pass(&self.pair.target, self.shares[partition].1, load)
    }

    pub(super) fn target_layers(&self) -> usize {
        self.pair.target.layers
    }

    /// Seconds a pruning checkpoint costs beside the rows it takes out: scoring, compaction, and a graph that ends there.
    pub(super) fn checkpoint_s(&self) -> f64 {
        CHECKPOINT_LAUNCHES * self.hardware.layer_s
    }

    /// Where the time of a verify pass goes, on the whole device: `chunks` sequences of so many rows each behind `context` tokens.
    pub fn verify_parts(&self, chunks: usize, rows: usize, context: usize) -> PassParts {
        let load = Load {
            rows: chunks * rows,
            kv_tokens: chunks * (context + rows),
            row_context: chunks * rows * (context + rows / 2),
        };
        let model = &self.pair.target;
        let compute = self.compute(model, 1.0, load, 1.0);
        PassParts {
            compute_s: compute.seconds,
            all_reduce_s: self.all_reduces_s(model, load.rows),
            halves_s: self.in_halves(model, 1.0, load).seconds,
        }
    }

    fn pass(&self, model: &ModelShape, share: f64, load: Load) -> Work {
        if load.rows == 0 {
            return Work::default();
        }
        let compute = self.compute(model, share, load, 1.0);
        let seconds = compute.seconds + self.all_reduces_s(model, load.rows);
        let serial = Work { seconds, bandwidth: compute.bandwidth * compute.seconds / seconds };
        if model.tp == 1 || load.rows == 1 || !self.hardware.links.overlapped {
            return serial;
        }
        let halves = self.in_halves(model, share, load);
        if halves.seconds < serial.seconds { halves } else { serial }
    }

    /// Two a layer, one after the other.
    fn all_reduces_s(&self, model: &ModelShape, rows: usize) -> f64 {
        let bytes = (2 * rows * model.hidden) as f64;
        2.0 * model.layers as f64 * self.hardware.links.all_reduce_s(bytes, model.tp)
    }

    /// Everything but all-reduces, with what is left of the SMs.
    fn compute(&self, model: &ModelShape, share: f64, load: Load, left: f64) -> Work {
        let (hardware, tp) = (&self.hardware, model.tp as f64);
        let bandwidth = hardware.bandwidth * Hardware::bandwidth_share(share * left) * tp;
        let rate = hardware.flops * share * left * tp;
        // Of bf16; FP8 has twice the rate.
        let product_rate = rate * 2.0 / model.weight_bytes;
        let tiled_rows =
            if load.rows < TILE_ROWS { load.rows } else { load.rows.next_multiple_of(TILE_ROWS) };
        let weight_bytes = model.weight_bytes * model.read_parameters;
        let operations = 2.0 * model.read_parameters * tiled_rows as f64;
        let products = softened_max(weight_bytes / bandwidth, operations / product_rate);
        let kv_bytes = model.kv_bytes_per_token() * load.kv_tokens as f64;
        let operations = (4 * model.layers * model.heads * model.head_dim) as f64 * load.row_context as f64;
        let attention = (kv_bytes / bandwidth).max(operations / (ATTENTION_RATE * rate));
        let launches = hardware.step_s + hardware.layer_s * model.layers as f64;
        let seconds = launches + products + attention;
        Work { seconds, bandwidth: (weight_bytes + kv_bytes) / (seconds * hardware.bandwidth * tp) }
    }

    /// The halves take turns: of each the compute of a branch, and then its all-reduce while the other computes.
    fn in_halves(&self, model: &ModelShape, share: f64, load: Load) -> Work {
        let first = load.rows.div_ceil(2);
        let half = Load {
            rows: first,
            kv_tokens: load.kv_tokens.div_ceil(2),
            row_context: load.row_context.div_ceil(2),
        };
        let compute = self.compute(model, share, half, 1.0 - ALL_REDUCE_SMS);
        let branches = 2.0 * model.layers as f64;
        let turn_s = (compute.seconds - self.hardware.step_s) / branches;
        let all_reduce_s = self.all_reduces_s(model, first) / branches;
        // Each turn is as long as the longer of both; nothing is left to go under the last all-reduce.
        let seconds = self.hardware.step_s + 2.0 * branches * turn_s.max(all_reduce_s) + all_reduce_s;
        Work { seconds, bandwidth: 2.0 * compute.bandwidth * compute.seconds / seconds }
    }

    /// What profiling at start-up would find: every partition's tables, both lanes of a split at work.
    pub fn tables(&self) -> Vec<PartitionCosts> {
        (0..self.shares.len()).map(|partition| self.table(partition)).collect()
    }

    fn table(&self, partition: usize) -> PartitionCosts {
        /// Rows of the chunk that tells what attention costs.
        const CHUNK_ROWS: usize = 8;
        /// The load of the other lane while one is profiled.
        const OTHER: Load = Load { rows: 16, kv_tokens: 16 * 512, row_context: 16 * 512 };
        let other = |work: Work| if partition == 0 { Work::default() } else { work };
        let other_draft = other(self.draft(partition, OTHER));
        let other_verify = other(self.verify(partition, OTHER));
        let profiled = |pass: &dyn Fn(Load) -> Work, other: Work| {
            let time = |load| {
                let work = pass(load);
                work.seconds * contention(work.bandwidth, other.bandwidth)
            };
            let rows = |rows| Load { rows, ..Load::default() };
            let context = 1024;
            let longer = |n| {
                let with = Load { rows: n, kv_tokens: context, row_context: n * context };
                Duration::from_secs_f64((time(with) - time(rows(n))).max(0.0))
            };
            let attention = AttentionCost::fitted(context, CHUNK_ROWS, longer(1), longer(CHUNK_ROWS));
            let time = |n| Duration::from_secs_f64(time(rows(n)));
            let mut points = ROW_GRID.map(|n| (n, time(n))).to_vec();
            refine(&mut points, |n| Some(time(n)));
            PassCost::new(&points, attention)
        };
        PartitionCosts {
            draft: profiled(&|load| self.draft(partition, load), other_verify),
            verify: profiled(&|load| self.verify(partition, load), other_draft),
        }
    }
}

/// How much slower a lane runs while the other does too: what both want of the memory beyond all of it, and a little.
pub(super) fn contention(mine: f64, other: f64) -> f64 {
    if other == 0.0 { 1.0 } else { (mine + other).max(1.0) * (1.0 + INTERFERENCE) }
}

fn softened_max(a: f64, b: f64) -> f64 {
    (a.powi(4) + b.powi(4)).powf(0.25)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Reach;
    use crate::sim::Links;
    use faser_topology::{Link, LinkKind};

    fn rows(rows: usize) -> Load {
        Load { rows, ..Load::default() }
    }

    #[test]
    fn a_draft_apart_takes_nothing_from_the_target() {
        let (hardware, pair) = (Hardware::H100, Pair::QWEN3);
        let beside = Roofline::new(hardware, pair, &[16]);
        let apart = beside.clone().with_draft_apart();
        let rows = |rows| Load { rows, ..Load::default() };
        let [beside, apart] = [beside, apart].map(|roofline| roofline.tables());
        assert_eq!(apart.len(), 2);
        let verify_s = |tables: &[PartitionCosts], place: usize| tables[place].verify.seconds(8, Reach::NONE);
        assert!((verify_s(&apart, 1) - verify_s(&apart, 0)).abs() < 1e-9);
        assert!(verify_s(&beside, 1) > 1.02 * verify_s(&apart, 1), "contention");
        let draft = Roofline::new(hardware, pair, &[16]).with_draft_apart().draft(1, rows(8));
        assert_eq!(draft.bandwidth, 0.0);
        assert_eq!(draft.seconds, Roofline::new(hardware, pair, &[]).draft(0, rows(8)).seconds);
    }

    #[test]
    fn a_few_rows_are_free_and_many_are_not() {
        let device = Roofline::new(Hardware::H100, Pair::QWEN3, &[]);
        let time = |n| device.verify(0, rows(n)).seconds;
        // 64 GB of weights at 2.85 TB/s, and launches.
        assert!((0.022..0.026).contains(&time(1)), "{}", time(1));
        assert!(time(64) < 1.01 * time(1));
        assert!((1.9..2.1).contains(&(time(2048) / time(1024))));
        // A draft step is a tenth of that or less by its roofline, its launches the larger part; seen were twice as much.
        assert!((device.draft(0, rows(1)).seconds - 2.4e-3).abs() < 1e-9);
        let bare = Roofline::new(Hardware::H100, Pair { draft_step_s: 0.0, ..Pair::QWEN3 }, &[]);
        let step = |device: &Roofline, n| device.draft(0, rows(n)).seconds;
        assert!((0.0010..0.0016).contains(&step(&bare, 1)));
        // More rows cost what they cost there.
        assert!((step(&device, 512) - step(&device, 1) - step(&bare, 512) + step(&bare, 1)).abs() < 1e-9);
    }

    #[test]
    fn free_drafts_cost_nothing_and_passes_what_they_cost() {
        let device = Roofline::new(Hardware::H100, Pair::QWEN3, &[16]);
        let free = device.clone().with_free_drafts();
        for partition in [0, 1] {
            assert!(free.draft(partition, rows(2048)).seconds < 1e-6);
            let table = &free.tables()[partition].draft;
            assert!([1, 64, 2048].iter().all(|&n| table.seconds(n, Reach::single(n * 1024)) < 1e-6));
            assert_eq!(free.verify(partition, rows(64)), device.verify(partition, rows(64)));
        }
        assert_eq!(free.tables()[0].verify, device.tables()[0].verify);
        // Who drafts for nothing takes nothing away.
        let [free, paid] = [free, device].map(|device| device.tables()[1].verify.seconds(64, Reach::NONE));
        assert!(free < 0.95 * paid, "{free} and {paid}");
    }

    #[test]
    fn fp8_halves_a_pass_and_leaves_room_for_kv() {
        let [bf16, fp8] = [Pair::QWEN3, Pair::QWEN3.in_fp8()];
        let time = |pair, n| Roofline::new(Hardware::H100, pair, &[]).verify(0, rows(n)).seconds;
        for n in [1, 2048] {
            assert!((0.45..0.6).contains(&(time(fp8, n) / time(bf16, n))), "{n}");
        }
        let tokens = |pair: Pair| pair.kv_tokens(Hardware::H100.memory_bytes);
        assert!(tokens(bf16) < 16_000 && (95_000..110_000).contains(&tokens(fp8)), "{}", tokens(fp8));
    }

    #[test]
    fn sharding_halves_what_is_read_and_pays_for_talking() {
        let time = |pair| Roofline::new(Hardware::H100, pair, &[]).verify(0, rows(1)).seconds;
        let alone = Pair { target: ModelShape { tp: 1, ..Pair::LLAMA3.target }, ..Pair::LLAMA3 };
        assert!(time(Pair::LLAMA3) > 0.5 * time(alone) && time(Pair::LLAMA3) < 0.6 * time(alone));
    }

    fn split_over(tp: usize, kind: LinkKind, overlapped: bool) -> Roofline {
        let target = ModelShape { tp, ..Pair::LLAMA3.target };
        let links = Links { overlapped, ..Links::over(Link::usual(kind)) };
        let pair = Pair { gpus: tp, target, ..Pair::LLAMA3 };
        Roofline::new(Hardware { links, ..Hardware::H100 }, pair, &[])
    }

    #[test]
    fn halves_pay_for_many_rows_on_poor_links_and_never_cost() {
        let time = |kind, rows, overlapped| {
            let load = Load { rows, kv_tokens: rows, row_context: rows };
            split_over(4, kind, overlapped).verify(0, load).seconds
        };
        for kind in LinkKind::ALL {
            for rows in [1, 2, 16, 64, 300, 1024, 2048] {
                assert!(time(kind, rows, true) <= time(kind, rows, false), "{kind} {rows}");
            }
            // A few rows read the weights twice for nothing.
            assert_eq!(time(kind, 8, true), time(kind, 8, false), "{kind}");
        }
        // What is hidden is at most the shorter of compute and all-reduces.
        let parts = split_over(4, LinkKind::Pcie, true).verify_parts(2, 1024, 0);
        assert!(parts.halves_s < 0.85 * (parts.compute_s + parts.all_reduce_s), "{parts:?}");
        assert!(parts.halves_s > parts.all_reduce_s && parts.halves_s > parts.compute_s, "{parts:?}");
    }

    #[test]
    fn nothing_is_summed_by_one_rank_and_more_by_poorer_links() {
        let parts = |tp, kind| split_over(tp, kind, false).verify_parts(16, 4, 512);
        assert_eq!(parts(1, LinkKind::PcieNuma).all_reduce_s, 0.0);
        let [fast, slow] = [LinkKind::Nvlink, LinkKind::Pcie].map(|kind| parts(4, kind));
        assert!(slow.all_reduce_s > 2.0 * fast.all_reduce_s && slow.compute_s == fast.compute_s);
    }

    #[test]
    fn a_split_slows_drafts_more_than_it_slows_memory_bound_verification() {
        let device = Roofline::new(Hardware::H100, Pair::QWEN3, &[16]);
        let [whole, split] =
            [0, 1].map(|p| (device.draft(p, rows(8)).seconds, device.verify(p, rows(64)).seconds));
        assert!(split.0 > 1.2 * whole.0 && split.1 < 1.02 * whole.1);
        let tables = device.tables();
        // Profiled together, each pays for the other.
        assert!(tables[1].verify.seconds(64, Reach::NONE) > 1.1 * tables[0].verify.seconds(64, Reach::NONE));
    }
}
