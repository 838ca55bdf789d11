"""What is read from the scheduler's text, of this version and of others."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whorl.errors import InputError, SchedulerError
from whorl.jobs.scheduler import Node, Partition
from whorl.jobs.slurm import Slurm, job_record, node, nodes_for, partition
from whorl.store.hostlist import compress, expand
from whorl.tests.sizes import count


def test_a_partition() -> None:
    line = (
        "PartitionName=batch AllowGroups=staff,gpu AllowAccounts=ALL Default=YES MaxTime=1-02:03:30 RootOnly=NO "
        "PriorityTier=1 State=DRAIN TRES=cpu=8"
    )
    assert partition(line) == Partition("batch", default=True, up=False, longest_min=26 * 60 + 3.5)
    parsed = partition("PartitionName=open AllowGroups=ALL MaxTime=UNLIMITED RootOnly=NO State=UP")
    assert parsed == Partition("open", default=False, up=True, longest_min=math.inf)
    assert partition("") is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [("HetJobId=1 HetJobOffset=0", "heterogeneous"), ("Deadline=1798108800", "deadline"), ("Deadline=N/A", "")],
)
def test_jobs_whose_nodes_must_not_be_changed(fields: str, why: str) -> None:
    parsed = job_record(f"JobId=1 JobState=PENDING {fields}")
    assert parsed is not None
    assert why in parsed.strict
    assert bool(parsed.strict) is bool(why)


def test_a_name_of_a_job_that_looks_like_fields() -> None:
    parsed = job_record(
        "JobId=3 JobName=x\nNumNodes=9-9 UserId=bob(1) HetJobId=4 UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A "
        "JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n[01-02] Partition=batch"
    )
    assert parsed is not None
    assert (parsed.user, parsed.strict) == ("alice", "")
    assert parsed.blocked_by("ReqNodeNotAvail")


@pytest.mark.parametrize("line", ["", "nonsense", "=", "NodeName= State=IDLE", "JobId="])
def test_text_that_is_neither(line: str) -> None:
    assert node(line) is None
    assert job_record(line) is None


def test_the_shape_of_a_job() -> None:
    nodes = [Node(f"n{i}", "IDLE", gpus=g) for i, g in enumerate([4, 4, 4, 8, 0])]
    assert nodes_for(1, nodes) == (1, 1)
    assert nodes_for(4, nodes) == (1, 4)
    assert nodes_for(6, nodes) == (2, 3)
    assert nodes_for(3, []) == (3, 1)


def scheduler(folder: Path, script: str) -> Slurm:
    """A scheduler whose `scontrol` is a script: for what no real one does on demand."""
    command = folder / "scontrol"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return Slurm(timeout_s=0.5, environment={"PATH": f"{folder}:{os.environ['PATH']}"})


def test_a_command_that_hangs_ends_in_time(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"did not answer `scontrol` within 0.5 s"):
        scheduler(tmp_path, "exec sleep 60").nodes()


UNCONFIGURED = """\
scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
scontrol: error: fetch_config: DNS SRV lookup failed
scontrol: error: _establish_config_source: failed to fetch config
scontrol: fatal: Could not establish a configuration source
"""
MISCONFIGURED = """\
scontrol: error: ClusterName needs to be specified
scontrol: fatal: Unable to process configuration file
"""
DOWN = "Slurmctld(primary) at vm is DOWN\n*****************************************\n"


@pytest.mark.parametrize(
    ("out", "err", "absent", "sentence"),
    [
        ("", UNCONFIGURED, True, "no Slurm is configured here: set SLURM_CONF if it is elsewhere"),
        (
            *("", MISCONFIGURED, False),
            "Slurm's commands cannot use slurm.conf: ClusterName needs to be specified; "
            "Unable to process configuration file",
        ),
        (DOWN, "", False, "Slurm's controller does not answer: Slurmctld(primary) at vm is DOWN"),
    ],
)
def test_why_no_controller_answers(tmp_path: Path, out: str, err: str, absent: bool, sentence: str) -> None:
    (tmp_path / "out").write_text(out)
    (tmp_path / "err").write_text(err)
    with pytest.raises(SchedulerError) as caught:
        scheduler(tmp_path, f"cat {tmp_path}/out; cat {tmp_path}/err >&2; exit 1").check()
    assert (caught.value.absent, str(caught.value)) == (absent, sentence)


def test_a_configuration_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    gone = str(tmp_path / "slurm.conf")
    with pytest.raises(SchedulerError, match=f"SLURM_CONF names {gone}, which does not exist"):
        Slurm(environment={"PATH": "/nonexistent", "SLURM_CONF": gone}).check()


def test_what_slurm_says_is_passed_on_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"refused `scontrol -o show`: Access denied; twice$"):
        scheduler(tmp_path, "printf 'scontrol: error: Access denied\\ntwice\\n' >&2; exit 1").nodes()


# -- hostlist ----------------------------------------------------------------------------------------------------------
# Host lists: expanding, compressing, and that one gives back the other.


@pytest.mark.parametrize(
    "hosts",
    [
        *("n[1-2", "n1-2]", "n[[1]]", "n[a]", "n[3-1]", "n[]", "n[1-9999999]", "n[0-999][0-999]x[1-2]", "]n["),
        *("n[1-3]!n2", "n[1-3]&n2", "n[1-3]^n2", "@g[1-2]", "n[1-2]*", "n[1-9/2]", "n[9-011]", "a b[1-2]"),
        *(f"n[{'9' * 5000}]", f"n[1-{'9' * 30}]", "n[١-٣]", "n[-1]"),
    ],
)
def test_what_is_no_host_list(hosts: str) -> None:
    with pytest.raises(InputError, match="host"):
        expand(hosts)


@pytest.mark.long
def test_what_a_list_means_is_bounded_as_a_whole() -> None:
    assert len(expand("n[1-600000],m[1-2]")) == 600_002
    with pytest.raises(InputError, match="more than 1,000,000 hosts"):
        expand("n[1-600000],m[1-600000]")


NAMES = st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z-]{1,2}[0-9]{0,4}", fullmatch=True)


@settings(max_examples=count(100, short=15), deadline=None)
@given(st.sets(NAMES, max_size=40))
@example({"n98", "n99", "n100", "n099", "n0099"})
@example({"n" + "9" * 15, "n" + "1" * 30})
@example({"n١", "n٢", "n1"})
def test_what_was_compressed_expands_to_the_same(names: set[str]) -> None:
    back = expand(compress(names))
    assert len(back) == len(names)
    assert set(back) == names
