//! Calls of models of which nobody knows how they write them: JSON under a grammar.

use super::tools::{calling_by, chat, gathered, said, tool};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
const CHATS: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
        "additionalProperties": false,
    })
}

#[actix_web::test]
async fn calls_are_had_of_any_model() {
    let (client, served) = client_of!(calling_by("auto", TEMPLATE));
    let tools = json!([tool("f", &schema()), tool("g", &schema())]);
    let named = json!({"type": "function", "function": {"name": "g"}});
    let form =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}});
    for (more, ending) in [
        (json!({"tool_choice": "required"}), "tool_calls"),
        (json!({"tool_choice": "required", "n": 2}), "tool_calls"),
        (json!({"tool_choice": "required", "parallel_tool_calls": true}), "tool_calls"),
        (json!({"tool_choice": named}), "stop"),
        // A text would have this form, but there is none.
        (json!({"tool_choice": named, "response_format": form}), "stop"),
    ] {
        let body = with(&chat(&json!({"tools": tools, "seed": 5, "max_tokens": 400})), &more);
        let answer = ok!(client, CHATS, body);
        let (_, streamed) = post!(client, CHATS, with(&body, &json!({"stream": true})));
        let (_, plain) = post!(client, CHATS, with(&body, &json!({"speculation": {"k_max": 0}})));
        for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            let found = said(choice);
            assert_eq!(gathered(&streamed, index), found, "{more}");
            assert_eq!(said(&plain["choices"][index]), found, "{more}");
            let (content, calls, finish) = found;
            assert_eq!(content, None, "{answer}");
            assert!(calls.len() == 1 || !more["parallel_tool_calls"].is_null(), "{answer}");
            assert!(finish == ending || finish == "length", "{answer}");
            for (name, arguments) in &calls[..calls.len() - usize::from(finish == "length")] {
                assert!(name == "g" || name == "f" && ending == "tool_calls");
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!(arguments["a"].as_u64().is_some_and(|a| a < 100), "{answer}");
            }
        }
    }
    // Text, unless it begins as a call does; then it is one.
    let body = chat(&json!({"tools": tools, "max_tokens": 40, "parallel_tool_calls": false}));
    let (_, text) = post!(client, CHATS, body);
    let (content, calls, _) = said(&text["choices"][0]);
    assert!(content.is_some_and(|content| !content.is_empty()) && calls.is_empty(), "{text}");
    let (_, call) = post!(client, CHATS, with(&body, &json!({"logit_bias": {"123": 100}})));
    let (content, calls, finish) = said(&call["choices"][0]);
    assert_eq!((content, calls.len(), finish.as_str()), (None, 1, "tool_calls"), "{call}");
    close(&served).await;
}

#[actix_web::test]
async fn the_model_is_told_of_functions_and_calls_where_its_template_does_not() {
    let (app, served) = calling_by("auto", TEMPLATE).await;
    let client = client!(app);
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "do it"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]);
    let function = json!({"type": "function", "function": {"name": "f"}});
    let asked = json!({"messages": messages, "tools": [function], "max_tokens": 1, "return_token_ids": true});
    let answer = ok!(client, CHATS, asked);
    let (_, prompt) = post!(client, "/detokenize", json!({"tokens": answer["prompt_token_ids"]}));
    let wanted = "<user>Functions that can be called:\n\n{\"name\":\"f\"}\n\nA call is written as {\"name\": \"...\", \"arguments\": {...}}, \
                  and nothing else.\n\ndo it<assistant>{\"name\":\"f\",\"arguments\":{\"a\":1}}<tool>done";
    assert_eq!(prompt["prompt"], wanted);
    let (_, tokens) = post!(client, "/tokenize", json!({"messages": messages, "tools": [function]}));
    assert_eq!(tokens["tokens"], answer["prompt_token_ids"]);
    close(&served).await;

    // A template that has a form of its own for calls, which is not known here.
    let (client, served) =
        client_of!(calling_by("auto", "{% for t in tools %}{{ t }}{% endfor %}{{ messages[0].content }}"));
    let tools = json!([tool("f", &schema())]);
    let (status, answer) = post!(client, CHATS, chat(&json!({"tools": tools})));
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("tools")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("model.tool_calls"), "{answer}");
    let (_, answer) = post!(
        client,
        CHATS,
        chat(&json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false}))
    );
    assert_eq!(said(&answer["choices"][0]).1.len(), 1, "{answer}");
    // A function that says nothing of parameters has none, and of several the one is named that is not taken.
    let plain = json!({"type": "function", "function": {"name": "plain"}});
    let (_, answer) = post!(client, CHATS, chat(&json!({"tools": [plain], "tool_choice": "required"})));
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}", "{answer}");
    let unique = json!({"properties": {"a": {"type": "array", "uniqueItems": true}}});
    let tools = json!([plain, tool("wrong", &unique)]);
    let (_, answer) = post!(client, CHATS, chat(&json!({"tools": tools, "tool_choice": "required"})));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("`wrong`") && message.contains("uniqueItems"), "{message}");
    let (_, answer) = post!(client, CHATS, chat(&json!({"max_tokens": 100_000})));
    assert_eq!(answer["error"]["param"], "messages", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("lower max_completion_tokens"), "{answer}");
    close(&served).await;
}

/// What instructor sends: the schema of the function as the form of a text as well.
#[actix_web::test]
async fn a_response_that_is_a_call_may_have_a_form_for_its_text() {
    let (client, served) = client_of!(calling_by("auto", TEMPLATE));
    let format = json!({"format": {"type": "json_schema", "name": "F", "strict": true, "schema": schema()}});
    let function = json!({"type": "function", "name": "F", "parameters": schema()});
    let asked = json!({
        "input": "do it", "tools": [function], "tool_choice": {"type": "function", "name": "F"}, "text": format,
        "max_output_tokens": 200,
    });
    let answer = ok!(client, "/v1/responses", asked);
    let [call] = answer["output"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("F")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["a"].is_u64(), "{answer}");
    assert_eq!(answer["text"], format);
    let (_, refused) = post!(client, "/v1/responses", with(&asked, &json!({"guided_regex": "a+"})));
    assert_eq!(refused["error"]["param"], json!("guided_regex"), "{refused}");
    let mut guided = with(&asked, &json!({"guided_regex": "a+"}));
    guided.as_object_mut().unwrap().remove("text");
    let (_, refused) = post!(client, "/v1/responses", guided);
    assert_eq!(refused["error"]["param"], json!("tool_choice"), "{refused}");
    close(&served).await;
}
