"""Train a model on the corpus by next-token prediction, within a given wall time.

    python train.py --data DIR --out DIR --size target --minutes 50

The learning rate follows the clock, not a step count: it warms up, stays, then falls linearly to
zero, so a run ends on time whatever else the machine does. The model is exported to --out every
few minutes and at the end, with its figures in --log (JSON lines).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import model as models

MUON_RATE, ADAM_RATE, DECAY = 0.02, 3e-3, 0.1


def orthogonal(g, steps=5):
    """Approximate the nearest orthogonal matrix by Newton-Schulz iterations."""
    x = g.bfloat16()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x if wide else x.T).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, for the matrices inside the layers."""

    def __init__(self, parameters, lr=MUON_RATE, momentum=0.95, weight_decay=DECAY):
        super().__init__(parameters, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def optimizers(net):
    matrices = [p for n, p in net.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in net.named_parameters() if p.dim() != 2 or "embed" in n]
    return [Muon(matrices), torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


def set_rates(opts, progress):
    """Warm up over the first hundredth, hold, and fall to zero from two fifths on."""
    factor = min(1.0, progress / 0.01 + 0.01, max(0.0, (1 - progress) / 0.6))
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = factor * group.setdefault("base", group["lr"])


def descend(loss, net, opts):
    """One step of every optimizer down the gradient of the loss, which is no longer than 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    for opt in opts:
        opt.step()
        opt.zero_grad()


def windows(tokens, length, seed=0):
    """Endless windows of length + 1 tokens; each pass shuffles the documents, then the windows."""
    rng = np.random.default_rng(seed)
    starts = np.append(np.flatnonzero(tokens == 0), len(tokens))
    while True:
        order = rng.permutation(len(starts) - 1)
        stream = np.concatenate([tokens[starts[i] : starts[i + 1]] for i in order])
        stream = stream[rng.integers(length) :]
        for i in rng.permutation((len(stream) - 1) // length):
            yield stream[i * length : (i + 1) * length + 1]


def batches(tokens, rows, length, seed=0):
    source = windows(tokens, length, seed)
    while True:
        batch = torch.from_numpy(np.stack([next(source) for _ in range(rows)]).astype(np.int64))
        yield batch[:, :-1], batch[:, 1:]


def cross_entropy(net, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(x)
    return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


@torch.no_grad()
def heldout_loss(net, tokens, length=512):
    """Mean loss in nats a token over the held-out documents, cut into windows."""
    count = (len(tokens) - 1) // length
    x = torch.from_numpy(tokens[: count * length + 1].astype(np.int64))
    pairs = zip(x[:-1].view(count, length).split(8), x[1:].view(count, length).split(8))
    return sum(cross_entropy(net, a, b).item() * len(a) for a, b in pairs) / count


class Run:
    """Clock, log and checkpoints of a training run."""

    def __init__(self, args, net, heldout):
        self.args, self.net, self.heldout = args, net, heldout
        self.begin = self.last = time.time()
        self.out = Path(args.out)
        Path(args.log).parent.mkdir(parents=True, exist_ok=True)
        self.log = open(args.log, "a")

    def minutes(self):
        return (time.time() - self.begin) / 60

    def progress(self):
        return self.minutes() / self.args.minutes

    def export(self):
        # A draft with a mask token stands beside one that has the tokenizer.
        self.net.export(self.out, Path(self.args.data) / "tokenizer" if self.net.mask_token is None else None)

    def measure(self):
        return {"heldout_loss": round(heldout_loss(self.net, self.heldout), 4)}

    def checkpoint(self, step, tokens, loss, final=False):
        if not final and time.time() - self.last < 60 * self.args.save_every:
            return
        self.last = time.time()
        self.export()
        line = {
            "step": step,
            "tokens": tokens,
            "minutes": round(self.minutes(), 1),
            "train_loss": round(loss, 4),
            **self.measure(),
        }
        print(json.dumps(line), file=self.log, flush=True)
        print(line, flush=True)


def arguments(description, size, minutes):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--size", choices=("target", "draft"), default=size)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--save-every", type=float, default=5, help="minutes between checkpoints")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--long", type=float, default=0.85, help="progress from which windows fill the context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser


def main():
    args = arguments(__doc__, "target", 50).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = models.Llama(getattr(models, args.size.upper()))
    opts = optimizers(net)
    train = np.load(Path(args.data) / "train.npy")
    run = Run(args, net, np.load(Path(args.data) / "heldout.npy"))
    print(f"{net.parameter_count()} parameters, {len(train)} training tokens", flush=True)

    step_loss = torch.compile(cross_entropy, dynamic=False) if args.compile else cross_entropy
    source = batches(train, args.rows, args.length)
    step = tokens = 0
    average, long = None, False
    while run.progress() < 1:
        if not long and run.progress() > args.long:
            full = net.shape.max_position_embeddings
            source = batches(train, args.rows * args.length // full, full, seed=1)
            long = True
        set_rates(opts, run.progress())
        x, y = next(source)
        loss = step_loss(net, x, y)
        descend(loss, net, opts)
        step, tokens = step + 1, tokens + x.numel()
        if step == 1:
            run.begin = time.time()  # compilation is not training
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if step % 20 == 0:
            rate = tokens / max(run.minutes(), 1e-9) / 60
            print(f"step {step} {run.minutes():.1f} min loss {average:.3f} {rate:.0f} tokens/s", flush=True)
        run.checkpoint(step, tokens, average)
    run.checkpoint(step, tokens, average, final=True)


if __name__ == "__main__":
    main()
