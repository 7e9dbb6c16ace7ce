//! A model and its forward pass: whole, or in segments, for a caller that lets rows leave it between two layers:
//! proposals that already look rejected, or whose sequence was cancelled.
//!
//! ```text
//! begin(tokens) ── layers(a..b) ──┬─────────────────────────────────────┬── layers(b..c) ── .. ── finish(wanted)
//!                                 └─ score(rows, alternatives) ─ keep ──┘
//! ```
//!
//! Between two segments the first `n` rows of the residual stream in [`Scratch`] are the pass, and `n` is the caller's to know. Rows that
//! stay compute the same bits whatever leaves, as long as none of them attends to a row that left: only the last rows of a sequence
//! may go. The keys and values of rows that left are missing from later layers: their positions count as never computed.
//!
//! Of a shard all ranks of the group make the same calls with the same rows: the residual stream is the same on every rank, bit by bit, and
//! so is what comes of it but for logits, of which each rank has those of its tokens. Where the layers are split into stages, the stream goes on
//! from stage to stage, and the rows whose logits are wanted come from the last to all.
//!
//! A head on hidden states begins with what the caller put [there](Scratch::begins_with); its target's passes leave what it [reads](Model::attach).
//!
//! Nothing here allocates; in a group, but for what travels between ranks.

use std::ops::Range;
use std::sync::Arc;

use faser_kernels::ops::{self, Write};
use faser_kernels::{
    Dtype, KvCache, KvShape, Lane, Matrix, RopeSpec, RopeTable, Rows, Table, Vector, ViewMut,
};

use crate::features::Fusion;
use crate::layer::{At, Layer};
use crate::markov::{Markov, Surety};
use crate::{Features, HeadSpec, ModelConfig, ModelError, RopeConfig, Scratch, Shard};

/// Weights and shape of one model, or of a rank's shard of it; never changed after loading. Share it in an `Arc`.
pub struct Model {
    config: ModelConfig,
    shard: Shard,
    /// The sizes of the shard.
    own: ModelConfig,
    dtype: Dtype,
    kv_dtype: Dtype,
    pub(crate) parts: Parts,
    /// Of each layer.
    pub(crate) ropes: Vec<Option<Arc<RopeTable>>>,
}

/// The weights, as a device holds them. They are counted, so that a draft model can be the first layers of its target without a copy.
pub(crate) struct Parts<T = Table, M = Matrix, V = Vector> {
    pub(crate) embedding: Arc<T>,
    pub(crate) layers: Vec<Arc<Layer<M, V>>>,
    pub(crate) norm: Arc<V>,
    pub(crate) head: Arc<M>,
    /// Of a head on hidden states.
    pub(crate) of_head: Option<HeadParts<T, M, V>>,
}

/// What a head on hidden states has beside a model's weights.
pub(crate) struct HeadParts<T, M, V> {
    pub(crate) fusion: Arc<Fusion<M, V>>,
    /// Which of the target's tokens each is that it proposes, where those are not all.
    pub(crate) target_tokens: Option<Arc<[u32]>>,
    /// What a row of a mask token begins with in place of features, of a head that proposes in one pass.
    pub(crate) mask_features: Option<V>,
    /// What rows of a block take from the token before them.
    pub(crate) markov: Option<Markov<T, M, V>>,
    /// How sure rows of a block are.
    pub(crate) surety: Option<Surety<V>>,
}

impl<T, M, V> Parts<T, M, V> {
    /// The same weights with the first `layers` layers alone.
    pub(crate) fn first_layers(&self, layers: usize) -> Parts<T, M, V> {
        Parts {
            embedding: self.embedding.clone(),
            layers: self.layers.iter().take(layers).cloned().collect(),
            norm: self.norm.clone(),
            head: self.head.clone(),
            of_head: None,
        }
    }
}

/// One pass over the model: row `r` is `tokens[r]` at the position that `rows` gives it.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// One token per row; each below the model's `vocab`.
    pub tokens: &'a [u32],
    /// Positions and block tables of the rows; positions are below the model's `max_context`.
    pub rows: Rows<'a>,
    /// Rows whose logits are wanted: the LM head runs on those alone.
    pub logits: &'a [u32],
}

impl Model {
    /// `parts` are those of the shard.
    pub(crate) fn new(
        config: ModelConfig,
        shard: Shard,
        dtype: Dtype,
        parts: Parts,
    ) -> Result<Model, ModelError> {
        let ropes = rope_tables(&config, Ok)?;
        let own = shard.config(&config);
        Ok(Model { config, shard, own, dtype, kv_dtype: dtype.beside(), parts, ropes })
    }

