//! Who fell while a plan is carried out, on every device.

use faser_engine::SeqId;

use crate::shed::Fallen;

/// Sequences that fell under a plan, as they are heard of between its steps.
#[derive(Default)]
pub(super) struct Gone {
    source: Option<Box<dyn Fallen>>,
    pub(super) seqs: Vec<SeqId>,
}

impl Gone {
    pub(super) fn listen(&mut self, source: Box<dyn Fallen>) {
        self.source = Some(source);
    }

    /// Before a plan.
    pub(super) fn clear(&mut self) {
        self.seqs.clear();
    }

    /// Asks again, with `layers` of the plan done.
    pub(super) fn ask(&mut self, step: u64, layers: usize) {
        if let Some(source) = &mut self.source {
            source.fallen(step, layers, &mut self.seqs);
        }
    }
}
