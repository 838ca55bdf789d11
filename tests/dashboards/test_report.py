"""The report of a campaign: one offline page whose facts are those of the store, light, and drawn by a real browser."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis import measurements, variability
from whorl.analysis.fleet.side_by_side import against, labels, side_by_side
from whorl.analysis.fleet.timelines import timelines
from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Judgement
from whorl.analysis.verdicts.judge import judged
from whorl.analysis.verdicts.planted import Miss, Planted
from whorl.dashboards.figures.looks import looks
from whorl.dashboards.figures.map import Grid
from whorl.dashboards.figures.spread import closely
from whorl.dashboards.report import probe_report, to_show
from whorl.dashboards.table import signed
from whorl.store import Store
from whorl.tests.dashboards.browser import needs_browser, rendered
from whorl.tests.dashboards.test_page import unpacked
from whorl.tests.probed_fleet import PROBES, stored, uuids

KINDS = ("brake", "pinned", "slow_memory", "stuck_sensor", "wrong_results", "lost")


def looked_at(store: Store) -> tuple[Probed, Judgement]:
    campaign = probed(store)
    return campaign, judged(campaign, store)


def made(store: Store, planted: Sequence[Planted] | None = None, replicates: int = 50) -> str:
    campaign, found = looked_at(store)
    spread = variability(measurements(store), replicates=replicates)
    lines = timelines(store, campaign, to_show(campaign, found))
    return probe_report(campaign, found, spread, lines, planted=planted)


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "\n", page.split("<script")[0]))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, str], str]:
    """A store with faults of every kind, what was planted, and its page."""
    store, fleet = stored(tmp_path_factory.mktemp("faulty") / "s", 64, 3, kinds=KINDS)
    campaign, found = looked_at(store)
    kinds = {gpu: str(own[0].kind) for gpu, own in found.by_key(campaign.gpus).items()}
    rows = [Planted(gpu, kind, kinds.get(gpu, "")) for gpu, kind in uuids(fleet).items()]
    return store, uuids(fleet), made(store, rows)


def test_the_page_says_what_the_store_holds(faulty: tuple[Store, dict[str, str], str]) -> None:
    store, planted, page = faulty
    text = text_of(page)
    assert "Probes on 64 simulated V100-SXM2 GPUs" in text
    runs = store.arrow("runs")
    ok = sum(status == "ok" for status in runs["status"].to_pylist())
    assert f"on 16 nodes ran {len(PROBES)} probes: {len(runs)} runs, {ok} of them valid." in text
    for gpu in planted:
        assert gpu in text
    assert f"Of {len(planted)} planted faults {len(planted)} were found; no healthy GPU was named." in text


def test_the_page_says_which_times_are_left_out(faulty: tuple[Store, dict[str, str], str]) -> None:
    text = text_of(faulty[2])
    assert "Left out of the times: 2 runs, as their results were wrong (1 of gemm-fp32, 1 of pagerank)." in text
    assert "Not compared because they measure no time: idle." in text


@pytest.mark.long
def test_the_names_of_those_far_out_are_above_the_bars(faulty: tuple[Store, dict[str, str], str]) -> None:
    """On a phone a name takes a third of the figure: beside the bars it would lie over them."""
    campaign, found = looked_at(faulty[0])
    for one in against(campaign, labels(campaign.gpus)):
        figure = closely(one, looks(found.by_key(campaign.gpus)))
        bars = max(figure.data[0].y)
        named = [trace for trace in figure.data[1:] if trace.mode == "markers+text"]
        assert all(bars < trace.y[0] < figure.layout.yaxis.range[1] for trace in named)
        assert len({(trace.y[0], trace.x[0]) for trace in named}) == len(named), "no name lies over another"
        assert bool(named) is (one.probe != "copy-h2d")


def test_medians_extremes_and_correlations_have_their_intervals(faulty: tuple[Store, dict[str, str], str]) -> None:
    store, _, page = faulty
    by_probe = {row.workload: row for row in variability(measurements(store), replicates=50) if row.level == "gpu"}
    shown = [cells_of(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    bounds = r" \[[^,\]]+, [^,\]]+\]"
    for probe, row in by_probe.items():
        mine = [cells for cells in shown if cells[:2] == [probe, f"{row.n}"]]
        assert re.fullmatch(rf"[\d.,]+ ms{bounds}", mine[0][2]), mine[0]
        assert row.worst_over_median is not None
        longer = 100 * (row.worst_over_median - 1)
        assert re.fullmatch(rf"{longer:.1f} % longer{bounds}", mine[1][2]), mine[1]
        low, high = (float(bound) for bound in re.findall(r"[\d.]+(?=[,\]])", mine[1][2]))
        assert 0 <= low <= longer + 0.05
        assert low <= high
        for cell, name in zip(mine[1][4:6], ("sm_clock", "temperature"), strict=True):
            rho = row.correlation[name].spearman
            assert rho is None or re.fullmatch(re.escape(signed(rho)) + bounds, cell), cell
    assert not re.search(r"[-−]0\.00", text_of(page))


def cells_of(row: str) -> list[str]:
    """The text of the cells of a row of a table."""
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)]


def test_the_worst_gpu_is_as_slow_as_in_the_store(faulty: tuple[Store, dict[str, str], str]) -> None:
    store, planted, page = faulty
    slow = next(gpu for gpu, kind in planted.items() if kind == "slow_memory")
    times = store.sql(
        "select r.gpu, median(value) as v from results s join runs r using (run_id) where figure = 'time' and "
        "r.workload = 'pagerank' group by all"
    ).to_pylist()
    by_gpu = {row["gpu"]: row["v"] for row in times}
    excess = 100 * (by_gpu[slow] / statistics.median(by_gpu.values()) - 1)
    row = next(row for row in re.findall(r"<tr>(.*?)</tr>", page) if slow in row)
    assert f"{excess:.1f} % slower in pagerank" in row
    assert cells_of(row)[2].startswith(f"{excess:+.1f} ")
    assert re.search(r": [\d.]+ memory \[\+[\d.]+, \+[\d.]+\]", cells_of(row)[3])
    assert "Check its ECC errors" in row


@pytest.mark.long
def test_a_healthy_fleet_says_that_nobody_stands_out(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 32, 5)
    text = text_of(made(store, []))
    assert "No GPU stands out" in text
    assert "No fault was planted; no healthy GPU was named." in text
    assert "like most others" in text


@pytest.mark.long
def test_what_was_missed_is_said_and_real_gpus_have_no_planted_faults(tmp_path: Path) -> None:
    store, fleet = stored(tmp_path / "s", 32, 5, kinds=("drift",))
    [(gpu, kind)] = uuids(fleet).items()
    text = text_of(made(store, [Planted(gpu, kind, "", Miss.NEEDS_WEEKS)]))
    assert "The planted fault was missed; no healthy GPU was named." in text
    assert "it grows over weeks" in text
    assert "planted" not in text_of(made(store))


def test_few_gpus_and_no_telemetry_still_make_a_page(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 1, telemetry=False)
    text = text_of(made(store))
    assert "Probes on 1 simulated V100-SXM2 GPU\n" in text
    assert "No GPU could be judged" in text
    assert "GPUs stand out: none could be judged" in text
    assert "(1 GPU ran it without an error; 8 are needed to tell which differ)." in text
    assert "No comparison was made: no GPU could be judged." in text
    assert "0 comparisons" not in text
    assert "GPU measured" in text
    assert "All probes" not in text, "one GPU has no distribution"
    assert "One GPU was measured: there is none to compare it with." in text
    assert "median of all GPUs" not in text
    assert "One GPU over the campaign" not in text


def test_the_page_fetches_nothing(faulty: tuple[Store, dict[str, str], str]) -> None:
    page = faulty[2].split('<script type="application')[0]
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#)|url\(|@import|https?:', page) == []


@pytest.mark.long
def test_the_page_is_light(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 640, 2, kinds=KINDS)
    page = made(store, replicates=10)
    assert len(page.encode()) < 3_000_000
    assert "Only 600 GPUs of each probe are drawn, and all that stand out" in text_of(page)


@pytest.mark.long
def test_the_table_of_all_gpus_has_each_of_them_in_every_probe(faulty: tuple[Store, dict[str, str], str]) -> None:
    store, _, page = faulty
    campaign, found = looked_at(store)
    (listed,) = json.loads(unpacked(page, "listings"))
    names = labels(campaign.gpus)
    texts = dict(listed["texts"])
    assert texts["GPU"] == [names[gpu] for gpu in campaign.gpus["gpu"]]
    verdicts = found.by_key(campaign.gpus)
    for gpu, said in zip(campaign.gpus["gpu"], texts["finding"], strict=True):
        assert said.startswith(str(verdicts[gpu][0].kind)) if gpu in verdicts else said == "none"
    heads = [name for name, _, _ in listed["numbers"]]
    beside = side_by_side(campaign)
    assert [probe for probe, _ in listed["values"]] == campaign.probes
    for probe, columns in listed["values"]:
        own = campaign.gpus.select("gpu").join(
            beside.filter(pl.col("workload") == probe), on="gpu", how="left", maintain_order="left"
        )
        for head, column in (("slower, %", "slower_pct"), ("power, W", "power_w"), ("runs", "n")):
            shown = columns[heads.index(head)]
            known = own[column].to_list()
            assert [one is None for one in shown] == [one is None for one in known]
            assert [one for one in shown if one is not None] == pytest.approx(
                [one for one in known if one is not None], abs=0.051
            )


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_browser_draws_the_report_without_a_network(
    tmp_path: Path, faulty: tuple[Store, dict[str, str], str]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(faulty[2])
    drawings = faulty[2].count('class="plot"')
    assert drawings == 6
    document = rendered(path, tmp_path / "profile", width=500, height=9000)
    assert document.count('data-drawn="1"') == drawings
    assert ">This browser cannot" not in document
    assert "NaN" not in document.split("<script")[0]


def test_gpus_of_no_known_node_have_a_row_of_their_own_with_a_name() -> None:
    known = [("a", "n1", "c1"), ("b", "n1", "c1"), ("c", None, None), ("d", "n9", None)]
    gpus = pl.DataFrame(known, schema=["gpu", "node", "cabinet"], orient="row").with_columns(slot=pl.lit(0))
    grid = Grid.of(gpus)
    assert grid.rows == ("c1", "unknown", "")
    assert [grid.cell[gpu][0] for gpu in "abcd"] == [0, 0, 1, 2]
