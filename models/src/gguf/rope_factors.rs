//! The scaling of rotary frequencies: keys of the metadata say of a linear one and of YaRN, tensors of Llama 3's and of LongRoPE.
//!
//! llama.cpp's converter writes no keys of the latter but `rope_freqs.weight`, what each frequency is divided by. It follows from four
//! numbers, of which all published models share two; they are found again here, so that such a model computes what its checkpoint does.

use std::f64::consts::PI;

use serde_json::{Value, json};

use super::Gguf;
use crate::ModelError;

/// The tensors, each with a number for each frequency.
pub(super) const FACTORS: [&str; 3] = [OF_LLAMA3, SHORT, LONG];
/// That of Llama 3.
const OF_LLAMA3: &str = "rope_freqs.weight";
/// Those of LongRoPE.
const SHORT: &str = "rope_factors_short.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";
/// `low_freq_factor` of all models that were published.
const LOW: f64 = 1.0;
/// `high_freq_factor` of the same.
const HIGH: f64 = 4.0;
/// Contexts that models were trained with first: powers of two.
const ORIGINAL: std::ops::RangeInclusive<u32> = 4..=20;
/// Numbers were computed in f32.
const TOLERANCE: f64 = 1e-4;

/// What `rope_scaling` of config.json would be.
///
/// # Errors
/// It is of a kind that is not read, or the tensor is none of Llama 3's.
pub(super) fn scaling(
    gguf: &Gguf<'_>,
    architecture: &str,
    head_dim: usize,
    theta: f64,
) -> Result<Value, ModelError> {
    let metadata = &gguf.metadata;
    let own = |key: &str| format!("{architecture}.rope.{key}");
    let kind = own("scaling.type");
    let needed = |key: &str| {
        let key = own(key);
        metadata.number(&key)?.ok_or_else(|| metadata.missing(&key))
    };
    let said = metadata.text(&kind)?;
    // Those of one kind, beside a scaling that is none or of that kind.
    let others = match said {
        None | Some("none") if !gguf.has(LONG) => &[][..],
        None | Some("none" | "longrope") => &FACTORS[..1],
        Some("linear") => &FACTORS[1..],
        Some(_) => &FACTORS[..],
    };
    if let Some(name) = others.iter().find(|name| gguf.has(name)) {
        let problem =
            format!("is {:?}, and the tensor `{name}` is of another scaling", said.unwrap_or_default());
        return Err(metadata.error(&kind, problem));
    }
    let linear = match said {
        None | Some("none") if !gguf.has(LONG) => None,
        None | Some("none" | "longrope") => return long(gguf, architecture),
        Some("linear") => Some(needed("scaling.factor")?),
        Some("yarn") => {
            let optional = |key: &str| metadata.number(&own(key));
            let original = own("scaling.original_context_length");
            let positions = metadata.size(&original, u32::MAX.into())?;
            // The converter writes what the checkpoint says, and nothing of what it does not say.
            return Ok(json!({
                "rope_type": "yarn", "factor": needed("scaling.factor")?,
                "original_max_position_embeddings": positions.ok_or_else(|| metadata.missing(&original))?,
                "attention_factor": optional("scaling.yarn_attn_factor")?,
                "beta_fast": optional("scaling.yarn_beta_fast")?, "beta_slow": optional("scaling.yarn_beta_slow")?,
            }));
        }
        Some(other) => {
            let problem = format!(
                "is {other:?}, which is not read: none, linear, yarn and longrope are, and Llama 3's {OF_LLAMA3}"
            );
            return Err(metadata.error(&kind, problem));
        }
    };
    let older = own("scale_linear");
    let linear = linear.or(metadata.number(&older)?.filter(|factor| *factor != 1.0));
    let Some(tensor) = gguf.tensors.get(OF_LLAMA3) else {
        let linear = linear.map(|factor| json!({"rope_type": "linear", "factor": factor}));
        return Ok(linear.unwrap_or(Value::Null));
    };
    let refused = |problem: &str| ModelError::format(tensor.path, &format!("tensor `{OF_LLAMA3}` {problem}"));
    if linear.is_some() {
        return Err(refused("stands beside a linear scaling, which is not read"));
    }
    if tensor.shape != [head_dim / 2] {
        return Err(refused(&format!("has shape {:?}, and [{}] is expected", tensor.shape, head_dim / 2)));
    }
    let source = tensor.source();
    let mut factors = vec![0.0; source.len()];
    source.read_f32(0, &mut factors);
    let found = of_llama3(&factors, head_dim, theta).ok_or_else(|| {
        refused(
            "divides frequencies otherwise than Llama 3 does, which is not read: give the model as a folder",
        )
    })?;
    Ok(found.map_or(Value::Null, |(factor, original)| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
            "original_max_position_embeddings": original,
        })
    }))
}

