//! The shape that the keys of a config.json say, and what is refused of it.

use std::path::Path;

use faser_kernels::RopeScaling;
use serde_json::{Value, json};

use super::families::Family;
use super::head_spec::of_head;
use super::json_keys::{Keys, MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
use super::{ModelConfig, RopeConfig, generation_config, rope_config, weight_quantisation};
use crate::checkpoint::{check_pointer, has_head_of_its_own, why_not};
use crate::gguf::{self, Gguf, Parts};
use crate::{LayerSpec, ModelError};

impl ModelConfig {
    /// Reads and checks `config.json` of a model directory, and `generation_config.json` if it is there; or the metadata of a GGUF file.
    ///
    /// # Errors
    /// Names the file and the key when a value is missing, impossible, or asks for something this crate does not do.
    pub fn load(dir: &Path) -> Result<ModelConfig, ModelError> {
        if gguf::is_gguf(dir) {
            return gguf::config(&Gguf::read(&Parts::map(dir)?)?);
        }
        let path = dir.join("config.json");
        if !path.exists()
            && let Some(why) = why_not(dir)
        {
            return Err(why);
        }
        check_pointer(&path)?;
        let keys = of_text(Keys::read(&path)?)?;
        if let Some(head) = of_head(&keys, dir)? {
            return Ok(head);
        }
        let generation = Keys::read_if_present(&dir.join("generation_config.json"))?;
        let mut config = ModelConfig::from_keys(&keys, generation.as_ref())?;
        if config.tie_embeddings && has_head_of_its_own(dir)? {
            config.tie_embeddings = false;
            config.notes.push(
                "`tie_word_embeddings` is true, but lm_head.weight is there and is not the embedding: it is used, as in transformers"
                    .to_owned(),
            );
        }
        let not_read = generation.as_ref().map_or_else(Vec::new, generation_config::not_read);
        if !not_read.is_empty() {
            config
                .notes
                .push(format!("generation_config.json has what is not read: {}", not_read.join(", ")));
        }
        Ok(config)
    }

    /// The shape that the text of a `config.json` says, of a model without files.
    ///
    /// # Errors
    /// As [`ModelConfig::load`].
    pub fn of_json(text: &str) -> Result<ModelConfig, ModelError> {
        let path = Path::new("config.json");
        let json = serde_json::from_str(text).map_err(|e| ModelError::format(path, &e))?;
        ModelConfig::from_keys(&of_text(Keys::of(path, json)?)?, None)
    }

    pub(crate) fn from_keys(keys: &Keys, generation: Option<&Keys>) -> Result<ModelConfig, ModelError> {
        let family = Family::of(keys)?;
        refuse_what_is_not_done(keys)?;
        let defaults = &family.defaults;
        let hidden = keys.size_or("hidden_size", MAX_WIDTH, defaults.hidden_size)?;
        let layers = keys.size_or("num_hidden_layers", MAX_LAYERS, defaults.num_hidden_layers)?;
        let heads = keys.size_or("num_attention_heads", MAX_WIDTH, defaults.num_attention_heads)?;
        let usual = defaults.num_key_value_heads.filter(|_| !keys.is_null("num_key_value_heads"));
        let kv_heads = keys.size("num_key_value_heads", MAX_WIDTH)?.or(usual).unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}, which does not divide num_attention_heads ({heads})");
            return Err(keys.error("num_key_value_heads", problem));
        }
        let vocab = keys.size_or("vocab_size", MAX_VOCAB, defaults.vocab_size)?;
        let head_dim = head_dim(keys, defaults.head_dim, hidden, heads)?;
        let max_context =
            keys.size_or("max_position_embeddings", MAX_CONTEXT, defaults.max_position_embeddings)?;
        let ([rope, sliding_rope], longest) =
            rope_config::of_layers(keys, &defaults.rope, head_dim, max_context)?;
        let mut config = ModelConfig {
            architecture: family.architecture,
            hidden,
            layers: vec![LayerSpec::llama(head_dim, rope); layers],
            heads,
            kv_heads,
            head_dim,
            intermediate: keys.size_or("intermediate_size", MAX_WIDTH, defaults.intermediate_size)?,
            vocab,
            stored_vocab: vocab,
            max_context: longest,
            rms_eps: keys.positive_or("rms_norm_eps", defaults.rms_norm_eps)? as f32,
            tie_embeddings: keys.flag("tie_word_embeddings", defaults.tie_word_embeddings)?,
            embedding_scale: 1.0,
            norm_offset: 0.0,
            residual_multiplier: 1.0,
            logit_scale: 1.0,
            logit_soft_cap: None,
            bos: token_ids(keys, "bos_token_id", vocab, defaults.bos_token_id.as_slice())?.first().copied(),
            eos: end_tokens(keys, generation, vocab, defaults.eos_token_id)?,
            mask_token: mask_token(keys, vocab)?,
            head: None,
            quantised: weight_quantisation::read(keys)?,
            in_blocks: false,
            notes: stretched(max_context, longest, &sliding_rope),
        };
        if let Some(quantised) = config.quantised {
            config.notes.push(format!("weights are quantised ({quantised})"));
        }
        family.shape(keys, sliding_rope, &mut config)?;
        Ok(config)
    }
}

