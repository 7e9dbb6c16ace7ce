//! Sliding windows: which layers have one, by the keys of each family.

use serde_json::Value;

use super::keys::Keys;
use super::{Architecture, MAX_LAYERS};
use crate::ModelError;

/// For each layer how many positions it sees, itself included; `None`: all of them.
pub(super) fn of_layers(
    keys: &Keys,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = keys.size("sliding_window", usize::MAX)?;
    match architecture {
        Architecture::Llama => Ok(vec![None; layers]),
        Architecture::Mistral => Ok(vec![window; layers]),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            if !keys.flag("use_sliding_window", false)? {
                return Ok(vec![None; layers]);
            }
            let Some(window) = window else {
                return Err(keys.error("sliding_window", "is missing, but use_sliding_window is true"));
            };
            let kinds = layer_kinds(keys, layers)?;
            Ok(kinds.into_iter().map(|sliding| sliding.then_some(window)).collect())
        }
    }
}

/// Which layers slide: `layer_types` of newer files, `max_window_layers` (the first layers that do not) of
/// older ones.
fn layer_kinds(keys: &Keys, layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = keys.get("layer_types") else {
        // transformers' default for Qwen2 and Qwen3.
        let full = match keys.get("max_window_layers") {
            Some(Value::Number(zero)) if zero.as_u64() == Some(0) => 0,
            _ => keys.size("max_window_layers", MAX_LAYERS)?.unwrap_or(28),
        };
        return Ok((0..layers).map(|layer| layer >= full).collect());
    };
    let kinds: Option<Vec<bool>> = types.as_array().filter(|types| types.len() == layers).and_then(|types| {
        types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Some(false),
                Some("sliding_attention") => Some(true),
                _ => None,
            })
            .collect()
    });
    kinds.ok_or_else(|| {
        let problem =
            format!("must be {layers} of \"full_attention\" or \"sliding_attention\", one per layer");
        keys.error("layer_types", problem)
    })
}
