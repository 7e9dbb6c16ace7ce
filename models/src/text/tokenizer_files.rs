//! What transformers makes of tokenizer.json by the files beside it: its classes for families build the tokenizer anew around the file's
//! vocabulary, and tokens are added, or are special, that only tokenizer_config.json, special_tokens_map.json or added_tokens.json name.
//!
//! Source: `AutoTokenizer` of transformers 5.23.0, as `tests/golden/make_tokenizers.py` asks it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::Keys;
use crate::{Architecture, ModelError};

/// How Qwen's class splits texts.
const QWEN_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Tokens that have a name in every tokenizer of transformers.
pub(super) const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of further ones: what tokenizer.json says of those stands.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// Classes that do not take tokenizer.json as it is.
enum Class {
    /// SentencePiece's rules.
    Llama,
    Qwen2,
}

/// Changes the content of tokenizer.json to what transformers makes of it; false if it is that already.
///
/// # Errors
/// A file beside it is no JSON, or has a value of another type than it should.
pub(super) fn as_transformers(
    tokenizer: &mut Value,
    dir: &Path,
    family: Architecture,
) -> Result<bool, ModelError> {
    if !tokenizer.is_object() || !tokenizer["model"].is_object() {
        // That is told of where it is read.
        return Ok(false);
    }
    let read = |name: &str| Keys::read_if_present(&dir.join(name));
    let config = read("tokenizer_config.json")?;
    let named_class = config.as_ref().map_or(Ok(None), |config| config.text("tokenizer_class"))?;
    let class = class(named_class, family, tokenizer);
    match class {
        Some(Class::Llama) => llama(tokenizer, config.as_ref())?,
        Some(Class::Qwen2) => qwen2(tokenizer, config.as_ref())?,
        None => {}
    }
    let told = config.as_ref().map_or(Ok(None), |config| config.object("added_tokens_decoder"))?;
    let (map, file) = match &told {
        Some(_) => (None, None),
        None => (read("special_tokens_map.json")?, read("added_tokens.json")?),
    };
    let files = [map.as_ref(), config.as_ref()];
    let (named, listed) = (named_tokens(&files), listed_tokens(&files));
    let list = tokenizer["added_tokens"].as_array().cloned().unwrap_or_default();
    let mut all = list.clone();
    for (id, entry) in told.iter().flat_map(entries) {
        add(&mut all, id, entry);
    }
    for name in file.iter().flat_map(Keys::names) {
        if let Some(id) = file.as_ref().and_then(|file| file.get(name)).and_then(Value::as_u64) {
            let is_special = named.iter().chain(&listed).any(|token| token == name);
            add(&mut all, id, plain(name, is_special, !is_special));
        }
    }
    for (token, decides) in
        named.iter().map(|token| (token, true)).chain(listed.iter().map(|token| (token, false)))
    {
        let known = tokenizer["model"]["vocab"].get(token).and_then(Value::as_u64);
        match (all.iter_mut().find(|entry| entry["content"] == token.as_str()), known) {
            (Some(entry), _) if decides => entry["special"] = true.into(),
            (Some(_), _) => {}
            (None, Some(id)) => add(&mut all, id, plain(token, true, false)),
            // The model has no such token.
            (None, None) => {}
        }
    }
    let changed = class.is_some() || all != list;
    tokenizer["added_tokens"] = all.into();
    Ok(changed)
}

fn class(named: Option<&str>, family: Architecture, tokenizer: &Value) -> Option<Class> {
    let named = named.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    match (family, named) {
        // They build nothing else.
        _ if tokenizer["model"]["type"] != "BPE" => None,
        // The class of Mistral's own library is another matter: without that it is the file.
        (Architecture::Mistral, _) => None,
        (Architecture::Qwen2, _) | (Architecture::Qwen3, None) | (_, Some("Qwen2Tokenizer")) => {
            Some(Class::Qwen2)
        }
        (_, Some("LlamaTokenizer")) if !has_byte_level(tokenizer) => Some(Class::Llama),
        _ => None,
    }
}

fn has_byte_level(tokenizer: &Value) -> bool {
    let is = |part: &Value| part["type"] == "ByteLevel";
    ["pre_tokenizer", "decoder"].iter().any(|name| {
        let part = &tokenizer[name];
        let of = |list: &str| part[list].as_array().is_some_and(|parts| parts.iter().any(is));
        is(part) || of("pretokenizers") || of("decoders")
    })
}

fn llama(tokenizer: &mut Value, config: Option<&Keys>) -> Result<(), ModelError> {
    let flag = |name: &str, default| config.map_or(Ok(default), |config| config.flag(name, default));
    let (prefix, legacy) = (flag("add_prefix_space", true)?, flag("legacy", false)?);
    let scheme = match (prefix, legacy) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    tokenizer["normalizer"] = Value::Null;
    tokenizer["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false});
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    tokenizer["decoder"] = json!({"type": "Sequence", "decoders": decoders});
    for (name, value) in
        [("unk_token", Value::Null), ("fuse_unk", true.into()), ("byte_fallback", true.into())]
    {
        tokenizer["model"][name] = value;
    }
    Ok(())
}

fn qwen2(tokenizer: &mut Value, config: Option<&Keys>) -> Result<(), ModelError> {
    let prefix = config.map_or(Ok(false), |config| config.flag("add_prefix_space", false))?;
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": false});
    let split =
        json!({"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated", "invert": false});
    tokenizer["normalizer"] = json!({"type": "NFC"});
    tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, byte_level]});
    tokenizer["decoder"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    Ok(())
}

/// The tokens that have names.
fn named_tokens(files: &[Option<&Keys>]) -> Vec<String> {
    let of = |file: &&Keys| NAMED.iter().filter_map(|name| text(file.get(name)?)).collect::<Vec<_>>();
    files.iter().flatten().flat_map(of).collect()
}

/// The tokens that stand in a list.
fn listed_tokens(files: &[Option<&Keys>]) -> Vec<String> {
    let lists =
        files.iter().flatten().flat_map(|file| LISTS.iter().filter_map(|name| file.get(name)?.as_array()));
    lists.flatten().filter_map(text).collect()
}

/// A token as a string, or as an object with its `content`.
fn text(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// Those of `added_tokens_decoder`, by their ids.
fn entries(told: &Keys) -> Vec<(u64, Map<String, Value>)> {
    let entry = |name: &str| Some((name.parse().ok()?, told.get(name)?.as_object()?.clone()));
    let mut all: Vec<_> = told.names().filter_map(entry).collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    all
}

fn plain(content: &str, special: bool, normalized: bool) -> Map<String, Value> {
    let entry = json!({"content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": normalized, "special": special});
    entry.as_object().cloned().unwrap_or_default()
}

/// Adds a token, in the place of one of the same text or id.
fn add(list: &mut Vec<Value>, id: u64, mut entry: Map<String, Value>) {
    entry.insert("id".to_owned(), id.into());
    for (flag, default) in [
        ("single_word", false),
        ("lstrip", false),
        ("rstrip", false),
        ("normalized", true),
        ("special", false),
    ] {
        entry.entry(flag).or_insert(default.into());
    }
    list.retain(|other| other["id"] != entry["id"] && other["content"] != entry["content"]);
    let place = list.partition_point(|other| other["id"].as_u64() < Some(id));
    list.insert(place, Value::Object(entry));
}
