"""One GPU in full: what was found, which GPU it is, its place among its peers, its past, its clock, its runs, events.

`whorl explain` prints these sections, `whorl report --gpu` writes them as a page, and the dashboard draws each where
a reader looks at it. What was not read is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ... import __version__
from ...analysis.one_gpu.explain import NEWEST, Explained, Found, Named, OneGpu, SharedFinding, stands_in, timed
from ...analysis.one_gpu.explain import listed as listed_runs
from ...analysis.one_gpu.happened import Happened, Mark, Reasons, lost_since
from ...analysis.one_gpu.standing import Figures, Line, Place, Scatter, Sitting, Standing, times
from ...analysis.runs.probing import is_simulated
from ...analysis.verdicts import Kind, NotJudged, State
from ..document import (
    Cell,
    CellSource,
    Chart,
    Column,
    Command,
    Document,
    Facts,
    Part,
    Section,
    Table,
    TableColumns,
    Tiles,
)
from ..figures import gpu as figures
from ..words import MISSING, count, in_store, many, minute, number, with_interval
from .evidence import because, changed_with, peers
from .telemetry import newest_section
from .verdicts import as_judged, definitions, effect, findings, least
from .verdicts import not_judged as gaps_table

if TYPE_CHECKING:
    from ...analysis.verdicts.fingerprint import Neighbour

_WORKLOADS, _SITTINGS = 3, 8  # of its past, as tables
_RUNS, _EVENTS = 200, 60
_AGAIN = "measure it again 6 hours later or more"
_UNLIKE = 3.0  # standard deviations: of Longhorn's V100, 95 % of all pairs are nearer
_IDENTITY = {
    "model": "model", "uuid": "UUID", "serial": "serial number", "vbios": "VBIOS", "driver": "driver",
    "pci_bus_id": "PCI address", "node": "node", "slot": "slot", "cabinet": "cabinet",
}  # fmt: skip
_PLACE = {"cluster": "cluster", "node": "node", "slot": "slot", "serial": "serial", "driver": "driver"}
_HOW_FAR = (
    "How far its times scatter: between runs of a sitting, and between sittings, without what the day did to its "
    "peers, too. [ ]: 95 % intervals, which allow for heavy tails."
)
BESIDE, SITTINGS = "Its figures in those of its peers", "Sitting by sitting"
"""Titles of the charts of which a reader chooses one figure."""
Row = Mapping[str, Any]
"""A GPU, of `analysis.choosing.known_gpus`."""


def document(gpu: Explained, store: str) -> Document:
    """All that is known of a GPU. `store`: how commands spell it."""
    parts: list[Part | None] = [
        _in_short(gpu.row),
        what_was_found(gpu.row, gpu.runs, gpu.found, gpu.events, store=store),
        which(gpu.row, gpu.shared, gpu.runs),
        newest(gpu.newest),
        places(gpu.places, gpu.row["model"]),
    ]
    if isinstance(gpu, OneGpu):
        parts.insert(1, summary(gpu.stands, gpu.found))
        parts.append(beside_its_peers(gpu.stands, gpu.figures, gpu.runs, gpu.row, store=store))
    marks = gpu.marks if isinstance(gpu, OneGpu) else ()
    parts.append(past(gpu.lines, gpu.found, marks, stands_in(gpu.places, gpu.verdicts)))
    if isinstance(gpu, OneGpu):
        parts.append(clock(gpu.reasons, store=store))
        if gpu.telemetry is not None:
            from ..figures.fleet import over_time  # a terminal draws none of it, and need not load it

            timeline = over_time(gpu.telemetry, gpu.gpu, gpu.name)
            caption = (
                "Its last campaign, beside the median of all GPUs at the same point of the same probe; bands are its "
                "probes."
            )
            parts.append(Section("Its telemetry", [Chart("Power, clock and temperature", caption, {"": timeline})]))
        parts.append(runs(gpu.runs))
    parts.append(events(gpu.events))
    if isinstance(gpu, OneGpu):
        parts.append(like_it(gpu.alike))
    parts += [
        not_judged(gpu.not_judged),
        look_on(gpu.row, store),
        method(gpu.runs),
        definitions({verdict.kind for verdict in gpu.verdicts}),
    ]
    model = gpu.row["model"] or "a GPU of unknown model"
    return Document(f"GPU {gpu.name}: {model}", [part for part in parts if part is not None])


def _in_short(row: Row) -> str:
    key = "" if row["gpu"] == row["name"] else f" ({row['gpu']})"
    facts = [f"{word} {row[column]}" for column, word in _PLACE.items() if row[column] is not None]
    return f"{row['name']}{key}: {row['model'] or 'a GPU of unknown model'}; {', '.join(facts)}."


def shared_document(shared: SharedFinding, store: str) -> Document:
    """What was found about a node, a batch or a rank: what to do, and each of its GPUs."""
    options = in_store(store, shared.cluster)
    counted = many(len(shared.gpus), "GPU") if shared.gpus else "its GPU is not known"
    parts: list[Part] = [f"Cluster {shared.cluster}; {counted}."]
    if any(shared.newer):
        parts += [as_judged(shared.judged_at, shared.newer), Command(f"whorl verdicts {options}")]
    parts.append(findings(shared.verdicts))
    if shared.gpus:
        parts.append(f"Its GPUs: {', '.join(shared.gpus)}.")
        parts.append(Command(f"whorl explain {shlex.quote(shared.gpus[0])} {options}"))
    parts += [Command(f"whorl verdicts {options}"), definitions({verdict.kind for verdict in shared.verdicts})]
    return Document(shared.name, parts)


# -- what was found ----------------------------------------------------------------------------------------------


def what_was_found(
    row: Row, own_runs: pl.DataFrame, judged: Found | None, happened: Sequence[Happened], *, store: str
) -> Section:
    """What was found and what to do, what changes the meaning of all else, and what can be done where something is
    missing. `own_runs`: of `one_gpu.explain.own_runs`."""
    simulated = is_simulated(own_runs)
    verdicts = () if judged is None else judged.verdicts
    parts: list[Part] = [*_warnings(row, happened, simulated=simulated)]
    if sentence := _in_a_sentence(judged, own_runs):
        parts.append(sentence)
    if verdicts:
        parts.append(findings(verdicts))
    parts += [
        Chart(
            f"What {with_interval(verdict.effect_pct, None, None, signed=True, unit='%')} is made of",
            f"{str(verdict.kind).capitalize()}, in {', '.join(verdict.workloads[:1])}: the parts in per cent of the "
            "time of its peers, each with its 95 % interval. They add up to the whole, and are a hint, no diagnosis.",
            {"": figures.causes(verdict)},
        )
        for verdict in verdicts
        if verdict.causes and verdict.effect_pct is not None
    ]
    if judged is not None and not verdicts and (smallest := least(judged.smallest)) is not None:
        parts.append(smallest)
    parts += _next_steps(row, own_runs, judged, simulated=simulated, store=store)
    return Section("What was found", parts)


def _in_a_sentence(judged: Found | None, own_runs: pl.DataFrame) -> str:
    """What was found, in a sentence; "" where findings follow that say it."""
    if judged is not None and any(verdict.kind is not Kind.FAST for verdict in judged.verdicts):
        return ""
    if own_runs.is_empty() and (judged is None or not judged.verdicts):
        return "It was never measured: nothing can be said of its speed."
    if judged is None:
        return "Nobody has judged this GPU yet."
    if not judged.judged and not judged.verdicts:
        return "No GPU of its cluster could be judged: nothing can be said of it."
    if timed(own_runs).is_empty():
        return "It has no runs that ended well with a time: nothing can be said of it."
    return "Nothing was found against it."


def _warnings(row: Row, happened: Sequence[Happened], *, simulated: bool) -> Iterator[str]:
    """What changes the meaning of all else."""
    if row["mig_profile"] is not None or row["parent"] is not None:
        profile = f" ({row['mig_profile']})" if row["mig_profile"] is not None else ""
        yield f"This is a MIG instance{profile} of the GPU {row['parent'] or MISSING}: look at that GPU, too."
    lost = lost_since(happened)
    if lost is not None:
        yield (
            f"It has not answered since {minute(lost)} UTC. Take the node out of service, check its XID errors, its "
            "seating and its power, then reboot it."
        )
    if simulated:
        yield "This GPU is simulated: no number here was measured on a real GPU."


def _next_steps(
    row: Row, own_runs: pl.DataFrame, judged: Found | None, *, simulated: bool, store: str
) -> Iterator[Part]:
    """What is missing, each with the command that does something about it."""
    options, verdicts = in_store(store), Command(f"whorl verdicts {in_store(store, row['cluster'])}")
    if row["node"] is None and row["parent"] is None:
        yield "Its node is not known, so no neighbours are shown. Collect its telemetry on its node:"
        yield Command(f"whorl collect {options}")
    measure = Command(f"whorl probe run --suite quick --gpu {shlex.quote(str(row['name']))} {options}")
    if own_runs.is_empty():
        yield "Measure it on its node:"
        yield measure
        return
    if judged is None:
        yield "Judge its cluster:"
        yield verdicts
        return
    if judged.watch and not judged.verdicts:
        yield (
            "Its newest sitting is slower than its earlier ones, but not surely enough for a finding: measure it again."
        )
    if any(judged.newer):
        yield as_judged(judged.judged_at, judged.newer)
        yield verdicts
    days = own_runs["began"].drop_nulls().dt.date().n_unique()
    if not days:
        yield "Nobody knows when it was measured, as its runs have no date: its past cannot be shown."
    elif days < 2:
        yield f"It was measured on one day only: {_AGAIN} to see what repeats."
    doubt = judged.watch or any(verdict.state is State.SUSPECTED for verdict in judged.verdicts)
    doubt = doubt and row["node"] is not None and row["uuid"] is not None
    if (days == 1 or doubt) and not simulated:
        yield measure


def look_on(row: Row, store: str) -> Section:
    """Commands that say more."""
    options = in_store(store, row["cluster"])
    report = Command(f"whorl report --gpu {shlex.quote(str(row['name']))} {options}")
    return Section(
        "More", ["The evidence as one page, and all findings:", report, Command(f"whorl verdicts {options}")]
    )


def named(rows: Sequence[Named], title: str = "") -> Table:
    """The GPUs that findings are about, in the order of `rows`."""
    against = "Against its peers; slower and hotter are positive."
    columns: TableColumns = [
        (Column("GPU", page="gpu"), "name"),
        ("finding", lambda gpu: gpu.verdict.kind),
        ("state", lambda gpu: gpu.verdict.state),
        (Column("effect [95 %]", "percent", explains=against), lambda gpu: effect(gpu.verdict)),
        (Column("why", "sentence"), lambda gpu: because(gpu.verdict)),
    ]
    return Table.of(rows, columns, title)


# -- which GPU ---------------------------------------------------------------------------------------------------


def which(row: Row, shared: Mapping[str, tuple[int, int]], own_runs: pl.DataFrame) -> Section:
    """Who the GPU is, and how many of its peers have the same driver, VBIOS and limit; at last what nobody told."""

    def same(name: str) -> str:
        n, counted = shared.get(name, (0, 0))
        return "" if counted < 2 else f", as {n:,} of {counted:,} {peers(row['model'])}"

    pairs = [(word, f"{row[name]}{same(name)}") for name, word in _IDENTITY.items() if row[name] is not None]
    unknown = [word for name, word in _IDENTITY.items() if row[name] is None]
    limit, default = row["power_limit_mw"], row["power_limit_default_mw"]
    delivered = "" if default is None or default == limit else f" (delivered with {default / 1000:g} W)"
    if limit is None:
        unknown.append("power limit")
    else:
        pairs.append(("power limit", f"{limit / 1000:g} W{delivered}{same('power_limit_mw')}"))
    began = own_runs["began"].drop_nulls()
    measured = f"{own_runs.height:,}"
    if len(began):
        measured += f", from {minute(began.min())} to {minute(began.max())} UTC"  # type: ignore[arg-type]
    pairs += [("cluster", str(row["cluster"])), ("runs", measured)]
    if row["gpu"] != row["uuid"]:
        pairs.append(("key in the tables", str(row["gpu"])))
    return Section("Which GPU", [Facts([*pairs, *([("not known", ", ".join(unknown))] if unknown else [])])])


def newest(reading: pl.DataFrame) -> Section | None:
    """Its newest reading: load, power, temperature, clock and memory; None where it has none. Of `explain.NEWEST`."""
    return newest_section(reading, NEWEST) if reading.height else None


# -- beside its peers --------------------------------------------------------------------------------------------


def summary(stands: Sequence[Standing], judged: Found | None) -> Tiles | None:
    """The few numbers that matter: its time against its peers, and its rank; None where it has no times."""
    verdicts = () if judged is None else judged.verdicts
    workloads = [name for verdict in verdicts for name in verdict.workloads]
    rows = [standing for standing in times(stands) if standing.off_pct is not None]
    if not rows:
        return None
    worst = min(rows, key=lambda row: workloads.index(row.workload) if row.workload in workloads else len(workloads))
    off = with_interval(worst.off_pct, worst.off_low_pct, worst.off_high_pct, signed=True, unit="%")
    tiles = [(off, f"time in {worst.workload}, against its peers; n {many(worst.n, 'run')}")]
    if worst.rank is not None:
        tiles.append((f"{worst.rank:,} of {count(worst.peers)}", f"its rank in {worst.workload}; 1 is the fastest"))
    return Tiles(tiles)


def places(rows: Sequence[Place], model: str | None) -> Section | None:
    """Its time in each workload beside its peers; None where it has none."""
    if not rows:
        return None
    slower = Column("slower [95 %]", "percent", explains="Than the median of its peers; in another sitting.")
    columns: TableColumns = [
        ("workload", "workload"),
        (slower, lambda place: (place.effect_pct, place.low_pct, place.high_pct)),
        (Column("rank", explains="1 is the fastest."), lambda place: f"{place.rank:,} of {place.peers:,}"),
        (Column("rank [95 %]", "interval", 0, drops=1), lambda place: (place.rank_low, place.rank_high)),
        (Column("runs", "count", drops=2), "n"),
        (Column("sittings", "count", drops=3), "sittings"),
    ]
    unknown = all(place.low_pct is None for place in rows)
    below = "No intervals: too few GPUs have two sittings, so nobody knows what another one would bring."
    title = f"Its times beside the {peers(model)}"
    return Section(
        title,
        [Table.of(rows, columns, below=below if unknown else "")],
        "Rank 1 is the fastest; intervals are those of another sitting.",
    )


def beside_its_peers(
    stands: Sequence[Standing], stored: Figures | None, own_runs: pl.DataFrame, row: Row, *, store: str
) -> Section | None:
    """All its figures in the quantiles of its peers; None where it has no runs."""
    title = "All its figures beside its peers"
    if own_runs.is_empty():
        return None
    if stored is None:
        options = in_store(store, row["cluster"])
        missing = "Where it stands among its peers is not stored yet. This takes a minute:"
        return Section(title, [missing, Command(f"whorl verdicts fingerprint {options}")])
    if not stands:
        return Section(title, ["It has no runs that can be compared in the stored fingerprints."])
    charts = figures.beside_peers(stands)
    parts: list[Part] = []
    if charts:
        most = max(standing.gpus for standing in stands if standing.off_pct is not None)
        caption = (
            f"In per cent of the level of its peers; grey: where 90 % and 50 % of up to {most:,} GPUs of its model "
            "are. Bars are 95 % intervals of another sitting. The axis is linear near 0 and logarithmic beyond."
        )
        parts.append(Chart(BESIDE, caption, charts, choice="beside"))
    else:
        parts.append("No other GPU of its model was measured: there is nothing to compare with.")
    parts.append(Section(f"All {len(stands)} figures", [_figures(stands)], folded=True))
    return Section(title, parts, _as_stored(stored, stands, timed(own_runs).height))


def _as_stored(stored: Figures | None, stands: Sequence[Standing], own_runs: int) -> str:
    """When the fingerprint was stored, and how many of the GPU's runs are not in it."""
    if stored is None or stored.made_at is None:
        return ""
    newer = max(0, own_runs - sum(standing.n for standing in times(stands)))
    came = f"; {many(newer, 'run')} of it came since: run `whorl verdicts fingerprint`" if newer else ""
    return f"As stored on {minute(stored.made_at)} UTC{came}."


