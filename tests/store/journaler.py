"""Rows for journals."""

from __future__ import annotations

import pyarrow as pa

S = 10**9
BEGAN = 1_700_006_400 * S  # long ago: its hours are over, so that they are compacted


def batch(gpus: list[str], second: int, power: int) -> pa.RecordBatch:
    rows = len(gpus)
    return pa.RecordBatch.from_pydict(
        {
            "ts": pa.array([BEGAN + second * S] * rows, pa.timestamp("ns")),
            "cluster": ["c"] * rows,
            "gpu": gpus,
            "power_mw": pa.array([power] * rows, pa.int32()),
        }
    )
