//! Drafts that propose in one pass: each proposal is what the model says behind the known tokens and the mask tokens before it, in one pass of its
//! own over all of them; whatever was committed before, however passes are divided, on cores and over a fake driver.

use std::sync::Arc;

use faser_actors::{
    CpuBackend, CpuFeatures, CpuLaneSpec, CudaBackend, CudaFeatures, CudaLaneSpec, DraftRunner, DraftWork,
    Dtype, Isa, LaneBackend, LaneRequest, MASK_PATIENCE, Sampling,
};
use faser_engine::{
    Admission, BlockId, DraftChunk, DraftPlan, K_LIMIT, RoundPasses, SeqId, StopRule, TokenId,
};
use faser_kernels::cuda::{Chunk, Gpu, NOTHING, Ptr, Sampler, Share};
use faser_kernels::{KvCache, Lane, Rows};
use faser_models::cuda::{CudaFeaturePages, CudaModel, CudaPasses, CudaSizes, PassInput};
use faser_models::{Features, HeadKind, Model, Pass, Shard, WeightSource, synthetic};
use faser_topology::Partition;

use crate::cases::{BLOCK_KINDS, HEAD_SEED, HEAD_STREAMS, HEAD_TOKENS, MASK, pair_of, spec, with_head};
use crate::cuda_fake;
use crate::rig::{Pair, Random};

const SEQUENCES: usize = 3;
const BLOCK: usize = 16;
const BLOCKS_EACH: usize = 6;
/// Fewer than a plan may have: chunks are divided over passes, also between two mask tokens.
const MAX_ROWS: usize = 40;
const MAX_LOGIT_ROWS: usize = 9;

const SIZES: CudaSizes = CudaSizes {
    blocks: SEQUENCES * BLOCKS_EACH,
    max_rows: MAX_ROWS,
    max_logit_rows: MAX_LOGIT_ROWS,
    max_chunks: SEQUENCES,
    max_sequences: SEQUENCES,
    max_context: BLOCK * BLOCKS_EACH,
    max_prune_checkpoints: 1,
    deterministic: false,
};

/// The tokens that the model has behind `known` and then behind each of so many masks, with their probabilities.
fn by_hand(model: &Model, known: &[TokenId], proposals: usize) -> Vec<(TokenId, f32)> {
    let tokens: Vec<TokenId> =
        known.iter().copied().chain(std::iter::repeat_n(MASK, proposals - 1)).collect();
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let table: Vec<BlockId> = (0..BLOCKS_EACH as BlockId).collect();
    let mut kv = KvCache::new(model.kv_shape(BLOCKS_EACH, BLOCK), model.kv_dtype()).unwrap();
    let mut scratch = model.scratch(tokens.len(), proposals);
    let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&table] };
    let wanted: Vec<u32> = (known.len() as u32 - 1..tokens.len() as u32).collect();
    model.begin(&lane, &mut scratch, &tokens);
    model.layers(&lane, 0..model.config().layers.len(), &mut kv, &mut scratch, rows);
    model.finish(&lane, &mut scratch, tokens.len(), &wanted);
    let likeliest = |row: usize| {
        let logits = scratch.logits().row(row);
        let (token, &most) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        (token as TokenId, (1.0 / sum) as f32)
    };
    (0..proposals).map(likeliest).collect()
}

/// The same of a head, in a pass over all of its text, with the features that a sequence has in these pages: likewise, or how sure the head is itself.
fn head_by_hand(
    head: &Model,
    pages: &Features,
    seq: usize,
    known: &[TokenId],
    proposals: usize,
) -> Vec<(TokenId, f32)> {
    let HeadKind::Block(block) = head.config().head.as_ref().unwrap().kind else {
        unreachable!("a head that proposes a block")
    };
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let table: Vec<BlockId> = (0..BLOCKS_EACH as BlockId).collect();
    let mut kv = KvCache::new(head.kv_shape(BLOCKS_EACH, BLOCK), head.kv_dtype()).unwrap();
    let n = block.rows + known.len();
    let mut scratch = head.scratch(n, block.rows);
    let positions: Vec<u32> =
        (known.len()..known.len() + block.rows).chain(0..known.len()).map(|p| p as u32).collect();
    let mut tokens = vec![MASK; n];
    tokens[0] = known[known.len() - 1];
    scratch.begin_blocks(block.rows);
    for position in 1..known.len() {
        pages.read(&of_sequence(seq), position - 1, scratch.begins_with(block.rows + position));
    }
    let rows = Rows { positions: &positions, table_of: &vec![0; n], tables: &[&table] };
    let wanted: Vec<u32> = (block.first() as u32..).take(proposals).collect();
    head.begin(&lane, &mut scratch, &tokens);
    head.layers(&lane, 0..head.config().layers.len(), &mut kv, &mut scratch, rows);
    head.finish(&lane, &mut scratch, n, &wanted);
    let mut before = tokens[0];
    let mut drawn = Vec::new();
    for row in 0..proposals {
        let mut sure = [0.0];
        let says = head.follow(&lane, &mut scratch, &[row as u32], &[before], row == 0, &mut sure);
        let logits = scratch.logits().row(row);
        let (token, &most) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        before = token as TokenId;
        drawn.push((before, if says { sure[0] } else { (1.0 / sum) as f32 }));
    }
    drawn
}

