//! Fields that real clients send: tokens by their ids, usage as it grows, tokens that may or may not come, prompts that are cut, and salts.
//! Each with and without speculation, whole and streamed.

use super::tools::calling_by;
use super::*;

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(|id| id.as_u64().unwrap()).collect()
}

#[actix_web::test]
async fn every_chunk_has_the_usage_so_far_if_that_is_asked_for() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let (client, served) = client_of!(calling_by("auto", template));
    let said = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": "hello", "max_tokens": 20, "seed": 3})),
        (COMPLETIONS, json!({"prompt": ["hello", "you"], "max_tokens": 12, "seed": 3, "n": 2, "stop": "e"})),
        (COMPLETIONS, json!({"prompt": "hello", "max_tokens": 9, "seed": 3, "echo": true, "logprobs": 1})),
        (CHATS, json!({"messages": said, "max_tokens": 20, "seed": 3})),
    ] {
        let (_, whole) = post!(client, path, body);
        let streamed = |options: Value| with(&body, &json!({"stream": true, "stream_options": options}));
        let answer =
            ok!(client, path, streamed(json!({"include_usage": true, "continuous_usage_stats": true})));
        let all = events(&answer);
        let mut before = 0;
        for event in &all {
            let usage = &event["usage"];
            let count = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{event}"));
            assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
            assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
            assert!(count("completion_tokens") >= before, "{event}");
            before = count("completion_tokens");
        }
        let last = all.last().unwrap();
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(before)));
        // The usage has been told in full before.
        assert_eq!(all[all.len() - 2]["usage"]["completion_tokens"], json!(before), "{body}");
        let text = |index: usize| -> String {
            let own = all.iter().filter(|event| event["choices"][0]["index"] == json!(index));
            own.map(|event| {
                let choice = &event["choices"][0];
                choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned()
            })
            .collect()
        };
        for choice in whole["choices"].as_array().unwrap() {
            let wanted = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
            assert_eq!(text(choice["index"].as_u64().unwrap() as usize), wanted);
        }
        // Nothing of it without the field.
        let (_, plain) = post!(client, path, streamed(json!({"include_usage": true})));
        let plain = events(&plain);
        let (end, others) = plain.split_last().unwrap();
        assert!(others.iter().all(|event| event["usage"].is_null()) && end["usage"].is_object());
    }
    close(&served).await;
}

