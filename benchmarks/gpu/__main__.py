"""What the kernels reach on a real GPU, and how alike their runs are. Prints JSON.

    python benchmarks/gpu [--gpu 0] [--runs 7] [--suite standard] [--probe NAME ...]

Every probe that runs a kernel steadily is run so many times under the standard protocol, one after another in each
round, so that a drift of the GPU meets them all. Beside each run stands what its rate is a share of, measured in the
same round:

* matrix products: cuBLAS called plainly through CuPy on the same matrices. Goal: within 2 % of it.
* chains of multiply-adds: SMs x lanes x the SM clock that NVML showed during the run. Goal: 95 % or more.
* copies and the other streams: the best copy that the GPU showed in the round. Goal: 92 % or more.

The coefficient of variation is over the runs' median times. Goals: 0.5 % or less for compute, 0.3 % for bandwidth.
At last the same work runs in turns with telemetry read ten times a second beside it and without. Goal: under 0.2 %.
Nothing is asserted: goals stand beside the figures. Where no GPU can be measured, or it is lost in the middle, the
output says so and why, and the exit status is 6.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager
from typing import Any

from whorl.benchmarks.gpu.goals import BANDWIDTH_CV, COMPUTE_CV, TELEMETRY_COST
from whorl.benchmarks.gpu.reached import lift_copies, reached
from whorl.benchmarks.gpu.telemetry_cost import telemetry_cost
from whorl.benchmarks.machine import machine
from whorl.errors import DeviceError, WhorlError
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.cupy_device import CupyDevice, cupy_devices
from whorl.kernels.work import Work
from whorl.probes.catalogue import PROBES, find_probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.node import NodeWatch
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


def benchmark(device: CupyDevice, given: argparse.Namespace) -> dict[str, Any]:
    """All of it on one GPU. DeviceError, InputError."""
    facts = device.facts
    asked = Asked(EFFORTS[given.suite])
    probes = [find_probe(name) for name in given.probe or PROBES]
    steady = [probe for probe in probes if probe.kind is Kind.STEADY]
    recent = Recent([facts.gpu], seconds=120.0, interval_s=INTERVAL_S)

    def reading() -> AbstractContextManager[object]:
        return NodeWatch(recent.feed, None, node=facts.node, interval_s=INTERVAL_S)

    with reading():
        rows = reached(device, recent, steady, find_kernel, asked, runs=given.runs)
    lift_copies(rows)
    beside = [find_kernel(name).build(facts) for name in BESIDE]
    return {
        "device": {
            "model": facts.model,
            "capability": ".".join(map(str, facts.capability)),
            "sms": facts.sms,
            "memory_bytes": facts.memory_bytes,
            "versions": dict(device.versions),
        },
        "suite": given.suite,
        "reached": [row.document() for row in rows],
        "telemetry": [
            telemetry_cost(device, work, reading, pairs=given.pairs, seconds=2.0)
            for work in beside
            if isinstance(work, Work) and device.lost is None
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, default=0, help="CUDA's number of the GPU")
    parser.add_argument("--runs", type=int, default=7, help="of every probe")
    parser.add_argument("--pairs", type=int, default=12, help="of runs with and without telemetry")
    parser.add_argument("--suite", choices=list(EFFORTS), default="standard", help="how thoroughly is measured")
    parser.add_argument("--probe", action="append", help="only this one; may be given several times")
    given = parser.parse_args()
    result: dict[str, Any] = {"schema": "whorl.benchmark.gpu/1", "benchmark": "gpu", "machine": machine("numpy")}
    status = 0
    try:
        device = cupy_devices([given.gpu])[0]
        try:
            found = benchmark(device, given)
            result |= {"ran": True, "why": device.lost, "goals": GOALS} | found
            status = DeviceError.exit_code if device.lost is not None else 0
        finally:
            device.close()
    except WhorlError as error:
        status = DeviceError.exit_code
        result |= {"ran": False, "why": str(error), "goals": GOALS}
        print(f"the benchmark did not run: {error}", file=sys.stderr)
    print(json.dumps(result, indent=2))
    return status


if __name__ == "__main__":
    sys.exit(main())
