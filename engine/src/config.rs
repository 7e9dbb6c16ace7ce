//! What an engine is built from: bounds, pool sizes, and the tuning that can change while it runs.

use crate::cost::PartitionCosts;
use crate::policy::{Mechanisms, Policy};
use crate::request::{K_LIMIT, Slo};
use crate::source::DraftSource;
use crate::survival::Learned;

/// The engine's bounds and sizes, and its [`Tuning`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Tokens per KV block, in both pools.
    pub block_size: usize,
    /// Blocks of the target's pool.
    pub target_blocks: usize,
    /// What drafts.
    pub draft: DraftSource,
    /// Rows of one pass, on either lane: the token budget.
    pub max_pass_rows: usize,
    /// Tokens a sequence may have, prompt and output together.
    pub max_context: usize,
    /// What passes cost on each of the device's partitions, the whole device first. Policies that predict need at least that
    /// one; overlapped execution needs a second.
    pub partitions: Vec<PartitionCosts>,
    /// Layers of the target, which a verify pass can be divided at for pruning.
    pub target_layers: usize,
    /// Whether rows of a pass have the same bits whatever is beside them on devices whose fastest kernels do not promise it.
    pub deterministic: bool,
    /// Bounds of speculation, whatever the policy.
    pub speculation: SpeculationBounds,
    /// Keep the KV of finished prompts for later requests with the same beginning.
    pub prefix_cache: bool,
    /// What another engine of the same pair learned; nothing by default.
    pub learned: Learned,
    /// What it starts with of all that can change while it runs.
    pub tuning: Tuning,
}

/// Bounds of speculation, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationBounds {
    /// Proposals per sequence that the lanes have room for, so that no policy and no tuning may ask for more.
    pub room: usize,
    /// Tokens of a sequence that the draft model can have: what is longer goes on without it.
    pub draft_context: usize,
    /// Bytes of memory for past outputs, to be proposed from; 0: none are kept.
    pub suffix_bytes: usize,
    /// Ranks that each have the draft whole, with a KV pool of as many blocks as its source says: sequences are divided among them. 1 where the
    /// draft is in one place, or split.
    pub draft_copies: usize,
}

impl Default for SpeculationBounds {
    /// None but the engine's own; no past outputs; the draft in one place.
    fn default() -> SpeculationBounds {
        SpeculationBounds { room: K_LIMIT, draft_context: usize::MAX, suffix_bytes: 0, draft_copies: 1 }
    }
}

/// Outcomes of a verify pass that are prepared together on a rank, where no more sequences may run than that.
const OUTCOME_CHUNKS: usize = 64;
/// Ranks that may have a draft each.
pub(crate) const MOST_COPIES: usize = 64;

/// What can be set anew at any time. Sequences go on over a change: by invariant 1 their text is the same under every tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How speculative lengths are chosen.
    pub policy: Policy,
    /// What policies that predict may use.
    pub mechanisms: Mechanisms,
    /// Targets of requests that come from now on and bring none of their own.
    pub slo: Slo,
    /// Cap on the speculative length of every sequence, at most [`K_LIMIT`]; 0 switches speculation off, `None` leaves it to the policy.
    pub k_max: Option<usize>,
    /// The one partition, counted from 1, for overlapped execution; `None` leaves the choice to the planner.
    pub partition: Option<usize>,
    /// Sequences that may hold KV at once, no more than the engine was built with; of those that do none is preempted.
    pub max_running: usize,
    /// Requests that may wait; of those that do none is refused.
    pub max_waiting: usize,
    /// Rows of prompts in a pass that has sequences that decode, so that their streams do not wait long; `None`: what is left of the pass.
    pub max_prefill_rows: Option<usize>,
}

impl Default for Tuning {
    /// What a config that says nothing stands for.
    fn default() -> Tuning {
        Tuning {
            policy: Policy::Faser,
            mechanisms: Mechanisms::default(),
            slo: Slo::default(),
            k_max: None,
            partition: None,
            max_running: 64,
            max_waiting: 256,
            max_prefill_rows: None,
        }
    }
}

impl Tuning {
    /// The cap as a number.
    pub(crate) fn k_cap(&self) -> usize {
        self.k_max.unwrap_or(K_LIMIT)
    }
}

/// Why an engine cannot be built, or not be tuned so.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A size that has to be at least one is zero.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// More rows are needed for one row per running sequence.
    #[error(
        "max_pass_rows ({rows}) must be at least max_running ({running}), so that every sequence gets its row"
    )]
    PassTooSmall {
        /// `max_pass_rows`.
        rows: usize,
        /// `max_running`.
        running: usize,
    },
    /// One sequence of `max_context` tokens does not fit.
    #[error(
        "the {pool} pool holds {tokens} tokens, but one sequence may have {context}: enlarge the KV memory or lower max_context"
    )]
    PoolTooSmall {
        /// `target` or `draft`.
        pool: &'static str,
        /// Tokens the pool holds.
        tokens: usize,
        /// `max_context`.
        context: usize,
    },
    /// More ranks have a draft each than an engine keeps apart, or a draft that cannot.
    #[error("{copies} ranks cannot have {draft} each: 1 to {MOST_COPIES} can have a draft model")]
    Copies {
        /// Ranks that were to have one.
        copies: usize,
        /// What drafts.
        draft: DraftSource,
    },
    /// A policy that predicts has nothing to predict from.
    #[error("policy {0} needs the cost tables of the device")]
    NoCosts(String),
    /// The policy cannot be honoured.
    #[error("{0}")]
    Policy(String),
    /// More than the engine and its lanes were built for.
    #[error("{name} is {asked}, and this was started for at most {built}")]
    Beyond {
        /// What is too large.
        name: &'static str,
        /// What is asked for.
        asked: usize,
        /// What there is room for.
        built: usize,
    },
    /// There is no such partition for overlapped execution, or nobody knows what passes cost on it.
    #[error("partition {asked} is not there: of partitions for overlapped execution {there} are known")]
    Partition {
        /// The partition asked for.
        asked: usize,
        /// How many there are, counted from 1.
        there: usize,
    },
}

