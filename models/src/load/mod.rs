//! Makes a model of named tensors: which there are, in what order, and which of them are fused; the same for every source and device.

mod cpu;
mod cut;
mod sizes;
mod source;

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use faser_kernels::{Dtype, Make, Slice, Source};

pub(crate) use self::cpu::CpuPacker;
use self::cut::Cut;
pub(crate) use self::source::Tensors;
use crate::checkpoint::{Checkpoint, Files};
use crate::layer::Layer;
use crate::model::Parts;
use crate::{Model, ModelConfig, ModelError, Shard};

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read or made so far.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

impl Model {
    /// Loads `config.json` and the safetensors weights (`model.safetensors`, or the shards of
    /// `model.safetensors.index.json`) of a directory, and packs the matrices in `dtype`, the LM head too; the
    /// embedding is held in [`Dtype::beside`] it, a tied one in both forms. `progress` is called after each tensor.
    ///
    /// # Errors
    /// A file is missing or damaged, a tensor is missing, too much, or of another shape than
    /// config.json gives it, or the model is of a kind that is not supported; the message names file and key or
    /// tensor.
    pub fn load(dir: &Path, dtype: Dtype, progress: &mut dyn FnMut(Progress)) -> Result<Model, ModelError> {
        Model::load_shard(dir, Shard::WHOLE, dtype, progress)
    }

    /// As [`Model::load`], one rank's shard of the model: nothing else is read of the files but their headers. `progress` counts the tensors
    /// whole.
    ///
    /// # Errors
    /// As [`Model::load`], or the model cannot be split so.
    pub fn load_shard(
        dir: &Path,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        Model::load_as(ModelConfig::load(dir)?, dir, shard, dtype, progress)
    }

    /// As [`Model::load_shard`], with a config that was loaded before.
    ///
    /// # Errors
    /// As [`Model::load_shard`].
    pub fn load_as(
        config: ModelConfig,
        dir: &Path,
        shard: Shard,
        dtype: Dtype,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        shard.check(&config)?;
        let files = Files::map(dir)?;
        let mut checkpoint = Checkpoint::new(&files)?;
        let parts = load(&config, shard, &mut checkpoint, &mut CpuPacker { dtype }, progress)?;
        Model::new(config, shard, dtype, parts)
    }
}

/// Makes what a device computes with, of tensors as they are stored.
pub(crate) trait Packer {
    /// The token embedding.
    type Table;
    /// A matrix of weights.
    type Matrix;
    /// A norm or a bias.
    type Vector;
    /// Whether the numbers count, not the shapes alone.
    const READS: bool = true;

