"""Let the target write: continuations of passages of the training documents.

    python samples.py --data DIR --target DIR [--minutes 4]

A third of the texts is written greedily, a third at temperature 0.7 and a third at 1. They are
added to DIR/samples.npy, 256 tokens a row.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import model as models

ROWS, LENGTH = 96, 256
TEMPERATURES = (0.0, 0.7, 1.0)
PREFIX = (1, 96)  # tokens of a document passage that a continuation starts from


@torch.no_grad()
def continuations(target, tokens, rows, length, rng):
    """Texts of `length` tokens, each a passage of a document that the target continues."""
    prefix = int(rng.integers(*PREFIX))
    bos = np.flatnonzero(tokens[: len(tokens) - 2 * PREFIX[1]] == 0)
    starts = rng.integers(0, len(tokens) - prefix, rows)
    starts[: rows // 4] = rng.choice(bos, rows // 4)
    text = torch.zeros(rows, length, dtype=torch.long)
    text[:, :prefix] = torch.from_numpy(np.stack([tokens[s : s + prefix] for s in starts]).astype(np.int64))
    temperature = torch.tensor([TEMPERATURES[i % len(TEMPERATURES)] for i in range(rows)])[:, None]
    cache = target.new_cache(rows, length)
    fed = text[:, :prefix]
    for position in range(prefix, length):
        hidden = target.hidden(fed, cache, position - fed.shape[1])[:, -1]
        logits = F.linear(hidden, target.embed_tokens.weight).float()
        noise = -torch.empty_like(logits).exponential_().log_()  # Gumbel: the argmax is a sample
        fed = (logits + temperature * noise).argmax(-1, keepdim=True)
        text[:, position] = fed[:, 0]
    return text.numpy().astype(np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = np.load(args.data / "train.npy")
    target = models.load(args.target, torch.bfloat16)
    file = args.data / "samples.npy"
    texts = [np.load(file)] if file.exists() else []
    rng = np.random.default_rng(len(texts))
    torch.manual_seed(len(texts))
    end = time.time() + 60 * args.minutes
    while time.time() < end:
        texts.append(continuations(target, tokens, ROWS, LENGTH, rng))
        print(f"{sum(map(len, texts)) * LENGTH} tokens written", flush=True)
    np.save(file, np.concatenate(texts))


if __name__ == "__main__":
    main()
