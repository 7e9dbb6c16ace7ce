//! A line of the fake driver's record as work: what it reads and writes of the GPU's memory, and its operations. A kernel's arguments say its widths; how
//! many rows there are lies on the device, and comes from the load.

use std::mem::offset_of;

use faser_gpu_check::Load;
use faser_kernels::Dtype;
use faser_kernels::cuda::{
    ActivateArgs, AttentionArgs, CompactRowsArgs, ConfidenceArgs, DequantiseArgs, DrawArgs, EmbedArgs,
    ExpertsArgs, GatherRowsArgs, LogitStatsArgs, MatmulActivateArgs, MatmulArgs, MatmulHeadsArgs,
    MatmulNormArgs, PickArgs, QkvArgs, RmsNormArgs, RouterArgs, SumExpertsArgs, SumRanksArgs,
};
use faser_models::ModelConfig;

use crate::time_model::PRODUCTS;

/// Share of the tensor cores' rate that products of 64 rows at a time reach: counted, of an SM of an H100. Its shared memory gives 128 bytes in a cycle: 36,864 of rows
/// for 128 outputs and 32 inputs, beside 8,192 of weights by the same way, where tensor cores take 128 cycles.
const OF_64_ROWS: f64 = 128.0 / ((36_864.0 + 8_192.0) / 128.0);
/// Positions that attention takes at once.
const STAGE_POSITIONS: f64 = 64.0;
const F32: f64 = 4.0;
/// Of weights, keys, values, and what products take.
const HELD: f64 = 2.0;

/// What a stream was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) what: String,
    pub(crate) work: Work,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Bytes, and little to compute.
    Moves {
        read: f64,
        written: f64,
    },
    /// `tails`: what its last blocks do behind it.
    Product {
        read: f64,
        written: f64,
        operations: f64,
        /// Of the tensor cores' rate.
        share: f64,
        tails: f64,
    },
    /// Its blocks go through so many stages.
    Attention {
        read: f64,
        written: f64,
        operations: f64,
        stages: f64,
        tails: f64,
    },
    HostCopy {
        bytes: f64,
    },
    Collective {
        bytes: f64,
        ranks: f64,
        sums: bool,
    },
    /// Over the memory of the group's other GPUs.
    PeerSum {
        bytes: f64,
        ranks: f64,
    },
    /// So many of the following are asked for at once.
    Graph {
        nodes: usize,
    },
}

/// The rows of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) load: Load,
    /// Of each sequence.
    pub(crate) rows: usize,
    /// Of each sequence: those that get a token.
    pub(crate) samples: usize,
    /// Experts of a layer, and how many of them a row goes to; 0 without.
    pub(crate) experts: [f64; 2],
}

/// Experts of a layer that some of so many rows go to, if each goes to any `active` of `count` alike and whatever the others do: so many on average.
pub(crate) fn experts_hit(rows: f64, [count, active]: [f64; 2]) -> f64 {
    if count == 0.0 { 0.0 } else { count * (1.0 - (1.0 - active / count).powf(rows)) }
}

/// Bytes of the experts of a model that no row goes to.
pub(crate) fn idle_bytes(config: &ModelConfig, dtype: Dtype, rows: f64) -> f64 {
    let form = match dtype {
        Dtype::Int4 => 1.0,
        Dtype::Fp8 => 4.0,
        _ => 0.0,
    };
    let layers = config.layers.iter().filter_map(|layer| layer.mlp.kind.experts());
    let idle = layers.map(|spec| {
        let count = spec.count as f64;
        let [hidden, width] = [config.hidden as f64, spec.width as f64];
        let each = weight_bytes(hidden, 2.0 * width, form) + weight_bytes(width, hidden, form);
        (count - experts_hit(rows, [count, spec.active as f64])) * each
    });
    idle.sum()
}

impl Rows {
    fn all(&self) -> f64 {
        (self.load.sequences * self.rows) as f64
    }

    fn sampled(&self) -> f64 {
        (self.load.sequences * self.samples) as f64
    }

