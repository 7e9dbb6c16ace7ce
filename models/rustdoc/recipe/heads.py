"""What recipes for heads share: what they read of the target, the tokens that they know, their training and their files."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import model as models
from distill import sample_batches
from train import Run, arguments, batches, set_rates

LAYERS = (2, 4, 5)  # of the target, whose input heads read
VOCABULARY = 2048  # tokens that a head can propose
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


def rotate_heads(x, cos, sin):
    return models.rotate(x, cos.to(x.dtype), sin.to(x.dtype))


class Head(nn.Module):
    """A head on the target's hidden states; the embedding is the target's and not among its weights."""

    depth = 1  # layers

    def __init__(self, target, ids, shape):
        super().__init__()
        self.shape = shape
        self.borrowed = [target]  # in a list, so that its weights are not the head's
        self.fc = nn.Linear(len(LAYERS) * shape.hidden_size, shape.hidden_size, bias=False)
        self.norm = models.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, len(ids), bias=False)
        self.register_buffer("ids", ids)

    def begin(self):
        """Fuse the last of the taps, mostly, and say what the target's own head does."""
        target, hidden = self.borrowed[0], self.shape.hidden_size
        with torch.no_grad():
            self.fc.weight.mul_(0.1)[:, -hidden:] += torch.eye(hidden)
            self.norm.load_state_dict(target.norm.state_dict())
            self.lm_head.weight.copy_(target.embed_tokens.weight[self.ids])

    def parameter_count(self):
        return sum(p.numel() for p in self.parameters())

    def config(self):
        """What of config.json is this head's own."""
        raise NotImplementedError

    def export(self, directory):
        """Write the head in bf16, with the offset from each of its tokens to the target's."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        own = {
            **asdict(self.shape),
            "num_hidden_layers": self.depth,
            "draft_vocab_size": len(self.ids),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        (directory / "config.json").write_text(json.dumps(self.config() | own, indent=2) + "\n")
        weights = {n: p.detach().to(torch.bfloat16).contiguous() for n, p in self.named_parameters()}
        weights["d2t"] = self.ids - torch.arange(len(self.ids))
        save_file(weights, directory / "model.safetensors.part", metadata={"format": "pt"})
        (directory / "model.safetensors.part").chmod(0o644)
        (directory / "model.safetensors.part").replace(directory / "model.safetensors")


def load(kind, directory, target):
    """Load an exported head; its target lends it the embedding."""
    weights = load_file(Path(directory) / "model.safetensors")
    offsets = weights.pop("d2t")
    head = kind(target, offsets + torch.arange(len(offsets)))
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


def listen(head, target, taps, x):
    """What the target says of the head's tokens (logarithms), which is its best in each place, and its taps."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = target(x)
        features = taps.rows()
    said = said.float()
    # What the head cannot say has no row of its own: the rest of the distribution is taught as it is.
    return (said - said.logsumexp(-1, keepdim=True))[..., head.ids], said.argmax(-1), features


class HeadRun(Run):
    """By the clock of the processor, which stands still while other programs run, and within a time on the wall."""

    def __init__(self, args, net, learn):
        super().__init__(args, net, np.load(Path(args.data) / "heldout.npy"))
        self.learn = learn

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
            figures = np.mean([self.learn(self.net, target, taps, part)[1] for part in x.split(4)], 0)
        return {"heldout_divergence": figures[:, 0].round(3).tolist(), "heldout_same": figures[:, 1].round(3).tolist()}


def train(kind, learn, description, minutes):
    """Train a head of `kind`: `learn` gives the loss of texts, and by place the divergence and how often it is right."""
    parser = arguments(description, "target", minutes)
    parser.add_argument("--target", required=True)
    parser.add_argument("--wall", type=float, default=60, help="minutes on the wall in which it ends at the latest")
    parser.set_defaults(length=256, rows=4)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    corpus = np.load(Path(args.data) / "train.npy")
    samples = np.load(Path(args.data) / "samples.npy")
    target = models.load(args.target)
    taps = Taps(target)
    head = kind(target, frequent(samples, corpus))
    head.begin()
    opt = torch.optim.AdamW(head.parameters(), lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    run = HeadRun(args, head, learn)
    print(f"{head.parameter_count()} parameters, {samples.size} tokens of the target's text", flush=True)

    rows = args.rows * args.length // samples.shape[1]
    documents, written = batches(corpus, args.rows, args.length, seed=4), sample_batches(samples, rows)
    step = tokens = 0
    average = seen = None
    while run.progress() < 1:
        set_rates([opt], run.progress())
        # Two batches of the target's own text to each batch of the corpus.
        x = next(written) if step % 3 else next(documents)[0]
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
