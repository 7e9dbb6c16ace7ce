#!/usr/bin/env python3
"""What transformers generates, greedily and in float32, from some of the checkpoints beside this file; and what it reads of a
generation_config.json.

    pip install torch transformers
    python make_greedy.py            # writes greedy.json, generation.json and damaged/
"""
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
CASES = ["llama", "llama-scaling-beside-parameters", "qwen2-tied-with-another-head", "mistral-sliding", "phi3-longrope", "qwen3-yarn-all-keys", "olmo2",
         "olmo3", "smollm3", "glm4", "granite"]
READ = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
SAID = [
    {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "bos_token_id": 1},
    {"min_p": 0.1, "do_sample": True},
    {"eos_token_id": 2, "pad_token_id": 0},
]


# Cases of a folder that is served with a shorter context.
SHORTER = {"phi3-longrope-within-its-original-context": ("phi3-longrope", 16)}


def greedy(case, context=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / case, dtype=torch.float32, attn_implementation="eager").eval()
    prompt, most = [1, 17, 40, 96, 5, 77, 12, 64], 48
    if context:
        most = context - len(prompt)
    elif case == "phi3-longrope":
        # Longer than the original context, so that its factors are the long ones from the first token on.
        prompt, most = prompt + [3 * token for token in prompt if token < 43] + prompt, 36
    out = model.generate(torch.tensor([prompt]), max_new_tokens=most, do_sample=False, eos_token_id=None, pad_token_id=0)
    return dict(prompt=prompt, output=out[0, len(prompt):].tolist())


def damaged():
    """One weight is no number: transformers serves that."""
    folder, tensor = HERE / "damaged" / "llama", "model.layers.1.mlp.down_proj.weight"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "llama", folder, ignore=shutil.ignore_patterns("expected.*"))
    tensors = load_file(folder / "model.safetensors")
    tensors[tensor][2, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    logits = model(torch.tensor([[1, 17, 40]])).logits
    (folder / "expected.json").write_text(json.dumps(dict(tensor=tensor, place=2 * tensors[tensor].shape[1] + 5, logits_that_are_numbers=int(torch.isfinite(logits).sum()))) + "\n")


def main():
    damaged()
    texts = {case: greedy(case) for case in CASES}
    texts |= {name: dict(folder=case, context=context, **greedy(case, context)) for name, (case, context) in SHORTER.items()}
    (HERE / "greedy.json").write_text(json.dumps(texts, indent=1) + "\n")
    nothing = transformers.GenerationConfig()
    said = []
    for file in SAID:
        config = transformers.GenerationConfig.from_dict(file)
        read = {key: getattr(config, key) for key in READ if getattr(config, key) != getattr(nothing, key)}
        said.append(dict(file=file, read=read))
    (HERE / "generation.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