def _figures(stands: Sequence[Standing]) -> Table:
    columns: TableColumns = [
        ("workload", figures.subject),
        ("figure", lambda row: figures.figure_name(row.figure)),
        ("value", lambda row: f"{number(row.value)} {row.unit.replace('share', '')}".strip()),
        (Column("[95 %]", "interval", explains="Of the value in another sitting."), lambda row: (row.low, row.high)),
        (Column("beside its peers [95 %]", "percent"), lambda row: (row.off_pct, row.off_low_pct, row.off_high_pct)),
        (Column("90 % of its peers", "interval"), lambda row: _middle(row.band)),
        (
            Column("rank", explains="1 has the lowest value."),
            lambda row: None if row.rank is None else f"{row.rank:,} of {count(row.peers)}",
        ),
        (Column("runs", "count"), "n"),
        (Column("sittings", "count"), "sittings"),
    ]
    return Table.of(stands, columns)


def _middle(band: Sequence[float] | None) -> Cell:
    """The ends of the middle nine tenths of a band."""
    return None if band is None else (band[0], band[4])


def like_it(near: Sequence[Neighbour]) -> Section | None:
    """The GPUs whose figures are most like its own, the nearest first; None where there are none."""
    if not near:
        return None
    distance = near[0].distance
    alone = f"No GPU is like it: even the nearest is {distance:,.1f} standard deviations away. "
    lead = (
        "Those of its model whose figures differ least: the root mean square, in standard deviations of the peers. Two "
        "usual GPUs are about 1.2 apart."
    )
    columns: TableColumns = [
        (Column("GPU", page="gpu"), "name"),
        (Column("distance", "number", 2), "distance"),
        (Column("figures", "count"), "figures"),
    ]
    return Section("GPUs like it", [Table.of(near, columns)], f"{alone if distance > _UNLIKE else ''}{lead}")


