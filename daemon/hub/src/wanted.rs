//! Which files of a repository a model needs: no weights for PyTorch or ONNX, no pictures, no second copy in another format.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model_name::is_plain_path;
use crate::{Choice, HubError, ModelName};

/// What is read of a model beside its weights, where it is there.
const BESIDE: [&str; 8] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
];
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Of GGUF files for images, which are no models.
const PROJECTORS: &str = "mmproj";
/// Files that an error lists.
const LISTED: usize = 8;

/// How much of a model is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All that is served.
    Whole,
    /// What tells its shape: `config.json` alone, but of a GGUF file all of it.
    Shape,
}

/// What is wanted of a repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Files that can be had at once.
    pub(crate) files: Vec<String>,
    /// The one of them that names the other weight files.
    pub(crate) index: Option<&'static str>,
    /// The GGUF file that is the model; none where its folder is.
    pub(crate) gguf: Option<String>,
}

/// What of `files`, all that there are, `name` wants.
///
/// # Errors
/// They have no weights that can be served, or there is no such GGUF file, or more than one.
pub(crate) fn wanted(name: &ModelName, extent: Extent, files: &[String]) -> Result<Wanted, HubError> {
    let unusable = |problem: String| HubError::Unusable { name: name.to_string(), problem };
    let has = |file: &str| files.iter().any(|known| known == file);
    let first = match name.choice() {
        Choice::Folder if extent == Extent::Shape && has(CONFIG) => {
            return Ok(Wanted { files: vec![CONFIG.to_owned()], index: None, gguf: None });
        }
        Choice::Folder => {
            let weights = [SINGLE, INDEX]
                .into_iter()
                .find(|file| has(file))
                .ok_or_else(|| unusable(no_weights(name, files)))?;
            let beside = BESIDE.into_iter().filter(|file| has(file));
            return Ok(Wanted {
                files: beside.chain([weights]).map(str::to_owned).collect(),
                index: (weights == INDEX).then_some(INDEX),
                gguf: None,
            });
        }
        Choice::Gguf(path) if has(path) => path,
        Choice::Gguf(path) => {
            return Err(unusable(format!(
                "has no file `{path}`; its GGUF files are {}",
                listed(&ggufs(files))
            )));
        }
        Choice::Quantisation(word) => {
            let fits: Vec<&str> = ggufs(files).into_iter().filter(|file| ends_in(file, word)).collect();
            match fits[..] {
                [only] => only,
                [] => {
                    return Err(unusable(format!(
                        "has no GGUF file for `:{word}`; its GGUF files are {}",
                        listed(&ggufs(files))
                    )));
                }
                _ => {
                    let problem = format!(
                        "has several GGUF files for `:{word}`: name one of them behind hf://{}/, of {}",
                        name.repo(),
                        listed(&fits)
                    );
                    return Err(unusable(problem));
                }
            }
        }
    };
    let parts = parts(first).unwrap_or_else(|| vec![first.to_owned()]);
    match parts.iter().find(|part| !has(part)) {
        Some(missing) => Err(unusable(format!("lacks `{missing}`, a part of `{first}`: take another file"))),
        None => Ok(Wanted { gguf: parts.first().cloned(), files: parts, index: None }),
    }
}

/// The weight files that an index names.
///
/// # Errors
/// It is no index, or names what the repository does not have.
pub(crate) fn shards(name: &ModelName, index: &[u8], files: &[String]) -> Result<Vec<String>, HubError> {
    let unusable = |problem: &str| HubError::Unusable {
        name: name.to_string(),
        problem: format!("has an {INDEX} {problem}: take another revision"),
    };
    let index: Value = serde_json::from_slice(index).map_err(|_| unusable("that is no JSON"))?;
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| unusable("without a `weight_map`"))?;
    let mut shards = BTreeSet::new();
    for file in map.values() {
        let file = file.as_str().filter(|file| is_plain_path(file) && file.ends_with(".safetensors"));
        shards.insert(file.ok_or_else(|| unusable("that names files which are not safetensors"))?);
    }
    if let Some(missing) = shards.iter().find(|shard| !files.iter().any(|file| file == *shard)) {
        return Err(unusable(&format!("that names `{missing}`, which is not there")));
    }
    Ok(shards.into_iter().map(str::to_owned).collect())
}

/// What a repository without safetensors is, and what to do.
fn no_weights(name: &ModelName, files: &[String]) -> String {
    let any = |end: &str| files.iter().any(|file| file.ends_with(end));
    let ggufs = ggufs(files);
    if !ggufs.is_empty() {
        return format!(
            "has GGUF files: say which, as in hf://{}:Q4_K_M, of {}",
            name.repo(),
            listed(&ggufs)
        );
    }
    if any("adapter_config.json") {
        return "is a LoRA adapter, which is served merged alone: merge it into its base model (`merge_and_unload` of peft) and give that folder".to_owned();
    }
    if any(".bin") || any(".pt") || any(".pth") {
        return "has weights for PyTorch alone, which can run code when they are read: look for a revision with safetensors (many have one by `@refs/pr/N`), or convert them".to_owned();
    }
    format!("has neither {SINGLE} nor {INDEX}: is it a language model in Hugging Face's format?")
}

fn ggufs(files: &[String]) -> Vec<&str> {
    let model = |file: &&str| {
        let lower = file.to_ascii_lowercase();
        let first = parts(file).is_none_or(|parts| parts.first().is_some_and(|part| part == file));
        lower.ends_with(".gguf") && !lower.contains(PROJECTORS) && first
    };
    files.iter().map(String::as_str).filter(model).collect()
}

