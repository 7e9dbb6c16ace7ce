//! The command line.

use clap::{Parser, ValueEnum};
use faser_kernels::{Dtype, Isa};

/// Times whole passes of a model, and the read bandwidth they are bound by.
#[derive(Parser)]
pub(crate) struct Options {
    /// Shape: 1.1b (TinyLlama's), 110m, tiny or 1b-a80m (with experts, all of which the floor counts); or a model's folder or GGUF file.
    #[arg(long, default_value = "1.1b")]
    pub(crate) model: String,
    /// What the matrices are held in: bf16, int8, int4 or f32.
    #[arg(long, default_value = "bf16")]
    pub(crate) dtype: Dtype,
    /// What keys and values are held in: bf16, int8 or f32 [default: bf16, f32 beside f32].
    #[arg(long)]
    pub(crate) kv_dtype: Option<Dtype>,
    /// Rows of a pass [default: 1,2,4,8,16,32,64; with --shares 1,8,16].
    #[arg(long, value_delimiter = ',')]
    pub(crate) rows: Vec<usize>,
    /// Tokens of each sequence that are in KV memory before the pass [default: 128; with --shares 128,2048].
    #[arg(long, value_delimiter = ',')]
    pub(crate) context: Vec<usize>,
    /// Whose rows they are.
    #[arg(long, value_enum, default_value = "sequences")]
    pub(crate) layout: Layout,
    /// Threads, each on its own core [default: all cores].
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Instruction set [default: the one detected].
    #[arg(long, default_value_t = Isa::detect(), hide_default_value = true)]
    pub(crate) isa: Isa,
    /// How often each case is timed.
    #[arg(long, default_value_t = 20)]
    pub(crate) rounds: usize,
    /// Also prints what share of a pass each part of it has.
    #[arg(long)]
    pub(crate) shares: bool,
    /// Prints everything as JSON instead, with each op's own figures.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the rows of a pass belong to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// Each row is the next token of a sequence of its own: a step of llama-batched-bench's generation, `-npp CONTEXT -npl ROWS`.
    Sequences,
    /// All rows are one sequence's: its verify chunk; llama-bench's `-p ROWS -d CONTEXT`, but with the logits of every row.
    Chunk,
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// Tokens in KV memory before the pass.
    pub(crate) context: usize,
    pub(crate) rows: usize,
}

impl Options {
    /// Every number of rows at every context.
    pub(crate) fn cases(&self) -> Result<Vec<Case>, String> {
        let (rows, contexts): (&[usize], &[usize]) =
            if self.shares { (&[1, 8, 16], &[128, 2048]) } else { (&[1, 2, 4, 8, 16, 32, 64], &[128]) };
        let or = |asked: &[usize], default: &[usize]| {
            if asked.is_empty() { default.to_vec() } else { asked.to_vec() }
        };
        let (rows, contexts) = (or(&self.rows, rows), or(&self.context, contexts));
        if self.rounds == 0 || rows.contains(&0) {
            return Err("rows and rounds are at least 1".to_owned());
        }
        Ok(contexts
            .iter()
            .flat_map(|&context| rows.iter().map(move |&rows| Case { context, rows }))
            .collect())
    }
}
