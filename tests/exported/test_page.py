"""The page for Prometheus: the values that SQL gives, in base units, in a form that Prometheus' own client reads."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from whorl.collectors.backend import Status
from whorl.collectors.exporter.page import PageLimits, PageReader
from whorl.dashboards.exported.exporter import Exporter, Settings, page
from whorl.dashboards.exported.series import DCGM_NAMES, DCGM_XID, ONE, UNITS, dcgm_labels, series
from whorl.store import Store
from whorl.store.metrics import METRICS
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import CLOCK_EVENTS
from whorl.tests.cli.calling import refusal, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.exported.rows import EVERY, SECOND, ago, batch, journal_of, spelled
from whorl.tests.exporter import uuid
from whorl.tests.prometheus_server import PROMTOOL, needs_promtool
from whorl.tests.stores import new_store

NOW = 1_800_000_000 * SECOND
_IN_BASE_UNITS = {"mW": 1e3, "mJ": 1e3, "MHz": 1e-6, "%": 1e2, "ppm": 1e6, "ms": 1e3, "us": 1e6, "ns": 1e9}


def _filled(root: Path) -> None:
    """Two GPUs with a value of every metric, one that is lost, and a MIG instance."""
    store = new_store(root / "store")
    card = {
        "cluster": "c", "node": "n1", "slot": 0, "model": "H100", "driver": "570.1", "nvml_index": 3, "serial": "S1",
        "pci_bus_id": "00000000:07:00.0", "memory_total": 80 << 30, "uuid": "g1", "parent": None, "mig_profile": None,
    }  # fmt: skip
    instance = card | {"uuid": "MIG-1", "parent": "g1", "mig_profile": "1g.10gb", "slot": None}
    rows = [card | {"gpu": "g1"}, instance | {"gpu": "MIG-1"}]
    store.append({"gpus": arrow_rows("gpus", {name: [row[name] for row in rows] for name in rows[0]})}, "gpus")
    columns: dict[str, list[Any]] = {"ts": [NOW + 1, NOW + 3, NOW + 2], "code": [79, 31, 48]}
    columns |= {"cluster": ["c"] * 3, "gpu": ["g1"] * 3, "kind": ["xid"] * 3}
    store.append({"events": arrow_rows("events", columns)}, "events")
    at, nothing, doubled = NOW + SECOND, dict.fromkeys(EVERY), {name: 2 * number for name, number in EVERY.items()}
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "lost", **EVERY, "quality": None}]))
        newest: list[Mapping[str, Any]] = [
            {"ts": at, "gpu": "g1", **EVERY, "quality": "power_stuck,power_slow"},
            {"ts": at, "gpu": "g2", **doubled, "quality": None},
            {"ts": at, "gpu": "lost", **nothing, "quality": "lost"},
            {"ts": at, "gpu": "MIG-1", **nothing, "memory_used": 1 << 30, "quality": None},
        ]
        journal.append_batch(batch(newest))


@pytest.fixture(scope="module")
def store(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("exported", _filled) / "store")


def exported(store: Store, *, dcgm_names: bool = False, now: int = NOW + 2 * SECOND) -> bytes:
    exporter = Exporter(store, Settings(60.0, dcgm_names), clock=lambda: now)
    exporter.refresh()
    return page(exporter.series())


Sample = tuple[str, frozenset[tuple[str, str]]]


def parsed(text: bytes) -> dict[Sample, float]:
    answer: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for entry in family.samples:
            key = entry.name, frozenset(entry.labels.items())
            assert key not in answer, f"{key} is there twice"
            answer[key] = entry.value
    return answer


def of(samples: Mapping[Sample, float], name: str, gpu: str = "g1", **labels: str) -> float | None:
    return samples.get((name, frozenset({"cluster": "c", "gpu": gpu, **labels}.items())))


@pytest.mark.long
def test_every_metric_is_there_in_base_units_as_sql_gives_it(store: Store) -> None:
    samples = parsed(exported(store))
    names = [metric.name for metric in METRICS]
    query = f"select gpu, {', '.join(names)} from telemetry where quality is distinct from 'lost' and gpu like 'g%'"
    rows = {row["gpu"]: row for row in store.sql(query).to_pylist()}
    assert len({spelled(metric) for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        for gpu in ("g1", "g2"):
            printed = of(samples, spelled(metric), gpu)
            if metric.kind == "mask":
                assert printed is None
                continue
            assert printed == pytest.approx(rows[gpu][metric.name] / _IN_BASE_UNITS.get(metric.unit, 1), rel=1e-12)
    assert of(samples, "whorl_gpu_power_watts") == EVERY["power_mw"] / 1000
    assert of(samples, "whorl_gpu_energy_joules_total") == EVERY["energy_mj"] / 1000
    assert of(samples, "whorl_gpu_sm_clock_hertz") == EVERY["sm_clock_mhz"] * 1e6
    assert of(samples, "whorl_gpu_power_violation_seconds_total") == EVERY["power_violation_ns"] / 1e9


def test_reasons_of_the_clock_marks_of_quality_and_events_are_series(store: Store) -> None:
    samples = parsed(exported(store))
    for reason in CLOCK_EVENTS:
        state = None if reason.bit is None else float(EVERY["clock_event_reasons"] & reason.bit != 0)
        assert of(samples, "whorl_gpu_clock_event_reason", reason=reason.name) == state
    assert [of(samples, "whorl_gpu_answers", gpu) for gpu in ("lost", "g1")] == [0, 1]
    assert of(samples, "whorl_gpu_quality", "lost", mark="lost") == 1
    assert of(samples, "whorl_gpu_power_watts", "lost") is None
    assert [of(samples, "whorl_gpu_quality", mark=mark) for mark in ("power_stuck", "power_slow")] == [1, 1]
    counts = [of(samples, "whorl_gpu_events_total", kind="xid", code=code) for code in ("79", "31", "48", "13")]
    assert counts == [1, 1, 1, None]


def test_nothing_stays_of_a_gpu_that_is_not_read_any_more(store: Store) -> None:
    samples = parsed(exported(store, now=NOW + 62 * SECOND))
    constant = {"whorl_gpu_events_total"}  # what is stored of it does not change
    assert not [key for key in samples if key[0].startswith("whorl_gpu") and key[0] not in constant]


def test_who_a_gpu_is_stands_in_one_series_and_not_in_the_others(store: Store) -> None:
    samples = parsed(exported(store))
    (info,) = (dict(key[1]) for key in samples if key[0] == "whorl_gpu_info" and ("gpu", "g1") in key[1])
    assert info == {
        "cluster": "c", "gpu": "g1", "name": info["name"], "node": "n1", "slot": "0", "model": "H100",
        "driver": "570.1", "nvml_index": "3", "serial": "S1", "pci_bus_id": "00000000:07:00.0",
    }  # fmt: skip
    assert of(samples, "whorl_gpu_memory_bytes") == 80 << 30
    hot = {name for (name, labels) in samples if dict(labels).keys() == {"cluster", "gpu"}}
    assert {spelled(metric) for metric in METRICS if metric.kind == "gauge"} <= hot


def test_names_of_dcgm_exporter_have_its_labels_and_units(store: Store) -> None:
    samples = parsed(exported(store, dcgm_names=True))
    labels = {
        "gpu": "3", "UUID": "g1", "pci_bus_id": "00000000:07:00.0", "device": "nvidia3", "modelName": "H100",
        "Hostname": "n1", "DCGM_FI_DRIVER_VERSION": "570.1",
    }  # fmt: skip
    # The client's parser adds "_total" to the name of a counter that lacks it.
    of_gpu = {name.removesuffix("_total"): value for (name, pairs), value in samples.items() if dict(pairs) == labels}
    assert of_gpu.keys() == {*DCGM_NAMES, DCGM_XID}
    assert of_gpu["DCGM_FI_DEV_POWER_USAGE"] == EVERY["power_mw"] / 1000  # W
    assert of_gpu["DCGM_FI_DEV_FB_USED"] == EVERY["memory_used"] / 2**20  # MiB
    assert of_gpu["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == EVERY["energy_mj"]  # mJ
    assert of_gpu["DCGM_FI_DEV_SM_CLOCK"] == EVERY["sm_clock_mhz"]
    assert of_gpu["DCGM_FI_DEV_GPU_UTIL"] == EVERY["utilization"]
    assert of_gpu["DCGM_FI_DEV_XID_ERRORS"] == 31  # the last one
    instance = {name: pairs for name, pairs in samples if name == "DCGM_FI_DEV_FB_USED" and ("UUID", "MIG-1") in pairs}
    assert ("GPU_I_PROFILE", "1g.10gb") in instance["DCGM_FI_DEV_FB_USED"]
    assert not any(name.startswith("DCGM") for name, _ in parsed(exported(store)))


def test_names_of_dcgm_exporter_wait_until_it_is_known_who_a_gpu_is(store: Store) -> None:
    exporter = Exporter(store, Settings(60.0, dcgm_names=True), clock=lambda: NOW + 2 * SECOND)
    exporter._following.catch_up(NOW + 2 * SECOND)
    before = parsed(page(exporter.series()))
    assert of(before, "whorl_gpu_power_watts") == EVERY["power_mw"] / 1000
    assert not any(name.startswith("DCGM") for name, _ in before)
    exporter.refresh()
    printed = [dict(pairs) for name, pairs in parsed(page(exporter.series())) if name == "DCGM_FI_DEV_POWER_USAGE"]
    assert {"g1", "g2"} <= {labels["UUID"] for labels in printed}


def test_a_gpu_whose_number_in_the_driver_is_not_known_has_that_of_its_slot() -> None:
    assert dcgm_labels(("c", "g"), {"slot": 2}) == {"gpu": "2", "UUID": "g", "device": "nvidia2"}
    assert dcgm_labels(("c", "g"), {"slot": 2, "nvml_index": 0})["gpu"] == "0"


_TEXT = st.text(max_size=8)


@given(_TEXT, st.lists(_TEXT, min_size=1, max_size=4, unique=True), st.floats(allow_nan=False, allow_infinity=False))
def test_a_page_means_what_the_series_say_whatever_names_hold(words: str, names: list[str], number: float) -> None:
    points = [({"cluster": "c", "gpu": name}, number, 0) for name in names]
    power = series("gpu_power", UNITS["mW"], "gauge", words, points)
    energy = series("gpu_energy", UNITS["mJ"], "counter", words, points)
    samples = parsed(page([power, energy]))
    for name in names:
        assert (
            of(samples, "whorl_gpu_power_watts", name) == of(samples, "whorl_gpu_energy_joules_total", name) == number
        )
    assert len(samples) == 2 * len(names)


_ONE_LINE = b"# HELP whorl_a b\n# TYPE whorl_a gauge\nwhorl_a 1.0\n"


def test_a_value_that_is_not_known_is_no_line() -> None:
    assert page([series("gpu_power", UNITS["mW"], "gauge", "power", ())]) == b""
    assert page([series("a", ONE, "gauge", "b", [({}, 1, 0)])]) == _ONE_LINE


@pytest.mark.prometheus
@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_names(store: Store) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=exported(store), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        *((f"prometheus --listen {a}", f"{a!r}") for a in ("9500", "localhost:", "localhost:http", "localhost:99999")),
        ("prometheus --listen 9500", "write HOST:PORT"),
        ("prometheus --listen ::1:9500", "in brackets"),
        ("prometheus --max-age 0.5", "--max-age 0.5 s is too short: give 1 s or more"),
        ("otlp --endpoint http://127.0.0.1:9 --interval 0s", "--interval 0 s is too short: give 1 s or more"),
    ],
)
def test_what_cannot_be_is_told(store: Store, line: str, sentence: str) -> None:
    assert sentence in refusal("export", *line.split(), "--once", "--store", store.root)


def test_a_store_that_nobody_collects_into_is_told(tmp_path: Path) -> None:
    done = whorl("export prometheus --once --store", new_store(tmp_path / "store").root)
    assert done.exit_code == 0
    assert "no GPU of this store was read in the last 60 s" in done.stderr
    assert "run whorl collect" in done.stderr
    assert "whorl_gpu_power_watts" not in done.stdout


# -- read back ---------------------------------------------------------------------------------------------------------
# What `whorl export prometheus --dcgm-names` writes, the backend `prometheus` reads: the same numbers come back.


POSSIBLE = {m.name: 40 + row for row, m in enumerate(METRICS) if m.unit in ("%", "degC")}  # the others may be 1000


def test_numbers_come_back_in_their_columns(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    identity = {"cluster": ["c"], "gpu": [uuid(0)], "uuid": [uuid(0)], "node": ["n1"], "model": ["H100"]}
    store.append({"gpus": arrow_rows("gpus", identity)}, "gpus")
    values = EVERY | POSSIBLE
    exporter = Exporter(store, Settings(600.0, dcgm_names=True))
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": uuid(0), **values}]))
        exporter.refresh()
        text = page(exporter.series())
    reader = PageReader(PageLimits())
    numbers = reader.read(text).numbers[uuid(0)]
    row = reader.devices[uuid(0)].row
    assert (row["node"], row["model"]) == ("n1", "H100")
    read = {METRICS[row].name: number.value for row, number in numbers.items() if number.status == Status.OK}
    assert read == {m.name: values[m.name] for m in METRICS if m.prometheus}
