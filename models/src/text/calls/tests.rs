//! Calls in texts: what parsers read of them, in pieces of any division, and that grammars allow what parsers understand.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::text::grammar::tests::Both;
use crate::{Detokenizer, Grammar, GrammarSource};

const END: u32 = 255;

/// Content, and calls as name and arguments.
type Read = (String, Vec<(String, String)>);

fn read<'p>(format: CallFormat, pieces: impl IntoIterator<Item = &'p str>) -> Read {
    let mut parser = CallParser::new(format);
    let mut events: Vec<CallEvent> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut content, mut calls): Read = Default::default();
    for event in events {
        match event {
            CallEvent::Content(text) => content.push_str(&text),
            CallEvent::Call { name } => calls.push((name, String::new())),
            CallEvent::Arguments(text) => calls.last_mut().unwrap().1.push_str(&text),
        }
    }
    assert_eq!(parser.calls(), calls.len());
    (content, calls)
}

/// A text, its content, and its calls.
type Example = (CallFormat, &'static str, &'static str, &'static [(&'static str, &'static str)]);

fn examples() -> Vec<Example> {
    use CallFormat::{Hermes, Json, Llama3};
    const ONE: &[(&str, &str)] = &[("f", "{}")];
    const AB: &[(&str, &str)] = &[("f", "{\"a\": \"}\\\"{\"}"), ("g.h", "{ }")];
    vec![
        (Hermes, "plain < text <tool>\n", "plain < text <tool>\n", &[]),
        (Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "", ONE),
        (
            Hermes,
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
            "I look.\n",
            ONE,
        ),
        (Hermes, " \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>bye <", "bye <", ONE),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g.h\", \"arguments\": { }}\n</tool_call>",
            "",
            AB,
        ),
        // Another order, no closing tag, no last bracket.
        (Hermes, "<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>", "", ONE),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", ONE),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>é", "é", ONE),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool", "", ONE),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"<",
            "",
            &[("f", "{\"a\": [1, \"<")],
        ),
        // What is no call, or not yet one, is content.
        (Hermes, "<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu", &[]),
        (Hermes, "<tool_call>{\"name\": \"\"}</tool_call>", "<tool_call>{\"name\": \"\"}</tool_call>", &[]),
        (Hermes, "<tool_call> [1]</tool_call>", "<tool_call> [1]</tool_call>", &[]),
        (
            Hermes,
            "<tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
            "<tool_call>",
            ONE,
        ),
        (Hermes, "<<tool_call>{\"name\": \"f\", \"arguments\": {}}", "<", ONE),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": 1}", ", \"id\": 1}", ONE),
        (Hermes, "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}", &[]),
        (Llama3, "{\"name\": \"f\", \"parameters\": {}}", "", ONE),
        (Llama3, "\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}} ", "", ONE),
        (Llama3, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "", ONE),
        (
            Llama3,
            "{\"name\": \"f\", \"parameters\": {\"a\": \"}\\\"{\"}}; {\"name\": \"g.h\", \"arguments\": { }}",
            "",
            AB,
        ),
        (Llama3, "{\"city\": {\"name\": \"Bonn\"}} is JSON", "{\"city\": {\"name\": \"Bonn\"}} is JSON", &[]),
        (
            Llama3,
            "Say {\"name\": \"f\", \"parameters\": {}}",
            "Say {\"name\": \"f\", \"parameters\": {}}",
            &[],
        ),
        (Llama3, "Say <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "Say ", ONE),
        (Llama3, "<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]),
        (Llama3, "{\"name\": \"f\", \"parameters\": {}}; and", "; and", ONE),
        (Llama3, "", "", &[]),
        (Json, "{\"name\": \"f\", \"arguments\": {}}", "", ONE),
        (
            Json,
            "\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n{\"name\": \"g.h\", \"arguments\": { }}\n",
            "",
            AB,
        ),
        (Json, "{\"name\": \"f\", \"arguments\": {}} {so on}", " {so on}", ONE),
        (Json, "{\"name\": \"f\", \"parameters\": {}}", "{\"name\": \"f\", \"parameters\": {}}", &[]),
        (Json, "Say {\"name\": \"f\", \"arguments\": {}}", "Say {\"name\": \"f\", \"arguments\": {}}", &[]),
        (Json, " \n", " \n", &[]),
    ]
}

