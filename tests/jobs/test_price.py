"""Where the price of an exclusion comes from: the store's jobs, else Slurm's accounting."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.analysis.placement import Gain
from whorl.cli import cli
from whorl.cli.documents.advice import price_verdict
from whorl.jobs.price import Exclusion, PriceRequest, WaitingPrice, price_of
from whorl.jobs.slurm import Slurm
from whorl.store import Store
from whorl.tests.jobs.accounts import T0, job, saved

WEEK_S = 7 * 86_400
GAIN = Gain("exclude", "random", 0.2, 0.15, 0.25, measurable=True)


def weekly(weeks: int = 13, partition: str = "batch") -> list[dict[str, str]]:
    """Each week eight jobs of one node for eight hours: with eight nodes none waits, with seven one for eight hours."""
    return [
        job(
            8 * week + number, nodes=f"n0{number + 1}", Partition=partition, Submit=begin, Eligible=begin, Start=begin,
            End=begin + 8 * 3600, ElapsedRaw=8 * 3600, TimelimitRaw=600,
        )
        for week in range(weeks)
        for number in range(8)
        for begin in [T0 + week * WEEK_S]
    ]  # fmt: skip


def exclusion(partition: str | None = None, slurm: Slurm | None = None) -> Exclusion:
    return Exclusion("whorl", 1, 1, GAIN, partition, site_nodes=8, slurm=slurm)


def check(price: WaitingPrice | str) -> WaitingPrice:
    assert isinstance(price, WaitingPrice), price
    expected = {"jobs": 104, "cluster_nodes": 8, "job_nodes": 1, "run_time_h": 8.0, "added_wait_h": 1.0}
    figures = price.as_dict()
    assert {name: figures[name] for name in expected} == expected
    assert (figures["gain_h"], figures["gain_low_h"], figures["pays_from_h"]) == (1.6, 1.2, 5.0)
    return price


def logged(path: Path, jobs: int = 8, nodes: int = 1, limit: str = "600", weeks: int = 20) -> list[str]:
    """The lines of a log: each Monday jobs of eight hours."""
    begin = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)
    lines = []
    for monday in (begin + dt.timedelta(weeks=week) for week in range(weeks)):
        lines += [f"{monday:%FT%T},{monday:%FT%T},{monday + dt.timedelta(hours=8):%FT%T},{limit},{nodes}"] * jobs
    path.write_text("\n".join(["submit,start,end,limit_min,nodes", *lines]))
    return lines


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("share", "nodes", "worth", "sentence"),
    [
        (0.2, 8, True, "Excluding pays: a run of 8 h saves 1.6 h [1.6, 1.6], and jobs wait 1 h [1, 1] longer on"),
        (0.0, 80, False, "Do not exclude: a run of 8 h saves 0 h [0, 0], and jobs wait 0 h [0, 0] longer on average."),
        (0.01, 8, False, "Do not exclude: a run of 8 h saves 0.08 h [0.08, 0.08], and jobs wait 1 h [1, 1] longer"),
    ],
)
def test_what_saves_nothing_does_not_pay(tmp_path: Path, share: float, nodes: int, worth: bool, sentence: str) -> None:
    logged(tmp_path / "log.csv")
    gain = replace(GAIN, median=share, lower=share, upper=share)
    request = PriceRequest(Store.create(tmp_path / "S"), tmp_path / "log.csv", nodes)
    price = price_of(replace(exclusion(), gain=gain), request)
    assert isinstance(price, WaitingPrice)
    assert price.worth is worth
    assert price_verdict(price).startswith(sentence)
    unsure = price_of(replace(exclusion(), gain=replace(gain, lower=-0.1, upper=0.4)), request)
    assert isinstance(unsure, WaitingPrice)
    assert ", though the intervals overlap: " in price_verdict(unsure)


def test_a_history_that_does_not_tell_the_price(tmp_path: Path) -> None:
    log, store = tmp_path / "log.csv", Store.create(tmp_path / "S")

    def reason(lines: list[str], nodes: int = 8, excluded: int = 1) -> str:
        log.write_text("\n".join(["submit,start,end,limit_min,nodes", *lines]))
        price = price_of(replace(exclusion(), excluded_nodes=excluded), PriceRequest(store, log, nodes))
        assert isinstance(price, str)
        return price

    lines = logged(log)
    assert f"not known, because {log} has 1 jobs of 0 days, and 100 of 14 days" in reason(lines[:1])
    assert "80 of 240 jobs" in reason(lines + logged(log, 4, limit=""))
    assert "its time limit is not known" in reason(lines + logged(log, 4, limit=""))
    wide = reason(lines + logged(log, 2, nodes=8))
    assert "40 of 200 jobs" in wide
    assert "67% of its node hours, need more nodes than would be left" in wide
    assert "8 of 8 nodes cannot be excluded" in reason(lines, excluded=8)


def test_the_jobs_of_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "S")
    unlimited = [row | {"TimelimitRaw": "UNLIMITED"} for row in weekly()]  # such a job counts as one of a year
    rows = [
        *unlimited,
        *(row | {"JobID": f"9{row['JobID']}", "JobIDRaw": f"9{row['JobID']}"} for row in weekly(1, "x")),
    ]
    done = CliRunner().invoke(
        cli, ["jobs", "import", "--store", path, "--log", str(saved(tmp_path / "jobs", *rows, delimiter="|"))]
    )
    assert done.exit_code == 0, done.output
    request = PriceRequest(Store.open(path))
    assert check(price_of(exclusion("batch"), request)).source == f"the table jobs of {path}"
    shared = price_of(replace(exclusion("batch"), site_nodes=4), request)
    assert "had 8 nodes at once, and there are 4: they share nodes" in str(shared)
    assert check(price_of(replace(exclusion("batch"), site_nodes=4), replace(request, cluster_nodes=8)))
    few = price_of(exclusion("x"), request)
    assert "has 8 jobs of 0 days, and 100 of 14 days are needed; --set log=FILE reads" in str(few)


@pytest.mark.long
def test_slurms_accounting_where_the_store_has_no_jobs(tmp_path: Path) -> None:
    fields = ("JobIDRaw", "Partition", "State", "Submit", "Eligible", "Start", "End", "TimelimitRaw", "NNodes")
    saved(tmp_path / "rows", *weekly(), columns=fields, delimiter="\x1f")
    (tmp_path / "sacct").write_text(f"#!/bin/sh\ncat {tmp_path}/rows\n")
    (tmp_path / "sacct").chmod(0o755)
    slurm = Slurm(environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    request = PriceRequest(Store.create(tmp_path / "S"))
    assert check(price_of(exclusion("batch,debug", slurm), request)).source == "Slurm's accounting"
    (tmp_path / "sacct").write_text("#!/bin/sh\necho 'sacct: error: no such host' >&2; exit 1\n")
    unknown = str(price_of(exclusion("batch", slurm), request))
    assert unknown.startswith(f"not known, because the table jobs of {tmp_path}/S has no jobs, and Slurm's accounting ")
