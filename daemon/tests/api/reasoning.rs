//! Reasoning told from the answer: whole, streamed, gone on with, as a response's item, and with forms and calls behind it.

use super::tools::{chat, tool};
use super::*;

const CHATS: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MARKS: [&str; 2] = ["<think>", "</think>"];

/// Writes no thought where there is to be none, opens one if `open` says so, and shows earlier ones.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% endfor %}\
     [assistant]{% if enable_thinking is defined and not enable_thinking %}<think></think>{% elif open %}<think>\n{% endif %}";

async fn thinking(how: &str) -> (web::Data<App>, Arc<Served>) {
    let yaml = format!(
        "model: {{name: pair, synthetic: {{preset: tiny}}, tool_calls: hermes, reasoning: {how}}}\nscheduler: {{max_context: 1024}}\n\
         server: {{max_body_bytes: 64KiB}}\nspeculation: {{policy: \"fixed:4\"}}\n"
    );
    daemon_of(&yaml, Some(ChatTemplate::of("test".into(), TEMPLATE, Default::default()).unwrap())).await
}

/// A chat whose output is made of marks and of the letters `a` and `b`: of all other pairs of characters none may come.
fn scripted(open: bool, seed: u64) -> Value {
    let next = |c: char| match c {
        '<' => "/t",
        '/' => "t",
        't' => "h",
        'h' => "i",
        'i' => "n",
        'n' => "k",
        'k' => ">",
        _ => "ab<",
    };
    let letters: Vec<char> = "<think/>ab".chars().collect();
    let pairs = letters.iter().flat_map(|a| letters.iter().map(move |b| (*a, *b)));
    let barred: Vec<String> =
        pairs.filter(|(a, b)| !next(*a).contains(*b)).map(|(a, b)| format!("{a}{b}")).collect();
    // One has to be allowed anywhere: `z`, which is most unlikely.
    let ids: Vec<u32> = letters.iter().chain(&['z']).map(|c| u32::from(*c)).collect();
    let first = if open { "97" } else { "60" };
    json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "seed": seed, "temperature": 1.5, "top_p": 1,
        "allowed_token_ids": ids, "bad_words": barred, "logit_bias": {first: 6, "60": 6, "122": -100},
        "chat_template_kwargs": {"open": open},
    })
}

/// Reasoning and content of a text, by the definition.
fn divided(open: bool, text: &str) -> (Option<String>, Option<String>) {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    match if open { Some(text) } else { text.strip_prefix(MARKS[0]) } {
        None => (None, Some(text.to_owned())),
        Some(inside) => match inside.split_once(MARKS[1]) {
            Some(("", content)) => (None, Some(content.to_owned())),
            Some((reasoning, content)) => (some(reasoning), some(content)),
            None if inside.is_empty() => (None, Some(String::new())),
            None => (some(inside), None),
        },
    }
}

fn said(message: &Value) -> (Option<String>, Option<String>) {
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let text = |key: &str| message[key].as_str().map(str::to_owned);
    (text("reasoning_content"), text("content"))
}

/// The same of a stream's deltas, put together as clients do; also the tokens that came.
fn gathered(events: &[Value]) -> (String, String, Vec<Value>) {
    let (mut reasoning, mut content, mut tokens) = (String::new(), String::new(), Vec::new());
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let delta = &choice["delta"];
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        if let Some(more) = delta["reasoning_content"].as_str() {
            assert!(content.is_empty() && delta.get("content").is_none(), "{delta}");
            reasoning.push_str(more);
        }
        content.push_str(delta["content"].as_str().unwrap_or_default());
        tokens.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
    }
    (reasoning, content, tokens)
}

