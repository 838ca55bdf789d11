"""The evidence page of one GPU: what was found about it, its place, its past, its figures, what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ..analysis.probing import probed
from ..analysis.timelines import Timelines, timelines
from ..analysis.verdicts.answers.explaining import Explained, Sitting, explain, find, stands_in
from ..analysis.verdicts.answers.fingerprinting import Fingerprints, fingerprints
from ..analysis.verdicts.recording import judgements
from .figures.timeline import over_time
from .page import Drawing, Section, page, refuse_unwritable, write_page
from .printed.explain import events, findings, places
from .printed.fingerprint import figures
from .style import BLUE, GREY, layout
from .table import Table
from .verdict_words import interval, percent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..store import Store

_DRAWN = 12  # workloads whose past is drawn


def gpu_report(
    store: Store | str | Path,
    out: str | Path,
    gpu: str,
    cluster: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Explained:
    """Write the evidence page of the GPU that `gpu` means, as `whorl report --gpu` does. InputError, StoreError."""
    from ..store import Store

    tell = progress or (lambda _: None)
    refuse_unwritable(Path(out), "--out")
    opened = store if isinstance(store, Store) else Store.open(store)
    row = find(opened, gpu, cluster)
    of = str(row["cluster"])
    tell("judging the GPUs")
    found = explain(opened, str(row["gpu"]), judgements(opened, of), cluster=of)
    tell("computing the fingerprint")
    printed = fingerprints(opened, cluster=of, gpu=found.gpu) if found.places else None
    write_page(Path(out), gpu_page(found, printed, _telemetry(opened, found)))
    return found


def _telemetry(store: Store, found: Explained) -> Timelines | None:
    """Its telemetry over the last campaign that it was in; None where there is none."""
    of = (pl.col("cluster") == found.cluster) & (pl.col("gpu") == found.gpu) & pl.col("campaign").is_not_null()
    last = store.collect(store.scan("runs").filter(of).sort("began", nulls_last=False).tail(1).select("campaign"))
    if last.is_empty():
        return None
    lines = timelines(store, probed(store, str(last.item()), found.cluster), [found.gpu])
    return lines if lines is not None and found.gpu in lines.gpus else None


def gpu_page(found: Explained, printed: Fingerprints | None, lines: Timelines | None) -> str:
    """The page as HTML; it needs no network."""
    identity = found.identity
    about = {
        "cluster": found.cluster,
        "key in the tables": found.gpu,
        **{key: str(value) for key, value in identity.items() if value is not None},
        **{f"{what}: GPUs of its model that share it": "; ".join(values) for what, values in found.conditions.items()},
    }
    summary = [one for one in findings(found) if isinstance(one, str) and one]
    sections = [Section("Beside its peers", "", [one for one in places(found.places) if isinstance(one, Table)])]
    past = _past(found)
    if past is not None:
        sections.append(Section("Its past", "", [past]))
    if lines is not None:
        says = (
            "Its last campaign, beside the median of all GPUs at the same point of the same probe; bands are its own "
            "probes."
        )
        drawn = over_time(lines, found.gpu, found.name)
        sections.append(Section("Its last campaign", "", [Drawing("Power, clock and temperature", says, {"": drawn})]))
    if printed is not None and printed.rows.height:
        sections.append(Section("Its fingerprint", "", [figures(printed)]))
    happened = list(events(found))
    notes = [f"{no.subject}: not judged: {no.why}" for no in found.not_judged]
    notes += [one.strip() for one in happened if one.strip()]
    if found.simulated:
        notes.append("This GPU is simulated: no number here was measured on a real GPU.")
    worst = found.places[0] if found.places else None
    tiles = [(str(len(found.verdicts)), "finding" if len(found.verdicts) == 1 else "findings")]
    if worst is not None and worst.effect_pct is not None:
        shown = f"{percent(worst.effect_pct)} %"
        tiles.append((shown, f"in {worst.workload} {interval(worst.low_pct, worst.high_pct)}"))
        tiles.append((f"{worst.rank:,} of {worst.peers:,}", f"its rank in {worst.workload}, 1 is the fastest"))
    model = identity.get("model") or "a GPU of unknown model"
    return page(f"{found.name}: {model}", summary, sections, conditions=about, notes=notes, tiles=tiles)


def _past(found: Explained) -> Drawing | None:
    """Its level sitting by sitting, for each workload with two or more."""
    by_workload: dict[str, list[Sitting]] = {}
    for one in found.history:
        if one.began is not None and one.effect_pct is not None:
            by_workload.setdefault(one.workload, []).append(one)
    drawn = [name for name in stands_in(found.places, found.verdicts) if len(by_workload.get(name, ())) > 1]
    if not drawn:
        return None
    return Drawing(
        "Its level, sitting by sitting",
        "Each point is the median of the runs of a sitting, against the median of the peers over all time; the line "
        "of the peers' day is what they did on the same day.",
        {name: _line(by_workload[name]) for name in drawn[:_DRAWN]},
    )


def _line(past: Sequence[Sitting]) -> Figure:
    from plotly.graph_objects import Figure, Scatter

    at = [one.began for one in past]
    own = [one.effect_pct for one in past]
    # What the peers did on that day: its own effect less its difference from them.
    peers = [
        None if one.that_day_pct is None or one.effect_pct is None else one.effect_pct - one.that_day_pct
        for one in past
    ]
    traces = [
        Scatter(x=at, y=own, name="this GPU", mode="lines+markers", line={"color": BLUE, "width": 2}),
        Scatter(x=at, y=peers, name="its peers on that day", mode="lines+markers", line={"color": GREY, "width": 1.5}),
    ]
    return Figure(traces, layout(320, yaxis={"title": {"text": "slower than the peers, %"}, "zeroline": True}))
