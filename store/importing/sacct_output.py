"""What `sacct` prints, as rows of text under the names of its fields: `sacct -P`, aligned columns, `sacct --json` (of
Slurm 21.08 and later), and files of other programs with a header and a delimiter. And the times in them.

Every version of `--json` spells some values in its own way (data_parser v0.0.36 to v0.0.44): a number is a number,
null, or {"set", "infinite", "number"}; a state is a word or a list; a step has its own number, or that of the job too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl

from ...errors import InputError
from ..instants import times_of_ns
from .content import LINE, Refused
from .lines import csv_fields
from .times import EARLY, LATE, LOCAL, add_instants

UNKNOWN = ("", "Unknown", "None", "N/A", "None assigned", "(null)", "INVALID")
"""What sacct prints where nothing is known."""
FREE_TEXT = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir", "Container", "WCKey", "Extra"}
    | {"Constraints", "Reservation", "Reason", "Licenses", "FailedNode", "StdOut", "StdErr", "StdIn"}
)
"""Fields that may hold whatever somebody wrote."""
STEP = r"\.(?:\d+(?:\+\d+)?|batch|extern|interactive|[a-z]*\+)$"
"""The end of the number of a job's step, cut or not. 7.server is a job of PBS."""
_DELIMITERS = "\x1f|;,\t"
_TIMES = {"Submit": "submitted", "Eligible": "eligible", "Start": "began", "End": "ended"}
_SAVE_SECONDS = "SLURM_TIME_FORMAT=%s sacct ..."
_COLUMNS = (
    "JobIDRaw", "JobID", "JobName", "Cluster", "User", "Account", "Partition", "QOS", "State", "ExitCode", "NodeList",
    "NNodes", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "ReqTRES", "AllocTRES",
    "ConsumedEnergyRaw", "Restarts",
)  # fmt: skip
_INFINITE = 2**32 - 1
_NO_NUMBER = (2**32 - 2, _INFINITE)  # Slurm's NO_VAL first; those of 64 bits are over `_MOST`
_MOST = 2**62
_UNITS = "MGTP"  # sacct -P prints memory in the largest unit in which it is a whole number


