//! Launches of the ops that go row by row. `most_rows` is the bucket: the number of rows itself is read on the device.

use super::KvElement;
use super::launch::{Element, Launch, Ptr, strided};

/// Threads of most blocks here.
const THREADS: u32 = 256;

/// Token ids to rows of the embedding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EmbedArgs {
    /// `[held][cols]` of the element.
    pub table: Ptr,
    /// u32 per row.
    pub tokens: Ptr,
    /// f32 `[rows][cols]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The hidden size.
    pub cols: u32,
    /// The vocabulary; a token beyond it gives NaN.
    pub vocabulary: u32,
    /// The token of the table's first row.
    pub first: u32,
    /// Rows of the table; a token without one gives zeros.
    pub held: u32,
    /// What embeddings are multiplied by.
    pub scale: f32,
}

impl EmbedArgs {
    /// One block for a row.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<EmbedArgs> {
        let kernel = element.choose("embed_f32", "embed_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], THREADS, self)
    }
}

/// RMSNorm of each row, or a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArgs {
    /// f32 `[rows][x_stride]`: the first columns.
    pub x: Ptr,
    /// f32 `[cols]`; or null: rows are copied.
    pub weight: Ptr,
    /// The element's `[rows][out_stride]`: the first columns.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The hidden size.
    pub cols: u32,
    /// Numbers from a row to the next.
    pub x_stride: u32,
    /// Likewise.
    pub out_stride: u32,
    /// Added to the mean square.
    pub eps: f32,
}

impl RmsNormArgs {
    /// One block for a row; the element is that of `out`.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<RmsNormArgs> {
        let kernel = element.choose("rms_norm_f32", "rms_norm_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], THREADS, self)
    }

    /// The same, added to `out`, which is f32.
    #[must_use]
    pub fn add(self, most_rows: u32, sms: u32) -> Launch<RmsNormArgs> {
        Launch::new("rms_norm_add", [strided(most_rows, sms, 8), 1, 1], THREADS, self)
    }
}

/// The activation of an MLP.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActivateArgs {
    /// f32 `[rows][gate | up]`, or `[rows][cols]` without a gate.
    pub x: Ptr,
    /// The element's `[rows][cols]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The width of the MLP.
    pub cols: u32,
    /// Its place in [`crate::ops::Activation::ALL`].
    pub activation: u32,
    /// 1 with a gate, else 0.
    pub gated: u32,
}

impl ActivateArgs {
    /// One thread for a column; the element is that of `out`.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<ActivateArgs> {
        let kernel = element.choose("activate_f32", "activate_bf16");
        let across = strided(self.cols.div_ceil(THREADS), sms, 8);
        Launch::new(kernel, [across, strided(most_rows, sms, 8), 1], THREADS, self)
    }
}

/// Logits that are no larger than a cap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SoftCapArgs {
    /// f32 `[rows][cols]`, in place.
    pub x: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Columns.
    pub cols: u32,
    /// More than 0.
    pub cap: f32,
}

impl SoftCapArgs {
    /// One thread for a column.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<SoftCapArgs> {
        let across = strided(self.cols.div_ceil(THREADS), sms, 8);
        Launch::new("soft_cap", [across, strided(most_rows, sms, 8), 1], THREADS, self)
    }
}

/// Logits of some tokens as those of all: the others have none, -infinity.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpreadLogitsArgs {
    /// f32 `[rows][held]`.
    pub own: Ptr,
    /// u32 `[vocabulary]`: which of the own ones a token's is, or [`super::NOTHING`].
    pub places: Ptr,
    /// f32 `[rows][vocabulary]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Tokens that have logits.
    pub held: u32,
    /// All tokens.
    pub vocabulary: u32,
}

impl SpreadLogitsArgs {
    /// One thread for a token.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<SpreadLogitsArgs> {
        let across = strided(self.vocabulary.div_ceil(THREADS), sms, 8);
        Launch::new("spread_logits", [across, strided(most_rows, sms, 8), 1], THREADS, self)
    }
}

/// Bias, QK norm, rotation, and the write of keys and values.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QkvArgs {
    /// f32 `[rows][(heads + 2 * kv_heads) * head_dim]`, queries | keys | values; queries are written back.
    pub qkv: Ptr,
    /// f32, as long as a row of `qkv`, or null.
    pub bias: Ptr,
    /// f32 `[head_dim]`, or null.
    pub q_norm: Ptr,
    /// f32 `[head_dim]`, or null.
    pub k_norm: Ptr,
    /// f32 `[position][head_dim]`: cosines, then sines; or null: heads are not rotated.
    pub cos_sin: Ptr,
    /// u32 per row: its position.
    pub positions: Ptr,
    /// u32 per row: its chunk, and so its block table.
    pub chunk_of: Ptr,
    /// u32 `[chunk][table_stride]`: block ids.
    pub tables: Ptr,
    /// The layer's keys, as a [`KvElement`] says.
    pub keys: Ptr,
    /// The layer's values, likewise.
    pub values: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head: even, at most 256.
    pub head_dim: u32,
    /// Blocks of a table.
    pub table_stride: u32,
    /// Of the norms.
    pub eps: f32,
    /// 1 if keys and values are in FP8, 0 if they are in the kernel's element.
    pub fp8: u32,
}

impl QkvArgs {
    /// What [`QkvArgs::fp8`] is for such keys and values.
    #[must_use]
    pub fn fp8(kv: KvElement) -> u32 {
        u32::from(kv == KvElement::Fp8)
    }

