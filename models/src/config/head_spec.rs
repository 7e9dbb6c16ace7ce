//! Heads that draft from their target's hidden states, by their config.json and the names of their tensors: EAGLE-3 and 3.1, as SafeAILab's EAGLE
//! writes them (vLLM, SGLang and SpecForge read and write that too) and as the package `speculators` does.
//!
//! A stream of the target is counted by the layer that it enters: 0 is the embedding, and as many as there are layers is what leaves the last.
//! `eagle_aux_hidden_state_layer_ids` counts so, but where its first is 1: SGLang's heads count the layer that the stream leaves.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::json_keys::{Keys, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
use super::{Architecture, ModelConfig};
use crate::checkpoint::{Files, has_weights, stored_shapes};
use crate::layer_spec::BesideEmbedding;
use crate::{ModelError, Norms};

/// What makes a model a head: it reads streams of its target's, and may borrow its embedding and LM head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSpec {
    /// How its tensors are named.
    pub layout: HeadLayout,
    /// The target's streams that it reads, one behind the other. None are known before the target is: see [`fitted`](super::fitted).
    pub streams: Vec<usize>,
    /// Width of the target's streams.
    pub target_hidden: usize,
    /// What is done to them before they are fused.
    pub fuse_norm: FuseNorm,
    /// Tokens that it proposes, where those are not all: a map says which of the target's each is.
    pub proposed_vocab: Option<usize>,
    /// It has an embedding of its own; else the target's is its.
    pub own_embedding: bool,
    /// It has an LM head of its own; else the target's is its.
    pub own_lm_head: bool,
    /// What its next proposal goes on from is normalised.
    pub output_normed: bool,
}

/// How the tensors of a head are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLayout {
    /// `midlayer.*`: SafeAILab's EAGLE.
    Eagle,
    /// `layers.0.*`: `speculators`, and some of the others.
    Speculators,
}

/// Norms of the target's streams before they are fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseNorm {
    /// None.
    None,
    /// One norm over all of them side by side (`input_norm`).
    Whole,
    /// A norm for each of them (`fc_norm.0` and on).
    Each,
}

impl HeadSpec {
    /// How the tensors of a layer begin.
    pub(crate) fn layer_place(&self, layer: usize) -> String {
        match self.layout {
            HeadLayout::Eagle => "midlayer".to_owned(),
            HeadLayout::Speculators => format!("layers.{layer}"),
        }
    }

    /// How many streams it reads; where they are not said, as many as is usual.
    pub(crate) fn streams_count(&self) -> usize {
        if self.streams.is_empty() { 3 } else { self.streams.len() }
    }

    /// Width of the streams side by side.
    pub(crate) fn streams_width(&self) -> usize {
        self.streams_count() * self.target_hidden
    }

    /// Looks that it was made for such a target, and says which of its streams it reads.
    pub(super) fn fit(&mut self, hidden: usize, target: &ModelConfig) -> Result<(), ModelError> {
        let layers = target.layers.len();
        let refuse = |problem: String| Err(ModelError::Pair(format!("the draft is a head, {problem}")));
        if self.target_hidden != target.hidden {
            let (own, its) = (self.target_hidden, target.hidden);
            return refuse(format!(
                "which reads hidden states of {own} numbers, and the target's have {its}: it was made for another target"
            ));
        }
        if hidden != target.hidden && !(self.own_embedding && self.own_lm_head) {
            let its = target.hidden;
            return refuse(format!(
                "whose hidden_size is {hidden} where the target's is {its}: it must have embed_tokens.weight and lm_head.weight of its own"
            ));
        }
        if self.streams.is_empty() {
            if layers < 4 {
                return refuse(format!(
                    "whose layer ids are not said (`eagle_aux_hidden_state_layer_ids`), and for {layers} layers there is no usual choice"
                ));
            }
            self.streams = vec![2, layers / 2, layers - 3];
            self.streams.sort_unstable();
        }
        match self.streams.iter().find(|stream| **stream > layers) {
            Some(stream) => refuse(format!(
                "which reads what enters layer {stream} (`eagle_aux_hidden_state_layer_ids`), and the target has {layers} layers: it was made for another target"
            )),
            None => Ok(()),
        }
    }
}

