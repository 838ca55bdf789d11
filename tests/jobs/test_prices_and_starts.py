"""When a job starts: the greenest hour, the wait until then, and what an exclusion of nodes costs in waiting."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from whorl import ledger
from whorl.analysis.chains.jobs_log import FloatArray, JobsLog
from whorl.analysis.chains.policy import LeadPolicy
from whorl.analysis.placement import Gain
from whorl.cli import cli
from whorl.errors import InputError
from whorl.jobs import forecast
from whorl.jobs.forecast import Forecaster, JobShape
from whorl.jobs.price import Exclusion, PriceRequest, WaitingPrice, price_of
from whorl.jobs.slurm import Slurm, limit_seconds
from whorl.store import Store
from whorl.tests.checks import not_none
from whorl.tests.jobs.accounts import T0, job, saved
from whorl.tests.without import NODE, run_without

_NOW = datetime(2026, 6, 1, 8, 30, tzinfo=UTC)


def _settings(folder: Path) -> Path:
    hours = [_NOW.replace(minute=0) + timedelta(hours=hour) for hour in range(12)]
    rows = [f"{hour:%Y-%m-%dT%H:%MZ},{100 if hour.hour == 14 else 300}" for hour in hours]
    (folder / "de.csv").write_text("time,g_per_kwh\n" + "\n".join(rows) + "\n")
    (folder / "energy.toml").write_text('zone = "DE"\nintensity = { file = "de.csv", zone = "DE" }\n')
    return folder / "energy.toml"


def test_the_start_with_the_fewest_grams_is_given_in_utc(tmp_path: Path) -> None:
    deadline = (_NOW + timedelta(hours=10)).astimezone()
    start = ledger.greenest_start(_settings(tmp_path), hours=1, watts=500, deadline=deadline, now=_NOW)
    assert start.start_time == datetime(2026, 6, 1, 14, tzinfo=UTC)
    assert (start.g, start.now_g, start.saved_g) == pytest.approx((50, 150, 100))


def test_what_cannot_be_answered_is_one_sentence(tmp_path: Path) -> None:
    path = _settings(tmp_path)
    with pytest.raises(InputError, match="deadline has no time zone"):
        ledger.greenest_start(path, hours=1, watts=500, deadline=datetime(2026, 6, 1, 20), now=_NOW)  # noqa: DTZ001
    with pytest.raises(InputError, match="the job takes 3 h and the deadline is 2 h away"):
        ledger.greenest_start(path, hours=3, watts=500, deadline=_NOW + timedelta(hours=2), now=_NOW)
    with pytest.raises(InputError, match="there is no such file"):
        ledger.greenest_start(tmp_path / "no.toml", hours=1, watts=500, deadline=_NOW + timedelta(hours=2))


def test_a_node_without_the_packages_for_analysis_says_so(tmp_path: Path) -> None:
    code = (
        "import datetime, sys\nfrom whorl import ledger\nfrom whorl.errors import WhorlError\n"
        "later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=9)\n"
        "try:\n    ledger.greenest_start(sys.argv[1], hours=1, watts=1, deadline=later)\n"
        "except WhorlError as error:\n    print(error)"
    )
    done = run_without(NODE, code, _settings(tmp_path))
    sentence = r"the greenest start needs the package (polars|scipy): install whorl with all it needs\n"
    assert re.fullmatch(sentence, done.stdout), done.stderr


# -- forecast ----------------------------------------------------------------------------------------------------------
# What a chain is told to do, and what it would have cost.


HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90", 1.5), ("90:30", 90.5 / 60), ("24:00:00", 24), ("1-12", 36), ("1-12:30", 36.5), ("1-00:00:36", 24.01)],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, hours: float) -> None:
    assert limit_seconds(text) == pytest.approx(hours * HOUR_S)
    assert limit_seconds("UNLIMITED") == limit_seconds("0") == math.inf
    with pytest.raises(InputError, match="no time limit"):
        limit_seconds(f"{text}:x")


def _log(waits_s: FloatArray) -> JobsLog:
    """A job a day of one node with these waits."""
    submit_s = 86_400.0 * np.arange(len(waits_s), dtype=np.float64)
    start_s = submit_s + waits_s
    limit_s, nodes = np.full(len(waits_s), HOUR_S, dtype=np.float64), np.ones(len(waits_s), dtype=np.int64)
    return JobsLog(submit_s, start_s, start_s + HOUR_S, limit_s, nodes, "a test")


def test_a_price_has_means_and_an_interval_where_there_are_several_days() -> None:
    price = forecast.price_of(_log(np.array([0.0, 2, 4, 6, 8, 10]) * HOUR_S), 3 * HOUR_S)
    assert [figure[0] for figure in (price.interruption_h, price.overlap_h, price.reactive_h)] == [16 / 6, 4 / 6, 5]
    low_h, high_h = price.reactive_h[1:]
    assert not_none(low_h) < 5 < not_none(high_h)
    one = forecast.price_of(_log(np.array([2.0]) * HOUR_S), 0.0)
    assert (one.n, one.reactive_h) == (1, (2.0, None, None))


def test_a_short_history_is_read_once_and_says_that_the_average_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sacct knows a job a day later than at first, then does not answer, and the mean wait of two jobs stays."""
    head = "JobIDRaw Partition State Submit Eligible Start End TimelimitRaw NNodes"
    now = int(time.time())
    rows = [f"{n} batch COMPLETED {now - 9000} {now - 9000} {now - 9000 + n * 600} {now} 300 1" for n in (1, 2)]
    fakes = {
        "scontrol": "echo NodeName=n1 State=IDLE Partitions=batch; echo PartitionName=batch Default=YES",
        "squeue": "",
        "sacct": f"echo $* >>{tmp_path}/calls; cat {tmp_path}/rows | tr ' ' '\\037'",
    }
    for name, text in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    clock_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    slurm = Slurm(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    forecaster = Forecaster(slurm, JobShape(1, HOUR_S), LeadPolicy.of_cost(0.5))
    starts = []
    for lines, mean_s in ((rows[:1], 600), (rows, 900)):
        (tmp_path / "rows").write_text("\n".join([head, *lines, ""]))
        (tmp_path / "calls").write_text("")
        forecast = forecaster.ask()
        assert (forecast.basis, forecast.lead_s) == ("average", mean_s)
        assert "a model of the wait needs 500 or more: the mean wait is used" in forecast.notes[0]
        starts.append((tmp_path / "calls").read_text().split("--starttime=")[1][:10])
        clock_s[0] += 90_000.0
    assert starts[0] < starts[1]  # the second time it asks for what came since
    (tmp_path / "sacct").write_text("#!/bin/sh\necho Connection refused >&2; exit 1\n")
    forecast = forecaster.ask()
    assert (forecast.basis, forecast.lead_s) == ("average", 900)
    assert "does not answer" in forecast.notes[0]


# -- price -------------------------------------------------------------------------------------------------------------
# Where the price of an exclusion comes from: the store's jobs, else Slurm's accounting.


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
