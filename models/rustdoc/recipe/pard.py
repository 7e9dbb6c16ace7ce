"""Teach a draft to propose all of a round in one pass (PARD, arXiv:2504.18583).

    python pard.py --data DIR --target DIR --start DIR --out DIR --log FILE

Behind a token of the text, its anchor, stand mask tokens in the places of those to come. Each sees
the text up to the anchor and the masks before it. Its row learns what the target says at its place,
knowing all of the text there (Kullback-Leibler divergence, DIR/samples.npy and the corpus), and a
little of the token that comes. The rows of the text itself go on learning the same, so that the
first proposal stays what it was. Fewer masks stand far behind their anchors than near them.
"""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import model as models
from distill import sample_batches, teacher_logits
from tokenizer import NEWLINE
from train import Run, arguments, batches, descend, optimizers, set_rates

K = 8  # proposals a pass: the anchor's own row and K - 1 masks
KEPT, LEAST = 0.7, 0.2  # of the anchors KEPT**d have a mask d places behind, but LEAST at least
DISTILLED = 0.9  # weight of the target's distribution; the rest is the token's
CHUNK = 512  # rows whose logits are held at once


class Divergence(torch.autograd.Function):
    """Mean loss of rows, and each row's divergence from the target, without the logits of all rows at once."""

    @staticmethod
    def forward(ctx, hidden, head, teacher, entropy, place, label):
        hidden, head = hidden.bfloat16(), head.bfloat16()
        d_hidden, d_head = torch.empty_like(hidden), torch.zeros(head.shape)
        divergence, loss = torch.empty(len(hidden)), 0.0
        for i in range(0, len(hidden), CHUNK):
            rows = slice(i, i + CHUNK)
            student = F.log_softmax((hidden[rows] @ head.T).float(), -1)
            wanted, token = teacher[place[rows]].float(), label[rows, None]
            divergence[rows] = -(wanted * student).sum(-1) - entropy[place[rows]]
            loss += DISTILLED * divergence[rows].sum() - (1 - DISTILLED) * student.gather(1, token).sum()
            gradient = student.exp_().sub_(wanted.mul_(DISTILLED))
            gradient.scatter_add_(1, token, torch.full(token.shape, DISTILLED - 1))
            gradient = gradient.bfloat16()
            d_hidden[rows] = gradient @ head
            d_head += gradient.T @ hidden[rows]
        ctx.save_for_backward(d_hidden.float() / len(hidden), d_head / len(hidden))
        ctx.mark_non_differentiable(divergence)
        return loss / len(hidden), divergence

    @staticmethod
    def backward(ctx, scale, _):
        d_hidden, d_head = ctx.saved_tensors
        return scale * d_hidden, scale * d_head, None, None, None, None


def chains(length, rng):
    """Anchor, position and depth of each row over `length` tokens: first those of the text, then masks."""
    text = np.arange(length)
    anchors = length - K + 1
    kept = np.maximum(KEPT ** np.arange(1, K), LEAST)
    depths = ((rng.permutation(anchors)[:, None] + 0.5) / anchors < kept).sum(1)  # the same number of rows every time
    anchor = np.repeat(text[:anchors], depths)
    depth = np.concatenate([np.arange(1, d + 1) for d in depths])
    rows = [(text, anchor), (text, anchor + depth), (np.zeros_like(text), depth)]
    return [torch.from_numpy(np.concatenate(parts)) for parts in rows]


def sight(anchor, position, length):
    """Whom each row sees: the text up to its anchor, and the masks of its anchor up to itself."""
    of_text = torch.arange(length) <= anchor[:, None]
    of_masks = (anchor[length:] == anchor[:, None]) & (position[length:] <= position[:, None])
    return torch.cat((of_text, of_masks), 1)


def learn(draft, x, teacher, entropy, rng):
    """Loss over the rows of texts `x` and masks among them, and the mean divergence by depth."""
    length = x.shape[1] - 1
    anchor, position, depth = chains(length, rng)
    masks = torch.full((len(x), len(anchor) - length), draft.mask_token)
    with torch.autocast("cpu", torch.bfloat16):
        rows = torch.cat((x[:, :-1], masks), 1)
        hidden = draft.hidden(rows, positions=position, mask=sight(anchor, position, length))
    place = (torch.arange(len(x))[:, None] * length + position).flatten()
    label = x[:, position + 1].flatten()
    head = draft.embed_tokens.weight
    loss, divergence = Divergence.apply(hidden.flatten(0, 1), head, teacher, entropy, place, label)
    by_depth = torch.zeros(K).index_add_(0, depth, divergence.view(len(x), -1).mean(0)) / depth.bincount()
    return loss, by_depth.numpy()


def main():
    parser = arguments(__doc__, "draft", 20)
    parser.add_argument("--target", required=True)
    parser.add_argument("--start", required=True, help="directory of the draft to start from")
    parser.add_argument("--rate", type=float, default=0.5, help="learning rate as a part of that of training")
    parser.set_defaults(length=256, rows=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    train = np.load(Path(args.data) / "train.npy")
    samples = np.load(Path(args.data) / "samples.npy")
    target = models.load(args.target)
    draft = models.load(args.start).train()
    # No text has this token: tokenizer.py takes out the merge that makes it.
    draft.mask_token = Tokenizer.from_file(str(Path(args.target) / "tokenizer.json")).token_to_id(2 * NEWLINE)
    assert not (train == draft.mask_token).any()
    opts = optimizers(draft)
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] *= args.rate
    run = Run(args, draft, np.load(Path(args.data) / "heldout.npy"))
    print(f"mask token {draft.mask_token}, {samples.size} tokens of the target's text", flush=True)
    teach = torch.compile(teacher_logits, dynamic=False) if args.compile else teacher_logits

    rows = args.rows * args.length // samples.shape[1]
    corpus, written = batches(train, args.rows, args.length - 1, seed=3), sample_batches(samples, rows)
    step = tokens = 0
    average = by_depth = None
    while run.progress() < 1:
        set_rates(opts, run.progress())
        # Two batches of the target's own text to each batch of the corpus.
        if step % 3:
            x = next(written)
        else:
            x, y = next(corpus)
            x = torch.cat((x, y[:, -1:]), 1)
        with torch.no_grad():
            said = F.log_softmax(teach(target, x[:, :-1]).float().flatten(0, 1), -1)
            teacher = said.exp()
            entropy = -(teacher * said).sum(-1)
        loss, divergences = learn(draft, x, teacher.bfloat16(), entropy, rng)
        descend(loss, draft, opts)
        step, tokens = step + 1, tokens + x.numel()
        if step == 3:
            run.begin = time.time()  # what is compiled is compiled now
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        by_depth = divergences if by_depth is None else 0.98 * by_depth + 0.02 * divergences
        if step % 50 == 0:
            rate = tokens / max(run.minutes(), 1e-9) / 60
            places = " ".join(f"{d:.2f}" for d in by_depth)
            line = f"step {step} {run.minutes():.1f} min loss {average:.3f} divergence by place {places}"
            print(f"{line} {rate:.0f} tokens/s", flush=True)
        run.checkpoint(step, tokens, average)
    run.checkpoint(step, tokens, average, final=True)


if __name__ == "__main__":
    main()
