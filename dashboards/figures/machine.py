"""Pictures of a machine: a cell a GPU, a row of cells a node, a block of rows a cabinet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import asinh
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...analysis.fleet.side_by_side import Floats, labels
from ..document import Label, Picture, Side
from ..style import GREY, SLOWNESS, layout
from ..words import estimate, minus
from .drawing import Figure, Heatmap, Look, Scatter, chosen, ending, figure_of, mark, outline, plain, svg
from .fleet import Marks

CELLS = 4_096
"""GPUs whose map is drawn for each probe; of a larger fleet there is one map."""
UNKNOWN = "unknown"
"""The block of GPUs whose node is not known."""
_SEATS = 16  # cells of a row; a node of more GPUs takes several rows
_TALLEST = 36  # rows of a block
_ASPECT = 2.6  # columns to rows of a picture that fits a screen
_LEAST_COLUMNS = 24  # so that the cells of a small machine are no long bars
_HEIGHT_PX, _CELL_PX, _LEAST_CELL_PX = 420, 20, 3
_NODE_NAMES = 128  # nodes of a picture that has room for their names
_CABINET_PX = 26  # of a block that has room for its name
_WIDTH_PX = 1000
_FEW_CABINETS = 16  # whose names a narrow screen has room for
_PICTURE_PX, _LETTER_PX = 640, 7  # of the picture of the findings, as wide as a page shows it
_BLOCK_NAME, _NODE_NAME = 14, 7  # letters
_ODD_NAMES = 12  # GPUs with findings whose names are written
_LEAST, _MOST = 5.0, 50.0  # where the colours end
_NEAR = 0.1  # of where they end: up to here they are linear, beyond it logarithmic
_FADED = 0.2  # the map, where a brush holds only a part of it
_TOP_PX = 68  # above the cells
_TICKS = (1, 2, 5, 10, 20, 50)
_FINE, _UNJUDGED = "rgba(138,143,152,0.42)", "rgba(138,143,152,0.14)"

_FIGURES = (
    ("power_pct", "power", "more power, %", "%"),
    ("clock_pct", "SM clock", "higher clock, %", "%"),
    ("hotter_c", "temperature", "hotter, °C", "°C"),
)


# -- where a GPU stands -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Where the cell of each GPU is. Blocks of cabinets stand side by side, and below each other where there are
    many; the nodes of all blocks line up."""

    rows: int
    columns: int
    cell: Mapping[str, tuple[int, int]]
    """By key of a GPU: row and column. Two keys that are names of one GPU have one cell."""
    name: Mapping[str, str]
    """By key, the GPU's name for people."""
    blocks: tuple[tuple[str, int, float], ...] = field(repr=False)
    """Name, row above the block, and middle column of each cabinet that has a name."""
    nodes: tuple[tuple[str, int, int], ...] = field(repr=False)
    """Name within its cabinet, row and first column of each node that has a name."""

    @classmethod
    def of(cls, gpus: pl.DataFrame) -> Grid:
        """`gpus`: gpu, name, node, cabinet, in the order of places; and slot and uuid, where GPUs may have two names:
        a card that is known by its UUID alone, and by its place alone, is drawn once. Nobody knows which name is which
        card's; a node has the right number of cells."""
        groups = _groups(gpus)
        width = max((len(seats) for rows in groups.values() for _, seats in rows), default=1)
        tallest = max((len(rows) for cabinet, rows in groups.items() if cabinet not in ("", UNKNOWN)), default=0)
        if not tallest:
            tallest = math.ceil(math.sqrt(sum(map(len, groups.values())) * (width + 1) / _ASPECT))
        tallest = min(max(tallest, 8), _TALLEST)
        blocks = [
            (cabinet if not number else "", part)
            for cabinet, rows in groups.items()
            for number, part in enumerate(_parts(rows, tallest))
        ]
        tallest = max((len(rows) for _, rows in blocks), default=1)
        a_line = _blocks_in_a_line(len(blocks), width + 1, tallest + 2)
        cell: dict[str, tuple[int, int]] = {}
        block_names, node_names = [], []
        for number, (cabinet, rows) in enumerate(blocks):
            top, left = number // a_line * (tallest + 2), number % a_line * (width + 1)
            if cabinet:
                block_names.append((cabinet, top, left + (width - 1) / 2))
            for row, (node, seats) in enumerate(rows, start=top + 1):
                if node:
                    node_names.append((node.removeprefix(cabinet).lstrip("-_.:/") or node, row, left))
                cell |= {gpu: (row, left + seat) for seat, keys in enumerate(seats) for gpu in keys}
        lines = -(-len(blocks) // a_line)
        rows_in_all = max(1, lines * (tallest + 2) - 1)
        columns = max(1, min(a_line, len(blocks)) * (width + 1) - 1)
        return cls(rows_in_all, columns, cell, labels(gpus), tuple(block_names), tuple(node_names))

    @property
    def gpus(self) -> int:
        """How many GPUs there are, each once: an upper bound where the place of some is not known."""
        return len(set(self.cell.values()))

    @property
    def cell_px(self) -> float:
        """The height of a cell, in pixels."""
        return min(_CELL_PX, max(_LEAST_CELL_PX, _HEIGHT_PX / self.rows))

    @property
    def by_cabinet(self) -> bool:
        """Whether blocks are cabinets; else nobody said which cabinet a node is in, and nodes are in order."""
        return any(name != UNKNOWN for name, _, _ in self.blocks)

    @property
    def apart(self) -> bool:
        """Whether a picture has room for a cell of each GPU."""
        return self.cell_px > 8

    def shades(self, values: Mapping[str, float], end: float) -> NDArray[np.float32]:
        """(rows, columns) where on the colours each cell is, from -1 to 1 at `end`; NaN for a cell without a value. Of
        two names of a GPU the value that is known counts; of two, that of the later name."""
        cells = np.full((self.rows, self.columns), np.nan, dtype=np.float32)
        known = [gpu for gpu in values if gpu in self.cell]
        row, column = np.array([self.cell[gpu] for gpu in known], dtype=np.int64).reshape(-1, 2).T
        cells[row, column] = shade(np.array([values[gpu] for gpu in known], dtype=np.float64), end)
        return cells


def _groups(gpus: pl.DataFrame) -> dict[str, list[tuple[str, list[list[str]]]]]:
    """By cabinet its rows of cells: the name of the node (at its first row only) and the keys of the GPU in each."""
    nodes: dict[tuple[str, str | None], list[tuple[str, int | None, bool]]] = {}
    columns = [gpus[name] if name in gpus.columns else [None] * gpus.height for name in ("slot", "uuid")]
    where = gpus.select("gpu", "node", "cabinet").iter_rows()
    for (gpu, node, cabinet), slot, uuid in zip(where, *columns, strict=True):
        group = cabinet or ("" if node else UNKNOWN)
        nodes.setdefault((group, node), []).append((gpu, slot, uuid is not None))
    groups: dict[str, list[tuple[str, list[list[str]]]]] = {}
    seats_of = {place: _seats(members) for place, members in nodes.items()}
    width = max((min(len(seats), _SEATS) for (_, node), seats in seats_of.items() if node), default=8)
    for (group, node), seats in seats_of.items():
        parts = _parts(seats, width)
        groups.setdefault(group, []).extend(("" if number else node or "", part) for number, part in enumerate(parts))
    unknown = groups.pop(UNKNOWN, None)
    return groups if unknown is None else groups | {UNKNOWN: unknown}


def _seats(members: Sequence[tuple[str, int | None, bool]]) -> list[list[str]]:
    """The keys of each GPU of a node. `members`: key, slot, whether the UUID is known."""
    seats: list[list[str]] = []
    without_uuid: list[list[str]] = []
    for gpu, slot, has_uuid in members:
        if slot is not None:
            seats.append([gpu])
            without_uuid += [] if has_uuid else [seats[-1]]
    for gpu, slot, _ in members:
        if slot is None and without_uuid:
            without_uuid.pop(0).append(gpu)
        elif slot is None:
            seats.append([gpu])
    return seats


def _parts(rows: Sequence[Any], most: int) -> list[Any]:
    """The rows in parts of at most so many."""
    return [rows[start : start + most] for start in range(0, len(rows), most)]


def _blocks_in_a_line(blocks: int, wide: int, high: int) -> int:
    """How many blocks stand side by side, for a picture that is about `_ASPECT` times as wide as it is high."""

    def off(a_line: int) -> float:
        return abs(math.log(a_line * wide / (-(-blocks // a_line) * high) / _ASPECT))

    return min(range(1, blocks + 1), key=off, default=1)


# -- the picture of the findings ----------------------------------------------------------------------------------


def picture(grid: Grid, marked: Mapping[str, Look], judged: Mapping[str, bool] | None = None) -> Picture:
    """The machine with its findings: each GPU that has one with its mark and, of few, its name.

    `judged`: whether a GPU was judged; None where all were, or nobody knows. It needs no script: the GPUs with nothing
    found are one path, in which those of a large machine are joined.
    """
    cells = np.full((grid.rows, grid.columns), np.nan, dtype=np.float32)
    known = judged or {}
    for gpu, (row, column) in grid.cell.items():
        cells[row, column] = np.fmax(cells[row, column], float(known.get(gpu, not known)))
    frame = _Frame.of(grid)
    usual_states = (("nothing found", 1, _FINE), ("not judged", 0, _UNJUDGED))
    states = [state for state in usual_states if (cells == state[1]).any()]
    fills = [f"<path fill='{colour}' d='{frame.path(cells == state)}'/>" for _, state, colour in states]
    legend = [(name, svg(f"<path fill='{colour}' d='M1 1h10v10h-10z'/>", 12, 12)) for name, _, colour in states]
    odd = {grid.cell[gpu]: gpu for gpu in sorted(marked) if gpu in grid.cell}
    size = 7.0 if grid.cell_px > 14 else 5.0
    kinds = {look: f"k{number}" for number, look in enumerate(dict.fromkeys(marked.values()))}
    outlines = "".join(f"<g id='{kind}'>{outline(look, 0, 0, size)}</g>" for look, kind in kinds.items())
    fills.append(f"<defs>{outlines}</defs>" if kinds else "")
    for place, gpu in sorted(odd.items()):
        x, y = frame.at(*place)
        fills.append(f"<use href='#{kinds[marked[gpu]]}' x='{x:.1f}' y='{y:.1f}'/>")
    legend += [(look.name, svg(outline(look, 6, 6, 5), 12, 12)) for look in kinds]
    names = list(frame.labels(grid))
    labels = [*names, *frame.odd_names({place: grid.name[gpu] for place, gpu in sorted(odd.items())}, names)]
    described = f"{len(set(grid.cell.values())):,} GPUs, {len(odd):,} of them marked"
    return Picture("The machine", "", svg("".join(fills), _PICTURE_PX, frame.height), described, labels, legend)


@dataclass(frozen=True)
class _Frame:
    """Where cells lie in a picture, in pixels of its full width."""

    left: float
    wide: float
    high: float
    height: float
    apart: bool
    """Whether each GPU is seen by itself."""

    @classmethod
    def of(cls, grid: Grid) -> _Frame:
        left = 34.0 if grid.nodes and grid.cell_px >= 12 else 4.0
        wide = (_PICTURE_PX - left - 4) / max(grid.columns, _LEAST_COLUMNS)
        return cls(left, wide, grid.cell_px, grid.rows * grid.cell_px + 6, grid.apart)

    def at(self, row: int, column: float) -> tuple[float, float]:
        """The middle of a cell."""
        return self.left + (column + 0.5) * self.wide, (row + 0.5) * self.high

    def path(self, inside: NDArray[np.bool_]) -> str:
        """The cells (rows, columns) of one state."""
        across, down = min(0.12 * self.wide, 1.5), min(0.12 * self.high, 1.5)
        return "".join(
            f"M{self.left + first * self.wide:.1f} {top * self.high:.1f}"
            f"h{(last - first) * self.wide - across:.1f}v{(bottom - top) * self.high - down:.1f}"
            f"H{self.left + first * self.wide:.1f}z"
            for top, bottom, first, last in _rectangles(inside, apart=self.apart)
        )

    def labels(self, grid: Grid) -> Iterator[Label]:
        """The names of cabinets above their blocks, and of nodes beside their cells, where there is room."""
        places = [column for _, _, column in grid.blocks]
        apart = min((abs(a - b) for a, b in pairwise(places) if a != b), default=grid.columns) * self.wide
        names = [ending(name, _BLOCK_NAME) for name, _, _ in grid.blocks]
        step = max(1, math.ceil((_LETTER_PX * max(map(len, names), default=0) + 8) / apart))
        for name, (_, row, column) in list(zip(names, grid.blocks, strict=True))[::step]:
            yield self._label(name, *self.at(row, column), "middle", small=len(names) > _FEW_CABINETS)
        longest = max((len(ending(name, _NODE_NAME)) for name, _, _ in grid.nodes), default=0)
        one_block = len({column for _, _, column in grid.nodes}) == 1
        if len(grid.nodes) <= _NODE_NAMES and self.left > 4 and (one_block or 5 * longest < self.wide):
            for name, row, column in grid.nodes:
                x, y = self.at(row, column - 0.6)
                yield self._label(ending(name, _NODE_NAME), x, y, "before", small=True)

    def odd_names(self, odd: Mapping[tuple[int, int], str], others: Sequence[Label]) -> Iterator[Label]:
        """The names of GPUs with findings, where there are few: each where it covers no other and no mark, and if that
        is possible none of the names of cabinets and nodes (`others`)."""
        if len(odd) > _ODD_NAMES:
            return
        covered = [(x - 8, x + 8, y - 8, y + 8) for x, y in (self.at(*place) for place in odd)]
        small = []
        for label in others:
            x, y, width = label.left / 100 * _PICTURE_PX, label.top / 100 * self.height, _LETTER_PX * len(label.text)
            begins = x - {"before": width, "middle": width / 2, "after": 0}[label.side]
            small.append((begins, begins + width, y - 5, y + 5))
        sides: tuple[Side, ...] = ("after", "before")
        for place, name in odd.items():
            x, y = self.at(*place)
            text = ending(name, 18)
            width = _LETTER_PX * len(text) + 8
            for avoided, down, side in product((covered + small, covered), (0, -16, 16, -30, 30), sides):
                begins = x + 9 if side == "after" else x - 9 - width
                edges = (begins, begins + width, y + down - 8, y + down + 8)
                free = all(edges[1] <= a or edges[0] >= b or edges[3] <= c or edges[2] >= d for a, b, c, d in avoided)
                if free and begins >= self.left and edges[1] <= _PICTURE_PX and 0 <= edges[2] + 8 <= self.height:
                    covered.append(edges)
                    yield self._label(text, x + (9 if side == "after" else -9), y + down, side, name=name)
                    break

    def _label(self, text: str, x: float, y: float, side: Side, *, small: bool = False, name: str = "") -> Label:
        return Label(text, round(100 * x / _PICTURE_PX, 2), round(100 * y / self.height, 2), side, small, name)


def _rectangles(inside: NDArray[np.bool_], *, apart: bool) -> Iterator[tuple[int, int, int, int]]:
    """Top, bottom, left and right of what covers these cells: of each cell, or of as many as make one rectangle."""
    if apart:
        yield from ((row, row + 1, column, column + 1) for row, column in np.argwhere(inside).tolist())
        return
    began: dict[tuple[int, int], int] = {}
    for row, cells in enumerate([*inside, np.zeros(inside.shape[1], dtype=bool)]):
        edges = np.flatnonzero(np.diff(cells, prepend=False, append=False)).tolist()
        runs = set(zip(edges[::2], edges[1::2], strict=True))
        for run in sorted(began.keys() - runs):
            yield began.pop(run), row, *run
        began = dict.fromkeys(runs, row) | began


# -- maps of a figure ---------------------------------------------------------------------------------------------


def maps(beside: pl.DataFrame, grid: Grid, marked: Mapping[str, Look]) -> dict[str, Figure]:
    """By name: a map of each probe's times, and of power, clock and temperature in the probe that draws most power.

    `beside`: of `analysis.fleet.side_by_side`; `grid`: of the campaign's GPUs. The colours of all times are the same.
    """
    if beside.is_empty():
        return {}
    probes = beside.drop_nulls("slower_pct")["workload"].unique(maintain_order=True).to_list()
    medians = beside.drop_nulls("power_w").group_by("workload").agg(pl.col("power_w").median())
    strongest = medians.sort("power_w", "workload")["workload"].to_list()
    if len(grid.name) > CELLS:
        probes = strongest[-1:] or probes[:1]
    end = end_of(beside.filter(pl.col("workload").is_in(probes))["slower_pct"])
    figures = {}
    for probe in probes:
        times = _known(beside.filter(pl.col("workload") == probe), "slower_pct")
        figures[f"time: {probe}"] = heat_map(grid, times, "slower, %", "%", marked, end=end)
    if strongest and len(grid.name) <= CELLS:
        rows = beside.filter(pl.col("workload") == strongest[-1])
        for column, name, title, unit in _FIGURES:
            if len(values := _known(rows, column)) > 1:
                figures[f"{name}: {strongest[-1]}"] = heat_map(
                    grid, values, title, unit, marked, end=end_of(rows[column])
                )
    return figures


def _known(rows: pl.DataFrame, column: str) -> dict[str, float]:
    return dict(rows.select("gpu", column).drop_nulls().iter_rows())


def end_of(values: pl.Series, unit: str = "%") -> float:
    """Where the colours end: at the GPU that is farthest from the median; of per cent and °C within limits."""
    farthest = values.abs().max()
    distance = float(farthest) if isinstance(farthest, int | float) else 0.0
    return min(max(distance, _LEAST), _MOST) if unit in ("%", "°C") else distance or 1.0


def shade(values: Floats | float, end: float) -> Floats:
    """Where on the colours values are, from -1 to 1 at `end`: linear near 0, by their logarithm beyond."""
    near = _NEAR * end
    return np.asarray(np.round(np.arcsinh(np.divide(values, near)) / asinh(end / near), 3))


def heat_map(
    grid: Grid, values: Mapping[str, float], title: str, unit: str, marked: Mapping[str, Look], *, end: float
) -> Figure:
    """The map of one figure. `values`: by GPU, 0 is the median of the fleet; the colours end at `end`."""
    sizes = {gpu: f"{estimate(value, digits=2, signed=True)} {unit}" for gpu, value in values.items()}
    text = [[""] * grid.columns for _ in range(grid.rows)]
    for gpu, size in sizes.items():
        if gpu in grid.cell:
            row, column = grid.cell[gpu]
            text[row][column] = f"{plain(grid.name[gpu])}<br>{minus(size)}"
    cells = _cells(grid, grid.shades(values, end), title, end, text=text, hovertemplate="%{text}<extra></extra>")
    return _figure(grid, [cells, *_marks(grid, marked, sizes)], legend=bool(marked))


def live_map(
    grid: Grid, values: Mapping[str, float], title: str, end: float, marks_of: Marks, gpus: Sequence[str]
) -> Figure:
    """The same for a page that says itself what the pointer is on, with what is chosen and brushed.

    `marks_of`: by row of the frame; `gpus`: the key of each row.
    """
    held = marks_of.held
    cells = _cells(grid, grid.shades(values, end), title, end, hoverinfo="none")
    traces = [cells]
    if held is not None:
        of_brush = {gpu: values[gpu] for gpu, is_held in zip(gpus, held, strict=True) if is_held and gpu in values}
        traces.append({**cells, "z": grid.shades(of_brush, end), "showscale": False})
        cells["opacity"] = _FADED
    places = [grid.cell[gpus[row]] for row in marks_of.picked]
    names = [marks_of.names[row] for row in marks_of.picked]
    traces.append(chosen([column for _, column in places], [row for row, _ in places], names))
    marked = {gpus[row]: look for row, look in marks_of.marked.items()}
    return _figure(grid, [*traces, *_marks(grid, marked, None)], legend=bool(marked))


def _cells(grid: Grid, shades: NDArray[np.float32], title: str, end: float, **texts: Any) -> dict[str, Any]:
    """The cells of a map, with the scale of its colours."""
    high_ticks = [float(tick) for tick in _TICKS if tick <= 0.9 * end][-3:] or [end]
    ticks = [*(-tick for tick in reversed(high_ticks)), 0.0, *high_ticks]
    bar = {
        "title": {"text": f"{title} (0: the median GPU)", "side": "top", "font": {"size": 12}},
        "orientation": "h",
        "tickvals": [float(shade(tick, end)) for tick in ticks],
        "ticktext": [minus(f"{tick:+g}") if tick else "0" for tick in ticks],
        "tickangle": 0,
        "thickness": 10,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "ypad": 16,
        "outlinewidth": 0,
    }
    gaps = {"hoverongaps": False, "xgap": 1.5 if grid.columns <= 200 else 0.3, "ygap": 1.5 if grid.apart else 0.3}
    return Heatmap(z=shades, zmin=-1, zmax=1, colorscale=SLOWNESS, colorbar=bar, **gaps, **texts)


def _marks(grid: Grid, marked: Mapping[str, Look], sizes: Mapping[str, str] | None) -> list[Any]:
    """The GPUs that have verdicts, a trace a kind. `sizes`: what the pointer says of each; None where the page does."""
    traces = []
    for look in dict.fromkeys(marked.values()):
        gpus = [gpu for gpu in marked if marked[gpu] == look and gpu in grid.cell]
        texts = None
        if sizes is not None:
            lines = ([plain(grid.name[gpu]), minus(sizes.get(gpu, "n/a")), look.name] for gpu in gpus)
            texts = ["<br>".join(filter(None, line)) for line in lines]
        traces.append(
            Scatter(
                x=[grid.cell[gpu][1] for gpu in gpus],
                y=[grid.cell[gpu][0] for gpu in gpus],
                mode="markers",
                name=look.name,
                marker=mark(look, 11 if grid.cell_px > 14 else 8),
                text=texts,
                hoverinfo="none" if texts is None else "text",
            )
        )
    return traces


def _names(grid: Grid) -> Iterator[dict[str, Any]]:
    """The names of cabinets above their blocks, and of nodes beside their cells, where there is room."""
    places = [column for _, _, column in grid.blocks]
    columns = max(grid.columns, _LEAST_COLUMNS)
    apart = min((abs(a - b) for a, b in pairwise(places) if a != b), default=columns)
    step = max(1, math.ceil(_CABINET_PX / (apart * _WIDTH_PX / columns)))
    usual = {"showarrow": False, "font": {"size": 11, "color": GREY}}
    for name, row, column in grid.blocks[::step]:
        text = plain(ending(name, _BLOCK_NAME))
        yield {"text": text, "x": column, "y": row, "yanchor": "middle", **usual}
    if len(grid.nodes) <= _NODE_NAMES and grid.cell_px >= 12:
        for name, row, column in grid.nodes:
            text = plain(ending(name, _NODE_NAME))
            place = {"x": column - 0.55, "y": row, "xanchor": "right", "name": "wide"}
            yield {"text": text, **place, **usual, "font": {"size": 9, "color": GREY}}


def _figure(grid: Grid, traces: Sequence[Any], *, legend: bool) -> Figure:
    return figure_of(
        traces,
        layout(
            round(_TOP_PX + 44 + grid.cell_px * grid.rows),
            margin={
                "l": 26 if len(grid.nodes) <= _NODE_NAMES and grid.cell_px >= 12 else 8,
                "r": 8,
                "t": _TOP_PX,
                "b": 40,
            },
            showlegend=legend,
            legend={"orientation": "h", "yanchor": "top", "y": 0, "x": 0, "font": {"size": 12}},
            annotations=list(_names(grid)),
            xaxis={"visible": False, "range": [-0.6, max(grid.columns, _LEAST_COLUMNS) - 0.4]},
            yaxis={"visible": False, "range": [grid.rows - 0.4, -0.6]},
        ),
    )
