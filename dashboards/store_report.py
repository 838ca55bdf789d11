"""The report of a store: a campaign of it, or all runs of a cluster, compared, judged, drawn and written as a page.

looked = look(Store.open("fleet"))
looked.overview()                      # a Plotly figure, for a notebook
looked.write("report.html")
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ..analysis import Variability, measurements, variability
from ..analysis.energy.answers import EnergySummary, summary
from ..analysis.energy.readings import covered
from ..analysis.fleet.runs_of import comparable, gpus_on, runs_of
from ..analysis.fleet.side_by_side import Against, against, labels, side_by_side
from ..analysis.fleet.timelines import Timelines, timelines
from ..analysis.fleet.trend import Trend, trend
from ..analysis.runs.probing import Probed, has_rows, probed
from ..analysis.spread.findings import Leading
from ..analysis.spread.summary import leading_of, leading_workload
from ..analysis.verdicts import Judgement, Verdict
from ..analysis.verdicts.judge import judged
from ..analysis.verdicts.judgements import last_judgement
from ..analysis.verdicts.planted import Planted
from ..analysis.verdicts.states import codes
from ..errors import InputError
from ..store.catalog import quoted
from ..store.names import find_gpu, find_workload
from .documents.verdicts import as_judged
from .figures.drawing import for_notebook
from .figures.looks import Look, looks
from .figures.map import maps
from .figures.spread import closely, overview
from .figures.timeline import over_time
from .page import write_page
from .report import probe_report, to_show
from .words import listed as some

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..store import Store

_NAMED = 6
REPLICATES = 500
"""Of the bootstrap: enough for the two digits that are shown."""


@dataclass(frozen=True)
class Looked:
    """What a store holds of a campaign, with all that was found in it. Its figures are Plotly's."""

    campaign: Probed
    judged: Judgement
    """The verdicts: of these runs, or of all runs of the cluster."""
    spread: Sequence[Variability]
    """The rows of `variability` for the same runs."""
    lines: Timelines | None
    """Telemetry of the GPUs that stand out, one like most others and some more; None where there is none."""
    trends: Sequence[Trend] = ()
    """Each probe over all campaigns of the cluster."""
    leading: Leading | None = None
    """The workload that is shown first, and whether its spread belongs to the GPUs."""
    energy: EnergySummary | None = None
    """The energy of the cluster over the last 30 days or less; None where there is no telemetry."""
    stale_says: str | None = None
    """That runs or events came after the judging, in a sentence; None where none did."""
    firmware: Sequence[str] = ()
    """A sentence for each firmware or driver that few GPUs of a model have."""

    def __repr__(self) -> str:
        rows = self.judged.rows
        names = ", ".join(f"{row.name} ({row.kind})" for row in rows[:_NAMED])
        others = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        subject = self.campaign.campaign or f"runs of cluster {self.campaign.cluster}"
        return f"<{subject}: {self.campaign.gpus.height:,} GPUs; standing out: {names or 'none'}{others}>"

    @cached_property
    def names(self) -> Mapping[str, str]:
        """GPU -> its name for people: its place where that is known."""
        return labels(self.campaign.gpus)

    @cached_property
    def verdicts(self) -> Mapping[str, Sequence[Verdict]]:
        """GPU -> its verdicts and those of its node, of the GPUs that have some; the worst first."""
        return self.judged.by_key(self.campaign.gpus)

    @cached_property
    def probes(self) -> list[Against]:
        """Each probe or workload that has times, with its GPUs against their median."""
        return against(self.campaign, self.names)

    @property
    def _drawn(self) -> Mapping[str, Look]:
        return looks(self.verdicts)

    def overview(self) -> Figure:
        """Every GPU in every probe, in % of the median; who stands out is marked. InputError without times."""
        if not self.probes:
            raise InputError("no run here has a time: there is nothing to compare")
        return for_notebook(overview(self.probes, self._drawn))

    def distribution(self, probe: str) -> Figure:
        """One probe's GPUs as a histogram, in % of the median. InputError where it has no times."""
        probe = find_workload(probe, (one.probe for one in self.probes))
        for one in self.probes:
            if one.probe == probe:
                return for_notebook(closely(one, self._drawn))
        raise InputError(f"{probe!r} has no times; {', '.join(one.probe for one in self.probes) or 'nothing'} has")

    def machine(self, probe: str | None = None) -> Figure:
        """A map of the machine, a cell a GPU, coloured by how slow it is in a probe; the leading one if none is named.

        InputError without times.
        """
        drawn = maps(side_by_side(self.campaign), self.campaign.gpus, self._drawn)
        times = {name.removeprefix("time: "): one for name, one in drawn.items() if name.startswith("time: ")}
        if not times:
            raise InputError("no run here has a time: there is nothing to compare")
        if probe is None:
            probe = self.leading.workload if self.leading and self.leading.workload in times else next(iter(times))
        probe = find_workload(probe, times)
        if probe not in times:
            raise InputError(f"there is no map of {probe!r}; there is one of {', '.join(times)}")
        return for_notebook(times[probe])

    def timeline(self, gpu: str) -> Figure:
        """Power, clock and temperature of a GPU beside the fleet's median; `gpu` is its name, UUID or a part.

        InputError where no telemetry of such a GPU is kept, or that of several is.
        """
        names_of_gpus = {} if self.lines is None else {name: (self.names[name],) for name in self.lines.gpus}
        key = find_gpu(gpu, names_of_gpus, "among those whose telemetry is shown")
        assert self.lines is not None
        return for_notebook(over_time(self.lines, key, self.names[key]))

    def page(self, *, planted: Sequence[Planted] | None = None, notes: Sequence[str] = ()) -> str:
        """The report as one HTML page that needs no network. `planted`: faults that are known to be there."""
        return probe_report(
            self.campaign,
            self.judged,
            self.spread,
            self.lines,
            planted=planted,
            notes=[*notes, *([self.stale_says] if self.stale_says else []), *self.firmware],
            trends=self.trends,
            leading=self.leading,
            energy=self.energy,
        )

    def write(self, out: str | Path, *, planted: Sequence[Planted] | None = None, notes: Sequence[str] = ()) -> Path:
        """Write the page to a file, whole or not at all. InputError where that fails."""
        write_page(Path(out), self.page(planted=planted, notes=notes))
        return Path(out)


