"""Power profiles and classes from telemetry, against scipy's clustering and examples worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.power_classes import Profile, Use, curves, nearest, power_classes, power_profiles, sweep
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

SECOND = 10**9
LIMIT = 300.0
READINGS = 100


def trace(kind: str, seed: int) -> np.ndarray:
    """Power over limit, ten readings a second."""
    rng, i = np.random.default_rng(seed), np.arange(READINGS)
    noise = rng.normal(0, 0.01, READINGS)
    level: dict[str, Any] = {"full": 0.98, "middle": 0.65, "light": 0.3}
    watts: np.ndarray = noise + level.get(kind, np.where(i % 20 < 10, 1.15, 0.55))
    return watts


def store_of(path: Path, kinds: dict[str, str], *, limit: float | None = LIMIT, quality: str | None = None) -> Store:
    """Two runs of each workload on two GPUs; before each run ten readings of an idle GPU."""
    store = new_store(path)
    runs: dict[str, list[Any]] = {key: [] for key in ("run_id", "cluster", "workload", "gpu", "began", "ended")}
    read: dict[str, list[Any]] = {
        key: [] for key in ("ts", "cluster", "gpu", "power_mw", "utilization", "memory_utilization", "quality")
    }
    for number, (workload, kind) in enumerate(kinds.items()):
        for gpu in (0, 1):
            began = (number * 1000 + gpu) * SECOND
            values = np.concatenate([np.full(10, 0.9), trace(kind, number)])  # the first are not of this run's work
            busy = [0] * 10 + [100] * READINGS
            for i, (value, used) in enumerate(zip(values, busy, strict=True)):
                memory = {"full": 10, "spiky": 80, "middle": 45}.get(kind, 5) if used else 0
                row = (began + i * SECOND // 10, "c", f"g{gpu}", round(value * LIMIT * 1000), used, memory, quality)
                for key, cell in zip(read, row, strict=True):
                    read[key].append(cell)
            row_of_run = (f"{workload}-{gpu}", "c", workload, f"g{gpu}", began, began + 11 * SECOND)
            for key, cell in zip(runs, row_of_run, strict=True):
                runs[key].append(cell)
    gpus: dict[str, list[Any]] = {"cluster": ["c"] * 2, "gpu": ["g0", "g1"]}
    gpus["power_limit_default_mw"] = [None if limit is None else round(limit * 1000)] * 2
    tables = {"runs": runs, "telemetry": read, "gpus": gpus}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "made")
    return store


KINDS = {"a-full": "full", "b-full": "full", "c-spiky": "spiky", "d-spiky": "spiky", "e-middle": "middle"}


def test_workloads_of_one_shape_are_one_class(tmp_path: Path) -> None:
    profiles = power_profiles(store_of(tmp_path / "s", KINDS | {"f-light": "light"}))
    rows = {row["workload"]: row for row in power_classes(profiles).iter_rows(named=True)}
    classes = {name: row["power_class"] for name, row in rows.items()}
    assert classes["a-full"] == classes["b-full"]
    assert classes["c-spiky"] == classes["d-spiky"]
    assert len({classes[name] for name in ("a-full", "c-spiky", "e-middle")}) == 3
    assert (classes["f-light"], classes["e-middle"]) == (0, 1)  # classes are numbered by rising power
    assert rows["a-full"]["silhouette"] > 0.5
    assert rows["e-middle"]["silhouette"] is None
    assert rows["c-spiky"]["above_limit"] > 0.3 > rows["a-full"]["above_limit"]
    uses = {name: row["use"] for name, row in rows.items()}
    assert (uses["a-full"], uses["c-spiky"], uses["e-middle"]) == (Use.COMPUTE, Use.MEMORY, Use.BOTH)
    assert (rows["a-full"]["runs"], rows["a-full"]["gpus"], rows["a-full"]["readings"]) == (2, 2, 2 * READINGS)
    assert rows["a-full"]["mean_ratio"] == pytest.approx(0.98, abs=0.01)  # the idle readings are left out


def test_the_nearest_class_of_a_new_workload(tmp_path: Path) -> None:
    profiles = {
        profile.workload: profile for profile in power_profiles(store_of(tmp_path / "s", KINDS | {"new": "spiky"}))
    }
    neighbours = nearest(profiles["new"], list(profiles.values()))
    assert {profile.workload for profile, _ in neighbours[:2]} == {"c-spiky", "d-spiky"}
    assert [distance for _, distance in neighbours] == sorted(distance for _, distance in neighbours)
    assert neighbours[1][1] < 0.2 < neighbours[2][1]
    light = Profile("c", "x", 1, 1, 50, None, 0.3, 0.4, None, None)
    assert nearest(light, list(profiles.values())) == []
    assert light.use is None


def test_alike_workloads_are_one_class(tmp_path: Path) -> None:
    profiles = power_profiles(store_of(tmp_path / "s", dict.fromkeys("abcd", "full")))
    rows = power_classes(profiles)
    assert rows["power_class"].to_list() == [1] * 4
    assert rows["silhouette"].null_count() == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limit": None}, "no power limit of its GPUs is known"),
        ({"quality": "power_stuck"}, "fewer than 30 readings of power in the windows of its runs"),
    ],
)
def test_a_workload_without_a_profile_says_why(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    profiles = power_profiles(store_of(tmp_path / "s", {"a": "full", "b": "spiky"}, **options))
    rows = power_classes(profiles)
    assert rows["reason"].to_list() == [reason] * 2
    assert rows["power_class"].null_count() == 2


# -- sweeps ------------------------------------------------------------------------------------------------------------
# Curves of workloads under power limits: by hand, and of Zeus's sweeps in a store.


ZEUS = Path(__file__).parents[4] / "shared" / "data" / "power"


def test_curves_need_two_caps_and_known_values() -> None:
    rows = [
        ("a", "a1", 300.0, 10.0, 290.0),
        ("a", "a1", 150.0, 20.0, 150.0),
        ("a", "a1", 150.0, 22.0, 148.0),
        ("a", "a2", 300.0, 10.0, 290.0),
        ("b", "b1", 300.0, 10.0, None),
        ("b", "b1", 150.0, 20.0, 149.0),
    ]
    frame = pl.DataFrame(rows, schema=["family", "setting", "cap", "time", "power_w"], orient="row")
    (curve,) = curves(frame)
    assert curve.family == "a"
    assert curve.load == pytest.approx(290 / 300)
    assert curve.share.tolist() == [0.5, 1.0]
    assert curve.time.tolist() == pytest.approx([2.1, 1.0])


@pytest.mark.skipif(not ZEUS.is_dir(), reason=f"the files of Zeus are not at {ZEUS}")
def test_an_imported_sweep_has_the_curves_of_its_file(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    columns = {"network": "workload", "time_per_epoch": "time:s", "average_power": "power:W"}
    columns |= {"power_limit": "power_limit:W", "batch_size": "input_size"}
    path = ZEUS / "zeus_power_limits_v100.csv.gz"
    import_file(store, path, Options(columns=columns, gpu="V100"))
    names = {"network": "family", "batch_size": "setting", "power_limit": "cap", "time_per_epoch": "time"}
    expected = curves(pl.read_csv(path).rename({**names, "average_power": "power_w"}))
    stored = curves(sweep(store))
    assert len(stored) == len(expected) > 30
    loads, expected_loads = (sorted((curve.family, curve.load) for curve in table) for table in (stored, expected))
    assert [name for name, _ in loads] == [name for name, _ in expected_loads]
    assert [load for _, load in loads] == pytest.approx([load for _, load in expected_loads])
    assert sum(curve.time[0] for curve in stored) == pytest.approx(sum(curve.time[0] for curve in expected))
