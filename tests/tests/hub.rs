//! Models by their names: the real binary against a hub of our own on loopback, which fails in every way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use faser_tests::hub::{FaultKind, Hub, Repository, git_sha1, sha256};
use faser_tests::rules::root;
use faser_tests::{Config, PATIENCE, cost_cache, faser};
use serde_json::{Value, json};

/// A hub and a cache for it.
struct World {
    hub: Hub,
    home: Config,
}

impl World {
    fn new() -> World {
        World { hub: Hub::new(), home: Config::new("") }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(faser());
        command.args(arguments).current_dir(self.home.folder()).stdin(Stdio::null());
        for name in [
            "HF_TOKEN",
            "HF_HUB_CACHE",
            "HF_TOKEN_PATH",
            "HF_HUB_OFFLINE",
            "http_proxy",
            "HTTP_PROXY",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.home.folder().join("hf")).env("HF_ENDPOINT", self.hub.endpoint());
        command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").env("CACHE_DIRECTORY", cost_cache());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary can be started")
    }

    fn cache(&self, model: &str) -> PathBuf {
        self.home.folder().join("hf/hub").join(format!("models--{}", model.replace('/', "--")))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The one line that says what went wrong.
fn error(output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(errors.len() == 1 && stderr.trim_end().ends_with(errors[0]), "{stderr}");
    errors[0].to_owned()
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Weights of so many bytes, in two files by an index, beside files that nobody needs.
fn sharded(bytes: usize) -> Repository {
    let index = json!({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}});
    let files: [(&str, Vec<u8>); 8] = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", noise(200_000, 1)),
        ("model.safetensors.index.json", index.to_string().into_bytes()),
        ("model-00001-of-00002.safetensors", noise(bytes, 2)),
        ("model-00002-of-00002.safetensors", noise(bytes / 3, 3)),
        ("pytorch_model.bin", noise(1000, 4)),
        ("onnx/model.onnx", noise(1000, 5)),
        ("../../../outside.safetensors", noise(1000, 6)),
    ];
    Repository::new(files.map(|(path, content)| (path.to_owned(), content)))
}

/// Whether a snapshot has these files with this content, each a link into the blobs by its checksum, and no others.
fn has_all(world: &World, model: &str, repository: &Repository, files: &[&str]) {
    let cache = world.cache(model);
    let snapshot = cache.join("snapshots").join(&repository.commit);
    let mut names: Vec<String> = fs::read_dir(&snapshot)
        .expect("a snapshot")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    let mut wanted = files.to_vec();
    wanted.sort_unstable();
    assert_eq!(names, wanted);
    for file in files {
        let content = &repository.files[*file];
        let is_large = content.len() > 64 << 10 || file.ends_with(".safetensors") || file.ends_with(".gguf");
        let name = if is_large { sha256(content) } else { git_sha1(content) };
        let link = fs::read_link(snapshot.join(file)).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(name), "{file}");
        assert!(fs::read(snapshot.join(file)).expect("content") == *content, "{file} has other content");
    }
    let blobs = fs::read_dir(cache.join("blobs")).expect("blobs").count();
    assert_eq!(blobs, files.len(), "nothing else is left");
}

const FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

#[test]
fn names_serve_what_folders_serve() {
    let world = World::new();
    let pair = root().join("models/rustdoc");
    for (name, folder) in [("faser/target", "target"), ("faser/draft", "draft")] {
        world.hub.add(name, Repository::of_folder(&pair.join(folder)));
    }
    let generate = |target: &str, draft: &str| {
        let arguments = [
            "generate",
            "--target",
            target,
            "--draft",
            draft,
            "--k",
            "3",
            "--max-tokens",
            "12",
            "--json",
            "Returns the",
        ];
        let answer: Value = serde_json::from_str(&succeeded(&world.run(&arguments))).expect("JSON");
        (answer["model"].clone(), answer["runs"][0]["text"].clone())
    };
    let folder = |name: &str| pair.join(name).to_str().expect("UTF-8").to_owned();
    let (name, by_folder) = generate(&folder("target"), &folder("draft"));
    assert_eq!(name, "target");
    let (name, by_name) = generate("faser/target", "hf://faser/draft@main");
    assert_eq!((&name, by_name), (&json!("faser/target"), by_folder), "clients call it by its name");
    world.hub.take_asked();
    // The same in a config, with keys of the draft's own; now only the listings are asked for.
    let config = Config::new(
        "model:\n  target: hf://faser/target\n  draft: [{path: 'hf://faser/draft', dtype: bf16}, lookup]\n",
    );
    let path = config.path();
    let checked = succeeded(&world.run(&["check", "-c", path.to_str().expect("UTF-8")]));
    assert!(checked.contains("faser/target on http://"), "{checked}");
    let asked = world.hub.take_asked();
    assert!(
        asked.len() == 2 && asked.iter().all(|asked| asked.path.starts_with("/api/models/faser/")),
        "{asked:?}"
    );
}