def look(
    store: Store | str | Path,
    campaign: str | None = None,
    cluster: str | None = None,
    *,
    every: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> Looked:
    """Compare the GPUs of a campaign, the last one where none is named; without one, all runs of the cluster.

    The verdicts are those of the campaign's runs where one is named, else of all runs of the cluster; `every` says
    which of both. InputError as `probed` raises it. `progress` hears what goes on.
    """
    from ..store import Store

    report_progress = progress or (lambda _: None)
    opened = store if isinstance(store, Store) else Store.open(store)
    report_progress("reading the store")
    probed_runs = probed(opened, campaign, cluster, facts=True)
    report_progress("judging the GPUs")
    of_all_runs = campaign is None if every is None else every
    stored = last_judgement(opened, probed_runs.cluster) if of_all_runs else None
    verdicts = judged(probed_runs, opened) if stored is None else stored.judgement
    stale_says = None
    if stored is not None and any(newer := stored.newer(opened)):
        options = f"--store {shlex.quote(str(opened.root))} --cluster {shlex.quote(probed_runs.cluster)}"
        stale_says = as_judged(stored.judged_at, newer, f"whorl verdicts {options}")
    measured = measurements(opened, clusters=[probed_runs.cluster], run_ids=True)
    # Kinds of a workload are those among the runs that are shown, not those among all of the store.
    workload_of_run = probed_runs.runs.select("run_id", pl.col("workload").cast(pl.Categorical))
    runs = measured.drop("workload").join(workload_of_run, on="run_id", maintain_order="left")
    spread = (
        variability(
            runs,
            replicates=REPLICATES,
            progress=lambda step, done, total: report_progress(f"{step}: {done:,} of {total:,} replicates"),
        )
        if runs.height
        else []
    )
    lines = timelines(opened, probed_runs, to_show(probed_runs, verdicts)) if has_rows(opened, "telemetry") else None
    first = leading_workload(opened, probed_runs.cluster, {row.workload for row in spread}, measured) or leading_of(
        spread
    )
    trends, energy = _trends(opened, probed_runs), _energy(opened, probed_runs.cluster, progress)
    firmware = _other_firmware(opened, probed_runs.cluster)
    return Looked(probed_runs, verdicts, spread, lines, trends, first, energy, stale_says, firmware)


def _other_firmware(store: Store, cluster: str) -> list[str]:
    """What few GPUs of a model have, and which GPUs: a sentence for each part of each version."""
    query = (
        "SELECT model, part, version, usual_version, list(name ORDER BY name) AS names FROM other_firmware "
        f"WHERE cluster = {quoted(cluster)} GROUP BY ALL ORDER BY ALL"
    )
    return [
        f"Firmware: {row['part']} {row['version']}, while most {row['model']} have {row['usual_version']}: "
        f"{some(row['names'], _NAMED)}."
        for row in store.sql(query).to_pylist()
    ]


def _energy(store: Store, cluster: str, progress: Callable[[str], None] | None) -> EnergySummary | None:
    """The energy of a cluster, where any was metered."""
    times = covered(store, cluster=cluster)
    if not (times["last"] > times["first"]).any():  # no telemetry, or that of one instant
        return None
    energy = summary(store, cluster, progress=progress)
    return energy if energy.total.get("measured_s") else None


def _trends(store: Store, campaign: Probed) -> list[Trend]:
    """The trends of the probes that the store has under the same names over all campaigns."""
    cluster = campaign.cluster
    probes = {work.name for part in comparable(store) if part.cluster == cluster for work in part.works}
    shown = [probe for probe in campaign.probes if probe in probes]
    if campaign.campaign:
        known = gpus_on(store, cluster)
        whole = [trend(runs_of(store, cluster, probe, known=known)) for probe in shown]
    else:  # all runs are read already
        number = pl.Series("gpu_no", codes(campaign.runs["gpu"], campaign.gpus["gpu"].to_list()))
        runs = campaign.runs.with_columns(pl.lit(None, pl.String).alias("campaign"), number)
        whole = [trend(replace(campaign, runs=runs.filter(pl.col("workload") == probe))) for probe in shown]
    return [found for found in whole if found is not None]
