//! Heads on hidden states on a GPU, over a fake driver, against the logits of the reference in Python (`tests/golden/heads`): features fused by
//! the target's passes, read by the head's, and steps that follow one another on the device.

use std::sync::Arc;

use faser_kernels::cuda::{Chunk, DraftState, Gpu, NOTHING, Ptr, Sampler, Share};
use faser_kernels::{BlockId, Dtype, Sampling};
use faser_models::cuda::{
    Beside, CudaFeaturePages, CudaModel, CudaPasses, CudaSizes, DraftChunkInput, DraftInput, DrawInput,
    PassInput,
};
use faser_models::rounding::Distance;
use faser_models::{BlockSpec, ModelConfig, Shard, WeightSource, fitted};

use crate::cuda_fake;
use crate::heads::{Golden, Round, STEPWISE, assert_logits, error, read};
use crate::session::golden;

/// Heads that propose a block.
const BLOCKS_OF_HEADS: [&str; 6] =
    ["dflash", "dflash-causal", "dflash-speculators", "dspark-vanilla", "dspark-gated", "dspark-rnn"];
const BLOCKS: usize = 24;
const SIZES: CudaSizes = CudaSizes {
    blocks: BLOCKS,
    max_rows: 64,
    max_logit_rows: 8,
    max_chunks: 4,
    max_sequences: 4,
    max_context: 48,
    max_prune_checkpoints: 0,
    deterministic: false,
};

/// The lanes of a target and its head.
struct Lanes {
    verify: CudaPasses,
    draft: CudaPasses,
    /// How sure the head is of the proposals of its latest block.
    sure: Vec<f32>,
}

fn greedy() -> Sampler {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    Sampler::new(&sampling, Ptr::NULL, Ptr::NULL, Ptr::NULL)
}

/// Rows of one sequence, the last of which gets a token where one is wanted.
struct Rows {
    positions: Vec<u32>,
    chunk_of: Vec<u32>,
    chunks: [Chunk; 1],
}

fn rows(count: usize, start: usize, drawn: bool) -> Rows {
    let sampled_from = if drawn { count as u32 - 1 } else { NOTHING };
    Rows {
        positions: (start as u32..).take(count).collect(),
        chunk_of: vec![0; count],
        chunks: [Chunk { first: 0, rows: count as u32, sampled_from, since: 0 }],
    }
}

