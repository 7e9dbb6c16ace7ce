//! What a request may wish of its scheduling, and what it is told that it took.

use super::*;

/// Proposals whatever this machine's costs are.
const ALWAYS: &str = "speculation: {policy: budget, trim: false}\n";
const NO_DRAFT: &str = "model: {name: pair, draft: none, synthetic: {preset: tiny}}\n";

/// Proposals verified of a source.
fn tried(metrics: &Value, source: &str) -> u64 {
    let sources = &metrics["speculative_decoding"]["sources"];
    sources[source]["num_draft_tokens"].as_u64().unwrap_or_else(|| panic!("{metrics}"))
}

/// Figures that must agree with each other.
fn check(metrics: &Value, completion_tokens: u64) {
    let of = &metrics["speculative_decoding"];
    let number = |name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name}: {metrics}"));
    let histogram: Vec<u64> =
        of["acceptance_histogram"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let accepted: u64 = (0..).zip(&histogram).map(|(accepted, passes)| accepted * passes).sum();
    assert_eq!(
        (histogram.iter().sum::<u64>(), accepted),
        (number("num_spec_steps"), number("num_accepted_draft_tokens"))
    );
    assert_eq!(histogram.len() as u64, number("num_spec_tokens") + 1);
    let sources = ["draft", "text", "prediction"].map(|source| tried(metrics, source));
    assert_eq!(sources.iter().sum::<u64>(), number("num_draft_tokens"));
    let passes = metrics["num_target_passes"].as_u64().unwrap();
    assert!(passes >= number("num_spec_steps") && passes + accepted >= completion_tokens, "{metrics}");
    for name in ["queue_time_ms", "time_to_first_token_ms", "generation_time_ms"] {
        assert!(metrics[name].as_f64().is_some_and(|ms| ms >= 0.0), "{name}: {metrics}");
    }
}

