//! The draft lane's executor: catch-up rows for all chunks, then proposals, one token of every sequence per step. Where the plan has them all drawn
//! in one pass, mask tokens stand behind the rows, in the places of proposals but the last: the row of each brings the proposal after it. Rows of a head
//! on hidden states begin with the target's features, and those of its proposals with what the row before passed on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use faser_engine::{Alternatives, BlockId, Candidates, DraftChunk, DraftPlan, Drafted, K_LIMIT, TokenId};
use faser_models::{BlockSpec, ForcedToken};

use super::backend::{Begins, Draw, LaneBackend, PassOutputs, PassRows, Piece, candidates_of};
use super::masks::Masks;
use super::sequences::Sequences;
use crate::cancellation::{CancelSource, Cancelled};
use crate::submission::LaneRequest;

/// Confidence in a token of text that a grammar forces, where the target could divide that text otherwise.
const LIKELY: f32 = 0.9;

/// A draft plan, with what the engine does not know of its sequences.
#[derive(Clone, Debug)]
pub struct DraftWork {
    /// The plan.
    pub plan: DraftPlan,
    /// One entry per admission of the plan, in order.
    pub requests: Vec<Arc<LaneRequest>>,
}

/// Runs draft plans. Proposals stay with the lane from step to step; the host sees them when all are there.
pub struct DraftRunner<B: LaneBackend> {
    backend: B,
    sequences: Sequences<B::Sequence>,
    cancelled: Cancelled,
    outputs: PassOutputs,
    masks: Masks,
}

impl<B: LaneBackend> DraftRunner<B> {
    /// A runner on a device whose KV memory is empty. Tokens wait so long to be drawn for what their grammars allow; then no more is drafted of
    /// who is late.
    pub fn new(backend: B, mask_patience: Duration) -> DraftRunner<B> {
        DraftRunner {
            backend,
            sequences: Sequences::default(),
            cancelled: Cancelled::default(),
            outputs: PassOutputs::default(),
            masks: Masks::new(mask_patience),
        }
    }

    /// From now on asks between two steps which sequences were cancelled; in a group the first rank alone does.
    pub fn set_cancel_source(&mut self, source: Box<dyn CancelSource>) {
        self.cancelled.listen(source);
    }

    /// Carries out a plan: first `copies`, then `retire`, `admit`, and the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// If the device fails; on a plan the engine would not make: a chunk of a sequence that was not admitted, or without tokens, or one pass for all
    /// proposals of a model that has no mask token. In a group: if the ranks have different plans, or one is lost.
    pub fn run(&mut self, work: DraftWork) -> DraftPlan {
        let started = Instant::now();
        let DraftWork { mut plan, requests } = work;
        self.backend.work_on(plan.partition);
        self.backend.agree_on(plan.step);
        self.backend.copy_blocks(&plan.copies);
        self.backend.update(&mut self.sequences, &plan.retire, &plan.admit, &requests);
        self.cancelled.begin();
        let stepwise = !plan.passes.is_one();
        let alone = stepwise && !plan.chunks.is_empty() && !self.asks_the_host(&plan);
        let drafted = alone
            .then(|| self.backend.draft(&plan, &mut self.sequences, &mut self.cancelled))
            .flatten()
            .unwrap_or_else(|| self.step_by_step(&plan));
        plan.outcome.counts.extend(drafted.iter().map(Vec::len));
        plan.outcome.proposals.extend(drafted.into_iter().flatten());
        (plan.outcome.took, plan.outcome.cold) = (started.elapsed(), self.backend.was_cold());
        plan
    }

    /// Whether what may be drawn next is for the host to say.
    fn asks_the_host(&self, plan: &DraftPlan) -> bool {
        plan.chunks.iter().filter(|chunk| chunk.steps > 0).any(|chunk| {
            let sequence = self.sequences.of(chunk.seq);
            let sampling = &sequence.request.sampling;
            let output = (chunk.start + chunk.rows.len()).saturating_sub(sequence.history.prompt_len());
            sequence.request.constraint.is_some() || sampling.forbids() || sampling.goes_on(output)
        })
    }