impl Lanes {
    fn new(case: &str, dtype: Dtype) -> Lanes {
        let gpu = Gpu::open(0, None).unwrap();
        let dir = golden("heads");
        let target = WeightSource::folder(&dir.join("target")).unwrap();
        let target = CudaModel::load(&gpu, &target, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
        let dir = dir.join(case);
        let config = fitted(target.config(), ModelConfig::load(&dir).unwrap(), None).unwrap();
        let source = WeightSource::Folder(dir, Box::new(config.clone()));
        let before = gpu.memory().unwrap().0;
        let head = CudaModel::load_draft(&source, Shard::WHOLE, &target, dtype, &mut |_| {}).unwrap();
        let planned = CudaModel::weight_bytes(&config, None, Shard::WHOLE, dtype).unwrap();
        // The map of tokens is beside them, and counted with the lane.
        let taken = (before - gpu.memory().unwrap().0) as u64;
        assert!(
            (planned..planned + 4 * config.vocab as u64 + 1).contains(&taken),
            "{case}: {planned} {taken}"
        );
        let (target, head) = (Arc::new(target), Arc::new(head));
        let pages = CudaFeaturePages::new(&head, BLOCKS).unwrap();
        let shares = [Share::whole(&gpu)];
        let mut verify = CudaPasses::new(target, &shares, false, SIZES).unwrap();
        verify.attach(&head, pages.clone()).unwrap();
        let mut draft = CudaPasses::new(head, &shares, true, SIZES).unwrap();
        draft.read_features(pages);
        Lanes { verify, draft, sure: Vec::new() }
    }

    /// The target's pass over tokens at these positions. Rows of another sequence before them leave after so many layers.
    fn verify(&mut self, tokens: &[u32], start: usize, table: &[BlockId], leaves_at: Option<usize>) {
        let Rows { mut positions, mut chunk_of, chunks } = rows(tokens.len(), start, false);
        let (mut tokens, mut chunks, mut tables) = (tokens.to_vec(), chunks.to_vec(), vec![table]);
        if leaves_at.is_some() {
            let first = Chunk { first: 0, rows: 3, sampled_from: NOTHING, since: 0 };
            chunks = vec![first, Chunk { first: 3, ..chunks[0] }];
            tokens.splice(0..0, [1, 2, 3]);
            positions.splice(0..0, 0..3);
            chunk_of.iter_mut().for_each(|chunk| *chunk = 1);
            chunk_of.splice(0..0, [0; 3]);
            tables.insert(0, &[20]);
        }
        self.verify
            .stage(&PassInput {
                tokens: &tokens,
                positions: &positions,
                chunk_of: &chunk_of,
                chunks: &chunks,
                tables: &tables,
                samplers: &vec![greedy(); chunks.len()],
                proposals: &vec![&[][..]; chunks.len()],
                ..PassInput::default()
            })
            .unwrap();
        let layers = self.verify.model().config().layers.len();
        let at = leaves_at.unwrap_or(0);
        self.verify.layers(0..at).unwrap();
        if leaves_at.is_some() {
            self.verify.cancel(0);
            self.verify.compact().unwrap();
        }
        self.verify.layers(at..layers).unwrap();
        self.verify.finish().unwrap();
        self.verify.wait(&mut |_| {}).unwrap();
    }

    /// The logits of `k` proposals behind the first `known` of `text`, of which the head has computed `computed`; and the proposals.
    fn round(
        &mut self,
        text: &[u32],
        (computed, known): (usize, usize),
        k: usize,
        (target_table, head_table): (&[BlockId], &[BlockId]),
    ) -> (Vec<Vec<f32>>, Vec<u32>) {
        let draft = &mut self.draft;
        if let Some(block) = draft.model().config().block() {
            let text = &text[..known];
            let (logits, tokens, sure) =
                blocked(draft, &block, text, (computed, k), (target_table, head_table));
            self.sure = sure;
            return (logits, tokens);
        }
        if let Some(mask) = draft.model().config().mask_token {
            return masked(draft, &text[..known], (computed, k), mask, (target_table, head_table));
        }
        let state = DraftState {
            base: known as u32,
            steps: k as u32,
            count: 0,
            alive: 1,
            survival: 1.0,
            below: 0.0,
            next: 0.0,
            each: 0.0,
            step_cost: 0.0,
            acceptance: [1.0; 16],
        };
        let chunks = [DraftChunkInput { state, table: head_table, sampler: greedy() }];
        let input =
            DraftInput { chunks: &chunks, adjusts: false, restricts: false, beside: Beside::default() };
        draft.begin_draft(&input).unwrap();
        let tokens = &text[computed..known];
        let Rows { positions, chunk_of, chunks } = rows(tokens.len(), computed, true);
        draft
            .stage(&PassInput {
                tokens,
                positions: &positions,
                chunk_of: &chunk_of,
                chunks: &chunks,
                tables: &[head_table],
                samplers: &[greedy()],
                proposals: &[&[]],
                of_plan: &[0],
                features: &[target_table],
                ..PassInput::default()
            })
            .unwrap();
        draft.layers(0..draft.model().config().layers.len()).unwrap();
        draft.finish().unwrap();
        let mut logits = vec![draft.read_logits(1).unwrap()];
        let drawn = draft.draw(&DrawInput::default()).unwrap();
        draft.record(Some(&drawn), true).unwrap();
        for _ in 1..k {
            draft.step(1).unwrap();
            logits.push(draft.read_logits(1).unwrap());
        }
        draft.fetch_draft().unwrap();
        draft.wait(&mut |_| {}).unwrap();
        let tokens = draft.drafted(0).tokens.to_vec();
        (logits, tokens)
    }
}

/// The same of a head that proposes in one pass.
fn masked(
    draft: &mut CudaPasses,
    text: &[u32],
    (computed, k): (usize, usize),
    mask: u32,
    (target_table, head_table): (&[BlockId], &[BlockId]),
) -> (Vec<Vec<f32>>, Vec<u32>) {
    let tokens = [&text[computed..], &vec![mask; k - 1]].concat();
    let Rows { positions, chunk_of, mut chunks } = rows(tokens.len(), computed, true);
    chunks[0].sampled_from = (tokens.len() - k) as u32;
    let masked: Vec<u32> = (computed..).take(tokens.len()).map(|at| u32::from(at >= text.len())).collect();
    let input = PassInput {
        tokens: &tokens,
        positions: &positions,
        chunk_of: &chunk_of,
        chunks: &chunks,
        tables: &[head_table],
        samplers: &[greedy()],
        proposals: &[&vec![mask; k - 1]],
        of_plan: &[0],
        features: &[target_table],
        masked: &masked,
        ..PassInput::default()
    };
    let (logits, tokens, _) = drawn_at_once(draft, &input, k);
    (logits, tokens)
}

/// The same of a head that proposes a block: the rows that propose, those that do not, and the text that they stand behind.
fn blocked(
    draft: &mut CudaPasses,
    block: &BlockSpec,
    text: &[u32],
    (computed, k): (usize, usize),
    (target_table, head_table): (&[BlockId], &[BlockId]),
) -> (Vec<Vec<f32>>, Vec<u32>, Vec<f32>) {
    let (mask, known) = (draft.model().config().mask_token.unwrap(), text.len());
    let drawn = block.first() + k;
    let mut tokens = vec![mask; block.rows];
    tokens[0] = text[known - 1];
    tokens.extend(&text[computed..]);
    let positions: Vec<u32> =
        (known..known + block.rows).chain(computed..known).map(|position| position as u32).collect();
    let pieces = [(drawn, block.first() as u32), (block.rows - drawn, NOTHING), (known - computed, NOTHING)];
    let (mut chunk_of, mut chunks) = (Vec::new(), Vec::new());
    for (rows, sampled_from) in pieces.into_iter().filter(|(rows, _)| *rows > 0) {
        let first = chunk_of.len() as u32;
        chunk_of.extend(vec![chunks.len() as u32; rows]);
        chunks.push(Chunk { first, rows: rows as u32, sampled_from, since: 0 });
    }
    let mut features = vec![&[][..]; chunks.len()];
    *features.last_mut().unwrap() = target_table;
    let mut proposals = vec![&[][..]; chunks.len()];
    let masks = vec![mask; k - 1];
    proposals[0] = &masks;
    let input = PassInput {
        tokens: &tokens,
        positions: &positions,
        chunk_of: &chunk_of,
        chunks: &chunks,
        tables: &vec![head_table; chunks.len()],
        samplers: &vec![greedy(); chunks.len()],
        proposals: &proposals,
        of_plan: &vec![0; chunks.len()],
        features: &features,
        of_blocks: block.rows,
        ..PassInput::default()
    };
    drawn_at_once(draft, &input, k)
}

/// The logits of `k` proposals that come from one pass, the proposals, and the confidence in each.
fn drawn_at_once(
    draft: &mut CudaPasses,
    input: &PassInput<'_>,
    k: usize,
) -> (Vec<Vec<f32>>, Vec<u32>, Vec<f32>) {
    draft.stage(input).unwrap();
    draft.layers(0..draft.model().config().layers.len()).unwrap();
    draft.finish().unwrap();
    let drawn = draft.draw(&DrawInput::default()).unwrap();
    let vocab = draft.model().config().vocab;
    let logits = draft.read_logits(k).unwrap().chunks(vocab).map(<[f32]>::to_vec).collect();
    draft.fetch().unwrap();
    draft.wait(&mut |_| {}).unwrap();
    (logits, draft.tokens(&drawn).to_vec(), draft.confidence(&drawn).to_vec())
}

#[test]
fn heads_propose_what_the_reference_does_on_a_gpu() {
    let name = "cuda_heads::heads_propose_what_the_reference_does_on_a_gpu";
    let report = cuda_fake::inside(name, &[], || {
        for case in STEPWISE.into_iter().chain(["p-eagle"]).chain(BLOCKS_OF_HEADS) {
            let Golden { text, prompt, rounds, .. } = read(case);
            let mut lanes = Lanes::new(case, Dtype::F32);
            let (target_table, head_table) = ([9, 7, 1], [2, 4, 8]);
            lanes.verify(&text[..5], 0, &target_table, None);
            lanes.verify(&text[5..prompt], 5, &target_table, None);
            let (mut computed, mut verified) = (0, prompt);
            for (index, Round { known, proposals, logits, sure, .. }) in rounds.iter().enumerate() {
                // Beside it a sequence that somebody cancels, before or behind a layer whose stream is read.
                let leaves_at = index.checked_sub(1).map(|layer| 1 + layer % 3);
                let behind = [&text[verified..known - 1], &[1, 2, 3]].concat();
                lanes.verify(&behind, verified, &target_table, leaves_at);
                verified = known - 1;
                let tables = (&target_table[..], &head_table[..]);
                let (found, drafted) = lanes.round(&text, (computed, *known), proposals.len(), tables);
                for (step, (found, expected)) in found.iter().zip(logits).enumerate() {
                    let what = format!("{case}, {known} known, step {step}");
                    assert_logits(found, expected, proposals[step], &what);
                }
                assert_eq!(drafted, *proposals, "{case}, {known} known");
                // Others have the probability of what is drawn.
                assert!(sure.is_empty() || lanes.sure.len() == sure.len(), "{case}");
                for (found, expected) in lanes.sure.iter().zip(sure) {
                    assert!((found - expected).abs() < 1e-4, "{case}, {known} known: {found} {expected}");
                }
                computed = *known;
            }
            // Both have the first 21 tokens of it: a block, and a part of the second that is copied.
            let Round { known, proposals, logits, .. } = rounds.last().unwrap();
            let (other_target, other_head) = ([9, 14, 3], [2, 19, 6]);
            lanes.verify.copy_block(7, 14).unwrap();
            lanes.draft.copy_block(4, 19).unwrap();
            lanes.verify(&text[21..known - 1], 21, &other_target, None);
            let tables = (&other_target[..], &other_head[..]);
            for computed in [21, 16, 0] {
                let (found, drafted) = lanes.round(&text, (computed, *known), proposals.len(), tables);
                assert_eq!(drafted, *proposals, "{case}, {computed} found");
                let own = |all: &[f32]| all.iter().copied().filter(|x| x.is_finite()).collect::<Vec<f32>>();
                assert!(error(&own(&found[0]), &logits[0]) < 1e-4, "{case}, {computed} found");
            }
        }
    });
    let Some(report) = report else { return };
    assert!(report.contains("graphs left 0\n") && !report.contains("graphs launched 0\n"), "{report}");
}

#[test]
fn heads_in_bf16_are_within_rounding() {
    cuda_fake::inside("cuda_heads::heads_in_bf16_are_within_rounding", &[], || {
        for case in STEPWISE.into_iter().chain(BLOCKS_OF_HEADS) {
            let Golden { text, rounds, .. } = read(case);
            let mut lanes = Lanes::new(case, Dtype::Bf16);
            let Round { known, logits, .. } = rounds.last().unwrap();
            // A block reaches beyond the text.
            lanes.verify(&text[..known - 1], 0, &[9, 7, 1], None);
            let (found, _) = lanes.round(&text, (0, *known), 1, (&[9, 7, 1], &[2, 4, 8]));
            let own: Vec<f32> = found[0].iter().copied().filter(|logit| logit.is_finite()).collect();
            let gpu = Distance::between(&[&own], &[&logits[0]]);
            // What its row begins with has the error of the target's layers, and pages are rounded once more: no more than twice that of its own
            // and the target's layers one behind the other.
            let layers =
                lanes.verify.model().config().layers.len() + lanes.draft.model().config().layers.len();
            let most = Distance::of_rounding(Dtype::Bf16, 4 * layers);
            println!("{case}: {gpu}, at most {most}");
            assert!(gpu.is_within(most), "{case}: {gpu}, at most {most}");
        }
    });
}
