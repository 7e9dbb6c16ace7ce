"""Teach a head that reads the target's hidden states to propose step by step (EAGLE-3, arXiv:2503.01840).

    python eagle3.py --data DIR --target DIR --out DIR --log FILE

Row p of the head has the token p+1 and what entered three layers of the target at p; it says what follows that token.
From the second step on, the target's hidden states are not known, and a row has the head's own output of the step
before. So each step is taught on the outputs of the one before it, with the true tokens: every step learns the target's
distribution (Kullback-Leibler divergence, DIR/samples.npy and the corpus) among the tokens that the head knows.
"""

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import model as models
from distill import sample_batches
from train import Run, arguments, batches, set_rates

LAYERS = (2, 4, 5)  # of the target, whose input the head reads
VOCABULARY = 2048  # tokens that the head can propose
STEPS, STEP_WEIGHT = 4, 0.8  # steps taught, and how much less each counts than the one before
ADAM_RATE = 2e-3


class Taps:
    """What enters some layers of the target: that of the latest pass, and the place of its first row."""

    def __init__(self, target, layers=LAYERS):
        self.layers, self.seen, self.start = layers, {}, 0
        for k in layers:
            target.layers[k].register_forward_pre_hook(lambda _, inputs, k=k: self.see(k, *inputs))

    def see(self, k, x, cos, sin, cache=None, start=0, mask=None):
        self.seen[k], self.start = x, start

    def rows(self):
        return torch.cat([self.seen[k] for k in self.layers], -1)


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


def rotate_heads(x, cos, sin):
    return models.rotate(x, cos.to(x.dtype), sin.to(x.dtype))


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


class Head(nn.Module):
    """The head in SafeAILab's layout; the embedding is the target's and not among its weights."""

    def __init__(self, target, ids):
        super().__init__()
        s = self.shape = target.shape
        self.borrowed = [target]  # in a list, so that its weights are not the head's
        self.fc = nn.Linear(len(LAYERS) * s.hidden_size, s.hidden_size, bias=False)
        self.midlayer = Layer(s)
        self.norm = models.RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.lm_head = nn.Linear(s.hidden_size, len(ids), bias=False)
        self.register_buffer("ids", ids)

    def begin(self):
        """Start as the target's last layer over the last of the taps."""
        target, hidden = self.borrowed[0], self.shape.hidden_size
        last = target.layers[-1]
        with torch.no_grad():
            self.fc.weight.mul_(0.1)[:, -hidden:] += torch.eye(hidden)
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(self.midlayer.self_attn, name).weight
                weight[:, :hidden] *= 0.5
                weight[:, hidden:] = getattr(last.self_attn, name).weight
            self.midlayer.hidden_norm.weight.copy_(last.input_layernorm.weight)
            self.midlayer.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
            self.midlayer.post_attention_layernorm.load_state_dict(last.post_attention_layernorm.state_dict())
            self.midlayer.mlp.load_state_dict(last.mlp.state_dict())
            self.norm.load_state_dict(target.norm.state_dict())
            self.lm_head.weight.copy_(target.embed_tokens.weight[self.ids])

    def step(self, tokens, hidden, positions, past, mask=None):
        """Output of rows whose first step is `past[0]`; the next step takes it for `hidden`."""
        target = self.borrowed[0]
        embedded = target.embed_tokens(tokens)
        return self.midlayer(embedded, hidden, target.cos[positions], target.sin[positions], past, mask)

    def logits(self, hidden):
        return self.lm_head(self.norm(hidden))

    def parameter_count(self):
        return sum(p.numel() for p in self.parameters())

    def export(self, directory):
        """Write the head in bf16, with the offset from each of its tokens to the target's."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **asdict(self.shape),
            "num_hidden_layers": 1,
            "draft_vocab_size": len(self.ids),
            "eagle_aux_hidden_state_layer_ids": list(LAYERS),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        weights = {n: p.detach().to(torch.bfloat16).contiguous() for n, p in self.named_parameters()}
        weights["d2t"] = self.ids - torch.arange(len(self.ids))
        save_file(weights, directory / "model.safetensors.part", metadata={"format": "pt"})
        (directory / "model.safetensors.part").chmod(0o644)
        (directory / "model.safetensors.part").replace(directory / "model.safetensors")


def load(directory, target):
    """Load an exported head; its target lends it the embedding."""
    weights = load_file(Path(directory) / "model.safetensors")
    offsets = weights.pop("d2t")
    head = Head(target, offsets + torch.arange(len(offsets)))
    head.load_state_dict({"ids": head.ids, **weights})
    head.taps = Taps(target)
    return head.eval()


def frequent(samples, corpus):
    """The most frequent tokens of the texts, which are taught in two parts of samples and one of the corpus."""
    share = lambda tokens: np.bincount(tokens.ravel(), minlength=models.TARGET.vocab_size) / tokens.size
    ids = np.sort(np.argsort(-(2 * share(samples) + share(corpus)))[:VOCABULARY])
    known = np.isin(samples, ids).mean()
    print(f"{VOCABULARY} tokens make up {known:.3f} of the target's text", flush=True)
    return torch.from_numpy(ids)


def learn(head, target, taps, x):
    """Weighted divergence over the steps; of each its divergence, and how often its best token is the target's."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = target(x)
        features = taps.rows()
    said = said.float()
    best = said.argmax(-1)
    # What the head cannot say has no row of its own: the rest of the distribution is taught as it is.
    teacher = (said - said.logsumexp(-1, keepdim=True))[..., head.ids]
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


