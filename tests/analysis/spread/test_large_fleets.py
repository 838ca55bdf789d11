"""What large fleets are read and parted by: numbers in place of names, and one part at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis.runs.probing import parted, probed
from whorl.analysis.runs.sittings import in_order
from whorl.analysis.statistics.laws import quantile
from whorl.tests.stores import new_store


@pytest.mark.parametrize("most", [3, 70_000, 1 << 33])
@pytest.mark.parametrize("in_time", [True, False])
def test_the_order_by_owner_and_time_keeps_equal_ones_as_they_are(most: int, in_time: bool) -> None:
    random = np.random.default_rng(1)
    owner, at = random.integers(0, most, 500), np.round(random.random(500), 1)
    at = np.sort(at) if in_time else at
    assert in_order(owner, at).tolist() == np.lexsort((at, owner)).tolist()
    order = np.lexsort((at, owner))
    assert in_order(owner[order], at[order]).tolist() == list(range(500))


def test_parts_are_all_rows_by_name_also_those_without_one() -> None:
    runs = pl.DataFrame({"model": ["b", None, "a", "b"], "workload": ["w", "w", "w", "v"], "n": [1, 2, 3, 4]})
    found = {key: part["n"].to_list() for key, part in parted(runs, "model", "workload")}
    assert found == {(None, "w"): [2], ("a", "w"): [3], ("b", "v"): [4], ("b", "w"): [1]}


@pytest.mark.long(short=2)
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("repeats", [1, 3])
def test_every_run_has_its_own_figures_in_whatever_order_they_are_stored(
    tmp_path: Path, shuffled: bool, repeats: int
) -> None:
    store, random = new_store(tmp_path / "store"), np.random.default_rng(2)
    n = 40
    ids, gpus = [f"r{one:02}" for one in range(n)], [f"g{one % 7}" for one in range(n)]
    began = pa.array((1_790_000_000_000_000_000 + 10**9 * random.permutation(n)).view("datetime64[ns]"))
    shared = {"cluster": ["c"] * n, "workload": ["w"] * n}
    runs = pa.table({"run_id": ids, "gpu": gpus, "began": began, **shared})
    rows = [(one, "time", repeat, 100.0 * one + repeat) for one in range(n - 1) for repeat in range(repeats)]
    rows += [(one, "energy", 0, float(one)) for one in range(0, n, 2)] if shuffled else []
    order = random.permutation(len(rows)) if shuffled else np.arange(len(rows))
    run, figure, repeat, value = zip(*(rows[one] for one in order.tolist()), strict=True)
    results = {
        "run_id": [ids[one] for one in run], "gpu": [gpus[one] for one in run], "figure": figure, "repeat": repeat,
        "value": value, "cluster": ["c"] * len(rows), "workload": ["w"] * len(rows),
    }  # fmt: skip
    model = pa.table(
        {"cluster": ["c"] * 7, "gpu": [f"g{one}" for one in range(7)], "slot": pa.array(range(7), pa.int32())}
    )
    store.append({"runs": runs, "results": pa.table(results), "gpus": model}, "made")
    found = probed(store, every=True).runs
    assert found["began"].is_sorted()
    for row in found.iter_rows(named=True):
        one = int(row["run_id"][1:])
        timed = one < n - 1
        assert row["value"] == (100.0 * one + (repeats - 1) / 2 if timed else None)
        assert row["energy"] == (one if shuffled and one % 2 == 0 else None)
        assert (row["gpu"], row["slot"]) == (f"g{one % 7}", one % 7)
        assert row["repeats"] == (repeats if timed else None)


def test_quantiles_of_many_are_those_of_each() -> None:
    freedom = np.array([[3.0, 5.0, 3.0], [20.0, 5.0, 3.0]])
    each = [[float(quantile(0.025, one)) for one in row] for row in freedom]
    assert np.allclose(quantile(0.025, freedom), each, rtol=1e-10)
    assert each[0][0] == pytest.approx(3.182446, abs=1e-6)
