"""The quick suite on real GPUs, from the command line to the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.kernels.cupy_device import CupyDevice
from whorl.probes import prolog
from whorl.probes.health import DriverHealth

pytestmark = pytest.mark.gpu


def test_the_quick_suite_measures_every_gpu(devices: list[CupyDevice], tmp_path: Path) -> None:
    arguments = ["probe", "run", "--suite", "quick", "--backend", "cuda", "--store", str(tmp_path / "S"), "--json"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    runs = json.loads(done.stdout)["runs"]
    assert {run["gpu"] for run in runs} == {device.facts.gpu for device in devices}
    assert {run["status"] for run in runs} == {"ok"}
    files = (tmp_path / "S" / "runs").rglob("*.parquet")
    tables = [pq.read_table(path) for path in files if not path.name.startswith("_")]  # the schema's has no rows
    assert sum(table.num_rows for table in tables) == len(runs)
    for table in tables:
        assert pc.all(pc.less(table.column("began"), table.column("ended"))).as_py()
        measured = [table.column(name).to_pylist() for name in ("sm_clock_mhz", "power_w")]
        assert None not in [value for column in measured for value in column]
        assert not any(stated["simulated"] for stated in table.column("conditions").to_pylist())


def test_each_gpu_has_a_health_and_is_fit(devices: list[CupyDevice]) -> None:
    for device in devices:
        health = DriverHealth(device.facts.gpu).read()
        assert health.value("ecc_uncorrected_lifetime") is not None or health.value("pcie_width") is not None
    looked = prolog.look(60.0)
    assert [gpu.reason for gpu in looked] == [""] * len(looked)
    whole_gpus = {device.facts.gpu for device in devices if device.facts.gpu.startswith("GPU-")}
    assert whole_gpus <= {gpu.gpu for gpu in looked}
