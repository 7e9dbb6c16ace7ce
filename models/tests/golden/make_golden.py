#!/usr/bin/env python3
"""Make the golden files: a tiny random checkpoint of each family, with the logits that Hugging Face transformers computes from it
in float32, and two small tokenizers with what the tokenizers library makes of some texts.

    pip install torch transformers safetensors tokenizers accelerate
    python make_golden.py            # writes the folders beside this file
    python make_golden.py NAME ...   # only these checkpoints

Everything is seeded; the same library versions write the same files.
"""
import json
import pathlib
import shutil
import sys

import jinja2
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
PROMPT_LENGTH = 29
VOCAB = 131  # not a multiple of any vector width

YARN = dict(rope_type="yarn", rope_theta=5000.0, factor=4.0, original_max_position_embeddings=16)
# One factor for each frequency of heads of 16, of which 12 turn.
LONG = dict(short_factor=[1.0, 1.1, 1.25, 1.5, 1.75, 2.0], long_factor=[1.0, 1.5, 2.5, 4.0, 6.0, 9.0])

LLAMA3 = dict(rope_type="llama3", rope_theta=5000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

# name: (class, config, dtype of the file, old rope keys, most bytes of a shard)
CASES = {
    "llama": ("Llama", dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=4, intermediate_size=56), "float32", True, None),
    "llama-gqa8-llama3-rope-tied": ("Llama", dict(
        hidden_size=64, num_attention_heads=8, num_key_value_heads=1, intermediate_size=48, tie_word_embeddings=True,
        rope_parameters=LLAMA3), "float32", False, None),
    "llama-llama3-rope-old-keys": ("Llama", dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=48, rope_parameters=LLAMA3), "bfloat16", True, None),
    "llama-linear-rope-biases": ("Llama", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, attention_bias=True, mlp_bias=True,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.5)), "float32", True, None),
    "mistral-sliding": ("Mistral", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, sliding_window=7), "float16", False, None),
    "mistral": ("Mistral", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, sliding_window=None), "float32", True, None),
    "qwen2-tied": ("Qwen2", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, tie_word_embeddings=True), "float32", True, None),
    "qwen2-some-layers-sliding": ("Qwen2", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=1, intermediate_size=40, use_sliding_window=True, sliding_window=5,
        max_window_layers=1), "bfloat16", False, None),
    "qwen3-sharded": ("Qwen3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48), "bfloat16", False, 24_000),
    "qwen3-tied": ("Qwen3", dict(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=4, head_dim=8, intermediate_size=40, tie_word_embeddings=True), "float32", False, None),
    "llama-scaling-beside-parameters": ("Llama", dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=48, rope_parameters=dict(rope_type="default", rope_theta=20000.0)),
        "bfloat16", False, None),
    "qwen2-tied-with-another-head": ("Qwen2", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, tie_word_embeddings=True), "bfloat16", False, None),
    "gemma2": ("Gemma2", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=48, query_pre_attn_scalar=5, sliding_window=7,
        attn_logit_softcapping=3.0, final_logit_softcapping=20.0, tie_word_embeddings=True, num_hidden_layers=3), "float32", False, None),
    "gemma2-biases-no-caps": ("Gemma2", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=8, intermediate_size=40, query_pre_attn_scalar=8, sliding_window=5,
        attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True, hidden_activation="gelu"), "bfloat16", False, None),
    "arcee": ("Arcee", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=56, mlp_bias=True), "float32", False, None),
    "gemma": ("Gemma", dict(
        hidden_size=36, num_attention_heads=2, num_key_value_heads=1, head_dim=20, intermediate_size=44, tie_word_embeddings=True,
        hidden_act="gelu"), "float32", False, None),
    "gemma3": ("Gemma3", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=48, query_pre_attn_scalar=5, sliding_window=7,
        tie_word_embeddings=True, num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=30000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=500.0))), "float32", False, None),
    "gemma3-older-keys": ("Gemma3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=8, intermediate_size=40, query_pre_attn_scalar=8, sliding_window=5,
        final_logit_softcapping=15.0, num_hidden_layers=4), "bfloat16", False, None),
    "qwen3-moe": ("Qwen3Moe", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, moe_intermediate_size=16, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True), "bfloat16", False, None),
    "qwen3-moe-stacked": ("Qwen3Moe", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, moe_intermediate_size=16, num_experts=6,
        num_experts_per_tok=6, decoder_sparse_step=2, attention_bias=True, use_sliding_window=True, sliding_window=6), "bfloat16", False, None),
    "mixtral": ("Mixtral", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2,
        router_jitter_noise=0.1), "bfloat16", True, None),
    "mixtral-sliding-stacked": ("Mixtral", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, num_local_experts=5, num_experts_per_tok=1,
        num_hidden_layers=1, sliding_window=7), "bfloat16", False, None),
    "qwen2-moe": ("Qwen2Moe", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, num_experts=7, num_experts_per_tok=2), "bfloat16", False, None),
    "qwen2-moe-some-layers-sliding": ("Qwen2Moe", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, qkv_bias=False, num_hidden_layers=4,
        use_sliding_window=True, sliding_window=5, max_window_layers=3, mlp_only_layers=[3]), "bfloat16", False, None),
    "llama-yarn": ("Llama", dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=40, rope_parameters=YARN), "bfloat16", True, None),
    "qwen3-yarn-all-keys": ("Qwen3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=40,
        rope_parameters=dict(YARN, factor=2.5, beta_fast=2.0, beta_slow=0.5, truncate=False, mscale=1.5, mscale_all_dim=0.5)), "bfloat16", False, None),
    "llama-dynamic": ("Llama", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40,
        rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=3.0)), "bfloat16", True, None),
    "phi3": ("Phi3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, sliding_window=9), "bfloat16", True, None),
    "phi3-longrope": ("Phi3", dict(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, tie_word_embeddings=True, num_hidden_layers=2,
        original_max_position_embeddings=16,
        rope_parameters=dict(rope_type="longrope", rope_theta=1000.0, partial_rotary_factor=0.75, **LONG)), "bfloat16", False, None),
    "olmo2": ("Olmo2", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48), "float32", False, None),
    "olmo2-biases": ("Olmo2", dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, intermediate_size=40, attention_bias=True), "bfloat16", True, None),
    "olmo3": ("Olmo3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, intermediate_size=40, sliding_window=7, num_hidden_layers=4,
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=700.0),
                             full_attention=dict(YARN, attention_factor=1.3))), "bfloat16", False, None),
    "smollm3": ("SmolLM3", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, tie_word_embeddings=True, num_hidden_layers=4),
        "bfloat16", False, None),
    "smollm3-sliding": ("SmolLM3", dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=40, num_hidden_layers=3, no_rope_layers=[0, 1, 0],
        use_sliding_window=True, sliding_window=5, attention_bias=True), "bfloat16", True, None),
    "glm4": ("Glm4", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=48), "float32", False, None),
    "glm4-no-biases": ("Glm4", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=40, attention_bias=False,
        rope_parameters=dict(rope_type="default", rope_theta=700.0, partial_rotary_factor=1.0)), "bfloat16", False, None),
    "granite": ("Granite", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40, attention_bias=True,
        embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=4.0, num_hidden_layers=3), "float32", False, None),
    "gpt-oss": ("GptOss", dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=24, num_local_experts=5, num_experts_per_tok=2,
        sliding_window=7, rope_parameters=dict(YARN, truncate=False)), "bfloat16", True, None),
    "gpt-oss-mxfp4": ("GptOss", dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=64, num_local_experts=3, num_experts_per_tok=1,
        sliding_window=5, rope_parameters=dict(YARN, truncate=False), layer_types=["full_attention", "sliding_attention"]), "bfloat16", False, None),
}
# Those that are saved as transformers 5 holds them.
STACKED = ["qwen3-moe-stacked", "mixtral-sliding-stacked"]