#[test]
fn the_cache_is_laid_out_as_huggingface_hub_does() {
    let world = World::new();
    let repository = sharded(300_000);
    world.hub.add("a/b", repository.clone());
    world.hub.accept("hf_secret");
    let mut command = world.command(&["pull", "a/b"]);
    let output = command.env("HF_TOKEN", "hf_secret").output().expect("the binary can be started");
    let snapshot = world.cache("a/b").join("snapshots").join(&repository.commit);
    assert_eq!(succeeded(&output), format!("target   {}\n", snapshot.display()));
    has_all(&world, "a/b", &repository, &FILES);
    assert_eq!(fs::read_to_string(world.cache("a/b").join("refs/main")).expect("a ref"), repository.commit);
    assert!(!world.home.folder().join("hf/outside.safetensors").exists());
    let asked = world.hub.take_asked();
    assert!(!text(&output.stderr).contains("hf_secret"));
    for asked in &asked {
        let expected = (!asked.at_store).then(|| "Bearer hf_secret".to_owned());
        assert_eq!(asked.authorization, expected, "the token is for the hub alone: {asked:?}");
        assert!(!["pytorch", "onnx", "outside"].iter().any(|part| asked.path.contains(part)), "{asked:?}");
    }
    assert_eq!(asked.iter().filter(|asked| asked.at_store).count(), 3, "two of weights and the tokenizer");

    // A commit is there or not: nothing is asked. Neither is anything offline.
    let pinned = format!("hf://a/b@{}", repository.commit);
    succeeded(&world.run(&["pull", &pinned]));
    succeeded(&world.command(&["pull", "hf://a/b"]).env("HF_HUB_OFFLINE", "1").output().expect("it starts"));
    assert_eq!(world.hub.take_asked().len(), 0);

    let listed: Value = serde_json::from_str(&succeeded(&world.run(&["models", "--json"]))).expect("JSON");
    let model = &listed["models"][0];
    assert_eq!((&model["repo"], &model["revisions"]), (&json!("a/b"), &json!(["main"])));
    let bytes: usize = FILES.iter().map(|file| repository.files[*file].len()).sum();
    assert_eq!(
        (&model["bytes"], &model["files"], &model["commit"]),
        (&json!(bytes), &json!(5), &json!(repository.commit))
    );
    let table = succeeded(&world.run(&["models"]));
    assert!(table.contains("a/b") && table.contains("main") && table.contains(&repository.commit), "{table}");
}