class HeadRun(Run):
    """By the clock of the processor, which stands still while other programs run, and within a time on the wall."""

    def minutes(self):
        return time.process_time() / 60

    def progress(self):
        return max(super().progress(), (time.time() - self.begin) / 60 / self.args.wall)

    def export(self):
        self.net.export(self.out)

    def measure(self):
        taps, (target,) = Taps(self.net.borrowed[0]), self.net.borrowed
        x = torch.from_numpy(self.heldout[: 16 * 512].astype(np.int64)).view(16, 512)
        with torch.no_grad():
            figures = np.mean([learn(self.net, target, taps, part)[1] for part in x.split(4)], 0)
        return {"heldout_divergence": figures[:, 0].round(3).tolist(), "heldout_same": figures[:, 1].round(3).tolist()}


def main():
    parser = arguments(__doc__, "target", 18)
    parser.add_argument("--target", required=True)
    parser.add_argument("--wall", type=float, default=60, help="minutes on the wall in which it ends at the latest")
    parser.set_defaults(length=256, rows=4)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    train = np.load(Path(args.data) / "train.npy")
    samples = np.load(Path(args.data) / "samples.npy")
    target = models.load(args.target)
    taps = Taps(target)
    head = Head(target, frequent(samples, train))
    head.begin()
    opt = torch.optim.AdamW(head.parameters(), lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    run = HeadRun(args, head, np.load(Path(args.data) / "heldout.npy"))
    print(f"{head.parameter_count()} parameters, {samples.size} tokens of the target's text", flush=True)

    rows = args.rows * args.length // samples.shape[1]
    corpus, written = batches(train, args.rows, args.length, seed=4), sample_batches(samples, rows)
    step = tokens = 0
    average = seen = None
    while run.progress() < 1:
        set_rates([opt], run.progress())
        # Two batches of the target's own text to each batch of the corpus.
        x = next(written) if step % 3 else next(corpus)[0]
        loss, figures = learn(head, target, taps, x)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        step, tokens = step + 1, tokens + x.numel()
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        seen = figures if seen is None else 0.98 * seen + 0.02 * figures
        if step % 50 == 0:
            rate = tokens / run.minutes() / 60
            places = " ".join(f"{d:.2f}/{s:.2f}" for d, s in seen)
            line = f"step {step} {run.minutes():.1f} min loss {average:.3f} divergence/same by place {places}"
            print(f"{line} {rate:.0f} tokens/s", flush=True)
        run.checkpoint(step, tokens, average)
    run.checkpoint(step, tokens, average, final=True)


if __name__ == "__main__":
    main()
