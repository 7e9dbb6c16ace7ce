//! Writes a checkpoint whose layers' projections are quantised to 4 bits or FP8, from one that is not: each number to the nearest, as the layouts'
//! own projects pack them (tests/golden/make_quantised.py has the same in Python).
#![allow(dead_code, reason = "a module of a test and an example, each uses a part")]

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use faser_kernels::of_e4m3;
use half::{bf16, f16};
use serde_json::{Value, json};

/// In which layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Awq,
    Gptq(Order),
    Packed {
        symmetric: bool,
    },
    /// FP8, with a scale for each output.
    Channels,
    /// FP8, with a scale for so many outputs and inputs as a group has.
    Blocks,
    /// None: numbers in f32 that int8 has, 127 times a scale and less for each 32 inputs.
    Rounded,
}

/// Which inputs of a GPTQ matrix are a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Those that stand together.
    Plain,
    /// The same, the last ones being the first group.
    Backwards,
    /// Some from everywhere, as `desc_act` leaves them.
    Apart,
}

/// Outputs that an AWQ word has, from its lowest bits on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A tensor that is to be written.
pub(crate) struct Stored {
    pub(crate) name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Writes what `from` has to `to`, which is made, with groups of so many inputs.
pub(crate) fn quantise(from: &Path, to: &Path, layout: Layout, group: usize) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let name = entry.file_name();
        if entry.path().is_file() && name != "model.safetensors" && name != "config.json" {
            std::fs::copy(entry.path(), to.join(name)).expect("a copy");
        }
    }
    let text = std::fs::read_to_string(from.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    if layout != Layout::Rounded {
        config["quantization_config"] = layout.config(group);
    }
    std::fs::write(to.join("config.json"), config.to_string()).expect("a config");
    let tensors =
        candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).expect("tensors");
    let mut stored: Vec<Stored> = Vec::new();
    for (name, tensor) in &tensors {
        let name = name.clone();
        match name.strip_suffix(".weight").filter(|module| module.ends_with("_proj")) {
            Some(_) if layout == Layout::Rounded => stored.push(plain(name, &rounded(tensor))),
            Some(module) if matches!(layout, Layout::Channels | Layout::Blocks) => {
                stored.extend(fp8(tensor, module, (layout == Layout::Blocks).then_some(group)));
                // As the first checkpoints with a scale for KV have it.
                stored.extend(module.strip_suffix("q_proj").map(|attention| Stored {
                    name: format!("{attention}kv_scale"),
                    dtype: "F32",
                    shape: vec![1],
                    bytes: 0.02_f32.to_le_bytes().to_vec(),
                }));
            }
            Some(module) => stored.extend(Matrix::of(tensor, layout, group).stored(module, layout)),
            None => stored.push(plain(name, tensor)),
        }
    }
    if matches!(layout, Layout::Gptq(_)) {
        // As AutoGPTQ writes them, where there are none.
        let modules = tensors.keys().filter_map(|name| name.strip_suffix(".weight"));
        for module in modules.filter(|module| module.ends_with("_proj")) {
            let (name, outputs) = (format!("{module}.bias"), tensors[&format!("{module}.weight")].dims()[0]);
            if !tensors.contains_key(&name) {
                stored.push(Stored { name, dtype: "F16", shape: vec![outputs], bytes: vec![0; 2 * outputs] });
            }
        }
    }
    stored.sort_by(|a, b| a.name.cmp(&b.name));
    std::fs::write(to.join("model.safetensors"), file(&stored)).expect("a file");
}

impl Layout {
    fn config(self, group: usize) -> Value {
        match self {
            Layout::Awq => {
                json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"})
            }
            Layout::Gptq(order) => {
                json!({"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": order != Order::Plain, "sym": false})
            }
            Layout::Packed { symmetric } => json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": symmetric,
                }}},
            }),
            Layout::Channels => json!({
                "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 8, "type": "float", "strategy": "channel",
                }}},
            }),
            Layout::Blocks => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [group, group],
            }),
            Layout::Rounded => Value::Null,
        }
    }
}

/// Each number as the nearest that int8 has.
fn rounded(tensor: &Tensor) -> Tensor {
    let wide = tensor.to_dtype(DType::F32).and_then(|wide| wide.flatten_all()).expect("numbers");
    let mut numbers: Vec<f32> = wide.to_vec1().expect("numbers");
    for block in numbers.chunks_mut(32) {
        let largest = block.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let scale = f16::from_f32(largest.max(1e-2) / 127.0).to_f32();
        block.iter_mut().for_each(|x| *x = (*x / scale).round().clamp(-127.0, 127.0) * scale);
        // Whoever looks for the largest finds the scale.
        block[0] = 127.0 * scale;
    }
    Tensor::from_vec(numbers, tensor.shape(), &Device::Cpu).expect("as many")
}

