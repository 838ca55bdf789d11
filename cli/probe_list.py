"""`whorl probe list`: what each probe stresses, its work, its time, what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..dashboards.table import MISSING, Table, number
from .options import json_option
from .output import print_json, print_table

if TYPE_CHECKING:
    from ..kernels.work import Facts, Work
    from ..probes.probe import Probe

_MODEL = "V100"
"""The work's size is shown for it where there is no GPU."""
_ROUNDS_TO_1000 = 999.5
_PREFIXES = ("", "k", "M", "G", "T", "P")


@click.command("list", short_help="What each probe stresses, its work, its time, what it needs.")
@click.option("--model", metavar="NAME", help="Sizes for this simulated model.  [default: the GPU here, else V100]")
@json_option
def list_probes(model: str | None, as_json: bool) -> None:
    """List the probes by the smallest suite that holds them: what each stresses, its work, its time, what it needs.

    The size is that of one repetition, on the first GPU here or on a GPU of --model. The time is the most that a
    probe takes on a warm GPU in that suite; making its work ready comes on top.
    """
    from ..probes.catalogue import PROBES
    from ..probes.probe import SUITES

    facts = _facts(model)
    rows = [_row(one, facts) for one in PROBES.values()]
    if as_json:
        print_json({"schema": "whorl.probe.list/1", "model": facts.model, "probes": rows})
        return
    click.echo(
        f"Sizes are those of a repetition on one {facts.model}; times are limits, per GPU; CC: compute capability."
    )
    for suite in (*SUITES, None):
        some = [row for row in rows if row["suite"] == suite]
        if some:
            click.echo()
            cells = [_cells(row) for row in some]
            head = ("probe", "time", "stresses", "work", "size", "needs")
            print_table(Table(head, cells, (1, 4), _heading(suite, SUITES), wrapped=(2, 3, 5), leaves=(3,)))


def _heading(suite: str | None, suites: tuple[str, ...]) -> str:
    if suite is None:
        return "by name only"
    larger = suites[suites.index(suite) + 1 :]
    return f"suite {suite}, and {' and '.join(larger)}" if larger else f"suite {suite}"


def _facts(model: str | None) -> Facts:
    """What the GPU is for which sizes are shown. InputError where there is no such model."""
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
    from ..probes.effort import EFFORTS
    from ..probes.probe import SUITES, Kind

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
    """Of floating point; 0 of integer arithmetic, which a work counts as it counts FLOP."""
    return 0 if work.precision == "int32" else work.flop


def _operations(work: Work) -> int:
    """Of integer arithmetic, too."""
    return work.operations or (work.flop if work.precision == "int32" else 0)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = [_size(row[name], unit) for name, unit in (("flop", "FLOP"), ("bytes", "B"), ("operations", "op"))]
    shown = ", ".join(size for size in sizes if size)
    if row["unfit"]:
        shown = MISSING
    needs = str(row["needs"] or "").replace("compute capability", "CC")
    return (
        str(row["name"]),
        f"{next(iter(row['time_s'].values())):.3g} s",
        str(row["stresses"]),
        str(row["says"]).rstrip("."),
        shown or "none",
        needs.replace(" in the node", ""),
    )


def _size(value: int | None, unit: str) -> str:
    """A count with its unit and a decimal prefix, '137 GFLOP'; '' for none."""
    if not value:
        return ""
    power, scaled = 0, float(value)
    while scaled >= _ROUNDS_TO_1000 and power + 1 < len(_PREFIXES):
        scaled, power = scaled / 1000, power + 1
    return f"{number(float(format(scaled, '.3g')), 3)} {_PREFIXES[power]}{unit}"