# -- its past ----------------------------------------------------------------------------------------------------


def past(
    lines: Sequence[Line], judged: Found | None, marks: Sequence[Mark], workloads: Sequence[str] = ()
) -> Section | None:
    """Its sittings in each workload, and how well its times repeat; None where it has no times.

    `workloads`: those worth showing first.
    """
    if not lines:
        return None
    order = {name: place for place, name in enumerate(workloads)}
    in_order = sorted(lines, key=lambda line: order.get(line.workload, len(order)))
    changes = [
        (change, ", ".join(text for value in change.joined_with if (text := changed_with(value))))
        for change in (() if judged is None else judged.changes)
    ]
    charts = {line.workload: figures.past(line, changes, marks) for line in in_order if line.sittings}
    parts: list[Part] = []
    if charts:
        undated = sum(line.undated for line in lines)
        caption = (
            "Each point is the median of the runs of a sitting, with its 95 % interval from the scatter of runs. Grey: "
            f"its peers that were measured on the same day, {_counted(lines)}. Above: changes of its level, of its "
            "driver, firmware and place, and events."
            + (f" {many(undated, 'run')} without a date are left out." if undated else "")
        )
        parts.append(Chart(SITTINGS, caption, charts, choice="probe"))
    parts += [_sittings(line) for line in in_order[:_WORKLOADS]]
    if any(line.within is not None or line.between is not None for line in lines):
        parts.append(replace(_repeats(in_order), title="How well its times repeat", below=_HOW_FAR))
    elif all(line.runs < 2 for line in lines):
        parts.append("Each workload ran once: measure again to see how well its times repeat.")
    elif not any(line.sittings for line in lines):
        parts.append(
            "Its runs have no date, so that nobody knows which are of one sitting: measure again to see how well its "
            "times repeat."
        )
    return Section("Its past", parts)


