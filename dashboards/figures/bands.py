"""One GPU in the quantiles of its peers: a row a figure, with bands from 5 to 95 and from 25 to 75 %."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...analysis.fleet.side_by_side import Floats
from ...analysis.one_gpu.past import Line, Scatter
from ...analysis.one_gpu.standing import Five, Standing
from ..style import BLUE, GREY, LEGEND, RED, layout
from ..table import MISSING, count, many, minus, number
from ..words import interval, percent
from . import drawing
from .bent import bent, bent_axis
from .drawing import Bar, Figure, figure_of
from .looks import plain

_ROW, _HIGHER, _AROUND = 30, 36, 118  # on a phone, each name of the legend takes a line of it
_PEERS = "its peers: 5 to 95 %, 25 to 75 %, median"
_OUTER, _INNER = "rgba(138,143,152,0.22)", "rgba(138,143,152,0.42)"
_LOOKS = {False: ("this GPU", BLUE, "circle"), True: ("this GPU, beyond 90 % of its peers", RED, "diamond")}
_WORDS = {
    "sm_clock": "SM clock", "time_spread": "time, sitting to sitting", "work_per_joule": "work per joule",
    "temperature_rise": "warming per watt", "power_at_fixed_clock": "power at fixed clock", "xids": "XID errors",
}  # fmt: skip
_KINDS = ("time", "SM clock", "power", "work per joule")
_REST = "other figures"
_TICKS = 5
_LEAST_PCT = 1e-3  # a spread below it is drawn there


@dataclass(frozen=True)
class Row:
    """A row: the GPU's value with its 95 % interval, beside the quantiles of its peers."""

    label: str
    """At most two lines; of each, 30 letters are shown."""
    value: float
    low: float | None
    high: float | None
    band: Five | None
    says: str
    above: bool = False
    """Whether only a higher value than its peers' stands out."""

    @property
    def outside(self) -> bool:
        """Whether it is outside of the band from 5 to 95 %, on a side that stands out."""
        return self.band is not None and (self.value > self.band[4] or (self.value < self.band[0] and not self.above))


def words(figure: str) -> str:
    """The name of a figure of `fingerprints`, for people."""
    return _WORDS.get(figure, figure.replace("_", " "))


def subject(one: Standing) -> str:
    """What a figure is of: the workload, its class, or the GPU."""
    return one.workload or (f"all of {one.of}" if one.figure == "time" else "the GPU")


def fingerprint(stands: Sequence[Standing]) -> dict[str, Figure]:
    """By the kind of figure, where the GPU is among its peers in per cent of their level. Times come first; what has no
    ratio to the peers, such as a count, is in no figure."""
    return {kind: fingerprint_of(kind, rows) for kind, rows in kinds(stands).items()}


def kinds(stands: Sequence[Standing]) -> dict[str, list[Row]]:
    """The rows of each figure of `fingerprint`, which is not drawn."""
    rows: dict[str, list[Row]] = {}
    for one in stands:
        if one.off_pct is None:
            continue
        kind = words(one.figure)
        label = subject(one)
        if kind not in _KINDS:
            kind, label = _REST, kind if one.workload is None else f"{kind}\n{one.workload}"
        row = Row(label, one.off_pct, one.off_low_pct, one.off_high_pct, one.band_pct, _says(one))
        rows.setdefault(kind, []).append(row)
    return {kind: rows[kind] for kind in (*_KINDS, _REST) if kind in rows}


def fingerprint_of(kind: str, rows: Sequence[Row]) -> Figure:
    """One figure of `fingerprint`."""
    return drawn(rows, _titled("more than its peers, %" if kind != "time" else "slower than its peers, %"))


def repeatability(lines: Iterable[Line]) -> Figure | None:
    """How far the GPU's times scatter within a sitting and from one to the next, beside its peers; None where no run
    was repeated."""
    parts = [
        (line, where, one)
        for line in lines
        for where, one in (("within a sitting", line.within), ("between sittings", line.between))
        if one is not None
    ]
    wheres = {where for _, where, _ in parts}
    alike = f" {wheres.pop()}" if len(wheres) == 1 else ""  # said once, where it is the same of all
    rows = [
        Row(
            line.workload if alike else f"{line.workload}\n{where}",
            one.pct,
            one.low_pct,
            one.high_pct,
            one.peers_pct,
            _repeats(line, where, one),
            above=True,
        )
        for line, where, one in parts
    ]
    return drawn(rows, partial(_logarithmic, f"standard deviation{alike}, %"), on=_logs) if rows else None


Axis = Callable[[float, float], dict[str, Any]]