def extended(folder):
    """As somebody writes who extends a context by an older recipe."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = dict(rope_type="linear", factor=3.0, rope_theta=20000.0)
    path.write_text(json.dumps(config, indent=2) + "\n")


def another_head(folder):
    """A head of its own, though config.json says that it is the embedding."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(99))
    tensors["lm_head.weight"] = (embedding + 0.2 * noise).to(embedding.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def as_released(folder):
    """Gemma 3 as it is on the hub: bases at the top level, and a number for which layers slide."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ["rope_parameters", "layer_types", "_sliding_window_pattern"]:
        config.pop(key, None)
    config |= dict(rope_theta=20000.0, rope_local_base_freq=300.0, rope_scaling=dict(rope_type="linear", factor=8.0), sliding_window_pattern=2)
    path.write_text(json.dumps(config, indent=2) + "\n")


def mxfp4(folder):
    """Experts as gpt-oss is published: codes of 4 bits, the first of two in the lower ones, and a power of two for 32 inputs."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        # [experts, inputs, outputs]
        weight = tensors.pop(name).float().transpose(1, 2)
        blocks = weight.reshape(*weight.shape[:2], -1, 32)
        powers = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=1e-30))) - 2
        scaled = blocks / 2 ** powers[..., None]
        codes = (scaled.abs()[..., None] - values).abs().argmin(-1) + 8 * (scaled < 0)
        tensors[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        tensors[name + "_scales"] = (powers + 127).to(torch.uint8)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    path = folder / "config.json"
    section = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(quantization_config=section), indent=2) + "\n")


