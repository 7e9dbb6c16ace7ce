//! What tests in the simulator have in common: a small device, an engine for it, requests.
#![allow(dead_code, reason = "no test needs all of it")]

use std::time::Duration;

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::sim::{Happening, Report, SimDevice, Simulation};
use faser_engine::{
    DraftSource, EngineConfig, Learned, Policy, Request, SeqId, SpeculationBounds, TokenId, Tuning,
};

pub(crate) const VOCABULARY: u32 = 50;
/// Attention that costs something.
pub(crate) const ATTENTION: AttentionCost = AttentionCost { per_kv_fs: 1_000_000, per_row_fs: 9_000_000 };

/// The whole device, and a partition on which both lanes are slower.
pub(crate) fn partitions() -> Vec<PartitionCosts> {
    let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, ATTENTION);
    vec![
        PartitionCosts { draft: cost(100, 1), verify: cost(1000, 5) },
        PartitionCosts { draft: cost(150, 2), verify: cost(1100, 8) },
    ]
}

/// The whole device, of passes that take so many µs on the draft and the verify lane, and as many more with every row.
pub(crate) fn undivided(draft: (u64, u64), verify: (u64, u64)) -> Vec<PartitionCosts> {
    let cost = |(pass_us, row_us)| PassCost::linear(pass_us, row_us, AttentionCost::default());
    vec![PartitionCosts { draft: cost(draft), verify: cost(verify) }]
}

pub(crate) fn config(policy: Policy) -> EngineConfig {
    EngineConfig {
        block_size: 4,
        target_blocks: 200,
        draft: DraftSource::model(200),
        max_pass_rows: 64,
        max_context: 128,
        partitions: partitions(),
        target_layers: 32,
        deterministic: false,
        speculation: SpeculationBounds::default(),
        prefix_cache: true,
        learned: Learned::default(),
        tuning: Tuning { max_running: 8, max_waiting: 100, policy, ..Tuning::default() },
    }
}

pub(crate) fn request(seq: u64, prompt: Vec<TokenId>, max_new_tokens: usize) -> Request {
    Request::new(SeqId(seq), prompt, max_new_tokens)
}

/// These requests at the start, in their order.
pub(crate) fn at_once(requests: impl IntoIterator<Item = Request>) -> Vec<(Duration, Happening)> {
    requests.into_iter().map(|request| (Duration::ZERO, Happening::Arrival(request))).collect()
}

pub(crate) fn device(config: &EngineConfig, acceptance: f64) -> SimDevice {
    SimDevice::new(7, VOCABULARY, acceptance, config.block_size, config.partitions.clone())
}

pub(crate) fn run(config: &EngineConfig, acceptance: f64, happenings: Vec<(Duration, Happening)>) -> Report {
    simulation(config, acceptance).run(happenings)
}

pub(crate) fn simulation(config: &EngineConfig, acceptance: f64) -> Simulation {
    Simulation::new(config.clone(), device(config, acceptance)).expect("the configuration is sound")
}
