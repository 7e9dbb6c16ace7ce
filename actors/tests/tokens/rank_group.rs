//! The ranks of a group under the rig: the first on the test's own thread, every other on one of its own.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use faser_actors::{
    CancelSource, CopyRunner, CpuBackend, CpuLaneSpec, CudaBackend, CudaLaneSpec, DraftRunner, DraftWork,
    Gathering, LaneBackend, MASK_PATIENCE, VerifyRunner, VerifyWork,
};
use faser_engine::{DraftPlan, VerifyPlan};
use faser_kernels::collective::{GroupWays, ways_in_process};
use faser_kernels::cuda::{GroupTerms, NcclRankSlot, nccl_group};
use faser_models::Model;
use faser_models::cuda::CudaModel;

/// Longer than any pass of a test.
const DEADLINE: Duration = Duration::from_secs(60);

/// A pair in shards, rank after rank.
#[derive(Clone)]
pub(crate) struct Shards {
    pub(crate) target: Vec<Arc<Model>>,
    pub(crate) draft: Vec<Arc<Model>>,
}

/// Another rank: works on what it is sent, and says what came of it. Dropping it waits for its end.
struct Follower<W, P> {
    work: Option<Sender<W>>,
    plans: Receiver<P>,
    thread: Option<JoinHandle<()>>,
}

impl<W, P> Drop for Follower<W, P> {
    fn drop(&mut self) {
        self.work = None;
        // What went wrong there was seen by the first rank too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn follower<W: Send + 'static, P: Send + 'static, R: FnMut(W) -> P>(
    make: impl FnOnce() -> R + Send + 'static,
) -> Follower<W, P> {
    let ((work, to_do), (done, plans)) = (channel::<W>(), channel());
    let thread = thread::spawn(move || {
        let mut run = make();
        while let Ok(work) = to_do.recv() {
            if done.send(run(work)).is_err() {
                return;
            }
        }
    });
    Follower { work: Some(work), plans, thread: Some(thread) }
}

impl<W: Clone, P> Follower<W, P> {
    fn tell(followers: &[Self], work: &W) {
        for follower in followers {
            // One that has panicked is missed by the group.
            follower.work.iter().for_each(|way| drop(way.send(work.clone())));
        }
    }
}

/// Runners of all ranks as one, each made from what stands for it. `make` is told what was cancelled for the first rank alone; `same` compares
/// another rank's plan with the first's.
fn group<S: Send + 'static, W: Clone + Send + 'static, P: Send + 'static, R: FnMut(W) -> P + 'static>(
    ranks: Vec<S>,
    source: Box<dyn CancelSource>,
    make: impl Fn(S, Option<Box<dyn CancelSource>>) -> R + Clone + Send + 'static,
    same: impl Fn(&P, &P) + 'static,
) -> Box<dyn FnMut(W) -> P> {
    let mut ranks = ranks.into_iter();
    let first = ranks.next().expect("a first rank");
    let other = |rank| {
        let make = make.clone();
        follower(move || make(rank, None))
    };
    let followers: Vec<Follower<W, P>> = ranks.map(other).collect();
    let mut run = make(first, Some(source));
    Box::new(move |work| {
        Follower::tell(&followers, &work);
        let plan = run(work);
        for follower in &followers {
            same(&follower.plans.recv().expect("a rank that works"), &plan);
        }
        plan
    })
}

/// The lanes of ranks that each have the draft whole as one; any of them may be the last.
pub(crate) fn copies<B: LaneBackend + 'static>(
    lanes: Vec<B>,
    source: &dyn Fn() -> Box<dyn CancelSource>,
) -> Box<dyn FnMut(DraftWork) -> DraftPlan> {
    let gathering = Gathering::of(lanes.len());
    let lane = |(rank, backend)| {
        CopyRunner::new(DraftRunner::new(backend, MASK_PATIENCE), rank, gathering.clone(), source())
    };
    let mut runners: Vec<_> = lanes.into_iter().enumerate().map(lane).collect();
    Box::new(move |work| {
        let (step, ranks) = (work.plan.step as usize, runners.len());
        let mut done = None;
        for turn in 0..ranks {
            assert!(done.is_none(), "a plan is done before all ranks are");
            done = runners[(step + turn) % ranks].run(Cow::Borrowed(&work));
        }
        done.expect("the last rank has all of it")
    })
}

/// A rank's shard, and its way to the group.
type Member = (Arc<Model>, Option<GroupWays>);

/// Each shard with its way to the group; alone it needs none.
fn with_ways(shards: &[Arc<Model>]) -> Vec<Member> {
    let ways: Vec<Option<GroupWays>> = match shards.len() {
        1 => vec![None],
        several => {
            let stages = shards[0].shard().stages;
            ways_in_process(several, stages, DEADLINE).into_iter().map(Some).collect()
        }
    };
    shards.iter().cloned().zip(ways).collect()
}

fn same_proposals(other: &DraftPlan, first: &DraftPlan) {
    let (other, first) = (&other.outcome, &first.outcome);
    assert_eq!((&other.counts, &other.proposals), (&first.counts, &first.proposals));
}

fn same_verdicts(other: &VerifyPlan, first: &VerifyPlan) {
    let bits = |margins: &[f32]| margins.iter().map(|margin| margin.to_bits()).collect::<Vec<_>>();
    assert_eq!(other.outcome.verdicts, first.outcome.verdicts);
    assert_eq!(bits(&other.outcome.margins), bits(&first.outcome.margins));
}

