#!/usr/bin/env python3
"""Prints the tables of a page on what is prepared under verification: batches, arrivals, one-pass drafts, placements, the ablation.

    cargo build --release
    python3 bench/outcomes_page.py target/release/faser target/outcomes SEED SEED > page.md

As planner_page.py: all is `faser sim`, the seeds are numbers that nobody chose, and a folder keeps the runs of one binary.
`length` is `faser` without overlap, trimming, pruning and lookup: serial execution, by the same binary, of the same draft.
"""

import sys

from planner_page import Simulator

BATCHES = [1, 2, 4, 8, 16, 32, 64]
STEPS = [0.8, 1.2, 2.4, 5]


def cells(ratios):
    """The figures of one place, a seed each."""
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


def table(first, columns, rows):
    print("\n|", " | ".join([*first, *map(str, columns)]), "|")
    print("|" + "---|" * (len(first) + len(columns)))
    for names, values in rows:
        print("|", " | ".join([*map(str, names), *values]), "|")


class Page:
    def __init__(self, simulator, seeds):
        self.simulator, self.seeds = simulator, seeds

    def submit(self, policies, *options):
        """A future of the runs for each seed."""
        return [self.simulator.submit(policies, *options, "--seed", seed) for seed in self.seeds]

    def by_batch(self, names, batches, policies, *options):
        """A row of jobs: one for each batch."""
        return names, [self.submit(policies, *options, "--batches", batch) for batch in batches]

    def rates_over(self, base, rows):
        """tokens/s of `faser` over `base`'s, for each row, place and seed."""
        return [
            (names, [[runs["faser"]["tokens_per_s"] / runs[base]["tokens_per_s"] for runs in map(result, jobs)] for jobs in row])
            for names, row in rows
        ]

    def print_rates(self, title, first, columns, found):
        print(f"\n### {title}")
        table(first, columns, [(names, [cells(ratios) for ratios in row]) for names, row in found])


def result(job):
    return job.result()


def least(found, columns):
    """The lowest figure of a table, and which are below 0.985."""
    all_of = [
        (ratio, " ".join(map(str, [*names, column])))
        for names, row in found
        for column, ratios in zip(columns, row)
        for ratio in ratios
    ]
    below = sorted(entry for entry in all_of if entry[0] < 0.985)
    where = "; ".join(f"{ratio:.3f} at {place}" for ratio, place in below)
    print(f"\nLowest: {min(all_of)[0]:.3f}; below 0.985: {len(below)} of {len(all_of)} ({where})")


def batches(page):
    rows = []
    for lengths in ("humaneval", "sharegpt"):
        for step in STEPS:
            options = ["--preset", "ample-kv", "--lengths", lengths, "--draft-step", step, "--duration", 300]
            rows.append(page.by_batch((lengths, step), BATCHES, ["length", "budget", "faser"], *options))
    for base in ("length", "budget"):
        found = page.rates_over(base, rows)
        page.print_rates(f"Constant batches: tokens/s of `faser` over `{base}`", ["lengths", "draft step, ms"], BATCHES, found)
        least(found, BATCHES)


def arrivals(page):
    rates = [1, 2, 4, 6, 8, 10]
    jobs = {}
    for lengths in ("humaneval", "sharegpt"):
        for step in STEPS:
            common = ["--preset", "ample-kv", "--lengths", lengths, "--draft-step", step, "--duration", 200]
            jobs[lengths, step] = [page.submit(["length", "faser"], *common, "--rates", rate) for rate in rates]
    for figure, word in (("latency_mean_s", "mean latency"), ("tokens_per_s", "tokens/s")):
        rows = [
            (names, [cells(runs["faser"][figure] / runs["length"][figure] for runs in map(result, of)) for of in row])
            for names, row in jobs.items()
        ]
        print(f"\n### Arrivals: {word} of `faser` over `length`")
        table(["lengths", "draft step, ms"], rates, rows)