# What is done to a checkpoint once it is saved.
EDITS = {"llama-scaling-beside-parameters": extended, "qwen2-tied-with-another-head": another_head, "gemma3-older-keys": as_released,
         "gpt-oss-mxfp4": mxfp4}


def randomize(model, generator):
    """Weights that make every part count: unit gain, norm weights away from 1, biases away from 0."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("norm.weight", "layernorm.weight")):
            # Gemma stores them less 1.
            parameter.data = (0.0 if "Gemma" in type(model).__name__ else 1.0) + 0.3 * noise
        elif name.endswith("bias"):
            parameter.data = 0.5 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            parameter.data = noise * 0.5
        elif name.endswith("sinks"):
            parameter.data = noise
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            # Far enough apart that rounding does not choose other experts.
            parameter.data = noise * (4 / parameter.shape[1] ** 0.5)
        elif ".experts." in name:
            # [experts, outputs, inputs]
            parameter.data = noise * (1.5 / parameter.shape[2] ** 0.5)
        else:
            parameter.data = noise * (1.5 / parameter.shape[1] ** 0.5)


def prompt(model, generator):
    """Random tokens. Where there are experts, those whose routers are far from choosing others: what rounding changes is then no other choice."""
    config = model.config
    experts = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)
    active = getattr(config, "num_experts_per_tok", 0)
    if not experts or experts == active:
        return torch.randint(0, VOCAB, (1, PROMPT_LENGTH), generator=generator)
    tokens = torch.empty((1, 0), dtype=torch.int64)
    while tokens.shape[1] < PROMPT_LENGTH:
        longer = torch.cat([tokens, torch.randint(0, VOCAB, (1, 1), generator=generator)], dim=1)
        with torch.inference_mode():
            routers = model(longer, output_router_logits=True).router_logits
        # Of gpt-oss they are those of the active ones alone.
        last = [logits.reshape(-1, experts)[-1].sort(descending=True).values for logits in routers]
        if all(logits[active - 1] - logits[active] > 0.5 for logits in last):
            tokens = longer
    return tokens


def old_rope_keys(path):
    """config.json as transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_checkpoint(seed, name, family, options, dtype, old_keys, shard_bytes):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    options = {"num_hidden_layers": 2, "tie_word_embeddings": False, **options}
    kind = getattr(transformers, family + "ForCausalLM")
    config = kind.config_class(
        vocab_size=VOCAB, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, attn_implementation="eager", **options)
    model = kind(config).eval()
    randomize(model, generator)
    model.to(getattr(torch, dtype)).save_pretrained(
        folder, save_original_format=name not in STACKED, **(dict(max_shard_size=shard_bytes) if shard_bytes else {}))
    if old_keys:
        old_rope_keys(folder / "config.json")
    if name in EDITS:
        EDITS[name](folder)
    # What is stored is the model: read it back, and compute in float32.
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = prompt(model, generator)
    with torch.inference_mode():
        logits = model(tokens).logits[0]
        expected = {"tokens": tokens[0].to(torch.int64), "logits": logits.contiguous()}
        if (config.rope_parameters or {}).get("rope_type") == "longrope":
            # A text of no more than the original context has other factors.
            expected["short_logits"] = model(tokens[:, :config.original_max_position_embeddings]).logits[0].contiguous()
    save_file(expected, folder / "expected.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:32} {size:8} bytes, logits {logits.min():.2f} to {logits.max():.2f}, eager {model.config._attn_implementation}")