/// The shapes of the tensors in a directory, if there are any.
fn shapes(dir: &Path) -> Result<Option<HashMap<String, Vec<usize>>>, ModelError> {
    if has_weights(dir) { stored_shapes(&Files::map(dir)?).map(Some) } else { Ok(None) }
}

/// The config of a head, if the directory is one's.
pub(super) fn of_head(keys: &Keys, dir: &Path) -> Result<Option<ModelConfig>, ModelError> {
    let kind = keys.text("speculators_model_type")?;
    match kind {
        None | Some("eagle3") => {}
        Some(other) => {
            let problem = format!("is {other:?}: of the drafts of `speculators` eagle3 alone is served");
            return Err(keys.error("speculators_model_type", problem));
        }
    }
    let class = keys.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    let class = class.unwrap_or_default();
    let said = kind.is_some() || class.to_lowercase().contains("eagle3");
    let others = ["DFlash", "DSpark", "PEagle", "MTP", "Medusa", "Hydra", "Eagle", "EAGLE"];
    if let Some(name) = others.iter().find(|name| !said && class.contains(*name)) {
        let problem =
            format!("is {class:?}: drafts of the kind of {name} are not served; of heads EAGLE-3 is");
        return Err(keys.error("architectures", problem));
    }
    let stored = shapes(dir)?;
    let has = |name: &str| stored.as_ref().is_some_and(|stored| stored.contains_key(name));
    if !said && !has("fc.weight") && !has("midlayer.self_attn.q_proj.weight") {
        return Ok(None);
    }
    if has("mask_hidden") {
        let problem = "is a head that drafts in one pass (P-EAGLE: it has `mask_hidden`), which is not served; of heads EAGLE-3 is".to_owned();
        return Err(ModelError::NoModel { path: dir.to_owned(), problem });
    }
    let speculators = kind.is_some();
    let layout = match (has("midlayer.self_attn.q_proj.weight"), stored.is_some()) {
        (true, _) => HeadLayout::Eagle,
        (false, true) => HeadLayout::Speculators,
        (false, false) if speculators => HeadLayout::Speculators,
        (false, false) => HeadLayout::Eagle,
    };
    let layer_keys = layer_keys(keys, speculators)?;
    let mut config = ModelConfig::from_keys(&layer_keys, None)?;
    if let Some(query) = stored.as_ref().and_then(|stored| {
        let place = if layout == HeadLayout::Eagle { "midlayer" } else { "layers.0" };
        stored.get(&format!("{place}.self_attn.q_proj.weight"))
    }) && query.get(1) == Some(&config.hidden)
    {
        return Err(ModelError::NoModel {
            path: dir.to_owned(),
            problem: "is a head of EAGLE 1 or 2, which reads the target's last hidden state alone; of heads EAGLE-3 is served, take one of those for this target"
                .to_owned(),
        });
    }
    if layout == HeadLayout::Eagle && config.layers.len() != 1 {
        let problem = format!("is {}: a head of EAGLE-3 has one layer", config.layers.len());
        return Err(layer_keys.error("num_hidden_layers", problem));
    }
    let target_hidden = keys.size("target_hidden_size", MAX_WIDTH)?.unwrap_or(config.hidden);
    let own_vocab = keys.size("draft_vocab_size", MAX_VOCAB)?.unwrap_or(config.vocab);
    if own_vocab > config.vocab {
        let problem = format!("is {own_vocab}, more than vocab_size ({})", config.vocab);
        return Err(keys.error("draft_vocab_size", problem));
    }
    if own_vocab < config.vocab && stored.is_some() && !has("d2t") {
        let problem = format!(
            "is {own_vocab} of a vocabulary of {}, and no tensor `d2t` says which of its tokens those are",
            config.vocab
        );
        return Err(keys.error("draft_vocab_size", problem));
    }
    let proposed = (own_vocab < config.vocab || has("d2t")).then_some(own_vocab);
    let residual_normed = keys.flag("norm_before_residual", speculators)?;
    let fuse_norm = if has("fc_norm.0.weight") || keys.flag("fc_norm", false)? {
        FuseNorm::Each
    } else if has("input_norm.weight") || keys.flag("norm_before_fc", false)? {
        FuseNorm::Whole
    } else {
        FuseNorm::None
    };
    for (index, layer) in config.layers.iter_mut().enumerate() {
        layer.attention.first = 1;
        layer.attention.norms = Norms { before: "input_layernorm", after: layer.attention.norms.after };
        layer.attention.beside_embedding =
            (index == 0).then_some(BesideEmbedding { norm: "hidden_norm", residual_normed });
    }
    config.tie_embeddings = false;
    config.mask_token = None;
    config.head = Some(HeadSpec {
        layout,
        streams: streams(keys)?,
        target_hidden,
        fuse_norm,
        proposed_vocab: proposed,
        own_embedding: has("embed_tokens.weight"),
        own_lm_head: stored.is_none() || has("lm_head.weight"),
        output_normed: keys.flag("norm_output", false)?,
    });
    Ok(Some(config))
}

