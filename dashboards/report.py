"""The report of a store: a campaign of it, or all runs of a cluster, compared, judged, drawn and written as a page.

looked = look(Store.open("fleet"))
looked.overview()                      # a Plotly figure, for a notebook
looked.write("report.html")
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..analysis import Variability, variability
from ..analysis.contents import FleetNow, fleet_now
from ..analysis.energy.answers import EnergySummary, summary
from ..analysis.energy.readings import covered
from ..analysis.fleet.side_by_side import Against, against, gpus_on, labels, level_of, runs_of, side_by_side
from ..analysis.fleet.timelines import Timelines, Trend, timelines, trend
from ..analysis.runs.measurements import codes, places, workloads
from ..analysis.runs.probing import Probed, durations, has_rows, probed
from ..analysis.spread.repeats import Belongs, Leading, leading
from ..analysis.spread.variability import Width, leading_of, width
from ..analysis.verdicts import Judgement, Kind, Verdict
from ..analysis.verdicts.judge import judged
from ..analysis.verdicts.judgements import last_judgement
from ..analysis.verdicts.verdict import Planted
from ..errors import InputError
from ..store.catalog import quoted
from ..store.names import find_gpu, find_workload
from .document import Chart, Column, Command, Document, Listing, Part, Section
from .documents import fleet as documents
from .documents.books import summary_section
from .documents.fleet import JudgedFleet
from .documents.verdicts import as_judged, findings, not_judged
from .figures import fleet as figures
from .figures.drawing import for_notebook
from .figures.machine import CELLS, maps
from .html import page, write_page
from .words import MISSING, capital, in_store, listed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..store import Store

REPLICATES = 500
"""Of the bootstrap: enough for the two digits that are shown."""
GPU_LINES = 64
"""GPUs whose telemetry can be chosen."""
LISTED_VALUES = 1_000_000
"""Numbers in the table of all GPUs, which are two megabytes of the page."""
_COMPARED = (
    "workload", "gpu", "model", "node", "began", "sm_clock_mhz", "temperature_c", "power_w", "conditions", "job_id",
    "probe_version", "status", "value",
)  # fmt: skip
"""What is read of all runs of a probe."""
_DETAILED = 40  # findings in full
_NAMED = 6
_ODD = 4  # GPUs with findings that are drawn over the campaigns
_BELONGS = {
    Belongs.GPUS: "the difference belongs to the GPUs",
    Belongs.HIDDEN: "the difference belongs to the GPUs",
    Belongs.OUTLIERS: "a part of the difference repeats",
    Belongs.PART: "a part of the difference repeats",
    Belongs.UNKNOWN: "whether that repeats is not known",
    Belongs.TOO_FEW: "whether that repeats is not known",
    Belongs.NONE: "it does not belong to the GPUs",
    Belongs.ALIKE: "it does not belong to the GPUs",
}
_COLUMNS = (
    ("slower_pct", Column("slower, %", "percent", 2)),
    ("slower_pct_low", Column("95 % from", "percent", 2)),
    ("slower_pct_high", Column("to", "percent", 2)),
    ("time", Column("time, ms", "number", 4)),
    ("power_w", Column("power, W", "number", 1)),
    ("sm_clock_mhz", Column("clock, MHz", "number", 0)),
    ("temperature_c", Column("temp., °C", "number", 1)),
    ("n", Column("runs", "number", 0)),
)


@dataclass(frozen=True)
class Looked:
    """What a store holds of a campaign, with all that was concluded about it. Its figures are Plotly's."""

    campaign: Probed
    judged: Judgement
    """The verdicts: of these runs, or of all runs of the cluster."""
    spread: Sequence[Variability]
    """The rows of `variability` of level `gpu` for the same runs."""
    lines: Timelines | None
    """Telemetry of the GPUs that stand out, of one like most others and of some more; None where there is none."""
    trends: Sequence[Trend] = ()
    """Each probe over all campaigns of the cluster."""
    leading: Leading | None = None
    """The workload that is shown first, and whether its spread belongs to the GPUs."""
    energy: EnergySummary | None = None
    """The energy of the cluster over the last 30 days or less; None where there is no telemetry."""
    now: FleetNow | None = None
    """The newest readings of the store; None where there is no telemetry."""
    stale_says: str | None = None
    """That runs or events came after the judging, in a sentence; None where none did."""
    firmware: Sequence[str] = ()
    """A sentence for each firmware or driver that few GPUs of a model have."""

    def __repr__(self) -> str:
        rows = self.judged.rows
        names = listed([f"{row.name} ({row.kind})" for row in rows], _NAMED) if rows else "none"
        subject = self.campaign.campaign or f"runs of cluster {self.campaign.cluster}"
        return f"<{subject}: {self.campaign.gpus.height:,} GPUs; standing out: {names}>"

    @cached_property
    def fleet(self) -> JudgedFleet:
        """The GPUs with what was concluded about them."""
        return JudgedFleet(self.campaign.gpus, self.judged)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """GPU -> its name for people: its place where that is known."""
        return labels(self.campaign.gpus)

    @property
    def verdicts(self) -> Mapping[str, Sequence[Verdict]]:
        """GPU -> its verdicts and those of its node, of the GPUs that have some; the worst first."""
        return self.fleet.verdicts

    @cached_property
    def probes(self) -> list[Against]:
        """Each probe or workload that has times, with its GPUs against their median."""
        return against(self.campaign, self.names)

    @cached_property
    def beside(self) -> pl.DataFrame:
        """The GPUs beside each other in each probe: `analysis.fleet.side_by_side`."""
        return side_by_side(self.campaign)

    def overview(self) -> Figure:
        """Every GPU in every probe, in % of the median; who stands out is marked. InputError without times."""
        if not self.probes:
            raise InputError("no run here has a time: there is nothing to compare")
        return for_notebook(figures.overview(self.probes, self.fleet.looks))

    def distribution(self, probe: str) -> Figure:
        """One probe's GPUs as a histogram, in % of the median. InputError where it has no times."""
        name = find_workload(probe, (each.probe for each in self.probes))
        for each in self.probes:
            if each.probe == name:
                return for_notebook(figures.closely(each, self.fleet.looks))
        raise InputError(f"{name!r} has no times; {', '.join(each.probe for each in self.probes) or 'nothing'} has")

    def machine(self, probe: str | None = None) -> Figure:
        """A map of the machine, a cell a GPU, coloured by how slow it is in a probe; the leading one if none is named.

        InputError without times.
        """
        every_map = maps(self.beside, self.fleet.grid, self.fleet.looks)
        times = {name.removeprefix("time: "): map_ for name, map_ in every_map.items() if name.startswith("time: ")}
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
        return for_notebook(figures.over_time(self.lines, key, self.names[key]))

    def page(self, *, planted: Sequence[Planted] | None = None, notes: Sequence[str] = ()) -> str:
        """The report as one HTML page that needs no network. `planted`: faults that are known to be there."""
        return page(report_document(self, planted=planted, notes=notes))

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
        command = f"whorl verdicts {in_store(opened.root, probed_runs.cluster)}"
        stale_says = as_judged(stored.judged_at, newer, command)
    gpu_places = places(opened)
    runs = durations(probed_runs, gpu_places)
    spread = (
        variability(
            runs,
            replicates=REPLICATES,
            progress=lambda step, done, total: report_progress(f"{step}: {done:,} of {total:,} replicates"),
            levels=("gpu",),
        )
        if runs.height
        else []
    )
    trends, first = _over_campaigns(opened, probed_runs, {row.workload for row in spread}, gpu_places)
    has_telemetry = has_rows(opened, "telemetry")
    return Looked(
        probed_runs,
        verdicts,
        spread,
        timelines(opened, probed_runs, gpus_to_draw(probed_runs, verdicts)) if has_telemetry else None,
        trends=trends,
        leading=first or leading_of(spread),
        energy=_energy(opened, probed_runs.cluster, progress),
        now=fleet_now(opened) if has_telemetry else None,
        stale_says=stale_says,
        firmware=_other_firmware(opened, probed_runs.cluster),
    )


