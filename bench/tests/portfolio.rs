//! The portfolio in the simulator: never worse than the best single source by more than a fiftieth, whatever texts are made of.

use std::time::Duration;

use faser_bench::Targets;
use faser_bench::sim::{Drafts, Load, SimSpec};
use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, Faults, Hardware, Lengths, Pair, Phrases, TextClass,
};
use faser_engine::{Mechanisms, Policy, SpeculationMode};

/// One run of few requests ends by chance with more or fewer of them left over.
const SEEDS: u64 = 2;

fn spec(acceptance: Acceptance, drafts: Drafts) -> SimSpec {
    SimSpec {
        preset: None,
        measured: None,
        hardware: Hardware::H100,
        pair: if drafts.is_head() { Pair::QWEN3.with_head() } else { Pair::QWEN3 },
        mechanisms: Mechanisms::default(),
        drafts,
        draft_sms: vec![16],
        draft_apart: false,
        draft_copies: 1,
        kv_tokens: 32_768,
        max_running: 32,
        max_pass_rows: 512,
        max_context: 1024,
        lengths: Lengths::exactly(260, 200),
        trace: None,
        acceptance,
        mode: SpeculationMode::Auto,
        suffix_bytes: 8 << 20,
        cached_prompts: 0.0,
        targets: Targets::default(),
        deviation: Deviation { noise: 0.02, ..Deviation::default() },
        faults: Faults::default(),
        duration: Duration::from_secs(10),
        seed: 1,
    }
}

/// Tokens per second of virtual time where all proposals come from there, over several seeds.
fn rate(spec: &SimSpec, mode: SpeculationMode, batch: usize) -> f64 {
    let requests = (3 * batch).max(20);
    let load = Load { arrivals: Arrivals::Backlog { requests }, level: batch as f64 };
    let (mut tokens, mut seconds) = (0, 0.0);
    for seed in 1..=SEEDS {
        let spec = SimSpec { mode, seed, ..spec.clone() };
        let report = spec.simulate(Policy::Faser, &load, false).expect("sound bounds");
        tokens += report.view.totals.output_tokens;
        seconds += report.makespan.as_secs_f64();
    }
    tokens as f64 / seconds
}

fn compare(drafts: Drafts) {
    let single = [SpeculationMode::Draft, SpeculationMode::Lookup, SpeculationMode::Suffix];
    let mut failed = Vec::new();
    let of = |novel, quotes, recurring| Acceptance::repeating(novel, quotes, recurring);
    // Phrases that a draft knows better than any other text does.
    let known =
        |name, phrases| Acceptance::Classes(vec![TextClass { name, acceptance: 0.96, share: 1.0, phrases }]);
    for (name, acceptance) in [
        ("novel", of(1.0, 0.0, 0.0)),
        ("quotes", of(0.0, 1.0, 0.0)),
        ("recurring", of(0.0, 0.0, 1.0)),
        ("all", of(1.0, 1.0, 1.0)),
        ("known quotes", known("quotes", Phrases::OfRequest)),
        ("known recurring", known("recurring", Phrases::OfClass)),
    ] {
        for batch in [1, 8, 32] {
            let spec = spec(acceptance.clone(), drafts);
            let auto = rate(&spec, SpeculationMode::Auto, batch);
            let rates = single.map(|mode| rate(&spec, mode, batch));
            let best = rates.iter().copied().fold(0.0, f64::max);
            let line = format!(
                "{name} {batch}: auto {auto:.0}, draft {:.0}, lookup {:.0}, suffix {:.0}: {:.3} of the best",
                rates[0],
                rates[1],
                rates[2],
                auto / best
            );
            println!("{line}");
            if auto < 0.98 * best {
                failed.push(line);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn with_a_draft_model() {
    compare(Drafts::Steps);
}

#[test]
fn with_a_draft_of_one_pass() {
    compare(Drafts::OnePass(0.95));
}

#[test]
fn with_a_head() {
    compare(Drafts::Head);
}

#[test]
fn with_a_head_of_one_pass() {
    compare(Drafts::OnePassHead { block: None, fade: 0.95 });
}

#[test]
fn with_a_head_of_blocks() {
    compare(Drafts::OnePassHead { block: Some(8), fade: 0.95 });
}