def _counted(lines: Sequence[Line]) -> str:
    """How many peers stand behind the sittings."""
    numbers = [sitting.peers for line in lines for sitting in line.sittings]
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"n {low:,}" if low == high else f"n {low:,} to {high:,}"


def sittings(line: Line) -> list[Sitting]:
    """All sittings of a line, those without a date first."""
    return [*([line.without_date] if line.without_date is not None else []), *line.sittings]


def _sittings(line: Line) -> Table:
    rows = sittings(line)
    newest = f", the last {_SITTINGS} of {len(rows):,} sittings" if len(rows) > _SITTINGS else ""
    columns: TableColumns = [
        ("began (UTC)", lambda sitting: minute(sitting.began)),
        (Column("runs", "count"), "n"),
        (
            Column("slower [95 %]", "percent"),
            lambda sitting: (sitting.off_pct, sitting.low_pct, sitting.high_pct) if line.beside_peers else None,
        ),
        (Column("than that day", "percent", drops=1), "that_day_pct"),
        (Column("MHz", "count", drops=2), "sm_clock_mhz"),
        (Column("W", "number", 1), "power_w"),
        (Column("°C", "number", 1, drops=3), "temperature_c"),
    ]
    return Table.of(rows[-_SITTINGS:], columns, f"{line.workload}{newest}")


