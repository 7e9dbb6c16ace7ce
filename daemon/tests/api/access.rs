//! API keys: who is let in where, and how many at once.

use faser_openai::access::{Access, Table};

use super::*;

const ALICE: &str = "sk-alice-0123456789";
const OTHER: &str = "sk-other-0123456789";

/// A daemon with two keys, `per_key` requests each.
async fn guarded(more: &str, per_key: Option<usize>) -> (web::Data<App>, Arc<Served>) {
    let (app, served) = daemon(more).await;
    let access = Access::default();
    access.keys().replace(Table::parse(&format!("alice:{ALICE}\nother:{OTHER}\n"), per_key).unwrap());
    let app =
        App::new(app.limits.clone(), Arc::new(access), faser_openai::metrics_recorder::install().unwrap());
    app.serve(Pairs::new(vec![Arc::clone(&served)]));
    (web::Data::new(app), served)
}

fn with(key: &str, request: TestRequest) -> TestRequest {
    request.insert_header(("authorization", format!("Bearer {key}")))
}

#[actix_web::test]
async fn every_route_but_health_and_readiness_needs_a_key() {
    let (client, served) = client_of!(guarded("", None));
    for path in ["/health", "/ready"] {
        assert_eq!(get!(client, path).0, StatusCode::OK, "{path}");
    }
    for (method, path) in [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/pair"),
        ("GET", "/metrics"),
        ("GET", "/health_generate"),
        ("GET", "/model_info"),
        ("GET", "/get_model_info"),
        ("GET", "/server_info"),
        ("GET", "/get_server_info"),
        ("GET", "/debug/trace"),
        ("GET", "/nothing"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/%68ealth"),
        ("GET", "/health/../v1/models"),
        ("PUT", "/v1/completions"),
    ] {
        for key in [None, Some("sk-wrong-0123456789"), Some("")] {
            let request = TestRequest::with_uri(path).method(method.parse().unwrap());
            let request = key.map_or(TestRequest::with_uri(path).method(method.parse().unwrap()), |key| {
                with(key, request)
            });
            let response = call_service(&client, request.to_request()).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path} {key:?}");
            let challenge = response.headers().get("www-authenticate").unwrap().to_str().unwrap();
            assert!(challenge.starts_with("Bearer realm=\"faser\""), "{challenge}");
            let error: Value = serde_json::from_slice(&read_body(response).await).unwrap();
            let error = &error["error"];
            assert_eq!(error["type"], "invalid_request_error");
            let known = key.is_some_and(|key| !key.is_empty());
            assert_eq!(error["code"], if known { json!("invalid_api_key") } else { Value::Null }, "{error}");
            assert!(!error.to_string().contains("0123456789"), "the key is not shown: {error}");
        }
    }
    let request = with(ALICE, TestRequest::get().uri("/v1/models")).to_request();
    assert_eq!(call_service(&client, request).await.status(), StatusCode::OK);
    // Of two keys it cannot be said which one counts.
    let request = with(ALICE, TestRequest::get().uri("/v1/models"))
        .append_header(("authorization", format!("Bearer {OTHER}")))
        .to_request();
    assert_eq!(call_service(&client, request).await.status(), StatusCode::UNAUTHORIZED);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn metrics_may_be_open() {
    let (app, served) = daemon("").await;
    let limits = faser_config::ServerConfig { metrics_open: true, ..app.limits.clone() };
    let access = Access::default();
    access.keys().replace(Table::parse(ALICE, None).unwrap());
    let app = web::Data::new(App::new(
        limits,
        Arc::new(access),
        faser_openai::metrics_recorder::install().unwrap(),
    ));
    let client = client!(app);
    assert_eq!(get!(client, "/metrics").0, StatusCode::OK);
    assert_eq!(get!(client, "/v1/models").0, StatusCode::UNAUTHORIZED);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_key_has_so_many_requests_in_flight_and_a_stream_is_one_until_its_end() {
    let (client, served) = client_of!(guarded("", Some(1)));
    let body = json!({"prompt": [1], "max_tokens": 400, "temperature": 0, "stream": true}).to_string();
    let request = with(ALICE, TestRequest::post().uri("/v1/completions").set_payload(body)).to_request();
    let response = call_service(&client, request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut stream = Box::pin(body_chunks(response));
    assert!(stream.next().await.is_some());
    let models = |key| with(key, TestRequest::get().uri("/v1/models")).to_request();
    let refused = call_service(&client, models(ALICE)).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers().get("retry-after").unwrap(), "1");
    let error: Value = serde_json::from_slice(&read_body(refused).await).unwrap();
    assert_eq!(error["error"]["type"], "rate_limit_error");
    assert_eq!(error["error"]["code"], "too_many_concurrent_requests");
    assert_eq!(call_service(&client, models(OTHER)).await.status(), StatusCode::OK);
    drop(stream);
    let response = call_service(&client, models(ALICE)).await;
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    close(&served).await;
}
