//! /v1/responses: the same text as a chat's, whole and by events; calls, forms, and what is refused.

use super::tools::calling_by;
use super::*;

/// Writes everything that a message may have.
const TEMPLATE: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
     {% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.a }}){% endfor %}{% endfor %}\
     {% if add_generation_prompt %}<assistant>{% endif %}";
const PATH: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// The events of a stream by their names, in the order of their numbers.
fn named(body: &Value) -> Vec<(String, Value)> {
    let text = body.as_str().unwrap_or_else(|| panic!("{body}"));
    let event = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)), "{text}");
        (name.to_owned(), data)
    };
    text.split_terminator("\n\n").enumerate().map(event).collect()
}

/// A response without what is made up for each.
pub(super) fn plain(response: &Value) -> Value {
    let mut response = response.clone();
    for key in ["id", "created_at"] {
        response.as_object_mut().unwrap().remove(key).unwrap();
    }
    // Whether the prompt was in the cache.
    response["usage"]["input_tokens_details"] = json!(null);
    for item in response["output"].as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        item.remove("id").unwrap();
        item.remove("call_id");
    }
    response
}

/// Puts a stream together as clients do, and holds it against its own last event; that event's response.
pub(super) fn built(streamed: &Value) -> Value {
    let events = named(streamed);
    let (mut items, mut texts) = (Vec::<Value>::new(), Vec::<String>::new());
    for (name, data) in &events {
        let at = data["output_index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "response.created" | "response.in_progress" => {
                assert_eq!(
                    (&data["response"]["status"], &data["response"]["output"]),
                    (&json!("in_progress"), &json!([]))
                );
            }
            "response.output_item.added" => {
                assert_eq!((at, &data["item"]["status"]), (items.len(), &json!("in_progress")));
                items.push(data["item"].clone());
                texts.push(String::new());
            }
            "response.content_part.added" => assert_eq!(data["part"]["text"], ""),
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                assert_eq!((at + 1, &data["item_id"]), (items.len(), &items[at]["id"]));
                texts[at].push_str(data["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(data["text"], json!(texts[at]));
            }
            "response.content_part.done" => assert_eq!(data["part"]["text"], json!(texts[at])),
            "response.function_call_arguments.done" => assert_eq!(data["arguments"], json!(texts[at])),
            "response.output_item.done" => {
                assert_eq!(data["item"]["id"], items[at]["id"]);
                items[at] = data["item"].clone();
            }
            _ => assert_eq!(data["response"]["output"], json!(items), "{name}"),
        }
    }
    assert_eq!(events[0].0, "response.created");
    let (name, last) = events.last().unwrap();
    assert_eq!(*name, format!("response.{}", last["response"]["status"].as_str().unwrap()));
    last["response"].clone()
}

