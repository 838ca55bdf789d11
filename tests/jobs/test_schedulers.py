"""PBS, LSF and Flux over recorded output: what their classes read, and the commands that they call.

No real one was there. The outputs have the shape and values of what sites, manuals and test suites published, shortened
and with further nodes and jobs of the same shape:

* PBS: fields and values of `pbsnodes -a` of Polaris (ALCF, PBS 2022.1.1, 2023), of `qstat -f` of versions 14.1 (design
  document PP-483), 19.0 (buildtest's documentation, Exit_status in PSI/J's) and 19.1.1 (OpenPBS 2541); states, vnodes
  and messages from the reference guide and `pbs_messages.c` of OpenPBS.
* LSF 10.1: `bhosts -o ... -json` (AWS ParallelCluster's tests), `bjobs -o ... -json` (Roddy's, buildtest's), fields and
  states from IBM's command reference, times with LSB_DISPLAY_YEAR as programs on sites read them.
* Flux: RFC 20 resource sets (Tioga, LLNL), formats and states from the manual pages of flux-core."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from whorl.errors import InputError, SchedulerError
from whorl.jobs import SCHEDULERS
from whorl.jobs.batch import BatchJob
from whorl.jobs.flux import Flux
from whorl.jobs.lsf import Lsf
from whorl.jobs.pbs import Pbs
from whorl.jobs.scheduler import Node, Partition, QueuedJob, Refusal, known
from whorl.tests.jobs.commands import Commands, me
from whorl.tests.jobs.fake_pbs import pbs_text

JOB = BatchJob("whorl:autumn:n1:2", ["whorl", "probe", "run"], 90, 4, node="n1", comment="whorl:1795987204")


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


# -- PBS ----------------------------------------------------------------------------------------------------------


def _vnode(state: str, host: str = "", **fields: object) -> dict[str, object]:
    has = {"arch": "linux", "gputype": "A100", "mem": "527672488kb", "ncpus": 64, "ngpus": 4}
    return {
        "Mom": f"{host}.hsn.cm.polaris.alcf.anl.gov", "ntype": "PBS", "state": state, "pcpus": 64,
        "resources_available": has | ({"host": host} if host else {}), "resv_enable": "True",
        "sharing": "force_exclhost", "license": "l", "last_state_change_time": 1699617414,
    } | fields  # fmt: skip


PBS_NODES: dict[str, dict[str, object]] = {
    "x3006c0s13b1n0": _vnode("free", "x3006c0s13b1n0"),
    "x3008c0s37b1n0": _vnode("job-exclusive", "x3008c0s37b1n0", jobs="1147579.polaris-pbs-01/0", queue="prod"),
    "x3009c0s19b0n0": _vnode("down", "x3009c0s19b0n0", comment="node down: communication closed"),
    "x3010c0s1b0n0": _vnode("offline,job-busy", "x3010c0s1b0n0"),
    "x3011c0s1b0n0": _vnode("resv-exclusive", "x3011c0s1b0n0"),
    "big[0]": _vnode("free", "big"),  # two vnodes of one host
    "big[1]": _vnode("job-busy,resv-exclusive", "big"),
    "login": {"Mom": "login", "state": "state-unknown,down"},  # nothing is known of it
    "some": _vnode("free", "some", resources_available={"host": "some", "ngpus": "<various>", "ncpus": 8}),
}
PBS_SERVER = {"server_state": "Active", "default_queue": "prod", "scheduling": "True"}
PBS_QUEUES: dict[str, dict[str, object]] = {
    "prod": {"queue_type": "Execution", "resources_max": {"walltime": "24:00:00", "nodect": 496},
             "max_queued": "[o:PBS_ALL=10]", "max_queued_res": "[u:tom=15]", "enabled": "True", "started": "True"},
    "debug": {"queue_type": "Execution", "resources_max": {"walltime": "01:00:00"}, "enabled": "True",
              "started": "False"},
    "any": {"queue_type": "Route", "enabled": "True", "started": "True"},
    "large": {"queue_type": "Execution", "from_route_only": "True", "enabled": "True", "started": "True"},
    "R7": {"acl_user_enable": "True", "acl_users": "nobody-at-all@*", "enabled": "True", "started": "True"},
    "R8": {"acl_user_enable": "True", "acl_users": f"tom@*,{me()}@*", "enabled": "True", "started": "True"},
}  # fmt: skip


def _pbs_list(head: str, rows: Mapping[str, Mapping[str, object]]) -> str:
    return "".join(pbs_text(f"{head}{name}", row) for name, row in rows.items())


def _pbs_job(state: str, name: str = "STDIN", **fields: object) -> dict[str, object]:
    return {
        "Job_Name": name, "Job_Owner": f"{me()}@vbox", "job_state": state, "queue": "prod", "server": "vbox",
        "Checkpoint": "u", "ctime": "Fri Nov 11 17:57:05 2016", "Hold_Types": "n", "Priority": 0,
        "Resource_List": {"ncpus": 1, "nodect": 1, "place": "pack", "select": "1:ncpus=1", "walltime": "04:00:00"},
        "substate": 10, "Variable_List": "PBS_O_HOME=/root,PBS_O_WORKDIR=/root",
    } | fields  # fmt: skip


WHORL = "PBS_O_HOME=/root,\n\tWHORL_JOB=whorl:autumn:n{},WHORL_COMM\n\tENT=whorl:1795987204,PBS_O_QUEUE=prod"
FUNCTION = 'BASH_FUNC_ml()=() {  eval $($LMOD_DIR/ml_cmd "$@")\n  [ a = b ]\n}\n,'  # as qsub -V takes it
PBS_JOBS: dict[str, dict[str, object]] = {
    "1.vbox": _pbs_job("Q", "whorl-autumn-n1-2", Variable_List=FUNCTION + WHORL.format("1:2"),
                       comment="Not Running: Not enough free nodes"),
    "2.vbox": _pbs_job("R", "whorl-autumn-n2", Variable_List=WHORL.format("2") + ",A=\n    job_state = F",
                       exec_host="n2/0*4+n2/1+n3/0", stime="Wed Apr 14 23:34:19 2021"),
    "3.vbox": _pbs_job("H", "held", Hold_Types="u"),
    "4[].vbox": _pbs_job("B", "array"),
    "5.vbox": _pbs_job("F", Exit_status=0),
    "6.vbox": _pbs_job("F", Exit_status=1),
    "7.vbox": _pbs_job("F", Exit_status=271),
    "8.vbox": _pbs_job("F", Exit_status=-29),
    "9.vbox": _pbs_job("F", Variable_List="cut off"),
    "10.vbox": {"Job_Name": "nothing more", "job_state": "E"},
    "11.vbox": _pbs_job("R", Job_Owner="nobody-at-all@vbox"),
}  # fmt: skip


@pytest.fixture
def pbs(commands: Commands) -> Pbs:
    commands.answer("qstat -B*", _pbs_list("Server: ", {"polaris-pbs-01": PBS_SERVER}))
    commands.answer("qstat -Q*", _pbs_list("Queue: ", PBS_QUEUES))
    commands.answer("qstat -x*", _pbs_list("Job Id: ", PBS_JOBS))
    commands.answer("pbsnodes", _pbs_list("", PBS_NODES))
    return Pbs(environment=commands.environment)


def test_nodes_of_pbs(pbs: Pbs, commands: Commands) -> None:
    nodes = pbs.nodes()
    assert commands.calls[-1] == "pbsnodes -a"
    free, busy, down = (nodes[name] for name in ("x3006c0s13b1n0", "x3008c0s37b1n0", "x3009c0s19b0n0"))
    assert (free.gpus, free.usable, free.idle, free.partitions) == (4, True, True, tuple(PBS_QUEUES))
    assert free.host == "x3006c0s13b1n0.hsn.cm.polaris.alcf.anl.gov"
    assert (busy.usable, busy.idle, busy.partitions) == (True, False, ("prod",))
    assert (down.usable, down.state, down.reason) == (False, "down", "node down: communication closed")
    assert not nodes["x3010c0s1b0n0"].usable
    assert nodes["x3011c0s1b0n0"].reserved
    assert (nodes["big"].gpus, nodes["big"].idle, nodes["big"].reserved) == (8, False, True)
    assert (nodes["login"].gpus, nodes["login"].usable) == (0, False)
    assert nodes["some"].gpus == 0


def test_queues_of_pbs(pbs: Pbs) -> None:
    assert pbs.partitions() == {
        "prod": Partition("prod", default=True, longest_min=1440),
        "debug": Partition("debug", up=False, longest_min=60),
        "any": Partition("any", longest_min=math.inf),
        "large": Partition("large", up=False),
        "R7": Partition("R7", up=False),
        "R8": Partition("R8"),
    }
    assert pbs.cluster_name() == "polaris-pbs-01"


def test_jobs_of_pbs(pbs: Pbs) -> None:
    jobs = {job.job: job for job in pbs.queue()}
    waits, runs = jobs["1"], jobs["2"]
    assert (waits.name, waits.comment, waits.pending) == ("whorl:autumn:n1:2", "whorl:1795987204", True)
    assert (waits.reason, waits.user) == ("Not Running: Not enough free nodes", os.getuid())
    assert (runs.state, runs.nodes) == ("RUNNING", "n2,n3")
    assert (runs.start, runs.end) == (
        datetime(2021, 4, 14, 23, 34, 19, tzinfo=UTC),
        datetime(2021, 4, 15, 3, 34, 19, tzinfo=UTC),
    )
    assert [jobs[number].held for number in ("1", "3")] == [False, True]
    states = {number: job.state for number, job in jobs.items() if number not in ("1", "2", "3")}
    assert states == {
        "4[]": "RUNNING", "5": "COMPLETED", "6": "FAILED", "7": "CANCELLED", "8": "TIMEOUT", "9": "CANCELLED",
        "10": "COMPLETING", "11": "RUNNING",
    }  # fmt: skip
    assert [job.job for job in pbs.queue(name_prefix="whorl:autumn:")] == ["1", "2"]
    assert "11" not in {job.job for job in pbs.queue(user=os.getuid())}


def test_a_pbs_that_keeps_no_history(commands: Commands) -> None:
    commands.answer("qstat -x*", error="qstat: PBS is not configured to maintain job history\n", status=79)
    commands.answer("qstat -f*", _pbs_list("Job Id: ", {"1.vbox": PBS_JOBS["1.vbox"]}))
    assert [job.job for job in Pbs(environment=commands.environment).queue()] == ["1"]


def test_the_qstat_of_another_scheduler_is_no_empty_queue(commands: Commands) -> None:
    commands.answer("qstat -x*", "<Data><Job><Job_Id>1.torque</Job_Id></Job></Data>\n")
    with pytest.raises(SchedulerError, match=r"is it PBS Pro or OpenPBS\? '<Data><Job>"):
        Pbs(environment=commands.environment).queue()
    empty = Commands(commands.folder / "empty")
    empty.folder.mkdir()
    empty.answer("qstat -x*")
    assert Pbs(environment=empty.environment).queue() == []


# -- LSF ----------------------------------------------------------------------------------------------------------

LSF_HOSTS = [
    {"HOST_NAME": "n1", "STATUS": "ok", "MAX": "40", "NJOBS": "0", "NGPUS": "4"},
    {"HOST_NAME": "n2", "STATUS": "closed_Full", "MAX": "40", "NJOBS": "40", "NGPUS": "4"},
    {"HOST_NAME": "n3", "STATUS": "closed_Adm", "MAX": "40", "NJOBS": "0", "NGPUS": "4"},
    {"HOST_NAME": "n4", "STATUS": "unavail", "MAX": "-", "NJOBS": "0", "NGPUS": "-"},
    {"HOST_NAME": "n5", "STATUS": "closed", "MAX": "40", "NJOBS": "40", "NGPUS": "4"},
    {"HOST_NAME": "n6", "STATUS": "closed", "MAX": "40", "NJOBS": "39", "NGPUS": "4"},
    {"HOST_NAME": "login1", "STATUS": "ok", "MAX": "8", "NJOBS": "0", "NGPUS": "-"},
]
LSF_QUEUES = """\

