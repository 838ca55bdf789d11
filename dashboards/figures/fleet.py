"""Figures of a fleet: how its GPUs differ, by place, against power, from campaign to campaign, and one beside all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...analysis.fleet.side_by_side import Against, Printed, by_place
from ...analysis.fleet.timelines import Timelines, Trend
from ..style import BLUE, GREEN, GREY, OLIVE, ORANGE, PINK, RED, SKY, layout, nothing, room
from ..words import estimate, interval, many, minus
from .drawing import (
    FEW,
    MANY,
    PERCENT,
    Bar,
    Box,
    Figure,
    Look,
    Scale,
    Scatter,
    Scattergl,
    axes_of,
    chosen,
    ending,
    error_bars,
    figure_of,
    mark,
    marks,
    names_axis,
    plain,
    points,
    single,
    stacked,
    stretch,
    thinned,
)

POINTS = 600
"""GPUs drawn of a probe in a report; of more, evenly many over their order, and all that have findings."""
STRIPS = 300
"""Strips that are drawn; of more, half are the slowest and half the fastest."""
STRIP_POINTS = 2_400
"""GPUs drawn on the strips of a report."""
LINES = 8
"""Lines of single GPUs over the campaigns."""
DRAWN_AS_IMAGE = 3_000
"""Points from which a figure is drawn by the graphics card."""
_LETTERS = 24  # of the name of a probe
_BINS = 48
_BESIDE = 0.06  # of a distribution: room for the marks of those beyond it
_NAME_ROWS, _NAME_ROW = 8, 0.11  # names of those beyond, above the highest bar, where a phone has room for them
_REACH = 3.0  # how far a close view of a probe goes, in ranges of the middle half of its GPUs
_PLACE_LETTERS, _STRIP, _STRIP_NAMES = 14, 0.7, 44  # of a strip: letters of its name, its width; names that fit below


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, as figures write it."""
    return minus(estimate(value, digits=digits, signed=True))


# -- what figures of GPUs are called ------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuFigure:
    """A figure of GPUs: its columns in a frame of GPUs, and its words."""

    key: str
    """In addresses."""
    name: str
    """`time`"""
    value: str
    """Column of the value; `_low` and `_high` after it are the ends of its interval."""
    unit: str
    digits: int
    apart: str
    """Column of how far it is from the median GPU of its model; its interval as of `value`."""
    more: str
    """`slower`"""
    apart_unit: str
    """Of `apart`: per cent, or that of the value."""

    @property
    def axis(self) -> str:
        """For an axis: what it is counted from."""
        return f"{self.difference} (0: the median GPU)"

    @property
    def difference(self) -> str:
        """`slower, %`"""
        return f"{self.more}, {self.apart_unit}".strip(", ")

    def text(self, apart: float | None) -> str:
        """How far a GPU is from the median, for people."""
        return "n/a" if apart is None else f"{signed(apart)}\u202f{self.apart_unit}".strip()


GPU_FIGURES = (
    GpuFigure("time", "time", "time", "ms", 3, "slower_pct", "slower", "%"),
    GpuFigure("power", "power", "power_w", "W", 1, "power_pct", "more power", "%"),
    GpuFigure("clock", "SM clock", "sm_clock_mhz", "MHz", 0, "clock_pct", "higher clock", "%"),
    GpuFigure("temperature", "temperature", "temperature_c", "°C", 1, "hotter_c", "hotter", "°C"),
)
"""What is measured of every run."""
_PRINTED = {  # name, digits, what more of it is
    "temperature_rise": ("temperature rise", 4, "warms more a watt"),
    "power_at_fixed_clock": ("power at the peers' clock", 1, "more power at the same clock"),
    "highest_clock": ("highest clock", 0, "higher clock"),
    "throttled_runs": ("share of runs with a held clock", 3, "more of its runs"),
    "idle_power": ("power without work", 1, "more power"),
    "work_per_joule": ("work per joule", 4, "more work a joule"),
    "time_spread": ("spread of its own times", 2, "varies more"),
    "passive_power": ("power in ordinary jobs", 2, "more power"),
    "wrong_results": ("wrong results", 0, "more"),
    "failed_runs": ("failed runs", 0, "more"),
    "xids": ("errors of the driver (XID)", 0, "more"),
    "losses": ("times that it was lost", 0, "more"),
}


