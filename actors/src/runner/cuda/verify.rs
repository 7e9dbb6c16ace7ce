//! The verify lane's executor on a GPU: one pass of the target over all rows, its own sample at every row from the anchor on, the gates'
//! tests and the verdict, all on the device.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{RIVALS, SeqId, Verdict, VerifyChunk, VerifyPlan};
use faser_kernels::cuda::{CudaError, Flags, NcclSeat, Test, Verdict as Judged};
use faser_models::cuda::{CudaModel, CudaPasses};

use super::rows::{PassRows, Piece, RowTest};
use super::sequences::CudaSequences;
use super::{CudaRunnerSpec, OrLost};
use crate::error::ServiceError;
use crate::runner::VerifyWork;
use crate::runner::judging::committed;
use crate::shed::Fallen;

/// Layers between two looks of the device at what was cancelled, where there is no gate.
const SHED_EVERY: usize = 4;
/// Looks at the device between two questions of who fell, while a pass runs.
const ASK_EVERY: usize = 256;

/// Runs verify plans on a GPU.
pub struct CudaVerifyRunner {
    passes: CudaPasses,
    sequences: CudaSequences,
    fallen: Option<Box<dyn Fallen>>,
    gone: Vec<SeqId>,
}

impl CudaVerifyRunner {
    /// A runner with empty KV memory.
    ///
    /// # Errors
    /// The GPU has not enough memory, or no stream.
    pub fn new(model: Arc<CudaModel>, spec: &CudaRunnerSpec) -> Result<CudaVerifyRunner, ServiceError> {
        Ok(CudaVerifyRunner {
            passes: CudaPasses::new(model, &spec.shares, false, spec.sizes)?,
            sequences: CudaSequences::default(),
            fallen: None,
            gone: Vec::new(),
        })
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    ///
    /// # Errors
    /// NCCL refuses, or the others do not join too.
    pub fn join(&mut self, seat: &NcclSeat) -> Result<(), ServiceError> {
        Ok(self.passes.join(seat)?)
    }

    /// From now on asks while a pass runs which sequences fell; in a group the first rank alone does.
    pub fn shedding(&mut self, fallen: Box<dyn Fallen>) {
        self.fallen = Some(fallen);
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// If the GPU fails; on a plan the engine would not make: a chunk of a sequence that was not admitted, without an anchor, or of more rows
    /// than a pass has. In a group: if the ranks have different plans, or one is lost.
    pub fn run(&mut self, work: VerifyWork) -> VerifyPlan {
        let started = Instant::now();
        let VerifyWork { mut plan, requests } = work;
        self.passes.work_on(plan.partition.0).or_lost();
        self.passes.agree_on(plan.step).or_lost();
        self.sequences.update(&mut self.passes, &plan.retire, &plan.admit, &requests).or_lost();
        self.gone.clear();
        let mut gaps = std::mem::take(&mut plan.outcome.gaps);
        gaps.resize(plan.gates.len() * plan.tests.len(), f32::NAN);
        let mut verdicts = std::mem::take(&mut plan.outcome.verdicts);
        self.carry_out(&plan, &mut gaps, &mut verdicts).or_lost();
        for (chunk, verdict) in plan.chunks.iter().zip(&verdicts) {
            // The next chunk starts after the accepted prefix; its own tokens bring the rest.
            let accepted = &plan.proposals(chunk)[..verdict.accepted];
            self.sequences.of(chunk.seq).rewind_and_extend(chunk.start + committed(chunk), accepted);
        }
        plan.outcome.gaps = gaps;
        plan.outcome.verdicts = verdicts;
        plan.outcome.took = started.elapsed();
        plan
    }

    /// All chunks, in as many passes as it takes: one, as engines plan.
    fn carry_out(
        &mut self,
        plan: &VerifyPlan,
        gaps: &mut [f32],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), CudaError> {
        let vocab = self.passes.model().config().vocab;
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let (tokens, anchored) = (plan.rows(chunk), committed(chunk));
            let sequence = self.sequences.of(chunk.seq);
            sequence.rewind_and_extend(chunk.start, &tokens[..anchored]);
            let samples = if chunk.sample { tokens.len() + 1 - anchored } else { 0 };
            if rows.room(self.passes.sizes(), samples) < tokens.len() {
                self.forward(plan, &std::mem::take(&mut rows), gaps, verdicts)?;
            }
            let piece = Piece {
                index,
                start: chunk.start,
                tokens,
                sampled_from: chunk.sample.then(|| anchored - 1),
                proposals: plan.proposals(chunk),
                table: plan.table(chunk),
            };
            let number = rows.push(&piece, self.sequences.of(chunk.seq), vocab);
            add_tests(&mut rows, number, plan, chunk);
        }
        self.forward(plan, &rows, gaps, verdicts)
    }

    /// Runs a pass and appends the verdicts on its chunks.
    fn forward(
        &mut self,
        plan: &VerifyPlan,
        rows: &PassRows<'_>,
        gaps: &mut [f32],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), CudaError> {
        if rows.is_empty() {
            return Ok(());
        }
        let sampled = rows.of_plan.iter().map(|&index| &plan.chunks[index]).filter(|chunk| chunk.sample);
        self.sequences.count(&mut self.passes, sampled.map(|chunk| chunk.seq))?;
        self.passes.stage(&rows.input())?;
        let layers = self.passes.model().config().layers;
        let mut gates = Vec::with_capacity(plan.gates.len());
        let mut begin = 0;
        while begin < layers {
            let end = self.next_stop(plan, begin, gates.len(), layers);
            self.passes.layers(begin..end)?;
            if end < layers {
                self.ask(plan, rows, end);
                if plan.gates.get(gates.len()) == Some(&end) {
                    gates.push(self.passes.gate()?);
                }
                self.passes.shed()?;
            }
            begin = end;
        }
        self.passes.finish()?;
        let drawn = self.passes.draw(false)?;
        let judged = self.passes.judge(&drawn)?;
        self.passes.fetch()?;
        let (fallen, mut looks) = (&mut self.fallen, 0usize);
        let gone = &mut self.gone;
        self.passes.wait(&mut |flags| {
            looks += 1;
            if let Some(fallen) = fallen.as_mut().filter(|_| looks.is_multiple_of(ASK_EVERY)) {
                fallen.fallen(plan.step, layers, gone);
                flag(flags, plan, rows, gone);
            }
        })?;
        for (number, gate) in gates.iter().enumerate() {
            let found = self.passes.gaps(*gate);
            for (&test, &gap) in rows.tested.iter().zip(found) {
                gaps[number * plan.tests.len() + test] = gap;
            }
        }
        let judged = self.passes.verdicts(judged);
        let told = rows.of_plan.iter().zip(judged);
        verdicts.extend(told.map(|(&index, judged)| verdict(plan, &plan.chunks[index], judged, gaps)));
        Ok(())
    }

    /// Where rows may leave next: at a gate, or where the device looks at what was cancelled. The layers up to there are asked for in one go.
    fn next_stop(&self, plan: &VerifyPlan, begin: usize, gates: usize, layers: usize) -> usize {
        // Of a group the first rank hears for all.
        let looks = self.fallen.is_some() || self.passes.is_split();
        let look = if looks { (begin / SHED_EVERY + 1) * SHED_EVERY } else { layers };
        look.min(plan.gates.get(gates).copied().unwrap_or(layers)).min(layers)
    }

    /// Asks who fell, and flags their chunks.
    fn ask(&mut self, plan: &VerifyPlan, rows: &PassRows<'_>, layer: usize) {
        let Some(fallen) = &mut self.fallen else { return };
        fallen.fallen(plan.step, layer, &mut self.gone);
        for (number, &index) in rows.of_plan.iter().enumerate() {
            if self.gone.contains(&plan.chunks[index].seq) {
                self.passes.cancel(number);
            }
        }
    }
}

fn flag(flags: &Flags, plan: &VerifyPlan, rows: &PassRows<'_>, gone: &[SeqId]) {
    for (number, &index) in rows.of_plan.iter().enumerate() {
        if gone.contains(&plan.chunks[index].seq) {
            flags.set(number);
        }
    }
}

/// The tests of a chunk's proposals; those without rivals are not made.
fn add_tests(rows: &mut PassRows<'_>, number: u32, plan: &VerifyPlan, chunk: &VerifyChunk) {
    if chunk.tests.is_empty() {
        return;
    }
    let anchor = committed(chunk) - 1;
    for (at, &proposal) in plan.proposals(chunk).iter().enumerate() {
        let index = chunk.tests.start + at;
        let test = &plan.tests[index];
        if test.rivals.is_empty() {
            continue;
        }
        // The row before the proposal predicts it.
        let offset = anchor + at;
        let position = (chunk.start + offset + 1) as u32;
        let mut tokens = [proposal; RIVALS + 1];
        tokens[..test.rivals.len()].copy_from_slice(&test.rivals);
        let on_device = Test { chunk: number, offset: offset as u32, position, proposal };
        let row: RowTest = (on_device, tokens, test.max_gap);
        rows.tests.push(row);
        rows.tested.push(index);
    }
}

/// The verdict in the engine's words. At which gate rows left follows from the gaps.
fn verdict(plan: &VerifyPlan, chunk: &VerifyChunk, judged: &Judged, gaps: &[f32]) -> Verdict {
    let rows = judged.rows as usize;
    if rows == 0 {
        // It fell.
        return Verdict::default();
    }
    let (mut left, mut pruned_at) = (chunk.rows.len(), 0);
    for gate in 0..plan.gates.len() {
        for (at, test) in chunk.tests.clone().enumerate() {
            let ends = committed(chunk) + at;
            if gaps[gate * plan.tests.len() + test] > plan.tests[test].max_gap && ends < left {
                (left, pruned_at) = (ends, gate);
            }
        }
    }
    let next = (judged.next != faser_kernels::cuda::NOTHING).then_some(judged.next);
    let pruned = chunk.rows.len() - rows;
    Verdict { accepted: judged.accepted as usize, next, late: false, forbidden: 0, pruned, pruned_at }
}
