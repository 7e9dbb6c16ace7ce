#!/usr/bin/env python3
"""What a grammar costs and brings under speculation: random JSON schemas, and one whose tokens are nearly all forced.

    cargo build --release && python3 bench/schemas.py [--schemas 200] [--seed 1]

The demo pair, one stream, each request in turns: held to its schema with speculation and without, and free with speculation and without,
with as many tokens. Every text under a schema is checked against it. Times are those of whole requests. Needs jsonschema.
"""
import argparse, json, os, random, statistics, subprocess, sys, tempfile, time
import jsonschema
import copying, restart

KEYS = "name kind path size count owner since until state note label version author title index parent unit first last total".split()


def schema(rng, depth=0):
    kinds = ["string", "enum", "integer", "number", "boolean", "null", "const"] + ["object", "array"] * (2 if depth < 3 else 0)
    kind = "object" if depth == 0 else rng.choice(kinds)
    if kind == "object":
        names = rng.sample(KEYS, rng.randint(1, 5))
        properties = {name: schema(rng, depth + 1) for name in names}
        required = [name for name in names if rng.random() < 0.8]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": schema(rng, depth + 1), "minItems": rng.randint(0, 2), "maxItems": rng.randint(2, 4)}
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 4), "maxLength": rng.randint(8, 40)}
    if kind == "enum":
        return {"enum": rng.sample(["small", "large", "iterator", "a slice", "borrowed", "owned", 1, 2.5, None, True], rng.randint(1, 5))}
    if kind == "integer":
        low = rng.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 100000)}
    if kind == "number":
        # Without a step a number never needs to end.
        return {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25}
    if kind == "const":
        return {"const": rng.choice(["fixed", 7, False, "std::collections::HashMap"])}
    return {"type": kind}


def forced():
    """Long names, and hardly a choice."""
    names = [f"the_number_of_{what}_that_were_counted_in_this_module" for what in ("functions", "structs", "traits", "constants", "examples", "panics", "macros", "tests")]
    return {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names, "additionalProperties": False}


def ask(port, body):
    before, begun = copying.counters(port), time.monotonic()
    _, answer = copying.call(port, "/v1/completions", body)
    answer = json.loads(answer.read())
    took = time.monotonic() - begun
    counts = [b - a for a, b in zip(before, copying.counters(port))]
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"], took, counts


class Way:
    def __init__(self):
        self.tokens, self.took, self.counts, self.rates = 0, 0.0, [0, 0, 0, 0], []

    def add(self, tokens, took, counts):
        self.tokens, self.took = self.tokens + tokens, self.took + took
        self.counts = [a + b for a, b in zip(self.counts, counts)]
        self.rates.append(took / max(tokens, 1))

    def row(self, name, against):
        passes, drafts, proposed, accepted = self.counts
        ratio = statistics.median(b / a for a, b in zip(self.rates, against.rates))
        return (f"| {name} | {self.tokens} | {self.tokens / passes:.2f} | {drafts / self.tokens:.2f} | {accepted / max(proposed, 1):.0%} |"
                f" {accepted / self.tokens:.0%} | {self.tokens / self.took:.0f} | {ratio:.2f} |")


def compare(port, schemas, rng):
    ways = {name: Way() for name in ("schema, no speculation", "schema", "free, no speculation", "free")}
    for number, one in enumerate(schemas):
        prompt = rng.choice(["# A record in JSON\n\n", "## Configuration\n\nAn example:\n\n", "Returns the following object:\n\n"])
        body = {"prompt": prompt, "seed": number, "temperature": 0.8, "max_tokens": 700}
        held = {"response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": one}}}
        texts, length = [], 0
        for name, off in (("schema, no speculation", True), ("schema", False)):
            text, tokens, took, counts = ask(port, {**body, **held, **({"speculation": {"k_max": 0}} if off else {})})
            try:
                jsonschema.validate(json.loads(text), one)
            except ValueError as error:
                sys.exit(f"{error}: {tokens} tokens of {json.dumps(one)}: {text}")
            texts.append(text)
            length = tokens
            ways[name].add(tokens, took, counts)
        assert texts[0] == texts[1], texts
        free = {**body, "max_tokens": max(length, 1), "ignore_eos": True}
        for name, off in (("free, no speculation", True), ("free", False)):
            _, tokens, took, counts = ask(port, {**free, **({"speculation": {"k_max": 0}} if off else {})})
            ways[name].add(tokens, took, counts)
    print("| requests | tokens | tokens per target pass | draft passes per token | proposals accepted | of all tokens | tokens/s | times as fast as without speculation |")
    print("|---|---|---|---|---|---|---|---|")
    for name, way in ways.items():
        against = ways["schema, no speculation" if name.startswith("schema") else "free, no speculation"]
        print(way.row(name, against))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default=os.path.join(restart.ROOT, "target/release/faser"))
    args = parser.parse_args()
    rng = random.Random(args.seed)
    schemas = [schema(rng) for _ in range(args.schemas)]
    with tempfile.TemporaryDirectory() as folder:
        port = restart.free_port()
        daemon = restart.Daemon(args.binary, port, [], folder)
        daemon.until_ready()
        print(f"{args.schemas} random schemas: every text is valid, and the same with and without speculation\n")
        compare(port, schemas, rng)
        print("\nEight booleans behind long names, 20 times:\n")
        compare(port, [forced()] * 20, rng)
        daemon.kill()


if __name__ == "__main__":
    main()
