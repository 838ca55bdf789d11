"""Jobs and their GPUs: what one collected of its own (`whorl jobs show`), what they left idle (`whorl jobs idle`)."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...collectors.job_process import JobCollector
from ...collectors.job_readings import GpuSummary, document, stored_summaries
from ...dashboards.answers.reply import Reply, RowList, folder, opened
from ...dashboards.documents.job_gpus import FleetPlace, job_document

if TYPE_CHECKING:
    from ...analysis.energy.held_idle import HeldIdle
    from ...store import Store


class IdleGpuOptions(TypedDict, total=False):
    """Which jobs of which time; each is None, empty or False where it is left out."""

    cluster: str | None
    users: Sequence[str]
    """Only jobs of these users."""
    mine: bool
    """Only jobs of who calls it."""
    running: bool
    """Only jobs that have not ended."""
    since: datetime | str | None
    """From this time on (UTC), or so long ago: "7d"; the day before `until` where it is left out."""
    until: datetime | str | None
    """The last reading where it is left out."""
    at_least: float | str
    """How long a GPU must be idle to count (s, or as "30min"); 10 minutes where it is left out."""
    price: float | None
    """Of an hour of a GPU."""
    settings: str | Path | None
    """The file of carbon and prices; `energy.toml` in the store's folder where it is left out."""
    progress: Callable[[str], None] | None


@dataclass(frozen=True)
class StoredJob:
    """What the store of a job holds: a summary of each GPU, and where it stands in a fleet if one was named."""

    gpus: Sequence[GpuSummary]
    places: Mapping[str, FleetPlace] | None


def show_job(store: Store | str | Path, *, fleet: Store | str | Path | None = None) -> Reply[StoredJob]:
    """Summarise what a job collected of its own GPUs, on all nodes, as `whorl jobs show` does.

    `frame` has a row for each GPU. With `fleet`, the store of a site, each row also says where the GPU stands in the
    fleet. Raises StoreError where there is no store.
    """
    gpus = stored_summaries(opened(store))
    places = None if fleet is None else fleet_places(opened(fleet), {gpu.gpu for gpu in gpus})
    stored = StoredJob(gpus, places)
    mapping = partial(_mapping, path=folder(store))
    return Reply(stored, mapping, lambda _: job_document(gpus, places), rows=RowList("gpus", GpuSummary))


def _mapping(stored: StoredJob, path: str) -> dict[str, Any]:
    content = document(stored.gpus, store=path)
    for row in content["gpus"] if stored.places is not None else ():
        place = stored.places.get(row["gpu"]) if stored.places else None
        row["fleet"] = None if place is None else asdict(place)
    return content


class JobReadings(JobCollector):
    """The readings of this job's GPUs during a `with` block; see `JobCollector`."""

    def summary(self) -> Reply[dict[str, Any]]:
        """Power, clocks, throttling and energy of each GPU on this node: `frame` has a row for each.

        Where the job was not measured there are no GPUs, and a note says why. Raises InputError before the end of the
        block.
        """
        content = self.document
        gpus = [GpuSummary(**row) for row in content["gpus"]]
        notes = () if self.problem is None else (self.problem,)
        rows = RowList("gpus", GpuSummary)
        return Reply(content, lambda content: content, lambda _: job_document(gpus), rows=rows, notes=notes)


def fleet_places(fleet: Store, gpus: Collection[str]) -> dict[str, FleetPlace]:
    """Where those of `gpus` stand that the store of a fleet knows: by its fingerprints, over all classes of work."""
    import polars as pl

    from ...analysis.energy.excess import verdicts
    from ...analysis.energy.levels import ANY, fingerprints, identities, levels, stands

    identified = identities(fleet).filter(pl.col("gpu").is_in(list(gpus)))
    standing = stands(levels(fingerprints(fleet, None)[0], identities(fleet))).filter(pl.col("basis") == ANY)
    places = identified.select("cluster", "gpu").join(standing, on=["cluster", "gpu"], how="left")
    places = places.join(verdicts(fleet), on=["cluster", "gpu"], how="left")
    figures = ("basis", "slower_pct", "slower_low_pct", "slower_high_pct", "rank", "compared")
    return {
        row["gpu"]: FleetPlace(
            **{name: row[name] for name in figures},
            verdicts=tuple(kind for kind in (row["verdicts"] or "").split(", ") if kind),
        )
        for row in places.to_dicts()
    }


def idle_gpus(store: Store | str | Path, **options: Unpack[IdleGpuOptions]) -> Reply[HeldIdle]:
    """Which GPUs jobs held and did not use, for how long and what it cost, as `whorl jobs idle` lists them.

    `frame` has a row for each job, `gpus` one for each GPU of each. Raises InputError where the store has no telemetry
    and for a time that is empty, StoreError where it keeps pseudonyms of users and only its owner can find one.
    """
    from ...analysis.energy.held_idle import LEAST_S, IdleOptions, held_idle
    from ...dashboards.answers.energy import idle_mapping
    from ...dashboards.documents.job import idle_document
    from ...jobs.accounting.importing import pseudonym, pseudonym_key
    from ...store.instants import seconds_of, time_of

    read = opened(store)
    names = [*options.get("users", ())]
    if options.get("mine"):
        names.append(str(os.getuid()))  # a tag without a name has the number
        with contextlib.suppress(KeyError, OSError):  # a container may know no name of its user
            names.append(getpass.getuser())
    secret = pseudonym_key(read.root, make=False) if names else None
    if secret is not None:
        names += [pseudonym(secret, "user", name) for name in names]
    chosen = IdleOptions(
        cluster=options.get("cluster"),
        since=time_of(options.get("since")),
        until=time_of(options.get("until")),
        users=names or None,
        running=bool(options.get("running")),
        least_s=seconds_of(options.get("at_least", LEAST_S)),
        price=options.get("price"),
        settings=options.get("settings"),
    )
    idle = held_idle(read, chosen, progress=options.get("progress"))
    return Reply(idle, idle_mapping, idle_document, frame=idle.jobs)
