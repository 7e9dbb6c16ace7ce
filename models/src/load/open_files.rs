//! The tensors of a model's files: of a folder, or of a GGUF file.

use std::path::Path;

use super::tensors::Tensors;
use crate::checkpoint::{Checkpoint, Dequantised, Files, GptOss};
use crate::gguf::{Gguf, GgufTensors, Parts, is_gguf};
use crate::{Architecture, ModelConfig, ModelError, WeightQuantisation};

/// Maps the files of `path`, reads their headers, and hands their tensors to `load`; `config` is the whole model's.
pub(crate) fn open_files<T>(
    path: &Path,
    config: &ModelConfig,
    load: impl FnOnce(&mut dyn Tensors) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    if is_gguf(path) {
        let parts = Parts::map(path)?;
        let gguf = Gguf::read(&parts)?;
        return load(&mut GgufTensors::new(&gguf, config));
    }
    let files = Files::map(path)?;
    let mut checkpoint = Checkpoint::new(&files)?;
    match config.quantised {
        None | Some(WeightQuantisation::Mxfp4) if config.architecture == Architecture::GptOss => {
            load(&mut GptOss::new(&checkpoint, config)?)
        }
        None => load(&mut checkpoint),
        Some(quantisation) => load(&mut Dequantised::new(&checkpoint, quantisation)?),
    }
}
