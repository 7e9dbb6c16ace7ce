//! `resume`: wherever a stream breaks off, what follows elsewhere is what would have followed there.

use super::tools::{calling_by, chat, tool};
use super::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";

/// What a client has of a choice: text and calls count once tokens, or the end, have come with or behind them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kept {
    text: String,
    calls: Vec<(String, String)>,
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    offsets: Vec<Value>,
    finish: Option<String>,
}

impl Kept {
    /// Reads more events of a choice, behind what it has.
    fn read<'e>(mut self, events: impl IntoIterator<Item = &'e Value>, index: usize) -> Kept {
        let mut pending = self.clone();
        let choices = events.into_iter().filter_map(|event| event["choices"].get(0));
        for choice in choices.filter(|choice| choice["index"] == json!(index)) {
            for text in [&choice["text"], &choice["delta"]["content"]] {
                pending.text.push_str(text.as_str().unwrap_or_default());
            }
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let at = call["index"].as_u64().unwrap() as usize;
                if at == pending.calls.len() {
                    pending
                        .calls
                        .push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
                }
                pending.calls[at].1.push_str(call["function"]["arguments"].as_str().unwrap());
            }
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            let logprobs = &choice["logprobs"];
            pending.logprobs.extend(list(&logprobs["token_logprobs"]));
            pending.logprobs.extend(list(&logprobs["content"]));
            pending.offsets.extend(list(&logprobs["text_offset"]));
            let tokens = list(&choice["token_ids"]);
            pending.finish = choice["finish_reason"].as_str().map(str::to_owned);
            let complete = !tokens.is_empty() || pending.finish.is_some();
            pending.tokens.extend(tokens);
            if complete {
                self = pending.clone();
            }
        }
        self
    }
}

/// Tokens of the prompt and of the output, as the last chunk counts them.
fn counts(events: &[Value]) -> (Value, Value) {
    let usage = &events.last().unwrap()["usage"];
    (usage["prompt_tokens"].clone(), usage["completion_tokens"].clone())
}

fn asking(body: &Value) -> Value {
    with(
        body,
        &json!({"stream": true, "return_token_ids": true,
                "stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
    )
}

/// Breaks the stream of a request off behind so many of its events as there are, has each go on by `resume`, and holds the whole against
/// the one that nobody broke off. What that one said.
macro_rules! goes_on {
    ($client:expr, $path:expr, $body:expr) => {{
        let body = asking(&$body);
        let whole = events(&ok!($client, $path, body));
        let undisturbed = Kept::default().read(&whole, 0);
        assert!(undisturbed.finish.is_some() && !undisturbed.tokens.is_empty(), "{undisturbed:?}");
        let mut seen = None;
        for cut in 0..whole.len() {
            let kept = Kept::default().read(&whole[..cut], 0);
            // Another event of the same tokens adds nothing.
            if kept.finish.is_some() || seen.replace(kept.tokens.len()) == Some(kept.tokens.len()) {
                continue;
            }
            let more = json!({"resume": {"token_ids": kept.tokens}});
            let rest = events(&ok!($client, $path, with(&body, &more)));
            assert_eq!(kept.clone().read(&rest, 0), undisturbed, "behind {cut} events: {kept:?}");
            assert_eq!(counts(&rest), counts(&whole), "behind {cut} events");
            let first = &rest.iter().find(|event| event["choices"][0]["token_ids"].is_array()).unwrap();
            let new = first["choices"][0]["token_ids"].as_array().unwrap().len();
            assert_eq!(first["usage"]["completion_tokens"], json!(kept.tokens.len() + new));
        }
        undisturbed
    }};
}

#[actix_web::test]
async fn a_completion_goes_on_wherever_it_was_broken_off() {
    let (client, served) = client_of!(daemon("speculation: {policy: \"fixed:4\"}\n"));
    let path = "/v1/completions";
    let body = json!({"prompt": "ünïcode", "max_tokens": 40, "seed": 11, "temperature": 0.9});
    let free = goes_on!(client, path, body);
    assert_eq!((free.tokens.len(), free.finish.as_deref()), (40, Some("length")));
    // Characters of several bytes were broken off in their midst.
    assert!(free.text.contains(char::REPLACEMENT_CHARACTER), "{}", free.text);
    let stop: String = free.text.chars().skip(17).take(3).collect();
    for more in [
        json!({"temperature": 0, "seed": null}),
        json!({"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2, "top_k": 40}),
        json!({"bad_words": ["a", "ef"], "logit_bias": {"65": 3}}),
        json!({"logprobs": 3}),
        json!({"logprobs": 1, "echo": true, "max_tokens": 12}),
        json!({"echo": true, "max_tokens": 12}),
        json!({"speculation": {"k_max": 0}, "max_tokens": 12}),
    ] {
        let kept = goes_on!(client, path, with(&body, &more));
        assert!(kept.tokens.len() >= 12, "{more}: {kept:?}");
    }
    for (more, stops) in [
        (json!({"stop": [stop, "never"]}), true),
        (json!({"stop": [stop], "include_stop_str_in_output": true}), true),
        (json!({"stop": [stop], "min_tokens": 39, "max_tokens": 60}), false),
        (json!({"stop_token_ids": [free.tokens[20]]}), true),
        (json!({"stop_token_ids": [free.tokens[20]], "include_stop_str_in_output": true}), true),
        (json!({"stop_token_ids": [free.tokens[20]], "min_tokens": 25}), false),
    ] {
        let kept = goes_on!(client, path, with(&body, &more));
        assert_eq!(
            kept.finish.as_deref() == Some("stop") && kept.tokens.len() < 30,
            stops,
            "{more}: {kept:?}"
        );
    }
    close(&served).await;
}

#[actix_web::test]
async fn forms_and_calls_go_on_too() {
    let (client, served) = client_of!(calling_by("hermes", TEMPLATE));
    let path = "/v1/chat/completions";
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["a", "b"], "properties": {
        "a": {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 2, "maxItems": 4}, "b": {"type": "boolean"}}});
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let kept = goes_on!(client, path, chat(&json!({"response_format": form})));
    assert!(serde_json::from_str::<Value>(&kept.text).is_ok_and(|value| value["a"].is_array()), "{kept:?}");
    let tools = json!([tool("first", &schema), tool("second.one", &schema)]);
    for more in [
        json!({"tool_choice": "required", "parallel_tool_calls": false}),
        json!({"tool_choice": {"type": "function", "function": {"name": "first"}}, "logprobs": true}),
    ] {
        let kept = goes_on!(client, path, with(&chat(&more), &json!({"tools": tools})));
        assert!(!kept.calls.is_empty(), "{more}: {kept:?}");
    }
    // Tokens that the form does not have.
    let more = json!({"response_format": form, "resume": {"token_ids": [65, 65, 65]}});
    let (status, answer) = post!(client, path, chat(&more));
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("resume.token_ids")));
    close(&served).await;
}

