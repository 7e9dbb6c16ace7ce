//! The pair that the config names: its shapes and text side, and where its weights are, for whichever device takes them.

use std::path::Path;
use std::sync::Arc;

use faser_actors::{CudaWeights, Dtype};
use faser_config::{Config, ModelSource, Reasoning, ToolCalls};
use faser_engine::EngineConfig;
use faser_models::cuda::CudaModel;
use faser_models::{
    CallFormat, ChatTemplate, GenerationDefaults, HeadKind, HeadLayout, Model, ModelConfig, ModelError,
    OwnBits, Progress, ReasoningFormat, Shard, Tokenizer, WeightSource, fitted,
};
use faser_topology::DraftPlace;

use crate::error::LoadError;
use crate::held_dtype::{draft_dtype, target_dtype};
use crate::locate;

/// How far loading is: which model, and its weights.
pub type Watch<'w> = &'w mut dyn FnMut(&str, Progress);

/// A pair without its weights.
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) target: ModelConfig,
    pub(crate) draft: Option<ModelConfig>,
    pub(crate) weights: Weights,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Result<ChatTemplate, ModelError>,
    /// How the target writes tool calls, if it does.
    pub(crate) calls: Option<CallFormat>,
    /// How it writes its reasoning, if that is told from the rest.
    pub(crate) reasoning: Option<ReasoningFormat>,
    /// What requests sample by where they say nothing themselves.
    pub(crate) defaults: GenerationDefaults,
    /// What of the files is not as one might think.
    pub(crate) notes: Vec<String>,
}

/// Where the weights of a pair are, and in which types they are to be held.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) target: WeightSource,
    pub(crate) draft: Option<WeightSource>,
    pub(crate) dtype: Dtype,
    pub(crate) draft_dtype: Dtype,
}

/// A pair in the host's memory: the shards of each model, rank after rank; no draft where none is used.
pub(crate) struct OnHost {
    pub(crate) target: Vec<Arc<Model>>,
    pub(crate) draft: Vec<Arc<Model>>,
}

/// The target's shards of this node, rank after rank: all of them, where there are no others.
pub(crate) fn target_shards(config: &Config) -> Vec<Shard> {
    let all = all_target_shards(config);
    let own = config.node.as_ref().map_or(0..all.len(), |node| node.place.ranks(all.len()));
    all[own].to_vec()
}

/// Those of all nodes.
pub(crate) fn all_target_shards(config: &Config) -> Vec<Shard> {
    Shard::all_in_stages(config.device.target_ranks(), config.device.pipeline_parallel).collect()
}

