//! Which sequences of a plan fell while it is carried out. In a group the first rank alone looks, at the same place of the work for all,
//! and tells the others: ranks that let different rows go could not go on together.

use faser_engine::SeqId;

use super::gone::Gone;
use super::passes::Passes;
use crate::shed::Fallen;

/// What has fallen under the plan at hand.
#[derive(Default)]
pub(super) struct Falls {
    heard: Gone,
    /// One per chunk, of the first rank: 1 if its sequence fell.
    flags: Vec<f32>,
}

impl Falls {
    /// From now on asks this one; on ranks after the first it is not asked.
    pub(super) fn listen(&mut self, fallen: Box<dyn Fallen>) {
        self.heard.listen(fallen);
    }

    /// A new plan: nothing has fallen.
    pub(super) fn begin(&mut self) {
        self.heard.clear();
    }

    /// The sequences that have fallen under this plan.
    pub(super) fn gone(&self) -> &[SeqId] {
        &self.heard.seqs
    }

    /// The sequences that fell since the last look. `chunks` are those of the plan, `layers` of the pass in the making are done.
    pub(super) fn look(
        &mut self,
        passes: &Passes,
        step: u64,
        layers: usize,
        chunks: impl Iterator<Item = SeqId> + Clone,
    ) -> &[SeqId] {
        let before = self.heard.seqs.len();
        let group = passes.group();
        if group.rank() == 0 {
            self.heard.ask(step, layers);
        }
        if group.ranks() > 1 {
            let seqs = &mut self.heard.seqs;
            self.flags.clear();
            self.flags.extend(chunks.clone().map(|seq| f32::from(u8::from(seqs[before..].contains(&seq)))));
            passes.add_up(&mut self.flags);
            seqs.truncate(before);
            seqs.extend(chunks.zip(&self.flags).filter(|(_, flag)| **flag > 0.0).map(|(seq, _)| seq));
        }
        &self.heard.seqs[before..]
    }
}
