"""`whorl replay` from the command line: the published study, a measured fleet, and everything that cannot be used."""

from __future__ import annotations

import contextlib
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
from click.testing import Result

from whorl.analysis.replay.outcome import FIGURES
from whorl.store.importing import Options, import_file
from whorl.tests.analysis.replay.making import SCHEDULERS, needs_schedulers
from whorl.tests.analysis.replay.measured_fleet import NAMES, fleet_store
from whorl.tests.checks import until
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal as refused
from whorl.tests.stores import new_store

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PHILLY, LONGHORN = DATA / "traces" / "sia-philly", DATA / "longhorn"
needs_published = pytest.mark.skipif(
    not (PHILLY.is_dir() and LONGHORN.is_dir()), reason=f"the published traces and profiles are not in {DATA}"
)

ROW = {"trace", "policy", "scheduler", "seed", "wall_s", *(figure.name for figure in FIGURES)}
HEAD = "job_id,num_gpus,submit_time,duration,model\n"
FLEET = ("--nodes", "6", "--gpus-per-node", "4")


def whorl(*words: object) -> Result:
    return calling.whorl("replay", *words)


def document(*words: object, status: int = 0) -> dict[str, Any]:
    answer = calling.document("replay", *words, schema="replay", status=status)
    assert all(set(row) == ROW for row in (*answer["rows"], *answer["baselines"]))
    return answer


def refusal(*words: object) -> str:
    return refused("replay", *words)


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
    """Six nodes of four GPUs that differ by some percent in gemm, one of them far off."""
    scores = np.exp(0.06 * np.random.default_rng(3).standard_normal(24))
    scores[9] = 2.5
    return fleet_store(tmp_path_factory.mktemp("store"), {"gemm": scores}, noise=0.003, gpus={"gemm": NAMES[:24]})


def test_a_policy_that_knows_the_gpus_gains_measurably(jobs: Path, store: str) -> None:
    """One GPU is 2.5 times slower: staying off it gains. Draining its node loses three good GPUs of a busy fleet."""
    reply = document(
        *("--trace", jobs, "--store", store, "--class", "quiet=none", "--policy", "pm-first-sticky,random"),
        *("--seeds", "6", "--world", "seed=10", "--workers", "1"),
    )
    assert {row["seed"] for row in reply["rows"]} == set(range(10, 16))
    gains = {(g["policy"], g["against"]): g for g in reply["comparisons"] if g["figure"] == "avg_jct_s"}
    best = gains["pm-first-sticky", "packed"]
    assert best["n"] == 6
    assert best["measurable"]
    assert 0 < best["lower_pct"] < best["mean_pct"] < best["upper_pct"]
    assert gains["drain-outliers", "packed"]["upper_pct"] < 0
    assert gains["pm-first-sticky", "drain-outliers"]["measurable"]
    assert len(best["per_seed"]) == 6


@pytest.mark.long
def test_all_decide_by_one_clock_unless_asked_otherwise(jobs: Path, store: str) -> None:
    """What a policy by rounds waits for the edges is no part of its gain: without knowledge it has none to lose."""
    fleet = ("--trace", jobs, *FLEET)
    common = (*fleet, "--policy", "packed-nonsticky")

    def answered(*words: object) -> tuple[str, dict[str, float]]:
        answer = document(*common, *words)
        return answer["conditions"]["clock"], {row["policy"]: row["avg_jct_s"] for row in answer["rows"]}

    sentence, equal = answered()
    assert sentence.endswith("rounds of 360 s, which packed-nonsticky needs (clock=own: only these)")
    assert equal == answered("--world", "clock=rounds")[1]
    sentence, apart = answered("--world", "clock=own")
    assert sentence.startswith("packed-nonsticky decide")
    assert apart["packed-nonsticky"] == equal["packed-nonsticky"]
    assert apart["packed"] < equal["packed"]
    sentence, events = answered("--world", "clock=events")
    assert "also packed-nonsticky, which" in sentence
    assert events["packed"] == apart["packed"]
    assert events["packed-nonsticky"] < equal["packed-nonsticky"]
    exact = document(*fleet, "--policy", "packed", "--scheduler", "srtf,fifo")
    assert exact["conditions"]["clock"] == "all decide at every arrival, finish and failure"
    assert exact["rows"][0]["avg_jct_s"] != equal["packed"]
    queued = document(*fleet, "--policy", "packed", "--scheduler", "fifo,las")
    assert "which las needs" in queued["conditions"]["clock"]
    assert {row["avg_jct_s"] for row in queued["rows"] if row["scheduler"] == "fifo"} == {equal["packed"]}
    warned = whorl(
        "--trace", jobs, "--store", store, "--class", "quiet=none", "--policy", "pal", "--world", "clock=own"
    )
    assert "pal: these wait for the edges of rounds and the baselines do not" in " ".join(warned.stdout.split())