    /// Rows of `cols`.
    fn table(&mut self, cols: usize, source: Source<'_>) -> Result<Self::Table, ModelError>;

    /// Several `[outputs, inputs]` one after the other along their outputs; errors name the `tensor`.
    fn matrix(
        &mut self,
        tensor: &str,
        inputs: usize,
        sources: &[Source<'_>],
    ) -> Result<Self::Matrix, ModelError>;

    /// Several one after the other.
    fn vector(&mut self, sources: &[Source<'_>]) -> Result<Self::Vector, ModelError>;

    /// The LM head of a model whose embedding it is: that one, or another form of it.
    fn tied_head(
        &mut self,
        embedding: &Arc<Self::Table>,
        tensor: &str,
        inputs: usize,
        source: Source<'_>,
    ) -> Result<Arc<Self::Matrix>, ModelError>;
}

/// A model's weights as a packer makes them.
pub(crate) type PartsOf<P> = Parts<<P as Packer>::Table, <P as Packer>::Matrix, <P as Packer>::Vector>;

/// Packs a shard of all tensors of a model, and looks that there are no others. `config` is the whole model's; `progress` is called after
/// each matrix or vector.
pub(crate) fn load<P: Packer>(
    config: &ModelConfig,
    shard: Shard,
    tensors: &mut dyn Tensors,
    packer: &mut P,
    progress: &mut dyn FnMut(Progress),
) -> Result<PartsOf<P>, ModelError> {
    let done = Progress { done_bytes: 0, total_bytes: tensors.total_bytes() };
    progress(done);
    let mut loader = Loader { config, shard, tensors, packer, done, progress };
    let parts = loader.parts()?;
    loader.tensors.finish(config.tie_embeddings)?;
    Ok(parts)
}

struct Loader<'a, P> {
    config: &'a ModelConfig,
    shard: Shard,
    tensors: &'a mut dyn Tensors,
    packer: &'a mut P,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const HEAD: &str = "lm_head.weight";

impl<P: Packer> Loader<'_, P> {
    fn parts(&mut self) -> Result<PartsOf<P>, ModelError> {
        let ModelConfig { hidden, vocab, stored_vocab, layers, tie_embeddings, .. } = *self.config;
        let shape = [stored_vocab, hidden];
        let tokens = Cut::of(EMBEDDING, self.shard, self.config);
        let (embedding, tied, bytes) = {
            let stored = self.tensors.tensor(EMBEDDING, &shape, "vocab_size, hidden_size")?;
            let padded = padding(&stored);
            let all = with_rows(&stored, &padded, vocab, hidden);
            let own = tokens.source(&all, vocab, hidden);
            finite::<P>(EMBEDDING, if vocab == stored_vocab { &own } else { &stored })?;
            let embedding = Arc::new(self.packer.table(hidden, own)?);
            let tied = tie_embeddings
                .then(|| self.packer.tied_head(&embedding, EMBEDDING, hidden, own))
                .transpose()?;
            (embedding, tied, stored.bytes())
        };
        self.tell(bytes);
        let head = match tied {
            Some(head) => head,
            None => {
                let reason = "tie_word_embeddings is false; vocab_size, hidden_size";
                let (head, bytes) = {
                    let stored = self.tensors.tensor(HEAD, &shape, reason)?;
                    let padded = padding(&stored);
                    let all = with_rows(&stored, &padded, vocab, hidden);
                    let own = tokens.source(&all, vocab, hidden);
                    finite::<P>(HEAD, if vocab == stored_vocab { &own } else { &stored })?;
                    (self.packer.matrix(HEAD, hidden, &[own])?, stored.bytes())
                };
                self.tell(bytes);
                Arc::new(head)
            }
        };
        let layers = (0..layers).map(|index| self.layer(index).map(Arc::new)).collect::<Result<_, _>>()?;
        let norm = self.norm("model.norm.weight", hidden, "hidden_size")?;
        Ok(Parts { embedding, layers, norm: Arc::new(norm), head })
    }

    fn layer(&mut self, index: usize) -> Result<Layer<P::Matrix, P::Vector>, ModelError> {
        self.tensors.prepare(index)?;
        let ModelConfig { hidden, intermediate, head_dim, qkv_bias, o_bias, mlp_bias, qk_norm, .. } =
            *self.config;
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let attention = "num_attention_heads, num_key_value_heads, head_dim, hidden_size";
        let mlp = "intermediate_size, hidden_size";
        let qkv =
            [(name("self_attn.q_proj"), q), (name("self_attn.k_proj"), kv), (name("self_attn.v_proj"), kv)];
        let gate_up = [(name("mlp.gate_proj"), intermediate), (name("mlp.up_proj"), intermediate)];
        let o = [(name("self_attn.o_proj"), hidden)];
        let down = [(name("mlp.down_proj"), hidden)];
        let head_norm = |loader: &mut Self, part| -> Result<Option<P::Vector>, ModelError> {
            if !qk_norm {
                return Ok(None);
            }
            loader.norm(&name(part), head_dim, "architectures, head_dim").map(Some)
        };
        Ok(Layer {
            attention_norm: self.norm(
                &name("input_layernorm.weight"),
                hidden,
                "num_hidden_layers, hidden_size",
            )?,
            qkv: self.matrix(&qkv, hidden, attention)?,
            qkv_bias: self.bias(&qkv, qkv_bias, "architectures, attention_bias")?,
            q_norm: head_norm(self, "self_attn.q_norm.weight")?,
            k_norm: head_norm(self, "self_attn.k_norm.weight")?,
            o: self.matrix(&o, q, attention)?,
            o_bias: self.bias(&o, o_bias, "attention_bias")?,
            mlp_norm: self.norm(&name("post_attention_layernorm.weight"), hidden, "hidden_size")?,
            gate_up: self.matrix(&gate_up, hidden, mlp)?,
            gate_up_bias: self.bias(&gate_up, mlp_bias, "mlp_bias")?,
            down: self.matrix(&down, intermediate, mlp)?,
            down_bias: self.bias(&down, mlp_bias, "mlp_bias")?,
        })
    }

    /// Several projections of the same input, fused along their outputs.
    fn matrix(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        reason: &str,
    ) -> Result<P::Matrix, ModelError> {
        let sources = parts
            .iter()
            .map(|(name, outputs)| {
                self.tensors.tensor(&format!("{name}.weight"), &[*outputs, inputs], reason)
            })
            .collect::<Result<Vec<Source<'_>>, _>>()?;
        let bytes = sources.iter().map(Source::bytes).sum();
        let first = parts.first().map_or("", |(name, _)| name);
        let cut = |name: &str| Cut::of(name, self.shard, self.config);
        let own: Vec<_> = parts
            .iter()
            .zip(&sources)
            .map(|((name, outputs), source)| cut(name).source(source, *outputs, inputs))
            .collect();
        let own_inputs = cut(first).inputs(inputs).len();
        parts
            .iter()
            .zip(&own)
            .try_for_each(|((name, _), source)| finite::<P>(&format!("{name}.weight"), source))?;
        let matrix = self.packer.matrix(&format!("{first}.weight"), own_inputs, &own)?;
        self.tell(bytes);
        Ok(matrix)
    }

    fn bias(
        &mut self,
        parts: &[(String, usize)],
        wanted: bool,
        reason: &str,
    ) -> Result<Option<P::Vector>, ModelError> {
        if !wanted {
            return Ok(None);
        }
        let sources = parts
            .iter()
            .map(|(name, outputs)| self.tensors.tensor(&format!("{name}.bias"), &[*outputs], reason))
            .collect::<Result<Vec<Source<'_>>, _>>()?;
        let bytes = sources.iter().map(Source::bytes).sum();
        let cuts = parts.iter().map(|(name, outputs)| (Cut::of(name, self.shard, self.config), *outputs));
        // What is summed over the ranks has its bias once.
        let once = cuts.clone().any(|(cut, _)| cut.is_summed());
        let own: Vec<_> = cuts.zip(&sources).map(|((cut, len), source)| cut.source(source, len, 1)).collect();
        parts
            .iter()
            .zip(&own)
            .try_for_each(|((name, _), source)| finite::<P>(&format!("{name}.bias"), source))?;
        let bias = (!once || self.shard.is_first()).then(|| self.packer.vector(&own)).transpose()?;
        self.tell(bytes);
        Ok(bias)
    }

    fn norm(&mut self, name: &str, width: usize, reason: &str) -> Result<P::Vector, ModelError> {
        let source = self.tensors.tensor(name, &[width], reason)?;
        finite::<P>(name, &source)?;
        let bytes = source.bytes();
        let norm = self.packer.vector(&[source])?;
        self.tell(bytes);
        Ok(norm)
    }

    fn tell(&mut self, bytes: u64) {
        self.done.done_bytes += bytes;
        (self.progress)(self.done);
    }
}

/// The numbers of a source, and zeros behind them.
fn padding<'a>(stored: &'a Source<'a>) -> impl Fn(usize, &mut [f32]) + use<'a> {
    move |from, to| {
        let there = stored.len().saturating_sub(from).min(to.len());
        let (known, rest) = to.split_at_mut(there);
        if there > 0 {
            stored.read_f32(from, known);
        }
        rest.fill(0.0);
    }
}

/// A matrix of `cols` columns with so many of its rows, or with rows of zeros behind them.
fn with_rows<'a>(stored: &'a Source<'a>, padded: &'a Make<'a>, rows: usize, cols: usize) -> Source<'a> {
    match stored.len().cmp(&(rows * cols)) {
        Ordering::Equal => *stored,
        Ordering::Greater => Source::Part(stored, Slice::new(cols, 0..rows, 0..cols)),
        Ordering::Less => Source::Made(rows * cols, padded),
    }
}

/// Refuses what would make all that follows from it no number either.
fn finite<P: Packer>(tensor: &str, source: &Source<'_>) -> Result<(), ModelError> {
    match P::READS.then(|| source.first_not_finite()).flatten() {
        Some((place, value)) => Err(ModelError::NotFinite { tensor: tensor.to_owned(), place, value }),
        None => Ok(()),
    }
}
