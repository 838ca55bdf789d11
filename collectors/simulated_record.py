"""What a store knows of the campaigns over a simulated fleet: their names, their times, how far each is stored.

A campaign is named after its arguments. Before anything is simulated it claims its place in time, so that of two
processes with one fleet the second sees the first. An event of kind 'simulated' goes with the claim and with every
part that is stored, and says up to when; so a campaign that is run again goes on where it was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from pyarrow import compute

from ..errors import InputError
from ..simulation.faults import HEALTHY
from ..simulation.fleet import Fleet
from ..simulation.identity import Identity, identities
from ..simulation.load import Load
from ..simulation.models import PARAMETERS
from ..store import Store
from ..store.events import EventKind
from .simulated_rows import Planted, gpu_rows, planted, short_hash, table, truth_rows

FIRST_NS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
"""When a fleet's first campaign begins, where nothing else is asked for: simulated time is not the wall clock's."""

DAY_NS = 86_400_000_000_000
LAST_NS = (1 << 63) - 1
"""The last instant that a store can name, in 2262."""

_NOTE = re.compile(r"(sim-[0-9a-f]{12}) of fleet ([0-9a-f]{12}), born (\S+): .*, from (\S+) to (\S+), stored to (\S+)")


@dataclass
class Record:
    """The identity of a campaign and of its fleet, and where in time it lies."""

    store: Store
    fleet: Fleet
    load: Load
    cluster: str
    who: tuple[Identity, ...]
    campaign: str
    """Its name: a hash of its arguments."""
    kin: str
    """Hash of cluster, model and seed: campaigns that share it are over GPUs of the same names."""
    began_ns: int
    ended_ns: int
    born_ns: int
    """When the first campaign of the fleet began that the store knew when this one was claimed."""
    stored_to_ns: int
    """Until when it is stored; `began_ns` where nothing is."""
    span_s: float
    """How long the campaign lasts: its faults set in within this time."""
    before: bool
    """Whether another process has claimed it before, and may have stored some of it or all."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows written by this process, by table."""

    def age_days(self, at_ns: int) -> float:
        """How old the fleet is at a time, in days."""
        return (at_ns - self.born_ns) / DAY_NS

    def number(self, run: int) -> int:
        """A number for the random draws of a run, which no run of another campaign has."""
        return int(self.campaign.removeprefix("sim-"), 16) + run

    @cached_property
    def planted(self) -> tuple[Planted, ...]:
        """The faulty GPUs."""
        return planted(self.fleet, self.who, self.began_ns, self.span_s)

    def append(self, tables: Mapping[str, pa.Table], to_ns: int) -> None:
        """Store what happened up to a time, at once.

        An event that says so goes with it: it is how a repeated campaign knows where to go on.
        """
        tables = dict(tables)
        note = (
            f"{self.campaign} of fleet {self.kin}, born {iso(self.born_ns)}: {len(self.fleet)} simulated "
            f"{self.fleet.model.name} under load {self.load.name}, from {iso(self.began_ns)} to "
            f"{iso(self.ended_ns)}, stored to {iso(to_ns)}"
        )
        marker = table(
            "events", {"ts": [to_ns], "cluster": [self.cluster], "kind": [EventKind.SIMULATED], "detail": [note]}
        )
        known = tables.get("events")
        tables["events"] = marker if known is None else pa.concat_tables([known, marker], promote_options="default")
        self.store.append(tables, f"{self.campaign}-{(to_ns - self.began_ns) // 1_000_000}")
        self.stored_to_ns = to_ns
        for name, rows in tables.items():
            if len(rows):
                self.rows[name] = self.rows.get(name, 0) + len(rows)

    def claim(self, known: Sequence[_Said]) -> None:
        """Store who the GPUs are and what was planted in them, and that this time is taken.

        `known` is what `truth` says of the fleet already: it is not said again.
        """
        truth, before = truth_rows(self.fleet, self.who, self.cluster, self.planted), set(known)
        truth = truth.filter(pa.array([one not in before for one in _said(truth)]))
        gpus = gpu_rows(self.fleet, self.who, self.cluster, self.began_ns)
        self.append({"gpus": gpus, "truth": truth}, self.began_ns)


def own_cluster(fleet: Fleet) -> str:
    """What the cluster of a fleet is called where no name is given, as "simulated-V100-7".

    Fleets of other models or seeds are other clusters: they must not be compared with each other unasked, and their
    GPUs stand at the same places.
    """
    return f"simulated-{fleet.model.name.split('-', maxsplit=1)[0]}-{fleet.seed}"


