"""What `whorl verdicts fingerprint` says: the classes GPU by GPU, or every figure of one GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...analysis.verdicts.compare import LEAST_GPUS
from ...store.names import by_number
from ..table import MISSING, Line, Table, count, number
from ..words import short_names as short

if TYPE_CHECKING:
    from ...analysis.verdicts.fingerprint import Fingerprints

_LISTED = 20
_CLASSES = ("compute", "memory", "power", "latency", "path", "other")


def document(found: Fingerprints) -> dict[str, Any]:
    """The document of `whorl.fingerprint/1`."""
    return {
        "schema": "whorl.fingerprint/1",
        "cluster": found.cluster,
        "gpu": found.gpu,
        "rows": found.rows.drop("version", "made_at").to_dicts(),
        "neighbours": [
            {"gpu": one.gpu, "name": one.name, "distance": one.distance, "figures": one.figures}
            for one in found.neighbours
        ],
    }


def answer(found: Fingerprints, store: str | Path) -> Iterable[str | Table]:
    """The fingerprints for people."""
    if found.rows.is_empty():
        none = "it has no runs: there is no fingerprint" if found.gpu else "there are no runs that ended well"
        yield f"{none}; what was seen of GPUs stands in: whorl verdicts --store {shlex.quote(str(store))}"
    elif found.gpu is None:
        yield from _fleet(found, store)
    else:
        yield from _one(found)


def _fleet(found: Fingerprints, store: str | Path) -> Iterable[str | Table]:
    times = found.rows.filter((pl.col("figure") == "time") & pl.col("workload").is_null())
    classes = [one for one in _CLASSES if one in set(times["class"])]
    by_gpu: dict[str, dict[str, dict[str, Any]]] = {}
    for row in times.iter_rows(named=True):
        by_gpu.setdefault(row["name"], {})[row["class"]] = row
    spread = found.rows.filter(pl.col("figure") == "time_spread").select("name", "value")
    moves = dict(spread.iter_rows())

    def slowest(name: str) -> float:
        return max((row["ratio"] for row in by_gpu[name].values()), default=0.0)

    names = sorted(by_gpu, key=lambda name: (-slowest(name), by_number(name)))
    if not names:
        yield "no GPU has peers, which are GPUs of its model with the same workload: there is nothing to compare with"
        return
    said = short(names)
    rows = [
        [
            said[name],
            *(_ratio(by_gpu[name].get(of)) for of in classes),
            number(moves.get(name), 2),
            count(max(row["n"] for row in by_gpu[name].values())),
        ]
        for name in names[:_LISTED]
    ]
    yield Table(
        ("GPU", *(f"{of} %" for of in classes), "moves %", "runs"),
        rows,
        tuple(range(1, len(classes) + 3)),
        title=f"cluster {found.cluster}: {len(names):,} GPUs, those slow in any class first",
        leaves=(len(classes) + 2, len(classes) + 1),
    )
    if len(names) > _LISTED:
        yield f"and {len(names) - _LISTED:,} more: --json has all"
    yield (
        "in % of the time of the peers, slower is positive, the median of the workloads of a class; +/-: half the 95 % "
        "interval of another sitting; moves: standard deviation of the GPU's own level from sitting to sitting"
    )
    yield from _few(times)
    yield ""
    where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(found.cluster)}"
    yield Line(f"next: whorl verdicts fingerprint --gpu {shlex.quote(said[names[0]])} {where}")


def _few(rows: pl.DataFrame) -> Iterable[str]:
    """What cannot be concluded where there are few GPUs of a model."""
    few = {int(one) for one in rows["peers"].drop_nulls().unique()}
    if 2 in few:
        yield (
            "2 GPUs of a model: the ratios say that they differ, but which of the two is odd cannot be said: a third "
            "GPU of the model tells"
        )
    few = {one for one in few if 2 < one < LEAST_GPUS}
    if few:
        yield f"of {max(few)} GPUs of a model, none can be named: `whorl verdicts` needs {LEAST_GPUS}"


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return MISSING
    shown = f"{100 * (row['ratio'] - 1):+.1f}"
    if row["ratio_low"] is None or row["ratio_high"] is None:
        return shown
    return f"{shown} +/-{50 * (row['ratio_high'] - row['ratio_low']):.1f}"


def _one(found: Fingerprints) -> Iterable[str | Table]:
    first = found.rows.row(0, named=True)
    key = "" if first["gpu"] == first["name"] else f" ({first['gpu']})"
    serial = "" if first["serial"] is None else f", serial {first['serial']}"
    yield f"{first['name']}{key}: {first['model'] or 'model unknown'}{serial}, cluster {found.cluster}"
    yield ""
    yield figures(found)
    yield "[95 %]: of another sitting; peers: beside the median of the GPUs of its model; rank 1 has the lowest value"
    yield from _few(found.rows)
    if found.neighbours:
        said = short([first["name"], *(one.name for one in found.neighbours)])
        alike = ", ".join(
            f"{said[one.name]} ({one.distance:.2f} sd over {one.figures} figures)" for one in found.neighbours
        )
        yield f"most like it: {alike}"


def figures(found: Fingerprints) -> Table:
    """Every figure of one GPU."""
    rows = [
        [
            row["class"],
            row["workload"] or "(all)",
            row["figure"],
            f"{number(row['value'])} {row['unit']}".strip(),
            _bounds(row["low"], row["high"]),
            MISSING if row["ratio"] is None else f"{100 * (row['ratio'] - 1):+.1f}",
            MISSING if row["rank"] is None else f"{row['rank']:,} of {row['peers']:,}",
            count(row["n"]),
            count(row["sittings"]),
        ]
        for row in found.rows.iter_rows(named=True)
    ]
    return Table(
        ("class", "workload", "figure", "value", "[95 %]", "peers %", "rank", "runs", "sittings"),
        rows,
        (3, 5, 6, 7, 8),
        leaves=(8, 7, 4),
    )


def _bounds(low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"[{number(low)}, {number(high)}]"