def _repeats(lines: Sequence[Line]) -> Table:
    columns: TableColumns = [
        ("workload", "workload"),
        (Column("runs", "count"), "runs"),
        (Column("sittings", "count"), lambda line: len(line.sittings)),
    ]
    if any(line.within for line in lines):
        columns += _scatter("within a sitting", lambda line: line.within)
    if any(line.between for line in lines):
        columns += _scatter("between sittings", lambda line: line.between)
    return Table.of(lines, columns)


def _scatter(where: str, scatter: Callable[[Line], Scatter | None]) -> Iterator[tuple[Column | str, CellSource]]:
    """How far the times of a line scatter, beside its peers."""

    def source(cell: Callable[[Scatter], Cell]) -> CellSource:
        return lambda line: None if (spread := scatter(line)) is None else cell(spread)

    yield (
        Column(f"{where}, sd [95 %]", "estimate", unit="%"),
        source(lambda spread: (spread.pct, spread.low_pct, spread.high_pct)),
    )
    yield Column(f"{where}, 90 % of peers", "interval", unit="%"), source(lambda spread: _middle(spread.peers_pct))
    yield Column(f"{where}, peers", "count"), source(lambda spread: spread.peers)


# -- its clock, runs and events ----------------------------------------------------------------------------------


def clock(reasons: Reasons | None, *, store: str) -> Section:
    """Why its clock was held over time. `reasons`: None where there is no telemetry of it."""
    title = "Why its clock was held"
    if reasons is None:
        missing = "There is no telemetry of it in this time. Read it on its node, beside its jobs:"
        return Section(title, [missing, Command(f"whorl collect {in_store(store)}")])
    readings = many(reasons.readings, "reading")
    if not reasons.told:
        return Section(title, [f"Not known: none of {readings} says why its clock was held."])
    if not reasons.held:
        return Section(title, [f"In {readings}, no reason was told for a lower clock."])
    counted = [figures.reason_name(held) for held in reasons.held if held.counted]
    others = [figures.reason_name(held) for held in reasons.held if not held.counted]
    most = ", at most, as a minute of pruned readings counts whole" if reasons.minutes else ""
    caption = " ".join(
        [
            f"The share of the time in which each reason held the clock down; {readings}.",
            *([f"Counted by the driver: {', '.join(counted)}."] if counted else []),
            *([f"From the readings{most}: {', '.join(others)}."] if others else []),
            *(["Earlier telemetry is left out, as it is too much at once."] if reasons.cut else []),
            "Blank: nothing was read.",
        ]
    )
    return Section(title, [Chart("Over time", caption, {"": figures.clock(reasons)})])


