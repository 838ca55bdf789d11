"""Saved pages of exporters: of every version, of a Prometheus, one or several in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.tests.exporter import BLANK, NOT_SUPPORTED, SMI_VALUES, Exported, page, smi_page, usual, uuid

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]
Refusal = Callable[..., str]

WHEN = "2026-11-20 10:00:00"
BEGAN_MS = 1_763_632_800_000  # 2025-11-20 10:00


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], Path]:
    def save(text: str) -> Path:
        path = tmp_path / "saved.txt"  # the name says nothing
        path.write_text(text)
        return path

    return save


Save = Callable[[str], Path]


@pytest.mark.parametrize("version", ["2.0", "4.x"])
def test_page_of_every_version(saved: Save, parse: Parse, version: str) -> None:
    found = parse(saved(page([Exported(n, usual(100.5 + n)) for n in (0, 1)], version)), at=WHEN)
    assert (found.report.format, found.report.total.kept, found.report.gpus) == ("prometheus", 2, 2)
    row = found.frame.row(1, named=True)
    assert (row["gpu"], row["uuid"], row["ts"]) == (uuid(1), uuid(1), at(2026, 11, 20, 10))
    assert (row["power_mw"], row["energy_mj"], row["memory_used"]) == (101_500, 123_456_789_012, 3821 << 20)
    assert (row["sm_clock_mhz"], row["temperature_c"], row["utilization"]) == (1410, 41, 97)
    assert row["slot"] == 1
    assert row["node"] == (None if version == "2.0" else "node-a")


def test_page_of_nvidia_gpu_exporter(saved: Save, parse: Parse) -> None:
    """A page without comments, of which the node is that of a Prometheus, else --node."""
    found = parse(saved(smi_page(1) + smi_page(2, "n7")), at=WHEN, node="n1")
    assert found.report.format == "prometheus"
    rows = found.frame.rows(named=True)
    assert [{name: row[name] for name in SMI_VALUES} for row in rows] == [SMI_VALUES] * 2
    assert [tuple(row.get(name) for name in ("gpu", "node", "slot", "model", "driver", "serial")) for row in rows] == [
        (uuid(1), "n1", 1, "NVIDIA L4", "580.1", None),
        (uuid(2), "n7", 2, "NVIDIA L4", "580.1", None),
    ]


@pytest.mark.parametrize(
    ("head", "second"),
    [("{name}{{{labels}}}", 1), ('{{__name__="{name}", {labels}}}', 1000)],
    ids=["OpenMetrics", "dump"],
)
def test_many_scrapes_of_one_series(saved: Save, parse: Parse, head: str, second: int) -> None:
    """As promtool writes them: by series, times in s or ms."""
    labels = f'UUID="{uuid(0)}", gpu="0", instance="n1:9400"'
    lines = [
        f"{head.format(name=name, labels=labels)} {begin + step * n} {(BEGAN_MS // 1000 + 15 * n) * second}"
        for name, begin, step in (
            ("DCGM_FI_DEV_POWER_USAGE", 100, 1),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0, 1000),
        )
        for n in range(4)
    ]
    found = parse(saved("\n".join([*lines, "# EOF", ""])))
    assert found.frame["power_mw"].to_list() == [100_000, 101_000, 102_000, 103_000]
    assert found.frame["energy_mj"].to_list() == [0, 1000, 2000, 3000]
    assert found.frame["node"].to_list() == ["n1"] * 4


def test_pages_with_a_time_in_front_of_each(saved: Save, parse: Parse) -> None:
    pages = [page([Exported(0, usual(100 + n))]) for n in range(3)]
    text = f"Thu Nov 20 10:00:00 UTC 2025\n{pages[0]}2025-11-20T10:01:00+00:00\n{pages[1]}1763632920\n{pages[2]}"
    found = parse(saved(text))
    assert found.frame["ts"].to_list() == [at(2025, 11, 20, 10, minute) for minute in range(3)]
    assert found.report.total.refused == 0


def test_a_page_without_times_was_saved_when_the_file_was_last_changed(
    saved: Save, parse: Parse, refusal: Refusal
) -> None:
    path = saved(page([Exported(0, usual())]))
    os.utime(path, ns=(10**6 * BEGAN_MS, 10**6 * BEGAN_MS))
    found = parse(path)
    assert found.frame["ts"].dt.epoch("ns").to_list() == [10**6 * BEGAN_MS]
    assert any("its time is taken from when the file was last changed" in one for one in found.report.notes)
    os.utime(path, (0, 0))
    assert "has no times: say when it began" in refusal(path)


def test_blanks_texts_and_strange_numbers_are_null(saved: Save, parse: Parse) -> None:
    values = usual(
        "NaN",
        "9.223372036854776e+18",
        DCGM_FI_DEV_MEMORY_TEMP=NOT_SUPPORTED,
        DCGM_FI_DEV_GPU_UTIL="ERROR - FAILED TO CONVERT TO STRING",
        DCGM_FI_DEV_SM_CLOCK=BLANK,
        DCGM_FI_PROF_SM_ACTIVE=25.0,
    )
    found = parse(saved(page([Exported(0, values)])), at=WHEN)
    row = found.frame.row(0, named=True)
    for column in ("power_mw", "energy_mj", "memory_temperature_c", "utilization", "sm_clock_mhz", "sm_active_ppm"):
        assert row[column] is None
    assert row["temperature_c"] == 41
    assert any("sm_active_ppm cannot be 25.0, so NULL is stored" in note for note in found.report.notes)


def test_damaged_lines_are_refused_one_by_one(saved: Save, parse: Parse) -> None:
    text = page([Exported(0, usual())])
    cut = text.splitlines()[-1][:30]
    report = parse(saved(f"<p>\n{text}{cut}"), at=WHEN).report
    assert (report.total.rows, report.total.kept, report.total.refused) == (3, 1, 2)
    assert report.refusals == {
        "it does not begin with the name of a metric": [1],
        "its labels have no end": [text.count("\n") + 2],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# TYPE go_threads gauge\ngo_threads 5\n", "no metric of DCGM is on the page"),
        ('DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1410\n', "its series have no UUID of a GPU"),
        ('DCGM_FI_DEV_NEW{gpu="0",UUID="GPU-1"} 1\n', "whorl knows none of its metrics (DCGM_FI_DEV_NEW)"),
        ("# HELP DCGM_FI_DEV_SM_CLOCK SM clock.\n", "no metric of DCGM is on the page"),
    ],
)
def test_page_without_a_reading_is_one_sentence(saved: Save, refusal: Refusal, text: str, why: str) -> None:
    assert refusal(saved(text), at=WHEN) == f"saved.txt: {why}: nothing to import"


def test_times_held_down_are_in_ns_whatever_the_page_says_of_them(saved: Save, parse: Parse) -> None:
    text = page([Exported(0, usual(DCGM_FI_DEV_POWER_VIOLATION=10**9, DCGM_FI_DEV_THERMAL_VIOLATION=0))])
    row = parse(saved(text), at=WHEN).frame.row(0, named=True)
    assert (row["power_violation_ns"], row["thermal_violation_ns"]) == (10**9, 0)


def test_instances_are_rows_of_their_own(saved: Save, store: Store) -> None:
    parts = [
        Exported(0, usual(52.1, DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.25, DCGM_FI_DEV_FB_USED=100), instance=part)
        for part in (("1g.10gb", "3"), ("2g.20gb", "5"))
    ]
    report = import_file(store, saved(page(parts, "4.x")), Options(at=WHEN))
    assert (report.total.kept, report.gpus) == (3, 3)
    rows = store.sql("select gpu, power_mw, gr_engine_active_ppm, memory_used from telemetry order by gpu").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (uuid(0), 52_100, None, None),
        (f"{uuid(0)}:GI3", None, 250_000, 100 << 20),
        (f"{uuid(0)}:GI5", None, 250_000, 100 << 20),
    ]
    who = store.sql("select gpu, parent, mig_profile from gpus_now order by gpu").to_pylist()
    assert [(row["parent"], row["mig_profile"]) for row in who] == [
        (None, None),
        (uuid(0), "1g.10gb"),
        (uuid(0), "2g.20gb"),
    ]


def test_xid_that_is_new_in_the_file_is_an_event(saved: Save, parse: Parse) -> None:
    gpus = [
        Exported(0, usual(100 + n, DCGM_FI_DEV_XID_ERRORS=xid), stamp_ms=BEGAN_MS + 30_000 * n)
        for n, xid in enumerate([43, 43, 79, 79])
    ]
    found = parse(saved("".join(page([gpu], "federated") for gpu in gpus)))
    (event,) = found.events.filter(found.events["kind"] == "xid").to_dicts()
    assert (event["gpu"], event["code"], event["ts"]) == (uuid(0), 79, at(2025, 11, 20, 10, 1))
    assert any("had XID 43 before the file begins" in note for note in found.report.notes)


def answer(*series: tuple[dict[str, str], list[object]], status: str = "success") -> str:
    """What a Prometheus answers to a query."""
    result = [{"metric": labels, "values": values} for labels, values in series]
    return json.dumps({"status": status, "data": {"resultType": "matrix", "result": result}})


OF_GPU = {"UUID": uuid(0), "gpu": "0", "Hostname": "node-a", "modelName": "NVIDIA A100-SXM4-80GB", "pod": 'a"\\n'}


def test_answers_of_a_prometheus_are_read(saved: Save, store: Store) -> None:
    power: dict[str, str] = {"__name__": "DCGM_FI_DEV_POWER_USAGE", **OF_GPU}
    path = saved(answer((power, [[BEGAN_MS / 1000, "61.2"], [BEGAN_MS / 1000 + 15.123, "62.2"]])))
    report = import_file(store, path, Options())
    assert (report.format, report.total.kept, report.notes) == (
        "prometheus", 2, ["the GPU is taken from the UUIDs that prometheus has"],
    )  # fmt: skip
    instant = {"metric": power | {"__name__": "DCGM_FI_DEV_SM_CLOCK"}, "value": [BEGAN_MS / 1000, "1410"]}
    path = saved(json.dumps({"status": "success", "data": {"resultType": "vector", "result": [instant]}}))
    assert import_file(store, path, Options()).total.kept == 1
    assert store.sql("select ts, power_mw, sm_clock_mhz from telemetry order by ts").to_pylist() == [
        {"ts": at(2025, 11, 20, 10), "power_mw": 61_200, "sm_clock_mhz": 1410},
        {"ts": at(2025, 11, 20, 10, 0, 15, 123_000), "power_mw": 62_200, "sm_clock_mhz": None},
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (answer((OF_GPU, [[1, "2"]])), "its series have no metric's name"),
        (answer(), "no metric of DCGM is on the page"),
        (answer(({"__name__": "DCGM_FI_DEV_POWER_USAGE", **OF_GPU}, [[1, "2"]]))[:-9], "is cut short or damaged"),
        ('{"status":"error","errorType":"bad_data","error":"no such thing"}', "an error: no such thing"),
        ('{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}', "without series of values"),
        ('{"status":"success","data":["a"]}', "query a metric under /api/v1/query"),
    ],
)
def test_what_is_no_answer_with_gpus_is_told(saved: Save, refusal: Refusal, text: str, sentence: str) -> None:
    assert sentence in refusal(saved(text))


def _counts(*pages: dict[int, int], window: str = ',window_size_in_ms="300000"') -> str:
    """Pages of dcgm-exporter, one each 30 s, that count XIDs."""
    lines = []
    for number, counts in enumerate(pages):
        stamp = BEGAN_MS + 30_000 * number
        lines.append(f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",UUID="{uuid(0)}"}} 1410 {stamp}')
        for xid, count in counts.items():
            series = f'DCGM_EXP_XID_ERRORS_COUNT{{gpu="0",UUID="{uuid(0)}"{window},xid="{xid}"}}'
            lines.append(f"{series} {count} {stamp}")
    return "\n".join([*lines, ""])


def test_a_count_of_xids_that_rises_is_an_event(saved: Save, parse: Parse) -> None:
    found = parse(saved(_counts({79: 1}, {79: 1, 31: 2}, {31: 1}, {31: 3}, {})))
    xids = found.events.filter(found.events["kind"] == "xid").select("gpu", "code", "ts").rows()
    times = [at(2025, 11, 20, 10, step // 2, step % 2 * 30) for step in range(4)]
    assert xids == [(uuid(0), 79, times[0]), (uuid(0), 31, times[1]), (uuid(0), 31, times[3])]
    unknown = parse(saved(_counts({79: 1}, {79: 2}, window="")))
    assert unknown.events.filter(unknown.events["kind"] == "xid")["ts"].to_list() == [times[1]]
    assert any("had XID 79 before the file begins" in note for note in unknown.report.notes)


@pytest.mark.parametrize("end", ["", "_active"])
def test_gauges_of_single_reasons_of_the_clock_are_one_mask(saved: Save, parse: Parse, end: str) -> None:
    name = "nvidia_smi_clocks_event_reasons_{}" + end
    values = {"sw_power_cap": 1, "hw_thermal_slowdown": 1, "gpu_idle": 0}
    text = "".join(f'{name.format(reason)}{{uuid="{uuid(0)}"}} {value}\n' for reason, value in values.items())
    counted = f'DCGM_EXP_CLOCK_EVENTS_COUNT{{UUID="{uuid(0)}",clock_event="power_cap"}} 3\n'
    found = parse(saved(text + counted), at=WHEN)
    assert found.frame["clock_event_reasons"].to_list() == [0x44]
    assert "metrics without a column: DCGM_EXP_CLOCK_EVENTS_COUNT" in found.report.notes