QUEUE: normal
  -- For normal jobs.  This is the default queue.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0     0

DEFAULT LIMITS:
 RUNLIMIT
 60.0 min

MAXIMUM LIMITS:
 CPULIMIT                RUNLIMIT
 9000 min of hostA       1440.0 min of hostA

USERS: all
HOSTS:  all ~hg_old/ ~n4

------------------------------------------------------------------------------

QUEUE: gpu
  -- No description provided.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS
 30    0  Open:Inact_Win    -    -    -    -     0     0     0     0     0    0     0

USERS: physics/
HOSTS:  hg_gpu/ n3+2
"""
LSF_GROUPS = "GROUP_NAME    HOSTS\nhg_gpu        n1 n2\nhg_old/       n5 n6\n"


def _lsf_job(number: str, stat: str, **fields: str) -> dict[str, str]:
    return {
        "JOBID": number, "JOBINDEX": "0", "STAT": stat, "USER": me(), "JOB_NAME": "ls -l", "JOB_DESCRIPTION": "",
        "EXEC_HOST": "", "PEND_REASON": "", "EXIT_REASON": "", "START_TIME": "", "FINISH_TIME": "",
    } | fields  # fmt: skip


LSF_JOBS = [
    _lsf_job("321", "PEND", JOB_DESCRIPTION="whorl:autumn:n1:2 whorl:1795987204", JOB_NAME="whorl-autumn-n1-2",
             PEND_REASON="New job is waiting for scheduling;"),
    _lsf_job("322", "RUN", EXEC_HOST="4*n1:4*n2", JOB_DESCRIPTION="whorl:autumn:n2",
             START_TIME="Nov  9 16:46:20 2026", FINISH_TIME="Nov 29 17:46:20 2026 L"),
    _lsf_job("323", "PSUSP"),
    _lsf_job("324", "DONE", EXEC_HOST="n1:n1", JOB_DESCRIPTION="-", START_TIME="Mar  3 16:46"),  # of another format
    _lsf_job("325", "EXIT", EXIT_REASON="TERM_OWNER: job killed by owner"),
    _lsf_job("326", "EXIT", EXIT_REASON="TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
    _lsf_job("327", "EXIT"),
    _lsf_job("328", "SSUSP", JOBINDEX="3", JOB_NAME="many[3]"),
    {"JOBID": "329", "ERROR": "Job <329> is not found"},
]  # fmt: skip


@pytest.fixture
def lsf(commands: Commands) -> Lsf:
    commands.answer(
        "lsid", "IBM Spectrum LSF Standard 10.1.0.13\n\nMy cluster name is summit\nMy master name is batch1\n"
    )
    commands.answer("bhosts", json.dumps({"COMMAND": "bhosts", "HOSTS": 5, "RECORDS": LSF_HOSTS}))
    commands.answer("bqueues", LSF_QUEUES)
    commands.answer("bmgroup", LSF_GROUPS)
    commands.answer("bjobs", json.dumps({"COMMAND": "bjobs", "JOBS": 9, "RECORDS": LSF_JOBS}))
    return Lsf(environment=commands.environment)


def test_hosts_and_queues_of_lsf(lsf: Lsf, commands: Commands) -> None:
    nodes = lsf.nodes()
    assert commands.calls[0] == "bhosts -X -o host_name status max njobs ngpus -json"
    assert {name: (node.gpus, node.usable, node.idle) for name, node in nodes.items()} == {
        "n1": (4, True, True),
        "n2": (4, True, False),
        "n3": (4, False, False),
        "n4": (0, False, False),
        "n5": (4, True, False),
        "n6": (4, False, False),
        "login1": (0, True, True),
    }
    assert {name: node.partitions for name, node in nodes.items()} == {
        "n1": ("normal", "gpu"), "n2": ("normal", "gpu"), "n3": ("normal", "gpu"), "n4": (), "n5": (), "n6": (),
        "login1": ("normal",),
    }  # fmt: skip
    assert lsf.partitions() == {
        "normal": Partition("normal", default=True, longest_min=1440),
        "gpu": Partition("gpu", up=False),
    }
    assert lsf.cluster_name() == "summit"


def test_jobs_of_lsf(lsf: Lsf, commands: Commands) -> None:
    jobs = {job.job: job for job in lsf.queue()}
    assert commands.calls[0].startswith("bjobs -a -u all -X -o jobid jobindex stat user ")
    assert (jobs["321"].name, jobs["321"].comment, jobs["321"].user) == (
        "whorl:autumn:n1:2", "whorl:1795987204", os.getuid(),
    )  # fmt: skip
    assert jobs["321"].reason == "New job is waiting for scheduling;"
    assert (jobs["322"].name, jobs["322"].comment, jobs["322"].nodes) == ("whorl:autumn:n2", "", "n1,n2")
    assert (jobs["322"].start, jobs["322"].end) == (
        datetime(2026, 11, 9, 16, 46, 20, tzinfo=UTC), datetime(2026, 11, 29, 17, 46, 20, tzinfo=UTC),
    )  # fmt: skip
    assert (jobs["324"].name, jobs["324"].comment, jobs["324"].start) == ("ls", "-l", None)
    assert [number for number, job in jobs.items() if job.held] == ["323"]
    assert {number: job.state for number, job in jobs.items()} == {
        "321": "PENDING", "322": "RUNNING", "323": "PENDING", "324": "COMPLETED", "325": "CANCELLED", "326": "TIMEOUT",
        "327": "FAILED", "328[3]": "SUSPENDED",
    }  # fmt: skip


def test_an_lsf_without_jobs(commands: Commands) -> None:
    commands.answer("bjobs", error="No job found\n", status=255)
    assert Lsf(environment=commands.environment).queue() == []


# -- Flux ---------------------------------------------------------------------------------------------------------

FLUX_R = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "1-2", "children": {"core": "0-63", "gpu": "0-7"}},
            {"rank": "0", "children": {"core": "0-3"}},
            {"rank": "3", "children": {"core": "0-63", "gpu": "0-3,7"}},
        ],
        "nodelist": ["login0", "tioga[10-11]", "tioga12"],
        "properties": {"pdebug": "1-3"},
        "starttime": 0,
        "expiration": 0,
    },
}
FLUX_LIST = "free|pdebug,pall|tioga10\nallocated|pdebug|tioga[10-11]\nfree||login0\ndown|pdebug|tioga12\n"
FLUX_STATUS = "avail|login0,tioga[10-11]|\ndrained|tioga12|bad GPU\n"
FLUX_QUEUES = "pdebug|pdebug*|enabled|started|1h\npall|pall|enabled|stopped|inf\n"


def _flux_rows(lines: str) -> str:
    return lines.replace("|", "\x1f").replace("\n", "\x1f.\n")


def _flux_job(number: str, status: str, name: str, **fields: str) -> str:
    values = {
        "userid": "58985", "urgency": "16", "t_run": "", "expiration": "", "ended": "", "nodelist": "", "waits": "",
        "type": "", "note": "",
    } | fields  # fmt: skip
    head = [number, values["userid"], status, values["urgency"], values["t_run"]]
    tail = [values[key] for key in ("expiration", "ended", "nodelist", "waits", "type", "note")]
    return "\x1f".join([*head, *tail, name]) + "\x1f.\n"


FLUX_JOBS = (
    _flux_job("fM7Zq9AKHno", "SCHED", "whorl:autumn:n1:2 whorl:1795987204", waits="insufficient resources")
    + _flux_job("fM7Zq9AKHnp", "RUN", "whorl:autumn:n2", t_run="1795987300.5", nodelist="tioga[10-11]",
                expiration="1795990900.5")
    + _flux_job("fM7Zq9AKHnq", "PENDING", "held", urgency="0")  # as older versions call it
    + _flux_job("fM7Zq9AKHnr", "CANCELED", "x", type="cancel", note="by user", ended="1795990900")
    + _flux_job("fM7Zq9AKHns", "FAILED", "x", type="node-failure", note="tioga11")
    + _flux_job("fM7Zq9AKHnt", "TIMEOUT", "two words")
    + "a warning before a job\n"
    + _flux_job("fM7Zq9AKHnu", "COMPLETED", "")
    + _flux_job("fM7Zq9AKHnv", "COMPLETED", "of two\nlines")
    + "a line of another shape\n"
)  # fmt: skip


@pytest.fixture
def flux(commands: Commands) -> Flux:
    commands.answer('flux "resource R"', json.dumps(FLUX_R))
    commands.answer('flux "resource list"*', _flux_rows(FLUX_LIST))
    commands.answer('flux "resource status"*', _flux_rows(FLUX_STATUS))
    commands.answer('flux "queue list"*', _flux_rows(FLUX_QUEUES))
    commands.answer("flux jobs*", FLUX_JOBS)
    commands.answer("flux uptime", " 07:48:42 run 2.1d,  owner flux,  depth 0,  size 4\n")
    return Flux(environment=commands.environment)


def test_nodes_and_queues_of_flux(flux: Flux) -> None:
    flux.check()
    nodes = flux.nodes()
    assert {name: (node.gpus, node.usable, node.idle) for name, node in nodes.items()} == {
        "login0": (0, True, True),
        "tioga10": (8, True, False),  # a part of it is free
        "tioga11": (8, True, False),
        "tioga12": (5, False, False),
    }
    assert (nodes["tioga12"].state, nodes["tioga12"].reason) == ("drained", "bad GPU")
    assert nodes["tioga10"].partitions == ("pall", "pdebug")
    assert flux.partitions() == {
        "pdebug": Partition("pdebug", default=True, longest_min=60),
        "pall": Partition("pall", up=False),
    }


def test_jobs_of_flux(flux: Flux, commands: Commands) -> None:
    jobs = {job.job[-1]: job for job in flux.queue()}
    assert commands.calls[-1].startswith("flux jobs -a -A --count=10000 -n -o {id.f58}|{userid}|{status}|")
    assert (jobs["o"].name, jobs["o"].comment, jobs["o"].user) == ("whorl:autumn:n1:2", "whorl:1795987204", 58985)
    assert (jobs["o"].pending, jobs["o"].reason) == (True, "insufficient resources")
    assert (jobs["p"].nodes, jobs["p"].start, jobs["p"].end) == (
        "tioga[10-11]", datetime(2026, 11, 29, 21, 21, 40, 500000, UTC),
        datetime(2026, 11, 29, 22, 21, 40, 500000, UTC),
    )  # fmt: skip
    assert {letter: job.state for letter, job in jobs.items()} == {
        "o": "PENDING", "p": "RUNNING", "q": "PENDING", "r": "CANCELLED", "s": "NODE_FAIL", "t": "TIMEOUT",
        "u": "COMPLETED", "v": "COMPLETED",
    }  # fmt: skip
    assert [letter for letter, job in jobs.items() if job.held] == ["q"]
    assert jobs["r"].reason == "cancel: by user"
    flux.queue(user=58985)
    assert commands.calls[-1].startswith("flux jobs -a --user=58985 ")


# -- all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command", "printed", "job", "called"),
    [
        ("pbs", "qsub", "1.vbox\n", "1", "qsub -f"),
        ("lsf", "bsub", "Job <321> is submitted to queue <normal>.\n", "321", "bsub "),
        ("flux", "flux", "ƒM7Zq9AKHno\n", "fM7Zq9AKHno", "flux batch"),
    ],
)
def test_what_was_submitted_is_found_by_its_name(
    commands: Commands, name: str, command: str, printed: str, job: str, called: str
) -> None:
    scheduler = SCHEDULERS[name](environment=commands.environment)
    commands.answer(command, printed)
    for batch_job in (JOB, BatchJob("whorl:autumn:n1", ["true"], 5, 4)):
        script = scheduler.render(batch_job)
        assert scheduler.submit(script).job == job
        assert commands.calls[-1] == called
        assert commands.input_of(command) == script
        row = next(row for row in _queue_of(name, script, job, commands) if row.job == job)
        assert (row.name, row.comment) == (batch_job.name, batch_job.comment or "")


def _queue_of(name: str, script: str, job: str, commands: Commands) -> list[QueuedJob]:
    """The queue of a scheduler that reads the directives of a script as a shell reads words, as each of them does."""
    lines = [
        shlex.split(line.split(maxsplit=1)[1]) for line in script.splitlines() if line.startswith(("#PBS", "#BSUB"))
    ]
    options = dict(line[:2] for line in lines if len(line) > 1)
    folder = commands.folder / f"queue-of-{name}"
    folder.mkdir(exist_ok=True)
    commands_of_queue = Commands(folder)
    for path in folder.iterdir():
        path.unlink()
    match name:
        case "pbs":
            row = _pbs_job("Q", options["-N"], Variable_List=options["-v"])
            commands_of_queue.answer("qstat", pbs_text(f"Job Id: {job}.vbox", row))
        case "lsf":
            lsf_row = _lsf_job(job, "PEND", JOB_NAME=options["-J"], JOB_DESCRIPTION=options["-Jd"])
            commands_of_queue.answer("bjobs", json.dumps({"RECORDS": [lsf_row]}))
        case _:
            [line] = [line for line in script.splitlines() if line.startswith("# flux: --job-name=")]
            commands_of_queue.answer("flux", _flux_job(job, "SCHED", shlex.split(line)[2].removeprefix("--job-name=")))
    return SCHEDULERS[name](environment=commands_of_queue.environment).queue()


@pytest.mark.parametrize(
    ("name", "command", "says", "refusal"),
    [
        ("pbs", "qsub", "qsub: would exceed queue generic's per-user limit of jobs", Refusal.LATER),
        ("pbs", "qsub", "qsub: Maximum number of jobs already in queue workq", Refusal.LATER),
        ("pbs", "qsub", "qsub: Unknown node  n9", Refusal.NODE),
        ("pbs", "qsub", "qsub: Job violates queue and/or server resource limits", Refusal.OTHER),
        ("pbs", "qsub", "Connection refused\nqsub: cannot connect to server vbox (errno=15010)", Refusal.UNSURE),
        ("lsf", "bsub", "n9: Bad host name, host group name or cluster name. Job not submitted.", Refusal.NODE),
        ("lsf", "bsub", "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.", Refusal.OTHER),
        ("flux", "flux", "flux-batch: ERROR: [Errno 22] unsatisfiable request", Refusal.NODE),
        ("flux", "flux", "flux-batch: ERROR: job submission disabled: maintenance", Refusal.LATER),
    ],
)
def test_why_a_job_is_not_taken(commands: Commands, name: str, command: str, says: str, refusal: Refusal) -> None:
    commands.answer(command, error=f"{says}\n", status=1)
    answer = SCHEDULERS[name](environment=commands.environment).submit("#!/bin/sh\n")
    assert (answer.job, answer.refusal) == (None, refusal)


@pytest.mark.parametrize(("name", "path"), [("lsf", "/a/%J/n1.out"), ("flux", "/a/{{id}}"), ("pbs", "/a:b/n1.out")])
def test_an_output_that_would_go_elsewhere_is_refused(name: str, path: str) -> None:
    scheduler = SCHEDULERS[name](environment={})
    with pytest.raises(InputError, match="in the path of an output as its own sign"):
        scheduler.render(replace(JOB, output=path))
    assert "/a/b/n1.out" in scheduler.render(replace(JOB, output="/a/b/n1.out"))


@pytest.mark.parametrize(
    ("name", "command", "gone", "denied"),
    [
        ("pbs", "qdel", "qdel: Job has finished 1.vbox", "qdel: Unauthorized Request  1.vbox"),
        ("lsf", "bkill", "Job <1>: Job has already finished", "Job <1>: User permission denied"),
        ("flux", "flux", "flux-cancel: ERROR: f1: job is inactive", "flux-cancel: ERROR: f1: guests can only cancel"),
    ],
)
def test_cancelling(commands: Commands, name: str, command: str, gone: str, denied: str) -> None:
    scheduler = SCHEDULERS[name](environment=commands.environment)
    commands.answer(f"{command} *1*", error=f"{gone}\n", status=1)
    commands.answer(f"{command} *2*", error=f"{denied}\n", status=1)
    commands.answer(command)
    scheduler.cancel("1")
    scheduler.cancel("3")
    with pytest.raises(SchedulerError, match=f"^{scheduler.title} does not cancel job 2: "):
        scheduler.cancel("2")


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "slurm"])
def test_none_is_here_or_none_answers(commands: Commands, name: str, tmp_path: Path) -> None:
    scheduler = SCHEDULERS[name](environment={"PATH": "/nonexistent"})
    with pytest.raises(SchedulerError, match=f"run this on a machine with {scheduler.title}'s commands") as caught:
        scheduler.check()
    assert caught.value.absent
    command = {"pbs": "qstat", "lsf": "lsid", "flux": "flux"}[name]
    lost = {
        "pbs": "Connection refused\nqstat: cannot connect to server vbox (errno=15010)",
        "lsf": "ls_getclustername: LSF is down. Please wait ...",
        "flux": "flux-uptime: ERROR: Unable to connect to Flux: Connection refused",
    }[name]
    commands.answer(command, error=f"{lost}\n", status=1)
    with pytest.raises(SchedulerError, match=f"^{scheduler.title} does not answer `{command}`") as caught:
        SCHEDULERS[name](environment=commands.environment).check()
    assert not caught.value.absent


def test_only_slurm_was_tried() -> None:
    cautions = {name: kind().caution for name, kind in SCHEDULERS.items()}
    assert cautions.pop("slurm") is None
    assert [text and text.partition(":")[0] for text in cautions.values()] == [
        f"not tried on a real {title}" for title in ("PBS", "LSF", "Flux")
    ]


# -- naming ------------------------------------------------------------------------------------------------------------
# The nodes of a store under the scheduler's names: a short name, a domain, another case; never another node's.


def scheduler(*names: str, **hosts: str) -> dict[str, Node]:
    return {name: Node(name, "IDLE", host=hosts.get(name, "")) for name in names}


def test_names_that_only_one_node_can_have_are_told() -> None:
    node_names = known(["n03.east", "n03.west", "n05"], scheduler("n03", "n04"))
    assert node_names.unclear == {"n03": ("n03.east", "n03.west")}
    assert node_names.unknown == ("n03.east", "n03.west", "n05")


def test_the_host_name_of_a_node_counts_where_its_own_does_not_fit() -> None:
    nodes = scheduler("gpu-1", "gpu-2", **{"gpu-1": "rack1.site", "gpu-2": "Rack2"})
    assert known(["rack1", "rack2.site", "gpu-2"], nodes).names == {
        "rack1": "gpu-1",
        "rack2.site": "gpu-2",
        "gpu-2": "gpu-2",
    }
    assert known(["rack1.other"], nodes).names == {}
    assert known(["rack1"], scheduler("a", "b", a="rack1", b="rack1")).names == {}, "several nodes of one host"
