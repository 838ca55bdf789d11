"""What whorl reads of a real Slurm and asks of it, in a time zone with a summer time; and host lists that both read."""

from __future__ import annotations

import datetime as dt
import os
import random

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError, SchedulerError
from whorl.jobs.slurm import Slurm as Client
from whorl.store.hostlist import compress, expand
from whorl.tests.slurm.accounted import Accounted
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

ELSEWHERE = {"TZ": "America/New_York", "SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "RUNNING", "LC_ALL": "de_DE.UTF-8"}


def test_the_queue_and_what_is_expected_of_it(slurm: Slurm) -> None:
    client = Client(environment=slurm.environment() | ELSEWHERE)
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=2)
    runs = slurm.submit("-N6", "--exclusive", "-t10", "--job-name", "fill the cluster")
    assert slurm.nodes_of(runs) == slurm.names
    waits = slurm.submit("-N2", "-t30", "--job-name", "a|b\nc", "--comment", "x|y\nz", user="bob")
    held = slurm.submit("-N1", "--hold")
    array = slurm.submit("-N1", "-a", "1-3", "-t5")
    slurm.until(lambda: client.jobs(waits)[0].start is not None, "Slurm to plan", within=60)
    jobs = {job.job: job for job in client.queue()}
    assert (jobs[runs].state, jobs[runs].nodes, jobs[runs].name) == ("RUNNING", "n[01-06]", "fill the cluster")
    assert (jobs[waits].name, jobs[waits].comment) == ("a|b\nc", "x|y\nz"), "line breaks are part of them"
    [record] = client.jobs(waits)
    assert (record.state, record.comment) == ("PENDING", "x|y\nz")
    assert (jobs[waits].pending, jobs[waits].held, jobs[held].held) == (True, False, True)
    end, planned = jobs[runs].end, client.jobs(waits)[0].start
    assert end is not None
    assert planned is not None
    assert before < end - dt.timedelta(minutes=10) < dt.datetime.now(dt.UTC) < end <= planned
    assert {job.job for job in client.queue(name_prefix="a|")} == {waits}
    assert runs not in {job.job for job in client.queue(user=os.geteuid())}
    state = client.queue_state()
    assert (state.free_nodes, state.cluster_nodes) == (0, 6)
    assert state.pending_nodes.tolist() == [2, 1, 1, 1], "the held one does not queue"
    assert state.pending_limit_s.tolist() == [1800, 300, 300, 300]
    assert (state.running_nodes.tolist(), state.running_until_s.tolist()) == ([6], [end.timestamp()])
    submitted, started = (dt.datetime.fromisoformat(slurm.field(runs, name)) for name in ("SubmitTime", "StartTime"))
    waited_s = (started - submitted).total_seconds()
    assert waited_s in state.recent_waits_s.tolist(), "jobs of other tests may have started in the same second"
    assert len(client.queue_state(partition="debug").pending_nodes) == 0
    assert client.queue_state(partition="debug,batch").pending_nodes.tolist() == [2, 1, 1, 1]
    assert client.queue_state(partition="debug,batch").cluster_nodes == 6

    client.update(waits, ExcNodeList="n[05-06]", Comment="changed")
    [record] = client.jobs(waits)
    assert (record.excluded, record.comment) == ("n[05-06]", "changed")
    start = client.test_start(["-N6", "-t1"], "#!/bin/sh\n#SBATCH --begin=now+1hour\n")
    assert start is not None
    assert start > before + dt.timedelta(hours=1)
    with pytest.raises(SchedulerError, match=r"^Slurm would refuse this job: .*node configuration"):
        client.test_start(["-N7"])
    client.cancel(waits)
    client.cancel(waits)
    with pytest.raises(InputError, match="Slurm knows no job 99999"):
        client.jobs("99999")
    with pytest.raises(SchedulerError, match="keeps no accounts here") as caught:
        list(client.history(before))
    assert caught.value.absent
    slurm.run("scancel", array)


