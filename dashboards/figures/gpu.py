"""The figures of one GPU: what an effect is made of, its place among its peers, its past, why its clock was held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

import numpy as np

from ...analysis.one_gpu.happened import Held, Mark, Reasons
from ...analysis.one_gpu.standing import Five, Line, Sitting, Standing
from ...analysis.verdicts.verdict import Change, Verdict
from ..style import BLUE, GREEN, GREY, LEGEND, ORANGE, PINK, RED, SKY, layout, room
from ..words import (
    CLOCK_REASONS,
    FIGURES,
    MISSING,
    count,
    interval,
    many,
    minus,
    number,
    part_of,
    percent,
    with_interval,
)
from .drawing import (
    PERCENT,
    Bar,
    Figure,
    Heatmap,
    Scatter,
    error_bars,
    figure_of,
    names_axis,
    plain,
    single,
    stretch,
    upright,
)

_NO_MARGIN = {"zeroline": False, "showgrid": False}
_BESIDE: dict[str, Any] = {"automargin": True, "ticklabelstandoff": 6}
"""Of an axis of names."""


def figure_name(figure: str) -> str:
    """The name of a figure of `fingerprints`, for people."""
    return FIGURES.get(figure, figure.replace("_", " "))


def subject(standing: Standing) -> str:
    """What a figure is of: the workload, its class, or the GPU."""
    return standing.workload or (f"all of {standing.of}" if standing.figure == "time" else "the GPU")


def reason_name(held: Held) -> str:
    """The name of a reason that holds a clock, for people."""
    return CLOCK_REASONS.get(held.reason.name, held.reason.name.replace("_", " "))


# -- what an effect is made of -----------------------------------------------------------------------------------


def causes(verdict: Verdict) -> Figure:
    """The causes of a verdict, each with its 95 % interval, the largest first; they add up to the effect.

    Raises ValueError for a verdict without causes.
    """
    if not verdict.causes or verdict.effect_pct is None:
        raise ValueError(f"the verdict about {verdict.name} has no causes")
    parts = sorted(verdict.causes, key=lambda part: -abs(part.pct))
    names = [*(plain(part.what, 34) for part in parts), "in all"]
    ends = [*((part.low_pct, part.high_pct) for part in parts), (verdict.low_pct, verdict.high_pct)]
    sizes = [*(part.pct for part in parts), verdict.effect_pct]
    tips = [*accumulate(part.pct for part in parts), verdict.effect_pct]
    starts = [0.0, *tips[:-2], 0.0]
    down = [0.0 if low is None else max(size - low, 0.0) for size, (low, _) in zip(sizes, ends, strict=True)]
    up = [0.0 if high is None else max(high - size, 0.0) for size, (_, high) in zip(sizes, ends, strict=True)]
    texts = [
        minus(with_interval(size, low, high, signed=True, unit="%"))
        for size, (low, high) in zip(sizes, ends, strict=True)
    ]
    rows = list(range(len(sizes)))[::-1]
    edges = np.array([[0.0] * len(tips), tips, np.add(tips, up), np.subtract(tips, down)])
    margin = 0.04 * float(np.ptp(edges))
    traces: list[Any] = [
        Bar(
            y=rows, x=sizes, base=starts, orientation="h", width=0.56, showlegend=False,
            marker={"color": [*(ORANGE if part.pct >= 0 else BLUE for part in parts), "rgba(138,143,152,0.4)"]},
            hovertext=[f"{name}: {text}" for name, text in zip(names, texts, strict=True)],
            hovertemplate="%{hovertext}<extra></extra>",
        ),
        Scatter(
            x=tips, y=rows, mode="markers", marker={"size": 1, "color": GREY}, hoverinfo="skip", showlegend=False,
            error_x=error_bars(down, up, GREY, width=5),
        ),
    ]  # fmt: skip
    steps = [
        {
            "type": "line", "x0": tip, "x1": tip, "y0": row - 0.28, "y1": row - 0.72,
            "line": {"width": 1, "color": GREY}, "layer": "below",
        }
        for tip, row in zip(tips[:-1], rows, strict=False)
    ]  # fmt: skip
    return figure_of(
        traces,
        layout(
            84 + 42 * len(rows),
            margin={"l": 8, "r": 8, "t": 12, "b": 52},
            shapes=steps,
            xaxis={
                "title": {"text": "of the time of its peers, %"},
                "range": [float(edges.min()) - margin, float(edges.max()) + margin],
                "zeroline": True,
            },
            yaxis=names_axis([f"{name}<br>{text}" for name, text in zip(names, texts, strict=True)], rows, **_BESIDE),
        ),
    )


# -- beside its peers --------------------------------------------------------------------------------------------

_KINDS = ("time", "SM clock", "power", "work per joule")
_OTHER_KIND = "other figures"
_PEERS = "its peers: 5 to 95 %, 25 to 75 %, median"
_AMONG = ("this GPU", BLUE, "circle")
_BEYOND = ("this GPU, beyond 90 % of its peers", RED, "diamond")


@dataclass(frozen=True)
class PeerRow:
    """The GPU's value with its 95 % interval, beside the quantiles of its peers."""

    label: str
    """At most two lines; of each, 30 letters are shown."""
    value: float
    low: float | None
    high: float | None
    band: Five | None
    text: str
    """Where the pointer rests on it."""

    @property
    def beyond(self) -> bool:
        """Whether it is outside of the band from 5 to 95 %."""
        return self.band is not None and not self.band[0] <= self.value <= self.band[4]


