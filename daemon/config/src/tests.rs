//! Whole configs: defaults, and the exact words of refusals.

use std::path::Path;

use faser_actors::DrillFault;
use faser_engine::{Mechanisms, Policy, Slo};

use super::raw::Document;
use super::*;

fn read(text: &str) -> Result<Config, ConfigError> {
    Config::from_document(&Document::parse(Path::new("etc/x.yaml"), text.to_owned())?)
}

fn refusal(text: &str) -> String {
    read(text).expect_err("this has to be refused").to_string()
}

#[test]
fn the_teaching_file_says_every_default() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/laptop.yaml");
    let document = Document::read(&file).unwrap();
    let defaults = Config::from_document(&Document::empty()).unwrap();
    assert_eq!(Config::from_document(&document).unwrap(), defaults);
    // Each key stands there: taking one out of the schema, or forgetting one in the file, shows here.
    let keys = |section: &str| {
        let section = document.root()[section].as_object().unwrap();
        let mut keys: Vec<&str> = section.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys.join(" ")
    };
    assert_eq!(
        keys("server"),
        "allow_public_without_keys api_keys_file body_timeout_s debug header_timeout_s keep_alive_s listen max_body_bytes \
         max_concurrent_per_key max_connections max_prompts_per_request metrics_open tls workers write_timeout_s"
    );
    assert_eq!(keys("admin"), "group socket");
    assert_eq!(
        keys("model"),
        "aliases draft draft_dtype dtype generation_config name reasoning target tool_calls"
    );
    assert_eq!(
        keys("device"),
        "custom_all_reduce deterministic draft_placement draft_tensor_parallel gpu_memory_utilization isa kind partitions pipeline_parallel rank_deadline_s replicas tensor_parallel threads"
    );
    assert_eq!(keys("kv"), "block_size cache_dtype memory prefix_cache");
    assert_eq!(keys("kv_events"), "buffer_steps encoding endpoint replay_endpoint topic");
    assert_eq!(
        keys("scheduler"),
        "max_context max_pass_rows max_prefill_rows max_running max_waiting priorities"
    );
    assert_eq!(
        keys("speculation"),
        "cost_cache k_max lookup overlap partition policy prune sizing slo suffix_memory trim"
    );
    assert_eq!(keys("log"), "format level");
    assert_eq!(keys("metrics"), "vllm_names");
    assert_eq!(keys("telemetry"), "otlp_endpoint");
}

#[test]
fn traces_go_to_a_collector() {
    let telemetry = |text: &str| read(&format!("telemetry: {{{text}}}\n")).unwrap().telemetry;
    assert_eq!(telemetry(""), TelemetryConfig::default());
    let named = telemetry("otlp_endpoint: 'http://localhost:4318'").otlp_endpoint;
    assert_eq!(named.as_deref(), Some("http://localhost:4318"));
    for text in ["localhost:4317", "http://", "grpc://a:1", ""] {
        let refusal = refusal(&format!("telemetry: {{otlp_endpoint: '{text}'}}\n"));
        assert!(refusal.contains("`telemetry.otlp_endpoint`") && refusal.contains(":4318"), "{refusal}");
    }
}

#[test]
fn the_packaged_file_changes_no_default() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/debian/faser.yaml");
    let packaged = Config::from_document(&Document::read(&file).unwrap()).unwrap();
    assert_eq!(packaged, Config::from_document(&Document::empty()).unwrap());
}

