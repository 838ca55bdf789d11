"""Stores of a few hundred runs for tests of verdicts: fleets of any shape, with what is wrong with them given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from whorl.collectors.recording import short_hash
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import Outcome
from whorl.tests.stores import new_store

CLUSTER = "judged"
BEGAN_NS = 1_788_220_800_000_000_000  # 2026-09-01
DAY_NS = 86_400 * 10**9
MODEL = "V100-SXM2"
WORKLOADS = {"gemm-fp32": (100.0, "dram", 1.1e12, 8e8), "stream-triad": (4.0, "dram", 5e8, 3.2e9)}
"""By name: the usual time (ms), the path, FLOP and bytes."""


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08x}-0000-4000-8000-000000000000"


def judged_store(
    path: Path,
    gpus: int = 16,
    days: Sequence[float] = (0, 2),
    *,
    slow: Mapping[int, float] | None = None,
    time: Callable[[int, float], float] | None = None,
    runs: Callable[[int], int] = lambda gpu: 1,
    node: Callable[[int], str | None] = lambda gpu: f"n{gpu // 4 + 1:02}",
    model: Callable[[int], str | None] = lambda gpu: MODEL,
    sensors: bool = True,
    spread: float = 0.004,
    noise: float = 0.002,
    wrong: Sequence[int] = (),
    workloads: Sequence[str] = tuple(WORKLOADS),
    seed: int = 1,
) -> Store:
    """`slow`: by GPU, by what share its times are longer. `time`: (gpu, day) -> a factor of its times."""
    store, random = new_store(path), np.random.default_rng(seed)
    rows: dict[str, dict[str, list[object]]] = {"gpus": {}, "runs": {}, "results": {}}

    def add(table: str, **values: object) -> None:
        for key, value in values.items():
            rows[table].setdefault(key, []).append(value)

    silicon = random.normal(0, spread, gpus)
    for gpu in range(gpus):
        add(
            "gpus", cluster=CLUSTER, gpu=uuid(gpu), uuid=uuid(gpu), serial=f"S{gpu:04}", node=node(gpu), slot=gpu % 4,
            model=model(gpu), driver="570.1", first_seen=BEGAN_NS + 123,  # as real clocks, with nanoseconds
        )  # fmt: skip
    for day in days:
        for gpu in range(gpus):
            at = BEGAN_NS + int(day * DAY_NS) + gpu * 10**9
            for name in workloads:
                usual, path_, flop, moved = WORKLOADS[name]
                for repeat in range(runs(gpu)):
                    began = at + repeat * 60 * 10**9
                    run_id = short_hash([name, gpu, day, repeat, str(path)])
                    factor = (1 + (slow or {}).get(gpu, 0.0)) * (1.0 if time is None else time(gpu, day))
                    value = usual * factor * float(np.exp(silicon[gpu] + random.normal(0, noise)))
                    terms = {"path": path_, "flop": flop, "bytes": moved, "clock": "free", "neighbours": "idle"}
                    is_wrong = gpu in wrong and name == "gemm-fp32"
                    add(
                        "runs", run_id=run_id, cluster=CLUSTER, workload=name, gpu=uuid(gpu), began=began,
                        ended=began + 5 * 10**9, sm_clock_mhz=1400.0 if sensors else None,
                        power_w=290.0 + gpu % 3 if sensors else None, temperature_c=60.0 if sensors else None,
                        conditions=terms, probe_version="1",
                        status=Outcome.WRONG_RESULT if is_wrong else Outcome.OK,
                    )  # fmt: skip
                    figures = {"time": value, "checked_elements": 1e6, "wrong_elements": 7.0 if is_wrong else 0.0}
                    for figure, result in figures.items():
                        add(
                            "results", run_id=run_id, cluster=CLUSTER, workload=name, gpu=uuid(gpu), repeat=0,
                            figure=figure, unit="ms" if figure == "time" else "", value=result,
                        )  # fmt: skip
    store.append({name: arrow_rows(name, columns) for name, columns in rows.items() if columns}, f"judged-{seed}")
    return store
