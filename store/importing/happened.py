"""What a file says that happened to its GPUs, as rows of `events`.

A reader tells what happened in a row. Of lost GPUs, `nvidia-smi` writes `GPU is lost` or `GPU requires reset` in the
fields, and `ERR!` where a call of the driver failed: in a row of which all readings are `ERR!`, it is the GPU that does
not answer; in a single field, the sensor. Its own error lines may name the GPU by its PCI address.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import polars as pl

from ..events import TYPED, event_columns
from ..instants import times_of_ns
from ..metrics import BOARD_POWER, UNTRUSTED_POWER
from ..vocabulary import EventKind
from . import identity
from .content import LINE, Sheet
from .meanings import LOST_MARKS, NO_ANSWER, Bound
from .times import instant
from .values import is_placeholder, stated

_AT_ONCE = 0.25  # of the shortest time between two readings of a GPU
_SHOWN = 10  # sentences in the report; the table has all
_SCHEMA = pl.Schema(
    {LINE: pl.Int64(), "ts": pl.Datetime("us"), "gpu": pl.String(), "node": pl.String(), "pci_bus_id": pl.String(),
     "kind": pl.String(), **dict.fromkeys(TYPED, pl.String()), "code": pl.Int64(), "n": pl.Int64(),
     "duration_ns": pl.Int64(), "before": pl.Float64(), "value": pl.Float64(), "detail": pl.String()}
)  # fmt: skip
_MARK = rf"(?i)^\[?\s*({'|'.join(LOST_MARKS)})"
_KINDS = {mark: kind.value for mark, kind in LOST_MARKS.items()}
_SENTENCES = {EventKind.LOST: "the GPU is lost", EventKind.NEEDS_RESET: "the GPU requires a reset"}
_TELLS_OF_LOST = re.compile(
    r"^(?!.*permission).*(?:device handle|is lost|fallen off the bus|requires reset)", re.IGNORECASE
)
_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)


def of_rows(sheet: Sheet, stamps: str) -> pl.DataFrame:
    """The events that a reader tells of rows, with the GPU and node of the row: columns of `events`, and `LINE`.

    Their time is their own, else that of the row in the column `stamps`, else --at, else now.
    """
    rows = sheet.frame.filter(pl.col(LINE).is_in([key for key, _ in sheet.events]))
    whose = {
        key: tuple(row) for key, *row in rows.select(LINE, "=gpu", "=node", pl.col(stamps).dt.epoch("ns")).iter_rows()
    }
    keys = [key for key, _ in sheet.events if key in whose]
    events = [
        replace(
            event, gpu=whose[key][0], node=whose[key][1], ts_ns=whose[key][2] if event.ts_ns is None else event.ts_ns
        )
        for key, event in sheet.events
        if key in whose
    ]
    otherwise_ns = time.time_ns()
    if any(event.ts_ns is None for event in events) and sheet.options.at is not None:
        sheet.used.add("at")
        otherwise_ns = instant(sheet.options.at, sheet.options.time_zone, "--at")
    columns = {LINE: keys} | event_columns(events, cluster=sheet.options.cluster)
    frame = pl.DataFrame({name: columns[name] for name in _SCHEMA}, {**_SCHEMA, "ts": pl.Int64})
    frame = frame.with_columns(times_of_ns(pl.col("ts").fill_null(otherwise_ns)))
    frame = _without_known_xids(frame, sheet)
    _tell(((gpu, detail) for gpu, detail in frame.select("gpu", "detail").iter_rows()), frame.height, sheet.notes)
    return frame


def _without_known_xids(events: pl.DataFrame, sheet: Sheet) -> pl.DataFrame:
    """Without what an exporter still shows: the last XID of a GPU, where the store has it as the last one before."""
    stored = sheet.options.xids() if sheet.first_xids else pl.DataFrame()
    if stored.is_empty():
        return events
    first = pl.DataFrame(list(sheet.first_xids), {LINE: pl.Int64, "code": pl.Int64}, orient="row")
    stored = stored.select(pl.col("gpu").cast(pl.String), "ts", pl.col("code").alias("last")).sort("ts")
    shows = (
        events.join(first, on=[LINE, "code"]).sort("ts").join_asof(stored, on="ts", by="gpu", check_sortedness=False)
    )
    return events.join(shows.filter(pl.col("last") == pl.col("code")), on=[LINE, "code"], how="anti")


def mark_lost(sheet: Sheet, readings: list[Bound], identities: list[Bound]) -> None:
    """Add `=lost`: what the fields of a row say that happened to its GPU, a kind of event, or NULL.

    Of readings that the GPU does not have, or this user may not see, the fields say so whether it answers or not.
    """
    marks = [pl.col(bound.column).str.extract(_MARK, 1) for bound in (*readings, *identities)]
    kind = pl.coalesce(marks).str.to_lowercase().replace_strict(_KINDS, default=None, return_dtype=pl.String)
    no_answer = [pl.col(bound.column).str.to_lowercase().is_in(NO_ANSWER) for bound in readings]
    silent = pl.sum_horizontal(pl.lit(0), *no_answer) > 1
    if any(sheet.counts(silent)):  # else the fields need not be looked at again: a log may be large
        nothing = [is_placeholder(bound.column, minus_one=False) for bound in readings]
        silent &= pl.all_horizontal(failed | none for failed, none in zip(no_answer, nothing, strict=True))
    sheet.frame = sheet.frame.with_columns(
        pl.coalesce(kind, pl.when(silent).then(pl.lit(EventKind.LOST.value))).alias("=lost")
    )


def of_lost_gpus(sheet: Sheet) -> pl.DataFrame:
    """An event each time a GPU begins to be lost or to need a reset, in rows or in lines of nvidia-smi itself.

    Rows of which nothing says which GPU they are about are refused.
    """
    _name_the_only_gpu(sheet)
    whose, kind = ["gpu", "node", "pci_bus_id"], pl.col("kind")
    part = sheet.bound["pci_bus_id"].column if "pci_bus_id" in sheet.bound else None
    rows = sheet.frame.select(
        LINE,
        pl.col("=timestamp").alias("ts"),
        pl.col("=gpu").alias("gpu"),
        pl.col("=node").alias("node"),
        pl.lit(None, pl.String).alias("pci_bus_id") if part is None else stated(part).alias("pci_bus_id"),
        pl.col("=lost").alias("kind"),
    )
    events = rows.clear()
    if rows["kind"].count():
        before = kind.shift().over(whose)
        events = rows.sort("ts", maintain_order=True).filter(kind.is_not_null() & kind.ne_missing(before))
    events = pl.concat([events, _of_messages(sheet, rows)]).sort("ts")
    events = events.with_columns(kind.replace_strict(_SENTENCES, default=None).alias("detail"))
    _tell(
        events.select(pl.coalesce("gpu", "pci_bus_id", pl.lit("a GPU")), "detail").iter_rows(),
        events.height,
        sheet.notes,
    )
    lost = pl.col("=lost").is_not_null()
    unnamed = pl.col("=gpu").is_null() & lost
    if part is not None:
        sheet.refuse((unnamed & stated(part).is_not_null(), "the GPU is lost, and only its PCI address is known"))
    sheet.refuse((unnamed, "the GPU is lost, and nothing says which it was"))
    return pl.concat([_SCHEMA.to_frame(), events], how="diagonal")


def _name_the_only_gpu(sheet: Sheet) -> None:
    """Give rows of a lost GPU that state no identity to the only GPU of the file, if they take turns with its readings:
    a row that follows another at once is of another GPU."""
    gpus = sheet.frame["=gpu"].drop_nulls().unique()
    if len(gpus) != 1 or not sheet.frame["=gpu"].null_count() or {"serial", "pci_bus_id"} & sheet.bound.keys():
        return
    named = sheet.frame.filter(pl.col("=gpu").is_not_null())
    gaps, own_gaps = (
        stamps.drop_nulls().sort().diff().drop_nulls().dt.total_microseconds().to_numpy()
        for stamps in (sheet.frame["=timestamp"], named["=timestamp"])
    )
    if not len(gaps) or gaps.min() <= _AT_ONCE * (own_gaps.min() if len(own_gaps) else gaps.mean()):
        return
    unnamed = pl.col("=gpu").is_null() & pl.col("=lost").is_not_null() & pl.col("=slot").is_null()
    sheet.frame = sheet.frame.with_columns(pl.when(unnamed).then(pl.lit(gpus[0])).otherwise("=gpu").alias("=gpu"))


def _of_messages(sheet: Sheet, rows: pl.DataFrame) -> pl.DataFrame:
    """The GPUs that lines of nvidia-smi name as lost: at the time of the reading before, of the first one else."""
    lines = {
        match[0]: (line, text)
        for line, text in reversed(sheet.messages)
        if _TELLS_OF_LOST.search(text) and (match := _ADDRESS.search(text))
    }
    if not lines or not rows.height:
        return rows.clear()
    places = pl.concat(
        [sheet.options.fleet().select("gpu", "node", "pci_bus_id"), rows.select("gpu", "node", "pci_bus_id")]
    )
    gpus = {
        (node, identity.address(part)): gpu for gpu, node, part in places.unique().drop_nulls("pci_bus_id").iter_rows()
    }
    nodes = rows["node"].drop_nulls().unique()
    node = sheet.options.node or (nodes[0] if len(nodes) == 1 else None)
    events = []
    for part, (line, text) in lines.items():
        address = identity.address(part)
        kind = EventKind.NEEDS_RESET if "requires reset" in text.lower() else EventKind.LOST
        events.append((line, gpus.get((node, address)), node, address, kind.value))
    schema = {LINE: pl.Int64, **dict.fromkeys(("gpu", "node", "pci_bus_id", "kind"), pl.String)}
    stamps = rows.select(LINE, "ts").sort(LINE)
    events_of_lines = pl.DataFrame(events, schema, orient="row").sort(LINE).join_asof(stamps, on=LINE)
    return events_of_lines.with_columns(pl.col("ts").fill_null(stamps["ts"][0])).select(rows.columns)


def _tell(sentences: Iterable[tuple[str, str]], number: int, notes: list[str]) -> None:
    notes += [f"{gpu}: {detail}" for gpu, detail in islice(sentences, _SHOWN)]
    if number > _SHOWN:
        notes.append(f"{number - _SHOWN} more events are in the table `events`")


# -- sensors and clocks ---------------------------------------------------------------------------------------

# What is wrong with the readings of a stream: sensors that are stuck or read 0 W, a clock that was set back. Rows keep
# their values; `telemetry.quality` has a mark, and an event says it in a sentence.
_STUCK, _ZERO = UNTRUSTED_POWER

# A power sensor is called stuck where its reading stays the same over this many readings and seconds while
# utilisation or temperature moves this much. (A sensor period is at most about 0.1 s.)
_READINGS, _SECONDS, _MOVED_KELVIN, _MOVED_PERCENT = 100, 10, 3, 20
_COARSE_MW = 1000  # readings in whole watts may well stay the same while a board warms up
_UNSORTED = 20  # with more than one step back in so many rows, a file is not in the order of time

_MARKED = pl.Schema({
    name: _SCHEMA[name] for name in ("ts", "gpu", "kind", "quality", "value", "n", "duration_ns", "detail")
})  # fmt: skip


def marked(frame: pl.DataFrame, earlier: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The readings with `quality`, and events, together with `earlier` ones."""
    events = [earlier]
    powers = [name for name in BOARD_POWER if name in frame.columns]
    marks = pl.DataFrame(schema={LINE: pl.Int64, "quality": pl.String})
    if powers and frame.height:
        power = frame.with_columns(pl.coalesce(powers).alias("power")).drop_nulls("power").sort("gpu", "ts")
        for sensor_events, lines, mark in ((*_zero(power), _ZERO), (*_stuck(power), _STUCK)):
            events.append(sensor_events)
            marks = pl.concat([marks, lines.select(LINE, pl.lit(mark).alias("quality"))])
    all_events = pl.concat([_MARKED.to_frame(), *events], how="diagonal_relaxed").select(_MARKED.names()).cast(_MARKED)
    notes.extend(f"{gpu}: {text}" for gpu, text in all_events.select("gpu", "detail").iter_rows())
    return frame.join(marks, on=LINE, how="left", maintain_order="left"), all_events


