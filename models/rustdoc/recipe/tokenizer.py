"""Train the byte-level BPE tokenizer and turn the corpus into token files.

    python tokenizer.py --data DIR

Reads DIR/train.jsonl and DIR/heldout.jsonl; writes DIR/tokenizer/ and DIR/{train,heldout}.npy,
each document as `<s> text </s>`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 8192
BOS, EOS = "<s>", "</s>"
NEWLINE = "\u010a"  # as byte-level BPE writes it

# The model continues text, so a conversation becomes a text to continue: every turn a paragraph,
# the question last.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['content'] | trim }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n\\n' }}{% endif %}"
    "{% endfor %}"
)


def texts(path):
    with open(path) as lines:
        for line in lines:
            yield json.loads(line)["text"]


def without_newline_pairs(tokenizer):
    """Drop the merge of two newlines into one token.

    Before a word the GPT-2 pattern splits a blank line into two newlines, so the pair would be
    one token only at the end of a text: a prompt that ends there would look like nothing in training.
    """
    state = json.loads(tokenizer.to_str())
    state["model"]["merges"] = [m for m in state["model"]["merges"] if list(m) != [NEWLINE, NEWLINE]]
    return Tokenizer.from_str(json.dumps(state))


def train(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(path), trainer)
    tokenizer = without_newline_pairs(tokenizer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(add_prefix_space=False, trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]),
        ]
    )
    assert tokenizer.get_vocab_size() == VOCABULARY and tokenizer.token_to_id(EOS) == 1
    return tokenizer


def save(tokenizer, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    args = parser.parse_args()
    tokenizer = train(args.data / "train.jsonl")
    save(tokenizer, args.data / "tokenizer")
    for name in ("train", "heldout"):
        encoded = tokenizer.encode_batch(list(texts(args.data / f"{name}.jsonl")))
        ids = np.concatenate([np.array(e.ids + [1], dtype=np.uint16) for e in encoded])
        np.save(args.data / f"{name}.npy", ids)
        size = sum(len(t.encode()) for t in texts(args.data / f"{name}.jsonl"))
        print(f"{name}: {len(encoded)} documents, {len(ids)} tokens, {size / len(ids):.2f} bytes a token")


if __name__ == "__main__":
    main()
