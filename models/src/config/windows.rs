//! Sliding windows: how long they are, and which layers have one.

use super::keys::Keys;
use crate::ModelError;

/// `sliding_window`, or the `usual` one where the key is absent; null is none.
pub(super) fn window(keys: &Keys, usual: Option<usize>) -> Result<Option<usize>, ModelError> {
    let usual = usual.filter(|_| !keys.is_null("sliding_window"));
    Ok(keys.size("sliding_window", usize::MAX)?.or(usual))
}

/// For each layer whether it slides: by `layer_types`, or as the family `usually` has it.
pub(super) fn sliding_layers(
    keys: &Keys,
    layers: usize,
    window: Option<usize>,
    usually: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ModelError> {
    let Some(types) = keys.get("layer_types") else {
        return Ok((0..layers).map(usually).collect());
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
        let problem = "has \"sliding_attention\", but no window is set: give `sliding_window` (of Qwen, `use_sliding_window` too)";
        return Err(keys.error("layer_types", problem));
    }
    Ok(kinds)
}
