//! What the engine is told (`Event`) and what it asks for (`Command`): its whole interface with the world.

use std::sync::Arc;
use std::time::Duration;

use crate::survival::{AcceptanceTable, confidence_bin};

/// An entry of the models' common vocabulary.
pub type TokenId = u32;
/// A block of KV memory: an index into a pool, the same number in the device's `KvCache`.
pub type BlockId = u32;
/// The largest speculative length any policy or request may ask for.
pub const K_LIMIT: usize = 16;

/// One token stream. The caller chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

impl std::fmt::Display for SeqId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seq-{}", self.0)
    }
}

/// What a client wants, as far as scheduling is concerned. Sampling is the lanes' affair.
#[derive(Clone, Debug)]
pub struct Request {
    /// The sequence to open.
    pub seq: SeqId,
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Tokens to generate at most, at least one.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence; the one that does is not emitted.
    pub stop_tokens: Arc<[TokenId]>,
    /// Cap on the speculative length of this request; 0 switches speculation off for it.
    pub k_max: Option<usize>,
}

/// Everything that can happen to the engine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client asks for tokens. Answered by `Emit`s and one `Finish`, or by one `Reject`.
    Submit(Request),
    /// The client is gone or has enough. Answered by `Finish`, unless the sequence has ended already.
    Cancel(SeqId),
    /// The draft lane finished a plan.
    DraftDone(DraftResult),
    /// The verify lane finished a plan.
    VerifyDone(VerifyResult),
    /// The device is gone, with its KV memory and all plans on it. Sequences wait, to be recomputed.
    DeviceLost,
    /// A fresh device with empty KV memory is there.
    DeviceReady,
    /// No device will come back: every sequence ends with `DeviceFailed`, and new ones are refused.
    DeviceGivenUp,
}

/// Everything the engine can ask of the world.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run draft steps on the draft lane; answer with `Event::DraftDone`.
    Draft(DraftPlan),
    /// Run a verify pass on the verify lane; answer with `Event::VerifyDone`.
    Verify(VerifyPlan),
    /// Committed tokens of a sequence, in order. They never change afterwards.
    Emit {
        /// The stream they belong to.
        seq: SeqId,
        /// At least one token.
        tokens: Vec<Emitted>,
    },
    /// The sequence has ended and holds nothing any more.
    Finish {
        /// The stream that ended.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The request was not taken.
    Reject {
        /// The stream that never opened.
        seq: SeqId,
        /// Why, in words a client understands.
        why: Refusal,
    },
}

/// A lane's word on a sequence it is about to see: its whole history, from which samplers take penalties.
#[derive(Clone, Debug)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub usize);

/// Work for the draft lane. `retire` is carried out first, then `admit`, then the chunks together.
#[derive(Clone, Debug, Default)]
pub struct DraftPlan {
    /// Number of the plan on this lane, increasing; the result carries it back.
    pub step: u64,
    /// Where to run it.
    pub partition: PartitionId,
    /// Sequences the lane has not seen, or has forgotten by `retire`.
    pub admit: Vec<Admission>,
    /// Sequences to forget.
    pub retire: Vec<SeqId>,
    /// At most one chunk per sequence.
    pub chunks: Vec<DraftChunk>,
}

/// One sequence's part of a draft plan: rows to catch up with, then proposals to draft. The rows may be earlier proposals:
/// drafting goes on past the frontier.
///
/// Proposal `i` stands at position `start + tokens.len() + i`; the KV of the last one is not computed.
#[derive(Clone, Debug)]
pub struct DraftChunk {
    /// The sequence.
    pub seq: SeqId,
    /// Generation of its proposals.
    pub epoch: u32,
    /// Position of `tokens[0]`.
    pub start: usize,
    /// Tokens whose draft KV is missing, at least one; the last known token is the last of them if `steps > 0`.
    pub tokens: Vec<TokenId>,
    /// Proposals to draft; 0 for prefill alone.
    pub steps: usize,
    /// When to stop before that.
    pub stop: StopRule,
    /// Block table over all positions this chunk writes or reads.
    pub blocks: Vec<BlockId>,
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
}

impl StopRule {
    /// Survival after one more proposal of this confidence.
    pub fn after(&self, survival: f32, confidence: f32) -> f32 {
        survival * self.acceptance[confidence_bin(confidence)]
    }
}

