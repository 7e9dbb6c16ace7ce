//! The tensors of a checkpoint whose matrices are quantised: the numbers that their codes stand for, widened to f32 where they are asked for,
//! or the codes of 4 bits and of FP8 themselves. Nothing is held twice.
//!
//! ```text
//! compressed-tensors  weight, weight_scale, weight_zero_point         [outputs, inputs], scales [rows, groups]
//!                     weight_packed, weight_scale, weight_zero_point  words along the inputs; zero points along the outputs
//! fp8                 weight, weight_scale_inv                        scales of blocks
//! AWQ                 qweight, qzeros, scales                         [inputs, outputs / 8], scales [groups, outputs]
//! GPTQ                qweight, qzeros, scales, g_idx                  [inputs / 8, outputs], scales [groups, outputs]
//! ```

use std::collections::HashMap;
use std::sync::OnceLock;

use faser_kernels::{Beside, Codes, FourBitForm, FourBits, Source, Stored, of_e4m3};

use super::header::Placed;
use super::{Checkpoint, Header};
use crate::load::Tensors;
use crate::{ModelError, WeightQuantisation};

/// What stands behind a module's name in tensors that are read for it, or that say nothing of its weights.
const PARTS: [&str; 13] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    // Of activations that others round.
    "input_scale",
    "output_scale",
];
/// Scales of keys and values, and of queries, that others round; in older files one for both.
const OF_KV: [&str; 4] = ["k_scale", "v_scale", "q_scale", "kv_scale"];

/// Places of the outputs that an AWQ word has, from its lowest bits on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A checkpoint, and its matrices that are quantised.
pub(crate) struct Dequantised<'a> {
    checkpoint: &'a Checkpoint<'a>,
    /// By their modules.
    matrices: HashMap<String, Quantised<'a>>,
}

/// A quantised matrix `[outputs, inputs]`: each number is `(code - zero point) * scale`.
struct Quantised<'a> {
    shape: [usize; 2],
    codes: Stores<'a>,
    zeros: Zeros<'a>,
    scales: Numbers<'a>,
    /// The scales are `[groups, outputs]`, and not the other way round.
    by_group: bool,
    /// Outputs and inputs that have a scale in common, and how many such groups of inputs there are.
    block: [usize; 2],
    groups: usize,
    /// The group of each input, if they are not in their order: i32.
    order: Option<&'a [u8]>,
    /// What its codes are, once it was asked for: all zero points are looked at.
    form: OnceLock<Result<FourBitForm, &'static str>>,
}

