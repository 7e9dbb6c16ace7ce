//! What the rows of a block (DSpark) say once the token before each is drawn: a bias that depends on it, from a table of few columns, and how sure the
//! head is. Rows of one block go from left to right; those of several blocks go together.
//!
//! ```text
//! e = W1[token before]     bias = W2 e                                     vanilla
//!                          bias = W2 (sigmoid(Wg [h; e]) * e)              gated
//!                          bias = W2 tanh(o), s = i s + (1 - i) tanh(c)    rnn: [i, c, o] = Wj [s; e; h], i through a sigmoid
//! confidence = sigmoid(w [h; e] + b)
//! ```

use faser_kernels::ops::{self, Write};
use faser_kernels::{Lane, Matrix, Table, Tensor, Vector};

use crate::{MarkovKind, ModelConfig};

/// Its weights, as a device holds them.
pub(crate) struct Markov<T = Table, M = Matrix, V = Vector> {
    pub(crate) kind: MarkovKind,
    /// `[vocab, rank]`.
    pub(crate) before: T,
    /// `[proposed, rank]`.
    pub(crate) bias: M,
    /// The gate's or the recurrence's projection, and its bias.
    pub(crate) mix: Option<(M, V)>,
}

/// What says how sure the head is: a row of weights, and a number.
pub(crate) struct Surety<V = Vector> {
    pub(crate) weights: V,
    pub(crate) bias: V,
}

/// Room for what is computed, a row for each row with logits.
pub(crate) struct MarkovScratch {
    embedded: Tensor,
    mixed: Tensor,
    gates: Tensor,
    reads: Tensor,
    bias: Tensor,
    /// Of the recurrence, by rows with logits.
    state: Tensor,
}

impl MarkovScratch {
    /// Columns of its tensors.
    fn widths(config: &ModelConfig) -> Option<[usize; 6]> {
        let (head, rank, hidden) = (config.head.as_ref()?, config.block()?.markov?.rank, config.hidden);
        let proposed = head.proposed_vocab.unwrap_or(config.vocab);
        Some([rank, 2 * rank + hidden, 3 * rank, rank, proposed, rank])
    }

    /// For up to `rows` rows with logits, if the head has such a part.
    pub(crate) fn of(config: &ModelConfig, rows: usize) -> Option<MarkovScratch> {
        let [embedded, mixed, gates, reads, bias, state] =
            MarkovScratch::widths(config)?.map(|cols| Tensor::zeros(rows, cols));
        Some(MarkovScratch { embedded, mixed, gates, reads, bias, state })
    }

    /// Columns of all of them.
    pub(crate) fn columns(config: &ModelConfig) -> usize {
        MarkovScratch::widths(config).map_or(0, |widths| widths.iter().sum())
    }

    /// The bias of each of `rows`, of the rows with logits, behind these tokens; `hidden` is what the rows' logits are made of. The first rows of
    /// their blocks begin the recurrence.
    pub(crate) fn run(
        &mut self,
        lane: &Lane,
        weights: &Markov,
        hidden: &Tensor,
        rows: &[u32],
        before: &[u32],
        first: bool,
    ) {
        let MarkovScratch { embedded, mixed, gates, reads, bias, state } = self;
        let (n, rank, width) = (rows.len(), embedded.cols(), hidden.cols());
        ops::embed(lane, &weights.before, before, 1.0, embedded.view_mut(n));
        let mix = |mixed: &Tensor, inputs: usize, gates: &mut Tensor| {
            if let Some((matrix, bias)) = &weights.mix {
                let outputs = matrix.out_features();
                let (from, to) = (mixed.view(n).columns(0..inputs), gates.view_mut(n).columns(0..outputs));
                ops::matmul(lane, from, matrix, Some(bias), to, Write::Replace);
            }
        };
        match weights.kind {
            MarkovKind::Vanilla => {}
            MarkovKind::Gated => {
                for (row, wanted) in rows.iter().enumerate() {
                    let (h, e) = mixed.row_mut(row)[..width + rank].split_at_mut(width);
                    h.copy_from_slice(hidden.row(*wanted as usize));
                    e.copy_from_slice(embedded.row(row));
                }
                mix(mixed, width + rank, gates);
                for row in 0..n {
                    let gated = gates.row(row).iter().zip(embedded.row(row));
                    reads.row_mut(row).iter_mut().zip(gated).for_each(|(to, (g, e))| *to = sigmoid(*g) * e);
                }
            }
            MarkovKind::Recurrent => {
                for (row, wanted) in rows.iter().enumerate() {
                    let wanted = *wanted as usize;
                    let (s, rest) = mixed.row_mut(row).split_at_mut(rank);
                    let (e, h) = rest.split_at_mut(rank);
                    match first {
                        true => s.fill(0.0),
                        false => s.copy_from_slice(state.row(wanted - 1)),
                    }
                    e.copy_from_slice(embedded.row(row));
                    h.copy_from_slice(hidden.row(wanted));
                }
                mix(mixed, 2 * rank + width, gates);
                for (row, wanted) in rows.iter().enumerate() {
                    let (gates, s) = (gates.row(row), &mixed.row(row)[..rank]);
                    let (to, reads) = (state.row_mut(*wanted as usize), reads.row_mut(row));
                    for i in 0..rank {
                        let keep = sigmoid(gates[i]);
                        to[i] = keep * s[i] + (1.0 - keep) * gates[rank + i].tanh();
                        reads[i] = gates[2 * rank + i].tanh();
                    }
                }
            }
        }
        let reads = if weights.kind == MarkovKind::Vanilla { &*embedded } else { &*reads };
        ops::matmul(lane, reads.view(n), &weights.bias, None, bias.view_mut(n), Write::Replace);
    }

    /// The bias of the `row`th of the rows of the latest run.
    pub(crate) fn bias(&self, row: usize) -> &[f32] {
        self.bias.row(row)
    }

    /// What the token before it is to that row.
    pub(crate) fn embedded(&self, row: usize) -> &[f32] {
        self.embedded.row(row)
    }
}

impl Surety {
    /// How sure the head is of what it says in a row with this hidden state, behind a token that is `before` to it: 0 to 1.
    pub(crate) fn of(&self, hidden: &[f32], before: &[f32]) -> f32 {
        let weights = self.weights.as_slice();
        let known = hidden.iter().chain(before).zip(weights).map(|(x, weight)| x * weight);
        sigmoid(known.sum::<f32>() + self.bias.as_slice()[0])
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
