//! How often a draft model is right about its target's greedy text, and what kind of text that is.
#![allow(dead_code, reason = "a module of several tests and examples, each uses a part")]

use std::collections::HashSet;

use faser_kernels::Isa;
use faser_models::Model;

use crate::session::Session;

/// Figures over several texts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Share of positions at which the draft's most likely token is the target's.
    pub(crate) greedy: f64,
    /// Mean overlap of the two distributions at temperature 1 (the sum of min(p, q)): what no sampler can exceed.
    pub(crate) overlap: f64,
    /// Mean entropy of the target's distribution at temperature 1, in nats.
    pub(crate) entropy: f64,
    /// Distinct tokens of a text, as a share of its length.
    pub(crate) distinct: f64,
    /// Share of a text's end that repeats itself exactly, with a period of up to 64.
    pub(crate) looped: f64,
}

/// Lets the target write `length` tokens after each prompt, greedily, and the draft follow.
pub(crate) fn measure(
    target: &Model,
    draft: &Model,
    isa: Isa,
    prompts: &[Vec<u32>],
    length: usize,
) -> Figures {
    let mut sum = Figures::default();
    for prompt in prompts {
        let (text, target_logits) = write(target, isa, prompt, length);
        let draft_logits = follow(draft, isa, prompt, &text);
        let share = |count: usize| count as f64 / length as f64;
        let right = target_logits.iter().zip(&draft_logits).filter(|(t, d)| arg_max(t) == arg_max(d)).count();
        sum.greedy += share(right);
        for (target, draft) in target_logits.iter().zip(&draft_logits) {
            let (p, q) = (softmax(target), softmax(draft));
            sum.overlap += p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum::<f64>() / length as f64;
            sum.entropy -= p.iter().map(|p| p * (p + 1e-20).ln()).sum::<f64>() / length as f64;
        }
        sum.distinct += share(text.iter().collect::<HashSet<_>>().len());
        sum.looped += share(repeated_end(&text));
    }
    let n = prompts.len() as f64;
    Figures {
        greedy: sum.greedy / n,
        overlap: sum.overlap / n,
        entropy: sum.entropy / n,
        distinct: sum.distinct / n,
        looped: sum.looped / n,
    }
}

/// The greedy text after a prompt, and the logits each of its tokens was chosen from.
pub(crate) fn write(model: &Model, isa: Isa, prompt: &[u32], length: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
    let mut session = Session::new(model, isa, prompt.len() + length, prompt.len());
    let mut logits = session.feed_for(0, prompt, &[prompt.len() as u32 - 1]);
    let mut text = vec![arg_max(&logits[0])];
    while text.len() < length {
        let start = prompt.len() + text.len() - 1;
        logits.extend(session.feed(start, &text[text.len() - 1..]));
        text.extend(logits.last().map(|row| arg_max(row)));
    }
    (text, logits)
}

/// The logits that a model would choose each token of a given text from.
pub(crate) fn follow(model: &Model, isa: Isa, prompt: &[u32], text: &[u32]) -> Vec<Vec<f32>> {
    let all: Vec<u32> = prompt.iter().chain(&text[..text.len() - 1]).copied().collect();
    let wanted: Vec<u32> = (prompt.len() as u32 - 1..all.len() as u32).collect();
    Session::new(model, isa, all.len(), all.len()).feed_for(0, &all, &wanted)
}

pub(crate) fn arg_max(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

fn repeated_end(text: &[u32]) -> usize {
    let repeats = |period: usize| {
        let same = (0..text.len() - period).rev().take_while(|i| text[*i] == text[i + period]).count();
        if same > period { same } else { 0 }
    };
    (1..=64.min(text.len() - 1)).map(repeats).max().unwrap_or(0)
}