/// Where codes lie.
#[derive(Clone, Copy)]
enum Stores<'a> {
    Fp8(&'a [u8]),
    Int8(&'a [u8]),
    /// Along the inputs: `[outputs, words]`.
    Packed(&'a [u8], usize),
    /// Along the outputs: `[inputs, words]`, in AWQ's order.
    Awq(&'a [u8]),
    /// Along the inputs: `[words, outputs]`.
    Gptq(&'a [u8], usize),
}

#[derive(Clone, Copy)]
enum Zeros<'a> {
    /// The same for all.
    All(i32),
    /// As many as scales.
    Int8(&'a [u8]),
    /// `[words, groups]`, of so many bits.
    Packed(&'a [u8], usize),
    /// `[groups, words]`, in AWQ's order.
    Awq(&'a [u8]),
    /// `[groups, words]`, of so many bits, less the last number.
    Gptq(&'a [u8], usize, i32),
}

/// Floating-point numbers of a file.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    stored: Stored,
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    /// Those of a tensor, if it has some.
    pub(super) fn of(placed: &Placed, bytes: &'a [u8]) -> Option<Numbers<'a>> {
        Some(Numbers { stored: placed.numbers()?, bytes })
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.stored.bytes()
    }

    pub(super) fn at(&self, place: usize) -> f32 {
        let mut number = [0.0];
        Source::File(self.stored, self.bytes).read_f32(place, &mut number);
        number[0]
    }
}

impl<'a> Dequantised<'a> {
    /// Of a checkpoint that is quantised so, by its headers.
    ///
    /// # Errors
    /// Tensors of a matrix are missing, or do not go together.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint<'a>,
        quantisation: WeightQuantisation,
    ) -> Result<Dequantised<'a>, ModelError> {
        let mut matrices = HashMap::new();
        let codes = match quantisation {
            WeightQuantisation::Bytes { .. } => "weight",
            WeightQuantisation::Packed { .. } => "weight_packed",
            WeightQuantisation::Awq { .. } | WeightQuantisation::Gptq { .. } => "qweight",
            WeightQuantisation::Mxfp4 => {
                let problem = "`quantization_config` says mxfp4, which is read of gpt-oss alone";
                return Err(ModelError::format(&checkpoint.files.catalogue, &problem));
            }
        };
        for (name, placed) in checkpoint.headers.iter().flat_map(Header::iter) {
            let Some(module) = name.strip_suffix(codes).and_then(|name| name.strip_suffix('.')) else {
                continue;
            };
            // What is ignored by the quantisation is as it is.
            if codes == "weight" && !matches!(placed.dtype.as_str(), "F8_E4M3" | "I8") {
                continue;
            }
            let matrix = Reader { checkpoint, module }.matrix(quantisation)?;
            matrices.insert(module.to_owned(), matrix);
        }
        Ok(Dequantised { checkpoint, matrices })
    }

    /// Whether a module's bias is one of those that AutoGPTQ gives every matrix, which are zeros where the model has none.
    fn is_no_bias(&self, module: &str) -> bool {
        let is_gptq = |matrix: &Quantised| matches!(matrix.codes, Stores::Gptq(..));
        let numbers = || {
            let (placed, bytes) = Reader { checkpoint: self.checkpoint, module }.optional("bias")?;
            Numbers::of(placed, bytes)
        };
        self.matrices.get(module).is_some_and(is_gptq)
            && numbers().is_some_and(|bias| (0..bias.len()).all(|place| bias.at(place) == 0.0))
    }

    fn matrix(&self, name: &str) -> Option<(&str, &Quantised<'a>)> {
        let (stored, _) = self.checkpoint.experts.stored(name);
        let module = stored.strip_suffix(".weight")?;
        self.matrices.get_key_value(module).map(|(module, matrix)| (module.as_str(), matrix))
    }
}

impl Tensors for Dequantised<'_> {
    fn total_bytes(&self) -> u64 {
        let of_matrix = |name: &str| {
            let (module, part) = name.rsplit_once('.').unwrap_or_default();
            PARTS.contains(&part) && self.matrices.contains_key(module)
        };
        let plain = self.checkpoint.headers.iter().flat_map(Header::iter);
        let plain = plain.filter(|(name, _)| !of_matrix(name)).map(|(_, placed)| placed.bytes.len() as u64);
        let made = self
            .matrices
            .values()
            .map(|Quantised { shape: [outputs, inputs], .. }| (outputs * inputs * size_of::<f32>()) as u64);
        plain.sum::<u64>() + made.sum::<u64>()
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let Some((module, matrix)) = self.matrix(name) else {
            return self.checkpoint.tensor(name, shape, reason);
        };
        PARTS.iter().for_each(|part| self.checkpoint.take(&format!("{module}.{part}")));
        if matrix.shape != shape {
            return Err(ModelError::Shape {
                path: self.checkpoint.files.catalogue.clone(),
                tensor: name.to_owned(),
                found: matrix.shape.to_vec(),
                expected: shape.to_vec(),
                reason: reason.to_owned(),
            });
        }
        Ok(Source::Codes(matrix.shape.iter().product(), matrix))
    }

    fn integers(&self, name: &str, count: usize, reason: &str) -> Result<Vec<i64>, ModelError> {
        self.checkpoint.integers(name, count, reason)
    }

    fn look(&self, name: &str) -> Result<(), ModelError> {
        let Some((module, matrix)) = self.matrix(name) else { return Ok(()) };
        match matrix.first_not_finite() {
            None => Ok(()),
            Some((part, place, value)) => {
                Err(ModelError::NotFinite { tensor: format!("{module}, {part}"), place, value })
            }
        }
    }

    fn finish(&self, tied: bool) -> Result<(), ModelError> {
        for (name, _) in self.checkpoint.headers.iter().flat_map(Header::iter) {
            let (module, part) = name.rsplit_once('.').unwrap_or_default();
            if OF_KV.contains(&part) || part == "bias" && self.is_no_bias(module) {
                self.checkpoint.take(name);
            }
        }
        self.checkpoint.finish(tied)
    }
}

/// Reads what a module has.
struct Reader<'a> {
    checkpoint: &'a Checkpoint<'a>,
    module: &'a str,
}

impl<'a> Reader<'a> {
    fn matrix(&self, quantisation: WeightQuantisation) -> Result<Quantised<'a>, ModelError> {
        match quantisation {
            WeightQuantisation::Bytes { block, scales, integers } => self.of_bytes(block, scales, integers),
            WeightQuantisation::Packed { bits, block, zero_points } => self.packed(bits, block, zero_points),
            WeightQuantisation::Awq { group } => self.by_group(4, group, None),
            WeightQuantisation::Mxfp4 => Err(self.wrong("weight", "is of gpt-oss alone")),
            WeightQuantisation::Gptq { bits, group, zero_offset, by_activation } => {
                if by_activation {
                    self.needed("g_idx")?;
                }
                self.by_group(bits, group, Some(zero_offset.into()))
            }
        }
    }

    fn of_bytes(&self, block: [usize; 2], scales: &str, integers: bool) -> Result<Quantised<'a>, ModelError> {
        let (placed, bytes) = self.needed("weight")?;
        let shape = self.two("weight", placed)?;
        self.check("weight", placed, if integers { "I8" } else { "F8_E4M3" }, shape)?;
        let codes = if integers { Stores::Int8(bytes) } else { Stores::Fp8(bytes) };
        let groups = groups(shape[1], block[1]);
        let of_scales = [self::groups(shape[0], block[0]), groups];
        let zeros = match self.optional("weight_zero_point") {
            None => Zeros::All(0),
            Some((placed, zeros)) => {
                self.check("weight_zero_point", placed, "I8", of_scales)?;
                Zeros::Int8(zeros)
            }
        };
        let scales = self.numbers(scales, of_scales)?;
        let order = self.order("weight_g_idx", shape[1], groups)?;
        let form = OnceLock::new();
        Ok(Quantised { shape, codes, zeros, scales, by_group: false, block, groups, order, form })
    }

    fn packed(&self, bits: usize, block: [usize; 2], zero_points: bool) -> Result<Quantised<'a>, ModelError> {
        let (placed, words) = self.needed("weight_packed")?;
        let [outputs, packed] = self.two("weight_packed", placed)?;
        // The last word may have room left.
        let inputs = match self.integers("weight_shape")?.as_deref() {
            Some([said, inputs]) if *said == outputs as i64 => usize::try_from(*inputs).unwrap_or_default(),
            Some(other) => return Err(self.wrong("weight_shape", &format!("says {other:?}"))),
            None => packed * 32 / bits,
        };
        if inputs.checked_mul(bits).is_none_or(|bits| bits.div_ceil(32) != packed) {
            return Err(self.wrong("weight_packed", &format!("has {packed} words for {inputs} inputs")));
        }
        self.check("weight_packed", placed, "I32", [outputs, packed])?;
        let groups = groups(inputs, block[1]);
        let rows = self::groups(outputs, block[0]);
        let zeros = match self.optional("weight_zero_point") {
            None if zero_points => {
                return Err(self.checkpoint.missing(&self.name("weight_zero_point"), "quantization_config"));
            }
            None => Zeros::All(1 << (bits - 1)),
            Some((placed, zeros)) => {
                self.check("weight_zero_point", placed, "I32", [(rows * bits).div_ceil(32), groups])?;
                Zeros::Packed(zeros, bits)
            }
        };
        let scales = self.numbers("weight_scale", [rows, groups])?;
        let order = self.order("weight_g_idx", inputs, groups)?;
        let codes = Stores::Packed(words, bits);
        Ok(Quantised {
            shape: [outputs, inputs],
            codes,
            zeros,
            scales,
            by_group: false,
            block,
            groups,
            order,
            form: OnceLock::new(),
        })
    }

    /// AWQ's, or with what zero points are stored less of, GPTQ's.
    fn by_group(&self, bits: usize, group: usize, gptq: Option<i32>) -> Result<Quantised<'a>, ModelError> {
        let each = 32 / bits;
        let (placed, words) = self.needed("qweight")?;
        let [rows, columns] = self.two("qweight", placed)?;
        self.check("qweight", placed, "I32", [rows, columns])?;
        let shape @ [outputs, inputs] =
            if gptq.is_some() { [columns, rows * each] } else { [columns * each, rows] };
        let groups = groups(inputs, group);
        let (placed, zeros) = self.needed("qzeros")?;
        self.check("qzeros", placed, "I32", [groups, outputs.div_ceil(each)])?;
        let (codes, zeros, order) = match gptq {
            None => (Stores::Awq(words), Zeros::Awq(zeros), None),
            Some(offset) => {
                let order = self.order("g_idx", inputs, groups)?;
                (Stores::Gptq(words, bits), Zeros::Gptq(zeros, bits, offset), order)
            }
        };
        let scales = self.numbers("scales", [groups, outputs])?;
        let (block, form) = ([1, group], OnceLock::new());
        Ok(Quantised { shape, codes, zeros, scales, by_group: true, block, groups, order, form })
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    fn optional(&self, part: &str) -> Option<(&'a Placed, &'a [u8])> {
        self.checkpoint.stored(&self.name(part))
    }

    fn needed(&self, part: &str) -> Result<(&'a Placed, &'a [u8]), ModelError> {
        self.optional(part).ok_or_else(|| self.checkpoint.missing(&self.name(part), "quantization_config"))
    }

    fn wrong(&self, part: &str, problem: &str) -> ModelError {
        let problem = format!("tensor `{}` {problem}: `quantization_config` says otherwise", self.name(part));
        ModelError::format(&self.checkpoint.files.catalogue, &problem)
    }

    /// A tensor has this shape, whatever dimensions of 1 it has besides.
    fn check(
        &self,
        part: &str,
        placed: &Placed,
        dtype: &str,
        expected: [usize; 2],
    ) -> Result<(), ModelError> {
        let real = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
        if placed.dtype == dtype && real(&placed.shape) == real(&expected) {
            return Ok(());
        }
        let Placed { dtype: stored, shape, .. } = placed;
        Err(self.wrong(part, &format!("is {stored} {shape:?}, and {dtype} {expected:?} is expected")))
    }

    fn two(&self, part: &str, placed: &Placed) -> Result<[usize; 2], ModelError> {
        match placed.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => Err(self.wrong(part, &format!("has shape {:?}, and is no matrix", placed.shape))),
        }
    }

    fn numbers(&self, part: &str, shape: [usize; 2]) -> Result<Numbers<'a>, ModelError> {
        let (placed, bytes) = self.needed(part)?;
        let numbers = Numbers::of(placed, bytes);
        self.check(part, placed, if numbers.is_some() { &placed.dtype } else { "F32" }, shape)?;
        numbers.ok_or_else(|| self.wrong(part, "has no numbers"))
    }

    fn integers(&self, part: &str) -> Result<Option<Vec<i64>>, ModelError> {
        let Some((placed, _)) = self.optional(part) else { return Ok(None) };
        let count = placed.shape.iter().product();
        self.checkpoint.integers(&self.name(part), count, "quantization_config").map(Some)
    }

    /// The group of each input, each of them there.
    fn order(&self, part: &str, inputs: usize, groups: usize) -> Result<Option<&'a [u8]>, ModelError> {
        let Some((placed, bytes)) = self.optional(part) else { return Ok(None) };
        self.check(part, placed, "I32", [inputs, 1])?;
        let mut numbers = bytes.as_chunks().0.iter().map(|group| i32::from_le_bytes(*group));
        match numbers.find(|group| !usize::try_from(*group).is_ok_and(|group| group < groups)) {
            Some(group) => Err(self.wrong(part, &format!("has group {group} of {groups}"))),
            None => Ok(Some(bytes)),
        }
    }
}

