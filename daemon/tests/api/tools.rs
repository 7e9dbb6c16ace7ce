//! Tool calls: held to their schemas, read whole and streamed, with and without speculation; and what is refused.

use super::forms::{Random, valid};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// The synthetic pair, writing calls as `format` says.
async fn calling(format: &str) -> (web::Data<App>, Arc<Served>) {
    calling_by(format, TEMPLATE).await
}

/// The same with this chat template.
pub(super) async fn calling_by(format: &str, template: &str) -> (web::Data<App>, Arc<Served>) {
    let yaml = format!(
        "model: {{name: pair, synthetic: {{preset: tiny}}, tool_calls: {format}}}\nscheduler: {{max_context: 1024}}\n\
         server: {{max_body_bytes: 64KiB}}\nspeculation: {{policy: \"fixed:4\"}}\n"
    );
    let template = ChatTemplate::of("test".into(), template, Default::default()).unwrap();
    daemon_of(&yaml, Some(template)).await
}

pub(super) fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "It does.", "parameters": parameters}})
}

pub(super) fn chat(more: &Value) -> Value {
    with(&json!({"messages": [{"role": "user", "content": "do it"}], "seed": 3, "max_tokens": 700}), more)
}

/// Content, calls as name and arguments, and how it ended.
pub(super) type Said = (Option<String>, Vec<(String, String)>, String);

pub(super) fn said(choice: &Value) -> Said {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let text = |key: &str| call["function"][key].as_str().unwrap().to_owned();
        (text("name"), text("arguments"))
    };
    let content = message["content"].as_str().map(str::to_owned);
    (content, calls.iter().map(call).collect(), choice["finish_reason"].as_str().unwrap().to_owned())
}

/// The same of a stream's choice, put together as clients do.
pub(super) fn gathered(streamed: &Value, index: usize) -> Said {
    let (mut content, mut calls, mut finish) = (String::new(), Vec::<(String, String)>::new(), String::new());
    for event in events(streamed) {
        let choice = &event["choices"][0];
        if choice["index"] != json!(index) {
            continue;
        }
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                assert!(call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function");
                calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
            } else {
                assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{call}");
            }
            calls[at].1.push_str(call["function"]["arguments"].as_str().unwrap());
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            finish = reason.to_owned();
        }
    }
    let content = Some(content).filter(|content| !content.is_empty() || calls.is_empty());
    (content, calls, finish)
}

async fn calls_are_valid(format: &str, cases: u64) {
    let (client, served) = client_of!(calling(format));
    let random = &mut Random(0x70015);
    for case in 0..cases {
        let schemas = [random.object(1), random.object(1)];
        let tools = json!([tool("first", &schemas[0]), tool("second.one", &schemas[1])]);
        let (choice, ending) = match case % 4 {
            0 => (json!({"type": "function", "function": {"name": "second.one"}}), "stop"),
            1 => {
                let second = json!([{"type": "function", "function": {"name": "second.one"}}]);
                let allowed = json!({"mode": "required", "tools": second});
                (json!({"type": "allowed_tools", "allowed_tools": allowed}), "tool_calls")
            }
            _ => (json!("required"), "tool_calls"),
        };
        let body = chat(&json!({
            "tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "seed": case,
            "temperature": random.below(3) as f64 / 2.0, "n": 1 + case % 2,
        }));
        let (status, answer) = post!(client, "/v1/chat/completions", body);
        assert_eq!(status, StatusCode::OK, "{body}: {answer}");
        let (_, streamed) = post!(client, "/v1/chat/completions", with(&body, &json!({"stream": true})));
        let (_, plain) =
            post!(client, "/v1/chat/completions", with(&body, &json!({"speculation": {"k_max": 0}})));
        for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            let found = said(choice);
            assert_eq!(gathered(&streamed, index), found, "{body}");
            assert_eq!(said(&plain["choices"][index]), found, "{body}");
            let (content, calls, finish) = found;
            assert_eq!((content, finish.as_str()), (None, ending), "{answer}");
            let [(name, arguments)] = calls.as_slice() else { panic!("{answer}") };
            let schema = if name == "first" { &schemas[0] } else { &schemas[1] };
            assert!(name == "second.one" || case % 4 > 1, "{answer}");
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            assert!(valid(schema, &arguments), "{arguments} is not of {schema}");
        }
    }
    assert!(served.service.view().totals.accepted_tokens > 0);
    close(&served).await;
}

