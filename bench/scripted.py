#!/usr/bin/env python3
"""Makes a pair whose target writes a given text, at the cost of a model of its size: for workloads that no small model could do.

    python3 bench/scripted.py --distance N --out FOLDER [--right 0.75]

The target (Qwen2's layout, 8 layers of 512, some 25 M parameters beside the vocabulary) is made, not trained. Its first layer looks back by exactly N
positions: query and key are constants, from the biases, and rotary positions turn their product into a sharp peak there. What it
finds it carries to the LM head, which has the rows of all tokens exchanged by `cipher`. So a prompt that ends with the enciphered
text has the model write the text, and that text is nowhere to be copied from. The other layers have random weights and add nothing, for their
output projections are zero; they take the time that they take. The draft is the same, with 2 layers of 128, but that it writes another token in the place of some.

Needs numpy. Greedy decoding is meant; the tokenizer is the demo pair's.
"""
import argparse, json, math, os, shutil, struct
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENIZER = os.path.join(ROOT, "models/rustdoc/target")
VOCAB, HEAD, THETA = 8192, 64, 10000.0


def cipher(token):
    """The token that stands for this one in a prompt; its own inverse."""
    return (token + VOCAB // 2) % VOCAB


def bf16(values):
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")


def save(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(TOKENIZER, name), folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    header, at = {}, 0
    for name, values in tensors.items():
        size = 2 * values.size
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(bf16(values).tobytes())


def model(folder, distance, layers, hidden, heads, kv_heads, mlp, context, wrong=0.0, seed=1):
    """Writes one model; `wrong` is the part of the vocabulary in whose places it writes another token."""
    rng = np.random.default_rng(seed)
    width = kv_heads * HEAD
    random = lambda *shape: rng.standard_normal(shape, dtype=np.float32) * 0.02
    embedding = rng.choice(np.float32([-1, 1]), (VOCAB, hidden))
    # A key of ones, and a query that is it turned back: what is `distance` behind fits in every frequency.
    turns = distance * THETA ** (-np.arange(HEAD // 2) * 2 / HEAD)
    strength = math.sqrt(400)
    key = np.concatenate([np.ones(HEAD // 2), np.zeros(HEAD // 2)]) * strength
    query = np.concatenate([np.cos(turns), -np.sin(turns)]) * strength
    written = np.array([cipher(token) for token in range(VOCAB)])
    missed = rng.permutation(VOCAB)[: int(wrong * VOCAB)]
    written[missed] = np.roll(written[missed], 1)
    head = np.zeros((VOCAB, hidden), np.float32)
    head[:, :width] = embedding[written, :width] / 16
    tensors = {"model.embed_tokens.weight": embedding}
    for layer in range(layers):
        name, copies = f"model.layers.{layer}", layer == 0
        value, out = random(width, hidden), np.zeros((hidden, heads * HEAD), np.float32)
        if copies:
            value = np.eye(width, hidden, dtype=np.float32)
            for kv_head in range(kv_heads):
                first = kv_head * (heads // kv_heads) * HEAD
                rows = np.arange(HEAD)
                out[kv_head * HEAD + rows, first + rows] = 4
        for part, weight, bias in (
            ("q", np.zeros((heads * HEAD, hidden)) if copies else random(heads * HEAD, hidden), np.tile(query, heads)),
            ("k", np.zeros((width, hidden)) if copies else random(width, hidden), np.tile(key, kv_heads)),
            ("v", value, np.zeros(width)),
        ):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = np.float32(weight)
            tensors[f"{name}.self_attn.{part}_proj.bias"] = np.float32(bias if copies else 0 * bias)
        tensors[f"{name}.self_attn.o_proj.weight"] = out
        tensors[f"{name}.mlp.gate_proj.weight"] = random(mlp, hidden)
        tensors[f"{name}.mlp.up_proj.weight"] = random(mlp, hidden)
        tensors[f"{name}.mlp.down_proj.weight"] = np.zeros((hidden, mlp), np.float32)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = np.ones(hidden, np.float32)
    tensors["model.norm.weight"] = np.ones(hidden, np.float32)
    tensors["lm_head.weight"] = head
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": VOCAB, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": HEAD,
        "intermediate_size": mlp, "max_position_embeddings": context, "rope_theta": THETA, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_sliding_window": False,
    }
    save(folder, config, tensors)


def pair(folder, distance, context, right):
    """Writes FOLDER/target and FOLDER/draft; the draft is right in the places of `right` of all tokens."""
    model(f"{folder}/target", distance, 8, 512, 8, 4, 1536, context)
    model(f"{folder}/draft", distance, 2, 128, 2, 2, 384, context, wrong=1 - right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distance", type=int, required=True, help="tokens of the text, minus one")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--right", type=float, default=0.75, help="part of all tokens that the draft gets right")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    pair(args.out, args.distance, args.context, args.right)
