//! The daemon on a GPU that is none: the real binary, its driver a fake one that runs the kernels on fibers. The same text as on the CPU.

mod fake_gpu;

use std::{ffi::OsString, fs, process::Output};

use fake_gpu::variables;
use faser_tests::{
    Config, Server,
    metrics::{Metrics, wait_until_idle},
    rules::root,
};
use serde_json::{Value, json};

const PAIR: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 2, hidden: 32, intermediate: 32, heads: 2, kv_heads: 1, vocab: 300, max_context: 64, residual_scale: 0.2}
kv: {memory: 1MiB}
scheduler: {max_running: 3, max_pass_rows: 8}
";
const GPU: &str = "device: {kind: 'cuda:0', partitions: [16]}\n";
const CPU: &str = "device: {kind: cpu, threads: 1}\n";

/// What each request gets, three at a time.
fn texts(server: &Server) -> Vec<String> {
    texts_of(server, 5)
}

/// The same of prompts of at least so many tokens.
fn texts_of(server: &Server, least: u32) -> Vec<String> {
    let body = |index: u32| {
        json!({
            "prompt": (0..least + 4 * index).map(|i| (i * 37 + index) % 256).collect::<Vec<u32>>(), "max_tokens": 10, "seed": index,
            "temperature": if index == 1 { 0.0 } else { 0.8 }, "frequency_penalty": if index == 2 { 0.6 } else { 0.0 },
            "stream": true, "stream_options": {"include_usage": true},
        })
    };
    let ask = |body: Value| {
        let transcript = server.client().stream("/v1/completions", &body).transcript();
        assert!(transcript.complete(), "{body}: {transcript:?}");
        transcript.text
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|index| scope.spawn(move || ask(body(index)))).collect();
        asked.into_iter().map(|text| text.join().expect("a text")).collect()
    })
}

/// Cost tables as of a GPU: on fibers each row costs what the one before did, and nobody would draft.
struct Costs(Config);

impl Costs {
    /// Has them measured on this device, which has partitions of these sizes, then writes others into the file.
    fn new(device: &str, sizes: [&str; 2], variables: &[(&str, OsString)]) -> Costs {
        let costs = Costs(Config::new(""));
        let yaml = format!("{PAIR}{device}speculation: {{policy: faser, {}}}\n", costs.cache());
        let output = run(&["check"], &Config::new(&yaml), variables);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        // Both partitions have been timed.
        for size in sizes {
            let line = format!("on {size} SMs: verify pass");
            assert!(
                out.matches(&line).count() == sizes.iter().filter(|other| **other == size).count(),
                "{line:?} in {out}"
            );
        }
        let files = fs::read_dir(costs.0.folder().join("costs")).expect("costs were cached");
        let files: Vec<_> =
            files.map(|file| file.expect("an entry").path()).filter(|path| path.is_file()).collect();
        let [file] = &files[..] else { panic!("one file is expected: {files:?}") };
        let text = fs::read_to_string(file).expect("the file is there");
        let mut cached: Value = serde_json::from_str(&text).expect("the file is JSON");
        assert_eq!(
            (&cached["key"]["device"]["gpu"], &cached["key"]["device"]["sms"]),
            (&json!("fake GPU"), &json!(132))
        );
        for table in cached["tables"].as_array_mut().expect("tables") {
            for (lane, ns) in [("draft", 1_000_000), ("verify", 100_000_000)] {
                let passes = table[lane]["passes"].as_array_mut().expect("times");
                passes.iter_mut().for_each(|pass| pass[1] = json!(ns));
            }
        }
        fs::write(file, cached.to_string()).expect("the file can be written");
        costs
    }

    fn cache(&self) -> String {
        format!("cost_cache: '{}'", self.0.folder().join("costs").display())
    }
}

