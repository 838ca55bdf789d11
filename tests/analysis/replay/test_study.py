"""The running of many replays, in one process or several."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.replay.fleet import Failure, read_failures
from whorl.analysis.replay.from_store import EqualFleets
from whorl.analysis.replay.jobs import Job, Trace
from whorl.analysis.replay.options import Options
from whorl.analysis.replay.setting import ReplaySetting
from whorl.analysis.replay.study import Case, General, run_all
from whorl.analysis.replay.world import World
from whorl.errors import InputError
from whorl.tests.analysis.replay.studies import Dying, Lottery, Sleeping

ROOT = Path(__file__).parents[3]

TRACE = Trace("t", tuple(Job(f"j{i}", 10.0 * i, 1 + i % 3, 100.0 + 7 * i) for i in range(12)))
STUDY = General((TRACE,), EqualFleets(4, 2), Options())


def cases(
    study: General, policies: Sequence[str], schedulers: Sequence[str], seeds: Sequence[int], **flags: bool
) -> list[Case]:
    return ReplaySetting(study, [], [], list(schedulers), (), 0).cases(seeds, policies, **flags)


@pytest.mark.long
def test_the_answer_does_not_depend_on_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # the processes import Lottery from here
    jobs = tuple(replace(job, workload="w") for job in TRACE.jobs)
    study = General((Trace("t", jobs),), Lottery(), Options(), mtbf_h=0.5, repair_h=0.1)
    study_cases = cases(study, ["packed", "random", "pal-sticky"], ["fifo", "srtf"], [3, 4])
    study_cases = [replace(case, record=case.seed == 3) for case in study_cases]
    alone, _ = run_all(study, study_cases)
    monkeypatch.setattr("whorl.analysis.replay.study._PAYS_S", 0.0)
    steps: list[tuple[int, int]] = []
    together, refused = run_all(study, study_cases, workers=2, progress=lambda done, total: steps.append((done, total)))
    assert [result.case for result in together] == study_cases
    assert refused == []
    for result, result_beside in zip(alone, together, strict=True):
        assert result.metrics == result_beside.metrics
        assert np.array_equal(result.jct_s, result_beside.jct_s)
        assert (result.outcome is not None) == (result.case.seed == 3)
    assert steps == [(done, 12) for done in range(1, 13)]
    by_seed = {result.case.seed: result.metrics.avg_jct_s for result in alone if result.case.policy == "packed"}
    assert by_seed[3] != by_seed[4]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started after the first case, and import what they need from here."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr("whorl.analysis.replay.study._PAYS_S", 0.0)


SEEDS = [Case(0, "packed", "fifo", seed) for seed in range(9)]


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_a_killed_process_costs_only_what_it_had_not_done() -> None:
    replayed, refused = run_all(Dying(STUDY, 3), SEEDS, workers=2)
    assert {*range(9)} == {result.case.seed for result in replayed} | {case.seed for case, _ in refused}
    assert 0 in {result.case.seed for result in replayed}
    assert 3 in {case.seed for case, _ in refused}
    assert {str(error) for _, error in refused} == {
        "a process of the replay was killed, perhaps because memory ran out; try --workers 1"
    }
    until(lambda: active_children() == [])


@pytest.mark.long
@pytest.mark.usefixtures("at_once")
def test_who_gives_up_leaves_no_process() -> None:
    def give_up(ended: int, _: int) -> None:
        if ended == 2:
            assert len(active_children()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(Sleeping(STUDY, 1), SEEDS, workers=2, progress=give_up)
    until(lambda: active_children() == [])


KILLED = """
import sys
from pathlib import Path
from tests.analysis.replay.test_study import SEEDS, STUDY
from tests.analysis.replay.studies import Sleeping
from whorl.analysis.replay import study

if __name__ == "__main__":
    study._PAYS_S = 0.0
    study.run_all(Sleeping(STUDY, 0, Path(sys.argv[1])), SEEDS, workers=2)
"""


@pytest.mark.long
def test_processes_end_with_the_one_that_asks(tmp_path: Path) -> None:
    """Killed outright, it cannot end them."""
    script, pids = tmp_path / "script.py", [tmp_path / "pid.1", tmp_path / "pid.2"]
    script.write_text(KILLED)
    path = os.pathsep.join([str(ROOT), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pid")], env=os.environ | {"PYTHONPATH": path}
    ) as child:
        try:
            until(lambda: all(pid.exists() and pid.read_text() for pid in pids))
        finally:
            child.kill()
    until(lambda: not any(runs(int(pid.read_text())) for pid in pids))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked for has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_policies_of_a_seed_meet_the_same_failures() -> None:
    study = General((TRACE,), EqualFleets(4, 2), Options(), mtbf_h=0.02, repair_h=0.02)
    draw_1, again, draw_2 = (study.run(Case(0, "packed", "fifo", seed)) for seed in (1, 1, 2))
    assert draw_1.metrics == again.metrics
    assert draw_1.metrics.restarts > 0
    assert draw_1.metrics != draw_2.metrics


def test_failures_are_read_by_the_names_of_nodes(tmp_path: Path) -> None:
    names = World.regular(3, 2).fleet.node_names
    path = tmp_path / "failures.csv"
    path.write_text("node,down_s,up_s\nN2,5,10\n0,7,\n")
    failures = read_failures(path, names)
    assert [(failure.node, failure.down_s, failure.up_s) for failure in failures] == [
        ("n2", 5.0, 10.0),
        ("n0", 7.0, math.inf),
    ]
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

    def draw(self, seed: int) -> World:
        return World.regular(4, 4, {"A": [3.0, *[1.0] * 15]})


def test_a_job_that_never_fits_costs_no_other_trace_and_no_other_policy() -> None:
    """The sentence names trace and job, and the policy where that is why."""
    too_wide = Trace("wide", (Job("vast", 0, 17, 10, "A"),))
    two_too_wide = Trace("nearly", (Job("all", 0, 16, 10, "A"),))
    study = General((too_wide, TRACE, two_too_wide), OneFarOff(), Options(failures=(Failure("n0", 1, math.inf),)))
    results, refused = run_all(study, cases(study, ["packed", "drain-outliers"], ["fifo"], [0]))
    assert [(result.trace, result.case.policy) for result in results] == [("t", "packed"), ("t", "drain-outliers")]
    errors = list(dict.fromkeys(str(error) for _, error in refused))
    for error, fragments in zip(
        errors,
        [("wide: job vast", "17 GPUs"), ("nearly: job all", "packed gives"), ("nearly: ", "drain-outliers")],
        strict=True,
    ):
        assert all(fragment in error for fragment in fragments), error