#[actix_web::test]
async fn tokens_come_by_their_ids_whole_and_streamed() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let (client, served) = client_of!(calling_by("auto", template));
    let body =
        json!({"prompt": ["hello", "you"], "max_tokens": 15, "seed": 3, "n": 2, "return_token_ids": true});
    for more in [json!({}), json!({"stop": "e"}), json!({"echo": true}), json!({"echo": true, "logprobs": 1})]
    {
        let body = with(&body, &more);
        let whole = ok!(client, COMPLETIONS, body);
        let (_, streamed) = post!(client, COMPLETIONS, with(&body, &json!({"stream": true})));
        let streamed = events(&streamed);
        let mut sum = 0;
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let prompt = if index < 2 { "hello" } else { "you" };
            assert_eq!(choice["prompt_token_ids"], json!(prompt.as_bytes()));
            let own: Vec<&Value> = streamed
                .iter()
                .map(|event| &event["choices"][0])
                .filter(|choice| choice["index"] == json!(index))
                .collect();
            assert_eq!(own[0]["prompt_token_ids"], json!(prompt.as_bytes()));
            assert!(own[1..].iter().all(|choice| choice.get("prompt_token_ids").is_none()));
            let of_stream: Vec<u64> = own.iter().flat_map(|choice| ids(&choice["token_ids"])).collect();
            assert_eq!(of_stream, ids(&choice["token_ids"]), "{more}");
            sum += of_stream.len();
            if more == json!({}) {
                let (_, text) = post!(client, "/detokenize", json!({"tokens": of_stream}));
                assert_eq!(text["prompt"], choice["text"]);
            }
        }
        assert_eq!(whole["usage"]["completion_tokens"], json!(sum));
    }
    let said = json!([{"role": "user", "content": "hello"}]);
    let chat = json!({"messages": said, "max_tokens": 9, "seed": 1, "return_token_ids": true, "add_special_tokens": true});
    let (_, whole) = post!(client, CHATS, chat);
    assert_eq!(whole["prompt_token_ids"], json!("hello".as_bytes()));
    assert_eq!(ids(&whole["choices"][0]["token_ids"]).len(), 9);
    let (_, streamed) = post!(client, CHATS, with(&chat, &json!({"stream": true})));
    let streamed = events(&streamed);
    assert_eq!(streamed[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(streamed[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
    let of_stream = streamed[1..].iter().flat_map(|event| ids(&event["choices"][0]["token_ids"]));
    assert_eq!(json!(of_stream.collect::<Vec<_>>()), whole["choices"][0]["token_ids"]);
    let (_, none) = post!(client, CHATS, json!({"messages": said, "max_tokens": 2}));
    assert!(none.get("prompt_token_ids").is_none() && none["choices"][0].get("token_ids").is_none());
    close(&served).await;
}

#[actix_web::test]
async fn only_allowed_tokens_come_and_bad_words_do_not() {
    let (client, served) = client_of!(daemon("speculation: {policy: \"fixed:4\"}\n"));
    let body =
        json!({"prompt": "hello", "max_tokens": 60, "seed": 3, "return_token_ids": true, "ignore_eos": true});
    let written = |answer: &Value| ids(&answer["choices"][0]["token_ids"]);
    for sampling in [json!({"temperature": 0}), json!({}), json!({"top_k": 9, "repetition_penalty": 1.1})] {
        let body = with(&body, &sampling);
        let allowed = json!({"allowed_token_ids": [7, 40, 41, 300, 65]});
        // Letters that come often now: none of them alone, and none of some in a row.
        let words = json!({"allowed_token_ids": (97..107).collect::<Vec<_>>(), "bad_words": ["a", "bc", "dde", "ff", "g h"]});
        for more in [allowed, words] {
            let answer = ok!(client, COMPLETIONS, with(&body, &more));
            let found = written(&answer);
            assert!(
                found.iter().all(|id| more["allowed_token_ids"].as_array().unwrap().contains(&json!(id)))
            );
            if more.get("bad_words").is_some() {
                let text = text_of(&answer);
                assert!(!["a", "bc", "dde", "ff"].iter().any(|bad| text.contains(bad)), "{text}");
            }
            for mode in ["off", "draft"] {
                let plain = with(&with(&body, &more), &json!({"speculation": {"mode": mode}}));
                let (_, plain) = post!(client, COMPLETIONS, plain);
                assert_eq!(written(&plain), found, "{mode} {more}");
            }
        }
    }
    // Two tokens alone may come, and one of them never twice in a row.
    let two =
        json!({"allowed_token_ids": [97, 98], "bad_words": ["aa"], "prompt": "a", "logit_bias": {"97": 100}});
    let (_, answer) = post!(client, COMPLETIONS, with(&body, &two));
    assert_eq!(text_of(&answer), "ab".repeat(30));
    for (more, param) in [
        (json!({"allowed_token_ids": [97, 98], "bad_words": ["b", "xa"]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [97], "stop_token_ids": [97], "min_tokens": 1}), "allowed_token_ids"),
    ] {
        let (status, answer) = post!(client, COMPLETIONS, with(&body, &more));
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)), "{answer}");
    }
    assert!(served.service.view().totals.accepted_tokens > 0);
    close(&served).await;
}

#[actix_web::test]
async fn long_prompts_are_cut_if_that_is_asked_for() {
    let (client, served) = client_of!(daemon("scheduler: {max_context: 64}\n"));
    let body = json!({"max_tokens": 4, "seed": 3, "return_token_ids": true, "echo": true});
    let long: Vec<u32> = (0..200).map(|i| 97 + i % 26).collect();
    let text: String = long.iter().map(|id| *id as u8 as char).collect();
    for prompt in [json!(text), json!(long), json!([long])] {
        for (kept, count) in [(5, 5), (60, 60), (-1, 60)] {
            let body = with(&body, &json!({"prompt": prompt, "truncate_prompt_tokens": kept}));
            let answer = ok!(client, COMPLETIONS, body);
            assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(long[200 - count..]));
            assert!(text_of(&answer).starts_with(&text[200 - count..]), "{answer}");
            assert_eq!(answer["usage"]["prompt_tokens"], json!(count));
        }
        let (status, _) = post!(client, COMPLETIONS, with(&body, &json!({"prompt": prompt})));
        assert_eq!(status, StatusCode::BAD_REQUEST);
    }
    let (_, answer) =
        post!(client, COMPLETIONS, with(&body, &json!({"prompt": "short", "truncate_prompt_tokens": 9})));
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!("short".as_bytes()));
    close(&served).await;
}