TEXTS = [
    "Hello, world!",
    " two  spaces, a tab\tand\nlines\r\n",
    "naïve café, straße, 3.14159",
    "日本語のテキスト、中文 and 한국어",
    "emoji 🦀🔥👩‍👩‍👧 done",
    "fn main() { println!(\"{}\", 1 << 4); }",
    "",
]
CORPUS = ["The quick brown fox jumps over the lazy dog. " * 4, "fn main() { println!(\"Hello, world!\"); }\n" * 4, "naïve café 日本 and more text"] * 3


def byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(["<tool é>"])  # an added token outside of the byte alphabet
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def sentencepiece():
    """The Llama 2 kind: spaces are written as U+2581, unknown characters fall back to bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)], show_progress=False))
    spec = json.loads(tokenizer.to_str())
    for token in spec["added_tokens"]:  # byte tokens are ordinary ones
        token["special"] = not token["content"].startswith("<0x")
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["special"]]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def make_tokenizer(name, tokenizer):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    texts = [dict(text=text, ids=tokenizer.encode(text).ids, decoded=tokenizer.decode(tokenizer.encode(text).ids)) for text in TEXTS]
    (folder / "expected.json").write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n")
    print(f"{name:32} {tokenizer.get_vocab_size()} tokens, {(folder / 'tokenizer.json').stat().st_size} bytes")


# Templates in the manner of the families, with what they use of Jinja and of Python's methods.
TEMPLATES = {
    "chatml": """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|end|>\\n\\nToday: " + date_string + "\\n" + system_message }}
{% for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "alternating": """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}
{% else %}
{{ ' ' + message['content'] + eos_token }}
{% endif %}
{% endfor %}
""",
    "python": """{% set ns = namespace(count=0, last=none) %}
{% for message in messages %}
    {% if message.content is string and message.content.startswith('  ') %}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {% set ns.last = message.role.upper() ~ message.content.split(' ')[-1] %}
{{ loop.index }}/{{ loop.length }} {{ message.content.replace('a', 'A') }} {{ message | tojson }}
{% endfor %}
{{ ns.count }} {{ ns.last }} {{ messages[::-1][0].content[:3] }} {{ {'k': ['<é>', 1.5, none, true]} | tojson }}
{{ messages | length }} {{ (messages | last).items() | list | length }}{{ messages[0] | tojson(indent=2) }}
""",
}
CONVERSATIONS = [
    [dict(role="user", content="  What is a trait?\n")],
    [dict(role="system", content=" Be brief. "), dict(role="user", content="naïve <b>&amp;</b> 'quoted'"),
     dict(role="assistant", content="An answer."), dict(role="user", content="and then 🦀?")],
    [dict(role="user", content="one"), dict(role="assistant", content="two a"), dict(role="user", content="three")],
    [dict(role="assistant", content="first")],
]


def make_chats():
    folder = HERE / "chat"
    shutil.rmtree(folder, ignore_errors=True)
    for name, template in TEMPLATES.items():
        cases = []
        for messages in CONVERSATIONS:
            for prompt in (False, True):
                try:
                    text = render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt,
                                                 bos_token="<s>", eos_token="</s>")[0][0]
                    cases.append(dict(messages=messages, add_generation_prompt=prompt, text=text))
                except jinja2.TemplateError as error:
                    cases.append(dict(messages=messages, add_generation_prompt=prompt, error=str(error)))
        (folder / name).mkdir(parents=True)
        (folder / name / "tokenizer_config.json").write_text(json.dumps(
            dict(bos_token="<s>", eos_token=dict(content="</s>", lstrip=False), chat_template=template), indent=1) + "\n")
        (folder / name / "expected.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
        print(f"chat/{name:27} {sum('error' in case for case in cases)} of {len(cases)} refused")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
    for seed, (name, case) in enumerate(CASES.items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make_checkpoint(seed, name, *case)
    if sys.argv[1:]:
        sys.exit()
    make_tokenizer("tokenizer-byte-level", byte_level())
    make_tokenizer("tokenizer-sentencepiece", sentencepiece())
    make_chats()