def printed_figure(printed: Printed) -> GpuFigure:
    """A figure of the stored fingerprints."""
    name, digits, more = _PRINTED.get(printed.figure, (printed.figure.replace("_", " "), 3, "more"))
    unit = printed.unit.replace("degC", "°C").replace("share", "")
    where = "" if printed.workload is None else f" in {printed.workload}"
    key = printed.figure
    return GpuFigure(key, f"{name}{where}", key, unit, digits, f"{key}_apart", more, "%" if printed.is_ratio else unit)


# -- all probes, and one of them ----------------------------------------------------------------------------------


def overview(probes: Sequence[Against], marked: Mapping[str, Look]) -> Figure:
    """Every probe's GPUs in a row: how much slower or faster than the median, on a scale that is linear near 0 only."""
    random = np.random.default_rng(1)
    rows = list(reversed(probes))
    traces: list[Any] = []
    across, along = [], []
    text: list[str] = []
    odd: dict[Look, list[tuple[float, int, str]]] = {look: [] for look in marked.values()}
    for row, probe in enumerate(rows):
        calm = np.array([place for place, gpu in enumerate(probe.gpus) if gpu not in marked], dtype=np.intp)
        calm = calm[thinned(len(calm), POINTS)]

        def words(place: int, digits: int = 2, *, probe: Against = probe) -> str:
            excess = signed(probe.excess_pct[place], digits)
            return f"{plain(probe.labels[place])}<br>{plain(probe.probe)}: {excess} %"

        across.append(PERCENT.bend(probe.excess_pct[calm]))
        along.append(row + random.uniform(-0.26, 0.26, len(calm)))
        text += map(words, calm)
        quartiles = PERCENT.bend(np.quantile(probe.excess_pct, (0.05, 0.25, 0.5, 0.75, 0.95)))
        traces.append(_box(quartiles.reshape(5, 1), y=[row], orientation="h", width=0.66))
        for place, gpu in enumerate(probe.gpus):
            if (look := marked.get(gpu)) is not None:
                odd[look].append((probe.excess_pct[place], row, f"{words(place, 1)}<br>{look.name}"))
    every_point = {
        "x": single(np.concatenate(across)),
        "y": single(np.concatenate(along)),
        "marker": {"color": BLUE, "size": 4.5, "opacity": 0.75},
        "text": text,
    }
    traces.append(Scatter(**every_point, mode="markers", showlegend=False, hovertemplate="%{text}<extra></extra>"))
    for look, gpus in odd.items():
        x = single(PERCENT.bend([gpu[0] for gpu in gpus]))
        traces.append(marks(x.tolist(), [gpu[1] for gpu in gpus], look, [gpu[2] for gpu in gpus]))
    ends = np.concatenate([probe.excess_pct[[0, -1]] for probe in rows])
    return figure_of(
        traces,
        layout(
            96 + (24 if len(rows) > 4 else 36) * len(rows),
            margin={"l": 100, "r": 16, "t": 40, "b": 48},
            boxmode="overlay",
            xaxis=PERCENT.axis(ends, "slower than the median GPU, %"),
            yaxis=names_axis([plain(probe.probe, _LETTERS) for probe in rows], range(len(rows)), automargin=True),
        ),
    )


