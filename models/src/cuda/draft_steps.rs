//! Draft steps that follow one another on the device: each draws its tokens, applies the stop rules and writes the next pass; the host
//! asks for a step before it knows what the one before it brought.
//!
//! ```text
//! begin_draft ── stage .. draw ── record ──┬── step ── step ── .. ── fetch_draft
//!                (rows to catch up with)   └─ going(0) ─ going(1) .. : how many chunks go on
//! ```

use faser_kernels::BlockId;
use faser_kernels::cuda::{Chunk, CudaError, DraftState, DraftStepArgs, Ptr, Sample, Sampler, Tile};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::CANDIDATES;

use super::buffers::StepBuffers;
use super::pass::Work;
use super::staged::{RowArrays, Staged, Steps, Tail};
use super::{Beside, CudaPasses, CudaSizes, DrawInput, Drawn};

/// A chunk of a draft plan.
#[derive(Clone, Copy, Debug)]
pub struct DraftChunkInput<'a> {
    /// Where its proposals begin, how many they may be, and its stop rule.
    pub state: DraftState,
    /// Its block table.
    pub table: &'a [BlockId],
    /// How its tokens are drawn.
    pub sampler: Sampler,
}

/// A draft plan, as far as its steps are concerned.
#[derive(Clone, Copy, Debug)]
pub struct DraftInput<'a> {
    /// All chunks, those without steps too.
    pub chunks: &'a [DraftChunkInput<'a>],
    /// Whether the table of counts of any matters, or its bias.
    pub adjusts: bool,
    /// Whether top-k or top-p of any leaves tokens out.
    pub restricts: bool,
    /// What proposals come with.
    pub beside: Beside,
}

/// Proposals of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct DraftedChunk<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// The confidence in each.
    pub confidence: &'a [f32],
    /// [`TOP_TOKENS`] for each; none if they were not asked for.
    pub alternatives: &'a [u32],
    /// [`CANDIDATES`] for each, [`NOTHING`](faser_kernels::cuda::NOTHING) where no more is left; none if they were not asked for.
    pub candidates: &'a [u32],
}

const STEPS: usize = DraftStepArgs::STEPS;