def beside_peers(stands: Sequence[Standing]) -> dict[str, Figure]:
    """By the kind of figure, where the GPU is among its peers in per cent of their level. Times come first; what has no
    ratio to the peers, such as a count, is in no figure."""
    rows: dict[str, list[PeerRow]] = {}
    for standing in stands:
        if standing.off_pct is None:
            continue
        kind, label = figure_name(standing.figure), subject(standing)
        if kind not in _KINDS:
            label = kind if standing.workload is None else f"{kind}\n{standing.workload}"
            kind = _OTHER_KIND
        row = PeerRow(
            label,
            standing.off_pct,
            standing.off_low_pct,
            standing.off_high_pct,
            standing.band_pct,
            _standing_text(standing),
        )
        rows.setdefault(kind, []).append(row)
    titles = {kind: "slower than its peers, %" if kind == "time" else "more than its peers, %" for kind in rows}
    return {kind: _rows(rows[kind], titles[kind]) for kind in (*_KINDS, _OTHER_KIND) if kind in rows}


def _rows(rows: Sequence[PeerRow], title: str) -> Figure:
    """The rows, the first on top."""
    scale = PERCENT.bend
    places = np.arange(len(rows))[::-1]
    banded = [(place, row.band) for place, row in zip(places, rows, strict=True) if row.band is not None]
    # One name in the legend, as Plotly lays a long legend over the rows.
    peers: dict[str, Any] = {"name": _PEERS, "legendgroup": _PEERS, "hoverinfo": "skip"}
    traces: list[Any] = []
    for first, last, opacity in ((0, 4, 0.22), (1, 3, 0.42)):
        start, end = (scale([band[edge] for _, band in banded]) for edge in (first, last))
        traces.append(
            Bar(
                y=[place for place, _ in banded], x=end - start, base=start.tolist(), orientation="h", width=0.62,
                marker={"color": f"rgba(138,143,152,{opacity})"}, showlegend=bool(banded) and first == 1, **peers,
            )
        )  # fmt: skip
    traces.append(
        Scatter(
            x=scale([band[2] for _, band in banded]), y=[place for place, _ in banded], mode="markers",
            showlegend=False, marker={"symbol": "line-ns", "size": 17, "line": {"width": 2, "color": GREY}}, **peers,
        )
    )  # fmt: skip
    for name, colour, symbol in (_AMONG, _BEYOND):
        drawn_rows = [
            (place, row) for place, row in zip(places, rows, strict=True) if row.beyond is (symbol == _BEYOND[2])
        ]
        if not drawn_rows:
            continue
        x = scale([row.value for _, row in drawn_rows])
        low = scale([row.value if row.low is None else row.low for _, row in drawn_rows])
        high = scale([row.value if row.high is None else row.high for _, row in drawn_rows])
        traces.append(
            Scatter(
                x=x, y=[place for place, _ in drawn_rows], mode="markers", name=name,
                error_x=error_bars(x - low, high - x, colour),
                marker={"color": colour, "symbol": symbol, "size": 10, "line": {"width": 1, "color": "#ffffff"}},
                text=[row.text for _, row in drawn_rows], hovertemplate="%{text}<extra></extra>",
            )
        )  # fmt: skip
    values = [value for row in rows for value in (row.value, row.low, row.high, *(row.band or ())) if value is not None]
    # On a phone, each name of the legend takes a line of the height.
    row_height = 36 if any("\n" in row.label for row in rows) else 30
    return figure_of(
        traces,
        layout(
            118 + row_height * len(rows),
            barmode="overlay",
            margin={"l": 8, "r": 12, "t": 32, "b": 52},
            legend=LEGEND | {"tracegroupgap": 0},
            xaxis=PERCENT.axis([min(values), max(values)], title),
            yaxis=names_axis(
                ["<br>".join(plain(line, 30) for line in row.label.split("\n", 1)) for row in rows],
                places.tolist(),
                **_BESIDE,
            ),
        ),
    )