#[actix_web::test]
async fn reasoning_is_told_from_the_answer_whole_streamed_and_gone_on_with() {
    let (client, served) = client_of!(thinking("think"));
    let mut both = 0;
    for (open, seed) in (0..24).map(|seed| (seed % 2 == 0, seed)) {
        let body = scripted(open, seed);
        let plain = ok!(client, CHATS, with(&body, &json!({"separate_reasoning": false})));
        let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(plain["usage"].get("completion_tokens_details").is_none(), "{plain}");
        let wanted = divided(open, text);
        let whole = ok!(client, CHATS, with(&body, &json!({"logprobs": true})));
        let choice = &whole["choices"][0];
        assert_eq!(said(&choice["message"]), wanted, "{open} {text}");
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 60);
        // The tokens of these models are bytes.
        let end = if wanted.0.is_some() {
            text.find(MARKS[1]).map_or(text.len(), |at| at + MARKS[1].len())
        } else {
            0
        };
        let counted = &whole["usage"]["completion_tokens_details"]["reasoning_tokens"];
        if wanted.0.is_some() {
            assert_eq!(*counted, json!(if open { end } else { end + 1 - MARKS[0].len() }), "{text}");
        }
        let slow = ok!(client, CHATS, with(&body, &json!({"speculation": {"k_max": 0}})));
        assert_eq!(said(&slow["choices"][0]["message"]), wanted);

        let asked = with(&body, &json!({"stream": true, "return_token_ids": true}));
        let streamed = events(&ok!(client, CHATS, asked));
        let (reasoning, content, tokens) = gathered(&streamed);
        let (wanted_reasoning, wanted_content) =
            (wanted.0.clone().unwrap_or_default(), wanted.1.clone().unwrap_or_default());
        assert_eq!((&reasoning, &content), (&wanted_reasoning, &wanted_content), "{text}");
        both += usize::from(wanted.0.is_some() && wanted.1.is_some());
        if seed < 8 {
            for cut in [0, 1, 9, 17, 40] {
                let more = json!({"resume": {"token_ids": tokens[..cut]}, "stream": false});
                let rest = ok!(client, CHATS, with(&asked, &more));
                let (more, content) = said(&rest["choices"][0]["message"]);
                assert!(wanted_reasoning.ends_with(&more.unwrap_or_default()), "{cut}: {rest}");
                assert!(wanted_content.ends_with(&content.unwrap_or_default()), "{cut}: {rest}");
                assert_eq!(
                    rest["usage"]["completion_tokens_details"]["reasoning_tokens"], *counted,
                    "{cut}: {rest}"
                );
            }
            let all = format!("{wanted_reasoning}{wanted_content}");
            for cut in [3, all.len() / 2] {
                let rest = ok!(client, CHATS, with(&body, &json!({"resume": {"text": all[..cut]}})));
                let (more, content) = said(&rest["choices"][0]["message"]);
                assert_eq!(more.unwrap_or_default() + &content.unwrap_or_default(), all[cut..], "{rest}");
            }
        }
    }
    assert!(both >= 4, "reasoning and content in {both} outputs");

    // Where there is to be no thought, and where nobody reads it, all is content.
    let body = with(&scripted(true, 1), &json!({"chat_template_kwargs": {"enable_thinking": false}}));
    let answer = ok!(client, CHATS, body);
    assert!(answer["choices"][0]["message"].get("reasoning_content").is_none(), "{answer}");
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    close(&served).await;
    let (client, served) = client_of!(thinking("none"));
    let answer = ok!(client, CHATS, scripted(true, 1));
    assert!(answer["choices"][0]["message"].get("reasoning_content").is_none(), "{answer}");
    close(&served).await;
}

#[actix_web::test]
async fn stop_strings_are_those_of_the_answer() {
    let (client, served) = client_of!(thinking("think"));
    let mut stopped = 0;
    for seed in 0..8 {
        let body = scripted(true, seed);
        let (reasoning, content) = said(&ok!(client, CHATS, body)["choices"][0]["message"]);
        let (Some(reasoning), Some(content)) = (reasoning, content) else { continue };
        let answer = ok!(client, CHATS, with(&body, &json!({"stop": ["a", "b"]})));
        let choice = &answer["choices"][0];
        let (still, cut) = said(&choice["message"]);
        assert_eq!(still.as_deref(), Some(reasoning.as_str()), "{answer}");
        let end = content.find(['a', 'b']);
        assert_eq!(cut.unwrap_or_default(), content[..end.unwrap_or(content.len())], "{answer}");
        assert_eq!(choice["finish_reason"], if end.is_some() { "stop" } else { "length" });
        stopped += usize::from(end.is_some() && reasoning.contains(['a', 'b']));
    }
    assert!(stopped > 0);
    close(&served).await;
}

/// The tokens of a synthetic model.
fn bytes(text: &str) -> Vec<u8> {
    text.bytes().collect()
}