def gpus_to_draw(campaign: Probed, judgement: Judgement) -> list[str]:
    """The GPUs whose telemetry can be chosen: those that stand out, the worst first, one like most others, and as many
    more as a page holds, those farthest from the median first."""
    with_power = set(campaign.runs.drop_nulls("power_w")["gpu"])
    verdicts = judgement.by_key(campaign.gpus)
    odd = sorted(verdicts, key=lambda gpu: verdicts[gpu][0].kind is Kind.LOST)  # of a lost one there is less to see
    gpus = [gpu for gpu in odd if gpu in with_power][: GPU_LINES - 1]
    calm = campaign.sound.filter(~pl.col("gpu").is_in(list(verdicts)))
    if not calm.is_empty():
        far = (pl.col("value") / pl.col("value").median().over("model", "workload")).log().abs().alias("far")
        by_gpu = calm.with_columns(far).group_by("gpu").agg(pl.col("far").mean(), pl.len().alias("runs"))
        most = by_gpu.filter(pl.col("runs") == pl.col("runs").max()).sort("far", "gpu")
        gpus += [] if gpus else [str(most["gpu"][-1])]
        gpus += [] if str(most["gpu"][0]) in gpus else [str(most["gpu"][0])]
        others = by_gpu.sort("far", "gpu", descending=[True, False])["gpu"]
        gpus += [gpu for gpu in others if gpu not in gpus and gpu in with_power][: GPU_LINES - len(gpus)]
    return gpus


