"""The published files as they are: rows, duplicates, codes, units and what each was taken from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file

Real = Callable[[str], Path]
Parse = Callable[..., Parsed]


@pytest.mark.parametrize(
    ("name", "rows", "kept", "gpus", "source"),
    [
        ("sgemm", 11_087, 8_803, 392, "the kernels' start times"),
        ("pagerank", 880, 880, 172, "the kernels' start times"),
        ("resnet50", 1_404, 1_404, 336, "column 'train_time'"),
        ("bert", 1_096, 1_096, 136, "column 'perf_s'"),
    ],
)
def test_longhorn(name: str, rows: int, kept: int, gpus: int, source: str, real: Real, parse: Parse) -> None:
    found = parse(real(f"longhorn/{name}.csv.gz"))
    counts = {"rows": rows, "kept": kept, "duplicates": rows - kept, "refused": 0}
    assert found.report.total.as_dict() == counts
    assert found.report.gpus == gpus
    assert found.report.units["perf"] == {"unit": "ms", "from": source}
    assert found.frame["workload"].unique().to_list() == [name.removesuffix("50")]
    if name != "sgemm":
        return
    assert found.report.placeholders == {"cabinet": 2_116, "node": 2_116, "ts": 8}
    assert found.frame["cabinet"].null_count() == found.frame["node"].null_count() == 2_116
    assert found.frame["began"].null_count() == 8
    assert "dev_id" in found.report.ignored
    assert found.frame["slot"].null_count() == found.frame["place"].null_count() == 8_803
    assert found.frame["value"].median() == pytest.approx(2440.11, abs=0.005)


def test_pagerank_links_uuid_and_place(real: Real, store: Store) -> None:
    import_file(store, real("longhorn/pagerank.csv.gz"), Options(cluster="longhorn"))
    gpus = store.scan("gpus").collect()
    assert gpus.height == gpus["uuid"].n_unique() == gpus["place"].n_unique() == 172
    row = gpus.row(by_predicate=pl.col("uuid") == "GPU-0542528c-4ba5-0eff-4a1f-90ac59dd0446", named=True)
    assert (row["cabinet"], row["node"], row["slot"], row["place"]) == ("c005", "c005-4", 3, "c005-4-3")


@pytest.mark.parametrize(("name", "rows"), [("a100_square_gpudata", 965), ("a100_transient_gpudata", 1_245)])
def test_nvidia_smi(name: str, rows: int, real: Real, parse: Parse) -> None:
    found = parse(real(f"power/nvidia_smi_{name}.csv.gz"), time_zone="Europe/London")
    assert found.report.total.as_dict() == {"rows": rows, "kept": rows, "duplicates": 0, "refused": 0}
    first = found.frame.row(0, named=True)
    assert first["power_mw"] in (56_120, 56_380)
    assert first["power_instant_mw"] == first["power_mw"]
    assert first["ts"].hour == 9
    assert found.frame["quality"].null_count() == rows
    assert found.events.height == 0


@pytest.mark.long
def test_the_stuck_sensor(real: Real, store: Store) -> None:
    report = import_file(store, real("power/nvidia_smi_stuck_sensor.csv.gz"), Options())
    assert report.placeholders == {"clocks.current.sm [MHz]": 12_792}
    frame = store.scan("telemetry").collect()
    assert frame.height == 12_792
    assert frame["power_mw"].unique().to_list() == [46_190]
    assert frame["sm_clock_mhz"].null_count() == frame.height
    assert frame["quality"].unique().to_list() == ["power_stuck"]
    events = store.scan("events").collect()
    assert events["kind"].to_list() == ["stuck_sensor"]
    assert "46.19 W" in events["detail"][0]


@pytest.mark.parametrize("name", ["power_limits_v100", "power_limits_rtx6000", "train"])
def test_zeus_asks_what_its_columns_mean(name: str, real: Real, refusal: Callable[..., str]) -> None:
    assert "--map COLUMN=time:ms" in refusal(real(f"power/zeus_{name}.csv.gz"))


def test_zeus_with_map(real: Real, parse: Parse) -> None:
    columns = {"network": "workload", "time_per_epoch": "time:s", "average_power": "power:W"}
    found = parse(real("power/zeus_power_limits_v100.csv.gz"), columns=columns, gpu="V100")
    assert found.report.total.as_dict() == {"rows": 476, "kept": 476, "duplicates": 0, "refused": 0}
    assert found.frame["workload"].n_unique() == 5
    assert found.frame.row(0, named=True)["value"] == pytest.approx(11_276.6667)
    assert found.report.gpus == 1
