//! The tokenizer and the chat templates in the metadata of a GGUF file, as tokenizer.json and tokenizer_config.json of its model would have
//! them.
//!
//! What a file says of a tokenizer is little: its vocabulary, and the name of a rule for the rest. So the rest is what transformers builds for
//! the models of that name, and not what llama.cpp does where they differ (Qwen's texts are normalised, and SentencePiece's space stands in
//! front of a whole text alone).

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::tokenizer_files::{QWEN_WORDS, metaspace};
use crate::ModelError;
use crate::gguf::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";
const WITH_TOOLS: &str = "tokenizer.chat_template.tool_use";

/// Bytes of a piece of a SentencePiece vocabulary, of which all ways to make it of two others are looked at; real ones have some dozens.
const LONGEST_PIECE: usize = 4096;

const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What llama.cpp does of a file that names no rule, one after the other.
const DEFAULT_WORDS: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

/// A rule by which byte-level tokenizers split texts, under the names that llama.cpp has for it.
struct Rule {
    names: &'static [&'static str],
    /// Patterns, one after the other.
    words: &'static [&'static str],
    /// GPT-2's pattern behind them, which the library has itself.
    as_gpt2: bool,
    /// Words that are tokens are not merged anew.
    ignores_merges: bool,
    /// Texts are normalised to NFC.
    normalises: bool,
    /// Whether texts begin with a mark where the file does not say it.
    begins: bool,
}

const RULES: [Rule; 8] = [
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        words: &[LLAMA3_WORDS],
        as_gpt2: false,
        ignores_merges: true,
        normalises: false,
        begins: true,
    },
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        words: &[LLAMA3_WORDS],
        as_gpt2: false,
        ignores_merges: false,
        normalises: false,
        begins: false,
    },
    Rule {
        names: &["glm4"],
        words: &[LLAMA3_WORDS],
        as_gpt2: false,
        ignores_merges: true,
        normalises: false,
        begins: false,
    },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen"],
        words: &[QWEN_WORDS],
        as_gpt2: false,
        ignores_merges: false,
        normalises: true,
        begins: false,
    },
    Rule {
        names: &["gpt-2", "phi-2", "mpt", "olmo"],
        words: &[],
        as_gpt2: true,
        ignores_merges: false,
        normalises: false,
        begins: false,
    },
    Rule {
        names: &["smollm", "starcoder", "refact", "command-r"],
        words: &[r"\p{N}"],
        as_gpt2: true,
        ignores_merges: false,
        normalises: false,
        begins: false,
    },
    Rule {
        names: &["tekken"],
        words: &[TEKKEN_WORDS],
        as_gpt2: false,
        ignores_merges: true,
        normalises: false,
        begins: true,
    },
    Rule {
        names: &["default"],
        words: &DEFAULT_WORDS,
        as_gpt2: false,
        ignores_merges: false,
        normalises: false,
        begins: false,
    },
];

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// A mark that is no text.
    Control,
    /// A piece of text that is found before all others.
    Added,
    /// A row of the embedding without a token.
    Unused,
}

/// A token of a vocabulary, with its id.
struct Token<'a> {
    id: usize,
    text: &'a str,
    kind: Kind,
}

/// What tokenizer.json would be.
///
/// # Errors
/// It is of a kind that is not read, or what makes it up does not go together.
pub(super) fn tokenizer_json(metadata: &Metadata<'_>) -> Result<Value, ModelError> {
    let model = metadata.text(MODEL)?.ok_or_else(|| metadata.missing(MODEL))?;
    let tokens = tokens(metadata)?;
    let mut json = match model {
        "gpt2" => byte_level(metadata, &tokens)?,
        "llama" => sentence_piece(metadata, &tokens)?,
        other => {
            let problem = format!(
                "is {other:?}; gpt2 and llama are read: give the model as a folder with tokenizer.json"
            );
            return Err(metadata.error(MODEL, problem));
        }
    };
    // No key says that white space behind marks is part of them: it is known of Phi-3 (llama.cpp goes by the name of the model). Phi-4 has
    // the same layers, and a BPE of bytes.
    let is_phi = metadata.text(ARCHITECTURE)? == Some("phi3") && model == "llama";
    let takes_space = |text: &str| is_phi && !["<unk>", "<s>", "<|endoftext|>"].contains(&text);
    let added = tokens.iter().filter(|token| matches!(token.kind, Kind::Control | Kind::Added));
    let added = added.map(|token| {
        json!({"id": token.id, "content": token.text, "single_word": false, "lstrip": false,
            "rstrip": takes_space(token.text), "normalized": false, "special": token.kind == Kind::Control})
    });
    json["added_tokens"] = added.collect();
    Ok(json)
}