def one_pass(page):
    rows, steps = [], []
    for step in STEPS[1:]:
        options = ["--preset", "ample-kv", "--lengths", "humaneval", "--draft-step", step, "--duration", 300]
        rows.append(page.by_batch((step,), BATCHES, ["length", "faser"], *options, "--one-pass=0.95"))
        # As the first table has it: run once.
        steps.append(page.by_batch((step,), BATCHES, ["length", "budget", "faser"], *options))
    found = page.rates_over("length", rows)
    page.print_rates("A draft of one pass: tokens/s of `faser` over `length`", ["draft step, ms"], BATCHES, found)
    least(found, BATCHES)
    beside = []
    for (names, row), (_, other) in zip(rows, steps):
        pairs = [zip(map(result, own), map(result, model)) for own, model in zip(row, other)]
        beside.append((names, [[a["faser"]["tokens_per_s"] / b["faser"]["tokens_per_s"] for a, b in of] for of in pairs]))
    page.print_rates("The same over `faser` with a draft that takes a step for each proposal", ["draft step, ms"], BATCHES, beside)


def placements(page):
    rows = []
    for step in STEPS:
        options = ["--preset", "ample-kv", "--lengths", "humaneval", "--draft-step", step, "--duration", 300]
        rows.append(page.by_batch((step,), BATCHES, ["length", "faser"], *options, "--draft-placement", "own"))
    title = "The draft on a GPU of its own: tokens/s of `faser` over `length`"
    page.print_rates(title, ["draft step, ms"], BATCHES, page.rates_over("length", rows))
    sizes = [1, 4, 8, 32, 64]
    rows = []
    for gpus in (2, 4, 8):
        for where in ("first", "replicated", "own"):
            options = ["--pair", "llama3", "--tp", gpus, "--kv-tokens", 262144, "--lengths", "humaneval", "--draft-step", 2.4]
            options += ["--duration", 300, "--draft-placement", where]
            rows.append(page.by_batch((gpus, where), sizes, ["length", "faser"], *options))
    title = "70B over several GPUs: tokens/s of `faser` over `length`"
    page.print_rates(title, ["GPUs", "draft"], sizes, page.rates_over("length", rows))
    base = {names: row for names, row in rows}
    print("\nOver `length` with the draft on the first GPU:")
    printed = []
    for names, row in rows:
        pairs = [zip(map(result, own), map(result, serial)) for own, serial in zip(row, base[names[0], "first"])]
        printed.append((names, [cells(a["faser"]["tokens_per_s"] / b["length"]["tokens_per_s"] for a, b in of) for of in pairs]))
    table(["GPUs", "draft"], sizes, printed)


def ablation(page):
    steps = ["length", "+trim", "+overlap", "+partition", "+prune"]
    rows = []
    for batch in (1, 8, 32, 64, 128):
        options = ["--preset", "eager-drafts", "--lengths", "humaneval", "--batches", batch, "--kv-tokens", 262144]
        jobs = page.submit(["fixed:6", "best-fixed", *steps], *options)
        over = []
        for policy in ("best-fixed", *steps):
            runs = [{name.split(" ")[0]: figures for name, figures in job.result().items()} for job in jobs]
            over.append(cells(run[policy]["tokens_per_s"] / run["fixed:6"]["tokens_per_s"] for run in runs))
        rows.append(((batch,), over))
    print("\n### The paper's ablation: tokens/s over `fixed:6`")
    table(["batch"], ["best fixed", *steps], rows)
    rows = []
    for seed in page.seeds:
        policies = ["fixed:6", "best-fixed", "budget", "faser"]
        options = ["--preset", "eager-drafts", "--arrivals", "swing", "--rates", 4, "--duration", 600, "--seed", seed]
        runs = {name.split(" ")[0]: f["latency_mean_s"] for name, f in page.simulator.submit(policies, *options).result().items()}
        rows.append(((seed,), [*(f"{runs[p]:.2f}" for p in policies), f"{runs['faser'] / runs['fixed:6'] - 1:+.0%}"]))
    print("\n### The swing at a mean of 4, ShareGPT, eager drafts: mean latency, s")
    table(["seed"], ["`fixed:6`", "best fixed", "`budget`", "`faser`", "over `fixed:6`"], rows)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    page = Page(Simulator(*sys.argv[1:3]), [int(seed) for seed in sys.argv[3:]])
    for part in (batches, arrivals, one_pass, placements, ablation):
        part(page)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
