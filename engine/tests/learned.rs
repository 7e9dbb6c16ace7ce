//! What one engine learned and another one begins with: it predicts well from its first rounds, and no text is another one.

mod common;

use common::{VOCABULARY, at_once, config, request};
use faser_engine::sim::{Acceptance, Report, SimDevice, Simulation};
use faser_engine::survival::Source;
use faser_engine::{Counts, Engine, EngineConfig, Learned, Policy, Tuning};

/// So many requests at once, with a draft that is sure where it is mostly wrong; and what was learned of it.
fn run(policy: Policy, learned: Learned, requests: u64) -> (Report, Learned) {
    let config = config(policy);
    let tuning = Tuning { max_waiting: 1000, ..config.tuning.clone() };
    let config = EngineConfig { learned, tuning, ..config };
    let acceptance = Acceptance::from(0.5).inverted();
    let device = SimDevice::new(7, VOCABULARY, acceptance, config.block_size, config.partitions.clone());
    let arrivals = at_once((0..requests).map(|seq| request(seq, vec![seq as u32 % 50; 8], 60)));
    let mut learned = Learned::default();
    let simulation = Simulation::new(config, device).expect("the configuration is sound");
    let report = simulation.run_seen(arrivals, |_, engine, _| learned = engine.learned());
    (report, learned)
}

#[test]
fn what_another_engine_learned_is_known_from_the_first_round_on() {
    let policy = Policy::Fixed { k: 3 };
    let (_, learned) = run(policy.clone(), Learned::default(), 200);
    let (fresh, _) = run(policy.clone(), Learned::default(), 8);
    let (taught, _) = run(policy, learned, 8);
    let loss = |report: &Report| report.view.calibration.log_loss_nats;
    assert!(fresh.view.calibration.observed > 300 && taught.view.calibration.observed > 300);
    // Untaught, it trusts the draft's word, which is worse than nothing: a coin's loss is 0.69 nats.
    assert!(loss(&fresh) > 0.7 && loss(&taught) < 0.66, "{} and {}", loss(&fresh), loss(&taught));
    let (fresh, _) = run(Policy::Faser, Learned::default(), 8);
    let (taught, _) = run(Policy::Faser, learned, 8);
    let texts = |report: &Report| report.outcomes.values().map(|o| o.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&fresh), texts(&taught));
}

#[test]
fn an_engine_that_did_nothing_knows_what_it_was_told_and_believes_no_nonsense() {
    let engine = |learned| Engine::new(EngineConfig { learned, ..config(Policy::Faser) }).expect("sound");
    let fresh = engine(Learned::default()).learned();
    let (_, learned) = run(Policy::Fixed { k: 3 }, Learned::default(), 100);
    let once = engine(learned).learned();
    assert_ne!(once, fresh);
    assert_eq!(engine(once).learned(), once, "it does not fade from start to start");
    let mut nonsense = Learned::default();
    nonsense.0[Source::Draft].all = Counts { seen: f64::NAN, accepted: 7.0 };
    assert_eq!(engine(nonsense).learned(), fresh);
}
