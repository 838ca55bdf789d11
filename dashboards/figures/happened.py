"""What happened to GPUs over time: jobs and runs as bars, events as marks; the same as bands behind other figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.telemetry.happened import Bar, Happened, Mark
from ...analysis.telemetry.readings import Key
from ...store.vocabulary import OUT_OF_USE, EventKind
from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY, layout
from ..words import duration, many
from . import drawing
from .drawing import Figure, Scatter, figure_of
from .looks import plain
from .telemetry import LEFT, RIGHT, label, times

_TOP, _BOTTOM = 12, 64  # px; below the drawing, slanted times have room
_BAR = 20  # px: of lower ones a browser makes the names too small
_LANES = 10  # of jobs, and of runs, where the bars of several GPUs stand together
_BANDS, _LINES = 60, 60  # behind another figure, at most
_LONGEST = 90  # characters of a sentence
_LETTERS = 11  # px
_SMALLEST = 10  # px; a name that needs smaller letters to fit into its bar is not shown
_NAME = 11  # letters of a row that fit beside the drawing
_RUNS = (GREEN, ORANGE, SKY, OLIVE, PINK)
_JOBS = (BLUE, GREY)
_PALE = 0.55  # so that words on a bar can be read on white and on black
_GRAVE = {
    *OUT_OF_USE,
    EventKind.XID,
    EventKind.HUNG,
    EventKind.DRIVER_GONE,
    EventKind.WRONG_RESULT,
    EventKind.HEALTH,
}


@dataclass(frozen=True)
class Arranged:
    """What happened, each with its place from above; and what the rows are."""

    found: Happened
    names: Mapping[Key, str]
    rows: tuple[str, ...]
    jobs: tuple[tuple[Bar, float], ...]
    runs: tuple[tuple[Bar, float], ...]
    marks: tuple[tuple[Mark, float], ...]
    thick: float


def arranged(found: Happened, names: Mapping[Key, str], until: int) -> Arranged:
    """A row for each GPU of `names` to which something happened, its jobs above its runs.

    Without names, what happened to several GPUs together is packed into as few rows as it needs. What finds no place in
    `_LANES` rows is left out.
    """
    if names:
        seen = {bar.key for bar in (*found.runs, *found.jobs)} | {mark.key for mark in found.marks}
        place = {key: row for row, key in enumerate(key for key in names if key in seen)}
        rows = [label(names[key], _NAME) for key in place]
        both = bool(found.jobs and found.runs)
        jobs = [(bar, place[bar.key] - 0.23 * both) for bar in found.jobs if bar.key in place]
        runs = [(bar, place[bar.key] + 0.23 * both) for bar in found.runs if bar.key in place]
        of_nodes = any(mark.key is None for mark in found.marks)
        marks = [(mark, float(len(rows) if mark.key is None else place[mark.key])) for mark in found.marks]
        rows += ["the node"] * of_nodes
        return Arranged(found, names, tuple(rows), tuple(jobs), tuple(runs), tuple(marks), 0.42 if both else 0.7)
    jobs, n = _packed(found.jobs, 0, until)
    runs, m = _packed(found.runs, n, until)
    rows = ["jobs"] * (n > 0) + [""] * (n - 1) + ["probes"] * (m > 0) + [""] * (m - 1)
    kinds = list(dict.fromkeys(mark.kind for mark in found.marks))
    marks = [(mark, float(len(rows) + kinds.index(mark.kind))) for mark in found.marks]
    rows += [plain(kind.replace("_", " "), _NAME) for kind in kinds]
    return Arranged(found, names, tuple(rows), tuple(jobs), tuple(runs), tuple(marks), 0.8)


def of_happened(placed: Arranged, since: int, until: int) -> Figure | None:
    """Rows of bars and marks. None: nothing happened.

    The browser hides names that have no room, as only it knows how wide the figure is.
    """
    if not placed.rows:
        return None
    workloads = list(dict.fromkeys(bar.name for bar, _ in placed.runs))
    jobs = list(dict.fromkeys(bar.name for bar, _ in placed.jobs))
    traces = []
    for bars, what, colours in (
        (placed.jobs, "job", [_JOBS[jobs.index(bar.name) % len(_JOBS)] for bar, _ in placed.jobs]),
        (placed.runs, "probe", [_RUNS[workloads.index(bar.name) % len(_RUNS)] for bar, _ in placed.runs]),
    ):
        traces.append(_bars(bars, what, colours, placed, since, until))
    marks = [mark for mark, _ in placed.marks]
    traces.append(
        Scatter(
            x=times(np.array([mark.at for mark in marks], np.int64)),
            y=np.array([row for _, row in placed.marks]),
            mode="markers",
            marker={
                "size": [min(9 + mark.times // 2, 16) for mark in marks],
                "color": [colour_of(mark.kind) for mark in marks],
                "symbol": ["x" if mark.kind in _GRAVE else "circle" for mark in marks],
                "line": {"width": 1, "color": "rgba(255,255,255,0.7)"},
            },
            text=[_sentence(mark) for mark in marks],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    return figure_of(
        traces,
        layout(
            round(_BAR / placed.thick) * len(placed.rows) + _TOP + _BOTTOM,
            margin={"l": LEFT, "r": RIGHT, "t": _TOP, "b": _BOTTOM},
            barmode="overlay",
            showlegend=False,
            dragmode="zoom",
            uniformtext={"mode": "hide", "minsize": _SMALLEST},
            xaxis={
                "type": "date",
                "range": [since / 1e6, until / 1e6],
                "title": {"text": "UTC"},
                "zeroline": False,
                "automargin": "bottom",
                "hoverformat": "%Y-%m-%d %H:%M:%S",
            },
            yaxis={
                "tickvals": list(range(len(placed.rows))),
                "ticktext": placed.rows,
                "range": [len(placed.rows) - 0.5, -0.5],
                "tickfont": {"size": 11},
                "fixedrange": True,
                "zeroline": False,
                "showgrid": False,
            },
        ),
    )


def behind(found: Happened, since: int, until: int) -> list[dict[str, Any]]:
    """Runs (else jobs) of one GPU as bands, and events as lines, for the layout of a figure of the same time."""
    common = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    gpus = {bar.key for bar in (*found.runs, *found.jobs)}
    bars = (found.runs or found.jobs) if len(gpus) == 1 and None not in gpus else ()
    bands = [
        {
            "type": "rect",
            "x0": max(bar.began, since) / 1e6,
            "x1": min(bar.ended or until, until) / 1e6,
            "fillcolor": GREY,
            "opacity": 0.13 if place % 2 == 0 else 0.07,
            "line": {"width": 0},
            **common,
        }
        for place, bar in enumerate(bars[:_BANDS])
    ]
    lines = [
        {"type": "line", "x0": mark.at / 1e6, "x1": mark.at / 1e6, "line": {"color": colour_of(mark.kind), "width": 1,
         "dash": "dot"}, **common}
        for mark in found.marks[:_LINES]
    ]  # fmt: skip
    return [*bands, *lines]


def colour_of(kind: str) -> str:
    """The colour of a kind of event: grave or other."""
    return RED if kind in _GRAVE else BLUE


def in_words(placed: Arranged) -> str:
    """How many jobs, runs and events there are, and how many of them are shown."""
    found, parts = placed.found, []
    for n, shown, what in (
        (found.all_jobs, len(placed.jobs), "job"),
        (found.all_runs, len(placed.runs), "run" if placed.names else "probe"),
        (found.all_events, sum(mark.times for mark, _ in placed.marks), "event"),
    ):
        if n:
            parts.append(many(n, what) + (f" ({shown:,} of the longest shown)" if shown < n else ""))
    return ", ".join(parts)


def _bars(
    bars: Sequence[tuple[Bar, float]], what: str, colours: Sequence[str], placed: Arranged, since: int, until: int
) -> Any:
    length = until - since  # a bar that goes on is cut a screen beyond the range
    began = np.array([max(bar.began, since - length) for bar, _ in bars], np.int64)
    ended = np.array([min(bar.ended or until + length, until + length) for bar, _ in bars], np.int64)
    return drawing.Bar(
        orientation="h",
        base=times(began).tolist(),
        x=(ended - began) / 1e6,
        y=np.array([row for _, row in bars]),
        width=placed.thick,
        marker={"color": list(colours), "opacity": _PALE, "line": {"width": 0.5, "color": GREY}},
        text=[plain(bar.name) for bar, _ in bars],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"size": _LETTERS},
        customdata=[_about(bar, what, placed.names) for bar, _ in bars],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _about(bar: Bar, what: str, names: Mapping[Key, str]) -> str:
    whose = label(names[bar.key]) if bar.key is not None and bar.key in names else many(bar.gpus, "GPU")
    length = "has not ended" if bar.ended is None else duration((bar.ended - bar.began) / 1e9)
    says = f", {plain(bar.says)}" if bar.says else ""
    return f"{what} {plain(bar.name)}{says}<br>{whose}, {length}"


def _sentence(mark: Mark) -> str:
    text = mark.says if len(mark.says) <= _LONGEST else f"{mark.says[:_LONGEST]}…"
    often = f" ({mark.times:,} times)" if mark.times > 1 else ""
    return f"<b>{plain(mark.kind.replace('_', ' '))}</b>{often}<br>{plain(text)}"


def _packed(bars: Sequence[Bar], first: int, until: int) -> tuple[list[tuple[Bar, float]], int]:
    """Each bar with its row, from `first` on: the first row that is free; bars that find none are left out."""
    free: list[int] = []
    found = []
    for bar in bars:
        row = next((row for row, ended in enumerate(free) if ended <= bar.began), len(free))
        if row < _LANES:
            ended = bar.ended or until
            free[row : row + 1] = [ended]
            found.append((bar, float(first + row)))
    return found, len(free)
