//! Who runs: admission by priority, and in order of arrival among equals, as KV allows; and preemption by recompute when it runs short.

use std::cmp::Reverse;

use crate::blocks::BlockPool;
use crate::branch::{PROPOSALS_ROOM, SequenceKv};
use crate::engine::Engine;
use crate::request::{K_LIMIT, SeqId};
use crate::router::{self, ReplicaLoad};
use crate::sequence::Sequence;
use crate::view::EpochMove;

impl Engine {
    /// Has a sequence wait among those of its priority: before them if it ran already, behind them if it has just come.
    pub(crate) fn enqueue(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let (own, ran) = (sequence.priority(), sequence.admitted);
        let before = |other: &SeqId| {
            let other = self.sequences.get(other).map_or(i32::MIN, Sequence::priority);
            if ran { other < own } else { other <= own }
        };
        let place = self.waiting.partition_point(before);
        self.waiting.insert(place, seq);
    }

    /// The running sequence that is preempted first: of those with the highest number as their priority the youngest.
    fn least_urgent(&self) -> Option<SeqId> {
        let priority = |seq: &&SeqId| self.sequences.get(seq).map_or(i32::MAX, Sequence::priority);
        // Of several that are equal it is the last.
        self.running.iter().max_by_key(priority).copied()
    }

    /// Admits waiting sequences, the first in the queue first, while there is room for their whole prompts and a block to
    /// spare for everyone who runs.
    pub(crate) fn admit_waiting(&mut self) {
        while let Some(&seq) = self.waiting.front() {
            if self.running.len() >= self.tuning.max_running || !self.admit(seq) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(seq);
        }
    }

    fn admit(&mut self, seq: SeqId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        let cached = if sequence.cacheable { sequence.tokens.as_slice() } else { &[] };
        let mut target = SequenceKv::from_cache(&self.target_pool, cached, sequence.salt());
        let missing = target.table.missing(sequence.tokens.len());
        if missing + self.running.len() > self.target_pool.free() || !target.table.grow(sequence.tokens.len())
        {
            return false;
        }
        target.copy_tail();
        if !std::mem::replace(&mut sequence.admitted, true) {
            sequence.usage.moments.admitted = Some(sequence.age(self.now));
            sequence.levels = self.calibrations.levels();
            // What it has of its output may be cached too.
            let cached = target.computed.min(sequence.usage.prompt_tokens);
            sequence.usage.cached_tokens = cached;
            self.totals.prompt_tokens += sequence.usage.prompt_tokens as u64;
            self.totals.cached_prompt_tokens += cached as u64;
        }
        sequence.target = target;
        sequence.target.table.reserve(sequence.tokens.capacity() + K_LIMIT);
        sequence.proposals.reserve(PROPOSALS_ROOM);
        sequence.outcomes.reserve(K_LIMIT);
        self.verify_lane.admit(seq, || sequence.admission());
        self.give_draft_rank(seq);
        true
    }

    /// Has a sequence drafted for on one of the ranks that have the draft, with what its pool has cached: whichever is the router's choice, as
    /// among replicas.
    fn give_draft_rank(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let (tokens, salt) = (sequence.tokens.as_slice(), sequence.salt());
        let lead = router::lead(self.tuning.max_running.div_ceil(self.draft_pools.len()));
        let on_rank = |rank| {
            let running = self.running.iter().filter_map(|seq| self.sequences.get(seq));
            running.filter(|other| other.draft.table.rank() == rank).count()
        };
        let price = |(rank, pool): &(usize, &BlockPool)| {
            let requests = on_rank(*rank);
            let cached_tokens = pool.cached_tokens(tokens, salt);
            let free_tokens = pool.free() * self.config.block_size;
            let load = ReplicaLoad { ready: true, requests, cached_tokens, free_tokens, routed: 0 };
            (router::price(tokens.len(), lead, &load), Reverse(free_tokens), *rank)
        };
        let pools = self.draft_pools.iter().enumerate();
        let priced = self.draft_pools.len() > 1;
        let pool =
            if priced { pools.min_by_key(price).map(|(_, pool)| pool) } else { self.draft_pools.first() };
        let Some(pool) = pool else { return };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        if !sequence.drafts() {
            sequence.draft = SequenceKv::empty(pool, sequence.salt());
            return;
        }
        sequence.draft = SequenceKv::from_cache(pool, &sequence.tokens, sequence.salt());
        sequence.draft.copy_tail();
        sequence.draft.table.reserve(sequence.tokens.capacity() + 2 * K_LIMIT);
    }

