//! Target and draft models of any shape from a seed: no file, no download, and an acceptance that can be chosen.
//!
//! The draft is the target's first layers with the same embedding, final norm and LM head; they are shared in
//! memory, not copied. In the target's further layers both branches are scaled by epsilon
//! ([`SyntheticSpec::residual_scale`]): its last hidden state is the draft's plus epsilon times a random
//! perturbation that depends on the context. At epsilon 0 the draft is always right, with a large one almost
//! never. All matrices keep their full size, so a pass costs what it costs with a real model of the shape.
//!
//! Random weights easily fall into repeating one token for ever. Against that:
//! - the LM head is not tied: a tied one makes the last token the most likely next one;
//! - attention is sharp (scores before the softmax have standard deviation 3): flat attention averages the
//!   context away, and the next token becomes a function of the last one alone;
//! - each branch is scaled, on a calibration batch, to RMS 0.7 where an embedding has RMS 1, so that the
//!   context moves the hidden state as much as the last token does;
//! - logits have standard deviation 6, about the entropy of a language model;
//! - the norms of the embeddings differ (log-normal, 0.4): a token with a large norm drowns the perturbation,
//!   one with a small norm amplifies it, so that the acceptance varies along a text as it does with real
//!   models.
//!
//! Such a model has no end token: its texts end at their length. Its tokenizer is [`crate::Tokenizer::synthetic`].

mod calibration;
mod normal;
mod spec;

use std::sync::Arc;

use faser_kernels::{Dtype, Matrix, Source, Table, Vector};

use self::calibration::Calibration;
use self::normal::Normal;
pub use self::spec::SyntheticSpec;
use crate::layer::Layer;
use crate::model::Parts;
use crate::{Model, ModelConfig, ModelError, Progress};

const LOGIT_STD: f32 = 6.0;
const ATTENTION_STD: f32 = 3.0;
const BRANCH_RMS: f32 = 0.7;
const NORM_SPREAD: f32 = 0.4;

/// Makes the target and its draft.
///
/// # Errors
/// The shape is impossible, or there is no memory or thread for it.
pub fn pair(
    spec: &SyntheticSpec,
    dtype: Dtype,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Model, Model), ModelError> {
    spec.check()?;
    let config = spec.config(spec.layers);
    let builder = Builder { spec, config: &config, dtype };
    let outside = builder.embedding_and_head_bytes();
    let total_bytes = outside + spec.layers as u64 * builder.layer_bytes();
    let mut report = |done_bytes| progress(Progress { done_bytes, total_bytes });

    let embedding = builder.embedding();
    let mut calibration = Calibration::new(&config, dtype, spec.seed, &embedding)?;
    let mut parts = Parts {
        embedding: Arc::new(Table::new(spec.hidden, Source::F32(&embedding), dtype.beside())?),
        layers: Vec::with_capacity(spec.layers),
        norm: Arc::new(ones(spec.hidden)),
        head: Arc::new(
            builder.pack(&builder.weights("head", spec.vocab, spec.hidden, LOGIT_STD), spec.hidden)?,
        ),
    };
    drop(embedding);
    report(outside);
    for index in 0..spec.layers {
        parts.layers.push(Arc::new(builder.layer(index, &mut calibration)?));
        report(outside + parts.layers.len() as u64 * builder.layer_bytes());
    }

    let mut first = parts.clone();
    first.layers.truncate(spec.draft_layers);
    let draft = Model::new(spec.config(spec.draft_layers), dtype, first)?;
    Ok((Model::new(config, dtype, parts)?, draft))
}

struct Builder<'a> {
    spec: &'a SyntheticSpec,
    config: &'a ModelConfig,
    dtype: Dtype,
}

impl Builder<'_> {
    fn embedding_and_head_bytes(&self) -> u64 {
        let SyntheticSpec { vocab, hidden, .. } = *self.spec;
        let embedding = vocab * hidden * self.dtype.beside().bytes();
        embedding as u64 + Matrix::packed_bytes(vocab, hidden, self.dtype)
    }

    /// Of the matrices of a layer.
    fn layer_bytes(&self) -> u64 {
        let ModelConfig { hidden, intermediate, .. } = *self.config;
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let matrices =
            [(q + 2 * kv, hidden), (hidden, q), (2 * intermediate, hidden), (hidden, intermediate)];
        matrices.iter().map(|(outputs, inputs)| Matrix::packed_bytes(*outputs, *inputs, self.dtype)).sum()
    }

    /// Rows of RMS about 1, some larger, some smaller.
    fn embedding(&self) -> Vec<f32> {
        let norms = Normal::new(self.spec.seed, "embedding norms");
        let mut values =
            Normal::new(self.spec.seed, "embedding").take(self.spec.vocab * self.spec.hidden, 1.0);
        for (token, row) in values.chunks_exact_mut(self.spec.hidden).enumerate() {
            let norm = (NORM_SPREAD * norms.at(token)).exp();
            row.iter_mut().for_each(|value| *value *= norm);
        }
        values
    }

    /// A matrix that gives outputs of standard deviation `gain` for inputs of RMS 1.
    fn weights(&self, name: &str, outputs: usize, inputs: usize, gain: f32) -> Vec<f32> {
        Normal::new(self.spec.seed, name).take(outputs * inputs, gain / (inputs as f32).sqrt())
    }

    fn pack(&self, values: &[f32], inputs: usize) -> Result<Matrix, ModelError> {
        Ok(Matrix::pack(inputs, &[Source::F32(values)], self.dtype)?)
    }

    fn layer(&self, index: usize, calibration: &mut Calibration) -> Result<Layer, ModelError> {
        let ModelConfig { hidden, intermediate, .. } = *self.config;
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let weights = |part: &str, outputs, inputs, gain| {
            self.weights(&format!("layer {index} {part}"), outputs, inputs, gain)
        };
        let sharp = ATTENTION_STD.sqrt();
        let [queries, keys, values] =
            [weights("q", q, hidden, sharp), weights("k", kv, hidden, sharp), weights("v", kv, hidden, 1.0)];
        let qkv = [Source::F32(&queries), Source::F32(&keys), Source::F32(&values)];
        let gate_up = [weights("gate", intermediate, hidden, 1.0), weights("up", intermediate, hidden, 1.0)];
        let gate_up = gate_up.each_ref().map(|values| Source::F32(values));
        let mut o = weights("o", hidden, q, 1.0);
        let mut down = weights("down", hidden, intermediate, 1.0);
        let mut layer = Layer {
            attention_norm: ones(hidden),
            qkv: Matrix::pack(hidden, &qkv, self.dtype)?,
            qkv_bias: None,
            q_norm: None,
            k_norm: None,
            o: self.pack(&o, q)?,
            o_bias: None,
            mlp_norm: ones(hidden),
            gate_up: Matrix::pack(hidden, &gate_up, self.dtype)?,
            gate_up_bias: None,
            down: self.pack(&down, intermediate)?,
            down_bias: None,
        };
        let epsilon = if index < self.spec.draft_layers { 1.0 } else { self.spec.residual_scale };
        let gain = calibration.attention_gain(self.config, &layer);
        o.iter_mut().for_each(|value| *value *= gain * epsilon);
        layer.o = self.pack(&o, q)?;
        let gain = calibration.mlp_gain(self.config, &layer);
        down.iter_mut().for_each(|value| *value *= gain * epsilon);
        layer.down = self.pack(&down, intermediate)?;
        Ok(layer)
    }
}

fn ones(width: usize) -> Vector {
    Vector::new(Source::F32(&vec![1.0; width]))
}
