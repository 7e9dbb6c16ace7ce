//! Models that have names on the hub, into folders: what is loaded, planned or checked afterwards is on this machine.

use std::path::{Path, PathBuf};

use faser_config::{Config, ConfigError, ModelPlace, ModelSource, NamedDraft};
use faser_hub::{Downloaded, Extent, ModelName, Settings, pull};
use faser_models::{ModelError, Progress, Verifier, verifier};

use crate::config_pair::Watch;
use crate::error::LoadError;

/// The config with folders in the place of names; what is not in the cache is downloaded, as far as `extent` says.
///
/// # Errors
/// The hub, the disk, or a draft that names no target.
pub fn fetched(config: &Config, extent: Extent, watch: Watch<'_>) -> Result<Config, LoadError> {
    let mut config = config.clone();
    for pair in &mut config.pairs {
        fetch(pair, extent, watch)?;
    }
    fetch(&mut config, extent, watch)?;
    Ok(config)
}

fn fetch(config: &mut Config, extent: Extent, watch: Watch<'_>) -> Result<(), LoadError> {
    let ModelSource::Named { target, draft } = &config.model.source else { return Ok(()) };
    let settings = Settings::from_environment()?;
    let mut folder = |place: &ModelPlace| folder(&settings, place, extent, &mut *watch);
    let (target, draft) = match draft {
        NamedDraft::None => (folder(target)?, None),
        NamedDraft::At(draft) => (folder(target)?, Some(folder(draft)?)),
        NamedDraft::OfTarget { required } => {
            let given = folder(target)?;
            match verifier_of(&given)? {
                Some(verifier) => (folder(&verifier)?, Some(given)),
                None if *required => {
                    let message =
                        "`model.draft` is missing: name the draft model, or write `draft: none`".to_owned();
                    return Err(ConfigError { place: None, message }.into());
                }
                None => (given, None),
            }
        }
    };
    if draft.is_none() {
        without_draft(config)?;
    }
    config.model.source = ModelSource::Directories { target, draft };
    Ok(())
}

fn folder(
    settings: &Settings,
    place: &ModelPlace,
    extent: Extent,
    watch: Watch<'_>,
) -> Result<PathBuf, LoadError> {
    let name = match place {
        ModelPlace::Folder(folder) => return Ok(folder.clone()),
        ModelPlace::Hub(name) => name,
    };
    let what = format!("download of {}", name.repo());
    let pulled = pull(settings, name, extent, &mut |Downloaded { done_bytes, total_bytes }| {
        watch(&what, Progress { done_bytes, total_bytes });
    })?;
    if let Some(note) = pulled.note {
        tracing::warn!("{note}");
    }
    Ok(pulled.path)
}

/// The target that a downloaded draft names.
fn verifier_of(draft: &Path) -> Result<Option<ModelPlace>, LoadError> {
    Ok(match verifier(draft)? {
        None => None,
        // What is downloaded has no say over folders of this machine.
        Some(Verifier::Folder(target)) => {
            let problem = format!(
                "names a folder of this machine as its target, {}: give both, the target as `model.target` and this as `model.draft`",
                target.display()
            );
            return Err(ModelError::NoModel { path: draft.to_owned(), problem }.into());
        }
        Some(Verifier::Elsewhere { name, refusal }) => {
            Some(ModelPlace::Hub(ModelName::bare(&name).ok_or(refusal)?))
        }
    })
}

/// What only a draft makes sense of, now that it is known that there is none.
fn without_draft(config: &Config) -> Result<(), ConfigError> {
    let traits = config.tuning.policy.traits();
    let refuse = |message: &str| Err(ConfigError { place: None, message: message.to_owned() });
    if traits.drafts && !traits.lookup {
        return refuse(
            "`speculation.policy` must be `off`, `budget` or `faser` when there is no draft model: name one as `model.draft`, or choose one of these",
        );
    }
    if config.model.draft_dtype.is_some() {
        return refuse("`model.draft_dtype` is for a draft model, and there is none: leave it out");
    }
    Ok(())
}
