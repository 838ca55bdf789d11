"""What `whorl verdicts` says: findings worst first, then what was not judged and why."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...analysis.verdicts import TIME, Judgement, NotJudged, Verdict
from ..table import Line, Table, many
from ..verdict_words import (
    EFFECT_SAYS,
    action,
    causes,
    effect,
    interval,
    least,
    measured,
    name,
    percent,
    short,
    some,
    why_not,
)  # fmt: skip

_LISTED = 40
"""Findings and subjects that are listed for people; --json has all."""


def answer(judgements: Sequence[Judgement], store: str | Path) -> Iterable[str | Table]:
    """The findings of each cluster for people."""
    for one in judgements:
        yield from _of_cluster(one, store)


def _of_cluster(one: Judgement, store: str | Path) -> Iterable[str | Table]:
    subjects = [many(one.gpus, "GPU")] if one.gpus or not one.ranks else []
    subjects += [many(one.ranks, "rank")] if one.ranks else []
    compared = f"{' and '.join(subjects)} judged, {many(one.looks, 'comparison')}"
    if one.rows:
        states = Counter(str(row.state) for row in one.rows)
        counted = ", ".join(f"{n:,} {state}" for state, n in sorted(states.items()))
        yield f"cluster {one.cluster}: {many(len(one.rows), 'finding')} ({counted}); {compared}"
        yield ""
        yield table(one.rows[:_LISTED], _gpus(one))
        if len(one.rows) > _LISTED:
            yield f"and {len(one.rows) - _LISTED:,} more: --json has all"
        yield ""
        yield from what_to_do(one.rows[:_LISTED], _gpus(one))
        yield ""
        effects = f"{EFFECT_SAYS}. " if any(row.effect_pct is not None for row in one.rows) else ""
        yield (
            f"{effects}A sitting: runs without a pause of 6 hours. Suspected: seen in one sitting, so measure again on "
            "another day. Confirmed: seen in two or more"
        )
    elif one.gpus or one.ranks:
        yield f"cluster {one.cluster}: nothing was found ({compared})"
    else:
        yield f"cluster {one.cluster}: nothing could be judged"
    said = least(one.smallest)
    if said is not None:
        yield ""
        yield said
    yield from _to_watch(one.watch)
    yield from not_judged(one.not_judged)
    if one.rows:
        first = one.rows[0]
        yield ""
        cluster = f" --cluster {shlex.quote(one.cluster)}"
        called = short([first.name], _gpus(one))[first.name]
        yield Line(f"next: whorl explain {shlex.quote(called)} --store {shlex.quote(str(store))}{cluster}")
    yield ""


def _gpus(one: Judgement) -> Iterable[str]:
    """The keys of all GPUs that were compared, so that no name is short for two of them."""
    return () if one.peers is None else one.peers.levels["gpu"].unique()


def _to_watch(rows: Sequence[Verdict]) -> Iterable[str | Table]:
    """GPUs whose newest sitting is slower than their earlier ones."""
    if not rows:
        return
    yield ""
    yield "measure again: the newest sitting is slower than earlier ones, but not surely enough for a finding"
    names = short(row.name for row in rows)
    for row in rows[:_LISTED]:
        where = ", ".join(row.workloads)
        yield f"  {names[row.name]}: {percent(row.effect_pct)} % {interval(row.low_pct, row.high_pct)} in {where}"
    if len(rows) > _LISTED:
        yield f"  and {len(rows) - _LISTED:,} more: --json has all"


def table(rows: Sequence[Verdict], gpus: Iterable[str] = ()) -> Table:
    """One line a finding. The cause stays on the narrowest terminal: it says what to do.

    `gpus`: keys for which no short name may stand.
    """
    header = ("level", "name", "finding", "state", "effect", "[95 %]", "in", "cause, % of the time")
    names = short((one.name for one in rows), gpus)
    cells = [
        [
            str(one.level),
            name(one, names),
            str(one.kind),
            str(one.state),
            effect(one) if one.figure in (TIME, "") else f"{effect(one)} of {measured(one)}",
            interval(one.low_pct, one.high_pct),
            some(one.workloads, 2),
            causes(one),
        ]
        for one in rows
    ]
    return Table(header, cells, (), wrapped=(1, 6, 7), leaves=(0, 6, 5))


def what_to_do(rows: Sequence[Verdict], gpus: Iterable[str] = ()) -> Iterable[str]:
    """Each action once, with the names that it is for. `gpus`: keys for which no short name may stand."""
    by_action: dict[str, list[str]] = {}
    said = short((one.name for one in rows), gpus)
    for one in rows:
        by_action.setdefault(action(one), []).append(said[one.name])
    yield "what to do:"
    for advice, names in by_action.items():
        yield f"  {some(list(dict.fromkeys(names)))}: {advice}"


def not_judged(given: Sequence[NotJudged]) -> Iterable[str]:
    """What was not judged: each reason once, with its subjects."""
    by_why: dict[str, list[str]] = {}
    for no in given:
        by_why.setdefault(why_not(no), []).append(no.subject)
    if by_why:
        yield ""
        yield "not judged:"
    for why, subjects in list(by_why.items())[:_LISTED]:
        yield f"  {some(subjects)}: {why}"
    if len(by_why) > _LISTED:
        yield f"  and {len(by_why) - _LISTED:,} more reasons: --json has all"
