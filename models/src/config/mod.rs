//! A model's shape from `config.json` (and `generation_config.json`): read once, checked once, then trusted.

mod config_json;
mod experts_config;
mod families;
mod generation_config;
mod head_spec;
mod json_keys;
mod rope_config;
#[cfg(test)]
mod tests;
mod verifier;
mod weight_quantisation;

use faser_kernels::{Dtype, KvShape};

pub use self::families::Architecture;
pub use self::generation_config::GenerationDefaults;
pub use self::head_spec::{
    BlockSpec, ConfidenceInput, FuseNorm, HeadKind, HeadLayout, HeadSpec, MarkovKind, MarkovSpec,
};
pub(crate) use self::json_keys::Keys;
pub use self::rope_config::RopeConfig;
pub use self::verifier::{Verifier, verifier};
pub use self::weight_quantisation::WeightQuantisation;
use crate::{Experts, LayerSpec, Mlp, ModelError};

/// The shape of a model. Sizes are checked: products of two of them fit a `usize`, heads divide by kv_heads,
/// head_dim is even.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The decoder layers.
    pub layers: Vec<LayerSpec>,
    /// Query heads per layer.
    pub heads: usize,
    /// Key and value heads per layer; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Width of the MLP between gate/up and down, in layers without experts.
    pub intermediate: usize,
    /// Rows of the embedding and of the LM head (may be padded beyond the tokenizer's tokens).
    pub vocab: usize,
    /// The same in its files, if that is another number: a draft gets as many rows as its target has. Those that are added are zeros, and
    /// never proposed.
    pub stored_vocab: usize,
    /// Most positions the model was made for.
    pub max_context: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// The LM head is the embedding.
    pub tie_embeddings: bool,
    /// What embeddings are multiplied by.
    pub embedding_scale: f32,
    /// What is added to the weights of norms as they are stored.
    pub norm_offset: f32,
    /// What branches are multiplied by before they are added to the residual stream. The stream is held divided by it, which leaves norms as
    /// they are: `embedding_scale` and `rms_eps` are those of that stream.
    pub residual_multiplier: f32,
    /// What logits are multiplied by, before they are capped: the final norm has it.
    pub logit_scale: f32,
    /// Logits are at most this large: `cap tanh(logit / cap)`.
    pub logit_soft_cap: Option<f32>,
    /// Token that starts a text, if the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a text: config.json's and generation_config.json's.
    pub eos: Vec<u32>,
    /// The token that stands in places whose tokens are not known yet, of a draft that proposes all of them in one pass (PARD, P-EAGLE).
    pub mask_token: Option<u32>,
    /// What it reads of its target, of a head on the target's hidden states.
    pub head: Option<HeadSpec>,
    /// How matrices are quantised in its safetensors files, if they are.
    pub quantised: Option<WeightQuantisation>,
    /// It is a GGUF file that has matrices in blocks of fewer bits.
    pub in_blocks: bool,
    /// What of its files is not as one might think, for whoever reads the log.
    pub notes: Vec<String>,
}

impl ModelConfig {
    /// The same shape with the first `layers` layers alone.
    pub(crate) fn first_layers(&self, layers: usize) -> ModelConfig {
        let layers = self.layers.iter().take(layers).cloned().collect();
        ModelConfig { layers, ..self.clone() }
    }

    /// No text will be longer than `positions`: tables of positions end there, and LongRoPE takes its short factors if that is within the
    /// original context.
    pub fn limit_context(&mut self, positions: usize) {
        self.max_context = self.max_context.min(positions);
    }

    /// Tokens that it knows: the rest of `vocab` is padding.
    pub fn known_vocab(&self) -> usize {
        self.vocab.min(self.stored_vocab)
    }

    /// Width of the queries of all heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys (and of the values) of all KV heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The first layer before this one that has its rotary embedding.
    pub(crate) fn turns_like(&self, layer: usize) -> Option<usize> {
        let rope = &self.layers[layer].attention.rope;
        self.layers[..layer].iter().position(|before| before.attention.rope == *rope)
    }

    /// Whether a norm stands behind any branch.
    pub(crate) fn norms_after(&self) -> bool {
        self.layers.iter().any(LayerSpec::norms_after)
    }

    /// Width of the projections of what every row's MLP has as its input, in the widest layer.
    pub(crate) fn mlp_width(&self) -> usize {
        let width = |kind: Mlp| kind.dense_width(self.intermediate) * if kind.activation().1 { 2 } else { 1 };
        self.layers.iter().map(|layer| width(layer.mlp.kind)).max().unwrap_or(0)
    }

    /// Width of the activations in between, in the widest layer.
    pub(crate) fn activated_width(&self) -> usize {
        self.layers.iter().map(|layer| layer.mlp.kind.dense_width(self.intermediate)).max().unwrap_or(0)
    }

    /// The experts of the layers that have some, which are alike.
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().find_map(|layer| layer.mlp.kind.experts())
    }

    /// Bytes of keys and values per token, all layers together; in 8 bits with the scales of each head.
    pub fn kv_bytes_per_token(&self, held: Dtype) -> u64 {
        let scales = if held.bits() == 8 { self.kv_heads * size_of::<f32>() } else { 0 };
        2 * (self.layers.len() * (self.kv_width() * held.bytes() + scales)) as u64
    }

    /// The same in the memory of a CPU, where stored values are padded to whole vectors.
    pub fn host_kv_bytes_per_token(&self, held: Dtype) -> u64 {
        let (layers, kv_heads, head_dim) = (self.layers.len(), self.kv_heads, self.head_dim);
        KvShape { layers, blocks: 1, block_size: 1, kv_heads, head_dim }.bytes(held)
    }
}

/// The draft as it proposes for the target: with as many rows of embedding and LM head. Vocabularies that differ by padding alone, beyond the
/// `tokens` of the tokenizer that both have, go together.
///
/// # Errors
/// [`ModelError::Pair`]: they differ, and it is not known that it is only by padding.
pub fn fitted(
    target: &ModelConfig,
    mut draft: ModelConfig,
    tokens: Option<usize>,
) -> Result<ModelConfig, ModelError> {
    let (wanted, own) = (target.vocab, draft.vocab);
    if draft.head.is_some() && target.residual_multiplier != 1.0 {
        let problem = "the draft is a head, which reads the target's residual stream: that of a target with `residual_multiplier` is held in another scale";
        return Err(ModelError::Pair(problem.to_owned()));
    }
    if let Some(head) = &mut draft.head {
        head.fit(draft.hidden, target)?;
        // Its context is the target's: what its config.json says is mostly that of its training.
        draft.max_context = target.max_context;
    }
    if wanted != own && tokens.is_none_or(|tokens| tokens > wanted.min(own)) {
        return Err(ModelError::Pair(format!(
            "the target's vocab_size is {wanted}, the draft's is {own}; take a draft model of the same family and tokenizer (with its tokenizer.json, if they differ by padding alone)"
        )));
    }
    if let Some(mask) = draft.mask_token.filter(|mask| *mask as usize >= wanted) {
        return Err(ModelError::Pair(format!(
            "the draft's mask token (`pard_token`, `mask_token_id`) is {mask}, but the target's vocab_size is {wanted}: it was made for another target"
        )));
    }
    Ok(ModelConfig { vocab: wanted, ..draft })
}