/// What a draft plan brought.
#[derive(Clone, Debug, Default)]
pub struct DraftResult {
    /// The plan's number.
    pub step: u64,
    /// Time the lane worked on it.
    pub took: Duration,
    /// One entry per chunk, in the plan's order.
    pub chunks: Vec<DraftedChunk>,
}

/// One sequence's proposals.
#[derive(Clone, Debug)]
pub struct DraftedChunk {
    /// The sequence.
    pub seq: SeqId,
    /// The chunk's epoch; the engine drops the result if the sequence has moved on.
    pub epoch: u32,
    /// As many proposals as steps were asked for, or fewer.
    pub proposals: Vec<Drafted>,
}

/// A proposal as it comes from the draft model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafted {
    /// The token.
    pub token: TokenId,
    /// The probability the draft model itself gave it, 0 to 1.
    pub confidence: f32,
}

/// Work for the verify lane: one pass of the target model. Order as in `DraftPlan`.
#[derive(Clone, Debug, Default)]
pub struct VerifyPlan {
    /// Number of the plan on this lane, increasing; the result carries it back.
    pub step: u64,
    /// Where to run it.
    pub partition: PartitionId,
    /// Sequences the lane has not seen, or has forgotten by `retire`.
    pub admit: Vec<Admission>,
    /// Sequences to forget.
    pub retire: Vec<SeqId>,
    /// At most one chunk per sequence.
    pub chunks: Vec<VerifyChunk>,
}

/// The rows of one sequence in a verify pass: committed tokens, then proposals.
#[derive(Clone, Debug)]
pub struct VerifyChunk {
    /// The sequence.
    pub seq: SeqId,
    /// Generation of its proposals.
    pub epoch: u32,
    /// Position of `tokens[0]`.
    pub start: usize,
    /// One token per row, at least one.
    pub tokens: Vec<TokenId>,
    /// How many of the last tokens are proposals; the token before them is the anchor.
    pub proposals: usize,
    /// False for prefill rows that do not reach the anchor: nothing is sampled.
    pub sample: bool,
    /// Block table over positions `0 .. start + tokens.len()`.
    pub blocks: Vec<BlockId>,
}

/// What a verify pass brought.
#[derive(Clone, Debug, Default)]
pub struct VerifyResult {
    /// The plan's number.
    pub step: u64,
    /// Time the lane worked on it.
    pub took: Duration,
    /// One entry per chunk, in the plan's order.
    pub chunks: Vec<VerifiedChunk>,
}

/// One sequence's verdict: the accepted prefix, and the target's own token after it.
#[derive(Clone, Debug)]
pub struct VerifiedChunk {
    /// The sequence.
    pub seq: SeqId,
    /// The chunk's epoch.
    pub epoch: u32,
    /// Length of the accepted prefix of the chunk's proposals.
    pub accepted: usize,
    /// The next token; `None` exactly when the chunk did not sample.
    pub next: Option<TokenId>,
}

/// A committed token and who found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The token.
    pub token: TokenId,
    /// Accepted proposal, or the target's own.
    pub origin: Origin,
}

/// Who found a token. Of interest to a reader, never to the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A proposal that was accepted.
    Draft,
    /// The target's next token.
    Target,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The target chose a stop token; it is named here and was not emitted.
    StopToken(TokenId),
    /// `max_new_tokens` are out.
    Length,
    /// `Event::Cancel`.
    Cancelled,
    /// The device was lost more often under this sequence than is put up with.
    DeviceFailed,
}

/// What a sequence took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose target KV came from the prefix cache at first admission.
    pub cached_tokens: usize,
    /// Tokens emitted.
    pub output_tokens: usize,
    /// Verify passes that sampled for this sequence.
    pub target_passes: usize,
    /// Proposals verified.
    pub proposed: usize,
    /// Proposals accepted.
    pub accepted: usize,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens is 0; ask for at least one token")]
    NothingToGenerate,
    /// Prompt and output do not fit the context.
    #[error(
        "the prompt has {prompt_tokens} tokens and {max_new_tokens} more are asked for, but the context holds {max_context}: shorten the prompt or lower max_tokens"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for.
        max_new_tokens: usize,
        /// Tokens a sequence may have.
        max_context: usize,
    },
    /// The waiting queue is at its bound: try later.
    #[error("{waiting} requests are waiting already and the queue holds {capacity}: try again later")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// The bound, `max_waiting`.
        capacity: usize,
    },
    /// The device is gone for good.
    #[error("the device has failed and was given up; restart the server")]
    NoDevice,
    /// The id is in use.
    #[error("sequence id {0} is in use")]
    DuplicateId(u64),
}
