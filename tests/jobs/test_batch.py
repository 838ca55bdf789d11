"""Scripts for schedulers, made from templates."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import textwrap
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError
from whorl.jobs.batch import TEMPLATES, BatchJob, render, schedulers

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
    store="/a b/fleet",
)
HOSTILE = """it's "so" $(touch ran) `touch ran` $HOME $$ $(NODE) ; touch ran & # \\ {{node}} é"""


def test_what_is_asked_for_is_in_the_script_of_slurm() -> None:
    lines = render("slurm", FULL).splitlines()
    assert lines[0] == "#!/bin/bash"
    directives_of_slurm = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert directives_of_slurm >= {
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


def test_what_cannot_be_rendered_is_said(tmp_path: Path) -> None:
    template = tmp_path / "template.sh"
    template.write_text("#!/bin/bash\n#SBATCH -w {{nodes}}\n")
    with pytest.raises(
        InputError, match=rf"{template}, line 2: there is no value \{{\{{nodes\}}\}}; there are account"
    ):
        render("slurm", FULL, template)
    with pytest.raises(InputError, match=r"missing\.sh cannot be read: No such file"):
        render("slurm", FULL, tmp_path / "missing.sh")
    with pytest.raises(InputError, match=r"no template for 'cobalt'; there are .*slurm"):
        render("cobalt", FULL)


def directives(scheduler: str, job: BatchJob) -> list[str]:
    """What a script asks of its scheduler, in its order."""
    mark = {"slurm": "#SBATCH ", "pbs": "#PBS ", "lsf": "#BSUB ", "flux": "# flux: "}[scheduler]
    return [line.removeprefix(mark) for line in render(scheduler, job).splitlines() if line.startswith(mark)]


hostile = BatchJob(
    HOSTILE,
    ["printf", "%s\\n", HOSTILE, "--store", "-x y"],
    90,
    4,
    node=HOSTILE,
    partition=HOSTILE,
    qos=HOSTILE,
    account=HOSTILE,
    output=HOSTILE,
    store=HOSTILE,
)


@pytest.mark.parametrize("scheduler", [name for name in schedulers() if (TEMPLATES / f"{name}.sh").exists()])
def test_a_hostile_name_stays_one_word(scheduler: str, tmp_path: Path) -> None:
    """Also in the directives, whose quotes are like those of the shell."""
    text = render(scheduler, hostile)
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/bin"})
    assert (done.returncode, done.stdout) == (0, f"{HOSTILE}\n--store\n-x y\n")
    assert not list(tmp_path.iterdir())
    words_of_directives = [shlex.split(line) for line in directives(scheduler, hostile) if not line.startswith("-l ")]
    assert sum(HOSTILE in word for words in words_of_directives for word in words) >= 3
    for line in text.splitlines():
        if line.startswith(("#PBS -N ", "#BSUB -J ")):
            assert re.fullmatch(r"#\w+ -\w [a-z0-9-]{1,63}", line)


@pytest.mark.parametrize("scheduler", schedulers())
def test_a_program_with_quotes_in_its_name_is_called(scheduler: str, tmp_path: Path) -> None:
    stub = tmp_path / """a'b "c" $d"""
    stub.write_text("#!/bin/sh\necho called\n")
    stub.chmod(0o755)
    line = ["campaign", "render", "--scheduler", scheduler, "--suite", "quick", "--store", str(tmp_path / "S")]
    done = CliRunner().invoke(cli, [*line, "--program", shlex.quote(str(stub))])
    assert done.exit_code == 0, done.output
    text = done.stdout
    if scheduler == "kubernetes":
        block = text.partition("            - |\n")[2].partition("          env:")[0]
        text = expanded(textwrap.dedent(block))
    for options, expected in ((["-n"], ""), ([], "called\n")):
        ran = subprocess.run(["bash", *options], input=text, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr
    done = CliRunner().invoke(cli, [*line, "--program", "a'b"])
    assert done.exit_code == 2
    assert "put a backslash before each quote" in done.stderr
    assert isinstance(done.exception, SystemExit), "a traceback"


@pytest.mark.parametrize("name", [field.name for field in fields(BatchJob) if field.name not in ("minutes", "gpus")])
def test_a_line_break_makes_no_second_line(name: str) -> None:
    value = "a\n#SBATCH --wrap=b"
    change: dict[str, Any] = {name: [value] if name in ("command", "setup", "options") else value}
    wrong = replace(FULL, **change)
    with pytest.raises(InputError, match="write one line without control characters"):
        render("slurm", wrong)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here to read the YAML")
def test_kubernetes_reads_what_was_meant(tmp_path: Path) -> None:
    job = parsed("kubernetes", FULL)
    assert job["metadata"]["name"] == "whorl-autumn-n01"
    pod = job["spec"]["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == 5400
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "batch"
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n01"]}]}
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container["volumeMounts"] == [{"name": "store", "mountPath": "/a b/fleet"}]
    assert container["args"][0].splitlines()[1:] == [*FULL.setup, "exec whorl probe run --store '/a b/fleet'"]
    assert "affinity" not in parsed("kubernetes", BARE)["spec"]["template"]["spec"]

    job = parsed("kubernetes", hostile)
    assert job["metadata"]["annotations"]["whorl.io/job"] == HOSTILE
    assert re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", job["metadata"]["name"])
    assert len(job["metadata"]["name"]) <= 63
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["volumeMounts"][0]["mountPath"] == HOSTILE
    line = [*container["command"], *(expanded(argument) for argument in container["args"])]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/bin"})
    assert (done.returncode, done.stdout) == (0, f"{HOSTILE}\n--store\n-x y\n")


def parsed(scheduler: str, job: BatchJob) -> dict[str, Any]:
    """The object that `kubectl` reads in a file; no cluster is asked."""
    line = ["kubectl", "label", "--local", "--filename=-", "--output=json", "read=yes"]
    done = subprocess.run(line, input=render(scheduler, job), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def expanded(text: str) -> str:
    """What Kubernetes makes of an argument, where NODE is a variable of the container."""
    return re.sub(r"\$(\$|\(NODE\))", lambda match: "$" if match[1] == "$" else "replaced", text)
