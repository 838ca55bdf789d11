"""`whorl demo` from end to end on simulated fleets: what it finds of what was planted, and what it leaves behind."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from whorl.errors import InputError
from whorl.probes import catalogue
from whorl.probes import node as probe_node
from whorl.probes.campaign import Plan, Report
from whorl.probes.catalogue import suite
from whorl.probes.simulated import run_simulated
from whorl.simulation.fleet import Fleet
from whorl.simulation.models import V100
from whorl.store import Store
from whorl.store.names import this_cluster
from whorl.store.schema import arrow_rows
from whorl.tests.cli.calling import whorl
from whorl.tests.sizes import sample

pytestmark = pytest.mark.usefixtures("few_replicates")

FEW = ("--backend", "simulated", "--gpus", "8")
THREE = ("idle", "gemm-fp32", "stream-triad")  # they show the faults that are planted here


def run(*words: str, out: Path) -> Result:
    return whorl("demo --out", out, *words)


def refused(*words: str, out: Path, status: int = 2) -> str:
    done = run(*words, out=out)
    assert (done.exit_code, done.stderr.count("\n")) == (status, 1), done.output
    return done.stderr


def runs(store: Path) -> int:
    return int(Store.open(store).sql("select count(*) as n from runs")["n"][0].as_py())


@pytest.mark.long
@pytest.mark.usefixtures("few_probes")
def test_without_a_gpu_it_says_why_and_simulates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> list[object]:
        raise InputError("CuPy is not installed")

    def eight(options: Any) -> Fleet:
        assert options.gpus is None
        return Fleet.draw(V100, 8, 1, faults=0)

    demo = importlib.import_module("whorl.cli.answers.demo")
    monkeypatch.setattr(probe_node, "local_devices", refuse)
    monkeypatch.setattr(demo, "no_driver", lambda: "")
    monkeypatch.setattr(demo, "_fleet", eight)
    why = "the fleet is simulated, because no GPU can be measured here: "
    done = run(out=tmp_path / "D")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{why}CuPy is not installed\n8 simulated")
    monkeypatch.setattr(demo, "no_driver", lambda: "NVML: no driver")  # then CuPy is not what is missing
    assert json.loads(run("--json", out=tmp_path / "D").stdout)["notes"] == [f"{why}NVML: no driver"]
    assert "CuPy is not installed" in refused("--backend", "cuda", out=tmp_path / "E")
    assert not (tmp_path / "E").exists()


@pytest.mark.long
@pytest.mark.usefixtures("few_probes")
def test_the_gpus_of_this_node_are_measured_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices stand in for real ones, a simulated campaign for theirs: nothing is planted, few are compared."""

    def measured(store: Store, devices: list[object], plan: Plan, *, progress: Any) -> Report:
        assert (len(devices), plan.neighbours) == (2, "busy")
        return run_simulated(store, Fleet.draw(V100, 2, 1, faults=0), plan, cluster=this_cluster(), progress=progress)

    monkeypatch.setattr(probe_node, "local_devices", lambda **_: [object(), object()])
    monkeypatch.setattr(probe_node, "run_plan", measured)
    done = run(out=tmp_path / "D")
    assert done.exit_code == 0, done.output
    assert "2 simulated V100-SXM2 GPUs on 1 node ran " in done.stdout
    assert ("planted" in done.stdout, "healthy" in done.stdout) == (False, False)
    [why] = [line for line in done.stdout.splitlines() if "2 GPUs ran it" in line]
    assert why.endswith("2 GPUs ran it without an error; 8 are needed to tell which differ")
    document = json.loads(run("--json", out=tmp_path / "D").stdout)
    assert (document["planted"], document["falsely_named"], document["stand_out"]) == (None, None, [])


@pytest.mark.usefixtures("few_probes")
@pytest.mark.long
def test_a_page_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "D"
    (out / "store").mkdir(parents=True)
    (out / "report.html").mkdir()
    done = run(*FEW, "--fault", "pinned", out=out)
    assert done.exit_code == 3
    assert "1 of 8 GPUs stands out." in done.stdout
    assert "report: " not in done.stdout
    [sentence] = done.stderr.splitlines()
    assert str(out / "report.html") in sentence
    assert sentence.endswith(f"everything that was measured is in {out / 'store'}")
    assert runs(out / "store") == 2 * 8 * len(catalogue.suite("quick"))