/// How many groups there are of `size`, which may be more than all.
fn groups(all: usize, size: usize) -> usize {
    all.div_ceil(size)
}

fn word(words: &[u8], place: usize) -> u32 {
    words.as_chunks().0.get(place).map_or(0, |word| u32::from_le_bytes(*word))
}

/// The `place`th number of `bits` bits from word `first` on, words being `step` apart.
fn of_words(words: &[u8], first: usize, step: usize, place: usize, bits: usize) -> i32 {
    let each = 32 / bits;
    let word = word(words, first + place / each * step);
    (word >> (place % each * bits) & ((1 << bits) - 1)) as i32
}

/// 32 of 4 bits, from word `first` on, words being `step` apart.
fn nibbles(words: &[u8], first: usize, step: usize, to: &mut [u8; BLOCK]) {
    for (i, eight) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = word(words, first + i * step);
        (0..).zip(eight).for_each(|(place, to)| *to = (word >> (4 * place) & 15) as u8);
    }
}

/// The same of an AWQ row of words.
fn of_awq(words: &[u8], first: usize, place: usize) -> i32 {
    let within = AWQ_ORDER.iter().position(|known| *known == place % 8).unwrap_or_default();
    (word(words, first + place / 8) >> (4 * within) & 15) as i32
}

/// Inputs that kernels take with one scale.
const BLOCK: usize = 32;

