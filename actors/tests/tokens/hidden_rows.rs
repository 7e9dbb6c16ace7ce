//! Hidden states from a verify runner to a draft thread: of each plan exactly the committed rows are named, whatever was rejected, pruned or
//! cancelled, and what is read of them is the target's residual stream over the committed text; on cores and over a fake driver.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use faser_actors::{
    CancelSource, CpuBackend, CpuLaneSpec, CudaBackend, CudaLaneSpec, Dtype, HiddenRows, Isa, LaneBackend,
    LaneRequest, MASK_PATIENCE, Sampling, VerifyRunner, VerifyWork,
};
use faser_engine::{Admission, BlockId, PartitionId, SeqId, Test, TokenId, VerifyChunk, VerifyPlan};
use faser_kernels::cuda::{Arena, CudaLane, Gpu, Share};
use faser_kernels::{KvCache, Lane, Rows};
use faser_models::cuda::{CudaHiddenStates, CudaModel, CudaSizes};
use faser_models::{HiddenStates, Model, Shard, WeightSource};
use faser_topology::Partition;

use crate::cases::{pair, spec};
use crate::cuda_fake;
use crate::rig::Random;

const SEQUENCES: usize = 3;
const BLOCK: usize = 16;
const BLOCKS_EACH: usize = 6;
/// Fewer than the prompts have: they take several passes.
const MAX_ROWS: usize = 40;
/// All rows of a plan are there when it is done.
const CAPACITY: usize = 251;
const NAMED: [usize; 2] = [0, 2];

/// A sequence, and how far the lane's KV goes with it.
struct Sequence {
    committed: Vec<TokenId>,
    computed: usize,
}

/// Who is cancelled in the plan at hand, after so many layers.
#[derive(Clone, Default)]
struct Cancelled(Rc<Cell<Option<(SeqId, usize)>>>);

impl CancelSource for Cancelled {
    fn cancelled(&mut self, _step: u64, layers: usize, out: &mut Vec<SeqId>) {
        if let Some((seq, after)) = self.0.get().filter(|(_, after)| layers >= *after) {
            out.push(seq);
            self.0.set(None);
            assert!(after > 0);
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    rows: usize,
    accepted: usize,
    rejected: usize,
    pruned: usize,
    cancelled: usize,
}

/// What the target goes on with, alone and without proposals.
fn text(model: &Arc<Model>, prompt: &[TokenId], len: usize) -> Vec<TokenId> {
    let mut runner =
        VerifyRunner::new(CpuBackend::new(model.clone(), &cpu_spec(None)).unwrap(), MASK_PATIENCE);
    let mut sequence = Sequence { committed: prompt.to_vec(), computed: 0 };
    for step in 1.. {
        let mut plan = VerifyPlan { step, ..VerifyPlan::default() };
        let mut requests = Vec::new();
        if step == 1 {
            admit(&mut plan, &mut requests, 0, prompt);
        }
        add_chunk(&mut plan, 0, &sequence, sequence.committed.len(), &[]);
        let next = runner.run(VerifyWork { plan, requests }).outcome.verdicts[0].next.unwrap();
        assert!(runner.hidden_rows().is_empty(), "there is no channel");
        sequence.computed = sequence.committed.len();
        sequence.committed.push(next);
        if sequence.committed.len() == len {
            break;
        }
    }
    sequence.committed
}

fn admit(plan: &mut VerifyPlan, requests: &mut Vec<Arc<LaneRequest>>, seq: u64, prompt: &[TokenId]) {
    plan.admit.push(Admission { seq: SeqId(seq), prompt_len: prompt.len(), tokens: prompt.into() });
    requests.push(Arc::new(LaneRequest::from(Sampling::default())));
}

/// The committed tokens from where KV ends up to `end`, and proposals.
fn add_chunk(plan: &mut VerifyPlan, seq: u64, sequence: &Sequence, end: usize, proposals: &[TokenId]) {
    let (tokens, blocks) = (plan.tokens.len(), plan.blocks.len());
    plan.tokens.extend(sequence.committed[sequence.computed..end].iter().chain(proposals));
    let first = seq as usize * BLOCKS_EACH;
    plan.blocks.extend((first..first + BLOCKS_EACH).rev().map(|block| block as BlockId));
    plan.chunks.push(VerifyChunk {
        seq: SeqId(seq),
        start: sequence.computed,
        rows: tokens..plan.tokens.len(),
        proposals: proposals.len(),
        sample: end == sequence.committed.len(),
        table: blocks..plan.blocks.len(),
        ..VerifyChunk::default()
    });
}

/// The states of all positions of a text, by hand on the CPU: begin, and the layers up to each of those named.
fn by_hand(model: &Model, tokens: &[TokenId]) -> Vec<Vec<f32>> {
    let lane = Lane::new(&Partition { cores: vec![0] }, Isa::detect()).unwrap();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let table: Vec<BlockId> = (0..BLOCKS_EACH as BlockId).collect();
    let mut states = vec![Vec::new(); tokens.len()];
    for layer in NAMED {
        let mut kv = KvCache::new(model.kv_shape(BLOCKS_EACH, BLOCK), model.kv_dtype()).unwrap();
        let mut scratch = model.scratch(tokens.len(), 1);
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&table] };
        model.begin(&lane, &mut scratch, tokens);
        model.layers(&lane, 0..layer + 1, &mut kv, &mut scratch, rows);
        states.iter_mut().enumerate().for_each(|(row, to)| to.extend(scratch.residual().row(row)));
    }
    states
}

