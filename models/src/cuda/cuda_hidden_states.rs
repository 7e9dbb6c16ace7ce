//! The target's hidden states on their way from the verify lane to the draft lane, on a GPU: a ring in device memory, whose slots are those of
//! [`HiddenStates`](crate::HiddenStates). A launch behind each layer named copies the rows of the pass, as the device knows them, also as
//! part of a graph: where they go lies in the pass's arrays.
//!
//! Both lanes work on streams of their own, and events order them: what is read waits for the pass that writes it, a pass waits for what reads the
//! rows that it overwrites. The host only counts rows, and refuses what is lost when it is asked for.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use faser_kernels::cuda::{CudaError, CudaLane, DeviceBuffer, Event, Gpu, Ptr};

use crate::{ModelConfig, NamedLayers};

/// The residual stream behind some layers of a model, of the last rows of a lane's passes, in device memory. Allocated once; share it in an
/// `Arc` between the one lane that writes (see [`super::CudaPasses::attach`]) and the one that reads.
pub struct CudaHiddenStates {
    pub(super) layers: NamedLayers,
    pub(super) capacity: usize,
    /// f32 `[capacity][layers][hidden]`.
    pub(super) states: DeviceBuffer,
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
    pub(super) fn claim(&self, lane: &mut CudaLane, rows: usize) -> Result<u64, CudaError> {
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
    pub(super) fn publish(&self, lane: &mut CudaLane) -> Result<(), CudaError> {
        let mut progress = self.progress();
        lane.record(&progress.written)?;
        progress.asked = progress.pass.end;
        Ok(())
    }

    pub(super) fn slot(&self, row: u64) -> usize {
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
    pub(super) states: Arc<CudaHiddenStates>,
    pub(super) first: u64,
}
