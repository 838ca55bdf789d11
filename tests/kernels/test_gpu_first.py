"""benchmarks.gpu_first over the CuPy of the tests: what each phase finds, and what is kept."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from whorl.benchmarks import gpu_phases
from whorl.benchmarks.gpu_first import acceptance
from whorl.benchmarks.gpu_phases import PHASES, Findings
from whorl.errors import DeviceError
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.cupy_loaded import CupyLoaded
from whorl.kernels.work import Kernel, Work
from whorl.probes.effort import EFFORTS
from whorl.tests.checks import until
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime
from whorl.tests.kernels.test_arithmetic import small_work
from whorl.tests.nvml_library import NvmlLibrary

ROOT = Path(__file__).resolve().parents[2]
STATUSES = {"goes on": "ok", "ends": "ok", "fails": "failed", "hangs": "hung", "is killed": "killed"}
CUPY = '''
"""Stands where CuPy would: each phase writes one finding, and then meets its fate."""
import json, os, signal, sys, time
from whorl.benchmarks import gpu_phases
from whorl.errors import DeviceError
from whorl.tests.kernels import fake_cupy, stand_in

stand_in.take_place(fake_cupy.FakeCupy(fake_cupy.FakeRuntime(1)), ["GPU-00000000-0000-0000-0000-000000000001"])

def meet(name):
    def run(device, findings):
        findings.put("device" if name == "facts" else "seen", {"phase": name})
        fate = json.loads(os.environ["FATES"]).get(name, "ends")
        if fate == "goes on":
            findings.add("rows", {"number": len(findings.values.get("rows", []))})
            if len(findings.values["rows"]) < 3:
                os.kill(os.getpid(), signal.SIGKILL)
        if fate == "fails":
            raise DeviceError("the GPU fell off the bus")
        if fate == "hangs":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if fate == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
    return gpu_phases.Phase(1.0, run, gpu_phases.PHASES[name].resumes)

gpu_phases.PHASES.update({name: meet(name) for name in gpu_phases.PHASES})
'''


def started(fates: Mapping[str, str], folder: Path, **process: Any) -> subprocess.Popen[bytes]:
    """The command over phases that meet these fates; one that hangs has four seconds."""
    folder.mkdir(exist_ok=True)
    (folder / "cupy.py").write_text(CUPY)
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "FATES": json.dumps(fates)}
    arguments = [word for name in fates for word in ("--phase", name)]
    limits = {name: 4.0 if fate == "hangs" else 60.0 for name, fate in fates.items()}
    program = (
        "import sys; import benchmarks.gpu_first as first; import whorl.benchmarks.gpu_phases as phases; "
        f"limits = {limits!r}; old = dict(phases.PHASES); "
        "phases.PHASES.update({n: phases.Phase(limits.get(n, 60.0), p.run, p.resumes) for n, p in old.items()}); "
        f"sys.exit(first.main({arguments!r} + sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "--minutes", "5", "--out", str(folder / "first.json")]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, **process)


@pytest.mark.long
def test_a_phase_that_fails_hangs_or_is_killed_costs_only_itself_and_kernels_go_on(tmp_path: Path) -> None:
    names = [name for name in PHASES if name not in ("facts", "kernels")]
    fates = {"kernels": "goes on"} | dict(zip(names, ("ends", "fails", "hangs", "is killed"), strict=False))
    process = started(fates, tmp_path / "fates", stderr=subprocess.DEVNULL)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 6
    document = json.loads(printed)
    assert document == json.loads((tmp_path / "fates" / "first.json").read_text())
    assert document["ran"] is True
    phases = document["phases"]
    assert sorted(phases) == sorted(["facts", *fates])
    for name, fate in fates.items():
        assert phases[name]["status"] == STATUSES[fate]
        assert phases[name]["findings"]["seen"] == {"phase": name}, "what it had found is kept"
        assert (phases[name]["why"] is None) == (STATUSES[fate] == "ok")
    assert phases[names[1]]["why"].endswith("the GPU fell off the bus")
    assert phases["kernels"]["findings"]["rows"] == [{"number": 0}, {"number": 1}, {"number": 2}]


@pytest.mark.long
def test_a_command_that_is_ended_leaves_what_there_is_and_no_process(tmp_path: Path) -> None:
    process = started({"ncu": "hangs"}, tmp_path / "ended", stderr=subprocess.PIPE)
    out = tmp_path / "ended" / "first.json"
    until(out.exists)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "facts" in json.loads(printed)["phases"]
    assert json.loads(out.read_text())["why"] == "it was ended early"


def test_without_a_gpu_it_says_so_and_why(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ModuleNotFoundError('no', name='cupy')")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.gpu_first", "--minutes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 6
    document = json.loads(done.stdout)
    assert document["ran"] is False
    assert document["why"].startswith("CuPy is not installed")


@pytest.mark.long
def test_the_tests_of_gpus_need_few_packages_and_no_installation(tmp_path: Path) -> None:
    tools = ["pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments"]
    needed = ["click", "numpy", "numpy.libs", "pyarrow", "pynvml.py", *tools]
    for path in (Path(folder, name) for folder in sys.path for name in needed):
        if path.exists() and not (tmp_path / path.name).exists():
            (tmp_path / path.name).symlink_to(path)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-I", "-S", "-c", program, "-q", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no real GPU: CuPy is not installed" in done.stdout


@pytest.fixture
def brief(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small works, and little time for each."""
    runtime.launch_s = 0.004

    def small(name: str) -> Kernel:
        return dataclasses.replace(find_kernel(name), build=lambda facts, **_: small_work(name))

    effort = dataclasses.replace(
        EFFORTS["quick"], least_s=0.02, limit_s=0.05, repeats=4, warm_up_s=0.05, first_warm_up_s=0.05
    )
    monkeypatch.setattr(gpu_phases, "find_kernel", small)
    monkeypatch.setattr(gpu_phases, "EFFORTS", {"quick": effort})
    for name, value in {
        "KERNELS": ("stream-triad", "fma-int32", "launch"),
        "CEILING_PROBES": ("fma-int32", "stream-triad"),
        "SPREAD_KERNELS": ("stream-triad", "launch"),
        "SPREAD_RUNS": 3,
        "TELEMETRY_KERNELS": ("stream-triad",),
        "TELEMETRY_PAIRS": 2,
        "COUNTER_S": 0.5,
        "RUN_S": 0.05,
    }.items():
        monkeypatch.setattr(gpu_phases, name, value)


