//! Experts as gpt-oss has them: those of a layer in one tensor, in which outputs of gate and up take turns, of numbers or of codes in four bits
//! (MXFP4), which are widened where they are asked for, or taken as they are.
//!
//! ```text
//! mlp.experts.gate_up_proj_blocks  [experts, 2 outputs, inputs / 32, 16]  two codes (E2M1) to a byte, the first in the lower bits
//! mlp.experts.gate_up_proj_scales  [experts, 2 outputs, inputs / 32]      powers of two (E8M0)
//! mlp.experts.gate_up_proj         [experts, inputs, 2 outputs]           in place of both
//! mlp.experts.gate_up_proj_bias    [experts, 2 outputs]
//! mlp.router                       what others call mlp.gate
//! ```
//! Source: transformers 5.23.0, `integrations/mxfp4.py` and `models/gpt_oss`.

use std::collections::{HashMap, HashSet};

use faser_kernels::{Beside, Codes, FourBitForm, FourBits, Make, Source};

use super::dequantised::Numbers;
use super::header::Placed;
use super::{Checkpoint, Header};
use crate::load::Tensors;
use crate::{ModelConfig, ModelError};

/// Their names, and the projections that each has, in turns along its outputs.
const STACKS: [(&str, &[&str]); 2] =
    [("gate_up_proj", &["gate_proj", "up_proj"]), ("down_proj", &["down_proj"])];
/// Inputs that a scale is of, and bytes of their codes.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = BLOCK / 2;
/// What the lower three bits of a code stand for; the fourth is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A checkpoint of gpt-oss, its experts apart.
pub(crate) struct GptOss<'a> {
    checkpoint: &'a Checkpoint<'a>,
    /// Experts of a layer.
    count: usize,
    /// By the names that the loader asks for.
    made: HashMap<String, Made<'a>>,
}

/// A matrix or a bias of one expert.
struct Made<'a> {
    shape: Vec<usize>,
    of_what: OfWhat<'a>,
    /// The tensor that it is made of, and the one with its scales.
    of: [Option<&'a str>; 2],
}

enum OfWhat<'a> {
    Codes(Microscaled<'a>),
    Numbers(Box<Make<'a>>),
}

/// Codes of an expert's matrix.
struct Microscaled<'a> {
    part: Part,
    /// Scales of an output.
    groups: usize,
    codes: &'a [u8],
    scales: &'a [u8],
}

impl Codes for Microscaled<'_> {
    fn widen(&self, from: usize, to: &mut [f32]) {
        for (to, at) in to.iter_mut().zip(from..) {
            let group = self.group(at);
            let byte = self.codes[group * BLOCK_BYTES + at % BLOCK / 2];
            *to = e2m1(byte >> (4 * (at % 2))) * e8m0(self.scales[group]);
        }
    }

    fn form(&self) -> Result<FourBitForm, &'static str> {
        Ok(FourBitForm::E2m1)
    }

    fn four_bits(&self, from: usize) -> Option<FourBits> {
        let group = self.group(from);
        let bytes = self.codes.get(group * BLOCK_BYTES..)?.first_chunk::<BLOCK_BYTES>()?;
        let numbers = std::array::from_fn(|i| bytes[i / 2] >> (4 * (i % 2)) & 15);
        Some(FourBits { numbers, scale: e8m0(*self.scales.get(group)?), beside: Beside::Nothing })
    }
}

impl Microscaled<'_> {
    /// The group in the stack that a number of the matrix is in.
    fn group(&self, at: usize) -> usize {
        let (output, input) = (at / (self.groups * BLOCK), at % (self.groups * BLOCK));
        self.part.row(output) * self.groups + input / BLOCK
    }
}

impl OfWhat<'_> {
    fn read(&self, from: usize, to: &mut [f32]) {
        match self {
            OfWhat::Codes(codes) => codes.widen(from, to),
            OfWhat::Numbers(make) => make(from, to),
        }
    }
}

/// Which part of a stack.
#[derive(Clone, Copy)]
struct Part {
    expert: usize,
    part: usize,
    parts: usize,
    outputs: usize,
}

impl Part {
    /// The place of an output among all in the stack.
    fn row(&self, output: usize) -> usize {
        (self.expert * self.outputs + output) * self.parts + self.part
    }
}

