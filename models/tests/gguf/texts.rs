//! Tokenizers and chat templates of GGUF files: those of tests/golden, written as llama.cpp's converter writes them, give the ids that
//! `AutoTokenizer` of transformers does.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use faser_models::{
    CallFormat, ChatTemplate, Conversation, Detokenizer, GenerationDefaults, ModelConfig, ModelError,
    Tokenizer,
};
use serde_json::{Value, json};

use crate::session::golden;
use crate::writer::{Folder, Writer};

const CONTROL: i32 = 3;
const ADDED: i32 = 4;
const UNUSED: i32 = 5;

fn read(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The metadata of a tokenizer of tests/golden; `pre` is the name of its rule, and none of SentencePiece's.
fn written(case: &str, pre: Option<&str>) -> Writer {
    let tokenizer = read(golden(case).join("tokenizer.json"));
    let mut vocab: Vec<(String, usize, i32)> = Vec::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        let kind = if token.starts_with("<0x") { 6 } else { 1 };
        vocab.push((token.clone(), id.as_u64().unwrap() as usize, kind));
    }
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let (text, id) = (token["content"].as_str().unwrap(), token["id"].as_u64().unwrap() as usize);
        let kind = if token["special"] == true { CONTROL } else { ADDED };
        vocab.retain(|(known, ..)| known != text);
        vocab.push((text.to_owned(), id, kind));
    }
    let rows = vocab.iter().map(|(_, id, _)| id + 1).max().unwrap();
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; rows];
    for (text, id, kind) in &vocab {
        tokens[*id] = text.clone();
        types[*id] = *kind;
    }
    let merges: Vec<[String; 2]> = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| match merge.as_str() {
            Some(text) => text.split_once(' ').map(|(a, b)| [a.to_owned(), b.to_owned()]).unwrap(),
            None => [0, 1].map(|half| merge[half].as_str().unwrap().to_owned()),
        })
        .collect();
    let mut writer = Writer::new("llama");
    writer.texts("tokenizer.ggml.tokens", &tokens);
    writer.integers("tokenizer.ggml.token_type", &types);
    if let Some(pre) = pre {
        writer.text("tokenizer.ggml.model", "gpt2");
        writer.text("tokenizer.ggml.pre", pre);
        let merges: Vec<String> = merges.iter().map(|pair| pair.join(" ")).collect();
        writer.texts("tokenizer.ggml.merges", &merges);
    } else {
        writer.text("tokenizer.ggml.model", "llama");
        // A piece is as good as the first of its merges is early.
        let mut scores: HashMap<String, f32> = HashMap::new();
        for (rank, pair) in merges.iter().enumerate() {
            scores.entry(pair.concat()).or_insert(-(rank as f32));
        }
        let scores: Vec<f32> =
            tokens.iter().map(|token| scores.get(token).copied().unwrap_or(-1e6)).collect();
        writer.numbers("tokenizer.ggml.scores", &scores);
    }
    // What the tokenizer puts in front of a text.
    let first = read(golden(case).join("expected.json"))[0].clone();
    let ids = |key: &str| first[key].as_array().unwrap().len();
    writer.flag("tokenizer.ggml.add_bos_token", ids("ids") > ids("plain"));
    if ids("ids") > ids("plain") {
        writer.whole("tokenizer.ggml.bos_token_id", first["ids"][0].as_u64().unwrap() as u32);
    }
    writer
}

fn config(vocab: usize) -> ModelConfig {
    ModelConfig { vocab, stored_vocab: vocab, ..ModelConfig::load(&golden("llama")).unwrap() }
}

fn load(folder: &Folder, writer: &Writer) -> Result<Tokenizer, ModelError> {
    Tokenizer::load(&folder.file("tokenizer.gguf", &writer.bytes()), &config(600))
}