def is_json(text: str) -> bool:
    """Whether a text, or its first line, begins as JSON."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def rows(
    text: str,
    name: str,
    refused: Refused,
    *,
    save: str,
    notes: list[str],
    check: Callable[[str, Sequence[str]], None] | None = None,
) -> pl.DataFrame:
    """The jobs and steps in the file `name` as columns of text, with `LINE`, the number of the line.

    Text is cut where the header's most frequent delimiter is; lines with another number of fields are `refused`.
    `save` is the command of messages that say how to save the file again. `check` is called with the header and the
    names of the columns, and may raise. Raises InputError for a file that is empty, and for a column that it has twice.
    """
    if is_json(text):
        return rows_of_json(text, name)
    lines = pl.DataFrame({"text": text.split("\n")}).with_columns(pl.int_range(1, pl.len() + 1).alias(LINE))
    lines = lines.with_columns(pl.col("text").str.strip_chars_end("\r"))
    lines = lines.filter(pl.col("text").str.strip_chars(" \t") != "")
    if not lines.height:
        raise InputError(f"{name} is empty; save it again, for example with: {save}")
    if "\0" in lines["text"][0]:  # UTF-16, as PowerShell redirects output
        raise InputError(f"{name} is not text in UTF-8 (it holds zero bytes); save it in UTF-8")
    lines = _parted(lines, notes, save)
    header = lines["text"][0].lstrip("\ufeff")
    delimiter = max(_DELIMITERS, key=header.count)
    names = [column.strip().strip('"') for column in header.split(delimiter)]
    if names[-1] == "":  # sacct -p ends each line with the delimiter
        names.pop()
        lines = lines.with_columns(pl.col("text").str.strip_suffix(delimiter))
    if check is not None:
        check(header, names)
    if any(map(str.isdigit, names)):
        raise InputError(f"{name}: its first line names no columns, as sacct -n leaves them out; save it with: {save}")
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{name} has the column {twice} twice; save it with: {save}")
    lines = lines.slice(1)
    cells = lines.select(LINE, pl.col("text").str.split(delimiter).alias("cells"))
    if delimiter in ",;\t" and lines["text"].str.contains('"', literal=True).any():  # a spreadsheet or pandas wrote it
        quoted = [csv_fields(line, delimiter) or line.split(delimiter) for line in lines["text"]]
        cells = lines.select(LINE, pl.Series("cells", quoted, pl.List(pl.String)))
    if delimiter == "," and len(cells) and (cells["cells"].list.len() > len(names)).all():
        raise InputError(f"{name} is parted by commas, which stand in its fields too; save it with: {save}")
    return _even(cells, names, delimiter, refused, notes=notes)


def _parted(lines: pl.DataFrame, notes: list[str], save: str) -> pl.DataFrame:
    """The lines with a delimiter where `sacct` without -P wrote aligned columns, below each of which it draws a line.

    It cuts what is wider than a column, and ends it with a plus sign. Of a job's number and a cluster's name nothing is
    left then: they would name another one. That of a step (7.batch as 7.ba+) stays: it tells that the line is no job.
    """
    rule = lines["text"][1] if lines.height > 1 else ""
    if not re.fullmatch(r" *-+( +-+)* *", rule):
        return lines
    columns = [match.span() for match in re.finditer("-+", rule)]
    cells = lines.filter(pl.int_range(pl.len()) != 1).select(
        LINE,
        *(pl.col("text").str.slice(start, end - start).str.strip_chars().alias(str(start)) for start, end in columns),
    )
    names, cut_columns = cells.row(0)[1:], []
    for name, (start, end) in zip(names, columns, strict=True):
        cell = pl.col(str(start))
        is_cut = cell.str.ends_with("+") & (cell.str.len_chars() == end - start)
        if name.startswith(("JobID", "Cluster")):
            is_step = cell.str.contains(".", literal=True) & (name != "Cluster")
            cells = cells.with_columns(pl.when(~is_cut | is_step).then(cell).otherwise(pl.lit("")).alias(str(start)))
        elif name != "State" and (number := cells.select(is_cut.sum()).item()):
            cut_columns.append(f"{number} of {name}")
    if cut_columns:
        notes.append(f"sacct without -P cut values ({', '.join(cut_columns)}); save it with: {save}")
    return cells.select(LINE, pl.concat_str(pl.exclude(LINE), separator=_DELIMITERS[0]).alias("text"))


def known(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The frame with these columns of text, NULL where nothing is known, also those that it lacks."""
    texts = [pl.col(name) for name in frame.columns if name != LINE]
    frame = frame.with_columns(pl.when(~text.is_in(UNKNOWN)).then(text) for text in texts)
    return frame.with_columns(pl.lit(None, pl.String).alias(name) for name in columns if name not in frame.columns)


def _even(cells: pl.DataFrame, names: list[str], delimiter: str, refused: Refused, *, notes: list[str]) -> pl.DataFrame:
    """Rows of as many fields as the header has. Text that a user chose may hold the delimiter or a line break."""
    free = [column for column in names if column in FREE_TEXT]
    if free:
        notes.append(
            f"the column {free[0]} holds text that users choose: a line break in it can pass for a job of somebody "
            "else; save the file without it"
        )
    count = pl.col("cells").list.len().cast(pl.Int64)
    if len(free) == 1:  # what is too much belongs to it
        place, extra = names.index(free[0]), count - len(names)
        joined = pl.concat_list(
            pl.col("cells").list.head(place),
            pl.col("cells").list.slice(place, extra + 1).list.join(delimiter),
            pl.col("cells").list.slice(place + extra + 1),
        )
        cells = cells.with_columns(pl.when(extra > 0).then(joined).otherwise("cells").alias("cells"))
    lengths = cells["cells"].list.len().unique().sort().to_list()
    wrong = [length for length in lengths if length != len(names)]
    rules = [(count == length, f"it has {length} fields, but the header names {len(names)}") for length in wrong]
    even = refused.take(cells, rules) if rules else cells
    columns = (pl.col("cells").list.get(i).str.strip_chars().alias(column) for i, column in enumerate(names))
    return even.select(LINE, *columns)


