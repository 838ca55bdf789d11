"""The columns of the tables of the page."""

from __future__ import annotations

from ....analysis.energy.answers import By
from ...energy_table import Shown, Unit
from ..grid import Column

PROBLEMS = [
    Column("problem", "problem"),
    Column("about", "where and when", width=560),
    Column("n", "times", "number"),
    Column("do", "what to do", width=420),
]


def columns(by: By, frame: Shown) -> list[Column]:
    """The columns of an answer, in the units of its rows."""
    rows = frame.rows
    found = _names(by)
    if rows["cluster"].n_unique() > 1:
        found.append(Column("cluster", "cluster"))
    time = frame.time
    says = "GPU time: share x time, over all GPUs"
    found.append(Column(time.column("time"), f"GPU {time.name}", "number", digits=time.digits, says=says))
    found += with_interval("energy", frame.energy, frame.energy.name, "energy")
    if by.of_people:
        found.append(Column("idle", "idle %", "number", says="what its GPUs would have drawn without work"))
    else:
        found += [
            Column("of_jobs", "jobs %", "number", says="the part of the energy that jobs used"),
            Column("idle", "idle %", "number", says="no job had the GPU, and it did nothing"),
            Column(
                "of_nobody", "unattributed %", "number", says="no known job had it, and nothing shows that it was idle"
            ),
        ]
    found.append(Column("measured", "measured %", "number", says="the part of the time with readings"))
    if not rows["co2e_g"].is_null().all():
        found += with_interval("co2e", frame.grams, f"CO2e {frame.grams.name}", "CO2e")
    if not rows["cost"].is_null().all():
        found.append(Column("cost", "cost", "number", digits=2))
        found.append(Column("cost_low", "95 %", "interval", digits=2, high="cost_high"))
    if not rows["why"].is_null().all():
        found.append(Column("why", "why n/a", width=320))
    return found


def with_interval(name: str, unit: Unit, title: str, says: str) -> list[Column]:
    """A figure and its 95 % interval."""
    low, high = unit.column(f"{name}_low"), unit.column(f"{name}_high")
    return [
        Column(unit.column(name), title, "number", digits=unit.digits, says=f"{says}: the best figure"),
        Column(low, "95 %", "interval", digits=unit.digits, high=high, says=f"{says}: its 95 % interval"),
    ]


def of_gpu(name: str, title: str) -> Column:
    """A column that leads to the page of the GPU."""
    return Column(name, title, link="gpu", asks={"gpu": "gpu", "cluster": "cluster"})


def _names(by: By) -> list[Column]:
    """What a row is of."""
    n = Column("gpus", "GPUs", "number", says="n: how many GPUs; n/a where nobody knows which they are")
    if by is By.JOB:
        return [
            Column("what", "job", link="energy", asks={"job": "job_id", "cluster": "cluster"}),
            Column("user", "user"), Column("account", "account"), Column("state", "state"),
            Column("began", "began (UTC)", "time"), Column("ended", "ended (UTC)", "time"), n,
        ]  # fmt: skip
    if by.of_people:
        return [Column("what", by.value), Column("jobs", "jobs", "number"), n]
    if by is By.GPU:
        return [
            of_gpu("what", "GPU"),
            Column("node", "node"), Column("model", "model"),
        ]  # fmt: skip
    return [Column("what", by.value), n]