    /// One warp for a head of a row; the element is that of keys and values, unless they are in FP8.
    ///
    /// # Panics
    /// If the head is odd or larger than 256.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<QkvArgs> {
        assert!(self.head_dim.is_multiple_of(2) && self.head_dim <= 256, "qkv: a head of {}", self.head_dim);
        let kernel = element.choose("qkv_f32", "qkv_bf16");
        let warps = most_rows * (self.heads + 2 * self.kv_heads);
        Launch::new(kernel, [strided(warps.div_ceil(THREADS / 32), sms, 8), 1, 1], THREADS, self)
    }
}

/// Rows by their indices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatherRowsArgs {
    /// f32 `[..][cols]`.
    pub x: Ptr,
    /// u32: row `r` of `out` is row `indices[r * stride]`; [`super::NOTHING`] makes it zero.
    pub indices: Ptr,
    /// f32 `[rows][cols]`.
    pub out: Ptr,
    /// u32: how many rows there are of `out`.
    pub rows: Ptr,
    /// Columns.
    pub cols: u32,
    /// Distance of indices: 1, or 4 in an array of [`super::Sample`].
    pub stride: u32,
}

impl GatherRowsArgs {
    /// One block for a row.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<GatherRowsArgs> {
        Launch::new("gather_rows", [strided(most_rows, sms, 8), 1, 1], THREADS, self)
    }
}

/// Rows that stay, moved to the front.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompactRowsArgs {
    /// f32 `[rows][cols]`, in place.
    pub x: Ptr,
    /// u32 per row that stays: where it is, ascending.
    pub keep: Ptr,
    /// u32 x 2: rows that stay, and the first of them that moves.
    pub counts: Ptr,
    /// Columns.
    pub cols: u32,
}

impl CompactRowsArgs {
    /// One thread for a column.
    #[must_use]
    pub fn launch(self) -> Launch<CompactRowsArgs> {
        Launch::new("compact_rows", [self.cols.div_ceil(128), 1, 1], 128, self)
    }
}

/// Which rows stay of a pass under way; rewrites what is known of each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CompactPassArgs {
    /// [`super::Chunk`]s, rewritten; they stand in the order of their rows.
    pub chunks: Ptr,
    /// u32 per chunk: not 0 if nobody wants it any more. The host may write it at any time.
    pub cancelled: Ptr,
    /// u32 per chunk: rows that are wanted, as many as the chunk has to begin with.
    pub live: Ptr,
    /// u32 per row, moved.
    pub positions: Ptr,
    /// u32 per row, moved.
    pub chunk_of: Ptr,
    /// u32 per row: where the rows that stay were, for [`CompactRowsArgs`].
    pub keep: Ptr,
    /// [`super::Sample`]s of the rows that stay.
    pub samples: Ptr,
    /// u32 x 3: rows (read, then written), the first that moves, samples.
    pub counts: Ptr,
    /// Chunks; more than 0.
    pub chunk_count: u32,
}

impl CompactPassArgs {
    /// One block.
    #[must_use]
    pub fn launch(self) -> Launch<CompactPassArgs> {
        Launch::new("compact_pass", [1, 1, 1], 1024, self)
    }
}

/// What the rows of a block read of the token before each, of gates that were projected.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatesArgs {
    /// f32 `[rows][rank]`; with a state `[rows][3 * rank]`: how much of it stays, what comes, what is read.
    pub gates: Ptr,
    /// f32 `[rows][rank]`: the embeddings of the tokens before.
    pub embedded: Ptr,
    /// f32 `[rows][rank]`: what a recurrence knows, which moves on; or null: rows read their embeddings through gates.
    pub state: Ptr,
    /// The element's `[rows][rank]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Columns of an embedding.
    pub rank: u32,
}

impl GatesArgs {
    /// One block for a row.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<GatesArgs> {
        let kernel = element.choose("mix_gates_f32", "mix_gates_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], THREADS, self)
    }
}

/// How sure a head is of rows of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SuretyArgs {
    /// The element's `[rows][cols]`: what logits are made of.
    pub hidden: Ptr,
    /// f32 `[rows][rank]`: the embeddings of the tokens before.
    pub before: Ptr,
    /// f32 `[cols + rank]`.
    pub weights: Ptr,
    /// f32, one.
    pub bias: Ptr,
    /// f32 per row, 0 to 1.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The hidden size.
    pub cols: u32,
    /// Columns of an embedding; 0 if those do not count.
    pub rank: u32,
}

impl SuretyArgs {
    /// One warp for a row.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<SuretyArgs> {
        let kernel = element.choose("surety_f32", "surety_bf16");
        Launch::new(kernel, [strided(most_rows.div_ceil(4), sms, 8), 1, 1], 128, self)
    }
}

/// Tokens that were drawn for rows of blocks, where the proposals of their chunks stand.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NoteDrawnArgs {
    /// u32 per sample.
    pub tokens: Ptr,
    /// [`super::Sample`] each.
    pub samples: Ptr,
    /// u32 `[chunks][stride]`.
    pub proposals: Ptr,
    /// u32: how many samples there are.
    pub rows: Ptr,
    /// Proposals of a chunk that there is room for; what stands behind them is not written.
    pub stride: u32,
}

impl NoteDrawnArgs {
    /// One thread for a sample.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<NoteDrawnArgs> {
        Launch::new("note_drawn", [strided(most_rows.div_ceil(THREADS), sms, 8), 1, 1], THREADS, self)
    }
}
