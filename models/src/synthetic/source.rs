//! The tensors of a synthetic pair's target, under the names of a checkpoint.

use std::collections::HashMap;

use faser_kernels::{Dtype, Make, Source};

use super::SyntheticSpec;
use super::calibration::Calibration;
use super::normal::Normal;
use crate::layer::Layer;
use crate::load::{CpuPacker, Packer, Tensors};
use crate::{ModelConfig, ModelError};

const LOGIT_STD: f32 = 6.0;
const ATTENTION_STD: f32 = 3.0;
const NORM_SPREAD: f32 = 0.4;

/// Makes tensors when they are asked for; of a layer, all at once: how large its branches are is measured by running it. So one layer is in
/// the host's memory at a time, once as it is made and once packed.
pub(crate) struct Synthetic {
    spec: SyntheticSpec,
    config: ModelConfig,
    /// In what it is run, which is in what it will be held: the pair is the same on every device.
    dtype: Dtype,
    calibration: Calibration,
    embedding: Box<Make<'static>>,
    head: Box<Make<'static>>,
    /// The layer at hand, by what follows `model.layers.N.`.
    layer: HashMap<&'static str, Vec<f32>>,
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const ONES: &Make<'static> = &|_, to| to.fill(1.0);

impl Synthetic {
    /// The tensors of the pair's target; the draft's are the first of them.
    ///
    /// # Errors
    /// The shape is impossible, or there is no memory or thread for it.
    pub(crate) fn new(spec: &SyntheticSpec, dtype: Dtype) -> Result<Synthetic, ModelError> {
        spec.check()?;
        let config = spec.config(spec.layers);
        let embedding = embedding(spec);
        let calibration = Calibration::new(&config, dtype, spec.seed, &*embedding)?;
        let numbers = Normal::new(spec.seed, "head");
        let scale = LOGIT_STD / (spec.hidden as f32).sqrt();
        let head = Box::new(move |from: usize, to: &mut [f32]| {
            to.iter_mut().zip(from..).for_each(|(x, index)| *x = numbers.at(index) * scale);
        });
        Ok(Synthetic {
            spec: spec.clone(),
            config,
            dtype,
            calibration,
            embedding,
            head,
            layer: HashMap::new(),
        })
    }

    /// A matrix that gives outputs of standard deviation `gain` for inputs of RMS 1.
    fn weights(&self, name: &str, outputs: usize, inputs: usize, gain: f32) -> Vec<f32> {
        Normal::new(self.spec.seed, name).take(outputs * inputs, gain / (inputs as f32).sqrt())
    }
}

impl Tensors for Synthetic {
    fn total_bytes(&self) -> u64 {
        let ModelConfig { hidden, intermediate, vocab, layers, .. } = self.config;
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let layer = hidden * (2 * q + 2 * kv + 3 * intermediate + 2);
        (size_of::<f32>() * (2 * vocab * hidden + layers * layer + hidden)) as u64
    }

    fn prepare(&mut self, layer: usize) -> Result<(), ModelError> {
        let ModelConfig { hidden, intermediate, .. } = self.config;
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let sharp = ATTENTION_STD.sqrt();
        let shapes = [
            ("self_attn.q_proj.weight", "q", q, hidden, sharp),
            ("self_attn.k_proj.weight", "k", kv, hidden, sharp),
            ("self_attn.v_proj.weight", "v", kv, hidden, 1.0),
            ("self_attn.o_proj.weight", "o", hidden, q, 1.0),
            ("mlp.gate_proj.weight", "gate", intermediate, hidden, 1.0),
            ("mlp.up_proj.weight", "up", intermediate, hidden, 1.0),
            ("mlp.down_proj.weight", "down", hidden, intermediate, 1.0),
        ];
        self.layer.clear();
        for (name, part, outputs, inputs, gain) in shapes {
            let made = self.weights(&format!("layer {layer} {part}"), outputs, inputs, gain);
            self.layer.insert(name, made);
        }
        let made = |name: &str| Source::F32(&self.layer[name]);
        let mut packer = CpuPacker { dtype: self.dtype };
        let mut pack = |inputs, sources: &[Source<'_>]| packer.matrix("synthetic", inputs, sources);
        let qkv = ["q", "k", "v"].map(|part| made(&format!("self_attn.{part}_proj.weight")));
        let trial = Layer {
            attention_norm: CpuPacker { dtype: self.dtype }.vector(&[Source::Made(hidden, ONES)])?,
            qkv: pack(hidden, &qkv)?,
            qkv_bias: None,
            q_norm: None,
            k_norm: None,
            o: pack(q, &[made("self_attn.o_proj.weight")])?,
            o_bias: None,
            mlp_norm: CpuPacker { dtype: self.dtype }.vector(&[Source::Made(hidden, ONES)])?,
            gate_up: pack(hidden, &[made("mlp.gate_proj.weight"), made("mlp.up_proj.weight")])?,
            gate_up_bias: None,
            down: pack(intermediate, &[made("mlp.down_proj.weight")])?,
            down_bias: None,
        };
        let epsilon = if layer < self.spec.draft_layers { 1.0 } else { self.spec.residual_scale };
        let gains = [
            ("self_attn.o_proj.weight", self.calibration.attention_gain(&self.config, &trial)),
            ("mlp.down_proj.weight", self.calibration.mlp_gain(&self.config, &trial)),
        ];
        for (name, gain) in gains {
            let made = self.layer.get_mut(name).into_iter().flatten();
            made.for_each(|value| *value *= gain * epsilon);
        }
        Ok(())
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let len = shape.iter().product();
        let part = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let source = match (name, part) {
            (EMBEDDING, _) => Some(Source::Made(len, &*self.embedding)),
            (HEAD, _) => Some(Source::Made(len, &*self.head)),
            (_, _) if name.ends_with("norm.weight") => Some(Source::Made(len, ONES)),
            (_, Some((_, part))) => self.layer.get(part).map(|made| Source::F32(made)),
            _ => None,
        };
        source.filter(|source| source.len() == len).ok_or_else(|| ModelError::MissingTensor {
            path: "a synthetic pair".into(),
            tensor: name.to_owned(),
            reason: reason.to_owned(),
        })
    }

    fn finish(&self, _tied: bool) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Rows of RMS about 1, some larger, some smaller.
fn embedding(spec: &SyntheticSpec) -> Box<Make<'static>> {
    let (norms, numbers) = (Normal::new(spec.seed, "embedding norms"), Normal::new(spec.seed, "embedding"));
    let hidden = spec.hidden;
    Box::new(move |from, to| {
        let mut rest = to;
        let mut at = from;
        while !rest.is_empty() {
            // To the end of the row.
            let (row, tail) = rest.split_at_mut((hidden - at % hidden).min(rest.len()));
            let norm = (NORM_SPREAD * norms.at(at / hidden)).exp();
            row.iter_mut().zip(at..).for_each(|(x, index)| *x = numbers.at(index) * norm);
            at += row.len();
            rest = tail;
        }
    })
}
