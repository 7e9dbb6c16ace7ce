//! The end of a pass: tokens drawn, what comes back.

use faser_kernels::cuda::{
    AdjustArgs, Arena, CandidatesArgs, Chunk, ConfidenceArgs, CudaError, DeviceBuffer, DrawArgs,
    LogitStatsArgs, LogprobFound, LogprobsArgs, NOTHING, NucleusArgs, Place, Ptr, Sample, TopTokensArgs,
};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::CANDIDATES;

use super::along::Samples;
use super::buffers::mask_words;
use super::staged::Beside;
use super::{CudaPasses, PruneCheckpoint};

/// What was drawn, to be read when the pass was fetched and waited for.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    pub(super) on_device: Ptr,
    pub(super) confidence_at: Ptr,
    pub(super) top_at: Ptr,
    pub(super) candidates_at: Ptr,
    samples: usize,
    tokens: Place,
    confidence: Option<Place>,
    top: Option<Place>,
    candidates: Option<Place>,
    logprobs: Option<(Ptr, Place)>,
    left: Option<Place>,
}

/// How tokens are drawn, beside what samplers say.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrawInput<'a> {
    /// What else is wanted of each place.
    pub beside: Beside,
    /// Masks of tokens that may be drawn, a bit each, of the whole vocabulary: those of a chunk's samples one after the other.
    pub masks: &'a [u32],
    /// Which of them is that of a chunk's sample with no proposal before it (others count from there); [`NOTHING`] if the chunk has none. Nothing at
    /// all if no chunk has.
    pub mask_of: &'a [u32],
}

impl CudaPasses {
    /// Draws a token for each sample of the pass that was finished. On a draft lane also the confidence in each, and if asked the
    /// likeliest tokens; log-probabilities, where the pass wants them. Of a split model every rank draws the same: from the best of each rank's own tokens, or from all logits, which are
    /// gathered where top-k, top-p or min-p of any chunk, a confidence, or a log-probability looks at all tokens.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If there are more masks than rows get tokens.
    pub fn draw(&mut self, how: &DrawInput<'_>) -> Result<Drawn, CudaError> {
        let Beside { alternatives, candidates } = how.beside;
        let pass = self.pass;
        let (drafts, wants_logprobs) = (self.sampling.confidence, pass.wishes != Ptr::NULL);
        let most = pass.tail.samples;
        let (on_device, tokens) = self.output.reserve::<u32>(most);
        let confidence = drafts.then(|| self.output.reserve::<f32>(most));
        let top = alternatives.then(|| self.output.reserve::<u32>(most * TOP_TOKENS));
        let candidates = candidates.then(|| self.output.reserve::<u32>(most * CANDIDATES));
        let logprobs = wants_logprobs.then(|| self.output.reserve::<LogprobFound>(most));
        let left = pass.compacted.then(|| self.output.reserve::<Chunk>(pass.chunk_count));
        if let Some((to, _)) = left {
            self.lane.copy(pass.rows.chunks, to, pass.chunk_count * size_of::<Chunk>())?;
        }
        let ptr = |reserved: Option<(Ptr, Place)>| reserved.map_or(Ptr::NULL, |(ptr, _)| ptr);
        let place = |reserved: Option<(Ptr, Place)>| reserved.map(|(_, place)| place);
        let drawn = Drawn {
            on_device,
            confidence_at: ptr(confidence),
            top_at: ptr(top),
            candidates_at: ptr(candidates),
            samples: pass.samples.min(most),
            tokens,
            confidence: place(confidence),
            top: place(top),
            candidates: place(candidates),
            logprobs,
            left: left.map(|(_, place)| place),
        };
        if most == 0 {
            return Ok(drawn);
        }
        let masks = self.masks_for(how)?;
        let steps = self.along.len();
        if steps == 0 {
            self.draw_some(&drawn, masks, Samples { first: 0, most, count: pass.sample_count() })?;
        }
        for step in 0..steps {
            let of_step = self.along.of_step(step);
            let count = pass.of_steps.behind(step * size_of::<u32>());
            let samples = Samples { first: of_step.start, most: of_step.len(), count };
            self.follow(&drawn, step, samples)?;
            self.draw_some(&drawn, masks, samples)?;
            self.say_how_sure(&drawn, samples)?;
        }
        Ok(drawn)
    }

