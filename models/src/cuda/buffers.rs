//! What the passes of a lane take of a GPU's memory, and the buffers of their parts: one place for those who plan and
//! those who allocate.

use std::sync::Arc;

use faser_kernels::collective::part;
use faser_kernels::cuda::{
    ATTENTION_SPLITS, Arena, AttentionArgs, AttentionPlan, BLOCK_SIZE, CudaError, CudaLane, DeviceBuffer,
    DraftStepArgs, Element, Flags, Gpu, KvElement, LogitStats, LogitStatsArgs, LogprobFound, MatmulArgs, Ptr,
};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::CANDIDATES;
use faser_kernels::{BlockId, Dtype};

use super::CudaModel;
use super::along::MarkovBuffers;
use super::expert_buffers::ExpertBuffers;
use super::staged::Steps;
use crate::{HeadSpec, ModelConfig, Shard};

/// The bounds of a lane's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSizes {
    /// KV blocks of its pool, of 16 positions.
    pub blocks: usize,
    /// Rows of its largest pass.
    pub max_rows: usize,
    /// Rows of it that get tokens.
    pub max_logit_rows: usize,
    /// Chunks of a pass.
    pub max_chunks: usize,
    /// Sequences that may have penalties or a bias; for more of them memory is asked for when they come.
    pub max_sequences: usize,
    /// Tokens of the longest sequence.
    pub max_context: usize,
    /// Pruning checkpoints of a pass.
    pub max_prune_checkpoints: usize,
    /// Kernels and splits that give a row the same bits whatever is beside it, in the place of those that are the fastest for a pass.
    pub deterministic: bool,
}

/// Rows times splits that attention has workspace for, unless a pass has more rows.
const SPLIT_ROWS: usize = 1024;
/// What cublasLt's workspace takes, and staging.
const FIXED_BYTES: u64 = 48 << 20;

impl CudaSizes {
    /// Rows that a pass of `rows` counts as where sizes are fixed in advance: powers of two, and half-way between; beyond 64 multiples of that,
    /// for what is computed in vain costs more there than one shape more.
    pub fn bucket(rows: usize) -> usize {
        if rows > CudaSizes::MANY_ROWS {
            return rows.next_multiple_of(CudaSizes::MANY_ROWS);
        }
        let power = rows.next_power_of_two();
        let between = power / 4 * 3;
        if between >= rows && power >= 8 { between } else { power }
    }

    /// Rows beyond which buckets are multiples of them.
    const MANY_ROWS: usize = 64;

    /// Rows up to which passes are padded to their bucket, so that they can be captured in graphs: those of decoding and verifying. A 1B model's
    /// pass of 250 rows was done by an H200 before the host had asked for it launch by launch. Beyond, what a launch costs the host is little
    /// beside what it computes, and a pass's shape seldom comes again.
    pub(super) const GRAPH_ROWS: usize = 512;

    /// Chunks that the arrays of a pass of this bucket have places for: as many as rows, or where those are many, as it has chunks, whose tables
    /// would else be long.
    pub(super) fn chunk_places(&self, bucket: usize, chunks: usize) -> usize {
        let most = CudaSizes::bucket(self.max_chunks);
        if bucket > CudaSizes::MANY_ROWS { CudaSizes::bucket(chunks).min(most) } else { bucket.min(most) }
    }

    pub(super) fn rows(&self) -> usize {
        CudaSizes::bucket(self.max_rows)
    }

    /// Whether matrices in records are widened for some of the passes.
    pub(super) fn widens(&self) -> bool {
        !self.deterministic && self.rows() > MatmulArgs::MOST_ROWS_OF_RECORDS as usize
    }

    /// Queries of attention's tiles, where chunks have so many queries for a key head: the size of a tile changes the order of sums.
    pub(super) fn tile_queries(
        &self,
        model: &CudaModel,
        queries: impl Iterator<Item = u32>,
        plan: AttentionPlan,
    ) -> u32 {
        const FEWEST: u32 = AttentionArgs::FEWEST_QUERIES as u32;
        if self.deterministic {
            return FEWEST;
        }
        let (most, tiles) =
            queries.fold((0, 0), |(most, tiles), of| (of.max(most), tiles + of.div_ceil(FEWEST)));
        let sms = model.gpu.info().sms;
        let blocks = tiles * model.own.kv_heads as u32 * plan.splits;
        AttentionArgs::tile_queries(model.element, model.own.head_dim as u32, most, (blocks, sms))
    }

