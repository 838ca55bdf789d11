"""The campaigns of a simulated fleet in a store: which GPUs it has, which faults, and when each campaign ran.

    claimed = claim(store, fleet, "my campaign", {"probe": "launch"}, span_s=60)

Simulated time is not wall time. The first campaign of a fleet begins on 2026-01-05. Each later one begins on the day
after the one before has ended, and the fleet ages between them. A campaign claims its time before the simulation
begins: if two processes simulate one fleet, the second one sees the claim of the first. The table `campaigns` holds how
far each campaign is stored. A campaign that was interrupted is claimed and simulated again from its beginning; only
what is missing is stored.
"""

from __future__ import annotations

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
from ..simulation.spread import POPULATIONS, USUAL
from ..store import Store
from ..store.instants import iso
from ..store.schema import arrow_rows, texts_of
from .planted import Planted, planted_in, truth_of
from .recording import identify, short_hash
from .simulated import devices_of

FIRST_NS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
"""When a fleet's first campaign begins by default."""
DAY_NS = 86_400_000_000_000
LAST_NS = (1 << 63) - 1
"""The last instant that a store can hold, in 2262."""


@dataclass
class Claim:
    """A campaign of a fleet and the time that it has claimed; UTC ns."""

    store: Store
    fleet: Fleet
    cluster: str
    who: tuple[Identity, ...]
    campaign: str
    asked: Mapping[str, str | None]
    """The options of the campaign: the same name with the same options is the same campaign."""
    probes: Sequence[str] | None
    """Of the options, the names of the probes."""
    began_ns: int
    ended_ns: int
    """When it is planned to end."""
    born_ns: int
    """When the fleet's first campaign began, of those that the store had at the time of the claim."""
    stored_to_ns: int
    """Its rows are stored up to this time; `began_ns` if none are."""
    span_s: float
    """Its faults set in within this time."""
    before: bool
    """Whether it was claimed before, so that some or all of its rows may be stored already."""
    rows: dict[str, int] = field(default_factory=dict)
    """Number of rows that this process stored to make the claim, by table."""

    @property
    def age_days(self) -> float:
        """Age of the fleet at the beginning of the campaign, in days."""
        return (self.began_ns - self.born_ns) / DAY_NS

    @property
    def complete(self) -> bool:
        """Whether all its rows are stored."""
        return self.stored_to_ns >= self.ended_ns

    @cached_property
    def planted(self) -> tuple[Planted, ...]:
        """The faulty GPUs, with the times at which their faults begin and end."""
        return planted_in(self.fleet, self.who, self.began_ns, self.span_s)

    def file_name(self, to_ns: int, *, complete: bool = False) -> str:
        """The name of the files that hold the rows up to `to_ns`. A part of the campaign always has the same name, so
        that it is stored only once."""
        key = short_hash([self.cluster, fleet_of(self.fleet, self.cluster), self.campaign, self.asked, self.began_ns])
        return f"sim-{key}-{(to_ns - self.began_ns) // 1_000_000}{'-end' if complete else ''}"

    def progress(self, to_ns: int, *, complete: bool = False) -> pa.Table:
        """The row of `campaigns` that is stored together with the rows up to `to_ns`."""
        return arrow_rows(
            "campaigns",
            {
                "cluster": [self.cluster],
                "campaign": [self.campaign],
                "asked": [self.asked],
                "probes": [self.probes],
                "fleet": [fleet_of(self.fleet, self.cluster)],
                "born": [self.born_ns],
                "gpus": [len(self.fleet)],
                "began": [self.began_ns],
                "stored_to": [to_ns],
                "ended": [to_ns if complete else self.ended_ns],
            },
        )


def own_cluster(fleet: Fleet) -> str:
    """The default name of a fleet's cluster, such as "simulated-V100-7".

    Fleets with another model, seed or population are other clusters. Their GPUs have the same nodes and slots, and must
    not be compared with each other unless the user asks for it.
    """
    name, population = f"simulated-{fleet.model.name.split('-', maxsplit=1)[0]}-{fleet.seed}", fleet.population
    if population == USUAL:
        return name
    return f"{name}-{population if population in POPULATIONS else f'own-{short_hash(population)[:6]}'}"