impl CudaPasses {
    /// Begins a draft plan: sends what its steps need beside what is drawn. Passes that draw for it follow, each with [`CudaPasses::record`].
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If the lane does not draft, or the plan exceeds the sizes.
    pub fn begin_draft(&mut self, draft: &DraftInput<'_>) -> Result<(), CudaError> {
        self.wait(&mut |_| {})?;
        let (sizes, config) = (self.sizes, &self.model.own);
        let count = draft.chunks.len();
        let most = sizes.max_chunks.min(sizes.max_rows).min(sizes.max_logit_rows);
        assert!(count > 0 && count <= most, "a draft plan of {count} chunks");
        let within = |chunk: &DraftChunkInput<'_>| chunk.state.steps as usize <= STEPS;
        assert!(draft.chunks.iter().all(within), "more than {STEPS} steps");
        let places = CudaSizes::bucket(count);
        let group = (config.heads / config.kv_heads) as u32;
        let sees = draft.chunks.iter().map(|chunk| (group, chunk.state.base + chunk.state.steps));
        let plan = sizes.plan_attention(&self.model, sees, places);
        let queries = sizes.tile_queries(&self.model, std::iter::repeat_n(group, places), plan);
        let tiles_each = group.div_ceil(queries);
        let tables: Vec<&[BlockId]> = draft.chunks.iter().map(|chunk| chunk.table).collect();
        let (stride, blocks) = sizes.block_tables(&tables);
        let states: Vec<DraftState> = draft.chunks.iter().map(|chunk| chunk.state).collect();
        let samplers: Vec<Sampler> = draft.chunks.iter().map(|chunk| chunk.sampler).collect();

        let buffers = steps_of(&mut self.steps);
        buffers.cancelled.clear();
        buffers.going.clear();
        let arena = &mut buffers.outcome;
        arena.clear();
        let (proposals, proposals_at) = arena.reserve::<u32>(places * STEPS);
        let (confidences, confidences_at) = arena.reserve::<f32>(places * STEPS);
        let (counts_of, counts_at) = arena.reserve::<u32>(places);
        let (top, top_at) =
            arena.reserve::<u32>(if draft.beside.alternatives { places * STEPS * TOP_TOKENS } else { 0 });
        let (next, next_at) =
            arena.reserve::<u32>(if draft.beside.candidates { places * STEPS * CANDIDATES } else { 0 });

        let arena = &mut buffers.input;
        arena.clear();
        let counts = arena.put(&[0u32; 3]);
        let positions = arena.put_padded::<u32>(&[], places);
        let rows = RowArrays {
            counts,
            positions,
            sees: positions,
            chunk_of: arena.put_padded::<u32>(&[], places),
            chunks: arena.put_padded::<Chunk>(&[], places),
            tables: arena.put_padded(&blocks, places * stride),
            table_stride: stride as u32,
            tiles: arena.put_padded::<Tile>(&[], places * tiles_each as usize),
            tile_queries: queries,
            split: plan.split,
            splits: plan.splits,
            // These two are of each step.
            bucket: 0,
            tile_count: 0,
            of_blocks: None,
        };
        let tail = Tail {
            samples: 0,
            sample_rows: arena.put_padded::<Sample>(&[], places),
            samplers: arena.put_padded(&samplers, places),
            proposals,
            proposal_stride: STEPS as u32,
            adjusts: draft.adjusts,
            restricts: draft.restricts,
            // Drafts have all logits anyway.
            cuts: false,
        };
        let small = places <= CudaSizes::GRAPH_ROWS;
        buffers.staged = Steps {
            pass: Staged { rows, tail, small, ..Staged::default() },
            row_tokens: arena.put_padded::<u32>(&[], places),
            states: arena.put_padded(&states, places),
            step: arena.put(&[0u32]),
            chunk_count: count,
            tiles_each,
            beside: draft.beside,
            proposals: Some(proposals_at),
            confidences: Some(confidences_at),
            top: draft.beside.alternatives.then_some(top_at),
            candidates: draft.beside.candidates.then_some(next_at),
            counts: Some(counts_at),
            outcome: [proposals, confidences, top, next, counts_of],
        };
        self.lane.send(&mut buffers.input)?;
        self.lane.clear(counts_of, places * size_of::<u32>())
    }