/// Whether a file's name, less its ending and number of its part, ends in a word: `x-Q4_K_M.gguf` and `x.q4_k_m-00001-of-00002.gguf` do in
/// `Q4_K_M`.
fn ends_in(file: &str, word: &str) -> bool {
    let stem = file.get(..file.len().saturating_sub(".gguf".len())).unwrap_or_default();
    let stem = split_part(stem).map_or(stem, |(stem, ..)| stem);
    let name = stem.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let before = name.strip_suffix(&word.to_ascii_lowercase());
    before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
}

/// All parts of a GGUF file that is one of several.
fn parts(file: &str) -> Option<Vec<String>> {
    let end = file.len().checked_sub(".gguf".len())?;
    let (stem, _, count) = split_part(file.get(..end)?)?;
    let ending = file.get(end..)?;
    Some((1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}{ending}")).collect())
}

/// `stem-00001-of-00003` in its parts.
fn split_part(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((stem, part, count)).filter(|_| count <= 999)
}

fn listed(files: &[&str]) -> String {
    if files.is_empty() {
        return "none".to_owned();
    }
    let more =
        if files.len() > LISTED { format!(" and {} others", files.len() - LISTED) } else { String::new() };
    format!("{}{more}", files.iter().take(LISTED).copied().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, files: &[&str]) -> Result<Wanted, String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        wanted(&name.parse().unwrap(), Extent::Whole, &files).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_is_its_config_its_tokenizer_and_its_safetensors() {
        let files = [
            "README.md",
            "config.json",
            "onnx/model.onnx",
            "original/consolidated.00.pth",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
            "chat_template.jinja",
            "x.Q4_K_M.gguf",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
        ];
        let found = of("hf://a/b", &files).unwrap();
        assert_eq!(found.files, ["config.json", "tokenizer.json", "chat_template.jinja", INDEX]);
        assert_eq!((found.index, found.gguf), (Some(INDEX), None));
        let all: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        assert_eq!(wanted(&"hf://a/b".parse().unwrap(), Extent::Shape, &all).unwrap().files, ["config.json"]);
        // transformers and the loader prefer the single file, too.
        let both =
            of("hf://a/b", &["config.json", SINGLE, INDEX, "model-00001-of-00001.safetensors"]).unwrap();
        assert_eq!((both.files, both.index), (vec!["config.json".to_owned(), SINGLE.to_owned()], None));
    }

    #[test]
    fn an_index_names_what_is_there() {
        let name: ModelName = "hf://a/b".parse().unwrap();
        let files = ["a.safetensors".to_owned(), "b.safetensors".to_owned()];
        let of = |index: &str| shards(&name, index.as_bytes(), &files).map_err(|error| error.to_string());
        let both = r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#;
        assert_eq!(of(both).unwrap(), files);
        for (index, word) in [
            ("{", "no JSON"),
            ("{}", "without a `weight_map`"),
            (r#"{"weight_map": {"x": "../b.safetensors"}}"#, "are not safetensors"),
            (r#"{"weight_map": {"x": "b.bin"}}"#, "are not safetensors"),
            (r#"{"weight_map": {"x": "c.safetensors"}}"#, "`c.safetensors`, which is not there"),
        ] {
            assert!(of(index).unwrap_err().contains(word), "{index}");
        }
    }

    #[test]
    fn a_gguf_file_is_named_or_told_by_its_quantisation_and_has_all_its_parts() {
        let files = [
            "mmproj-x-Q8_0.gguf",
            "x-Q4_K_M.gguf",
            "x-IQ4_K_M.gguf",
            "x-Q8_0.gguf",
            "BF16/x-BF16-00001-of-00002.gguf",
            "BF16/x-BF16-00002-of-00002.gguf",
            "y.q6_k.gguf",
            "z-Q2_K.gguf",
            "w-Q2_K.gguf",
            "v-Q3_K-00001-of-00002.gguf",
        ];
        for (name, gguf, count) in [
            ("hf://a/b:Q4_K_M", "x-Q4_K_M.gguf", 1),
            ("hf://a/b:q8_0", "x-Q8_0.gguf", 1),
            ("hf://a/b:Q6_K", "y.q6_k.gguf", 1),
            ("hf://a/b:bf16", "BF16/x-BF16-00001-of-00002.gguf", 2),
            ("hf://a/b/BF16/x-BF16-00002-of-00002.gguf", "BF16/x-BF16-00001-of-00002.gguf", 2),
            ("hf://a/b/x-Q8_0.gguf", "x-Q8_0.gguf", 1),
        ] {
            let found = of(name, &files).unwrap();
            assert_eq!((found.gguf.as_deref(), found.files.len()), (Some(gguf), count), "{name}");
        }
        for (name, word) in [
            ("hf://a/b:Q5_K_M", "has no GGUF file for `:Q5_K_M`; its GGUF files are x-Q4_K_M.gguf"),
            ("hf://a/b:Q2_K", "several GGUF files for `:Q2_K`"),
            ("hf://a/b:Q3_K", "lacks `v-Q3_K-00002-of-00002.gguf`"),
            ("hf://a/b/u.gguf", "has no file `u.gguf`"),
            ("hf://a/b", "has GGUF files: say which, as in hf://a/b:Q4_K_M"),
        ] {
            let refusal = of(name, &files).unwrap_err();
            assert!(refusal.contains(word), "{name}: {refusal}");
        }
    }

    #[test]
    fn what_has_no_weights_that_can_be_served_is_told_what_it_is() {
        for (files, word) in [
            (&["config.json", "pytorch_model.bin"][..], "PyTorch alone"),
            (&["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
            (&["README.md"], "has neither model.safetensors nor"),
        ] {
            let refusal = of("hf://a/b", files).unwrap_err();
            assert!(refusal.starts_with("hf://a/b ") && refusal.contains(word), "{refusal}");
        }
    }
}
