//! The pair that the config names: its shapes and text side, and where its weights are, for whichever device takes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use faser_actors::{CudaWeights, Dtype};
use faser_engine::EngineConfig;
use faser_models::cuda::CudaModel;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{
    CallFormat, ChatTemplate, GenerationDefaults, Model, ModelConfig, ModelError, Shard, Tokenizer, fitted,
};

use crate::config::{Config, ModelSource, ToolCalls};
use crate::error::DaemonError;
use crate::load::Watch;
use crate::locate;

/// A pair without its weights.
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) target: ModelConfig,
    pub(crate) draft: Option<ModelConfig>,
    pub(crate) weights: Weights,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Result<ChatTemplate, ModelError>,
    /// How the target writes calls of functions, if it does.
    pub(crate) calls: Option<CallFormat>,
    /// What requests sample by where they say nothing themselves.
    pub(crate) defaults: GenerationDefaults,
    /// What of the files is not as one might think.
    pub(crate) notes: Vec<String>,
}

/// Where the weights of a pair are, and in which type they are to be held.
pub(crate) struct Weights {
    source: Source,
    pub(crate) dtype: Dtype,
}

/// A model's folder, and what was read of it.
type Folder = (PathBuf, Box<ModelConfig>);

#[derive(Clone)]
enum Source {
    Folders { target: Folder, draft: Option<Folder> },
    Synthetic { spec: SyntheticSpec, draft: bool },
}

/// A pair in the host's memory.
pub(crate) struct OnHost {
    pub(crate) target: Model,
    pub(crate) draft: Option<Model>,
    /// The shards of other ranks, if the first rank's are all that the two above are.
    pub(crate) others: Others,
}

/// The shards of the ranks after the first.
#[derive(Default)]
pub(crate) struct Others {
    pub(crate) target: Vec<Model>,
    pub(crate) draft: Vec<Model>,
}

/// Finds the pair that the config names.
///
/// # Errors
/// A file that is missing or wrong, or models that do not go together.
pub(crate) fn pair(config: &Config) -> Result<Pair, DaemonError> {
    let dtype = config.model.dtype;
    let authors = config.model.generation_config;
    let mut pair = match &config.model.source {
        ModelSource::Demo { draft } => {
            let folder = locate::demo_pair()?;
            let draft = draft.then(|| folder.join("draft"));
            Pair {
                name: "rustdoc".to_owned(),
                ..in_folders(&folder.join("target"), draft.as_deref(), dtype, authors)?
            }
        }
        ModelSource::Shape { .. } => return Err(DaemonError::PlanOnly("model.shape")),
        ModelSource::Directories { target, draft } => in_folders(target, draft.as_deref(), dtype, authors)?,
        ModelSource::Synthetic { spec, draft: drafts } => {
            let (target, draft) = spec.configs()?;
            Pair {
                name: "synthetic".to_owned(),
                target,
                draft: drafts.then_some(draft),
                tokenizer: Tokenizer::synthetic(spec.vocab)?,
                template: Err(ModelError::NoChatTemplate { path: "synthetic".into() }),
                calls: None,
                defaults: GenerationDefaults::default(),
                notes: Vec::new(),
                weights: Weights { source: Source::Synthetic { spec: spec.clone(), draft: *drafts }, dtype },
            }
        }
    };
    match config.model.tool_calls {
        // Nobody knows how it writes calls, so they are had in a form that anybody can read.
        ToolCalls::Auto => pair.calls = pair.calls.or(Some(CallFormat::Json)),
        ToolCalls::Format(format) => pair.calls = Some(format),
        ToolCalls::None => pair.calls = None,
    }
    for (key, model, ranks) in [
        ("device.tensor_parallel", Some(&pair.target), config.device.tensor_parallel),
        ("device.draft_tensor_parallel", pair.draft.as_ref(), config.device.draft_tensor_parallel),
    ] {
        let split = model.map_or(Ok(()), |model| Shard { rank: 0, ranks }.check(model));
        split.map_err(|source| DaemonError::Ranks { key, ranks, source: Box::new(source) })?;
    }
    for (which, model) in [("target", Some(&pair.target)), ("draft", pair.draft.as_ref())] {
        let notes = model.map_or(&[][..], |model| &model.notes);
        pair.notes.extend(notes.iter().map(|note| format!("{which}: {note}")));
    }
    Ok(pair)
}

fn in_folders(
    target_dir: &Path,
    draft_dir: Option<&Path>,
    dtype: Dtype,
    authors: bool,
) -> Result<Pair, ModelError> {
    let target = ModelConfig::load(target_dir)?;
    let mut draft = draft_dir.map(ModelConfig::load).transpose()?;
    // From the headers: what is wrong with either is known before a large tokenizer, or any weight, is read.
    for (dir, model) in std::iter::once((target_dir, &target)).chain(draft_dir.zip(draft.as_ref())) {
        model.check_weights(dir)?;
    }
    let tokenizer = Tokenizer::load(target_dir, &target)?;
    let mut tokens = None;
    if let (Some(dir), Some(draft)) = (draft_dir, &draft)
        && dir.join("tokenizer.json").is_file()
    {
        same_tokens(&tokenizer, &Tokenizer::load(dir, draft)?)?;
        tokens = Some(tokenizer.vocab_size());
    }
    draft = draft.map(|draft| fitted(&target, draft, tokens)).transpose()?;
    let name = target_dir.file_name().unwrap_or(target_dir.as_os_str()).to_string_lossy().into_owned();
    let folder = |(dir, config): (&Path, &ModelConfig)| (dir.to_owned(), Box::new(config.clone()));
    let source = Source::Folders {
        target: folder((target_dir, &target)),
        draft: draft_dir.zip(draft.as_ref()).map(folder),
    };
    let weights = Weights { source, dtype };
    let template = ChatTemplate::load(target_dir);
    // What cannot be read is told of where the template is.
    let calls = CallFormat::of_model(target_dir).ok().flatten();
    let defaults =
        if authors { GenerationDefaults::load(target_dir)? } else { GenerationDefaults::default() };
    Ok(Pair { name, target, draft, weights, tokenizer, template, calls, defaults, notes: Vec::new() })
}

