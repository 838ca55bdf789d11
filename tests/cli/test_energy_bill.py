"""Grams, money and intervals of `whorl energy` on GPUs of steady power, again by plain SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.power_sensors import MEASURED_BOARDS
from whorl.tests.analysis.energy.stored import at, gpu, job, readings, rows, store_of
from whorl.tests.cli.energy_answers import document, whorl
from whorl.tests.conftest import BuiltOnce

pytestmark = pytest.mark.usefixtures("stores_stay_open")

HOUR = 3600
SETTINGS = """
zone = "DE"
pue = 1.2
currency = "EUR"
intensity = "de.csv"
[[price]]
value = 0.2
until = 2026-11-02T14:00:00Z
[[price]]
value = 0.3
from = 2026-11-02T14:00:00Z
[[host_w]]
value = 50
"""
GRAMS = [300, 500, 400]
"""Of a kWh, hour by hour from noon."""

# Two GPUs of steady power; job 7 has both, from 12:30 to 14:30.
PIECES = """
with gpu as (select gpu, median(power_mw) / 1e3 as watt from telemetry group by gpu),
hour as (
    select timestamp '2026-11-02 12:00' + number * interval 1 hour as first, g, price
    from (values (0, 300, 0.2), (1, 500, 0.2), (2, 400, 0.3)) as t(number, g, price)
),
piece as (
    select gpu, watt, g, price, 1.2 / 3.6e6 as kwh,
        (epoch_ns(least(ended, first + interval 1 hour)) - epoch_ns(greatest(began, first))) / 1e9 as s
    from jobs_now join gpu using (gpu), hour where first < ended and first + interval 1 hour > began
)
"""


@pytest.fixture(scope="module")
def steady(built_once: BuiltOnce) -> Path:
    """A store of two GPUs of steady power for three hours, with `energy.toml`."""

    def build(folder: Path) -> None:
        seconds = range(0, 3 * HOUR + 1, 10)
        store = store_of(
            folder / "store",
            [gpu("GPU-a"), gpu("GPU-b")],
            [readings("GPU-a", seconds, [250.0] * len(seconds)), readings("GPU-b", seconds, [150.0] * len(seconds))],
            [job(7, name, HOUR / 2, 2.5 * HOUR) for name in ("GPU-a", "GPU-b")],
        )
        (store.root / "energy.toml").write_text(SETTINGS)
        hours = [f"DE,2026-11-02T{12 + hour}:00Z,{grams}" for hour, grams in enumerate(GRAMS)]
        (store.root / "de.csv").write_text("\n".join(["zone,time,g_per_kwh", *hours, ""]))

    return built_once("steady-energy", build) / "store"


def test_grams_and_money_again_by_sql(steady: Path) -> None:
    [row] = [entry for entry in document("--store", str(steady))["rows"] if entry["kind"] == "job"]
    query = """
        select sum(watt * s) as energy_j, sum((watt + 50) * s * kwh * g) as co2e_g, sum(50 * s) as host_j,
            sum((watt + 50) * s * kwh * price) as cost, sum(s) as gpu_s from piece
    """
    [again] = Store.open(steady).sql(PIECES + query).to_pylist()
    assert {name: row[name] for name in again} == pytest.approx(again, rel=1e-9)
    assert row["energy_j"] == pytest.approx(400 * 2 * HOUR)
    assert row["host_source"] == "stated"
    for name, ends in (("co2e_g", ("co2e_low_g", "co2e_high_g")), ("cost", ("cost_low", "cost_high"))):
        for end, joules in zip(ends, (row["low_j"], row["high_j"]), strict=True):
            part = (joules + row["host_j"]) / (row["energy_j"] + row["host_j"])
            assert row[end] == pytest.approx(row[name] * part)


def test_every_factor_is_named_with_its_source(steady: Path) -> None:
    answer = document("--store", str(steady))
    [factor] = answer["factors"]
    assert (factor["zone"], factor["basis"], factor["method"], factor["pue"]) == ("DEU", "hours", "location", 1.2)
    assert (factor["low_g_per_kwh"], factor["high_g_per_kwh"]) == (300, 500)
    assert answer["co2e_hours_share"] == 1
    printed = whorl("--store", str(steady)).stdout
    assert "300.0 to 500.0 g per kWh, zone DEU (location-based)" in printed
    assert "de.csv" in printed
    assert "CO2e by the hour: 100 % of the energy" in printed
    assert "cost EUR" in printed
    assert "300 Wh by host_w of the settings, for 100 % of the GPU time" in " ".join(printed.split())


def test_the_interval_of_steady_power_is_the_sensors_error_again_by_sql(steady: Path) -> None:
    """95 % of one more board of those that were held against a meter; boards of a model share a part of it."""
    boards = ", ".join(f"({gain}, {offset})" for _, gain, offset in MEASURED_BOARDS)
    [again] = (
        Store.open(steady)
        .sql(
            f"""
        with board as (
            select 1 / (1 + gain / 100) - 1 as h, -w / (1 + gain / 100) as p from (values {boards}) as t(gain, w)
        ),
        error as (
            select avg(h) as h, avg(p) as p, var_samp(h) as hh,
                var_samp(p) as pp, covar_samp(h, p) as hp
            from board
        ), used as (
            select median(power_mw) / 1e3 * 7200 as j, 7200.0 as s from telemetry group by gpu
        ), doubt as (
            select sum(hh * j * j + 2 * hp * j * s + pp * s * s) as apart,
                any_value(hh) * sum(j) ** 2 + 2 * any_value(hp) * sum(j) * sum(s) + any_value(pp) * sum(s) ** 2
                as shared,
                sum(j) as j, sum(j) * any_value(h) + sum(s) * any_value(p) as shift
            from used, error
        )
        select j + least(shift - 2.100922 * sqrt(0.7 * apart + (0.3 + 1 / 19) * shared), 0) as low_j,
            j + greatest(shift + 2.100922 * sqrt(0.7 * apart + (0.3 + 1 / 19) * shared), 0) as high_j from doubt
        """
        )
        .to_pylist()
    )
    [row] = [entry for entry in document("--store", str(steady))["rows"] if entry["kind"] == "job"]
    assert {name: row[name] for name in again} == pytest.approx(again, rel=2e-3)  # and its ends in time


def test_a_meter_of_the_node_says_what_the_hosts_of_its_gpus_used(tmp_path: Path) -> None:
    seconds = range(0, HOUR + 1, 10)
    store = store_of(
        tmp_path / "S",
        [gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c", node="n2")],
        [readings(name, seconds, [watts] * 361) for name, watts in (("GPU-a", 250), ("GPU-b", 150), ("GPU-c", 99))],
        [job(1, "GPU-a", 0, HOUR)],
    )
    power = {"cluster": "c", "node": "n1", "source": "pdu", "covers": "node_wall", "power_mw": 600_000}
    minutes = range(-600, HOUR + 601, 60)
    store.append({"node_power": rows("node_power", [{**power, "ts": at(second)} for second in minutes])}, "pdu")
    (store.root / "energy.toml").write_text("zone = 'FR'\nhost_w = 50\n")
    answer = {row["node"]: row for row in document("--store", str(store.root), "--by", "node")["rows"]}
    assert (answer["n1"]["host_source"], answer["n2"]["host_source"]) == ("measured", "stated")
    assert answer["n1"]["node_j"] == pytest.approx(600 * HOUR, rel=1e-9)
    assert answer["n1"]["node_low_j"] < 0.99 * 600 * HOUR < 1.01 * 600 * HOUR < answer["n1"]["node_high_j"]
    assert [row["host_of_s"] for row in answer.values()] == pytest.approx([2 * HOUR, HOUR])
    assert answer["n2"]["host_j"] == pytest.approx(50 * HOUR)
    [row] = [row for row in document("--store", str(store.root))["rows"] if row["kind"] == "job"]
    assert row["host_j"] == pytest.approx(100 * HOUR, rel=1e-6)
    # Two more meters: one that disagrees, and one of n2 that reads less than its GPU.
    wrong = [{**power, "source": "ipmi", "power_mw": 900_000}, {**power, "node": "n2", "power_mw": 60_000}]
    spoiled = [{**row, "ts": at(second)} for row in wrong for second in minutes]
    store.append({"node_power": rows("node_power", spoiled)}, "wrong")
    problems = document("reconcile", "--store", str(store.root))["problems"]
    assert {(row["node"], row["problem"], round(row["percent"])) for row in problems if row["node"]} == {
        ("n1", "meters of a node disagree", 50), ("n2", "node below its GPUs", 65),
    }  # fmt: skip
    document.cache_clear()
    again = {row["node"]: row for row in document("--store", str(store.root), "--by", "node")["rows"]}
    assert again["n1"]["node_j"] == pytest.approx(600 * HOUR, rel=1e-9)
    assert again["n1"]["node_high_j"] > 900 * HOUR
    assert again["n2"]["host_source"] == "stated"


@pytest.mark.long
def test_a_job_of_a_cluster_without_telemetry_has_no_figure_and_stops_nothing(tmp_path: Path) -> None:
    seconds = range(0, 2 * HOUR, 60)
    store = store_of(
        tmp_path / "S",
        [gpu("GPU-a")],
        [readings("GPU-a", seconds, [200.0] * len(seconds))],
        [job(1, "GPU-a", 600, 6000), job(2, "GPU-z", 600, 6000, cluster="other")],
    )
    change = "2026-11-02T12:30:00Z"
    dated = "[[pue]]\nvalue = {}\ncluster = 'other'\n{} = {}\n"
    (store.root / "energy.toml").write_text(
        "zone = 'DE'\n" + dated.format(1.1, "until", change) + dated.format(1.2, "from", change)
    )
    rows = {row["job_id"]: row for row in document("--store", str(store.root))["rows"] if row["kind"] == "job"}
    assert rows["1"]["co2e_g"] > 0
    assert (rows["2"]["energy_j"], rows["2"]["reason"]) == (None, "no telemetry")
    [row] = document("--store", str(store.root), "--job", "2")["rows"]
    assert (row["energy_j"], row["reason"], row["co2e_g"]) == (None, "no telemetry", None)
