"""One GPU in full: its sections say the same in a terminal, on a page and in the dashboard; what its figures show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from whorl import __version__
from whorl.analysis.one_gpu.explain import whole
from whorl.analysis.one_gpu.happened import Held, Mark, Reasons
from whorl.analysis.one_gpu.standing import Line, Sitting, Standing
from whorl.analysis.verdicts import Kind, Level, State, Verdict
from whorl.analysis.verdicts.fingerprint import Neighbour
from whorl.analysis.verdicts.judgements import conclude
from whorl.analysis.verdicts.verdict import Action, Cause, Change
from whorl.cli import cli
from whorl.dashboards import html
from whorl.dashboards.document import Chart, Command, Facts, Findings, Part, Section, Table
from whorl.dashboards.documents import gpu as document
from whorl.dashboards.figures import gpu as figures
from whorl.dashboards.figures.drawing import PERCENT
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import CLOCK_EVENTS
from whorl.tests.conftest import BuiltOnce
from whorl.tests.dashboards.asking import Asked
from whorl.tests.judged_fleet import judged_store
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store

HTML = "<b>gemm</b>"
DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIVE = (-2.0, -1.0, 0.0, 1.0, 2.0)


def _traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


# -- what an effect is made of ----------------------------------------------------------------------------------


def _verdict(*causes: Cause) -> Verdict:
    effect = sum(entry.pct for entry in causes)
    return Verdict(
        Level.GPU, "n1/0", ("n1/0",), "c", None, ("gemm",), Kind.SLOW, State.CONFIRMED, effect, effect - 1, effect + 1,
        None, None, None, causes, None, None, (), Action.RUN_FULL_SUITE,
    )  # fmt: skip


def test_the_parts_of_an_effect_follow_each_other_up_to_the_whole() -> None:
    figure = figures.causes(
        _verdict(Cause("rest", -1.0, -2.0, None), Cause(HTML, 6.0, 5.0, 7.5), Cause("heat", 2.0, 1, 3))
    )
    bar, ends = figure.data
    assert list(bar.base) == [0, 6, 8, 0]  # the largest first
    assert list(bar.x) == [6, 2, -1, 7]
    assert [base + size for base, size in zip(bar.base, bar.x, strict=True)] == list(ends.x) == [6, 8, 7, 7]
    assert list(ends.error_x.array) == [1.5, 1, 0, 1]  # what is not known is no interval
    assert list(ends.error_x.arrayminus) == [1, 1, 1, 1]
    names = figure.layout.yaxis.ticktext
    assert "<b>" not in names[0]
    assert names[0].endswith("+6.0 % [+5.0, +7.5]")
    assert names[-1].startswith("in all<br>+7.0 %")


# -- beside its peers -------------------------------------------------------------------------------------------


def _standing(figure: str, off: float | None, workload: str | None = "gemm", **changes: Any) -> Standing:
    low, high = (None, None) if off is None else (off - 0.5, off + 0.5)
    base = Standing(
        "compute", workload, figure, "ms", 10.0, 9.0, 11.0, off, low, high, 64, 64, 20, 5, None, FIVE, 64, ()
    )
    return replace(base, **changes)


def test_a_gpu_beyond_its_peers_looks_other_than_one_among_them() -> None:
    figure = figures.beside_peers([_standing("time", 5.0), _standing("time", 1.0, HTML), _standing("xids", None)])
    assert list(figure) == ["time"]  # a count has no ratio
    traces = _traces(figure["time"])
    inside, beyond = traces["this GPU"], traces["this GPU, beyond 90 % of its peers"]
    assert (list(beyond.y), list(inside.y)) == ([1], [0])
    assert beyond.x[0] == pytest.approx(float(PERCENT.bend(5)))
    assert beyond.x[0] + beyond.error_x.array[0] == pytest.approx(float(PERCENT.bend(5.5)))
    assert beyond.x[0] - beyond.error_x.arrayminus[0] == pytest.approx(float(PERCENT.bend(4.5)))
    assert (inside.marker.symbol, beyond.marker.symbol) == ("circle", "diamond")
    outer = figure["time"].data[0]
    assert (outer.base[0], outer.base[0] + outer.x[0]) == pytest.approx(
        (float(PERCENT.bend(-2)), float(PERCENT.bend(2)))
    )
    assert "20 runs in 5 sittings" in beyond.text[0]
    assert "90 % of 64 GPUs: -2.0 to +2.0 %" in beyond.text[0].replace("−", "-")
    assert "<b>" not in "".join(figure["time"].layout.yaxis.ticktext) + inside.text[0]


def test_figures_are_put_together_by_what_they_are_of() -> None:
    stands = [_standing("power", 1.0), _standing("temperature_rise", 1.0, None), _standing("time", 0.1, None)]
    figure = figures.beside_peers(stands)
    assert list(figure) == ["time", "power", "other figures"]
    assert figure["time"].layout.yaxis.ticktext == ("all of compute",)
    assert figure["other figures"].layout.yaxis.ticktext == ("warming per watt",)


def test_rows_of_long_names_have_each_its_own_name() -> None:
    names = ("gemm-fp16 [H100-SXM5]", "gemm-fp32 [H100-SXM5]")
    figure = figures.beside_peers([_standing("power_at_fixed_clock", 1.0, name) for name in names])["other figures"]
    assert figure.layout.yaxis.ticktext == tuple(f"power at fixed clock<br>{name}" for name in names)


def test_without_peers_there_is_a_point_and_no_band() -> None:
    traces = figures.beside_peers([_standing("time", 0.3, off_low_pct=None, off_high_pct=None, band_pct=None)])["time"]
    assert list(_traces(traces)["this GPU"].error_x.array) == [0]
    assert not any(trace.showlegend for trace in traces.data if trace.name != "this GPU")


@pytest.mark.parametrize("off", [(5.0,), (5.0, 1.0)])
def test_on_a_phone_the_legend_of_few_rows_has_room_above_them(off: tuple[float, ...]) -> None:
    traces = figures.beside_peers([_standing("time", entry) for entry in off])["time"]
    names = [trace.name for trace in traces.data if trace.showlegend is not False]  # there, each takes a line
    assert len(names) == len(off) + 1
    assert 19 * len(names) + 8 < traces.layout.height / 2, "Plotly lays the rest of a legend over the rows"


def _line(*sittings: Sitting, **changes: Any) -> Line:
    base = Line("gemm", sittings, beside_peers=True, runs=9, undated=0, within=None, between=None)
    return replace(base, **changes)


# -- its past ---------------------------------------------------------------------------------------------------


def _sitting(day: int, off: float, **changes: Any) -> Sitting:
    base = Sitting(DAY + timedelta(day), 4, off, off - 1, off + 1, off, FIVE, 63, 1380.0, 250.0, None)
    return replace(base, **changes)


def test_the_past_shows_each_sitting_beside_its_peers_of_that_day() -> None:
    alone = _sitting(2, -0.5, low_pct=None, high_pct=None, that_day_pct=None, peers_pct=None, peers=0)
    figure = figures.past(_line(_sitting(0, 1.0), _sitting(1, -1.0), alone))
    gpu_trace = _traces(figure)["this GPU"]
    assert list(gpu_trace.y) == [1, -1, -0.5]
    assert list(gpu_trace.error_y.array) == [1, 1, 0]  # an end at 0 % is an end
    assert list(gpu_trace.error_y.arrayminus) == [1, 1, 0]
    peers = _traces(figure)["its peers on that day, 5 to 95 %"]
    assert [entry for entry in peers.y if entry is not None] == [-2, 2, -2, 2]
    assert figure.layout.yaxis.title.text == "slower than its peers, %"
    assert (
        "4 runs<br>slower than its peers: +1.0 % [0.0, +2.0]<br>than 63 peers on that day: +1.0 %" in gpu_trace.text[0]
    )
    assert "1,380 MHz, 250.0 W" in gpu_trace.text[0]


def test_a_gpu_alone_is_said_to_be_beside_itself() -> None:
    figure = figures.past(_line(_sitting(0, 1.0, peers_pct=None), beside_peers=False))
    assert figure.layout.yaxis.title.text == "slower than its own median, %"
    assert [trace.name for trace in figure.data] == ["this GPU"]


def test_a_change_is_a_band_from_the_last_sitting_before_to_the_first_after() -> None:
    since, at = DAY, DAY + timedelta(1)
    change = Change("g", "gemm", 7.0, 5.0, 9.0, 0.01, 12, since, at, State.CONFIRMED, 3, ())
    elsewhere = replace(change, workload="stream")
    unknown = replace(change, since=None)
    changes = [(apiece, f"driver unknown to {HTML}") for apiece in (change, elsewhere, unknown)]
    figure = figures.past(_line(_sitting(0, 0.0), _sitting(1, 7.0)), changes)
    (shape,) = figure.layout.shapes
    assert (shape.x0, shape.x1) == (since, at)
    marked = _traces(figure)["its level changed"]
    assert list(marked.text) == ["+7.0 %"]
    texts = marked.customdata[0][0]
    assert "3 GPUs changed then" in texts
    assert "12 sittings, q 0.01" in texts
    assert "<b>" not in texts


def test_what_may_have_changed_it_stands_above_its_day_by_kind() -> None:
    marks = [Mark(DAY, "driver", f"driver {HTML}"), Mark(DAY, "xid", "XID 79"), Mark(DAY, "vbios", "VBIOS 2")]
    figure = figures.past(_line(_sitting(0, 1.0)), marks=marks)
    traces = _traces(figure)
    assert {"driver", "VBIOS", "event"} <= set(traces)
    assert "<b>" not in traces["driver"].text[0]
    assert len(figure.layout.shapes) == 2  # an event that happens often is no line across the figure
    assert traces["driver"].y[0] < figure.layout.yaxis.range[1]


# -- why its clock was held -------------------------------------------------------------------------------------


def _reasons(share: list[float], stretch: list[int], *, counted: bool = True, minutes: int = 0) -> Reasons:
    steps = len(share)
    at = [DAY + timedelta(minutes=entry + 300 * piece) for entry, piece in enumerate(stretch)]
    cap = next(entry for entry in CLOCK_EVENTS if entry.name == "power_cap")
    held = Held(cap, np.array(share), counted, float(np.nanmean(share)))
    ends = tuple(entry + timedelta(minutes=1) for entry in at)
    n = np.full(steps, 60)
    return Reasons(tuple(at), ends, np.array(stretch), n, np.ones(steps), (held,), 60 * steps, minutes, False)


def test_reasons_are_shares_of_the_time_and_a_gap_is_blank() -> None:
    reasons = _reasons([0.25, np.nan, 1.0], [0, 0, 1])
    (heat,) = figures.clock(reasons).data
    row = np.array(heat.z[0], float)
    assert [entry for entry in row if np.isfinite(entry)] == [25, 100]
    assert len(row) > 4  # the time between the stretches has a place
    texts = [entry for entry in heat.text[0] if entry]
    assert len(texts) == 2
    assert "power limit: 25 % of the time, counted by the driver" in texts[0]
    figure = figures.clock(reasons)
    assert figure.layout.yaxis.ticktext == ("power limit, 62 %",)
    assert len(figure.layout.shapes) == 1
    assert figure.layout.xaxis.title.text == "UTC"
    short = figures.clock(_reasons([0.25, 0.5, 1.0], [0, 0, 0])).layout.xaxis
    assert len(set(short.ticktext)) == len(short.ticktext)
    assert short.ticktext[0].count(":") == 2, "of minutes, with seconds"


def test_what_readings_and_pruned_minutes_say_is_told_as_that() -> None:
    def caption(reasons: Reasons) -> str:
        (chart,) = document.clock(reasons, store="S").parts
        assert isinstance(chart, Chart)
        return chart.caption

    reasons = _reasons([0.5, 0.5], [0, 0], counted=False, minutes=2)
    assert "From the readings, at most, as a minute" in caption(reasons)
    (heat,) = figures.clock(reasons).data
    assert "at most 50 % of the time, in 60 readings" in heat.text[0][0]
    assert "Earlier telemetry is left out" in caption(replace(reasons, cut=True))


def test_a_gpu_that_no_other_is_like_is_said_to_be_alone() -> None:
    near, far = (document.like_it([Neighbour("b", "n0/1", distance, 35)]) for distance in (0.7, 58.06))
    assert near is not None
    assert far is not None
    assert "No GPU is like it" not in near.lead
    assert far.lead.startswith("No GPU is like it: even the nearest is 58.1 standard deviations away.")


# -- one document, drawn four ways -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> str:
    """32 GPUs, measured on three days; n02/1 is 12 % slower."""
    path = built_once("judged-gpu", lambda path: judged_store(path / "S", 32, (0, 2, 4), slow={5: 0.12})) / "S"
    conclude(Store.open(path))
    return str(path)


def _sentences(parts: Sequence[Part]) -> Iterator[str]:
    """Every sentence of parts that a terminal prints, and every cell of tables."""
    for part in parts:
        if isinstance(part, Section) and not part.folded:
            yield from filter(None, (part.title, part.lead))
            yield from _sentences(part.parts)
        elif isinstance(part, Findings):
            for finding in part.findings:
                yield from (finding.size, finding.because, finding.action, finding.evidence)
        elif isinstance(part, Table):
            yield from (cell for row in part.texts() for cell in row)
        elif isinstance(part, Facts):
            yield from (text for _, text in part.pairs)
        elif isinstance(part, str) and not isinstance(part, Command):
            yield part


def _plainly(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("−", "-").replace("`", ""))


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", ["n02/1", "n01/0"])
def test_explain_report_and_dashboard_have_the_sentences_of_the_document(fleet: str, name: str, tmp_path: Path) -> None:
    gpu, report = whole(Store.open(fleet), name), tmp_path / "gpu.html"
    assert CliRunner().invoke(cli, ["report", "--gpu", name, "--store", fleet, "--out", str(report)]).exit_code == 0
    printed = {
        "explain": CliRunner().invoke(cli, ["explain", name, "--store", fleet]).stdout,
        "report": unescape(re.sub("<[^>]+>", "", report.read_text())),
        "dashboard": "\n".join(_texts(json.loads(Asked(Store.open(fleet)).said(f"gpu?gpu={name}")))),
    }
    sections = [
        document.what_was_found(gpu.row, gpu.runs, gpu.found, gpu.events, store=fleet),
        document.which(gpu.row, gpu.shared, gpu.runs),
        document.places(gpu.places, gpu.row["model"]),
    ]
    sentences = [_plainly(sentence) for sentence in _sentences([part for part in sections if part is not None])]
    assert len(sentences) > 5
    for where, text in printed.items():
        assert [sentence for sentence in sentences if sentence not in _plainly(text)] == [], where


def _texts(part: Any) -> Iterator[str]:
    """The texts of components, a paragraph a line."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, list):
        whole_text = "".join(text for child in part for text in _texts(child))
        yield whole_text
    elif isinstance(part, dict):
        if "children" in part.get("props", part):
            yield from _texts(part.get("props", part)["children"])
        else:
            for value in part.values():
                yield from _texts(value)


