//! Tokenizers, streams and chat templates against the golden files, and the bad input around them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{ModelConfig, ModelError};

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
    for part in ["tokenizer.json", "330", "vocab_size", "131"] {
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
fn chat_templates_render_as_in_transformers() {
    for name in ["chatml", "headers", "alternating", "python"] {
        let folder = format!("chat/{name}");
        let template = ChatTemplate::load(&golden(&folder)).unwrap();
        for case in expected(&folder) {
            let prompt = case["add_generation_prompt"].as_bool().unwrap();
            let rendered = template.render(&case["messages"], prompt);
            match case["text"].as_str() {
                Some(text) => assert_eq!(rendered.unwrap(), text, "{name}: {}", case["messages"]),
                None => {
                    let message = rendered.unwrap_err().to_string();
                    assert!(message.contains("tokenizer_config.json"), "{message}");
                    assert!(message.ends_with(case["error"].as_str().unwrap()), "{message}");
                }
            }
        }
    }
}

/// A model directory with these files; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, files: &[(&str, &str)]) -> Folder {
        let dir = std::env::temp_dir().join(format!("faser-models-chat-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (file, content) in files {
            fs::write(dir.join(file), content).unwrap();
        }
        Folder(dir)
    }

    fn render(&self) -> Result<String, ModelError> {
        ChatTemplate::load(&self.0)?.render(&json!([{"role": "user", "content": "hi"}]), false)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_template_is_found_in_each_of_its_places() {
    let list =
        r#"{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "list"}]}"#;
    assert_eq!(Folder::with("list", &[("tokenizer_config.json", list)]).render().unwrap(), "list");
    let both = [("tokenizer_config.json", list), ("chat_template.jinja", "file {{ messages[0].content }}")];
    assert_eq!(Folder::with("file", &both).render().unwrap(), "file hi");
    let day = Folder::with("day", &[("chat_template.jinja", "{{ strftime_now('%Y') | int > 2000 }}")]);
    assert_eq!(day.render().unwrap().to_lowercase(), "true");
}

#[test]
fn no_template_says_what_to_do() {
    for files in [&[][..], &[("tokenizer_config.json", r#"{"bos_token": null}"#)][..]] {
        let message = Folder::with("none", files).render().unwrap_err().to_string();
        assert!(message.contains("chat_template.jinja") && message.contains("/v1/completions"), "{message}");
    }
}

#[test]
fn a_wrong_template_names_its_file() {
    let syntax = Folder::with("syntax", &[("chat_template.jinja", "{% for %}")]);
    assert!(syntax.render().unwrap_err().to_string().contains("chat_template.jinja"));
    let kind = Folder::with("kind", &[("tokenizer_config.json", r#"{"chat_template": 3}"#)]);
    assert!(kind.render().unwrap_err().to_string().contains("`chat_template`"));
    let token =
        Folder::with("token", &[("tokenizer_config.json", r#"{"bos_token": 3, "chat_template": ""}"#)]);
    assert!(token.render().unwrap_err().to_string().contains("`bos_token`"));
}

#[test]
fn templates_that_take_or_write_too_much_are_stopped() {
    let render = |source: &str| {
        let template = ChatTemplate::of("bomb".into(), source.to_owned(), Default::default())?;
        template.render(&json!([{"role": "user", "content": "hi"}]), false)
    };
    let many = "{% for a in range(9999) %}";
    let far = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    for (source, part) in [
        (far, "too many steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        (&format!("{many}{{{{ 'x' * 1000 }}}}{{% endfor %}}"), "writes more than"),
        ("{{ 'x' * 100000000 }}", "writes more than"),
        ("{{ 'x' * 9999999999 }}", "too large"),
        ("{{ 'a\nb' | indent(18446744073709551615) }}", "too much"),
        ("{{ 'a\nb' | indent(width=99999999999) }}", "too much"),
        ("{{ [1] | batch(99999999999) | list }}", "too much"),
        ("{{ [1] | slice(99999999999) | list }}", "too much"),
        ("{{ '%99999999999d' | format(1) }}", "no number above"),
        ("{{ '%.99999999999f' | format(1) }}", "no number above"),
        ("{{ '%*d' | format(99999999, 1) }}", "no number above"),
        ("{{ '{:>99999999999}'.format('x') }}", "no number above"),
        ("{{ messages | tojson(indent=99999999999) }}{{ range(99999999999) }}", "too many elements"),
        ("{% include 'other' %}", "other"),
        ("{{ debug() }}", "debug"),
        (&"{% if x %}".repeat(5000), "template"),
        (&"(".repeat(200_000), ""),
        (&format!("{{{{ {} }}}}", "(".repeat(200_000)), ""),
    ] {
        if let Ok(text) = render(source) {
            assert!(part.is_empty() && text.len() <= 200_000, "{source:.80}: {} bytes", text.len());
            continue;
        }
        let message = render(source).unwrap_err().to_string();
        assert!(message.contains(part), "{source:.80}: {message:.300}");
    }
    let long = ChatTemplate::of("long".into(), "x".repeat(2 << 20), Default::default());
    assert!(long.unwrap_err().to_string().contains("longer than"));
}

#[test]
fn files_that_the_libraries_panic_over_are_refused() {
    let file = fs::read_to_string(golden("tokenizer-sentencepiece").join("tokenizer.json")).unwrap();
    let broken = file.replacen("ByteFallback", "\\ud800", 1);
    assert_ne!(broken, file);
    assert!(Tokenizer::from_json(broken.as_bytes(), Path::new("x.json")).is_err());
    // In builds that look for overflows it panics, in others there is nothing to show.
    let template =
        ChatTemplate::of("x".into(), "{{ messages[:4:-1] | list | length }}".to_owned(), Default::default());
    let one = json!([{"role": "user", "content": "a"}]);
    match template.unwrap().render(&one, false) {
        Ok(text) => assert_eq!(text, "0"),
        Err(err) => assert!(err.to_string().contains("cannot be used"), "{err}"),
    }
}

#[test]
fn what_templates_do_every_day_is_within_the_bounds() {
    let source = "{% for message in messages %}{{ message.content | indent(4) }}{{ '%5.1f' | format(1.5) }}\
                  {{ '{:>4}'.format('x') }}{% for row in [1, 2, 3] | batch(2) %}{{ row | length }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::of("day".into(), source.to_owned(), Default::default()).unwrap();
    let one = json!([{"role": "user", "content": "a\nb"}]);
    assert_eq!(template.render(&one, false).unwrap(), "a\n    b  1.5   x21");
    let many: Vec<Value> =
        (0..4096).map(|_| json!({"role": "user", "content": "\u{1}".repeat(900)})).collect();
    let json = ChatTemplate::of("json".into(), "{{ messages | tojson }}".to_owned(), Default::default());
    assert!(json.unwrap().render(&Value::from(many.clone()), true).is_ok());
    assert!(template.render(&Value::from(many), true).is_ok());
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
