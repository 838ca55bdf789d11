"""How often intervals hold what they are about, and how often a change of a GPU's level is seen.

    python -m benchmarks.intervals [--only SECTION] [--quick | --long]

cuts         the 95 % interval of a GPU's level in another sitting, at every cut of the dates of Longhorn's SGEMM, both
             ways: the interval from one part, the level in the other. A cut's interval (Wilson) counts as many GPUs as
             there would be if those of a node were not alike (`n_effective`).
sittings     the same on simulated fleets whose last sitting is kept back, two to four weeks after the others
gains        the 90 % interval of what `advise` says that a choice gains, at the same cuts
variability  the 95 % intervals of `variability` in fleets whose GPUs share an effect of node or cabinet
past         a GPU against its own past: SGEMM sittings of Longhorn, with the noise of one half of the dates
             and the figures of the other; and simulated fleets. Beside it the rule "1.5 % above the earlier median".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis import measurements, variability
from whorl.analysis.placement import Scores, advise, scores, sets
from whorl.analysis.runs.sittings import Sittings, groups_median, sittings, step_of
from whorl.analysis.verdicts.changes import ALARM, OwnPast, own_past, search
from whorl.analysis.verdicts.compare import Compared, Fleet, compare
from whorl.analysis.verdicts.levels import RELEVANT, Noise, estimate, levels
from whorl.benchmarks.fleets import PER_NODE, Floats, Ints, Random
from whorl.benchmarks.harness import BenchOptions, ends, public_file, run, say, scratch, share, share_of
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.tests.stores import new_store

Shape = Callable[[Random, tuple[int, ...]], Floats]
LEAST_IN_BOTH = 8
RUNS = 3
SIZES = (1, 2, 4, 8, 16)


def normal(rng: Random, size: tuple[int, ...]) -> Floats:
    return rng.standard_normal(size)


SHAPES: dict[str, Shape] = {
    "normal": normal,
    "t5": lambda rng, size: np.asarray(rng.standard_t(5, size) / np.sqrt(5 / 3)),
    "gamma": lambda rng, size: np.asarray((rng.gamma(2.0, 1.0, size) - 2.0) / np.sqrt(2.0)),
}
"""The last is skewed to the slow side."""


def summary(hits: list[npt.NDArray[np.bool_]], clusters: list[npt.NDArray[Any]], names: list[str]) -> dict[str, Any]:
    """The pooled share and that of each cut. `clusters`: of each hit, whose hits are alike.

    The variance of a share by clusters over that of independent hits, pooled over all cuts, says how many hits count.
    """
    by_cluster = plain = 0.0
    for held, node in zip(hits, clusters, strict=True):
        off = held - held.mean()
        by_cluster += float((np.bincount(np.unique(node, return_inverse=True)[1], off) ** 2).sum())
        plain += float((off**2).sum())
    design_effect = max(1.0, by_cluster / plain) if plain else 1.0
    cuts = []
    for name, held in zip(names, hits, strict=True):
        effective = len(held) / design_effect
        low, high = ends(effective * float(held.mean()), effective)
        figures = {"n": len(held), "n_effective": round(effective, 1), "share": round(float(held.mean()), 4)}
        cuts.append({"cut": name, **figures, "interval": [round(low, 4), round(high, 4)]})
    all_hits = np.concatenate(hits)
    return {
        "pooled": share(int(all_hits.sum()), len(all_hits)),
        "least": round(min(float(held.mean()) for held in hits), 4),
        "design_effect": round(design_effect, 2),
        "cuts": cuts,
    }


def compared(runs: pl.DataFrame, gpus: pl.DataFrame) -> Compared | None:
    """Every GPU's place among its peers, from runs with gpu_no, at (days) and x (ln time)."""
    gpu, at, x = (runs[name].to_numpy() for name in ("gpu_no", "at", "x"))
    return compare(levels(gpu, at, x, gpus.height, step_of(x)), Fleet.of(gpus)[0])


