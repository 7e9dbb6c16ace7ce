//! Prompt-lookup proposals: from the client's predicted output, and from the text before, with a draft model and without one.

use faser_tests::{Server, metrics::Metrics};
use serde_json::{Value, json};

/// Whatever this machine's costs are, what is proposed is verified.
const WITH_DRAFT: &str = "speculation: {policy: budget, trim: false}\nlog: {level: warn}\n";
const WITHOUT_DRAFT: &str =
    "model: {draft: none}\nspeculation: {policy: budget, trim: false}\nlog: {level: warn}\n";

fn chat(server: &Server, more: &[(&str, Value)]) -> (String, Value) {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Returns the number of elements in the"}],
        "max_tokens": 120, "temperature": 0, "ignore_eos": true,
    });
    more.iter().for_each(|(name, value)| body[name] = value.clone());
    let response = server.client().post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    let answer = response.json();
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    (text, answer["usage"].clone())
}

#[test]
fn a_prediction_is_accepted_where_it_is_right_and_changes_no_text() {
    for yaml in [WITH_DRAFT, WITHOUT_DRAFT] {
        let server = Server::start(yaml);
        let (text, usage) = chat(&server, &[]);
        assert!(usage["completion_tokens_details"].is_null(), "nothing was predicted: {usage}");
        let parts = json!([{"type": "text", "text": &text}]);
        // More than the context holds: what is too much does no harm.
        let longer = json!(text.clone() + &" word".repeat(5000));
        for content in
            [json!(&text), parts, json!(text.replacen(' ', " entirely ", 3)), longer, json!("no such thing")]
        {
            let is_right = content != "no such thing";
            // A wrong one may not even be tried. What the machine did meanwhile, or while its costs were measured, may be held against a right one.
            for asked in 1.. {
                let prediction = json!({"type": "content", "content": content});
                let (again, usage) = chat(&server, &[("prediction", prediction)]);
                assert_eq!(again, text);
                let details = &usage["completion_tokens_details"];
                let accepted = details["accepted_prediction_tokens"].as_u64().unwrap_or(0);
                if !is_right || accepted > 10 || asked == 50 {
                    assert_eq!(accepted > 10, is_right, "{content}: {usage}");
                    break;
                }
            }
        }
        let metrics = Metrics::scrape(server.client());
        let proposed = metrics.value("faser_spec_decode_num_prompt_lookup_tokens_total");
        let accepted = metrics.value("faser_spec_decode_num_prompt_lookup_accepted_tokens_total");
        assert!(0.0 < accepted && accepted <= proposed, "{accepted} of {proposed}");
    }
}

#[test]
fn it_can_be_switched_off_and_is_refused_if_it_is_none() {
    let server = Server::start("speculation: {lookup: false}\nlog: {level: warn}\n");
    let (text, _) = chat(&server, &[]);
    let (again, usage) = chat(&server, &[("prediction", json!({"type": "content", "content": &text}))]);
    assert_eq!((again, &usage["completion_tokens_details"]), (text, &Value::Null));
    assert_eq!(
        Metrics::scrape(server.client()).value("faser_spec_decode_num_prompt_lookup_tokens_total"),
        0.0
    );
    let body = json!({"messages": [{"role": "user", "content": "x"}], "prediction": "text"});
    let refused = server.client().post("/v1/chat/completions", &body);
    assert_eq!((refused.status, refused.error()["param"].as_str()), (400, Some("prediction")));
    assert!(
        refused.error()["message"].as_str().is_some_and(|message| message.contains("prediction")),
        "{refused:?}"
    );
}
