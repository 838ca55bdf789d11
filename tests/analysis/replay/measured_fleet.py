"""A store with a small measured fleet of known scores, imported as any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whorl.store.importing import Options, import_file
from whorl.tests.stores import new_store

NODES, GPUS_PER_NODE, RUNS = 8, 4, 6
NAMES = tuple(f"n{node:02}-{slot}" for node in range(NODES) for slot in range(GPUS_PER_NODE))


def fleet_store(
    folder: Path,
    scores: Mapping[str, NDArray[np.float64]],
    *,
    noise: float = 0.002,
    gpus: Mapping[str, Sequence[str]] | None = None,
    nodes: bool = True,
) -> str:
    """A store in `folder` whose GPUs run each workload at 100 ms times their score, with log-normal noise.

    `scores`: workload -> a score for each of NAMES, or for each of `gpus[workload]`.
    """
    rng = np.random.default_rng(1)
    path = str(folder / "S")
    store = new_store(path)
    for workload, values in scores.items():
        names = (gpus or {}).get(workload, NAMES)
        rows = ["gpu,node,slot,workload,ms,began,watts"]
        for run in range(RUNS):
            for name, score in zip(names, values, strict=True):
                time = 100 * score * np.exp(noise * rng.standard_normal())
                node, slot = (name[:3], name[-1]) if nodes else ("", "")
                rows.append(
                    f"{name},{node},{slot},{workload},{time:.6f},2026-01-{run + 1:02}T00:00:00,{250 / score:.3f}"
                )
        file = folder / f"{workload}.csv"
        file.write_text("\n".join(rows) + "\n")
        columns = {"gpu": "gpu", "workload": "workload", "ms": "time", "began": "began", "watts": "power"}
        if nodes:
            columns |= {"node": "node", "slot": "slot"}
        units = {"ms": "ms", "watts": "W"}
        import_file(store, file, Options(cluster="local", columns=columns, units=units))
    return path