def sgemm() -> tuple[pl.DataFrame, pl.DataFrame]:
    """The dated runs of Longhorn's SGEMM without duplicates, and its GPUs."""
    frame = pl.read_csv(public_file("longhorn/sgemm.csv.gz"), infer_schema_length=None).unique(maintain_order=True)
    node, cabinet = pl.col("node").cast(pl.Int64), pl.col("cabinet").cast(pl.String)
    has_place = (node >= 0) & (cabinet != "-1")
    frame = frame.filter(pl.col("ts") >= 0).select(
        "uuid", (pl.col("ts") / 86_400).alias("at"), pl.col("perf").log().alias("x"),
        pl.col("temp").cast(pl.Float64),
        node=pl.when(has_place).then(pl.format("{}-{}", cabinet, node)), cabinet=pl.when(has_place).then(cabinet),
    )  # fmt: skip
    gpus = frame.group_by("uuid").agg(pl.col("node", "cabinet").drop_nulls().first()).sort("uuid")
    gpus = gpus.with_columns(vbios=pl.lit(None, pl.String), driver=pl.lit(None, pl.String)).with_row_index("gpu_no")
    return frame.drop("node", "cabinet").join(gpus.select("uuid", "gpu_no"), on="uuid"), gpus


def cuts(at: Floats) -> Floats:
    """The days (UTC) on which a second part can begin."""
    return np.unique(np.floor(at))[1:]


def cuts_of_longhorn(_options: BenchOptions) -> dict[str, Any]:
    """The section `cuts`."""
    runs, gpus = sgemm()
    node = gpus["node"].fill_null("").to_numpy()
    alone = np.array([f"alone {number}" for number in range(len(node))])
    node = np.where(node == "", alone, node)
    hits, nodes, names = [], [], []
    for cut in cuts(runs["at"].to_numpy()):
        parts = [compared(runs.filter(part), gpus) for part in (pl.col("at") < cut, pl.col("at") >= cut)]
        for direction, (before, after) in (("forward", parts), ("backward", parts[::-1])):
            if before is None or after is None:
                continue
            in_both = np.isfinite(before.low) & np.isfinite(after.effect)
            if in_both.sum() >= LEAST_IN_BOTH:
                hits.append(((before.low <= after.effect) & (after.effect <= before.high))[in_both])
                nodes.append(node[in_both])
                names.append(f"{date(1970, 1, 1) + timedelta(days=float(cut))} {direction}")
    return summary(hits, nodes, names)


SPACING = {"day": 1.0, "week": 7.0, "month": 28.0}
STILL, SLOW, MEMORY = 0.0007, 0.0027, 30.0
"""Standard deviations of what a sitting adds to a GPU and of what changes slowly, and in how many days the latter falls
to 37 % of itself: as SGEMM on Longhorn (V of `analysis/verdicts/levels.py`)."""


