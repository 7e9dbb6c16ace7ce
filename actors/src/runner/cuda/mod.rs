//! A lane on a GPU. The host queues a pass and reads back a few integers for each row that gets a token; draft steps follow one another on
//! the device. Any error of the device is a panic here: the lane's thread reports it, and the watchdog decides.

mod counts;
mod draft_on_device;

use std::ops::Range;
use std::sync::Arc;

use faser_engine::{Admission, BlockCopy, BlockId, DraftPlan, Drafted, PartitionId, TokenId};
use faser_kernels::SampleRow;
use faser_kernels::cuda::{
    Chunk, CudaError, LogprobWish, NOTHING, NcclRankSlot, PruneTest, Sampler, Share, SmallSums,
};
use faser_kernels::sampling::mask_of;
use faser_models::BlockSpec;
use faser_models::cuda::{
    Beside, CudaFeaturePages, CudaModel, CudaPasses, CudaSizes, DrawInput, Drawn, PassInput, PruneCheckpoint,
};

use super::backend::{Begins, Cancel, Draw, LaneBackend, PassBounds, PassOutputs, PassRows, SCORED};
use super::sequences::Sequences;
use crate::cancellation::Cancelled;
use crate::error::ServiceError;
use crate::submission::LaneRequest;
use counts::CudaSequence;

/// Looks at the device between two questions of who was cancelled, while a pass runs.
const ASK_EVERY: usize = 256;

/// What a lane on a GPU is made for, beside its model.
#[derive(Clone)]
pub struct CudaLaneSpec {
    /// Its share of the SMs on each of the device's partitions, the whole GPU first.
    pub shares: Vec<Arc<Share>>,
    /// The bounds of its passes.
    pub sizes: CudaSizes,
    /// Whether it drafts: then it goes first where SMs are shared, and tells confidences.
    pub drafts: bool,
    /// What a head reads of its target, of a lane that writes or reads it.
    pub features: Option<CudaFeatures>,
}

/// The features of a target's tokens, as a lane of it or of its head has them.
#[derive(Clone)]
pub struct CudaFeatures {
    /// Beside the target's KV.
    pub pages: Arc<CudaFeaturePages>,
    /// The head that the lane writes them for; none where it reads them.
    pub head: Option<Arc<CudaModel>>,
}

/// A model on a GPU.
pub struct CudaBackend {
    passes: CudaPasses,
    vocab: usize,
    drafts: bool,
    /// Of the pass under way, whether each piece wants log-probabilities.
    wants_logprobs: Vec<bool>,
    checkpoints: Vec<PruneCheckpoint>,
    drawn: Option<Drawn>,
}