#[test]
fn every_policy_streams_the_cpus_text() {
    let Some(variables) = variables("every_policy_streams_the_cpus_text", &[]) else { return };
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}speculation: {{policy: off}}\n")));
    let costs = Costs::new(GPU, ["132 + 132", "116 + 16"], &variables);
    for policy in ["off", "fixed:4", "faser"] {
        let speculation = format!("speculation: {{policy: '{policy}', {}}}\n", costs.cache());
        let server = Server::start_with(&format!("{PAIR}{GPU}{speculation}"), &variables);
        assert_eq!(texts(&server), expected, "{policy}");
        let metrics = wait_until_idle(server.client());
        assert_eq!(metrics.value("faser_device_info{device=\"cuda:0\",name=\"fake GPU\"}"), 1.0);
        let drafts = metrics.value("faser_spec_decode_num_draft_tokens_total");
        assert_eq!(drafts > 0.0, policy != "off", "{policy}: {drafts} proposals");
        let output = server.output();
        assert!(output.contains("device: cuda:0, fake GPU, 132 SMs of compute capability 9.0"), "{output}");
        assert_eq!(output.contains("cost tables"), policy == "faser", "{output}");
        server.stop();
    }
}

#[test]
fn deterministic_passes_in_bf16_give_a_seed_its_text_whatever_is_beside_it() {
    let name = "deterministic_passes_in_bf16_give_a_seed_its_text_whatever_is_beside_it";
    let Some(variables) = variables(name, &[]) else { return };
    // Prompts go through products of many rows and, on tensor cores, tiles that would be larger.
    let pair = PAIR.replace("dtype: f32", "dtype: bf16").replace("max_pass_rows: 8", "max_pass_rows: 192");
    let pair = pair.replace("hidden: 32", "hidden: 64").replace("max_context: 64", "max_context: 320");
    let device = "device: {kind: 'cuda:0', partitions: [16], deterministic: true}\n";
    let alone = pair.replace("max_running: 3", "max_running: 1");
    let yaml = format!("{alone}{device}speculation: {{policy: off}}\n");
    let expected = texts_of(&Server::start_with(&yaml, &variables), 140);
    assert!(expected.iter().all(|text| !text.is_empty()), "{expected:?}");
    for policy in ["off", "fixed:4"] {
        let server =
            Server::start_with(&format!("{pair}{device}speculation: {{policy: '{policy}'}}\n"), &variables);
        assert_eq!(texts_of(&server, 140), expected, "{policy}");
        wait_until_idle(server.client());
        server.stop();
    }
    // cublasLt would have the products of such a width.
    let odd = pair.replace("intermediate: 32", "intermediate: 40");
    let yaml = format!("{odd}{device}speculation: {{policy: faser}}\n");
    let output = run(&["check"], &Config::new(&yaml), &variables);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("`intermediate_size` is 40") && err.contains("`device.deterministic: false`"),
        "{err}"
    );
}

#[test]
fn keys_in_fp8_give_a_seed_its_text_and_have_room_for_more_tokens() {
    let name = "keys_in_fp8_give_a_seed_its_text_and_have_room_for_more_tokens";
    let Some(variables) = variables(name, &[]) else { return };
    let fp8 = PAIR.replace("kv: {memory: 1MiB}", "kv: {memory: 1MiB, cache_dtype: fp8}");
    let device = "device: {kind: 'cuda:0', partitions: [16], deterministic: true}\n";
    let alone = fp8.replace("max_running: 3", "max_running: 1");
    let off = "speculation: {policy: off}\n";
    let expected = texts(&Server::start_with(&format!("{alone}{device}{off}"), &variables));
    assert!(expected.iter().all(|text| !text.is_empty()), "{expected:?}");
    for policy in ["off", "fixed:4"] {
        let yaml = format!("{fp8}{device}speculation: {{policy: '{policy}'}}\n");
        let server = Server::start_with(&yaml, &variables);
        assert_eq!(texts(&server), expected, "{policy}");
        let metrics = wait_until_idle(server.client());
        let accepted = metrics.value("faser_spec_decode_num_accepted_tokens_total");
        assert_eq!(accepted > 0.0, policy != "off", "{policy}: {accepted}");
        server.stop();
    }
    let blocks = |pair: &str| {
        let output = run(&["check"], &Config::new(&format!("{pair}{GPU}{off}")), &variables);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        let kv = out.lines().find(|line| line.starts_with("kv ")).unwrap_or_else(|| panic!("{out}"));
        assert_eq!(kv.contains(" in fp8: "), pair.contains("fp8"), "{kv}");
        let (_, sizes) = kv.split_once(": ").expect("sizes");
        sizes.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).expect("blocks")
    };
    // Heads of 16 elements of 4 bytes, and 20 bytes for each.
    let ratio = blocks(&fp8) / blocks(PAIR);
    assert!((ratio - 64.0 / 20.0).abs() < 0.1, "{ratio}");
    let output = run(&["check"], &Config::new(&format!("{fp8}{CPU}")), &variables);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("`kv.cache_dtype: fp8` runs on GPUs alone"), "{err}");
}

