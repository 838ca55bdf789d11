"""Facts: what was seen of a GPU needs no runs, no peers and no statistics."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.analysis.verdicts import Kind
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.verdict import Gap
from whorl.cli import cli
from whorl.dashboards.documents.evidence import because
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.hints import run_hints


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
    assert [one.why for one in judgement.not_judged] == [Gap.NO_RUNS]
    later = judge(store, cluster="c", since=datetime(2026, 1, 2, tzinfo=UTC))
    assert [row.name for row in later.rows] == ["n1/2"]
    runs = {"run_id": ["r"], "cluster": ["c"], "gpu": ["GPU-3"], "workload": ["gemm"], "status": ["ok"]}
    store.append({"runs": arrow_rows("runs", runs)}, "measured")
    assert {row.name for row in judge(store, cluster="c").rows} == {"n1/0", "n1/1", "n1/2"}


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
