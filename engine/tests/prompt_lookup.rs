//! Prompt-lookup proposals, from a predicted output or from the text itself, in the simulator: what they save, and that they save nothing
//! where nothing is found.

mod common;

use common::ATTENTION;
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::sim::{Outcome, Report, SimDevice, Simulation};
use faser_engine::survival::Source;
use faser_engine::{DraftSource, EngineConfig, Mechanisms, Policy, Request, SeqId, TokenId, Tuning};

const TOKENS: usize = 160;
/// So many that no three tokens come twice by chance.
const VOCABULARY: u32 = 50_000;

fn partitions() -> Vec<PartitionCosts> {
    let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, ATTENTION);
    vec![PartitionCosts { draft: cost(300, 1), verify: cost(1000, 5) }]
}

fn device(acceptance: f64) -> SimDevice {
    SimDevice::new(3, VOCABULARY, acceptance, 16, partitions())
}

fn prompt() -> Vec<TokenId> {
    (0..20).collect()
}

fn right() -> Vec<TokenId> {
    device(0.5).continuation(&prompt(), TOKENS, &[])
}

/// One request; `drafts` says whether there is a draft model, which is right half of the time.
fn run(prediction: &[TokenId], drafts: bool, lookup: bool) -> Report {
    let config = common::config(Policy::Faser);
    let tuning = config.tuning.clone();
    let config = EngineConfig {
        block_size: 16,
        target_blocks: 40,
        draft: DraftSource::model(if drafts { 40 } else { 0 }),
        max_context: 320,
        partitions: partitions(),
        tuning: Tuning {
            max_running: 4,
            max_waiting: 4,
            mechanisms: Mechanisms { lookup, ..Mechanisms::default() },
            ..tuning
        },
        ..config
    };
    let request = Request { prediction: prediction.into(), ..Request::new(SeqId(1), prompt(), TOKENS) };
    let simulation = Simulation::new(config, device(0.5)).expect("the configuration is sound");
    simulation.run(common::at_once([request]))
}

fn passes(report: &Report) -> usize {
    let Outcome { tokens, usage, .. } = &report.outcomes[&SeqId(1)];
    assert_eq!(*tokens, right());
    usage.target_passes
}

#[test]
fn a_right_prediction_needs_no_draft_and_few_passes() {
    for drafts in [false, true] {
        let report = run(&right(), drafts, true);
        // The first token comes with the prompt; then 16 proposals and the next token a pass.
        assert!(passes(&report) <= 1 + TOKENS.div_ceil(17) + 1, "{}", passes(&report));
        let totals = &report.view.totals;
        // All that was verified came from the prediction, and all of it was right.
        assert_eq!(
            (totals.draft_tokens, totals.prompt_lookup_accepted_tokens),
            (totals.prompt_lookup_tokens, totals.prompt_lookup_tokens)
        );
        let usage = &report.outcomes[&SeqId(1)].usage;
        let predicted = usage.by_source[Source::Prediction];
        assert_eq!(predicted.proposed as u64, totals.prompt_lookup_tokens);
        assert_eq!((predicted.accepted, usage.proposed), (predicted.proposed, predicted.proposed));
    }
}

#[test]
fn the_place_is_found_again_after_every_kind_of_edit() {
    let (text, new) = (right(), [49_001, 49_002, 49_003]);
    let unedited = passes(&run(&text, false, true));
    for (removed, inserted) in [(1, 1), (1, 3), (3, 1), (0, 2), (4, 0)] {
        // What the client expects differs from what comes in three places.
        let mut expected = text.clone();
        for place in [40, 80, 120] {
            expected.splice(place..place + removed, new[..inserted].iter().copied());
        }
        let edited = passes(&run(&expected, false, true));
        assert!(edited > unedited, "{removed} tokens made {inserted}: nothing was edited");
        // An edit costs the passes of its own tokens, of a token or two to be sure, and the rest of a chunk.
        let allowed = 3 * (removed.max(inserted) + 4);
        assert!(edited <= unedited + allowed, "{removed} tokens made {inserted}: {edited} passes");
    }
}

#[test]
fn a_wrong_prediction_costs_few_rows_and_no_text() {
    let wrong: Vec<TokenId> = (0..TOKENS as u32).map(|place| 40_000 + place).collect();
    let report = run(&wrong, false, true);
    assert_eq!(passes(&report), TOKENS);
    let rows = report.view.totals.prompt_lookup_tokens;
    assert!(rows < TOKENS as u64, "{rows} rows for nothing");
}

#[test]
fn where_nothing_comes_twice_nothing_is_proposed() {
    let report = run(&[], false, true);
    assert_eq!((passes(&report), report.view.totals.prompt_lookup_tokens), (TOKENS, 0));
}

#[test]
fn switched_off_nothing_is_proposed() {
    let report = run(&right(), true, false);
    assert!(passes(&report) > TOKENS / 17 + 2);
    assert_eq!(report.view.totals.prompt_lookup_tokens, 0);
}

#[test]
fn behind_a_long_context_whose_attention_takes_most_of_a_pass_predictions_save_as_many_passes() {
    // Behind 6,000 tokens reading takes 2.4 ms, and each row 0.6.
    let attention = AttentionCost { per_kv_fs: 400_000_000, per_row_fs: 100_000_000 };
    let cost = |pass_us, row_us, attention| PassCost::linear(pass_us, row_us, attention);
    let partitions = vec![PartitionCosts {
        draft: cost(30, 5, AttentionCost::default()),
        verify: cost(1000, 20, attention),
    }];
    let device = || SimDevice::new(3, VOCABULARY, 0.5, 16, partitions.clone());
    let prompt: Vec<TokenId> = (0..6000).collect();
    let right = device().continuation(&prompt, TOKENS, &[]);
    let common = common::config(Policy::Faser);
    let config = EngineConfig {
        block_size: 16,
        max_pass_rows: 512,
        target_blocks: 800,
        draft: DraftSource::model(0),
        max_context: 8000,
        partitions: partitions.clone(),
        tuning: Tuning { max_running: 4, max_waiting: 4, ..common.tuning.clone() },
        ..common
    };
    let request = Request { prediction: right.as_slice().into(), ..Request::new(SeqId(1), prompt, TOKENS) };
    let simulation = Simulation::new(config, device()).expect("the configuration is sound");
    let report = simulation.run(common::at_once([request]));
    let Outcome { tokens, usage, .. } = &report.outcomes[&SeqId(1)];
    assert_eq!(*tokens, right);
    assert!(usage.target_passes < 40, "{} passes for {TOKENS} tokens", usage.target_passes);
}
