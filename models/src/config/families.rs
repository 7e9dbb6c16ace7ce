//! The model families: what each makes of the keys of a config.json, and what a key that it leaves out stands for. One more family is one more
//! entry of [`FAMILIES`] with its name in [`Architecture`], and a checkpoint with logits in `tests/golden`.
//!
//! Source of the defaults: the configuration classes of transformers 5.23.0. `tests/golden/make_defaults.py` asks them; a test here holds the
//! table against what they said (`tests/golden/defaults.json`).

use faser_kernels::RopeScaling;
use faser_kernels::ops::Activation;
use serde_json::Value;

use super::ModelConfig;
use super::experts_config::ExpertDefaults;
use super::json_keys::Keys;
use super::json_keys::MAX_LAYERS;
use super::rope_config::RopeDefaults;
use crate::layer_spec::{Mlp, Norms, QkNorm};
use crate::{LayerSpec, ModelError, RopeConfig};

/// The model families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: Llama 2 and 3.
    Llama,
    /// `MistralForCausalLM`: sliding window in all layers.
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: norms on the heads of q and k.
    Qwen3,
    /// `GemmaForCausalLM`: GELU, scaled embeddings.
    Gemma,
    /// `Gemma2ForCausalLM`: that, norms behind the branches, soft caps, sliding windows in every other layer.
    Gemma2,
    /// `Gemma3ForCausalLM`: no caps but norms on the heads of q and k; layers that slide have a rotary embedding of their own.
    Gemma3,
    /// `ArceeForCausalLM`: an MLP without a gate, squared ReLU.
    Arcee,
    /// `MixtralForCausalLM`: Mistral with experts.
    Mixtral,
    /// `Qwen2MoeForCausalLM`: Qwen2 with experts, one of which every row goes to.
    Qwen2Moe,
    /// `Qwen3MoeForCausalLM`: Qwen3 with experts.
    Qwen3Moe,
    /// `Phi3ForCausalLM`: Phi 3 and 4; q, k and v are one matrix, and so are gate and up.
    Phi3,
    /// `Olmo2ForCausalLM`: norms behind the branches alone, and over all heads of q and of k.
    Olmo2,
    /// `Olmo3ForCausalLM`: that, and layers that slide, whose rotary embedding is not scaled.
    Olmo3,
    /// `SmolLM3ForCausalLM`: every fourth layer has no positions.
    SmolLm3,
    /// `Glm4ForCausalLM`: half of a head turns, neighbours are pairs; norms before and behind the branches.
    Glm4,
    /// `GraniteForCausalLM`: embeddings, scores, branches and logits have factors.
    Granite,
    /// `GptOssForCausalLM`: experts with biases and a clamped activation, sinks, sliding windows in every other layer.
    GptOss,
}

/// A family.
pub(super) struct Family {
    pub(super) architecture: Architecture,
    /// The class of its models, less `ForCausalLM`.
    name: &'static str,
    pub(super) defaults: Defaults,
    /// The key of the activation.
    activation: &'static str,
    /// Switches that transformers reads for it.
    reads: &'static [&'static str],
    /// Makes this family's shape of a Llama's.
    shape: fn(&mut Shape<'_>) -> Result<(), ModelError>,
}

/// A model whose layers are becoming those of its family.
struct Shape<'a> {
    keys: &'a Keys,
    defaults: &'a Defaults,
    /// Of layers that slide, where they turn otherwise than those that do not.
    sliding_rope: RopeConfig,
    config: &'a mut ModelConfig,
}

