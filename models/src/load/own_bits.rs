//! How many matrices of a quantised checkpoint int4, and fp8 on GPUs, compute with as they are: by the files' headers, and what says how inputs are grouped.

use std::path::Path;

use faser_kernels::{Dtype, Source};

use super::open_files::open_files;
use super::{HeldRows, Packer, Packing, has_own_bits, load};
use crate::checkpoint::has_weights;
use crate::{ModelConfig, ModelError, Shard, WeightQuantisation};

/// Matrices of a model's layers that its files have quantised; projections of one input are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnBits {
    /// Those that int4 holds in the 4 bits of the files.
    pub kept: usize,
    /// Those of them that a GPU does too.
    pub on_gpu: usize,
    /// Those that it holds in int8, and a GPU in bf16, unless fp8 is asked for and they are.
    pub others: usize,
    /// Why, of the first of these.
    pub why: Option<&'static str>,
    /// Those, of all, that a GPU holds in the FP8 of the files where fp8 is asked for.
    pub fp8_on_gpu: usize,
}

impl ModelConfig {
    /// Counts the matrices in `path`; none if no weights are there.
    ///
    /// # Errors
    /// They are damaged, or of another shape.
    pub fn own_bits(&self, path: &Path) -> Result<OwnBits, ModelError> {
        let packing = Packing::new(self, Dtype::Int4);
        let mut counter = CountsOwnBits { packing, found: OwnBits::default() };
        if self.head.is_none() && has_weights(path) {
            open_files(path, self, |tensors| {
                load(self, Shard::WHOLE, None, tensors, &mut counter, &mut |_| {}).map(drop)
            })?;
        }
        Ok(counter.found)
    }
}

impl ModelConfig {
    /// In what a CPU holds the model with as few bits more than `path` has as there are kernels for: int4 if it has matrices of 4 bits that stay as they are,
    /// int8 if others are quantised in whole numbers, else bf16.
    ///
    /// # Errors
    /// As [`ModelConfig::own_bits`].
    pub fn own_dtype(&self, path: &Path) -> Result<Dtype, ModelError> {
        if !self.in_blocks && self.quantised.is_none() {
            return Ok(Dtype::Bf16);
        }
        let OwnBits { kept, others, .. } = self.own_bits(path)?;
        let in_8_bits =
            self.in_blocks || self.quantised.is_some_and(WeightQuantisation::has_eight_bit_integers);
        Ok(match (kept, others) {
            (0, 0) => Dtype::Bf16,
            (0, _) if in_8_bits => Dtype::Int8,
            (0, _) => Dtype::Bf16,
            _ => Dtype::Int4,
        })
    }
}

struct CountsOwnBits {
    packing: Packing,
    found: OwnBits,
}

impl Packer for CountsOwnBits {
    type Table = ();
    type Matrix = ();
    type Vector = ();

    fn reads(&self) -> bool {
        false
    }

    fn table(&mut self, _cols: usize, _source: Source<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn matrix(&mut self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> Result<(), ModelError> {
        let (mut forms, found) = (sources.iter().map(Source::four_bit_form), &mut self.found);
        if sources.iter().all(has_own_bits) {
            found.kept += 1;
            let held = self.packing.rows(tensor, inputs, sources);
            found.on_gpu += usize::from(matches!(held, HeldRows::Records(_)));
        } else if forms.any(|form| form.is_some()) {
            found.others += 1;
            let packing = Packing { dtype: Dtype::Fp8, ..self.packing };
            let held = packing.rows(tensor, inputs, sources);
            found.fp8_on_gpu += usize::from(matches!(held, HeldRows::Records(_)));
            let first = sources.iter().find_map(|source| source.four_bit_form()?.err());
            found.why = found.why.or(first).or(Some("one with some that are not quantised"));
        }
        Ok(())
    }

    fn vector(&mut self, _sources: &[Source<'_>]) -> Result<(), ModelError> {
        Ok(())
    }
}
