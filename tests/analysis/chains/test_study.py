"""Chains on a log that is replayed without a break: what each policy comes to."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from whorl.analysis.chains.costs import PolicyRow
from whorl.analysis.chains.jobs_log import JobsLog
from whorl.analysis.chains.policy import LeadPolicy
from whorl.analysis.chains.queue import Queue
from whorl.analysis.chains.study import LINK_S, StudyOptions, chain_study
from whorl.errors import InputError
from whorl.tests.analysis.chains.logs import drawn_log, lonestar, needs_lonestar

HOUR_S = 3600.0
DAY_S = 86400.0
UNLEARNED = ("reactive", "lead6", "lead12", "average", "test-only", "known")


def studied(log: JobsLog, policies: tuple[str, ...], days: float, **options: float) -> dict[str, PolicyRow]:
    """The rows of chains that begin in the last so many days that have room for chains, on 16 nodes."""
    test_from_s = float(log.submit_s[-1]) - (5 + days) * DAY_S
    settings = StudyOptions(16, policies=policies, test_from_s=test_from_s, nodes=2, cost=options.get("cost"))
    return {row.policy: row for row in chain_study(log, options=settings)}


def waits_of_reactive(log: JobsLog, first_s: float) -> list[float]:
    """Hours that the second job of a chain waits when it is submitted at the end of the first, written out anew."""
    waits_h = []
    for begin_s in np.arange(first_s // (4 * HOUR_S) * 4 * HOUR_S, log.submit_s[-1] - 5 * DAY_S, 4 * HOUR_S).tolist():
        if begin_s >= first_s:
            queue = Queue(log, 16)
            queue.advance(begin_s)
            end_s = queue.run_until_started(queue.submit(2, LINK_S)) + LINK_S
            queue.advance(end_s)
            waits_h.append((queue.run_until_started(queue.submit(2, LINK_S)) - end_s) / HOUR_S)
    return waits_h


def test_reactive_is_the_wait_and_who_knows_the_wait_has_no_interruption() -> None:
    log = drawn_log(11, 900, load=1.0)
    rows = studied(log, UNLEARNED, days=3)
    waits_h = waits_of_reactive(log, float(log.submit_s[-1]) - 8 * DAY_S)
    assert rows["reactive"].n == len(waits_h) == 18
    assert rows["reactive"].interruption_h == pytest.approx(np.mean(waits_h))
    assert rows["reactive"].interruption_h > 3
    assert rows["reactive"].overlap_h == rows["known"].interruption_h == 0
    assert rows["known"].none_pct == 100
    assert rows["known"].overlap_h < rows["test-only"].overlap_h
    assert rows["lead12"].interruption_h <= rows["lead6"].interruption_h <= rows["reactive"].interruption_h
    assert rows["lead12"].overlap_h >= rows["lead6"].overlap_h
    predicting = {policy for policy, row in rows.items() if row.coverage_pct is not None}
    assert predicting == {"average", "test-only"}


def test_where_nobody_waits_policies_that_predict_tie_with_reactive() -> None:
    log = drawn_log(12, 500, load=0.15)
    rows = studied(log, (*UNLEARNED, "p75"), days=3)
    for policy in ("reactive", "average", "test-only", "known", "p75"):
        assert (rows[policy].interruption_h, rows[policy].overlap_h) == pytest.approx((0, 0), abs=0.05)
    assert rows["lead6"].overlap_h == pytest.approx(6, abs=0.1)


@pytest.mark.long
def test_models_learn_and_their_margins_follow_a_change_of_load() -> None:
    """The load grows two days before the test part: waits are longer than nearly all that the trees learned from."""
    jobs = 1100
    load = np.where(np.arange(jobs) < 0.45 * jobs, 0.7, 1.15)
    log = drawn_log(13, jobs, load=load)
    rows = studied(log, ("reactive", "average", "p50", "p90", "forest"), days=6, cost=0.5)
    reactive, quantile = rows["reactive"], rows["p90"]
    assert reactive.interruption_h > 5
    assert quantile.interruption_h < 0.3 * reactive.interruption_h
    assert quantile.coverage_pct is not None
    assert quantile.coverage_pct >= 75
    assert rows["p50"].interruption_h >= rows["cost"].interruption_h >= quantile.interruption_h
    assert rows["p50"].overlap_h <= rows["cost"].overlap_h <= quantile.overlap_h
    assert rows["forest"].coverage_pct is not None
    assert quantile.overlap_gpu_h(4) == pytest.approx(8 * quantile.overlap_h)


def test_an_hour_of_overlap_picks_the_quantile() -> None:
    """The lead that costs least, tried on drawn waits."""
    waits_h = np.random.default_rng(0).gamma(2, 5, size=4000)
    leads_h = np.linspace(0, 60, 601)[:, None]
    for cost in (0.25, 1.0, 3.0):
        costs = np.maximum(waits_h - leads_h, 0).mean(axis=1) + cost * np.maximum(leads_h - waits_h, 0).mean(axis=1)
        cheapest_h = float(leads_h[costs.argmin(), 0])
        assert np.quantile(waits_h, LeadPolicy.of_cost(cost).quantile or 0.0) == pytest.approx(cheapest_h, abs=0.2)
    with pytest.raises(InputError, match=r"an hour of overlap can weigh 0.01 to 99 hours of interruption, not 0"):
        LeadPolicy.of_cost(0.0)


@pytest.mark.parametrize(
    ("policies", "days", "message"),
    [
        (("p200",), 3, "there is no policy 'p200'"),
        (("cost",), 3, "there is no policy 'cost'"),
        (("reactive",), -6, "no chain begins on 20.* or later and five days before the last job"),
        (("p75",), 13, "waits of chains, and a model needs 500; choose a later --test-from"),
    ],
)
def test_what_cannot_be_studied(policies: tuple[str, ...], days: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        studied(drawn_log(14, 400, load=0.5), policies, days)


@pytest.mark.long
@needs_lonestar
def test_a_real_log() -> None:
    """Lonestar6 in February on 76 nodes, where the second of two jobs waits 6 h; on 72 nodes it waits for a day."""
    test_from_s = datetime(2023, 2, 1, tzinfo=UTC).timestamp()
    policies = ("reactive", "lead6", "lead12", "p75", "p90", "known")
    rows = {
        row.policy: row
        for row in chain_study(lonestar(), options=StudyOptions(76, policies=policies, test_from_s=test_from_s))
    }
    reactive, quantile, short, long = (rows[policy] for policy in ("reactive", "p75", "lead6", "lead12"))
    assert reactive.n == 138
    assert quantile.interruption_h <= 0.5 * reactive.interruption_h
    assert quantile.overlap_h <= 1.7
    slope = (long.overlap_h - short.overlap_h) / (long.interruption_h - short.interruption_h)
    assert quantile.overlap_h < short.overlap_h + slope * (quantile.interruption_h - short.interruption_h)
    assert rows["p90"].coverage_pct is not None
    assert 85 <= rows["p90"].coverage_pct <= 95
    assert rows["known"].interruption_h == 0
