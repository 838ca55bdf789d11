"""The past of one GPU in a workload: its sittings beside its peers of the same days, and what changed when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...analysis.one_gpu.happened import Mark
from ...analysis.one_gpu.past import Line, Sitting
from ...analysis.verdicts.verdict import Change
from ..documents.evidence import changed_with
from ..style import BLUE, GREEN, GREY, ORANGE, PINK, SKY, layout, room
from ..table import MISSING, many, minus, number
from ..words import interval, percent
from .drawing import Figure, Scatter, figure_of
from .looks import plain

_MARKS = {
    "driver": ("driver", GREEN, "triangle-down"),
    "vbios": ("VBIOS", PINK, "triangle-down"),
    "place": ("moved", SKY, "triangle-down"),
    "power_limit_w": ("power limit", ORANGE, "triangle-down"),
}
_EVENT = ("event", GREY, "x-thin")
_CHANGE = "rgba(230,159,0,0.22)"
_MOST_MARKS = 60  # of a busy history, the newest
_ROOM = 0.12


def history(line: Line, changes: Sequence[Change] = (), marks: Sequence[Mark] = ()) -> Figure:
    """The sittings of a line with their 95 % intervals; for each, its peers of that day from 5 to 95 and 25 to 75 %.

    `changes`: those of its workload, as the judge found them: a band from the last sitting before to the first after.
    """
    sat = line.sittings
    mine = [one for one in changes if one.workload == line.workload]
    shown = list(marks)[-_MOST_MARKS:]
    low, high = _reach(sat)
    traces = [*_peers(sat), _own(sat, "its peers" if line.beside_peers else "its own median")]
    traces += _changes(mine, high)
    traces += _marks(shown, high)
    against = "slower than its peers, %" if line.beside_peers else "slower than its own median, %"
    bands = [
        {
            "type": "rect", "xref": "x", "yref": "paper", "x0": one.since, "x1": one.at, "y0": 0, "y1": 1,
            "fillcolor": _CHANGE, "line": {"width": 0}, "layer": "below",
        }
        for one in mine
        if one.since is not None and one.at is not None
    ]  # fmt: skip
    lines = [
        {
            "type": "line", "xref": "x", "yref": "paper", "x0": one.at, "x1": one.at, "y0": 0, "y1": 1,
            "line": {"width": 1, "dash": "dot", "color": _look(one)[1]}, "layer": "below",
        }
        for one in shown
        if one.what in _MARKS
    ]  # fmt: skip
    return figure_of(
        traces,
        layout(
            360,
            margin={"l": 56, "r": 12, "t": 36, "b": 44},
            shapes=[*bands, *lines],
            xaxis={
                "type": "date",
                "title": {"text": "UTC"},
                "automargin": True,
                "zeroline": False,
                "showgrid": False,
                **room(
                    [one.began for one in sat if one.began is not None]
                    + [one.at for one in shown]
                    + [one.at for one in mine if one.at]
                ),
            },
            yaxis={"title": {"text": against}, "zeroline": True, "range": [low, high + _ROOM * (high - low)]},
        ),
    )


def counted(line: Line) -> str:
    """How many peers stand behind the sittings, in words."""
    many_ = [one.peers for one in line.sittings]
    low, high = min(many_, default=0), max(many_, default=0)
    return f"n {low:,}" if low == high else f"n {low:,} to {high:,}"


def _reach(sat: Sequence[Sitting]) -> tuple[float, float]:
    values = [
        v for one in sat for v in (one.off_pct, one.low_pct, one.high_pct, *(one.peers_pct or ())) if v is not None
    ]
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = max(_ROOM * (high - low), 0.1)
    return low - room, high + room


def _peers(sat: Sequence[Sitting]) -> list[Any]:
    """Of each sitting a bar from 5 to 95 % of its peers, one from 25 to 75 %, and their median."""
    known = [one for one in sat if one.peers_pct is not None]
    if not known:
        return []
    found: list[Any] = []
    for first, last, width, opacity, name in (
        (0, 4, 5, 0.3, "its peers on that day, 5 to 95 %"),
        (1, 3, 9, 0.5, "25 to 75 %"),
    ):
        x: list[Any] = []
        y: list[Any] = []
        for one in known:
            if one.peers_pct is not None:
                x += [one.began, one.began, None]
                y += [one.peers_pct[first], one.peers_pct[last], None]
        found.append(
            Scatter(
                x=x,
                y=y,
                mode="lines",
                name=name,
                line={"color": GREY, "width": width},
                opacity=opacity,
                hoverinfo="skip",
            )
        )
    found.append(
        Scatter(
            x=[one.began for one in known], y=[one.peers_pct[2] for one in known if one.peers_pct is not None],
            mode="lines+markers", name="their median", line={"color": GREY, "width": 1.5, "dash": "dot"},
            marker={"symbol": "line-ew", "size": 12, "line": {"width": 2, "color": GREY}},
            text=[
                f"{one.peers:,} peers on {one.began:%Y-%m-%d}: median {percent(one.peers_pct[2])} %, "
                f"90 % from {percent(one.peers_pct[0])} to {percent(one.peers_pct[4])} %"
                for one in known
                if one.peers_pct is not None
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    return found


def _own(sat: Sequence[Sitting], against: str) -> Any:
    more = [(one.off_pct if one.high_pct is None else one.high_pct) - one.off_pct for one in sat]
    less = [one.off_pct - (one.off_pct if one.low_pct is None else one.low_pct) for one in sat]
    return Scatter(
        x=[one.began for one in sat],
        y=[one.off_pct for one in sat],
        mode="lines+markers",
        name="this GPU",
        line={"color": BLUE, "width": 2},
        marker={"color": BLUE, "size": 8, "line": {"width": 1, "color": "#ffffff"}},
        error_y={"type": "data", "symmetric": False, "array": more, "arrayminus": less, "color": BLUE, "width": 3},
        text=[_says(one, against) for one in sat],
        hovertemplate="%{text}<extra></extra>",
    )


def _says(one: Sitting, against: str) -> str:
    day = "" if one.that_day_pct is None else f"<br>than {one.peers:,} peers on that day: {percent(one.that_day_pct)} %"
    read = [
        f"{number(value, 4)} {unit}"
        for value, unit in ((one.sm_clock_mhz, "MHz"), (one.power_w, "W"), (one.temperature_c, "°C"))
        if value is not None
    ]
    return minus(
        f"{one.began:%Y-%m-%d %H:%M} UTC, {many(one.n, 'run')}<br>slower than {against}: {percent(one.off_pct)} % "
        f"{interval(one.low_pct, one.high_pct)}{day}<br>{', '.join(read) or MISSING}"
    )


def _changes(changes: Sequence[Change], high: float) -> list[Any]:
    """The sizes of changes, above the bands that show when."""
    known = [one for one in changes if one.since is not None and one.at is not None]
    if not known:
        return []
    return [
        Scatter(
            x=[one.since + (one.at - one.since) / 2 for one in known if one.since is not None and one.at is not None],
            y=[high] * len(known), mode="markers+text", name="its level changed",
            marker={"symbol": "square", "size": 11, "color": ORANGE}, textposition="top center",
            text=[f"{percent(one.effect_pct)} %" for one in known],
            customdata=[[_change_says(one)] for one in known], hovertemplate="%{customdata[0]}<extra></extra>",
        )
    ]  # fmt: skip


def _change_says(one: Change) -> str:
    also = "" if one.together < 2 else f"<br>{one.together} GPUs changed then"
    joined = ", ".join(words for value in one.joined_with if (words := changed_with(value)))
    beside = "" if not joined else f"<br>then: {plain(joined, 120)}"
    return (
        f"changed by {percent(one.effect_pct)} % {interval(one.low_pct, one.high_pct)}<br>between {one.since:%Y-%m-%d} "
        f"and {one.at:%Y-%m-%d}; {many(one.n, 'sitting')}, q {one.q:.1g}{also}{beside}"
    )


def _look(one: Mark) -> tuple[str, str, str]:
    return _MARKS.get(one.what, _EVENT)


def _marks(marks: Sequence[Mark], high: float) -> list[Any]:
    """What happened, at the top, by its kind."""
    found = []
    for look in dict.fromkeys(map(_look, marks)):
        mine = [one for one in marks if _look(one) == look]
        name, colour, symbol = look
        found.append(
            Scatter(
                x=[one.at for one in mine], y=[high] * len(mine), mode="markers", name=name,
                marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
                text=[f"{one.at:%Y-%m-%d %H:%M}<br>{plain(one.says, 120)}" for one in mine],
                hovertemplate="%{text}<extra></extra>",
            )
        )  # fmt: skip
    return found
