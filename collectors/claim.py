"""A simulated fleet's place in a store: who its GPUs are, what was planted, and when each of its campaigns is.

    claimed = claim(store, fleet, "my campaign", {"probe": "launch"}, span_s=60)

Simulated time is not the wall clock's: the first campaign of a fleet begins on 2026-01-05, each further one on the day
after the last, and the fleet ages in between. A campaign claims its time before anything is simulated, so that of two
processes with one fleet the second sees the first. The table `campaigns` says up to when each is stored: one that was
interrupted is simulated again from its beginning when it is claimed again, and stored from there on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import pyarrow as pa
from pyarrow import compute

from ..errors import InputError
from ..simulation.faults import HEALTHY, onsets
from ..simulation.fleet import Fleet
from ..simulation.identity import Identity, identities
from ..simulation.models import PARAMETERS
from ..simulation.physics import Silicon
from ..store import Store
from ..store.schema import arrow_rows
from .recording import identify
from .rows import short_hash
from .simulated import devices_of

FIRST_NS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
"""When a fleet's first campaign begins, where nothing else is asked for."""
DAY_NS = 86_400_000_000_000
LAST_NS = (1 << 63) - 1
"""The last instant that a store can name, in 2262."""


@dataclass(frozen=True)
class Planted:
    """A GPU that was made faulty: the ground truth for what analysis should find."""

    uuid: str
    place: str
    kind: str
    began_ns: int | None
    """UTC, None where the fault is there from the start."""
    ended_ns: int | None


@dataclass
class Claim:
    """A campaign's place in the time of its fleet; UTC ns."""

    store: Store
    fleet: Fleet
    cluster: str
    who: tuple[Identity, ...]
    campaign: str
    asked: str
    """What was asked for, as JSON: a campaign of the same name and the same wishes is this one."""
    began_ns: int
    ended_ns: int
    """When it is to end."""
    born_ns: int
    """When the first campaign of the fleet began that the store knew when this one was claimed."""
    stored_to_ns: int
    """Until when it is stored; `began_ns` where nothing is."""
    span_s: float
    """Its faults set in within this time."""
    before: bool
    """Whether another process has claimed it before, and may have stored some of it or all."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows stored by this process with the claim itself, by table."""

    @property
    def age_days(self) -> float:
        """How old the fleet is when the campaign begins, in days."""
        return (self.began_ns - self.born_ns) / DAY_NS

    @property
    def complete(self) -> bool:
        """Whether all of it is stored."""
        return self.stored_to_ns >= self.ended_ns

    @cached_property
    def planted(self) -> tuple[Planted, ...]:
        """The faulty GPUs, with the times at which their faults set in."""
        began, ended = onsets(self.fleet.fault, self.fleet.seed, self.span_s)

        def instant(seconds: float) -> int | None:
            return self.began_ns + round(seconds * 1e9) if seconds > 0 and isfinite(seconds) else None

        return tuple(
            Planted(self.who[gpu].uuid, self.who[gpu].place, kind, instant(began[gpu]), instant(ended[gpu]))
            for gpu, kind in self.fleet.planted.items()
        )

    def file_name(self, to_ns: int, *, complete: bool = False) -> str:
        """What the files are called that are stored up to a time; of the last ones, too, only once."""
        key = short_hash([self.cluster, fleet_of(self.fleet, self.cluster), self.campaign, self.asked, self.began_ns])
        return f"sim-{key}-{(to_ns - self.began_ns) // 1_000_000}{'-end' if complete else ''}"

    def progress(self, to_ns: int, *, complete: bool = False) -> pa.Table:
        """The row of `campaigns` that goes with what is stored up to a time, and says so."""
        return arrow_rows(
            "campaigns",
            {
                "cluster": [self.cluster],
                "campaign": [self.campaign],
                "asked": [self.asked],
                "fleet": [fleet_of(self.fleet, self.cluster)],
                "born": [self.born_ns],
                "gpus": [len(self.fleet)],
                "began": [self.began_ns],
                "stored_to": [to_ns],
                "ended": [to_ns if complete else self.ended_ns],
            },
        )


def own_cluster(fleet: Fleet) -> str:
    """What the cluster of a fleet is called where no name is given, as "simulated-V100-7".

    Fleets of other models or seeds are other clusters: they must not be compared with each other unasked, and their
    GPUs stand at the same places.
    """
    return f"simulated-{fleet.model.name.split('-', maxsplit=1)[0]}-{fleet.seed}"


def fleet_of(fleet: Fleet, cluster: str) -> str:
    """A name that fleets share whose GPUs have the same names."""
    return short_hash({"cluster": cluster, "model": fleet.model.name, "seed": fleet.seed})[:12]


