"""Telemetry under one another's names, units that the size alone cannot tell, and --map on a known format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whorl.store.importing import Parsed
from whorl.tests.sizes import sample

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
HEADER = "exp,uuid,ts,perf,freq,memfreq,temp,pwr"


def rows(number: int = 20, perf: float = 2440.5, step: float = 7.5) -> list[list[object]]:
    """Runs whose SM clock moves in steps, whose memory clock does not, and whose power is in mW."""
    return [
        [
            *("sgemm", f"GPU-00000000-0000-0000-0000-{i % 4:012d}", 1_600_000_000 + i, perf + i),
            *(1357.5 + step * (i % 5), 877, 60 + i % 7, f"{296 + i / 7:.3f}"),
        ]
        for i in range(number)
    ]


@pytest.mark.parametrize("pair", [("freq", "pwr"), ("memfreq", "pwr"), ("temp", "pwr"), ("freq", "memfreq")])
def test_two_names_that_were_swapped(pair: tuple[str, str], write: Write, refusal: Callable[..., str]) -> None:
    one, other = pair
    header = HEADER.replace(one, "?", 1).replace(other, one, 1).replace("?", other, 1)
    if pair == ("freq", "memfreq"):
        header = HEADER.replace(",freq,memfreq,", ",memfreq,freq,")
    sentence = refusal(write(header, rows()), units={"": "ms"})
    assert one in sentence
    assert other in sentence or "shifted" in sentence


def test_the_way_out_that_the_message_names_works(write: Write, refusal: Callable[..., str], parse: Parse) -> None:
    path = write(HEADER.replace(",freq,memfreq,", ",memfreq,freq,"), rows())
    sentence = refusal(path, units={"": "ms"})
    options = [word for word in sentence.split() if "=" in word]
    columns = dict(word.split("=") for word in options)
    assert columns == {"freq": "sm_clock:MHz", "memfreq": "mem_clock:MHz"}
    swapped_back = {"memfreq": "sm_clock:MHz", "freq": "mem_clock:MHz"}
    found = parse(path, units={"": "ms"}, columns=swapped_back)
    assert found.frame["mem_clock_mhz"].unique().to_list() == [877.0]
    assert found.frame["sm_clock_mhz"].n_unique() == 5


@pytest.mark.parametrize(
    ("clock", "memory", "degrees", "watts"),
    [
        ("345", "2619", "33", "71.25"),  # idle
        ("1357.31", "876.98", "66.42", "297"),  # means, with watts rounded
        ("705.5", "1593", "61.7", "400"),  # capped low, with watts rounded
        ("2100", "1300", "71", "750"),
        ("1980", "3201", "58.5", "698.113"),
    ],
)
def test_legitimate_telemetry_is_not_suspected(
    clock: str, memory: str, degrees: str, watts: str, write: Write, parse: Parse
) -> None:
    text = [[*row[:4], clock, memory, degrees, watts] for row in rows()]
    text += [[*row[:4], f"{float(clock) + 7.5:g}", memory, degrees, f"{float(watts) + 1:g}"] for row in rows(40)[20:]]
    assert parse(write(HEADER, text), units={"": "ms"}).report.total.refused == 0


@pytest.mark.parametrize("real_file", sample(["sgemm", "bert"], short=1))
def test_published_telemetry_is_not_suspected(real_file: str, real: Callable[[str], Path], parse: Parse) -> None:
    assert not parse(real(f"longhorn/{real_file}.csv.gz")).report.refusals


@pytest.mark.parametrize(
    ("perf", "unit", "ms"), [("2440.5", "ms", 2440.5), ("0.2440", "s", 244.0), ("2440500000", "ns", 2440.5)]
)
def test_a_size_that_decides(perf: str, unit: str, ms: float, write: Write, parse: Parse) -> None:
    found = parse(write("exp,uuid,ts,perf", [[*row[:3], perf] for row in rows()]))
    assert found.report.units["perf"]["unit"] == unit
    assert found.frame["value"].min() == pytest.approx(ms)


def test_microseconds_are_not_taken_for_nanoseconds(write: Write, refusal: Callable[..., str]) -> None:
    text = [[*row[:3], 2_440_000 + i] for i, row in enumerate(rows())]
    assert "--unit perf=UNIT" in refusal(write("exp,uuid,ts,perf", text))


def test_map_adds_to_a_known_format(write: Write, refusal: Callable[..., str], parse: Parse) -> None:
    path = write("exp,board,ts,perf", [[row[0], f"card{i % 4}", row[2], row[3]] for i, row in enumerate(rows())])
    assert "--map COLUMN=gpu" in refusal(path)
    found = parse(path, columns={"board": "gpu"})
    assert sorted(found.frame["gpu"].unique()) == ["card0", "card1", "card2", "card3"]
    assert found.frame["workload"].unique().to_list() == ["sgemm"]
    assert found.frame["value"].min() == pytest.approx(2440.5)


def test_map_makes_a_place_of_a_column_that_is_not_believed_by_itself(write: Write, parse: Parse) -> None:
    text = [["sgemm", "c001", 1 + i // 4, i % 4, 2440 + i] for i in range(16)]
    found = parse(write("exp,cabinet,node,dev_id,perf", text), columns={"dev_id": "slot"})
    assert sorted(found.frame["gpu"].unique())[:2] == ["c001-1-0", "c001-1-1"]
    assert found.report.gpus == 16


def test_unit_that_the_evidence_contradicts_is_noted(real: Callable[[str], Path], parse: Parse) -> None:
    found = parse(real("longhorn/sgemm.csv.gz"), units={"": "s"})
    assert any("by the kernels' start times it is in ms" in note for note in found.report.notes)


def test_equal_rows_without_anything_to_tell_them_apart_are_noted(write: Write, parse: Parse) -> None:
    text = [["hpl", f"c001-1-{i % 2}", "10.5"] for i in range(6)]
    found = parse(write("exp,uuid,perf", text), units={"": "s"})
    assert (found.report.total.kept, found.report.total.duplicates) == (2, 4)
    assert any("distinguishes the runs of a GPU" in note for note in found.report.notes)
