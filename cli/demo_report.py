"""What `whorl demo` finds and says: for people, for programs, and the page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis import Variability, measurements, variability
from ..analysis.probing import Probed, probed, slowest
from ..analysis.signatures import CEILING, COOLING, DRAM, LOST, POWER, SENSOR, SPOKEN, WRONG
from ..analysis.standing_out import ERROR_RATE, LEAST_GPUS, RELEVANT_PCT, RELEVANT_THERMAL_PCT, Judged, judge
from ..analysis.timelines import Timelines, timelines
from ..dashboards.report import probe_report, to_show
from ..dashboards.report_figures import labels
from ..dashboards.report_tables import Planted, by_reason, how_much, how_sure
from ..dashboards.table import MISSING, Line, Table, many, number

if TYPE_CHECKING:
    from ..collectors.simulated_rows import Planted as PlantedFault
    from ..errors import StoreError
    from ..probes.campaign import Report
    from ..simulation.fleet import Fleet
    from ..store import Store

REPLICATES = 500
"""Of the bootstrap: enough for the two digits that are shown."""
_LISTED = 12

LOOKS_LIKE = {
    "brake": POWER,
    "hot": COOLING,
    "pinned": CEILING,
    "slow_memory": DRAM,
    "stuck_sensor": SENSOR,
    "drift": COOLING,
    "wrong_results": WRONG,
    "lost": LOST,
}
"""What each fault that can be planted should be taken for."""
_SLOW = ("brake", "hot", "pinned", "slow_memory")
"""Those that make a GPU slower than its peers."""
_HIDING = 6
"""Where more than one GPU in so many is slow, they are taken for the tail of the population (docs/report.md)."""


@dataclass(frozen=True)
class Shown:
    """A campaign with all that was found in it."""

    campaign: Probed
    report: Report
    judged: Judged
    spread: Sequence[Variability]
    lines: Timelines | None
    planted: tuple[Planted, ...] | None
    suite: str
    seed: int | None

    @property
    def seconds(self) -> float | None:
        """How long the campaign took, on the clock of its GPUs."""
        began, ended = self.report.began_ns, self.report.ended_ns
        return None if began is None or ended is None else (ended - began) / 1e9


def looked_at(
    store: Store,
    report: Report,
    planted: Sequence[PlantedFault] | None,
    fleet: Fleet | None,
    suite: str,
    *,
    progress: Callable[[str], None],
) -> Shown:
    """Read what a campaign stored, and compare its GPUs."""
    campaign = probed(store, report.campaign, report.cluster)
    judged = judge(campaign, store)
    runs = measurements(store, clusters=[report.cluster], run_ids=True)
    runs = runs.filter(runs["run_id"].is_in(campaign.runs["run_id"].implode()))
    spread = variability(
        runs, replicates=REPLICATES, progress=lambda what, done, of: progress(f"{what}: {done:,} of {of:,} replicates")
    )
    lines = timelines(store, campaign, to_show(campaign, judged))
    return Shown(
        campaign,
        report,
        judged,
        spread,
        lines,
        None if planted is None else tuple(_found(planted, judged, report, campaign)),
        suite,
        None if fleet is None else fleet.seed,
    )


def _found(planted: Sequence[PlantedFault], judged: Judged, report: Report, campaign: Probed) -> list[Planted]:
    """What was planted beside what was found."""
    found = {one.gpu: one for one in judged.found}
    rows = []
    for fault in planted:
        one, remark = found.get(fault.uuid), ""
        if one is None:
            remark = _missed(fault, sum(each.kind in _SLOW for each in planted), judged, report, campaign)
        elif one.cause != LOOKS_LIKE[fault.kind]:
            remark = f"named, but not taken for {SPOKEN[LOOKS_LIKE[fault.kind]]}"
        rows.append(Planted(fault.uuid, fault.kind, "" if one is None else one.cause, remark))
    return rows


def _missed(fault: PlantedFault, slow: int, judged: Judged, report: Report, campaign: Probed) -> str:
    """Why a fault that was planted was not found, among so many that make GPUs slow."""
    if fault.began_ns is not None and report.ended_ns is not None and fault.began_ns >= report.ended_ns:
        return "it would have set in after the campaign had ended"
    if fault.kind == "drift":
        return "it grows over weeks: one campaign cannot see it"
    if fault.kind == "wrong_results":
        return "two runs in five are wrong: by chance, none was"
    if not judged.looks:
        return f"there were too few GPUs to compare it with: {LEAST_GPUS} of a model are needed"
    excess, rise = slowest(campaign, fault.uuid), judged.rises.get(fault.uuid)
    if excess is not None and excess[1] >= RELEVANT_PCT:
        probe, pct, n = excess
        apart = f"it is {pct:.1f} % slower than the median in {probe}"
    elif rise is not None and rise.excess_pct >= RELEVANT_THERMAL_PCT:
        n, apart = rise.n, f"its temperature rises {rise.excess_pct:.0f} % more a watt than that of its peers"
    else:
        return "its figures are among those of its peers"
    if slow * _HIDING > n:
        return f"{apart}; but {slow} of {n:,} GPUs are faulty, and more than about one in {_HIDING} hide each other"
    return f"{apart}; among {n:,} such GPUs that may be chance"


def write(path: Path, shown: Shown, store: Path) -> StoreError | None:
    """Write the page. Where that fails, the error to end with: what was found can be said all the same."""
    from ..errors import StoreError
    from ..store.files import write_bytes

    html = probe_report(
        shown.campaign, shown.judged, shown.spread, shown.lines, planted=shown.planted, notes=_left_out(shown)
    )
    try:
        write_bytes(path, html.encode())
    except StoreError as error:
        why = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        return StoreError(f"{path} could not be written ({why}); all that was measured is in {store}")
    return None


def document(shown: Shown, store: Path, page: Path | None, taken_s: float) -> dict[str, Any]:
    """The demo as `whorl.demo/1`."""
    campaign = shown.campaign
    ours = {one.gpu for one in shown.planted or ()}
    return {
        "schema": "whorl.demo/1",
        "campaign": campaign.campaign,
        "cluster": campaign.cluster,
        "simulated": campaign.simulated,
        "models": campaign.models,
        "gpus": campaign.gpus.height,
        "seed": shown.seed,
        "suite": shown.suite,
        "probes": campaign.probes,
        "runs": campaign.runs.height,
        "sound_runs": _sound(campaign),
        "seconds": shown.seconds,
        "wall_s": taken_s,
        "variability": [row.as_dict() for row in shown.spread if row.level == "gpu"],
        "comparisons": shown.judged.looks,
        "error_rate": ERROR_RATE,
        "not_compared": dict(shown.judged.not_judged),
        "wrong_runs": shown.campaign.untrusted,
        "stand_out": [one.as_dict() for one in shown.judged.found],
        "planted": None
        if shown.planted is None
        else [
            {"gpu": one.gpu, "kind": one.kind, "found": one.found or None, "remark": one.remark or None}
            for one in shown.planted
        ],
        "falsely_named": None
        if shown.planted is None
        else [one.gpu for one in shown.judged.found if one.gpu not in ours],
        "not_run": [{"gpu": gpu, "probe": probe, "reason": reason} for gpu, probe, reason in shown.report.unrun],
        "failed": [{"gpu": gpu, "error": why} for gpu, why in sorted(shown.report.failures.items())],
        "notes": shown.report.notes,
        "store": str(store),
        "report": None if page is None else str(page),
    }


def answer(shown: Shown, store: Path, page: Path | None, taken_s: float) -> Iterable[str | Table]:
    """For people: what ran, how the GPUs differ, which stand out, what was planted, and what to do next."""
    campaign, judged = shown.campaign, shown.judged
    names = labels(campaign.gpus)
    made = "simulated " if campaign.simulated else ""
    yield from shown.report.notes
    nodes = campaign.gpus["node"].drop_nulls().n_unique()
    spent = "" if shown.seconds is None else f"{shown.seconds:,.0f} s{' of simulated time' if made else ''}, "
    yield (
        f"{campaign.gpus.height:,} {made}{' and '.join(campaign.models)} GPUs on {many(nodes, 'node')}: "
        f"{campaign.runs.height:,} runs of {len(campaign.probes)} probes (suite {shown.suite}, all GPUs of a node at "
        f"once), {_sound(campaign):,} of them sound; {spent}{taken_s:.0f} s here"
    )
    yield ""
    yield from _spread(shown)
    yield from _found_in(judged, names)
    if shown.planted is not None:
        yield from _planted(shown, names)
    yield from _notes(shown, names)
    if page is not None:
        yield f"report: {page} (open it in a browser; it needs no network)"
    quoted = shlex.quote(str(store))
    yield Line(f"next: whorl variability --store {quoted}")
    first = next((row.workload for row in shown.spread), None)
    if first is not None:
        cluster = f" --cluster {shlex.quote(campaign.cluster)}"
        yield Line(f"      whorl advise --store {quoted}{cluster} --workload {_widest(shown) or first}")
    query = '"select workload, figure, median(value) as median, unit, count(*) as n from results group by all"'
    yield Line(f"      whorl sql --store {quoted} {query}")


def _sound(campaign: Probed) -> int:
    return int((campaign.runs["status"].fill_null("ok") == "ok").sum())


def _widest(shown: Shown) -> str | None:
    known = [row for row in shown.spread if row.level == "gpu" and row.fence_pct is not None]
    return max(known, key=lambda row: row.fence_pct or 0.0).workload if known else None


def _spread(shown: Shown) -> Iterable[str | Table]:
    by_probe = {row.workload: row for row in shown.spread if row.level == "gpu"}
    rows = []
    for probe in shown.campaign.probes:
        row = by_probe.get(probe)
        if row is None:
            continue
        bounds = row.interval.get("fence_pct")
        rows.append(
            [
                probe,
                f"{row.n:,}",
                f"{number(row.median)} {row.unit or ''}".strip(),
                MISSING if row.fence_pct is None or row.n < 2 else f"{row.fence_pct:.2f}",
                "" if bounds is None else f"[{bounds[0]:.2f}, {bounds[1]:.2f}]",
                MISSING if row.n < 2 else number(row.worst_over_median, 4),
                MISSING if row.n < 2 else f"{len(row.slow)}/{len(row.fast)}",
            ]
        )
    header = ("probe", "GPUs", "median time", "spread %", "[95 %]", "slowest", "slow/fast")
    yield Table(header, rows, (1, 2, 3, 5, 6), leaves=(6, 4))
    yield (
        "spread: between the Tukey fences, beyond which a GPU counts as slow or fast (4 interquartile ranges), in % of "
        "the median; slowest: in medians"
    )
    yield ""


def _found_in(judged: Judged, names: dict[str, str]) -> Iterable[str | Table]:
    compared = f"{judged.looks:,} comparisons, family-wise error rate {100 * ERROR_RATE:g} %"
    if not judged.found:
        yield (
            f"no GPU stands out ({compared})"
            if judged.looks
            else ("no GPU stands out; there were too few GPUs to compare")
        )
        yield ""
        return
    found = len(judged.found)
    yield f"{found} GPU{'s stand' if found > 1 else ' stands'} out ({compared})"
    rows = [[names[one.gpu], SPOKEN[one.cause], how_sure(one), how_much(one, 2)] for one in judged.found[:_LISTED]]
    yield Table(("GPU", "looks like", "chance", "how much"), rows, wrapped=(1, 3))
    if found > _LISTED:
        yield f"and {found - _LISTED:,} more: they are in the report"
    yield ""


def _planted(shown: Shown, names: dict[str, str]) -> Iterable[str]:
    planted = shown.planted or ()
    if not planted:
        yield "planted nothing: every GPU is healthy"
    for one in planted:
        said = f"found, {SPOKEN[one.found]}" if one.found else "missed"
        remark = f" ({one.remark})" if one.remark else ""
        yield f"planted {one.kind} in {names.get(one.gpu, one.gpu)}: {said}{remark}"
    ours = {one.gpu for one in planted}
    others = [names[one.gpu] for one in shown.judged.found if one.gpu not in ours]
    yield f"healthy GPUs named: {', '.join(others) if others else 'none'}"
    yield ""


def _notes(shown: Shown, names: dict[str, str]) -> list[str]:
    notes = [f"not compared: {', '.join(probes)} ({why})" for why, probes in by_reason(shown.judged).items()]
    if shown.campaign.untrusted_says:
        notes.append(shown.campaign.untrusted_says)
    reasons: dict[tuple[str, str], set[str]] = {}
    for gpu, probe, reason in shown.report.unrun:
        reasons.setdefault((probe, reason), set()).add(gpu)
    together: dict[tuple[str, frozenset[str]], list[str]] = {}
    for (probe, reason), gpus in reasons.items():
        together.setdefault((reason, frozenset(gpus)), []).append(probe)
    for (reason, named), probes in together.items():
        on = f"{len(named):,} GPUs" if len(named) > 1 else names.get(min(named), min(named))
        notes.append(f"not run on {on}: {', '.join(probes)} ({reason})")
    return notes + _left_out(shown)


def _left_out(shown: Shown) -> list[str]:
    """The GPUs that failed before they ran anything: no table of the campaign has them."""
    ran = set(shown.campaign.gpus["gpu"])
    return [f"{gpu} was not measured: {why}" for gpu, why in sorted(shown.report.failures.items()) if gpu not in ran]
