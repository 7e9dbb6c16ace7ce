//! Heads that draft from their target's hidden states, by their config.json and the names of their tensors: EAGLE-3 and 3.1, as SafeAILab's EAGLE
//! writes them (vLLM, SGLang and SpecForge read and write that too) and as the package `speculators` does; P-EAGLE,
//! which proposes in one pass; and DFlash and DSpark, which propose a block in one pass, as z-lab and DeepSpec write them and as `speculators` does.
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
    /// How it proposes.
    pub kind: HeadKind,
    /// The target's streams that it reads, one behind the other. None are known before the target is: see [`fitted`](super::fitted).
    pub streams: Vec<usize>,
    /// The key of its config.json that names them. Without one they are the usual ones.
    pub streams_key: Option<&'static str>,
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

/// How a head proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Token by token: what a row computes is what the row behind it begins with (EAGLE-3).
    Steps,
    /// All of a round in one pass: behind the known tokens stand mask tokens, whose rows begin with a learned vector (P-EAGLE).
    Masks,
    /// A block in one pass: its rows see the target's features of the text, and one another (DFlash, DSpark).
    Block(BlockSpec),
}

/// A block of rows that propose together: the last known token, and mask tokens behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpec {
    /// Rows. It is always computed whole: what a row says depends on how many there are.
    pub rows: usize,
    /// The row of the known token proposes what follows it, and so does every other row for the place behind it; else each row of a mask proposes
    /// for its own place.
    pub from_anchor: bool,
    /// Its rows see those before them alone.
    pub causal: bool,
    /// What each row's logits take from the token before it, if anything.
    pub markov: Option<MarkovSpec>,
    /// The head says itself how sure it is of a proposal.
    pub confidence: Option<ConfidenceInput>,
}

/// How the logits of a row depend on the token before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkovSpec {
    /// What is made of that token.
    pub kind: MarkovKind,
    /// Columns of its table.
    pub rank: usize,
}

/// What a block's rows make of the token before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkovKind {
    /// Its row of the table.
    Vanilla,
    /// That, gated by it and the hidden state.
    Gated,
    /// A recurrence along the block.
    Recurrent,
}

/// What a head's confidence is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidenceInput {
    /// The hidden state.
    Hidden,
    /// That, and the table's row of the token before.
    HiddenAndBefore,
}

impl BlockSpec {
    /// Most proposals of a round.
    pub fn proposals(&self) -> usize {
        self.rows - self.first()
    }

    /// Columns of the token before that its confidence is made of, behind the hidden state.
    pub fn confidence_rank(&self) -> usize {
        match (self.confidence, self.markov) {
            (Some(ConfidenceInput::HiddenAndBefore), Some(markov)) => markov.rank,
            _ => 0,
        }
    }

    /// The first row that proposes.
    pub fn first(&self) -> usize {
        usize::from(!self.from_anchor)
    }
}

impl ModelConfig {
    /// The block that it proposes, of a head that does.
    pub fn block(&self) -> Option<BlockSpec> {
        match self.head.as_ref()?.kind {
            HeadKind::Block(block) => Some(block),
            HeadKind::Steps | HeadKind::Masks => None,
        }
    }
}

/// Most rows of a block: more than any head proposes well.
const MAX_BLOCK: usize = 64;

