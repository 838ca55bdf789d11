"""How often the history of a GPU is right: on the Longhorn files and on made populations. Prints JSON.

    python benchmarks/history.py --longhorn FOLDER [--fleets 20] [--quick] > benchmarks/results/history.json

Three parts, which assert nothing:

    longhorn     SGEMM runs of 392 V100. Every sitting is compared with the sittings of its GPU before it. What healthy
                 GPUs do by themselves (the noise) is taken from one half of the dates, and the figures from the other
                 half, both ways. Every alarm counts as false, whatever is wrong with its GPU, and is listed. Found is
                 the share of the same sittings with a change planted in them. Beside it, in the same run: the fixed
                 rule "1.5 % above the median of the earlier sittings", which has seen all dates, and the detector for
                 single runs (`online`). The other three files: what is named in them.
    populations  fleets without a fault: findings for 1,000 GPUs, and the share of fleets with any. Fleets with faults:
                 the share that is found, of what size and how surely; beside the fixed rules 1.5 % and 5 % of the
                 newest sitting against the earlier ones, and 3 standard deviations of the GPU's own past.
    speed        CPU seconds for the arrays of 27,648 GPUs x 21 runs and 12 workloads.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.changes import ALARM, LevelChange, OwnPast, own_past, search, update
from whorl.analysis.verdicts.history import histories
from whorl.analysis.verdicts.levels import RELEVANT
from whorl.analysis.verdicts.sittings import Runs, Sittings, groups_median, sittings
from whorl.analysis.verdicts.variance import Noise, estimate
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, ends
from whorl.store import Store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FILES = ("sgemm", "pagerank", "resnet50", "bert")
PLANTED = (0.01, 0.015, 0.02, 0.03)
FIXED = 0.015
DAY_S = 86_400.0
SITTING, RUN = 0.001, 0.0008  # standard deviations of made fleets: those of the SGEMM file


def per_thousand(count: int, of: int) -> dict[str, Any]:
    """A rate with its n and 95 % interval."""
    return {"per_1000": round(1000 * count / of, 3) if of else None, "count": count, "n": of, **_ends(count, of, 1000)}


def share(count: int, of: int) -> dict[str, Any]:
    return {"share": round(count / of, 3) if of else None, "count": count, "n": of, **_ends(count, of, 1)}


def _ends(count: int, of: int, times: float) -> dict[str, float | None]:
    low, high = (round(times * end, 3) for end in ends(count, of)) if of else (None, None)
    return {"low": low, "high": high}


# The Longhorn files


def longhorn(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in FILES:
            root = Path(temporary) / name
            command = [sys.executable, "-m", "whorl", "import", "--store", str(root), str(folder / f"{name}.csv.gz")]
            subprocess.run(command, check=True, capture_output=True)
            store = Store.open(root)
            campaign = probed(store, every=True)
            began = time.perf_counter()
            told = histories(campaign, store)
            found[name] = {
                "seconds": round(time.perf_counter() - began, 2),
                "looks": told.comparisons,
                "named": {
                    kind: [(departure.name, round(departure.effect_pct, 2)) for departure in getattr(told, kind)]
                    for kind in ("steps", "changes", "drifts", "unstable", "watch")
                },
                "not_judged": [(gap.why, gap.n, gap.total) for gap in told.not_judged],
            }
            if name == "sgemm":
                found[name] |= rolling(campaign.sound)
    return found


def rolling(runs: pl.DataFrame) -> dict[str, Any]:
    """Each sitting of the SGEMM file against those before it, with the noise of the other half of the dates."""
    runs = runs.filter(pl.col("began").is_not_null())
    names = runs["gpu"].unique().sort().to_list()
    numbers = {name: number for number, name in enumerate(names)}
    series = np.array([numbers[name] for name in runs["gpu"]])
    at = runs["began"].dt.epoch("us").to_numpy() / (DAY_S * 1e6)
    value, warmth = np.log(runs["value"].to_numpy()), runs["temperature_c"].to_numpy()
    of, by_run = sittings(series, at, value, len(names), warmth)
    half = float(np.quantile(of.at, 0.5))
    noises: dict[str, Noise] = {}
    for part, mask in (("first", at < half), ("second", at >= half)):
        noise = estimate(*sittings(series[mask], at[mask], value[mask], len(names), warmth[mask]))
        assert noise is not None
        noises[part] = noise
    later = np.flatnonzero(of.place >= 1)
    in_half = {"first": of.at[later] < half, "second": of.at[later] >= half}
    answer: dict[str, Any] = {
        "split": str(np.datetime64(int(half * DAY_S), "s")),
        "sittings_with_an_earlier_one": len(later),
        "noise": {
            part: {
                "days_apart": one.gaps.tolist(),
                "scale_of_a_difference_pct": [round(100 * x, 3) for x in np.sqrt(one.between)],
                "of_a_run_pct": round(100 * float(np.sqrt(one.within)), 3),
                "degrees_of_freedom": one.freedom,
                "pct_a_kelvin": round(100 * one.a_kelvin, 3),
                "from_temperature": [None, *one.warm[1:].tolist()],
                "times_variance": [round(x, 1) for x in one.rough],
                "pairs": one.pairs,
            }
            for part, one in noises.items()
        },
    }
    for label, most in (("all_earlier_sittings", None), ("one_earlier_sitting", 1)):
        answer[label] = _held_out(of, later, most, noises, in_half, names)
    answer["online"] = _online(by_run, warmth[by_run.order], of, noises, half, names)
    return answer


def _held_out(
    of: Sittings, later: Ints, most: int | None, noises: dict[str, Noise], in_half: dict[str, Any], names: list[str]
) -> dict[str, Any]:
    other = {"first": "second", "second": "first"}
    alarms: list[dict[str, Any]] = []
    found = dict.fromkeys(PLANTED, 0)
    fixed_alarms, fixed_found = 0, dict.fromkeys(PLANTED, 0)
    for tested, mask in in_half.items():
        noise, some = noises[other[tested]], later[mask]
        for plant in (0.0, *PLANTED):
            prefix = _prefixes(of, some, most, plant)
            base = prefix.warmth[prefix.first][prefix.series]
            prefix = prefix.less(np.nan_to_num(noise.a_kelvin * (prefix.warmth - base)))
            newest = search(prefix, noise, prefix.first, prefix.per_series)["newest"]
            alarmed = (newest["p"] <= ALARM) & (newest["effect"] >= RELEVANT)
            last = prefix.first + prefix.per_series - 1
            earlier = prefix.keep(np.isin(np.arange(len(prefix)), last, invert=True))
            simple = prefix.value[last] - groups_median(earlier.value, earlier.series, prefix.count) > FIXED
            if plant:
                found[plant] += int(alarmed.sum())
                fixed_found[plant] += int(simple.sum())
                continue
            fixed_alarms += int(simple.sum())
            for row in np.flatnonzero(alarmed):
                sitting = some[row]
                alarms.append(
                    {
                        "gpu": names[of.series[sitting]][:12],
                        "date": str(np.datetime64(int(of.at[sitting] * DAY_S), "s"))[:10],
                        "slower_pct": round(100 * float(newest["effect"][row]), 2),
                    }
                )
    n = len(later)
    return {
        "false_at_most": per_thousand(len(alarms), n),
        "alarms": alarms,
        "found": {f"{100 * plant:g} %": share(count, n) for plant, count in found.items()},
        "fixed_1.5_pct": {
            "false_at_most": per_thousand(fixed_alarms, n),
            "found": {f"{100 * plant:g} %": share(count, n) for plant, count in fixed_found.items()},
        },
    }


def _prefixes(of: Sittings, newest: Ints, most: int | None, plant: float) -> Sittings:
    """A series for each of these sittings: it and those before it (at most so many), `plant` added to it."""
    first = of.first[of.series[newest]]
    if most is not None:
        first = np.maximum(first, newest - most)
    sizes = newest - first + 1
    places = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, newest, strict=True)])
    found = of.take(places, np.repeat(np.arange(len(newest)), sizes), len(newest))
    added = np.zeros(len(found))
    added[found.first + found.per_series - 1] = -plant
    return found.less(added)


def _online(
    runs: Runs, warmth: Floats, of: Sittings, noises: dict[str, Noise], half: float, names: list[str]
) -> dict[str, Any]:
    """The detector for single runs, on each GPU from its first run on; a change is planted in its last sitting."""
    series, at, value, sitting = runs.series, runs.at, runs.value, runs.sitting
    plain = {"first": noises["second"], "second": noises["first"]}
    alarms: list[dict[str, Any]] = []
    found, n = dict.fromkeys(PLANTED, 0), 0
    starts = np.searchsorted(series, np.arange(of.count + 1))
    for number in range(of.count):
        rows = range(starts[number], starts[number + 1])
        if of.per_series[number] < 2:
            continue
        n += 1
        last = sitting[starts[number + 1] - 1]
        for plant in (0.0, *PLANTED):
            state, told = None, []
            for row in rows:
                changed = value[row] + (plant if sitting[row] == last else 0)
                noise = plain["first" if of.at[sitting[row]] < half else "second"]
                state, alarm = update(
                    state, float(np.exp(changed)), float(at[row] * DAY_S), warmth=float(warmth[row]), expected=noise
                )
                if alarm is not None:
                    told.append((int(sitting[row]), alarm.effect_pct))
            if plant:
                found[plant] += any(one == last for one, _ in told)
            else:
                alarms += [{"gpu": names[number][:12], "effect_pct": round(size, 2)} for _, size in told]
    return {
        "false_at_most": per_thousand(len(alarms), int((of.place >= 1).sum())),
        "alarms": alarms,
        "found_within_the_sitting": {f"{100 * plant:g} %": share(count, n) for plant, count in found.items()},
    }


# Made populations

Draw = Callable[..., Floats]


@dataclass(frozen=True)
class Population:
    """Healthy GPUs: what their sittings and runs do, and what they share."""

    sitting: Draw
    run: Draw
    weeks: int = 8
    runs: int = 3
    common: Callable[[np.random.Generator, int, int], tuple[Floats, Ints | None]] | None = None
    glitches: float = 0.0
    remembers: float = 0.0
    wanders: float = 0.0
    days: float = 7.0


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.normal(size=shape)


def tailed(freedom: float) -> Draw:
    def draw(rng: np.random.Generator, *shape: int) -> Floats:
        return rng.standard_t(freedom, size=shape)

    return draw


def driver(rng: np.random.Generator, gpus: int, weeks: int) -> tuple[Floats, Ints | None]:
    """A driver that costs 3 %, on half of the nodes two weeks before the others; it is recorded."""
    del rng
    begins = np.where((np.arange(gpus) // 4) % 2, weeks // 2, weeks // 2 + 2)
    after = np.arange(weeks) >= begins[:, None]
    return np.where(after, 0.03, 0.0), after.astype(np.int64)


def unrecorded(rng: np.random.Generator, gpus: int, weeks: int) -> tuple[Floats, Ints | None]:
    del rng
    return np.where(np.broadcast_to(np.arange(weeks) >= weeks // 2, (gpus, weeks)), 0.02, 0.0), None


def weather(rng: np.random.Generator, gpus: int, weeks: int) -> tuple[Floats, Ints | None]:
    return np.broadcast_to(0.004 * rng.normal(size=weeks), (gpus, weeks)), None


def of_nodes(rng: np.random.Generator, gpus: int, weeks: int) -> tuple[Floats, Ints | None]:
    """Days that the four GPUs of a node share."""
    return np.repeat(0.001 * rng.normal(size=((gpus + 3) // 4, weeks)), 4, axis=0)[:gpus], None


POPULATIONS = {
    "normal": Population(normal, normal),
    "t4 run noise": Population(normal, tailed(4)),
    "t3 sittings and runs": Population(tailed(3), tailed(3)),
    "glitches, 1 run in 1,000": Population(normal, normal, glitches=1e-3),
    "driver step, recorded": Population(normal, tailed(4), common=driver),
    "fleet step, not recorded": Population(normal, tailed(4), common=unrecorded),
    "days shared by the fleet": Population(normal, tailed(4), common=weather),
    "days shared by a node": Population(normal, tailed(4), common=of_nodes),
    "AR(1) days, 0.8": Population(normal, normal, weeks=20, days=1.0, remembers=0.8),
    "random walk": Population(normal, normal, weeks=12, wanders=0.0007),
    "two sittings": Population(normal, tailed(4), weeks=2),
    "one run a sitting": Population(normal, tailed(4), runs=1),
    "two sittings of one run, glitches": Population(normal, tailed(4), weeks=2, runs=1, glitches=1e-3),
}


SORTS = (
    *(("change", size, f"change {100 * size:g} %") for size in (0.01, 0.02, 0.03, 0.05)),
    ("newest", 0.02, "newest sitting 2 %"),
    *(("drift", size, f"drift {100 * size:g} % a week") for size in (0.002, 0.005, 0.01, 0.02)),
    *(("throttling", often, f"throttling in {100 * often:g} % of the runs") for often in (0.05, 0.1, 0.2)),
)
"""What faults do: sort, size, name. Throttled runs are 5 % slower."""


@dataclass
class Made:
    value: Floats
    """(gpus, weeks, runs) logarithms."""
    at: Floats
    regime: Ints | None


def make(kind: Population, gpus: int, rng: np.random.Generator) -> Made:
    """A fleet without faults."""
    shape = (gpus, kind.weeks)
    days = kind.sitting(rng, *shape)
    for week in range(1, kind.weeks if kind.remembers else 0):
        days[:, week] = kind.remembers * days[:, week - 1] + np.sqrt(1 - kind.remembers**2) * days[:, week]
    level = 0.02 * rng.normal(size=(gpus, 1)) + SITTING * days
    level = level + np.cumsum(kind.wanders * rng.normal(size=shape), axis=1)
    regime = None
    if kind.common is not None:
        effect, regime = kind.common(rng, gpus, kind.weeks)
        level = level + effect
    value = level[:, :, None] + RUN * kind.run(rng, gpus, kind.weeks, kind.runs)
    wrong = rng.random(value.shape) < kind.glitches
    value[wrong] += np.log(rng.uniform(1.1, 1.5, int(wrong.sum())))
    at = 20_000 + kind.days * np.arange(kind.weeks)[None, :, None] + 0.015 * np.arange(kind.runs)
    at = at + rng.uniform(0, 0.1, (gpus, 1, 1))
    return Made(value, at, regime)


def judged(made: Made) -> OwnPast:
    gpus, weeks, runs = made.value.shape
    series = np.repeat(np.arange(gpus), weeks * runs)
    regime = None if made.regime is None else np.repeat(made.regime.ravel(), runs)
    return own_past(series, made.at.ravel(), made.value.ravel(), count=gpus, node=np.arange(gpus) // 4, regime=regime)


def series_of(changes: Sequence[LevelChange]) -> set[int]:
    return {change.series for change in changes}


def quiet(kind: Population, gpus: int, fleets: int, seed: int) -> dict[str, Any]:
    """Fleets without a fault: false findings."""
    counts = {"changes": 0, "drifts": 0, "unstable": 0, "watch": 0}
    healthy = named = steps = 0
    for fleet in range(fleets):
        found = judged(make(kind, gpus, np.random.default_rng((seed, gpus, fleet))))
        mine = {
            "changes": series_of(found.steps), "drifts": series_of(found.drifts),
            "unstable": series_of(found.unstable), "watch": series_of(found.watch),
        }  # fmt: skip
        for key, value in mine.items():
            counts[key] += len(value)
        named += bool(mine["changes"] | mine["drifts"] | mine["unstable"])
        healthy += len(mine["changes"] | mine["drifts"] | mine["unstable"])
        steps += len(found.shared)
    n = gpus * fleets
    return {
        "false_gpus": per_thousand(healthy, n),
        "fleets_with_any": share(named, fleets),
        **{key: per_thousand(count, n) for key, count in counts.items()},
        "common_steps_in_a_fleet": round(steps / fleets, 2),
    }


def plant(made: Made, rng: np.random.Generator, share_of_gpus: float) -> dict[str, list[int]]:
    """Faults in this share of the GPUs, on different nodes, of all sorts in turn; and which GPUs have them."""
    gpus, weeks, runs = made.value.shape
    week, days = np.arange(weeks), made.at[0, :, 0] - made.at[0, 0, 0]

    def effect(sort: str, size: float) -> Floats:
        if sort == "change":  # with two sittings or more after it, where there are three
            return np.repeat((size * (week >= rng.integers(1, max(2, weeks - 1))))[:, None], runs, axis=1)
        if sort == "newest":
            return np.repeat((size * (week == weeks - 1))[:, None], runs, axis=1)
        if sort == "drift":
            return np.repeat((size * days / 7)[:, None], runs, axis=1)
        return np.where(rng.random((weeks, runs)) < size, 0.05, 0.0)

    many = max(1, round(share_of_gpus * gpus))
    first = int(rng.integers(0, len(SORTS)))
    chosen: dict[str, list[int]] = {}
    for number, node in enumerate(rng.permutation(gpus // 4)[:many]):
        sort, size, name = SORTS[(first + number) % len(SORTS)]
        gpu = 4 * int(node) + int(rng.integers(0, 4))
        made.value[gpu] += effect(sort, size)
        chosen.setdefault(name, []).append(gpu)
    return chosen


@dataclass
class Tally:
    """Of faults of one sort."""

    n: int = 0
    found: int = 0
    right: int = 0
    covered: int = 0
    intervals: int = 0
    dated: int = 0
    rules: dict[str, int] = field(default_factory=lambda: {"1.5 %": 0, "5 %": 0, "3 sd": 0})


def faulty(kind: Population, gpus: int, fleets: int, seed: int, share_of_gpus: float) -> dict[str, Any]:
    tallies: dict[str, Tally] = {}
    false = named = 0
    for fleet in range(fleets):
        rng = np.random.default_rng((seed, gpus, fleet, 7))
        made = make(kind, gpus, rng)
        before = made.value.copy()
        chosen = plant(made, rng, share_of_gpus)
        found = judged(made)
        by_kind = {
            "change": series_of(found.steps), "drift": series_of(found.drifts),
            "throttling": series_of(found.unstable), "newest": series_of(found.watch),
        }  # fmt: skip
        sure = by_kind["change"] | by_kind["drift"] | by_kind["throttling"]
        ill = {gpu for mine in chosen.values() for gpu in mine}
        named += len(sure)
        false += len(sure - ill)
        medians = np.median(made.value, axis=2)
        excess = medians[:, -1] - np.median(medians[:, :-1], axis=1)
        own = np.std(medians[:, :-1], axis=1, ddof=1) if kind.weeks > 2 else np.full(gpus, np.inf)
        rules = {"1.5 %": excess > 0.015, "5 %": excess > 0.05, "3 sd": excess > 3 * own}
        for name, mine in chosen.items():
            tally = tallies.setdefault(name, Tally())
            sort = name.split()[0]
            for gpu in mine:
                tally.n += 1
                tally.found += gpu in (sure | by_kind["newest"] if sort == "newest" else sure)
                tally.right += gpu in by_kind[sort] or (sort == "newest" and gpu in by_kind["change"])
                for rule, says in rules.items():
                    tally.rules[rule] += bool(says[gpu])
            if sort == "change":
                _sizes(tally, found, made.value - before, mine, kind, rng)
    return {
        "share_of_named_that_are_healthy": share(false, named),
        "faults": {
            name: {
                **share(tally.found, tally.n),
                "of_the_right_kind": tally.right,
                **(
                    {
                        "another_sitting_in_interval": share(tally.covered, tally.intervals),
                        "date_right": share(tally.dated, tally.intervals),
                    }
                    if tally.intervals
                    else {}
                ),
                "fixed_rules": {rule: round(count / max(tally.n, 1), 3) for rule, count in tally.rules.items()},
            }
            for name, tally in tallies.items()
        },
    }


def _sizes(
    tally: Tally, found: OwnPast, planted: Floats, mine: list[int], kind: Population, rng: np.random.Generator
) -> None:
    """Whether the intervals hold what another sitting would show, and the dates the week."""
    first: dict[int, LevelChange] = {}
    for change in found.steps:
        first.setdefault(change.series, change)
    for gpu in set(mine) & set(first):
        another = SITTING * kind.sitting(rng, 1)[0] + RUN * np.mean(kind.run(rng, kind.runs))
        size = float(planted[gpu].max()) + float(another)
        tally.intervals += 1
        tally.covered += bool(first[gpu].low <= size <= first[gpu].high)
        tally.dated += int(np.argmax(planted[gpu, :, 0] > 0) == found.sittings.place[first[gpu].place])


# Speed


def speed(gpus: int, workloads: int) -> dict[str, Any]:
    """The search in arrays, beside the fixed rule of 1.5 % as Polars expressions over the same runs."""
    kind = Population(normal, tailed(4), weeks=7, runs=3)
    made = make(kind, gpus, np.random.default_rng(1))
    began = time.process_time()
    for _ in range(workloads):
        judged(made)
    ours = time.process_time() - began
    series = np.repeat(np.arange(gpus), kind.weeks * kind.runs)
    runs = pl.DataFrame({"gpu": series, "at": made.at.ravel(), "value": made.value.ravel()})
    began = time.process_time()
    for _ in range(workloads):
        _fixed_rule(runs)
    plain = time.process_time() - began
    return {
        "gpus": gpus, "runs_a_gpu": kind.weeks * kind.runs, "workloads": workloads, "cpu_seconds": round(ours, 2),
        "fixed_rule_in_polars_cpu_seconds": round(plain, 2), "times_the_fixed_rule": round(ours / plain, 2),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def _fixed_rule(runs: pl.DataFrame) -> pl.DataFrame:
    """The newest sitting of each GPU above the median of its earlier ones by 1.5 %."""
    new = (pl.col("at").diff() >= 0.25) | (pl.col("gpu").diff() != 0)
    of = runs.sort("gpu", "at").with_columns(new.fill_null(value=True).cum_sum().alias("sitting"))
    of = of.group_by("gpu", "sitting", maintain_order=True).agg(pl.col("value").median())
    earlier = pl.col("value").slice(0, pl.len() - 1).median()
    found = of.group_by("gpu", maintain_order=True).agg((pl.col("value").last() - earlier).alias("slower"))
    return found.filter(pl.col("slower") > FIXED)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--longhorn", type=Path, help="folder with the four files; without it that part is left out")
    parser.add_argument("--fleets", type=int, default=20, help="of 256 GPUs; of other sizes as many GPUs in all")
    parser.add_argument("--quick", action="store_true", help="one size, and no test of speed")
    parser.add_argument("--only-longhorn", action="store_true")
    asked = parser.parse_args(arguments)
    answer: dict[str, Any] = {"machine": machine("numpy", "polars")}
    answer["longhorn"] = longhorn(asked.longhorn) if asked.longhorn else None
    sizes = {256: asked.fleets} if asked.quick else {
        64: 4 * asked.fleets, 256: asked.fleets, 1000: max(1, asked.fleets // 4), 10_000: max(1, asked.fleets // 20),
    }  # fmt: skip
    answer["populations"] = (
        {}
        if asked.only_longhorn
        else {
            name: {
                "without_faults": {str(gpus): quiet(kind, gpus, fleets, number) for gpus, fleets in sizes.items()},
                "with_faults": {
                    f"{100 * ill:g} % of 1,000": faulty(kind, 1000, fleets, number, ill)
                    for ill, fleets in ((0.03, asked.fleets), (0.12, max(1, asked.fleets // 4)))
                },
            }
            for number, (name, kind) in enumerate(POPULATIONS.items())
        }
    )
    answer["online"] = {} if asked.only_longhorn else online_rates()
    if not (asked.quick or asked.only_longhorn):
        answer["speed"] = speed(27_648, 12)
    print(as_json(answer))


def online_rates(sittings_each: int = 6000) -> dict[str, Any]:
    """False alarms of the detector for single runs, and after how many sittings it sees a change."""
    noise = Noise(np.zeros(1), np.full(1, 2 * SITTING**2), RUN**2, 4.0, 0)
    answer: dict[str, Any] = {}
    for name, draw, remembers in (
        ("normal", normal, 0.0), ("t4", tailed(4), 0.0), ("t3", tailed(3), 0.0), ("AR(1), 0.8", normal, 0.8),
    ):  # fmt: skip
        for runs in (1, 3):
            rng = np.random.default_rng(runs)
            alarms = len(_stream(draw, rng, sittings_each, runs, remembers, noise))
            delays = {}
            for size in (0.01, 0.015, 0.02, 0.03):
                seen = []
                for _ in range(100):
                    told = [week for week in _stream(draw, rng, 12, runs, remembers, noise, 6, size) if week >= 6]
                    seen.append(told[0] - 5 if told else 99)
                delays[f"{100 * size:g} %"] = {
                    f"within_{within}": round(float(np.mean(np.array(seen) <= within)), 2) for within in (1, 2, 3, 6)
                }
            answer[f"{name}, {runs} run{'s' if runs > 1 else ''} a sitting"] = {
                "false_alarms": per_thousand(alarms, sittings_each), "found_within_sittings": delays, "n": 100,
            }  # fmt: skip
    return answer


def _stream(
    draw: Draw, rng: np.random.Generator, weeks: int, runs: int, remembers: float, noise: Noise, since: int = 0,
    size: float = 0.0,
) -> list[int]:  # fmt: skip
    state, told, day = None, [], 0.0
    for week in range(weeks):
        day = remembers * day + np.sqrt(1 - remembers**2) * float(draw(rng, 1)[0])
        for run in range(runs):
            value = SITTING * day + RUN * float(draw(rng, 1)[0]) + (size if since and week >= since else 0.0)
            state, alarm = update(state, float(np.exp(value)), week * 7 * DAY_S + 1200.0 * run, expected=noise)
            if alarm is not None:
                told.append(week)
    return told


if __name__ == "__main__":
    main()
