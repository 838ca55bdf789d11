"""A verdict in words: its sentence, what to do, what it was compared with, and its parts, for pages and terminals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..analysis.runs.probing import OF_HARDWARE, OF_MEMORY
from ..analysis.verdicts import Judgement, Kind, Level, NotJudged, Smallest, Verdict
from ..analysis.verdicts import channels as of_channels
from ..analysis.verdicts.channels import CHANNELS, THROTTLED
from ..analysis.verdicts.compare import LEAST_GPUS
from ..analysis.verdicts.judgements import Newer
from ..analysis.verdicts.planted import HIDING, LOOKS_LIKE, Miss, Planted
from ..analysis.verdicts.verdict import TIME, Action, Change, ComparedWith, Gap, Measured, Part, Quantity
from .table import MISSING, many, minute

SCHEMA = "whorl.verdicts/1"

_NAMED = 4
_PART = 12  # of a UUID: `GPU-` and eight digits
_OF = {one.name: one.unit for one in CHANNELS} | {THROTTLED.name: "its runs"}
EFFECT_SAYS = (
    "effect: how much more than its peers, in % of their level: of their time, or of what it names, W, MHz or K/W "
    "(kelvin a watt); of its runs, how many more of 100. The time of what is slower than before, drifting or "
    "unstable: more than its own level. Slower, hotter and more are positive. [95 %]: where the level lies in another "
    "sitting"
)


def name(verdict: Verdict, shorter: Mapping[str, str] | None = None) -> str:
    """The name, with the number of GPUs where it is not that of one and does not say it."""
    counted = many(len(verdict.gpus), "GPU")
    plain = (shorter or {}).get(verdict.name, verdict.name)
    return plain if verdict.level in (Level.GPU, Level.RANK) or verdict.name == counted else f"{plain} ({counted})"


def short(names: Iterable[str], beside: Iterable[str] = ()) -> dict[str, str]:
    """Names for a table: of a UUID a first part that no other of the names has, nor one `beside` them, so that every
    command takes it."""
    listed = set(names)
    names_beside = listed | set(beside)
    shortened = {full: full for full in listed}
    long = {full for full in listed if len(full) > 2 * _PART and full[:4] in ("GPU-", "MIG-")}
    cut = _PART
    while long:
        parts = Counter(full[:cut] for full in names_beside)
        shortened |= {full: full[:cut] for full in long if parts[full[:cut]] == 1}
        long = {full for full in long if parts[full[:cut]] > 1 and cut < len(full)}
        cut += 1
    return shortened


def effect(verdict: Verdict) -> str:
    """The effect with its unit: `+6.1 %`; n/a where nothing was measured."""
    return MISSING if verdict.effect_pct is None else f"{percent(verdict.effect_pct)} %"


def measured(verdict: Verdict) -> str:
    """What the effect is of: `time`, `K/W`, `its runs`; nothing where there is none."""
    return "" if verdict.effect_pct is None else _OF.get(verdict.figure, verdict.figure)


def kin(model: str | None) -> str:
    """Which GPUs a GPU is compared with: those of its model, or of its cluster where nobody knows the model."""
    return "GPUs of its model" if model else "GPUs of its cluster"


def least(effects: Sequence[Smallest]) -> str | None:
    """Below which effect no GPU could have been named, in a sentence; None where there is nothing to say."""
    nameable = sorted(
        (smallest for smallest in effects if smallest.pct is not None), key=lambda smallest: smallest.pct or 0.0
    )
    if not nameable:
        whys = [why for smallest in effects if (why := why_none(smallest))]
        return f"No GPU could have been named for one workload alone: {whys[0]}." if whys else None
    parts = [
        f"{smallest.pct:.1f} % in {smallest.workload} ({many(smallest.gpus, 'GPU')}, "
        f"{many(smallest.sittings, 'sitting')} each)"
        for smallest in dict.fromkeys((nameable[0], nameable[-1]))
    ]
    others = len(nameable) - 2
    between = "" if others < 1 else "; the third lies between" if others == 1 else f"; the other {others} lie between"
    return f"A GPU slower by less than about {' or '.join(parts)} could not have been named{between}."


def causes(verdict: Verdict) -> str:
    """The parts of the effect in words: `4.0 power cap, 1.3 heat`."""
    parts = [f"{part.pct:.1f} {part.what}" for part in verdict.causes if abs(part.pct) >= 0.05]
    return ", ".join(parts) if parts else MISSING


def chances(verdict: Verdict) -> list[str]:
    """p and q, where it has them."""
    return [f"{sign} {chance:.1g}" for sign, chance in (("p", verdict.p), ("q", verdict.q)) if chance is not None]


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
    others = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + others if names else MISSING


# -- what to do, and what it was compared with --------------------------------------------------------------------

_ACTIONS = {
    Action.SET_POWER_LIMIT: "Set its power limit to that of its peers: `nvidia-smi -i GPU -pl WATTS`.",
    Action.CHECK_POWER_SUPPLY: "Check the node's power supplies and cables: they assert the external power brake.",
    Action.CHECK_POWER_THEN_COOLING: "Check its power cables and supplies, then its cooling; if that does not help, "
    "ask the vendor.",
    Action.RECORD_CLOCK_REASONS: "Record why its clock is held (`whorl collect`), then check power supplies and "
    "cooling.",
    Action.CLEAN_COOLING: "Clean its heat sink and filters, and check fans, airflow and inlet temperature; then its "
    "thermal paste.",
    Action.CHECK_HOT_SPOT: "Check its hot spot, the temperature of its memory and the seating of its cooler: the "
    "hardware tells of heat where the sensor shows none.",
    Action.RESET_CLOCK: "Look for a clock that is set by hand (`nvidia-smi -q -d CLOCK`) and reset it: "
    "`nvidia-smi -rgc`.",
    Action.RESET_MEMORY_CLOCK: "Look for a memory clock that is set by hand and reset it: `nvidia-smi -rmc`.",
    Action.CHECK_HOST: "Check the host: its processor clocks, memory, storage and network, and what else runs there.",
    Action.CHECK_HOST_OF_NODE: "Check the host: its processor clocks, memory, power supplies and links; its GPUs are "
    "slow alike.",
    Action.GIVE_LIGHTER_WORK: "Nothing is broken: give it work that needs less power, or that does not wait for it.",
    Action.CHECK_MEMORY: "Check its ECC errors and retired or remapped memory rows; if there are many, replace it.",
    Action.CHECK_PCIE: "Check width and generation of its PCIe link (`nvidia-smi -q -d PCI`), and reseat it.",
    Action.CHECK_NVLINK: "Check its NVLinks, how many are up and their errors: `nvidia-smi nvlink -s` and `-e`.",
    Action.RUN_FULL_SUITE: "Run the full suite of probes on it and on a peer, to find what is slow.",
    Action.CHECK_LEAKAGE: "Give it work that needs less power; check its cooling, as hot silicon leaks more.",
    Action.PROBE_LONGER: "Run the probes again for longer, with `whorl collect` beside them, to find what comes and "
    "goes.",
    Action.FIND_CHANGE: "Find out what changed then: driver, firmware, place, cooling, settings. If nothing did, run "
    "the full suite of probes on it.",
    Action.FIND_COMMON_CHANGE: "Find out what changed then (driver, firmware, room), and try the earlier state on one "
    "node.",
    Action.COMPARE_BOARDS: "Compare firmware, driver and board of these GPUs with those of the others.",
    Action.PLAN_REPAIR: "Plan its cleaning or repair before it gets worse; check its cooling first.",
    Action.DISTRUST_SENSOR: "Leave its power out of energy accounts; reload the driver or reset the GPU.",
    Action.READ_MEMORY_COUNTERS: "Read its counters of errors, retired pages and remapped rows (`nvidia-smi -q`). "
    "Reset it if one is pending; if errors come again, replace it.",
    Action.STOP_USING: "Take it out of service now and run the vendor's diagnostics; results computed on it are "
    "suspect.",
    Action.RESET_AND_PROBE: "Read the node's log for its XID errors, reset it and run the probes again.",
    Action.REBOOT_NODE: "Take the node out of service; check its XID errors, its seating and its power, then reboot "
    "it.",
    Action.CHECK_PLACE: "Put no other card there before you have checked the place: slots, risers, power supplies and "
    "cables, cooling. The cards that failed there may be sound: test them in another node.",
    Action.COMPARE_PLACES: "Compare this place in several nodes with the others: airflow, temperature, risers, power "
    "cables. If it is the chassis, ask its vendor.",
    Action.PROBE_RANKS: "Run the full suite of probes on the GPU of this rank and on that of a peer, to find what is "
    "slow.",
    Action.PROBE_TENSOR_GROUP: "Run the full suite of probes on the GPUs of all ranks that compute these layers "
    "together (tensor parallelism): they wait for each other, so any of them may be the slow one.",
    Action.NOTHING: "Nothing to do; see whether its settings differ from those of its peers.",
}


def action(verdict: Verdict) -> str:
    """What to do, in a sentence."""
    return _ACTIONS[verdict.action]


def reference(verdict: Verdict) -> str:
    """What it was compared with: `16 GPUs of its model`; nothing of what was seen and not compared."""
    if verdict.reference is None:
        return ""
    if verdict.reference is ComparedWith.PAST:
        return "its own earlier sittings"
    if verdict.reference is ComparedWith.RANKS:
        by_figure = {value.figure: value for value in verdict.measured}
        stage, job = by_figure[Quantity.RANKS].value, by_figure[Quantity.TRAINING_JOB].text
        steps = _number(by_figure[Quantity.RATIO].limit)
        return f"{verdict.n} ranks of stage {_number(stage):.0f} with the same work, {steps:.0f} steps of {job}"
    if verdict.reference is ComparedWith.PLACES:
        return f"{verdict.n} {verdict.name.partition(' ')[0]}s of the same cluster"
    if verdict.level is not Level.GPU:
        return f"{verdict.n} {_PEERS[verdict.reference]} of the same {'model' if verdict.model else 'cluster'}"
    group = f" of {verdict.model}" if verdict.model else " of its cluster"
    figure = "time at its clock" if verdict.at_clock else verdict.figure
    return f"{verdict.n} GPUs{group}" + (f", {figure}" if figure != TIME else "")


_PEERS = {ComparedWith.GPUS: "GPUs", ComparedWith.NODES: "nodes"}


# -- the sentence of a finding ------------------------------------------------------------------------------------

_CHANNEL_SAYS = {
    of_channels.RISE.name: "it warms more a watt",
    of_channels.WARM.name: "it is hotter in the same work",
    of_channels.HUNGRY.name: "it draws more power at the same clock and temperature",
    of_channels.TOP.name: "its clock stays lower, whatever runs, and it is not hot",
    of_channels.UNDER.name: "it draws less at no higher clock, where its peers are at their power limit",
    of_channels.IDLING.name: "it draws less power at the same clock: it waits for something outside the GPU",
    of_channels.THROTTLED.name: "heat, a brake or the hardware holds its clock in more of its runs",
}
_HELD_BY = {
    Quantity.HELD_BY_BRAKE: Part.BRAKE,
    Quantity.HELD_BY_HEAT: Part.HEAT,
    Quantity.HELD_BY_HARDWARE: Part.SLOWDOWN,
}
_CHANGED = {
    Quantity.VBIOS: "VBIOS", Quantity.DRIVER: "driver", Quantity.CABINET: "cabinet", Quantity.CUBLAS: "cuBLAS",
    Quantity.KERNEL: "kernel of the probe", Quantity.PROBE_VERSION: "version of the probe", Quantity.NODE: "node",
    Quantity.SLOT: "slot",
}  # fmt: skip
_CHANGED_FROM = {
    Quantity.TEMPERATURE: ("its temperature", "°C"),
    Quantity.NEIGHBOURS_TEMPERATURE: ("that of the other GPUs of its node", "°C"),
    Quantity.CLOCK: ("SM clock", "MHz"),
    Quantity.POWER: ("power", "W"),
}
_NAMED_TOGETHER = 6  # GPUs in a sentence


def sentence(verdict: Verdict) -> str:
    """The finding in a sentence without a full stop."""
    by_kind = _SEEN.get(verdict.kind)
    if by_kind is not None and not verdict.figure:
        return by_kind(verdict, {value.figure: value for value in verdict.measured})
    if verdict.kind is Kind.LOSES:
        return _loses(verdict, {value.figure: value for value in verdict.measured})
    if verdict.reference is ComparedWith.PAST:
        return _of_past(verdict)
    if verdict.reference is ComparedWith.RANKS:
        return _of_rank(verdict)
    if verdict.figure != TIME:
        return _of_channel(verdict)
    if verdict.level is Level.BATCH:
        return _of_batch(verdict)
    if verdict.level is Level.NODE:
        return f"all {len(verdict.gpus)} GPUs of {verdict.name} together: {_slow(verdict)}"
    if verdict.kind is Kind.FAST:
        return _slow(verdict) + (" at the clock that it has" if verdict.at_clock else "")
    return _slow(verdict) + ("; time at its clock" if verdict.at_clock else "")


def _slow(verdict: Verdict) -> str:
    """By how much it is slower, in which parts, and the figures that tell these."""
    effect_pct = verdict.effect_pct or 0.0
    text = f"{abs(effect_pct):.1f} % {_ways(effect_pct)} in {', '.join(verdict.workloads[:1])}"
    parts = verdict.causes
    if len(parts) > 1 or (parts and parts[0].what != Part.UNEXPLAINED):
        text += ": " + ", ".join(f"{part.pct:.1f} {part.what}" for part in parts if abs(part.pct) >= 0.05)
    figures = [beside for value in verdict.measured if (beside := _beside(value))]
    xids = [f"{value.value:.0f}" for value in verdict.measured if value.figure == Quantity.XID]
    figures += [f"errors of its memory: XID {', '.join(xids)}"] if xids else []
    return text + (f" ({'; '.join(figures)})" if figures else "")


def _beside(value: Measured) -> str | None:
    """A figure beside that of the peers: `1275 MHz, its peers 1380`; None for one that stands elsewhere."""
    if value.figure in _HELD_BY:
        return f"{_HELD_BY[Quantity(value.figure)]} for {100 * _number(value.value):.0f} % of the time"
    if value.peers is None or value.figure not in (Quantity.CLOCK, Quantity.POWER, Quantity.TEMPERATURE):
        return None
    limit = "" if value.limit is None else f", limit {value.limit:.0f}"
    return f"{_number(value.value):.0f} {_unit(value)}, its peers {value.peers:.0f}{limit}"


def _of_channel(verdict: Verdict) -> str:
    """What a GPU does that differs in a channel, and both values."""
    says = _CHANNEL_SAYS.get(verdict.figure, f"it differs in its {verdict.figure}")
    value = next((value for value in verdict.measured if value.figure == verdict.figure), None)
    if value is None or value.value is None or value.peers is None:
        return says
    digits = 3 if max(value.value, value.peers) < 10 else 0
    if verdict.figure == THROTTLED.name:
        return f"{says}: {100 * value.value:.0f} %, its peers {100 * value.peers:.0f} %"
    by = f"{abs(100 * (value.value / value.peers - 1)):.0f} %"
    if value.unit == "degC":
        by = f"{abs(value.value - value.peers):.0f} K"
    return f"{says} by {by} ({value.value:.{digits}f} {_unit(value)}, its peers {value.peers:.{digits}f})"


def _of_rank(verdict: Verdict) -> str:
    """How many times as long as its peers it takes in each operation, and in how many steps."""
    ratios = [value for value in verdict.measured if value.figure == Quantity.RATIO]
    ranks = next((value.text or "" for value in verdict.measured if value.figure == Quantity.RANKS), "")
    times = ", ".join(f"{_number(value.value):.2f} times in {value.text}" for value in ratios)
    whom, takes = (f"ranks {ranks}", "take") if "," in ranks else (f"rank {ranks}", "takes")
    seen = f"; slower in {ratios[0].n} of {_number(ratios[0].limit):.0f} steps" if ratios else ""
    return f"{whom} {takes} longer than its peers for the same work: {times}{seen}"


def _of_batch(verdict: Verdict) -> str:
    effect_pct, names = verdict.effect_pct or 0.0, verdict.gpus
    shares = [f"{_CHANGED[Quantity(value.figure)]} {value.text}" for value in verdict.measured]
    if not shares:
        shares = [
            "nothing that is recorded; look for a board revision or a memory: "
            + ", ".join(names[:_NAMED_TOGETHER])
            + (" and others" if len(names) > _NAMED_TOGETHER else "")
        ]
    return (
        f"{len(names)} GPUs are {abs(effect_pct):.1f} % {_ways(effect_pct)} than the others in "
        f"{', '.join(verdict.workloads[:1])}; they share {', '.join(shares)}"
    )


def _of_past(verdict: Verdict) -> str:
    """What is different from its own past, when that began, and what else changed then."""
    by_figure = {value.figure: value for value in verdict.measured}
    effect_pct, workload = verdict.effect_pct or 0.0, ", ".join(verdict.workloads[:1])
    if verdict.kind is Kind.UNSTABLE:
        return _unstable(verdict, by_figure)
    joined = [changed for value in verdict.measured if (changed := changed_with(value))]
    if verdict.kind is Kind.DRIFTING:
        meanwhile = f"; meanwhile: {', '.join(joined)}" if joined else ""
        return f"becomes {_ways(effect_pct)} in {workload}{_drift(verdict, by_figure)}{meanwhile}"
    size = f"{abs(effect_pct):.1f} % {_ways(effect_pct)} {interval(verdict.low_pct, verdict.high_pct)}"
    before = _at(by_figure, Quantity.LAST_BEFORE)
    until = by_figure.get(Quantity.UNTIL)
    stays = "" if until is None else "; it did not last" if until.at is None else f", until {_day(until.at)}"
    if verdict.level is not Level.GPU:
        of_node = f" of {verdict.name}" if verdict.level is Level.NODE else ""
        with_what = f" with {' and '.join(joined)}" if joined else ""
        return (
            f"{len(verdict.gpus):,} GPUs{of_node} became {size} together in {workload}, between {_day(before)} and "
            f"{_day(verdict.first_seen)}{with_what}{stays}"
        )
    sittings = by_figure.get(Quantity.SITTINGS)
    counted = "" if sittings is None else f"{many(int(_number(sittings.value)), 'sitting')}; "
    then = f"; then: {', '.join(joined)}" if joined else ""
    return (
        f"{size} than its own level before, in {workload} since {_day(verdict.first_seen)} ({counted}last seen as "
        f"before on {_day(before)}){stays}{then}"
    )


def _drift(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    """How fast it drifts, by the week, and in all."""
    span, sittings = by_figure.get(Quantity.SPAN), by_figure.get(Quantity.SITTINGS)
    if span is None or sittings is None or not span.value:
        return ""
    days = span.value
    slope, low, high = (
        None if pct is None else 100 * math.expm1(math.log1p(pct / 100) * 7 / days)
        for pct in (verdict.effect_pct, verdict.low_pct, verdict.high_pct)
    )
    bounds = MISSING if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]"
    return (
        f" by {abs(slope or 0.0):.2f} % a week {bounds}: {percent(verdict.effect_pct)} % in {days:.0f} days "
        f"({many(int(_number(sittings.value)), 'sitting')})"
    )


def _unstable(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    runs = by_figure.get(Quantity.SLOWER_RUNS)
    counted = runs or by_figure.get(Quantity.FAR_SITTINGS)
    if counted is None or counted.limit is None:
        return f"unstable in {', '.join(verdict.workloads[:1])}"
    counted_as = (
        "sittings are away from its level" if runs is None else "runs are slower than the others of their sittings"
    )
    fleet = "" if counted.peers is None else f" (fleet: {100 * counted.peers:.1f} %)"
    text = (
        f"unstable in {', '.join(verdict.workloads[:1])}: {_number(counted.value):.0f} of {counted.limit:.0f} "
        f"{counted_as}, by {verdict.effect_pct or 0.0:.1f} % in the median "
        f"{interval(verdict.low_pct, verdict.high_pct)}{fleet}"
    )
    of_runs = [by_figure[figure] for figure in (Quantity.CLOCK_OF_SLOWER_RUNS, Quantity.POWER_OF_SLOWER_RUNS)
               if figure in by_figure]  # fmt: skip
    heat = by_figure.get(Quantity.TEMPERATURE)
    if heat is None or not of_runs:
        return text
    slow, fast = (
        " and ".join(f"{_number(number):.0f} {value.unit}" for value, number in zip(of_runs, numbers, strict=True))
        for numbers in ([value.value for value in of_runs], [value.peers for value in of_runs])
    )
    return f"{text}; heat holds its clock ({_beside(heat)}): {slow} in its slower runs, {fast} in its faster ones"


def changed_with(value: Measured) -> str | None:
    """What else changed with a level: `driver 535 to 550`; None for a number of something else."""
    if value.figure == Quantity.NEIGHBOUR:
        return f"GPU {value.text} came to its node"
    if value.figure in _CHANGED:
        return f"{_CHANGED[Quantity(value.figure)]} {value.text_before or 'unknown'} to {value.text or 'unknown'}"
    if value.figure in _CHANGED_FROM and value.peers is not None:
        word, unit = _CHANGED_FROM[Quantity(value.figure)]
        return f"{word} {value.peers:,.0f} to {_number(value.value):,.0f} {unit}"
    return None


# -- what was seen and needs no test ------------------------------------------------------------------------------


def _lost(_: Verdict, by_figure: Mapping[str, Measured]) -> str:
    n = int(_number(by_figure[Quantity.LOSSES].value)) if Quantity.LOSSES in by_figure else 1
    text = "it fell off the bus" + (f" {n} times" if n > 1 else "")
    good = by_figure.get(Quantity.LAST_GOOD_RUN)
    if good is None:
        return text
    if good.at is None:
        return f"{text}; no run of it ended well before"
    return f"{text}; its last good run before was {good.text}, begun {good.at:%Y-%m-%d %H:%M}"


def _loses(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    lost, in_turn = by_figure.get(Quantity.CARDS_LOST), by_figure.get(Quantity.LOST_IN_TURN)
    if lost is None:
        return "more GPUs were lost there than elsewhere"
    here, elsewhere = (f"{_number(number):.0f}" for number in (lost.value, lost.peers))
    times = "" if verdict.effect_pct is None else f": {1 + verdict.effect_pct / 100:.1f} times as many a day and GPU"
    kind = "node" if verdict.level is Level.NODE else verdict.name.partition(" ")[0]
    others = f"and {elsewhere} in the other {(verdict.n or 1) - 1} {kind}s{times}"
    if verdict.level is Level.NODE:
        turn = "" if in_turn is None else f", {in_turn.n} of them one after another in slot {in_turn.text}"
        return f"{here} different cards failed there{turn}, {others}"
    return f"{here} GPUs were lost there, {others}"


def _wrong(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    results, elements = by_figure.get(Quantity.WRONG_RESULTS), by_figure.get(Quantity.WRONG_ELEMENTS)
    if results is None or results.limit is None:
        return f"wrong elements: {', '.join(verdict.workloads)}"
    most = "how many was not counted"
    if elements is not None and elements.value is not None:
        most = f"up to {elements.value:,.0f}"
    return (
        f"wrong elements in {_number(results.value):.0f} of {results.limit:.0f} checked results ({most}): "
        f"{', '.join(verdict.workloads)}"
    )


def _failed(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    failed = by_figure.get(Quantity.FAILED_RUNS)
    errors = list(_xids(verdict, OF_HARDWARE))
    if Quantity.NEEDS_RESET in by_figure:
        errors.append("it cannot be used before it is reset")
    if failed is None and errors:
        return f"the driver told of it: {', '.join(errors)}"
    detail = f": {failed.text}" if failed is not None and failed.text else ""
    return f"{', '.join(verdict.workloads) or 'a run'} did not end{detail}"


def _memory_errors(verdict: Verdict, by_figure: Mapping[str, Measured]) -> str:
    errors = list(_xids(verdict, OF_MEMORY))
    if Quantity.ROW_REMAP_FAILED in by_figure:
        errors.append("a row could not be remapped")
    if uncorrected := by_figure.get(Quantity.UNCORRECTED_ERRORS):
        errors.append(f"{many(int(_number(uncorrected.value)), 'error')} that ECC could not correct")
    return f"the driver told of its memory: {', '.join(errors) or 'errors'}"


def _xids(verdict: Verdict, meanings: Mapping[int, str]) -> Iterator[str]:
    for value in verdict.measured:
        if value.figure == Quantity.XID:
            code = int(_number(value.value))
            often = f" ({value.n} times)" if (value.n or 1) > 1 else ""
            yield f"XID {code}{often}" + (f": {meanings[code]}" if code in meanings else "")


def _sensor(_: Verdict, by_figure: Mapping[str, Measured]) -> str:
    reported, still = by_figure.get(Quantity.REPORTED), by_figure.get(Quantity.STILL_POWER)
    if reported is not None and reported.text:
        return reported.text
    if still is None:
        return "its power reading stood still while its load moved"
    watts = f"{_number(still.value):.3f} W"
    if Quantity.STILL_TIME in by_figure:
        seconds, points = (by_figure[name].value for name in (Quantity.STILL_TIME, Quantity.MOVED_UTILISATION))
        return (
            f"the power reading stayed at {watts} for {_number(seconds):.0f} s ({still.n} readings) while the "
            f"utilisation moved by {_number(points):.0f} points"
        )
    factor = _number(by_figure[Quantity.MOVED_POWER].value)
    return (
        f"{still.n} runs have a power of {watts}, to the milliwatt, where the power of its peers differs by a factor "
        f"of {factor:.1f}"
    )


_SEEN: Mapping[Kind, Callable[[Verdict, Mapping[str, Measured]], str]] = {
    Kind.LOST: _lost,
    Kind.WRONG: _wrong,
    Kind.FAILED: _failed,
    Kind.MEMORY_ERRORS: _memory_errors,
    Kind.SENSOR: _sensor,
}


# -- what was not judged ------------------------------------------------------------------------------------------


def why_not(gap: NotJudged) -> str:
    """Why something was not judged, in a sentence without a full stop."""
    whom = "node" if gap.level is Level.NODE else "GPU"
    n, total, share = gap.n or 0, gap.total or 0, 100 * (gap.share or 0.0)
    if gap.why is Gap.NO_DATE:
        return f"history: {many(n, 'run')} without a date: what they say of its past is not known"
    if gap.why in _LEFT_OUT:
        counted_runs = "1 run was left out, as it has" if n == 1 else f"{n:,} runs were left out, as they have"
        return f"{counted_runs} {_LEFT_OUT[gap.why]}"
    if gap.why is Gap.FEW_GPUS:
        of_model = f" of {gap.model}" if gap.model else ""
        return f"{many(n, 'GPU')}{of_model} ran it without an error; {total} are needed to tell which differ"
    if gap.why is Gap.JOBS:
        return (
            "the GPUs of a job finish together, so a time belongs to the job and not to the GPU (of what differs from "
            f"run to run, {share:.0f} % is the job's): measure with jobs on one GPU"
        )
    if gap.why is Gap.SAME_TIME:
        return f"all {n:,} runs took the same time: it is rounded, or its clock stood still"
    if gap.why is Gap.NOT_REPEATED:
        return (
            f"the differences between GPUs do not repeat (ICC {share / 100:.2f}; {n:,} GPUs, {total:,} runs): they "
            "belong to the runs"
        )
    if gap.why is Gap.NOT_SINCE:
        last = "no run has a date" if gap.at is None else f"the newest began on {_day(gap.at)}"
        return f"no run began on {_day(gap.since)} or later; {last}"
    if gap.why is Gap.PAST_ONE_SITTING:
        all_of_them = n == total
        number = f"every {whom}" if all_of_them else f"{n:,} of {total:,} {whom}s"
        was = "was" if all_of_them or n == 1 else "were"
        return f"history: {number} {was} measured in one sitting only; measure again 6 hours later or more"
    if gap.why is Gap.PAST_TOO_FEW:
        return f"history: too few {whom}s have two sittings to know how much a healthy one moves; measure more of them"
    if gap.why in _EVENTS:
        return f"places that lose GPUs: {many(n, 'event')} {_EVENTS[gap.why]}"
    if gap.why is Gap.FEW_STEPS:
        return f"{many(n, 'step')} with peers: record {total} or more, to tell a slow rank from a slow moment"
    if gap.why is Gap.LONE_RANK:
        return f"no other rank does the same work, and {total} are compared at least"
    if gap.why is Gap.TWO_RANKS:
        return (
            f"only two ranks do the same work, and {total} are needed: rank {n} takes {share:.1f} % longer than the "
            "other, and nobody can say which of the two is at fault"
        )
    return _WHY[gap.why]


_LEFT_OUT = {
    Gap.NO_TIME: "no time above 0",
    Gap.FUTURE: "a date in the future: correct the clock of their node",
}
_EVENTS = {
    Gap.EVENTS_NOWHERE: "left out, as the node of the GPU is not known",
    Gap.EVENTS_UNDATED: "left out, without a time or of the future",
    Gap.EVENTS_TOGETHER: "left out, at moments at which several nodes lost GPUs",
}
_WHY = {
    Gap.RUN_ONCE: "fewer than two GPUs have two runs: a GPU is named only where another figure agrees; measure again",
    Gap.NOT_READ: "not all of its telemetry can be read: memory that failed, and a power reading that stood still, may "
    "be missing in the findings",
    Gap.NO_RUNS: "there are no runs",
    Gap.PAST_OF_NODES: "history: its GPUs run together in jobs, so nodes were compared with their past and not GPUs",
    Gap.NO_COMPUTING: "no operation that lasts above 0 s has compute in its name, as forward-compute has: who sends, "
    "receives or waits is not judged",
    Gap.NO_STAGE: "the stage of the pipeline is not known, so nobody knows whose work is equal: import the trace into "
    "a new store with --layout and a file that states pp_size, dp_size and tp_size",
    Gap.SLOW_BY_DATA: "slower than its peers, and so are the other stages with the same data: unequal sequences do "
    "that, and no GPU is named",
    Gap.TIMELINES_UNDATED: "timelines of training jobs have no dates: leave out --since",
    Gap.NEWER: "this finding is of a newer whorl, which this one cannot read: install a newer whorl",
}


def why_none(smallest: Smallest) -> str | None:
    """Why no effect could have been named in a workload; None where one could."""
    if smallest.why is None:
        return None
    if smallest.why is Gap.ALONE:
        return "most GPUs have one run, which names no GPU alone: measure again"
    return f"{smallest.gpus} GPUs with {smallest.sittings} sittings each name no GPU for this workload alone"


# -- faults that were put into simulated GPUs ---------------------------------------------------------------------

_MISSES = {
    Miss.NOT_YET: "it would have set in after the campaign had ended",
    Miss.NEEDS_WEEKS: "it grows over weeks: one campaign is too short to show it",
    Miss.BY_CHANCE: "two of five of its runs give wrong results: by chance, none did here",
    Miss.FEW_GPUS: f"there were too few GPUs to compare it with: {LEAST_GPUS} of a model are needed",
    Miss.LIKE_PEERS: "its figures are among those of its peers",
}


def remark(planted: Planted) -> str:
    """Why a planted fault was not found, or as what else; nothing where it was found as what it is."""
    if planted.miss is None:
        return ""
    if planted.miss is Miss.OTHER_KIND:
        return f"found, but not as {LOOKS_LIKE[planted.kind]}"
    if planted.miss in _MISSES:
        return _MISSES[planted.miss]
    parts = []
    if planted.slower_pct is not None:
        parts.append(f"it is {planted.slower_pct:.1f} % slower than its peers in {planted.workload}")
    if planted.rise_pct is not None:
        parts.append(f"its temperature rises {planted.rise_pct:.0f} % more a watt than that of its peers")
    text = ", and ".join(parts)
    if planted.miss is Miss.HIDDEN:
        faulty = f"{planted.slow} of {planted.gpus:,} GPUs are faulty"
        return f"{text}; but {faulty}, and more than about one in {HIDING} hide each other"
    return f"{text}; among {planted.gpus:,} such GPUs this may be chance"


# -- rows for programs --------------------------------------------------------------------------------------------

ROW = (
    "level", "name", "gpus", "cluster", "model", "workloads", "kind", "state", "effect_pct", "low_pct", "high_pct", "p",
    "q", "n", "causes", "looks", "first_seen", "last_seen", "runs", "action", "reference", "figure",
)  # fmt: skip
"""The columns of a finding in `whorl.verdicts/1`."""


def row(verdict: Verdict) -> dict[str, Any]:
    """A finding as a row of `whorl.verdicts/1`, with its sentences."""
    words = {"looks": sentence(verdict), "action": action(verdict), "reference": reference(verdict)}
    fields = asdict(verdict) | words
    return _dated({name: fields[name] for name in ROW}, "first_seen", "last_seen")


def not_judged_row(gap: NotJudged) -> dict[str, str]:
    """What was not judged, as a row of `whorl.verdicts/1`."""
    return {"cluster": gap.cluster, "subject": gap.subject, "why": why_not(gap)}


def smallest_row(smallest: Smallest) -> dict[str, Any]:
    """The smallest effect of a workload, as a row of `whorl.verdicts/1`."""
    return asdict(smallest) | {"why": why_none(smallest)}


def change_row(change: Change) -> dict[str, Any]:
    """A change of a level, as a row of `whorl.verdicts/1`."""
    joined = [words for value in change.joined_with if (words := changed_with(value))]
    return _dated(asdict(change) | {"joined_with": joined}, "since", "at")


def document(judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The document of `whorl.verdicts/1` over all clusters."""
    return {
        "schema": SCHEMA,
        "rows": [row(verdict) for judged in judgements for verdict in judged.rows],
        "not_judged": [not_judged_row(gap) for judged in judgements for gap in judged.not_judged],
        "watch": [row(verdict) for judged in judgements for verdict in judged.watch],
        "smallest": [
            {"cluster": judged.cluster, **smallest_row(member)} for judged in judgements for member in judged.smallest
        ],
        "changes": [
            {"cluster": judged.cluster, **change_row(change)} for judged in judgements for change in judged.changes
        ],
    }


def _dated(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """Fields with these times as text, UTC."""
    times: dict[str, datetime | None] = {name: fields[name] for name in names}
    return fields | {name: None if at is None else f"{at.isoformat()}Z" for name, at in times.items()}


def _ways(effect_pct: float) -> str:
    return "slower" if effect_pct >= 0 else "faster"


def _unit(value: Measured) -> str:
    return value.unit.replace("degC", "°C")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _at(by_figure: Mapping[str, Measured], figure: Quantity) -> datetime | None:
    return by_figure[figure].at if figure in by_figure else None


def _day(at: datetime | None) -> str:
    return MISSING if at is None else f"{at:%Y-%m-%d}"


def as_judged(judged_at: datetime | None, newer: Newer, command: str = "") -> str:
    """That runs or events came after the judging, in a sentence that ends with what to type."""
    counted = [many(n, word) for n, word in ((newer.runs, "run"), (newer.facts, "event")) if n]
    came = f"{' and '.join(counted)} of its cluster came since"
    return f"As judged on {minute(judged_at)} UTC; {came}. To judge again: {command}".rstrip(" ")