    /// Makes room in the target's pool for `tokens` tokens of `seq`, at the cost of less urgent and of younger sequences where it must
    /// be. False if `seq` itself had to go.
    pub(crate) fn make_room(&mut self, seq: SeqId, tokens: usize) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
            if sequence.target.table.grow(tokens) {
                return true;
            }
            if self.release_provisional() {
                continue;
            }
            let Some(last) = self.least_urgent() else { return false };
            self.totals.preemptions += 1;
            self.preempt(last);
            if last == seq {
                return false;
            }
        }
    }

    /// Gives back the target KV of everyone's proposals: speculation is cut before anyone is preempted. False if there was none.
    /// To be called while no verify pass is out.
    fn release_provisional(&mut self) -> bool {
        let before = self.target_pool.free();
        for seq in &self.running {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.target.table.shrink(sequence.tokens.len());
            }
        }
        self.target_pool.free() > before
    }

    /// Has a sequence no business with draft KV now, which another of the same rank wants?
    fn idles_beside(&self, seq: SeqId, other: SeqId) -> bool {
        let of = |seq| self.sequences.get(&seq);
        let (Some(sequence), Some(other)) = (of(seq).filter(|_| seq != other), of(other)) else {
            return false;
        };
        let same_rank = sequence.draft.table.rank() == other.draft.table.rank();
        let idle = sequence.wanted == 0 && sequence.draft_out.is_none();
        same_rank && idle && !sequence.draft.table.is_empty()
    }

    /// Blocks of draft KV that sequences have for whom there is nothing to draft now, of the rank of another.
    pub(crate) fn idle_draft_blocks(&self, other: SeqId) -> usize {
        let idle = self.running.iter().filter(|seq| self.idles_beside(**seq, other));
        idle.filter_map(|seq| self.sequences.get(seq)).map(|sequence| sequence.draft.table.held()).sum()
    }

    /// Takes all draft KV from the youngest sequence of the same rank that is not to speculate now, for one that is. It can catch up when its
    /// turn comes. False if there is none.
    pub(crate) fn evict_idle_draft(&mut self, other: SeqId) -> bool {
        let idle = self.running.iter().rev().find(|seq| self.idles_beside(**seq, other));
        let Some(sequence) = idle.copied().and_then(|seq| self.sequences.get_mut(&seq)) else { return false };
        sequence.evict_draft();
        self.planner.returns(sequence.investment.write_off());
        true
    }

    /// Preempts a running sequence: takes all its KV and has it wait before all of its priority, to be recomputed.
    pub(crate) fn preempt(&mut self, seq: SeqId) {
        self.running.retain(|&id| id != seq);
        let drafting = self.draft_lane.outstanding();
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        self.cancelled_chunks.extend(sequence.chunks_out(&self.draft_lane, &self.verify_lane));
        self.moves.push(EpochMove {
            seq,
            epoch: sequence.epoch,
            frontier: sequence.tokens.len(),
            unsent: sequence.proposals.len(),
            drafting: drafting.filter(|_| sequence.draft_out.is_some()),
            taken: None,
            rejected: false,
        });
        sequence.evict((&self.target_pool, &self.draft_pools[0]));
        self.planner.returns(sequence.investment.write_off());
        self.draft_lane.retire(seq);
        self.verify_lane.retire(seq);
        self.enqueue(seq);
    }
}
