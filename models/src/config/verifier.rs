//! Drafts in the layout of `speculators` name their target, which is called their verifier there.

use std::path::{Path, PathBuf};

use super::json_keys::Keys;
use crate::ModelError;

/// The target that a draft names.
#[derive(Debug)]
pub enum Verifier {
    /// By its folder: a path from the draft's on, or an absolute one.
    Folder(PathBuf),
    /// By what is no folder on this machine.
    Elsewhere {
        /// What it names.
        name: String,
        /// What is to be said unless the name leads to a model: the message says what to write.
        refusal: ModelError,
    },
}

/// The target that a draft names, if `dir` is a draft of that layout.
///
/// # Errors
/// It names none; the message says what to write.
pub fn verifier(dir: &Path) -> Result<Option<Verifier>, ModelError> {
    let Some(keys) = Keys::read_if_present(&dir.join("config.json"))? else { return Ok(None) };
    if keys.get("speculators_model_type").is_none() {
        return Ok(None);
    }
    let write = format!("give its directory as `model.target`, and {} as `model.draft`", dir.display());
    let refuse = |problem: String| ModelError::NoModel {
        path: dir.to_owned(),
        problem: format!("{problem}: {write}"),
    };
    let speculators = keys.object("speculators_config")?;
    let verifier = speculators.as_ref().map(|keys| keys.object("verifier")).transpose()?.flatten();
    let name = verifier.as_ref().map(|keys| keys.text("name_or_path")).transpose()?.flatten();
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(refuse(
            "is a draft that does not name its target (`speculators_config.verifier.name_or_path`)"
                .to_owned(),
        ));
    };
    let target = dir.join(name);
    if !target.join("config.json").is_file() {
        let problem = format!(
            "is a draft for {name:?} (`speculators_config.verifier.name_or_path`), and there is no such model at {}; where you have it",
            target.display()
        );
        return Ok(Some(Verifier::Elsewhere { name: name.to_owned(), refusal: refuse(problem) }));
    }
    Ok(Some(Verifier::Folder(target)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_draft_names_the_folder_of_its_target_or_what_to_write() {
        let root = std::env::temp_dir().join(format!("faser-verifier-{}", std::process::id()));
        let (draft, target) = (root.join("draft"), root.join("target"));
        let of = |config: &Value| {
            fs::write(draft.join("config.json"), config.to_string()).unwrap();
            match verifier(&draft) {
                Ok(Some(Verifier::Folder(target))) => Ok(Some(target)),
                Ok(Some(Verifier::Elsewhere { name, refusal })) => Err(format!("{name}: {refusal}")),
                Ok(None) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        };
        let named = |name: Value| {
            let config = json!({"verifier": {"name_or_path": name}});
            json!({"speculators_model_type": "eagle3", "speculators_config": config})
        };
        fs::create_dir_all(&draft).unwrap();
        fs::create_dir_all(&target).unwrap();
        assert!(verifier(&root).unwrap().is_none(), "no config.json");
        assert_eq!(of(&json!({"architectures": ["LlamaForCausalLM"]})), Ok(None));
        let missing = of(&named("../target".into())).unwrap_err();
        assert!(
            missing.contains("a draft for \"../target\"") && missing.contains("no such model"),
            "{missing}"
        );
        assert!(missing.contains("`model.target`") && missing.contains("`model.draft`"), "{missing}");
        fs::write(target.join("config.json"), "{}").unwrap();
        assert_eq!(of(&named("../target".into())), Ok(Some(draft.join("../target"))));
        assert_eq!(of(&named(target.display().to_string().into())), Ok(Some(target)));
        assert!(
            of(&named("meta-llama/Llama-3.1-8B".into()))
                .unwrap_err()
                .starts_with("meta-llama/Llama-3.1-8B: ")
        );
        for none in [named(Value::Null), named("".into()), json!({"speculators_model_type": "eagle3"})] {
            assert!(of(&none).unwrap_err().contains("does not name its target"));
        }
        assert!(of(&named(3.into())).unwrap_err().contains("name_or_path` is 3"));
        fs::remove_dir_all(root).unwrap();
    }
}
