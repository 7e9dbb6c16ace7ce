//! What is refused, and in which words.

use super::*;

#[actix_web::test]
async fn bad_requests_are_refused_in_openais_shape_and_disturb_nothing() {
    let (client, served) = client_of!(daemon(""));
    let too_long = json!({"prompt": vec![1; 100], "max_tokens": 1_000_000});
    // More than a million of them: 64 prompts of 49 tokens, 16 times, with 20 in each place and the token.
    let scores =
        json!({"prompt": vec![vec![1; 49]; 64], "echo": true, "logprobs": 20, "n": 16, "max_tokens": 0});
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
        ("/v1/completions", json!({"prompt": "x", "n": 17}), 400, "invalid_value", json!("n")),
        (
            "/v1/completions",
            json!({"prompt": "x", "best_of": 2}),
            400,
            "unsupported_parameter",
            json!("best_of"),
        ),
        ("/v1/completions", json!({"prompt": "x", "echo": 1}), 400, "invalid_type", json!("echo")),
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 0}),
            400,
            "invalid_value",
            json!("max_tokens"),
        ),
        ("/v1/completions", json!({}), 400, "missing_required_parameter", json!("prompt")),
        ("/v1/completions", json!({"prompt": []}), 400, "invalid_value", json!("prompt")),
        ("/v1/completions", json!({"prompt": {}}), 400, "invalid_type", json!("prompt")),
        ("/v1/completions", json!({"prompt": ["x", 3]}), 400, "invalid_type", json!("prompt[1]")),
        ("/v1/completions", json!({"prompt": [[1], [2, -1]]}), 400, "invalid_value", json!("prompt[1][1]")),
        ("/v1/completions", json!({"prompt": [9_999_999]}), 400, "invalid_value", json!("prompt[0]")),
        ("/v1/completions", json!({"prompt": vec!["x"; 65]}), 400, "invalid_value", json!("prompt")),
        ("/v1/completions", json!({"prompt": ""}), 400, "invalid_value", json!("prompt")),
        ("/v1/completions", too_long, 400, "context_length_exceeded", json!("prompt")),
        ("/v1/completions", scores, 400, "invalid_value", json!("logprobs")),
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
            json!({"messages": [{"role": "user", "content": "x"}], "tools": {}}),
            400,
            "invalid_type",
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
    close(&served).await;
}