#[actix_web::test]
async fn cached_prompts_are_shared_under_one_salt_alone() {
    let (client, served) = client_of!(daemon(""));
    let prompt =
        "a prompt of several blocks, whose keys and values somebody else may have had computed before";
    let mut texts = Vec::new();
    for (salt, cached) in [
        (json!(null), false),
        (json!(null), true),
        (json!("mine"), false),
        (json!("mine"), true),
        (json!("yours"), false),
        (json!(null), true),
    ] {
        let body = json!({"prompt": prompt, "max_tokens": 6, "seed": 3, "cache_salt": salt});
        let answer = ok!(client, COMPLETIONS, body);
        let found = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(found > 0, cached, "{salt}: {answer}");
        texts.push(text_of(&answer).to_owned());
    }
    assert!(texts.iter().all(|text| *text == texts[0]));
    // Also where a stop string ends the text, while the device is ahead.
    let stop: String = texts[0].chars().take(1).collect();
    let body = json!({"prompt": prompt, "max_tokens": 6, "seed": 3, "n": 2, "stop": [stop]});
    let usage = ok!(client, COMPLETIONS, body)["usage"].take();
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{usage}");
    close(&served).await;
}

#[actix_web::test]
async fn templates_that_read_how_long_to_think_are_told_and_others_are_not_asked_to() {
    let reading = "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}{{ verbosity }}:{{ messages[0].content }}";
    let (client, served) = client_of!(calling_by("auto", reading));
    let said =
        json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "return_token_ids": true});
    for (more, prompt) in [
        (json!({}), ":x"),
        (json!({"reasoning_effort": "high"}), "high:x"),
        (json!({"reasoning_effort": "medium", "verbosity": "low"}), "mediumlow:x"),
        (json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}), "low:x"),
    ] {
        let (_, answer) = post!(client, CHATS, with(&said, &more));
        assert_eq!(answer["prompt_token_ids"], json!(prompt.as_bytes()), "{answer}");
    }
    let (_, answer) = post!(
        client,
        "/v1/responses",
        json!({"input": "x", "max_output_tokens": 1, "reasoning": {"effort": "low"}, "text": {"verbosity": "high"}})
    );
    assert_eq!(answer["usage"]["input_tokens"], json!("lowhigh:x".len()), "{answer}");
    assert_eq!(answer["reasoning"], json!({"effort": "low", "summary": null}));
    let both = json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}});
    for (more, code) in [(both, "invalid_value"), (json!({"reasoning_effort": "much"}), "invalid_value")] {
        let (_, answer) = post!(client, CHATS, with(&said, &more));
        assert_eq!(
            (&answer["error"]["param"], &answer["error"]["code"]),
            (&json!("reasoning_effort"), &json!(code))
        );
    }
    close(&served).await;

    let (client, served) = client_of!(calling_by("auto", "{{ messages[0].content }}"));
    let (status, _) =
        post!(client, CHATS, with(&said, &json!({"reasoning_effort": "medium", "verbosity": "medium"})));
    assert_eq!(status, StatusCode::OK);
    for (more, param) in [
        (json!({"reasoning_effort": "none"}), "reasoning_effort"),
        (json!({"verbosity": "low"}), "verbosity"),
    ] {
        let (_, answer) = post!(client, CHATS, with(&said, &more));
        assert_eq!(
            (&answer["error"]["param"], &answer["error"]["code"]),
            (&json!(param), &json!("unsupported_parameter"))
        );
    }
    served.service.clone().stop().await;
}
