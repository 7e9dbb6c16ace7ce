//! Plans: what a lane is to do, and the room for what came of it. A plan goes to its lane and comes back.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::blocks::{BlockCopy, BlockId};
use crate::request::{CANDIDATES, SeqId, TokenId};
use crate::source::RoundPasses;
use crate::survival::{AcceptanceTable, confidence_bin};

/// Top-k alternatives of the draft that a proposal is compared with inside a verify pass, itself mostly among them.
pub const ALTERNATIVES: usize = 8;

/// A lane's word on a sequence it is about to see: its whole history, from which samplers take penalties.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Admission {
    /// The sequence.
    pub seq: SeqId,
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// Prompt and committed output.
    pub tokens: Arc<[TokenId]>,
}

/// One of a device's prebuilt partitions, by its place in [`EngineConfig::partitions`](crate::EngineConfig).
/// The first is the whole device for both lanes, for serial execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartitionId(pub usize);

/// One of a device's two lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneKind {
    /// Drafts.
    #[default]
    Draft,
    /// Verifies.
    Verify,
}

/// A cancelled chunk need not be finished. What the lane says of it is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelledChunk {
    /// The lane it is on.
    pub lane: LaneKind,
    /// The plan it is part of.
    pub step: u64,
    /// Its sequence.
    pub seq: SeqId,
    /// Its place among the plan's chunks.
    pub chunk: usize,
}

/// Work for the draft lane. `copies` are carried out first, then `retire`, then `admit`, then the chunks together.
///
/// A plan comes back with its outcome filled in, and its buffers are used again.
#[derive(Clone, Debug, Default)]
pub struct DraftPlan {
    /// Number of the plan on this lane, increasing.
    pub step: u64,
    /// Where to run it.
    pub partition: PartitionId,
    /// KV blocks to be copied, one after the other: a later copy may write what an earlier one reads. Every block that is written is of a
    /// sequence that the engine knows, with a chunk in this plan or a later one.
    pub copies: Vec<BlockCopy>,
    /// Sequences the lane has not seen, or has forgotten by `retire`.
    pub admit: Vec<Admission>,
    /// Sequences to forget.
    pub retire: Vec<SeqId>,
    /// At most one chunk per sequence that is none of an outcome.
    pub chunks: Vec<DraftChunk>,
    /// Rows of all chunks, one chunk after the other.
    pub tokens: Vec<TokenId>,
    /// Block tables of all chunks, one after the other.
    pub blocks: Vec<BlockId>,
    /// Block tables in the target's pool of all chunks, one after the other, of a draft whose rows begin with the target's features.
    pub features: Vec<BlockId>,
    /// Whether proposals are to come with their alternatives.
    pub alternatives: bool,
    /// Whether proposals are to come with the draft's next candidates, if the lane can tell them.
    pub candidates: bool,
    /// How proposals come: from a pass each, or all from one pass, whose rows of a chunk are followed by one of the model's mask tokens for each
    /// proposal but the first.
    pub passes: RoundPasses,
    /// Rows of the block that all proposals of a chunk are rows of, of a draft that proposes so: they stand behind the chunk's rows, however few
    /// proposals are wanted. 0 of others.
    pub block_rows: usize,
    /// What a further step costs.
    pub step_price: StepPrice,
    /// What came of it.
    pub outcome: DraftOutcome,
}

/// What a further draft step costs, in tokens: a lane ends all drafting by itself, as soon as a step cannot pay for those that would go on
/// together. How sure the draft is of what it has proposed is known by then, and was not when the plan was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepPrice {
    /// Whoever goes on; 0: it is free, and taken whatever it brings.
    pub all: f32,
    /// And each of those that do, with the row of the verify pass.
    pub each: f32,
}

impl StepPrice {
    /// What a chunk that goes on is expected to bring, in tokens, less what it costs alone.
    pub fn gain(&self, stop: &StopRule, survival: f32) -> f32 {
        survival * stop.next - self.each
    }

    /// Does a step pay in which all together gain so much?
    pub fn pays(&self, gain: f32) -> bool {
        self.all == 0.0 || gain > self.all
    }
}