impl EngineConfig {
    /// Checks everything that `Engine::new` relies on.
    ///
    /// # Errors
    /// The first bound that cannot be honoured.
    pub fn validate(&self) -> Result<(), EngineError> {
        for (value, name) in [
            (self.block_size, "block_size"),
            (self.tuning.max_running, "max_running"),
            (self.tuning.max_waiting, "max_waiting"),
            (self.max_context, "max_context"),
        ] {
            if value == 0 {
                return Err(EngineError::Zero(name));
            }
        }
        if self.max_pass_rows < self.tuning.max_running {
            return Err(EngineError::PassTooSmall {
                rows: self.max_pass_rows,
                running: self.tuning.max_running,
            });
        }
        self.pool_holds_a_sequence("target", self.target_blocks)?;
        if let blocks @ 1.. = self.draft.needs().blocks {
            self.pool_holds_a_sequence("draft", blocks)?;
        }
        let copies = self.speculation.draft_copies;
        // The features that a head reads are beside the target's KV, on one rank.
        if copies == 0 || copies > MOST_COPIES || copies > 1 && self.draft.needs().hidden_states {
            return Err(EngineError::Copies { copies, draft: self.draft });
        }
        // A policy made by hand is held to what its text form allows.
        self.tuning.policy.to_string().parse::<Policy>().map_err(EngineError::Policy)?;
        if self.tuning.policy.traits().predicts && self.partitions.is_empty() {
            return Err(EngineError::NoCosts(self.tuning.policy.to_string()));
        }
        if self.draft.drafts() { self.tunable(&self.tuning) } else { Ok(()) }
    }

    fn pool_holds_a_sequence(&self, pool: &'static str, blocks: usize) -> Result<(), EngineError> {
        let tokens = blocks.saturating_mul(self.block_size);
        if tokens < self.max_context {
            return Err(EngineError::PoolTooSmall { pool, tokens, context: self.max_context });
        }
        Ok(())
    }

    /// Chunks that a draft plan may have: one for each sequence, or as many outcomes as are worth looking at where few run.
    pub fn draft_chunks(&self) -> usize {
        let most = self.tuning.max_running;
        let outcomes = OUTCOME_CHUNKS * self.speculation.draft_copies;
        if self.draft.needs().goes_on() { most.max(outcomes).min(self.max_pass_rows) } else { most }
    }

    /// A tuning as the planner goes by it: nobody works beside a pass who cannot go on from proposals that it verifies.
    pub(crate) fn deciding(&self, tuning: &Tuning) -> Tuning {
        let overlap = tuning.mechanisms.overlap && self.draft.needs().goes_on();
        Tuning { mechanisms: Mechanisms { overlap, ..tuning.mechanisms }, ..tuning.clone() }
    }

    /// Whether an engine that was built from this config can be tuned so.
    ///
    /// # Errors
    /// The first value that needs another engine, other lanes, or costs that nobody has measured.
    pub fn tunable(&self, tuning: &Tuning) -> Result<(), EngineError> {
        let prefill = tuning.max_prefill_rows.unwrap_or(1);
        for (value, name) in [
            (tuning.max_running, "max_running"),
            (tuning.max_waiting, "max_waiting"),
            (prefill, "max_prefill_rows"),
        ] {
            if value == 0 {
                return Err(EngineError::Zero(name));
            }
        }
        if tuning.max_running > self.tuning.max_running {
            return Err(EngineError::Beyond {
                name: "max_running",
                asked: tuning.max_running,
                built: self.tuning.max_running,
            });
        }
        if tuning.k_cap() > K_LIMIT {
            return Err(EngineError::Beyond { name: "k_max", asked: tuning.k_cap(), built: K_LIMIT });
        }
        tuning.policy.to_string().parse::<Policy>().map_err(EngineError::Policy)?;
        let traits = tuning.policy.traits();
        // A policy outlives the draft that it was made for.
        if traits.drafts && !traits.lookup && !self.draft.drafts() && !self.draft.is_retired() {
            return Err(EngineError::Policy(format!("policy {} needs a draft model", tuning.policy)));
        }
        let k = tuning.policy.k_max().min(tuning.k_cap());
        if k > self.speculation.room {
            return Err(EngineError::Beyond { name: "k", asked: k, built: self.speculation.room });
        }
        if traits.predicts && self.partitions.is_empty() {
            return Err(EngineError::NoCosts(tuning.policy.to_string()));
        }
        match tuning.partition {
            Some(place) if place == 0 || traits.overlaps && place >= self.partitions.len() => {
                Err(EngineError::Partition { asked: place, there: self.partitions.len().saturating_sub(1) })
            }
            _ => Ok(()),
        }
    }
}
