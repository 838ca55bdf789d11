"""The parts of the page: what was found and what to do, its figures, its past, its clock, its runs and events."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import dcc, html

from ....analysis.choosing import shared
from ....analysis.one_gpu.past import frame as repeats
from ....analysis.one_gpu.runs import around, listed, timed
from ....analysis.one_gpu.standing import frame
from ....analysis.runs.probing import is_simulated
from ... import gpu_words as say
from ...documents.evidence import because, why_not
from ...figures import bands, history, reasons, waterfall
from ...table import many, minus
from ..grid import MOST, Column, table
from ..page import VERDICTS, command, graph, labelled, prose, section, tiles, told
from . import asked
from .asked import Row

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State

FIGURE, WORKLOAD = "gpu-figure", "gpu-workload"


def is_shown(control: str) -> str:
    """The id of what a control showed when it was drawn."""
    return f"{control}-is"


def nothing_chosen(reading: Reading) -> Component:
    """What stands there while no GPU is chosen: those with findings."""
    found = asked.named_first(reading)
    if not found:
        if reading.has("judgements"):
            return told(html.P("Choose a GPU above. No GPU has findings."), kind="empty")
        todo = [] if not reading.has("runs") else [VERDICTS.command(reading.store.root)]
        return told(
            html.P(f"Choose a GPU above. Nobody has judged these GPUs yet{':' if todo else '.'}"), *todo, kind="empty"
        )
    shown = pl.DataFrame(
        [
            {
                "name": one.name, "gpu": one.gpu, "cluster": one.cluster, "finding": str(one.verdict.kind),
                "state": str(one.verdict.state), "effect": one.verdict.effect_pct, "low": one.verdict.low_pct,
                "high": one.verdict.high_pct, "looks": because(one.verdict),
            }
            for one in found[:MOST]
        ],
        schema={
            **dict.fromkeys(("name", "gpu", "cluster", "finding", "state"), pl.String),
            **dict.fromkeys(("effect", "low", "high"), pl.Float64), "looks": pl.String,
        },
    )  # fmt: skip
    columns = [
        Column("name", "GPU", link="gpu", asks={"gpu": "gpu", "cluster": "cluster"}),
        Column("finding", "finding"),
        Column("state", "state"),
        Column(
            "effect", "effect", "percent", 1, says="Against the level of its peers; slower and hotter are positive."
        ),
        Column("low", "95 %", "interval", 1, high="high", unit="%"),
        Column("looks", "what was seen", wraps=True),
    ]
    return section(
        "GPUs with findings",
        table("gpu-named", columns, shown, label="GPUs with findings, the worst first", key="gpu"),
        says="Choose one of these, or search above.",
    )


# -- what was found --------------------------------------------------------------------------------------------


def head(reading: Reading, row: Row, state: State) -> list[Any]:
    """What was found and what to do, what must be known of it, who it is, and where to look on."""
    runs, found = asked.runs(reading, row), asked.judged(reading, row)
    store = str(reading.store.root)
    notes = list(say.notes(row, runs, found, asked.events(reading, row), simulated=is_simulated(runs), store=store))
    verdicts = () if found is None else found.verdicts
    parts: list[Any] = [tiles(say.summary(asked.stands(reading, row), found))]
    parts += [_note(one) for one in notes if one.matters]
    parts += [_finding(one, str(row["name"]), place) for place, one in enumerate(verdicts)]
    if found is not None and not verdicts and runs.height:
        parts.append(told(html.P(say.verdict_in_short(found, runs))))
    parts += [_note(one) for one in notes if not one.matters]
    if found is not None and found.not_judged:
        reasons_ = [html.Li(f"{gap.subject}: {why_not(gap)}") for gap in found.not_judged]
        parts.append(html.Details([html.Summary("What was not judged, and why"), html.Ul(reasons_)]))
    return [*parts, _links(reading, runs, row, state), _identity(reading, row, store)]


def _finding(one: Any, name: str, place: int) -> Component:
    said = say.told(one, name)
    words = [
        html.H2(f"{said.kind[:1].upper()}{said.kind[1:]}, {said.state}"),
        html.P([html.Strong("What to do: "), prose(said.action)]),
        html.P(minus(said.says)),
        html.P(minus(f"{said.evidence[:1].upper()}{said.evidence[1:]}."), className="soft"),
    ]
    kind = "finding" if said.alarming else "note"
    if not one.causes:
        return html.Div(words, className=f"told {kind}")
    label = f"What the effect is made of: {', '.join(part.what for part in one.causes)}"
    drawn = graph(waterfall.waterfall(one), label, id=f"gpu-causes-{place}")
    return html.Div([html.Div(words), drawn], className=f"told {kind} pair")


def _note(one: say.Note) -> Component:
    return told(html.P(one.says), *([command(one.command)] if one.command else []))


def _links(reading: Reading, runs: pl.DataFrame, row: Row, state: State) -> Component:
    """Where to look on: the pages that have something to show."""
    mine: dict[str, Any] = {"gpu": (row["name"],), "cluster": row["cluster"]}
    window = around(runs)
    since, until = (None, None) if window is None else window
    links = [
        (
            "Its telemetry around its newest run" if window else "Its telemetry",
            "telemetry",
            {"since": since, "until": until},
            "telemetry",
        ),
        ("The fleet, with this GPU marked", "fleet", {}, "runs"),
        ("Its jobs and energy", "energy", {}, "telemetry"),
        ("Exclude in placement", "placement", {"gpu": (), "without": mine["gpu"]}, "runs"),
    ]
    return html.Nav(
        [
            dcc.Link(text, href=state.href(path, **(mine | more)))
            for text, path, more, needs in links
            if reading.has(needs)
        ],
        className="onward",
        **labelled("Look on"),
    )


def _identity(reading: Reading, row: Row, store: str) -> Component:
    facts = say.identity(row, shared(asked.known(reading), row))
    pairs = [html.Div([html.Dt(word), html.Dd(value)]) for word, value in facts]
    write = f"whorl report --store {shlex.quote(store)} --gpu {shlex.quote(str(row['name']))} --out gpu.html"
    if row["cluster"]:
        write += f" --cluster {shlex.quote(str(row['cluster']))}"
    return section(
        "Which GPU",
        html.Dl(pairs, className="facts"),
        html.Details([html.Summary("Evidence for a vendor: the same as one offline file"), command(write)]),
    )


# -- its figures -----------------------------------------------------------------------------------------------


def beside_peers(reading: Reading, row: Row, state: State) -> Component | None:
    """Its figures in the bands of its peers."""
    own = asked.stands(reading, row)
    title = "Beside its peers"
    if not own:
        if asked.runs(reading, row).is_empty():
            return None
        if asked.figures(reading, row) is None:
            return section(title, _note(say.without_figures(row, str(reading.store.root))))
        return section(title, told(html.P("It has no runs that can be compared in the stored fingerprints.")))
    drawn = bands.kinds(own)
    older = say.older_figures(asked.figures(reading, row), own, timed(asked.runs(reading, row)).height)
    parts: list[Any] = []
    if drawn:
        shown = state.figure if state.figure in drawn else next(iter(drawn))
        most = max(one.gpus for one in own if one.off_pct is not None)
        choice = dcc.RadioItems(list(drawn), shown, id=FIGURE, inline=True, className="views")
        parts = [
            html.P(
                f"In per cent of the level of its peers. Grey: where 90 % and 50 % of up to {most:,} GPUs of its model "
                f"are. Bars are 95 % intervals of another sitting.{older}",
                className="soft",
            ),
            html.Fieldset([html.Legend("Figure", className="unseen"), choice]),
            dcc.Store(is_shown(FIGURE), data=shown),
            graph(bands.fingerprint_of(shown, drawn[shown]), f"{shown}, beside the peers", id="gpu-bands-figure"),
        ]
    else:
        parts = [told(html.P("No other GPU of its model was measured: there is nothing to compare with."))]
    rows = frame(own).with_columns(
        subject=pl.Series([bands.subject(one) for one in own], dtype=pl.String),
        figure=pl.Series([bands.words(one.figure) for one in own], dtype=pl.String),
    )
    columns = [
        Column("subject", "workload"),
        Column("figure", "figure"),
        Column("value", "value", "number", 3),
        Column("unit", "unit"),
        Column("low", "95 %", "interval", 3, high="high", says="Of the value in another sitting"),
        Column("off_pct", "beside its peers", "percent", 1),
        Column("off_low_pct", "95 %", "interval", 1, high="off_high_pct", unit="%"),
        Column("band_low", "90 % of its peers", "interval", 3, high="band_high"),
        Column("rank", "rank", "number", says="1 has the lowest value"),
        Column("peers", "of", "number", says="GPUs compared, itself included"),
        Column("n", "runs", "number"),
        Column("sittings", "sittings", "number"),
    ]
    all_of_them = table("gpu-figures", columns, rows, label="All figures beside the peers", height=420)
    return section(title, *parts, html.Details([html.Summary(f"All {len(own)} figures as a table"), all_of_them]))


# -- its past --------------------------------------------------------------------------------------------------


def its_past(reading: Reading, row: Row, state: State) -> Component | None:
    """Its sittings, and how well its times repeat."""
    lines = asked.lines(reading, row)
    if not lines:
        return None
    found = asked.judged(reading, row)
    named = [name for one in (() if found is None else found.verdicts) for name in one.workloads]
    several = {one.workload: one for one in lines if one.sittings}
    order = sorted(several, key=lambda name: named.index(name) if name in named else len(named))
    parts: list[Any] = []
    if order:
        shown = state.probe if state.probe in several else order[0]
        line = several[shown]
        drawn = history.history(line, () if found is None else found.changes, asked.marks(reading, row))
        undated = f" {many(line.undated, 'run')} without a date are left out." if line.undated else ""
        parts = [
            html.P(
                "Each point is the median of the runs of a sitting, with its 95 % interval from the scatter of runs. "
                f"Grey: its peers that were measured on the same day, {history.counted(line)}.{undated}",
                className="soft",
            ),
            html.Div(
                html.Label(["Workload", dcc.Dropdown(order, shown, id=WORKLOAD, clearable=False)]),
                className="inputs narrow",
            ),
            dcc.Store(is_shown(WORKLOAD), data=shown),
            graph(drawn, f"Its past in {shown}, beside its peers", id="gpu-past-figure"),
        ]
    return section("Its past", *parts, *_repeats(lines))


def _repeats(lines: Any) -> list[Any]:
    spread = bands.repeatability(lines)
    if spread is None:
        once = all(one.runs < 2 for one in lines)
        why = (
            "Each workload ran once" if once else "Its runs have no date, so that nobody knows which are of one sitting"
        )
        return [told(html.P(f"{why}: measure again to see how well its times repeat."))]
    columns = [
        Column("workload", "workload"),
        Column("runs", "runs", "number"),
        Column("sittings", "sittings", "number"),
        Column("within", "within a sitting, %", "number", 3),
        Column("within_low", "95 %", "interval", 3, high="within_high"),
        Column("within_peers_low", "90 % of its peers", "interval", 3, high="within_peers_high"),
        Column("within_peers", "peers", "number"),
        Column("between", "between sittings, %", "number", 3),
        Column("between_low", "95 %", "interval", 3, high="between_high"),
        Column("between_peers_low", "90 % of its peers", "interval", 3, high="between_peers_high"),
        Column("between_peers", "peers", "number"),
    ]
    shown = table("gpu-repeats", columns, repeats(lines), label="How well its times repeat", height=420)
    return [
        html.H3("How well its times repeat"),
        html.P(
            "How far its times scatter: between runs of a sitting, and between sittings, without what the day did to "
            "its peers, too. Bars are 95 % intervals, which allow for heavy tails.",
            className="soft",
        ),
        graph(spread, "How far its times scatter, beside its peers", id="gpu-repeats-figure"),
        html.Details([html.Summary("As a table"), shown]),
    ]


# -- its clock, runs, events, and who is like it -----------------------------------------------------------------


def its_clock(reading: Reading, row: Row, state: State) -> Component:
    """Why its clock was held, over time."""
    found, title = asked.held(reading, row, state), "Why its clock was held"
    parts: list[Any] = []
    if state.since is not None or state.until is not None:
        whole = dcc.Link("show all of it", href=state.href("gpu", since=None, until=None))
        parts.append(html.P(["Only the time that the address asks for: ", whole, "."]))
    if found is None:
        note = "There is no telemetry of it" + (
            " in this time." if parts else ". Read it on its node, beside its jobs:"
        )
        parts.append(told(html.P(note), command(f"whorl collect --store {shlex.quote(str(reading.store.root))}")))
    elif not found.told:
        parts.append(told(html.P(f"n/a: none of {many(found.readings, 'reading')} says why its clock was held.")))
    elif not found.held:
        parts.append(told(html.P(f"In {many(found.readings, 'reading')}, no reason was told for a lower clock.")))
    else:
        parts += [
            html.P(
                f"The share of the time in which each reason held the clock down; {many(found.readings, 'reading')}. "
                f"{reasons.caption(found)}",
                className="soft",
            ),
            graph(reasons.over_time(found), "Reasons for its clock over time", id="gpu-clock-figure"),
        ]
    return section(title, *parts)


def its_runs(reading: Reading, row: Row, _: State) -> list[Any]:
    """Its runs with their conditions, and its events."""
    runs, happened = asked.runs(reading, row), asked.events(reading, row)
    parts = []
    if runs.height:
        columns = [
            Column("began", "began (UTC)", "time"),
            Column("workload", "workload"),
            Column("time_ms", "time, ms", "number", 3),
            Column("repeats", "repeats", "number"),
            Column("sm_clock_mhz", "clock, MHz", "number"),
            Column("power_w", "power, W", "number", 1),
            Column("temperature_c", "°C", "number"),
            Column("clock", "clock set"),
            Column("power_limit_w", "power limit, W", "number"),
            Column("neighbours", "neighbours"),
            Column("status", "status"),
            Column("campaign", "campaign"),
        ]
        more = f" The newest {MOST:,} of {runs.height:,}." if runs.height > MOST else ""
        shown = table("gpu-runs-table", columns, listed(runs, MOST), label="Runs, newest first", height=420)
        parts.append(section("Runs and their conditions", shown, says=f"Newest first.{more}"))
    if happened:
        rows = pl.DataFrame(
            [{"ts": one.ts, "kind": one.kind, "detail": one.detail or one.meaning} for one in happened],
            schema={"ts": pl.Datetime("us"), "kind": pl.String, "detail": pl.String},
        )
        columns = [Column("ts", "when (UTC)", "time"), Column("kind", "what"), Column("detail", "detail", wraps=True)]
        shown = table("gpu-events", columns, rows, label="Events, newest first", height=360)
        parts.append(section("What happened", shown, says="Events of the GPU, and of its node. Newest first."))
    return parts


def like_it(reading: Reading, row: Row, state: State) -> Component | None:
    """The GPUs whose figures are most like its own."""
    near = asked.alike(reading, row)
    if not near:
        return None
    listed_ = [
        html.Li(
            [
                dcc.Link(one.name, href=state.href("gpu", gpu=(one.name,), cluster=row["cluster"])),
                f": {one.distance:.1f} standard deviations away, over {many(one.figures, 'figure')}",
            ]
        )
        for one in near
    ]
    return section("GPUs like it", html.Ul(listed_), says=say.likeness(near))
