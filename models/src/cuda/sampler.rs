//! The end of a pass: tokens drawn, proposals judged, what comes back; and the tables that penalties read.

use std::sync::Arc;

use faser_kernels::cuda::{
    AcceptArgs, AdjustArgs, ConfidenceArgs, CountArgs, CudaError, DeviceBuffer, DrawArgs, Gpu, LogitStats,
    LogitStatsArgs, NucleusArgs, PickArgs, Place, Ptr, TopTokensArgs, Verdict,
};
use faser_kernels::ops::TOP_TOKENS;

use super::{CudaPasses, CudaSizes, Gate};
use crate::ModelConfig;

/// Buffers of the sampler.
pub(super) struct SamplerBuffers {
    /// Of the plain logits, and of those with penalties.
    stats: [DeviceBuffer; 2],
    least: DeviceBuffer,
    best: DeviceBuffer,
    /// Logits with penalties, where the plain ones are needed too.
    adjusted: Option<DeviceBuffer>,
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
            adjusted: drafts.then(|| buffer(logits_bytes)).transpose()?,
        })
    }
}

/// What was drawn, to be read when the pass was fetched and waited for.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    on_device: Ptr,
    tokens: Place,
    confidence: Option<Place>,
    top: Option<Place>,
}

/// What happens to a sequence's table of counts before the next pass. The table is one u32 for each token of the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct HistoryChange<'a> {
    /// The table.
    pub table: Ptr,
    /// Whether it is emptied first.
    pub clear: bool,
    /// Tokens of the output that were counted and have been taken back.
    pub removed: &'a [u32],
    /// Tokens that follow what is counted.
    pub added: &'a [u32],
    /// Position of the first of them.
    pub position: usize,
    /// Tokens before this position are the prompt's.
    pub prompt_len: usize,
}

