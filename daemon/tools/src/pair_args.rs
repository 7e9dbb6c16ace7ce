//! A pair on a command line, in the place of a config file.

use std::path::{Path, PathBuf};

use clap::Args;
use faser_config::raw::ConfigSource;
use faser_config::{Config, ConfigError};
use faser_hub::ModelName;
use serde_json::Value;

/// Models that a command is to use without a config file.
#[derive(Args, Clone, Debug, Default)]
pub struct PairArgs {
    /// A model's folder, GGUF file, or name on the hub (org/name), in the place of a config file.
    #[arg(value_name = "MODEL", conflicts_with = "config")]
    pub target: Option<PathBuf>,
    /// The draft model's; without it there is none, unless MODEL is a draft that names its target.
    #[arg(long, value_name = "MODEL", requires = "target", conflicts_with = "config")]
    pub draft: Option<PathBuf>,
}

/// A key of the config, the flag that sets it, and its value.
type Flag = (&'static str, &'static str, Value);

impl PairArgs {
    /// What the config says by them; nothing without a target.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        flags(self.target.as_deref(), self.draft.as_deref(), "MODEL")
    }

    /// The config of `file`, or of these models.
    ///
    /// # Errors
    /// The file is wrong.
    pub fn read(&self, file: Option<PathBuf>) -> Result<Config, ConfigError> {
        Config::from_document(&ConfigSource { file, flags: self.flags() }.document()?)
    }
}

/// The same of a target that is named by `flag`.
pub(crate) fn flags(target: Option<&Path>, draft: Option<&Path>, flag: &'static str) -> Vec<Flag> {
    let Some(target) = target else { return Vec::new() };
    let draft = draft.map_or_else(|| "auto".to_owned(), place);
    vec![("model.target", flag, place(target).into()), ("model.draft", "--draft", draft.into())]
}

/// What the config has for a word of the command line: `org/name` is a model on the hub, unless there is such a path, or a folder `org` in which
/// somebody has mistyped one. All else is a path, also `demo`.
fn place(word: &Path) -> String {
    let text = word.to_string_lossy();
    if ModelName::is_meant(&text) {
        return text.into_owned();
    }
    let folder = word.components().next().map(|first| Path::new(first.as_os_str()).exists());
    match ModelName::bare(&text).filter(|_| folder == Some(false)) {
        Some(name) => name.to_string(),
        None => std::path::absolute(word).unwrap_or_else(|_| word.to_owned()).to_string_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use faser_config::{ModelPlace, ModelSource, NamedDraft};

    use super::*;

    #[derive(Args)]
    struct Command {
        #[command(flatten)]
        pair: PairArgs,
        #[arg(short)]
        config: Option<PathBuf>,
    }

    fn source(line: &str) -> Result<ModelSource, String> {
        let Command { pair, config } =
            crate::arguments(line).map_err(|error: clap::Error| error.to_string())?;
        Ok(pair.read(config).unwrap().model.source)
    }

    #[test]
    fn a_model_stands_in_the_place_of_a_config() {
        let here = std::env::current_dir().unwrap();
        for (line, target, draft) in [
            ("faser serve x.gguf", here.join("x.gguf"), None),
            ("faser serve /m/demo --draft d.gguf", "/m/demo".into(), Some(here.join("d.gguf"))),
            ("faser serve demo", here.join("demo"), None),
        ] {
            match source(line).unwrap() {
                ModelSource::Directories { target: found, draft: found_draft } => {
                    assert_eq!((found, found_draft), (target, draft), "{line}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        let hub = |name: &str| ModelPlace::Hub(name.parse().unwrap());
        for (line, target, draft) in [
            ("faser serve Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B", None),
            ("faser serve Qwen/Qwen3-8B --draft hf://a/b@v1", "hf://Qwen/Qwen3-8B", Some(hub("hf://a/b@v1"))),
            (
                "faser serve a/b:Q4_K_M --draft d.gguf",
                "hf://a/b:Q4_K_M",
                Some(ModelPlace::Folder(here.join("d.gguf"))),
            ),
        ] {
            let draft = draft.map_or(NamedDraft::OfTarget { required: false }, NamedDraft::At);
            assert_eq!(source(line).unwrap(), ModelSource::Named { target: hub(target), draft }, "{line}");
        }
        // What is there is a path, and what is not beside it: these tests run in the folder of their crate.
        for path in ["src/lib.rs", "src/mistyped"] {
            let there = ModelSource::Directories { target: here.join(path), draft: None };
            assert_eq!(source(&format!("faser serve {path}")).unwrap(), there);
        }
        assert!(matches!(source("faser serve").unwrap(), ModelSource::Demo { draft: true }));
        for wrong in ["faser serve x.gguf -c a.yaml", "faser serve --draft x.gguf", "faser serve a b"] {
            assert!(source(wrong).is_err(), "{wrong}");
        }
    }
}
