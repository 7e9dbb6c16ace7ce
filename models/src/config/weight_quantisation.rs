//! How the weights of a safetensors checkpoint are quantised: `quantization_config`. They are dequantised as they are loaded, or held
//! in int4, or in fp8 on GPUs, as they are.
//!
//! Sources: the package compressed-tensors 0.20; AutoAWQ's gemm layout; GPTQModel's formats; the FP8 checkpoints of DeepSeek and Qwen.

use faser_kernels::FourBitForm;
use serde_json::Value;

use super::json_keys::{Keys, MAX_WIDTH};
use crate::ModelError;

/// A layout of quantised matrices. Those that have no quantised tensors are as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightQuantisation {
    /// `weight` has 8 bits for each number: FP8 (E4M3) or an integer.
    Bytes {
        /// Rows and columns that have a scale in common.
        block: [usize; 2],
        /// The name of the scales' tensor.
        scales: &'static str,
        /// They are integers.
        integers: bool,
    },
    /// Integers side by side along the rows of `weight_packed` (compressed-tensors).
    Packed {
        /// Of each: 4 or 8.
        bits: usize,
        /// Rows and columns that have a scale in common.
        block: [usize; 2],
        /// They have zero points.
        zero_points: bool,
    },
    /// AWQ: 4 bits, eight outputs to a word of `qweight`.
    Awq {
        /// Inputs that have a scale in common.
        group: usize,
    },
    /// GPTQ: inputs side by side in the words of `qweight`.
    Gptq {
        /// Of each: 4 or 8.
        bits: usize,
        /// Inputs that have a scale in common.
        group: usize,
        /// What is to be added to zero points as they are stored.
        zero_offset: u8,
        /// Inputs are in groups by the size of their activations (`desc_act`).
        by_activation: bool,
    },
    /// Experts of gpt-oss: codes of 4 bits (E2M1), and a power of two for 32 of them.
    Mxfp4,
}

impl WeightQuantisation {
    /// What its codes of 4 bits are in int4, as far as config.json tells: with zero points, if there may be some.
    ///
    /// # Errors
    /// They are not held so: why.
    pub(crate) fn likely_form(self) -> Result<FourBitForm, &'static str> {
        let group = match self {
            WeightQuantisation::Gptq { by_activation: true, .. } => return Err("groups out of order"),
            WeightQuantisation::Packed { bits: 4, block: [_, group], .. }
            | WeightQuantisation::Awq { group }
            | WeightQuantisation::Gptq { bits: 4, group, .. } => group,
            WeightQuantisation::Mxfp4 => return Ok(FourBitForm::E2m1),
            _ => return Err("not of 4 bits"),
        };
        let fits = group == usize::MAX || group.is_multiple_of(32);
        if fits { Ok(FourBitForm::ZeroPoints) } else { Err("other groups than of 32 or a multiple") }
    }

    /// Of how many inputs an output has a scale in common, from each multiple of that on, if its codes are FP8.
    pub(crate) fn fp8_run(self) -> Option<usize> {
        match self {
            WeightQuantisation::Bytes { block: [_, inputs], integers: false, .. } => Some(inputs),
            _ => None,
        }
    }

    /// Whether it has an integer of 8 bits for a number.
    #[must_use]
    pub fn has_eight_bit_integers(self) -> bool {
        !self.has_four_bits() && !matches!(self, WeightQuantisation::Bytes { integers: false, .. })
    }

    /// Whether it has 4 bits for a number.
    #[must_use]
    pub fn has_four_bits(self) -> bool {
        !matches!(
            self,
            WeightQuantisation::Bytes { .. }
                | WeightQuantisation::Packed { bits: 8, .. }
                | WeightQuantisation::Gptq { bits: 8, .. }
        )
    }
}

const SECTION: &str = "quantization_config";
const METHODS: &str = "supported are compressed-tensors, fp8, awq, gptq, and mxfp4 of gpt-oss";