# -- times ----------------------------------------------------------------------------------------------------


def add_times(
    frame: pl.DataFrame, name: str, time_zone: str | None, refused: Refused, notes: list[str]
) -> pl.DataFrame:
    """The rows with `submitted`, `eligible`, `began` and `ended`, in UTC. Rows with other text there are refused.

    Times are seconds since 1970, civil times with an offset from UTC, or of `time_zone`. Where an hour occurs twice,
    the elapsed seconds may say which one it is; else it is the first. Raises InputError where civil times need a zone
    that was not given, or is none.
    """
    for column, time_name in _TIMES.items():
        frame = add_instants(frame, column, time_zone or "UTC")
        if time_zone is None and (local := frame.filter(LOCAL)).height:
            raise InputError(
                f"{name}: its times have no time zone (line {local[0, LINE]}): give time-zone, for example "
                f"Europe/Berlin, or save seconds: {_SAVE_SECONDS}"
            )
        instants = times_of_ns(pl.col(EARLY)).alias(time_name), times_of_ns(pl.col(LATE)).alias(f"{time_name} late")
        frame = frame.with_columns(instants).drop(EARLY, LATE, LOCAL)
        if column != "Eligible":
            bad = pl.col(column).is_not_null() & pl.col(time_name).is_null()
            frame = refused.take(frame, [(bad, f"{column} is no time")])
    late_names = [f"{time_name} late" for time_name in _TIMES.values()]
    twice = pl.any_horizontal(pl.col(name) != pl.col(f"{name} late") for name in _TIMES.values()).fill_null(False)
    number = frame.select(twice.sum()).item()
    if not number:
        return frame.drop(late_names)
    notes.append(
        f"{number} jobs have a time in the hour that occurs twice in {time_zone}: where ElapsedRaw does not decide, "
        f"the first time is taken; seconds are certain: {_SAVE_SECONDS}"
    )
    elapsed = pl.col("ElapsedRaw").cast(pl.Int64, strict=False)

    def lasts(began: str, ended: str) -> pl.Expr:
        return ((pl.col(ended) - pl.col(began)).dt.total_seconds() == elapsed).fill_null(False)

    began_late = ~lasts("began", "ended") & ~lasts("began", "ended late") & lasts("began late", "ended late")
    ended_late = ~lasts("began", "ended") & (lasts("began", "ended late") | began_late)
    return frame.with_columns(
        pl.when(began_late).then("began late").otherwise("began").alias("began"),
        pl.when(ended_late).then("ended late").otherwise("ended").alias("ended"),
    ).drop(late_names)


# -- JSON -----------------------------------------------------------------------------------------------------


def rows_of_json(text: str, name: str) -> pl.DataFrame:
    """A row for each job and step of the file `name`: columns of text as `sacct -P` names them, NULL where unknown.

    `LINE` is the number of the job in the file, from 1 on. Raises InputError where it is no output of `sacct --json`.
    """
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is cut short or damaged ({error}); save the output of sacct --json again") from error
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        raise InputError(f"{name} is JSON without a list of jobs: whorl reads what sacct --json and sacct -P print")
    if not jobs and document.get("errors"):
        raise InputError(f"{name} holds errors of sacct and no job: {json.dumps(document['errors'][:1])[:200]}")
    old = "v0.0.37" in json.dumps(document.get("meta"))
    lines: list[dict[str, Any]] = []
    for number, job in enumerate(jobs, start=1):
        try:
            lines += [{LINE: number, **row} for row in _of_job(job, old)]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(
                f"{name}: job {number} of its list lacks fields of sacct --json, or has others there, as what squeue "
                "and scontrol print; save it with sacct -a -D --json"
            ) from error
    return pl.DataFrame(lines, schema={LINE: pl.Int64} | dict.fromkeys(_COLUMNS, pl.String))


