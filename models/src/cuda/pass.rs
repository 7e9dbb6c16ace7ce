//! One lane's passes of a model on a GPU: the buffers they need, allocated once, and a pass in the segments of the CPU's.
//!
//! ```text
//! stage(input) ── layers(a..b) ──┬───────────────────────────┬── layers(b..c) ── .. ── finish ── draw
//!                                └─ test_proposals ─ compact ─┘
//! ```
//!
//! Nothing here waits: launches queue up on the lane. How many rows there are is known to the host when a pass begins; rows that leave
//! are known to the device, whose kernels then do less, while products keep their size, but for what the host itself has cancelled.
//! Passes of up to 512 rows are padded to buckets, and asked for by graphs.
//!
//! A graph is the launches of a range of layers, or of a whole draft step, captured once per partition and shape.
//!
//! The key of a graph is everything that its launches are made of and that may differ from pass to pass: the arrays' places, grids, which
//! kernels. So a graph that is found is right by construction. Passes are padded to their bucket (`CudaPasses::stage`), so
//! that few keys come up; what is in the padding, no kernel looks at, for each reads the number of rows on the device. Passes of
//! a split model run without.

use std::sync::Arc;

use faser_kernels::cuda::{
    Arena, AttentionArgs, BLOCK_SIZE, Chunk, CudaError, CudaLane, DeviceBuffer, Element, EmbedArgs, Flags,
    Graph, LogprobWish, NOTHING, PruneArgs, PruneTest, Ptr, Sample, Sampler, Share, Tile,
};
use faser_kernels::{BlockId, Rows};

use super::CudaModel;
use super::along::StepsAlong;
use super::buffers::{CudaSizes, GroupBuffers, PenaltyTables, SamplerBuffers, StepBuffers, width};
use super::cuda_model::attention_fits;
use super::expert_buffers::ExpertBuffers;
use super::feature_buffers::{FeatureWriter, HeadBuffers};
use super::recently_used::RecentlyUsed;
use super::staged::{Beside, KnownChunk, RowArrays, Staged, Tail};
use crate::block::last_seen;
use crate::{LayerSpec, ModelConfig, Shard};

/// The rows of a pass. Rows of a chunk stand together, in ascending positions, chunks in the order of their rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassInput<'a> {
    /// One token per row.
    pub tokens: &'a [u32],
    /// Position of each row.
    pub positions: &'a [u32],
    /// Chunk of each row.
    pub chunk_of: &'a [u32],
    /// The chunks.
    pub chunks: &'a [Chunk],
    /// Block table of each chunk.
    pub tables: &'a [&'a [BlockId]],
    /// How each chunk's tokens are drawn.
    pub samplers: &'a [Sampler],
    /// Proposals of each chunk: none, or those behind its row `sampled_from`.
    pub proposals: &'a [&'a [u32]],
    /// Whether the table of counts of any chunk matters, or its bias.
    pub adjusts: bool,
    /// Whether top-k or top-p of any chunk leaves tokens out.
    pub restricts: bool,
    /// Whether that, or min-p: what all tokens are decides on each.
    pub cuts: bool,
    /// On a draft lane: the chunk of the plan that each chunk is part of; else nothing.
    pub of_plan: &'a [u32],
    /// What log-probabilities each chunk wants; nothing if none does.
    pub wishes: &'a [LogprobWish],
    /// The prompts' tokens that those are of.
    pub prompt_tokens: &'a [u32],
    /// Of a head, the target's block table of each chunk, whose features its rows begin with; or nothing.
    pub features: &'a [&'a [BlockId]],
    /// Beside them, for each row, whether it is a mask token (1) or not (0); nothing if none is.
    pub masked: &'a [u32],
    /// Of a head that proposes a block: how many rows, the first ones, are of blocks, whole ones. The others begin with features.
    pub of_blocks: usize,
    /// Of a head else, for each row, the chunk of the plan whose last row passed on what it begins with.
    pub passed_on: &'a [u32],
    /// Tests of proposals at pruning checkpoints: the test, its alternatives (a full row of [`PruneArgs::SCORED`] tokens), and the largest margin that stays.
    pub tests: &'a [(PruneTest, [u32; PruneArgs::SCORED], f32)],
}