/// What `quantization_config` says, if it is there.
pub(super) fn read(keys: &Keys) -> Result<Option<WeightQuantisation>, ModelError> {
    let section = match keys.object(SECTION)? {
        Some(section) => section,
        // Where older files of compressed-tensors have it.
        None => match keys.object("compression_config")? {
            Some(section) => section,
            None => return Ok(None),
        },
    };
    let layout = match section.text("quant_method")? {
        Some("compressed-tensors") => compressed_tensors(&section)?,
        Some("fp8") => fp8(&section)?,
        Some("awq") => awq(&section)?,
        Some("gptq") => gptq(&section)?,
        Some("mxfp4") => WeightQuantisation::Mxfp4,
        Some(other) => {
            let problem = format!("is {other:?}; {METHODS}: give the checkpoint in bf16, or quantised so");
            return Err(section.error("quant_method", problem));
        }
        None => return Err(section.error("quant_method", format!("is missing; {METHODS}"))),
    };
    Ok(Some(layout))
}

impl std::fmt::Display for WeightQuantisation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let many = |size: usize| if size == usize::MAX { "all".to_owned() } else { size.to_string() };
        match self {
            WeightQuantisation::Bytes { block: [rows, columns], .. } => {
                write!(f, "8 bits, a scale for {} rows and {} columns", many(*rows), many(*columns))
            }
            WeightQuantisation::Packed { bits, block: [_, group], .. } => {
                write!(f, "packed, {bits} bits, a scale for {} inputs", many(*group))
            }
            WeightQuantisation::Awq { group } => {
                write!(f, "AWQ, 4 bits, a scale for {} inputs", many(*group))
            }
            WeightQuantisation::Mxfp4 => write!(f, "MXFP4, 4 bits, a power of two for 32 inputs"),
            WeightQuantisation::Gptq { bits, group, .. } => {
                write!(f, "GPTQ, {bits} bits, a scale for {} inputs", many(*group))
            }
        }
    }
}

/// A value that must be one of some, or absent.
fn one_of(section: &Keys, key: &str, known: &[&str]) -> Result<(), ModelError> {
    match section.text(key)? {
        Some(other) if !known.contains(&other) => {
            let problem = format!("is {other:?}; supported are {}", known.join(", "));
            Err(section.error(key, problem))
        }
        _ => Ok(()),
    }
}

fn bits(section: &Keys, key: &str, known: &[usize]) -> Result<usize, ModelError> {
    let bits = section.required_size(key, 64)?;
    if known.contains(&bits) {
        return Ok(bits);
    }
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    Err(section.error(key, format!("is {bits}; supported are {}", known.join(" and "))))
}

/// `group_size`: -1 is all inputs.
fn group(section: &Keys) -> Result<usize, ModelError> {
    match section.get("group_size") {
        Some(Value::Number(all)) if all.as_i64() == Some(-1) => Ok(usize::MAX),
        _ => section.required_size("group_size", MAX_WIDTH),
    }
}

fn block_of(section: &Keys, key: &str) -> Result<Option<[usize; 2]>, ModelError> {
    let Some(value) = section.get(key) else { return Ok(None) };
    let sizes: Option<Vec<usize>> = value.as_array().and_then(|list| {
        list.iter().map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok())).collect()
    });
    match sizes.as_deref() {
        Some([rows, columns]) if *rows > 0 && *columns > 0 => Ok(Some([*rows, *columns])),
        _ => Err(section.error(key, format!("is {value}, two whole numbers above 0 are expected"))),
    }
}

