//! The API in process: real handlers over a small synthetic pair.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Service as _, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::from_fn;
use actix_web::test::{TestRequest, call_service, init_service, read_body};
use actix_web::{Error, web};
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::app::{App, Served};
use crate::config::Config;
use crate::config::raw::Document;

/// The synthetic pair, with what `more` adds to its config.
async fn daemon(more: &str) -> (web::Data<App>, Arc<Served>) {
    let text = format!(
        "model: {{name: pair, synthetic: {{preset: tiny}}}}\nserver: {{max_body_bytes: 64KiB}}\n{more}"
    );
    let document = Document::parse(Path::new("test.yaml"), text).unwrap();
    let config = Config::from_document(&document).unwrap();
    let loaded = crate::load::load(&config, &mut |_, _| {}).unwrap();
    let served = Arc::new(loaded.start().await.unwrap());
    let app = web::Data::new(App::new(config.server, crate::metrics::install().unwrap()));
    app.serve(Arc::clone(&served));
    (app, served)
}

/// The handlers with everything that stands around them.
macro_rules! client {
    ($app:expr) => {
        init_service(
            actix_web::App::new()
                .app_data($app.clone())
                .wrap(from_fn(super::observe))
                .configure(super::routes),
        )
        .await
    };
}

/// One POST: status and body.
macro_rules! post {
    ($client:expr, $path:expr, $body:expr) => {{
        let request = TestRequest::post().uri($path).set_payload($body.to_string()).to_request();
        let response = call_service(&$client, request).await;
        let status = response.status();
        let body = read_body(response).await;
        (
            status,
            serde_json::from_slice::<Value>(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))),
        )
    }};
}

macro_rules! get {
    ($client:expr, $path:expr) => {{
        let response = call_service(&$client, TestRequest::get().uri($path).to_request()).await;
        (response.status(), read_body(response).await)
    }};
}

