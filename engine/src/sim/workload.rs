//! A workload: when requests come, how long they are, what they are about, who leaves early, and what breaks.

use std::sync::Arc;
use std::time::Duration;

use super::acceptance::Acceptance;
use super::arrivals::Arrivals;
use super::kv::{Origin, Prefix};
use super::lengths::Lengths;
use super::random::{Random, mix, uniform};
use super::replay::Trace;
use super::{Happening, SimDevice};
use crate::plan::LaneKind;
use crate::request::{Request, SeqId, Slo, SpeculationMode, TokenId};

/// Tokens of the simulated vocabulary.
const VOCABULARY: u32 = 32_000;

/// Tokens of its own at the end of a prompt that was seen before, at least.
const OWN_TOKENS: usize = 16;

/// What clients do.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// When they come.
    pub arrivals: Arrivals,
    /// Until when they come.
    pub duration: Duration,
    /// How long their prompts and outputs are, without a trace.
    pub lengths: Lengths,
    /// Recorded requests: these are asked, one after the other, whenever somebody comes.
    pub trace: Option<Arc<Trace>>,
    /// What their texts are about, and so how often the draft is right.
    pub acceptance: Acceptance,
    /// Tokens of a sequence at most.
    pub max_context: usize,
    /// Share of the requests whose prompt was seen before, all but its last 16 tokens: those of a class begin alike.
    pub cached_prompts: f64,
    /// Latency targets of every request.
    pub slo: Slo,
    /// Where the proposals of every request come from.
    pub mode: SpeculationMode,
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
        let mut happenings = Vec::new();
        for Client { arrives, request, leaves, .. } in self.clients(&mut random) {
            let seq = request.seq;
            happenings.push((arrives, Happening::Arrival(request)));
            happenings.extend(leaves.map(|at| (at, Happening::Cancel(seq))));
        }
        self.break_things(&mut random, &mut happenings);
        happenings
    }

    /// Those who come, in the order of their numbers.
    fn clients<'a>(&'a self, random: &'a mut Random) -> impl Iterator<Item = Client> + use<'a> {
        let classes = self.acceptance.classes();
        let drawn = self.arrivals.times(self.duration, random.next());
        let times = match (&self.trace, self.arrivals) {
            (Some(trace), Arrivals::Replayed) => {
                trace.before(self.duration).iter().map(|request| request.at).collect()
            }
            _ => drawn,
        };
        let recorded = self.trace.iter().flat_map(|trace| trace.requests()).cycle();
        let recorded = recorded.map(Some).chain(std::iter::repeat(None));
        (0..).map(SeqId).zip(times).zip(recorded).map(move |((seq, arrives), recorded)| {
            let (length, max_new_tokens) = match recorded {
                Some(recorded) => recorded.lengths(self.max_context),
                None => self.lengths.draw(random, self.max_context),
            };
            let mut share = random.uniform() * classes.iter().map(|class| class.share).sum::<f64>();
            let class = classes.iter().position(|class| {
                share -= class.share;
                share < 0.0
            });
            let class = class.unwrap_or(0) as TokenId;
            let tokens = (1..length).map(|_| random.below(u64::from(VOCABULARY)) as TokenId);
            let mut prompt: Vec<TokenId> = [class].into_iter().chain(tokens).collect();
            let prefix = Prefix::of(&prompt);
            let origin = prefix.origin;
            let quoted = self.acceptance.phrases(class).quoted(&prefix);
            prompt.iter_mut().skip(OWN_TOKENS).zip(quoted).for_each(|(token, quoted)| *token = quoted);
            // Lengths, classes and all else are those of the same seed with other shares.
            if let Some(recorded) = recorded {
                let places = prompt.iter_mut().enumerate();
                for (place, token) in places.take(recorded.blocks.len() * Trace::BLOCK_TOKENS) {
                    *token = block_token(
                        recorded.blocks[place / Trace::BLOCK_TOKENS],
                        place % Trace::BLOCK_TOKENS,
                    );
                }
            } else if uniform(mix(self.seed ^ 0xcac4ed).wrapping_add(seq.0)) < self.cached_prompts {
                let common = length.saturating_sub(OWN_TOKENS);
                (1..common).for_each(|place| prompt[place] = self.common_token(class, place));
            }
            let leaves = random.uniform() < self.faults.cancelled;
            let leaves = leaves.then(|| arrives + Duration::from_secs_f64(random.exponential(3.0)));
            let mut request = Request::new(seq, prompt, max_new_tokens);
            (request.handling.slo, request.handling.mode) = (self.slo, self.mode);
            Client { arrives, request, origin, leaves }
        })
    }

    /// A token of the beginning that prompts of a class have in common.
    fn common_token(&self, class: TokenId, place: usize) -> TokenId {
        let place = mix(u64::from(class) << 32 ^ place as u64);
        (mix(self.seed.rotate_left(31) ^ place) % u64::from(VOCABULARY)) as TokenId
    }

    /// Whether prompts begin alike, so that a prefix cache has something to find.
    pub fn shares_prompts(&self) -> bool {
        self.trace.as_ref().map_or(self.cached_prompts > 0.0, |trace| trace.shares_blocks())
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
        let device = SimDevice::new(self.seed, VOCABULARY, self.acceptance.clone(), block_size, costs);
        if !self.shares_prompts() {
            return device;
        }
        // What begins alike is still of a difficulty of its own.
        device.knowing(self.clients(&mut Random::new(self.seed)).map(|client| client.origin).collect())
    }
}

/// A token of a block that requests of a trace have in common.
fn block_token(block: u64, place: usize) -> TokenId {
    (mix(mix(block) ^ place as u64) % u64::from(VOCABULARY)) as TokenId
}