#[actix_web::test]
async fn forms_and_calls_begin_behind_the_thought() {
    let (client, served) = client_of!(thinking("think"));
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": false});
    let form = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let open = json!({"chat_template_kwargs": {"open": true}});
    let body = with(&chat(&json!({"response_format": form, "max_tokens": 60})), &open);
    // The thought is free. As these models never end one, the client has one, and the first token that its form demands.
    let (reasoning, content) = said(&ok!(client, CHATS, body)["choices"][0]["message"]);
    assert!(reasoning.is_some_and(|reasoning| reasoning.len() >= 60) && content.is_none());
    let behind = json!({"resume": {"token_ids": bytes("It is {\"b\"}.</think>{")}});
    let answer = ok!(client, CHATS, with(&body, &behind));
    let (reasoning, content) = said(&answer["choices"][0]["message"]);
    let value: Value = serde_json::from_str(&format!("{{{}", content.unwrap())).unwrap();
    assert!(reasoning.is_none() && ["x", "yy"].contains(&value["a"].as_str().unwrap()), "{answer}");
    assert_eq!(
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"],
        "It is {\"b\"}.</think>".len()
    );
    let wrong = json!({"resume": {"token_ids": bytes("It is.</think>[1")}});
    let (status, refused) = post!(client, CHATS, with(&body, &wrong));
    assert_eq!((status, &refused["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("resume.token_ids")));
    // Where there is no thought it begins at once.
    let closed = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let (reasoning, content) = said(&ok!(client, CHATS, with(&body, &closed))["choices"][0]["message"]);
    assert!(reasoning.is_none() && serde_json::from_str::<Value>(&content.unwrap()).is_ok());

    let tools = json!([tool("f", &schema)]);
    let thought = "<tool_call>\n{\"name\": \"no\", \"arguments\": {}}</think>";
    let calls = json!({
        "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "stream": true,
        "resume": {"token_ids": bytes(&format!("{thought}<"))},
    });
    let events = events(&ok!(client, CHATS, with(&with(&chat(&calls), &open), &json!({"max_tokens": 300}))));
    let (_, found, finish) = super::tools::gathered(&json!(raw(&events)), 0);
    let [(name, arguments)] = found.as_slice() else { panic!("{events:?}") };
    assert!(name == "f" && serde_json::from_str::<Value>(arguments).unwrap()["a"].is_string());
    assert_eq!(finish, "tool_calls");
    close(&served).await;
}

/// Events as they came.
fn raw(events: &[Value]) -> String {
    let lines: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    lines + "data: [DONE]\n\n"
}

#[actix_web::test]
async fn a_response_has_an_item_for_reasoning_which_comes_back_as_input() {
    let (client, served) = client_of!(thinking("think"));
    for seed in 0..6 {
        let asked = scripted(true, seed);
        let (reasoning, content) = said(&ok!(client, CHATS, asked)["choices"][0]["message"]);
        let mut body = asked;
        let map = body.as_object_mut().unwrap();
        map.remove("messages");
        let most = map.remove("max_tokens").unwrap();
        map.insert("max_output_tokens".to_owned(), most);
        let body = with(&body, &json!({"input": "x"}));
        let whole = ok!(client, RESPONSES, body);
        let items: Vec<(&str, &str)> = whole["output"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (item["type"].as_str().unwrap(), item["content"][0]["text"].as_str().unwrap()))
            .collect();
        let wanted: Vec<(&str, &str)> = [("reasoning", &reasoning), ("message", &content)]
            .into_iter()
            .filter_map(|(kind, text)| Some((kind, text.as_deref()?)))
            .collect();
        assert_eq!(items, wanted, "{whole}");
        if reasoning.is_some() {
            let item = &whole["output"][0];
            assert_eq!(
                (&item["content"][0]["type"], &item["summary"]),
                (&json!("reasoning_text"), &json!([]))
            );
            assert!(item["id"].as_str().unwrap().starts_with("rs_"));
            let tokens = &whole["usage"]["output_tokens_details"]["reasoning_tokens"];
            assert!(tokens.as_u64().unwrap() >= reasoning.as_ref().unwrap().len() as u64, "{whole}");
        }
        let streamed =
            super::responses::built(&ok!(client, RESPONSES, with(&body, &json!({"stream": true}))));
        assert_eq!(super::responses::plain(&streamed), super::responses::plain(&whole));
    }
    // Items of an answer come back as they were, and are one message of the template's.
    let back = json!({"max_output_tokens": 1, "input": [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "id": "rs_1", "status": "completed", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"role": "user", "content": "y"},
    ]});
    let answer = ok!(client, RESPONSES, back);
    let wanted = "[user]x[assistant](hm)so[user]y[assistant]";
    assert_eq!(answer["usage"]["input_tokens"], wanted.len(), "{answer}");
    let messages = json!([
        {"role": "user", "content": "x"}, {"role": "assistant", "reasoning": "hm", "content": "so"}, {"role": "user", "content": "y"},
    ]);
    let answer = ok!(client, CHATS, json!({"messages": messages, "max_tokens": 1}));
    assert_eq!(answer["usage"]["prompt_tokens"], wanted.len(), "{answer}");
    close(&served).await;
}
