//! Fields that shape an answer: choices, log-probabilities, repeated prompts, ends that wait. Each whole, streamed, and without speculation.

use super::*;

#[actix_web::test]
async fn log_probabilities_are_the_same_whole_streamed_and_without_speculation() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"prompt": "hello", "max_tokens": 30, "seed": 7, "temperature": 0.9, "logprobs": 4});
    let whole = ok!(client, "/v1/completions", body);
    let told = &whole["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(told[list].as_array().map(Vec::len), Some(30), "{told}");
    }
    for (own, top) in
        told["token_logprobs"].as_array().unwrap().iter().zip(told["top_logprobs"].as_array().unwrap())
    {
        let (own, top) = (own.as_f64().unwrap(), top.as_object().unwrap());
        assert!(own <= 0.0 && (4..=5).contains(&top.len()), "{top:?}");
        assert!(top.values().any(|value| value.as_f64() == Some(own)));
        assert!(top.values().map(|value| value.as_f64().unwrap().exp()).sum::<f64>() < 1.0001);
    }
    assert_eq!(told["text_offset"][0], 0);
    let (_, plain) = post!(client, "/v1/completions", with(&body, &json!({"speculation": {"k_max": 0}})));
    assert_eq!(plain["choices"][0], whole["choices"][0]);
    let (_, events_of) = post!(client, "/v1/completions", with(&body, &json!({"stream": true})));
    assert_eq!(streamed(&events(&events_of), 0), (text_of(&whole).to_owned(), told.clone()));

    // By id: which token it was can be told from the name alone.
    let (_, ids) =
        post!(client, "/v1/completions", with(&body, &json!({"return_tokens_as_token_ids": true})));
    let ids = &ids["choices"][0]["logprobs"];
    assert_eq!(ids["token_logprobs"], told["token_logprobs"]);
    let name = ids["tokens"][0].as_str().unwrap();
    assert!(name.strip_prefix("token_id:").is_some_and(|id| id.parse::<u32>().is_ok()), "{name}");
    close(&served).await;
}

#[actix_web::test]
async fn a_repeated_prompt_is_scored_with_and_without_output() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"prompt": "the same ünïcode prompt, twice", "echo": true, "logprobs": 2, "seed": 5, "max_tokens": 3});
    let tokens = "the same ünïcode prompt, twice".len();
    let whole = ok!(client, "/v1/completions", body);
    assert!(text_of(&whole).starts_with("the same ünïcode prompt, twice"), "{whole}");
    let told = &whole["choices"][0]["logprobs"];
    assert_eq!(told["tokens"].as_array().map(Vec::len), Some(tokens + 3));
    assert_eq!((&told["token_logprobs"][0], &told["top_logprobs"][0]), (&json!(null), &json!(null)));
    assert!(told["token_logprobs"].as_array().unwrap()[1..].iter().all(|value| value.as_f64().is_some()));
    // Two bytes of one character, which has one place.
    let offsets = told["text_offset"].as_array().unwrap();
    assert_eq!((&offsets[9], &offsets[10], &offsets[11]), (&json!(9), &json!(9), &json!(10)));
    assert_eq!((&told["tokens"][0], &told["tokens"][9]), (&json!("t"), &json!("bytes:\\xc3")));
    assert_eq!(offsets[tokens], json!("the same ünïcode prompt, twice".chars().count()));

    // Again, now that the prompt's KV is cached; alone; streamed; of two choices; and without log-probabilities.
    let (_, again) = post!(client, "/v1/completions", body);
    assert_eq!(again["choices"], whole["choices"]);
    let alone = ok!(client, "/v1/completions", with(&body, &json!({"max_tokens": 0})));
    assert_eq!(text_of(&alone), "the same ünïcode prompt, twice");
    assert_eq!(alone["usage"]["completion_tokens"], 0);
    let score = &alone["choices"][0]["logprobs"]["token_logprobs"];
    assert_eq!(score.as_array().unwrap()[..], told["token_logprobs"].as_array().unwrap()[..tokens]);
    let (_, events_of) = post!(client, "/v1/completions", with(&body, &json!({"stream": true, "n": 2})));
    let events = events(&events_of);
    assert_eq!(streamed(&events, 0), (text_of(&whole).to_owned(), told.clone()));
    let second = streamed(&events, 1).1;
    assert_eq!(second["token_logprobs"].as_array().unwrap()[..tokens], score.as_array().unwrap()[..]);
    let (_, plain) = post!(client, "/v1/completions", with(&body, &json!({"logprobs": null})));
    assert_eq!((text_of(&plain), &plain["choices"][0]["logprobs"]), (text_of(&whole), &json!(null)));
    close(&served).await;
}

