//! Rotary position embedding: base, scaling and how much of a head turns, from the old keys (`rope_theta`, `rope_scaling`) or the newer
//! `rope_parameters`.

use std::sync::Arc;

use faser_kernels::{HeadRows, RopeScaling};
use serde_json::Value;

use super::json_keys::{Keys, MAX_CONTEXT};
use crate::ModelError;

/// What stands for keys that are absent, and what a family has keys for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RopeDefaults {
    pub(super) theta: f64,
    /// Of layers that slide, where they have a section or a key of their own.
    pub(super) sliding_theta: Option<f64>,
    /// Its key beside those of other layers, where the family had one.
    pub(super) sliding_key: Option<&'static str>,
    /// How much of a head turns, where that may be a part of it.
    pub(super) partial_rotary_factor: Option<f64>,
    /// The context before scaling, where the class has a key for it.
    pub(super) original_max_position_embeddings: Option<usize>,
    /// The scalings there are.
    pub(super) types: &'static [&'static str],
}

/// How heads are rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f32,
    /// How they are stretched for longer contexts.
    pub scaling: RopeScaling,
    /// How many elements of a head turn, the first; even. `None`: all.
    pub partial: Option<usize>,
    /// Rotary pairs lie beside each other in a checkpoint's heads; else they are the halves of what turns.
    pub neighbours: bool,
}

impl RopeConfig {
    /// Whole heads by their halves, the frequencies as they are.
    pub fn plain(theta: f32) -> RopeConfig {
        RopeConfig { theta, scaling: RopeScaling::None, partial: None, neighbours: false }
    }

    /// How many elements of a head turn.
    pub(crate) fn rotated(&self, head_dim: usize) -> usize {
        self.partial.unwrap_or(head_dim)
    }

    /// The order that kernels have heads of q and k in, whose halves are the pairs, if a checkpoint has another; of rows of one number.
    pub(crate) fn reordered(&self, head_dim: usize) -> Option<HeadRows> {
        let (rotated, neighbours) = (self.rotated(head_dim), self.neighbours);
        let is_other = neighbours || rotated != head_dim;
        is_other.then_some(HeadRows { cols: 1, head: head_dim, rotated, neighbours })
    }
}

/// Those of layers that see all positions, and of layers that slide, which are others where the family has a base for them; and how many
/// positions that makes, if it is more than `max_context`.
pub(super) fn of_layers(
    keys: &Keys,
    usual: &RopeDefaults,
    head_dim: usize,
    max_context: usize,
) -> Result<([RopeConfig; 2], usize), ModelError> {
    let reader = Reader { keys, usual, head_dim, max_context };
    let parameters = keys.object("rope_parameters")?;
    let old = keys.object("rope_scaling")?.filter(|section| section.names().next().is_some());
    let ropes = match usual.sliding_theta {
        None => {
            let rope = reader.of_all(parameters, old)?;
            [rope.clone(), rope]
        }
        Some(sliding) => reader.by_layer_type(parameters.as_ref(), old, [usual.theta, sliding])?,
    };
    let longest = match ropes[0].scaling {
        // What it is for: config.json may still have the context before it.
        RopeScaling::Yarn { factor, original_max_positions, .. } => {
            let longest = f64::from(factor) * original_max_positions as f64;
            if longest > MAX_CONTEXT as f64 {
                let problem = format!("times {original_max_positions} positions is more than {MAX_CONTEXT}");
                return Err(keys.error("rope_scaling.factor", problem));
            }
            max_context.max(longest as usize)
        }
        _ => max_context,
    };
    Ok((ropes, longest))
}

/// What frequencies follow from.
struct Reader<'a> {
    keys: &'a Keys,
    usual: &'a RopeDefaults,
    head_dim: usize,
    max_context: usize,
}

