"""Facts: what was seen of a GPU needs no runs, no peers and no statistics."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Judgement, Kind, State
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.facts import Fact, facts
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.verdict import Gap, Measured, Quantity
from whorl.cli import cli
from whorl.dashboards.documents.evidence import because
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.hints import run_hints
from whorl.tests.probed_fleet import stored, uuids
from whorl.tests.sizes import sample


def test_what_was_seen_needs_no_runs_and_no_peers(tmp_path: Path) -> None:
    """A collector alone wrote to the store: a GPU fell off the bus, a link failed, and a GPU needs a reset."""
    store, began = Store.create(tmp_path / "S"), 1_767_225_600_000_000_000
    gpus = [f"GPU-{number}" for number in range(4)]
    identity = {"cluster": ["c"] * 4, "gpu": gpus, "uuid": gpus, "node": ["n1"] * 4, "slot": [0, 1, 2, 3]}
    happened = {
        "gpu": ["GPU-0", "GPU-0", "GPU-1", "GPU-2", "GPU-3", None],
        "kind": ["xid", "lost", "xid", "needs_reset", "xid", "xid"],
        "code": [79, None, 74, None, 31, 79],  # 31 is an error of a program
        "ts": [began + hour * 3_600_000_000_000 for hour in (0, 0, 0, 30, 0, 0)],
    }
    rows = {"cluster": ["c"] * 6, "node": ["n1"] * 6, **happened}
    store.append({"gpus": arrow_rows("gpus", identity), "events": arrow_rows("events", rows)}, "collected")
    judgement = judge(store, cluster="c")
    assert {(row.name, row.kind) for row in judgement.rows} == {
        ("n1/0", Kind.LOST), ("n1/1", Kind.FAILED), ("n1/2", Kind.FAILED)
    }  # fmt: skip
    assert [entry.why for entry in judgement.not_judged] == [Gap.NO_RUNS]
    later = judge(store, cluster="c", since=datetime(2026, 1, 2, tzinfo=UTC))
    assert [row.name for row in later.rows] == ["n1/2"]
    runs = {"run_id": ["r"], "cluster": ["c"], "gpu": ["GPU-3"], "workload": ["gemm"], "status": ["ok"]}
    store.append({"runs": arrow_rows("runs", runs)}, "measured")
    assert {row.name for row in judge(store, cluster="c").rows} == {"n1/0", "n1/1", "n1/2"}


@pytest.mark.parametrize(
    ("cards", "name"), [(["GPU-0"], "n1/0"), (["GPU-0", "MIG-0"], "n1/0"), (["GPU-0", "GPU-1"], "n1/00000000:1B:00.0")]
)
def test_an_address_means_the_only_card_that_was_seen_there(tmp_path: Path, cards: list[str], name: str) -> None:
    """A collector wrote telemetry and no runs, and a kernel log tells of an error at a PCI address."""
    store, n = Store.create(tmp_path / "S"), len(cards)
    gpus = {
        "cluster": ["c"] * n, "gpu": cards, "uuid": cards, "node": ["n1"] * n, "slot": [0] * n,
        "pci_bus_id": ["0000:1b:00.0"] * n, "first_seen": list(range(10**18, 10**18 + n)),
        "parent": ["GPU-0" if card.startswith("MIG") else None for card in cards],
    }  # fmt: skip
    event = {
        "cluster": ["c"], "node": ["n1"], "pci_bus_id": ["00000000:1B:00.0"], "kind": ["xid"], "code": [74],
        "ts": [10**18],
    }  # fmt: skip
    telemetry = {"cluster": ["c"] * n, "gpu": cards, "ts": [10**18] * n, "power_mw": [100_000] * n}
    tables = {"gpus": arrow_rows("gpus", gpus), "events": arrow_rows("events", event)}
    store.append({**tables, "telemetry": arrow_rows("telemetry", telemetry)}, "collected")
    assert [(row.name, row.kind) for row in judge(store).rows] == [(name, Kind.FAILED)]
    explained = CliRunner().invoke(cli, ["explain", name, "--store", str(store.root)])
    assert "The driver reported: XID 74: NVLink." in explained.output


@pytest.mark.long
def test_facts_without_runs_are_reported(tmp_path: Path) -> None:
    """A lost GPU of which a log tells the PCI address alone, and no run: every verb that is asked answers."""
    store = Store.create(tmp_path / "S")
    rows = {"cluster": ["c"], "node": ["n1"], "pci_bus_id": ["00000000:02:00.0"], "kind": ["lost"], "ts": [10**18]}
    store.append({"events": arrow_rows("events", rows)}, "collected")
    name, page = "n1/00000000:02:00.0", tmp_path / "report.html"

    def answer(*arguments: str) -> str:
        done = CliRunner().invoke(cli, [*arguments, "--store", str(store.root)])
        assert done.exit_code == 0, done.output
        return done.output

    judged = answer("verdicts")
    assert name in judged
    run_hints(judged)
    assert "It fell off the bus" in answer("explain", name)
    report = answer("report", "--out", str(page))
    assert name in report
    assert name in page.read_text()
    assert "variability" not in report  # it needs runs
    assert "median time" not in report, "a table without rows"
    assert "should be healthy" not in report, "no statistics named anything"
    assert "whorl verdicts" in answer("verdicts", "fingerprint")


def test_counters_of_the_memory_are_facts(tmp_path: Path) -> None:
    """Telemetry alone: a row could not be remapped, and ECC could not correct three errors."""
    store = Store.create(tmp_path / "S")
    columns = {
        "cluster": ["c"] * 4, "gpu": ["GPU-0", "GPU-0", "GPU-1", "GPU-2"],
        "ts": [10**18, 10**18 + 30 * 3600 * 10**9, 10**18, 10**18], "row_remap_failed": [None, 1, 0, None],
        "ecc_uncorrected": [None, None, 0, 3],
    }  # fmt: skip
    store.append({"telemetry": arrow_rows("telemetry", columns)}, "collected")
    rows = {row.name: row for row in judge(store).rows}
    assert {(name, row.kind) for name, row in rows.items()} == {
        ("GPU-0", Kind.MEMORY_ERRORS), ("GPU-2", Kind.MEMORY_ERRORS)
    }  # fmt: skip
    assert "a row could not be remapped" in because(rows["GPU-0"])
    assert "3 errors that ECC could not correct" in because(rows["GPU-2"])


# -- planted -----------------------------------------------------------------------------------------------------------
# Faults planted in a simulated fleet whose runs lie in a store: what was seen, channels, causes, and verdicts.


SEEN = {"stuck_sensor": Kind.SENSOR, "wrong_results": Kind.WRONG, "lost": Kind.LOST}
NAMED = {"brake": Kind.BRAKED, "pinned": Kind.PINNED, "slow_memory": Kind.SLOW, **SEEN}
"""The verdict of each kind of fault that one campaign shows beyond doubt."""


def kinds_of(judgement: Judgement, campaign: Probed) -> dict[str, set[Kind]]:
    return {
        gpu: {row.kind for row in row_of_gpu}
        for gpu, row_of_gpu in judgement.by_key(campaign.gpus, batches=True).items()
    }


def test_power_that_stands_still_is_seen_without_telemetry(tmp_path: Path) -> None:
    """Five runs of different load have the same power to the milliwatt: its power then explains nothing."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("stuck_sensor",), telemetry=False)
    campaign = probed(Store.open(store.root))
    evidence = Evidence.of(campaign)
    [fact] = evidence.facts()
    assert uuids(fleet) == {fact.gpu: "stuck_sensor"}
    assert fact.kind == Kind.SENSOR
    assert [value.figure for value in fact.measured] == [Quantity.STILL_POWER, Quantity.MOVED_POWER]
    assert len(fact.runs) == 4
    assert evidence.by_gpu.filter(pl.col("gpu") == fact.gpu)["power"].is_null().all()