/// The events of a stream; the last must be `[DONE]`, which is left out.
fn events(body: &Value) -> Vec<Value> {
    let text = body.as_str().unwrap();
    let mut lines: Vec<&str> =
        text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(lines.pop(), Some("[DONE]"), "{text}");
    lines.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text_of(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// Waits until no sequence holds a block.
async fn idle(served: &Served) {
    for _ in 0..500 {
        let view = served.service.view();
        if served.service.active() == 0 && view.running + view.waiting == 0 {
            assert!(view.target_pool.whole() && view.draft_pool.whole(), "{view:?}");
            return;
        }
        actix_web::rt::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("sequences are left: {:?}", served.service.view());
}

#[actix_web::test]
async fn a_completion_is_the_same_whole_streamed_and_without_speculation() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    let body = json!({"model": "pair", "prompt": "hello", "max_tokens": 40, "seed": 7, "temperature": 0.8});
    let with = |key: &str, value: Value| {
        let mut body = body.clone();
        body[key] = value;
        body
    };
    let (status, whole) = post!(client, "/v1/completions", body);
    assert_eq!(status, StatusCode::OK, "{whole}");
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
    idle(&served).await;
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn text_ends_before_a_stop_string_wherever_tokens_break() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    let ask = |more: Value| {
        let mut body = json!({"prompt": [1, 2, 3], "max_tokens": 60, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
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
    idle(&served).await;
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn several_prompts_are_several_choices_in_their_order() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    let prompts = [json!([4, 5]), json!([6]), json!([7, 8, 9])];
    let ask = |prompt: Value, stream: bool| json!({"prompt": prompt, "max_tokens": 12, "seed": 1, "stream": stream});
    let mut alone = Vec::new();
    for prompt in &prompts {
        let (_, answer) = post!(client, "/v1/completions", ask(prompt.clone(), false));
        alone.push(text_of(&answer).to_owned());
    }
    let (status, together) = post!(client, "/v1/completions", ask(json!(prompts), false));
    assert_eq!(status, StatusCode::OK, "{together}");
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
async fn bad_requests_are_refused_in_openais_shape_and_disturb_nothing() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    let too_long = json!({"prompt": vec![1; 100], "max_tokens": 1_000_000});
    for (path, body, status, code, param) in [
        (
            "/v1/completions",
            json!({"prompt": "x", "temperature": 3}),
            400,
            "invalid_value",
            json!("temperature"),
        ),
        (
            "/v1/completions",
            json!({"prompt": "x", "temprature": 1}),
            400,
            "unknown_parameter",
            json!("temprature"),
        ),
        ("/v1/completions", json!({"prompt": "x", "n": 2}), 400, "unsupported_parameter", json!("n")),
        (
            "/v1/completions",
            json!({"prompt": "x", "echo": true}),
            400,
            "unsupported_parameter",
            json!("echo"),
        ),
        ("/v1/completions", json!({}), 400, "missing_required_parameter", json!("prompt")),
        ("/v1/completions", json!({"prompt": []}), 400, "invalid_value", json!("prompt")),
        ("/v1/completions", json!({"prompt": {}}), 400, "invalid_type", json!("prompt")),
        ("/v1/completions", json!({"prompt": ["x", 3]}), 400, "invalid_type", json!("prompt[1]")),
        ("/v1/completions", json!({"prompt": [[1], [2, -1]]}), 400, "invalid_value", json!("prompt[1][1]")),
        ("/v1/completions", json!({"prompt": [9_999_999]}), 400, "invalid_value", json!("prompt[0]")),
        ("/v1/completions", json!({"prompt": vec!["x"; 65]}), 400, "invalid_value", json!("prompt")),
        ("/v1/completions", json!({"prompt": ""}), 400, "context_length_exceeded", json!("prompt")),
        ("/v1/completions", too_long, 400, "context_length_exceeded", json!("prompt")),
        ("/v1/completions", json!({"prompt": "x", "model": "other"}), 404, "model_not_found", json!("model")),
        ("/v1/completions", json!([]), 400, "invalid_type", json!(null)),
        ("/v1/chat/completions", json!({}), 400, "missing_required_parameter", json!("messages")),
        ("/v1/chat/completions", json!({"messages": []}), 400, "invalid_value", json!("messages")),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "use", "content": "x"}]}),
            400,
            "invalid_value",
            json!("messages[0].role"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user"}]}),
            400,
            "missing_required_parameter",
            json!("messages[0].content"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            400,
            "invalid_value",
            json!("messages[0].content[0].type"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}),
            400,
            "unsupported_parameter",
            json!("tools"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}]}),
            400,
            "chat_template_error",
            json!("messages"),
        ),
        ("/tokenize", json!({}), 400, "missing_required_parameter", json!("prompt")),
        ("/detokenize", json!({"tokens": ["a"]}), 400, "invalid_type", json!("tokens[0]")),
        ("/v1/nothing", json!({}), 404, "not_found", json!(null)),
        ("/v1/models", json!({}), 405, "method_not_allowed", json!(null)),
    ] {
        let (found, answer) = post!(client, path, body);
        let error = &answer["error"];
        assert_eq!(
            (found.as_u16(), &error["code"], &error["param"]),
            (status, &json!(code), &param),
            "{path} {body}: {answer}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{answer}");
    }
    let (status, answer) = post!(client, "/v1/completions", "{\"prompt\": \"x\",,}");
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(answer["error"]["message"].as_str().unwrap().contains("line 1 column 16"), "{answer}");
    let (status, answer) = post!(client, "/v1/completions", "");
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_json")));
    let (status, answer) = post!(client, "/v1/completions", "[".repeat(10_000));
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_json")));
    let (status, answer) = post!(client, "/v1/completions", json!({"prompt": "x".repeat(70_000)}));
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("body_too_large")));
    let (status, _) = get!(client, "/v1/completions");
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(served.service.view().totals.cancelled, 0);
    idle(&served).await;
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_client_that_goes_away_frees_its_blocks() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    let body = json!({"prompt": [1], "max_tokens": 400, "temperature": 0, "stream": true});
    let request = TestRequest::post().uri("/v1/completions").set_payload(body.to_string()).to_request();
    let response = call_service(&client, request).await;
    let mut stream = Box::pin(body_chunks(response));
    assert!(stream.next().await.is_some());
    drop(stream);
    idle(&served).await;
    assert_eq!(served.service.view().totals.cancelled, 1);

    let body = json!({"prompt": [1], "max_tokens": 400, "temperature": 0});
    let request = TestRequest::post().uri("/v1/completions").set_payload(body.to_string()).to_request();
    let short = actix_web::rt::time::timeout(Duration::from_millis(20), client.call(request)).await;
    assert!(short.is_err(), "400 tokens were too fast for this test");
    idle(&served).await;
    assert_eq!(served.service.view().totals.cancelled, 2);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_full_queue_is_429_and_a_draining_daemon_503() {
    let (app, served) = daemon("scheduler: {max_running: 1, max_waiting: 1}\n").await;
    let client = client!(app);
    let body = json!({"prompt": vec![[1]; 3], "max_tokens": 300, "temperature": 0});
    let request = TestRequest::post().uri("/v1/completions").set_payload(body.to_string()).to_request();
    let response = call_service(&client, request).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers().get("retry-after").unwrap(), "1");
    let error: Value = serde_json::from_slice(&read_body(response).await).unwrap();
    assert_eq!(
        (&error["error"]["type"], &error["error"]["code"]),
        (&json!("rate_limit_error"), &json!("queue_full"))
    );
    // The prompts beside the refused one are cancelled.
    idle(&served).await;

    assert_eq!(get!(client, "/ready").0, StatusCode::OK);
    app.start_draining();
    assert_eq!(get!(client, "/ready"), (StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"draining\"}".into()));
    assert_eq!(get!(client, "/health").0, StatusCode::OK);
    let (status, answer) = post!(client, "/v1/completions", json!({"prompt": "x"}));
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("draining")));
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_daemon_that_loads_is_alive_but_not_ready() {
    let document = Document::empty();
    let limits = Config::from_document(&document).unwrap().server;
    let app = web::Data::new(App::new(limits, crate::metrics::install().unwrap()));
    app.set_loading("loading target model: 40 %".to_owned());
    let client = client!(app);
    assert_eq!(get!(client, "/health").0, StatusCode::OK);
    let (status, body) = get!(client, "/ready");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "{\"status\":\"loading target model: 40 %\"}");
    let (status, answer) = post!(client, "/v1/completions", json!({"prompt": "x"}));
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("loading")));
    assert_eq!(get!(client, "/metrics").0, StatusCode::OK);
}

