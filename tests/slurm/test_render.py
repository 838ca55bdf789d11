"""The script that `whorl campaign render` prints for Slurm, submitted for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

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
    made = CliRunner().invoke(cli, [*line, "--setup", "cd /", "--option", "--comment='two words'"])
    assert (made.exit_code, made.stderr) == (0, "")
    script = folder / "job.sh"
    script.write_text(made.stdout)
    done = slurm.run("sbatch", "--parsable", str(script), user="alice")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    slurm.until(lambda: slurm.field(job, "JobState") == "COMPLETED", "the job to end")
    words = ["probe", "run", "--suite", "quick", "--store", str(store), "--campaign", "autumn"]
    assert output.read_text().splitlines()[: len(words)] == words
    shown = slurm.run("scontrol", "-o", "show", "job", job).stdout
    assert "Account=two $(words) " in shown
    assert "Comment=two words " in shown
    assert (slurm.field(job, "JobName"), slurm.field(job, "NodeList")) == ("whorl:autumn:n03", "n03")
    assert "OverSubscribe=NO" in shown
    assert sorted(path.name for path in folder.iterdir()) == sorted([script.name, output.name])


def test_what_cannot_be_rendered_is_one_sentence(tmp_path: Path) -> None:
    def rendered(*options: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(cli, ["campaign", "render", "--store", str(tmp_path / "S"), *options])
        return done.exit_code, done.stdout, done.stderr

    quick = ("--scheduler", "pbs", "--suite", "quick")
    status, printed, said = rendered(*quick, "--option", "-W group_list=low", "--partition", "gpuq")
    assert (status, said) == (0, "")
    assert "#PBS -W group_list=low\n" in printed
    assert "#PBS -q gpuq\n" in printed
    assert not (tmp_path / "S").exists(), "nothing is made"
    own = tmp_path / "own"
    own.write_text("{{name}} {{nodes}}\n")
    for options, sentence in (
        ((*quick, "--campaign", "a $(b)"), "cannot name a campaign of jobs"),
        ((*quick, "--nodes", "n1\n#PBS -q x"), "write one line without control characters"),
        ((*quick, "--set", f"template={own}"), "line 1: there is no value {{nodes}}"),
        ((*quick, "--set", f"template={tmp_path / 'none'}"), "cannot be read"),
        (("--scheduler", "pbs"), "choose what to measure"),
    ):
        status, printed, said = rendered(*options)
        assert (status, printed) == (2, "")
        assert sentence in said
        assert said.count("\n") == 1
    assert rendered("--scheduler", "cobalt", "--suite", "quick")[0] == 2