#[actix_web::test]
async fn each_of_several_choices_goes_on_by_itself() {
    let (client, served) = client_of!(daemon(""));
    let path = "/v1/completions";
    let body = json!({"prompt": "hello", "max_tokens": 20, "seed": 4});
    let whole = events(&ok!(client, path, asking(&with(&body, &json!({"n": 3})))));
    for index in 0..3 {
        let undisturbed = Kept::default().read(&whole, index);
        // Behind its first tokens, wherever those of the others are.
        let mut cut_off = (0..whole.len()).map(|cut| Kept::default().read(&whole[..cut], index));
        let kept = cut_off.find(|kept| !kept.tokens.is_empty()).unwrap();
        assert!(kept.tokens.len() < undisturbed.tokens.len());
        let more = json!({"resume": {"token_ids": kept.tokens, "choice": index}});
        let rest = events(&ok!(client, path, asking(&with(&body, &more))));
        assert_eq!(kept.read(&rest, 0), undisturbed, "choice {index}");
    }
    close(&served).await;
}

#[actix_web::test]
async fn an_answer_that_is_whole_has_the_rest() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"prompt": "hello", "max_tokens": 20, "seed": 4, "return_token_ids": true});
    let whole = ok!(client, "/v1/completions", body);
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    for had in [0, 1, 7, 20] {
        let rest = ok!(client, "/v1/completions", with(&body, &json!({"resume": {"token_ids": ids[..had]}})));
        let choice = &rest["choices"][0];
        assert_eq!(choice["token_ids"].as_array().unwrap(), &ids[had..]);
        assert!(text_of(&whole).ends_with(text_of(&rest)), "{rest}");
        // What is cached of the output is none of the prompt.
        assert_eq!(rest["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        assert_eq!(
            (&rest["usage"]["completion_tokens"], &choice["finish_reason"]),
            (&json!(20), &json!("length"))
        );
    }
    let more = json!({"resume": {"token_ids": ids[..7]}, "include_metrics": true});
    let metrics = &ok!(client, "/v1/completions", with(&body, &more))["metrics"];
    assert!(metrics["num_target_passes"].as_u64().is_some_and(|passes| passes > 0), "{metrics}");
    // Times of thirteen tokens, by which twenty would be divided.
    for name in ["time_to_first_token_ms", "mean_itl_ms", "tokens_per_second"] {
        assert!(metrics[name].is_null(), "{name}: {metrics}");
    }
    // By the text alone: it is written again, whichever character it was broken off behind.
    let body = json!({"prompt": "hello", "max_tokens": 20, "seed": 4});
    let ends = text_of(&whole).char_indices().map(|(at, _)| at).chain([text_of(&whole).len()]);
    for end in ends {
        let (had, wanted) = text_of(&whole).split_at(end);
        let rest = ok!(client, "/v1/completions", with(&body, &json!({"resume": {"text": had}})));
        assert_eq!(text_of(&rest), wanted, "behind {had:?}");
        assert_eq!(rest["usage"]["completion_tokens"], json!(20));
    }
    close(&served).await;
}

