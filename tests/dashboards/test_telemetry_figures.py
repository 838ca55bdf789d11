"""The figures of telemetry say what is in the answers that they draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from whorl.analysis.telemetry.bands import Band, Bands, Share
from whorl.analysis.telemetry.happened import Bar, Happened, Mark
from whorl.analysis.telemetry.lines import Line, Lines, Span
from whorl.analysis.telemetry.readings import Key
from whorl.dashboards.figures.telemetry import arranged, behind, in_words, label, of_bands, of_happened, of_lines
from whorl.dashboards.words import duration

S = 1_000_000_000
A: Key = ("c", "GPU-a")
B: Key = ("c", "GPU-b")
NAMES: dict[Key, str] = {A: "n1/0", B: "<script>x</script>"}


def _line(key: Key, metric: str, values: list[float]) -> Line:
    ts = np.arange(len(values), dtype=np.int64) * S
    return Line(key, metric, ts, np.array(values), len(values), S)


def _lines(*lines: Line, reasons: tuple[Span, ...] = (), marks: tuple[Span, ...] = ()) -> Lines:
    return Lines(0, 10 * S, S, lines, reasons, marks, 0, None)


def _traces(figure: Any) -> list[dict[str, Any]]:
    return [trace.to_plotly_json() for trace in figure.data]


def test_each_metric_has_a_panel_and_each_gpu_a_line_of_one_look() -> None:
    lines_shown = [_line(key, metric, [1.0, np.nan, 3.0]) for key in NAMES for metric in ("power_mw", "temperature_c")]
    figure = of_lines(_lines(*lines_shown), NAMES)
    traces = _traces(figure)
    assert [trace["yaxis"] for trace in traces] == ["y", "y2", "y", "y2"]
    assert traces[0]["line"] == traces[1]["line"] != traces[2]["line"]
    assert [trace["showlegend"] for trace in traces] == [True, False, True, False]
    assert list(traces[0]["x"]) == [0, 1000, 2000]
    assert np.isnan(traces[0]["y"][1])
    assert not traces[0].get("connectgaps")
    assert [note.text for note in figure.layout.annotations] == ["<b>Power, W</b>", "<b>Temperature, °C</b>"]
    assert list(figure.layout.xaxis.range) == [0, 10_000]


def test_a_long_name_keeps_what_tells_it_from_others() -> None:
    assert label("rack-12-node-034/0") == "rack-12-node-034/0"
    assert label("a-cluster-of-a-long-name: c001-4/3") == "…long-name: c001-4/3"
    assert label("GPU-87570fdd-b924-d1a1-8021-d92560f30d23") == "GPU-87570fdd…"


def test_a_hostile_name_is_text_everywhere() -> None:
    span = Span(B, "power_cap", S, 2 * S, S, 1)
    figure = of_lines(_lines(_line(B, "power_mw", [1.0]), reasons=(span,)), NAMES)
    happened = Happened((Bar(B, "<b>p</b>", "<i>", 0, S, 1),), (), (Mark(B, "xid", 0, "<img>", 1),), 1, 0, 1)
    second_figure = of_happened(arranged(happened, NAMES, 10 * S), 0, 10 * S)
    assert second_figure is not None
    text = f"{figure.to_json()}{second_figure.to_json()}".replace("\\u003c", "<")
    for evil in ("<script", "<b>p", "<i>", "<img"):
        assert evil not in text
    assert "&lt;script" in text


def test_a_metric_without_readings_says_so() -> None:
    figure = of_lines(_lines(_line(A, "power_mw", []), _line(A, "temperature_c", [1.0])), NAMES)
    assert "n/a: no reading in this time" in [note.text for note in figure.layout.annotations]
    assert figure.layout.yaxis.showticklabels is False


def test_reasons_and_marks_are_bars_in_rows_of_their_own() -> None:
    reasons = (Span(A, "power_cap", S, 3 * S, 2 * S, 1), Span(B, "power_cap", 4 * S, 9 * S, 2 * S, 7))
    marks = (Span(A, "power_stuck", 0, 10 * S, 10 * S, 1),)
    figure = of_lines(_lines(_line(A, "power_mw", [1.0]), reasons=reasons, marks=marks), NAMES)
    caps, stuck = _traces(figure)[1:]
    assert list(figure.layout.yaxis2.ticktext) == ["power cap", "power stuck"]
    assert (list(caps["base"]), list(caps["x"])) == ([1000, 4000], [2000, 5000])
    assert caps["y"][0] < caps["y"][1] < stuck["y"][0], "the bars of two GPUs do not cover each other"
    assert caps["text"][0] == "n1/0: power cap, 2 s"
    assert caps["text"][1].endswith("power cap, 2 s in 7 times")


def test_a_band_has_its_quantiles_n_and_the_gpus_that_are_far_from_it() -> None:
    levels = np.array([[1.0, np.nan, 1.0]]) * np.array([[1], [2], [3], [4], [5]])
    band = Band("power_mw", levels, levels[0] - 1, levels[4] + 1, np.array([9, 0, 8]), ((A, 5.0),))
    share = Share("power_cap", np.array([10.0, np.nan, 20.0]))
    ts = np.array([0, 1, 2], np.int64) * S
    drawn_bands = Bands(0, 3 * S, S, ts, (band,), (share,), 100, 10, 10, 999)
    figure = of_bands(drawn_bands, _lines(_line(A, "power_mw", [7.0])), {A: "n1/0"})
    edge, _, _, median, far, reason = _traces(figure)
    assert [trace["name"] for trace in (median, far, reason)] == ["median", "n1/0", "power cap"]
    assert edge["fill"] == "toself"
    assert [number for number in edge["y"] if not np.isnan(number)] == [0, 6, 0, 6], (
        "two pieces, with a gap between them"
    )
    assert list(median["customdata"][0]) == [1, 2, 3, 4, 5, 0, 6, 9]
    assert reason["yaxis"] == "y2"


def test_gpus_to_which_something_happened_have_a_row_with_jobs_above_runs() -> None:
    run, job = Bar(A, "gemm", "week-1, ok", S, 4 * S, 1), Bar(A, "77", "alice", 0, None, 1)
    marks = (Mark(A, "xid", 5 * S, "XID 79", 1), Mark(None, "missed_ticks", 6 * S, "2 ticks", 3))
    rows = arranged(Happened((run,), (job,), marks, 1, 1, 4), {**NAMES, A: "n1/0"}, 10 * S)
    assert rows.rows == ("n1/0", "the node")
    labels = arranged(Happened((run,), (job,), (), 1, 1, 0), {**NAMES, A: "rack-12-node-034/0"}, 10 * S)
    assert labels.rows == ("…node-034/0",), "what tells it from its neighbours fits beside the drawing"
    uuid = arranged(Happened((run,), (), (), 0, 1, 0), {A: "GPU-bcaa87b6-47cc-e882-69c5-d1e4fad20565"}, 10 * S)
    assert uuid.rows == ("bcaa87b6…",), "the lines of the figure above are named by the same digits"
    figure = of_happened(rows, 0, 10 * S)
    jobs, runs, events = _traces(figure)
    assert jobs["y"][0] < runs["y"][0] < 0.5
    assert jobs["base"][0] + jobs["x"][0] == 20_000, "what has not ended goes on beyond the range"
    assert "has not ended" in jobs["customdata"][0]
    assert runs["customdata"][0] == "probe gemm, week-1, ok<br>n1/0, 3 s"
    assert [round(row) for row in events["y"]] == [0, 1]
    assert events["text"][1] == "<b>missed ticks</b> (3 times)<br>2 ticks"
    assert in_words(rows) == "1 job, 1 run, 4 events"


def test_what_happened_to_many_gpus_is_packed_into_few_rows_and_the_rest_is_counted() -> None:
    jobs = tuple(Bar(None, str(number), "alice", 0, 10 * S, 4) for number in range(30))
    rows = arranged(Happened((), jobs, (), 0, 500, 0), {}, 10 * S)
    assert len(rows.rows) == len(rows.jobs) == 10
    assert in_words(rows) == "500 jobs (10 of the longest shown)"
    figure = of_happened(rows, 0, 10 * S)
    assert figure is not None
    assert list(_traces(figure)[0]["text"]) == [str(number) for number in range(10)]
    assert figure.layout.uniformtext.mode == "hide", "a browser hides what has no room in its bar, on a phone too"
    after = tuple(Bar(None, str(number), "", number * S, (number + 1) * S, 4) for number in range(9))
    assert len(arranged(Happened(after, (), (), 9, 0, 0), {}, 10 * S).rows) == 1
    assert of_happened(arranged(Happened((), (), (), 0, 0, 0), {}, 10 * S), 0, 10 * S) is None


def test_runs_of_one_gpu_and_events_lie_behind_its_lines() -> None:
    runs = tuple(Bar(A, "gemm", "", number * S, (number + 1) * S, 1) for number in range(3))
    mark = Mark(A, "xid", 5 * S, "XID 79", 1)
    assert [number["type"] for number in behind(Happened(runs, (), (mark,), 3, 0, 1), 0, 10 * S)] == ["rect"] * 3 + [
        "line"
    ]
    figures = (*runs, Bar(B, "gemm", "", 0, S, 1))
    assert [number["type"] for number in behind(Happened(figures, (), (mark,), 4, 0, 1), 0, 10 * S)] == ["line"]


def test_words_are_short() -> None:
    assert [duration(seconds) for seconds in (0.0025, 3, 150, 7200, 200_000)] == [
        "2.5 ms", "3 s", "2.5 min", "2 h", "2.31 d",
    ]  # fmt: skip