    /// Makes what the pass under way has drawn proposals of the plan's chunks. After the `last` pass the first step is written.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(&mut self, drawn: Option<&Drawn>, last: bool) -> Result<(), CudaError> {
        let (samples, count, of_plan) =
            (self.pass.tail.sample_rows, self.pass.sample_count(), self.pass.of_plan);
        self.record_from(drawn, (samples, count, of_plan), last)
    }

    /// Asks for the next step. At most `rows` chunks go on.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn step(&mut self, rows: usize) -> Result<(), CudaError> {
        let steps = steps_of(&mut self.steps).staged;
        let bucket = CudaSizes::bucket(rows).min(CudaSizes::bucket(steps.chunk_count));
        self.pass = steps.pass;
        self.pass.rows.bucket = bucket;
        self.pass.rows.tile_count = bucket * steps.tiles_each as usize;
        self.pass.tail.samples = bucket.min(self.sizes.logit_rows());
        // Of earlier draws on this lane nothing is left to be read.
        self.output.clear();
        let work = Work::Step { tail: self.pass.tail, beside: steps.beside };
        self.captured(work, |passes| {
            passes.embed(steps.row_tokens)?;
            passes.begin_with_passed_on(passes.pass.rows.chunk_of)?;
            passes.run_layers(0..passes.model.config.layers.len())?;
            passes.finish()?;
            let drawn = passes.draw(&DrawInput { beside: steps.beside, ..DrawInput::default() })?;
            let (samples, count) = (passes.pass.tail.sample_rows, passes.pass.sample_count());
            passes.record_from(Some(&drawn), (samples, count, Ptr::NULL), true)
        })
    }

    fn record_from(
        &mut self,
        drawn: Option<&Drawn>,
        (samples, sample_count, of_plan): (Ptr, Ptr, Ptr),
        last: bool,
    ) -> Result<(), CudaError> {
        let buffers = steps_of(&mut self.steps);
        let steps = buffers.staged;
        let places = CudaSizes::bucket(steps.chunk_count);
        let cancelled = match &self.group {
            None => buffers.cancelled.ptr(),
            Some(group) => group.flags_of_first(&mut self.lane, &buffers.cancelled, places)?,
        };
        let [proposals, confidences, alternatives, candidates, proposal_counts] = steps.outcome;
        let rows = steps.pass.rows;
        let args = DraftStepArgs {
            samples,
            tokens: drawn.map_or(Ptr::NULL, |drawn| drawn.on_device),
            confidence: drawn.map_or(Ptr::NULL, |drawn| drawn.confidence_at),
            top: drawn.filter(|_| steps.beside.alternatives).map_or(Ptr::NULL, |drawn| drawn.top_at),
            next: drawn.filter(|_| steps.beside.candidates).map_or(Ptr::NULL, |drawn| drawn.candidates_at),
            sample_count,
            of_plan,
            states: steps.states,
            cancelled,
            proposals,
            confidences,
            alternatives,
            candidates,
            proposal_counts,
            chunks: if last { rows.chunks } else { Ptr::NULL },
            row_tokens: steps.row_tokens,
            positions: rows.positions,
            chunk_of: rows.chunk_of,
            next_samples: steps.pass.tail.sample_rows,
            tiles: rows.tiles,
            counts: rows.counts,
            step: steps.step,
            going: buffers.going.ptr(),
            // Places without a chunk have no steps.
            chunk_count: places as u32,
            tiles_each: steps.tiles_each,
            tile_queries: rows.tile_queries,
        };
        self.lane.launch(&args.launch())
    }

    /// How many chunks go on behind a step, once the device has told; that of the rows to catch up with is step 0. Ranks of a group hear of it at
    /// different times: what they queue may depend on [`CudaPasses::wait_for_step`] alone.
    pub fn going(&self, step: usize) -> Option<usize> {
        let told = self.steps.as_ref().map_or(0, |buffers| buffers.going.get(step));
        told.checked_sub(1).map(|rows| rows as usize)
    }

    /// How many chunks go on behind a step that was asked for: waits for it alone; `meanwhile` is called again and again.
    ///
    /// # Errors
    /// Something that was asked for failed: the device is lost.
    ///
    /// # Panics
    /// If that step was never asked for.
    pub fn wait_for_step(
        &mut self,
        step: usize,
        meanwhile: &mut dyn FnMut(&CudaPasses),
    ) -> Result<usize, CudaError> {
        loop {
            let done = self.lane.look()?;
            if let Some(going) = self.going(step) {
                return Ok(going);
            }
            assert!(!done, "step {step} has not run");
            meanwhile(self);
        }
    }

    /// Nobody wants more proposals of this chunk of the plan.
    pub fn stop_drafting(&self, chunk: usize) {
        if let Some(buffers) = &self.steps {
            buffers.cancelled.set(chunk);
        }
    }

    /// Asks for what the plan's steps bring; it is there when the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fetch_draft(&mut self) -> Result<(), CudaError> {
        self.lane.fetch(&mut steps_of(&mut self.steps).outcome)
    }

    /// The proposals of a chunk, when they were fetched and waited for.
    pub fn drafted(&self, chunk: usize) -> DraftedChunk<'_> {
        let none = DraftedChunk { tokens: &[], confidence: &[], alternatives: &[], candidates: &[] };
        let Some(buffers) = &self.steps else { return none };
        let Steps {
            proposals: Some(tokens),
            confidences: Some(confidence),
            counts: Some(counts),
            top,
            candidates,
            ..
        } = buffers.staged
        else {
            return none;
        };
        let count = buffers.outcome.get::<u32>(counts)[chunk] as usize;
        let (first, outcome) = (chunk * STEPS, &buffers.outcome);
        DraftedChunk {
            tokens: &outcome.get::<u32>(tokens)[first..][..count],
            confidence: &outcome.get::<f32>(confidence)[first..][..count],
            alternatives: top
                .map_or(&[], |top| &outcome.get::<u32>(top)[first * TOP_TOKENS..][..count * TOP_TOKENS]),
            candidates: candidates
                .map_or(&[], |next| &outcome.get::<u32>(next)[first * CANDIDATES..][..count * CANDIDATES]),
        }
    }
}

fn steps_of(steps: &mut Option<StepBuffers>) -> &mut StepBuffers {
    steps.as_mut().unwrap_or_else(|| panic!("a lane that does not draft"))
}
