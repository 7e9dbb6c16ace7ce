//! The admin API in process: who may what, and what calls do, over a small synthetic pair.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::ResponseError;
use actix_web::body::to_bytes;
use actix_web::http::{Method, StatusCode};
use actix_web::web;
use faser_actors::{Sampling, Submission, Update};
use faser_config::Config;
use faser_config::raw::{ConfigSource, Document};
use faser_engine::FinishReason;
use faser_openai::app::App;
use faser_openai::pairs::Pairs;
use faser_openai::pairs::Served;
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;

use super::admin_request::{Asked, respond};
use super::peer::Operators;
use super::peer::Peer;
use super::*;
use crate::log::LogLevel;
use crate::reload::Reload;

const PAIR: &str =
    "model: {name: pair, synthetic: {preset: tiny}}\nspeculation: {policy: 'fixed:2', cost_cache: none}\n";

/// A daemon without sockets, whose config file has been taken away.
async fn daemon(text: &str) -> (web::Data<Admin>, Arc<Served>) {
    let document = Document::parse(Path::new("test.yaml"), text.to_owned()).unwrap();
    let config = Config::from_document(&document).unwrap();
    let served =
        Arc::new(faser_loading::load_pairs::load(&config, &mut |_, _| {}).unwrap().start().await.unwrap());
    let app = web::Data::new(App::new(
        config.server.clone(),
        Arc::default(),
        faser_openai::metrics_recorder::install().unwrap(),
    ));
    app.serve(Pairs::new(vec![Arc::clone(&served)]));
    let source = ConfigSource { file: Some("/nowhere/faser.yaml".into()), flags: Vec::new() };
    let level = LogLevel::told(Arc::default());
    let reload = Arc::new(AsyncMutex::new(Reload::new(source, document, config, level)));
    (web::Data::new(Admin::new(app, reload, Operators::default())), served)
}

