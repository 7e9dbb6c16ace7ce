//! A decoder layer as data: what it computes, and where its weights lie in a checkpoint.
//!
//! ```text
//! x ─┬─ norm ─ q, k, v ─ attention ─ o ───── (norm) ─ + ─┬─ norm ─ gate, up ─ activation ─ down ─ (norm) ─ + ─
//!    └───────────────────────────────────────────────┘   └──────────────────────────────────────────────┘
//!      attention branch                                    MLP branch
//! ```
//! The MLP may be a mixture of experts: small MLPs of which a router chooses some for each row.
//!
//! Loaders (and so sizes, shards and synthetic sources) walk [`LayerSpec::attention_weights`] and [`LayerSpec::mlp_weights`]; the forward
//! passes read the rest.

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
    /// Each head has a learned score more in its softmax, with no value: what it attends to where nothing fits (gpt-oss).
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
    /// The weighed sum of a row's experts, each gated.
    Experts(Experts),
}

/// A mixture of experts. It has no norm behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Of each expert.
    pub activation: Activation,
    /// How many there are.
    pub count: usize,
    /// How many a row goes to: those of its largest router logits.
    pub active: usize,
    /// Width of an expert between gate/up and down.
    pub width: usize,
    /// A row's experts are weighed by the softmax over them alone; else by that over all.
    pub renormed: bool,
    /// Width of an expert that every row goes to, weighed by a gate of its own.
    pub shared: Option<usize>,
    /// The router and each expert's projections have biases.
    pub bias: bool,
}

impl Experts {
    /// Outputs of the router: a logit for each expert, and the gate of the shared one behind them.
    pub(crate) fn router_width(&self) -> usize {
        self.count + usize::from(self.shared.is_some())
    }
}

impl Mlp {
    /// The activation, and whether it is gated.
    pub(crate) fn activation(self) -> (Activation, bool) {
        match self {
            Mlp::Gated(activation) | Mlp::Experts(Experts { activation, .. }) => (activation, true),
            Mlp::Plain(activation) => (activation, false),
        }
    }

    /// The experts, if it has some.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Mlp::Experts(experts) => Some(experts),
            Mlp::Gated(_) | Mlp::Plain(_) => None,
        }
    }

    /// Width, between its projections, of what every row goes through: all of it, or the shared expert; `intermediate` is the model's.
    pub(crate) fn dense_width(&self, intermediate: usize) -> usize {
        self.experts().map_or(intermediate, |experts| experts.shared.unwrap_or(0))
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

    /// The weights of the attention branch.
    pub(crate) fn attention_weights(&self) -> BranchWeights {
        let attention = &self.attention;
        let inputs = [("q_proj", Split::Heads), ("k_proj", Split::KvHeads), ("v_proj", Split::KvHeads)];
        BranchWeights {
            norms: attention.norms,
            inputs: inputs.map(|(name, split)| (format!("self_attn.{name}"), split)).to_vec(),
            fused: attention.fused,
            input_streams: 1 + usize::from(attention.beside_embedding.is_some()),
            inputs_bias: attention.qkv_bias,
            output: ("self_attn.o_proj".to_owned(), Split::Heads),
            output_bias: attention.o_bias,
            keys: "num_attention_heads, num_key_value_heads, head_dim, hidden_size",
            bias_keys: "architectures, attention_bias",
        }
    }

    /// The weights of the MLP branch.
    pub(crate) fn mlp_weights(&self) -> MlpWeights {
        let MlpSpec { norms, kind, fused, bias } = self.mlp;
        let Some(experts) = kind.experts() else {
            let weights = GatedWeights::new("mlp", Split::Mlp, "intermediate_size, hidden_size");
            let gate = usize::from(!kind.activation().1);
            return MlpWeights::Dense(BranchWeights {
                norms,
                inputs: weights.inputs[gate..].to_vec(),
                fused,
                input_streams: 1,
                inputs_bias: bias,
                output: weights.output,
                output_bias: bias,
                keys: weights.keys,
                bias_keys: "mlp_bias",
            });
        };
        let shared = experts.shared.map(|width| {
            let keys = "shared_expert_intermediate_size, hidden_size";
            GatedWeights::new("mlp.shared_expert", Split::Width(width), keys)
        });
        let router = ["mlp.gate", "mlp.shared_expert_gate"].into_iter().zip([experts.count, 1]);
        let (width, keys) = (Split::Width(experts.width), "num_experts, moe_intermediate_size, hidden_size");
        let each = |expert| GatedWeights {
            bias: experts.bias,
            ..GatedWeights::new(&format!("mlp.experts.{expert}"), width, keys)
        };
        MlpWeights::Experts(ExpertsWeights {
            norms,
            router: router.take(1 + usize::from(shared.is_some())).collect(),
            router_bias: experts.bias,
            each: (0..experts.count).map(each).collect(),
            shared,
        })
    }
}

/// The weights of an MLP branch.
pub(crate) enum MlpWeights {
    Dense(BranchWeights),
    Experts(ExpertsWeights),
}

/// Those of a mixture of experts. The names are those of Qwen's checkpoints; sources whose files have others translate them.
pub(crate) struct ExpertsWeights {
    pub(crate) norms: Norms,
    /// Parts of the router, with their outputs, one matrix; every shard has all of it.
    pub(crate) router: Vec<(&'static str, usize)>,
    pub(crate) router_bias: bool,
    pub(crate) each: Vec<GatedWeights>,
    pub(crate) shared: Option<GatedWeights>,
}

/// Those of a gated MLP without a norm: gate and up, one matrix, and down.
pub(crate) struct GatedWeights {
    pub(crate) inputs: [(String, Split); 2],
    pub(crate) output: (String, Split),
    pub(crate) bias: bool,
    pub(crate) keys: &'static str,
}

impl GatedWeights {
    fn new(place: &str, split: Split, keys: &'static str) -> GatedWeights {
        let of = |part: &str| (format!("{place}.{part}_proj"), split);
        GatedWeights { inputs: [of("gate"), of("up")], output: of("down"), bias: false, keys }
    }
}

/// The weights of a branch, by the names that they have in the layer.
pub(crate) struct BranchWeights {
    pub(crate) norms: Norms,
    /// Projections of the branch's input, one matrix on every device: `[outputs, input_streams * hidden]`, shards have some of the outputs.
    pub(crate) inputs: Vec<(String, Split)>,
    /// Where all of them are one tensor, one behind the other: its name.
    pub(crate) fused: Option<&'static str>,
    pub(crate) input_streams: usize,
    pub(crate) inputs_bias: bool,
    /// The projection back: `[hidden, inputs]`, shards have some of the inputs, and their outputs are summed.
    pub(crate) output: (String, Split),
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
    /// Columns of an expert, so many.
    Width(usize),
    /// Tokens of the vocabulary.
    Tokens,
}