    /// Draws for some samples, one behind the other; those of a block as far as the tokens before them are drawn.
    fn draw_some(
        &mut self,
        drawn: &Drawn,
        masks: Option<(Ptr, Ptr)>,
        Samples { first, most, count }: Samples,
    ) -> Result<(), CudaError> {
        let (pass, sms) = (self.pass, self.lane.sms());
        let (drafts, wants_logprobs) = (drawn.confidence.is_some(), drawn.logprobs.is_some());
        let plain_too = drafts || wants_logprobs;
        let of_first = |array: Ptr, each: usize| array.behind(first * each);
        let tokens = of_first(drawn.on_device, size_of::<u32>());
        let samples = of_first(pass.tail.sample_rows, size_of::<Sample>());
        // Confidence and log-probabilities look at all tokens.
        let found = self.logits_to_draw_from(first + most, plain_too || pass.tail.cuts)?;
        let (vocabulary, first_token) = (found.tokens, found.first);
        let plain = of_first(found.at, vocabulary as usize * size_of::<f32>());
        let parts = LogitStatsArgs::parts(vocabulary);
        let (logits_bytes, most) = (most * vocabulary as usize * size_of::<f32>(), most as u32);
        let mut logits = plain;
        let [plain_stats, adjusted_stats] = self.sampling.stats.each_ref().map(DeviceBuffer::ptr);
        let mut stats = plain_stats;
        let adjusts = pass.tail.adjusts || masks.is_some();
        if plain_too || !adjusts {
            let args = LogitStatsArgs { logits, stats, rows: count, vocabulary, first_token };
            self.lane.launch(&args.launch(most))?;
        }
        if adjusts {
            if plain_too {
                logits = self.sampling.adjusted.ptr();
                self.lane.copy(plain, logits, logits_bytes)?;
            }
            let (masks, mask_of) = masks.unwrap_or((Ptr::NULL, Ptr::NULL));
            let args = AdjustArgs {
                logits,
                samples,
                samplers: pass.tail.samplers,
                proposals: pass.tail.proposals,
                masks,
                mask_of,
                count,
                vocabulary,
                proposal_stride: pass.tail.proposal_stride,
                first: first_token,
                mask_words: mask_words(&self.model.config) as u32,
            };
            self.lane.launch(&args.launch(most, sms))?;
            stats = adjusted_stats;
            let args = LogitStatsArgs { logits, stats, rows: count, vocabulary, first_token };
            self.lane.launch(&args.launch(most))?;
        }
        let samplers = pass.tail.samplers;
        let mut least = Ptr::NULL;
        if pass.tail.restricts {
            least = self.sampling.least.ptr();
            let args = NucleusArgs { logits, stats, samples, samplers, least, count, vocabulary, parts };
            self.lane.launch(&args.launch(most, sms))?;
        }
        let best = self.sampling.best.ptr();
        let args =
            DrawArgs { logits, stats, least, samples, samplers, best, count, vocabulary, parts, first_token };
        self.lane.launch(&args.launch(most))?;
        self.pick(found, (best, parts), tokens, (count, most))?;
        if drafts {
            let (logits, stats, out) = (plain, plain_stats, of_first(drawn.confidence_at, size_of::<f32>()));
            let args = ConfidenceArgs { logits, stats, tokens, out, rows: count, vocabulary, parts };
            self.lane.launch(&args.launch(most, sms))?;
        }
        if drawn.top.is_some() {
            let out = of_first(drawn.top_at, TOP_TOKENS * size_of::<u32>());
            let args = TopTokensArgs { logits: plain, out, rows: count, vocabulary };
            self.lane.launch(&args.launch(most, sms))?;
        }
        if drawn.candidates.is_some() {
            let out = of_first(drawn.candidates_at, CANDIDATES * size_of::<u32>());
            let args = CandidatesArgs {
                logits,
                stats,
                least,
                samples,
                samplers,
                tokens,
                out,
                count,
                vocabulary,
                parts,
            };
            self.lane.launch(&args.launch(most, sms))?;
        }
        if let Some((out, _)) = drawn.logprobs {
            let (logits, stats) = (plain, plain_stats);
            let out = of_first(out, size_of::<LogprobFound>());
            let (wishes, prompt_tokens) = (pass.wishes, pass.prompt_tokens);
            let args = LogprobsArgs {
                logits,
                stats,
                samples,
                tokens,
                wishes,
                prompt_tokens,
                out,
                count,
                vocabulary,
                parts,
            };
            self.lane.launch(&args.launch(most, sms))?;
        }
        Ok(())
    }

