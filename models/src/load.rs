//! Loads a model from a Hugging Face directory.

use std::path::Path;
use std::sync::Arc;

use faser_kernels::{Dtype, Matrix, Source, Table, Vector};

use crate::checkpoint::{Checkpoint, Files, Values};
use crate::layer::Layer;
use crate::model::Parts;
use crate::{Model, ModelConfig, ModelError};

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
        let config = ModelConfig::load(dir)?;
        let files = Files::map(dir)?;
        let mut loader = Loader { config: &config, dtype, checkpoint: Checkpoint::new(&files, progress)? };
        let parts = loader.parts()?;
        loader.checkpoint.finish(config.tie_embeddings)?;
        Model::new(config, dtype, parts)
    }
}

struct Loader<'a> {
    config: &'a ModelConfig,
    dtype: Dtype,
    checkpoint: Checkpoint<'a>,
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

impl Loader<'_> {
    fn parts(&mut self) -> Result<Parts, ModelError> {
        let ModelConfig { hidden, vocab, layers, tie_embeddings, .. } = *self.config;
        let embedding = self.checkpoint.take(EMBEDDING, &[vocab, hidden], "vocab_size, hidden_size")?;
        let head = if tie_embeddings {
            self.pack(EMBEDDING, hidden, &[embedding.source()])?
        } else {
            let reason = "tie_word_embeddings is false; vocab_size, hidden_size";
            let head = self.checkpoint.take(HEAD, &[vocab, hidden], reason)?;
            self.pack(HEAD, hidden, &[head.source()])?
        };
        let embedding = Table::new(hidden, embedding.source(), self.dtype.beside())?;
        let layers = (0..layers).map(|index| self.layer(index).map(Arc::new)).collect::<Result<_, _>>()?;
        let norm = self.norm("model.norm.weight", hidden, "hidden_size")?;
        Ok(Parts { embedding: Arc::new(embedding), layers, norm: Arc::new(norm), head: Arc::new(head) })
    }

    fn layer(&mut self, index: usize) -> Result<Layer, ModelError> {
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
        let head_norm = |loader: &mut Self, part| -> Result<Option<Vector>, ModelError> {
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
    ) -> Result<Matrix, ModelError> {
        let values = parts
            .iter()
            .map(|(name, outputs)| {
                self.checkpoint.take(&format!("{name}.weight"), &[*outputs, inputs], reason)
            })
            .collect::<Result<Vec<Values>, _>>()?;
        let sources: Vec<Source<'_>> = values.iter().map(Values::source).collect();
        let first = parts.first().map_or("", |(name, _)| name);
        self.pack(&format!("{first}.weight"), inputs, &sources)
    }

    fn pack(&self, tensor: &str, inputs: usize, sources: &[Source<'_>]) -> Result<Matrix, ModelError> {
        let packed = Matrix::pack(inputs, sources, self.dtype);
        packed.map_err(|source| ModelError::Pack { tensor: tensor.to_owned(), source })
    }

    fn bias(
        &mut self,
        parts: &[(String, usize)],
        wanted: bool,
        reason: &str,
    ) -> Result<Option<Vector>, ModelError> {
        if !wanted {
            return Ok(None);
        }
        let values = parts
            .iter()
            .map(|(name, outputs)| self.checkpoint.take(&format!("{name}.bias"), &[*outputs], reason))
            .collect::<Result<Vec<Values>, _>>()?;
        let sources: Vec<Source<'_>> = values.iter().map(Values::source).collect();
        Ok(Some(Vector::concat(&sources)))
    }

    fn norm(&mut self, name: &str, width: usize, reason: &str) -> Result<Vector, ModelError> {
        Ok(Vector::new(self.checkpoint.take(name, &[width], reason)?.source()))
    }
}
