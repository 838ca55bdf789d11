"""All that a first GPU can tell within minutes: phases in processes of their own, each with a limit. Prints JSON.

    python -m benchmarks.gpu_first [--minutes 9] [--gpu 0] [--out FILE] [--phase NAME ...]

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
import subprocess
import sys
import tempfile
import time
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

from whorl.benchmarks.gpu_acceptance import acceptance  # noqa: E402 - the package is found above
from whorl.benchmarks.gpu_phases import PHASES, Findings, run_phase  # noqa: E402
from whorl.benchmarks.machine import machine  # noqa: E402
from whorl.benchmarks.reporting import as_json, say  # noqa: E402

FAILED, INTERRUPTED = 6, 130
LEAST_SHARE = 1 / 3
"""A phase begins only where this share of its limit is left."""
LEAST_S = 2.0
"""And another process of a phase only where so much of it is."""
LOOK_S = 0.1


class Session:
    """The phases of one GPU, and the document that they make."""

    def __init__(self, gpu: int, deadline: float, out: Path | None) -> None:
        """`deadline` is of `time.monotonic`, s."""
        self.document: dict[str, Any] = {
            "schema": "whorl.benchmark.gpu_first/1",
            "benchmark": "gpu_first",
            "machine": machine("numpy"),
            "ran": False,
            "why": "it was ended early",
            "acceptance": [],
            "phases": {},
        }
        self._gpu, self._deadline, self._out = gpu, deadline, out
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, names: list[str]) -> bool:
        """Run the phases of these names; the answer is whether every one of them ended well."""
        for name in names:
            phase = PHASES[name]
            left_s = self._deadline - time.monotonic()
            if left_s < LEAST_SHARE * phase.limit_s:
                self._keep(name, {"status": "no time", "why": f"{left_s:.0f} s were left", "seconds": 0.0})
                continue
            self._keep(name, self._phase(name, min(phase.limit_s, left_s)))
            if name == "facts" and not self.document["ran"]:
                self.document["why"] = self.document["phases"][name]["why"]
                return False
        statuses = [answer["status"] for answer in self.document["phases"].values()]
        troubles = [name for name, answer in self.document["phases"].items() if answer["status"] != "ok"]
        self.document["why"] = f"these phases did not end well: {', '.join(troubles)}" if troubles else None
        return bool(self.document["ran"]) and all(status in ("ok", "no time") for status in statuses)

    def _phase(self, name: str, limit_s: float) -> dict[str, Any]:
        """One phase in a process of its own: its status, why it is not ok, how long it took, and what it found.

        Where one process of a phase that resumes failed, another goes on, as long as each adds to what was found.
        """
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            findings, errors = Path(folder, "findings.json"), Path(folder, "errors")
            command = [sys.executable, "-m", "benchmarks.gpu_first", "--gpu", str(self._gpu), "--run", name]
            before: bytes | None = None
            while True:
                left_s = began + limit_s - time.monotonic()
                with errors.open("wb") as stream:
                    self._child = subprocess.Popen(
                        [*command, "--out", str(findings)],
                        cwd=ROOT,
                        env=os.environ | {"WHORL_PHASE_SECONDS": f"{left_s:.1f}"},
                        stdout=subprocess.DEVNULL,
                        stderr=stream,
                        start_new_session=True,
                    )
                    status, why = self._wait(began + limit_s, limit_s)
                after = findings.read_bytes() if findings.exists() else None
                ended = status in ("ok", "hung") or time.monotonic() > began + limit_s - LEAST_S
                if ended or after == before or not PHASES[name].resumes:
                    break
                before = after
            lines = errors.read_text(errors="replace").strip().splitlines()
            if status == "failed" and lines:
                why = lines[-1]
            return {
                "status": status,
                "why": why,
                "seconds": round(time.monotonic() - began, 1),
                "findings": json.loads(findings.read_text()) if findings.exists() else {},
            }

    def _wait(self, deadline: float, limit_s: float) -> tuple[str, str | None]:
        assert self._child is not None
        while (code := self._child.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                return "hung", f"it did not end within {limit_s:.0f} s and was killed"
            time.sleep(LOOK_S)
        self._child = None
        if code < 0:
            return "killed", f"it was ended by {signal.Signals(-code).name}"
        return ("ok", None) if code == 0 else ("failed", f"it ended with status {code}")

    def kill(self) -> None:
        """End the phase that runs, and what it started."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process in a driver call that hangs cannot be ended
                self._child.wait(timeout=5.0)
            self._child = None

    def _keep(self, name: str, answer: dict[str, Any]) -> None:
        self.document["phases"][name] = answer
        findings = answer.get("findings", {})
        if name == "facts" and "device" in findings:
            self.document |= {"ran": True, "device": findings["device"]}
        self.document["acceptance"] = acceptance(self.document["phases"])
        say(f"{name}: {answer['status']}{': ' + answer['why'] if answer['why'] else ''}, {answer['seconds']} s")
        self.write()

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
        session.kill()
    session.document["seconds"] = round(time.monotonic() - began, 1)
    session.write()
    print(as_json(session.document))
    return status


if __name__ == "__main__":
    sys.exit(main())
