//! The sampler follows the target's distribution with speculation on: chi-squared over 100,000 draws per setting, for
//! the first and for later positions, against probabilities computed here from the target's own logits in the plainest
//! way. Seeds are fixed: the outcome is the same on every run.

use std::collections::HashMap;
use std::sync::Arc;

use faser_actors::{Dtype, Isa, Sampling};
use faser_engine::{
    DraftSource, EngineConfig, Learned, Policy, Request, SeqId, SpeculationBounds, TokenId, Tuning,
};
use faser_kernels::{KvCache, Lane, Rows};
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Model, Pass};
use faser_topology::Partition;

use crate::cases::pair_of;
use crate::rig::{Pair, Random, Rig};

const VOCAB: usize = 256;
/// All tokens but this many are biased out of the vocabulary, so that every continuation can be enumerated.
const TINY_VOCAB: usize = 8;
const BLOCK: usize = 16;
const MAX_CONTEXT: usize = 32;
const K: usize = 4;
const PROMPT: [TokenId; 5] = [3, 1, 4, 1, 5];
/// Positions that are compared: the first comes from the prefill pass, the others from verified proposals.
const POSITIONS: usize = 4;
const SEQUENCES: u64 = 25_000;
const AT_ONCE: u64 = 50;
/// z of the chi-squared threshold: a right sampler exceeds it about once in 30,000 comparisons.
const Z: f64 = 4.0;

#[test]
fn draws_follow_the_targets_distribution_with_speculation_on() {
    let pair = pair();
    let biased_out = (TINY_VOCAB..VOCAB).map(|token| (token as TokenId, -10_000.0)).collect();
    let plain = Sampling { logit_bias: biased_out, ..Sampling::default() };
    for (seed, (name, sampling)) in (1..).zip([
        ("temperature 1.0", plain.clone()),
        ("temperature 0.7", Sampling { temperature: 0.7, ..plain.clone() }),
        ("top-p 0.9", Sampling { top_p: 0.9, ..plain.clone() }),
        (
            "penalties",
            Sampling {
                repetition_penalty: 1.3,
                presence_penalty: 0.4,
                frequency_penalty: 0.3,
                temperature: 0.7,
                ..plain.clone()
            },
        ),
    ]) {
        let mut oracle = Oracle::new(pair.target.clone());
        let draws = Draws::of(&pair, &sampling, seed);
        println!(
            "{name}: {} draws, {} of {} proposals accepted",
            SEQUENCES as usize * POSITIONS,
            draws.accepted,
            draws.proposed
        );
        assert!(
            draws.accepted > 10_000 && draws.proposed - draws.accepted > 10_000,
            "speculation is hardly at work"
        );
        let expected = oracle.expected(&sampling);
        for fit in draws.compare(&expected) {
            println!("  {fit:?}");
            assert!(fit.chi_squared < fit.threshold, "{name}: {fit:?}");
        }
        // The comparison has teeth: the same draws do not fit a slightly different temperature.
        let other = Sampling { temperature: sampling.temperature * 1.1, ..sampling };
        let misfit = draws.compare(&oracle.expected(&other));
        assert!(misfit.iter().all(|fit| fit.chi_squared > fit.threshold), "{name}: {misfit:?}");
    }
}

fn pair() -> Pair {
    let spec = SyntheticSpec {
        layers: 2,
        draft_layers: 1,
        hidden: 16,
        intermediate: 16,
        experts: 0,
        experts_per_token: 0,
        heads: 2,
        kv_heads: 1,
        vocab: VOCAB,
        max_context: MAX_CONTEXT,
        seed: 13,
        residual_scale: 0.5,
        mask_token: None,
    };
    pair_of(&spec, Dtype::F32)
}

/// How often each beginning of `POSITIONS` tokens was drawn.
struct Draws {
    counts: HashMap<Vec<TokenId>, u64>,
    proposed: u64,
    accepted: u64,
}

/// One comparison: the tokens at a position together with their predecessors.
#[derive(Debug)]
#[allow(dead_code)] // read by its Debug form
struct Fit {
    position: usize,
    cells: usize,
    chi_squared: f64,
    threshold: f64,
}

impl Draws {
    /// Draws with speculation on, in batches, each sequence with its own seed.
    fn of(pair: &Pair, sampling: &Sampling, seed: u64) -> Draws {
        let blocks = AT_ONCE as usize * MAX_CONTEXT / BLOCK;
        let config = EngineConfig {
            block_size: BLOCK,
            target_blocks: blocks,
            draft: DraftSource::model(blocks),
            max_pass_rows: 8 * AT_ONCE as usize,
            max_context: MAX_CONTEXT,
            partitions: Vec::new(),
            target_layers: 0,
            deterministic: false,
            speculation: SpeculationBounds::default(),
            prefix_cache: false,
            learned: Learned::default(),
            tuning: Tuning {
                max_running: AT_ONCE as usize,
                max_waiting: AT_ONCE as usize,
                policy: Policy::Fixed { k: K },
                ..Tuning::default()
            },
        };
        let mut rig = Rig::new(pair, &config);
        rig.disturb(Some(seed), None);
        let mut seeds = Random(seed);
        let mut counts = HashMap::new();
        for batch in 0..SEQUENCES / AT_ONCE {
            for place in 0..AT_ONCE {
                // One more than the prefill's token, K proposals and the bonus need: all K are useful.
                let request = Request::new(SeqId(batch * AT_ONCE + place), PROMPT, K + 2);
                rig.submit(request, Sampling { seed: seeds.next(), ..sampling.clone() }.into());
            }
            rig.finish();
            for (_, stream) in rig.streams.drain() {
                *counts.entry(stream.tokens[..POSITIONS].to_vec()).or_default() += 1;
            }
        }
        let totals = rig.engine.view().totals;
        Draws { counts, proposed: totals.draft_tokens, accepted: totals.accepted_tokens }
    }

