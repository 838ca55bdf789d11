"""How long fingerprints and verdicts of a large fleet take, from an opened store to the rows. Prints JSON.

    python benchmarks/judge_speed.py > benchmarks/results/judge_speed.json
    python benchmarks/judge_speed.py --workloads 4 --stored > benchmarks/results/stored_speed.json

The store is made up: 27,648 GPUs, six on a node, each measured 20 times (in five sittings of four runs, a week apart)
in each workload. A run has a time, a clock, a power and a temperature: 4 workloads have 12 figures that are compared,
and temperature beside them. Of the GPUs 1 % have a fault: slower memory, slower cores, heat, a change of their own
level, a drift. Once more with 12 workloads. Files are as an import writes them: one time a run, no conditions.

read          `probed`: the runs of the store with their figures and GPUs
evidence      `Evidence.of`: the state of each GPU in each sitting, which the next two share
verdicts      `judged`: batches, nodes, GPUs, causes, own history
fingerprints  `fingerprint`: the rows of table `fingerprints`
both          the four of them, in one process that starts with the opened store

Beside it, on the same store: what is usual where there is no judge. A modified z-score of each GPU's median in each
figure (3.5 and above is named), once by DuckDB and once by Polars. They read the same columns. They know no sittings,
intervals, batches, nodes, causes or history, and state no error rate: they are the least that can be done.

With `--stored`: what the commands take, as a user types them. `verdicts` judges and stores; `explain` (one GPU),
`advise` (one workload, no scheduler) and `report` then answer from what is stored. CPU seconds and memory of these are
those of the whole process, imports included.

Each line is a process of its own with two threads: wall and CPU seconds (all threads) of the work, without imports, and
the largest resident memory of the whole process. On a machine with other work, CPU seconds over the cores say more than
wall seconds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whorl.benchmarks.machine import machine, peak_mb
from whorl.benchmarks.reporting import THREADS, alone, as_json, say
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

# -- the store ----------------------------------------------------------------------------------------------------


def make(root: Path, gpus: int, runs: int, workloads: int, *, cabinets: int = 0) -> Store:
    """A store of the fleet. With so many `cabinets`, its nodes stand in them and each week's runs are a campaign."""
    random = np.random.default_rng(2026)
    store = Store.create(root)
    names = pa.array([f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in range(gpus)])
    nodes = pa.array([f"h{one // PER_NODE:04d}" for one in range(gpus)])
    seen = pa.array(np.full(gpus, 1_790_000_000_000_000_000).view("datetime64[ns]"))
    identity = {
        "cluster": ["large"] * gpus, "gpu": names, "uuid": names, "node": nodes,
        "slot": pa.array(np.arange(gpus) % PER_NODE, pa.int32()), "model": ["Tesla V100-SXM2-16GB"] * gpus,
        "power_limit_mw": pa.array([300_000] * gpus, pa.int32()),
        "sm_clock_max_mhz": pa.array([1530] * gpus, pa.int32()),
        "temperature_max_operating_c": pa.array([83] * gpus, pa.int32()), "first_seen": seen,
    }  # fmt: skip
    if cabinets:
        identity["cabinet"] = pa.array([f"r{one * cabinets // gpus:03d}" for one in range(gpus)])
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
        ids = pa.array([f"{number:02x}{one:014x}" for one in range(n)])
        shared = {
            "run_id": ids, "cluster": _same("large", n), "workload": _same(name, n),
            "gpu": names.take(pa.array(rows["gpu"])),
        }  # fmt: skip
        more = {
            "began": pa.array((1000 * began).view("datetime64[ns]")),
            "ended": pa.array((1000 * (began + _MINUTE // 2)).view("datetime64[ns]")),
            "sm_clock_mhz": rows["clock"], "power_w": rows["power"], "temperature_c": rows["temperature"],
            "status": _same("ok", n),
        }  # fmt: skip
        if cabinets:
            weeks = pa.array([f"week-{one}" for one in range(SITTINGS)])
            more["campaign"] = weeks.take(pa.array(rows["week"]))
        figures = {
            "repeat": pa.array(np.zeros(n, np.int32)), "figure": _same("time", n), "unit": _same("ms", n),
            "value": rows["time"],
        }  # fmt: skip
        store.append({"runs": pa.table(shared | more), "results": pa.table(shared | figures)}, f"made-{name}")
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
    own = (0.017 if kind == "gemm" else 0.0012) * silicon
    late = (fault == "step")[gpu] * 0.03 * (week >= 3) + (fault == "drift")[gpu] * 0.008 * week
    held = heat + (own if kind == "gemm" else 0.0)
    beside = 0.0 if kind == "gemm" else own
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


# -- what is timed ------------------------------------------------------------------------------------------------


class Timed:
    """Wall and CPU seconds of parts."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, float]] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        found = work()
        self.parts[name] = {
            "wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2),
        }  # fmt: skip
        return found


def whorl(store: Store) -> dict[str, Any]:
    from whorl.analysis.runs.probing import probed
    from whorl.analysis.verdicts.fingerprint import fingerprint
    from whorl.analysis.verdicts.judge import judged
    from whorl.analysis.verdicts.model import Model

    timed = Timed()

    def both() -> dict[str, Any]:
        campaign = timed("read", lambda: probed(store, every=True))
        model = Model(campaign, store)
        timed("evidence", lambda: model.evidence)
        found = timed("verdicts", lambda: judged(campaign, store, model=model))
        rows = timed("fingerprints", lambda: fingerprint(model))
        kinds = [f"{row.level} {row.kind}" for row in found.rows]
        return {
            "runs": campaign.runs.height, "fingerprint_rows": rows.height, "looks": found.looks,
            "findings": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        }  # fmt: skip

    said = timed("both", both)
    return {"parts": timed.parts, **said}


def by_polars(store: Store) -> dict[str, Any]:
    import polars as pl

    timed = Timed()

    def work() -> Any:
        times = store.scan("results").filter(pl.col("figure") == "time").select("run_id", "value")
        runs = store.scan("runs").select("run_id", "workload", "gpu", "sm_clock_mhz", "power_w")
        own = runs.join(times, on="run_id").group_by("workload", "gpu").agg(pl.col(FIGURES).median())
        away = [(pl.col(name) - pl.col(name).median().over("workload")).alias(name) for name in FIGURES]
        scaled = [
            pl.col(name) / (1.4826 * pl.col(name).abs().median().over("workload")).alias(name) for name in FIGURES
        ]
        return store.collect(own.with_columns(away).with_columns(scaled))

    rows = timed("both", work)
    named = rows.filter(pl.any_horizontal(pl.col(FIGURES).is_finite() & (pl.col(FIGURES).abs() > _Z)))
    return {"parts": timed.parts, "rows": rows.height, "gpus_named": named["gpu"].n_unique()}


def by_duckdb(store: Store) -> dict[str, Any]:
    import duckdb

    timed = Timed()

    def work() -> Any:
        connection = duckdb.connect()
        connection.execute("set threads = 2")
        runs, results = (
            f"read_parquet('{store.root}/{name}/*.parquet', union_by_name => true) as of_{name}"
            for name in ("runs", "results")
        )
        medians = ", ".join(f"median({name}) as {name}" for name in FIGURES)
        scores = ", ".join(f"({name} - m_{name}) / (1.4826 * d_{name}) as {name}" for name in FIGURES)
        middles = ", ".join(f"median({name}) as m_{name}, mad({name}) as d_{name}" for name in FIGURES)
        return connection.execute(f"""
            with own as (
                select workload, gpu, {medians} from {runs} join {results} using (run_id, workload, gpu)
                where figure = 'time' group by all
            ), middle as (select workload, {middles} from own group by all)
            select workload, gpu, {scores} from own join middle using (workload)
        """).to_arrow_table()

    rows = timed("both", work)
    values = np.column_stack([rows[name].to_numpy() for name in FIGURES])
    named = np.any(np.isfinite(values) & (np.abs(values) > _Z), axis=1)
    gpus = len(set(rows["gpu"].filter(pa.array(named)).to_pylist()))
    return {"parts": timed.parts, "rows": len(rows), "gpus_named": gpus}


CONTENDERS: dict[str, Callable[[Store], dict[str, Any]]] = {"whorl": whorl, "polars": by_polars, "duckdb": by_duckdb}


def by_command(*arguments: str) -> Callable[[Store], dict[str, Any]]:
    """A command of whorl on the store, in this process."""

    def run(store: Store) -> dict[str, Any]:
        from whorl.cli import cli

        with contextlib.redirect_stdout(io.StringIO()) as shown:
            cli([*arguments, "--store", str(store.root)], standalone_mode=False)
        return {"cpu_s": round(time.process_time(), 2), "lines": shown.getvalue().count("\n")}

    return run


COMMANDS: dict[str, Callable[[Store], dict[str, Any]]] = {
    "verdicts": by_command("verdicts"),
    "explain": by_command("explain", "h0010/3"),
    "advise": by_command("advise", "--workload", "gemm", "--no-scheduler"),
    "report": by_command("report", "--out", os.devnull),
}


def one(name: str, root: Path) -> dict[str, Any]:
    found = (CONTENDERS | COMMANDS)[name](Store.open(root))
    peak = peak_mb()
    return {"what": name, **found, "peak_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=27_648)
    parser.add_argument("--runs", type=int, default=20, help="of a GPU in each workload")
    parser.add_argument("--workloads", type=int, nargs="+", default=[4, 12])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stored", action="store_true", help="the commands that answer from a stored judgement")
    parser.add_argument("--only", choices=CONTENDERS | COMMANDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(one(given.only, given.store)))
        return
    rows: list[dict[str, Any]] = []
    before = machine("polars", "duckdb", "numpy", "pyarrow")
    for workloads in given.workloads:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place) / "store"
            say(f"making the store: {workloads} workloads")
            make(root, given.gpus, given.runs, workloads)
            for number in range(max(1, given.repeats * 4 // workloads)):
                for name in COMMANDS if given.stored else CONTENDERS:
                    say(f"{workloads} workloads, {name}, {number + 1}")
                    found = alone(__file__, "--only", name, "--store", str(root), **THREADS)
                    rows.append({"workloads": workloads, **found})
    size = {"gpus": given.gpus, "runs_of_each_in_a_workload": given.runs, "figures_of_a_workload": len(FIGURES)}
    print(as_json({"benchmark": "judge_speed", "threads": 2, **size, "rows": rows, "machine": before}))


if __name__ == "__main__":
    main()
