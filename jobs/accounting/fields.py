"""The fields of `sacct` that whorl reads, and `sacct` itself, asked for those that this version has.

Free text that users choose (JobName, Comment, ...) is never asked for: it may hold the delimiter and line breaks, and
could pass for rows of other jobs.
"""

from __future__ import annotations

from datetime import datetime

from ...errors import SchedulerError
from ..slurm import Slurm

NEEDED = ("JobIDRaw", "State", "NodeList", "Submit", "Start", "End", "AllocTRES")
FIELDS = (
    *NEEDED,
    "JobID",
    "Cluster",
    "User",
    "UID",
    "Account",
    "Partition",
    "QOS",
    "ExitCode",
    "NNodes",
    "Eligible",
    "ElapsedRaw",
    "TimelimitRaw",
    "ReqTRES",
    "ConsumedEnergyRaw",
    "Restarts",  # not in 22.05
)
FREE_TEXT = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir", "Container", "WCKey", "Extra"}
    | {"Constraints", "Reservation", "Reason", "Licenses", "FailedNode", "StdOut", "StdErr", "StdIn"}
)
"""Fields that may hold whatever somebody wrote."""

SAVE = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -D -S 2026-11-01 -o JobIDRaw,JobID,Cluster,User,Account,Partition,QOS,State,"
    "ExitCode,NodeList,NNodes,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,ReqTRES,AllocTRES,ConsumedEnergyRaw"
)
"""A command whose output whorl reads."""


def ask(since: datetime, until: datetime | None) -> str:
    """What `sacct` says of all jobs from `since` to `until` (UTC), a line for each, times in s since 1970.

    Raises SchedulerError where there is no sacct, or accounting is off or does not answer.
    """
    slurm = Slurm()
    slurm.configured()
    columns = {name.lower() for name in slurm.call("sacct", "--helpformat").split()}
    missing = [name for name in NEEDED if name.lower() not in columns]
    if missing:
        raise SchedulerError(f"this sacct has no field {missing[0]}: whorl reads those of Slurm 22.05 and later")
    return slurm.accounts([name for name in FIELDS if name.lower() in columns], since, until)
