"""Tables and drawings of the report of a campaign of probes, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ..analysis import Variability
from ..analysis.findings import not_of_gpus
from ..analysis.planted import Planted
from ..analysis.probing import Probed
from ..analysis.signatures import FAILED, LOST, SPOKEN, WRONG
from ..analysis.standing_out import LEAST_GPUS, Deviation, Judged, StandsOut
from ..analysis.timelines import Timelines
from ..analysis.verdicts import Judgement
from ..store.conditions import clock_in_words, read
from .page import Drawing
from .report_figures import POINTS, Against, closely, looks, over_time, overview
from .report_map import CELLS, where
from .report_variability import digits, extremes, sizes, times
from .table import MISSING, Table
from .verdict_words import causes, interval, name, percent

LISTED = 40
"""GPUs named in the table of those that stand out; the store has all."""


# -- verdicts ---------------------------------------------------------------------------------------------------


def verdicts(judgement: Judgement) -> Table:
    """What all runs of the cluster say, the worst first."""
    says = (
        f"From all runs of the cluster: {judgement.gpus:,} GPUs judged, {judgement.looks:,} comparisons. Effects are "
        "in % of the peers' level, slower is positive, with the 95 % interval of the level in another sitting. "
        "Suspected: seen in one sitting; confirmed: in two or more."
    )
    if judgement.not_judged:
        first = judgement.not_judged[0]
        more = f", and {len(judgement.not_judged) - 1:,} more" if len(judgement.not_judged) > 1 else ""
        says += f" Not judged: {first.subject} ({first.why}){more}; `whorl verdicts` lists all."
    if not judgement.rows:
        return Table((), (), title="Nothing was found" if judgement.looks else "Nothing could be judged", says=says)
    rows = [
        [
            name(one),
            f"{one.kind}, {one.state}",
            f"{percent(one.effect_pct)} {interval(one.low_pct, one.high_pct)}",
            one.looks,
            causes(one),
            one.action,
        ]
        for one in judgement.rows[:LISTED]
    ]
    header = ["name", "finding", "effect % [95 %]", "because", "cause, %", "what to do"]
    return Table(header, rows, wrapped=(0, 1, 2, 3, 4, 5), cards=True, title="Verdicts", says=says)


# -- who stands out ---------------------------------------------------------------------------------------------


def not_to_rank(judged: Judged, spread: Sequence[Variability]) -> list[str]:
    """For the probes in which GPUs stand out: a sentence where the spread of their times does not belong to GPUs."""
    named = {deviation.probe for one in judged.found for deviation in one.deviations}
    return [
        f"{row.workload}: {row.finding}"
        for row in spread
        if row.level == "run" and row.workload in named and not_of_gpus(row.icc)
    ]


def stand_out(
    judged: Judged, names: Mapping[str, str], planted: Sequence[Planted] | None, spread: Sequence[Variability] = ()
) -> list[Table | Drawing]:
    parts: list[Table | Drawing] = []
    if judged.found:
        rows = [
            [names[one.gpu], SPOKEN[one.cause], how_much(one), one.looks, how_sure(one), one.gpu]
            for one in judged.found[:LISTED]
        ]
        bounds = any(one.low_pct is not None for each in judged.found for one in each.deviations)
        own = "[95 % interval of the GPU's own measurement]; " if bounds else ""
        key = "UUID" if all(one.gpu.startswith("GPU-") for one in judged.found) else "name in the store"
        cut = f" The first {LISTED} of {len(judged.found):,}." if len(judged.found) > LISTED else ""
        parts.append(
            Table(
                ["GPU", "looks like", "how much", "because", "chance", key],
                rows,
                wrapped=(1, 2, 3, 5),
                cards=True,
                title="GPUs that stand out",
                says=f"Compared with the median of their model, in {judged.looks:,} comparisons; {own}"
                "chance: the probability that a fleet of one normal population shows this anywhere; seen: observed "
                f"directly, no test needed.{cut}{''.join(f' {one}' for one in not_to_rank(judged, spread))}",
            )
        )
    else:
        says = (
            f"{judged.looks:,} comparisons; no difference is both larger than chance and large enough to matter."
            if judged.looks
            else f"No comparison was made: it needs at least {LEAST_GPUS} GPUs of a model."
        )
        none = Table(["GPU"], [["none"]], title="GPUs that stand out", says=says)
        parts.append(none if judged.looks else Table((), (), title="GPUs that stand out", says=says))
    if planted:
        remarked = any(one.remark for one in planted)
        rows = [
            [
                names.get(one.gpu, one.gpu),
                one.kind,
                f"found: {SPOKEN.get(one.found, one.found)}" if one.found else "missed",
                *([one.remark] if remarked else []),
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


def how_much(one: StandsOut, most: int = 3) -> str:
    """The evidence of a GPU in words: its largest deviations with their intervals, or what was seen."""
    parts = list(one.seen)
    parts += [deviation_text(deviation) for deviation in one.deviations[:most]]
    if len(one.deviations) > most:
        rest = len(one.deviations) - most
        parts.append(f"and {rest} more probe{'s' if rest > 1 else ''}")
    return "; ".join(parts)


def deviation_text(one: Deviation) -> str:
    """A deviation in words: by how much slower, in what."""
    if not one.probe:
        return f"{one.figure} {one.excess_pct:+.0f} % ({one.value:.3f}, median {one.typical:.3f} {one.unit})"
    bounds = ""
    if one.low_pct is not None and one.high_pct is not None:
        bounds = f" [{one.low_pct:+.1f}, {one.high_pct:+.1f}]"
    return f"{one.probe} {one.excess_pct:+.1f} %{bounds}"


def how_sure(one: StandsOut) -> str:
    """The adjusted probability, or that it was seen."""
    if one.p is None or (one.seen and one.cause in (LOST, WRONG, FAILED)):
        return "seen"
    return "< 1e-6" if one.p < 1e-6 else f"{one.p:.1g}"


def by_reason(judged: Judged) -> dict[str, list[str]]:
    """Why times were not compared, with the probes of which it is said."""
    found: dict[str, list[str]] = {}
    for probe, why in judged.not_judged.items():
        found.setdefault(why, []).append(probe)
    return found


# -- how they differ --------------------------------------------------------------------------------------------


def spread(
    probes: Sequence[Against], by_gpu: Mapping[str, Variability], judged: Judged, noun: str = "probe"
) -> list[Table | Drawing]:
    if not probes:
        return []
    drawn = looks(judged.found)
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


def machine(campaign: Probed, probes: Sequence[Against], found: Sequence[StandsOut]) -> Drawing:
    large = "" if campaign.gpus.height <= CELLS else " The fleet is too large for a map of each probe."
    return Drawing(
        "The machine",
        "A cell is a GPU, a group of cells is a node, a row is a cabinet (at most eight nodes). A gap: no time was "
        f"measured. Symbols as above. The colour scale ends at the 97th percentile of the fleet.{large}",
        where(campaign, probes, looks(found)),
    )


def telemetry(lines: Timelines, found: Sequence[StandsOut], names: Mapping[str, str]) -> Drawing:
    causes = {one.gpu: SPOKEN[one.cause] for one in found}
    return Drawing(
        "Power, clock and temperature",
        f"Means over steps of {lines.step_s:.2g} s"
        + ("" if lines.measured == 1 else ", beside the median of all GPUs at the same time since their first probe")
        + "; bands are the GPU's own probes, as they were measured (warm-up and cool-down lie between), named "
        "where there is room.",
        {
            f"{names[gpu]}: {causes.get(gpu, 'like most others')}": over_time(lines, gpu, names[gpu])
            for gpu in lines.gpus
        },
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
            [_noun(campaign), "GPUs", *(head for _, head, _ in shown)],
            rows,
            range(1, len(shown) + 2),
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


def _noun(campaign: Probed) -> str:
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
        conditions = read(next(iter(runs["conditions"].drop_nulls()), None))
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
