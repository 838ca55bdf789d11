"""All that a first GPU can tell within minutes: phases in processes of their own, each with a limit. Prints JSON.

    python -m benchmarks.gpu_first [--minutes 9 | --quick] [--gpu 0] [--out FILE] [--phase NAME ...]

The most valuable phase comes first, and what may leave the GPU unusable comes last. The result is written to --out
after each phase, and holds what a phase had found when it failed, was killed, or did not end within its limit. No phase
begins for which less than a third of its limit is left. Clocks, limits and other settings of the GPU stay as they are.

What is accepted is a share of what the same run reached, or a spread between its own runs, never a figure of another
card. Runs from a checkout that is not installed, with click, numpy, pyarrow, nvidia-ml-py, pytest and CuPy alone.
Exit status: 0 where every phase ended, 6 where a phase failed or no GPU can be used, 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def _import_checkout() -> None:
    """Make this checkout the package `whorl` where none is installed that holds its benchmarks."""
    try:
        if importlib.util.find_spec("whorl.benchmarks") is not None:
            return
    except ModuleNotFoundError:
        pass
    for name in [name for name in sys.modules if name.partition(".")[0] == "whorl"]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location("whorl", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["whorl"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["whorl"])


_import_checkout()

from whorl.benchmarks.gpu_phases import PHASES, Findings, run_phase  # noqa: E402 - the package is found above
from whorl.benchmarks.harness import as_json, machine, say  # noqa: E402

FAILED, INTERRUPTED = 6, 130
LEAST_SHARE = 1 / 3
"""A phase begins only where this share of its limit is left."""
LEAST_S = 2.0
"""And another process of a phase only where so much of it is."""

# -- what is accepted: shares of what the same run reached, and spreads between its own runs ----------------------

CEILING_SHARES = {"best copy": 92.0, "plain product": 98.0, "peak of the units": 95.0}
"""A rate is at least this share of its ceiling, %: copies, products through the library, chains of multiply-adds."""
COMPUTE_CV, BANDWIDTH_CV = 0.5, 0.3
"""Coefficient of variation over the runs' median times, at most, %."""
ZEROS_GAIN = 5.0
"""A product of zeros is faster than one of uniform numbers by this, %: bits that do not change take no power."""
TELEMETRY_COST = 0.2
"""Reading telemetry makes a kernel slower by at most this, %."""
L2_DRAM_SHARE = 2.0
"""Of the bytes that l2-read reads, at most this share comes from device memory, %."""
WORST_ERROR = 0.5
"""The largest error of a right result as a share of its tolerance, at most."""


def coefficient_of_variation(values: list[float]) -> float | None:
    """Standard deviation over mean, %; None of fewer than two values."""
    return 100 * statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else None


