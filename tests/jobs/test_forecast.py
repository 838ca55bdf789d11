"""What a chain is told to do, and what it would have cost."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.chains.jobs_log import FloatArray, JobsLog
from whorl.analysis.chains.policy import LeadPolicy
from whorl.errors import InputError
from whorl.jobs.forecast import Forecaster, JobShape, price_of
from whorl.jobs.slurm import Slurm, limit_seconds

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


def test_the_cost_of_overlap_picks_the_quantile_of_least_cost() -> None:
    assert LeadPolicy.of_cost(0.5).quantile == pytest.approx(2 / 3)
    assert LeadPolicy.parse("lead6").lead_s == 6 * HOUR_S
    with pytest.raises(InputError, match="no policy 'p'"):
        LeadPolicy.parse("p")
    waits_s = np.asarray(np.random.default_rng(1).exponential(4 * HOUR_S, 4000), dtype=np.float64)
    log = _log(waits_s)
    cost = {}
    for quantile in (0.3, 0.5, 0.6, 2 / 3, 0.75, 0.9):
        price = price_of(log, float(np.quantile(waits_s, quantile)))
        cost[quantile] = price.interruption_h[0] + 0.5 * price.overlap_h[0]
    assert min(cost, key=lambda quantile: cost[quantile]) == 2 / 3


def test_a_price_has_means_and_an_interval_where_there_are_days_enough() -> None:
    price = price_of(_log(np.array([0.0, 2, 4, 6, 8, 10]) * HOUR_S), 3 * HOUR_S)
    assert [figure[0] for figure in (price.interruption_h, price.overlap_h, price.reactive_h)] == [16 / 6, 4 / 6, 5]
    low_h, high_h = price.reactive_h[1:]
    assert low_h is not None
    assert high_h is not None
    assert low_h < 5 < high_h
    few = price_of(_log(np.array([0.0, 2.0]) * HOUR_S), 0.0)
    assert (few.n, few.reactive_h) == (2, (1.0, None, None))


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


def _log(waits_s: FloatArray) -> JobsLog:
    """A job a day of one node with these waits."""
    submit_s = 86_400.0 * np.arange(len(waits_s), dtype=np.float64)
    start_s = submit_s + waits_s
    limit_s, nodes = np.full(len(waits_s), HOUR_S, dtype=np.float64), np.ones(len(waits_s), dtype=np.int64)
    return JobsLog(submit_s, start_s, start_s + HOUR_S, limit_s, nodes, "a test")
