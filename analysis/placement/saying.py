"""The advice in one plain sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .worth import Gain

_NAMED = 4


def finding(
    workload: str,
    gpus: int,
    reason: str | None,
    width: float,
    sensitive: bool,
    drained: Sequence[str],
    exclude: Collection[str],
    gains: Sequence[Gain],
    prefer: Sequence[str],
    kept: str | None,
) -> str:
    """What to do with a job of `gpus` GPUs of `workload`, and what it is worth.

    `reason`: why its GPUs cannot be told apart, if so. `width`: how far the usual ones lie apart. `drained`: the hard
    nodes; `exclude`: those to exclude; `kept`: why not all
    of them.
    """
    elsewhere = _elsewhere(prefer)
    if reason is not None:
        return f"No measurable benefit: for {workload}, {reason}; any node will do{elsewhere}."
    best = _best(gains, gpus, drained)
    if not sensitive:
        within = f"its GPUs lie within {_percent(width)}"
        return f"{workload} hardly minds where it runs ({within}): any node will do{elsewhere}{best}."
    if exclude:
        return f"Exclude {_named(sorted(exclude))}{_exclusion(gains)}{best}."
    if drained:
        return f"Slow beyond doubt, but not excluded, as {kept}: {_named(drained)}{best}."
    return f"Exclude nothing{best}."


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
