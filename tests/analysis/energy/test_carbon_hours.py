"""Files of intensities by hour: units, time zones, holes, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whorl.analysis.energy.grid import rates, read_hours
from whorl.analysis.energy.settings import HoursFile, read_settings
from whorl.errors import InputError

_HOUR = 3600 * 10**9
ENDS = ("from_ns", "until_ns")


def _read(
    path: Path, text: str, zone: str | None = None, time_zone: str = "UTC", column: str | None = None
) -> pl.DataFrame:
    path.write_text(text)
    return read_hours(HoursFile(path, zone=zone, column=column), time_zone)


def _ns(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 10**9  # type: ignore[misc, arg-type]


def test_a_file_of_electricity_maps_gives_the_life_cycle(tmp_path: Path) -> None:
    text = (
        "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
        "Carbon intensity gCO₂eq/kWh (Life cycle)\n2026-01-01 00:00:00,Germany,Germany,DE,300,350\n"
    )
    hours_read = _read(tmp_path / "a.csv", text, time_zone="Asia/Tokyo")
    assert (hours_read["from_ns"].to_list(), hours_read["g_per_kwh"].to_list()) == ([_ns(2026, 1, 1)], [350])
    direct = _read(tmp_path / "a.csv", text, column="Carbon intensity gCO₂eq/kWh (direct)")
    assert direct["g_per_kwh"].to_list() == [300]


def test_the_hour_that_occurs_twice_is_read_in_order(tmp_path: Path) -> None:
    text = "time,g_per_kwh\n" + "".join(
        f"2025-10-26 {hour},{g}\n" for g, hour in enumerate(["01:00", "02:00", "02:00", "03:00"])
    )
    hours_read = _read(tmp_path / "a.csv", text, "DE", "Europe/Berlin")
    first = _ns(2025, 10, 25, 23)
    assert hours_read["from_ns"].to_list() == [first + i * _HOUR for i in range(4)]
    assert hours_read["g_per_kwh"].to_list() == [0, 1, 2, 3]
    with pytest.raises(InputError, match="'time' has no times such as 2026-01-31T12:00Z, or in Europe/Berlin; repair"):
        _read(tmp_path / "a.csv", "time,g_per_kwh\n31/01/2026 12:00,1\n", "DE", "Europe/Berlin")
    with pytest.raises(InputError, match="line 3 has no readable time in Europe/Berlin"):
        _read(
            tmp_path / "a.csv",
            "time,g_per_kwh\n2026-03-29 01:00,1\n2026-03-29 02:00,2\n2026-03-29 03:00,2\n",
            "DE",
            "Europe/Berlin",
        )


def test_holes_stay_holes(tmp_path: Path) -> None:
    text = "time,g_per_kwh\n2026-01-01T00:00Z,1\n2026-01-01T01:00Z,\n2026-01-01T02:00Z,3\n2026-01-01T05:00Z,4\n"
    hours_read = _read(tmp_path / "a.csv", text, "DE")
    hours = [(began // _HOUR % 24, ended // _HOUR % 24) for began, ended in hours_read.select(ENDS).rows()]
    assert hours == [(0, 1), (2, 3), (5, 6)]
    assert _read(tmp_path / "a.csv", "time,g_per_kwh\n2026-01-01T00:00Z,\n", "DE").is_empty()
    few = "time,g_per_kwh\n" + "".join(
        f"2026-01-0{1 + h // 24}T{h % 24:02}:00Z,{h}\n" for h in [0, 1, 4, 7, 10, 13, 16]
    )
    rows = _read(tmp_path / "a.csv", few, "DE")
    assert set((rows["until_ns"] - rows["from_ns"]) // _HOUR) == {1}
    parts = "".join(f"2026-01-01T0{m // 60}:{m % 60:02}Z,{m}\n" for m in range(0, 150, 15) if m not in (60, 75, 90))
    quarters = _read(tmp_path / "a.csv", "time,g_per_kwh\n" + parts, "DE")
    assert [(began // _HOUR % 24, g) for began, g in quarters.select("from_ns", "g_per_kwh").rows()] == [
        (0, 22.5),  # the mean of 0, 15, 30, 45; of the next hour, three quarters are missing
        (2, 127.5),  # of 120 and 135: a half
    ]
    months = "".join(f"2026-{month:02}-01T00:00Z,{month}\n" for month in range(1, 13))
    year = _read(tmp_path / "a.csv", "time,g_per_kwh\n" + months, "DE")
    assert year["from_ns"][1:].equals(year["until_ns"][:-1].rename("from_ns"))


def test_days_and_parquet_and_several_zones(tmp_path: Path) -> None:
    march = "".join(f"2026-03-{day},{day}\n" for day in range(10, 32))
    days = _read(tmp_path / "a.csv", "date,g/kWh\n" + march, "DE", "Europe/Berlin")
    assert ((days["until_ns"] - days["from_ns"]) // _HOUR).to_list() == [24] * 19 + [23, 24, 24]
    frame = pl.DataFrame(
        {"zone": ["DE", "FR"], "time": [datetime(2026, 1, 1, 1, tzinfo=UTC)] * 2, "kg_per_mwh": [1.5, 2.5]}
    )
    frame.with_columns(pl.col("time").dt.convert_time_zone("Europe/Berlin")).write_parquet(tmp_path / "a.parquet")
    zones_read = read_hours(HoursFile(tmp_path / "a.parquet"), "UTC")
    assert zones_read.select("zone", "from_ns", "g_per_kwh").rows() == [
        ("DEU", _ns(2026, 1, 1, 1), 1.5),
        ("FRA", _ns(2026, 1, 1, 1), 2.5),
    ]
    assert read_hours(HoursFile(tmp_path / "a.parquet", zone="France"), "UTC")["zone"].to_list() == ["FRA"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,intensity\n2026-01-01T00:00Z,1\n", "no name of a column says a unit"),
        ("when,g/kWh\n2026-01-01T00:00Z,1\n", "has no column of times"),
        ("time,g/kWh\n2026-01-01T00:00Z,-1\n", "line 2: g/kWh is '-1', not a number from 0 to 5,000"),
        ("time,g/kWh\n2026-01-01T00:00Z,many\n", "line 2: g/kWh is 'many'"),
        ('time;g_per_kwh\n2026-01-01T00:00Z;"5,5"\n', "line 2: g_per_kwh is '5,5', not a number from 0 to 5,000"),
        ("time,kg/kWh\n2026-01-01T00:00Z,400\n", "line 2: kg/kWh is '400', not a number from 0 to 5"),
        (
            "time,g/kWh\n2026-01-01T00:00Z,1\n2026-01-01T00:00Z,2\n",
            "lines 2 and 3 give different values for the same hour",
        ),
        ("time,g/kWh\n2026-01-01T00:00Z,1\n,2\n2026-01-01T01:00Z,2\n", "line 3 has no time"),
        ("time,g/kWh,kg/MWh\n2026-01-01T00:00Z,1,1\n", "several columns could be the intensity"),
        ("time,g/kWh\n2026-01-01T00:00Z,1,5\n2026-01-01T01:00Z,1\n2026-01-01T02:00Z,1\n", "line 2: it has 3 fields"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        _read(tmp_path / "a.csv", text, "DE")
    assert says in str(error.value)
    assert str(tmp_path / "a.csv") in str(error.value)


@cache
def _changes(zone: str) -> list[int]:
    """The days (s since 1970) of four years in which clocks change."""
    days = range(_ns(2023, 1, 1) // 10**9, _ns(2027, 1, 1) // 10**9, 86_400)
    offsets = [datetime.fromtimestamp(day, ZoneInfo(zone)).utcoffset() for day in days]
    return [day for day, (before, after) in zip(days, pairwise(offsets), strict=False) if before != after]


@pytest.mark.long
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo"]),
    change=st.integers(0, 6),
    before=st.integers(0, 20),
    hours=st.integers(2, 50),
)
def test_civil_times_give_the_hours_that_were_meant(
    tmp_path: Path, zone: str, change: int, before: int, hours: int
) -> None:
    """All hours in a row, written as civil times, around a change of the clocks."""
    began = _changes(zone)[change] - before * 3600
    expected = [began + hour * 3600 for hour in range(hours)]
    stamps = [datetime.fromtimestamp(at, ZoneInfo(zone)) for at in expected]
    text = "time,g_per_kwh\n" + "".join(f"{at:%Y-%m-%d %H:%M},{g}\n" for g, at in enumerate(stamps))
    if stamps[0].fold:  # the file begins with the second of two equal hours: nothing tells which one it is
        expected[0] -= 3600
    hours_read = _read(tmp_path / "a.csv", text, "X", zone)
    assert (hours_read["from_ns"] // 10**9).to_list() == expected
    assert hours_read["g_per_kwh"].to_list() == list(range(hours))


# -- carbon grid -------------------------------------------------------------------------------------------------------
# Grams of a kWh over time, against a plain search through the settings at each time.


def test_a_file_without_zones_is_of_the_only_zone_of_the_settings(tmp_path: Path) -> None:
    """As docs/energy.md shows it; where there are two zones, nobody can tell which one it is."""
    (tmp_path / "hours.csv").write_text("time,g_per_kwh\n2026-01-01T00:00Z,412\n2026-01-01T01:00Z,405\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = "hours.csv"\n')
    began = 1_767_225_600 * 10**9
    assert rates(read_settings(settings), began, began + 2 * _HOUR, ["alpha"])["g_per_kwh"][:2].to_list() == [412, 405]
    settings.write_text('intensity = "hours.csv"\n[[zone]]\nvalue = "DE"\ncluster = "alpha"\n[[zone]]\nvalue = "FR"\n')
    with pytest.raises(InputError, match=r'no column of zones: .* \[\[intensity\]\] with file = "hours.csv" and zone'):
        rates(read_settings(settings), began, began + _HOUR, ["alpha"])


def test_a_node_without_polars_knows_what_a_kwh_emits(tmp_path: Path) -> None:
    (tmp_path / "energy.toml").write_text('zone = "DE"\npue = 1.5\n')
    program = """if True:
        import sys
        sys.modules["polars"] = sys.modules["scipy"] = None
        from pathlib import Path
        from whorl.analysis.energy.outlook import grams_per_kwh
        from whorl.analysis.energy.settings import find_settings
        now = grams_per_kwh(find_settings(Path(sys.argv[1])), "alpha", 1_767_225_600 * 10**9)
        print(now.g_per_kwh, now.zone, now.basis, now.year, now.pue)
    """
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout == "344.14 DEU table 2024 1.5\n"