impl CudaPasses {
    /// Draws a token for each sample of the pass that was finished. On a draft lane also the confidence in each, and if asked the
    /// likeliest tokens.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn draw(&mut self, rivals: bool) -> Result<Drawn, CudaError> {
        let (pass, sms) = (self.pass, self.lane.sms());
        let drafts = self.sampling.adjusted.is_some();
        let (on_device, tokens) = self.output.reserve::<u32>(pass.samples);
        let confidence = drafts.then(|| self.output.reserve::<f32>(pass.samples));
        let top = rivals.then(|| self.output.reserve::<u32>(pass.samples * TOP_TOKENS));
        let place = |reserved: Option<(Ptr, Place)>| reserved.map(|(_, place)| place);
        let drawn = Drawn { on_device, tokens, confidence: place(confidence), top: place(top) };
        if pass.samples == 0 {
            return Ok(drawn);
        }
        let vocabulary = self.model.config.vocab as u32;
        let parts = LogitStatsArgs::parts(vocabulary);
        let (most, count) = (CudaSizes::bucket(pass.samples) as u32, pass.sample_count());
        let plain = self.logits.ptr();
        let mut logits = plain;
        let [plain_stats, adjusted_stats] = self.sampling.stats.each_ref().map(DeviceBuffer::ptr);
        let mut stats = plain_stats;
        if drafts || !pass.adjusts {
            let args = LogitStatsArgs { logits, stats, rows: count, vocabulary };
            self.lane.launch(&args.launch(most))?;
        }
        if pass.adjusts {
            if let Some(adjusted) = &self.sampling.adjusted {
                logits = adjusted.ptr();
                let bytes = pass.samples * vocabulary as usize * size_of::<f32>();
                self.lane.copy(plain, logits, bytes)?;
            }
            let args = AdjustArgs {
                logits,
                samples: pass.sample_rows,
                samplers: pass.samplers,
                proposals: pass.proposals,
                count,
                vocabulary,
                proposal_stride: pass.proposal_stride as u32,
            };
            self.lane.launch(&args.launch(most, sms))?;
            stats = adjusted_stats;
            let args = LogitStatsArgs { logits, stats, rows: count, vocabulary };
            self.lane.launch(&args.launch(most))?;
        }
        let (samples, samplers) = (pass.sample_rows, pass.samplers);
        let mut least = Ptr::NULL;
        if pass.restricts {
            least = self.sampling.least.ptr();
            let args = NucleusArgs { logits, stats, samples, samplers, least, count, vocabulary, parts };
            self.lane.launch(&args.launch(most, sms))?;
        }
        let best = self.sampling.best.ptr();
        let args = DrawArgs { logits, stats, least, samples, samplers, best, count, vocabulary, parts };
        self.lane.launch(&args.launch(most))?;
        self.lane.launch(&PickArgs { best, tokens: on_device, count, parts }.launch(most, sms))?;
        if let Some((out, _)) = confidence {
            let (logits, stats, tokens) = (plain, plain_stats, on_device);
            let args = ConfidenceArgs { logits, stats, tokens, out, rows: count, vocabulary, parts };
            self.lane.launch(&args.launch(most, sms))?;
        }
        if let Some((out, _)) = top {
            let args = TopTokensArgs { logits: plain, out, rows: count, vocabulary };
            self.lane.launch(&args.launch(most, sms))?;
        }
        Ok(drawn)
    }

    /// Compares what was drawn with the chunks' proposals: a [`Verdict`] of each chunk.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn judge(&mut self, drawn: &Drawn) -> Result<Place, CudaError> {
        let pass = self.pass;
        let (verdicts, place) = self.output.reserve::<Verdict>(pass.chunk_count);
        let args = AcceptArgs {
            chunks: pass.chunks,
            tokens: drawn.on_device,
            proposals: pass.proposals,
            proposal_counts: pass.proposal_counts,
            verdicts,
            chunk_count: pass.chunk_count as u32,
            proposal_stride: pass.proposal_stride as u32,
        };
        self.lane.launch(&args.launch())?;
        Ok(place)
    }

    /// Asks for what the pass brings; it is there when the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fetch(&mut self) -> Result<(), CudaError> {
        self.lane.fetch(&mut self.output)
    }

    /// The tokens, in the order of the samples.
    pub fn tokens(&self, drawn: &Drawn) -> &[u32] {
        self.output.get(drawn.tokens)
    }

    /// The draft's confidence in each.
    pub fn confidence(&self, drawn: &Drawn) -> &[f32] {
        drawn.confidence.map_or(&[], |place| self.output.get(place))
    }

    /// The likeliest tokens in each place, [`TOP_TOKENS`] for a sample; none if they were not asked for.
    pub fn top(&self, drawn: &Drawn) -> &[u32] {
        drawn.top.map_or(&[], |place| self.output.get(place))
    }

    /// The verdicts, in the order of the chunks.
    pub fn verdicts(&self, place: Place) -> &[Verdict] {
        self.output.get(place)
    }

    /// The gaps of a gate, in the order of the tests.
    pub fn gaps(&self, gate: Gate) -> &[f32] {
        self.output.get(gate.0)
    }

    /// The first `rows` rows of logits, after a pass, copied to the host: for tests and tools.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn read_logits(&mut self, rows: usize) -> Result<Vec<f32>, CudaError> {
        let len = rows * self.model.config.vocab;
        let mut arena = faser_kernels::cuda::Arena::new(&self.model.gpu, len * size_of::<f32>(), "logits")?;
        let (to, place) = arena.reserve::<f32>(len);
        self.lane.copy(self.logits.ptr(), to, len * size_of::<f32>())?;
        self.lane.fetch(&mut arena)?;
        self.lane.wait(&mut || {})?;
        Ok(arena.get(place).to_vec())
    }

    /// A table of counts, of zeros.
    ///
    /// # Errors
    /// There is no memory.
    pub fn count_table(&self) -> Result<DeviceBuffer, CudaError> {
        DeviceBuffer::zeroed(
            &self.model.gpu,
            self.model.config.vocab * size_of::<u32>(),
            "counts for penalties",
        )
    }

    /// A bias on the device: tokens, and at half of the buffer what is added to each.
    ///
    /// # Errors
    /// There is no memory.
    pub fn bias(&mut self, bias: &[(u32, f32)]) -> Result<DeviceBuffer, CudaError> {
        let mut upload = faser_kernels::cuda::Upload::new(&self.model.gpu)?;
        let half = bias.len().next_multiple_of(4);
        let buffer = DeviceBuffer::zeroed(&self.model.gpu, 2 * half * size_of::<u32>(), "a logit bias")?;
        upload.values::<u32>(&buffer, 0, 2 * half, |_, to| {
            to.fill(0);
            for (i, (token, bias)) in bias.iter().enumerate() {
                (to[i], to[half + i]) = (*token, bias.to_bits());
            }
        })?;
        upload.finish()?;
        Ok(buffer)
    }

    /// Brings tables of counts up to date, before the pass that reads them.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If a change is longer than a sequence.
    pub fn count(&mut self, changes: &[HistoryChange<'_>]) -> Result<(), CudaError> {
        let (sms, vocabulary) = (self.lane.sms(), self.model.config.vocab as u32);
        for change in changes {
            // The arena is for one at a time.
            self.lane.wait(&mut || {})?;
            self.history.clear();
            let [removed, added] = [change.removed, change.added].map(|tokens| self.history.put(tokens));
            self.lane.send(&mut self.history)?;
            if change.clear {
                self.lane.clear(change.table, vocabulary as usize * size_of::<u32>())?;
            }
            let args = CountArgs {
                tokens: removed,
                counts: change.table,
                len: change.removed.len() as u32,
                first_position: change.prompt_len as u32,
                prompt_len: change.prompt_len as u32,
                vocabulary,
                remove: 1,
            };
            if !change.removed.is_empty() {
                self.lane.launch(&args.launch(sms))?;
            }
            let args = CountArgs {
                tokens: added,
                len: change.added.len() as u32,
                first_position: change.position as u32,
                remove: 0,
                ..args
            };
            if !change.added.is_empty() {
                self.lane.launch(&args.launch(sms))?;
            }
        }
        Ok(())
    }
}
