"""What a passive fingerprint is worth: power of ordinary jobs against speed that was measured years before.

    python benchmarks/passive.py > benchmarks/results/passive.json

Longhorn's ResNet-50, BERT and PageRank runs of 2022 give each V100 a score (`analysis.passive`), from power and clock
alone. SGEMM times of 2020 are the truth. `spearman` is the rank correlation of the two, over the GPUs known in both,
with a 95 % interval. `gain` chooses 16 of these GPUs by the score: a synchronous job waits for the slowest, so it is
how much sooner the slowest of them ends than the slowest of 16 random ones, on average; `oracle` chooses by the truth.
The interval of a gain draws the GPUs again. `interval_holds`: of two random halves of the jobs, the share of the GPUs
whose two scores differ by no more than their 95 % intervals say.

`alternatives` rank the same GPUs by other things that are known without a label: `time` is the jobs' own time,
`temperature_max` how warm they were; `less_job` and `less_temperature` are the score without what a job's GPUs share
and without what temperature explains (0.3 % a degree, as leakage is), which the score does not take out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis import identities, measurements
from whorl.analysis.spread.across_workloads import linked_names
from whorl.analysis.spread.passive import POWER, passive
from whorl.analysis.statistics.correlation import correlate, spearman_interval
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.store import Store
from whorl.store.importing import Options, import_file

LONGHORN = Path(__file__).resolve().parents[2] / "shared" / "data" / "longhorn"
FILES = ("pagerank", "sgemm", "resnet50", "bert")
CHOSEN = 16
DRAWS = 2000
HALVES = 20
LEAKAGE = 0.003


def longhorn(folder: Path) -> Store:
    store = Store.create(folder / "store")
    for name in FILES:
        import_file(store, LONGHORN / f"{name}.csv.gz", Options(cluster="longhorn"))
    return store


def truth(store: Store) -> pl.DataFrame:
    """The median SGEMM time of each GPU."""
    return medians(store, "sgemm", pl.col("value")).rename({"figure": "truth"})


def medians(store: Store, workload: str, figure: pl.Expr) -> pl.DataFrame:
    """Of each physical GPU, the median of a figure of its runs, where its place leads to one GPU."""
    identity = linked_names(identities(store), "longhorn").identity
    runs = with_figures(store, workload).with_columns(pl.col("gpu").replace(identity))
    return runs.with_columns(figure.alias("figure")).group_by("gpu").agg(pl.col("figure").median())


def with_figures(store: Store, workload: str) -> pl.DataFrame:
    runs = measurements(store, workloads=[workload], run_ids=True).with_columns(pl.col("gpu").cast(pl.String))
    figures = store.collect(store.scan("results").filter(pl.col("figure") != "time"))
    wide = figures.pivot(on="figure", index="run_id", values="value")
    return runs.join(wide, on="run_id", how="left")


def worth(scores: pl.DataFrame, times: pl.DataFrame, column: str = "score") -> dict[str, Any]:
    """The rank correlation of a score with the truth."""
    both = scores.drop_nulls(column).join(times, on="gpu").sort("gpu")
    rho = correlate(both["truth"].to_numpy(), both[column].to_numpy(), "score").spearman
    if rho is None:
        return {"n": both.height, "spearman": None}
    low, high = spearman_interval(rho, both.height) or (None, None)
    return {"n": both.height, "spearman": round(rho, 3), "low": rounded(low), "high": rounded(high)}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def gain(scores: pl.DataFrame, times: pl.DataFrame) -> dict[str, Any]:
    """What choosing `CHOSEN` GPUs by a score gains, %, and by the truth. GPUs without a score are chosen last."""
    both = scores.join(times, on="gpu").sort("gpu")
    score, time = both["score"].fill_null(np.inf).to_numpy(), both["truth"].to_numpy()
    rng = np.random.default_rng(7)
    drawn = [rng.integers(0, len(time), len(time)) for _ in range(DRAWS)]
    found: dict[str, Any] = {"chosen": CHOSEN, "of": len(time)}
    for name, by in (("by_score", score), ("oracle", time)):
        again = [of_choice(by[rows], time[rows]) for rows in drawn]
        low, high = np.quantile(again, [0.025, 0.975])
        found[name] = {"pct": round(of_choice(by, time), 2), "low": round(low, 2), "high": round(high, 2)}
    return found


def of_choice(by: np.ndarray, time: np.ndarray) -> float:
    """How much sooner the slowest of the chosen ends than that of as many random ones, on average, %."""
    ordered = np.sort(time)
    n, share = len(time), np.empty(len(time))
    share[-1] = 1.0
    for i in range(n - 1, 0, -1):  # the share of random choices whose slowest is at most the i-th
        share[i - 1] = share[i] * max(0.0, (i + 1 - CHOSEN) / (i + 1))
    slowest = float(np.sum(ordered * np.diff(share, prepend=0.0)))
    chosen = float(time[np.argsort(by, kind="stable")[:CHOSEN]].max())
    return 100 * (1 - chosen / slowest)


def interval_holds(store: Store, workload: str) -> dict[str, Any]:
    """Scores of two halves of the jobs, each with its interval."""
    runs = measurements(store, workloads=[workload], run_ids=True)
    jobs = runs.select("run_id", pl.coalesce(pl.col("job_id").cast(pl.String), "run_id").alias("job"))
    names = jobs["job"].unique().sort()
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(HALVES):
        side = pl.DataFrame({"job": names, "side": rng.permutation(len(names)) % 2})
        halves = jobs.join(side, on="job")
        one, other = (scores_of(store, halves.filter(pl.col("side") == half)["run_id"]) for half in (0, 1))
        both = one.join(other, on="gpu")
        width = [(both[f"high{end}"] - both[f"low{end}"]) / 2 for end in ("", "_right")]
        near = (both["score"] - both["score_right"]).abs() <= (width[0] ** 2 + width[1] ** 2).sqrt()
        inside.append(float(near.to_numpy().mean()))
    return {"halves": HALVES, "gpus": both.height, "share": round(sum(inside) / HALVES, 3)}


def scores_of(store: Store, run_ids: pl.Series) -> pl.DataFrame:
    """The scores from some runs only, in a store of their own."""
    with tempfile.TemporaryDirectory() as folder:
        part = Store.create(Path(folder) / "store")
        these = pl.col("run_id").is_in(run_ids.implode())
        part.append(
            {name: store.collect(store.scan(name).filter(these)).to_arrow() for name in ("runs", "results")}, "x"
        )
        return passive(part).rows.drop_nulls("score").select("gpu", "score", "low", "high")


def alternatives(store: Store, workload: str, times: pl.DataFrame) -> dict[str, Any]:
    peak = pl.col("power_max").log()
    found = {
        "time": medians(store, workload, pl.col("value")),
        "temperature_max": medians(store, workload, pl.col("temperature_max")),
        "less_job": medians(store, workload, peak - peak.median().over(pl.coalesce("job_id", "run_id"))),
        "less_temperature": medians(store, workload, peak - LEAKAGE * pl.col("temperature_max")),
    }
    return {name: worth(scores, times, "figure") for name, scores in found.items()}


def main() -> None:
    document: dict[str, Any] = {"benchmark": "passive", "machine": machine("polars", "numpy"), "workloads": {}}
    with tempfile.TemporaryDirectory() as folder:
        store = longhorn(Path(folder))
        times = truth(store)
        for workload in ("resnet", "bert", "pagerank"):
            say(workload)
            found: dict[str, Any] = {}
            for figure in POWER:
                result = passive(store, workload=workload, figure=figure)
                (of,) = result.worth
                if of.figure is None and of.split_half is None:
                    continue
                found[figure] = {
                    **worth(result.rows, times),
                    "gpus": of.gpus,
                    "split_half": rounded(of.split_half),
                    "split_half_gpus": of.split_half_gpus,
                    "reason": of.reason,
                }
            used = passive(store, workload=workload)
            row: dict[str, Any] = {"used": used.worth[0].figure, "figures": found, "gain": gain(used.rows, times)}
            row["interval_holds"] = interval_holds(store, workload)
            if workload != "pagerank":
                row["alternatives"] = alternatives(store, workload, times)
            document["workloads"][workload] = row
        refused = passive(store, workload="sgemm").worth[0]
        document["sgemm"] = {"gpus": refused.gpus, "reason": refused.reason}
    print(as_json(document))


if __name__ == "__main__":
    main()
