"""The evidence page of one GPU, for the vendor that takes it back: what it is, what was found, and how that is known.

One file that needs no network. The figures are those of the dashboard's page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from .. import __version__
from ..analysis.one_gpu.past import Scatter
from ..analysis.one_gpu.runs import timed
from ..analysis.one_gpu.standing import Standing
from ..analysis.one_gpu.whole import OneGpu, whole
from ..analysis.verdicts import Verdict
from ..store.vocabulary import clock_in_words
from . import gpu_words as say
from .documents.evidence import why_not
from .documents.verdicts import least
from .figures import bands, history, reasons, timeline, waterfall
from .page import Drawing, Facts, Section, page, refuse_unwritable, write_page
from .report import software
from .table import MISSING, Table, count, many, minute, number
from .words import interval, percent

if TYPE_CHECKING:
    from ..store import Store

_DRAWN = 12  # workloads whose past is drawn
_RUNS = 200  # in the table, the newest
_EVENTS = 60
PROBED = "Every GPU ran the same work of known size, under conditions that are stated with each run."
IMPORTED = (
    "Imported from files of other tools: {} of {}. Which work these runs did, and under which conditions, is known as "
    "far as the files say; n/a is what they do not say."
)
METHOD = (
    "The time that a run took is compared with that of the peers: the other GPUs of the same model. Runs without a "
    "pause of 6 hours are one sitting; the level of a GPU is the median of its sittings, without what a day did to all "
    "GPUs.",
    "An interval in brackets holds the level in another sitting with a chance of 95 %. A GPU is named only where its "
    "difference is larger than chance and large enough to matter (1 % of the time): of the GPUs that are named, at "
    "most 3 in 100 should be healthy. p is the chance that a healthy GPU shows this; q is the share of healthy ones "
    "among all findings that are at least as clear. A finding is suspected after one sitting and confirmed after two.",
    "Causes are what clock, power, temperature and the driver's counters say. They add up to the effect, and are a "
    "hint, no diagnosis.",
)


def gpu_report(
    store: Store | str | Path,
    out: str | Path,
    gpu: str,
    cluster: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> OneGpu:
    """Write the evidence page of the GPU that `gpu` means, as `whorl report --gpu` does. InputError, StoreError."""
    from ..store import Store

    refuse_unwritable(Path(out), "--out")
    opened = store if isinstance(store, Store) else Store.open(store)
    found = whole(opened, gpu, cluster, progress=progress)
    write_page(Path(out), gpu_page(found, str(opened.root)))
    return found


def gpu_page(found: OneGpu, store: str) -> str:
    """The page as HTML; it needs no network. `store`: its folder, for commands."""
    verdicts = () if found.found is None else found.found.verdicts
    said = list(say.notes(found.row, found.runs, found.found, found.events, simulated=found.simulated, store=store))
    summary = [say.verdict_in_short(found.found, found.runs), *(one.says for one in said if one.matters)]
    told = [say.told(one, found.name) for one in verdicts]
    summary += [f"What to do: {action}" for action in dict.fromkeys(one.action for one in told)]
    summary += [one.says for one in told]
    if found.found is not None and not verdicts and (smallest := least(found.found.smallest)) is not None:
        summary.append(smallest)
    no = () if found.found is None else found.not_judged
    model = found.row["model"] or "a GPU of unknown model"
    return page(
        f"GPU {found.name}: {model}",
        summary,
        list(_sections(found, verdicts)),
        notes=[
            *(f"{one.says} {one.command}".strip() for one in said if not one.matters),
            *(f"{gap.subject}: {why_not(gap)}" for gap in no),
        ],
        tiles=say.summary(found.stands, found.found),
    )


def _sections(found: OneGpu, verdicts: Sequence[Verdict]) -> Iterator[Section]:
    yield Section("Which GPU", "", [_identity(found)])
    if verdicts:
        yield Section("What was found", "", [*(_finding(one, found.name) for one in verdicts), *_causes(verdicts)])
    if found.stands:
        older = say.older_figures(found.figures, found.stands, timed(found.runs).height)
        yield Section("Beside its peers", older, [*_bands(found.stands), _figures(found.stands)])
    if found.lines:
        yield Section("Its past", "", list(_past(found)))
    clock = list(_clock(found))
    if clock:
        yield Section("Its clock and power", "", clock)
    if found.runs.height:
        yield Section("Runs and their conditions", "", [_runs(found.runs)])
    if found.events:
        yield Section("What happened", "", [_events(found)])
    if found.alike:
        yield Section("GPUs like it", "", [_alike(found)])
    yield Section("How it was measured", "", [Table((), (), says=text) for text in _method(found.runs)])


def _method(runs: pl.DataFrame) -> Iterator[str]:
    """How its runs were measured and judged, and what wrote the page, and when."""
    imported = int(runs["probe_version"].is_null().sum())
    if imported < runs.height:
        probes = (
            runs.drop_nulls("probe_version").select("plain", "probe_version").unique().sort("plain", "probe_version")
        )
        named = ", ".join(f"{probe} {version}" for probe, version in probes.iter_rows())
        ran = software(runs["versions"])
        yield f"{PROBED} Versions of the probes: {named}." + (f" Software: {ran}." if ran else "")
    if imported:
        yield IMPORTED.format(f"{imported:,}", many(runs.height, "run"))
    yield from METHOD
    yield f"whorl {__version__} wrote this page on {minute(datetime.now(UTC))} UTC."


def _identity(found: OneGpu) -> Facts:
    began = found.runs["began"].drop_nulls()
    measured = f"{found.runs.height:,}"
    if len(began):
        measured += f", from {minute(began.min())} to {minute(began.max())} UTC"  # type: ignore[arg-type]
    return Facts([*say.identity(found.row, found.shared), ("runs", measured)])


def _finding(one: Verdict, name: str) -> Facts:
    told = say.told(one, name)
    rows = [("what was seen", told.says), ("how sure", told.evidence), ("seen in", ", ".join(one.workloads) or MISSING)]
    return Facts([*rows, ("what to do", told.action)], f"{told.kind[:1].upper()}{told.kind[1:]}, {told.state}")


def _causes(verdicts: Sequence[Verdict]) -> Iterator[Drawing]:
    drawn = {f"{one.kind}: {', '.join(one.workloads[:1])}": waterfall.waterfall(one) for one in verdicts if one.causes}
    if drawn:
        says = (
            "The parts of the effect in per cent of the time of its peers, each with its 95 % interval. They add up to "
            "the whole."
        )
        yield Drawing("What the effect is made of", says, drawn)


def _bands(stands: Sequence[Standing]) -> Iterator[Drawing]:
    drawn = bands.fingerprint(stands)
    if drawn:
        most = max(one.gpus for one in stands if one.off_pct is not None)
        says = (
            f"In per cent of the level of its peers; grey: where 90 % and 50 % of up to {most:,} GPUs of its model "
            "are. Bars are 95 % intervals of another sitting. The axis is linear near 0 and logarithmic beyond."
        )
        yield Drawing("Its figures in those of its peers", says, drawn)


def _figures(stands: Sequence[Standing]) -> Table:
    rows = [
        [
            bands.subject(one),
            bands.words(one.figure),
            _value(one),
            MISSING if one.off_pct is None else f"{percent(one.off_pct)} {_within(one.off_low_pct, one.off_high_pct)}",
            MISSING if one.band is None else f"{number(one.band[0])} to {number(one.band[4])}",
            MISSING if one.rank is None else f"{one.rank:,} of {count(one.peers)}",
            count(one.n),
            count(one.sittings),
        ]
        for one in stands
    ]
    head = (
        "workload",
        "figure",
        "value [95 %]",
        "beside its peers, %",
        "90 % of its peers",
        "rank",
        "runs",
        "sittings",
    )
    says = "[95 %]: of another sitting. Rank 1 has the lowest value."
    return Table(head, rows, (5, 6, 7), title="All figures", says=says)


def _value(one: Standing) -> str:
    """The value with its unit and interval."""
    if one.value is None:
        return MISSING
    ends = "" if one.low is None or one.high is None else f"[{number(one.low)}, {number(one.high)}]"
    return " ".join(part for part in (number(one.value), one.unit.replace("share", ""), ends) if part)


def _within(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else interval(low, high)


def _past(found: OneGpu) -> Iterator[Drawing | Table]:
    changes = () if found.found is None else found.found.changes
    named = [] if found.found is None else [name for one in found.found.verdicts for name in one.workloads]
    order = sorted(found.lines, key=lambda one: named.index(one.workload) if one.workload in named else len(named))
    drawn = {
        one.workload: history.history(one, changes, found.marks) for one in order[:_DRAWN] if len(one.sittings) > 1
    }
    if drawn:
        says = (
            "Each point is the median of the runs of a sitting, with its 95 % interval from the scatter of runs. Grey: "
            "its peers that were measured on the same day. Above: changes of its level that the judge found, "
            "changes of its driver, firmware and place, and events."
        )
        yield Drawing("Sitting by sitting", says, drawn)
    spread = bands.repeatability(found.lines)
    if spread is not None:
        says = (
            "How far its times scatter: between runs of a sitting, and between sittings, without what the day did to "
            "its peers, too. Bars are 95 % intervals, which allow for heavy tails."
        )
        yield Drawing("How well its times repeat", says, {"": spread})
    yield Table(
        (
            "workload",
            "runs",
            "sittings",
            "within a sitting, sd %",
            "90 % of peers",
            "between sittings, sd %",
            "90 % of peers",
        ),
        [
            [one.workload, count(one.runs), count(len(one.sittings)), *_scatter(one.within), *_scatter(one.between)]
            for one in order
        ],
        (1, 2),
        title="Repeats",
    )


def _scatter(one: Scatter | None) -> tuple[str, str]:
    if one is None:
        return MISSING, MISSING
    known = one.low_pct is not None and one.high_pct is not None
    ends = f"[{number(one.low_pct, 2)}, {number(one.high_pct, 2)}]" if known else f"[{MISSING}]"
    band = one.peers_pct
    peers = MISSING if band is None else f"{number(band[0], 2)} to {number(band[4], 2)} (n {one.peers:,})"
    return f"{number(one.pct, 2)} {ends}", peers


def _clock(found: OneGpu) -> Iterator[Drawing]:
    if found.reasons is not None and found.reasons.held:
        says = (
            "The share of the time in which each reason held the clock down, of "
            f"{found.reasons.readings:,} readings. {reasons.caption(found.reasons)}"
        )
        yield Drawing("Why its clock was held", says, {"": reasons.over_time(found.reasons)})
    if found.telemetry is not None:
        says = (
            "Its last campaign, beside the median of all GPUs at the same point of the same probe; bands are its own "
            "probes."
        )
        drawn = timeline.over_time(found.telemetry, found.gpu, found.name)
        yield Drawing("Power, clock and temperature", says, {"": drawn})


def _runs(runs: pl.DataFrame) -> Table:
    newest = runs.sort("began", descending=True, nulls_last=True).head(_RUNS)
    rows = []
    for row in newest.iter_rows(named=True):
        of = row["conditions"] or {}
        clock = clock_in_words(of.get("clock"), of.get("locked_clock_mhz"))
        limit = of.get("asked_power_limit_w") or of.get("power_limit_w")
        rows.append(
            [
                minute(row["began"]), row["workload"], f"{number(row['value'])} ms" if row["value"] else MISSING,
                number(row["sm_clock_mhz"], 4), number(row["power_w"], 3), number(row["temperature_c"], 2),
                clock or MISSING, MISSING if limit is None else f"{limit:g} W", str(of.get("neighbours") or MISSING),
                row["status"] or MISSING, row["campaign"] or MISSING,
            ]
        )  # fmt: skip
    more = runs.height - newest.height
    says = "Newest first." + (f" {many(more, 'earlier run')} not shown." if more else "")
    head = (
        "began (UTC)",
        "workload",
        "time",
        "MHz",
        "W",
        "°C",
        "clock",
        "power limit",
        "neighbours",
        "status",
        "campaign",
    )
    return Table(head, rows, (2, 3, 4, 5), says=says)


def _events(found: OneGpu) -> Table:
    shown = found.events[:_EVENTS]
    rows = [[minute(one.ts), one.kind, one.detail or one.meaning or MISSING] for one in shown]
    more = len(found.events) - len(shown)
    says = "Newest first." + (f" {more:,} earlier ones are in the store." if more else "")
    return Table(("when (UTC)", "what", "detail"), rows, wrapped=(2,), says=says)


def _alike(found: OneGpu) -> Table:
    rows = [[one.name, f"{one.distance:.2f}", count(one.figures)] for one in found.alike]
    return Table(("GPU", "distance", "figures"), rows, (1, 2), says=say.likeness(found.alike))
