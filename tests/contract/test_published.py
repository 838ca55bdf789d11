"""Published results by the command line: PAL's simulation (SC'24), an independent one, and the Longhorn figures."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.analysis.replay.oracle import TAU, Oracle
from whorl.tests.analysis.replay.plain import Plain, Task
from whorl.tests.sizes import is_long, sample

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TRACES, LONGHORN = DATA / "traces" / "sia-philly", DATA / "longhorn"
needs_published = pytest.mark.skipif(
    not (TRACES.is_dir() and LONGHORN.is_dir()), reason=f"the published traces and measurements are not in {DATA}"
)

# (trace, policy): average and p99 JCT, makespan, end, utilisation, as the artifact gives them (FIFO).
PUBLISHED = {
    (1, "pal"): (25320.99, 120944, 225982, 226080, 0.8594),
    (1, "pm-first"): (25467.24, 120944, 226342, 226440, 0.8591),
    (1, "packed-sticky"): (30243.99, 129584, 545302, 545400, 0.8688),
    (1, "packed-nonsticky"): (30034.74, 140384, 267022, 267120, 0.8577),
    (1, "random-sticky"): (30630.99, 123824, 550702, 550800, 0.872),
    (1, "random-nonsticky"): (32815.74, 144344, 312382, 312480, 0.8559),
    (2, "pal"): (263712.11, 569011, 678213, 678240, 0.8567),
    (2, "pm-first"): (274210.61, 610771, 686133, 686160, 0.8567),
    (2, "packed-sticky"): (583340.36, 1281091, 1700613, 1700640, 0.6465),
    (2, "packed-nonsticky"): (365774.36, 803731, 1223613, 1223640, 0.7594),
    (2, "random-sticky"): (568683.86, 1281811, 1666773, 1666800, 0.6499),
    (2, "random-nonsticky"): (367239.11, 791851, 1045773, 1045800, 0.8515),
    (3, "pal"): (106396.16, 196662, 257642, 257760, 0.8586),
    (3, "pm-first"): (111521.66, 202782, 257642, 257760, 0.853),
    (3, "packed-sticky"): (214576.16, 326262, 381122, 381240, 0.829),
    (3, "packed-nonsticky"): (234043.16, 377135, 414602, 414720, 0.8191),
    (3, "random-sticky"): (247228.16, 399288, 483002, 483120, 0.7665),
    (3, "random-nonsticky"): (195048.41, 327095, 372842, 372960, 0.8146),
}
DRAINED = {1: 28624, 2: 308046, 3: 126342}
"""Trace: average JCT of packed-sticky without GPU 35, s."""
POLICIES = tuple(dict.fromkeys(policy for _, policy in PUBLISHED))
SCHEDULERS = ("fifo", "las", "srtf")
FIGURES = ("avg_jct_s", "p99_jct_s", "makespan_s", "end_s", "util_held")


def document(*words: object) -> dict[str, Any]:
    """What a command prints as JSON."""
    result = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def replayed(traces: Sequence[Path], profiles: Path, *words: str) -> dict[str, Any]:
    """The answer of the published simulation."""
    files = [word for trace in traces for word in ("--trace", trace)]
    return document(
        "replay", "--as-published", "pal-sc24", *files, "--world", f"profiles={profiles}", "--workers", "1", *words
    )


@needs_published
@pytest.mark.parametrize("number", sample([1, 2, 3], short=1))
def test_pal_to_the_second(number: int) -> None:
    answer = replayed([TRACES / f"workload-{number}.csv"], LONGHORN, "--policy", "all")
    assert {row["policy"] for row in answer["rows"]} == set(POLICIES)
    for row in answer["rows"]:
        assert (row["seed"], row["scheduler"], row["jobs"], row["energy_j"]) == (42, "fifo", 160, None)
        average, *seconds, utilisation = (row[figure] for figure in FIGURES)
        expected = PUBLISHED[number, row["policy"]]
        assert (round(average, 2), *seconds, round(utilisation, 4)) == expected, row["policy"]
    assert {row["policy"]: round(row["avg_jct_s"]) for row in answer["baselines"]} == {
        "drain-outliers": DRAINED[number]
    }


# -- an independent simulation, which shares no code --------------------------------------------------------------


def simulated(
    rows: Sequence[tuple[int, float, float, str]], perf: Mapping[str, list[float]], policy: str, scheduler: str
) -> tuple[float, ...]:
    """FIGURES of the independent simulation; the index of p99 is the artifact's."""
    oracle = Oracle(rows, dict(perf), policy, scheduler)
    jct = oracle.run()
    ends = [took + row[1] for took, row in zip(jct, rows, strict=True)]
    makespan = max(ends) - min(row[1] for row in rows)
    return mean(jct), sorted(jct)[int(0.99 * len(jct))], makespan, oracle.end, oracle.utilisation