    /// Positions that all rows see together.
    fn seen(&self) -> f64 {
        let (rows, context) = (self.rows as f64, self.load.context as f64);
        self.load.sequences as f64 * (rows * context - rows * (rows - 1.0) / 2.0)
    }
}

impl Step {
    /// A line, which begins with the number of its GPU.
    pub(crate) fn read(line: &str, rows: &Rows) -> Step {
        let mut words = line.split(' ').skip(1);
        let kind = words.next().expect("a record has a kind");
        let words: Vec<&str> = words.collect();
        let number = |at: usize| words[at].parse::<f64>().expect("a number of a record");
        let what = if kind == "kernel" { words[0] } else { kind }.to_owned();
        let work = match kind {
            "kernel" => of_kernel(words[0], number(2), &Args::of(words[5]), rows),
            "product" => {
                let [rows, inputs, outputs, element] = [0, 1, 2, 3].map(number);
                let out = F32 * rows * outputs;
                Work::Product {
                    read: element * (inputs * outputs + rows * inputs) + number(4) * out,
                    written: out,
                    operations: 2.0 * rows * inputs * outputs,
                    share: PRODUCTS,
                    tails: 0.0,
                }
            }
            "send" | "fetch" => Work::HostCopy { bytes: number(0) },
            "copy" => Work::Moves { read: number(0), written: number(0) },
            "zeros" => Work::Moves { read: 0.0, written: number(0) },
            "all-reduce" | "all-gather" => {
                Work::Collective { bytes: number(0), ranks: number(1), sums: kind == "all-reduce" }
            }
            "graph" => Work::Graph { nodes: number(0) as usize },
            kind => panic!("a record of a {kind}"),
        };
        Step { what, work }
    }

    pub(crate) fn is_launch(&self) -> bool {
        let own = |work| {
            matches!(
                work,
                Work::Moves { .. } | Work::Product { .. } | Work::Attention { .. } | Work::PeerSum { .. }
            )
        };
        own(self.work)
    }

    /// Of the GPU's memory.
    pub(crate) fn read_bytes(&self) -> f64 {
        match self.work {
            Work::Moves { read, .. } | Work::Product { read, .. } | Work::Attention { read, .. } => read,
            Work::HostCopy { .. } | Work::Collective { .. } | Work::PeerSum { .. } | Work::Graph { .. } => {
                0.0
            }
        }
    }

    pub(crate) fn operations(&self) -> f64 {
        match self.work {
            Work::Product { operations, .. } | Work::Attention { operations, .. } => operations,
            _ => 0.0,
        }
    }
}

/// A kernel's arguments.
struct Args(Vec<u8>);

impl Args {
    fn of(hex: &str) -> Args {
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
        Args(bytes.collect::<Result<_, _>>().expect("bytes of a record"))
    }

    fn at(&self, offset: usize) -> f64 {
        f64::from(u32::from_le_bytes(self.0[offset..offset + 4].try_into().expect("four bytes")))
    }
}

// The product's arguments stand first.
const _: () = assert!(
    offset_of!(MatmulActivateArgs, product) == 0
        && offset_of!(MatmulNormArgs, product) == 0
        && offset_of!(MatmulHeadsArgs, product) == 0
);

/// Bytes of a matrix in the given form. Records are 8 outputs and 128 inputs: 576 bytes of symmetric 4 bits, 64 more in their other forms; 1,056 of FP8, 1,088 of int8.
fn weight_bytes(inputs: f64, outputs: f64, form: f64) -> f64 {
    let record = match form {
        0.0 => return HELD * inputs * outputs,
        1.0 => 576.0,
        4.0 => 1056.0,
        5.0 => 1088.0,
        _ => 640.0,
    };
    (outputs / 8.0).ceil() * (inputs / 128.0).ceil() * record
}

