//! Plans by the sizes that loading finds: the same bytes, the same pools, the same shards.

use std::path::Path;

use faser_config::raw::Document;
use faser_models::{ModelConfig, Shard};
use faser_topology::{DeviceId, Divisible};

use super::*;
use crate::load_pairs::load;

fn config(text: &str) -> Config {
    let document = Document::parse(Path::new("x.yaml"), text.to_owned()).unwrap();
    Config::from_document(&document).unwrap()
}

fn planned(text: &str) -> PlanReport {
    plan(&config(text)).unwrap()
}

#[test]
fn on_the_cpu_a_plan_has_the_pools_and_weights_that_loading_gives() {
    for split in [
        "",
        ", tensor_parallel: 2, draft_tensor_parallel: 2",
        ", tensor_parallel: 2, draft_placement: replicated",
    ] {
        let text = format!(
            "model: {{synthetic: {{preset: tiny}}}}\ndevice: {{kind: cpu{split}}}\nspeculation: {{policy: 'fixed:2'}}\n\
             scheduler: {{max_running: 3, max_context: 100}}\n"
        );
        let loaded = load(&config(&text), &mut |_, _| {}).unwrap();
        let plan = planned(&text).plan.unwrap();
        let (replica, device) = (&plan.replicas[0], &plan.devices[0]);
        assert_eq!(replica.kv_blocks, loaded.pools.target_blocks, "{split}");
        assert_eq!(device.kv_bytes, loaded.pools.kv_bytes, "{split}");
        assert_eq!(loaded.engine.draft.needs().blocks, loaded.pools.draft_blocks, "{split}");
        let divided = split.contains("replicated");
        assert_eq!(loaded.pools.draft_blocks < loaded.pools.target_blocks, divided, "{split}");
        if divided {
            // Ranks read the same weights, which a plan counts for each.
            continue;
        }
        assert_eq!(device.target_weight_bytes, loaded.device.target().weight_bytes, "{split}");
        assert_eq!(
            Some(device.draft_weight_bytes),
            loaded.device.draft().map(|draft| draft.weight_bytes),
            "{split}"
        );
    }
}

#[test]
fn a_block_that_no_pass_has_room_for_is_refused() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rustdoc");
    let with = |rows: usize| {
        let (target, draft) = (models.join("target"), models.join("dspark"));
        let text = format!(
            "model: {{target: '{}', draft: '{}'}}\ndevice: {{kind: cpu}}\nspeculation: {{policy: 'fixed:2'}}\n\
             scheduler: {{max_running: 3, max_pass_rows: {rows}}}\n",
            target.display(),
            draft.display()
        );
        plan(&config(&text)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(with(8), Ok(()));
    let refused = with(7).unwrap_err();
    assert!(
        refused.contains("`scheduler.max_pass_rows` is 7") && refused.contains("at least 8"),
        "{refused}"
    );
}

#[test]
fn past_outputs_are_beside_everything_else_in_a_plan_and_in_what_is_loaded() {
    let text = |memory: &str| {
        format!(
            "model: {{synthetic: {{preset: tiny}}}}\ndevice: {{kind: cpu, replicas: 2, threads: 2}}\n\
             speculation: {{policy: 'fixed:2', suffix_memory: {memory}}}\nkv: {{memory: 1MiB}}\n\
             scheduler: {{max_running: 3, max_context: 100}}\n\
             topology: {{host: {{cores: 2, memory: 1GiB}}}}\n"
        )
    };
    let told = |report: &PlanReport| report.notes.iter().any(|note| note.contains("past outputs take"));
    let (none, some) = (planned(&text("null")), planned(&text("128MiB")));
    assert!(!told(&none) && told(&some), "{:?}", some.notes);
    // Of each replica, and of the host as it was written nothing is missing.
    assert_eq!(none.topology, some.topology);
    let on_host = |report: &PlanReport| report.plan.as_ref().unwrap().devices[0].clone();
    let (without, with) = (on_host(&none), on_host(&some));
    assert_eq!(without.budget_bytes - with.budget_bytes, 2 * (128 << 20));
    assert_eq!((without.memory_bytes, without.kv_bytes), (with.memory_bytes, with.kv_bytes));
    let refused = plan(&config(&text("513MiB"))).unwrap_err().to_string();
    assert!(refused.contains("`speculation.suffix_memory` is 513MiB for each of 2 replicas"), "{refused}");
    let here = text("64GiB").replace("replicas: 2", "replicas: 64");
    let here = here.split("topology").next().unwrap();
    let refused = load(&config(here), &mut |_, _| {}).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("`speculation.suffix_memory`"), "{refused}");
}

