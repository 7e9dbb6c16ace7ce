//! What a client asks of the engine: tokens behind a prompt, and how they are to be scheduled.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An entry of the models' common vocabulary.
pub type TokenId = u32;
/// The largest speculative length any policy or request may ask for.
pub const K_LIMIT: usize = 16;
/// Candidates of the draft beside each of its proposals, for outcomes to be prepared.
pub const CANDIDATES: usize = 8;

/// One token stream. The caller chooses it and never uses it twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// What was emitted for this request elsewhere, without a stop token: it is recomputed, not emitted again.
    pub output: Arc<[TokenId]>,
    /// Tokens to generate at most, `output` included; more than that has.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence; the one that does is not emitted.
    pub stop_tokens: Arc<[TokenId]>,
    /// What the client expects the output to be, or to resemble; it is proposed where it fits.
    pub prediction: Arc<[TokenId]>,
    /// What is drawn for it depends on the tokens before but by the model: by no penalty, no grammar, no ban on tokens in a row.
    pub history_free: bool,
    /// Its tokens are drawn at a temperature, not the likeliest each. Counted apart, and no more.
    pub draws: bool,
    /// Every row of the prompt is to be computed, none taken from the prefix cache: for what is asked of each of them.
    pub whole_prompt: bool,
    /// What the client wishes of its scheduling.
    pub handling: Handling,
}

impl Request {
    /// A request that asks for nothing but tokens, until there are so many.
    pub fn new(seq: SeqId, prompt: impl Into<Arc<[TokenId]>>, max_new_tokens: usize) -> Request {
        Request {
            seq,
            prompt: prompt.into(),
            output: [].into(),
            max_new_tokens,
            stop_tokens: [].into(),
            prediction: [].into(),
            history_free: true,
            draws: false,
            whole_prompt: false,
            handling: Handling::default(),
        }
    }
}

/// What a client may wish of how its request is scheduled. It changes speed, never text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handling {
    /// Cap on the speculative length of this request; 0 switches speculation off for it.
    pub k_max: Option<usize>,
    /// Where proposals may come from.
    pub mode: SpeculationMode,
    /// What the client hopes for; speculation is allocated by it where it is scarce.
    pub slo: Slo,
    /// Lower is sooner: of those that wait the lowest number is admitted first, of those that run the highest is preempted first. Among
    /// equals the older one comes first. Nothing keeps a high number from waiting for as long as lower ones come.
    pub priority: i32,
    /// The prefix cache is shared with requests of the same salt alone.
    pub salt: u128,
    /// Whose it is: past outputs are proposed from to requests of the same owner and the same salt alone.
    pub owner: u128,
}

/// Where the proposals of a request may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeculationMode {
    /// From wherever the policy takes them.
    #[default]
    Auto,
    /// From nowhere.
    Off,
    /// Prompt-lookup proposals alone: nothing is drafted.
    Lookup,
    /// Drafted ones alone: nothing is looked up.
    Draft,
    /// Those from past outputs alone.
    Suffix,
}

impl std::fmt::Display for SpeculationMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SpeculationMode::Auto => "auto",
            SpeculationMode::Off => "off",
            SpeculationMode::Lookup => "lookup",
            SpeculationMode::Draft => "draft",
            SpeculationMode::Suffix => "suffix",
        })
    }
}

impl SpeculationMode {
    /// May proposals be drafted?
    pub fn drafts(self) -> bool {
        matches!(self, SpeculationMode::Auto | SpeculationMode::Draft)
    }

    /// May prompt-lookup propose?
    pub fn looks_up(self) -> bool {
        matches!(self, SpeculationMode::Auto | SpeculationMode::Lookup)
    }

    /// May past outputs be proposed from?
    pub fn recalls(self) -> bool {
        matches!(self, SpeculationMode::Auto | SpeculationMode::Suffix)
    }
}

/// Latency targets of a request. Nothing is refused or cancelled for their sake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// From submission to the first token.
    pub ttft: Option<Duration>,
    /// Between tokens, in the mean over the request.
    pub tpot: Option<Duration>,
}