@pytest.mark.long
@needs_published
def test_the_models_of_the_published_traces_need_no_class(tmp_path: Path) -> None:
    """On a store with the published measurements; with one workload alone, all run like that one."""
    store = new_store(str(tmp_path / "S"))
    for path in LONGHORN.glob("[!s]*.csv.gz"):
        import_file(store, path, Options(cluster="longhorn"))
    common = ("--trace", PHILLY / "workload-1.csv", "--store", store.root)
    notes = " ".join(document(*common, "--policy", "packed", "--nodes", "16", "--gpus-per-node", "4")["notes"])
    for model, workload in {"vgg19": "bert", "GPT2": "bert", "PointNet": "pagerank", "resnet50": "resnet"}.items():
        assert f"{model} like {workload}" in notes
    assert "vgg19, DCGAN, GPT2, PointNet: no workload of that name" in notes
    mapped = whorl(*common, "--class", "resnet50=none", "--class", "GPT2=resnet", "--json")
    notes = " ".join(json.loads(mapped.stdout)["notes"])
    for words in ("GPT2 like resnet", "resnet50 like nothing", "vgg19, DCGAN, PointNet: no workload"):
        assert words in notes


def test_without_a_store_all_gpus_are_alike(jobs: Path) -> None:
    answer = document("--trace", jobs, *FLEET, "--policy", "pm-first-sticky,weights")
    averages = {row["policy"]: row["avg_jct_s"] for row in answer["rows"]}
    assert averages["pm-first-sticky"] == pytest.approx(averages["packed"])
    assert averages["drain-outliers"] == averages["packed"]
    assert any("all GPUs are equal" in note for note in answer["notes"])


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
    (queueing,) = (entry for entry in waited["queueing"] if entry["policy"] == "packed")
    slowdown = (1 + 140 / 50 + 160 / 30) / 3
    times = {"p50_s": 90, "p95_s": pytest.approx(126), "p99_s": pytest.approx(129.2)}
    assert queueing == {**case, **times, "bounded_slowdown": pytest.approx(slowdown)}
    (fair,) = (entry for entry in waited["fairness"] if entry["policy"] == "packed")
    assert case.items() < fair.items()
    assert fair["shockwave_worst"] == pytest.approx(160 / (30 * 3 / 2))
    assert fair["shockwave_unfair_share"] == pytest.approx(2 / 3)
    table = whorl(*shape).stdout.partition("queueing p50")[2]
    assert next(line.split() for line in table.splitlines() if line.startswith("packed")) == [
        *("packed", "90", "126", "129", "3.044", f"{fair['worst']:.3f}", "67", "%")
    ]
    shortest = document(*shape, "--scheduler", "srtf")["rows"][0]
    assert shortest["scheduler"] == "srtf"


@pytest.mark.long
def test_a_plot_is_one_file(tmp_path: Path, jobs: Path, store: str) -> None:
    words = ("--trace", jobs, "--store", store, "--class", "*=gemm", "--policy", "pal", "--seeds", "2", "--plot")
    document(*words, tmp_path / "out.html")
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "out.html").stat().st_size < 3_000_000


