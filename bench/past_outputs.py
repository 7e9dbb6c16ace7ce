#!/usr/bin/env python3
"""What past outputs bring: requests that resemble one another, the demo pair, with and without memory for what was said before.

    cargo build --release && python3 bench/past_outputs.py [--requests 200] [--mixed] [--binary PATH]

The prompts are held-out ones of the demo pair, each asked four times and these in a fixed order of chance: as it is, with a title in
front, without its last words, and as it is again. Every second round of them is sampled (temperature 0.7, a seed each), the others are greedy. One stream.
Each way has a daemon of its own; they take turns, request by request, so that they meet the same machine, and their texts have to be the same. Times are of whole
requests over HTTP. Standard library alone.

With --mixed a third of the prompts are new, a third have been asked before, and a third come with a prediction: the text that will come, every twelfth word of
it another one. So each source has requests that suit it best.
"""
import argparse, http.client, json, os, random, re, sys, tempfile, time
import restart

MEMORY = "16MiB"
WAYS = {
    "no speculation": ("", {"mode": "off"}),
    "draft model": ("", {"mode": "draft"}),
    "prompt-lookup": ("", {"mode": "lookup"}),
    "auto, no memory": ("", {}),
    f"past outputs alone, {MEMORY}": (MEMORY, {"mode": "suffix"}),
    f"auto, {MEMORY}": (MEMORY, {}),
}


def requests(number):
    with open(os.path.join(restart.ROOT, "models/rustdoc/heldout_prompts.json")) as file:
        prompts = [entry["prompt"] for entry in json.load(file)]
    chance = random.Random(7)
    all_of_them = []
    for prompt in prompts[:(number + 3) // 4]:
        shorter = " ".join(prompt.rstrip().split(" ")[:-3]) or prompt
        all_of_them += [prompt, "# The book\n\n" + prompt, shorter, prompt]
    chance.shuffle(all_of_them)
    bodies = [{"prompt": prompt, "max_tokens": 128, "temperature": 0.7 if place % 2 else 0, "seed": place, "include_metrics": True}
              for place, prompt in enumerate(all_of_them[:number])]
    return bodies


def mixed(number, port):
    """A third new, a third with a prediction, a third asked before; `port` is a daemon's that may tell what will come."""
    with open(os.path.join(restart.ROOT, "models/rustdoc/heldout_prompts.json")) as file:
        prompts = [entry["prompt"] for entry in json.load(file)]
    bodies = []
    for place in range(number):
        kind = place % 3
        # Those asked before are sixteen, again and again; new ones are told apart by a title that no other has.
        prompt = prompts[place // 3 % (16 if kind == 2 else len(prompts))]
        prompt = f"# Chapter {place}\n\n{prompt}" if kind < 2 else prompt
        body = {"prompt": prompt, "max_tokens": 128, "temperature": 0, "seed": place, "include_metrics": True}
        if kind == 1:
            status, answer = restart.ask(port, "POST", "/v1/completions", json.dumps({**body, "speculation": {"mode": "off"}}), 600)
            assert status == 200, answer
            words = json.loads(answer)["choices"][0]["text"].split(" ")
            edited = ["another" if at % 12 == 11 else word for at, word in enumerate(words)]
            body["prediction"] = {"type": "content", "content": " ".join(edited)}
        bodies.append(body)
    return bodies


def metric(port, name):
    text = restart.ask(port, "GET", "/metrics")[1].decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--binary", default=os.path.join(restart.ROOT, "target/release/faser"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        daemons = {}
        for memory in sorted({memory for memory, _ in WAYS.values()}):
            config = os.path.join(folder, f"{memory or 'none'}.yaml")
            with open(config, "w") as file:
                file.write(f"speculation: {{suffix_memory: {memory or 'null'}}}\nlog: {{level: warn}}\n")
            for way in [way for way, (of, _) in WAYS.items() if of == memory]:
                port = restart.free_port()
                daemons[way] = restart.Daemon(args.binary, port, ["-c", config], folder)
                daemons[way].until_ready()
        took = {way: [0.0, 0, 0, 0, 0, 0] for way in WAYS}
        bodies = mixed(args.requests, daemons["no speculation"].port) if args.mixed else requests(args.requests)
        for place, body in enumerate(bodies):
            texts = set()
            for way, (_, speculation) in WAYS.items():
                asked = json.dumps({**body, "speculation": speculation})
                begun = time.monotonic()
                status, answer = restart.ask(daemons[way].port, "POST", "/v1/completions", asked, 600)
                seconds = time.monotonic() - begun
                assert status == 200, answer
                answer = json.loads(answer)
                texts.add(answer["choices"][0]["text"])
                source = answer["metrics"]["speculative_decoding"]["sources"]["suffix"]
                counted = [seconds, answer["usage"]["completion_tokens"], answer["metrics"]["num_target_passes"],
                           source["num_draft_tokens"], source["num_accepted_draft_tokens"], source["num_accepted_draft_tokens"] > 0]
                took[way] = [a + b for a, b in zip(took[way], counted)]
            assert len(texts) == 1, f"request {place}: {texts}"
            print(f"{place + 1} of {args.requests}", file=sys.stderr, end="\r")
        print(f"{args.requests} requests, one stream; every text the same in all ways\n")
        print("| proposals | tokens/s | times as fast | tokens per target pass | from past outputs: proposed | accepted | requests with some |")
        print("|---|---|---|---|---|---|---|")
        plain = took["no speculation"]
        for way, (seconds, tokens, passes, proposed, accepted, hits) in took.items():
            print(f"| {way} | {tokens / seconds:.0f} | {plain[0] / seconds:.2f} | {tokens / passes:.2f} | {proposed} | {accepted} | {hits} |")
        kept = metric(daemons[f"auto, {MEMORY}"].port, "faser_suffix_tokens")
        print(f"\nkept at the end: {kept:.0f} tokens of outputs and the ends of their prompts")
        for daemon in daemons.values():
            daemon.kill()


if __name__ == "__main__":
    main()
