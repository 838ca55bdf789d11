"""`whorl energy` on the sample fleet: every figure again by plain SQL, and what people and programs see."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.simulation.sample import write_sample
from whorl.tests.conftest import BuiltOnce
from whorl.tests.stores import new_store

INTEGRAL = """
select gpu, sum((power_w + before_w) / 2 * epoch_ns_apart / 1e9) as joules, min(ts) as first, max(ts) as last
from (
    select gpu, ts, power_mw / 1e3 as power_w, lag(power_mw) over w / 1e3 as before_w,
        epoch_ns(ts) - epoch_ns(lag(ts) over w) as epoch_ns_apart
    from telemetry where power_mw is not null window w as (partition by gpu order by ts)
) group by gpu
"""


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["energy", *arguments], catch_exceptions=False)


def document(*arguments: str) -> dict[str, Any]:
    result = whorl(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def sampled(built_once: BuiltOnce) -> Path:
    """A store of the sample's jobs and of its stream of nvidia-smi."""

    def build(folder: Path) -> None:
        files = [str(path) for path in write_sample(folder / "files").files if path.stem in ("nvidia-smi", "jobs")]
        new_store(folder / "store")
        done = CliRunner().invoke(cli, ["import", "--store", str(folder / "store"), "--cluster", "sample", *files])
        assert done.exit_code == 0, done.output

    return built_once("sample-energy", build) / "store"


def sql(store: Path, query: str) -> list[dict[str, Any]]:
    from whorl.store import Store

    return list(Store.open(store).sql(query).to_pylist())


def test_energy_by_gpu_is_the_integral_of_its_power(sampled: Path) -> None:
    found = document("--store", str(sampled), "--by", "gpu")
    assert found["schema"] == "whorl.energy/1"
    again = {row["gpu"]: row["joules"] for row in sql(sampled, INTEGRAL)}
    assert {row["gpu"]: row["energy_j"] for row in found["rows"]} == pytest.approx(again, rel=1e-9)
    for row in found["rows"]:
        assert row["low_j"] < row["energy_j"] < row["high_j"]
        assert row["method"] == "power"
        assert row["reason"] is None
        assert row["measured_s"] == pytest.approx(row["gpu_s"]) == pytest.approx(row["duration_s"])
    assert found["total"]["energy_j"] == pytest.approx(sum(again.values()), rel=1e-9)


@pytest.mark.parametrize("by", ["node", "day"])
def test_rows_of_nodes_and_days_add_up_to_those_of_gpus(sampled: Path, by: str) -> None:
    gpus, rows = (document("--store", str(sampled), "--by", one)["rows"] for one in ("gpu", by))
    assert sum(row["energy_j"] for row in rows) == pytest.approx(sum(row["energy_j"] for row in gpus), rel=1e-9)


def test_csv_has_the_rows_of_json(sampled: Path) -> None:
    rows = document("--store", str(sampled), "--by", "gpu")["rows"]
    listed = list(csv.DictReader(io.StringIO(whorl("--store", str(sampled), "--by", "gpu", "--csv").stdout)))
    assert [row["gpu"] for row in listed] == [row["gpu"] for row in rows]
    assert [float(row["energy_j"]) for row in listed] == [row["energy_j"] for row in rows]
    assert {row["cost"] for row in listed} == {""}


def test_a_store_without_telemetry_is_refused_with_what_to_do(tmp_path: Path) -> None:
    new_store(tmp_path / "S")
    result = whorl("--store", str(tmp_path / "S"))
    assert result.exit_code == 2
    assert "has no telemetry: `whorl collect` or `whorl import` adds some" in result.stderr


def test_a_time_without_telemetry_is_refused_with_what_there_is(sampled: Path) -> None:
    result = whorl("--store", str(sampled), "--since", "2026-03-02")
    assert result.exit_code == 2
    assert "it has some from 2026-03-01 10:00 to 2026-03-01 10:01 UTC" in result.stderr
