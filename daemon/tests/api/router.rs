//! What routers ask, and what they add to requests.

use super::*;

#[actix_web::test]
async fn routers_learn_what_is_served_and_whether_it_answers() {
    let (app, served) = daemon("").await;
    let client = client!(app);
    for path in ["/model_info", "/get_model_info", "/server_info", "/get_server_info"] {
        let (status, body) = get!(client, path);
        let info: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &info["served_model_name"]), (StatusCode::OK, &json!("pair")), "{path}");
    }
    assert_eq!(get!(client, "/health_generate").0, StatusCode::OK);
    assert_eq!(served.service.view().totals.finished, 1 + WARM_UP, "a token was generated");
    app.start_draining();
    let (status, body) = get!(client, "/health_generate");
    assert_eq!((status, body), (StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"draining\"}".into()));
    served.service.clone().stop().await;
}

/// Sequences of a start, before anyone asks.
const WARM_UP: u64 = 1;

#[actix_web::test]
async fn what_routers_add_is_taken_and_what_they_could_ask_for_is_not() {
    let (client, served) = client_of!(daemon(""));
    // As sglang-router 0.3.2 sends it.
    let body = json!({
        "model": "pair", "prompt": [1], "max_tokens": 2, "stream": false, "echo": false, "no_stop_trim": false, "ignore_eos": false,
        "skip_special_tokens": true, "return_hidden_states": false, "continue_final_message": false, "separate_reasoning": true,
        "stream_reasoning": true,
    });
    ok!(client, "/v1/completions", body);
    for field in ["no_stop_trim", "return_hidden_states", "continue_final_message"] {
        let (status, answer) = post!(client, "/v1/completions", json!({"prompt": [1], field: true}));
        let code = &answer["error"]["code"];
        assert_eq!((status, code), (StatusCode::BAD_REQUEST, &json!("unsupported_parameter")), "{field}");
    }
    served.service.clone().stop().await;
}
