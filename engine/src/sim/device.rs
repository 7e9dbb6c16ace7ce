//! A device without tensors: passes cost time, KV is a fingerprint per slot, and a token is a function of its prefix.
//!
//! A slot of KV memory holds the fingerprint of the prefix that ends there, so a pass can tell whether the block table
//! it was given leads to the sequence's own history. The target's token is a hash of the fingerprint; whether the draft
//! agrees is up to its `Acceptance`, another function of the prefix.

use super::acceptance::Acceptance;
use super::costs::{Deviation, DeviceCosts};
use super::kv::{Origin, Prefix, SimLane};
use super::lanes::PlanOut;
use super::random::{mix, uniform};
use super::roofline::Work;
use crate::plan::{Candidates, DraftPlan, Drafted, Test, Verdict, VerifyChunk, VerifyPlan};
use crate::request::{CANDIDATES, SeqId, TokenId};

/// The simulated device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    costs: DeviceCosts,
    deviation: Deviation,
    block_size: usize,
    vocabulary: u32,
    acceptance: Acceptance,
    /// Of each request by its number, where its first tokens do not tell.
    origins: Vec<Origin>,
    oracle: bool,
    /// Share of the acceptance of a place that the next one of the same draft pass has.
    fade: f64,
    seed: u64,
    /// Of each rank that has the draft.
    drafts: Vec<SimLane>,
    target: SimLane,
}

impl SimDevice {
    /// A device with these true costs, whose draft model is right as often as `acceptance` says; tokens are
    /// `0 .. vocabulary`.
    pub fn new(
        seed: u64,
        vocabulary: u32,
        acceptance: impl Into<Acceptance>,
        block_size: usize,
        costs: impl Into<DeviceCosts>,
    ) -> SimDevice {
        SimDevice {
            costs: costs.into(),
            deviation: Deviation::default(),
            block_size,
            vocabulary,
            acceptance: acceptance.into(),
            origins: Vec::new(),
            oracle: false,
            fade: 1.0,
            seed,
            drafts: vec![SimLane::new(block_size)],
            target: SimLane::new(block_size),
        }
    }

    /// The same device, its passes taking other times than its costs say.
    pub fn deviating(self, deviation: Deviation) -> SimDevice {
        SimDevice { deviation, ..self }
    }

    /// The same device, told what requests are, by their numbers, where several begin alike.
    pub(super) fn knowing(self, origins: Vec<Origin>) -> SimDevice {
        SimDevice { origins, ..self }
    }

    /// The same device, its draft an oracle: it ends every chunk before its first wrong proposal, so that all that is verified is right.
    /// Steps that propose cost what they cost. A chunk whose first proposal would be wrong brings nothing and costs nothing, rows to
    /// catch up with included: an oracle would not begin it.
    #[must_use]
    pub fn with_oracle(self) -> SimDevice {
        SimDevice { oracle: true, ..self }
    }

    /// The same device, whose draft, where it proposes in one pass, knows less of each further place: that is right so many times as often as the one
    /// before it, and its confidence says so.
    #[must_use]
    pub fn fading(self, fade: f64) -> SimDevice {
        SimDevice { fade, ..self }
    }

    /// The text any correct schedule must emit: up to `max_new_tokens` tokens after `prompt`, ended by `stop_tokens`.
    pub fn continuation(
        &self,
        prompt: &[TokenId],
        max_new_tokens: usize,
        stop_tokens: &[TokenId],
    ) -> Vec<TokenId> {
        let mut prefix = Prefix::of(prompt);
        let mut out = Vec::new();
        while out.len() < max_new_tokens {
            let token = self.target_token(&prefix);
            if stop_tokens.contains(&token) {
                break;
            }
            out.push(token);
            prefix = prefix.then(token);
        }
        out
    }

    pub(super) fn lose(&mut self) {
        self.drafts = vec![SimLane::new(self.block_size)];
        self.target = SimLane::new(self.block_size);
    }

