//! From the document to the `Config`: the whole of it, and its `pairs`, several model pairs in one daemon, each with sections of its own laid
//! over those of the whole document.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::admin_section::admin;
use super::node_section::{fits, node};
use super::raw::{ConfigSource, Document};
use super::sections::{Sections, log, name, sections};
use super::server_section::server;
use super::sizes::seconds;
use super::telemetry_section::telemetry;
use super::topology::topology;
use super::{Config, ConfigError, DeviceKind};
use crate::fields::{Fault, FieldError, Fields};

/// Pairs of one daemon.
const MOST_PAIRS: usize = 16;
/// Sections that a pair may have. All others are the daemon's.
const SECTIONS: [&str; 6] = ["model", "device", "kv", "kv_events", "scheduler", "speculation"];

impl Config {
    /// Reads a document; every key that is absent or null takes its default.
    ///
    /// # Errors
    /// The first key that is unknown, of the wrong type, impossible, or at odds with another.
    pub fn from_document(document: &Document) -> Result<Config, ConfigError> {
        let environment = |name: &str| std::env::var(name).ok();
        read(document.root(), document.folder(), &environment).map_err(|err| document.error(&err))
    }

    /// The config in a file, or every default.
    ///
    /// # Errors
    /// The file is wrong.
    pub fn read(file: Option<PathBuf>) -> Result<Config, ConfigError> {
        Config::from_document(&ConfigSource { file, flags: Vec::new() }.document()?)
    }

    /// The same with what passes cost measured anew, if `profile` says so.
    ///
    /// # Errors
    /// No policy of it needs to know.
    pub fn profiled(mut self, profile: bool) -> Result<Config, ConfigError> {
        if profile && !self.each().iter().any(|config| config.tuning.policy.traits().predicts) {
            let message = format!(
                "there is nothing to measure, for `speculation.policy` is `{}`: leave it out, or choose `budget` or `faser`",
                self.each()[0].tuning.policy
            );
            return Err(ConfigError { place: Some("--profile".to_owned()), message });
        }
        self.pairs.iter_mut().for_each(|pair| pair.profile = profile);
        Ok(Config { profile, ..self })
    }
}

fn read(
    root: &Value,
    folder: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, FieldError> {
    let whole = root;
    let mut root = Fields::new("", root)?;
    let nothing = Value::Object(Default::default());
    let mut section = |name: &'static str| {
        let value = root.value(name).unwrap_or(&nothing);
        Fields::new(name, value)
    };
    let server = server(section("server")?, folder)?;
    let admin = admin(section("admin")?, folder)?;
    let log = log(section("log")?)?;
    let telemetry = telemetry(section("telemetry")?)?;
    let mut metrics = section("metrics")?;
    let vllm_names = metrics.flag("vllm_names")?.unwrap_or(true);
    metrics.finish()?;
    let node = node(section("node")?, environment)?;
    let nodes = node.as_ref().map_or(1, |node| node.place.of);
    let Sections { model, device, kv, kv_events, scheduler, tuning, cost_cache, suffix_bytes } =
        sections(section, folder, nodes)?;
    node.as_ref().map_or(Ok(()), |node| fits(node, &device))?;
    let topology = topology(&mut root, folder)?;
    let drain_timeout = seconds(&mut root, "drain_timeout_s", 0..=86_400, 30)?;
    let several = root.list("pairs")?;
    root.finish()?;
    let config = Config {
        server,
        admin,
        model,
        device,
        node,
        topology,
        kv,
        kv_events,
        scheduler,
        tuning,
        cost_cache,
        suffix_bytes,
        profile: false,
        log,
        telemetry,
        vllm_names,
        drain_timeout,
        pairs: Vec::new(),
    };
    match several {
        None => Ok(config),
        Some(items) => Ok(Config { pairs: pairs(items, whole, &config, folder)?, ..config }),
    }
}