def _other_firmware(store: Store, cluster: str) -> list[str]:
    """What few GPUs of a model have, and which GPUs: a sentence for each part of each version."""
    query = (
        "SELECT model, part, version, usual_version, list(name ORDER BY name) AS names FROM other_firmware "
        f"WHERE cluster = {quoted(cluster)} GROUP BY ALL ORDER BY ALL"
    )
    return [
        f"Firmware: {row['part']} {row['version']}, while most {row['model']} have {row['usual_version']}: "
        f"{listed(row['names'], _NAMED)}."
        for row in store.sql(query).to_pylist()
    ]


def _energy(store: Store, cluster: str, progress: Callable[[str], None] | None) -> EnergySummary | None:
    """The energy of a cluster, where any was metered."""
    times = covered(store, cluster=cluster)
    if not (times["last"] > times["first"]).any():  # no telemetry, or that of one instant
        return None
    energy = summary(store, cluster, progress=progress)
    return energy if energy.total.get("measured_s") else None


def _over_campaigns(
    store: Store, campaign: Probed, timed: Collection[str], gpu_places: pl.DataFrame
) -> tuple[list[Trend], Leading | None]:
    """The trends of the probes that the store has under the same names over all campaigns, and which of the probes
    `timed` to lead with: what `leading_workload` says."""
    read = _reader(store, campaign)

    def both(runs: Probed | None) -> tuple[Trend | None, list[Width]]:
        if runs is None:
            return None, []
        works = workloads(durations(runs, gpu_places))
        return trend(runs), [width(work) for work in works if work.workload in timed]

    # One probe at a time, as a large fleet has many runs.
    of_probes = [both(read(probe)) for probe in campaign.probes]
    trends = [row for row, _ in of_probes if row is not None]
    return trends, leading(each for _, widths in of_probes for each in widths)


