//! One lane's model with its KV memory and buffers, fed row by row.

use std::ops::Range;
use std::sync::Arc;

use faser_engine::{BlockId, PartitionId};
use faser_kernels::sampling::PartSampler;
use faser_kernels::{Collective, CollectiveError, KvCache, Lane, Rows, SampleRow, Tensor, View, ops};
use faser_models::{Model, Scratch, Shard};

use super::RunnerSpec;
use crate::error::ServiceError;

/// Rows of the pass that is being put together, and all a pass needs.
pub(crate) struct Passes {
    /// One lane per partition, and the one in use.
    lanes: Vec<Lane>,
    current: usize,
    pinned: bool,
    model: Arc<Model>,
    kv: KvCache,
    scratch: Scratch,
    max_rows: usize,
    max_logit_rows: usize,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    table_of: Vec<u32>,
    logits: Vec<u32>,
    /// Logits of the last pass.
    finished: usize,
    /// Of a shard, what brings the ranks' logits together.
    part: Option<Part>,
}

struct Part {
    sampler: PartSampler,
    /// The logits of all ranks, once somebody wanted them.
    whole: Option<Tensor>,
}

impl Passes {
    pub(crate) fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<Passes, ServiceError> {
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
        let scratch = model.scratch(spec.max_rows, spec.max_logit_rows);
        let shard = model.shard();
        let part = (shard != Shard::WHOLE).then(|| Part {
            sampler: PartSampler::new(model.config().vocab, shard.rank, shard.ranks),
            whole: None,
        });
        Ok(Passes {
            lanes,
            current: 0,
            pinned: false,
            model,
            kv,
            scratch,
            max_rows: spec.max_rows,
            max_logit_rows: spec.max_logit_rows,
            tokens: Vec::with_capacity(spec.max_rows),
            positions: Vec::with_capacity(spec.max_rows),
            table_of: Vec::with_capacity(spec.max_rows),
            logits: Vec::with_capacity(spec.max_logit_rows),
            finished: 0,
            part,
        })
    }

    /// All lanes are this rank's of a group.
    pub(crate) fn join(&mut self, group: &Arc<dyn Collective>) {
        self.lanes.iter_mut().for_each(|lane| lane.join(group.clone()));
    }

    /// The group that the lanes are of.
    pub(crate) fn group(&self) -> &dyn Collective {
        self.lane().group()
    }

    /// Adds up what the ranks have.
    pub(crate) fn add_up(&self, values: &mut [f32]) {
        self.group().all_reduce_sum(values).unwrap_or_else(|error| lost(&error));
    }

    /// Each value becomes the least that a rank has in its place.
    pub(crate) fn least(&self, values: &mut [f32]) {
        let mut all = vec![0.0; values.len() * self.group().ranks()];
        self.group().all_gather(values, &mut all).unwrap_or_else(|error| lost(&error));
        for theirs in all.chunks_exact(values.len().max(1)) {
            values.iter_mut().zip(theirs).for_each(|(value, other)| *value = value.min(*other));
        }
    }

    /// Sees to it that all ranks have the same plan.
    ///
    /// # Panics
    /// If not: what ranks compute of different plans would be of no use.
    pub(crate) fn agree_on(&self, step: u64) {
        let (rank, ranks) = (self.group().rank(), self.group().ranks());
        if ranks == 1 {
            return;
        }
        let halves = [step as u32, (step >> 32) as u32].map(f32::from_bits);
        let mut all = vec![0.0; 2 * ranks];
        self.group().all_gather(&halves, &mut all).unwrap_or_else(|error| lost(&error));
        for (other, halves) in all.chunks_exact(2).enumerate() {
            let theirs = u64::from(halves[1].to_bits()) << 32 | u64::from(halves[0].to_bits());
            assert!(theirs == step, "rank {rank} has plan {step}, rank {other} plan {theirs}");
        }
    }

    /// Pins the calling thread to the first core of the lane in use, and from now on to that of every lane that is used.
    /// False if the system does not allow it.
    pub(crate) fn pin_current_thread(&mut self) -> bool {
        self.pinned = self.lane().pin_current_thread();
        self.pinned
    }

    /// Runs what follows on this partition.
    pub(crate) fn work_on(&mut self, partition: PartitionId) {
        if partition.0 == self.current {
            return;
        }
        assert!(
            partition.0 < self.lanes.len(),
            "a plan for {partition:?}, but there are {}",
            self.lanes.len()
        );
        self.current = partition.0;
        if self.pinned {
            // It worked before; if it does not now, the lane is slower and nothing else.
            let _ = self.lane().pin_current_thread();
        }
    }

    fn lane(&self) -> &Lane {
        &self.lanes[self.current]
    }

    /// Adds a row; `table` is an index into the tables that `forward` will be given.
    pub(crate) fn push(&mut self, token: u32, position: usize, table: usize, logits_wanted: bool) {
        if logits_wanted {
            self.logits.push(index(self.tokens.len()));
        }
        self.tokens.push(token);
        self.positions.push(index(position));
        self.table_of.push(index(table));
    }