/// Finds the pair that the config names.
///
/// # Errors
/// A file that is missing or wrong, or models that do not go together.
pub(crate) fn pair(config: &Config, on_gpu: bool) -> Result<Pair, LoadError> {
    // What is held in what is seen when both are there.
    let dtype = config.model.dtype.unwrap_or(Dtype::Bf16);
    let authors = config.model.generation_config;
    let context = config.scheduler.max_context;
    let mut pair = match &config.model.source {
        ModelSource::Demo { draft } => {
            let folder = locate::demo_pair()?;
            let draft = draft.then(|| folder.join("draft"));
            Pair {
                name: "rustdoc".to_owned(),
                ..in_folders(&folder.join("target"), draft.as_deref(), dtype, authors, context)?
            }
        }
        ModelSource::Shape { .. } => return Err(LoadError::PlanOnly("model.shape")),
        ModelSource::Named { .. } => return Err(LoadError::NotFetched),
        ModelSource::Directories { target, draft } => {
            in_folders(target, draft.as_deref(), dtype, authors, context)?
        }
        ModelSource::Synthetic { spec, draft: drafts } => {
            let (target, draft) = spec.configs()?;
            Pair {
                name: "synthetic".to_owned(),
                target,
                draft: drafts.then_some(draft),
                tokenizer: Tokenizer::synthetic(spec.vocab)?,
                template: Err(ModelError::NoChatTemplate { path: "synthetic".into() }),
                calls: None,
                reasoning: None,
                defaults: GenerationDefaults::default(),
                notes: Vec::new(),
                weights: Weights {
                    target: WeightSource::Synthetic(spec.clone()),
                    draft: drafts.then(|| WeightSource::SyntheticDraft(spec.clone())),
                    dtype,
                    draft_dtype: dtype,
                },
            }
        }
    };
    let lacks = |format: &ReasoningFormat| format.lacks(&pair.tokenizer);
    pair.reasoning = match config.model.reasoning {
        Reasoning::Auto => pair.reasoning.filter(|format| lacks(format).is_none()),
        Reasoning::Format(format) => match lacks(&format) {
            Some(lacking) => return Err(LoadError::Reasoning(lacking)),
            None => Some(format),
        },
        Reasoning::None => None,
    };
    // Its calls are messages on a channel, which are told together with its reasoning or not at all.
    let harmony = pair.reasoning == Some(ReasoningFormat::Harmony);
    let own = if harmony {
        Some(CallFormat::Harmony)
    } else {
        pair.calls.filter(|own| *own != CallFormat::Harmony)
    };
    pair.calls = match config.model.tool_calls {
        // Nobody knows how it writes calls, so they are had in a form that anybody can read.
        ToolCalls::Auto => own.or(Some(CallFormat::Json)),
        ToolCalls::Format(format) => Some(format),
        ToolCalls::None => None,
    };
    let Shard { ranks, stages, .. } = target_shards(config)[0];
    let key = if stages > 1 { "device.pipeline_parallel" } else { "device.tensor_parallel" };
    let draft = Shard::of(0, config.device.draft_tensor_parallel);
    for (key, model, shard) in [
        (key, Some(&pair.target), Shard { rank: 0, ranks, stages }),
        ("device.draft_tensor_parallel", pair.draft.as_ref(), draft),
    ] {
        let said = if key == "device.pipeline_parallel" { stages } else { shard.ranks };
        let split = model.map_or(Ok(()), |model| shard.check(model));
        split.map_err(|source| LoadError::Ranks { key, ranks: said, source: Box::new(source) })?;
    }
    for (which, model) in [("target", Some(&pair.target)), ("draft", pair.draft.as_ref())] {
        let notes = model.map_or(&[][..], |model| &model.notes);
        pair.notes.extend(notes.iter().map(|note| format!("{which}: {note}")));
    }
    pair.notes.extend(without_rows(pair.tokenizer.left_out()));
    pair.notes.extend(pair.draft.as_ref().and_then(kind_of_draft));
    pair.weights.dtype = target_dtype(config, (&pair.target, pair.weights.target.path()), on_gpu)?;
    let draft =
        pair.draft.as_ref().map(|draft| (draft, pair.weights.draft.as_ref().and_then(WeightSource::path)));
    pair.weights.draft_dtype = draft_dtype(config, pair.weights.dtype, draft, on_gpu)?;
    for (which, source, dtype) in [
        ("target", Some(&pair.weights.target), pair.weights.dtype),
        ("draft", pair.weights.draft.as_ref(), pair.weights.draft_dtype),
    ] {
        pair.notes
            .extend(source.map(|source| quantised(which, source, dtype, on_gpu)).transpose()?.flatten());
    }
    Ok(pair)
}

/// What becomes of quantised weights.
fn quantised(
    which: &str,
    source: &WeightSource,
    dtype: Dtype,
    on_gpu: bool,
) -> Result<Option<String>, ModelError> {
    let WeightSource::Folder(path, model) = source else { return Ok(None) };
    let has_four_bits = match model.quantised {
        Some(quantisation) => quantisation.has_four_bits(),
        None if model.in_blocks => false,
        None => return Ok(None),
    };
    let OwnBits { kept, on_gpu: kept_there, others, why, fp8_on_gpu } = model.own_bits(path)?;
    // In int4, and what the others are then.
    let all = kept + others;
    let (kept, beside) = if on_gpu { (kept_there, Dtype::Bf16) } else { (kept, Dtype::Int8) };
    let others = all - kept;
    if all == 0 && model.in_blocks {
        return Ok(None);
    }
    if all == 0 {
        let held = match dtype {
            Dtype::Int4 => beside,
            Dtype::Fp8 => Dtype::Bf16,
            _ => dtype,
        };
        return Ok(Some(format!(
            "{which}: `quantization_config` is there, and no matrix is quantised: held in {held}"
        )));
    }
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    Ok(Some(match (dtype, kept) {
        (Dtype::Int4, 0) => format!("{which}: its {others} quantised matrices are held in {beside}{why}"),
        (Dtype::Int4, _) if others > 0 => {
            format!("{which}: {kept} matrices are held in their own 4 bits, {others} in {beside}{why}")
        }
        (Dtype::Int4, _) => format!("{which}: {kept} matrices are held in their own 4 bits"),
        (Dtype::Fp8, _) => {
            let others = all - fp8_on_gpu;
            let widened = if others > 0 { format!(", {others} in bf16") } else { String::new() };
            format!("{which}: {fp8_on_gpu} matrices are held in their own 8 bits (FP8){widened}")
        }
        (Dtype::Int8, 0) if !on_gpu => format!("{which}: its {all} quantised matrices are held in int8"),
        _ if on_gpu && fp8_on_gpu > 0 => format!(
            "{which}: quantised matrices are widened to {dtype} as they are loaded; `model.dtype: fp8` holds {fp8_on_gpu} of {all} in their own 8 bits"
        ),
        (_, 0) if has_four_bits => {
            format!("{which}: quantised matrices are widened to {dtype} as they are loaded{why}")
        }
        (_, 0) => format!("{which}: quantised matrices are widened to {dtype} as they are loaded"),
        _ => format!(
            "{which}: quantised matrices are widened to {dtype} as they are loaded; `model.dtype: int4` holds {kept} of {all} in their own 4 bits"
        ),
    }))
}