/// What a draft plan brought.
#[derive(Clone, Debug, Default)]
pub struct DraftOutcome {
    /// Time the lane worked on it.
    pub took: Duration,
    /// The device did something of it for the first time, so that it took longer than the next one like it: no table learns from it.
    pub cold: bool,
    /// Proposals of all chunks, one chunk after the other.
    pub proposals: Vec<Drafted>,
    /// Proposals of each chunk: as many as steps were asked for, or fewer.
    pub counts: Vec<usize>,
}

impl DraftOutcome {
    /// Draft steps that it took, and the sequences that they had, summed. What a grammar forced is computed with what is drafted behind it, or by itself
    /// if nothing is.
    pub(crate) fn steps(&self) -> (usize, usize) {
        let (mut steps, mut drafted, mut rest) = (0, 0, self.proposals.as_slice());
        for &count in &self.counts {
            let (own, others) = rest.split_at(count.min(rest.len()));
            let last = own.last().is_some_and(|proposal| proposal.forced);
            let own = own.iter().filter(|proposal| !proposal.forced).count();
            let own = own + usize::from(last && own > 0);
            (steps, drafted, rest) = (steps.max(own), drafted + own, others);
        }
        (steps, drafted)
    }
}

/// One sequence's part of a draft plan: rows to catch up with, then proposals to draft. The rows may be earlier proposals:
/// drafting goes on past the frontier.
///
/// Proposal `i` stands at position `start + rows.len() + i`; the KV of the last one is not computed. Where all come from one pass, that of none is:
/// mask tokens stood in their places.
#[derive(Clone, Debug)]
pub struct DraftChunk {
    /// The sequence.
    pub seq: SeqId,
    /// Generation of its proposals; the engine drops what comes if the sequence has moved on.
    pub epoch: u32,
    /// Position of the first row.
    pub start: usize,
    /// Its part of the plan's tokens, whose draft KV is missing: at least one; the last known token is the last of them if
    /// `steps > 0`.
    pub rows: Range<usize>,
    /// Proposals to draft; 0 for prefill alone.
    pub steps: usize,
    /// When to stop before that.
    pub stop: StopRule,
    /// The rank that has its draft KV, where several have the draft whole; else 0.
    pub rank: usize,
    /// Its part of the plan's blocks: the table over all positions it writes or reads, in its rank's pool.
    pub table: Range<usize>,
    /// Its part of the plan's features: the table over the positions of its rows.
    pub features: Range<usize>,
    /// It prepares for a verdict that may come: its first row is a token that no lane has drawn, behind a prefix that the sequence has. None of it
    /// is part of the sequence's history. Only a sequence whose draws look at no history has such chunks.
    pub outcome: bool,
}

/// Lets a lane end a sequence's drafting by itself, as soon as its next proposal cannot pay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StopRule {
    /// Probability of acceptance by confidence; see [`StopRule::acceptance`].
    pub acceptance: AcceptanceTable,
    /// Survival of what stands before the first proposal of the chunk.
    pub survival: f32,
    /// Stop after the first proposal whose survival is below; 0 never stops.
    pub below: f32,
    /// What the next proposal is worth, if all before it survive: its expected acceptance, times what a token of the sequence counts for.
    pub next: f32,
}

impl StopRule {
    /// Survival after one more proposal of this confidence.
    pub fn after(&self, survival: f32, confidence: f32) -> f32 {
        survival * self.acceptance[confidence_bin(confidence)]
    }
}

/// A proposal as it comes from the draft model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafted {
    /// The token.
    pub token: TokenId,
    /// The probability the draft model itself gave it, 0 to 1.
    pub confidence: f32,
    /// The draft's likeliest tokens in this place; none if they were not asked for.
    pub alternatives: Alternatives,
    /// What the draft would have drawn in this place without this token, then without that one too, and so on, by the target's own noise; none if
    /// they were not asked for, or the lane cannot tell.
    pub candidates: Candidates,
    /// A grammar forced it: it took no draft step.
    pub forced: bool,
}

/// What else the draft could have proposed in some place.
pub type Alternatives = ArrayVec<TokenId, ALTERNATIVES>;
/// The draft's next candidates in some place.
pub type Candidates = ArrayVec<TokenId, CANDIDATES>;