#[actix_web::test]
async fn calls_as_hermes_writes_them_are_valid_whole_streamed_and_without_speculation() {
    calls_are_valid("hermes", 16).await;
}

#[actix_web::test]
async fn calls_as_llama_writes_them_are_valid_whole_streamed_and_without_speculation() {
    calls_are_valid("llama3", 16).await;
}

#[actix_web::test]
async fn calls_end_as_texts_do() {
    let (client, served) = client_of!(calling("hermes"));
    let path = "/v1/chat/completions";
    let schema = json!({"properties": {"a": {"const": "a long constant"}}, "required": ["a"], "additionalProperties": false});
    let tools = json!([tool("f", &schema)]);
    let body = chat(&json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false}));
    let head = "<tool_call>\n{\"name\": \"f\", \"arguments\": {";
    let arguments = "{\"a\": \"a long constant\"}".to_owned();
    let call = |arguments: &str| vec![("f".to_owned(), arguments.to_owned())];
    let tokens = head.len() + arguments.len() + "}\n</tool_call>".len() - 1;

    let told = with(&with(&body, &json!({"logprobs": true})), &json!({"top_logprobs": 1}));
    let (_, whole) = post!(client, path, told);
    let choice = &whole["choices"][0];
    assert_eq!(said(choice), (None, call(&arguments), "tool_calls".to_owned()), "{whole}");
    assert_eq!(choice["message"]["content"], json!(null));
    assert_eq!(whole["usage"]["completion_tokens"], json!(tokens));
    let logprobs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(logprobs.len(), tokens);
    let (_, streamed) = post!(client, path, with(&told, &json!({"stream": true})));
    let all = events(&streamed);
    let of = all.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(of.flatten().cloned().collect::<Vec<Value>>(), *logprobs);
    assert_eq!(all.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // Cut off by the limit: in the arguments, and before there is a call.
    for (most, said_then) in [
        (head.len() + 6, (None, call("{\"a\": \""), "length")),
        (head.len() - 2, (Some(head[..head.len() - 2].to_owned()), Vec::new(), "length")),
    ] {
        let cut = with(&body, &json!({"max_tokens": most}));
        let (_, answer) = post!(client, path, cut);
        let wanted = (said_then.0, said_then.1, said_then.2.to_owned());
        assert_eq!(said(&answer["choices"][0]), wanted);
        let (_, streamed) = post!(client, path, with(&cut, &json!({"stream": true})));
        assert_eq!(gathered(&streamed, 0), wanted);
    }
    // Stop strings are of the raw text. Arguments that one cut are no JSON: that is no end by calls.
    for (stop, shown, wanted) in [
        ("\"arguments", false, (Some("<tool_call>\n{\"name\": \"f\", ".to_owned()), Vec::new(), "stop")),
        ("long", false, (None, call("{\"a\": \"a "), "stop")),
        ("long", true, (None, call("{\"a\": \"a long"), "stop")),
    ] {
        let stopped =
            with(&with(&body, &json!({"stop": stop})), &json!({"include_stop_str_in_output": shown}));
        let (_, answer) = post!(client, path, stopped);
        assert_eq!(said(&answer["choices"][0]), (wanted.0, wanted.1, wanted.2.to_owned()), "{answer}");
    }
    close(&served).await;
}