/// Models of images and text whose text model is served: the class, and `model_type` and class of the text model.
const WITH_IMAGES: [(&str, &str, &str); 2] = [
    ("Gemma3ForConditionalGeneration", "gemma3_text", "Gemma3ForCausalLM"),
    ("Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"),
];

/// The keys as they are, or those of the text model within a model of images and text.
fn of_text(keys: Keys) -> Result<Keys, ModelError> {
    let class = keys.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    let Some((_, kind, class)) = WITH_IMAGES.into_iter().find(|(whole, ..)| class == Some(*whole)) else {
        return Ok(keys);
    };
    let Some(within) = keys.object("text_config")? else {
        return Err(keys.error("text_config", "is missing: it has the keys of the text model"));
    };
    if let Some(other) = within.text("model_type")?.filter(|found| *found != kind) {
        let problem = format!("is {other:?}, and {kind:?} is served");
        return Err(within.error("model_type", problem));
    }
    let mut text = within.with([("architectures", json!([class]))]);
    for key in ["bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config"] {
        if let (None, Some(outer)) = (text.get(key), keys.get(key)) {
            text = text.with([(key, outer.clone())]);
        }
    }
    Ok(text)
}

/// What is to be said of how far positions go.
fn stretched(stored: usize, longest: usize, rope: &RopeConfig) -> Vec<String> {
    if let RopeScaling::Long { original_max_positions, .. } = rope.scaling {
        return vec![format!(
            "rotary scaling is longrope: all texts get its long factors if a context of more than {original_max_positions} tokens is served, else all get its short ones"
        )];
    }
    let said =
        || format!("`max_position_embeddings` is {stored}, and rotary scaling (yarn) makes it {longest}");
    (longest > stored).then(said).into_iter().collect()
}

/// Refuses what would change the result if it were ignored.
fn refuse_what_is_not_done(keys: &Keys) -> Result<(), ModelError> {
    if keys.flag("use_bidirectional_attention", false)? {
        let problem = "is true: texts are generated from left to right";
        return Err(keys.error("use_bidirectional_attention", problem));
    }
    Ok(())
}

fn head_dim(keys: &Keys, usual: Option<usize>, hidden: usize, heads: usize) -> Result<usize, ModelError> {
    let head_dim = match keys.size("head_dim", 1 << 12)?.or(usual) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
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

fn end_tokens(
    keys: &Keys,
    generation: Option<&Keys>,
    vocab: usize,
    usual: &[u32],
) -> Result<Vec<u32>, ModelError> {
    // Where generation_config.json is, it says how texts end.
    let usual = if generation.is_none() { usual } else { &[] };
    let mut eos = token_ids(keys, "eos_token_id", vocab, usual)?;
    for id in generation.map_or(Ok(Vec::new()), |file| ids_below(file, "eos_token_id", vocab))? {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    Ok(eos)
}

/// Of PARD's drafts (<https://github.com/AMD-AGI/PARD>): `pard_token`, with `spd_type` beside it.
fn mask_token(keys: &Keys, vocab: usize) -> Result<Option<u32>, ModelError> {
    match keys.get("spd_type").map(|kind| kind.as_str()) {
        None | Some(Some("pard")) => {}
        _ => {
            let problem = "is not `pard`: of drafts for speculative decoding PARD's first kind is read alone";
            return Err(keys.error("spd_type", problem));
        }
    }
    let ids = ids_below(keys, "pard_token", vocab)?;
    match ids[..] {
        [] if keys.get("spd_type").is_some() => {
            Err(keys.error("pard_token", "is missing: it is the id of the draft's mask token"))
        }
        [] => Ok(None),
        [id] => Ok(Some(id)),
        _ => Err(keys.error("pard_token", "has several ids: the draft has one mask token")),
    }
}

/// The ids that a key names; of the `usual` ones those that the vocabulary has, where the key is absent. Null is none.
fn token_ids(keys: &Keys, key: &str, vocab: usize, usual: &[u32]) -> Result<Vec<u32>, ModelError> {
    let ids = ids_below(keys, key, vocab)?;
    if !ids.is_empty() || keys.is_null(key) {
        return Ok(ids);
    }
    Ok(usual.iter().copied().filter(|id| (*id as usize) < vocab).collect())
}

fn ids_below(keys: &Keys, key: &str, vocab: usize) -> Result<Vec<u32>, ModelError> {
    let ids = keys.token_ids(key)?;
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(keys.error(key, format!("has {id}, but vocab_size is {vocab}"))),
        None => Ok(ids),
    }
}
