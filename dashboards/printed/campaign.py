"""The findings of a campaign as text for a terminal and as JSON, for `whorl report` and `whorl demo`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...analysis.runs.measurements import SOUND
from ...analysis.runs.probing import Probed
from ...analysis.verdicts.judge import ERROR_RATE
from ...analysis.verdicts.planted import Planted, falsely_named
from ..document import Part
from ..documents.evidence import remark
from ..documents.verdicts import findings
from ..report_tables import by_reason
from ..table import MISSING, Line, Table, many, number
from ..words import listed as some

if TYPE_CHECKING:
    from ..store_report import Looked

_LISTED = 12


def answer(looked: Looked, store: str | Path, page: str | Path | None) -> Iterable[Part | Table]:
    """What `whorl report` says: what was compared, how the GPUs differ, which stand out, and where a page is."""
    yield f"{_what(looked.campaign)}, {sound(looked.campaign):,} of them valid"
    if looked.campaign.cut_says:
        yield f"not complete: {looked.campaign.cut_says}"
    if looked.stale_says:
        yield looked.stale_says
    yield ""
    yield from spread(looked)
    yield from stand_out(looked)
    yield from notes(looked)
    if page is not None:
        yield Line(f"report: {page} (open it in a browser; it needs no network)")
    yield from next_commands(looked, store)


def _what(campaign: Probed) -> str:
    made = "simulated " if campaign.simulated else ""
    models = " and ".join(campaign.models)
    nodes = campaign.gpus["node"].drop_nulls().n_unique()
    on = f" on {many(nodes, 'node')}" if nodes else ""
    upto = "up to " if campaign.maybe_twice else ""
    gpus = upto + many(campaign.gpus.height, f"{made}{models} GPU".replace("  ", " ").strip())
    of = f"campaign {campaign.campaign}" if campaign.campaign else f"cluster {campaign.cluster}"
    ran = many(len(campaign.probes), "probe" if campaign.campaign else "workload")
    return f"{of}: {gpus}{on}, {many(campaign.runs.height, 'run')} of {ran}"


def sound(campaign: Probed) -> int:
    """How many runs ended well, with a right result."""
    return campaign.runs.filter(SOUND).height


def next_commands(looked: Looked, store: str | Path) -> Iterable[Line]:
    """Commands that show more of the same store."""
    quoted = shlex.quote(str(store))
    yield Line(f"next: whorl dashboard --store {quoted}")
    if looked.campaign.runs.is_empty():
        yield Line(f"      whorl verdicts --store {quoted}")
        return
    yield Line(f"      whorl verdicts variability --store {quoted}")
    workload = looked.leading.workload if looked.leading else next((row.workload for row in looked.spread), None)
    if workload is not None:
        cluster = f" --cluster {shlex.quote(looked.campaign.cluster)}"
        yield Line(f"      whorl advise --store {quoted}{cluster} --workload {shlex.quote(workload)}")
    query = (
        '"select name, workload, figure, unit, median(value) as median, count(*) as n from measurements group by all"'
    )
    yield Line(f"      whorl sql --store {quoted} {query}")


def spread(looked: Looked) -> Iterable[str | Table]:
    """How much the GPUs differ: a row for each probe."""
    by_probe = {row.workload: row for row in looked.spread if row.level == "gpu"}
    rows = []
    for probe in looked.campaign.probes:
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
    if not rows:
        return
    header = (
        "probe" if looked.campaign.campaign else "workload",
        "GPUs",
        "median time",
        "spread %",
        "[95 %]",
        "slowest",
        "slow/fast",
    )
    yield Table(header, rows, (1, 2, 3, 5, 6), leaves=(6, 4))
    if looked.campaign.gpus.height < 2:
        yield ""
        return
    yield (
        "spread %: width between the Tukey fences (4 interquartile ranges) in % of the median; slowest: time of the "
        "slowest GPU / median time; slow/fast: how many GPUs are beyond the fences"
    )
    yield ""


def stand_out(looked: Looked) -> Iterable[Part]:
    """Which GPUs stand out, why, and what to do."""
    judged = looked.judged
    rate = f"; of 100 named, at most {100 * ERROR_RATE:g} should be healthy" if judged.gpus else ""
    compared = f"{many(judged.looks, 'comparison')}{rate}"
    if not judged.rows:
        yield (f"no GPU stands out ({compared})" if judged.gpus else "no GPU could be judged")
        yield ""
        return
    n = len(looked.verdicts)
    found, stand = many(len(judged.rows), "finding"), "stand" if n > 1 else "stands"
    yield f"{many(n, 'GPU') if n else 'no single GPU'} {stand} out, {found} ({compared})"
    yield findings(judged.rows[:_LISTED], looked.campaign.gpus["gpu"])
    if len(judged.rows) > _LISTED:
        yield f"and {len(judged.rows) - _LISTED:,} more: they are in the report"


def caught(looked: Looked, planted: Sequence[Planted]) -> Iterable[str]:
    """What was planted, and whether it was found."""
    names = looked.names
    if not planted:
        yield "planted nothing: every GPU is healthy"
    for one in planted:
        outcome = f"found, {one.found}" if one.found else "missed"
        missed = f" ({remark(one)})" if one.miss is not None else ""
        yield f"planted {one.kind} in {names.get(one.gpu, one.gpu)}: {outcome}{missed}"
    others = [names.get(gpu, gpu) for gpu in falsely_named(planted, looked.judged, looked.campaign)]
    yield f"healthy GPUs named: {', '.join(others) if others else 'none'}"
    yield ""


def notes(looked: Looked) -> Iterable[str]:
    """What was not judged, and why."""
    for why, subjects in by_reason(looked.judged).items():
        yield f"not judged: {some(subjects)} ({why})"
    if looked.campaign.untrusted_says:
        yield looked.campaign.untrusted_says
    if looked.campaign.maybe_twice:
        yield (
            f"of {looked.campaign.maybe_twice:,} GPUs only the UUID is known, of others only the place: a GPU may be "
            "counted under two names"
        )
