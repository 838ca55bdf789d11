"""Measure, check and read the GPUs here: the functions of `whorl probe run`, `whorl check` and `whorl collect`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from ...dashboards.answers.reply import Reply, RowList, replying
from ...dashboards.printed import probes as printed
from ...dashboards.table import many
from ...jobs import checking, collecting, measuring
from ...store.instants import seconds_of
from .. import check_report
from .job import JobReadings

if TYPE_CHECKING:
    from ...jobs.collecting import Collected
    from ...store import Store


class SimulatedOptions(TypedDict, total=False):
    """The simulated GPUs of a check, with `backend="simulated"`."""

    gpus: int
    """How many; 4 where it is left out."""
    model: str
    """V100 where it is left out."""
    seed: int
    """1 where it is left out."""
    fault: Sequence[str]
    """Faults to plant."""


def check(
    store: Store | str | Path,
    *,
    quick: bool = False,
    warning: float = checking.WARNING_PCT,
    critical: float = checking.CRITICAL_PCT,
    timeout: float | str | None = None,
    backend: str = "cuda",
    **simulated: Unpack[SimulatedOptions],
) -> Reply[checking.Answer]:
    """Check the GPUs of this node: what is known of them, and a short probe beside their own level, as `whorl check`.

    `status` is OK, WARNING, CRITICAL or UNKNOWN; no store, no driver and a hanging call are UNKNOWN, and no exception.
    `quick` runs no probe; `warning` and `critical` are per cent slower than the GPU's own level; `timeout` is in s, or
    as "1min". `frame` has a row for each GPU.
    """
    checked = checking.check(
        store,
        quick=quick,
        backend=backend,
        warning=warning,
        critical=critical,
        timeout=seconds_of(timeout),
        simulated=simulated,
    )
    return Reply(checked, checked.as_dict, partial(check_report.answer, checked), rows=RowList("gpus", checking.OfGpu))


def _measured(measured: measuring.Measured, folder: str) -> Reply[measuring.Measured]:
    report, plan = measured.report, measured.plan
    return Reply(
        measured,
        partial(printed.document, report, plan, backend=measured.backend),
        partial(printed.answer, report, plan, folder),
        rows=RowList("runs"),
    )


measure = replying(measuring.measure, _measured)


def _collected(collected: Collected, folder: str) -> Reply[Collected]:
    def sentence() -> Iterator[str]:
        counts = collected.counts
        yield f"{folder}: stored {many(counts.rows, 'row')} and {many(counts.events, 'event')}; {counts.missed} missed"

    return Reply(collected, collected.document, sentence, rows=RowList(""))


_collect = replying(collecting.collect, _collected)


@overload
def collect(store: Store | str | Path | None = None, *, for_job: Literal[True], **options: Any) -> JobReadings: ...


@overload
def collect(store: Store | str | Path, *, for_job: Literal[False] = False, **options: Any) -> Reply[Collected]: ...


@wraps(collecting.collect)
def collect(
    store: Store | str | Path | None = None, *, for_job: bool = False, **options: Any
) -> JobReadings | Reply[Collected]:
    """As `whorl collect`; with `for_job` the readings of this job's GPUs, for a `with` block."""
    if not for_job:
        return _collect(store, **options)
    return JobReadings(store if store is None or isinstance(store, str | Path) else store.root, **options)