#[test]
fn values_replace_defaults() {
    let config = read(
        "server: {listen: '0.0.0.0:9', keep_alive_s: 5, debug: true}\nmodel: {target: big, draft: none, dtype: f32}\n\
         kv: {memory: 2GiB, prefix_cache: false}\nscheduler: {max_running: 700}\ndrain_timeout_s: 0\n",
    )
    .unwrap();
    assert_eq!(config.server.listen.to_string(), "0.0.0.0:9");
    assert_eq!((config.server.keep_alive, config.server.debug), (Duration::from_secs(5), true));
    assert_eq!(config.model.source, ModelSource::Directories { target: "etc/big".into(), draft: None });
    assert_eq!(config.model.dtype, Some(Dtype::F32));
    assert_eq!(config.kv.memory_bytes, Some(2 << 30));
    assert_eq!(config.scheduler.max_pass_rows, 700, "a row for each sequence");
    assert_eq!(config.tuning.policy, Policy::Faser, "without a draft model prompt-lookup proposes");
    assert_eq!(config.drain_timeout, Duration::ZERO);
}

#[test]
fn keys_and_certificates_are_files_beside_the_config() {
    let server = |text: &str| read(&format!("server: {{{text}}}\n")).unwrap().server;
    let config = server("api_keys_file: keys, tls: {cert: /a/cert.pem, key: key.pem}");
    assert_eq!(config.api_keys_file, Some("etc/keys".into()));
    assert_eq!(config.tls, Some(TlsConfig { cert: "/a/cert.pem".into(), key: "etc/key.pem".into() }));
    assert!(refusal("server: {tls: {cert: a}}\n").contains("`server.tls.key` is missing"));
    assert!(refusal("server: {tls: yes}\n").contains("`server.tls` must be an object"));
    assert!(refusal("server: {api_keys_file: ''}\n").contains("`server.api_keys_file`"));
    assert!(refusal("server: {max_concurrent_per_key: 0}\n").contains("`server.max_concurrent_per_key`"));
    assert!(refusal("server: {write_timeout_s: 0}\n").contains("`server.write_timeout_s`"));
}

#[test]
fn deterministic_passes_are_refused_where_nccl_decides_the_order() {
    let device = |text: &str| read(&format!("device: {{{text}}}\n")).unwrap().device;
    assert!(!device("").deterministic && device("deterministic: true").deterministic);
    assert!(device("kind: 'cuda:0', deterministic: true, tensor_parallel: 2").deterministic);
    // On cores sums are in the order of ranks, and so they are over the GPUs' memory.
    assert!(device("kind: cpu, deterministic: true, tensor_parallel: 4").deterministic);
    let all = device("kind: 'cuda:0', deterministic: true, tensor_parallel: 8");
    assert!(all.deterministic && all.custom_all_reduce);
    assert!(!device("kind: 'cuda:0', custom_all_reduce: false, tensor_parallel: 8").custom_all_reduce);
    for kind in ["auto", "cuda:0"] {
        for (ranks, more) in [(4, ", custom_all_reduce: false"), (16, "")] {
            let text =
                format!("device: {{kind: '{kind}', deterministic: true, tensor_parallel: {ranks}{more}}}\n");
            let refusal = refusal(&text);
            assert!(
                refusal.contains(&format!("`device.deterministic` cannot be had over {ranks} GPUs"))
                    && refusal.contains("Remove that line") != more.is_empty(),
                "{refusal}"
            );
        }
    }
    let refused = refusal("device: {kind: 'cuda:0', custom_all_reduce: true, tensor_parallel: 16}\n");
    assert!(refused.contains("`device.custom_all_reduce` cannot be had over 16 GPUs"), "{refused}");
    let refused = refusal("device: {kind: cpu, custom_all_reduce: true}\n");
    assert!(refused.contains("`device.custom_all_reduce` is for a GPU"), "{refused}");
    assert!(refusal("device: {deterministic: often}\n").contains("`device.deterministic`"));
}