    /// Splits of positions for the rows of chunks, each of which has so many queries for a key head and sees so far: a power of two of them, so that contexts
    /// that grow seldom change them; more than a row has change nothing.
    pub(super) fn plan_attention(
        &self,
        model: &CudaModel,
        chunks: impl Iterator<Item = (u32, u32)>,
        rows: usize,
    ) -> AttentionPlan {
        let (longest, positions) = chunks.fold((1, 0), |(longest, all), (queries, sees)| {
            (sees.max(longest), all + AttentionPlan::positions(queries, sees, model.own.kv_heads))
        });
        if self.deterministic {
            // Where fewer splits are enough, those of all rows are the shortest there are: with more blocks they would be the same ones.
            let [all, enough] = [self.max_context as u32, longest].map(AttentionPlan::of_rows);
            return AttentionPlan { splits: enough.splits.next_power_of_two().min(all.splits), ..all };
        }
        let mut plan = AttentionPlan::new(longest, positions, model.gpu.info().sms);
        plan.splits = plan.splits.next_power_of_two();
        // Many rows keep the SMs busy without splits, and the workspace is not for both.
        while plan.splits > 1 && plan.splits as usize * rows > self.split_rows() {
            plan.split *= 2;
            plan.splits = longest.div_ceil(plan.split).next_power_of_two();
        }
        plan
    }

    /// Bytes of the largest matrix of a shard of such a model, widened.
    fn widened_bytes(&self, own: &ModelConfig) -> u64 {
        if !self.widens() {
            return 0;
        }
        let streams = if own.head.is_some() { 2 } else { 1 };
        let widest = (streams * (own.q_width() + 2 * own.kv_width())).max(own.mlp_width());
        (own.hidden * widest * Element::Bf16.bytes()) as u64
    }

    pub(super) fn logit_rows(&self) -> usize {
        CudaSizes::bucket(self.max_logit_rows.max(1))
    }

    /// Rows times splits of attention's workspace.
    pub(super) fn split_rows(&self) -> usize {
        if self.deterministic {
            return self.rows() * AttentionPlan::of_rows(self.max_context as u32).splits as usize;
        }
        SPLIT_ROWS.max(self.max_rows)
    }

    /// Tickets of a kernel: one for each tile of attention and key head, for each head, for a whole product.
    pub(super) fn tickets(&self, own: &ModelConfig) -> usize {
        let tiles = self.rows() * (own.heads / own.kv_heads).div_ceil(AttentionArgs::FEWEST_QUERIES);
        let of_attention = (CudaSizes::bucket(tiles) * own.kv_heads).max(own.heads + 2 * own.kv_heads);
        of_attention.max(MatmulArgs::TICKETS as usize)
    }

    /// Blocks of a table.
    pub(super) fn table_stride(&self) -> usize {
        self.max_context.div_ceil(BLOCK_SIZE).max(1)
    }

    /// The stride of block tables that stand together, and the tables: a power of two, which grows seldom.
    ///
    /// # Panics
    /// If one is longer than a sequence.
    pub(super) fn block_tables(&self, tables: &[&[BlockId]]) -> (usize, Vec<u32>) {
        let longest = tables.iter().map(|table| table.len()).max().unwrap_or(0).max(1);
        assert!(longest <= self.table_stride(), "a table of {longest} blocks");
        let stride = longest.next_power_of_two();
        let mut blocks = vec![0; tables.len() * stride];
        for (to, table) in blocks.chunks_exact_mut(stride).zip(tables) {
            to[..table.len()].copy_from_slice(table);
        }
        (stride, blocks)
    }

    pub(super) fn parts(config: &ModelConfig) -> usize {
        LogitStatsArgs::parts(config.vocab as u32) as usize
    }

    /// Bytes of one of keys and values, all layers.
    pub(super) fn kv_bytes(&self, config: &ModelConfig, kv: KvElement) -> usize {
        config.layers.len() * self.blocks * kv.block_bytes(config.kv_heads, config.head_dim)
    }