#[actix_web::test]
async fn a_response_says_what_a_chat_says_whole_and_by_events() {
    let (client, served) = client_of!(calling_by("hermes", TEMPLATE));
    let body = json!({
        "model": "pair", "instructions": "be brief", "seed": 4, "temperature": 0.5, "max_output_tokens": 20,
        "metadata": {"who": "me"}, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": []}]},
            {"type": "message", "role": "user", "content": "more"},
        ],
    });
    let chat = json!({
        "seed": 4, "temperature": 0.5, "max_tokens": 20, "logprobs": true, "top_logprobs": 2,
        "messages": [
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "one\ntwo"},
            {"role": "assistant", "content": "so"}, {"role": "user", "content": "more"},
        ],
    });
    let whole = ok!(client, PATH, body);
    let (_, said) = post!(client, CHAT, chat);
    let choice = &said["choices"][0];
    let [item] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    let part = &item["content"][0];
    assert_eq!((&part["type"], &part["text"]), (&json!("output_text"), &choice["message"]["content"]));
    assert_eq!(part["logprobs"], choice["logprobs"]["content"]);
    assert_eq!(part["logprobs"].as_array().unwrap().len(), 20);
    assert_eq!((&whole["status"], &item["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let usage = &whole["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&said["usage"]["prompt_tokens"], &json!(20))
    );
    assert_eq!(usage["total_tokens"], said["usage"]["total_tokens"]);
    for (name, value) in [
        ("object", json!("response")),
        ("model", json!("pair")),
        ("store", json!(false)),
        ("error", json!(null)),
        ("metadata", json!({"who": "me"})),
        ("instructions", json!("be brief")),
        ("temperature", json!(0.5)),
        ("top_p", json!(1.0)),
        ("max_output_tokens", json!(20)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("text", json!({"format": {"type": "text"}})),
    ] {
        assert_eq!(whole[name], value, "{name}");
    }
    let (_, streamed) = post!(client, PATH, with(&body, &json!({"stream": true})));
    assert_eq!(plain(&built(&streamed)), plain(&whole));
    let (_, slow) = post!(client, PATH, with(&body, &json!({"speculation": {"k_max": 0}})));
    assert_eq!(plain(&slow), plain(&whole));

    // The plain call, which ends by itself: the first token of the answer ends it.
    let first = json!({
        "input": "hi", "seed": 1, "max_output_tokens": 1, "include": body["include"], "return_tokens_as_token_ids": true,
    });
    let (_, answer) = post!(client, PATH, first);
    let token = answer["output"][0]["content"][0]["logprobs"][0]["token"].as_str().unwrap();
    let id: u32 = token.strip_prefix("token_id:").unwrap().parse().unwrap();
    let short =
        json!({"input": "hi", "seed": 1, "stop_token_ids": [id], "include_metrics": true, "store": false});
    let (status, answer) = post!(client, PATH, short);
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")), "{answer}");
    assert_eq!(
        answer["output"][0]["content"],
        json!([{"type": "output_text", "text": "", "annotations": [], "logprobs": []}])
    );
    assert!(answer["metrics"]["num_target_passes"].is_u64(), "{answer}");
    close(&served).await;
}

#[actix_web::test]
async fn functions_are_called_and_their_results_are_read() {
    let (client, served) = client_of!(calling_by("hermes", TEMPLATE));
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": false});
    let flat = json!([{"type": "function", "name": "f", "parameters": schema, "strict": true}, {"type": "function", "name": "g"}]);
    let nested = json!([
        {"type": "function", "function": {"name": "f", "parameters": schema, "strict": true}},
        {"type": "function", "function": {"name": "g"}},
    ]);
    let f = json!([{"type": "function", "name": "f"}]);
    for (choice, same) in [
        (json!("required"), json!("required")),
        (json!({"type": "function", "name": "f"}), json!({"type": "function", "function": {"name": "f"}})),
        (
            json!({"type": "allowed_tools", "mode": "required", "tools": f}),
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [nested[0]["type"].clone()]}}),
        ),
    ] {
        let body = json!({
            "input": "do it", "seed": 2, "max_output_tokens": 300, "tools": flat, "tool_choice": choice, "parallel_tool_calls": false,
        });
        let (status, whole) = post!(client, PATH, body);
        assert_eq!((status, &whole["status"]), (StatusCode::OK, &json!("completed")), "{whole}");
        let [call] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
        assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")));
        assert!(
            call["call_id"].as_str().unwrap().starts_with("call_")
                && call["id"].as_str().unwrap().starts_with("fc_")
        );
        if call["name"] == "f" {
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!(["x", "yy"].contains(&arguments["a"].as_str().unwrap()), "{arguments}");
        }
        let (_, streamed) = post!(client, PATH, with(&body, &json!({"stream": true})));
        assert_eq!(plain(&built(&streamed)), plain(&whole));
        if choice["type"] != "allowed_tools" {
            let chat = json!({
                "messages": [{"role": "user", "content": "do it"}], "seed": 2, "max_tokens": 300, "tools": nested, "tool_choice": same,
                "parallel_tool_calls": false,
            });
            let (_, said) = post!(client, CHAT, chat);
            let function = &said["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(*function, json!({"name": call["name"], "arguments": call["arguments"]}), "{said}");
        }
    }

    let (call, arguments) = ("call_1", "{\"a\": 5}");
    let input = json!([
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
        {"type": "function_call", "id": "fc_1", "call_id": call, "name": "f", "arguments": arguments, "status": "completed"},
        {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": call, "output": "six"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "seven"}]},
    ]);
    let messages = json!([
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": "well", "tool_calls": [
            {"id": call, "type": "function", "function": {"name": "f", "arguments": arguments}},
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": call, "content": "six"},
        {"role": "tool", "tool_call_id": "call_2", "content": "seven"},
    ]);
    let none = json!({"seed": 9, "tool_choice": "none"});
    let response = json!({"input": input, "max_output_tokens": 12, "tools": flat});
    let answer = ok!(client, PATH, with(&response, &none));
    let chat = json!({"messages": messages, "max_tokens": 12, "tools": nested});
    let (_, said) = post!(client, CHAT, with(&chat, &none));
    assert_eq!(answer["usage"]["input_tokens"], said["usage"]["prompt_tokens"]);
    assert_eq!(answer["output"][0]["content"][0]["text"], said["choices"][0]["message"]["content"]);
    close(&served).await;
}

#[actix_web::test]
async fn an_output_follows_its_form() {
    let (client, served) = client_of!(calling_by("hermes", TEMPLATE));
    let schema = json!({"enum": ["yes", "no"]});
    let form = json!({"format": {"type": "json_schema", "name": "n", "strict": true, "schema": schema}});
    let (status, answer) = post!(client, PATH, json!({"input": "well?", "seed": 1, "text": form}));
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("completed")), "{answer}");
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(["\"yes\"", "\"no\""].contains(&text), "{text}");
    assert_eq!(answer["text"], form);
    close(&served).await;
}

