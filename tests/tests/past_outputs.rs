//! Past outputs as a source of proposals, from outside: what they bring their own API key, and nobody else.

use faser_tests::{Config, Server, client::Client, metrics::Metrics};
use serde_json::{Value, json};

const ANA: &str = "sk-ana-0123456789abcdef";
const BEN: &str = "sk-ben-0123456789abcdef";
/// Whatever this machine's costs are, what is proposed is verified.
const CONFIG: &str = "\
server: {api_keys_file: keys}
admin: {socket: admin.sock}
model: {draft: none}
speculation: {policy: budget, trim: false, suffix_memory: 1MiB}
log: {level: warn}
";

/// The text of a completion, and proposals of past outputs that were verified and accepted for it.
fn complete(client: &Client, salt: Option<&str>) -> (String, u64, u64) {
    let mut body = json!({
        "prompt": "Returns the number of elements in the", "max_tokens": 100, "temperature": 0,
        "ignore_eos": true, "include_metrics": true, "speculation": {"mode": "suffix"},
    });
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    let response = client.post("/v1/completions", &body);
    assert_eq!(response.status, 200, "{response:?}");
    let answer = response.json();
    let sources: &Value = &answer["metrics"]["speculative_decoding"]["sources"];
    let count = |name: &str| sources["suffix"][name].as_u64().expect("a number");
    let text = answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    (text, count("num_draft_tokens"), count("num_accepted_draft_tokens"))
}

/// Asks for a text that is known until past outputs are accepted for it: what the machine did meanwhile, or while its costs were measured, may be held
/// against speculation at first.
fn expect_past_outputs(client: &Client, salt: Option<&str>, text: &str) {
    let accepted = (1..=50).any(|_| {
        let (again, _, accepted) = complete(client, salt);
        assert_eq!(again, text, "{salt:?}");
        accepted > 50
    });
    assert!(accepted, "{salt:?}: no past outputs are accepted");
}

#[test]
fn past_outputs_are_proposed_to_their_own_key_and_salt_until_they_are_forgotten() {
    let config = Config::new(CONFIG);
    std::fs::write(config.folder().join("keys"), format!("ana:{ANA}\nben:{BEN}\n")).expect("a file");
    let command = config.serve();
    let server = Server::run(config, command);
    let (ana, ben) = (server.client().with_key(ANA), server.client().with_key(BEN));
    let (text, own, _) = complete(&ana, None);
    // What a text has in common with itself is no past output.
    assert_eq!(own, 0);
    expect_past_outputs(&ana, None, &text);
    for (client, salt) in [(&ben, None), (&ana, Some("other")), (&ben, Some("other"))] {
        assert_eq!(complete(client, salt), (text.clone(), 0, 0), "{salt:?}");
        expect_past_outputs(client, salt, &text);
    }
    let metrics = Metrics::scrape(&ana);
    let accepted = metrics.value("faser_spec_decode_num_suffix_accepted_tokens_total");
    assert!(accepted > 200.0 && metrics.value("faser_suffix_tokens") > 800.0, "{accepted}");
    let (code, told) = server.ctl(&["forget"]);
    // At least eight, and what the daemon asked itself.
    let forgotten: Option<u32> = told.split_whitespace().last().and_then(|number| number.parse().ok());
    assert!(code == Some(0) && forgotten.is_some_and(|outputs| outputs >= 8), "{told}");
    assert_eq!(Metrics::scrape(&ana).value("faser_suffix_tokens"), 0.0);
    assert_eq!(complete(&ana, None), (text, 0, 0));
}

#[test]
fn forgetting_touches_no_memory_that_nothing_was_kept_in() {
    let server = Server::start(
        "admin: {socket: admin.sock}\nmodel: {draft: none}\nspeculation: {suffix_memory: 1GiB}\nlog: {level: warn}\n",
    );
    let before = server.resident_bytes();
    let (code, told) = server.ctl(&["forget"]);
    assert_eq!(code, Some(0), "{told}");
    let more = server.resident_bytes().saturating_sub(before);
    assert!(more < 100 << 20, "{more} bytes more");
}

#[test]
fn without_memory_for_them_the_mode_is_refused() {
    let server = Server::start("log: {level: warn}\n");
    let body = json!({"prompt": "x", "max_tokens": 2, "speculation": {"mode": "suffix"}});
    let refused = server.client().post("/v1/completions", &body);
    assert_eq!((refused.status, refused.error()["param"].as_str()), (400, Some("speculation.mode")));
    let message = refused.error()["message"].to_string();
    assert!(message.contains("speculation.suffix_memory"), "{message}");
}