/// What NVIDIA Dynamo's migration sends: the tokens so far as the end of the prompt, and the most tokens less those.
#[actix_web::test]
async fn tokens_behind_the_prompt_are_as_good_where_no_draw_looks_at_the_output() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"seed": 9, "temperature": 0.8, "return_token_ids": true});
    let prompt = json!([5, 6, 7]);
    let whole = ok!(client, "/v1/completions", with(&body, &json!({"prompt": prompt, "max_tokens": 30})));
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    for had in [1, 13, 29] {
        let prompt: Vec<&Value> = prompt.as_array().unwrap().iter().chain(&ids[..had]).collect();
        let more = json!({"prompt": prompt, "max_tokens": 30 - had});
        let rest = ok!(client, "/v1/completions", with(&body, &more));
        assert_eq!(rest["choices"][0]["token_ids"].as_array().unwrap(), &ids[had..], "behind {had}");
    }
    close(&served).await;
}

#[actix_web::test]
async fn the_header_says_the_seed_that_goes_on() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"prompt": "hello", "max_tokens": 20, "return_token_ids": true});
    let request = TestRequest::post().uri("/v1/completions").set_payload(body.to_string()).to_request();
    let response = call_service(&client, request).await;
    let seed: u64 = response.headers().get("x-seed").unwrap().to_str().unwrap().parse().unwrap();
    let whole: Value = serde_json::from_slice(&read_body(response).await).unwrap();
    assert!(seed < 1 << 53, "JavaScript keeps it");
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    let more = json!({"seed": seed, "resume": {"token_ids": ids[..9]}});
    let rest = ok!(client, "/v1/completions", with(&body, &more));
    assert_eq!(rest["choices"][0]["token_ids"].as_array().unwrap(), &ids[9..]);
    close(&served).await;
}

#[actix_web::test]
async fn what_cannot_go_on_is_refused() {
    let (client, served) = client_of!(daemon(""));
    let path = "/v1/completions";
    let body = json!({"prompt": "hello", "max_tokens": 20, "seed": 4, "return_token_ids": true});
    let whole = ok!(client, path, body);
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    let some = json!(ids[..5]);
    for (more, param, words) in [
        (json!({"resume": {"token_ids": some}, "seed": null}), "resume", "x-seed"),
        (json!({"resume": {"token_ids": some}, "n": 2}), "resume", "resume.choice"),
        (json!({"resume": {"token_ids": some}, "prompt": ["a", "b"]}), "resume", "one prompt"),
        (json!({"resume": {"token_ids": some, "text": "x"}}), "resume.text", "exclude"),
        (json!({"resume": {"text": "x"}}), "resume", "resume.token_ids"),
        (json!({"resume": {"token_ids": some}, "max_tokens": 0, "echo": true}), "resume", "max_tokens"),
        (json!({"resume": {"token_ids": some}, "max_tokens": 4}), "resume.token_ids", "are 5"),
        (
            json!({"resume": {"token_ids": some}, "stop_token_ids": [ids[3]]}),
            "resume.token_ids",
            "ends the output",
        ),
        (json!({"resume": {"token_ids": [1_000_000]}}), "resume.token_ids[0]", "from 0 to"),
        (json!({"resume": {"choice": 16}}), "resume.choice", "0 to 15"),
        (json!({"resume": {"tokens": []}}), "resume.tokens", "token_ids"),
    ] {
        let (status, answer) = post!(client, path, with(&body, &more));
        let error = &answer["error"];
        assert_eq!(
            (status, error["param"].as_str()),
            (StatusCode::BAD_REQUEST, Some(param)),
            "{more}: {answer}"
        );
        assert!(error["message"].as_str().unwrap().contains(words), "{more}: {answer}");
    }
    // Tokens and texts of another request: whole and streamed.
    let mut other = ids[..5].to_vec();
    other[4] = json!((other[4].as_u64().unwrap() + 1) % 256);
    let text = with(&body, &json!({"return_token_ids": false}));
    for other in [
        with(&body, &json!({"resume": {"token_ids": other}})),
        with(&body, &json!({"resume": {"token_ids": ids[..1]}, "seed": 9})),
        with(&text, &json!({"resume": {"text": format!("{}x", text_of(&whole))}})),
        with(&text, &json!({"resume": {"text": "x"}, "seed": 5})),
    ] {
        let (status, answer) = post!(client, path, other);
        let code = &answer["error"]["code"];
        assert_eq!((status, code), (StatusCode::CONFLICT, &json!("resume_mismatch")), "{answer}");
        let (status, events) = post!(client, path, with(&other, &json!({"stream": true})));
        assert_eq!(status, StatusCode::OK);
        assert!(events.as_str().unwrap().contains("resume_mismatch"), "{events}");
    }
    // The rest of a call has no place in a whole answer.
    let tools = json!([{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}]);
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "seed": 1, "tools": tools,
        "resume": {"token_ids": some}});
    let (status, answer) = post!(client, "/v1/chat/completions", chat);
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("\"stream\": true"), "{answer}");
    let (status, answer) = post!(client, "/v1/responses", json!({"input": "x", "resume": {}}));
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("resume")), "{answer}");
    close(&served).await;
}
