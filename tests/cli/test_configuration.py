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


def test_zone_and_price_count_where_a_store_has_no_energy_toml(files: Files, tmp_path: Path) -> None:
    from whorl.analysis.energy.settings import find_settings

    files.site.write_text('[energy]\nzone = "DE"\nprice = 0.21\ncurrency = "EUR"\n')
    answer = find_settings(tmp_path)
    assert [str(dated.value) for dated in (*answer.zones, *answer.price)] == ["DE", "0.21"]
    (tmp_path / "energy.toml").write_text('zone = "FR"\n')
    assert [dated.value for dated in find_settings(tmp_path).zones] == ["FR"]
    files.user.write_text("[energy]\nzone = 7\n")
    assert [dated.value for dated in find_settings(tmp_path).zones] == ["FR"]


def test_a_store_that_nobody_names_is_missed_in_one_sentence(files: Files) -> None:
    for line in ("report", "sql 1", "explain c001-1/0", "verdicts variability", "import /dev/null", "check --quick"):
        result = whorl(line)
        assert result.exit_code == (3 if "check" in line else 2)  # `check` fails open: 2 would be an alarm
        assert "Missing option '--store'" in result.output