@pytest.mark.parametrize(("kinds", "status"), sample([(["wrong_results"], 1), (["wrong_results", "lost"], 6)], short=1))
@pytest.mark.long
def test_real_gpus_that_fail_or_compute_wrong_results_show_in_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str], status: int
) -> None:
    """As `whorl probe run` has it; the faults of a simulated campaign stand in for those of real GPUs."""
    monkeypatch.setattr(catalogue, "suite", lambda name: tuple(probe for probe in suite(name) if probe.name in THREE))

    def measured(store: Store, devices: list[object], plan: Plan, *, progress: Any) -> Report:
        report = run_simulated(store, Fleet.draw(V100, 4, 1, faults=len(kinds), kinds=kinds), plan, progress=progress)
        if "lost" in kinds:
            report.failures["GPU-shown"] = "the driver shows it and does not open it"
        return report

    monkeypatch.setattr(probe_node, "local_devices", lambda **_: [object()])
    monkeypatch.setattr(probe_node, "run_plan", measured)
    page = tmp_path / "D" / "report.html"
    done = run(out=tmp_path / "D")
    assert done.exit_code == status, done.output
    left_out = "GPU-shown was not measured: the driver shows it and does not open it"
    for text in (done.stdout, page.read_text()):
        assert (left_out in text) is ("lost" in kinds)
    assert f"report: {page}" in done.stdout
    planted = [word for kind in kinds for word in ("--fault", kind)]
    simulated = run("--gpus", "4", *planted, out=tmp_path / "simulated")
    assert simulated.exit_code == 0, simulated.output  # what was planted is there to be found


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name, why in (
        ("letters", "has other contents and no demo"),
        ("file", "is a file"),
        ("file/D/E", f"{tmp_path / 'file'} is a file"),
        ("gone", "is a broken link"),
    ):
        assert why in refused(*FEW, out=tmp_path / name)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"
    (tmp_path / "torn" / "store").mkdir(parents=True)
    (tmp_path / "torn" / "store" / "store.toml").write_text("format =")
    assert refused(*FEW, out=tmp_path / "torn", status=3)


def test_a_store_of_another_fleet_is_refused_unless_it_is_wanted(tmp_path: Path) -> None:
    """Of two fleets in one store, the same names of GPUs and jobs mean two things each."""
    store = Store.create(tmp_path / "D" / "store")
    store.append({"gpus": arrow_rows("gpus", {"cluster": ["east"], "gpu": ["a"]})}, "east")
    assert re.search("holds another fleet, east: .*--out.*--force", refused("--gpus", "2", out=tmp_path / "D"))
    assert runs(store.root) == 0


@pytest.mark.long
@pytest.mark.parametrize(("gpus", "seed"), sample([(16, 4), (64, 3)], short=1))
def test_the_default_demo_finds_all_that_it_plants(tmp_path: Path, gpus: int, seed: int) -> None:
    faults = {16: 2, 64: 3}[gpus]
    done = run("--gpus", str(gpus), "--seed", str(seed), "--fault", str(faults), "--json", out=tmp_path / "D")
    document = json.loads(done.stdout)
    planted = {"hot": "hot", "brake": "power brake", "pinned": "pinned clock"}
    assert {entry["kind"]: entry["found"] for entry in document["planted"]} == {
        kind: planted[kind] for kind in (("hot", "brake") if faults == 2 else planted)
    }
    assert document["falsely_named"] == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--model V900", "no simulated GPU model 'V900'"),
        ("--fault dust", "there is no fault 'dust'"),
        ("--gpus 2 --fault 3", "3 faults cannot be planted in 2 GPUs"),
        ("--gpus 0", "0 is not in the range"),
        ("--backend cuda --gpus 4", "--gpus is for the simulated fleet"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path: Path, line: str, sentence: str) -> None:
    done = run(*line.split(), out=tmp_path / "D")
    assert (done.exit_code, sentence in done.stderr) == (2, True)
    assert not (tmp_path / "D").exists()
