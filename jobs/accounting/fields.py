"""The fields of `sacct` that whorl reads, and `sacct` itself, asked for those that this version has.

Free text that users choose (JobName, Comment, ...) is never asked for: it may hold the delimiter and line breaks, and
could pass for rows of other jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime

from ...errors import SchedulerError
from ..slurm import Slurm

DELIMITER = "\x1f"  # the unit separator: no name of a user, an account or a node holds it
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
_SHORT_S, _LONG_S = 30.0, 900.0
_FORM = "%Y-%m-%dT%H:%M:%S"


def ask(since: datetime, until: datetime | None) -> str:
    """What `sacct` says of all jobs from `since` to `until` (UTC), a line for each, times in s since 1970.

    Raises SchedulerError where there is no sacct, or accounting is off or does not answer.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith("SACCT_")}
    own |= {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}  # times that go in are UTC, those that come out seconds
    has = _fields_here(own)
    span = [f"--starttime={since:{_FORM}}"] + ([f"--endtime={until:{_FORM}}"] if until else [])
    return _call(
        Slurm(_LONG_S, own),
        "sacct",
        "--allusers",
        "--allocations",
        "--duplicates",
        "--parsable2",
        f"--delimiter={DELIMITER}",
        f"--format={','.join(has)}",
        *span,
    )


def _fields_here(environment: Mapping[str, str]) -> list[str]:
    """The fields that this version of sacct has."""
    slurm = Slurm(_SHORT_S, environment)
    slurm.configured()
    known = {name.lower() for name in _call(slurm, "sacct", "--helpformat").split()}
    missing = [name for name in NEEDED if name.lower() not in known]
    if missing:
        raise SchedulerError(f"this sacct has no field {missing[0]}: whorl reads those of Slurm 22.05 and later")
    return [name for name in FIELDS if name.lower() in known]


def _call(slurm: Slurm, *command: str) -> str:
    try:
        return slurm.call(*command)
    except SchedulerError as error:
        if "accounting storage is disabled" in str(error):
            raise SchedulerError(
                "Slurm keeps no accounts here (AccountingStorageType in slurm.conf): use tags of the prolog and epilog "
                "instead, see `whorl jobs tag`",
                absent=True,
            ) from error
        raise