/// Work for the verify lane: one pass of the target model. Order and buffers as in `DraftPlan`. It travels to other nodes without its outcome.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VerifyPlan {
    /// Number of the plan on this lane, increasing.
    pub step: u64,
    /// Where to run it.
    pub partition: PartitionId,
    /// KV blocks to be copied, one after the other: a later copy may write what an earlier one reads. Every block that is written is of a
    /// sequence that the engine knows, with a chunk in this plan or a later one.
    pub copies: Vec<BlockCopy>,
    /// Sequences the lane has not seen, or has forgotten by `retire`.
    pub admit: Vec<Admission>,
    /// Sequences to forget.
    pub retire: Vec<SeqId>,
    /// At most one chunk per sequence.
    pub chunks: Vec<VerifyChunk>,
    /// Rows of all chunks, one chunk after the other.
    pub tokens: Vec<TokenId>,
    /// Block tables of all chunks, one after the other.
    pub blocks: Vec<BlockId>,
    /// Pruning checkpoints: places inside the pass, as numbers of layers done, increasing: there every proposal with a test is tested.
    pub prune_checkpoints: Vec<usize>,
    /// Tests of all chunks, one chunk after the other.
    pub tests: Vec<Test>,
    /// What came of it.
    #[serde(skip)]
    pub outcome: VerifyOutcome,
}

/// What a verify pass brought.
#[derive(Clone, Debug, Default)]
pub struct VerifyOutcome {
    /// Time the lane worked on it.
    pub took: Duration,
    /// The device did something of it for the first time, so that it took longer than the next one like it: no table learns from it.
    pub cold: bool,
    /// One entry per chunk, in the plan's order.
    pub verdicts: Vec<Verdict>,
    /// Margin of each test at each checkpoint, checkpoint after checkpoint; NaN where it was not made.
    pub margins: Vec<f32>,
}

/// The rows of one sequence in a verify pass: committed tokens, then proposals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VerifyChunk {
    /// The sequence.
    pub seq: SeqId,
    /// Generation of its proposals.
    pub epoch: u32,
    /// Position of the first row.
    pub start: usize,
    /// Its part of the plan's tokens, one per row, at least one.
    pub rows: Range<usize>,
    /// How many of the last rows are proposals; the row before them is the anchor's.
    pub proposals: usize,
    /// No lane has looked whether a grammar of the sequence allows some of them: those from prompt-lookup, and those of a draft that proposes in one
    /// pass.
    pub unchecked: bool,
    /// False for prefill rows that do not reach the anchor: nothing is sampled.
    pub sample: bool,
    /// Its part of the plan's blocks: the table over positions `0 .. start + rows.len()`.
    pub table: Range<usize>,
    /// Its part of the plan's tests: one per proposal, or none.
    pub tests: Range<usize>,
}

/// The test of a proposal inside the pass: the state of the row before it, normalised as for the LM head, scores the
/// proposal and its alternatives. Whatever comes of it costs or saves time and changes no text: a proposal that left counts as
/// not sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// What it is compared with.
    pub alternatives: Alternatives,
    /// If the best alternative leads by more, in logits, the proposal's row and those behind it leave the pass.
    pub max_margin: f32,
}

/// The verdict on a chunk: the accepted prefix, and the target's own token after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Length of the accepted prefix of the chunk's proposals.
    pub accepted: usize,
    /// The next token; `None` exactly when the chunk did not sample, was cancelled, or is late.
    pub next: Option<TokenId>,
    /// What its grammar allows was not known in time. Nothing is decided: the chunk comes again, until it is known.
    pub late: bool,
    /// Proposals, the last ones, whose rows were in no pass: a grammar forbids the first of them. Of a late chunk: all its rows, if none
    /// was in a pass.
    pub forbidden: usize,
    /// Of the others the last ones, whose rows left the pass before its end.
    pub pruned: usize,
    /// Pruning checkpoints such a row passed before it left.
    pub pruned_at: usize,
}

impl DraftPlan {
    /// The rows of one of its chunks.
    pub fn rows(&self, chunk: &DraftChunk) -> &[TokenId] {
        &self.tokens[chunk.rows.clone()]
    }

