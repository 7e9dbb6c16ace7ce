#!/usr/bin/env python3
"""Make the golden renderings of chat templates: what Hugging Face transformers' apply_chat_template writes for each conversation of
conversations.json, or that it refuses it.

    pip install transformers jinja2
    python make_golden.py                                  # the templates beside this file
    python make_golden.py --templates DIR --out DIR        # *.jinja of any folder; read by the test as FASER_TEMPLATES=DIR

Each template gets a file of its own, NAME.json, with the renderings by the names of the conversations: a string, or {"error": ..}, with
`raised` where the words are the template's own.
"""
import argparse
import json
import pathlib

import jinja2
import tokenizers
import transformers

HERE = pathlib.Path(__file__).parent
TOKENS = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def tokenizer():
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **TOKENS)


def render(tokenizer, template, conversation):
    last_turn = conversation.get("last_turn", "opened")
    try:
        return tokenizer.apply_chat_template(
            conversation["messages"], tools=conversation.get("tools"), chat_template=template, tokenize=False,
            add_generation_prompt=last_turn == "opened", continue_final_message=last_turn == "continued",
            **conversation.get("variables", {}))
    except Exception as error:  # whatever stops the template is a refusal
        raised = type(error) is jinja2.TemplateError
        return dict(error=f"{type(error).__name__}: {error}"[:200] if not raised else str(error), **(dict(raised=True) if raised else {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=pathlib.Path, default=HERE)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    arguments = parser.parse_args()
    print(f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}")
    conversations = json.loads((HERE / "conversations.json").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.templates.glob("*.jinja")):
        # As transformers reads it: with the line breaks of its host turned into line feeds.
        template, engine = path.read_text(encoding="utf-8"), tokenizer()
        cases = {name: render(engine, template, conversation) for name, conversation in conversations.items()}
        (arguments.out / f"{path.stem}.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
        print(f"{path.stem:60} {len(cases)} conversations, {sum(isinstance(case, dict) for case in cases.values())} refused")


if __name__ == "__main__":
    main()
