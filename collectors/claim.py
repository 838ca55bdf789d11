"""Simulated fleets in a store: which GPUs they have, what was planted in them, and when each campaign ran.

    claimed = claim(store, fleet, "my campaign", {"probe": "launch"}, span_s=60)

Simulated time is not wall time. The first campaign of a fleet begins on 2026-01-05. Each later one begins on the day
after the one before has ended, and the fleet ages between them. A campaign claims its time before the simulation
begins: if two processes simulate one fleet, the second one sees the claim of the first. The table `campaigns` holds how
far each campaign is stored. A campaign that was interrupted is claimed and simulated again from its beginning; only
what is missing is stored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cached_property
from math import isfinite
from typing import Any

import pyarrow as pa
from pyarrow import compute

from ..errors import InputError
from ..simulation.cluster import Identity, identities
from ..simulation.faults import FAULTS, HEALTHY, kinds_in_order, onsets
from ..simulation.fleet import Fleet
from ..simulation.models import PARAMETERS
from ..simulation.physics import Silicon
from ..simulation.spread import POPULATIONS, USUAL
from ..store import Store
from ..store.instants import iso
from ..store.names import SIMULATED
from ..store.schema import arrow_rows, texts_of
from .recording import identify, short_hash
from .simulated import devices_of

FIRST_NS = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp()) * 1_000_000_000
"""When a fleet's first campaign begins by default."""
DAY_NS = 86_400_000_000_000
LAST_NS = (1 << 63) - 1
"""The last instant that a store can hold, in 2262."""
_FAULT = ("gpu", "kind", "size_pct", "population", "began", "ended")


@dataclass(frozen=True)
class Planted:
    """A GPU that has a simulated fault: the ground truth for the analysis."""

    uuid: str
    place: str
    name: str
    """For people."""
    kind: str
    size_pct: float | None
    """Of the fault, %; None for a kind without size."""
    label: str
    """The kind, with its size where that is not the usual one."""
    began_ns: int | None
    """UTC; None if the fault is there from the start."""
    ended_ns: int | None


def planted_in(fleet: Fleet, who: Sequence[Identity], began_ns: int, span_s: float) -> tuple[Planted, ...]:
    """The faulty GPUs of a fleet whose simulation begins at a time; faults set in within so many seconds."""
    labels = fleet.named
    began, ended = onsets(fleet.fault, fleet.seed, span_s)

    def instant(seconds: float) -> int | None:
        return began_ns + round(seconds * 1e9) if seconds > 0 and isfinite(seconds) else None

    return tuple(
        Planted(
            *(who[gpu].uuid, who[gpu].place, who[gpu].name, kind),
            size_pct=_pct(fleet.fault_of(gpu).size),
            label=labels[gpu],
            began_ns=instant(began[gpu]),
            ended_ns=instant(ended[gpu]),
        )
        for gpu, kind in fleet.planted.items()
    )


def _pct(size: float | None) -> float | None:
    return None if size is None else round(100 * size, 9)


def truth_of(cluster: str, fleet: Fleet, who: Sequence[Identity], planted: Sequence[Planted], seed: int) -> pa.Table:
    """A fleet's rows of `truth`: the parameters and the fault of every GPU."""
    n = len(fleet)
    drawn = {column.name: getattr(fleet.silicon, column.name).tolist() for column in fields(Silicon)}
    faulty = {fault.uuid: fault for fault in planted}
    faults = [faulty.get(identity.uuid) for identity in who]
    return arrow_rows(
        "truth",
        {
            "cluster": [cluster] * n,
            "gpu": [identity.uuid for identity in who],
            "kind": [HEALTHY.kind if fault is None else fault.kind for fault in faults],
            "began": [fault and fault.began_ns for fault in faults],
            "ended": [fault and fault.ended_ns for fault in faults],
            "size_pct": [fault and fault.size_pct for fault in faults],
            "population": [fleet.population] * n,
            "silicon": [{name: values[gpu] for name, values in drawn.items()} for gpu in range(n)],
            "model": [fleet.model.name] * n,
            "seed": [seed] * n,
            "parameters": [PARAMETERS] * n,
        },
    )


