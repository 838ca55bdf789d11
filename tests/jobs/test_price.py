"""Where the price of an exclusion comes from: the store's jobs, else Slurm's accounting."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner

from whorl.analysis.placement import Gain
from whorl.cli import cli
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
    assert (price.jobs, price.cluster_nodes, price.job_nodes, price.run_time_h) == (104, 8, 1, 8.0)
    assert (price.added_wait_h, price.gain_h, price.gain_low_h, price.pays_from_h) == (1.0, 1.6, 1.2, 5.0)
    return price


def test_the_jobs_of_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "S")
    rows = [*weekly(), *(row | {"JobID": f"9{row['JobID']}", "JobIDRaw": f"9{row['JobID']}"} for row in weekly(1, "x"))]
    done = CliRunner().invoke(
        cli, ["jobs", "import", "--store", path, "--file", str(saved(tmp_path / "jobs", *rows, delimiter="|"))]
    )
    assert done.exit_code == 0, done.output
    request = PriceRequest(Store.open(path))
    assert check(price_of(exclusion("batch"), request)).source == f"the table jobs of {path}"
    few = price_of(exclusion("x"), request)
    assert "has 8 jobs of 0 days, and 100 of 14 days are needed; --log FILE reads" in str(few)


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
