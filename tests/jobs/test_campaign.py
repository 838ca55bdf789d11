"""The driver of campaigns over a Slurm that refuses, hangs and loses answers; and what it makes of nodes and runs."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.cli.documents.campaign import plan_document, plan_mapping, status_mapping
from whorl.errors import InputError, SchedulerError, StoreError
from whorl.jobs import campaign_driver, scheduler
from whorl.jobs.campaign import (
    USUAL_OPTIONS,
    CampaignChoice,
    CampaignNode,
    CampaignRequest,
    SubmitOptions,
    allocated_h,
    campaign_nodes,
    choose_campaign,
    declare_campaign,
    job_minutes,
    known_campaigns,
)
from whorl.jobs.campaign_driver import DriverOptions, run_campaign
from whorl.jobs.campaign_status import (
    CampaignStatus,
    GpuState,
    NodeState,
    campaign_status,
    coverage,
    plan_campaign,
)
from whorl.jobs.slurm import Slurm, node, partition
from whorl.probes.catalogue import suite
from whorl.store import Store
from whorl.store.events import Event, event_rows
from whorl.store.system.locks import locked
from whorl.store.vocabulary import EventKind
from whorl.tests.jobs.fake_pbs import FakePbs, pbs_text
from whorl.tests.jobs.fake_slurm import FakeSlurm, node_line, store_runs
from whorl.tests.sizes import count
from whorl.tests.stores import copied_stores, new_store

LAUNCH = CampaignChoice("autumn", "quick", ("launch",))
REQUEST = CampaignRequest("autumn", "quick", ("launch", "idle"), True, "busy", cluster="fake", began_ns=10**18)


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pauses take no time, and stores are copies."""
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time_ns=time.time_ns)
    for module in (campaign_driver, scheduler):
        monkeypatch.setattr(module, "time", clock)
    with copied_stores():
        yield


def drive(
    slurm: FakeSlurm,
    store: Path,
    choice: CampaignChoice = LAUNCH,
    *,
    ends: Callable[[], Any] | None = None,
    **limits: Any,
) -> CampaignStatus:
    """Run a campaign whose jobs end, with their runs, between two looks at the queue."""
    end = ends or (lambda: slurm.end_jobs(store, choice.campaign or ""))
    return run_campaign(
        store,
        choice,
        scheduler=slurm,
        driver=DriverOptions(**limits, progress=lambda *_: end()),
    )


# -- Slurm that does not do as it is told ----------------------------------------------------------------------


@pytest.mark.long
def test_a_job_whose_number_was_lost_is_found_in_the_queue(slurm: FakeSlurm, tmp_path: Path) -> None:
    """sbatch hands the job over, and is then cut off: the driver must not send it again."""
    slurm.timeout_s = 1.0
    slurm.sbatch(after="exec sleep 3\n")
    rounds = []

    def ends() -> None:
        rounds.append(len(slurm.submitted()))
        slurm.sbatch()
        if len(rounds) > 2:
            slurm.end_jobs(tmp_path / "store", "autumn")

    report = drive(slurm, tmp_path / "store", ends=ends)
    assert report.is_complete
    assert rounds[0] == 1
    assert sorted(slurm.submitted().values()) == ["whorl:autumn:n01", "whorl:autumn:n02", "whorl:autumn:n03"]


@pytest.mark.long
def test_a_limit_on_jobs_is_waited_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    refuses = 'if ls {folder}/queue/1* >/dev/null 2>&1 && grep -q RUNNING {folder}/queue/1*; then echo "sbatch: error: '
    refuses += (
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\" >&2; exit 1; fi\n"
    )
    slurm.sbatch(before=refuses)
    report = drive(slurm, tmp_path / "store")
    assert report.is_complete
    assert len(slurm.submitted()) == 3


@pytest.mark.long
def test_a_controller_that_restarts_is_waited_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    down = slurm.folder / "down"
    before = f'if [ -f {down} ]; then rm {down}; echo "Unable to contact slurm controller" >&2; exit 1; fi\n'
    slurm.squeue(before=before)
    sentences = []

    def progress(_: int, __: int, event: str) -> None:
        sentences.append(event)
        if len(sentences) == 1:
            down.touch()
        slurm.end_jobs(tmp_path / "store", "autumn")

    assert run_campaign(
        tmp_path / "store", LAUNCH, scheduler=slurm, driver=DriverOptions(progress=progress)
    ).is_complete
    assert any("controller does not answer" in event for event in sentences)