    /// The block table of one of its chunks.
    pub fn table(&self, chunk: &DraftChunk) -> &[BlockId] {
        &self.blocks[chunk.table.clone()]
    }

    /// Where the target has the features that the rows of a chunk begin with: that of a position those of the row behind it. None of a draft that
    /// reads none.
    pub fn features(&self, chunk: &DraftChunk) -> Option<&[BlockId]> {
        (!chunk.features.is_empty()).then(|| &self.features[chunk.features.clone()])
    }

    /// Rows that a chunk with so many proposals has behind those of its known tokens, where all come from one pass.
    pub fn rows_behind(&self, proposals: usize) -> usize {
        match self.block_rows {
            0 => proposals.saturating_sub(1),
            rows => rows * usize::from(proposals > 0),
        }
    }

    /// Makes it empty; the buffers stay.
    pub(crate) fn clear(&mut self) {
        let DraftPlan { copies, admit, retire, chunks, tokens, blocks, features, outcome, .. } = self;
        copies.clear();
        admit.clear();
        retire.clear();
        chunks.clear();
        tokens.clear();
        blocks.clear();
        features.clear();
        outcome.proposals.clear();
        outcome.counts.clear();
        outcome.cold = false;
    }
}

impl VerifyPlan {
    /// The rows of one of its chunks.
    pub fn rows(&self, chunk: &VerifyChunk) -> &[TokenId] {
        &self.tokens[chunk.rows.clone()]
    }

    /// The proposals of one of its chunks.
    pub fn proposals(&self, chunk: &VerifyChunk) -> &[TokenId] {
        &self.tokens[chunk.rows.end - chunk.proposals..chunk.rows.end]
    }

    /// The block table of one of its chunks.
    pub fn table(&self, chunk: &VerifyChunk) -> &[BlockId] {
        &self.blocks[chunk.table.clone()]
    }

    /// Makes it empty; the buffers stay.
    pub(crate) fn clear(&mut self) {
        let VerifyPlan {
            copies,
            admit,
            retire,
            chunks,
            tokens,
            blocks,
            prune_checkpoints,
            tests,
            outcome,
            ..
        } = self;
        copies.clear();
        admit.clear();
        retire.clear();
        chunks.clear();
        tokens.clear();
        blocks.clear();
        prune_checkpoints.clear();
        tests.clear();
        outcome.verdicts.clear();
        outcome.margins.clear();
        outcome.cold = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_grammar_forced_is_no_draft_step() {
        let drafted = |forced| Drafted { forced, ..Drafted::default() };
        let outcome = |proposals: &[bool], counts: &[usize]| DraftOutcome {
            proposals: proposals.iter().map(|forced| drafted(*forced)).collect(),
            counts: counts.to_vec(),
            ..DraftOutcome::default()
        };
        let (free, forced) = (false, true);
        let plan = outcome(&[forced, free, free, forced, forced, forced, free], &[3, 0, 4]);
        assert_eq!((plan.steps(), DraftOutcome::default().steps()), ((2, 3), (0, 0)));
        // Those behind the last that is drafted have a pass of their own; where all are forced, they are in the first, whose rows catch up.
        assert_eq!(outcome(&[free, forced, forced], &[3]).steps(), (2, 2));
        assert_eq!(outcome(&[forced, forced], &[2]).steps(), (0, 0));
    }

    #[test]
    fn a_step_is_taken_if_all_that_go_on_pay_for_it_together() {
        let price = StepPrice { all: 0.5, each: 0.1 };
        let stop = StopRule { next: 0.8, ..StopRule::default() };
        let gain = |survivals: &[f32]| survivals.iter().map(|s| price.gain(&stop, *s)).sum::<f32>();
        assert!(price.pays(gain(&[0.9])) && !price.pays(gain(&[0.7])) && price.pays(gain(&[0.7, 0.4])));
        // One that brings less than it costs is none for whom others go on.
        assert!(gain(&[0.9, 0.05]) < gain(&[0.9]));
        assert!(!price.pays(0.0) && StepPrice::default().pays(0.0), "what is free is taken");
    }
}
