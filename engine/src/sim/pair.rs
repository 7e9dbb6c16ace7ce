//! Model pairs by their shapes: what a pass of each reads and computes.

/// One model, as far as the time of a pass goes. KV is bf16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShape {
    /// Its name.
    pub name: &'static str,
    /// Bytes of a weight: 2 in bf16; 1 in FP8, with products at twice the rate.
    pub weight_bytes: f64,
    /// Parameters in all, which take memory.
    pub parameters: f64,
    /// Parameters a pass reads: without an input embedding that is not the LM head too.
    pub read_parameters: f64,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// GPUs it is sharded over.
    pub tp: usize,
}

/// Draft and target, on the same GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// What it is called on a command line.
    pub name: &'static str,
    /// GPUs of the replica.
    pub gpus: usize,
    /// Seconds of a draft step of one sequence by captured graphs, at least: what serving systems were seen to need, launches and the host's
    /// turn included. 0: what the roofline says.
    pub draft_step_s: f64,
    /// The draft model.
    pub draft: ModelShape,
    /// The target model.
    pub target: ModelShape,
}

/// Share of a GPU's memory that weights and KV may take.
const USABLE_MEMORY: f64 = 0.9;

impl ModelShape {
    /// Bytes of KV per token, over all layers.
    pub fn kv_bytes_per_token(&self) -> f64 {
        (2 * 2 * self.layers * self.kv_heads * self.head_dim) as f64
    }

    /// The same model with weights in FP8, embeddings and LM head included.
    #[must_use]
    pub fn in_fp8(self) -> ModelShape {
        ModelShape { weight_bytes: 1.0, ..self }
    }
}

/// Tokens that a head proposes: what most published ones of EAGLE-3 do.
const HEAD_TOKENS: usize = 32_000;

impl Pair {
    /// The same target with a head of EAGLE-3 on its hidden states, on each GPU: a layer as wide as the target's, whose attention reads twice that,
    /// and an LM head for the tokens that such heads propose. Its step is what the roofline says. The fusion that runs with the target is memory
    /// alone, and features take none.
    #[must_use]
    pub fn with_head(self) -> Pair {
        let ModelShape { hidden, heads, kv_heads, head_dim, .. } = self.target;
        let layer = self.target.read_parameters / self.target.layers as f64;
        let wider = ((heads + 2 * kv_heads) * head_dim * hidden) as f64;
        let read_parameters = layer + wider + (HEAD_TOKENS * hidden) as f64;
        let parameters = read_parameters + (3 * hidden * hidden) as f64;
        let name = "a head of EAGLE-3";
        let draft = ModelShape { name, parameters, read_parameters, layers: 1, tp: 1, ..self.target };
        Pair { draft, draft_step_s: 0.0, ..self }
    }

    /// The presets: the FASER paper's pairs.
    pub const ALL: [Pair; 2] = [Pair::QWEN3, Pair::LLAMA3];

    /// Qwen3-0.6B drafts for Qwen3-32B on one GPU. The step: 2.39 ms a token of that very draft alone in vLLM 0.19 on an H100, by full graphs
    /// (kvcached's pull request 331).
    pub const QWEN3: Pair = Pair {
        name: "qwen3",
        gpus: 1,
        draft_step_s: 2.4e-3,
        draft: ModelShape {
            name: "Qwen3-0.6B",
            weight_bytes: 2.0,
            parameters: 0.596e9,
            read_parameters: 0.596e9,
            layers: 28,
            hidden: 1024,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            tp: 1,
        },
        target: ModelShape {
            name: "Qwen3-32B",
            weight_bytes: 2.0,
            parameters: 32.76e9,
            read_parameters: 31.98e9,
            layers: 64,
            hidden: 5120,
            heads: 64,
            kv_heads: 8,
            head_dim: 128,
            tp: 1,
        },
    };

    /// Llama 3.2 1B, a copy on each GPU, drafts for Llama 3.3 70B on two. The step: derived from the token rates of the SSD repository's
    /// reference runs with and without it (tanishqkumar/ssd).
    pub const LLAMA3: Pair = Pair {
        name: "llama3",
        gpus: 2,
        draft_step_s: 2.0e-3,
        draft: ModelShape {
            name: "Llama-3.2-1B",
            weight_bytes: 2.0,
            parameters: 1.236e9,
            read_parameters: 1.236e9,
            layers: 16,
            hidden: 2048,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            tp: 1,
        },
        target: ModelShape {
            name: "Llama-3.3-70B",
            weight_bytes: 2.0,
            parameters: 70.55e9,
            read_parameters: 69.5e9,
            layers: 80,
            hidden: 8192,
            heads: 64,
            kv_heads: 8,
            head_dim: 128,
            tp: 2,
        },
    };

    /// The preset of this name.
    pub fn named(name: &str) -> Option<Pair> {
        Pair::ALL.into_iter().find(|pair| pair.name == name)
    }

    /// The same pair with the target's weights in FP8.
    #[must_use]
    pub fn in_fp8(self) -> Pair {
        Pair { target: self.target.in_fp8(), ..self }
    }

    /// The same models on so many GPUs: the target split over all of them, a draft on each.
    #[must_use]
    pub fn split_over(self, gpus: usize) -> Pair {
        Pair { gpus, target: ModelShape { tp: gpus, ..self.target }, ..self }
    }

    /// Tokens whose KV, of both models, fits beside the weights in GPUs of `memory_bytes` each; 0 if the weights do not.
    pub fn kv_tokens(&self, memory_bytes: f64) -> usize {
        let per_gpu = |model: &ModelShape, bytes: f64| bytes / model.tp as f64;
        let weights = per_gpu(&self.target, self.target.weight_bytes * self.target.parameters)
            + per_gpu(&self.draft, self.draft.weight_bytes * self.draft.parameters);
        let per_token = per_gpu(&self.target, self.target.kv_bytes_per_token())
            + per_gpu(&self.draft, self.draft.kv_bytes_per_token());
        ((USABLE_MEMORY * memory_bytes - weights) / per_token).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Hardware;

    #[test]
    fn kv_is_what_the_configs_of_the_models_say() {
        assert_eq!(Pair::QWEN3.target.kv_bytes_per_token(), 262_144.0);
        assert_eq!(Pair::QWEN3.draft.kv_bytes_per_token(), 114_688.0);
        assert_eq!(Pair::LLAMA3.target.kv_bytes_per_token(), 327_680.0);
        // An H100 has next to nothing left beside Qwen3-32B in bf16, an H200 has.
        let tokens = |hardware: Hardware| Pair::QWEN3.kv_tokens(hardware.memory_bytes);
        assert!((10_000..16_000).contains(&tokens(Hardware::H100)), "{}", tokens(Hardware::H100));
        assert!((150_000..170_000).contains(&tokens(Hardware::H200)), "{}", tokens(Hardware::H200));
    }
}
