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

/// Runners of all ranks as one. `make` is told what has fallen for the first rank alone; `same` compares another rank's plan with the first's.
fn group<W: Clone + Send + 'static, P: Send + 'static, R: FnMut(W) -> P + 'static>(
    shards: &[Arc<Model>],
    falls: Box<dyn Fallen>,
    make: impl Fn(Arc<Model>, &Arc<dyn Collective>, Option<Box<dyn Fallen>>) -> R + Clone + Send + 'static,
    same: impl Fn(&P, &P) + 'static,
) -> Box<dyn FnMut(W) -> P> {
    let ways = in_process(shards.len(), DEADLINE).into_iter().map(|way| Arc::new(way) as Arc<dyn Collective>);
    let mut ranks = shards.iter().cloned().zip(ways);
    let (first, way) = ranks.next().expect("a first rank");
    let other = |(model, way)| {
        let make = make.clone();
        follower(move || make(model, &way, None))
    };
    let followers: Vec<Follower<W, P>> = ranks.map(other).collect();
    let mut run = make(first, &way, Some(falls));
    Box::new(move |work| {
        Follower::tell(&followers, &work);
        let plan = run(work);
        for follower in &followers {
            same(&follower.plans.recv().expect("a rank that works"), &plan);
        }
        plan
    })
}

/// Draft runners of all ranks as one: each must come to the first one's proposals.
pub(crate) fn draft(
    shards: &[Arc<Model>],
    spec: &RunnerSpec,
    falls: Box<dyn Fallen>,
) -> impl FnMut(DraftWork) -> DraftPlan + use<> {
    let spec = spec.clone();
    let make = move |model, way: &Arc<dyn Collective>, falls| {
        let mut runner = DraftRunner::new(model, &spec).expect("a draft lane");
        runner.join(way);
        if let Some(falls) = falls {
            runner.shedding(falls);
        }
        move |work| runner.run(work)
    };
    group(shards, falls, make, |other: &DraftPlan, first: &DraftPlan| {
        let (other, first) = (&other.outcome, &first.outcome);
        assert_eq!((&other.counts, &other.proposals), (&first.counts, &first.proposals));
    })
}

/// Verify runners of all ranks as one: each must come to the first one's verdicts and gaps.
pub(crate) fn verify(
    shards: &[Arc<Model>],
    spec: &RunnerSpec,
    falls: Box<dyn Fallen>,
) -> impl FnMut(VerifyWork) -> VerifyPlan + use<> {
    let spec = spec.clone();
    let make = move |model, way: &Arc<dyn Collective>, falls| {
        let mut runner = VerifyRunner::new(model, &spec).expect("a verify lane");
        runner.join(way);
        if let Some(falls) = falls {
            runner.shedding(falls);
        }
        move |work| runner.run(work)
    };
    group(shards, falls, make, |other: &VerifyPlan, first: &VerifyPlan| {
        let bits = |gaps: &[f32]| gaps.iter().map(|gap| gap.to_bits()).collect::<Vec<_>>();
        assert_eq!(other.outcome.verdicts, first.outcome.verdicts);
        assert_eq!(bits(&other.outcome.gaps), bits(&first.outcome.gaps));
    })
}