    /// Sends masks; where they are then, and which is whose.
    fn masks_for(&mut self, how: &DrawInput<'_>) -> Result<Option<(Ptr, Ptr)>, CudaError> {
        if how.mask_of.iter().all(|first| *first == NOTHING) {
            return Ok(None);
        }
        let masks = (self.masks.put(how.masks), self.masks.put(how.mask_of));
        self.lane.send(&mut self.masks)?;
        Ok(Some(masks))
    }

    /// Asks for what the pass brings; it is there when the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fetch(&mut self) -> Result<(), CudaError> {
        self.lane.fetch(&mut self.output)
    }

    /// Where what was drawn for each sample is among what follows, if that is not the order of the chunks and their rows: where rows of blocks
    /// depend on one another, samples go step by step. Empty otherwise.
    pub fn places_drawn(&self) -> &[u32] {
        self.along.places()
    }

    /// The tokens, in the order of the samples.
    pub fn tokens(&self, drawn: &Drawn) -> &[u32] {
        &self.output.get(drawn.tokens)[..drawn.samples]
    }

    /// The draft's confidence in each.
    pub fn confidence(&self, drawn: &Drawn) -> &[f32] {
        drawn.confidence.map_or(&[], |place| &self.output.get(place)[..drawn.samples])
    }

    /// The likeliest tokens in each place, [`TOP_TOKENS`] for a sample; none if they were not asked for.
    pub fn top(&self, drawn: &Drawn) -> &[u32] {
        drawn.top.map_or(&[], |place| &self.output.get(place)[..drawn.samples * TOP_TOKENS])
    }

    /// What would be drawn in each place without that token, [`CANDIDATES`] for a sample, [`NOTHING`] where no more is left; none if they were not asked
    /// for.
    pub fn candidates(&self, drawn: &Drawn) -> &[u32] {
        drawn.candidates.map_or(&[], |place| &self.output.get(place)[..drawn.samples * CANDIDATES])
    }

    /// What is found of log-probabilities, in the order of the samples; of no meaning where none are wanted, nothing if nobody wants any.
    pub fn logprobs(&self, drawn: &Drawn) -> &[LogprobFound] {
        drawn.logprobs.map_or(&[], |(_, place)| &self.output.get(place)[..drawn.samples])
    }

    /// The chunks as they are at the end, if any may have lost rows.
    pub fn left(&self, drawn: &Drawn) -> Option<&[Chunk]> {
        drawn.left.map(|place| self.output.get(place))
    }

    /// The margins of a pruning checkpoint, in the order of the tests.
    pub fn margins(&self, checkpoint: PruneCheckpoint) -> &[f32] {
        self.output.get(checkpoint.0)
    }

    /// The first `rows` rows of logits, after a pass, copied to the host; of a shard those of its tokens: for tests and tools.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn read_logits(&mut self, rows: usize) -> Result<Vec<f32>, CudaError> {
        let len = rows * self.model.own.vocab;
        let mut arena = Arena::new(&self.model.gpu, len * size_of::<f32>(), "logits")?;
        let (to, place) = arena.reserve::<f32>(len);
        self.lane.copy(self.logits.ptr(), to, len * size_of::<f32>())?;
        self.lane.fetch(&mut arena)?;
        self.lane.wait(&mut || {})?;
        Ok(arena.get(place).to_vec())
    }
}
