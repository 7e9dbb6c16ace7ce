//! `faser check`: configs and model folders that cannot work are refused with the file, the line or key, and what to write instead.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use faser_tests::{
    Config, cost_cache, faser,
    rules::{files, root},
};
use serde_json::{Value, json};

fn faser_with(arguments: &[&str]) -> Output {
    let mut command = Command::new(faser());
    command.args(arguments).current_dir(root()).env("CACHE_DIRECTORY", cost_cache());
    command.output().expect("the binary can be started")
}

fn check(config: &Config) -> Output {
    let path = config.path();
    faser_with(&["check", "-c", path.to_str().expect("a path in UTF-8")])
}

/// Checks that `output` is one error line with every part in it.
fn refused(output: &Output, what: &str, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{what}: {stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{what}: {stderr}");
    for part in parts {
        assert!(errors[0].contains(part), "{what}: {:?} should say {part:?}", errors[0]);
    }
}

#[test]
fn every_config_that_ships_passes() {
    let configs = files(&root(), "configs", "yaml").expect("configs can be listed");
    assert!(configs.iter().any(|path| path == "configs/laptop.yaml"), "{configs:?}");
    // Plans and recipes are for machines, and of models, that are not here.
    let elsewhere = ["configs/gpu.yaml", "configs/helm/", "configs/plans/", "configs/recipes/"];
    let here = |path: &&String| !elsewhere.iter().any(|other| path.starts_with(other));
    for path in configs.iter().filter(here) {
        let output = faser_with(&["check", "-c", path]);
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(faser_with(&["check"]).status.success(), "no config at all is the demo pair");
}

#[test]
fn the_config_for_a_gpu_lacks_nothing_but_the_gpu() {
    let output = without_gpu(&root().join("configs/gpu.yaml"));
    refused(&output, "configs/gpu.yaml", &["`device.kind` is cuda:0"]);
}

/// `faser check` where no GPU is to be seen, whatever the machine has.
fn without_gpu(config: &Path) -> Output {
    let mut command = Command::new(faser());
    command.args(["check", "-c"]).arg(config).current_dir(root());
    command.env("CACHE_DIRECTORY", cost_cache()).env("CUDA_VISIBLE_DEVICES", "");
    command.output().expect("the binary can be started")
}

#[test]
fn without_a_gpu_the_cpu_is_taken_and_the_reason_said() {
    let output =
        without_gpu(&Config::new("model: {synthetic: {preset: tiny}}\nspeculation: {policy: off}\n").path());
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let why = stdout.lines().find(|line| line.starts_with("no gpu ")).unwrap_or_else(|| panic!("{stdout}"));
    assert!(why.contains("driver"), "{why}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_with_what_is_missing() {
    let output = without_gpu(&Config::new("device: {kind: 'cuda:0'}\n").path());
    refused(&output, "cuda:0", &["`device.kind` is cuda:0", "driver", "`auto` or `cpu`"]);
}

#[test]
fn auto_takes_the_instruction_set_that_the_environment_forces_and_says_so() {
    let run = |isa: &str, forced: &str| {
        let config =
            Config::new(&format!("speculation: {{policy: off}}\ndevice: {{kind: cpu, isa: {isa}}}\n"));
        config.command(&["check"]).env("FASER_ISA", forced).output().expect("the binary can be started")
    };
    let device = |output: &Output| {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = stdout.lines().find(|line| line.starts_with("device ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&output.stderr)))
    };
    let forced = device(&run("auto", "portable"));
    assert!(forced.contains("cores, portable by FASER_ISA,"), "{forced}");
    // What the config names stands, whatever the environment says.
    let named = device(&run("portable", "sse9"));
    assert!(named.contains("cores, portable,"), "{named}");
    for name in ["sse9", ""] {
        let words = format!("FASER_ISA in the environment is `{name}`");
        let parts = ["faser.yaml:2", "`device.isa` is `auto`", &words, "portable", "unset it"];
        refused(&run("auto", name), name, &parts);
    }
}

#[test]
fn bad_configs_are_refused_with_file_line_and_advice() {
    let cases: &[(&str, &[&str])] = &[
        ("modle: {target: demo}\n", &["faser.yaml:1", "`modle`", "`model`"]),
        (
            "server:\n  workers: 2\nscheduler:\n  max_runing: 4\n",
            &["faser.yaml:4", "`scheduler.max_runing`", "max_running"],
        ),
        ("scheduler:\n  max_running: many\n", &["faser.yaml:2", "`scheduler.max_running`", "many"]),
        ("kv:\n  block_size: 0\n", &["faser.yaml:2", "`kv.block_size`", "1"]),
        ("kv:\n  memory: lots\n", &["faser.yaml:2", "`kv.memory`", "GiB"]),
        ("kv:\n  prefix_cache: 3\n", &["faser.yaml:2", "`kv.prefix_cache`", "true or false"]),
        ("speculation:\n  policy: fixed:17\n", &["faser.yaml:2", "`speculation.policy`", "fixed:"]),
        ("speculation:\n  policy: magic\n", &["faser.yaml:2", "`speculation.policy`", "off"]),
        (
            "model:\n  draft: none\nspeculation:\n  policy: fixed:4\n",
            &["faser.yaml:4", "`speculation.policy`", "off"],
        ),
        ("speculation:\n  cost_cache: [here]\n", &["faser.yaml:2", "`speculation.cost_cache`", "a string"]),
        ("server:\n  listen: nowhere\n", &["faser.yaml:2", "`server.listen`", "127.0.0.1:8000"]),
        ("device:\n  kind: tpu\n", &["faser.yaml:2", "`device.kind`", "cpu"]),
        ("device:\n  kind: cuda:first\n", &["faser.yaml:2", "`device.kind`", "`cuda:0`"]),
        (
            "device:\n  kind: cpu\n  draft_placement: own\n",
            &["`device.draft_placement: own`", "by the CPU", "leave it out"],
        ),
        (
            "device:\n  draft_placement: replicated\n  tensor_parallel: 2\n  draft_tensor_parallel: 2\n",
            &["`device.draft_tensor_parallel`", "whole draft on every rank", "leave this out"],
        ),
        ("device:\n  draft_placement: here\n", &["faser.yaml:2", "`first`, `replicated`, `own`"]),
        ("topology: {host: {cores: 2, memory: 1GiB}}\n", &["`topology` is for `faser plan`"]),
        ("topology:\n  host: {cores: 2}\n", &["faser.yaml:2", "`topology.host.cores`", "cores and memory"]),
        ("topology: nowhere.yaml\n", &["faser.yaml:1", "`topology`", "nowhere.yaml"]),
        (
            "model:\n  target: demo\n  shape: {target: {}}\n",
            &["faser.yaml:3", "`model.shape.target`", "architectures"],
        ),
        ("model: {shape: {draft: null}}\n", &["faser.yaml:1", "`model.shape.target` is missing"]),
        ("device:\n  partitions: [64, 16]\n", &["faser.yaml:2", "`device.partitions`", "ascending"]),
        ("device:\n  kind: cpu\n  partitions: [16]\n", &["faser.yaml:3", "`device.partitions`", "for a GPU"]),
        (
            "model: {draft: none}\ndevice:\n  partitions: [16]\n",
            &["faser.yaml:3", "`device.partitions`", "draft"],
        ),
        ("device:\n  kind: cuda:0\n  threads: 2\n", &["faser.yaml:3", "`device.threads`", "for the CPU"]),
        (
            "device:\n  gpu_memory_utilization: 90\n",
            &["faser.yaml:2", "`device.gpu_memory_utilization`", "1"],
        ),
        ("device:\n  isa: neon9\n", &["faser.yaml:2", "`device.isa`", "auto"]),
        ("model:\n  dtype: int3\n", &["faser.yaml:2", "`model.dtype`", "bf16"]),
        ("model:\n  synthetic: {preset: huge}\n", &["faser.yaml:2", "preset", "tiny"]),
        ("model:\n  synthetic: {preset: tiny, heads: 3}\n", &["heads"]),
        ("model:\n  target: nowhere\n  draft: none\n", &["nowhere"]),
        ("model:\n  target: nowhere\n", &["faser.yaml:1", "`model.draft`"]),
        ("scheduler:\n  max_context: 1000000\n", &["max_context", "1000000"]),
        ("drain_timeout_s: soon\n", &["faser.yaml:1", "`drain_timeout_s`", "soon"]),
        ("log: [info]\n", &["faser.yaml:1", "`log`"]),
        ("server:\n  listen: \"127.0.0.1:1\n", &["faser.yaml", "YAML"]),
        ("- a\n- b\n", &["faser.yaml", "server:"]),
    ];
    for (yaml, parts) in cases {
        refused(&check(&Config::new(yaml)), yaml, parts);
    }
    refused(&faser_with(&["check", "-c", "nowhere.yaml"]), "no file", &["nowhere.yaml"]);
    refused(&faser_with(&["serve", "--listen", "nowhere"]), "a bad flag", &["--listen", "127.0.0.1:8000"]);
    let plain = Config::new("speculation:\n  policy: fixed:4\n");
    refused(
        &faser_with(&["check", "--profile", "-c", &plain.path().to_string_lossy()]),
        "nothing to profile",
        &["--profile", "fixed:4", "budget"],
    );
    assert_eq!(faser_with(&["frobnicate"]).status.code(), Some(2));
}

/// A copy of the demo target in a folder of its own, and a config that asks for it.
struct Copied {
    config: Config,
}

impl Copied {
    fn new() -> Copied {
        let config = Config::new("model: {target: copy, draft: none}\n");
        let copy = config.folder().join("copy");
        fs::create_dir(&copy).expect("a folder can be made");
        for entry in fs::read_dir(root().join("models/rustdoc/target")).expect("the demo target is there") {
            let file = entry.expect("the demo target can be listed");
            fs::copy(file.path(), copy.join(file.file_name())).expect("a file can be copied");
        }
        Copied { config }
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.config.folder().join("copy").join(file);
        let text = fs::read_to_string(&path).expect("the file is there");
        let mut value = serde_json::from_str(&text).expect("the file is JSON");
        change(&mut value);
        fs::write(&path, value.to_string()).expect("the file can be written");
    }

    fn refused(&self, what: &str, parts: &[&str]) {
        refused(&check(&self.config), what, parts);
    }
}

#[test]
fn a_model_folder_that_is_whole_passes() {
    let copied = Copied::new();
    let output = check(&copied.config);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn missing_and_truncated_weights_are_named() {
    let copied = Copied::new();
    let weights = copied.config.folder().join("copy/model.safetensors");
    let bytes = fs::read(&weights).expect("the weights are there");
    for (what, kept) in
        [("half", bytes.len() / 2), ("all but a byte", bytes.len() - 1), ("the header", 200), ("nothing", 0)]
    {
        fs::write(&weights, &bytes[..kept]).expect("the weights can be written");
        copied.refused(what, &["model.safetensors"]);
    }
    let mut huge_header = bytes.clone();
    huge_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&weights, huge_header).expect("the weights can be written");
    copied.refused("a header longer than the file", &["model.safetensors"]);
    fs::remove_file(&weights).expect("the weights can be removed");
    copied.refused("no weights", &["model.safetensors"]);
}

#[test]
fn shapes_and_architectures_that_do_not_fit_are_named() {
    let cases: [(&str, Value, &[&str]); 6] = [
        ("intermediate_size", json!(4096), &["model.safetensors", "intermediate_size", "4096"]),
        ("vocab_size", json!(9000), &["model.safetensors", "vocab_size", "9000"]),
        ("num_hidden_layers", json!(60), &["model.safetensors", "no tensor", "num_hidden_layers"]),
        ("architectures", json!(["GPT2LMHeadModel"]), &["config.json", "architectures", "GPT2LMHeadModel"]),
        ("num_attention_heads", json!("four"), &["config.json", "num_attention_heads"]),
        ("hidden_size", json!(-1), &["config.json", "hidden_size"]),
    ];
    for (key, value, parts) in cases {
        let copied = Copied::new();
        copied.edit("config.json", |config| config[key] = value);
        copied.refused(key, parts);
    }
}

#[test]
fn a_tokenizer_that_does_not_match_is_named() {
    let copied = Copied::new();
    copied.edit("tokenizer.json", |tokenizer| {
        let token = json!({
            "id": 50_000, "content": "<far>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        tokenizer["added_tokens"].as_array_mut().expect("added tokens").push(token);
    });
    let output = check(&copied.config);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let note = r#"the model has no row for "<far>", which the tokenizer knows"#;
    assert!(output.status.success() && stdout.contains(note), "{stdout}");
    copied.edit("tokenizer.json", |tokenizer| tokenizer["model"]["vocab"]["far"] = 50_000.into());
    copied.refused("an id the model does not have", &["tokenizer.json"]);
    let file = copied.config.folder().join("copy/tokenizer.json");
    fs::write(&file, "{}").expect("the tokenizer can be written");
    copied.refused("no tokenizer", &["tokenizer.json"]);
    fs::remove_file(&file).expect("the tokenizer can be removed");
    copied.refused("no file", &["tokenizer.json"]);
}

#[test]
fn a_draft_with_another_vocabulary_is_refused() {
    let demo = root().join("models/rustdoc/target");
    let config = Config::new("");
    let yaml = format!("model: {{target: \"{}\", draft: other}}\n", demo.display());
    fs::write(config.path(), yaml).expect("the config can be written");
    other_draft(&config);
    refused(&check(&config), "a draft of 300 tokens", &["target and draft", "300"]);
}

/// A draft model of one tiny layer and 300 tokens, written by hand.
fn other_draft(config: &Config) {
    let folder = config.folder().join("other");
    fs::create_dir(&folder).expect("a folder can be made");
    let shape = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    fs::write(folder.join("config.json"), shape.to_string()).expect("config.json can be written");
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![300, 16]),
        ("model.norm.weight".to_owned(), vec![16]),
        (layer("input_layernorm"), vec![16]),
        (layer("post_attention_layernorm"), vec![16]),
    ];
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let mlp = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    tensors.extend(square.iter().chain(&mlp).map(|name| (layer(name), vec![16, 16])));
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    fs::write(folder.join("model.safetensors"), file).expect("model.safetensors can be written");
}

#[test]
fn a_gguf_file_is_a_model_wherever_a_folder_is() {
    let file = "models/tests/golden/gguf/model.gguf";
    let output = faser_with(&["check", file, "--draft", file]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "model on",
        "Llama, 2 layers, hidden 256",
        "target: GGUF 3, llama; tensors: 5 of F32",
        "draft: GGUF 3",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // As target and draft, and the same text without one.
    let texts = ["2", "0"].map(|k| {
        let models = ["generate", "--target", file, "--draft", file];
        let output = faser_with(&[&models[..], &["--k", k, "--max-tokens", "12", "--json", "the"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        said["runs"][0]["text"].as_str().expect("a text").to_owned()
    });
    assert_eq!(texts[0], texts[1]);

    let config = Config::new("model: {target: demo}\n");
    let whole = fs::read(root().join(file)).expect("a file of the repository");
    let cut = config.folder().join("cut.gguf");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("a file can be written");
    let path = cut.to_str().expect("a path in UTF-8");
    refused(&faser_with(&["check", path]), "cut off", &["cut.gguf", "truncated"]);
    refused(&faser_with(&["plan", path]), "cut off", &["cut.gguf", "truncated"]);
}

#[test]
fn what_a_dtype_costs_is_told_over_a_text() {
    let text = "The quick brown fox returns the number of elements in the slice.\n".repeat(8);
    let folder = std::env::temp_dir().join(format!("faser-quality-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (long, short) = (folder.join("long.txt"), folder.join("short.txt"));
    fs::write(&long, text).expect("a file");
    fs::write(&short, "").expect("a file");
    let of =
        |text: &Path| faser_with(&["check", "--quality-tokens", "100", "--quality", text.to_str().unwrap()]);
    let output = of(&long);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = said.lines().find(|line| line.starts_with("quality  100 tokens of ")).expect("a line");
    assert!(line.contains("in bf16") && line.contains("in f32") && line.contains("divergence"), "{line}");
    refused(&of(&short), "an empty text", &["the text has 0 tokens", "two are needed"]);
    refused(&of(&folder.join("none.txt")), "no text", &["cannot read", "none.txt"]);
    fs::remove_dir_all(&folder).expect("the folder");
}
