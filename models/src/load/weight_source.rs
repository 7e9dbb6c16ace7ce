//! Where weights come from, and a model made of them on the CPU.

use std::path::{Path, PathBuf};

use faser_kernels::Dtype;

use super::open_files::open_files;
use super::tensors::Tensors;
use super::{CpuPacker, Packing, Progress, load};
use crate::synthetic::{Synthetic, SyntheticSpec};
use crate::{Model, ModelConfig, ModelError, Shard};

/// What a model is made of, whatever device it is for.
#[derive(Clone, Debug)]
pub enum WeightSource {
    /// A directory of safetensors weights (`model.safetensors`, or the files of `model.safetensors.index.json`) or a GGUF file, and the shape
    /// of the model.
    Folder(PathBuf, Box<ModelConfig>),
    /// The target of a synthetic pair: see [`crate::synthetic`].
    Synthetic(SyntheticSpec),
    /// The draft of such a pair alone: the target's later layers are not made.
    SyntheticDraft(SyntheticSpec),
}

impl WeightSource {
    /// A directory, of the shape that its config.json says, or a GGUF file.
    ///
    /// # Errors
    /// As [`ModelConfig::load`].
    pub fn folder(dir: &Path) -> Result<WeightSource, ModelError> {
        Ok(WeightSource::Folder(dir.to_owned(), Box::new(ModelConfig::load(dir)?)))
    }

    /// The shape of the model.
    ///
    /// # Errors
    /// That of a synthetic pair is impossible.
    pub fn config(&self) -> Result<ModelConfig, ModelError> {
        Ok(match self {
            WeightSource::Folder(_, config) => ModelConfig::clone(config),
            WeightSource::Synthetic(spec) => spec.configs()?.0,
            WeightSource::SyntheticDraft(spec) => spec.configs()?.1,
        })
    }

    /// Where its files are, if it is made of files.
    pub fn path(&self) -> Option<&Path> {
        match self {
            WeightSource::Folder(path, _) => Some(path),
            WeightSource::Synthetic(_) | WeightSource::SyntheticDraft(_) => None,
        }
    }

    /// How many of the target's layers, the first, this model is, if it is no more than that: what they have in common need be there once.
    pub fn layers_of(&self, target: &WeightSource) -> Option<usize> {
        match (self, target) {
            (WeightSource::SyntheticDraft(draft), WeightSource::Synthetic(whole)) => {
                (draft == whole).then_some(draft.draft_layers)
            }
            _ => None,
        }
    }

    /// Opens the tensors for a shard of a model that is held in `dtype`, or whose target is.
    pub(crate) fn open<T>(
        &self,
        shard: Shard,
        dtype: Dtype,
        load: impl FnOnce(ModelConfig, &mut dyn Tensors) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let config = self.config()?;
        shard.check(&config)?;
        match self {
            WeightSource::Folder(dir, whole) => open_files(dir, whole, |tensors| load(config, tensors)),
            WeightSource::Synthetic(spec) => load(config, &mut Synthetic::new(spec, dtype)?),
            WeightSource::SyntheticDraft(spec) => {
                let alone = SyntheticSpec { layers: spec.draft_layers, ..spec.clone() };
                load(config, &mut Synthetic::new(&alone, dtype)?)
            }
        }
    }
}

impl Model {
    /// Makes one rank's shard of a model, whose matrices are packed in `dtype`, the LM head too (in int4 that is int8, unless its file has it in
    /// 4 bits, and so is what its file has quantised otherwise, or a quantised checkpoint has not quantised); the embedding is held in [`Dtype::beside`] it, a tied one in both forms. Nothing else is read of files but their headers. `progress` is called after each
    /// tensor, and counts it whole.
    ///
    /// # Errors
    /// A file is missing or damaged, a tensor is missing, too much, or of another shape than config.json gives it, or the model cannot be
    /// split so; the message names file and key or tensor.
    pub fn load(
        source: &WeightSource,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        source.open(shard, dtype, |config, tensors| {
            let packer = &mut CpuPacker { packing: Packing::new(&config, dtype) };
            let parts = load(&config, shard, None, tensors, packer, progress)?;
            Model::new(config, shard, dtype, parts)
        })
    }

    /// The same of the draft of a target that is there, which may be packed in another type: a head [fitted](crate::fitted) to it, whole,
    /// may borrow of it.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_draft(
        source: &WeightSource,
        shard: Shard,
        target: &Model,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        // The numbers of a synthetic draft are its target's, in whatever they are packed.
        source.open(shard, target.dtype(), |config, tensors| {
            let packer = &mut CpuPacker { packing: Packing::new(&config, dtype) };
            let parts = load(&config, shard, Some(target.parts()), tensors, packer, progress)?;
            Model::new(config, shard, dtype, parts)
        })
    }
}
