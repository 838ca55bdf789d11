"""`whorl jobs idle`: GPUs that jobs held and did not use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from whorl.probes.loads import run_load
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import find_load
from whorl.simulation.models import find_model
from whorl.store import Store
from whorl.store.instants import date_of_ns
from whorl.tests.analysis.energy.stored import NOON, gpu, job, readings, rows, store_of
from whorl.tests.cli.calling import document, refusal, whorl
from whorl.tests.jobs.accounts import job as accounted
from whorl.tests.jobs.accounts import saved

pytestmark = pytest.mark.usefixtures("stores_stay_open")

HOUR = 3600


def ask(store: Path, *words: str) -> dict[str, Any]:
    return document("jobs idle --store", store, *words)


def add_log(store: Path, log: Path, *lines: dict[str, str], settings: str) -> None:
    """Import accounts of jobs."""
    saved(log, *lines)
    result = whorl("jobs import --log", log, "--store", store, *settings.split())
    assert result.exit_code == 0, result.output


def idle_of(document: dict[str, Any], job_id: str) -> dict[str, Any]:
    return next(row for row in document["rows"] if row["job_id"] == job_id)


@pytest.mark.long
@pytest.mark.parametrize(("model", "step_s"), [("A100", 10.0), ("H100", 60.0)])
def test_idle_hours_of_a_simulated_fleet_are_the_true_ones_within_a_reading(
    model: str, step_s: float, tmp_path: Path
) -> None:
    """The GPUs work for 20 minutes and do nothing for 15, in turn; two jobs hold each node, one after the other."""
    load = dataclasses.replace(find_load("square"), name="naps", busy_s=1200.0, idle_s=900.0)
    store = Store.create(tmp_path / "S")
    stored = run_load(store, Fleet.draw(find_model(model), 4, seed=3), load, hours=2, interval_s=step_s)
    began_s = stored.began_ns / 1e9
    nodes = store.sql("select distinct node from gpus order by node").table["node"].to_pylist()
    jobs = [
        (name, 300 + 90 * place + since, 300 + 90 * place + until)
        for place, name in enumerate(nodes)
        for since, until in ((0, 3500), (3600, 5800))
    ]
    lines = [
        accounted(41 + place, 4, name, Start=str(round(began_s + since)), End=str(round(began_s + until)),
                  Submit=str(round(began_s)), Eligible=str(round(began_s)), ElapsedRaw=str(until - since))
        for place, (name, since, until) in enumerate(jobs)
    ]  # fmt: skip
    add_log(store.root, tmp_path / "sacct.txt", *lines, settings=f"--set gpus-per-node=4 --cluster {stored.cluster}")
    document = ask(store.root, "--since", date_of_ns(stored.began_ns).isoformat(), "--set", "price=2")
    for place, (_, since, until) in enumerate(jobs):
        naps = [(at, at + 900) for at in range(1210, 2 * HOUR, 2100)]
        met = [min(end, until) - max(start, since) for start, end in naps]
        truth_s = 4 * sum(nap for nap in met if nap >= 600)
        row = idle_of(document, str(41 + place))
        assert row["gpus"] == row["gpus_known"] == 4
        assert row["held_s"] == pytest.approx(4 * (until - since))
        assert row["idle_s"] == pytest.approx(truth_s, abs=8 * step_s)  # a reading at either end of each stretch
        assert row["idle_low_s"] <= row["idle_s"] <= row["idle_high_s"]
        assert row["gpu_hour_cost"] == pytest.approx(2 * row["idle_s"] / HOUR)
        assert row["low_j"] <= row["energy_j"] <= row["high_j"]
        assert 20 < row["energy_j"] / row["idle_s"] < 150
    assert document["total"]["idle_s"] == pytest.approx(sum(row["idle_s"] for row in document["rows"]))


@pytest.fixture(scope="module")
def night(built_once: Any) -> Path:
    """Six hours of readings every 10 s; 50 W and a utilisation of 0, or 250 W."""

    def build(folder: Path) -> None:
        seconds = range(0, 6 * HOUR + 1, 10)

        def readings_of(name: str, *idle: tuple[int, int], read: range = seconds, **columns: Any) -> Any:
            watts = [50.0 if any(since <= at < until for since, until in idle) else 250.0 for at in read]
            return readings(name, read, watts, **columns)

        half = [at for at in seconds if not HOUR < at < 3 * HOUR]  # nobody read for two hours
        store_of(
            folder / "store",
            [gpu(f"GPU-{letter}") for letter in "abcdefg"] + [gpu("MIG-1", parent="GPU-g", uuid="MIG-1")],
            [
                readings_of("GPU-a", (0, HOUR), (2 * HOUR, 4 * HOUR), (5 * HOUR, 5 * HOUR + 300)),
                readings_of("GPU-b", (0, 6 * HOUR), read=half),  # type: ignore[arg-type]
                readings_of("GPU-d", (0, 7 * HOUR)),
                readings_of("GPU-e", (0, 2 * HOUR)),
                readings_of("GPU-f", (0, HOUR), utilization=[None] * len(seconds)),
                readings_of("GPU-g", (0, HOUR)),
            ],
            [
                # ran twice; idle for its first 50 minutes, and for an hour of the second run
                job(1, "GPU-a", 600, HOUR + 600, allocation="1.0"),
                job(1, "GPU-a", 3 * HOUR, 6 * HOUR, allocation="1.1", user="ada"),
                job(2, "GPU-b", 0, 4 * HOUR),
                job(3, "GPU-c", 0, HOUR, user="bob"),
                job(4, "GPU-d", HOUR, None, state="RUNNING", user="bob"),
                job(5, "GPU-e", 0, 3 * HOUR, share=0.5), job(6, "GPU-e", HOUR, 4 * HOUR, share=0.5),
                job(7, "GPU-f", 0, HOUR), job(8, "MIG-1", 0, HOUR), job(9, None, 0, HOUR, node_gpus=3),
            ],
        )  # fmt: skip

    return Path(built_once("jobs-idle", build)) / "store"


@pytest.mark.long
def test_a_requeued_job_is_one_row_and_short_pauses_do_not_count(night: Path) -> None:
    row = idle_of(ask(night), "1")
    assert (row["allocations"], row["held_s"]) == (2, 4 * HOUR)
    assert row["idle_s"] == pytest.approx(3000 + HOUR, abs=20)
    assert row["energy_j"] == pytest.approx(50 * row["idle_s"], rel=0.05)
    shorter = idle_of(ask(night, "--set", "at-least=4min"), "1")
    assert shorter["idle_s"] == pytest.approx(3000 + HOUR + 300, abs=30)


def test_what_nobody_read_is_not_counted_as_idle_nor_as_used(night: Path) -> None:
    document = ask(night)
    gap = idle_of(document, "2")
    assert gap["idle_s"] == pytest.approx(2 * HOUR, abs=20)
    assert (gap["held_s"], gap["read_s"], gap["idle_share"]) == (4 * HOUR, pytest.approx(2 * HOUR), pytest.approx(1))
    assert gap["readings"] == pytest.approx(2 * HOUR / 10, abs=3)
    unread = {row["job_id"]: (row["idle_s"], row["energy_j"], row["reason"]) for row in document["gpus"]}
    for job_id, reason in (("3", "no telemetry"), ("7", "no utilisation"), ("8", "MIG")):
        assert unread[job_id] == (None, None, reason)
    assert document["gpus_not_known"] == 3
    text = whorl("jobs idle --store", night).output
    assert "n/a for 1 held GPU: nobody read the GPU" in text
    assert "n/a for 3 held GPUs: nobody knows which GPUs" in text


@pytest.mark.long
def test_running_jobs_and_those_of_a_user_are_listed_alone(night: Path) -> None:
    document = ask(night, "--running")
    [row] = document["rows"]
    assert (row["job_id"], row["gpus_idle_now"], row["ended"]) == ("4", 1, None)
    assert row["idle_s"] == pytest.approx(5 * HOUR, abs=10)
    assert document["gpus"][0]["idle_since"] == "2026-11-02T13:00:00Z"
    assert {row["job_id"] for row in ask(night, "--user", "bob")["rows"]} == {"3", "4"}
    assert ask(night, "--user", "me")["rows"] == []


def test_a_shared_gpu_is_idle_for_its_holders_while_none_works(night: Path) -> None:
    document = ask(night)
    first, second = (idle_of(document, number) for number in ("5", "6"))
    assert (first["shared"], second["shared"]) == (True, True)
    assert (first["idle_s"], second["idle_s"]) == (pytest.approx(2 * HOUR, abs=10), pytest.approx(HOUR, abs=10))
    assert first["idle_gpu_s"] == pytest.approx(first["idle_s"] / 2)
    assert first["energy_j"] == pytest.approx(50 * HOUR, rel=0.05)


def test_work_between_the_readings_of_utilisation_shows_in_the_power(tmp_path: Path) -> None:
    seconds = range(0, 2 * HOUR, 10)
    watts = [55.0 if at < HOUR else 180.0 for at in seconds]
    store_of(
        tmp_path / "S", [gpu("GPU-a")], [readings("GPU-a", seconds, watts, utilization=[0] * len(watts))],
        [job(1, "GPU-a", 0, 2 * HOUR)],
    )  # fmt: skip
    assert idle_of(ask(tmp_path / "S"), "1")["idle_s"] == pytest.approx(HOUR, abs=10)


def test_grams_and_money_follow_from_the_settings(night: Path, tmp_path: Path) -> None:
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nprice = 0.30\ncurrency = "EUR"\n')
    document = ask(night, "--set", f"settings={settings}", "--running")
    [row] = document["rows"]
    assert row["cost"] == pytest.approx(row["energy_j"] / 3.6e6 * 0.30)
    assert row["co2e_g"] > 0
    assert (document["currency"], document["co2e_reason"]) == ("EUR", None)


@pytest.mark.long
def test_pseudonyms_are_found_by_the_name_of_their_user(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "S")
    line = accounted(7, 1, "n1", User="ada", Start=str(NOON // 10**9), End=str(NOON // 10**9 + 3600))
    watts = readings("GPU-a", range(0, HOUR, 10), [50.0] * 360)
    store.append({"gpus": rows("gpus", [gpu("GPU-a")]), "telemetry": watts}, "made")
    settings = "--set anonymise=yes --cluster c --set gpus-per-node=1"
    add_log(store.root, tmp_path / "sacct.txt", line, settings=settings)
    [row] = ask(store.root, "--user", "ada")["rows"]
    assert row["user"].startswith("user-")
    assert row["idle_s"] == pytest.approx(HOUR, abs=20)


def test_a_store_without_telemetry_and_an_empty_time_are_refused_in_a_sentence(night: Path, tmp_path: Path) -> None:
    assert "has no telemetry" in refusal("jobs idle --store", Store.create(tmp_path / "S").root)
    assert "choose an earlier --since" in refusal("jobs idle --since 2027-01-01 --store", night)


@pytest.mark.long
def test_pruned_minutes_tell_of_idle_gpus_too(tmp_path: Path) -> None:
    seconds = range(0, 3 * HOUR, 10)
    watts = readings("GPU-a", seconds, [50.0 if HOUR <= at < 2 * HOUR else 250.0 for at in seconds])
    store = store_of(tmp_path / "S", [gpu("GPU-a")], [watts], [job(1, "GPU-a", 0, 3 * HOUR)])
    exact = idle_of(ask(store.root), "1")
    pruned = whorl("store prune --keep 1d --offline --store", store.root)
    assert pruned.exit_code == 0, pruned.output
    assert store.files("telemetry_minutes")
    by_minutes = idle_of(ask(store.root), "1")
    for figure in ("idle_s", "read_s"):
        assert by_minutes[figure] == pytest.approx(exact[figure], abs=120)
