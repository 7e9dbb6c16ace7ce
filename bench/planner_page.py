#!/usr/bin/env python3
"""Prints the tables of a page on the planner: every pass size, the floor, the swing. Ten minutes to an hour on two cores.

    cargo build --release
    python3 bench/planner_page.py target/release/faser target/planner SEED SEED > page.md

The seeds are numbers that nobody chose: the first two words of the hash of the commit at which the planner stood still, for instance.
All is `faser sim`: the same binary and seeds give the same page on any machine. Each run is kept in the folder, so that what was
interrupted goes on; another binary needs another folder. Only Python's own library is needed.
"""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import median

PRESETS = ["ample-kv", "default", "eager-drafts"]
LOADS = {
    "sharegpt": [1, 3, 6, 8, 9, 11],
    "humaneval": [2, 6, 10, 14, 18],
    "longbench": [0.3, 0.6, 1, 1.3],
    "reasoning": [0.1, 0.3, 0.6, 1],
}
SIZES = [256, 512, 1024, 2048]
FIXED = ["off", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6"]
# A cell is good where the mean latency is at most so many times the best one's, and tokens/s at least.
LATENCY, RATE = 1.02, 0.985


class Simulator:
    """Runs `faser sim`, several at once, and keeps what each run printed."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.pool = ThreadPoolExecutor(os.cpu_count())
        os.makedirs(folder, exist_ok=True)

    def submit(self, policies, *options):
        """A future of the runs by policy: {"latency_mean_s": .., "tokens_per_s": ..}. Bounds are policies too."""
        arguments = [str(option) for option in options]
        for policy in policies:
            arguments += ["--policy", policy]
        return self.pool.submit(self.run, arguments)

    def run(self, arguments):
        name = hashlib.sha256(" ".join(arguments).encode()).hexdigest()[:24]
        file = os.path.join(self.folder, name + ".json")
        if not os.path.exists(file):
            command = [self.binary, "sim", "--json", file + ".part", *arguments]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
            os.rename(file + ".part", file)
        with open(file) as text:
            return {run["contender"]: run["figures"] for run in json.load(text)["runs"]}


def every_size(simulator, seeds):
    """For each cell: mean latency and tokens/s of `faser` over the best fixed length's, and its latency over `budget`'s."""
    jobs = {}
    for preset in PRESETS:
        for lengths, rates in LOADS.items():
            for rate in rates:
                for seed in seeds:
                    common = ["--preset", preset, "--lengths", lengths, "--rates", rate, "--seed", seed]
                    cell = (preset, lengths, rate, seed)
                    for size in SIZES:
                        forced = [*common, "--max-pass-rows", size, "--full-passes"]
                        jobs[cell, size] = simulator.submit([*FIXED, "budget", "faser"], *forced)
                    jobs[cell, "automatic"] = simulator.submit(["budget", "faser"], *common)
    found = {}
    for (cell, size), job in jobs.items():
        own = job.result()
        sizes = SIZES if size == "automatic" else [size]
        fixed = [runs[k] for runs in (jobs[cell, s].result() for s in sizes) for k in FIXED]
        faser, budget = own["faser"], own["budget"]
        latency = faser["latency_mean_s"] / min(run["latency_mean_s"] for run in fixed)
        rate = faser["tokens_per_s"] / max(run["tokens_per_s"] for run in fixed)
        found[cell, size] = (latency, rate, faser["latency_mean_s"] / budget["latency_mean_s"])
        print(f"{cell} {size}: latency {latency:.3f}, tokens/s {rate:.3f}", file=sys.stderr)
    columns = [*SIZES, "automatic"]
    print("| preset | lengths |", *(f"{size} |" for size in columns), "least tokens/s | over `budget` |")
    print("|" + "---|" * (len(columns) + 4))
    for preset in PRESETS:
        for lengths in LOADS:
            row = []
            for size in columns:
                of = [v[0] for (cell, s), v in found.items() if cell[:2] == (preset, lengths) and s == size]
                row.append(f"{median(of):.2f}, {max(of):.2f}")
            own = [v for (cell, _), v in found.items() if cell[:2] == (preset, lengths)]
            row += [f"{min(v[1] for v in own):.3f}", f"{max(v[2] for v in own):.2f}"]
            print("|", " | ".join([preset, lengths, *row]), "|")
    bad = {key: v for key, v in found.items() if v[0] > LATENCY or v[1] < RATE}
    by_size = ", ".join(f"{sum(s == size for _, s in bad)} at {size}" for size in columns)
    print(f"\nBeyond {LATENCY} of latency or below {RATE} of tokens/s: {len(bad)} of {len(found)} ({by_size}).\n")
    for (cell, size), v in sorted(bad.items(), key=lambda item: -item[1][0])[:40]:
        print(f"- {' '.join(map(str, cell))}, {size}: latency {v[0]:.3f}, tokens/s {v[1]:.3f}, over `budget` {v[2]:.3f}")


def floor(simulator, seeds):
    """Loads at which speculation cannot pay, beside `off`."""
    kinds = {
        "acceptance 0": ["--acceptance", 0],
        "acceptance 0.1": ["--acceptance", 0.1],
        "inverted confidence": ["--confidence", "inverted"],
        "16 tokens after 512": ["--lengths", "512:16"],
        "16 tokens after 64": ["--lengths", "64:16"],
    }
    loads = [["--rates", rate] for rate in (1, 3, 6, 9)] + [["--batches", batch] for batch in (1, 8, 64)]
    jobs = {}
    for kind, options in kinds.items():
        for load in loads:
            for seed in seeds:
                jobs[kind, *load, seed] = simulator.submit(["off", "faser"], *options, *load, "--seed", seed)
    print("\n| load beside `off` | least tokens/s | where | highest mean latency |\n|---|---|---|---|")
    for kind in kinds:
        rows = []
        for key, job in jobs.items():
            if key[0] == kind:
                off, faser = (job.result()[policy] for policy in ("off", "faser"))
                rate = faser["tokens_per_s"] / off["tokens_per_s"]
                rows.append((rate, f"{key[1][2:]} {key[2]}", faser["latency_mean_s"] / off["latency_mean_s"]))
        least = min(rows)
        print(f"| {kind} | {least[0]:.3f} | {least[1]} | {max(row[2] for row in rows):.3f} |")


def swing(simulator, seeds):
    """Load that swings about a mean of 3 requests a second for ten minutes: `fixed:6` at its best size, `faser`, and what is left."""
    jobs = {}
    for preset in PRESETS:
        for seed in (6, 7, *seeds):
            common = ["--preset", preset, "--arrivals", "swing", "--rates", 3, "--duration", 600, "--seed", seed]
            for size in [384, *SIZES]:
                sized = [*common, "--max-pass-rows", size, "--full-passes"]
                jobs[preset, seed, size] = simulator.submit(["fixed:6"], *sized)
            jobs[preset, seed, None] = simulator.submit(["budget", "faser"], *common, "--bounds")
    print("\n| preset | seed | `fixed:6` at its best size | `faser` | times | `budget` | oracle lengths | free drafts | both |")
    print("|" + "---|" * 9)
    for (preset, seed, size), job in jobs.items():
        if size is None:
            fixed = {s: jobs[preset, seed, s].result()["fixed:6"]["latency_mean_s"] for s in [384, *SIZES]}
            best = min(fixed, key=fixed.get)
            runs = {name: figures["latency_mean_s"] for name, figures in job.result().items()}
            times = fixed[best] / runs["faser"]
            oracle = runs["oracle-lengths"]
            print(
                f"| {preset} | {seed} | {fixed[best]:.2f} at {best} | {runs['faser']:.2f} | {times:.2f} | {runs['budget']:.2f} "
                f"| {oracle:.2f} ({fixed[best] / oracle:.2f} times) | {runs['free-drafts']:.2f} | {runs['oracle-free']:.2f} |"
            )


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    simulator = Simulator(*sys.argv[1:3])
    seeds = [int(seed) for seed in sys.argv[3:]]
    for part in (every_size, floor, swing):
        part(simulator, seeds)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
