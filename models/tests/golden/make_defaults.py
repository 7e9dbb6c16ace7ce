#!/usr/bin/env python3
"""Ask transformers' configuration classes for their defaults: the table of models/src/config/families.rs.

    pip install torch transformers
    python make_defaults.py           # writes defaults.json beside this file
"""
import json
import pathlib

import transformers

from make_golden import CASES

KEYS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
        "rms_norm_eps", "bos_token_id", "eos_token_id", "tie_word_embeddings"]
EXPERTS = ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step", "norm_topk_prob"]
SWITCHES = ["mlp_bias", "use_sliding_window"]


def defaults(kind):
    config = kind()
    said = {key: getattr(config, key) for key in KEYS}
    # Of another shape, what is not a constant follows the shape.
    other = kind(num_attention_heads=64, hidden_size=1024)
    said["num_key_value_heads"] = None if other.num_key_value_heads == 64 else other.num_key_value_heads
    other_dim = getattr(other, "head_dim", None)
    said["head_dim"] = None if other_dim in (None, 16) else other_dim
    said["rope_theta"] = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    said["sliding_rope_theta"] = config.rope_parameters.get("sliding_attention", {}).get("rope_theta")
    # Qwen's is null as long as `use_sliding_window` is false.
    sliding = kind(use_sliding_window=True) if hasattr(config, "use_sliding_window") else config
    said["sliding_window"] = getattr(sliding, "sliding_window", None)
    said["hidden_act"] = getattr(config, "hidden_activation", None) or config.hidden_act
    said["max_window_layers"] = getattr(config, "max_window_layers", 0)
    said["experts"] = {key: getattr(config, key, None) for key in EXPERTS} if hasattr(config, "num_experts") else None
    said["partial_rotary_factor"] = config.rope_parameters.get("partial_rotary_factor")
    said["original_max_position_embeddings"] = getattr(config, "original_max_position_embeddings", None)
    said["attention_bias"] = getattr(config, "attention_bias", False)
    ends = said["eos_token_id"]
    said["eos_token_id"] = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return said


def main():
    families = sorted({case[0] for case in CASES.values()})
    kinds = {family + "Config": getattr(transformers, family + "ForCausalLM").config_class for family in families}
    said = {
        "transformers": transformers.__version__,
        "classes": {name: defaults(kind) for name, kind in kinds.items()},
        "switches": {name: {key: getattr(kind(), key) for key in SWITCHES if hasattr(kind(), key)} for name, kind in kinds.items()},
    }
    path = pathlib.Path(__file__).parent / "defaults.json"
    path.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
