//! In what a draft's matrices are held: text does not depend on it, so that is whatever proposes most in a second.

use faser_actors::Dtype;
use faser_config::Config;
use faser_models::{ModelConfig, Shard};

/// A draft whose weights take at least so many bytes in bf16 is held in int8 where nothing else is said: its steps are then
/// shorter. Those of smaller ones are short, whatever they are held in (docs/results/2026-11-23-int8-drafts.md).
const WORTH_INT8_BYTES: u64 = 8 << 20;

/// In what the matrices of this draft are held, beside a target that is held as `model.dtype` says. On GPUs they are held
/// alike, if nothing else is said.
pub(crate) fn draft_dtype(config: &Config, draft: Option<&ModelConfig>, on_gpu: bool) -> Dtype {
    let target = config.model.dtype;
    match (config.model.draft_dtype, draft) {
        (Some(asked), _) => asked,
        (None, Some(draft)) if !on_gpu && target == Dtype::Bf16 && is_large(draft) => Dtype::Int8,
        _ => target,
    }
}

fn is_large(draft: &ModelConfig) -> bool {
    draft.weight_bytes(Shard::WHOLE, Dtype::Bf16).is_ok_and(|bytes| bytes >= WORTH_INT8_BYTES)
}

/// What is to be said of a draft that is not held as its target.
pub(crate) fn held_apart(config: &Config, draft: Dtype) -> Option<String> {
    let target = config.model.dtype;
    (draft != target).then(|| {
        let why = if config.model.draft_dtype.is_some() {
            "as `model.draft_dtype` says"
        } else {
            "the default for drafts of this size"
        };
        format!("draft: its matrices are held in {draft}, the target's in {target} ({why})")
    })
}
