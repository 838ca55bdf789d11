"""The files of docs/site: systemd, a shell, cron and whorl itself read them as they are meant."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    ours = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, ours) == (0, [])
    unit.write_text(text.replace("NoNewPrivileges=", "NoNewPrivilege="))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "NoNewPrivilege" in done.stderr, "it does tell"


def words_of(command: str) -> list[str]:
    """The words of the call of whorl in a line of a shell, without what follows."""
    match = re.search(r'(?:"\$WHORL"|/opt/whorl/bin/whorl) ([^|&;<>]*)', command)
    assert match, command
    return re.sub(r"\$\([^)]*\)", "", match[1]).split()


def test_the_commands_of_the_units_of_cron_and_of_the_health_check_exist() -> None:
    lines = [line for one in SERVICES for line in one.read_text().splitlines() if line.startswith("ExecStart=")]
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
        *when, user, command = entry.split(None, 6)
        assert all(FIELD.fullmatch(field) for field in when), entry
        assert user == "whorl"
        assert not re.search(r"(?<!\\)%", command), "cron ends a command at a plain %"
        shell = command.replace("\\%", "%")
        assert subprocess.run(["sh", "-n"], input=shell, text=True).returncode == 0
    assert CRON.read_text().endswith("\n"), "cron passes over a last line without an end"


def test_a_line_of_cron_calls_whorl_with_what_the_configuration_says(tmp_path: Path) -> None:
    conf, program = tmp_path / "whorl.conf", tmp_path / "whorl"
    program.write_text('#!/bin/sh\nprintf "%s;" "$@"\n')
    program.chmod(0o755)
    text = (SITE / "whorl.conf").read_text()
    text = text.replace("/opt/whorl/bin/whorl", str(program)).replace("/shared/fleet", '"/a b/fleet"')
    conf.write_text(text)
    (entry,) = [line for line in CRON.read_text().splitlines() if "campaign run" in line]
    command = entry.split(None, 6)[6].replace("\\%", "%").replace("/etc/whorl/whorl.conf", str(conf))
    command = command.replace("logger -t whorl", "cat")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert re.fullmatch(
        r"campaign;run;--once;--suite;quick;--campaign;monthly-\d{4}-\d\d;--store;/a b/fleet;", done.stdout
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_of_slurm_are_plain_shell_that_ends_with_0(path: Path, tmp_path: Path) -> None:
    """Also where nothing of what they name is there."""
    assert subprocess.run(["sh", "-n", path]).returncode == 0
    assert subprocess.run([path], env={}, cwd=tmp_path, timeout=60).returncode == 0
