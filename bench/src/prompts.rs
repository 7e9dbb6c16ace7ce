//! What the benchmark asks: built-in texts, a JSON file, or random token ids.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Where the prompts come from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompts {
    /// Openings of Rust documentation, the demo pair's subject (`bench/prompts/rustdoc.json`).
    BuiltIn,
    /// A JSON array; each entry a text, an array of token ids, or an object with such a `prompt`.
    File(PathBuf),
    /// Random token ids, the same for the same seed.
    Synthetic {
        /// How many different prompts.
        count: usize,
        /// Token ids in each.
        length: usize,
        /// Ids are drawn from `first_id..end_id`: leave out the special tokens.
        first_id: u32,
        /// One past the highest id, at most the vocabulary's size.
        end_id: u32,
        /// Draws the ids.
        seed: u64,
    },
}

/// One prompt as the completions API takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text that the server tokenizes.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Bare(Prompt),
    Named { prompt: Prompt },
}

impl Prompts {
    /// Reads or draws the prompts; never an empty list.
    ///
    /// # Errors
    /// [`BenchError::Prompts`] with the file and the entry, or [`BenchError::Spec`] for an impossible synthetic set.
    pub fn load(&self) -> Result<Vec<Prompt>, BenchError> {
        match self {
            Prompts::BuiltIn => parse(Path::new("built-in"), include_str!("../prompts/rustdoc.json")),
            Prompts::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| refuse(path, error.to_string()))?;
                parse(path, &text)
            }
            &Prompts::Synthetic { count, length, first_id, end_id, seed } => {
                if count == 0 || length == 0 || first_id >= end_id {
                    return Err(BenchError::Spec(
                        "synthetic prompts need a count and a length of at least 1, and first_id below end_id".into(),
                    ));
                }
                Ok(synthetic(count, length, first_id, end_id, seed))
            }
        }
    }
}

fn refuse(path: &Path, why: String) -> BenchError {
    BenchError::Prompts { path: path.display().to_string(), why }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Prompt>, BenchError> {
    let entries: Vec<serde_json::Value> = serde_json::from_str(text)
        .map_err(|error| refuse(path, format!("{error}; write a JSON array of prompts")))?;
    if entries.is_empty() {
        return Err(refuse(path, "it holds no prompts".into()));
    }
    let prompt = |(index, entry)| match serde_json::from_value(entry) {
        Ok(Entry::Bare(prompt) | Entry::Named { prompt }) if !prompt.is_empty() => Ok(prompt),
        _ => Err(refuse(
            path,
            format!("entry {index} is neither a text, nor token ids, nor an object with such a \"prompt\""),
        )),
    };
    entries.into_iter().enumerate().map(prompt).collect()
}

impl Prompt {
    fn is_empty(&self) -> bool {
        match self {
            Prompt::Text(text) => text.is_empty(),
            Prompt::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

fn synthetic(count: usize, length: usize, first_id: u32, end_id: u32, seed: u64) -> Vec<Prompt> {
    let mut state = seed;
    let mut draw = || first_id + (split_mix(&mut state) % u64::from(end_id - first_id)) as u32;
    (0..count).map(|_| Prompt::Tokens((0..length).map(|_| draw()).collect())).collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014): one step of a counter, mixed; enough to draw ids from.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_prompts_parse_and_differ() {
        let prompts = Prompts::BuiltIn.load().unwrap();
        assert!(prompts.len() >= 32, "{}", prompts.len());
        for (index, prompt) in prompts.iter().enumerate() {
            assert!(!prompts[..index].contains(prompt), "{prompt:?} stands twice");
        }
    }

    #[test]
    fn a_file_may_mix_the_three_forms() {
        let prompts =
            parse(Path::new("p.json"), r#"["a", [1, 2], {"prompt": "b"}, {"prompt": [3]}]"#).unwrap();
        let expected = [
            Prompt::Text("a".into()),
            Prompt::Tokens(vec![1, 2]),
            Prompt::Text("b".into()),
            Prompt::Tokens(vec![3]),
        ];
        assert_eq!(prompts, expected);
    }

    #[test]
    fn a_bad_file_is_refused_with_its_name_and_entry() {
        let cases =
            [("{}", "array"), ("[]", "no prompts"), (r#"["a", 7]"#, "entry 1"), (r#"[""]"#, "entry 0")];
        for (text, part) in cases {
            let message = parse(Path::new("p.json"), text).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("p.json"), "{message}");
        }
        assert!(
            Prompts::File("missing.json".into()).load().unwrap_err().to_string().contains("missing.json")
        );
    }

    #[test]
    fn synthetic_prompts_follow_their_seed_and_range() {
        let set =
            |seed| Prompts::Synthetic { count: 3, length: 40, first_id: 5, end_id: 9, seed }.load().unwrap();
        assert_eq!(set(1), set(1));
        assert_ne!(set(1), set(2));
        for prompt in set(1) {
            let Prompt::Tokens(tokens) = prompt else { panic!("token ids expected") };
            assert!(tokens.len() == 40 && tokens.iter().all(|id| (5..9).contains(id)));
        }
        let empty = Prompts::Synthetic { count: 1, length: 1, first_id: 4, end_id: 4, seed: 0 };
        assert!(empty.load().is_err());
    }
}
