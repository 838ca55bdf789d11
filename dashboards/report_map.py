"""Maps of the machine that a campaign of probes measured: a cell a GPU, coloured by how slow it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..analysis.probing import Probed
from .report_figures import Against, Look, labels
from .style import SLOWNESS, layout

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CELLS = 4_096
"""GPUs whose map is drawn for each probe; of a larger fleet there is one map."""
_NODES_A_ROW = 8
_NOWHERE = "unknown"
"""The row of GPUs whose node is not known."""


def where(campaign: Probed, probes: Sequence[Against], drawn: Mapping[str, Look]) -> dict[str, Figure]:
    """Maps of the machine: a cell a GPU, the GPUs of a node side by side, a cabinet a row (or several)."""
    worst: dict[str, tuple[float, str]] = {}
    for one in probes:
        for gpu, excess in zip(one.gpus, one.excess_pct, strict=True):
            if gpu not in worst or excess > worst[gpu][0]:
                worst[gpu] = (float(excess), one.probe)
    grid = _Grid.of(campaign.gpus)
    what = "probe" if campaign.campaign else "workload"
    figures = {
        f"each GPU's slowest {what}": grid.drawn(
            {gpu: excess for gpu, (excess, _) in worst.items()},
            {gpu: f"{excess:+.1f} % in {probe}" for gpu, (excess, probe) in worst.items()},
            drawn,
        )
    }
    if campaign.gpus.height <= CELLS:
        for one in probes:
            excess = {gpu: float(value) for gpu, value in zip(one.gpus, one.excess_pct, strict=True)}
            figures[one.probe] = grid.drawn(excess, {gpu: f"{value:+.2f} %" for gpu, value in excess.items()}, drawn)
    return figures


@dataclass(frozen=True)
class _Grid:
    """Where each GPU's cell is."""

    rows: tuple[str, ...]
    columns: int
    cell: Mapping[str, tuple[int, int]]
    name: Mapping[str, str]

    @classmethod
    def of(cls, gpus: pl.DataFrame) -> _Grid:
        """Eight nodes a row at most; a cabinet of more takes several, and GPUs without a node stand in rows of 32."""
        nodes: dict[tuple[str, str], list[str]] = {}
        names = labels(gpus)
        for place, (gpu, node, cabinet) in enumerate(gpus.select("gpu", "node", "cabinet").iter_rows()):
            row = cabinet or ("" if node else _NOWHERE)
            nodes.setdefault((row, node or f"{place // 4}"), []).append(gpu)
        rows: list[str] = []
        cell: dict[str, tuple[int, int]] = {}
        before: str | None = None
        used = at = columns = 0
        for (cabinet, _), members in nodes.items():
            if cabinet != before or used == _NODES_A_ROW:
                rows.append(cabinet if cabinet != before else "")
                before, used, at = cabinet, 0, 0
            for place, gpu in enumerate(members):
                cell[gpu] = (len(rows) - 1, at + place)
            columns = max(columns, at + len(members))
            at += len(members) + 1  # a gap between nodes
            used += 1
        return cls(tuple(rows), columns, cell, names)

    def drawn(self, excess: Mapping[str, float], text_of: Mapping[str, str], drawn: Mapping[str, Look]) -> Figure:
        from plotly.graph_objects import Figure, Heatmap, Scatter

        values = np.full((len(self.rows), self.columns), np.nan, dtype=np.float32)
        text = [[""] * self.columns for _ in self.rows]
        for gpu, (row, column) in self.cell.items():
            if gpu in excess:
                values[row, column] = round(excess[gpu], 2)
                text[row][column] = f"{self.name[gpu]}<br>{text_of[gpu]}"
        known = np.array(list(excess.values()) or [0.0])
        bound = max(1.0, float(np.quantile(np.abs(known), 0.97)))
        traces: list[Any] = [
            Heatmap(
                z=values,
                text=text,
                hovertemplate="%{text}<extra></extra>",
                hoverongaps=False,
                xgap=1.5,
                ygap=2,
                zmin=-bound,
                zmax=bound,
                colorscale=SLOWNESS,
                colorbar={"title": {"text": "slower, %"}, "thickness": 12, "len": 1.0, "outlinewidth": 0},
            )
        ]
        for look in dict.fromkeys(drawn.values()):
            marked = [gpu for gpu in drawn if drawn[gpu] == look and gpu in self.cell]
            traces.append(
                Scatter(
                    x=[self.cell[gpu][1] for gpu in marked],
                    y=[self.cell[gpu][0] for gpu in marked],
                    mode="markers",
                    name=look.name,
                    marker={
                        "symbol": look.symbol,
                        "color": look.colour,
                        "size": 11,
                        "line": {"width": 1.5, "color": "#ffffff"},
                    },
                    text=[f"{self.name[gpu]}<br>{text_of.get(gpu, 'no time')}<br>{look.name}" for gpu in marked],
                    hovertemplate="%{text}<extra></extra>",
                )
            )
        height = 96 + max(22, min(34, 900 // len(self.rows))) * len(self.rows)
        return Figure(
            traces,
            layout(
                min(height, 2400),
                margin={"l": 60, "r": 8, "t": 30, "b": 8},
                showlegend=False,
                xaxis={"visible": False, "range": [-0.6, self.columns - 0.4]},
                yaxis={
                    "tickvals": [place for place, name in enumerate(self.rows) if name],
                    "ticktext": [name for name in self.rows if name],
                    "range": [len(self.rows) - 0.5, -0.5],
                    "showgrid": False,
                    "zeroline": False,
                },
            ),
        )