#[actix_web::test]
async fn a_long_prompt_is_repeated_in_parts_that_make_up_the_whole() {
    let (client, served) = client_of!(daemon(""));
    // Characters of two bytes, which are broken wherever a part ends.
    let prompt = "aü".repeat(850);
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "seed": 5, "max_tokens": 3});
    let whole = ok!(client, "/v1/completions", body);
    let (text, told) = (text_of(&whole).to_owned(), &whole["choices"][0]["logprobs"]);
    assert!(text.starts_with(&prompt), "{text}");
    let offsets: Vec<u64> =
        told["text_offset"].as_array().unwrap().iter().map(|place| place.as_u64().unwrap()).collect();
    assert_eq!(offsets.len(), prompt.len() + 3);
    let places = (0..prompt.len() as u64).map(|byte| 2 * (byte / 3) + u64::from(byte % 3 > 0));
    assert_eq!(offsets[..prompt.len()], places.collect::<Vec<_>>());
    assert_eq!(offsets[prompt.len()], 1700);
    let (_, sent) = post!(client, "/v1/completions", with(&body, &json!({"stream": true})));
    let events = events(&sent);
    let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(parts.map(Vec::len).max(), Some(512), "1024 log-probabilities");
    assert_eq!(streamed(&events, 0), (text.clone(), told.clone()));
    // Of two choices, cut at its end, and of ids: as they decode.
    let two = ok!(client, "/v1/completions", with(&body, &json!({"n": 2, "return_token_ids": true})));
    assert_eq!(two["choices"][0]["logprobs"], *told);
    let ids = &two["choices"][0]["prompt_token_ids"];
    let cut = json!({"truncate_prompt_tokens": 9, "logprobs": null});
    for prompt in [json!(prompt), ids.clone()] {
        let body = with(&with(&body, &cut), &json!({"prompt": prompt}));
        let answer = ok!(client, "/v1/completions", body);
        assert!(text_of(&answer).starts_with("aüaüaü"), "{answer}");
        assert_eq!(answer["usage"]["prompt_tokens"], 9);
    }
    let of_ids = ok!(client, "/v1/completions", with(&body, &json!({"prompt": ids})));
    assert_eq!(of_ids["choices"], whole["choices"]);
    close(&served).await;
}

#[actix_web::test]
async fn choices_share_the_prompt_and_have_seeds_of_their_own() {
    let (client, served) = client_of!(daemon(""));
    let prompt = "a prompt of several blocks, whose keys and values are there once for all its choices";
    let body = json!({"prompt": prompt, "max_tokens": 12, "seed": 3, "n": 4});
    let whole = ok!(client, "/v1/completions", body);
    let texts: Vec<&str> =
        whole["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 4);
    assert!(texts[1..].iter().all(|text| *text != texts[0]), "{texts:?}");
    assert_eq!(whole["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(whole["usage"]["completion_tokens"], 48);
    // Of three choices all but the last token, which `usage` tells in steps of 16.
    let shared = 3 * (prompt.len() - 1) / 16 * 16;
    assert!(
        whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() >= Some(shared as u64 / 2),
        "{whole}"
    );
    let (_, alone) = post!(client, "/v1/completions", with(&body, &json!({"n": 1})));
    assert_eq!(text_of(&alone), texts[0]);
    let (_, events_of) = post!(
        client,
        "/v1/completions",
        with(&body, &json!({"stream": true, "prompt": [prompt, "another"]}))
    );
    let events = events(&events_of);
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(streamed(&events, index).0, *text);
    }
    assert!(!streamed(&events, 7).0.is_empty());
    close(&served).await;
}

#[actix_web::test]
async fn ends_wait_for_enough_tokens_and_may_be_shown() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0, "logprobs": 0, "return_tokens_as_token_ids": true});
    let (_, free) = post!(client, "/v1/completions", body);
    let id = |at: usize| -> u32 {
        let name = free["choices"][0]["logprobs"]["tokens"][at].as_str().unwrap();
        name.strip_prefix("token_id:").unwrap().parse().unwrap()
    };
    // A token that is not in the text before, so that the text ends at it.
    let at = (4..40).find(|at| (0..*at).all(|before| id(before) != id(*at))).unwrap();
    let stop = json!({"stop_token_ids": [id(at)]});
    let count = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    let (_, ended) = post!(client, "/v1/completions", with(&body, &stop));
    assert_eq!((count(&ended), &ended["choices"][0]["finish_reason"]), (at, &json!("stop")));
    let (_, shown) = post!(
        client,
        "/v1/completions",
        with(&with(&body, &stop), &json!({"include_stop_str_in_output": true}))
    );
    assert_eq!(count(&shown), at + 1);
    assert!(text_of(&shown).starts_with(text_of(&ended)) && text_of(&shown).len() > text_of(&ended).len());
    let (_, later) =
        post!(client, "/v1/completions", with(&with(&body, &stop), &json!({"min_tokens": at + 3})));
    assert!(count(&later) >= at + 3, "{later}");
    let (_, plain) = post!(
        client,
        "/v1/completions",
        with(&with(&body, &stop), &json!({"min_tokens": at + 3, "speculation": {"k_max": 0}}))
    );
    assert_eq!(plain["choices"], later["choices"]);

    // Stop strings too.
    let characters: Vec<char> = text_of(&free).chars().collect();
    let stop: String = characters[4..7].iter().collect();
    let end = text_of(&free).find(&stop).unwrap() + stop.len();
    let shown = with(&body, &json!({"stop": stop, "include_stop_str_in_output": true}));
    let (_, answer) = post!(client, "/v1/completions", shown);
    assert_eq!(text_of(&answer), &text_of(&free)[..end]);
    let waits = with(&body, &json!({"stop": stop, "min_tokens": 40}));
    let (_, answer) = post!(client, "/v1/completions", waits);
    assert_eq!(text_of(&answer), text_of(&free));
    close(&served).await;
}
