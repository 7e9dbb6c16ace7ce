//! The engine in the simulator: whatever happens, every sequence gets the one right text, and nothing leaks.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{VOCABULARY, at_once, config, device, request, run};
use faser_engine::sim::Happening;
use faser_engine::survival::Source;
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, Handling, Policy, ProposedBlock, Refusal, Request, SeqId, Slo,
    SpeculationBounds, SpeculationMode, TokenId, Tuning,
};
use proptest::prelude::*;

#[test]
fn one_sequence_takes_the_passes_it_should() {
    let arrivals = || at_once([request(1, vec![3; 10], 40)]);
    let plain = run(&config(Policy::Off), 1.0, arrivals());
    let usage = plain.outcomes[&SeqId(1)].usage;
    assert_eq!((usage.target_passes, usage.proposed), (40, 0));
    // Always right with k = 4: the prefill brings one token, then five a pass, and no draft for a last single token.
    let drafted = run(&config(Policy::Fixed { k: 4 }), 1.0, arrivals());
    let usage = drafted.outcomes[&SeqId(1)].usage;
    assert_eq!((usage.target_passes, usage.proposed, usage.accepted), (1 + 8, 31, 31));
    assert_eq!(drafted.outcomes[&SeqId(1)].tokens, plain.outcomes[&SeqId(1)].tokens);
    assert!(drafted.makespan < plain.makespan);
    // Never right: as many passes as without speculation.
    let rejected = run(&config(Policy::Fixed { k: 4 }), 0.0, arrivals());
    assert_eq!(rejected.outcomes[&SeqId(1)].usage.target_passes, 40);
    assert_eq!(rejected.outcomes[&SeqId(1)].tokens, plain.outcomes[&SeqId(1)].tokens);
}

#[test]
fn acceptance_is_what_the_device_was_given() {
    let arrivals = at_once((0..200).map(|i| request(i, vec![i as u32; 8], 100)));
    let config = EngineConfig {
        tuning: Tuning { max_waiting: 200, ..config(Policy::Fixed { k: 1 }).tuning },
        ..config(Policy::Fixed { k: 1 })
    };
    let view = run(&config, 0.7, arrivals).view;
    let rate = view.totals.accepted_tokens as f64 / view.totals.draft_tokens as f64;
    assert!((rate - 0.7).abs() < 0.02, "acceptance is {rate}");
    // Each proposal is the first of its chunk, so each prediction is put to the test; and so are those of the few that had no row in a pass.
    let (observed, sent) = (view.calibration.observed, view.totals.draft_tokens);
    assert!((sent..sent + sent / 50).contains(&observed), "{observed} of {sent}");
    // Not worse than a coin's log-loss, 0.69, and no miracle.
    assert!((0.01..0.69).contains(&view.calibration.log_loss_nats), "{:?}", view.calibration);
}

#[test]
fn the_next_token_is_a_verdict_on_what_was_held_back() {
    // Rows are so dear that much of what was drafted is not sent.
    let arrivals = at_once((0..40).map(|i| request(i, vec![i as u32; 4], 100)));
    let partitions = common::undivided((300, 1), (1000, 100));
    let config = EngineConfig { partitions, ..config(Policy::Budget) };
    let view = run(&config, 0.5, arrivals).view;
    let (observed, sent) = (view.calibration.observed, view.totals.draft_tokens);
    assert!(sent > 50 && observed > sent + sent / 4, "{observed} of {sent}");
}

#[test]
fn a_prefix_is_computed_once() {
    let shared: Vec<TokenId> = (0..40).collect();
    let with = |tail: u32| [shared.clone(), vec![tail; 5]].concat();
    let arrival = |at, seq| (Duration::from_secs(at), Happening::Arrival(request(seq, with(seq as u32), 5)));
    let report = run(&config(Policy::Fixed { k: 2 }), 0.8, vec![arrival(0, 1), arrival(1, 2)]);
    assert_eq!(report.outcomes[&SeqId(1)].usage.cached_tokens, 0);
    assert_eq!(report.outcomes[&SeqId(2)].usage.cached_tokens, 40);
    assert_eq!(report.view.totals.cached_prompt_tokens, 40);
}