def test_a_scheduler_that_does_not_answer_is_given_up(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.does("squeue", 'echo "error: Unable to contact slurm controller (connect failure)" >&2; exit 1\n')
    sentence = (
        "controller does not answer.*; jobs that were submitted stay in the queue: run the command again to go on"
    )
    with pytest.raises(SchedulerError, match=sentence):
        drive(slurm, tmp_path / "store")
    slurm.does("scontrol", "exec sleep 5\n")
    slurm.timeout_s = 0.2
    with pytest.raises(SchedulerError, match=r"did not answer `scontrol` within 0.2 s"):
        plan_campaign(tmp_path / "other", LAUNCH, scheduler=slurm)


@pytest.mark.long
def test_without_slurm_the_status_tells_what_the_store_has(slurm: FakeSlurm, tmp_path: Path) -> None:
    drive(slurm, tmp_path / "store")
    nowhere = Slurm(environment={"PATH": str(tmp_path)})
    report = campaign_status(tmp_path / "store", scheduler=nowhere)
    assert [(row.name, row.state) for row in report.nodes] == [(f"n0{i}", "covered") for i in (1, 2, 3)]
    assert "there is no `scontrol` here" in report.notes[0]
    with pytest.raises(SchedulerError, match="there is no `scontrol` here"):
        run_campaign(tmp_path / "other", LAUNCH, scheduler=nowhere)
    assert not (tmp_path / "other").exists()


def test_what_slurm_refuses_of_some_nodes_does_not_keep_cron_from_the_others(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Each call is a new driver, and n01 to n03 come first: more than may wait at once."""
    refused = [node_line(f"n0{number}", partitions="staff") for number in (1, 2)]
    nodes = [*refused, node_line("n03"), node_line("n04"), node_line("n05")]
    (slurm.folder / "nodes").write_text("".join(nodes))
    (slurm.folder / "partitions").write_text("PartitionName=staff State=UP\nPartitionName=batch State=UP\n")
    before = (
        "cat > {folder}/asked\nrefuses() { echo $1 >&2; echo >> {folder}/refused; exit 1; }\n"
        "if grep -q partition=staff {folder}/asked; then refuses 'Invalid account'; fi\n"
        "if grep -q nodelist=n03 {folder}/asked; then refuses 'Requested node configuration is not available'; fi\n"
    )
    store, once = tmp_path / "store", DriverOptions(once=True, max_pending=1)
    run_campaign(store, replace(LAUNCH, nodes="n04"), scheduler=slurm, driver=once)
    slurm.end_jobs(store, "autumn")
    slurm.sbatch(before=before + "exec < {folder}/asked\n")
    choice = replace(LAUNCH, campaign="winter")
    store_runs(Store.open(store), declare_campaign(Store.open(store), choose_campaign(None, choice)), "n04", "7")
    report = run_campaign(store, choice, scheduler=slurm, driver=once)
    assert [row.state for row in report.nodes] == ["unavailable"] * 3 + ["covered", "running"]
    assert report.nodes[1].why == "Slurm refused its job: Invalid account"
    assert len((slurm.folder / "refused").read_text()) == 2, "one job told of all in partition staff"


@pytest.mark.long
def test_the_queue_is_asked_once_a_look_and_left_alone_the_longer_it_takes(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm.folder / "nodes").write_text(node_line("n01") + node_line("n02", "ALLOCATED"))
    slurm.squeue(before="echo >> {folder}/asked\n")
    plan_campaign(tmp_path / "store", LAUNCH, scheduler=slurm)
    assert len((slurm.folder / "asked").read_text()) == 1
    clock = vars(campaign_driver)["time"]
    slept: list[float] = []

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        clock.sleep(pause_s)

    def slow_queue(**_: Any) -> list[Any]:
        clock.sleep(4.0)
        return Slurm.queue(slurm)

    monkeypatch.setattr(campaign_driver, "time", SimpleNamespace(**{**vars(clock), "sleep": sleep}))
    monkeypatch.setattr(slurm, "queue", slow_queue)
    assert drive(slurm, tmp_path / "store").is_complete
    assert slept
    assert min(slept) >= 40


@pytest.mark.long
def test_runs_that_come_late_are_waited_for_by_the_next_call_of_cron(slurm: FakeSlurm, tmp_path: Path) -> None:
    store, once = tmp_path / "store", DriverOptions(once=True, settle_s=60)
    (slurm.folder / "nodes").write_text(node_line("n01"))
    run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
    slurm.end_jobs(store, "autumn", measured=False)
    for ended_s, jobs in ((5, 1), (3600, 2)):
        slurm.squeue(f"s/COMPLETED.*/&|{time.time() - ended_s:.0f}/")
        run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
        assert len(slurm.submitted()) == jobs


@pytest.mark.long
def test_a_budget_is_kept(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A job in the queue counts as long as it may run, one that has ended as long as it ran."""
    one_h = allocated_h(choose_campaign(None, LAUNCH), 4, SubmitOptions())
    limits = DriverOptions(budget_h=1.5 * one_h, once=True)
    run_campaign(tmp_path / "store", LAUNCH, scheduler=slurm, driver=limits)
    slurm.end_jobs(tmp_path / "store", "autumn")
    report = run_campaign(tmp_path / "store", LAUNCH, scheduler=slurm, driver=limits)
    assert [row.state for row in report.nodes] == ["covered", "running", "to do"]
    assert f"the budget of {1.5 * one_h:g} GPU-hours is spent or does not suffice" in report.notes[0]
    assert report.notes[0].endswith(f"its job may take {one_h:.2g}")
    slurm.end_jobs(tmp_path / "store", "autumn")
    assert drive(slurm, tmp_path / "store", budget_h=1.5 * one_h).is_complete
    assert (
        run_campaign(
            tmp_path / "store", CampaignChoice("winter", "quick"), scheduler=slurm, driver=DriverOptions(budget_h=0.0)
        ).count(NodeState.TO_DO)
        == 3
    )


def test_one_round_for_cron_sends_one_job_until_a_first_run_is_stored(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "nodes").write_text("".join(node_line(f"n0{number}") for number in range(1, 5)))
    store, once = tmp_path / "store", DriverOptions(max_pending=2, once=True)
    report = run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
    assert [row.state for row in report.nodes] == ["running", "to do", "to do", "to do"]
    assert run_campaign(store, LAUNCH, scheduler=slurm, driver=once) == report
    slurm.end_jobs(store, "autumn")
    report = run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
    assert [row.state for row in report.nodes] == ["covered", "running", "running", "to do"]


@pytest.mark.long
def test_the_first_job_tells_of_all_others(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Also where it waits: for a node that is busy, or to be started again after it was preempted."""
    store, once = tmp_path / "store", DriverOptions(once=True)
    (slurm.folder / "nodes").write_text("".join(node_line(f"n0{number}", "ALLOCATED") for number in (1, 2, 3)))
    slurm.squeue("s/RUNNING|None/PENDING|Resources/")
    for _ in range(2):
        assert run_campaign(store, LAUNCH, scheduler=slurm, driver=once).count(NodeState.WAITING) == 1
    (slurm.folder / "nodes").write_text(
        node_line("n01", "ALLOCATED") + "".join(node_line(f"n0{number}") for number in (2, 3))
    )
    assert run_campaign(store, LAUNCH, scheduler=slurm, driver=once).count(NodeState.WAITING) == 2, "n02 tells sooner"
    slurm.squeue(f"s/RUNNING|None/PENDING|BeginTime/; s/$/|||{time.time() + 120:.0f}/")
    assert run_campaign(store, LAUNCH, scheduler=slurm, driver=once).count(NodeState.WAITING) == 3
    (slurm.folder / "nodes").write_text("".join(node_line(f"n0{number}") for number in range(1, 6)))
    few = DriverOptions(once=True, max_pending=3)
    assert run_campaign(store, LAUNCH, scheduler=slurm, driver=few).count(NodeState.WAITING) == 3, "--max-pending"


def test_busy_nodes_get_jobs_in_the_order_in_which_they_are_free(slurm: FakeSlurm, tmp_path: Path) -> None:
    """By the limits of all jobs that run there: n02 is shared by two, and on n04 runs a job without a limit."""
    busy = ["ALLOCATED", "MIXED", "ALLOCATED", "ALLOCATED"]
    lines = [node_line(f"n0{number}", state) for number, state in enumerate(["IDLE", *busy], 1)]
    (slurm.folder / "nodes").write_text("".join(lines))
    ends = [("n02", 1_800_000_000), ("n[02,05]", 1_800_004_000), ("n03", 1_800_002_000), ("n04", 0)]
    for number, (hosts, end) in enumerate(ends):
        (slurm.folder / "queue" / f"{number}").write_text(f"{number}|RUNNING|None|4242|train||{end}|{hosts}\n")
    store, once = tmp_path / "store", DriverOptions(once=True, max_pending=6)
    run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
    slurm.end_jobs(store, "autumn")
    plan = plan_campaign(store, LAUNCH, scheduler=slurm)
    busy_rows = plan_mapping(plan, USUAL_OPTIONS, None)["busy"]
    times = {row["node"]: row["free_by"] and row["free_by"].isoformat() for row in busy_rows}
    late = "2027-01-15T09:06:40"
    assert times == {"n02": late, "n03": "2027-01-15T08:33:20", "n04": None, "n05": late}
    sentence = (
        "4 nodes busy: n03 by 2027-01-15 08:33 UTC; n02 by 2027-01-15 09:06 UTC; n05 by 2027-01-15 09:06 UTC; 1 without"
    )
    assert any(str(line).startswith(sentence) for line in plan_document(plan, USUAL_OPTIONS, None, named=True).parts)
    run_campaign(store, LAUNCH, scheduler=slurm, driver=once)
    campaign_jobs = [name for name in slurm.submitted().values() if name.startswith("whorl:")]
    assert campaign_jobs == [f"whorl:autumn:{node}" for node in ("n01", "n03", "n02", "n05")], "half of --max-pending"
    rows = {row["node"]: row for row in status_mapping(campaign_status(store, scheduler=slurm))["by_node"]}
    assert rows["n01"]["free_by"] is None
    assert rows["n04"]["state"] == "to do"


@pytest.mark.long
def test_a_node_that_dies_in_its_job_is_tried_three_times(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "nodes").write_text(node_line("n01"))
    store = tmp_path / "store"
    report = drive(slurm, store, ends=lambda: slurm.end_jobs(store, "autumn", "NODE_FAIL", measured=False), settle_s=30)
    (only,) = report.nodes
    assert (only.state, only.tries) == ("failed", 3)
    assert "3 jobs measured 0 of 4 GPUs; the last one ended as NODE_FAIL" in (only.why or "")
    assert list(slurm.submitted().values()) == ["whorl:autumn:n01", "whorl:autumn:n01:2", "whorl:autumn:n01:3"]
    for path in (slurm.folder / "queue").iterdir():
        path.unlink()  # Slurm forgets jobs after some minutes; the store does not
    assert drive(slurm, store).nodes[0].state == "failed"
    assert drive(slurm, store, tries=4).is_complete, "the node was mended"
    assert list(slurm.submitted().values()) == ["whorl:autumn:n01:4"]


@pytest.mark.long
def test_a_campaign_whose_first_jobs_all_failed_goes_on_when_it_is_run_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "nodes").write_text("".join(node_line(f"n0{number}") for number in range(1, 6)))
    store = new_store(tmp_path / "store").root

    def fail() -> None:
        slurm.end_jobs(store, "autumn", "FAILED", measured=False)

    for number in range(1, count(2, short=1) + 1):  # what was wrong is not mended yet
        folder = store / "logs" / "autumn"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"n0{number}.out").write_text("CuPy is not installed\n")
        with pytest.raises(SchedulerError, match="the first job ended and stored nothing, so no more") as refused:
            drive(slurm, store, ends=fail, settle_s=0)
        assert str(refused.value).endswith(
            f"; n0{number}: 1 job stored nothing; {folder}/n0{number}.out ends: CuPy is not installed"
        )
        assert len(slurm.submitted()) == number, "another node at the next call"
    assert drive(slurm, store).is_complete


def test_a_clock_mends_nothing_and_four_nodes_are_enough(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "nodes").write_text("".join(node_line(f"n0{number}") for number in range(1, 6)))
    for number in range(1, 5):
        (slurm.folder / "queue" / f"{number}").write_text(
            f"{number}|FAILED|None|{os.geteuid()}|whorl:autumn:n0{number}|\n"
        )
    with pytest.raises(SchedulerError, match="the jobs on 4 nodes ended and stored nothing"):
        run_campaign(tmp_path / "store", LAUNCH, scheduler=slurm, driver=DriverOptions(once=True))


@pytest.mark.long
def test_a_campaign_whose_first_job_slurm_refused_may_be_begun_with_other_options(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    slurm.does("sbatch", 'echo "sbatch: error: Invalid qos specification" >&2; exit 1\n')
    with pytest.raises(SchedulerError, match=r"Slurm refused the job for node n01: .*Invalid qos"):
        drive(slurm, store)
    assert campaign_status(store, scheduler=slurm).count(NodeState.TO_DO) == 3
    slurm.sbatch()
    narrow = replace(LAUNCH, nodes="n[01-02]")
    assert [row.state for row in drive(slurm, store, narrow).nodes] == ["covered", "covered"]
    assert [row.nodes for row in known_campaigns(Store.open(store))] == ["n[01-02]"]
    with pytest.raises(InputError, match="was begun with --nodes n"):
        choose_campaign(Store.open(store), replace(LAUNCH, nodes="n03"))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.long
def test_a_driver_that_is_killed_after_its_first_job_sends_it_once(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Slurm has the job, and the store has no event of it: the campaign is known all the same."""
    store = tmp_path / "store"

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(campaign_driver, "event_rows", killed)
        with pytest.raises(SystemExit):
            drive(slurm, store)
    assert list(slurm.submitted().values()) == ["whorl:autumn:n01"]
    assert {row.name: row.state for row in campaign_status(store, scheduler=slurm).nodes}["n01"] == "running"
    if ended:  # and Slurm has forgotten it
        store_runs(Store.open(store), known_campaigns(Store.open(store))[0], "n01", "101", began_ns=time.time_ns())
        (slurm.folder / "queue" / "101").unlink()
    assert drive(slurm, store).is_complete
    later = ["whorl:autumn:n02", "whorl:autumn:n03"]
    assert sorted(slurm.submitted().values()) == (later if ended else ["whorl:autumn:n01", *later])


@pytest.mark.long
def test_jobs_of_another_user_count_if_they_are_of_this_store(slurm: FakeSlurm, tmp_path: Path) -> None:
    store, other_store, once = tmp_path / "store", tmp_path / "other", DriverOptions(once=True)
    run_campaign(store, LAUNCH, scheduler=slurm, driver=replace(once, max_pending=1))
    (job,) = (slurm.folder / "queue").iterdir()
    of_another_user = job.read_text().replace(f"|{os.geteuid()}|", "|4242|")
    assert of_another_user != job.read_text()
    job.write_text(of_another_user)
    state = {row.name: row.state for row in campaign_status(store, scheduler=slurm).nodes}
    assert state == {"n01": "running", "n02": "to do", "n03": "to do"}
    assert drive(slurm, store).is_complete
    assert sorted(slurm.submitted().values()) == [f"whorl:autumn:n0{i}" for i in (1, 2, 3)]
    winter = replace(LAUNCH, campaign="winter")
    for folder in (store, other_store):
        assert run_campaign(folder, winter, scheduler=slurm, driver=once).count(NodeState.RUNNING) == 1
    assert list(slurm.submitted().values()).count("whorl:winter:n01") == 2, "each store has a job of its own"


@pytest.mark.long
def test_a_job_without_its_comment_counts_only_for_its_user(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A site may remove comments; and anybody may have a campaign of this name."""
    store = tmp_path / "store"
    run_campaign(store, LAUNCH, scheduler=slurm, driver=DriverOptions(once=True, max_pending=1))
    (job,) = (slurm.folder / "queue").iterdir()
    bare = job.read_text().partition("whorl:2")[0] + "\n"
    job.write_text(bare)
    assert campaign_status(store, scheduler=slurm).count(NodeState.RUNNING) == 1
    job.write_text(bare.replace(f"|{os.geteuid()}|", "|4242|"))
    assert campaign_status(store, scheduler=slurm).count(NodeState.RUNNING) == 0


@pytest.mark.long
def test_one_driver_of_a_campaign_at_a_time(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "store")
    monkeypatch.setattr(campaign_driver, "_LONGER_S", 0.0)
    slurm.timeout_s = 0.5
    with (
        locked(store.root / "campaign-autumn.lock", "it"),
        pytest.raises(StoreError, match=r"holds campaign autumn .*: stop it first, or choose another name"),
    ):
        drive(slurm, store.root)
    assert not slurm.submitted()
    assert drive(slurm, store.root).is_complete


@pytest.mark.long
def test_a_driver_that_was_killed_while_sbatch_ran_is_waited_for(slurm: FakeSlurm, tmp_path: Path) -> None:
    """sbatch holds the campaign's lock: a driver that starts meanwhile would not yet see the job in the queue."""
    store = new_store(tmp_path / "store")
    (slurm.folder / "held").touch()
    slurm.sbatch(before="ls -l /proc/self/fd | grep -c campaign-autumn.lock > {folder}/locks\n")
    assert drive(slurm, store.root).is_complete
    assert (slurm.folder / "locks").read_text() == "1\n"


# -- nodes -----------------------------------------------------------------------------------------------------


def inventory(
    lines: str, partitions: str, request: CampaignRequest = REQUEST, options: SubmitOptions = USUAL_OPTIONS
) -> list[CampaignNode]:
    nodes = {row.name: row for row in map(node, lines.splitlines()) if row}
    partition_rows = {row.name: row for row in map(partition, partitions.splitlines()) if row}
    return campaign_nodes(request, options, nodes, partition_rows)


BATCH = "PartitionName=batch Default=YES MaxTime=1:00:00 State=UP\n"


def test_nodes_of_typed_gres_and_several_partitions() -> None:
    lines = (
        node_line("n01", gres="gpu:fast:3(S:0),gpu:slow:1", partitions="debug,batch")
        + node_line("n02", gres="gpu:8(S:0-1)", partitions="debug")
        + node_line("n03", gres="(null)")
        + node_line("n04", "MIXED", partitions="closed,debug")
    )
    partitions = (
        BATCH + "PartitionName=debug MaxTime=0:30:00 State=UP\nPartitionName=closed MaxTime=UNLIMITED State=DOWN\n"
    )
    report = inventory(lines, partitions)
    assert [(row.name, row.gpus, row.partition, row.idle) for row in report] == [
        ("n01", 4, "batch", True),
        ("n02", 8, "debug", True),
        ("n04", 4, "debug", False),
    ]
    slow = SubmitOptions(start_up_s=2640)
    minutes = job_minutes(REQUEST, 8, slow)
    assert 44 < minutes < 60
    obstacles = {row.name: row.obstacle for row in inventory(lines, partitions, options=slow)}
    assert obstacles["n01"] is None
    assert obstacles["n02"] == f"partition debug allows jobs of 30 min, and this one asks for {minutes} min"


def test_nodes_that_wait() -> None:
    lines = (
        node_line("n01", "DOWN*", more="Reason=PSU [root@2026-11-20T08:00:00]")
        + node_line("n02", "IDLE+RESERVED")
        + node_line("n03", "MIXED+PLANNED")
        + node_line("n04", partitions="closed")
        + node_line("n05", partitions="staff")
        + node_line("n06", partitions="wide")
    )
    partitions = (
        BATCH
        + "PartitionName=wide State=UP MinNodes=2\n"
        + "PartitionName=closed State=DRAIN\nPartitionName=staff State=UP AllowGroups=nobody-at-all RootOnly=YES\n"
    )
    report = {row.name: row.obstacle for row in inventory(lines, partitions)}
    assert report == {
        "n01": "down*: PSU",
        "n02": "reserved",
        "n03": None,
        "n04": "partition closed is down or closed to this user",
        "n05": "partition staff is down or closed to this user",
        "n06": "partition wide allows no jobs of fewer than 2 nodes",
    }
    reserved = SubmitOptions(options=("--reservation=test",))
    assert inventory(node_line("n02", "IDLE+RESERVED"), BATCH, options=reserved)[0].obstacle is None


def test_only_the_nodes_of_a_simulated_cluster_get_jobs(slurm: FakeSlurm, tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    file.write_text('cluster = "tiny"\nnodes = "n[01,03,99]"\n')
    report = plan_campaign(tmp_path / "store", CampaignChoice(suite="quick", fleet=str(file)), scheduler=slurm)
    assert [row.name for row in report.nodes] == ["n01", "n03"]
    with pytest.raises(InputError, match=r"sim\.toml lists no node n02$"):
        plan_campaign(
            tmp_path / "store", CampaignChoice(suite="quick", fleet=str(file), nodes="n[01-02]"), scheduler=slurm
        )
    file.write_text('cluster = "tiny"\nnodes = "x[01-02]"\n')
    with pytest.raises(InputError, match=r"no node that .*sim\.toml lists has GPUs by its Gres"):
        plan_campaign(tmp_path / "store", CampaignChoice(suite="quick", fleet=str(file)), scheduler=slurm)


@pytest.mark.long
def test_a_campaign_goes_on_without_a_node_that_slurm_lost(slurm: FakeSlurm, tmp_path: Path) -> None:
    store = tmp_path / "store"
    drive(slurm, store, CampaignChoice("autumn", "quick", ("launch",), nodes="n[01-02]"), max_pending=1, once=True)
    (slurm.folder / "nodes").write_text(node_line("n01") + node_line("n03"))
    report = drive(slurm, store)
    assert [(row.name, row.state) for row in report.nodes] == [("n01", "covered"), ("n02", "unavailable")]
    assert report.nodes[1].why == "Slurm has no such node any more"
    winter = replace(LAUNCH, campaign="winter")
    drive(slurm, store, winter, once=True, ends=lambda: None)
    slurm.end_jobs(store, "winter", measured=False)
    (slurm.folder / "nodes").write_text(node_line("n01", gres="(null)") + node_line("n03"))
    report = drive(slurm, store, winter)
    assert [(row.name, row.state) for row in report.nodes] == [("n03", "covered"), ("n01", "unavailable")]
    assert report.nodes[1].why == "Slurm lists it without GPUs, or in another partition"


# -- what the store has ----------------------------------------------------------------------------------------


def tell(store: Store, kind: EventKind, gpu: str | None, **settings: Any) -> None:
    event = Event(kind, gpu, "it is so", settings.pop("ts_ns", 10**18), campaign="autumn", **settings)
    store.append({"events": pa.Table.from_batches([event_rows([event], cluster="fake")])}, f"event-{time.time_ns()}")


def test_what_counts_as_measured(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    store_runs(store, REQUEST, "n01", "1", failed=2)
    store_runs(
        store, CampaignRequest("winter", "quick", ("launch",), True, "busy", cluster="fake", began_ns=1), "n02", "2"
    )
    tell(store, EventKind.PROBE_FAILED, "GPU-n03-0", node="n03")
    tell(store, EventKind.PROBE_NOT_RUN, "GPU-n01-2", workload="idle")
    tell(store, EventKind.JOB_SUBMITTED, None, node="n04", n=2, job_id="7")
    report = coverage(store, REQUEST)
    assert {name: row.settled for name, row in report.items()} == {"n01": 4, "n03": 1, "n04": 0}
    assert [gpu.state for gpu in report["n01"].gpus] == ["covered", "covered", "failed", "covered"]
    assert report["n01"].gpus[2].why == "launch: it fell off the bus"
    assert report["n03"].count(GpuState.FAILED) == 1
    assert (report["n01"].tries, report["n04"].tries) == (1, 2)
    assert report["n01"].span_s == pytest.approx(1)
    assert report["n01"].measured_s == pytest.approx(7)


# -- what is asked ---------------------------------------------------------------------------------------------


def test_a_campaign_goes_on_as_it_began(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    first = declare_campaign(store, choose_campaign(store, CampaignChoice(suite="quick", partition="gpu")))
    assert first.neighbours == "busy"
    assert list(first.probes) == [probe.name for probe in suite("quick")]
    assert choose_campaign(store, CampaignChoice()) == first
    assert choose_campaign(store, CampaignChoice(suite="quick")) == first
    whole_suite = choose_campaign(store, CampaignChoice(suite="full"))
    assert whole_suite.is_new
    assert whole_suite.neighbours == "idle", "a probe of suite full uses a second GPU"
    assert choose_campaign(store, CampaignChoice(suite="quick", neighbours="idle")).campaign == f"{first.campaign}-2"
    assert known_campaigns(store) == [first]
    with pytest.raises(InputError, match="cannot name a campaign of jobs"):
        choose_campaign(store, CampaignChoice("n" * 101, "quick"))
    narrow = declare_campaign(store, replace(first, began_ns=None, nodes="n01"))
    assert known_campaigns(store) == [narrow], "also where its clock was set back"
    first = narrow
    store_runs(store, first, "n01", "1")
    with pytest.raises(InputError, match=r"was begun with --partition gpu: leave the option out to go on, or choose"):
        choose_campaign(store, CampaignChoice(first.campaign, partition="cpu"))
    with pytest.raises(InputError, match="was begun with the probes idle, "):
        choose_campaign(store, CampaignChoice(first.campaign, probes=("launch",)))
    with pytest.raises(InputError, match="choose what to measure: --suite quick, standard or full"):
        choose_campaign(None, CampaignChoice())


@pytest.mark.parametrize("verb", ["plan", "run", "doctor"])
def test_where_no_slurm_is_the_answer_says_what_measures_without(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    suite = [] if verb == "doctor" else ["--suite", "quick"]
    done = CliRunner().invoke(cli, ["campaign", verb, *suite, "--store", str(tmp_path / "fleet")])
    assert done.exit_code == 5
    assert "there is no `scontrol` here" in done.stderr
    assert "`whorl campaign render` prints a script for another scheduler" in done.stderr


# -- another scheduler -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_whole_campaign_through_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is down, one is busy until its job reaches its limit, a job fails, and qsub is cut off once."""
    pbs, store = FakePbs(tmp_path / "pbs", nodes=5), tmp_path / "store"
    pbs.vnodes["n04"] |= {"state": "down", "comment": "node down: no answer"}
    pbs.vnodes["n05"] |= {"state": "job-exclusive", "jobs": "7.pbs-01/0"}
    pbs.show_nodes()
    training = {"Job_Name": "train", "Job_Owner": "nobody@login", "job_state": "R", "exec_host": "n05/0*64"}
    times = {"Resource_List.walltime": "01:00:00", "stime": "Wed Nov 18 22:00:00 2026"}
    (pbs.folder / "queue" / "7").write_text(pbs_text("Job Id: 7.pbs-01", training | times))
    rounds: list[int] = []

    def ends(*_: object) -> None:
        rounds.append(len(pbs.submitted()))
        if rounds[-1] > 3 and pbs.vnodes["n05"]["state"] != "free":
            (pbs.folder / "queue" / "7").unlink()
            pbs.vnodes["n05"] |= {"state": "free"}
            del pbs.vnodes["n05"]["jobs"]
            pbs.show_nodes()
        pbs.end_jobs(store, "autumn", exit_status=1 if len(rounds) == 3 else 0)

    pbs.qsub('[ -f {folder}/cut ] || { touch {folder}/cut; echo "qsub: Connection refused" >&2; exit 1; }\n')
    (free_s,) = [node.free_s for node in plan_campaign(store, LAUNCH, scheduler=pbs).nodes if node.name == "n05"]
    assert free_s == datetime(2026, 11, 18, 23, tzinfo=UTC).timestamp()
    driver = DriverOptions(settle_s=0, progress=ends)
    report = run_campaign(store, LAUNCH, scheduler=pbs, driver=driver)
    assert [node.state for node in report.nodes] == ["covered"] * 3 + ["unavailable", "covered"]
    assert report.nodes[3].why == "down: node down: no answer"
    jobs = [name for name in pbs.submitted() if name != "train"]
    assert len(set(jobs)) == len(jobs), "nothing is submitted twice"
    assert {name.split(":")[2] for name in jobs} == {"n01", "n02", "n03", "n05"}
    assert any(name.endswith(":2") for name in jobs), "the job that failed"
    tries = Counter(name.split(":")[2] for name in jobs)
    assert {node.name: node.tries for node in report.nodes} == {"n04": 0, **tries}, (
        "a job of the queue is that of its runs"
    )
    assert "#PBS -l place=exclhost" in (pbs.folder / "script-101").read_text()
    monkeypatch.setenv("PATH", f"{pbs.folder}:{os.environ['PATH']}")
    status = CliRunner().invoke(cli, ["campaign", "status", "--scheduler", "pbs", "--store", str(store), "--json"])
    assert json.loads(status.stdout)["nodes"]["covered"] == 4
    assert status.stderr.startswith("whorl: note: not tried on a real PBS")
    assert status.stderr.count("\n") == 1


@pytest.mark.long
def test_the_doctor_asks_a_node_through_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """qsub runs the script at once, and its output goes where the script says."""
    pbs, file = FakePbs(tmp_path / "pbs"), tmp_path / "sim.toml"
    file.write_text('cluster = "tiny"\nnodes = "n[01-03]"\ngpus_per_node = 3\n')
    ran = 'cat > {folder}/job; sh {folder}/job > "$(sed -n "s/^#PBS -o //p" {folder}/job)" 2>&1; exec < {folder}/job\n'
    pbs.qsub(ran)
    monkeypatch.setenv("PATH", f"{pbs.folder}:{os.environ['PATH']}")
    line = ["campaign", "doctor", "--scheduler", "pbs", "--nodes", "n02", "--store", str(tmp_path / "store"), "--json"]
    done = CliRunner().invoke(cli, [*line, "--set", f"fleet={file}", "--setup", "export SLURMD_NODENAME=n02"])
    assert done.exit_code == 6, done.output
    findings = {row["what"]: row for row in json.loads(done.stdout)["findings"]}
    assert findings["GPUs"]["detail"] == "3 x V100-SXM2, simulated"
    assert findings["PBS's GPUs"]["detail"] == "PBS says 4, the node has 3"
    assert "not tried on a real PBS" in done.stderr
    assert "job 101 is sent to node n02" in done.stderr


@pytest.mark.long
def test_a_node_that_fails_tells_nothing_of_the_others(slurm: FakeSlurm, tmp_path: Path) -> None:
    store = tmp_path / "store"
    ends = iter(["NODE_FAIL", "FAILED"])  # the second one without output: it did not begin

    def end() -> None:
        state = next(ends, "COMPLETED")
        slurm.end_jobs(store, "autumn", state, measured=state == "COMPLETED")
        (store / "logs" / "autumn" / "n01.out").write_text("measuring\n")

    assert drive(slurm, store, ends=end, settle_s=0).is_complete
    assert list(slurm.submitted().values())[:3] == ["whorl:autumn:n01", "whorl:autumn:n02", "whorl:autumn:n03"]