def identify(
    store: Store,
    fleet: Fleet,
    load: Load,
    cluster: str | None,
    began_ns: int | None,
    span_s: float,
    arguments: Mapping[str, float],
) -> Record:
    """Name a campaign after its arguments, find its place in time among the fleet's others, and claim it.

    Without `began_ns` it begins on the day after the last of them. InputError where the store holds another
    campaign of these GPUs at the same time, or the same GPUs with other faults, and for a time after 2262.
    """
    with store.exclusive():
        return _claimed(store, fleet, load, cluster or own_cluster(fleet), began_ns, span_s, arguments)


def _claimed(
    store: Store,
    fleet: Fleet,
    load: Load,
    cluster: str,
    began_ns: int | None,
    span_s: float,
    arguments: Mapping[str, float],
) -> Record:
    model = fleet.model.name
    kin = short_hash({"cluster": cluster, "model": model, "seed": fleet.seed})
    faults = {str(gpu): kind for gpu, kind in fleet.planted.items()}
    everything = {"kin": kin, "gpus": len(fleet), "faults": faults, "load": repr(load), "began": began_ns}
    name = "sim-" + short_hash(everything | dict(arguments) | {"parameters": PARAMETERS})
    others = _campaigns(store, kin)
    mine = others.pop(name, None)
    if mine:
        began_ns = mine.began_ns
    elif began_ns is None:
        latest = max((other.ended_ns for other in others.values()), default=FIRST_NS)
        began_ns = -(-latest // DAY_NS) * DAY_NS
    ended_ns = began_ns + round(span_s * 1e9)
    if ended_ns > LAST_NS:
        raise InputError(
            f"a campaign from {iso(began_ns)} on for {span_s / 86_400:g} days would end after 2262, the last year "
            "that a store can name: choose an earlier --began, or another --seed"
        )
    record = Record(
        store,
        fleet,
        load,
        cluster,
        identities(fleet.seed, len(fleet), model),
        name,
        kin,
        began_ns,
        ended_ns,
        born_ns=mine.born_ns if mine else min([began_ns, *(other.began_ns for other in others.values())]),
        stored_to_ns=mine.stored_to_ns if mine else began_ns,
        span_s=span_s,
        before=mine is not None,
    )
    for other, known in others.items():
        if known.began_ns < ended_ns and began_ns < known.ended_ns:
            raise InputError(
                f"the store holds campaign {other} of these GPUs at the same time, from {iso(known.began_ns)} to "
                f"{iso(known.ended_ns)}: choose another --began, --seed or --cluster"
            )
    truth = _said(store.arrow("truth", columns=["cluster", *_Said._fields]), cluster) if others else []
    _refuse_other_faults(record, truth)
    if not mine:
        record.claim(truth)
    return record


class _Said(NamedTuple):
    """What a row of `truth` says of a GPU; UTC ns."""

    gpu: str
    kind: str
    began: int | None
    ended: int | None


class _Known(NamedTuple):
    """A campaign as the store knows it; UTC ns."""

    born_ns: int
    began_ns: int
    ended_ns: int
    stored_to_ns: int


def _campaigns(store: Store, kin: str) -> dict[str, _Known]:
    """The campaigns of a fleet that the store knows, by name."""
    events = store.arrow("events", columns=["kind", "detail"])
    notes = events.filter(compute.equal(events["kind"], "simulated"))["detail"].to_pylist()
    found: dict[str, _Known] = {}
    for match in filter(None, (_NOTE.match(note or "") for note in notes)):
        if match[2] == kin:
            one = _Known(*(nanoseconds(text) for text in match.group(3, 4, 5, 6)))
            found[match[1]] = max(one, found.get(match[1], one))
    return found


def _said(truth: pa.Table, cluster: str | None = None) -> list[_Said]:
    """What rows of `truth` say, those of one cluster where it is named."""
    if cluster is not None:
        truth = truth.filter(compute.equal(truth["cluster"], cluster))
    times = (truth[name].cast(pa.int64()).to_pylist() for name in ("began", "ended"))
    return list(map(_Said, truth["gpu"].to_pylist(), truth["kind"].to_pylist(), *times))


def _refuse_other_faults(record: Record, truth: Sequence[_Said]) -> None:
    """Two fleets of one seed must not be one in the store: their GPUs have the same names."""
    kinds = {one.uuid: HEALTHY.kind for one in record.who} | {one.uuid: one.kind for one in record.planted}
    for row in truth:
        if row.kind != kinds.get(row.gpu, row.kind):
            raise InputError(
                f"the store holds this fleet with other faults ({row.gpu} is {row.kind!r} there): "
                f"choose another --seed or --cluster"
            )


def iso(nanoseconds: int) -> str:
    """A time in UTC ns as people write it, to the digit."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else f"{text}Z"


def nanoseconds(text: str) -> int:
    """What `iso` wrote."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int(rest.ljust(9, "0") if rest else 0)
