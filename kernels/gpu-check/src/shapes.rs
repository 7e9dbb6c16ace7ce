//! Models whose times are predicted and measured, as their config.json on the hub says them.

use faser_kernels::Dtype;
use faser_models::{ModelConfig, ModelError};

/// A model, and in what its matrices are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Llama-3.2-1B in bf16.
    Llama1B,
    /// Llama-3.1-8B in bf16.
    Llama8B,
    /// Its matrices in FP8.
    Llama8BFp8,
    /// In 4 bits.
    Llama8BInt4,
    /// Qwen3-0.6B in bf16.
    Qwen600M,
    /// In FP8.
    Qwen600MFp8,
    /// In 4 bits.
    Qwen600MInt4,
    /// Qwen3-8B in bf16.
    Qwen8B,
    /// Qwen3-30B-A3B in bf16.
    Qwen30BA3B,
    /// In FP8.
    Qwen30BA3BFp8,
    /// In 4 bits.
    Qwen30BA3BInt4,
}

impl Shape {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Llama1B => "Llama-3.2-1B",
            Shape::Llama8B => "Llama-3.1-8B",
            Shape::Llama8BFp8 => "Llama-3.1-8B in fp8",
            Shape::Llama8BInt4 => "Llama-3.1-8B in int4",
            Shape::Qwen600M => "Qwen3-0.6B",
            Shape::Qwen600MFp8 => "Qwen3-0.6B in fp8",
            Shape::Qwen600MInt4 => "Qwen3-0.6B in int4",
            Shape::Qwen8B => "Qwen3-8B",
            Shape::Qwen30BA3B => "Qwen3-30B-A3B",
            Shape::Qwen30BA3BFp8 => "Qwen3-30B-A3B in fp8",
            Shape::Qwen30BA3BInt4 => "Qwen3-30B-A3B in int4",
        }
    }

    /// In what its matrices are held.
    pub fn dtype(self) -> Dtype {
        match self {
            Shape::Llama8BInt4 | Shape::Qwen600MInt4 | Shape::Qwen30BA3BInt4 => Dtype::Int4,
            Shape::Llama8BFp8 | Shape::Qwen600MFp8 | Shape::Qwen30BA3BFp8 => Dtype::Fp8,
            _ => Dtype::Bf16,
        }
    }

    /// With no longer a context than is looked at.
    ///
    /// # Errors
    /// Its config.json is none: never.
    pub fn config(self) -> Result<ModelConfig, ModelError> {
        let text = match self {
            Shape::Llama1B => LLAMA_1B,
            Shape::Llama8B | Shape::Llama8BFp8 | Shape::Llama8BInt4 => LLAMA_8B,
            Shape::Qwen600M | Shape::Qwen600MFp8 | Shape::Qwen600MInt4 => QWEN_600M,
            Shape::Qwen8B => QWEN_8B,
            Shape::Qwen30BA3B | Shape::Qwen30BA3BFp8 | Shape::Qwen30BA3BInt4 => QWEN_30B_A3B,
        };
        let mut config = ModelConfig::of_json(text)?;
        config.max_context = config.max_context.min(16_384);
        Ok(config)
    }
}

const LLAMA_1B: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "tie_word_embeddings": true}"#;

const LLAMA_8B: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": false}"#;

const QWEN_600M: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "tie_word_embeddings": true}"#;

const QWEN_8B: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "tie_word_embeddings": false}"#;

const QWEN_30B_A3B: &str = r#"{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "tie_word_embeddings": false}"#;
