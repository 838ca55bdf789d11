"""The report's section about energy: the figures of `whorl energy`, where a store has readings, and text only."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from whorl.analysis.energy.answers import summary
from whorl.dashboards.document import Document, Section
from whorl.dashboards.documents.books import summary_section
from whorl.dashboards.html import page
from whorl.dashboards.report import _energy
from whorl.store import Store
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.stores import new_store

HOSTILE = "<img src=x onerror=alert(1)>"
_SECONDS = [10.0 * one for one in range(360)]
_WATTS = [250.0 if 600 <= one < 2400 else 50.0 for one in _SECONDS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two GPUs for an hour, one with a job of somebody whose name is HTML, and a zone and a price."""
    path = tmp_path_factory.mktemp("report-energy") / "s"
    read = [readings(name, _SECONDS, _WATTS) for name in "ab"]
    store = store_of(path, [gpu("a"), gpu("b")], read, [job(1, "a", 600, 2400, user=HOSTILE)])
    (path / "energy.toml").write_text('zone = "DE"\nprice = 0.2\ncurrency = "EUR"\n')
    return store


def _said(section: Section) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", page(Document("t", [section])).split("<script")[0])).replace("\u00a0", " ")


@pytest.mark.long
def test_it_is_there_only_where_something_was_metered(store: Store, tmp_path: Path) -> None:
    assert _energy(store, "c", None) is not None
    assert _energy(store, "elsewhere", None) is None
    assert _energy(new_store(tmp_path / "empty"), "c", None) is None
    nothing = store_of(tmp_path / "zero", [gpu("a")], [readings("a", range(99), [0.0] * 99)], [])
    assert _energy(nothing, "c", None) is None, "a sensor that reads 0 W measures nothing"


@pytest.mark.long
def test_without_jobs_it_is_by_day_only(tmp_path: Path) -> None:
    alone = store_of(tmp_path / "a", [gpu("a")], [readings("a", range(99), [200.0] * 99)], [])
    section = summary_section(summary(alone))
    assert "No job is known in this time" in _said(section)
    titles = [table.title for table in Document("t", [section]).tables()]
    assert "Energy by day" in titles
    assert "Energy by user" not in titles