/// What is said of its layers, as of a model's.
fn layer_keys(keys: &Keys, speculators: bool) -> Result<Keys, ModelError> {
    let nested = keys.object("transformer_layer_config")?;
    let own = match (&nested, speculators) {
        (Some(nested), true) => nested,
        (None, true) => {
            return Err(
                keys.error("transformer_layer_config", "is missing: it has the sizes of the head's layers")
            );
        }
        (_, false) => keys,
    };
    let family = match own.text("model_type")? {
        None | Some("llama" | "LlamaForCausalLMEagle3" | "eagle3") => Architecture::Llama,
        Some("qwen3") => Architecture::Qwen3,
        Some("qwen2") => Architecture::Qwen2,
        Some("mistral") => Architecture::Mistral,
        Some(other) => {
            let problem = format!(
                "is {other:?}: heads are served whose layers are those of llama, mistral, qwen2 or qwen3"
            );
            return Err(own.error("model_type", problem));
        }
    };
    let layers = own.size("num_hidden_layers", MAX_LAYERS)?.unwrap_or(1);
    let class = format!("{family:?}ForCausalLM");
    Ok(own.with([
        ("architectures", json!([class])),
        ("num_hidden_layers", json!(layers)),
        ("tie_word_embeddings", json!(false)),
    ]))
}

/// The target's streams that are named; none where those are the usual ones.
fn streams(keys: &Keys) -> Result<Vec<usize>, ModelError> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let nested = keys.object("eagle_config")?;
    if let Some(nested) = nested.as_ref().filter(|nested| nested.get("use_aux_hidden_state").is_some())
        && !nested.flag("use_aux_hidden_state", true)?
    {
        let problem = "is false: a head is served that reads hidden states of several layers (EAGLE-3)";
        return Err(nested.error("use_aux_hidden_state", problem));
    }
    let named = |key: &'static str| {
        let place =
            [Some(keys), nested.as_ref()].into_iter().flatten().find(|place| place.get(key).is_some());
        place.map(|place| (place, key))
    };
    let Some((place, key)) = named(KEY).or_else(|| named("target_layer_ids")) else { return Ok(Vec::new()) };
    let refuse = || place.error(key, "is not a list of layers, 1 to 16 of them, ascending");
    let ids: Vec<i64> = place
        .get(key)
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |ids| ids.iter().filter_map(Value::as_i64).collect());
    let count = place.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    let behind = key != KEY || ids.first() == Some(&1);
    let streams: Option<Vec<usize>> = ids
        .iter()
        .map(|id| usize::try_from(id + i64::from(behind)).ok().filter(|id| *id <= MAX_LAYERS))
        .collect();
    match streams {
        Some(streams) if (1..=16).contains(&count) && ids.len() == count && streams.is_sorted() => {
            Ok(streams)
        }
        _ => Err(refuse()),
    }
}
