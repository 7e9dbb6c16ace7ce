"""A small Llama decoder with Hugging Face's parameter names, for training and sampling."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn


@dataclass
class Shape:
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 704
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


TARGET = Shape()
DRAFT = Shape(hidden_size=96, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
              head_dim=32, intermediate_size=256)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.num_attention_heads, s.num_key_value_heads, s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, self.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, self.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, self.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * s.head_dim, s.hidden_size, bias=False)

    def forward(self, x, cos, sin, cache=None, start=0, mask=None):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            cache[0][:, :, start : start + t], cache[1][:, :, start : start + t] = k, v
            k, v = cache[0][:, :, : start + t], cache[1][:, :, : start + t]
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        causal = mask is None and start == 0 and t > 1
        if mask is None and start and t > 1:
            mask = torch.ones(t, start + t, dtype=torch.bool).tril(start)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = Mlp(s)

    def forward(self, x, cos, sin, cache=None, start=0, mask=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, start, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Causal language model with tied input and output embeddings."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.mask_token = None  # stands for a token that is not known yet, of a draft made by pard.py
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        frequency = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angle = torch.outer(torch.arange(shape.max_position_embeddings).float(), frequency)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 0.02 if "embed" in name else 0.5 * p.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    scale /= (2 * shape.num_hidden_layers) ** 0.5
                nn.init.normal_(p, std=scale)

    def hidden(self, tokens, cache=None, start=0, positions=None, mask=None):
        """What the head reads. Rows that are not a plain text have `positions`, and a `mask` of whom each sees."""
        x = self.embed_tokens(tokens)
        if positions is None:
            positions = slice(start, start + tokens.shape[1])
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, cache[i] if cache else None, start, mask)
        return self.norm(x)

    def forward(self, tokens, cache=None, start=0):
        return F.linear(self.hidden(tokens, cache, start), self.embed_tokens.weight)

    def new_cache(self, batch, length):
        s, kind = self.shape, self.embed_tokens.weight
        make = lambda: torch.zeros(batch, s.num_key_value_heads, length, s.head_dim, dtype=kind.dtype)
        return [(make(), make()) for _ in self.layers]

    def parameter_count(self):
        return sum(p.numel() for p in self.parameters())

    def export(self, directory, tokenizer_directory=None):
        """Write a directory that Hugging Face transformers loads as LlamaForCausalLM, weights in bf16."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self.shape),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }
        if self.mask_token is not None:
            config |= {"spd_type": "pard", "pard_token": self.mask_token}
        generation = {"bos_token_id": 0, "eos_token_id": 1, "max_new_tokens": 256}
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        weights = {f"model.{n}": p.detach().to(torch.bfloat16).contiguous() for n, p in self.named_parameters()}
        save_file(weights, directory / "model.safetensors.part", metadata={"format": "pt"})
        (directory / "model.safetensors.part").chmod(0o644)
        (directory / "model.safetensors.part").replace(directory / "model.safetensors")
        if tokenizer_directory:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (directory / name).write_bytes((Path(tokenizer_directory) / name).read_bytes())


def load(directory, dtype=torch.float32):
    """Load an exported directory."""
    config = json.loads((Path(directory) / "config.json").read_text())
    model = Llama(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
    weights = load_file(Path(directory) / "model.safetensors")
    model.load_state_dict({n.removeprefix("model."): w for n, w in weights.items()})
    model.mask_token = config.get("pard_token")
    return model.to(dtype).eval()
