//! What a simulation brought: per sequence and in all.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Emitted, FinishReason, Refusal};
use crate::record::{Mark, PassRecord, Record};
use crate::request::{SeqId, TokenId};
use crate::usage::Usage;
use crate::view::LoadView;

/// The outcome of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When it came.
    pub arrived: Duration,
    /// Everything emitted.
    pub tokens: Vec<TokenId>,
    /// Time from arrival to the first token.
    pub first_token_after: Option<Duration>,
    /// Time from arrival to the end.
    pub ended_after: Option<Duration>,
    /// Why it ended; none if it was refused.
    pub finish: Option<FinishReason>,
    /// What it took.
    pub usage: Usage,
    /// Why it was refused.
    pub refusal: Option<Refusal>,
}

/// The outcome of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Per request.
    pub outcomes: BTreeMap<SeqId, Outcome>,
    /// Virtual time at which the last sequence ended.
    pub makespan: Duration,
    /// The engine's own view at the end.
    pub view: LoadView,
    /// Commands the engine gave.
    pub commands: u64,
    /// End of the time over which `tokens_counted` were emitted; zero if nothing was counted.
    pub counted_until: Duration,
    /// Tokens emitted before that.
    pub tokens_counted: u64,
    /// Time at least one lane worked.
    pub any_lane_busy: Duration,
    /// Time both did.
    pub both_lanes_busy: Duration,
    /// Every pass that came to its end, in the order of their ends.
    pub passes: Vec<PassRecord>,
    /// Moments worth a mark, where the simulation was in detail.
    pub marks: Vec<(Duration, Mark)>,
    /// Layers of the target.
    pub target_layers: usize,
}

impl Report {
    /// Output tokens per virtual second, over all sequences, until the last has ended.
    pub fn tokens_per_second(&self) -> f64 {
        let tokens: usize = self.outcomes.values().map(|outcome| outcome.tokens.len()).sum();
        tokens as f64 / self.makespan.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// What the lanes did, from the beginning to the end.
    pub fn into_record(self) -> Record {
        let Report { passes, marks, target_layers, makespan, .. } = self;
        let until = passes.last().map_or(makespan, |pass| pass.ended.max(makespan));
        Record { from: Duration::ZERO, until, cut_short: false, target_layers, passes, marks }
    }

    pub(super) fn arrived(&mut self, seq: SeqId, now: Duration) {
        self.outcomes.entry(seq).or_insert_with(|| Outcome { arrived: now, ..Outcome::default() });
    }

    pub(super) fn emitted(&mut self, seq: SeqId, now: Duration, tokens: &[Emitted]) {
        if now < self.counted_until {
            self.tokens_counted += tokens.len() as u64;
        }
        let outcome = self.outcomes.entry(seq).or_default();
        outcome.first_token_after.get_or_insert(now - outcome.arrived);
        outcome.tokens.extend(tokens.iter().map(|emitted| emitted.token));
    }

    pub(super) fn finished(&mut self, seq: SeqId, now: Duration, reason: FinishReason, usage: Usage) {
        self.makespan = self.makespan.max(now);
        let outcome = self.outcomes.entry(seq).or_default();
        assert!(outcome.finish.is_none(), "{seq} ended twice");
        outcome.ended_after = Some(now - outcome.arrived);
        outcome.finish = Some(reason);
        outcome.usage = usage;
    }

    pub(super) fn rejected(&mut self, seq: SeqId, why: Refusal) {
        self.outcomes.entry(seq).or_default().refusal = Some(why);
    }
}
