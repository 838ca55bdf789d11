"""What is said of one GPU, for its evidence page and the dashboard alike: findings, what to do, and what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ..analysis.one_gpu.found import Found
from ..analysis.one_gpu.happened import Happened, lost_since
from ..analysis.one_gpu.standing import Figures, Standing, times
from ..analysis.verdicts import Kind, Level, State, Verdict
from ..analysis.verdicts.fingerprint import Neighbour
from .documents.evidence import action, because, chances, reference, size
from .documents.evidence import peers as kin
from .documents.verdicts import as_judged
from .table import MISSING, count, many, minute
from .words import interval, percent
from .words import listed as some

_IDENTITY = {
    "model": "model", "uuid": "UUID", "serial": "serial number", "vbios": "VBIOS", "driver": "driver",
    "pci_bus_id": "PCI address", "node": "node", "slot": "slot", "cabinet": "cabinet",
}  # fmt: skip
_AGAIN = "measure it again 6 hours later or more"
_UNLIKE = 3.0  # standard deviations: of Longhorn's V100, 95 % of all pairs are nearer


@dataclass(frozen=True)
class Note:
    """A sentence, and the command that does something about it, if one does."""

    says: str
    command: str = ""
    matters: bool = False
    """Whether it changes what all the rest means, and so comes first."""


@dataclass(frozen=True)
class Told:
    """A finding in words."""

    kind: str
    state: str
    action: str
    """What to do."""
    says: str
    evidence: str
    alarming: bool
    """Whether something is wrong; a fast GPU is none."""


def told(one: Verdict, name: str) -> Told:
    """A finding about the GPU of this name, or about its node or a batch that it is in."""
    covers = "" if one.level is Level.GPU and one.name == name else f" This is about {_whom(one)}."
    sure = ", ".join(part for part in (_how_sure(one), size(one) and f"effect {size(one)}", *_evidence(one)) if part)
    says = f"{_capital(because(one))}.{covers}"
    return Told(str(one.kind), str(one.state), action(one), says, sure, one.kind is not Kind.FAST)


def _whom(one: Verdict) -> str:
    of = "the node" if one.level is Level.NODE else "a group that it is in:"
    return f"{of} {one.name}, {many(len(one.gpus), 'GPU')}"


def _how_sure(one: Verdict) -> str:
    seen = "seen in two sittings or more" if one.state is State.CONFIRMED else f"seen in one sitting: {_AGAIN}"
    return f"{one.state} ({seen})"


def _evidence(one: Verdict) -> list[str]:
    """What it rests on."""
    parts = chances(one)
    if one.figure:
        parts.append(f"compared with {reference(one)}" if one.reference else f"n {count(one.n)}")
    if one.runs:
        parts.append(many(len(one.runs), "run"))
    if one.first_seen is not None:
        parts.append(f"from {minute(one.first_seen)} to {minute(one.last_seen)}")
    return parts


def identity(row: Mapping[str, Any], shared: Mapping[str, tuple[int, int]]) -> list[tuple[str, str]]:
    """Who the GPU is: words and values. n/a where nobody told."""
    found, peers = [], kin(row["model"])
    for name, word in _IDENTITY.items():
        value = MISSING if row[name] is None else str(row[name])
        found.append((word, f"{value}{_same(shared.get(name), peers)}"))
    limit, default = (
        None if row[name] is None else row[name] / 1000 for name in ("power_limit_mw", "power_limit_default_mw")
    )
    delivered = "" if default is None or default == limit else f" (delivered with {default:g} W)"
    watts = MISSING if limit is None else f"{limit:g} W{delivered}{_same(shared.get('power_limit_mw'), peers)}"
    return [*found, ("power limit", watts), ("cluster", str(row["cluster"])), ("key in the tables", str(row["gpu"]))]


def _same(shared: tuple[int, int] | None, peers: str) -> str:
    return "" if shared is None or shared[1] < 2 else f", as {shared[0]:,} of {shared[1]:,} {peers}"


def summary(stands: Sequence[Standing], found: Found | None) -> list[tuple[str, str]]:
    """The few numbers that matter: each with what it is."""
    tiles = [] if found is None else [(str(len(found.verdicts)), "finding" if len(found.verdicts) == 1 else "findings")]
    named = [name for one in (() if found is None else found.verdicts) for name in one.workloads]
    own = times(stands)
    own.sort(key=lambda one: named.index(str(one.workload)) if one.workload in named else len(named))
    if own and own[0].off_pct is not None:
        one = own[0]
        bounds = interval(one.off_low_pct, one.off_high_pct)
        tiles.append(
            (
                f"{percent(one.off_pct)} %",
                f"time in {one.workload}, against its peers; 95 %: {bounds}; n {many(one.n, 'run')}",
            )
        )
        if one.rank is not None:
            tiles.append((f"{one.rank:,} of {count(one.peers)}", f"its rank in {one.workload}; 1 is the fastest"))
    return tiles


def verdict_in_short(found: Found | None, runs: pl.DataFrame) -> str:
    """What was found, in a sentence."""
    if found is None:
        return "Nobody has judged this GPU yet."
    wrong = [one for one in found.verdicts if one.kind is not Kind.FAST]
    if wrong:
        kinds = list(dict.fromkeys(f"{one.kind} ({one.state})" for one in wrong))
        return f"Found against it: {some(kinds, 6)}."
    if runs.is_empty():
        return "It was never measured: nothing can be said of it."
    if not found.judged and not found.verdicts:
        return "No GPU of its cluster could be judged: nothing can be said of it."
    return "Nothing was found against it."


def notes(
    row: Mapping[str, Any], runs: pl.DataFrame, found: Found | None, events: Sequence[Happened], *, simulated: bool,
    store: str,
) -> Iterator[Note]:  # fmt: skip
    """What a reader must know, and what can be done where something is missing."""
    where, name = f"--store {shlex.quote(store)}", shlex.quote(str(row["name"]))
    cluster = f"--cluster {shlex.quote(str(row['cluster']))}"
    if row["mig_profile"] is not None or row["parent"] is not None:
        kind = f" ({row['mig_profile']})" if row["mig_profile"] is not None else ""
        yield Note(
            f"This is a MIG instance{kind} of the GPU {row['parent'] or MISSING}: look at that GPU, too.", matters=True
        )
    lost = lost_since(events)
    if lost is not None:
        yield Note(
            f"It has not answered since {minute(lost)} UTC. Take the node out of service, check its XID errors, its "
            "seating and its power, then reboot it.",
            matters=True,
        )
    if simulated:
        yield Note("This GPU is simulated: no number here was measured on a real GPU.", matters=True)
    if row["node"] is None and row["parent"] is None:
        yield Note(
            "Its node is not known, so no neighbours are shown. Collect its telemetry on its node:",
            f"whorl collect {where}",
        )
    measure = f"whorl probe run --suite quick --gpu {name} {where}"
    if runs.is_empty():
        yield Note("It was never measured. Measure it on its node:", measure)
    elif found is None:
        yield Note("Nobody has judged its cluster yet:", f"whorl verdicts {where} {cluster}")
    else:
        yield from _judged(found, f"whorl verdicts {where} {cluster}")
        days = runs["began"].drop_nulls().dt.date().n_unique()
        if not days:
            yield Note("Nobody knows when it was measured, as its runs have no date: its past cannot be shown.")
        elif days < 2:
            again = measure if not simulated else ""
            yield Note(f"It was measured on one day only: {_AGAIN} to see what repeats.", again)


def _judged(found: Found, command: str) -> Iterator[Note]:
    if found.watch:
        yield Note(
            "Its newest sitting is slower than its earlier ones, but not surely enough for a finding: measure it again."
        )
    if any(found.newer):
        yield Note(as_judged(found.judged_at, found.newer), command)


def without_figures(row: Mapping[str, Any], store: str) -> Note:
    """That nobody stored the fingerprints of a large cluster."""
    where = f"--store {shlex.quote(store)} --cluster {shlex.quote(str(row['cluster']))}"
    command = f"whorl verdicts fingerprint {where}"
    return Note("Where it stands among its peers is not stored yet. This takes a minute:", command)


def older_figures(figures: Figures | None, stands: Sequence[Standing], runs: int) -> str:
    """When the fingerprint was stored, and how many of the GPU's runs with a time are not in it, of so many."""
    if figures is None or figures.made_at is None:
        return ""
    inside = sum(one.n for one in times(stands))
    newer = max(0, runs - inside)
    came = f"; {many(newer, 'run')} of it came since: run whorl verdicts fingerprint" if newer else ""
    return f" As stored on {minute(figures.made_at)} UTC{came}."


def likeness(near: Sequence[Neighbour]) -> str:
    """What the distances to the GPUs that are most like it mean. `near`: not empty, the nearest first."""
    says = (
        "Those of its model whose figures differ least: the root mean square, in standard deviations of the peers. Two "
        "usual GPUs are about 1.2 apart."
    )
    none = f"No GPU is like it: even the nearest is {near[0].distance:,.1f} standard deviations away. "
    return f"{none if near[0].distance > _UNLIKE else ''}{says}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