def acceptance(phases: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure that a phase came to: value, n, what is accepted, and whether it is met."""
    findings = {name: answer.get("findings", {}) for name, answer in phases.items()}
    rows: list[dict[str, Any]] = []

    def most(figure: str, value: float, goal: float, n: int, unit: str = "%") -> None:
        rows.append({"figure": figure, "value": value, "unit": unit, "n": n, "at_most": goal, "met": value <= goal})

    def least(figure: str, value: float, goal: float, n: int) -> None:
        rows.append({"figure": figure, "value": value, "unit": "%", "n": n, "at_least": goal, "met": value >= goal})

    kernels = findings.get("kernels", {}).get("kernels", [])
    checked = [row for row in kernels if row.get("problem") is None]
    if checked:
        repetitions = sum(row["repetitions"] for row in checked)
        most("wrong elements of all kernels", sum(row["wrong"] for row in checked), 0, repetitions, unit="")
        most("worst error over tolerance", max(row["worst"] for row in checked), WORST_ERROR, len(checked), unit="")
        missed = sum(not row["omission_is_found"] for row in checked)
        most("kernels in which a repetition that does nothing passes", missed, 0, len(checked), unit="")
    if kernels:
        most("kernels that failed", len(kernels) - len(checked), 0, len(kernels), unit="")
    for row in findings.get("ceilings", {}).get("probes", []):
        goal = CEILING_SHARES.get(row["ceiling"])
        if goal is not None and row.get("share_percent") is not None:
            least(f"{row['probe']} of the {row['ceiling']}", row["share_percent"], goal, row["n"])
    for row in findings.get("spread", {}).get("kernels", []):
        variation = coefficient_of_variation(row["times_ms"])
        if variation is not None:
            goal = BANDWIDTH_CV if row["path"] == "dram" else COMPUTE_CV
            most(f"variation of {row['kernel']}", variation, goal, len(row["times_ms"]))
    rates = {row["input"]: row["rate"] for row in findings.get("inputs", {}).get("products", [])}
    if "uniform" in rates and "zeros" in rates:
        least("zeros faster than uniform numbers", 100 * (rates["zeros"] / rates["uniform"] - 1), ZEROS_GAIN, 2)
    for row in findings.get("telemetry", {}).get("kernels", []):
        most(f"telemetry beside {row['kernel']}", row["cost_percent"], TELEMETRY_COST, row["pairs"])
    from_memory = findings.get("ncu", {}).get("dram_share_percent")
    if from_memory is not None:
        most("l2-read from device memory", from_memory, L2_DRAM_SHARE, 1)
    return rows


# -- the phases one after another ---------------------------------------------------------------------------------


def ended(process: subprocess.Popen[bytes], limit_s: float) -> tuple[str, str | None]:
    """How a phase ended, and why if not well. It is killed, with what it started, where it takes longer."""
    try:
        code = process.wait(max(0.0, limit_s))
    except subprocess.TimeoutExpired:
        return "hung", f"it did not end within {limit_s:.0f} s and was killed"
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process in a driver call that hangs cannot be ended
                process.wait(timeout=5.0)
    if code < 0:
        return "killed", f"it was ended by {signal.Signals(-code).name}"
    return ("ok", None) if code == 0 else ("failed", f"it ended with status {code}")


def in_process(name: str, gpu: int, limit_s: float) -> dict[str, Any]:
    """One phase in a process of its own: its status, why it is not ok, how long it took, and what it found.

    Where one process of a phase that resumes failed, another goes on, as long as each adds to what was found.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        findings, errors = Path(folder, "findings.json"), Path(folder, "errors")
        command = [sys.executable, "-m", "benchmarks.gpu_first", "--gpu", str(gpu), "--run", name]
        before: bytes | None = None
        while True:
            left_s = began + limit_s - time.monotonic()
            environment = os.environ | {"WHORL_PHASE_SECONDS": f"{left_s:.1f}"}
            with errors.open("wb") as stream:
                process = subprocess.Popen(
                    [*command, "--out", str(findings)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL,
                    stderr=stream, start_new_session=True,
                )  # fmt: skip
                status, why = ended(process, left_s)
            after = findings.read_bytes() if findings.exists() else None
            is_over = status in ("ok", "hung") or time.monotonic() > began + limit_s - LEAST_S
            if is_over or after == before or not PHASES[name].resumes:
                break
            before = after
        lines = errors.read_text(errors="replace").strip().splitlines()
        seconds = round(time.monotonic() - began, 1)
        why = lines[-1] if status == "failed" and lines else why
        return {"status": status, "why": why, "seconds": seconds, "findings": json.loads(after) if after else {}}


class Session:
    """The phases of one GPU, and the document that they make, which is written after each."""

    def __init__(self, gpu: int, deadline: float, out: Path | None) -> None:
        """`deadline` is of `time.monotonic`, s."""
        self.document: dict[str, Any] = {
            "schema": "whorl.benchmark.gpu_first/1", "benchmark": "gpu_first", "machine": machine("numpy"),
            "ran": False, "why": "it was ended early", "acceptance": [], "phases": {},
        }  # fmt: skip
        self._gpu, self._deadline, self._out = gpu, deadline, out

    def run(self, names: list[str]) -> bool:
        """Run the phases of these names; the answer is whether every one of them ended well."""
        phases = self.document["phases"]
        for name in names:
            phase, left_s = PHASES[name], self._deadline - time.monotonic()
            if left_s < LEAST_SHARE * phase.limit_s:
                phases[name] = {"status": "no time", "why": f"{left_s:.0f} s were left", "seconds": 0.0}
            else:
                phases[name] = in_process(name, self._gpu, min(phase.limit_s, left_s))
            answer = phases[name]
            if name == "facts" and "device" in answer.get("findings", {}):
                self.document |= {"ran": True, "device": answer["findings"]["device"]}
            self.document["acceptance"] = acceptance(phases)
            say(f"{name}: {answer['status']}{': ' + answer['why'] if answer['why'] else ''}, {answer['seconds']} s")
            self.write()
            if name == "facts" and not self.document["ran"]:
                self.document["why"] = answer["why"]
                return False
        troubles = [name for name, answer in phases.items() if answer["status"] != "ok"]
        self.document["why"] = f"these phases did not end well: {', '.join(troubles)}" if troubles else None
        return bool(self.document["ran"]) and all(answer["status"] in ("ok", "no time") for answer in phases.values())

    def write(self) -> None:
        """Write the document where it was asked for, all of it or nothing. A disk that is full ends no phase."""
        if self._out is not None:
            part = self._out.with_name(self._out.name + ".part")
            try:
                part.write_text(as_json(self.document) + "\n")
                part.replace(self._out)
            except OSError as error:
                say(f"{self._out} cannot be written, what it would hold is printed at the end: {error}")


def _interrupt(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not end the printing
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the answer is its exit status."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_first",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="for all phases together (9)")
    parser.add_argument("--quick", action="store_const", const=2.0, dest="minutes", help="two minutes: what they allow")
    parser.add_argument("--gpu", type=int, default=0, help="CUDA's number of the GPU (0)")
    parser.add_argument("--out", type=Path, help="a file for the result, written after each phase")
    parser.add_argument("--phase", action="append", choices=list(PHASES), help="only this one; may be repeated")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run is not None:
        return run_phase(options.run, options.gpu, Findings(options.out))
    if not options.minutes > 0:
        parser.error("--minutes must be above 0")
    if options.out is not None and not os.access(options.out.parent, os.W_OK):
        parser.error(f"--out: {options.out.parent} is no folder that can be written to")
    signal.signal(signal.SIGTERM, _interrupt)
    session = Session(options.gpu, began + 60 * options.minutes, options.out)
    names = ["facts", *(name for name in options.phase or PHASES if name != "facts")]
    try:
        status = 0 if session.run(names) else FAILED
    except KeyboardInterrupt:
        status = INTERRUPTED
    session.document["seconds"] = round(time.monotonic() - began, 1)
    session.write()
    print(as_json(session.document))
    return status


if __name__ == "__main__":
    sys.exit(main())