impl<'a> GptOss<'a> {
    /// By the headers.
    ///
    /// # Errors
    /// Tensors of experts are missing, or do not go together.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint<'a>,
        config: &ModelConfig,
    ) -> Result<GptOss<'a>, ModelError> {
        let count = config.experts().map_or(0, |experts| experts.count);
        let mut experts = GptOss { checkpoint, count, made: HashMap::new() };
        let layers: HashSet<String> =
            (0..config.layers.len()).map(|layer| format!("model.layers.{layer}")).collect();
        for (name, placed) in checkpoint.headers.iter().flat_map(Header::iter) {
            let Some((layer, stack)) = name.split_once(".mlp.experts.") else { continue };
            // What is of no layer is told as what nobody asked for.
            if !layers.contains(layer) {
                continue;
            }
            for (kind, projections) in STACKS {
                match stack.strip_prefix(kind) {
                    Some("_blocks") => experts.codes(name, layer, placed, projections)?,
                    Some("") => experts.numbers(name, layer, placed, (projections, true))?,
                    Some("_bias") => experts.numbers(name, layer, placed, (projections, false))?,
                    _ => {}
                }
            }
        }
        Ok(experts)
    }

    /// Lists what a stack of codes has.
    fn codes(
        &mut self,
        name: &'a str,
        layer: &str,
        placed: &'a Placed,
        projections: &[&str],
    ) -> Result<(), ModelError> {
        let scales = name.replace("_blocks", "_scales");
        let missing = || self.checkpoint.missing(&scales, "quantization_config");
        let (scales, (of_scales, scale_bytes)) = (self.checkpoint.named(&scales))
            .and_then(|scales| Some((scales, self.checkpoint.stored(scales)?)))
            .ok_or_else(missing)?;
        let (&[experts, rows, groups, BLOCK_BYTES], "U8") = (&placed.shape[..], placed.dtype.as_str()) else {
            return Err(self.wrong(name, placed, "U8 [experts, outputs, inputs / 32, 16]"));
        };
        if of_scales.shape != [experts, rows, groups] || of_scales.dtype != "U8" {
            return Err(self.wrong(scales, of_scales, &format!("U8 {:?}", [experts, rows, groups])));
        }
        let (_, bytes) = self.checkpoint.stored(name).ok_or_else(|| self.checkpoint.missing(name, ""))?;
        for (part, projection) in self.parts(name, placed, (experts, rows), projections)? {
            let codes = Microscaled { part, groups, codes: bytes, scales: scale_bytes };
            self.made.insert(
                format!("{layer}.mlp.experts.{}.{projection}.weight", part.expert),
                Made {
                    shape: vec![part.outputs, groups * BLOCK],
                    of_what: OfWhat::Codes(codes),
                    of: [Some(name), Some(scales)],
                },
            );
        }
        Ok(())
    }

    /// Lists what a stack of numbers has: of matrices, whose inputs come first, or of biases.
    fn numbers(
        &mut self,
        name: &'a str,
        layer: &str,
        placed: &'a Placed,
        (projections, matrices): (&[&str], bool),
    ) -> Result<(), ModelError> {
        let (experts, inputs, rows) = match placed.shape[..] {
            [experts, inputs, rows] if matrices => (experts, inputs, rows),
            [experts, rows] if !matrices => (experts, 1, rows),
            _ => {
                let expected = if matrices { "[experts, inputs, outputs]" } else { "[experts, outputs]" };
                return Err(self.wrong(name, placed, expected));
            }
        };
        let (_, bytes) = self.checkpoint.stored(name).ok_or_else(|| self.checkpoint.missing(name, ""))?;
        let numbers = Numbers::of(placed, bytes)
            .ok_or_else(|| self.wrong(name, placed, "a tensor of F32, BF16 or F16"))?;
        for (part, projection) in self.parts(name, placed, (experts, rows), projections)? {
            let make = move |from: usize, to: &mut [f32]| {
                for (to, at) in to.iter_mut().zip(from..) {
                    let (output, input) = (at / inputs, at % inputs);
                    // Its place among the outputs of all, less those of other experts, whose inputs lie between.
                    let within = part.row(output) - part.expert * rows;
                    *to = numbers.at((part.expert * inputs + input) * rows + within);
                }
            };
            let (kind, shape) = match matrices {
                true => ("weight", vec![part.outputs, inputs]),
                false => ("bias", vec![part.outputs]),
            };
            self.made.insert(
                format!("{layer}.mlp.experts.{}.{projection}.{kind}", part.expert),
                Made { shape, of_what: OfWhat::Numbers(Box::new(make)), of: [Some(name), None] },
            );
        }
        Ok(())
    }

    /// The parts of a stack of so many experts and outputs.
    fn parts<'p>(
        &self,
        name: &str,
        placed: &Placed,
        (experts, rows): (usize, usize),
        projections: &'p [&'p str],
    ) -> Result<impl Iterator<Item = (Part, &'p str)> + use<'p>, ModelError> {
        let parts = projections.len();
        if experts != self.count || placed.shape.contains(&0) || !rows.is_multiple_of(parts) {
            let outputs = if parts == 1 { "" } else { ", an even number of outputs" };
            let expected =
                format!("{} experts (`num_local_experts`){outputs}, and nothing empty", self.count);
            return Err(self.wrong(name, placed, &expected));
        }
        Ok((0..experts).flat_map(move |expert| {
            let part = move |part| Part { expert, part, parts, outputs: rows / parts };
            projections.iter().enumerate().map(move |(place, projection)| (part(place), *projection))
        }))
    }

    fn wrong(&self, name: &str, placed: &Placed, expected: &str) -> ModelError {
        let Placed { dtype, shape, .. } = placed;
        let dtype = dtype.escape_debug();
        let problem = format!("tensor `{name}` is {dtype} {shape:?}, and {expected} is expected of gpt-oss");
        ModelError::format(&self.checkpoint.files.catalogue, &problem)
    }
}