fn ids_and_texts_are_those_of_transformers(case: &str, tokenizer: &Arc<Tokenizer>) -> usize {
    let cases = read(golden(case).join("expected.json"));
    for expected in cases.as_array().unwrap() {
        let ids = |key: &str| -> Vec<u32> {
            expected[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let text = expected["text"].as_str().unwrap();
        let all = ids("ids");
        assert_eq!(tokenizer.encode(text, true).unwrap(), all, "{case}: {text:?}");
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids("plain"), "{case}: {text:?}");
        let whole = tokenizer.decode(&all);
        assert_eq!(whole, expected["decoded"].as_str().unwrap(), "{case}: {text:?}");
        let mut stream = Detokenizer::new(Arc::clone(tokenizer));
        let mut shown: String = all.iter().filter_map(|id| stream.push(*id)).collect();
        shown.push_str(&stream.finish());
        assert_eq!(shown, whole);
    }
    cases.as_array().unwrap().len()
}

#[test]
fn tokenizers_are_those_of_the_checkpoints() {
    let folder = Folder::new("tokenizers");
    let mut texts = 0;
    for (case, pre) in [
        ("tokenizers/llama-3", Some("llama-bpe")),
        ("tokenizers/qwen", Some("qwen2")),
        ("tokenizers/byte-level", Some("gpt-2")),
        ("tokenizers/sentencepiece", None),
    ] {
        let tokenizer = Arc::new(load(&folder, &written(case, pre)).unwrap());
        texts += ids_and_texts_are_those_of_transformers(case, &tokenizer);
    }
    assert!(texts > 50, "{texts}");
}

/// `rstrip` of the marks in Phi-3's folders, for which a GGUF file has no key.
#[test]
fn white_space_behind_marks_is_part_of_them_in_phi_3() {
    let folder = Folder::new("marks");
    let ids = |architecture: &str, text: &str| {
        let mut writer = written("tokenizers/sentencepiece", None);
        writer.text("general.architecture", architecture);
        load(&folder, &writer).unwrap().encode(text, false).unwrap()
    };
    for (architecture, mark, stripped) in
        [("phi3", "</s>", true), ("phi3", "<s>", false), ("llama", "</s>", false)]
    {
        let with = ids(architecture, &format!("a{mark}\n\nb"));
        assert_eq!(
            with == ids(architecture, &format!("a{mark}b")),
            stripped,
            "{architecture} {mark}: {with:?}"
        );
    }
}

#[test]
fn every_rule_splits_as_its_name_says() {
    let folder = Folder::new("rules");
    // Numbers tell the rules apart: the vocabulary has every byte, and no merges across digits but one.
    for (pre, pieces) in [
        ("llama-bpe", &["a", "123", "4", " b"][..]),
        ("dbrx", &["a", "123", "4", " b"]),
        ("glm4", &["a", "123", "4", " b"]),
        ("qwen2", &["a", "1", "2", "3", "4", " b"]),
        ("gpt-2", &["a", "1234", " b"]),
        ("smollm", &["a", "1", "2", "3", "4", " b"]),
        ("tekken", &["a", "1", "2", "3", "4", " b"]),
        ("default", &["a", "123", "4", " b"]),
    ] {
        let mut writer = written("tokenizers/byte-level", Some(pre));
        let (mut tokens, mut merges) = (Vec::new(), Vec::new());
        for word in ["a", "1", "2", "3", "4", "Ġ", "b", "12", "34", "123", "1234", "Ġb"] {
            tokens.push(word);
        }
        for merge in ["1 2", "3 4", "12 3", "12 34", "Ġ b"] {
            merges.push(merge);
        }
        writer.texts("tokenizer.ggml.tokens", &tokens);
        writer.texts("tokenizer.ggml.merges", &merges);
        writer.remove("tokenizer.ggml.token_type");
        writer.flag("tokenizer.ggml.add_bos_token", false);
        let tokenizer = load(&folder, &writer).unwrap();
        let ids = tokenizer.encode("a1234 b", false).unwrap();
        let found: Vec<String> = ids.iter().map(|id| tokenizer.decode(&[*id])).collect();
        assert_eq!(found, pieces, "{pre}");
    }
}

#[test]
fn marks_stand_where_the_file_says() {
    let folder = Folder::new("marks");
    let mut writer = written("tokenizers/sentencepiece", None);
    writer.whole("tokenizer.ggml.eos_token_id", 2);
    let ids = |writer: &Writer| load(&folder, writer).unwrap().encode("x", true).unwrap();
    let plain = load(&folder, &writer).unwrap().encode("x", false).unwrap();
    writer.remove("tokenizer.ggml.add_bos_token");
    assert_eq!(ids(&writer), [&[1], plain.as_slice()].concat(), "SentencePiece's begin so");
    writer.flag("tokenizer.ggml.add_eos_token", true);
    assert_eq!(ids(&writer), [&[1], plain.as_slice(), &[2]].concat());
    writer.flag("tokenizer.ggml.add_bos_token", false);
    writer.flag("tokenizer.ggml.add_eos_token", false);
    assert_eq!(ids(&writer), plain);
    writer.flag("tokenizer.ggml.add_space_prefix", false);
    assert_ne!(ids(&writer), plain, "no space in front");
}

#[test]
fn tokenizers_that_are_not_read_say_what_to_do() {
    let folder = Folder::new("refused");
    let bytes = || written("tokenizers/byte-level", Some("gpt-2"));
    let pieces = || written("tokenizers/sentencepiece", None);
    let changed = |mut writer: Writer, change: &dyn Fn(&mut Writer)| {
        change(&mut writer);
        writer
    };
    for (writer, parts) in [
        (
            changed(bytes(), &|w| w.text("tokenizer.ggml.pre", "viking")),
            &["`tokenizer.ggml.pre` is \"viking\"", "llama-bpe", "tokenizer.json"][..],
        ),
        (
            changed(bytes(), &|w| w.text("tokenizer.ggml.model", "t5")),
            &["`tokenizer.ggml.model` is \"t5\"; gpt2 and llama"],
        ),
        (changed(bytes(), &|w| w.remove("tokenizer.ggml.model")), &["tokenizer.ggml.model", "missing"]),
        (changed(bytes(), &|w| w.remove("tokenizer.ggml.tokens")), &["tokenizer.ggml.tokens", "missing"]),
        (changed(bytes(), &|w| w.remove("tokenizer.ggml.merges")), &["tokenizer.ggml.merges", "missing"]),
        (
            changed(bytes(), &|w| w.texts("tokenizer.ggml.merges", &["a", "b c"])),
            &["`tokenizer.ggml.merges` has \"a\" at place 0"],
        ),
        (
            changed(bytes(), &|w| w.numbers("tokenizer.ggml.merges", &[1.0])),
            &["`tokenizer.ggml.merges` has 1 at place 0, a list of texts"],
        ),
        (
            changed(bytes(), &|w| w.integers("tokenizer.ggml.token_type", &[1])),
            &["`tokenizer.ggml.token_type` has 1 entries"],
        ),
        (
            changed(bytes(), &|w| {
                w.texts("tokenizer.ggml.tokens", &["a", "a"]);
                w.remove("tokenizer.ggml.token_type");
            }),
            &["`tokenizer.ggml.tokens` has \"a\" twice, at places 0 and 1"],
        ),
        (changed(pieces(), &|w| w.remove("tokenizer.ggml.scores")), &["tokenizer.ggml.scores", "missing"]),
        (
            changed(pieces(), &|w| w.numbers("tokenizer.ggml.scores", &[0.0])),
            &["`tokenizer.ggml.scores` has 1 entries"],
        ),
        (
            changed(pieces(), &|w| {
                w.texts("tokenizer.ggml.tokens", &["a".repeat(5000)]);
                w.remove("tokenizer.ggml.token_type");
            }),
            &["has 5000 bytes at place 0, 4096 at most"],
        ),
        (
            changed(pieces(), &|w| w.whole("tokenizer.ggml.bos_token_id", 9999)),
            &["`tokenizer.ggml.bos_token_id` is 9999"],
        ),
    ] {
        let said = load(&folder, &writer).unwrap_err().to_string();
        for part in parts {
            assert!(said.contains(part) && said.contains("tokenizer.gguf"), "{part}: {said}");
        }
        assert!(!said.contains('\n'), "{said}");
    }
    let path = folder.file("tokenizer.gguf", &bytes().bytes());
    let said = Tokenizer::load(&path, &config(100)).unwrap_err().to_string();
    assert!(said.contains("`vocab_size` is 100"), "{said}");
}

#[test]
fn chats_are_rendered_by_the_template_in_the_file() {
    let folder = Folder::new("chats");
    let mut writer = written("tokenizers/sentencepiece", None);
    let at = |writer: &Writer| folder.file("chat.gguf", &writer.bytes());
    let none = ChatTemplate::load(&at(&writer)).unwrap_err();
    assert!(matches!(none, ModelError::NoChatTemplate { .. }), "{none}");
    assert_eq!(CallFormat::of_model(&at(&writer)).unwrap(), None);
    writer.whole("tokenizer.ggml.eos_token_id", 2);
    writer.text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    writer.text(
        "tokenizer.chat_template.tool_use",
        "<tool_call>{{ tools[0].arguments }}{{ messages[0].content }}",
    );
    let template = ChatTemplate::load(&at(&writer)).unwrap();
    let chat = Conversation::of(json!([{"role": "user", "content": "hi"}]));
    assert_eq!(template.render(&chat).unwrap(), "<s>hi</s>");
    let tools = Conversation { tools: Some(json!([{"arguments": "y"}])), ..chat };
    assert_eq!(template.render(&tools).unwrap(), "<tool_call>yhi");
    assert_eq!(CallFormat::of_model(&at(&writer)).unwrap(), Some(CallFormat::Hermes));
    writer.text("tokenizer.chat_template", "{{");
    assert!(ChatTemplate::load(&at(&writer)).unwrap_err().to_string().contains("chat.gguf"));
}

#[test]
fn what_authors_say_of_sampling_is_read() {
    let folder = Folder::new("sampling");
    let mut writer = written("tokenizers/sentencepiece", None);
    let read = |writer: &Writer| GenerationDefaults::load(&folder.file("sampling.gguf", &writer.bytes()));
    assert_eq!(read(&writer).unwrap(), GenerationDefaults::NOTHING);
    writer.number("general.sampling.temp", 0.6);
    writer.number("general.sampling.top_p", 0.95);
    writer.integers("general.sampling.sequence", &[1]);
    writer.set("general.sampling.top_k", 5, &20_i32.to_le_bytes());
    assert_eq!(read(&writer).unwrap().to_string(), "temperature 0.6, top_p 0.95, top_k 20");
    writer.number("general.sampling.top_p", 3.0);
    assert!(read(&writer).unwrap_err().to_string().contains("`top_p` is 3"));
}
