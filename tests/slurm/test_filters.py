"""The submit filters of docs/slurm on real daemons: they follow a good file, and fail open with any other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whorl.jobs.apply import change_of
from whorl.jobs.formats import filter_file, largest_jobs
from whorl.jobs.slurm import Slurm as Client
from whorl.tests.advised_fleet import write_store
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

ASKING = {"cli_filter": (["--comment=mine"], {"WHORL_ADVISE": "sgemm"}), "job_submit": (["--comment=whorl=sgemm"], {})}
FACTS = "# whorl written={now} length=11 partition=batch default=1\n"
BAD = {
    "missing": None,
    "empty": "",
    "garbage": "\x00\xff n01,;rm -rf /\n\n\n",
    "a list without the facts": "n01\n# 4 n01\n",
    "torn": "n[01-02",
    "cut": f"n01\n# 4 n0\n{FACTS}",
    "facts cut": "n01\n# 4 n01\n# whorl written={now} length=11 partit",
    "facts that are none": "n01\n# 4 n01\n# whorl written=now length=11 partition=batch default=1\n",
    "old": "n01\n# 4 n01\n# whorl written={days_ago} length=11 partition=batch default=1\n",
    "of an older whorl": "n01\n# whorl written={now} length=3 partition=batch default=1 nodes=5 gpus=20 cpus=40\n",
    "of another partition": "n01\n# 4 n01\n# whorl written={now} length=11 partition=debug default=0\n",
    "no kind has enough": "n01\n# whorl written={now} length=3 partition=batch default=1\n",
    "not a number of nodes": f"n01\n# x n01\n{FACTS}",
    "nothing to exclude": "\n# whorl written={now} length=0 partition=batch default=1\n",
    "long": "n" * 100_000,
}


@pytest.fixture(params=["cli_filter", "job_submit"])
def filtered(request: pytest.FixtureRequest, slurm_session: Slurm) -> Iterator[tuple[Slurm, str]]:
    """The daemons, and the filter that the jobs of this test ask."""
    if request.param not in slurm_session.filters:
        pytest.skip("this Slurm is built without Lua")
    yield slurm_session, request.param
    slurm_session.cancel_all()
    put(slurm_session, None)


def good(slurm: Slurm, *excluded: str) -> str:
    client = Client(environment=slurm.environment())
    sizes = largest_jobs(excluded, list(client.nodes().values()))
    return filter_file(excluded, sizes, "batch", is_default=True)


def put(slurm: Slurm, text: str | None) -> None:
    path = slurm.folder / "advice" / "sgemm.exclude"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(
            text.replace("{now}", str(int(time.time()))).replace("{days_ago}", str(int(time.time()) - 2 * 86400)),
            encoding="latin-1",
        )


def submit(filtered: tuple[Slurm, str], *options: str, asks: bool = True) -> str:
    slurm, name = filtered
    asking, env = ASKING[name] if asks else ([], {})
    return slurm.submit("--hold", *asking, *options, env=env)


def excluded(filtered: tuple[Slurm, str], *options: str, asks: bool = True) -> str:
    """The nodes that a submitted job avoids."""
    value = filtered[0].field(submit(filtered, *options, asks=asks), "ExcNodeList")
    return "" if value == "(null)" else value


def test_a_job_that_asks_avoids_the_nodes(filtered: tuple[Slurm, str]) -> None:
    put(filtered[0], good(filtered[0], "n01", "n03"))
    assert excluded(filtered, asks=False) == ""
    job = submit(filtered)
    assert filtered[0].field(job, "ExcNodeList") == "n[01,03]"
    filtered[0].run("scontrol", "release", job)
    assert filtered[0].nodes_of(job) == ["n02"]


def test_the_users_own_choices_stand(filtered: tuple[Slurm, str]) -> None:
    put(filtered[0], good(filtered[0], "n01"))
    assert excluded(filtered, "--exclude=n05") == "n[01,05]"
    assert excluded(filtered, "--nodelist=n01") == ""
    assert excluded(filtered, "--constraint=cab1") == ""
    assert excluded(filtered, "--partition=debug") == ""
    assert excluded(filtered, "--partition=batch") == "n01"


def test_a_job_that_may_need_too_many_nodes_is_left_alone(filtered: tuple[Slurm, str]) -> None:
    """Of the five nodes that are left, one is kept in reserve."""
    put(filtered[0], good(filtered[0], "n01"))
    for options in (["--nodes=5"], ["--nodes=1-5"], ["-n5"], ["--gpus=5"], ["-n5", "--gpus=v100:2"]):
        assert excluded(filtered, *options) == ""
    assert excluded(filtered, "--nodes=4", "--exclude=n06") == "n06"
    for options in (["--nodes=4"], ["--nodes=2-4", "-n30"], ["-n4"], ["--gpus=4"], ["-n4", "--gpus=v100:4"]):
        assert excluded(filtered, *options) == "n01"
    assert excluded(filtered, "--nodes=3", "--exclude=n06") == "n[01,06]"
    asking, env = ASKING[filtered[1]]
    for options in (["-n70000"], ["-N70000"]):  # Slurm's "not asked for" is 65534 in shorter numbers
        huge = filtered[0].run("sbatch", "--wrap=true", *asking, *options, user="alice", env=env)
        assert "whorl: nothing is excluded: it may need more nodes than are surely left" in huge.stderr


def test_what_the_environment_asks_for_counts_too(filtered: tuple[Slurm, str]) -> None:
    """Slurm's list of the options that were given lacks these two."""
    slurm, name = filtered
    put(slurm, good(slurm, "n01"))
    asking, env = ASKING[name]
    job = slurm.submit("--hold", *asking, "--nodes=2", env=env | {"SBATCH_REQ_SWITCH": "1"})
    assert slurm.field(job, "ExcNodeList") == "(null)"
    if name == "cli_filter":
        assert "--exclude=n01" in slurm.run("srun", "--test-only", "true", env=env).stderr
        at_once = slurm.run("srun", "--test-only", "true", env=env | {"SLURM_IMMEDIATE": "5"}).stderr
        assert "nothing is excluded: it has --immediate" in at_once