impl Tensors for GptOss<'_> {
    fn total_bytes(&self) -> u64 {
        let stacked = |name: &str| name.contains(".mlp.experts.");
        let plain = self.checkpoint.headers.iter().flat_map(Header::iter);
        let plain = plain.filter(|(name, _)| !stacked(name)).map(|(_, placed)| placed.bytes.len() as u64);
        let made = self.made.values().map(|made| made.shape.iter().product::<usize>() * size_of::<f32>());
        plain.sum::<u64>() + made.sum::<usize>() as u64
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let Some(made) = self.made.get(name) else {
            return self.checkpoint.tensor(&name.replace(".mlp.gate.", ".mlp.router."), shape, reason);
        };
        made.of.iter().flatten().for_each(|of| self.checkpoint.take(of));
        if made.shape != shape {
            return Err(ModelError::Shape {
                path: self.checkpoint.files.catalogue.clone(),
                tensor: name.to_owned(),
                found: made.shape.clone(),
                expected: shape.to_vec(),
                reason: reason.to_owned(),
            });
        }
        let count = shape.iter().product();
        Ok(match &made.of_what {
            OfWhat::Codes(codes) => Source::Codes(count, codes),
            OfWhat::Numbers(make) => Source::Made(count, &**make),
        })
    }

    fn integers(&self, name: &str, count: usize, reason: &str) -> Result<Vec<i64>, ModelError> {
        self.checkpoint.integers(name, count, reason)
    }

    fn look(&self, name: &str) -> Result<(), ModelError> {
        let Some(made) = self.made.get(name) else { return Ok(()) };
        let (count, mut some) = (made.shape.iter().product::<usize>(), [0.0; 4096]);
        for from in (0..count).step_by(some.len()) {
            let some = &mut some[..(count - from).min(4096)];
            made.of_what.read(from, some);
            if let Some(place) = some.iter().position(|number| !number.is_finite()) {
                let value = some[place];
                return Err(ModelError::NotFinite { tensor: name.to_owned(), place: from + place, value });
            }
        }
        Ok(())
    }

    fn finish(&self, tied: bool) -> Result<(), ModelError> {
        self.checkpoint.finish(tied)
    }
}

/// A code's number, by its lower four bits.
fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// A power of two, by its exponent; the last stands for none.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_scales_are_their_numbers() {
        assert_eq!([0x0, 0x3, 0x7, 0x9, 0xF, 0x2F].map(e2m1), [0.0, 1.5, 6.0, -0.5, -6.0, -6.0]);
        assert_eq!([0, 1, 127, 130, 254].map(e8m0), [-127, -126, 0, 3, 127].map(|power| 2f32.powi(power)));
        assert!(e8m0(255).is_nan());
    }
}
