"""The generated sample files: their shapes, their consistency, and what is planted in them."""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from click.testing import CliRunner

from whorl.cli.demo import sample as command
from whorl.errors import InputError
from whorl.simulation.sample import FILES, GPUS, SEED, Sample, write_sample

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return write_sample(tmp_path_factory.mktemp("sample"))


def _rows(sample: Sample, name: str) -> Rows:
    path = next(path for path in sample.files if path.name == name)
    with path.open(newline="") as file:
        return list(csv.DictReader(file, skipinitialspace=True, strict=True))


def _by(rows: Rows, key: str, value: str) -> dict[str, list[float]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row[key]].append(float(row[value]))
    return groups


def test_the_same_seed_gives_the_same_bytes(sample: Sample, tmp_path: Path) -> None:
    again, of_another_seed = write_sample(tmp_path / "a" / "b"), write_sample(tmp_path / "c", seed=48)
    assert [path.name for path in again.files] == list(FILES)
    for first, second, third in zip(sample.files, again.files, of_another_seed.files, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes() != third.read_bytes()
    assert again.planted == sample.planted
    assert sum(path.stat().st_size for path in sample.files) < 1_000_000
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == set(FILES)


def test_the_nvidia_smi_stream(sample: Sample) -> None:
    text = sample.files[3].read_text()
    assert text.startswith("timestamp, uuid, index, power.draw [W], temperature.gpu, clocks.current.sm [MHz], ")
    assert 3 <= text.count("[N/A]") <= 10
    rows = _rows(sample, "nvidia-smi.csv")
    assert len(rows) == 480
    by_gpu = defaultdict(list)
    for row in rows:
        by_gpu[row["uuid"]].append(row)
        assert row["clocks.current.sm [MHz]"].endswith(" MHz")
        assert row["utilization.gpu [%]"].endswith(" %")
        for column, unit in (("power.draw [W]", " W"), ("memory.used [MiB]", " MiB")):
            assert row[column].endswith(unit) or row[column] == "[N/A]"
    assert [len(readings) for readings in by_gpu.values()] == [120] * 4
    for readings in by_gpu.values():
        moments = [datetime.strptime(row["timestamp"], "%Y/%m/%d %H:%M:%S.%f") for row in readings]  # noqa: DTZ007
        steps = np.diff([moment.timestamp() for moment in moments])
        assert steps == pytest.approx(np.ones(119), abs=0.02)
        temperature = [int(row["temperature.gpu"]) for row in readings]
        assert max(temperature) - min(temperature) > 20
        watts = [row["power.draw [W]"].split()[0] for row in readings if row["power.draw [W]"] != "[N/A]"]
        assert len(set(watts)) > 60
        assert max(map(float, watts)) < 300
    braked = next(gpu.uuid for gpu in sample.planted if gpu.kind == "brake")
    loaded = [int(row["clocks.current.sm [MHz]"].split()[0]) for row in by_gpu[braked][10:100]]
    assert 0.1 < sum(clock < 800 for clock in loaded) / len(loaded) < 0.5


def test_the_planted_gpus_are_the_slow_outliers_and_no_others(sample: Sample) -> None:
    rows = _rows(sample, "gemm.csv")
    times = {uuid: median(values) for uuid, values in _by(rows, "uuid", "perf").items()}
    low, middle, high = np.percentile(list(times.values()), [25, 50, 75])
    reach = 1.5 * (high - low)
    assert {uuid for uuid, time in times.items() if time > high + reach} == {g.uuid for g in sample.planted}
    assert not [uuid for uuid, time in times.items() if time < low - reach]
    assert {gpu.kind for gpu in sample.planted} == {"brake", "hot", "pinned"}
    assert 7.5 < 400 * (high - low) / middle < 10.5


@pytest.mark.parametrize("gpus", [0, -4, 5, 40_000])
def test_a_number_of_gpus_that_makes_no_whole_nodes(tmp_path: Path, gpus: int) -> None:
    with pytest.raises(InputError, match="multiple of 4"):
        write_sample(tmp_path, gpus=gpus)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a folder"):
        write_sample(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written"):
        write_sample(tmp_path / "file" / "below")
    (tmp_path / "resnet.csv").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_sample(tmp_path)
    assert not list(tmp_path.glob(".*")), "no part of a file stays behind"


def test_the_command_writes_names_and_refuses(tmp_path: Path) -> None:
    help_text = CliRunner().invoke(command, ["--help"]).output
    assert f"[default: {GPUS}]" in help_text
    assert f"[default: {SEED}]" in " ".join(help_text.split())
    folder = tmp_path / "my files"
    done = CliRunner().invoke(command, [str(folder), "--gpus", "8", "--seed", "3"], catch_exceptions=False)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert sum(line.startswith("wrote ") for line in lines) == len(FILES)
    assert sum(line.startswith("planted ") for line in lines) == 3
    assert lines[-3] == f"next: whorl import --store S --cluster sample '{folder}'/*"

    (folder / "gemm.csv").write_text("mine")
    with pytest.raises(InputError, match=r"already has gemm\.csv, .*--force"):
        CliRunner().invoke(command, [str(folder)], catch_exceptions=False)
    assert (folder / "gemm.csv").read_text() == "mine"
    CliRunner().invoke(command, [str(folder), "--force"], catch_exceptions=False)
    assert (folder / "gemm.csv").read_text() != "mine"
