"""What a campaign measures, and where: chosen once, kept in table `campaigns`, the same whenever it goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...store.catalog import quoted

if TYPE_CHECKING:
    from ...probes.probe import Probe
    from ...store import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEPT = ("suite", "neighbours", "named", "partition", "nodes", "fleet")  # of a request, in `campaigns.asked`
_PEER = "copy-p2p"  # this kernel uses a second GPU of the node, which must have nothing else to do


@dataclass(frozen=True, slots=True)
class Asked:
    """What is given of a campaign; None: not given."""

    campaign: str | None = None
    suite: str | None = None
    probes: tuple[str, ...] | None = None
    neighbours: str | None = None
    partition: str | None = None
    """One, or several with commas."""
    nodes: str | None = None
    """A host list."""
    fleet: str | None = None
    """The file of a simulated cluster."""
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class CampaignRequest:
    """What a campaign measures, and where."""

    campaign: str
    suite: str
    probes: tuple[str, ...]
    """Their names, in the order in which they run."""
    named: bool
    """Whether the probes were named; otherwise they are those of the suite."""
    neighbours: str
    partition: str | None = None
    nodes: str | None = None
    fleet: str | None = None
    cluster: str | None = None
    began_ns: int | None = None
    """When it was first run, UTC; None: not yet."""

    @property
    def is_new(self) -> bool:
        return self.began_ns is None

    def expected_s(self) -> float:
        """How long a GPU takes at most, by the limits of its probes: as `Plan.expected_s` of the campaign on a node."""
        from ...probes.catalogue import choose
        from ...probes.effort import EFFORTS

        return EFFORTS[self.suite].together_s(choose(self.probes))


def known(store: Store | None) -> list[CampaignRequest]:
    """The campaigns that were run on this store through a batch system, the newest first."""
    if store is None:
        return []
    kept = ", ".join(f"asked['{name}']" for name in _KEPT)
    rows = select(
        store,
        "SELECT campaign, cluster, array_to_string(probes, chr(10)), epoch_ns(began), "
        f"{kept} FROM campaigns WHERE fleet IS NULL ORDER BY began DESC",
    )
    found: dict[str, CampaignRequest] = {}
    for campaign, cluster, probes, began, suite, neighbours, named, partition, nodes, fleet in rows:
        if probes and suite and neighbours:  # else it is a row of another whorl
            chosen = tuple(probes.split("\n"))
            request = CampaignRequest(
                campaign, suite, chosen, named == "true", neighbours, partition, nodes, fleet, cluster, began
            )
            found.setdefault(campaign, request)
    return list(found.values())


def choose(store: Store | None, asked: Asked) -> CampaignRequest:
    """The campaign that is meant: the one of that name, else the newest one that is like this, else a new one.

    Raises InputError where nothing says what to measure, and where the campaign was begun with other options.
    """
    if asked.campaign is not None and not _NAME.fullmatch(asked.campaign):
        raise InputError(
            f"{asked.campaign!r} cannot name a campaign of jobs: use letters, digits, and . _ - after the first"
        )
    given = {one.name: getattr(asked, one.name) for one in fields(asked) if one.name not in ("campaign", "probes")}
    given = {name: value for name, value in given.items() if value is not None}
    probes = None if asked.probes is None else tuple(one.name for one in _probes(asked))
    before = known(store)
    for one in before:
        if asked.campaign not in (None, one.campaign):
            continue
        other = [name for name, value in given.items() if getattr(one, name) not in (None, value)]
        other += [name for name, value in given.items() if getattr(one, name) is None and name != "cluster"]
        other += ["probes"] if probes is not None and probes != one.probes else []
        if not other:
            return one
        if asked.campaign is not None:
            name = other[0]
            was = ", ".join(one.probes) if name == "probes" else getattr(one, name)
            what = "the probes" if name == "probes" else f"--{name}"
            raise InputError(
                f"campaign {one.campaign} was begun with {what} {was or 'left out'}: leave the option out to go on, or "
                "choose another --campaign"
            )
    if asked.suite is None and asked.probes is None:
        if asked.campaign is not None and store is not None:
            raise InputError(
                f"{store.root} has no campaign {asked.campaign} of jobs yet: choose what to measure, --suite quick"
            )
        raise InputError("choose what to measure: --suite quick, standard or full, or names of probes")
    return _new(asked, {one.campaign for one in before})


def _new(asked: Asked, taken: set[str]) -> CampaignRequest:
    chosen = _probes(asked)
    suite = asked.suite or "standard"
    if asked.neighbours not in (None, "idle", "busy"):
        raise InputError(f"neighbours must be idle or busy, not {asked.neighbours!r}")
    fleet = asked.fleet
    if fleet is not None:
        if not Path(fleet).is_file():
            raise InputError(f"there is no file {fleet}, which --fleet names")
        fleet = str(Path(fleet).resolve())
    day = f"{suite}-{datetime.now(UTC):%Y%m%d}"
    free = (name for n in range(1, len(taken) + 2) if (name := day if n == 1 else f"{day}-{n}") not in taken)
    return CampaignRequest(
        asked.campaign or next(free),
        suite,
        tuple(one.name for one in chosen),
        asked.probes is not None,
        asked.neighbours or ("idle" if any(one.kernel == _PEER for one in chosen) else "busy"),
        asked.partition,
        asked.nodes,
        fleet,
        asked.cluster,
    )


def _probes(asked: Asked) -> Sequence[Probe]:
    from ...probes import catalogue

    suite = asked.suite or "standard"
    return catalogue.choose(asked.probes) if asked.probes else catalogue.suite(suite)


def declare(store: Store, request: CampaignRequest) -> CampaignRequest:
    """Keep what a new campaign measures, in table `campaigns`; one that is kept already is returned as it is."""
    from ...store.schema import arrow_rows, texts_of

    if not request.is_new:
        return request
    began = time.time_ns() // 1000 * 1000  # as the store keeps it
    columns = {
        "cluster": [request.cluster],
        "campaign": [request.campaign],
        "asked": [texts_of({name: getattr(request, name) for name in _KEPT})],
        "probes": [request.probes],
        "began": [began],
    }
    store.append({"campaigns": arrow_rows("campaigns", columns)}, f"campaign-{request.campaign}-{began}")
    return replace(request, began_ns=began)


def find(store: Store, name: str | None) -> CampaignRequest:
    """The campaign of that name, or the newest one. Raises InputError where there is none."""
    before = known(store)
    found = next((one for one in before if name in (None, one.campaign)), None)
    if found is None:
        has = f"; it has {', '.join(one.campaign for one in before[:8])}" if before else ""
        which = "" if name is None else f" {name}"
        raise InputError(
            f"{store.root} has no campaign{which} of jobs{has}: "
            f"`whorl campaign run --suite quick --store {store.root}` begins one"
        )
    return found


def select(store: Store, query: str) -> list[tuple[Any, ...]]:
    """The rows of an answer of numbers and texts: without loading pyarrow, which takes longer than many a query."""
    found = store.answer(query)
    from ...store.sql import Plain

    if isinstance(found, Plain):
        return found.rows
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def of_campaign(request: CampaignRequest) -> str:
    """The rows of a campaign, as a condition of SQL."""
    where = f"campaign = {quoted(request.campaign)}"
    return where if request.cluster is None else f"{where} AND cluster = {quoted(request.cluster)}"
