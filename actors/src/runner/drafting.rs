//! A draft plan being carried out step by step by the host: who goes on, what was drafted.

use faser_engine::{BlockId, DraftChunk, DraftPlan, Drafted, Rivals, SeqId, TokenId};

/// A plan with what it has brought so far.
pub(super) struct Drafting<'a> {
    pub(super) plan: &'a DraftPlan,
    /// Block table of each chunk.
    pub(super) tables: Vec<&'a [BlockId]>,
    /// Proposals of each chunk.
    drafted: Vec<Vec<Drafted>>,
    /// Survival of each chunk's last proposal.
    survival: Vec<f32>,
    /// Chunks that get no more, whatever they wanted.
    ended: Vec<bool>,
}

impl<'a> Drafting<'a> {
    pub(super) fn new(plan: &'a DraftPlan) -> Drafting<'a> {
        Drafting {
            plan,
            tables: plan.chunks.iter().map(|chunk| plan.table(chunk)).collect(),
            drafted: plan.chunks.iter().map(|chunk| Vec::with_capacity(chunk.steps)).collect(),
            survival: plan.chunks.iter().map(|chunk| chunk.stop.survival).collect(),
            ended: vec![false; plan.chunks.len()],
        }
    }

    /// Steps of the chunk that has most.
    pub(super) fn most_steps(&self) -> usize {
        self.plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0)
    }

    /// The tokens of a chunk's rows.
    ///
    /// # Panics
    /// If there are none: the engine does not plan that.
    pub(super) fn rows(&self, chunk: &DraftChunk) -> &'a [TokenId] {
        let tokens = self.plan.rows(chunk);
        assert!(!tokens.is_empty(), "{} has a chunk without tokens", chunk.seq);
        tokens
    }

    /// The latest proposal of a chunk and its position, if the chunk wants another one. One that does not wants none later either.
    pub(super) fn goes_on(&mut self, index: usize, gone: &[SeqId]) -> Option<(TokenId, usize)> {
        let chunk = &self.plan.chunks[index];
        self.ended[index] |=
            self.missing(index) == 0 || self.survival[index] < chunk.stop.below || gone.contains(&chunk.seq);
        let drafted = &self.drafted[index];
        let latest = drafted.last().filter(|_| !self.ended[index])?;
        Some((latest.token, chunk.start + chunk.rows.len() + drafted.len() - 1))
    }

    /// Proposals that the plan wants of a chunk and that are not there.
    pub(super) fn missing(&self, index: usize) -> usize {
        match self.ended[index] {
            true => 0,
            false => self.plan.chunks[index].steps - self.drafted[index].len(),
        }
    }

    /// A chunk gets no more.
    pub(super) fn cease(&mut self, index: usize) {
        self.ended[index] = true;
    }

    /// A chunk's next proposal.
    pub(super) fn drew(&mut self, index: usize, token: TokenId, confidence: f32, rivals: Rivals) {
        self.survival[index] = self.plan.chunks[index].stop.after(self.survival[index], confidence);
        self.drafted[index].push(Drafted { token, confidence, rivals });
    }

    /// The proposals of each chunk.
    pub(super) fn end(self) -> Vec<Vec<Drafted>> {
        self.drafted
    }
}