/// The chat template, that for conversations with tools if it is another, and the special tokens by the names that templates have for them.
///
/// # Errors
/// A key is of another type, or names a token that is not there.
pub(super) fn templates(metadata: &Metadata<'_>) -> Result<Templates, ModelError> {
    let text = |key| -> Result<_, ModelError> { Ok(metadata.text(key)?.map(str::to_owned)) };
    let mut marks = Map::new();
    let tokens = metadata.texts(TOKENS)?.unwrap_or_default();
    for (name, key) in [("bos_token", BEGINNING), ("eos_token", END), ("unk_token", UNKNOWN)] {
        let Some(id) = metadata.size(key, u32::MAX.into())? else { continue };
        let token = tokens.get(id as usize).ok_or_else(|| no_such_token(metadata, key, id, tokens.len()))?;
        marks.insert(name.to_owned(), (*token).into());
    }
    Ok(Templates { plain: text(TEMPLATE)?, with_tools: text(WITH_TOOLS)?, marks })
}

/// What a file has of chats.
pub(super) struct Templates {
    pub(super) plain: Option<String>,
    pub(super) with_tools: Option<String>,
    pub(super) marks: Map<String, Value>,
}

const ARCHITECTURE: &str = "general.architecture";
const BEGINNING: &str = "tokenizer.ggml.bos_token_id";
const END: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

fn no_such_token(metadata: &Metadata<'_>, key: &str, id: u64, tokens: usize) -> ModelError {
    metadata.error(key, format!("is {id}, and there are {tokens} tokens"))
}

/// The vocabulary: each text once.
fn tokens<'a>(metadata: &Metadata<'a>) -> Result<Vec<Token<'a>>, ModelError> {
    let texts = metadata.texts(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS))?;
    let types = metadata.integers(TYPES)?.unwrap_or_else(|| vec![1; texts.len()]);
    if types.len() != texts.len() {
        let problem = format!("has {} entries, and there are {} tokens", types.len(), texts.len());
        return Err(metadata.error(TYPES, problem));
    }
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut tokens = Vec::new();
    for (id, (text, kind)) in texts.into_iter().zip(types).enumerate() {
        let kind = match kind {
            // Bytes have names, which the rest is made of.
            1 | 6 => Kind::Text,
            2 | 3 => Kind::Control,
            4 => Kind::Added,
            5 => Kind::Unused,
            other => {
                return Err(metadata.error(TYPES, format!("has {other} at place {id}: 1 to 6 are known")));
            }
        };
        if kind == Kind::Unused || text.is_empty() {
            continue;
        }
        if let Some(before) = known.insert(text, id) {
            let problem = format!("has {text:?} twice, at places {before} and {id}: the file is damaged");
            return Err(metadata.error(TOKENS, problem));
        }
        tokens.push(Token { id, text, kind });
    }
    Ok(tokens)
}

/// A BPE of bytes that are written as letters.
fn byte_level(metadata: &Metadata<'_>, tokens: &[Token<'_>]) -> Result<Value, ModelError> {
    let name = metadata.text(PRE)?.unwrap_or("default");
    let Some(rule) = RULES.iter().find(|rule| rule.names.contains(&name)) else {
        let known: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
        let problem = format!(
            "is {name:?}; {} are read: give the model as a folder with tokenizer.json",
            known.join(", ")
        );
        return Err(metadata.error(PRE, problem));
    };
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.missing(MERGES))?;
    let known: HashMap<&str, usize> = tokens.iter().map(|token| (token.text, token.id)).collect();
    let pair = |(place, merge): (usize, &&'_ str)| {
        // The halves have no spaces: bytes are written as letters.
        let halves = merge.split_once(' ').filter(|(left, right)| {
            [*left, *right, &format!("{left}{right}")].iter().all(|part| known.contains_key(part))
        });
        halves.map(|(left, right)| json!([left, right])).ok_or_else(|| {
            let problem =
                format!("has {merge:?} at place {place}, which is not of two tokens that make a third");
            metadata.error(MERGES, problem)
        })
    };
    let merges = merges.iter().enumerate().map(pair).collect::<Result<Vec<Value>, ModelError>>()?;
    let split = |words: &&str| json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false});
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": rule.as_gpt2,
    });
    let steps: Vec<Value> = rule.words.iter().map(split).chain([byte_level]).collect();
    Ok(json!({
        "version": "1.0",
        "normalizer": rule.normalises.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": around(metadata, tokens, rule.begins)?,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary(tokens), "merges": merges, "ignore_merges": rule.ignores_merges},
    }))
}

