"""The figures of a replay show what happened, and stay light."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.replay.findings import gains
from whorl.analysis.replay.jobs import Job, Trace
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.outcome import Outcome
from whorl.analysis.replay.policies import POLICIES
from whorl.analysis.replay.setting import ReplaySetting
from whorl.analysis.replay.study import BASELINES, General, Replayed
from whorl.analysis.replay.world import World
from whorl.dashboards.documents.replay import replay_document
from whorl.dashboards.figures.replay import (
    binned_steps,
    energy_by_kind,
    gain_by_seed,
    gantt,
    jct_against,
    jct_distribution,
    load_over_time,
    queue_over_time,
)
from whorl.dashboards.html import page
from whorl.dashboards.style import line_of

H = 3600.0


class Two:
    """Two nodes of two GPUs, the last GPU slow, a little more so with every seed."""

    def draw(self, seed: int) -> World:
        return World.regular(2, 2, {"w": [1.0, 1.0, 1.0, 2.0 + 0.1 * seed]}, locality=1.5)


TRACE = Trace(
    "t", (Job("a", 0.0, 2, H, "w"), Job("b", 0.0, 1, H, "w"), Job("c", H / 2, 2, H, "w"), Job("d", H / 2, 1, H, "w"))
)
STUDY = General((TRACE,), Two(), Options())


@pytest.fixture(scope="module")
def results() -> list[Replayed]:
    setting = ReplaySetting(STUDY, ["packed", "drain-outliers", "random"], [], ["fifo"], BASELINES, 0)
    return list(setting.answer(seeds=3, record=True).results)


def test_a_step_function_is_averaged_exactly() -> None:
    steps = binned_steps(
        np.array([1.0, 2.0, 2.0, 5.0]), np.array([4.0, 9.0, 2.0, 0.0]), np.array([0.0, 2.0, 3.0, 4.5, 10.0])
    )
    assert steps == pytest.approx([2.0, 2.0, 2.0, 0.5 * 2 / 5.5])


def test_the_distribution_is_that_of_the_jobs() -> None:
    times = np.exp(np.random.default_rng(1).normal(8, 1, 30_000))
    (line,) = jct_distribution({"pal": times}).data
    assert len(line.x) <= 400
    for share in (10, 50, 99):
        at = np.interp(share, line.y, line.x)
        assert (times <= at).mean() == pytest.approx(share / 100, abs=0.004)


def test_curves_that_coincide_are_told_apart() -> None:
    times = np.exp(np.random.default_rng(1).normal(8, 1, 300))
    near = times.copy()
    near[:30] *= 1.3
    jct = {"packed": times, "weights": near, "pal": times[::-1], "random": 2 * times}
    for figure in (jct_distribution(jct), jct_against(jct, "packed")):
        assert [line.name.replace("<br>", " ") for line in figure.data] == ["packed = pal", "weights", "random"]
        widths = [line.line.width for line in figure.data]
        assert widths == sorted(set(widths), reverse=True)  # what is drawn first shows beside what is drawn on it
        assert "packed = pal" in figure.data[0].hovertemplate
    same, _, twice = jct_against(jct, "packed").data
    assert set(same.y) == {1}
    assert twice.y == pytest.approx([2] * len(twice.y))


def test_lines_over_time_of_policies_that_did_the_same_are_one(results: list[Replayed]) -> None:
    outcomes = {result.case.policy: result.outcome for result in results if result.outcome is not None}
    outcomes["pal"] = outcomes["packed"]
    for figure in (load_over_time(outcomes), queue_over_time(outcomes)):
        assert "packed<br>= pal" in [line.name for line in figure.data]
        assert len(figure.data) < len(outcomes)


def test_lines_over_time_end_with_their_replay(results: list[Replayed]) -> None:
    outcomes = {result.case.policy: result.outcome for result in results if result.outcome is not None}
    assert set(outcomes) == {"packed", "drain-outliers", "random"}
    end = max(outcome.end_s for outcome in outcomes.values())
    for figure, unit in ((load_over_time(outcomes), 4 / 100), (queue_over_time(outcomes), 1.0)):
        for line in figure.data:
            outcome = outcomes[line.name]
            assert np.max(line.x) <= outcome.end_s / H
            width = end / 400
            area = float(np.sum(line.y)) * width * unit
            waiting = float((outcome.start_s - outcome.submit_s).sum())
            expected = outcome.held_gpu_seconds if unit != 1.0 else waiting
            assert area == pytest.approx(expected, abs=4 * width + 1)


def recorded(results: list[Replayed]) -> tuple[Outcome, World]:
    """What packed did in the first seed."""
    done = next(result for result in results if result.case.policy == "packed" and result.outcome is not None)
    assert done.outcome is not None
    assert done.world is not None
    return done.outcome, done.world


def test_the_gantt_shows_every_gpu_second_where_it_fits(results: list[Replayed]) -> None:
    outcome, world = recorded(results)
    figure, until = gantt(outcome, world)
    (bars,) = figure.data
    assert until == outcome.end_s
    assert outcome.spans is not None
    assert float(np.sum(np.asarray(bars.x) * bars.width)) * H == pytest.approx(outcome.held_gpu_seconds, rel=1e-6)
    by_job = {row[0]: row for row in bars.customdata}
    assert set(by_job) == set("abcd")
    # Bars lie on the GPUs that the job held, and are as slow as the slowest of these.
    for place, (name, gpus, slow) in enumerate(bars.customdata):
        span = next(s for s in outcome.spans if outcome.jobs[s.job].name == name)
        lowest = bars.y[place] - bars.width[place] / 2 + 0.5
        assert lowest in span.gpus
        assert gpus == bars.width[place]
        nodes = {gpu // 2 for gpu in span.gpus}
        assert slow == pytest.approx(max(world.rates.scores["w"][list(span.gpus)]) * (1.5 if len(nodes) > 1 else 1))


def test_the_gantt_is_cut_at_a_time_and_says_which(results: list[Replayed]) -> None:
    outcome, _ = recorded(results)
    figure, until = gantt(outcome, None, 2)
    (bars,) = figure.data
    assert len(bars.x) <= 2
    assert 0 < until < outcome.end_s
    ends = (np.asarray(bars.base) + np.asarray(bars.x)) * H
    assert ends.max() <= until * (1 + 1e-6)


def test_gains_are_drawn_seed_by_seed_with_their_interval(results: list[Replayed]) -> None:
    of_policy = gains(results, ["packed"], ["avg_jct_s"])
    figure = gain_by_seed(of_policy)
    assert figure.layout.yaxis.automargin, "names of policies are not cut"
    for gain, points, mean in zip(of_policy, figure.data[::2], figure.data[1::2], strict=True):
        assert list(zip(points.customdata, points.x, strict=True)) == list(gain.per_seed)
        assert points.mode == mean.mode == "markers"  # seeds have no order: no line joins them
        assert mean.x[0] == gain.mean_pct
        assert mean.x[0] + mean.error_x.array[0] == pytest.approx(gain.upper_pct)
        assert mean.x[0] - mean.error_x.arrayminus[0] == pytest.approx(gain.lower_pct)
        assert points.marker.color == mean.marker.color == line_of([gain.policy])[gain.policy][0]
        row = list(figure.layout.yaxis.ticktext).index(gain.policy)
        assert mean.y[0] == figure.layout.yaxis.tickvals[row]
        assert np.abs(np.asarray(points.y) - mean.y[0]).max() < 0.5  # in its own row


def test_every_policy_has_a_look_of_its_own() -> None:
    styles = line_of(policy.name for policy in POLICIES)
    assert len(set(styles.values())) == len(POLICIES)
    assert set(line_of(["pal", "mine", "yours"]).values()) > {styles["pal"]}
    assert len(set(line_of(["mine", "yours", "pal"]).values())) == 3


def test_the_page_says_what_was_found() -> None:
    setting = ReplaySetting(
        STUDY, ["random"], ["packed", "drain-outliers"], ["fifo"], BASELINES, 0, conditions={"x": "y"}
    )
    answered = setting.answer(seeds=3, record=True)
    text = page(replay_document(answered, charts=True))
    assert len(text.encode()) < 2_500_000
    assert "n = 4 jobs x 3 seeds" in text
    assert "Only the first" not in text
    gains = [gain for finding in answered.findings for gain in finding.gains]
    best = next(gain for gain in gains if (gain.policy, gain.against) == ("packed", "drain-outliers"))
    assert f">{best.as_text()}</td>" in text
    assert "job completion time (JCT), end - submission: the mean" in text
    assert "Finish-time fairness of the jobs" in text
    alone = page(replay_document(setting.answer(record=True), charts=True))
    assert "one seed, which is not evidence" in alone
    assert "One seed is not evidence and has no interval." in alone
    assert ">seed 0</th>" in alone
    assert "1 seeds" not in alone


def test_energy_is_drawn_by_what_drew_it() -> None:
    figure = energy_by_kind(
        {"jobs_kwh": {"a": 2.0, "b": None}, "idle_kwh": {"a": 1.0, "b": 3.0}, "base_kwh": {"a": None}}
    )
    assert [(bar.name, list(bar.x)) for bar in figure.data] == [("jobs", [2.0, 0.0]), ("idle GPUs", [1.0, 3.0])]
