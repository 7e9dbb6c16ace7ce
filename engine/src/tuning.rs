//! What of an engine can change while it runs, and what it must have been built with for that.

use crate::api::{K_LIMIT, Refusal, Slo, SpeculationMode};
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
    /// Cap on the speculative length of every sequence, at most [`K_LIMIT`]; 0 switches speculation off, `None` leaves it to the policy.
    pub k_max: Option<usize>,
    /// The one partition, counted from 1, for overlapped execution; `None` leaves the choice to the planner.
    pub partition: Option<usize>,
    /// Sequences that may hold KV at once, no more than the engine was built with; of those that do none is put back.
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
    fn k_cap(&self) -> usize {
        self.k_max.unwrap_or(K_LIMIT)
    }
}

impl EngineConfig {
    /// A tuning as the planner goes by it: nobody can work beside a pass without a draft model.
    pub(crate) fn deciding(&self, tuning: &Tuning) -> Tuning {
        let overlap = tuning.mechanisms.overlap && self.draft.drafts();
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
        if traits.drafts && !traits.copies && !self.draft.drafts() {
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
        self.planner.tune(&self.config.deciding(&tuning));
        self.pruning.want(tuning.mechanisms.prune && tuning.policy.traits().prunes);
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

    /// Whether there can be proposals of the only kind that a request lets come.
    ///
    /// # Errors
    /// Why not.
    pub fn proposes(&self, mode: SpeculationMode) -> Result<(), Refusal> {
        let Tuning { policy, mechanisms, .. } = &self.tuning;
        let why = match mode {
            SpeculationMode::Draft if !self.config.draft.drafts() => {
                "there is no draft model here (`model.draft: none`)"
            }
            SpeculationMode::Draft if !policy.traits().drafts => {
                "nothing is drafted here (`speculation.policy: off`)"
            }
            SpeculationMode::Lookup if !mechanisms.lookup => {
                "nothing is copied here (`speculation.lookup: false`)"
            }
            SpeculationMode::Lookup if !policy.traits().copies => {
                "nothing is copied here (`speculation.policy` is neither `budget` nor `faser`)"
            }
            _ => return Ok(()),
        };
        Err(Refusal::Mode { mode, why })
    }

    /// The most proposals that any sequence may have now.
    pub(crate) fn k_limit(&self) -> usize {
        let proposes = self.config.draft.drafts() || self.copies();
        if proposes { self.tuning.k_cap().min(self.config.speculation.room) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::{Command, Event, Handling, Request, SeqId};
    use crate::config::SpeculationBounds;
    use crate::cost::PassCost;
    use crate::source::DraftSource;

    fn config() -> EngineConfig {
        EngineConfig {
            block_size: 4,
            target_blocks: 64,
            draft: DraftSource::model(64),
            max_pass_rows: 32,
            max_context: 64,
            partitions: Vec::new(),
            target_layers: 4,
            speculation: SpeculationBounds { room: 4, ..SpeculationBounds::default() },
            prefix_cache: true,
            tuning: Tuning {
                max_running: 4,
                max_waiting: 3,
                policy: Policy::Fixed { k: 2 },
                ..Tuning::default()
            },
        }
    }

    fn request(seq: u64, k_max: Option<usize>) -> Event {
        let handling = Handling { k_max, ..Handling::default() };
        Event::Submit(Request { handling, ..Request::new(SeqId(seq), [1, 2, 3], 8) })
    }

    fn tell(engine: &mut Engine, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        engine.handle(Duration::ZERO, event, &mut commands);
        commands
    }

    #[test]
    fn what_needs_other_lanes_or_costs_is_refused_and_changes_nothing() {
        let config = config();
        let tuning = config.tuning.clone();
        let mut engine = Engine::new(config.clone()).expect("a valid config");
        for wrong in [
            Tuning { max_running: 5, ..tuning.clone() },
            Tuning { max_running: 0, ..tuning.clone() },
            Tuning { policy: Policy::Fixed { k: 5 }, ..tuning.clone() },
            Tuning { policy: Policy::Budget, k_max: Some(3), ..tuning.clone() },
            Tuning { policy: Policy::Faser, partition: Some(1), ..tuning.clone() },
            Tuning { partition: Some(0), ..tuning.clone() },
            Tuning { max_prefill_rows: Some(0), ..tuning.clone() },
            Tuning { k_max: Some(K_LIMIT + 1), ..tuning.clone() },
        ] {
            assert!(config.tunable(&wrong).is_err(), "{wrong:?}");
            tell(&mut engine, Event::Tune(wrong));
            assert_eq!(*engine.tuning(), tuning);
        }
        // With a cap that there is room for, the same policy can be had.
        assert_eq!(
            config.tunable(&Tuning { policy: Policy::Fixed { k: 5 }, k_max: Some(4), ..tuning }),
            Ok(())
        );
        let without_draft = EngineConfig { draft: DraftSource::Lookup, ..config };
        let off = Tuning { policy: Policy::Off, ..without_draft.tuning.clone() };
        assert!(without_draft.tunable(&without_draft.tuning.clone()).is_err());
        assert_eq!(without_draft.tunable(&off), Ok(()));
    }

    #[test]
    fn a_shorter_queue_refuses_the_next_and_nobody_who_waits() {
        let mut engine = Engine::new(config()).expect("a valid config");
        // Without a device everybody waits.
        tell(&mut engine, Event::DeviceLost);
        (1..=3).for_each(|seq| assert!(tell(&mut engine, request(seq, None)).is_empty()));
        let tuning = engine.tuning().clone();
        tell(&mut engine, Event::Tune(Tuning { max_waiting: 1, ..tuning.clone() }));
        let refused = tell(&mut engine, request(4, None));
        let full = Refusal::QueueFull { waiting: 3, capacity: 1 };
        assert!(matches!(&refused[..], [Command::Reject { why, .. }] if *why == full), "{refused:?}");
        assert_eq!(engine.view().waiting, 3);
        tell(&mut engine, Event::Tune(Tuning { max_waiting: 9, ..tuning }));
        assert!(tell(&mut engine, request(4, None)).is_empty());
    }

    #[test]
    fn a_mode_by_which_nothing_could_ever_be_proposed_is_refused_and_off_never() {
        let refused = |config: EngineConfig, mode| {
            let mut engine = Engine::new(config).expect("a valid config");
            let mut submit = request(1, None);
            if let Event::Submit(request) = &mut submit {
                request.handling.mode = mode;
            }
            match &tell(&mut engine, submit)[..] {
                [Command::Reject { why: Refusal::Mode { why, .. }, .. }] => Some(*why),
                other => {
                    assert!(!other.iter().any(|command| matches!(command, Command::Reject { .. })));
                    None
                }
            }
        };
        let costs = PartitionCosts { draft: PassCost::nothing(), verify: PassCost::nothing() };
        let with = |policy, blocks, lookup| EngineConfig {
            draft: DraftSource::model(blocks),
            partitions: vec![costs.clone()],
            speculation: SpeculationBounds { room: 4, ..SpeculationBounds::default() },
            tuning: Tuning {
                policy,
                mechanisms: Mechanisms { lookup, ..Mechanisms::default() },
                k_max: Some(4),
                ..config().tuning
            },
            ..config()
        };
        let words = |config: EngineConfig, mode| refused(config, mode).unwrap_or_default();
        use SpeculationMode::{Auto, Draft, Lookup, Off};
        assert!(words(with(Policy::Budget, 0, true), Draft).contains("model.draft"));
        assert!(words(with(Policy::Off, 64, true), Draft).contains("speculation.policy: off"));
        assert!(words(with(Policy::Faser, 64, false), Lookup).contains("speculation.lookup"));
        assert!(words(with(Policy::Fixed { k: 2 }, 64, true), Lookup).contains("neither"));
        for (config, modes) in [
            (with(Policy::Budget, 0, true), [Auto, Off, Lookup]),
            (with(Policy::Fixed { k: 2 }, 64, false), [Auto, Off, Draft]),
            (with(Policy::Off, 0, false), [Auto, Off, Off]),
            (with(Policy::Faser, 64, true), [Auto, Lookup, Draft]),
        ] {
            assert!(modes.into_iter().all(|mode| refused(config.clone(), mode).is_none()), "{config:?}");
        }
    }

    #[test]
    fn a_cap_counts_for_requests_that_are_there_and_never_lifts_their_own() {
        let mut engine = Engine::new(config()).expect("a valid config");
        tell(&mut engine, Event::DeviceLost);
        tell(&mut engine, request(1, None));
        tell(&mut engine, request(2, Some(1)));
        let speculates = |engine: &Engine| [1, 2].map(|seq| engine.sequences[&SeqId(seq)].speculates());
        let tuning = engine.tuning().clone();
        assert_eq!(speculates(&engine), [true, true]);
        tell(&mut engine, Event::Tune(Tuning { k_max: Some(0), ..tuning.clone() }));
        assert_eq!(speculates(&engine), [false, false]);
        tell(&mut engine, Event::Tune(Tuning { k_max: Some(3), ..tuning }));
        assert_eq!(speculates(&engine), [true, true]);
        let requests = engine.requests(Duration::from_secs(1), 1);
        assert_eq!((requests.len(), requests[0].seq, requests[0].age), (1, SeqId(1), Duration::from_secs(1)));
    }
}
