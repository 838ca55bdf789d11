"""The files of docs/site: systemd, a shell, cron and whorl itself read them as they are meant."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from whorl import __version__
from whorl.tests.test_docs import ROOT, complaint

SITE = ROOT / "docs" / "site"
SCRIPTS = sorted((ROOT / "docs" / "slurm").glob("*.sh"))
SERVICES = sorted(SITE.glob("*.service"))
CRON = SITE / "whorl.cron"
FIELD = re.compile(r"\*(/\d+)?|\d+(-\d+)?(,\d+(-\d+)?)*")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_systemd_reads_the_unit(service: Path, tmp_path: Path) -> None:
    unit = tmp_path / service.name
    text = service.read_text()
    assert "\nExecStart=/opt/whorl/bin/whorl " in text
    unit.write_text(text.replace("/opt/whorl/bin/whorl", sys.executable))  # it looks whether the program is there
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    unit_lines = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, unit_lines) == (0, [])
    unit.write_text(text.replace("NoNewPrivileges=", "NoNewPrivilege="))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "NoNewPrivilege" in done.stderr, "it does tell"


def words_of(command: str) -> list[str]:
    """The words of the call of whorl in a line of a shell, without what follows."""
    match = re.search(r'(?:"\$WHORL"|/opt/whorl/bin/whorl) ([^|&;<>]*)', command)
    assert match, command
    return re.sub(r"\$\([^)]*\)", "", match[1]).split()


def test_the_commands_of_the_units_of_cron_and_of_the_health_check_exist() -> None:
    lines = [line for service in SERVICES for line in service.read_text().splitlines() if line.startswith("ExecStart=")]
    lines += [line for line in CRON.read_text().splitlines() if "$WHORL" in line]
    lines += [line for path in SCRIPTS for line in path.read_text().splitlines() if '"$WHORL"' in line]
    assert len(lines) >= 6
    assert not {line: why for line in lines if (why := complaint(words_of(line)))}


def test_cron_reads_the_table() -> None:
    entries = [
        line
        for line in CRON.read_text().splitlines()
        if line and not line.startswith("#") and "=" not in line.split()[0]
    ]
    assert len(entries) >= 3
    for entry in entries:
        *schedule, user, command = entry.split(None, 6)
        assert all(FIELD.fullmatch(field) for field in schedule), entry
        assert user == "whorl"
        assert not re.search(r"(?<!\\)%", command), "cron ends a command at a plain %"
        shell = command.replace("\\%", "%")
        assert subprocess.run(["sh", "-n"], input=shell, text=True).returncode == 0
    assert CRON.read_text().endswith("\n"), "cron passes over a last line without an end"


def test_a_line_of_cron_calls_whorl_with_what_the_configuration_says(tmp_path: Path) -> None:
    conf, program = tmp_path / "whorl.conf", tmp_path / "whorl"
    program.write_text('#!/bin/sh\nprintf "%s;" "$@" "$SLURM_CONF"\n')
    program.chmod(0o755)
    text = (SITE / "whorl.conf").read_text().replace("/opt/whorl/bin/whorl", str(program))
    conf.write_text(text.replace("#SLURM_CONF=", "SLURM_CONF="))
    (entry,) = [line for line in CRON.read_text().splitlines() if "campaign run" in line]
    command = entry.split(None, 6)[6].replace("\\%", "%").replace("/etc/whorl/whorl.conf", str(conf))
    command = command.replace("logger -t whorl", "cat")
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(
        r"campaign;run;--once;--suite;quick;--campaign;monthly-\d{4}-\d\d;/opt/slurm/etc/slurm.conf;", done.stdout
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_of_slurm_are_plain_shell_that_ends_with_0(path: Path, tmp_path: Path) -> None:
    """Also where nothing of what they name is there."""
    assert subprocess.run(["sh", "-n", path]).returncode == 0
    assert subprocess.run([path], env={}, cwd=tmp_path, timeout=60).returncode == 0


NHC = ROOT / "docs" / "slurm" / "whorl.nhc"


@pytest.mark.parametrize(
    ("says", "status", "fails"),
    [
        ("WHORL CRITICAL - c1/0: lost | gpus=4", 2, True),
        ("WHORL WARNING - c1/0: slow", 1, False),
        ("WHORL OK", 0, False),
        ("whorl: the store cannot be used", 3, False),
        ("Usage: whorl check", 2, False),  # an option that this whorl does not know says nothing of the GPUs
        (None, 127, False),
    ],
)
def test_the_check_of_nhc_fails_only_on_a_critical_finding(
    says: str | None, status: int, fails: bool, tmp_path: Path
) -> None:
    program, conf = tmp_path / "whorl", tmp_path / "whorl.conf"
    if says is not None:
        program.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
        program.chmod(0o755)
    conf.write_text(f"WHORL={program}\nWHORL_USER=root\n")
    check = NHC.read_text().replace("/etc/whorl/whorl.conf", str(conf))
    if shutil.which("runuser") is None or os.geteuid():
        check = check.replace('runuser -u "${WHORL_USER:-nobody}" --', "env")
    # As in NHC: a check that fails calls `die` with a status and a sentence, and returns 1.
    nhc = f'die() {{ echo "died: $*"; }}\n{check}\ncheck_whorl; echo "returned $?"\n'
    done = subprocess.run(["bash", "-c", nhc], capture_output=True, text=True, timeout=60)
    expected = ["died: 1 check_whorl:  WHORL CRITICAL - c1/0: lost", "returned 1"] if fails else ["returned 0"]
    assert done.stdout.splitlines() == expected


def test_a_site_without_whorl_has_a_check_of_nhc_that_passes() -> None:
    done = subprocess.run(["bash", "-c", f". {NHC}; check_whorl"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_recipes_need_what_pyproject_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def packages(requirements: list[str]) -> dict[str, str]:
        """The least version of each package, by its name in lower case."""
        matches = (re.match(r"([A-Za-z0-9_-]+)[ @]*>?=?\s*([0-9.]*)", requirement) for requirement in requirements)
        return {match[1].lower(): match[2] for match in matches if match}

    spack = (SITE / "spack_package.txt").read_text()
    compile(spack, "package.py", "exec")
    run = re.findall(r'depends_on\("py-([^"]*?):"', spack)
    assert packages([*run, "setuptools"]).items() >= packages(project["optional-dependencies"]["node"]).items()
    conda = (SITE / "conda_recipe.yaml").read_text()
    assert f"version: {project['version']}\n" in conda
    listed = re.findall(r"^    - (.*)$", conda.partition("\n  run:\n")[2].partition("\n\n")[0], re.MULTILINE)
    needed = packages([line.replace("python-duckdb", "duckdb") for line in listed])
    assert needed == packages(project["dependencies"]) | {"python": project["requires-python"].removeprefix(">=")}


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb here")
def test_the_package_of_the_node_side_runs_where_it_is_unpacked(tmp_path: Path) -> None:
    whorl = tmp_path / "whorl"
    whorl.write_text(f'#!/bin/sh\nexec {sys.executable} -m whorl "$@"\n')
    whorl.chmod(0o755)
    built = subprocess.run(
        ["sh", SITE / "make_package.sh", "deb", tmp_path],
        env=os.environ | {"WHORL": str(whorl)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (package,) = tmp_path.glob("whorl-node_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, tmp_path / "root"], check=True)
    program = tmp_path / "root" / "opt" / "whorl-node" / "bin" / "whorl"
    clean = {"PATH": os.environ["PATH"], "WHORL_PYTHON": sys.executable, "HOME": str(tmp_path)}
    done = subprocess.run([program, "--version"], env=clean, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"whorl, version {__version__}\n")
    assert (tmp_path / "root" / "usr" / "bin" / "whorl").readlink() == Path("/opt/whorl-node/bin/whorl")