/// Plans until the texts are at their end. `read` is the draft side, in a thread of its own: all it is told are indices. No state of it is
/// further from the CPU's than `most`, beside the largest of its row.
fn run<B: LaneBackend>(
    mut runner: VerifyRunner<B>,
    mut read: impl FnMut(Range<u64>) -> Option<Vec<f32>> + Send,
    most: f32,
    seed: u64,
    tally: &mut Tally,
) {
    let random = &mut Random(seed);
    let target = pair(Dtype::F32).target;
    let layers = target.config().layers.len();
    let cancelled = Cancelled::default();
    runner.set_cancel_source(Box::new(cancelled.clone()));
    let prompts: Vec<Vec<TokenId>> =
        (0..SEQUENCES).map(|_| (0..random.between(1, 55)).map(|_| random.token()).collect()).collect();
    let texts: Vec<Vec<TokenId>> = prompts.iter().map(|prompt| text(&target, prompt, 88)).collect();
    let states: Vec<Vec<Vec<f32>>> = texts.iter().map(|text| by_hand(&target, text)).collect();
    let mut sequences: Vec<Sequence> =
        prompts.iter().map(|prompt| Sequence { committed: prompt.clone(), computed: 0 }).collect();
    let (tell, told) = mpsc::sync_channel::<HiddenRows>(1);
    let (answer, answers) = mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || told.into_iter().for_each(|hidden| answer.send(read(hidden.rows)).unwrap()));
        for step in 1.. {
            let partition = PartitionId(random.between(0, 1));
            let mut plan = VerifyPlan { step, partition, ..VerifyPlan::default() };
            let mut requests = Vec::new();
            if step == 1 {
                (0..).zip(&prompts).for_each(|(seq, prompt)| admit(&mut plan, &mut requests, seq, prompt));
            }
            for ((seq, sequence), text) in (0u64..).zip(&sequences).zip(&texts) {
                let (computed, known) = (sequence.computed, sequence.committed.len());
                if known + 8 > text.len() || random.chance(20) {
                    continue;
                }
                let partial = known - computed > 1 && random.chance(50);
                let end = if partial { random.between(computed + 1, known - 1) } else { known };
                let mut proposals = text[known..known + random.between(0, 7)].to_vec();
                proposals.truncate(if partial { 0 } else { 7 });
                if !proposals.is_empty() && random.chance(60) {
                    let wrong = random.between(0, proposals.len() - 1);
                    proposals[wrong] = (proposals[wrong] + 1) % 256;
                }
                add_chunk(&mut plan, seq, sequence, end, &proposals);
            }
            let sampling: Vec<SeqId> =
                plan.chunks.iter().filter(|chunk| chunk.sample).map(|chunk| chunk.seq).collect();
            let cancels = !sampling.is_empty() && random.chance(30);
            cancelled.0.set(cancels.then(|| (random.one_of(&sampling), random.between(1, layers - 1))));
            if random.chance(50) {
                plan.prune_checkpoints.extend(1..layers);
                for chunk in &mut plan.chunks {
                    let begin = plan.tests.len();
                    for _ in 0..chunk.proposals {
                        let alternatives = (0..8).map(|_| random.token()).collect();
                        plan.tests.push(Test { alternatives, max_margin: random.fraction(-4.0, 4.0) });
                    }
                    chunk.tests = begin..plan.tests.len();
                }
            }
            let plan = runner.run(VerifyWork { plan, requests });
            let mut named = runner.hidden_rows().to_vec();
            for (index, (chunk, verdict)) in plan.chunks.iter().zip(&plan.outcome.verdicts).enumerate() {
                let sequence = &mut sequences[chunk.seq.0 as usize];
                let text = &texts[chunk.seq.0 as usize];
                let cancelled = chunk.sample && verdict.next.is_none();
                let committed = chunk.rows.len() - chunk.proposals + verdict.accepted;
                let end = if cancelled { chunk.start } else { chunk.start + committed };
                // Exactly those, in their order.
                let mut position = chunk.start;
                while named.first().is_some_and(|hidden| hidden.chunk == index) {
                    let hidden = named.remove(0);
                    assert_eq!((hidden.seq, hidden.start), (chunk.seq, position), "seed {seed}, plan {step}");
                    tell.send(hidden.clone()).unwrap();
                    let found = answers.recv().unwrap().expect("what is named is there");
                    let expected = &states[chunk.seq.0 as usize][position..];
                    let rows = found.chunks(expected[0].len());
                    position += rows.len();
                    for (found, expected) in rows.zip(expected) {
                        let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= most * largest;
                        assert!(found.iter().zip(expected).all(near), "seed {seed}, plan {step}: {hidden:?}");
                    }
                }
                assert_eq!(position, end, "seed {seed}, plan {step}: {chunk:?} {verdict:?}");
                tally.rows += end - chunk.start;
                tally.accepted += verdict.accepted;
                tally.rejected += chunk.proposals - verdict.accepted;
                tally.pruned += verdict.pruned;
                tally.cancelled += usize::from(cancelled);
                sequence.computed = end;
                if let Some(next) = verdict.next {
                    sequence.committed.extend(&plan.proposals(chunk)[..verdict.accepted]);
                    sequence.committed.push(next);
                    assert!(text.starts_with(&sequence.committed), "seed {seed}, plan {step}");
                }
            }
            assert!(named.is_empty());
            if sequences.iter().all(|sequence| sequence.committed.len() + 8 > 88) {
                break;
            }
        }
        drop(tell);
    });
}

