"""`whorl verdicts` where little can be concluded: a sentence says so, and no GPU is named without evidence."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from whorl.tests.cli.calling import document, whorl

COLUMNS = ("gpu", "node", "cabinet", "model", "app", "ms", "when")
FIRST = datetime(2026, 9, 1, tzinfo=UTC)
Row = tuple[Any, ...]
Time = Callable[[int, int, int], float]


def spread(gpu: int, day: int, run: int) -> float:
    """A healthy fleet: GPUs differ by 1 %, days and runs by a tenth of that."""
    offset = random.Random(gpu).gauss(0, 0.01)
    return 10 * (1 + offset + random.Random(f"{gpu} {day} {run}").gauss(0, 0.001))


def fleet(
    gpus: int = 16, *, days: int = 2, runs: int = 2, time: Time = spread,
    first: datetime = FIRST,
) -> Iterable[Row]:  # fmt: skip
    for gpu in range(gpus):
        for day in range(days):
            for run in range(runs):
                at = first + timedelta(days=day, minutes=5 * run)
                yield (
                    f"GPU-{gpu:08d}-0000-4000-8000-000000000000", f"n{gpu // 4}", "", "V100", "gemm",
                    time(gpu, day, run), f"{at:%Y-%m-%dT%H:%M:%S}",
                )  # fmt: skip


def each_with(column: str, value: Callable[[int], str], rows: Iterable[Row]) -> Iterable[Row]:
    """The rows with another value in a column, by the number of the GPU."""
    place = COLUMNS.index(column)
    for row in rows:
        yield (*row[:place], value(int(row[0][4:12])), *row[place + 1 :])


def verdicts(store: Path, *clusters: Iterable[Row]) -> tuple[dict[str, Any], str]:
    """What `whorl verdicts` says of files of these rows, one a cluster: for programs and for people."""
    meanings = "gpu=gpu node=node cabinet=cabinet model=model app=workload ms=time:ms when=began"
    maps = [word for meaning in meanings.split() for word in ("--map", meaning)]
    for number, rows in enumerate(clusters):
        sheet = store.parent / f"{number}.csv"
        with sheet.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        imported = whorl("import --store", store, "--cluster", f"c{number}", sheet, *maps)
        assert imported.exit_code == 0, imported.output
    return document("verdicts --store", store), whorl("verdicts --store", store).stdout


def wide(gpu: int, day: int, run: int) -> float:
    """Every GPU at a level of its own, from 10 to 60 ms, and the same in each run."""
    return 10 * (1 + gpu / 3) + random.Random(f"{gpu} {run}").gauss(0, 0.001)


def with_nan(rows: Iterable[Row]) -> Iterable[Row]:
    return [(*row[:5], "nan", *row[6:]) if place % 4 == 0 else row for place, row in enumerate(rows)]


FUTURE = datetime.now(UTC) + timedelta(days=400)
ODD: dict[str, tuple[Iterable[Row], str]] = {
    **{f"{gpus} GPUs": (fleet(gpus), "8 are needed to tell which differ") for gpus in (1, 2, 7)},
    "8 GPUs": (fleet(8), ""),
    "all times identical": (fleet(time=lambda *_: 10.0), "took the same time"),
    "every run another time": (fleet(time=lambda *key: 10 + random.Random(f"{key}").random()), "do not repeat"),
    "every GPU at a level of its own": (fleet(time=wide), ""),
    "every GPU of a model of its own": (each_with("model", lambda gpu: f"M{gpu}", fleet()), "1 GPU ran it"),
    "no node known": (each_with("node", lambda _: "", fleet()), ""),
    "a fourth of the times no number": (with_nan(fleet()), ""),
    "all runs in the future": (fleet(first=FUTURE), "a date in the future"),
    "one run of each GPU": (fleet(days=1, runs=1), "fewer than two GPUs have two runs"),
    "one GPU with 40 runs": (
        [*fleet(1, days=20), *list(fleet(days=1, runs=1))[1:]],
        "fewer than two GPUs have two runs",
    ),
    "cabinets of one node": (each_with("cabinet", lambda gpu: f"r{gpu // 4}", fleet()), ""),
}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("case", ODD)
def test_nobody_is_named_without_evidence_and_what_is_not_judged_is_said(case: str, tmp_path: Path) -> None:
    rows, why = ODD[case]
    document, text = verdicts(tmp_path / "S", rows)
    assert document["rows"] == []
    assert document["watch"] == []
    if why:
        assert any(why in gap["why"] for gap in document["not_judged"]), document["not_judged"]
        assert why in text
    assert text.startswith(("Nothing could be judged.", "No GPU stands out."))


def slow_fleet() -> Iterable[Row]:
    return fleet(time=lambda gpu, day, run: spread(gpu, day, run) * (1.3 if gpu == 5 else 1))


@pytest.mark.long(short=1)
@pytest.mark.parametrize("odd", ["no node", "cabinets of one node", "nothing"])
def test_the_slow_one_of_an_odd_fleet_is_named(odd: str, tmp_path: Path) -> None:
    slow = slow_fleet()
    if odd == "no node":
        slow = each_with("node", lambda _: "", slow)
    if odd == "cabinets of one node":
        slow = each_with("cabinet", lambda gpu: f"r{gpu // 4}", slow)
    document, _ = verdicts(tmp_path / "S", slow)
    assert [(row["kind"], len(row["gpus"])) for row in document["rows"]] == [("slow", 1)]
    assert "00000005" in document["rows"][0]["gpus"][0] or document["rows"][0]["gpus"][0] == "n1/1"


@pytest.mark.long
def test_gpus_of_the_same_name_in_two_clusters_are_two(tmp_path: Path) -> None:
    """The name is that of its own cluster: the healthy one of the other is not named."""
    document, text = verdicts(tmp_path / "S", fleet(), slow_fleet())
    assert [(row["cluster"], row["kind"]) for row in document["rows"]] == [("c1", "slow")]
    assert "No GPU stands out. All 16 GPUs are fine." in text.partition("Cluster c0:")[0]
