//! What chat templates are given of a request: messages with calls and results, tools, variables, the end of the last turn.

use serde_json::Map;

use super::*;

/// Writes everything that it is given.
const SOURCE: &str = "{{ messages | tojson }}{{ '+' ~ tools | tojson if tools else '' }}\
                      {{ '~' ~ mood | tojson if mood is defined else '' }}{{ '>' if add_generation_prompt else '' }}";

async fn daemon_of_template(source: &str) -> (web::Data<App>, Arc<Served>) {
    let template = ChatTemplate::of("test".into(), source, Map::new()).unwrap();
    let yaml = "model: {name: pair, synthetic: {preset: tiny}, tool_calls: hermes}\nscheduler: {max_context: 2048}\n\
                server: {max_body_bytes: 64KiB}\n";
    daemon_of(yaml, Some(template)).await
}

/// The prompt that a body makes, and the same number of tokens where it is answered.
macro_rules! prompt {
    ($client:expr, $body:expr) => {{
        let mut body = $body;
        let tokens = ok!($client, "/tokenize", body);
        let (_, text) = post!($client, "/detokenize", json!({"tokens": tokens["tokens"]}));
        body["max_tokens"] = json!(1);
        let answer = ok!($client, "/v1/chat/completions", body);
        assert_eq!(answer["usage"]["prompt_tokens"], tokens["count"]);
        text["prompt"].as_str().unwrap().to_owned()
    }};
}

fn call(arguments: &str) -> Value {
    json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}})
}

