//! Which tensor of a GGUF file is which of a checkpoint's.

use crate::Architecture;
use crate::load::{EMBEDDING, HEAD};

/// Tensors of no layer: theirs, and ours.
const WHOLE: [(&str, &str); 3] =
    [("token_embd.weight", EMBEDDING), ("output.weight", HEAD), ("output_norm.weight", "model.norm.weight")];

/// Tensors of a layer, less `.weight` or `.bias`.
const OF_LAYER: [(&str, &str); 21] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
/// The same where norms stand behind the branches alone.
const OF_OLMO: (&str, &str) = ("post_attention_norm", "post_attention_layernorm");

/// Stacks of all experts' matrices of a layer, and each expert's projection.
const OF_EXPERTS: [(&str, &str); 3] =
    [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];

/// The name in a GGUF file of a tensor of ours, and which expert's part it is of a stack; none if such files have no name for it.
pub(super) fn in_gguf(ours: &str, architecture: Architecture) -> Option<(String, Option<usize>)> {
    if let Some((theirs, _)) = WHOLE.iter().find(|(_, known)| *known == ours) {
        return Some(((*theirs).to_owned(), None));
    }
    let (layer, rest) = ours.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    if let Some((expert, projection)) =
        module.strip_prefix("mlp.experts.").and_then(|rest| rest.split_once('.'))
    {
        let (theirs, _) = OF_EXPERTS.iter().find(|(_, known)| *known == projection)?;
        return Some((format!("blk.{layer}.{theirs}.{kind}"), Some(expert.parse().ok()?)));
    }
    let of_olmo = (architecture == Architecture::Olmo2).then_some(OF_OLMO);
    let (theirs, _) = of_olmo.iter().chain(&OF_LAYER).find(|(_, known)| *known == module)?;
    Some((format!("blk.{layer}.{theirs}.{kind}"), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_layers_and_of_none_have_names() {
        for (ours, theirs) in [
            ("model.embed_tokens.weight", Some(("token_embd.weight", None))),
            ("lm_head.weight", Some(("output.weight", None))),
            ("model.layers.11.self_attn.q_proj.bias", Some(("blk.11.attn_q.bias", None))),
            ("model.layers.0.post_attention_layernorm.weight", Some(("blk.0.ffn_norm.weight", None))),
            ("model.layers.2.mlp.gate.weight", Some(("blk.2.ffn_gate_inp.weight", None))),
            ("model.layers.2.mlp.experts.7.up_proj.weight", Some(("blk.2.ffn_up_exps.weight", Some(7)))),
            ("model.layers.0.self_attn.sinks", None),
            ("fc.weight", None),
        ] {
            let found = in_gguf(ours, Architecture::Llama);
            assert_eq!(found.as_ref().map(|(name, expert)| (name.as_str(), *expert)), theirs, "{ours}");
        }
        let norm = in_gguf("model.layers.0.post_attention_layernorm.weight", Architecture::Olmo2);
        assert_eq!(norm, Some(("blk.0.post_attention_norm.weight".to_owned(), None)));
    }
}
