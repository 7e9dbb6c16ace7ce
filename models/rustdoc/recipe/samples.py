"""Let the target write: continuations of passages of the training documents, served by faser.

    python samples.py --data DIR --target DIR [--tokens 4000000] [--faser PATH]

A third of the texts is written greedily, a third at temperature 0.7 and a third at 1. They are
added to DIR/samples.npy, 256 tokens a row; those that go round in circles at their end are left out.
"""

import argparse
import http.client
import json
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

STREAMS, LENGTH = 32, 256
TEMPERATURES = (0.0, 0.7, 1.0)
PREFIX = (1, 96)  # tokens of a document passage that a continuation starts from

CONFIG = """
server: {{listen: "127.0.0.1:0"}}
model: {{target: "{target}", draft: none, name: target}}
scheduler: {{max_running: {streams}, max_context: {length}}}
admin: {{socket: "{folder}/faser.sock"}}
"""


class Server:
    """faser with a target, while in the `with`."""

    def __init__(self, faser, target):
        self.faser, self.target = faser, Path(target).resolve()

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name) / "faser.yaml"
        config.write_text(CONFIG.format(target=self.target, streams=STREAMS, length=LENGTH, folder=self.folder.name))
        command = [self.faser, "serve", "-c", config]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            print(line, end="", flush=True)
            if line.startswith("ready: "):
                self.address = line.rsplit("/", 1)[1].strip()
                return self
        raise SystemExit("the server ended")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        self.folder.cleanup()

    def continuation(self, prompt, temperature, seed):
        """The prompt, and what the target writes behind it."""
        connection = http.client.HTTPConnection(self.address)
        body = {"model": "target", "prompt": prompt, "max_tokens": LENGTH - len(prompt), "temperature": temperature}
        body |= {"seed": seed, "ignore_eos": True, "return_token_ids": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.load(connection.getresponse())
        connection.close()
        if "choices" not in answer:
            raise SystemExit(f"the server says {answer}")
        return prompt + answer["choices"][0]["token_ids"]


def circles(text):
    """Whether the last quarter repeats the part before it, some tokens earlier."""
    end = text[-LENGTH // 4 :]
    return any(np.array_equal(end, text[-LENGTH // 4 - by : -by]) for by in range(1, LENGTH // 8))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--tokens", type=int, default=4_000_000)
    built = Path(__file__).parents[3] / "target/release/faser"
    parser.add_argument("--faser", default=shutil.which("faser") or str(built))
    args = parser.parse_args()
    tokens = np.load(args.data / "train.npy")
    file = args.data / "samples.npy"
    texts = [np.load(file)] if file.exists() else []
    written = sum(map(len, texts))
    rng = np.random.default_rng(written)
    begins = np.flatnonzero(tokens[: len(tokens) - LENGTH] == 0)
    dropped = 0
    with Server(args.faser, args.target) as server, ThreadPoolExecutor(STREAMS) as pool:

        def text(index):
            start = starts[index]
            prompt = tokens[start : start + prefixes[index]].tolist()
            seed = written + index
            return server.continuation(prompt, TEMPERATURES[index % len(TEMPERATURES)], seed)

        for _ in range(0, args.tokens, 1024 * LENGTH):
            starts = rng.integers(0, len(tokens) - LENGTH, 1024)
            starts[:256] = rng.choice(begins, 256)
            prefixes = rng.integers(*PREFIX, 1024)
            rows = np.array(list(pool.map(text, range(1024))), dtype=np.uint16)
            kept = rows[[not circles(row) for row in rows]]
            dropped += len(rows) - len(kept)
            written += len(rows)
            texts.append(kept)
            print(f"{sum(map(len, texts)) * LENGTH} tokens written, {dropped} texts left out", flush=True)
            np.save(file, np.concatenate(texts))


if __name__ == "__main__":
    main()
