//! Lanes to be timed: runners on threads of their own, as a service has them, and plans of any size for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use faser_actors::{
    CudaBackend, CudaLaneSpec, DraftRunner, DraftWork, LaneRequest, MASK_PATIENCE, Sampling, ServiceError,
    VerifyRunner, VerifyWork,
};
use faser_engine::{
    Admission, BlockId, DraftChunk, DraftPlan, PartitionId, SeqId, StopRule, VerifyChunk, VerifyPlan,
};
use faser_kernels::cuda::{Element, KvElement, SharePair};
use faser_models::cuda::{CudaModel, CudaSizes};
use faser_models::{Architecture, LayerSpec, ModelConfig, RopeConfig};

const BLOCK: usize = faser_kernels::cuda::BLOCK_SIZE;
/// Readings, of which the median counts; before them the plan is carried out a few times, so that all that is chosen or captured is there.
const READINGS: usize = 15;
const WARMING: usize = 4;

/// A model to be timed: the shape of one with 7 billion weights, and of its draft with half a billion. On a GPU that is none, small ones.
pub(super) fn shape(draft: bool, small: bool, max_context: usize) -> ModelConfig {
    let (hidden, layers, heads, kv_heads, head_dim, intermediate, vocab) = match (draft, small) {
        (_, true) => (64, 2, 2, 1, 32, 32, 256),
        (false, _) => (3584, 28, 28, 4, 128, 18_944, 152_064),
        (true, _) => (896, 24, 14, 2, 64, 4864, 152_064),
    };
    let mut layer = LayerSpec::llama(head_dim, RopeConfig::plain(1e6));
    layer.attention.qkv_bias = true;
    ModelConfig {
        architecture: Architecture::Qwen2,
        hidden,
        layers: vec![layer; layers],
        heads,
        kv_heads,
        head_dim,
        intermediate,
        vocab,
        stored_vocab: vocab,
        max_context,
        rms_eps: 1e-6,
        tie_embeddings: draft,
        embedding_scale: 1.0,
        norm_offset: 0.0,
        residual_multiplier: 1.0,
        logit_scale: 1.0,
        logit_soft_cap: None,
        bos: None,
        eos: Vec::new(),
        mask_token: None,
        head: None,
        quantised: None,
        in_blocks: false,
        notes: Vec::new(),
    }
}

/// The element of those models.
pub(super) const ELEMENT: Element = Element::Bf16;

/// Sequences of one length, with the same number of rows each at their end.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many.
    pub sequences: usize,
    /// Of a verify pass: the anchor and its proposals.
    pub rows: usize,
    /// Tokens of each.
    pub context: usize,
}

impl Load {
    /// Bytes of keys and values that a pass reads.
    pub fn kv_bytes(&self, config: &ModelConfig, kv: KvElement) -> f64 {
        (self.sequences * self.context) as f64 * config.kv_bytes_per_token(kv.dtype()) as f64
    }

    fn blocks_each(&self) -> usize {
        // Proposals stand behind the context.
        (self.context + self.rows).div_ceil(BLOCK) + 1
    }

    /// What a lane must have for it.
    pub fn sizes(&self) -> CudaSizes {
        let rows = self.sequences * self.rows;
        CudaSizes {
            blocks: self.sequences * self.blocks_each(),
            max_rows: rows,
            max_logit_rows: rows,
            max_chunks: self.sequences,
            max_sequences: self.sequences,
            max_context: self.blocks_each() * BLOCK,
            max_prune_checkpoints: 1,
            deterministic: false,
        }
    }

    fn table(&self, sequence: usize) -> std::ops::Range<BlockId> {
        let first = sequence * self.blocks_each();
        first as BlockId..(first + self.blocks_each()) as BlockId
    }

    fn admit(&self) -> Vec<Admission> {
        let tokens: Arc<[u32]> = vec![1; self.context].into();
        let one = |seq| Admission { seq: SeqId(seq), prompt_len: 1, tokens: tokens.clone() };
        (0..self.sequences as u64).map(one).collect()
    }

    /// The verify pass of it; the first one admits the sequences.
    pub fn verify(&self, step: u64, partition: usize) -> VerifyWork {
        let mut plan = VerifyPlan { step, partition: PartitionId(partition), ..VerifyPlan::default() };
        if step == 0 {
            plan.admit = self.admit();
        }
        for sequence in 0..self.sequences {
            let (rows, table) = (plan.tokens.len(), plan.blocks.len());
            // Other tokens in every row: rows that are alike go to the same experts.
            plan.tokens.extend((0..self.rows).map(|row| 1 + (rows + row) as u32));
            plan.blocks.extend(self.table(sequence));
            plan.chunks.push(VerifyChunk {
                seq: SeqId(sequence as u64),
                start: self.context - 1,
                rows: rows..plan.tokens.len(),
                proposals: self.rows - 1,
                sample: true,
                table: table..plan.blocks.len(),
                ..VerifyChunk::default()
            });
        }
        VerifyWork { requests: greedy(plan.admit.len()), plan }
    }

