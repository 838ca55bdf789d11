"""Numbers and instants as texts: what is read, what is refused, and that nothing overflows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

from whorl.store.importing import Parsed

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Write = Callable[..., Path]
Parse = Callable[..., Parsed]
UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-3333444455{i:02d}" for i in range(10)]


GOOD = 40
"""Rows before those with the texts that a test tries."""


def column_of(write: Write, parse: Parse, column: str, *texts: str) -> Parsed:
    """A file of GOOD rows and one for each text in a column, the first of them on line GOOD + 2."""
    fields = {"uuid": UUIDS[0], "perf_ms": "2400", "temp": "50", "pwr": "290", "ts": "1590000000"}
    rows = [list((fields | {"ts": str(1_590_000_001 + i)}).values()) for i in range(GOOD)]
    for number, text in enumerate(texts):
        own = {"uuid": UUIDS[1], "ts": str(1_590_000_001 + number)}
        rows.append(list((fields | own | {column: text}).values()))
    return parse(write("uuid,perf_ms,temp,pwr,ts", rows))


def refused(texts: list[str], found: Parsed) -> list[str]:
    """Those of the texts whose lines are refused."""
    lines = sorted(line for lines in found.report.refusals.values() for line in lines)
    return [texts[line - GOOD - 2] for line in lines]


def test_numbers_that_are_read(write: Write, parse: Parse) -> None:
    found = column_of(write, parse, "perf_ms", "2500", "+2.5e3", " 2500. ", "025e2")
    assert found.frame["value"].to_list()[GOOD:] == [2500] * 4
    assert column_of(write, parse, "pwr", "250.0 W", "250.0W").frame["power_w"].to_list()[GOOD:] == [250] * 2


def test_durations_that_are_refused(write: Write, parse: Parse) -> None:
    texts = [
        "1e309",
        "inf",
        "-inf",
        "0x1F",
        "２４００",
        "2 400",
        "2_400",
        "1e",
        "--5",
        "2400 s",
        "0",
        "-0",
        "-5",
        "2.4.0",
        "2400\t5",
        "2400 parsecs",
        "12:30",
    ]
    found = column_of(write, parse, "perf_ms", *texts)
    assert refused(texts, found) == texts
    assert found.frame.height == GOOD
    assert "perf_ms is below 0 ms" in found.report.refusals
    for far_off in ("9" * 40, "1e-309"):  # several of them would be numbers in another unit
        assert refused([far_off], column_of(write, parse, "perf_ms", far_off)) == [far_off]


def test_what_means_unknown(write: Write, parse: Parse) -> None:
    texts = ["nan", "NaN", "N/A", "", "-1", "-1.0", "None", "null"]
    found = column_of(write, parse, "temp", *texts)
    assert found.frame["temperature_c"].to_list() == [50.0] * GOOD + [None] * len(texts)
    assert found.report.placeholders == {"temp": len(texts)}
    found = column_of(write, parse, "perf_ms", *texts)
    assert refused(texts, found) == texts
    assert list(found.report.refusals) == ["perf_ms is missing"]


def test_instants_that_are_read(write: Write, parse: Parse) -> None:
    times = [
        ("1590000000", at(2020, 5, 20, 18, 40)),
        ("1590000000.25", at(2020, 5, 20, 18, 40, 0, 250000)),
        ("1590000000250", at(2020, 5, 20, 18, 40, 0, 250000)),
        ("1590000000250125", at(2020, 5, 20, 18, 40, 0, 250125)),
        ("1590000000250125000", at(2020, 5, 20, 18, 40, 0, 250125)),
        ("2020-05-20T18:40:00Z", at(2020, 5, 20, 18, 40)),
        ("2020-05-20 20:40:00.250+02:00", at(2020, 5, 20, 18, 40, 0, 250000)),
        ("2020/05/20 18:40:00", at(2020, 5, 20, 18, 40)),
        ("-1", None),
    ]
    for text, time in times:  # texts of several forms in one column would be refused
        assert column_of(write, parse, "ts", text).frame["began"][-1] == time, text


def test_instants_that_are_refused(write: Write, parse: Parse) -> None:
    texts = [
        "0",
        "1",
        "159000000",
        "15900000000",
        "9" * 19,
        "9" * 40,
        "1e9",
        "-5",
        "2020-05-20",
        "20:40:00",
        "2020-13-01 00:00:00",
        "1970-01-01 00:00:00",
        "2263-01-01 00:00:00",
        "2608-01-01 10:00:00",
        "9999-12-31 23:59:59",
        "2020-05-20 18:40:00+99:00",
        "2020-02-30 00:00:00",
        "yesterday",
        "inf",
    ]
    found = column_of(write, parse, "ts", *texts)
    assert refused(texts, found) == texts
    assert list(found.report.refusals) == ["ts is not a readable time stamp"]


def test_a_duration_far_off_is_stored_and_told(write: Write, parse: Parse) -> None:
    rows = [["sgemm", u, 2400 + i] for i, u in enumerate(UUIDS)]
    rows[4][2] = 24_000_000
    found = parse(write("exp,uuid,perf_ms", rows))
    assert found.report.total.refused == 0
    assert ["500 times" in note and "first line 6" in note for note in found.report.notes].count(True) == 1