def test_options_that_do_not_go_together(jobs: Path, store: str, tmp_path: Path) -> None:
    paths = {"jobs": jobs, "store": store, "here": tmp_path}
    for line, sentence in (
        ("", "give the jobs with --trace FILE"),
        ("--plot {here}/out.html", "give the jobs with --trace FILE"),
        ("--trace {jobs}", "give a fleet: --store DIR"),
        ("--trace {jobs} --plot {here}", "is a folder, and --plot writes a file"),
        ("--trace {jobs} --plot {here}/no/out.html", "there is no folder"),
        ("--trace {jobs} --nodes 3", "give --nodes and --gpus-per-node together"),
        ("--trace {jobs} --nodes 1001 --gpus-per-node 1000", "1,000,000 GPUs"),
        ("--trace {jobs} --cluster x", "--cluster names a cluster of a store"),
        ("--trace {jobs} --world profiles={here}", "profiles= works only with --as-published"),
        ("--trace {jobs} --as-published pal-sc24", "needs the study's profiles"),
        ("--trace {jobs} --as-published pal-sc24 --world profiles={jobs}", ""),
        (
            "--trace {jobs} --as-published pal-sc24 --world backfill=easy --world profiles={here}",
            "what backfill would",
        ),
        ("--trace {jobs} --store {store} --world failures={jobs} --world mtbf=5", "use only one"),
        ("--trace {jobs} --store {store} --world gpu-idle=300 --world gpu-power=250", "gpu-idle is 300 W"),
        ("--trace {jobs} --store {store} --class gemm", "is not MODEL=WORKLOAD"),
        ("--trace {jobs} --store {store} --class *=gemm --class *=none", "given twice for *"),
        ("--trace {jobs} --store {store} --cluster other", "of cluster other"),
        ("--trace {jobs} --nodes 1 --gpus-per-node 2", "job 3 asks for 4 GPUs and the fleet has 2"),
        ("--trace {jobs} --nodes 6 --gpus-per-node 4 --policy magic", "no policy is named 'magic'"),
        ("--trace {jobs} --nodes 6 --gpus-per-node 4 --scheduler x", "no scheduler is named 'x'"),
        ("--trace {jobs} --nodes 6 --gpus-per-node 4 --scheduler ,", "--scheduler names none"),
        ("--trace {jobs} --nodes 6 --gpus-per-node 4 --policy=", "--policy names none"),
        ("--trace {jobs} {jobs} --nodes 6 --gpus-per-node 4", "two trace files are named busy"),
        ("--trace {here}/none.csv --nodes 6 --gpus-per-node 4", "there is no such file"),
    ):
        assert sentence in refusal(*(word.format(**paths) for word in line.split())), line


