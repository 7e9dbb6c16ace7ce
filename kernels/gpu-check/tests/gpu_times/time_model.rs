//! Time on a GPU, on paper: what a stream is asked for, one after the other, each by its bytes, its operations and what it costs to begin.
//!
//! ```text
//!   product   = ramp + max(read / (STREAMING x bandwidth), operations / rate) + written / (STREAMING x bandwidth)
//!   attention = ramp + max(bytes / (STREAMING x bandwidth), operations / rate, stages)
//!   others    = ramp + bytes / (STREAMING x bandwidth)
//!   a tail    = ramp, as of a kernel of its own: what the last blocks of a kernel do behind it
//!   begins    = max(the host has asked for it, the one before has ended + GAP)
//! ```
//!
//! Nothing here was measured with this code: constants are data sheets, figures that others have published, or assumptions, and say which.
//! They were written down before the kernels that they are to judge, and stay as they are: what an H200 made of them is in
//! docs/results/2026-11-27-first-gpu.md. `faser gpu-check --only models` times the same passes.

use faser_gpu_check::Pass;

use crate::recorded::{Step, Work};

/// A GPU by its data sheet.
pub(crate) struct Gpu {
    pub(crate) name: &'static str,
    pub(crate) bytes_per_s: f64,
    /// Dense bf16 products with sums in f32.
    pub(crate) flops: f64,
}

pub(crate) const GPUS: [Gpu; 4] = [
    Gpu { name: "H100", bytes_per_s: 3.35e12, flops: 989e12 },
    Gpu { name: "H200", bytes_per_s: 4.8e12, flops: 989e12 },
    Gpu { name: "L40S", bytes_per_s: 0.864e12, flops: 362e12 },
    Gpu { name: "RTX 4090", bytes_per_s: 1.008e12, flops: 165e12 },
];

/// Microseconds from the end of a kernel to the beginning of the next of its stream or graph: Hazy Research's figure of an H100.
const GAP: f64 = 1.3;
/// From the beginning of a product until its loads are under way everywhere, and back: assumed.
const RAMP_OF_PRODUCT: f64 = 2.5;
/// Likewise of all others, most of which go through their rows twice, or wait for a word before they load: assumed.
const RAMP: f64 = 3.2;
/// Share of the bandwidth that a kernel gets which reads one thing after the other: assumed.
const STREAMING: f64 = 0.85;
/// Share of the tensor cores' rate that products of many rows reach: 620 TFLOP/s of an H100, of cublasLt's published figures.
pub(crate) const PRODUCTS: f64 = 620.0 / 989.0;
/// Share of it that attention reaches by mma.sync: some 300 TFLOP/s of an H100, by FlashAttention-2's figures.
const ATTENTION: f64 = 300.0 / 989.0;
/// A block of attention goes through its positions in stages of 64, 32 KiB of heads of 128; an SM draws some 65 bytes in a nanosecond: assumed.
const STAGE: f64 = 0.5;
/// Between two passes, from the end of one until the first work of the next: lanes wake, plans go back and forth, arrays are written. Assumed.
const HOST_PASS: f64 = 75.0;
/// What the host takes to ask for one kernel, or for a graph: assumed.
const HOST_LAUNCH: f64 = 2.7;
const HOST_GRAPH: f64 = 6.0;
/// For a call of NCCL without blocking, which has a thread of its own: reports say 30 to 50.
const HOST_NCCL: f64 = 40.0;
/// For a sum over GPUs by NCCL until it begins to move: assumed. What it moves goes by NVLink, in bytes per second and direction.
const NCCL: f64 = 12.0;
const LINK: f64 = 360e9;
/// A sum of few rows over the other GPUs' memory, in one kernel: settled before there was one (docs/results/2026-11-26-gpu-timing-model.md). What a rank writes to
/// the others goes by the same links.
const PEERS: f64 = 5.0;
/// Copies from and to the host, in bytes per second: what PCIe 4 or 5 gives one copy. Assumed.
const HOST_COPY: f64 = 25e9;

/// How long a pass takes, in microseconds. A draft step has no part of the host's: the next is asked for while it runs.
pub(crate) fn microseconds(gpu: &Gpu, pass: Pass, steps: &[Step]) -> f64 {
    let begin = if pass == Pass::DraftStep { 0.0 } else { HOST_PASS };
    let (mut host, mut end) = (if begin > 0.0 { begin } else { f64::NEG_INFINITY }, begin);
    // A graph's launches are asked for with it.
    let mut of_graph = 0usize;
    for step in steps {
        if let Work::Graph { nodes } = step.work {
            host += HOST_GRAPH;
            of_graph = nodes;
            continue;
        }
        if of_graph > 0 {
            of_graph -= 1;
        } else {
            host += if matches!(step.work, Work::Collective { .. }) { HOST_NCCL } else { HOST_LAUNCH };
        }
        end = f64::max(host, end + GAP) + takes(gpu, step);
    }
    end
}

/// Microseconds of one thing alone.
pub(crate) fn takes(gpu: &Gpu, step: &Step) -> f64 {
    let of_bytes = |bytes: f64| bytes / (STREAMING * gpu.bytes_per_s) * 1e6;
    let of_operations = |operations: f64, share: f64| operations / (share * gpu.flops) * 1e6;
    match step.work {
        Work::Moves { read, written } => RAMP + of_bytes(read + written),
        Work::Product { read, written, operations, share, tails } => {
            let busy = f64::max(of_bytes(read), of_operations(operations, share));
            // A tile is written when all of it is summed: no other work of its SM is assumed to hide that.
            RAMP_OF_PRODUCT + busy + of_bytes(written) + tails * RAMP
        }
        Work::Attention { read, written, operations, stages, tails } => {
            let busy = f64::max(of_bytes(read + written), of_operations(operations, ATTENTION));
            RAMP + f64::max(busy, stages * STAGE) + tails * RAMP
        }
        Work::HostCopy { bytes } => RAMP + bytes / HOST_COPY * 1e6,
        Work::Collective { bytes, ranks, sums } => {
            let ways = if sums { 2.0 } else { 1.0 };
            NCCL + ways * (ranks - 1.0) / ranks * bytes / LINK * 1e6
        }
        Work::PeerSum { bytes, ranks } => PEERS + (ranks - 1.0) * bytes / LINK * 1e6,
        Work::Graph { .. } => 0.0,
    }
}
