//! What is answered: completions, chats, streams, and the small routes.

use super::*;

#[actix_web::test]
async fn a_completion_is_the_same_whole_streamed_and_without_speculation() {
    let (client, served) = client_of!(daemon(""));
    let body = json!({"model": "pair", "prompt": "hello", "max_tokens": 40, "seed": 7, "temperature": 0.8});
    let with = |key: &str, value: Value| {
        let mut body = body.clone();
        body[key] = value;
        body
    };
    let whole = ok!(client, "/v1/completions", body);
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["model"], "pair");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    assert_eq!(whole["usage"]["total_tokens"], 45);
    assert!(!text_of(&whole).is_empty());

    let (_, plain) = post!(client, "/v1/completions", with("speculation", json!({"k_max": 0})));
    assert_eq!(text_of(&plain), text_of(&whole));

    let mut streaming = with("stream", json!(true));
    streaming["stream_options"] = json!({"include_usage": true});
    let (status, streamed) = post!(client, "/v1/completions", streaming);
    assert_eq!(status, StatusCode::OK);
    let events = events(&streamed);
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, text_of(&whole));
    let [.., end, usage] = events.as_slice() else { panic!("{streamed}") };
    assert_eq!(end["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 45);
    close(&served).await;
}

#[actix_web::test]
async fn text_ends_before_a_stop_string_wherever_tokens_break() {
    let (client, served) = client_of!(daemon(""));
    let ask = |more: Value| with(&json!({"prompt": [1, 2, 3], "max_tokens": 60, "temperature": 0}), &more);
    let (_, free) = post!(client, "/v1/completions", ask(json!({})));
    let free = text_of(&free).to_owned();
    let characters: Vec<char> = free.chars().collect();
    for start in [5, 17, 30] {
        let stop: String = characters[start..start + 3].iter().collect();
        let wanted = &free[..free.find(&stop).unwrap()];
        let (_, whole) = post!(client, "/v1/completions", ask(json!({"stop": stop})));
        assert_eq!(text_of(&whole), wanted);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let (_, streamed) =
            post!(client, "/v1/completions", ask(json!({"stop": [stop, "never"], "stream": true})));
        let text: String =
            events(&streamed).iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, wanted);
    }
    close(&served).await;
}

#[actix_web::test]
async fn several_prompts_are_several_choices_in_their_order() {
    let (client, served) = client_of!(daemon(""));
    let prompts = [json!([4, 5]), json!([6]), json!([7, 8, 9])];
    let ask = |prompt: Value, stream: bool| json!({"prompt": prompt, "max_tokens": 12, "seed": 1, "stream": stream});
    let mut alone = Vec::new();
    for prompt in &prompts {
        let (_, answer) = post!(client, "/v1/completions", ask(prompt.clone(), false));
        alone.push(text_of(&answer).to_owned());
    }
    let together = ok!(client, "/v1/completions", ask(json!(prompts), false));
    let (_, streamed) = post!(client, "/v1/completions", ask(json!(prompts), true));
    let events = events(&streamed);
    for (index, wanted) in alone.iter().enumerate() {
        assert_eq!(together["choices"][index]["text"], json!(wanted));
        assert_eq!(together["choices"][index]["index"], json!(index));
        let of_index =
            events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == json!(index));
        let text: String = of_index.filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(text, *wanted);
    }
    assert_eq!(together["usage"]["prompt_tokens"], 6);
    assert_eq!(together["usage"]["completion_tokens"], 36);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_model_answers_to_each_of_its_names() {
    let yaml = "model: {name: pair, aliases: [gpt-4o, some/other], synthetic: {preset: tiny}}\n";
    let (client, served) = client_of!(daemon_of(yaml, None));
    let (_, list) = get!(client, "/v1/models");
    let list: Value = serde_json::from_slice(&list).unwrap();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["pair", "gpt-4o", "some/other"]);
    let (status, one) = get!(client, "/v1/models/some/other");
    assert_eq!(status, StatusCode::OK);
    let head = TestRequest::with_uri("/v1/models").method("HEAD".parse().unwrap()).to_request();
    assert_eq!(call_service(&client, head).await.status(), StatusCode::OK);
    let one: Value = serde_json::from_slice(&one).unwrap();
    assert_eq!((&one, &one["root"]), (&list["data"][2], &json!("pair")));

    let mut texts = Vec::new();
    for (asked, told) in [(json!("pair"), "pair"), (json!("gpt-4o"), "gpt-4o"), (json!(null), "pair")] {
        let body = json!({"model": asked, "prompt": [1, 2], "max_tokens": 6, "seed": 1});
        let (status, answer) = post!(client, "/v1/completions", body);
        assert_eq!((status, &answer["model"]), (StatusCode::OK, &json!(told)), "{answer}");
        texts.push(text_of(&answer).to_owned());
    }
    assert_eq!(texts, vec![texts[0].clone(); 3]);
    let (_, streamed) = post!(
        client,
        "/v1/completions",
        json!({"model": "gpt-4o", "prompt": [1], "max_tokens": 2, "stream": true})
    );
    assert!(events(&streamed).iter().all(|event| event["model"] == "gpt-4o"));
    let (status, answer) = post!(client, "/tokenize", json!({"model": "some/other", "prompt": "x"}));
    assert_eq!((status, &answer["count"]), (StatusCode::OK, &json!(1)));
    let (status, answer) = post!(client, "/v1/completions", json!({"model": "gpt-4", "prompt": "x"}));
    assert_eq!(status, StatusCode::NOT_FOUND);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("this server has `pair`, `gpt-4o`, `some/other`"), "{message}");
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn an_alias_that_is_the_name_of_the_pair_is_refused() {
    let text = "model: {aliases: [synthetic], synthetic: {preset: tiny}}\n".to_owned();
    let document = Document::parse(Path::new("test.yaml"), text).unwrap();
    let config = Config::from_document(&document).unwrap();
    let loaded = faser_loading::load_pairs::load(&config, &mut |_, _| {});
    let refused = loaded.err().map(|err| err.to_string()).unwrap();
    assert!(refused.contains("`model.aliases` names `synthetic`"), "{refused}");
}

