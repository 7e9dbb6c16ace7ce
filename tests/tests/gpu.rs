//! The daemon on a GPU that is none: the real binary, its driver a fake one that runs the kernels on fibers. The same text as on the CPU.

#[path = "../../kernels/tests/cuda_fake/folder.rs"]
mod fake_gpu;

use std::{
    ffi::OsString,
    fs,
    io::Write,
    process::{Command, Output},
    time::Duration,
};

use faser_tests::{
    Config, Server, cost_cache, faser,
    metrics::{Metrics, wait_until},
};
use serde_json::{Value, json};

/// Fibers are slow.
const PATIENCE: Duration = Duration::from_secs(120);
const PAIR: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 2, hidden: 32, intermediate: 32, heads: 2, kv_heads: 1, vocab: 300, max_context: 64, residual_scale: 0.2}
kv: {memory: 1MiB}
scheduler: {max_running: 3, max_pass_rows: 8}
";
const GPU: &str = "device: {kind: 'cuda:0', partitions: [16]}\n";
const CPU: &str = "device: {kind: cpu, threads: 1}\n";

/// Variables with which a daemon sees the fake GPU; none, which is said past the harness, where it cannot be built.
fn fake(test: &str, more: &[(&'static str, &str)]) -> Option<Vec<(&'static str, OsString)>> {
    match fake_gpu::folder() {
        Ok(folder) => {
            let path = [("LD_LIBRARY_PATH", fake_gpu::search_path(&folder))];
            let more = more.iter().map(|&(name, value)| (name, OsString::from(value)));
            Some(path.into_iter().chain(more).collect())
        }
        Err(reason) => {
            writeln!(std::io::stderr(), "\nskipped: {test}: {reason}").expect("stderr");
            None
        }
    }
}

/// What each request gets, three at a time.
fn texts(server: &Server) -> Vec<String> {
    let body = |index: u32| {
        json!({
            "prompt": (0..5 + 4 * index).map(|i| (i * 37 + index) % 256).collect::<Vec<u32>>(), "max_tokens": 10, "seed": index,
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

fn assert_whole(server: &Server) -> Metrics {
    let idle =
        |metrics: &Metrics| metrics.value("faser_requests_running") == 0.0 && metrics.blocks_in_use() == 0.0;
    wait_until(server.client(), "both pools are whole", PATIENCE, idle)
}

/// Cost tables as of a GPU: on fibers each row costs what the one before did, and nobody would draft.
struct Costs(Config);

impl Costs {
    /// Has them measured, then writes others into the file.
    fn new(variables: &[(&str, OsString)]) -> Costs {
        let costs = Costs(Config::new(""));
        let yaml = format!("{PAIR}{GPU}speculation: {{policy: faser, {}}}\n", costs.cache());
        let output = run(&["check"], &Config::new(&yaml), variables);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        // Both partitions have been timed.
        for line in ["on 132 + 132 SMs: verify pass", "on 116 + 16 SMs: verify pass"] {
            assert!(out.contains(line), "{line:?} in {out}");
        }
        let files = fs::read_dir(costs.0.folder().join("costs")).expect("costs were kept");
        let files: Vec<_> =
            files.map(|file| file.expect("an entry").path()).filter(|path| path.is_file()).collect();
        let [file] = &files[..] else { panic!("one file is expected: {files:?}") };
        let text = fs::read_to_string(file).expect("the file is there");
        let mut kept: Value = serde_json::from_str(&text).expect("the file is JSON");
        assert_eq!(
            (&kept["key"]["device"]["gpu"], &kept["key"]["device"]["sms"]),
            (&json!("fake GPU"), &json!(132))
        );
        for table in kept["tables"].as_array_mut().expect("tables") {
            for (lane, ns) in [("draft", 1_000_000), ("verify", 100_000_000)] {
                table[lane]["pass_ns"].as_array_mut().expect("times").fill(json!(ns));
            }
        }
        fs::write(file, kept.to_string()).expect("the file can be written");
        costs
    }

    fn cache(&self) -> String {
        format!("cost_cache: '{}'", self.0.folder().join("costs").display())
    }
}

#[test]
fn every_policy_streams_the_cpus_text() {
    let Some(variables) = fake("every_policy_streams_the_cpus_text", &[]) else { return };
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}speculation: {{policy: off}}\n")));
    let costs = Costs::new(&variables);
    for policy in ["off", "fixed:4", "faser"] {
        let speculation = format!("speculation: {{policy: '{policy}', {}}}\n", costs.cache());
        let server = Server::start_with(&format!("{PAIR}{GPU}{speculation}"), &variables);
        assert_eq!(texts(&server), expected, "{policy}");
        let metrics = assert_whole(&server);
        assert_eq!(metrics.value("faser_device_info{device=\"cuda:0\",name=\"fake GPU\"}"), 1.0);
        let drafts = metrics.value("faser_spec_decode_num_draft_tokens");
        assert_eq!(drafts > 0.0, policy != "off", "{policy}: {drafts} proposals");
        let output = server.output();
        assert!(output.contains("device: cuda:0, fake GPU, 132 SMs of compute capability 9.0"), "{output}");
        assert_eq!(output.contains("cost tables"), policy == "faser", "{output}");
        server.terminate();
        assert!(server.wait(PATIENCE).success(), "{}", server.output());
    }
}

#[test]
fn a_gpu_that_is_lost_is_opened_again_and_the_streams_go_on() {
    let lose = [("FASER_FAKE_LOSE", "accept_prefix:9")];
    let name = "a_gpu_that_is_lost_is_opened_again_and_the_streams_go_on";
    let Some(variables) = fake(name, &lose) else { return };
    let speculation = "speculation: {policy: 'fixed:3'}\n";
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}{speculation}")));
    let server = Server::start_with(&format!("{PAIR}{GPU}{speculation}"), &variables);
    assert_eq!(texts(&server), expected);
    let metrics = assert_whole(&server);
    assert_eq!(metrics.value("faser_device_failures"), 1.0, "{}", server.output());
    assert!(server.output().contains("LAUNCH_FAILED"), "{}", server.output());
}

#[test]
fn a_pair_over_two_gpus_streams_the_cpus_text_and_refusals_say_what_to_do() {
    let name = "a_pair_over_two_gpus_streams_the_cpus_text_and_refusals_say_what_to_do";
    let Some(variables) = fake(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
    let speculation = "speculation: {policy: 'fixed:3'}\n";
    let expected = texts(&Server::start(&format!("{PAIR}{CPU}{speculation}")));
    for (device, ranks) in [
        ("{kind: cuda, tensor_parallel: 2, partitions: [16]}", "verify on 116 SMs over 2 ranks"),
        (
            "{kind: 'cuda:1,0', tensor_parallel: 2, draft_tensor_parallel: 2, partitions: [16]}",
            "draft on 16 SMs over 2 ranks, verify on 116 SMs over 2 ranks",
        ),
        ("{kind: cuda, replicas: 2, partitions: [16]}", "of replica 1: draft on 16 SMs, verify on 116 SMs"),
    ] {
        let yaml = format!("{PAIR}device: {device}\n{speculation}");
        let output = run(&["check"], &Config::new(&yaml), &variables);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains(ranks), "{out}{err}");
        let server = Server::start_with(&yaml, &variables);
        assert_eq!(texts(&server), expected, "{device}");
        // Of replicas each has metrics of its own.
        if !device.contains("replicas") {
            assert_whole(&server);
        }
        server.terminate();
        assert!(server.wait(PATIENCE).success(), "{}", server.output());
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
            "{kind: cuda, tensor_parallel: 2}",
            ("FASER_FAKE_NCCL", "21003"),
            ["NCCL 2.10.3 is too old", "pip install"],
        ),
        (
            "{kind: cuda, tensor_parallel: 2, draft_placement: replicated}",
            ("FASER_FAKE_GPUS", "2"),
            ["device.draft_placement", "`faser plan` alone"],
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
    let Some(variables) = fake(name, &[("FASER_FAKE_GPUS", "2")]) else { return };
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

fn run(arguments: &[&str], config: &Config, variables: &[(&str, OsString)]) -> Output {
    let mut command = Command::new(faser());
    command.args(arguments).arg("-c").arg(config.path()).env("CACHE_DIRECTORY", cost_cache());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.output().expect("the binary can be started")
}

#[test]
fn check_and_generate_use_the_gpu_and_refusals_name_the_key() {
    let name = "check_and_generate_use_the_gpu_and_refusals_name_the_key";
    let Some(variables) = fake(name, &[("FASER_FAKE_MEMORY", "120000000")]) else { return };
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
