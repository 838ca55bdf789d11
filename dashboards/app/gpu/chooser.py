"""The search of a GPU, and the GPUs beside it on its node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Also

from ....analysis.choosing import beside, search
from ...table import MISSING, many
from ..page import URL, labelled
from ..state import parse
from .asked import Row, known, named_first

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State

CHOICE = "gpu-choice"
_OFFERED = 40
_KEY_LETTERS = 12  # of a UUID


def chooser(reading: Reading, row: Row | None, state: State) -> Component:
    """The search with the GPU that is chosen, and links to those of its node."""
    every = known(reading)
    # Nothing is chosen in it: the title says which GPU is shown, and a list without a choice begins with its search.
    choice = dcc.Dropdown(
        _options(every, "", state.cluster, reading), None, id=CHOICE,
        placeholder="Another GPU: name, UUID, serial number, node, model",
    )  # fmt: skip
    parts: list[Any] = [html.Label([f"Search {many(every.height, 'GPU')}", choice], className="grow")]
    if row is not None:
        parts.append(_node(every, row, state))
    return html.Div(parts, className="inputs gpu-chooser")


def _node(every: pl.DataFrame, row: Row, state: State) -> Component:
    """The GPU before, those of the node, the one after."""
    here = beside(every, row)
    if not here.gpus:
        return html.Span()

    def to(name: str | None, text: str, label: str, **more: Any) -> Component:
        if name is None:
            return html.Span(text, className="off")
        return dcc.Link(text, href=state.href("gpu", gpu=(name,), cluster=row["cluster"]), title=label, **more)

    slots = [
        to(name, str(name).rpartition("/")[2] if "/" in str(name) else str(name)[:_KEY_LETTERS], str(name),
           className="here" if gpu == row["gpu"] else "")
        for name, gpu in here.gpus
    ]  # fmt: skip
    of = f"node {row['node']}" if row["parent"] is None else "the same card"
    return html.Nav(
        [
            to(here.previous, "‹ previous", f"previous GPU of {of}"),
            html.Span(f"{of}:", className="soft"),
            *slots,
            to(here.next, "next ›", f"next GPU of {of}"),
        ],
        className="beside",
        **labelled(f"GPUs of {of}"),
    )


def _options(every: pl.DataFrame, typed: str, cluster: str | None, reading: Reading) -> list[dict[str, str]]:
    """The GPUs that fit what is typed; at first those with findings."""
    first = () if typed else tuple(one.gpu for one in named_first(reading))
    several = every["cluster"].n_unique() > 1
    return [
        {
            "label": _label(row, several=several),
            "value": json.dumps([row["cluster"], row["gpu"]]),
            "search": f"{row['names']} {row['model']} {row['node']} {row['cluster']} {typed}",
        }
        for row in search(every, typed, cluster, _OFFERED, first).iter_rows(named=True)
    ]


def _label(row: dict[str, Any], *, several: bool) -> str:
    key = "" if row["name"] == row["gpu"] else f" · {str(row['gpu'])[:_KEY_LETTERS]}"
    where = f" · {row['cluster']}" if several else ""
    return f"{row['name']}{key} · {row['model'] or MISSING}{where}"


def register(app: Dash, reading: Reading) -> None:
    """Add the callbacks that search and choose."""

    @app.callback(
        Output(CHOICE, "options"),
        Input(CHOICE, "search_value"),
        Also(CHOICE, "value"),
        Also(CHOICE, "options"),
        Also(URL, "search"),
        prevent_initial_call=True,
    )
    def offer(typed: str | None, chosen: str | None, before: list[dict[str, str]], at: str | None) -> Any:
        found = _options(known(reading), typed or "", parse(at)[0].cluster, reading)
        # A list without what was just chosen would forget it, before the page has followed.
        kept = [one for one in before if one["value"] == chosen and one not in found]
        return [*found, *kept]

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(CHOICE, "value"),
        Also(URL, "search"),
        prevent_initial_call=True,
    )
    def choose(value: str | None, at: str | None) -> Any:
        state, _ = parse(at)
        if value is None:
            return no_update
        cluster, gpu = json.loads(value)
        of = known(reading).filter((pl.col("cluster") == cluster) & (pl.col("gpu") == gpu))
        name = str(of["name"][0]) if of.height else gpu
        return replace(state, cluster=cluster, gpu=(name,), since=None, until=None).search()