fn cpu_spec(hidden: Option<Arc<HiddenStates>>) -> CpuLaneSpec {
    CpuLaneSpec {
        partitions: vec![Partition { cores: vec![0] }; 2],
        isa: Isa::detect(),
        blocks: SEQUENCES * BLOCKS_EACH,
        block_size: BLOCK,
        max_rows: MAX_ROWS,
        max_logit_rows: 2 * MAX_ROWS / 3,
        hidden,
    }
}

fn assert_all_happened(tally: &Tally) {
    println!("{tally:?}");
    let Tally { rows, accepted, rejected, pruned, cancelled, .. } = *tally;
    assert!(rows > 500 && accepted > 100 && rejected > 50 && pruned > 20 && cancelled > 5, "{tally:?}");
}

#[test]
fn committed_rows_are_read_on_cores() {
    let mut tally = Tally::default();
    for seed in 1..=6 {
        let target = pair(Dtype::F32).target;
        let hidden = HiddenStates::new(target.config(), &NAMED, CAPACITY);
        let backend = CpuBackend::new(target, &cpu_spec(Some(hidden.clone()))).unwrap();
        let read = move |rows: Range<u64>| {
            let mut states = vec![f32::NAN; (rows.end - rows.start) as usize * hidden.layers().width()];
            hidden.read(rows, &mut states).then_some(states)
        };
        run(VerifyRunner::new(backend, MASK_PATIENCE), read, 0.0, seed, &mut tally);
    }
    assert_all_happened(&tally);
}

#[test]
fn committed_rows_are_read_on_a_gpu() {
    cuda_fake::inside("hidden_rows::committed_rows_are_read_on_a_gpu", &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        let source = WeightSource::Synthetic(spec());
        let target = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
        let target = Arc::new(target);
        let split = Share::split(&gpu, 16).unwrap();
        let mut tally = Tally::default();
        for seed in 1..=6 {
            let hidden = CudaHiddenStates::new(&gpu, target.config(), &NAMED, CAPACITY).unwrap();
            let spec = CudaLaneSpec {
                shares: vec![Share::whole(&gpu), split.verify.clone()],
                sizes: CudaSizes {
                    blocks: SEQUENCES * BLOCKS_EACH,
                    max_rows: MAX_ROWS,
                    max_logit_rows: 2 * MAX_ROWS / 3,
                    max_chunks: SEQUENCES,
                    max_context: BLOCK * BLOCKS_EACH,
                    max_prune_checkpoints: 2,
                },
                drafts: false,
                hidden: Some(hidden.clone()),
            };
            let backend = CudaBackend::new(target.clone(), &spec).unwrap();
            let mut lane = CudaLane::new(std::slice::from_ref(&split.draft), true).unwrap();
            let width = hidden.layers().width();
            let mut arena = Arena::new(&gpu, CAPACITY * width * 4 + 64, "states that were read").unwrap();
            let read = move |rows: Range<u64>| {
                lane.bind().unwrap();
                arena.clear();
                let (to, place) = arena.reserve::<f32>((rows.end - rows.start) as usize * width);
                let asked = hidden.read(&mut lane, rows, to).unwrap();
                lane.fetch(&mut arena).unwrap();
                lane.wait(&mut || {}).unwrap();
                asked.then(|| arena.get::<f32>(place).to_vec())
            };
            run(VerifyRunner::new(backend, MASK_PATIENCE), read, 1e-5, seed, &mut tally);
        }
        assert_all_happened(&tally);
    });
}