def moving(rng: Random, shape: Shape, at: Floats, *, cabinets: float = 0.0, gpus: int = 256) -> Floats:
    """(gpus, sittings, runs) log times at these days. `cabinets`: the share of it that 32 GPUs have together."""
    own_level = 0.010 * shape(rng, (gpus, 1))

    def moves(count: int) -> Floats:
        slow = np.zeros((count, len(at)))
        for place, remembered in enumerate(np.exp(-np.diff(at, prepend=-np.inf) / MEMORY)):
            slow[:, place] = remembered * slow[:, place - 1] + np.sqrt(1 - remembered**2) * shape(rng, (count,))
        return STILL * shape(rng, (count, len(at))) + SLOW * slow

    moved = np.sqrt(1 - cabinets) * moves(gpus) + np.sqrt(cabinets) * np.repeat(moves(gpus // 32), 32, axis=0)
    log_times: Floats = (own_level + moved)[:, :, None] + 0.0008 * shape(rng, (gpus, len(at), RUNS))
    return log_times


def sittings_kept_back(options: BenchOptions) -> dict[str, Any]:
    """The section `sittings`."""
    fleets = options.pick(1, 20, 20)
    rows = []
    gpus = pl.DataFrame({"gpu_no": np.arange(256), "node": [f"n{gpu // PER_NODE}" for gpu in range(256)]})
    gpus = gpus.with_columns(
        vbios=pl.lit(None, pl.String), driver=pl.lit(None, pl.String), cabinet=pl.format("r{}", pl.col("gpu_no") // 32)
    )
    for name, shape in {**SHAPES, "cabinets": normal}.items():
        for count in (1, 2, 4, 8):
            for spacing, days in SPACING.items():
                hits, clusters = [], []
                for number in range(fleets):
                    rng = np.random.default_rng([number, count, round(days)])
                    at: Floats = 20_000.0 + days * np.arange(count, dtype=float)
                    at = np.append(at, at[-1] + rng.uniform(14.0, 30.0))
                    x = moving(rng, shape, at, cabinets=0.5 * (name == "cabinets"))
                    gpu_no, sitting, run = (index.ravel() for index in np.indices(x.shape))
                    runs = pl.DataFrame({"gpu_no": gpu_no, "at": at[sitting] + 0.01 * run, "x": x.ravel()})
                    places = compared(runs.filter(pl.col("at") < at[-1]), gpus)
                    assert places is not None
                    later = np.median(x[:, -1], axis=1)
                    held = (places.low <= later - np.median(later)) & (later - np.median(later) <= places.high)
                    hits.append(held)
                    clusters.append(np.arange(256) // 32)
                pooled = summary(hits, clusters, [str(number) for number in range(fleets)])
                rows.append({"population": name, "sittings": count, "spacing": spacing, **pooled["pooled"]})
    return {"gpus": 256, "rows": rows}


def part(store: Store, runs: pl.DataFrame, folder: Path) -> Store:
    """A store with these runs only."""
    of_part = pl.col("run_id").is_in(runs["run_id"].implode())
    part_store = new_store(folder)
    tables = {name: store.collect(store.scan(name).filter(of_part)).to_arrow() for name in ("runs", "results")}
    part_store.append({**tables, "gpus": store.collect(store.scan("gpus")).to_arrow()}, "part")
    return part_store


def realised(scored: Scores, workload: str, later: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What the sets of `advise` gain where the GPUs take the times `later`, beside what was promised."""
    nodes = {name: number for number, name in enumerate(sorted({node for node in scored.nodes if node}))}
    usable = [number for number, node in enumerate(scored.nodes) if node and scored.gpus[number] in later]
    times = np.array([[later[scored.gpus[number]] for number in usable]], dtype=np.float32)
    ground = sets.NodeLayout(np.array([nodes[scored.nodes[number] or ""] for number in usable], dtype=np.intp))
    for gpus in SIZES:
        advice = advise(scored, workload, gpus=gpus)
        for kind, chosen in (("packed", advice.packed), ("spread", advice.spread)):
            gain = next((gain for gain in advice.gains if (gain.choice, gain.against) == (kind, "random")), None)
            if chosen is None or gain is None or gain.lower == gain.upper:
                continue
            if kind == "packed":
                usual = sets.random_packed(times, ground, gpus, np.random.default_rng(1))
            else:
                usual = sets.random_spread(times, ground, gpus)
            assert usual is not None
            true = 1.0 - max(later[gpu] for gpu in chosen.gpus) / float(usual[0])
            yield {
                "gpus": gpus, "kind": kind, "held": bool(gain.lower <= true <= gain.upper),
                "off": true - gain.median, "half_width": (gain.upper - gain.lower) / 2,
            }  # fmt: skip


def of_splits(rows: list[dict[str, Any]]) -> dict[str, Any]:
    off = np.array([row["off"] for row in rows])
    return {
        **share(sum(row["held"] for row in rows), len(rows)),
        "bias_points": round(100 * float(off.mean()), 3),
        "rms_points": round(100 * float(np.sqrt((off**2).mean())), 3),
        "half_width_points": round(100 * float(np.median([row["half_width"] for row in rows])), 3),
    }


def gains(_options: BenchOptions) -> dict[str, Any]:
    """What `advise` promised from one part of the dates, and what the other part shows."""
    rows, of_scores = [], []
    with scratch() as folder:
        store = Store.create(folder / "store")
        for name in ("sgemm", "pagerank"):  # the second says where GPUs stand
            import_file(store, public_file(f"longhorn/{name}.csv.gz"), Options(cluster="longhorn"))
        runs = measurements(store, workloads=["sgemm"], run_ids=True).drop_nulls("began").cast({"gpu": pl.String})
        days = runs["began"].dt.date()
        for cut in days.unique().sort().to_list()[1:]:
            halves = [runs.filter(days < cut), runs.filter(days >= cut)]
            gpus_of_both = set(halves[0]["gpu"]) & set(halves[1]["gpu"])
            if len(gpus_of_both) < max(SIZES):
                continue
            halves = [half.filter(pl.col("gpu").is_in(list(gpus_of_both))) for half in halves]
            scored = [scores(part(store, half, folder / f"{cut}-{n}"), ["sgemm"]) for n, half in enumerate(halves)]
            for before, after in (scored, scored[::-1]):
                raw = after.of["sgemm"].raw
                later = {gpu: float(level) for gpu, level in zip(after.gpus, raw, strict=True) if np.isfinite(level)}
                rows += list(realised(before, "sgemm", later))
                level = np.array([later.get(gpu, np.nan) for gpu in before.gpus])
                score = before.of["sgemm"]
                in_both = np.isfinite(level) & np.isfinite(score.lower)
                of_scores.append(((score.lower <= level) & (level <= score.upper))[in_both])
    held = np.concatenate(of_scores)
    return {"gains": of_splits(rows), "scores": share(int(held.sum()), len(held))}


# -- variability -----------------------------------------------------------------------------------------------------

FIGURES = ("median", "fence_pct", "p95p5_pct", "cov_pct")


def fleet(rng: Random, shape: Shape, groups: tuple[int, int, int], shares: tuple[float, float]) -> pl.DataFrame:
    """Five runs of each GPU: GPUs differ by 2 %, runs by 1 %. `groups`: cabinets, nodes in each, GPUs in each;
    `shares`: of the variance between GPUs, that of the cabinet and that of the node."""
    cabinets, nodes, gpus = groups
    cabinet = np.repeat(shape(rng, (cabinets,)), nodes * gpus)
    node = np.repeat(shape(rng, (cabinets * nodes,)), gpus)
    own_level = shape(rng, (cabinets * nodes * gpus,))
    level = 2.0 * (np.sqrt(shares[0]) * cabinet + np.sqrt(shares[1]) * node + np.sqrt(1 - sum(shares)) * own_level)
    times = 100.0 + level[:, None] + (normal if shape is SHAPES["gamma"] else shape)(rng, (len(own_level), 5))
    gpu = np.repeat(np.arange(len(own_level)), 5)
    return pl.DataFrame({"gpu": gpu, "value": times.ravel()}).with_columns(
        pl.col("gpu").cast(pl.String), node=pl.format("n{}", pl.col("gpu") // gpus),
        cabinet=pl.format("r{}", pl.col("gpu") // (nodes * gpus)),
        cluster=pl.lit("c"), workload=pl.lit("w"), unit=pl.lit("ms"),
    )  # fmt: skip


def truth(shape: Shape, shares: tuple[float, float]) -> dict[str, float]:
    times = fleet(np.random.default_rng(1), shape, (12_500, 4, 4), shares)["value"].to_numpy().reshape(-1, 5)
    figures = {"icc": 0.8}
    for level, values in (("run", times.ravel()), ("gpu", np.median(times, axis=1))):
        p5, q1, median, q3, p95 = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
        figures |= {
            f"{level} median": median,
            f"{level} fence_pct": 400.0 * (q3 - q1) / median,
            f"{level} p95p5_pct": 100.0 * (p95 - p5) / median,
            f"{level} cov_pct": 100.0 * values.std() / values.mean(),
        }
    return {key: float(value) for key, value in figures.items()}


def _prefixes(measured: Sittings, newest: Ints, most: int | None, plant: float) -> Sittings:
    """A series for each of these sittings: it and those before it (at most so many), `plant` added to it."""
    first = measured.first[measured.series[newest]]
    if most is not None:
        first = np.maximum(first, newest - most)
    sizes = newest - first + 1
    places = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, newest, strict=True)])
    prefix = measured.take(places, np.repeat(np.arange(len(newest)), sizes), len(newest))
    added = np.zeros(len(prefix))
    added[prefix.first + prefix.per_series - 1] = -plant
    return prefix.less(added)


def of_variability(options: BenchOptions) -> dict[str, Any]:
    """How often the intervals hold the figure of the population, and which level was resampled."""
    fleets, rows = options.pick(2, 40, 100), []
    for effects, shares in (("none", (0.0, 0.0)), ("nodes", (0.0, 0.5)), ("cabinets", (0.4, 0.2))):
        for name, shape in SHAPES.items():
            true = truth(shape, shares)
            for groups in ((8, 8, PER_NODE),) if effects == "cabinets" else ((1, 25, PER_NODE),):
                say(f"variability: {effects}, {name}")
                hits: dict[str, list[bool]] = {figure: [] for figure in true}
                for seed in range(fleets):
                    table = variability(
                        fleet(np.random.default_rng([seed, groups[0]]), shape, groups, shares), replicates=200
                    )
                    icc = table[0].icc
                    intervals = {f"{row.level} {figure}": row.interval[figure] for row in table for figure in FIGURES}
                    intervals["icc"] = None if icc.low is None or icc.high is None else (icc.low, icc.high)
                    for figure, interval in intervals.items():
                        if interval is not None:
                            hits[figure].append(interval[0] <= true[figure] <= interval[1])
                rows.append(
                    {"effects": effects, "population": name, "gpus": int(np.prod(groups)), "fleets": fleets,
                     "figures": {figure: share_of(held) for figure, held in hits.items()}}
                )  # fmt: skip
    return {"rows": rows}


# -- the GPU's past --------------------------------------------------------------------------------------------------

PLANTED = (0.01, 0.015, 0.02, 0.03)
FIXED = 0.015
SITTING, RUN_SD = 0.001, 0.0008
"""Standard deviations of simulated fleets: those of the SGEMM file."""
POPULATIONS: dict[str, dict[str, Any]] = {
    "normal": {}, "t4 runs": {"run_tail": 4}, "t3 sittings and runs": {"run_tail": 3, "sitting_tail": 3},
    "glitches, 1 run in 1,000": {"glitches": 1e-3}, "days shared by the fleet": {"shared": 0.004},
    "AR(1) days, 0.8": {"remembers": 0.8, "weeks": 20, "days": 1.0}, "two sittings": {"weeks": 2, "run_tail": 4},
    "one run a sitting": {"runs": 1, "run_tail": 4},
}  # fmt: skip
SORTS = (("change", 0.01), ("change", 0.02), ("change", 0.05), ("drift", 0.005), ("drift", 0.02), ("throttling", 0.1))
"""What faults do: a lasting change, a drift a week, a share of runs that are 5 % slower."""


def past(options: BenchOptions) -> dict[str, Any]:
    """The section `past`."""
    rows = [simulated_past(name, options.pick(1, 20, 60), seed) for seed, name in enumerate(POPULATIONS)]
    return {"longhorn": rolling(), "simulated": rows}


def rolling() -> dict[str, Any]:
    """Each SGEMM sitting against those before it. Every alarm counts as false, whatever is wrong with its GPU."""
    runs, gpus = sgemm()
    series, at, value, warmth = (runs[name].to_numpy() for name in ("gpu_no", "at", "x", "temp"))
    measured, _ = sittings(series, at, value, gpus.height, warmth)
    half = float(np.quantile(measured.at, 0.5))
    noises: dict[bool, Noise] = {}
    for late, mask in ((False, at < half), (True, at >= half)):
        noise = estimate(*sittings(series[mask], at[mask], value[mask], gpus.height, warmth[mask]))
        assert noise is not None
        noises[late] = noise
    later = np.flatnonzero(measured.place >= 1)
    alarms = dict.fromkeys((0.0, *PLANTED), 0)
    by_rule = dict(alarms)
    for late in (False, True):
        newest_sittings = later[(measured.at[later] >= half) == late]
        for plant in alarms:
            prefix = _prefixes(measured, newest_sittings, None, plant)
            base = prefix.warmth[prefix.first][prefix.series]
            prefix = prefix.less(np.nan_to_num(noises[not late].a_kelvin * (prefix.warmth - base)))
            newest = search(prefix, noises[not late], prefix.first, prefix.per_series)["newest"]
            alarms[plant] += int(((newest["p"] <= ALARM) & (newest["effect"] >= RELEVANT)).sum())
            last = prefix.first + prefix.per_series - 1
            earlier = prefix.keep(np.isin(np.arange(len(prefix)), last, invert=True))
            slower = prefix.value[last] - groups_median(earlier.value, earlier.series, prefix.count)
            by_rule[plant] += int((slower > FIXED).sum())
    return {
        name: {"false_at_most": share(counts[0.0], len(later)),
               "found": {f"{100 * plant:g} %": share(counts[plant], len(later)) for plant in PLANTED}}
        for name, counts in (("whorl", alarms), ("fixed 1.5 %", by_rule))
    }  # fmt: skip


def shaped(random: Random, tail: int | None, size: tuple[int, ...]) -> Floats:
    """Normal draws, or Student's t."""
    return random.standard_normal(size) if tail is None else random.standard_t(tail, size)


def sittings_of(random: Random, gpus: int, kind: dict[str, Any]) -> tuple[Floats, Floats]:
    """(gpus, weeks, runs) log times of healthy GPUs, and when they ran (days)."""
    weeks, runs = kind.get("weeks", 8), kind.get("runs", 3)
    days = shaped(random, kind.get("sitting_tail"), (gpus, weeks))
    if lasts := kind.get("remembers"):
        for week in range(1, weeks):
            days[:, week] = lasts * days[:, week - 1] + np.sqrt(1 - lasts**2) * days[:, week]
    level = 0.02 * random.normal(size=(gpus, 1)) + SITTING * days + kind.get("shared", 0.0) * random.normal(size=weeks)
    value = level[:, :, None] + RUN_SD * shaped(random, kind.get("run_tail"), (gpus, weeks, runs))
    value = value + np.where(random.random(value.shape) < kind.get("glitches", 0.0), 0.3, 0.0)
    at = 20_000 + kind.get("days", 7.0) * np.arange(weeks)[None, :, None] + 0.015 * np.arange(runs)
    return value, at + random.uniform(0, 0.1, (gpus, 1, 1))


def judged(value: Floats, at: Floats) -> OwnPast:
    """What whorl says of the past of these GPUs."""
    gpus, weeks, runs = value.shape
    series = np.repeat(np.arange(gpus), weeks * runs)
    return own_past(series, at.ravel(), value.ravel(), count=gpus, node=np.arange(gpus) // 4, regime=None)


def named_in(answer: OwnPast) -> set[int]:
    """The GPUs with a change, a drift or throttled runs."""
    return {row.series for group in (answer.steps, answer.drifts, answer.unstable) for row in group}


def simulated_past(name: str, fleets: int, seed: int) -> dict[str, Any]:
    """Healthy fleets of 256: GPUs that are named; and faults in 3 % of the GPUs, which are found."""
    kind, gpus = POPULATIONS[name], 256
    false = fleets_with_false = 0
    hits: dict[str, list[bool]] = {}
    by_rule: dict[str, list[bool]] = {}
    for number in range(fleets):
        random = np.random.default_rng((seed, gpus, number))
        value, at = sittings_of(random, gpus, kind)
        names = named_in(judged(value, at))
        false, fleets_with_false = false + len(names), fleets_with_false + bool(names)
        weeks, runs = value.shape[1:]
        chosen = 4 * random.permutation(gpus // 4)[:8] + random.integers(0, 4, 8)
        sorts = [SORTS[(number + place) % len(SORTS)] for place in range(8)]
        for gpu, (sort, size) in zip(chosen.tolist(), sorts, strict=True):
            week = np.arange(weeks)[:, None]
            if sort == "throttling":
                value[gpu] += np.where(random.random((weeks, runs)) < size, 0.05, 0.0)
            else:
                value[gpu] += size * (
                    week >= max(1, weeks // 2) if sort == "change" else week * kind.get("days", 7.0) / 7
                )
        names, medians = named_in(judged(value, at)), np.median(value, axis=2)
        excess = medians[:, -1] - np.median(medians[:, :-1], axis=1)
        for gpu, (sort, size) in zip(chosen.tolist(), sorts, strict=True):
            hits.setdefault(f"{sort} {100 * size:g} %", []).append(gpu in names)
            by_rule.setdefault(f"{sort} {100 * size:g} %", []).append(bool(excess[gpu] > FIXED))
    return {
        "population": name, "fleets": fleets, "healthy_gpus_named": share(false, gpus * fleets),
        "fleets_with_one": share(fleets_with_false, fleets),
        "found": {sort: share_of(held) for sort, held in sorted(hits.items())},
        "found_by_the_fixed_rule": {sort: share_of(held) for sort, held in sorted(by_rule.items())},
    }  # fmt: skip


SECTIONS = {
    "cuts": cuts_of_longhorn, "sittings": sittings_kept_back, "gains": gains, "variability": of_variability,
    "past": past,
}  # fmt: skip

if __name__ == "__main__":
    run("intervals", SECTIONS, packages=("numpy", "polars"))