@pytest.mark.long
def test_the_evidence_says_how_it_was_measured_and_what_wrote_it_and_when(tmp_path: Path) -> None:
    def text(store: Store, name: str) -> str:
        return re.sub("<[^>]+>", "", html.page(document.document(whole(store, name), "S")))

    made_by_probes = text(stored(tmp_path / "probed", 8, telemetry=False)[0], "c001-1/0")
    assert "Every GPU ran the same work of known size" in made_by_probes
    assert "Versions of the probes: copy-h2d 1, gemm-fp32 1" in made_by_probes
    assert "Software: driver simulated." in made_by_probes
    assert "Imported" not in made_by_probes
    wrote = rf"whorl {re.escape(__version__)} wrote this on \d{{4}}-\d\d-\d\d \d\d:\d\d UTC"
    assert re.search(wrote, made_by_probes)
    n = 8
    gpus = {"cluster": ["c"] * n, "gpu": [f"g{place}" for place in range(n)]}
    runs = gpus | {"run_id": [f"r{place}" for place in range(n)], "workload": ["w"] * n}
    time = {"repeat": [0] * n, "figure": ["time"] * n, "unit": ["ms"] * n, "value": [10.0] * n}
    tables: dict[str, dict[str, Any]] = {"gpus": gpus, "runs": runs | {"status": ["ok"] * n}, "results": runs | time}
    store = new_store(tmp_path / "imported")
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "imported")
    imported = text(store, "g1")
    assert "Imported from files of other tools: 1 of 1 run." in imported
    assert "the same work of known size" not in imported
