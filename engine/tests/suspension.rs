//! Speculation that loses more time than estimates say: it is suspended, nothing is proposed meanwhile, and later it is tried again.

mod common;

use common::{ATTENTION, VOCABULARY, at_once, config, partitions, request, undivided};
use faser_engine::cost::{PartitionCosts, PassCost};
use faser_engine::sim::{DeviceCosts, SimDevice, Simulation};
use faser_engine::{
    Command, DraftSource, Drafted, Engine, EngineConfig, Event, LaneKind, Policy, Request, SeqId, Tuning,
    Verdict,
};
use std::time::Duration;

/// The engine after an event.
#[derive(Clone, Copy, Debug)]
struct Moment {
    suspended: bool,
    credit_s: f64,
    /// What left for the lanes: a draft plan; a verify pass with so many proposals, and whether drafting goes on beside it.
    drafts: bool,
    verifies: Option<(usize, bool)>,
}

/// All moments of a backlog. A draft step takes 2 ms on every partition, 20 times what the whole device's table says.
fn backlog(partitions: &[PartitionCosts], acceptance: f64) -> Vec<Moment> {
    let slow = PassCost::linear(2000, 1, ATTENTION);
    let truth = partitions.iter().map(|costs| PartitionCosts { draft: slow.clone(), ..costs.clone() });
    let costs = DeviceCosts::from(truth.collect::<Vec<_>>());
    let config = EngineConfig { partitions: partitions.to_vec(), ..config(Policy::Faser) };
    let device = SimDevice::new(7, VOCABULARY, acceptance, config.block_size, costs);
    let requests = (0..150).map(|seq| request(seq, vec![seq as u32 % VOCABULARY; 8], 100));
    let mut moments = Vec::new();
    let simulation = Simulation::new(config, device).expect("the configuration is sound");
    simulation.run_seen(at_once(requests), |_, engine, commands| {
        let steering = engine.view().steering;
        assert!(steering.decides);
        moments.push(Moment {
            suspended: steering.suspended,
            credit_s: steering.credit_s,
            drafts: commands.iter().any(|command| matches!(command, Command::Draft(_))),
            verifies: commands.iter().find_map(|command| match command {
                Command::Verify(plan) => {
                    let proposals = plan.chunks.iter().map(|chunk| chunk.proposals).sum();
                    Some((proposals, plan.partition.0 > 0))
                }
                _ => None,
            }),
        });
    });
    moments
}

/// Suspended more than once, and resumed in between; nothing drafted, verified or overlapped in between. How many passes were overlapped before.
fn suspends_and_resumes(partitions: &[PartitionCosts], acceptance: f64) -> usize {
    let moments = backlog(partitions, acceptance);
    let (suspended, active): (Vec<&Moment>, Vec<&Moment>) =
        moments.iter().partition(|moment| moment.suspended);
    assert!(suspended.len() > 200, "{acceptance}: suspended at {} of {}", suspended.len(), moments.len());
    for moment in &suspended {
        assert!(!moment.drafts, "{acceptance}: {moment:?}");
        assert!(moment.verifies.is_none_or(|verifies| verifies == (0, false)), "{acceptance}: {moment:?}");
    }
    let turns = |from: bool| {
        moments.windows(2).filter(|pair| pair[0].suspended == from && pair[1].suspended != from).count()
    };
    assert!(turns(false) > 1 && turns(true) > 0, "{acceptance}: {} and {}", turns(false), turns(true));
    // Not for nothing: once there is credit it is tried again.
    let resumed = moments.windows(2).position(|pair| pair[0].suspended && !pair[1].suspended).expect("turns");
    assert!(moments[resumed + 1].credit_s > 0.0);
    assert!(moments[resumed + 1..].iter().any(|moment| moment.drafts), "{acceptance}: never tried again");
    active.iter().filter(|moment| moment.verifies.is_some_and(|(_, overlapped)| overlapped)).count()
}

#[test]
fn what_loses_too_much_is_suspended_and_tried_again() {
    for acceptance in [0.0, 0.4, 0.7] {
        assert_eq!(suspends_and_resumes(&undivided((100, 1), (1000, 5)), acceptance), 0);
    }
}

