//! How many matrices of a quantised checkpoint int4 computes with as they are: by the files' headers, and what says how inputs are grouped.

use std::path::Path;

use faser_kernels::Source;

use super::open_files::open_files;
use super::{Packer, has_own_bits, load};
use crate::checkpoint::has_weights;
use crate::{ModelConfig, ModelError, Shard};

/// Matrices of a model's layers that its files have quantised; projections of one input are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnBits {
    /// Those that int4 holds in the 4 bits of the files.
    pub kept: usize,
    /// Those that it holds in int8.
    pub others: usize,
    /// Why, of the first of these.
    pub why: Option<&'static str>,
}

impl ModelConfig {
    /// Counts the matrices in `path`; none if no weights are there.
    ///
    /// # Errors
    /// They are damaged, or of another shape.
    pub fn own_bits(&self, path: &Path) -> Result<OwnBits, ModelError> {
        let mut found = OwnBits::default();
        if self.head.is_none() && has_weights(path) {
            open_files(path, self, |tensors| {
                load(self, Shard::WHOLE, None, tensors, &mut found, &mut |_| {}).map(drop)
            })?;
        }
        Ok(found)
    }
}

impl Packer for OwnBits {
    type Table = ();
    type Matrix = ();
    type Vector = ();

    fn reads(&self) -> bool {
        false
    }

    fn table(&mut self, _cols: usize, _source: Source<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn matrix(&mut self, _tensor: &str, _inputs: usize, sources: &[Source<'_>]) -> Result<(), ModelError> {
        let mut forms = sources.iter().map(Source::four_bit_form);
        if sources.iter().all(has_own_bits) {
            self.kept += 1;
        } else if forms.any(|form| form.is_some()) {
            self.others += 1;
            let first = sources.iter().find_map(|source| source.four_bit_form()?.err());
            self.why = self.why.or(first).or(Some("one with some that are not quantised"));
        }
        Ok(())
    }

    fn vector(&mut self, _sources: &[Source<'_>]) -> Result<(), ModelError> {
        Ok(())
    }
}
