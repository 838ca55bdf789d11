"""The five questions of `store.py`: their SQL for DuckDB, and answers made comparable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.benchmarks.store_workload import BEGAN_NS, METRICS

QUESTIONS = {
    "q1": "mean and 95th percentile of power of every GPU over ten minutes in the middle of the hour",
    "q2": "Tukey's fences of 14 metrics of every GPU, quartiles interpolated",
    "q3": "the last row of every GPU",
    "q4": "one-minute means of power, temperature and SM clock of one GPU",
    "q5": "energy of every job: the counter's last value up to its end less that up to its beginning",
}
WINDOW = tuple(str(np.datetime64(BEGAN_NS + 60_000_000_000 * minute, "ns")) for minute in (30, 40))
_EDGES = (
    "edges AS (SELECT job_id, gpu, began AS edge, -1 AS sign FROM jobs j "
    "UNION ALL SELECT job_id, gpu, ended, 1 FROM jobs j)"
)


def duckdb_sql(question: str, gpu: str) -> str:
    """A question in DuckDB's SQL, over tables `telemetry` and `jobs`.

    `q5` and `q5_near` need an energy counter that was not reset; `q5_near` also a row in the ten seconds before
    each edge, and is quick because it joins on equal slots of time.
    """
    return {
        "q1": "SELECT gpu, avg(power_mw) AS mean, quantile_cont(power_mw, 0.95) AS p95 FROM telemetry "
        f"WHERE ts >= '{WINDOW[0]}' AND ts < '{WINDOW[1]}' GROUP BY gpu",
        "q2": "SELECT gpu, " + ", ".join(f"quantile_cont({m}, [0.25, 0.75]) AS {m}" for m in METRICS) + " "
        "FROM telemetry GROUP BY gpu",
        "q3": f"SELECT gpu, max(ts) AS ts, {', '.join(f'arg_max({m}, ts) AS {m}' for m in METRICS)} "
        "FROM telemetry GROUP BY gpu",
        "q3_struct": "SELECT gpu, unnest(max(struct_pack(ts, " + ", ".join(METRICS) + "))) FROM telemetry GROUP BY gpu",
        "q4": "SELECT epoch_ns(ts) // 60000000000 AS minute, avg(power_mw) AS power, "
        "avg(temperature_c) AS temperature, avg(sm_clock_mhz) AS clock FROM telemetry "
        f"WHERE gpu = '{gpu}' GROUP BY minute",
        "q5": "SELECT j.job_id, max(energy_mj) FILTER (ts <= ended) - max(energy_mj) FILTER (ts <= began) AS energy "
        "FROM telemetry t JOIN jobs j USING (gpu) GROUP BY j.job_id",
        "q5_asof": f"WITH {_EDGES} SELECT job_id, sum(sign * energy_mj) AS energy FROM edges e "
        "ASOF JOIN telemetry t ON t.gpu = e.gpu AND t.ts <= e.edge GROUP BY job_id",
        "q5_near": f"WITH {_EDGES}, near AS (SELECT job_id, sign, max(energy_mj) AS energy FROM "
        "(SELECT *, epoch_ns(edge) // 10000000000 - back AS slot FROM edges, range(2) r(back)) e JOIN telemetry t "
        "ON t.gpu = e.gpu AND epoch_ns(t.ts) // 10000000000 = e.slot AND t.ts <= e.edge GROUP BY job_id, sign) "
        "SELECT job_id, sum(sign * energy) AS energy FROM near GROUP BY job_id",
    }[question]


class Answer:
    """Rows in the order of their keys: `keys` are strings, `values` is (rows, columns) of float64."""

    def __init__(self, keys: list[NDArray[Any]], values: list[NDArray[Any]]) -> None:
        order = np.lexsort(keys[::-1])
        self.keys = np.stack([key[order].astype(str) for key in keys])
        self.values = np.stack([np.asarray(value)[order].astype(np.float64) for value in values], axis=1)

    def difference(self, other: Answer) -> float:
        """The largest relative difference; infinite where the keys or the number of rows differ."""
        if self.keys.shape != other.keys.shape or self.values.shape != other.values.shape:
            return float("inf")
        if not (self.keys == other.keys).all():
            return float("inf")
        scale = np.maximum(np.abs(self.values), 1.0)
        return float((np.abs(self.values - other.values) / scale).max())


def tidy(question: str, table: pa.Table) -> Answer:
    """An Arrow answer with the columns of `duckdb_sql`, as comparable numbers."""
    key = {"q4": "minute", "q5": "job_id"}.get(question, "gpu")
    keys = [table[key].to_numpy()]
    values: list[NDArray[Any]] = []
    for name in {"q1": ("mean", "p95"), "q4": ("power", "temperature", "clock"), "q5": ("energy",)}.get(
        question, METRICS
    ):
        if question == "q2":
            pair = np.stack(table[name].to_pylist())
            values += [2.5 * pair[:, 0] - 1.5 * pair[:, 1], 2.5 * pair[:, 1] - 1.5 * pair[:, 0]]
        else:
            values.append(table[name].to_numpy())
    if question == "q3":
        values.append(table["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy())
    return Answer(keys, values)
