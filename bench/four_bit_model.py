#!/usr/bin/env python3
"""Write a Llama of the 110M shape (`110m` of the synthetic presets) whose matrices are random codes of 4 bits, to time what a quantised
checkpoint takes: its texts say nothing. Needs nothing but Python.

    python bench/four_bit_model.py awq /tmp/awq        # or gptq, w4a16
"""
import json
import pathlib
import random
import struct
import sys

LAYERS, HIDDEN, WIDTH, HEADS, VOCAB, GROUP = 12, 768, 2048, 12, 16_384, 128


def half(number, count):
    return struct.pack("<e", number) * count


def projections():
    for layer in range(LAYERS):
        place = f"model.layers.{layer}"
        for name in "qkvo":
            yield f"{place}.self_attn.{name}_proj", HIDDEN, HIDDEN
        for name in ("gate", "up"):
            yield f"{place}.mlp.{name}_proj", WIDTH, HIDDEN
        yield f"{place}.mlp.down_proj", HIDDEN, WIDTH


def tensors(layout, randomly):
    """Name, dtype, shape and bytes of each."""
    plain = struct.pack("<H", 0x3F80)  # 1 in bf16
    table = randomly.randbytes(VOCAB * HIDDEN)
    # Small numbers of either sign: bf16 with an exponent of 2^-7.
    yield "model.embed_tokens.weight", "BF16", [VOCAB, HIDDEN], b"".join(bytes((byte, 0x3C | byte & 0x80)) for byte in table)
    yield "model.norm.weight", "BF16", [HIDDEN], plain * HIDDEN
    for layer in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", "BF16", [HIDDEN], plain * HIDDEN
    for module, outputs, inputs in projections():
        groups, codes = inputs // GROUP, randomly.randbytes(outputs * inputs // 2)
        scales = half(0.004, outputs * groups)
        zeros = randomly.randbytes(outputs * groups // 2)
        if layout == "awq":
            yield f"{module}.qweight", "I32", [inputs, outputs // 8], codes
            yield f"{module}.qzeros", "I32", [groups, outputs // 8], zeros
            yield f"{module}.scales", "F16", [groups, outputs], scales
        elif layout == "gptq":
            yield f"{module}.qweight", "I32", [inputs // 8, outputs], codes
            yield f"{module}.qzeros", "I32", [groups, outputs // 8], zeros
            yield f"{module}.scales", "F16", [groups, outputs], scales
        else:
            yield f"{module}.weight_packed", "I32", [outputs, inputs // 8], codes
            yield f"{module}.weight_scale", "F16", [outputs, groups], scales
            yield f"{module}.weight_shape", "I64", [2], struct.pack("<qq", outputs, inputs)


def config(layout):
    of_layout = {
        "awq": dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm"),
        "gptq": dict(quant_method="gptq", bits=4, group_size=GROUP, desc_act=False, sym=False),
        "w4a16": dict(quant_method="compressed-tensors", format="pack-quantized", config_groups=dict(group_0=dict(targets=["Linear"], weights=dict(
            num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=True)))),
    }
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS,
                num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=WIDTH, max_position_embeddings=4096, rms_norm_eps=1e-5,
                bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, quantization_config=of_layout[layout])


def main():
    layout, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(layout)))
    header, data = {}, bytearray()
    for name, dtype, shape, numbers in tensors(layout, random.Random(1)):
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(numbers)])
        data += numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