    /// Everything but weights and KV that a shard of a model takes, in bytes: what a planner leaves free. A little more than it takes.
    pub fn workspace_bytes(&self, whole: &ModelConfig, shard: Shard, dtype: Dtype) -> u64 {
        let config = &shard.config(whole);
        let (rows, logit_rows, f32) = (self.rows() as u64, self.logit_rows() as u64, size_of::<f32>() as u64);
        let held = dtype.beside().bytes() as u64;
        let widened = if dtype.is_in_records() { self.widened_bytes(config) } else { 0 };
        let (hidden, q, kv) = (config.hidden as u64, config.q_width() as u64, config.kv_width() as u64);
        let (mlp, activated) = (config.mlp_width() as u64, config.activated_width() as u64);
        let branch = if config.norms_after() { hidden } else { 0 };
        let row = f32 * (hidden + branch + q + 2 * kv + mlp) + held * (hidden + q + activated);
        let attention = self.split_rows() as u64 * config.heads as u64 * (config.head_dim as u64 + 2) * f32;
        // Logits twice: plain, and with penalties.
        let parts = CudaSizes::parts(whole) as u64;
        let logit_row = f32 * (hidden + 2 * whole.vocab as u64) + held * hidden + 32 * parts + 64;
        let rope = config.max_context as u64 * config.head_dim as u64 * f32;
        let (steps, drafted) = self.step_bytes();
        let staging =
            self.input_bytes() + self.output_bytes() + self.history_bytes() + self.mask_bytes(whole);
        let tickets = 4 * self.tickets(config) as u64;
        let penalties = (self.max_sequences * PenaltyTables::bytes_each(whole)) as u64;
        let group = GroupBuffers::bytes(whole, shard, self);
        let experts = ExpertBuffers::bytes(config, self.rows(), held as usize) as u64;
        let staging = (staging + steps + drafted) as u64 + self.head_bytes(whole, held);
        rows * row
            + attention
            + tickets
            + logit_rows * logit_row
            + rope
            + staging
            + penalties
            + group
            + experts
            + widened
            + FIXED_BYTES
    }

    /// Bytes of what a lane of a head has more than a model's, and of what is wider.
    fn head_bytes(&self, config: &ModelConfig, held: u64) -> u64 {
        let Some(spec) = &config.head else { return 0 };
        let (hidden, f32) = (config.hidden as u64, size_of::<f32>() as u64);
        let input = self.head_input_bytes() as u64;
        let logits = (self.logit_rows() * spec.proposed_vocab.unwrap_or(0) + config.vocab) as u64;
        let markov = MarkovBuffers::bytes(config, self.logit_rows(), held as usize) as u64;
        input
            + markov
            + self.rows() as u64 * hidden * (f32 + held)
            + (CudaSizes::bucket(self.max_chunks) as u64 * hidden + logits) * f32
    }

    /// What a head's passes have of them beside: the target's tables, what rows begin with, or how far they see.
    pub(super) fn head_input_bytes(&self) -> usize {
        let tables = CudaSizes::bucket(self.max_chunks) * self.table_stride().next_power_of_two();
        // Anchors and steps of blocks are no more than the samples.
        4 * (tables + 2 * self.rows() + 2 * self.logit_rows()) + (4 << 10)
    }

    /// Bytes that [`super::CudaPasses::attach`] takes, beside the pages.
    pub fn attached_bytes(&self, head: &ModelConfig, dtype: Dtype) -> u64 {
        let streams = head.head.as_ref().map_or(0, HeadSpec::streams_width);
        let row = streams * (size_of::<f32>() + dtype.beside().bytes()) + head.hidden * size_of::<f32>();
        (self.rows() * row) as u64
    }

    /// Small arrays of a pass: rows, chunks with their tables, samples, tests.
    pub(super) fn input_bytes(&self) -> usize {
        let rows = self.rows() * 84;
        let chunks = CudaSizes::bucket(self.max_chunks) * (288 + 4 * self.table_stride().next_power_of_two());
        let samples = self.logit_rows() * 128;
        rows + chunks + samples + (64 << 10)
    }

    /// What draft steps keep of each chunk: rows, state and table; and what they bring.
    pub(super) fn step_bytes(&self) -> (usize, usize) {
        let chunks = CudaSizes::bucket(self.max_chunks);
        let each = 512 + 4 * self.table_stride().next_power_of_two();
        let place = 4 * (2 + TOP_TOKENS + CANDIDATES);
        let drafted = chunks * (DraftStepArgs::STEPS * place + 4) + (4 << 10);
        (chunks * each + (4 << 10), drafted)
    }

