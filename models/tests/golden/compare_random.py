#!/usr/bin/env python3
"""Draw random configurations of all families, and compare our log-probabilities with those of transformers, in float32, and the texts that follow greedily.

    cargo build --release -p faser-models --example logprobs
    python compare_random.py ../../../target/release/examples/logprobs [COUNT [SEED]]

Prints a line for each, and exits with 1 if any is more than 1e-4 off and more than twice as far as transformers in float32 is from itself in float64, or
if another token comes first where transformers goes on.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers

from make_golden import randomize

FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3", "Arcee", "Phi3", "Olmo2", "Olmo3", "SmolLM3", "Glm4", "Granite",
            "Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss"]
MOST = 1e-4
# Tokens that transformers adds to each text.
ADDED = 16


def widths(draw, family):
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 4])
    head_dim = 2 * draw.randint(4, 16)
    own_dim = family in ["Mistral", "Qwen3", "Gemma", "Gemma2", "Gemma3", "Glm4", "Llama", "Mixtral", "Qwen3Moe", "GptOss"] and draw.random() < 0.6
    said = dict(hidden_size=heads * draw.choice([6, 10, 12]) if own_dim else heads * head_dim, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=draw.randint(17, 90), vocab_size=draw.randint(50, 400), num_hidden_layers=draw.randint(1, 5),
                max_position_embeddings=draw.randint(48, 96), tie_word_embeddings=draw.random() < 0.5, rms_norm_eps=draw.choice([1e-6, 1e-5]))
    if own_dim or family in ["Qwen3", "Gemma", "Gemma2", "Gemma3", "Glm4", "Qwen3Moe", "GptOss"]:
        said["head_dim"] = head_dim
    return said, head_dim


def rope(draw, family, shape, head_dim):
    """Of a whole model; how long a text may be."""
    context, theta = shape["max_position_embeddings"], draw.choice([500.0, 10000.0, 1e6])
    original = draw.choice([16, 24])
    kinds = {"Phi3": ["default", "longrope"], "GptOss": ["yarn"]}.get(family) or ["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
    kind = draw.choice(kinds)
    said = dict(rope_type=kind, rope_theta=theta)
    turned = head_dim
    if family in ["Phi3", "Glm4"]:
        turned = 2 * draw.randint(1, head_dim // 2)
        said["partial_rotary_factor"] = turned / head_dim
        assert int(head_dim * said["partial_rotary_factor"]) == turned
    if kind in ["linear", "dynamic", "llama3"]:
        said["factor"] = draw.choice([2.0, 3.5])
    if kind == "llama3":
        said |= dict(low_freq_factor=1.0, high_freq_factor=draw.choice([2.0, 4.0]), original_max_position_embeddings=original)
    if kind == "yarn":
        said |= dict(factor=draw.choice([2.0, 4.0, 6.5]), original_max_position_embeddings=original)
        said |= draw.choice([{}, dict(attention_factor=1.4), dict(mscale=1.2, mscale_all_dim=0.7)])
        said |= draw.choice([{}, dict(truncate=False), dict(beta_fast=4.0, beta_slow=0.25)])
        context = max(context, int(said["factor"] * original))
    if kind == "longrope":
        said |= {key: [1.0 + draw.random() * most for _ in range(turned // 2)] for key, most in [("short_factor", 0.5), ("long_factor", 6.0)]}
        if family == "Phi3":
            shape["original_max_position_embeddings"] = original
        else:
            said["original_max_position_embeddings"] = original
    return said, context


def experts(draw, family, layers):
    of_all = draw.randint(2, 9)
    said = dict(num_experts_per_tok=draw.randint(1, min(of_all, 4)))
    if family in ["Mixtral", "GptOss"]:
        return said | dict(num_local_experts=of_all)
    said |= dict(num_experts=of_all, moe_intermediate_size=draw.randint(9, 40), norm_topk_prob=draw.random() < 0.5, decoder_sparse_step=draw.choice([1, 1, 2]),
                 mlp_only_layers=draw.choice([[], [draw.randrange(layers)]]))
    return said | (dict(shared_expert_intermediate_size=draw.randint(9, 40), qkv_bias=draw.random() < 0.5) if family == "Qwen2Moe" else {})


def configuration(draw, family):
    shape, head_dim = widths(draw, family)
    context = shape["max_position_embeddings"]
    window = draw.choice([None, 3, 11])
    layers = shape["num_hidden_layers"]
    if family == "Gemma3" or family == "Olmo3":
        sliding = dict(rope_type="default", rope_theta=draw.choice([300.0, 10000.0]))
        full = dict(rope_type="default", rope_theta=20000.0)
        full |= draw.choice([{}, dict(rope_type="linear", factor=4.0),
                             dict(rope_type="yarn", factor=3.0, original_max_position_embeddings=20, attention_factor=1.2)])
        shape["rope_parameters"] = dict(sliding_attention=sliding, full_attention=full)
    else:
        shape["rope_parameters"], context = rope(draw, family, shape, head_dim)
    if family in ["Gemma2", "Gemma3", "Olmo3"]:
        shape |= dict(sliding_window=window or 6, layer_types=[draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)])
    if family in ["Gemma2", "Gemma3"]:
        shape |= dict(query_pre_attn_scalar=draw.choice([4, head_dim]))
    if family == "Gemma2":
        shape |= dict(attn_logit_softcapping=draw.choice([None, 5.0]), final_logit_softcapping=draw.choice([None, 10.0]))
    if family in ["Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss"]:
        shape |= experts(draw, family, layers)
    if family == "GptOss":
        shape |= dict(sliding_window=window or 6, layer_types=[draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)])
    if family in ["Mistral", "Phi3", "Mixtral"]:
        shape["sliding_window"] = window
    if family in ["Qwen2", "Qwen3", "SmolLM3", "Qwen2Moe", "Qwen3Moe"] and window:
        shape |= dict(use_sliding_window=True, sliding_window=window)
        if family != "SmolLM3":
            shape["max_window_layers"] = draw.randint(0, layers)
    if family == "SmolLM3":
        shape |= draw.choice([dict(no_rope_layer_interval=draw.randint(1, 4)), dict(no_rope_layers=[draw.randint(0, 1) for _ in range(layers)])])
    if family == "Granite":
        shape |= dict(embedding_multiplier=draw.choice([1.0, 12.0]), residual_multiplier=draw.choice([0.22, 1.0, 2.0]),
                      attention_multiplier=draw.choice([0.1, 0.4]), logits_scaling=draw.choice([1.0, 8.0]))
    if family in ["Llama", "Qwen3", "Qwen3Moe", "Gemma2", "Gemma3", "Arcee", "Olmo2", "Olmo3", "SmolLM3", "Glm4", "Granite"]:
        shape["attention_bias"] = draw.random() < 0.5
    if family in ["Llama", "Arcee", "SmolLM3", "Granite"]:
        shape["mlp_bias"] = draw.random() < 0.5
    return shape, context


def make(folder, number, seed):
    """A checkpoint with the text; what transformers computes and how far that is from float64, where its own part of the text begins, and what it is."""
    draw = random.Random(1000 * seed + number)
    family = FAMILIES[number % len(FAMILIES)]
    shape, context = configuration(draw, family)
    kind = getattr(transformers, family + "ForCausalLM")
    torch.manual_seed(number)
    config = kind.config_class(bos_token_id=1, eos_token_id=2, pad_token_id=None, attn_implementation="eager", experts_implementation="eager", **shape)
    model = kind(config).eval()
    randomize(model, torch.Generator().manual_seed(number))
    model.save_pretrained(folder)
    # Longer than any original context, so that LongRoPE's factors are the long ones there too.
    begins = draw.randint(30, min(context, 90) - ADDED)
    tokens = torch.randint(0, shape["vocab_size"], (1, begins))
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.inference_mode():
        for _ in range(ADDED):
            tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
        (folder / "tokens.json").write_text(json.dumps(tokens[0].tolist()))
        expected = torch.log_softmax(model(tokens).logits[0].double(), dim=-1)
        rounding = (torch.log_softmax(model.double()(tokens).logits[0], dim=-1) - expected).abs().max().item()
    ropes = shape["rope_parameters"]
    what = [ropes.get("full_attention", ropes)["rope_type"], f"{shape['num_hidden_layers']} layers", f"hidden {shape['hidden_size']}",
            f"{shape['num_attention_heads']}/{shape['num_key_value_heads']} heads of {config.head_dim if hasattr(config, 'head_dim') and config.head_dim else shape['hidden_size'] // shape['num_attention_heads']}",
            *[f"{shape['num_experts_per_tok']} of {count} experts" for key, count in shape.items() if key in ["num_experts", "num_local_experts"]],
            f"vocabulary {shape['vocab_size']}", f"window {getattr(config, 'sliding_window', None)}", f"{tokens.shape[1]} tokens"]
    return (expected, rounding), (begins, tokens[0]), f"{family:8} " + ", ".join(what)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    binary, count, seed = sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 40, int(sys.argv[3]) if sys.argv[3:] else 1
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        folders = [pathlib.Path(place) / str(number) for number in range(count)]
        made = [make(folder, number, seed) for number, folder in enumerate(folders)]
        said = subprocess.run([binary, "7", *map(str, folders)], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    assert len(said) == count, f"{len(said)} of {count} models"
    parted, far = 0, 0
    for ((expected, rounding), (begins, tokens), what), line in zip(made, said):
        found = torch.tensor(json.loads(line), dtype=torch.float64)
        assert found.shape == expected.shape, what
        off = (found - expected).abs().max().item()
        worst = max(worst, off)
        same = torch.equal(found[begins - 1:-1].argmax(-1), tokens[begins:])
        parted += not same
        far += off > max(MOST, 2 * rounding)
        beyond = "" if off <= MOST else f"  (transformers' own rounding: {rounding:.1e})" if off <= 2 * rounding else "  TOO FAR OFF"
        print(f"{off:.1e}  {what}{beyond}{'' if same else '  ANOTHER TEXT'}")
    print(f"{count} configurations, seed {seed}: at most {worst:.1e} off in a log-probability; {count - parted} greedy texts the same")
    return far + parted > 0


if __name__ == "__main__":
    sys.exit(main())