def alive(group: int) -> list[str]:
    """The processes of a group that run; one that has ended and waits for its parent does not."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                running.append(f"{path.parent.name} {state}")
    return running


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="the kernel lists no child processes"
)
@pytest.mark.long
def test_ctrl_c_ends_all_its_processes(tmp_path: Path) -> None:
    """The second replay takes minutes and runs in a process of its own: an interrupt ends it at once, in one line."""
    jobs = trace(tmp_path, *(f"{i},{1 + i % 8},{i},{50_000 + i},m" for i in range(4000)))
    line = f"-m whorl replay --trace {jobs} --nodes 16 --gpus-per-node 8 --workers 2 --seeds 500 --world round=60"
    command = [sys.executable, *line.split(), "--policy", "packed,random-nonsticky"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        try:
            children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
            until(lambda: len(children.read_text().split()) >= 2, child)
            time.sleep(2)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()  # nothing where it has ended; else the failure is this test's alone
    assert (child.returncode, out) == (130, ""), err
    assert re.fullmatch(
        r"whorl: interrupted; [\d,]+ of 2,997 replays were done, nothing of them is kept: run the command again\n", err
    )
    until(lambda: not alive(child.pid))


def test_columns_of_one_name_are_of_one_figure_and_energy_needs_the_power_of_gpus(jobs: Path) -> None:
    fleet = ("--trace", jobs, "--policy", "packed", *FLEET)
    printed = whorl(*fleet).stdout
    assert "Themis FTF  Themis unfair" in printed
    assert "gpu-power=W" not in printed
    assert "cost waiting" not in printed  # no node is far off, so none is left out
    metered = (*fleet, "--node-power", 760)
    assert "so there is no energy in all: give --world gpu-power=W" in whorl(*metered).stdout
    assert "gpu-power=W" not in whorl(*metered, "--world", "gpu-power=250").stdout


def test_what_cannot_be_replayed_costs_no_other_policy_and_no_other_trace(tmp_path: Path, jobs: Path) -> None:
    """Backfill plans with jobs that stay where they are: PAL moves them."""
    moving = whorl("--trace", jobs, *FLEET, "--world", "backfill=easy", "--policy", "packed,pal", "--json")
    assert moving.exit_code == 2
    assert {row["policy"] for row in json.loads(moving.stdout)["rows"]} == {"packed", "drain-outliers"}
    assert len([line for line in moving.stderr.splitlines() if "pal" in line]) == 1
    wide = trace(tmp_path, "0,1,0,5,m", "vast,25,9,5,m", name="wide.csv")
    shape = (*FLEET, "--policy", "packed,pal")
    result = whorl("--trace", wide, jobs, *shape, "--json")
    assert result.exit_code == 2
    assert {row["trace"] for row in json.loads(result.stdout)["rows"]} == {"busy"}
    assert result.stderr.strip().splitlines()[-1] == (
        "whorl: wide: job vast asks for 25 GPUs and the fleet has 24; replay it on a larger fleet (--nodes, "
        "--gpus-per-node), or leave the job out (left out: packed, pal, drain-outliers)"
    )
    assert "job vast asks for 25 GPUs and the fleet has 24" in refusal("--trace", wide, *shape)


# -- replay policies ---------------------------------------------------------------------------------------------------
# `whorl replay` with whole schedulers and with policies of users: what is printed, compared, and refused.


DOCS = Path(__file__).resolve().parents[2] / "docs"
SHAPE = ("--nodes", "1", "--gpus-per-node", "2", "--workers", "1")


def of_policy(rows: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    (row,) = (row for row in rows if row["policy"] == policy)
    return row


@pytest.fixture
def jobs_of_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs; while a job of both runs, a long and a short one come."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.csv"
    path.write_text(HEAD + "wide,2,0,100,m\nlong,2,10,200,m\nshort,2,20,50,m\n")
    return path


def test_the_policy_of_the_docs_runs_as_it_stands_there(jobs_of_policies: Path) -> None:
    code, placement = re.findall(r"^```python\n(.*?)^```", (DOCS / "replay.md").read_text(), re.M | re.S)
    assert len(code.splitlines()) <= 30
    Path("my_module.py").write_text(code + placement)
    answer = document("--trace", jobs_of_policies, *SHAPE, "--policy", "my_module:MyPolicy", "--scheduler", "fifo,srtf")
    row = of_policy(answer["rows"], "my_module:MyPolicy")
    assert row["scheduler"] is None
    assert row["avg_jct_s"] == pytest.approx((100 + 340 + 130) / 3)  # short before long
    (finding,) = (entry for entry in answer["findings"] if entry["policy"] == "my_module:MyPolicy")
    over_packed = next(gain for gain in finding["gains"] if gain["against"] == "packed")
    packed_s = (100 + 290 + 330) / 3  # under the first scheduler, fifo
    assert over_packed["mean_pct"] == pytest.approx(100 * (1 - row["avg_jct_s"] / packed_s))
    assert finding["gains"][-1]["mean_pct"] == 0
    known = ("--trace", jobs_of_policies, *SHAPE, "--policy")
    assert document(*known, "my_module:MyPolicy", "--world", "knowledge=none", status=2)
    rows = document(*known, "my_module:LastGpus", "--scheduler", "srtf")["rows"]
    assert of_policy(rows, "my_module:LastGpus")["avg_jct_s"] == of_policy(rows, "packed")["avg_jct_s"]


def decides(body: str) -> str:
    """A module whose policy answers this."""
    head = "from whorl.analysis.replay import Allocation, Decision, Policy\n\n\nclass Mine(Policy):\n"
    return f"{head}    def decide(self, view):\n        {body}\n"


@pytest.mark.parametrize(
    ("module", "fragments"),
    [
        (decides("return {}[7]"), ["7", "0 s"]),
        *((module, [":Mine"]) for module in (None, "x = 1\n", "class Mine: pass\n", "1 / 0\n", "class Mine(:\n")),
    ],
)
def test_what_a_policy_does_wrong_is_one_sentence_and_other_rows_are_given(
    module: str | None, fragments: list[str], jobs_of_policies: Path
) -> None:
    name = f"made_{abs(hash(module))}"
    if module is not None:
        Path(f"{name}.py").write_text(module)
    result = whorl("--trace", jobs_of_policies, *SHAPE, "--policy", f"{name}:Mine,packed", "--json")
    assert result.exit_code == 2, result.output
    assert {row["policy"] for row in json.loads(result.stdout)["rows"]} == {"packed", "drain-outliers"}
    (sentence,) = (line for line in result.stderr.splitlines() if "Mine" in line)
    assert all(fragment in sentence for fragment in fragments)


def test_the_policies_are_listed_with_what_they_need_to_know() -> None:
    from whorl.analysis.replay import POLICIES

    listed = whorl("--policy", "help")
    assert listed.exit_code == 0, listed.output
    page = (DOCS / "replay.md").read_text()
    for policy in POLICIES:
        assert re.search(rf"^{policy.name} ", listed.stdout, re.M), policy.name
        assert f"`{policy.name}`" in page, policy.name


@needs_schedulers
@pytest.mark.long
def test_the_commands_of_the_docs_for_whole_schedulers() -> None:
    """On the published trace of Shockwave; its jobs of one GPU with the pairs of Gavel."""
    trace, regimes = (SCHEDULERS / "shockwave" / name for name in ("jobs_32gpus.csv", "regimes_32gpus.json"))
    fleet = ("--nodes", 32, "--gpus-per-node", 1, "--workers", 1)
    answer = document("--trace", trace, "--regimes", regimes, *fleet, "--policy", "shockwave,las,srtf,fifo")
    rows = {row["policy"]: row for row in answer["rows"]}
    assert {name: row["scheduler"] for name, row in rows.items()} == {
        **dict.fromkeys(("shockwave", "las", "srtf", "fifo")), "packed": "fifo", "drain-outliers": "fifo",
    }  # fmt: skip
    assert "rounds of 120 s" in answer["conditions"]["clock"]
    assert "20 s" in answer["conditions"]["cost of a start"]
    shockwave = rows["shockwave"]
    assert shockwave["makespan_s"] == pytest.approx(24_197, rel=0.04)
    assert shockwave["avg_jct_s"] == pytest.approx(9_958, rel=0.04)
    assert shockwave["unfair_pct"] <= 7.5
    assert shockwave["worst_ftf"] <= 2.1
    makespans_s = {name: rows[name]["makespan_s"] for name in ("las", "srtf", "fifo")}
    assert shockwave["makespan_s"] <= 0.8 * min(makespans_s.values())
    assert makespans_s == pytest.approx({"las": 31_341, "srtf": 31_335, "fifo": 31_461}, rel=2e-3), "of the same rules"
    assert (rows["srtf"]["unfair_pct"], rows["srtf"]["worst_ftf"]) == (0, pytest.approx(0.721, abs=1e-3))
