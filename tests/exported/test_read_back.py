"""What `whorl export prometheus --dcgm-names` writes, the backend `prometheus` reads: the same numbers come back."""

from __future__ import annotations

from pathlib import Path

from whorl.collectors.backend import Status
from whorl.collectors.exporter.page import PageLimits, PageReader
from whorl.dashboards.exported.exporter import Exporter, Settings, page
from whorl.store.metrics import METRICS
from whorl.store.schema import arrow_rows
from whorl.tests.exported.rows import EVERY, ago, batch, journal_of
from whorl.tests.exporter import uuid
from whorl.tests.stores import new_store

POSSIBLE = {m.name: 40 + row for row, m in enumerate(METRICS) if m.unit in ("%", "degC")}  # the others may be 1000


def test_numbers_come_back_in_their_columns(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    who = {"cluster": ["c"], "gpu": [uuid(0)], "uuid": [uuid(0)], "node": ["n1"], "model": ["H100"]}
    store.append({"gpus": arrow_rows("gpus", who)}, "gpus")
    values = EVERY | POSSIBLE
    exporter = Exporter(store, Settings(600.0, dcgm_names=True))
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(0), "gpu": uuid(0), **values}]))
        exporter.refresh()
        text = page(exporter.series())
    reader = PageReader(PageLimits())
    numbers = reader.read(text).numbers[uuid(0)]
    row = reader.devices[uuid(0)].row
    assert (row["node"], row["model"]) == ("n1", "H100")
    read = {METRICS[row].name: number.value for row, number in numbers.items() if number.status == Status.OK}
    assert read == {m.name: values[m.name] for m in METRICS if m.prometheus}
