"""A log of a busy little cluster of four nodes, for the verbs that study chains of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

CLUSTER_NODES = 4


def chain_log(days: int = 12) -> str:
    """The log as the Mirage study writes one, from 2022-11-01 on: a job every three hours, of fixed series of numbers.

    The starts are those of jobs that waited up to five hours, not of a schedule.
    """
    lines = ["job,user,submit,start,end,limit_min,nodes"]
    for number in range(8 * days):
        submit = datetime(2022, 11, 1) + timedelta(minutes=180 * number + 7 * (number % 11))  # noqa: DTZ001
        start = submit + timedelta(minutes=(0, 0, 17, 90, 300)[number % 5])
        limit_min = (120, 480, 60, 1440)[number % 4]
        end = start + timedelta(minutes=limit_min * (0.9, 0.25, 1)[number % 3])
        nodes = (1, 2, 1, 1, 4, 1)[number % 6]
        lines.append(f"{number},u,{submit:%FT%T},{start:%FT%T},{end:%FT%T},{limit_min},{nodes}")
    return "\n".join(lines) + "\n"
