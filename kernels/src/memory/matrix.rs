//! Weight matrices, packed for the matmul.
//!
//! A panel is [`PANEL`] outputs. Inside a panel the numbers lie in the order the kernels read them, so that a pass
//! streams through memory once: bf16 as `[panel][in / 2][PANEL][2]` (pairs of inputs, what `vdpbf16ps` and AMX take), f32 as
//! `[panel][in][PANEL]`. Missing outputs are zero, and so are inputs after the last, in bf16 up to a tile's depth. int8 has its own
//! file, `int8.rs`.

use super::int8::{int8_words, pack_int8};
use super::{Buffer, Source, source::FromSource};
use crate::{Dtype, KernelError};
use half::bf16;

/// Outputs of a panel.
pub(crate) const PANEL: usize = 32;
/// bf16 inputs come in multiples of this: what AMX takes at a time.
pub(crate) const DEPTH: usize = 32;

/// A weight matrix `[out_features, in_features]`, packed at load.
pub struct Matrix {
    out_features: usize,
    in_features: usize,
    panels: Panels,
}

/// The packed numbers.
pub(crate) enum Panels {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
    Int8(Buffer<u32>),
}

impl Matrix {
    /// Packs the rows of `sources`, one after the other: several make a fused matrix (q|k|v, gate|up).
    /// Each is row-major `[its out_features, in_features]`.
    ///
    /// # Errors
    /// If a source is not whole rows, `dtype` is int8 and a weight is not finite or enormous, or there is no memory.
    pub fn pack(in_features: usize, sources: &[Source<'_>], dtype: Dtype) -> Result<Matrix, KernelError> {
        let mut out_features = 0;
        for source in sources {
            if in_features == 0 || !source.len().is_multiple_of(in_features) {
                return Err(KernelError::NotWholeRows { elements: source.len(), columns: in_features });
            }
            out_features += source.len() / in_features;
        }
        // Where each output's row is: its source, and the first element there.
        let rows = sources
            .iter()
            .flat_map(|source| (0..source.len()).step_by(in_features).map(move |at| (source, at)));
        let panels = match dtype {
            Dtype::F32 => Panels::F32(pack_panels::<f32, 1, 1>(out_features, in_features, rows)?),
            Dtype::Bf16 => Panels::Bf16(pack_panels::<bf16, 2, DEPTH>(out_features, in_features, rows)?),
            Dtype::Int8 => Panels::Int8(pack_int8(out_features, in_features, rows)?),
        };
        Ok(Matrix { out_features, in_features, panels })
    }

    /// Memory a packed matrix takes, in bytes.
    #[must_use]
    pub fn packed_bytes(out_features: usize, in_features: usize, dtype: Dtype) -> u64 {
        let words = match dtype {
            Dtype::F32 => in_features,
            Dtype::Bf16 => in_features.next_multiple_of(DEPTH) / 2,
            Dtype::Int8 => int8_words(in_features),
        };
        (out_features.next_multiple_of(PANEL) * words * size_of::<u32>()) as u64
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Number of inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Type of the weights.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self.panels {
            Panels::F32(_) => Dtype::F32,
            Panels::Bf16(_) => Dtype::Bf16,
            Panels::Int8(_) => Dtype::Int8,
        }
    }

    /// Memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        Matrix::packed_bytes(self.out_features, self.in_features, self.dtype())
    }

    /// Elements of a panel.
    pub(crate) fn panel_len(&self) -> usize {
        let len = match &self.panels {
            Panels::F32(packed) => packed.len(),
            Panels::Bf16(packed) => packed.len(),
            Panels::Int8(packed) => packed.len(),
        };
        len / self.out_features.div_ceil(PANEL).max(1)
    }

    pub(crate) fn panels(&self) -> &Panels {
        &self.panels
    }
}

/// Inputs of a row that are read at a time: what they become stays in the first cache.
const RUN: usize = 64;

/// `PAIR` consecutive inputs of an output lie together; zeros make them whole multiples of `WHOLE`.
fn pack_panels<'a, T: FromSource, const PAIR: usize, const WHOLE: usize>(
    out_features: usize,
    in_features: usize,
    mut rows: impl Iterator<Item = (&'a Source<'a>, usize)>,
) -> Result<Buffer<T>, KernelError> {
    let row = in_features.next_multiple_of(WHOLE);
    let mut packed = Buffer::zeroed(out_features.next_multiple_of(PANEL) * row, "weights")?;
    for panel in packed.chunks_exact_mut(PANEL * row) {
        let outputs: Vec<_> = rows.by_ref().take(PANEL).collect();
        for (run, packed) in panel.chunks_mut(RUN * PANEL).enumerate() {
            let inputs = RUN.min(in_features - run * RUN);
            for (output, (source, row)) in outputs.iter().enumerate() {
                let mut read = [T::ZERO; RUN];
                source.read(row + run * RUN, &mut read[..inputs]);
                for (group, pair) in packed.chunks_exact_mut(PANEL * PAIR).zip(read.chunks_exact(PAIR)) {
                    group[output * PAIR..(output + 1) * PAIR].copy_from_slice(pair);
                }
            }
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_sources_lie_in_panels_of_pairs_padded_with_zeros() {
        let (first, second): (Vec<f32>, Vec<f32>) = ((0..9).map(|i| i as f32).collect(), vec![20., 21., 22.]);
        let matrix = Matrix::pack(3, &[Source::F32(&first), Source::F32(&second)], Dtype::Bf16).unwrap();
        assert_eq!((matrix.out_features(), matrix.in_features()), (4, 3));
        let Panels::Bf16(packed) = matrix.panels() else { panic!("wrong dtype") };
        assert_eq!(matrix.bytes(), 2 * 32 * 32);
        let at = |out: usize, k: usize| packed[(k / 2) * 2 * PANEL + out * 2 + k % 2].to_f32();
        assert_eq!([at(0, 0), at(0, 1), at(0, 2), at(0, 3)], [0., 1., 2., 0.]);
        assert_eq!([at(2, 0), at(3, 0), at(3, 2), at(4, 0)], [6., 20., 22., 0.]);
    }

    #[test]
    fn f32_panels_keep_every_output() {
        let values: Vec<f32> = (0..40 * 5).map(|i| i as f32).collect();
        let matrix = Matrix::pack(5, &[Source::F32(&values)], Dtype::F32).unwrap();
        let Panels::F32(packed) = matrix.panels() else { panic!("wrong dtype") };
        for (i, value) in values.iter().enumerate() {
            let (out, k) = (i / 5, i % 5);
            assert_eq!(packed[out / PANEL * PANEL * 5 + k * PANEL + out % PANEL], *value);
        }
    }

    #[test]
    fn half_rows_are_refused() {
        let refusal = Matrix::pack(3, &[Source::F32(&[1.0; 7])], Dtype::F32).err().unwrap().to_string();
        assert!(refusal.contains("7 elements") && refusal.contains("rows of 3"), "{refusal}");
    }
}