def _standing_text(standing: Standing) -> str:
    ends = interval(standing.low, standing.high, signed=False)
    band = standing.band_pct
    off = with_interval(standing.off_pct, standing.off_low_pct, standing.off_high_pct, signed=True, unit="%")
    sittings = "" if standing.sittings is None else f" in {many(standing.sittings, 'sitting')}"
    lines = [
        plain(f"{subject(standing)}: {figure_name(standing.figure)}"),
        plain(f"{number(standing.value)} {standing.unit} {ends}") if standing.unit else "",
        f"beside its peers: {off}",
        "" if band is None else f"90 % of {standing.gpus:,} GPUs: {percent(band[0])} to {percent(band[4])} %",
        "" if standing.rank is None else f"rank {standing.rank:,} of {count(standing.peers)}, 1 has the lowest value",
        f"{many(standing.n, 'run')}{sittings}",
    ]
    return "<br>".join(minus(line) for line in lines if line)


# -- its past ----------------------------------------------------------------------------------------------------

_MARKS = {
    "driver": ("driver", GREEN, "triangle-down"),
    "vbios": ("VBIOS", PINK, "triangle-down"),
    "place": ("moved", SKY, "triangle-down"),
    "power_limit_w": ("power limit", ORANGE, "triangle-down"),
}
_EVENT = ("event", GREY, "x-thin")
_MOST_MARKS = 60  # of a busy history, the newest
_ROOM = 0.12


