//! Chat templates: where they are found, what bounds them, and what transformers made of a few.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{expected, golden};
use crate::ModelError;
use crate::text::{ChatTemplate, Conversation, LastTurn};

#[test]
fn chat_templates_render_as_in_transformers() {
    for name in ["chatml", "headers", "alternating", "python"] {
        let folder = format!("chat/{name}");
        let template = ChatTemplate::load(&golden(&folder)).unwrap();
        for case in expected(&folder) {
            let rendered = if case["add_generation_prompt"] == true {
                template.render(&Conversation::of(case["messages"].clone()))
            } else {
                template.render(&closed(case["messages"].clone()))
            };
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

fn closed(messages: Value) -> Conversation {
    Conversation { last_turn: LastTurn::Closed, ..Conversation::of(messages) }
}

fn of(source: &str) -> Result<ChatTemplate, ModelError> {
    ChatTemplate::of("template".into(), source, Map::new())
}

/// A model directory with these files; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, files: &[(&str, &str)]) -> Folder {
        let dir = std::env::temp_dir().join(format!("faser-models-chat-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (file, content) in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Folder(dir)
    }

    fn render(&self) -> Result<String, ModelError> {
        ChatTemplate::load(&self.0)?.render(&closed(json!([{"role": "user", "content": "hi"}])))
    }

    fn render_with_tools(&self) -> Result<String, ModelError> {
        let conversation = closed(json!([{"role": "user", "content": "hi"}]));
        ChatTemplate::load(&self.0)?.render(&Conversation { tools: Some(json!([])), ..conversation })
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
    let render = |source: &str| of(source)?.render(&closed(json!([{"role": "user", "content": "hi"}])));
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
    assert!(of(&"x".repeat(2 << 20)).unwrap_err().to_string().contains("longer than"));
}

#[test]
fn a_template_that_the_library_panics_over_is_refused() {
    // In builds that look for overflows it panics, in others there is nothing to show.
    let template = of("{{ messages[:4:-1] | list | length }}").unwrap();
    match template.render(&closed(json!([{"role": "user", "content": "a"}]))) {
        Ok(text) => assert_eq!(text, "0"),
        Err(err) => assert!(err.to_string().contains("cannot be used"), "{err}"),
    }
}

#[test]
fn what_templates_do_every_day_is_within_the_bounds() {
    let source = "{% for message in messages %}{{ message.content | indent(4) }}{{ '%5.1f' | format(1.5) }}\
                  {{ '{:>4}'.format('x') }}{% for row in [1, 2, 3] | batch(2) %}{{ row | length }}{% endfor %}{% endfor %}";
    let template = of(source).unwrap();
    let one = json!([{"role": "user", "content": "a\nb"}]);
    assert_eq!(template.render(&closed(one)).unwrap(), "a\n    b  1.5   x21");
    let many: Vec<Value> =
        (0..4096).map(|_| json!({"role": "user", "content": "\u{1}".repeat(900)})).collect();
    let many = Conversation::of(many.into());
    assert!(of("{{ messages | tojson }}").unwrap().render(&many).is_ok());
    assert!(template.render(&many).is_ok());
}

#[test]
fn with_tools_the_template_for_them_is_taken() {
    let list = r#"{"chat_template": [{"name": "tool_use", "template": "tools {{ tools }}"}, {"name": "default", "template": "plain"}]}"#;
    let listed = Folder::with("listed", &[("tokenizer_config.json", list)]);
    assert_eq!(listed.render().unwrap(), "plain");
    assert_eq!(listed.render_with_tools().unwrap(), "tools []");
    let files = Folder::with(
        "files",
        &[
            ("tokenizer_config.json", list),
            ("chat_template.jinja", "file {{ tools is none }}"),
            ("additional_chat_templates/tool_use.jinja", "file with {{ tools }}"),
        ],
    );
    assert_eq!(files.render().unwrap(), "file True");
    assert_eq!(files.render_with_tools().unwrap(), "file with []");
    // A single file stands for all that the config has.
    let one = Folder::with("one", &[("tokenizer_config.json", list), ("chat_template.jinja", "one")]);
    assert_eq!(one.render_with_tools().unwrap(), "one");
    let wrong = Folder::with(
        "wrong",
        &[("chat_template.jinja", "a"), ("additional_chat_templates/tool_use.jinja", "{%")],
    );
    assert!(wrong.render().unwrap_err().to_string().contains("chat_template.jinja"));
}

#[test]
fn special_tokens_are_variables_by_their_names() {
    let config = r#"{"bos_token": {"content": "<b>"}, "image_token": "<i>", "add_bos_token": true, "eos_token": null,
                     "chat_template": "{{ bos_token }}{{ image_token }}{{ pad_token }} {{ eos_token is defined }} {{ add_bos_token is defined }}"}"#;
    let map =
        r#"{"bos_token": "<other>", "pad_token": {"content": "<p>"}, "additional_special_tokens": ["<x>"]}"#;
    let files = [("tokenizer_config.json", config), ("special_tokens_map.json", map)];
    assert_eq!(Folder::with("tokens", &files).render().unwrap(), "<b><i><p> False False");
}

#[test]
fn conversations_come_to_templates_as_in_transformers() {
    let render = |source: &str, conversation: &Conversation| {
        of(source).unwrap().render(conversation).map_err(|err| err.to_string())
    };
    let messages = json!([
        {"role": "user", "content": "x", "name": null},
        {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": []},
    ]);
    let conversation = closed(messages);
    assert_eq!(
        render("{{ messages }}\r\n\r{{ documents }}{{ add_generation_prompt }}\n", &conversation).unwrap(),
        "[{'role': 'user', 'content': 'x'}, {'thinking': 'r', 'role': 'assistant', 'reasoning': 'r', 'tool_calls': [], \
         'reasoning_content': 'r'}]\n\nNoneFalse"
    );
    let variables = json!({"enable_thinking": false, "words": ["a"]}).as_object().cloned().unwrap();
    let given = Conversation { variables, ..conversation.clone() };
    assert_eq!(render("{{ enable_thinking is false }}{{ words[0] }}", &given).unwrap(), "Truea");
    let continued =
        |messages: Value| Conversation { last_turn: LastTurn::Continued, ..Conversation::of(messages) };
    for (messages, part) in [
        (json!([]), "no text that could be continued"),
        (conversation.messages.clone(), "no text that could be continued"),
        (json!([{"role": "assistant", "content": "left out"}]), "does not write the text"),
    ] {
        assert!(render("{{ messages | length }}", &continued(messages)).unwrap_err().contains(part));
    }
    // What stands behind the text falls; a space at its end only if the template has cut it off.
    let last = continued(json!([{"role": "assistant", "content": "Once "}]));
    assert_eq!(render("<{{ messages[0].content }}>", &last).unwrap(), "<Once ");
    assert_eq!(render("<{{ messages[0].content | trim }}>", &last).unwrap(), "<Once");
}

#[test]
fn tools_and_variables_count_in_the_bounds() {
    let source =
        "{% for v in tools or numbers %}{% for a in range(90) %}{% endfor %}{{ v.text * 5 }}{% endfor %}";
    let template = of(source).unwrap();
    let many = |count: usize| -> Value { (0..count).map(|_| json!({"text": "x".repeat(500)})).collect() };
    let with = |tools: Option<Value>, variables: Value| Conversation {
        tools,
        variables: variables.as_object().cloned().unwrap(),
        ..closed(json!([{"role": "user", "content": "x"}]))
    };
    assert!(template.render(&with(Some(many(2000)), json!({}))).is_ok());
    assert!(template.render(&with(None, json!({"numbers": many(2000)}))).is_ok());
    let steps = of("{% for v in tools %}{% for a in range(9999) %}{% endfor %}{% endfor %}").unwrap();
    let stopped = steps.render(&with(Some(many(2000)), json!({}))).unwrap_err().to_string();
    assert!(stopped.contains("too many steps"), "{stopped}");
}

#[test]
fn names_of_a_templates_own_are_reserved() {
    for name in [
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "image_token",
        "strftime_now",
        "chat_template",
    ] {
        assert!(Conversation::is_reserved(name), "{name}");
    }
    for name in ["enable_thinking", "date_string", "tools_in_user_message"] {
        assert!(!Conversation::is_reserved(name), "{name}");
    }
}
