"""Writes docs/operating-characteristics.md from the results of the benchmarks of verdicts.

python benchmarks/verdict_page.py > docs/operating-characteristics.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from whorl.benchmarks.reporting import ends, share

RESULTS = Path(__file__).parent / "results"
Result = dict[str, Any]


def _load(name: str) -> Result:
    found: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _share(one: Result, digits: int = 0) -> str:
    """A share in % with its interval and n."""
    if one["share"] is None:
        return "n/a"
    low, high = one["interval"]
    return f"{100 * one['share']:.{digits}f} % [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _healthy(rows: Sequence[Result]) -> Iterator[str]:
    sizes = sorted({row["gpus"] for row in rows})
    fleets = {row["gpus"]: row["fleets"] for row in rows}
    yield "## Healthy fleets: who is named although nothing is wrong"
    yield ""
    yield (
        "Share of fleets without any fault in which a GPU is named, with its 95 % interval, and in brackets how many "
        "GPUs of 1,000 are named. Every GPU ran three probes three times on each of two days. Fleets: "
        + ", ".join(f"{fleets[size]} of {size:,} GPUs" for size in sizes)
        + "."
    )
    yield ""
    two = [row for row in rows if row["sittings"] == 2]
    names = list(dict.fromkeys(row["population"] for row in two))
    cells = []
    for name in names:
        line = [name]
        for size in sizes:
            (row,) = [one for one in two if one["population"] == name and one["gpus"] == size]
            own = row["rules"]["whorl"]
            line.append(f"{_share(own['fleets_with_a_healthy_gpu_named'])} ({own['named_per_1000_healthy']:g})")
        cells.append(line)
    yield from _table(["population", *(f"{size:,} GPUs" for size in sizes)], cells)
    one = [row["rules"]["whorl"]["named_per_1000_healthy"] for row in rows if row["sittings"] == 1]
    yield f"With one day only, at most {max(one):g} of 1,000 healthy GPUs are named in any of these rows."
    yield ""
    yield "Rules used elsewhere, on the same fleets of 256 GPUs: how many of 1,000 healthy GPUs they name."
    yield ""
    rules = list(two[0]["rules"])
    middle = [row for row in two if row["gpus"] == 256]
    yield from _table(
        ["population", *rules],
        [[r["population"], *(f"{r['rules'][n]['named_per_1000_healthy']:g}" for n in rules)] for r in middle],
    )


def _faulty(rows: Sequence[Result]) -> Iterator[str]:
    yield "## Faults of a size: who is found"
    yield ""
    yield (
        "1 % of the GPUs have a fault that costs so much of the time of the probes that it concerns: *memory*: one "
        "probe is slower; *compute*: two probes are slower at the same clock; *heat*: heat holds the clock of one. Two "
        "days. The share found, with its 95 % interval, and in brackets what an oracle finds that knows the law of the "
        "healthy GPUs, from times alone: the best that any rule on times can do at this error rate."
    )
    yield ""
    effects = sorted({row["effect"] for row in rows})
    for size in sorted({row["gpus"] for row in rows}):
        cells = []
        for population in dict.fromkeys(row["population"] for row in rows if row["gpus"] == size):
            for fault in dict.fromkeys(row["fault"] for row in rows):
                own = {
                    row["effect"]: row
                    for row in rows
                    if (row["gpus"], row["population"], row["fault"]) == (size, population, fault)
                }
                false = max(one["rules"]["whorl"]["false_among_named"] for one in own.values())
                found = [
                    f"{_share(rules['whorl']['found'])} ({100 * rules['oracle']['found']['share']:.0f})"
                    for rules in (own[effect]["rules"] for effect in effects)
                ]
                cells.append([population, fault, *found, f"{100 * false:.1f} %"])
        yield f"{size:,} GPUs:"
        yield ""
        header = ["population", "fault", *(f"{100 * one:g} %" for one in effects), "most false among the named"]
        yield from _table(header, cells)
    yield from _of_oracle(rows)
    yield "Rules used elsewhere: the share found in normal fleets of 256 GPUs, all three faults together."
    yield ""
    some = [row for row in rows if row["gpus"] == 256 and row["population"] == "normal"]
    cells = []
    for rule in some[0]["rules"]:
        line = [rule]
        for effect in effects:
            own_ = [row["rules"][rule]["found"] for row in some if row["effect"] == effect]
            line.append(f"{100 * sum(one['hits'] for one in own_) / sum(one['n'] for one in own_):.0f} %")
        false = sum(row["rules"][rule]["named_per_1000_healthy"] for row in some) / len(some)
        cells.append([*line, f"{false:.2g}"])
    yield from _table(["rule", *(f"{100 * one:g} %" for one in effects), "healthy GPUs named, of 1,000"], cells)


def _of_oracle(rows: Sequence[Result]) -> Iterator[str]:
    """What whorl finds of what the oracle finds: faults that times show, all populations and sizes together."""
    timed = [row for row in rows if row["fault"] != "heat"]
    parts = []
    for effect in sorted({row["effect"] for row in rows}):
        rules = [row["rules"] for row in timed if row["effect"] == effect]
        found, reachable = (sum(each[name]["found"]["hits"] for each in rules) for name in ("whorl", "oracle"))
        low, high = ends(min(found, reachable), reachable)
        parts.append(
            f"at {100 * effect:g} % {found} of {reachable} ({100 * found / reachable:.0f} % [{100 * low:.0f}, "
            f"{100 * high:.0f}])"
        )
    yield f"Faults of memory and compute together, found by whorl of those that the oracle finds: {'; '.join(parts)}."
    yield ""


def _healthy_in_short(rows: Sequence[Result]) -> str:
    """All healthy fleets of two days together."""
    two = [row for row in rows if row["sittings"] == 2]
    gpus = sum(row["healthy_gpus"] for row in two)
    named = round(sum(row["rules"]["whorl"]["named_per_1000_healthy"] * row["healthy_gpus"] / 1000 for row in two))
    fleets = sum(row["fleets"] for row in two)
    hits = sum(row["rules"]["whorl"]["fleets_with_a_healthy_gpu_named"]["hits"] for row in two)
    return (
        f"* Of {gpus:,} healthy GPUs in {fleets:,} fleets of {len({row['population'] for row in two})} populations, "
        f"each measured on two days, {named:,} were named, in {hits:,} fleets: at most "
        f"{100 * ends(hits, fleets)[1]:.2g} % of such fleets. The populations were known when the rules were made."
    )


def _found_in_short(rows: Sequence[Result]) -> str:
    """Faults that cost 3 %, in all fleets; and where fewer than 95 % of them are found."""
    of = [row for row in rows if row["effect"] == 0.03]
    sizes = [row["gpus"] for row in of]
    own = [row["rules"]["whorl"]["found"] for row in of]
    hits, n = sum(one["hits"] for one in own), sum(one["n"] for one in own)
    low, high = ends(hits, n)
    fewer = [
        f"{row['fault']} among {row['gpus']:,} GPUs of *{row['population']}* {_share(one)}, n {one['n']:,}"
        for row, one in zip(of, own, strict=True)
        if one["share"] < 0.95
    ]
    return (
        f"* With two days, {100 * hits / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {n:,} faults that cost 3 % "
        f"are found, in fleets of {min(sizes)} to {max(sizes):,} GPUs"
        + (f". Fewer: {'; '.join(fewer)}." if fewer else ".")
    )


def _rest(found: Result) -> Iterator[str]:
    yield "## Many faulty GPUs at once"
    yield ""
    yield "15 % of the GPUs are 10 % slower. The share of them that is found:"
    yield ""
    rows = found["masking"]
    sizes = sorted({row["gpus"] for row in rows})
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    cells = []
    for fault in faults:
        own = {row["gpus"]: _share(row["rules"]["whorl"]["found"]) for row in rows if row["fault"] == fault}
        cells.append([fault, *(own[size] for size in sizes)])
    yield from _table(["fault", *(f"{size:,} GPUs" for size in sizes)], cells)
    yield "## Second modes that nobody recorded"
    yield ""
    yield "The share of fleets in which two modes are seen: above where there is one mode, below where there are two."
    yield ""
    rows = found["valleys"]
    sizes = sorted({row["gpus"] for row in rows})
    cells = []
    for name in dict.fromkeys(row["population"] for row in rows):
        own = {row["gpus"]: _share(row["two_modes_seen"], 1) for row in rows if row["population"] == name}
        cells.append([name, *(own[size] for size in sizes)])
    yield from _table(["population", *(f"{size:,} GPUs" for size in sizes)], cells)


def _intervals(found: Result) -> Iterator[str]:
    """How often intervals hold what they are about (`benchmarks/intervals.py`)."""
    real, cuts = found["levels"], found["levels"]["cuts"]
    off = [cut for cut in cuts if not cut["interval"][0] <= 0.95 <= cut["interval"][1]]
    yield "## Intervals"
    yield ""
    yield (
        "A GPU's level in another sitting, up to a month later. Longhorn's SGEMM, parted at each of its dates, both "
        "ways: the 95 % interval from one part holds the level in the other part in "
        f"{_share(real['pooled'], 1)} of {real['pooled']['n']:,} cases ({len(cuts)} cuts, the same GPUs again and "
        f"again), and in {100 * real['least']:.1f} to {100 * max(cut['share'] for cut in cuts):.1f} % by cut. Of "
        f"the cuts, {len(cuts) - len(off)} have a Wilson interval that contains 95 % (GPUs of a node are alike, so "
        f"{real['design_effect']:g} GPUs count as one)."
        + (
            " Not so, all too wide: "
            + ", ".join(f"{cut['cut']} {100 * cut['share']:.1f} %" for cut in off)
            + ": most of the GPUs were measured again within a day there, and the interval allows for a month."
            if off and all(cut["share"] > 0.95 for cut in off)
            else "".join(f" Not so: {cut['cut']} {100 * cut['share']:.1f} %." for cut in off)
        )
        + " What the interval allows for the month is from these files, so this is no independent test."
    )
    yield ""
    yield (
        "Made fleets of 256 GPUs whose sittings drift apart within about a month, as Longhorn's do; the sitting that "
        "was kept back is two to four weeks after the others. How often the interval holds it, by how many sittings "
        "were used and how far these are apart:"
    )
    yield ""
    rows = found["sittings"]
    sittings = sorted({row["sittings"] for row in rows})
    cells = []
    for name in dict.fromkeys(row["population"] for row in rows):
        for spacing in dict.fromkeys(row["spacing"] for row in rows):
            its = {row["sittings"]: row for row in rows if (row["population"], row["spacing"]) == (name, spacing)}
            cells.append([name, f"a {spacing}", *(_share(its[one], 1) for one in sittings)])
    header = ["population", "apart", *(f"{one} sitting{'' if one == 1 else 's'}" for one in sittings)]
    yield from _table(header, cells)
    hits, n = (sum(row[what] for row in rows) for what in ("hits", "n"))
    yield f"All together: {100 * hits / n:.1f} % of {n:,}. In *cabinets*, 32 GPUs share half of what moves."
    yield ""
    yield (
        "The gain that `advise` says for the best set of 1, 2, 4, 8 and 16 GPUs, packed and spread, against a random "
        "one: how often its 90 % interval holds what the set gains in the other part of the dates, or in a sitting "
        "two to four weeks later. *Off*: what came true less the middle of the interval."
    )
    yield ""
    tried = {"Longhorn's SGEMM, all cuts": found["gains"]} | {
        f"made fleets, {name}": row for name, row in found["made gains"].items()
    }
    yield from _table(
        ["", "held", "n", "off, points, mean", "root of the mean square", "half of the interval"],
        [
            [
                name, _share(row, 1), str(row["n"]), f"{row['bias_points']:+.2f}", f"{row['rms_points']:.2f}",
                f"{row['half_width_points']:.2f}",
            ]
            for name, row in tried.items()
        ],
    )  # fmt: skip
    yield (
        "The 95 % intervals of `variability`: how often they hold the figure of the population, over fleets without "
        "shared effects, with effects of nodes (half of the variance) and of cabinets (0.4, and 0.2 of nodes)."
    )
    yield ""
    figures = ("gpu median", "gpu fence_pct", "run fence_pct", "icc")
    cells = []
    for effects, cabinets in dict.fromkeys((row["effects"], row["cabinets"]) for row in found["variability"]):
        its_rows = [row for row in found["variability"] if (row["effects"], row["cabinets"]) == (effects, cabinets)]
        for gpus in dict.fromkeys(row["gpus"] for row in its_rows):
            some = [row["figures"] for row in its_rows if row["gpus"] == gpus]
            line = []
            for figure in figures:
                hits, n = (sum(row[figure][what] for row in some) for what in ("hits", "n"))
                low, high = ends(hits, n)
                line.append(f"{100 * hits / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]")
            where = f"{cabinets} cabinets" if effects == "cabinets" else ""
            cells.append([effects, f"{gpus} GPUs{where and ', '}{where}", *line])
    yield from _table(["effects of", "fleets of", "median", "fence (GPUs)", "fence (runs)", "ICC"], cells)
    yield (
        "With four cabinets nobody can know how cabinets differ: the intervals are called too narrow where they come "
        "from fewer than 20 units."
    )
    yield ""


def _longhorn(found: Result) -> Iterator[str]:
    real = found["longhorn"]
    yield "## Real data: Longhorn, 416 V100 (2020 and 2022)"
    yield ""
    yield "All that is said about the files:"
    yield ""
    cells = []
    for row in real["rows"]:
        edges = "n/a" if row["low_pct"] is None else f"[{row['low_pct']:.1f}, {row['high_pct']:.1f}]"
        causes = ", ".join(f"{one['pct']:.1f} {one['what']}" for one in row["causes"]) or "n/a"
        name = row["name"][:12] if row["name"].startswith("GPU-") else row["name"]
        cells.append([row["level"], name, row["kind"], row["state"], f"{row['effect_pct']:+.1f} {edges}", causes])
    yield from _table(["level", "name", "kind", "state", "effect, %", "causes, %"], cells)
    yield "No GPU is named in ResNet and BERT: the GPUs of a job finish together, and the page says so."
    yield ""
    yield f"SGEMM split by date at {real['cut'][:10]}:"
    yield ""
    for way, one in real["recurs"].items():
        again = f"{one['named_again']} of {one['measured_again']} that were measured again are named again"
        yield f"* {way} half: {len(one['confirmed'])} confirmed; {again}."
    yield ""


def _speed(found: Result) -> str:
    """What it costs, by the medians of the runs with 12 figures."""
    rows = [row for row in found["rows"] if row["workloads"] == 4]

    def middle(what: str, part: str, unit: str) -> float:
        return float(median(row["parts"][part][unit] for row in rows if row["what"] == what))

    whorl = [row for row in rows if row["what"] == "whorl"]
    took = ", ".join(f"{part} {middle('whorl', part, 'cpu_s'):.1f}" for part in whorl[0]["parts"] if part != "both")
    beside = " and ".join(f"{middle(name, 'both', 'cpu_s'):.1f} ({name})" for name in ("duckdb", "polars"))
    walls = [row["parts"]["both"]["wall_s"] for row in whorl]
    return (
        f"* Speed: {found['gpus']:,} GPUs x {found['runs_of_each_in_a_workload']} runs x 12 figures "
        f"({whorl[0]['runs']:,} runs), from an opened store to fingerprints and verdicts: "
        f"{middle('whorl', 'both', 'cpu_s'):.1f} s of CPU ({took}; median of {len(whorl)}) and at most "
        f"{max(row['peak_mb'] for row in whorl):,} MiB. By the clock it was {min(walls):.1f} to {max(walls):.1f} s on "
        f"{found['machine']['cores']} cores; most of it runs on one core. A modified "
        f"z-score of each GPU's medians, which judges nothing else, takes {beside} s of CPU on the same store."
    )


def _one_figure(found: Result) -> Iterator[str]:
    yield "## One figure of one workload"
    yield ""
    yield from _one_figure_shifted(found["shifted"])
    yield from _one_figure_revisions(found["revisions"])
    rows = found["populations"]
    rules = list(rows[0]["rules"])
    sizes = list(dict.fromkeys(row["gpus"] for row in rows))
    names = list(dict.fromkeys(row["population"] for row in rows))
    cells = {(row["population"], row["gpus"], row["effect"]): row for row in rows}
    fleets = {row["effect"]: row["fleets"] for row in rows}
    yield (
        f"Healthy fleets of which one figure alone is known: the share of {fleets['none']} fleets in which a GPU is "
        "named. The *oracle* knows the law of healthy GPUs and what each node adds, and names a GPU beyond the point "
        "that 3 healthy GPUs in 100 fleets pass. The *rival* knows no law: it centres nodes that are far out as a "
        "whole, and averages over Student's t. The other rules are those that are used elsewhere."
    )
    yield ""
    lines = [
        [name, f"{size:,}", *(_share(share(cells[name, size, "none"]["rules"][rule]["fleets_with_one"], fleets["none"]))
                              for rule in rules)]
        for name in names for size in sizes
    ]  # fmt: skip
    yield from _table(["population", "GPUs", *rules], lines)
    yield (
        "Three faulty GPUs on nodes of their own, slower by 7 standard deviations of the healthy or by 10 %: the share "
        f"found ({3 * fleets['7 sd']} GPUs a row), and in brackets the mean share of the healthy among the named. No "
        "rule can find much more than the oracle without naming healthy GPUs."
    )
    yield ""
    yield from _table(
        ["population", "GPUs", "slower by", *rules],
        [_found_by_rules(cells[name, size, effect]) for effect in ("7 sd", "10 %") for name in names for size in sizes],
    )
    yield f"Smaller faults among 256 GPUs ({3 * fleets['3 %']} faulty GPUs a row):"
    yield ""
    yield from _table(
        ["population", "GPUs", "slower by", *rules],
        [_found_by_rules(cells[name, 256, effect]) for name in names for effect in ("3 %", "5 %", "7 %")],
    )


def _found_by_rules(row: Result) -> list[str]:
    found = [
        f"{_share(share(rule['found'], row['faulty']))} ({100 * rule['false_among_named']:.1f} %)"
        for rule in row["rules"].values()
    ]
    return [row["population"], f"{row['gpus']:,}", row["effect"], *found]


def _one_figure_shifted(rows: Sequence[Result]) -> Iterator[str]:
    yield (
        "Nodes that are slower as a whole beside faulty GPUs: 256 GPUs on 64 nodes, which differ by 0.8 %, and three "
        "GPUs on other nodes that are 7 or 10 % slower; two days, three runs a day "
        "(`benchmarks/verdict_one_figure.py`)."
    )
    yield ""
    lines = [
        [
            f"{100 * row['shift']:g} %", str(row["nodes_shifted"]), _share(row["gpus_found"]),
            "n/a" if row["nodes_found"] is None else _share(row["nodes_found"]),
            f"{row['healthy_gpus_named']} GPUs, {row['healthy_nodes_named']} nodes in {row['fleets']} fleets",
        ]
        for row in rows
    ]  # fmt: skip
    yield from _table(["nodes slower by", "nodes", "GPUs found", "nodes found", "healthy that were named"], lines)


def _one_figure_revisions(rows: Sequence[Result]) -> Iterator[str]:
    yield (
        "Four of 64 nodes are slower for a reason that nobody recorded, among GPUs that differ by 1 %: the share of "
        "these nodes that is named."
    )
    yield ""
    lines = [
        [
            f"{100 * row['effect']:g} %", _share(row["nodes_named"]), _share(row["nodes_in_a_batch"]),
            f"{row['single_gpus_named']} in {row['fleets']} fleets",
        ]
        for row in rows
    ]  # fmt: skip
    yield from _table(["slower by", "as nodes", "as a batch", "single GPUs that were named"], lines)


def page() -> str:
    """The page as Markdown."""
    found, history, causes, passive = (_load(name) for name in ("verdicts", "history", "causes", "passive"))
    machine = found["machine"]
    old = history["longhorn"]["sgemm"]["one_earlier_sitting"]
    right = causes.get("populations", causes)
    jobs = passive["workloads"]["resnet"]["figures"]["power_max"]
    lines = [
        "# How often verdicts are right",
        "",
        (
            "This page is made by `benchmarks/verdict_page.py` from measurements; nothing on it is a promise of theory."
            f" The fleets are made up ({machine['date']}, {machine['cores']} cores, {found['took_s']:,} s), "
            "except where real data are named. Sizes of spreads are those of a real cluster of V100: GPUs differ by "
            "1.7 % in matrix products, of which all but 0.25 % goes with their clocks, and by 0.12 % in memory; a run "
            "by 0.08 %, a day by 0.1 %."
        ),
        "",
        "Read the tables so: a share is followed by its 95 % interval. 0 % of 50 fleets means at most 7 %.",
        "",
        "## In short",
        "",
        "* A GPU is named if chance would name at most 3 of 100 that are named; the tables show what was realised.",
        _healthy_in_short(found["healthy"]),
        _found_in_short(found["faulty"]),
        (
            "* What hides a fault is the spread of its peers: a GPU that is slow because its clock is low is one of "
            "many, unless power, temperature or its own past tell more. Rules on times alone name healthy GPUs instead."
        ),
        f"* Own past: with one earlier sitting, +2 % is found in {100 * old['found']['2 %']['share']:.0f} % at "
        f"{old['false_at_most']['per_1000']:.1f} false of 1,000 sittings (Longhorn, {old['false_at_most']['n']:,} "
        "sittings, dates not used for the noise; [history.md](history.md)).",
        f"* Cause: right in {_share(right['normal']['all'])} of {right['normal']['all']['n']} GPUs of normal fleets "
        "with faults of 2 to 60 % ([causes.md](causes.md)).",
        f"* Ordinary jobs: peak power of ResNet jobs ranks SGEMM speed at {jobs['spearman']:.2f} "
        f"[{jobs['low']:.2f}, {jobs['high']:.2f}], {jobs['n']} GPUs ([passive.md](passive.md)).",
        _speed(_load("judge_speed")),
        "",
    ]
    one_figure = _one_figure(_load("verdict_one_figure"))
    parts = (
        _healthy(found["healthy"]),
        _faulty(found["faulty"]),
        one_figure,
        _rest(found),
        _intervals(_load("intervals")),
        _longhorn(found),
    )
    for part in parts:
        lines += part
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
