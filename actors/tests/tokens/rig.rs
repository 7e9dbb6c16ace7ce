//! Engine and runners without actors, threads or clock: plans are carried out one by one, whenever the test says so.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use faser_actors::{
    CancelSource, CpuBackend, CpuFeatures, CpuLaneSpec, CudaFeatures, CudaLaneSpec, DraftWork, Isa,
    LaneRequest, MASK_PATIENCE, PassLimits, VerifyWork,
};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::{
    Admission, CancelledChunk, Command, DraftPlan, DraftSource, Engine, EngineConfig, Event, FinishReason,
    LaneKind, PartitionId, Policy, Request, SeqId, Test, TokenId, Usage, VerifyPlan,
};
use faser_kernels::cuda::{Gpu, Share, SharePair};
use faser_models::cuda::{CudaFeaturePages, CudaModel};
use faser_models::{Features, Model, Shard};
use faser_topology::Partition;

/// Partitions of the rig's device, all alike.
pub(crate) const PARTITIONS: usize = 3;

/// A target, and its draft if anyone speculates.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) target: Arc<Model>,
    pub(crate) draft: Option<Arc<Model>>,
    /// Where it runs, if not on the CPU.
    pub(crate) cuda: Option<OnGpu>,
    /// Its shards, if it is split over groups.
    pub(crate) shards: Option<crate::rank_group::Shards>,
}

impl Pair {
    /// Ranks that each have the draft whole.
    pub(crate) fn draft_copies(&self) -> usize {
        let on_gpus = self.cuda.iter().flat_map(|gpu| std::iter::once(gpu).chain(&gpu.others));
        let on_gpus = on_gpus.filter_map(|rank| Some(rank.draft.as_ref()?.shard()));
        let on_cpu = self.shards.iter().flat_map(|shards| shards.draft.iter().map(|draft| draft.shard()));
        let shards: Vec<Shard> = on_gpus.chain(on_cpu).collect();
        if shards.iter().all(|shard| *shard == Shard::WHOLE) { shards.len().max(1) } else { 1 }
    }
}

/// The pair on a GPU, and the shares of its partitions; or a rank's shards of it.
#[derive(Clone)]
pub(crate) struct OnGpu {
    pub(crate) target: Arc<CudaModel>,
    pub(crate) draft: Option<Arc<CudaModel>>,
    pub(crate) shares: Vec<SharePair>,
    /// The ranks after this one, which is the first.
    pub(crate) others: Vec<OnGpu>,
}

/// The whole GPU, and two splits.
pub(crate) fn shares(gpu: &Arc<Gpu>) -> Vec<SharePair> {
    let whole = SharePair { draft: Share::whole(gpu), verify: Share::whole(gpu) };
    let splits = [16, 64].map(|sms| Share::split(gpu, sms).expect("a split"));
    let shares: Vec<SharePair> = [whole].into_iter().chain(splits).collect();
    assert_eq!(shares.len(), PARTITIONS);
    shares
}

/// What carries out draft plans.
type Draft = Box<dyn FnMut(DraftWork) -> DraftPlan>;
/// What carries out verify plans.
type Verify = Box<dyn FnMut(VerifyWork) -> VerifyPlan>;

/// What a client has seen of its request.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) ended: Option<(FinishReason, Usage)>,
}

/// A plan on its way to a lane.
pub(crate) enum Plan {
    Draft(DraftWork),
    Verify(VerifyWork),
}

/// What plans take.
#[derive(Clone, Copy)]
pub(crate) enum Times {
    /// Anything.
    Any,
    /// What the cost tables of [`have_it_prepare`] say.
    Told,
}

const DRAFT_US: u64 = 100;
const VERIFY_US: u64 = 3000;

impl Times {
    /// What the next plan takes.
    pub(crate) fn of(self, plan: Option<&Plan>, random: &mut Random) -> Duration {
        Duration::from_micros(match (self, plan) {
            (Times::Told, Some(Plan::Draft(work))) => {
                DRAFT_US * work.plan.chunks.iter().map(|c| c.steps).max().unwrap_or(1).max(1) as u64
            }
            (Times::Told, _) => VERIFY_US,
            (Times::Any, _) => random.below(3000),
        })
    }
}

/// Makes it a config of a draft model, step by step or in one pass, for whose verdicts it pays to prepare.
pub(crate) fn have_it_prepare(config: &mut EngineConfig) {
    let cost = |us| PassCost::linear(us, 1, AttentionCost::default());
    let costs = PartitionCosts { draft: cost(DRAFT_US), verify: cost(VERIFY_US) };
    config.partitions = vec![costs; PARTITIONS];
    if !config.draft.needs().goes_on() {
        config.draft = DraftSource::model(config.draft.needs().blocks);
    }
    config.tuning.policy = Policy::Faser;
    config.tuning.mechanisms.overlap = true;
    config.max_pass_rows = config.max_pass_rows.max(16);
}