#[test]
fn calls_are_read_and_nothing_else_is_lost_however_the_text_is_divided() {
    for (format, text, content, calls) in examples() {
        let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()));
        let wanted: Read = (content.to_owned(), calls.collect());
        assert_eq!(read(format, [text]), wanted, "{text}");
        let mut buffer = [0; 4];
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for &first in &places {
            for &second in places.iter().filter(|second| **second >= first) {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(read(format, pieces), wanted, "{pieces:?}");
            }
        }
        let mut parser = CallParser::new(format);
        let single: Vec<CallEvent> =
            text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut buffer))).collect();
        // Character by character, what is shown never has to be taken back.
        let shown: String = single
            .iter()
            .filter_map(|event| if let CallEvent::Content(text) = event { Some(text.as_str()) } else { None })
            .collect();
        assert!(content.starts_with(&shown), "{text}: {shown}");
    }
}

#[test]
fn arguments_come_as_they_are_written_and_tags_are_held_back() {
    let mut parser = CallParser::new(CallFormat::Hermes);
    assert_eq!(parser.push("So: <tool"), [CallEvent::Content("So: ".to_owned())]);
    assert_eq!(parser.push("_call>\n{\"name\": \"f\", \"argum"), []);
    let begun = parser.push("ents\": {\"a");
    assert_eq!(begun, [CallEvent::Call { name: "f".to_owned() }, CallEvent::Arguments("{\"a".to_owned())]);
    assert_eq!(parser.push("\": 1"), [CallEvent::Arguments("\": 1".to_owned())]);
    assert_eq!(parser.push("}}\n</tool_call>\n"), [CallEvent::Arguments("}".to_owned())]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn the_format_is_told_by_the_template() {
    for (source, format) in [
        ("{{ '<tool_call>\\n{\\\"name\\\": … \\\"arguments\\\": ' }}", Some(CallFormat::Hermes)),
        ("<tool_call>\n<function={{ tool_call.name }}> {{ tool_call.arguments }}", None),
        ("<tool_call>{{ name }} <arg_key> {{ arguments }}", None),
        ("{{ '<|python_tag|>' }}", Some(CallFormat::Llama3)),
        ("ipython {{ '\"parameters\": ' }}", Some(CallFormat::Llama3)),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
    ] {
        assert_eq!(CallFormat::of_template(source), format, "{source}");
    }
    let folder = std::env::temp_dir().join(format!("faser-calls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    assert_eq!(CallFormat::of_model(&folder).unwrap(), None);
    let named = json!([{"name": "default", "template": "x"}, {"name": "tool_use", "template": "<tool_call> arguments"}]);
    fs::write(folder.join("tokenizer_config.json"), json!({"chat_template": named}).to_string()).unwrap();
    assert_eq!(CallFormat::of_model(&folder).unwrap(), Some(CallFormat::Hermes));
    fs::write(folder.join("chat_template.jinja"), "<|python_tag|>").unwrap();
    assert_eq!(CallFormat::of_model(&folder).unwrap(), Some(CallFormat::Llama3));
    fs::remove_dir_all(&folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3000, ..ProptestConfig::default() })]
    /// Whatever parts of calls come in whatever order: pieces make no difference, and without calls all of it is content.
    #[test]
    fn divisions_make_no_difference(parts in prop::collection::vec(0usize..16, 0..14)) {
        const PARTS: [&str; 16] = [
            "<tool_call>", "</tool_call>", "<|python_tag|>", "{", "}", "[", "{\"name\": \"f\", ", "\"parameters\": {",
            "\"arguments\": {", "{\"name\": \"g\", \"arguments\": {}}", "\n", "; ", "<", "\"", "\\", "é",
        ];
        let parts: Vec<&str> = parts.iter().map(|part| PARTS[*part]).collect();
        let text = parts.concat();
        for format in [CallFormat::Hermes, CallFormat::Llama3, CallFormat::Json] {
            let whole = read(format, [text.as_str()]);
            prop_assert_eq!(&read(format, parts.iter().copied()), &whole);
            let characters: Vec<String> = text.chars().map(String::from).collect();
            prop_assert_eq!(&read(format, characters.iter().map(String::as_str)), &whole);
            prop_assert!(!whole.1.is_empty() || whole.0 == text, "{}: {}", text, whole.0);
        }
    }
}

fn form(format: CallFormat, free: bool, several: bool) -> CallForm {
    let weather = json!({
        "type": "object", "description": "{[(", "required": ["city"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "maxLength": 3, "description": "which"},
            "unit": {"$ref": "#/$defs/unit"},
        },
        "$defs": {"unit": {"enum": ["C", "F"]}},
    });
    let weather = Function { name: "get.weather".to_owned(), parameters: Some(weather) };
    let none = json!({"properties": {}, "additionalProperties": false});
    let now = Function { name: "now".to_owned(), parameters: Some(none) };
    CallForm { format, functions: vec![weather, now], free, several }
}

fn compiled(form: CallForm) -> Grammar {
    let compiler = Both::new(&Tokenizer::synthetic(256).unwrap(), 256, &[END]).unwrap();
    compiler.compile(&GrammarSource::Calls(form)).unwrap()
}

fn accepts(grammar: &Grammar, output: &[u32], end: u32) -> bool {
    let mut matcher = grammar.matcher();
    let all = [output, &[end]].concat();
    (0..all.len()).all(|at| {
        matcher.follow(&all[..at]);
        matcher.allowed().is_some_and(|mask| mask.allows(all[at]))
    })
}

const HERMES: [&str; 3] = [
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"get.weather\", \"arguments\": {\"city\": \"Ulm\", \"unit\": \"C\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"get.weather\", \"arguments\": {\"city\": \"Berlin\"}}\n</tool_call>",
];
const LLAMA: [&str; 3] = [
    "{\"name\": \"now\", \"parameters\": {}}",
    "{\"name\": \"get.weather\", \"parameters\": {\"city\": \"Ulm\"}}",
    "{\"name\": \"get.weather\", \"parameters\": {\"city\": 5}}",
];

const PLAIN: [&str; 3] = [
    "{\"name\": \"now\", \"arguments\": {}}",
    "{\"name\": \"get.weather\", \"arguments\": {\"city\": \"Ulm\"}}",
    "{\"name\": \"get.weather\", \"parameters\": {}}",
];

#[test]
fn grammars_of_calls_take_valid_ones_alone() {
    for (format, [first, second, wrong], between) in [
        (CallFormat::Hermes, HERMES, "\n"),
        (CallFormat::Llama3, LLAMA, "; "),
        (CallFormat::Json, PLAIN, "\n"),
    ] {
        let two = format!("{first}{between}{second}");
        let text = "Some <text>; é";
        let before = format!("{text}\n{first}");
        for (free, several) in [(false, false), (false, true), (true, false), (true, true)] {
            let grammar = compiled(form(format, free, several));
            for (output, good) in [
                (first, true),
                (second, true),
                (two.as_str(), several),
                (text, free),
                ("", free),
                (before.as_str(), free),
                (wrong, false),
                (&second[..second.len() - 1], false),
            ] {
                let ids: Vec<u32> = output.bytes().map(u32::from).collect();
                assert_eq!(accepts(&grammar, &ids, END), good, "{format:?} {free} {several}: {output}");
            }
        }
    }
}

/// Any output that a grammar allows is read as calls that are valid, and as nothing else where it has to be calls.
#[test]
fn what_grammars_allow_is_understood() {
    for format in [CallFormat::Hermes, CallFormat::Llama3, CallFormat::Json] {
        for (free, seeds) in [(false, 12), (true, 12)] {
            let grammar = compiled(form(format, free, true));
            let mut calls = 0;
            for seed in 1..=seeds {
                let (mut output, mut random) = (Vec::new(), seed as u64 * 0x9e37_79b9);
                let mut matcher = grammar.matcher();
                // A call to begin with: by chance alone no text would ever have one.
                if free && format == CallFormat::Hermes {
                    output.extend("So <t\n<tool_call>\n{\"name\": \"".bytes().map(u32::from));
                }
                while output.last() != Some(&END) && output.len() < 400 {
                    matcher.follow(&output);
                    let mask = matcher.allowed().unwrap();
                    let likely = [u32::from(b'"'), u32::from(b'}'), END];
                    let allowed: Vec<u32> = (0..256).filter(|id| mask.allows(*id)).collect();
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (random >> 33) as usize;
                    let late = output.len() > 200;
                    let preferred = likely
                        .into_iter()
                        .find(|id| allowed.contains(id) && (at.is_multiple_of(3) || (late && *id == END)));
                    output.push(preferred.unwrap_or(allowed[at % allowed.len()]));
                }
                assert_eq!(output.pop(), Some(END), "{}", bytes(&output));
                let text = bytes(&output);
                let (content, found) = read(format, [text.as_str()]);
                assert!(free || (content.is_empty() && !found.is_empty()), "{text}: {content}");
                calls += found.len();
                for (name, arguments) in found {
                    let arguments: Value = serde_json::from_str(&arguments).unwrap();
                    let city = arguments.get("city").and_then(Value::as_str);
                    assert!(if name == "now" { arguments == json!({}) } else { city.is_some() }, "{text}");
                }
            }
            assert!(calls >= seeds || (free && format != CallFormat::Hermes), "{calls}");
        }
    }
}

fn bytes(ids: &[u32]) -> String {
    String::from_utf8_lossy(&ids.iter().map(|id| *id as u8).collect::<Vec<u8>>()).into_owned()
}

/// The tokenizer of the golden files with the tags as tokens.
fn tagged(folder: &str, special: bool) -> Arc<Tokenizer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder).join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (id, tag) in [(400, "<tool_call>"), (401, "</tool_call>")] {
        json["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": id, "content": tag, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        }));
    }
    Arc::new(Tokenizer::from_json(json.to_string().as_bytes(), &path).unwrap())
}

