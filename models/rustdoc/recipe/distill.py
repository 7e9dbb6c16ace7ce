"""Distil the target into the draft.

    python distill.py --data DIR --target DIR --out DIR [--start DIR]

The draft learns the target's distribution (Kullback-Leibler divergence from the target) on texts
that the target wrote (DIR/samples.npy, from samples.py) and on the corpus itself.
"""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import model as models
from train import Run, arguments, batches, descend, optimizers, set_rates


def sample_batches(samples, rows, seed=0):
    """Endless batches of the target's own texts, shuffled in each pass."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(samples))
        for i in range(0, len(order) - rows + 1, rows):
            yield torch.from_numpy(samples[order[i : i + rows]].astype(np.int64))


def divergence(draft, target_logits, x):
    with torch.autocast("cpu", torch.bfloat16):
        logits = draft(x)
    student = F.log_softmax(logits.float().flatten(0, 1), -1)
    teacher = F.log_softmax(target_logits.float().flatten(0, 1), -1)
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean")


def teacher_logits(target, x):
    with torch.autocast("cpu", torch.bfloat16):
        return target(x)


def main():
    parser = arguments(__doc__, "draft", 15)
    parser.add_argument("--target", required=True)
    parser.add_argument("--start", help="directory of a draft to start from")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    train = np.load(Path(args.data) / "train.npy")

    samples = np.load(Path(args.data) / "samples.npy")
    target = models.load(args.target)
    draft = models.load(args.start).train() if args.start else models.Llama(models.DRAFT)
    opts = optimizers(draft)
    run = Run(args, draft, np.load(Path(args.data) / "heldout.npy"))
    print(f"{draft.parameter_count()} parameters, {samples.size} tokens of the target's text", flush=True)
    teach = torch.compile(teacher_logits, dynamic=False) if args.compile else teacher_logits
    learn = torch.compile(divergence, dynamic=False) if args.compile else divergence

    rows = args.rows * args.length // samples.shape[1]
    corpus, written = batches(train, args.rows, args.length), sample_batches(samples, rows)
    step = tokens = 0
    average = None
    while run.progress() < 1:
        set_rates(opts, run.progress())
        # Two batches of the target's own text to each batch of the corpus.
        x = next(written) if step % 3 else next(corpus)[0]
        with torch.no_grad():
            logits = teach(target, x)
        loss = learn(draft, logits, x)
        descend(loss, draft, opts)
        step, tokens = step + 1, tokens + x.numel()
        if step == 3:
            run.begin = time.time()  # both shapes are compiled now
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if step % 50 == 0:
            rate = tokens / max(run.minutes(), 1e-9) / 60
            print(f"step {step} {run.minutes():.1f} min divergence {average:.3f} {rate:.0f} tokens/s", flush=True)
        run.checkpoint(step, tokens, average)
    run.checkpoint(step, tokens, average, final=True)


if __name__ == "__main__":
    main()
