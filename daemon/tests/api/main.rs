//! The API in process: real handlers over a small synthetic pair.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{Service as _, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::from_fn;
use actix_web::test::{TestRequest, call_service, init_service, read_body};
use actix_web::{Error, web};
use faser_config::Config;
use faser_config::raw::Document;
use faser_models::ChatTemplate;
use faser_openai::app::App;
use faser_openai::pairs::Pairs;
use faser_openai::pairs::Served;
use futures_util::StreamExt;
use serde_json::{Value, json};

/// The synthetic pair, with what `more` adds to its config.
async fn daemon(more: &str) -> (web::Data<App>, Arc<Served>) {
    daemon_with(more, None).await
}

async fn daemon_with(more: &str, template: Option<ChatTemplate>) -> (web::Data<App>, Arc<Served>) {
    let pair = "model: {name: pair, synthetic: {preset: tiny}}\nserver: {max_body_bytes: 64KiB}\n";
    daemon_of(&format!("{pair}{more}"), template).await
}

async fn daemon_of(yaml: &str, template: Option<ChatTemplate>) -> (web::Data<App>, Arc<Served>) {
    faser_openai::grammars::try_by(env!("CARGO_BIN_EXE_faser").into());
    let text = yaml.to_owned();
    let document = Document::parse(Path::new("test.yaml"), text).unwrap();
    let config = Config::from_document(&document).unwrap();
    let mut loaded = faser_loading::load_pairs::load(&config, &mut |_, _| {}).unwrap();
    if let Some(template) = template {
        loaded.template = Ok(template);
    }
    // Before anything registers its metrics, as the daemon does.
    let metrics = faser_openai::metrics_recorder::install().unwrap();
    let served = Arc::new(loaded.start().await.unwrap());
    let app = web::Data::new(App::new(config.server, Arc::default(), metrics));
    app.serve(Pairs::new(vec![Arc::clone(&served)]));
    (app, served)
}

/// The handlers with everything that stands around them.
macro_rules! client {
    ($app:expr) => {
        init_service(
            actix_web::App::new()
                .app_data($app.clone())
                .wrap(from_fn(faser_openai::authorize))
                .wrap(from_fn(faser_openai::observe))
                .configure(faser_openai::routes),
        )
        .await
    };
}

/// A client of a daemon, and what that serves.
macro_rules! client_of {
    ($daemon:expr) => {{
        let (app, served) = $daemon.await;
        (client!(app), served)
    }};
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

/// The answer to one POST that is taken.
macro_rules! ok {
    ($($what:tt)*) => {{
        let (status, answer) = post!($($what)*);
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }};
}

macro_rules! get {
    ($client:expr, $path:expr) => {{
        let response = call_service(&$client, TestRequest::get().uri($path).to_request()).await;
        (response.status(), read_body(response).await)
    }};
}

/// The body with more fields.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text and the log-probabilities of a choice of a stream, put together again.
fn streamed(events: &[Value], index: usize) -> (String, Value) {
    let (mut text, mut lists) = (String::new(), json!({}));
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        if choice["index"] == json!(index) {
            text.push_str(choice["text"].as_str().unwrap());
            for (name, list) in choice["logprobs"].as_object().into_iter().flatten() {
                if lists[name].is_null() {
                    lists[name] = json!([]);
                }
                lists[name].as_array_mut().unwrap().extend(list.as_array().unwrap().clone());
            }
        }
    }
    (text, lists)
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

/// Stops a daemon of which nothing is left.
async fn close(served: &Served) {
    idle(served).await;
    served.service.clone().stop().await;
}

/// Waits until a sequence runs.
async fn runs(served: &Served) {
    while served.service.view().running == 0 {
        actix_web::rt::time::sleep(Duration::from_millis(1)).await;
    }
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

mod access;
mod answers;
mod chats;
mod clients;
mod fields;
mod forms;
mod greedy;
mod handling;
mod harmony;
mod json_calls;
mod life;
mod openapi;
mod reasoning;
mod refusals;
mod responses;
mod resume;
mod router;
mod scoring;
mod tools;
mod trace;
