//! Rotary position embedding: base and scaling from the old keys (`rope_theta`, `rope_scaling`) or the newer
//! `rope_parameters`.

use faser_kernels::RopeScaling;

use super::json_keys::{Keys, MAX_CONTEXT};
use crate::ModelError;

const SUPPORTED: &str = "supported are default, linear and llama3";

/// The rotary embedding's frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f32,
    /// How they are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// Those of layers that see all positions, and of layers that slide, which are others where `sliding_theta` is what is usual there.
pub(super) fn of_layers(
    keys: &Keys,
    usual_theta: f64,
    sliding_theta: Option<f64>,
) -> Result<[RopeConfig; 2], ModelError> {
    only_whole_heads(keys)?;
    let parameters = keys.object("rope_parameters")?;
    let old = keys.object("rope_scaling")?.filter(|section| section.names().next().is_some());
    match sliding_theta {
        None => Ok([of_all(keys, parameters, old, usual_theta)?; 2]),
        Some(sliding_theta) => by_layer_type(keys, parameters.as_ref(), old, [usual_theta, sliding_theta]),
    }
}

/// As transformers merges them: `rope_scaling` stands in the place of `rope_parameters`, and a base that it has not is that of the top level,
/// or the usual one.
fn of_all(
    keys: &Keys,
    parameters: Option<Keys>,
    old: Option<Keys>,
    usual_theta: f64,
) -> Result<RopeConfig, ModelError> {
    let theta_of =
        |section: &Option<Keys>| section.as_ref().map_or(Ok(None), |section| section.positive("rope_theta"));
    let lost_theta = theta_of(&parameters)?.filter(|_| old.is_some());
    let (section, name) = match old {
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

/// `rope_parameters` has a section for each type of layers. The older keys are those of layers that see all, but for
/// `rope_local_base_freq`.
fn by_layer_type(
    keys: &Keys,
    parameters: Option<&Keys>,
    mut old: Option<Keys>,
    usual: [f64; 2],
) -> Result<[RopeConfig; 2], ModelError> {
    let types = ["full_attention", "sliding_attention"];
    if let Some(other) = parameters.into_iter().flat_map(Keys::names).find(|name| !types.contains(name)) {
        let problem = format!("has {other:?}: this family has a section for each of {}", types.join(", "));
        return Err(keys.error("rope_parameters", problem));
    }
    if parameters.is_some() && old.is_some() {
        let problem =
            "stands beside `rope_parameters`: write the scaling into `rope_parameters.full_attention`";
        return Err(keys.error("rope_scaling", problem));
    }
    let mut found = [RopeConfig { theta: 0.0, scaling: RopeScaling::None }; 2];
    for (place, theta_key) in ["rope_theta", "rope_local_base_freq"].into_iter().enumerate() {
        let section = parameters.map_or(Ok(None), |parameters| parameters.object(types[place]))?;
        let (section, name) = match old.take_if(|_| place == 0) {
            Some(old) if old.get("rope_type").is_none() => {
                return Err(old.error("rope_type", format!("is missing; {SUPPORTED}")));
            }
            Some(old) => (Some(old), "rope_scaling"),
            None => (section, "rope_parameters"),
        };
        let theta = section.as_ref().map_or(Ok(None), |section| section.positive("rope_theta"))?;
        let theta = theta.map_or_else(|| keys.positive(theta_key), |theta| Ok(Some(theta)))?;
        let scaling = section.map_or(Ok(RopeScaling::None), |section| scaling(&section, keys, name))?;
        found[place] = RopeConfig { theta: theta.unwrap_or(usual[place]) as f32, scaling };
    }
    Ok(found)
}

fn only_whole_heads(section: &Keys) -> Result<(), ModelError> {
    match section.get("partial_rotary_factor").filter(|part| part.as_f64() != Some(1.0)) {
        Some(part) => {
            Err(section.error("partial_rotary_factor", format!("is {part}, only 1.0 is supported")))
        }
        None => Ok(()),
    }
}

fn scaling(section: &Keys, keys: &Keys, name: &str) -> Result<RopeScaling, ModelError> {
    if section.get("full_attention").is_some() || section.get("sliding_attention").is_some() {
        return Err(keys.error(name, "differs by layer type, which is not supported: give one set of values"));
    }
    only_whole_heads(section)?;
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
                    .required_size("original_max_position_embeddings", MAX_CONTEXT)?,
            })
        }
        Some(other) => Err(section.error("rope_type", format!("is {other:?}; {SUPPORTED}"))),
        None if name == "rope_parameters" => Ok(RopeScaling::None),
        None => Err(section.error("rope_type", format!("is missing; {SUPPORTED}"))),
    }
}