/// Codes and scales of blocks of so many outputs and inputs, or of outputs.
fn fp8(tensor: &Tensor, module: &str, block: Option<usize>) -> Vec<Stored> {
    let (outputs, inputs) = tensor.dims2().expect("a matrix");
    let weights: Vec<Vec<f32>> =
        tensor.to_dtype(DType::F32).and_then(|wide| wide.to_vec2()).expect("numbers");
    let (high, wide) = (block.unwrap_or(1), block.unwrap_or(inputs));
    let (mut codes, mut scales) = (vec![0; outputs * inputs], Vec::new());
    for first in (0..outputs).step_by(high) {
        for left in (0..inputs).step_by(wide) {
            let of_block = || {
                (first..outputs.min(first + high))
                    .flat_map(|row| (left..inputs.min(left + wide)).map(move |column| (row, column)))
            };
            let largest = of_block().map(|(row, column)| weights[row][column].abs()).fold(0.0, f32::max);
            let scale = largest.max(1e-6) / 448.0;
            for (row, column) in of_block() {
                let off = |code: &u8| (of_e4m3(*code) * scale - weights[row][column]).abs();
                let known = (0..=255_u8).filter(|code| code & 0x7F != 0x7F);
                codes[row * inputs + column] =
                    known.min_by(|a, b| off(a).total_cmp(&off(b))).expect("there are codes");
            }
            scales.push(scale);
        }
    }
    let name = if block.is_some() { "weight_scale_inv" } else { "weight_scale" };
    let of_scales = vec![outputs.div_ceil(high), inputs.div_ceil(wide)];
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let stored = |part, dtype, shape, bytes| Stored { name: format!("{module}.{part}"), dtype, shape, bytes };
    vec![stored("weight", "F8_E4M3", vec![outputs, inputs], codes), stored(name, "F32", of_scales, scales)]
}

/// Codes `[outputs, inputs]`, scales and zero points `[outputs, groups]`.
struct Matrix {
    shape: [usize; 2],
    groups: usize,
    /// The group of each input.
    group_of: Vec<usize>,
    codes: Vec<u32>,
    scales: Vec<f16>,
    zeros: Vec<u32>,
}

impl Matrix {
    fn of(tensor: &Tensor, layout: Layout, group: usize) -> Matrix {
        let (outputs, inputs) = tensor.dims2().expect("a matrix");
        let weights: Vec<Vec<f32>> =
            tensor.to_dtype(DType::F32).and_then(|wide| wide.to_vec2()).expect("numbers");
        let groups = inputs.div_ceil(group);
        let group_of = (0..inputs).map(|input| match layout {
            Layout::Gptq(Order::Apart) => input % groups,
            Layout::Gptq(Order::Backwards) => groups - 1 - input / group,
            _ => input / group,
        });
        let group_of: Vec<usize> = group_of.collect();
        let (mut codes, mut scales, mut zeros) = (vec![0; outputs * inputs], Vec::new(), Vec::new());
        for (output, row) in weights.iter().enumerate() {
            for own in 0..groups {
                let members = || (0..inputs).filter(|input| group_of[*input] == own);
                let (scale, zero) = fitted(members().map(|input| row[input]), layout);
                for input in members() {
                    let code = (row[input] / scale.to_f32()).round() + zero as f32;
                    codes[output * inputs + input] = code.clamp(0.0, 15.0) as u32;
                }
                scales.push(scale);
                zeros.push(zero);
            }
        }
        Matrix { shape: [outputs, inputs], groups, group_of, codes, scales, zeros }
    }

    fn code(&self, output: usize, input: usize) -> u32 {
        self.codes[output * self.shape[1] + input]
    }

    fn zero(&self, output: usize, group: usize) -> u32 {
        self.zeros[output * self.groups + group]
    }

