//! A decoder layer as data: what it computes, and where its weights lie in a checkpoint.
//!
//! ```text
//! x ─┬─ norm ─ q, k, v ─ attention ─ o ───── (norm) ─ + ─┬─ norm ─ gate, up ─ activation ─ down ─ (norm) ─ + ─
//!    └───────────────────────────────────────────────┘   └──────────────────────────────────────────────┘
//!      attention branch                                    MLP branch
//! ```
//! Loaders (and so sizes, shards and synthetic sources) walk [`LayerSpec::branches`]; the forward passes read the rest.

use faser_kernels::ops::Activation;

use crate::RopeConfig;

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its attention branch.
    pub attention: AttentionSpec,
    /// Its MLP branch.
    pub mlp: MlpSpec,
}

/// The norms of a branch: the names of their weights in the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// Of what goes into the branch.
    pub before: Option<&'static str>,
    /// Of what the branch adds to the residual stream.
    pub after: Option<&'static str>,
}

/// Causal attention with rotary positions. Heads are the same in all layers: see [`crate::ModelConfig`].
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Its norms.
    pub norms: Norms,
    /// The q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub o_bias: bool,
    /// In the checkpoint q, k and v are one matrix of this name, in that order along its outputs.
    pub fused: Option<&'static str>,
    /// How q and k are RMS-normalised before the rotary embedding, if they are.
    pub qk_norm: Option<QkNorm>,
    /// How many positions a row sees, itself included; `None`: all of them.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores, so scaled, are at most this large: `cap tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Each head has a learned score more in its softmax, with no value: what it attends to where nothing fits. No family here has
    /// them yet.
    pub sinks: bool,
    /// How q and k are rotated by their positions; `None`: not at all (NoPE).
    pub rope: Option<RopeConfig>,
    /// Nobody attends to positions before this one: a head's token of position 0 has no hidden state of the target before it.
    pub first: usize,
    /// What goes into the branch is the token's embedding, normalised, and beside it the residual stream, which has a norm of its own here:
    /// `[embedding, stream]`, twice as wide (EAGLE-3).
    pub beside_embedding: Option<BesideEmbedding>,
}

/// What of q and k is normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head, all of them by the same weights.
    Heads,
    /// All heads of a row: such a model is not split over ranks.
    Whole,
}

/// The first layer of a head on hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesideEmbedding {
    /// The name, in the layer, of the norm of the residual stream.
    pub norm: &'static str,
    /// The residual stream goes on normalised.
    pub residual_normed: bool,
}

/// The MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Its norms.
    pub norms: Norms,
    /// What it computes between its projections.
    pub kind: Mlp,
    /// In the checkpoint gate and up are one matrix of this name, in that order along its outputs.
    pub fused: Option<&'static str>,
    /// All its projections have biases.
    pub bias: bool,
}

/// Kinds of MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `down(f(gate(x)) * up(x))`.
    Gated(Activation),
    /// `down(f(up(x)))`.
    Plain(Activation),
}

impl Mlp {
    /// The activation, and whether it is gated.
    pub(crate) fn activation(self) -> (Activation, bool) {
        match self {
            Mlp::Gated(activation) => (activation, true),
            Mlp::Plain(activation) => (activation, false),
        }
    }
}

impl LayerSpec {
    /// A layer as Llama has them, for heads of this width.
    pub fn llama(head_dim: usize, rope: RopeConfig) -> LayerSpec {
        LayerSpec {
            attention: AttentionSpec {
                norms: Norms { before: Some("input_layernorm"), after: None },
                qkv_bias: false,
                o_bias: false,
                fused: None,
                qk_norm: None,
                window: None,
                scale: (head_dim as f32).sqrt().recip(),
                soft_cap: None,
                sinks: false,
                rope: Some(rope),
                first: 0,
                beside_embedding: None,
            },
            mlp: MlpSpec {
                norms: Norms { before: Some("post_attention_layernorm"), after: None },
                kind: Mlp::Gated(Activation::Silu),
                fused: None,
                bias: false,
            },
        }
    }

    /// Whether a norm stands behind any branch.
    pub(crate) fn norms_after(&self) -> bool {
        self.attention.norms.after.is_some() || self.mlp.norms.after.is_some()
    }

    /// The weights of both branches: attention, MLP.
    pub(crate) fn branches(&self) -> [BranchWeights; 2] {
        let LayerSpec { attention, mlp } = self;
        let (qkv, gated, plain): (&[_], &[_], &[_]) = (
            &[
                ("self_attn.q_proj", Split::Heads),
                ("self_attn.k_proj", Split::KvHeads),
                ("self_attn.v_proj", Split::KvHeads),
            ],
            &[("mlp.gate_proj", Split::Mlp), ("mlp.up_proj", Split::Mlp)],
            &[("mlp.up_proj", Split::Mlp)],
        );
        [
            BranchWeights {
                norms: attention.norms,
                inputs: qkv,
                fused: attention.fused,
                input_streams: 1 + usize::from(attention.beside_embedding.is_some()),
                inputs_bias: attention.qkv_bias,
                output: ("self_attn.o_proj", Split::Heads),
                output_bias: attention.o_bias,
                keys: "num_attention_heads, num_key_value_heads, head_dim, hidden_size",
                bias_keys: "architectures, attention_bias",
            },
            BranchWeights {
                norms: mlp.norms,
                inputs: if mlp.kind.activation().1 { gated } else { plain },
                fused: mlp.fused,
                input_streams: 1,
                inputs_bias: mlp.bias,
                output: ("mlp.down_proj", Split::Mlp),
                output_bias: mlp.bias,
                keys: "intermediate_size, hidden_size",
                bias_keys: "mlp_bias",
            },
        ]
    }
}

/// The weights of a branch, by the names that they have in the layer.
pub(crate) struct BranchWeights {
    pub(crate) norms: Norms,
    /// Projections of the branch's input, one matrix on every device: `[outputs, input_streams * hidden]`, shards have some of the outputs.
    pub(crate) inputs: &'static [(&'static str, Split)],
    /// Where all of them are one tensor, one behind the other: its name.
    pub(crate) fused: Option<&'static str>,
    pub(crate) input_streams: usize,
    pub(crate) inputs_bias: bool,
    /// The projection back: `[hidden, inputs]`, shards have some of the inputs, and their outputs are summed.
    pub(crate) output: (&'static str, Split),
    pub(crate) output_bias: bool,
    /// The keys of config.json that the shapes follow from, and the biases' presence.
    pub(crate) keys: &'static str,
    pub(crate) bias_keys: &'static str,
}

/// What is split over the ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Columns of query heads.
    Heads,
    /// Columns of key and value heads.
    KvHeads,
    /// Columns of the MLP.
    Mlp,
    /// Tokens of the vocabulary.
    Tokens,
}