/// A model on a lane with KV memory of its own.
pub struct CudaPasses {
    pub(super) model: Arc<CudaModel>,
    pub(super) lane: CudaLane,
    pub(super) sizes: CudaSizes,
    pub(super) input: Arena,
    pub(super) output: Arena,
    pub(super) history: Arena,
    pub(super) masks: Arena,
    pub(super) cancelled: Flags,
    pub(super) keys: DeviceBuffer,
    pub(super) values: DeviceBuffer,
    pub(super) x: DeviceBuffer,
    /// What a branch adds, where a norm stands behind it.
    pub(super) branch: DeviceBuffer,
    pub(super) normed: DeviceBuffer,
    pub(super) qkv: DeviceBuffer,
    pub(super) attended: DeviceBuffer,
    pub(super) mlp: DeviceBuffer,
    pub(super) activated: DeviceBuffer,
    /// Of a model that has experts.
    pub(super) experts: Option<ExpertBuffers>,
    /// A matrix of 4 bits as bf16, for products of many rows; of a model and a lane that have both.
    pub(super) widened: Option<DeviceBuffer>,
    pub(super) attention_sums: DeviceBuffer,
    pub(super) attention_stats: DeviceBuffer,
    /// Zeros, by which the last block of a kernel knows that it is.
    pub(super) tickets: DeviceBuffer,
    pub(super) keep: DeviceBuffer,
    pub(super) gathered: DeviceBuffer,
    pub(super) final_normed: DeviceBuffer,
    pub(super) logits: DeviceBuffer,
    pub(super) sampling: SamplerBuffers,
    pub(super) penalties: PenaltyTables,
    /// Of a split model.
    pub(super) group: Option<GroupBuffers>,
    /// On a lane that drafts.
    pub(super) steps: Option<StepBuffers>,
    /// Of a head.
    pub(super) head: Option<HeadBuffers>,
    /// Of a target whose draft is a head.
    pub(super) features: Option<FeatureWriter>,
    pub(super) pass: Staged,
    pub(super) known: Vec<KnownChunk>,
    /// The order of the samples, where rows of blocks depend on one another.
    pub(super) along: StepsAlong,
    pub(super) graphs: Graphs,
    /// Whether anything was asked for or captured for the first time since this was last taken.
    pub(super) cold: bool,
}

impl Drop for CudaPasses {
    fn drop(&mut self) {
        // Graphs go before the streams and partitions that they were captured on, and not while one of them runs.
        self.lane.finish();
        self.graphs = Graphs::default();
    }
}