#[actix_web::test]
async fn text_that_calls_nothing_is_what_it_would_be_without_tools() {
    let (client, served) = client_of!(calling("hermes"));
    let path = "/v1/chat/completions";
    let short = chat(&json!({"max_tokens": 40}));
    let tools = json!([tool("f", &json!({"type": "object"}))]);
    let (_, without) = post!(client, path, short);
    let form =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}});
    let (_, formed) = post!(client, path, with(&short, &json!({"response_format": form})));
    for (more, wanted) in [
        (json!({}), &without),
        (json!({"tool_choice": "auto"}), &without),
        (json!({"tool_choice": "none"}), &without),
        (json!({"response_format": form}), &formed),
    ] {
        let body = with(&with(&short, &json!({"tools": tools})), &more);
        let answer = ok!(client, path, body);
        assert_eq!(answer["choices"], wanted["choices"], "{more}");
        let (_, streamed) = post!(client, path, with(&body, &json!({"stream": true})));
        assert_eq!(gathered(&streamed, 0), said(&wanted["choices"][0]), "{more}");
    }
    // With a grammar of text and calls.
    let mut strict = with(&short, &json!({"tools": tools}));
    strict["tools"][0]["function"]["strict"] = json!(true);
    let answer = ok!(client, path, strict);
    let (content, calls, _) = said(&answer["choices"][0]);
    assert!(content.is_some_and(|content| !content.contains("<tool_call>")) && calls.is_empty(), "{answer}");
    let (_, streamed) = post!(client, path, with(&strict, &json!({"stream": true})));
    assert_eq!(gathered(&streamed, 0), said(&answer["choices"][0]));
    let (_, plain) = post!(client, path, with(&strict, &json!({"speculation": {"k_max": 0}})));
    assert_eq!(plain["choices"], answer["choices"]);
    close(&served).await;
}

#[actix_web::test]
async fn what_cannot_be_called_is_refused_by_name() {
    let (client, served) = client_of!(calling("hermes"));
    let f = tool("f", &json!({}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let (kind, missing, value) = ("invalid_type", "missing_required_parameter", "invalid_value");
    for (more, code, param) in [
        (json!({"tools": [{}]}), missing, "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}]}), value, "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), missing, "tools[0].function"),
        (json!({"tools": [f, tool("g g", &json!({}))]}), value, "tools[1].function.name"),
        (json!({"tools": [f, f]}), value, "tools[1].function.name"),
        (json!({"tools": [tool("f", &json!([]))]}), kind, "tools[0].function.parameters"),
        (
            json!({"tools": [tool("f", &json!({"type": "string"}))]}),
            value,
            "tools[0].function.parameters.type",
        ),
        (json!({"tools": vec![f.clone(); 129]}), value, "tools"),
        (json!({"tool_choice": "required"}), value, "tool_choice"),
        (json!({"tool_choice": named("f"), "tools": []}), value, "tool_choice"),
        (json!({"tools": [f], "tool_choice": "any"}), value, "tool_choice"),
        (json!({"tools": [f], "tool_choice": 1}), kind, "tool_choice"),
        (json!({"tools": [f], "tool_choice": named("g")}), value, "tool_choice"),
        (json!({"tools": [f], "tool_choice": {"type": "function"}}), missing, "tool_choice.function"),
        (
            json!({"tools": [f], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
            missing,
            "tool_choice.allowed_tools.tools",
        ),
        (json!({"tools": [f], "parallel_tool_calls": 1}), kind, "parallel_tool_calls"),
        (
            json!({"tools": [f], "tool_choice": "required", "guided_json": {"type": "object"}}),
            value,
            "tool_choice",
        ),
        (json!({"tools": [f], "tool_choice": "required", "min_tokens": 3}), value, "min_tokens"),
        (json!({"functions": [{"name": "f"}]}), "unsupported_parameter", "functions"),
        (json!({"function_call": {"name": "f"}}), "unsupported_parameter", "function_call"),
        (
            json!({"tools": [tool("f", &json!({"properties": {"a": {"type": "strange"}}}))], "tool_choice": "required"}),
            "invalid_grammar",
            "tools",
        ),
    ] {
        let (status, answer) = post!(client, "/v1/chat/completions", chat(&more));
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (StatusCode::BAD_REQUEST, &json!(code), &json!(param)),
            "{more}: {answer}"
        );
    }
    close(&served).await;

    let (client, served) = client_of!(calling("none"));
    let (_, answer) = post!(client, "/v1/chat/completions", chat(&json!({"tools": [f]})));
    assert_eq!(answer["error"]["code"], "unsupported_parameter");
    assert!(answer["error"]["message"].as_str().unwrap().contains("model.tool_calls"), "{answer}");
    let none = chat(&json!({"tools": [f], "tool_choice": "none", "max_tokens": 4}));
    ok!(client, "/v1/chat/completions", none);
    served.service.clone().stop().await;
}
