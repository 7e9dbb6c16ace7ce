//! Passes to time: a model, a lane, and sequences with a context in KV memory; and how fast the lane's workers read
//! memory.

use std::error::Error;
use std::time::{Duration, Instant};

use faser_kernels::{BlockId, History, KvCache, Lane, OpTimes, Rows, SampleRow, Sampling, Tensor, ops};
use faser_models::{Model, Pass, Scratch};

use crate::options::{Case, Layout};

const BLOCK_SIZE: usize = 16;
/// Positions filled at a time.
const FILL: usize = 256;

pub(crate) struct Workload {
    model: Model,
    lane: Lane,
    layout: Layout,
    kv: KvCache,
    scratch: Scratch,
    tables: Vec<Vec<BlockId>>,
    /// Passes that were run.
    passes: usize,
}

/// What one pass took.
pub(crate) struct Timing {
    /// The model alone.
    pub(crate) forward: Duration,
    /// With sampling.
    pub(crate) whole: Duration,
    /// Of `whole`, op by op.
    pub(crate) ops: OpTimes,
}

impl Workload {
    /// Room for all `cases`; every context is there.
    pub(crate) fn new(
        model: Model,
        lane: Lane,
        layout: Layout,
        cases: &[Case],
    ) -> Result<Workload, Box<dyn Error>> {
        let most = |of: fn(&Case) -> usize| cases.iter().map(of).max().unwrap_or_default();
        let (rows, context) = (most(|case| case.rows), most(|case| case.context));
        let (sequences, length) = match layout {
            Layout::Sequences => (rows, context + 1),
            Layout::Chunk => (1, context + rows),
        };
        let limit = model.config().max_context;
        if length > limit {
            return Err(format!("{length} positions are needed, the model has {limit}").into());
        }
        let blocks = length.div_ceil(BLOCK_SIZE);
        // Sequences that grew together have their blocks by turns.
        let table = |sequence| (0..blocks).map(|block| (block * sequences + sequence) as BlockId).collect();
        let kv = KvCache::new(model.kv_shape(blocks * sequences, BLOCK_SIZE), model.kv_dtype())?;
        let scratch = model.scratch(rows, rows);
        let tables = (0..sequences).map(table).collect();
        let mut workload = Workload { model, lane, layout, kv, scratch, tables, passes: 0 };
        workload.fill(context);
        Ok(workload)
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes of keys and values that a pass reads.
    pub(crate) fn kv_bytes(&self, case: Case) -> u64 {
        let tokens = match self.layout {
            Layout::Sequences => case.rows * (case.context + 1),
            Layout::Chunk => case.context + case.rows,
        };
        tokens as u64 * self.model.kv_bytes_per_token()
    }

    /// Hashed keys and values, the same in every layer and sequence, at the positions before `context`.
    fn fill(&mut self, context: usize) {
        let width = self.model.config().kv_width();
        let values: Vec<f32> = (0..FILL * width).map(hashed).collect();
        let values = Tensor::from_rows(width, &values);
        let positions: Vec<u32> = (0..context as u32).collect();
        for positions in positions.chunks(FILL) {
            let (view, table_of) = (values.view(positions.len()), vec![0; positions.len()]);
            for table in &self.tables {
                let rows = Rows { positions, table_of: &table_of, tables: &[table] };
                for layer in 0..self.model.config().layers.len() {
                    ops::store_kv(&self.lane, view, view, &mut self.kv, layer, rows);
                }
            }
        }
    }

    /// Runs one pass, the logits of all rows and a greedy token for each.
    pub(crate) fn pass(&mut self, case: Case) -> Timing {
        let Case { context, rows: n } = case;
        let vocab = self.model.config().vocab;
        // Others each time: the experts of the last pass are in the caches.
        self.passes += 1;
        let tokens: Vec<u32> = (0..n).map(|row| ((row + self.passes * 61) * 7919 % vocab) as u32).collect();
        let numbers: Vec<u32> = (0..n as u32).collect();
        let chunk: Vec<u32> = numbers.iter().map(|row| context as u32 + row).collect();
        let tables: Vec<&[BlockId]> = self.tables.iter().map(Vec::as_slice).collect();
        let (alone, together) = (vec![context as u32; n], vec![0; n]);
        let (positions, table_of) = match self.layout {
            Layout::Sequences => (&alone, &numbers),
            Layout::Chunk => (&chunk, &together),
        };
        let pass =
            Pass { tokens: &tokens, rows: Rows { positions, table_of, tables: &tables }, logits: &numbers };

        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let history = History::new(context, &vec![0; context + 1], &sampling);
        let sample = |row: usize| SampleRow {
            row,
            position: positions[row] + 1,
            sampling: &sampling,
            history: &history,
            since: if self.layout == Layout::Chunk { &tokens[1..=row] } else { &[] },
            allowed: None,
        };
        let samples: Vec<SampleRow<'_>> = (0..n).map(sample).collect();
        let mut drawn = vec![0; n];

        self.lane.count_times();
        let begin = Instant::now();
        self.model.forward(&self.lane, &mut self.kv, &mut self.scratch, &pass);
        let forward = begin.elapsed();
        ops::sample(&self.lane, self.scratch.logits().view(n), &samples, &mut drawn);
        let whole = begin.elapsed();
        Timing { forward, whole, ops: self.lane.times() }
    }
}

/// From -1 to 1.
fn hashed(i: usize) -> f32 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Numbers of a row: 64 KiB.
const COLUMNS: usize = 1 << 14;

/// As much memory as the weights take, in huge pages as they are: what of it stays in a cache stays of the weights too.
pub(crate) struct Memory {
    numbers: Tensor,
    sums: Vec<f32>,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        let rows = (bytes as usize).div_ceil(COLUMNS * size_of::<f32>());
        let mut numbers = Tensor::zeros(rows, COLUMNS);
        // Written once, or every page would be the system's one page of zeros.
        (0..rows).for_each(|row| numbers.row_mut(row).fill(1.0));
        Memory { numbers, sums: vec![0.0; rows] }
    }

    /// Reads all of it twice. Bytes per second of the second time.
    pub(crate) fn read(&mut self, lane: &Lane) -> f64 {
        let rows = self.sums.len();
        let mut seconds = 0.0;
        for _ in 0..2 {
            let begin = Instant::now();
            ops::sum_rows(lane, self.numbers.view(rows), &mut self.sums);
            seconds = begin.elapsed().as_secs_f64();
        }
        assert!(self.sums.iter().all(|sum| *sum == COLUMNS as f32), "memory was read wrongly");
        (rows * COLUMNS * size_of::<f32>()) as f64 / seconds
    }
}
