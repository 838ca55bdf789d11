"""What happened to a GPU: changes of driver, firmware and place, and its events."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from whorl.analysis.one_gpu.happened import events, lost_since, marks
from whorl.store import Store
from whorl.store.events import Event, event_rows
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import OUT_OF_USE, EventKind

DAY = datetime(2026, 9, 1)  # noqa: DTZ001  times in tables have no zone


def seen(store: Store, day: float, **columns: Any) -> None:
    row = {"cluster": ["c"], "gpu": ["g"], "uuid": ["g"], "first_seen": [DAY + timedelta(days=day)]}
    rows = row | {name: [value] for name, value in columns.items()}
    store.append({"gpus": arrow_rows("gpus", rows)}, f"seen-{day}-{len(columns)}")


def happened(store: Store, *events: Event) -> None:
    store.append({"events": pa.Table.from_batches([event_rows(events, cluster="c")])}, f"events-{len(events)}")


def event(day: float, kind: EventKind, gpu: str | None = "g", says: str = "it happened", **more: Any) -> Event:
    at = (DAY + timedelta(days=day) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    return Event(kind, gpu, says, at * 1000, **more)


def test_a_change_of_driver_firmware_or_place_is_a_mark(store: Store) -> None:
    seen(store, 0, driver="535", vbios="a", node="n1", slot=0, power_limit_mw=300_000)
    seen(store, 1, driver="535", vbios="a", node="n1", slot=0, power_limit_mw=300_000)
    seen(store, 2, driver="550", node="n1")
    seen(store, 3, driver="550", vbios="b", node="n2", slot=3, power_limit_mw=250_000)
    assert [(event.at - DAY, event.what, event.says) for event in marks(store, "c", ["g"])] == [
        (timedelta(2), "driver", "driver 535 to 550"),
        (timedelta(3), "vbios", "VBIOS a to b"),
        (timedelta(3), "power_limit_w", "power limit, W 300 to 250"),
        (timedelta(3), "place", "moved from n1/0 to n2/3"),
    ]


def test_events_are_those_of_the_gpu_and_of_its_node_the_newest_first(store: Store) -> None:
    happened(
        store, event(0, EventKind.APPEARED), event(1, EventKind.XID), event(2, EventKind.DRIVER_GONE, None, node="n1"),
        event(3, EventKind.XID, "other", node="n1"),
    )  # fmt: skip
    gpu_events = events(store, "c", ["g"], "n1")
    assert [event.kind for event in gpu_events] == ["driver_gone", "xid", "appeared"]
    assert gpu_events[1].meaning.startswith("the driver told of an error")
    assert [event.kind for event in events(store, "c", ["g"])] == ["xid", "appeared"]


@pytest.mark.parametrize("kind", OUT_OF_USE)
def test_a_gpu_is_lost_until_it_comes_back(store: Store, kind: EventKind) -> None:
    happened(store, event(1, kind))
    assert lost_since(events(store, "c", ["g"])) == DAY + timedelta(1)
    happened(store, event(2, EventKind.RETURNED), event(2.1, EventKind.XID))
    assert lost_since(events(store, "c", ["g"])) is None
    assert lost_since([]) is None