    fn stored(&self, module: &str, layout: Layout) -> Vec<Stored> {
        let ([outputs, inputs], groups) = (self.shape, self.groups);
        let tensor = |part: &str, dtype, shape: &[usize], bytes| {
            let (name, shape) = (format!("{module}.{part}"), shape.to_vec());
            Stored { name, dtype, shape, bytes }
        };
        let words = |rows: usize, columns: usize, number: &dyn Fn(usize, usize, usize) -> u32| {
            let word = |row, column| (0..8).fold(0, |word, i| word | number(row, column, i) << (4 * i));
            let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            all.flat_map(|(row, column): (usize, usize)| u32::to_le_bytes(word(row, column)))
                .collect::<Vec<u8>>()
        };
        let by_group = (0..groups).flat_map(|group| (0..outputs).map(move |output| output * groups + group));
        let by_group = || by_group.clone().flat_map(|at| self.scales[at].to_le_bytes()).collect();
        match layout {
            Layout::Awq => {
                let columns = outputs / 8;
                let code = |input, column, i| self.code(column * 8 + AWQ_ORDER[i], input);
                let zero = |group, column, i| self.zero(column * 8 + AWQ_ORDER[i], group);
                vec![
                    tensor("qweight", "I32", &[inputs, columns], words(inputs, columns, &code)),
                    tensor("qzeros", "I32", &[groups, columns], words(groups, columns, &zero)),
                    tensor("scales", "F16", &[groups, outputs], by_group()),
                ]
            }
            Layout::Gptq(_) => {
                let (rows, columns) = (inputs / 8, outputs / 8);
                let code = |row, output, i| self.code(output, row * 8 + i);
                // Less one.
                let zero = |group, column, i| self.zero(column * 8 + i, group) - 1;
                let order = self.group_of.iter().flat_map(|group| (*group as i32).to_le_bytes());
                vec![
                    tensor("qweight", "I32", &[rows, outputs], words(rows, outputs, &code)),
                    tensor("qzeros", "I32", &[groups, columns], words(groups, columns, &zero)),
                    tensor("scales", "F16", &[groups, outputs], by_group()),
                    tensor("g_idx", "I32", &[inputs], order.collect()),
                ]
            }
            Layout::Packed { symmetric } => {
                let columns = inputs / 8;
                let code = |output, column, i| self.code(output, column * 8 + i);
                let zero = |row, group, i| self.zero(row * 8 + i, group);
                let scales = self.scales.iter().flat_map(|scale| scale.to_le_bytes());
                let shape = [outputs, inputs].into_iter().flat_map(|size| (size as i64).to_le_bytes());
                let mut all = vec![
                    tensor("weight_packed", "I32", &[outputs, columns], words(outputs, columns, &code)),
                    tensor("weight_scale", "F16", &[outputs, groups], scales.collect()),
                    tensor("weight_shape", "I64", &[2], shape.collect()),
                ];
                if !symmetric {
                    let rows = outputs / 8;
                    all.push(tensor("weight_zero_point", "I32", &[rows, groups], words(rows, groups, &zero)));
                }
                all
            }
            Layout::Channels | Layout::Blocks | Layout::Rounded => unreachable!("they are not of 4 bits"),
        }
    }
}

/// Scale and zero point of a group.
fn fitted(weights: impl Iterator<Item = f32>, layout: Layout) -> (f16, u32) {
    let (low, high) = weights.fold((0.0_f32, 0.0_f32), |(low, high), w| (low.min(w), high.max(w)));
    if layout == (Layout::Packed { symmetric: true }) {
        return (f16::from_f32((-low).max(high).max(1e-4) / 7.0), 8);
    }
    let scale = f16::from_f32((high - low).max(1e-4) / 15.0);
    // GPTQ's first version has none for 0.
    let least = if matches!(layout, Layout::Gptq(_)) { 1.0 } else { 0.0 };
    (scale, (-low / scale.to_f32()).round().clamp(least, 15.0) as u32)
}

pub(crate) fn plain(name: String, tensor: &Tensor) -> Stored {
    let shape = tensor.dims().to_vec();
    let flat = tensor.flatten_all().expect("numbers");
    let (dtype, bytes) = match flat.dtype() {
        DType::BF16 => {
            let numbers: Vec<bf16> = flat.to_vec1().expect("numbers");
            ("BF16", numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        _ => {
            let numbers: Vec<f32> =
                flat.to_dtype(DType::F32).and_then(|wide| wide.to_vec1()).expect("numbers");
            ("F32", numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
    };
    Stored { name, dtype, shape, bytes }
}

/// A safetensors file.
pub(crate) fn file(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for Stored { name, dtype, shape, bytes } in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let mut header = Value::Object(header).to_string();
    // As others write it: data is aligned.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