    /// Carries out a plan: its outcome, whose time is yet to be known, and the work it was.
    pub(super) fn draft(&mut self, plan: &mut DraftPlan) -> Work {
        let ranks = plan.chunks.iter().map(|chunk| chunk.rank + 1).max().unwrap_or(0);
        while self.drafts.len() < ranks {
            self.drafts.push(SimLane::new(self.block_size));
        }
        let known = |seq: &SeqId| self.drafts.iter().any(|lane| lane.knows(*seq));
        assert!(
            plan.retire.iter().all(known),
            "{:?} are retired, and no lane knows all of them",
            plan.retire
        );
        for (rank, lane) in self.drafts.iter_mut().enumerate() {
            lane.open_part(plan, rank);
        }
        let masked = plan.passes.is_one();
        let mut going: Vec<(usize, Prefix)> = Vec::new();
        let mut survivals: Vec<f32> = plan.chunks.iter().map(|chunk| chunk.stop.survival).collect();
        let mut drafted: Vec<Vec<Drafted>> = plan.chunks.iter().map(|_| Vec::new()).collect();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let lane = &mut self.drafts[chunk.rank];
            let (rows, table) = (&plan.tokens[chunk.rows.clone()], &plan.blocks[chunk.table.clone()]);
            if let Some(features) = plan.features(chunk) {
                self.target.assert_features(chunk.seq, (chunk.start, rows), table, features, lane);
            }
            let prefix = lane.compute(chunk.seq, chunk.start, rows, table);
            let end = chunk.start + rows.len() + chunk.steps;
            if chunk.outcome {
                lane.remember_at_least(chunk.seq, end);
            } else {
                lane.remember(chunk.seq, end);
            }
            if chunk.steps > 0 {
                going.push((index, prefix));
            }
        }
        for step in 0.. {
            if step > 0 && !masked {
                let of = |(index, _): &(usize, Prefix)| {
                    plan.step_price.gain(&plan.chunks[*index].stop, survivals[*index])
                };
                if !plan.step_price.pays(going.iter().map(of).sum()) {
                    break;
                }
            }
            let mut next = Vec::new();
            for (index, mut prefix) in std::mem::take(&mut going) {
                let chunk = &plan.chunks[index];
                let (rows, table) = (&plan.tokens[chunk.rows.clone()], &plan.blocks[chunk.table.clone()]);
                if step > 0 {
                    let token = drafted[index][step - 1].token;
                    prefix = if masked {
                        prefix.then(token)
                    } else {
                        self.drafts[chunk.rank].write(
                            chunk.start + rows.len() + step - 1,
                            prefix,
                            token,
                            table,
                        )
                    };
                }
                let place = if masked { step } else { 0 };
                let (token, confidence) = self.draft_token(chunk.seq, &prefix, self.fade.powi(place as i32));
                if self.oracle && token != self.target_token(&prefix) {
                    continue;
                }
                let alternatives =
                    plan.alternatives.then(|| [token, self.wrong(token)].into_iter().collect());
                drafted[index].push(Drafted {
                    token,
                    confidence,
                    alternatives: alternatives.unwrap_or_default(),
                    candidates: if plan.candidates {
                        self.candidates(&prefix, token)
                    } else {
                        Candidates::new()
                    },
                    forced: false,
                });
                survivals[index] = chunk.stop.after(survivals[index], confidence);
                if step + 1 < chunk.steps && survivals[index] >= chunk.stop.below {
                    next.push((index, prefix));
                }
            }
            going = next;
            if going.is_empty() {
                break;
            }
        }
        for (chunk, drafted) in plan.chunks.iter().zip(drafted) {
            let (rows, table) = (&plan.tokens[chunk.rows.clone()], &plan.blocks[chunk.table.clone()]);
            if masked || plan.features(chunk).is_some() {
                let end = chunk.start + rows.len();
                let places = end..end + plan.rows_behind(chunk.steps);
                places.for_each(|position| self.drafts[chunk.rank].spoil(position, table));
            }
            plan.outcome.counts.push(drafted.len());
            plan.outcome.proposals.extend(drafted);
        }
        let factor = self.deviation.draft * self.deviation.noise(self.seed, plan.step);
        self.costs.draft_plan(plan, &|_| true).times(factor)
    }

    /// As `draft`.
    pub(super) fn verify(&mut self, plan: &mut VerifyPlan) -> Work {
        self.target.open(plan.step, &plan.copies, &plan.retire, &plan.admit);
        plan.outcome.margins.resize(plan.prune_checkpoints.len() * plan.tests.len(), f32::NAN);
        for index in 0..plan.chunks.len() {
            let verdict = self.verify_chunk(plan, index);
            plan.outcome.verdicts.push(verdict);
        }
        let factor = self.deviation.verify * self.deviation.noise(!self.seed, plan.step);
        self.costs.verify_plan(plan, &|_| true).times(factor)
    }

    fn verify_chunk(&mut self, plan: &mut VerifyPlan, index: usize) -> Verdict {
        let chunk = plan.chunks[index].clone();
        let rows = &plan.tokens[chunk.rows.clone()];
        let table = &plan.blocks[chunk.table.clone()];
        let committed = rows.len() - chunk.proposals;
        let (rows_before, proposals) = rows.split_at(committed);
        let mut prefix = self.target.compute(chunk.seq, chunk.start, rows_before, table);
        self.target.remember(chunk.seq, chunk.start + rows.len());
        let (kept, pruned_at) = self.prune(
            plan.prune_checkpoints.as_slice(),
            &plan.tests,
            &chunk,
            &prefix,
            proposals,
            &mut plan.outcome.margins,
        );
        let mut verdict = Verdict {
            accepted: 0,
            next: chunk.sample.then(|| self.target_token(&prefix)),
            late: false,
            forbidden: 0,
            pruned: chunk.proposals - kept,
            pruned_at,
        };
        for (i, &proposal) in proposals[..kept].iter().enumerate() {
            let accepts = verdict.accepted == i && verdict.next == Some(proposal);
            prefix = self.target.write(chunk.start + committed + i, prefix, proposal, table);
            if accepts {
                verdict.accepted += 1;
                verdict.next = Some(self.target_token(&prefix));
            }
        }
        for position in kept..chunk.proposals {
            self.target.spoil(chunk.start + committed + position, table);
        }
        verdict
    }

    /// The pruning checkpoints of a pass for one chunk: how many of its proposals are left, and the last checkpoint that took some.
    fn prune(
        &self,
        checkpoints: &[usize],
        tests: &[Test],
        chunk: &VerifyChunk,
        anchor: &Prefix,
        proposals: &[TokenId],
        margins: &mut [f32],
    ) -> (usize, usize) {
        let (mut kept, mut pruned_at) = (proposals.len(), 0);
        for (checkpoint, &layers) in checkpoints.iter().enumerate().filter(|_| !chunk.tests.is_empty()) {
            let depth = layers as f64 / self.costs.target_layers() as f64;
            let mut prefix = *anchor;
            for (i, (&proposal, test)) in
                proposals[..kept].iter().zip(&tests[chunk.tests.clone()]).enumerate()
            {
                if test.alternatives.is_empty() {
                    break;
                }
                let right = self.target_token(&prefix) == proposal;
                let margin = self.acceptance.margin(self.seed, prefix.fingerprint, depth, right);
                margins[checkpoint * tests.len() + chunk.tests.start + i] = margin;
                if margin > test.max_margin {
                    (kept, pruned_at) = (i, checkpoint);
                    break;
                }
                prefix = prefix.then(proposal);
            }
        }
        (kept, pruned_at)
    }

    /// Share of the work of a plan that is left when some of its chunks need not be finished.
    pub(super) fn without(&self, plan: &PlanOut, cancelled: &[usize]) -> f64 {
        let wanted = |chunk: usize| !cancelled.contains(&chunk);
        let (all, left) = match plan {
            PlanOut::Draft(plan) => {
                (self.costs.draft_plan(plan, &|_| true), self.costs.draft_plan(plan, &wanted))
            }
            PlanOut::Verify(plan) => {
                (self.costs.verify_plan(plan, &|_| true), self.costs.verify_plan(plan, &wanted))
            }
        };
        if all.seconds > 0.0 { left.seconds / all.seconds } else { 1.0 }
    }

    fn target_token(&self, prefix: &Prefix) -> TokenId {
        let phrases = self.acceptance.phrases(prefix.origin.class);
        phrases
            .next(self.seed, prefix)
            .unwrap_or_else(|| (mix(prefix.fingerprint ^ self.seed) % u64::from(self.vocabulary)) as TokenId)
    }

    /// What else the draft would have drawn where it drew `token`: the target's own, if that is another one, in a place by the measured ranks.
    fn candidates(&self, prefix: &Prefix, token: TokenId) -> Candidates {
        let right = self.target_token(prefix);
        let mut luck = uniform(prefix.fingerprint.rotate_left(53) ^ self.seed);
        let place = self.acceptance.ranks().iter().position(|share| {
            luck -= share;
            luck < 0.0
        });
        let of = |rank| match place {
            Some(place) if token != right && place == rank => right,
            _ => (token + 2 + rank as u32) % self.vocabulary,
        };
        (0..CANDIDATES).map(of).collect()
    }

    /// Another token.
    fn wrong(&self, token: TokenId) -> TokenId {
        (token + 1) % self.vocabulary
    }

    /// The draft's token and its confidence, where it is right so many times as often as by `acceptance`.
    fn draft_token(&self, seq: SeqId, prefix: &Prefix, fade: f64) -> (TokenId, f32) {
        let token = self.target_token(prefix);
        let length = prefix.origin.length;
        let known = usize::try_from(seq.0).ok().and_then(|number| self.origins.get(number));
        let origin = known.map_or(prefix.origin, |known| Origin { length, ..*known });
        let (right, confidence) = self.acceptance.draw(self.seed, prefix.fingerprint, &origin);
        let right = right && uniform(prefix.fingerprint.rotate_left(41) ^ self.seed) < fade;
        let confidence = confidence * fade as f32;
        (if right { token } else { self.wrong(token) }, confidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{PartitionCosts, PassCost};
    use crate::plan::{Admission, DraftChunk, StopRule};

    /// A plan of one sequence on a rank, that goes on at a position.
    fn plan(step: u64, rank: usize, start: usize) -> DraftPlan {
        let chunk = DraftChunk {
            seq: SeqId(1),
            epoch: 0,
            start,
            rows: 0..2,
            steps: 0,
            stop: StopRule::default(),
            rank,
            table: 0..1,
            features: 0..0,
            outcome: false,
        };
        let admission = Admission { seq: SeqId(1), prompt_len: 4, tokens: [1, 2, 3, 4].into() };
        let tokens = [1, 2, 3, 4][start..start + 2].to_vec();
        let (admit, retire) = (vec![admission], if step > 1 { vec![SeqId(1)] } else { Vec::new() });
        DraftPlan {
            step,
            admit,
            retire,
            chunks: vec![chunk],
            tokens,
            blocks: vec![0],
            ..DraftPlan::default()
        }
    }

    fn run(ranks: [usize; 2]) {
        let pass = PassCost::nothing();
        let costs = vec![PartitionCosts { draft: pass.clone(), verify: pass }];
        let mut device = SimDevice::new(1, 50, 0.5, 4, costs);
        device.draft(&mut plan(1, ranks[0], 0));
        device.draft(&mut plan(2, ranks[1], 2));
    }

    #[test]
    fn a_block_is_read_where_it_was_written() {
        run([1, 1]);
    }

    #[test]
    #[should_panic(expected = "reads KV of position 0 that nobody wrote")]
    fn a_block_of_another_ranks_pool_is_found() {
        run([1, 0]);
    }
}
