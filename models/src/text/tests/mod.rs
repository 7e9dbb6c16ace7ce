//! Tokenizers and streams against the golden files, and the bad input around them.

mod rendered_chats;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::ModelConfig;

const TOKENIZERS: [&str; 2] = ["tokenizer-byte-level", "tokenizer-sentencepiece"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn tokenizer(name: &str) -> Arc<Tokenizer> {
    let path = golden(name).join("tokenizer.json");
    Arc::new(Tokenizer::from_json(&fs::read(&path).unwrap(), &path).unwrap())
}

fn all_tokenizers() -> Vec<Arc<Tokenizer>> {
    let mut all: Vec<_> = TOKENIZERS.iter().map(|name| tokenizer(name)).collect();
    all.push(Arc::new(Tokenizer::synthetic(300).unwrap()));
    all.push(Arc::new(with_an_empty_token()));
    all
}

/// The SentencePiece-like one with a token (id 400) that is no text at all.
fn with_an_empty_token() -> Tokenizer {
    let path = golden("tokenizer-sentencepiece").join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["model"]["vocab"][""] = 400.into();
    Tokenizer::from_json(json.to_string().as_bytes(), &path).unwrap()
}

fn expected(folder: &str) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(golden(folder).join("expected.json")).unwrap()).unwrap()
}

/// What a stream shows, token by token, and at its end.
fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let mut text: String = ids.iter().filter_map(|id| detokenizer.push(*id)).collect();
    text.push_str(&detokenizer.finish());
    text
}

#[test]
fn ids_and_texts_are_those_of_the_library_that_made_the_files() {
    for name in TOKENIZERS {
        let tokenizer = tokenizer(name);
        for case in expected(name) {
            let ids: Vec<u32> =
                case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids[1..], "{name}: {text:?} without <s>");
            assert_eq!(tokenizer.decode(&ids), case["decoded"].as_str().unwrap());
            assert_eq!(streamed(&tokenizer, &ids), text);
        }
    }
}

/// Layouts of published tokenizers, and what files beside tokenizer.json say otherwise: see make_tokenizers.py.
#[test]
fn ids_texts_and_streams_are_those_of_auto_tokenizer() {
    let mut texts = 0;
    let mut folders: Vec<PathBuf> =
        fs::read_dir(golden("tokenizers")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 21);
    for dir in folders {
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = Arc::new(Tokenizer::load(&dir, &of_family(&dir)).unwrap());
        let cases: Vec<Value> =
            serde_json::from_str(&fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
        for case in &cases {
            let ids = |key: &str| -> Vec<u32> {
                case[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
            };
            let text = case["text"].as_str().unwrap();
            let all = ids("ids");
            assert_eq!(tokenizer.encode(text, true).unwrap(), all, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids("plain"), "{name}: {text:?} plain");
            assert_eq!(tokenizer.decode(&all), case["decoded"].as_str().unwrap(), "{name}: {text:?}");
            if text.contains('\u{fffd}') {
                // Whether that is a character or a part of one cannot be told by the text alone.
                continue;
            }
            // The first third is a prompt, and what is shown goes on behind it.
            let (prompt, output) = all.split_at(case["prompt"].as_u64().unwrap() as usize);
            let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer)).behind(prompt);
            let mut shown = String::new();
            let (ends, mut held) = (case["ends"].as_array().unwrap(), false);
            for (place, (id, end)) in output.iter().zip(ends).enumerate() {
                shown.extend(detokenizer.push(*id));
                // A run of byte tokens is held back to its end: what it shows may still change.
                held = match tokenizer.piece(*id) {
                    tokenizer::Piece::FallbackByte => true,
                    tokenizer::Piece::Nothing => held,
                    _ => false,
                };
                if let Some(end) = end.as_u64().filter(|_| !held) {
                    assert_eq!(
                        shown.chars().count() as u64,
                        end,
                        "{name}: {text:?} to {place} of {output:?}"
                    );
                }
            }
            shown.push_str(&detokenizer.finish());
            assert_eq!(shown, case["shown"].as_str().unwrap(), "{name}: {text:?} behind {prompt:?}");
        }
        texts += cases.len();
    }
    assert_eq!(texts, 6 * 303 + 15 * 60);
}

