"""`whorl energy` on the sample fleet: every figure again by plain SQL, and what people and programs see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.simulation.sample import write_sample
from whorl.store import Store
from whorl.tests.cli import calling
from whorl.tests.cli.energy_answers import document
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
