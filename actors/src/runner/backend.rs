//! What a device does of a lane's passes, and what stands in one: all that runners know of devices.
//!
//! ```text
//! stage(rows) ── layers(a..b) ──┬────────────────────────────────┬── layers(b..c) ── .. ── finish ── draw ── collect
//!                               └─ cancel(piece), test, compact ─┘
//! ```
//!
//! A device that works by itself has been asked for all of that by the time `collect` waits for it; one that does not has done it. Where a
//! device fails, it panics: the lane's thread reports that, and the watchdog decides.

use std::ops::Range;
use std::sync::Arc;

use faser_engine::{
    ALTERNATIVES, Admission, BlockCopy, BlockId, Candidates, DraftPlan, Drafted, PartitionId, SeqId, TokenId,
};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::{CANDIDATES, Logprobs};
use faser_models::BlockSpec;

use super::masks::Masks;
use super::sequences::{LaneSequence, OnDevice, Sequences};
use crate::cancellation::Cancelled;
use crate::submission::LaneRequest;

/// Tokens scored for a test: the alternatives, and the proposal itself.
pub(crate) const SCORED: usize = ALTERNATIVES + 1;

/// A device as a lane's runner knows it: of one rank, which does what all others of its group do.
pub trait LaneBackend {
    /// What the device keeps of a sequence, beside its history.
    type Sequence: OnDevice;

    /// Layers between two looks at what was cancelled, where there is no pruning checkpoint.
    const LOOK_EVERY: usize;

    /// Whether the first passes of a row count take longer than those after them.
    const FIRST_IS_COLD: bool;
    /// Sequences that have all of a device at work on attention.
    const FILLED_BY: usize;

    /// The largest pass.
    fn bounds(&self) -> PassBounds;

    /// What stands in places whose tokens are not known yet, if the model was made for that.
    fn mask_token(&self) -> Option<TokenId>;

    /// The block that the model proposes, if it was made for that.
    fn block(&self) -> Option<BlockSpec> {
        None
    }

    /// Layers of the model.
    fn layer_count(&self) -> usize;

    /// This rank of the group, and how many there are: 0 and 1 alone.
    fn rank(&self) -> (usize, usize);

    /// Runs what follows on this partition.
    fn work_on(&mut self, partition: PartitionId);

    /// Whether anything was done for the first time since this was last asked, so that a pass took longer than the next one like it.
    fn was_cold(&mut self) -> bool {
        false
    }

    /// Sees to it that all ranks have the same plan.
    ///
    /// # Panics
    /// If not: what ranks compute of different plans would be of no use.
    fn agree_on(&mut self, plan: u64);

    /// The words of all ranks, rank after rank, as many of each. It waits for them.
    fn gather(&mut self, words: &[u32]) -> Vec<u32>;

    /// Copies KV blocks whole, one after the other, before anything that is asked for later reads or writes any.
    fn copy_blocks(&mut self, copies: &[BlockCopy]);

    /// A sequence has come.
    fn admit(&mut self, admission: &Admission, request: &LaneRequest) -> Self::Sequence;

    /// A sequence has gone.
    fn retire(&mut self, sequence: Self::Sequence);