/// What is to be said of a draft that is no model which proposes token by token.
pub(crate) fn kind_of_draft(draft: &ModelConfig) -> Option<String> {
    if let (Some(mask), None) = (draft.mask_token, &draft.head) {
        return Some(format!("draft: proposes all of a round in one pass (PARD), by mask token {mask}"));
    }
    let head = draft.head.as_ref()?;
    let kind = match head.kind {
        HeadKind::Steps => "EAGLE-3",
        HeadKind::Masks => "P-EAGLE",
        HeadKind::Block(block) if block.markov.is_none() && block.confidence.is_none() => "DFlash",
        HeadKind::Block(_) => "DSpark",
    };
    let layout = match (head.layout, kind) {
        (HeadLayout::Speculators, _) => ", in the layout of speculators",
        (HeadLayout::Plain, "DFlash") => ", in the layout of z-lab",
        (HeadLayout::Plain, "DSpark") => ", in the layout of DeepSpec",
        (HeadLayout::Eagle | HeadLayout::Plain, _) => "",
    };
    let masks = match (head.kind, draft.mask_token) {
        (HeadKind::Block(block), Some(mask)) => {
            format!(
                " in one pass, at most {} by a block of {} rows, mask token {mask}",
                block.proposals(),
                block.rows
            )
        }
        (_, Some(mask)) => format!(" in one pass, by mask token {mask}"),
        (_, None) => String::new(),
    };
    let streams: Vec<String> = head.streams.iter().map(ToString::to_string).collect();
    let tokens = head.proposed_vocab.unwrap_or(draft.vocab);
    let borrowed = match (head.own_embedding, head.own_lm_head) {
        (true, true) => "",
        (false, true) => "; its embedding is the target's",
        (true, false) => "; its LM head is the target's",
        (false, false) => "; its embedding and LM head are the target's",
    };
    let usual = if head.streams_key.is_none() {
        " (the usual ones: its files do not say which, and where it was made for others it is hardly ever right)"
    } else {
        ""
    };
    Some(format!(
        "draft: a head on the target's hidden states ({kind}{layout}), which reads what enters layers {}{usual} and proposes {tokens} tokens{masks}; beside the target's KV it keeps {} numbers of a token{borrowed}",
        streams.join(", "),
        draft.hidden,
    ))
}

/// A head goes whole beside a target whose embedding and LM head it can borrow.
pub(crate) fn refuse_unfit_head(draft: Option<&ModelConfig>, config: &Config) -> Result<(), ModelError> {
    let Some(head) = draft.and_then(|draft| draft.head.as_ref()) else { return Ok(()) };
    let device = &config.device;
    let borrows = !head.own_embedding || !head.own_lm_head;
    let problem = if device.draft_placement != DraftPlace::First {
        "which reads them where they are: leave `device.draft_placement` out"
    } else if device.draft_tensor_parallel > 1 {
        "which is not split over ranks: `device.draft_tensor_parallel` must be 1"
    } else if device.pipeline_parallel > 1 {
        "which reads layers of all stages: `device.pipeline_parallel` must be 1"
    } else if device.tensor_parallel > 1 && borrows {
        "which borrows the target's embedding or LM head, and those are split: `device.tensor_parallel` must be 1"
    } else {
        return Ok(());
    };
    Err(ModelError::Pair(format!("the draft is a head on the target's hidden states, {problem}")))
}

