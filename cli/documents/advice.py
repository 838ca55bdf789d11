"""What `whorl advise` says with a scheduler: the advice, what it costs in waiting, and the same for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...analysis.placement.advice import WorkloadGain
from ...dashboards.document import Column, Command, Document, Facts, Part, Section, Table, TableColumns
from ...dashboards.documents.placement import SAVED, percents
from ...dashboards.words import MISSING, count, listed, many, number, with_interval
from ...jobs.formats import preference_of
from ...store.hostlist import compress

if TYPE_CHECKING:
    from ...analysis.chains.costs import WaitEstimate
    from ...analysis.placement import Advice, Gain, NodeEvidence
    from ...jobs.price import WaitingPrice
    from ...jobs.slurm import Wait
    from ...jobs.steering import Steering

_NODES_LISTED = 20
_GPUS_NAMED = 32
_CHOICES = {
    "packed": "the best packed set",
    "spread": "the best set, wherever its GPUs are",
    "exclude": "any node that is not excluded",
}
_RANDOM = {"packed": "a random packed set", "spread": "random GPUs anywhere"}
_AGAINST = {"drained": ", off all slow nodes", "random": ""}
_WAITS = (3600.0, "hours"), (60.0, "minutes"), (1.0, "s")


def mapping(steering: Steering) -> dict[str, Any]:
    """The advice and what the scheduler can be told, as `whorl.advise/1`."""
    wait = steering.wait()
    expression, reason = preference_of(steering)
    usable_now = steering.placing
    ranked = {"workloads": [row.as_dict() for row in steering.workloads]} if steering.workloads else {}
    return {
        "schema": "whorl.advise/1",
        **steering.advice.as_dict(),
        **({} if usable_now is steering.advice else {key: usable_now.as_dict()[key] for key in ("packed", "spread")}),
        **ranked,
        "scheduler": {
            "asked": bool(steering.nodes) or steering.foreign,
            "partition": steering.partition,
            "exclude": compress(steering.worth_excluding),
            "prefer": expression or None,
            "prefer_reason": reason or None,
            "nodelist": compress(steering.nodelist()) or None,
            "extra_wait_s": wait.extra_s,
            "extra_wait_reason": wait.reason,
            "unknown_nodes": list(steering.names.unknown),
            "nodes_elsewhere": list(steering.names.elsewhere),
            "nodes_out_of_use": list(steering.unusable),
        },
        "price": steering.price.as_dict() if steering.price is not None else None,
        "price_reason": steering.price_reason,
        "remarks": list(steering.remarks),
    }


def document(steering: Steering) -> Document:
    """The advice for people: the workload, what a job gains there and what to do; then the evidence, the best sets of
    GPUs, the cost and the age of the measurements."""
    advice, usable_now, workloads = steering.advice, steering.placing, steering.workloads
    kinds = advice.kinds or (advice,)
    placing = {kind.workload: kind for kind in (usable_now.kinds or (usable_now,))}
    parts: list[Part] = [*_opening(steering)]
    if len(workloads) > 1 and any(row.gain is not None for row in workloads):
        parts.append(Section(f"What a job of {many(advice.gpus, 'GPU')} gains, by workload", [_workloads(workloads)]))
    for kind in kinds:
        of_kind = f" of {kind.workload}" if advice.kinds else ""
        if kind.repeatable and kind.gains:  # otherwise the opening says that no gain is known
            parts.append(
                Section(
                    f"Time saved by a job of {many(kind.gpus, 'GPU')}",
                    [_gain_table(kind.gains)],
                    f"{advice.workload} on {advice.cluster}" + (f", {kind.workload}" if advice.kinds else ""),
                )
            )
        if kind.nodes:
            parts.append(Section(f"Slow nodes{of_kind}", [_node_table(kind, steering)], _beside(kind)))
        sets = [*_sets(placing[kind.workload], steering)] if kind.workload in placing else []
        if sets:
            parts.append(Section(f"Best GPUs{of_kind}", sets))
    parts.append(Section("Cost and age", [*_ground(steering)]))
    return Document(f"Where a job of {many(advice.gpus, 'GPU')} should run: {advice.workload}", parts)


def _opening(steering: Steering) -> Iterator[Part]:
    """What a job gains and where, and what to do."""
    advice, price = steering.advice, steering.price
    findings = [f"{kind.workload}: {kind.finding}" for kind in advice.kinds] or [advice.finding]
    gain = _headline(advice, steering.workloads)
    if price is not None and not price.worth:
        yield price_verdict(price)
        yield from (f"If waiting cost nothing: {finding}" for finding in findings)
        return
    if gain:
        yield gain
    yield from findings
    if price is not None:
        yield price_verdict(price)
    if steering.worth_excluding:
        yield Command(f"sbatch --exclude={compress(steering.worth_excluding)} ...")


def _headline(advice: Advice, workloads: Sequence[WorkloadGain]) -> str:
    """The gain of the best GPUs with its interval and n; "" where none is measurable."""
    gain = advice.best_gain()
    if gain is None or not gain.measurable:
        return ""
    packed = "packed " if gain.choice == "packed" else ""
    saves = "GPU saves" if advice.gpus == 1 else f"{advice.gpus} {packed}GPUs save"
    than = "a random one" if advice.gpus == 1 else "random ones"
    lead = f"{advice.workload} gains most of {len(workloads)} workloads" if len(workloads) > 1 else advice.workload
    n = workloads[0] if workloads else None
    compared = sum(reference.gpus for reference in advice.references)
    counted = f"n = {many(compared, 'GPU')}" + (f", {many(n.runs, 'run')}" if n is not None else "")
    saved = with_interval(*percents(gain), unit="%")
    return f"{lead}: the best {saves} {saved} of the time beside {than} ({counted})."


def _workloads(workloads: Sequence[WorkloadGain]) -> Table:

    def remark(row: WorkloadGain) -> str:
        return "" if row.gain is not None and row.gain.measurable else row.reason or "no measurable gain"

    columns: TableColumns = [
        ("workload", "workload"),
        (SAVED, lambda row: None if row.gain is None else percents(row.gain)),
        (Column("GPUs", "count", explains="n: GPUs that are compared"), "gpus"),
        (Column("runs", "count", drops=1), "runs"),
        (Column("remark", "sentence"), remark),
    ]
    return Table.of(workloads, columns, below="The best set of GPUs beside random ones.")


# -- nodes and sets ----------------------------------------------------------------------------------------------


def _beside(kind: Advice) -> str:
    medians = "the boards of their own VBIOS" if len(kind.references) > 1 else "all GPUs compared"
    return f"Each by its slowest GPU; in brackets the median of {medians}."


def _name(steering: Steering, node: str) -> str:
    """The scheduler's name of a node."""
    return steering.names.names.get(node, node)