def _of_job(job: dict[str, Any], old: bool) -> Iterator[dict[str, str | None]]:
    """A job, and its steps with what they consumed. Slurm 21.08 (`old`) writes as `start` when it was eligible."""
    time, tres, raw = job["time"], job["tres"], _number(job["job_id"])
    association = job.get("association") or {}
    start, end, elapsed = (_number(time[key]) or None for key in ("start", "end", "elapsed"))
    if old and start:  # of a job that runs it is not known
        start = end - (elapsed or 0) - time["suspended"] if end else None
    state = _state(job["state"]["current"])
    allocated = _resources(tres["allocated"])
    infinite = time["limit"].get("infinite") if isinstance(time["limit"], dict) else time["limit"] == _INFINITE
    numbers = {
        "JobIDRaw": raw, "NNodes": _number(job.get("allocation_nodes")) or None, "Start": start, "End": end,
        "Submit": _number(time["submission"]) or None, "Eligible": _number(time["eligible"]) or None,
        "ElapsedRaw": elapsed or 0, "TimelimitRaw": _number(time["limit"]), "Restarts": _number(job.get("restart_cnt")),
        "ConsumedEnergyRaw": allocated.get("energy"),
    }  # fmt: skip
    yield {
        **{column: None if number is None else str(number) for column, number in numbers.items()},
        **({"TimelimitRaw": "UNLIMITED"} if infinite else {}),
        **{key.title(): job.get(key) or association.get(key) for key in ("cluster", "user", "account")},
        "JobID": _job_id(job, raw),
        "JobName": job.get("name"),
        "Partition": job.get("partition"),
        "QOS": job.get("qos"),
        "State": state,
        "ExitCode": _exit_code(job.get("exit_code"), state),
        "NodeList": job["nodes"],
        "ReqTRES": _listed(_resources(tres["requested"])),
        "AllocTRES": _listed(allocated),
    }
    for step in job.get("steps") or ():
        step_number = str(step["step"]["id"]).rpartition(".")[2]
        energy = _number(step["statistics"]["energy"]["consumed"])
        consumed = None if energy is None else str(energy)
        yield {"JobIDRaw": f"{raw}.{step_number}", "State": _state(step["state"]), "ConsumedEnergyRaw": consumed}


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int) and 0 <= value < _MOST and value not in _NO_NUMBER else None


def _state(value: str | list[str]) -> str:
    """The state; of a list the last one: ["PENDING", "REQUEUED"] is what sacct -P calls REQUEUED."""
    return value if isinstance(value, str) else value[-1]


def _job_id(job: dict[str, Any], raw: int | None) -> str | None:
    """The job as commands take it: 7, of an array 7_1; 7+0 is a part of a job."""
    array, part = job.get("array") or {}, job.get("het") or {}
    if _number(array.get("job_id")) and (task := _number(array.get("task_id"))) is not None:
        return f"{array['job_id']}_{task}"
    if _number(part.get("job_id")) and (offset := _number(part.get("job_offset"))) is not None:
        return f"{part['job_id']}+{offset}"
    return None if raw is None else str(raw)


def _exit_code(code: dict[str, Any] | None, state: str) -> str | None:
    """Exit status and signal. sacct -P takes 128 off a status that a shell made of a signal."""
    if not code:
        return None
    signal = code.get("signal") or {}
    signalled, status = _number(signal.get("id", signal.get("signal_id"))), _number(code.get("return_code"))
    if not (signalled or status) and state == "FAILED":
        return None  # Slurm 22.05 says SUCCESS and 0 whatever the status was
    if signalled is None and status is None:
        return None
    return f"{(status or 0) % 128}:{signalled or 0}"


def _resources(entries: list[dict[str, Any]]) -> dict[str, int]:
    """The counts of resources by name: cpu, gres/gpu; without those that are not known."""
    names = (f"{entry['type']}/{entry['name']}" if entry.get("name") else str(entry["type"]) for entry in entries)
    counts = zip(names, (_number(entry["count"]) for entry in entries), strict=True)
    return {name: count for name, count in counts if count is not None}


def _listed(counts: dict[str, int]) -> str | None:
    return ",".join(sorted(f"{name}={_memory(n) if name == 'mem' else n}" for name, n in counts.items())) or None


def _memory(count: int) -> str:
    units = iter(_UNITS)
    unit = next(units)
    while count and count % 1024 == 0 and unit != _UNITS[-1]:
        count, unit = count // 1024, next(units)
    return f"{count}{unit}" if count else "0"