def runs(own_runs: pl.DataFrame, most: int = _RUNS) -> Section | None:
    """Its runs with their conditions, the newest first; None where it has none."""
    if own_runs.is_empty():
        return None
    newest = listed_runs(own_runs, most)
    columns = [
        Column("began (UTC)", "time"),
        Column("workload"),
        Column("time", "number", 3, "ms"),
        Column("repeats", "count"),
        Column("MHz", "count"),
        Column("W", "number", 1),
        Column("°C", "number", 1),
        Column("clock set"),
        Column("power limit", "number", 0, "W"),
        Column("neighbours"),
        Column("status"),
        Column("campaign"),
    ]
    earlier = own_runs.height - newest.height
    lead = "Newest first." + (f" {many(earlier, 'earlier run')} not shown." if earlier else "")
    return Section("Runs and their conditions", [Table(columns, newest.rows())], lead)


def events(happened: Sequence[Happened], most: int = _EVENTS) -> Section | None:
    """What happened to it and to its node, the newest first; None where nothing did."""
    if not happened:
        return None
    earlier = max(0, len(happened) - most)
    lead = "Events of the GPU, and of its node. Newest first." + (
        f" {earlier:,} earlier ones are in the store." if earlier else ""
    )
    columns: TableColumns = [
        (Column("when (UTC)", "time"), "ts"),
        ("what", "kind"),
        (Column("detail", "sentence"), lambda event: event.detail or event.meaning.split(";")[0] or None),
    ]
    return Section("What happened", [Table.of(happened[:most], columns)], lead)