#[actix_web::test]
async fn what_needs_memory_or_is_wrong_is_refused_by_name() {
    let (client, served) = client_of!(calling_by("hermes", TEMPLATE));
    let (kind, missing, value) = ("invalid_type", "missing_required_parameter", "invalid_value");
    let (unknown, unsupported) = ("unknown_parameter", "unsupported_parameter");
    let f = json!({"type": "function", "name": "f"});
    let many: serde_json::Map<String, Value> = (0..17).map(|i| (i.to_string(), json!("x"))).collect();
    for (more, code, param) in [
        (json!({"previous_response_id": "resp_1"}), unsupported, "previous_response_id"),
        (json!({"conversation": "conv_1"}), unsupported, "conversation"),
        (json!({"background": true}), unsupported, "background"),
        (json!({"store": true}), unsupported, "store"),
        (json!({"truncation": "auto"}), unsupported, "truncation"),
        (json!({"reasoning": {"effort": "low"}}), unsupported, "reasoning.effort"),
        (json!({"reasoning": {"summary": "auto"}}), unsupported, "reasoning.summary"),
        (json!({"return_token_ids": true}), unsupported, "return_token_ids"),
        (json!({"prompt": {"id": "p"}}), unsupported, "prompt"),
        (json!({"include": ["file_search_call.results"]}), unsupported, "include[0]"),
        (json!({"include": [1]}), kind, "include[0]"),
        (json!({"top_logprobs": 3}), value, "top_logprobs"),
        (json!({"tools": [{"type": "web_search"}]}), value, "tools[0].type"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), missing, "tools[0].name"),
        (json!({"tools": [f, f]}), value, "tools[1].name"),
        (json!({"tools": [f], "tool_choice": {"type": "function", "name": "g"}}), value, "tool_choice"),
        (json!({"tool_choice": "required"}), value, "tool_choice"),
        (json!({"max_tokens": 5}), unknown, "max_tokens"),
        (json!({"messages": []}), unknown, "messages"),
        (json!({"n": 2}), unknown, "n"),
        (json!({"response_format": {"type": "json_object"}}), unknown, "response_format"),
        (json!({"max_output_tokens": 0}), value, "max_output_tokens"),
        (json!({"text": {"format": {"type": "json_schema", "name": "n"}}}), missing, "text.format.schema"),
        (
            json!({"text": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}}),
            "invalid_grammar",
            "text.format",
        ),
        (json!({"text": {"verbosity": "low"}}), unsupported, "text.verbosity"),
        (json!({"stream_options": {"include_obfuscation": false}}), value, "stream_options"),
        (json!({"metadata": many}), value, "metadata"),
        (json!({"metadata": {"a": 1}}), kind, "metadata.a"),
        (json!({"metadata": {"a": "x".repeat(513)}}), value, "metadata.a"),
        (json!({"input": null}), missing, "input"),
        (json!({"input": []}), value, "input"),
        (json!({"input": 5}), kind, "input"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), value, "input[0].role"),
        (json!({"input": [{"role": "user"}]}), missing, "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            value,
            "input[0].content[0].type",
        ),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), value, "input[0].type"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]}),
            kind,
            "input[0].arguments",
        ),
        (json!({"input": [{"type": "function_call_output", "output": "x"}]}), missing, "input[0].call_id"),
        (json!({"instructions": ["x"]}), kind, "instructions"),
    ] {
        let body = with(&json!({"input": "hi", "max_output_tokens": 4}), &more);
        let (status, answer) = post!(client, PATH, body);
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (StatusCode::BAD_REQUEST, &json!(code), &json!(param)),
            "{more}: {answer}"
        );
    }
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        let (status, body) = get!(client, path);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("response_not_found")));
    }
    assert_eq!(post!(client, "/v1/responses/resp_1/cancel", "").0, StatusCode::NOT_FOUND);
    assert_eq!(get!(client, PATH).0, StatusCode::METHOD_NOT_ALLOWED);
    close(&served).await;
}
