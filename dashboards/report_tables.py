"""Tables and drawings of the report of a campaign of probes, section by section."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..analysis import Variability
from ..analysis.fleet.side_by_side import Against, by_place, level_of
from ..analysis.fleet.timelines import Timelines
from ..analysis.fleet.trend import Trend
from ..analysis.runs.probing import Probed
from ..analysis.verdicts import Judgement, Level, Verdict
from ..analysis.verdicts.planted import Planted
from ..store.vocabulary import clock_in_words
from .documents.evidence import action, because, chances, remark, size, why_not
from .documents.verdicts import least
from .figures.campaigns import over_campaigns
from .figures.looks import Look, looks
from .figures.map import CELLS, maps
from .figures.places import PLACES, places
from .figures.power import Powered, against_power
from .figures.spread import POINTS, closely, overview
from .figures.timeline import over_time
from .listing import Listing, Numbers
from .page import Drawing
from .report_variability import digits, extremes, sizes, times
from .table import MISSING, Table, many

if TYPE_CHECKING:
    from .figures.drawing import Figure

LISTED = 40
"""Verdicts in the table; `whorl verdicts --json` has all."""
LISTED_VALUES = 1_000_000
"""Numbers in the table of all GPUs, which are two megabytes of the page."""
ODD = 4
"""GPUs with findings that are drawn over the campaigns."""
_LISTED = (
    ("slower_pct", Numbers("slower, %", 2, signed=True)),
    ("slower_pct_low", Numbers("95 % from", 2, signed=True)),
    ("slower_pct_high", Numbers("to", 2, signed=True)),
    ("time", Numbers("time, ms", 4)),
    ("power_w", Numbers("power, W", 1)),
    ("sm_clock_mhz", Numbers("clock, MHz", 0)),
    ("temperature_c", Numbers("temp., °C", 1)),
    ("n", Numbers("runs", 0)),
)


# -- who stands out ---------------------------------------------------------------------------------------------


def stand_out(
    judged: Judgement, gpus: pl.DataFrame, planted: Sequence[Planted] | None, names: Mapping[str, str]
) -> list[Table | Drawing]:
    """The verdicts, and what was planted. `gpus`: those of the campaign; `names`: of them, by key."""
    parts: list[Table | Drawing] = []
    below = _below(judged)
    if judged.rows:
        parts.append(_findings(judged, gpus))
    else:
        says = (
            f"{judged.looks:,} comparisons; no difference is both larger than chance and large enough to matter.{below}"
            if judged.gpus
            else "No comparison was made: no GPU could be judged. The notes at the end say why."
        )
        none = Table(["GPU"], [["none"]], title="What was found", says=says)
        parts.append(none if judged.gpus else Table((), (), title="What was found", says=says))
    if planted:
        remarked = any(remark(fault) for fault in planted)
        rows = [
            [
                names.get(one.gpu, one.gpu),
                one.kind,
                f"found: {one.found}" if one.found else "missed",
                *([remark(one)] if remarked else []),
                one.gpu,
            ]
            for one in sorted(planted, key=lambda one: (bool(one.found), one.kind, one.gpu))
        ]
        parts.append(
            Table(
                ["GPU", "planted", "result", *(["remark"] if remarked else []), "UUID"],
                rows,
                wrapped=(3,) if remarked else (),
                cards=True,
                title="Planted faults",
                says="The faults that were put into the simulated GPUs. The findings above do not use this list.",
            )
        )
    return parts


def _findings(judged: Judgement, gpus: pl.DataFrame) -> Table:
    keys = {id(one): gpu for gpu, own in judged.by_key(gpus).items() for one in own if one.level is Level.GPU}
    cut = f" The first {LISTED} of {len(judged.rows):,}." if len(judged.rows) > LISTED else ""
    return Table(
        ["what", "finding", "effect and causes", "because", "what to do", "seen, and how sure"],
        [_row(one, keys.get(id(one), one.name)) for one in judged.rows[:LISTED]],
        wrapped=(0, 1, 2, 3, 4, 5),
        cards=True,
        title="What was found",
        says=f"In {judged.looks:,} comparisons. Effect: how much more than its peers, in % of their level; slower, "
        "hotter and more power are positive. Suspected: seen in one sitting; confirmed: in two or more, at least 6 "
        "hours apart. p: the chance that a healthy GPU shows this; q: the share of false findings among those at least "
        f"as clear; without p it was seen, which needs no test.{_below(judged)}{cut}",
    )


def _below(judged: Judgement) -> str:
    said = least(judged.smallest)
    return f" {said}" if said else ""


def _row(one: Verdict, key: str) -> list[str]:
    counted = "" if one.level in (Level.GPU, Level.RANK) else f" ({many(len(one.gpus), 'GPU')})"
    what = one.name if one.level is Level.GPU else f"{one.level} {one.name}{counted}"
    days = dict.fromkeys(f"{at:%Y-%m-%d}" for at in (one.first_seen, one.last_seen) if at is not None)
    return [
        what if key == one.name else f"{what} ({key})",
        f"{one.kind}, {one.state}",
        size(one) or MISSING,
        because(one),
        action(one),
        "; ".join([" to ".join(days) or MISSING, *chances(one)]),
    ]


def by_reason(judged: Judgement) -> dict[str, list[str]]:
    """Why something was not judged, with the subjects of which it is said."""
    found: dict[str, list[str]] = {}
    for no in judged.not_judged:
        found.setdefault(why_not(no), []).append(no.subject)
    return found


# -- how they differ --------------------------------------------------------------------------------------------


def spread(
    probes: Sequence[Against],
    by_gpu: Mapping[str, Variability],
    verdicts: Mapping[str, Sequence[Verdict]],
    noun: str = "probe",
) -> list[Table | Drawing]:
    if not probes:
        return []
    drawn = looks(verdicts)
    n = max(len(one.gpus) for one in probes)
    thin = f" Only {POINTS} GPUs of each probe are drawn, and all that stand out." if n > POINTS else ""
    drawings = [
        Drawing(
            f"All {noun}s",
            f"Each point is a GPU (n = {n:,}), against the median of its model; boxes: the middle half, whiskers: 5th "
            f"to 95th percentile. Within 1 % the scale is linear, beyond it is logarithmic.{thin}",
            {"": overview(probes, drawn)},
        ),
        Drawing(
            f"One {noun} closely",
            "The distribution of its GPUs. A GPU beyond the edges is drawn at the edge, with its place and its size.",
            {one.probe: closely(one, drawn) for one in probes},
        ),
    ]
    known = [row for one in probes if (row := by_gpu.get(one.probe)) is not None]
    parts: list[Table | Drawing] = [*drawings]
    if n < 2:
        return [times(known)] if known else []
    return [*parts, sizes(known, noun), extremes(known, noun)] if known else parts


def machine(campaign: Probed, beside: pl.DataFrame, verdicts: Mapping[str, Sequence[Verdict]]) -> Drawing:
    noun = noun_of(campaign)
    large = "" if campaign.gpus.height <= CELLS else f" The fleet is too large for a map of each {noun}."
    return Drawing(
        "The machine",
        "A cell is a GPU, a group of cells is a node, a row is a cabinet (at most eight nodes). A gap: no time was "
        f"measured. Colours say how far a GPU is from the median of its model in this {noun}: grey is the median. The "
        "colours of all times are the same; small differences stay pale, as the scale is linear near the median and "
        f"logarithmic beyond.{large}",
        maps(beside, campaign.gpus, looks(verdicts)),
    )


def by_places(
    beside: pl.DataFrame, verdicts: Mapping[str, Sequence[Verdict]], names: Mapping[str, str]
) -> list[Drawing]:
    """Boxes by cabinet or node; none where fewer than two are known."""
    level = level_of(beside)
    quantiles = by_place(beside, level)
    many = quantiles["place"].n_unique()
    if many < 2:
        return []
    drawn = looks(verdicts)
    cut = f" Only the {PLACES // 2} slowest and the {PLACES // 2} fastest {level}s are drawn." if many > PLACES else ""
    sizes_of = sorted(quantiles["n"].to_list())
    each = f"{sizes_of[0]}" if sizes_of[0] == sizes_of[-1] else f"{sizes_of[0]} to {sizes_of[-1]}"
    return [
        Drawing(
            f"By {level}",
            f"A box is a {level} (n = {each} GPUs each); the {level} with the slowest median stands first. Boxes: the "
            "middle half of the GPUs, the line: their median, whiskers: 5th to 95th percentile. Symbols: GPUs with "
            f"findings; one that is far out is drawn at the edge, with its size.{cut}",
            {
                str(probe): places(
                    quantiles.filter(pl.col("workload") == probe),
                    beside.filter(pl.col("workload") == probe),
                    level,
                    names,
                    drawn,
                )
                for probe in _timed_first(quantiles)
            },
        )
    ]


def _timed_first(rows: pl.DataFrame) -> list[str]:
    """The probes of rows, those that measure no time last: the first one is what a reader sees."""
    timed = set(rows.drop_nulls("slower_pct")["workload"])
    return sorted(rows["workload"].unique(maintain_order=True), key=lambda probe: probe not in timed)


def by_power(
    beside: pl.DataFrame, verdicts: Mapping[str, Sequence[Verdict]], names: Mapping[str, str], noun: str
) -> list[Drawing]:
    """Time against power; nothing where no power is known of two GPUs."""
    known = beside.drop_nulls(["power_w", "slower_pct"])
    n = known["gpu"].n_unique()
    if n < 2:
        return []
    thin = f" Only {POINTS} of them are drawn, and all that have findings." if n > POINTS else ""
    return [
        Drawing(
            "Time against power",
            f"A point is a GPU (n = {n:,} with a known power), in one {noun}. Top left: slow though it draws "
            "little, so something holds it back. Top right: slow though it draws much, as a GPU of poor silicon. "
            f"Power as the sensors report it.{thin}",
            {
                str(probe): _against_power(known.filter(pl.col("workload") == probe), names, looks(verdicts))
                for probe in known["workload"].unique(maintain_order=True).to_list()
            },
        )
    ]


def _against_power(rows: pl.DataFrame, names: Mapping[str, str], drawn: Mapping[str, Look]) -> Figure:
    gpus = rows["gpu"].to_list()
    marked = {row: drawn[gpu] for row, gpu in enumerate(gpus) if gpu in drawn}
    return against_power(Powered.of(rows), [names[gpu] for gpu in gpus], marked)


def every_gpu(campaign: Probed, beside: pl.DataFrame, judged: Judgement, names: Mapping[str, str]) -> Listing:
    """All GPUs in each probe, as far as they fit into a page."""
    verdicts, none = judged.by_key(campaign.gpus), "none" if judged.gpus else MISSING
    noun, keys = noun_of(campaign), campaign.gpus["gpu"].to_list()
    probes = _timed_first(beside)
    room = max(1, LISTED_VALUES // (len(_LISTED) * max(1, len(keys))))
    cut = f" Of {len(probes)} {noun}s the first {room} are here." if len(probes) > room else ""
    gpus = pl.DataFrame({"gpu": keys})
    values = {
        str(probe): gpus.join(beside.filter(pl.col("workload") == probe), on="gpu", how="left", maintain_order="left")
        .select(column for column, _ in _LISTED)
        .get_columns()
        for probe in probes[:room]
    }
    found = [", ".join(f"{one.kind} ({one.state})" for one in verdicts.get(gpu, ())) or none for gpu in keys]
    return Listing(
        "All GPUs",
        f"Every GPU (n = {len(keys):,}) in one {noun}: its level, and how much slower it is than the median GPU of its "
        "model, with the 95 % interval of another sitting; n/a where no GPU ran twice. Click a head to sort, a name to "
        f"see the GPU in every {noun}.{cut}",
        {"GPU": [names[gpu] for gpu in keys], "finding": found, **_telling(campaign.gpus)},
        [replace(head, digits=_time_digits(beside)) if name == "time" else head for name, head in _LISTED],
        {probe: [column.to_list() for column in columns] for probe, columns in values.items()},
        noun,
    )


def _telling(gpus: pl.DataFrame) -> dict[str, list[str | None]]:
    """Where GPUs are and what they are, as far as their names do not say it and they differ in it."""
    of_node = gpus.select((pl.col("name").str.starts_with(pl.col("node")) | pl.col("node").is_null()).all()).item()
    shown = ["cabinet", "model"] if of_node else ["node", "cabinet", "model"]
    return {name: gpus[name].to_list() for name in shown if gpus[name].n_unique() > 1}


def _time_digits(beside: pl.DataFrame) -> int:
    """Behind the point, for the shortest times to have four digits."""
    shortest = beside["time"].drop_nulls().min()
    return min(max(3 - math.floor(math.log10(shortest)), 0), 9) if isinstance(shortest, float) else 0


def over_all_campaigns(
    trends: Sequence[Trend], verdicts: Mapping[str, Sequence[Verdict]], names: Mapping[str, str]
) -> list[Drawing]:
    """Each probe over the campaigns of the cluster; nothing where there is one campaign or day."""
    known = [one for one in trends if one.periods.height > 1]
    if not known:
        return []
    by = known[0].by
    changed = any(one.periods["gpus"].n_unique() > 1 for one in known)
    other = " Not the same GPUs were measured each time." if changed else ""
    return [
        Drawing(
            "Over the campaigns" if by == "campaign" else f"By {by}",
            f"The median GPU of each {by} with its 95 % interval, half and 90 % of the GPUs, and the GPUs with the "
            f"worst findings with theirs; against the median of all {by}s.{other}",
            {one.workload: over_campaigns(one, list(verdicts)[:ODD], names) for one in known},
        )
    ]


def telemetry(
    lines: Timelines, verdicts: Mapping[str, Sequence[Verdict]], names: Mapping[str, str], gpus: int
) -> Drawing:
    kinds = {gpu: ", ".join(dict.fromkeys(one.kind for one in own)) for gpu, own in verdicts.items()}
    return Drawing(
        "Power, clock and temperature",
        f"Means over steps of {lines.step_s:.2g} s"
        + (
            ""
            if lines.measured == 1
            else ", beside the median of all GPUs at the same point of the same probe, or of the pause before it"
        )
        + "; bands are the GPU's own probes, as they were measured (warm-up and cool-down lie between), named "
        f"where there is room. {_choice(lines, gpus)}",
        {
            f"{names[gpu]}: {kinds.get(gpu, 'like most others')}": over_time(lines, gpu, names[gpu])
            for gpu in lines.gpus
        },
        opens=True,
    )


def _choice(lines: Timelines, gpus: int) -> str:
    if len(lines.gpus) >= lines.measured:
        return "Choose any GPU."
    return (
        f"Of {gpus:,} GPUs, {len(lines.gpus)} can be chosen: those with findings, one like most others, and those "
        "farthest from the median. The page of any other GPU: whorl report --gpu NAME."
    )


# -- figures and conditions -------------------------------------------------------------------------------------

_SHOWN_FIGURES: tuple[tuple[str, str, bool], ...] = (  # column, head, whether its percentiles are shown
    ("power_w", "power, W", True),
    ("energy", "energy, J", True),
    ("rate", "GFLOP/s", False),
    ("operation_rate", "Gop/s", False),
    ("bandwidth", "GB/s", False),
    ("latency", "latency, ns", False),
    ("efficiency", "GFLOP/J", False),
    ("sm_clock_mhz", "clock, MHz", False),
    ("temperature_c", "temp., °C", False),
)


def figures(campaign: Probed) -> list[Table]:
    shown = [one for one in _SHOWN_FIGURES if campaign.runs[one[0]].is_not_null().any()]
    if not shown:
        return []
    rows = []
    for probe in campaign.probes:
        runs = campaign.runs.filter(pl.col("workload") == probe)
        rows.append([probe, f"{runs['gpu'].n_unique():,}", *(_middle(runs[name], wide) for name, _, wide in shown)])
    energy = any(name in ("energy", "efficiency") for name, _, _ in shown)
    one_gpu = campaign.gpus.height == 1
    return [
        Table(
            [noun_of(campaign), "GPUs", *(head for _, head, _ in shown)],
            rows,
            range(1, len(shown) + 2),
            cards=True,
            title="Energy and rates" if energy else "Power, clock and temperature",
            says=("" if one_gpu else "Medians of the GPUs (5th to 95th percentile). ")
            + (
                "Energy is that of one repetition, by the energy counter where there is one, else power times time; "
                "energy and power as the sensors report them."
                if energy
                else "As the files give them."
            ),
        )
    ]


def noun_of(campaign: Probed) -> str:
    """What a campaign runs is a probe; what other tools measured is a workload."""
    return "probe" if campaign.campaign else "workload"


def _middle(values: pl.Series, wide: bool) -> str:
    known = values.drop_nulls().cast(pl.Float64).to_numpy()
    if not len(known):
        return MISSING
    low, middle, high = (digits(float(q), 3) for q in np.quantile(known, (0.05, 0.5, 0.95)))
    return f"{middle} ({low} to {high})" if wide and low != high else middle


def conditions(campaign: Probed) -> list[Table]:
    """What ran, where the runs say so: imported ones do not."""
    if not campaign.campaign:
        return []
    rows = []
    for probe in campaign.probes:
        runs = campaign.runs.filter(pl.col("workload") == probe)
        conditions: dict[str, Any] = next(iter(runs["conditions"].drop_nulls()), {})
        window = (runs["ended"] - runs["began"]).dt.total_nanoseconds().drop_nulls() / 1e9
        repeats = runs["repeats"].drop_nulls()
        ended = runs.group_by("ended_by").len().sort("len", descending=True).drop_nulls()
        rows.append(
            [
                probe,
                ", ".join(sorted(runs["probe_version"].drop_nulls().unique())),
                _middle_of(repeats, ",.0f"),
                _middle_of(window, ".2f", " s"),
                "; ".join(f"{why} {many:,}" for why, many in ended.iter_rows()) or MISSING,
                _counted(conditions.get("flop")),
                _counted(conditions.get("bytes")),
                str(conditions.get("path") or MISSING),
                clock_in_words(conditions.get("clock"), conditions.get("locked_clock_mhz")) or MISSING,
                _seconds(conditions.get("warm_up_s")),
                str(conditions.get("input") or MISSING),
            ]
        )
    header = [
        "probe", "version", "repeats", "window", "ended by", "FLOP", "bytes", "path", "clock", "warm-up", "input",
    ]  # fmt: skip
    return [
        Table(
            header,
            rows,
            (2, 3, 5, 6, 9),
            wrapped=(10,),
            cards=True,
            title="What ran",
            says="Repeats and window: medians over the GPUs. Ended by: how many runs ended because the interval was "
            "narrow enough (precise), at a limit (of time, of repeats), with all work done (complete), or failed. FLOP "
            "and bytes: exact, for one repetition. The other columns are those of the first GPU's run; the store has "
            "them for every run.",
        )
    ]


def _middle_of(values: pl.Series, spec: str, unit: str = "") -> str:
    known = values.to_numpy()
    return f"{np.median(known):{spec}}{unit}" if len(known) and known.max() > 0 else MISSING


# -- small things -----------------------------------------------------------------------------------------------


def _seconds(value: object) -> str:
    return f"{value:.3g} s" if isinstance(value, int | float) else MISSING


def _counted(value: object) -> str:
    """A large count, to three digits, with a prefix."""
    if not isinstance(value, int | float) or not value:
        return "0" if value == 0 else MISSING
    size = float(value)
    for prefix in ("", " k", " M", " G", " T", " P"):
        if abs(size) < 999.5:  # what is not rounded up to four digits
            return f"{size:.3g}{prefix}"
        size /= 1000
    return f"{value:.3g}"
