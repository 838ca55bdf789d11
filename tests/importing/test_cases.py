"""The small inputs of ../shared/cases that were once read wrong, with the answers that their EXPECTED states."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Report, import_file

CASES = Path(__file__).parents[3] / "shared" / "cases"
EVENTS = "select kind, gpu, node, cluster, strftime(ts, '%Y-%m-%d %H:%M:%S.%g') as at from events order by ts, gpu"
GPUS = "select name, node from gpus_now where name is not null order by name"


def read(store: Store, place: str, **options: object) -> Report:
    path = CASES / place
    if not path.exists():
        pytest.skip(f"{path} is not there: the cases are not part of the project")
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in store.sql(query).to_pylist()]


def test_gpus_of_two_nodes_at_the_same_addresses(store: Store) -> None:
    for node in ("n1", "n2", "n3"):
        read(store, f"csv-busid-two-nodes/{node}/gpu.csv", node=node)
    assert rows(store, "select node, count(distinct gpu) from gpus group by 1 order by 1") == [
        ("n1", 2), ("n2", 2), ("n3", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "kept", "lost"),
    [
        ("csv-driver-mismatch-overnight", 60, []),
        ("csv-lost-majority", None, ["10:00:02.123"]),
        ("csv-lost-midstream", None, ["10:00:01.125"]),
        ("csv-lost-then-index", None, ["10:00:01.125"]),
        ("csv-uuid-na", 2, []),
    ],
)
def test_streams_of_gpus_that_are_lost(case: str, kept: int | None, lost: list[str], store: Store) -> None:
    report = read(store, f"{case}/in.csv", node="n1")
    assert [str(row[-1])[11:] for row in rows(store, EVENTS) if row[0] == "lost"] == lost
    assert kept in (None, rows(store, "select count(power_mw) from telemetry")[0][0])
    expected = ("it is no row but a message", "it is the header line again")
    assert [reason for reason in report.refusals if not reason.startswith(expected)] == []
    assert not [row for row in rows(store, "select distinct gpu from gpus") if "lost" in str(row[0]).lower()]


def test_a_board_that_is_lost_in_xml(store: Store) -> None:
    read(store, "xml-gpu-lost/in.xml", node="n1")
    assert rows(store, "select count(*) from gpus_now") == [(1,)]
    assert rows(store, "select kind, node, pci_bus_id from events") == [("lost", "n1", "00000000:02:00.0")]


@pytest.mark.parametrize(
    ("place", "gpus"),
    [
        ("nvbandwidth-multinode/in.txt", ["nvb-worker-0/0", "nvb-worker-0/1", "nvb-worker-1/0", "nvb-worker-1/1"]),
        ("nvbandwidth-text-host-line/in.txt", ["gpu-n017/0", "gpu-n017/1"]),
    ],
)
def test_the_hosts_of_nvbandwidth(place: str, gpus: list[str], store: Store) -> None:
    read(store, place, node="n1")
    assert [row[0] for row in rows(store, GPUS)] == gpus


@pytest.mark.parametrize(
    "case", ["gpuburn-faulty-of-8/in.log", "gpuburn-negative-errors/in.log", "gpuburn-faulty-of-16/a.log"]
)
def test_wrong_results_of_gpu_burn_are_judged(case: str, store: Store) -> None:
    read(store, case, node="n1")
    ((kind, gpu, node, cluster, stamp),) = rows(store, EVENTS)
    assert (kind, node, cluster, str(stamp)[:10]) == ("wrong_result", "n1", "fleet", "2025-02-19")
    assert str(gpu).endswith("02" if "negative" in case else "05")