def _reader(store: Store, campaign: Probed) -> Callable[[str], Probed | None]:
    """What reads the runs of a probe over all campaigns of the cluster; None where it has several kinds over these, so
    that none has its name."""
    if not campaign.campaign:  # all runs are read already
        number = pl.Series("gpu_no", codes(campaign.runs["gpu"], campaign.gpus["gpu"].to_list()))
        runs = campaign.runs.select(*_COMPARED, pl.lit(None, pl.String).alias("campaign"), number)
        return lambda probe: replace(campaign, runs=runs.filter(pl.col("workload") == probe))
    gpus = gpus_on(store, campaign.cluster)

    def read(probe: str) -> Probed | None:
        with suppress(InputError):
            return runs_of(store, campaign.cluster, probe, known=gpus, columns=("job_id", "probe_version"))
        return None

    return read


# -- what a terminal prints -----------------------------------------------------------------------------------------


def summary_parts(looked: Looked, planted: Sequence[Planted] | None = None) -> Iterator[Part]:
    """The report for a terminal: what ran, the three answers, planted faults, and how much the GPUs differ."""
    campaign = looked.campaign
    yield from _opening(looked)
    yield ""
    yield documents.headline(looked.fleet)
    yield from documents.three_answers(looked.fleet)
    if (unseen := documents.unseen(looked.fleet)) is not None:
        yield unseen
    if planted is not None:
        yield documents.planted_faults(planted, looked.judged, campaign, looked.names)
    if rows := _spread_rows(looked):
        yield documents.spread_table(rows, documents.noun_of(campaign))
    if (gaps := not_judged(looked.judged.not_judged)) is not None and (looked.judged.gpus or looked.judged.rows):
        yield gaps
    yield from _remarks(looked)


def _opening(looked: Looked) -> Iterator[str]:
    """What ran, and what of it is missing or old."""
    yield f"{capital(documents.what_ran(looked.campaign, looked.fleet.grid.gpus))}."
    if looked.campaign.cut_says:
        yield f"Not complete: {looked.campaign.cut_says}."
    if looked.stale_says:
        yield looked.stale_says


def next_commands(looked: Looked, store: str | Path, page: str | Path | None) -> Iterator[Command]:
    """Where the page is, and commands that show more of the same store."""
    options = in_store(store)
    if page is not None:
        yield Command(f"report: {page} (open it in a browser; it needs no network)")
    yield Command(f"next: whorl dashboard {options}")
    if looked.campaign.runs.is_empty():
        yield Command(f"      whorl verdicts {options}")
        return
    options = in_store(store, looked.campaign.cluster)
    if looked.judged.rows:
        yield Command(f"      whorl explain {shlex.quote(looked.judged.rows[0].name)} {options}")
    timed = [row.workload for row in looked.spread]
    first = [name for verdict in looked.judged.rows for name in verdict.workloads if name in timed]
    first += [looked.leading.workload] if looked.leading else []
    workload = next(iter([*first, *timed]), None)
    if workload is not None:
        yield Command(f"      whorl advise {options} --workload {shlex.quote(workload)}")


def _remarks(looked: Looked) -> list[str]:
    """What the numbers cannot say, in sentences."""
    campaign = looked.campaign
    remarks = [f"{capital(campaign.untrusted_says)}."] if campaign.untrusted_says else []
    timed = {probe.probe for probe in looked.probes}
    if untimed := [probe for probe in campaign.probes if probe not in {*campaign.untrusted, *timed}]:
        remarks.append(f"Not compared because they measure no time: {listed(untimed)}.")
    if campaign.maybe_twice:
        remarks.append(
            f"For {campaign.maybe_twice:,} GPUs only the UUID is known, for others only the place. The files do not "
            "say which are the same: numbers of GPUs by workload are exact, that of all GPUs is an upper bound."
        )
    if campaign.simulated:
        remarks.append("These GPUs are simulated: no number here was measured on a real GPU.")
    return remarks


def _spread_rows(looked: Looked) -> list[Variability]:
    """The spread of each probe's GPUs, in the order of the probes."""
    by_probe = {row.workload: row for row in looked.spread}
    return [by_probe[probe] for probe in looked.campaign.probes if probe in by_probe]