def write_trace(file: Path, rows: Sequence[tuple[int, float, float, str]]) -> Path:
    lines = [f"{n},{gpus},{submit},{work},{model}" for n, (gpus, submit, work, model) in enumerate(rows)]
    file.write_text("\n".join(["job_id,num_gpus,submit_time,duration,model", *lines]) + "\n")
    return file


def made_up(seed: int, jobs: int) -> list[tuple[int, float, float, str]]:
    """Jobs of some rounds that come in bursts: dense enough that they wait, move and are stopped."""
    draw = random.Random(seed)
    widths = [draw.choice((1, 1, 2, 3, 4, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)) for _ in range(jobs)]
    ideal_s = [draw.choice((100, 500, 1500, 6000)) * draw.uniform(0.5, 1.5) for _ in range(jobs)]
    # What the cluster keeps up with, badly placed: two jobs an hour.
    sustained = 64 * 1800 / (2 * 1.7 * 2) * jobs
    scale = min(1, sustained / sum(gpus * s for gpus, s in zip(widths, ideal_s, strict=True)))
    rows, submit = [], 0
    for gpus, seconds in zip(widths, ideal_s, strict=True):
        model = draw.choice(sorted(TAU))
        rows.append((gpus, float(submit), round(seconds * scale / TAU[model]) + 1.0, model))
        submit += draw.choice((0, 0, 7, 360, draw.randrange(1500)))
    return rows


def made_profiles(folder: Path) -> dict[str, list[float]]:
    """Files of profiles with an outlier or two; their times by class of jobs."""
    draw = random.Random(11)
    perf = {}
    for name, spread, outlier in (("resnet", 0.05, 1.9), ("bert", 0.02, 1.2), ("pagerank", 0.004, 1.0)):
        perf[name] = [draw.lognormvariate(0, spread) for _ in range(draw.randrange(3, 90))] + [outlier]
        lines = [f"{name},{time}" for time in perf[name]]
        (folder / f"{name}.csv").write_text("\n".join(["exp,perf", *lines]) + "\n")
    return {"A": perf["resnet"], "B": perf["bert"], "C": perf["bert"], "D": perf["pagerank"]}


def test_an_independent_simulation_gives_the_same_figures(tmp_path: Path) -> None:
    """Every policy under every scheduler, on small traces."""
    (tmp_path / "profiles").mkdir()
    perf = made_profiles(tmp_path / "profiles")
    seeds = sample((0, 2, 5, 8), short=2)
    traces = {f"seed-{seed}": made_up(seed, 1 + 4 * seed) for seed in seeds}
    files = [write_trace(tmp_path / f"{name}.csv", rows) for name, rows in traces.items()]
    answer = replayed(files, tmp_path / "profiles", "--policy", "all", "--scheduler", ",".join(SCHEDULERS))
    rows = {(row["trace"], row["policy"], row["scheduler"]): row for row in answer["rows"]}
    cases = [(name, policy, scheduler) for name in traces for policy in POLICIES for scheduler in SCHEDULERS]
    assert set(rows) == set(cases)
    for name, policy, scheduler in sample(cases, short=10):
        figures = [rows[name, policy, scheduler][figure] for figure in FIGURES]
        expected = simulated(traces[name], perf, policy, scheduler)
        assert figures == pytest.approx(expected, rel=1e-9), (name, policy, scheduler)


@pytest.mark.long
@needs_published
def test_an_independent_simulation_gives_the_published_figures(tmp_path: Path) -> None:
    """So it is no copy of a mistake; and what the artifact did not publish, `las` and `srtf`, is as whorl has it."""
    import polars as pl

    perf = {
        name: pl.read_csv(LONGHORN / f"{file}.csv.gz", infer_schema_length=None)["perf"].to_list()
        for name, file in (("A", "resnet50"), ("B", "bert"), ("C", "bert"), ("D", "pagerank"))
    }
    frames = {number: pl.read_csv(TRACES / f"workload-{number}.csv") for number in (1, 2, 3)}
    columns = ("num_gpus", "submit_time", "duration", "model")
    traces = {number: [*frame.select(columns).iter_rows()] for number, frame in frames.items()}
    for number, policy in list(PUBLISHED)[::2]:
        average, *seconds, utilisation = simulated(traces[number], perf, policy, "fifo")
        assert (round(average, 2), *seconds, round(utilisation, 4)) == PUBLISHED[number, policy]
    answer = replayed([TRACES / "workload-1.csv"], LONGHORN, "--policy", "all", "--scheduler", "las,srtf")
    for row in answer["rows"][::3]:
        expected = simulated(traces[1], perf, row["policy"], row["scheduler"])
        assert [row[figure] for figure in FIGURES] == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
