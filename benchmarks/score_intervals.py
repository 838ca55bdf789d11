"""How often the 90 % intervals of scores hold the GPU's level at another time, on published data. Prints JSON.

    python benchmarks/score_intervals.py > benchmarks/results/score_intervals.json

Longhorn's runs of a workload are split in two; scores of one half are judged by the measured levels of the other,
both ways. SGEMM is split by its dates: the first seven against the last seven ("dates"), and every other date
("alternate_dates"). The other workloads have one day for most GPUs: their odd runs against their even runs ("runs").
Where jobs couple GPUs, a set of GPUs counts once.

`another_sitting` is the interval that whorl gives. `runs_at_hand` is that of the score in the long run as if the runs
at hand were all that differs: the alternative, and what whorl gave before. Each with the share that held, its 95 %
Wilson interval and n; `half_width_pct` is the median.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis import measurements
from whorl.analysis.placement import Scores, scores
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, wilson
from whorl.store import Store
from whorl.store.importing import Options, import_file

LONGHORN = Path(__file__).resolve().parents[2] / "shared" / "data" / "longhorn"
FILES = ("sgemm", "pagerank", "resnet50", "bert")


def halves(runs: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.DataFrame]]:
    """The ways to split the runs of a workload."""
    runs = runs.drop_nulls("began").sort("began").with_columns(date=pl.col("began").dt.date())
    dates = runs["date"].unique().sort().to_list()
    if len(dates) >= 8:
        late = pl.col("date") >= dates[len(dates) // 2]
        yield "dates", runs.filter(~late), runs.filter(late)
        odd = pl.col("date").is_in(dates[1::2])
        yield "alternate_dates", runs.filter(~odd), runs.filter(odd)
    else:
        runs = runs.with_columns(odd=pl.int_range(pl.len()).over("gpu") % 2 == 1)
        yield "runs", runs.filter(~pl.col("odd")), runs.filter("odd")


def part(store: Store, runs: pl.DataFrame, folder: Path) -> Store:
    """A store with these runs only."""
    kept = pl.col("run_id").is_in(runs["run_id"].implode())
    found = Store.create(folder)
    tables = {name: store.collect(store.scan(name).filter(kept)).to_arrow() for name in ("runs", "results")}
    found.append({**tables, "gpus": store.collect(store.scan("gpus")).to_arrow()}, "part")
    return found


def held(found: Scores, other: Scores, workload: str) -> dict[str, Any]:
    """How often the intervals of one half hold the levels of the other."""
    its, theirs = found.of[workload], other.of[workload]
    place = {gpu: number for number, gpu in enumerate(other.gpus)}
    both = [(one, place[gpu]) for one, gpu in enumerate(found.gpus) if gpu in place]
    mine, level = np.array([(one, theirs.raw[at]) for one, at in both if its.runs[one] and theirs.runs[at]]).T
    first = np.unique(its.unit[mine.astype(np.intp)], return_index=True)[1]
    gpu, level = mine.astype(np.intp)[first], level[first]
    unit = its.unit[gpu]
    ends = {
        "another_sitting": (its.lower[gpu], its.upper[gpu]),
        "runs_at_hand": (its.posterior.lower[unit], its.posterior.upper[unit]),
    }
    return {
        "n": len(gpu),
        "repeatable": its.repeatable,
        **{
            name: {
                **wilson(int(((low <= level) & (level <= high)).sum()), len(gpu)),
                "half_width_pct": round(50.0 * float(np.median(high - low)), 3),
            }
            for name, (low, high) in ends.items()
        },
    }


def measured(store: Store, folder: Path) -> dict[str, Any]:
    runs = measurements(store, run_ids=True)
    result: dict[str, Any] = {}
    for workload in runs["workload"].cast(pl.String).unique().sort().to_list():
        for name, first, second in halves(runs.filter(pl.col("workload").cast(pl.String) == workload)):
            say(f"{workload}: {name}")
            at = folder / f"{workload}-{name}"
            one, two = (
                scores(part(store, its, at.with_suffix(f".{number}")), [workload])
                for number, its in enumerate((first, second))
            )
            result[f"{workload}, {name}, first to second"] = held(one, two, workload)
            result[f"{workload}, {name}, second to first"] = held(two, one, workload)
    return result


def main() -> None:
    result: dict[str, Any] = {"benchmark": "score_intervals", "machine": machine("numpy", "polars")}
    if LONGHORN.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            store = Store.create(Path(folder) / "store")
            for name in FILES:
                import_file(store, LONGHORN / f"{name}.csv.gz", Options(cluster="longhorn"))
            result |= measured(store, Path(folder))
    else:
        result["did_not_run"] = f"there is no folder {LONGHORN}"
    print(as_json(result))


if __name__ == "__main__":
    main()