#[test]
fn a_draft_on_every_gpu_divides_the_sequences_and_changes_no_text() {
    let name = "a_draft_on_every_gpu_divides_the_sequences_and_changes_no_text";
    let Some(variables) = variables(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}speculation: {{policy: off}}\n")));
    let device =
        "device: {kind: 'cuda:0', tensor_parallel: 2, draft_placement: replicated, partitions: [16]}\n";
    let costs = Costs::new(device, ["132 + 132", "116 + 16"], &variables);
    for policy in ["fixed:4", "faser"] {
        let speculation = format!("speculation: {{policy: '{policy}', {}}}\n", costs.cache());
        let server = Server::start_with(&format!("{PAIR}{device}{speculation}"), &variables);
        assert_eq!(texts(&server), expected, "{policy}");
        let metrics = wait_until_idle(server.client());
        assert!(metrics.value("faser_spec_decode_num_draft_tokens_total") > 0.0, "{policy}");
        assert!(server.output().contains("device: cuda:0,1, fake GPU"), "{}", server.output());
        server.stop();
    }
}

#[test]
fn a_draft_on_a_gpu_of_its_own_prepares_for_verdicts_and_changes_no_text() {
    let name = "a_draft_on_a_gpu_of_its_own_prepares_for_verdicts_and_changes_no_text";
    let Some(variables) = variables(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}speculation: {{policy: off}}\n")));
    let device = "device: {kind: 'cuda:0', draft_placement: own}\n";
    let costs = Costs::new(device, ["132 + 132"; 2], &variables);
    for policy in ["fixed:4", "faser"] {
        let speculation = format!("speculation: {{policy: '{policy}', {}}}\n", costs.cache());
        let server = Server::start_with(&format!("{PAIR}{device}{speculation}"), &variables);
        assert_eq!(texts(&server), expected, "{policy}");
        let metrics = wait_until_idle(server.client());
        assert!(metrics.value("faser_spec_decode_num_draft_tokens_total") > 0.0, "{policy}");
        let output = server.output();
        assert!(output.contains("device: cuda:0,1, fake GPU"), "{output}");
        server.stop();
    }
    for (device, parts) in [
        ("{kind: cuda, draft_placement: own, partitions: [16]}", ["`device.partitions`", "leave"]),
        ("{kind: 'cuda:0,1,2', draft_placement: own}", ["one more for the draft", "is 2"]),
        ("{kind: 'cuda:1', draft_placement: own}", ["cuda:1,2", "no GPU 2"]),
    ] {
        let yaml = format!("{PAIR}device: {device}\nspeculation: {{policy: 'fixed:2'}}\n");
        let output = run(&["check"], &Config::new(&yaml), &variables);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{device}: {err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{device}: {err}");
    }
}

/// The draft alone runs the kernel in which its GPU is lost.
#[test]
fn a_draft_gpu_that_is_lost_costs_speed_and_never_a_text() {
    let name = "a_draft_gpu_that_is_lost_costs_speed_and_never_a_text";
    let lost = [("FASER_FAKE_GPUS", "2"), ("FASER_FAKE_LOSE", "confidence:5")];
    let Some(variables) = variables(name, &lost) else { return };
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}speculation: {{policy: off}}\n")));
    let device = "device: {kind: 'cuda:0', draft_placement: own}\n";
    let server =
        Server::start_with(&format!("{PAIR}{device}speculation: {{policy: 'fixed:4'}}\n"), &variables);
    assert_eq!(texts(&server), expected);
    let passes = |metrics: &Metrics| metrics.value("faser_passes_total{lane=\"draft\"}");
    let before = wait_until_idle(server.client());
    assert!(passes(&before) > 0.0 && before.value("faser_draft_retired") == 1.0, "{}", server.output());
    assert_eq!((before.value("faser_ready"), before.value("faser_device_given_up")), (1.0, 0.0));
    let ready = server.client().get("/ready");
    let said = ready.json()["replicas"][0]["status"].to_string();
    assert!(ready.status == 200 && said.contains("serving without its draft"), "{} {said}", ready.status);
    assert_eq!(texts(&server), expected, "without a draft");
    assert_eq!(passes(&wait_until_idle(server.client())), passes(&before));
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 2, "speculation": {"mode": "draft"}});
    let refused = server.client().post("/v1/completions", &body);
    let why = refused.json()["error"]["message"].to_string();
    assert!(refused.status == 400 && why.contains("the draft is retired"), "{} {why}", refused.status);
    let output = server.output();
    assert!(
        output.contains("the draft is retired") && output.contains("GPU 1 is lost to this process"),
        "{output}"
    );
    server.stop();
}