#[test]
fn replicas_and_the_faults_of_drills() {
    let device = |text: &str| read(&format!("device: {{{text}}}\n")).unwrap().device;
    assert_eq!((device("").replicas, device("replicas: 3").replicas), (1, 3));
    assert_eq!(device("rank_deadline_s: 2").rank_deadline, Duration::from_secs(2));
    assert!(refusal("device: {replicas: 0}\n").contains("`device.replicas`"));
    let idle = refusal("device: {kind: 'cuda:0', threads: 2}\n");
    assert!(idle.contains("`device.threads` is for the CPU"), "{idle}");
    for (text, gpus) in [
        ("kind: cuda", vec![0]),
        ("kind: 'cuda:3'", vec![3]),
        ("kind: 'cuda:1', tensor_parallel: 2", vec![1, 2]),
        ("kind: cuda, tensor_parallel: 2, replicas: 2", vec![0, 1, 2, 3]),
        ("kind: 'cuda:5,0', tensor_parallel: 2", vec![5, 0]),
        ("tensor_parallel: 2", vec![0, 1]),
    ] {
        assert_eq!(device(text).gpus(), gpus, "{text}");
    }
    let uneven = refusal("device: {kind: 'cuda:0,1'}\n");
    assert!(uneven.contains("names 2 GPUs") && uneven.contains("is 1: make them the same"), "{uneven}");
    let drills = "replicas: 2, drills: [{what: panic, rank: 1, at: 4}, {what: hang, replica: 1, at: 0, ms: 9}, {what: build, at: 1}]";
    if cfg!(debug_assertions) {
        let hang = DrillFault::Hang { rank: 0, at: 0, lasting: Duration::from_millis(9) };
        assert_eq!(
            device(drills).drills,
            [
                Drill { replica: 0, fault: DrillFault::Panic { rank: 1, at: 4 } },
                Drill { replica: 1, fault: hang },
                Drill { replica: 0, fault: DrillFault::Build { at: 1 } },
            ]
        );
        for (drill, problem) in [
            ("{what: panic}", "`device.drills[0].at` is missing"),
            ("{at: 1}", "`device.drills[0].what` is missing"),
            ("{what: hang, at: 1}", "`device.drills[0].ms` is missing"),
            ("{what: build, at: 1, rank: 1}", "`device.drills[0].rank` is unknown"),
            ("{what: build, at: 1, replica: 1}", "`device.drills[0].replica`"),
        ] {
            let refusal = refusal(&format!("device: {{drills: [{drill}]}}\n"));
            assert!(refusal.contains(problem), "{refusal}");
        }
    } else {
        assert!(refusal(&format!("device: {{{drills}}}\n")).contains("is for debug builds"));
    }
}

#[test]
fn whole_numbers_are_chosen_by_name_alone() {
    let dtype = |text| read(text).unwrap().model.dtype;
    assert_eq!(dtype("model: {dtype: int8}\n"), Some(Dtype::Int8));
    assert_eq!([dtype(""), dtype("model: {dtype: null}\n"), dtype("model: {dtype: auto}\n")], [None; 3]);
    assert_eq!(dtype("model: {dtype: int4}\n"), Some(Dtype::Int4));
    assert_eq!(dtype("model: {dtype: fp8}\n"), Some(Dtype::Fp8));
    assert!(refusal("model: {dtype: int2}\n").contains("`int8`, `fp8`, `int4`"));
    let kv = |text| {
        let config = read(text).unwrap();
        config.kv_dtype(config.model.dtype.unwrap_or(Dtype::Bf16))
    };
    assert_eq!([kv(""), kv("kv: {cache_dtype: auto}\n"), kv("model: {dtype: int8}\n")], [Dtype::Bf16; 3]);
    assert_eq!(kv("model: {dtype: f32}\n"), Dtype::F32);
    assert_eq!(kv("model: {dtype: f32}\nkv: {cache_dtype: int8}\n"), Dtype::Int8);
    assert_eq!(kv("kv: {cache_dtype: fp8}\n"), Dtype::Fp8);
    assert!(
        refusal("kv: {cache_dtype: int4}\n")
            .contains("`kv.cache_dtype` must be one of `auto`, `int8`, `fp8`")
    );
    let draft = |text| read(text).unwrap().model.draft_dtype;
    assert_eq!([draft(""), draft("model: {draft_dtype: auto}\n")], [None; 2]);
    assert_eq!(draft("model: {dtype: f32, draft_dtype: int8}\n"), Some(Dtype::Int8));
    assert_eq!(draft("model: {draft_dtype: int4}\n"), Some(Dtype::Int4));
    assert!(refusal("model: {draft_dtype: int2}\n").contains("`model.draft_dtype` must be one of `auto`"));
    let idle = refusal("model: {draft: none, draft_dtype: int8}\n");
    assert!(idle.contains("`model.draft_dtype` is for a draft model, and there is none"), "{idle}");
}

