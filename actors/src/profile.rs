//! Measures what passes cost on this device: the planner's cost tables at start-up.
//!
//! Each lane of each partition runs passes of the row counts of `ROW_GRID` over rows without context, and passes with context
//! to tell what attention adds, in a few rounds over all of them: a moment in which the machine is busy spoils one reading of each
//! at most, and medians count. Long passes are run once. Then, for a while, rows between them are run where cost is no line, and at last both sides of
//! each step once more. Where both lanes have the same SMs at once, each is measured while the other works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID, confirm, refine};
use faser_engine::{Admission, BlockId, SeqId, TokenId};
use faser_kernels::Sampling;
use faser_kernels::cuda::BLOCK_SIZE;

use crate::device::{DeviceSpec, LanePasses, OnLane, Open, SAMPLED_ROWS};
use crate::error::ServiceError;
use crate::runner::{
    Begins, Draw, LaneBackend, MASK_PATIENCE, Masks, PassOutputs, PassRows, Piece, Sequences,
};
use crate::submission::LaneRequest;

/// Rounds over all passes.
const ROUNDS: usize = 3;
/// Runs of one pass in a round, at most.
const RUNS: usize = 3;
/// Time after which one row count has been run often enough in a round.
const ENOUGH: Duration = Duration::from_millis(20);
/// Passes longer than this are run in the first round only.
const ONCE: Duration = Duration::from_millis(250);
/// Passes longer than this are not followed by longer ones: cost is taken to grow with the rows from there.
const LONG: Duration = Duration::from_millis(600);
/// Time for looks between the row counts: after it only the first ones are taken, where passes are long.
const REFINING: Duration = Duration::from_secs(2);
/// The first looks.
const FIRST_LOOKS: usize = 24;
/// No look begins after this.
const REFINED: Duration = Duration::from_secs(8);
/// No look at the sides of a step begins after this.
const CONFIRMING: Duration = Duration::from_secs(2);
/// So often a lane over several nodes is tried.
const NODE_TRIES: usize = 10;
/// Rows of a sequence and context tokens of the pass that tells what attention costs. One sequence may leave most of a device idle, and tells how long attention
/// takes alone, not what it costs beside others: there are as many as fill it.
const CONTEXT_ROWS: usize = 8;
const CONTEXT: usize = 512;
/// Rows of a pass beside which the other lane's are measured.
const BESIDE_ROWS: usize = 8;

/// What is to be measured.
pub struct ProfileSpec<'a> {
    /// The pair, or a target without a draft, and the device with its partitions.
    pub device: &'a DeviceSpec,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Rows of the largest pass that will be asked for.
    pub max_rows: usize,
    /// Tokens of the longest sequence.
    pub max_context: usize,
    /// As [`EngineConfig::deterministic`](faser_engine::EngineConfig::deterministic) says.
    pub deterministic: bool,
}

