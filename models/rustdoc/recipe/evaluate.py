"""Measure a pair: held-out loss, acceptance by position, tokens a target pass, sample texts.

    python evaluate.py --target DIR --draft DIR [--pard DIR] [--eagle3 DIR] [--dspark DIR] --data DIR
        --prompts FILE --out FILE [--check-hf]

With --pard both drafts are also measured at 8 proposals a pass, greedily: the one step by step, the
other in one pass. With --eagle3 and --dspark so are heads that read the target's hidden states (a
block at as many as it has). --only-heads measures nothing else, and adds it to FILE as it is.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import dspark
import eagle3
import heads
import model as models
from train import heldout_loss

ONE_PASS_K = 8
SAMPLES = ["A `Vec<T>` is", "The `Option` type", "```rust\nfn main() {", "# Ownership"]


class Decoder:
    """A model with its key-value cache; `feed` brings it up to a text and returns the last logits."""

    def __init__(self, net, length):
        self.net, self.cache, self.known = net, net.new_cache(1, length), 0

    def feed(self, text, wanted=1):
        """Logits after each of the last `wanted` tokens of `text`, a text that only its end has changed in."""
        start = min(self.known, len(text) - wanted)
        logits = self.net(torch.tensor([text[start:]]), self.cache, start)[0, -wanted:]
        self.known = len(text)
        return logits


class HeadDecoder:
    """A head that reads the target's hidden states, with those of the tokens that the target has seen."""

    def __init__(self, head, target):
        self.head, self.target, self.known = head, target, 0
        self.features = torch.zeros(0, head.fc.in_features)

    def read(self, text):
        """Of `text` the target has seen all but the last token: how many that are, and what it lets the head see of them."""
        if self.target.known == 0:
            self.target.feed(text[:-1])
        taps, rows = self.head.taps, len(text) - 1
        self.features = torch.cat((self.features[: taps.start], taps.rows()[0]))[:rows]
        return rows, self.features[None]

    def propose(self, text, k, temperature):
        """`k` tokens behind `text` and the distributions they come from."""
        head, (rows, features) = self.head, self.read(text)
        past, mask = [], torch.ones(rows, rows, dtype=torch.bool).tril()
        hidden = head.fc(features)
        hidden = head.step(torch.tensor([text[1:]]), hidden, torch.arange(rows), past, mask)[:, -1:]
        proposals = []
        while True:
            proposals.append(pick(self.of_all(head.logits(hidden)[0, 0]), temperature))
            if len(proposals) == k:
                return proposals
            position = torch.tensor([rows - 1 + len(proposals)])
            hidden = head.step(torch.tensor([[proposals[-1][0]]]), hidden, position, past)

    def of_all(self, logits):
        """Logits of the head's tokens among those of all."""
        spread = torch.full((self.head.shape.vocab_size,), float("-inf"))
        spread[self.head.ids] = logits
        return spread


class BlockDecoder(HeadDecoder):
    """A head that proposes a block in one pass; what is drawn in a place counts in the next."""

    def propose(self, text, k, temperature):
        head, (rows, features) = self.head, self.read(text)
        mask = torch.ones(dspark.BLOCK, rows, dtype=torch.bool)
        out = head.block(head.fuse(features), torch.tensor([text[-1:]]), torch.tensor([rows]), mask)[0, :k]
        proposals, before = [], text[-1]
        for row in head.lm_head(out):
            of_token = head.markov_head.markov_w1(torch.tensor(before))
            proposals.append(pick(self.of_all(row + head.markov_head.markov_w2(of_token)), temperature))
            before = proposals[-1][0]
        return proposals


def pick(logits, temperature):
    """A token and the distribution it comes from (none when greedy)."""
    if temperature == 0:
        return int(logits.argmax()), None
    p = F.softmax(logits / temperature, -1)
    return int(torch.multinomial(p, 1)), p


@torch.no_grad()
def generate(net, prompt, count, temperature):
    decoder, text = Decoder(net, len(prompt) + count), list(prompt)
    while len(text) < len(prompt) + count and (len(text) == len(prompt) or text[-1] != 1):
        text.append(pick(decoder.feed(text)[0], temperature)[0])
    return text[len(prompt) :]


def propose(draft, text, k, temperature):
    """`k` tokens behind `text` and the distributions they come from; all from one pass if there is a mask token."""
    if isinstance(draft, HeadDecoder):
        return draft.propose(text, k, temperature)
    mask = draft.net.mask_token
    if mask is not None:
        logits = draft.feed(text + [mask] * (k - 1), k)
        draft.known = len(text)  # what is known of masks is dropped
        return [pick(row, temperature) for row in logits]
    text, proposals = list(text), []
    for _ in range(k):
        proposals.append(pick(draft.feed(text)[0], temperature))
        text.append(proposals[-1][0])
    return proposals


