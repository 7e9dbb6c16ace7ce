//! What an engine is built from: bounds, pool sizes, policy.

use crate::api::{K_LIMIT, Refusal};
use crate::cost::PartitionCosts;
use crate::policy::Policy;
use crate::source::DraftSource;
use crate::tuning::Tuning;

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
    /// Bounds of speculation, whatever the policy.
    pub speculation: SpeculationBounds,
    /// Keep the KV of finished prompts for later requests with the same beginning.
    pub prefix_cache: bool,
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
}

impl Default for SpeculationBounds {
    /// None but the engine's own.
    fn default() -> SpeculationBounds {
        SpeculationBounds { room: K_LIMIT, draft_context: usize::MAX }
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
    /// A policy that predicts has nothing to predict from.
    #[error("policy {0} needs the cost tables of the device")]
    NoCosts(String),
    /// The engine does not plan for what drafts.
    #[error("{0} is not served yet")]
    Source(DraftSource),
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
        self.draft.check()?;
        if let blocks @ 1.. = self.draft.needs().blocks {
            self.pool_holds_a_sequence("draft", blocks)?;
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

    /// Whether a request of these lengths can be served at all.
    pub(crate) fn admits(&self, prompt_tokens: usize, max_new_tokens: usize) -> Result<(), Refusal> {
        if prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if max_new_tokens == 0 {
            return Err(Refusal::NothingToGenerate);
        }
        if prompt_tokens.saturating_add(max_new_tokens) > self.max_context {
            return Err(Refusal::TooLong { prompt_tokens, max_new_tokens, max_context: self.max_context });
        }
        Ok(())
    }
}
