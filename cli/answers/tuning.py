"""The setting that saves energy within a bound: the function of `whorl tune`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypedDict

from ...analysis.tuning.sweep import across_batches, choose, read_sweeps
from ...dashboards.answers.reply import Reply
from ...dashboards.printed import tuning as printed
from ...errors import InputError


class SweepOptions(TypedDict, total=False):
    """The options of `whorl tune --sweep`."""

    max_slowdown: float | None
    """A share: 0.05 is at most 5 % slower than the default."""
    max_latency: float | None
    """The most that a unit of work may take, in s."""
    across: str | None
    """"batch": choose among the batch sizes too."""
    columns: Mapping[str, str] | None
    """What columns mean, by their names."""


def sweep_reply(path: str | Path, options: SweepOptions) -> Reply[printed.SweepAnswer]:
    """The choices in the sweeps of a file. Raises InputError, which names the line."""
    slowdown, latency = options.get("max_slowdown"), options.get("max_latency")
    file = read_sweeps(path, options.get("columns"))
    sweeps = file.sweeps
    if across := options.get("across"):
        if across != "batch":
            raise InputError(f"--across {across}: a sweep goes across batch")
        if not file.has_batches:
            raise InputError(f"{path} has no column batch_size: leave out --across, or say which it is with --map")
        sweeps = tuple(across_batches(sweeps))
    choices = choose(sweeps, max_slowdown=slowdown, max_time_s=latency)
    answer = printed.SweepAnswer(file, tuple(choices), slowdown, latency, across is not None)
    return Reply(
        answer,
        partial(printed.sweep_document, answer),
        partial(printed.sweep_answer, answer),
        notes=printed.sweep_notes(answer),
    )
