"""The advice: its finding and cost, what to copy, the nodes as a figure, the evidence, and the scores of all GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import html

from ...figures.placement import nodes_by_score
from ...table import Line, Table, many, minus
from .. import grid
from ..page import command, graph, prose, rows, section, told

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .told import Copied, Told

GRID = "placement-gpus"
COLUMNS = (
    grid.Column("name", "GPU", link="gpu", asks={"gpu": "gpu", "cluster": "cluster"}),
    grid.Column("node", "node"),
    grid.Column("model", "model"),
    grid.Column(
        "score", "score", "number", 3, says="time over that of the median GPU, as it is believed: above 1 is slow"
    ),
    grid.Column("low", "90 %", "interval", 3, high="high", says="of the score in another sitting, at another time"),
    grid.Column("runs", "n", "number", says="runs that the score rests on; where runs of a day are alike, days"),
    grid.Column("raw", "measured", "number", 3, says="the level of its times over that of the median GPU"),
    grid.Column(
        "finding", "finding", says="the worst finding about it or its node, as whorl verdicts last stored it", width=216
    ),
    grid.Column("power_w", "power, W", "number", 0, says="median over its runs"),
    grid.Column("sm_clock_mhz", "clock, MHz", "number", 0, says="median over its runs"),
    grid.Column("temperature_c", "temperature, °C", "number", 0, says="median over its runs"),
    grid.Column("newest", "newest run (UTC)", "time"),
    grid.Column("workload", "workload"),
)


def body(said: Told) -> Component:
    """What stands under the inputs when there is advice."""
    first, *rest = said.parts
    return html.Div(
        [
            html.P(minus(str(first)), className="finding"),
            _copies(said.copied),
            *(_nodes(said, kind) for kind in said.nodes),
            section(
                "Evidence, sets, cost and age",
                html.P(prose("As `whorl advise --no-scheduler` prints it."), className="soft"),
                *_parts(rest),
            ),
            _gpus(said),
        ]
    )


def _parts(parts: list[str | Table]) -> list[Component]:
    """Sentences and tables as the command prints them, without the line that is there to be copied already."""
    found: list[Component] = []
    for part in parts:
        if isinstance(part, Table):
            found.append(html.H3(part.title))
            found.append(rows(part.header, part.rows, right=part.right, wrapped=part.wrapped, label=part.title))
            found += [html.P(minus(part.says), className="soft")] if part.says else []
        elif isinstance(part, Line):
            found += [command(part.strip())] if "sbatch" not in part else []
        elif part:
            found.append(html.P(minus(part)))
    return found


def _copies(copied: tuple[Copied, ...]) -> Component:
    """What a scheduler can be told, each with a button that copies it and the command that prints it."""
    return section(
        "For the scheduler",
        *(
            html.Details(
                [
                    html.Summary(one.title),
                    *([html.Pre(html.Code(one.text, id=f"placement-copy-{place}"), className="command", tabIndex=0)]
                      if one.text else []),
                    *([html.P(f"{one.note[:1].upper()}{one.note[1:]}", className="soft")] if one.note else []),
                    html.Div(
                        [
                            *([html.Button("Copy", type="button", **_copying(place))] if one.text else []),
                            *([html.Span("From a terminal:", className="soft"), html.Code(one.command)]
                              if one.command else []),
                        ],
                        className="buttons",
                    ),
                ],
                open=place == 0,
            )
            for place, one in enumerate(copied)
        ),
        says="Names of nodes are those of the store: no scheduler was asked. Where one answers, the commands use its "
        "names, and leave out nodes that it does not know.",
        className="copies",
    )  # fmt: skip


def _copying(place: int) -> dict[str, Any]:
    return {"className": "copy", "data-copy": f"placement-copy-{place}"}


def _nodes(said: Told, kind: str) -> Component:
    nodes = said.nodes[kind]
    title = "Nodes" if len(said.nodes) == 1 else f"Nodes: {kind}"
    if nodes.is_empty():
        return section(title, told(html.P("No node of these GPUs is known, so GPUs are compared.")))
    interval = "Bars and band: 90 % interval of the score in another sitting."
    if nodes["low"].null_count() == nodes.height:
        interval = "There is no interval, as it is not known which differences repeat."
    says = (
        f"n = {many(nodes.height, 'node')}, each by its slowest GPU. {interval} A node is excluded or avoided only "
        "where its whole interval lies above the line."
    )
    figure = nodes_by_score(nodes, hard=1.1, soft=1.05)
    return section(title, graph(figure, f"nodes by score: {kind}"), says=says)


def _gpus(said: Told) -> Component:
    few = said.gpus if said.gpus.height <= grid.MOST else None
    return section(
        "Scores of all GPUs",
        grid.table(GRID, COLUMNS, few, label="Scores of all GPUs"),
        says=f"n = {many(said.gpus.height, 'GPU')}.",
    )