def drawn(rows: Sequence[Row], axis: Axis, *, on: Callable[[Any], Floats] = bent) -> Figure:
    """The rows, the first on top. `axis`: of the lowest and highest value that are drawn; `on`: where a value is."""
    place = np.arange(len(rows))[::-1]
    traces: list[Any] = []
    known = [(at, row.band) for at, row in zip(place, rows, strict=True) if row.band is not None]
    # One name in the legend, as Plotly lays a long legend over the rows.
    peers: dict[str, Any] = {"name": _PEERS, "legendgroup": _PEERS, "hoverinfo": "skip"}
    for first, last, colour in ((0, 4, _OUTER), (1, 3, _INNER)):
        start, end = (on([band[edge] for _, band in known]) for edge in (first, last))
        traces.append(
            Bar(
                y=[at for at, _ in known], x=end - start, base=start.tolist(), orientation="h", width=0.62,
                marker={"color": colour}, showlegend=bool(known) and first == 1, **peers,
            )
        )  # fmt: skip
    traces.append(
        drawing.Scatter(
            x=on([band[2] for _, band in known]), y=[at for at, _ in known], mode="markers", showlegend=False,
            marker={"symbol": "line-ns", "size": 17, "line": {"width": 2, "color": GREY}}, **peers,
        )
    )  # fmt: skip
    for outside, (name, colour, symbol) in _LOOKS.items():
        mine = [(at, row) for at, row in zip(place, rows, strict=True) if row.outside is outside]
        if not mine:
            continue
        x = on([row.value for _, row in mine])
        low, high = (on([row.value if end is None else end for end, row in ends]) for ends in _ends(mine))
        traces.append(
            drawing.Scatter(
                x=x, y=[at for at, _ in mine], mode="markers", name=name,
                error_x={
                    "type": "data", "symmetric": False, "array": high - x, "arrayminus": x - low, "color": colour,
                    "thickness": 1.6, "width": 4,
                },
                marker={"color": colour, "symbol": symbol, "size": 10, "line": {"width": 1, "color": "#ffffff"}},
                text=[row.says for _, row in mine], hovertemplate="%{text}<extra></extra>",
            )
        )  # fmt: skip
    values = [v for row in rows for v in (row.value, row.low, row.high, *(row.band or ())) if v is not None]
    return figure_of(
        traces,
        layout(
            _AROUND + (_HIGHER if any("\n" in row.label for row in rows) else _ROW) * len(rows),
            barmode="overlay",
            margin={"l": 8, "r": 12, "t": 32, "b": 52},
            legend=LEGEND | {"tracegroupgap": 0},
            xaxis=axis(min(values), max(values)),
            yaxis={
                "tickvals": list(place),
                "ticktext": ["<br>".join(plain(line, 30) for line in row.label.split("\n", 1)) for row in rows],
                "range": [-0.6, len(rows) - 0.4],
                "showgrid": False,
                "zeroline": False,
                "automargin": True,
                "ticklabelstandoff": 6,
            },
        ),
    )


def _ends(rows: Sequence[tuple[Any, Row]]) -> tuple[list[tuple[float | None, Row]], list[tuple[float | None, Row]]]:
    return [(row.low, row) for _, row in rows], [(row.high, row) for _, row in rows]


def _titled(title: str) -> Axis:
    return lambda low, high: bent_axis(low, high, title)


def _logs(pct: Any) -> Floats:
    found: Floats = np.log10(np.maximum(np.asarray(pct, dtype=np.float64), _LEAST_PCT))
    return found


def _logarithmic(title: str, low: float, high: float) -> dict[str, Any]:
    """As many ticks as have room side by side on a phone."""
    ends = [float(_logs(low)) - 0.1, float(_logs(high)) + 0.1]
    shown: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in range(-3, 4) for digit in digits]
        shown = [tick for tick in ticks if ends[0] <= np.log10(tick) <= ends[1]]
        if len(shown) <= _TICKS:
            break
    return {
        "title": {"text": title},
        "tickvals": [float(np.log10(tick)) for tick in shown],
        "ticktext": [f"{tick:g}" for tick in shown],
        "tickangle": 0,
        "range": ends,
        "zeroline": False,
    }


def _says(one: Standing) -> str:
    """What a row says where the pointer rests on it."""
    of = f"{subject(one)}: {words(one.figure)}"
    ends = MISSING if one.low is None or one.high is None else f"[{number(one.low)}, {number(one.high)}]"
    lines = [
        plain(of),
        plain(f"{number(one.value)} {one.unit} {ends}") if one.unit else "",
        f"{percent(one.off_pct)} % of its peers' level {interval(one.off_low_pct, one.off_high_pct)}",
        ""
        if one.band_pct is None
        else f"90 % of {one.gpus:,} GPUs: {percent(one.band_pct[0])} to {percent(one.band_pct[4])} %",
        "" if one.rank is None else f"rank {one.rank:,} of {count(one.peers)}, 1 has the lowest value",
        f"{many(one.n, 'run')}" + ("" if one.sittings is None else f" in {many(one.sittings, 'sitting')}"),
    ]
    return "<br>".join(minus(line) for line in lines if line)


def _repeats(line: Line, where: str, one: Scatter) -> str:
    ends = MISSING if one.low_pct is None or one.high_pct is None else f"[{one.low_pct:.2g}, {one.high_pct:.2g}]"
    peers = (
        ""
        if one.peers_pct is None
        else f"90 % of {one.peers:,} peers: {one.peers_pct[0]:.2g} to {one.peers_pct[4]:.2g} %"
    )
    lines = [
        plain(f"{line.workload}, {where}"),
        f"{one.pct:.2g} % {ends}",
        peers,
        f"{many(line.runs, 'run')} in {many(len(line.sittings), 'sitting')}",
    ]
    return "<br>".join(text for text in lines if text)
