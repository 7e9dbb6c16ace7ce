//! The activations of one lane's passes, allocated once.

use std::sync::Arc;

use faser_kernels::{Lane, Rows, Tensor};

use crate::ModelConfig;
use crate::block::BlockScratch;
use crate::experts::ExpertsScratch;
use crate::features::{FeatureWriter, Features, Fusion};
use crate::markov::MarkovScratch;

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
    /// The MLP's activations.
    pub(crate) activated: Tensor,
    /// What a model with experts needs more.
    pub(crate) experts: Option<ExpertsScratch>,
    /// The rows that need logits, gathered; then the same, normalised.
    pub(crate) gathered: Tensor,
    pub(crate) final_normed: Tensor,
    pub(crate) logits: Tensor,
    /// Layers that the pass has been through.
    pub(crate) depth: usize,
    /// Tokens to score, as the shard counts them.
    pub(crate) own_tokens: Vec<u32>,
    /// Where features go, of a target whose draft is a head.
    pub(crate) features: Option<FeatureWriter>,
    /// What a head needs more.
    pub(crate) head: Option<HeadScratch>,
}

/// What a head on hidden states needs more than a model.
pub(crate) struct HeadScratch {
    /// The tokens' embeddings.
    pub(crate) embedded: Tensor,
    /// They, normalised, and the residual stream beside them.
    pub(crate) beside: Tensor,
    /// Logits of the tokens that it proposes, where those are not all.
    pub(crate) proposed: Tensor,
    /// In so many rows of `logits` what the head never proposes has minus infinity, and keeps it: nobody else writes there.
    pub(crate) cleared: usize,
    /// Of one that proposes a block.
    pub(crate) block: Option<BlockScratch>,
    /// Of one whose rows take something from the token before them.
    pub(crate) markov: Option<MarkovScratch>,
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
            activated: Tensor::zeros(max_rows, config.activated_width()),
            experts: ExpertsScratch::of(config, max_rows),
            gathered: Tensor::zeros(max_logit_rows, config.hidden),
            final_normed: Tensor::zeros(max_logit_rows, config.hidden),
            logits: Tensor::zeros(max_logit_rows, config.vocab),
            depth: 0,
            own_tokens: Vec::new(),
            features: None,
            head: config.head.as_ref().map(|head| HeadScratch {
                embedded: Tensor::zeros(max_rows, config.hidden),
                beside: Tensor::zeros(max_rows, 2 * config.hidden),
                proposed: Tensor::zeros(max_logit_rows, head.proposed_vocab.unwrap_or(1)),
                cleared: 0,
                block: BlockScratch::of(config, max_rows),
                markov: MarkovScratch::of(config, max_logit_rows),
            }),
        }
    }

    /// Bytes that [`Scratch::new`] will allocate, for planning.
    pub fn bytes(config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> u64 {
        let row = 2 * config.hidden
            + 2 * config.q_width()
            + 2 * config.kv_width()
            + config.mlp_width()
            + config.activated_width();
        let logit_row = 2 * config.hidden + config.vocab;
        let (row, logit_row) = match &config.head {
            Some(head) => {
                let of_head = head.proposed_vocab.unwrap_or(1) + MarkovScratch::columns(config);
                (row + 3 * config.hidden, logit_row + of_head)
            }
            None => (row, logit_row),
        };
        let columns = (max_rows as u64) * (row as u64) + (max_logit_rows as u64) * (logit_row as u64);
        columns * size_of::<f32>() as u64 + ExpertsScratch::bytes(config, max_rows)
    }

    /// Of a head that proposes a block: the pass that begins has so many rows of blocks, whole ones; behind them stand rows of the text, which begin
    /// with [features](Scratch::begins_with).
    ///
    /// # Panics
    /// If it is no such head.
    pub fn begin_blocks(&mut self, rows: usize) {
        let block = self.head.as_mut().and_then(|head| head.block.as_mut());
        block.expect("a head that proposes a block").queries = rows;
    }

    /// Of `n` rows of a pass those that go through the layers.
    pub(crate) fn queries(&self, n: usize) -> usize {
        let block = self.head.as_ref().and_then(|head| head.block.as_ref());
        block.map_or(n, |block| block.queries)
    }

    /// The first `n` rows of the residual stream enter a layer; `rows` is where they stand, behind the embedding.
    pub(crate) fn enter(&mut self, layer: usize, lane: &Lane, rows: Option<Rows<'_>>, n: usize) {
        if let Some(features) = &mut self.features {
            features.enter(layer, &self.x, lane, rows, n);
        }
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

    /// From now on the passes in this scratch leave in `pages` what `fusion` makes of them.
    pub(crate) fn attach(&mut self, pages: Arc<Features>, fusion: Arc<Fusion>) {
        self.features = Some(FeatureWriter::new(pages, fusion, self.x.cols(), self.max_rows()));
    }

    /// Bytes that [`Model::attach`](crate::Model::attach) will allocate, for planning.
    pub fn attached_bytes(head: &ModelConfig, max_rows: usize) -> u64 {
        let width = head.head.as_ref().map_or(0, |spec| 2 * spec.streams_width() + head.hidden);
        (max_rows * width * size_of::<f32>()) as u64
    }

    /// What a row of the pass of a head begins with, to be written before [`Model::begin`]: the features of the token before it, or what
    /// [`Scratch::passed_on`] gave.
    pub fn begins_with(&mut self, row: usize) -> &mut [f32] {
        self.x.row_mut(row)
    }

    /// What the row behind one whose logits were wanted, the `wanted`th of them, begins with where the target's features are not there.
    pub fn passed_on(&self, head: &ModelConfig, wanted: usize) -> &[f32] {
        let normed = head.head.as_ref().is_some_and(|head| head.output_normed);
        if normed { self.final_normed.row(wanted) } else { self.gathered.row(wanted) }
    }
}