/// A BPE of pieces whose scores say which are made first; what has no piece is written in bytes.
fn sentence_piece(metadata: &Metadata<'_>, tokens: &[Token<'_>]) -> Result<Value, ModelError> {
    let scores = metadata.numbers(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
    if let Some(last) = tokens.last().filter(|last| last.id >= scores.len()) {
        let problem = format!("has {} entries, and token {} is there", scores.len(), last.id);
        return Err(metadata.error(SCORES, problem));
    }
    let pieces = || tokens.iter().filter(|token| token.kind == Kind::Text);
    if let Some(long) = pieces().find(|token| token.text.len() > LONGEST_PIECE) {
        let problem =
            format!("has {} bytes at place {}, {LONGEST_PIECE} at most are read", long.text.len(), long.id);
        return Err(metadata.error(TOKENS, problem));
    }
    let known: HashMap<&str, usize> = pieces().map(|token| (token.text, token.id)).collect();
    let mut merges: Vec<(f64, &str, &str)> = Vec::new();
    for token in pieces() {
        let cuts = token.text.char_indices().skip(1).map(|(at, _)| token.text.split_at(at));
        let halves =
            cuts.filter_map(|(left, right)| Some((*known.get(left)?, *known.get(right)?, left, right)));
        let mut halves: Vec<_> = halves.collect();
        halves.sort_unstable();
        merges.extend(halves.into_iter().map(|(.., left, right)| (scores[token.id], left, right)));
    }
    // The best first; among equals, as SentencePiece's converters in transformers have them, the longer left half.
    let length = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let longer = (length(b.1), length(b.2)).cmp(&(length(a.1), length(a.2)));
        b.0.total_cmp(&a.0).then(longer)
    });
    let merges: Vec<[&str; 2]> = merges.into_iter().map(|(_, left, right)| [left, right]).collect();
    let prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut json = json!({
        "version": "1.0",
        "post_processor": around(metadata, tokens, true)?,
        "model": {"type": "BPE", "vocab": vocabulary(tokens), "merges": merges},
    });
    metaspace(&mut json, prefix, false);
    Ok(json)
}

fn vocabulary(tokens: &[Token<'_>]) -> Value {
    tokens.iter().map(|token| (token.text.to_owned(), token.id.into())).collect::<Map<String, Value>>().into()
}

/// The marks that stand around a text.
fn around(metadata: &Metadata<'_>, tokens: &[Token<'_>], begins: bool) -> Result<Value, ModelError> {
    let mark = |flag: &str, id: &str, default: bool| {
        if !metadata.flag(flag)?.unwrap_or(default) {
            return Ok(None);
        }
        let Some(number) = metadata.size(id, u32::MAX.into())? else { return Ok(None) };
        let token = tokens.iter().find(|token| token.id as u64 == number);
        token.map(Some).ok_or_else(|| no_such_token(metadata, id, number, tokens.len()))
    };
    let before = mark("tokenizer.ggml.add_bos_token", BEGINNING, begins)?;
    let after = mark("tokenizer.ggml.add_eos_token", END, false)?;
    if before.is_none() && after.is_none() {
        return Ok(Value::Null);
    }
    let one = |token: Option<&Token<'_>>, of: usize| {
        token.map(|token| json!({"SpecialToken": {"id": token.text, "type_id": of}}))
    };
    let text = |id: &str, of: usize| {
        let text = json!({"Sequence": {"id": id, "type_id": of}});
        [one(before, of), Some(text), one(after, of)].into_iter().flatten().collect::<Vec<Value>>()
    };
    let marks: Map<String, Value> = [before, after]
        .into_iter()
        .flatten()
        .map(|token| {
            let own = json!({"id": token.text, "ids": [token.id], "tokens": [token.text]});
            (token.text.to_owned(), own)
        })
        .collect();
    let pair = [text("A", 0), text("B", 1)].concat();
    Ok(json!({"type": "TemplateProcessing", "single": text("A", 0), "pair": pair, "special_tokens": marks}))
}