#[actix_web::test]
async fn models_tokens_ids_and_metrics_can_be_asked_for() {
    let (app, served) = daemon("").await;
    let client = client!(app);
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

    let (_, answer) = post!(client, "/v1/completions", json!({"prompt": "x"}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let (_, metrics) = get!(client, "/metrics");
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    for name in [
        "faser_http_requests{route=\"/v1/completions\",code=\"200\"}",
        "faser_kv_blocks_total{model=\"target\"}",
        "faser_spec_decode_num_drafts",
        "faser_spec_decode_num_draft_tokens",
        "faser_spec_decode_num_accepted_tokens",
        "faser_spec_decode_num_accepted_tokens_per_pos{position=\"0\"}",
        "faser_time_to_first_token_seconds_bucket",
    ] {
        assert!(metrics.contains(name), "{name} is missing in\n{metrics}");
    }
    served.service.clone().stop().await;
}

/// The chunks of a response's body.
fn body_chunks<B: MessageBody + 'static>(
    response: ServiceResponse<B>,
) -> impl futures_util::Stream<Item = Result<web::Bytes, Error>> {
    let body = Box::pin(response.into_body());
    futures_util::stream::unfold(body, |mut body| async move {
        let chunk = std::future::poll_fn(|context| body.as_mut().poll_next(context)).await?;
        Some((chunk.map_err(|err| actix_web::error::ErrorInternalServerError(err.into())), body))
    })
}
