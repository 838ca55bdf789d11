"""How fast jobs run, and at what power."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay.fleet import Fleet
from whorl.analysis.replay.jobs import Allocation, Job, Piece
from whorl.analysis.replay.power import ANY, Power
from whorl.analysis.replay.rates import Rates, Tenant
from whorl.analysis.replay.tables import Pairs, read_curves
from whorl.errors import InputError


def work(
    gpus: int = 1,
    workload: str = "",
    model: str = "",
    *,
    stages: tuple[tuple[int, float], ...] = (),
    batch: int | None = None,
) -> Job:
    return Job("j", 0.0, gpus, 100.0, workload, model=model, stages=stages, pieces=(Piece(100.0, batch=batch),))


FLEET = Fleet.regular(2, 4)
SCORES = {"A": np.array([1.0, 1.1, 0.9, 1.2, 1.0, 1.0, 1.0, 2.0])}


def rates(**options: object) -> Rates:
    return Rates(FLEET, SCORES, **options)  # type: ignore[arg-type]


def tenant(job: Job, *gpus: int, clocks: tuple[float, ...] = (), depths: tuple[float, ...] = ()) -> Tenant:
    return Tenant(job, job, Allocation(gpus, clocks=clocks, depths=depths))


def speed(table: Rates, held: Tenant, *others: Tenant) -> float:
    return table.speed(*held, [[guest for guest in others if gpu in guest.allocation.gpus] for gpu in held[2].gpus])


def watts(table: Rates, held: Tenant, *others: Tenant) -> float:
    beside = [[guest for guest in others if gpu in guest.allocation.gpus] for gpu in held.allocation.gpus]
    draw = table.draw(*held, beside)
    assert table.power is not None
    assert draw.idle_w == pytest.approx(sum((table.power.idle_w or 0) / (1 + len(guests)) for guests in beside))
    return draw.work_w


def test_the_slowest_gpu_sets_the_pace_and_nodes_cost_the_penalty() -> None:
    assert speed(rates(), tenant(work(2, "A"), 0, 3)) == 1 / 1.2
    assert speed(rates(), tenant(work(2), 0, 3)) == 1
    assert speed(rates(locality=1.5), tenant(work(2, "A"), 3, 4)) == 1 / (1.2 * 1.5)
    assert speed(rates().flat(), tenant(work(2, "A"), 0, 3)) == 1
    with pytest.raises(InputError, match="no scores of class 'B'"):
        speed(rates(), tenant(work(1, "B"), 0))
    with pytest.raises(InputError, match="3 GPUs and gets 2, and no curve"):
        speed(rates(), tenant(work(3), 0, 1))


def test_a_clock_counts_by_the_gain_of_the_class() -> None:
    slowed = tenant(work(2, "A"), 2, 3, clocks=(0.75, 1.0))
    assert speed(rates(), slowed) == pytest.approx(1 / 1.2)  # 0.9 / 0.75 = 1.2: the step is as long as it was
    assert speed(rates(clock_gain={"A": 0.5}), tenant(work(1, "A"), 0, clocks=(0.64,))) == pytest.approx(0.8)
    assert speed(rates(clock_gain={"A": 0.0}), tenant(work(1, "A"), 0, clocks=(0.5,))) == 1


def test_depths_shorten_the_step() -> None:
    shallow = tenant(work(2, "A"), 2, 3, depths=(1.0, 0.5))
    assert speed(rates(), shallow) == pytest.approx(1 / max(0.9, 1.2 * (1 / 3 + 2 / 3 * 0.5)))
    assert rates().busy(shallow) == pytest.approx([1, 0.8 / 0.9])


def test_each_stage_waits_for_its_own_gpus() -> None:
    burst = tenant(work(4, "A", stages=((4, 0.75), (1, 0.25))), 2, 0, 1, 3)
    assert speed(rates(), burst) == pytest.approx(1 / (0.75 * 1.2 + 0.25 * 0.9))
    assert rates().busy(burst) == pytest.approx([1, 0.8, 0.8, 0.8])


def test_background_gets_the_time_that_a_burst_job_leaves() -> None:
    burst = tenant(work(4, stages=((4, 0.6), (1, 0.4))), 0, 1, 2, 3)
    assert speed(rates(), tenant(work(), 1), burst) == pytest.approx(0.4)
    assert speed(rates(), tenant(work(), 0), burst) == 0
    assert speed(rates(), tenant(work(), 1), burst, tenant(work(), 1)) == pytest.approx(0.2)
    assert speed(rates(), burst, tenant(work(), 1)) == 1
    assert speed(rates(foreground=0.9), burst, tenant(work(), 1)) == pytest.approx(1 / (0.6 / 0.9 + 0.4))
    assert speed(rates(), burst, burst) == pytest.approx(1 / (0.6 * 2 + 0.4 * 2))


PAIRS = Pairs(
    {
        (("x (batch size 8)", 1), ("y", 1)): 0.9,
        (("y", 1), ("x (batch size 8)", 1)): 0.5,
        (("y", 1), ("y", 1)): 0.6,
        (("y", 0), ("z", 0)): 0.0,
        (("z", 0), ("y", 0)): 0.0,
    }
)


def test_jobs_on_one_gpu_keep_the_shares_of_the_table() -> None:
    table = rates(pairs=PAIRS)
    x, y, z = (tenant(work(1, "A", model, batch=8), 3) for model in "xyz")
    assert speed(table, x, y) == pytest.approx(0.9 / 1.2)
    assert speed(table, y, x) == pytest.approx(0.5 / 1.2)
    assert speed(table, y, x, y) == pytest.approx(0.5 * 0.6 / 1.2)
    with pytest.raises(InputError, match=r"how fast x \(batch size 8\) on 1 GPU runs beside x"):
        speed(table, x, x)
    with pytest.raises(InputError, match="do not fit"):
        speed(table, y, z)
    assert [speed(rates(), x, *[y] * others) for others in (1, 3)] == pytest.approx([0.5 / 1.2, 0.25 / 1.2])


def test_a_job_of_several_gpus_waits_for_the_one_that_it_shares() -> None:
    assert speed(rates(), tenant(work(2, "A"), 0, 1), tenant(work(), 0)) == pytest.approx(1 / max(1.0 / 0.5, 1.1))


def power(**options: float) -> Power:
    return Power({"A": np.full(8, 200.0), ANY: np.full(8, 250.0)}, **options)


def test_watts_are_those_above_idle() -> None:
    table = rates(power=power(idle_w=50.0))
    assert watts(table, tenant(work(2, "A"), 0, 1)) == 300
    assert watts(table, tenant(work(2, "B"), 0, 1)) == 400
    assert watts(rates(power=power()), tenant(work(2, "A"), 0, 1)) == 400
    assert math.isnan(rates().draw(*tenant(work(2, "A"), 0, 1)).work_w)
    unknown = Power({"A": np.array([200.0] + [math.nan] * 7)})
    assert watts(rates(power=unknown), tenant(work(1, "A"), 0)) == 200
    assert math.isnan(watts(rates(power=unknown), tenant(work(2, "A"), 0, 1)))
    assert math.isnan(watts(rates(power=unknown), tenant(work(), 0)))
    assert math.isnan(watts(rates(power=Power({}, node_w=700.0)), tenant(work(), 0), tenant(work(), 0)))
    assert watts(rates(power=power(idle_w=50.0, clock_exponent=3.0)), tenant(work(1, "A"), 0, clocks=(0.5,))) == 150 / 8


def test_a_shared_gpu_draws_at_most_its_most() -> None:
    table = rates(power=power(idle_w=50.0))
    light, heavy = tenant(work(1, "A"), 0), tenant(work(), 0)
    assert watts(table, light, heavy) == pytest.approx(200 * 150 / 350)
    assert watts(table, heavy, light) == pytest.approx(200 * 200 / 350)
    capped = rates(power=power(idle_w=50.0, cap_w=150.0))
    assert watts(capped, light) == 100
    assert watts(capped, light, heavy) + watts(capped, heavy, light) == pytest.approx(100)
    burst = tenant(work(4, stages=((4, 0.6), (1, 0.4))), 0, 1, 2, 3)
    assert watts(table, burst) == pytest.approx(200 * (1 + 3 * 0.6))
    assert watts(table, tenant(work(1, "A"), 1), burst) == pytest.approx(150 * 0.4)


def test_impossible_tables_are_refused() -> None:
    for scores in (np.ones(3), np.zeros(8), np.full(8, math.nan)):
        with pytest.raises(InputError):
            Rates(FLEET, {"A": scores})
    for options in ({"locality": 0.5}, {"backward": 0.0}, {"foreground": 1.5}, {"power": Power({"A": np.ones(3)})}):
        with pytest.raises(InputError):
            rates(**options)
    for bad in ({"idle_w": -1.0}, {"wake_s": math.inf}, {"sleep_after_s": math.nan}, {"idle_w": 220.0}):
        with pytest.raises(InputError):
            power(**bad)


def test_a_job_with_a_curve_may_change_its_width(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    rows = ("n,1,1,1,8,1.0,0", "n,1,1,1,16,2.0,0", "n,11,2,2,8,1.25,0.25")
    steps.write_text("\n".join(("application,placement,nodes,gpus,local_batch,step_s,sync_s", *rows)))
    table = rates(curves=read_curves(steps), locality=2.0)
    assert speed(table, tenant(work(1, "A", "n", batch=16), 3)) == 1 / 1.2
    assert speed(table, tenant(work(1, "A", "n", batch=16), 1, 4)) == pytest.approx(2.0 / 1.25 / 1.1)
