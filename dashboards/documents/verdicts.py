"""What is odd in a cluster: how many GPUs, each finding with its reason and what to do, and what was not judged."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...analysis.verdicts import Judgement, Kind, Level, NotJudged, Smallest, State, Verdict
from ...analysis.verdicts.judgements import Newer
from ...analysis.verdicts.verdict import Gap
from .. import words
from ..document import (
    WORDS,
    Cell,
    Column,
    Command,
    Document,
    Facts,
    Finding,
    Findings,
    Part,
    Section,
    Table,
    TableColumns,
)
from ..words import capital, in_store, listed, many, minute, short_names
from .evidence import action, because, evidence, measured, size, why_none, why_not

DETAILED = 10
"""Findings in full; the others are rows of a table."""
LISTED = 40
"""Rows of a table of findings, and reasons, for people; JSON has all."""
NOTICEABLE_PCT = 10.0
"""GPUs are called fine only where a GPU that is slower by this would have been named."""
MEANINGS = {
    "suspected": "seen in one sitting; measure again on another day",
    "confirmed": "seen in two sittings or more",
    "sitting": "the runs of a GPU without a pause of 6 hours",
    "peers": "the other GPUs of the same model, or of the cluster where the model is not known",
    "effect": "how much more than its peers, in % of their level; slower, hotter and more power are positive. Of what "
    "is slower than before, drifting or unstable: against its own past",
    "[low, high]": "the 95 % interval: where the level lies in another sitting",
    "p": "the chance that a healthy GPU shows this",
    "q": "the share of healthy GPUs among all findings that are at least as clear",
}
"""What the words of findings mean."""


# -- how many ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuCounts:
    """How many GPUs of a cluster there are, were judged, and have something wrong."""

    gpus: int
    judged: int
    odd: int
    upper_bounds: bool = False
    """Whether a GPU may have two names, so that these are upper bounds."""

    @classmethod
    def of(cls, judgement: Judgement) -> GpuCounts:
        """By the judgement alone, where nothing else is known of the cluster; of a training job, its ranks."""
        wrong = [verdict for verdict in judgement.rows if verdict.kind is not Kind.FAST]
        gpus = judgement.gpus or judgement.ranks
        odd = len({name for verdict in wrong for name in (verdict.gpus or (verdict.name,))})
        return cls(max(gpus, odd), gpus, odd)


def headline(judgement: Judgement, counted: GpuCounts | None = None) -> str:
    """How many GPUs are odd and how many are fine, in a sentence or two."""
    counted = counted or GpuCounts.of(judgement)
    odd = counted.odd
    subject = "GPU" if judgement.gpus or not judgement.ranks else "rank"
    subjects = many(counted.gpus, subject)
    if not judgement.rows and not counted.judged and not judgement.ranks:
        if not counted.gpus:
            return "Nothing could be judged."
        return f"None of {subjects} could be judged." if counted.gpus > 1 else "The one GPU could not be judged."
    others = fine(counted.judged, odd, judgement.smallest, subject=subject)
    if counted.upper_bounds and others:
        others = "The others are fine." if sees_enough(judgement.smallest) else "Nothing was found about the others."
    if newer := sum(gap.why is Gap.NEWER for gap in judgement.not_judged):
        others = f"{many(newer, 'finding')} of a newer whorl cannot be read."
    if not odd:
        none = f"No {subject} is slow or faulty." if judgement.rows else f"No {subject} stands out."
        return f"{none} {others}".rstrip()
    upto = "up to " if counted.upper_bounds else ""
    return f"{odd:,} of {upto}{subjects} {'stands' if odd == 1 else 'stand'} out. {others}".rstrip()


def fine(judged: int, odd: int, smallest: Sequence[Smallest], *, subject: str) -> str:
    """That nothing was found about the others (`subject`: GPU or rank) that were judged, in a sentence; empty for none.

    They are called fine only where one that is slower by `NOTICEABLE_PCT` would have been named in some workload.
    """
    others = judged - odd
    if others <= 0:
        return ""
    if not sees_enough(smallest):
        return f"Nothing was found about {'the other ' if odd else ''}{many(others, subject)}."
    if odd:
        return "The other one is fine." if others == 1 else f"The other {others:,} are fine."
    return "The one GPU that was judged is fine." if others == 1 else f"All {others:,} GPUs are fine."


def sees_enough(smallest: Sequence[Smallest]) -> bool:
    """Whether a GPU that is slower by `NOTICEABLE_PCT` would have been named in some workload."""
    return any(effect.pct is not None and effect.pct <= NOTICEABLE_PCT for effect in smallest)


# -- findings ----------------------------------------------------------------------------------------------------


def findings(verdicts: Iterable[Verdict], beside: Iterable[str] = (), most: int | None = None) -> Findings:
    """Verdicts in sentences, in their order, the worst first. `beside`: keys of GPUs for which no short name may stand;
    `most` of them are drawn."""
    rows = list(verdicts)
    names = short_names((verdict.name for verdict in rows), beside)
    return Findings([finding(verdict, names[verdict.name]) for verdict in rows], most)


def finding(verdict: Verdict, name: str | None = None) -> Finding:
    """A verdict in sentences. `name`: a shorter one, where there is one."""
    return Finding(
        name=name or verdict.name,
        kind=str(verdict.kind),
        state=str(verdict.state),
        size=size(verdict),
        because=f"{capital(because(verdict))}.",
        action=action(verdict),
        evidence=evidence(verdict),
        gpus=verdict.gpus,
        severe=verdict.kind is not Kind.FAST and verdict.state is State.CONFIRMED,
    )


def table(verdicts: Sequence[Verdict], beside: Iterable[str] = (), title: str = "") -> Table:
    """Verdicts, a row each. `beside` as of `findings`."""
    names = short_names((verdict.name for verdict in verdicts), beside)
    of = Column("of", explains="What the effect is in % of: the level of the peers, or of its own past.", drops=2)
    columns: TableColumns = [
        (Column("name", page="gpu"), lambda verdict: name_of(verdict, names)),
        ("finding", "kind"),
        ("state", "state"),
        (Column("effect [95 %]", "percent", drops=1), effect),
        (of, measured),
        (Column("why", "sentence"), because),
        (Column("what to do", "sentence", drops=3), action),
    ]
    return Table.of(verdicts, columns, title, most=LISTED)


def effect(verdict: Verdict) -> Cell:
    """The effect with its interval, %; None where none was measured."""
    return None if verdict.effect_pct is None else (verdict.effect_pct, verdict.low_pct, verdict.high_pct)


def name_of(verdict: Verdict, names: Mapping[str, str]) -> str:
    """The short name of what a verdict is about; of a node or a batch, with its number of GPUs."""
    counted, name = many(len(verdict.gpus), "GPU"), names[verdict.name]
    single = verdict.level in (Level.GPU, Level.RANK) or verdict.name == counted
    return name if single else f"{name} ({counted})"


def keys(judgement: Judgement) -> Iterable[str]:
    """The keys of all GPUs that were compared, so that no name is short for two of them."""
    return () if judgement.peers is None else judgement.peers.levels["gpu"].unique()


# -- what was not judged, and what could not be named ------------------------------------------------------------


def not_judged(gaps: Sequence[NotJudged]) -> Table | None:
    """What was not judged, and why: each reason once, with its subjects; None where all was judged."""
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        by_reason.setdefault(why_not(gap), []).append(gap.subject)
    if not by_reason:
        return None
    rows = [(listed(subjects), reason) for reason, subjects in by_reason.items()]
    columns = [Column("not judged", "sentence"), Column("why", "sentence")]
    return Table(columns, rows, most=LISTED)


def least(effects: Sequence[Smallest]) -> str | None:
    """Below which effect no GPU could have been named, in a sentence; None where there is nothing to say."""
    nameable = sorted(
        (smallest for smallest in effects if smallest.pct is not None), key=lambda smallest: smallest.pct or 0.0
    )
    if not nameable:
        reasons = [reason for smallest in effects if (reason := why_none(smallest))]
        return f"No GPU could have been named for one workload alone: {reasons[0]}." if reasons else None
    parts = [
        f"{smallest.pct:.1f} % in {smallest.workload} ({_by_time_alone(smallest)}{many(smallest.gpus, 'GPU')}, "
        f"{many(smallest.sittings, 'sitting')} each)"
        for smallest in dict.fromkeys((nameable[0], nameable[-1]))
    ]
    others = len(nameable) - 2
    between = "" if others < 1 else "; the third lies between" if others == 1 else f"; the other {others} lie between"
    return f"Too small to see: a GPU slower by less than about {' or '.join(parts)}{between}."


def _by_time_alone(smallest: Smallest) -> str:
    """What a GPU must be slower by whose lower clock tells why, where that is more."""
    alone = f"{smallest.any_clock_pct or 0.0:.1f} %"
    return "" if smallest.any_clock_pct is None or alone == f"{smallest.pct:.1f} %" else f"{alone} at a lower clock; "


def to_watch(verdicts: Sequence[Verdict], beside: Iterable[str] = ()) -> Table | None:
    """GPUs to measure again, whose newest sitting is slower than their earlier ones; None for none."""
    if not verdicts:
        return None
    names = short_names((verdict.name for verdict in verdicts), beside)
    return Table.of(
        verdicts,
        [
            (Column("name", page="gpu"), lambda verdict: names[verdict.name]),
            ("newest sitting [95 %]", lambda verdict: size(verdict) or None),
            (Column("in", "sentence"), lambda verdict: ", ".join(verdict.workloads) or None),
        ],
        "Measure again",
        "The newest sitting is slower than earlier ones, but not surely enough for a finding of its own.",
        most=LISTED,
    )


def as_judged(judged_at: datetime | None, newer: Newer, command: str = "") -> str:
    """That runs or events came after the judging, in a sentence that ends with what to type."""
    counted = [many(n, word) for n, word in ((newer.runs, "run"), (newer.facts, "event")) if n]
    came = f"{' and '.join(counted)} of its cluster came since"
    return f"As judged on {minute(judged_at)} UTC; {came}. To judge again: {command}".rstrip(" ")


# -- the document of `whorl verdicts` ----------------------------------------------------------------------------


def document(judgements: Sequence[Judgement], store: str | Path) -> Document:
    """What was found in each cluster, how many GPUs are odd first; definitions in a fold at the end."""
    if len(judgements) == 1:
        parts = list(_cluster(judgements[0], store))
    else:
        parts = [Section(f"Cluster {judgement.cluster}", list(_cluster(judgement, store))) for judgement in judgements]
    met = {verdict.kind for judgement in judgements for verdict in judgement.rows}
    parts += [definitions(met)] if met else []
    return Document("Which GPUs are odd", parts)


def compared(judgement: Judgement) -> str:
    """How many GPUs and ranks were judged, by how many comparisons."""
    subjects = [many(judgement.gpus, "GPU")] if judgement.gpus or not judgement.ranks else []
    subjects += [many(judgement.ranks, "rank")] if judgement.ranks else []
    return f"{' and '.join(subjects)} judged, {many(judgement.looks, 'comparison')}"


def definitions(kinds: Iterable[Kind]) -> Section:
    """What the words of findings mean, in a fold: those of every finding, and those of these kinds."""
    return Section(
        WORDS, [Facts([*MEANINGS.items(), *((str(kind), words.KINDS[kind]) for kind in sorted(kinds))])], folded=True
    )


def _cluster(judgement: Judgement, store: str | Path) -> Iterator[Part]:
    beside = list(keys(judgement))
    yield headline(judgement)
    yield f"Cluster {judgement.cluster}: {compared(judgement)}."
    if judgement.rows:
        yield findings(judgement.rows[:DETAILED], beside)
    if others := judgement.rows[DETAILED:]:
        yield table(others, beside, f"The other {many(len(others), 'finding')}")
    if (smallest := least(judgement.smallest)) is not None:
        yield smallest
    for part in (to_watch(judgement.watch, beside), not_judged(judgement.not_judged)):
        if part is not None:
            yield part
    if judgement.rows:
        name = judgement.rows[0].name
        called = shlex.quote(short_names([name], beside)[name])
        yield Command(f"whorl explain {called} {in_store(store, judgement.cluster)}")