#[test]
fn a_draft_is_named_alone_with_keys_or_in_a_list() {
    let of = |draft: &str| {
        let config = read(&format!("model: {{target: big, draft: {draft}}}\n")).unwrap();
        let ModelSource::Directories { draft, .. } = config.model.source else {
            panic!("{:?}", config.model)
        };
        let lookup = config.tuning.mechanisms.lookup;
        (draft.map(|path| path.display().to_string()), config.model.draft_dtype, lookup)
    };
    let small = || Some("etc/small".to_owned());
    assert_eq!(of("small"), (small(), None, true));
    assert_eq!(of("{path: small}"), (small(), None, true));
    assert_eq!(of("{path: small, dtype: int8}"), (small(), Some(Dtype::Int8), true));
    assert_eq!(of("[small, lookup]"), (small(), None, true));
    assert_eq!(of("[lookup, {path: small, dtype: bf16}]"), (small(), Some(Dtype::Bf16), true));
    assert_eq!(of("[small]"), (small(), None, false), "what a list does not name is off");
    assert_eq!(of("[lookup]"), (None, None, true));
    assert_eq!(of("[none]"), (None, None, false));
    assert_eq!(
        read("model: {draft: [demo, lookup]}\n").unwrap(),
        read("").unwrap(),
        "the default, as a list"
    );
    let same = read("model: {draft: [demo]}\nspeculation: {lookup: false}\n").unwrap();
    assert!(!same.tuning.mechanisms.lookup);
    for (text, problem) in [
        ("model: {draft: []}", "`model.draft` must be `none`, or a list that names something"),
        ("model: {draft: 3}", "`model.draft` must be a folder, `demo`, `none`, an object such as"),
        ("model: {draft: [[demo]]}", "`model.draft[0]` must be a folder"),
        ("model: {draft: {dtype: int8}}", "`model.draft.path` is missing"),
        ("model: {draft: {path: demo, lookup: true}}", "`model.draft.lookup` is unknown"),
        ("model: {draft: {path: demo, dtype: int2}}", "`model.draft.dtype` must be one of"),
        ("model: {target: a, draft: [b, lookup, {path: c}]}", "`model.draft[2]` names a second draft model"),
        ("model: {draft: [demo, none]}", "`model.draft[1]` names `none` beside a draft model"),
        (
            "model: {draft: [demo, suffix]}",
            "`model.draft[1]` names past outputs, whose size switches them on: leave the word out, and give `speculation.suffix_memory`",
        ),
        ("model: {draft: [lookup, lookup]}", "`model.draft[1]` names `lookup` a second time"),
        (
            "model: {draft_dtype: bf16, draft: {path: demo, dtype: int8}}",
            "`model.draft_dtype` stands beside `dtype` of `model.draft`",
        ),
        (
            "model: {draft: [demo]}\nspeculation: {lookup: true}",
            "`speculation.lookup` says otherwise than the list `model.draft`, which does not name `lookup`",
        ),
        ("model: {draft: [demo, lookup]}\nspeculation: {lookup: false}", "which names `lookup`"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(problem), "{text}: {refusal}");
    }
}

