//! The target's hidden states on their way from the verify lane to the draft lane, on the CPU: a bounded ring that one writes and another reads.
//!
//! Every row of the writer's passes has an index, which is never given again, and the slot `index % capacity`. A slot says which row's
//! states it holds: whoever reads compares that before and after (a sequence lock), so neither lane ever waits, and a row that
//! was overwritten meanwhile is found to be lost. Values are atomics without an order of their own: on a CPU they cost what plain ones do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use faser_kernels::Tensor;

use crate::ModelConfig;

/// No row's states: they are being written, or were never.
const NONE: u64 = u64::MAX;

/// The residual stream behind some layers of a model, of the last rows of a lane's passes. Allocated once; share it in an `Arc` between
/// the one lane that writes (see [`crate::Scratch::attach`]) and the one that reads.
pub struct HiddenStates {
    layers: NamedLayers,
    /// Bits of f32 `[capacity][layers][hidden]`.
    values: Box<[AtomicU32]>,
    /// Which row each slot holds.
    held: Box<[AtomicU64]>,
    /// The index of the next row.
    next: AtomicU64,
}

impl HiddenStates {
    /// A ring for `capacity` rows behind the layers named, counted from 0, of a model of this shape: at least twice the rows of a pass.
    ///
    /// # Panics
    /// If the numbers of the layers do not ascend, the model has no such layer, or there is none.
    pub fn new(config: &ModelConfig, layers: &[usize], capacity: usize) -> Arc<HiddenStates> {
        let layers = NamedLayers::new(config, layers);
        let values = (0..capacity * layers.width()).map(|_| AtomicU32::new(0)).collect();
        let held = (0..capacity).map(|_| AtomicU64::new(NONE)).collect();
        Arc::new(HiddenStates { layers, values, held, next: AtomicU64::new(0) })
    }

    /// Which layers, and how wide they are.
    pub fn layers(&self) -> &NamedLayers {
        &self.layers
    }

    /// Rows that there is room for.
    pub fn capacity(&self) -> usize {
        self.held.len()
    }

    /// Copies the states of these rows to `to`, `[rows][layers][hidden]`. False if not all of them are there: one was overwritten, left its
    /// pass before the last layer named, or has not come so far. What is in `to` is of no meaning then.
    ///
    /// # Panics
    /// If `to` is not as long as that.
    #[must_use]
    pub fn read(&self, rows: Range<u64>, to: &mut [f32]) -> bool {
        let width = self.layers.width();
        assert_eq!(
            to.len() as u64,
            (rows.end - rows.start) * width as u64,
            "room for the states of {rows:?}"
        );
        rows.zip(to.chunks_exact_mut(width)).all(|(row, to)| self.read_row(row, to))
    }

    fn read_row(&self, row: u64, to: &mut [f32]) -> bool {
        let slot = self.slot(row);
        if self.held[slot].load(Ordering::Acquire) != row {
            return false;
        }
        let values = &self.values[slot * to.len()..][..to.len()];
        to.iter_mut().zip(values).for_each(|(to, value)| *to = f32::from_bits(value.load(Ordering::Relaxed)));
        // Whoever has read a newer value sees that the slot was claimed for it.
        fence(Ordering::Acquire);
        self.held[slot].load(Ordering::Relaxed) == row
    }

    fn slot(&self, row: u64) -> usize {
        (row % self.held.len() as u64) as usize
    }

    /// The next rows: what their slots held is lost. The index of the first.
    fn claim(&self, rows: usize) -> u64 {
        let first = self.next.fetch_add(rows as u64, Ordering::Relaxed);
        for row in first..first + rows as u64 {
            self.held[self.slot(row)].store(NONE, Ordering::Relaxed);
        }
        // Before any of their values.
        fence(Ordering::Release);
        first
    }

    /// The states of a row behind the layer that stands at `place` among those named; with the last one they are there.
    fn write(&self, row: u64, place: usize, values: &[f32]) {
        let slot = self.slot(row);
        let to = &self.values[slot * self.layers.width() + place * values.len()..][..values.len()];
        to.iter().zip(values).for_each(|(to, value)| to.store(value.to_bits(), Ordering::Relaxed));
        if place + 1 == self.layers.numbers().len() {
            self.held[slot].store(row, Ordering::Release);
        }
    }
}

impl std::fmt::Debug for HiddenStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (layers, capacity) = (&self.layers, self.capacity());
        f.debug_struct("HiddenStates")
            .field("layers", layers)
            .field("capacity", &capacity)
            .finish_non_exhaustive()
    }
}

/// Layers behind which the residual stream is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLayers {
    numbers: Box<[usize]>,
    hidden: usize,
}

impl NamedLayers {
    pub(crate) fn new(config: &ModelConfig, numbers: &[usize]) -> NamedLayers {
        let layers = config.layers.len();
        let named = numbers.is_sorted_by(|a, b| a < b) && numbers.last().is_some_and(|last| *last < layers);
        assert!(named, "{numbers:?} are no layers, in their order, of {layers}");
        NamedLayers { numbers: numbers.into(), hidden: config.hidden }
    }

    /// The layers, ascending, counted from 0.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Values of a row, all layers together.
    pub fn width(&self) -> usize {
        self.numbers.len() * self.hidden
    }

    /// The place of a layer among those named.
    pub(crate) fn place(&self, layer: usize) -> Option<usize> {
        self.numbers.binary_search(&layer).ok()
    }

    /// Makes sure that a ring of so many rows is for a lane of such a model.
    pub(crate) fn assert_fit(&self, capacity: usize, hidden: usize, max_rows: usize) {
        assert_eq!(self.hidden, hidden, "hidden states of another model");
        // The rows of one pass are read while the next one runs.
        assert!(capacity >= 2 * max_rows, "{capacity} rows of hidden states, with passes of {max_rows}");
    }
}

/// The writer's end, in the scratch of its passes.
pub(crate) struct HiddenWriter {
    states: Arc<HiddenStates>,
    /// The index of the pass's first row.
    pub(crate) first: u64,
    /// The index of each row that is in the pass.
    rows: Vec<u64>,
}

impl HiddenWriter {
    /// For passes of at most `max_rows` rows of `hidden` columns.
    pub(crate) fn new(states: Arc<HiddenStates>, hidden: usize, max_rows: usize) -> HiddenWriter {
        states.layers.assert_fit(states.capacity(), hidden, max_rows);
        HiddenWriter { states, first: 0, rows: Vec::with_capacity(max_rows) }
    }

    pub(crate) fn begin(&mut self, rows: usize) {
        self.first = self.states.claim(rows);
        self.rows.clear();
        self.rows.extend(self.first..self.first + rows as u64);
    }

    pub(crate) fn keep(&mut self, keep: &[u32]) {
        // It ascends: what is written was read, or leaves.
        keep.iter().enumerate().for_each(|(to, from)| self.rows[to] = self.rows[*from as usize]);
        self.rows.truncate(keep.len());
    }

    /// The pass has come through a layer, and `x` is its residual stream.
    pub(crate) fn behind(&self, layer: usize, x: &Tensor) {
        let Some(place) = self.states.layers.place(layer) else { return };
        self.rows.iter().enumerate().for_each(|(row, index)| self.states.write(*index, place, x.row(row)));
    }
}
