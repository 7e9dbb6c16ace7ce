//! Weights that are read by rows or as they are: the token embedding, norms, biases.

use super::{Buffer, Source, number_source::FromSource};
use crate::{Dtype, KernelError};
use half::bf16;

/// The token embedding `[vocab, hidden]`, row after row.
pub struct Table {
    rows: usize,
    cols: usize,
    data: TableRows,
}

/// The numbers of a [`Table`].
pub(crate) enum TableRows {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
}

impl Table {
    /// As many rows of `cols` as `source` has.
    ///
    /// # Errors
    /// If `source` is not whole rows, `dtype` is int8, fp8 or int4, or there is no memory.
    pub fn new(cols: usize, source: Source<'_>, dtype: Dtype) -> Result<Table, KernelError> {
        if cols == 0 || !source.len().is_multiple_of(cols) {
            return Err(KernelError::NotWholeRows { elements: source.len(), columns: cols });
        }
        let data = match dtype {
            Dtype::F32 => TableRows::F32(stored(source)?),
            Dtype::Bf16 => TableRows::Bf16(stored(source)?),
            Dtype::Int8 | Dtype::Fp8 | Dtype::Int4 => {
                return Err(KernelError::MatricesAlone { what: "the embedding", dtype: dtype.name() });
            }
        };
        Ok(Table { rows: source.len() / cols, cols, data })
    }

    /// Number of rows: the vocabulary.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row: the hidden size.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let dtype = match self.data {
            TableRows::F32(_) => Dtype::F32,
            TableRows::Bf16(_) => Dtype::Bf16,
        };
        (self.rows * self.cols * dtype.bytes()) as u64
    }

    pub(crate) fn data(&self) -> &TableRows {
        &self.data
    }
}

fn stored<T: FromSource>(source: Source<'_>) -> Result<Buffer<T>, KernelError> {
    let mut data = Buffer::zeroed(source.len(), "the embedding")?;
    source.read(0, &mut data);
    Ok(data)
}

/// A norm's weights or a bias, in f32.
pub struct Vector {
    data: Vec<f32>,
}

impl Vector {
    /// The numbers of `source`.
    #[must_use]
    pub fn new(source: Source<'_>) -> Vector {
        Vector::concat(&[source])
    }

    /// The numbers of `sources`, one after the other: the bias of a fused matrix.
    #[must_use]
    pub fn concat(sources: &[Source<'_>]) -> Vector {
        let mut data = vec![0.0; sources.iter().map(Source::len).sum()];
        let mut rest = data.as_mut_slice();
        for source in sources {
            let (part, tail) = rest.split_at_mut(source.len());
            source.read(0, part);
            rest = tail;
        }
        Vector { data }
    }

    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// Memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val(self.data.as_slice()) as u64
    }
}