@needs_published
def test_las_never_ends_where_the_documents_say_so() -> None:
    """One combination that is refused, for trace 3: another is given, and the status is 2."""
    policies = {"packed-nonsticky", "random-sticky"}
    words = (
        "--trace",
        TRACES / "workload-3.csv",
        "--world",
        f"profiles={LONGHORN}",
        "--policy",
        ",".join(sorted(policies)),
    )
    result = CliRunner().invoke(
        cli, ["replay", "--as-published", "pal-sc24", *map(str, words), "--scheduler", "las", "--json"]
    )
    assert result.exit_code == 2
    refused = policies - {row["policy"] for row in json.loads(result.stdout)["rows"]}
    assert refused == {"packed-nonsticky"}


# -- an independent replay of jobs that are stopped, moved and struck by failures ---------------------------------


@pytest.mark.parametrize("seed", sample(range(60), short=4))
def test_an_independent_replay_gives_the_same_figures(seed: int, tmp_path: Path) -> None:
    """On a small fleet of equal GPUs, of numbers that floating point holds exactly."""
    draw = random.Random(seed)
    nodes, per_node = draw.choice([(2, 4), (4, 2), (3, 3), (8, 1), (1, 8)])
    tasks, at = [], 0
    for number in range(draw.randint(3, 22)):
        at += draw.choice([0, 0, 1, 25, 100, 250])
        gpus = min(draw.choice([1, 1, 2, 3, 4, 8]), nodes * per_node)
        tasks.append(Task(number, Fraction(at), gpus, Fraction(draw.choice([10, 64, 150, 300, 700]) + number)))
    failures, down = [], 0
    for _ in range(draw.choice([0, 1, 3])):
        down += draw.randint(1, 500)
        failures.append((draw.randrange(nodes), down, down + draw.choice([20, 100, 330])))
        down += 400  # so that none overlap
    costs = [0, 0, 10, 50, 60, 100, 130, 470]
    plain = Plain(
        tasks,
        nodes,
        per_node,
        [1.0] * (nodes * per_node),
        locality=draw.choice([1.0, 2.0]),
        order=draw.choice(SCHEDULERS),
        sticky=draw.random() < 0.6,
        round_s=draw.choice([None, 100, 100]),
        stop_s=draw.choice(costs),
        move_s=draw.choice(costs),
        failures=failures,
        resumes=draw.random() < 0.5,
    )
    rows = [(task.gpus, float(task.submit), float(task.ideal), "m") for task in tasks]
    lines = [f"n{node},{down},{up}" for node, down, up in failures]
    (tmp_path / "failures.csv").write_text("\n".join(["node,down_s,up_s", *lines]) + "\n")
    answer = document(
        *("replay", "--trace", write_trace(tmp_path / "trace.csv", rows), "--workers", "1"),
        *("--nodes", nodes, "--gpus-per-node", per_node, "--world", f"locality-penalty={plain.locality}"),
        *("--policy", "packed" if plain.sticky else "packed-nonsticky", "--scheduler", plain.order),
        *("--world", f"clock={'events' if plain.round_s is None else 'rounds'}", "--world", "round=100"),
        *("--world", f"preemption-cost={plain.stop_s}", "--world", f"migration-cost={plain.move_s}"),
        *(("--world", f"failures={tmp_path / 'failures.csv'}") if failures else ()),
        *("--world", f"on-failure={'resume' if plain.resumes else 'restart'}"),
    )
    plain.run()
    times = [float(task.finish - task.submit) for task in tasks if task.finish is not None]
    end = max(task.finish for task in tasks if task.finish is not None)
    expected = {
        "avg_jct_s": mean(times),
        "median_jct_s": median(times),
        "makespan_s": float(end - min(task.submit for task in tasks)),
        "util_held": float(sum(task.gpu_seconds for task in tasks) / (end * nodes * per_node)),
    }
    row = answer["rows"][0]
    assert {figure: row[figure] for figure in expected} == pytest.approx(expected, rel=1e-9)


# -- Longhorn -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def longhorn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the published files; in the short form SGEMM's is not read."""
    if not LONGHORN.is_dir():
        pytest.skip(f"the published measurements are not at {LONGHORN}")
    store = str(tmp_path_factory.mktemp("longhorn") / "S")
    files = [path for path in sorted(LONGHORN.glob("*.csv.gz")) if is_long() or "sgemm" not in path.name]
    document("import", "--store", store, "--cluster", "longhorn", *files)
    return store


LEVELS = {
    ("sgemm", "run"): (8803, 2440.11, 8.722, 8.576, 1.2114, 64, 32),
    ("sgemm", "gpu"): (392, 2435.41, 9.299, 9.240, 1.2027, 5, 0),
    ("resnet", "run"): (1404, 117.53, 22.41, 20.53, 3.5687, 93, 0),
    ("resnet", "gpu"): (336, 117.81, 12.12, 11.38, 1.1205, 17, 0),
}
"""(workload, level): n, median in ms, fences and whiskers in %, worst over median, slow and fast outliers.

Computed beforehand from the files with numpy, scipy and DuckDB.
"""


