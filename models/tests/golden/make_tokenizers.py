#!/usr/bin/env python3
"""Make small tokenizers in the layouts of published ones, with what `AutoTokenizer` of transformers makes of some hundred texts.

    pip install torch transformers tokenizers
    python make_tokenizers.py            # writes tokenizers/ beside this file

Each folder has tokenizer.json and tokenizer_config.json as a model's has them, and expected.json: for each text its ids, with and without
special tokens, and the text of those ids; and where the text of each token ends, behind the first third as a prompt: none within a character.
"""
import json
import pathlib
import random
import shutil

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "tokenizers"
CORPUS = ["The quick brown fox jumps over the lazy dog. The scheduler requests more blocks. " * 4,
          "fn main() { println!(\"Hello, world!\"); }\n    let x = 1984 + 3.14159;\n" * 4,
          "naïve café 日本 and more text, it's what they'd say\n\n" * 4] * 3
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


def bpe(special, vocab, byte_fallback=False, **options):
    tokenizer = Tokenizer(models.BPE(byte_fallback=byte_fallback, **options))
    alphabet = [] if byte_fallback else pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False)


def byte_level(pattern, special, vocab=420, normalizer=None, **options):
    tokenizer, trainer = bpe([], vocab, **options)
    if normalizer:
        tokenizer.normalizer = normalizer
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def words(vocab=400):
    """Spaces are U+2581, and there are no bytes to fall back to."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def pieces(special, metaspace, vocab=640):
    """SentencePiece's layout: bytes that are no token fall back, spaces are U+2581."""
    names = ["<unk>", "<s>", "</s>", *special]
    tokenizer, trainer = bpe(names + [f"<0x{byte:02X}>" for byte in range(256)], vocab, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator(["\n".join(CORPUS)] if not metaspace else CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in names]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def added(tokenizer, special=True):
    """`added_tokens_decoder` of tokenizer_config.json."""
    return {str(index): dict(content=token.content, lstrip=token.lstrip, normalized=token.normalized, rstrip=token.rstrip,
                             single_word=token.single_word, special=token.special)
            for index, token in tokenizer.get_added_tokens_decoder().items()}


def layouts():
    """Name, tokenizer.json, tokenizer_config.json, `model_type` and other files."""
    for name, tokenizer, config in published():
        kind = {"qwen": "qwen2", "mistral-v3": "mistral"}.get(name, "llama")
        yield name, tokenizer, config, kind, {}
    yield from edges()


def edges():
    """What the other files say, where tokenizer.json says something else."""
    end = "<|endoftext|>"
    marks = [end, "<|im_start|>", "<|im_end|>"]
    plain = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=end, clean_up_tokenization_spaces=False)
    qwen = byte_level(QWEN, marks)
    yield "edge-class-has-nfc", qwen, dict(tokenizer_class="Qwen2TokenizerFast", added_tokens_decoder=added(qwen), eos_token="<|im_end|>"), "qwen3", {}
    yield "edge-family-has-nfc", qwen, plain, "qwen2", {}
    bos = byte_level(GPT4, marks)
    bos.post_processor = processors.TemplateProcessing(single=f"{end} $A", special_tokens=[(end, bos.token_to_id(end))])
    yield "edge-no-bos", bos, dict(plain, add_bos_token=False, bos_token=end), "llama", {}
    yield "edge-bos-and-eos", byte_level(GPT4, marks), dict(plain, add_bos_token=True, add_eos_token=True, bos_token="<|im_start|>"), "llama", {}
    more = byte_level(GPT4, [end])
    size = more.get_vocab_size()
    entry = dict(lstrip=False, rstrip=False, normalized=False, single_word=False)
    decoder = {str(size): dict(content="<|im_start|>", special=True, **entry), str(size + 1): dict(content="<tool_call>", special=False, **entry)}
    yield "edge-added-tokens-decoder", more, dict(plain, added_tokens_decoder={**added(more), **decoder}), "llama", {}
    yield "edge-added-tokens-file", more, dict(plain, eos_token="<|im_end|>"), "llama", {
        "added_tokens.json": {"<|im_end|>": size, "<tool_call>": size + 1}}
    named = byte_level(GPT4, [end])
    named.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False), AddedToken("</s>", special=False, normalized=False)])
    yield "edge-named-are-special", named, dict(plain, eos_token="<|im_end|>", additional_special_tokens=["</s>"]), "llama", {}
    yield "edge-map-names-are-special", named, dict(tokenizer_class="PreTrainedTokenizerFast"), "llama", {
        "special_tokens_map.json": {"eos_token": dict(content="<|im_end|>", **entry), "additional_special_tokens": ["</s>"]}}
    yield "edge-named-is-new", byte_level(GPT4, [end]), dict(plain, pad_token="<pad>", additional_special_tokens=["</s>"]), "llama", {}
    yield "edge-prefix-space", byte_level(None, [end]), dict(plain, add_prefix_space=True), "llama", {}
    old = pieces([], metaspace=False)
    yield "edge-no-prefix-space", old, dict(tokenizer_class="LlamaTokenizerFast", add_prefix_space=False, legacy=True, bos_token="<s>", eos_token="</s>"), "llama", {}
    yield "edge-legacy", old, dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", legacy=True), "llama", {}
    yield "edge-class-of-bytes", byte_level(GPT4, marks), dict(plain, tokenizer_class="LlamaTokenizer"), "llama", {}
    yield "edge-class-of-mistral", old, dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", legacy=False), "mistral", {}
    yield "edge-no-config", qwen, None, "qwen3", {}


