//! What of an engine can change while it runs, and what it must have been built with for that.

use crate::api::{K_LIMIT, Slo};
use crate::config::{EngineConfig, EngineError};
use crate::cost::PartitionCosts;
use crate::engine::Engine;
use crate::policy::{Mechanisms, Policy};

/// What can be set anew at any time. Sequences go on over a change: by invariant 1 their text is the same under every tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How speculative lengths are chosen.
    pub policy: Policy,
    /// What policies that predict may use.
    pub mechanisms: Mechanisms,
    /// Targets of requests that come from now on and bring none of their own.
    pub slo: Slo,
    /// Cap on the speculative length of every sequence; 0 switches speculation off.
    pub k_max: usize,
    /// The one partition, counted from 1, for overlapped execution; `None` leaves the choice to the planner.
    pub partition: Option<usize>,
    /// Sequences that may hold KV at once; of those that do none is put back.
    pub max_running: usize,
    /// Requests that may wait; of those that do none is refused.
    pub max_waiting: usize,
}

impl EngineConfig {
    /// The tuning that an engine of this config starts with.
    pub fn tuning(&self) -> Tuning {
        Tuning {
            policy: self.policy.clone(),
            mechanisms: self.mechanisms,
            slo: self.slo,
            k_max: self.speculation.k_max,
            partition: self.speculation.partition,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
        }
    }

    /// Whether an engine that was built from this config can be tuned so.
    ///
    /// # Errors
    /// The first value that needs another engine, other lanes, or costs that nobody has measured.
    pub fn tunable(&self, tuning: &Tuning) -> Result<(), EngineError> {
        for (value, name) in [(tuning.max_running, "max_running"), (tuning.max_waiting, "max_waiting")] {
            if value == 0 {
                return Err(EngineError::Zero(name));
            }
        }
        if tuning.max_running > self.max_running {
            return Err(EngineError::Beyond {
                name: "max_running",
                asked: tuning.max_running,
                built: self.max_running,
            });
        }
        if tuning.k_max > K_LIMIT {
            return Err(EngineError::Beyond { name: "k_max", asked: tuning.k_max, built: K_LIMIT });
        }
        tuning.policy.to_string().parse::<Policy>().map_err(EngineError::Policy)?;
        if tuning.policy != Policy::Off && self.draft_blocks == 0 {
            return Err(EngineError::Policy(format!("policy {} needs a draft model", tuning.policy)));
        }
        let k = tuning.policy.k_max().min(tuning.k_max);
        if k > self.speculation.room {
            return Err(EngineError::Beyond { name: "k", asked: k, built: self.speculation.room });
        }
        if tuning.policy.needs_costs() && self.partitions.is_empty() {
            return Err(EngineError::NoCosts(tuning.policy.to_string()));
        }
        match tuning.partition {
            Some(place) if place == 0 || tuning.policy == Policy::Faser && place >= self.partitions.len() => {
                Err(EngineError::Partition { asked: place, there: self.partitions.len().saturating_sub(1) })
            }
            _ => Ok(()),
        }
    }
}

impl Engine {
    /// What it was built from; of its partitions the latest costs that it was told, not what it has learned since.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What stands.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Takes over a tuning. One that this engine cannot have changes nothing: whoever sends it asks [`EngineConfig::tunable`] first.
    pub(crate) fn tune(&mut self, tuning: Tuning) {
        if self.config.tunable(&tuning).is_err() {
            return;
        }
        self.planner.tune(&tuning);
        self.pruning.want(tuning.mechanisms.prune && tuning.policy == Policy::Faser);
        self.tuning = tuning;
        let limit = self.k_limit();
        self.sequences.values_mut().for_each(|sequence| sequence.limit_k(limit));
    }

    /// Takes over what passes cost, measured anew: as many partitions as before, or the first.
    pub(crate) fn profiled(&mut self, partitions: Vec<PartitionCosts>) {
        let known = self.config.partitions.len();
        if partitions.is_empty() || known > 0 && known != partitions.len() {
            return;
        }
        self.planner.profiled(partitions.clone());
        self.config.partitions = partitions;
    }

    /// The most proposals that any sequence may have now.
    pub(crate) fn k_limit(&self) -> usize {
        if self.config.draft_blocks > 0 { self.tuning.k_max.min(self.config.speculation.room) } else { 0 }
    }
}