impl CudaBackend {
    /// A lane with empty KV memory.
    ///
    /// # Errors
    /// The GPU has not enough memory, or no stream.
    pub fn new(model: Arc<CudaModel>, spec: &CudaLaneSpec) -> Result<CudaBackend, ServiceError> {
        let vocab = model.config().vocab;
        let mut passes = CudaPasses::new(model, &spec.shares, spec.drafts, spec.sizes)?;
        match &spec.features {
            Some(CudaFeatures { pages, head: Some(head) }) => passes.attach(head, pages.clone())?,
            Some(CudaFeatures { pages, head: None }) => passes.read_features(pages.clone()),
            None => {}
        }
        let (drafts, wants_logprobs, checkpoints) = (spec.drafts, Vec::new(), Vec::new());
        Ok(CudaBackend { passes, vocab, drafts, wants_logprobs, checkpoints, drawn: None })
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    ///
    /// # Errors
    /// NCCL refuses, or the others do not join too.
    pub fn join(&mut self, slot: &NcclRankSlot) -> Result<SmallSums, ServiceError> {
        Ok(self.passes.join(slot)?)
    }

    /// Sends a pass. On a draft lane what it draws may become proposals of the plan's chunks.
    fn send(
        &mut self,
        rows: &PassRows<'_>,
        sequences: &mut Sequences<CudaSequence>,
    ) -> Result<(), CudaError> {
        let drawing = rows.pieces.iter().filter(|piece| piece.drawn_from < piece.rows);
        sequences.count(&mut self.passes, drawing.map(|piece| piece.seq))?;
        let mut pass = Arrays::default();
        let blocks = self.block().is_some();
        if blocks {
            // They stand first.
            let of_blocks = rows.pieces.iter().take_while(|piece| piece.begins == Begins::Alone);
            pass.of_blocks = of_blocks.map(|piece| piece.rows).sum();
        }
        for (number, piece) in rows.pieces.iter().enumerate() {
            let sequence = sequences.of(piece.seq);
            pass.positions.extend((piece.start..piece.start + piece.rows).map(|position| position as u32));
            pass.chunk_of.extend(std::iter::repeat_n(number as u32, piece.rows));
            let some = piece.logits_from < piece.rows;
            pass.chunks.push(Chunk {
                first: piece.first as u32,
                rows: piece.rows as u32,
                sampled_from: if some { piece.logits_from as u32 } else { NOTHING },
                since: (piece.since + piece.logits_from) as i32 - piece.drawn_from as i32,
            });
            pass.samplers.push(sequence.sampler());
            pass.of_plan.push(piece.chunk as u32);
            match piece.begins {
                // The tables of others behind it are found by their chunks.
                Begins::Alone if blocks => pass.features.push(&[]),
                Begins::Alone => {}
                Begins::Features(table) => {
                    pass.features.push(table);
                    pass.masked.extend((0..piece.rows).map(|offset| u32::from(piece.is_mask(offset))));
                }
                Begins::PassedOn => {
                    pass.passed_on.extend(std::iter::repeat_n(piece.chunk as u32, piece.rows));
                }
            }
            let sampling = &sequence.request.sampling;
            if piece.drawn_from < piece.rows {
                pass.adjusts |= sequence.on_device.adjusts();
                pass.restricts |= sampling.restricts(self.vocab);
                pass.cuts |= sampling.cuts(self.vocab);
            }
            let wish = match &sequence.request.logprobs {
                Some(collector) if some && !self.drafts => {
                    let (prompt_at, start) = (pass.prompt_tokens.len(), piece.start + piece.logits_from + 1);
                    let places = start..start + piece.drawn_from.saturating_sub(piece.logits_from);
                    pass.prompt_tokens.extend(places.map_while(|position| collector.of_prompt(position)));
                    let count = (pass.prompt_tokens.len() - prompt_at) as u32;
                    LogprobWish {
                        top: collector.top() as u32,
                        prompt_at: prompt_at as u32,
                        start: start as u32,
                        count,
                    }
                }
                _ => LogprobWish::NONE,
            };
            pass.wishes.push(wish);
        }
        self.wants_logprobs.clear();
        self.wants_logprobs.extend(pass.wishes.iter().map(|wish| *wish != LogprobWish::NONE));
        let tests = rows.tests.iter().map(|test| {
            let (chunk, offset) = (test.piece as u32, test.offset as u32);
            let position = test.position as u32;
            (
                PruneTest { chunk, offset, position, proposal: test.tokens[SCORED - 1] },
                test.tokens,
                test.max_margin,
            )
        });
        let proposals: Vec<&[u32]> = rows.pieces.iter().map(|piece| piece.proposals).collect();
        self.checkpoints.clear();
        self.passes.stage(&PassInput {
            tokens: &rows.tokens,
            positions: &pass.positions,
            chunk_of: &pass.chunk_of,
            chunks: &pass.chunks,
            tables: &rows.tables,
            samplers: &pass.samplers,
            proposals: &proposals,
            adjusts: pass.adjusts,
            restricts: pass.restricts,
            cuts: pass.cuts,
            of_plan: &pass.of_plan,
            wishes: if self.wants_logprobs.contains(&true) { &pass.wishes } else { &[] },
            prompt_tokens: &pass.prompt_tokens,
            tests: &tests.collect::<Vec<_>>(),
            features: &pass.features,
            of_blocks: pass.of_blocks,
            passed_on: &pass.passed_on,
            masked: if pass.masked.contains(&1) { &pass.masked } else { &[] },
        })
    }

    /// The masks of a pass: of each piece that has any, for all rows that get a token.
    fn masks(
        &self,
        rows: &PassRows<'_>,
        sequences: &Sequences<CudaSequence>,
        how: &Draw<'_>,
    ) -> (Vec<u32>, Vec<u32>) {
        let words = self.vocab.div_ceil(32);
        let (mut masks, mut mask_of_piece) = (Vec::new(), vec![NOTHING; rows.pieces.len()]);
        for (piece, first) in rows.pieces.iter().zip(&mut mask_of_piece) {
            let sequence = sequences.of(piece.seq);
            let before = masks.len();
            let place = |since: usize| before + since * words;
            for offset in piece.drawn_from..piece.rows {
                let since = piece.since(offset);
                let row = SampleRow {
                    row: 0,
                    position: piece.place(offset) as u32,
                    sampling: &sequence.request.sampling,
                    history: &sequence.history,
                    since: &piece.proposals[..since],
                    allowed: how.masks.bits(piece.chunk, since),
                };
                // Most pieces have none, and nothing is written for them. Where one begins within the proposals, masks that nobody reads come first.
                if let Some(mask) = mask_of(&row, self.vocab) {
                    masks.resize(place(since), u32::MAX);
                    masks.extend(mask);
                }
            }
            if masks.len() > before {
                masks.resize(place(piece.since(piece.rows)), u32::MAX);
                *first = (before / words) as u32;
            }
        }
        (masks, mask_of_piece)
    }
}

/// What is staged of a pass, beside what its rows say themselves.
#[derive(Default)]
struct Arrays<'a> {
    positions: Vec<u32>,
    chunk_of: Vec<u32>,
    chunks: Vec<Chunk>,
    samplers: Vec<Sampler>,
    of_plan: Vec<u32>,
    wishes: Vec<LogprobWish>,
    prompt_tokens: Vec<u32>,
    features: Vec<&'a [BlockId]>,
    of_blocks: usize,
    passed_on: Vec<u32>,
    masked: Vec<u32>,
    adjusts: bool,
    restricts: bool,
    cuts: bool,
}

