//! The ranks of a group under the rig: the first on the test's own thread, every other on one of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use faser_actors::{DraftRunner, DraftWork, Fallen, RunnerSpec, VerifyRunner, VerifyWork};
use faser_engine::{DraftPlan, VerifyPlan};
use faser_kernels::Collective;
use faser_kernels::collective::in_process;
use faser_models::Model;

/// Longer than any pass of a test.
const DEADLINE: Duration = Duration::from_secs(60);

/// A pair in shards, rank after rank.
#[derive(Clone)]
pub(crate) struct Shards {
    pub(crate) target: Vec<Arc<Model>>,
    pub(crate) draft: Vec<Arc<Model>>,
}

/// Another rank: works on what it is sent, and says what came of it.
struct Follower<W, P> {
    work: Sender<W>,
    plans: Receiver<P>,
}

fn follower<W: Send + 'static, P: Send + 'static, R: FnMut(W) -> P>(
    make: impl FnOnce() -> R + Send + 'static,
) -> Follower<W, P> {
    let ((work, to_do), (done, plans)) = (channel::<W>(), channel());
    thread::spawn(move || {
        let mut run = make();
        while let Ok(work) = to_do.recv() {
            if done.send(run(work)).is_err() {
                return;
            }
        }
    });
    Follower { work, plans }
}

impl<W: Clone, P> Follower<W, P> {
    fn tell(followers: &[Self], work: &W) {
        for follower in followers {
            follower.work.send(work.clone()).expect("a rank that works");
        }
    }
}

/// Draft runners of all ranks as one: each must come to the first one's proposals.
pub(crate) fn draft(
    shards: &[Arc<Model>],
    spec: &RunnerSpec,
    falls: Box<dyn Fallen>,
) -> impl FnMut(DraftWork) -> DraftPlan + use<> {
    let join = |model: &Arc<Model>, spec: &RunnerSpec, way: &Arc<dyn Collective>| {
        let mut runner = DraftRunner::new(model.clone(), spec).expect("a draft lane");
        runner.join(way);
        runner
    };
    let mut ranks = shards.iter().cloned().zip(in_process(shards.len(), DEADLINE));
    let (first, way) = ranks.next().expect("a first rank");
    let followers: Vec<Follower<DraftWork, DraftPlan>> = ranks
        .map(|(model, way)| {
            let spec = spec.clone();
            follower(move || {
                let mut runner = join(&model, &spec, &(Arc::new(way) as Arc<dyn Collective>));
                move |work| runner.run(work)
            })
        })
        .collect();
    let mut runner = join(&first, spec, &(Arc::new(way) as Arc<dyn Collective>));
    runner.shedding(falls);
    move |work| {
        Follower::tell(&followers, &work);
        let plan = runner.run(work);
        for follower in &followers {
            let other = follower.plans.recv().expect("a rank that works").outcome;
            assert_eq!((&other.counts, &other.proposals), (&plan.outcome.counts, &plan.outcome.proposals));
        }
        plan
    }
}

/// Verify runners of all ranks as one: each must come to the first one's verdicts and gaps.
pub(crate) fn verify(
    shards: &[Arc<Model>],
    spec: &RunnerSpec,
    falls: Box<dyn Fallen>,
) -> impl FnMut(VerifyWork) -> VerifyPlan + use<> {
    let join = |model: &Arc<Model>, spec: &RunnerSpec, way: &Arc<dyn Collective>| {
        let mut runner = VerifyRunner::new(model.clone(), spec).expect("a verify lane");
        runner.join(way);
        runner
    };
    let mut ranks = shards.iter().cloned().zip(in_process(shards.len(), DEADLINE));
    let (first, way) = ranks.next().expect("a first rank");
    let followers: Vec<Follower<VerifyWork, VerifyPlan>> = ranks
        .map(|(model, way)| {
            let spec = spec.clone();
            follower(move || {
                let mut runner = join(&model, &spec, &(Arc::new(way) as Arc<dyn Collective>));
                move |work| runner.run(work)
            })
        })
        .collect();
    let mut runner = join(&first, spec, &(Arc::new(way) as Arc<dyn Collective>));
    runner.shedding(falls);
    move |work| {
        Follower::tell(&followers, &work);
        let plan = runner.run(work);
        let bits = |gaps: &[f32]| gaps.iter().map(|gap| gap.to_bits()).collect::<Vec<_>>();
        for follower in &followers {
            let other = follower.plans.recv().expect("a rank that works").outcome;
            assert_eq!(other.verdicts, plan.outcome.verdicts);
            assert_eq!(bits(&other.gaps), bits(&plan.outcome.gaps));
        }
        plan
    }
}