/// What is cancelled in the middle of a plan: what the engine has said, and what clients cancel just then.
#[derive(Default)]
struct Cancelled {
    by_engine: Vec<CancelledChunk>,
    /// Where coins come from, if clients are to cancel in the middle of plans.
    random: Option<Random>,
    /// Sequences of the plan that is being carried out.
    of_plan: Vec<SeqId>,
    by_clients: Vec<SeqId>,
}

/// Places of the chunks of these sequences.
fn places<'a>(of_plan: &'a [SeqId], seqs: &'a [SeqId]) -> impl Iterator<Item = usize> + 'a {
    of_plan.iter().enumerate().filter(|(_, seq)| seqs.contains(seq)).map(|(place, _)| place)
}

struct LaneCancelled {
    lane: LaneKind,
    cancelled: Rc<RefCell<Cancelled>>,
}

impl CancelSource for LaneCancelled {
    fn cancelled(&mut self, step: u64, _layers: usize, out: &mut Vec<usize>) {
        let cancelled = &mut *self.cancelled.borrow_mut();
        out.extend(
            cancelled
                .by_engine
                .iter()
                .filter(|chunk| (chunk.lane, chunk.step) == (self.lane, step))
                .map(|chunk| chunk.chunk),
        );
        if let Some(random) = cancelled.random.as_mut().filter(|_| !cancelled.of_plan.is_empty())
            && random.next() % 100 < 2
        {
            let seq = cancelled.of_plan[(random.next() % cancelled.of_plan.len() as u64) as usize];
            cancelled.by_clients.push(seq);
        }
        out.extend(places(&cancelled.of_plan, &cancelled.by_clients));
    }
}

/// The engine, the lanes, and the clients.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) plans: VecDeque<Plan>,
    pub(crate) streams: HashMap<SeqId, Stream>,
    pub(crate) requests: HashMap<SeqId, Arc<LaneRequest>>,
    pair: Pair,
    config: EngineConfig,
    draft: Option<Draft>,
    verify: Verify,
    cancelled: Rc<RefCell<Cancelled>>,
    /// Puts pruning checkpoints of its own into verify plans.
    checkpoints: Option<Random>,
    /// Clients that cancelled in the middle of a plan.
    pub(crate) cancelled_inside: u64,
    /// Proposals that a grammar kept out of their pass.
    pub(crate) forbidden: u64,
    /// There is no draft any more.
    pub(crate) retired: bool,
}

impl Rig {
    /// A rig with empty pools. Lanes of one worker: the calling thread.
    pub(crate) fn new(pair: &Pair, config: &EngineConfig) -> Rig {
        let cancelled = Rc::default();
        let (draft, verify) = runners(pair, config, &cancelled);
        Rig {
            engine: Engine::new(config.clone()).expect("a valid config"),
            plans: VecDeque::new(),
            streams: HashMap::new(),
            requests: HashMap::new(),
            pair: pair.clone(),
            config: config.clone(),
            draft,
            verify,
            cancelled,
            checkpoints: None,
            cancelled_inside: 0,
            forbidden: 0,
            retired: false,
        }
    }

    /// From now on, where there is a seed: verify passes prune at random, with checkpoints anywhere, any alternatives, any margins allowed;
    /// and clients cancel in the middle of plans, between any two layers or steps.
    pub(crate) fn disturb(&mut self, prune: Option<u64>, go: Option<u64>) {
        self.checkpoints = prune.map(Random);
        self.cancelled.borrow_mut().random = go.map(Random);
    }

    /// Hands a request in.
    pub(crate) fn submit(&mut self, request: Request, for_lanes: LaneRequest) {
        self.streams.insert(request.seq, Stream::default());
        self.requests.insert(request.seq, Arc::new(for_lanes));
        self.tell(Event::Submit(request));
    }

