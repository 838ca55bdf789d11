"""What a store of a large campaign costs the job of one node: what is stored of its own GPUs? Prints JSON.

    python benchmarks/node_job.py [--nodes 4608] [--gpus 6] [--runs 100000]

The runs are synthetic: of each GPU the first probes of a suite, with conditions as long as real ones. Each node has
written a file, as jobs leave them, or all nodes together a few files, as `whorl store compact` leaves them.

own     the rows of one node's GPUs, as a job asks for them (`probes.recording.past_of`)
whole   the rows of the whole campaign, of which the job then uses its own
append  one append of a job: runs, results and telemetry of its GPUs, beside what the other nodes stored that day

Each figure is of a process of its own: CPU (s, user and system), wall time (s) and the growth of its memory (MB).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from whorl.benchmarks.machine import machine, peak_bytes
from whorl.benchmarks.reporting import alone, as_json, say
from whorl.probes.catalogue import PROBES
from whorl.probes.conditions import Asked, Setting, asked_of
from whorl.probes.effort import EFFORTS
from whorl.probes.figures import Figure
from whorl.probes.recording import Recorder, Run, past_of
from whorl.probes.watch import Window
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EndedBy, Outcome

BEGAN_NS = 1_790_000_000_000_000_000
CLUSTER, CAMPAIGN = "bench", "autumn"


def gpus_of(node: int, gpus: int) -> list[str]:
    return [f"GPU-{node:08x}-0000-0000-0000-{slot:012x}" for slot in range(gpus)]


def recorded(recorder: Recorder, node: int, gpus: int, runs: int, *, figures: int = 1, readings: int = 0) -> None:
    """Give a recorder what the job of a node found: so many runs in all."""
    asked, setting = Asked(EFFORTS["quick"]), Setting("busy", None, None, {"power_limit_w": 300.0})
    probes = list(PROBES.values())
    names = gpus_of(node, gpus)
    more = {"simulated": True, "other_processes": [], "steady": True, "independent": True, "drift": 0.0001}
    for number in range(runs):
        probe, gpu = probes[number // gpus % len(probes)], names[number % gpus]
        at = BEGAN_NS + number * 10**9
        recorder.run(
            Run(
                gpu, probe.name, probe.version, at, at + 10**9, Window(sm_clock_mhz=1380.0, power_w=297.0),
                [Figure("time", "ms", 9.0 + number % 7, repeat) for repeat in range(figures)],
                asked_of(probe, asked, setting) | more, {"whorl": "0.1.0", "kernel": "1"}, EndedBy.PRECISE, Outcome.OK,
            )
        )  # fmt: skip
    if readings:
        ts = np.tile(BEGAN_NS + np.arange(readings) * 10**9, gpus)
        columns = {
            "ts": ts,
            "gpu": np.repeat(names, readings),
            "cluster": [CLUSTER] * len(ts),
            "power_mw": ts % 300_000,
        }
        recorder.take("telemetry", arrow_rows("telemetry", columns))


def build(root: Path, nodes: int, gpus: int, runs: int) -> dict[str, Path]:
    """Two stores of the same runs: a file for each node, and a few files for all."""
    found = {"a file per node": Store.create(root / "loose"), "compacted": Store.create(root / "compact")}
    share = np.diff(np.linspace(0, runs, nodes + 1).round().astype(int))
    several: list[Recorder] = []
    for node in range(nodes):
        recorder = Recorder(found["a file per node"], cluster=CLUSTER, campaign=CAMPAIGN)
        recorded(recorder, node, gpus, int(share[node]), readings=60)
        recorder.flush()
        if not several or several[-1].gathered[0] > 50_000:
            several.append(Recorder(found["compacted"], cluster=CLUSTER, campaign=CAMPAIGN))
        recorded(several[-1], node, gpus, int(share[node]), readings=60)
        if node % 1000 == 999:
            say(f"{node + 1} of {nodes} nodes")
    for recorder in several:
        recorder.flush()
    return {name: store.root for name, store in found.items()}


def whole(store: Store) -> int:
    """The runs of the campaign, by GPU and probe, as Python has them."""
    names = ["cluster", "campaign", "gpu", "workload", "began", "ended", "probe_version", "conditions", "ended_by"]
    rows = store.arrow("runs", columns=names)
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for row in rows.drop_columns(["began", "ended"]).to_pylist():
        if row["cluster"] == CLUSTER and row["campaign"] == CAMPAIGN and row["ended_by"] != EndedBy.FAILED:
            conditions = (row["conditions"] or {}) | {"probe_version": row["probe_version"]}
            found.setdefault((row["gpu"], row["workload"]), []).append(conditions)
    return len(found)


def task(root: str, what: str, nodes: int, gpus: int) -> dict[str, Any]:
    """Do one thing in this process, and say what it cost."""
    before, began, wall = peak_bytes() or 0, time.process_time(), time.perf_counter()
    store = Store.open(root)
    if what == "own":
        answer = len(past_of(store, CLUSTER, gpus_of(nodes // 2, gpus)).runs_of(CAMPAIGN))
    elif what == "whole":
        answer = whole(store)
    else:
        recorder = Recorder(store, cluster=CLUSTER, campaign=CAMPAIGN)
        recorded(recorder, nodes, gpus, 22, figures=40, readings=60)
        recorder.flush()
        answer = 22
    return {
        "cpu_s": round(time.process_time() - began, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
        "memory_mb": round(((peak_bytes() or 0) - before) / 2**20, 1),
        "found": answer,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=4608)
    options.add_argument("--gpus", type=int, default=6)
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--task", nargs=2, metavar=("STORE", "WHAT"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.task:
        root, what = given.task
        print(json.dumps(task(root, what, given.nodes, given.gpus)))
        return
    figures: dict[str, Any] = {
        "machine": machine("pyarrow"),
        **{k: getattr(given, k) for k in ("nodes", "gpus", "runs")},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, root in build(Path(folder), given.nodes, given.gpus, given.runs).items():
            figures[name] = {what: measured(root, what, given) for what in ("own", "whole", "append")}
    print(as_json(figures))


def measured(root: Path, what: str, given: argparse.Namespace) -> dict[str, Any]:
    """The median process, by CPU time, of several."""
    of = ("--nodes", str(given.nodes), "--gpus", str(given.gpus), "--task", str(root), what)
    found = [alone(__file__, *of) for _ in range(given.repeats)]
    say(f"{what}: {found}")
    return sorted(found, key=lambda one: float(one["cpu_s"]))[len(found) // 2]  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