impl Codes for Quantised<'_> {
    fn widen(&self, from: usize, to: &mut [f32]) {
        let [_, inputs] = self.shape;
        // A scale and a zero point are those of many numbers, one after the other.
        let mut last = None;
        let (mut scale, mut zero) = (0.0, 0);
        for (to, at) in to.iter_mut().zip(from..) {
            let (output, input) = (at / inputs, at % inputs);
            let group = self.group(input);
            if last != Some((output, group)) {
                (scale, zero) = (self.scales.at(self.place(output, group)), self.zero(output, group));
                last = Some((output, group));
            }
            *to = match self.codes {
                Stores::Fp8(bytes) => of_e4m3(bytes[at]) * scale,
                _ => (self.code(output, input) - zero) as f32 * scale,
            };
        }
    }

    fn form(&self) -> Result<FourBitForm, &'static str> {
        *self.form.get_or_init(|| self.find_form())
    }

    fn four_bits(&self, from: usize) -> Option<FourBits> {
        let form = self.form().ok()?;
        let (output, input) = (from / self.shape[1], from % self.shape[1]);
        let (group, mut numbers) = (self.group(input), [0; BLOCK]);
        let outputs = self.shape[0];
        match self.codes {
            Stores::Packed(words, 4) => {
                nibbles(words, output * self.shape[1].div_ceil(8) + input / 8, 1, &mut numbers);
            }
            Stores::Gptq(words, 4) => nibbles(words, output + input / 8 * outputs, outputs, &mut numbers),
            _ => (input..).zip(&mut numbers).for_each(|(input, to)| *to = self.code(output, input) as u8),
        }
        let beside = match form {
            FourBitForm::ZeroPoints => Beside::ZeroPoint(u8::try_from(self.zero(output, group)).ok()?),
            _ => Beside::Nothing,
        };
        Some(FourBits { numbers, scale: self.scales.at(self.place(output, group)), beside })
    }

    fn fp8_run(&self) -> Option<usize> {
        let in_order = matches!(self.codes, Stores::Fp8(_)) && self.order.is_none();
        in_order.then_some(if self.groups == 1 { self.shape[1] } else { self.block[1] })
    }

    fn fp8(&self, from: usize, len: usize) -> Option<(&[u8], f32)> {
        let Stores::Fp8(bytes) = self.codes else { return None };
        let (output, input) = (from / self.shape[1], from % self.shape[1]);
        let scale = self.scales.at(self.place(output, self.group(input)));
        Some((bytes.get(from..from + len)?, scale))
    }
}

