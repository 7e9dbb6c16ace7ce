#!/usr/bin/env python3
"""Writes gguf/model.gguf, a tiny random Llama in many formats of blocks, by the package gguf, and what it computes.

The blocks are random bytes with sensible scales; the package widens them, and the forward pass over the widened
weights is done here, in float32, as llama.cpp does it: neighbours of a head are turned, not its halves.

    pip install gguf==0.19.0 safetensors numpy && ./make_gguf.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 256, 2, 4, 2, 16, 64, 300
EPSILON, BASE, CONTEXT = 1e-5, 10_000.0, 64
TOKENS = np.array([1, 299, 17, 200, 3, 44, 260, 5, 120, 77, 9, 281], dtype=np.int64)
random = np.random.default_rng(20261125)

# Bytes of a block's scales in f16, and what the weights are to be like.
SCALES = {
    Type.Q8_0: ([0], 4e-4), Type.Q5_0: ([0], 3e-3), Type.Q4_0: ([0], 5e-3), Type.Q4_1: ([0, 2], 5e-3),
    Type.Q5_1: ([0, 2], 2e-3), Type.Q2_K: ([80, 82], 2e-3), Type.Q3_K: ([108], 5e-4), Type.Q4_K: ([0, 2], 1e-4),
    Type.Q5_K: ([0, 2], 5e-5), Type.Q6_K: ([208], 1e-5),
}


def blocks(rows, cols, kind):
    """Random blocks of this format, `rows` by bytes."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows * cols // numbers, size), dtype=np.uint8)
    places, scale = SCALES[kind]
    for sign, place in zip((1, -1), places):
        # A minimum of a K format is taken away, that of the others is added.
        sign = 1 if kind.name.endswith("_K") else sign
        factor = 8 if kind in (Type.Q4_1, Type.Q5_1) and place == 2 else 1
        scales = (sign * factor * scale * random.uniform(0.5, 1.5, len(data))).astype(np.float16)
        data[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return data.reshape(rows, -1)


def main():
    folder = Path(__file__).parent / "gguf"
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCAB)
    weights = {}

    def tensor(name, rows, cols, kind):
        data = blocks(rows, cols, kind)
        weights[name] = gguf.quants.dequantize(data, kind).astype(np.float32)
        writer.add_tensor(name, data, raw_dtype=kind)

    def norm(name):
        weights[name] = random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        writer.add_tensor(name, weights[name])

    tensor("token_embd.weight", VOCAB, HIDDEN, Type.Q6_K)
    tensor("output.weight", VOCAB, HIDDEN, Type.Q4_K)
    norm("output_norm.weight")
    kinds = [
        (Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q5_0, Type.Q3_K, Type.Q2_K, Type.Q4_0),
        (Type.Q5_K, Type.Q4_K, Type.Q8_0, Type.Q4_1, Type.Q6_K, Type.Q4_K, Type.Q5_1),
    ]
    for layer, (q, k, v, o, gate, up, down) in enumerate(kinds):
        place = f"blk.{layer}."
        norm(place + "attn_norm.weight")
        norm(place + "ffn_norm.weight")
        tensor(place + "attn_q.weight", HEADS * HEAD, HIDDEN, q)
        tensor(place + "attn_k.weight", KV_HEADS * HEAD, HIDDEN, k)
        tensor(place + "attn_v.weight", KV_HEADS * HEAD, HIDDEN, v)
        tensor(place + "attn_output.weight", HIDDEN, HEADS * HEAD, o)
        tensor(place + "ffn_gate.weight", INNER, HIDDEN, gate)
        tensor(place + "ffn_up.weight", INNER, HIDDEN, up)
        tensor(place + "ffn_down.weight", HIDDEN, INNER, down)
    vocabulary(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({"tokens": TOKENS, "logits": forward(weights)}, folder / "logits.safetensors")


def vocabulary(writer):
    """SentencePiece's: three marks, the bytes, and some pieces."""
    pieces = ["▁", "e", "t", "h", "a", "n", "th", "▁t", "▁th", "▁the", "he", "an", "▁a", "▁an", "er"]
    pieces += [chr(ord("A") + i) for i in range(26)]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(pieces)
    assert len(tokens) == VOCAB
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(pieces))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}")


def forward(weights):
    """The logits behind each token."""

    def normed(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weights[name]

    def turned(x):
        position = np.arange(len(TOKENS), dtype=np.float64)[:, None]
        angles = position * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        even, odd = x[..., ::2], x[..., 1::2]
        turned = np.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
        return turned.reshape(x.shape).astype(np.float32)

    x = weights["token_embd.weight"][TOKENS]
    count = len(TOKENS)
    hidden = np.triu(np.full((count, count), -np.inf, dtype=np.float32), 1)
    for layer in range(LAYERS):
        place = f"blk.{layer}."

        def linear(x, name):
            return x @ weights[f"{place}{name}.weight"].T

        y = normed(x, place + "attn_norm.weight")
        q = turned(linear(y, "attn_q").reshape(count, HEADS, HEAD))
        k = turned(linear(y, "attn_k").reshape(count, KV_HEADS, HEAD)).repeat(HEADS // KV_HEADS, 1)
        v = linear(y, "attn_v").reshape(count, KV_HEADS, HEAD).repeat(HEADS // KV_HEADS, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD) + hidden
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", scores, v).reshape(count, -1), "attn_output")
        y = normed(x, place + "ffn_norm.weight")
        gate = linear(y, "ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(y, "ffn_up"), "ffn_down")
    return (normed(x, "output_norm.weight") @ weights["output.weight"].T).astype(np.float32)


if __name__ == "__main__":
    main()
