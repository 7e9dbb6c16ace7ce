//! Calls as they are read, and what is none.

use serde_json::json;

use super::*;

fn read(method: &Method, path: &str, input: &Value) -> Result<Call, String> {
    Call::read(method, path, input).map_err(|err| err.to_string())
}

#[test]
fn every_route_has_a_call_and_only_get_changes_nothing() {
    for Route { method, path, .. } in ROUTES.iter() {
        let input = match (method.as_str(), *path) {
            ("PATCH", _) => json!({"k_max": 3}),
            ("PUT", _) => json!({"level": "info"}),
            _ => json!({}),
        };
        let call = read(method, &path.replace("{id}", "0-7"), &input).unwrap();
        assert_eq!(call.changes(), *method != Method::GET, "{method} {path}");
    }
}

#[test]
fn calls_are_read_with_their_fields() {
    assert_eq!(
        read(&Method::GET, "/v1/events", &query("every_ms=250&timeline=false").unwrap()),
        Ok(Call::Events(Watch { every: Duration::from_millis(250), timeline: false, pair: None }))
    );
    assert_eq!(
        read(&Method::PATCH, "/v1/policy", &json!({"k_max": null, "max_waiting": 3})),
        Ok(Call::SetPolicy {
            keys: vec![("scheduler.max_waiting", json!(3)), ("speculation.k_max", Value::Null)],
            pair: None,
        })
    );
    for (text, pair) in [("1-17", None), ("2-1-17", Some(2))] {
        let id = RequestId { pair, replica: 1, seq: SeqId(17) };
        let path = format!("/v1/requests/{text}/cancel");
        assert_eq!(
            (read(&Method::POST, &path, &json!({})), id.to_string().as_str()),
            (Ok(Call::Cancel(id)), text)
        );
    }
    let pair = |text: &str| Ok(Call::Status(Some(text.to_owned())));
    assert_eq!(
        read(&Method::GET, "/v1/status", &query("pair=Qwen%2FQwen3%2B").unwrap()),
        pair("Qwen/Qwen3+")
    );
    assert_eq!(read(&Method::GET, "/v1/status", &query("pair=4").unwrap()), pair("4"));
}

#[test]
fn what_is_no_call_is_refused_with_what_would_be() {
    for (method, path, input, words) in [
        (Method::GET, "/v1/nothing", json!({}), "/v1/status"),
        (Method::DELETE, "/v1/policy", json!({}), "use GET or PATCH"),
        (Method::POST, "/v1/requests/7/cancel", json!({}), "REPLICA-NUMBER"),
        (Method::POST, "/v1/requests//cancel", json!({}), "nothing at"),
        (Method::PATCH, "/v1/policy", json!({}), "nothing is to change"),
        (Method::PATCH, "/v1/policy", json!({"polcy": "off"}), "did you mean `policy`"),
        (Method::PUT, "/v1/log-level", json!({}), "is missing"),
        (Method::POST, "/v1/requests/1-2-3-4/cancel", json!({}), "REPLICA-NUMBER"),
        (Method::POST, "/v1/drain", json!({"pair": "a"}), "`pair` is unknown"),
        (Method::POST, "/v1/drain", json!({"wait_s": -1}), "0 to 86400"),
        (Method::GET, "/v1/status", json!({"x": 1}), "`x` is unknown"),
    ] {
        let refusal = read(&method, path, &input).unwrap_err();
        assert!(refusal.contains(words), "{path}: {refusal}");
    }
    assert!(query("a=1&a=2").is_err());
}
