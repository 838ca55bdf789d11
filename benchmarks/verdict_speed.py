"""What verdicts, answers from stored verdicts, and `variability` cost on a fleet of the size of Summit.

    python -m benchmarks.verdict_speed [--only SECTION] [--quick | --long]

judge        27,648 GPUs, 20 runs of each in 4 workloads (12 figures; `--long`: 12 workloads), 1 % faulty: from an
             opened store to verdicts and fingerprints. Beside it a modified z-score of the medians in each figure, by
             DuckDB and by Polars: the least that can be done, without sittings, intervals, batches, causes or history.
stored       on the same store the commands as a user types them, imports included: `verdicts` judges and stores,
             `explain`, `advise` and `report` answer from what is stored; and `verdicts` on a store of 64 GPUs
variability  27,648 GPUs x 100 runs: `variability` without and with 1,000 replicates, beside the same quartiles, group
             medians, ICC sums and Spearman correlations as plain Polars expressions
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from whorl.benchmarks.harness import BenchOptions, child, in_turns, run, say, scratch
from whorl.store import Store

PER_NODE, SITTINGS = 6, 5
FAULTS = ("memory", "compute", "heat", "step", "drift")
FIGURES = ("value", "sm_clock_mhz", "power_w")
_KINDS = (
    ("gemm", 3.0, 297.0, 64.0),
    ("fma", 2.0, 220.0, 57.0),
    ("stream", 2.5, 145.0, 45.0),
    ("spmv", 4.0, 180.0, 50.0),
)
_WEEK, _MINUTE = 7 * 86_400_000_000, 60_000_000
_Z = 3.5


def make(root: Path, gpus: int, runs: int, workloads: int, *, cabinets: int = 0) -> Store:
    """A store of the fleet. With so many `cabinets`, its nodes stand in them and each week's runs are a campaign."""
    random = np.random.default_rng(2026)
    store = Store.create(root)
    names = pa.array([f"GPU-{place:08x}-0000-4000-8000-{place:012x}" for place in range(gpus)])
    nodes = pa.array([f"h{place // PER_NODE:04d}" for place in range(gpus)])
    first_seen = pa.array(np.full(gpus, 1_790_000_000_000_000_000).view("datetime64[ns]"))
    identity = {
        "cluster": ["large"] * gpus, "gpu": names, "uuid": names, "node": nodes,
        "slot": pa.array(np.arange(gpus) % PER_NODE, pa.int32()), "model": ["Tesla V100-SXM2-16GB"] * gpus,
        "power_limit_mw": pa.array([300_000] * gpus, pa.int32()),
        "sm_clock_max_mhz": pa.array([1530] * gpus, pa.int32()),
        "temperature_max_operating_c": pa.array([83] * gpus, pa.int32()), "first_seen": first_seen,
    }  # fmt: skip
    if cabinets:
        identity["cabinet"] = pa.array([f"r{place * cabinets // gpus:03d}" for place in range(gpus)])
    store.append({"gpus": pa.table(identity)}, "gpus")
    faulty = np.arange(0, gpus, 100)
    fault = np.full(gpus, "", dtype="U8")
    fault[faulty] = np.array(FAULTS)[np.arange(len(faulty)) % len(FAULTS)]
    inlet = 3.0 * random.standard_normal(-(-gpus // PER_NODE))[np.arange(gpus) // PER_NODE]
    silicon = random.standard_normal(gpus)
    for number in range(workloads):
        kind, level, watts, degrees = _KINDS[number % len(_KINDS)]
        name = kind if number < len(_KINDS) else f"{kind}-{number}"
        rows = _runs(random, kind, level + 0.1 * number, watts, degrees, gpus, runs, fault, silicon, inlet)
        n = gpus * runs
        began = 1_790_000_000_000_000 + rows["week"] * _WEEK + (rows["turn"] * 60 + number) * _MINUTE
        ids = pa.array([f"{number:02x}{place:014x}" for place in range(n)])
        shared = {
            "run_id": ids, "cluster": _same("large", n), "workload": _same(name, n),
            "gpu": names.take(pa.array(rows["gpu"])),
        }  # fmt: skip
        columns = {
            "began": pa.array((1000 * began).view("datetime64[ns]")),
            "ended": pa.array((1000 * (began + _MINUTE // 2)).view("datetime64[ns]")),
            "sm_clock_mhz": rows["clock"], "power_w": rows["power"], "temperature_c": rows["temperature"],
            "status": _same("ok", n),
        }  # fmt: skip
        if cabinets:
            weeks = pa.array([f"week-{place}" for place in range(SITTINGS)])
            columns["campaign"] = weeks.take(pa.array(rows["week"]))
        figures = {
            "repeat": pa.array(np.zeros(n, np.int32)), "figure": _same("time", n), "unit": _same("ms", n),
            "value": rows["time"],
        }  # fmt: skip
        store.append({"runs": pa.table(shared | columns), "results": pa.table(shared | figures)}, f"made-{name}")
    return store


def _runs(
    random: np.random.Generator, kind: str, level: float, watts: float, degrees: float, gpus: int, runs: int,
    fault: npt.NDArray[Any], silicon: npt.NDArray[Any], inlet: npt.NDArray[Any],
) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    gpu = np.repeat(np.arange(gpus), runs)
    turn = np.tile(np.arange(runs), gpus)
    week = turn * SITTINGS // runs
    slow = np.zeros(gpus)
    slow[fault == "memory"] = 0.05 if kind in ("stream", "spmv") else 0.0
    slow[fault == "compute"] = 0.04 if kind in ("gemm", "fma") else 0.0
    heat = np.where(fault == "heat", 0.06 if kind == "gemm" else 0.0, 0.0)
    differs = (0.017 if kind == "gemm" else 0.0012) * silicon
    late = (fault == "step")[gpu] * 0.03 * (week >= 3) + (fault == "drift")[gpu] * 0.008 * week
    held = heat + (differs if kind == "gemm" else 0.0)
    beside = 0.0 if kind == "gemm" else differs
    sitting = 0.001 * random.standard_normal((gpus, SITTINGS))[gpu, week]
    x = level + (slow + held + beside)[gpu] + late + sitting + 0.0008 * random.standard_normal(len(gpu))
    clock = (1365.0 if kind == "gemm" else 1530.0) * np.exp(-held / 0.95)
    power = watts * np.exp(-2.4 * heat / 0.95)[gpu] * np.exp(0.002 * random.standard_normal(len(gpu)))
    warm = degrees + (inlet + np.where(heat > 0, np.maximum(83.0 - degrees - inlet, 0.0), 0.0))[gpu]
    return {
        "gpu": gpu, "week": week, "turn": turn, "time": np.exp(x), "clock": np.round(clock)[gpu],
        "power": np.round(power, 3), "temperature": np.round(warm + 0.5 * random.standard_normal(len(gpu))),
    }  # fmt: skip


def _same(text: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text])).cast(pa.string())


# -- the work of processes -------------------------------------------------------------------------------------------


def whorl(root: str) -> Callable[[], dict[str, Any]]:
    """Verdicts and fingerprints of all runs of a store."""
    from whorl.analysis.runs.probing import probed
    from whorl.analysis.verdicts.fingerprint import fingerprint
    from whorl.analysis.verdicts.judge import judged
    from whorl.analysis.verdicts.model import Model

    store = Store.open(root)

    def work() -> dict[str, Any]:
        campaign = probed(store, every=True)
        model = Model(campaign, store)
        answer = judged(campaign, store, model=model)
        return {"runs": campaign.runs.height, "fingerprints": fingerprint(model).height, "verdicts": len(answer.rows)}

    return work


def by_polars(root: str) -> Callable[[], dict[str, Any]]:
    """The GPUs whose median is far out in a figure, by Polars."""
    store = Store.open(root)

    def work() -> dict[str, Any]:
        times = store.scan("results").filter(pl.col("figure") == "time").select("run_id", "value")
        runs = store.scan("runs").select("run_id", "workload", "gpu", "sm_clock_mhz", "power_w")
        medians = runs.join(times, on="run_id").group_by("workload", "gpu").agg(pl.col(FIGURES).median())
        away = [(pl.col(name) - pl.col(name).median().over("workload")).alias(name) for name in FIGURES]
        spreads = [1.4826 * pl.col(name).abs().median().over("workload") for name in FIGURES]
        scaled = [(pl.col(name) / width).alias(name) for name, width in zip(FIGURES, spreads, strict=True)]
        rows = store.collect(medians.with_columns(away).with_columns(scaled))
        far = rows.filter(pl.any_horizontal(pl.col(FIGURES).is_finite() & (pl.col(FIGURES).abs() > _Z)))
        return {"gpus_named": far["gpu"].n_unique()}

    return work


def by_duckdb(root: str) -> Callable[[], dict[str, Any]]:
    """The same by DuckDB on the files."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("set threads = 2")
    runs, results = (
        f"read_parquet('{root}/{name}/*.parquet', union_by_name => true) as of_{name}" for name in ("runs", "results")
    )
    medians = ", ".join(f"median({name}) as {name}" for name in FIGURES)
    scores = " or ".join(f"abs({name} - m_{name}) / nullif(1.4826 * d_{name}, 0) > {_Z}" for name in FIGURES)
    middles = ", ".join(f"median({name}) as m_{name}, mad({name}) as d_{name}" for name in FIGURES)

    def work() -> dict[str, Any]:
        row = connection.execute(f"""
            with levels as (
                select workload, gpu, {medians} from {runs} join {results} using (run_id, workload, gpu)
                where figure = 'time' group by all
            ), middle as (select workload, {middles} from levels group by all)
            select count(distinct gpu) filter ({scores}) from levels join middle using (workload)
        """).fetchone()
        return {"gpus_named": row[0] if row else None}

    return work


def command(root: str, *words: str) -> Callable[[], dict[str, Any]]:
    """A command of whorl on the store, in this process; `process_cpu_s` has all since the process began."""

    def work() -> dict[str, Any]:
        import time

        from whorl.cli import cli

        with contextlib.redirect_stdout(io.StringIO()) as output:
            cli([*words, "--store", root], standalone_mode=False)
        return {"process_cpu_s": round(time.process_time(), 2), "lines": output.getvalue().count("\n")}

    return work


# -- sections --------------------------------------------------------------------------------------------------------


def judge(options: BenchOptions) -> dict[str, Any]:
    """Verdicts beside the two z-scores, for 4 and with --long 12 workloads."""
    gpus, tables = options.pick(600, 27_648, 27_648), {}
    for workloads in (4, 12) if options.size == "long" else (4,):
        with scratch() as folder:
            say(f"making the store of {workloads} workloads")
            make(folder / "store", gpus, 20, workloads)
            contenders = {name: partial(child, "verdict_speed", name, folder / "store") for name in CONTENDERS}
            tables[f"{workloads} workloads"] = in_turns(contenders, options.pick(1, 3, 5), against="by_duckdb")
    return {"gpus": gpus, "runs_of_each_in_a_workload": 20, **tables}


def stored(options: BenchOptions) -> dict[str, Any]:
    """Commands that answer from stored verdicts: CPU seconds of the whole process."""
    gpus, rows = options.pick(600, 27_648, 27_648), {}
    questions = {
        "verdicts": ("verdicts",), "explain": ("explain", "h0010/3"),
        "advise": ("advise", "--workload", "gemm", "--no-scheduler"), "report": ("report", "--out", os.devnull),
    }  # fmt: skip
    for name, size in (("large", gpus), ("64 GPUs", 64)):
        with scratch() as folder:
            make(folder / "store", size, 20, 4)
            for question, words in questions.items() if name == "large" else [("verdicts", ("verdicts",))]:
                say(f"{name}: {question}")
                figures = child("verdict_speed", "command", folder / "store", *words)
                rows[f"{question}, {name}"] = {"gpus": size, "peak_mb": figures["peak_mb"], **figures["answer"]}
    return {"n": 1, **rows}


def variability_speed(options: BenchOptions) -> dict[str, Any]:
    """`variability` beside plain Polars, each in processes of its own."""
    gpus, runs = options.pick(500, 27_648, 27_648), options.pick(10, 100, 100)
    with scratch() as folder:
        say("making the runs")
        spread_fleet(gpus, runs).write_parquet(folder / "fleet.parquet")
        contenders = {
            "plain": partial(child, "verdict_speed", "plain", folder / "fleet.parquet"),
            "variability": partial(child, "verdict_speed", "variability_of", folder / "fleet.parquet", 0),
            "with 1,000 replicates": partial(child, "verdict_speed", "variability_of", folder / "fleet.parquet", 1000),
        }
        return {"gpus": gpus, "rows": gpus * runs, **in_turns(contenders, options.pick(1, 3, 5), against="plain")}


def spread_fleet(gpus: int, runs: int) -> pl.DataFrame:
    """`gpus` x `runs` rows in random order, whose clocks follow temperature and silicon."""
    random = np.random.default_rng(20260)
    gpu = np.repeat(np.arange(gpus), runs)
    random.shuffle(gpu)
    n = len(gpu)
    temperature = np.rint(66.0 + random.normal(0.0, 6.0, gpus)[gpu] + random.normal(0.0, 1.0, n))
    slower = random.normal(0.0, 0.015, gpus)[gpu] + 0.0008 * (temperature - 66.0)
    clock = np.rint(1357.0 * (1.0 - slower) / 7.5) * 7.5
    names = pl.Series([f"GPU-{bits.hex()}" for bits in (random.bytes(16) for _ in range(gpus))])
    columns = {
        "gpu": names.gather(gpu), "value": 2440.0 * 1357.0 / clock * (1.0 + random.normal(0.0, 0.0025, n)),
        "sm_clock_mhz": clock, "power_w": np.round(297.0 + random.normal(0.0, 1.5, n), 3), "temperature_c": temperature,
    }  # fmt: skip
    constants = {"cluster": "simulated", "workload": "sgemm", "unit": "ms"}
    return pl.DataFrame(columns).with_columns(pl.lit(value).alias(name) for name, value in constants.items())


def plain(path: str) -> Callable[[], list[float]]:
    """The same statistics as a person would write them: quartiles, group medians, sums of the ICC, Spearman."""
    frame = pl.read_parquet(path).rechunk()

    def work() -> list[float]:
        value = pl.col("value")
        figures = frame.lazy().select(
            *(value.quantile(q, "linear").alias(f"q{q}") for q in (0.25, 0.5, 0.75)),
            *(pl.corr("value", name, method="spearman").alias(name) for name in OTHERS),
        )
        groups = frame.lazy().group_by("gpu").agg(
            value.median().alias("median"), pl.len().alias("n"), value.mean().alias("mean"), value.var().alias("var")
        )  # fmt: skip
        of_runs, by_gpu = pl.collect_all([figures, groups])
        n, k = frame.height, by_gpu.height
        between, within, squares, median = by_gpu.select(
            (pl.col("n") * (pl.col("mean") - (pl.col("n") * pl.col("mean")).sum() / n) ** 2).sum().alias("between"),
            ((pl.col("n") - 1) * pl.col("var").fill_null(0.0)).sum().alias("within"),
            (pl.col("n").cast(pl.Float64) ** 2).sum().alias("squares"), pl.col("median").median(),
        ).row(0)  # fmt: skip
        variance = max(0.0, (between / (k - 1) - within / (n - k)) / ((n - squares / n) / (k - 1)))
        return [*of_runs.row(0), median, variance / (variance + within / (n - k))]

    return work


def variability_of(path: str, replicates: int) -> Callable[[], list[Any]]:
    """whorl's statistics: median, fence and ICC are returned."""
    from whorl.analysis import variability

    frame = pl.read_parquet(path).rechunk()

    def work() -> list[Any]:
        rows = list(variability(frame, replicates=replicates))
        return [rows[0].median, rows[0].fence_pct, rows[0].icc.value]

    return work


OTHERS = ("sm_clock_mhz", "power_w", "temperature_c")
CONTENDERS = {"whorl": whorl, "by_polars": by_polars, "by_duckdb": by_duckdb}
CHILDREN: dict[str, Callable[..., Any]] = {
    **CONTENDERS,
    "command": command,
    "plain": plain,
    "variability_of": variability_of,
}
SECTIONS = {"judge": judge, "stored": stored, "variability": variability_speed}

if __name__ == "__main__":
    run("verdict_speed", SECTIONS, CHILDREN)
