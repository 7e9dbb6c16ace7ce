//! Settings by name: models, precision, memory for KV and the time of a draft step together.

use super::pair::Pair;

/// What results are told apart by more than by anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// What it is called on a command line.
    pub name: &'static str,
    /// The models.
    pub pair: Pair,
    /// Whether the target's weights are in FP8.
    pub fp8: bool,
    /// Tokens whose KV fits; none: what the device has beside the weights.
    pub kv_tokens: Option<usize>,
    /// Seconds of a draft step at least; none: the pair's own.
    pub draft_step_s: Option<f64>,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 3] = [Preset::DEFAULT, Preset::AMPLE_KV, Preset::EAGER_DRAFTS];

    /// What one H100 holds: bf16, and the KV that fits beside the weights; draft steps by captured graphs.
    pub const DEFAULT: Preset =
        Preset { name: "default", pair: Pair::QWEN3, fp8: false, kv_tokens: None, draft_step_s: None };

    /// What results up to 2026-11-22 had: KV for 262,144 tokens beside bf16 weights, and draft steps of about the roofline's time. No
    /// such machine can exist: on an H100 those weights leave room for 14,032 tokens.
    pub const AMPLE_KV: Preset =
        Preset { name: "ample-kv", kv_tokens: Some(262_144), draft_step_s: Some(1.2e-3), ..Preset::DEFAULT };

    /// What figures of the FASER paper suggest of its testbed: a target in FP8, and drafts whose kernels are launched one by one.
    pub const EAGER_DRAFTS: Preset =
        Preset { name: "eager-drafts", fp8: true, draft_step_s: Some(5e-3), ..Preset::DEFAULT };

    /// The preset of this name.
    pub fn named(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name == name)
    }
}