def published():
    gpt = byte_level(None, ["<|endoftext|>"])
    yield "byte-level", gpt, dict(tokenizer_class="GPT2TokenizerFast", eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="<|endoftext|>")
    qwen = byte_level(QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer=normalizers.NFC())
    qwen.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    yield "qwen", qwen, dict(tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added(qwen), add_prefix_space=False, add_bos_token=False,
                             additional_special_tokens=["<|im_start|>", "<|im_end|>"], bos_token=None, eos_token="<|im_end|>",
                             pad_token="<|endoftext|>", unk_token=None, split_special_tokens=False, errors="replace",
                             clean_up_tokenization_spaces=False)
    llama3 = byte_level(GPT4, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], ignore_merges=True)
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    yield "llama-3", llama3, dict(tokenizer_class="PreTrainedTokenizerFast", added_tokens_decoder=added(llama3), bos_token="<|begin_of_text|>",
                                  eos_token="<|eot_id|>", clean_up_tokenization_spaces=True,
                                  model_input_names=["input_ids", "attention_mask"])
    old = pieces([], metaspace=False)
    yield "sentencepiece", old, dict(tokenizer_class="LlamaTokenizer", added_tokens_decoder=added(old), add_bos_token=True, add_eos_token=False,
                                     bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token=None, legacy=False,
                                     clean_up_tokenization_spaces=False, sp_model_kwargs={})
    new = words()
    yield "metaspace", new, dict(tokenizer_class="PreTrainedTokenizerFast", added_tokens_decoder=added(new), bos_token="<s>", eos_token="</s>",
                                 unk_token="<unk>", clean_up_tokenization_spaces=False)
    mistral = pieces(["[INST]", "[/INST]", "[TOOL_CALLS]"], metaspace=True)
    yield "mistral-v3", mistral, dict(tokenizer_class="LlamaTokenizer", added_tokens_decoder=added(mistral), add_bos_token=True, add_eos_token=False,
                                      bos_token="<s>", eos_token="</s>", unk_token="<unk>", legacy=False, add_prefix_space=True,
                                      clean_up_tokenization_spaces=False, sp_model_kwargs={}, use_default_system_prompt=False)


def texts():
    """Three hundred and three of them."""
    said = ["", " ", "  ", "\n", "\t", "a", " a", "a ", "Hello, world!", " two  spaces, a tab\tand\nlines\r\n", "naïve café, straße, 3.14159",
            "nai\u0308ve cafe\u0301", "日本語のテキスト、中文 and 한국어", "emoji 🦀🔥👩‍👩‍👧 done", "fn main() { println!(\"{}\", 1 << 4); }",
            "it's THEY'D we'll I'm", "a<pad>b", "1234567890 12 3 45,678.90", "<s>", "</s> a", "a</s>b", "<|im_end|>", "x <|endoftext|> y", "[INST] hi [/INST] ok",
            "[INST]hi[/INST]ok", "<tool_call>{\"a\": 1}</tool_call>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
            "▁", "a▁b", " ▁ ", "\u00a0nbsp\u3000wide", "ﬁ ligature ½ ²", "\u200bzero width", "ÅÅ A\u030a", "مرحبا بالعالم", "שלום", "नमस्ते",
            "\U0001f1e9\U0001f1ea", "tab\t\ttab", "\n\n\n", "  indented\n    more", "a\u0000b", "<0x41> literal", "The scheduler requests", " .", " ,a", " n't", "do n't",
            "Is this ? Yes !", "can 't", "'s", "é", "e\u0301", "…", "“quoted” — dash", "�", "a\ufffdb"]
    parts = ["the", " quick", "fox ", "é", "\n", "  ", "日", "🦀", "1", "99", "!", "\t", "'s", "x=1;", " .", "e\u0301", "</s>", "▁", "ab"]
    draw = random.Random(303)
    while len(said) < 303:
        said.append("".join(draw.choice(parts) for _ in range(draw.randint(1, 14))))
    return said


def told(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=True)["input_ids"]
    plain = tokenizer(text, add_special_tokens=False)["input_ids"]
    show = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
    whole, prompt = show(ids), len(ids) // 3
    # No character is cut.
    while not whole.startswith(show(ids[:prompt])):
        prompt -= 1
    before = len(show(ids[:prompt]))
    shown = [show(ids[:end]) for end in range(prompt + 1, len(ids) + 1)]
    ends = [len(text) - before if whole.startswith(text) else None for text in shown]
    return dict(text=text, ids=ids, plain=plain, decoded=whole, shown=whole[before:], prompt=prompt, ends=ends)


def main():
    print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
    shutil.rmtree(HERE, ignore_errors=True)
    for name, tokenizer, config, kind, files in layouts():
        folder = HERE / name
        folder.mkdir(parents=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        files = {**files, "config.json": dict(model_type=kind), **({"tokenizer_config.json": config} if config else {})}
        for file, content in files.items():
            (folder / file).write_text(json.dumps(content, indent=1) + "\n")
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        some = texts()[:60] if name.startswith("edge") else texts()
        cases = [told(auto, text) for text in some]
        plainly = sum(case["ids"] != tokenizer.encode(case["text"]).ids for case in cases)
        decoded = sum(case["decoded"] != tokenizer.decode(case["ids"]) for case in cases)
        (folder / "expected.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
        print(f"{name:28} {type(auto).__name__:18} {len(cases)} texts; tokenizer.json alone has other ids in {plainly}, other texts in {decoded}")


if __name__ == "__main__":
    main()
