//! Past outputs as a source of proposals, in the simulator: what they save, to whom they are shown, and when they are forgotten.

mod common;

use std::time::Duration;

use common::{at_once, config, device, request, simulation};
use faser_engine::sim::{Happening, Report, Simulation};
use faser_engine::survival::Source;
use faser_engine::{
    Command, DraftSource, Engine, EngineConfig, Event, Handling, Policy, Request, SeqId, SpeculationBounds,
    SpeculationMode, Verdict, VerifyChunk,
};

const TOKENS: usize = 100;

fn keeping(suffix_bytes: usize) -> EngineConfig {
    EngineConfig {
        draft: DraftSource::Lookup,
        speculation: SpeculationBounds { suffix_bytes, ..SpeculationBounds::default() },
        ..config(Policy::Faser)
    }
}

/// The same prompt again and again, each a second after the one before.
fn one_after_the_other(handlings: &[Handling]) -> Vec<(Duration, Happening)> {
    let requests = (0..).zip(handlings).map(|(seq, &handling)| {
        let request = Request { handling, ..request(seq, vec![3; 10], TOKENS) };
        (Duration::from_secs(seq), Happening::Arrival(request))
    });
    requests.collect()
}

fn run(config: &EngineConfig, handlings: &[Handling]) -> Report {
    let report = simulation(config, 0.5).run(one_after_the_other(handlings));
    let right = device(config, 0.5).continuation(&[3; 10], TOKENS, &[]);
    assert!(report.outcomes.values().all(|outcome| outcome.tokens == right));
    report
}

fn recalled(report: &Report, seq: u64) -> (usize, usize) {
    let tried = report.outcomes[&SeqId(seq)].usage.by_source[Source::Suffix];
    (tried.proposed, tried.accepted)
}

#[test]
fn what_was_said_before_takes_few_passes_the_next_time() {
    let suffix = Handling { mode: SpeculationMode::Suffix, ..Handling::default() };
    let report = run(&keeping(1 << 16), &[suffix; 4]);
    let passes = |seq| report.outcomes[&SeqId(seq)].usage.target_passes;
    assert_eq!((passes(0), recalled(&report, 0).0), (TOKENS, 0));
    for seq in 1..4 {
        assert!(passes(seq) < TOKENS / 5, "{seq}: {}", passes(seq));
        let (proposed, accepted) = recalled(&report, seq);
        assert!(accepted > TOKENS / 2 && accepted <= proposed);
    }
    let totals = &report.view.totals;
    assert_eq!((totals.suffix_tokens, totals.prompt_lookup_tokens), (totals.draft_tokens, 0));
    assert_eq!(totals.suffix_accepted_tokens, totals.accepted_tokens);
    let kept = report.view.suffix;
    assert_eq!((kept.outputs, kept.tokens), (4, 4 * (TOKENS + 10)));
    assert!(kept.bytes <= 1 << 16);
}

#[test]
fn another_owner_or_another_salt_is_told_nothing() {
    let of = |owner, salt| Handling { owner, salt, ..Handling::default() };
    let handlings = [of(1, 0), of(2, 0), of(1, 5), of(0, 1), of(0, 0), of(2, 5), of(1, 0), of(1, 5)];
    let report = run(&keeping(1 << 16), &handlings);
    for seq in 0..6 {
        assert_eq!(recalled(&report, seq), (0, 0), "{seq}");
    }
    assert!((6..8).all(|seq| recalled(&report, seq).1 > TOKENS / 2));
}

#[test]
fn without_room_nothing_is_kept_and_the_mode_is_refused() {
    let report = run(&keeping(0), &[Handling::default(); 2]);
    assert_eq!((report.view.totals.suffix_tokens, report.view.suffix.bytes), (0, 0));
    let suffix = Handling { mode: SpeculationMode::Suffix, ..Handling::default() };
    for config in [keeping(0), EngineConfig { ..keeping(1 << 16) }] {
        let there = config.speculation.suffix_bytes > 0;
        let request = Request { handling: suffix, ..request(1, vec![3; 10], TOKENS) };
        let report = simulation(&config, 0.5).run(at_once([request]));
        assert_eq!(report.outcomes[&SeqId(1)].refusal.is_none(), there);
    }
}

#[test]
fn what_is_forgotten_is_not_proposed() {
    let mut engine = Engine::new(keeping(1 << 16)).expect("a sound config");
    let mut kept = Vec::new();
    let happenings = one_after_the_other(&[Handling::default(); 2]);
    let simulation =
        Simulation::new(keeping(1 << 16), device(&keeping(1 << 16), 0.5)).expect("a sound config");
    simulation.run_seen(happenings, |_, engine, _| kept.push(engine.view().suffix.outputs));
    assert_eq!(kept.last(), Some(&2));
    // A cancelled sequence leaves what it has, but for what another device had said; an engine that is told to forget has nothing, also not of
    // what was under way.
    let mut commands: Vec<Command> = Vec::new();
    let says = |seq| Event::Submit(request(seq, vec![3; 10], TOKENS));
    let going_on = |seq| {
        let output = [1, 2, 3, 4, 5].into();
        Event::Submit(Request { output, ..request(seq, vec![3; 10], TOKENS) })
    };
    for (event, outputs) in [
        (says(1), 0),
        (Event::Cancel(SeqId(1)), 1),
        (going_on(2), 1),
        (Event::Cancel(SeqId(2)), 1),
        (says(3), 1),
        (Event::ForgetOutputs, 0),
        (says(4), 0),
        (Event::Cancel(SeqId(3)), 0),
        (Event::Cancel(SeqId(4)), 1),
    ] {
        engine.handle(Duration::ZERO, event, &mut commands);
        for _ in 0..5 {
            pass(&mut engine, &mut commands);
        }
        assert_eq!(engine.view().suffix.outputs, outputs);
    }
}

/// A pass, if there is one, that gives everyone another token.
fn pass(engine: &mut Engine, commands: &mut Vec<Command>) {
    let plan = commands.drain(..).find_map(|command| match command {
        Command::Verify(plan) => Some(plan),
        _ => None,
    });
    if let Some(mut plan) = plan {
        let next = |chunk: &VerifyChunk| chunk.sample.then_some(9);
        let verdict = |chunk| Verdict { next: next(chunk), ..Verdict::default() };
        plan.outcome.verdicts.extend(plan.chunks.iter().map(verdict));
        plan.outcome.took = Duration::from_millis(1);
        engine.handle(Duration::ZERO, Event::VerifyDone(plan), commands);
    }
}
