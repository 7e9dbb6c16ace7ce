//! The tensors of a synthetic pair's target, under the names of a checkpoint.

use std::cell::RefCell;
use std::collections::HashMap;

use faser_kernels::{Dtype, Make, Source};

use super::SyntheticSpec;
use super::calibration::Calibration;
use super::normal::Normal;
use crate::layer_spec::MlpWeights;
use crate::load::{Counter, CpuPacker, EMBEDDING, HEAD, Held, Packing, Shapes, Tensors, counted, load_layer};
use crate::{ModelConfig, ModelError, Shard};

const LOGIT_STD: f32 = 6.0;
const ATTENTION_STD: f32 = 3.0;
const NORM_SPREAD: f32 = 0.4;

/// Makes tensors when they are asked for; of a layer, all at once: how large its branches are is measured by running it. So one layer is in
/// the host's memory at a time, once as it is made and once packed.
pub(crate) struct Synthetic {
    spec: SyntheticSpec,
    config: ModelConfig,
    /// In what it is run, which is in what it will be held: the pair is the same on every device. For FP8, which CPUs have not got, it is bf16.
    dtype: Dtype,
    calibration: Calibration,
    embedding: Box<Make<'static>>,
    head: Box<Make<'static>>,
    /// The matrices of the layer at hand, by name.
    layer: HashMap<String, Vec<f32>>,
}

const ONES: &Make<'static> = &|_, to| to.fill(1.0);

impl Synthetic {
    /// The tensors of the pair's target; the draft's are the first of them.
    ///
    /// # Errors
    /// The shape is impossible, or there is no memory or thread for it.
    pub(crate) fn new(spec: &SyntheticSpec, dtype: Dtype) -> Result<Synthetic, ModelError> {
        spec.check()?;
        let dtype = if dtype == Dtype::Fp8 { Dtype::Bf16 } else { dtype };
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
        counted(&self.config, Shard::WHOLE, &mut Shapes, Held::Rows(Packing::new(&self.config, Dtype::F32)))
            .unwrap_or(0)
    }

    fn prepare(&mut self, layer: usize) -> Result<(), ModelError> {
        let config = self.config.clone();
        let mut wanted = Wanted::default();
        load_layer(&config, layer, &mut wanted, &mut Counter::new(Held::Numbers))?;
        self.layer.clear();
        for (name, outputs, inputs) in wanted.matrices.into_inner() {
            let part = name.trim_end_matches("_proj.weight").rsplit('.').next().unwrap_or_default();
            let gain = if matches!(part, "q" | "k") { ATTENTION_STD.sqrt() } else { 1.0 };
            // Of experts each has its own.
            let expert = name.split_once(".experts.").and_then(|(_, rest)| rest.split('.').next());
            let stream = expert.map_or_else(String::new, |expert| format!(" expert {expert}"));
            let made = self.weights(&format!("layer {layer}{stream} {part}"), outputs, inputs, gain);
            self.layer.insert(name, made);
        }
        let mut packer = CpuPacker { packing: Packing::new(&self.config, self.dtype) };
        let trial = load_layer(&config, layer, self, &mut packer)?;
        let epsilon = if layer < self.spec.draft_layers { 1.0 } else { self.spec.residual_scale };
        let spec = &config.layers[layer];
        let gains = [
            self.calibration.attention_gain(&config, spec, &trial),
            self.calibration.mlp_gain(&config, spec, &trial),
        ];
        let mlp_outputs = match spec.mlp_weights() {
            MlpWeights::Dense(mlp) => vec![mlp.output],
            MlpWeights::Experts(mlp) => {
                mlp.each.into_iter().chain(mlp.shared).map(|expert| expert.output).collect()
            }
        };
        let outputs = [vec![spec.attention_weights().output], mlp_outputs];
        for (outputs, gain) in outputs.iter().zip(gains) {
            for (name, _) in outputs {
                let made = self.layer.get_mut(&format!("model.layers.{layer}.{name}.weight"));
                made.into_iter().flatten().for_each(|value| *value *= gain * epsilon);
            }
        }
        Ok(())
    }

    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        let len = shape.iter().product();
        let source = match name {
            EMBEDDING => Some(Source::Made(len, &*self.embedding)),
            HEAD => Some(Source::Made(len, &*self.head)),
            _ if name.ends_with("norm.weight") => Some(Source::Made(len, ONES)),
            _ => self.layer.get(name).map(|made| Source::F32(made)),
        };
        source.filter(|source| source.len() == len).ok_or_else(|| ModelError::MissingTensor {
            path: "a synthetic pair".into(),
            tensor: name.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

/// The matrices that a loader asks for: name, outputs, inputs.
#[derive(Default)]
struct Wanted {
    matrices: RefCell<Vec<(String, usize, usize)>>,
}

impl Tensors for Wanted {
    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        if let [outputs, inputs] = *shape {
            self.matrices.borrow_mut().push((name.to_owned(), outputs, inputs));
        }
        Shapes.tensor(name, shape, reason)
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