    /// What comes back: a few integers per sample and chunk, margins.
    pub(super) fn output_bytes(&self) -> usize {
        let sample = 64 + 4 * CANDIDATES + size_of::<LogprobFound>() + 4 * self.max_prune_checkpoints;
        self.logit_rows() * sample + self.max_chunks * 48 + 16 * self.max_prune_checkpoints + (4 << 10)
    }

    /// A mask for each row that gets a token, and as many as one chunk may have that went before; and where those of each chunk are.
    pub(super) fn mask_bytes(&self, config: &ModelConfig) -> usize {
        let masks = self.logit_rows() + DraftStepArgs::STEPS + 1;
        4 * (masks * mask_words(config) + CudaSizes::bucket(self.max_chunks)) + 64
    }

    /// Tokens on their way into tables of counts, and biases into theirs.
    pub(super) fn history_bytes(&self) -> usize {
        2 * 4 * self.max_context + (256 << 10)
    }
}

/// Words of a mask of the vocabulary.
pub(super) fn mask_words(config: &ModelConfig) -> usize {
    config.vocab.div_ceil(32)
}

/// Buffers of the sampler.
pub(super) struct SamplerBuffers {
    /// Of the plain logits, and of those with penalties.
    pub(super) stats: [DeviceBuffer; 2],
    pub(super) least: DeviceBuffer,
    pub(super) best: DeviceBuffer,
    /// Logits with penalties, where the plain ones are needed too.
    pub(super) adjusted: DeviceBuffer,
    /// The draft's confidence is wanted.
    pub(super) confidence: bool,
}

impl SamplerBuffers {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        rows: usize,
        drafts: bool,
    ) -> Result<SamplerBuffers, CudaError> {
        let parts = CudaSizes::parts(config);
        let buffer = |bytes: usize| DeviceBuffer::zeroed(gpu, bytes, "the sampler");
        let stats = || buffer(rows * parts * size_of::<LogitStats>());
        let logits_bytes = rows * config.vocab * size_of::<f32>();
        Ok(SamplerBuffers {
            stats: [stats()?, stats()?],
            least: buffer(rows * size_of::<u64>())?,
            best: buffer(rows * parts * size_of::<u64>())?,
            adjusted: buffer(logits_bytes)?,
            confidence: drafts,
        })
    }
}

/// Entries of a list; one that is longer has memory of its own. The HTTP API takes no more.
pub(super) const BIASES: usize = 1024;

/// The place of a sequence with penalties or a bias: its table of counts, one u32 for each token of the vocabulary, and its list.
#[derive(Debug)]
pub struct PenaltySlot(usize);

/// The places of a lane. There are as many as it may have sequences; more come only if it is given more.
pub(super) struct PenaltyTables {
    gpu: Arc<Gpu>,
    /// As many slots in each.
    groups: Vec<DeviceBuffer>,
    group_slots: usize,
    pub(super) counts_bytes: usize,
    pub(super) free: Vec<PenaltySlot>,
}

impl PenaltyTables {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        slots: usize,
    ) -> Result<PenaltyTables, CudaError> {
        let mut tables = PenaltyTables {
            gpu: gpu.clone(),
            groups: Vec::new(),
            group_slots: slots,
            counts_bytes: counts_bytes(config),
            free: Vec::new(),
        };
        tables.grow()?;
        Ok(tables)
    }

    /// Bytes of a slot.
    pub(super) fn bytes_each(config: &ModelConfig) -> usize {
        counts_bytes(config) + 2 * BIASES * size_of::<u32>()
    }

    pub(super) fn grow(&mut self) -> Result<(), CudaError> {
        let first = self.groups.len() * self.group_slots;
        let bytes = self.group_slots * (self.counts_bytes + 2 * BIASES * size_of::<u32>());
        self.groups.push(DeviceBuffer::zeroed(&self.gpu, bytes, "tables for penalties")?);
        self.free.extend((first..first + self.group_slots).rev().map(PenaltySlot));
        Ok(())
    }

    pub(super) fn at(&self, slot: &PenaltySlot) -> Ptr {
        let each = self.counts_bytes + 2 * BIASES * size_of::<u32>();
        self.groups[slot.0 / self.group_slots].at(slot.0 % self.group_slots * each)
    }
}

fn counts_bytes(config: &ModelConfig) -> usize {
    (config.vocab * size_of::<u32>()).next_multiple_of(16)
}

/// Rows of logits that travel in one call.
pub(super) const ROWS_AT_ONCE: usize = 64;
/// What NCCL keeps on a GPU for a lane's group, and a room for sums over the GPUs' memory, which is some 16 MiB: assumed, not measured.
const COMMUNICATOR_BYTES: u64 = 256 << 20;

