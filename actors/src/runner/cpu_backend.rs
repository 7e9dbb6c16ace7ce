//! A lane on cores of this host: a model with its KV memory and buffers.

use std::ops::Range;
use std::sync::Arc;

use faser_engine::{Admission, BlockCopy, PartitionId, TokenId};
use faser_kernels::collective::GroupWays;
use faser_kernels::sampling::{self, CANDIDATES, LogprobRow, Logprobs, PartSampler};
use faser_kernels::{CollectiveError, Isa, KvCache, Lane, SampleRow, Tensor, View, ops};
use faser_models::{BlockSpec, Features, Model, Scratch};
use faser_topology::Partition;

use super::backend::{Begins, Cancel, Draw, LaneBackend, PassBounds, PassOutputs, PassRows, SCORED};
use super::sequences::{OnDevice, Sequences};
use crate::error::ServiceError;
use crate::submission::LaneRequest;

/// What a lane is made for, beside its model.
#[derive(Clone, Debug)]
pub struct CpuLaneSpec {
    /// Its cores, on each of the device's partitions.
    pub partitions: Vec<Partition>,
    /// The instruction set of its kernels.
    pub isa: Isa,
    /// KV blocks of its pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Rows of its largest pass; more work than that is done in several passes.
    pub max_rows: usize,
    /// Rows of its largest pass whose logits are wanted.
    pub max_logit_rows: usize,
    /// What a head reads of its target, of a lane that writes or reads it.
    pub features: Option<CpuFeatures>,
}

/// The features of a target's tokens, as a lane of it or of its head has them.
#[derive(Clone, Debug)]
pub struct CpuFeatures {
    /// Beside the target's KV.
    pub pages: Arc<Features>,
    /// The head that the lane writes them for; none where it reads them.
    pub head: Option<Arc<Model>>,
}

/// A model on cores.
pub struct CpuBackend {
    /// One lane per partition, and the one in use.
    lanes: Vec<Lane>,
    current: usize,
    pinned: bool,
    model: Arc<Model>,
    kv: KvCache,
    scratch: Scratch,
    bounds: PassBounds,
    pass: Pass,
    outputs: PassOutputs,
    /// Of a shard, what brings the ranks' logits together.
    part: Option<Part>,
    features: Option<CpuFeatures>,
    /// Of a head: what the last row of each chunk passed on.
    passed_on: Tensor,
}

/// The pass under way.
#[derive(Default)]
struct Pass {
    positions: Vec<u32>,
    /// Piece of each row.
    piece_of: Vec<u32>,
    /// Rows with logits.
    logits: Vec<u32>,
    pieces: Vec<Here>,
    /// Chunk of each piece.
    chunks: Vec<usize>,
    /// Somebody has rows that are not wanted any more.
    to_compact: bool,
    keep: Vec<u32>,
    tested: Vec<u32>,
    tokens: Vec<TokenId>,
    scores: Vec<f32>,
}

/// What is in the pass of a piece.
#[derive(Clone, Copy)]
struct Here {
    first: usize,
    rows: usize,
    /// Rows that are wanted.
    live: usize,
    cancelled: bool,
}

struct Part {
    sampler: PartSampler,
    /// The logits of all ranks, once somebody wanted them.
    whole: Option<Tensor>,
}

impl OnDevice for () {
    fn rewind_and_extend(&mut self, _start: usize, _tokens: &[TokenId]) {}
}

