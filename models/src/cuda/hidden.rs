//! The target's hidden states on their way from the verify lane to the draft lane, on a GPU: a ring in device memory, whose slots are those of
//! [`HiddenStates`](crate::HiddenStates). A launch behind each layer named copies the rows of the pass, as the device knows them, also as
//! part of a graph: where they go lies in the pass's arrays.
//!
//! Both lanes work on streams of their own, and events order them: what is read waits for the pass that writes it, a pass waits for what reads the
//! rows that it overwrites. The host only counts rows, and refuses what is lost when it is asked for.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use faser_kernels::cuda::{Chunk, CudaError, CudaLane, DeviceBuffer, Event, Gpu, Ptr, StoreStatesArgs};

use super::CudaPasses;
use crate::{ModelConfig, NamedLayers};

/// The residual stream behind some layers of a model, of the last rows of a lane's passes, in device memory. Allocated once; share it in an
/// `Arc` between the one lane that writes (see [`CudaPasses::attach`]) and the one that reads.
pub struct CudaHiddenStates {
    layers: NamedLayers,
    capacity: usize,
    /// f32 `[capacity][layers][hidden]`.
    states: DeviceBuffer,
    progress: Mutex<Progress>,
}

/// What both lanes were asked for.
struct Progress {
    /// Rows of the pass that was staged last; those before it have been waited for.
    pass: Range<u64>,
    /// The writer was asked for all rows before this one.
    asked: u64,
    /// Behind those.
    written: Event,
    /// Behind what the reader was asked for.
    read: Event,
    /// The oldest row read since the writer last waited for the reader.
    oldest_read: Option<u64>,
}

impl CudaHiddenStates {
    /// A ring on this GPU for `capacity` rows behind the layers named, counted from 0, of a model of this shape: at least twice the rows of
    /// a pass. In a group each rank has one.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    ///
    /// # Panics
    /// If the numbers of the layers do not ascend, the model has no such layer, or there is none.
    pub fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        layers: &[usize],
        capacity: usize,
    ) -> Result<Arc<CudaHiddenStates>, CudaError> {
        let layers = NamedLayers::new(config, layers);
        let bytes = capacity * layers.width() * size_of::<f32>();
        let (written, read) = (Event::new(gpu)?, Event::new(gpu)?);
        Ok(Arc::new(CudaHiddenStates {
            layers,
            capacity,
            states: DeviceBuffer::zeroed(gpu, bytes, "hidden states")?,
            progress: Mutex::new(Progress { pass: 0..0, asked: 0, written, read, oldest_read: None }),
        }))
    }

    /// Which layers, and how wide they are.
    pub fn layers(&self) -> &NamedLayers {
        &self.layers
    }

    /// Asks `lane` for a copy of the states of these rows to `to`, f32 `[rows][layers][hidden]`; nobody waits. False, and nothing is asked
    /// for, if one of them was overwritten, or the writer was not asked for it yet. Rows that left their pass have no states: what
    /// is read in their place is of no meaning.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn read(&self, lane: &mut CudaLane, rows: Range<u64>, to: Ptr) -> Result<bool, CudaError> {
        let mut progress = self.progress();
        if rows.end > progress.asked || rows.start + (self.capacity as u64) < progress.pass.end {
            return Ok(false);
        }
        if rows.end > progress.pass.start {
            lane.wait_for(&progress.written)?;
        }
        let (mut row, mut to, bytes) = (rows.start, to.0, self.layers.width() * size_of::<f32>());
        while row < rows.end {
            let slot = self.slot(row);
            // The ring's end may stand between them.
            let count = (self.capacity - slot).min((rows.end - row) as usize);
            lane.copy(self.states.at(slot * bytes), Ptr(to), count * bytes)?;
            (row, to) = (row + count as u64, to + (count * bytes) as u64);
        }
        lane.record(&progress.read)?;
        progress.oldest_read = Some(progress.oldest_read.map_or(rows.start, |oldest| oldest.min(rows.start)));
        Ok(true)
    }

    /// The next rows, whose pass is about to be sent on `lane`: what their slots held is lost. All that the lane was asked for before has
    /// been waited for. The index of the first.
    fn claim(&self, lane: &mut CudaLane, rows: usize) -> Result<u64, CudaError> {
        let mut progress = self.progress();
        let first = progress.pass.end;
        progress.pass = first..first + rows as u64;
        progress.asked = first;
        if progress.oldest_read.is_some_and(|oldest| oldest + (self.capacity as u64) < progress.pass.end) {
            lane.wait_for(&progress.read)?;
            progress.oldest_read = None;
        }
        Ok(first)
    }

    /// `lane` was asked for all states of the pass.
    fn publish(&self, lane: &mut CudaLane) -> Result<(), CudaError> {
        let mut progress = self.progress();
        lane.record(&progress.written)?;
        progress.asked = progress.pass.end;
        Ok(())
    }

    fn slot(&self, row: u64) -> usize {
        (row % self.capacity as u64) as usize
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for CudaHiddenStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (layers, capacity) = (&self.layers, &self.capacity);
        f.debug_struct("CudaHiddenStates")
            .field("layers", layers)
            .field("capacity", capacity)
            .finish_non_exhaustive()
    }
}

