"""Scripts for schedulers, made from templates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.jobs.batch import TEMPLATES, BatchJob, render, schedulers, values

BARE = BatchJob("whorl:autumn:n01", ["whorl", "probe", "run", "--store", "/a b/fleet"], 90, 4)
FULL = BatchJob(
    "whorl:autumn:n01",
    BARE.command,
    90,
    4,
    node="n01",
    partition="batch",
    qos="probe",
    account="physics",
    nice=1000,
    output="/logs/n01.out",
    setup=["module load cuda", ". /opt/whorl/bin/activate"],
    options=["--constraint=a100", "--reservation=acceptance"],
)


def test_what_is_asked_for_is_in_the_script_of_slurm() -> None:
    lines = render("slurm", FULL).splitlines()
    assert lines[0] == "#!/bin/bash"
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert asked >= {
        "--job-name=whorl:autumn:n01",
        "--nodelist=n01",
        "--exclusive",
        "--gres=gpu:4",
        "--time=90",
        "--partition=batch",
        "--qos=probe",
        "--account=physics",
        "--nice=1000",
        "--requeue",
        "--open-mode=append",
        "--output=/logs/n01.out",
        "--constraint=a100",
        "--reservation=acceptance",
    }
    setup, command = lines.index("module load cuda"), lines.index("exec whorl probe run --store '/a b/fleet'")
    assert lines[setup : setup + 2] == list(FULL.setup)
    assert setup < command


def test_what_is_not_asked_for_leaves_no_line() -> None:
    text = render("slurm", BARE)
    assert not re.search("nodelist|partition|qos|account|nice|output", text)
    assert "#SBATCH\n" not in text
    assert "{{" not in text


@pytest.mark.parametrize("scheduler", [name for name in schedulers() if (TEMPLATES / f"{name}.sh").exists()])
@pytest.mark.parametrize("job", [BARE, FULL], ids=["bare", "full"])
def test_every_script_is_shell(scheduler: str, job: BatchJob) -> None:
    text = render(scheduler, job)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "{{" not in text


def test_a_site_has_its_own_template(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("node: {{node}}\n  - {{ option }}\nlimit: {{walltime}} {{seconds}}\nplain\n")
    assert render("slurm", FULL, own) == (
        "node: n01\n  - --constraint=a100\n  - --reservation=acceptance\nlimit: 01:30:00 5400\nplain\n"
    )


def test_what_cannot_be_rendered_is_said(tmp_path: Path) -> None:
    own = tmp_path / "own.sh"
    own.write_text("#!/bin/bash\n#SBATCH -w {{nodes}}\n")
    with pytest.raises(InputError, match=rf"{own}, line 2: there is no value \{{\{{nodes\}}\}}; there are account"):
        render("slurm", FULL, own)
    with pytest.raises(InputError, match=r"missing\.sh cannot be read: No such file"):
        render("slurm", FULL, tmp_path / "missing.sh")
    with pytest.raises(InputError, match=r"no template for 'cobalt'; there are .*slurm"):
        render("cobalt", FULL)


def test_every_value_is_used_by_slurm() -> None:
    """But for the wall time, which other schedulers spell in another way."""
    used = set(re.findall(r"\{\{(\w+)\}\}", (TEMPLATES / "slurm.sh").read_text()))
    assert values(FULL).keys() - used == {"seconds", "walltime"}