def test_a_job_gets_the_environment_of_its_user(slurm: Slurm) -> None:
    output = slurm.folder / "out" / "environment"
    client = Client(environment=slurm.environment() | ELSEWHERE | {"SBATCH_PARTITION": "debug"})
    answer = client.submit(f"#!/bin/sh\n#SBATCH --output={output}\nenv\n")
    assert answer.job is not None
    slurm.until(lambda: slurm.field(answer.job or "", "JobState") == "COMPLETED", "the job to end")
    lines = output.read_text().splitlines()
    assert {"LC_ALL=de_DE.UTF-8", "TZ=America/New_York", "SLURM_JOB_PARTITION=batch"} <= set(lines)
    assert not [line for line in lines if line.startswith("SLURM_TIME_FORMAT")]


@pytest.mark.long
def test_the_history_of_a_real_slurm(accounted_slurm: Accounted) -> None:
    client = Client(environment=accounted_slurm.environment() | ELSEWHERE | {"SACCT_FORMAT": "JobID"})
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
    job = accounted_slurm.submit("-N2", "-t7", "--wrap=true", "--job-name", "a|b\n9|9")

    def rows() -> list[dict[str, str]]:
        return [dict(row) for row in client.history(begin) if row["JobIDRaw"] == job]

    accounted_slurm.until(lambda: [row["State"] for row in rows()] == ["COMPLETED"], "the accounts", within=60)
    [row] = rows()
    assert (row["NNodes"], row["TimelimitRaw"], row["Partition"]) == ("2", "7", "batch")
    assert begin.timestamp() < int(row["Submit"]) <= int(row["Start"]) <= int(row["End"])
    assert list(client.history(begin - dt.timedelta(days=2), begin - dt.timedelta(days=1))) == []


def test_slurm_and_whorl_read_each_others_lists(slurm_session: Slurm) -> None:
    draw = random.Random(5)
    for _ in range(12):
        prefixes = draw.sample(["n", "c002-", "gpu-a", "r1c", "login"], draw.randint(1, 3))
        width = draw.choice(["", "02", "03"])
        names = {f"{draw.choice(prefixes)}{draw.randint(0, 130):{width}}" for _ in range(draw.randint(1, 60))}
        names |= {"head", "n01.site.example", "n02.site.example", "n03-ib"} if draw.random() < 0.5 else set()
        read = slurm_session.run("scontrol", "show", "hostnames", compress(names)).stdout.split()
        assert (len(read), set(read)) == (len(names), names)
        written = slurm_session.run("scontrol", "show", "hostlist", ",".join(sorted(names))).stdout.strip()
        back = expand(written)
        assert (len(back), set(back)) == (len(names), names), written


HOSTILE = """it's "so" $(touch ran) `touch ran` $HOME; touch ran & # \\ {{node}}"""


def test_slurm_runs_the_script_and_no_name_is_more_than_a_name(slurm: Slurm) -> None:
    folder = slurm.folder / "out" / "rendered"
    folder.mkdir()
    folder.chmod(0o777)
    store, output = folder / HOSTILE, folder / HOSTILE.replace("\\", "")  # in this name a backslash means something
    line = ["campaign", "render", "--scheduler", "slurm", "--suite", "quick", "--campaign", "autumn", "--nodes", "n03"]
    line += [
        "--store",
        str(store),
        "--set",
        f"output={output}",
        "--option",
        "--account='two $(words)'",
        "--program",
        "printf %s\\\\n",
    ]
    rendered = CliRunner().invoke(cli, [*line, "--setup", "cd /", "--option", "--comment='two words'"])
    assert (rendered.exit_code, rendered.stderr) == (0, "")
    script = folder / "job.sh"
    script.write_text(rendered.stdout)
    done = slurm.run("sbatch", "--parsable", str(script), user="alice")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    slurm.until(lambda: slurm.field(job, "JobState") == "COMPLETED", "the job to end")
    words = ["probe", "run", "--suite", "quick", "--store", str(store), "--campaign", "autumn"]
    assert output.read_text().splitlines()[: len(words)] == words
    text = slurm.run("scontrol", "-o", "show", "job", job).stdout
    assert "Account=two $(words) " in text
    assert "Comment=two words " in text
    assert (slurm.field(job, "JobName"), slurm.field(job, "NodeList")) == ("whorl:autumn:n03", "n03")
    assert "OverSubscribe=NO" in text
    assert sorted(path.name for path in folder.iterdir()) == sorted([script.name, output.name])