def _box(quartiles: Any, **place: Any) -> dict[str, Any]:
    """Boxes of their 5th, 25th, 50th, 75th and 95th percentiles."""
    names = ("lowerfence", "q1", "median", "q3", "upperfence")
    return Box(
        **dict(zip(names, (values.tolist() for values in quartiles), strict=True)),
        **place,
        line={"color": GREY, "width": 1},
        fillcolor="rgba(138,143,152,0.12)",
        showlegend=False,
        hoverinfo="skip",
    )


def closely(probe: Against, marked: Mapping[str, Look]) -> Figure:
    """One probe's GPUs as a histogram; those that stand out beyond its edges are drawn at the edge, with their size."""
    excess = probe.excess_pct
    first, third = (float(q) for q in np.quantile(excess, (0.25, 0.75)))
    reach = max(_REACH * (third - first), 0.1)
    inside = excess[np.abs(excess) <= reach]
    left, right = float(inside[0]) - 0.02 * reach, float(inside[-1]) + 0.02 * reach
    counts, edges = np.histogram(inside, bins=min(_BINS, max(8, len(inside) // 4)), range=(left, right))
    width = float(edges[1] - edges[0])
    bins = zip(edges, counts, strict=False)
    hover = [f"{signed(start)} to {signed(start + width)} %: {many(int(number), 'GPU')}" for start, number in bins]
    bars = Bar(
        x=single(edges[:-1] + width / 2),
        y=counts.astype(np.int32),
        width=0.94 * width,
        marker={"color": BLUE, "opacity": 0.75},
        showlegend=False,
        hovertext=hover,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    traces: list[Any] = [bars]
    top = max(1.0, float(counts.max()))
    beyond = {False: 0, True: 0}  # by whether they are on the right
    room_beside = [_BESIDE if any(far) else 0.03 for far in (excess < left, excess > right)]
    edge_left, edge_right = left - room_beside[0] * (right - left), right + room_beside[1] * (right - left)
    for gpu, label, value in zip(probe.gpus, probe.labels, excess, strict=True):
        look, outside = marked.get(gpu), not left <= value <= right
        if look is None and not outside:
            continue
        slower, size = bool(value > 0), minus(f"{value:+.3g} %")
        height = top * (1.1 + _NAME_ROW * (beyond[slower] % _NAME_ROWS)) if outside else 0.05 * top
        beyond[slower] += outside
        name = f"{plain(label)}<br>{signed(value)} %{'' if look is None else f'<br>{look.name}'}"
        traces.append(
            Scatter(
                x=[min(max(float(value), edge_left), edge_right)],
                y=[height],
                mode="markers+text" if outside and beyond[slower] <= _NAME_ROWS else "markers",
                text=[f"{plain(label)}  {size}" if slower else f"{size}  {plain(label)}"],
                textposition="middle left" if slower else "middle right",
                textfont={"size": 11},
                marker=mark(look or Look(GREY, "circle", ""), 10),
                showlegend=False,
                hovertemplate=f"{name}<extra></extra>",
            )
        )
    reach_in_all = 0.02 * (right - left)
    return figure_of(
        traces,
        layout(
            340,
            margin={"l": 64, "r": 16, "t": 20, "b": 52},
            bargap=0,
            xaxis={
                "title": {"text": f"slower than the median of {probe.typical_ms:,.4g} ms, %"},
                "range": [edge_left - reach_in_all, edge_right + reach_in_all],
                "zeroline": True,
            },
            yaxis={
                "title": {"text": "GPUs"},
                "range": [0, top * (1.06 + _NAME_ROW * min(max(beyond.values()), _NAME_ROWS))],
            },
        ),
    )


# -- by place -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strips:
    """Where each GPU of a frame is drawn by place: a strip is a cabinet or a node, the slowest first."""

    quantity: GpuFigure
    places: tuple[str, ...]
    """From left to right: strip n is around n on the axis."""
    left_out: int
    """Places that are not drawn."""
    scale: Scale
    x: NDArray[np.float32]
    """(GPUs,)"""
    y: NDArray[np.float32]
    """(GPUs,) on `scale`; NaN for a GPU that is not drawn."""
    boxes: pl.DataFrame
    """Of `analysis.fleet.by_place`."""

    @classmethod
    def of(cls, rows: pl.DataFrame, quantity: GpuFigure, level: str) -> Strips:
        """`rows`: of `analysis.beside`, with the columns of `quantity`; `level`: a column."""
        value = quantity.apart
        named = rows.select(
            pl.lit("").alias("workload"),
            pl.col(level).fill_null("unknown").alias("place"),
            pl.col(value).cast(pl.Float64),
        ).with_row_index("index")
        placed_gpus = named.drop_nulls(value)
        boxes = by_place(placed_gpus, "place", (value,))
        cut = boxes if boxes.height <= STRIPS else pl.concat([boxes.head(STRIPS // 2), boxes.tail(STRIPS // 2)])
        placed = placed_gpus.join(cut.select("place").with_row_index("strip"), on="place", maintain_order="left")
        within = (pl.int_range(pl.len()).over("place") + 0.5) / pl.len().over("place") - 0.5
        scale = Scale.of(placed_gpus[value].to_numpy())
        x, y = (np.full(rows.height, nothing, dtype=np.float32) for nothing in (0, np.nan))
        index = placed["index"].to_numpy()
        x[index] = placed.select(pl.col("strip") + _STRIP * within).to_series().to_numpy()
        y[index] = scale.bend(placed[value].to_numpy())
        return cls(quantity, tuple(cut["place"]), boxes.height - cut.height, scale, x, y, cut)


@dataclass(frozen=True)
class Marks:
    """What a figure marks of the GPUs of a frame, by row."""

    names: Sequence[str]
    marked: Mapping[int, Look]
    """Those with a finding."""
    live: bool = False
    """For a page that says itself what the pointer is on, and in which GPUs are chosen and brushed."""
    picked: Sequence[int] = ()
    """The chosen ones."""
    held: NDArray[np.bool_] | None = None
    """Which a brush holds; None where there is no brush."""

    def of_rows(self, rows: NDArray[np.intp]) -> Marks:
        """Of these rows of the frame, among them all that are marked."""
        number = {int(row): place for place, row in enumerate(rows)}
        marked = {number[row]: look for row, look in self.marked.items()}
        return replace(self, names=[self.names[row] for row in rows], marked=marked)

    def traces(self, x: Any, y: Any, text: Sequence[str] | None) -> list[dict[str, Any]]:
        """All GPUs as trace 0, the chosen ones, and those with a finding, a trace a kind. `text`: what the pointer says
        of each."""
        kind: Any = Scattergl if len(y) > DRAWN_AS_IMAGE else Scatter
        usual = MANY if len(y) > DRAWN_AS_IMAGE else FEW
        texts = {"hoverinfo": "none"} if text is None else {"text": list(text), "hoverinfo": "text"}
        traces = [kind(x=x, y=y, mode="markers", marker=points(self.held, usual), showlegend=False, **texts)]
        rows = [row for row in self.picked if np.isfinite(y[row])]
        if self.live:
            traces.append(chosen(x[rows].tolist(), y[rows].tolist(), [self.names[row] for row in rows]))
        for look in dict.fromkeys(self.marked.values()):
            rows = [row for row, row_look in self.marked.items() if row_look == look and np.isfinite(y[row])]
            words = None if text is None else [f"{text[row]}<br>{look.name}" for row in rows]
            if rows:
                traces.append(marks(x[rows].tolist(), y[rows].tolist(), look, words, rows))
        return traces


def strips(strip: Strips, marks_of: Marks) -> Figure:
    """The figure of strips. A figure that is not live has `STRIP_POINTS` of their GPUs, and all that are marked; the
    boxes are of every GPU."""
    quantity, text, x, y = strip.quantity, None, strip.x, strip.y
    if not marks_of.live:
        on_strips = np.flatnonzero(np.isfinite(y))
        drawn = np.union1d(on_strips[thinned(len(on_strips), STRIP_POINTS)], list(marks_of.marked)).astype(np.intp)
        marks_of, x, y = marks_of.of_rows(drawn), x[drawn], y[drawn]
        pairs = zip(marks_of.names, strip.scale.values(y), strict=True)
        text = [f"{plain(name)}<br>{quantity.text(value) if np.isfinite(value) else 'n/a'}" for name, value in pairs]
    quartiles = [strip.scale.bend(strip.boxes[quantity.apart].list.get(place).to_numpy()) for place in range(5)]
    boxes = _box(quartiles, x=np.arange(len(strip.places)), width=0.86)
    step = max(1, -(-len(strip.places) // _STRIP_NAMES))
    return figure_of(
        [*marks_of.traces(x, y, text), boxes],
        layout(
            430,
            margin={"l": 64, "r": 12, "t": 44, "b": 40},
            boxmode="overlay",
            showlegend=bool(marks_of.marked) or bool(marks_of.picked),
            xaxis={
                "tickvals": list(range(0, len(strip.places), step)),
                "ticktext": [plain(ending(place, _PLACE_LETTERS)) for place in strip.places[::step]],
                "automargin": True,
                "autotickangles": [0, 90],  # Plotly leaves out a slanted name that ends beyond the figure: the last
                "range": [-0.7, len(strip.places) - 0.3],
                "showgrid": False,
                "zeroline": False,
            },
            yaxis=strip.scale.axis(strip.scale.values(strip.y), quantity.axis) | {"visible": bool(strip.places)},
            annotations=[] if strip.places else [nothing("n/a: no run has this figure")],
        ),
    )


# -- against power ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Powered:
    """Where each GPU of a frame is drawn by its power and its time."""

    scale: Scale
    x: NDArray[np.float32]
    """(GPUs,) W; NaN where power or time is not known."""
    y: NDArray[np.float32]
    """(GPUs,) on `scale`."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Powered:
        """`rows`: with power_w and slower_pct."""
        has_figures = pl.col("power_w").is_not_null() & pl.col("slower_pct").is_not_null()
        x, y = (
            rows.select(pl.when(has_figures).then(pl.col(name).cast(pl.Float64)))[name]
            .fill_null(float("nan"))
            .to_numpy()
            for name in ("power_w", "slower_pct")
        )
        scale = Scale.of(y)
        return cls(scale, x.astype(np.float32), scale.bend(y).astype(np.float32))


def against_power(power: Powered, marks_of: Marks) -> Figure:
    """One probe's GPUs, each a point: its power, and how much slower it is than the median.

    GPUs without a power are not drawn; of a large fleet, a figure that is not live has `POINTS`.
    """
    known = np.flatnonzero(np.isfinite(power.y))
    slower, text = power.scale.values(power.y), None
    y = power.y
    if not marks_of.live:
        in_order = known[np.argsort(y[known], kind="stable")]
        drawn = np.union1d(in_order[thinned(len(in_order), POINTS)], list(marks_of.marked)).astype(np.intp)
        marks_of = marks_of.of_rows(drawn)
        power = replace(power, x=power.x[drawn], y=y[drawn])
        text = [
            f"{plain(name)}<br>{watts:,.0f} W, {signed(pct)} %" if np.isfinite(pct) else ""
            for name, watts, pct in zip(marks_of.names, power.x, slower[drawn], strict=True)
        ]
    low, high = (float(end) for end in (np.nanmin(power.x), np.nanmax(power.x))) if len(known) else (0.0, 1.0)
    wider = 0.05 * max(high - low, 1.0)
    return figure_of(
        marks_of.traces(power.x, power.y, text),
        layout(
            420,
            margin={"l": 64, "r": 16, "t": 44, "b": 52},
            showlegend=bool(marks_of.marked) or bool(marks_of.picked),
            xaxis={
                "title": {"text": "power, W"},
                "zeroline": False,
                "range": [low - wider, high + wider],
                "visible": len(known) > 0,
            },
            yaxis=power.scale.axis(slower, "slower than the median GPU, %") | {"visible": len(known) > 0},
            annotations=[] if len(known) else [nothing("n/a: no run has both a time and a power")],
        ),
    )


# -- over the campaigns -------------------------------------------------------------------------------------------

_COLOURS = (RED, ORANGE, PINK, GREEN, OLIVE, SKY)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")


def over_campaigns(trend: Trend, gpus: Sequence[str], names: Mapping[str, str]) -> Figure:
    """The median of the fleet with its 95 % interval, the middle half and nine tenths of it, and lines of `gpus`."""
    periods = trend.periods
    lines = {gpu: rows for gpu in gpus[:LINES] if (rows := trend.of(gpu)).height}
    values = [periods["p5"], periods["p95"], *(rows["slower_pct"] for rows in lines.values())]
    in_all = np.concatenate([column.cast(pl.Float64).drop_nulls().to_numpy() for column in values])
    scale = Scale.of(np.concatenate([periods[name].to_numpy() for name in ("p5", "p95")]))
    times = periods["began"].to_list()
    bands = (("p5", "p95", 0.13, "90 % of the GPUs"), ("p25", "p75", 0.24, "half of the GPUs"))
    traces: list[Any] = [
        Scatter(
            x=[*times, *times[::-1]],
            y=[*scale.bend(periods[top]).tolist(), *scale.bend(periods[bottom]).tolist()[::-1]],
            fill="toself",
            mode="lines",
            line={"width": 0},
            fillcolor=f"rgba(61,143,209,{opacity})",
            name=name,
            hoverinfo="skip",
        )
        for bottom, top, opacity, name in bands
    ]
    of_fleet = periods.select("began", "low", "high", pl.col("median").alias("slower_pct"))
    text = [
        f"{plain(period)}: median {signed(median)} %{_ends(low, high)}<br>n = {many(gpus_then, 'GPU')}, {runs:,} runs"
        for period, median, low, high, gpus_then, runs in periods.select(
            "period", "median", "low", "high", "gpus", "runs"
        ).iter_rows()
    ]
    traces.append(_line(of_fleet, scale, "median GPU", (BLUE, "circle"), text))
    for place, (gpu, rows) in enumerate(lines.items()):
        name = plain(names.get(gpu, gpu))
        text = [
            f"{name}, {plain(period)}<br>{signed(slower)} %{_ends(low, high)}, n = {many(n, 'run')}"
            for period, slower, low, high, n in rows.select("period", "slower_pct", "low", "high", "n").iter_rows()
        ]
        look = _COLOURS[place % len(_COLOURS)], _SYMBOLS[place % len(_SYMBOLS)]
        traces.append(_line(rows, scale, name, look, text))
    ticks: dict[str, Any] = {"title": {"text": "UTC"}}
    period_names = periods["period"].to_list()
    if trend.by == "campaign" and len(period_names) <= 10 and max(map(len, period_names)) <= 16:
        ticks = {"tickvals": times, "ticktext": [plain(name) for name in period_names]}
    return figure_of(
        traces,
        layout(
            400,
            margin={"l": 64, "r": 16, "t": 64, "b": 44},
            xaxis={"showgrid": False, "automargin": True, **room(times), **ticks},
            yaxis=scale.axis(in_all, "slower than the median GPU, %"),
        ),
    )


def _line(rows: pl.DataFrame, scale: Scale, name: str, look: tuple[str, str], text: Sequence[str]) -> dict[str, Any]:
    """A line with intervals. `rows`: began, slower_pct, low, high."""
    columns = (rows[column].cast(pl.Float64).fill_null(float("nan")) for column in ("slower_pct", "low", "high"))
    y, below, above = (scale.bend(column.to_numpy()) for column in columns)
    colour, symbol = look
    return Scatter(
        x=rows["began"].to_list(),
        y=y.tolist(),
        error_y=error_bars(np.nan_to_num(y - below).tolist(), np.nan_to_num(above - y).tolist(), colour),
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
        marker={"symbol": symbol, "size": 8, "color": colour},
        text=list(text),
        hovertemplate="%{text}<extra></extra>",
    )


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" {minus(interval(low, high, digits=2))}"


# -- one GPU over a campaign --------------------------------------------------------------------------------------

_PANELS = (("power_w", "power, W"), ("sm_clock_mhz", "SM clock, MHz"), ("temperature_c", "temp., °C"))
_ABOVE = 0.12  # above and below the values, of their range
_LABEL_SHARE = 0.019  # of the width, between the names of two probes


def over_time(lines: Timelines, gpu: str, name: str) -> Figure:
    """A GPU over a campaign beside the fleet's median: power, clock, temperature; its probes as bands."""
    time = single(lines.time_s)
    name = plain(name, _LETTERS)
    alone = lines.measured == 1  # it is its own median
    running, bands, words = _windows(lines, gpu)
    traces: list[dict[str, Any]] = []
    for row, (metric, title) in enumerate(_PANELS, start=1):
        unit = title.rpartition(", ")[2]
        median = ("all GPUs in the same probe (median)", lines.fleet[gpu][metric], GREY, 1.5)
        for who, line, colour, width in (*([] if alone else [median]), (name, lines.gpus[gpu][metric], RED, 2)):
            with_probe = row == 1 and who == name
            traces.append(
                {
                    **axes_of(row),
                    "type": "scatter",
                    "x": time,
                    "y": single(np.round(line, 1)),
                    "name": who,
                    "legendgroup": who,
                    "showlegend": row == 1,
                    "mode": "lines",
                    "line": {"color": colour, "width": width},
                    "hovertemplate": f"{who}: %{{y:,.0f}} {unit}{'%{text}' if with_probe else ''}<extra></extra>",
                    **({"text": running} if with_probe else {}),
                }
            )
    return stacked(
        traces,
        [{"title": {"text": title}, "range": _range(lines, gpu, metric)} for metric, title in _PANELS],
        "time since its first probe began, s",
        layout(
            590,
            margin={"l": 64, "r": 40, "t": 120, "b": 82},
            hovermode="x",
            legend={"orientation": "h", "yanchor": "top", "y": -0.15, "x": 0},
            shapes=bands,
            annotations=words,
        ),
    )


def _windows(lines: Timelines, gpu: str) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """The probes of a GPU: what it runs at each time, bands, and their names where there is room."""
    running = np.full(len(lines.time_s), "", dtype=object)
    bands: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    apart, named_s = _LABEL_SHARE * float(lines.time_s[-1]), -np.inf
    for window in lines.windows[gpu]:
        inside = (lines.time_s >= window.began_s) & (lines.time_s <= window.ended_s)
        running[inside] = f"<br>measuring {plain(window.probe)}"
        middle_s = (window.began_s + window.ended_s) / 2
        bands.append(stretch(window.began_s, window.ended_s, GREY, 0.10))
        if middle_s - named_s >= apart:
            named_s = middle_s
            text = {"text": plain(window.probe, _LETTERS), "textangle": -35, "font": {"size": 11}, "name": "wide"}
            place = {"x": middle_s, "y": 1.0, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
            words.append(text | place | {"showarrow": False})
    return list(running), bands, words


def _range(lines: Timelines, gpu: str, metric: str) -> list[float] | None:
    """Room for all values, so that no line lies on an edge; power, of which 0 means something, begins there."""
    values = np.concatenate([lines.gpus[gpu][metric], lines.fleet[gpu][metric]])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    wider = _ABOVE * max(high - low, 1.0)
    return [min(0.0, low) if metric == "power_w" else low - wider, high + wider]