/// Reads the list: `root` is the whole document, and `shared` what it says without its pairs.
fn pairs(items: &[Value], root: &Value, shared: &Config, folder: &Path) -> Result<Vec<Config>, FieldError> {
    let refuse = |path: &str, problem: &str| Err(FieldError::new(path, Fault::Value, problem));
    if shared.node.is_some() {
        return refuse("node", "stands beside `pairs`: over several nodes there is one pair");
    }
    if root.get("model").is_some_and(|model| !model.is_null()) {
        return refuse(
            "model",
            "stands beside `pairs`: give each pair a `model` of its own, and leave this out",
        );
    }
    if items.is_empty() || items.len() > MOST_PAIRS {
        return refuse(
            "pairs",
            "must have 1 to 16 entries, such as {name: large, model: {target: .., draft: ..}}",
        );
    }
    let mut pairs: Vec<Config> = Vec::with_capacity(items.len());
    // What requests may call them, and the number of the pair that is called so.
    let mut names: Vec<(String, usize)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("pairs[{index}]");
        let pair = pair(&path, item, root, shared, folder)?;
        for (at, name) in pair.model.name.iter().chain(&pair.model.aliases).enumerate() {
            if let Some((_, first)) = names.iter().find(|(other, _)| other == name) {
                let place = match at {
                    0 => format!("{path}.name"),
                    at => format!("{path}.model.aliases[{}]", at - 1),
                };
                return refuse(&place, &format!("is that of pairs[{first}] too: each needs its own"));
            }
            names.push((name.clone(), index));
        }
        pairs.push(pair);
    }
    if pairs.len() > 1 {
        share_gpus(&mut pairs)?;
    }
    Ok(pairs)
}

fn pair(
    path: &str,
    item: &Value,
    root: &Value,
    shared: &Config,
    folder: &Path,
) -> Result<Config, FieldError> {
    let mut fields = Fields::new(path, item)?;
    let missing = fields.missing("name", "is missing: what do clients call this pair?");
    let name = name(&mut fields)?.ok_or(missing)?.to_owned();
    let own = SECTIONS.map(|section| fields.value(section));
    fields.finish()?;
    let mut whole = Map::new();
    for (section, own) in SECTIONS.into_iter().zip(own) {
        whole.insert(section.to_owned(), laid_over(root.get(section), own));
    }
    let section =
        |name: &'static str| Fields::new(format!("{path}.{name}"), whole.get(name).unwrap_or(&Value::Null));
    let Sections { mut model, device, kv, kv_events, scheduler, tuning, cost_cache, suffix_bytes } =
        sections(section, folder, 1)?;
    if model.name.is_some() {
        let problem = format!("stands beside `{path}.name`: leave it out");
        return Err(FieldError::new(format!("{path}.model.name"), Fault::Value, problem));
    }
    model.name = Some(name);
    Ok(Config { model, device, kv, kv_events, scheduler, tuning, cost_cache, suffix_bytes, ..shared.clone() })
}

/// A section as a pair has it: key by key what it says itself, also if that is null, for the default; else what is said for all.
fn laid_over(shared: Option<&Value>, own: Option<&Value>) -> Value {
    match (shared, own) {
        (Some(Value::Object(shared)), Some(Value::Object(own))) => {
            let mut all = shared.clone();
            for (key, value) in own {
                all.insert(key.clone(), laid_over(shared.get(key), Some(value)));
            }
            Value::Object(all)
        }
        (_, Some(own)) => own.clone(),
        (Some(shared), None) if !shared.is_null() => shared.clone(),
        _ => Value::Object(Map::new()),
    }
}

/// Each pair needs GPUs of its own: those that are named first, then what is left for those that leave it open.
fn share_gpus(pairs: &mut [Config]) -> Result<(), FieldError> {
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for pair in pairs.iter_mut() {
        pair.device.others_gpus = Some(Vec::new());
    }
    for (index, pair) in pairs.iter().enumerate().filter(|(_, pair)| named(&pair.device.kind)) {
        let gpus = pair.device.gpus();
        if let Some((gpu, owner)) = taken.iter().find(|(gpu, _)| gpus.contains(gpu)) {
            let problem = format!(
                "takes GPU {gpu}, which pairs[{owner}] has: each pair needs GPUs of its own, such as `cuda:{}`",
                taken.iter().map(|(gpu, _)| gpu + 1).max().unwrap_or(0)
            );
            return Err(FieldError::new(format!("pairs[{index}].device.kind"), Fault::Value, problem));
        }
        taken.extend(gpus.into_iter().map(|gpu| (gpu, index)));
    }
    let open = |pair: &Config| pair.device.kind == DeviceKind::Auto && pair.fits_gpus().is_ok();
    for (index, pair) in pairs.iter_mut().enumerate().filter(|(_, pair)| open(pair)) {
        pair.device.others_gpus = Some(taken.iter().map(|(gpu, _)| *gpu).collect());
        taken.extend(pair.device.gpus().into_iter().map(|gpu| (gpu, index)));
    }
    Ok(())
}