#[test]
fn execution_is_serial_while_speculation_is_suspended() {
    let cost = |pass_us| PassCost::linear(pass_us, 5, ATTENTION);
    let cheap = PartitionCosts { draft: PassCost::linear(110, 1, ATTENTION), verify: cost(1010) };
    for partitions in [partitions(), vec![partitions()[0].clone(), cheap]] {
        let overlapped = suspends_and_resumes(&partitions, 0.7);
        assert!(overlapped > 0);
    }
}

/// A probe whose step is half a pass is rarer than one whose step is a twentieth: what is tried may take half a percent of the time.
#[test]
fn dear_probes_are_rare() {
    let probes = |draft_us| {
        let config = EngineConfig {
            partitions: undivided((draft_us, 1), (10_000, 5)),
            target_blocks: 1000,
            draft: DraftSource::model(1000),
            max_context: 4000,
            ..config(Policy::Budget)
        };
        let requests = [Request::new(SeqId(1), [1, 2, 3], 3000)];
        let report = common::run(&config, 0.0, at_once(requests));
        let late = report.passes.iter().filter(|pass| pass.began.as_secs() > 10);
        late.filter(|pass| pass.lane == LaneKind::Draft).count()
    };
    // In 2,000 rounds of 10 ms. A probe has eight rounds, and one or two plans before them that catch up.
    let (cheap, dear) = (probes(500), probes(5000));
    assert!(dear >= 8 && cheap > 2 * dear, "{cheap} {dear}");
    assert!(cheap * 500 < 200_000 && dear * 5000 < 200_000, "more than 1 % of the time: {cheap} {dear}");
}

/// The credit after a sequence, alone, whose first round had all of its proposals accepted if `accepted`, or none: the first token that comes
/// of it is its stop token. Then again after a tuning that decides nothing, and after another policy.
fn credit_of_a_stop(accepted: bool) -> [f64; 3] {
    const STOP: u32 = 9;
    let config = config(Policy::Faser);
    let tuning = config.tuning.clone();
    let mut engine = Engine::new(config).expect("the configuration is sound");
    let (mut commands, mut now) = (Vec::new(), Duration::ZERO);
    let request = Request { stop_tokens: [STOP].into(), ..request(1, vec![1; 8], 100) };
    engine.handle(now, Event::Submit(request), &mut commands);
    let mut proposed = 0;
    while let Some(command) = commands.pop() {
        now += Duration::from_millis(1);
        let event = match command {
            Command::Draft(mut plan) => {
                let steps = plan.chunks[0].steps;
                let of = |_| Drafted { token: STOP, confidence: 0.9, ..Drafted::default() };
                plan.outcome.proposals.extend((0..steps).map(of));
                plan.outcome.counts.push(steps);
                plan.outcome.took = Duration::from_millis(1);
                Event::DraftDone(plan)
            }
            Command::Verify(mut plan) => {
                let proposals = plan.chunks[0].proposals;
                proposed += proposals;
                let next = Some(if proposals > 0 { STOP } else { 2 });
                let accepted = if accepted { proposals } else { 0 };
                plan.outcome.verdicts.push(Verdict { accepted, next, ..Verdict::default() });
                plan.outcome.took = Duration::from_millis(10);
                Event::VerifyDone(plan)
            }
            _ => continue,
        };
        engine.handle(now, event, &mut commands);
    }
    assert!(proposed > 1, "{proposed}");
    let mut after = |tuning: Tuning| {
        engine.handle(now, Event::Tune(tuning), &mut commands);
        engine.view().steering.credit_s
    };
    let before = after(tuning.clone());
    [
        before,
        after(Tuning { max_waiting: 3, ..tuning.clone() }),
        after(Tuning { policy: Policy::Budget, ..tuning }),
    ]
}

#[test]
fn what_is_accepted_behind_a_stop_token_is_no_gain_and_a_tuning_of_other_things_no_credit() {
    let [all, none] = [true, false].map(credit_of_a_stop);
    assert_eq!(all, none);
    assert!(all[0] != 0.0 && all[1] == all[0] && all[2] == 0.0, "{all:?}");
}
