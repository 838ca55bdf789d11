"""What is odd in a cluster: the three answers (which GPUs, why, what to do), each finding, and what was not judged."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ...analysis.verdicts import Judgement, Kind, Level, NotJudged, Smallest, State, Verdict
from ...analysis.verdicts.judgements import Newer
from .. import words
from ..document import Column, Command, Document, Facts, Finding, Findings, Part, Section, Table
from ..words import capital, in_store, listed, many, minute, short_names
from .evidence import action, because, evidence, measured, size, why_none, why_not

DETAILED = 10
"""Findings in full; the others are rows of a table."""
LISTED = 40
"""Rows of a table of findings, and reasons, for people; JSON has all."""
NOTICEABLE_PCT = 10.0
"""GPUs are called fine only where a GPU that is slower by this would have been named."""
_NAMES = 6  # of GPUs in an answer
_WORDS = (
    ("suspected", "seen in one sitting; measure again on another day"),
    ("confirmed", "seen in two sittings or more"),
    ("sitting", "the runs of a GPU without a pause of 6 hours"),
    ("peers", "the other GPUs of the same model, or of the cluster where the model is not known"),
    (
        "effect",
        "how much more than its peers, in % of their level; slower, hotter and more power are positive. Of what is "
        "slower than before, drifting or unstable: against its own past",
    ),
    ("[low, high]", "the 95 % interval: where the level lies in another sitting"),
    ("p", "the chance that a healthy GPU shows this"),
    ("q", "the share of healthy GPUs among all findings that are at least as clear"),
)


# -- the three answers -------------------------------------------------------------------------------------------


def answers(judgement: Judgement, beside: Iterable[str] = ()) -> Facts:
    """Which GPUs, why, and what to do first: a line each. `beside`: keys of GPUs for which no short name may stand."""
    wrong = [verdict for verdict in judgement.rows if verdict.kind is not Kind.FAST]
    named = len({gpu for verdict in wrong for gpu in verdict.gpus})
    the_others = fine(judgement.gpus, named, judgement.smallest)
    if not wrong:
        if not judgement.gpus and not judgement.ranks:
            return Facts([("Which GPUs", "Not known: nothing could be judged.")])
        return Facts([("Which GPUs", f"None. {the_others}".rstrip()), ("What to do", "Nothing now.")])
    names = short_names((verdict.name for verdict in wrong), beside)
    subjects = list(dict.fromkeys(names[verdict.name] for verdict in wrong))
    states = Counter(str(verdict.state) for verdict in wrong)
    sure = ", ".join(f"{n:,} {state}" for state, n in sorted(states.items()))
    kinds = Counter(str(verdict.kind) for verdict in wrong).most_common()
    counted = listed([kind if n == 1 else f"{kind} ({n:,})" for kind, n in kinds], _NAMES)
    worst = wrong[0]
    name = names[worst.name]
    return Facts(
        [
            (
                "Which GPUs",
                f"{listed(subjects, _NAMES)}: {many(len(wrong), 'finding')} ({sure}). {the_others}".rstrip(),
            ),
            ("Why", f"{capital(counted)}{'' if len(kinds) > 1 else f': {words.KINDS[worst.kind]}'}."),
            ("What to do", action(worst) if len(subjects) == 1 else f"First {name}: {action(worst)}"),
        ]
    )


def fine(judged: int, named: int, smallest: Sequence[Smallest]) -> str:
    """That nothing was found about the other GPUs, in a sentence; empty where there are none.

    `judged`: GPUs that were judged; `named`: those about which something was found. They are called fine only where
    one that is slower by `NOTICEABLE_PCT` would have been named in some workload.
    """
    others = judged - named
    if others <= 0:
        return ""
    if not sees_enough(smallest):
        return f"Nothing was found about {'the other ' if named else ''}{many(others, 'GPU')}."
    if named:
        return "The other one is fine." if others == 1 else f"The other {others:,} are fine."
    return "The one GPU that was judged is fine." if others == 1 else f"All {others:,} GPUs are fine."


def sees_enough(smallest: Sequence[Smallest]) -> bool:
    """Whether a GPU that is slower by `NOTICEABLE_PCT` would have been named in some workload."""
    return any(effect.pct is not None and effect.pct <= NOTICEABLE_PCT for effect in smallest)


# -- findings ----------------------------------------------------------------------------------------------------


def findings(verdicts: Iterable[Verdict], beside: Iterable[str] = (), most: int | None = None) -> Findings:
    """Verdicts in sentences, in their order, the worst first. `beside` as of `answers`; `most` of them are drawn."""
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
    """Verdicts, a row each. `beside` as of `answers`."""
    names = short_names((verdict.name for verdict in verdicts), beside)
    rows = [
        (
            name_of(verdict, names),
            str(verdict.kind),
            str(verdict.state),
            None if verdict.effect_pct is None else (verdict.effect_pct, verdict.low_pct, verdict.high_pct),
            measured(verdict),
            because(verdict),
            action(verdict),
        )
        for verdict in verdicts
    ]
    columns = [
        Column("name", page="gpu"),
        Column("finding"),
        Column("state"),
        Column("effect [95 %]", "percent", drops=1),
        Column("of", explains="What the effect is in % of: the level of the peers, or of its own past.", drops=2),
        Column("why", "sentence"),
        Column("what to do", "sentence", drops=3),
    ]
    return Table(columns, rows, title, most=LISTED)


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
    return Table(columns, rows, most=LISTED, cards=True)


def least(effects: Sequence[Smallest]) -> str | None:
    """Below which effect no GPU could have been named, in a sentence; None where there is nothing to say."""
    nameable = sorted(
        (smallest for smallest in effects if smallest.pct is not None), key=lambda smallest: smallest.pct or 0.0
    )
    if not nameable:
        reasons = [reason for smallest in effects if (reason := why_none(smallest))]
        return f"No GPU could have been named for one workload alone: {reasons[0]}." if reasons else None
    parts = [
        f"{smallest.pct:.1f} % in {smallest.workload} ({many(smallest.gpus, 'GPU')}, "
        f"{many(smallest.sittings, 'sitting')} each)"
        for smallest in dict.fromkeys((nameable[0], nameable[-1]))
    ]
    others = len(nameable) - 2
    between = "" if others < 1 else "; the third lies between" if others == 1 else f"; the other {others} lie between"
    return f"Too small to see: a GPU slower by less than about {' or '.join(parts)}{between}."


def to_watch(verdicts: Sequence[Verdict], beside: Iterable[str] = ()) -> Table | None:
    """GPUs to measure again, whose newest sitting is slower than their earlier ones; None for none."""
    if not verdicts:
        return None
    names = short_names((verdict.name for verdict in verdicts), beside)
    rows = [(names[verdict.name], size(verdict) or None, ", ".join(verdict.workloads) or None) for verdict in verdicts]
    return Table(
        [Column("name", page="gpu"), "newest sitting [95 %]", Column("in", "sentence")],
        rows,
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
    """What was found in each cluster: the three answers first, definitions in a fold at the end."""
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
        "Words", [Facts([*_WORDS, *((str(kind), words.KINDS[kind]) for kind in sorted(kinds))])], folded=True
    )


def _cluster(judgement: Judgement, store: str | Path) -> Iterator[Part]:
    beside = list(keys(judgement))
    yield answers(judgement, beside)
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