impl Quantised<'_> {
    fn find_form(&self) -> Result<FourBitForm, &'static str> {
        let [outputs, inputs] = self.shape;
        if !matches!(self.codes, Stores::Packed(_, 4) | Stores::Awq(_) | Stores::Gptq(_, 4)) {
            return Err("not of 4 bits");
        }
        if !inputs.is_multiple_of(BLOCK) || (self.groups > 1 && !self.block[1].is_multiple_of(BLOCK)) {
            return Err("a scale of other inputs than 32 or a multiple of it");
        }
        let apart = |block: usize| (1..BLOCK).any(|i| self.group(block + i) != self.group(block));
        if self.order.is_some() && (0..inputs).step_by(BLOCK).any(apart) {
            return Err("inputs in another order than their groups (desc_act)");
        }
        let all_eight = match self.zeros {
            Zeros::All(zero) => zero == 8,
            _ => (0..outputs).all(|output| (0..self.groups).all(|group| self.zero(output, group) == 8)),
        };
        Ok(if all_eight { FourBitForm::Symmetric } else { FourBitForm::ZeroPoints })
    }

    fn group(&self, input: usize) -> usize {
        match self.order {
            Some(order) => word(order, input) as usize,
            None => input / self.block[1],
        }
    }

    fn place(&self, output: usize, group: usize) -> usize {
        match self.by_group {
            true => group * self.shape[0] + output,
            false => output / self.block[0] * self.groups + group,
        }
    }

    fn code(&self, output: usize, input: usize) -> i32 {
        let [outputs, inputs] = self.shape;
        match self.codes {
            Stores::Fp8(_) => 0,
            Stores::Int8(bytes) => i32::from(bytes[output * inputs + input] as i8),
            Stores::Packed(words, bits) => {
                of_words(words, output * (inputs * bits).div_ceil(32), 1, input, bits)
            }
            Stores::Awq(words) => of_awq(words, input * (outputs / 8), output),
            Stores::Gptq(words, bits) => of_words(words, output, outputs, input, bits),
        }
    }

    fn zero(&self, output: usize, group: usize) -> i32 {
        let outputs = self.shape[0];
        match self.zeros {
            Zeros::All(zero) => zero,
            Zeros::Int8(zeros) => i32::from(zeros[self.place(output, group)] as i8),
            Zeros::Packed(words, bits) => of_words(words, group, self.groups, output / self.block[0], bits),
            Zeros::Awq(words) => of_awq(words, group * (outputs / 8), output),
            Zeros::Gptq(words, bits, offset) => {
                of_words(words, group * outputs.div_ceil(32 / bits), 1, output, bits) + offset
            }
        }
    }

    /// The part and the place of the first number that would make weights that are none, with it.
    fn first_not_finite(&self) -> Option<(&'static str, usize, f32)> {
        // The largest code is 448.
        let bad = |place: &usize| !(self.scales.at(*place) * 512.0).is_finite();
        if let Some(place) = (0..self.scales.len()).find(bad) {
            return Some(("scales", place, self.scales.at(place)));
        }
        let Stores::Fp8(bytes) = self.codes else { return None };
        let place = bytes.iter().position(|code| code & 0x7F == 0x7F)?;
        Some(("weights", place, f32::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that look like noise.
    fn noise(words: usize) -> Vec<u8> {
        (0..words as u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) ^ i << 13).to_le_bytes()).collect()
    }

    /// What is handed out as codes is what is widened, to the bit.
    #[test]
    fn blocks_of_four_bits_are_the_numbers_that_are_widened() {
        let (outputs, inputs, group) = (16, 128, 64);
        let groups = inputs / group;
        let (codes, zeros) = (noise(outputs * inputs / 8), noise(outputs * groups / 8));
        let scales: Vec<u8> = (0..outputs * groups)
            .flat_map(|i| half::f16::from_f32(0.01 * i as f32 - 0.1).to_le_bytes())
            .collect();
        let backwards: Vec<u8> =
            (0..inputs).flat_map(|i| ((groups - 1 - i / group) as i32).to_le_bytes()).collect();
        for (codes, zeros, by_group, order) in [
            (Stores::Packed(&codes, 4), Zeros::All(8), false, None),
            (Stores::Packed(&codes, 4), Zeros::Packed(&zeros, 4), false, None),
            (Stores::Awq(&codes), Zeros::Awq(&zeros), true, None),
            (Stores::Gptq(&codes, 4), Zeros::Gptq(&zeros, 4, 1), true, None),
            (Stores::Gptq(&codes, 4), Zeros::Gptq(&zeros, 4, 0), true, Some(&backwards[..])),
        ] {
            let matrix = Quantised {
                shape: [outputs, inputs],
                codes,
                zeros,
                scales: Numbers { stored: Stored::F16, bytes: &scales },
                by_group,
                block: [1, group],
                groups,
                order,
                form: OnceLock::new(),
            };
            let symmetric = matches!(zeros, Zeros::All(_));
            let form = if symmetric { FourBitForm::Symmetric } else { FourBitForm::ZeroPoints };
            assert_eq!(matrix.form(), Ok(form));
            for from in (0..outputs * inputs).step_by(BLOCK) {
                let mut widened = [0.0; BLOCK];
                matrix.widen(from, &mut widened);
                let FourBits { numbers, scale, beside } = matrix.four_bits(from).unwrap();
                let zero = if let Beside::ZeroPoint(zero) = beside { f32::from(zero) } else { 8.0 };
                assert_eq!(numbers.map(|number| (f32::from(number) - zero) * scale), widened, "{form:?}");
            }
        }
    }
}
