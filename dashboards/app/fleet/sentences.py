"""What the page Fleet says: what is compared, what a brush holds, and the GPU that the pointer is on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import dcc, html

from ....analysis.verdicts import NO_FINDING, Level
from ...documents.evidence import why_not
from ...figures.fleet import signed
from ...words import MISSING, listed, many, minus
from ..page import VERDICTS, told
from .view import View

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..state import State

CLEAR = "fleet-clear"
_DIGITS = 5  # significant ones, of a number
_LINKED = 50  # GPUs that a link hands on
_PLACES = 6  # that are named


def compared(view: View, problems: Sequence[str], store: Path) -> list[Component]:
    """What is compared, in a few numbers, and what cannot be."""
    choice, beside, figure = view.choice, view.beside, view.choice.figure
    values = view.rows[figure.apart].drop_nulls()
    n = len(values)
    days = (
        "" if beside.began is None or beside.ended is None else f", {beside.began:%Y-%m-%d} to {beside.ended:%Y-%m-%d}"
    )
    sentences = [f"{many(beside.measured, 'GPU')} in {many(beside.runs, 'run')} of {choice.workload}{days}."]
    if n:
        middle = f"{rounded(view.rows[figure.value].median(), figure.digits)} {figure.unit}".rstrip()
        low, high = (figure.text(values.quantile(quantile, "linear")) for quantile in (0.05, 0.95))
        spread = f"90 % of the GPUs are {low} to {high} away from the median of their model"
        name = figure.name.capitalize()
        sentences.append(
            f"{name}: the median GPU has {middle}; {spread} (n = {n:,})."
            if n > 1
            else f"{name}: the only GPU has {middle} (n = 1)."
        )
    parts: list[Component] = [html.P(" ".join(sentences))]
    if view.judgement is None:
        todo = html.P("Nobody has judged these GPUs yet, so none is marked. This command does:")
        parts.append(told(todo, VERDICTS.command(store, choice.cluster.cluster), kind="empty"))
    notes = [*problems, *beside.notes, *_notes(view)]
    return [*parts, *([told(*(html.P(note) for note in notes))] if notes else [])]


def _notes(view: View) -> Iterator[str]:
    """What the judge and the figures leave out."""
    choice = view.choice
    if view.judgement is not None:
        for gap in view.judgement.not_judged:
            if gap.subject == choice.workload:
                yield f"Not judged in {choice.workload}: {why_not(gap)}."
        if batches := [verdict.name for verdict in view.judgement.rows if verdict.level is Level.BATCH]:
            yield (
                f"The judge compares the GPUs of a batch ({', '.join(batches[:3])}) with each other only; here they "
                "stand beside all."
            )
    if choice.printed is not None and choice.printed.workload not in (None, choice.workload):
        yield f"This figure is known in {choice.printed.workload}, not in {choice.workload}."
    if view.strips.left_out:
        yield (
            f"By place, {len(view.strips.places)} {view.level}s are drawn, the slowest and the fastest; "
            f"{view.strips.left_out:,} are left out there."
        )


def rounded(value: Any, digits: int) -> str:
    """A number with so many digits behind the point, fewer of a large one."""
    if value is None:
        return MISSING
    before = len(str(int(abs(value))))
    return minus(f"{value:,.{max(0, min(digits, _DIGITS - before))}f}")


def brush_line(view: View, state: State, held: pl.Series | None, picked: Sequence[int]) -> list[Any]:
    """What the brush holds and which GPUs are chosen, with what to do with them."""
    if held is None and not picked:
        return [html.P("Nothing is brushed: the table shows all GPUs.", className="soft")]
    parts: list[Any] = []
    if held is not None:
        subject = html.Strong(f"{int(held.sum()):,} of {view.rows.height:,} GPUs")
        parts.append(html.P([subject, f" are brushed: {', '.join([*_ranges(view, state), *_places(state)])}."]))
    if picked:
        names = listed([view.names[row] for row in picked], _PLACES)
        parts.append(html.P([html.Strong("Chosen: "), f"{names}."]))
    rows = picked or farthest(view, held, _LINKED)
    gpus = tuple(view.called(row) for row in rows)
    cut = "" if held is None or picked or len(rows) == int(held.sum()) else f" (the {len(rows)} farthest out)"
    pages = [("telemetry", "Compare their telemetry", "gpu"), ("placement", "Exclude them in placement", "without")]
    pages += [("gpu", "Look at this GPU", "gpu")] if len(gpus) == 1 else []
    links = [
        dcc.Link(
            f"{text}{cut}",
            href=state.href(path, **{field: gpus}, cluster=view.choice.cluster.cluster, range=(), place=()),
        )
        for path, text, field in pages
        if gpus
    ]
    clear = html.Button("Clear", id=CLEAR, type="button", n_clicks=0)
    return [html.Div([html.Div(parts), html.Div([*links, clear], className="links")], className="told brush")]


def farthest(view: View, held: pl.Series | None, most: int) -> list[int]:
    """Of the brushed GPUs those that are farthest from the median, or have a finding."""
    rows = view.rows.with_row_index("number")
    rows = rows if held is None else rows.filter(held)
    far = pl.col(view.choice.figure.apart).abs()
    first = rows.sort(pl.col("finding") == NO_FINDING, far, descending=[False, True], nulls_last=True)
    return sorted(first.head(most)["number"].to_list())


def _ranges(view: View, state: State) -> Iterator[str]:
    if any(span.column in ("row", "column") for span in state.range):
        yield "a part of the map"
    for span in state.range:
        if span.column == f"{view.level}_median":
            unit = view.choice.figure.apart_unit
            yield minus(f"{view.level}s with a median of {span.low:+.3g} to {span.high:+.3g} {unit}".strip())
            continue
        figure = next((known for known in view.choice.figures if span.column in (known.apart, known.value)), None)
        if figure is None:
            continue
        apart = span.column == figure.apart
        name, unit = (figure.more, figure.apart_unit) if apart else (figure.name, figure.unit)
        low, high = (minus(f"{end:{'+' if apart else ''}.3g} {unit}".strip()) for end in (span.low, span.high))
        ends = f"up to {high}" if isinf(span.low) else f"from {low}" if isinf(span.high) else f"{low} to {high}"
        yield f"{name} {ends}"


def _places(state: State) -> Iterator[str]:
    names = [place.partition(":")[2] for place in state.place]
    if names:
        level = state.place[0].partition(":")[0]
        yield f"{level}{'s' if len(names) > 1 else ''} {listed(names, _PLACES)}"


def tip(view: View, row: int) -> list[Component]:
    """The words beside the pointer: a GPU and its figure, with interval and n."""
    gpu, figure = view.rows.row(row, named=True), view.choice.figure
    apart, low, high = (gpu[f"{figure.apart}{end}"] for end in ("", "_low", "_high"))
    ends = MISSING if low is None or high is None else f"{signed(low)} to {signed(high)} {figure.apart_unit}"
    place = ", ".join(str(gpu[name]) for name in ("node", "cabinet") if gpu[name])
    lines = [
        html.Strong(gpu["label"]),
        html.Span(place) if place else None,
        html.Span(f"{figure.name}: {rounded(gpu[figure.value], figure.digits)} {figure.unit}"),
        html.Span(f"{figure.difference}: {MISSING if apart is None else signed(apart)} (95 %: {ends})"),
        html.Span(f"{many(gpu.get(f'{figure.key}_n') or gpu['n'], 'run')} in {many(gpu['sittings'], 'sitting')}"),
        html.Span(gpu["finding"], className="found") if gpu["finding"] not in (None, NO_FINDING) else None,
    ]
    return [html.Div([line for line in lines if line is not None], className="tip")]
