//! Which sequences of a plan fell while it is carried out. In a group the first rank alone asks: ranks that let different rows go could not go
//! on together.

use faser_engine::SeqId;

use super::backend::{LaneBackend, PassRows};
use crate::shed::Fallen;

/// What has fallen under the plan at hand, as far as this rank has heard.
#[derive(Default)]
pub struct Falls {
    source: Option<Box<dyn Fallen>>,
    seqs: Vec<SeqId>,
}

impl Falls {
    /// From now on asks this one.
    pub(super) fn listen(&mut self, source: Box<dyn Fallen>) {
        self.source = Some(source);
    }

    /// Whether anybody is asked.
    pub(super) fn listens(&self) -> bool {
        self.source.is_some()
    }

    /// A new plan: nothing has fallen.
    pub(super) fn begin(&mut self) {
        self.seqs.clear();
    }

    /// The sequences that have fallen under this plan.
    pub(super) fn gone(&self) -> &[SeqId] {
        &self.seqs
    }

    /// Asks again, with `layers` of the plan done.
    pub(super) fn ask(&mut self, step: u64, layers: usize) {
        if let Some(source) = &mut self.source {
            source.fallen(step, layers, &mut self.seqs);
        }
    }

    /// Has what fell leave the pass under way.
    pub(super) fn cancel(&self, rows: &PassRows<'_>, cancel: &mut dyn FnMut(usize)) {
        if self.seqs.is_empty() {
            return;
        }
        for (number, piece) in rows.pieces.iter().enumerate() {
            if self.seqs.contains(&piece.seq) {
                cancel(number);
            }
        }
    }

    /// Asks between two steps of a plan of these sequences; all ranks hear the same.
    pub(super) fn look(
        &mut self,
        backend: &mut impl LaneBackend,
        step: u64,
        layers: usize,
        of_plan: impl Iterator<Item = SeqId> + Clone,
    ) {
        let (rank, ranks) = backend.rank();
        if rank == 0 {
            self.ask(step, layers);
        }
        if ranks > 1 {
            let flags: Vec<u32> = of_plan.clone().map(|seq| u32::from(self.seqs.contains(&seq))).collect();
            let first = backend.gather(&flags);
            self.seqs.clear();
            self.seqs.extend(of_plan.zip(first).filter(|(_, flag)| *flag > 0).map(|(seq, _)| seq));
        }
    }
}