#[test]
fn what_passes_is_waited_out() {
    let world = World::new();
    let repository = sharded(3_000_000);
    world.hub.add("a/b", repository.clone());
    let large = "/lfs/";
    world.hub.fail("/api/models/a/b", 1, FaultKind::Status(429, "Retry-After", "1"));
    world.hub.fail("/api/models/a/b", 1, FaultKind::Status(503, "X-None", ""));
    world.hub.fail("/resolve/", 1, FaultKind::Cut(0));
    world.hub.fail("config.json", 1, FaultKind::Status(502, "X-None", ""));
    world.hub.fail(large, 2, FaultKind::Cut(1_000_000));
    world.hub.fail(large, 1, FaultKind::Stall(100_000));
    world.hub.fail(large, 1, FaultKind::NoRanges);
    let begin = Instant::now();
    succeeded(&world.run(&["pull", "a/b"]));
    assert!(begin.elapsed() >= Duration::from_secs(1), "the hub asked to be left alone for a second");
    has_all(&world, "a/b", &repository, &FILES);
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What has come of the largest file.
fn come(world: &World, content: &[u8]) -> usize {
    let path = world.cache("a/b").join("blobs").join(format!("{}.incomplete", sha256(content)));
    fs::metadata(path).map_or(0, |facts| usize::try_from(facts.len()).expect("a size"))
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_was() {
    let world = World::new();
    let repository = sharded(3_000_000);
    let largest = &repository.files["model-00001-of-00002.safetensors"];
    world.hub.add("a/b", repository.clone());
    world.hub.fail("/lfs/", usize::MAX, FaultKind::Trickle(10_000));
    let mut child: Child = world.command(&["pull", "a/b"]).stderr(Stdio::null()).spawn().expect("it starts");
    wait_for("a third of the weights", || come(&world, largest) > 1_000_000);
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    let there = come(&world, largest);
    world.hub.mend();
    world.hub.take_asked();
    let refused =
        error(&world.command(&["pull", "a/b"]).env("HF_HUB_OFFLINE", "1").output().expect("it starts"));
    assert!(refused.contains("HF_HUB_OFFLINE is set, and hf://a/b is not in"), "{refused}");
    let listed = succeeded(&world.run(&["models", "--json"]));
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert!(
        listed["models"][0]["incomplete_bytes"].as_u64().is_some_and(|bytes| bytes >= there as u64),
        "{listed}"
    );
    succeeded(&world.run(&["pull", "a/b"]));
    let path = format!("/lfs/{}", sha256(largest));
    let asked = world.hub.take_asked();
    let again: Vec<(usize, usize)> = asked
        .iter()
        .filter(|asked| asked.path.starts_with(&path))
        .map(|asked| (asked.from, asked.sent))
        .collect();
    assert_eq!(again, [(there, largest.len() - there)], "nothing comes twice");
    has_all(&world, "a/b", &repository, &FILES);
}

#[test]
fn two_processes_download_a_file_once() {
    let world = World::new();
    let repository = sharded(2_000_000);
    world.hub.add("a/b", repository.clone());
    world.hub.fail("/lfs/", usize::MAX, FaultKind::Trickle(20_000));
    let start = || {
        world
            .command(&["pull", "a/b"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let both = [start(), start()];
    for child in both {
        succeeded(&child.wait_with_output().expect("it ends"));
    }
    let sent: usize =
        world.hub.take_asked().iter().filter(|asked| asked.at_store).map(|asked| asked.sent).sum();
    let large = ["tokenizer.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    assert_eq!(sent, large.iter().map(|file| repository.files[*file].len()).sum::<usize>());
    has_all(&world, "a/b", &repository, &FILES);
}

#[test]
fn what_an_earlier_attempt_damaged_comes_anew() {
    let world = World::new();
    let repository = sharded(500_000);
    world.hub.add("a/b", repository.clone());
    let blobs = world.cache("a/b").join("blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        .map(|file| sha256(&repository.files[file]));
    // Other bytes than the file begins with, and more of them than it has.
    fs::write(blobs.join(format!("{first}.incomplete")), noise(100_000, 9)).expect("a file");
    fs::write(blobs.join(format!("{second}.incomplete")), noise(900_000, 9)).expect("a file");
    // A file under its name that was cut off.
    fs::write(blobs.join(sha256(&repository.files["tokenizer.json"])), b"short").expect("a file");
    succeeded(&world.run(&["pull", "a/b"]));
    has_all(&world, "a/b", &repository, &FILES);
}

#[test]
fn every_failure_is_one_line_that_says_what_to_do() {
    let world = World::new();
    let endpoint = world.hub.endpoint();
    world.hub.add("a/b", sharded(100_000));
    let gated = Repository { gated: true, ..sharded(100_000) };
    world.hub.add("a/gated", gated);
    world.hub.accept("hf_right");
    let vast = Repository {
        told_sizes: [("model-00001-of-00002.safetensors".to_owned(), 1 << 60)].into(),
        ..sharded(100_000)
    };
    world.hub.add("a/vast", vast);
    world.hub.add("a/torch", Repository::new([("pytorch_model.bin".to_owned(), vec![1])]));
    let pull = |name: &str| error(&world.run(&["pull", name]));
    let with = |name: &str, variable: &str, value: &str| {
        error(&world.command(&["pull", name]).env(variable, value).output().expect("it starts"))
    };
    let says = |line: &str, parts: &[&str]| {
        for part in parts {
            assert!(line.contains(part), "{line:?} should say {part:?}");
        }
    };
    says(
        &pull("a/gated"),
        &["hf://a/gated is gated: accept its terms at", &format!("{endpoint}/a/gated, and set HF_TOKEN")],
    );
    says(
        &with("a/gated", "HF_TOKEN", "hf_wrong"),
        &["is gated", "(the one that is set may not read it yet)"],
    );
    says(
        &pull("a/none"),
        &["has no model hf://a/none that everybody may read: check the name, or set HF_TOKEN"],
    );
    says(
        &with("a/none", "HF_TOKEN", "hf_right"),
        &["has no model hf://a/none that the token in HF_TOKEN may read"],
    );
    says(&pull("a/b@v9"), &["hf://a/b@v9 has no revision `v9`", "/a/b/refs"]);
    says(
        &pull("a/vast"),
        &["hf://a/vast needs 1152921504.6 GB more in", "are free: make room, or set HF_HOME"],
    );
    says(&pull("a/torch"), &["hf://a/torch has weights for PyTorch alone"]);
    says(&pull("a/b:Q4_K_M"), &["has no GGUF file for `:Q4_K_M`; its GGUF files are none"]);
    says(
        &pull("hf://a/b/../c"),
        &["MODEL: `model.target` cannot be used: `hf://a/b/../c` is no model's name"],
    );
    says(
        &with("a/b", "HF_HUB_OFFLINE", "1"),
        &["HF_HUB_OFFLINE is set", "revision `main` was never downloaded", "run `faser pull hf://a/b`"],
    );
    says(
        &with("a/b", "HF_ENDPOINT", "http://127.0.0.1:1"),
        &["the hub http://127.0.0.1:1 cannot be reached for hf://a/b", "try again"],
    );
    says(&with("a/b", "HF_ENDPOINT", "mirror"), &["HF_ENDPOINT must be an address"]);
    let failing = |of, kind| {
        world.hub.mend();
        world.hub.fail(of, usize::MAX, kind);
        pull("a/b")
    };
    let later = failing("/api/models/", FaultKind::Status(429, "Retry-After", "3000"));
    says(&later, &["takes no more requests for now (429), for 3000 s: try again then, or set HF_TOKEN"]);
    says(
        &failing("/api/models/", FaultKind::Status(302, "Location", "/api/models/")),
        &["redirects in circles"],
    );
    says(
        &failing("/api/models/", FaultKind::Status(200, "X-None", "")),
        &["gives no answer of a hub", "is HF_ENDPOINT right?"],
    );
    says(
        &failing("/api/models/", FaultKind::Status(403, "X-Error-Message", "not from here")),
        &["refuses hf://a/b with status 403: not from here"],
    );
    says(
        &failing("/lfs/", FaultKind::Corrupt),
        &["came with another checksum than the hub says", "was thrown away"],
    );
    assert!(!world.cache("a/b").join("refs/main").exists(), "nothing of it counts as downloaded");
}

#[test]
fn a_hub_that_brings_nothing_is_given_up_and_the_cache_does() {
    let world = World::new();
    let repository = sharded(100_000);
    world.hub.add("a/b", repository.clone());
    world.hub.fail("/lfs/", usize::MAX, FaultKind::Stall(0));
    let begin = Instant::now();
    let silent = error(&world.run(&["pull", "a/b"]));
    assert!(silent.contains("it brought nothing for 1 s (HF_HUB_DOWNLOAD_TIMEOUT)"), "{silent}");
    // Five attempts of a second, and 7.5 s between them.
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    world.hub.mend();
    succeeded(&world.run(&["pull", "a/b"]));
    world.hub.fail("/api/models/", usize::MAX, FaultKind::Status(503, "X-None", ""));
    let output = world.run(&["pull", "a/b"]);
    succeeded(&output);
    let told = text(&output.stderr);
    assert!(
        told.contains("status 503") && told.contains("of the cache is used, which may be older"),
        "{told}"
    );
}

#[test]
fn a_draft_that_names_its_target_brings_it() {
    let world = World::new();
    let heads = root().join("models/tests/golden/heads");
    world.hub.add("a/target", Repository::of_folder(&heads.join("target")));
    let mut head = Repository::of_folder(&heads.join("eagle3-speculators"));
    let config = head.files.get_mut("config.json").expect("a config");
    *config = text(config).replace("\"../target\"", "\"a/target\"").into_bytes();
    world.hub.add("a/head", head.clone());
    let pulled = succeeded(&world.run(&["pull", "a/head"]));
    assert!(pulled.contains("target   ") && pulled.contains("models--a--target/snapshots/"), "{pulled}");
    assert!(pulled.contains("\ndraft    ") && pulled.contains("models--a--head/snapshots/"), "{pulled}");
    // A draft in a folder of this machine brings it too.
    let folder = world.home.folder().join("head");
    fs::create_dir(&folder).expect("a folder");
    head.files.iter().for_each(|(file, content)| fs::write(folder.join(file), content).expect("a file"));
    let plan = |target: &str| {
        let config = Config::new(&format!("model: {{target: '{target}', dtype: f32}}\n"));
        world.run(&["plan", "-c", config.path().to_str().expect("UTF-8")])
    };
    let planned = succeeded(&plan(folder.to_str().expect("UTF-8")));
    assert!(
        planned.contains("target   a/target: ") && planned.contains("EAGLE-3, in the layout of speculators"),
        "{planned}"
    );
    // What is asked for as a pair has to be one.
    let refused = error(&plan("hf://a/target"));
    assert!(refused.contains("`model.draft` is missing"), "{refused}");
}

#[test]
fn of_gguf_files_one_comes_and_of_a_plan_only_the_shape() {
    let world = World::new();
    let golden = root().join("models/tests/golden/gguf");
    let file = fs::read_dir(&golden)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "gguf"));
    let gguf = fs::read(file.expect("a GGUF file")).expect("a file");
    let files =
        [("x-Q4_0.gguf", gguf.clone()), ("x-Q8_0.gguf", noise(1000, 1)), ("README.md", b"x".to_vec())];
    world.hub.add("a/x-GGUF", Repository::new(files.map(|(path, content)| (path.to_owned(), content))));
    let pulled = succeeded(&world.run(&["pull", "a/x-GGUF:Q4_0"]));
    assert!(pulled.trim_end().ends_with("/x-Q4_0.gguf"), "{pulled}");
    assert_eq!(world.hub.take_asked().iter().filter(|asked| asked.at_store).count(), 1);
    let planned = succeeded(&world.run(&["plan", "hf://a/x-GGUF/x-Q4_0.gguf"]));
    assert!(planned.contains("target   x-Q4_0: "), "{planned}");
    let which = error(&world.run(&["plan", "a/x-GGUF"]));
    assert!(
        which.contains("has GGUF files: say which, as in hf://a/x-GGUF:Q4_K_M, of x-Q4_0.gguf, x-Q8_0.gguf"),
        "{which}"
    );

    world.hub.add("a/target", Repository::of_folder(&root().join("models/rustdoc/target")));
    world.hub.take_asked();
    let planned = succeeded(&world.run(&["plan", "a/target"]));
    assert!(
        planned.contains("planned by its config.json alone") && planned.trim_end().ends_with("\nok"),
        "{planned}"
    );
    let asked: Vec<String> = world.hub.take_asked().into_iter().map(|asked| asked.path).collect();
    assert!(asked.len() == 2 && asked[1].ends_with("/config.json"), "{asked:?}");
}

#[test]
fn nothing_comes_for_a_device_that_is_not_there() {
    let world = World::new();
    world.hub.add("a/b", sharded(100_000));
    let config = Config::new("model: {target: 'hf://a/b', draft: none}\ndevice: {kind: 'cuda:0'}\n");
    let path = config.path();
    let mut command = world.command(&["check", "-c", path.to_str().expect("UTF-8")]);
    let refused = error(&command.env("CUDA_VISIBLE_DEVICES", "").output().expect("it starts"));
    assert!(refused.contains("`device.kind` is cuda:0"), "{refused}");
    assert_eq!(world.hub.take_asked().len(), 0);
}