def claim(
    store: Store,
    fleet: Fleet,
    campaign: str,
    asked: Mapping[str, object],
    *,
    span_s: float,
    cluster: str | None = None,
    began_ns: int | None = None,
    repeatable: bool = False,
    unnamed: bool = False,
) -> Claim:
    """Find a campaign's place in time among the fleet's others, and claim it; or find what was claimed before.

    Without `began_ns` it begins on the day after the last of them. A campaign that is complete is found again, or,
    where it is `repeatable`, begun anew. `unnamed`: its name was made up, so that an interrupted one of the same
    wishes goes on under its own name. InputError where the store holds another campaign of these GPUs at the same
    time, or the same GPUs with other faults, and for a time after 2262.
    """
    cluster = cluster or own_cluster(fleet)
    wishes = json.dumps(dict(asked), sort_keys=True)
    with store.exclusive():
        others = _campaigns(store, cluster, fleet_of(fleet, cluster))
        alike = [one for one in others if one.asked == wishes and (unnamed or one.campaign == campaign)]
        mine = max(alike, default=None, key=_began)
        if mine and repeatable and mine.stored_to_ns >= mine.ended_ns:
            mine = None
        if mine:
            others.remove(mine)
            campaign, began_ns, ended_ns = mine.campaign, mine.began_ns, mine.ended_ns
        else:
            if began_ns is None:
                latest = max((other.ended_ns for other in others), default=FIRST_NS)
                began_ns = -(-latest // DAY_NS) * DAY_NS
            ended_ns = began_ns + round(span_s * 1e9)
        if ended_ns > LAST_NS:
            raise InputError(
                f"a campaign from {iso(began_ns)} on for {span_s / 86_400:g} days would end after 2262, the last year "
                "that a store can name: choose an earlier --began, or another --seed"
            )
        claimed = Claim(
            store,
            fleet,
            cluster,
            identities(fleet.seed, len(fleet), fleet.model.name),
            campaign,
            wishes,
            began_ns,
            ended_ns,
            born_ns=mine.born_ns if mine else min([began_ns, *map(_began, others)]),
            stored_to_ns=mine.stored_to_ns if mine else began_ns,
            span_s=span_s,
            before=mine is not None,
        )
        for other in others:
            if other.began_ns < ended_ns and began_ns < other.ended_ns:
                raise InputError(
                    f"the store holds campaign {other.campaign} of these GPUs at the same time, from "
                    f"{iso(other.began_ns)} to {iso(other.ended_ns)}: choose another --began, --seed or --cluster"
                )
        known = _said(store.arrow("truth", columns=["cluster", *_Said._fields]), cluster) if others or mine else []
        _refuse_other_faults(claimed, known)
        if not mine:
            _introduce(claimed, known)
    return claimed


def _introduce(claimed: Claim, known: Sequence[_Said]) -> None:
    """Store who the GPUs are, what was planted in them, and that this time is taken.

    `known` is what `truth` says of the fleet already: it is not said again.
    """
    devices, before = devices_of(claimed.fleet.model, claimed.who), set(known)
    identified = identify(claimed.store, devices, claimed.cluster, None, claimed.began_ns)
    truth = _truth(claimed)
    truth = truth.filter(pa.array([one not in before for one in _said(truth)]))
    tables = {"truth": truth, "campaigns": claimed.progress(claimed.began_ns)}
    claimed.store.append(tables, claimed.file_name(claimed.began_ns))
    counts = {"gpus": identified} | {name: len(rows) for name, rows in tables.items()}
    claimed.rows = {name: count for name, count in counts.items() if count}


def _truth(claimed: Claim) -> pa.Table:
    """The fleet's rows of `truth`: what was drawn and planted, for every GPU."""
    fleet, n = claimed.fleet, len(claimed.fleet)
    drawn = {column.name: getattr(fleet.silicon, column.name).tolist() for column in fields(Silicon)}
    faulty = {one.uuid: one for one in claimed.planted}
    found = [faulty.get(one.uuid) for one in claimed.who]
    return arrow_rows(
        "truth",
        {
            "cluster": [claimed.cluster] * n,
            "gpu": [one.uuid for one in claimed.who],
            "kind": [HEALTHY.kind if one is None else one.kind for one in found],
            "began": [one and one.began_ns for one in found],
            "ended": [one and one.ended_ns for one in found],
            "silicon": [json.dumps({name: values[gpu] for name, values in drawn.items()}) for gpu in range(n)],
            "model": [fleet.model.name] * n,
            "seed": [fleet.seed] * n,
            "parameters": [PARAMETERS] * n,
        },
    )


class _Said(NamedTuple):
    """What a row of `truth` says of a GPU; UTC ns."""

    gpu: str
    kind: str
    began: int | None
    ended: int | None


class _Known(NamedTuple):
    """A campaign as the store knows it; UTC ns."""

    campaign: str
    asked: str
    born_ns: int
    began_ns: int
    stored_to_ns: int
    ended_ns: int


def _began(one: _Known) -> int:
    return one.began_ns


def _campaigns(store: Store, cluster: str, fleet: str) -> list[_Known]:
    """The campaigns of a fleet that the store knows, each as its last row has it."""
    rows = store.arrow("campaigns", columns=["cluster", "fleet", "campaign", "asked", *_TIMES])
    rows = rows.filter(compute.and_(compute.equal(rows["cluster"], cluster), compute.equal(rows["fleet"], fleet)))
    times = (rows[name].cast(pa.int64()).to_pylist() for name in _TIMES)
    found: dict[tuple[str, str, int], _Known] = {}
    for one in map(_Known, rows["campaign"].to_pylist(), rows["asked"].to_pylist(), *times):
        key = (one.campaign, one.asked, one.began_ns)
        # What is complete says when it ended, which may be before it was to end.
        found[key] = max(one, found.get(key, one), key=lambda known: (known.stored_to_ns, -known.ended_ns))
    return list(found.values())


_TIMES = ("born", "began", "stored_to", "ended")


def _said(truth: pa.Table, cluster: str | None = None) -> list[_Said]:
    """What rows of `truth` say, those of one cluster where it is named."""
    if cluster is not None:
        truth = truth.filter(compute.equal(truth["cluster"], cluster))
    times = (truth[name].cast(pa.int64()).to_pylist() for name in ("began", "ended"))
    return list(map(_Said, truth["gpu"].to_pylist(), truth["kind"].to_pylist(), *times))


def _refuse_other_faults(claimed: Claim, truth: Sequence[_Said]) -> None:
    """Two fleets of one seed must not be one in the store: their GPUs have the same names."""
    kinds = {one.uuid: HEALTHY.kind for one in claimed.who} | {one.uuid: one.kind for one in claimed.planted}
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