impl LaneBackend for CudaBackend {
    type Sequence = CudaSequence;

    const LOOK_EVERY: usize = 4;
    // Kernels are loaded and products chosen when they are first asked for.
    const FIRST_IS_COLD: bool = true;
    const FILLED_BY: usize = 32;

    fn bounds(&self) -> PassBounds {
        let sizes = self.passes.sizes();
        PassBounds { rows: sizes.max_rows, logit_rows: sizes.max_logit_rows, pieces: sizes.max_chunks }
    }

    fn mask_token(&self) -> Option<TokenId> {
        self.passes.model().config().mask_token
    }

    fn block(&self) -> Option<BlockSpec> {
        self.passes.model().config().block()
    }

    fn layer_count(&self) -> usize {
        self.passes.model().config().layers.len()
    }

    fn rank(&self) -> (usize, usize) {
        self.passes.rank()
    }

    fn work_on(&mut self, partition: PartitionId) {
        self.passes.work_on(partition.0).or_lost();
    }

    fn was_cold(&mut self) -> bool {
        self.passes.was_cold()
    }

    fn agree_on(&mut self, plan: u64) {
        self.passes.agree_on(plan).or_lost();
    }

    fn gather(&mut self, words: &[u32]) -> Vec<u32> {
        self.passes.gather(words).or_lost()
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        copies.iter().for_each(|copy| self.passes.copy_block(copy.from, copy.to).or_lost());
    }

    fn admit(&mut self, admission: &Admission, request: &LaneRequest) -> CudaSequence {
        CudaSequence::new(&mut self.passes, admission, &request.sampling).or_lost()
    }

    fn retire(&mut self, sequence: CudaSequence) {
        sequence.give_back(&mut self.passes);
    }

    fn stage(&mut self, rows: &PassRows<'_>, sequences: &mut Sequences<CudaSequence>) {
        self.send(rows, sequences).or_lost();
    }

