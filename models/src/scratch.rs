//! The activations of one lane's passes, allocated once.

use std::sync::Arc;

use faser_kernels::Tensor;

use crate::ModelConfig;
use crate::hidden_states::{HiddenStates, HiddenWriter};

/// Room for the activations of passes up to a number of rows. A pass allocates nothing.
pub struct Scratch {
    /// The residual stream: `hidden` columns.
    pub(crate) x: Tensor,
    /// A norm's output: `hidden` columns.
    pub(crate) normed: Tensor,
    /// Queries, keys and values side by side.
    pub(crate) qkv: Tensor,
    /// The attention's output, all heads side by side.
    pub(crate) attended: Tensor,
    /// The projections of the MLP's input side by side.
    pub(crate) mlp: Tensor,
    /// The MLP's activations: `intermediate` columns.
    pub(crate) activated: Tensor,
    /// The rows that need logits, gathered; then the same, normalised.
    pub(crate) gathered: Tensor,
    pub(crate) final_normed: Tensor,
    pub(crate) logits: Tensor,
    /// Tokens to score, as the shard counts them.
    pub(crate) own_tokens: Vec<u32>,
    /// Where hidden states go, if anybody reads them.
    pub(crate) hidden: Option<HiddenWriter>,
}

impl Scratch {
    /// Room for passes of a model, or a shard, of this shape of up to `max_rows` rows, of which up to `max_logit_rows` need logits (or, on the way, scores).
    pub fn new(config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> Scratch {
        Scratch {
            x: Tensor::zeros(max_rows, config.hidden),
            normed: Tensor::zeros(max_rows, config.hidden),
            qkv: Tensor::zeros(max_rows, config.q_width() + 2 * config.kv_width()),
            attended: Tensor::zeros(max_rows, config.q_width()),
            mlp: Tensor::zeros(max_rows, config.mlp_width()),
            activated: Tensor::zeros(max_rows, config.intermediate),
            gathered: Tensor::zeros(max_logit_rows, config.hidden),
            final_normed: Tensor::zeros(max_logit_rows, config.hidden),
            logits: Tensor::zeros(max_logit_rows, config.vocab),
            own_tokens: Vec::new(),
            hidden: None,
        }
    }

    /// Bytes that [`Scratch::new`] will allocate, for planning.
    pub fn bytes(config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> u64 {
        let row = 2 * config.hidden
            + 2 * config.q_width()
            + 2 * config.kv_width()
            + config.mlp_width()
            + config.intermediate;
        let logit_row = 2 * config.hidden + config.vocab;
        let columns = (max_rows as u64) * (row as u64) + (max_logit_rows as u64) * (logit_row as u64);
        columns * size_of::<f32>() as u64
    }

    /// The logits of the last pass: row `i` belongs to `pass.logits[i]`, `vocab` columns; of a shard,
    /// those of its own tokens.
    pub fn logits(&self) -> &Tensor {
        &self.logits
    }

    /// The residual stream of the pass under way: `hidden` columns.
    pub fn residual(&self) -> &Tensor {
        &self.x
    }

    /// Most rows of a pass.
    pub fn max_rows(&self) -> usize {
        self.x.capacity()
    }

    /// As [`Scratch::logits`], to be changed.
    pub fn logits_mut(&mut self) -> &mut Tensor {
        &mut self.logits
    }

    /// Most rows with logits of a pass.
    pub fn max_logit_rows(&self) -> usize {
        self.logits.capacity()
    }

    /// From now on the passes in this scratch leave their hidden states in `states`.
    ///
    /// # Panics
    /// If those are of a model of another width, or have no room for two passes.
    pub fn attach(&mut self, states: Arc<HiddenStates>) {
        self.hidden = Some(HiddenWriter::new(states, self.x.cols(), self.max_rows()));
    }

    /// The index, in the hidden states attached, of the first row of the pass begun last; those of its other rows follow.
    pub fn first_hidden(&self) -> Option<u64> {
        self.hidden.as_ref().map(|hidden| hidden.first)
    }
}
