"""Logs of `nvidia-smi dmon`, as its options and drivers shape them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

from whorl.store.importing import Parsed
from whorl.tests.importing.logs import SMI_ALL, SMI_CSV, SMI_GPM, SMI_OLD

# ruff: noqa: DTZ001, E501 - the store's times are UTC without a zone; lines are as long as the tool prints them

Parse = Callable[..., Parsed]
Refusal = Callable[..., str]


def log(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "smi.log"
    path.write_text(text)
    return path


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


def test_each_form_has_its_columns(tmp_path: Path, parse: Parse) -> None:
    begin = {"at": "2026-11-20 10:00:00", "every": 1.0}
    old = parse(log(tmp_path, SMI_OLD), **begin).frame
    assert old.select("power_mw", "temperature_c", "sm_clock_mhz").row(2) == (None, 51, 1784)
    gpm = parse(log(tmp_path, SMI_GPM), **begin).frame
    columns = ["gr_engine_active_ppm", "sm_active_ppm", "sm_occupancy_ppm", "tensor_active_ppm"]
    assert gpm.select(columns).rows() == [(None,) * 4, (990_000, 970_000, 310_000, 640_000)]
    table = parse(log(tmp_path, SMI_CSV), **begin).frame
    assert table.select("slot", "power_mw", "utilization").rows() == [(0, 29_000, 3), (1, 31_000, 4), (0, 30_000, 5)]


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


def test_lines_that_are_no_readings(tmp_path: Path, parse: Parse) -> None:
    text = SMI_ALL[: SMI_ALL.rindex("310")] + "310\n 20260103   00:00:03      0    300     62\nGPU is lost\n"
    found = parse(log(tmp_path, text))
    assert found.report.refusals == {
        "it has 5 values, but the header names 24": [6],
        "it is no row but a message: GPU is lost": [7],
    }


def test_a_log_of_processes_is_no_log_of_gpus(tmp_path: Path, refusal: Refusal) -> None:
    text = "# gpu        pid  type    sm   mem   command\n# Idx          #   C/G     %     %   name\n    0       1234     C    10    20   a.out\n"
    assert "a log of nvidia-smi pmon, which is about processes" in refusal(log(tmp_path, text))