    /// Whether another row fits; if not, the pass has to run first.
    pub(crate) fn fits(&self, logits_wanted: bool) -> bool {
        self.tokens.len() < self.max_rows && (!logits_wanted || self.logits.len() < self.max_logit_rows)
    }

    /// Runs the pass and starts an empty one. The rows' KV is stored; the logits that were wanted are there in the order
    /// of their rows. An empty pass does nothing.
    pub(crate) fn forward(&mut self, tables: &[&[BlockId]]) {
        self.begin();
        self.layers(0..self.layer_count(), tables);
        self.finish();
    }

    /// Layers of the model.
    pub(crate) fn layer_count(&self) -> usize {
        self.model.config().layers
    }

    /// Begins the pass: `layers` from the first to the last follow, then `finish`.
    pub(crate) fn begin(&mut self) {
        if !self.tokens.is_empty() {
            self.model.begin(&self.lanes[self.current], &mut self.scratch, &self.tokens);
        }
    }

    /// Runs these layers.
    pub(crate) fn layers(&mut self, layers: Range<usize>, tables: &[&[BlockId]]) {
        if !self.positions.is_empty() {
            let rows = Rows { positions: &self.positions, table_of: &self.table_of, tables };
            self.model.layers(&self.lanes[self.current], layers, &mut self.kv, &mut self.scratch, rows);
        }
    }

    /// Between two calls of `layers`: the model's logits so far, of some rows and for some tokens of each, row after row.
    pub(crate) fn score(&mut self, rows: &[u32], tokens: &[u32], out: &mut [f32]) {
        let n = self.positions.len();
        self.model.score(&self.lanes[self.current], &mut self.scratch, n, rows, tokens, out);
    }

    /// Between two calls of `layers`: only these rows, in increasing order, go on.
    pub(crate) fn keep(&mut self, keep: &[u32]) {
        self.model.keep(&mut self.scratch, self.positions.len(), keep);
        for (new, &old) in keep.iter().enumerate() {
            self.positions[new] = self.positions[old as usize];
            self.table_of[new] = self.table_of[old as usize];
        }
        self.positions.truncate(keep.len());
        self.table_of.truncate(keep.len());
        // Both are in increasing order.
        let mut kept = keep.iter().enumerate().peekable();
        self.logits.retain_mut(|wanted| {
            while kept.next_if(|(_, old)| **old < *wanted).is_some() {}
            let Some((new, _)) = kept.next_if(|(_, old)| **old == *wanted) else { return false };
            *wanted = index(new);
            true
        });
    }

    /// Ends the pass and starts an empty one.
    pub(crate) fn finish(&mut self) {
        self.finished = self.logits.len();
        if self.finished > 0 {
            self.model.finish(
                &self.lanes[self.current],
                &mut self.scratch,
                self.positions.len(),
                &self.logits,
            );
        }
        self.tokens.clear();
        self.positions.clear();
        self.table_of.clear();
        self.logits.clear();
    }

    /// Draws tokens from the logits of the pass that was finished last; the same on every rank.
    pub(crate) fn sample(&mut self, rows: &[SampleRow<'_>], out: &mut [u32]) {
        let (lane, logits) = (&self.lanes[self.current], self.scratch.logits().view(self.finished));
        match &mut self.part {
            None => ops::sample(lane, logits, rows, out),
            Some(part) => part.sampler.sample(lane, logits, rows, out).unwrap_or_else(|error| lost(&error)),
        }
    }

    /// The logits of the pass that was finished last, for all tokens, `[rows, vocab]`: of a shard, those of all ranks.
    pub(crate) fn whole_logits(&mut self) -> (&Lane, View<'_>) {
        let (lane, config) = (&self.lanes[self.current], self.model.config());
        let logits = match &mut self.part {
            None => self.scratch.logits_mut(),
            Some(part) => {
                let whole =
                    part.whole.get_or_insert_with(|| Tensor::zeros(self.max_logit_rows, config.vocab));
                let own = self.scratch.logits().view(self.finished);
                ops::all_gather(lane, own, whole.view_mut(self.finished))
                    .unwrap_or_else(|error| lost(&error));
                whole
            }
        };
        let known = config.known_vocab();
        if known < config.vocab {
            // Nothing is known of padding.
            (0..self.finished).for_each(|row| logits.row_mut(row)[known..].fill(f32::NEG_INFINITY));
        }
        (lane, logits.view(self.finished))
    }
}

/// The lane is of no use any more: what it has begun cannot be finished without the others.
fn lost(error: &CollectiveError) -> ! {
    panic!("{error}")
}

/// Positions, rows and tables are far below 2^32: a context or a batch that large has no memory to stand in.
fn index(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a 32-bit index"))
}
