"""What a store knows of the campaigns over a simulated fleet: their names, their times, how far each is stored.

A campaign is named after its arguments. An event of kind 'simulated' goes with every part of it that is stored, and
says up to when; so a campaign that is run again goes on where it was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pyarrow as pa

from ..errors import InputError
from ..simulation.faults import HEALTHY
from ..simulation.fleet import Fleet
from ..simulation.identity import Identity, identities
from ..simulation.load import Load
from ..simulation.models import PARAMETERS
from ..store import Store
from .simulated_rows import Planted, gpu_rows, planted, short_hash, table, truth_rows

FIRST_NS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
"""When a fleet's first campaign begins, where nothing else is asked for: simulated time is not the wall clock's."""

DAY_NS = 86_400_000_000_000

_NOTE = re.compile(r"(sim-[0-9a-f]{12}) of fleet ([0-9a-f]{12}): .*, from (\S+) to (\S+), stored to (\S+)")


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
    """When the fleet's first campaign began."""
    stored_to_ns: int
    """Until when it is stored; `began_ns` where nothing is."""
    span_s: float
    """How long the campaign lasts: its faults set in within this time."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows written by this process, by table."""

    def age_days(self, at_ns: int) -> float:
        """How old the fleet is at a time: it is born with the first of its campaigns in the store."""
        return (at_ns - self.born_ns) / DAY_NS

    def number(self, run: int) -> int:
        """A number for the random draws of a run, which no run of another campaign has."""
        return int(self.campaign.removeprefix("sim-"), 16) + run

    @cached_property
    def planted(self) -> tuple[Planted, ...]:
        """The faulty GPUs."""
        return planted(self.fleet, self.who, self.began_ns, self.span_s)

    def append(self, tables: Mapping[str, pa.Table], to_ns: int) -> None:
        """Store what happened up to a time at once; with the first rows also who the GPUs are.

        An event that says so goes with them: it is how a repeated campaign knows where to go on.
        """
        tables = dict(tables)
        if self.stored_to_ns == self.began_ns:
            tables["gpus"] = gpu_rows(self.fleet, self.who, self.cluster, self.began_ns)
            tables["truth"] = truth_rows(self.fleet, self.who, self.cluster, self.planted)
        note = (
            f"{self.campaign} of fleet {self.kin}: {len(self.fleet)} simulated {self.fleet.model.name} under load "
            f"{self.load.name}, from {iso(self.began_ns)} to {iso(self.ended_ns)}, stored to {iso(to_ns)}"
        )
        marker = table("events", {"ts": [to_ns], "cluster": [self.cluster], "kind": ["simulated"], "detail": [note]})
        known = tables.get("events")
        tables["events"] = marker if known is None else pa.concat_tables([known, marker], promote_options="default")
        self.store.append(tables, f"{self.campaign}-{(to_ns - self.began_ns) // 1_000_000}")
        self.stored_to_ns = to_ns
        for name, rows in tables.items():
            self.rows[name] = self.rows.get(name, 0) + len(rows)


def identify(
    store: Store,
    fleet: Fleet,
    load: Load,
    cluster: str,
    began_ns: int | None,
    span_s: float,
    arguments: Mapping[str, float],
) -> Record:
    """Name a campaign after its arguments, and find its place in time among the fleet's others.

    Without `began_ns` it begins on the day after the last of them. InputError where the store holds another
    campaign of these GPUs at the same time, or the same GPUs with other faults.
    """
    model = fleet.model.name
    kin = short_hash({"cluster": cluster, "model": model, "seed": fleet.seed})
    faults = {str(gpu): kind for gpu, kind in fleet.planted.items()}
    everything = {"kin": kin, "gpus": len(fleet), "faults": faults, "load": repr(load), "began": began_ns}
    name = "sim-" + short_hash(everything | dict(arguments) | {"parameters": PARAMETERS})
    others = _campaigns(store, kin)
    mine = others.pop(name, None)
    if mine:
        began_ns = mine[0]
    elif began_ns is None:
        latest = max((ended for _, ended, _ in others.values()), default=FIRST_NS)
        began_ns = -(-latest // DAY_NS) * DAY_NS
    ended_ns = began_ns + round(span_s * 1e9)
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
        born_ns=min([began_ns, *(began for began, _, _ in others.values())]),
        stored_to_ns=mine[2] if mine else began_ns,
        span_s=span_s,
    )
    for other, (began, ended, _) in others.items():
        if began < ended_ns and began_ns < ended:
            raise InputError(
                f"the store holds campaign {other} of these GPUs at the same time, from {iso(began)} to "
                f"{iso(ended)}: choose another --began, --seed or --cluster"
            )
    if others:
        _refuse_other_faults(record)
    return record


def _campaigns(store: Store, kin: str) -> dict[str, tuple[int, int, int]]:
    """The campaigns of a fleet that the store knows: name -> (began, ended, stored to), UTC ns."""
    events = store.arrow("events", columns=["kind", "detail"])
    found: dict[str, tuple[int, int, int]] = {}
    for kind, detail in zip(events["kind"].to_pylist(), events["detail"].to_pylist(), strict=True):
        match = _NOTE.match(detail or "") if kind == "simulated" else None
        if match and match[2] == kin:
            began, ended, to = (nanoseconds(text) for text in match.group(3, 4, 5))
            found[match[1]] = (began, ended, max(to, found.get(match[1], (0, 0, to))[2]))
    return found


def _refuse_other_faults(record: Record) -> None:
    """Two fleets of one seed must not be one in the store: their GPUs have the same names."""
    kinds = {one.uuid: HEALTHY.kind for one in record.who} | {one.uuid: one.kind for one in record.planted}
    for row in record.store.arrow("truth", columns=["cluster", "gpu", "kind"]).to_pylist():
        if row["cluster"] == record.cluster and row["kind"] != kinds.get(row["gpu"], row["kind"]):
            raise InputError(
                f"the store holds this fleet with other faults ({row['gpu']} is {row['kind']!r} there): "
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