/// All there are.
const FAMILIES: [Family; 18] = [
    Family {
        architecture: Architecture::Llama,
        name: "Llama",
        defaults: LLAMA,
        activation: "hidden_act",
        reads: &["attention_bias", "mlp_bias"],
        shape: |_| Ok(()),
    },
    Family {
        architecture: Architecture::Mistral,
        name: "Mistral",
        defaults: Defaults {
            intermediate_size: 14_336,
            num_key_value_heads: Some(8),
            max_position_embeddings: 131_072,
            sliding_window: Some(4096),
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["sliding_window"],
        shape: |shape| {
            let window = shape.window()?;
            shape.each(|layer, _| layer.attention.window = window);
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Qwen2,
        name: "Qwen2",
        defaults: QWEN2,
        activation: "hidden_act",
        reads: &["sliding_window"],
        shape: |shape| {
            shape.each(|layer, _| layer.attention.qkv_bias = true);
            shape.slide_as_qwen()
        },
    },
    Family {
        architecture: Architecture::Qwen3,
        name: "Qwen3",
        defaults: Defaults { head_dim: Some(128), ..QWEN2 },
        activation: "hidden_act",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| {
            shape.each(|layer, _| layer.attention.qk_norm = Some(QkNorm::Heads));
            shape.slide_as_qwen()
        },
    },
    Family {
        architecture: Architecture::Gemma,
        name: "Gemma",
        defaults: GEMMA,
        activation: "hidden_act",
        reads: &["attention_bias"],
        shape: |shape| {
            // The first releases say gelu, and mean the other one.
            if shape.keys.text("hidden_act")? == Some("gelu") {
                shape.each(|layer, _| layer.mlp.kind = Mlp::Gated(Activation::GeluTanh));
            }
            shape.scale_as_gemma();
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Gemma2,
        name: "Gemma2",
        defaults: Defaults {
            hidden_size: 2304,
            intermediate_size: 9216,
            num_hidden_layers: 26,
            num_attention_heads: 8,
            num_key_value_heads: Some(4),
            sliding_window: Some(4096),
            ..GEMMA
        },
        activation: "hidden_activation",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| shape.branch_as_gemma([Some(50.0), Some(30.0)], 2),
    },
    Family {
        architecture: Architecture::Gemma3,
        name: "Gemma3",
        defaults: Defaults {
            vocab_size: 262_208,
            hidden_size: 2304,
            intermediate_size: 9216,
            num_hidden_layers: 26,
            num_attention_heads: 8,
            num_key_value_heads: Some(4),
            max_position_embeddings: 131_072,
            rope: RopeDefaults {
                theta: 1e6,
                sliding_theta: Some(1e4),
                sliding_key: Some("rope_local_base_freq"),
                ..ROPE
            },
            sliding_window: Some(4096),
            ..GEMMA
        },
        activation: "hidden_activation",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| {
            // transformers reads it, and uses it nowhere.
            if shape.cap("attn_logit_softcapping", None)?.is_some() {
                let problem = "is set, which Gemma 3 does not apply: leave it out";
                return Err(shape.keys.error("attn_logit_softcapping", problem));
            }
            let every = match shape.keys.get("layer_types") {
                None => shape.keys.size_or("sliding_window_pattern", MAX_LAYERS, 6)?,
                Some(_) => 6,
            };
            shape.branch_as_gemma([None, None], every)?;
            shape.each(|layer, _| layer.attention.qk_norm = Some(QkNorm::Heads));
            shape.turn_sliding_layers();
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Arcee,
        name: "Arcee",
        defaults: Defaults {
            hidden_size: 2560,
            intermediate_size: 18_432,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            hidden_act: "relu2",
            bos_token_id: Some(128_000),
            eos_token_id: &[128_001],
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["attention_bias", "mlp_bias"],
        shape: |shape| {
            shape.each(|layer, _| layer.mlp.kind = Mlp::Plain(layer.mlp.kind.activation().0));
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Mixtral,
        name: "Mixtral",
        defaults: Defaults {
            intermediate_size: 14_336,
            num_key_value_heads: Some(8),
            max_position_embeddings: 131_072,
            rms_norm_eps: 1e-5,
            rope: RopeDefaults { theta: 1e6, ..ROPE },
            experts: Some(ExpertDefaults {
                num_experts: 8,
                num_experts_per_tok: 2,
                moe_intermediate_size: None,
                shared_expert_intermediate_size: None,
            }),
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["sliding_window"],
        shape: |shape| {
            let window = shape.window()?;
            shape.each(|layer, _| layer.attention.window = window);
            shape.mix()
        },
    },
    Family {
        architecture: Architecture::Qwen2Moe,
        name: "Qwen2Moe",
        defaults: Defaults {
            hidden_size: 2048,
            intermediate_size: 5632,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            num_key_value_heads: Some(16),
            experts: Some(ExpertDefaults {
                num_experts: 60,
                num_experts_per_tok: 4,
                moe_intermediate_size: Some(1408),
                shared_expert_intermediate_size: Some(5632),
            }),
            ..QWEN2
        },
        activation: "hidden_act",
        reads: &["sliding_window"],
        shape: |shape| {
            let bias = shape.keys.flag("qkv_bias", true)?;
            shape.each(|layer, _| layer.attention.qkv_bias = bias);
            // Every other one of the layers before `max_window_layers`, and not those behind it.
            shape.slide(|layer, first| layer.is_multiple_of(2) && layer < first)?;
            shape.mix()
        },
    },
    Family {
        architecture: Architecture::Qwen3Moe,
        name: "Qwen3Moe",
        defaults: Defaults {
            hidden_size: 2048,
            intermediate_size: 6144,
            num_hidden_layers: 24,
            num_key_value_heads: Some(4),
            max_window_layers: 0,
            experts: Some(ExpertDefaults {
                num_experts: 128,
                num_experts_per_tok: 8,
                moe_intermediate_size: Some(768),
                shared_expert_intermediate_size: None,
            }),
            ..QWEN2
        },
        activation: "hidden_act",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| {
            shape.each(|layer, _| layer.attention.qk_norm = Some(QkNorm::Heads));
            // All layers slide, if any do: neither `max_window_layers` nor `layer_types` is read.
            let slides = shape.keys.flag("use_sliding_window", false)?;
            let window = if slides { shape.window()? } else { None };
            shape.each(|layer, _| layer.attention.window = window);
            shape.mix()
        },
    },
    Family {
        architecture: Architecture::Phi3,
        name: "Phi3",
        defaults: Defaults {
            vocab_size: 32_064,
            hidden_size: 3072,
            intermediate_size: 8192,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            rope: RopeDefaults {
                partial_rotary_factor: Some(1.0),
                original_max_position_embeddings: Some(4096),
                types: &["default", "longrope"],
                ..ROPE
            },
            eos_token_id: &[32_000],
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["sliding_window"],
        shape: |shape| {
            let window = shape.window()?;
            shape.each(|layer, _| {
                layer.attention.window = window;
                layer.attention.fused = Some("self_attn.qkv_proj");
                layer.mlp.fused = Some(GATE_UP);
            });
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Olmo2,
        name: "Olmo2",
        defaults: OLMO2,
        activation: "hidden_act",
        reads: &["attention_bias"],
        shape: |shape| {
            shape.norm_as_olmo();
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Olmo3,
        name: "Olmo3",
        defaults: Defaults {
            rope: RopeDefaults { theta: 5e5, sliding_theta: Some(5e5), ..ROPE },
            sliding_window: Some(4096),
            ..OLMO2
        },
        activation: "hidden_act",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| {
            shape.norm_as_olmo();
            shape.slide_in_most(4)?;
            shape.turn_sliding_layers();
            Ok(())
        },
    },
    Family {
        architecture: Architecture::SmolLm3,
        name: "SmolLM3",
        defaults: Defaults {
            vocab_size: 128_256,
            hidden_size: 2048,
            num_hidden_layers: 36,
            num_attention_heads: 16,
            num_key_value_heads: Some(4),
            max_position_embeddings: 32_768,
            tie_word_embeddings: true,
            rope: RopeDefaults { theta: 2e6, ..ROPE },
            bos_token_id: Some(128_000),
            eos_token_id: &[128_001],
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["attention_bias", "mlp_bias", "sliding_window"],
        shape: |shape| shape.skip_positions(),
    },
    Family {
        architecture: Architecture::Glm4,
        name: "Glm4",
        defaults: Defaults {
            vocab_size: 151_552,
            intermediate_size: 13_696,
            num_hidden_layers: 40,
            num_key_value_heads: Some(2),
            head_dim: Some(128),
            max_position_embeddings: 131_072,
            rms_norm_eps: 0.000_000_156_25,
            rope: RopeDefaults { partial_rotary_factor: Some(0.5), ..ROPE },
            attention_bias: true,
            bos_token_id: None,
            eos_token_id: &[151_329, 151_336, 151_338],
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["attention_bias"],
        shape: |shape| {
            shape.each(|layer, _| {
                layer.attention.o_bias = false;
                layer.attention.norms.after = Some("post_self_attn_layernorm");
                layer.attention.rope.iter_mut().for_each(|rope| rope.neighbours = true);
                layer.mlp.norms.after = Some("post_mlp_layernorm");
                layer.mlp.fused = Some(GATE_UP);
            });
            Ok(())
        },
    },
    Family {
        architecture: Architecture::Granite,
        name: "Granite",
        defaults: LLAMA,
        activation: "hidden_act",
        reads: &["attention_bias", "mlp_bias"],
        shape: |shape| {
            let scale = shape.factor("attention_multiplier", 1.0)?;
            shape.each(|layer, _| layer.attention.scale = scale);
            shape.config.logit_scale = shape.factor("logits_scaling", 1.0)?.recip();
            // The stream is divided by what branches are multiplied by, as norms are the same of both.
            let branches = shape.factor("residual_multiplier", 1.0)?;
            shape.config.residual_multiplier = branches;
            shape.config.embedding_scale = shape.factor("embedding_multiplier", 1.0)? / branches;
            shape.config.rms_eps /= branches * branches;
            Ok(())
        },
    },
    Family {
        architecture: Architecture::GptOss,
        name: "GptOss",
        defaults: Defaults {
            vocab_size: 201_088,
            hidden_size: 2880,
            intermediate_size: 2880,
            num_hidden_layers: 36,
            num_attention_heads: 64,
            num_key_value_heads: Some(8),
            head_dim: Some(64),
            max_position_embeddings: 131_072,
            rms_norm_eps: 1e-5,
            rope: RopeDefaults { theta: 1.5e5, ..ROPE },
            sliding_window: Some(128),
            attention_bias: true,
            bos_token_id: None,
            eos_token_id: &[],
            experts: Some(ExpertDefaults {
                num_experts: 128,
                num_experts_per_tok: 4,
                moe_intermediate_size: None,
                shared_expert_intermediate_size: None,
            }),
            ..LLAMA
        },
        activation: "hidden_act",
        reads: &["attention_bias", "sliding_window"],
        shape: |shape| shape.mix_as_gpt_oss(),
    },
];

/// Gate and up in one tensor.
const GATE_UP: &str = "mlp.gate_up_proj";

impl Shape<'_> {
    fn each(&mut self, change: impl Fn(&mut LayerSpec, usize)) {
        self.config.layers.iter_mut().enumerate().for_each(|(index, layer)| change(layer, index));
    }

    /// The window of layers that have one; null is none.
    fn window(&self) -> Result<Option<usize>, ModelError> {
        window(self.keys, self.defaults.sliding_window)
    }

    /// The layers behind `max_window_layers` slide, or those of `layer_types`, if any may.
    fn slide_as_qwen(&mut self) -> Result<(), ModelError> {
        self.slide(|layer, full| layer >= full)
    }

    /// Layers slide as they `usually` do, by their number and `max_window_layers`, or those of `layer_types`, if any may.
    fn slide(&mut self, usually: impl Fn(usize, usize) -> bool) -> Result<(), ModelError> {
        let slides = self.keys.flag("use_sliding_window", false)?;
        // Where none does, 0 may stand there.
        let window = if slides { self.window()? } else { None };
        let full = match self.keys.get("max_window_layers") {
            Some(Value::Number(zero)) if zero.as_u64() == Some(0) => 0,
            _ => self.keys.size_or("max_window_layers", MAX_LAYERS, self.defaults.max_window_layers)?,
        };
        let slides =
            sliding_layers(self.keys, self.config.layers.len(), window, |layer| usually(layer, full))?;
        self.each(|layer, index| layer.attention.window = window.filter(|_| slides[index]));
        Ok(())
    }

    /// Layers have experts, all or some.
    fn mix(&mut self) -> Result<(), ModelError> {
        let Some(defaults) = self.defaults.experts else { return Ok(()) };
        let with_experts = defaults.layers(self.keys, self.config.layers.len())?;
        let intermediate = self.config.intermediate;
        for (layer, _) in self.config.layers.iter_mut().zip(with_experts).filter(|(_, experts)| *experts) {
            let activation = layer.mlp.kind.activation().0;
            layer.mlp.kind = Mlp::Experts(defaults.read(self.keys, activation, intermediate)?);
        }
        Ok(())
    }

    /// Experts with biases and an activation of their own, a sink for each head, and a window in every other layer.
    fn mix_as_gpt_oss(&mut self) -> Result<(), ModelError> {
        let scaled = |layer: &LayerSpec| {
            let rope = layer.attention.rope.as_ref();
            rope.is_some_and(|rope| matches!(rope.scaling, RopeScaling::Yarn { .. }))
        };
        if !self.config.layers.iter().all(scaled) {
            let problem = "is not of rope_type yarn, by which all of this family are trained";
            return Err(self.keys.error("rope_scaling", problem));
        }
        for (key, only) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
            let said = self.factor(key, only)?;
            if said != only as f32 {
                return Err(self.keys.error(key, format!("is {said}; supported is {only}")));
            }
        }
        self.slide_in_most(2)?;
        self.mix()?;
        self.each(|layer, _| {
            layer.attention.sinks = true;
            if let Mlp::Experts(experts) = &mut layer.mlp.kind {
                (experts.activation, experts.bias) = (Activation::SwigluOai, true);
            }
        });
        Ok(())
    }

    /// Norms behind the branches, soft caps (these are usual, of scores and logits), and a window in all layers but each `every`th.
    fn branch_as_gemma(&mut self, caps: [Option<f64>; 2], every: usize) -> Result<(), ModelError> {
        let scale = self.factor("query_pre_attn_scalar", 256.0)?.sqrt().recip();
        let soft_cap = self.cap("attn_logit_softcapping", caps[0])?;
        self.config.logit_soft_cap = self.cap("final_logit_softcapping", caps[1])?;
        self.slide_in_most(every)?;
        self.each(|layer, _| {
            layer.attention.norms.after = Some("post_attention_layernorm");
            layer.attention.scale = scale;
            layer.attention.soft_cap = soft_cap;
            layer.mlp.norms = Norms {
                before: Some("pre_feedforward_layernorm"),
                after: Some("post_feedforward_layernorm"),
            };
        });
        self.scale_as_gemma();
        Ok(())
    }

    /// A window in all layers but each `every`th, or in those of `layer_types`.
    fn slide_in_most(&mut self, every: usize) -> Result<(), ModelError> {
        let window = self.window()?;
        let slides = sliding_layers(self.keys, self.config.layers.len(), window, |layer| {
            !(layer + 1).is_multiple_of(every)
        })?;
        if window.is_none() && slides.contains(&true) {
            let problem =
                "is null, but some layers slide: give a number, or `layer_types` of full_attention alone";
            return Err(self.keys.error("sliding_window", problem));
        }
        self.each(|layer, index| layer.attention.window = window.filter(|_| slides[index]));
        Ok(())
    }

    /// Layers that slide turn otherwise than those that do not.
    fn turn_sliding_layers(&mut self) {
        let rope = self.sliding_rope.clone();
        self.each(|LayerSpec { attention, .. }, _| {
            if attention.window.is_some() {
                attention.rope = Some(rope.clone());
            }
        });
    }

    /// Norms behind the branches alone; q and k are normalised over all heads.
    fn norm_as_olmo(&mut self) {
        self.each(|LayerSpec { attention, mlp }, _| {
            attention.norms = Norms { before: None, after: Some("post_attention_layernorm") };
            attention.qk_norm = Some(QkNorm::Whole);
            mlp.norms = Norms { before: None, after: Some("post_feedforward_layernorm") };
        });
    }

    /// Layers without positions: those with a zero in `no_rope_layers`, or each `no_rope_layer_interval`th. If any layers slide, it is those, or
    /// those of `layer_types`.
    fn skip_positions(&mut self) -> Result<(), ModelError> {
        let (keys, layers) = (self.keys, self.config.layers.len());
        let turns: Vec<bool> = match keys.get("no_rope_layers") {
            None => {
                let every = keys.size_or("no_rope_layer_interval", MAX_LAYERS, 4)?;
                (1..=layers).map(|number| !number.is_multiple_of(every)).collect()
            }
            Some(list) => {
                let list = list.as_array().filter(|list| list.len() >= layers);
                let turn = |value: &Value| value.as_u64().filter(|value| *value < 2).map(|value| value == 1);
                let turns = list.and_then(|list| list.iter().take(layers).map(turn).collect());
                turns.ok_or_else(|| {
                    let problem = format!("must be {layers} of 1, a layer with positions, or 0, one without");
                    keys.error("no_rope_layers", problem)
                })?
            }
        };
        let slides = keys.flag("use_sliding_window", false)?;
        let window = self.window()?.filter(|_| slides);
        let slides = sliding_layers(keys, layers, window, |layer| window.is_some() && !turns[layer])?;
        self.each(|LayerSpec { attention, .. }, index| {
            attention.window = window.filter(|_| slides[index]);
            if !turns[index] {
                attention.rope = None;
            }
        });
        Ok(())
    }

    /// Norms are stored less 1, and embeddings are as long as the model is wide.
    fn scale_as_gemma(&mut self) {
        self.config.norm_offset = 1.0;
        self.config.embedding_scale = (self.config.hidden as f32).sqrt();
    }

    /// A soft cap; null is none.
    fn cap(&self, key: &str, usual: Option<f64>) -> Result<Option<f32>, ModelError> {
        if self.keys.is_null(key) || usual.is_none() && self.keys.get(key).is_none() {
            return Ok(None);
        }
        self.factor(key, usual.unwrap_or(1.0)).map(Some)
    }

    /// A number that others are multiplied or divided by.
    fn factor(&self, key: &str, usual: f64) -> Result<f32, ModelError> {
        let value = self.keys.positive_or(key, usual)?;
        match (1e-6..=1e6).contains(&value) {
            true => Ok(value as f32),
            false => Err(self.keys.error(key, format!("is {value}, a number from 1e-6 to 1e6 is expected"))),
        }
    }
}

/// `sliding_window`, or the `usual` one where the key is absent; null is none.
fn window(keys: &Keys, usual: Option<usize>) -> Result<Option<usize>, ModelError> {
    let usual = usual.filter(|_| !keys.is_null("sliding_window"));
    Ok(keys.size("sliding_window", usize::MAX)?.or(usual))
}

/// For each layer whether it slides: by `layer_types`, or as the family `usually` has it.
fn sliding_layers(
    keys: &Keys,
    layers: usize,
    window: Option<usize>,
    usually: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ModelError> {
    let Some(types) = keys.get("layer_types") else {
        return Ok((0..layers).map(usually).collect());
    };
    let kinds: Option<Vec<bool>> = types.as_array().filter(|types| types.len() == layers).and_then(|types| {
        types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Some(false),
                Some("sliding_attention") => Some(true),
                _ => None,
            })
            .collect()
    });
    let kinds = kinds.ok_or_else(|| {
        let problem =
            format!("must be {layers} of \"full_attention\" or \"sliding_attention\", one per layer");
        keys.error("layer_types", problem)
    })?;
    if window.is_none() && kinds.contains(&true) {
        let problem = "has \"sliding_attention\", but no window is set: give `sliding_window` (of Qwen, `use_sliding_window` too)";
        return Err(keys.error("layer_types", problem));
    }
    Ok(kinds)
}

impl Family {
    /// That of a config.json.
    pub(super) fn of(keys: &Keys) -> Result<&'static Family, ModelError> {
        let classes = || FAMILIES.iter().map(|family| format!("{}ForCausalLM", family.name));
        let refuse = |problem: String| {
            let known: Vec<String> = classes().collect();
            Err(keys.error("architectures", format!("{problem}; supported are {}", known.join(", "))))
        };
        match keys.get("architectures").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
            [Value::String(name)] => match classes().position(|class| class == *name) {
                Some(index) => Ok(&FAMILIES[index]),
                None => refuse(format!("is {name:?}")),
            },
            _ => refuse("must be a list of one name".to_owned()),
        }
    }

    /// Makes `config`, which has the layers of a Llama, a model of this family.
    pub(super) fn shape(
        &self,
        keys: &Keys,
        sliding_rope: RopeConfig,
        config: &mut ModelConfig,
    ) -> Result<(), ModelError> {
        self.refuse_switches_of_others(keys)?;
        let named = keys.text(self.activation)?.unwrap_or(self.defaults.hidden_act);
        let Some(activation) = Activation::named(named) else {
            let known = Activation::NAMES.iter().flat_map(|(_, names)| *names).copied();
            let known: Vec<&str> = known.collect();
            let problem = format!("is {named:?}; supported are {}", known.join(", "));
            return Err(keys.error(self.activation, problem));
        };
        let attention_bias = keys.flag("attention_bias", self.defaults.attention_bias)?;
        let mlp_bias = keys.flag("mlp_bias", false)?;
        let mut shape = Shape { keys, defaults: &self.defaults, sliding_rope, config };
        shape.each(|layer, _| {
            (layer.attention.qkv_bias, layer.attention.o_bias) = (attention_bias, attention_bias);
            (layer.mlp.bias, layer.mlp.kind) = (mlp_bias, Mlp::Gated(activation));
        });
        (self.shape)(&mut shape)
    }

    /// A switch that transformers does not read for this family must not be set: honouring or ignoring it would both surprise.
    fn refuse_switches_of_others(&self, keys: &Keys) -> Result<(), ModelError> {
        for switch in ["attention_bias", "mlp_bias", "sliding_window"] {
            // A window is set by any value, unless another key says that it is not used.
            let set = if switch == "sliding_window" {
                keys.get(switch).is_some() && keys.flag("use_sliding_window", true)?
            } else {
                keys.flag(switch, false)?
            };
            if set && !self.reads.contains(&switch) {
                let others = FAMILIES.iter().filter(|family| family.reads.contains(&switch));
                let others: Vec<&str> = others.map(|family| family.name).collect();
                let problem = format!("is set, which {} does not have ({} do)", self.name, others.join(", "));
                return Err(keys.error(switch, problem));
            }
        }
        Ok(())
    }
}

/// The defaults of one family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    /// None: as many as there are heads, which is also what null stands for.
    pub(super) num_key_value_heads: Option<usize>,
    /// None: `hidden_size` by `num_attention_heads`, which is also what null stands for.
    pub(super) head_dim: Option<usize>,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) hidden_act: &'static str,
    pub(super) tie_word_embeddings: bool,
    pub(super) rope: RopeDefaults,
    /// Where there is a window at all; null stands for none.
    pub(super) sliding_window: Option<usize>,
    /// The first layers that have no window.
    pub(super) max_window_layers: usize,
    pub(super) attention_bias: bool,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: &'static [u32],
    pub(super) experts: Option<ExpertDefaults>,
}

/// Whole heads, all scalings.
const ROPE: RopeDefaults = RopeDefaults {
    theta: 10_000.0,
    sliding_theta: None,
    sliding_key: None,
    partial_rotary_factor: None,
    original_max_position_embeddings: None,
    types: &["default", "linear", "dynamic", "llama3", "yarn", "longrope"],
};

const LLAMA: Defaults = Defaults {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 11_008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    hidden_act: "silu",
    tie_word_embeddings: false,
    rope: ROPE,
    sliding_window: None,
    max_window_layers: 0,
    attention_bias: false,
    bos_token_id: Some(1),
    eos_token_id: &[2],
    experts: None,
};

const QWEN2: Defaults = Defaults {
    vocab_size: 151_936,
    intermediate_size: 22_016,
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    sliding_window: Some(4096),
    max_window_layers: 28,
    bos_token_id: None,
    eos_token_id: &[],
    ..LLAMA
};

const GEMMA: Defaults = Defaults {
    vocab_size: 256_000,
    hidden_size: 3072,
    intermediate_size: 24_576,
    num_hidden_layers: 28,
    num_attention_heads: 16,
    num_key_value_heads: Some(16),
    head_dim: Some(256),
    max_position_embeddings: 8192,
    hidden_act: "gelu_pytorch_tanh",
    tie_word_embeddings: true,
    bos_token_id: Some(2),
    eos_token_id: &[1],
    ..LLAMA
};

const OLMO2: Defaults =
    Defaults { vocab_size: 50_304, rms_norm_eps: 1e-5, bos_token_id: None, eos_token_id: &[50_279], ..LLAMA };

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// As the script that asks transformers writes it.
    fn told(defaults: &Defaults) -> Value {
        json!({
            "vocab_size": defaults.vocab_size,
            "hidden_size": defaults.hidden_size,
            "intermediate_size": defaults.intermediate_size,
            "num_hidden_layers": defaults.num_hidden_layers,
            "num_attention_heads": defaults.num_attention_heads,
            "num_key_value_heads": defaults.num_key_value_heads,
            "head_dim": defaults.head_dim,
            "max_position_embeddings": defaults.max_position_embeddings,
            "rms_norm_eps": defaults.rms_norm_eps,
            "hidden_act": defaults.hidden_act,
            "tie_word_embeddings": defaults.tie_word_embeddings,
            "rope_theta": defaults.rope.theta,
            "sliding_rope_theta": defaults.rope.sliding_theta,
            "partial_rotary_factor": defaults.rope.partial_rotary_factor,
            "original_max_position_embeddings": defaults.rope.original_max_position_embeddings,
            "attention_bias": defaults.attention_bias,
            "sliding_window": defaults.sliding_window,
            "max_window_layers": defaults.max_window_layers,
            "bos_token_id": defaults.bos_token_id,
            "eos_token_id": defaults.eos_token_id,
            "experts": defaults.experts.map(|experts| json!({
                "num_experts": experts.num_experts,
                "num_experts_per_tok": experts.num_experts_per_tok,
                "moe_intermediate_size": experts.moe_intermediate_size,
                "shared_expert_intermediate_size": experts.shared_expert_intermediate_size,
                // Which have another width.
                "decoder_sparse_step": experts.moe_intermediate_size.map(|_| 1),
                "norm_topk_prob": experts.moe_intermediate_size.map(|_| false),
            })),
        })
    }

    #[test]
    fn the_table_is_what_transformers_says() {
        let said: Value = serde_json::from_str(include_str!("../../tests/golden/defaults.json")).unwrap();
        for Family { name, defaults, .. } in &FAMILIES {
            assert_eq!(told(defaults), said["classes"][format!("{name}Config")], "{name}");
        }
        assert_eq!(said["classes"].as_object().unwrap().len(), FAMILIES.len());
        // Other switches are off wherever a family has them: they are taken so.
        for (name, class) in said["switches"].as_object().unwrap() {
            assert!(class.as_object().unwrap().values().all(|value| value == &json!(false)), "{name}");
        }
    }
}