/// What a kernel in bf16 does, of so many blocks in the grid's second direction.
///
/// # Panics
/// For a kernel that it does not know: whoever adds one says here what it reads.
fn of_kernel(kernel: &str, splits: f64, args: &Args, rows: &Rows) -> Work {
    let (all, sampled) = (rows.all(), rows.sampled());
    let moves = |each: f64, of_read: f64, of_written: f64| Work::Moves {
        read: each * of_read,
        written: each * of_written,
    };
    match kernel {
        "sum_ranks" => {
            let [len, ranks] =
                [offset_of!(SumRanksArgs, len), offset_of!(SumRanksArgs, ranks)].map(|at| args.at(at));
            Work::PeerSum { bytes: F32 * len, ranks }
        }
        "embed_bf16" => moves(
            all,
            HELD * args.at(offset_of!(EmbedArgs, cols)),
            F32 * args.at(offset_of!(EmbedArgs, cols)),
        ),
        "rms_norm_bf16" => {
            let cols = args.at(offset_of!(RmsNormArgs, cols));
            moves(all, F32 * cols, HELD * cols)
        }
        _ if kernel.starts_with("matmul_") => {
            let (most, what) = if let Some(what) = kernel.strip_prefix("matmul_8_") {
                (8.0, what)
            } else if let Some(what) = kernel.strip_prefix("matmul_64_") {
                (f64::INFINITY, what.trim_end_matches("_parts"))
            } else {
                (16.0, &kernel[10..])
            };
            let what = match what {
                "int4" | "fp8" | "int8" => "bf16",
                what => {
                    what.trim_start_matches("int4_").trim_start_matches("fp8_").trim_start_matches("int8_")
                }
            };
            // Of a pass with more rows, it has those that get a token. The product's arguments stand first.
            let all = all.min(most);
            let [inputs, outputs, add] = [
                offset_of!(MatmulArgs, inputs),
                offset_of!(MatmulArgs, outputs),
                offset_of!(MatmulArgs, add),
            ]
            .map(|at| args.at(at));
            let weights = weight_bytes(inputs, outputs, args.at(offset_of!(MatmulArgs, form)));
            let out = all * outputs;
            let (written, tails) = match what {
                "bf16" => (F32 * out, 0.0),
                // Gate and up are one number, and rounded.
                "activate" => (HELD * out / 2.0, 0.0),
                "norm" => ((F32 + HELD) * out, 1.0),
                "heads" => (F32 * out, 1.0),
                what => panic!("a product with {what} is not known here: what does it write?"),
            };
            // Blocks that split the inputs leave their sums for the last.
            let parts = if splits > 1.0 { splits * F32 * out } else { 0.0 };
            Work::Product {
                read: weights + HELD * all * inputs + add * F32 * out + parts,
                written: written + parts,
                operations: 2.0 * all * inputs * outputs,
                share: if kernel.starts_with("matmul_64_") { OF_64_ROWS } else { PRODUCTS },
                tails,
            }
        }
        "dequantise_int4" | "dequantise_fp8" | "dequantise_int8" => {
            let [inputs, outputs, form] = [
                offset_of!(DequantiseArgs, inputs),
                offset_of!(DequantiseArgs, outputs),
                offset_of!(DequantiseArgs, form),
            ]
            .map(|at| args.at(at));
            Work::Moves { read: weight_bytes(inputs, outputs, form), written: HELD * inputs * outputs }
        }
        "router" => {
            let [hidden, outputs] =
                [offset_of!(RouterArgs, hidden), offset_of!(RouterArgs, outputs)].map(|at| args.at(at));
            Work::Moves { read: F32 * hidden * (outputs + 1.0 + all), written: F32 * outputs * all }
        }
        // Its last block groups what all have chosen.
        "route" => {
            let [count, active] = rows.experts;
            let words = all * active * F32;
            Work::Product {
                read: F32 * all * count,
                written: 4.0 * words,
                operations: 0.0,
                share: PRODUCTS,
                tails: 1.0,
            }
        }
        "sum_experts_bf16" => {
            let [cols, active, add] = [
                offset_of!(SumExpertsArgs, cols),
                offset_of!(SumExpertsArgs, active),
                offset_of!(SumExpertsArgs, add),
            ]
            .map(|at| args.at(at));
            moves(all, F32 * cols * (active + add), (F32 + HELD) * cols)
        }
        _ if kernel.starts_with("experts_") => {
            let [inputs, outputs] =
                [offset_of!(ExpertsArgs, inputs), offset_of!(ExpertsArgs, outputs)].map(|at| args.at(at));
            let pairs = all * rows.experts[1];
            let activated = kernel.starts_with("experts_activate_");
            let weights = weight_bytes(inputs, outputs, args.at(offset_of!(ExpertsArgs, form)));
            Work::Product {
                read: weights * experts_hit(all, rows.experts) + HELD * inputs * pairs,
                written: pairs * if activated { HELD * outputs / 2.0 } else { F32 * outputs },
                operations: 2.0 * pairs * inputs * outputs,
                share: PRODUCTS,
                tails: 0.0,
            }
        }
        "qkv_bf16" => {
            let dim = args.at(offset_of!(QkvArgs, head_dim));
            let heads = args.at(offset_of!(QkvArgs, heads));
            let kv_heads = args.at(offset_of!(QkvArgs, kv_heads));
            let held = if args.at(offset_of!(QkvArgs, fp8)) > 0.0 { 1.0 + F32 / dim } else { HELD };
            moves(all, F32 * (heads + 2.0 * kv_heads) * dim, (F32 * heads + held * 2.0 * kv_heads) * dim)
        }
        _ if kernel.starts_with("attention_") => {
            let [dim, heads, kv_heads, split, splits] = [
                offset_of!(AttentionArgs, head_dim),
                offset_of!(AttentionArgs, heads),
                offset_of!(AttentionArgs, kv_heads),
                offset_of!(AttentionArgs, split),
                offset_of!(AttentionArgs, splits),
            ]
            .map(|at| args.at(at));
            let context = rows.load.context as f64;
            let held = if kernel.ends_with("_fp8") { 1.0 + F32 / dim } else { HELD };
            let kept = rows.load.sequences as f64 * context * kv_heads * dim * 2.0 * held;
            // Splits of rows that have their own are as long as the context makes them.
            let own = f64::max(256.0, context / splits);
            let (split, splits) = if split == 0.0 { (own, (context / own).ceil()) } else { (split, splits) };
            let found = if splits > 1.0 { F32 * splits } else { HELD };
            Work::Attention {
                read: kept + all * heads * dim * F32,
                written: all * heads * dim * found,
                operations: 4.0 * rows.seen() * heads * dim,
                stages: (split.min(context) / STAGE_POSITIONS).ceil(),
                tails: f64::from(u8::from(splits > 1.0)),
            }
        }
        "activate_bf16" => {
            let cols = args.at(offset_of!(ActivateArgs, cols));
            moves(all, F32 * cols * (1.0 + args.at(offset_of!(ActivateArgs, gated))), HELD * cols)
        }
        "gather_rows" => {
            let cols = args.at(offset_of!(GatherRowsArgs, cols));
            moves(sampled, F32 * cols, F32 * cols)
        }
        "compact_rows" => moves(0.0, args.at(offset_of!(CompactRowsArgs, cols)), 0.0),
        "logit_stats" => moves(sampled, F32 * args.at(offset_of!(LogitStatsArgs, vocabulary)), 0.0),
        "draw_tokens" => moves(sampled, F32 * args.at(offset_of!(DrawArgs, vocabulary)), 0.0),
        "confidence" => moves(sampled, 16.0 * args.at(offset_of!(ConfidenceArgs, parts)), 0.0),
        "pick_tokens" => moves(sampled, 8.0 * args.at(offset_of!(PickArgs, parts)), 0.0),
        "draft_step" | "compact_pass" => moves(0.0, 0.0, 0.0),
        kernel => panic!("{kernel} is not known here: what does it read?"),
    }
}
