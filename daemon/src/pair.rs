//! The pair that the config names: weights, tokenizer, chat template.

use std::path::Path;

use faser_actors::Dtype;
use faser_models::{ChatTemplate, Model, ModelError, Tokenizer, check_pair, synthetic};

use crate::config::{Config, ModelSource};
use crate::error::DaemonError;
use crate::load::Watch;
use crate::locate;

/// Weights and text side of a pair.
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) target: Model,
    pub(crate) draft: Option<Model>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Result<ChatTemplate, ModelError>,
}

/// Loads the pair that the config names.
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
    match &config.model.source {
        ModelSource::Demo { draft } => {
            let folder = locate::demo_pair()?;
            let draft = draft.then(|| folder.join("draft"));
            let pair = from_directories(&folder.join("target"), draft.as_deref(), dtype, watch)?;
            Ok(Pair { name: "rustdoc".to_owned(), ..pair })
        }
        ModelSource::Directories { target, draft } => {
            Ok(from_directories(target, draft.as_deref(), dtype, watch)?)
        }
        ModelSource::Synthetic { spec, draft } => {
            let (target, draft_model) =
                synthetic::pair(spec, dtype, &mut |progress| watch("synthetic pair", progress))?;
            Ok(Pair {
                name: "synthetic".to_owned(),
                tokenizer: Tokenizer::synthetic(spec.vocab)?,
                template: Err(ModelError::NoChatTemplate { path: "synthetic".into() }),
                target,
                draft: draft.then_some(draft_model),
            })
        }
    }
}

fn from_directories(
    target_dir: &Path,
    draft_dir: Option<&Path>,
    dtype: Dtype,
    watch: Watch<'_>,
) -> Result<Pair, ModelError> {
    let target = Model::load(target_dir, dtype, &mut |progress| watch("target model", progress))?;
    let tokenizer = Tokenizer::load(target_dir, target.config())?;
    let draft = match draft_dir {
        None => None,
        Some(dir) => {
            let draft = Model::load(dir, dtype, &mut |progress| watch("draft model", progress))?;
            if dir.join("tokenizer.json").is_file() {
                same_tokens(&tokenizer, &Tokenizer::load(dir, draft.config())?)?;
            }
            Some(draft)
        }
    };
    let name = target_dir.file_name().unwrap_or(target_dir.as_os_str()).to_string_lossy().into_owned();
    Ok(Pair { name, target, draft, tokenizer, template: ChatTemplate::load(target_dir) })
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