def found_by(name: str, device: CupyDevice) -> dict[str, Any]:
    findings = Findings(None)
    PHASES[name].run(device, findings)
    json.dumps(findings.values)
    return findings.values


pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


@pytest.mark.long
@pytest.mark.usefixtures("brief")
def test_kernels_are_checked_by_launch_and_by_graph(device: CupyDevice) -> None:
    findings = found_by("kernels", device)
    assert [row["kernel"] for row in findings["kernels"]] == ["stream-triad", "fma-int32", "launch"]
    for row in findings["kernels"]:
        assert (row["problem"], row["wrong"]) == (None, 0)
        assert row["omission_is_found"]
    accepted = acceptance({"kernels": {"findings": findings}})
    assert [row["met"] for row in accepted] == [True, True, True, True]


@pytest.mark.long
@pytest.mark.usefixtures("brief")
def test_a_kernel_whose_process_ended_is_told_and_the_others_are_tried(
    device: CupyDevice, runtime: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "findings.json").write_text(json.dumps({"kernels": [], "trying": "stream-triad"}))
    findings, load = Findings(tmp_path / "findings.json"), device.load

    async def refuse(work: Work, *, seed: int) -> CupyLoaded:
        if work.kernel == "fma-int32":
            raise TypeError("function takes exactly 2 arguments")
        return await load(work, seed=seed)

    device.load = refuse  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="these kernels failed: stream-triad, fma-int32"):
        PHASES["kernels"].run(device, findings)
    rows = json.loads((tmp_path / "findings.json").read_text())["kernels"]
    assert [(row["kernel"], row["problem"]) for row in rows] == [
        ("stream-triad", "its process ended"),
        ("fma-int32", "TypeError: function takes exactly 2 arguments"),
        ("launch", None),
    ]
    assert [row["met"] for row in acceptance({"kernels": {"findings": findings.values}})] == [True, True, True, False]


@pytest.mark.long
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("facts", "versions"),
        ("ceilings", "probes"),
        ("repeatability", "kernels"),
        ("spread", "kernels"),
        ("inputs", "products"),
        ("counter", "power_mw"),
        ("gil", "stalls"),
        ("telemetry", "kernels"),
        ("ncu", "there"),
    ],
)
def test_a_phase_writes_down_what_it_finds(name: str, finding: str, device: CupyDevice, nvml: NvmlLibrary) -> None:
    del nvml
    assert found_by(name, device)[finding] is not None


@pytest.mark.long
def test_a_kernel_that_hangs_is_a_sentence(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = device.load

    async def load_and_hang(work: Work, *, seed: int) -> CupyLoaded:
        loaded = await load(work, seed=seed)
        runtime.hang = runtime.dry = True
        return loaded

    monkeypatch.setattr(device, "load", load_and_hang)
    findings = found_by("hang", device)
    assert findings["gone"] is True
    assert "spin hangs" in findings["sentence"]


def test_what_is_accepted_is_a_share_of_the_same_run() -> None:
    phases: dict[str, dict[str, Any]] = {
        "ceilings": {"findings": {"probes": [
            {"probe": "stream-triad", "ceiling": "best copy", "share_percent": 91.9, "n": 40},
            {"probe": "gemm-bf16", "ceiling": "plain product", "share_percent": 98.0, "n": 40},
            {"probe": "gemm-fp8", "ceiling": "peak", "share_percent": 60.0, "n": 40},
        ]}},
        "spread": {"findings": {"kernels": [
            {"kernel": "stream-triad", "path": "dram", "times_ms": [1.0, 1.004, 1.008]},
            {"kernel": "fma-fp32", "path": "none", "times_ms": [1.0, 1.004, 1.008]},
        ]}},
        "inputs": {"findings": {"products": [
            {"input": "uniform", "rate": 100.0}, {"input": "zeros", "rate": 106.0},
        ]}},
    }  # fmt: skip
    met = {row["figure"]: row["met"] for row in acceptance(phases)}
    assert met == {
        "stream-triad of the best copy": False,
        "gemm-bf16 of the plain product": True,
        "variation of stream-triad": False,
        "variation of fma-fp32": True,
        "zeros faster than uniform numbers": True,
    }
