//! GET /openapi.json, and real answers beside what it says of them.

use serde_json::Map;

use super::tools::calling_by;
use super::*;

/// What a reference leads to.
fn resolved<'a>(schema: &'a Value, all: &'a Map<String, Value>) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
    name.map_or(schema, |name| &all[name])
}

/// What of an answer is not as its schema says.
fn unlike(answer: &Value, schema: &Value, all: &Map<String, Value>) -> Option<String> {
    let schema = resolved(schema, all);
    if let Some(several) = schema["oneOf"].as_array() {
        let problems: Vec<Option<String>> = several.iter().map(|one| unlike(answer, one, all)).collect();
        return if problems.contains(&None) { None } else { problems.into_iter().flatten().last() };
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let found = match answer {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.iter().any(|name| name == found) {
        return Some(format!("{answer} is no {types:?}"));
    }
    if let (Some(map), Some(properties)) = (answer.as_object(), schema["properties"].as_object()) {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let absent = required.into_iter().find(|name| !map.contains_key(*name));
        let unknown = map.keys().find(|name| !properties.contains_key(*name));
        if let Some(name) = absent.or(unknown.map(String::as_str)) {
            return Some(format!("`{name}` is absent or unknown: {answer}"));
        }
        return map.iter().find_map(|(name, value)| unlike(value, &properties[name], all));
    }
    answer.as_array().into_iter().flatten().find_map(|item| unlike(item, &schema["items"], all))
}

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