    fn layers(&mut self, _rows: &PassRows<'_>, layers: Range<usize>) {
        self.passes.layers(layers).or_lost();
    }

    fn cancel(&mut self, piece: usize) {
        self.passes.cancel(piece);
    }

    fn test(&mut self, _rows: &PassRows<'_>, _sequences: &Sequences<CudaSequence>) {
        let checkpoint = self.passes.test_proposals().or_lost();
        self.checkpoints.push(checkpoint);
    }

    fn compact(&mut self, _rows: &PassRows<'_>) {
        self.passes.compact().or_lost();
    }

    fn finish(&mut self) {
        self.passes.finish().or_lost();
    }

    fn draw(&mut self, rows: &PassRows<'_>, sequences: &Sequences<CudaSequence>, how: &Draw<'_>) {
        let (masks, mask_of) = self.masks(rows, sequences, how);
        let beside = Beside { alternatives: how.alternatives, candidates: how.candidates };
        let input = DrawInput { beside, masks: &masks, mask_of: &mask_of };
        self.drawn = Some(self.passes.draw(&input).or_lost());
        self.passes.fetch().or_lost();
    }

    fn collect(
        &mut self,
        rows: &PassRows<'_>,
        outputs: &mut PassOutputs,
        meanwhile: &mut dyn FnMut(Cancel<'_>),
    ) {
        let mut looks = 0usize;
        let waited = self.passes.wait(&mut |flags| {
            looks += 1;
            if looks.is_multiple_of(ASK_EVERY) {
                meanwhile(&mut |piece| flags.set(piece));
            }
        });
        waited.or_lost();
        outputs.begin(rows);
        for checkpoint in &self.checkpoints {
            outputs.margins.extend(self.passes.margins(*checkpoint));
        }
        let Some(drawn) = self.drawn.take() else { return };
        if let Some(chunks) = self.passes.left(&drawn) {
            outputs.rows.iter_mut().zip(chunks).for_each(|(left, chunk)| *left = chunk.rows as usize);
        }
        let places = self.passes.places_drawn();
        in_order(places, self.passes.tokens(&drawn), &mut outputs.tokens);
        in_order(places, self.passes.confidence(&drawn), &mut outputs.confidence);
        in_order(places, self.passes.top(&drawn).as_chunks().0, &mut outputs.top);
        in_order(places, self.passes.candidates(&drawn).as_chunks().0, &mut outputs.candidates);
        let found = self.passes.logprobs(&drawn);
        let left = rows.pieces.iter().zip(&outputs.rows).zip(&self.wants_logprobs);
        let wanted = left.flat_map(|((piece, &left), &wants)| {
            std::iter::repeat_n(wants, left.saturating_sub(piece.logits_from))
        });
        outputs
            .logprobs
            .extend(found.iter().zip(wanted).map(|(found, wanted)| wanted.then(|| found.logprobs())));
    }

    fn draft(
        &mut self,
        plan: &DraftPlan,
        sequences: &mut Sequences<CudaSequence>,
        cancelled: &mut Cancelled,
    ) -> Option<Vec<Vec<Drafted>>> {
        Some(self.carry_out(plan, sequences, cancelled).or_lost())
    }
}

/// What was drawn, each from its place: in the order that it has where there are no places, or nothing of it.
fn in_order<T: Copy>(places: &[u32], drawn: &[T], to: &mut Vec<T>) {
    if places.is_empty() || drawn.is_empty() {
        to.extend_from_slice(drawn);
    } else {
        to.extend(places.iter().map(|place| drawn[*place as usize]));
    }
}

/// The value, or the end of this device.
trait OrLost<T> {
    fn or_lost(self) -> T;
}

impl<T> OrLost<T> for Result<T, CudaError> {
    fn or_lost(self) -> T {
        self.unwrap_or_else(|error| match error {
            // It is named already, and may be another's.
            CudaError::Group(lost) => panic!("{lost}"),
            error => panic!("the GPU failed: {error}"),
        })
    }
}