impl Weights {
    /// Loads the pair into the host's memory, in the shards that the config asks for.
    ///
    /// # Errors
    /// A file that is missing or wrong.
    pub(crate) fn on_host(&self, config: &Config, watch: Watch<'_>) -> Result<OnHost, ModelError> {
        let ranks = [config.device.tensor_parallel, config.device.draft_tensor_parallel];
        match &self.source {
            Source::Folders { target, draft } => {
                let mut load = |what, (dir, model): &Folder, shard| {
                    let config = ModelConfig::clone(model);
                    Model::load_as(config, dir, shard, self.dtype, &mut |progress| watch(what, progress))
                };
                let (target, targets) = split(ranks[0], |shard| load("target model", target, shard))?;
                let draft = draft.as_ref();
                let draft =
                    draft.map(|dir| split(ranks[1], |shard| load("draft model", dir, shard))).transpose()?;
                let (draft, drafts) =
                    draft.map_or((None, Vec::new()), |(draft, others)| (Some(draft), others));
                Ok(OnHost { target, draft, others: Others { target: targets, draft: drafts } })
            }
            Source::Synthetic { spec, draft: drafts } => {
                let told = &mut |progress| watch("synthetic pair", progress);
                let (target, draft, others) = if ranks == [1, 1] {
                    let (target, draft) = synthetic::pair(spec, self.dtype, told)?;
                    (target, draft, Others::default())
                } else {
                    let of_target = |shard| Ok(synthetic::shard_pair(spec, shard, self.dtype, told)?.0);
                    let (target, targets) = split(ranks[0], of_target)?;
                    let of_draft = |shard| synthetic::shard_of_draft(spec, shard, self.dtype, told);
                    let (first, others) = split(ranks[1], of_draft)?;
                    (target, first, Others { target: targets, draft: others })
                };
                let others = if *drafts { others } else { Others { draft: Vec::new(), ..others } };
                Ok(OnHost { target, draft: drafts.then_some(draft), others })
            }
        }
    }

    /// How a GPU gets these shards of the pair: read from its files, or made anew, every time.
    pub(crate) fn on_gpu(&self, target_shard: Shard, draft_shard: Option<Shard>) -> CudaWeights {
        let (source, dtype) = (self.source.clone(), self.dtype);
        Arc::new(move |gpu, progress| match &source {
            Source::Folders { target, draft } => {
                let draft = draft.as_ref().zip(draft_shard);
                let models = [Some((target, target_shard)), draft].into_iter().flatten();
                let load = |((dir, model), shard): (&Folder, Shard)| {
                    CudaModel::load_as(gpu, ModelConfig::clone(model), dir, shard, dtype, progress)
                };
                models.map(load).collect()
            }
            Source::Synthetic { spec, .. } => {
                let (target, draft) = CudaModel::synthetic_shards(gpu, spec, target_shard, dtype, progress)?;
                Ok(match draft_shard {
                    None => vec![target],
                    // They share what they have in common.
                    Some(shard) if shard == target_shard => vec![target, draft],
                    Some(shard) => {
                        vec![target, CudaModel::synthetic_draft(gpu, spec, shard, dtype, progress)?]
                    }
                })
            }
        })
    }
}

/// The shards of a model: the first rank's, and those of the others.
fn split(
    ranks: usize,
    mut load: impl FnMut(Shard) -> Result<Model, ModelError>,
) -> Result<(Model, Vec<Model>), ModelError> {
    let first = load(Shard { rank: 0, ranks })?;
    let others = (1..ranks).map(|rank| load(Shard { rank, ranks })).collect::<Result<_, _>>()?;
    Ok((first, others))
}

/// A draft model that reads other tokens than the target would be right by chance alone.
fn same_tokens(target: &Tokenizer, draft: &Tokenizer) -> Result<(), ModelError> {
    const PROBE: &str =
        "The quick brown fox, naïve in 1984: `fn main() { println!(\"{:?}\", x += 3.14); }`\n\t→ 你好 🦊";
    if target.encode(PROBE, false)? == draft.encode(PROBE, false)? {
        let other = |id: &u32| target.token_bytes(*id) != draft.token_bytes(*id);
        let most = target.vocab_size().max(draft.vocab_size()) as u32;
        return match (0..most).find(other) {
            None => Ok(()),
            Some(id) => {
                Err(ModelError::Pair(format!("token {id} is another one in their tokenizer.json files")))
            }
        };
    }
    let problem = "their tokenizer.json files turn the same text into different tokens";
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
