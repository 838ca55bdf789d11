"""What a meter tells of events: reloads of the driver, and clocks that were set."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from whorl.store import Store
from whorl.store.events import Event, event_rows
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EventKind
from whorl.tests.analysis.energy.stored import meters

T0, S = 1_793_530_000 * 10**9, 10**9


def stored(store: Store, *events: Event) -> None:
    """Two GPUs of node n1 and one of n2, a reading a second for a minute; and events."""
    gpus, nodes = ["A", "B", "C"], ["n1", "n1", "n2"]
    rows = [(gpu, T0 + k * S, 100_000 + k) for gpu in gpus for k in range(60)]
    columns = {"gpu": [r[0] for r in rows], "ts": [r[1] for r in rows], "power_mw": [r[2] for r in rows]}
    tables = {
        "gpus": arrow_rows("gpus", {"cluster": ["c"] * 3, "gpu": gpus, "node": nodes, "slot": [0, 1, 0]}),
        "telemetry": arrow_rows("telemetry", {"cluster": ["c"] * len(rows), **columns}),
    }
    store.append(tables, "rows")
    store.append({"events": pa.Table.from_batches([event_rows(events, cluster="c")])}, "events")


def notes(
    store: Store, since_ns: int | None = None, until_ns: int | None = None
) -> dict[str, list[tuple[str, int, int]]]:
    wanted = ("driver reload", "clock step")
    return {
        meter.gpu: [(n.problem, n.began_ns, n.ended_ns) for n in meter.notes if n.problem in wanted]
        for meter in meters(store, since_ns=since_ns, until_ns=until_ns)
    }


def test_events_of_gpus_and_of_nodes_are_notes_of_their_meters(store: Store) -> None:
    stored(
        store,
        Event(EventKind.DRIVER_RELOADED, None, "it is back", T0 + 20 * S, "n1", version="550"),
        Event(EventKind.CLOCK_STEP, "C", "back", T0 + 30 * S, duration_ns=-5 * S),
        Event(EventKind.CLOCK_STEP, None, "ahead", T0 + 40 * S, "n2", duration_ns=7 * S),
        Event(EventKind.XID, "C", "XID 63", T0 + 31 * S, code=63),
    )
    reload = ("driver reload", T0 + 20 * S, T0 + 20 * S)
    back, ahead = ("clock step", T0 + 30 * S, T0 + 35 * S), ("clock step", T0 + 33 * S, T0 + 40 * S)
    assert notes(store) == {"A": [reload], "B": [reload], "C": [back, ahead]}
    assert notes(store, since_ns=T0 + 25 * S, until_ns=T0 + 35 * S) == {"A": [], "B": [], "C": [back]}


def test_a_stream_whose_clock_was_set_back_says_so_in_its_meter(store: Store, tmp_path: Path) -> None:
    stamps = [*range(30), *range(20, 50)]
    lines = [f"2023/07/14 10:12:{s:02d}.{k // 30}00, {100 + k % 7}" for k, s in enumerate(stamps)]
    (tmp_path / "a.csv").write_text("\n".join(["timestamp, power.draw [W]", *lines, ""]))
    import_file(store, tmp_path / "a.csv", Options())
    ((problem, began, ended),) = notes(store)["a"]
    assert problem == "clock step"
    assert 0 < (ended - began) / S < 12
