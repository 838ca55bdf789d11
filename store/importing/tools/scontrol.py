"""`scontrol show job -d`: jobs with Slurm's indices of the GPUs that they have on each node, as rows of jobs.

A job that waits is passed over; one that runs has no end, though Slurm prints the latest that it may have. An index of
a GPU (IDX) is a place in gres.conf: `allocations` finds out which GPU that is. Of shards, MPS and MIG instances Slurm
numbers something else, so that only the node of such a job is known.
"""

from __future__ import annotations

import re
from collections import Counter

from ....errors import InputError
from ... import hostlist
from ...vocabulary import JobSource
from ..rows import Rows, Value, parts

NAME = "scontrol show job"

BEGIN = re.compile(r"^[ \t]*JobId=[0-9]+ (?:\S+ )*JobName=", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=")
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES(?:_IDX)?=(\S*)")  # GRES_IDX until Slurm 19
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:(),]+))?(?::[0-9]+)?(?:\(IDX:([0-9,-]+)\))?")  # type, numbers
_HAS_GPUS = re.compile(r"GRES(?:_IDX)?=\S*(?:gpu|shard|mps)|gres[/:](?:gpu|shard|mps)")
_INSTANCE = re.compile(r"^[0-9]+g\.")  # the type of a MIG instance: 1g.10gb
_NOTHING = (None, "", "(null)", "Unknown")
_RUN = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING")  # states of jobs that have no end
_TEXTS = {"account": "Account", "partition": "Partition", "submitted": "SubmitTime", "began": "StartTime"}


def read(text: str, rows: Rows) -> None:
    """Add the rows of each job in the text. Raises InputError where no job of it had a GPU."""
    passed: Counter[str] = Counter()
    for line, job in parts(text, BEGIN):  # with -o it is one line
        fields = _fields(job)
        state = fields.get("JobState", "")
        if state == "PENDING" or not {fields.get("StartTime"), fields.get("NodeList")}.isdisjoint(_NOTHING):
            passed["did not begin"] += 1
            continue
        if not _HAS_GPUS.search(job):
            passed["have no GPU"] += 1
            continue
        values: dict[str, Value] = {name: fields.get(field) for name, field in _TEXTS.items()}
        values |= {"job": fields["JobId"], "user": fields.get("UserId", "").partition("(")[0], "state": state}
        values |= {"ended": None if state in _RUN else fields.get("EndTime")}
        _add(line, job, values, rows)
    for why, number in passed.items():
        rows.note(f"{number} jobs {why}, and are not stored")
    if passed and rows.allocations is None:
        raise InputError(f"{rows.file}: none of its {passed.total()} jobs had a GPU")


def _fields(job: str) -> dict[str, str]:
    """The first value of each field, `JobId=7`; a value may have spaces."""
    words = _FIELD.split(job)
    pairs = zip(words[1::2], words[2::2], strict=True)
    return {name: value.strip() for name, value in reversed(list(pairs))}


def _add(line: int, job: str, values: dict[str, Value], rows: Rows) -> None:
    """The rows of a job: one for each node, with Slurm's indices of its GPUs there."""
    on_nodes = [match.groups() for match in _NODES.finditer(job)]
    if on_nodes:
        on_nodes = [(nodes, resources) for nodes, resources in on_nodes if re.search("gpu|shard|mps", resources)]
    else:  # without -d
        on_nodes = [(_fields(job).get("NodeList", ""), "")]
        rows.note("the GPUs of jobs are not known: save scontrol show job -d, which numbers them")
    for nodes, resources in on_nodes:
        try:
            names = hostlist.expand(nodes)
        except InputError:
            names = []
        if not names:
            rows.refuse(line, "it names no node")
            continue
        numbers = [match[2] for match in _GPUS.finditer(resources) if not _INSTANCE.match(match[1] or "")]
        gpus = f"(IDX:{';'.join(filter(None, numbers))})" if numbers and None not in numbers else ""
        for node in names:
            gpus_there: dict[str, Value] = {"node": node, "gpu": gpus, "share [ratio]": 1 if gpus else None}
            rows.allocation(line, values | gpus_there, JobSource.SCONTROL)
