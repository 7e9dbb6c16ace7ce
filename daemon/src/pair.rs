//! The pair that the config names: weights, tokenizer, chat template.

use std::path::Path;

use faser_actors::Dtype;
use faser_models::{ChatTemplate, Model, ModelError, Shard, Tokenizer, check_pair, synthetic};

use crate::config::{Config, ModelSource};
use crate::error::DaemonError;
use crate::load::Watch;
use crate::locate;

/// Weights and text side of a pair.
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) target: Model,
    pub(crate) draft: Option<Model>,
    /// The shards of other ranks, if the first rank's are all that the two above are.
    pub(crate) others: Others,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Result<ChatTemplate, ModelError>,
}

/// The shards of the ranks after the first.
#[derive(Default)]
pub(crate) struct Others {
    pub(crate) target: Vec<Model>,
    pub(crate) draft: Vec<Model>,
}

/// Over how many ranks target and draft are split.
#[derive(Clone, Copy)]
struct Ranks {
    target: usize,
    draft: usize,
}

/// Loads the pair that the config names, in the shards that it asks for.
///
/// # Errors
/// A file that is missing or wrong, or models that do not go together.
pub(crate) fn pair(config: &Config, watch: Watch<'_>) -> Result<Pair, DaemonError> {
    let pair = named(config, watch)?;
    if let Some(draft) = &pair.draft {
        check_pair(pair.target.config(), draft.config())?;
    }
    Ok(pair)
}

fn named(config: &Config, watch: Watch<'_>) -> Result<Pair, DaemonError> {
    let dtype = config.model.dtype;
    let ranks = Ranks { target: config.device.tensor_parallel, draft: config.device.draft_tensor_parallel };
    match &config.model.source {
        ModelSource::Demo { draft } => {
            let folder = locate::demo_pair()?;
            let draft = draft.then(|| folder.join("draft"));
            let pair = from_directories(&folder.join("target"), draft.as_deref(), dtype, ranks, watch)?;
            Ok(Pair { name: "rustdoc".to_owned(), ..pair })
        }
        ModelSource::Directories { target, draft } => {
            Ok(from_directories(target, draft.as_deref(), dtype, ranks, watch)?)
        }
        ModelSource::Synthetic { spec, draft } => {
            let told = &mut |progress| watch("synthetic pair", progress);
            let (target, draft_model, others) = if ranks.target == 1 && ranks.draft == 1 {
                let (target, draft) = synthetic::pair(spec, dtype, told)?;
                (target, draft, Others::default())
            } else {
                let of_target = |shard| Ok(synthetic::shard_pair(spec, shard, dtype, told)?.0);
                let (target, targets) = split(ranks.target, of_target)?;
                let of_draft = |shard| synthetic::shard_of_draft(spec, shard, dtype, told);
                let (first, drafts) = split(ranks.draft, of_draft)?;
                (target, first, Others { target: targets, draft: if *draft { drafts } else { Vec::new() } })
            };
            Ok(Pair {
                name: "synthetic".to_owned(),
                tokenizer: Tokenizer::synthetic(spec.vocab)?,
                template: Err(ModelError::NoChatTemplate { path: "synthetic".into() }),
                target,
                draft: draft.then_some(draft_model),
                others,
            })
        }
    }
}

fn from_directories(
    target_dir: &Path,
    draft_dir: Option<&Path>,
    dtype: Dtype,
    ranks: Ranks,
    watch: Watch<'_>,
) -> Result<Pair, ModelError> {
    let mut load =
        |what, dir, shard| Model::load_shard(dir, shard, dtype, &mut |progress| watch(what, progress));
    let mut others = Others::default();
    let (target, shards) = split(ranks.target, |shard| load("target model", target_dir, shard))?;
    others.target = shards;
    let tokenizer = Tokenizer::load(target_dir, target.config())?;
    let draft = match draft_dir {
        None => None,
        Some(dir) => {
            let (draft, shards) = split(ranks.draft, |shard| load("draft model", dir, shard))?;
            others.draft = shards;
            if dir.join("tokenizer.json").is_file() {
                same_tokens(&tokenizer, &Tokenizer::load(dir, draft.config())?)?;
            }
            Some(draft)
        }
    };
    let name = target_dir.file_name().unwrap_or(target_dir.as_os_str()).to_string_lossy().into_owned();
    Ok(Pair { name, target, draft, others, tokenizer, template: ChatTemplate::load(target_dir) })
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
        return Ok(());
    }
    let problem = "their tokenizer.json files turn the same text into different tokens";
    Err(ModelError::Pair(problem.to_owned()))
}

impl Pair {
    /// What both models hold, or less if the config says so.
    ///
    /// # Errors
    /// It says more.
    pub(crate) fn max_context(&self, config: &Config) -> Result<usize, DaemonError> {
        let target = ("target", self.target.config().max_context);
        let draft = self.draft.as_ref().map(|draft| ("draft", draft.config().max_context));
        let (model, limit) =
            draft.into_iter().fold(target, |least, draft| if draft.1 < least.1 { draft } else { least });
        match config.scheduler.max_context {
            Some(asked) if asked > limit => Err(DaemonError::Context { asked, model, limit }),
            asked => Ok(asked.unwrap_or(limit)),
        }
    }
}