def _node_table(kind: Advice, steering: Steering) -> Table:

    def tier(evidence: NodeEvidence) -> str:
        return "exclude" if evidence.excluded else "not excluded" if evidence.tier == "hard" else "avoid"

    def age(evidence: NodeEvidence) -> str:
        days = "simulated" if evidence.simulated else number(evidence.age_days, 2)
        return f"{days} (stale)" if evidence.stale else days

    def state(evidence: NodeEvidence) -> str | None:
        node = steering.nodes.get(_name(steering, evidence.node))
        return None if node is None else node.state

    columns: TableColumns = [
        ("node", lambda evidence: _name(steering, evidence.node)),
        ("advice", tier),
        (Column("worst GPU", page="gpu"), "worst_gpu_name"),
        (Column("slowdown", "number", 3, explains="its time over that of the median GPU"), "slowdown"),
        (Column("[90 %]", "interval", 3, drops=1), lambda evidence: (evidence.lower, evidence.upper)),
        (Column("runs", "count", drops=2), "runs"),
        (Column("days ago", drops=3), age),
        (Column("clock", drops=4), lambda row: _with_median(row.sm_clock_mhz, row.fleet_sm_clock_mhz, "MHz")),
        (Column("power", drops=5), lambda row: _with_median(row.power_w, row.fleet_power_w, "W")),
        (Column("temperature", drops=6), lambda row: _with_median(row.temperature_c, row.fleet_temperature_c, "°C")),
    ]
    if steering.nodes:
        columns.append((Column("state", drops=5), state))
    return Table.of(kind.nodes, columns, most=_NODES_LISTED)


