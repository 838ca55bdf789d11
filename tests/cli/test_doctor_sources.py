"""`whorl doctor` on the sources of readings: what the driver gives by itself, and the pages of exporters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from whorl.cli.answers import doctor
from whorl.cli.answers.doctor import dcgm_findings
from whorl.jobs.node_doctor import NodeFinding
from whorl.tests.cli import calling
from whorl.tests.dcgm_library import DcgmEngine
from whorl.tests.exporter import Answer, Exported, exporting, page, usual
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.sizes import sample


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """No CuPy and no Slurm: what is looked for here is something else. DCGM has tests of its own."""
    monkeypatch.setenv("WHORL_PYDCGM_PATH", "/nowhere")
    for name in ("cupy_finding", "slurm_finding"):
        monkeypatch.setattr(doctor, name, lambda: NodeFinding("x", False, "not looked for"))


def answer(*words: object) -> dict[str, dict[str, Any]]:
    done = calling.whorl("doctor --json", *words, WHORL_STORE="")
    assert done.exit_code == 0, done.stderr
    return {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.long
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
    finding = answer()["GPM"]
    assert (finding["works"], words in finding["detail"]) == (works, True)


def test_pages_of_exporters() -> None:
    gpus = [Exported(number, usual()) for number in range(3)]
    with exporting(lambda path: Answer(page(gpus)) if path == "/metrics" else Answer("no", 500)) as exporter:
        good, bad = (
            ["--backend", f"prometheus:url={exporter.url.replace('metrics', n)}"] for n in ("metrics", "other")
        )
        assert "exporters" not in answer()
        finding = answer(*good)["exporters"]
        assert (finding["works"], finding["detail"]) == (True, "3 GPUs on 1 page")
        assert finding["needed_for"] == "collect --backend prometheus"
        for pages, words in (([*good, *bad], "3 GPUs on 2 pages; "), (bad, "500")):
            finding = answer(*pages)["exporters"]
            assert not finding["works"]
            assert words in finding["detail"]
            assert "500" in finding["detail"]


# DCGM


@pytest.fixture
def h100s(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with two GPUs; processes that are started find its library."""
    for name, value in engine.environment().items():
        if name.startswith(("LD_", "WHORL_")):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("WHORL_PYDCGM_PATH")
    engine.nvml.write("gpus 2", "model H100")
    engine.restart()
    return engine


def of_dcgm(engine: DcgmEngine) -> dict[str, tuple[bool, str]]:
    reply = dcgm_findings(engine.address)
    return {finding.what: (finding.works, finding.detail) for finding in reply}


@pytest.mark.long
def test_what_there_is_of_dcgm(h100s: DcgmEngine) -> None:
    if h100s.binary.parent == h100s.folder:
        h100s.write("version 4.5.1")
    reply = of_dcgm(h100s)
    assert list(reply) == ["DCGM bindings", "DCGM", "DCGM profiling"]
    assert all(works for works, _ in reply.values())
    assert "model_analyzer" in reply["DCGM bindings"][1]
    assert re.fullmatch(rf"library \d\S+, engine 4\.\S+ at {h100s.address}, 2 GPUs", reply["DCGM"][1])
    assert re.fullmatch(r"all \d+ fields on all GPUs", reply["DCGM profiling"][1])


def test_profiling_fields_that_the_engine_does_not_give(h100s: DcgmEngine) -> None:
    if h100s.binary.parent != h100s.folder:
        pytest.skip("only our engine refuses what a test says")
    refusals = {-29: "as root", -33: "no profiling module", -37: "another tool"}
    for code, why in sample(refusals.items(), short=1):
        h100s.write(f"profiling {code}")
        findings = of_dcgm(h100s)
        assert findings["DCGM"][0]
        assert not findings["DCGM profiling"][0]
        assert "no field on 2 of 2 GPUs" in findings["DCGM profiling"][1]
        assert why in findings["DCGM profiling"][1], code


@pytest.mark.long
def test_an_engine_that_does_not_answer(h100s: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with h100s.frozen(), monkeypatch.context() as patch:
        patch.setattr("whorl.cli.answers.doctor._DCGM_PATIENCE_S", 4.0)
        reply = of_dcgm(h100s)
    works, detail = reply["DCGM"]
    assert not works
    assert "answer" in detail
    h100s.stop()
    works, detail = of_dcgm(h100s)["DCGM"]
    assert not works
    assert f"no DCGM engine answers at {h100s.address}" in detail