def fleet_of(fleet: Fleet, cluster: str) -> str:
    """The fleet's key: equal for two fleets if their GPUs have the same names."""
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
    """Claim a time for a campaign of the fleet, or return the claim that it made before.

    Without `began_ns` it begins on the day after the fleet's last campaign. If the campaign is complete, its claim is
    returned; a `repeatable` one gets a new claim. `unnamed` says that the user gave no name: then an interrupted
    campaign with the same options is continued under its own name. Raises InputError if the store holds another
    campaign of these GPUs at the same time, if it holds these GPUs with other faults, and for a time after 2262.
    """
    cluster = cluster or own_cluster(fleet)
    options = texts_of(asked)
    probes = asked.get("probes")
    with store.exclusive():
        others = _campaigns(store, cluster, fleet_of(fleet, cluster))
        candidates = [row for row in others if row.asked == options and (unnamed or row.campaign == campaign)]
        previous = max(candidates, default=None, key=_began)
        if previous and repeatable and previous.stored_to_ns >= previous.ended_ns:
            previous = None
        if previous:
            others.remove(previous)
            campaign, began_ns, ended_ns = previous.campaign, previous.began_ns, previous.ended_ns
        else:
            if began_ns is None:
                latest = max((other.ended_ns for other in others), default=FIRST_NS)
                began_ns = -(-latest // DAY_NS) * DAY_NS
            ended_ns = began_ns + 1000 * round(span_s * 1e6)  # as the store keeps it
        if ended_ns > LAST_NS:
            raise InputError(
                f"a campaign from {iso(began_ns)} on for {span_s / 86_400:g} days would end after 2262, the last year "
                "that a store can hold: choose an earlier began=, or another seed"
            )
        claimed = Claim(
            store,
            fleet,
            cluster,
            identities(fleet.seed, len(fleet), fleet.model.name),
            campaign,
            options,
            list(probes) if isinstance(probes, Mapping) else None,
            began_ns,
            ended_ns,
            born_ns=previous.born_ns if previous else min([began_ns, *map(_began, others)]),
            stored_to_ns=previous.stored_to_ns if previous else began_ns,
            span_s=span_s,
            before=previous is not None,
        )
        for other in others:
            if other.began_ns < ended_ns and began_ns < other.ended_ns:
                raise InputError(
                    f"the store holds campaign {other.campaign} of these GPUs at the same time, from "
                    f"{iso(other.began_ns)} to {iso(other.ended_ns)}: choose another begin, cluster or seed"
                )
        stored: list[_Fault] = []
        if others or previous:
            stored = _faults(store.arrow("truth", columns=["cluster", *_Fault._fields]), cluster)
        _refuse_other_faults(claimed, stored)
        if not previous:
            _store_claim(claimed, stored)
    return claimed


def _store_claim(claimed: Claim, stored: Sequence[_Fault]) -> None:
    """Store the identities and faults of the GPUs, and the claim. Rows of `truth` that are `stored` are left out."""
    devices, before = devices_of(claimed.fleet.model, claimed.who, claimed.fleet.vbios), set(stored)
    identified = identify(claimed.store, devices, claimed.cluster, None, claimed.began_ns)
    truth = truth_of(claimed.cluster, claimed.fleet, claimed.who, claimed.planted, claimed.fleet.seed)
    truth = truth.filter(pa.array([row not in before for row in _faults(truth)]))
    tables = {"truth": truth, "campaigns": claimed.progress(claimed.began_ns)}
    claimed.store.append(tables, claimed.file_name(claimed.began_ns))
    counts = {"gpus": identified} | {name: len(rows) for name, rows in tables.items()}
    claimed.rows = {name: count for name, count in counts.items() if count}


class _Fault(NamedTuple):
    """The fault of a GPU as a row of `truth` holds it; UTC ns."""

    gpu: str
    kind: str
    size_pct: float | None
    population: str | None
    began: int | None
    ended: int | None


class _Known(NamedTuple):
    """A campaign as the store holds it; UTC ns."""

    campaign: str
    asked: Mapping[str, str | None]
    born_ns: int
    began_ns: int
    stored_to_ns: int
    ended_ns: int


def _began(row: _Known) -> int:
    return row.began_ns


def _campaigns(store: Store, cluster: str, fleet: str) -> list[_Known]:
    """The campaigns of a fleet in the store, each by its last row."""
    rows = store.arrow("campaigns", columns=["cluster", "fleet", "campaign", "asked", *_TIMES])
    rows = rows.filter(compute.and_(compute.equal(rows["cluster"], cluster), compute.equal(rows["fleet"], fleet)))
    times = (_instants(rows[name]) for name in _TIMES)
    options = (dict(pairs or ()) for pairs in rows["asked"].to_pylist())
    latest: dict[tuple[str, str, int], _Known] = {}
    for row in map(_Known, rows["campaign"].to_pylist(), options, *times):
        key = (row.campaign, str(sorted(row.asked.items())), row.began_ns)
        # The row of a complete campaign holds its real end, which may be earlier than the planned one.
        latest[key] = max(row, latest.get(key, row), key=lambda known: (known.stored_to_ns, -known.ended_ns))
    return list(latest.values())


_TIMES = ("born", "began", "stored_to", "ended")


def _instants(times: pa.ChunkedArray) -> list[int | None]:
    """Times of a table as ns since 1970."""
    return [None if at is None else 1000 * at for at in times.cast(pa.int64()).to_pylist()]


def _faults(truth: pa.Table, cluster: str | None = None) -> list[_Fault]:
    """The faults in rows of `truth`, of one cluster if it is given."""
    if cluster is not None:
        truth = truth.filter(compute.equal(truth["cluster"], cluster))
    times = (_instants(truth[name]) for name in ("began", "ended"))
    plain = (truth[name].to_pylist() for name in ("gpu", "kind", "size_pct", "population"))
    return list(map(_Fault, *plain, *times))


def _refuse_other_faults(claimed: Claim, truth: Sequence[_Fault]) -> None:
    """Raise InputError if the store holds these GPUs with other faults, or from another population: fleets of one seed
    have the same GPU names."""
    kinds: dict[str, tuple[str, float | None]] = {identity.uuid: (HEALTHY.kind, None) for identity in claimed.who}
    kinds |= {row.uuid: (row.kind, row.size_pct) for row in claimed.planted}
    for row in truth:
        kind, size_pct = kinds.get(row.gpu, (row.kind, row.size_pct))
        if (row.kind, row.size_pct) != (kind, size_pct):
            size = "" if row.size_pct is None or row.kind != kind else f" of {row.size_pct:g} %"
            raise InputError(
                f"the store holds this fleet with other faults ({row.gpu} is {row.kind!r}{size} there): "
                "choose another seed or cluster"
            )
        if row.population != claimed.fleet.population:
            raise InputError(
                f"the store holds this fleet as one of the population {row.population!r}, not "
                f"{claimed.fleet.population!r}: choose another seed or cluster"
            )