/// One who comes.
struct Client {
    arrives: Duration,
    request: Request,
    /// What its prompt is about, by its first tokens if it had them alone.
    origin: Origin,
    /// When it leaves without having everything.
    leaves: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::TracedRequest;

    fn workload(seed: u64) -> Workload {
        Workload {
            arrivals: Arrivals::Poisson { per_s: 20.0 },
            duration: Duration::from_secs(100),
            lengths: Lengths::exactly(20, 30),
            trace: None,
            acceptance: Acceptance::mixed(),
            max_context: 100,
            cached_prompts: 0.0,
            slo: Slo { tpot: Some(Duration::from_millis(50)), ttft: None },
            mode: SpeculationMode::Auto,
            faults: Faults {
                cancelled: 0.1,
                device_lost_every: Some(Duration::from_secs(30)),
                slow_lane_every: Some(Duration::from_secs(30)),
            },
            seed,
        }
    }

    fn arrivals(workload: &Workload) -> Vec<(Duration, Request)> {
        let arrivals = workload.happenings().into_iter().filter_map(|(at, happening)| match happening {
            Happening::Arrival(request) => Some((at, request)),
            _ => None,
        });
        arrivals.collect()
    }

    fn prompts(cached_prompts: f64) -> Vec<Vec<TokenId>> {
        let lengths = Lengths::named("humaneval").expect("a preset");
        let workload = Workload { cached_prompts, lengths, max_context: 2000, ..workload(1) };
        arrivals(&workload).into_iter().map(|(_, request)| request.prompt.to_vec()).collect()
    }

    /// How many tokens two prompts begin with in common.
    fn in_common(a: &[TokenId], b: &[TokenId]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn prompts_seen_before_begin_like_others_of_their_class_and_end_for_themselves() {
        let [none, some, all] = [0.0, 0.4, 1.0].map(prompts);
        assert!(none.windows(2).all(|pair| in_common(&pair[0], &pair[1]) < 4));
        let changed = none.iter().zip(&some).filter(|(a, b)| a != b).count() as f64 / none.len() as f64;
        assert!((0.36..0.44).contains(&changed), "{changed}");
        for (own, shared) in none.iter().zip(&all) {
            let tail = own.len().saturating_sub(OWN_TOKENS).max(1);
            assert_eq!((own.len(), own[0], &own[tail..]), (shared.len(), shared[0], &shared[tail..]));
        }
        let longest = all.iter().filter(|prompt| prompt[0] == 0).max_by_key(|prompt| prompt.len());
        let longest = longest.expect("a chat");
        for prompt in all.iter().filter(|prompt| prompt[0] == 0) {
            assert!(in_common(prompt, longest) >= prompt.len() - OWN_TOKENS, "{}", prompt.len());
        }
        let code = all.iter().find(|prompt| prompt[0] == 1).expect("code");
        assert!(in_common(code, longest) == 0 && in_common(&code[1..], &longest[1..]) < 4);
    }

    #[test]
    fn a_trace_has_its_times_its_lengths_and_what_its_prompts_share() {
        let recorded = |at, prompt_tokens, blocks: &[u64]| TracedRequest {
            at: Duration::from_secs(at),
            prompt_tokens,
            output_tokens: 30,
            blocks: blocks.into(),
        };
        let requests = vec![
            recorded(3, 1300, &[0, 1, 2]),
            recorded(5, 700, &[0, 7]),
            recorded(6, 1100, &[0, 1]),
            recorded(60, 5000, &[]),
        ];
        let traced = |requests: Vec<TracedRequest>, arrivals| Workload {
            trace: Some(Arc::new(Trace::new("four", 2.0, requests))),
            arrivals,
            max_context: 2000,
            duration: Duration::from_secs(50),
            ..workload(1)
        };
        let workload = traced(requests.clone(), Arrivals::Replayed);
        let all = arrivals(&workload);
        let times: Vec<u128> = all.iter().map(|(at, _)| at.as_millis()).collect();
        assert_eq!(times, [0, 1000, 1500, 28_500]);
        let lengths: Vec<_> = all.iter().map(|(_, r)| (r.prompt.len(), r.max_new_tokens)).collect();
        assert_eq!(lengths, [(1300, 30), (700, 30), (1100, 30), (1970, 30)]);
        let common = |a: usize, b: usize| in_common(&all[a].1.prompt, &all[b].1.prompt);
        assert!((512..516).contains(&common(0, 1)) && (1024..1028).contains(&common(0, 2)));
        assert!(common(0, 3) < 4 && workload.shares_prompts());
        let begun = Workload { duration: Duration::from_secs(1), ..workload };
        assert_eq!(arrivals(&begun).len(), 1);
        // A backlog begins anew when the trace is over.
        let backlog = arrivals(&traced(requests, Arrivals::Backlog { requests: 6 }));
        assert_eq!((backlog.len(), backlog[4].1.prompt.len(), backlog[4].0), (6, 1300, Duration::ZERO));
        assert!(!traced(vec![recorded(0, 9, &[])], Arrivals::Replayed).shares_prompts());
        assert!(arrivals(&traced(Vec::new(), Arrivals::Replayed)).is_empty());
    }

    #[test]
    fn a_workload_is_its_seed_and_has_what_it_should() {
        let texts = |seed| format!("{:?}", workload(seed).happenings());
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
        let happenings = workload(1).happenings();
        let slo = workload(1).slo;
        assert!(happenings.iter().all(|(_, h)| !matches!(h, Happening::Arrival(r) if r.handling.slo != slo)));
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
