"""The advice in one plain sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scores import WorkloadScores
    from .tiers import NodeEvidence
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
) -> str:
    """What to do with a job of `gpus` GPUs of a workload, and what it is worth.

    `one`: its scores. `width`: how far the usual ones lie apart. `slow`: the hard and the soft nodes, the worst first;
    `hard`: from where a node is excluded; `kept`: why not all hard ones are.
    """
    workload, reason = one.workload, one.reason
    drained = [node.node for node in slow if node.tier == "hard"]
    exclude = [node.node for node in slow if node.excluded]
    elsewhere = _elsewhere(prefer)
    if reason is not None and one.p is None:
        return f"No measurable benefit: for {workload}, {reason}."  # whether any node will do, nobody knows
    if reason is not None:
        return f"No measurable benefit: for {workload}, {reason}; any node will do{elsewhere}."
    best = _best(gains, gpus, drained)
    if not sensitive:
        within = f"nine in ten of its GPUs lie within {_percent(width)}"
        if not slow:
            return f"{workload} hardly minds where it runs ({within}): any node will do{elsewhere}{best}."
        return f"Exclude nothing: {_soft(slow, hard)}; the others do not matter ({within}){elsewhere}{best}."
    if exclude:
        return f"Exclude {_named(sorted(exclude))}{_exclusion(gains)}{best}."
    if drained:
        return f"Slow beyond doubt, but not excluded, as {kept}: {_named(drained)}{best}."
    return f"Exclude nothing{f': {_soft(slow, hard)}' if slow else ''}{best}."


def _soft(slow: Sequence[NodeEvidence], hard: float) -> str:
    """Why nodes that are slow are not excluded: the first is the slowest."""
    worst = slow[0]
    time = f"{worst.slowdown:.3f} times as long as usual ({worst.lower:.3f} to {worst.upper:.3f})"
    if worst.lower <= hard:
        why = f"which is not above {hard:g} beyond doubt"
    elif worst.runs < 2:
        why = "by one run only: measure it again"
    else:
        why = "but does not stand out: too many are slow, or too few runs rule out chance"
    more = f"; {len(slow) - 1:,} more {'is' if len(slow) == 2 else 'are'} slow too" if len(slow) > 1 else ""
    return f"{worst.node} takes {time}, {why}{more}"


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def _elsewhere(prefer: Sequence[str]) -> str:
    if not prefer:
        return ""
    which = prefer[0] if len(prefer) == 1 else f"the {len(prefer)} nodes"
    return f", also {which}, slow in other workloads"


def _exclusion(gains: Sequence[Gain]) -> str:
    for gain in gains:
        if gain.choice == "exclude":
            return f": a random job then takes {_less(gain)}" if gain.measurable else " (no measurable benefit)"
    return ""


def _best(gains: Sequence[Gain], gpus: int, drained: Sequence[str]) -> str:
    others = "a random choice off the slow nodes" if drained else "a random choice"
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
    return f"{_percent(gain.median)} ({_percent(gain.lower)} to {_percent(gain.upper)}) less time"


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %".replace("-0.0", "0.0")