/// What a rank of a split model has of memory for what ranks sum and tell each other.
pub(super) struct GroupBuffers {
    /// u32 of each chunk: this rank's flags, and all ranks'.
    pub(super) flags: [DeviceBuffer; 2],
    /// u64 of each sample: this rank's best key, and all ranks'.
    pub(super) keys: [DeviceBuffer; 2],
    /// Logits as they come, rank after rank, of some rows.
    pub(super) pieces: DeviceBuffer,
    /// f32 `[logit rows][vocabulary]`.
    pub(super) whole: DeviceBuffer,
}

/// Tokens of the largest part of a vocabulary.
pub(super) fn width(config: &ModelConfig, shard: Shard) -> usize {
    part(config.vocab, 0, shard.ranks).len()
}

fn pieces(config: &ModelConfig, shard: Shard, logit_rows: usize) -> usize {
    ROWS_AT_ONCE.min(logit_rows) * shard.ranks * width(config, shard) * size_of::<f32>()
}

impl GroupBuffers {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        shard: Shard,
        sizes: &CudaSizes,
    ) -> Result<GroupBuffers, CudaError> {
        let buffer = |bytes: usize| DeviceBuffer::zeroed(gpu, bytes, "what ranks tell each other");
        let (flags, keys) =
            (CudaSizes::bucket(sizes.max_chunks) * size_of::<u32>(), sizes.logit_rows() * size_of::<u64>());
        Ok(GroupBuffers {
            flags: [buffer(flags)?, buffer(shard.ranks * flags)?],
            keys: [buffer(keys)?, buffer(shard.ranks * keys)?],
            pieces: buffer(pieces(config, shard, sizes.logit_rows()))?,
            whole: buffer(sizes.logit_rows() * config.vocab * size_of::<f32>())?,
        })
    }

    /// Bytes of it all, and of what NCCL keeps.
    pub(super) fn bytes(config: &ModelConfig, shard: Shard, sizes: &CudaSizes) -> u64 {
        if shard == Shard::WHOLE {
            return 0;
        }
        let (rows, ranks) = (sizes.logit_rows(), 1 + shard.ranks);
        let words = ranks * (4 * CudaSizes::bucket(sizes.max_chunks) + 8 * rows);
        let logits = pieces(config, shard, rows) + rows * config.vocab * size_of::<f32>();
        (words + logits) as u64 + COMMUNICATOR_BYTES
    }

    /// Asks for the first rank's flags as they will be: where they are on this rank.
    pub(super) fn flags_of_first(
        &self,
        lane: &mut CudaLane,
        flags: &Flags,
        len: usize,
    ) -> Result<Ptr, CudaError> {
        let [own, all] = self.flags.each_ref().map(DeviceBuffer::ptr);
        lane.snapshot(flags, len, own)?;
        lane.all_gather(own, all, len)?;
        Ok(all)
    }
}

/// What the steps of a lane have of memory.
pub(super) struct StepBuffers {
    pub(super) input: Arena,
    pub(super) outcome: Arena,
    pub(super) cancelled: Flags,
    pub(super) going: Flags,
    pub(super) staged: Steps,
}

impl StepBuffers {
    pub(super) fn new(gpu: &Arc<Gpu>, sizes: &CudaSizes) -> Result<StepBuffers, CudaError> {
        let (input, outcome) = sizes.step_bytes();
        Ok(StepBuffers {
            input: Arena::new(gpu, input, "the arrays of draft steps")?,
            outcome: Arena::new(gpu, outcome, "what draft steps bring")?,
            cancelled: Flags::new(gpu, CudaSizes::bucket(sizes.max_chunks))?,
            going: Flags::new(gpu, DraftStepArgs::STEPS + 1)?,
            staged: Steps::default(),
        })
    }
}

// A split is at least as long as a block of keys.
const _: () = assert!(ATTENTION_SPLITS > 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_close_above() {
        let found: Vec<usize> =
            [1, 2, 3, 5, 6, 7, 9, 12, 13, 17, 25, 33, 64, 65, 500, 513].map(CudaSizes::bucket).to_vec();
        assert_eq!(found, [1, 2, 4, 6, 6, 8, 12, 12, 16, 24, 32, 48, 64, 128, 512, 576]);
    }
}
