"""A job's own readings, GPU by GPU, and where its GPUs stand in the fleet: the function of `whorl jobs show`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dashboards.answers.reply import Reply, RowList, folder, opened
from ...jobs.job_collector import JobCollector
from ...jobs.job_summary import GpuSummary, document, stored_summaries
from ..job_report import FleetPlace, report

if TYPE_CHECKING:
    from ...store import Store


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
    return Reply(
        stored,
        partial(_document, stored, folder(store)),
        partial(report, gpus, places),
        rows=RowList("gpus", GpuSummary),
    )


def _document(stored: StoredJob, path: str) -> dict[str, Any]:
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
        return Reply(content, lambda: content, partial(report, gpus), rows=RowList("gpus", GpuSummary), notes=notes)


def fleet_places(fleet: Store, gpus: Collection[str]) -> dict[str, FleetPlace]:
    """Where those of `gpus` stand that the store of a fleet knows: by its fingerprints, over all classes of work."""
    import polars as pl

    from ...analysis.energy.choices.levels import ANY, levels
    from ...analysis.energy.choices.placed import fingerprints, identities, verdicts
    from ...analysis.energy.choices.places import stands

    known = identities(fleet).filter(pl.col("gpu").is_in(list(gpus)))
    standing = stands(levels(fingerprints(fleet, None)[0], identities(fleet))).filter(pl.col("basis") == ANY)
    found = known.select("cluster", "gpu").join(standing, on=["cluster", "gpu"], how="left")
    found = found.join(verdicts(fleet), on=["cluster", "gpu"], how="left")
    figures = ("basis", "slower_pct", "slower_low_pct", "slower_high_pct", "rank", "compared")
    return {
        row["gpu"]: FleetPlace(
            **{name: row[name] for name in figures},
            verdicts=tuple(kind for kind in (row["verdicts"] or "").split(", ") if kind),
        )
        for row in found.to_dicts()
    }