def past(line: Line, changes: Sequence[tuple[Change, str]] = (), marks: Sequence[Mark] = ()) -> Figure:
    """The sittings of a line with their 95 % intervals; for each, its peers of that day from 5 to 95 and 25 to 75 %.

    `changes`: as the judge found them, of any workload, each with what else changed then, in words: those of this
    workload are bands from the last sitting before to the first after. `marks`: what may have changed the
    GPU, above its day.
    """
    sittings = line.sittings
    dated = [
        (_change_text(change, joined), change.effect_pct, change.since, change.at)
        for change, joined in changes
        if change.workload == line.workload and change.since is not None and change.at is not None
    ]
    marks = list(marks)[-_MOST_MARKS:]
    ends = [
        value
        for sitting in sittings
        for value in (sitting.off_pct, sitting.low_pct, sitting.high_pct, *(sitting.peers_pct or ()))
        if value is not None
    ]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    margin = max(_ROOM * (high - low), 0.1)
    low, high = low - margin, high + margin
    against = "its peers" if line.beside_peers else "its own median"
    traces = [*_peers_by_day(sittings), _own_sittings(sittings, against)]
    if dated:
        traces.append(
            Scatter(
                x=[since + (at - since) / 2 for _, _, since, at in dated], y=[high] * len(dated), mode="markers+text",
                name="its level changed", marker={"symbol": "square", "size": 11, "color": ORANGE},
                text=[minus(f"{percent(effect)} %") for _, effect, _, _ in dated], textposition="top center",
                customdata=[[minus(text)] for text, *_ in dated], hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )  # fmt: skip
    traces += [
        _marked([mark for mark in marks if _look(mark) == look], high) for look in dict.fromkeys(map(_look, marks))
    ]
    bands = [stretch(since, at, "rgba(230,159,0,0.22)") for _, _, since, at in dated]
    lines = [upright(mark.at, _look(mark)[1]) for mark in marks if mark.what in _MARKS]
    times = [sitting.began for sitting in sittings if sitting.began is not None]
    return figure_of(
        traces,
        layout(
            360,
            margin={"l": 56, "r": 12, "t": 36, "b": 44},
            shapes=[*bands, *lines],
            xaxis=_NO_MARGIN
            | {
                "type": "date",
                "title": {"text": "UTC"},
                "automargin": True,
                **room([*times, *(mark.at for mark in marks), *(at for *_, at in dated)]),
            },
            yaxis={
                "title": {"text": f"slower than {against}, %"},
                "zeroline": True,
                "range": [low, high + _ROOM * (high - low)],
            },
        ),
    )


def _peers_by_day(sittings: Sequence[Sitting]) -> list[Any]:
    """Of each sitting a bar from 5 to 95 % of its peers, one from 25 to 75 %, and their median."""
    days = [(sitting, sitting.peers_pct) for sitting in sittings if sitting.peers_pct is not None]
    if not days:
        return []
    traces: list[Any] = [
        Scatter(
            x=[time for sitting, _ in days for time in (sitting.began, sitting.began, None)],
            y=[value for _, peers in days for value in (peers[first], peers[last], None)],
            mode="lines", name=name, line={"color": GREY, "width": width}, opacity=opacity, hoverinfo="skip",
        )
        for first, last, width, opacity, name in (
            (0, 4, 5, 0.3, "its peers on that day, 5 to 95 %"),
            (1, 3, 9, 0.5, "25 to 75 %"),
        )
    ]  # fmt: skip
    texts = [
        f"{sitting.peers:,} peers on {sitting.began:%Y-%m-%d}: median {percent(peers[2])} %, 90 % from "
        f"{percent(peers[0])} to {percent(peers[4])} %"
        for sitting, peers in days
    ]
    traces.append(
        Scatter(
            x=[sitting.began for sitting, _ in days], y=[peers[2] for _, peers in days], mode="lines+markers",
            name="their median", line={"color": GREY, "width": 1.5, "dash": "dot"},
            marker={"symbol": "line-ew", "size": 12, "line": {"width": 2, "color": GREY}},
            text=texts, hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    return traces


def _own_sittings(sittings: Sequence[Sitting], against: str) -> Any:
    down = [0.0 if sitting.low_pct is None else sitting.off_pct - sitting.low_pct for sitting in sittings]
    up = [0.0 if sitting.high_pct is None else sitting.high_pct - sitting.off_pct for sitting in sittings]
    return Scatter(
        x=[sitting.began for sitting in sittings], y=[sitting.off_pct for sitting in sittings], mode="lines+markers",
        name="this GPU", line={"color": BLUE, "width": 2},
        marker={"color": BLUE, "size": 8, "line": {"width": 1, "color": "#ffffff"}},
        error_y=error_bars(down, up, BLUE, width=3),
        text=[_sitting_text(sitting, against) for sitting in sittings], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _sitting_text(sitting: Sitting, against: str) -> str:
    readings = ((sitting.sm_clock_mhz, "MHz", 4), (sitting.power_w, "W", 4), (sitting.temperature_c, "°C", 4))
    texts = [f"{number(value, digits)} {unit}" for value, unit, digits in readings if value is not None]
    off = with_interval(sitting.off_pct, sitting.low_pct, sitting.high_pct, signed=True, unit="%")
    day = f"than {sitting.peers:,} peers on that day: {percent(sitting.that_day_pct)} %"
    lines = [
        f"{sitting.began:%Y-%m-%d %H:%M} UTC, {many(sitting.n, 'run')}",
        f"slower than {against}: {off}",
        "" if sitting.that_day_pct is None else day,
        ", ".join(texts) or MISSING,
    ]
    return minus("<br>".join(text for text in lines if text))


def _change_text(change: Change, joined: str) -> str:
    together = "" if change.together < 2 else f"<br>{change.together:,} GPUs changed then"
    beside = f"<br>then: {plain(joined, 120)}" if joined else ""
    effect = with_interval(change.effect_pct, change.low_pct, change.high_pct, signed=True, unit="%")
    return (
        f"{effect} between {change.since:%Y-%m-%d} and {change.at:%Y-%m-%d}; {many(change.n, 'sitting')}, "
        f"q {change.q:.1g}{together}{beside}"
    )


def _look(mark: Mark) -> tuple[str, str, str]:
    return _MARKS.get(mark.what, _EVENT)


def _marked(marks: Sequence[Mark], high: float) -> Any:
    """What happened, at the top, of one look."""
    name, colour, symbol = _look(marks[0])
    return Scatter(
        x=[mark.at for mark in marks], y=[high] * len(marks), mode="markers", name=name,
        marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
        text=[f"{mark.at:%Y-%m-%d %H:%M}<br>{plain(mark.says, 120)}" for mark in marks],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


# -- why its clock was held --------------------------------------------------------------------------------------

_SHADES = [[0.0, "rgba(138,143,152,0.16)"], [0.02, "#f2d9a8"], [0.3, "#e69f00"], [1.0, "#a03c00"]]
_GAP = 3  # steps that a gap is wide
_MOST_TICKS = 6


def clock(reasons: Reasons) -> Figure:
    """The share of each step in which each reason held the clock. Time in which nothing was read is left blank, and
    shown shorter than it was."""
    gaps = np.flatnonzero(np.diff(reasons.stretch))
    x = np.arange(len(reasons.stretch)) + _GAP * reasons.stretch
    width = int(x[-1]) + 1
    shares = np.full((len(reasons.held), width), np.nan, dtype=np.float32)
    texts = [[""] * width for _ in reasons.held]
    for row, held in enumerate(reasons.held):
        shares[row, x] = single(100 * held.share)
        for step in np.flatnonzero(np.isfinite(held.share)).tolist():
            texts[row][int(x[step])] = _step_text(reasons, held, step)
    middles = [float(x[gap]) + 0.5 + _GAP / 2 for gap in gaps.tolist()]
    breaks = [upright(middle, "rgba(138,143,152,0.8)", "above") for middle in middles]
    ticks, tick_texts = _time_ticks(reasons, x)
    return figure_of(
        [
            Heatmap(
                z=shares, text=texts, hovertemplate="%{text}<extra></extra>", hoverongaps=False, zmin=0, zmax=100,
                colorscale=_SHADES, ygap=6,
                colorbar={
                    "title": {"text": "of the time, %", "side": "top", "font": {"size": 12}}, "orientation": "h",
                    "tickvals": [0, 25, 50, 75, 100], "thickness": 10, "len": 0.5, "x": 0, "xanchor": "left", "y": 1,
                    "yanchor": "bottom", "ypad": 14, "outlinewidth": 0,
                },
            )
        ],
        layout(
            122 + 34 * len(reasons.held),
            margin={"l": 8, "r": 12, "t": 60, "b": 48},
            shapes=breaks,
            xaxis=_NO_MARGIN
            | {
                "tickvals": ticks, "ticktext": tick_texts, "range": [-0.5, width - 0.5], "tickangle": 0,
                "title": {"text": "UTC"},
            },
            yaxis=names_axis([f"{reason_name(held)}, {part_of(held.whole, 1.0)}" for held in reasons.held], **_BESIDE),
        ),
    )  # fmt: skip


def _step_text(reasons: Reasons, held: Held, step: int) -> str:
    source = "counted by the driver" if held.counted else f"in {many(int(reasons.n[step]), 'reading')}"
    most = "at most " if not held.counted and reasons.minutes else ""
    return (
        f"{reasons.began[step]:%Y-%m-%d %H:%M:%S} to {reasons.ended[step]:%Y-%m-%d %H:%M:%S} UTC<br>"
        f"{plain(reason_name(held))}: {most}{part_of(float(held.share[step]), 1.0)} of the time, {source}<br>"
        f"{part_of(float(reasons.covered[step]), 1.0)} of the time was read"
    )


def _time_ticks(reasons: Reasons, x: Any) -> tuple[list[float], list[str]]:
    """Where times stand: at the beginning of stretches, else evenly."""
    starts = [0, *(np.flatnonzero(np.diff(reasons.stretch)) + 1).tolist()]
    if len(starts) == 1:
        starts = np.unique(np.linspace(0, len(x) - 1, _MOST_TICKS).round().astype(int)).tolist()
    steps: list[int] = []
    for start in starts:
        if not steps or x[start] - x[steps[-1]] >= len(x) / _MOST_TICKS:
            steps.append(start)
    length = reasons.ended[-1] - reasons.began[0]
    form = "%Y-%m-%d" if length.days > 2 else "%m-%d %H:%M" if length > timedelta(minutes=12) else "%H:%M:%S"
    return [float(x[step]) for step in steps], [f"{reasons.began[step]:{form}}" for step in steps]