#[test]
fn a_head_takes_what_loading_gives_it_and_goes_where_it_can() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/rustdoc");
    let text = |target: &str, draft: &str, device: &str| {
        let (target, draft) = (models.join(target), models.join(draft));
        format!(
            "model: {{target: '{}', draft: '{}'}}\ndevice: {{kind: cpu{device}}}\nspeculation: {{policy: 'fixed:2'}}\n\
             scheduler: {{max_running: 3, max_context: 100}}\n",
            target.display(),
            draft.display()
        )
    };
    let whole = text("target", "eagle3", "");
    let loaded = load(&config(&whole), &mut |_, _| {}).unwrap();
    let report = planned(&whole);
    let found = report.plan.as_ref().unwrap();
    assert_eq!(found.replicas[0].kv_blocks, loaded.pools.target_blocks);
    assert_eq!(found.devices[0].kv_bytes, loaded.pools.kv_bytes);
    assert_eq!(found.devices[0].draft_weight_bytes, loaded.device.draft().unwrap().weight_bytes);
    assert!(report.to_string().contains("a head on the target's hidden states (EAGLE-3)"), "{report}");
    for (text, says) in [
        (text("eagle3", "draft", ""), "is a head that drafts from the hidden states of another model"),
        (text("target", "eagle3", ", tensor_parallel: 2"), "`device.tensor_parallel` must be 1"),
        (text("target", "eagle3", ", draft_tensor_parallel: 2"), "`device.draft_tensor_parallel` must be 1"),
    ] {
        let planned = plan(&config(&text)).err().map(|err| err.to_string()).unwrap_or_default();
        let loaded =
            load(&config(&text), &mut |_, _| {}).err().map(|err| err.to_string()).unwrap_or_default();
        assert!(planned.contains(says) && loaded.contains(says), "{says}: {planned} {loaded}");
    }
}

#[test]
fn shares_are_the_shards_that_models_are_cut_into() {
    let base = Models::of(&config("model: {synthetic: {preset: tiny}}")).unwrap().target.config;
    let shape = |heads, kv_heads, intermediate, vocab| ModelConfig {
        heads,
        kv_heads,
        intermediate,
        vocab,
        ..base.clone()
    };
    for whole in [shape(8, 2, 96, 301), shape(6, 3, 64, 100), shape(8, 8, 65, 9), shape(4, 1, 8, 5)] {
        let ModelConfig { heads, kv_heads, intermediate, vocab, .. } = whole;
        let divisible =
            Divisible { layers: base.layers.len(), heads, kv_heads, columns: intermediate, tokens: vocab };
        for ranks in 1..=8 {
            for shard in Shard::all(ranks) {
                assert_eq!(
                    divisible.check(ranks).is_ok(),
                    shard.check(&whole).is_ok(),
                    "{divisible:?} {shard}"
                );
                if shard.check(&whole).is_err() {
                    continue;
                }
                let (share, own) = (divisible.share(shard.rank, ranks), shard.config(&whole));
                let sizes =
                    [share.heads.len(), share.kv_heads.len(), share.columns.len(), share.tokens.len()];
                assert_eq!(
                    sizes,
                    [own.heads, own.kv_heads, own.intermediate, own.vocab],
                    "{divisible:?} {shard}"
                );
                assert_eq!(share.tokens, shard.tokens(&whole));
            }
        }
    }
}

const MACHINE: &str =
    "topology: {host: {cores: 4, memory: 8GiB}, gpus: [{count: 2, sms: 132, memory: 8GiB}]}\n";

#[test]
fn the_kind_of_device_chooses_what_is_planned_on() {
    let device = |rest: &str| {
        let plan = planned(&format!("model: {{synthetic: {{preset: tiny}}}}\n{MACHINE}{rest}")).plan.unwrap();
        plan.replicas[0].ranks[0].device
    };
    assert_eq!(device(""), DeviceId::Gpu(0));
    assert_eq!(device("device: {kind: 'cuda:1'}"), DeviceId::Gpu(1));
    assert_eq!(device("device: {kind: cpu}"), DeviceId::Cpu);
    assert_eq!(device("kv: {block_size: 32}"), DeviceId::Cpu);
    let refusal = |rest: &str| plan(&config(&format!("{MACHINE}{rest}"))).unwrap_err().to_string();
    assert!(refusal("device: {kind: 'cuda:2'}").contains("the machine has 2 GPUs"));
    assert!(refusal("device: {kind: 'cuda:0'}\nkv: {block_size: 32}").contains("must be 16"));
}

#[test]
fn models_are_known_by_their_config_and_headers_alone() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tests/golden/llama");
    let folder = std::env::temp_dir().join(format!("faser-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(golden.join("config.json"), folder.join("config.json")).unwrap();
    let of = |target: &Path| {
        planned(&format!("model: {{target: '{}', draft: none}}\ndevice: {{kind: cpu}}\n", target.display()))
    };
    let (without, with) = (of(&folder), of(&golden));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(without.notes.iter().any(|note| note.contains("has no weights")), "{:?}", without.notes);
    assert!(!with.notes.iter().any(|note| note.contains("has no weights")), "{:?}", with.notes);
    assert_eq!(without.target.weight_bytes, with.target.weight_bytes);
}