    /// Tells the engine something, and keeps what it asks for. A device that is lost takes its plans and its memory along.
    pub(crate) fn tell(&mut self, event: Event) {
        if matches!(event, Event::DeviceLost | Event::DraftLost | Event::DraftRetired) {
            self.plans.clear();
            self.cancelled.borrow_mut().by_engine.clear();
            (self.draft, self.verify) = runners(&self.pair, &self.config, &self.cancelled);
        }
        self.retired |= matches!(event, Event::DraftRetired);
        let mut commands = Vec::new();
        self.engine.handle(Duration::ZERO, event, &mut commands);
        for command in commands {
            match command {
                Command::Draft(plan) => {
                    assert!(!self.retired, "a draft plan leaves, and the draft is retired");
                    let requests = self.requests_of(&plan.admit);
                    self.plans.push_back(Plan::Draft(DraftWork { plan, requests }));
                }
                Command::Verify(plan) => {
                    let requests = self.requests_of(&plan.admit);
                    self.plans.push_back(Plan::Verify(VerifyWork { plan, requests }));
                }
                Command::CancelChunk(chunk) => self.cancelled.borrow_mut().by_engine.push(chunk),
                Command::Emit { seq, tokens } => {
                    let stream = self.streams.get_mut(&seq).expect("a stream for every emission");
                    assert!(stream.ended.is_none() && !tokens.is_empty());
                    stream.tokens.extend(tokens.iter().map(|emitted| emitted.token));
                }
                Command::Finish { seq, reason, usage } => {
                    let stream = self.streams.get_mut(&seq).expect("a stream for every end");
                    assert_eq!(stream.tokens.len(), usage.output_tokens);
                    assert!(stream.ended.replace((reason, usage)).is_none(), "{seq} ended twice");
                }
                Command::Reject { seq, why } => panic!("{seq} was refused: {why}"),
            }
        }
    }

    /// Carries out one of the plans that are out, each on a lane of its own; false if it is not there. What the engine
    /// is told of its time is `took`, so that a case can be replayed.
    pub(crate) fn work(&mut self, plan: usize, took: Duration) -> bool {
        let done = match self.plans.remove(plan) {
            None => return false,
            Some(Plan::Draft(work)) => {
                self.cancelled.borrow_mut().of_plan =
                    work.plan.chunks.iter().map(|chunk| chunk.seq).collect();
                let mut plan = self.draft.as_mut().expect("a draft model")(work);
                plan.outcome.took = took;
                Event::DraftDone(plan)
            }
            Some(Plan::Verify(mut work)) => {
                self.cancelled.borrow_mut().of_plan =
                    work.plan.chunks.iter().map(|chunk| chunk.seq).collect();
                if let Some(random) = &mut self.checkpoints {
                    add_prune_checkpoints(&mut work.plan, random, self.pair.target.config().layers.len());
                }
                let mut plan = (self.verify)(work);
                self.forbidden +=
                    plan.outcome.verdicts.iter().map(|verdict| verdict.forbidden as u64).sum::<u64>();
                plan.outcome.took = took;
                Event::VerifyDone(plan)
            }
        };
        let by_clients = std::mem::take(&mut self.cancelled.borrow_mut().by_clients);
        self.cancelled_inside += by_clients.len() as u64;
        by_clients.into_iter().for_each(|seq| self.tell(Event::Cancel(seq)));
        self.tell(done);
        true
    }

    /// Works until nothing is left to do; all streams must have ended then, and both pools be whole.
    pub(crate) fn finish(&mut self) {
        while self.work(0, Duration::from_micros(100)) {}
        assert!(self.engine.idle(), "no plan is out, yet the engine is not idle: {:?}", self.engine.view());
        let view = self.engine.view();
        assert!(view.target_pool.whole() && view.draft_pool.whole(), "{view:?}");
        assert!(self.streams.values().all(|stream| stream.ended.is_some()));
    }

    fn requests_of(&self, admissions: &[Admission]) -> Vec<Arc<LaneRequest>> {
        admissions.iter().map(|admission| self.requests[&admission.seq].clone()).collect()
    }
}

/// Pruning checkpoints of the test's own, unless the engine has put some there.
fn add_prune_checkpoints(plan: &mut VerifyPlan, random: &mut Random, layers: usize) {
    if !plan.prune_checkpoints.is_empty() || random.next().is_multiple_of(2) {
        return;
    }
    plan.prune_checkpoints.extend((1..layers).filter(|_| !random.next().is_multiple_of(3)));
    for chunk in &mut plan.chunks {
        let begin = plan.tests.len();
        for _ in 0..chunk.proposals {
            let alternatives = (0..random.next() % 9).map(|_| (random.next() % 256) as TokenId).collect();
            let max_margin = (random.next() % 64) as f32 / 2.0 - 28.0;
            plan.tests.push(Test { alternatives, max_margin });
        }
        chunk.tests = begin..plan.tests.len();
    }
}

fn next_partition(step: u64) -> PartitionId {
    PartitionId((step % PARTITIONS as u64) as usize)
}