#[test]
fn what_another_replica_began_goes_on_with_the_same_text() {
    let whole = run(&config(Policy::Off), 1.0, at_once([request(1, vec![3; 10], 40)]));
    let text = whole.outcomes[&SeqId(1)].tokens.clone();
    for begun in [1, 7, 39] {
        let request = Request { output: text[..begun].into(), ..request(1, vec![3; 10], 40) };
        let report = run(&config(Policy::Fixed { k: 3 }), 0.8, at_once([request]));
        let outcome = &report.outcomes[&SeqId(1)];
        assert_eq!((&outcome.tokens[..], outcome.finish), (&text[begun..], Some(FinishReason::Length)));
        assert_eq!((outcome.usage.prompt_tokens, outcome.usage.output_tokens), (10, 40));
    }
    let all = Request { output: text.into(), ..request(1, vec![3; 10], 40) };
    let report = run(&config(Policy::Off), 1.0, at_once([all]));
    assert_eq!(report.outcomes[&SeqId(1)].refusal, Some(Refusal::NothingToGenerate));
}

#[test]
fn what_cannot_be_served_is_refused_and_disturbs_nobody() {
    let config = EngineConfig {
        max_pass_rows: 8,
        tuning: Tuning { max_waiting: 2, max_running: 1, ..config(Policy::Off).tuning },
        ..config(Policy::Off)
    };
    let requests = [
        request(1, vec![1; 4], 8),
        request(2, vec![], 8),
        request(3, vec![1], 0),
        request(4, vec![1; 100], 29),
        request(1, vec![1], 1),
        request(5, vec![2; 4], 8),
        request(6, vec![3; 4], 8),
        request(7, vec![4; 4], 8),
    ];
    let report = run(&config, 1.0, at_once(requests));
    let refusals: BTreeMap<u64, Refusal> =
        report.outcomes.iter().filter_map(|(seq, o)| Some((seq.0, o.refusal.clone()?))).collect();
    assert_eq!(
        refusals,
        BTreeMap::from([
            (1, Refusal::DuplicateId(1)),
            (2, Refusal::EmptyPrompt),
            (3, Refusal::NothingToGenerate),
            (4, Refusal::TooLong { prompt_tokens: 100, max_new_tokens: 29, max_context: 128 }),
            (7, Refusal::QueueFull { waiting: 2, capacity: 2 }),
        ])
    );
    for seq in [1, 5, 6] {
        assert_eq!(report.outcomes[&SeqId(seq)].tokens.len(), 8);
    }
}

#[test]
fn a_sequence_under_which_every_device_fails_is_given_up() {
    let rebuild = Duration::from_millis(1);
    let mut happenings = at_once([request(1, vec![1; 4], 100)]);
    happenings.extend((1..4).map(|i| (Duration::from_millis(10 * i), Happening::DeviceLost { rebuild })));
    let report = run(&config(Policy::Off), 1.0, happenings);
    let outcome = &report.outcomes[&SeqId(1)];
    assert_eq!(outcome.finish, Some(FinishReason::DeviceFailed));
    let right = device(&config(Policy::Off), 1.0).continuation(&[1; 4], 100, &[]);
    assert_eq!(outcome.tokens, right[..outcome.tokens.len()]);
    assert_eq!(report.view.totals.failed, 1);
}

/// A client: when it comes, what it wants, and when it goes if it does not wait.
#[derive(Clone, Debug)]
struct Client {
    at: Duration,
    prompt: Vec<TokenId>,
    max_new_tokens: usize,
    stop_tokens: Vec<TokenId>,
    handling: Handling,
    leaves_after: Option<Duration>,
    /// Places of the right text that its prediction lacks; none without a prediction.
    predicted_without: Option<Vec<usize>>,
}

impl Client {
    fn prediction(&self) -> Vec<TokenId> {
        let Some(without) = &self.predicted_without else { return Vec::new() };
        let right = device(&config(Policy::Off), 1.0).continuation(&self.prompt, 40, &[]);
        right
            .into_iter()
            .enumerate()
            .filter(|(place, _)| !without.contains(place))
            .map(|(_, token)| token)
            .collect()
    }
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    // Three possible beginnings, so that prefixes are shared.
    let prompt = (0..3u32, 0..30usize, prop::collection::vec(0..VOCABULARY, 1..20))
        .prop_map(|(beginning, n, tail)| [vec![beginning; n], tail].concat());
    let stop_tokens = prop::collection::vec(0..VOCABULARY, 0..2);
    let modes = [
        SpeculationMode::Auto,
        SpeculationMode::Off,
        SpeculationMode::Lookup,
        SpeculationMode::Draft,
        SpeculationMode::Suffix,
    ];
    let handling = (prop::option::of(0..6usize), prop::sample::select(modes.to_vec()), -2..3i32, 0..6u128);
    let handling = handling.prop_map(|(k_max, mode, priority, salt)| Handling {
        k_max,
        mode,
        priority,
        salt: salt / 5,
        owner: salt % 2,
        ..Handling::default()
    });
    let leaves_after = prop::option::weighted(0.3, 0..60u64);
    let without = prop::option::of(prop::collection::vec(0..40usize, 0..4));
    let client = (0..80u64, prompt, 1..40usize, stop_tokens, handling, leaves_after, without).prop_map(
        |(at, prompt, max_new_tokens, stop_tokens, handling, leaves_after, predicted_without)| Client {
            at: Duration::from_millis(at),
            prompt,
            max_new_tokens,
            stop_tokens,
            handling,
            leaves_after: leaves_after.map(Duration::from_millis),
            predicted_without,
        },
    );
    prop::collection::vec(client, 1..25)
}