def _with_median(value: float | None, median: float | None, unit: str) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f} {unit}" + (f" ({median:,.0f})" if median is not None else "")


def _sets(advice: Advice, steering: Steering) -> Iterator[Part]:
    """The best sets: where they are, and the time there."""
    sets = [(name, best) for name, best in (("packed", advice.packed), ("anywhere", advice.spread)) if best]
    if not sets:
        return
    columns: TableColumns = [
        ("set", lambda named: named[0]),
        (Column("time", "number", 3, explains="1 is that of the median GPU"), lambda named: named[1].slowdown),
        (Column("[90 %]", "interval", 3), lambda named: (named[1].lower, named[1].upper)),
        (Column("nodes", "count"), lambda named: len(named[1].nodes) or None),
    ]
    yield Table.of(sets, columns, below="Predicted time of the job; 1 is that on median GPUs.")
    places = [(name, compress(_name(steering, node) for node in best.nodes)) for name, best in sets if best.nodes]
    if places:
        yield Facts(places, "Their nodes")
    if advice.break_even is not None:
        yield f"If spanning nodes costs a factor above {advice.break_even:.3f}, the packed set is the faster one."
    name, best = sets[0]
    nodes = [steering.nodes.get(_name(steering, node)) for node in best.nodes]
    if not nodes or sum(node.gpus if node else 0 for node in nodes) != len(best.gpus):
        choose = " A scheduler assigns nodes: ask for whole nodes and choose the GPUs in the job." if nodes else ""
        yield f"GPUs of the set {name}: {listed(best.gpu_names, _GPUS_NAMED)}.{choose}"


# -- cost and age ------------------------------------------------------------------------------------------------


def _ground(steering: Steering) -> Iterator[str]:
    """What the advice costs, what it rests on, and remarks."""
    advice = steering.advice
    yield _cost(advice, steering.wait())
    if steering.price is not None:
        yield _price_evidence(steering.price)
    elif steering.price_reason is not None:
        yield sentence(f"Price in waiting: {steering.price_reason}")
    sets = [f"{reference}: {reference.usual_ms:,.4g} ms" for reference in advice.references]
    if len(sets) == 1:
        yield f"Compared: {advice.references[0]}, with each other."
    else:
        yield f"Compared, each set with itself (the time of its median GPU): {'; '.join(sets)}."
    yield _age(advice)
    yield from (f"Note: {sentence(remark)}" for remark in (*steering.remarks, *advice.notes))


def _cost(advice: Advice, wait: Wait) -> str:
    cost = advice.cost
    if not cost.nodes:
        return "Cost: n/a, because no node is known."
    text = (
        f"Cost: {count(cost.nodes_excluded)} of {many(cost.nodes, 'node')} excluded ({100 * cost.share:.1f} %), "
        f"{many(cost.gpus_left, 'GPU')} left; extra wait "
    )
    if wait.extra_s is None:
        return f"{text}{MISSING} ({(wait.reason or '').rstrip('.')})."
    if abs(wait.extra_s) < 1:
        return f"{text}none, by Slurm's own estimate." if cost.nodes_excluded else f"{text}none."
    scale, unit = next(level for level in _WAITS if abs(wait.extra_s) >= level[0])
    return f"{text}{wait.extra_s / scale:.3g} {unit}, by Slurm's own estimate."


