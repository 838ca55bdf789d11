"""What the kernels reach on a real GPU, and how alike their runs are. Prints JSON.

    python benchmarks/gpu [--gpu 0] [--minutes 8.5] [--runs 7] [--suite standard] [--probe NAME ...] [--out FILE]

Every probe that runs a kernel steadily is run again and again, one after another in each round, so that a drift of the
GPU meets them all. Those with goals run under the protocol of --suite, the others under that of the quick one. After
the first round, in which all are run, rounds go on as long as --minutes last, --runs at most, those with goals first.
Beside each run stands what its rate is a share of, measured in the same round:

* matrix products: cuBLAS called plainly through CuPy on the same matrices. Goal: within 2 % of it.
* chains of multiply-adds: SMs x lanes x the SM clock that NVML showed during the run. Goal: 95 % or more.
* copies and the other streams: the best copy that the GPU showed in the round. Goal: 92 % or more.

The coefficient of variation is over the runs' median times. Goals: 0.5 % or less for compute, 0.3 % for bandwidth.
After the first round the same work runs in turns with telemetry read ten times a second beside it and without. Goal:
under 0.2 %.

Nothing is asserted: goals stand beside the figures. Standard error gets a line for each run, and --out what there is
so far after each; Ctrl-C and SIGTERM end it with what there is. Where no GPU can be measured, or it is lost in the
middle, the output says so and why, and the exit status is 6.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

from whorl.benchmarks.gpu.goals import BANDWIDTH_CV, COMPUTE_CV, TELEMETRY_COST
from whorl.benchmarks.gpu.reached import Rounds, Row, lift_copies
from whorl.benchmarks.gpu.telemetry_cost import telemetry_cost
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json
from whorl.errors import DeviceError, WhorlError
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.work import Work
from whorl.probes.catalogue import PROBES, find_probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.node_watch import NodeWatch
from whorl.probes.probe import Kind
from whorl.probes.watch import Recent

GOALS = {
    "product_share_of_plain_cublas_percent": 98,
    "multiply_adds_share_of_peak_percent": 95,
    "copy_and_triad_share_of_best_copy_percent": 92,
    "compute_cv_percent": COMPUTE_CV,
    "bandwidth_cv_percent": BANDWIDTH_CV,
    "telemetry_cost_percent": TELEMETRY_COST,
}
BESIDE = ("gemm-fp32", "fma-fp64", "stream-triad")
"""Kernels that telemetry is read beside."""
INTERVAL_S = 0.1


class ResultFile:
    """The result as it grows."""

    def __init__(self, result: dict[str, Any], out: Path | None) -> None:
        self.result, self._out = result, out

    def rows(self, rows: list[Row]) -> None:
        lift_copies(rows)
        self.result["reached"] = [row.document() for row in rows]
        self.write()

    def write(self) -> None:
        if self._out is not None:
            part = self._out.with_name(self._out.name + ".part")
            part.write_text(as_json(self.result) + "\n")
            part.replace(self._out)


def benchmark(device: CupyDevice, given: argparse.Namespace, file: ResultFile, deadline: float) -> None:
    """All of it on one GPU, into the result. DeviceError, InputError."""
    facts, result = device.facts, file.result
    result["device"] = {
        "model": facts.model,
        "capability": ".".join(map(str, facts.capability)),
        "sms": facts.sms,
        "memory_bytes": facts.memory_bytes,
        "versions": dict(device.versions),
    }
    result |= {"suite": given.suite, "reached": [], "telemetry": []}
    probes = [find_probe(name) for name in given.probe or PROBES]
    steady = [probe for probe in probes if probe.kind is Kind.STEADY]
    recent = Recent([facts.gpu], seconds=120.0, interval_s=INTERVAL_S)

    def reading() -> AbstractContextManager[object]:
        return NodeWatch(recent.feed, None, node=facts.node, interval_s=INTERVAL_S)

    def telemetry() -> None:
        for name in BESIDE if given.pairs else ():
            work = find_kernel(name).build(facts)
            if isinstance(work, Work) and device.lost is None:
                result["telemetry"].append(telemetry_cost(device, work, reading, pairs=given.pairs, seconds=1.0))
                file.write()

    asked, brief = Asked(EFFORTS[given.suite]), Asked(EFFORTS["quick"])
    rounds = Rounds(device, recent, steady, find_kernel, asked, brief=brief, deadline=deadline, told=file.rows)
    with reading():
        rounds.run()
    telemetry()
    with reading():
        while rounds.done < given.runs and rounds.run():
            pass
    result["device"]["versions"] = dict(device.versions)


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not end the printing
    raise KeyboardInterrupt


def main() -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0, help="CUDA's number of the GPU")
    parser.add_argument("--minutes", type=float, default=8.5, help="no run begins that would end later (8.5)")
    parser.add_argument("--runs", type=int, default=7, help="of every probe, at most (7)")
    parser.add_argument("--pairs", type=int, default=8, help="of runs with and without telemetry (8)")
    parser.add_argument("--suite", choices=list(EFFORTS), default="standard", help="how thoroughly is measured")
    parser.add_argument("--probe", action="append", help="only this one; may be given several times")
    parser.add_argument("--out", type=Path, help="a file for the result, and for what there is so far")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    result: dict[str, Any] = {"schema": "whorl.benchmark.gpu/1", "benchmark": "gpu", "machine": machine("numpy")}
    file = ResultFile(result, given.out)
    status = 0
    try:
        device = cupy_devices([given.gpu])[0]
        result |= {"ran": True, "why": "it was ended early", "goals": GOALS}
        try:
            benchmark(device, given, file, began + 60 * given.minutes)
            result["why"] = device.lost
            status = DeviceError.exit_code if device.lost is not None else 0
        except KeyboardInterrupt:
            status = 130
        finally:
            device.close()
    except WhorlError as error:
        status = DeviceError.exit_code
        result |= {"ran": bool(result.get("reached")), "why": str(error), "goals": GOALS}
        print(f"the benchmark did not run{' to its end' if result['ran'] else ''}: {error}", file=sys.stderr)
    result["seconds"] = round(time.monotonic() - began, 1)
    file.write()
    print(as_json(result))
    return status
