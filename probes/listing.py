"""What each probe stresses, its work with its size, its time and what it needs: the rows of `whorl probe list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..kernels.work import Facts, Work
    from .catalogue import Probe

_MODEL = "V100"
"""Sizes are shown for this model if there is no GPU."""


def listing(model: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """The GPU model that sizes are for (`model`, else the GPU here, else a V100), and a row for each probe.

    Sizes are exact and of one repetition; `time_s` is the most that a probe takes on a warm GPU, by suite. InputError
    where there is no such model.
    """
    from .catalogue import PROBES

    facts = _facts(model)
    return facts.model, [_row(one, facts) for one in PROBES.values()]


def _facts(model: str | None) -> Facts:
    """The GPU for which sizes are shown. InputError if there is no such model."""
    from ..errors import DeviceError, InputError
    from ..kernels.simulated_device import facts_of
    from ..simulation.models import find_model

    if model is None:
        from ..kernels.cupy_device import cupy_devices

        try:
            return cupy_devices()[0].facts
        except (InputError, DeviceError, IndexError):  # no GPU is needed for a list
            model = _MODEL
    return facts_of(find_model(model))


def _row(probe: Probe, facts: Facts) -> dict[str, Any]:
    from ..kernels.catalogue import find_kernel
    from ..kernels.work import Unfit
    from .catalogue import SUITES, Kind
    from .effort import EFFORTS

    kernel = find_kernel(probe.kernel)
    smallest = probe.suite or SUITES[-1]
    parameters = dict(probe.parameters)
    if probe.scan is not None:
        parameters[probe.scan[0]] = probe.scan[1][-1]
    work = kernel.build(facts, **parameters)
    runs = None if probe.kind is Kind.IDLE or isinstance(work, Unfit) else work
    return {
        "name": probe.name,
        "version": probe.version,
        "kind": str(probe.kind),
        "stresses": probe.stresses,
        "says": probe.says,
        "kernel": probe.kernel,
        "work": kernel.says,
        "flop": _floating(runs) if runs else None,
        "bytes": runs.bytes if runs else None,
        "operations": _operations(runs) if runs else None,
        "unfit": work.reason if isinstance(work, Unfit) else None,
        "needs": kernel.needs or None,
        "suite": probe.suite,
        "time_s": {
            suite: effort.expected_s(probe)
            for suite, effort in EFFORTS.items()
            if SUITES.index(suite) >= SUITES.index(smallest)
        },
    }


def _floating(work: Work) -> int:
    """Floating-point operations of a work; 0 if it is int32, whose `flop` counts integer operations."""
    return 0 if work.precision == "int32" else work.flop


def _operations(work: Work) -> int:
    """Other operations of a work, integer arithmetic included."""
    return work.operations or (work.flop if work.precision == "int32" else 0)