    /// The model of the first `layers` layers, which are shared.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn first_layers(&self, layers: usize) -> Model {
        Model {
            config: self.config.first_layers(layers),
            shard: self.shard,
            own: self.own.first_layers(layers),
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
            parts: self.parts.first_layers(layers),
            ropes: self.ropes[..layers].to_vec(),
        }
    }

    /// The shape of the whole model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What of the whole this is. The lanes that run a shard are those of its rank in the group.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// The shape of this shard: sizes of its activations, its KV memory and its logits.
    pub fn own(&self) -> &ModelConfig {
        &self.own
    }

    /// In what the matrices are held.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// In what keys and values are to be held: as the matrices, but bf16 beside int8 and int4, unless it was [said](Model::with_kv).
    pub fn kv_dtype(&self) -> Dtype {
        self.kv_dtype
    }

    /// The same model, whose keys and values are to be held in another type: f32, bf16 or int8.
    #[must_use]
    pub fn with_kv(self, kv_dtype: Dtype) -> Model {
        Model { kv_dtype, ..self }
    }

    /// Bytes of all weights. Weights shared with another model are counted in both, but what a head borrows of its target is the target's.
    pub fn weight_bytes(&self) -> u64 {
        let Parts { embedding, layers, norm, head, of_head } = &self.parts;
        let layers: u64 = layers.iter().map(|layer| layer.bytes(Matrix::bytes, Vector::bytes)).sum();
        let fusion = of_head.as_ref().map_or(0, |of_head| {
            let HeadParts { fusion, mask_features, markov, surety, .. } = of_head;
            let Fusion { norms, matrix, norm_after, .. } = &**fusion;
            let sure = surety.iter().flat_map(|Surety { weights, bias }| [weights, bias]);
            let mix = markov.as_ref().and_then(|markov| markov.mix.as_ref());
            let vectors = norms.iter().chain(norm_after).chain(mask_features).chain(sure);
            let vectors = vectors.chain(mix.map(|(_, bias)| bias));
            let tables = markov.as_ref().map_or(0, |markov| markov.before.bytes() + markov.bias.bytes());
            let mixed = mix.map_or(0, |(matrix, _)| matrix.bytes());
            matrix.bytes() + tables + mixed + vectors.map(Vector::bytes).sum::<u64>()
        });
        let own = |has: fn(&HeadSpec) -> bool| self.config.head.as_ref().is_none_or(has);
        let embedding = if own(|head| head.own_embedding) { embedding.bytes() } else { 0 };
        let head = if own(|head| head.own_lm_head) { head.bytes() } else { 0 };
        embedding + layers + norm.bytes() + head + fusion
    }

    /// From now on the passes in `scratch`, its target's, leave what this head reads of them in `pages`.
    ///
    /// # Panics
    /// If this is no head, or one of a target of another width; if the pages are of another head.
    pub fn attach(&self, scratch: &mut Scratch, pages: Arc<Features>) {
        let fusion = self.parts.of_head.as_ref().map(|of_head| of_head.fusion.clone());
        scratch.attach(pages, fusion.expect("features are for a head"));
    }

    /// What a row of a mask token begins with, of a head that proposes in one pass from mask tokens: [there](Scratch::begins_with).
    pub fn mask_features(&self) -> Option<&[f32]> {
        self.parts.of_head.as_ref()?.mask_features.as_ref().map(Vector::as_slice)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Bytes of keys and values per token, all layers together.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.own.host_kv_bytes_per_token(self.kv_dtype())
    }

    /// The shape of this model's KV memory.
    pub fn kv_shape(&self, blocks: usize, block_size: usize) -> KvShape {
        let ModelConfig { kv_heads, head_dim, .. } = self.own;
        KvShape { layers: self.own.layers.len(), blocks, block_size, kv_heads, head_dim }
    }

    /// Room for passes of this model: see [`Scratch::new`].
    pub fn scratch(&self, max_rows: usize, max_logit_rows: usize) -> Scratch {
        Scratch::new(&self.own, max_rows, max_logit_rows)
    }

    /// Runs the rows of `pass` through all layers: their keys and values are in `kv` afterwards, the logits of
    /// the wanted rows in [`Scratch::logits`]. Keys and values of all earlier positions must be there. What a
    /// row computes depends on its token, its position and the positions before it alone: not on the other rows
    /// of the pass, nor on the lane's number of workers. Nothing is allocated.
    ///
    /// It is [`Model::begin`], all [`Model::layers`], [`Model::finish`].
    ///
    /// # Panics
    /// If the pass does not fit `scratch` or `kv`, a token is not below `vocab`, or the lane is not that of the shard's rank: a programmer's
    /// error. If the group is lost: see [`Model::begin`].
    pub fn forward(&self, lane: &Lane, kv: &mut KvCache, scratch: &mut Scratch, pass: &Pass<'_>) {
        self.begin(lane, scratch, pass.tokens);
        self.layers(lane, 0..self.config.layers.len(), kv, scratch, pass.rows);
        self.finish(lane, scratch, pass.tokens.len(), pass.logits);
    }

    /// Begins a pass: the residual stream `[tokens.len(), hidden]` becomes the tokens' embeddings.
    ///
    /// # Panics
    /// If there are more than [`Scratch::max_rows`], or a token is not below `vocab`; if the lane is not that of the shard's rank. Here
    /// and in the other segments: if the lane's group is lost, which is the end of this lane.
    pub fn begin(&self, lane: &Lane, scratch: &mut Scratch, tokens: &[u32]) {
        let (shard, group) = (self.shard(), lane.group());
        assert_eq!(
            (group.rank(), group.ranks()),
            (shard.rank, shard.ranks),
            "rank and ranks of the lane, and of the model's shard"
        );
        let scale = self.config().embedding_scale;
        scratch.depth = 0;
        // Rows of the text that a block stands behind have no token.
        let tokens = &tokens[..scratch.queries(tokens.len())];
        let to = match &mut scratch.head {
            Some(head) if head.block.is_none() => &mut head.embedded,
            _ => &mut scratch.x,
        };
        if shard == Shard::WHOLE {
            ops::embed(lane, &self.parts.embedding, tokens, scale, to.view_mut(tokens.len()));
            return scratch.enter(0, lane, None, tokens.len());
        }
        let vocab = self.config().vocab;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            panic!("token {token} of a vocabulary of {vocab}");
        }
        let first = shard.tokens(self.config()).start;
        ops::embed_part(lane, &self.parts.embedding, first, tokens, scale, to.view_mut(tokens.len()));
        ops::all_reduce(lane, to.view_mut(tokens.len())).unwrap_or_else(|error| panic!("{error}"));
        scratch.enter(0, lane, None, tokens.len());
    }

    /// Runs the pass, one row for each of `rows.positions`, through the layers of `range` (the first is 0): the residual stream
    /// `[rows, hidden]` goes on, keys and values of these layers are in `kv` afterwards. `rows` are the rows that are in the
    /// pass now: whoever calls [`Model::keep`] shortens positions and tables in the same way.
    ///
    /// # Panics
    /// If the model has no such layers, or the rows do not fit `scratch` or `kv`.
    pub fn layers(
        &self,
        lane: &Lane,
        range: Range<usize>,
        kv: &mut KvCache,
        scratch: &mut Scratch,
        rows: Rows<'_>,
    ) {
        let (config, shard) = (self.own(), self.shard());
        for stage in 0..shard.stages {
            let layers = shard.layers_of(stage, self.config());
            let now = range.start.max(layers.start)..range.end.min(layers.end);
            for index in now.filter(|_| stage == shard.stage()) {
                // Counted among the layers that are here.
                let here = index - layers.start;
                let (layer, spec) = (&self.parts.layers[here], &config.layers[here]);
                let rope = self.ropes[index].as_deref();
                layer.forward(&At { config, spec, shard, rope, lane, index: here, rows }, kv, scratch);
                scratch.enter(index + 1, lane, Some(rows), rows.positions.len());
            }
            // What comes of the last stage is told by `normalise`.
            if stage + 1 < shard.stages && range.contains(&(layers.end - 1)) {
                let (from, to) = (shard.ranks_of(stage).start, shard.ranks_of(stage + 1));
                told(lane, (from, to), scratch.x.view_mut(rows.positions.len()));
            }
        }
        scratch.depth = range.end;
    }

    /// Of the `n` rows of the pass only those named by `keep`, strictly ascending, stay: row `i` is what was row `keep[i]`, and
    /// `n` is `keep.len()` from here on.
    ///
    /// # Panics
    /// If `keep` does not ascend, or names a row that is not below `n`.
    pub fn keep(&self, scratch: &mut Scratch, n: usize, keep: &[u32]) {
        assert_eq!(scratch.x.cols(), self.config().hidden, "the scratch of another model");
        ops::compact_rows(scratch.x.view_mut(n), keep);
        if let Some(features) = &mut scratch.features {
            features.keep(n, keep);
        }
    }

    /// The logits that `rows`, of the `n` in the pass, would give to `tokens` if the layers ended here: `c` tokens for each row, row by row,
    /// and `out` as long as `tokens`. After the last layer they are, bit for bit, the logits that [`Model::finish`] computes. The
    /// pass goes on as if nothing had been asked; the logits of a pass that is finished stay too.
    ///
    /// # Panics
    /// If there are more rows than [`Scratch::max_logit_rows`], one is not below `n`, a token is not below `vocab`, or `tokens` are not the
    /// same number for each row.
    pub fn score(
        &self,
        lane: &Lane,
        scratch: &mut Scratch,
        n: usize,
        rows: &[u32],
        tokens: &[u32],
        out: &mut [f32],
    ) {
        self.normalise(lane, scratch, n, rows);
        let Scratch { final_normed, own_tokens, .. } = scratch;
        let (normed, head) = (final_normed.view(rows.len()), &self.parts.head);
        if self.shard() == Shard::WHOLE {
            ops::score_tokens(lane, normed, head, tokens, out);
            return self.cap(lane, ViewMut::of_row(out));
        }
        // Each rank scores its own tokens; a sum with zeros is exact.
        let own = self.shard().tokens(self.config());
        let is_own = |token: &u32| own.contains(&(*token as usize));
        own_tokens.clear();
        own_tokens
            .extend(tokens.iter().map(|token| if is_own(token) { *token - own.start as u32 } else { 0 }));
        ops::score_tokens(lane, normed, head, own_tokens, out);
        out.iter_mut().zip(tokens).filter(|(_, token)| !is_own(token)).for_each(|(score, _)| *score = 0.0);
        lane.group().all_reduce_sum(out).unwrap_or_else(|error| panic!("{error}"));
        self.cap(lane, ViewMut::of_row(out));
    }

    /// Ends a pass of `n` rows: final norm and LM head of the rows in `wanted`, whose logits are in [`Scratch::logits`] afterwards,
    /// `[wanted.len(), vocab]`, in that order; of a shard those of its tokens, `[wanted.len(), own().vocab]`; of a head that
    /// [follows](Model::follows), when it has done so.
    ///
    /// # Panics
    /// If there are more than [`Scratch::max_logit_rows`], or one is not below `n`.
    pub fn finish(&self, lane: &Lane, scratch: &mut Scratch, n: usize, wanted: &[u32]) {
        self.normalise(lane, scratch, n, wanted);
        let Scratch { final_normed, logits, head, .. } = scratch;
        let (normed, head_matrix) = (final_normed.view(wanted.len()), &self.parts.head);
        let some = self.parts.of_head.as_ref().and_then(|of_head| of_head.target_tokens.as_deref());
        let Some((tokens, head)) = some.zip(head.as_mut()) else {
            ops::matmul(lane, normed, head_matrix, None, logits.view_mut(wanted.len()), Write::Replace);
            return self.cap(lane, logits.view_mut(wanted.len()));
        };
        let proposed = &mut head.proposed;
        ops::matmul(lane, normed, head_matrix, None, proposed.view_mut(wanted.len()), Write::Replace);
        while head.cleared < wanted.len() {
            logits.row_mut(head.cleared).fill(f32::NEG_INFINITY);
            head.cleared += 1;
        }
        // Else `follow` does it, when it knows the rest.
        let ready = if self.follows() { 0 } else { wanted.len() };
        for row in 0..ready {
            let to = logits.row_mut(row);
            tokens.iter().zip(proposed.row(row)).for_each(|(token, logit)| to[*token as usize] = *logit);
        }
    }

    /// Whether the logits of a row, of a head that proposes a block, depend on the token drawn before it: see [`Model::follow`].
    pub fn follows(&self) -> bool {
        self.parts.of_head.as_ref().is_some_and(|of_head| of_head.markov.is_some())
    }

    /// Of a head that proposes a block: completes the logits of `rows`, counted among the wanted ones of the pass that is finished, by what they take from
    /// these tokens before them, once for each row. `first`: they are the first rows of their blocks that are wanted; else the row before each has been here.
    /// `sure`, one place for each, says how sure the head is, 0 to 1; false if it does not say that.
    ///
    /// # Panics
    /// If they are not as many tokens as rows, or as places.
    pub fn follow(
        &self,
        lane: &Lane,
        scratch: &mut Scratch,
        rows: &[u32],
        before: &[u32],
        first: bool,
        sure: &mut [f32],
    ) -> bool {
        assert_eq!((before.len(), sure.len()), (rows.len(), rows.len()), "a token and a place for each row");
        let (Some(of_head), Some(head)) = (&self.parts.of_head, &mut scratch.head) else { return false };
        if let (Some(weights), Some(markov)) = (&of_head.markov, &mut head.markov) {
            markov.run(lane, weights, &scratch.final_normed, rows, before, first);
            for (place, row) in rows.iter().enumerate() {
                let (logits, bias) = (scratch.logits.row_mut(*row as usize), markov.bias(place));
                match of_head.target_tokens.as_deref() {
                    None => logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias),
                    Some(tokens) => {
                        let own = tokens.iter().zip(head.proposed.row(*row as usize)).zip(bias);
                        own.for_each(|((token, logit), bias)| logits[*token as usize] = logit + bias);
                    }
                }
            }
        }
        let Some(surety) = &of_head.surety else { return false };
        for (place, (row, sure)) in rows.iter().zip(sure).enumerate() {
            let before = head.markov.as_ref().map_or(&[][..], |markov| markov.embedded(place));
            *sure = surety.of(scratch.final_normed.row(*row as usize), before);
        }
        true
    }

    fn cap(&self, lane: &Lane, logits: ViewMut<'_>) {
        if let Some(cap) = self.config().logit_soft_cap {
            ops::soft_cap(lane, logits, cap);
        }
    }

    /// The final norm of some of the `n` rows, into `scratch.final_normed`; the residual stream stays.
    fn normalise(&self, lane: &Lane, scratch: &mut Scratch, n: usize, rows: &[u32]) {
        let (m, most) = (rows.len(), scratch.max_logit_rows());
        assert!(m <= most, "{m} rows with logits in a scratch for {most}");
        ops::gather_rows(lane, scratch.x.view(n), rows, scratch.gathered.view_mut(m));
        let (gathered, normed) = (scratch.gathered.view(m), scratch.final_normed.view_mut(m));
        ops::rms_norm(lane, gathered, &self.parts.norm, self.config().rms_eps, normed, Write::Replace);
        let (shard, depth) = (self.shard(), scratch.depth);
        if shard.stages > 1 {
            // The stage that has the next layer has the stream, and the last has its end.
            let holds = |stage: &usize| shard.layers_of(*stage, self.config()).contains(&depth);
            let holder = (0..shard.stages).find(holds).unwrap_or(shard.stages - 1);
            let first = shard.ranks_of(holder).start;
            told(lane, (first, 0..shard.ranks), scratch.final_normed.view_mut(m));
        }
    }
}

