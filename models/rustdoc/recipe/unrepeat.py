"""Teach the target not to repeat itself (unlikelihood training, Welleck et al. 2019).

    python unrepeat.py --data DIR --start DIR --out DIR --log FILE

A small model decoded greedily soon loops. Here each step learns from the corpus as before and, on
text that the model wrote itself, makes less likely every token that ends a run of words the text
already contains. Reads the model's own text from DIR/samples.npy (samples.py).

What comes out is an average of the weights before and after (0.4 of the way by default): nearly
all of the held-out loss that the lesson costs comes back, and most of what it teaches stays.
"""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import model as models
from distill import sample_batches
from train import Run, arguments, batches, cross_entropy, optimizers

RUN = 5  # tokens that must agree with an earlier place for the last of them to count as repeated
MIN_DISTINCT = 3  # runs of fewer distinct tokens, such as indentation, are left alone
WEIGHT = 0.5


def repeated(x):
    """For each token but the first, whether it ends a run of RUN tokens seen earlier in its row."""
    marks = np.zeros((x.shape[0], x.shape[1] - 1), dtype=np.float32)
    for row, tokens in enumerate(x.tolist()):
        seen = set()
        for end in range(RUN, len(tokens) + 1):
            run = tuple(tokens[end - RUN : end])
            if run in seen and len(set(run)) >= MIN_DISTINCT:
                marks[row, end - 2] = 1
            seen.add(run)
    return torch.from_numpy(marks)


def unlikelihood(net, x, marks):
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(x[:, :-1])
    chosen = -F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten(), reduction="none")
    penalty = -torch.log1p(-chosen.exp().clamp_max(0.999))
    return (penalty * marks.flatten()).sum() / marks.numel()


def main():
    parser = arguments(__doc__, "target", 8)
    parser.add_argument("--start", required=True)
    parser.add_argument("--rate", type=float, default=0.15, help="learning rate as a part of that of training")
    parser.add_argument("--share", type=float, default=0.4, help="part of the way from the old weights to the new")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = models.load(args.start).train()
    opts = optimizers(net)
    run = Run(args, net, np.load(Path(args.data) / "heldout.npy"))
    samples = np.load(Path(args.data) / "samples.npy")
    learn = torch.compile(cross_entropy, dynamic=False) if args.compile else cross_entropy
    unlearn = torch.compile(unlikelihood, dynamic=False) if args.compile else unlikelihood

    corpus = batches(np.load(Path(args.data) / "train.npy"), args.rows, args.length, seed=2)
    written = sample_batches(samples, args.rows * args.length // samples.shape[1])
    step = tokens = 0
    average = share = None
    while run.progress() < 1:
        factor = args.rate * min(1, (step + 1) / 10, max(0, (1 - run.progress()) / 0.5))
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = factor * group.setdefault("base", group["lr"])
        x, y = next(corpus)
        loss = learn(net, x, y)
        loss.backward()
        text = next(written)
        marks = repeated(text)
        penalty = WEIGHT * unlearn(net, text, marks) / marks.mean().clamp_min(0.01)
        penalty.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        step, tokens = step + 1, tokens + x.numel() + text.numel()
        if step == 1:
            run.begin = run.last = time.time()  # compilation is not training
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        share = penalty.item() if share is None else 0.95 * share + 0.05 * penalty.item()
        if step % 10 == 0:
            print(f"step {step} {run.minutes():.1f} min loss {average:.3f} repetition {share:.3f}", flush=True)
        run.checkpoint(step, tokens, average)
    before = models.load(args.start)
    with torch.no_grad():
        for new, old in zip(net.parameters(), before.parameters()):
            new.lerp_(old, 1 - args.share)
    run.checkpoint(step, tokens, average, final=True)


if __name__ == "__main__":
    main()