fn compressed_tensors(section: &Keys) -> Result<WeightQuantisation, ModelError> {
    let formats = ["float-quantized", "int-quantized", "naive-quantized", "pack-quantized"];
    one_of(section, "format", &formats)?;
    if let Some(sparsity) = section.object("sparsity_config")? {
        one_of(&sparsity, "format", &["dense"])?;
    }
    if section.object("transform_config")?.is_some_and(|transforms| transforms.names().next().is_some()) {
        let problem = "is set: weights that are rotated are not supported";
        return Err(section.error("transform_config", problem));
    }
    let groups = section.object("config_groups")?;
    let groups = groups.ok_or_else(|| section.error("config_groups", "is missing"))?;
    let mut layouts = Vec::new();
    for name in groups.names() {
        let Some(group) = groups.object(name)? else { continue };
        let Some(weights) = group.object("weights")? else { continue };
        one_of(&group, "format", &formats)?;
        one_of(&weights, "type", &["float", "int"])?;
        let is_float = weights.text("type")? == Some("float");
        let block = match weights.text("strategy")? {
            // As compressed-tensors takes what is not said.
            None if weights.get("group_size").is_some() => [1, self::group(&weights)?],
            Some("tensor") | None => [usize::MAX; 2],
            Some("channel") => [1, usize::MAX],
            Some("group") => [1, self::group(&weights)?],
            Some("block") => block_of(&weights, "block_structure")?
                .ok_or_else(|| weights.error("block_structure", "is missing"))?,
            Some(other) => {
                let problem = format!("is {other:?}; supported are tensor, channel, group and block");
                return Err(weights.error("strategy", problem));
            }
        };
        let packed = group.text("format")?.or(section.text("format")?) == Some("pack-quantized");
        layouts.push(match packed && !is_float {
            true => WeightQuantisation::Packed {
                bits: bits(&weights, "num_bits", &[4, 8])?,
                block,
                zero_points: !weights.flag("symmetric", true)?,
            },
            false => {
                bits(&weights, "num_bits", &[8])?;
                WeightQuantisation::Bytes { block, scales: "weight_scale", integers: !is_float }
            }
        });
    }
    match layouts[..] {
        [] => Err(section.error("config_groups", "has no weights that are quantised")),
        [first, ..] if layouts.iter().all(|other| *other == first) => Ok(first),
        _ => {
            Err(section
                .error("config_groups", "has groups that are quantised otherwise: one way is supported"))
        }
    }
}

fn fp8(section: &Keys) -> Result<WeightQuantisation, ModelError> {
    one_of(section, "fmt", &["e4m3", "float8_e4m3fn"])?;
    one_of(section, "scale_fmt", &["float", "float32", "ue8m0"])?;
    Ok(match block_of(section, "weight_block_size")? {
        Some(block) => WeightQuantisation::Bytes { block, scales: "weight_scale_inv", integers: false },
        None => WeightQuantisation::Bytes { block: [usize::MAX; 2], scales: "weight_scale", integers: false },
    })
}

fn awq(section: &Keys) -> Result<WeightQuantisation, ModelError> {
    // As it was called by AutoAWQ's own files.
    let key = if section.get("bits").is_some() { "bits" } else { "w_bit" };
    bits(section, key, &[4])?;
    match section.text("version")?.map(str::to_lowercase).as_deref() {
        None | Some("gemm") => {}
        Some(other) => return Err(section.error("version", format!("is {other:?}; supported is gemm"))),
    }
    if !section.flag("zero_point", true)? {
        return Err(section.error("zero_point", "is false: AWQ is read with zero points"));
    }
    Ok(WeightQuantisation::Awq { group: group(section)? })
}

fn gptq(section: &Keys) -> Result<WeightQuantisation, ModelError> {
    if section.object("dynamic")?.is_some_and(|rules| rules.names().next().is_some()) {
        let problem = "is set: modules that are quantised otherwise than the others are not supported";
        return Err(section.error("dynamic", problem));
    }
    one_of(section, "checkpoint_format", &["gptq", "gptq_v2"])?;
    let second = section.text("checkpoint_format")? == Some("gptq_v2");
    Ok(WeightQuantisation::Gptq {
        bits: bits(section, "bits", &[4, 8])?,
        group: group(section)?,
        // The first version stores them less one.
        zero_offset: u8::from(!second),
        by_activation: section.flag("desc_act", false)?,
    })
}
