"""Teach a head that reads the target's hidden states to propose step by step (EAGLE-3, arXiv:2503.01840).

    python eagle3.py --data DIR --target DIR --out DIR --log FILE

Row p of the head has the token p+1 and what entered three layers of the target at p; it says what follows that token.
From the second step on, the target's hidden states are not known, and a row has the head's own output of the step
before. So each step is taught on the outputs of the one before it, with the true tokens: every step learns the target's
distribution (Kullback-Leibler divergence, DIR/samples.npy and the corpus) among the tokens that the head knows.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import heads
import model as models
from heads import LAYERS, listen, rotate_heads

STEPS, STEP_WEIGHT = 4, 0.8  # steps taught, and how much less each counts than the one before


class Attention(models.Attention):
    """Reads the embedding and the hidden state of a row; sees rows of the first step, and its own row in later ones."""

    def __init__(self, s):
        super().__init__(s)
        for name in ("q_proj", "k_proj", "v_proj"):
            width = getattr(self, name).out_features
            setattr(self, name, nn.Linear(2 * s.hidden_size, width, bias=False))

    def forward(self, x, cos, sin, past, mask):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        groups = self.heads // self.kv_heads
        k, v = rotate_heads(k, cos, sin).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        q = rotate_heads(q, cos, sin)
        past.append((k, v))
        (keys, values), later = past[0], past[1:]
        score = (q @ keys.transpose(2, 3)).float()
        if mask is not None:
            score = score.masked_fill(~mask, float("-inf"))
        own = [(q * k).sum(-1, keepdim=True).float() for k, _ in later]
        share = (torch.cat((score, *own), -1) * self.head_dim**-0.5).softmax(-1).to(v.dtype)
        y = share[..., : keys.shape[2]] @ values
        for i, (_, v) in enumerate(later):
            y = y + share[..., keys.shape[2] + i, None] * v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.hidden_norm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = models.Mlp(s)

    def forward(self, embedded, hidden, cos, sin, past, mask):
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        x = hidden + self.self_attn(x, cos, sin, past, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(heads.Head):
    """The head in SafeAILab's layout."""

    def __init__(self, target, ids):
        super().__init__(target, ids, target.shape)
        self.midlayer = Layer(self.shape)

    def begin(self):
        """Start as the target's last layer over the last of the taps."""
        super().begin()
        target, hidden = self.borrowed[0], self.shape.hidden_size
        last = target.layers[-1]
        with torch.no_grad():
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(self.midlayer.self_attn, name).weight
                weight[:, :hidden] *= 0.5
                weight[:, hidden:] = getattr(last.self_attn, name).weight
            self.midlayer.hidden_norm.weight.copy_(last.input_layernorm.weight)
            self.midlayer.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
            self.midlayer.post_attention_layernorm.load_state_dict(last.post_attention_layernorm.state_dict())
            self.midlayer.mlp.load_state_dict(last.mlp.state_dict())

    def step(self, tokens, hidden, positions, past, mask=None):
        """Output of rows whose first step is `past[0]`; the next step takes it for `hidden`."""
        target = self.borrowed[0]
        embedded = target.embed_tokens(tokens)
        return self.midlayer(embedded, hidden, target.cos[positions], target.sin[positions], past, mask)

    def logits(self, hidden):
        return self.lm_head(self.norm(hidden))

    def config(self):
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        }


def load(directory, target):
    """Load an exported head; its target lends it the embedding."""
    return heads.load(Head, directory, target)


def learn(head, target, taps, x):
    """Weighted divergence over the steps; of each its divergence, and how often its best token is the target's."""
    teacher, best, features = listen(head, target, taps, x)
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    past, total, figures = [], 0.0, []
    with torch.autocast("cpu", torch.bfloat16):
        hidden = head.fc(features)
    for i in range(STEPS):
        # Row p of step i has token p+1+i; rows at the end have none left.
        tokens = F.pad(x[:, 1 + i :], (0, 1 + i))
        positions = torch.arange(i, length + i)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = head.step(tokens, hidden, positions, past, mask)
            logits = head.logits(hidden[:, : length - 1 - i])
        student = F.log_softmax(logits.float(), -1)
        wanted = teacher[:, 1 + i :]
        divergence = (wanted.exp() * (wanted - student)).sum(-1).mean()
        total = total + STEP_WEIGHT**i * divergence
        same = (head.ids[student.argmax(-1)] == best[:, 1 + i :]).float().mean()
        figures.append((divergence.item(), same.item()))
    return total, np.array(figures)


if __name__ == "__main__":
    heads.train(Head, learn, __doc__, 18)