#[actix_web::test]
async fn a_mode_says_where_proposals_come_from_and_changes_no_text() {
    let (client, served) = client_of!(daemon(ALWAYS));
    // Letters alone: what is predicted is read as the very same tokens.
    let letters: serde_json::Map<String, Value> =
        (97..123).map(|id: u32| (id.to_string(), json!(100))).collect();
    let body = json!({
        "prompt": "hello", "max_tokens": 40, "temperature": 0, "logit_bias": letters, "include_metrics": true,
    });
    let auto = ok!(client, "/v1/completions", body);
    // What comes is known: all of it is found.
    let expected = json!({"type": "content", "content": text_of(&auto)});
    for (mode, drafts, looks_up) in
        [("auto", true, true), ("off", false, false), ("lookup", false, true), ("draft", true, false)]
    {
        let more = json!({"prediction": expected, "speculation": {"mode": mode, "priority": -3, "slo": {"tpot_ms": 5, "ttft_ms": 50}}});
        // While the machine stalls speculation may lose what it may lose: then nothing is proposed until passes have earned it again.
        let mut asked = 0;
        let (answer, found) = loop {
            let (status, answer) = post!(client, "/v1/completions", with(&body, &more));
            assert_eq!((status, text_of(&answer)), (StatusCode::OK, text_of(&auto)), "{answer}");
            let metrics = &answer["metrics"];
            check(metrics, 40);
            let found = tried(metrics, "text") + tried(metrics, "prediction");
            assert!(
                (looks_up || found == 0) && (drafts || tried(metrics, "draft") == 0),
                "{mode}: {metrics}"
            );
            asked += 1;
            if asked == 50 || !looks_up || found > 0 {
                break (answer, found);
            }
        };
        let metrics = &answer["metrics"];
        assert!(!looks_up || found > 0, "{mode}: {metrics}");
        if mode == "off" {
            let speculation = &metrics["speculative_decoding"];
            assert_eq!(
                (&speculation["acceptance_histogram"], &metrics["num_target_passes"]),
                (&json!([0]), &json!(40))
            );
        }
    }
    close(&served).await;

    let (client, served) = client_of!(daemon("speculation: {policy: 'fixed:4'}\n"));
    for (mode, drafts) in [("draft", true), ("off", false)] {
        let (_, answer) =
            post!(client, "/v1/completions", with(&body, &json!({"speculation": {"mode": mode}})));
        assert_eq!((text_of(&answer), tried(&answer["metrics"], "draft") > 0), (text_of(&auto), drafts));
        check(&answer["metrics"], 40);
    }
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn metrics_stand_in_the_last_chunk_and_in_each_of_several_choices() {
    let (client, served) = client_of!(daemon(ALWAYS));
    let chat = json!({"prompt": "hello", "max_tokens": 20, "seed": 3, "include_metrics": true});
    let (_, whole) = post!(client, "/v1/completions", chat);
    check(&whole["metrics"], 20);
    assert!(whole["choices"][0].get("metrics").is_none());
    for include_usage in [false, true] {
        let more = json!({"stream": true, "stream_options": {"include_usage": include_usage}});
        let (_, streamed) = post!(client, "/v1/completions", with(&chat, &more));
        let mut events = events(&streamed);
        let last = events.pop().unwrap();
        assert_eq!(last["choices"] == json!([]), include_usage);
        check(&last["metrics"], 20);
        assert!(events.iter().all(|event| event.get("metrics").is_none()), "{streamed}");
    }
    for body in [with(&chat, &json!({"n": 3})), with(&chat, &json!({"prompt": ["a", "b", "c"]}))] {
        let (_, whole) = post!(client, "/v1/completions", body);
        assert!(whole.get("metrics").is_none(), "{whole}");
        whole["choices"].as_array().unwrap().iter().for_each(|choice| check(&choice["metrics"], 20));
        let (_, streamed) = post!(client, "/v1/completions", with(&body, &json!({"stream": true})));
        let told = events(&streamed).into_iter().filter(|event| event["choices"][0].get("metrics").is_some());
        let told: Vec<Value> = told.collect();
        assert_eq!(told.len(), 3);
        told.iter().for_each(|event| {
            assert_eq!(event["choices"][0]["finish_reason"], "length");
            check(&event["choices"][0]["metrics"], 20);
        });
    }
    let (_, plain) = post!(client, "/v1/completions", with(&chat, &json!({"include_metrics": false})));
    assert!(plain.get("metrics").is_none() && plain["choices"][0].get("metrics").is_none());
    close(&served).await;
}

#[actix_web::test]
async fn what_a_text_took_that_a_stop_string_ended_is_told_too() {
    let (client, served) = client_of!(daemon(ALWAYS));
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 60, "temperature": 0});
    let (_, free) = post!(client, "/v1/completions", body);
    let stop: String = text_of(&free).chars().skip(17).take(3).collect();
    let stopped = with(&body, &json!({"stop": stop}));
    let (_, plain) = post!(client, "/v1/completions", stopped);
    let asked = with(&stopped, &json!({"include_metrics": true}));
    let (_, told) = post!(client, "/v1/completions", asked);
    assert_eq!((&told["choices"], text_of(&told)), (&plain["choices"], text_of(&plain)));
    let count = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(count(&told), count(&plain));
    check(&told["metrics"], count(&told));
    let (_, streamed) = post!(client, "/v1/completions", with(&asked, &json!({"stream": true})));
    check(&events(&streamed).last().unwrap()["metrics"], count(&told));
    // Cancelled, one and all.
    idle(&served).await;
    assert_eq!(served.service.view().totals.cancelled, 3);
    served.service.clone().stop().await;
}

#[actix_web::test]
async fn what_the_server_does_not_offer_is_refused_by_its_key() {
    for (yaml, body, param, words) in [
        (format!("{NO_DRAFT}{ALWAYS}"), json!({"mode": "draft"}), "speculation.mode", "model.draft"),
        (
            "model: {name: pair, synthetic: {preset: tiny}}\nspeculation: {policy: 'fixed:2', lookup: false}\n".to_owned(),
            json!({"mode": "lookup"}),
            "speculation.mode",
            "speculation.lookup",
        ),
        (
            format!("{NO_DRAFT}speculation: {{policy: 'off'}}\nscheduler: {{priorities: false}}\n"),
            json!({"priority": 2}),
            "speculation.priority",
            "scheduler.priorities",
        ),
    ] {
        let (client, served) = client_of!(daemon_of(&yaml, None));
        let body = json!({"prompt": [1], "max_tokens": 2, "speculation": body});
        let (status, answer) = post!(client, "/v1/completions", body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (StatusCode::BAD_REQUEST, Some(param)), "{answer}");
        assert_eq!(error["code"], "unsupported_parameter");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{answer}");
        // What nobody has to offer can always be had.
        let off = json!({"prompt": [1], "max_tokens": 2, "speculation": {"mode": "off", "priority": 0}});
        assert_eq!(post!(client, "/v1/completions", off).0, StatusCode::OK);
        served.service.clone().stop().await;
    }
}

#[actix_web::test]
async fn the_version_is_told() {
    let (client, served) = client_of!(daemon(""));
    let (status, body) = get!(client, "/version");
    let told: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, told), (StatusCode::OK, json!({"version": env!("CARGO_PKG_VERSION")})));
    served.service.clone().stop().await;
}