def introduce(
    store: Store, cluster: str, fleet: Fleet, who: Sequence[Identity], planted: Sequence[Planted], seed: int
) -> dict[str, int]:
    """Store who the GPUs of a simulated node are and what was planted in them, unless the store was told the same.

    Returns the number of rows stored, by table.
    """
    identified = identify(store, devices_of(fleet.model, who, fleet.vbios), cluster, None, time.time_ns())
    rows = truth_of(cluster, fleet, who, planted, seed)
    told = store.arrow("truth", rows.column_names, [(cluster, identity.uuid) for identity in who]).to_pylist()
    if all(row in told for row in rows.to_pylist()):
        return {"gpus": identified}
    digest = short_hash([cluster, [vars(fault) for fault in planted], rows["silicon"].to_pylist()])
    store.append({"truth": rows}, f"truth-{digest}")
    return {"gpus": identified, "truth": len(rows)}


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
        candidates = [row for row in others if row["asked"] == options and (unnamed or row["campaign"] == campaign)]
        previous = max(candidates, default=None, key=_began)
        if previous and repeatable and previous["stored_to"] >= previous["ended"]:
            previous = None
        if previous:
            others.remove(previous)
            campaign, began_ns, ended_ns = previous["campaign"], previous["began"], previous["ended"]
        else:
            if began_ns is None:
                latest = max((other["ended"] for other in others), default=FIRST_NS)
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
            born_ns=previous["born"] if previous else min([began_ns, *map(_began, others)]),
            stored_to_ns=previous["stored_to"] if previous else began_ns,
            span_s=span_s,
            before=previous is not None,
        )
        for other in others:
            if other["began"] < ended_ns and began_ns < other["ended"]:
                raise InputError(
                    f"the store holds campaign {other['campaign']} of these GPUs at the same time, from "
                    f"{iso(other['began'])} to {iso(other['ended'])}: choose another begin, cluster or seed"
                )
        stored = _rows(store.arrow("truth", columns=["cluster", *_FAULT]), cluster) if others or previous else []
        _refuse_other_faults(claimed, stored)
        if not previous:
            _store_claim(claimed, stored)
    return claimed


def _store_claim(claimed: Claim, stored: Sequence[Mapping[str, Any]]) -> None:
    """Store the identities and faults of the GPUs, and the claim. Rows of `truth` that are `stored` are left out."""
    devices = devices_of(claimed.fleet.model, claimed.who, claimed.fleet.vbios)
    before = {tuple(row[name] for name in _FAULT) for row in stored}
    identified = identify(claimed.store, devices, claimed.cluster, None, claimed.began_ns)
    truth = truth_of(claimed.cluster, claimed.fleet, claimed.who, claimed.planted, claimed.fleet.seed)
    faults = _rows(truth.select(["cluster", *_FAULT]), claimed.cluster)
    truth = truth.filter(pa.array([tuple(row[name] for name in _FAULT) not in before for row in faults]))
    tables = {"truth": truth, "campaigns": claimed.progress(claimed.began_ns)}
    claimed.store.append(tables, claimed.file_name(claimed.began_ns))
    counts = {"gpus": identified} | {name: len(rows) for name, rows in tables.items()}
    claimed.rows = {name: count for name, count in counts.items() if count}


def _began(row: Mapping[str, Any]) -> int:
    return int(row["began"])


def _rows(table: pa.Table, cluster: str) -> list[dict[str, Any]]:
    """The rows of a cluster; times are UTC, in ns."""
    table = table.filter(compute.equal(table["cluster"], cluster))
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(at, column.name, compute.multiply(table[column.name].cast(pa.int64()), 1000))
    return list(table.to_pylist())