    /// Begins a pass.
    fn stage(&mut self, rows: &PassRows<'_>, sequences: &mut Sequences<Self::Sequence>);

    /// Runs these layers.
    fn layers(&mut self, rows: &PassRows<'_>, layers: Range<usize>);

    /// Nobody wants this piece any more: its rows leave at the next `compact`. In a group the first rank's word counts, and no other's.
    fn cancel(&mut self, piece: usize);

    /// Tests the pass's proposals where it is; rows behind those that fail leave at the next `compact`.
    fn test(&mut self, rows: &PassRows<'_>, sequences: &Sequences<Self::Sequence>);

    /// Rows that are not wanted any more leave the pass.
    fn compact(&mut self, rows: &PassRows<'_>);

    /// Ends the layers: logits of the rows that have some.
    fn finish(&mut self);

    /// Draws tokens from them.
    fn draw(&mut self, rows: &PassRows<'_>, sequences: &Sequences<Self::Sequence>, how: &Draw<'_>);

    /// Waits for what the pass brings. `meanwhile` is called now and then while it waits, with what cancels a piece.
    fn collect(
        &mut self,
        rows: &PassRows<'_>,
        outputs: &mut PassOutputs,
        meanwhile: &mut dyn FnMut(Cancel<'_>),
    );

    /// Carries out a draft plan by itself, without a pass of the runner's, if it can do that: the proposals of each chunk. Nothing of it
    /// depends on the tokens before but by logits, bias and penalties.
    fn draft(
        &mut self,
        _plan: &DraftPlan,
        _sequences: &mut Sequences<Self::Sequence>,
        _cancelled: &mut Cancelled,
    ) -> Option<Vec<Vec<Drafted>>> {
        None
    }

    /// Carries out a plan's `retire`, then its `admit`; `requests` holds one entry per admission.
    fn update(
        &mut self,
        sequences: &mut Sequences<Self::Sequence>,
        retire: &[SeqId],
        admit: &[Admission],
        requests: &[Arc<LaneRequest>],
    ) {
        for seq in retire {
            sequences.0.remove(seq).into_iter().for_each(|gone| self.retire(gone.on_device));
        }
        assert_eq!(admit.len(), requests.len(), "one request per admission");
        for (admission, request) in admit.iter().zip(requests) {
            let on_device = self.admit(admission, request);
            let sequence = LaneSequence::new(admission, request, on_device, self.rank().0 == 0);
            let before = sequences.0.insert(admission.seq, sequence);
            before.into_iter().for_each(|gone| self.retire(gone.on_device));
        }
    }

    /// The words of the first rank, on all others; theirs do not count. It waits for them.
    fn hear_first(&mut self, words: Vec<u32>) -> Vec<u32> {
        let count = self.gather(&[words.len() as u32])[0] as usize;
        let mut own = words;
        own.resize(count, 0);
        own.chunks(TOLD_AT_ONCE).flat_map(|some| self.gather(some).into_iter().take(some.len())).collect()
    }

    /// What the first rank knows of what grammars allow, in a plan with chunks of these sequences, becomes what all know.
    fn tell_masks(
        &mut self,
        masks: &mut Masks,
        sequences: &Sequences<Self::Sequence>,
        mut seqs: impl Iterator<Item = SeqId>,
    ) {
        let (rank, ranks) = self.rank();
        // Which requests have grammars is the same on all ranks.
        if ranks == 1 || seqs.all(|seq| sequences.of(seq).request.constraint.is_none()) {
            return;
        }
        let own = if rank == 0 { masks.tell() } else { Vec::new() };
        let first = self.hear_first(own);
        if rank > 0 {
            masks.hear_of(&first);
        }
    }

    /// Asks between two steps of a plan of so many chunks which of them were cancelled; all ranks hear the same.
    fn look(&mut self, cancelled: &mut Cancelled, step: u64, layers: usize, of_plan: usize) {
        let (rank, ranks) = self.rank();
        if rank == 0 {
            cancelled.ask(step, layers);
        }
        if ranks > 1 {
            let flags: Vec<u32> =
                (0..of_plan).map(|chunk| u32::from(cancelled.chunks().contains(&chunk))).collect();
            let first = self.gather(&flags);
            cancelled.hear((0..of_plan).zip(first).filter(|(_, flag)| *flag > 0).map(|(chunk, _)| chunk));
        }
    }
}

/// Words that a group gathers at a time.
const TOLD_AT_ONCE: usize = 4096;

/// What cancels a piece of the pass under way, by its number.
pub(crate) type Cancel<'a> = &'a mut dyn FnMut(usize);

/// The largest pass of a lane.
#[derive(Clone, Copy, Debug)]
pub struct PassBounds {
    /// Rows.
    pub rows: usize,
    /// Rows with logits.
    pub logit_rows: usize,
    /// Pieces.
    pub pieces: usize,
}

/// The rows of a pass, piece by piece. Rows of a piece stand together, and leave from its end only.
#[derive(Default)]
pub struct PassRows<'a> {
    /// A token for each row.
    pub tokens: Vec<TokenId>,
    /// In the order of their rows.
    pub pieces: Vec<Piece<'a>>,
    /// Block table of each piece.
    pub tables: Vec<&'a [BlockId]>,
    /// What is tested at pruning checkpoints.
    pub tests: Vec<RowTest>,
    logit_rows: usize,
}

/// Rows of one chunk of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Its sequence.
    pub seq: SeqId,
    /// The chunk.
    pub chunk: usize,
    /// Its first row in the pass.
    pub first: usize,
    /// Position of that.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// Rows from this one on, counted in the piece, have logits; as many as `rows` if none has.
    pub logits_from: usize,
    /// A token is drawn for each row from this one on.
    pub drawn_from: usize,
    /// Proposals that stand before the place of the first of those.
    pub since: usize,
    /// By how much the place that is drawn for in a row is nearer than the one behind it: rows of a block do not stand in their own places.
    pub nearer: usize,
    /// What its rows begin with beside their tokens.
    pub begins: Begins<'a>,
    /// The chunk's proposals; of a draft that proposes in one pass, the mask tokens in their places.
    pub proposals: &'a [TokenId],
}

/// What rows of a model begin with beside their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins<'a> {
    /// Nothing.
    Alone,
    /// Of a head: the features that the target has, by this block table, of the token before each.
    Features(&'a [BlockId]),
    /// Of a head: what its last row of the same chunk passed on.
    PassedOn,
}

/// A proposal to be tested at pruning checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct RowTest {
    /// Its piece.
    pub piece: usize,
    /// The row that predicts it, counted in the piece.
    pub offset: usize,
    /// Its position.
    pub position: usize,
    /// Its alternatives, the proposal itself where there are fewer, and the proposal.
    pub tokens: [TokenId; SCORED],
    /// The largest margin that stays.
    pub max_margin: f32,
    /// Which of the plan's tests it is.
    pub of_plan: usize,
}

/// How tokens are drawn, beside what their requests say.
pub struct Draw<'a> {
    /// What grammars allow.
    pub masks: &'a Masks,
    /// The draft's confidence is wanted.
    pub confidence: bool,
    /// The likeliest tokens in each place are.
    pub alternatives: bool,
    /// What would have been drawn without what was drawn is.
    pub candidates: bool,
}

/// What a pass brings.
#[derive(Default)]
pub struct PassOutputs {
    /// Rows that each piece still has.
    pub rows: Vec<usize>,
    /// Of each row with logits, piece by piece: the token drawn; of no meaning where none is.
    pub tokens: Vec<TokenId>,
    /// The draft's confidence in each, if that is wanted.
    pub confidence: Vec<f32>,
    /// The likeliest tokens in each place, if those are.
    pub top: Vec<[TokenId; TOP_TOKENS]>,
    /// What would have been drawn without the token drawn in each place, in order, if that is; [`NO_CANDIDATE`] where no more was left.
    pub candidates: Vec<[TokenId; CANDIDATES]>,
    /// Log-probabilities in each place whose request wants them; nothing at all if none does.
    pub logprobs: Vec<Option<Logprobs>>,
    /// Checkpoint by checkpoint, a margin for each test; NaN where there was none.
    pub margins: Vec<f32>,
}

impl<'a> PassRows<'a> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How many more rows fit of a chunk of which so many more have logits, the last ones.
    pub fn room(&self, bounds: PassBounds, rows: usize, logit_rows: usize) -> usize {
        if self.pieces.len() == bounds.pieces {
            return 0;
        }
        let without = rows - logit_rows;
        let with = logit_rows.min(bounds.logit_rows - self.logit_rows);
        (without + with).min(bounds.rows - self.tokens.len())
    }

