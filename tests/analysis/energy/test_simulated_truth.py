"""The energy of simulated GPUs against what they truly drew: their counter is the exact sum of the true power."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.energy.pieces import add_up
from whorl.probes.loads import run_load
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import find_load
from whorl.simulation.models import find_model
from whorl.store import Store
from whorl.tests.analysis.energy.stored import books
from whorl.tests.stores import new_store

CASES = [("A100", "square"), ("H100", "mixed")]
FAULTS = ("stuck_sensor", "zero_power", "lost")


def energies(store: Store, true: pl.DataFrame) -> pl.DataFrame:
    """By GPU, the figure with its interval, and the true energy."""
    found = add_up(books(store).pieces, ["gpu"]).join(true, on="gpu")
    return found.with_columns(pl.col("true_j").is_between("low_j", "high_j").alias("holds")).sort("gpu")


@pytest.mark.long
@pytest.mark.parametrize(("model", "load"), CASES)
def test_the_interval_holds_what_the_boards_drew(model: str, load: str, tmp_path: Path) -> None:
    fleet = Fleet.draw(find_model(model), 16, 3, faults=3, kinds=FAULTS)
    store, without = new_store(tmp_path / "counter"), new_store(tmp_path / "power")
    planted = {one.uuid: one.kind for one in run_load(store, fleet, find_load(load), hours=0.1).planted}
    rows = store.collect(store.scan("telemetry")).sort("gpu", "ts")
    joules = (pl.col("energy_mj").last() - pl.col("energy_mj").first()) / 1000
    lost = [gpu for gpu, kind in planted.items() if kind == "lost"]  # its counter begins anew: the truth is not known
    true = rows.filter(~pl.col("gpu").is_in(lost)).group_by("gpu").agg(joules.alias("true_j"))

    by_counter = energies(store, true)
    assert by_counter["method"].unique().to_list() == ["counter"]
    assert by_counter["holds"].all()
    assert by_counter["energy_j"].to_list() == pytest.approx(by_counter["true_j"].to_list(), rel=1e-3)

    blind = rows.with_columns(pl.lit(None, pl.Int64).alias("energy_mj"))
    without.append({"telemetry": blind.to_arrow(), "gpus": store.arrow("gpus")}, "rows")
    by_power = energies(without, true)
    refused = by_power.filter(pl.col("energy_j").is_null())
    assert {planted[gpu] for gpu in refused["gpu"]} <= {"zero_power", "stuck_sensor"}
    reasons = {planted[gpu]: reason for gpu, reason in refused.select("gpu", "reason").iter_rows()}
    assert reasons["zero_power"] == "zero watts"
    assert by_power.drop_nulls("energy_j")["holds"].all()