/// Measures all partitions, in their order; `progress` hears of every lane that is done, and of how many there are.
///
/// # Errors
/// A lane or its memory cannot be had.
pub fn profile(
    spec: &ProfileSpec<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<PartitionCosts>, ServiceError> {
    let drafts = spec.device.draft().is_some();
    let lanes = (1 + usize::from(drafts)) * spec.device.partitions().len();
    let mut done = 0;
    let mut told = |cost: PassCost| {
        done += 1;
        progress(done, lanes);
        cost
    };
    let places = 0..spec.device.partitions().len();
    let costs = places.map(|place| {
        let draft = if drafts { told(spec.lane(place, true)?) } else { PassCost::nothing() };
        Ok(PartitionCosts { draft, verify: told(spec.lane(place, false)?) })
    });
    costs.collect()
}

/// Measures passes of one row on the whole device, and nothing else: a few passes, by which tables of an earlier start can be judged.
///
/// # Errors
/// As [`profile`].
pub fn glance(spec: &ProfileSpec<'_>) -> Result<PartitionCosts, ServiceError> {
    let spec = ProfileSpec { max_rows: 1, max_context: 2, ..*spec };
    let drafts = spec.device.draft().is_some();
    let draft = if drafts { spec.lane(0, true)? } else { PassCost::nothing() };
    Ok(PartitionCosts { draft, verify: spec.lane(0, false)? })
}

impl ProfileSpec<'_> {
    /// What the first rank measures of a lane on a partition; the others do what it does.
    fn lane(&self, place: usize, drafts: bool) -> Result<PassCost, ServiceError> {
        let lane = self.passes(place, drafts);
        if !self.device.shares_units(place) {
            return self.tried(|| self.device.with_lane(lane, Timed));
        }
        let other = LanePasses { most_rows: BESIDE_ROWS.min(lane.most_rows), ..self.passes(place, !drafts) };
        self.tried(|| self.beside(lane, other))
    }

    /// What is measured of a lane while another one works.
    fn beside(&self, lane: LanePasses, other: LanePasses) -> Result<PassCost, ServiceError> {
        let (works, work) = mpsc::channel();
        let ends = Arc::new(AtomicBool::new(false));
        let beside = Beside { works, ends: ends.clone() };
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| self.device.with_lane(other, beside));
            // Whatever happens here, it ends.
            let guard = Ends(ends);
            // It is dropped if the lane cannot be had, which is said below.
            let _ = work.recv();
            let measured = self.device.with_lane(lane, Timed);
            drop(guard);
            beside.join().unwrap_or_else(|_| Err(lost("a pass panicked; see above")))?;
            measured
        })
    }

    /// Tries again where a node was lost: it comes again, and is waited for.
    fn tried(&self, measure: impl Fn() -> Result<PassCost, ServiceError>) -> Result<PassCost, ServiceError> {
        for _ in 1..NODE_TRIES {
            match measure() {
                Err(error) if self.device.nodes().is_some() => {
                    tracing::warn!(%error, "costs are measured once more: a node was lost");
                }
                measured => return measured,
            }
        }
        measure()
    }

    fn passes(&self, place: usize, drafts: bool) -> LanePasses {
        let model = if drafts { self.device.draft() } else { Some(self.device.target()) };
        let holds = model.as_ref().map_or(1, |model| model.config.max_context);
        let vocab = model.as_ref().map_or(1, |model| model.config.known_vocab());
        let most_rows = self.max_rows.min(ROW_GRID[ROW_GRID.len() - 1]);
        let context = CONTEXT.min(self.max_context.min(holds) - 1);
        // Blocks of the longest table; a GPU's may be smaller than they are said to be.
        let table = context / self.block_size.min(BLOCK_SIZE) + 1;
        LanePasses {
            place,
            drafts,
            block_size: self.block_size,
            most_rows,
            context,
            table,
            vocab,
            deterministic: self.deterministic,
        }
    }
}

fn lost(reason: &str) -> ServiceError {
    ServiceError::Lane { lane: "profiled", reason: reason.to_owned() }
}

/// The passes of a lane are timed.
struct Timed;

impl OnLane for Timed {
    type Found = PassCost;

    fn on<B: LaneBackend + 'static>(
        self,
        lane: LanePasses,
        ranks: Vec<Open<B>>,
    ) -> Result<PassCost, ServiceError> {
        led(lane, ranks, move |passes| cost(passes, lane.most_rows, lane.context))
    }
}

/// A lane works while the other one's passes are timed.
struct Beside {
    /// Hears of each pass once nothing is new about them.
    works: mpsc::Sender<()>,
    /// It is to end.
    ends: Arc<AtomicBool>,
}

/// Passes of [`Beside`] before the other lane is opened: a GPU captures one of the first, while which nobody may wait for the whole device.
const WARM_UP: usize = 3;

/// Ends what works beside.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl OnLane for Beside {
    type Found = ();

    fn on<B: LaneBackend + 'static>(self, lane: LanePasses, ranks: Vec<Open<B>>) -> Result<(), ServiceError> {
        led(lane, ranks, move |passes| {
            let mut works = Some(self.works);
            for pass in 1.. {
                if self.ends.load(Ordering::Relaxed) {
                    break;
                }
                passes.told(lane.most_rows, 0);
                passes.run(lane.most_rows, 0);
                if let Some(works) = works.take_if(|_| pass == WARM_UP) {
                    // Who waits for it is there.
                    let _ = works.send(());
                }
            }
        })
    }
}

/// Does something with passes of a lane's first rank, and what it does with those of the others. Each rank has a thread of its own, which may be pinned as the
/// lane's will be.
fn led<B: LaneBackend + 'static, T: Send + 'static>(
    lane: LanePasses,
    ranks: Vec<Open<B>>,
    lead: impl FnOnce(&mut TimedPasses<B>) -> T + Send + 'static,
) -> Result<T, ServiceError> {
    let mut lead = Some(lead);
    let mut threads = Vec::with_capacity(ranks.len());
    for open in ranks {
        let lead = lead.take();
        let work = move || {
            let mut passes = TimedPasses::new(open()?, lane);
            let Some(lead) = lead else {
                passes.follow();
                return Ok(None);
            };
            let found = lead(&mut passes);
            passes.told(0, 0);
            Ok(Some(found))
        };
        let thread = std::thread::Builder::new().name("faser-profile".to_owned()).spawn(work);
        threads.push(thread.map_err(|source| ServiceError::Thread { name: "profiling", source })?);
    }
    let found: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(lost("a pass panicked; see above"))))
        .collect();
    let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    found.into_iter().flatten().next().ok_or_else(|| lost("it has no first rank"))
}