# -- the page -------------------------------------------------------------------------------------------------------


def report_document(looked: Looked, *, planted: Sequence[Planted] | None = None, notes: Sequence[str] = ()) -> Document:
    """The report as a document: the three answers first, definitions in folds at the end."""
    campaign, noun = looked.campaign, documents.noun_of(looked.campaign)
    parts: list[Part] = [*_opening(looked)]
    pictures: list[Part] = [documents.machine(looked.fleet), *_all_probes(looked, noun)]
    later = (documents.unseen(looked.fleet), documents.newest_readings(looked.now))
    beside = Section("", pictures, anchor="pictures")
    answers = [*documents.three_answers(looked.fleet), beside, *(part for part in later if part is not None)]
    parts.append(Section("", answers, anchor="answers"))
    if looked.judged.rows or planted is not None:
        parts.append(_all_findings(looked, planted))
    if differ := _differences(looked, noun):
        parts.append(Section("How much they differ" if campaign.gpus.height > 1 else "Times", differ))
    parts += _where(looked, noun)
    if chart := _over_time(looked):
        parts.append(Section("Over time", [chart], folded=True))
    if campaign.gpus.height > 1 and not looked.beside.is_empty():
        parts.append(Section("Every GPU", [_every_gpu(looked, noun)]))
    if looked.lines is not None and looked.lines.gpus:
        parts.append(Section("One GPU over the campaign", [_telemetry(looked)]))
    if looked.energy is not None:
        parts.append(replace(summary_section(looked.energy), folded=True))
    tables = [documents.run_figures(campaign), documents.conditions(campaign)]
    conditions = [table for table in tables if table is not None]
    parts.append(Section("What was measured", [documents.about(campaign), *conditions], folded=True, anchor="measured"))
    replicates = next((row.replicates for row in looked.spread), None)
    parts.append(documents.definitions(looked.judged, noun, replicates))
    remarks = [*_remarks(looked), *(f"{capital(note)}" for note in notes), *looked.firmware]
    return Document(documents.headline(looked.fleet), parts, remarks)


def _all_probes(looked: Looked, noun: str) -> list[Part]:
    """Every GPU in every probe; nothing where there is nothing to compare."""
    if not looked.probes or looked.campaign.gpus.height < 2:
        return []
    n = max(len(probe.gpus) for probe in looked.probes)
    caption = (
        f"A point is a GPU (n = {n:,}). Box: the middle half; whiskers: 5th to 95th percentile. The axis is linear "
        f"near 0 and logarithmic beyond.{_points_drawn(n)}"
    )
    return [Chart(f"All {noun}s", caption, {"": figures.overview(looked.probes, looked.fleet.looks)})]


def _points_drawn(n: int) -> str:
    """That not all of `n` GPUs are drawn, where it is so."""
    return f" {figures.POINTS} of them are drawn, and all that stand out." if n > figures.POINTS else ""


def _differences(looked: Looked, noun: str) -> list[Part]:
    """How much the GPUs differ in each probe, and in one of them closely."""
    rows = _spread_rows(looked)
    parts: list[Part] = [documents.spread_table(rows, noun)] if rows else []
    if not looked.probes or looked.campaign.gpus.height < 2:
        return parts
    first = next((row for row in rows if looked.leading and row.workload == looked.leading.workload), None)
    if looked.leading is not None and first is not None and first.fence_pct is not None:
        spread = (
            f"The GPUs differ most in {first.workload}, by {first.fence_pct:.1f} % (n = {first.n:,}): "
            f"{_BELONGS[looked.leading.belongs]}."
        )
        parts.insert(0, spread)
    closely = {probe.probe: figures.closely(probe, looked.fleet.looks) for probe in looked.probes}
    caption = "How its GPUs are distributed. A GPU beyond the edges is drawn at the edge, with its name and size."
    return [*parts, Chart(f"One {noun} closely", caption, closely)]


