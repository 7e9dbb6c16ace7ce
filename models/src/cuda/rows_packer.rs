//! Makes what a GPU has of a model's weights, of tensors as they are stored.

use std::sync::Arc;

use faser_kernels::cuda::{CudaError, DeviceBuffer, Gpu, Ptr};
use faser_kernels::{Dtype, RecordForm, Source, WeightRecords};

use crate::ModelError;
use crate::load::{HeldRows, Packer, Packing};

/// A matrix in a GPU's memory: rows of the model's element, f32 of a router, or records of fewer bits.
pub(super) struct CudaMatrix {
    buffer: DeviceBuffer,
    records: Option<WeightRecords>,
}

impl CudaMatrix {
    /// Where it is.
    pub(super) fn ptr(&self) -> Ptr {
        self.buffer.ptr()
    }

    /// What its numbers are, if they are in records.
    pub(super) fn form(&self) -> Option<RecordForm> {
        self.records.as_ref().map(WeightRecords::form)
    }

    /// How many numbers it has, if they are in records.
    pub(super) fn widens_to(&self) -> Option<usize> {
        self.records.as_ref().map(WeightRecords::numbers)
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

/// Rows in a GPU's memory, which `fill` fills with their sources, one after the other.
pub(super) struct RowsPacker<'a, F> {
    gpu: &'a Arc<Gpu>,
    packing: Packing,
    reads: bool,
    fill: F,
    /// Of which expert, of how many, what comes next is, and how much of it came.
    expert: Option<(usize, usize)>,
    came: usize,
    /// Of each kind of tensor that an expert has, those of all, and how they are held.
    stacks: Vec<(DeviceBuffer, HeldRows)>,
}

impl<'a, F> RowsPacker<'a, F> {
    pub(super) fn new(gpu: &'a Arc<Gpu>, packing: Packing, reads: bool, fill: F) -> RowsPacker<'a, F> {
        RowsPacker { gpu, packing, reads, fill, expert: None, came: 0, stacks: Vec::new() }
    }
}

impl<F: FnMut(&DeviceBuffer, HeldRows, &[Source<'_>]) -> Result<(), ModelError>> RowsPacker<'_, F> {
    fn buffer(&mut self, sources: &[Source<'_>], held: HeldRows) -> Result<DeviceBuffer, ModelError> {
        let bytes = held.bytes(sources);
        let buffer = match self.expert {
            None => DeviceBuffer::unfilled(self.gpu, bytes, "a tensor of the weights")?,
            Some((expert, count)) => {
                // Thousands of small pieces would each be rounded up to the driver's own.
                if expert == 0 {
                    let what = "a tensor of all experts of a layer";
                    self.stacks.push((DeviceBuffer::unfilled(self.gpu, count * bytes, what)?, held));
                }
                self.came += 1;
                let (stack, of_first) = &self.stacks[self.came - 1];
                if *of_first != held {
                    let problem = "the experts of a layer are quantised in different ways, for which there are no kernels on GPUs: choose \
                                   `model.dtype: int8` or `bf16`";
                    return Err(CudaError::Unfit(problem.to_owned()).into());
                }
                stack.part(expert * bytes, bytes)
            }
        };
        (self.fill)(&buffer, held, sources)?;
        Ok(buffer)
    }
}

impl<F: FnMut(&DeviceBuffer, HeldRows, &[Source<'_>]) -> Result<(), ModelError>> Packer
    for RowsPacker<'_, F>
{
    type Table = DeviceBuffer;
    type Matrix = CudaMatrix;
    type Vector = DeviceBuffer;

    fn reads(&self) -> bool {
        self.reads
    }

    fn expert(&mut self, expert: Option<(usize, usize)>) {
        (self.expert, self.came) = (expert, 0);
        if expert.is_none() {
            self.stacks.clear();
        }
    }

    fn table(&mut self, _cols: usize, source: Source<'_>) -> Result<DeviceBuffer, ModelError> {
        self.buffer(&[source], HeldRows::Numbers(self.packing.dtype.beside()))
    }

    fn matrix(
        &mut self,
        tensor: &str,
        inputs: usize,
        sources: &[Source<'_>],
    ) -> Result<CudaMatrix, ModelError> {
        let held = self.packing.rows(tensor, inputs, sources);
        let records = if let HeldRows::Records(records) = held { Some(records) } else { None };
        let named = |error| match error {
            ModelError::Kernel(source) => ModelError::Pack { tensor: tensor.to_owned(), source },
            error => error,
        };
        Ok(CudaMatrix { buffer: self.buffer(sources, held).map_err(named)?, records })
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<DeviceBuffer, ModelError> {
        self.buffer(sources, HeldRows::Numbers(Dtype::F32))
    }

    /// Both are rows: it is there once.
    fn tied_head(
        &mut self,
        embedding: &Arc<DeviceBuffer>,
        _tensor: &str,
        _inputs: usize,
        _source: Source<'_>,
    ) -> Result<Arc<CudaMatrix>, ModelError> {
        Ok(Arc::new(CudaMatrix { buffer: embedding.part(0, embedding.bytes()), records: None }))
    }
}
