"""whorl.toml: which value a verb takes, and which file it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whorl.store import configuration
from whorl.store.names import this_cluster
from whorl.tests.cli.calling import whorl


class Files:
    """The files of a site and of a user, in a folder of the test."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.site, self.user = folder / "etc" / "whorl.toml", folder / "home" / "whorl" / "whorl.toml"
        patch.delenv("WHORL_CONFIG")
        patch.delenv("WHORL_STORE", raising=False)
        patch.setattr(configuration, "SITE_FILE", self.site)
        patch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
        patch.setenv("WHORL_PYDCGM_PATH", "/nowhere")
        for path in (self.site, self.user):
            path.parent.mkdir(parents=True)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def test_an_option_goes_before_the_environment_and_that_before_user_and_site(files: Files, tmp_path: Path) -> None:
    def asked(*words: str, **environment: str) -> str:
        """The folder in which a verb finds no store: its name is that of the place that named it."""
        result = whorl("store status", *words, **environment)
        assert result.exit_code == 3, result.output
        return next(name for name in ("site", "user", "variable", "option") if f"{tmp_path / name}" in result.stderr)

    variable = {"WHORL_STORE": str(tmp_path / "variable")}
    files.site.write_text(f'store = "{tmp_path / "site"}"\n')
    assert asked() == "site"
    files.user.write_text(f'store = "{tmp_path / "user"}"\n')
    assert asked() == "user"
    assert asked(**variable) == "variable"
    assert asked("--store", str(tmp_path / "option"), **variable) == "option"


def test_doctor_says_which_value_came_from_where(files: Files) -> None:
    files.site.write_text('store = "/shared/fleet"\ncluster = "alex"\n[energy]\nzone = "DE"\n')
    files.user.write_text('account = "physics"\n')
    findings = json.loads(whorl("doctor --json", WHORL_STORE="").stdout)["findings"]
    details = {row["what"]: row["detail"] for row in findings}
    assert details.items() >= {
        "store": f"/shared/fleet, from {files.site}", "cluster": f"alex, from {files.site}",
        "account": f"physics, from {files.user}", "[energy]": f"zone, from {files.site}",
    }.items()  # fmt: skip
    assert "partition" not in details
    assert this_cluster() == "alex"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("store = [", "is not a TOML file"),
        ('stroe = "/fleet"', "whorl knows no key stroe; it knows store, cluster"),
        ("cluster = 7", 'cluster must be a text in quotes, as cluster = "name"'),
        ('store = "fleet"', "store must be a whole path"),
        ('price_per_gpu_hour = "much"', "price_per_gpu_hour must be a number"),
        ('energy = "DE"', "energy is a table: write [energy]"),
    ],
)
def test_a_file_that_whorl_does_not_understand_is_one_sentence(files: Files, text: str, sentence: str) -> None:
    files.site.write_text(text + "\n")
    result = whorl("verdicts")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert str(files.site) in result.stderr
    assert sentence in result.stderr
    doctor = whorl("doctor --json")
    assert doctor.exit_code == 1
    details = {row["what"]: row["detail"] for row in json.loads(doctor.stdout)["findings"]}
    assert sentence in details["whorl.toml"]
    # A prolog must not fail for it.
    assert whorl("jobs tag begin", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0").exit_code == 0


def test_a_store_that_nobody_names_is_missed_in_one_sentence(files: Files) -> None:
    for line in ("report", "sql 1", "explain c001-1/0", "verdicts variability", "import /dev/null", "check --quick"):
        result = whorl(line)
        assert result.exit_code == (3 if "check" in line else 2)  # `check` fails open: 2 would be an alarm
        assert "Missing option '--store'" in result.output


# -- settings ----------------------------------------------------------------------------------------------------------
# Options of KEY=VALUE from the command line: --set, --world, and what follows --backend NAME:.


FLEET = ("--nodes", "1", "--gpus-per-node", "2", "--policy", "packed", "--workers", "1", "--json")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,num_gpus,submit_time,duration,model\n1,1,0,100,a\n2,2,0,100,a\n3,1,0,50,a\n")
    return path


def test_a_file_has_the_same_keys_and_a_word_goes_with_it(trace: Path, tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text('backfill = "easy"\nmigration-cost = 3\nduration_unit = "seconds"\n')
    command = ("replay --trace", trace, *FLEET, "--world")
    in_file = whorl(*command, world)
    in_words = whorl(*command, "backfill=easy", "--world", "migration-cost=3", "--world", "duration-unit=seconds")
    assert in_file.exit_code == in_words.exit_code == 0, in_file.output
    by_file, by_words = (json.loads(result.stdout)["rows"] for result in (in_file, in_words))
    assert [row | {"wall_s": 0} for row in by_file] == [row | {"wall_s": 0} for row in by_words]
    repeated = whorl(*command, world, "--world", "backfill=none")
    assert "Invalid value for --world backfill: it is given 2 times, and takes one value" in repeated.stderr
    world.write_text("backfill = easy\n")
    assert "world.toml cannot be read: Invalid value" in whorl("replay", *FLEET, "--world", world).stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("replay --world backfil=easy", "--world: there is no 'backfil'; there are locality-penalty, backfill"),
        ("replay --world backfill", "--world: 'backfill' has no value: write backfill=VALUE"),
        ("replay --world backfill=some", "--world backfill: 'some' is not one of 'none', 'easy'."),
        ("replay --world absent.toml", "--world: absent.toml cannot be read: No such file or directory"),
        ("probe run --store S --set duty=2", "--set duty: 2.0 is not in the range 0<x<1."),
        ("check --store S --backend simulated:gpus=x", "--backend simulated:gpus: 'x' is not a valid"),
        ("check --store S --backend simulated:gpus=1,gpus=2", "simulated:gpus: it is given 2 times"),
        ("check --store S --backend real", "'real' is not one of cuda, simulated, auto"),
        ("check --store S --backend cuda:gpus=1", "cuda takes nothing more: leave out :gpus=1"),
        ("energy --store S --on slurm,there", "--on slurm,there: write a place, or a place and `,here`"),
        ("demo --fault 1 --fault 2", "Invalid value for '--fault': it takes one number"),
        ("verdicts --since 7d plan", "--since must follow plan, not precede it"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = whorl(line)
    assert result.exit_code in (2, 3)
    assert sentence in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_explains_each_key_with_its_type_and_default() -> None:
    rows = {line.split()[0]: line for line in whorl("probe run --set help").stdout.splitlines()}
    assert rows["cool-down"].split()[1] == "time"
    assert rows["cool-down"].endswith("[default: 120s]")
    assert "KIND[=SIZE]" in whorl("check --backend help").stdout
