"""Telemetry over time: lines of a few GPUs or the band of many, and what happened meanwhile, as bars and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.telemetry.bands import LEVELS, Band, Bands
from ...analysis.telemetry.happened import Bar, Happened, Mark
from ...analysis.telemetry.lines import Lines, Span
from ...analysis.telemetry.readings import Floats, Key, Times, shown
from ...store.vocabulary import OUT_OF_USE, EventKind
from ..style import BLUE, GREEN, GREY, LEGEND, OLIVE, ORANGE, PINK, RED, SKY, layout
from ..words import duration, many
from .drawing import Bar as BarTrace
from .drawing import Figure, Scatter, ending, figure_of, names_axis, plain, single, stretch, upright

Names = Mapping[Key, str]

MOST_LINES = 16
"""GPUs in one figure; more are a band."""
LEFT, RIGHT = 74, 18
"""Pixels beside the drawing, the same in all figures of a page, so that their times lie under each other."""
_COLOURS = (BLUE, ORANGE, GREEN, PINK, RED, SKY, OLIVE, GREY)
_DASHES = ("solid", "dot")
_TOP, _BARE, _BOTTOM, _TITLE = 46, 8, 46, 26  # px; bare: without a legend
_PANEL, _ALONE, _ROW = 200, 360, 22  # px: of a metric, of the only one, of a row of spans
_HOVERED = 4  # lines up to which all values of an instant are shown together
_SHORT = {
    "applications_clocks": "app clocks",
    "thermal_software": "SW thermal",
    "thermal_hardware": "HW thermal",
    "hw_slowdown": "HW slowdown",
}
_BREAK = np.array([np.nan])
_ROWS: dict[str, Any] = {"tickfont": {"size": 11}, "fixedrange": True}
"""Of the axis of rows of bars."""
_PART = 12  # characters of a UUID: `GPU-` and eight digits
_LONG = 20


def label(name: str, most: int = _LONG) -> str:
    """A name in a figure: at most so many letters, as text. UUIDs differ in the beginning, other names at the end."""
    if name.startswith(("GPU-", "MIG-")) and len(name) > most:
        return plain(f"{name[:_PART] if most > _PART else name[4:_PART]}…")
    return plain(ending(name, most))


def times(ts: Times) -> Floats:
    """Times as Plotly takes them: ms since 1970."""
    return ts / 1e6


def of_lines(answer: Lines, names: Names) -> Figure:
    """A panel for each metric with a line for each GPU; reasons for the clock and marks of sensors as bars below.

    `names` gives the GPUs and their order.
    """
    metrics = list(dict.fromkeys(line.metric for line in answer.lines))
    rows = _rows(answer)
    drawing = _Drawing([shown(name).label for name in metrics], [row[0] for row in rows], legend=len(names) > 1)
    look = looks_of(names)
    for line in answer.lines:
        colour, dash = look[line.key]
        name = label(names[line.key])
        drawing.line(
            metrics.index(line.metric),
            x=times(line.ts),
            y=single(line.value),
            name=name,
            legendgroup=name,
            showlegend=line.metric == metrics[0] and len(names) > 1,
            line={"color": colour, "width": 1.5, "dash": dash},
            hovertemplate=f"%{{y:,.5~g}} {shown(line.metric).unit}<extra>{name}</extra>",
        )
    for panel, metric in enumerate(metrics):
        if not any(len(line.ts) for line in answer.lines if line.metric == metric):
            drawing.nothing(panel)
    for number, (_, spans) in enumerate(rows):
        shares = list(names)
        drawing.add(
            -1,
            type="bar",
            orientation="h",
            base=times(np.array([span.began for span in spans], np.int64)).tolist(),
            x=np.array([(span.ended - span.began) / 1e6 for span in spans]),
            y=np.array([number + (shares.index(span.key) + 0.5) / len(shares) * 0.8 - 0.4 for span in spans]),
            width=0.8 / len(shares),
            marker={"color": [look[span.key][0] for span in spans], "line": {"width": 0}},
            text=[_span_text(span, names) for span in spans],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )
    return drawing.figure(answer.since, answer.until, together=len(names) <= _HOVERED)


def of_bands(bands: Bands, lines: Lines | None, names: Names) -> Figure:
    """A panel for each metric: quantiles over the GPUs as bands, the lowest and highest reading, some GPUs on top."""
    titles = [shown(band.metric).label for band in bands.bands]
    if bands.shares:
        titles.append("GPUs whose clock was held down or idle, %")
    drawing = _Drawing(titles, [], legend=True)
    x = times(bands.ts)
    for panel, band in enumerate(bands.bands):
        _band(drawing, panel, band, x)
        look = dict(zip(names, (RED, ORANGE, GREEN, PINK, SKY, OLIVE), strict=False))
        for line in lines.lines if lines else ():
            if line.metric == band.metric and line.key in look:
                name = label(names[line.key])
                drawing.line(
                    panel, x=times(line.ts), y=single(line.value), name=name, legendgroup=name, showlegend=panel == 0,
                    line={"color": look[line.key], "width": 1.5},
                    hovertemplate=f"%{{y:,.5~g}} {shown(band.metric).unit}<extra>{name}</extra>",
                )  # fmt: skip
    for place, share in enumerate(bands.shares):
        drawing.line(
            -1, x=x, y=single(share.percent), name=share.reason.replace("_", " "),
            line={"color": _COLOURS[place % len(_COLOURS)], "width": 1.5},
            hovertemplate=f"%{{y:.3~g}} %<extra>{share.reason.replace('_', ' ')}</extra>",
        )  # fmt: skip
    return drawing.figure(bands.since, bands.until, together=False)


def looks_of(keys: Sequence[Key] | Names) -> dict[Key, tuple[str, str]]:
    """Colour and dash of each GPU, by its place."""
    return {
        key: (_COLOURS[place % len(_COLOURS)], _DASHES[place // len(_COLOURS) % len(_DASHES)])
        for place, key in enumerate(keys)
    }


def _band(drawing: _Drawing, panel: int, band: Band, x: Floats) -> None:
    unit = shown(band.metric).unit
    for low, high, name, opacity, edge in (
        (band.low, band.high, "lowest to highest reading", 0.10, 0.5),
        (band.levels[0], band.levels[4], "5 to 95 % of the GPUs", 0.18, 0),
        (band.levels[1], band.levels[3], "25 to 75 %", 0.28, 0),
    ):
        polygon = _polygon(x, low, high)
        drawing.line(
            panel, x=polygon[0], y=single(polygon[1]), name=name, legendgroup=name, showlegend=panel == 0,
            line={"width": edge, "color": GREY}, fill="toself",
            fillcolor=f"rgba(61,143,209,{opacity})", hoverinfo="skip",
        )  # fmt: skip
    shown_levels = "<br>".join(
        f"{round(100 * level)} %: %{{customdata[{place}]:,.4~g}} {unit}" for place, level in enumerate(LEVELS)
    )
    columns = np.column_stack([*band.levels, band.low, band.high, band.gpus])
    drawing.line(
        panel, x=x, y=single(band.levels[2]), name="median", legendgroup="median", showlegend=panel == 0,
        line={"color": BLUE, "width": 2}, customdata=np.asarray(columns, np.float32),
        hovertemplate=f"{shown_levels}<br>lowest %{{customdata[5]:,.4~g}}, highest %{{customdata[6]:,.4~g}} {unit}"
        "<br>n = %{customdata[7]:,d} GPUs<extra></extra>",
    )  # fmt: skip


def _polygon(x: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """The area between two lines, in pieces where they are known."""
    is_known = ~(np.isnan(low) | np.isnan(high))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_known.view(np.int8), [0]])))
    xs: list[Floats] = []
    ys: list[Floats] = []
    for began, ended in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        piece = slice(began, ended)
        xs += [x[piece], x[piece][::-1], _BREAK]
        ys += [low[piece], high[piece][::-1], _BREAK]
    return (np.concatenate(xs[:-1]), np.concatenate(ys[:-1])) if xs else (np.zeros(0), np.zeros(0))


def _rows(lines: Lines) -> list[tuple[str, list[Span]]]:
    """The rows of bars: reasons for the clock, marks of sensors."""
    rows: dict[str, list[Span]] = {}
    for span in (*lines.reasons, *lines.marks):
        rows.setdefault(_SHORT.get(span.what, span.what.replace("_", " ")), []).append(span)
    return list(rows.items())


def _span_text(span: Span, names: Names) -> str:
    often = f" in {span.times:,} times" if span.times > 1 else ""
    reason = plain(span.what.replace("_", " "))
    return f"{label(names[span.key])}: {reason}, {duration(span.lasted_ns / 1e9)}{often}"


class _Drawing:
    """A figure with a panel for each title and one for rows of bars, below each other."""

    def __init__(self, titles: Sequence[str], rows: Sequence[str], *, legend: bool) -> None:
        top = _TOP if legend else _BARE
        heights = [_ALONE if len(titles) == 1 else _PANEL] * len(titles) + [_ROW * len(rows)] * bool(rows)
        total = sum(height + _TITLE for height in heights)
        self._traces: list[dict[str, Any]] = []
        self._axes: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []
        self._layout = layout(
            total + top + _BOTTOM,
            margin={"l": LEFT, "r": RIGHT, "t": top, "b": _BOTTOM},
            barmode="overlay",
            dragmode="zoom",
            uirevision="kept",
            legend=LEGEND | {"yref": "container", "yanchor": "top"},  # the highest panel has its title there
        )
        at = total
        for height, head in zip(heights, [*titles, *["Reasons for the clock, and marks"] * bool(rows)], strict=True):
            top = at - _TITLE
            at = top - height
            domain = [max(0.0, at / total), top / total]
            self._axes.append({"domain": domain, "anchor": "x", "zeroline": False, "separatethousands": True})
            self._notes.append(
                {
                    "text": f"<b>{plain(head)}</b>", "x": 0, "y": top / total, "xref": "paper", "yref": "paper",
                    "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 13},
                }
            )  # fmt: skip
        if rows:
            self._axes[-1] |= names_axis([plain(row) for row in rows], showgrid=True, **_ROWS)

    def _axis(self, panel: int) -> str:
        number = range(1, len(self._axes) + 1)[panel]
        return "y" if number == 1 else f"y{number}"

    def add(self, panel: int, **trace: Any) -> None:
        """Draw a trace in a panel."""
        self._traces.append({"yaxis": self._axis(panel), **trace})

    def line(self, panel: int, **trace: Any) -> None:
        """Draw a line in a panel."""
        self.add(panel, type="scatter", mode="lines", **trace)

    def nothing(self, panel: int) -> None:
        """Say in a panel that there is nothing to draw."""
        self._notes.append(
            {
                "text": "n/a: no reading in this time", "x": 0.5, "y": 0.5, "xref": "paper",
                "yref": f"{self._axis(panel)} domain", "showarrow": False,
            }
        )  # fmt: skip
        self._axes[panel] |= {"showticklabels": False, "range": [0, 1]}

    def figure(self, since: int, until: int, *, together: bool) -> Figure:
        """The figure from `since` to `until` (ns). `together`: all values of an instant are shown at once."""
        x = {
            "anchor": self._axis(-1),
            "type": "date",
            "zeroline": False,
            "range": [since / 1e6, until / 1e6],
            "autorange": False,
            "uirevision": f"{since}-{until}",  # where a person moved it to counts until the range is another one
            "title": {"text": "UTC"},
            "automargin": "bottom",  # on a phone the times are slanted
            "hoverformat": "%Y-%m-%d %H:%M:%S.%3f",
        }
        y = {f"yaxis{self._axis(panel)[1:]}": axis for panel, axis in enumerate(self._axes)}
        figure_layout = self._layout | {"xaxis": x} | y
        figure_layout |= {"annotations": self._notes, "hovermode": "x" if together else "closest"}
        return figure_of(self._traces, figure_layout | {"hoversubplots": "axis", "hoverdistance": 30})


_LANES_TOP, _LANES_BOTTOM = 12, 64  # px; below the drawing, slanted times have room
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

    events: Happened
    names: Mapping[Key, str]
    rows: tuple[str, ...]
    jobs: tuple[tuple[Bar, float], ...]
    runs: tuple[tuple[Bar, float], ...]
    marks: tuple[tuple[Mark, float], ...]
    thick: float


def arranged(events: Happened, names: Mapping[Key, str], until: int) -> Arranged:
    """A row for each GPU of `names` to which something happened, its jobs above its runs.

    Without names, what happened to several GPUs together is packed into as few rows as it needs. What finds no place in
    `_LANES` rows is left out.
    """
    if names:
        with_events = {bar.key for bar in (*events.runs, *events.jobs)} | {mark.key for mark in events.marks}
        place = {key: row for row, key in enumerate(key for key in names if key in with_events)}
        rows = [label(names[key], _NAME) for key in place]
        has_both = bool(events.jobs and events.runs)
        jobs = [(bar, place[bar.key] - 0.23 * has_both) for bar in events.jobs if bar.key in place]
        runs = [(bar, place[bar.key] + 0.23 * has_both) for bar in events.runs if bar.key in place]
        of_nodes = any(mark.key is None for mark in events.marks)
        marks = [(mark, float(len(rows) if mark.key is None else place[mark.key])) for mark in events.marks]
        rows += ["the node"] * of_nodes
        return Arranged(events, names, tuple(rows), tuple(jobs), tuple(runs), tuple(marks), 0.42 if has_both else 0.7)
    jobs, n = _packed(events.jobs, 0, until)
    runs, m = _packed(events.runs, n, until)
    rows = ["jobs"] * (n > 0) + [""] * (n - 1) + ["probes"] * (m > 0) + [""] * (m - 1)
    kinds = list(dict.fromkeys(mark.kind for mark in events.marks))
    marks = [(mark, float(len(rows) + kinds.index(mark.kind))) for mark in events.marks]
    rows += [plain(kind.replace("_", " "), _NAME) for kind in kinds]
    return Arranged(events, names, tuple(rows), tuple(jobs), tuple(runs), tuple(marks), 0.8)


def of_happened(lanes: Arranged, since: int, until: int) -> Figure | None:
    """Rows of bars and marks. None: nothing happened.

    The browser hides names that have no room, as only it knows how wide the figure is.
    """
    if not lanes.rows:
        return None
    workloads = list(dict.fromkeys(bar.name for bar, _ in lanes.runs))
    jobs = list(dict.fromkeys(bar.name for bar, _ in lanes.jobs))
    traces = []
    for bars, noun, colours in (
        (lanes.jobs, "job", [_JOBS[jobs.index(bar.name) % len(_JOBS)] for bar, _ in lanes.jobs]),
        (lanes.runs, "probe", [_RUNS[workloads.index(bar.name) % len(_RUNS)] for bar, _ in lanes.runs]),
    ):
        traces.append(_bars(bars, noun, colours, lanes, since, until))
    marks = [mark for mark, _ in lanes.marks]
    traces.append(
        Scatter(
            x=times(np.array([mark.at for mark in marks], np.int64)),
            y=np.array([row for _, row in lanes.marks]),
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
            round(_BAR / lanes.thick) * len(lanes.rows) + _LANES_TOP + _LANES_BOTTOM,
            margin={"l": LEFT, "r": RIGHT, "t": _LANES_TOP, "b": _LANES_BOTTOM},
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
            yaxis=names_axis(lanes.rows, **_ROWS),
        ),
    )


def behind(events: Happened, since: int, until: int) -> list[dict[str, Any]]:
    """Runs (else jobs) of one GPU as bands, and events as lines, for the layout of a figure of the same time."""
    gpus = {bar.key for bar in (*events.runs, *events.jobs)}
    bars = (events.runs or events.jobs) if len(gpus) == 1 and None not in gpus else ()
    bands = [
        stretch(
            max(bar.began, since) / 1e6, min(bar.ended or until, until) / 1e6, GREY, 0.13 if place % 2 == 0 else 0.07
        )
        for place, bar in enumerate(bars[:_BANDS])
    ]
    return [*bands, *(upright(mark.at / 1e6, colour_of(mark.kind)) for mark in events.marks[:_LINES])]


def colour_of(kind: str) -> str:
    """The colour of a kind of event: grave or other."""
    return RED if kind in _GRAVE else BLUE


def in_words(lanes: Arranged) -> str:
    """How many jobs, runs and events there are, and how many of them are shown."""
    events, parts = lanes.events, []
    for n, drawn, noun in (
        (events.all_jobs, len(lanes.jobs), "job"),
        (events.all_runs, len(lanes.runs), "run" if lanes.names else "probe"),
        (events.all_events, sum(mark.times for mark, _ in lanes.marks), "event"),
    ):
        if n:
            parts.append(many(n, noun) + (f" ({drawn:,} of the longest shown)" if drawn < n else ""))
    return ", ".join(parts)


def _bars(
    bars: Sequence[tuple[Bar, float]], noun: str, colours: Sequence[str], lanes: Arranged, since: int, until: int
) -> Any:
    length = until - since  # a bar that goes on is cut a screen beyond the range
    began = np.array([max(bar.began, since - length) for bar, _ in bars], np.int64)
    ended = np.array([min(bar.ended or until + length, until + length) for bar, _ in bars], np.int64)
    return BarTrace(
        orientation="h",
        base=times(began).tolist(),
        x=(ended - began) / 1e6,
        y=np.array([row for _, row in bars]),
        width=lanes.thick,
        marker={"color": list(colours), "opacity": _PALE, "line": {"width": 0.5, "color": GREY}},
        text=[plain(bar.name) for bar, _ in bars],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"size": _LETTERS},
        customdata=[_about(bar, noun, lanes.names) for bar, _ in bars],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _about(bar: Bar, noun: str, names: Mapping[Key, str]) -> str:
    whose = label(names[bar.key]) if bar.key is not None and bar.key in names else many(bar.gpus, "GPU")
    length = "has not ended" if bar.ended is None else duration((bar.ended - bar.began) / 1e9)
    says = f", {plain(bar.says)}" if bar.says else ""
    return f"{noun} {plain(bar.name)}{says}<br>{whose}, {length}"


def _sentence(mark: Mark) -> str:
    text = mark.says if len(mark.says) <= _LONGEST else f"{mark.says[:_LONGEST]}…"
    often = f" ({mark.times:,} times)" if mark.times > 1 else ""
    return f"<b>{plain(mark.kind.replace('_', ' '))}</b>{often}<br>{plain(text)}"


def _packed(bars: Sequence[Bar], first: int, until: int) -> tuple[list[tuple[Bar, float]], int]:
    """Each bar with its row, from `first` on: the first row that is free; bars that find none are left out."""
    free: list[int] = []
    events = []
    for bar in bars:
        row = next((row for row, ended in enumerate(free) if ended <= bar.began), len(free))
        if row < _LANES:
            ended = bar.ended or until
            free[row : row + 1] = [ended]
            events.append((bar, float(first + row)))
    return events, len(free)
