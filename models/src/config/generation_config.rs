//! What a model's authors say of sampling: `generation_config.json`.

use std::fmt;
use std::path::Path;

use super::json_keys::Keys;
use crate::ModelError;
use crate::gguf::{self, Gguf, Parts};

/// What a request samples by where it says nothing itself. `None`: the API's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// 0 to 2.
    pub temperature: Option<f32>,
    /// Above 0, up to 1.
    pub top_p: Option<f32>,
    /// 0 is all tokens.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0, up to 10.
    pub repetition_penalty: Option<f32>,
}

/// Keys that change what transformers generates and that nobody reads here, with the value that changes nothing. As vLLM does.
const NOT_READ: [(&str, f64); 13] = [
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("penalty_alpha", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("guidance_scale", 1.0),
    ("top_h", 0.0),
    ("suppress_tokens", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("bad_words_ids", 0.0),
    ("sequence_bias", 0.0),
];

impl GenerationDefaults {
    /// Of authors that say nothing.
    pub const NOTHING: GenerationDefaults = GenerationDefaults {
        temperature: None,
        top_p: None,
        top_k: None,
        min_p: None,
        repetition_penalty: None,
    };

    /// Reads `generation_config.json` of a model directory, or what a GGUF file has of it; nothing is said if it is not there.
    ///
    /// # Errors
    /// A value that no request could ask for.
    pub fn load(dir: &Path) -> Result<GenerationDefaults, ModelError> {
        if gguf::is_gguf(dir) {
            return GenerationDefaults::from_keys(&gguf::sampling(&Gguf::read(&Parts::map(dir)?)?.metadata)?);
        }
        let keys = Keys::read_if_present(&dir.join("generation_config.json"))?;
        keys.as_ref().map_or(Ok(GenerationDefaults::default()), GenerationDefaults::from_keys)
    }

    pub(super) fn from_keys(keys: &Keys) -> Result<GenerationDefaults, ModelError> {
        let number = |key: &str, wanted: &str, fits: fn(f64) -> bool| {
            let Some(value) = keys.get(key) else { return Ok(None) };
            match value.as_f64().filter(|value| fits(*value)) {
                Some(value) => Ok(Some(value as f32)),
                None => {
                    let problem = format!(
                        "is {value}, {wanted} is expected; `model.generation_config: none` leaves it unread"
                    );
                    Err(keys.error(key, problem))
                }
            }
        };
        let part = "a number above 0, up to 1,";
        let whole = "a whole number, -1 or 0 for all tokens,";
        let all = |k: f32| if k < 0.0 { 0 } else { k as u32 };
        Ok(GenerationDefaults {
            temperature: number("temperature", "a number from 0 to 2", |t| (0.0..=2.0).contains(&t))?,
            top_p: number("top_p", part, |p| p > 0.0 && p <= 1.0)?,
            top_k: number("top_k", whole, |k| k.fract() == 0.0 && (-1.0..=16_777_216.0).contains(&k))?
                .map(all),
            min_p: number("min_p", "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
            repetition_penalty: number("repetition_penalty", "a number above 0, up to 10,", |r| {
                r > 0.0 && r <= 10.0
            })?,
        })
    }
}

/// What of a generation_config.json changes texts in transformers, and not here.
pub(super) fn not_read(keys: &Keys) -> Vec<&'static str> {
    let says = |(key, neutral): &&(&str, f64)| match keys.get(key) {
        None => false,
        Some(value) if value.as_array().is_some_and(Vec::is_empty) => false,
        Some(value) => value.as_f64() != Some(*neutral),
    };
    NOT_READ.iter().filter(says).map(|(key, _)| *key).collect()
}

impl fmt::Display for GenerationDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let top_k = self.top_k.map(|k| k as f32);
        let all = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("top_k", top_k),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
        ];
        let said: Vec<String> =
            all.iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}"))).collect();
        match said.as_slice() {
            [] => f.write_str("as the API has it"),
            said => f.write_str(&said.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keys(json: Value) -> Keys {
        Keys::of(Path::new("m/generation_config.json"), json).unwrap()
    }

    #[test]
    fn what_it_says_is_what_requests_begin_with() {
        let said = GenerationDefaults::from_keys(&keys(json!({
            "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05,
            "eos_token_id": [1, 2], "transformers_version": "4.51.0",
        })))
        .unwrap();
        assert_eq!(
            said.to_string(),
            "temperature 0.6, top_p 0.95, top_k 20, min_p 0, repetition_penalty 1.05"
        );
        let nothing =
            GenerationDefaults::from_keys(&keys(json!({"top_k": null, "eos_token_id": 3}))).unwrap();
        assert_eq!(
            (nothing, nothing.to_string().as_str()),
            (GenerationDefaults::default(), "as the API has it")
        );
        assert_eq!(GenerationDefaults::from_keys(&keys(json!({"top_k": -1}))).unwrap().top_k, Some(0));
    }

    #[test]
    fn it_is_read_as_transformers_reads_it() {
        let golden: Value = serde_json::from_str(include_str!("../../tests/golden/generation.json")).unwrap();
        for case in golden.as_array().unwrap() {
            let said = GenerationDefaults::from_keys(&keys(case["file"].clone())).unwrap();
            let number = |name: &str| case["read"][name].as_f64().map(|value| value as f32);
            assert_eq!(said.temperature, number("temperature"), "{case}");
            assert_eq!(said.top_p, number("top_p"), "{case}");
            assert_eq!(said.top_k.map(|k| k as f32), number("top_k"), "{case}");
            assert_eq!(said.min_p, number("min_p"), "{case}");
            assert_eq!(said.repetition_penalty, number("repetition_penalty"), "{case}");
        }
    }

    #[test]
    fn what_no_request_could_ask_for_is_refused_by_name() {
        for (json, part) in [
            (json!({"temperature": -1}), "`temperature` is -1, a number from 0 to 2 is expected"),
            (json!({"temperature": "0.6"}), "`temperature` is \"0.6\""),
            (json!({"top_p": 0}), "`top_p` is 0"),
            (json!({"top_k": 1.5}), "`top_k` is 1.5"),
            (json!({"min_p": 2}), "`min_p` is 2"),
            (json!({"repetition_penalty": 0}), "`model.generation_config: none`"),
        ] {
            let refused = GenerationDefaults::from_keys(&keys(json)).unwrap_err().to_string();
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }

    #[test]
    fn what_would_change_texts_elsewhere_is_told() {
        let said = keys(
            json!({"no_repeat_ngram_size": 3, "typical_p": 1.0, "num_beams": 4, "suppress_tokens": [], "bad_words_ids": [[1]]}),
        );
        assert_eq!(not_read(&said), ["no_repeat_ngram_size", "num_beams", "bad_words_ids"]);
    }
}
