//! The draft lane on a GPU against the CPU's, over a fake driver: the same plans, and the same proposals, stop by stop, though the host of
//! the GPU waits once for each plan.

use std::sync::Arc;

use faser_actors::{
    CpuBackend, CpuLaneSpec, CudaBackend, CudaLaneSpec, DraftRunner, DraftWork, Dtype, Isa, LaneRequest,
    MASK_PATIENCE,
};
use faser_engine::{
    Admission, BlockId, DraftChunk, DraftPlan, Drafted, PartitionId, SeqId, StepPrice, StopRule, TokenId,
};
use faser_kernels::cuda::{Gpu, Share};
use faser_models::cuda::{CudaModel, CudaSizes};
use faser_models::{Shard, WeightSource};
use faser_topology::Partition;

use crate::cases::{pair, spec};
use crate::cuda_fake;
use crate::rig::{PARTITIONS, Random};

const SEQUENCES: usize = 4;
/// A price of a step that no plan pays.
const TOO_DEAR: f32 = 1000.0;
const BLOCK: usize = 16;
const BLOCKS_EACH: usize = 6;
const CONTEXT: usize = BLOCK * BLOCKS_EACH;
const PLANS: usize = 200;
/// Fewer rows than all prompts together: they take several passes.
const MAX_ROWS: usize = 40;

/// A sequence, and how far the lane's KV goes with it.
struct Sequence {
    history: Vec<TokenId>,
    computed: usize,
}

/// Both lanes, and the GPU of the second.
struct Lanes {
    cpu: DraftRunner<CpuBackend>,
    gpu: DraftRunner<CudaBackend>,
    device: Arc<Gpu>,
}

fn lanes() -> Lanes {
    let cpu = CpuLaneSpec {
        partitions: vec![Partition { cores: vec![0] }; PARTITIONS],
        isa: Isa::detect(),
        blocks: SEQUENCES * BLOCKS_EACH,
        block_size: BLOCK,
        max_rows: MAX_ROWS,
        max_logit_rows: SEQUENCES,
        features: None,
    };
    let gpu = Gpu::open(0, None).expect("the fake GPU opens");
    let source = WeightSource::SyntheticDraft(spec());
    let draft = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).expect("memory");
    let splits = [16, 64].map(|sms| Share::split(&gpu, sms).expect("a split").draft);
    let spec = CudaLaneSpec {
        features: None,
        drafts: true,
        shares: [Share::whole(&gpu)].into_iter().chain(splits).collect(),
        sizes: CudaSizes {
            blocks: cpu.blocks,
            max_rows: MAX_ROWS,
            max_logit_rows: SEQUENCES,
            max_chunks: SEQUENCES,
            max_sequences: SEQUENCES,
            max_context: CONTEXT,
            max_prune_checkpoints: 0,
            deterministic: false,
        },
    };
    let draft_of_cpu = pair(Dtype::F32).draft.expect("a draft model");
    Lanes {
        cpu: DraftRunner::new(CpuBackend::new(draft_of_cpu, &cpu).expect("a draft lane"), MASK_PATIENCE),
        gpu: DraftRunner::new(CudaBackend::new(Arc::new(draft), &spec).expect("a draft lane"), MASK_PATIENCE),
        device: gpu,
    }
}

/// A plan over all sequences: what they have to catch up with, and some steps; or many of them, with a rule that stops after the first.
fn plan(random: &mut Random, step: u64, sequences: &[Sequence], stops: bool) -> DraftPlan {
    let mut plan = DraftPlan {
        step,
        partition: PartitionId(random.between(0, PARTITIONS - 1)),
        alternatives: random.chance(50),
        candidates: random.chance(50),
        // All that go on gain one each, so that sums are exact: some plans end while several would go on, and some at once.
        step_price: StepPrice { all: [0.0, 0.0, 2.0, TOO_DEAR][step as usize % 4], each: -1.0 },
        ..DraftPlan::default()
    };
    for (number, sequence) in (0u64..).zip(sequences) {
        let (tokens, blocks) = (plan.tokens.len(), plan.blocks.len());
        plan.tokens.extend(&sequence.history[sequence.computed..]);
        let first = number as usize * BLOCKS_EACH;
        plan.blocks.extend((first..first + BLOCKS_EACH).rev().map(|block| block as BlockId));
        let mut stop = StopRule { survival: 1.0, ..StopRule::default() };
        stop.acceptance.iter_mut().for_each(|p| *p = random.fraction(0.3, 1.0));
        stop.below = if stops { 2.0 } else { random.one_of(&[0.0, 0.1, 0.4]) };
        let steps = if stops { 16 } else { random.one_of(&[0, 1, 3, 8, 16]) };
        plan.chunks.push(DraftChunk {
            seq: SeqId(number),
            epoch: 0,
            start: sequence.computed,
            rows: tokens..plan.tokens.len(),
            steps: steps.min(CONTEXT - sequence.history.len()),
            stop,
            features: 0..0,
            rank: 0,
            outcome: false,
            table: blocks..plan.blocks.len(),
        });
    }
    plan
}

#[derive(Debug, Default)]
struct Tally {
    plans: usize,
    proposals: usize,
    stopped: usize,
    candidates: usize,
}

