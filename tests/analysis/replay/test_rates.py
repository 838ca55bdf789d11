"""How fast jobs run, and at what power."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay.fleet import Fleet
from whorl.analysis.replay.jobs import Allocation, Job, Piece
from whorl.analysis.replay.power import ANY, Power
from whorl.analysis.replay.rates import Rates, Tenant
from whorl.analysis.replay.tables import JobType, Pairs, read_curves, read_pairs
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import SCHEDULERS, needs_schedulers


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
    return Tenant(job, job.batch, Allocation(gpus, clocks=clocks, depths=depths))


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


# -- tables ------------------------------------------------------------------------------------------------------------
# Tables of pairs and of step times.


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


HEAD = "job_a,job_b,a_share_of_solo,b_share_of_solo"


def test_a_table_of_pairs_is_read_both_ways(tmp_path: Path) -> None:
    lines = (
        "job_b,note,job_a,a_share_of_solo,b_share_of_solo",
        "y,,x,1.04,0.5",
        "y,,y,0.6,0.8",
        "z,,x,0.4,",
        "z,,y,0,0.3",
    )
    path = tmp_path / "pairs.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    pairs = read_pairs(path)
    x, y, z = (JobType(model, 32, 2) for model in "xyz")
    assert [pairs.find(*pair) for pair in ((x, y), (y, x), (y, y), (x, z), (z, y))] == pytest.approx(
        [1, 0.5, 0.7, 0, 0]
    )
    assert pairs.find(x, x) is None
    assert not pairs.notes


def test_the_name_with_the_batch_size_and_the_number_of_gpus_count(tmp_path: Path) -> None:
    head = "gpu,job_a,gpus_a,job_b,gpus_b,a_share_of_solo,b_share_of_solo"
    rows = ("v9,r (batch size 8),1,q,1,0.8,0.7", "v9,r (batch size 8),2,q,2,0.6,0.5", "k2,q,1,q,1,0.4,0.4")
    pairs = read_pairs(written(tmp_path / "p.csv", head, *rows))
    assert pairs.find(JobType("r", 8, 1), JobType("q", 64, 1)) == 0.8
    assert pairs.find(JobType("r", 8, 2), JobType("q", 64, 2)) == 0.6
    assert pairs.find(JobType("r", 16, 1), JobType("q", 64, 1)) is None
    assert pairs.find(JobType("r", 8, 1), JobType("q", 64, 2)) is None
    assert len(pairs.notes) == 1
    assert read_pairs(tmp_path / "p.csv", "k2").find(JobType("q", None, 1), JobType("q", None, 1)) == 0.4
    with pytest.raises(InputError, match="no pairs of v100; it has v9, k2"):
        read_pairs(tmp_path / "p.csv", "v100")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("job_a,job_b,a_share_of_solo", "x,y,1"), "no column b_share_of_solo"),
        ((HEAD, "x,y,fast,1"), "line 2: a_share_of_solo is 'fast', which is not a finite number"),
        ((HEAD, "x,y,1,-0.5"), "line 2: b_share_of_solo is -0.5; it must be at least 0"),
        ((HEAD, "x,y,95,80"), "line 2: a_share_of_solo is 95.*: give shares of the speed alone, not percent"),
        ((HEAD, "x,y,1,1", "x,z,1"), "line 3"),
        ((HEAD,), "has no rows"),
        ((HEAD, "x,y,1,1", "y,x,1,1"), "line 3: the pair of y and x stands there twice"),
    ],
)
def test_a_bad_table_of_pairs_is_named_by_its_line(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_pairs(written(tmp_path / "pairs.csv", *lines))


CURVE = "application,placement,nodes,gpus,local_batch,step_s,sync_s"


def test_steps_between_the_measured_ones(tmp_path: Path) -> None:
    rows = (
        "n,1,1,1,8,1.0,0.0",
        "n,1,1,1,16,1.8,0.0",
        "n,12,2,3,8,1.5,0.5",
        "n,12,2,3,16,2.5,0.5",
        "n,,2,2,8,1.25,0.25",
    )
    curves = read_curves(written(tmp_path / "steps.csv", CURVE, *rows))
    assert "n" in curves
    assert "m" not in curves
    assert curves.step_s("n", (1,), 12) == pytest.approx((1.4, 0))
    assert curves.step_s("n", (2, 1), 8) == curves.step_s("n", (1, 2), 8) == (1.5, 0.5)
    assert curves.step_s("n", (1, 1), 8) == pytest.approx((1.25, 0.25))
    assert curves.batch_s("n", (1, 2), 96) == pytest.approx(2.5 + 2.0)  # two passes of 16, one communication
    assert curves.speed("n", (1,), 3, 24) == pytest.approx(curves.batch_s("n", (2, 1), 24) / (1.4 * 2))
    for placement, batch in (((1, 1, 1), 24), ((1,), None)):
        with pytest.raises(InputError, match="curve of n"):
            curves.speed("n", placement, 1, batch)
    alone = read_curves(written(tmp_path / "alone.csv", CURVE, *rows[:2]))
    with pytest.raises(InputError, match="curve of n does not reach to 2 GPUs on 1 nodes"):
        alone.batch_s("n", (2,), 16)
    with pytest.raises(InputError, match="line 2"):
        read_curves(written(tmp_path / "steps.csv", CURVE, "n,1,1,1,8,1.0,1.5"))


@needs_schedulers
def test_the_published_steps_reach_to_all_widths() -> None:
    curves = read_curves(SCHEDULERS / "pollux" / "step_times.csv.gz")
    assert curves.step_s("bert", (1,), 4) == (0.455324, 0.013739)
    batches = {"ncf": 32768, "cifar10": 4096, "yolov3": 64}
    for application, batch in batches.items():
        for gpus in (1, 2, 3, 5, 8, 16, 23, 48, 64):
            spread = (1,) * min(gpus, 16)
            assert curves.speed(application, (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ()), gpus, batch) == 1
            assert 0 < curves.speed(application, spread, gpus, batch) < 2
