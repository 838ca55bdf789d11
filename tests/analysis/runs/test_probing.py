"""The runs of a campaign as a store holds them: which are taken, which are left out, what their probes stress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis import measurements, untrusted, variability
from whorl.analysis.runs.probing import parted, probed, stresses
from whorl.analysis.runs.sittings import in_order
from whorl.errors import InputError
from whorl.store.schema import arrow_rows
from whorl.tests.probed_fleet import CLUSTER, PROBES, stored, uuids
from whorl.tests.stores import new_store


@pytest.mark.long
def test_the_time_of_a_wrong_result_counts_nowhere(tmp_path: Path) -> None:
    """The same GPUs are peers here and in `whorl verdicts variability`, and those left out are counted."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("brake", "wrong_results"), telemetry=False)
    campaign = probed(store)
    peers = {row.workload: row.n for row in variability(measurements(store), replicates=0) if row.level == "gpu"}
    assert peers["gemm-fp32"] == peers["pagerank"] == 31
    assert campaign.sound.filter(pl.col("workload") == "gemm-fp32")["gpu"].n_unique() == 31
    wrong = next(gpu for gpu, kind in uuids(fleet).items() if kind == "wrong_results")
    assert wrong not in campaign.sound.filter(pl.col("workload") == "gemm-fp32")["gpu"]
    assert campaign.untrusted == {"gemm-fp32": 1, "pagerank": 1}
    assert campaign.untrusted_says == (
        "left out of the times: 2 runs, as their results were wrong (1 of gemm-fp32, 1 of pagerank)"
    )
    assert untrusted(store) == [
        f"{probe} on {CLUSTER}: 1 of 32 runs is left out: failed, or with a wrong result"
        for probe in ("gemm-fp32", "pagerank")
    ]
    assert untrusted(store, workloads=["idle"]) == []
    healthy, _ = stored(tmp_path / "healthy", 8, telemetry=False)
    assert probed(healthy).untrusted_says is None


def test_the_last_campaign_is_taken_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 8, telemetry=False)
    assert probed(store).campaign == "made-1"
    assert probed(store).probes == [probe.name for probe in PROBES]
    with pytest.raises(InputError, match="no campaign 'other'"):
        probed(store, "other")
    with pytest.raises(InputError, match="holds no runs: "):
        probed(new_store(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"path": "dram", "flop": 2e12, "bytes": 1e9}, "compute"),
        ({"path": "none", "flop": 2e12, "bytes": 0}, "compute"),
        ({"path": "dram", "flop": 2e8, "bytes": 2.4e9}, "memory"),
        ({"path": "dram", "flop": 0, "bytes": 0, "operations": 100}, "memory"),
        ({"path": "l2", "bytes": 1e9}, "cache"),
        ({"path": "pcie", "bytes": 1e9}, "link"),
        ({"path": "peer", "bytes": 1e9}, "link"),
        ({"path": "none", "operations": 1000}, "other"),
        ({}, "other"),
        (None, "other"),
    ],
)
def test_what_a_probe_stresses_is_told_by_its_work(conditions: dict[str, object] | None, expected: str) -> None:
    runs = pl.DataFrame(arrow_rows("runs", {"conditions": [conditions]}))
    assert runs.select(stresses()).item() == expected


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
    n_by_part = {key: part["n"].to_list() for key, part in parted(runs, "model", "workload")}
    assert n_by_part == {(None, "w"): [2], ("a", "w"): [3], ("b", "v"): [4], ("b", "w"): [1]}