def test_each_kind_of_node_bounds_its_own_list(filtered: tuple[Slurm, str]) -> None:
    lists = "n[01,05]\n# 1 n05\n# 3 n01"
    put(filtered[0], f"{lists}\n# whorl written={{now}} length={len(lists)} partition=batch default=1\n")
    assert [excluded(filtered, f"-N{nodes}") for nodes in (1, 2, 3, 4)] == ["n[01,05]", "n01", "n01", ""]


def test_with_a_bad_file_jobs_are_submitted_as_they_are(filtered: tuple[Slurm, str]) -> None:
    for kind, text in BAD.items():
        put(filtered[0], text)
        assert excluded(filtered) == "", kind
    put(filtered[0], good(filtered[0], "n01"))
    path = filtered[0].folder / "advice" / "sgemm.exclude"
    path.chmod(0o000)
    assert excluded(filtered) == "", "a file that cannot be read"
    path.unlink()
    path.mkdir()
    assert excluded(filtered) == "", "a folder"
    path.rmdir()


def test_steps_of_a_job_are_left_alone(filtered: tuple[Slurm, str]) -> None:
    """A job hands its environment to its steps, and may run on a node that is to be avoided by now."""
    slurm, name = filtered
    put(slurm, good(slurm, "n01"))
    asking, env = ASKING[name]
    line = ["sbatch", "--wait", "--nodelist=n01", "--output=steps.out", *asking]
    script = "srun -n1 sh -c 'echo ran on $SLURMD_NODENAME'; WHORL_ADVISE=sgemm sbatch --hold --parsable --wrap=true"
    done = slurm.run(*line, f"--wrap={script}", user="alice", env=env, timeout=60)
    out = (slurm.folder / "out" / "steps.out").read_text()
    assert done.returncode == 0, out
    assert "ran on n01" in out
    if name == "cli_filter":
        assert slurm.field(out.split()[-1], "ExcNodeList") == "n01", "a job from within a job asks for itself"


def test_a_name_that_is_no_workload_reads_no_file(filtered: tuple[Slurm, str]) -> None:
    slurm, name = filtered
    (slurm.folder / "sgemm.exclude").write_text(good(slurm, "n01"))
    for word in ("../sgemm", "..", "/", "%s", "a" * 500, ""):
        env = {"WHORL_ADVISE": word} if name == "cli_filter" else {}
        job = slurm.submit("--hold", f"--comment=whorl={word}", env=env)
        assert slurm.field(job, "ExcNodeList") == "(null)"


@pytest.mark.long(short=1)
def test_the_file_that_whorl_writes(filtered: tuple[Slurm, str], tmp_path: Path) -> None:
    slurm = filtered[0]
    path = slurm.folder / "advice" / "sgemm.exclude"
    put(slurm, "what was before")
    asking = ["advise", "--workload", "sgemm", "--format", "exclude", "--set", f"output={path}"]
    failed = slurm.whorl(*asking, "--store", str(tmp_path / "none"))
    assert failed.returncode == 3
    assert path.read_text() == "what was before", "a failure leaves the file"
    asking += ["--store", str(write_store(tmp_path / "fleet"))]
    done = slurm.whorl(*asking)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.endswith("1 of 6 nodes of partition batch\n")
    assert excluded(filtered) == "n02"
    assert excluded(filtered, "--nodes=4") == "n02"
    assert excluded(filtered, "--nodes=6") == ""
    several = slurm.whorl(*asking, "--partition", "batch,urgent")
    assert (several.returncode, several.stderr.count("\n")) == (2, 1)
    assert "is about one partition, not batch,urgent: choose one" in several.stderr
    # Nodes of a reservation cannot stand in for others.
    options = ["nodes=n[03-05]", "starttime=now+1hour", "duration=10", "users=root"]
    assert slurm.run("scontrol", "create", "reservation=kept", *options).returncode == 0
    try:
        assert slurm.whorl(*asking).returncode == 0
    finally:
        slurm.run("scontrol", "delete", "reservation=kept")
    assert path.read_text().startswith("n02\n# 1 n02\n# whorl ")
    assert excluded(filtered, "--nodes=2") == ""


