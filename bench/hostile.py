#!/usr/bin/env python3
"""How long streams stand still while others send hostile grammars.

    cargo build --release && python3 bench/hostile.py [--streams 8] [--copies 4] [--seconds 20]

The demo pair. Some streams decode all the time, first alone, then beside four copies of each attack at once, sent again until the time is
over. The gaps are those between two chunks of a stream, over all streams. Memory is that of the daemon and of the processes that it has
started, at most; the processor share is that of the second after the last attack has ended.
"""
import argparse, json, os, subprocess, tempfile, threading, time, urllib.error, urllib.request
import restart

AMBIGUOUS = 'start: e\ne: e e e e | "a"* | ("a"*)*'


def chain(links, link):
    schemas = {f"d{number}": link({"$ref": f"#/$defs/d{number + 1}"}) for number in range(links)}
    return {"guided_json": {"$ref": "#/$defs/d0", "$defs": {**schemas, f"d{links}": {"type": "integer"}}}}


def rules(links, name):
    lines = [f'{name}{number}: "a" {name}{number + 1}' for number in range(links)]
    return {"guided_grammar": "\n".join([f"start: {name}0", *lines, f'{name}{links}: "b"'])}


ATTACKS = {
    "allOf, 362 links": chain(362, lambda ref: {"allOf": [ref]}),
    "items, 1,000 links": chain(1000, lambda ref: {"type": "array", "items": ref}),
    "$ref, 1,400 links": chain(1400, lambda ref: ref),
    "Lark rules, 3,000 links": rules(3000, "r"),
    "Lark terminals, 3,000 links": rules(3000, "T"),
    "ambiguous, forced": {"guided_grammar": AMBIGUOUS, "logit_bias": "a"},
    "`a?` 300 times": {"guided_regex": "a?" * 300},
    "`a?` 30,000 times": {"guided_regex": "a?" * 30000},
    "enum of 3,000": {"guided_json": {"enum": [f"value {number}" for number in range(3000)]}},
}


def call(port, path, body, timeout=300):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


def until_ready(port):
    for _ in range(600):
        try:
            if restart.ask(port, "GET", "/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the daemon does not become ready")


class Streams:
    def __init__(self, port, count):
        self.port, self.gaps, self.over, self.texts = port, [], threading.Event(), [set() for _ in range(count)]
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        while not self.over.is_set():
            body = {"model": "rustdoc", "prompt": f"# Part {number}\n", "max_tokens": 400, "seed": number, "stream": True, "ignore_eos": True}
            text, last = "", None
            for line in call(self.port, "/v1/completions", body):
                if not line.startswith(b"data: {"):
                    continue
                now = time.monotonic()
                if last:
                    self.gaps.append(now - last)
                last, text = now, text + json.loads(line[6:])["choices"][0]["text"]
            self.texts[number].add(text)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert all(len(texts) == 1 for texts in self.texts), "a stream's text is not always the same"
        gaps = sorted(self.gaps)
        return gaps[len(gaps) // 2] * 1e3, gaps[int(len(gaps) * 0.99)] * 1e3, gaps[-1] * 1e3


def family(pid):
    """The process and its descendants."""
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            children += [int(child) for child in file.read().split()]
    return [pid] + [deeper for child in children for deeper in family(child)]


def of_family(pid, read):
    total = 0
    for member in family(pid):
        try:
            total += read(member)
        except OSError:
            pass
    return total


def private_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attack(port, extra, seconds, answers):
    until = time.monotonic() + seconds
    # Made once: what this process does, the server cannot do meanwhile.
    body = json.dumps({"model": "rustdoc", "prompt": "x", "max_tokens": 300, "temperature": 0, **extra}).encode()
    while time.monotonic() < until:
        try:
            with call(port, "/v1/completions", body) as answer:
                answers.append(answer.status)
                answer.read()
        except urllib.error.HTTPError as error:
            answers.append(error.code)
            error.read()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", default="target/release/faser")
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--copies", type=int, default=4)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--only", default="")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = open(f"{folder}/log", "w")
        port = restart.free_port()
        server = subprocess.Popen([options.binary, "serve", "--listen", f"127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            until_ready(port)
            with call(port, "/tokenize", {"model": "rustdoc", "prompt": "a", "add_special_tokens": False}) as answer:
                token = json.loads(answer.read())["tokens"][-1]
            streams = Streams(port, options.streams)
            time.sleep(options.seconds)
            median, p99, worst = streams.end()
            print("| beside the streams | answers | median gap, ms | p99 | longest | longest / p99 alone | memory at most, MiB | cores in use after |")
            print("|---|---|---|---|---|---|---|---|")
            print(f"| nothing | | {median:.1f} | {p99:.1f} | {worst:.1f} | {worst / p99:.1f} | {of_family(server.pid, private_mib):.0f} | |", flush=True)
            for name, extra in ATTACKS.items():
                if options.only not in name:
                    continue
                if extra.get("logit_bias") == "a":
                    extra = {**extra, "logit_bias": {str(token): 100}}
                streams, answers = Streams(port, options.streams), []
                threads = [threading.Thread(target=attack, args=(port, extra, options.seconds, answers)) for _ in range(options.copies)]
                for thread in threads:
                    thread.start()
                memory = 0
                while any(thread.is_alive() for thread in threads):
                    memory = max(memory, of_family(server.pid, private_mib))
                    time.sleep(0.05)
                median, _, longest = streams.end()
                begun = of_family(server.pid, cpu_s)
                time.sleep(1)
                busy = of_family(server.pid, cpu_s) - begun
                counts = ", ".join(f"{answers.count(status)} x {status}" for status in sorted(set(answers)))
                own = sorted(streams.gaps)
                print(f"| {name} | {counts} | {median:.1f} | {own[int(len(own) * 0.99)] * 1e3:.1f} | {longest:.1f} | {longest / p99:.1f} | {memory:.0f} | {busy:.2f} |", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
