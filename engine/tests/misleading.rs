//! Drafts that mislead: whatever a draft believes of itself, speculation costs next to nothing against plain decoding.

use std::time::Duration;

use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, Faults, Hardware, Lengths, Pair, Report, Roofline, Simulation, Workload,
};
use faser_engine::{
    DraftSource, EngineConfig, Learned, Policy, Slo, SpeculationBounds, SpeculationMode, Tuning,
};

/// Least share of plain decoding's tokens per second.
const FLOOR: f64 = 0.985;

fn workload(arrivals: Arrivals, acceptance: Acceptance) -> Workload {
    Workload {
        arrivals,
        duration: Duration::from_secs(20),
        lengths: Lengths::exactly(100, 120),
        trace: None,
        acceptance,
        max_context: 256,
        cached_prompts: 0.0,
        mode: SpeculationMode::Auto,
        slo: Slo::default(),
        faults: Faults::default(),
        seed: 41112,
    }
}

/// So many at once on a GPU whose draft steps take so long, and which has partitions for overlapped execution.
fn run(workload: &Workload, (batch, draft_step_s): (usize, f64), policy: Policy) -> Report {
    let roofline = Roofline::new(Hardware::H100, Pair { draft_step_s, ..Pair::QWEN3 }, &[8, 16, 32]);
    let config = EngineConfig {
        block_size: 16,
        target_blocks: 2000,
        draft: DraftSource::model(2000),
        max_pass_rows: 512,
        max_context: 256,
        partitions: roofline.tables(),
        target_layers: 64,
        deterministic: false,
        speculation: SpeculationBounds::default(),
        prefix_cache: false,
        learned: Learned::default(),
        tuning: Tuning { max_running: batch, max_waiting: 1000, policy, ..Tuning::default() },
    };
    let device = workload.device(16, roofline).deviating(Deviation { noise: 0.02, ..Deviation::default() });
    let simulation = Simulation::new(config, device).expect("the configuration is sound");
    simulation.run(workload.happenings())
}

#[test]
fn confidence_upside_down_never_costs_more_than_the_floor_allows() {
    for acceptance in [Acceptance::mixed(), Acceptance::from(0.5), Acceptance::from(0.1)] {
        for (requests, batch, step_s) in [(24, 2, 2.4e-3), (80, 16, 1.2e-3), (200, 64, 5e-3)] {
            let workload = workload(Arrivals::Backlog { requests }, acceptance.clone().inverted());
            let rate = |policy| run(&workload, (batch, step_s), policy).tokens_per_second();
            let (off, faser) = (rate(Policy::Off), rate(Policy::Faser));
            assert!(faser >= FLOOR * off, "{batch} at once of {acceptance:?}: {faser} against {off}");
        }
    }
}
