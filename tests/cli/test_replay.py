"""`whorl replay` from the command line: the published study, a measured fleet, and everything that cannot be used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from whorl.analysis.replay.outcome import FIGURES
from whorl.cli import cli
from whorl.store.importing import Options, import_file
from whorl.tests.stores import new_store

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PHILLY, LONGHORN = DATA / "traces" / "sia-philly", DATA / "longhorn"
needs_published = pytest.mark.skipif(
    not (PHILLY.is_dir() and LONGHORN.is_dir()), reason=f"the published traces and profiles are not in {DATA}"
)

ROW = {"trace", "policy", "scheduler", "seed", "wall_s", *(figure.name for figure in FIGURES)}
HEAD = "job_id,num_gpus,submit_time,duration,model\n"


def whorl(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["replay", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    result = whorl(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = dict(json.loads(result.stdout))
    assert found["schema"] == "whorl.replay/1"
    assert all(set(row) == ROW for row in (*found["rows"], *found["baselines"]))
    return found


def refusal(*arguments: object) -> str:
    result = whorl(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr.strip().splitlines()[-1]


def trace(folder: Path, *rows: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty jobs that keep 24 GPUs busy, of two models."""
    rows = [f"{i},{1 + i % 4},{40 * i},{600 + 37 * (i % 7)},{'gemm' if i % 3 else 'quiet'}" for i in range(40)]
    return trace(tmp_path_factory.mktemp("jobs"), *rows, name="busy.csv")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six nodes of four GPUs that differ by some percent in gemm, one of them far off, each run eight times."""
    folder = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(3)
    scores = np.exp(0.06 * rng.standard_normal(24))
    scores[9] = 2.5
    rows = ["board,host,slot,app,ms,when,watts"]
    for run in range(8):
        for gpu, score in enumerate(scores):
            value = 100 * score * np.exp(0.003 * rng.standard_normal())
            rows.append(f"n{gpu // 4}-{gpu % 4},n{gpu // 4},{gpu % 4},gemm,{value:.6f},2026-01-0{run + 1}T00:00:00,200")
    file = folder / "gemm.csv"
    file.write_text("\n".join(rows) + "\n")
    columns = {"board": "gpu", "host": "node", "slot": "slot", "app": "workload", "ms": "time", "when": "began"}
    options = Options(cluster="c", columns=columns | {"watts": "power"}, units={"ms": "ms", "watts": "W"})
    import_file(new_store(str(folder / "S")), file, options)
    return str(folder / "S")


def test_jobs_that_run_the_same_on_every_gpu_need_no_scores(jobs: Path, store: str) -> None:
    words = ("--trace", jobs, "--class", "*=none", "--policy", "packed", "--nodes", "4", "--gpus-per-node", "8")
    found = document(*words, "--store", store)
    figures = [[row["avg_jct_s"] for row in answer["rows"]] for answer in (found, document(*words))]
    assert figures[0] == figures[1]


def test_a_fleet_of_more_gpus_than_memory_holds(jobs: Path) -> None:
    assert "1,000,000 GPUs" in refusal("--trace", jobs, "--nodes", "1001", "--gpus-per-node", "1000")


def test_a_policy_that_knows_the_gpus_gains_measurably(jobs: Path, store: str) -> None:
    """One GPU is 2.5 times slower: staying off it gains. Draining its node loses three good GPUs of a busy fleet."""
    found = document(
        *("--trace", jobs, "--store", store, "--class", "quiet=none", "--policy", "pm-first-sticky,random"),
        *("--seeds", "6", "--world", "seed=10", "--workers", "1"),
    )
    assert {row["seed"] for row in found["rows"]} == set(range(10, 16))
    gains = {(g["policy"], g["against"]): g for g in found["comparisons"] if g["figure"] == "avg_jct_s"}
    best = gains["pm-first-sticky", "packed"]
    assert best["n"] == 6
    assert best["measurable"]
    assert 0 < best["lower_pct"] < best["mean_pct"] < best["upper_pct"]
    assert gains["drain-outliers", "packed"]["upper_pct"] < 0
    assert gains["pm-first-sticky", "drain-outliers"]["measurable"]
    assert len(best["per_seed"]) == 6


@pytest.mark.long
def test_the_energy_is_known_where_the_power_is(jobs: Path, store: str) -> None:
    known = document("--trace", jobs, "--store", store, "--class", "*=gemm", "--policy", "packed")
    row = known["rows"][0]
    # Every GPU draws 200 W while it is held.
    assert row["energy_j"] == pytest.approx(200 * row["util_held"] * 24 * row["end_s"], rel=1e-6)
    unknown = document("--trace", jobs, "--store", store, "--class", "quiet=none", "--policy", "packed")
    assert unknown["rows"][0]["energy_j"] is None


@pytest.mark.long
def test_all_decide_by_one_clock_unless_asked_otherwise(jobs: Path, store: str) -> None:
    """What a policy by rounds waits for the edges is no part of its gain: without knowledge it has none to lose."""
    common = ("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--policy", "packed-nonsticky")

    def told(*more: object) -> tuple[str, dict[str, float]]:
        found = document(*common, *more)
        return found["conditions"]["clock"], {row["policy"]: row["avg_jct_s"] for row in found["rows"]}

    said, alike = told()
    assert said == "all decide at the edges of rounds of 360 s, which packed-nonsticky needs (clock=own: only these)"
    assert alike == told("--world", "clock=rounds")[1]
    said, own = told("--world", "clock=own")
    assert said.startswith("packed-nonsticky decide")
    assert own["packed-nonsticky"] == alike["packed-nonsticky"]
    assert own["packed"] < alike["packed"]
    said, events = told("--world", "clock=events")
    assert "also packed-nonsticky, which" in said
    assert events["packed"] == own["packed"]
    assert events["packed-nonsticky"] < alike["packed-nonsticky"]
    exact = document(*common[:6], "--policy", "packed", "--scheduler", "srtf,fifo")
    assert exact["conditions"]["clock"] == "all decide at every arrival, finish and failure"
    assert exact["rows"][0]["avg_jct_s"] != alike["packed"]
    queued = document(*common[:6], "--policy", "packed", "--scheduler", "fifo,las")
    assert "which las needs" in queued["conditions"]["clock"]
    assert {row["avg_jct_s"] for row in queued["rows"] if row["scheduler"] == "fifo"} == {alike["packed"]}
    warned = whorl(
        "--trace", jobs, "--store", store, "--class", "quiet=none", "--policy", "pal", "--world", "clock=own"
    )
    assert "pal: these wait for the edges of rounds and the baselines do not" in " ".join(warned.stdout.split())


def test_only_what_has_times_is_offered_as_a_class(tmp_path: Path) -> None:
    """The probe `idle` has runs and no times: nothing can be replayed at it."""
    from whorl.tests.probed_fleet import stored

    store, _ = stored(tmp_path / "S", 8, telemetry=False)
    jobs = trace(tmp_path, "1,1,0,100,quiet")
    for chosen in ((), ("--class", "quiet=idle")):
        said = refusal("--trace", jobs, "--store", store.root, *chosen)
        assert "gemm-fp32" in said
        assert "copy-h2d, gemm-fp32, pagerank, stream-triad" in said
        assert "idle" not in said.rpartition("there is")[2]


@pytest.mark.long
@needs_published
def test_the_models_of_the_published_traces_need_no_class(tmp_path: Path) -> None:
    """On a store with the published measurements; with one workload alone, all run like that one."""
    store = str(tmp_path / "S")
    opened = new_store(store)
    for path in LONGHORN.glob("[!s]*.csv.gz"):
        import_file(opened, path, Options(cluster="longhorn"))
    trace = PHILLY / "workload-1.csv"
    found = document("--trace", trace, "--store", store, "--policy", "packed", "--nodes", "16", "--gpus-per-node", "4")
    (like,) = (note for note in found["notes"] if "jobs run like these workloads" in note)
    for model, workload in {"vgg19": "bert", "GPT2": "bert", "PointNet": "pagerank", "resnet50": "resnet"}.items():
        assert f"{model} like {workload}" in like
    (stand_in,) = (note for note in found["notes"] if "stands for the class" in note)
    assert "vgg19, DCGAN, GPT2, PointNet: no workload of that name" in stand_in
    other = whorl("--trace", trace, "--store", store, "--class", "resnet50=none", "--class", "GPT2=resnet", "--json")
    notes = " ".join(json.loads(other.stdout)["notes"])
    assert "GPT2 like resnet" in notes
    assert "resnet50 like nothing" in notes
    assert "vgg19, DCGAN, PointNet: no workload" in notes


def test_without_a_store_all_gpus_are_alike(jobs: Path) -> None:
    found = document("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--policy", "pm-first-sticky,weights")
    averages = {row["policy"]: row["avg_jct_s"] for row in found["rows"]}
    assert averages["pm-first-sticky"] == pytest.approx(averages["packed"])
    assert averages["drain-outliers"] == averages["packed"]
    assert any("all GPUs are equal" in note for note in found["notes"])


def test_the_answer_is_that_of_a_hand(tmp_path: Path) -> None:
    """Two GPUs; a job of both waits for one that holds one, and a short one slips by under backfill alone."""
    path = trace(tmp_path, "long,1,0,100,m", "wide,2,10,50,m", "short,1,20,30,m")
    shape = ("--trace", path, "--nodes", "1", "--gpus-per-node", "2", "--policy", "packed")
    plain = document(*shape)["rows"][0]
    assert plain["avg_jct_s"] == pytest.approx((100 + 140 + 160) / 3)
    assert (plain["makespan_s"], plain["end_s"]) == (180, 180)
    assert plain["util_held"] == pytest.approx((100 + 100 + 30) / (2 * 180))
    easy = document(*shape, "--world", "backfill=easy")["rows"][0]
    assert easy["avg_jct_s"] == pytest.approx((100 + 140 + 30) / 3)
    assert easy["end_s"] == 150
    case = {"trace": "t", "policy": "packed", "scheduler": "fifo", "seed": 0}
    waited = document(*shape)
    # Without GPUs: none, 90 s, 130 s.
    (queueing,) = (one for one in waited["queueing"] if one["policy"] == "packed")
    slowdown = (1 + 140 / 50 + 160 / 30) / 3
    times = {"p50_s": 90, "p95_s": pytest.approx(126), "p99_s": pytest.approx(129.2)}
    assert queueing == {**case, **times, "bounded_slowdown": pytest.approx(slowdown)}
    (fair,) = (one for one in waited["fairness"] if one["policy"] == "packed")
    assert case.items() < fair.items()
    assert fair["shockwave_worst"] == pytest.approx(160 / (30 * 3 / 2))
    assert fair["shockwave_unfair_share"] == pytest.approx(2 / 3)
    table = whorl(*shape).stdout.partition("queueing p50")[2]
    assert next(line.split() for line in table.splitlines() if line.startswith("packed")) == [
        *("packed", "90", "126", "129", "3.044", f"{fair['worst']:.3f}", "67", "%")
    ]
    shortest = document(*shape, "--scheduler", "srtf")["rows"][0]
    assert shortest["scheduler"] == "srtf"


def test_several_traces_schedulers_and_names_with_commas(tmp_path: Path, jobs: Path) -> None:
    other = trace(tmp_path, "0,1,0,5,m", name="small.csv")
    shape = ("--nodes", "6", "--gpus-per-node", "4", "--world", "round=60")
    found = document(
        "--trace", jobs, other, *shape, "--policy", "packed", "--scheduler", "fifo,las", "--scheduler", "srtf"
    )
    cases = [(row["trace"], row["scheduler"], row["policy"]) for row in found["rows"]]
    assert len(cases) == len(set(cases)) == 2 * 3 * 2
    assert {case[0] for case in cases} == {"busy", "small"}
    assert {case[1] for case in cases} == {"fifo", "las", "srtf"}


def test_failures_stop_jobs(tmp_path: Path) -> None:
    path = trace(tmp_path, "0,1,0,100,m")
    failures = tmp_path / "failures.csv"
    failures.write_text("node,down_s,up_s\nn0,40,60\n")
    shape = (
        "--trace",
        path,
        "--nodes",
        "1",
        "--gpus-per-node",
        "1",
        "--policy",
        "packed",
        "--world",
        f"failures={failures}",
    )
    assert document(*shape)["rows"][0]["end_s"] == 160
    resumed = document(*shape, "--world", "on-failure=resume")
    assert resumed["rows"][0]["end_s"] == 120
    assert resumed["fairness"][0]["restarts"] == 1
    assert "1 of failures.csv" in resumed["conditions"]["failures"]
    drawn = document(
        "--trace", path, "--nodes", "1", "--gpus-per-node", "1", "--world", "mtbf=0.02", "--world", "repair=0.01"
    )
    assert drawn["fairness"][0]["restarts"] >= 0


def test_preemption_and_locality_cost_what_they_are_said_to(tmp_path: Path) -> None:
    path = trace(tmp_path, "long,1,0,1000,m", "short,1,100,50,m")
    shape: tuple[object, ...]
    shape = ("--trace", path, "--nodes", "1", "--gpus-per-node", "1", "--policy", "packed", "--scheduler", "srtf")
    assert document(*shape)["rows"][0]["end_s"] == 1050
    assert document(*shape, "--world", "preemption-cost=30")["rows"][0]["end_s"] == 1080
    wide = trace(tmp_path, "wide,2,0,100,m")
    shape = ("--trace", wide, "--nodes", "2", "--gpus-per-node", "1", "--policy", "packed")
    assert document(*shape, "--world", "locality-penalty=1.5")["rows"][0]["end_s"] == 150


@pytest.mark.long
def test_a_plot_is_one_file_and_whole_or_not_there(tmp_path: Path, jobs: Path, store: str) -> None:
    out = tmp_path / "out.html"
    common = ("--trace", jobs, "--store", store, "--class", "*=gemm", "--policy", "pal", "--seeds", "2")
    result = whorl(*common, "--plot", out, "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)
    assert out.read_text().startswith("<!doctype html>")
    assert out.stat().st_size < 3_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    assert "cannot be written" in refusal(*common, "--plot", tmp_path / "none" / "out.html")


def test_options_that_do_not_go_together(jobs: Path, store: str, tmp_path: Path) -> None:
    sentences: dict[tuple[object, ...], str] = {
        (): "give the jobs with --trace FILE",
        ("--plot", tmp_path / "out.html"): "give the jobs with --trace FILE",
        ("--trace", jobs): "give a fleet: --store DIR",
        ("--trace", jobs, "--plot", tmp_path): "is a folder, and --plot writes a file",
        ("--trace", jobs, "--plot", tmp_path / "no" / "out.html"): "there is no folder",
        ("--trace", jobs, "--nodes", "3"): "give --nodes and --gpus-per-node together",
        ("--trace", jobs, "--cluster", "x"): "--cluster names a cluster of a store",
        ("--trace", jobs, "--world", f"profiles={tmp_path}"): "profiles= works only with --as-published",
        ("--trace", jobs, "--as-published", "pal-sc24"): "needs the study's profiles",
        (
            "--trace",
            jobs,
            "--as-published",
            "pal-sc24",
            "--world",
            "backfill=easy",
            "--world",
            f"profiles={tmp_path}",
        ): "what backfill would",
        ("--trace", jobs, "--store", store, "--world", f"failures={jobs}", "--world", "mtbf=5"): "use only one",
        ("--trace", jobs, "--store", store, "--world", "gpu-idle=300", "--world", "gpu-power=250"): "gpu-idle is 300 W",
        ("--trace", jobs, "--store", store, "--class", "gemm"): "is not MODEL=WORKLOAD",
        ("--trace", jobs, "--store", store, "--class", "*=gemm", "--class", "*=none"): "given twice for *",
        ("--trace", jobs, "--store", store, "--cluster", "other"): "of cluster other",
        ("--trace", jobs, "--nodes", "1", "--gpus-per-node", "2"): "job 3 asks for 4 GPUs and the fleet has 2",
        ("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--policy", "magic"): "no policy is named 'magic'",
        ("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--scheduler", "x"): "no scheduler is named 'x'",
        ("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--scheduler", ","): "--scheduler names none",
        ("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--policy", ""): "--policy names none",
        ("--trace", jobs, jobs, "--nodes", "6", "--gpus-per-node", "4"): "two trace files are named busy",
        ("--trace", tmp_path / "none.csv", "--nodes", "6", "--gpus-per-node", "4"): "there is no such file",
    }
    for arguments, sentence in sentences.items():
        assert sentence in refusal(*arguments), arguments


def alive(group: int) -> list[str]:
    """The processes of a group that run; one that has ended and waits for its parent does not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and state != "Z":
            found.append(f"{path.parent.name} {state}")
    return found


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="the kernel lists no child processes"
)
@pytest.mark.long
def test_ctrl_c_ends_all_its_processes(tmp_path: Path) -> None:
    """The second replay takes minutes and runs in a process of its own: an interrupt ends it at once, in one line."""
    rows = [f"{i},{1 + i % 8},{i},{50_000 + i},m" for i in range(4000)]
    arguments = [
        *("replay", "--trace", trace(tmp_path, *rows), "--nodes", "16", "--gpus-per-node", "8"),
        *("--policy", "packed,random-nonsticky", "--seeds", "500", "--workers", "2", "--world", "round=60"),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "whorl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
            deadline = time.monotonic() + 120
            while len(children.read_text().split()) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert len(children.read_text().split()) >= 2
            time.sleep(2)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()  # nothing where it has ended; else the failure is this test's alone
    assert child.returncode == 130, err
    assert out == ""
    [said] = err.strip().splitlines()
    assert re.fullmatch(
        r"whorl: interrupted; [\d,]+ of 2,997 replays were done, nothing of them is kept: run the command again", said
    )
    assert "Traceback" not in err
    deadline = time.monotonic() + 60
    while left := alive(child.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_columns_of_one_name_are_of_one_figure(jobs: Path) -> None:
    printed = whorl("--trace", jobs, "--policy", "packed", "--nodes", 6, "--gpus-per-node", 4).stdout
    assert "Themis FTF  Themis unfair" in printed
    assert "gpu-power=W" not in printed
    assert "cost waiting" not in printed  # no node is far off, so none is left out


def test_a_policy_that_cannot_be_replayed_costs_no_other(jobs: Path) -> None:
    """Backfill plans with jobs that stay where they are: PAL moves them."""
    result = whorl(
        *("--trace", jobs, "--nodes", "6", "--gpus-per-node", "4", "--world", "backfill=easy", "--json"),
        *("--policy", "packed,pal", "--seeds", "2"),
    )
    assert result.exit_code == 2
    assert {row["policy"] for row in json.loads(result.stdout)["rows"]} == {"packed", "drain-outliers"}
    assert len([line for line in result.stderr.splitlines() if "pal" in line]) == 1
    alone = refusal("--trace", jobs, "--as-published", "pal-sc24", "--world", f"profiles={jobs}")
    assert alone.startswith("whorl: ")


def test_a_job_that_never_fits_costs_no_other_trace(tmp_path: Path, jobs: Path) -> None:
    wide = trace(tmp_path, "0,1,0,5,m", "vast,25,9,5,m", name="wide.csv")
    shape = ("--nodes", "6", "--gpus-per-node", "4", "--policy", "packed,pal")
    result = whorl("--trace", wide, jobs, *shape, "--json")
    assert result.exit_code == 2
    assert {row["trace"] for row in json.loads(result.stdout)["rows"]} == {"busy"}
    assert result.stderr.strip().splitlines()[-1] == (
        "whorl: wide: job vast asks for 25 GPUs and the fleet has 24; replay it on a larger fleet (--nodes, "
        "--gpus-per-node), or leave the job out (left out: packed, pal, drain-outliers)"
    )
    alone = refusal("--trace", wide, *shape)
    assert "job vast asks for 25 GPUs and the fleet has 24" in alone


def test_energy_without_the_power_of_gpus_says_what_to_give(jobs: Path) -> None:
    fleet = ("--trace", jobs, "--policy", "packed", "--nodes", 6, "--gpus-per-node", 4, "--node-power", 760)
    assert "so there is no energy in all: give --world gpu-power=W" in whorl(*fleet).stdout
    assert "gpu-power=W" not in whorl(*fleet, "--world", "gpu-power=250").stdout
