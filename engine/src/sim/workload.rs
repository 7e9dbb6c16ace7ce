//! A workload: when requests come, how long they are, what they are about, who leaves early, and what breaks.

use std::time::Duration;

use super::acceptance::Acceptance;
use super::arrivals::Arrivals;
use super::lengths::Lengths;
use super::random::Random;
use super::{Happening, SimDevice};
use crate::plan::LaneKind;
use crate::request::{Request, SeqId, TokenId};

/// Tokens of the simulated vocabulary.
const VOCABULARY: u32 = 32_000;

/// What clients do.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// When they come.
    pub arrivals: Arrivals,
    /// Until when they come.
    pub duration: Duration,
    /// How long their prompts and outputs are.
    pub lengths: Lengths,
    /// What their texts are about, and so how often the draft is right.
    pub acceptance: Acceptance,
    /// Tokens of a sequence at most.
    pub max_context: usize,
    /// What goes wrong.
    pub faults: Faults,
    /// The same seed gives the same workload.
    pub seed: u64,
}

/// What goes wrong in a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of the clients that leave before they have everything.
    pub cancelled: f64,
    /// Mean time between losses of the device, each of two seconds; none if absent.
    pub device_lost_every: Option<Duration>,
    /// Mean time between slow spells of a lane, each of five seconds at a third of the speed; none if absent.
    pub slow_lane_every: Option<Duration>,
}

impl Workload {
    /// Everything that happens, the same for the same seed.
    pub fn happenings(&self) -> Vec<(Duration, Happening)> {
        let mut random = Random::new(self.seed);
        let classes = self.acceptance.classes();
        let mut happenings = Vec::new();
        for (seq, at) in (0..).map(SeqId).zip(self.arrivals.times(self.duration, random.next())) {
            let (prompt, max_new_tokens) = self.lengths.draw(&mut random, self.max_context);
            let mut share = random.uniform() * classes.iter().map(|class| class.share).sum::<f64>();
            let class = classes.iter().position(|class| {
                share -= class.share;
                share < 0.0
            });
            let class = class.unwrap_or(0) as TokenId;
            let tokens = (1..prompt).map(|_| random.below(u64::from(VOCABULARY)) as TokenId);
            let prompt: Vec<TokenId> = [class].into_iter().chain(tokens).collect();
            let request = Request::new(seq, prompt, max_new_tokens);
            happenings.push((at, Happening::Arrival(request)));
            if random.uniform() < self.faults.cancelled {
                happenings
                    .push((at + Duration::from_secs_f64(random.exponential(3.0)), Happening::Cancel(seq)));
            }
        }
        self.break_things(&mut random, &mut happenings);
        happenings
    }

    fn break_things(&self, random: &mut Random, happenings: &mut Vec<(Duration, Happening)>) {
        let mut every = |mean: Option<Duration>, happening: &dyn Fn(u64) -> Happening| {
            let Some(mean) = mean.filter(|mean| !mean.is_zero()) else { return };
            let mut at = random.exponential(mean.as_secs_f64());
            while at < self.duration.as_secs_f64() {
                happenings.push((Duration::from_secs_f64(at), happening(random.next())));
                // A device is back before it is lost again.
                at += 10.0 + random.exponential(mean.as_secs_f64());
            }
        };
        every(self.faults.device_lost_every, &|_| Happening::DeviceLost { rebuild: Duration::from_secs(2) });
        every(self.faults.slow_lane_every, &|coin| Happening::SlowLane {
            lane: if coin % 2 == 0 { LaneKind::Draft } else { LaneKind::Verify },
            factor: 3.0,
            lasts: Duration::from_secs(5),
        });
    }

    /// A device on which these texts are written.
    pub fn device(&self, block_size: usize, costs: impl Into<super::DeviceCosts>) -> SimDevice {
        SimDevice::new(self.seed, VOCABULARY, self.acceptance.clone(), block_size, costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(seed: u64) -> Workload {
        Workload {
            arrivals: Arrivals::Poisson { per_s: 20.0 },
            duration: Duration::from_secs(100),
            lengths: Lengths::exactly(20, 30),
            acceptance: Acceptance::mixed(),
            max_context: 100,
            faults: Faults {
                cancelled: 0.1,
                device_lost_every: Some(Duration::from_secs(30)),
                slow_lane_every: Some(Duration::from_secs(30)),
            },
            seed,
        }
    }

    #[test]
    fn a_workload_is_its_seed_and_has_what_it_should() {
        let texts = |seed| format!("{:?}", workload(seed).happenings());
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
        let happenings = workload(1).happenings();
        let count = |test: fn(&Happening) -> bool| happenings.iter().filter(|(_, h)| test(h)).count();
        assert!((1800..2200).contains(&count(|h| matches!(h, Happening::Arrival(_)))));
        assert!((140..260).contains(&count(|h| matches!(h, Happening::Cancel(_)))));
        assert!(count(|h| matches!(h, Happening::DeviceLost { .. })) > 0);
        assert!(count(|h| matches!(h, Happening::SlowLane { .. })) > 0);
        let chats =
            happenings.iter().filter(|(_, h)| matches!(h, Happening::Arrival(r) if r.prompt[0] == 0)).count();
        assert!((800..1000).contains(&chats), "{chats}");
    }
}
