"""The prolog, epilog and health check of docs/slurm on real daemons: jobs run, whatever goes wrong in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.sizes import sample
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "slurm"
NAMES = ("prolog", "epilog", "health_check")
TAG = Path(__file__).resolve().parents[2] / "jobs" / "accounting" / "tag.sh"


@pytest.fixture(scope="module")
def site(slurm_session: Slurm) -> Iterator[Path]:
    """The daemons with the scripts as a site installs them; the folder that stands for /etc/slurm/whorl."""
    folder = slurm_session.folder / "site"
    folder.mkdir()
    for name in NAMES:
        text = (SCRIPTS / f"{name}.sh").read_text()
        assert "/etc/slurm/whorl-tag" in text or "conf=/etc/whorl/whorl.conf" in text
        text = (
            text.replace("/etc/slurm", str(folder))
            .replace("/etc/whorl", str(folder))
            .replace("/var/spool/whorl", f"{folder}/tags")
            .replace("runuser -u whorl", "runuser -u root")  # the test has no user whorl
        )
        (folder / f"{name}.sh").write_text(text)
        (folder / f"{name}.sh").chmod(0o755)
    slurm_session.reset()
    slurm_session.reconfigure(
        PrologFlags="Alloc",
        Prolog=f"{folder}/prolog.sh",
        Epilog=f"{folder}/epilog.sh",
        HealthCheckProgram=f"{folder}/health_check.sh",
        HealthCheckInterval="3",
        HealthCheckNodeState="ANY,CYCLE",
    )
    yield folder
    slurm_session.reset()
    slurm_session.reconfigure()


def tag(folder: Path, script: str) -> None:
    (folder / "whorl-tag").write_text(script)
    (folder / "whorl-tag").chmod(0o755)


def ran(slurm: Slurm) -> str:
    """A short job of two GPUs that has ended well; its id."""
    done = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:2", "--wrap=true", user="alice")
    job = done.stdout.strip()
    slurm.until(lambda: slurm.field(job, "JobState") == "COMPLETED", f"job {job} to end")
    return job


def test_a_job_is_tagged_when_it_begins_and_ends(slurm: Slurm, site: Path) -> None:
    (site / "tags").mkdir()
    tag(site, TAG.read_text())
    job = ran(slurm)
    slurm.until(lambda: len(list((site / "tags").glob("*.tag"))) == 2, "both tags")
    tags = [dict(line.split("=", 1) for line in path.read_text().splitlines()) for path in (site / "tags").iterdir()]
    assert {tag_fields["event"] for tag_fields in tags} == {"begin", "end"}
    assert {(tag_fields["job"], tag_fields["node"], tag_fields["slurm_gpus"]) for tag_fields in tags} == {
        (job, "n01", "0,1")
    }


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "script",
    sample(["#!/bin/sh\ntrap '' TERM\nsleep 60\n", "#!/bin/sh\nexit 3\n", "not a program", None], short=2),
)
def test_a_tag_that_fails_hangs_or_is_missing_harms_no_job(slurm: Slurm, site: Path, script: str | None) -> None:
    (site / "whorl-tag").unlink(missing_ok=True)
    if script is not None:
        tag(site, script)
    ran(slurm)
    slurm.until(lambda: set(slurm.node_states().values()) == {"IDLE"}, "the nodes to be idle, and none drained")


def configure(slurm: Slurm, folder: Path, program: Path, store: str, *, drain: str) -> Path:
    """Write the file that stands for /etc/whorl/whorl.conf. What would go to the system log goes to a file."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    new = folder / "whorl.conf.new"
    new.write_text(
        f"export SLURM_CONF={slurm.folder}/etc/slurm.conf  # where no script looks by itself\n"
        f"WHORL={program}\nexport WHORL_CONFIG={folder}/whorl.toml\nWHORL_USER=root\nWHORL_DRAIN={drain}\n"
        f'logger() {{ echo "$SLURMD_NODENAME $*" >>{log}; }}\n'
    )
    (folder / "whorl.toml").write_text(f'store = "{store}"\n')
    new.replace(folder / "whorl.conf")
    return log


@pytest.mark.long
def test_the_health_check_says_what_is_wrong_and_drains_only_where_that_is_wanted(slurm: Slurm, site: Path) -> None:
    program = site / "whorl"
    fleet = "--backend simulated:gpus=2,fault=lost"
    program.write_text(
        "#!/bin/sh\n[ $SLURMD_NODENAME = n02 ] || exit 0\ncd $(dirname $0)\n"  # it really runs once: what it says stays
        f"[ -f status ] || {{ {sys.executable} -B -m whorl $* {fleet} >says.$$ 2>&1; echo $? >status.$$;\n"
        "mv says.$$ says; mv status.$$ status; }\n"
        "cat says\nexit $(cat status)\n"
    )
    program.chmod(0o755)
    store = str(site / "store")
    line = ["probe", "run", "gemm-fp32", "--store", store, *fleet.split()]
    assert CliRunner().invoke(cli, line).exit_code in (0, 6)
    log = configure(slurm, site, program, store, drain="no")
    slurm.until(lambda: log.exists() and bool(log.read_text()), "a finding", 60)
    assert log.read_text().startswith("n02 -t whorl -p daemon.err -- WHORL CRITICAL - ")
    assert "has fallen off the bus" in log.read_text()
    assert set(slurm.node_states().values()) == {"IDLE"}, "a finding alone changes no node"
    configure(slurm, site, program, store, drain="yes")
    slurm.until(lambda: "DRAIN" in slurm.node_states()["n02"], "n02 to be drained", 60)
    text = slurm.run("scontrol", "-o", "show", "node", "n02").stdout
    assert "Reason=whorl: WHORL CRITICAL - " in text
    assert [name for name, state in slurm.node_states().items() if "DRAIN" in state] == ["n02"]
    (site / "whorl.conf").unlink()


@pytest.mark.parametrize(
    "text", sample(["WHORL=/nonexistent\n", "WHORL='\n", "exit 7\n", "WHORL=/bin/false\n"], short=2)
)
def test_a_check_that_cannot_be_done_drains_nothing(slurm: Slurm, site: Path, text: str) -> None:
    script = site / "health_check.sh"
    conf = site / "whorl.conf"
    conf.write_text(f"WHORL_DRAIN=yes\nWHORL_USER=root\n{text}")
    try:
        ended = slurm.run("sh", str(script), env={"SLURMD_NODENAME": "n01"})
    finally:
        conf.unlink()
    assert ended.returncode == 0
    assert set(slurm.node_states().values()) == {"IDLE"}


def test_a_cluster_without_accounts_says_what_to_do(slurm: Slurm) -> None:
    done = slurm.whorl("jobs", "import", "--store", str(slurm.folder / "out" / "store"), "--since", "1d", user="alice")
    assert done.returncode == 5
    assert "Slurm keeps no accounts here" in done.stderr
    assert "whorl jobs tag" in done.stderr
