#!/usr/bin/env python3
"""Writes a model of the demo pair as a GGUF file: to_gguf.py FOLDER FILE [--type F32|BF16|F16|Q8_0|Q4_0|Q4_K].

Matrices whose rows have no whole blocks are Q8_0 if those fit, and F32 if not; norms are F32. Rows of q and k are reordered as
llama.cpp's converter does it. Q4_K is rounded to the nearest here, for the package gguf writes no K formats: llama-quantize
searches for better scales.

    pip install gguf==0.19.0 safetensors numpy
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def tensors(path):
    """The tensors of a safetensors file in float32; bf16 is widened by its bits."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        data = raw[begin:end]
        if entry["dtype"] == "BF16":
            numbers = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        yield name, numbers.reshape(entry["shape"])


def their_name(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("model.layers.", "blk.")


def paired(rows, heads):
    """Rows of each head, those of its halves in turns."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def q4_k(x):
    """Super-blocks of 256: 8 scales and 8 minima of 6 bits, and 4 bits a number."""
    parts = x.reshape(-1, 8, 32)
    least = np.minimum(parts.min(-1), 0)
    scale = (parts.max(-1) - least) / 15
    d = (scale.max(-1) / 63).astype(np.float16).astype(np.float32)
    dmin = ((-least).max(-1) / 63).astype(np.float16).astype(np.float32)

    def part(of, unit):
        safe = np.where(unit > 0, unit, 1)[:, None]
        return np.clip(np.rint(of / safe), 0, 63).astype(np.uint8)

    small, small_least = part(scale, d), part(-least, dmin)
    step, offset = d[:, None] * small, dmin[:, None] * small_least
    numbers = (parts + offset[..., None]) / np.where(step > 0, step, 1)[..., None]
    numbers = np.clip(np.rint(numbers), 0, 15).astype(np.uint8)
    packed = np.zeros((len(parts), 12), np.uint8)
    packed[:, :4] = small[:, :4] | (small[:, 4:] >> 4 << 6)
    packed[:, 4:8] = small_least[:, :4] | (small_least[:, 4:] >> 4 << 6)
    packed[:, 8:] = (small[:, 4:] & 15) | ((small_least[:, 4:] & 15) << 4)
    pairs = numbers.reshape(-1, 4, 2, 32)
    halves = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128)
    scales = np.stack([d, dmin], -1).astype(np.float16).view(np.uint8).reshape(-1, 4)
    return np.concatenate([scales, packed, halves], -1).reshape(x.shape[0], -1)


def stored(x, kind):
    """The tensor's bytes, in the format that its rows allow."""
    if x.ndim == 1:
        return x, Type.F32
    for kind in (kind, Type.Q8_0):
        if x.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            return (q4_k(x) if kind == Type.Q4_K else gguf.quants.quantize(x, kind)), kind
    return x, Type.F32


def vocabulary(writer, folder):
    """Only what the demo's tokenizer is: bytes, split as GPT-2 splits words."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    assert tokenizer["pre_tokenizer"] == {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    ids = {id: token for token, id in model["vocab"].items()} | {token["id"]: token["content"] for token in added}
    marks = {token["id"] for token in added if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([ids[id] for id in range(len(ids))])
    writer.add_token_types([gguf.TokenType.CONTROL if id in marks else gguf.TokenType.NORMAL for id in range(len(ids))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_add_bos_token(True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if "chat_template" in config:
        writer.add_chat_template(config["chat_template"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", default="Q8_0", choices=["F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K"])
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    writer = gguf.GGUFWriter(args.file, "llama")
    writer.add_name(args.folder.resolve().name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    vocabulary(writer, args.folder)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, x in tensors(args.folder / "model.safetensors"):
        part = name.split(".")[-2]
        data, kind = stored(paired(x, heads[part]) if part in heads else x, Type[args.type])
        writer.add_tensor(their_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