    /// Pearson's statistic at each position, over cells (token before, token here); cells that expect fewer than five
    /// draws are taken together.
    fn compare(&self, expected: &HashMap<Vec<TokenId>, f64>) -> Vec<Fit> {
        (0..POSITIONS).map(|position| self.compare_at(position, expected)).collect()
    }

    fn compare_at(&self, position: usize, expected: &HashMap<Vec<TokenId>, f64>) -> Fit {
        let cell = |tokens: &[TokenId]| tokens[position.saturating_sub(1)..=position].to_vec();
        let mut cells: HashMap<Vec<TokenId>, (f64, f64)> = HashMap::new();
        for (tokens, probability) in expected {
            cells.entry(cell(tokens)).or_default().0 += probability * SEQUENCES as f64;
        }
        for (tokens, &count) in &self.counts {
            cells.entry(cell(tokens)).or_default().1 += count as f64;
        }
        let mut rare = (0.0, 0.0);
        let mut kept = Vec::new();
        for (cell, (expected, drawn)) in cells {
            assert!(
                expected > 0.0 || drawn == 0.0,
                "{cell:?} has no probability, but was drawn {drawn} times"
            );
            if expected < 5.0 {
                rare = (rare.0 + expected, rare.1 + drawn);
            } else {
                kept.push((expected, drawn));
            }
        }
        if rare.0 >= 5.0 {
            kept.push(rare);
        }
        let chi_squared = kept.iter().map(|(expected, drawn)| (drawn - expected).powi(2) / expected).sum();
        Fit { position, cells: kept.len(), chi_squared, threshold: chi_squared_quantile(kept.len() - 1) }
    }
}

/// The chi-squared quantile at `Z`, by Wilson and Hilferty's approximation (1931).
fn chi_squared_quantile(degrees: usize) -> f64 {
    let degrees = degrees as f64;
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + Z * spread.sqrt()).powi(3)
}

/// The target's own logits after any beginning, and the plain probabilities that follow from them.
struct Oracle {
    model: Arc<Model>,
    logits: HashMap<Vec<TokenId>, Vec<f64>>,
}

impl Oracle {
    fn new(model: Arc<Model>) -> Oracle {
        Oracle { model, logits: HashMap::new() }
    }

    /// The probability of every beginning of `POSITIONS` tokens.
    fn expected(&mut self, sampling: &Sampling) -> HashMap<Vec<TokenId>, f64> {
        let mut beginnings = HashMap::from([(Vec::new(), 1.0)]);
        for _ in 0..POSITIONS {
            let mut longer = HashMap::new();
            for (output, probability) in beginnings {
                let next = probabilities(self.logits_after(&output), &output, sampling);
                for (token, p) in next.into_iter().enumerate() {
                    let mut output = output.clone();
                    output.push(token as TokenId);
                    longer.insert(output, probability * p);
                }
            }
            beginnings = longer;
        }
        beginnings
    }

    /// Logits of the tiny vocabulary after the prompt and `output`, from one fresh prefill of the target.
    fn logits_after(&mut self, output: &[TokenId]) -> &[f64] {
        if !self.logits.contains_key(output) {
            let logits = prefill(&self.model, &[&PROMPT, output].concat());
            self.logits.insert(output.to_vec(), logits);
        }
        &self.logits[output]
    }
}

fn prefill(model: &Model, tokens: &[TokenId]) -> Vec<f64> {
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).expect("a lane");
    let mut kv =
        KvCache::new(model.kv_shape(MAX_CONTEXT / BLOCK, BLOCK), model.kv_dtype()).expect("KV memory");
    let mut scratch = model.scratch(tokens.len(), 1);
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&[0, 1]] };
    let last = tokens.len() as u32 - 1;
    model.forward(&lane, &mut kv, &mut scratch, &Pass { tokens, rows, logits: &[last] });
    scratch.logits().row(0)[..TINY_VOCAB].iter().map(|&logit| f64::from(logit)).collect()
}

/// Penalties, temperature, softmax, top-p: in words of one syllable, in f64.
fn probabilities(logits: &[f64], output: &[TokenId], sampling: &Sampling) -> Vec<f64> {
    let penalized = logits.iter().enumerate().map(|(token, &logit)| {
        let token = token as TokenId;
        let in_output = output.iter().filter(|&&seen| seen == token).count() as f64;
        let repetition = f64::from(sampling.repetition_penalty);
        let seen = in_output > 0.0 || PROMPT.contains(&token);
        let logit = match (seen, logit > 0.0) {
            (false, _) => logit,
            (true, true) => logit / repetition,
            (true, false) => logit * repetition,
        };
        let presence = if in_output > 0.0 { f64::from(sampling.presence_penalty) } else { 0.0 };
        logit - presence - f64::from(sampling.frequency_penalty) * in_output
    });
    let weights: Vec<f64> = penalized.map(|logit| (logit / f64::from(sampling.temperature)).exp()).collect();
    let mut likeliest_first: Vec<usize> = (0..weights.len()).collect();
    likeliest_first.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    let sum: f64 = weights.iter().sum();
    let mut kept = vec![0.0; weights.len()];
    let mut covered = 0.0;
    for token in likeliest_first {
        // A token stays while those before it cover less than top-p.
        if covered < f64::from(sampling.top_p) * sum {
            kept[token] = weights[token];
        }
        covered += weights[token];
    }
    let sum: f64 = kept.iter().sum();
    kept.iter().map(|weight| weight / sum).collect()
}