impl CudaPasses {
    /// Passes on these shares of the partitions, the whole GPU first; KV memory is empty. Lanes that draft go first where SMs are
    /// shared, and tell confidences. The calling thread is bound to the GPU.
    ///
    /// # Errors
    /// The GPU has not enough memory, or no stream.
    pub fn new(
        model: Arc<CudaModel>,
        shares: &[Arc<Share>],
        drafts: bool,
        sizes: CudaSizes,
    ) -> Result<CudaPasses, CudaError> {
        let lane = CudaLane::new(shares, drafts)?;
        let gpu = model.gpu.clone();
        let (config, own, shard) = (&model.config, &model.own, model.shard());
        let (rows, logit_rows, held) = (sizes.rows(), sizes.logit_rows(), model.element.bytes());
        let (hidden, q, kv) = (config.hidden, own.q_width(), own.kv_width());
        if sizes.deterministic && model.element == Element::Bf16 {
            has_own_products(own, rows)?;
        }
        attention_fits(&gpu, (model.element, model.kv), own.head_dim)?;
        let of_head = if config.head.is_some() { sizes.head_input_bytes() } else { 0 };
        let f32 = size_of::<f32>();
        let activations = |count: usize, each: usize| DeviceBuffer::zeroed(&gpu, count * each, "activations");
        let kv_bytes = sizes.kv_bytes(own, model.kv);
        let split_rows = sizes.split_rows() * own.heads;
        Ok(CudaPasses {
            input: Arena::new(&gpu, sizes.input_bytes() + of_head, "the arrays of a pass")?,
            output: Arena::new(&gpu, sizes.output_bytes(), "what a pass brings")?,
            history: Arena::new(&gpu, sizes.history_bytes(), "histories")?,
            masks: Arena::new(&gpu, sizes.mask_bytes(config), "masks of tokens")?,
            cancelled: Flags::new(&gpu, sizes.max_chunks)?,
            keys: DeviceBuffer::zeroed(&gpu, kv_bytes, "keys")?,
            values: DeviceBuffer::zeroed(&gpu, kv_bytes, "values")?,
            x: activations(rows, hidden * f32)?,
            branch: activations(if config.norms_after() { rows } else { 1 }, hidden * f32)?,
            // The first layer of a head reads two streams.
            normed: activations(rows, if config.head.is_some() { 2 * hidden } else { hidden } * held)?,
            qkv: activations(rows, (q + 2 * kv) * f32)?,
            attended: activations(rows, q * held)?,
            mlp: activations(rows, own.mlp_width() * f32)?,
            activated: activations(rows, own.activated_width() * held)?,
            experts: ExpertBuffers::new(&gpu, own, rows, model.element)?,
            widened: model
                .most_widened()
                .filter(|_| sizes.widens())
                .map(|numbers| DeviceBuffer::unfilled(&gpu, numbers * held, "a widened matrix"))
                .transpose()?,
            attention_sums: activations(split_rows, config.head_dim * f32)?,
            attention_stats: activations(split_rows, 2 * f32)?,
            tickets: activations(sizes.tickets(own), size_of::<u32>())?,
            keep: activations(rows, size_of::<u32>())?,
            gathered: activations(logit_rows, hidden * f32)?,
            final_normed: activations(logit_rows, hidden * held)?,
            logits: activations(logit_rows, width(config, shard) * f32)?,
            sampling: SamplerBuffers::new(&gpu, config, logit_rows, drafts)?,
            penalties: PenaltyTables::new(&gpu, config, sizes.max_sequences)?,
            group: (shard != Shard::WHOLE)
                .then(|| GroupBuffers::new(&gpu, config, shard, &sizes))
                .transpose()?,
            steps: drafts.then(|| StepBuffers::new(&gpu, &sizes)).transpose()?,
            head: HeadBuffers::new(&model, &sizes)?,
            features: None,
            pass: Staged::default(),
            known: Vec::new(),
            along: StepsAlong::default(),
            graphs: Graphs::default(),
            cold: false,
            model,
            lane,
            sizes,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<CudaModel> {
        &self.model
    }

    /// The bounds.
    pub fn sizes(&self) -> &CudaSizes {
        &self.sizes
    }

    /// What follows runs on this partition.
    ///
    /// # Errors
    /// What runs on the one before fails.
    pub fn work_on(&mut self, partition: usize) -> Result<(), CudaError> {
        self.lane.work_on(partition)
    }

    /// Whether anything was done for the first time since this was last asked: products are chosen then, kernels loaded, graphs captured, and what it took
    /// says little of the next pass like it.
    pub fn was_cold(&mut self) -> bool {
        std::mem::take(&mut self.cold) | self.lane.chose()
    }

    /// Waits for what was asked for; `meanwhile` is called again and again.
    ///
    /// # Errors
    /// Something of it failed: the device is lost.
    pub fn wait(&mut self, meanwhile: &mut dyn FnMut(&Flags)) -> Result<(), CudaError> {
        let cancelled = &self.cancelled;
        self.lane.wait(&mut || meanwhile(cancelled))
    }

    /// Nobody wants this chunk of the pass any more: its rows leave at the next [`CudaPasses::compact`], also of what is queued already.
    ///
    /// # Panics
    /// If the pass has no such chunk.
    pub fn cancel(&mut self, chunk: usize) {
        self.cancelled.set(chunk);
        // Of a group this rank alone knows, and sizes must be the same on all.
        self.known[chunk].cancelled = !self.is_split();
    }

    /// The sizes that products have from here on: what the host knows to have left is not computed any more. What a test rules out is known to
    /// the device alone, and asking it would mean to wait.
    pub(super) fn shrink(&mut self) {
        let stays = self.known.iter().filter(|chunk| !chunk.cancelled);
        let (rows, samples) = stays.fold((0, 0), |(r, s), chunk| (r + chunk.rows, s + chunk.samples));
        self.pass.rows.bucket = self.pass.rows.bucket.min(CudaSizes::bucket(rows.max(1)));
        self.pass.tail.samples = self.pass.tail.samples.min(CudaSizes::bucket(samples));
    }

    /// Asks for a copy of a KV block, keys and values of all layers, and what a head reads of it.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If one of the blocks does not exist.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) -> Result<(), CudaError> {
        let (config, blocks) = (&self.model.own, self.sizes.blocks);
        let block = self.model.kv.block_bytes(config.kv_heads, config.head_dim);
        let (layers, layer) = (config.layers.len(), blocks * block);
        let [from, to] = [from, to].map(|block| block as usize);
        assert!(from.max(to) < blocks, "a copy of block {from} to {to} of {blocks}");
        for memory in [&self.keys, &self.values] {
            // A copy of rows takes no more than so many bytes from one to the next.
            let at_once = if layer <= MAX_PITCH { layers } else { 1 };
            for first in (0..layers).step_by(at_once) {
                let at = |index| (memory.at(first * layer + index * block), layer.min(MAX_PITCH));
                self.lane.copy_rows(at(from), at(to), block, at_once)?;
            }
        }
        self.copy_features(from, to)
    }

    /// Begins a pass: sends its arrays, and the residual stream becomes the tokens' embeddings. What was asked for before must have been
    /// waited for.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If the pass exceeds the sizes, or its arrays do not go together.
    pub fn stage(&mut self, input: &PassInput<'_>) -> Result<(), CudaError> {
        let PassInput { tokens, positions, chunk_of, chunks, tables, samplers, proposals, tests, .. } =
            *input;
        let sizes = self.sizes;
        let (rows, count) = (tokens.len(), chunks.len());
        assert!(
            rows > 0 && rows <= sizes.max_rows && count <= sizes.max_chunks,
            "{rows} rows in {count} chunks"
        );
        assert!(
            (positions.len(), chunk_of.len()) == (rows, rows) && tables.len() == count,
            "arrays of a pass"
        );
        let block = self.model.config.block();
        let of_blocks = input.of_blocks;
        assert!(of_blocks <= if block.is_some() { rows } else { 0 }, "{of_blocks} rows of blocks");
        self.assert_joined();
        self.wait(&mut |_| {})?;
        self.cancelled.clear();
        self.input.clear();
        self.output.clear();
        self.masks.clear();

        let mut samples = Vec::new();
        self.known.clear();
        for (chunk, index) in chunks.iter().zip(0..) {
            // Keys and values behind the end of a table would be another sequence's.
            let last = (chunk.first + chunk.rows).checked_sub(1).map_or(0, |last| positions[last as usize]);
            let places = tables[index as usize].len() * BLOCK_SIZE;
            assert!(chunk.rows == 0 || (last as usize) < places, "position {last} of a table for {places}");
            let before = samples.len();
            for offset in chunk.sampled_from..chunk.rows.max(chunk.sampled_from) {
                let row = chunk.first + offset;
                // A row of a block stands further behind than what it is drawn for; not in a pass that is timed.
                let nearer = block.map_or(0, |block| 1 + block.first() as u32);
                let position = (positions[row as usize] + 1).saturating_sub(nearer);
                let since = chunk.since(offset);
                samples.push(Sample { row, chunk: index, position, since });
            }
            let sampled = samples.len() - before;
            self.known.push(KnownChunk { rows: chunk.rows as usize, samples: sampled, cancelled: false });
        }
        assert!(samples.len() <= sizes.max_logit_rows, "{} rows get tokens", samples.len());
        self.along.clear();
        if self.model.follows() {
            self.along.order(&mut samples, |chunk| tokens[chunks[chunk as usize].first as usize]);
        }
        let config = &self.model.own;
        let group = (config.heads / config.kv_heads) as u32;
        // Nothing attends in a text that blocks stand before.
        let attending = |chunk: &Chunk| {
            if block.is_some() && chunk.first as usize >= of_blocks { 0 } else { chunk.rows }
        };

        // A small pass takes the places of its bucket: another of that bucket has its arrays in the same ones.
        let bucket = CudaSizes::bucket(rows);
        let small = bucket <= CudaSizes::GRAPH_ROWS;
        let up_to = |bucket: usize, len: usize| if small { bucket } else { len };
        let chunk_places = up_to(sizes.chunk_places(bucket, count), count);
        let queries = || chunks.iter().map(|chunk| attending(chunk) * group);
        let sees = |chunk: &Chunk| {
            let rows = chunk.first as usize..(chunk.first + chunk.rows) as usize;
            positions[rows].iter().max().map_or(0, |last| last + 1)
        };
        let plan =
            sizes.plan_attention(&self.model, queries().zip(chunks.iter().map(sees)), up_to(bucket, rows));
        let tile_queries = sizes.tile_queries(&self.model, queries(), plan);
        let (stride, blocks) = sizes.block_tables(tables);
        let proposal_stride = proposals.iter().map(|proposals| proposals.len()).max().unwrap_or(0).max(1);
        let proposal_stride = proposal_stride.next_power_of_two();
        let mut proposed = vec![NOTHING; count * proposal_stride];
        for (to, proposals) in proposed.chunks_exact_mut(proposal_stride).zip(proposals) {
            to[..proposals.len()].copy_from_slice(proposals);
        }
        let live: Vec<u32> = chunks.iter().map(|chunk| chunk.rows).collect();
        let sample_bucket = if samples.is_empty() { 0 } else { CudaSizes::bucket(samples.len()) };

        let mut sees = Vec::new();
        if let Some(block) = block.filter(|block| !block.causal) {
            let of_blocks =
                Rows { positions: &positions[..of_blocks], table_of: &chunk_of[..of_blocks], tables };
            last_seen(&block, of_blocks, &mut sees);
        }
        let text = rows - of_blocks;
        let last_seen = if sees.is_empty() { positions } else { &sees };
        let mut tiles = Vec::new();
        let attends = |chunk: &Chunk| match attending(chunk) as usize {
            0 => &[],
            rows => &last_seen[chunk.first as usize..][..rows],
        };
        Tile::cover(chunks.iter().map(attends), plan, group, tile_queries, &mut tiles);
        tiles.resize(up_to(CudaSizes::bucket(tiles.len()), tiles.len()), Tile::PADDING);

        let arena = &mut self.input;
        let tokens = arena.put_padded(tokens, up_to(bucket, rows));
        let counts = [rows, rows, samples.len(), of_blocks, text].map(|count| count as u32);
        let [counts, own_positions] = [arena.put(&counts), arena.put_padded(positions, up_to(bucket, rows))];
        let rows = RowArrays {
            bucket,
            counts,
            positions: own_positions,
            sees: if sees.is_empty() { own_positions } else { arena.put_padded(&sees, up_to(bucket, rows)) },
            chunk_of: arena.put_padded(chunk_of, up_to(bucket, rows)),
            chunks: arena.put_padded(chunks, chunk_places),
            tables: arena.put_padded(&blocks, chunk_places * stride),
            table_stride: stride as u32,
            tiles: arena.put(&tiles),
            tile_count: tiles.len(),
            tile_queries,
            split: plan.split,
            splits: plan.splits,
            of_blocks: block.map(|_| {
                let bucket = if of_blocks == 0 { 0 } else { CudaSizes::bucket(of_blocks) };
                (bucket, counts.behind(3 * size_of::<u32>()))
            }),
        };
        let tail = Tail {
            samples: sample_bucket,
            sample_rows: arena.put_padded(&samples, up_to(bucket, samples.len())),
            samplers: arena.put_padded(samplers, chunk_places),
            proposals: arena.put_padded(&proposed, chunk_places * proposal_stride),
            proposal_stride: proposal_stride as u32,
            adjusts: input.adjusts,
            restricts: input.restricts,
            cuts: input.cuts,
        };
        self.pass = Staged {
            rows,
            tail,
            small,
            samples: samples.len(),
            anchors: arena.put(self.along.anchors()),
            of_steps: arena.put(self.along.counts()),
            chunk_count: count,
            live: arena.put(&live),
            of_plan: arena.put(input.of_plan),
            compacted: false,
            wishes: if input.wishes.is_empty() { Ptr::NULL } else { arena.put(input.wishes) },
            prompt_tokens: arena.put(input.prompt_tokens),
            tests: arena.put(&tests.iter().map(|(test, ..)| *test).collect::<Vec<PruneTest>>()),
            alternatives: arena
                .put(&tests.iter().flat_map(|(_, alternatives, _)| *alternatives).collect::<Vec<u32>>()),
            most: arena.put(&tests.iter().map(|(.., most)| *most).collect::<Vec<f32>>()),
            test_count: arena.put(&[tests.len() as u32]),
            test_rows: arena.reserve::<u32>(tests.len()).0,
            scores: arena.reserve::<f32>(tests.len() * PruneArgs::SCORED).0,
            test_len: tests.len(),
        };
        // Behind the arrays whose places are those of the pass's bucket.
        let (stride, blocks) = sizes.block_tables(input.features);
        let of_target = arena.put(if input.features.is_empty() { &[] } else { &blocks[..] });
        let passed_on = arena.put(input.passed_on);
        let masked = if input.masked.is_empty() { Ptr::NULL } else { arena.put(input.masked) };
        self.lane.send(&mut self.input)?;
        self.embed(tokens)?;
        let of_target = (of_target, stride as u32);
        match (block, input.features.is_empty(), input.passed_on.is_empty()) {
            (Some(_), ..) if text > 0 => {
                let count = counts.behind(4 * size_of::<u32>());
                self.begin_text(of_target, of_blocks, (count, text))?;
            }
            (None, false, _) => self.begin_with_features(of_target, masked)?,
            (None, true, false) => self.begin_with_passed_on(passed_on)?,
            (Some(_), ..) | (None, true, true) => {}
        }
        self.reach(0);
        self.enter(0)
    }

    /// The residual stream becomes the embeddings of the rows' tokens; those of a head stand beside it.
    pub(super) fn embed(&mut self, tokens: Ptr) -> Result<(), CudaError> {
        let config = &self.model.config;
        let own = self.model.shard().tokens(config);
        let rows = self.pass.rows.through();
        if rows.bucket == 0 {
            return Ok(());
        }
        let embedded = self.head.as_ref().and_then(|head| head.embedded.as_ref());
        let args = EmbedArgs {
            table: self.model.parts.embedding.ptr(),
            tokens,
            out: embedded.unwrap_or(&self.x).ptr(),
            rows: rows.counts,
            cols: config.hidden as u32,
            vocabulary: config.vocab as u32,
            first: own.start as u32,
            held: own.len() as u32,
            scale: config.embedding_scale,
        };
        let (bucket, sms) = (rows.bucket as u32, self.lane.sms());
        self.lane.launch(&args.launch(self.model.element, bucket, sms))?;
        self.add_up(self.x.ptr())
    }

    /// Does work of the pass under way, if it is small by a graph.
    pub(super) fn captured(
        &mut self,
        work: Work,
        launches: impl FnOnce(&mut CudaPasses) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        // NCCL's calls are not captured: whether graphs with them may wait for each other was tried on no GPU. Layers have sums alone.
        let sums = self.pass.rows.bucket * self.model.config.hidden;
        let captures = matches!(work, Work::Layers { .. }) && self.lane.captures_sums(sums);
        if !self.pass.small || self.is_split() && !captures {
            return launches(self);
        }
        let key = Key { partition: self.lane.partition(), work, rows: self.pass.rows };
        match self.graphs.0.get(&key) {
            Some(Some(graph)) => return self.lane.replay(graph),
            Some(None) => self.cold = true,
            None => {
                self.cold = true;
                if self.graphs.0.len() >= GRAPHS {
                    self.lane.wait(&mut || {})?;
                    self.graphs.0.forget_half();
                }
                self.graphs.0.insert(key, None);
                return launches(self);
            }
        }
        self.lane.begin_capture()?;
        let asked = launches(self);
        let graph = self.lane.end_capture();
        asked?;
        let graph = graph?;
        self.lane.replay(&graph)?;
        self.graphs.0.insert(key, Some(graph));
        Ok(())
    }
}

/// Bytes between two rows that CUDA copies together, at most, on any GPU that there is.
const MAX_PITCH: usize = i32::MAX as usize;

/// Graphs kept; when there are more, the half that was not used for longest goes, for which the lane is waited for once.
const GRAPHS: usize = 512;

/// What is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Some layers.
    Layers { from: usize, to: usize },
    /// A draft step from embedding to the next pass.
    Step { tail: Tail, beside: Beside },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    partition: usize,
    work: Work,
    rows: RowArrays,
}

/// The graphs of a lane; none yet for work that was done once. The second time is captured: by then all that is loaded or chosen
/// at first use is there.
#[derive(Default)]
pub(super) struct Graphs(RecentlyUsed<Key, Option<Graph>>);

// What is staged for a block table is for the kernels' blocks.
const _: () = assert!(BLOCK_SIZE == 16);

/// Looks whether all products of a shard can be those of our own kernels, which have the same bits for any number of rows, and attention's grid holds their tiles.
fn has_own_products(own: &ModelConfig, most_rows: usize) -> Result<(), CudaError> {
    let of_layer = |layer: &LayerSpec| {
        let width = layer.mlp.kind.dense_width(own.intermediate);
        let shared = layer.mlp.kind.experts().is_some();
        (if shared { "`shared_expert_intermediate_size`" } else { "`intermediate_size`" }, width)
    };
    let whole = [("`hidden_size`", own.hidden), ("`num_attention_heads` times `head_dim`", own.q_width())]
        .into_iter();
    let unfit = whole.chain(own.layers.iter().map(of_layer)).find(|(_, width)| !width.is_multiple_of(32));
    if let Some((what, width)) = unfit {
        return Err(CudaError::Unfit(format!(
            "{what} is {width} on a rank, which is no multiple of 32: cublasLt multiplies it, and its bits depend on the pass: write \
             `device.deterministic: false`"
        )));
    }
    let tiles = most_rows * (own.heads / own.kv_heads).div_ceil(AttentionArgs::FEWEST_QUERIES);
    if tiles > MOST_TILES {
        return Err(CudaError::Unfit(format!(
            "passes of {most_rows} rows may have {tiles} tiles of 16 queries, and a grid holds {MOST_TILES}: lower `scheduler.max_pass_rows`, or \
             write `device.deterministic: false`"
        )));
    }
    Ok(())
}

/// Blocks of a grid in its third dimension.
const MOST_TILES: usize = 65_535;
