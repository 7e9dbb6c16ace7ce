//! Where weights come from: tensors by the names they have in checkpoints, whoever makes a model of them, and wherever they are.
//!
//! ```text
//! Checkpoint (memory-mapped safetensors) ─┐                     ┌─ CpuPacker: panels for the CPU's kernels
//! Synthetic  (made from a seed)          ─┴─ dyn Tensors ─ load ┴─ CudaPacker: rows in a GPU's memory
//! ```
//!
//! A source that gives parts of another's tensors (a shard's rows or columns) is a `Tensors` too: the shapes asked for are then those of
//! the shard's own [`crate::ModelConfig`].

use std::path::{Path, PathBuf};

use faser_kernels::{Dtype, Source};

use crate::checkpoint::{Checkpoint, Files};
use crate::synthetic::{Synthetic, SyntheticSpec};
use crate::{ModelConfig, ModelError, Shard};

/// What a model is made of, whatever device it is for.
#[derive(Clone, Debug)]
pub enum WeightSource {
    /// A directory of safetensors weights (`model.safetensors`, or the files of `model.safetensors.index.json`), and the shape of the model.
    Folder(PathBuf, Box<ModelConfig>),
    /// The target of a synthetic pair: see [`crate::synthetic`].
    Synthetic(SyntheticSpec),
    /// The draft of such a pair alone: the target's later layers are not made.
    SyntheticDraft(SyntheticSpec),
}

impl WeightSource {
    /// A directory, of the shape that its config.json says.
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

    /// How many of the target's layers, the first, this model is, if it is no more than that: what they have in common need be there once.
    pub fn layers_of(&self, target: &WeightSource) -> Option<usize> {
        match (self, target) {
            (WeightSource::SyntheticDraft(draft), WeightSource::Synthetic(whole)) => {
                (draft == whole).then_some(draft.draft_layers)
            }
            _ => None,
        }
    }

    /// Opens the tensors for a shard that is to be held in `dtype`.
    pub(crate) fn open<T>(
        &self,
        shard: Shard,
        dtype: Dtype,
        load: impl FnOnce(ModelConfig, &mut dyn Tensors) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let config = self.config()?;
        shard.check(&config)?;
        match self {
            WeightSource::Folder(dir, _) => load(config, &mut Checkpoint::new(&Files::map(dir)?)?),
            WeightSource::Synthetic(spec) => load(config, &mut Synthetic::new(spec, dtype)?),
            WeightSource::SyntheticDraft(spec) => {
                let alone = SyntheticSpec { layers: spec.draft_layers, ..spec.clone() };
                load(config, &mut Synthetic::new(&alone, dtype)?)
            }
        }
    }
}

/// The tensors of one model. Nothing is copied before it is read, and a tensor may be read more than once.
pub(crate) trait Tensors {
    /// Bytes of all tensors, as [`Source::bytes`] counts them.
    fn total_bytes(&self) -> u64 {
        0
    }

    /// Gets ready for the tensors of a layer. Layers come in their order, each once, before any of its tensors is asked for.
    fn prepare(&mut self, _layer: usize) -> Result<(), ModelError> {
        Ok(())
    }

    /// The tensor of that name, row-major. Its shape must be `shape`; `reason` names the keys of config.json that presence and shape follow
    /// from.
    fn tensor(&self, name: &str, shape: &[usize], reason: &str) -> Result<Source<'_>, ModelError>;

    /// Called when the model is complete: a tensor nobody asked for means that config.json and the weights disagree. `tied`: the LM head is
    /// the embedding.
    fn finish(&self, _tied: bool) -> Result<(), ModelError> {
        Ok(())
    }
}
