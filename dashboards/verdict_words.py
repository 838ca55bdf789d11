"""The parts of a verdict as text, for pages and terminals alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..analysis.verdicts import Level, Smallest, Verdict
from ..analysis.verdicts.channels import CHANNELS, THROTTLED
from .table import MISSING, many

_NAMED = 4
_PART = 12  # of a UUID: `GPU-` and eight digits
_OF = {one.name: one.unit for one in CHANNELS} | {THROTTLED.name: "its runs"}
EFFECT_SAYS = (
    "effect: how much more than its peers, in % of their level: of their time, or of what it names, W, MHz or K/W "
    "(kelvin a watt); of its runs, how many more of 100. The time of what is slower than before, drifting or "
    "unstable: more than its own level. Slower, hotter and more are positive. [95 %]: where the level lies in another "
    "sitting"
)


def name(one: Verdict, shorter: Mapping[str, str] | None = None) -> str:
    """The name, with the number of GPUs where it is not that of one and does not say it."""
    counted = many(len(one.gpus), "GPU")
    plain = (shorter or {}).get(one.name, one.name)
    return plain if one.level == Level.GPU or one.name == counted else f"{plain} ({counted})"


def short(names: Iterable[str]) -> dict[str, str]:
    """Names for a table: of a UUID a first part that no other of the names has, which every command takes."""
    every = set(names)
    found = {one: one for one in every}
    long = {one for one in every if len(one) > 2 * _PART and one[:4] in ("GPU-", "MIG-")}
    cut = _PART
    while long:
        parts = Counter(one[:cut] for one in every)
        found |= {one: one[:cut] for one in long if parts[one[:cut]] == 1}
        long = {one for one in long if parts[one[:cut]] > 1 and cut < len(one)}
        cut += 1
    return found


def effect(one: Verdict) -> str:
    """The effect with its unit: `+6.1 %`; n/a where nothing was measured."""
    return MISSING if one.effect_pct is None else f"{percent(one.effect_pct)} %"


def measured(one: Verdict) -> str:
    """What the effect is of: `time`, `K/W`, `its runs`; nothing where there is none."""
    return "" if one.effect_pct is None else _OF.get(one.figure, one.figure)


def kin(model: str | None) -> str:
    """Which GPUs a GPU is compared with: those of its model, or of its cluster where nobody knows the model."""
    return "GPUs of its model" if model else "GPUs of its cluster"


def least(given: Sequence[Smallest]) -> str | None:
    """Below which effect no GPU could have been named, in a sentence; None where there is nothing to say."""
    known = sorted((one for one in given if one.pct is not None), key=lambda one: one.pct or 0.0)
    if not known:
        whys = list(dict.fromkeys(one.why for one in given if one.why))
        return f"No GPU could have been named for one workload alone: {whys[0]}." if whys else None
    parts = [
        f"{one.pct:.1f} % in {one.workload} ({many(one.gpus, 'GPU')}, {many(one.sittings, 'sitting')} each)"
        for one in dict.fromkeys((known[0], known[-1]))
    ]
    of = "" if len(known) < 3 else f"; the other {len(known) - 2} workloads lie between"
    return f"A GPU slower by less than about {' or '.join(parts)} could not have been named{of}."


def causes(one: Verdict) -> str:
    """The parts of the effect in words: `4.0 power cap, 1.3 heat`."""
    parts = [f"{part.pct:.1f} {part.what}" for part in one.causes if abs(part.pct) >= 0.05]
    return ", ".join(parts) if parts else MISSING


def chances(one: Verdict) -> list[str]:
    """p and q, where it has them."""
    return [f"{sign} {chance:.1g}" for sign, chance in (("p", one.p), ("q", one.q)) if chance is not None]


def percent(value: float | None) -> str:
    """With a sign; what rounds to 0 has none."""
    if value is None:
        return MISSING
    text = f"{value:+.1f}"
    return text if text.strip("+-.0") else text[1:]


def interval(low: float | None, high: float | None) -> str:
    """A 95 % interval; n/a where there is none."""
    return MISSING if low is None or high is None else f"[{percent(low)}, {percent(high)}]"


def some(names: Sequence[str], most: int = _NAMED) -> str:
    """The first of several names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else MISSING