#[test]
fn a_draft_that_names_its_target_is_a_pair() {
    let heads = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/golden/heads");
    let folder = heads.join("eagle3-speculators");
    let config = read(&format!("model: {{target: {}, dtype: f32}}\n", folder.display())).unwrap();
    let target = folder.join("../target");
    assert_eq!(config.model.source, ModelSource::Directories { target, draft: Some(folder) });
    let original = heads.join("eagle3-original");
    let refusal = refusal(&format!("model: {{target: {}}}\n", original.display()));
    assert!(refusal.contains("`model.draft` is missing"), "{refusal}");
}

#[test]
fn a_model_is_a_folder_or_has_a_name_on_the_hub() {
    let of = |model: &str| read(&format!("model: {model}\n")).unwrap().model.source;
    let hub = |name: &str| ModelPlace::Hub(name.parse().unwrap());
    let named = |target, draft| ModelSource::Named { target, draft };
    let (target, none) = (|| hub("hf://a/b@v1"), NamedDraft::None);
    assert_eq!(of("{target: 'hf://a/b@v1', draft: none}"), named(target(), none));
    for (draft, place) in [
        ("'hf://c/d:Q8_0'", hub("hf://c/d:Q8_0")),
        ("[lookup, {path: 'hf://c/d', dtype: int8}]", hub("hf://c/d")),
        ("small", ModelPlace::Folder("etc/small".into())),
    ] {
        let model = format!("{{target: 'hf://a/b@v1', draft: {draft}}}");
        assert_eq!(of(&model), named(target(), NamedDraft::At(place)), "{draft}");
    }
    let folder = ModelPlace::Folder("etc/big".into());
    assert_eq!(of("{target: big, draft: 'hf://c/d'}"), named(folder, NamedDraft::At(hub("hf://c/d"))));
    assert_eq!(of("{target: 'hf://a/b@v1'}"), named(target(), NamedDraft::OfTarget { required: true }));
    let open = NamedDraft::OfTarget { required: false };
    assert_eq!(of("{target: 'hf://a/b@v1', draft: auto}"), named(target(), open));
    // Without hf:// it is a folder, whatever it looks like.
    let folder = ModelSource::Directories { target: "etc/a/b".into(), draft: None };
    assert_eq!(of("{target: a/b, draft: none}"), folder);
    assert_eq!(of("{target: a/b, draft: auto}"), folder);
    for (key, model) in
        [("target", "{target: 'hf://a//b', draft: none}"), ("draft", "{target: x, draft: 'hf://a/b:'}")]
    {
        let refusal = refusal(&format!("model: {model}\n"));
        assert!(refusal.contains(&format!("`model.{key}` cannot be used: `hf://a/")), "{refusal}");
    }
}

#[test]
fn the_format_of_calls_is_the_templates_or_named() {
    let calls = |text| read(text).unwrap().model.tool_calls;
    assert_eq!(calls("model: {tool_calls: hermes}\n"), ToolCalls::Format(CallFormat::Hermes));
    assert_eq!(calls("model: {tool_calls: llama3}\n"), ToolCalls::Format(CallFormat::Llama3));
    assert_eq!(calls("model: {tool_calls: none}\n"), ToolCalls::None);
    assert_eq!([calls(""), calls("model: {tool_calls: auto}\n")], [ToolCalls::Auto; 2]);
    assert!(
        refusal("model: {tool_calls: xml}\n").contains("`model.tool_calls` must be one of `auto`, `hermes`")
    );
}

#[test]
fn the_format_of_reasoning_is_the_templates_or_named() {
    let reasoning = |text| read(text).unwrap().model.reasoning;
    assert_eq!(reasoning("model: {reasoning: think}\n"), Reasoning::Format(ReasoningFormat::Think));
    assert_eq!(reasoning("model: {reasoning: harmony}\n"), Reasoning::Format(ReasoningFormat::Harmony));
    assert_eq!(reasoning("model: {reasoning: none}\n"), Reasoning::None);
    assert_eq!([reasoning(""), reasoning("model: {reasoning: auto}\n")], [Reasoning::Auto; 2]);
    assert!(refusal("model: {reasoning: r1}\n").contains("`model.reasoning` must be one of `auto`, `think`"));
}