/// Does what the first rank does on another node, until it ends.
pub(crate) fn follow_passes<B: LaneBackend>(backend: B, lane: LanePasses) {
    TimedPasses::new(backend, lane).follow();
}

fn cost<B: LaneBackend>(lane: &mut TimedPasses<B>, most_rows: usize, context: usize) -> PassCost {
    let sequences = lane.sequences();
    let each = CONTEXT_ROWS.min(most_rows / sequences).min(context + 1).max(1);
    let some = each * sequences;
    // At position 0 for each row count, one row and some rows of each sequence with context too: each right behind those that it is compared with, for
    // after a long pass the next ones find nothing in the caches. The largest too: beyond what is measured, cost is taken to grow with the rows.
    let mut counts: Vec<usize> =
        ROW_GRID.into_iter().chain([sequences, some]).filter(|&rows| rows < most_rows).collect();
    counts.push(most_rows);
    counts.sort_unstable();
    counts.dedup();
    let with_context = |rows: usize| (rows == sequences || rows == some).then_some((rows, context));
    let passes: Vec<(usize, usize)> =
        counts.into_iter().flat_map(|rows| [Some((rows, 0)), with_context(rows)]).flatten().collect();
    let mut readings = vec![Vec::with_capacity(ROUNDS); passes.len()];
    for round in 0..ROUNDS {
        reading(lane, 1, 0);
        let mut longest = Duration::ZERO;
        for (&(rows, context), readings) in passes.iter().zip(&mut readings) {
            let first = readings.first().copied().unwrap_or_default();
            let wanted = context > 0 || longest < LONG;
            if wanted && (round == 0 || (!readings.is_empty() && first < ONCE)) {
                if lane.first_is_cold() && round == 0 {
                    lane.told(rows, context);
                    lane.run(rows, context);
                }
                readings.push(reading(lane, rows, context));
            }
            longest = readings.first().copied().unwrap_or(longest);
        }
    }
    let medians: Vec<Option<Duration>> = readings.into_iter().map(median).collect();
    let measured = passes.iter().zip(&medians).filter(|((_, context), _)| *context == 0);
    let mut points: Vec<(usize, Duration)> =
        measured.filter_map(|(&(rows, _), median)| Some((rows, (*median)?))).collect();
    let time_of = |rows| points.iter().find(|&&(count, _)| count >= rows).map(|&(_, time)| time);
    let with_context = |rows| {
        passes
            .iter()
            .zip(&medians)
            .find(|(pass, _)| **pass == (rows, context))
            .and_then(|(_, median)| *median)
    };
    // Of what was not measured without context nobody knows what attention adds.
    let longer = |rows| Some(with_context(rows)?.saturating_sub(time_of(rows)?) / sequences as u32);
    let [one, many] = [sequences, some].map(|rows| longer(rows).unwrap_or_default());
    let began = Instant::now();
    let mut looks = 0;
    let mut look = |rows| {
        if lane.first_is_cold() {
            lane.told(rows, 0);
            lane.run(rows, 0);
        }
        // A moment in which the machine is busy makes a bend where none is.
        reading(lane, rows, 0).min(reading(lane, rows, 0))
    };
    refine(&mut points, |rows| {
        let most = if looks < FIRST_LOOKS { REFINED } else { REFINING };
        looks += 1;
        (began.elapsed() < most).then(|| look(rows))
    });
    let began = Instant::now();
    confirm(&mut points, |rows| (began.elapsed() < CONFIRMING).then(|| look(rows)));
    if let Some(&(rows, time)) = points.iter().max() {
        // Beyond what was measured it grows with the rows.
        points.push((2 * rows, 2 * time));
    }
    PassCost::new(&points, AttentionCost::fitted(context, each, one, many))
}

