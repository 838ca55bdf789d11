"""The advice in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...store.names import by_number

if TYPE_CHECKING:
    from .once import Suspect
    from .tiers import NodeEvidence
    from .workload_scores import WorkloadScores
    from .worth import Gain

_NAMED = 4


def finding(
    one: WorkloadScores,
    gpus: int,
    width: float,
    sensitive: bool,
    slow: Sequence[NodeEvidence],
    hard: float,
    gains: Sequence[Gain],
    prefer: Sequence[str],
    kept: str | None,
    suspected: Sequence[Suspect] = (),
) -> str:
    """What to do with a job of `gpus` GPUs of a workload, and how much time that saves.

    `one`: its scores. `width`: the relative distance between the 5th and 95th percentile of the scores. `slow`: the
    hard and the soft nodes, the worst first. `hard`: the slowdown from which a node is excluded. `kept`: why some
    hard nodes are not excluded. `suspected`: slow beyond doubt, where it is not known what repeats; the worst first.
    """
    workload, reason = one.workload, one.reason
    drained = [node.node for node in slow if node.tier == "hard"]
    exclude = [node.node for node in slow if node.excluded]
    elsewhere = _elsewhere(prefer)
    if reason is not None and one.p is None and suspected:
        return _suspicion(workload, suspected)
    if reason is not None and one.p is None:
        return f"No measurable benefit: for {workload}, {reason}."  # it is unknown whether any node is as good
    if reason is not None:
        return f"No measurable benefit: for {workload}, {reason}. Use any node{elsewhere}."
    best = _best(gains, gpus, drained)
    if not sensitive:
        within = f"90 % of the GPUs lie within {percent(width)}"
        if not slow:
            return f"{workload} runs almost equally fast on all GPUs ({within}). Use any node{elsewhere}{best}."
        return f"Exclude nothing: {_soft(slow, hard)}. The others are almost equal ({within}){elsewhere}{best}."
    if exclude:
        return f"Exclude {_named(sorted(exclude, key=by_number))}{_exclusion(gains)}{best}."
    if drained:
        return f"Certainly slow, but not excluded because {kept}: {_named(drained)}{best}."
    return f"Exclude nothing{f': {_soft(slow, hard)}' if slow else ''}{best}."


def _soft(slow: Sequence[NodeEvidence], hard: float) -> str:
    """Why slow nodes are not excluded. The first one of `slow` is the slowest."""
    worst = slow[0]
    time = f"{worst.slowdown:.3f} times the usual time ({worst.lower:.3f} to {worst.upper:.3f})"
    if worst.lower <= hard:
        why = f"but the interval is not above {hard:g}"
    elif worst.runs < 2:
        why = "but has only one run: measure it again"
    else:
        why = "but does not stand out: too many nodes are slow, or there are too few runs to rule out chance"
    more = f"; {len(slow) - 1:,} more {'is' if len(slow) == 2 else 'are'} slow too" if len(slow) > 1 else ""
    return f"{worst.node} takes {time}, {why}{more}"


def _suspicion(workload: str, suspected: Sequence[Suspect]) -> str:
    worst = suspected[0]
    more = f" ({', '.join(its.gpu_name for its in suspected[1:_NAMED])}" if len(suspected) > 1 else ""
    more += f" and {len(suspected) - _NAMED:,} more" if len(suspected) > _NAMED else ""
    more += f" {'is' if len(suspected) == 2 else 'are'} slow too)" if more else ""
    p = "" if worst.p is None else f" (p = {worst.p:.0e})" if worst.p >= 1e-12 else " (p < 1e-12)"
    seen = len(worst.workloads)
    where = f"{workload}, and is slow in {seen} workloads" if seen > 1 else workload
    return (
        f"{worst.gpu_name} takes {worst.slowdown:.2f} times the usual time in {where}: beyond doubt{p}{more}. "
        "Exclude nothing yet: all of this is of one sitting, and a second one is missing. Measure again on another day."
    )


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def _elsewhere(prefer: Sequence[str]) -> str:
    if not prefer:
        return ""
    which = f"{prefer[0]} is" if len(prefer) == 1 else f"{len(prefer)} nodes are"
    return f"; {which} slow only in other workloads"


def _exclusion(gains: Sequence[Gain]) -> str:
    for gain in gains:
        if gain.choice == "exclude":
            return f": a random job then takes {_less(gain)}" if gain.measurable else " (no measurable benefit)"
    return ""


def _best(gains: Sequence[Gain], gpus: int, drained: Sequence[str]) -> str:
    others = "a random choice that avoids the slow nodes" if drained else "a random choice"
    for choice, spoken in (("packed", "packed "), ("spread", "")):
        for gain in gains:
            if (gain.choice, gain.against) != (choice, "drained"):
                continue
            best = "the best GPU" if gpus == 1 else f"the best {spoken}{gpus} GPUs"
            if not gain.measurable:
                return f"; {best}: no measurable benefit over {others}"
            return f"; {best}: {_less(gain)} than {others}"
    return ""


def _less(gain: Gain) -> str:
    return f"{percent(gain.median)} ({percent(gain.lower)} to {percent(gain.upper)}) less time"


def percent(share: float) -> str:
    """A share in %, to a tenth; what rounds to 0 has no sign."""
    return f"{100.0 * share:.1f} %".replace("-0.0", "0.0")
