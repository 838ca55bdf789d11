"""The setting that saves energy within a bound: the function of `whorl tune`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ...analysis.tuning.search import TimeBound
from ...analysis.tuning.sweep import across_batches, choose, read_sweeps
from ...dashboards.answers.reply import Reply
from ...dashboards.printed import tuning as printed
from ...errors import InputError
from ...store.instants import seconds_of


class TuneArguments(TypedDict, total=False):
    """The options of `whorl tune`; each is None where it is left out."""

    max_slowdown: float | None
    """A share: 0.05 is at most 5 % slower than the default."""
    max_latency: float | str | None
    """The most that a unit of work may take, in s, or as "16ms"."""
    across: str | None
    """With a sweep, "batch": choose among the batch sizes too."""
    map: Mapping[str, str] | None
    """With a sweep: what columns mean, by their names, as {"watts": "power_limit_w"}."""


def tune(*, sweep: str | Path | None = None, **arguments: Unpack[TuneArguments]) -> Reply[Any]:
    """The setting of least energy within a bound on time, as `whorl tune` says it.

    `sweep` is a file of settings that were measured already: `frame` has a row for each workload and batch size.
    Raises InputError, which names the line of the file.
    """
    if sweep is None:
        raise InputError("say what to tune: --sweep")
    return _sweep_reply(sweep, arguments)


def _bound(arguments: TuneArguments) -> TimeBound | None:
    slowdown, latency = arguments.get("max_slowdown"), seconds_of(arguments.get("max_latency"))
    if slowdown is None and latency is None:
        return None
    if slowdown is not None and latency is not None:
        raise InputError("--max-slowdown and --max-latency are two bounds: give one of them")
    return TimeBound(slowdown, latency)


def _sweep_reply(path: str | Path, arguments: TuneArguments) -> Reply[printed.SweepAnswer]:
    """The choices in the sweeps of a file."""
    bound, across = _bound(arguments), arguments.get("across")
    if across not in (None, "batch"):
        raise InputError(f"--across {across}: a sweep goes across batch")
    file = read_sweeps(path, arguments.get("map"))
    sweeps = file.sweeps
    if across:
        if not file.has_batches:
            raise InputError(f"{path} has no column batch_size: leave out --across, or say which it is with --map")
        sweeps = tuple(across_batches(sweeps))
    answer = printed.SweepAnswer(file, tuple(choose(sweeps, bound)), bound, across is not None)
    return Reply(
        answer,
        partial(printed.sweep_document, answer),
        partial(printed.sweep_answer, answer),
        notes=printed.sweep_notes(answer),
    )