def _all_findings(looked: Looked, planted: Sequence[Planted] | None) -> Section:
    parts: list[Part] = []
    if looked.judged.rows:
        parts.append(findings(looked.judged.rows, looked.campaign.gpus["gpu"], _DETAILED))
    parts += documents.measure_again(looked.judged)
    if planted is not None:
        parts.append(documents.planted_faults(planted, looked.judged, looked.campaign, looked.names))
    return Section("All findings, with evidence", parts, folded=True, anchor="findings")


def _where(looked: Looked, noun: str) -> list[Part]:
    """The machine, places beside each other, and power."""
    campaign, beside, marked = looked.campaign, looked.beside, looked.fleet.looks
    if campaign.gpus.height < 2 or not looked.probes:
        return []
    large = "" if campaign.gpus.height <= CELLS else f" The fleet is too large for a map of each {noun}."
    charts: list[Part] = [
        Chart(
            "The machine",
            f"{documents.cells_of(looked.fleet.grid)}; a gap: not measured. Colours: how far a GPU is from the median "
            f"of its model, the same for all times.{large}",
            maps(beside, looked.fleet.grid, marked),
        )
    ]
    level = level_of(beside)
    probes = _timed_first(beside)
    by_probe = {probe: beside.filter(pl.col("workload") == probe) for probe in probes}
    if beside[level].drop_nulls().n_unique() > 1:
        strips = {
            probe: figures.strips(figures.Strips.of(rows, figures.GPU_FIGURES[0], level), _marks(rows, looked))
            for probe, rows in by_probe.items()
        }
        places, half = beside[level].n_unique(), figures.STRIPS // 2
        drawn = f" Of {places:,}, the slowest {half} and the fastest {half} are drawn." if places > 2 * half else ""
        caption = f"A strip is a {level}, the slowest first; a point is a GPU. Box: the middle half of its GPUs.{drawn}"
        charts.append(Chart(f"By {level}", caption, strips))
    measured = beside.drop_nulls(["power_w", "slower_pct"])
    n = measured["gpu"].n_unique()
    if n > 1:
        powers = {
            probe: figures.against_power(figures.Powered.of(by_probe[probe]), _marks(by_probe[probe], looked))
            for probe in measured["workload"].unique(maintain_order=True).to_list()
        }
        caption = (
            f"A point is a GPU (n = {n:,} with a known power). Top left: slow at little power, so something holds it "
            f"back. Top right: slow at much power, as poor silicon is.{_points_drawn(n)}"
        )
        charts.append(Chart("Time against power", caption, powers))
    return [Section("Where they stand", charts)]


def _marks(rows: pl.DataFrame, looked: Looked) -> figures.Marks:
    gpus, looks = rows["gpu"].to_list(), looked.fleet.looks
    marked = {row: looks[gpu] for row, gpu in enumerate(gpus) if gpu in looks}
    return figures.Marks([looked.names[gpu] for gpu in gpus], marked)


def _timed_first(rows: pl.DataFrame) -> list[str]:
    """The probes of rows, those that measure no time last: the first one is what a reader sees."""
    timed = set(rows.drop_nulls("slower_pct")["workload"].unique())
    return sorted(rows["workload"].unique(maintain_order=True), key=lambda probe: probe not in timed)


def _over_time(looked: Looked) -> Chart | None:
    """Each probe over the campaigns of the cluster; None where there is one campaign or day."""
    trends = [trend for trend in looked.trends if trend.periods.height > 1]
    if not trends:
        return None
    by = trends[0].by
    changed = any(trend.periods["gpus"].n_unique() > 1 for trend in trends)
    changes = " Not the same GPUs were measured each time." if changed else ""
    odd = list(looked.verdicts)[:_ODD]
    return Chart(
        "Over the campaigns" if by == "campaign" else f"By {by}",
        f"The median GPU of each {by} with its 95 % interval, half and 90 % of the GPUs, and the GPUs with the "
        f"worst findings with theirs; against the median of all {by}s.{changes}",
        {trend.workload: figures.over_campaigns(trend, odd, looked.names) for trend in trends},
    )