/// What the rank `from` has becomes that of others.
///
/// # Panics
/// If the group is lost, as in [`summed`].
fn told(lane: &Lane, (from, to): (usize, Range<usize>), x: ViewMut<'_>) {
    ops::broadcast(lane, from, to, x).unwrap_or_else(|error| panic!("{error}"));
}

/// Cosines and sines of all positions, as `held` on a device, for each layer: those that turn alike have one table, and those that do not turn
/// have none.
pub(crate) fn rope_tables<T>(
    config: &ModelConfig,
    mut held: impl FnMut(RopeTable) -> Result<T, ModelError>,
) -> Result<Vec<Option<Arc<T>>>, ModelError> {
    let mut tables: Vec<Option<Arc<T>>> = Vec::with_capacity(config.layers.len());
    for (index, layer) in config.layers.iter().enumerate() {
        let table = match (config.turns_like(index), &layer.attention.rope) {
            (Some(same), _) => tables[same].clone(),
            (None, Some(rope)) => Some(Arc::new(held(rope_table(config, rope)?)?)),
            (None, None) => None,
        };
        tables.push(table);
    }
    Ok(tables)
}

/// Those of one rotary embedding.
pub(crate) fn rope_table(config: &ModelConfig, rope: &RopeConfig) -> Result<RopeTable, ModelError> {
    let (head_dim, max_positions) = (config.head_dim, config.max_context);
    let (theta, scaling, rotated) = (rope.theta, rope.scaling.clone(), rope.rotated(head_dim));
    Ok(RopeTable::new(&RopeSpec { head_dim, rotated, theta, scaling, max_positions })?)
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .field("shard", &self.shard)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}