#[test]
fn tags_that_are_tokens_are_shown_to_the_parser_and_demanded_by_grammars() {
    let [bytes, pieces] = ["tokenizer-byte-level", "tokenizer-sentencepiece"];
    for (folder, special) in [(bytes, true), (bytes, false), (pieces, true), (pieces, false)] {
        let tokenizer = tagged(folder, special);
        let end = tokenizer.token_id("</s>").unwrap();
        let marks = CallFormat::Hermes.marks(&tokenizer);
        let opening = tokenizer.token_id("<tool_call>").unwrap();
        assert_eq!(marks.contains(&opening), special);
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer)).showing(marks);
        let ids = tokenizer.encode(HERMES[1], false).unwrap();
        assert_eq!(ids[0], opening);
        let mut text: String = ids.iter().filter_map(|id| detokenizer.push(*id)).collect();
        text.push_str(&detokenizer.finish());
        assert_eq!(read(CallFormat::Hermes, [text.as_str()]), read(CallFormat::Hermes, [HERMES[1]]));
        if folder == pieces {
            // It writes a space behind a tag, which models and grammars do not.
            continue;
        }
        assert_eq!(text, HERMES[1]);

        let compiler = Both::new(&tokenizer, 410, &[end]).unwrap();
        let spelled: Vec<u32> = "<tool_call>"
            .chars()
            .flat_map(|c| tokenizer.encode(&c.to_string(), false).unwrap())
            .chain(ids[1..].iter().copied())
            .collect();
        for (free, before) in [(false, ""), (true, "Well <to\n")] {
            let source = GrammarSource::Calls(form(CallFormat::Hermes, free, true));
            let grammar = compiler.compile(&source).unwrap();
            let before = tokenizer.encode(before, false).unwrap();
            assert!(accepts(&grammar, &[&before, &ids[..]].concat(), end), "{special} {free}");
            assert!(!accepts(&grammar, &[&before, &spelled[..]].concat(), end), "{special} {free}");
            // The same whatever was followed before.
            let mut matcher = grammar.matcher();
            matcher.follow(&ids);
            matcher.follow(&ids[..1]);
            let mut fresh = grammar.matcher();
            fresh.follow(&ids[..1]);
            let words = |mask: Option<crate::TokenMask>| mask.map(|mask| mask.words().to_vec());
            assert_eq!(words(matcher.allowed()), words(fresh.allowed()));
        }
    }
}