@torch.no_grad()
def speculate(target, draft, prompt, count, k, temperature, tally):
    """Speculative decoding; `tally` counts passes, tokens, and by position proposals and acceptances."""
    room = len(prompt) + count + k + 1
    target, text = Decoder(target, room), list(prompt)
    if isinstance(draft, heads.Head):
        draft = (BlockDecoder if isinstance(draft, dspark.Head) else HeadDecoder)(draft, target)
    else:
        draft = Decoder(draft, room)
    while len(text) < len(prompt) + count and (len(text) == len(prompt) or text[-1] != 1):
        proposals = propose(draft, text, k, temperature)
        logits = target.feed(text + [token for token, _ in proposals], k + 1)
        tally["passes"] += 1
        for i, (token, q) in enumerate(proposals):
            tally["proposed"][i] += 1
            if temperature == 0:
                choice = int(logits[i].argmax())
                accepted = choice == token
            else:
                p = F.softmax(logits[i] / temperature, -1)
                accepted = torch.rand(()) * q[token] < p[token]
                choice = token if accepted else int(torch.multinomial((p - q).clamp_min(0), 1))
            text.append(choice)
            tally["tokens"] += 1
            if not accepted or choice == 1:
                tally["accepted"][i] += int(accepted)
                break
            tally["accepted"][i] += 1
        else:
            text.append(pick(logits[k], temperature)[0])
            tally["tokens"] += 1
        target.known, draft.known = min(target.known, len(text) - 1), min(draft.known, len(text) - 1)
    return text[len(prompt) :]


def measure(target, draft, prompts, count, k, temperature):
    tally = {"passes": 0, "tokens": 0, "proposed": [0] * k, "accepted": [0] * k}
    same = 0
    for prompt in prompts:
        text = speculate(target, draft, prompt, count, k, temperature, tally)
        if temperature == 0:
            same += generate(target, prompt, count, 0)[:count] == text[:count]
    result = {
        "k": k,
        "temperature": temperature,
        "prompts": len(prompts),
        "new_tokens": count,
        "tokens_per_pass": round(tally["tokens"] / tally["passes"], 3),
        "acceptance_by_position": [round(a / max(p, 1), 3) for a, p in zip(tally["accepted"], tally["proposed"])],
        "reached_and_accepted": [round(a / tally["passes"], 3) for a in tally["accepted"]],
    }
    if temperature == 0:
        result["same_as_greedy"] = f"{same}/{len(prompts)}"
    return result


def measure_head(target, head, most, prompts, count, k):
    report = {"parameters": head.parameter_count(), "acceptance": []}
    for proposals, temperature in ((k, 0), (k, 1), (most, 0)):
        report["acceptance"].append(measure(target, head, prompts, count, proposals, temperature))
        print(report["acceptance"][-1], flush=True)
    return report


def check_hf(directory, net, prompts):
    """Largest difference of the logits from transformers', which reads the same directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    worst = 0.0
    with torch.no_grad():
        for _, ids in prompts:
            x = torch.tensor([ids])
            worst = max(worst, (theirs(x).logits - net(x)).abs().max().item())
    if net.mask_token is not None:
        return {"largest_logit_difference": worst}
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for prompt, ids in prompts:
        assert tokenizer(prompt)["input_ids"] == ids, prompt
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is ownership?"}], add_generation_prompt=True, tokenize=False
    )
    return {"largest_logit_difference": worst, "chat": chat, "vocabulary": len(tokenizer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--pard", help="a draft that proposes in one pass")
    parser.add_argument("--eagle3", help="a head that reads the target's hidden states")
    parser.add_argument("--dspark", help="a head that proposes a block")
    parser.add_argument("--only-heads", action="store_true")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--prompts", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--limit", type=int, default=None, help="measure on the first so many prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check-hf", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(Path(args.target) / "tokenizer.json"))
    nets = {name: models.load(getattr(args, name)) for name in ("target", "draft", "pard") if getattr(args, name)}
    target, draft = nets["target"], nets.get("draft")
    texts = [p["prompt"] for p in json.loads(args.prompts.read_text())][: args.limit]
    prompts = [tokenizer.encode(t).ids for t in texts]

    def measure_heads(report):
        for name, recipe, most in (("eagle3", eagle3, ONE_PASS_K), ("dspark", dspark, dspark.BLOCK)):
            if directory := getattr(args, name):
                report[name] = measure_head(target, recipe.load(directory, target), most, prompts, args.count, args.k)
        args.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")

    if args.only_heads:
        measure_heads(json.loads(args.out.read_text()))
        return

    report = {"acceptance": [], "samples": []}
    heldout = np.load(args.data / "heldout.npy")
    for name, net in nets.items():
        report[name] = {"parameters": net.parameter_count(), "heldout_loss": round(heldout_loss(net, heldout), 4)}
    if args.check_hf:
        for name, net in nets.items():
            report[name]["transformers"] = check_hf(getattr(args, name), net, list(zip(texts, prompts))[:8])
    for temperature in (0, 1):
        report["acceptance"].append(measure(target, draft, prompts, args.count, args.k, temperature))
        print(report["acceptance"][-1], flush=True)
    for text in SAMPLES:
        for temperature in (0, 0.7):
            ids = generate(target, tokenizer.encode(text).ids, 128, temperature)
            report["samples"].append({"prompt": text, "temperature": temperature, "text": tokenizer.decode(ids)})
    if args.pard:
        report["one_pass"] = []
        for name in ("draft", "pard"):
            figures = measure(target, nets[name], prompts, args.count, ONE_PASS_K, 0)
            report["one_pass"].append({"draft": name, **figures})
            print(report["one_pass"][-1], flush=True)
    measure_heads(report)
    lengthy = ("samples", "acceptance", "one_pass", "eagle3", "dspark")
    print(json.dumps({k: v for k, v in report.items() if k not in lengthy}, indent=2))
    for sample in report["samples"]:
        print(f"\n===== {sample['prompt']!r} at {sample['temperature']}\n{sample['text']}")


if __name__ == "__main__":
    main()