fn named(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::Cuda(_))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faser_engine::Policy;

    use super::*;
    use crate::ConfigError;
    use crate::ModelSource;
    use crate::raw::Document;

    fn read(text: &str) -> Result<Config, ConfigError> {
        Config::from_document(&Document::parse(Path::new("etc/x.yaml"), text.to_owned())?)
    }

    fn refusal(text: &str) -> String {
        read(text).expect_err("this has to be refused").to_string()
    }

    #[test]
    fn a_pair_is_the_document_with_its_own_sections_laid_over_it() {
        let config = read(
            "kv: {memory: 1GiB, block_size: 32}\nspeculation: {k_max: 3, policy: 'fixed:2', slo: {ttft_ms: 9, tpot_ms: 7}}\n\
             drain_timeout_s: 5\n\
             pairs:\n\
             - {name: demo}\n\
             - name: big\n  model: {target: t, draft: none}\n  kv: {memory: null}\n\
             \x20 speculation: {policy: 'off', slo: {ttft_ms: 1}}\n  scheduler: {max_running: 2}\n",
        )
        .unwrap();
        let [demo, big] = config.each() else { panic!("two pairs") };
        assert_eq!((demo.model.name.as_deref(), big.model.name.as_deref()), (Some("demo"), Some("big")));
        assert_eq!(demo.model.source, ModelSource::Demo { draft: true });
        assert_eq!(big.model.source, ModelSource::Directories { target: "etc/t".into(), draft: None });
        assert_eq!((demo.kv.memory_bytes, big.kv.memory_bytes), (Some(1 << 30), None), "null is the default");
        assert_eq!((big.kv.block_size, big.tuning.k_max, &big.tuning.policy), (32, Some(3), &Policy::Off));
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!((big.tuning.slo.ttft, big.tuning.slo.tpot), (ms(1), ms(7)));
        assert_eq!((demo.tuning.max_running, big.tuning.max_running), (64, 2));
        assert_eq!(big.drain_timeout, Duration::from_secs(5));
        let alone = read("kv: {block_size: 32}\n").unwrap();
        assert_eq!(alone.each(), std::slice::from_ref(&alone));
    }

    #[test]
    fn gpus_that_are_left_open_are_others_than_those_of_other_pairs() {
        let of = |kinds: [&str; 3]| {
            let item = |(index, device)| format!("- {{name: p{index}, device: {{{device}}}}}\n");
            let items: String = kinds.into_iter().enumerate().map(item).collect();
            let config = read(&format!("pairs:\n{items}")).unwrap();
            config.each().iter().map(|pair| pair.device.gpus()).collect::<Vec<_>>()
        };
        assert_eq!(of(["", "kind: 'cuda:0'", "replicas: 2"]), [vec![1], vec![0], vec![2, 3]]);
        assert_eq!(
            of(["draft_tensor_parallel: 2", "", "kind: 'cuda:4,2', tensor_parallel: 2"])[1..],
            [vec![0], vec![4, 2]]
        );
        for device in ["device: {kind: 'cuda:1'}\n", "device: {kind: cuda}\n"] {
            let shared = refusal(&format!("{device}pairs: [{{name: a}}, {{name: b}}]\n"));
            assert!(
                shared.contains("`pairs[1].device.kind` takes GPU") && shared.contains("pairs[0] has"),
                "{shared}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_the_pair_it_is_wrong_in() {
        for (text, words) in [
            ("model: {draft: none}\npairs: [{name: a}]\n", "etc/x.yaml:1: `model` stands beside `pairs`"),
            ("pairs: []\n", "`pairs` must have 1 to 16 entries"),
            ("pairs: {a: {}}\n", "`pairs` must be a list"),
            ("pairs:\n- name: a\n- model: {}\n", "etc/x.yaml:3: `pairs[1].name` is missing"),
            ("pairs:\n- name: a\n- name: a\n", "etc/x.yaml:3: `pairs[1].name` is that of pairs[0] too"),
            (
                "pairs:\n- name: a\n- {name: b, model: {aliases: [c, a]}}\n",
                "`pairs[1].model.aliases[1]` is that of pairs[0] too",
            ),
            ("pairs: [{name: 'a b'}]\n", "`pairs[0].name` must be 1 to 128"),
            ("pairs: [{name: a, model: {name: b}}]\n", "`pairs[0].model.name` stands beside `pairs[0].name`"),
            (
                "pairs: [{name: a, server: {}}]\n",
                "`pairs[0].server` is unknown; known here: name, model, device",
            ),
            ("pairs: [{name: a, scheduler: 3}]\n", "`pairs[0].scheduler` must be an object"),
            (
                "pairs:\n- name: a\n- name: b\n  kv:\n    memory: lots\n",
                "etc/x.yaml:5: `pairs[1].kv.memory` must be a size",
            ),
            (
                "pairs: [{name: a, model: {draft: none}, speculation: {policy: 'fixed:2'}}]\n",
                "`pairs[0].speculation.policy`",
            ),
            ("kv: {memory: lots}\npairs: [{name: a}]\n", "etc/x.yaml:1: `kv.memory` must be a size"),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(words), "{text}: {refusal}");
        }
    }
}