#[test]
fn a_head_proposes_on_a_gpu_what_it_proposes_on_the_cpu() {
    let name = "a_head_proposes_on_a_gpu_what_it_proposes_on_the_cpu";
    let Some(variables) = variables(name, &[]) else { return };
    let demo = root().join("models/rustdoc");
    let pair = format!(
        "model: {{target: '{0}/target', draft: '{0}/eagle3', dtype: f32}}\nkv: {{memory: 4MiB}}\n\
         scheduler: {{max_running: 2, max_pass_rows: 16, max_context: 128}}\nspeculation: {{policy: 'fixed:3'}}\n",
        demo.display()
    );
    let body =
        json!({"prompt": "/// Returns the number of elements in the", "max_tokens": 16, "temperature": 0.0});
    let answered = |server: &Server| {
        let text = server.client().post("/v1/completions", &body).json()["choices"][0]["text"].clone();
        let metrics = wait_until_idle(server.client());
        let count = |what: &str| metrics.value(&format!("faser_spec_decode_num_{what}_tokens_total"));
        (text, count("draft"), count("accepted"))
    };
    let expected = answered(&Server::start(&format!("{pair}{CPU}")));
    let server = Server::start_with(&format!("{pair}{GPU}"), &variables);
    assert_eq!(answered(&server), expected, "{}", server.output());
    assert!(expected.2 >= 4.0, "a trained head is right now and then: {expected:?}");
    assert!(
        server.output().contains("a head on the target's hidden states (EAGLE-3)"),
        "{}",
        server.output()
    );
}

#[test]
fn a_pair_over_two_gpus_streams_the_cpus_text_and_refusals_say_what_to_do() {
    let name = "a_pair_over_two_gpus_streams_the_cpus_text_and_refusals_say_what_to_do";
    let Some(variables) = variables(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let speculation = "speculation: {policy: 'fixed:3'}\n";
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}{speculation}")));
    for (device, ranks) in [
        ("{kind: cuda, tensor_parallel: 2, partitions: [16]}", "verify on 116 SMs over 2 ranks"),
        (
            "{kind: 'cuda:1,0', tensor_parallel: 2, draft_tensor_parallel: 2}",
            "draft on 132 SMs over 2 ranks, verify on 132 SMs over 2 ranks",
        ),
        ("{kind: cuda, replicas: 2, partitions: [16]}", "of replica 1: draft on 16 SMs, verify on 116 SMs"),
    ] {
        let yaml = format!("{PAIR}device: {device}\n{speculation}");
        let output = run(&["check"], &Config::new(&yaml), &variables);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains(ranks), "{out}{err}");
        let server = Server::start_with(&yaml, &variables);
        assert_eq!(texts(&server), expected, "{device}");
        wait_until_idle(server.client());
        server.stop();
    }
    for (device, variable, parts) in [
        (
            "{kind: cuda, tensor_parallel: 4}",
            ("FASER_FAKE_GPUS", "2"),
            ["`device.kind` is cuda:0,1,2,3", "no GPU 2"],
        ),
        (
            "{kind: 'cuda:0', draft_tensor_parallel: 2}",
            ("FASER_FAKE_GPUS", "2"),
            ["among the target's", "at most `device.tensor_parallel`"],
        ),
        (
            "{kind: cuda, tensor_parallel: 2, draft_tensor_parallel: 2, partitions: [16]}",
            ("FASER_FAKE_GPUS", "2"),
            ["`device.partitions`", "for ever"],
        ),
        (
            "{kind: cuda, tensor_parallel: 2}",
            ("FASER_FAKE_NCCL", "21003"),
            ["NCCL 2.10.3 is too old", "pip install"],
        ),
    ] {
        let mut variables = variables.clone();
        variables.push((variable.0, variable.1.into()));
        let output =
            run(&["check"], &Config::new(&format!("{PAIR}device: {device}\n{speculation}")), &variables);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{device}: {err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{device}: {err}");
    }
}

