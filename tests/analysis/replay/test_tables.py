"""Tables of pairs and of step times."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from whorl.analysis.replay.tables import JobType, read_curves, read_pairs
from whorl.errors import InputError

SCHEDULERS = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedulers"
PAIRS, STEPS = SCHEDULERS / "gavel" / "pairs.csv.gz", SCHEDULERS / "pollux" / "step_times.csv.gz"
needs_tables = pytest.mark.skipif(not (PAIRS.is_file() and STEPS.is_file()), reason=f"no tables in {SCHEDULERS}")


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


@needs_tables
def test_the_published_pairs() -> None:
    pairs = read_pairs(PAIRS)
    recommendation, small = JobType("Recommendation", 512, 1), JobType("ResNet-18", 16, 1)
    assert pairs.share(recommendation, recommendation) == pytest.approx(0.17, abs=0.005)
    assert pairs.share(small, JobType("ResNet-18", 32, 1)) == 1
    assert pairs.find(JobType("ResNet-50", 128, 1), JobType("A3C", None, 1)) == 0
    single = [(first, second) for (first, width), (second, _) in pairs.shares if width == 1]
    sums = [
        pairs.shares[(first, 1), (second, 1)] + pairs.shares[(second, 1), (first, 1)]
        for first, second in {tuple(sorted(names)) for names in single}
    ]
    fitting = [total for total in sums if total]
    assert len(sums) - len(fitting) == 21
    assert len(fitting) == 330
    assert sum(fitting) / len(fitting) == pytest.approx(1.31, abs=0.005)


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


@needs_tables
def test_the_published_steps_reach_to_all_widths() -> None:
    curves = read_curves(STEPS)
    assert curves.step_s("bert", (1,), 4) == (0.455324, 0.013739)
    batches = {"ncf": 32768, "cifar10": 4096, "yolov3": 64}
    for application, batch in batches.items():
        for gpus in (1, 2, 3, 5, 8, 16, 23, 48, 64):
            spread = (1,) * min(gpus, 16)
            assert curves.speed(application, (4,) * (gpus // 4) + ((gpus % 4,) if gpus % 4 else ()), gpus, batch) == 1
            assert 0 < curves.speed(application, spread, gpus, batch) < 2