    /// A pass for the first proposals, and one more for each after it: the host has a look at what is drawn.
    fn step_by_step(&mut self, plan: &DraftPlan) -> Vec<Vec<Drafted>> {
        self.masks.begin(plan.chunks.len(), &mut self.sequences);
        let mask = self.backend.mask_token().filter(|_| plan.passes.is_one());
        assert!(!plan.passes.is_one() || mask.is_some(), "the draft model has no mask token");
        let unknown = mask.map_or_else(Vec::new, |mask| vec![mask; K_LIMIT]);
        let mut job = Drafting::new(plan, &unknown);
        self.catch_up(&mut job);
        // Where all come from one pass, that was it.
        let steps = if unknown.is_empty() { job.most_steps() } else { 1 };
        for step in 1..steps {
            let layers = self.backend.layer_count() * step;
            self.backend.look(&mut self.cancelled, plan.step, layers, plan.chunks.len());
            if !self.step(&mut job) {
                break;
            }
        }
        // Asked in vain, if a chunk stopped by its rule.
        self.hear(&mut job);
        job.end()
    }

    /// A pass over blocks, and the rows of committed tokens that they stand behind; or the latter first, where it is too much for one.
    fn propose_blocks(&mut self, block: &BlockSpec, job: &mut Drafting<'_>) {
        let (plan, bounds) = (job.plan, self.backend.bounds());
        assert_eq!(plan.block_rows, block.rows, "rows of a block, as the engine knows the draft");
        for index in 0..plan.chunks.len() {
            job.forced[index] = self.masks.take_forced(index).first().copied();
        }
        let missing = |job: &Drafting<'_>, index| job.missing(index).min(block.proposals());
        let of_text: usize = plan.chunks.iter().map(|chunk| chunk.rows.len()).sum();
        let wanted: Vec<usize> = (0..plan.chunks.len()).map(|index| missing(job, index)).collect();
        let of_blocks = block.rows * wanted.iter().filter(|wanted| **wanted > 0).count();
        let together = of_text + of_blocks <= bounds.rows
            && wanted.iter().sum::<usize>() <= bounds.logit_rows
            && 3 * wanted.len() <= bounds.pieces;
        let mut rows = PassRows::default();
        if !together {
            self.text_of_blocks(&mut rows, job);
            self.forward(&std::mem::take(&mut rows), job);
        }
        for (index, chunk) in plan.chunks.iter().enumerate().filter(|(index, _)| wanted[*index] > 0) {
            let own = missing(job, index);
            let (drawn, pieces) = (block.first() + own, rows.pieces.len());
            let full = rows.tokens.len() + block.rows > bounds.rows || pieces + 2 > bounds.pieces;
            if full || rows.room(bounds, drawn, own) < drawn {
                self.forward(&std::mem::take(&mut rows), job);
            }
            let mut tokens = vec![job.unknown[0]; block.rows];
            tokens[0] = job.rows(chunk)[chunk.rows.len() - 1];
            let (position, table) = (chunk.start + chunk.rows.len(), job.tables[index]);
            let piece = Piece::drafting(chunk.seq, index, position, block.first())
                .masked(0, &job.unknown[..own - 1])
                .nearer(1 + block.first());
            rows.push(piece, &tokens[..drawn], table);
            if drawn < block.rows {
                let others = Piece::drafting(chunk.seq, index, position + drawn, block.rows);
                rows.push(others, &tokens[drawn..], table);
            }
        }
        if together {
            self.text_of_blocks(&mut rows, job);
        }
        self.forward(&rows, job);
    }

