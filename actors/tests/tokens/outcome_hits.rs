//! How often the verdict that comes was prepared for, on the demo pair, by temperature: candidates are ranked with the target's own noise, so that
//! sampling costs few of the hits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use faser_actors::Dtype;
use faser_engine::survival::Learned;
use faser_engine::{DraftSource, EngineConfig, Handling, Policy, Request, SeqId, SpeculationBounds, Tuning};
use faser_kernels::Sampling;
use faser_models::{Model, Shard, Tokenizer, WeightSource};

use crate::cases::BLOCK;
use crate::rig::{Pair, Plan, Random, Rig, Times, have_it_prepare};

const PROMPTS: usize = 24;
const NEW_TOKENS: usize = 80;
const CONTEXT: usize = 512;
const TOGETHER: usize = 4;

fn demo(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/rustdoc").join(model)
}

fn load(model: &str) -> Arc<Model> {
    let source = WeightSource::folder(&demo(model)).expect("a config");
    Arc::new(Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).expect("the demo pair is there"))
}

fn prompts(target: &Model) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(demo("heldout_prompts.json")).expect("the prompts are there");
    let prompts: Vec<serde_json::Value> = serde_json::from_str(&text).expect("the prompts are JSON");
    let tokenizer = Tokenizer::load(&demo("target"), target.config()).expect("the tokenizer is there");
    let encode = |prompt: &serde_json::Value| {
        tokenizer.encode(prompt["prompt"].as_str().expect("a text"), true).expect("tokens")
    };
    prompts.iter().take(PROMPTS).map(encode).collect()
}

/// Verdicts that were prepared for, and those of them that found theirs.
fn hits(pair: &Pair, prompts: &[Vec<u32>], temperature: f32) -> (u64, u64) {
    let mut config = EngineConfig {
        block_size: BLOCK,
        target_blocks: 2 * TOGETHER * CONTEXT / BLOCK,
        draft: DraftSource::model(8 * TOGETHER * CONTEXT / BLOCK),
        max_pass_rows: 256,
        max_context: CONTEXT,
        partitions: Vec::new(),
        target_layers: pair.target.config().layers.len(),
        deterministic: false,
        speculation: SpeculationBounds::default(),
        prefix_cache: true,
        learned: Learned::default(),
        tuning: Tuning {
            max_running: TOGETHER,
            max_waiting: PROMPTS,
            policy: Policy::Faser,
            ..Tuning::default()
        },
    };
    have_it_prepare(&mut config);
    config.tuning.mechanisms.lookup = false;
    let mut rig = Rig::new(pair, &config);
    for (seq, prompt) in (0..).zip(prompts) {
        let handling = Handling::default();
        let request = Request {
            handling,
            history_free: true,
            draws: temperature > 0.0,
            ..Request::new(SeqId(seq), prompt.as_slice(), NEW_TOKENS)
        };
        let sampling = Sampling { temperature, seed: 7 + seq, ..Sampling::default() };
        rig.submit(request, sampling.into());
    }
    let random = &mut Random(1);
    // What is prepared is there before the verdict, as its time says.
    while !rig.plans.is_empty() {
        let next = rig.plans.iter().position(|plan| matches!(plan, Plan::Draft(_))).unwrap_or(0);
        let took = Times::Told.of(rig.plans.get(next), random);
        rig.work(next, took);
    }
    rig.finish();
    let totals = rig.engine.view().totals;
    let all = (totals.outcome_verdicts, totals.outcome_hits);
    let drawn = (totals.outcome_verdicts_drawn, totals.outcome_hits_drawn);
    assert_eq!(drawn, if temperature > 0.0 { all } else { (0, 0) });
    all
}

#[test]
fn verdicts_are_prepared_for_nearly_as_often_when_tokens_are_drawn_as_when_they_are_not() {
    let pair = Pair { target: load("target"), draft: Some(load("draft")), cuda: None, shards: None };
    let prompts = prompts(&pair.target);
    let [greedy, drawn, freely] = [0.0, 0.7, 1.0].map(|temperature| {
        let (verdicts, hits) = hits(&pair, &prompts, temperature);
        let rate = hits as f64 / verdicts.max(1) as f64;
        println!("temperature {temperature}: {hits} of {verdicts} verdicts found theirs, {rate:.3}");
        assert!(verdicts > 200, "too few to say anything");
        rate
    });
    assert!(greedy > 0.6 && drawn > 0.85 * greedy && freely > 0.85 * greedy, "{greedy} {drawn} {freely}");
}
