//! A draft that several ranks have whole: each carries out the chunks of a plan that are its own, with KV of its own, and the last to finish puts
//! together what came of all.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use faser_engine::{DraftOutcome, DraftPlan};

use super::backend::LaneBackend;
use super::draft::{DraftRunner, DraftWork};
use crate::cancellation::CancelSource;

/// What the ranks have brought of the plan that is out: the engine has one out at a time.
pub struct Gathering(Mutex<Gathered>);

struct Gathered {
    /// The plan as it came, from the first rank once that is done.
    whole: Option<DraftPlan>,
    /// What came of each rank's part.
    parts: Vec<Option<DraftOutcome>>,
}

impl Gathering {
    /// For so many ranks.
    pub fn of(ranks: usize) -> Arc<Gathering> {
        Arc::new(Gathering(Mutex::new(Gathered { whole: None, parts: vec![None; ranks] })))
    }

    /// Takes in what came of a rank's part, from the first rank with the plan; the plan with its outcome, if nothing is missing any more.
    fn bring(&self, rank: usize, part: DraftOutcome, whole: Option<DraftPlan>) -> Option<DraftPlan> {
        // A rank that panicked ended the device.
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.parts[rank] = Some(part);
        if whole.is_some() {
            gathered.whole = whole;
        }
        if gathered.parts.iter().any(Option::is_none) {
            return None;
        }
        let mut plan = gathered.whole.take()?;
        let mut parts: Vec<_> = gathered.parts.iter_mut().filter_map(Option::take).collect();
        plan.outcome.took = parts.iter().map(|part| part.took).max().unwrap_or_default();
        plan.outcome.cold = parts.iter().any(|part| part.cold);
        let mut drawn: Vec<_> =
            parts.iter_mut().map(|part| (part.counts.drain(..), part.proposals.drain(..))).collect();
        for chunk in &plan.chunks {
            let (counts, proposals) = &mut drawn[chunk.rank];
            let count = counts.next().unwrap_or(0);
            plan.outcome.counts.push(count);
            plan.outcome.proposals.extend(proposals.take(count));
        }
        drop(drawn);
        Some(plan)
    }
}

/// One rank's lane.
pub struct CopyRunner<B: LaneBackend> {
    rank: usize,
    runner: DraftRunner<B>,
    /// Places of its chunks in the whole plan.
    own: Rc<RefCell<Vec<usize>>>,
    gathering: Arc<Gathering>,
}

/// Cancellations, by the places in the whole plan, for the part that a rank has.
struct OfOwn {
    all: Box<dyn CancelSource>,
    own: Rc<RefCell<Vec<usize>>>,
}

impl CancelSource for OfOwn {
    fn cancelled(&mut self, step: u64, layers: usize, out: &mut Vec<usize>) {
        let mut places = Vec::new();
        self.all.cancelled(step, layers, &mut places);
        let own = self.own.borrow();
        out.extend(places.iter().filter_map(|place| own.binary_search(place).ok()));
    }
}

impl<B: LaneBackend> CopyRunner<B> {
    /// The lane of a rank, which asks between two steps what was cancelled.
    pub fn new(
        mut runner: DraftRunner<B>,
        rank: usize,
        gathering: Arc<Gathering>,
        cancels: Box<dyn CancelSource>,
    ) -> CopyRunner<B> {
        let own = Rc::default();
        runner.set_cancel_source(Box::new(OfOwn { all: cancels, own: Rc::clone(&own) }));
        CopyRunner { rank, runner, own, gathering }
    }

    /// Carries out its part of a plan, which the first rank is given for good; the plan with its outcome, if this rank is the last.
    ///
    /// # Panics
    /// As [`DraftRunner::run`].
    pub fn run(&mut self, work: Cow<'_, DraftWork>) -> Option<DraftPlan> {
        let part = self.part(&work).outcome;
        let whole = (self.rank == 0).then(|| work.into_owned().plan);
        self.gathering.bring(self.rank, part, whole)
    }

    /// Its chunks, with the copies in its pool and the admissions of its sequences. Who is retired may have been another's.
    fn part(&mut self, DraftWork { plan, requests }: &DraftWork) -> DraftPlan {
        let mut own = self.own.borrow_mut();
        own.clear();
        own.extend((0..plan.chunks.len()).filter(|place| plan.chunks[*place].rank == self.rank));
        let is_own = |seq| own.iter().any(|place| plan.chunks[*place].seq == seq);
        let news = plan.admit.iter().zip(requests).filter(|(admission, _)| is_own(admission.seq));
        let (admit, requests) = news.map(|(admission, request)| (admission.clone(), request.clone())).unzip();
        let part = DraftPlan {
            copies: plan.copies.iter().copied().filter(|copy| copy.rank == self.rank).collect(),
            retire: plan.retire.clone(),
            admit,
            chunks: own.iter().map(|place| plan.chunks[*place].clone()).collect(),
            tokens: plan.tokens.clone(),
            blocks: plan.blocks.clone(),
            features: Vec::new(),
            outcome: DraftOutcome::default(),
            ..*plan
        };
        drop(own);
        self.runner.run(DraftWork { plan: part, requests })
    }
}