/// How the tensors of a head are named, and its config is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLayout {
    /// `midlayer.*`: SafeAILab's EAGLE.
    Eagle,
    /// `layers.0.*`, and a config in which the layers have one of their own: `speculators`.
    Speculators,
    /// `layers.0.*`: z-lab's DFlash, DeepSpec's DSpark, and some heads of EAGLE-3.
    Plain,
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
            HeadLayout::Speculators | HeadLayout::Plain => format!("layers.{layer}"),
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
                    "whose layer ids are not said (`{EAGLE_STREAMS}`), and for {layers} layers there is no usual choice"
                ));
            }
            self.streams = vec![2, layers / 2, layers - 3];
            self.streams.sort_unstable();
        }
        let key = self.streams_key.unwrap_or(EAGLE_STREAMS);
        match self.streams.iter().find(|stream| **stream > layers) {
            Some(stream) => refuse(format!(
                "which reads what enters layer {stream} (`{key}`), and the target has {layers} layers: it was made for another target"
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
        None | Some("eagle3" | "peagle" | "dflash" | "dspark") => {}
        Some(other) => {
            let problem = format!(
                "is {other:?}: of the drafts of `speculators` eagle3, peagle, dflash and dspark are served"
            );
            return Err(keys.error("speculators_model_type", problem));
        }
    }
    let class = keys.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    let class = class.unwrap_or_default();
    let is_class = |name: &str| class.to_lowercase().contains(name);
    let is_kind = |name: &str| kind == Some(name) || is_class(name);
    let said = kind.is_some() || ["eagle3", "peagle", "dflash", "dspark"].into_iter().any(is_class);
    let others = ["MTP", "Medusa", "Hydra", "Eagle", "EAGLE"];
    if let Some(name) = others.iter().find(|name| !said && class.contains(*name)) {
        let problem = format!(
            "is {class:?}: drafts of the kind of {name} are not served; of heads EAGLE-3, P-EAGLE, DFlash and DSpark are"
        );
        return Err(keys.error("architectures", problem));
    }
    let stored = shapes(dir)?;
    let has = |name: &str| stored.as_ref().is_some_and(|stored| stored.contains_key(name));
    if !said && !has("fc.weight") && !has("midlayer.self_attn.q_proj.weight") {
        return Ok(None);
    }
    let of_block = is_kind("dflash")
        || is_kind("dspark")
        || has("markov_head.markov_w1.weight")
        || has("hidden_norm.weight");
    let masks = has("mask_hidden") || stored.is_none() && is_kind("peagle");
    let speculators = kind.is_some();
    let layout = match (has("midlayer.self_attn.q_proj.weight"), stored.is_some()) {
        (true, _) => HeadLayout::Eagle,
        _ if speculators => HeadLayout::Speculators,
        (false, false) if !of_block => HeadLayout::Eagle,
        _ => HeadLayout::Plain,
    };
    let layer_keys = layer_keys(keys, speculators)?;
    let mut config = ModelConfig::from_keys(&layer_keys, None)?;
    let block = of_block.then(|| block_spec(keys, is_kind("dspark"), &has)).transpose()?;
    if let Some(query) = stored.as_ref().filter(|_| !of_block).and_then(|stored| {
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
        let problem = format!("is {}: a head of EAGLE-3 has one layer, `midlayer`", config.layers.len());
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
        if of_block {
            if layer.attention.window.is_some() {
                let problem = "says that some layers slide: a head that proposes a block (DFlash, DSpark) is served whose layers see all of the text";
                return Err(layer_keys.error("layer_types", problem));
            }
            continue;
        }
        layer.attention.norms = Norms { before: Some("input_layernorm"), after: layer.attention.norms.after };
        layer.attention.beside_embedding =
            (index == 0).then_some(BesideEmbedding { norm: "hidden_norm", residual_normed });
    }
    config.tie_embeddings = false;
    config.mask_token = (masks || of_block).then(|| mask_token(keys, config.vocab)).transpose()?;
    if masks && stored.is_some() && !has("embed_tokens.weight") && keys.flag("embed_requires_grad", true)? {
        let problem = "is a head that drafts in one pass (P-EAGLE) without embed_tokens.weight: its embedding was trained with it, so the target's is none for it";
        return Err(ModelError::NoModel { path: dir.to_owned(), problem: problem.to_owned() });
    }
    let (streams, streams_key) = match streams(keys, of_block)? {
        Some((streams, key)) => (streams, Some(key)),
        None => (Vec::new(), None),
    };
    config.head = Some(HeadSpec {
        layout,
        kind: match block {
            Some(block) => HeadKind::Block(block),
            None if masks => HeadKind::Masks,
            None => HeadKind::Steps,
        },
        streams,
        streams_key,
        target_hidden,
        fuse_norm,
        proposed_vocab: proposed,
        own_embedding: has("embed_tokens.weight"),
        own_lm_head: stored.is_none() || has("lm_head.weight"),
        output_normed: keys.flag("norm_output", false)?,
    });
    Ok(Some(config))
}

/// What is said of the block of DFlash or DSpark: at the top, or in `dflash_config`.
fn block_spec(keys: &Keys, dspark: bool, has: &dyn Fn(&str) -> bool) -> Result<BlockSpec, ModelError> {
    let nested = keys.object("dflash_config")?;
    let place = |key: &str| nested.as_ref().filter(|nested| nested.get(key).is_some()).unwrap_or(keys);
    let flag = |key, usual| place(key).flag(key, usual);
    for key in ["use_swa", "sliding_window_non_causal"] {
        if flag(key, false)? {
            let problem = "is true: a head that proposes a block is served whose layers see all of the text";
            return Err(place(key).error(key, problem));
        }
    }
    let rows = place("block_size").required_size("block_size", MAX_BLOCK)?;
    let rank = match place("markov_rank").get("markov_rank").and_then(Value::as_u64) {
        Some(0) => None,
        _ => place("markov_rank").size("markov_rank", MAX_WIDTH)?,
    };
    if rank.is_none() && has("markov_head.markov_w1.weight") {
        let place = place("markov_rank");
        let said = if place.get("markov_rank").is_some() { "is 0" } else { "is missing" };
        return Err(
            place.error("markov_rank", format!("{said}, and there is `markov_head.markov_w1.weight`"))
        );
    }
    let markov = rank.map(|rank| {
        let kind = match place("markov_head_type").text("markov_head_type")? {
            None | Some("vanilla") => MarkovKind::Vanilla,
            Some("gated") => MarkovKind::Gated,
            Some("rnn") => MarkovKind::Recurrent,
            Some(other) => {
                let problem = format!("is {other:?}, vanilla, gated or rnn is served");
                return Err(place("markov_head_type").error("markov_head_type", problem));
            }
        };
        Ok(MarkovSpec { kind, rank })
    });
    let markov = markov.transpose()?;
    let confidence = if flag("enable_confidence_head", has("confidence_head.proj.weight"))? {
        let with = flag("confidence_head_with_markov", false)?;
        if with && markov.is_none() {
            let problem = "is true, but `markov_rank` says that there is no Markov head";
            return Err(keys.error("confidence_head_with_markov", problem));
        }
        Some(if with { ConfidenceInput::HiddenAndBefore } else { ConfidenceInput::Hidden })
    } else {
        None
    };
    let spec = BlockSpec {
        rows,
        from_anchor: flag("sample_from_anchor", dspark || markov.is_some())?,
        causal: flag("is_causal", flag("causal", false)?)?,
        markov,
        confidence,
    };
    if spec.proposals() == 0 {
        return Err(keys.error("block_size", "is 1: such a block proposes nothing"));
    }
    Ok(spec)
}

/// The token that stands in places whose tokens are not known yet.
fn mask_token(keys: &Keys, vocab: usize) -> Result<u32, ModelError> {
    const KEYS: [&str; 4] = ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"];
    let nested = keys.object("dflash_config")?;
    let nested = nested.as_ref().map(|nested| (nested, KEYS[0]));
    let named = nested.into_iter().chain(KEYS.iter().map(|key| (keys, *key)));
    let Some((place, key)) = named.into_iter().find(|(place, key)| place.get(key).is_some()) else {
        let problem = "is missing: it is the token that stands in places whose tokens are not known yet";
        return Err(keys.error(KEYS[0], problem));
    };
    match place.token_ids(key)?[..] {
        [id] if (id as usize) < vocab => Ok(id),
        [id] => Err(place.error(key, format!("is {id}, but vocab_size is {vocab}"))),
        _ => Err(place.error(key, "is no single token id")),
    }
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
    // SpecForge's class has the layers of a Llama, whatever target its `model_type` is taken from.
    let of_llama = "LlamaForCausalLMEagle3";
    let is_of_llama = own.get("architectures").is_some_and(|classes| classes[0] == of_llama);
    let named = own.text("model_type")?.filter(|_| !is_of_llama);
    let family = match named {
        None | Some("llama" | "eagle3") => Architecture::Llama,
        Some(name) if name == of_llama => Architecture::Llama,
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

/// Where heads of EAGLE-3 name the streams.
const EAGLE_STREAMS: &str = "eagle_aux_hidden_state_layer_ids";

/// The target's streams that are named, and by which key; nothing where those are the usual ones.
fn streams(keys: &Keys, of_block: bool) -> Result<Option<(Vec<usize>, &'static str)>, ModelError> {
    let entered = if of_block { "aux_hidden_state_layer_ids" } else { EAGLE_STREAMS };
    let nested = keys.object(if of_block { "dflash_config" } else { "eagle_config" })?;
    if let Some(nested) = nested.as_ref().filter(|nested| nested.get("use_aux_hidden_state").is_some())
        && !nested.flag("use_aux_hidden_state", true)?
    {
        let problem = "is false: a head is served that reads hidden states of several layers (EAGLE-3)";
        return Err(nested.error("use_aux_hidden_state", problem));
    }
    let named = |key: &'static str| {
        let place = [Some(keys), nested.as_ref()].into_iter().flatten().find(|place| {
            // An empty list says nothing.
            place.get(key).is_some_and(|ids| ids.as_array().is_none_or(|ids| !ids.is_empty()))
        });
        place.map(|place| (place, key))
    };
    let Some((place, key)) = named(entered).or_else(|| named("target_layer_ids")) else {
        if of_block {
            let problem = "is missing: for a head that proposes a block there is no usual choice of layers";
            return Err(keys.error("target_layer_ids", problem));
        }
        return Ok(None);
    };
    let refuse = || place.error(key, "is not a list of layers, 1 to 16 of them, ascending");
    let ids: Vec<i64> = place
        .get(key)
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |ids| ids.iter().filter_map(Value::as_i64).collect());
    let count = place.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    let behind = key == "target_layer_ids" || (key == EAGLE_STREAMS && ids.first() == Some(&1));
    let streams: Option<Vec<usize>> = ids
        .iter()
        .map(|id| {
            id.checked_add(i64::from(behind))
                .and_then(|id| usize::try_from(id).ok())
                .filter(|id| *id <= MAX_LAYERS)
        })
        .collect();
    match streams {
        Some(streams) if (1..=16).contains(&count) && ids.len() == count && streams.is_sorted() => {
            Ok(Some((streams, key)))
        }
        _ => Err(refuse()),
    }
}