impl CpuBackend {
    /// A lane with empty KV memory.
    ///
    /// # Errors
    /// The lane's threads or its memory cannot be had.
    ///
    /// # Panics
    /// If the features are those of other models: see [`Model::attach`].
    pub fn new(model: Arc<Model>, spec: &CpuLaneSpec) -> Result<CpuBackend, ServiceError> {
        let lanes = spec
            .partitions
            .iter()
            .map(|partition| Lane::new(partition, spec.isa))
            .collect::<Result<Vec<_>, _>>()?;
        if lanes.is_empty() {
            return Err(ServiceError::Contradiction(
                "a runner needs the cores of at least one partition".to_owned(),
            ));
        }
        let kv = KvCache::new(model.kv_shape(spec.blocks, spec.block_size), model.kv_dtype())?;
        let mut scratch = model.scratch(spec.max_rows, spec.max_logit_rows);
        let features = spec.features.clone();
        if let Some(CpuFeatures { pages, head: Some(head) }) = &features {
            head.attach(&mut scratch, pages.clone());
        }
        let chunks = if model.config().head.is_some() { spec.max_rows } else { 1 };
        let passed_on = Tensor::zeros(chunks, model.config().hidden);
        let shard = model.shard();
        let part = (shard.ranks > 1).then(|| Part {
            sampler: PartSampler::new(model.config().vocab, shard.rank, shard.ranks),
            whole: None,
        });
        let bounds =
            PassBounds { rows: spec.max_rows, logit_rows: spec.max_logit_rows, pieces: spec.max_rows };
        let (pass, outputs) = (Pass::default(), PassOutputs::default());
        Ok(CpuBackend {
            lanes,
            current: 0,
            pinned: false,
            model,
            kv,
            scratch,
            bounds,
            pass,
            outputs,
            part,
            features,
            passed_on,
        })
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    pub fn join(&mut self, ways: &GroupWays) {
        for lane in &mut self.lanes {
            lane.join(ways.group.clone());
            lane.join_stage(ways.stage.clone());
        }
    }

    /// Pins the calling thread to the first core of the lane in use, and from now on to that of every lane that is used.
    /// False if the system does not allow it.
    pub fn pin_current_thread(&mut self) -> bool {
        self.pinned = self.lane().pin_current_thread();
        self.pinned
    }

    fn lane(&self) -> &Lane {
        &self.lanes[self.current]
    }

    /// Writes what the rows of a head begin with.
    fn begin_rows(&mut self, rows: &PassRows<'_>) {
        if self.model.config().head.is_none() {
            return;
        }
        let blocks = self.block().is_some();
        if blocks {
            // They stand first.
            let of_blocks = rows.pieces.iter().take_while(|piece| piece.begins == Begins::Alone);
            self.scratch.begin_blocks(of_blocks.map(|piece| piece.rows).sum());
        }
        let unknown = self.model.mask_features();
        for piece in rows.pieces.iter().filter(|piece| !blocks || piece.begins != Begins::Alone) {
            for offset in 0..piece.rows {
                let to = self.scratch.begins_with(piece.first + offset);
                if let Some(unknown) = unknown.filter(|_| piece.is_mask(offset)) {
                    to.copy_from_slice(unknown);
                    continue;
                }
                match (piece.begins, &self.features, (piece.start + offset).checked_sub(1)) {
                    (Begins::Features(table), Some(features), Some(before)) => {
                        features.pages.read(table, before, to);
                    }
                    (Begins::PassedOn, ..) => to.copy_from_slice(self.passed_on.row(piece.chunk)),
                    // No one attends to the first token; and a pass that is timed begins with nothing.
                    _ => to.fill(0.0),
                }
            }
        }
    }

    /// Keeps what the last row of each piece that drafts passes on to the next.
    fn pass_on(&mut self) {
        let config = self.model.config();
        // Of a head that proposes in one pass nothing goes on.
        if config.head.is_none() || config.mask_token.is_some() {
            return;
        }
        for (wanted, row) in self.pass.logits.iter().enumerate() {
            let chunk = self.pass.chunks[self.pass.piece_of[*row as usize] as usize];
            self.passed_on.row_mut(chunk).copy_from_slice(self.scratch.passed_on(config, wanted));
        }
    }

    /// Draws for the rows of blocks from left to right, of all blocks at once: what is drawn in a row may count in the one behind it. True if the head
    /// says how sure it is.
    fn draw_along(
        &mut self,
        rows: &PassRows<'_>,
        places: &[(usize, usize)],
        samples: &[SampleRow<'_>],
        (tokens, sure): (&mut [TokenId], &mut [f32]),
    ) -> bool {
        let since = |sample: &SampleRow<'_>| sample.since.len();
        let follows = self.model.follows();
        let steps = if follows { samples.iter().map(since).max().unwrap_or(0) } else { 0 };
        let mut known = !samples.is_empty();
        for step in 0..=steps {
            let of_step: Vec<usize> =
                (0..samples.len()).filter(|row| steps == 0 || since(&samples[*row]) == step).collect();
            // The row of the token before is the one before, or the block's first.
            let before = |row: &usize| match step {
                0 => rows.tokens[rows.pieces[places[samples[*row].row].0].first],
                _ => tokens[row - 1],
            };
            let before: Vec<TokenId> = of_step.iter().map(before).collect();
            let wanted: Vec<u32> = of_step.iter().map(|row| index(samples[*row].row)).collect();
            let mut own_sure = vec![0.0; of_step.len()];
            let lane = &self.lanes[self.current];
            known &= self.model.follow(lane, &mut self.scratch, &wanted, &before, step == 0, &mut own_sure);
            let mut drawn = vec![0; of_step.len()];
            let own: Vec<SampleRow<'_>> = of_step
                .iter()
                .map(|row| match &samples[*row] {
                    sample if follows => SampleRow { since: &tokens[row - since(sample)..*row], ..*sample },
                    sample => *sample,
                })
                .collect();
            let (lane, logits) = self.whole_logits();
            ops::sample(lane, logits, &own, &mut drawn);
            for ((row, token), own_sure) in of_step.iter().zip(drawn).zip(own_sure) {
                (tokens[*row], sure[*row]) = (token, own_sure);
            }
        }
        known
    }

    /// The logits of the pass, for all tokens, `[rows, vocab]`: of a shard, those of all ranks.
    fn whole_logits(&mut self) -> (&Lane, View<'_>) {
        let (lane, config, rows) = (&self.lanes[self.current], self.model.config(), self.pass.logits.len());
        let logits = match &mut self.part {
            None => self.scratch.logits_mut(),
            Some(part) => {
                let most = self.bounds.logit_rows;
                let whole = part.whole.get_or_insert_with(|| Tensor::zeros(most, config.vocab));
                let own = self.scratch.logits().view(rows);
                ops::all_gather(lane, own, whole.view_mut(rows)).unwrap_or_else(|error| lost(&error));
                whole
            }
        };
        let known = config.known_vocab();
        if known < config.vocab {
            // Nothing is known of padding.
            (0..rows).for_each(|row| logits.row_mut(row)[known..].fill(f32::NEG_INFINITY));
        }
        (lane, logits.view(rows))
    }

    /// The log-probabilities that requests of the pass want.
    fn logprobs(&mut self, rows: &PassRows<'_>, sequences: &Sequences<()>, places: &[(usize, usize)]) {
        let mut outputs = std::mem::take(&mut self.outputs);
        let (mut asked, mut of) = (Vec::new(), Vec::new());
        for (row, &(piece, offset)) in places.iter().enumerate() {
            let piece = &rows.pieces[piece];
            let Some(collector) = &sequences.of(piece.seq).request.logprobs else { continue };
            let drawn = (offset >= piece.drawn_from).then(|| outputs.tokens[row]);
            if let Some(token) = drawn.or_else(|| collector.of_prompt(piece.start + offset + 1)) {
                asked.push(LogprobRow { row, token, top: collector.top() });
                of.push(row);
            }
        }
        if !asked.is_empty() {
            let mut found = vec![Logprobs::default(); asked.len()];
            let (lane, logits) = self.whole_logits();
            ops::logprobs(lane, logits, &asked, &mut found);
            outputs.logprobs.resize(places.len(), None);
            of.into_iter().zip(found).for_each(|(row, found)| outputs.logprobs[row] = Some(found));
        }
        self.outputs = outputs;
    }
}

impl LaneBackend for CpuBackend {
    type Sequence = ();

    const LOOK_EVERY: usize = 1;
    const FIRST_IS_COLD: bool = false;
    const FILLED_BY: usize = 1;

    fn bounds(&self) -> PassBounds {
        self.bounds
    }

    fn mask_token(&self) -> Option<TokenId> {
        self.model.config().mask_token
    }

    fn block(&self) -> Option<BlockSpec> {
        self.model.config().block()
    }

    fn layer_count(&self) -> usize {
        self.model.config().layers.len()
    }

    fn rank(&self) -> (usize, usize) {
        let group = self.lane().group();
        (group.rank(), group.ranks())
    }

    fn work_on(&mut self, partition: PartitionId) {
        assert!(
            partition.0 < self.lanes.len(),
            "a plan for {partition:?}, but there are {}",
            self.lanes.len()
        );
        if std::mem::replace(&mut self.current, partition.0) != partition.0 && self.pinned {
            // It worked before; if it does not now, the lane is slower and nothing else.
            let _ = self.lane().pin_current_thread();
        }
    }

    fn agree_on(&mut self, plan: u64) {
        let (rank, ranks) = self.rank();
        if ranks == 1 {
            return;
        }
        for (other, halves) in self.gather(&[plan as u32, (plan >> 32) as u32]).chunks_exact(2).enumerate() {
            let theirs = u64::from(halves[1]) << 32 | u64::from(halves[0]);
            assert!(theirs == plan, "rank {rank} has plan {plan}, rank {other} plan {theirs}");
        }
    }

    fn gather(&mut self, words: &[u32]) -> Vec<u32> {
        let group = self.lane().group();
        let own: Vec<f32> = words.iter().copied().map(f32::from_bits).collect();
        let mut all = vec![0.0; own.len() * group.ranks()];
        group.all_gather(&own, &mut all).unwrap_or_else(|error| lost(&error));
        all.into_iter().map(f32::to_bits).collect()
    }

    fn hear_first(&mut self, mut words: Vec<u32>) -> Vec<u32> {
        let group = self.lane().group();
        let tell = |words: &mut [f32]| {
            group.broadcast(0, 0..group.ranks(), words).unwrap_or_else(|error| lost(&error));
        };
        let mut count = [f32::from_bits(words.len() as u32)];
        tell(&mut count);
        words.resize(count[0].to_bits() as usize, 0);
        let mut floats: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
        tell(&mut floats);
        floats.into_iter().map(f32::to_bits).collect()
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        copies.iter().for_each(|copy| self.kv.copy_block(copy.from, copy.to));
        // They are the target's: its lane copies them.
        if let Some(CpuFeatures { pages, head: Some(_) }) = &self.features {
            copies.iter().for_each(|copy| pages.copy_block(copy.from, copy.to));
        }
    }

    fn admit(&mut self, _admission: &Admission, _request: &LaneRequest) {}

    fn retire(&mut self, (): ()) {}

    fn stage(&mut self, rows: &PassRows<'_>, _sequences: &mut Sequences<()>) {
        self.lane().rouse();
        let Pass { positions, piece_of, logits, pieces, chunks, to_compact, .. } = &mut self.pass;
        positions.clear();
        piece_of.clear();
        logits.clear();
        pieces.clear();
        chunks.clear();
        chunks.extend(rows.pieces.iter().map(|piece| piece.chunk));
        *to_compact = false;
        for (piece, number) in rows.pieces.iter().zip(0..) {
            let (first, count) = (piece.first, piece.rows);
            positions.extend((piece.start..piece.start + count).map(index));
            piece_of.extend(std::iter::repeat_n(number, count));
            logits.extend((first + piece.logits_from..first + count).map(index));
            pieces.push(Here { first, rows: count, live: count, cancelled: false });
        }
        self.outputs.begin(rows);
        self.begin_rows(rows);
        self.model.begin(&self.lanes[self.current], &mut self.scratch, &rows.tokens);
    }

    fn layers(&mut self, rows: &PassRows<'_>, layers: Range<usize>) {
        let Pass { positions, piece_of, .. } = &self.pass;
        if !positions.is_empty() {
            let rows = faser_kernels::Rows { positions, table_of: piece_of, tables: &rows.tables };
            self.model.layers(&self.lanes[self.current], layers, &mut self.kv, &mut self.scratch, rows);
        }
    }

    fn cancel(&mut self, piece: usize) {
        let before = std::mem::replace(&mut self.pass.pieces[piece].cancelled, true);
        self.pass.to_compact |= !before;
    }

    fn test(&mut self, rows: &PassRows<'_>, sequences: &Sequences<()>) {
        let Pass { positions, pieces, to_compact, tested, tokens, scores, .. } = &mut self.pass;
        tested.clear();
        tokens.clear();
        // What the row predicts is tested as long as it is wanted.
        let wanted =
            |test: &super::backend::RowTest, pieces: &[Here]| test.offset + 1 < pieces[test.piece].live;
        for test in rows.tests.iter().filter(|test| wanted(test, pieces)) {
            tested.push(index(pieces[test.piece].first + test.offset));
            tokens.extend(test.tokens);
        }
        scores.clear();
        scores.resize(tokens.len(), 0.0);
        if !tested.is_empty() {
            let lane = &self.lanes[self.current];
            self.model.score(lane, &mut self.scratch, positions.len(), tested, tokens, scores);
        }
        let margins = &mut self.outputs.margins;
        let begin = margins.len();
        margins.resize(begin + rows.tests.len(), f32::NAN);
        let before = pieces.clone();
        let mut scores = scores.chunks_exact(SCORED);
        for (test, margin) in rows.tests.iter().zip(&mut margins[begin..]) {
            if !wanted(test, &before) {
                continue;
            }
            let Some((own_score, others)) = scores.next().and_then(|scores| scores.split_last()) else {
                break;
            };
            let sampling = &sequences.of(rows.pieces[test.piece].seq).request.sampling;
            let [alternatives @ .., own] = &test.tokens;
            *margin =
                sampling::margin(sampling, index(test.position), *own, alternatives, others, *own_score);
            let piece = &mut pieces[test.piece];
            if *margin > test.max_margin && test.offset + 1 < piece.live {
                piece.live = test.offset + 1;
                *to_compact = true;
            }
        }
    }

    fn compact(&mut self, _rows: &PassRows<'_>) {
        if self.rank().1 > 1 {
            let flags: Vec<u32> = self.pass.pieces.iter().map(|piece| u32::from(piece.cancelled)).collect();
            let first = self.gather(&flags);
            for (piece, flag) in self.pass.pieces.iter_mut().zip(first) {
                piece.cancelled = flag > 0;
                self.pass.to_compact |= piece.cancelled && piece.rows > 0;
            }
        }
        let Pass { positions, piece_of, logits, pieces, to_compact, keep, .. } = &mut self.pass;
        if !std::mem::take(to_compact) {
            return;
        }
        keep.clear();
        let mut first = 0;
        for piece in pieces.iter_mut() {
            piece.live = if piece.cancelled { 0 } else { piece.live };
            keep.extend((piece.first..piece.first + piece.live).map(index));
            (piece.first, piece.rows) = (first, piece.live);
            first += piece.live;
        }
        self.model.keep(&mut self.scratch, positions.len(), keep);
        for (new, &old) in keep.iter().enumerate() {
            positions[new] = positions[old as usize];
            piece_of[new] = piece_of[old as usize];
        }
        positions.truncate(keep.len());
        piece_of.truncate(keep.len());
        // Both are in increasing order.
        let mut kept = keep.iter().enumerate().peekable();
        logits.retain_mut(|wanted| {
            while kept.next_if(|(_, old)| **old < *wanted).is_some() {}
            let Some((new, _)) = kept.next_if(|(_, old)| **old == *wanted) else { return false };
            *wanted = index(new);
            true
        });
    }

    fn finish(&mut self) {
        let Pass { positions, logits, .. } = &self.pass;
        if !logits.is_empty() {
            self.model.finish(&self.lanes[self.current], &mut self.scratch, positions.len(), logits);
        }
        self.pass_on();
    }

    fn draw(&mut self, rows: &PassRows<'_>, sequences: &Sequences<()>, how: &Draw<'_>) {
        let place = |&row: &u32| {
            let piece = self.pass.piece_of[row as usize] as usize;
            (piece, row as usize - self.pass.pieces[piece].first)
        };
        let places: Vec<(usize, usize)> = self.pass.logits.iter().map(place).collect();
        let drawn = |(row, &(piece, offset)): (usize, &(usize, usize))| {
            let piece = &rows.pieces[piece];
            let since = (offset >= piece.drawn_from).then(|| piece.since(offset))?;
            let sequence = sequences.of(piece.seq);
            Some(SampleRow {
                row,
                position: index(piece.place(offset)),
                sampling: &sequence.request.sampling,
                history: &sequence.history,
                since: &piece.proposals[..since],
                allowed: how.masks.bits(piece.chunk, since),
            })
        };
        let samples: Vec<SampleRow<'_>> = places.iter().enumerate().filter_map(drawn).collect();
        let mut outputs = std::mem::take(&mut self.outputs);
        let mut tokens = vec![0; samples.len()];
        if how.confidence {
            outputs.confidence.resize(samples.len(), 0.0);
            let sure = match self.block() {
                Some(_) => self.draw_along(rows, &places, &samples, (&mut tokens, &mut outputs.confidence)),
                None => false,
            };
            let drawn = self.block().is_some();
            let (lane, logits) = self.whole_logits();
            if !drawn {
                ops::sample(lane, logits, &samples, &mut tokens);
            }
            if !sure {
                let allowed: Vec<Option<&[u32]>> = samples.iter().map(|row| row.allowed).collect();
                ops::confidence(lane, logits, &tokens, &allowed, &mut outputs.confidence);
            }
            if how.alternatives {
                outputs.top.resize(samples.len(), [0; ops::TOP_TOKENS]);
                ops::top_tokens(lane, logits, &mut outputs.top);
            }
            if how.candidates && !drawn {
                outputs.candidates.resize(samples.len(), [0; CANDIDATES]);
                ops::candidates(lane, logits, &samples, &tokens, &mut outputs.candidates);
            }
        } else {
            let (lane, logits) =
                (&self.lanes[self.current], self.scratch.logits().view(self.pass.logits.len()));
            match &mut self.part {
                None => ops::sample(lane, logits, &samples, &mut tokens),
                Some(part) => part
                    .sampler
                    .sample(lane, logits, &samples, &mut tokens)
                    .unwrap_or_else(|error| lost(&error)),
            }
        }
        outputs.tokens.resize(places.len(), 0);
        samples.iter().zip(tokens).for_each(|(sample, token)| outputs.tokens[sample.row] = token);
        self.outputs = outputs;
        if !how.confidence {
            self.logprobs(rows, sequences, &places);
        }
    }

    fn collect(
        &mut self,
        _rows: &PassRows<'_>,
        outputs: &mut PassOutputs,
        _meanwhile: &mut dyn FnMut(Cancel<'_>),
    ) {
        let left = self.outputs.rows.iter_mut().zip(&self.pass.pieces);
        left.for_each(|(left, piece)| *left = piece.rows);
        std::mem::swap(&mut self.outputs, outputs);
    }
}

/// The lane is of no use any more: what it has begun cannot be finished without the others.
fn lost(error: &CollectiveError) -> ! {
    panic!("{error}")
}

/// Positions, rows and pieces are far below 2^32: a context or a batch that large has no memory to stand in.
fn index(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a 32-bit index"))
}