/// The blocks of a sequence, in both pools.
fn of_sequence(seq: usize) -> Vec<BlockId> {
    let first = seq * BLOCKS_EACH;
    (first..first + BLOCKS_EACH).rev().map(|block| block as BlockId).collect()
}

/// What the draft proposes, and in which passes.
struct Proposes {
    /// Rows of its block; 0 of others.
    block_rows: usize,
    most_proposals: usize,
    /// Fewer than a plan may have.
    max_rows: usize,
}

/// Masks behind the known tokens.
const MASKS: Proposes = Proposes { block_rows: 0, most_proposals: K_LIMIT, max_rows: MAX_ROWS };

/// Plan after plan, behind texts that grow by what was proposed and by other tokens.
fn run<B: LaneBackend>(
    mut runner: DraftRunner<B>,
    proposes: &Proposes,
    by_hand: impl Fn(usize, &[TokenId], usize) -> Vec<(TokenId, f32)>,
    most: f32,
    seed: u64,
) {
    let Proposes { block_rows, most_proposals, max_rows } = *proposes;
    let random = &mut Random(seed);
    let mut texts: Vec<Vec<TokenId>> =
        (0..SEQUENCES).map(|_| (0..random.between(1, 45)).map(|_| random.token()).collect()).collect();
    let mut computed = [0; SEQUENCES];
    let (mut drafted, mut divided, mut stopped) = (0, 0, 0);
    for step in 1..=20 {
        let mut plan = DraftPlan { step, passes: RoundPasses::One, block_rows, ..DraftPlan::default() };
        let mut requests = Vec::new();
        for (seq, text) in (0..).zip(&texts).filter(|_| step == 1) {
            plan.admit.push(Admission { seq: SeqId(seq), prompt_len: text.len(), tokens: text[..].into() });
            let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
            requests.push(Arc::new(LaneRequest::from(sampling)));
        }
        for (seq, text) in texts.iter().enumerate() {
            let room = (BLOCK * BLOCKS_EACH).saturating_sub(text.len() + block_rows);
            if room < 2 || random.chance(20) {
                continue;
            }
            let (rows, blocks) = (plan.tokens.len(), plan.blocks.len());
            let features = plan.features.len();
            plan.features.extend(of_sequence(seq).into_iter().filter(|_| block_rows > 0));
            // Some of a prompt alone, or all that is known and proposals.
            let part = text.len() - computed[seq] > 1 && random.chance(20);
            let end = if part { random.between(computed[seq] + 1, text.len() - 1) } else { text.len() };
            plan.tokens.extend(&text[computed[seq]..end]);
            plan.blocks.extend(of_sequence(seq));
            let stops = random.chance(30);
            plan.chunks.push(DraftChunk {
                seq: SeqId(seq as u64),
                epoch: 0,
                start: computed[seq],
                rows: rows..plan.tokens.len(),
                steps: if part { 0 } else { random.between(1, most_proposals.min(room)) },
                stop: StopRule {
                    acceptance: std::array::from_fn(|_| 0.7),
                    survival: 1.0,
                    below: if stops { 0.5 } else { 0.0 },
                    next: 0.0,
                },
                table: blocks..plan.blocks.len(),
                features: features..plan.features.len(),
                rank: 0,
                outcome: false,
            });
        }
        let rows: usize =
            plan.chunks.iter().map(|chunk| chunk.rows.len() + chunk.steps.max(block_rows)).sum();
        divided += usize::from(rows > max_rows);
        let plan = runner.run(DraftWork { plan, requests });
        let mut proposals = plan.outcome.proposals.iter();
        for (chunk, &count) in plan.chunks.iter().zip(&plan.outcome.counts) {
            let text = &mut texts[chunk.seq.0 as usize];
            // 0.7 is not below 0.5, its square is.
            let wanted = if chunk.stop.below > 0.0 { chunk.steps.min(2) } else { chunk.steps };
            assert_eq!(count, wanted, "seed {seed}, plan {step}");
            stopped += usize::from(wanted < chunk.steps);
            let own: Vec<_> = proposals.by_ref().take(count).collect();
            if count > 0 {
                let expected = by_hand(chunk.seq.0 as usize, text, chunk.steps);
                for (place, (own, (token, confidence))) in own.iter().zip(expected).enumerate() {
                    let where_ = format!("seed {seed}, plan {step}, place {place} of {chunk:?}");
                    assert_eq!(own.token, token, "{where_}");
                    assert!((own.confidence - confidence).abs() <= most, "{where_}: {own:?} {confidence}");
                }
            }
            computed[chunk.seq.0 as usize] = chunk.start + chunk.rows.len();
            drafted += count;
            if chunk.rows.end - chunk.rows.start + chunk.start == text.len() {
                let right = random.between(0, own.len());
                text.extend(own[..right].iter().map(|drafted| drafted.token));
                text.push(random.token());
                text.truncate(BLOCK * BLOCKS_EACH);
            }
        }
    }
    assert!(drafted > 60 && divided > 0 && stopped > 0, "{drafted} {divided} {stopped}");
}

