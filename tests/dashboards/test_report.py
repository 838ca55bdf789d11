"""The report of a campaign: one offline page whose facts are those of the store, and that fits a screen."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.analysis.energy.answers import summary
from whorl.analysis.fleet.side_by_side import labels, side_by_side
from whorl.analysis.spread.repeats import Belongs
from whorl.analysis.verdicts.verdict import Planted
from whorl.cli.answers.advice import Advisor
from whorl.dashboards.app.brush import choose
from whorl.dashboards.app.placement import PAGE
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.state import State
from whorl.dashboards.document import Document, Section, Table
from whorl.dashboards.documents.books import summary_section
from whorl.dashboards.documents.fleet import JudgedFleet, headline, newest_readings
from whorl.dashboards.html import page
from whorl.dashboards.report import Looked, _energy, look, next_commands, report_document
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.analysis.longhorn import needs_longhorn
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn
from whorl.tests.dashboards.browser import needs_browser, rendered
from whorl.tests.dashboards.test_html import unpacked
from whorl.tests.probed_fleet import PROBES, stored, uuids
from whorl.tests.stores import new_store

KINDS = ("brake", "pinned", "slow_memory", "stuck_sensor", "wrong_results", "lost")


Faulty = tuple[Store, dict[str, str], Looked, str]
"""A store with faults of every kind, what was planted, and its page."""


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "\n", page.split("<script")[0]))


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whorl.dashboards.report.REPLICATES", 50)
        yield


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, quick: None) -> Faulty:
    store, fleet = stored(tmp_path_factory.mktemp("faulty") / "s", 64, 3, kinds=KINDS)
    looked = look(store)
    kinds = {gpu: str(rows[0].kind) for gpu, rows in looked.verdicts.items()}
    planted = [Planted(gpu, kind, kinds.get(gpu, "")) for gpu, kind in uuids(fleet).items()]
    return store, uuids(fleet), looked, looked.page(planted=planted)


def test_the_page_opens_with_the_three_answers_and_says_what_the_store_holds(faulty: Faulty) -> None:
    store, planted, looked, page = faulty
    text = text_of(page)
    runs = store.arrow("runs")
    ok = sum(status == "ok" for status in runs["status"].to_pylist())
    expected = (
        f"64 simulated V100-SXM2 GPUs on 16 nodes ran {len(PROBES)} probes in campaign made-1: {len(runs)} runs, "
    )
    assert f"{expected}{ok} of them valid." in text
    assert f"{len(planted)} of 64 GPUs stand out. Nothing was found about the other {64 - len(planted)} GPUs." in text
    titles = re.findall(r"<h2>([^<]*)</h2>", page)
    assert titles[:5] == ["Which GPUs", "Why", "What to do", "Too small to see, or not judged", "Now"]
    assert "What the words mean" in titles[4:]
    for uuid in planted:
        assert looked.names[uuid] in text
    assert f"{len(planted)} of {len(planted)} planted faults found; healthy GPUs that were named: none." in text
    assert "Left out of the times: 2 runs, as their results were wrong (1 of gemm-fp32, 1 of pagerank)." in text
    assert "Not compared because they measure no time: idle." in text


def test_medians_and_correlations_have_intervals_and_the_slowest_gpu_has_none(faulty: Faulty) -> None:
    looked = faulty[2]
    rows = {row.workload: row for row in looked.spread if row.level == "gpu"}
    (table,) = [table for table in report_document(looked).tables() if table.title == "How much the GPUs differ"]
    for cells in table.rows:
        row = rows[str(cells[0])]
        assert cells[1] == row.n
        assert row.worst_over_median is not None
        assert cells[4] == pytest.approx(100 * (row.worst_over_median - 1))
        assert row.interval["worst_over_median"] is None, "no bootstrap gives the interval of a maximum"
        rho = row.correlation["sm_clock"].spearman
        assert (cells[5] is None) is (rho is None)
        if isinstance(cells[5], tuple):
            assert cells[5][0] == rho
    assert all(re.search(r"\[.+, .+\] ms$", texts[2]) for texts in table.texts())


def test_the_worst_gpu_is_as_slow_as_in_the_store(faulty: Faulty) -> None:
    store, planted, looked, page = faulty
    slow = next(gpu for gpu, kind in planted.items() if kind == "slow_memory")
    times = store.sql(
        "select r.gpu, median(value) as v from results s join runs r using (run_id) where figure = 'time' and "
        "r.workload = 'pagerank' group by all"
    ).to_pylist()
    by_gpu = {row["gpu"]: row["v"] for row in times}
    excess = 100 * (by_gpu[slow] / statistics.median(by_gpu.values()) - 1)
    name = looked.names[slow]
    sizes = re.findall(rf"<b>{name}</b>[^<]*\+([\d.]+).% of time", page)
    assert [float(size) for size in sizes] == pytest.approx([excess], abs=0.06)
    assert f"{excess:.1f} % slower in pagerank" in page
    assert "Check its ECC errors" in page


@pytest.mark.long
def test_a_fleet_says_who_is_fine_who_could_not_be_judged_and_what_was_missed(tmp_path: Path, quick: None) -> None:
    store, _ = stored(tmp_path / "healthy", 32, 5)
    looked = look(store)
    text = text_of(looked.page(planted=[]))
    assert "No GPU stands out. Nothing was found about 32 GPUs." in text
    assert "Nothing now." in text
    assert "No fault was planted; healthy GPUs that were named: none." in text
    gpu = looked.campaign.gpus["gpu"][0]
    missed = text_of(looked.page(planted=[Planted(gpu, "drift", "")]))
    assert "0 of 1 planted fault found" in missed
    assert "it grows over weeks" in missed
    assert "planted" not in text_of(looked.page())


def test_one_gpu_without_telemetry_still_makes_a_page(tmp_path: Path, quick: None) -> None:
    store, _ = stored(tmp_path / "s", 1, telemetry=False)
    looked = look(store)
    text = text_of(looked.page())
    assert "The one GPU could not be judged." in text
    assert "1 GPU ran it without an error; 8 are needed to tell which differ" in text
    assert "All probes" not in text, "one GPU has no distribution"
    assert "One GPU was measured: there is none to compare it with." in text
    assert "One GPU over the campaign" not in text
    assert "Now" not in text.split("\n")


def test_a_gpu_with_two_names_is_drawn_and_counted_once() -> None:
    rows: list[Any] = [("a", "n1/0", "n1", 0, None), ("b", "n1/1", "n1", 1, None), ("U1", "U1", "n1", None, "U1")]
    rows += [("U2", "U2", "n1", None, "U2"), ("U3", "U3", None, None, "U3")]
    gpus = pl.DataFrame(rows, schema=["gpu", "name", "node", "slot", "uuid"], orient="row")
    gpus = gpus.with_columns(cabinet=pl.lit("c"))
    from whorl.analysis.verdicts import Judgement

    fleet = JudgedFleet(gpus, Judgement("c", (), (), 5, 1))
    assert fleet.grid.gpus == 3
    assert fleet.grid.cell["a"] == fleet.grid.cell["U1"]
    assert fleet.maybe_twice
    assert headline(fleet) == "No GPU stands out. Nothing was found about the others."


def test_the_newest_readings_say_how_many_gpus_and_which_nodes_are_silent(tmp_path: Path) -> None:
    from whorl.analysis.contents import fleet_now

    store = new_store(tmp_path / "S")
    assert newest_readings(fleet_now(store)) is None
    hour = 3_600_000_000_000
    keys = ["g0", "g1", "g2"]
    gpus = {"cluster": ["c"] * 3, "gpu": keys, "uuid": keys, "node": ["n0", "n0", "n1"], "slot": [0, 1, 0]}
    readings = {"ts": [5 * hour, 5 * hour, hour], "cluster": ["c"] * 3, "gpu": keys, "power_mw": [100_000, 300_000, 9]}
    jobs: dict[str, Any] = {
        "allocation": ["1", "1"],
        "cluster": ["c"] * 2,
        "gpu": ["g0", "g1"],
        "node": ["n0"] * 2,
        "state": ["RUNNING"] * 2,
    }
    jobs |= {"node_gpus": [1, 1], "began": [hour] * 2, "recorded": [hour] * 2, "source": ["sacct"] * 2}
    tables: dict[str, Any] = {"gpus": gpus, "telemetry": readings, "jobs": jobs}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "x")
    section = newest_readings(fleet_now(store))
    assert section is not None
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert table.texts() == [["power", "200 W", "100 W to 300 W", "2"]], "the silent GPU does not count"
    sentence = " ".join(part for part in section.parts if isinstance(part, str))
    assert "No reading in the last 10 min from 1 node: n1." in sentence
    assert "1 job running on 2 GPUs." in sentence
    ended = jobs | {"ended": [2 * hour] * 2, "recorded": [2 * hour] * 2, "state": ["COMPLETED"] * 2}
    store.append({"jobs": arrow_rows("jobs", ended)}, "y")
    section = newest_readings(fleet_now(store))
    assert section is not None
    assert "No job is recorded as running." in section.parts


def test_the_page_fetches_nothing_and_is_light(faulty: Faulty) -> None:
    page = faulty[3].split('<script type="application')[0]
    page = re.sub(r'src="data:image/svg\+xml,[^"]*"', "", page)  # a picture that the page holds itself
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#)|url\(|@import|https?:', page) == []
    assert len(faulty[3].encode()) < 3_000_000


@pytest.mark.long
def test_the_table_of_all_gpus_has_each_of_them_in_every_probe(faulty: Faulty) -> None:
    _, _, looked, page = faulty
    campaign = looked.campaign
    (listed,) = json.loads(unpacked(page, "listings"))
    names = labels(campaign.gpus)
    texts = dict(listed["texts"])
    assert texts["GPU"] == [names[gpu] for gpu in campaign.gpus["gpu"]]
    verdicts = looked.verdicts
    for uuid, sentence in zip(campaign.gpus["gpu"], texts["finding"], strict=True):
        assert sentence.startswith(str(verdicts[uuid][0].kind)) if uuid in verdicts else sentence == "none"
    heads = [name for name, _, _ in listed["numbers"]]
    beside = side_by_side(campaign)
    assert [probe for probe, _ in listed["values"]] == campaign.probes
    for probe, columns in listed["values"]:
        texts_of_gpu = campaign.gpus.select("gpu").join(
            beside.filter(pl.col("workload") == probe), on="gpu", how="left", maintain_order="left"
        )
        for head, column in (("slower, %", "slower_pct"), ("power, W", "power_w"), ("runs", "n")):
            text = columns[heads.index(head)]
            expected = texts_of_gpu[column].to_list()
            assert [row is None for row in text] == [row is None for row in expected]
            assert [row for row in text if row is not None] == pytest.approx(
                [row for row in expected if row is not None], abs=0.051
            )


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_browser_draws_the_report_without_a_network(tmp_path: Path, faulty: Faulty) -> None:
    path = tmp_path / "report.html"
    path.write_text(faulty[3])
    folded = faulty[3].count('class="plot"') - sum(part.count('class="plot"') for part in _unfolded(faulty[3]))
    document = rendered(path, tmp_path / "profile", width=500, height=9000)
    assert document.count('data-drawn="1"') == faulty[3].count('class="plot"') - folded
    assert ">This browser cannot" not in document
    assert "NaN" not in document.split("<script")[0]


def _unfolded(page: str) -> list[str]:
    return [part.partition("<details>")[0] for part in page.split("</details>")]


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_all_probes_are_in_the_first_900_pixels_and_a_telephone_scrolls_8000(tmp_path: Path, faulty: Faulty) -> None:
    from playwright.sync_api import sync_playwright

    from whorl.tests.dashboards.browser import CHROMIUM

    path = tmp_path / "report.html"
    path.write_text(faulty[3])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(path.as_uri())
        page.locator("figure:has(h3:text('All probes')) .plot[data-drawn]").wait_for()
        box = page.locator("figure:has(h3:text('All probes'))").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
        phone = browser.new_page(viewport={"width": 390, "height": 844})
        phone.goto(path.as_uri())
        phone.locator("figure:has(h3:text('Power, clock')) .plot[data-drawn]").wait_for()
        assert phone.evaluate("document.documentElement.scrollHeight") <= 8000
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
        browser.close()


# -- energy: the figures of `whorl energy`, where a store has readings -------------------------------------------------


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


# -- the workload that report, dashboard and hints lead with -----------------------------------------------------------


@pytest.mark.long
@needs_longhorn
def test_all_lead_with_the_widest_spread_that_belongs_to_the_gpus(built_once: BuiltOnce) -> None:
    """The times of resnet spread wider, and belong to its jobs."""
    store = Store.open(built_once("contract-longhorn", build_longhorn) / "store")
    looked = look(store)
    widths = {row.workload: row.fence_pct or 0.0 for row in looked.spread if row.level == "gpu"}
    assert max(widths, key=lambda name: widths[name]) == "resnet"
    assert looked.leading == ("sgemm", Belongs.GPUS)
    assert looked.machine() == looked.machine("sgemm")
    differ = f"The GPUs differ most in sgemm, by {widths['sgemm']:.1f} % (n = 392): the difference belongs to the GPUs."
    assert differ in looked.page()
    assert any(line.endswith(" --workload sgemm") for line in next_commands(looked, "S", None))
    reading = Reading(store, advise=Advisor())
    options, _ = choose(reading, State())
    assert options is not None
    assert options.workload == "sgemm"
    assert "], value='longhorn\\t', clearable=False, id='placement-workload'" in str(PAGE.layout(reading, State()))
