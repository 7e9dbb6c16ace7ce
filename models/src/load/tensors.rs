//! Tensors by the names they have in checkpoints, whoever makes a model of them, and wherever they are.
//!
//! ```text
//! Checkpoint (memory-mapped safetensors) ─┐                     ┌─ CpuPacker: panels for the CPU's kernels
//! Synthetic  (made from a seed)          ─┴─ dyn Tensors ─ load ┴─ CudaPacker: rows in a GPU's memory
//! ```
//!
//! A source that gives parts of another's tensors (a shard's rows or columns) is a `Tensors` too: the shapes asked for are then those of
//! the shard's own [`crate::ModelConfig`].

use faser_kernels::Source;

use crate::ModelError;

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
/// How the name of a router of experts ends.
pub(crate) const ROUTER: &str = ".mlp.gate.weight";
/// How the names of the projections of layers end.
pub(crate) const PROJECTION: &str = "_proj.weight";
/// How the names of what heads have beside their layers begin, of which some end so too.
pub(crate) const MARKOV: &str = "markov_head.";

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

    /// Looks at what the numbers of a tensor are made of, where they are made: [`Source::first_not_finite`] does not.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`].
    fn look(&self, _name: &str) -> Result<(), ModelError> {
        Ok(())
    }

    /// A tensor of so many whole numbers.
    fn integers(&self, _name: &str, count: usize, _reason: &str) -> Result<Vec<i64>, ModelError> {
        Ok(vec![0; count])
    }

    /// Called when the model is complete: a tensor nobody asked for means that config.json and the weights disagree. `tied`: the LM head is
    /// the embedding.
    fn finish(&self, _tied: bool) -> Result<(), ModelError> {
        Ok(())
    }
}
