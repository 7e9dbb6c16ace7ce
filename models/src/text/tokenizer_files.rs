//! What transformers makes of tokenizer.json by the files beside it: its classes for families build the tokenizer anew around the file's
//! vocabulary, and tokens are added, or are special, that only tokenizer_config.json, special_tokens_map.json or added_tokens.json name.
//!
//! Source: `AutoTokenizer` of transformers 5.23.0, as `tests/golden/make_tokenizers.py` asks it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::Keys;
use crate::{Architecture, ModelConfig, ModelError};

/// How Qwen's class splits texts.
pub(super) const QWEN_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Tokens that have a name in every tokenizer of transformers.
pub(super) const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of further ones: what tokenizer.json says of those stands.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// What is said of an added token beside its text, and what holds where nothing is.
const FLAGS: [(&str, bool); 5] =
    [("single_word", false), ("lstrip", false), ("rstrip", false), ("normalized", true), ("special", false)];

/// What tokenizer.json says of an added token.
type Entry = Map<String, Value>;

/// Classes that do not take tokenizer.json as it is.
enum Class {
    /// SentencePiece's rules.
    Llama,
    Qwen2,
}

/// What became of tokenizer.json.
#[derive(Default)]
pub(super) struct Made {
    /// It is another now.
    pub(super) changed: bool,
    /// Added tokens that were left out, as the model has no rows for them: of images, or for padding in training.
    pub(super) left_out: Vec<String>,
}

/// Changes the content of tokenizer.json to what transformers makes of it.
///
/// # Errors
/// A file beside it is no JSON, has a value of another type than it should, or the model has no row for a token that chats need.
pub(super) fn as_transformers(
    tokenizer: &mut Value,
    dir: &Path,
    model: &ModelConfig,
) -> Result<Made, ModelError> {
    if !tokenizer.is_object() || !tokenizer["model"].is_object() {
        // That is told of where it is read.
        return Ok(Made::default());
    }
    let read = |name: &str| Keys::read_if_present(&dir.join(name));
    let config = read("tokenizer_config.json")?;
    let named_class = config.as_ref().map_or(Ok(None), |config| config.text("tokenizer_class"))?;
    if let Some(config) =
        config.as_ref().filter(|config| config.get("split_special_tokens") == Some(&true.into()))
    {
        return Err(config.error("split_special_tokens", "is true, which is not supported: take it out"));
    }
    let class = class(named_class, model.architecture, tokenizer);
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
    if let Some(told) = &told {
        entries(told)?.into_iter().for_each(|(id, entry)| add(&mut all, id, entry));
    }
    if let Some(file) = &file {
        for name in file.names() {
            let id = file.get(name).and_then(Value::as_u64);
            let id = id.ok_or_else(|| file.error(name, "must be the id of a token"))?;
            let is_special = named.iter().chain(&listed).any(|token| token == name);
            add(&mut all, token_id(file, name, id)?, plain(name, is_special, !is_special));
        }
    }
    let left_out = take_beyond(&mut all, model.vocab);
    if let Some(needed) = left_out.iter().find(|token| !token.is_empty() && chats_need(token, dir, &files)) {
        let problem = format!(
            "has the token {needed:?}, which chats need, behind the last id of the model, whose `vocab_size` in config.json is {}: tokenizer and \
             weights are not of the same model",
            model.vocab
        );
        return Err(ModelError::format(&dir.join("tokenizer.json"), &problem));
    }
    // Behind all that are there, as far as the model has rows.
    let ids = |list: &[Value]| list.iter().filter_map(|entry| entry["id"].as_u64()).max();
    let of_model = tokenizer["model"]["vocab"]
        .as_object()
        .and_then(|vocab| vocab.values().filter_map(Value::as_u64).max());
    let mut next = of_model.max(ids(&all)).map_or(0, |last| last + 1);
    let all_named = named.iter().map(|token| (token, true)).chain(listed.iter().map(|token| (token, false)));
    for (token, decides) in all_named.filter(|(token, _)| !left_out.contains(token)) {
        let known = tokenizer["model"]["vocab"].get(token).and_then(Value::as_u64);
        match (all.iter_mut().find(|entry| entry["content"] == token.as_str()), known) {
            (Some(entry), _) if decides => entry["special"] = true.into(),
            (Some(_), _) => {}
            (None, Some(id)) => add(&mut all, id, plain(token, true, false)),
            (None, None) if next < model.vocab as u64 => {
                add(&mut all, next, plain(token, true, false));
                next += 1;
            }
            // The model has no such token.
            (None, None) => {}
        }
    }
    // Of use in training alone.
    let drops = !tokenizer["model"]["dropout"].is_null();
    if drops {
        tokenizer["model"]["dropout"] = Value::Null;
    }
    let changed = class.is_some() || drops || all != list;
    tokenizer["added_tokens"] = all.into();
    Ok(Made { changed, left_out })
}