#[test]
fn what_stands_beside_a_tokenizer_is_refused_by_its_own_name() {
    let dir = std::env::temp_dir().join(format!("faser-beside-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::copy(golden("tokenizer-byte-level").join("tokenizer.json"), dir.join("tokenizer.json")).unwrap();
    let config =
        ModelConfig { vocab: 400, stored_vocab: 400, ..ModelConfig::load(&golden("llama")).unwrap() };
    for (file, json, part) in [
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"350": {}}}"#,
            "`added_tokens_decoder.350` must have `content`",
        ),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#,
            "`added_tokens_decoder.x` is no token id",
        ),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"99999999999": {"content": "a"}}}"#,
            "the id 99999999999",
        ),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"1": {"content": "a", "special": 1}}}"#,
            "added_tokens_decoder.1.special",
        ),
        ("tokenizer_config.json", r#"{"split_special_tokens": true}"#, "`split_special_tokens` is true"),
        ("added_tokens.json", r#"{"a": -1}"#, "`a` must be the id of a token"),
        ("added_tokens.json", r#"{"a": 99999999999}"#, "the id 99999999999"),
    ] {
        fs::write(dir.join(file), json).unwrap();
        let refused = Tokenizer::load(&dir, &config).unwrap_err().to_string();
        fs::remove_file(dir.join(file)).unwrap();
        assert!(refused.contains(part) && refused.contains(file), "{json}: {refused}");
    }
    // Tokens are the same each time, whatever was of use in training.
    let mut tokenizer: Value =
        serde_json::from_slice(&fs::read(dir.join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["model"]["dropout"] = 0.9.into();
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&dir, &config).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(4);
    let ids = tokenizer.encode(&text, false).unwrap();
    assert_eq!(ids, self::tokenizer("tokenizer-byte-level").encode(&text, false).unwrap());
}

/// Gemma 3's tokenizer has a token of images that the models for text have no row for; the first Llama 2 had one for padding.
#[test]
fn tokens_behind_the_last_row_are_left_out_unless_chats_need_them() {
    let dir = std::env::temp_dir().join(format!("faser-beyond-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let whole = fs::read(golden("tokenizer-byte-level").join("tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&whole).unwrap();
    let list = json["added_tokens"].as_array_mut().unwrap();
    let flags =
        json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let mut image = flags.clone();
    (image["id"], image["content"]) = (400.into(), "<image>".into());
    list.push(image.clone());
    fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    let config =
        ModelConfig { vocab: 400, stored_vocab: 400, ..ModelConfig::load(&golden("llama")).unwrap() };
    let load = |beside: &str| {
        fs::write(dir.join("tokenizer_config.json"), beside).unwrap();
        Tokenizer::load(&dir, &config)
    };
    let mut entry = flags;
    entry["content"] = "<image>".into();
    let told = json!({"added_tokens_decoder": {"400": entry}, "pad_token": "<image>"}).to_string();
    let without = self::tokenizer("tokenizer-byte-level");
    let text = "see <image>";
    for beside in ["{}", &told, r#"{"extra_special_tokens": ["<image>"]}"#] {
        let tokenizer = load(beside).unwrap();
        assert_eq!(tokenizer.left_out(), ["<image>"], "{beside}");
        assert_eq!(tokenizer.encode(text, false).unwrap(), without.encode(text, false).unwrap(), "{beside}");
    }
    for beside in [r#"{"eos_token": "<image>"}"#, r#"{"chat_template": "a<image>b"}"#] {
        let refused = load(beside).unwrap_err().to_string();
        assert!(refused.contains("\"<image>\", which chats need") && refused.contains("is 400"), "{refused}");
    }
    fs::write(dir.join("chat_template.jinja"), "<image>").unwrap();
    assert!(load("{}").is_err());
    fs::remove_file(dir.join("chat_template.jinja")).unwrap();
    // No text is in every template, and needed by none.
    image["content"] = "".into();
    json["added_tokens"].as_array_mut().unwrap().pop();
    json["added_tokens"].as_array_mut().unwrap().push(image);
    fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    assert_eq!(load(r#"{"chat_template": "ab"}"#).unwrap().left_out(), [""]);
    fs::remove_dir_all(&dir).unwrap();
}

/// What is shown behind bytes of a prompt is what comes after them, also where all of them together are no character.
#[test]
fn bytes_behind_a_prompt_of_bytes_are_all_shown() {
    let tokenizer = tokenizer("tokenizer-sentencepiece");
    let crab = tokenizer.encode("🦀", false).unwrap();
    let bytes = &crab[crab.len() - 4..];
    let the = tokenizer.encode("the", false).unwrap();
    for (output, shown) in [
        ([bytes, bytes].concat(), "🦀🦀".to_owned()),
        ([bytes, bytes, &bytes[..1]].concat(), "\u{fffd}".repeat(9)),
        (the.clone(), " the".to_owned()),
        ([&bytes[..1], &the].concat(), "\u{fffd} the".to_owned()),
    ] {
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer)).behind(&crab);
        let mut text: String = output.iter().filter_map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        assert_eq!(text, shown, "{output:?}");
    }
}

/// A config of the family that a folder's config.json names.
fn of_family(dir: &Path) -> ModelConfig {
    let json: Value = serde_json::from_str(&fs::read_to_string(dir.join("config.json")).unwrap()).unwrap();
    let (case, vocab) = (json["model_type"].as_str().unwrap(), 4096);
    let case = match case {
        "qwen2" => "qwen2-tied",
        "qwen3" => "qwen3-tied",
        other => other,
    };
    ModelConfig { vocab, stored_vocab: vocab, ..ModelConfig::load(&golden(case)).unwrap() }
}

#[test]
fn a_character_of_several_tokens_is_shown_when_it_is_complete() {
    for tokenizer in all_tokenizers() {
        let ids = tokenizer.encode("a🦀 b", false).unwrap();
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
        let shown: Vec<String> = ids.iter().filter_map(|id| detokenizer.push(*id)).collect();
        assert!(shown.len() > 1, "nothing was streamed: {shown:?}");
        assert!(shown.iter().all(|text| !text.contains('\u{fffd}')), "{shown:?}");
        assert_eq!(shown.concat() + &detokenizer.finish(), "a🦀 b");
    }
}

#[test]
fn a_character_that_is_never_completed_ends_as_a_replacement() {
    for tokenizer in all_tokenizers() {
        let ids = tokenizer.encode("x🦀", false).unwrap();
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
        let shown: String = ids[..ids.len() - 1].iter().filter_map(|id| detokenizer.push(*id)).collect();
        assert_eq!(shown, "x");
        assert!(detokenizer.finish().chars().all(|c| c == '\u{fffd}'));
    }
}

#[test]
fn a_token_without_text_does_not_swallow_the_next_space() {
    let tokenizer = Arc::new(with_an_empty_token());
    let word = tokenizer.encode("the", false).unwrap();
    let ids = [&word[..], &[400], &word[..]].concat();
    assert_eq!(tokenizer.decode(&ids), "the the");
    assert_eq!(streamed(&tokenizer, &ids), "the the");
}

#[test]
fn the_synthetic_tokenizer_is_bytes() {
    let tokenizer = Tokenizer::synthetic(2048).unwrap();
    assert_eq!(tokenizer.encode("é!", true).unwrap(), [0xc3, 0xa9, 0x21]);
    assert_eq!(tokenizer.decode(&[0xc3, 0xa9, 1234, 0x21, 2048]), "é⟨1234⟩ !");
    assert!(Tokenizer::synthetic(255).unwrap_err().to_string().contains("256"));
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let dir = golden("tokenizer-byte-level");
    let mut config = ModelConfig::load(&golden("llama")).unwrap();
    let message = Tokenizer::load(&dir, &config).unwrap_err().to_string();
    for part in ["tokenizer.json", "329", "vocab_size", "131"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Padding of the model's vocabulary is usual.
    config.vocab = 512;
    assert_eq!(Tokenizer::load(&dir, &config).unwrap().vocab_size(), 331);
    let missing = Tokenizer::load(&golden("llama"), &config).unwrap_err().to_string();
    assert!(missing.contains("cannot read") && missing.contains("tokenizer.json"), "{missing}");
}

#[test]
fn a_damaged_tokenizer_is_refused_by_name() {
    let path = Path::new("m/tokenizer.json");
    let message = Tokenizer::from_json(b"{\"version\": \"1.0\"", path).unwrap_err().to_string();
    assert!(message.starts_with("m/tokenizer.json is not valid"), "{message}");
}

#[test]
fn a_file_that_the_library_panics_over_is_refused() {
    let file = fs::read_to_string(golden("tokenizer-sentencepiece").join("tokenizer.json")).unwrap();
    let broken = file.replacen("ByteFallback", "\\ud800", 1);
    assert_ne!(broken, file);
    assert!(Tokenizer::from_json(broken.as_bytes(), Path::new("x.json")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any ids at all, in any order: broken characters, runs of bytes, special and unknown tokens among them.
    #[test]
    fn a_stream_shows_what_the_whole_would(ids in prop::collection::vec(0..420_u32, 0..40), which in 0..4_usize) {
        let tokenizer = &all_tokenizers_once()[which];
        let whole = tokenizer.decode(&ids);
        prop_assert_eq!(&streamed(tokenizer, &ids), &whole);
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
        let mut shown = String::new();
        for id in &ids {
            shown.extend(detokenizer.push(*id));
            prop_assert!(whole.starts_with(&shown), "{:?} is not the start of {:?}", shown, whole);
        }
    }

    /// Pieces of real characters, as ids of byte tokens: the case where most is held back.
    #[test]
    fn bytes_of_characters_in_any_mixture(text in "[aé日🦀 ▁]{0,12}", cut in 0..12_usize, which in 0..4_usize) {
        let tokenizer = &all_tokenizers_once()[which];
        let mut ids = tokenizer.encode(&text, false).unwrap();
        if cut < ids.len() {
            ids.remove(cut);
        }
        prop_assert_eq!(streamed(tokenizer, &ids), tokenizer.decode(&ids));
    }
}

fn all_tokenizers_once() -> &'static [Arc<Tokenizer>] {
    static ALL: std::sync::OnceLock<Vec<Arc<Tokenizer>>> = std::sync::OnceLock::new();
    ALL.get_or_init(all_tokenizers)
}