    /// The rows of committed tokens that blocks stand behind: features make their keys and values, and that is all there is of them.
    fn text_of_blocks<'a>(&mut self, rows: &mut PassRows<'a>, job: &mut Drafting<'a>) {
        let plan = job.plan;
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let (tokens, table) = (job.rows(chunk), job.tables[index]);
            let begins = plan.features(chunk).map_or(Begins::Alone, Begins::Features);
            let mut from = 0;
            while from < tokens.len() {
                let count = rows.room(self.backend.bounds(), tokens.len() - from, 0);
                if count == 0 {
                    self.forward(&std::mem::take(rows), job);
                    continue;
                }
                let piece = Piece::drafting(chunk.seq, index, chunk.start + from, count).beginning(begins);
                rows.push(piece, &tokens[from..from + count], table);
                from += count;
            }
        }
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal, unless a grammar forces it.
    fn catch_up(&mut self, job: &mut Drafting<'_>) {
        let plan = job.plan;
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let tokens = job.rows(chunk);
            if chunk.outcome {
                continue;
            }
            self.sequences.of_mut(chunk.seq).rewind_and_extend(chunk.start, tokens);
            self.ask(index, job);
        }
        self.hear(job);
        if let Some(block) = self.backend.block() {
            return self.propose_blocks(&block, job);
        }
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let begins = plan.features(chunk).map_or(Begins::Alone, Begins::Features);
            self.draft_from(job.rows(chunk), chunk.start, begins, index, &mut rows, job);
        }
        self.forward(&rows, job);
    }

    /// One more proposal for every chunk that wants one: the row of its latest proposal. False if none does, or the step does not pay.
    fn step(&mut self, job: &mut Drafting<'_>) -> bool {
        self.hear(job);
        // What a grammar forces takes no step of its own.
        let forced = (0..job.plan.chunks.len()).any(|index| self.masks.forces(index));
        if !forced && !job.pays_a_step(self.cancelled.chunks()) {
            return false;
        }
        let mut rows = PassRows::default();
        let mut wanted = false;
        for index in 0..job.plan.chunks.len() {
            if let Some((latest, position)) = job.goes_on(index, self.cancelled.chunks()) {
                let head = job.plan.features(&job.plan.chunks[index]).is_some();
                let begins = if head { Begins::PassedOn } else { Begins::Alone };
                self.draft_from(&[latest], position, begins, index, &mut rows, job);
                wanted = true;
            }
        }
        self.forward(&rows, job);
        wanted
    }

    /// Adds the rows of a chunk's latest tokens, of which the last brings the next proposal. Where a grammar forces that, it takes no step: its own
    /// row follows in the same pass. A pass that is full runs before.
    fn draft_from<'a>(
        &mut self,
        latest: &[TokenId],
        position: usize,
        begins: Begins<'a>,
        chunk: usize,
        rows: &mut PassRows<'a>,
        job: &mut Drafting<'a>,
    ) {
        let mut tokens = latest.to_vec();
        let mut drafts = true;
        let mut forced = self.masks.take_forced(chunk);
        if begins != Begins::Alone {
            // The row of a forced token begins with what the one before it passes on: it comes in the next pass.
            job.forced[chunk] = forced.first().copied();
            forced.clear();
        }
        for ForcedToken { token, certain } in forced {
            self.sequences.of_mut(job.plan.chunks[chunk].seq).push(token);
            let confidence = if certain { 1.0 } else { LIKELY };
            job.drew(chunk, Drafted { token, confidence, forced: true, ..Drafted::default() });
            if job.goes_on(chunk, self.cancelled.chunks()).is_none() {
                // The KV of the last proposal is not computed.
                drafts = false;
                break;
            }
            tokens.push(token);
        }
        let missing = if drafts { job.missing(chunk) } else { 0 };
        let masks = &job.unknown[..job.unknown.len().min(missing.saturating_sub(1))];
        tokens.extend(masks);
        // The row of the last known token is the first that a proposal is drawn for, and then those of masks are.
        let drawn_from = tokens.len() - missing.min(1 + masks.len());
        let mut from = 0;
        while from < tokens.len() {
            let drawn = tokens.len() - from.max(drawn_from);
            let count = rows.room(self.backend.bounds(), tokens.len() - from, drawn);
            if count == 0 {
                self.forward(&std::mem::take(rows), job);
                continue;
            }
            let seq = job.plan.chunks[chunk].seq;
            let piece = Piece::drafting(seq, chunk, position + from, drawn_from.saturating_sub(from))
                .masked(from.saturating_sub(drawn_from), masks)
                .beginning(begins);
            rows.push(piece, &tokens[from..from + count], job.tables[chunk]);
            from += count;
        }
    }

    /// Asks what the grammar of a chunk's sequence allows next, if it has one and more is to be drafted.
    fn ask(&mut self, index: usize, job: &Drafting<'_>) {
        let seq = job.plan.chunks[index].seq;
        if let (Some(following), most @ 1..) = (&mut self.sequences.of_mut(seq).following, job.missing(index))
        {
            self.masks.ask_forced(index, seq, following, most);
        }
    }

    /// Waits for what was asked. Where it is not known in time what a grammar allows, nothing more is drafted.
    fn hear(&mut self, job: &mut Drafting<'_>) {
        if self.backend.rank().0 == 0 {
            self.masks.settle(&mut self.sequences, job.plan.chunks.len());
        }
        let seqs = job.plan.chunks.iter().map(|chunk| chunk.seq);
        self.backend.tell_masks(&mut self.masks, &self.sequences, seqs);
        for index in 0..job.plan.chunks.len() {
            if self.masks.places(index) == Some(0) {
                job.cease(index);
                self.masks.take_forced(index);
            }
        }
    }

    /// Runs the pass; appends the proposals it brings to what is drafted and to the histories.
    fn forward(&mut self, rows: &PassRows<'_>, job: &mut Drafting<'_>) {
        if rows.is_empty() {
            return;
        }
        self.backend.stage(rows, &mut self.sequences);
        self.backend.layers(rows, 0..self.backend.layer_count());
        self.backend.finish();
        let DraftPlan { alternatives, candidates, .. } = *job.plan;
        let how = Draw { masks: &self.masks, confidence: true, alternatives, candidates };
        self.backend.draw(rows, &self.sequences, &how);
        self.backend.collect(rows, &mut self.outputs, &mut |_| {});
        let drawn = rows.pieces.iter().flat_map(|piece| (piece.drawn_from..piece.rows).map(move |_| piece));
        for (place, piece) in drawn.enumerate() {
            // Where a pass brings several, its stop rule may have ended a chunk before the last.
            if job.takes(piece.chunk) {
                let drawn = (self.outputs.tokens[place], self.outputs.confidence[place]);
                let forced = job.forced[piece.chunk].take();
                let (token, confidence) =
                    forced.map_or(drawn, |forced| (forced.token, if forced.certain { 1.0 } else { LIKELY }));
                // Alternatives that a grammar forbids say nothing of what the target draws under it.
                let free = self.masks.bits(piece.chunk, 0).is_none() && forced.is_none();
                let top = self.outputs.top.get(place).filter(|_| free);
                let alternatives = top.map_or_else(Alternatives::new, |top| Alternatives::from(*top));
                let next = self.outputs.candidates.get(place).filter(|_| free);
                let candidates = next.map_or_else(Candidates::new, |next| candidates_of(next));
                job.drew(piece.chunk, Drafted { token, confidence, alternatives, candidates, forced: false });
                // What else comes from the same pass does not know of it, nor do others what an outcome would bring.
                if job.unknown.is_empty() && !job.plan.chunks[piece.chunk].outcome {
                    self.sequences.of_mut(piece.seq).push(token);
                    self.ask(piece.chunk, job);
                }
            }
        }
    }
}

