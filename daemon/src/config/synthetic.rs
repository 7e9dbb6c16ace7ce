//! `model.synthetic`: a preset, and whatever of its shape is to differ.

use faser_models::synthetic::SyntheticSpec;

use crate::fields::{FieldError, Fields};

/// Reads the section. Whether the numbers make a model is checked when the pair is built.
pub(super) fn synthetic(mut fields: Fields<'_>) -> Result<SyntheticSpec, FieldError> {
    let preset = fields.text("preset")?.unwrap_or("tiny");
    let mut spec = SyntheticSpec::preset(preset)
        .map_err(|err| fields.wrong("preset", format!("cannot be used: {err}")))?;
    let sizes: [(&'static str, &mut usize); 8] = [
        ("layers", &mut spec.layers),
        ("draft_layers", &mut spec.draft_layers),
        ("hidden", &mut spec.hidden),
        ("intermediate", &mut spec.intermediate),
        ("heads", &mut spec.heads),
        ("kv_heads", &mut spec.kv_heads),
        ("vocab", &mut spec.vocab),
        ("max_context", &mut spec.max_context),
    ];
    for (name, size) in sizes {
        if let Some(value) = fields.size(name, 1..=(1 << 24))? {
            *size = value;
        }
    }
    if let Some(seed) = fields.whole("seed", 0..=u64::MAX)? {
        spec.seed = seed;
    }
    if let Some(scale) = fields.number("residual_scale", 0.0..=100.0)? {
        spec.residual_scale = scale as f32;
    }
    fields.finish()?;
    Ok(spec)
}