def _campaigns(store: Store, cluster: str, fleet: str) -> list[dict[str, Any]]:
    """The campaigns of a fleet in the store, each by its last row."""
    columns = ["cluster", "fleet", "campaign", "asked", "born", "began", "stored_to", "ended"]
    latest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in _rows(store.arrow("campaigns", columns=columns), cluster):
        if row["fleet"] == fleet:
            row["asked"] = dict(row["asked"] or ())
            key = (row["campaign"], str(sorted(row["asked"].items())), row["began"])
            # The row of a complete campaign holds its real end, which may be earlier than the planned one.
            latest[key] = max(row, latest.get(key, row), key=lambda known: (known["stored_to"], -known["ended"]))
    return list(latest.values())


def _refuse_other_faults(claimed: Claim, truth: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError if the store holds these GPUs with other faults, or from another population: fleets of one seed
    have the same GPU names."""
    kinds: dict[str, tuple[str, float | None]] = {identity.uuid: (HEALTHY.kind, None) for identity in claimed.who}
    kinds |= {row.uuid: (row.kind, row.size_pct) for row in claimed.planted}
    for row in truth:
        before = (row["kind"], row["size_pct"])
        kind, _ = planted = kinds.get(row["gpu"], before)
        if before != planted:
            size = "" if row["size_pct"] is None or row["kind"] != kind else f" of {row['size_pct']:g} %"
            raise InputError(
                f"the store holds this fleet with other faults ({row['gpu']} is {row['kind']!r}{size} there): "
                "choose another seed or cluster"
            )
        if row["population"] != claimed.fleet.population:
            raise InputError(
                f"the store holds this fleet as one of the population {row['population']!r}, not "
                f"{claimed.fleet.population!r}: choose another seed or cluster"
            )


def _option(kind: str, size_pct: float | None) -> str:
    """What the key `fault` takes for a fault as the store has it; '' for a healthy GPU."""
    if kind == HEALTHY.kind:
        return ""
    usual = next((fault.size for fault in FAULTS if fault.kind == kind), None)
    return kind if size_pct is None or size_pct == _pct(usual) else f"{kind}={size_pct:.12g}%"


def backends_again(store: Store, cluster: str) -> dict[str, str]:
    """By simulated GPU of a cluster, the `--backend` with which `whorl probe run` measures its fleet again.

    Empty where the store does not say how the fleet was drawn: GPUs of `whorl collect` and of a file of nodes.
    """
    known = store.arrow("gpus", columns=["cluster", "gpu", "driver"]).to_pylist()
    backends: dict[str, str] = {
        row["gpu"]: "" for row in known if (row["cluster"], row["driver"]) == (cluster, SIMULATED)
    }
    claims = store.arrow("campaigns", columns=["cluster", "fleet"]).to_pylist()
    if not any(row["cluster"] == cluster and row["fleet"] for row in claims):
        return backends
    fleets: dict[tuple[str, int, str], dict[str, str]] = {}
    columns = ["cluster", "gpu", "kind", "size_pct", "population", "model", "seed"]
    for row in store.arrow("truth", columns=columns).to_pylist():
        if row["cluster"] == cluster:
            fleet = fleets.setdefault((row["model"], row["seed"], row["population"]), {})
            fleet[row["gpu"]] = _option(row["kind"], row["size_pct"])
    for (model, seed, population), faults in fleets.items():
        gpus = [identity.uuid for identity in identities(seed, len(faults), model)]
        faulty = {place: faults[gpu] for place, gpu in enumerate(gpus) if faults.get(gpu)}
        kinds = kinds_in_order(len(gpus), seed, faulty)
        if faults.keys() == set(gpus) and kinds is not None:
            words = [f"gpus={len(gpus)}", f"model={model}", f"seed={seed}"]
            words += [f"population={population}"] if population != USUAL else []
            words += [f"faults={len(kinds)}"] if kinds else []
            turns = next((n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n]), len(kinds))
            words += [f"fault={kind}" for kind in kinds[:turns]]
            backends |= dict.fromkeys(gpus, f"simulated:{','.join(words)}")
    return backends
