"""Straggler-matched clocks: the step stays as long, and takes less energy."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.replay import Allocation, Beliefs, Fleet, Job, Power, Rates, Request, Trace, World, replay
from whorl.analysis.replay.policies.placements import matched
from whorl.analysis.replay.power import ANY

SCORES = np.array([0.95, 1.0, 1.05, 1.0])
JOB = Request(0, "j0", 0.0, 4, "train")


def rates(spread: float = 1.0, gain: float = 1.0) -> Rates:
    """The scores 5 % apart, times a spread."""
    power = Power({ANY: np.full(4, 250.0)}, idle_w=50.0)
    scores = {"train": 1 + spread * (SCORES - 1)}
    return Rates(Fleet.regular(1, 4), scores, clock_gain={"train": gain}, power=power)


@pytest.mark.parametrize("gain", [1.0, 0.5, 0.2])
def test_the_step_is_as_long_and_its_energy_falls_with_the_spread_of_scores(gain: float) -> None:
    saved = []
    for spread in (0.0, 0.1, 0.5, 1.0, 2.0):
        truth = rates(spread, gain)
        plain = Allocation((0, 1, 2, 3))
        slowed = Allocation((0, 1, 2, 3), clocks=matched(Beliefs(truth), JOB, (0, 1, 2, 3)))
        assert truth.speed(JOB, None, slowed) == pytest.approx(truth.speed(JOB, None, plain), rel=1e-12)
        saved.append(1 - truth.draw(JOB, None, slowed).work_w / truth.draw(JOB, None, plain).work_w)
    assert saved[0] == 0
    assert saved == sorted(set(saved))


def test_in_a_replay_all_jobs_end_as_under_packed_and_take_less_energy() -> None:
    jobs = tuple(Job(f"j{n}", 100.0 * n, 1 + n % 4, 900.0, "train") for n in range(12))
    packed, slowed, blind = (
        replay(Trace("made", jobs), world, policy)
        for world, policy in (
            (World(rates(), Beliefs(rates())), "packed"),
            (World(rates(), Beliefs(rates())), "clocks"),
            (World(rates(), Beliefs(rates()).flat()), "clocks"),
        )
    )
    assert slowed.finish_s == pytest.approx(packed.finish_s, rel=1e-12)
    assert slowed.energy_j.sum() < packed.energy_j.sum()
    assert blind.energy_j.tolist() == packed.energy_j.tolist()
