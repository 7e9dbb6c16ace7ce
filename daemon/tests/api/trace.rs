//! GET /debug/trace: refused unless the config allows it, one at a time, and then what the lanes did.

use super::*;

/// The daemon with its debug routes. `server` is one object of the config, so the limits of the other tests come again.
async fn debuggable() -> (web::Data<App>, Arc<Served>) {
    let (app, served) = daemon("speculation: {policy: 'fixed:3'}\n").await;
    let limits = faser_config::ServerConfig { debug: true, ..app.limits.clone() };
    let app =
        web::Data::new(App::new(limits, Arc::default(), faser_openai::metrics_recorder::install().unwrap()));
    app.serve(Pairs::new(vec![Arc::clone(&served)]));
    (app, served)
}

#[actix_web::test]
async fn without_the_key_it_is_not_there_and_says_which_key() {
    let (client, served) = client_of!(daemon(""));
    let (status, body) = get!(client, "/debug/trace?seconds=1");
    let error: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &error["error"]["code"]), (StatusCode::NOT_FOUND, &json!("debug_off")));
    assert!(error["error"]["message"].as_str().unwrap().contains("`server.debug: true`"), "{error}");
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn what_makes_no_sense_is_refused() {
    let (client, served) = client_of!(debuggable());
    for (query, message) in [
        ("seconds=0", "a recording lasts above 0 and up to 60 s"),
        ("seconds=61", "a recording lasts above 0 and up to 60 s"),
        ("seconds=-1", "`seconds` must be one whole number, as in /debug/trace?seconds=5"),
        ("seconds", "`seconds` must be one whole number, as in /debug/trace?seconds=5"),
        ("seconds=1&seconds=2", "`seconds` must be one whole number, as in /debug/trace?seconds=5"),
        ("second=5", "`second` is unknown; known here: seconds, replica, model"),
        ("replica=1", "`replica` must be below 1, the number of replicas"),
        ("replica=x", "`replica` must be one whole number, as in /debug/trace?replica=1"),
    ] {
        let (status, body) = get!(client, &format!("/debug/trace?{query}"));
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &error["error"]["message"]), (StatusCode::BAD_REQUEST, &json!(message)));
    }
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn a_trace_has_the_passes_of_its_time_and_a_second_one_is_told_to_wait() {
    let (client, served) = client_of!(debuggable());
    let request = || TestRequest::get().uri("/debug/trace?seconds=1").to_request();
    let trace = client.call(request());
    tokio::pin!(trace);
    let mut refused = None;
    let body = loop {
        tokio::select! {
            biased;
            answer = &mut trace => break read_body(answer.unwrap()).await,
            (status, _) = async { post!(client, "/v1/completions", json!({"prompt": "x", "max_tokens": 20})) } => {
                assert_eq!(status, StatusCode::OK);
            }
        }
        if refused.is_none() {
            refused = Some(call_service(&client, request()).await);
        }
    };
    let refused = refused.expect("a completion ended before the trace");
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let error: Value = serde_json::from_slice(&read_body(refused).await).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("one at a time"), "{error}");

    let trace: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(trace["otherData"]["cut_short"], json!(false));
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|event| ["ph", "ts", "pid", "tid"].iter().all(|key| !event[key].is_null())));
    for (lane, name) in [(0, "draft 1 x 3"), (1, "verify 1 + 3: ")] {
        let slices: Vec<&Value> = events
            .iter()
            .filter(|event| {
                (&event["ph"], &event["pid"], &event["tid"]) == (&json!("X"), &json!(1), &json!(lane))
            })
            .collect();
        let ends = |slice: &Value| slice["ts"].as_f64().unwrap() + slice["dur"].as_f64().unwrap();
        assert!(slices.windows(2).all(|pair| ends(pair[0]) <= pair[1]["ts"].as_f64().unwrap() + 1e-3));
        assert!(slices.iter().any(|slice| slice["name"].as_str().unwrap().starts_with(name)), "{slices:?}");
    }
    close(&served).await;
}