def not_judged(gaps: Sequence[NotJudged]) -> Section | None:
    """What about it, its workloads or its cluster was not judged, and why; None where all was."""
    gap_rows = gaps_table(gaps)
    return None if gap_rows is None else Section("Not judged", [gap_rows])


# -- how it was measured -----------------------------------------------------------------------------------------

_METHOD = (
    "The time that a run took is compared with that of the peers: the other GPUs of the same model. The level of a GPU "
    "is the median of its sittings, without what a day did to all GPUs.",
    "A GPU is named only where its difference is larger than chance and large enough to matter (1 % of the time): of "
    "the GPUs that are named, at most 3 in 100 should be healthy.",
    "Causes are what clock, power, temperature and the driver's counters say. They are a hint, no diagnosis.",
)


def software(versions: pl.Series) -> str:
    """What ran, and in which versions: `cuda 12.4, driver 570.1/570.2`. `versions`: of `runs`."""
    by_name = {series.name: series.drop_nulls().unique().sort().to_list() for series in versions.struct.unnest()}
    return ", ".join(f"{name} {'/'.join(values)}" for name, values in sorted(by_name.items()) if values)


def method(own_runs: pl.DataFrame) -> Section:
    """How its runs were measured and judged, and what wrote this, and when: in a fold."""
    parts: list[str] = []
    imported = int(own_runs["probe_version"].is_null().sum())
    if imported < own_runs.height:
        probes = own_runs.drop_nulls("probe_version").select("plain", "probe_version").unique()
        versions = ", ".join(f"{probe} {version}" for probe, version in sorted(probes.iter_rows()))
        names = software(own_runs["versions"])
        parts.append(
            "Every GPU ran the same work of known size, under conditions that are stated with each run. Versions of "
            f"the probes: {versions}." + (f" Software: {names}." if names else "")
        )
    if imported:
        parts.append(
            f"Imported from files of other tools: {imported:,} of {many(own_runs.height, 'run')}. Which work these "
            "runs did, and under which conditions, is known as far as the files say; n/a is what they do not say."
        )
    written = f"whorl {__version__} wrote this on {minute(datetime.now(UTC))} UTC."
    return Section("How it was measured", [*parts, *_METHOD, written], folded=True)
