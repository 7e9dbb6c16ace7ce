//! Rotary position embedding: base and scaling from the old keys (`rope_theta`, `rope_scaling`) or the newer
//! `rope_parameters`.

use faser_kernels::RopeScaling;

use super::keys::Keys;
use crate::ModelError;

const SUPPORTED: &str = "supported are default, linear and llama3";

/// The rotary embedding's frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f32,
    /// How they are stretched for longer contexts.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// As transformers merges them: `rope_scaling` stands in the place of `rope_parameters`, and a base that it has not is that of the top
    /// level, or `usual_theta`.
    pub(super) fn from_keys(keys: &Keys, usual_theta: f64) -> Result<RopeConfig, ModelError> {
        if let Some(part) = keys.get("partial_rotary_factor").filter(|part| part.as_f64() != Some(1.0)) {
            return Err(keys.error("partial_rotary_factor", format!("is {part}, only 1.0 is supported")));
        }
        let parameters = keys.object("rope_parameters")?;
        let scaling_of_old = keys.object("rope_scaling")?.filter(|section| section.names().next().is_some());
        let theta_of = |section: &Option<Keys>| {
            section.as_ref().map_or(Ok(None), |section| section.positive("rope_theta"))
        };
        let lost_theta = theta_of(&parameters)?.filter(|_| scaling_of_old.is_some());
        let (section, name) = match scaling_of_old {
            Some(section) => (Some(section), "rope_scaling"),
            None => (parameters, "rope_parameters"),
        };
        let theta = match theta_of(&section)? {
            Some(theta) => theta,
            None => keys.positive("rope_theta")?.unwrap_or(usual_theta),
        };
        if let Some(lost) = lost_theta.filter(|lost| *lost != theta) {
            let problem = format!(
                "stands beside `rope_parameters`, all of which it replaces: rope_theta would be {theta} instead of {lost}; write the scaling into `rope_parameters`"
            );
            return Err(keys.error("rope_scaling", problem));
        }
        let scaling = match section {
            Some(section) => scaling(&section, keys, name)?,
            None => RopeScaling::None,
        };
        Ok(RopeConfig { theta: theta as f32, scaling })
    }
}

fn scaling(section: &Keys, keys: &Keys, name: &str) -> Result<RopeScaling, ModelError> {
    // Gemma-like checkpoints give one object per layer type here.
    if section.get("full_attention").is_some() || section.get("sliding_attention").is_some() {
        return Err(keys.error(name, "differs by layer type, which is not supported: give one set of values"));
    }
    if let Some(part) = section.get("partial_rotary_factor").filter(|part| part.as_f64() != Some(1.0)) {
        return Err(section.error("partial_rotary_factor", format!("is {part}, only 1.0 is supported")));
    }
    let kind = match section.text("rope_type")? {
        Some(kind) => Some(kind),
        None => section.text("type")?,
    };
    match kind {
        Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: section.required_positive("factor")? as f32 }),
        Some("llama3") => {
            let low = section.required_positive("low_freq_factor")?;
            let high = section.required_positive("high_freq_factor")?;
            if high <= low {
                return Err(section.error(
                    "high_freq_factor",
                    format!("is {high}, it must be above low_freq_factor ({low})"),
                ));
            }
            Ok(RopeScaling::Llama3 {
                factor: section.required_positive("factor")? as f32,
                low_freq_factor: low as f32,
                high_freq_factor: high as f32,
                original_max_positions: section
                    .required_size("original_max_position_embeddings", super::MAX_CONTEXT)?,
            })
        }
        Some(other) => Err(section.error("rope_type", format!("is {other:?}; {SUPPORTED}"))),
        None if name == "rope_parameters" => Ok(RopeScaling::None),
        None => Err(section.error("rope_type", format!("is missing; {SUPPORTED}"))),
    }
}
