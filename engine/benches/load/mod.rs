//! An engine under full load, driven by results made up on the spot.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::{
    Alternatives, CANDIDATES, Candidates, Command, DraftPlan, DraftSource, Drafted, Engine, EngineConfig,
    Event, Learned, PartitionId, Policy, Request, SeqId, SpeculationBounds, Totals, Tuning, Verdict,
    VerifyPlan,
};

/// An engine under full load: whoever ends is followed by another.
pub(crate) struct Load {
    engine: Engine,
    commands: Vec<Command>,
    next_seq: u64,
    /// Of proposals and of what comes, if texts do not repeat themselves.
    next_token: Option<u32>,
    /// What verdicts are drawn from.
    dice: u32,
    /// What a draft step takes.
    step: Duration,
    /// The end of the last pass: one that works beside another takes no time of its own.
    now: Duration,
    results: VecDeque<Event>,
}

impl Load {
    /// With so many sequences running, past their prefill; draft steps take so long. Texts that repeat themselves have long offers for everybody in
    /// every round, of their own text and of past outputs.
    pub(crate) fn new(sequences: usize, policy: Policy, step_us: u64, repeats: bool) -> Load {
        let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, AttentionCost::default());
        let engine = Engine::new(EngineConfig {
            block_size: 16,
            target_blocks: sequences * 512,
            draft: DraftSource::model(sequences * 512),
            max_pass_rows: 2048,
            max_context: 8192,
            // As many as a GPU has with `all`.
            partitions: vec![
                PartitionCosts { draft: cost(step_us, 2), verify: cost(20_000, 20) },
                PartitionCosts { draft: cost(step_us * 6 / 5, 4), verify: cost(21_000, 25) },
                PartitionCosts { draft: cost(step_us * 7 / 6, 4), verify: cost(21_500, 25) },
                PartitionCosts { draft: cost(step_us * 8 / 7, 3), verify: cost(22_000, 30) },
                PartitionCosts { draft: cost(step_us * 3 / 2, 3), verify: cost(22_500, 30) },
            ],
            target_layers: 64,
            deterministic: false,
            speculation: SpeculationBounds {
                suffix_bytes: if repeats { 1 << 20 } else { 0 },
                ..SpeculationBounds::default()
            },
            prefix_cache: false,
            learned: Learned::default(),
            tuning: Tuning { max_running: sequences, max_waiting: sequences, policy, ..Tuning::default() },
        });
        let mut load = Load {
            engine: engine.expect("a sound config"),
            commands: Vec::new(),
            next_seq: 0,
            next_token: (!repeats).then_some(1000),
            dice: 1,
            step: Duration::from_micros(step_us),
            now: Duration::ZERO,
            results: VecDeque::new(),
        };
        for _ in 0..sequences {
            load.submit(40);
        }
        // Past prefill, into the steady state.
        for _ in 0..64 {
            load.step();
        }
        load
    }

    fn submit(&mut self, max_new_tokens: usize) {
        self.next_seq += 1;
        let prompt = vec![self.next_seq as u32; 32];
        let request = Request::new(SeqId(self.next_seq), prompt, max_new_tokens);
        self.handle(Event::Submit(request));
    }

    /// What it has done.
    pub(crate) fn totals(&self) -> Totals {
        self.engine.view().totals
    }

    /// Handles one result; the time that took the engine.
    pub(crate) fn step(&mut self) -> Duration {
        let event = self.results.pop_front().expect("a plan is out");
        self.handle(event)
    }

    fn handle(&mut self, event: Event) -> Duration {
        self.now += match &event {
            Event::VerifyDone(plan) => plan.outcome.took,
            Event::DraftDone(plan) if plan.partition == PartitionId(0) => plan.outcome.took,
            _ => Duration::ZERO,
        };
        let begin = Instant::now();
        self.engine.handle(self.now, black_box(event), &mut self.commands);
        let took = begin.elapsed();
        self.engine.tidy_up();
        let mut ended = 0;
        for command in self.commands.drain(..) {
            match command {
                Command::Draft(plan) => {
                    self.results.push_back(drafted(plan, self.step, &mut self.next_token));
                }
                Command::Verify(plan) => {
                    self.results.push_back(verified(plan, &mut self.next_token, &mut self.dice));
                }
                Command::Finish { .. } => ended += 1,
                Command::Emit { .. } | Command::Reject { .. } | Command::CancelChunk(_) => {}
            }
        }
        for _ in 0..ended {
            self.submit(8000);
        }
        took
    }
}

fn drafted(mut plan: DraftPlan, step: Duration, next: &mut Option<u32>) -> Event {
    let alternatives: Alternatives = if plan.alternatives { (0..8).collect() } else { Alternatives::new() };
    let wanted = if plan.candidates { CANDIDATES as u32 } else { 0 };
    for chunk in &plan.chunks {
        let mut proposal = |i| {
            let repeated = (i % 7) as u32;
            let token = fresh(next);
            let candidates: Candidates =
                (0..wanted).map(|rank| token.map_or(7 + rank, |token| candidate(token, rank))).collect();
            Drafted {
                token: token.unwrap_or(repeated),
                confidence: 0.8,
                alternatives: alternatives.clone(),
                candidates,
                forced: false,
            }
        };
        plan.outcome.proposals.extend((0..chunk.steps).map(&mut proposal));
        plan.outcome.counts.push(chunk.steps);
    }
    let steps = plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0).max(1);
    plan.outcome.took = step * steps as u32;
    Event::DraftDone(plan)
}

/// A token that no text has, if texts do not repeat themselves.
fn fresh(next: &mut Option<u32>) -> Option<u32> {
    let next = next.as_mut()?;
    *next += 1;
    Some(*next)
}

/// What the draft would have drawn in place of a fresh token, fresh too.
fn candidate(token: u32, rank: u32) -> u32 {
    token + ((rank + 1) << 28)
}

/// Three of four proposals of fresh tokens are accepted, two of three of others in each chunk; the draft's third candidate comes instead of the next.
fn verified(mut plan: VerifyPlan, next: &mut Option<u32>, dice: &mut u32) -> Event {
    for chunk in &plan.chunks {
        let mut accepts = |_: &usize| {
            *dice = dice.wrapping_mul(1664525).wrapping_add(1013904223);
            *dice >> 30 != 0
        };
        let drawn = (0..chunk.proposals).take_while(&mut accepts).count();
        let accepted = if next.is_some() { drawn } else { chunk.proposals * 2 / 3 };
        let rejected = plan.tokens[chunk.rows.clone()].get(chunk.rows.len() - chunk.proposals + accepted);
        let mut comes = || match (fresh(next), rejected) {
            (Some(_), Some(&rejected)) => candidate(rejected, 2),
            (fresh, _) => fresh.unwrap_or(9),
        };
        let next = chunk.sample.then(&mut comes);
        plan.outcome.verdicts.push(Verdict { accepted, next, ..Verdict::default() });
    }
    plan.outcome.margins.resize(plan.prune_checkpoints.len() * plan.tests.len(), 1.0);
    plan.outcome.took = Duration::from_millis(21);
    Event::VerifyDone(plan)
}
