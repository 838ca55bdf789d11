"""What `whorl explain` says of one GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...analysis.one_gpu.explain import Explained, SharedFinding, stands_in
from ...analysis.one_gpu.past import Line as Past
from ...analysis.one_gpu.past import Place, Sitting
from ...analysis.verdicts import Smallest, Verdict
from ..answers.mappings import finding as row
from ..answers.mappings import not_judged as not_judged_row
from ..answers.mappings import smallest as smallest_row
from ..document import Part
from ..documents.evidence import peers as kin
from ..documents.verdicts import as_judged, least, not_judged
from ..documents.verdicts import findings as worded
from ..table import MISSING, Line, Table, count, many, minute, number
from ..words import interval, percent

_WORKLOADS, _SITTINGS, _EVENTS = 3, 8, 8  # shown for people; --json has all sittings, and the newest 20 events
_LISTED_EVENTS = 20
_SHARED = {"driver": ("driver", 1), "vbios": ("VBIOS", 1), "power_limit_mw": ("power limit, W", 1000)}


def document(found: Explained) -> dict[str, Any]:
    """The document of `whorl.explain/1`."""
    return {
        "schema": "whorl.explain/1",
        "cluster": found.cluster,
        "gpu": found.gpu,
        "name": found.name,
        "identity": dict(found.identity),
        "judged": judged_document(found),
        "verdicts": [row(verdict) for verdict in found.verdicts],
        "not_judged": [not_judged_row(gap) for gap in found.not_judged],
        "places": [asdict(place) for place in found.places],
        "history": [_history_row(line, sitting) for line in found.lines for sitting in _all_sittings(line)],
        "events": [{"ts": each.ts, "kind": each.kind, "detail": each.detail} for each in found.events[:_LISTED_EVENTS]],
        "smallest": [smallest_row(each) for each in found.smallest],
        "conditions": {subject: [text] for subject, text in _conditions(found)},
    }


def judged_document(found: Explained) -> dict[str, Any]:
    """When the GPUs were judged, of how many, and how many runs are newer."""
    judged = found.found
    if judged is None:
        return {"at": None, "gpus": 0, "newer_runs": None, "newer_events": None}
    return {
        "at": judged.judged_at,
        "gpus": judged.judged,
        "newer_runs": judged.newer.runs,
        "newer_events": judged.newer.facts,
    }


def shared_document(shared: SharedFinding) -> dict[str, Any]:
    """The document of `whorl.explain.shared/1`."""
    return {
        "schema": "whorl.explain.shared/1",
        "cluster": shared.cluster,
        "name": shared.name,
        "gpus": list(shared.gpus),
        "verdicts": [row(verdict) for verdict in shared.verdicts],
    }


def _all_sittings(line: Past) -> Iterator[Sitting]:
    if line.without_date is not None:
        yield line.without_date
    yield from line.sittings


def _history_row(line: Past, sitting: Sitting) -> dict[str, Any]:
    return {
        "workload": line.workload,
        "began": sitting.began,
        "n": sitting.n,
        "effect_pct": sitting.off_pct if line.beside_peers else None,
        "that_day_pct": sitting.that_day_pct,
        "sm_clock_mhz": sitting.sm_clock_mhz,
        "power_w": sitting.power_w,
        "temperature_c": sitting.temperature_c,
    }


def _conditions(found: Explained) -> Iterator[tuple[str, str]]:
    """What is recorded of the GPU, and how many of its model share it."""
    for column, (alike, known) in found.shared.items():
        subject, unit = _SHARED[column]
        value = found.row[column] if unit == 1 else f"{found.row[column] / unit:g}"
        yield subject, f"{value}: {alike:,} of {known:,} GPUs"


def answer(found: Explained, store: str | Path) -> Iterable[Part | Table]:
    """The GPU for people: what it is, what was found, where it stands, its past, what happened."""
    identity = found.identity
    known = [("model", "model"), ("node", "node"), ("slot", "slot"), ("serial", "serial"), ("driver", "driver")]
    said = [f"{word} {identity[key]}" for key, word in known if identity.get(key) is not None and key != "model"]
    model = identity.get("model") or "a GPU of unknown model"
    peers = kin(identity.get("model"))
    key = "" if found.gpu == found.name else f" ({found.gpu})"
    yield f"{found.name}{key}: {model}; {', '.join([f'cluster {found.cluster}', *said])}"
    yield ""
    command = f"whorl verdicts --store {shlex.quote(str(store))} --cluster {shlex.quote(found.cluster)}"
    if found.found is not None and any(found.found.newer):
        yield as_judged(found.found.judged_at, found.found.newer, command)
        yield ""
    yield from findings(found.verdicts, found.smallest, found.judged if found.lines else None)
    yield from places(found.places, peers)
    yield from _history(found)
    if found.lines and found.shared:
        yield f"its settings, and how many {peers} share them:"
        for subject, text in _conditions(found):
            yield f"  {subject} {text}"
        yield ""
    yield from events(found)
    if (gaps := not_judged(found.not_judged)) is not None:
        yield gaps
    store_words = f"--store {shlex.quote(str(store))}"
    where = f"{store_words} --cluster {shlex.quote(found.cluster)}"
    yield Line(f"next: whorl report --gpu {shlex.quote(found.name)} {where}   # the evidence as a page")
    yield Line(f"      whorl verdicts {where}")
    if identity.get("node") is not None and identity.get("uuid") is not None and not found.simulated:
        again = f"whorl probe run --suite quick --gpu {shlex.quote(found.name)} {where}"
        yield Line(f"      {again}   # on {identity['node']}: measure it again")


def shared_answer(shared: SharedFinding, store: str | Path) -> Iterable[Part | Table]:
    """What was found about a node, a batch or a rank, for people: what to do, and each of its GPUs."""
    counted = many(len(shared.gpus), "GPU") if shared.gpus else "its GPU is not known"
    yield f"{shared.name}: {counted}, cluster {shared.cluster}"
    yield ""
    where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(shared.cluster)}"
    if any(shared.newer):
        yield as_judged(shared.judged_at, shared.newer, f"whorl verdicts {where}")
        yield ""
    yield from findings(shared.verdicts, (), None)
    if not shared.gpus:
        yield Line(f"next: whorl verdicts {where}")
        return
    yield f"its GPUs: {', '.join(shared.gpus)}"
    yield Line(f"next: whorl explain {shlex.quote(shared.gpus[0])} {where}")
    yield Line(f"      whorl verdicts {where}")


def findings(verdicts: Sequence[Verdict], smallest: Sequence[Smallest], judged: int | None) -> Iterable[Part]:
    """What was found about a GPU, with cause, evidence and what to do.

    `judged`: how many GPUs of its cluster were judged; None where this one has no times.
    """
    if not verdicts:
        if judged:
            yield "nothing was found against it"
            said = least(smallest)
            if said is not None:
                yield said
        elif judged is None:
            yield "it has no runs that ended well with a time: nothing can be said of it"
        else:
            yield "no GPU of its cluster could be judged: nothing can be said of it"
        yield ""
        return
    yield worded(verdicts)


def places(given: Sequence[Place], peers: str) -> Iterable[Part | Table]:
    """Where it stands among its peers, a row a workload. `peers`: what they are, in words."""
    if not given:
        return
    rows = [
        [
            one.workload,
            percent(one.effect_pct),
            interval(one.low_pct, one.high_pct),
            f"{one.rank:,} of {one.peers:,}",
            MISSING if one.rank_low is None else f"[{one.rank_low:,}, {one.rank_high:,}]",
            count(one.n),
            count(one.sittings),
        ]
        for one in given
    ]
    yield Table(
        ("workload", "slower %", "[95 %]", "rank", "[95 %]", "runs", "sittings"),
        rows,
        (1, 3, 5, 6),
        title=f"beside the {peers}: rank 1 is the fastest; intervals are those of another sitting",
        leaves=(6, 5, 4),
    )
    if all(one.low_pct is None for one in given):
        yield "no intervals: too few GPUs have two sittings, so nobody knows what another one would bring"
    yield ""


def _history(found: Explained) -> Iterable[Part | Table]:
    shown = stands_in(found.places, found.verdicts)[:_WORKLOADS]
    for workload in shown:
        line = next((line for line in found.lines if line.workload == workload), None)
        if line is None:
            continue
        past = list(_all_sittings(line))
        of = f", the last {_SITTINGS} of {len(past):,} sittings" if len(past) > _SITTINGS else ""
        yield Table(
            ("began", "runs", "slower %", "than that day %", "MHz", "W", "°C"),
            [_sitting(one, beside_peers=line.beside_peers) for one in past[-_SITTINGS:]],
            (1, 2, 3, 4, 5, 6),
            title=f"{workload}{of}",
            leaves=(3, 5),
        )
        yield ""


def _sitting(one: Sitting, *, beside_peers: bool) -> list[str]:
    return [
        minute(one.began),
        count(one.n),
        percent(one.off_pct if beside_peers else None),
        percent(one.that_day_pct),
        number(one.sm_clock_mhz, 4),
        number(one.power_w, 3),
        number(one.temperature_c, 2),
    ]


def events(found: Explained) -> Iterable[str]:
    """What happened to it, the newest first."""
    if not found.events:
        return
    of = f", the last {_EVENTS}" if len(found.events) > _EVENTS else ""
    yield f"events{of}:"
    for one in found.events[:_EVENTS]:
        yield f"  {minute(one.ts)} {one.kind}: {one.detail or one.meaning.split(';')[0] or MISSING}"
    yield ""