/// A plan that the host carries out step by step, with what it has brought so far: who goes on, what was drafted.
struct Drafting<'a> {
    plan: &'a DraftPlan,
    /// Mask tokens, where all proposals come from one pass.
    unknown: &'a [TokenId],
    /// Block table of each chunk.
    tables: Vec<&'a [BlockId]>,
    /// Proposals of each chunk.
    drafted: Vec<Vec<Drafted>>,
    /// Survival of each chunk's last proposal.
    survival: Vec<f32>,
    /// Chunks that get no more, whatever they wanted.
    ended: Vec<bool>,
    /// What a grammar forces in the place that the pass at hand draws for, of a head.
    forced: Vec<Option<ForcedToken>>,
}

impl<'a> Drafting<'a> {
    fn new(plan: &'a DraftPlan, unknown: &'a [TokenId]) -> Drafting<'a> {
        Drafting {
            plan,
            unknown,
            tables: plan.chunks.iter().map(|chunk| plan.table(chunk)).collect(),
            drafted: plan.chunks.iter().map(|chunk| Vec::with_capacity(chunk.steps)).collect(),
            survival: plan.chunks.iter().map(|chunk| chunk.stop.survival).collect(),
            ended: vec![false; plan.chunks.len()],
            forced: vec![None; plan.chunks.len()],
        }
    }

    /// Steps of the chunk that has most.
    fn most_steps(&self) -> usize {
        self.plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0)
    }

    /// The tokens of a chunk's rows.
    ///
    /// # Panics
    /// If there are none: the engine does not plan that.
    fn rows(&self, chunk: &DraftChunk) -> &'a [TokenId] {
        let tokens = self.plan.rows(chunk);
        assert!(!tokens.is_empty(), "{} has a chunk without tokens", chunk.seq);
        tokens
    }

    /// The latest proposal of a chunk and its position, if the chunk wants another one. One that does not wants none later either.
    fn goes_on(&mut self, index: usize, cancelled: &[usize]) -> Option<(TokenId, usize)> {
        let chunk = &self.plan.chunks[index];
        self.ended[index] |=
            self.missing(index) == 0 || self.survival[index] < chunk.stop.below || cancelled.contains(&index);
        let drafted = &self.drafted[index];
        let latest = drafted.last().filter(|_| !self.ended[index])?;
        Some((latest.token, chunk.start + chunk.rows.len() + drafted.len() - 1))
    }

    /// Does a step pay for all chunks that want another proposal?
    fn pays_a_step(&mut self, cancelled: &[usize]) -> bool {
        let (plan, mut gain) = (self.plan, 0.0);
        for (index, chunk) in plan.chunks.iter().enumerate() {
            if self.goes_on(index, cancelled).is_some() {
                gain += plan.step_price.gain(&chunk.stop, self.survival[index]);
            }
        }
        plan.step_price.pays(gain)
    }

    /// Whether a proposal that was drawn for a chunk is of use: the first always is.
    fn takes(&mut self, index: usize) -> bool {
        self.missing(index) > 0 && (self.drafted[index].is_empty() || self.goes_on(index, &[]).is_some())
    }

    /// Proposals that the plan wants of a chunk and that are not there.
    fn missing(&self, index: usize) -> usize {
        match self.ended[index] {
            true => 0,
            false => self.plan.chunks[index].steps - self.drafted[index].len(),
        }
    }

    /// A chunk gets no more.
    fn cease(&mut self, index: usize) {
        self.ended[index] = true;
    }

    /// A chunk's next proposal.
    fn drew(&mut self, index: usize, drafted: Drafted) {
        self.survival[index] = self.plan.chunks[index].stop.after(self.survival[index], drafted.confidence);
        self.drafted[index].push(drafted);
    }

    /// The proposals of each chunk.
    fn end(self) -> Vec<Vec<Drafted>> {
        self.drafted
    }
}
