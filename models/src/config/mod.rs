//! A model's shape from `config.json` (and `generation_config.json`): read once, checked once, then trusted.

mod keys;
mod rope;
#[cfg(test)]
mod tests;
mod windows;

use std::path::Path;

use faser_kernels::Dtype;
use serde_json::Value;

pub(crate) use self::keys::Keys;
pub use self::rope::RopeConfig;
use crate::ModelError;

// Generous bounds that keep every product of two sizes far from overflow.
const MAX_WIDTH: usize = 1 << 20;
const MAX_LAYERS: usize = 1 << 12;
const MAX_VOCAB: usize = 1 << 24;
const MAX_CONTEXT: usize = 1 << 24;

/// The model families: all are decoders of the Llama kind and differ in a few switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: Llama 2 and 3.
    Llama,
    /// `MistralForCausalLM`: sliding window in all layers.
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on the heads of q and k.
    Qwen3,
}

impl Architecture {
    const SUPPORTED: &str =
        "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM";

    fn from_keys(keys: &Keys) -> Result<Architecture, ModelError> {
        let names = keys.get("architectures").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        match names {
            [Value::String(name)] => match name.as_str() {
                "LlamaForCausalLM" => Ok(Architecture::Llama),
                "MistralForCausalLM" => Ok(Architecture::Mistral),
                "Qwen2ForCausalLM" => Ok(Architecture::Qwen2),
                "Qwen3ForCausalLM" => Ok(Architecture::Qwen3),
                other => {
                    Err(keys.error("architectures", format!("is {other:?}; {}", Architecture::SUPPORTED)))
                }
            },
            _ => Err(keys
                .error("architectures", format!("must be a list of one name; {}", Architecture::SUPPORTED))),
        }
    }
}

/// The shape of a model. Sizes are checked: products of two of them fit a `usize`, heads divide by kv_heads,
/// head_dim is even.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads per layer.
    pub heads: usize,
    /// Key and value heads per layer; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Width of the MLP between gate/up and down.
    pub intermediate: usize,
    /// Rows of the embedding and of the LM head (may be padded beyond the tokenizer's tokens).
    pub vocab: usize,
    /// Most positions the model was made for.
    pub max_context: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// The LM head is the embedding.
    pub tie_embeddings: bool,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub o_bias: bool,
    /// gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// The heads of q and k are RMS-normalised before the rotary embedding.
    pub qk_norm: bool,
    /// For each layer how many positions it sees, itself included; `None`: all of them.
    pub windows: Vec<Option<usize>>,
    /// Token that starts a text, if the model has one.
    pub bos: Option<u32>,
    /// Tokens that end a text: config.json's and generation_config.json's.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Reads and checks `config.json` of a model directory, and `generation_config.json` if it is there.
    ///
    /// # Errors
    /// Names the file and the key when a value is missing, impossible, or asks for something this crate does not do.
    pub fn load(dir: &Path) -> Result<ModelConfig, ModelError> {
        let keys = Keys::read(&dir.join("config.json"))?;
        let generation = Keys::read_if_present(&dir.join("generation_config.json"))?;
        ModelConfig::from_keys(&keys, generation.as_ref())
    }

    fn from_keys(keys: &Keys, generation: Option<&Keys>) -> Result<ModelConfig, ModelError> {
        let architecture = Architecture::from_keys(keys)?;
        refuse_what_is_not_done(keys)?;
        let hidden = keys.required_size("hidden_size", MAX_WIDTH)?;
        let layers = keys.required_size("num_hidden_layers", MAX_LAYERS)?;
        let heads = keys.required_size("num_attention_heads", MAX_WIDTH)?;
        let kv_heads = keys.size("num_key_value_heads", MAX_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}, which does not divide num_attention_heads ({heads})");
            return Err(keys.error("num_key_value_heads", problem));
        }
        let vocab = keys.required_size("vocab_size", MAX_VOCAB)?;
        let attention_bias = keys.flag("attention_bias", false)?;
        let config = ModelConfig {
            architecture,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim: head_dim(keys, architecture, hidden, heads)?,
            intermediate: keys.required_size("intermediate_size", MAX_WIDTH)?,
            vocab,
            max_context: keys.required_size("max_position_embeddings", MAX_CONTEXT)?,
            rms_eps: keys.required_positive("rms_norm_eps")? as f32,
            rope: RopeConfig::from_keys(keys)?,
            tie_embeddings: keys.flag("tie_word_embeddings", false)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            o_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: keys.flag("mlp_bias", false)?,
            qk_norm: architecture == Architecture::Qwen3,
            windows: windows::of_layers(keys, architecture, layers)?,
            bos: ids_below(keys, "bos_token_id", vocab)?.first().copied(),
            eos: end_tokens(keys, generation, vocab)?,
        };
        config.refuse_switches_of_other_families(keys)?;
        Ok(config)
    }

    /// A switch that transformers does not read for this family must not be set: honouring or ignoring it would
    /// both surprise.
    fn refuse_switches_of_other_families(&self, keys: &Keys) -> Result<(), ModelError> {
        use Architecture::{Llama, Mistral, Qwen2, Qwen3};
        let attention_bias = keys.flag("attention_bias", false)?;
        if attention_bias && matches!(self.architecture, Mistral | Qwen2) {
            return Err(
                keys.error("attention_bias", format!("is true, which {:?} does not have", self.architecture))
            );
        }
        if self.mlp_bias && matches!(self.architecture, Mistral | Qwen2 | Qwen3) {
            return Err(
                keys.error("mlp_bias", format!("is true, which {:?} does not have", self.architecture))
            );
        }
        if self.architecture == Llama && keys.get("sliding_window").is_some() {
            return Err(
                keys.error("sliding_window", "is set, which Llama does not have (Mistral and Qwen do)")
            );
        }
        Ok(())
    }

    /// Width of the queries of all heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys (and of the values) of all KV heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of keys and values per token, all layers together.
    pub fn kv_bytes_per_token(&self, held: Dtype) -> u64 {
        2 * (self.layers * self.kv_width() * held.bytes()) as u64
    }
}