/// A rank's shard on its GPU, and what its lane is made for.
pub(crate) type OfRank = (Arc<CudaModel>, CudaLaneSpec);

/// Each rank with its place in the group; alone it needs none.
fn with_rank_slots(ranks: Vec<OfRank>) -> Vec<(OfRank, Option<NcclRankSlot>)> {
    let slots = match ranks.len() {
        1 => vec![None],
        several => {
            nccl_group(several, GroupTerms::within(DEADLINE)).expect("NCCL").into_iter().map(Some).collect()
        }
    };
    ranks.into_iter().zip(slots).collect()
}

/// The lanes of GPUs that each have the draft whole as one, each on a thread of its own, as a context wants it. The first alone hears what was
/// cancelled.
pub(crate) fn cuda_copies(
    ranks: Vec<OfRank>,
    source: Box<dyn CancelSource>,
) -> Box<dyn FnMut(DraftWork) -> DraftPlan> {
    let gathering = Gathering::of(ranks.len());
    let mut ranks = ranks.into_iter().enumerate();
    let lane = |(rank, of_rank), gathering, source| {
        let runner = DraftRunner::new(on_gpu((of_rank, None)), MASK_PATIENCE);
        CopyRunner::new(runner, rank, gathering, source)
    };
    let first = ranks.next().expect("a first rank");
    let other = |rank| {
        let gathering = gathering.clone();
        follower(move || {
            let mut runner = lane(rank, gathering, Box::new(NobodyCancels));
            move |work: DraftWork| runner.run(Cow::Owned(work))
        })
    };
    let followers: Vec<Follower<DraftWork, Option<DraftPlan>>> = ranks.map(other).collect();
    let mut runner = lane(first, gathering.clone(), source);
    Box::new(move |work| {
        Follower::tell(&followers, &work);
        let first = runner.run(Cow::Owned(work));
        let others = followers.iter().map(|follower| follower.plans.recv().expect("a rank that works"));
        let done: Vec<DraftPlan> = first.into_iter().chain(others.flatten()).collect();
        <[DraftPlan; 1]>::try_from(done).expect("one rank is the last")[0].clone()
    })
}

struct NobodyCancels;

impl CancelSource for NobodyCancels {
    fn cancelled(&mut self, _step: u64, _layers: usize, _out: &mut Vec<usize>) {}
}

/// A rank's lane on its GPU.
fn on_gpu(((model, spec), slot): (OfRank, Option<NcclRankSlot>)) -> CudaBackend {
    let mut backend = CudaBackend::new(model, &spec).expect("a lane");
    if let Some(slot) = &slot {
        backend.join(slot).expect("the others join");
    }
    backend
}

fn draft_of<B: LaneBackend>(
    backend: B,
    source: Option<Box<dyn CancelSource>>,
) -> impl FnMut(DraftWork) -> DraftPlan {
    let mut runner = DraftRunner::new(backend, MASK_PATIENCE);
    source.into_iter().for_each(|source| runner.set_cancel_source(source));
    move |work| runner.run(work)
}

fn verify_of<B: LaneBackend>(
    backend: B,
    source: Option<Box<dyn CancelSource>>,
    mask_patience: Duration,
) -> impl FnMut(VerifyWork) -> VerifyPlan {
    let mut runner = VerifyRunner::new(backend, mask_patience);
    source.into_iter().for_each(|source| runner.set_cancel_source(source));
    move |work| runner.run(work)
}

/// Draft runners of all ranks on GPUs as one.
pub(crate) fn cuda_draft(
    ranks: Vec<OfRank>,
    source: Box<dyn CancelSource>,
) -> impl FnMut(DraftWork) -> DraftPlan + use<> {
    group(with_rank_slots(ranks), source, |rank, source| draft_of(on_gpu(rank), source), same_proposals)
}

/// Verify runners of all ranks on GPUs as one.
pub(crate) fn cuda_verify(
    ranks: Vec<OfRank>,
    source: Box<dyn CancelSource>,
    mask_patience: Duration,
) -> impl FnMut(VerifyWork) -> VerifyPlan + use<> {
    let make = move |rank, source| verify_of(on_gpu(rank), source, mask_patience);
    group(with_rank_slots(ranks), source, make, same_verdicts)
}

fn on_cores(spec: &CpuLaneSpec, (model, way): Member) -> CpuBackend {
    let mut backend = CpuBackend::new(model, spec).expect("a lane");
    way.iter().for_each(|way| backend.join(way));
    backend
}

/// Draft runners of all ranks as one: each must come to the first one's proposals.
pub(crate) fn draft(
    shards: &[Arc<Model>],
    spec: &CpuLaneSpec,
    source: Box<dyn CancelSource>,
) -> impl FnMut(DraftWork) -> DraftPlan + use<> {
    let spec = spec.clone();
    let make = move |rank, source| draft_of(on_cores(&spec, rank), source);
    group(with_ways(shards), source, make, same_proposals)
}

/// Verify runners of all ranks as one: each must come to the first one's verdicts and margins.
pub(crate) fn verify(
    shards: &[Arc<Model>],
    spec: &CpuLaneSpec,
    source: Box<dyn CancelSource>,
    mask_patience: Duration,
) -> impl FnMut(VerifyWork) -> VerifyPlan + use<> {
    let spec = spec.clone();
    let make = move |rank, source| verify_of(on_cores(&spec, rank), source, mask_patience);
    group(with_ways(shards), source, make, same_verdicts)
}