impl Reader<'_> {
    /// As transformers merges them: `rope_scaling` stands in the place of `rope_parameters`, and a base that it has not is that of the top
    /// level, or the usual one.
    fn of_all(&self, parameters: Option<Keys>, old: Option<Keys>) -> Result<RopeConfig, ModelError> {
        let keys = self.keys;
        let theta_of = |section: &Option<Keys>| {
            section.as_ref().map_or(Ok(None), |section| section.positive("rope_theta"))
        };
        let lost_theta = theta_of(&parameters)?.filter(|_| old.is_some());
        let (section, name) = match old {
            Some(section) => (Some(section), "rope_scaling"),
            None => (parameters, "rope_parameters"),
        };
        let theta = match theta_of(&section)? {
            Some(theta) => theta,
            None => keys.positive("rope_theta")?.unwrap_or(self.usual.theta),
        };
        if let Some(lost) = lost_theta.filter(|lost| *lost != theta) {
            let problem = format!(
                "stands beside `rope_parameters`, all of which it replaces: rope_theta would be {theta} instead of {lost}; write the scaling into `rope_parameters`"
            );
            return Err(keys.error("rope_scaling", problem));
        }
        if let Some(section) = &section
            && (section.get("full_attention").is_some() || section.get("sliding_attention").is_some())
        {
            let problem = "differs by layer type, which is not supported: give one set of values";
            return Err(keys.error(name, problem));
        }
        self.of_section(section, (name, keys.size("original_max_position_embeddings", MAX_CONTEXT)?), theta)
    }

    /// `rope_parameters` has a section for each type of layers. The older keys are those of layers that see all, but for the one of layers that
    /// slide.
    fn by_layer_type(
        &self,
        parameters: Option<&Keys>,
        mut old: Option<Keys>,
        usual: [f64; 2],
    ) -> Result<[RopeConfig; 2], ModelError> {
        let (keys, types) = (self.keys, ["full_attention", "sliding_attention"]);
        if let Some(other) = parameters.into_iter().flat_map(Keys::names).find(|name| !types.contains(name)) {
            let problem =
                format!("has {other:?}: this family has a section for each of {}", types.join(", "));
            return Err(keys.error("rope_parameters", problem));
        }
        if parameters.is_some() && old.is_some() {
            let problem =
                "stands beside `rope_parameters`: write the scaling into `rope_parameters.full_attention`";
            return Err(keys.error("rope_scaling", problem));
        }
        let of_type = |place: usize, theta_key: Option<&str>, old: Option<Keys>| {
            let section = parameters.map_or(Ok(None), |parameters| parameters.object(types[place]))?;
            let (section, name) = match old {
                Some(old) if old.get("rope_type").is_none() => {
                    return Err(old.error("rope_type", format!("is missing; {}", self.supported())));
                }
                Some(old) => (Some(old), "rope_scaling"),
                None => (section, "rope_parameters"),
            };
            // transformers looks for it beside the sections.
            if let Some(section) = section.as_ref().filter(|section| section.get("truncate").is_some()) {
                let problem = "is not read by transformers where layers differ: leave it out";
                return Err(section.error("truncate", problem));
            }
            let theta = section.as_ref().map_or(Ok(None), |section| section.positive("rope_theta"))?;
            let theta = match (theta, theta_key) {
                (None, Some(key)) => keys.positive(key)?,
                _ => theta,
            };
            self.of_section(section, (name, None), theta.unwrap_or(usual[place]))
        };
        Ok([of_type(0, Some("rope_theta"), old.take())?, of_type(1, self.usual.sliding_key, None)?])
    }

    /// Of one section, by the key it stands in; `original`: the original context that the top level says.
    fn of_section(
        &self,
        section: Option<Keys>,
        (name, original): (&str, Option<usize>),
        theta: f64,
    ) -> Result<RopeConfig, ModelError> {
        let partial = self.partial(section.as_ref())?;
        let scaling = match section {
            Some(section) => {
                let original = || match original.or(self.usual.original_max_position_embeddings) {
                    Some(positions) => Ok(positions),
                    None => {
                        section.size_or("original_max_position_embeddings", MAX_CONTEXT, self.max_context)
                    }
                };
                self.scaling(&section, name, theta, original, partial.unwrap_or(self.head_dim) / 2)?
            }
            None => RopeScaling::None,
        };
        Ok(RopeConfig { theta: theta as f32, scaling, partial, neighbours: false })
    }

    /// The elements of a head that turn, if those are not all.
    fn partial(&self, section: Option<&Keys>) -> Result<Option<usize>, ModelError> {
        const KEY: &str = "partial_rotary_factor";
        let mut places = section.into_iter().chain([self.keys]);
        let said = places.find(|place| place.get(KEY).is_some());
        let part = match said {
            Some(place) => place.required_positive(KEY)?,
            None => self.usual.partial_rotary_factor.unwrap_or(1.0),
        };
        let place = said.unwrap_or(self.keys);
        if self.usual.partial_rotary_factor.is_none() && part != 1.0 {
            return Err(place.error(KEY, format!("is {part}: heads of this family turn whole, 1.0")));
        }
        let rotated = (self.head_dim as f64 * part) as usize;
        if part > 1.0 || rotated == 0 || !rotated.is_multiple_of(2) {
            let problem = format!(
                "is {part}, which makes {rotated} of the {} elements of a head: an even number is expected, and at most all",
                self.head_dim
            );
            return Err(place.error(KEY, problem));
        }
        Ok(Some(rotated).filter(|part| *part != self.head_dim))
    }

    fn supported(&self) -> String {
        format!("supported are {}", self.usual.types.join(", "))
    }

    fn scaling(
        &self,
        section: &Keys,
        name: &str,
        theta: f64,
        original: impl Fn() -> Result<usize, ModelError>,
        frequencies: usize,
    ) -> Result<RopeScaling, ModelError> {
        let kind = match section.text("rope_type")? {
            Some(kind) => kind,
            None => match section.text("type")? {
                Some(kind) => kind,
                None if name == "rope_parameters" => "default",
                None => return Err(section.error("rope_type", format!("is missing; {}", self.supported()))),
            },
        };
        // What Phi 3 called it first.
        let kind = if kind == "su" { "longrope" } else { kind };
        if !self.usual.types.contains(&kind) {
            return Err(section.error("rope_type", format!("is {kind:?}; {}", self.supported())));
        }
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor: section.required_positive("factor")? as f32 }),
            // The base grows with texts that are longer than `max_position_embeddings`, and none is.
            "dynamic" => section.required_positive("factor").map(|_| RopeScaling::None),
            "llama3" => {
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
                    original_max_positions: original()?,
                })
            }
            "yarn" => self.yarn(section, theta, original()?),
            "longrope" => self.long(section, original()?, frequencies),
            _ => Ok(RopeScaling::None),
        }
    }

    /// The longer context by the original one, where the key is null or, as LongRoPE may have it, absent.
    fn factor(&self, section: &Keys, original: usize) -> Result<f64, ModelError> {
        Ok(section.positive("factor")?.unwrap_or(self.max_context as f64 / original as f64))
    }

    fn yarn(&self, section: &Keys, theta: f64, original: usize) -> Result<RopeScaling, ModelError> {
        if theta <= 1.0 {
            return Err(self.keys.error("rope_theta", format!("is {theta}: yarn needs a base above 1")));
        }
        let factor = match section.is_null("factor") {
            true => self.factor(section, original)?,
            false => section.required_positive("factor")?,
        };
        let beta_fast = section.positive("beta_fast")?.unwrap_or(32.0);
        let beta_slow = section.positive("beta_slow")?.unwrap_or(1.0);
        if beta_fast < beta_slow {
            let problem = format!("is {beta_fast}, it must not be below beta_slow ({beta_slow})");
            return Err(section.error("beta_fast", problem));
        }
        let grown = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        // Zero is as if the key were not there.
        let mscale = |key: &str| match section.get(key).and_then(Value::as_f64) {
            Some(0.0) => Ok(None),
            _ => section.positive(key),
        };
        let attention_factor = match section.positive("attention_factor")? {
            Some(said) => said,
            None => match (mscale("mscale")?, mscale("mscale_all_dim")?) {
                (Some(scale), Some(all)) => grown(scale) / grown(all),
                _ => grown(1.0),
            },
        };
        Ok(RopeScaling::Yarn {
            factor: factor as f32,
            beta_fast: beta_fast as f32,
            beta_slow: beta_slow as f32,
            truncate: section.flag("truncate", true)?,
            original_max_positions: original,
            attention_factor: attention_factor as f32,
        })
    }

    fn long(&self, section: &Keys, original: usize, frequencies: usize) -> Result<RopeScaling, ModelError> {
        let factors = |key: &str| {
            let list = section.get(key).and_then(Value::as_array).filter(|list| list.len() == frequencies);
            let number =
                |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_normal() && *x > 0.0);
            let factors: Option<Arc<[f32]>> = list.and_then(|list| list.iter().map(number).collect());
            factors.ok_or_else(|| {
                section.error(
                    key,
                    format!("must be a list of {frequencies} numbers above 0, one for each frequency"),
                )
            })
        };
        let factor = self.factor(section, original)?;
        let attention_factor = match section.positive("attention_factor")? {
            Some(said) => said,
            None if factor <= 1.0 => 1.0,
            None if original == 1 => {
                let problem = "is 1, and how attention grows follows from its logarithm";
                return Err(section.error("original_max_position_embeddings", problem));
            }
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        Ok(RopeScaling::Long {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            original_max_positions: original,
            attention_factor: attention_factor as f32,
        })
    }
}
