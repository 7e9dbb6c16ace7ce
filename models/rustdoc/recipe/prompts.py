"""Write held-out prompts: beginnings of passages of the held-out documents, 48 to 96 tokens each.

    python prompts.py --data DIR --out FILE
"""

import argparse
import json
import re
from pathlib import Path

from tokenizers import Tokenizer

PER_DOCUMENT, SPACING, LEAST_LEFT = 4, 300, 160  # passages a document gives, and tokens between and after them


def passages(tokenizer, text):
    """Prompts of one document, starting at headings or paragraphs outside of code blocks."""
    found, last = [], -SPACING
    for match in re.finditer(r"^", text, re.M):
        start = match.start()
        if start and not text[:start].endswith("\n\n"):
            continue
        if text[:start].count("\n```") % 2 or (start and text.startswith("```") and "\n```" not in text[:start]):
            continue
        if re.match(r"#{4,} ", text[start:]):
            continue
        begin = len(tokenizer.encode(text[:start], add_special_tokens=False).ids)
        if begin - last < SPACING:
            continue
        ids = tokenizer.encode(text[start:], add_special_tokens=False).ids
        if len(ids) < LEAST_LEFT:
            break
        length = 48 + (begin * 7 + len(text)) % 49
        found.append(tokenizer.decode(ids[:length]))
        last = begin
        if len(found) == PER_DOCUMENT:
            break
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer/tokenizer.json"))
    prompts = []
    with open(args.data / "heldout.jsonl") as lines:
        for document in map(json.loads, lines):
            prompts += [{"prompt": p} for p in passages(tokenizer, document["text"])]
    args.out.write_text("[\n" + ",\n".join(json.dumps(p, ensure_ascii=False) for p in prompts) + "\n]\n")
    print(f"{len(prompts)} prompts")


if __name__ == "__main__":
    main()
