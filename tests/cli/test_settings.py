"""Options of KEY=VALUE from the command line: --set, --world, and what follows --backend NAME:."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whorl.tests.cli.calling import whorl

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