fn draft() -> Arc<Model> {
    pair_of(&spec(), Dtype::F32).draft.unwrap()
}

#[test]
fn proposals_of_one_pass_are_the_models_on_cores() {
    for seed in 1..=8 {
        let spec = CpuLaneSpec {
            partitions: vec![Partition { cores: vec![0] }],
            isa: Isa::detect(),
            blocks: SEQUENCES * BLOCKS_EACH,
            block_size: BLOCK,
            max_rows: MAX_ROWS,
            max_logit_rows: MAX_LOGIT_ROWS,
            features: None,
        };
        let backend = CpuBackend::new(draft(), &spec).unwrap();
        let by_hand = |_: usize, known: &[TokenId], proposals| by_hand(&draft(), known, proposals);
        run(DraftRunner::new(backend, MASK_PATIENCE), &MASKS, by_hand, 1e-6, seed);
    }
}

#[test]
fn proposals_of_a_block_are_the_heads() {
    for (seed, block) in (1..).zip(BLOCK_KINDS.repeat(3)) {
        let Pair { target, draft, .. } = with_head(Dtype::F32, Dtype::F32, HeadKind::Block(block));
        let head = draft.unwrap();
        let pages = Features::new(SEQUENCES * BLOCKS_EACH, BLOCK, head.config().hidden);
        features_of_any_text(&target, &head, &pages);
        let max_rows = 2 * block.rows;
        let spec = CpuLaneSpec {
            partitions: vec![Partition { cores: vec![0] }],
            isa: Isa::detect(),
            blocks: SEQUENCES * BLOCKS_EACH,
            block_size: BLOCK,
            max_rows,
            max_logit_rows: MAX_LOGIT_ROWS,
            features: Some(CpuFeatures { pages: pages.clone(), head: None }),
        };
        let backend = CpuBackend::new(head.clone(), &spec).unwrap();
        let by_hand = |seq, known: &[TokenId], proposals| head_by_hand(&head, &pages, seq, known, proposals);
        let (block_rows, most_proposals) = (block.rows, block.proposals());
        let proposes = &Proposes { block_rows, most_proposals, max_rows };
        run(DraftRunner::new(backend, MASK_PATIENCE), proposes, by_hand, 1e-5, seed);
    }
}

/// What a head reads of some text or other, in all pages.
fn features_of_any_text(target: &Model, head: &Model, pages: &Arc<Features>) {
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let mut kv = KvCache::new(target.kv_shape(SEQUENCES * BLOCKS_EACH, BLOCK), target.kv_dtype()).unwrap();
    let count = BLOCKS_EACH * BLOCK;
    let mut scratch = target.scratch(count, 1);
    head.attach(&mut scratch, pages.clone());
    for seq in 0..SEQUENCES {
        let positions: Vec<u32> = (0..count as u32).collect();
        let table = of_sequence(seq);
        let rows = Rows { positions: &positions, table_of: &vec![0; count], tables: &[&table] };
        let mut random = Random(seq as u64);
        let tokens: Vec<TokenId> = (0..count).map(|_| random.token()).collect();
        target.forward(&lane, &mut kv, &mut scratch, &Pass { tokens: &tokens, rows, logits: &[] });
    }
}

