"""What makes a policy better: gains over the baselines and over itself without scores, with other jobs in each seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.replay import POLICIES, Fleet, Job, Trace, replay
from whorl.analysis.replay.advised import Advised
from whorl.analysis.replay.findings import ALL, Finding, columns, findings, without_scores
from whorl.analysis.replay.from_store import Level
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.resampling import resampled
from whorl.analysis.replay.study import Case, General, Replayed, controls
from whorl.tests.analysis.replay.asked import Lottery
from whorl.tests.sizes import sample

JOBS = tuple(Job(f"j{i}", 10.0 * i, 1 + i % 3, 100.0 + 7 * i, "w") for i in range(12))
TRACES = (Trace("t", JOBS), Trace("u", JOBS[::-1]))
BASELINES = ("packed", "drain-outliers")
DONE = General((Trace("t", tuple(replace(job, workload="") for job in JOBS)),), Level(4, 2), Options()).run(
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


def found(own: tuple[float, float], control: tuple[float, float] | None) -> Finding:
    baselines = (("packed", False, 100.0, 102.0), ("drain-outliers", False, 120.0, 121.0))
    rows = [("pal", False, *own), *baselines, *([("pal", True, *control)] if control else [])]
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
    heads = columns(findings(results(*rows), BASELINES, []))
    assert heads == ["over packed", "over drain-outliers", "over itself without scores"]


def test_what_cannot_be_compared_is_not_better() -> None:
    rows = (("packed", False, 100.0, 102.0), ("drain-outliers", False, 120.0, 121.0), ("pal", False, 80.0, 81.6))
    lost = next(one for one in findings(results(*rows), BASELINES, ["pal"]) if one.policy == "pal")
    assert lost.finding == "n/a"
    single = [one for one in results(*rows) if one.case.seed == 0]
    alone = next(one for one in findings(single, BASELINES, []) if one.policy == "pal")
    assert alone.finding == "one seed is not evidence"
    assert alone.gains[0].lower_pct is None


def test_several_traces_are_averaged_seed_by_seed() -> None:
    """One trace gains where the other loses, in every seed: over both there is nothing to find."""
    rows = [*results(("packed", False, 100.0, 100.0), ("random", False, 50.0, 50.0), traces=2)]
    rows = [
        replace(one, metrics=replace(one.metrics, avg_jct_s=200.0))
        if (one.case.policy, one.case.trace) == ("random", 1)
        else one
        for one in rows
    ]
    by_trace = {one.trace: one for one in findings(rows, ("packed",), []) if one.policy == "random"}
    assert {name: one.gains[0].mean_pct for name, one in by_trace.items()} == pytest.approx(
        {"t": 50, "u": -100, ALL: 0}
    )
    assert by_trace["u"].finding == "worse"
    assert by_trace[ALL].finding == "no measurable gain"
    assert {one.trace for one in findings(results(("packed", False, 1.0, 1.0)), (), [])} == {"t"}


def test_every_seed_but_the_first_has_other_jobs_and_controls_have_the_same() -> None:
    wanted = controls(2, ["packed", "pal"], ["pal"], ["fifo"], [7, 8])
    assert {(case.seed, case.resampled) for case in wanted} == {(7, False), (8, True)}
    assert {case.policy for case in wanted if case.flat} == {"pal"}
    assert {case.policy for case in wanted if case.resampled and not case.flat} == {"packed", "pal"}
    study = General(TRACES[:1], Lottery(), Options())
    own = study.run(Case(0, "packed", "fifo", 8, resampled=True))
    assert study.run(Case(0, "packed", "fifo", 8, resampled=True, flat=True)).jct_s.tolist() == own.jct_s.tolist()
    assert own.jct_s.tolist() != study.run(Case(0, "packed", "fifo", 8)).jct_s.tolist()
    assert study.informed([8])
    assert not General(TRACES[:1], Level(4, 2), Options()).informed([8])


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
        fleet = replace(Fleet.regular(6, 4, {"w": scores}), advised=FirstIsSlow())
        for policy in POLICIES:
            known, flat = (replay(TRACES[0], one, policy).finish_s.tolist() for one in (fleet, fleet.flat()))
            if known != flat:
                changed.add(policy.name)
    assert changed == {policy.name for policy in POLICIES} - blind


def test_the_class_that_chooses_first_is_no_news_without_scores() -> None:
    """Without scores jobs choose in the order of the queue, whatever their classes are named."""
    fleet = Fleet.regular(1, 2, {"a": [1.0, 1.1], "b": [1.0, 3.0]}).flat()
    jobs = (Job("first", 0, 1, 10, "b"), Job("second", 0, 1, 10, "a"))
    assert replay(Trace("t", jobs), fleet, "pal").finish_s.tolist() == [10, 11]


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


def test_resampled_traces_are_as_much_work_in_the_mean() -> None:
    trace = TRACES[0]
    rng = np.random.default_rng(1)
    many = [sum(job.gpus * job.ideal_s for job in resampled(trace, rng).jobs) for _ in range(400)]
    assert np.mean(many) == pytest.approx(sum(job.gpus * job.ideal_s for job in trace.jobs), rel=0.03)
    assert np.std(many) > 0
    assert without_scores("pal") == "pal without scores"
