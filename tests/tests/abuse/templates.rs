//! A model whose chat template is a bomb, set off by what the client says.

use std::os::unix::fs::symlink;

use faser_tests::{Config, Server, rules::root};
use serde_json::json;

use crate::wire::{exchange, post};

const BOMBS: &str = "\
{%- set what = messages[0].content -%}
{%- macro again() %}{{ again() }}{% endmacro -%}
{%- if what == 'steps' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif what == 'text' %}{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}
{%- elif what == 'one text' %}{{ 'x' * 99999999 }}
{%- elif what == 'no end' %}{{ 'x' * 9999999999999 }}
{%- elif what == 'itself' %}{{ again() }}
{%- elif what == 'indent' %}{{ messages[0].role | indent(18446744073709551615, true) }}
{%- elif what == 'batch' %}{{ [1] | batch(18446744073709551615) | list }}
{%- elif what == 'width' %}{{ '%999999999999d' | format(1) }}
{%- elif what == 'range' %}{{ range(99999999999) | list }}
{%- elif what == 'file' %}{% include '/etc/passwd' %}
{%- elif what == 'raise' %}{{ raise_exception('no') }}
{%- else %}{{ what }}{% endif -%}
";

#[test]
fn a_template_that_explodes_is_an_error_of_one_request() {
    let config = Config::new(
        "model: {name: bomb, target: bomb, draft: none}\nscheduler: {max_running: 2}\nlog: {level: warn}\n",
    );
    let folder = config.folder().join("bomb");
    std::fs::create_dir(&folder).expect("a folder can be made");
    for file in std::fs::read_dir(root().join("models/rustdoc/target")).expect("the demo pair") {
        let file = file.expect("a file");
        if !file.file_name().to_string_lossy().contains("template") {
            symlink(file.path(), folder.join(file.file_name())).expect("a link can be made");
        }
    }
    std::fs::write(folder.join("chat_template.jinja"), BOMBS).expect("a file can be written");
    let command = config.serve();
    let server = Server::run(config, command);
    let before = server.resident_bytes();
    let chat = |what: &str| {
        let messages = json!([{"role": "user", "content": what}]);
        json!({"messages": messages, "max_tokens": 2, "temperature": 0}).to_string()
    };
    for bomb in [
        "steps", "text", "one text", "no end", "itself", "indent", "batch", "width", "range", "file", "raise",
    ] {
        let answer = exchange(&server.client().address, &post("/v1/chat/completions", chat(bomb)), false);
        answer.is_error(400).unwrap_or_else(|fault| panic!("{bomb}: {fault}"));
    }
    // What a client writes is text, never a template.
    for text in ["hello", "{{ 'x' * 99999999 }}{% for a in range(9) %}", "{% include 'x' %}"] {
        let answer = server.client().send("POST", "/v1/chat/completions", &[], &chat(text));
        assert_eq!(answer.status, 200, "{text}: {answer:?}");
    }
    let after = server.resident_bytes();
    assert!(after <= before + (256 << 20), "memory grew from {before} to {after} bytes");
}
