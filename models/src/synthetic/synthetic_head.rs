//! A head on a target's hidden states whose weights are random: what it proposes is right by chance alone. It is for tests and for timing.

use std::collections::HashMap;

use faser_kernels::{Dtype, Make, Source};

use super::normal::Normal;
use crate::layer_spec::BesideEmbedding;
use crate::load::{CpuPacker, Tensors, load};
use crate::{FuseNorm, HeadLayout, HeadSpec, LayerSpec, Model, ModelConfig, ModelError, Shard};

/// A head of EAGLE-3's kind for this target, a whole Llama: one layer, the streams that enter these layers, and as many tokens to propose, the
/// first ones.
///
/// # Errors
/// There is no memory for it.
///
/// # Panics
/// If the target has no such layers or tokens.
pub fn head(
    target: &Model,
    streams: &[usize],
    proposed: usize,
    seed: u64,
    dtype: Dtype,
) -> Result<Model, ModelError> {
    let config = target.config();
    assert!(streams.iter().all(|stream| *stream <= config.layers.len()) && proposed <= config.vocab);
    let mut layer = LayerSpec::llama(config.head_dim, config.layers[0].attention.rope);
    layer.attention.first = 1;
    layer.attention.beside_embedding = Some(BesideEmbedding { norm: "hidden_norm", residual_normed: false });
    let spec = HeadSpec {
        layout: HeadLayout::Eagle,
        streams: streams.to_vec(),
        target_hidden: config.hidden,
        fuse_norm: FuseNorm::None,
        proposed_vocab: (proposed < config.vocab).then_some(proposed),
        own_embedding: false,
        own_lm_head: true,
        output_normed: false,
    };
    let config = ModelConfig { layers: vec![layer], mask_token: None, head: Some(spec), ..config.clone() };
    let mut tensors = Random { seed, made: HashMap::new() };
    // What is asked for is known once it was asked for.
    let mut wanted = Wanted(std::cell::RefCell::default());
    load(&config, Shard::WHOLE, Some(target.parts()), &mut wanted, &mut CpuPacker { dtype }, &mut |_| {})?;
    for (name, shape) in wanted.0.into_inner() {
        let inputs = shape.last().copied().unwrap_or(1) as f32;
        let gain = if name == "lm_head.weight" { 4.0 } else { 1.0 };
        let numbers = Normal::new(tensors.seed, &name).take(shape.iter().product(), gain / inputs.sqrt());
        tensors.made.insert(name, if shape.len() == 1 { vec![1.0; numbers.len()] } else { numbers });
    }
    let parts = load(
        &config,
        Shard::WHOLE,
        Some(target.parts()),
        &mut tensors,
        &mut CpuPacker { dtype },
        &mut |_| {},
    )?;
    Model::new(config, Shard::WHOLE, dtype, parts)
}

struct Random {
    seed: u64,
    made: HashMap<String, Vec<f32>>,
}

impl Tensors for Random {
    fn tensor(&self, name: &str, _shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError> {
        self.made.get(name).map(|made| Source::F32(made)).ok_or_else(|| ModelError::MissingTensor {
            path: "a synthetic head".into(),
            tensor: name.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

/// What a loader asks for: names and shapes.
struct Wanted(std::cell::RefCell<Vec<(String, Vec<usize>)>>);

const NOTHING: &Make<'static> = &|_, to| to.fill(0.0);

impl Tensors for Wanted {
    fn tensor(&self, name: &str, shape: &[usize], _reason: &str) -> Result<Source<'_>, ModelError> {
        self.0.borrow_mut().push((name.to_owned(), shape.to_vec()));
        Ok(Source::Made(shape.iter().product(), NOTHING))
    }
}