#[test]
fn pairs_have_gpus_of_their_own_and_the_cpu_where_none_is_left() {
    let name = "pairs_have_gpus_of_their_own_and_the_cpu_where_none_is_left";
    let Some(variables) = variables(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let (model, shared) = PAIR.split_once("kv: ").expect("the model comes first");
    let model = model
        .replace("model:\n", "  model:\n")
        .replace("  dtype", "    dtype")
        .replace("  synthetic", "    synthetic");
    let pairs = |kinds: [&str; 3]| {
        let pair =
            |(name, kind)| format!("- name: {name}\n{model}  device: {{kind: '{kind}', partitions: []}}\n");
        let list: String = ["a", "b", "c"].into_iter().zip(kinds).map(pair).collect();
        format!("kv: {shared}speculation: {{policy: 'fixed:2'}}\npairs:\n{list}")
    };
    let server = Server::start_with(&pairs(["auto", "cuda:0", "auto"]), &variables);
    for (model, device) in [("a", "cuda:1"), ("b", "cuda:0"), ("c", "cpu")] {
        assert!(server.output().contains(&format!("device of {model}: {device}")), "{}", server.output());
    }
    let text = |model: &str| {
        let body = json!({"model": model, "prompt": "hello", "max_tokens": 8, "temperature": 0.8, "seed": 1});
        server.client().post("/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    assert_eq!([text("a"), text("b")], [text("c"), text("c")]);
    let one_for_two = pairs(["cuda:1", "cpu", "cuda:1"]).replace("'cpu', partitions: []", "'cpu'");
    let output = run(&["check"], &Config::new(&one_for_two), &variables);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("`pairs[2].device.kind` takes GPU 1, which pairs[0] has"), "{err}");
}

/// Requests for what is more than text.
fn requests(chats: bool) -> Vec<(&'static str, Value)> {
    let (text, chat) = ("/v1/completions", "/v1/chat/completions");
    let messages = json!([{"role": "user", "content": "x"}]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false});
    let function = |strict: bool| json!({"type": "function", "function": {"name": "look", "strict": strict, "parameters": schema}});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": true}});
    let ends: Vec<u32> = (60..120).collect();
    let mut requests = vec![
        (text, json!({"prompt": "hello", "logprobs": 5})),
        (text, json!({"prompt": "hello", "logprobs": 0, "temperature": 0, "n": 2})),
        (text, json!({"prompt": "a prompt that is scored", "logprobs": 3, "echo": true})),
        (text, json!({"prompt": "a prompt that is scored", "logprobs": 2, "echo": true, "max_tokens": 0})),
        // Penalties and bias change what is drawn, and no log-probability.
        (
            text,
            json!({"prompt": "hello hello", "logprobs": 2, "frequency_penalty": 1.5, "repetition_penalty": 1.3,
            "logit_bias": {"104": 4.0}, "top_p": 0.8}),
        ),
        (text, json!({"prompt": "hello", "min_tokens": 9, "stop_token_ids": ends, "max_tokens": 12})),
        (text, json!({"prompt": "hello", "bad_words": ["a", "he", "zz"], "temperature": 1.5})),
        (text, json!({"prompt": "hello", "allowed_token_ids": [97, 98, 99, 100], "top_k": 3, "logprobs": 2})),
        (text, json!({"prompt": "hello", "response_format": format, "max_tokens": 40})),
        (text, json!({"prompt": "hello", "guided_regex": "[a-f]{3}-[0-9]{2,5}", "logprobs": 1})),
        (text, json!({"prompt": "hello", "guided_choice": ["yes", "no", "no way"], "temperature": 0})),
    ];
    if !chats {
        return requests;
    }
    requests.extend([
        (chat, json!({"messages": messages, "response_format": {"type": "json_object"}, "max_tokens": 24})),
        (chat, json!({"messages": messages, "logprobs": true, "top_logprobs": 4})),
        (
            chat,
            json!({"messages": messages, "tools": [function(true)], "tool_choice": "required", "max_tokens": 90}),
        ),
        (
            chat,
            json!({"messages": messages, "tools": [function(false)], "max_tokens": 20,
            "tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ),
    ]);
    requests
}

/// A golden model as one that chats: with a context for that, a tokenizer of characters, and a template.
fn chatting(config: &Config, name: &str) {
    let golden = root().join("models/tests/golden").join(name);
    let folder = config.folder().join(name);
    fs::create_dir(&folder).expect("a folder can be made");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(file), folder.join(file)).expect("a golden file");
    }
    let text = fs::read_to_string(folder.join("config.json")).expect("it was copied");
    let longer = text.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 512");
    assert_ne!(longer, text);
    fs::write(folder.join("config.json"), longer).expect("a file can be written");
    // As GPT-2 writes bytes that are no letters.
    let of_byte = |byte: u32| match byte {
        33..=126 => byte,
        127 => 289,
        _ => 256 + byte,
    };
    let letter = |byte: u32| char::from_u32(of_byte(byte)).expect("a letter").to_string();
    let vocab: serde_json::Map<String, Value> = (0..128).map(|byte| (letter(byte), json!(byte))).collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a file can be written");
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    fs::write(folder.join("chat_template.jinja"), template).expect("a file can be written");
}

/// An answer without what differs from one to the next; log-probabilities apart from it.
fn comparable(answer: Value, found: &mut Vec<f64>) -> Value {
    match answer {
        Value::Object(fields) => {
            let same = fields.into_iter().filter(|(name, _)| !["id", "created"].contains(&name.as_str()));
            Value::Object(same.map(|(name, value)| (name, comparable(value, found))).collect())
        }
        Value::Array(list) => list.into_iter().map(|value| comparable(value, found)).collect(),
        Value::Number(number) if number.is_f64() => {
            found.extend(number.as_f64());
            json!("a float")
        }
        same => same,
    }
}

/// Each answer with the log-probabilities in it.
fn answers(server: &Server, chats: bool) -> Vec<(Value, Value, Vec<f64>)> {
    let one = |(path, mut body): (&str, Value)| {
        for (field, value) in [("seed", json!(3)), ("max_tokens", json!(10))] {
            body.as_object_mut().expect("a body").entry(field).or_insert(value);
        }
        let answer = server.client().post(path, &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        let mut floats = Vec::new();
        (body, comparable(answer.json(), &mut floats), floats)
    };
    let found = requests(chats).into_iter().map(one).collect();
    wait_until_idle(server.client());
    found
}

/// One server after the other, of a pair on the devices of `yaml`: all answer as the first does.
fn answer_alike(chats: bool, servers: impl IntoIterator<Item = (String, Server)>) {
    let mut servers = servers.into_iter();
    let (_, on_cores) = servers.next().expect("a first one");
    let expected = answers(&on_cores, chats);
    for (what, server) in servers {
        let mut floats_of_all = 0;
        for ((body, expected, of_cpu), (_, found, of_gpu)) in expected.iter().zip(answers(&server, chats)) {
            assert_eq!(found, *expected, "{what} {body}");
            let near = of_cpu.iter().zip(&of_gpu).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(near, "{what} {body}: {of_cpu:?} {of_gpu:?}");
            floats_of_all += of_gpu.len();
        }
        assert!(floats_of_all > 150, "{floats_of_all} log-probabilities");
        println!("{what}: {} answers, {floats_of_all} log-probabilities", expected.len());
    }
}

const TWO: &str = "device: {kind: cuda, tensor_parallel: 2, draft_tensor_parallel: 2, partitions: []}\n";

#[test]
fn log_probabilities_grammars_and_masks_are_on_a_gpu_as_on_cores() {
    let name = "log_probabilities_grammars_and_masks_are_on_a_gpu_as_on_cores";
    let Some(variables) = variables(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let pair = PAIR.replace("max_context: 64", "max_context: 512").replace("memory: 1MiB", "memory: 4MiB");
    let cases = [(CPU, "off"), (GPU, "off"), (GPU, "fixed:3"), (TWO, "fixed:3")];
    let servers = cases.map(|(device, policy)| {
        let yaml = format!("{pair}{device}speculation: {{policy: '{policy}'}}\n");
        (format!("{device}{policy}"), yaml)
    });
    answer_alike(
        false,
        servers.into_iter().map(|(what, yaml)| (what, Server::start_with(&yaml, &variables))),
    );
}

#[test]
fn chats_with_forms_and_tools_are_on_a_gpu_as_on_cores() {
    let name = "chats_with_forms_and_tools_are_on_a_gpu_as_on_cores";
    let Some(variables) = variables(name, &[]) else { return };
    let servers = [CPU, GPU].map(|device| {
        let config = Config::new(&format!(
            "model: {{name: chat, target: qwen3-tied, draft: llama, dtype: f32}}\nkv: {{memory: 4MiB}}\n{device}\
             scheduler: {{max_running: 3, max_pass_rows: 16}}\nspeculation: {{policy: 'fixed:3'}}\n"
        ));
        ["qwen3-tied", "llama"].iter().for_each(|name| chatting(&config, name));
        (device.to_owned(), config)
    });
    let servers = servers.into_iter().map(|(what, config)| {
        let mut command = config.serve();
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        (what, Server::run(config, command))
    });
    answer_alike(true, servers);
}

fn run(arguments: &[&str], config: &Config, variables: &[(&str, OsString)]) -> Output {
    let mut command = config.command(arguments);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().expect("the binary can be started")
}

#[test]
fn check_and_generate_use_the_gpu_and_refusals_name_the_key() {
    let name = "check_and_generate_use_the_gpu_and_refusals_name_the_key";
    let Some(variables) = variables(name, &[("FASER_FAKE_MEMORY", "120000000")]) else { return };
    let plain = "speculation: {policy: 'fixed:2'}\n";
    let output = run(&["check"], &Config::new(&format!("{PAIR}{GPU}{plain}")), &variables);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    for line in
        ["cuda:0, fake GPU, 132 SMs", "draft on 132 SMs, verify on 132", "draft on 16 SMs, verify on 116"]
    {
        assert!(out.contains(line), "{line:?} in {out}");
    }
    // Without `kv.memory` the pools have what is left; `auto` takes the GPU, and splits that are sensible for it.
    let pair = PAIR.replace("kv: {memory: 1MiB}\n", "");
    let output = run(&["check"], &Config::new(&format!("{pair}{plain}")), &variables);
    let out = String::from_utf8_lossy(&output.stdout);
    let kv = out.lines().find(|line| line.starts_with("kv ")).unwrap_or_else(|| panic!("{out}"));
    assert!(!kv.contains(" 1.0") && out.contains("draft on 64 SMs, verify on 68 SMs"), "{out}");
    println!("{kv}");

    let generate = |device: &str| {
        let config = Config::new(&format!("{PAIR}{device}{plain}"));
        let output =
            run(&["generate", "--json", "--max-tokens", "8", "--seed", "1", "hello"], &config, &variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["runs"][0]["text"].clone()
    };
    assert_eq!(generate(GPU), generate(CPU));

    for (device, parts) in [
        ("{kind: 'cuda:0', partitions: [13]}", ["device.partitions has 13", "multiples of 8 from 8 to 120"]),
        ("{kind: 'cuda:0', partitions: [16, 128]}", ["device.partitions has 128", "multiples of 8"]),
        (
            "{kind: 'cuda:0', gpu_memory_utilization: 0.1}",
            ["set device.gpu_memory_utilization to at least", "GiB"],
        ),
        ("{kind: 'cuda:7'}", ["`device.kind` is cuda:7", "0 (fake GPU)"]),
    ] {
        let output = run(&["check"], &Config::new(&format!("{PAIR}device: {device}\n{plain}")), &variables);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{device}: {err}");
        assert!(parts.iter().all(|part| err.replace("MiB", "GiB").contains(part)), "{device}: {err}");
    }
}

/// Starts on a machine that is not as it should be; the texts are the CPU's all the same.
#[test]
fn a_day_that_begins_badly_serves_all_the_same_and_says_what_is_missing() {
    let name = "a_day_that_begins_badly_serves_all_the_same_and_says_what_is_missing";
    let speculation = "speculation: {policy: 'fixed:3'}\n";
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}{speculation}")));
    let no_partitions = "serving without these partitions of the SMs";
    for (made, words) in [
        (&[("FASER_FAKE_GREEN", "none")][..], &[no_partitions, "NOT_SUPPORTED"][..]),
        (&[("FASER_FAKE_GREEN", "uneven")], &[no_partitions, "would become 18"]),
        (
            &[("FASER_FAKE_VERSION", "12040"), ("FASER_FAKE_LIBRARIES", "12")],
            &[no_partitions, "came with 12.5", "driver of CUDA 12.4", "NVRTC 12.0 (libnvrtc.so.12"],
        ),
        (
            &[("FASER_FAKE_CAPABILITY", "89"), ("FASER_FAKE_SHARED", "101376")],
            &["compute capability 8.9", "NVRTC 13.0 (libnvrtc.so.13"],
        ),
    ] {
        let Some(variables) = variables(name, made) else { return };
        let yaml = format!("{PAIR}device: {{kind: 'cuda:0'}}\n{speculation}");
        let server = Server::start_with(&yaml, &variables);
        assert_eq!(texts(&server), expected, "{made:?}");
        let output = server.output();
        assert!(words.iter().all(|words| output.contains(words)), "{made:?}: {output}");
        server.stop();
    }
    // What the config names is had or refused.
    for green in ["none", "uneven"] {
        let Some(variables) = variables(name, &[("FASER_FAKE_GREEN", green)]) else { return };
        let output = run(&["check"], &Config::new(&format!("{PAIR}{GPU}{speculation}")), &variables);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && err.contains("`device.partitions`"), "{green}: {err}");
    }
    let Some(variables) = variables(name, &[("FASER_FAKE_INIT", "802")]) else { return };
    let output = run(&["check"], &Config::new(&format!("{PAIR}{GPU}{speculation}")), &variables);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains("nvidia-fabricmanager"), "{err}");
}

#[test]
fn kernels_are_loaded_before_they_are_launched_and_nothing_is_left() {
    let name = "kernels_are_loaded_before_they_are_launched_and_nothing_is_left";
    let config = Config::new(&format!("{PAIR}{GPU}speculation: {{policy: 'fixed:3'}}\n"));
    let report = config.folder().join("report");
    let Some(variables) = variables(name, &[("FASER_FAKE_REPORT", &report.display().to_string())]) else {
        return;
    };
    let output = run(&["generate", "--max-tokens", "8", "hello"], &config, &variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = fs::read_to_string(report).expect("the last device was closed");
    for line in [
        "launches of kernels not loaded 0",
        "CUDA_DEVICE_MAX_CONNECTIONS at cuInit 32",
        "green contexts left 0",
        "graphs left 0",
        "memory left 0",
    ] {
        assert!(report.lines().any(|found| found == line), "{line}: {report}");
    }
}
