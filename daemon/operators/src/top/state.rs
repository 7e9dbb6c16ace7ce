//! What `faser top` knows at a moment: the last snapshot, the past that is drawn, and what its user has asked for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::feed::Message;
use crate::admin::snapshot::{Figures, RequestRow, Snapshot};
use crate::admin::timeline::PassRow;

/// Values of the line of throughput.
const HISTORY: usize = 240;
/// Intervals that `+` and `-` go through.
const INTERVALS_MS: [u64; 7] = [100, 250, 500, 1000, 2000, 5000, 10_000];
/// The longest span of the lanes' picture.
const LONGEST_SPAN: Duration = Duration::from_secs(10);
/// The shortest.
const SHORTEST_SPAN: Duration = Duration::from_secs(1);

/// What a replica's lanes did, the latest last.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub passes: Vec<PassRow>,
    pub now_us: u64,
    /// Nothing is missing from here on.
    pub from_us: u64,
}

/// All that is drawn.
#[derive(Debug, Default)]
pub(super) struct State {
    pub status: Option<Snapshot>,
    /// Why nobody answers, if so.
    pub gone: Option<String>,
    /// Output tokens per second of what is shown, the oldest first.
    pub rates: VecDeque<f64>,
    pub lanes: BTreeMap<usize, Lanes>,
    pub every: Duration,
    /// Events come, and are not shown.
    pub paused: bool,
    pub help: bool,
    /// The replica that is shown; none: all together.
    pub replica: Option<usize>,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Quit,
    /// Events at another interval, which the state has already.
    Interval,
    Nothing,
}

impl State {
    pub(super) fn new(every: Duration) -> State {
        State { every, ..State::default() }
    }

    /// Takes what came.
    pub(super) fn take(&mut self, message: Message) {
        if self.paused {
            return;
        }
        match message {
            Message::Gone(why) => self.gone = Some(why),
            Message::Status(status) => {
                self.gone = None;
                self.collect(&status);
                self.status = Some(*status);
                self.rates.push_back(self.figures().map_or(0.0, |figures| figures.output_tokens_per_s));
                if self.rates.len() > HISTORY {
                    self.rates.pop_front();
                }
            }
        }
    }

    fn collect(&mut self, status: &Snapshot) {
        for replica in &status.replicas {
            let Some(timeline) = &replica.timeline else { continue };
            let lanes = self.lanes.entry(replica.replica).or_default();
            // A daemon that was started anew begins its time anew, and what was missed leaves a hole.
            if timeline.now_us < lanes.now_us || timeline.from_us > lanes.now_us {
                *lanes = Lanes { from_us: timeline.from_us, ..Lanes::default() };
            }
            lanes.now_us = timeline.now_us;
            lanes.passes.extend_from_slice(&timeline.passes);
            let oldest = timeline.now_us.saturating_sub(LONGEST_SPAN.as_micros() as u64);
            lanes.passes.retain(|pass| pass.ended_us >= oldest);
        }
    }

    /// The figures that are shown.
    pub(super) fn figures(&self) -> Option<&Figures> {
        let status = self.status.as_ref()?;
        match self.replica {
            None => Some(&status.total),
            Some(number) => status
                .replicas
                .iter()
                .find(|replica| replica.replica == number)
                .map(|replica| &replica.figures),
        }
    }

    /// The oldest requests of what is shown.
    pub(super) fn requests(&self) -> Vec<&RequestRow> {
        let requests = self.status.iter().flat_map(|status| &status.slowest);
        let shown = |request: &&RequestRow| {
            self.replica.is_none_or(|number| request.id.split('-').next() == Some(&number.to_string()))
        };
        requests.filter(shown).collect()
    }

    /// The time that the lanes' picture is over.
    pub(super) fn span(&self) -> Duration {
        self.every.clamp(SHORTEST_SPAN, LONGEST_SPAN)
    }

    /// A key.
    pub(super) fn press(&mut self, key: char) -> Asked {
        match key {
            'q' => return Asked::Quit,
            'p' | ' ' => self.paused = !self.paused,
            'h' | '?' => self.help = !self.help,
            'r' => self.next_replica(),
            '+' | '=' => return self.interval(|ms| INTERVALS_MS.into_iter().find(|next| *next > ms)),
            '-' => return self.interval(|ms| INTERVALS_MS.into_iter().rfind(|next| *next < ms)),
            _ => {}
        }
        Asked::Nothing
    }

    fn interval(&mut self, next: impl Fn(u64) -> Option<u64>) -> Asked {
        match next(self.every.as_millis() as u64) {
            Some(ms) => {
                self.every = Duration::from_millis(ms);
                Asked::Interval
            }
            None => Asked::Nothing,
        }
    }

    /// All together, then one after the other.
    fn next_replica(&mut self) {
        let count = self.status.as_ref().map_or(0, |status| status.replicas.len());
        self.replica = match self.replica {
            None if count > 1 => Some(0),
            Some(number) if number + 1 < count => Some(number + 1),
            _ => None,
        };
        // Those of another one.
        self.rates.clear();
    }
}
