"""Logs of `dcgmi dmon` and `nvidia-smi dmon`."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.tests.importing.logs import SMI_ALL, SMI_CSV, SMI_OLD, left, right

# ruff: noqa: DTZ001 - the store's times are UTC without a zone; lines are as long as the tools write them


Parse = Callable[..., Parsed]
Refusal = Callable[..., str]

WHEN_NS = 1_763_632_800 * 10**9  # 2025-11-20 10:00
BEGAN = {"at": "2026-11-20 10:00:00", "every": 0.5, "node": "n1"}


def log(tmp_path: Path, text: str, name: str = "dmon.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_readings_of_several_gpus(tmp_path: Path, parse: Parse) -> None:
    lines = [f"GPU {g}, 6{s}.25{g}, {1000 * s}, {s}, 0.5, 500" for s in range(20) for g in (0, 1)]
    found = parse(log(tmp_path, left("POWER TOTEC GPUTL SMACT FBUSD", *lines)), **BEGAN)
    assert (found.report.format, found.report.total.kept, found.report.gpus) == ("dcgmi dmon", 40, 2)
    last = found.frame.row(-1, named=True)
    assert (last["gpu"], last["node"], last["slot"]) == ("n1:1", "n1", 1)
    assert last["ts"] == at(2026, 11, 20, 10, 0, 9, 500_000)
    assert (last["power_mw"], last["energy_mj"], last["utilization"]) == (619_251, 19_000, 19)
    assert (last["sm_active_ppm"], last["memory_used"]) == (500_000, 500 * 2**20)
    assert any("counted from --at" in note for note in found.report.notes)
    assert any("dcgmi discovery -l" in note for note in found.report.notes)
    assert "the GPU is taken from the numbers that dcgmi dmon has (as node:index)" in found.report.notes
    unnamed = parse(log(tmp_path, left("POWER", "GPU 0, 61.25")), **{**BEGAN, "node": None})
    assert any(
        note.endswith("(as dmon:index); the file names no host: --node NAME gives it") for note in unnamed.report.notes
    )


def test_the_older_form_and_mig_instances(tmp_path: Path, store: Store) -> None:
    text = right(
        "    GPU 0  0.457  0.442  250.1",
        "  GPU-I 0  0.534  0.516  250.1",
        " GPU-CI 0  0.534  0.516  250.1",
        "    GPU 1  0.001  0.000   60.0",
        "    GPU 0  0.845  0.816  255.2",
        "  GPU-I 0  0.986  0.953  255.2",
    )
    report = import_file(store, log(tmp_path, text), Options(**BEGAN))  # type: ignore[arg-type]
    assert report.total.kept == 6
    rows = store.sql("select gpu, power_mw, gr_engine_active_ppm from telemetry where second(ts) = 0 order by ts, gpu")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("n1:0", 250_100, 457_000),
        ("n1:1", 60_000, 1_000),
        ("n1:GPU-CI 0", None, 534_000),
        ("n1:GPU-I 0", None, 534_000),
        ("n1:0", 255_200, 845_000),
        ("n1:GPU-I 0", None, 986_000),
    ]
    gpus = store.sql("select gpu, slot, parent from gpus order by gpu").to_pylist()
    assert [tuple(row.values()) for row in gpus] == [
        ("n1:0", 0, None),
        ("n1:1", 1, None),
        ("n1:GPU-CI 0", None, "n1:0"),
        ("n1:GPU-I 0", None, "n1:0"),
    ]


@pytest.mark.parametrize(
    ("stamps", "options", "first", "last"),
    [
        (("1795860000.25", "1795860001.75"), {},
         at(2026, 11, 28, 10, 0, 0, 250_000), at(2026, 11, 28, 10, 0, 1, 750_000)),
        (("2026-11-20T10:00:00.5", "2026-11-20T10:00:02.5"), {"time_zone": "Europe/Berlin"},
         at(2026, 11, 20, 9, 0, 0, 500_000), at(2026, 11, 20, 9, 0, 2, 500_000)),
        (("[2026/11/20 10:00:00+0100]", "[2026/11/20 10:00:02+0100]"), {},
         at(2026, 11, 20, 9), at(2026, 11, 20, 9, 0, 2)),
        (("Dec 31 23:59:59", "Jan  1 00:00:00"), {"at": "2026-12-31"},
         at(2026, 12, 31, 23, 59, 59), at(2027, 1, 1)),
        (("23:59:59", "00:00:01"), {"at": "2026-11-20"}, at(2026, 11, 20, 23, 59, 59), at(2026, 11, 21, 0, 0, 1)),
        (("00:00:01", "00:00:02"), {"at": "2026-11-20 23:59:58"}, at(2026, 11, 21, 0, 0, 1), at(2026, 11, 21, 0, 0, 2)),
        (("Fri Nov 20 02:00:00 PM UTC 2026", "Fri Nov 20 02:00:02 PM UTC 2026"), {},
         at(2026, 11, 20, 14), at(2026, 11, 20, 14, 0, 2)),
        (("Sun 25 Oct 2026 02:30:00 AM CEST", "Sun 25 Oct 2026 02:30:00 AM CET"), {"time_zone": "Europe/Berlin"},
         at(2026, 10, 25, 0, 30), at(2026, 10, 25, 1, 30)),
        (("n7: 1795860000", "n7: 1795860001"), {}, at(2026, 11, 28, 10), at(2026, 11, 28, 10, 0, 1)),
    ],
)  # fmt: skip
def test_times_in_front_of_each_line(
    stamps: tuple[str, str], options: dict[str, str], first: at, last: at, tmp_path: Path, parse: Parse
) -> None:
    lines = left("POWER GPUTL", "GPU 0, 61.5, 3", "GPU 0, 62.5, 4").splitlines()
    fronts = [stamps[0]] * 3 + [stamps[1]]
    text = "\n".join(f"{front} {line}" for front, line in zip(fronts, lines, strict=True))
    found = parse(log(tmp_path, text), **{"node": "n7"} | options)
    assert found.frame["ts"].to_list() == [first, last]
    assert found.frame["power_mw"].to_list() == [61_500, 62_500]
    assert found.frame["gpu"].unique().to_list() == ["n7:0"]


def test_times_above_readings_in_the_hour_that_comes_twice(tmp_path: Path, parse: Parse) -> None:
    clocks = ("02:10:00", "02:50:00", "02:10:00", "02:50:00")
    text = "".join(f"2026-10-25 {clock}\n{left('POWER', 'GPU 0, 61.5')}" for clock in clocks)
    found = parse(log(tmp_path, text), node="n7", time_zone="Europe/Berlin")
    assert [(ts.hour, ts.minute) for ts in found.frame["ts"]] == [(0, 10), (0, 50), (1, 10), (1, 50)]


def test_what_has_no_time_says_what_to_do(tmp_path: Path, refusal: Refusal) -> None:
    text = left("POWER", "GPU 0, 61.5", "GPU 0, 62.5")
    path = log(tmp_path, text)
    os.utime(path, (0, 0))  # as archives without times leave it
    assert "has no times: say when it began" in refusal(path)
    assert "--at '2026-11-23 14:05:00' --every 1" in refusal(path, at="2026-11-20 10:00:00")
    timed = "\n".join(f"10:00:00 {line}" for line in text.splitlines())
    assert "the times in it have no date" in refusal(log(tmp_path, timed, "b.txt"))
    abroad = "\n".join(f"Fri Nov 20 02:00:00 EST 2026 {line}" for line in text.splitlines())
    assert "times in it are in EST: say where that is" in refusal(
        log(tmp_path, abroad, "c.txt"), time_zone="Asia/Tokyo"
    )
    assert "there is no such time zone" in refusal(log(tmp_path, abroad, "c.txt"), time_zone="Mars/Base")
    assert "--at 'noon' is not a time" in refusal(path, at="noon", every=1.0)


def test_without_times_they_are_counted_back_from_the_last_change_of_the_file(tmp_path: Path, parse: Parse) -> None:
    path = log(tmp_path, left("POWER", *(f"GPU {gpu}, 6{n}.5" for n in range(3) for gpu in (0, 1))))
    os.utime(path, ns=(WHEN_NS, WHEN_NS))
    found = parse(path, node="n7")
    expected = [WHEN_NS - step * 10**9 for step in (2, 2, 1, 1, 0, 0)]
    assert found.frame["ts"].dt.epoch("ns").to_list() == expected
    (note,) = [note for note in found.report.notes if "counted" in note]
    assert note.startswith("its times are counted back, 1 s apart, from when the file was last changed (2025-11-20")
    found = parse(path, node="n7", every=5.0)
    assert found.frame["ts"].dt.epoch("ns").to_list() == [WHEN_NS - 5 * step * 10**9 for step in (2, 2, 1, 1, 0, 0)]


def test_lines_that_are_no_readings(tmp_path: Path, parse: Parse) -> None:
    text = left("POWER GPUTL", *[f"GPU 0, 6{s}.5, {s}" for s in range(5)]) + "\n".join([
        "Switch 0  1.5               3",
        "GPU 0     61.",
        "GPU 0     61.5              3 4 5",
        "17 of something",
        "",
        "dmon was stopped do to receiving a signal",
        "Error: the connection was lost",
    ])  # fmt: skip
    found = parse(log(tmp_path, text), **BEGAN)
    assert found.report.refusals == {
        "it is of a Switch, and only GPUs are stored": [8],
        "it has 1 values, but the header names 2": [9],
        "utilization [%] is not a readable share": [10],
        "it is no reading of dcgmi dmon": [11],
    }
    assert "dcgmi dmon said: Error: the connection was lost" in found.report.notes
    assert found.report.total.rows == 9


def test_a_log_of_an_error_only(tmp_path: Path, refusal: Refusal) -> None:
    error = "Error setting watches. Result: -33: The module is not loaded"
    path = log(tmp_path, left("SMACT", "GPU 0, 1").split("GPU 0")[0] + error)
    assert refusal(path).endswith(f"has no readings; dcgmi dmon said: {error}")


def test_an_xid_is_an_event_where_it_changes(tmp_path: Path, store: Store) -> None:
    codes = [("N/A", "31"), ("N/A", "31"), ("79", "31"), ("79", "31"), ("79", "48")]
    rows = [f"GPU {g}, {60 + s}, {code}" for s, both in enumerate(codes) for g, code in enumerate(both)]
    report = import_file(store, log(tmp_path, left("POWER XIDER", *rows)), Options(**BEGAN))  # type: ignore[arg-type]
    events = store.sql("select ts, gpu, kind, code from events order by ts").to_pylist()
    assert [tuple(row.values()) for row in events] == [
        (at(2026, 11, 20, 10, 0, 1), "n1:0", "xid", 79),
        (at(2026, 11, 20, 10, 0, 2), "n1:1", "xid", 48),
    ]
    assert any("GPU 1 had XID 31 before the file begins" in note for note in report.notes)


def test_all_statistics_with_date_and_time(tmp_path: Path, parse: Parse) -> None:
    found = parse(log(tmp_path, SMI_ALL), node="n1", time_zone="Europe/Berlin")
    assert (found.report.format, found.report.total.kept) == ("nvidia-smi dmon", 4)
    assert found.frame["ts"].to_list() == [at(2026, 1, 2, 22, 59, 59)] * 2 + [at(2026, 1, 2, 23, 0, 1)] * 2
    row = found.frame.row(2, named=True)
    assert (row["gpu"], row["power_mw"], row["temperature_c"], row["memory_temperature_c"]) == ("n1:0", 300_000, 62, 75)
    assert (row["utilization"], row["memory_utilization"], row["encoder_utilization"]) == (97, 40, 5)
    assert (row["decoder_utilization"], row["mem_clock_mhz"], row["sm_clock_mhz"]) == (6, 2619, 1965)
    assert (row["memory_used"], row["pcie_replays"]) == (71234 * 2**20, 2)
    assert found.frame["memory_temperature_c"].to_list() == [74, None, 75, None]
    assert found.report.ignored == [
        "jpg", "ofa", "pviol", "tviol", "bar1", "ccpm", "sbecc", "dbecc", "rxpci", "txpci",
    ]  # fmt: skip


def test_only_the_time_of_day(tmp_path: Path, parse: Parse, refusal: Refusal) -> None:
    text = "\n".join(line[12:] for line in SMI_ALL.splitlines())
    text = text.replace("Time  ", "#Time ", 1).replace("HH:MM:SS", "#HH:MM:SS", 1)
    path = log(tmp_path, text)
    assert "the times in it have no date" in refusal(path)
    assert (
        parse(path, at="2026-01-02").frame["ts"].to_list()
        == [at(2026, 1, 2, 23, 59, 59)] * 2 + [at(2026, 1, 3, 0, 0, 1)] * 2
    )


def test_times_in_front(tmp_path: Path, parse: Parse) -> None:
    for text in (SMI_OLD, SMI_CSV):
        stamps = [1795860000 + n // 2 for n in range(len(text.splitlines()))]
        timed = "\n".join(f"{stamp}.5 {line}" for stamp, line in zip(stamps, text.splitlines(), strict=True))
        assert parse(log(tmp_path, timed)).frame["ts"][0] == at(2026, 11, 28, 10, 0, 1, 500_000)


def test_mig_instances_have_rows_of_their_own(tmp_path: Path, parse: Parse) -> None:
    lines = [
        "# gpu   mig   pwr  smutil",
        "# Idx   Idx     W   SMI_GPM:%",
        "    0     -   512      97",
        "    0     3     -      95",
    ]
    found = parse(log(tmp_path, "\n".join(lines)), at="2026-11-20 10:00:00", node="n1")
    assert found.frame["gpu"].to_list() == ["n1:0", "n1:mig 3"]


def test_lines_of_nvidia_smi_that_are_no_readings(tmp_path: Path, parse: Parse) -> None:
    text = SMI_ALL[: SMI_ALL.rindex("310")] + "310\n 20260103   00:00:03      0    300     62\nGPU is lost\n"
    found = parse(log(tmp_path, text))
    assert found.report.refusals == {
        "it has 5 values, but the header names 24": [6],
        "it is no row but a message: GPU is lost": [7],
    }