@pytest.mark.parametrize("seed", sample([3, 1], short=1))
def test_every_kind_of_fault_has_its_verdict_and_no_healthy_gpu_has_any(tmp_path: Path, seed: int) -> None:
    store, fleet = stored(tmp_path / "s", 128, seed, kinds=tuple(NAMED))
    campaign, planted = probed(store), uuids(fleet)
    judgement = judge(store, campaign=campaign.campaign)
    kinds = kinds_of(judgement, campaign)
    assert kinds.keys() == planted.keys()
    for gpu, kind in planted.items():
        assert NAMED[kind] in kinds[gpu], kind
    assert {row.state for row in judgement.rows} == {State.SUSPECTED}, "one sitting confirms nothing"
    assert [row.kind for row in judgement.rows[:2]] == [Kind.LOST, Kind.WRONG]
    assert all((row.figure == "") is (row.kind in SEEN.values()) for row in judgement.rows)
    timed = [row.timed for row in judgement.rows if row.kind not in SEEN.values()]
    assert timed == sorted(timed, reverse=True), "what costs time comes before what is only warm"


def test_retired_pages_and_losses_are_told_with_what_the_store_has_of_them(tmp_path: Path) -> None:
    """No run shows a loss between two runs: the last good one before it does. No run shows a retired page."""
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    campaign = probed(store)
    lost, retired = campaign.gpus["gpu"][3], campaign.gpus["gpu"][7]
    own_rows = campaign.sound.filter(pl.col("gpu") == lost).sort("began")
    at = own_rows["began"].cast(pl.Datetime("ns"))[2]
    rows = [
        {"ts": at, "gpu": lost, "node": None, "kind": "lost", "code": None, "detail": "gone"},
        {"ts": at, "gpu": retired, "node": None, "kind": "xid", "code": 63, "detail": "retired"},
    ]
    frame = pl.DataFrame(rows, schema=campaign.events.schema)

    def seen(gpu: str, runs: pl.DataFrame) -> Fact:
        [fact] = [fact for fact in facts(replace(campaign, events=frame, runs=runs), {}) if fact.gpu == gpu]
        return fact

    errors = seen(retired, campaign.runs)
    assert (errors.kind, errors.first_seen, errors.runs) == (Kind.MEMORY_ERRORS, frame["ts"][1], ())
    assert errors.measured == (Measured(Quantity.XID, 63, n=1),)
    gone = seen(lost, campaign.runs)
    assert (gone.kind, gone.runs) == (Kind.LOST, (own_rows["run_id"][1],))
    assert gone.measured[1].text == own_rows["workload"][1]
    never = seen(lost, campaign.runs.filter(pl.col("gpu") != lost))
    assert (never.runs, never.measured[1]) == ((), Measured(Quantity.LAST_GOOD_RUN))