/// The shape of a target.
pub(crate) fn target_config(dir: &Path) -> Result<ModelConfig, ModelError> {
    let config = ModelConfig::load(dir)?;
    if config.head.is_some() {
        let problem = "is a head that drafts from the hidden states of another model: give it as `model.draft`, and that model as `model.target`";
        return Err(ModelError::NoModel { path: dir.to_owned(), problem: problem.to_owned() });
    }
    Ok(config)
}

/// What a model is called that nobody has named: as its folder, or on the hub, or as its GGUF file less what every such file's name ends in.
pub(crate) fn model_name(path: &Path) -> String {
    if let Some(repo) = faser_hub::repo_of(path) {
        return repo;
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let Some(stem) = name.strip_suffix(".gguf").filter(|_| path.is_file()) else { return name };
    // Of several parts the first is given.
    let whole = stem.rsplit_once("-00001-of-").filter(|(_, count)| count.len() == 5);
    whole.map_or(stem, |(whole, _)| whole).to_owned()
}

fn in_folders(
    target_dir: &Path,
    draft_dir: Option<&Path>,
    dtype: Dtype,
    authors: bool,
    context: Option<usize>,
) -> Result<Pair, ModelError> {
    let mut target = target_config(target_dir)?;
    let mut draft = draft_dir.map(ModelConfig::load).transpose()?;
    if let Some(context) = context {
        std::iter::once(&mut target).chain(draft.as_mut()).for_each(|model| model.limit_context(context));
    }
    let is_head = draft.as_ref().is_some_and(|draft| draft.head.is_some());
    // From the headers: what is wrong with either is known before a large tokenizer, or any weight, is read.
    for (dir, model) in std::iter::once((target_dir, &target)).chain(draft_dir.zip(draft.as_ref())) {
        model.check_weights(dir)?;
    }
    let tokenizer = Tokenizer::load(target_dir, &target)?;
    // A head's tokens are the target's.
    let mut tokens = is_head.then(|| tokenizer.vocab_size());
    if let (Some(dir), Some(draft)) = (draft_dir, &draft)
        && !is_head
        && Tokenizer::is_in(dir)
    {
        same_tokens(&tokenizer, &Tokenizer::load(dir, draft)?, draft.mask_token)?;
        tokens = Some(tokenizer.vocab_size());
    }
    draft = draft.map(|draft| fitted(&target, draft, tokens)).transpose()?;
    let name = model_name(target_dir);
    let folder =
        |dir: &Path, config: &ModelConfig| WeightSource::Folder(dir.to_owned(), Box::new(config.clone()));
    let drafts = draft_dir.zip(draft.as_ref()).map(|(dir, config)| folder(dir, config));
    let weights = Weights { target: folder(target_dir, &target), draft: drafts, dtype, draft_dtype: dtype };
    let template = ChatTemplate::load(target_dir);
    // What cannot be read is told of where the template is.
    let calls = CallFormat::of_model(target_dir).ok().flatten();
    let reasoning = ReasoningFormat::of_model(target_dir).ok().flatten();
    let defaults =
        if authors { GenerationDefaults::load(target_dir)? } else { GenerationDefaults::default() };
    Ok(Pair {
        name,
        target,
        draft,
        weights,
        tokenizer,
        template,
        calls,
        reasoning,
        defaults,
        notes: Vec::new(),
    })
}

/// What is to be said of tokens of the tokenizer that the model has no rows for.
fn without_rows(tokens: &[String]) -> Option<String> {
    let (first, others) = tokens.split_first()?;
    let more = if others.is_empty() { String::new() } else { format!(" and for {} more", others.len()) };
    Some(format!(
        "the model has no row for {first:?}{more}, which the tokenizer knows: in texts it is no token"
    ))
}

impl Weights {
    /// Loads the pair into the host's memory, in the shards that the config asks for.
    ///
    /// # Errors
    /// A file that is missing or wrong.
    pub(crate) fn on_host(&self, config: &Config, watch: Watch<'_>) -> Result<OnHost, ModelError> {
        let name = |source: &WeightSource, what| {
            if matches!(source, WeightSource::Folder(..)) { what } else { "synthetic pair" }
        };
        let targets = target_shards(config).into_iter().map(|shard| {
            let what = name(&self.target, "target model");
            let told = &mut |progress| watch(what, progress);
            let loaded = Model::load(&self.target, shard, self.dtype, told)?;
            Ok(Arc::new(loaded.with_kv(config.kv_dtype(self.dtype))))
        });
        let target = targets.collect::<Result<Vec<Arc<Model>>, ModelError>>()?;
        // It is the first node's.
        let follows = config.node.as_ref().is_some_and(|node| node.place.rank > 0);
        let Some(source) = self.draft.as_ref().filter(|_| !follows) else {
            return Ok(OnHost { target, draft: Vec::new() });
        };
        let drafts = Shard::all(config.device.draft_tensor_parallel).map(|shard| {
            let same = target.iter().find(|target| target.shard() == shard);
            let shared = source.layers_of(&self.target).zip(same);
            match shared.filter(|_| self.draft_dtype == self.dtype) {
                Some((layers, target)) => Ok(Arc::new(target.first_layers(layers))),
                None => {
                    let told = &mut |progress| watch(name(source, "draft model"), progress);
                    // A head is whole, and borrows of a whole target alone.
                    let loaded = Model::load_draft(source, shard, &target[0], self.draft_dtype, told)?;
                    Ok(Arc::new(loaded.with_kv(config.kv_dtype(self.draft_dtype))))
                }
            }
        });
        let mut draft = drafts.collect::<Result<Vec<_>, ModelError>>()?;
        // In memory once, however many ranks have it.
        draft.resize(draft.len().max(config.device.draft_copies()), draft[0].clone());
        Ok(OnHost { target, draft })
    }

    /// Loads the whole target into the host's memory, held so.
    ///
    /// # Errors
    /// A file that is missing or wrong.
    pub(crate) fn target_in(&self, dtype: Dtype, watch: Watch<'_>) -> Result<Model, ModelError> {
        let what = format!("target model in {dtype}");
        Model::load(&self.target, Shard::WHOLE, dtype, &mut |progress| watch(&what, progress))
    }

    /// How a GPU gets these shards of the pair: read from its files, or made anew, every time.
    pub(crate) fn on_gpu(&self, target_shard: Shard, draft_shard: Option<Shard>) -> CudaWeights {
        let weights = self.clone();
        Arc::new(move |gpu, progress| {
            let target = CudaModel::load(gpu, &weights.target, target_shard, weights.dtype, progress)?;
            let draft = weights.draft.as_ref().zip(draft_shard).map(|(source, shard)| {
                // They share what they have in common.
                let alike = shard == target_shard && weights.draft_dtype == weights.dtype;
                match source.layers_of(&weights.target).filter(|_| alike) {
                    Some(layers) => Ok(target.first_layers(layers)),
                    None => CudaModel::load_draft(source, shard, &target, weights.draft_dtype, progress),
                }
            });
            let draft = draft.transpose()?;
            Ok([target].into_iter().chain(draft).collect())
        })
    }

    /// How a GPU gets the draft alone, whole.
    pub(crate) fn draft_on_gpu(&self) -> CudaWeights {
        let weights = self.clone();
        Arc::new(move |gpu, progress| {
            let draft = weights.draft.iter();
            draft
                .map(|source| CudaModel::load(gpu, source, Shard::WHOLE, weights.draft_dtype, progress))
                .collect()
        })
    }
}

/// A draft model that reads other tokens than the target would be right by chance alone. Its mask token is its own.
fn same_tokens(target: &Tokenizer, draft: &Tokenizer, mask: Option<u32>) -> Result<(), ModelError> {
    const PROBE: &str =
        "The quick brown fox, naïve in 1984: `fn main() { println!(\"{:?}\", x += 3.14); }`\n\t→ 你好 🦊";
    if target.encode(PROBE, false)? == draft.encode(PROBE, false)? {
        let other = |id: &u32| Some(*id) != mask && target.token_bytes(*id) != draft.token_bytes(*id);
        let most = target.vocab_size().max(draft.vocab_size()) as u32;
        return match (0..most).find(other) {
            None => Ok(()),
            Some(id) => Err(ModelError::Pair(format!("token {id} is another one in their tokenizers"))),
        };
    }
    let problem = "their tokenizers turn the same text into different tokens";
    Err(ModelError::Pair(problem.to_owned()))
}

/// What is to be said of a draft whose context ends before the target's.
pub(crate) fn shorter_draft(bounds: &EngineConfig) -> Option<String> {
    let (draft, all) = (bounds.speculation.draft_context, bounds.max_context);
    let said = || {
        format!(
            "the draft model holds {draft} tokens and sequences may have {all}: behind {draft} the target goes on without it"
        )
    };
    (draft < all).then(said)
}
