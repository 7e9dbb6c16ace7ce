//! What config.json would say of the model of a GGUF file, and what of the file a reader of `faser check` wants to know.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::header::Format;
use super::metadata::Metadata;
use super::{Gguf, rope_factors};
use crate::config::Keys;
use crate::{ModelConfig, ModelError};

/// Architectures, and the class of transformers' models that each is.
const ARCHITECTURES: [(&str, &str); 9] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen2moe", "Qwen2MoeForCausalLM"),
    ("qwen3moe", "Qwen3MoeForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
];
/// Those whose heads may turn in part.
const PARTIAL: [&str; 2] = ["phi3", "glm4"];
/// A Llama whose layers slide.
const SLIDING_LLAMA: &str = "MistralForCausalLM";
/// A Llama with experts.
const LLAMA_WITH_EXPERTS: &str = "MixtralForCausalLM";

/// Numbers: the key of config.json, that of the file less the architecture, and whether it has to be there.
const SIZES: [(&str, &str, bool); 6] = [
    ("hidden_size", "embedding_length", true),
    ("num_hidden_layers", "block_count", true),
    ("intermediate_size", "feed_forward_length", true),
    ("num_attention_heads", "attention.head_count", true),
    ("num_key_value_heads", "attention.head_count_kv", false),
    ("max_position_embeddings", "context_length", true),
];
const EPSILON: (&str, &str) = ("rms_norm_eps", "attention.layer_norm_rms_epsilon");
const HEAD_DIM: (&str, &str) = ("head_dim", "attention.key_length");
const WINDOW: (&str, &str) = ("sliding_window", "attention.sliding_window");
const BASE: (&str, &str) = ("rope_theta", "rope.freq_base");
/// Of experts.
const EXPERTS: (&str, &str) = ("num_experts", "expert_count");
const ACTIVE: (&str, &str) = ("num_experts_per_tok", "expert_used_count");
const EXPERT_WIDTH: (&str, &str) = ("moe_intermediate_size", "expert_feed_forward_length");
const SHARED_WIDTH: (&str, &str) = ("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
/// All these.
const RENAMED: [(&str, &str); 8] =
    [EPSILON, HEAD_DIM, WINDOW, BASE, EXPERTS, ACTIVE, EXPERT_WIDTH, SHARED_WIDTH];
const LARGEST: u64 = u32::MAX as u64;

/// Keys that would change what the model computes, each with the value that changes nothing.
const NOT_DONE: [(&str, f64); 11] = [
    ("expert_weights_scale", 1.0),
    // 1 is the softmax.
    ("expert_gating_func", 1.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 0.0),
    (ATTENTION_FACTOR, 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
];
/// Read of LongRoPE alone.
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// Further keys that are read, or that change nothing.
const READ: [&str; 13] = [
    "expert_weights_norm",
    "vocab_size",
    "tensor_data_layout",
    "attention.causal",
    "attention.value_length",
    TURNING,
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    ORIGINAL_CONTEXT,
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];
const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
const TURNING: &str = "rope.dimension_count";

/// Tokens that end a turn, whatever the file's ids say: as llama.cpp has them, if they are marks in the vocabulary.
const ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<|return|>",
];
/// Ids of tokens that end a text, of a turn, and of a message.
const END_IDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
const BEGINNING_ID: &str = "tokenizer.ggml.bos_token_id";

/// The shape of the model.
///
/// # Errors
/// A key is missing, of another type, or asks for something that is not done here.
pub(crate) fn config(gguf: &Gguf<'_>) -> Result<ModelConfig, ModelError> {
    let metadata = &gguf.metadata;
    let (architecture, class) = architecture(metadata)?;
    let own = |key: &str| format!("{architecture}.{key}");
    refuse_what_is_not_done(gguf, architecture)?;
    let mut keys = Map::new();
    for (ours, theirs, needed) in SIZES {
        let theirs = own(theirs);
        match metadata.size_of_layers(&theirs, LARGEST)? {
            Some(size) => drop(keys.insert(ours.to_owned(), size.into())),
            None if needed => return Err(metadata.missing(&theirs)),
            None => {}
        }
    }
    let epsilon = metadata.number(&own(EPSILON.1))?.ok_or_else(|| metadata.missing(&own(EPSILON.1)))?;
    let window = metadata.size_of_layers(&own(WINDOW.1), LARGEST)?.filter(|window| *window > 0);
    let slides = architecture == "llama" && window.is_some();
    let has_experts = experts(metadata, architecture, &mut keys)?;
    if window.is_some() && !slides && architecture != "phi3" {
        let problem = "is set, and layers that slide are read of `llama` and `phi3` alone";
        return Err(metadata.error(&own(WINDOW.1), problem));
    }
    let class = match (architecture, has_experts, slides) {
        ("llama", true, _) => LLAMA_WITH_EXPERTS,
        (_, _, true) => SLIDING_LLAMA,
        _ => class,
    };
    let (vocab, tied) = vocabulary(gguf)?;
    let (ends, beginning) = marks(metadata, vocab)?;
    let base = metadata.number(&own(BASE.1))?.unwrap_or(10_000.0);
    let head_dim = head_dim(metadata, architecture, &keys)?;
    let more = [
        ("architectures", json!([class])),
        (EPSILON.0, json!(epsilon)),
        (WINDOW.0, window.map_or(Value::Null, Value::from)),
        (HEAD_DIM.0, head_dim.into()),
        (BASE.0, json!(base)),
        ("rope_scaling", rope_factors::scaling(gguf, architecture, head_dim as usize, base)?),
        ("vocab_size", vocab.into()),
        ("tie_word_embeddings", tied.into()),
        ("bos_token_id", beginning.map_or(Value::Null, Value::from)),
        // Null is none, where nothing would be what is usual.
        ("eos_token_id", if ends.is_empty() { Value::Null } else { json!(ends) }),
    ];
    keys.extend(more.map(|(key, value)| (key.to_owned(), value)));
    if !slides && architecture != "qwen2" {
        let key = if architecture == "qwen2moe" { "qkv_bias" } else { "attention_bias" };
        keys.insert(key.to_owned(), gguf.has("blk.0.attn_q.bias").into());
    }
    if !slides && architecture == "llama" {
        keys.insert("mlp_bias".to_owned(), gguf.has("blk.0.ffn_up.bias").into());
    }
    if architecture == "smollm3" {
        keys.insert("mlp_bias".to_owned(), gguf.has("blk.0.ffn_up.bias").into());
    }
    if let Some(turning) = metadata.size(&own(TURNING), LARGEST)?.filter(|turning| *turning != head_dim) {
        // In the middle, so that it is as many again.
        let part = (turning as f64 + 0.5) / head_dim as f64;
        keys.insert("partial_rotary_factor".to_owned(), json!(part));
    } else if PARTIAL.contains(&architecture) {
        keys.insert("partial_rotary_factor".to_owned(), json!(1.0));
    }
    // Of others it is beside the scaling, if that needs it.
    if architecture == "phi3"
        && let Some(original) =
            metadata.size(&own(ORIGINAL_CONTEXT), LARGEST)?.filter(|original| *original > 0)
    {
        keys.insert("original_max_position_embeddings".to_owned(), original.into());
    }
    let keys = Keys::of(metadata.path(), keys.into())?;
    let config = ModelConfig::from_keys(&keys, None).map_err(|error| renamed(error, architecture))?;
    let of_file = std::iter::once(described(gguf)).chain(not_read(metadata, architecture));
    let notes = of_file.chain(config.notes).collect();
    Ok(ModelConfig { notes, in_blocks: has_blocks(gguf), ..config })
}

/// Reads what config.json has of experts; false if there are none. Of `llama` they are as wide as `feed_forward_length` says. As llama.cpp has
/// them, all layers have some, and their weights are normalised but for Qwen2's.
fn experts(
    metadata: &Metadata<'_>,
    architecture: &str,
    keys: &mut Map<String, Value>,
) -> Result<bool, ModelError> {
    let own = |key: &str| format!("{architecture}.{key}");
    let count = metadata.size(&own(EXPERTS.1), LARGEST)?.unwrap_or(0);
    if count == 0 && !architecture.ends_with("moe") {
        return Ok(false);
    }
    let needed: &[(&str, &str)] = match architecture {
        "qwen2moe" => &[EXPERTS, ACTIVE, EXPERT_WIDTH, SHARED_WIDTH],
        "qwen3moe" => &[EXPERTS, ACTIVE, EXPERT_WIDTH],
        "llama" => &[EXPERTS, ACTIVE],
        _ => {
            return Err(
                metadata.error(&own(EXPERTS.1), format!("is {count}, which {architecture} does not have"))
            );
        }
    };
    for (ours, theirs) in needed {
        let theirs = own(theirs);
        let size = metadata.size(&theirs, LARGEST)?.ok_or_else(|| metadata.missing(&theirs))?;
        keys.insert((*ours).to_owned(), size.into());
    }
    let renormed = architecture != "qwen2moe";
    let key = own("expert_weights_norm");
    if metadata.flag(&key)?.is_some_and(|said| said != renormed) {
        return Err(metadata.error(&key, format!("is {}, and only {renormed} is supported", !renormed)));
    }
    keys.insert("norm_topk_prob".to_owned(), renormed.into());
    Ok(true)
}

/// What is to be said of keys of the model that nobody reads here.
fn not_read(metadata: &Metadata<'_>, architecture: &str) -> Option<String> {
    let known = SIZES.iter().map(|(_, theirs, _)| *theirs);
    let known = known.chain(RENAMED.map(|(_, theirs)| theirs));
    let known: BTreeSet<&str> = known.chain(NOT_DONE.map(|(key, _)| key)).chain(READ).collect();
    let own = metadata.keys().filter_map(|key| key.strip_prefix(architecture)?.strip_prefix('.'));
    let others: BTreeSet<&str> = own.filter(|key| !known.contains(key)).collect();
    let others: Vec<String> =
        others.iter().take(8).map(|key| format!("{architecture}.{}", key.escape_debug())).collect();
    (!others.is_empty()).then(|| format!("the metadata have what is not read: {}", others.join(", ")))
}

/// Whether some of it is quantised.
fn has_blocks(gguf: &Gguf<'_>) -> bool {
    gguf.tensors.values().any(|tensor| matches!(tensor.format, Format::Blocks(_)))
}

/// What is in the file.
fn described(gguf: &Gguf<'_>) -> String {
    let mut formats: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in gguf.tensors.values() {
        *formats.entry(tensor.format.name()).or_default() += 1;
    }
    let tensors: Vec<String> = formats.iter().map(|(name, count)| format!("{count} of {name}")).collect();
    let text = |key: &str| gguf.metadata.text(key).ok().flatten().unwrap_or("none");
    let tokens = gguf.metadata.texts("tokenizer.ggml.tokens").ok().flatten().map_or(0, |all| all.len());
    format!(
        "GGUF {}, {}; tensors: {}; tokenizer {} ({}), {tokens} tokens",
        gguf.version,
        text("general.architecture").escape_debug(),
        tensors.join(", "),
        text("tokenizer.ggml.model").escape_debug(),
        text("tokenizer.ggml.pre").escape_debug(),
    )
}

/// What generation_config.json would say of sampling: newer files have it.
///
/// # Errors
/// A key is of another type.
pub(crate) fn sampling(metadata: &Metadata<'_>) -> Result<Keys, ModelError> {
    let mut keys = Map::new();
    for (ours, theirs) in [
        ("temperature", "temp"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ] {
        if let Some(number) = metadata.number(&format!("general.sampling.{theirs}"))? {
            // As it was written, and not as twice as many digits have it.
            let number = (number as f32).to_string().parse().unwrap_or(number);
            keys.insert(ours.to_owned(), json!(number));
        }
    }
    if let Some(top_k) = metadata.size("general.sampling.top_k", LARGEST)? {
        keys.insert("top_k".to_owned(), top_k.into());
    }
    Keys::of(metadata.path(), keys.into())
}

fn architecture<'a>(metadata: &Metadata<'a>) -> Result<(&'a str, &'static str), ModelError> {
    const KEY: &str = "general.architecture";
    const KIND: &str = "general.type";
    if let Some(kind) = metadata.text(KIND)?.filter(|kind| *kind != "model") {
        let problem = format!("is {kind:?}, and a model is expected: give the file of the model itself");
        return Err(metadata.error(KIND, problem));
    }
    let name = metadata.text(KEY)?.ok_or_else(|| metadata.missing(KEY))?;
    match ARCHITECTURES.iter().find(|(known, _)| *known == name) {
        Some((_, class)) => Ok((name, class)),
        None => {
            let known = ARCHITECTURES.map(|(known, _)| known).join(", ");
            let problem = format!(
                "is {name:?}; of GGUF files {known} are read: give other models as folders in Hugging Face's format"
            );
            Err(metadata.error(KEY, problem))
        }
    }
}

fn refuse_what_is_not_done(gguf: &Gguf<'_>, architecture: &str) -> Result<(), ModelError> {
    let metadata = &gguf.metadata;
    let is_read = |key: &str| key == ATTENTION_FACTOR && gguf.has(rope_factors::LONG);
    for (key, neutral) in NOT_DONE.into_iter().filter(|(key, _)| !is_read(key)) {
        let key = format!("{architecture}.{key}");
        let said = match key.ends_with("expert_gating_func") {
            true => metadata.size(&key, LARGEST)?.map(|count| count as f64),
            false => metadata.number(&key)?,
        };
        if let Some(value) = said.filter(|value| *value != neutral) {
            return Err(metadata.error(&key, format!("is {value}, and only {neutral} is supported")));
        }
    }
    let causal = format!("{architecture}.attention.causal");
    match metadata.flag(&causal)? {
        Some(false) => Err(metadata.error(&causal, "is false: texts are generated from left to right")),
        _ => Ok(()),
    }
}

/// Width of a head: values are as wide as keys, and all of it turns in most architectures.
fn head_dim(
    metadata: &Metadata<'_>,
    architecture: &str,
    keys: &Map<String, Value>,
) -> Result<u64, ModelError> {
    let own = |key: &str| format!("{architecture}.{key}");
    let of = |key: &str| keys.get(key).and_then(Value::as_u64);
    let (hidden, heads) = (of("hidden_size"), of("num_attention_heads").filter(|heads| *heads > 0));
    let usual = hidden.zip(heads).map(|(hidden, heads)| hidden / heads).unwrap_or_default();
    let width = metadata.size(&own(HEAD_DIM.1), LARGEST)?.unwrap_or(usual);
    let partial = PARTIAL.contains(&architecture);
    let turning = (!partial).then_some(TURNING);
    for key in ["attention.value_length"].into_iter().chain(turning) {
        let key = own(key);
        if let Some(other) = metadata.size(&key, LARGEST)?.filter(|other| *other != width) {
            let problem = format!("is {other}, and heads are {width} wide: both must be the same");
            return Err(metadata.error(&key, problem));
        }
    }
    Ok(width)
}

/// Rows of the embedding, and whether it is the LM head too.
fn vocabulary(gguf: &Gguf<'_>) -> Result<(u64, bool), ModelError> {
    const NAME: &str = "token_embd.weight";
    match gguf.tensors.get(NAME).map(|tensor| tensor.shape.as_slice()) {
        Some([rows, _]) => Ok((*rows as u64, !gguf.has("output.weight"))),
        Some(_) => Err(ModelError::format(gguf.metadata.path(), &format!("`{NAME}` is no matrix"))),
        None => Err(ModelError::format(
            gguf.metadata.path(),
            &format!("there is no tensor `{NAME}`: it holds no model, or not all of it"),
        )),
    }
}

/// The tokens that end a text, and the one that begins it.
fn marks(metadata: &Metadata<'_>, vocab: u64) -> Result<(Vec<u64>, Option<u64>), ModelError> {
    let id = |key: &str| match metadata.size(key, LARGEST)? {
        Some(id) if id >= vocab => {
            let problem = format!("is {id}, and the embedding has {vocab} rows");
            Err(metadata.error(key, problem))
        }
        id => Ok(id),
    };
    let mut ends: Vec<u64> = Vec::new();
    for key in END_IDS {
        ends.extend(id(key)?.filter(|end| !ends.contains(end)));
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let types = metadata.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    for (id, (token, kind)) in (0..vocab).zip(tokens.iter().zip(types)) {
        // A mark of the tokenizer, or a token that somebody added.
        if matches!(kind, 3 | 4) && ENDS.contains(token) && !ends.contains(&id) {
            ends.push(id);
        }
    }
    Ok((ends, id(BEGINNING_ID)?))
}

/// What is wrong with a key of config.json, said of the file's own.
fn renamed(error: ModelError, architecture: &str) -> ModelError {
    let ModelError::Key { path, key, problem } = error else { return error };
    let pairs = SIZES.iter().map(|(ours, theirs, _)| (*ours, *theirs));
    let theirs = pairs.chain(RENAMED).find(|(ours, _)| *ours == key);
    let key = theirs.map_or(key, |(_, theirs)| format!("{architecture}.{theirs}"));
    ModelError::Key { path, key, problem }
}
