"""The report of a campaign of probes: how much the GPUs differ, which stand out, and how certain that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from ..analysis import Variability
from ..analysis.energy.answers import EnergySummary
from ..analysis.fleet.side_by_side import Against, against, labels, side_by_side
from ..analysis.fleet.timelines import Timelines
from ..analysis.fleet.trend import Trend
from ..analysis.runs.measurements import SOUND
from ..analysis.runs.probing import Probed
from ..analysis.spread.findings import Belongs, Leading
from ..analysis.verdicts import Judgement, Kind, State
from ..analysis.verdicts.judge import ERROR_RATE, MOST_P
from ..analysis.verdicts.levels import RELEVANT
from ..analysis.verdicts.planted import Planted, falsely_named
from . import report_tables as tables
from .page import Section, page
from .report_energy import energy_section
from .table import MISSING, many, second
from .words import listed as some
from .words import short_names as short

_WORDS = {
    **dict.fromkeys(
        (Belongs.GPUS, Belongs.HIDDEN),
        ("Of the differences that repeat, the largest is in {}.", ", which belongs to the GPUs"),
    ),
    **dict.fromkeys(
        (Belongs.OUTLIERS, Belongs.PART),
        ("A part of the difference in {} repeats.", ", a part of which belongs to the GPUs"),
    ),
    **dict.fromkeys(
        (Belongs.UNKNOWN, Belongs.TOO_FEW),
        ("The GPUs differ most in {}; whether that repeats is not known.", "; whether it repeats is not known"),
    ),
    **dict.fromkeys(
        (Belongs.NONE, Belongs.ALIKE),
        ("No difference here belongs to the GPUs; the widest is in {}.", "; it does not belong to the GPUs"),
    ),
}
"""A sentence about the leading workload, and what follows its name under the number."""
SHOWN = 64
"""GPUs whose telemetry can be chosen."""


def probe_report(
    campaign: Probed,
    judged: Judgement,
    spread: Sequence[Variability],
    lines: Timelines | None,
    *,
    planted: Sequence[Planted] | None = None,
    notes: Sequence[str] = (),
    trends: Sequence[Trend] = (),
    leading: Leading | None = None,
    energy: EnergySummary | None = None,
) -> str:
    """The page as HTML.

    `spread`: the rows of `analysis.variability` for this campaign's runs; `lines`: the telemetry of the GPUs to
    show (`to_show`); `planted`: the faults that are known to be there, None where the GPUs are real; `trends`: of the
    probes, over all campaigns of the cluster; `leading`: the workload that is named first; `energy`: of the cluster,
    None where nothing was metered.
    """
    names = labels(campaign.gpus)
    probes = against(campaign, names)
    by_gpu = {row.workload: row for row in spread if row.level == "gpu"}
    first = None if leading is None else by_gpu.get(leading.workload)
    if first is not None and (first.fence_pct is None or first.n < 2):
        first = None
    belongs = Belongs.UNKNOWN if leading is None else leading.belongs
    found = judged.by_key(campaign.gpus)
    n, models = campaign.gpus.height, campaign.models
    made = f"{'simulated ' if campaign.simulated else ''}{' and '.join(models)}".strip()
    upto = "up to " if campaign.maybe_twice else ""
    what = f"{upto}{n:,} {made} GPU{'s' if n != 1 else ''}".replace("  ", " ")
    noun = tables.noun_of(campaign)
    sections = [
        Section("Which stand out", "", tables.stand_out(judged, campaign.gpus, planted, names)),
        Section("How much they differ" if n > 1 else "Times", "", tables.spread(probes, by_gpu, found, noun)),
    ]
    beside = side_by_side(campaign)
    if n > 1 and probes:
        sections.append(
            Section(
                "Where they stand",
                "",
                [tables.machine(campaign, beside, found), *tables.by_places(beside, found, names)],
            )
        )
        if powers := tables.by_power(beside, found, names, noun):
            sections.append(Section("Power", "", powers))
    if over := tables.over_all_campaigns(trends, found, names):
        sections.append(Section("Trend", "", over))
    if n > 1 and not beside.is_empty():
        sections.append(Section("Every GPU", "", [tables.every_gpu(campaign, beside, judged, names)]))
    if lines is not None and lines.gpus:
        drawn = tables.telemetry(lines, found, names, n)
        sections.append(Section("One GPU over the campaign", "", [drawn]))
    if energy is not None:
        sections.append(energy_section(energy))
    if last := [*tables.figures(campaign), *tables.conditions(campaign)]:
        sections.append(Section("Figures, conditions and versions", "", last))
    return page(
        f"Probes on {what}" if campaign.campaign else f"Runs of cluster {campaign.cluster}",
        _summary(campaign, judged, planted, what, first=first, belongs=belongs),
        sections,
        conditions=_about(campaign),
        notes=[*_notes(campaign, judged, probes), *notes],
        tiles=_tiles(campaign, judged, planted, first=first, belongs=belongs),
    )


def to_show(campaign: Probed, judged: Judgement) -> list[str]:
    """The GPUs whose telemetry can be chosen: those that stand out, the worst first, one like most others, and as many
    more as a page holds, those farthest from the median first."""
    read = set(campaign.runs.drop_nulls("power_w")["gpu"])
    found = judged.by_key(campaign.gpus)
    there = sorted(found, key=lambda gpu: found[gpu][0].kind is Kind.LOST)  # of a lost one there is less to see
    chosen = [gpu for gpu in there if gpu in read][: SHOWN - 1]
    calm = campaign.sound.filter(~pl.col("gpu").is_in(list(found)))
    if not calm.is_empty():
        far = (pl.col("value") / pl.col("value").median().over("model", "workload")).log().abs().alias("far")
        by_gpu = calm.with_columns(far).group_by("gpu").agg(pl.col("far").mean(), pl.len().alias("runs"))
        most = by_gpu.filter(pl.col("runs") == pl.col("runs").max()).sort("far", "gpu")
        if not chosen:
            chosen.append(str(most["gpu"][-1]))
        if str(most["gpu"][0]) not in chosen:
            chosen.append(str(most["gpu"][0]))
        others = by_gpu.sort("far", "gpu", descending=[True, False])["gpu"]
        chosen += [gpu for gpu in others if gpu not in chosen and gpu in read][: SHOWN - len(chosen)]
    return chosen


# -- the head ---------------------------------------------------------------------------------------------------


def _summary(
    campaign: Probed,
    judged: Judgement,
    planted: Sequence[Planted] | None,
    what: str,
    *,
    first: Variability | None,
    belongs: Belongs,
) -> list[str]:
    runs, ok = campaign.runs.height, campaign.runs.filter(SOUND).height
    nodes = campaign.gpus["node"].drop_nulls().n_unique()
    on = f" on {nodes:,} node{'s' if nodes != 1 else ''}" if nodes else ""
    sentences = [
        f"{what[0].upper()}{what[1:]}{on} ran {_ran(campaign)}: {many(runs, 'run')}"
        + (", all of them valid." if ok == runs else f", {ok:,} of them valid.")
    ]
    if campaign.cut_says:
        sentences.append(f"Not complete: {campaign.cut_says}.")
    if first is not None:
        sentences.append(
            f"{_WORDS[belongs][0].format(first.workload)} Without outliers, its times spread over {_fenced(first)} of "
            f"the median, n = {first.n:,} GPUs; the slowest GPU takes {_longer_pct(first):.1f} % longer than the "
            "median GPU."
        )
    sentences.append(_named(judged))
    if planted is not None:
        sentences.append(_caught(planted, falsely_named(planted, judged, campaign)))
    return sentences


def _ran(campaign: Probed) -> str:
    return many(len(campaign.probes), tables.noun_of(campaign))


def _fence(row: Variability) -> float:
    return row.fence_pct or 0.0


def _longer_pct(row: Variability) -> float:
    return 100 * ((row.worst_over_median or 1.0) - 1)


def _fenced(row: Variability) -> str:
    bounds = row.interval.get("fence_pct")
    places = 1 if _fence(row) >= 1 else 2
    shown = "" if bounds is None else f" [{bounds[0]:.{places}f}, {bounds[1]:.{places}f}]"
    return f"{row.fence_pct:.{places}f} %{shown}"


def _named(judged: Judgement) -> str:
    found = judged.rows
    if not found:
        return (
            "No GPU stands out: no difference is both larger than chance and large enough to matter, no result was "
            "wrong, and no GPU failed."
            if judged.gpus
            else "No GPU could be judged: the notes at the end say why."
        )
    called = short(one.name for one in found)
    listed = "; ".join(f"{called[one.name]} ({one.kind}, {one.state})" for one in found[:6])
    more = f"; and {len(found) - 6} more" if len(found) > 6 else ""
    rate = (
        f" Of the GPUs that are named for their figures, at most {100 * ERROR_RATE:g} in 100 should be healthy."
        if any(one.q is not None for one in found)
        else ""
    )
    suspected = any(one.state is State.SUSPECTED for one in judged.rows)
    again = " Measure again on another day: what is suspected was seen once." if suspected else ""
    return f"{many(len(found), 'finding')}: {listed}{more}.{rate}{again}"


def _caught(planted: Sequence[Planted], healthy: Sequence[str]) -> str:
    others, caught = len(healthy), sum(bool(one.found) for one in planted)
    falsely = (
        "no healthy GPU was named" if not others else f"{others} healthy GPU{'s were' if others > 1 else ' was'} named"
    )
    if not planted:
        return f"No fault was planted; {falsely}."
    total = len(planted)
    of = (
        "The planted fault was"
        if total == 1
        else f"Of {total} planted faults {caught} {'was' if caught == 1 else 'were'}"
    )
    if total == 1:
        return f"{of} {'found' if caught else 'missed'}; {falsely}."
    return f"{of} found{'' if caught == total else f' and {total - caught} missed'}; {falsely}."


def _tiles(
    campaign: Probed,
    judged: Judgement,
    planted: Sequence[Planted] | None,
    *,
    first: Variability | None,
    belongs: Belongs,
) -> list[tuple[str, str]]:
    n = campaign.gpus.height
    probes, _, ran = _ran(campaign).partition(" ")
    upto = "at most: some may have two names" if campaign.maybe_twice else "measured"
    tiles = [(f"{n:,}", f"GPU{'' if n == 1 else 's'} {upto}"), (probes, ran)]
    if first is not None:
        tiles.append((f"{_fence(first):.1f} %", f"spread of times in {first.workload}{_WORDS[belongs][1]}"))
    named = len(judged.by_key(campaign.gpus))
    if judged.gpus or judged.rows:
        tiles.append((f"{named:,}", "GPU stands out" if named == 1 else "GPUs stand out"))
    else:
        tiles.append((MISSING, "GPUs stand out: none could be judged"))
    if planted:
        caught = sum(bool(one.found) for one in planted)
        tiles.append((f"{caught} of {len(planted)}", "planted faults found"))
    return tiles


# -- conditions and notes ---------------------------------------------------------------------------------------


def _about(campaign: Probed) -> dict[str, str]:
    began = campaign.runs.select(pl.col("began").min()).item()
    ended = campaign.runs.select(pl.coalesce("ended", "began").max()).item()  # imported runs may say no end
    stated = campaign.runs["conditions"].struct.unnest()
    about = {
        "cluster": campaign.cluster,
        "campaign": campaign.campaign or "none: all runs of the cluster",
        **({"models": ", ".join(campaign.models)} if campaign.models else {}),
        "measured": (MISSING if began is None else f"{second(began)} to {second(ended)} UTC")
        + (", simulated" if campaign.simulated else ""),
    }
    for key, name in (
        ("suite", "suite"),
        ("neighbours", "neighbours"),
        ("power_limit_w", "power limit, W"),
        ("seed", "seed of the inputs"),
        ("asked_precision", "target half width of the median's 95 % interval, as a share"),
        ("time_limit_s", "time limit of a probe, s"),
    ):
        values = _distinct(stated[key].drop_nulls().unique().sort())
        if values:
            about[name] = ", ".join(values)
    if versions := software(campaign.runs["versions"]):
        about["versions"] = versions
    return about


def software(versions: pl.Series) -> str:
    """What ran, and in which versions: `cuda 12.4, driver 570.1/570.2`. `versions`: of `runs`."""
    found = {one.name: one.drop_nulls().unique().sort().to_list() for one in versions.struct.unnest()}
    return ", ".join(f"{name} {'/'.join(every)}" for name, every in sorted(found.items()) if every)


def _notes(campaign: Probed, judged: Judgement, probes: Sequence[Against]) -> list[str]:
    rules = [
        f"A GPU stands out if chance does not explain how far it is from the GPUs of its model and the difference "
        f"matters: at least {100 * RELEVANT:g} % of a time. {judged.looks:,} comparisons were made. A chance above "
        f"{MOST_P:g} names no GPU, and of the GPUs that are named at most {100 * ERROR_RATE:g} in 100 should be "
        "healthy (Benjamini and Hochberg). What a node or a batch shares is said once, of the node or the batch. "
        "A cause is a hint, not a diagnosis.",
    ]
    notes = rules if judged.gpus else []
    notes += [f"Not judged: {some(subjects)} ({why})." for why, subjects in tables.by_reason(judged).items()]
    if campaign.untrusted_says:
        notes.append(f"{campaign.untrusted_says[0].upper()}{campaign.untrusted_says[1:]}.")
    untimed = [probe for probe in campaign.probes if probe not in {*campaign.untrusted, *(one.probe for one in probes)}]
    if untimed:
        notes.append(f"Not compared because they measure no time: {', '.join(untimed)}.")
    if campaign.maybe_twice:
        notes.append(
            f"For {campaign.maybe_twice:,} GPUs only the UUID is known, for others only the place. The files do not "
            "say which are the same, so a GPU may be counted under two names."
        )
    if campaign.simulated:
        notes.append("These GPUs are simulated: no number here was measured on a real GPU.")
    return notes


def _distinct(values: Iterable[object]) -> list[str]:
    texts = (f"{value:g}" if isinstance(value, float) else str(value) for value in values if value is not None)
    return list(dict.fromkeys(texts))