/// Takes the tokens out that have an id of `vocab` and more: their text.
fn take_beyond(list: &mut Vec<Value>, vocab: usize) -> Vec<String> {
    let is_beyond = |entry: &Value| entry["id"].as_u64().is_some_and(|id| id >= vocab as u64);
    let beyond = list.iter().filter(|entry| is_beyond(entry)).filter_map(text).collect();
    list.retain(|entry| !is_beyond(entry));
    beyond
}

/// Whether a text begins or ends with that token, or the chat template writes it.
fn chats_need(token: &str, dir: &Path, files: &[Option<&Keys>]) -> bool {
    let ends = ["bos_token", "eos_token"];
    let is_end = |file: &&Keys| ends.iter().any(|end| file.get(end).and_then(text).as_deref() == Some(token));
    let writes = |file: &&Keys| match file.get("chat_template") {
        Some(Value::String(template)) => template.contains(token),
        Some(Value::Array(named)) => {
            named.iter().any(|one| one["template"].as_str().is_some_and(|template| template.contains(token)))
        }
        _ => false,
    };
    let of_its_own = || std::fs::read_to_string(dir.join("chat_template.jinja")).unwrap_or_default();
    files.iter().flatten().any(|file| is_end(file) || writes(file)) || of_its_own().contains(token)
}

fn class(named: Option<&str>, family: Architecture, tokenizer: &Value) -> Option<Class> {
    let named = named.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    match (family, named) {
        // They build nothing else.
        _ if tokenizer["model"]["type"] != "BPE" => None,
        // The class of Mistral's own library is another matter: without that it is the file.
        (Architecture::Mistral | Architecture::Mixtral, _) => None,
        (Architecture::Qwen2, _)
        | (Architecture::Qwen3 | Architecture::Qwen2Moe | Architecture::Qwen3Moe, None)
        | (_, Some("Qwen2Tokenizer")) => Some(Class::Qwen2),
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
    metaspace(tokenizer, flag("add_prefix_space", true)?, flag("legacy", false)?);
    Ok(())
}

/// SentencePiece's rules: a space is a letter, one may stand in front of a text, and of each text behind a mark in `legacy` ones.
pub(super) fn metaspace(tokenizer: &mut Value, prefix: bool, legacy: bool) {
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
fn entries(told: &Keys) -> Result<Vec<(u64, Entry)>, ModelError> {
    let mut all = Vec::new();
    for name in told.names() {
        let wrong = |problem: &str| told.error(name, problem);
        let id = name.parse().map_err(|_| wrong("is no token id"))?;
        let entry = told.object(name)?.ok_or_else(|| wrong("must be an object with `content`"))?;
        entry.text("content")?.ok_or_else(|| wrong("must have `content`, a string"))?;
        FLAGS.iter().try_for_each(|(flag, default)| entry.flag(flag, *default).map(drop))?;
        let whole = told.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        all.push((
            token_id(told, name, id)?,
            whole.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        ));
    }
    all.sort_unstable_by_key(|(id, _)| *id);
    Ok(all)
}

/// An id that a token can have.
fn token_id(file: &Keys, name: &str, id: u64) -> Result<u64, ModelError> {
    if id <= u32::MAX.into() {
        return Ok(id);
    }
    Err(file.error(name, format!("is a token with the id {id}: there are none so large")))
}

fn plain(content: &str, special: bool, normalized: bool) -> Entry {
    let entry = json!({"content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": normalized, "special": special});
    entry.as_object().cloned().unwrap_or_default()
}

/// Adds a token, in the place of one of the same text or id.
fn add(list: &mut Vec<Value>, id: u64, mut entry: Entry) {
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