async fn asked(admin: &web::Data<Admin>, may_change: bool, asked: &Asked<'_>) -> (StatusCode, Value) {
    let peer = Peer { uid: Some(1), pid: Some(1), may_change };
    let response = respond(admin, &peer, asked).await.unwrap_or_else(|err| err.error_response());
    let status = response.status();
    let body = to_bytes(response.into_body()).await.unwrap();
    let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
    (status, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
}

/// One call by somebody who may change things: status and body.
async fn call(admin: &web::Data<Admin>, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let body = body.to_string();
    let call = Asked { method: &method, path, query: "", tag: None, body: body.as_bytes() };
    asked(admin, true, &call).await
}

async fn get(admin: &web::Data<Admin>, path: &str) -> Value {
    let (status, body) = call(admin, Method::GET, path, &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    body
}

fn submission(tokens: usize) -> Submission {
    Submission {
        prompt: vec![1, 2, 3],
        sampling: Sampling { temperature: 0.8, seed: 1, ..Sampling::default() },
        max_new_tokens: tokens,
        stop_tokens: Vec::new(),
        ..Submission::default()
    }
}

#[actix_web::test]
async fn who_may_only_look_changes_nothing_and_is_told_how_to() {
    let (admin, served) = daemon(PAIR).await;
    for route in admin_api::ROUTES.iter().filter(|route| route.path != "/v1/events") {
        let path = route.path.replace("{id}", "0-1");
        let body = match route.method.as_str() {
            "PATCH" => r#"{"k_max": 1}"#,
            "PUT" => r#"{"level": "debug"}"#,
            _ => "",
        };
        let call = Asked { method: &route.method, path: &path, query: "", tag: None, body: body.as_bytes() };
        let (status, body) = asked(&admin, false, &call).await;
        let wanted = if route.method == Method::GET { StatusCode::OK } else { StatusCode::FORBIDDEN };
        assert_eq!(status, wanted, "{} {path}: {body}", route.method);
        if status == StatusCode::FORBIDDEN {
            assert!(body["error"]["message"].as_str().unwrap().contains("admin.group"), "{body}");
        }
    }
    assert_eq!(get(&admin, "/v1/policy").await["k_max"], Value::Null);
    assert_eq!(get(&admin, "/v1/status").await["state"], "serving");
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn requests_are_seen_and_one_is_cancelled() {
    let (admin, served) = daemon(PAIR).await;
    let mut stream = served.service.submit(submission(4000)).await.unwrap();
    assert!(matches!(stream.next().await, Some(Update::Tokens(_))));
    let requests = get(&admin, "/v1/requests").await["requests"].clone();
    let (id, state) = (requests[0]["id"].as_str().unwrap(), &requests[0]["state"]);
    assert_eq!((requests.as_array().unwrap().len(), state), (1, &json!("decode")), "{requests}");
    assert_eq!((&requests[0]["prompt_tokens"], &requests[0]["max_new_tokens"]), (&json!(3), &json!(4000)));
    assert!(requests[0]["output_tokens"].as_u64() > Some(0) && !requests.to_string().contains("\"prompt\""));
    let status = get(&admin, "/v1/status").await;
    assert_eq!((&status["total"]["running"], &status["slowest"][0]["id"]), (&json!(1), &json!(id)));
    let (code, body) = call(&admin, Method::POST, &format!("/v1/requests/{id}/cancel"), &json!({})).await;
    assert_eq!((code, &body["cancelled"]), (StatusCode::OK, &json!(id)), "{body}");
    let ended = loop {
        match stream.next().await {
            Some(Update::Tokens(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Some(Update::Finished { reason: FinishReason::Cancelled, .. })), "{ended:?}");
    let (code, body) = call(&admin, Method::POST, &format!("/v1/requests/{id}/cancel"), &json!({})).await;
    assert_eq!((code, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("no_such_request")));
    let (code, _) = call(&admin, Method::POST, "/v1/requests/7-1/cancel", &json!({})).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn policies_are_set_all_or_none_and_only_as_the_engine_can() {
    let (admin, served) = daemon(PAIR).await;
    let set = async |body: Value| call(&admin, Method::PATCH, "/v1/policy", &body).await;
    let (code, changes) = set(json!({"policy": "fixed:5", "max_running": 3, "tpot_ms": 40})).await;
    assert_eq!(code, StatusCode::OK, "{changes}");
    assert_eq!(changes["applied"].as_array().unwrap().len(), 3);
    let tuning = served.service.replica(0).unwrap().look(0, None).await.unwrap().tuning;
    assert_eq!((tuning.policy.to_string(), tuning.max_running), ("fixed:5".to_owned(), 3));
    assert_eq!(tuning.slo.tpot, Some(Duration::from_millis(40)));
    for (body, code, words) in [
        (json!({"policy": "budget", "k_max": 1}), "needs_restart", "cost tables"),
        (json!({"max_running": 65, "k_max": 1}), "needs_restart", "at most 64"),
        (json!({"k_max": 17, "trim": false}), "invalid_config", "0 to 16"),
    ] {
        let (status, refusal) = set(body).await;
        assert!(status.is_client_error());
        assert_eq!(refusal["error"]["code"], code, "{refusal}");
        assert!(refusal["error"]["message"].as_str().unwrap().contains(words), "{refusal}");
        let view = get(&admin, "/v1/policy").await;
        assert_eq!(
            (&view["policy"], &view["k_max"], &view["trim"]),
            (&json!("fixed:5"), &json!(null), &json!(true))
        );
    }
    // Once costs are measured, policies that need them can be had.
    let (code, measured) = call(&admin, Method::POST, "/v1/profile", &json!({})).await;
    assert_eq!(code, StatusCode::OK, "{measured}");
    assert_eq!(set(json!({"policy": "faser"})).await.0, StatusCode::OK);
    let mut stream = served.service.submit(submission(40)).await.unwrap();
    while let Some(update) = stream.next().await {
        if let Update::Finished { reason, .. } = update {
            assert_eq!(reason, FinishReason::Length);
        }
    }
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_tag_of_another_config_is_refused() {
    let (admin, served) = daemon(PAIR).await;
    let tag = get(&admin, "/v1/config").await["tag"].as_str().unwrap().to_owned();
    let set = async |tag: &str, body: &str| {
        let call = Asked {
            method: &Method::PATCH,
            path: "/v1/policy",
            query: "",
            tag: Some(tag),
            body: body.as_bytes(),
        };
        asked(&admin, true, &call).await.0
    };
    assert_eq!(set(&format!("\"{tag}\""), r#"{"k_max": 3}"#).await, StatusCode::OK);
    assert_eq!(set(&tag, r#"{"k_max": 4}"#).await, StatusCode::PRECONDITION_FAILED);
    assert_eq!(get(&admin, "/v1/policy").await["k_max"], 3);
    assert_eq!(set("*", r#"{"k_max": 4}"#).await, StatusCode::OK);
    // A file that is gone is no config: nothing changes.
    let (code, body) = call(&admin, Method::POST, "/v1/reload", &json!({})).await;
    assert_eq!((code, &body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_config")));
    assert!(get(&admin, "/v1/config").await["error"].as_str().unwrap().contains("cannot read"));
    assert_eq!(get(&admin, "/v1/policy").await["k_max"], 4);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn drained_it_takes_nothing_and_resumed_it_does() {
    let (admin, served) = daemon(PAIR).await;
    let mut stream = served.service.submit(submission(4000)).await.unwrap();
    let (code, drained) = call(&admin, Method::POST, "/v1/drain", &json!({})).await;
    assert_eq!((code, &drained["left"]), (StatusCode::OK, &json!(1)));
    assert!(admin.app.served().is_err() && admin.app.readiness(None).is_err());
    assert_eq!(get(&admin, "/v1/status").await["state"], "paused");
    // Costs are not measured beside requests.
    let (code, busy) = call(&admin, Method::POST, "/v1/profile", &json!({})).await;
    assert_eq!((code, &busy["error"]["code"]), (StatusCode::CONFLICT, &json!("busy")), "{busy}");
    let read = actix_web::rt::spawn(async move {
        while let Some(update) = stream.next().await {
            if let Update::Finished { reason, .. } = update {
                return Some(reason);
            }
        }
        None
    });
    let (_, drained) = call(&admin, Method::POST, "/v1/drain", &json!({"wait_s": 60})).await;
    assert_eq!(drained["left"], 0);
    assert_eq!(read.await.unwrap(), Some(FinishReason::Length));
    assert_eq!(call(&admin, Method::POST, "/v1/resume", &json!({})).await.0, StatusCode::OK);
    assert!(admin.app.served().is_ok());
    // Who waits for a drain hears at once that it is over, also if another has begun.
    let running = served.service.submit(submission(4000)).await.unwrap();
    let waiting = async { call(&admin, Method::POST, "/v1/drain", &json!({"wait_s": 3600})).await };
    let others = async {
        while admin.app.paused().is_none() {
            actix_web::rt::task::yield_now().await;
        }
        assert_eq!(call(&admin, Method::POST, "/v1/resume", &json!({})).await.0, StatusCode::OK);
        call(&admin, Method::POST, "/v1/drain", &json!({})).await
    };
    let ((code, body), (again, left)) = futures_util::join!(waiting, others);
    assert_eq!((code, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("resumed")), "{body}");
    assert_eq!((again, &left["left"]), (StatusCode::OK, &json!(1)));
    drop(running);
    // On its way down nothing is drained or resumed any more.
    admin.app.start_draining();
    for path in ["/v1/drain", "/v1/resume", "/v1/profile"] {
        let (code, body) = call(&admin, Method::POST, path, &json!({})).await;
        assert_eq!((code, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("ending")), "{path}");
    }
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_snapshot_has_what_the_lanes_did_since_the_one_before() {
    let (admin, served) = daemon(PAIR).await;
    let mut seen = Vec::new();
    let first = admin.snapshot(None, Some(&mut seen)).await.unwrap();
    assert!(first.replicas[0].timeline.as_ref().unwrap().passes.is_empty(), "nobody looked before");
    let mut stream = served.service.submit(submission(30)).await.unwrap();
    while stream.next().await.is_some() {}
    let second = admin.snapshot(None, Some(&mut seen)).await.unwrap();
    let timeline = second.replicas[0].timeline.as_ref().unwrap();
    let committed: usize = timeline.passes.iter().map(|pass| pass.committed).sum();
    assert!(committed >= 30, "{timeline:?}");
    assert!(timeline.passes.iter().any(|pass| pass.lane == "draft" && pass.k.contains(&2)), "{timeline:?}");
    assert!(
        timeline.passes.iter().all(|pass| pass.began_us <= pass.ended_us && pass.ended_us <= timeline.now_us)
    );
    let third = admin.snapshot(None, Some(&mut seen)).await.unwrap();
    assert!(third.replicas[0].timeline.as_ref().unwrap().passes.is_empty(), "each is shown once");
    assert!(second.replicas[0].answers && second.total.totals.output_tokens >= 30);
    assert!(admin.snapshot(None, None).await.unwrap().replicas[0].timeline.is_none());
    served.service.clone().stop().await;
}

/// A table row of Markdown.
fn row(cells: &[&str]) -> String {
    format!("| {} |", cells.join(" | "))
}

#[test]
fn the_operators_page_has_every_route_and_every_live_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = std::fs::read_to_string(page).unwrap();
    let field = |(name, text): &(&str, &str)| format!("`{name}`: {text}");
    let routes = admin_api::ROUTES.iter().map(|route| {
        let fields: Vec<String> = route.fields.iter().map(field).collect();
        row(&[route.method.as_str(), &format!("`{}`", route.path), route.summary, &fields.join("; ")])
    });
    let keys = crate::reload::LIVE.iter().map(|live| row(&[&format!("`{}`", live.key), live.when]));
    for (head, rows) in [
        (row(&["call", "path", "what", "fields"]), routes.collect::<Vec<_>>()),
        (row(&["key", "a change counts for"]), keys.collect()),
    ] {
        let mut lines = page.lines().skip_while(|line| *line != head).skip(2);
        let there: Vec<&str> = lines.by_ref().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(there, rows, "the table in docs/operating.md should be\n{}", rows.join("\n"));
    }
}
