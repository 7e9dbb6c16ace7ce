//! gpt-oss's channels: a small model of its family, with a tokenizer of single characters and Harmony's marks. Grammars have it write messages.

use super::scoring::folder;
use super::tools::{said, tool};
use super::*;

const CHATS: &str = "/v1/chat/completions";
const MARKS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"];
/// Of the first mark.
const FIRST: u32 = 100;
/// It knows Harmony: channels analysis and final, and calls of functions.
const TEMPLATE: &str = "{# analysis functions. #}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
     <|start|>assistant{# <|channel|> #}";

/// The folder of the model: printable characters from id 3 on, and the marks.
fn model() -> std::path::PathBuf {
    let folder = folder("harmony", "gpt-oss");
    let shown = |byte: u8| if byte == b' ' { "\u{120}".to_owned() } else { char::from(byte).to_string() };
    let mut vocab: serde_json::Map<String, Value> =
        (b' '..=b'~').map(|byte| (shown(byte), json!(3 + u32::from(byte - b' ')))).collect();
    let specials = [(0, "<pad>"), (1, "<bos>"), (2, "<|endoftext|>")].into_iter().chain((FIRST..).zip(MARKS));
    let added: Vec<Value> = specials
        .map(|(id, name)| {
            vocab.insert(name.to_owned(), json!(id));
            json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null, "pre_tokenizer": level,
        "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::remove_file(folder.join("tokenizer_config.json")).ok();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

fn id(c: char) -> u32 {
    3 + (c as u32 - u32::from(b' '))
}

/// An output as Harmony writes it.
fn written(tokens: &Value) -> String {
    let text = |id: u64| match id.checked_sub(u64::from(FIRST)) {
        Some(mark) => MARKS[mark as usize].to_owned(),
        None => char::from(b' ' + (id - 3) as u8).to_string(),
    };
    tokens.as_array().unwrap().iter().map(|token| text(token.as_u64().unwrap())).collect()
}

#[actix_web::test]
async fn channels_are_reasoning_answers_and_calls() {
    let folder = model();
    let yaml = format!(
        "model: {{name: pair, target: {}, draft: none, dtype: f32}}\nscheduler: {{max_context: 64}}\n",
        folder.display()
    );
    let (client, served) = client_of!(daemon_of(&yaml, None));
    // A thought is likely to end.
    let chat = json!({
        "messages": [{"role": "user", "content": "x"}], "return_token_ids": true, "logit_bias": {"103": 3},
    });
    let mut both = 0;
    for seed in 0..12 {
        let body = with(&chat, &json!({"seed": seed, "guided_choice": ["yes", "no"]}));
        let answer = ok!(client, CHATS, body);
        let choice = &answer["choices"][0];
        let written = written(&choice["token_ids"]);
        let (thought, behind) = match written.strip_prefix("<|channel|>analysis<|message|>") {
            Some(inside) => inside.split_once("<|end|>").unwrap_or((inside, "")),
            None => ("", written.as_str()),
        };
        let behind = behind.strip_prefix("<|start|>assistant").unwrap_or(behind);
        let content = behind.strip_prefix("<|channel|>final<|message|>").unwrap_or_default();
        let text = |key: &str| choice["message"][key].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (text("reasoning_content").as_str(), text("content").as_str()),
            (thought, content),
            "{written}"
        );
        if choice["finish_reason"] == "stop" {
            assert!(["yes", "no"].contains(&content), "{written}");
        }
        let counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        // Those of the thought, the mark before it, and the one behind it.
        let marks = if written.contains("analysis<|message|>") {
            1 + u64::from(written.contains("<|end|>"))
        } else {
            0
        };
        assert_eq!(counted, thought.len() as u64 + marks, "{written}");
        both += usize::from(!thought.is_empty() && !content.is_empty());

        let streamed = events(&ok!(client, CHATS, with(&body, &json!({"stream": true}))));
        let joined = |key: &str| -> String {
            let deltas = streamed.iter().filter_map(|event| event["choices"][0]["delta"][key].as_str());
            deltas.collect()
        };
        assert_eq!(
            (joined("reasoning_content").as_str(), joined("content").as_str()),
            (thought, content),
            "{written}"
        );
        let tokens = choice["token_ids"].as_array().unwrap();
        for cut in [1, tokens.len() / 2] {
            let rest = ok!(client, CHATS, with(&body, &json!({"resume": {"token_ids": tokens[..cut]}})));
            let rest = &rest["choices"][0]["message"];
            assert!(
                thought.ends_with(rest["reasoning_content"].as_str().unwrap_or_default()),
                "{cut}: {rest}"
            );
            assert!(content.ends_with(rest["content"].as_str().unwrap_or_default()), "{cut}: {rest}");
        }
    }
    assert!(both >= 3, "a thought and an answer in {both} outputs");

    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let calls = json!({"tools": [tool("f", &schema)], "tool_choice": "required", "logit_bias": {id('c').to_string(): 100}});
    let answer = ok!(client, CHATS, with(&chat, &calls));
    let choice = &answer["choices"][0];
    let call = vec![("f".to_owned(), "{\"a\": 1}".to_owned())];
    assert_eq!(said(choice), (None, call.clone(), "tool_calls".to_owned()), "{answer}");
    assert_eq!(
        written(&choice["token_ids"]),
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}"
    );
    let streamed = ok!(client, CHATS, with(&with(&chat, &calls), &json!({"stream": true})));
    assert_eq!(super::tools::gathered(&streamed, 0).1, call);
    close(&served).await;
    std::fs::remove_dir_all(folder).unwrap();
}
