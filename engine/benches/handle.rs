//! What a decision costs: `Engine::handle` on the result of a pass, with many sequences running.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use faser_engine::cost::{PartitionCosts, PassCost, ROW_GRID};
use faser_engine::{
    Command, DraftPlan, DraftResult, Drafted, DraftedChunk, Engine, EngineConfig, Event, Policy, Request,
    SeqId, VerifiedChunk, VerifyPlan, VerifyResult,
};

/// An engine under full load: whoever ends is followed by another.
struct Load {
    engine: Engine,
    commands: Vec<Command>,
    next_seq: u64,
    results: Vec<Event>,
}

impl Load {
    fn new(sequences: usize, policy: Policy) -> Load {
        let cost = |pass: u64, row: u64| {
            PassCost::new(
                ROW_GRID.map(|rows| Duration::from_micros(pass + row * rows as u64)),
                Duration::ZERO,
            )
        };
        let engine = Engine::new(EngineConfig {
            block_size: 16,
            target_blocks: sequences * 64,
            draft_blocks: sequences * 64,
            max_running: sequences,
            max_waiting: sequences,
            max_pass_rows: 2048,
            max_context: 1024,
            policy,
            partitions: vec![
                PartitionCosts { draft: cost(1500, 2), verify: cost(20_000, 20) },
                PartitionCosts { draft: cost(1800, 4), verify: cost(21_000, 25) },
            ],
            prefix_cache: false,
        });
        let mut load = Load {
            engine: engine.expect("a sound config"),
            commands: Vec::new(),
            next_seq: 0,
            results: Vec::new(),
        };
        for _ in 0..sequences {
            load.submit();
        }
        // Past prefill, into the steady state.
        for _ in 0..64 {
            load.step();
        }
        load
    }

    fn submit(&mut self) {
        self.next_seq += 1;
        let seq = SeqId(self.next_seq);
        let prompt = vec![self.next_seq as u32; 32].into();
        let request = Request { seq, prompt, max_new_tokens: 900, stop_tokens: [].into(), k_max: None };
        self.handle(Event::Submit(request));
    }

    /// Handles one result; the time that took.
    fn step(&mut self) -> Duration {
        let event = self.results.remove(0);
        let begin = Instant::now();
        self.handle(event);
        begin.elapsed()
    }

    fn handle(&mut self, event: Event) {
        self.engine.handle(Duration::ZERO, black_box(event), &mut self.commands);
        let mut ended = 0;
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Draft(plan) => self.results.push(drafted(&plan)),
                Command::Verify(plan) => self.results.push(verified(&plan)),
                Command::Finish { .. } => ended += 1,
                Command::Emit { .. } | Command::Reject { .. } => {}
            }
        }
        for _ in 0..ended {
            self.submit();
        }
    }
}

fn drafted(plan: &DraftPlan) -> Event {
    let chunk = |chunk: &faser_engine::DraftChunk| DraftedChunk {
        seq: chunk.seq,
        epoch: chunk.epoch,
        proposals: (0..chunk.steps).map(|i| Drafted { token: (i % 7) as u32, confidence: 0.8 }).collect(),
    };
    let took = Duration::from_millis(2);
    Event::DraftDone(DraftResult { step: plan.step, took, chunks: plan.chunks.iter().map(chunk).collect() })
}

/// Two of three proposals are accepted.
fn verified(plan: &VerifyPlan) -> Event {
    let chunk = |chunk: &faser_engine::VerifyChunk| VerifiedChunk {
        seq: chunk.seq,
        epoch: chunk.epoch,
        accepted: chunk.proposals * 2 / 3,
        next: chunk.sample.then_some(9),
    };
    let took = Duration::from_millis(21);
    Event::VerifyDone(VerifyResult { step: plan.step, took, chunks: plan.chunks.iter().map(chunk).collect() })
}

fn handle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handle");
    for policy in [Policy::Fixed { k: 4 }, Policy::Budget, Policy::Faser] {
        for sequences in [64, 256] {
            let mut load = Load::new(sequences, policy.clone());
            group.bench_function(format!("{policy}/{sequences}"), |bencher| {
                bencher.iter_custom(|iterations| (0..iterations).map(|_| load.step()).sum());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, handle);
criterion_main!(benches);
