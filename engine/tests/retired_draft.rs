//! A draft on a device of its own that fails, in the simulator: it costs speed and never a text.

mod common;

use std::time::Duration;

use common::{at_once, config, device, request, simulation};
use faser_engine::sim::{Happening, Report};
use faser_engine::survival::Source;
use faser_engine::{
    Command, EngineConfig, FinishReason, Handling, Policy, Refusal, Request, SeqId, SpeculationBounds,
    SpeculationMode, Tuning,
};

const TOKENS: usize = 100;
const REBUILD: Duration = Duration::from_millis(1);

/// The draft's device fails after so many milliseconds.
fn lost(at_ms: u64, for_good: bool) -> (Duration, Happening) {
    (Duration::from_millis(at_ms), Happening::DraftLost { rebuild: REBUILD, for_good })
}

/// Runs these requests, all of which get their own texts; draft plans that left before this moment, and after it.
fn run(
    config: &EngineConfig,
    happenings: Vec<(Duration, Happening)>,
    moment: Duration,
    texts: &[Request],
) -> (Report, [usize; 2]) {
    let mut drafts = [0; 2];
    let report = simulation(config, 0.8).run_seen(happenings, |now, engine, commands| {
        let left = commands.iter().filter(|command| matches!(command, Command::Draft(_))).count();
        drafts[usize::from(now > moment)] += left;
        if now > moment {
            assert_eq!(engine.view().draft_pool.total, engine.config().draft.needs().blocks);
        }
    });
    assert!(report.view.target_pool.whole() && report.view.draft_pool.whole());
    for Request { seq, prompt, max_new_tokens, .. } in texts {
        let right = device(config, 0.8).continuation(prompt, *max_new_tokens, &[]);
        let outcome = &report.outcomes[seq];
        assert_eq!((&outcome.tokens, outcome.finish), (&right, Some(FinishReason::Length)), "{seq}");
    }
    (report, drafts)
}

#[test]
fn a_draft_that_is_lost_for_good_is_retired_and_texts_go_on() {
    for policy in [Policy::Fixed { k: 4 }, Policy::Budget, Policy::Faser] {
        let past = SpeculationBounds { suffix_bytes: 1 << 20, ..SpeculationBounds::default() };
        let config = EngineConfig { speculation: past, ..config(policy.clone()) };
        // One of them asked for the draft while there was one.
        let asks = Handling { mode: SpeculationMode::Draft, ..Handling::default() };
        let mut requests: Vec<Request> =
            (0..4).map(|seq| request(seq, vec![seq as u32; 9], TOKENS)).collect();
        requests[1].handling = asks;
        let expected = device(&config, 0.8).continuation(&[9; 9], TOKENS, &[]);
        let late = |seq, handling| {
            let request =
                Request { handling, prediction: expected.clone().into(), ..request(seq, vec![9; 9], TOKENS) };
            (Duration::from_millis(30), Happening::Arrival(request))
        };
        let mut happenings = at_once(requests.clone());
        happenings.extend([lost(15, true), late(4, Handling::default()), late(5, asks)]);
        requests.push(request(4, vec![9; 9], TOKENS));
        let moment = Duration::from_millis(15) + REBUILD;
        let (report, [before, after]) = run(&config, happenings, moment, &requests);
        assert!(before > 0, "{policy}: nothing was drafted before");
        assert_eq!(after, 0, "{policy}: something was drafted afterwards");
        let refused = report.outcomes[&SeqId(5)].refusal.as_ref().map(Refusal::to_string);
        assert!(refused.as_ref().is_some_and(|words| words.contains("restarted")), "{refused:?}");
        let usage = |seq| report.outcomes[&SeqId(seq)].usage;
        assert!(
            usage(0).by_source[Source::Draft].proposed > 0 && usage(4).by_source[Source::Draft].proposed == 0
        );
        // What needs no draft is proposed all the same, where a policy knows how.
        assert_eq!(usage(4).proposed > 0, policy.traits().lookup, "{policy}");
    }
}

#[test]
fn a_draft_that_comes_back_drafts_again() {
    for policy in [Policy::Fixed { k: 4 }, Policy::Faser] {
        let requests = [request(0, vec![1; 9], TOKENS), request(1, vec![2; 9], TOKENS)];
        let mut happenings = at_once(requests.clone());
        happenings.push(lost(15, false));
        let (_, [before, after]) = run(&config(policy), happenings, Duration::from_millis(16), &requests);
        assert!(before > 0 && after > 0, "{before} {after}");
    }
}

/// A device that failed as often would have ended it.
#[test]
fn who_fells_the_draft_again_and_again_goes_on_without_it_and_others_with_it() {
    let config = config(Policy::Fixed { k: 4 });
    let first = request(0, vec![1; 9], TOKENS);
    let mut happenings = at_once([first.clone()]);
    happenings.extend((1..=3).map(|nth| lost(5 * nth, false)));
    let moment = Duration::from_millis(16);
    let (report, [before, after]) = run(&config, happenings.clone(), moment, std::slice::from_ref(&first));
    assert!(before > 0 && report.makespan > moment);
    assert_eq!(after, 0, "it was lost three times under the only request");
    let second = request(1, vec![2; 9], TOKENS);
    happenings.push((Duration::from_millis(20), Happening::Arrival(second.clone())));
    let (_, [_, after]) = run(&config, happenings, moment, &[first, second]);
    assert!(after > 0);
}

/// The policy that it was started with, which needs a draft, does not stand in the way of other changes.
#[test]
fn an_engine_whose_draft_is_retired_can_be_tuned() {
    use faser_engine::{Engine, Event};
    let config = config(Policy::Fixed { k: 4 });
    let mut engine = Engine::new(config.clone()).expect("the configuration is sound");
    let mut tell = |event| engine.handle(Duration::ZERO, event, &mut Vec::new());
    tell(Event::DraftRetired);
    let tuning = Tuning { max_waiting: 5, ..config.tuning };
    tell(Event::Tune(tuning.clone()));
    assert_eq!(*engine.tuning(), tuning);
    assert_eq!(engine.config().tunable(&tuning), Ok(()));
}