#[test]
fn proposals_of_a_block_are_the_heads_on_a_gpu() {
    cuda_fake::inside("one_pass::proposals_of_a_block_are_the_heads_on_a_gpu", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let source = WeightSource::Synthetic(spec());
        let target = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
        let target = Arc::new(target);
        for (seed, block) in (1..).zip(BLOCK_KINDS.repeat(2)) {
            let kind = HeadKind::Block(block);
            let Pair { target: on_cores, draft, .. } = with_head(Dtype::F32, Dtype::F32, kind);
            let head = draft.unwrap();
            let by_hand_pages = Features::new(SEQUENCES * BLOCKS_EACH, BLOCK, head.config().hidden);
            features_of_any_text(&on_cores, &head, &by_hand_pages);
            let shape = (HEAD_TOKENS, kind, Some(MASK));
            let on_gpu = synthetic::head_on_gpu(&target, &HEAD_STREAMS, shape, HEAD_SEED).unwrap();
            let on_gpu = Arc::new(on_gpu);
            let pages = CudaFeaturePages::new(&on_gpu, SEQUENCES * BLOCKS_EACH).unwrap();
            features_of_any_text_on_gpu(&target, &on_gpu, &pages);
            let max_rows = 2 * block.rows;
            let spec = CudaLaneSpec {
                shares: vec![Share::whole(&gpu)],
                sizes: CudaSizes {
                    max_rows,
                    // Blocks go together with their texts, or not.
                    max_chunks: if seed % 2 == 0 { 3 * SEQUENCES } else { SEQUENCES },
                    ..SIZES
                },
                drafts: true,
                features: Some(CudaFeatures { pages, head: None }),
            };
            let backend = CudaBackend::new(on_gpu, &spec).unwrap();
            let by_hand = |seq, known: &[TokenId], proposals| {
                head_by_hand(&head, &by_hand_pages, seq, known, proposals)
            };
            let (block_rows, most_proposals) = (block.rows, block.proposals());
            let proposes = &Proposes { block_rows, most_proposals, max_rows };
            run(DraftRunner::new(backend, MASK_PATIENCE), proposes, by_hand, 1e-4, seed);
        }
    });
}

/// The same as on cores, of the same texts.
fn features_of_any_text_on_gpu(target: &Arc<CudaModel>, head: &CudaModel, pages: &Arc<CudaFeaturePages>) {
    let count = BLOCKS_EACH * BLOCK;
    let sizes = CudaSizes { max_rows: count, ..SIZES };
    let mut passes = CudaPasses::new(target.clone(), &[Share::whole(target.gpu())], false, sizes).unwrap();
    passes.attach(head, pages.clone()).unwrap();
    for seq in 0..SEQUENCES {
        let mut random = Random(seq as u64);
        let tokens: Vec<TokenId> = (0..count).map(|_| random.token()).collect();
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let input = PassInput {
            tokens: &tokens,
            positions: &(0..count as u32).collect::<Vec<u32>>(),
            chunk_of: &vec![0; count],
            chunks: &[Chunk { first: 0, rows: count as u32, sampled_from: NOTHING, since: 0 }],
            tables: &[&of_sequence(seq)],
            samplers: &[Sampler::new(&sampling, Ptr::NULL, Ptr::NULL, Ptr::NULL)],
            proposals: &[&[]],
            ..PassInput::default()
        };
        passes.stage(&input).unwrap();
        passes.layers(0..target.config().layers.len()).unwrap();
        passes.finish().unwrap();
        passes.wait(&mut |_| {}).unwrap();
    }
}

#[test]
fn proposals_of_one_pass_are_the_models_on_a_gpu() {
    cuda_fake::inside("one_pass::proposals_of_one_pass_are_the_models_on_a_gpu", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let source = WeightSource::SyntheticDraft(spec());
        let model = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
        let model = Arc::new(model);
        for seed in 1..=4 {
            let spec =
                CudaLaneSpec { shares: vec![Share::whole(&gpu)], sizes: SIZES, drafts: true, features: None };
            let backend = CudaBackend::new(model.clone(), &spec).unwrap();
            let by_hand = |_: usize, known: &[TokenId], proposals| by_hand(&draft(), known, proposals);
            run(DraftRunner::new(backend, MASK_PATIENCE), &MASKS, by_hand, 1e-5, seed);
        }
    });
}
