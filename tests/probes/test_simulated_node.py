"""Probes on one node of a simulated cluster: the same GPUs for every job, and nothing is measured twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whorl.cli.answers.measuring import measure
from whorl.errors import DeviceError, InputError
from whorl.probes import simulated_node
from whorl.probes.simulated_node import choose_node, read_fleet
from whorl.store import Store

TINY = """
cluster = "tiny"
nodes = "n[01-03]"
planted = {"n02/1" = "hot=20%", "n03/0" = "lost"}
gpus = {n03 = 3}
"""
PROBES = ("gemm-fp32", "launch", "stream-triad")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return written(tmp_path, TINY)


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def job(store: Store, fleet: Path, node: str, *probes: str, campaign: str = "c", **options: Any) -> Any:
    arguments = {"suite": "quick", "neighbours": "busy", "backend": "simulated"} | options
    return measure(store, *(probes or ("launch",)), fleet=fleet, node=node, campaign=campaign, **arguments)


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.sql(query).to_pylist()]


@pytest.mark.long
def test_a_job_measures_the_gpus_of_its_own_node(store: Store, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time_ns()
    monkeypatch.setenv("SLURMD_NODENAME", "n02")
    measure(store, "launch", suite="quick", backend="simulated", fleet=fleet, campaign="c", exclusive=True)
    job(store, fleet, "n03")
    node_of = {gpu: (node, slot) for gpu, node, slot in rows(store, "select gpu, node, slot from gpus")}
    assert sorted(node_of.values()) == [("n02", slot) for slot in range(4)] + [("n03", slot) for slot in range(3)]
    runs = rows(store, "select gpu, cluster, epoch_ns(began) from runs where status = 'ok'")
    lost = {gpu for gpu, place in node_of.items() if place == ("n03", 0)}  # at some time: it may have run before
    assert {gpu for gpu, _, _ in runs} | lost == set(node_of)
    assert {cluster for _, cluster, _ in runs} == {"tiny"}
    assert all(began <= at < began + 3_600_000_000_000 for _, _, at in runs)
    assert {gpu for (gpu,) in rows(store, "select distinct gpu from telemetry")} | lost == set(node_of)
    truth = {node_of[gpu]: (kind, size) for gpu, kind, size in rows(store, "select gpu, kind, size_pct from truth")}
    assert {place: fault for place, fault in truth.items() if fault[0] != "ok"} == {
        ("n02", 1): ("hot", 20.0),
        ("n03", 0): ("lost", None),
    }


def test_nodes_differ_and_stay_the_same(fleet: Path) -> None:
    first, again, second = (read_fleet(fleet).node(name) for name in ("n01", "n01", "n02"))
    assert first.who == again.who
    assert not {identity.uuid for identity in first.who} & {identity.uuid for identity in second.who}
    assert [identity.name for identity in second.who] == ["n02/0", "n02/1", "n02/2", "n02/3"]
    assert first.fleet(3).silicon.voltage.tolist() == again.fleet(3).silicon.voltage.tolist()
    assert first.fleet(3).silicon.inlet_c.tolist() != again.fleet(4).silicon.inlet_c.tolist()
    assert set(first.fleet().silicon.voltage) <= set(read_fleet(fleet).drawn.silicon.voltage)
    assert first.fleet().seed != second.fleet().seed  # their runs have other noise


def test_an_interrupted_job_goes_on_where_it_was(store: Store, fleet: Path) -> None:
    done = []

    def interrupt(number: int, total: int, text: str) -> None:
        done.append(text)
        if number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(store, fleet, "n02", *PROBES, progress=interrupt)
    stored = rows(store, "select gpu, workload from runs")
    assert 0 < len(stored) < 12
    report = job(store, fleet, "n02", *PROBES).report
    assert report.skipped == len(stored)
    assert len(report.runs) == 12 - len(stored)
    assert Counter(rows(store, "select gpu, workload from runs")) == Counter(
        {(identity.uuid, probe): 1 for identity in read_fleet(fleet).node("n02").who for probe in PROBES}
    )
    assert job(store, fleet, "n02", *PROBES).report.skipped == 12


def test_campaigns_on_one_node_share_no_instant(store: Store, fleet: Path) -> None:
    for campaign in "ab":
        job(store, fleet, "n01", campaign=campaign)
    spans = rows(store, "select epoch_ns(min(began)), epoch_ns(max(ended)) from runs group by campaign order by 1")
    assert spans[0][1] <= spans[1][0]
    telemetry = rows(store, "select gpu, epoch_ns(ts) from telemetry")
    assert len(telemetry) == len(set(telemetry))
    assert rows(store, "select distinct count(*) from gpus group by gpu") == [(1,)]
    assert rows(store, "select distinct count(*) from truth group by gpu") == [(1,)]


def test_some_gpus_of_a_node_can_be_chosen(store: Store, fleet: Path) -> None:
    uuids = [identity.uuid for identity in read_fleet(fleet).node("n02").who]
    job(store, fleet, "n02", gpu=["n02/1", uuids[3]])
    assert rows(store, "select gpu from runs order by gpu") == [(gpu,) for gpu in sorted([uuids[1], uuids[3]])]
    assert rows(store, "select distinct gpu from telemetry order by 1") == [
        (gpu,) for gpu in sorted([uuids[1], uuids[3]])
    ]
    with pytest.raises(InputError, match="no GPU '7' on n02"):
        choose_node(fleet, "n02", [7])


def test_a_lost_gpu_fails_alone_and_can_be_measured_again(store: Store, fleet: Path) -> None:
    lost = read_fleet(fleet).node("n03").who[0].uuid
    first = job(store, fleet, "n03", *PROBES).report
    assert list(first.failures) == [lost]
    assert rows(store, "select distinct gpu from runs where status != 'ok'") == [(lost,)]
    assert rows(store, "select distinct gpu from events where kind = 'lost'") == [(lost,)]
    again = job(store, fleet, "n03", *PROBES).report
    assert {run.gpu for run in again.runs} == {lost}


def test_a_job_can_be_made_to_last(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    clock = SimpleNamespace(time_ns=time.time_ns, monotonic=lambda: sum(waited), sleep=waited.append)
    monkeypatch.setattr(simulated_node, "time", clock)
    fleet = written(tmp_path, TINY + "seconds_per_job = 7\n")
    job(store, fleet, "n01")
    assert sum(waited) == pytest.approx(7)
    assert len(waited) > 10
    job(store, fleet, "n01")  # nothing is left to do
    assert sum(waited) == pytest.approx(7)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster = ' '\nnodes = 'n1'", "cluster is empty: write a name, or leave the line out"),
        ("cluster = 'c'\nnodes = 'n[1-'", "pairs of brackets"),
        ("cluster = 'c'\nnodes = 'n1,n1'", "nodes names n1 twice"),
        ("cluster = 'c'\nnodes = ''", "nodes must be given"),
        ("cluster = 'c'\nnodes = 'n1'\ngpu = 3", "there is no key 'gpu'"),
        ("cluster = 'c'\nnodes = 'n1'\nseed = true", "seed must be a whole number, not True"),
        ("cluster = 'c'\nnodes = 'n1'\nmodel = 'X'", "X"),
        ("cluster = 'c'\nnodes = 'n1'\ngpus_per_node = 0", "from 1 to 1,000,000 GPUs, not 0"),
        ("cluster = 'c'\nnodes = 'n1'\ngpus = {n1 = 9}", "gpus of n1 must be from 0 to 4, not 9"),
        ("cluster = 'c'\nnodes = 'n1'\ngpus = {n2 = 1}", "gpus names 'n2'"),
        ("cluster = 'c'\nnodes = 'n1'\nplanted = {'n1/4' = 'hot'}", 'write it as "n1/0"'),
        ("cluster = 'c'\nnodes = 'n1'\nplanted = {'n1/0' = 'cold'}", "no fault 'cold'"),
        ("cluster = 'c'\nnodes = 'n1'\nseconds_per_job = -1", "from 0 to 86400"),
        ("cluster = ", "is not a TOML file"),
        ("cluster = " + "[" * 5000, "is not a TOML file"),
        ("seed = " + "9" * 5000, "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        read_fleet(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("around", ["job", "service", "nowhere"])
def test_a_cluster_without_a_name_has_that_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    """A job is told it; a service finds it in slurm.conf."""
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    if around != "nowhere":
        (tmp_path / "slurm.conf").write_text("# ClusterName=old\nSlurmUser=slurm\n clustername = Turing # ours\n")
    if around == "job":
        monkeypatch.setenv("SLURM_CLUSTER_NAME", "turing")
    name = "local" if around == "nowhere" else "turing"
    assert read_fleet(written(tmp_path, "nodes = 'n1'")).name == name
    assert read_fleet(written(tmp_path, "cluster = 'own'\nnodes = 'n1'")).name == "own"


def test_what_does_not_fit_is_refused(
    store: Store, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    with pytest.raises(InputError, match="name the node: node=NAME"):
        choose_node(fleet, None)
    with pytest.raises(InputError, match="tiny has no node 'n04': its nodes are n01, n02, n03"):
        choose_node(fleet, "n04")
    with pytest.raises(InputError, match=r"cannot read .*absent\.toml"):
        choose_node(tmp_path / "absent.toml", "n01")
    with pytest.raises(DeviceError, match="node n1 of the simulated cluster c has no GPU"):
        choose_node(written(tmp_path, "cluster = 'c'\nnodes = 'n1'\ngpus = {n1 = 0}"), "n1")
    with pytest.raises(InputError, match="fleet works only with --backend simulated"):
        job(store, fleet, "n01", backend="cuda")
    with pytest.raises(InputError, match="seed cannot be used with fleet"):
        job(store, fleet, "n01", seed=3)
    with pytest.raises(InputError, match="node works only with fleet"):
        measure(store, "launch", backend="simulated", node="n01")
