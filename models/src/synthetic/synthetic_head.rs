//! A head on a target's hidden states whose weights are random: what it proposes is right by chance alone. It is for tests and for timing.

use std::collections::HashMap;

use faser_kernels::{Dtype, Make, Source};

use super::normal::Normal;
use crate::cuda::CudaModel;
use crate::layer_spec::BesideEmbedding;
use crate::load::{CpuPacker, Held, Packing, Tensors, counted, load};
use crate::{
    FuseNorm, HeadKind, HeadLayout, HeadSpec, LayerSpec, Model, ModelConfig, ModelError, RopeConfig, Shard,
};

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
    head_of_kind(target, streams, (proposed, HeadKind::Steps, None), seed, dtype)
}

/// The same of any kind, with the tokens to propose; with a mask token where it proposes in one pass.
///
/// # Errors
/// There is no memory for it.
///
/// # Panics
/// If the target has no such layers or tokens.
pub fn head_of_kind(
    target: &Model,
    streams: &[usize],
    (proposed, kind, mask): (usize, HeadKind, Option<u32>),
    seed: u64,
    dtype: Dtype,
) -> Result<Model, ModelError> {
    let (config, mut tensors) = made(target.config(), streams, (proposed, kind, mask), seed)?;
    let (packer, target) = (&mut CpuPacker { packing: Packing::new(&config, dtype) }, Some(target.parts()));
    let parts = load(&config, Shard::WHOLE, target, &mut tensors, packer, &mut |_| {})?;
    Model::new(config, Shard::WHOLE, dtype, parts)
}

/// Such a head on the GPU of its target, held as that is.
///
/// # Errors
/// There is no memory for it.
///
/// # Panics
/// If the target has no such layers or tokens.
pub fn head_on_gpu(
    target: &CudaModel,
    streams: &[usize],
    shape: (usize, HeadKind, Option<u32>),
    seed: u64,
) -> Result<CudaModel, ModelError> {
    let (config, mut tensors) = made(target.config(), streams, shape, seed)?;
    let place = (target.gpu(), config, Shard::WHOLE);
    CudaModel::of_tensors(place, Some(target), target.element().dtype(), &mut tensors, &mut |_| {})
}

/// The shape of a head, and its numbers.
fn made(
    target: &ModelConfig,
    streams: &[usize],
    (proposed, kind, mask): (usize, HeadKind, Option<u32>),
    seed: u64,
) -> Result<(ModelConfig, Random), ModelError> {
    assert!(streams.iter().all(|stream| *stream <= target.layers.len()) && proposed <= target.vocab);
    let mut layer = LayerSpec::llama(target.head_dim, RopeConfig::plain(10_000.0));
    layer.attention.rope.clone_from(&target.layers[0].attention.rope);
    layer.attention.first = 1;
    if !matches!(kind, HeadKind::Block(_)) {
        layer.attention.beside_embedding =
            Some(BesideEmbedding { norm: "hidden_norm", residual_normed: false });
    }
    let spec = HeadSpec {
        layout: HeadLayout::Eagle,
        kind,
        streams: streams.to_vec(),
        streams_key: None,
        target_hidden: target.hidden,
        fuse_norm: FuseNorm::None,
        proposed_vocab: (proposed < target.vocab).then_some(proposed),
        own_embedding: false,
        own_lm_head: true,
        output_normed: false,
    };
    let config = ModelConfig { layers: vec![layer], mask_token: mask, head: Some(spec), ..target.clone() };
    let mut tensors = Random { made: HashMap::new() };
    // What is asked for is known once it was asked for.
    let mut wanted = Wanted(std::cell::RefCell::default());
    counted(&config, Shard::WHOLE, &mut wanted, Held::Panels(Packing::new(&config, Dtype::F32)))?;
    for (name, shape) in wanted.0.into_inner() {
        let inputs = shape.last().copied().unwrap_or(1) as f32;
        let gain = if name == "lm_head.weight" { 4.0 } else { 1.0 };
        let numbers = Normal::new(seed, &name).take(shape.iter().product(), gain / inputs.sqrt());
        tensors.made.insert(name, if shape.len() == 1 { vec![1.0; numbers.len()] } else { numbers });
    }
    Ok((config, tensors))
}

struct Random {
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
