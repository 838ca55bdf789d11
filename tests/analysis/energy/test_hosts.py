"""Energy of hosts: GPU + host = node, and where that is not known."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.nodes import NodeMeter, measured_hosts
from whorl.store.vocabulary import PowerMeter, PowerOf

NOON = datetime(2026, 11, 2, 12)  # noqa: DTZ001 - UTC
NOON_NS = int((NOON - datetime(1970, 1, 1)).total_seconds()) * 10**9  # noqa: DTZ001
MINUTE_NS = 60 * 10**9


def meter(watts: list[float], covers: PowerOf = PowerOf.NODE_DC) -> NodeMeter:
    """A meter of node n1 that says the power of each minute from noon on; NaN where it was not read."""
    ts_ns = NOON_NS + np.arange(len(watts) + 1) * MINUTE_NS
    joules, seconds = np.nan_to_num(watts) * 60, np.where(np.isnan(watts), 0.0, 60.0)
    total_j, total_s = (np.append(0.0, np.cumsum(values)) for values in (joules, seconds))
    power_w, window_s = np.append(watts, 0.0), np.full(len(ts_ns), 60.0)
    return NodeMeter("c", "n1", PowerMeter.PDU, covers, ts_ns, ts_ns, total_j, total_s, power_w, window_s)


def pieces(*rows: tuple[str, float, float, float, float | None]) -> pl.DataFrame:
    """GPU, from and until (minutes after noon), share and power."""
    return pl.DataFrame(
        {
            "cluster": "c", "node": "n1", "gpu": [row[0] for row in rows],
            "began": [NOON + timedelta(minutes=row[1]) for row in rows],
            "ended": [NOON + timedelta(minutes=row[2]) for row in rows],
            "share": [row[3] for row in rows],
            "energy_j": [None if row[4] is None else row[4] * 60 * (row[2] - row[1]) for row in rows],
        },
        schema_overrides={"energy_j": pl.Float64},
    )  # fmt: skip


def test_the_hosts_of_all_pieces_add_up_to_what_the_node_used_beside_its_gpus() -> None:
    random = np.random.default_rng(7)
    watts = random.uniform(900, 1200, 60)
    rows = pieces(
        ("a", 0, 20, 1.0, 300.0), ("a", 20, 60, 0.25, 60.0), ("a", 20, 60, 0.75, 90.0), ("b", 0, 33, 1.0, 200.0),
        ("b", 33, 60, 1.0, 250.0),
    )  # fmt: skip
    found = measured_hosts(rows, [meter(watts.tolist())], {("c", "n1"): 2})
    host_j = found["measured_host_j"].to_numpy()
    assert host_j.sum() + rows["energy_j"].sum() == pytest.approx(watts.sum() * 60)
    assert host_j[1] * 3 == pytest.approx(host_j[2])
    # The first twenty minutes of GPU a: half of what the node drew beside both GPUs.
    assert host_j[0] == pytest.approx((watts[:20].mean() - 500) * 1200 / 2)


def test_what_is_not_known_is_null() -> None:
    rows = pieces(("a", 0, 30, 1.0, 300.0), ("a", 30, 60, 1.0, 300.0), ("b", 0, 60, 1.0, 200.0))
    steady = meter([700.0] * 60)

    def known(pieces: pl.DataFrame, *meters: NodeMeter, gpus: int = 2) -> list[bool]:
        return measured_hosts(pieces, meters, {("c", "n1"): gpus})["measured_host_j"].is_not_null().to_list()

    assert known(rows, steady) == [True, True, True]
    assert known(rows, steady, gpus=3) == [False, False, False]  # one GPU of the node was not read
    assert known(rows, replace(steady, node="n2")) == [False, False, False]
    assert known(rows, meter([700.0] * 30 + [float("nan")] * 30)) == [True, False, False]
    assert known(pieces(("a", 0, 30, 1.0, 300.0), ("b", 0, 30, 1.0, None)), steady) == [False, False]
    assert known(rows, meter([400.0] * 60)) == [False, False, False]  # less than its GPUs: not a meter of all of it
    assert known(rows) == [False, False, False]


def test_without_a_meter_of_the_node_the_counters_of_its_host_count() -> None:
    rows = pieces(("a", 0, 60, 1.0, 300.0), ("b", 0, 60, 0.5, None))
    parts = [meter([120.0] * 60, PowerOf.CPU), meter([40.0] * 60, PowerOf.DRAM)]
    assert measured_hosts(rows, parts, {("c", "n1"): 2})["measured_host_j"].to_list() == pytest.approx([288e3, 144e3])