/// LongRoPE: both lists are tensors.
fn long(gguf: &Gguf<'_>, architecture: &str) -> Result<Value, ModelError> {
    let metadata = &gguf.metadata;
    let list = |name: &str| -> Result<Value, ModelError> {
        let missing = || ModelError::format(metadata.path(), &format!("there is no tensor `{name}`"));
        let tensor = gguf.tensors.get(name).ok_or_else(missing)?;
        let source = tensor.source();
        let mut factors = vec![0.0; source.len()];
        source.read_f32(0, &mut factors);
        Ok(json!(factors))
    };
    Ok(json!({
        "rope_type": "longrope", "short_factor": list(SHORT)?, "long_factor": list(LONG)?,
        "attention_factor": metadata.number(&format!("{architecture}.rope.scaling.attn_factor"))?,
    }))
}

/// The factor and the first context that such factors follow from; none of both if nothing is divided, nothing if they follow from none.
fn of_llama3(factors: &[f32], head_dim: usize, theta: f64) -> Option<Option<(f64, u64)>> {
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    if factors.iter().all(|own| *own == 1.0) {
        return Some(None);
    }
    let fits = |original: &u64| {
        factors.iter().enumerate().all(|(i, own)| {
            let frequency = theta.powf(-2.0 * i as f64 / head_dim as f64);
            let turns = *original as f64 * frequency / (2.0 * PI);
            let kept = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
            let expected = 1.0 / (kept + (1.0 - kept) / factor);
            (f64::from(*own) / expected - 1.0).abs() < TOLERANCE
        })
    };
    ORIGINAL.map(|power| 1 << power).find(fits).map(|original| Some((factor, original)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As llama.cpp's converter computes them.
    fn factors(head_dim: usize, theta: f32, factor: f32, original: f32) -> Vec<f32> {
        let (low, high) = (original / LOW as f32, original / HIGH as f32);
        let of = |i: usize| {
            let wavelength = 2.0 * std::f32::consts::PI * theta.powf((2 * i) as f32 / head_dim as f32);
            if wavelength < high {
                1.0
            } else if wavelength > low {
                factor
            } else {
                let smooth = (original / wavelength - 1.0) / (4.0 - 1.0);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..head_dim / 2).map(of).collect()
    }

    #[test]
    fn the_numbers_of_published_models_are_found_again() {
        for (head_dim, factor) in [(128, 8.0), (64, 32.0)] {
            let found = of_llama3(&factors(head_dim, 5e5, factor, 8192.0), head_dim, 5e5);
            assert_eq!(found, Some(Some((factor.into(), 8192))));
        }
        assert_eq!(of_llama3(&[1.0; 32], 64, 5e5), Some(None));
    }

    #[test]
    fn factors_of_another_kind_are_no_llamas() {
        let mut other = factors(64, 5e5, 8.0, 8192.0);
        other[3] = 1.5;
        assert_eq!(of_llama3(&other, 64, 5e5), None);
        assert_eq!(of_llama3(&[f32::NAN; 32], 64, 5e5), None);
        // Of another base.
        assert_eq!(of_llama3(&factors(64, 5e5, 8.0, 8192.0), 64, 1e4), None);
    }
}
