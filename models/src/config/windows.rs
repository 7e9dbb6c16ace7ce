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
    let usual = architecture.defaults().sliding_window.filter(|_| !keys.is_null("sliding_window"));
    let window = keys.size("sliding_window", usize::MAX)?.or(usual);
    match architecture {
        Architecture::Llama => Ok(vec![None; layers]),
        Architecture::Mistral => Ok(vec![window; layers]),
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let slides = keys.flag("use_sliding_window", false)?;
            let window = window.filter(|_| slides);
            let kinds = layer_kinds(keys, architecture, layers, window)?;
            Ok(kinds.into_iter().map(|sliding| window.filter(|_| sliding)).collect())
        }
    }
}

/// Which layers slide: `layer_types` of newer files, `max_window_layers` (the first layers that do not) of
/// older ones.
fn layer_kinds(
    keys: &Keys,
    architecture: Architecture,
    layers: usize,
    window: Option<usize>,
) -> Result<Vec<bool>, ModelError> {
    let Some(types) = keys.get("layer_types") else {
        let usual = architecture.defaults().max_window_layers;
        let full = match keys.get("max_window_layers") {
            Some(Value::Number(zero)) if zero.as_u64() == Some(0) => 0,
            _ => keys.size("max_window_layers", MAX_LAYERS)?.unwrap_or(usual),
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
    let kinds = kinds.ok_or_else(|| {
        let problem =
            format!("must be {layers} of \"full_attention\" or \"sliding_attention\", one per layer");
        keys.error("layer_types", problem)
    })?;
    if window.is_none() && kinds.contains(&true) {
        let problem =
            "has \"sliding_attention\", but no window is set: give `use_sliding_window` and `sliding_window`";
        return Err(keys.error("layer_types", problem));
    }
    Ok(kinds)
}
