"""`whorl advise burst` and `whorl advise spb` from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from whorl.tests.advised_fleet import write_store
from whorl.tests.burst_files import write_files
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six nodes of four GPUs; GPU 1 of n02 takes twice as long in sgemm."""
    return str(write_store(tmp_path_factory.mktemp("trained")))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    profile, network = write_files(tmp_path_factory.mktemp("files"))
    return "--profile", str(profile), "--network", str(network), "--batch", "8"


def whorl(*words: object) -> Result:
    return calling.whorl("advise", *words)


def rows(*words: object) -> list[dict[str, Any]]:
    return list(calling.document("advise", *words)["rows"])


def test_a_row_for_each_batch_number_of_gpus_and_limit(files: tuple[str, ...]) -> None:
    plans = rows("burst", *files, "--gpus", "2,4", "--limit", "1,1e9,data-parallel")
    assert [(row["gpus"], row["limit"]) for row in plans] == [
        (gpus, limit) for gpus in (2, 4) for limit in (1.0, 1e9, "data-parallel")
    ]
    for row in plans:
        assert row["rules"] == "exact"
        assert row["batch"] == 8
        assert len(row["layers"]) == 6
        assert row["time_ms"] <= row["data_parallel_ms"] + 1e-9 or row["limit"] == 1
        assert row["placement"] is None
    assert set(plans[0]["layers"]) == {1}, "limit 1 leaves one GPU"
    assert plans[2]["layers"] == [2] * 6
    assert "8 x" in whorl("burst", *files, "--limit", "1e9").stdout


def test_the_gpus_of_a_plan_and_the_fastest_for_the_narrow_layers(files: tuple[str, ...], store: str) -> None:
    (row,) = rows("burst", *files, "--limit", "1e9", "--store", store, "--workload", "sgemm", "--hosts", "n[01-03]")
    placement = row["placement"]
    width = max(row["layers"])
    assert len(placement["gpus"]) == width
    assert "n02/1" not in placement["gpus"]
    assert placement["lower_ms"] < placement["time_ms"] < placement["upper_ms"]
    gains = {gain["against"]: gain for gain in placement["gains"]}
    assert gains["random"]["measurable"]
    (scores,) = (rows("spb", "--store", store, "--workload", "sgemm", "--hosts", "n[01-03]", "--gpus", str(width)),)
    assert placement["gpus"] == [worker["gpu"] for worker in scores], "fastest first"


def test_where_no_gpu_differs_nothing_is_gained(store: str) -> None:
    answer = json.loads(whorl("spb", "--store", store, "--workload", "pagerank", "--gpus", "8", "--json").stdout)
    assert answer["reason"]
    assert not any(gain["measurable"] for gain in answer["gains"] if gain["against"] != "full")


@pytest.mark.parametrize(("words", "says"), [
    ("--gpus 6", "6 GPUs"), ("--limit 0.5", "0.5"), ("--limit nan", "nan"), ("--limit fast", "data-parallel"),
    ("--batch 16", "16 samples on a GPU"), ("--batch x", "--batch"), ("--model vgg16", "small"),
    ("--gpus 16 --limit data-parallel", "16 GPUs"), ("--set bandwidth=inf", "bandwidth"),
    ("--profile /absent", "absent"),
])  # fmt: skip
def test_bad_options_are_one_sentence(words: str, says: str, files: tuple[str, ...]) -> None:
    usual, changed = (dict(zip(line[::2], line[1::2], strict=True)) for line in (files, words.split()))
    assert says in refusal("advise burst", *(word for pair in (usual | changed).items() for word in pair))


def test_bad_files_are_one_sentence_that_names_the_place(files: tuple[str, ...], tmp_path: Path) -> None:
    profile, network = Path(files[1]), Path(files[3])
    layers, lines = json.loads(network.read_text())["layers"], profile.read_text().splitlines()
    spoilt = tmp_path / "spoilt"
    for document, says in (
        ({"layers": [*layers[:2], ["attention", {}, [3]]]}, "layer 3 is a 'attention'"),
        ({"layers": [["conv2d", {"in_channels": 3}, [3, 8, 8]]]}, "layer 1, conv2d"),
        ({"layers": []}, "no layers"),
        ([1, 2], "is no network"),
    ):
        spoilt.write_text(json.dumps(document))
        assert says in refusal("advise burst --profile", profile, "--network", spoilt)
    for number, text, says in (
        (3, lines[2].replace(",2,", ",two,"), "line 3"),
        (1, lines[0].replace("batch", "b"), "column batch"),
    ):
        spoilt.write_text("\n".join([*lines[: number - 1], text, *lines[number:]]))
        assert says in refusal("advise burst --profile", spoilt, "--network", network)
    zipped = tmp_path / "times.csv.gz"
    zipped.write_bytes(gzip.compress(profile.read_bytes()))
    assert rows("burst", "--profile", zipped, *files[2:]) == rows("burst", *files)
    zipped.write_bytes(zipped.read_bytes()[:200])
    assert refusal("advise burst --profile", zipped, *files[2:])


def test_options_stand_after_the_verb(store: str) -> None:
    assert "must follow spb" in refusal("advise --gpus 4 spb --store", store)
    command = ("advise spb --workload sgemm --store", store)
    assert "which GPUs does the job have?" in refusal(*command)
    assert "n09" in refusal(*command, "--hosts", "n[01,09]")
