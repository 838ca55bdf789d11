"""The job log of Microsoft's Philly clusters (ATC'19): a JSON list of jobs, each with its attempts to run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ....errors import InputError
from .table import LINE, Reading, Sheet, jobs

_SCHEMA = {
    "name": pl.String, "submit_s": pl.Float64, "gpus": pl.Int64, "ideal_s": pl.Float64, "limit_s": pl.Float64,
    "model": pl.String, "attempts": pl.Int64, "ended": pl.Boolean,
}  # fmt: skip


def fits(first: str) -> bool:
    return first.startswith("[")


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file that held GPUs and ended. A job runs for as long as all its attempts together, on the GPUs of
    the last one that held any; the model is the virtual cluster (`vc`)."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; the file looks cut off: copy it again") from error
    rows = [_job(path, number, one) for number, one in enumerate(told, start=1)]
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    found = Sheet(str(path), frame.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(LINE)))
    if (twice := frame.filter(~pl.col("name").is_first_distinct())).height:
        raise InputError(f"{path}: job {twice['name'][0]} occurs twice")
    found.leave_out(found.frame["attempts"] == 0, "they never ran")
    found.leave_out(~found.frame["ended"], "they had not ended, so for how long they run is unknown")
    found.leave_out(found.frame["gpus"] < 1, "they held no GPU")
    found.leave_out(found.frame["submit_s"].is_null(), "their submit time is not known")
    found.leave_out(found.frame["ideal_s"] <= 0, "they never ran")
    if again := int((found.frame["attempts"] > 1).sum()):
        found.notes.append(f"{jobs(again)} ran in several attempts, which count as one run")
    return found, found.frame.drop("attempts", "ended", LINE)


def _job(path: Path, number: int, one: Any) -> tuple[Any, ...]:
    try:
        attempts = one["attempts"]
        ends = [(_seconds(its["start_time"]), _seconds(its["end_time"])) for its in attempts]
        # An attempt that got no machine, such as one that was killed while it waited, does not say how many it wanted.
        held = [sum(len(machine["gpus"]) for machine in its["detail"]) for its in attempts]
        gpus = next((n for n in reversed(held) if n), 0)
        ran = sum(end - start for start, end in ends if start is not None and end is not None)
        ended = bool(ends) and ends[-1][1] is not None
        cluster = str(one.get("vc") or "")
        return str(one["jobid"]), _seconds(one["submitted_time"]), gpus, ran, None, cluster, len(attempts), ended
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}, job {number} of the list: it is not as the job log of Philly has it ({type(error).__name__}: "
            f"{error}): jobid, submitted_time, and attempts with start_time, end_time and detail"
        ) from error


def _seconds(text: str | None) -> float | None:
    """A time of the log in seconds; its zone is not known."""
    if text is None or text in ("", "None"):
        return None
    return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001
