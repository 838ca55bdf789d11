"""`whorl energy` on the sample fleet: every figure again by plain SQL, and what people and programs see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.simulation.sample import write_sample
from whorl.store import Store
from whorl.store.power_sensors import MEASURED_BOARDS
from whorl.tests.analysis.energy.stored import NOON, S, at, gpu, job, readings, rows, store_of
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal
from whorl.tests.cli.energy_answers import document, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store

pytestmark = pytest.mark.usefixtures("stores_stay_open")

SHIFT_S = 1 / 3
"""How much earlier than it is read the middle of a reading is, where it may be a mean of 1 s or none."""

# The rules of docs/energy.md in plain SQL. `pieces`: what each job used of each GPU, and what no job used.
BOOKS = f"""
with reading as (  -- at its time: what it tells was drawn before
    select gpu, epoch_ns(ts) as t1, power_mw / 1e3 + coalesce(
        (lead(power_mw) over w - power_mw) / 1e3 * {SHIFT_S} * 1e9 / (epoch_ns(lead(ts) over w) - epoch_ns(ts)), 0
    ) as watt from telemetry where power_mw is not null window w as (partition by gpu order by ts)
), step as (
    select gpu, t1, lead(t1) over w as t2, watt, lead(watt) over w as next
    from reading window w as (partition by gpu order by t1)
), quiet as (  -- without work, as those beside it are
    select *, utilization = 0 and lag(utilization) over w = 0 and lead(utilization) over w = 0
        and abs(power_mw - lag(power_mw) over w) <= 0.05 * lag(power_mw) over w + 2000
        and abs(lead(power_mw) over w - power_mw) <= 0.05 * power_mw + 2000 as idle
    from telemetry where power_mw is not null window w as (partition by gpu order by ts)
), gpu as (
    select gpu, min(epoch_ns(ts)) as first, max(epoch_ns(ts)) as last, median(power_mw) filter (idle) / 1e3 as idle_w
    from quiet group by gpu
), job as (
    select job_id, user, account, gpu, share, epoch_ns(began) as a, epoch_ns(ended) as b from jobs_now
), held as (
    select gpu, min(a) as a, max(b) as b from job group by gpu
), free as (
    select gpu, first as a, held.a as b from gpu join held using (gpu)
    union all select gpu, held.b, last from gpu join held using (gpu)
), minute as (  -- of the time that nobody had the GPU
    select gpu, greatest(a, mark) as a, least(b, mark + 60000000000) as b
    from free, unnest(range(a // 60000000000 * 60000000000, b, 60000000000)) as m(mark)
), span as (
    select gpu, a, b from job union select gpu, a, b from minute
), used as (
    select gpu, a, b, sum(
        (2 * watt + (next - watt) * (greatest(t1, a) + least(t2, b) - 2 * t1) / (t2 - t1)) / 2
        * (least(t2, b) - greatest(t1, a)) / 1e9
    ) as joules
    from span join step using (gpu) where t1 < b and t2 > a group by all
), known as (
    select *, (b - a) / 1e9 as lasted, least(idle_w * (b - a) / 1e9, joules) as idle
    from used join gpu using (gpu)
), pieces as (
    select 'job' as kind, job_id, user, account, gpu, a, b, share * lasted as gpu_s, share * idle as idle_j,
        share * idle + (joules - idle) * share / sum(share) over (partition by gpu, a, b) as energy_j
    from job join known using (gpu, a, b)
    union all
    select if(joules <= (1.15 * idle_w + 5) * lasted, 'idle', 'unattributed'), null, null, null, gpu, a, b, lasted,
        idle, joules
    from minute join known using (gpu, a, b)
)
"""


@pytest.fixture(scope="module")
def sampled(built_once: BuiltOnce) -> Path:
    """A store of the sample's jobs and of its stream of nvidia-smi."""

    def build(folder: Path) -> None:
        files = [str(path) for path in write_sample(folder / "files").files if path.stem in ("nvidia-smi", "jobs")]
        new_store(folder / "store")
        done = CliRunner().invoke(cli, ["import", "--store", str(folder / "store"), "--cluster", "sample", *files])
        assert done.exit_code == 0, done.output

    return built_once("sample-energy", build) / "store"


def sql(store: Path, query: str) -> list[dict[str, Any]]:
    return list(Store.open(store).sql(query).to_pylist())


def test_energy_by_gpu_is_the_integral_of_its_power(sampled: Path) -> None:
    reply = document("--store", str(sampled), "--by", "gpu")
    assert reply["schema"] == "whorl.energy/1"
    settings_text = """
        select gpu, sum((watt + next) / 2 * (t2 - t1) / 1e9) as joules from step where t2 is not null group by gpu
    """
    again = {row["gpu"]: row["joules"] for row in sql(sampled, BOOKS + settings_text)}
    assert {row["gpu"]: row["energy_j"] for row in reply["rows"]} == pytest.approx(again, rel=1e-9)
    parts = """
        select gpu, sum(energy_j) filter (kind = 'job') as attributed_j, sum(energy_j) filter (kind = 'idle') as
        idle_time_j, coalesce(sum(energy_j) filter (kind = 'unattributed'), 0) as unattributed_j, sum(idle_j) as idle_j
        from pieces group by gpu
    """
    rows = {row["gpu"]: row for row in reply["rows"]}
    for row in sql(sampled, BOOKS + parts):
        expected = rows[row.pop("gpu")]
        assert {name: expected[name] for name in row} == pytest.approx(row, rel=1e-9)
    for row in reply["rows"]:
        assert row["low_j"] < row["energy_j"] < row["high_j"]
        assert row["method"] == "power"
        assert row["reason"] is None
        assert row["measured_s"] == pytest.approx(row["gpu_s"]) == pytest.approx(row["duration_s"])
    assert reply["total"]["energy_j"] == pytest.approx(sum(again.values()), rel=1e-9)


@pytest.mark.parametrize("by", sample(["job", "account", "user"], short=1))
def test_energy_of_jobs_and_people_again_by_sql(sampled: Path, by: str) -> None:
    key = "job_id" if by == "job" else by
    reply = document("--store", str(sampled), "--by", by)
    again = sql(
        sampled,
        f"{BOOKS} select kind, {key}, sum(energy_j) as energy_j, sum(idle_j) as idle_j, sum(gpu_s) as gpu_s, "
        f"count(distinct gpu) as gpus from pieces group by all",
    )
    rows = {(row["kind"], row[key]): row for row in reply["rows"]}
    assert len(rows) == len(reply["rows"]) == len(again)
    for row in again:
        expected = rows[row.pop("kind"), row.pop(key)]
        assert {name: expected[name] for name in row} == pytest.approx(row, rel=1e-9)
        assert expected["low_j"] < expected["energy_j"] < expected["high_j"]
        assert expected["measured_s"] == pytest.approx(row["gpu_s"])
        assert expected["idle_share"] == pytest.approx(row["idle_j"] / row["energy_j"])
    assert reply["total"]["energy_j"] == pytest.approx(sum(row["energy_j"] for row in again), rel=1e-9)


@pytest.mark.long
def test_rows_of_several_clusters_can_be_told_apart(tmp_path: Path) -> None:
    """Nodes, users and numbers of jobs recur from one cluster to the next."""
    store = tmp_path / "S"
    readings, jobs = tmp_path / "readings.csv", tmp_path / "jobs.csv"
    lines = "".join(f"2026-11-01 10:00:{second:02},n1/0,n1,200,100\n" for second in range(60))
    readings.write_text(f"timestamp,board,node,power.draw [W],utilization.gpu [%]\n{lines}")
    jobs.write_text("job_id,user,gpu,began,ended\n7,ann,n1/0,2026-11-01 10:00:10,2026-11-01 10:00:40\n")
    for cluster in ("north", "south"):
        for line, file in (("import --map board=gpu", readings), ("import", jobs)):
            done = calling.whorl(line, "--store", store, "--cluster", cluster, file)
            assert done.exit_code == 0, done.stderr
    for line in sample(("--by job", "--by user", "--by gpu", "--by node", "reconcile"), short=2):
        command = (f"energy {line} --store", store)
        printed = [row.split() for row in calling.whorl(*command).stdout.splitlines()]
        head = next(place for place, words in enumerate(printed) if words[1:2] == ["cluster"])
        assert sorted(words[1] for words in printed[head + 1 : head + 3]) == ["north", "south"], printed
        assert " cluster " not in calling.whorl(*command, "--cluster", "south").stdout


# -- bill --------------------------------------------------------------------------------------------------------------
# Grams, money and intervals of `whorl energy` on GPUs of steady power, again by plain SQL.


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


# -- problems ----------------------------------------------------------------------------------------------------------
# `whorl energy` where there is no honest figure: a reason for each, and a row of `reconcile`.


@pytest.fixture(scope="module")
def bad(built_once: BuiltOnce) -> Path:
    """One GPU read for ten minutes with a hole of five, one that nobody read, and jobs with everything wrong."""

    def build(folder: Path) -> None:
        seconds = [*range(150), *range(450, 600)]
        store_of(
            folder / "store",
            [gpu("GPU-read"), gpu("GPU-unread")],
            [readings("GPU-read", seconds, [50.0 if s < 20 else 200.0 for s in seconds])],
            [
                job("whole", "GPU-read", 20, 140),
                job("hole", "GPU-read", 160, 440),
                job("unread", "GPU-unread", 0, 600),
                job("unknown", "GPU-of-nobody", 0, 600),
                job("backward", "GPU-read", 500, 400),
                job("crowd", "GPU-read", 100, 140),
                job("nowhere", None, 460, 480),
                job("running", "GPU-read", 560, None, state="RUNNING"),
            ],
        )

    return built_once("bad-energy", build) / "store"


@pytest.mark.long
def test_each_job_without_an_honest_figure_has_a_reason_and_no_energy(bad: Path) -> None:
    rows = {row["job_id"]: row for row in document("--store", str(bad))["rows"] if row["kind"] == "job"}
    reasons = {name: row["reason"] for name, row in rows.items() if row["energy_j"] is None}
    assert set(reasons) == {"hole", "unread", "unknown", "backward", "nowhere"}
    assert reasons["nowhere"] == "GPU not known"
    assert reasons["unread"] == reasons["unknown"] == "no telemetry"
    assert reasons["backward"] == "ends before it begins"
    for name in reasons:
        assert {rows[name][key] for key in ("low_j", "high_j", "co2e_g", "cost")} == {None}
    for name in ("whole", "crowd", "running"):
        assert rows[name]["reason"] is None
        assert rows[name]["energy_j"] > 0
    printed = whorl("--store", str(bad), "--by", "user").stdout
    assert "; only 3 of 8 jobs: " in printed
    assert rows["running"]["ended"] is None
    assert rows["running"]["energy_j"] == pytest.approx(200 * 39, rel=1e-6)  # up to the last reading


def test_what_is_wrong_is_a_sentence_and_a_row(bad: Path) -> None:
    answer = json.loads(whorl("reconcile", "--store", str(bad), "--json").stdout)
    assert answer["balances"] is True
    problems = {(row["problem"], row["job_id"]): row["sentence"] for row in answer["problems"]}
    assert ("gap", None) in problems
    assert "job backward" in problems["ends before it begins", "backward"]
    assert "job unread" in problems["no telemetry of the GPU", "unread"]
    assert "node n1 job nowhere" in problems["GPU not known", "nowhere"]
    assert "GPU-of-nobody" in problems["unknown GPU", "unknown"]
    [overlap] = [text for (problem, _), text in problems.items() if problem == "overlap"]
    assert "job whole and job crowd" in overlap or "job crowd and job whole" in overlap
    printed = whorl("reconcile", "--store", str(bad)).stdout
    assert "the books balance" in printed
    for problem in {problem for problem, _ in problems}:
        assert f"\n{problem}  " in printed


def test_a_job_that_the_import_refused_says_so(tmp_path: Path) -> None:
    reply = {"ts": at(5), "cluster": "c", "kind": "job_refused", "job_id": "5", "detail": "job 5 is not stored: line 7"}
    store_of(tmp_path / "S", [gpu("GPU-a")], [readings("GPU-a", range(9), [50.0] * 9)], [], [reply])
    result = whorl("--store", str(tmp_path / "S"), "--job", "5")
    assert result.exit_code == 2
    assert "job 5 is not stored: line 7" in result.stderr
    answer = json.loads(whorl("reconcile", "--store", str(tmp_path / "S"), "--json").stdout)
    assert ["job 5 is not stored: line 7" in row["sentence"] for row in answer["problems"]] == [True]


@pytest.mark.long
def test_a_gpu_of_which_no_reading_counts_is_in_no_sum_and_is_said(tmp_path: Path) -> None:
    seconds = range(600)
    watts = [50.0 if s < 300 else 200.0 for s in seconds]
    dead = readings("GPU-dead", seconds, [0.0] * 600, quality=["power_zero"] * 600)
    jobs = [job(1, "GPU-good", 300, 599), job(2, "GPU-dead", 300, 599)]
    store_of(tmp_path / "S", [gpu("GPU-good"), gpu("GPU-dead")], [readings("GPU-good", seconds, watts), dead], jobs)
    good = {row["gpu"]: row for row in document("--store", str(tmp_path / "S"), "--by", "gpu")["rows"]}["GPU-good"]
    for by in ("node", "day"):
        answer = document("--store", str(tmp_path / "S"), "--by", by)
        for row in (answer["total"], *answer["rows"]):
            for name in ("energy_j", "low_j", "high_j", "gpus", "measured_s"):
                assert row[name] == pytest.approx(good[name], rel=1e-9), name
            assert row["gpus_no_figure"] == 1
    rows = document("--store", str(tmp_path / "S"), "--by", "user")["rows"]
    assert {row["kind"] for row in rows if row["energy_j"] is None} == {"job", "unattributed"}
    rows = {row["job_id"]: row for row in document("--store", str(tmp_path / "S"))["rows"]}
    assert (rows["2"]["energy_j"], rows["2"]["reason"], rows["2"]["co2e_reason"]) == (None, "zero watts", "no energy")
    printed = whorl("--store", str(tmp_path / "S")).stdout
    assert "readings cover 100 % of 9.98 GPU min" in printed
    assert "Not in it: 1 GPU of which no reading counts" in printed
    assert "`whorl energy reconcile --store" in printed


@pytest.mark.long
def test_a_job_that_ends_before_it_begins_leaves_all_other_figures(tmp_path: Path) -> None:
    power = readings("G", range(201), [50.0] * 20 + [200.0] * 181)
    jobs = [job("good", "G", 50, 150), job("backward", "G", 160, 60), job("moment", "G-of-nobody", 60, 60)]
    store_of(tmp_path / "S", [gpu("G")], [power], jobs)
    for by in ("user", "gpu", "day"):
        answer = document("--store", str(tmp_path / "S"), "--by", by)
        assert {row["reason"] for row in answer["rows"]} == {None}, by
        assert answer["total"]["idle_j"] == pytest.approx(50 * 200, rel=0.01)
    [ada] = [row for row in document("--store", str(tmp_path / "S"), "--by", "user")["rows"] if row["kind"] == "job"]
    assert ada["energy_j"] == pytest.approx(200 * 100, rel=1e-6)


@pytest.mark.long
def test_a_job_on_gpus_that_nobody_knows_is_answered_and_counts_no_host_or_board_twice(tmp_path: Path) -> None:
    power = readings("G", range(401), [50.0] * 100 + [200.0] * 301)
    store_of(tmp_path / "S", [gpu("G")], [power], [job("lost", None, 100, 400, node_gpus=1)])
    settings = 'zone = "DE"\nhost_w = 100\n[embodied]\nkg = 150\nyears = 5\nsource = "a report"\n'
    (tmp_path / "S" / "energy.toml").write_text(settings)
    answer = document("--store", str(tmp_path / "S"))
    [lost] = [row for row in answer["rows"] if row["kind"] == "job"]
    assert {lost[name] for name in ("energy_j", "host_j", "embodied_g", "gpus")} == {None}
    for name in ("host_j", "embodied_g"):
        assert sum(row[name] or 0 for row in answer["rows"]) == pytest.approx(answer["total"][name], rel=1e-9)
    [same] = document("--store", str(tmp_path / "S"), "--job", "lost")["rows"]
    assert same["reason"] == "GPU not known"
    assert "on GPUs that nobody knows" in whorl("--store", str(tmp_path / "S"), "--job", "lost").stdout
    assert "On GPUs that nobody knows" in whorl("quote", "--store", str(tmp_path / "S"), "--job", "lost").stdout


NONE_THEN = "in this time: it has some from 2026-11-02 12:00 to 2026-11-02 12:09 UTC"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--since 2026-11-03 --until 2026-11-02", "--until must be later than --since"),
        ("--since 2026-12-01", f"has no telemetry {NONE_THEN}"),
        ("calibrate --since 2026-12-01", f"has no telemetry {NONE_THEN}"),
        ("calibrate --cluster elsewhere --since 2026-12-01", "has no telemetry of cluster elsewhere; it has c"),
        ("quote --job whole --since 2026-12-01", f"has no telemetry of cluster c {NONE_THEN}"),
        ("--cluster elsewhere", "has no telemetry of cluster elsewhere; it has c"),
        ("excess --cluster elsewhere", "has no telemetry of cluster elsewhere; it has c"),
        ("--cluster elsewhere --job whole", "has no jobs of cluster elsewhere; it has c"),
        ("--job 9", "knows no job 9; it knows 8 jobs, such as "),
        ("quote --job 9", "knows no job 9"),
        ("--settings /nowhere.toml", "/nowhere.toml: there is no such file"),
        ("--json --csv", "--json and --csv cannot be used together"),
        ("--job whole reconcile", "--job must follow reconcile"),
        ("--by user reconcile", "--by must follow reconcile"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(bad: Path, line: str, sentence: str) -> None:
    assert sentence in refusal("energy", *line.split(), "--store", bad)


@pytest.mark.long
def test_readings_by_a_clock_that_is_centuries_ahead_are_not_counted(tmp_path: Path) -> None:
    seconds, last = range(0, 600, 5), (2**63 - 1 - NOON) / S
    reply = [readings("GPU-a", seconds, [200.0] * 120), readings("GPU-a", [last - 60, last - 30], [200.0] * 2)]
    store_of(tmp_path / "S", [gpu("GPU-a")], reply, [])
    for choice in sample([("--until", "2300-01-01"), (), ("--by", "day")], short=1):
        [row] = document("--store", str(tmp_path / "S"), *choice)["rows"]
        assert row["energy_j"] == pytest.approx(200 * 595, rel=0.01)
