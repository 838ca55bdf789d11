"""Paired differences over seeds, and what makes a policy better, with other jobs in each seed."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.replay import POLICIES, Job, Trace, World, replay
from whorl.analysis.replay.findings import ALL, GainTable, PolicyFinding, findings, foretold, gains, interval
from whorl.analysis.replay.from_store import EqualFleets
from whorl.analysis.replay.jobs import resampled
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.setting import ReplaySetting
from whorl.analysis.replay.study import Case, General, Replayed
from whorl.analysis.replay.world import Advised
from whorl.tests.analysis.replay.making import advised_by
from whorl.tests.analysis.replay.studies import Lottery
from whorl.tests.sizes import sample

JOBS = tuple(Job(f"j{i}", 10.0 * i, 1 + i % 3, 100.0 + 7 * i, "w") for i in range(12))
TRACES = (Trace("t", JOBS), Trace("u", JOBS[::-1]))
BASELINES = ("packed", "drain-outliers")
DONE = General((Trace("t", tuple(replace(job, workload="") for job in JOBS)),), EqualFleets(4, 2), Options()).run(
    Case(0, "packed", "fifo", 0)
)


def results(*rows: tuple[str, bool, float, float], traces: int = 1) -> list[Replayed]:
    """Results with these averages in seeds 0 and 1: (policy, without scores, one, the other)."""
    return [
        replace(
            DONE,
            trace=TRACES[trace].name,
            case=Case(trace, policy, "fifo", seed, resampled=seed > 0, flat=flat),
            metrics=replace(DONE.metrics, avg_jct_s=average),
        )
        for trace in range(traces)
        for policy, flat, *averages in rows
        for seed, average in enumerate(averages)
    ]


def result(policy: str, seed: int, jct: float, scheduler: str = "fifo") -> Replayed:
    """A result as a replay gives it, with another average."""
    case = Case(0, policy, scheduler, seed)
    return replace(DONE, case=case, metrics=replace(DONE.metrics, avg_jct_s=jct))


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(2000):
        lower, upper = interval(rng.normal(3.0, 2.0, size=5).tolist())
        assert lower is not None
        assert upper is not None
        held += lower <= 3.0 <= upper
    assert 0.88 < held / 2000 < 0.92


def test_rounding_errors_are_no_gain() -> None:
    """Seeds that all differ by the same last bits leave an interval without 0, and nobody would see a gain."""
    for least, measurable in ((1 - 1e-12, False), (0.9996, False), (0.999, True), (1.001, True)):
        results = [result(name, s, jct) for s in (0, 1, 2) for name, jct in (("packed", 100.0), ("pal", 100 * least))]
        by_policy = {gain.policy: gain for gain in gains(results, ["packed"], ["avg_jct_s"])}
        assert by_policy["pal"].measurable is measurable, least


@pytest.mark.long(short=1)
@pytest.mark.parametrize("n", [6, 19])
@pytest.mark.parametrize("skewed", [False, True])
def test_the_interval_foretold_holds_one_more_value_as_often_as_it_says(n: int, skewed: bool) -> None:
    """From 19 values on whatever their distribution; with fewer, of normal ones."""
    rng = np.random.default_rng(5)
    drawn = rng.normal(3.0, 2.0, size=(3000, n + 1))
    below = above = 0
    for row in (np.exp(drawn) if skewed else drawn).tolist():
        lower, upper = foretold(row[:-1])
        assert lower is not None
        assert upper is not None
        below, above = below + (row[-1] < lower), above + (row[-1] > upper)
    if n >= 19 or not skewed:
        assert 0.035 < below / 3000 < 0.065
        assert 0.035 < above / 3000 < 0.065
    assert foretold([1.0]) == (None, None)


def found(with_scores: tuple[float, float], control: tuple[float, float] | None) -> PolicyFinding:
    baselines = (("packed", False, 100.0, 102.0), ("drain-outliers", False, 120.0, 121.0))
    rows = [("pal", False, *with_scores), *baselines, *([("pal", True, *control)] if control else [])]
    return findings(results(*rows), BASELINES, ["pal"] if control else [])[0]


def test_better_is_better_than_every_baseline_and_than_itself_without_scores() -> None:
    fast, middling = (80.0, 81.6), (90.0, 91.8)
    assert found(fast, middling).finding == "better"
    assert found(fast, fast).finding == "no gain by scores"
    assert found(middling, fast).finding == "no gain by scores"
    assert found(fast, None).finding == "no gain by scores"  # it looks at none
    assert found((90.0, 110.0), (200.0, 244.0)).finding == "no measurable gain"
    assert found((110.0, 112.2), (200.0, 204.0)).finding == "worse"
    assert [gain.against for gain in found(fast, middling).gains] == [*BASELINES, "pal without scores"]
    rows = [(name, False, 100.0, 101.0) for name in ("packed", "drain-outliers", "pal")]
    heads = GainTable.of(findings(results(*rows), BASELINES, [])).heads
    assert heads == ["over packed", "over drain-outliers", "over itself without scores"]


def test_several_traces_are_averaged_seed_by_seed() -> None:
    """One trace gains where the other loses, in every seed: over both there is nothing to find."""
    rows = [*results(("packed", False, 100.0, 100.0), ("random", False, 50.0, 50.0), traces=2)]
    rows = [
        replace(row, metrics=replace(row.metrics, avg_jct_s=200.0))
        if (row.case.policy, row.case.trace) == ("random", 1)
        else row
        for row in rows
    ]
    by_trace = {finding.trace: finding for finding in findings(rows, ("packed",), []) if finding.policy == "random"}
    assert {name: finding_of_trace.gains[0].mean_pct for name, finding_of_trace in by_trace.items()} == pytest.approx(
        {"t": 50, "u": -100, ALL: 0}
    )
    assert by_trace["u"].finding == "worse"
    assert by_trace[ALL].finding == "no measurable gain"
    assert {finding.trace for finding in findings(results(("packed", False, 1.0, 1.0)), (), [])} == {"t"}


class Recording(General):
    """It notes what it runs."""

    ran: ClassVar[list[Case]] = []

    def run(self, case: Case) -> Replayed:
        self.ran.append(case)
        return super().run(case)


def test_every_seed_but_the_first_has_other_jobs_and_controls_have_the_same() -> None:
    study = Recording(TRACES, Lottery(), Options())
    ReplaySetting(study, ["packed", "pal-sticky"], [], ["fifo"], ("packed",), 7).answer(seeds=2)
    checks = [case for case in study.ran if case.resampled or case.flat]
    assert {(case.seed, case.resampled) for case in checks} == {(7, False), (8, True)}
    assert {case.policy for case in checks if case.flat} == {"pal-sticky"}
    assert {case.policy for case in checks if case.resampled and not case.flat} == {"packed", "pal-sticky"}
    plain = General(TRACES[:1], Lottery(), Options())
    case_alone = plain.run(Case(0, "packed", "fifo", 8, resampled=True))
    assert (
        plain.run(Case(0, "packed", "fifo", 8, resampled=True, flat=True)).jct_s.tolist() == case_alone.jct_s.tolist()
    )
    assert case_alone.jct_s.tolist() != plain.run(Case(0, "packed", "fifo", 8)).jct_s.tolist()
    assert plain.informed([8])
    assert not General(TRACES[:1], EqualFleets(4, 2), Options()).informed([8])


class FirstIsSlow(Advised):
    """Advice against the first of six nodes."""

    def __init__(self) -> None:
        self.weights = np.array([2, 0, 0, 0, 0, 0], dtype=np.int32)

    def barred(self, workload: str, gpus: int) -> NDArray[np.bool_]:
        return self.weights > 0


def test_policies_that_are_said_to_look_at_no_scores_look_at_none() -> None:
    """And the others do: their controls choose otherwise on some fleet."""
    blind = {policy.name for policy in POLICIES if policy.blind}
    assert {"packed", "packed-nonsticky", "random", "random-nonsticky"} <= blind
    changed = set()
    for seed in range(3):
        scores = 1 + np.random.default_rng(seed).exponential(0.3, 24)
        scores[5] = 9.0
        world = advised_by(World.regular(6, 4, {"w": scores}), FirstIsSlow())
        for policy in POLICIES:
            informed, flat = (
                replay(TRACES[0], either_world, policy).finish_s.tolist() for either_world in (world, world.flat())
            )
            if informed != flat:
                changed.add(policy.name)
    assert changed == {policy.name for policy in POLICIES} - blind - {"clocks"}  # which change energy, and no time


@pytest.mark.parametrize("n", [1, 2, 3, 12, 160])
def test_a_resampled_trace_is_made_of_neighbouring_jobs(n: int) -> None:
    rng = np.random.default_rng(n)
    times = np.cumsum(rng.exponential(100.0, n)) + 500
    trace = Trace("t", tuple(Job(f"j{i}", float(t), 1 + i % 4, 10.0 + i) for i, t in enumerate(times)), ("a note",))
    for seed in sample(range(20), short=5):
        drawn = resampled(trace, np.random.default_rng(seed))
        assert (len(drawn.jobs), drawn.name, drawn.notes) == (n, "t", ("a note",))
        assert len({job.name for job in drawn.jobs}) == n
        assert drawn.jobs[0].submit_s == trace.jobs[0].submit_s
        assert drawn == resampled(trace, np.random.default_rng(seed))
        # Which job each was is its length; within a block the next is the next, as long after it as in the trace.
        places = [round(job.ideal_s - 10) for job in drawn.jobs]
        follows = 0
        for number in range(1, n):
            gap = drawn.jobs[number].submit_s - drawn.jobs[number - 1].submit_s
            place = places[number]
            assert gap >= 0
            if place:
                assert gap == pytest.approx(times[place] - times[place - 1])
            follows += place == (places[number - 1] + 1) % n
        assert follows >= n - 1 - n / np.ceil(np.sqrt(n))
