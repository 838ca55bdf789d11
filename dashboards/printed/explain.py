"""What `whorl explain` says of one GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...analysis.verdicts import Smallest, Verdict
from ...analysis.verdicts.explain import Explained, Place, SharedFinding, Sitting, stands_in
from ..table import MISSING, Line, Table, count, many, minute, number
from ..verdict_words import (
    action,
    chances,
    interval,
    kin,
    least,
    measured,
    not_judged_row,
    percent,
    reference,
    row,
    sentence,
    smallest_row,
)  # fmt: skip
from .verdicts import not_judged

_WORKLOADS, _SITTINGS, _EVENTS = 3, 8, 8  # shown for people; --json has all


def document(found: Explained) -> dict[str, Any]:
    """The document of `whorl.explain/1`."""
    return {
        "schema": "whorl.explain/1",
        "cluster": found.cluster,
        "gpu": found.gpu,
        "name": found.name,
        "identity": dict(found.identity),
        "verdicts": [row(verdict) for verdict in found.verdicts],
        "not_judged": [not_judged_row(gap) for gap in found.not_judged],
        "places": [asdict(place) for place in found.places],
        "history": [asdict(sitting) for sitting in found.history],
        "events": [asdict(event) for event in found.events],
        "smallest": [smallest_row(each) for each in found.smallest],
        "conditions": {subject: list(values) for subject, values in found.conditions.items()},
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


def answer(found: Explained, store: str | Path) -> Iterable[str | Table]:
    """The GPU for people: what it is, what was found, where it stands, its past, what happened."""
    identity = found.identity
    known = [("model", "model"), ("node", "node"), ("slot", "slot"), ("serial", "serial"), ("driver", "driver")]
    said = [f"{word} {identity[key]}" for key, word in known if identity.get(key) is not None and key != "model"]
    model = identity.get("model") or "a GPU of unknown model"
    peers = kin(identity.get("model"))
    key = "" if found.gpu == found.name else f" ({found.gpu})"
    yield f"{found.name}{key}: {model}; {', '.join([f'cluster {found.cluster}', *said])}"
    yield ""
    yield from findings(found.name, found.verdicts, found.smallest, found.judged if found.places else None)
    yield from places(found.places, peers)
    yield from _history(found)
    if found.conditions:
        yield f"conditions of its runs, and how many {peers} share them:"
        for what, values in found.conditions.items():
            yield f"  {what} {'; '.join(values)}"
        yield ""
    yield from events(found)
    yield from not_judged(found.not_judged)
    if found.not_judged:
        yield ""
    store_words = f"--store {shlex.quote(str(store))}"
    where = f"{store_words} --cluster {shlex.quote(found.cluster)}"
    yield Line(f"next: whorl report --gpu {shlex.quote(found.name)} {where}   # the evidence as a page")
    yield Line(f"      whorl verdicts {where}")
    if identity.get("node") is not None and identity.get("uuid") is not None and not found.simulated:
        again = f"whorl probe run --suite quick --gpu {shlex.quote(found.name)} {store_words}"
        yield Line(f"      {again}   # on {identity['node']}: measure it again")


def shared_answer(shared: SharedFinding, store: str | Path) -> Iterable[str | Table]:
    """What was found about a node, a batch or a rank, for people: what to do, and each of its GPUs."""
    counted = many(len(shared.gpus), "GPU") if shared.gpus else "its GPU is not known"
    yield f"{shared.name}: {counted}, cluster {shared.cluster}"
    yield ""
    yield from findings(shared.name, shared.verdicts, (), None)
    where = f"--store {shlex.quote(str(store))} --cluster {shlex.quote(shared.cluster)}"
    if not shared.gpus:
        yield Line(f"next: whorl verdicts {where}")
        return
    yield f"its GPUs: {', '.join(shared.gpus)}"
    yield Line(f"next: whorl explain {shlex.quote(shared.gpus[0])} {where}")
    yield Line(f"      whorl verdicts {where}")


def findings(name: str, verdicts: Sequence[Verdict], smallest: Sequence[Smallest], judged: int | None) -> Iterable[str]:
    """What was found about the GPU of this name, with cause, evidence and what to do.

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
    for one in verdicts:
        covers = "" if one.name == name else f" ({one.level} {one.name}, {many(len(one.gpus), 'GPU')})"
        effect = ""
        if one.effect_pct is not None:
            effect = f" {percent(one.effect_pct)} % {interval(one.low_pct, one.high_pct)} of {measured(one)}"
        yield f"{one.kind}, {one.state}{effect}{covers}: {sentence(one)}"
        if one.causes:
            shown = [f"{part.pct:+.1f} % {part.what} {interval(part.low_pct, part.high_pct)}" for part in one.causes]
            yield f"  cause: {', '.join(shown)}"
        seen = [f"first seen {minute(one.first_seen)}, last {minute(one.last_seen)}"] if one.first_seen else []
        chance = chances(one)
        of = f"compared with {reference(one)}" if one.reference else f"n {count(one.n)}"
        of = of if one.figure else "seen, which needs no test"
        runs = many(len(one.runs), "run") if one.runs else "no run shows it"
        yield f"  evidence: {', '.join([of, *chance, runs, *seen])}"
        yield f"  what to do: {action(one)}"
    yield ""


def places(given: Sequence[Place], peers: str) -> Iterable[str | Table]:
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


def _history(found: Explained) -> Iterable[str | Table]:
    shown = stands_in(found.places, found.verdicts)[:_WORKLOADS]
    for workload in shown:
        past = [one for one in found.history if one.workload == workload]
        if not past:
            continue
        of = f", the last {_SITTINGS} of {len(past):,} sittings" if len(past) > _SITTINGS else ""
        yield Table(
            ("began", "runs", "slower %", "than that day %", "MHz", "W", "°C"),
            [_sitting(one) for one in past[-_SITTINGS:]],
            (1, 2, 3, 4, 5, 6),
            title=f"{workload}{of}",
            leaves=(3, 5),
        )
        yield ""


def _sitting(one: Sitting) -> list[str]:
    return [
        minute(one.began),
        count(one.n),
        percent(one.effect_pct),
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
        yield f"  {minute(one.ts)} {one.kind}: {one.detail or MISSING}"
    yield ""
