//! GET /openapi.json, and real answers beside what it says of them.

use super::tools::calling_by;
use super::*;
use crate::http::openapi::tests::unlike;

#[actix_web::test]
async fn answers_are_as_the_document_says() {
    let (client, served) =
        client_of!(calling_by("hermes", "{% for m in messages %}{{ m.content }}{% endfor %}"));
    let (status, document) = get!(client, "/openapi.json");
    assert_eq!(status, StatusCode::OK);
    let document: Value = serde_json::from_slice(&document).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let check = |method: &str, path: &str, status: StatusCode, answer: &Value| {
        let operation = &document["paths"][path][method];
        let response = &operation["responses"][status.as_str()];
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} {status}");
        assert_eq!(unlike(answer, schema, schemas), None, "{method} {path}: {answer}");
    };
    let function = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    for (path, sent) in [
        (
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 3, "logprobs": 1, "n": 2, "include_metrics": true, "return_token_ids": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "return_token_ids": true}),
        ),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 3, "include_metrics": true})),
        (
            "/v1/responses",
            json!({"input": "x", "tools": [function], "tool_choice": "required", "max_output_tokens": 60}),
        ),
        ("/tokenize", json!({"prompt": "x"})),
        ("/detokenize", json!({"tokens": [1]})),
    ] {
        let answer = ok!(client, path, sent);
        check("post", path, status, &answer);
        let (status, answer) = post!(client, path, json!({"none": 1}));
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        check("post", path, status, &answer);
    }
    for (path, asked) in [
        ("/v1/models", "/v1/models"),
        ("/v1/models/{id}", "/v1/models/pair"),
        ("/v1/models/{id}", "/v1/models/none"),
        ("/v1/responses/{id}", "/v1/responses/resp_1"),
        ("/v1/responses/{id}/input_items", "/v1/responses/resp_1/input_items"),
        ("/health", "/health"),
        ("/ready", "/ready"),
        ("/version", "/version"),
        ("/health_generate", "/health_generate"),
        ("/model_info", "/model_info"),
        ("/server_info", "/server_info"),
    ] {
        let (status, answer) = get!(client, asked);
        check("get", path, status, &serde_json::from_slice(&answer).unwrap());
    }
    served.service.clone().stop().await;
}
