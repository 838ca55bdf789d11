"""What each probe stresses, its work with its size, its time and what it needs: the rows of `whorl probe list`."""

from __future__ import annotations

from typing import Any

from ..errors import DeviceError, InputError
from ..kernels.catalogue import find_kernel
from ..kernels.work import Facts, Unfit
from .catalogue import PROBES, SUITES, Kind, Probe
from .effort import EFFORTS

_MODEL = "V100"
"""Sizes are shown for this model if there is no GPU."""


def listing(model: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """The GPU model that sizes are for (`model`, else the GPU here, else a V100), and a row for each probe.

    Sizes are exact and of one repetition; `time_s` is the most that a probe takes on a warm GPU, by suite. InputError
    where there is no such model.
    """
    from ..kernels.cupy_device import cupy_devices
    from ..kernels.simulated_device import facts_of
    from ..simulation.models import find_model

    facts = None
    if model is None:
        try:
            facts = cupy_devices()[0].facts
        except (InputError, DeviceError, IndexError):  # no GPU is needed for a list
            model = _MODEL
    facts = facts or facts_of(find_model(model or _MODEL))
    return facts.model, [_row(probe, facts) for probe in PROBES.values()]


def _row(probe: Probe, facts: Facts) -> dict[str, Any]:
    kernel = find_kernel(probe.kernel)
    smallest = probe.suite or SUITES[-1]
    parameters = dict(probe.parameters)
    if probe.scan is not None:
        parameters[probe.scan[0]] = probe.scan[1][-1]
    work = kernel.build(facts, **parameters)
    runs = None if probe.kind is Kind.IDLE or isinstance(work, Unfit) else work
    integer_flop = runs.flop if runs and runs.precision == "int32" else 0
    return {
        "name": probe.name,
        "version": probe.version,
        "kind": str(probe.kind),
        "stresses": probe.stresses,
        "says": probe.says,
        "kernel": probe.kernel,
        "work": kernel.says,
        "flop": runs.flop - integer_flop if runs else None,
        "bytes": runs.bytes if runs else None,
        "operations": runs.operations or integer_flop if runs else None,
        "unfit": work.reason if isinstance(work, Unfit) else None,
        "needs": kernel.needs or None,
        "suite": probe.suite,
        "time_s": {
            suite: effort.expected_s(probe)
            for suite, effort in EFFORTS.items()
            if SUITES.index(suite) >= SUITES.index(smallest)
        },
    }
