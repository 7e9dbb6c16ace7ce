//! Who runs: admission in order of arrival as KV allows, and preemption by recompute when it runs short.

use crate::api::SeqId;
use crate::engine::Engine;
use crate::sequence::SequenceKv;
use crate::survival::Level;

impl Engine {
    /// Admits waiting sequences, first come first served, while there is room for their whole prompts and a block to
    /// spare for everyone who runs.
    pub(crate) fn admit_waiting(&mut self) {
        while let Some(&seq) = self.waiting.front() {
            if self.running.len() >= self.config.max_running || !self.admit(seq) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(seq);
        }
    }

    fn admit(&mut self, seq: SeqId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        let mut target = SequenceKv::from_cache(&self.target_pool, &sequence.tokens);
        let missing = target.table.missing(sequence.tokens.len());
        if missing + self.running.len() > self.target_pool.free() || !target.table.grow(sequence.tokens.len())
        {
            return false;
        }
        if !std::mem::replace(&mut sequence.admitted, true) {
            sequence.level = Level::new(self.calibration.typical());
            sequence.usage.cached_tokens = target.computed;
            self.totals.prompt_tokens += sequence.usage.prompt_tokens as u64;
            self.totals.cached_prompt_tokens += target.computed as u64;
        }
        sequence.target = target;
        self.verify_lane.admit(seq, || sequence.admission());
        if sequence.speculates() {
            sequence.draft = SequenceKv::from_cache(&self.draft_pool, &sequence.tokens);
        }
        true
    }

    /// Makes room in the target's pool for `tokens` tokens of `seq`, at the cost of younger sequences where it must be.
    /// False if `seq` itself had to go.
    pub(crate) fn make_room(&mut self, seq: SeqId, tokens: usize) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
            if sequence.target.table.grow(tokens) {
                return true;
            }
            let Some(&youngest) = self.running.last() else { return false };
            self.totals.preemptions += 1;
            self.put_back(youngest);
            if youngest == seq {
                return false;
            }
        }
    }

    /// Takes all KV from a running sequence and puts it at the head of the queue, to be recomputed.
    pub(crate) fn put_back(&mut self, seq: SeqId) {
        self.running.retain(|&id| id != seq);
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        sequence.evict((&self.target_pool, &self.draft_pool));
        self.draft_lane.retire(seq);
        self.verify_lane.retire(seq);
        self.waiting.push_front(seq);
    }
}
