"""`whorl doctor` on the sources of readings: what the driver gives by itself, and the pages of exporters."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.exporter import Answer, Exported, exporting, page, usual
from whorl.tests.nvml_library import NvmlLibrary

module = importlib.import_module("whorl.jobs.machine")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """No CuPy and no Slurm: what is looked for here is something else."""
    for name in ("_cupy", "_slurm"):
        monkeypatch.setattr(module, name, lambda: module.Finding("x", False, "not looked for"))


def found(*arguments: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(cli, ["doctor", "--json", *arguments], env={"WHORL_STORE": ""})
    assert done.exit_code == 0, done.stderr
    return {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("statements", "works", "words"),
    [
        (["gpus 2", "model H100"], True, " metrics on 2 of 2 GPUs"),
        (["gpus 2", "model H100", "gpu 1 mig 3g.40gb"], True, " metrics on 2 of 2 GPUs"),
        (["gpus 2", "model H100", "gpu 1 deny 3 nvmlGpmQueryDeviceSupport"], True, " metrics on 1 of 2 GPUs"),
        (["gpus 2", "model A100"], False, "no GPU of this node has it with this driver: it needs Hopper or newer"),
    ],
)
def test_what_the_driver_gives_without_dcgm(nvml: NvmlLibrary, statements: list[str], works: bool, words: str) -> None:
    nvml.write(*statements)
    finding = found()["GPM"]
    assert finding["works"] == works
    assert words in finding["detail"]


def test_without_a_driver_nothing_is_said_of_gpm(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 0")
    assert not found()["NVML"]["works"]
    assert "GPM" not in found()


def test_pages_of_exporters() -> None:
    gpus = [Exported(number, usual()) for number in range(3)]
    with exporting(lambda path: Answer(page(gpus)) if path == "/metrics" else Answer("no", 500)) as exporter:
        good, bad = exporter.url, exporter.url.replace("metrics", "other")
        assert "exporters" not in found()
        assert found("--url", good)["exporters"] == {
            "what": "exporters",
            "works": True,
            "detail": "3 GPUs on 1 page",
            "needed_for": "collect --backend prometheus",
        }
        one_down = found("--url", good, "--url", bad)["exporters"]
        assert not one_down["works"]
        assert "3 GPUs on 2 pages; " in one_down["detail"]
        assert "500" in one_down["detail"]
        all_down = found("--url", bad)["exporters"]
        assert not all_down["works"]
        assert "500" in all_down["detail"]
