//! What a key that config.json leaves out stands for: the defaults of each family's configuration class in transformers.
//!
//! Source: `LlamaConfig`, `MistralConfig`, `Qwen2Config` and `Qwen3Config` of transformers 5.23.0. `tests/golden/make_defaults.py` asks them;
//! a test here holds the table against what they said (`tests/golden/defaults.json`).

use super::Architecture;

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
    pub(super) rope_theta: f64,
    /// Where there is a window at all; null stands for none.
    pub(super) sliding_window: Option<usize>,
    /// The first layers that have no window.
    pub(super) max_window_layers: usize,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: Option<u32>,
}

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
    rope_theta: 10_000.0,
    sliding_window: None,
    max_window_layers: 0,
    bos_token_id: Some(1),
    eos_token_id: Some(2),
};

const MISTRAL: Defaults = Defaults {
    intermediate_size: 14_336,
    num_key_value_heads: Some(8),
    max_position_embeddings: 131_072,
    sliding_window: Some(4096),
    ..LLAMA
};

const QWEN2: Defaults = Defaults {
    vocab_size: 151_936,
    intermediate_size: 22_016,
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    sliding_window: Some(4096),
    max_window_layers: 28,
    bos_token_id: None,
    eos_token_id: None,
    ..LLAMA
};

const QWEN3: Defaults = Defaults { head_dim: Some(128), ..QWEN2 };

impl Architecture {
    pub(super) fn defaults(self) -> &'static Defaults {
        match self {
            Architecture::Llama => &LLAMA,
            Architecture::Mistral => &MISTRAL,
            Architecture::Qwen2 => &QWEN2,
            Architecture::Qwen3 => &QWEN3,
        }
    }
}

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
            "rope_theta": defaults.rope_theta,
            "sliding_window": defaults.sliding_window,
            "max_window_layers": defaults.max_window_layers,
            "bos_token_id": defaults.bos_token_id,
            "eos_token_id": defaults.eos_token_id,
        })
    }

    #[test]
    fn the_table_is_what_transformers_says() {
        let said: Value = serde_json::from_str(include_str!("../../tests/golden/defaults.json")).unwrap();
        for (name, architecture) in [
            ("LlamaConfig", Architecture::Llama),
            ("MistralConfig", Architecture::Mistral),
            ("Qwen2Config", Architecture::Qwen2),
            ("Qwen3Config", Architecture::Qwen3),
        ] {
            assert_eq!(told(architecture.defaults()), said["classes"][name], "{name}");
        }
        // Switches that are off, and an activation, wherever a family has them: `ModelConfig::from_keys` takes them so.
        for (name, class) in said["switches"].as_object().unwrap() {
            for (switch, value) in class.as_object().unwrap() {
                let off = if switch == "hidden_act" { json!("silu") } else { json!(false) };
                assert_eq!(value, &off, "{name}.{switch}");
            }
        }
    }
}