#[actix_web::test]
async fn models_tokens_ids_and_metrics_can_be_asked_for() {
    let (client, served) = client_of!(daemon(""));
    let (_, list) = get!(client, "/v1/models");
    let list: Value = serde_json::from_slice(&list).unwrap();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("pair")));
    assert_eq!(get!(client, "/v1/models/pair").0, StatusCode::OK);
    assert_eq!(get!(client, "/v1/models/some/other").0, StatusCode::NOT_FOUND);

    let (_, tokens) = post!(client, "/tokenize", json!({"prompt": "héllo"}));
    assert_eq!(tokens["count"], 6);
    let (_, text) = post!(client, "/detokenize", json!({"tokens": tokens["tokens"]}));
    assert_eq!(text, json!({"prompt": "héllo"}));

    let request = TestRequest::get().uri("/health").insert_header(("x-request-id", "abc-1")).to_request();
    assert_eq!(call_service(&client, request).await.headers().get("x-request-id").unwrap(), "abc-1");
    let request =
        TestRequest::get().uri("/health").insert_header(("x-request-id", "with space")).to_request();
    let response = call_service(&client, request).await;
    assert_eq!(response.headers().get("x-request-id").unwrap().len(), 32);

    let refused =
        TestRequest::post().uri("/v1/completions").insert_header(("x-request-id", "abc-2")).to_request();
    assert_eq!(call_service(&client, refused).await.headers().get("x-request-id").unwrap(), "abc-2");

    let (_, answer) = post!(client, "/v1/completions", json!({"prompt": "x"}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let (_, metrics) = get!(client, "/metrics");
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    for name in [
        "faser_http_requests_total{route=\"/v1/completions\",code=\"200\"}",
        "faser_kv_blocks_total{model=\"target\"}",
        "faser_spec_decode_num_drafts_total",
        "faser_spec_decode_num_draft_tokens_total",
        "faser_spec_decode_num_accepted_tokens_total",
        "faser_spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}",
        "faser_time_to_first_token_seconds_bucket",
    ] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn chats_go_through_the_models_template() {
    let folder = std::env::temp_dir().join(format!("faser-template-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(folder.join("chat_template.jinja"), source).unwrap();
    let template = ChatTemplate::load(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let (client, served) = client_of!(daemon_with("scheduler: {max_context: 128}\n", Some(template)));
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let messages = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]);
    let prompt = "<system>be brief<user>one\ntwo<assistant>";

    let (_, tokens) = post!(client, "/tokenize", json!({"messages": messages}));
    assert_eq!(tokens["count"], prompt.len());
    let chat = ok!(client, "/v1/chat/completions", json!({"messages": messages, "temperature": 0}));
    // Without max_tokens a chat may fill the context.
    assert_eq!(chat["usage"]["total_tokens"], 128);
    assert_eq!(chat["choices"][0]["finish_reason"], "length");
    assert_eq!(chat["choices"][0]["message"]["role"], "assistant");
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();
    let rest = 128 - prompt.len();
    let (_, plain) =
        post!(client, "/v1/completions", json!({"prompt": prompt, "temperature": 0, "max_tokens": rest}));
    assert_eq!(text_of(&plain), text);

    let (_, streamed) = post!(
        client,
        "/v1/chat/completions",
        json!({"messages": messages, "temperature": 0, "stream": true})
    );
    let events = events(&streamed);
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let streamed: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(streamed, text);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn an_answer_from_before_the_handlers_has_an_id_too() {
    async fn refuse(
        _: actix_web::dev::ServiceRequest,
        _: actix_web::middleware::Next<actix_web::body::BoxBody>,
    ) -> Result<ServiceResponse, Error> {
        Err(faser_openai::errors::ApiError::unavailable("not today", "test").into())
    }
    let refusing = actix_web::App::new().wrap(from_fn(refuse)).wrap(from_fn(faser_openai::observe));
    let client = init_service(refusing.configure(faser_openai::routes)).await;
    let request = TestRequest::get().uri("/health").insert_header(("x-request-id", "abc-3")).to_request();
    let refusal = client.call(request).await.unwrap_err();
    let response = refusal.error_response();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers().get("x-request-id").unwrap(), "abc-3");
    assert_eq!(response.headers().get("retry-after").unwrap(), "1");
}