fn configs() -> impl Strategy<Value = EngineConfig> {
    let policy = prop_oneof![
        Just(Policy::Off),
        (1..=8usize).prop_map(|k| Policy::Fixed { k }),
        Just(Policy::BatchTable { steps: vec![(2, 6), (4, 3), (6, 0)] }),
        Just(Policy::Budget),
        Just(Policy::Faser),
        Just(Policy::Faser),
    ];
    let slo = prop::option::of(1..2000u64);
    // A draft too small for a sequence is none.
    let draft = (0..140usize, 0..5, 1..9usize);
    let caches = (
        any::<bool>(),
        prop::sample::select(vec![0, 1 << 11, 1 << 16]),
        prop::sample::select(vec![1, 1, 2, 4]),
    );
    (1..6usize, 90..140usize, draft, 1..9usize, 0..40usize, policy, caches, slo).prop_map(
        |(block_size, target_tokens, draft, max_running, more_rows, policy, caches, slo)| {
            let (prefix_cache, suffix_bytes, copies) = caches;
            let one_pass_or_model = draft.0 < 90 || draft.1 == 0 || draft.1 == 4;
            let draft_copies = if one_pass_or_model { copies } else { 1 };
            EngineConfig {
                block_size,
                target_blocks: target_tokens.div_ceil(block_size),
                draft: match (draft.0.div_ceil(block_size), draft.1) {
                    _ if draft.0 < 90 => DraftSource::model(0),
                    (blocks, 0) => DraftSource::one_pass(blocks),
                    (blocks, 1) => DraftSource::head(blocks),
                    (blocks, 2) => DraftSource::one_pass_head(blocks),
                    (blocks, 3) => {
                        let block = ProposedBlock { rows: draft.2 + draft.0 % 2, proposals: draft.2 };
                        DraftSource::block_head(blocks, block)
                    }
                    (blocks, _) => DraftSource::model(blocks),
                },
                max_pass_rows: max_running + more_rows,
                max_context: 90,
                prefix_cache,
                speculation: SpeculationBounds { suffix_bytes, draft_copies, ..SpeculationBounds::default() },
                tuning: Tuning {
                    max_running,
                    slo: Slo { tpot: slo.map(Duration::from_micros), ttft: slo.map(Duration::from_millis) },
                    ..config(policy.clone()).tuning
                },
                ..config(policy)
            }
        },
    )
}

/// Can this mode be had?
fn offers(config: &EngineConfig, mode: SpeculationMode) -> bool {
    match mode {
        SpeculationMode::Auto | SpeculationMode::Off => true,
        SpeculationMode::Lookup => config.tuning.policy.traits().lookup,
        SpeculationMode::Draft => config.draft.drafts() && config.tuning.policy.traits().drafts,
        SpeculationMode::Suffix => {
            config.speculation.suffix_bytes > 0 && config.tuning.policy.traits().lookup
        }
    }
}

/// Whether the draft's device fails for good, and when, in us.
type DraftLoss = Option<(u64, bool)>;

const REBUILD: Duration = Duration::from_micros(1500);

