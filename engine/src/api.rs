//! What the engine is told (`Event`) and what it asks for (`Command`): its whole interface with the world.

use arrayvec::ArrayVec;

use crate::config::Tuning;
use crate::cost::PartitionCosts;
use crate::plan::{CancelledChunk, DraftPlan, VerifyPlan};
use crate::request::{K_LIMIT, Request, SeqId, SpeculationMode, TokenId};
use crate::usage::Usage;

/// Everything that can happen to the engine.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client asks for tokens. Answered by `Emit`s and one `Finish`, or by one `Reject`.
    Submit(Request),
    /// The client is gone or has enough. Answered by `Finish`, unless the sequence has ended already.
    Cancel(SeqId),
    /// The draft lane finished a plan, and has filled in its outcome.
    DraftDone(DraftPlan),
    /// The verify lane finished a plan, and has filled in its outcome.
    VerifyDone(VerifyPlan),
    /// The device is gone, with its KV memory and all plans on it. Sequences wait, to be recomputed.
    DeviceLost,
    /// The draft's device, where it has one of its own, is gone and takes the target's along. All wait as for a lost device, but that this
    /// ends nobody: under whom it is lost too often goes on without a draft.
    DraftLost,
    /// The draft's device will not come back: nothing is drafted from now on. As [`Event::DraftLost`] where a device is there, and the one that
    /// comes next has no draft lane.
    DraftRetired,
    /// A fresh device with empty KV memory is there.
    DeviceReady,
    /// Somebody wants it to decide otherwise from now on; see [`EngineConfig::tunable`](crate::EngineConfig::tunable).
    Tune(Tuning),
    /// What passes cost was measured anew, of all partitions.
    Profiled(Vec<PartitionCosts>),
    /// Past outputs are to be forgotten, and those under way not to be kept.
    ForgetOutputs,
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
    /// Nobody waits any more for what a sequence's chunk of a plan that is out will bring: the lane may leave it.
    CancelChunk(CancelledChunk),
    /// Committed tokens of a sequence, in order. They never change afterwards.
    Emit {
        /// The stream they belong to.
        seq: SeqId,
        /// At least one token.
        tokens: EmittedTokens,
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

/// Tokens that one pass commits for one sequence.
pub type EmittedTokens = ArrayVec<Emitted, { K_LIMIT + 1 }>;

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
        "this model's maximum context length is {max_context} tokens, but the prompt has {prompt_tokens} and is to be followed by {max_new_tokens}: shorten the prompt or lower max_tokens"
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
    /// Proposals are asked for that this engine never makes.
    #[error(
        "`speculation.mode` is `{mode}`, but {why}: leave it out, or write `off` if nothing is to be proposed"
    )]
    Mode {
        /// What is asked for.
        mode: SpeculationMode,
        /// Why it cannot be had.
        why: &'static str,
    },
    /// The device is gone for good.
    #[error("the device has failed and was given up; restart the server")]
    NoDevice,
    /// The id is in use.
    #[error("sequence id {0} is in use")]
    DuplicateId(u64),
}
