"""What a file says that happened to its GPUs, as rows of `events`.

A reader tells what happened in a row. Of lost GPUs, `nvidia-smi` writes `GPU is lost` or `GPU requires reset` in the
fields, and `ERR!` where a call of the driver failed: in a row of which all readings are `ERR!`, it is the GPU that does
not answer; in a single field, the sensor. Its own error lines may name the GPU by its PCI address.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from itertools import islice

import polars as pl

from ..events import TYPED
from ..instants import times_of_ns
from ..vocabulary import EventKind
from . import identity
from .content import LINE, Sheet
from .layout import Bound
from .meanings import LOST_MARKS, NO_ANSWER
from .options import Options
from .times import instant
from .values import Remarks, is_placeholder

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


def of_rows(sheet: Sheet, stamps: str, options: Options, remarks: Remarks) -> pl.DataFrame:
    """The events that a reader tells of rows, with the GPU and node of the row: columns of `events`, and `LINE`.

    Their time is their own, else that of the row in the column `stamps`, else --at, else now.
    """
    rows = sheet.frame.filter(pl.col(LINE).is_in([key for key, _ in sheet.events]))
    whose = {
        key: tuple(row) for key, *row in rows.select(LINE, "=gpu", "=node", pl.col(stamps).dt.epoch("ns")).iter_rows()
    }
    events = [(key, event) for key, event in sheet.events if key in whose]
    stamps_ns = [event.ts_ns if event.ts_ns is not None else whose[key][2] for key, event in events]
    if None in stamps_ns:
        sheet.used.add("at")
        otherwise = instant(options.at, options.time_zone, "--at") if options.at is not None else time.time_ns()
        stamps_ns = [otherwise if ns is None else ns for ns in stamps_ns]
    names = ("pci_bus_id", *TYPED, "detail")
    columns: dict[str, list[object]] = {name: [getattr(event, name) for _, event in events] for name in names}
    columns |= {
        LINE: [key for key, _ in events],
        "ts": list(stamps_ns),
        "kind": [event.kind.value for _, event in events],
        "gpu": [whose[key][0] for key, _ in events],
        "node": [whose[key][1] for key, _ in events],
    }
    frame = pl.DataFrame({name: columns[name] for name in _SCHEMA}, {**_SCHEMA, "ts": pl.Int64})
    _tell(((gpu, detail) for gpu, detail in frame.select("gpu", "detail").iter_rows()), frame.height, remarks)
    return frame.with_columns(times_of_ns(pl.col("ts")))


def mark_lost(sheet: Sheet, readings: list[Bound], identities: list[Bound]) -> None:
    """Add `=lost`: what the fields of a row say that happened to its GPU, a kind of event, or NULL."""
    marks = [pl.col(item.column).str.extract(_MARK, 1) for item in (*readings, *identities)]
    kind = pl.coalesce(marks).str.to_lowercase().replace_strict(_KINDS, default=None, return_dtype=pl.String)
    no_answer = [pl.col(item.column).str.to_lowercase().is_in(NO_ANSWER) for item in readings]
    silent = pl.all_horizontal(no_answer) if len(no_answer) > 1 else pl.lit(False)
    sheet.frame = sheet.frame.with_columns(
        pl.coalesce(kind, pl.when(silent).then(pl.lit(EventKind.LOST.value))).alias("=lost")
    )


def of_lost_gpus(sheet: Sheet, bound: dict[str, Bound], options: Options, remarks: Remarks) -> pl.DataFrame:
    """An event each time a GPU begins to be lost or to need a reset, in rows or in lines of nvidia-smi itself.

    Rows of which nothing says which GPU they are about are refused.
    """
    _name_the_only_gpu(sheet, bound)
    whose, kind = ["gpu", "node", "pci_bus_id"], pl.col("kind")
    part = bound["pci_bus_id"].column if "pci_bus_id" in bound else None
    rows = sheet.frame.select(
        LINE,
        pl.col("=timestamp").alias("ts"),
        pl.col("=gpu").alias("gpu"),
        pl.col("=node").alias("node"),
        pl.lit(None, pl.String).alias("pci_bus_id")
        if part is None
        else pl.when(~is_placeholder(part, minus_one=False)).then(pl.col(part)).alias("pci_bus_id"),
        pl.col("=lost").alias("kind"),
    )
    events = rows.clear()
    if rows["kind"].count():
        before = kind.shift().over(whose)
        events = rows.sort("ts", maintain_order=True).filter(kind.is_not_null() & kind.ne_missing(before))
    events = pl.concat([events, _of_messages(sheet, rows, options)]).sort("ts")
    places = {text: identity.address(text) for text in events["pci_bus_id"].drop_nulls()}
    events = events.with_columns(
        pl.col("pci_bus_id").replace(places), kind.replace_strict(_SENTENCES, default=None).alias("detail")
    )
    _tell(
        events.select(pl.coalesce("gpu", "pci_bus_id", pl.lit("a GPU")), "detail").iter_rows(), events.height, remarks
    )
    lost = pl.col("=lost").is_not_null()
    sheet.refuse((pl.col("=gpu").is_null() & lost, "the GPU is lost, and nothing says which it was"))
    return pl.concat([_SCHEMA.to_frame(), events], how="diagonal")


def _name_the_only_gpu(sheet: Sheet, bound: dict[str, Bound]) -> None:
    """Give rows of a lost GPU that state no identity to the only GPU of the file, if they take turns with its readings:
    a row that follows another at once is of another GPU."""
    gpus = sheet.frame["=gpu"].drop_nulls().unique()
    if len(gpus) != 1 or not sheet.frame["=gpu"].null_count() or {"serial", "pci_bus_id"} & bound.keys():
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


def _of_messages(sheet: Sheet, rows: pl.DataFrame, options: Options) -> pl.DataFrame:
    """The GPUs that lines of nvidia-smi name as lost: at the time of the reading before, of the first one else."""
    lines = {
        match[0]: (line, text)
        for line, text in reversed(sheet.messages)
        if _TELLS_OF_LOST.search(text) and (match := _ADDRESS.search(text))
    }
    if not lines or not rows.height:
        return rows.clear()
    places = pl.concat([options.fleet().select("gpu", "node", "pci_bus_id"), rows.select("gpu", "node", "pci_bus_id")])
    gpus = {
        (node, identity.address(part)): gpu for gpu, node, part in places.unique().drop_nulls("pci_bus_id").iter_rows()
    }
    nodes = rows["node"].drop_nulls().unique()
    node = options.node or (nodes[0] if len(nodes) == 1 else None)
    events = []
    for part, (line, text) in lines.items():
        address = identity.address(part)
        kind = EventKind.NEEDS_RESET if "requires reset" in text.lower() else EventKind.LOST
        events.append((line, gpus.get((node, address)), node, address, kind.value))
    schema = {LINE: pl.Int64, **dict.fromkeys(("gpu", "node", "pci_bus_id", "kind"), pl.String)}
    stamps = rows.select(LINE, "ts").sort(LINE)
    events_of_lines = pl.DataFrame(events, schema, orient="row").sort(LINE).join_asof(stamps, on=LINE)
    return events_of_lines.with_columns(pl.col("ts").fill_null(stamps["ts"][0])).select(rows.columns)


def _tell(sentences: Iterable[tuple[str, str]], number: int, remarks: Remarks) -> None:
    """Tell the first events in the report."""
    remarks.notes += [f"{gpu}: {detail}" for gpu, detail in islice(sentences, _SHOWN)]
    if number > _SHOWN:
        remarks.notes.append(f"{number - _SHOWN} more events are in the table `events`")
