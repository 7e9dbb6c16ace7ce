//! Target and draft models of any shape from a seed: no file, no download, and an acceptance that can be chosen.
//!
//! The draft is the target's first layers with the same embedding, final norm and LM head; they are shared in
//! memory, not copied. In the target's further layers both branches are scaled by epsilon
//! ([`SyntheticSpec::residual_scale`]): its last hidden state is the draft's plus epsilon times a random
//! perturbation that depends on the context. At epsilon 0 the draft is always right, with a large one almost
//! never. All matrices keep their full size, so a pass costs what it costs with a real model of the shape.
//!
//! Random weights easily fall into repeating one token for ever. Against that:
//! - the LM head is not tied: a tied one makes the last token the most likely next one;
//! - attention is sharp (scores before the softmax have standard deviation 3): flat attention averages the
//!   context away, and the next token becomes a function of the last one alone;
//! - each branch is scaled, on a calibration batch, to RMS 0.7 where an embedding has RMS 1, so that the
//!   context moves the hidden state as much as the last token does;
//! - logits have standard deviation 6, about the entropy of a language model;
//! - the norms of the embeddings differ (log-normal, 0.4): a token with a large norm drowns the perturbation,
//!   one with a small norm amplifies it, so that the acceptance varies along a text as it does with real
//!   models.
//!
//! Such a model has no end token: its texts end at their length. Its tokenizer is [`crate::Tokenizer::synthetic`].

mod calibration;
mod normal;
mod synthetic_head;
mod synthetic_spec;
mod synthetic_tensors;

use faser_kernels::Dtype;

pub use self::synthetic_head::{head, head_of_kind, head_on_gpu};
pub use self::synthetic_spec::SyntheticSpec;
pub(crate) use self::synthetic_tensors::Synthetic;
use crate::{Model, ModelError, Progress, Shard, WeightSource};

/// Makes the target and its draft for the CPU.
///
/// # Errors
/// The shape is impossible, or there is no memory or thread for it.
pub fn pair(
    spec: &SyntheticSpec,
    dtype: Dtype,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Model, Model), ModelError> {
    let target = Model::load(&WeightSource::Synthetic(spec.clone()), Shard::WHOLE, dtype, progress)?;
    let draft = target.first_layers(spec.draft_layers);
    Ok((target, draft))
}