/// Median time of a few passes.
fn reading<B: LaneBackend>(lane: &mut TimedPasses<B>, rows: usize, context: usize) -> Duration {
    let mut times = Vec::with_capacity(RUNS);
    let begin = Instant::now();
    while times.is_empty() || (times.len() < RUNS && begin.elapsed() < ENOUGH) {
        lane.told(rows, context);
        times.push(lane.run(rows, context));
    }
    median(times).unwrap_or_default()
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// The one sequence that all rows are of.
const SEQ: SeqId = SeqId(0);

/// Passes whose rows begin at different tokens.
const SHIFTS: usize = 251;

/// So many tokens of a vocabulary, in no order. (The multiplier is that of Fibonacci hashing.)
fn tokens(count: usize, vocab: usize) -> Vec<TokenId> {
    let token = |place: u64| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % vocab.max(1) as u64;
    (1..=count as u64).map(|place| token(place) as TokenId).collect()
}

impl LanePasses {
    /// Rows without context are a piece each, with a block of its own; rows with context are as many pieces that end there, or fewer, with blocks of their own
    /// too. Nothing is read that another row writes, and each row has a token of its own.
    fn rows<'a>(
        &self,
        blocks: &'a [BlockId],
        tokens: &'a [TokenId],
        (rows, context, sequences): (usize, usize, usize),
    ) -> PassRows<'a> {
        let pieces = if context == 0 { rows } else { sequences.min(rows) };
        let each = rows / pieces;
        let start = if context == 0 { 0 } else { (context + 1).saturating_sub(each) };
        let mut pass = PassRows::default();
        for number in 0..pieces {
            let drawn_from = each - SAMPLED_ROWS.saturating_sub(number * each).min(each);
            let own = &tokens[start + number * each..][..each];
            let piece = Piece {
                seq: SEQ,
                chunk: number,
                first: 0,
                start,
                rows: 0,
                logits_from: drawn_from,
                drawn_from,
                since: 0,
                nearer: 0,
                begins: Begins::Alone,
                proposals: own,
            };
            let length = if context == 0 { 1 } else { self.table };
            let table = &blocks[number * length..][..length];
            pass.push(piece, own, table);
        }
        pass
    }
}

/// Passes of one lane, of one rank.
struct TimedPasses<B: LaneBackend> {
    backend: B,
    lane: LanePasses,
    sequences: Sequences<B::Sequence>,
    masks: Masks,
    blocks: Vec<BlockId>,
    tokens: Vec<TokenId>,
    /// Passes that were run; ranks count alike.
    begun: usize,
    outputs: PassOutputs,
}

impl<B: LaneBackend> TimedPasses<B> {
    /// Passes of a rank's lane.
    fn new(mut backend: B, lane: LanePasses) -> TimedPasses<B> {
        let mut sequences = Sequences::default();
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let admission = Admission { seq: SEQ, prompt_len: 1, tokens: [0].into() };
        backend.update(&mut sequences, &[], &[admission], &[Arc::new(LaneRequest::from(sampling))]);
        let (masks, outputs) = (Masks::new(MASK_PATIENCE), PassOutputs::default());
        let blocks = (0..lane.blocks() as BlockId).collect();
        let tokens = tokens(lane.most_rows + lane.context + 1 + SHIFTS, lane.vocab);
        TimedPasses { backend, lane, sequences, masks, blocks, tokens, begun: 0, outputs }
    }

    /// Does what the first rank does until it ends.
    fn follow(&mut self) {
        loop {
            let (rows, context) = self.told(0, 0);
            if rows == 0 {
                return;
            }
            self.run(rows, context);
        }
    }

    /// Rows and context of the first rank's next pass; no rows: there is none.
    fn told(&mut self, rows: usize, context: usize) -> (usize, usize) {
        match self.backend.rank().1 {
            1 => (rows, context),
            _ => {
                let words = self.backend.gather(&[rows as u32, context as u32]);
                (words[0] as usize, words[1] as usize)
            }
        }
    }

    /// Makes the next pass, whose tokens are others than those of the one before, and runs it: how long the lane had it. What its sequence had
    /// before is there by then, as it is when requests are served.
    fn run(&mut self, rows: usize, context: usize) -> Duration {
        let tokens = &self.tokens[self.begun % SHIFTS..];
        self.begun += 1;
        let pass = self.lane.rows(&self.blocks, tokens, (rows, context, self.sequences()));
        let start = pass.pieces.first().map_or(0, |piece| piece.start);
        self.sequences.of_mut(SEQ).rewind_and_extend(0, &tokens[..=start]);
        let began = Instant::now();
        self.masks.begin(pass.pieces.len(), &mut self.sequences);
        self.backend.stage(&pass, &mut self.sequences);
        self.backend.layers(&pass, 0..self.backend.layer_count());
        self.backend.finish();
        let how =
            Draw { masks: &self.masks, confidence: self.lane.drafts, alternatives: false, candidates: false };
        self.backend.draw(&pass, &self.sequences, &how);
        self.backend.collect(&pass, &mut self.outputs, &mut |_| {});
        began.elapsed()
    }

