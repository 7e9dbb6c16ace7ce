//! A GGUF file in memory, looked at as far as it is read before any weight is.

use std::ops::Range;
use std::path::Path;

use super::{Gguf, GgufTensors, config};
use crate::load::{Held, Packing, counted};
use crate::{ModelConfig, ModelError, Shard, Tokenizer};
use faser_kernels::Dtype;

/// Reads the shape and the tokenizer of a GGUF file that is all of `file`, and looks that its tensors are those of the shape; `path` is named
/// in errors. Returns the shape, and where the bytes of each tensor are.
///
/// # Errors
/// As [`ModelConfig::load`], [`Tokenizer::load`] and [`ModelConfig::check_weights`].
pub fn check_gguf(path: &Path, file: &[u8]) -> Result<(ModelConfig, Vec<Range<usize>>), ModelError> {
    let gguf = Gguf::of(std::iter::once((path, file)), |_, _| Ok(()))?;
    let gguf = gguf.ok_or_else(|| ModelError::format(path, &"it has no parts"))?;
    let config = config(&gguf)?;
    Tokenizer::of_gguf(&gguf.metadata, &config)?;
    counted(
        &config,
        Shard::WHOLE,
        &mut GgufTensors::new(&gguf, &config),
        Held::Panels(Packing::new(&config, Dtype::F32)),
    )?;
    let start = file.as_ptr() as usize;
    let place = |data: &[u8]| {
        let from = data.as_ptr() as usize - start;
        from..from + data.len()
    };
    Ok((config, gguf.tensors.values().map(|tensor| place(tensor.data)).collect()))
}