#[test]
fn mechanisms_can_be_switched_off_and_targets_set() {
    let config = read("speculation: {policy: faser, overlap: false, slo: {tpot_ms: 50}}\n").unwrap();
    let Mechanisms { trim, overlap, prune, lookup, sizing } = config.tuning.mechanisms;
    assert_eq!((trim, overlap, prune, lookup, sizing), (true, false, true, true, true));
    let tpot = Some(Duration::from_millis(50));
    assert_eq!(config.tuning.slo, Slo { ttft: None, tpot });
}

#[test]
fn costs_are_kept_in_a_folder_from_the_files_on_or_not_at_all() {
    for (text, cache) in [
        ("", CostCache::Standard),
        ("speculation: {cost_cache: null}", CostCache::Standard),
        ("speculation: {cost_cache: none}", CostCache::Off),
        ("speculation: {cost_cache: costs}", CostCache::Folder("etc/costs".into())),
        ("speculation: {cost_cache: /var/cache/faser}", CostCache::Folder("/var/cache/faser".into())),
    ] {
        assert_eq!(read(text).unwrap().cost_cache, cache, "{text}");
    }
}

#[test]
fn a_synthetic_pair_is_a_preset_with_changes() {
    let config =
        read("model:\n  synthetic: {preset: tiny, layers: 5, residual_scale: 0.25, seed: 9}\n").unwrap();
    let ModelSource::Synthetic { spec, draft: true } = config.model.source else {
        panic!("{:?}", config.model)
    };
    let preset = SyntheticSpec::preset("tiny").unwrap();
    assert_eq!(spec, SyntheticSpec { layers: 5, residual_scale: 0.25, seed: 9, ..preset });
    let text = refusal("model:\n  synthetic:\n    preset: huge\n");
    assert!(text.starts_with("etc/x.yaml:3: `model.synthetic.preset` cannot be used: "), "{text}");
}

#[test]
fn unknown_keys_are_refused_with_file_line_and_a_suggestion() {
    assert_eq!(refusal("serve:\n  listen: x\n"), "etc/x.yaml:1: `serve` is unknown; did you mean `server`?");
    assert_eq!(
        refusal("server:\n  workers: 1\n  max_body_byte: 9\n"),
        "etc/x.yaml:3: `server.max_body_byte` is unknown; did you mean `max_body_bytes`?"
    );
    assert_eq!(
        refusal("kv:\n  zzz: 9\n"),
        "etc/x.yaml:2: `kv.zzz` is unknown; known here: block_size, memory, prefix_cache, cache_dtype"
    );
}