    /// Sequences of a pass with context: as many as fill the device, as far as there are blocks.
    fn sequences(&self) -> usize {
        B::FILLED_BY.min(self.lane.blocks() / self.lane.table).min(self.lane.most_rows).max(1)
    }

    /// Whether the first pass of a row count takes longer than those after it.
    fn first_is_cold(&self) -> bool {
        B::FIRST_IS_COLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::cost::Reach;
    use faser_kernels::{Dtype, Isa};
    use faser_models::synthetic::{self, SyntheticSpec};
    use faser_topology::{LanePair, Partition};

    use crate::device::CpuSpec;

    /// Else they would all go to the same experts, and cost what one row costs.
    #[test]
    fn rows_of_a_pass_have_tokens_of_their_own() {
        let lane = LanePasses {
            place: 0,
            drafts: false,
            block_size: 16,
            most_rows: 64,
            context: 99,
            table: 7,
            vocab: 2048,
            deterministic: false,
        };
        let blocks: Vec<BlockId> = (0..64).collect();
        let tokens = tokens(164 + SHIFTS, lane.vocab);
        let passes = [(0, 1), (lane.context, 1), (lane.context, 8)];
        for (first, (context, sequences)) in (0..SHIFTS).flat_map(|first| passes.map(|pass| (first, pass))) {
            let mut distinct = lane.rows(&blocks, &tokens[first..], (64, context, sequences)).tokens;
            distinct.sort_unstable();
            distinct.dedup();
            // Of 64 tokens of 2048 drawn at random one is there twice.
            assert!(distinct.len() >= 60 && distinct.iter().all(|token| *token < 2048), "{distinct:?}");
        }
    }

    #[test]
    fn rows_with_context_are_of_several_sequences_and_few_are_drawn() {
        let lane = LanePasses {
            place: 0,
            drafts: false,
            block_size: 16,
            most_rows: 512,
            context: 512,
            table: 33,
            vocab: 2048,
            deterministic: false,
        };
        let blocks: Vec<BlockId> = (0..lane.blocks() as BlockId).collect();
        let tokens = tokens(1025 + SHIFTS, lane.vocab);
        let pass = lane.rows(&blocks, &tokens, (120, lane.context, 15));
        let drawn: usize = pass.pieces.iter().map(|piece| piece.rows - piece.drawn_from).sum();
        assert_eq!((pass.pieces.len(), pass.tokens.len(), drawn), (15, 120, SAMPLED_ROWS));
        assert!(pass.pieces.iter().all(|piece| piece.start + piece.rows == lane.context + 1));
    }

    #[test]
    fn a_target_costs_more_than_its_draft_and_more_rows_cost_more() {
        let spec = SyntheticSpec {
            layers: 8,
            draft_layers: 1,
            hidden: 64,
            intermediate: 128,
            experts: 0,
            experts_per_token: 0,
            heads: 2,
            kv_heads: 1,
            vocab: 256,
            max_context: 128,
            seed: 1,
            residual_scale: 0.1,
            mask_token: None,
        };
        let (target, draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
        let lane = Partition { cores: vec![0] };
        let mut heard = Vec::new();
        let costs = profile(
            &ProfileSpec {
                device: &DeviceSpec::Cpu(CpuSpec {
                    target: vec![Arc::new(target)],
                    draft: vec![Arc::new(draft)],
                    partitions: vec![LanePair { draft: lane.clone(), verify: lane }],
                    isa: Isa::detect(),
                    rank_deadline: std::time::Duration::from_secs(60),
                    nodes: None,
                }),
                block_size: 16,
                max_rows: 64,
                max_context: 128,
                deterministic: false,
            },
            &mut |done, all| heard.push((done, all)),
        );
        let costs = costs.unwrap();
        assert_eq!(heard, [(1, 2), (2, 2)]);
        // Far enough apart to be true on any machine: eight layers against one, 64 rows against one.
        assert!(
            costs[0].verify.seconds(1, Reach::NONE) > costs[0].draft.seconds(1, Reach::NONE),
            "{costs:?}"
        );
        assert!(
            costs[0].verify.seconds(64, Reach::NONE) > costs[0].verify.seconds(1, Reach::NONE),
            "{costs:?}"
        );
    }
}