def test_what_job_submit_excluded_can_be_refreshed(filtered: tuple[Slurm, str]) -> None:
    """The other filter has only fields that a site's own checks may read: it changes none of these."""
    slurm, name = filtered
    put(slurm, good(slurm, "n01"))
    job = submit(filtered)
    client = Client(environment=slurm.environment())
    (record,) = client.jobs(job)
    refreshed = change_of(record, ["n04"])
    assert slurm.run(*refreshed.command, user="alice").returncode == 0
    if name == "job_submit":
        assert slurm.field(job, "ExcNodeList") == "n04"
    else:
        assert client.jobs(job)[0].comment.split()[0] == "mine"
        assert slurm.field(job, "ExcNodeList") == "n[01,04]"


def test_a_heterogeneous_job_is_left_alone(filtered: tuple[Slurm, str]) -> None:
    slurm, name = filtered
    put(slurm, good(slurm, "n01"))
    asking, env = ASKING[name]
    script = slurm.folder / "out" / "parts.sh"
    script.write_text("#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=1\ntrue\n")
    script.chmod(0o755)
    for line in ([str(script)], ["--wrap=true", "--nodes=2", ":", "--nodes=1"]):
        done = slurm.run("sbatch", "--hold", "--parsable", *asking, *line, user="alice", env=env)
        assert done.returncode == 0, done.stderr
        text = slurm.run("scontrol", "-o", "show", "job", done.stdout.strip()).stdout
        assert text.count("HetJobOffset=") == 2
        assert text.count("ExcNodeList=(null)") == 2, text
    script.write_text("#!/bin/sh\n#SBATCH --nodes=2\ntrue\n")
    done = slurm.run("sbatch", "--hold", "--parsable", *asking, str(script), user="alice", env=env)
    assert slurm.field(done.stdout.strip(), "ExcNodeList") == "n01", "a script of one part"


SITES = {
    "cli_filter": """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  if options["comment"] == nil then slurm.log_error("no project") return slurm.ERROR end
  options["job-name"] = "of-the-site"
  return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
""",
    "job_submit": """
function slurm_job_submit(job, partitions, uid)
  if job.comment == nil then slurm.log_user("no project") return slurm.ERROR end
  job.name, job.admin_comment = "of-the-site", "seen"
  if job.name == "x" then return slurm.ERROR end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  if job.comment == "forbidden" then slurm.log_user("forbidden") return slurm.ERROR end
  return slurm.SUCCESS
end
""",
}


def load(script: Path, text: str) -> None:
    """Change a script so that slurmctld reads it again, which it does with a newer one, to the second."""
    newer = max(script.stat().st_mtime, time.time()) + 10
    script.write_text(text)
    os.utime(script, times=(newer, newer))


@pytest.mark.long(short=1)
def test_the_checks_of_the_site_go_on_to_work(filtered: tuple[Slurm, str]) -> None:
    """The site's script comes first; whorl's, loaded at its end, only sees the jobs that it lets pass."""
    slurm, name = filtered
    put(slurm, good(slurm, "n01"))
    etc = slurm.folder / "etc"
    script, alone = etc / f"{name}.lua", (etc / f"{name}.lua").read_text()
    (etc / f"whorl_{name}.lua").write_text(alone)
    try:
        load(script, f'{SITES[name]}pcall(dofile, "{etc}/whorl_{name}.lua")\nreturn slurm.SUCCESS\n')
        job = submit(filtered)
        assert (slurm.field(job, "ExcNodeList"), slurm.field(job, "JobName")) == ("n01", "of-the-site")
        refused = slurm.run("sbatch", "--hold", "--wrap=true", user="alice", env={"WHORL_ADVISE": "sgemm"})
        assert (refused.returncode != 0, "no project" in refused.stderr) == (True, True)
        if name == "job_submit":
            assert "seen whorl:excluded=n01" in slurm.run("scontrol", "-o", "show", "job", job).stdout
            assert slurm.run("scontrol", "update", f"jobid={job}", "comment=forbidden", user="alice").returncode != 0
        load(script, f'{SITES[name]}pcall(dofile, "{etc}/none.lua")\nreturn slurm.SUCCESS\n')
        job = submit(filtered)
        assert (slurm.field(job, "ExcNodeList"), slurm.field(job, "JobName")) == ("(null)", "of-the-site")
    finally:
        load(script, alone)