fn runners(
    pair: &Pair,
    config: &EngineConfig,
    cancelled: &Rc<RefCell<Cancelled>>,
) -> (Option<Draft>, Verify) {
    let limits = PassLimits::of(config);
    let cancelled = |lane| Box::new(LaneCancelled { lane, cancelled: cancelled.clone() });
    // Some wait for no mask: what is not there when tokens are drawn comes in a later pass.
    let patience = if config.target_blocks.is_multiple_of(2) { Duration::ZERO } else { MASK_PATIENCE };
    if let Some(gpu) = &pair.cuda {
        let head = gpu.draft.as_ref().filter(|draft| draft.config().head.is_some());
        let pages = head.map(|head| CudaFeaturePages::new(head, config.target_blocks).expect("memory"));
        let spec = |rank: &OnGpu, lane: fn(&SharePair) -> &Arc<Share>, sizes, drafts| CudaLaneSpec {
            shares: rank.shares.iter().map(|pair| lane(pair).clone()).collect(),
            sizes,
            drafts,
            features: pages.clone().map(|pages| {
                let head = head.filter(|_| !drafts).cloned();
                CudaFeatures { pages, head }
            }),
        };
        let ranks = || std::iter::once(gpu).chain(&gpu.others);
        let drafts: Vec<_> = ranks()
            .filter_map(|rank| {
                Some((rank.draft.clone()?, spec(rank, |pair| &pair.draft, limits.cuda_draft(config), true)))
            })
            .collect();
        let draft = (!drafts.is_empty()).then(|| {
            let mut run = if config.speculation.draft_copies > 1 {
                crate::rank_group::cuda_copies(drafts, cancelled(LaneKind::Draft))
            } else {
                Box::new(crate::rank_group::cuda_draft(drafts, cancelled(LaneKind::Draft)))
            };
            Box::new(move |mut work: DraftWork| {
                // Each plan on the next partition, whatever the engine thinks of them: that must not show.
                let planned = std::mem::replace(&mut work.plan.partition, next_partition(work.plan.step));
                DraftPlan { partition: planned, ..run(work) }
            }) as Draft
        });
        let sizes = limits.cuda_verify(config);
        let targets =
            ranks().map(|rank| (rank.target.clone(), spec(rank, |pair| &pair.verify, sizes, false)));
        let mut run =
            crate::rank_group::cuda_verify(targets.collect(), cancelled(LaneKind::Verify), patience);
        let verify = move |mut work: VerifyWork| {
            let planned = std::mem::replace(&mut work.plan.partition, next_partition(work.plan.step));
            VerifyPlan { partition: planned, ..run(work) }
        };
        return (draft, Box::new(verify));
    }
    let head = pair.draft.as_ref().filter(|draft| draft.config().head.is_some());
    let pages = head.map(|head| Features::new(config.target_blocks, config.block_size, head.config().hidden));
    let features = |writes: bool| {
        let head = head.filter(|_| writes).cloned();
        pages.clone().map(|pages| CpuFeatures { pages, head })
    };
    let spec = |blocks, max_logit_rows, writes| CpuLaneSpec {
        partitions: vec![Partition { cores: vec![0] }; PARTITIONS],
        isa: Isa::detect(),
        blocks,
        block_size: config.block_size,
        max_rows: limits.rows,
        max_logit_rows,
        features: features(writes),
    };
    let whole = |model: &Arc<Model>| vec![model.clone()];
    let (targets, drafts) = match &pair.shards {
        Some(shards) => (shards.target.clone(), shards.draft.clone()),
        None => (whole(&pair.target), pair.draft.as_ref().map_or_else(Vec::new, whole)),
    };
    let draft = (!drafts.is_empty()).then(|| {
        let spec = spec(config.draft.needs().blocks, limits.draft_logit_rows, false);
        if config.speculation.draft_copies > 1 {
            let lane = |_| CpuBackend::new(drafts[0].clone(), &spec).expect("a lane");
            let lanes = (0..config.speculation.draft_copies).map(lane);
            return crate::rank_group::copies(lanes.collect(), &|| cancelled(LaneKind::Draft));
        }
        Box::new(crate::rank_group::draft(&drafts, &spec, cancelled(LaneKind::Draft))) as Draft
    });
    let spec = spec(config.target_blocks, limits.verify_logit_rows, true);
    (draft, Box::new(crate::rank_group::verify(&targets, &spec, cancelled(LaneKind::Verify), patience)))
}

/// A small generator of random numbers (splitmix64), so that a case is its seed on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