    /// Appends a piece, whose `first` and `rows` are filled in here; its number.
    pub fn push(&mut self, piece: Piece<'a>, tokens: &[TokenId], table: &'a [BlockId]) -> usize {
        let (first, rows) = (self.tokens.len(), tokens.len());
        let (logits_from, drawn_from) = (piece.logits_from.min(rows), piece.drawn_from.min(rows));
        self.tokens.extend(tokens);
        self.tables.push(table);
        self.logit_rows += rows - logits_from;
        self.pieces.push(Piece { first, rows, logits_from, drawn_from, ..piece });
        self.pieces.len() - 1
    }
}

impl PassRows<'_> {
    /// Cancels the pieces of these chunks.
    pub(super) fn cancel(&self, cancelled: &[usize], cancel: &mut dyn FnMut(usize)) {
        if cancelled.is_empty() {
            return;
        }
        for (number, piece) in self.pieces.iter().enumerate() {
            if cancelled.contains(&piece.chunk) {
                cancel(number);
            }
        }
    }
}

impl<'a> Piece<'a> {
    /// Tokens of a draft plan, from the chunk's row at position `start` on; what is drawn first stands behind all tokens that there are.
    pub(super) fn drafting(seq: SeqId, chunk: usize, start: usize, drawn_from: usize) -> Self {
        let (first, rows, since, nearer, begins) = (0, 0, 0, 0, Begins::Alone);
        let logits_from = drawn_from;
        Piece {
            seq,
            chunk,
            first,
            start,
            rows,
            logits_from,
            drawn_from,
            since,
            nearer,
            begins,
            proposals: &[],
        }
    }

    /// The same of a head.
    pub(super) fn beginning(self, begins: Begins<'a>) -> Self {
        Piece { begins, ..self }
    }

    /// The same, where `masks` stand in places of proposals: tokens are drawn for those places too, `since` of which were in an earlier pass.
    pub(super) fn masked(self, since: usize, masks: &'a [TokenId]) -> Self {
        Piece { since, proposals: masks, ..self }
    }

    /// The same of rows of a block.
    pub(super) fn nearer(self, nearer: usize) -> Self {
        Piece { nearer, ..self }
    }

    /// The position of what is drawn for a row.
    pub fn place(&self, offset: usize) -> usize {
        self.start + offset + 1 - self.nearer
    }

    /// Whether a mask token stands in this row.
    pub fn is_mask(&self, offset: usize) -> bool {
        !self.proposals.is_empty() && offset >= self.drawn_from && self.since(offset) > 0
    }

    /// How many proposals stand before the place of a row that a token is drawn for.
    pub fn since(&self, offset: usize) -> usize {
        self.since + offset - self.drawn_from
    }
}

/// No token: a device had no more to tell.
const NO_CANDIDATE: TokenId = TokenId::MAX;

/// The candidates of a place, as many as there are.
pub(super) fn candidates_of(found: &[TokenId]) -> Candidates {
    found.iter().copied().filter(|token| *token != NO_CANDIDATE).collect()
}

impl PassOutputs {
    /// Nothing yet, of a pass of these rows.
    pub fn begin(&mut self, rows: &PassRows<'_>) {
        let PassOutputs { rows: left, tokens, confidence, top, candidates, logprobs, margins } = self;
        left.clear();
        left.extend(rows.pieces.iter().map(|piece| piece.rows));
        tokens.clear();
        confidence.clear();
        top.clear();
        candidates.clear();
        logprobs.clear();
        margins.clear();
    }
}