#[actix_web::test]
async fn templates_get_calls_results_tools_and_variables() {
    let (client, served) = client_of!(daemon_of_template(SOURCE));
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [null]}}});
    let body = json!({
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}], "name": "Ada"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null, "function_call": null,
             "tool_calls": [call("{\"z\": [1, 0.5], \"y\": null}"), call(" ")]},
            {"role": "tool", "tool_call_id": "call_1", "content": "21", "name": "f"},
            {"role": "assistant", "content": "so", "tool_calls": []},
            {"role": "user", "content": ""},
        ],
        "tools": [tool],
        "chat_template_kwargs": {"mood": {"good": true, "list": ["x"]}},
    });
    let function = |arguments: &str| {
        format!(
            r#"{{"id": "call_1", "type": "function", "function": {{"name": "f", "arguments": {arguments}}}}}"#
        )
    };
    let (one, two) = (function(r#"{"z": [1, 0.5], "y": null}"#), function("{}"));
    let messages = [
        r#"{"role": "developer", "content": "be brief"}"#.to_owned(),
        r#"{"role": "user", "content": "a\né", "name": "Ada"}"#.to_owned(),
        format!(
            r#"{{"thinking": "hm", "role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{one}, {two}]}}"#
        ),
        r#"{"role": "tool", "content": "21", "tool_call_id": "call_1", "name": "f"}"#.to_owned(),
        r#"{"role": "assistant", "content": "so"}"#.to_owned(),
        r#"{"role": "user", "content": ""}"#.to_owned(),
    ];
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [null]}}}]"#;
    let wanted = format!("[{}]+{tools}~{}>", messages.join(", "), r#"{"good": true, "list": ["x"]}"#);
    assert_eq!(prompt!(client, body), wanted);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn the_last_turn_is_opened_closed_or_continued() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{{ '<a>' if add_generation_prompt }}";
    let (client, served) = client_of!(daemon_of_template(source));
    let body = |more: Value| {
        let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once "}]);
        with(&json!({"messages": messages, "tools": [], "chat_template_kwargs": {}}), &more)
    };
    let closed = json!({"add_generation_prompt": false});
    let continued = json!({"add_generation_prompt": false, "continue_final_message": true});
    assert_eq!(prompt!(client, body(json!({}))), "<user>x</><assistant>Once </><a>");
    assert_eq!(prompt!(client, body(closed)), "<user>x</><assistant>Once </>");
    assert_eq!(prompt!(client, body(continued)), "<user>x</><assistant>Once ");
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn what_templates_cannot_be_given_is_refused_by_its_path() {
    let (client, served) = client_of!(daemon_of_template("{{ messages[0].content }}"));
    let user = json!({"role": "user", "content": "x"});
    let calls = |calls: Value| json!({"messages": [user, {"role": "assistant", "content": null, "tool_calls": calls}]});
    let with = |name: &str, value: Value| json!({"messages": [user], name: value});
    let variables = |value: Value| with("chat_template_kwargs", value);
    let many: Map<String, Value> = (0..65).map(|i| (format!("v{i}"), json!(i))).collect();
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
    for (body, code, param) in [
        (calls(json!({})), "invalid_type", "messages[1].tool_calls"),
        (calls(json!([])), "missing_required_parameter", "messages[1].content"),
        (calls(json!([3])), "invalid_type", "messages[1].tool_calls[0]"),
        (calls(json!(vec![call("{}"); 129])), "invalid_value", "messages[1].tool_calls"),
        (calls(json!([{"type": "function"}])), "missing_required_parameter", "messages[1].tool_calls[0].id"),
        (calls(json!([{"id": "a"}])), "missing_required_parameter", "messages[1].tool_calls[0].function"),
        (calls(json!([{"id": "a", "type": "custom"}])), "invalid_value", "messages[1].tool_calls[0].type"),
        (calls(json!([call("[1]")])), "invalid_type", "messages[1].tool_calls[0].function.arguments"),
        (calls(json!([call("{\"a\":")])), "invalid_value", "messages[1].tool_calls[0].function.arguments"),
        (calls(json!([call(&deep)])), "invalid_value", "messages[1].tool_calls[0].function.arguments"),
        (
            calls(json!([call("{}"), {"id": "a", "function": {"name": "f", "arguments": {}}}])),
            "invalid_type",
            "messages[1].tool_calls[1].function.arguments",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [call("{}")]}]}),
            "unsupported_parameter",
            "messages[0].tool_calls",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "missing_required_parameter",
            "messages[0].tool_call_id",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]}),
            "unknown_parameter",
            "messages[0].reasoning_content",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]}),
            "unsupported_parameter",
            "messages[0].function_call",
        ),
        (with("tools", json!({})), "invalid_type", "tools"),
        (with("tools", json!(["f"])), "invalid_type", "tools[0]"),
        (variables(json!([])), "invalid_type", "chat_template_kwargs"),
        (variables(json!({"messages": []})), "unsupported_parameter", "chat_template_kwargs.messages"),
        (variables(json!({"eos_token": ""})), "unsupported_parameter", "chat_template_kwargs.eos_token"),
        (variables(json!(many)), "invalid_value", "chat_template_kwargs"),
        (variables(json!({"a": "x".repeat(17_000)})), "invalid_value", "chat_template_kwargs"),
        (with("continue_final_message", json!(true)), "invalid_value", "continue_final_message"),
        (with("add_generation_prompt", json!(1)), "invalid_type", "add_generation_prompt"),
        (with("reasoning_effort", json!("high")), "unsupported_parameter", "reasoning_effort"),
    ] {
        let (status, answer) = post!(client, "/v1/chat/completions", body);
        let error = &answer["error"];
        let found = (error["code"].as_str().unwrap(), error["param"].as_str().unwrap_or_default());
        assert_eq!(found, (code, param), "{answer}");
        assert!(status.is_client_error());
    }
    // Without the text of the last message there is nothing to continue.
    let body =
        json!({"messages": [user, user], "add_generation_prompt": false, "continue_final_message": true});
    let (_, answer) = post!(client, "/v1/chat/completions", body);
    assert_eq!(answer["error"]["code"], "chat_template_error");
    assert!(answer["error"]["message"].as_str().unwrap().contains("cannot be continued"), "{answer}");
    // What belongs to a conversation has no place beside a text.
    let (_, answer) = post!(client, "/tokenize", json!({"prompt": "x", "tools": []}));
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["param"]),
        (&json!("unknown_parameter"), &json!("tools"))
    );
    served.service.clone().stop().await;
}