/// Refuses what would change the result if it were ignored.
fn refuse_what_is_not_done(keys: &Keys) -> Result<(), ModelError> {
    match keys.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => {
            return Err(keys.error("hidden_act", format!("is {other:?}, only \"silu\" is supported")));
        }
    }
    if keys.get("quantization_config").is_some() {
        let problem = "is set: quantized checkpoints are not supported, give one in bf16, f16 or f32";
        return Err(keys.error("quantization_config", problem));
    }
    Ok(())
}

fn head_dim(
    keys: &Keys,
    architecture: Architecture,
    hidden: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    // Qwen2 has no head_dim of its own; Qwen3's default is a constant.
    let explicit = keys.size("head_dim", 1 << 12)?;
    let head_dim = match (explicit, architecture) {
        (Some(explicit), _) => explicit,
        (None, Architecture::Qwen3) => 128,
        (None, _) if hidden.is_multiple_of(heads) => hidden / heads,
        (None, _) => {
            let problem = format!(
                "is missing, and hidden_size ({hidden}) does not divide by num_attention_heads ({heads})"
            );
            return Err(keys.error("head_dim", problem));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(
            keys.error("head_dim", format!("is {head_dim}, the rotary embedding needs an even number"))
        );
    }
    // Beyond any real model, and a bound for q_width.
    match head_dim.checked_mul(heads) {
        Some(width) if width <= MAX_WIDTH => Ok(head_dim),
        _ => {
            Err(keys
                .error("head_dim", format!("times num_attention_heads ({heads}) is more than {MAX_WIDTH}")))
        }
    }
}

fn end_tokens(keys: &Keys, generation: Option<&Keys>, vocab: usize) -> Result<Vec<u32>, ModelError> {
    let mut eos = Vec::new();
    for file in std::iter::once(keys).chain(generation) {
        for id in ids_below(file, "eos_token_id", vocab)? {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
    }
    Ok(eos)
}

fn ids_below(keys: &Keys, key: &str, vocab: usize) -> Result<Vec<u32>, ModelError> {
    let ids = keys.token_ids(key)?;
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(keys.error(key, format!("has {id}, but vocab_size is {vocab}"))),
        None => Ok(ids),
    }
}

/// Whether a draft model can propose for a target model: both must have the same vocabulary.
///
/// # Errors
/// [`ModelError::Pair`] with both sizes, or with the end tokens that differ.
pub fn check_pair(target: &ModelConfig, draft: &ModelConfig) -> Result<(), ModelError> {
    if target.vocab != draft.vocab {
        return Err(ModelError::Pair(format!(
            "the target's vocab_size is {}, the draft's is {}; take a draft model of the same family and tokenizer",
            target.vocab, draft.vocab
        )));
    }
    Ok(())
}
