#!/usr/bin/env python3
"""Make GGUF files of the demo target with llama.cpp's own converter and quantiser, and compare: our log-probabilities in float32 with those of
transformers over the weights as the package `gguf` widens them, and the tokens that come first with llama.cpp's, in 2,000 places.

    cargo build --release --bin faser && cargo build --release -p faser-models --example logprobs
    python compare_gguf.py ../../../target/release LLAMA_CPP LLAMA_CPP_BUILD [FORMAT ...]

transformers reads GGUF files with the packages `gguf` and `accelerate`. LLAMA_CPP has convert_hf_to_gguf.py (which must be taught that the demo's pre-tokenizer is that of GPT-2), LLAMA_CPP_BUILD/bin has
llama-quantize and llama-server. Prints a line for each format: beside how many first tokens are llama.cpp's, by how much transformers likes those less that are not (llama.cpp
rounds activations to 8 bits, of some formats 256 at a time), and how many of llama.cpp's and of ours as served are transformers'. Exits with 1 if any log-probability is more than 1e-3 off,
or fewer than 98 % of first tokens are the same.
"""
import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch
import transformers

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0"]
TEXTS, PLACES = 40, 50
MOST, LEAST = 1e-3, 0.98
DEMO = pathlib.Path(__file__).resolve().parents[2] / "rustdoc"


def texts():
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    prompts = json.loads((DEMO / "heldout_prompts.json").read_text())
    ids = sorted((tokenizer(prompt["prompt"])["input_ids"] for prompt in prompts), key=len, reverse=True)
    return [text[:PLACES] for text in ids[:TEXTS]]


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@contextlib.contextmanager
def server(command):
    """Runs a server on a port of its own, until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tempfile.TemporaryFile()
    running = subprocess.Popen(command(port), stdout=log, stderr=log)
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                    if answer.status == 200:
                        break
            if running.poll() is not None:
                log.seek(0)
                raise SystemExit(log.read().decode()[-2000:])
            time.sleep(0.1)
        yield port
    finally:
        running.terminate()
        running.wait()


def first_of_llama(port, text):
    found = []
    for end in range(1, len(text) + 1):
        body = {"prompt": text[:end], "n_predict": 1, "n_probs": 1, "temperature": 0, "cache_prompt": True}
        found.append(post(port, "/completion", body)["completion_probabilities"][0]["top_logprobs"][0]["id"])
    return found


def first_of_faser(port, text):
    body = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1, "return_tokens_as_token_ids": True}
    said = post(port, "/v1/completions", body)["choices"][0]["logprobs"]
    # The chosen token stands there too, where it is not the first.
    first = [max(top, key=top.get) for top in said["top_logprobs"][1:]]
    return [int(token.removeprefix("token_id:")) for token in first[:len(text)]]


def compare(file, binaries, llama_bin, given):
    """Largest error of a log-probability; the parts of first tokens that are llama.cpp's, in float32 and as the file is served; by how much transformers likes
    llama.cpp's less than its own at most; the parts of its own that llama.cpp has, and we as served."""
    model = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()
    off, ours, exact = 0.0, [], []
    for text in given:
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([text])).logits[0].double(), dim=-1)
        file.with_suffix(".tokens.json").write_text(json.dumps(text))
        said = subprocess.run([binaries / "examples/logprobs", "7", file], stdout=subprocess.PIPE, check=True, text=True).stdout
        found = torch.tensor(json.loads(said), dtype=torch.float64)
        assert found.shape == expected.shape, (found.shape, expected.shape)
        off = max(off, (found - expected).abs().max().item())
        ours += found.argmax(-1).tolist()
        exact += expected
    with server(lambda port: [llama_bin / "llama-server", "-m", file, "-c", "1024", "-np", "1", "-t", "2", "--host", "127.0.0.1", "--port", str(port)]) as port:
        theirs = [first for text in given for first in first_of_llama(port, text)]
    config = file.with_suffix(".yaml")
    config.write_text(f"model: {{target: {file}, draft: none}}\ndevice: {{kind: cpu}}\nadmin: {{socket: {file.with_suffix('.sock')}}}\n")
    with server(lambda port: [binaries / "faser", "serve", "-c", config, "--listen", f"127.0.0.1:{port}"]) as port:
        served = [first for text in given for first in first_of_faser(port, text)]
    assert len(ours) == len(theirs) == len(served) == TEXTS * PLACES, (len(ours), len(theirs), len(served))
    part = lambda found, of: sum(a == b for a, b in zip(of, found)) / len(of)
    best = [logprobs.argmax().item() for logprobs in exact]
    least = max((logprobs.max() - logprobs[first]).item() for logprobs, first in zip(exact, theirs))
    return off, part(ours, theirs), part(served, theirs), least, part(theirs, best), part(served, best)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    binaries, llama, llama_bin = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]) / "bin"
    given, good = texts(), True
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        whole = place / "F32.gguf"
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        subprocess.run([sys.executable, llama / "convert_hf_to_gguf.py", DEMO / "target", "--outtype", "f32", "--outfile", whole], **quiet)
        for kind in sys.argv[4:] or FORMATS:
            file = place / f"{kind}.gguf"
            if file != whole:
                subprocess.run([llama_bin / "llama-quantize", whole, file, kind], **quiet)
            off, in_f32, served, least, theirs_exact, served_exact = compare(file, binaries, llama_bin, given)
            good &= off <= MOST and min(in_f32, served) >= LEAST
            print(f"{kind:7} {file.stat().st_size / 2**20:6.1f} MiB  log-probabilities at most {off:.1e} off; first tokens as llama.cpp's: {in_f32:.4f} in float32, {served:.4f} as served (theirs at most {least:.2f} less likely); transformers' are {theirs_exact:.4f} of llama.cpp's, {served_exact:.4f} as served",
                  flush=True)
    return not good


if __name__ == "__main__":
    sys.exit(main())