    /// The last rows of prompts, of which the last one gets a token; the first pass admits the sequences.
    pub fn prefill(&self, step: u64, partition: usize) -> VerifyWork {
        let mut work = self.verify(step, partition);
        for chunk in &mut work.plan.chunks {
            (chunk.start, chunk.proposals) = (self.context - self.rows, 0);
        }
        work
    }

    /// A draft plan of so many steps; the first one admits the sequences.
    pub fn draft(&self, step: u64, partition: usize, steps: usize) -> DraftWork {
        let mut plan = DraftPlan { step, partition: PartitionId(partition), ..DraftPlan::default() };
        if step == 0 {
            plan.admit = self.admit();
        }
        for sequence in 0..self.sequences {
            let (rows, table) = (plan.tokens.len(), plan.blocks.len());
            plan.tokens.push(1);
            plan.blocks.extend(self.table(sequence));
            plan.chunks.push(DraftChunk {
                seq: SeqId(sequence as u64),
                epoch: 0,
                start: self.context - 1,
                rows: rows..rows + 1,
                steps,
                stop: StopRule { survival: 1.0, ..StopRule::default() },
                features: 0..0,
                rank: 0,
                outcome: false,
                table: table..plan.blocks.len(),
            });
        }
        DraftWork { requests: greedy(plan.admit.len()), plan }
    }
}

fn greedy(sequences: usize) -> Vec<Arc<LaneRequest>> {
    let all = Arc::new(LaneRequest::from(Sampling { temperature: 0.0, ..Sampling::default() }));
    (0..sequences).map(|_| all.clone()).collect()
}

/// A lane on a thread of its own; plans go in one by one. It has ended, and its memory is free, when this is dropped.
pub(super) struct Worker<W> {
    /// Until then.
    work: Option<Sender<W>>,
    done: Receiver<Result<(), ServiceError>>,
    thread: Option<JoinHandle<()>>,
}

impl<W> Drop for Worker<W> {
    fn drop(&mut self) {
        drop(self.work.take());
        // A panic of it was told by `wait`.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<W: Send + 'static> Worker<W> {
    /// `build` runs on the lane's thread.
    fn new<R: FnMut(W)>(
        build: impl FnOnce() -> Result<R, ServiceError> + Send + 'static,
    ) -> Result<Worker<W>, ServiceError> {
        let (work, plans) = channel::<W>();
        let (told, done) = channel();
        let lane = move || match build() {
            Err(error) => drop(told.send(Err(error))),
            Ok(mut run) => {
                let mut well = told.send(Ok(()));
                while let (Ok(()), Ok(plan)) = (&well, plans.recv()) {
                    run(plan);
                    well = told.send(Ok(()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("faser-check".to_owned()).spawn(lane);
        let thread = thread.map_err(|source| ServiceError::Thread { name: "a checked lane", source })?;
        let worker = Worker { work: Some(work), done, thread: Some(thread) };
        worker.wait()?;
        Ok(worker)
    }

    /// Hands a plan over.
    pub(super) fn begin(&self, work: W) {
        // A lane that has gone says so when it is waited for.
        let _ = self.work.as_ref().map(|lane| lane.send(work));
    }

    /// Waits for the plan that was handed over.
    pub(super) fn wait(&self) -> Result<(), ServiceError> {
        let lost = ServiceError::Lane { lane: "checked", reason: "it panicked; see above".to_owned() };
        self.done.recv().unwrap_or(Err(lost))
    }
}

/// The lane that verifies, on its shares of all partitions.
pub(super) fn verify_lane(
    model: &Arc<CudaModel>,
    shares: &[SharePair],
    sizes: CudaSizes,
) -> Result<Worker<VerifyWork>, ServiceError> {
    let model = model.clone();
    let shares = shares.iter().map(|pair| pair.verify.clone()).collect();
    let spec = CudaLaneSpec { shares, sizes, drafts: false, features: None };
    Worker::new(move || {
        let mut runner = VerifyRunner::new(CudaBackend::new(model, &spec)?, MASK_PATIENCE);
        Ok(move |work| drop(runner.run(work)))
    })
}

/// The lane that drafts.
pub(super) fn draft_lane(
    model: &Arc<CudaModel>,
    shares: &[SharePair],
    sizes: CudaSizes,
) -> Result<Worker<DraftWork>, ServiceError> {
    let model = model.clone();
    let shares = shares.iter().map(|pair| pair.draft.clone()).collect();
    let spec = CudaLaneSpec { shares, sizes, drafts: true, features: None };
    Worker::new(move || {
        let mut runner = DraftRunner::new(CudaBackend::new(model, &spec)?, MASK_PATIENCE);
        Ok(move |work| drop(runner.run(work)))
    })
}

/// Median seconds of what `once` does, by the host's clock; once alone if `small`.
pub(super) fn median_seconds(
    small: bool,
    mut once: impl FnMut() -> Result<(), ServiceError>,
) -> Result<f64, ServiceError> {
    for _ in 0..if small { 0 } else { WARMING } {
        once()?;
    }
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..if small { 1 } else { READINGS } {
        let started = Instant::now();
        once()?;
        readings.push(started.elapsed().as_secs_f64());
    }
    readings.sort_by(f64::total_cmp);
    Ok(readings[readings.len() / 2])
}
