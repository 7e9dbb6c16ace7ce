//! Weights as the CPU's kernels take them.

use faser_kernels::{Dtype, Matrix, Source, Table, Vector};

use super::Packer;
use crate::ModelError;

/// Packs matrices into panels of `dtype`.
pub(crate) struct CpuPacker {
    pub(crate) dtype: Dtype,
}

impl Packer for CpuPacker {
    type Table = Table;
    type Matrix = Matrix;
    type Vector = Vector;

    fn table(&mut self, cols: usize, source: Source<'_>) -> Result<Table, ModelError> {
        Ok(Table::new(cols, source, self.dtype.beside())?)
    }

    fn matrix(&mut self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> Result<Matrix, ModelError> {
        let packed = Matrix::pack(inputs, sources, self.dtype);
        packed.map_err(|source| ModelError::Pack { tensor: tensor.to_owned(), source })
    }

    fn vector(&mut self, sources: &[Source<'_>]) -> Result<Vector, ModelError> {
        Ok(Vector::concat(sources))
    }
}
