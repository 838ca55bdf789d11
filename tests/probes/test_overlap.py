"""Probes of overlap: what they say of copies beside kernels, on simulated GPUs that hide what was drawn for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.simulated_device import SimulatedDevice
from whorl.probes.catalogue import find_probe
from whorl.probes.conditions import Asked
from whorl.probes.figures import find as figure
from whorl.probes.overlap import Overlap
from whorl.probes.protocol import Measured, measure
from whorl.probes.steps import Task
from whorl.simulation.bench import Bench
from whorl.simulation.cluster import identities
from whorl.simulation.fleet import Fleet
from whorl.simulation.models import A100, H100, V100, GpuModel
from whorl.tests.probes.hand_device import QUICK, HandDevice

NAMES = ("overlap-embedding", "overlap-partitions", "overlap-activations")


def measured(name: str, model: GpuModel, bench: Bench, *positions: int) -> list[Measured]:
    """A probe on some GPUs of a bench at the same time, without telemetry."""

    async def on(position: int) -> object:
        device = SimulatedDevice(bench, position)
        try:
            return await measure(device, HandDevice(), Task(find_probe(name), Asked(QUICK), first=False), find_kernel)
        finally:
            device.close()

    answers = bench.run([on(position) for position in positions])
    assert all(isinstance(answer, Measured) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Measured)]


def value(run: Measured, name: str) -> float:
    number = figure(run.figures, name)
    assert number is not None
    return number


@pytest.mark.parametrize(("name", "model"), list(zip(NAMES, (V100, A100, H100), strict=True)))
def test_the_hidden_share_is_the_one_that_was_drawn(name: str, model: GpuModel) -> None:
    fleet = Fleet.draw(model, 8, 3, faults=1, kinds=["poor_overlap"])
    bench = Bench(fleet, began_ns=0)
    planted = next(iter(fleet.planted))
    for position in (planted, (planted + 4) % 8):
        (run,) = measured(name, model, bench, position)
        drawn = 100 * bench.fleet.silicon.overlap[position]
        assert value(run, "hidden") == pytest.approx(drawn, abs=2)
        assert value(run, "time_median") == pytest.approx(2 - value(run, "hidden") / 100, abs=1e-3)
        assert 0 < value(run, "hidden_error") < 0.5
        assert value(run, "drag") == pytest.approx(2 - drawn / 100, abs=0.07)
        assert value(run, "time_copies") == pytest.approx(value(run, "time_kernels"), rel=0.11)
        assert run.conditions["balance"] == pytest.approx(1, abs=0.1)
        assert value(run, "checked_repetitions") > 500
        assert run.status == "ok"


def test_hidden_and_drag_are_what_their_formulas_say() -> None:
    pairs = Overlap(*np.array([[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 4.0, 2.0], [2.0, 4.0, 5.0, 4.5], [2.0, 2.4, 3.0, 4.0]]))
    np.testing.assert_allclose(pairs.hidden, [1, 0, 0.5, -0.25])
    np.testing.assert_allclose(pairs.drag, [1, 1.2, 1.5, 2])
    np.testing.assert_allclose(pairs.times_ms, [1, 2, 1.5, 2.25])


@pytest.mark.long
def test_a_planted_node_is_named_and_no_other_gpu(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store")]
    for sitting in ("one", "two"):
        fleet = ["--backend", "simulated:gpus=96,fault=poor_overlap", "--campaign", sitting]
        answer = CliRunner().invoke(cli, ["probe", "run", "overlap-embedding", "--suite", "quick", *fleet, *store])
        assert answer.exit_code == 0, answer.output
    rows = json.loads(CliRunner().invoke(cli, ["verdicts", "--json", *store]).output)["rows"]
    drawn = Fleet.draw(V100, 96, 1, faults=1, kinds=["poor_overlap"])
    nodes = {identity.host for gpu, identity in enumerate(identities(1, 96, V100.name)) if gpu in drawn.planted}
    assert {(row["level"], row["name"], row["kind"]) for row in rows} == {("node", *nodes, "slow")}
    assert len(drawn.planted) == 4
