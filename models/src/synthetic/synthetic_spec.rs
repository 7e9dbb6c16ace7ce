//! The shape of a synthetic pair, and its presets.

use crate::{Architecture, Experts, LayerSpec, Mlp, ModelConfig, ModelError, RopeConfig};

/// The shape of a synthetic pair. Everything that is made of it depends on these values alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticSpec {
    /// Layers of the target.
    pub layers: usize,
    /// Layers of the draft: the target's first ones.
    pub draft_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP, or of each expert.
    pub intermediate: usize,
    /// Experts in each layer, in place of its MLP; 0: none.
    pub experts: usize,
    /// How many of them a row goes to.
    pub experts_per_token: usize,
    /// Query heads; divides `hidden`.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Number of token ids; at least 256.
    pub vocab: usize,
    /// Most positions.
    pub max_context: usize,
    /// Another seed, other weights.
    pub seed: u64,
    /// Epsilon, 0 to 1: the size of the later layers' residuals. 0 makes the draft always right, a larger one
    /// less often.
    pub residual_scale: f32,
    /// The mask token, if the draft is to propose in one pass. Nothing was learned of it: proposals beyond the first are right by chance.
    pub mask_token: Option<u32>,
}

impl SyntheticSpec {
    /// A shape by name: `tiny` (1M parameters), `110m`, or `1.1b`; or, with experts in Qwen3-30B-A3B's proportions, `1b-a80m`, which has 940M
    /// parameters, 81M of which a token goes through. Seed 0, epsilon 0.05; change any field.
    ///
    /// # Errors
    /// The name is none of these.
    pub fn preset(name: &str) -> Result<SyntheticSpec, ModelError> {
        let spec = |layers, draft_layers, hidden, intermediate, heads, kv_heads, vocab| SyntheticSpec {
            layers,
            draft_layers,
            hidden,
            intermediate,
            experts: 0,
            experts_per_token: 0,
            heads,
            kv_heads,
            vocab,
            max_context: 4096,
            seed: 0,
            residual_scale: 0.05,
            mask_token: None,
        };
        match name {
            "tiny" => Ok(spec(4, 1, 128, 384, 4, 2, 2048)),
            "110m" => Ok(spec(12, 2, 768, 2048, 12, 12, 16_384)),
            "1.1b" => Ok(spec(22, 2, 2048, 5632, 32, 4, 32_000)),
            "1b-a80m" => Ok(SyntheticSpec {
                experts: 128,
                experts_per_token: 8,
                ..spec(24, 2, 512, 192, 8, 1, 16_384)
            }),
            other => Err(ModelError::Synthetic {
                field: "preset",
                problem: format!("is {other:?}; there are \"tiny\", \"110m\", \"1.1b\" and \"1b-a80m\""),
            }),
        }
    }

    /// The shapes of target and draft.
    ///
    /// # Errors
    /// No model can have such a shape.
    pub fn configs(&self) -> Result<(ModelConfig, ModelConfig), ModelError> {
        self.check()?;
        Ok((self.config(self.layers), self.config(self.draft_layers)))
    }

    /// The configuration of a model of this pair with the given number of layers.
    pub(crate) fn config(&self, layers: usize) -> ModelConfig {
        let rope = RopeConfig::plain(10_000.0);
        let mut layer = LayerSpec::llama(self.hidden / self.heads, rope);
        if self.experts > 0 {
            layer.mlp.kind = Mlp::Experts(Experts {
                bias: false,
                activation: layer.mlp.kind.activation().0,
                count: self.experts,
                active: self.experts_per_token,
                width: self.intermediate,
                renormed: true,
                shared: None,
            });
        }
        ModelConfig {
            architecture: if self.experts > 0 { Architecture::Mixtral } else { Architecture::Llama },
            hidden: self.hidden,
            layers: vec![layer; layers],
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.hidden / self.heads,
            intermediate: self.intermediate,
            vocab: self.vocab,
            stored_vocab: self.vocab,
            max_context: self.max_context,
            rms_eps: 1e-5,
            tie_embeddings: false,
            embedding_scale: 1.0,
            norm_offset: 0.0,
            residual_multiplier: 1.0,
            logit_scale: 1.0,
            logit_soft_cap: None,
            bos: None,
            eos: Vec::new(),
            mask_token: self.mask_token,
            head: None,
            quantised: None,
            in_blocks: false,
            notes: Vec::new(),
        }
    }

    /// Refuses shapes that no model can have.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let refuse = |field, problem: String| Err(ModelError::Synthetic { field, problem });
        let sizes = [
            ("layers", self.layers, 1, 1 << 12),
            ("draft_layers", self.draft_layers, 1, self.layers),
            ("hidden", self.hidden, 2, 1 << 16),
            ("intermediate", self.intermediate, 1, 1 << 18),
            ("heads", self.heads, 1, self.hidden / 2),
            ("kv_heads", self.kv_heads, 1, self.heads),
            ("vocab", self.vocab, 256, 1 << 20),
            ("max_context", self.max_context, 1, 1 << 24),
            ("experts", self.experts, 0, 1 << 10),
            ("experts_per_token", self.experts_per_token, usize::from(self.experts > 0), self.experts),
        ];
        for (field, value, least, most) in sizes {
            if !(least..=most).contains(&value) {
                return refuse(field, format!("is {value}, a number from {least} to {most} is expected"));
            }
        }
        if !self.hidden.is_multiple_of(2 * self.heads) {
            return refuse(
                "heads",
                format!("is {}: hidden ({}) must be an even multiple of it", self.heads, self.hidden),
            );
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(
                "kv_heads",
                format!("is {}, which does not divide heads ({})", self.kv_heads, self.heads),
            );
        }
        if !(0.0..=1.0).contains(&self.residual_scale) {
            return refuse(
                "residual_scale",
                format!("is {}, a number from 0 to 1 is expected", self.residual_scale),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_possible_shapes() {
        for name in ["tiny", "110m", "1.1b", "1b-a80m"] {
            SyntheticSpec::preset(name).unwrap().check().unwrap();
        }
        assert!(SyntheticSpec::preset("7b").unwrap_err().to_string().contains("\"1.1b\""));
    }

    #[test]
    fn an_impossible_shape_names_its_field() {
        let tiny = SyntheticSpec::preset("tiny").unwrap();
        let cases = [
            (SyntheticSpec { draft_layers: 5, ..tiny.clone() }, "`draft_layers`"),
            (SyntheticSpec { heads: 3, ..tiny.clone() }, "`heads`"),
            (SyntheticSpec { heads: 0, ..tiny.clone() }, "`heads`"),
            (SyntheticSpec { kv_heads: 3, ..tiny.clone() }, "`kv_heads`"),
            (SyntheticSpec { vocab: 255, ..tiny.clone() }, "`vocab`"),
            (SyntheticSpec { experts: 4, ..tiny.clone() }, "`experts_per_token`"),
            (SyntheticSpec { experts: 4, experts_per_token: 5, ..tiny.clone() }, "`experts_per_token`"),
            (SyntheticSpec { experts_per_token: 1, ..tiny.clone() }, "`experts_per_token`"),
            (SyntheticSpec { experts: 5000, experts_per_token: 1, ..tiny.clone() }, "`experts`"),
            (SyntheticSpec { residual_scale: f32::NAN, ..tiny.clone() }, "`residual_scale`"),
            (SyntheticSpec { residual_scale: 1.5, ..tiny }, "`residual_scale`"),
        ];
        for (spec, field) in cases {
            let message = spec.check().unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
