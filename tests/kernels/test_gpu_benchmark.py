"""benchmarks/gpu on the CuPy of the tests: what it divides by what; and what it says where there is no GPU."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from whorl.benchmarks.gpu import command, plain
from whorl.benchmarks.gpu import reached as reached_module
from whorl.benchmarks.gpu.goals import goal_of
from whorl.benchmarks.gpu.reached import Rounds, Row, lift_copies
from whorl.benchmarks.gpu.telemetry_cost import telemetry_cost
from whorl.errors import DeviceError
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.device import finish
from whorl.kernels.work import Gemm, Kernel
from whorl.probes.catalogue import find_probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.probe import Probe
from whorl.probes.watch import Reading, Window
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime, LibraryInStream
from whorl.tests.kernels.test_arithmetic import small_work
from whorl.tests.kernels.works import memory

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())
ROOT = Path(__file__).resolve().parents[2]
BRIEF = dataclasses.replace(
    EFFORTS["quick"], least_s=0.01, limit_s=0.05, repeats=6, warm_up_s=0.05, first_warm_up_s=0.05
)


class Still:
    """A watch that always sees 1 GHz."""

    def latest(self, gpu: str) -> Reading | None:
        return None

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        return Window(readings=3, sm_clock_mhz=1000.0)

    def hurry(self, gpu: str, *, on: bool) -> None:
        """The pace is fixed."""


def reached(device: CupyDevice, probes: Sequence[Probe], find: Callable[[str], Kernel], **given: Any) -> list[Row]:
    """Two rounds of probes."""
    rounds = Rounds(device, Still(), probes, find, Asked(BRIEF), **given)
    rounds.run()
    rounds.run()
    return rounds.rows


def small(name: str) -> Kernel:
    return dataclasses.replace(find_kernel(name), build=lambda facts, **_: small_work(name))


@pytest.fixture
def plain_calls(device: CupyDevice, blas: LibraryInStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's own binding of cuBLAS, as far as the plain product uses it."""

    def gemm_ex(*args: Any) -> None:
        kinds = "p" + "iiiii" + "p" + "pii" + "pii" + "p" + "pii" + "ii"
        cast = {"p": ctypes.c_void_p, "i": ctypes.c_int}
        assert len(args) == len(kinds)
        status = blas.cublasGemmEx(*(cast[kind](value) for kind, value in zip(kinds, args, strict=True)))
        assert status == 0

    libs = SimpleNamespace(cublas=SimpleNamespace(gemmEx=gemm_ex))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", libs)
    with device.using("a test"):
        handle = device.blas._handle.value
    device._cupy.cuda.device = SimpleNamespace(get_cublas_handle=lambda: handle)


@pytest.mark.long
def test_the_plain_product_is_that_of_row_major_matrices(device: CupyDevice, plain_calls: None) -> None:
    loaded = finish(device.load(small_work("gemm-fp32"), seed=1))
    assert plain.product_gflop_s(device, loaded, 0.02) > 0
    step = loaded.work.steps[0]
    assert isinstance(step, Gemm)
    a, b, c = (memory(loaded, name) for name in (step.a, step.b, step.c))
    should = a.reshape(step.m, step.k).astype(float) @ b.reshape(step.k, step.n).astype(float)
    assert np.abs(c.reshape(step.m, step.n) - should).max() < 1e-3


