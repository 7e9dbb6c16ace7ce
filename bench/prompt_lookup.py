#!/usr/bin/env python3
"""What prompt-lookup and predicted outputs bring: an edited file that the client predicts, and a summary that quotes its source.

    cargo build --release && python3 bench/prompt_lookup.py [--times 5] [--file PATH --rename OLD NEW]

No model that fits here edits files, so the pair of bench/scripted.py plays one: it writes the edited file, or the summary, token for token, at
the cost of a target of some 25 M parameters and a draft that is right in 75 % of places. One daemon, one stream; what is compared is what a request may ask for by
`speculation.mode` and `prediction`, in turns. Times are from the first token to the last. Needs numpy.
"""
import argparse, http.client, json, os, platform, re, statistics, subprocess, sys, tempfile, time
import restart, scripted

ROOT = restart.ROOT
WORDS = [
    "This page is for those who run the daemon from day to day.", "It starts with the smallest thing that works:",
    "Then comes what most people look for first.", "About limits it is brief, and says only", "One sentence deserves to be repeated as it stands:",
    "Elsewhere there is a table for every key.", "What follows concerns upgrades.", "In the authors' own words:",
    "Nothing else in that part surprised this reader.", "The end is about what to do when something fails:",
]


def call(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{path}: {answer.status} {answer.read().decode()}")
    return connection, answer


def tokens(port, text):
    _, answer = call(port, "/tokenize", {"prompt": text, "add_special_tokens": False})
    return json.loads(answer.read())["tokens"]


def counters(port):
    text = restart.ask(port, "GET", "/metrics")[1].decode()
    value = lambda name: sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))
    drafts = sum(float(v) for v in re.findall(r'^faser_passes_total{[^}]*lane="draft"[^}]*} (\S+)$', text, re.M))
    passes = sum(float(v) for v in re.findall(r'^faser_passes_total{[^}]*lane="verify"[^}]*} (\S+)$', text, re.M))
    spec = "faser_spec_decode_num_"
    return [passes, drafts, value(spec + "draft_tokens_total"), value(spec + "accepted_tokens_total")]


def run(port, prompt, wanted, more):
    """Seconds from the first token to the last, and what the counters say of it."""
    body = {"prompt": prompt, "max_tokens": len(wanted), "temperature": 0, "stream": True, "ignore_eos": True, **more}
    _, answer = call(port, "/v1/completions", body)
    text, first, after_first = "", None, None
    for line in answer:
        if line.startswith(b"data: {"):
            piece = json.loads(line[6:])["choices"][0]["text"]
            if piece and first is None:
                first, after_first = time.monotonic(), counters(port)
            text += piece
    took = time.monotonic() - first
    return text, took, [b - a for a, b in zip(after_first, counters(port))]


def task(name, port, source, written, prediction, times):
    ids, script = tokens(port, source), tokens(port, written)
    prompt = ids + [scripted.cipher(token) for token in script]
    predicted = {"prediction": {"type": "content", "content": prediction}} if prediction else {}
    ways = [("no speculation", {"speculation": {"mode": "off"}}), ("draft model", {"speculation": {"mode": "draft"}}),
            ("prompt-lookup", {"speculation": {"mode": "lookup"}}), ("both", {})]
    if prediction:
        ways += [("predicted output", {"speculation": {"mode": "lookup"}, **predicted}), ("all", predicted)]
    took, counts = {way: [] for way, _ in ways}, {}
    run(port, prompt, script[:1], {})  # fills the prefix cache
    for _ in range(times):
        for way, more in ways:
            text, seconds, counts[way] = run(port, prompt, script, more)
            assert text == written, f"{way}: not the text: {text[:200]!r}"
            took[way].append(seconds)
            print(f"{name}: {way}: {len(script) / seconds:.0f} tokens/s", file=sys.stderr)
    print(f"\n{name}: {len(ids)} tokens of source, {len(script)} written, {written.count(chr(10))} lines; every text as it should be\n")
    print("| proposals | tokens per target pass | draft passes | proposed | accepted | tokens/s | times as fast |\n|---|---|---|---|---|---|---|")
    for way, _ in ways:
        passes, drafts, proposed, accepted = counts[way]
        ratios = [a / b for a, b in zip(took["no speculation"], took[way])]
        print(f"| {way} | {(len(script) - 1) / passes:.2f} | {drafts:.0f} | {proposed:.0f} | {accepted / max(proposed, 1):.0%} |"
              f" {len(script) / statistics.median(took[way]):.0f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")


def serving(binary, folder, distance, context):
    """A daemon over a pair for this distance."""
    scripted.pair(folder, distance, context, 0.75)
    config = os.path.join(folder, "faser.yaml")
    with open(config, "w") as file:
        file.write(f"model: {{target: {folder}/target, draft: {folder}/draft}}\nscheduler: {{max_running: 4}}\nlog: {{level: warn}}\n")
    port = restart.free_port()
    daemon = restart.Daemon(binary, port, ["-c", config], folder)
    daemon.until_ready()
    return daemon, port


def quoting(source):
    """A summary: words of its own, and sentences of the source between them."""
    found = [s.strip() for s in re.findall(r"[A-Z][^.|#`]{60,220}\.", source)]
    step = max(1, len(found) // 20)
    parts = []
    for at, sentence in enumerate(found[::step][:20]):
        parts.append(f"{WORDS[at % len(WORDS)]} \"{sentence}\"" if at % 2 else f"{WORDS[at % len(WORDS)]} {WORDS[(at + 3) % len(WORDS)]} \"{sentence}\"")
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/faser"))
    parser.add_argument("--file", default=os.path.join(ROOT, "daemon/operators/src/admin/admin_api.rs"))
    parser.add_argument("--rename", nargs=2, default=["route", "endpoint"])
    parser.add_argument("--source", default=os.path.join(ROOT, "docs/operating.md"))
    args = parser.parse_args()
    file = open(args.file).read()
    old, new = args.rename
    edited, places = re.subn(rf"\b{old}\b", new, file)
    source = open(args.source).read()[:24000]
    jobs = [(f"edit: {old} renamed to {new} in {places} places", file, edited, file), ("quote", source, quoting(source), None)]
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    print(f"{model}, {os.cpu_count()} cores; {subprocess.run([args.binary, '--version'], capture_output=True, text=True).stdout.strip()}")
    with tempfile.TemporaryDirectory() as folder:
        # Any daemon of this tokenizer tells how long a text is.
        daemon, port = serving(args.binary, folder, 1, 2048)
        lengths = [len(tokens(port, written)) for _, _, written, _ in jobs]
        daemon.kill()
        for (name, source, written, prediction), length in zip(jobs, lengths):
            daemon, port = serving(args.binary, folder, length - 1, 20480)
            task(name, port, source, written, prediction, args.times)
            daemon.kill()


if __name__ == "__main__":
    main()
