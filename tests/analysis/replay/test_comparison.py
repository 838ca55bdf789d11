"""Paired differences over seeds, and the running of many replays in one process or several."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy

from whorl.analysis.replay.comparison import foretold, gains, interval
from whorl.analysis.replay.failures import Failure
from whorl.analysis.replay.fleet import Fleet
from whorl.analysis.replay.from_store import Level
from whorl.analysis.replay.job import Job, Trace
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.policies import POLICIES, Policy
from whorl.analysis.replay.study import Case, General, Replayed, cases, read_failures, run_all
from whorl.errors import InputError
from whorl.tests.analysis.replay.asked import Lottery

TRACE = Trace("t", tuple(Job(f"j{i}", 10.0 * i, 1 + i % 3, 100.0 + 7 * i) for i in range(12)))
STUDY = General((TRACE,), Level(4, 2), Options())


def result(policy: str, seed: int, jct: float, scheduler: str = "fifo") -> Replayed:
    """A result as a replay gives it, with another average."""
    done = STUDY.run(Case(0, policy, scheduler, seed))
    return replace(done, metrics=replace(done.metrics, avg_jct_s=jct))


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(2000):
        lower, upper = interval(rng.normal(3.0, 2.0, size=5).tolist())
        assert lower is not None
        assert upper is not None
        held += lower <= 3.0 <= upper
    assert 0.88 < held / 2000 < 0.92


def test_a_gain_is_paired_by_seed() -> None:
    """The seeds differ tenfold and the policy is always a tenth faster: the gain is sure."""
    results = [
        result(name, seed, scale * 10.0**seed) for seed in (1, 2, 3) for name, scale in (("packed", 1), ("pal", 0.9))
    ]
    (gain,) = (one for one in gains(results, ["packed"], ["avg_jct_s"]) if one.policy == "pal")
    assert (gain.n, gain.against, gain.measurable) == (3, "packed", True)
    assert gain.mean_pct == pytest.approx(10.0)
    assert gain.lower_pct == pytest.approx(10.0)
    assert [seed for seed, _ in gain.per_seed] == [1, 2, 3]
    assert [value for _, value in gain.per_seed] == pytest.approx([10.0] * 3)


def test_twice_as_fast_and_half_as_fast_cancel() -> None:
    results = [result("packed", seed, 100.0) for seed in (0, 1)] + [result("pal", 0, 50.0), result("pal", 1, 200.0)]
    (gain,) = gains(results, ["packed"], ["avg_jct_s"])
    assert gain.mean_pct == pytest.approx(0.0, abs=1e-9)
    assert not gain.measurable
    assert gain.lower_pct is not None
    assert gain.upper_pct is not None
    assert gain.lower_pct < 0 < gain.upper_pct
    half = scipy.special.stdtrit(1, 0.95) * math.log(2) * math.sqrt(2) / math.sqrt(2)
    assert gain.upper_pct == pytest.approx(100 * (1 - math.exp(-half)))


def test_rounding_errors_are_no_gain() -> None:
    """Seeds that all differ by the same last bits leave an interval without 0, and nobody would see a gain."""
    for least, measurable in ((1 - 1e-12, False), (0.9996, False), (0.999, True), (1.001, True)):
        results = [result(name, s, jct) for s in (0, 1, 2) for name, jct in (("packed", 100.0), ("pal", 100 * least))]
        found = {gain.policy: gain for gain in gains(results, ["packed"], ["avg_jct_s"])}
        assert found["pal"].measurable is measurable, least


def test_one_seed_has_no_interval_and_proves_nothing() -> None:
    (gain,) = gains([result("packed", 0, 100.0), result("pal", 0, 10.0)], ["packed"], ["avg_jct_s"])
    assert (gain.lower_pct, gain.upper_pct, gain.measurable) == (None, None, False)


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


def test_schedulers_are_compared_each_for_itself() -> None:
    results = [result(name, 0, jct, s) for s, jct in (("fifo", 1.0), ("srtf", 2.0)) for name in ("packed", "pal")]
    found = gains(results, ["packed", "drain-outliers"], ["avg_jct_s"])
    assert [(gain.scheduler, gain.policy, gain.mean_pct) for gain in found] == [("fifo", "pal", 0), ("srtf", "pal", 0)]


@pytest.mark.long
def test_the_answer_does_not_depend_on_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))  # the processes import Lottery from here
    jobs = tuple(replace(job, workload="w") for job in TRACE.jobs)
    study = General((Trace("t", jobs),), Lottery(), Options(), mtbf_h=0.5, repair_h=0.1)
    wanted = cases(1, ["packed", "random", "pal-sticky"], ["fifo", "srtf"], [3, 4], record=True)
    alone, _ = run_all(study, wanted)
    monkeypatch.setattr("whorl.analysis.replay.study._PAYS_S", 0.0)
    seen: list[tuple[int, int]] = []
    together, refused = run_all(study, wanted, workers=2, progress=lambda done, of: seen.append((done, of)))
    assert [one.case for one in together] == wanted
    assert refused == []
    for one, other in zip(alone, together, strict=True):
        assert one.metrics == other.metrics
        assert np.array_equal(one.jct_s, other.jct_s)
        assert (one.outcome is not None) == (one.case.seed == 3)
    assert seen == [(done, 12) for done in range(1, 13)]
    by_seed = {one.case.seed: one.metrics.avg_jct_s for one in alone if one.case.policy == "packed"}
    assert by_seed[3] != by_seed[4]


def test_policies_of_a_seed_meet_the_same_failures() -> None:
    study = General((TRACE,), Level(4, 2), Options(), mtbf_h=0.02, repair_h=0.02)
    one, again, other = (study.run(Case(0, "packed", "fifo", seed)) for seed in (1, 1, 2))
    assert one.metrics == again.metrics
    assert one.metrics.restarts > 0
    assert one.metrics != other.metrics


def test_a_case_that_cannot_be_replayed_costs_no_other() -> None:
    wanted = [Case(0, "packed", "fifo", 0), Case(0, "no-such", "fifo", 0), Case(0, "packed", "fifo", 1)]
    found, refused = run_all(STUDY, wanted)
    assert [one.case.seed for one in found] == [0, 1]
    ((case, error),) = refused
    assert case is wanted[1]
    assert isinstance(error, InputError)
    assert "no policy is named 'no-such'" in str(error)


def test_failures_are_read_by_the_names_of_nodes(tmp_path: Path) -> None:
    names = Fleet.regular(3, 2).node_names
    path = tmp_path / "failures.csv"
    path.write_text("node,down_s,up_s\nN2,5,10\n0,7,\n")
    found = read_failures(path, names)
    assert [(one.node, one.down_s, one.up_s) for one in found] == [("n2", 5.0, 10.0), ("n0", 7.0, math.inf)]
    unknown = "no node of the fleet is named 'n9'; there are n0, n1, n2"
    for row, sentence in (
        ("n9,1,2", unknown),
        ("n1,5,5", "up_s must be the later one"),
        ("n1,-1,5", "at least 0"),
        ("n1,1700000000,1700000009", "a time since 1970: write seconds after the trace's first job"),
    ):
        path.write_text(f"node,down_s,up_s\n{row}\n")
        with pytest.raises(InputError, match=f"line 2: .*{sentence}"):
            read_failures(path, names)
    path.write_text("node,down_s\nn1,5\n")
    with pytest.raises(InputError, match=r"no column up_s; it has node, down_s\. Add what is missing"):
        read_failures(path, names)


class OneFarOff:
    """A fleet of 16 GPUs, one of which is an outlier."""

    def draw(self, seed: int) -> Fleet:
        return Fleet.regular(4, 4, {"A": [3.0, *[1.0] * 15]})


def test_a_job_that_never_fits_costs_no_other_trace_and_no_other_policy() -> None:
    """The sentence names trace and job, and the policy where that is why."""
    too_wide = Trace("wide", (Job("vast", 0, 17, 10, "A"),))
    two_too_wide = Trace("nearly", (Job("all", 0, 16, 10, "A"),))
    study = General((too_wide, TRACE, two_too_wide), OneFarOff(), Options(failures=(Failure("n0", 1, math.inf),)))
    found, refused = run_all(study, cases(3, ["packed", "drain-outliers"], ["fifo"], [0]))
    assert [(one.trace, one.case.policy) for one in found] == [("t", "packed"), ("t", "drain-outliers")]
    errors = list(dict.fromkeys(str(error) for _, error in refused))
    for error, fragments in zip(
        errors,
        [("wide: job vast", "17 GPUs"), ("nearly: job all", "policy packed"), ("nearly: job all", "drain-outliers")],
        strict=True,
    ):
        assert all(fragment in error for fragment in fragments), error


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (Policy("bad", "", place=lambda view, job: [0] * job.gpus), "job j1 the GPU 0 twice"),
        (Policy("bad", "", place=lambda view, job: range(job.gpus)), "job j1 the GPU 0, which another job holds"),
        (Policy("bad", "", decide=lambda view: [0]), "dict"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_policy_that_answers_what_cannot_be_costs_no_other(
    policy: Policy, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.analysis.replay.policies.POLICIES", (*POLICIES, policy))
    found, refused = run_all(STUDY, cases(1, ["packed", "bad", "pal"], ["fifo"], [0, 1]))
    assert [one.case.policy for one in found] == ["packed", "pal"] * 2
    for _, error in refused:
        assert str(error).startswith("t: the policy bad ")
        assert sentence in str(error)
