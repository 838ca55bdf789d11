"""Exports of Omnistat: `omnistat-query --export`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path
from typing import Any

from whorl.store.importing import Parsed
from whorl.tests.importing.logs import SERIES, omnistat

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]
Refusal = Callable[..., str]


def export(tmp_path: Path, *content: Any) -> Path:
    path = tmp_path / "omnistat-rocm.gpu.csv"
    path.write_text(omnistat(*content))
    return path


def test_a_row_for_each_time_and_gpu(tmp_path: Path, parse: Parse) -> None:
    values = [98.0, 97.0, 3.0, 4.0, 400.5, 401.0, 90.0, 91.25, 61.0, 62.0, 33.0, 34.0]
    rows = [f"2025-01-01 10:00:{s:02d},{','.join(str(v + s) for v in values)}" for s in (0, 1)]
    found = parse(export(tmp_path, SERIES, rows), time_zone="Europe/Berlin")
    assert (found.report.format, found.report.total.rows, found.report.gpus) == ("Omnistat", 8, 4)
    assert found.frame["ts"].unique().sort().to_list() == [at(2025, 1, 1, 10), at(2025, 1, 1, 10, 0, 1)]
    row = found.frame.filter(found.frame["gpu"] == "node02:1").row(0, named=True)
    assert (row["node"], row["slot"], row["utilization"], row["power_mw"], row["temperature_c"]) == (
        "node02", 1, 4, 91_250, 34,
    )  # fmt: skip
    assert found.sheet.line(8) == 6


def test_missing_samples_and_damaged_lines(tmp_path: Path, parse: Parse) -> None:
    series = SERIES[:4]
    rows = ["2025-01-01 10:00:00.5,1.0,,NaN,4.0", "2025-01-01 10:00:01,,,,", "2025-01-01 10:00:02,1.0,2.0",
            "noon,1,2,3,4", '2025-01-01 10:00:03,"1,2,3,4', "2025-01-01 10:00:04+01:00,1,inf,3,4"]  # fmt: skip
    found = parse(export(tmp_path, series, rows))
    assert found.frame.select("gpu", "utilization").rows() == [
        ("node01:0", 1), ("node02:1", 4), ("node01:0", 1), ("node02:0", 3), ("node02:1", 4),
    ]  # fmt: skip
    assert found.frame["ts"].max() == at(2025, 1, 1, 10, 0, 0, 500_000)
    assert found.report.refusals == {
        "it has 3 fields, but the header names 5": [7],
        "its timestamp is not a readable time stamp": [8],
        "it has a stray quote": [9],
        "utilization [%] is not a readable share": [10],
    }


def test_older_names_memory_and_what_is_not_stored(tmp_path: Path, parse: Parse) -> None:
    names = (
        "rocm_temperature_edge",
        "rocm_vram_used_percentage",
        "rocm_vram_total_bytes",
        "rocm_ras_umc_correctable_count",
    )
    series = [(name, "node01", "0") for name in names]
    found = parse(export(tmp_path, series, ["2025-01-01 10:00:00,55.0,25.0,68702699520,0"]))
    row = found.frame.row(0, named=True)
    assert (row["temperature_c"], row["memory_used"], row["memory_total"]) == (55, 68702699520 // 4, 68702699520)
    assert "not stored: rocm_ras_umc_correctable_count" in found.report.notes


def test_exports_that_are_not_of_gpus(tmp_path: Path, refusal: Refusal) -> None:
    series = [("omnistat_network_rx_bytes", "node01", "hsn0")]
    path = export(tmp_path, series, ["2025-01-01 10:00:00,5"], ("metric", "instance", "interface"))
    assert "without metrics of GPUs (omnistat_network_rx_bytes)" in refusal(path)
    path = export(tmp_path, [("rocm_utilization_percentage", "node01", "0")], [])
    assert "holds no measurement" in refusal(path)