def _every_gpu(looked: Looked, noun: str) -> Listing:
    """All GPUs in each probe, as far as they fit into a page."""
    campaign, beside = looked.campaign, looked.beside
    none = "none" if looked.judged.gpus else MISSING
    keys = campaign.gpus["gpu"].to_list()
    probes = _timed_first(beside)
    room = max(1, LISTED_VALUES // (len(_COLUMNS) * max(1, len(keys))))
    cut = f" Of {len(probes)} {noun}s the first {room} are here." if len(probes) > room else ""
    gpus = pl.DataFrame({"gpu": keys})
    values = {
        str(probe): gpus.join(beside.filter(pl.col("workload") == probe), on="gpu", how="left", maintain_order="left")
        .select(column for column, _ in _COLUMNS)
        .get_columns()
        for probe in probes[:room]
    }
    verdicts = looked.verdicts
    words = [
        ", ".join(f"{verdict.kind} ({verdict.state})" for verdict in verdicts.get(gpu, ())) or none for gpu in keys
    ]
    digits = _time_digits(beside)
    columns = [replace(column, digits=digits) if name == "time" else column for name, column in _COLUMNS]
    return Listing(
        "All GPUs",
        f"Every GPU (n = {len(keys):,}) in one {noun}, against the median GPU of its model, with the 95 % interval of "
        "another sitting; n/a where no GPU ran twice. Click a head to sort, a name to see the GPU in every "
        f"{noun}.{cut}",
        {"GPU": [looked.names[gpu] for gpu in keys], "finding": words, **_places_of(campaign.gpus)},
        columns,
        {probe: [column.to_list() for column in columns_of] for probe, columns_of in values.items()},
        noun,
    )


def _places_of(gpus: pl.DataFrame) -> dict[str, list[str | None]]:
    """Where GPUs are and what they are, as far as their names do not say it and they differ in it."""
    of_node = gpus.select((pl.col("name").str.starts_with(pl.col("node")) | pl.col("node").is_null()).all()).item()
    names = ["cabinet", "model"] if of_node else ["node", "cabinet", "model"]
    return {name: gpus[name].to_list() for name in names if gpus[name].n_unique() > 1}


def _time_digits(beside: pl.DataFrame) -> int:
    """Behind the point, for the shortest times to have four digits."""
    shortest = beside["time"].drop_nulls().min()
    return min(max(3 - int(np.floor(np.log10(shortest))), 0), 9) if isinstance(shortest, float) else 0


def _telemetry(looked: Looked) -> Chart:
    lines, gpus = looked.lines, looked.campaign.gpus.height
    assert lines is not None
    kinds = {gpu: ", ".join(dict.fromkeys(row.kind for row in rows)) for gpu, rows in looked.verdicts.items()}
    beside = "" if lines.measured == 1 else ", beside the median of all GPUs at the same point of the same probe"
    choice = "Choose any GPU."
    if len(lines.gpus) < lines.measured:
        choice = (
            f"Of {gpus:,} GPUs, {len(lines.gpus)} can be chosen: those with findings, one like most others, and those "
            "farthest from the median. The page of any other GPU: `whorl report --gpu NAME`."
        )
    return Chart(
        "Power, clock and temperature",
        f"Means over {lines.step_s:.2g} s{beside}; bands are the probes of the GPU, as they were measured. {choice}",
        {
            f"{looked.names[gpu]}: {kinds.get(gpu, 'like most others')}": figures.over_time(
                lines, gpu, looked.names[gpu]
            )
            for gpu in lines.gpus
        },
        opens=True,
    )
