//! Queues, drains, starts, and clients that go away.

use super::*;

#[actix_web::test]
async fn a_client_that_goes_away_frees_its_blocks() {
    let (client, served) = client_of!(daemon(""));
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
    tokio::select! {
        biased;
        _ = client.call(request) => panic!("400 tokens were too fast for this test"),
        () = runs(&served) => {}
    }
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

    let (status, body) = get!(client, "/ready");
    let ready: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(ready, json!({"status": "ready", "replicas": [{"replica": 0, "status": "serving"}]}));
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
    let app =
        web::Data::new(App::new(limits, Arc::default(), faser_openai::metrics_recorder::install().unwrap()));
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
