"""What `sacct --json` prints (Slurm 21.08 and later), as the rows and the words of `sacct -P`.

Every version spells some values in its own way (data_parser v0.0.36 to v0.0.44): a number is a number, null, or
{"set", "infinite", "number"}; a state is a word or a list of words; a step has its own number, or that of the job too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl

from ...errors import InputError
from .content import LINE

_COLUMNS = (
    "JobIDRaw", "JobID", "JobName", "Cluster", "User", "Account", "Partition", "QOS", "State", "ExitCode", "NodeList",
    "NNodes", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "ReqTRES", "AllocTRES",
    "ConsumedEnergyRaw", "Restarts",
)  # fmt: skip
_INFINITE = 2**32 - 1
_NO_NUMBER = (2**32 - 2, _INFINITE)  # Slurm's NO_VAL first; those of 64 bits are over `_MOST`
_MOST = 2**62
_UNITS = "MGTP"  # sacct -P prints memory in the largest unit in which it is a whole number


def fits(text: str) -> bool:
    """Whether a text, or its first line, begins as JSON."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def rows(text: str, name: str) -> pl.DataFrame:
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
            lines += [{LINE: number, **row} for row in _rows(job, old)]
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(
                f"{name}: job {number} of its list lacks fields of sacct --json, or has others there, as what squeue "
                "and scontrol print; save it with sacct -a -D --json"
            ) from error
    return pl.DataFrame(lines, schema={LINE: pl.Int64} | dict.fromkeys(_COLUMNS, pl.String))


def _rows(job: dict[str, Any], old: bool) -> Iterator[dict[str, str | None]]:
    """A job, and its steps with what they consumed. Slurm 21.08 (`old`) writes as `start` when it was eligible."""
    time, tres, raw = job["time"], job["tres"], _number(job["job_id"])
    association = job.get("association") or {}
    start, end, elapsed = (_number(time[key]) or None for key in ("start", "end", "elapsed"))
    if old and start:  # of a job that runs it is not known
        start = end - (elapsed or 0) - time["suspended"] if end else None
    state = _state(job["state"]["current"])
    allocated = {_name(resource): _number(resource["count"]) for resource in tres["allocated"]}
    yield {
        "JobIDRaw": _text(raw),
        "JobID": _job_id(job, raw),
        "JobName": job.get("name"),
        "Cluster": job.get("cluster") or association.get("cluster"),
        "User": job.get("user") or association.get("user"),
        "Account": job.get("account") or association.get("account"),
        "Partition": job.get("partition"),
        "QOS": job.get("qos"),
        "State": state,
        "ExitCode": _exit_code(job.get("exit_code"), state),
        "NodeList": job["nodes"],
        "NNodes": _text(_number(job.get("allocation_nodes")) or None),
        "Submit": _text(_number(time["submission"]) or None),
        "Eligible": _text(_number(time["eligible"]) or None),
        "Start": _text(start),
        "End": _text(end),
        "ElapsedRaw": _text(elapsed or 0),
        "TimelimitRaw": "UNLIMITED" if _is_infinite(time["limit"]) else _text(_number(time["limit"])),
        "ReqTRES": _resources({_name(resource): _number(resource["count"]) for resource in tres["requested"]}),
        "AllocTRES": _resources(allocated),
        "ConsumedEnergyRaw": _text(allocated.get("energy")),
        "Restarts": _text(_number(job.get("restart_cnt"))),
    }
    for step in job.get("steps") or ():
        step_number = str(step["step"]["id"]).rpartition(".")[2]
        energy = _text(_number(step["statistics"]["energy"]["consumed"]))
        yield {"JobIDRaw": f"{raw}.{step_number}", "State": _state(step["state"]), "ConsumedEnergyRaw": energy}


def _number(value: Any) -> int | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int) and 0 <= value < _MOST and value not in _NO_NUMBER else None


def _is_infinite(value: Any) -> bool:
    return bool(value.get("infinite")) if isinstance(value, dict) else value == _INFINITE


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


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
    return _text(raw)


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


def _name(resource: dict[str, Any]) -> str:
    return f"{resource['type']}/{resource['name']}" if resource.get("name") else str(resource["type"])


def _resources(counts: dict[str, int | None]) -> str | None:
    filled = {name: count for name, count in counts.items() if count is not None}
    return ",".join(sorted(f"{name}={_memory(n) if name == 'mem' else n}" for name, n in filled.items())) or None


def _memory(count: int) -> str:
    units = iter(_UNITS)
    unit = next(units)
    while count and count % 1024 == 0 and unit != _UNITS[-1]:
        count, unit = count // 1024, next(units)
    return f"{count}{unit}" if count else "0"
