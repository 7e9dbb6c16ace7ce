"""Teach a head that reads the target's hidden states to propose a block in one pass (DSpark, in DeepSpec's layout).

    python dspark.py --data DIR --target DIR --out DIR --log FILE

What entered three layers of the target is fused: those are the keys and values of the text. A block is the last known
token, its anchor, and mask tokens behind it; its rows see the text before the anchor and one another. Row k says what
follows the token k places behind the anchor, knowing of the tokens between by a bias alone: a table of few columns
has, for the token before, what comes after it (the Markov head). Every row learns the target's distribution there
(Kullback-Leibler divergence, DIR/samples.npy and the corpus) with the true token before it; later rows count less. A
confidence head learns how much of both distributions is common.
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import heads
import model as models
from heads import LAYERS, listen, rotate_heads

BLOCK = 6  # rows, and so proposals, of a block
ANCHORS = 48  # blocks taught in each text
DEPTH = 2  # layers: one alone finds in the text what a block needs of it, but has nothing behind that to use it
INTERMEDIATE = 256  # of a layer's MLP, narrower than the target's, so that two layers are as large as one of its
RANK = 32  # columns of the Markov head
WEIGHT = 0.85  # how much less a row counts than the one before
MASK = 7427  # no text has this token: tokenizer.py takes out the merge that makes it


class Attention(models.Attention):
    """Rows of blocks see the features of the text before their anchors, and their block."""

    def __init__(self, s):
        super().__init__(s)
        self.q_norm = models.RMSNorm(s.head_dim, s.rms_norm_eps)
        self.k_norm = models.RMSNorm(s.head_dim, s.rms_norm_eps)

    def split(self, x, project):
        return project(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def keys(self, x, cos, sin):
        groups = self.heads // self.kv_heads
        k = rotate_heads(self.k_norm(self.split(x, self.k_proj)), cos, sin)
        return k.repeat_interleave(groups, 1), self.split(x, self.v_proj).repeat_interleave(groups, 1)

    def forward(self, x, features, of_rows, of_text, mask):
        b, n, _ = x.shape
        q = rotate_heads(self.q_norm(self.split(x, self.q_proj)), *of_rows)
        (k, v), (text_k, text_v) = self.keys(x, *of_rows), self.keys(features, *of_text)
        blocks = lambda y: y.reshape(b, self.heads, n // BLOCK, BLOCK, self.head_dim)
        own = (blocks(q) @ blocks(k).transpose(3, 4)).reshape(b, self.heads, n, BLOCK)
        score = (q @ text_k.transpose(2, 3)).masked_fill(~mask, float("-inf"))
        share = (torch.cat((score, own), -1).float() * self.head_dim**-0.5).softmax(-1).to(v.dtype)
        own = share[..., -BLOCK:].reshape(b, self.heads, n // BLOCK, BLOCK, BLOCK) @ blocks(v)
        y = share[..., :-BLOCK] @ text_v + own.reshape(b, self.heads, n, -1)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = models.Mlp(s)

    def forward(self, x, features, of_rows, of_text, mask):
        x = x + self.self_attn(self.input_layernorm(x), features, of_rows, of_text, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Markov(nn.Module):
    def __init__(self, vocabulary, known):
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, RANK)
        self.markov_w2 = nn.Linear(RANK, known, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.1)
        nn.init.normal_(self.markov_w2.weight, std=0.1)


class Confidence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 1)


class Head(heads.Head):
    """The head in DeepSpec's layout."""

    depth = DEPTH

    def __init__(self, target, ids):
        super().__init__(target, ids, replace(target.shape, intermediate_size=INTERMEDIATE))
        s = self.shape
        self.hidden_norm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(s) for _ in range(DEPTH))
        self.markov_head = Markov(s.vocab_size, len(ids))
        self.confidence_head = Confidence(s.hidden_size + RANK)

    def begin(self):
        """Start with the attention of the target's last layers."""
        super().begin()
        of_target = self.borrowed[0].layers[-DEPTH:]
        self.hidden_norm.load_state_dict(of_target[-1].input_layernorm.state_dict())
        for own, theirs in zip(self.layers, of_target):
            own.self_attn.load_state_dict(theirs.self_attn.state_dict(), strict=False)
            own.input_layernorm.load_state_dict(theirs.input_layernorm.state_dict())

    def fuse(self, taps):
        return self.hidden_norm(self.fc(taps))

    def block(self, features, anchors, places, mask):
        """Output of blocks [texts, blocks * BLOCK] of these anchors at these positions; `mask` is whom of the text each sees."""
        target = self.borrowed[0]
        tokens = torch.full((*anchors.shape, BLOCK), MASK)
        tokens[..., 0] = anchors
        at = (places[:, None] + torch.arange(BLOCK)).flatten()
        of_rows, of_text = ((target.cos[p], target.sin[p]) for p in (at, slice(0, features.shape[1])))
        x = target.embed_tokens(tokens.flatten(1))
        for layer in self.layers:
            x = layer(x, features, of_rows, of_text, mask)
        return self.norm(x)

    def config(self):
        return {
            "architectures": ["Qwen3DSparkModel"],
            "model_type": "qwen3",
            "target_layer_ids": [k - 1 for k in LAYERS],
            "mask_token_id": MASK,
            "block_size": BLOCK,
            "markov_rank": RANK,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }


def load(directory, target):
    """Load an exported head; its target lends it the embedding."""
    return heads.load(Head, directory, target)


def learn(head, target, taps, x):
    """Weighted divergence over the rows of blocks; of each its divergence, and how often its best token is the target's."""
    teacher, best, features = listen(head, target, taps, x)
    texts, length = x.shape
    rng = np.random.default_rng(int(x.sum()))
    # An anchor has a token before it, and tokens for all of its block behind it.
    places = torch.from_numpy(np.sort(rng.choice(np.arange(1, length - BLOCK), ANCHORS, replace=False)))
    mask = (torch.arange(length) < places[:, None]).repeat_interleave(BLOCK, 0)
    with torch.autocast("cpu", torch.bfloat16):
        out = head.block(head.fuse(features), x[:, places], places, mask)
        at = (places[:, None] + torch.arange(BLOCK)).flatten()
        before = head.markov_head.markov_w1(x[:, at])
        logits = head.lm_head(out) + head.markov_head.markov_w2(before)
        sure = head.confidence_head.proj(torch.cat((out, before), -1).detach())[..., 0]
    student = F.log_softmax(logits.float(), -1)
    wanted = teacher[:, at]
    shape = (texts, ANCHORS, BLOCK)
    divergence = (wanted.exp() * (wanted - student)).sum(-1).view(shape).mean((0, 1))
    common = torch.minimum(wanted.exp(), student.exp()).sum(-1).detach()
    doubt = F.binary_cross_entropy_with_logits(sure.float(), common.clamp(0, 1))
    loss = (divergence * WEIGHT ** torch.arange(BLOCK)).sum() + doubt
    same = (head.ids[student.argmax(-1)] == best[:, at]).float().view(shape).mean((0, 1))
    return loss, np.stack((divergence.detach().numpy(), same.numpy()), -1)


if __name__ == "__main__":
    heads.train(Head, learn, __doc__, 18)
