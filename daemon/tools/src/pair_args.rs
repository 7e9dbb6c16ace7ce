//! A pair on a command line, in the place of a config file.

use std::path::{Path, PathBuf};

use clap::Args;
use faser_config::raw::ConfigSource;
use faser_config::{Config, ConfigError};
use serde_json::Value;

/// Models that a command is to use without a config file.
#[derive(Args, Clone, Debug, Default)]
pub struct PairArgs {
    /// A model's folder or GGUF file, in the place of a config file.
    #[arg(value_name = "MODEL", conflicts_with = "config")]
    pub target: Option<PathBuf>,
    /// The draft model's folder or GGUF file; without it there is none.
    #[arg(long, value_name = "MODEL", requires = "target")]
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
    // A name such as `demo` is a path here, as any other.
    let path = |path: &Path| {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Value::from(whole.to_string_lossy().into_owned())
    };
    let draft = draft.map_or_else(|| "none".into(), path);
    vec![("model.target", flag, path(target)), ("model.draft", "--draft", draft)]
}

#[cfg(test)]
mod tests {
    use faser_config::ModelSource;

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
        assert!(matches!(source("faser serve").unwrap(), ModelSource::Demo { draft: true }));
        for wrong in ["faser serve x.gguf -c a.yaml", "faser serve --draft x.gguf", "faser serve a b"] {
            assert!(source(wrong).is_err(), "{wrong}");
        }
    }
}