fn happenings(clients: &[Client], failures: &[u64], draft: DraftLoss) -> Vec<(Duration, Happening)> {
    let mut all = Vec::new();
    for (seq, client) in (0..).zip(clients) {
        let request = Request {
            stop_tokens: client.stop_tokens.clone().into(),
            prediction: client.prediction().into(),
            handling: client.handling,
            ..request(seq, client.prompt.clone(), client.max_new_tokens)
        };
        all.push((client.at, Happening::Arrival(request)));
        all.extend(client.leaves_after.map(|after| (client.at + after, Happening::Cancel(SeqId(seq)))));
    }
    let rebuild = REBUILD;
    all.extend(failures.iter().map(|&at| (Duration::from_micros(at), Happening::DeviceLost { rebuild })));
    let draft_lost = |(at, for_good)| (Duration::from_micros(at), Happening::DraftLost { rebuild, for_good });
    all.extend(draft.map(draft_lost));
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Invariants 1 to 3: under any load, in any configuration, with cancellations, preemptions, lost devices and lost drafts, what
    /// is emitted is the one right text or, for who left early, its beginning; and both pools are whole afterwards.
    #[test]
    fn everyone_gets_the_right_text(
        clients in clients(),
        config in configs(),
        acceptance in 0.0..=1.0f64,
        failures in prop::collection::btree_set(0..200_000u64, 0..2),
        draft in prop::option::weighted(0.3, (0..200_000u64, any::<bool>())),
    ) {
        let failures: Vec<u64> = failures.into_iter().collect();
        let report = run(&config, acceptance, happenings(&clients, &failures, draft));
        let device = device(&config, acceptance);
        prop_assert!(report.view.target_pool.whole() && report.view.draft_pool.whole());
        for (seq, client) in (0..).zip(&clients) {
            let outcome = &report.outcomes[&SeqId(seq)];
            let mode = client.handling.mode;
            let retired = draft.filter(|&(at, for_good)| for_good && client.at > Duration::from_micros(at) + REBUILD);
            let offered = offers(&config, mode) && (mode != SpeculationMode::Draft || retired.is_none());
            prop_assert_eq!(matches!(outcome.refusal, Some(Refusal::Mode { .. })), !offered);
            if outcome.refusal.is_some() {
                continue;
            }
            let right = device.continuation(&client.prompt, client.max_new_tokens, &client.stop_tokens);
            match outcome.finish {
                Some(FinishReason::Cancelled) => prop_assert!(right.starts_with(&outcome.tokens)),
                Some(FinishReason::Length) => {
                    prop_assert_eq!(&outcome.tokens, &right);
                    prop_assert_eq!(right.len(), client.max_new_tokens);
                }
                Some(FinishReason::StopToken(token)) => {
                    prop_assert_eq!(&outcome.tokens, &right);
                    prop_assert!(client.stop_tokens.contains(&token));
                }
                Some(FinishReason::DeviceFailed) | None => prop_assert!(false, "{:?}", outcome),
            }
            let k_max = client.handling.k_max;
            let (usage, drafted) = (&outcome.usage, outcome.usage.by_source[Source::Draft].proposed);
            prop_assert!(usage.longest <= k_max.unwrap_or(usize::MAX));
            prop_assert!(usage.cached_tokens < usage.prompt_tokens);
            prop_assert!(config.prefix_cache || usage.cached_tokens == 0);
            prop_assert!(mode.drafts() || drafted == 0);
            let recalled = usage.by_source[Source::Suffix].proposed;
            prop_assert!(mode.recalls() && config.speculation.suffix_bytes > 0 || recalled == 0);
            prop_assert!(mode.looks_up() || usage.proposed == drafted + recalled);
        }
        // The same events bring the same commands.
        prop_assert_eq!(run(&config, acceptance, happenings(&clients, &failures, draft)), report);
    }
}

/// The property above would be empty if the loads it draws never pushed anyone out.
#[test]
fn small_pools_do_preempt() {
    let config = EngineConfig {
        target_blocks: 32,
        tuning: Tuning { max_running: 8, ..config(Policy::Fixed { k: 4 }).tuning },
        ..config(Policy::Fixed { k: 4 })
    };
    let arrivals = at_once((0..8).map(|i| request(i, vec![i as u32; 12], 60)));
    let report = run(&config, 0.8, arrivals);
    assert!(report.view.totals.preemptions > 0);
    for seq in 0..8 {
        let right = device(&config, 0.8).continuation(&[seq as u32; 12], 60, &[]);
        assert_eq!(report.outcomes[&SeqId(seq)].tokens, right);
    }
}

/// Both sequences fit exactly; a proposal's block would be one too many.
#[test]
fn speculation_pushes_nobody_out() {
    for policy in [Policy::Fixed { k: 8 }, Policy::Faser] {
        let config = EngineConfig { target_blocks: 40, max_context: 80, ..config(policy.clone()) };
        let arrivals = at_once((0..2).map(|seq| request(seq, vec![seq as u32; 20], 60)));
        let totals = run(&config, 0.9, arrivals).view.totals;
        assert!(totals.draft_tokens > 0);
        assert_eq!(totals.preemptions, 0, "{policy}");
    }
}