def _zero(power: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Readings of 0 W, which no GPU draws: an event for each GPU, and the rows."""
    rows = power.filter(pl.col("power") == 0)
    by_gpu = rows.group_by("gpu", maintain_order=True).agg(
        pl.col("ts").min(), pl.len().alias("n"), _span().alias("duration_ns")
    )
    sentence = (
        "{} power readings are 0 W, which no GPU draws: the sensor does not work, so they must not count as energy"
    )
    return _event(by_gpu, EventKind.ZERO_POWER, _ZERO, pl.format(sentence, "n")), rows


def _stuck(power: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Spans in which the power reading stays the same while what it depends on moves: events, and the rows.

    If the reading moves at other times, a falling temperature proves nothing: an idle GPU cools at constant power. Of
    readings in whole watts only utilisation counts.
    """
    changed = (pl.col("power") != pl.col("power").shift()) | (pl.col("gpu") != pl.col("gpu").shift())
    power = power.with_columns(changed.fill_null(True).cum_sum().alias("run"))
    runs = power["run"].rle().struct.unnest()
    long = power.filter(pl.col("run").is_in(runs.filter(pl.col("len") >= _READINGS)["value"].implode()))
    constant, coarse = pl.col("power").n_unique() == 1, (pl.col("power") % _COARSE_MW == 0).all()
    sensors = power.filter(pl.col("gpu").is_in(long["gpu"].unique().implode()))
    sensors = sensors.group_by("gpu").agg(constant.alias("constant"), coarse.alias("coarse"))
    power = long.join(sensors, on="gpu", maintain_order="left")
    moved = [pl.lit(False)]
    if "utilization" in power.columns:
        share = pl.col("utilization")
        moved.append(share.max() - share.min() >= _MOVED_PERCENT)
    if "temperature_c" in power.columns:
        heat = pl.col("temperature_c")
        ranged, rose = heat - heat.min().over("run"), heat - heat.cum_min().over("run")
        power = power.with_columns(pl.when("constant").then(ranged).when(~pl.col("coarse")).then(rose).alias("moved_k"))
        moved.append(pl.col("moved_k").max() >= _MOVED_KELVIN)
    spans = power.group_by("run", maintain_order=True).agg(
        pl.col("gpu").first(),
        pl.col("ts").min(),
        pl.col("power").first(),
        pl.len().alias("readings"),
        _span().alias("duration_ns"),
        pl.any_horizontal(*(condition.fill_null(False) for condition in moved)).alias("moved"),
    )
    spans = spans.filter(pl.col("moved") & (pl.col("power") > 0) & (pl.col("duration_ns") >= _SECONDS * 10**9))
    seconds, watts = pl.col("duration_ns") // 10**9, pl.col("power") / 1000
    sentence = (
        "power sensor stuck: {} power readings over {} s are {} W while temperature or utilisation changed: do not use "
        "them for energy"
    )
    spans = spans.with_columns(pl.col("power").cast(pl.Float64).alias("value"))
    events = _event(spans, EventKind.STUCK_SENSOR, _STUCK, pl.format(sentence, "readings", seconds, watts))
    return events, power.join(spans, on="run", how="semi")


def set_back(frame: pl.DataFrame) -> pl.DataFrame:
    """Where the time stamps of a GPU go back into time that the stream has already: events. In the order of the file.

    Logs in the wrong order do not overlap, and a file in no order at all says nothing of a clock.
    """
    ts = pl.col("ts")
    steps = frame.select(LINE, "gpu", "ts", ts.diff().over("gpu").alias("step"))
    back = pl.col("step") < pl.duration(nanoseconds=0)
    number = steps.select(back.sum()).item()
    if not number or number * _UNSORTED > steps.height:
        return pl.DataFrame(schema={"ts": pl.Datetime("us")})
    forward = pl.col("step").filter(pl.col("step") > pl.duration(nanoseconds=0)).median().over("gpu")
    parts = steps.with_columns(forward.alias("usual"), back.fill_null(False).cum_sum().over("gpu").alias("part"))
    first = [pl.col(c).first() for c in (LINE, "step", "usual")]
    parts = parts.group_by("gpu", "part", maintain_order=True).agg(ts.min(), ts.max().alias("end"), *first)
    parts = parts.with_columns(ts.shift().over("gpu").alias("before"), pl.col("end").shift().over("gpu").alias("until"))
    steps_back = parts.filter((ts < pl.col("until")) & (pl.col("end") > pl.col("before")))
    steps_back = steps_back.with_columns((pl.col("step") - pl.col("usual")).dt.total_nanoseconds().alias("duration_ns"))
    sentence = (
        "the time stamps go back by {} s (line {}): the clock was set, or summer time ended (--set time-zone=ZONE "
        "reads that right); readings of two times are mixed there"
    )
    seconds = (pl.col("duration_ns") / -1e9).round(3)
    return _event(steps_back, EventKind.CLOCK_STEP, None, pl.format(sentence, seconds, LINE))


def _span() -> pl.Expr:
    return (pl.col("ts").max() - pl.col("ts").min()).dt.total_nanoseconds()


def _event(rows: pl.DataFrame, kind: EventKind, mark: str | None, detail: pl.Expr) -> pl.DataFrame:
    return rows.with_columns(
        pl.lit(kind.value).alias("kind"), pl.lit(mark, pl.String).alias("quality"), detail.alias("detail")
    )