def test_longhorn_figures(longhorn: str) -> None:
    answer = document("verdicts", "variability", "--store", longhorn, "--set", "replicates=0")
    rows = {(row["workload"], row["level"]): row for row in answer["rows"]}
    workloads = sorted({workload for workload, _ in rows})
    assert workloads == (["bert", "pagerank", "resnet", "sgemm"] if is_long() else ["bert", "pagerank", "resnet"])
    assert list(rows) == [(workload, level) for workload in workloads for level in ("run", "gpu")]
    for key, (n, middle, fence, whisker, worst, slow, fast) in LEVELS.items():
        if key not in rows:
            continue
        row, near = rows[key], 0.006 if fence > 10 else 0.0006
        assert (row["n"], row["unit"]) == (n, "ms")
        assert row["median"] == pytest.approx(middle, abs=0.006)
        assert (row["fence_pct"], row["whisk_pct"]) == (
            pytest.approx(fence, abs=near),
            pytest.approx(whisker, abs=near),
        )
        assert row["worst_over_median"] == pytest.approx(worst, abs=0.00006)
        assert (len(row["slow"]), len(row["fast"])) == (slow, fast)
    assert rows["bert", "run"]["fence_pct"] == pytest.approx(8.034, abs=0.0006)
    assert rows["pagerank", "run"]["fence_pct"] == pytest.approx(0.745, abs=0.0006)
    assert rows["bert", "run"]["correlation"]["sm_clock"]["pearson"] is None  # all runs have one clock
    modes = rows["pagerank", "run"]["modes"]
    assert [mode["median"] for mode in modes] == [pytest.approx(64150, abs=20), pytest.approx(66060, abs=30)]
    assert modes[0]["share"] == pytest.approx(0.165, abs=0.001)
    query = "select count(*) filter (value < 65000) faster, count(*) filter (value > 65000) slower from measurements"
    [counted] = document("sql", "--store", longhorn, f"{query} where workload = 'pagerank' and figure = 'time'")["rows"]
    assert [mode["n"] for mode in modes] == [counted["faster"], counted["slower"]]
    assert len(rows["pagerank", "gpu"]["modes"]) == 2
    for workload in ("resnet", "bert"):  # the runs of a job share their time: the spread is not the GPUs'
        row = rows[workload, "run"]
        assert row["icc"]["value"] < 0.15
        assert row["icc"]["trimmed"] < 0.1
        assert row["icc_job"]["value"] > 0.9
        assert row["icc_job"]["by"] == "job"
        assert len(row["modes"]) == 1
    assert rows["pagerank", "run"]["icc"]["value"] > 0.95


@pytest.mark.long
def test_longhorn_sgemm(longhorn: str) -> None:
    answer = document("verdicts", "variability", "--store", longhorn, "--workload", "sgemm", "--set", "replicates=0")
    rows = {row["level"]: row for row in answer["rows"]}
    run = rows["run"]
    for figure, pearson, spearman in (
        ("sm_clock", -0.947, -0.981),
        ("power", -0.298, -0.031),
        ("temperature", 0.443, 0.412),
    ):
        correlation = run["correlation"][figure]
        assert correlation["n"] == 8803
        assert (round(correlation["pearson"], 3), round(correlation["spearman"], 3)) == (pearson, spearman)
    assert all(row["slow"][0]["gpu"].startswith("GPU-87570fdd") for row in rows.values())
    ratios = [outlier["ratio"] for outlier in run["slow"]]
    assert ratios == sorted(ratios, reverse=True)
    assert run["icc"]["value"] > 0.95
    assert run["icc_job"]["value"] is None
    assert len(run["modes"]) == 1
    assert run["imported"] == {"rows": 11087, "duplicates": 2284, "refused": 0}


@pytest.mark.long
def test_longhorn_across_workloads(longhorn: str) -> None:
    """resnet names places and sgemm UUIDs: only the PageRank file links them."""
    answer = document("verdicts", "variability", "--store", longhorn, "--across")
    rows = {(row["workload_a"], row["figure_a"], row["workload_b"], row["figure_b"]): row for row in answer["rows"]}
    times = rows["pagerank", "time", "sgemm", "time"]
    assert (times["n"], round(times["spearman"], 2)) == (168, 0.05)
    assert times["low"] < 0 < times["high"]
    assert rows["pagerank", "power", "sgemm", "sm_clock"]["spearman"] == pytest.approx(-0.64, abs=0.006)
    assert rows["resnet", "time", "sgemm", "time"]["n"] == 124