#[test]
fn wrong_types_and_impossible_values_say_what_to_write() {
    for (text, message) in [
        ("server: 3", "`server` must be an object, but it is 3"),
        ("server: {listen: 8000}", "`server.listen` must be a string, but it is 8000"),
        (
            "server: {listen: here}",
            "`server.listen` must be an address and a port, such as 127.0.0.1:8000, but it is the string \"here\"",
        ),
        ("server: {workers: 0}", "`server.workers` must be a whole number from 1 to 256, but it is 0"),
        (
            "server: {workers: two}",
            "`server.workers` must be a whole number from 1 to 256, but it is the string \"two\"",
        ),
        ("server: {workers: 1.5}", "`server.workers` must be a whole number from 1 to 256, but it is 1.5"),
        (
            "kv: {memory: 2GB}",
            "`kv.memory` must be a size from 1MiB to 1024TiB, such as \"512MiB\" or \"2GiB\", but it is the string \"2GB\"",
        ),
        ("kv: {prefix_cache: yes}", "`kv.prefix_cache` must be true or false, but it is the string \"yes\""),
        (
            "device: {kind: 'cuda:1,1'}",
            "`device.kind` must be `auto`, `cpu`, `cuda`, or `cuda:N` with the number of a GPU or several, such as `cuda:0` or `cuda:0,1`, \
             but it is the string \"cuda:1,1\"",
        ),
        (
            "log: {level: inf}",
            "`log.level` must be one of `error`, `warn`, `info`, `debug`, `trace`, but it is the string \"inf\"; \
             did you mean `info`?",
        ),
        (
            "scheduler: {max_running: 64, max_pass_rows: 32}",
            "`scheduler.max_pass_rows` must be at least `scheduler.max_running` (64), a row per sequence, but it is 32",
        ),
        (
            "speculation: {policy: 'fixed:17'}",
            &format!("`speculation.policy` must be {}, but it is the string \"fixed:17\"", Policy::FORMS),
        ),
        (
            "model: {draft: none}\nspeculation: {policy: 'fixed:2'}",
            "`speculation.policy` must be `off`, `budget` or `faser` when there is no draft model (`model.draft: none`), \
             but it is the string \"fixed:2\"",
        ),
        ("speculation: {cost_cache: 3}", "`speculation.cost_cache` must be a string, but it is 3"),
        (
            "speculation: {cost_cache: ''}",
            "`speculation.cost_cache` must be a folder, or `none`, but it is the string \"\"",
        ),
        (
            "model: {target: some/dir}",
            "`model.draft` is missing: name the draft model's directory, or write `draft: none`",
        ),
        (
            "model: {draft: some/dir}",
            "`model.draft` must be `demo` or `none` beside the demo target; give a directory as `model.target` too, \
             but it is the string \"some/dir\"",
        ),
        (
            "model: {target: a, draft: b, synthetic: {}}",
            "`model.target` stands beside `model.synthetic`: keep one of the two",
        ),
        (
            "model: {name: 'a b'}",
            "`model.name` must be 1 to 128 letters, digits and signs without spaces, but it is the string \"a b\"",
        ),
        (
            "model: {aliases: [a, '']}",
            "`model.aliases[1]` must be 1 to 128 letters, digits and signs without spaces, but it is the string \"\"",
        ),
        ("model: {aliases: [1]}", "`model.aliases[0]` must be a string, but it is 1"),
        ("model: {aliases: a}", "`model.aliases` must be a list, but it is the string \"a\""),
        (
            "model: {name: a, aliases: [b, a]}",
            "`model.aliases[1]` is `a`, which is a name of the model already: leave it out",
        ),
        (
            "model: {aliases: [b, b]}",
            "`model.aliases[1]` is `b`, which is a name of the model already: leave it out",
        ),
        ("drain_timeout_s: -1", "`drain_timeout_s` must be a whole number from 0 to 86400, but it is -1"),
    ] {
        let line = if message.starts_with("`speculation") && text.contains('\n') { 2 } else { 1 };
        assert_eq!(refusal(text), format!("etc/x.yaml:{line}: {message}"), "{text}");
    }
    let isa = refusal("device: {isa: sse9}");
    assert!(isa.contains("one of what this CPU has, `auto`") && isa.contains("`portable`"), "{isa}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let text = Document::read(Path::new("nowhere.yaml")).unwrap_err().to_string();
    assert!(text.starts_with("nowhere.yaml: cannot read the config file: "), "{text}");
}

#[test]
fn partitions_are_numbers_of_sms_and_all() {
    let partitions = |list: &str| read(&format!("device: {{kind: 'cuda:0', partitions: {list}}}\n"));
    let read = |list| partitions(list).unwrap().device.partitions;
    assert_eq!(read("[16, 32, all]"), Some(vec![16, 32, faser_topology::ALL_SMS]));
    assert_eq!(
        [read("[all]"), read("[]"), read("null")],
        [Some(vec![faser_topology::ALL_SMS]), Some(vec![]), None]
    );
    for wrong in ["[all, 16]", "[all, all]", "[some]", "[0]"] {
        let text = partitions(wrong).unwrap_err().to_string();
        assert!(text.contains("`device.partitions`"), "{wrong}: {text}");
    }
}
