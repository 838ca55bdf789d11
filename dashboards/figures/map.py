"""Maps of the machine: a cell a GPU, coloured by how far it is from the fleet's median."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import asinh
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...analysis.fleet.side_by_side import Floats, labels
from ..style import SLOWNESS, layout
from ..table import minus, signed
from .brushed import chosen
from .drawing import Figure, Heatmap, Scatter, figure_of
from .looks import Look, ending, plain

Shades = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]

CELLS = 4_096
"""GPUs whose map is drawn for each probe; of a larger fleet there is one map."""
_NODES_A_ROW = 8
_ROWS = 256  # a map of more is made wider
_TIGHT = 520.0  # pixels of a map of so many rows that its cells touch
_NAMED_ROWS = 40  # up to so many rows have room for the names of their nodes
_NAME = 7  # letters of a node's name that fit above its cells, on a phone too
_ROW_NAME = 14  # letters of a row's name: more would leave no room for cells
_LEAST, _MOST = 5.0, 50.0  # where the colours end
_NEAR = 0.1  # of where they end: up to here they are linear, beyond it logarithmic
_GAP = -128
_WITH_GAPS = [[0.0, "rgba(0,0,0,0)"], *([0.002 + 0.998 * at, colour] for at, colour in SLOWNESS)]
"""The colours of cells that are sent as whole numbers of a byte, of which the lowest is a gap."""
_TICKS = (1, 2, 5, 10, 20, 50)
_NOWHERE = "unknown"
"""The row of GPUs whose node is not known."""

_FIGURES = (
    ("power_pct", "power", "more power, %", " %"),
    ("clock_pct", "SM clock", "higher clock, %", " %"),
    ("hotter_c", "temperature", "hotter, °C", " °C"),
)


def maps(beside: pl.DataFrame, gpus: pl.DataFrame, drawn: Mapping[str, Look]) -> dict[str, Figure]:
    """By name: a map of each probe's times, and of power, clock and temperature in the probe that draws most power.

    `beside`: of `analysis.fleet.side_by_side`; `gpus`: of the campaign. The colours of all times are the same.
    """
    grid = Grid.of(gpus)
    if beside.is_empty():
        return {}
    probes = beside.drop_nulls("slower_pct")["workload"].unique(maintain_order=True).to_list()
    medians = beside.drop_nulls("power_w").group_by("workload").agg(pl.col("power_w").median())
    strongest = medians.sort("power_w", "workload")["workload"].to_list()
    if gpus.height > CELLS:
        probes = strongest[-1:] or probes[:1]
    end = end_of(beside.filter(pl.col("workload").is_in(probes))["slower_pct"])
    found = {}
    for probe in probes:
        times = beside.filter(pl.col("workload") == probe)
        found[f"time: {probe}"] = grid.drawn(_known(times, "slower_pct"), "slower, %", " %", drawn, end)
    if strongest and gpus.height <= CELLS:
        rows = beside.filter(pl.col("workload") == strongest[-1])
        for column, name, title, unit in _FIGURES:
            if (values := _known(rows, column)) and len(values) > 1:
                found[f"{name}: {strongest[-1]}"] = grid.drawn(values, title, unit, drawn, end_of(rows[column]))
    return found


def _known(rows: pl.DataFrame, column: str) -> dict[str, float]:
    return dict(rows.select("gpu", column).drop_nulls().iter_rows())


def end_of(values: pl.Series, unit: str = "%") -> float:
    """Where the colours end: at the GPU that is farthest from the median; of per cent and °C within limits."""
    farthest = values.abs().max()
    found = float(farthest) if isinstance(farthest, int | float) else 0.0
    return min(max(found, _LEAST), _MOST) if unit in ("%", "°C") else found or 1.0


def shade(value: float, end: float) -> float:
    """Where on the colours a value is, from -1 to 1 at `end`: linear near 0, by its logarithm beyond."""
    near = _NEAR * end
    return round(asinh(value / near) / asinh(end / near), 3)


def sent(shades: Shades) -> NDArray[np.int8]:
    """Cells in a byte each, for a map that is `live`."""
    return np.where(np.isnan(shades), _GAP, np.round(np.nan_to_num(shades) * (-_GAP - 1))).astype(np.int8)


@dataclass(frozen=True)
class Grid:
    """Where each GPU's cell is."""

    rows: tuple[str, ...]
    columns: int
    cell: Mapping[str, tuple[int, int]]
    name: Mapping[str, str]
    nodes: tuple[tuple[str, int, float], ...]
    """Name, row and middle column of each node whose name is known."""

    @classmethod
    def of(cls, gpus: pl.DataFrame) -> Grid:
        """Eight nodes a row; a cabinet of more takes several, and GPUs without a node stand in rows of 32. Of a large
        machine rows are longer, so that it fits a screen."""
        nodes: dict[tuple[str, str], list[str]] = {}
        for place, (gpu, node, cabinet) in enumerate(gpus.select("gpu", "node", "cabinet").iter_rows()):
            row = cabinet or ("" if node else _NOWHERE)
            nodes.setdefault((row, node or f"{place // 4}"), []).append(gpu)
        together = [len(list(some)) for _, some in groupby(nodes, key=itemgetter(0))]  # nodes of a cabinet
        a_row = _NODES_A_ROW
        while sum(-(-n // a_row) for n in together) > _ROWS and a_row < gpus.height:
            a_row *= 2
        known = set(gpus["node"].drop_nulls())
        rows: list[str] = []
        cell: dict[str, tuple[int, int]] = {}
        named: list[tuple[str, int, float]] = []
        before: str | None = None
        used = at = columns = 0
        for (cabinet, node), members in nodes.items():
            if cabinet != before or used == a_row:
                rows.append(cabinet if cabinet != before else "")
                before, used, at = cabinet, 0, 0
            for place, gpu in enumerate(members):
                cell[gpu] = (len(rows) - 1, at + place)
            if node in known:
                named.append((node, len(rows) - 1, at + (len(members) - 1) / 2))
            columns = max(columns, at + len(members))
            at += len(members) + 1  # a gap between nodes
            used += 1
        return cls(tuple(rows), columns, cell, labels(gpus), tuple(named))

    def drawn(
        self,
        values: Mapping[str, float],
        title: str,
        unit: str,
        drawn: Mapping[str, Look],
        end: float,
        live: Shades | None = None,
    ) -> Figure:
        """The map of one figure. `values`: by GPU, 0 is the fleet's median; the colours end at `end`.

        `live`: the cells (of `placed`) for a page that says itself what the pointer is on: then `values` are not
        needed, trace 1 is for the cells that a brush holds, and trace 2 for the chosen GPUs.
        """
        high_ticks = [float(tick) for tick in _TICKS if tick <= 0.9 * end][-3:] or [end]
        ticks = [*(-tick for tick in reversed(high_ticks)), 0.0, *high_ticks]
        named = self.named
        tight = len(self.rows) > 4 * _NAMED_ROWS or self.columns > 200
        high = 36 if named else _TIGHT / len(self.rows) if tight else max(12, min(24, 2200 // len(self.rows)))
        cells: dict[str, Any] = {
            "hoverongaps": False,
            "xgap": 0 if tight else 1.5,
            "ygap": 0 if tight else 15 if named else 2,
            "zmin": -1,
            "zmax": 1,
            "colorscale": SLOWNESS,
        }
        if live is not None:
            cells |= {"hoverinfo": "none", "zmin": _GAP, "zmax": -_GAP - 1, "colorscale": _WITH_GAPS}
        else:
            text = [[""] * self.columns for _ in self.rows]
            for gpu, (row, column) in self.cell.items():
                if gpu in values:
                    text[row][column] = f"{plain(self.name[gpu])}<br>{signed(values[gpu])}{unit}"
            cells |= {"text": text, "hovertemplate": "%{text}<extra></extra>"}
        traces: list[Any] = [
            Heatmap(
                z=self.shades(values, end) if live is None else sent(live),
                **cells,
                colorbar={
                    "title": {"text": f"{title} (0: the median GPU)", "side": "top", "font": {"size": 12}},
                    "orientation": "h",
                    "tickvals": [(1 if live is None else -_GAP - 1) * shade(tick, end) for tick in ticks],
                    "ticktext": [minus(f"{tick:+g}") if tick else "0" for tick in ticks],
                    "tickangle": 0,
                    "thickness": 10,
                    "x": 0,
                    "xanchor": "left",
                    "y": 1,
                    "yanchor": "bottom",
                    "ypad": 16,
                    "outlinewidth": 0,
                },
            ),
            *([] if live is None else [Heatmap(**cells, showscale=False, visible=False), chosen([], [], [])]),
            *self._marks(values, unit, drawn, live=live is not None),
        ]
        if named:
            traces.append(self._names())
        return figure_of(
            traces,
            layout(
                round(160 + high * len(self.rows)),
                margin={"l": 60, "r": 8, "t": 76, "b": 44},
                showlegend=bool(drawn),
                legend={"orientation": "h", "yanchor": "top", "y": 0, "x": 0, "font": {"size": 12}},
                xaxis={"visible": False, "range": [-0.6, self.columns - 0.4]},
                yaxis={
                    **self._axis(),
                    "automargin": True,
                    "range": [len(self.rows) - 0.5, -0.7],
                    "showgrid": False,
                    "zeroline": False,
                },
            ),
        )

    @property
    def named(self) -> bool:
        """Whether there is room for the names of nodes."""
        return len(self.rows) <= _NAMED_ROWS

    def shades(self, values: Mapping[str, float], end: float) -> Shades:
        """(rows, columns) where on the colours each cell is; NaN for a cell without a value."""
        there = [gpu for gpu in values if gpu in self.cell]
        row, column = np.array([self.cell[gpu] for gpu in there], dtype=np.int64).reshape(-1, 2).T
        return self.placed(row, column, np.array([values[gpu] for gpu in there], dtype=np.float64), end)

    def placed(self, row: Ints, column: Ints, value: Floats, end: float) -> Shades:
        """The same for values in these cells."""
        found: Shades = np.full((len(self.rows), self.columns), np.nan, dtype=np.float32)
        near = _NEAR * end
        found[row, column] = np.round(np.arcsinh(value / near) / asinh(end / near), 3)
        return found

    def _axis(self) -> dict[str, Any]:
        """The names of the rows, as many as have room."""
        named = [place for place, name in enumerate(self.rows) if name]
        step = max(1, -(-len(named) // _NAMED_ROWS))
        return {
            "tickvals": named[::step],
            "ticktext": [plain(ending(self.rows[place], _ROW_NAME)) for place in named[::step]],
        }

    def _marks(
        self, values: Mapping[str, float], unit: str, drawn: Mapping[str, Look], *, live: bool = False
    ) -> list[Any]:
        """The GPUs that have verdicts, by kind."""
        found = []
        for look in dict.fromkeys(drawn.values()):
            marked = [gpu for gpu in drawn if drawn[gpu] == look and gpu in self.cell]
            said: dict[str, Any] = {"hoverinfo": "none"}
            if not live:
                sizes = {gpu: f"{signed(values[gpu])}{unit}" for gpu in marked if gpu in values}
                text = [f"{plain(self.name[gpu])}<br>{sizes.get(gpu, 'n/a')}<br>{look.name}" for gpu in marked]
                said = {"text": text, "hovertemplate": "%{text}<extra></extra>"}
            found.append(
                Scatter(
                    x=[self.cell[gpu][1] for gpu in marked],
                    y=[self.cell[gpu][0] for gpu in marked],
                    mode="markers",
                    name=look.name,
                    marker={
                        "symbol": look.symbol,
                        "color": look.colour,
                        "size": 10 if self.named else 6,
                        "line": {"width": 1.5 if self.named else 0.75, "color": "#ffffff"},
                    },
                    **said,
                )
            )
        return found

    def _names(self) -> Any:
        """The names of the nodes, above their cells."""
        return Scatter(
            x=[column for _, _, column in self.nodes],
            y=[row - 0.5 for _, row, _ in self.nodes],
            mode="text",
            text=[plain(ending(name, _NAME)) for name, _, _ in self.nodes],
            textfont={"size": 9},
            showlegend=False,
            hoverinfo="skip",
        )