/// Plans until the first sequence is full or there were enough, each carried out by both.
fn run(lanes: &mut Lanes, seed: u64, stops: bool, tally: &mut Tally) {
    let random = &mut Random(seed);
    let mut sequences = Vec::new();
    let mut admit = Vec::new();
    // Whose candidates are those of the tokens that are left, where the CPU cuts anew.
    let mut cut = Vec::new();
    let mut requests: Vec<Arc<LaneRequest>> = Vec::new();
    for number in 0..SEQUENCES as u64 {
        let history: Vec<TokenId> = (0..random.between(1, 20)).map(|_| random.token()).collect();
        let prompt_len = random.between(1, history.len());
        admit.push(Admission { seq: SeqId(number), prompt_len, tokens: history.clone().into() });
        let sampling = random.sampling();
        cut.push(sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0);
        requests.push(Arc::new(sampling.into()));
        sequences.push(Sequence { history, computed: 0 });
    }
    let free = lanes.device.memory().expect("a GPU").0;
    let retire: Vec<SeqId> = (0..SEQUENCES as u64).map(SeqId).collect();
    for step in 1.. {
        let mut plan = plan(random, step, &sequences, stops);
        plan.retire.extend(if step == 1 { retire.as_slice() } else { &[] });
        plan.admit.append(&mut admit);
        let work = DraftWork { plan, requests: std::mem::take(&mut requests) };
        let [cpu, gpu] = [lanes.cpu.run(work.clone()), lanes.gpu.run(work)];
        // Penalties and biases come and go, and nothing is allocated for them.
        assert_eq!(lanes.device.memory().expect("a GPU").0, free);
        assert_eq!(gpu.outcome.counts, cpu.outcome.counts, "seed {seed}, plan {step}");
        let dear = cpu.step_price.all == TOO_DEAR;
        assert!(!dear || cpu.outcome.counts.iter().all(|count| *count < 2), "a step too many: {cpu:?}");
        let same = |(gpu, cpu): (&Drafted, &Drafted)| {
            (gpu.token, &gpu.alternatives) == (cpu.token, &cpu.alternatives)
                && (gpu.confidence - cpu.confidence).abs() < 1e-4
        };
        let mut found = gpu.outcome.proposals.iter().zip(&cpu.outcome.proposals);
        for (cut, &count) in cut.iter().zip(&cpu.outcome.counts) {
            for (gpu, cpu) in found.by_ref().take(count).filter(|_| !cut) {
                assert_eq!(gpu.candidates, cpu.candidates, "seed {seed}, plan {step}");
                tally.candidates += gpu.candidates.len();
            }
        }
        let mut proposals = cpu.outcome.proposals.iter();
        assert!(gpu.outcome.proposals.iter().zip(proposals.clone()).all(same), "{gpu:?}\n{cpu:?}");
        assert_eq!(gpu.outcome.proposals.len(), proposals.len());
        tally.plans += 1;
        tally.proposals += proposals.len();
        for ((sequence, chunk), &count) in sequences.iter_mut().zip(&cpu.chunks).zip(&cpu.outcome.counts) {
            tally.stopped += usize::from(count < chunk.steps);
            let drafted: Vec<TokenId> = proposals.by_ref().take(count).map(|drafted| drafted.token).collect();
            // Some of them stand; what the lane has computed of those it need not again.
            let stand = random.between(0, count);
            sequence.computed = sequence.history.len() + stand.min(count.saturating_sub(1));
            sequence.history.extend(&drafted[..stand]);
            sequence.history.push(random.token());
        }
        if sequences.iter().any(|sequence| sequence.history.len() >= CONTEXT - 1) || tally.plans == PLANS {
            return;
        }
    }
}

/// The number behind these words in a report.
pub(crate) fn reported(report: &str, words: &str) -> usize {
    let line = report.lines().find_map(|line| line.strip_prefix(words));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or_else(|| panic!("no {words:?} in:\n{report}"))
}

#[test]
fn drafts_are_the_cpus_and_the_host_waits_once_for_each_plan() {
    let name = "cuda_drafts::drafts_are_the_cpus_and_the_host_waits_once_for_each_plan";
    let report = cuda_fake::inside(name, &[], || {
        let mut lanes = lanes();
        let mut tally = Tally::default();
        for seed in 1.. {
            run(&mut lanes, seed, false, &mut tally);
            if tally.plans == PLANS {
                break;
            }
        }
        println!("{tally:?}");
        assert!(
            tally.proposals > 6 * PLANS && tally.stopped > PLANS / 4 && tally.candidates > PLANS,
            "{tally:?}"
        );
    });
    let Some(report) = report else { return };
    // Plans that prefill alone fetch nothing.
    let fetches = reported(&report, "fetches");
    assert!(fetches <= PLANS && fetches > PLANS / 2, "{report}");
    // Steps come again and again, and nearly all by graphs.
    let (captured, launched) = (reported(&report, "graphs captured"), reported(&report, "graphs launched"));
    assert!(launched > 4 * PLANS && captured < launched / 10, "{report}");
    assert_eq!(reported(&report, "graphs left"), 0);
}

#[test]
fn where_all_stop_one_step_is_asked_for_in_vain() {
    let name = "cuda_drafts::where_all_stop_one_step_is_asked_for_in_vain";
    let report = cuda_fake::inside(name, &[], || {
        let mut lanes = lanes();
        let mut tally = Tally { plans: PLANS - 10, ..Tally::default() };
        run(&mut lanes, 3, true, &mut tally);
        assert_eq!((tally.plans, tally.proposals), (PLANS, 10 * SEQUENCES));
    });
    let Some(report) = report else { return };
    // One with the rows to catch up with, one in vain; the prompts of the first plan take one pass more.
    assert_eq!(reported(&report, "runs of draft_step"), 10 * 2 + 1);
}
