#!/usr/bin/env python3
"""Make checkpoints whose matrices are quantised, each in another layout, with the logits that transformers computes in float32 from the
numbers that their codes stand for. Codes are packed, and read again, as the layouts' own projects describe them; what compressed-tensors
packs is packed by that package.

    pip install torch transformers safetensors compressed-tensors
    python make_quantised.py         # writes the folders quantised-* beside this file
"""
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file

from make_golden import PROMPT_LENGTH, VOCAB, randomize

HERE = pathlib.Path(__file__).parent
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GROUP = 16


def words(numbers):
    """The last dimension, eight numbers of 4 bits or four of 8, the first in the lowest bits, as one i32."""
    bits = 32 // numbers.shape[-1]
    shifted = numbers.long() << (bits * torch.arange(numbers.shape[-1]))
    whole = shifted.sum(-1)
    return (whole - ((whole >> 31) << 32)).to(torch.int32)


def affine(weight, bits, group, symmetric):
    """Codes from 0 on, with scales and zero points of groups of inputs: `[outputs, inputs]`, `[outputs, groups]`."""
    parts = weight.reshape(weight.shape[0], -1, group)
    levels = 2**bits - 1
    if symmetric:
        scales = (parts.abs().amax(-1) / (levels // 2)).half()
        zeros = torch.full(scales.shape, 2 ** (bits - 1))
    else:
        low, high = parts.amin(-1).clamp(max=0.0), parts.amax(-1).clamp(min=0.0)
        scales = ((high - low) / levels).half()
        zeros = (-low / scales.float()).round().long().clamp(0, levels)
    codes = (parts / scales.float()[..., None] + zeros[..., None]).round().long().clamp(0, levels)
    dense = (codes - zeros[..., None]).float() * scales.float()[..., None]
    return codes.reshape(weight.shape), scales, zeros, dense.reshape(weight.shape)


def awq(weight):
    codes, scales, zeros, dense = affine(weight, 4, GROUP, False)
    ordered = lambda numbers: words(numbers.t().reshape(numbers.shape[1], -1, 8)[..., AWQ_ORDER])
    return dict(qweight=ordered(codes), qzeros=ordered(zeros), scales=scales.t().contiguous()), dense


def gptq(bits, first_version, in_order):
    each = 32 // bits

    def of(weight):
        inputs = weight.shape[1]
        # With desc_act inputs of a group stand anywhere.
        order = torch.arange(inputs) if in_order else torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        codes, scales, zeros, dense = affine(weight[:, order], bits, GROUP, False)
        back = torch.argsort(order)
        codes, dense = codes[:, back], dense[:, back]
        stored = (zeros - 1) % 2**bits if first_version else zeros
        if first_version:
            # A zero point of 0 is stored as the largest number, and read as one more than it.
            dense = torch.where(zeros[:, back // GROUP] == 0, (codes - 2**bits).float() * scales.float()[:, back // GROUP], dense)
        packed = words(codes.t().reshape(-1, each, codes.shape[0]).transpose(1, 2))
        qzeros = words(stored.t().reshape(stored.shape[1], -1, each))
        return dict(qweight=packed, qzeros=qzeros, scales=scales.t().contiguous(), g_idx=(back // GROUP).to(torch.int32)), dense

    return of


def packed(symmetric):
    def of(weight):
        codes, scales, zeros, dense = affine(weight, 4, GROUP, symmetric)
        tensors = dict(weight_packed=pack_to_int32((codes - 8).to(torch.int8), 4), weight_scale=scales, weight_shape=torch.tensor(weight.shape))
        if not symmetric:
            tensors["weight_zero_point"] = pack_to_int32((zeros - 8).to(torch.int8), 4, packed_dim=0)
        return tensors, dense

    return of


def int8(weight):
    low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    scales = ((high - low) / 255).bfloat16()
    zeros = (-128 - low / scales.float()).round().clamp(-128, 127)
    codes = (weight / scales.float() + zeros).round().clamp(-128, 127)
    return dict(weight=codes.to(torch.int8), weight_scale=scales, weight_zero_point=zeros.to(torch.int8)), (codes - zeros) * scales.float()


def fp8(scale_of, name, dtype):
    """`scale_of` gives the scales, and the same for each number."""

    def of(weight):
        scales, each = scale_of(weight, dtype)
        codes = (weight / each).to(torch.float8_e4m3fn)
        return {"weight": codes, name: scales}, codes.float() * each

    return of


def by_tensor(weight, dtype):
    scale = (weight.abs().max() / 448).to(dtype)
    return scale.reshape(1), scale.float()


def by_channel(weight, dtype):
    scales = (weight.abs().amax(1, keepdim=True) / 448).to(dtype)
    return scales, scales.float()


def by_block(rows, columns):
    def of(weight, dtype):
        row_blocks, column_blocks = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
        scales = torch.zeros(row_blocks, column_blocks)
        for row in range(row_blocks):
            for column in range(column_blocks):
                block = weight[row * rows:(row + 1) * rows, column * columns:(column + 1) * columns]
                scales[row, column] = block.abs().max() / 448
        scales = scales.to(dtype)
        each = scales.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return scales, each[:weight.shape[0], :weight.shape[1]]

    return of


def compressed(form, **weights):
    return dict(quant_method="compressed-tensors", format=form, ignore=["lm_head"], quantization_status="compressed", kv_cache_scheme=None,
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=None, output_activations=None)))


# name: (what quantises a matrix, quantization_config)
LAYOUTS = {
    "awq": (awq, dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm", modules_to_not_convert=None)),
    "gptq": (gptq(4, True, False), dict(quant_method="gptq", bits=4, group_size=GROUP, desc_act=True, sym=False, checkpoint_format="gptq")),
    "gptq-8-bits-v2": (gptq(8, False, True), dict(quant_method="gptq", bits=8, group_size=GROUP, desc_act=False, checkpoint_format="gptq_v2")),
    "w4a16": (packed(True), compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=True)),
    "w4a16-zero-points": (packed(False), compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=False)),
    "w8a8": (int8, compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False)),
    "fp8-tensor": (fp8(by_tensor, "weight_scale", torch.float32), compressed("float-quantized", num_bits=8, type="float", strategy="tensor")),
    "fp8-channel": (fp8(by_channel, "weight_scale", torch.bfloat16), compressed("float-quantized", num_bits=8, type="float", strategy="channel")),
    # As 128 x 128 of larger ones: some blocks are no whole ones.
    "fp8-blocks": (fp8(by_block(24, 20), "weight_scale_inv", torch.float32),
                   dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[24, 20])),
    "awq-mixtral": (awq, dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm", modules_to_not_convert=["gate"])),
}


# Of Mixtral's experts.
MATRICES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")


def make(seed, name, quantise, section):
    folder = HERE / f"quantised-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    experts = dict(num_local_experts=4, num_experts_per_tok=2) if "mixtral" in name else {}
    Config, Model = (transformers.MixtralConfig, transformers.MixtralForCausalLM) if experts else (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)
    config = Config(
        vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, num_hidden_layers=1,
        max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, attn_implementation="eager", **experts)
    model = Model(config).eval()
    randomize(model, generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    plain = load_file(folder / "model.safetensors")
    stored, dense = {}, {}
    for tensor, weight in plain.items():
        if tensor.endswith(MATRICES):
            parts, numbers = quantise(weight.float())
            stored |= {f"{tensor.removesuffix('weight')}{part}": values.contiguous() for part, values in parts.items()}
            dense[tensor] = numbers
        else:
            stored[tensor], dense[tensor] = weight, weight.float()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(quantization_config=section), indent=2) + "\n")
    with tempfile.TemporaryDirectory() as widened:
        config.save_pretrained(widened)
        save_file(dense, pathlib.Path(widened) / "model.safetensors", metadata={"format": "pt"})
        model, info = Model.from_pretrained(widened, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.eval()
    tokens = torch.randint(0, VOCAB, (1, PROMPT_LENGTH), generator=generator)
    with torch.inference_mode():
        logits = model(tokens).logits[0]
    save_file({"tokens": tokens[0], "logits": logits.contiguous()}, folder / "expected.safetensors")
    off = max((dense[tensor] - plain[tensor].float()).abs().max().item() for tensor in dense)
    print(f"{folder.name:28} {sum(file.stat().st_size for file in folder.iterdir()):7} bytes, weights up to {off:.3f} off")


if __name__ == "__main__":
    for seed, (name, (quantise, section)) in enumerate(LAYOUTS.items(), start=100):
        make(seed, name, quantise, section)
