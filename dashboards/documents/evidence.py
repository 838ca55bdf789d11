"""A verdict in sentences: what was seen, what to do, what it rests on; and why something was not judged.

Codes and numbers come from `analysis.verdicts`; the texts of single codes stand in `words`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from ...analysis.runs.probing import OF_HARDWARE, OF_MEMORY
from ...analysis.verdicts import Kind, Level, NotJudged, Smallest, State, Verdict
from ...analysis.verdicts.states import CHANNELS, THROTTLED
from ...analysis.verdicts.verdict import LOOKS_LIKE, TIME, ComparedWith, Gap, Measured, Part, Planted, Quantity
from .. import words
from ..words import MISSING, interval, many, minute, percent, with_interval

_MOST_NAMES = 6  # GPUs in a sentence
_CHANNEL_UNITS = {channel.name: channel.unit for channel in CHANNELS} | {THROTTLED.name: "its runs"}
_HELD_BY = {
    Quantity.HELD_BY_BRAKE: Part.BRAKE,
    Quantity.HELD_BY_HEAT: Part.HEAT,
    Quantity.HELD_BY_HARDWARE: Part.SLOWDOWN,
}
_RECORDED = {
    Quantity.VBIOS: "VBIOS", Quantity.DRIVER: "driver", Quantity.CABINET: "cabinet", Quantity.CUBLAS: "cuBLAS",
    Quantity.KERNEL: "kernel of the probe", Quantity.PROBE_VERSION: "version of the probe", Quantity.NODE: "node",
    Quantity.SLOT: "slot",
}  # fmt: skip
_LEVELS = {
    Quantity.TEMPERATURE: ("its temperature", "°C"),
    Quantity.NEIGHBOURS_TEMPERATURE: ("that of the other GPUs of its node", "°C"),
    Quantity.CLOCK: ("SM clock", "MHz"),
    Quantity.POWER: ("power", "W"),
}


# -- how large, how sure, what to do -----------------------------------------------------------------------------


def size(verdict: Verdict) -> str:
    """The effect with its interval, and what it is of: `+6.1 % of time [+5.2, +7.0]`; empty where none was measured."""
    if verdict.effect_pct is None:
        return ""
    unit = f"% of {measured(verdict)}"
    return with_interval(verdict.effect_pct, verdict.low_pct, verdict.high_pct, signed=True, unit=unit)


def measured(verdict: Verdict) -> str:
    """What the effect is of: `time`, `K/W`, `its runs`; empty where none was measured."""
    return "" if verdict.effect_pct is None else _CHANNEL_UNITS.get(verdict.figure, verdict.figure)


def action(verdict: Verdict) -> str:
    """What to do, in a sentence: the first thing first."""
    return words.ACTIONS[verdict.action]


def evidence(verdict: Verdict) -> str:
    """What a finding rests on: sittings, peers, p and q, runs and dates."""
    days = verdict.first_seen
    # Places are named by the cards that failed there, and ranks by the steps of one job: neither has sittings.
    has_sittings = bool(verdict.figure) and verdict.kind is not Kind.LOSES
    has_sittings = has_sittings and verdict.reference is not ComparedWith.RANKS
    parts = [] if verdict.figure else ["seen, which needs no test"]
    parts += ["in two sittings or more" if verdict.state is State.CONFIRMED else "in one sitting"] * has_sittings
    if verdict.figure:
        compared = reference(verdict)
        parts.append(f"compared with {compared}" if compared else f"n {words.count(verdict.n)}")
    parts += chances(verdict)
    parts += [many(len(verdict.runs), "run")] if verdict.runs else []
    parts += [f"from {minute(days)} to {minute(verdict.last_seen)} UTC"] if days is not None else []
    again = "; measure again on another day to be sure" if has_sittings and verdict.state is State.SUSPECTED else ""
    return words.capital(f"{', '.join(parts)}{again}.")


def chances(verdict: Verdict) -> list[str]:
    """p and q, where it has them."""
    return [f"{sign} {chance:.1g}" for sign, chance in (("p", verdict.p), ("q", verdict.q)) if chance is not None]


def reference(verdict: Verdict) -> str:
    """What it was compared with: `16 GPUs of V100`; empty for what was seen and not compared."""
    match verdict.reference:
        case None:
            return ""
        case ComparedWith.PAST:
            return "its own earlier sittings"
        case ComparedWith.RANKS:
            values = _by_figure(verdict)
            stage, job = values[Quantity.RANKS].value, values[Quantity.TRAINING_JOB].text
            steps = _number(values[Quantity.RATIO].limit)
            return f"{verdict.n} ranks of stage {_number(stage):.0f} with the same work, {steps:.0f} steps of {job}"
        case ComparedWith.PLACES:
            return f"{verdict.n} {verdict.name.partition(' ')[0]}s of the same cluster"
    if verdict.level is not Level.GPU:
        peers = "nodes" if verdict.reference is ComparedWith.NODES else "GPUs"
        return f"{verdict.n} {peers} of the same {'model' if verdict.model else 'cluster'}"
    group = verdict.model or "its cluster"
    figure = "time at its clock" if verdict.at_clock else verdict.figure
    return f"{verdict.n} GPUs of {group}" + (f", {figure}" if figure != TIME else "")


def peers(model: str | None) -> str:
    """Which GPUs a GPU is compared with: those of its model, or of its cluster where nobody knows the model."""
    return "GPUs of its model" if model else "GPUs of its cluster"


# -- what was seen -----------------------------------------------------------------------------------------------


def because(verdict: Verdict) -> str:
    """What was seen, in a sentence without a full stop."""
    if not verdict.figure and verdict.kind in _SEEN:
        return _SEEN[verdict.kind](verdict, _by_figure(verdict))
    if verdict.kind is Kind.LOSES:
        return _loses(verdict, _by_figure(verdict))
    if verdict.reference is ComparedWith.PAST:
        return _beside_its_past(verdict, _by_figure(verdict))
    if verdict.reference is ComparedWith.RANKS:
        return _rank(verdict, _by_figure(verdict))
    if verdict.figure != TIME:
        return _channel(verdict)
    if verdict.level is Level.BATCH:
        return _batch(verdict)
    if verdict.level is Level.NODE:
        return f"all {len(verdict.gpus)} GPUs of {verdict.name} together: {_slow(verdict)}"
    return _slow(verdict) + (", compared at the clock that it has" if verdict.at_clock else "")


def _slow(verdict: Verdict) -> str:
    """By how much it is slower, in which parts, and the figures that tell these."""
    text = f"{_slower(verdict)} in {', '.join(verdict.workloads[:1])}"
    causes = [cause for cause in verdict.causes if abs(cause.pct) >= 0.05]
    if len(causes) > 1 or any(cause.what != Part.UNEXPLAINED for cause in causes):
        parts = [f"{cause.pct:.1f} {cause.what}{_ends(cause.low_pct, cause.high_pct)}" for cause in causes]
        text += f": {', '.join(parts)}"
    figures = [figure for value in verdict.measured if (figure := _beside_peers(value))]
    xids = [f"{value.value:.0f}" for value in verdict.measured if value.figure == Quantity.XID]
    figures += [f"errors of its memory: XID {', '.join(xids)}"] if xids else []
    return text + (f" ({'; '.join(figures)})" if figures else "")


def _beside_peers(value: Measured) -> str | None:
    """A figure beside that of the peers: `1275 MHz, its peers 1380`; None for one that stands elsewhere."""
    if value.figure in _HELD_BY:
        return f"{_HELD_BY[Quantity(value.figure)]} for {100 * _number(value.value):.0f} % of the time"
    if value.peers is None or value.figure not in (Quantity.CLOCK, Quantity.POWER, Quantity.TEMPERATURE):
        return None
    limit = "" if value.limit is None else f", limit {value.limit:.0f}"
    return f"{_number(value.value):.0f} {_unit(value)}, its peers {value.peers:.0f}{limit}"


def _channel(verdict: Verdict) -> str:
    """What a GPU does that differs in a channel, and both values."""
    text = words.CHANNELS.get(verdict.figure, f"it differs in its {verdict.figure}")
    value = _by_figure(verdict).get(verdict.figure)
    if value is None or value.value is None or value.peers is None:
        return text
    if verdict.figure == THROTTLED.name:
        return f"{text}: {100 * value.value:.0f} %, its peers {100 * value.peers:.0f} %"
    difference = f"{abs(100 * (value.value / value.peers - 1)):.0f} %"
    if value.unit == "degC":
        difference = f"{abs(value.value - value.peers):.0f} K"
    digits = 3 if max(value.value, value.peers) < 10 else 0
    return f"{text} by {difference} ({value.value:.{digits}f} {_unit(value)}, its peers {value.peers:.{digits}f})"


def _rank(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    """How many times as long as its peers it takes in each operation, and in how many steps."""
    ratios = [value for value in verdict.measured if value.figure == Quantity.RATIO]
    ranks = (values[Quantity.RANKS].text or "") if Quantity.RANKS in values else ""
    times = ", ".join(f"{_number(value.value):.2f} times in {value.text}" for value in ratios)
    takes = f"ranks {ranks} take" if "," in ranks else f"rank {ranks} takes"
    steps = f"; slower in {ratios[0].n} of {_number(ratios[0].limit):.0f} steps" if ratios else ""
    return f"{takes} longer than its peers for the same work: {times}{steps}"


def _batch(verdict: Verdict) -> str:
    shares = [f"{_RECORDED[Quantity(value.figure)]} {value.text}" for value in verdict.measured]
    if not shares:
        others = " and others" if len(verdict.gpus) > _MOST_NAMES else ""
        names = ", ".join(verdict.gpus[:_MOST_NAMES])
        shares = [f"nothing that is recorded; look for a board revision or a memory: {names}{others}"]
    return (
        f"{len(verdict.gpus)} GPUs are {_slower(verdict)} than the others in {', '.join(verdict.workloads[:1])}; they "
        f"share {', '.join(shares)}"
    )


def _beside_its_past(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    """What is different from its own past, when that began, and what else changed then."""
    if verdict.kind is Kind.UNSTABLE:
        return _unstable(verdict, values)
    workload = ", ".join(verdict.workloads[:1])
    changes = [text for value in verdict.measured if (text := changed_with(value))]
    if verdict.kind is Kind.DRIFTING:
        meanwhile = f"; meanwhile: {', '.join(changes)}" if changes else ""
        return f"becomes {_ways(verdict)} in {workload}{_drift(verdict, values)}{meanwhile}"
    effect = f"{_slower(verdict)}{_ends(verdict.low_pct, verdict.high_pct)}"
    before = values[Quantity.LAST_BEFORE].at if Quantity.LAST_BEFORE in values else None
    until = values.get(Quantity.UNTIL)
    lasted = "" if until is None else "; it did not last" if until.at is None else f", until {_day(until.at)}"
    if verdict.level is not Level.GPU:
        node = f" of {verdict.name}" if verdict.level is Level.NODE else ""
        beside = f" with {' and '.join(changes)}" if changes else ""
        return (
            f"{len(verdict.gpus):,} GPUs{node} became {effect} together in {workload}, between {_day(before)} and "
            f"{_day(verdict.first_seen)}{beside}{lasted}"
        )
    sittings = f"{_sittings(values)}; " if Quantity.SITTINGS in values else ""
    then = f"; then: {', '.join(changes)}" if changes else ""
    return (
        f"{effect} than its own level before, in {workload} since {_day(verdict.first_seen)} ({sittings}last seen as "
        f"before on {_day(before)}){lasted}{then}"
    )


def _drift(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    """How fast it drifts, by the week, and in all."""
    days = values[Quantity.SPAN].value if Quantity.SPAN in values else None
    if not days or Quantity.SITTINGS not in values:
        return ""
    slope, low, high = (
        None if pct is None else 100 * math.expm1(math.log1p(pct / 100) * 7 / days)
        for pct in (verdict.effect_pct, verdict.low_pct, verdict.high_pct)
    )
    return (
        f" by {abs(slope or 0.0):.2f} % a week {interval(low, high, digits=2)}: {percent(verdict.effect_pct)} % in "
        f"{days:.0f} days ({_sittings(values)})"
    )


def _unstable(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    workload = ", ".join(verdict.workloads[:1])
    counted = values.get(Quantity.SLOWER_RUNS) or values.get(Quantity.FAR_SITTINGS)
    if counted is None or counted.limit is None:
        return f"unstable in {workload}"
    far = "sittings are away from its level"
    if counted.figure == Quantity.SLOWER_RUNS:
        far = "runs are slower than the others of their sittings"
    fleet = "" if counted.peers is None else f" (fleet: {100 * counted.peers:.1f} %)"
    text = (
        f"unstable in {workload}: {_number(counted.value):.0f} of {counted.limit:.0f} {far}, by "
        f"{verdict.effect_pct or 0.0:.1f} % in the median {interval(verdict.low_pct, verdict.high_pct)}{fleet}"
    )
    heat = values.get(Quantity.TEMPERATURE)
    levels = [values[figure] for figure in (Quantity.CLOCK_OF_SLOWER_RUNS, Quantity.POWER_OF_SLOWER_RUNS)
              if figure in values]  # fmt: skip
    if heat is None or not levels:
        return text
    slow = " and ".join(f"{_number(value.value):.0f} {value.unit}" for value in levels)
    fast = " and ".join(f"{_number(value.peers):.0f} {value.unit}" for value in levels)
    return f"{text}; heat holds its clock ({_beside_peers(heat)}): {slow} in its slower runs, {fast} in its faster ones"


def changed_with(value: Measured) -> str | None:
    """What else changed with a level: `driver 535 to 550`; None for a number of something else."""
    if value.figure == Quantity.NEIGHBOUR:
        return f"GPU {value.text} came to its node"
    if value.figure in _RECORDED:
        return f"{_RECORDED[Quantity(value.figure)]} {value.text_before or 'unknown'} to {value.text or 'unknown'}"
    if value.figure in _LEVELS and value.peers is not None:
        level, unit = _LEVELS[Quantity(value.figure)]
        return f"{level} {value.peers:,.0f} to {_number(value.value):,.0f} {unit}"
    return None


# -- what needs no test ------------------------------------------------------------------------------------------


def _lost(_: Verdict, values: Mapping[str, Measured]) -> str:
    times = int(_number(values[Quantity.LOSSES].value)) if Quantity.LOSSES in values else 1
    text = "it fell off the bus" + (f" {times} times" if times > 1 else "")
    good_run = values.get(Quantity.LAST_GOOD_RUN)
    if good_run is None:
        return text
    if good_run.at is None:
        return f"{text}; no run of it ended well before"
    return f"{text}; its last good run before was {good_run.text}, begun {minute(good_run.at)}"


def _loses(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    lost, in_turn = values.get(Quantity.CARDS_LOST), values.get(Quantity.LOST_IN_TURN)
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


def _wrong(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    results, elements = values.get(Quantity.WRONG_RESULTS), values.get(Quantity.WRONG_ELEMENTS)
    workloads = ", ".join(verdict.workloads)
    if results is None or results.limit is None:
        return f"wrong elements: {workloads}"
    most = "how many was not counted"
    if elements is not None and elements.value is not None:
        most = f"up to {elements.value:,.0f}"
    return (
        f"wrong elements in {_number(results.value):.0f} of {results.limit:.0f} checked results ({most}): {workloads}"
    )


def _failed(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    run = values.get(Quantity.FAILED_RUNS)
    errors = list(_xids(verdict, OF_HARDWARE))
    if Quantity.NEEDS_RESET in values:
        errors.append("it cannot be used before it is reset")
    if run is None and errors:
        return f"the driver reported: {', '.join(errors)}"
    detail = f": {run.text}" if run is not None and run.text else ""
    return f"{', '.join(verdict.workloads) or 'a run'} did not end{detail}"


def _memory_errors(verdict: Verdict, values: Mapping[str, Measured]) -> str:
    errors = list(_xids(verdict, OF_MEMORY))
    if Quantity.ROW_REMAP_FAILED in values:
        errors.append("a row could not be remapped")
    if uncorrected := values.get(Quantity.UNCORRECTED_ERRORS):
        errors.append(f"{many(int(_number(uncorrected.value)), 'error')} that ECC could not correct")
    return f"the driver reported of its memory: {', '.join(errors) or 'errors'}"


def _xids(verdict: Verdict, meanings: Mapping[int, str]) -> Iterator[str]:
    for value in verdict.measured:
        if value.figure == Quantity.XID:
            code = int(_number(value.value))
            often = f" ({value.n} times)" if (value.n or 1) > 1 else ""
            yield f"XID {code}{often}" + (f": {meanings[code]}" if code in meanings else "")


def _sensor(_: Verdict, values: Mapping[str, Measured]) -> str:
    reported, still = values.get(Quantity.REPORTED), values.get(Quantity.STILL_POWER)
    if reported is not None and reported.text:
        return reported.text
    if still is None:
        return "its power reading stood still while its load moved"
    watts = f"{_number(still.value):.3f} W"
    if Quantity.STILL_TIME in values:
        seconds, points = (values[name].value for name in (Quantity.STILL_TIME, Quantity.MOVED_UTILISATION))
        return (
            f"the power reading stayed at {watts} for {_number(seconds):.0f} s ({still.n} readings) while the "
            f"utilisation moved by {_number(points):.0f} points"
        )
    factor = _number(values[Quantity.MOVED_POWER].value)
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


# -- what was not judged, and what could not be named ------------------------------------------------------------

_REASONS: Mapping[Gap, str] = {
    Gap.RUN_ONCE: "fewer than two GPUs have two runs: a GPU is named only where another figure agrees; measure again",
    Gap.NOT_READ: "not all of its telemetry can be read: memory that failed, and a power reading that stood still, may "
    "be missing in the findings",
    Gap.NO_RUNS: "there are no runs",
    Gap.PAST_OF_NODES: "history: its GPUs run together in jobs, so nodes were compared with their past and not GPUs",
    Gap.PAST_TOO_FEW: "history: too few {whom}s have two sittings to know how much a healthy one moves; measure more "
    "of them",
    Gap.NO_COMPUTING: "no operation that lasts above 0 s has compute in its name, as forward-compute has: who sends, "
    "receives or waits is not judged",
    Gap.NO_STAGE: "the stage of the pipeline is not known, so nobody knows whose work is equal: import the trace into "
    "a new store with --set layout=FILE, a file that states pp_size, dp_size and tp_size",
    Gap.SLOW_BY_DATA: "slower than its peers, and so are the other stages with the same data: unequal sequences do "
    "that, and no GPU is named",
    Gap.TIMELINES_UNDATED: "timelines of training jobs have no dates: leave out --since",
    Gap.NEWER: "this finding is of a newer whorl, which this one cannot read: install a newer whorl",
    Gap.NO_DATE: "history: {runs} without a date: what they say of its past is not known",
    Gap.NO_TIME: "{runs} left out, without a time above 0",
    Gap.FUTURE: "{runs} left out, with a date in the future: correct the clock of their node",
    Gap.FEW_GPUS: "{gpus}{of_model} ran it without an error; {total} are needed to tell which differ",
    Gap.JOBS: "the GPUs of a job finish together, so a time belongs to the job and not to the GPU (of what differs "
    "from run to run, {share:.0f} % is the job's): measure with jobs on one GPU",
    Gap.SAME_TIME: "all {n:,} runs took the same time: it is rounded, or its clock stood still",
    Gap.NOT_REPEATED: "the differences between GPUs do not repeat (ICC {icc:.2f}; {n:,} GPUs, {total:,} runs): they "
    "belong to the runs",
    Gap.EVENTS_NOWHERE: "places that lose GPUs: {events} left out, as the node of the GPU is not known",
    Gap.EVENTS_UNDATED: "places that lose GPUs: {events} left out, without a time or of the future",
    Gap.EVENTS_TOGETHER: "places that lose GPUs: {events} left out, at moments at which several nodes lost GPUs",
    Gap.FEW_STEPS: "{steps} with peers: record {total} or more, to tell a slow rank from a slow moment",
    Gap.LONE_RANK: "no other rank does the same work, and {total} are compared at least",
    Gap.TWO_RANKS: "only two ranks do the same work, and {total} are needed: rank {n} takes {share:.1f} % longer than "
    "the other, and nobody can say which of the two is at fault",
}


def why_not(gap: NotJudged) -> str:
    """Why something was not judged, in a sentence without a full stop."""
    whom = "node" if gap.level is Level.NODE else "GPU"
    n, total, share = gap.n or 0, gap.total or 0, 100 * (gap.share or 0.0)
    if gap.why is Gap.NOT_SINCE:
        last = "no run has a date" if gap.at is None else f"the newest began on {_day(gap.at)}"
        return f"no run began on {_day(gap.since)} or later; {last}"
    if gap.why is Gap.PAST_ONE_SITTING:
        subject = f"every {whom} was" if n == total else f"{n:,} of {total:,} {whom}s {'was' if n == 1 else 'were'}"
        return f"history: {subject} measured in one sitting only; measure again 6 hours later or more"
    return _REASONS[gap.why].format(
        n=n,
        total=total,
        share=share,
        icc=share / 100,
        whom=whom,
        runs=many(n, "run"),
        gpus=many(n, "GPU"),
        steps=many(n, "step"),
        events=many(n, "event"),
        of_model=f" of {gap.model}" if gap.model else "",
    )


def why_none(smallest: Smallest) -> str | None:
    """Why no effect could have been named in a workload; None where one could."""
    if smallest.why is None:
        return None
    if smallest.why is Gap.ALONE:
        return "most GPUs have one run, which names no GPU alone: measure again"
    return f"{smallest.gpus} GPUs with {smallest.sittings} sittings each name no GPU for this workload alone"


# -- faults that were put into simulated GPUs --------------------------------------------------------------------

_MISSES = {
    "drift": "it grows over weeks: one campaign is too short to show it",
    "wrong_results": "two of five of its runs give wrong results: by chance, none did here",
}


def remark(planted: Planted) -> str:
    """Why a planted fault was not found, or as what else; empty where it was found as what it is."""
    expected = LOOKS_LIKE[planted.kind]
    if planted.found:
        return "" if planted.found == expected else f"found, but not as {expected}"
    return _MISSES.get(planted.kind, "it is not far enough from its peers to be named")


def _by_figure(verdict: Verdict) -> dict[str, Measured]:
    return {value.figure: value for value in verdict.measured}


def _slower(verdict: Verdict) -> str:
    return f"{abs(verdict.effect_pct or 0.0):.1f} % {_ways(verdict)}"


def _ways(verdict: Verdict) -> str:
    return "slower" if (verdict.effect_pct or 0.0) >= 0 else "faster"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" {interval(low, high)}"


def _sittings(values: Mapping[str, Measured]) -> str:
    return many(int(_number(values[Quantity.SITTINGS].value)), "sitting")


def _unit(value: Measured) -> str:
    return value.unit.replace("degC", "°C")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _day(at: datetime | None) -> str:
    return MISSING if at is None else f"{at:%Y-%m-%d}"