/// The writer's end.
pub(super) struct HiddenWriter {
    states: Arc<CudaHiddenStates>,
    first: u64,
}

impl CudaPasses {
    /// From now on the passes leave their hidden states in `states`.
    ///
    /// # Panics
    /// If those are of a model of another width, or have no room for two passes; if this is a lane that drafts, or has some already.
    pub fn attach(&mut self, states: Arc<CudaHiddenStates>) {
        states.layers.assert_fit(states.capacity, self.model.config.hidden, self.sizes.max_rows);
        assert!(
            self.steps.is_none() && self.hidden.is_none(),
            "hidden states of a lane that has none to give"
        );
        self.hidden = Some(HiddenWriter { states, first: 0 });
    }

    /// The index, in the hidden states attached, of the first row of the pass staged last; those of its other rows follow.
    pub fn first_hidden(&self) -> Option<u64> {
        self.hidden.as_ref().map(|hidden| hidden.first)
    }

    /// Begins a pass of these rows: the slot of each chunk's first row, if hidden states are attached.
    pub(super) fn hidden_slots(&mut self, rows: usize, chunks: &[Chunk]) -> Result<Vec<u32>, CudaError> {
        let Some(HiddenWriter { states, first }) = &mut self.hidden else { return Ok(Vec::new()) };
        *first = states.claim(&mut self.lane, rows)?;
        Ok(chunks.iter().map(|chunk| states.slot(*first + u64::from(chunk.first)) as u32).collect())
    }

    /// The pass is behind this layer.
    pub(super) fn store_states(&mut self, layer: usize) -> Result<(), CudaError> {
        let (pass, cols) = (self.pass.rows, self.model.config.hidden as u32);
        let Some(HiddenWriter { states, .. }) = &self.hidden else { return Ok(()) };
        let Some(place) = states.layers.place(layer) else { return Ok(()) };
        let args = StoreStatesArgs {
            x: self.x.ptr(),
            chunk_of: pass.chunk_of,
            chunks: pass.chunks,
            slots: pass.hidden_slots,
            states: states.states.ptr(),
            rows: pass.counts,
            cols,
            width: states.layers.width() as u32,
            first: place as u32 * cols,
            capacity: states.capacity as u32,
        };
        self.lane.launch(&args.launch(pass.bucket as u32, self.lane.sms()))
    }

    /// These layers were asked for.
    pub(super) fn publish_states(&mut self, range: &Range<usize>) -> Result<(), CudaError> {
        let Some(HiddenWriter { states, .. }) = &self.hidden else { return Ok(()) };
        let last = states.layers.numbers().last();
        if last.is_some_and(|last| range.contains(last)) { states.publish(&mut self.lane) } else { Ok(()) }
    }
}