def _age(advice: Advice) -> str:
    """How old the measurements are."""
    stale = advice.staleness
    outdated = f" Stale: {sentence(stale.says)}" if stale.says else ""
    if stale.simulated_gpus == stale.gpus:  # a simulated fleet has its own clock: an age in days means nothing
        return f"Measurements of {many(stale.gpus, 'simulated GPU')}, at simulated times.{outdated}"
    age = "of unknown age" if stale.newest_days is None else f"{_days(stale.newest_days)} old"
    if stale.newest_days is not None and stale.oldest_days is not None and stale.oldest_days > stale.newest_days + 1:
        age = f"{stale.newest_days:,.0f} to {_days(stale.oldest_days)} old"
    return f"Measurements of {many(stale.gpus, 'GPU')}, {age}.{outdated}"


def _days(days: float) -> str:
    return f"{days:,.0f} days" if days >= 1.5 else "at most one day"


def sentence(text: str) -> str:
    """A text that ends with a full stop."""
    return text if text.endswith(".") else f"{text}."


def _gain_table(gains: Sequence[Gain]) -> Table:
    """What each choice saves; first against a random choice that avoids the slow nodes, too.

    A packed set is compared with random packed sets, and GPUs anywhere with random ones anywhere.
    """
    order = list(_AGAINST)
    ordered = sorted(gains, key=lambda gain: (order.index(gain.against) if gain.against in order else 9, gain.choice))
    any_kind = "packed" if any(gain.choice == "packed" for gain in gains) else "spread"  # of `exclude`
    columns: TableColumns = [
        (Column("choice", "sentence"), lambda gain: _CHOICES.get(gain.choice, gain.choice)),
        (
            Column("against", "sentence"),
            lambda gain: _RANDOM.get(gain.choice, _RANDOM[any_kind]) + _AGAINST.get(gain.against, gain.against),
        ),
        (SAVED, percents),
        (Column("", "sentence"), lambda gain: "" if gain.measurable else "no measurable gain"),
    ]
    return Table.of(ordered, columns)


# -- the price of an exclusion -----------------------------------------------------------------------------------


def price_verdict(price: WaitingPrice) -> str:
    """Whether an exclusion pays, and for which jobs."""
    first = "Excluding pays" if price.worth else "Do not exclude"
    doubt = "" if price.certain else ", though the intervals overlap"
    text = (
        f"{first}{doubt}: a run of {_hours(price.run_time_h)} h saves {_with_interval(price.saved)}, and jobs wait "
        f"{_with_interval(price.waits.mean_wait.added)} longer on average."
    )
    if not price.pays_from_h:
        return text
    hint = " (--set time=12h says how long yours runs)" if price.run_time_from == "median" else ""
    return (
        f"{text} It pays for jobs that run longer than {_hours(price.pays_from_h)} h, as {price.longer_jobs_pct:.0f} % "
        f"of these do{hint}."
    )


def _price_evidence(price: WaitingPrice) -> str:
    """How the figures were made."""
    waits = price.waits
    size = "" if waits.job_nodes is None else f" of {many(waits.job_nodes, 'node')}"
    left_out = f", without {waits.too_wide_jobs:,} that need more nodes" if waits.too_wide_jobs else ""
    origin = "their median" if price.run_time_from == "median" else "as time= says"
    return (
        f"Price: {waits.jobs:,} jobs{size} in {waits.weeks} weeks of {price.source}, to {price.last_day}, replayed "
        f"with {waits.cluster_nodes:,} nodes and with {waits.excluded_nodes:,} fewer for all jobs{left_out}. The run "
        f"of {_hours(price.run_time_h)} h is {origin}; its saving has a 90 % interval, the mean wait one of 95 %, "
        f"from week to week. The wait that 95 % of them do not exceed grows by {_with_interval(waits.p95_wait.added)}."
    )


def _with_interval(figure: WaitEstimate) -> str:
    hours = f"{_hours(figure.value)} h"
    if figure.low is None or figure.high is None:
        return f"{hours} [{MISSING}]"
    return f"{hours} [{_hours(figure.low)}, {_hours(figure.high)}]"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if abs(hours) >= 10 else f"{round(hours, 2) + 0.0:.2g}"  # and never -0
