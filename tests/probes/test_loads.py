"""Campaigns over a simulated fleet, as they stand in a store: complete, consistent, resumed, and stored once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whorl.collectors.claim import FIRST_NS
from whorl.errors import InputError
from whorl.probes.loads import Stored, refuse_steady, refuse_time, run_load, run_steady
from whorl.simulation.campaigns import factors, unit, unit_ms
from whorl.simulation.cluster import identities
from whorl.simulation.fleet import Fleet
from whorl.simulation.load import SGEMM, find_load
from whorl.simulation.models import V100
from whorl.simulation.spread import POPULATIONS
from whorl.store import Store
from whorl.tests.stores import new_store

S = 1_000_000_000
# Turns of a minute keep these campaigns short.
TURNS = replace(find_load("gemm"), busy_s=50.0, idle_s=10.0, begins_s=5.0, warm_up_s=20.0, repeats=3)
KINDS = ("lost", "wrong_results", "stuck_sensor", "pinned")


def rows(store: Store, query: str) -> list[dict[str, Any]]:
    return list(store.sql(query).to_pylist())


def number(store: Store, query: str) -> Any:
    (row,) = rows(store, query)
    (value,) = row.values()
    return value


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Fleet, Stored]:
    """Twelve minutes of 24 V100s with four faults, a reading a second."""
    store = new_store(tmp_path_factory.mktemp("campaign") / "S")
    fleet = Fleet.draw(V100, 24, 7, faults=5, kinds=KINDS)
    return store, fleet, run_load(store, fleet, TURNS, hours=0.2)


@pytest.mark.long
def test_every_gpu_has_its_identity_and_all_its_readings(campaign: tuple[Store, Fleet, Stored]) -> None:
    store, _, stored = campaign
    assert number(store, "select count(distinct uuid) from gpus where gpu = uuid and place is not null") == 24
    assert rows(store, "select node, count(*) n from gpus group by 1 order by 1") == [
        {"node": f"c001-{node}", "n": 4} for node in range(1, 7)
    ]
    assert stored.rows["telemetry"] == 24 * 720 == number(store, "select count(*) from telemetry")
    (span,) = rows(store, "select min(ts)::varchar a, max(ts)::varchar b, count(distinct ts) n from telemetry")
    assert span == {"a": "2026-01-05 00:00:01", "b": "2026-01-05 00:12:00", "n": 720}
    gone = sum(fault.kind == "lost" for fault in stored.planted)
    assert number(store, "select count(distinct gpu) from telemetry where power_mw is null") == gone == 2
    assert number(store, "select count(*) from telemetry where (power_mw is null) <> (energy_mj is null)") == 0


def test_a_turn_is_a_run_and_its_times_follow_the_clock(campaign: tuple[Store, Fleet, Stored]) -> None:
    store, _, _ = campaign
    assert number(store, "select count(*) from runs") == 24 * 12
    assert number(store, "select count(distinct run_id) from runs") == 24 * 12
    spans = rows(store, "select distinct began::varchar a, ended::varchar b from runs order by 1")
    assert spans[0] == {"a": "2026-01-05 00:00:05", "b": "2026-01-05 00:00:55"}
    good = rows(
        store, "select gpu, repeat, value, sm_clock_mhz f from measurements where status = 'ok' and figure = 'time'"
    )
    assert {row["repeat"] for row in good} == {0, 1, 2}
    for row in good:
        clock = row["f"]
        expected = unit_ms(SGEMM, V100) * (SGEMM.compute_share * V100.max_clock_mhz / clock + 1 - SGEMM.compute_share)
        assert row["value"] == pytest.approx(expected, rel=0.02)
    (conditions,) = rows(store, "select distinct conditions from runs where status = 'ok'")
    noted = dict(conditions["conditions"])
    assert (noted["warm_up_s"], noted["repeat_s"], noted["readings"], noted["repeats"]) == (20.0, 10.0, 30, 3)
    assert (noted["seed"], noted["power_limit_w"], noted["simulated"], noted["neighbours"]) == (7, 300, True, "busy")
    assert (noted["load"], noted["unit"], noted["clock"]) == ("sgemm", unit(SGEMM), "free")
    apart = """select count(*) from (select any_value(r.power_w) run, median(t.power_mw) / 1e3 seen from runs r
        join telemetry t on t.gpu = r.gpu and t.ts > r.began + interval 20 second and t.ts <= r.ended
        where r.status = 'ok' group by r.run_id having count(*) <> 30 or abs(run - seen) > 1e-6)"""
    assert number(store, apart) == 0, "a run's figures are those of the readings after its warm-up"
    kinds = "select distinct probe_version, ended_by, versions.driver, workload from runs"
    assert [list(row.values()) for row in rows(store, kinds)] == [["simulated 3", "complete", "simulated", "sgemm"]]


def test_what_went_wrong_with_a_run_is_said(campaign: tuple[Store, Fleet, Stored]) -> None:
    store, _, stored = campaign
    wrong = next(fault.uuid for fault in stored.planted if fault.kind == "wrong_results")
    bad = rows(store, "select gpu, status from runs where status = 'wrong_result'")
    assert {row["gpu"] for row in bad} == {wrong}
    counted = rows(store, "select gpu, status, value from measurements where figure = 'wrong_elements' and value > 0")
    assert len(counted) == len(bad) > 0
    assert {row["status"] for row in counted} == {"wrong_result"}
    details = {
        row["status_detail"] for row in rows(store, "select status_detail from runs where status = 'wrong_result'")
    }
    assert details == {f"{row['value']:.0f} elements of the result are wrong" for row in counted}
    lost = {fault.uuid: fault for fault in stored.planted if fault.kind == "lost"}
    for gpu, planted in lost.items():
        runs = rows(store, f"select status, epoch_ns(began) b, epoch_ns(ended) e from runs where gpu = '{gpu}'")
        for run in runs:
            assert planted.began_ns is not None
            away = run["e"] > planted.began_ns and (planted.ended_ns is None or run["b"] < planted.ended_ns)
            assert (run["status"] == "lost") == away
        events = rows(store, f"select kind, epoch_ns(ts) t from events where gpu = '{gpu}'")
        kinds = {row["kind"] for row in events}
        assert kinds == {"xid", "lost"} | ({"returned", "counter_reset"} if planted.ended_ns else set())
        assert {row["t"] for row in events} == {planted.began_ns, planted.ended_ns} - {None}
    assert number(store, "select count(*) from results join runs using (run_id) where status = 'lost'") == 0


def test_the_truth_stands_apart(campaign: tuple[Store, Fleet, Stored]) -> None:
    store, fleet, stored = campaign
    truth = rows(
        store, "select gpu, kind, epoch_ns(began) b, epoch_ns(ended) e, seed, model from truth where kind <> 'ok'"
    )
    assert {(row["gpu"], row["kind"], row["b"], row["e"]) for row in truth} == {
        (fault.uuid, fault.kind, fault.began_ns, fault.ended_ns) for fault in stored.planted
    }
    assert number(store, "select count(*) from truth") == 24
    silicon = dict(rows(store, "select silicon from truth order by gpu limit 1")[0]["silicon"])
    assert set(silicon) == set(vars(fleet.silicon))
    for table in ("gpus", "runs", "results", "telemetry"):
        for column in store.arrow(table).to_pydict().values():
            assert not {"pinned", "wrong_results"} & {value for value in column if isinstance(value, str)}


# -- where campaigns lie in time, and whose they are ----------------------------------------------------------


def test_a_fleets_campaigns_follow_each_other(tmp_path: Path) -> None:
    store, fleet = new_store(tmp_path / "S"), Fleet.draw(V100, 4, 1, faults=0)
    first = run_load(store, fleet, TURNS, hours=0.01)
    second = run_steady(store, fleet, find_load("pagerank"), runs=2)
    assert first.began_ns == FIRST_NS
    assert second.began_ns == FIRST_NS + 86_400 * S
    with pytest.raises(InputError, match=f"campaign {first.campaign} of these GPUs at the same time"):
        run_steady(store, fleet, find_load("stream"), began_ns=FIRST_NS)
    with pytest.raises(InputError, match="with other faults"):
        run_steady(store, Fleet.draw(V100, 4, 1, faults=1), find_load("stream"))
    elsewhere = run_steady(store, fleet, find_load("stream"), began_ns=FIRST_NS, cluster="it's another")
    assert elsewhere.rows["runs"] == 4


@pytest.mark.long
def test_of_two_simulations_at_once_the_second_follows_the_first(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    command = [sys.executable, "-m", "whorl", "demo", "sim", "--store", str(store.root), "--gpus", "4", "--json"]
    loads = ("gemm", "stream", "gemm")
    processes = [
        subprocess.Popen([*command, "--set", "hours=0.2", "--load", load], stdout=subprocess.PIPE, text=True)
        for load in loads
    ]
    begins = [json.loads(process.communicate()[0])["began"] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(loads)
    assert begins[0] == begins[2], "the same campaign"
    assert sorted(begins[:2]) == ["2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z"]
    runs = store.sql("select count(*) n, count(distinct run_id) ids from runs").table.to_pylist()
    assert runs == [{"n": 16, "ids": 16}]
    assert store.sql("select count(*) n from telemetry").table.to_pylist() == [{"n": 2 * 4 * 720}]


def test_a_campaign_claims_its_time_before_it_stores_anything(tmp_path: Path) -> None:
    store, fleet = new_store(tmp_path / "S"), Fleet.draw(V100, 4, 1, faults=1, kinds=("drift",))
    gemm, stream = find_load("gemm"), find_load("stream")

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steady(store, fleet, gemm, runs=3, progress=stop)
    earlier = run_steady(store, fleet, stream, began_ns=FIRST_NS - 100 * 86_400 * S)
    later = run_steady(store, fleet, stream)
    assert later.began_ns == FIRST_NS + 3 * 86_400 * S
    again = run_steady(store, fleet, gemm, runs=3)
    assert again.before
    assert (again.began_ns, again.rows["runs"]) == (FIRST_NS, 2 * 4)
    uninterrupted = run_steady(fresh := new_store(tmp_path / "T"), fleet, gemm, runs=3)
    query = f"select * from runs where campaign = '{again.campaign}' order by all"
    assert uninterrupted.campaign == again.campaign != earlier.campaign
    assert store.sql(query).equals(fresh.sql(query)), "what came between did not age the fleet"


def test_each_gpu_ends_a_steady_run_when_its_work_is_done(tmp_path: Path) -> None:
    store, fleet = new_store(tmp_path / "S"), Fleet.draw(V100, 8, 1, faults=1, kinds=("pinned",))
    run_steady(store, fleet, find_load("gemm"))
    for row in rows(
        store,
        "select run_id, any_value(epoch_ns(r.ended) - epoch_ns(r.began)) ns, 100 * avg(value) ms "
        "from runs r join results using (run_id) where figure = 'time' group by 1",
    ):
        assert row["ns"] == pytest.approx(1e6 * row["ms"], abs=1000)


def test_a_steady_run_is_the_steady_state_of_the_day_with_the_faults_that_have_begun(tmp_path: Path) -> None:
    store, load, days = new_store(tmp_path / "S"), find_load("mixed"), 4
    planted_kinds = ("zero_power", "stuck_sensor", "lost", "wrong_results", "throttling", "drift")
    fleet = Fleet.draw(V100, 24, 7, faults=12, kinds=planted_kinds)
    shares: list[float] = []
    stored = run_steady(store, fleet, load, runs=days, progress=shares.append)
    assert (shares, stored.measured, stored.before, stored.gpus) == ([0.25, 0.5, 0.75, 1.0], True, False, 24)
    assert stored.rows["runs"] == 24 * days
    planted = {fault.uuid: fault for fault in stored.planted}
    gpus = [identity.uuid for identity in identities(7, 24, V100.name)]
    kinds_seen = set()
    for day in range(days):
        began_ns, number = stored.began_ns + day * 86_400 * S, int(stored.campaign.removeprefix("sim-"), 16) + day
        aged = fleet.aged(day).on_day(began_ns // (86_400 * S)).throttled(number)
        times, wrong = factors(aged, load, number, 5), aged.wrong_elements(run=number).tolist()
        run_of = {row["gpu"]: row for row in rows(store, f"select * from runs where epoch_ns(began) = {began_ns}")}
        query = f"select gpu, figure, unit, repeat, value from measurements where epoch_ns(began) = {began_ns}"
        figures = {(row["gpu"], row["figure"], row["unit"], row["repeat"]): row["value"] for row in rows(store, query)}
        for gpu, uuid in enumerate(gpus):
            row, fault, workload = run_of[uuid], planted.get(uuid), load.workload_of(gpu)
            assert workload is not None
            steady = aged.steady(workload)
            has_begun = fault is not None and (fault.began_ns is None or fault.began_ns <= began_ns)
            kind = fault.kind if fault is not None and has_begun else None
            is_gone = kind == "lost" and fault is not None and (fault.ended_ns is None or began_ns < fault.ended_ns)
            kinds_seen |= {"gone" if is_gone else kind}
            expected_ms = times[:, gpu] * aged.relative_time(workload, steady)[gpu]
            lasted_ms = (row["ended"] - row["began"]).total_seconds() * 1000
            assert lasted_ms == pytest.approx(100 * expected_ms.mean(), abs=0.001)
            conditions = dict(row["conditions"])
            assert (conditions["steady_state"], conditions["units"], conditions["repeats"], conditions["seed"]) == (
                True,
                100,
                5,
                7,
            )
            assert (conditions["load"], conditions["unit"], conditions["clock"]) == ("mixed", unit(workload), "free")
            assert (conditions["power_limit_w"], conditions["neighbours"], conditions["simulated"]) == (
                300,
                "busy",
                True,
            )
            assert (row["workload"], row["probe_version"]) == (workload.name, "simulated 3")
            assert (row["ended_by"], dict(row["versions"])["driver"]) == ("complete", "simulated")
            if is_gone:
                assert (row["status"], row["status_detail"], row["sm_clock_mhz"]) == ("lost", "the GPU was lost", None)
                assert (row["mem_clock_mhz"], row["temperature_c"], row["power_w"]) == (None, None, None)
                assert (uuid, "time", "ms", 0) not in figures
                continue
            assert [figures[uuid, "time", "ms", repeat] for repeat in range(5)] == pytest.approx(expected_ms.tolist())
            assert figures[uuid, "wrong_elements", "elements", 0] == wrong[gpu]
            assert row["status"] == ("wrong_result" if wrong[gpu] else "ok")
            assert (row["mem_clock_mhz"], row["sm_clock_mhz"]) == (V100.memory_clock_mhz, steady.clock_mhz[gpu] // 1)
            assert row["temperature_c"] == round(float(steady.temperature_c[gpu]))
            power_w = {"zero_power": 0.0, "stuck_sensor": aged.idle().reported_power_w[gpu]}.get(kind or "")
            if power_w is None:
                assert 0 < abs(row["power_w"] - steady.reported_power_w[gpu]) < 5 * 0.3
            else:
                assert row["power_w"] == pytest.approx(power_w)
    assert {"gone", "stuck_sensor", "zero_power", "wrong_results"} <= kinds_seen


def test_the_same_campaign_is_one_whose_options_are_the_same(tmp_path: Path) -> None:
    store, usual = new_store(tmp_path / "S"), Fleet.draw(V100, 4, 1, faults=0)
    other = Fleet.draw(V100, 4, 1, POPULATIONS["longhorn"], faults=0)
    names = [
        run_steady(store, usual, find_load("gemm")).campaign,
        run_steady(store, usual, find_load("gemm"), runs=2).campaign,
        run_steady(store, usual, find_load("gemm"), every_s=90_000.0).campaign,
        run_steady(store, other, find_load("gemm")).campaign,
        (load := run_load(store, usual, TURNS, hours=0.01)).campaign,
        run_load(store, usual, TURNS, hours=0.02, interval_s=0.5).campaign,
    ]
    assert len(set(names)) == len(names)
    assert (load.measured, load.rows["telemetry"]) == (False, 4 * 36)
    again = run_load(store, usual, TURNS, hours=0.01)
    assert (again.campaign, again.before, again.rows, again.measured) == (load.campaign, True, {}, False)
    query = f"select distinct asked from campaigns where campaign = '{names[3]}'"
    assert dict(rows(store, query)[0]["asked"])["population"] == "longhorn"
    asked = dict(rows(store, f"select distinct asked from campaigns where campaign = '{names[5]}'")[0]["asked"])
    assert (asked["hours"], asked["interval_s"], asked["gpus"], asked["load"]) == ("0.02", "0.5", "4", "sgemm")


def test_the_longest_spans_and_the_shortest_steps_can_be_simulated() -> None:
    """What lies beyond is refused: tests/cli/test_sim.py."""
    refuse_time(8784.0, 0.02)
    refuse_time(0.01, 36.0)
    refuse_steady(V100, find_load("gemm"), 100, 366 * 86_400.0)
    refuse_steady(V100, find_load("gemm"), 1, 438.0)


@pytest.mark.long
def test_steady_and_stepped_campaigns_agree(campaign: tuple[Store, Fleet, Stored], tmp_path: Path) -> None:
    _, fleet, _ = campaign
    load = replace(find_load("gemm"), busy_s=290.0)
    stepped, steady = new_store(tmp_path / "A"), new_store(tmp_path / "B")
    run_load(stepped, fleet, load, hours=0.1)
    run_steady(steady, fleet, load, runs=3)
    query = "select gpu, median(value) v from measurements where figure = 'time' and status = 'ok' group by gpu"
    a, b = ({row["gpu"]: row["v"] for row in rows(store, query)} for store in (stepped, steady))
    common = sorted(set(a) & set(b))
    assert len(common) >= 21
    assert [a[gpu] for gpu in common] == pytest.approx([b[gpu] for gpu in common], rel=0.01)