def test_a_median_of_plain_calls(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.launch_s, runtime.dry = 0.004, True
    with device.using("a test"):
        found = plain.median_ms(device, lambda: runtime.memcpyAsync(0, 0, 0, 4, device.stream_address), 0.3)
    assert found == pytest.approx(4.0, rel=0.05)


def test_a_plain_copy_that_hangs_is_a_gpu_that_is_lost(
    blas: LibraryInStream, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "LIMIT_S", 0.1)
    device = cupy_devices([0])[0]
    runtime.hang = True
    with pytest.raises(DeviceError, match=r"a plain call hangs: 0.1 s") as caught:  # the fake frees nothing meanwhile
        plain.copy_gb_s(device, 0.1)
    assert caught.value.gone
    assert device.lost is not None
    device.close()


@pytest.mark.long
def test_rates_stand_beside_what_they_are_compared_with(
    device: CupyDevice, runtime: FakeRuntime, plain_calls: None
) -> None:
    runtime.launch_s = 0.005  # a repeat then holds few launches, which the host has to run
    names = ("gemm-fp32", "fma-fp32", "stream-copy", "stream-triad", "launch")
    probes = [find_probe(name) for name in names]
    rows = reached(device, probes, small, plain_s=0.02)
    lift_copies(rows)
    assert [row.probe.name for row in rows] == list(names)
    documents = {row.probe.name: row.document() for row in rows}
    for name, row in documents.items():
        assert row["problem"] is None
        assert row["wrong_elements"] == 0
        assert row["runs"] == 2
        assert row["value_median"] > 0
        assert row["cv_percent"] >= 0
        assert (row["share_percent"] is None) == (name == "launch")
        assert (row["cv_met"] is None) == (name == "launch")
    # Four SMs of 128 lanes at 1 GHz.
    assert documents["fma-fp32"]["limit_median"] == pytest.approx(2 * 4 * 128)
    assert documents["stream-copy"]["limit_median"] == documents["stream-triad"]["limit_median"]
    assert documents["stream-copy"]["share_percent"] <= 100
    assert documents["launch"]["limit"] == "none"
    json.dumps(documents)


@pytest.mark.long
def test_a_probe_that_fails_keeps_its_reason_and_the_others_go_on(
    device: CupyDevice, runtime: FakeRuntime, plain_calls: None
) -> None:
    probes = [find_probe("stream-copy"), find_probe("stream-triad")]
    usual, runtime.launch_s = runtime.malloc, 0.005

    def refuse_third(size: int, calls: list[int] = []) -> int:  # noqa: B006 - counts
        calls.append(size)
        if len(calls) == 3:  # the first buffer of the first probe: two are those of the plain copy
            runtime.fail["malloc"] = 2
        return usual(size)

    runtime.malloc = refuse_third  # type: ignore[method-assign]
    first, second = reached(device, probes, small, plain_s=0.01)
    assert "out of memory" in (first.problem or "")
    assert len(first.values) == 0
    assert len(second.values) == 2


@pytest.mark.long
def test_a_gpu_that_is_lost_keeps_what_was_measured(device: CupyDevice, runtime: FakeRuntime) -> None:
    runtime.launch_s = 0.005
    asked_for: list[str] = []

    def find(name: str) -> Kernel:
        asked_for.append(name)
        if asked_for.count("stream-triad") == 2:  # once for its row, once for its first run
            runtime.fail["eventQuery"] = 719
        return small(name)

    probes = [find_probe("stream-copy"), find_probe("stream-triad"), find_probe("stream-add")]
    first, second, third = reached(device, probes, find, plain_s=0.01)
    assert device.lost is not None
    assert (len(first.values), first.problem) == (1, None)
    assert second.problem == device.lost
    assert (len(third.values), third.problem) == (0, None)


@pytest.mark.long
def test_the_cost_of_telemetry_is_that_of_pairs(device: CupyDevice, runtime: FakeRuntime) -> None:
    """While it is 'read', every launch takes a tenth longer: that is what must be found."""
    runtime.launch_s = 0.002
    runtime.dry = True

    @contextmanager
    def reading() -> Iterator[None]:
        runtime.launch_s = 0.0022
        yield
        runtime.launch_s = 0.002

    found = telemetry_cost(device, small_work("stream-copy"), reading, pairs=6, seconds=0.1)
    assert found["cost_percent"] == pytest.approx(10, abs=3)
    assert found["low_percent"] <= found["cost_percent"] <= found["high_percent"]
    assert found["met"] is False


@pytest.mark.long
def test_no_run_begins_that_would_end_too_late(device: CupyDevice, runtime: FakeRuntime, plain_calls: None) -> None:
    runtime.launch_s = 0.005
    probes = [find_probe("fma-fp32"), find_probe("launch")]
    told: list[int] = []
    rounds = Rounds(
        *(device, Still(), probes, small, Asked(BRIEF)),
        plain_s=0.01,
        deadline=time.monotonic() + 30,
        told=lambda rows: told.append(sum(len(row.values) for row in rows)),
    )
    assert rounds.run()
    first, second = rounds.rows
    second.took_s = 60.0
    assert rounds.run()
    first.took_s = 60.0
    assert not rounds.run()
    assert told == [1, 2, 3]
    assert (len(first.values), len(second.values)) == (2, 1)
    assert first.problem is None


@pytest.mark.long
def test_a_plain_product_that_fails_leaves_what_was_measured(
    device: CupyDevice, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> float:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    runtime.launch_s = 0.005
    monkeypatch.setattr(reached_module, "product_gflop_s", refused)
    (row,) = reached(device, [find_probe("gemm-fp32")], small, plain_s=0.01)
    assert (row.problem, len(row.values), row.limits) == (None, 2, [])
    assert row.document()["limit_problem"] == "the plain product failed: CUBLAS_STATUS_NOT_SUPPORTED"


def row_of(name: str, values: list[float], limits: list[float]) -> Row:
    work = small_work(name)
    return Row(find_probe(name), small(name), work, goal_of(small(name), work), values, limits)


def test_the_best_copy_of_a_round_is_the_limit_of_those_that_ran_in_it() -> None:
    rows = [row_of("stream-copy", [9.0, 12.0], [10.0, 11.0]), row_of("stream-triad", [8.0], [10.0])]
    lift_copies(rows)
    assert [row.limits for row in rows] == [[10.0, 12.0], [10.0]]


@pytest.mark.long
@pytest.mark.parametrize("ended", [False, True])
def test_the_command_says_what_there_is_when_it_is_ended(
    ended: bool,
    device: CupyDevice,
    runtime: FakeRuntime,
    plain_calls: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime.launch_s = 0.005
    out = tmp_path / "gpu.json"
    asked_for: list[str] = []

    def find(name: str) -> Kernel:
        asked_for.append(name)
        if ended and asked_for.count("stream-triad") == 2:  # once for its row, once for its first run
            assert len(json.loads(out.read_text())["reached"][0]["values"]) == 1
            signal.raise_signal(signal.SIGTERM)
        return small(name)

    monkeypatch.setattr(command, "find_kernel", find)
    monkeypatch.setattr(command, "EFFORTS", dict.fromkeys(("quick", "standard"), BRIEF))
    monkeypatch.setattr(command, "BESIDE", ("stream-copy",))
    monkeypatch.setattr(command, "Rounds", partial(Rounds, plain_s=0.02))
    monkeypatch.setattr(command, "telemetry_cost", lambda *a, **how: telemetry_cost(*a, **(how | {"seconds": 0.1})))
    arguments = ["--runs", "2", "--pairs", "6", "--probe", "stream-copy", "--probe", "stream-triad", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = command.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text())
    assert (status, document["ran"], document["why"]) == (
        (130, True, "it was ended early") if ended else (0, True, None)
    )
    assert [row["runs"] for row in document["reached"]] == ([1, 0] if ended else [2, 2])
    assert [row["kernel"] for row in document["telemetry"]] == ([] if ended else ["stream-copy"])


def test_without_a_gpu_it_says_so_and_why(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ModuleNotFoundError('no', name='cupy')")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    line = [sys.executable, str(ROOT / "benchmarks" / "gpu")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 6
    result = json.loads(done.stdout)
    assert result["ran"] is False
    assert result["why"].startswith("CuPy is not installed")
    assert done.stderr == f"the benchmark did not run: {result['why']}\n"
    assert result["goals"]["telemetry_cost_percent"] == 0.2
