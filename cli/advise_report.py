"""How `whorl advise` looks: what to do and what it gains, then the evidence, the best sets, the cost and the age."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..analysis.placement.notes import percent
from ..dashboards.table import MISSING, Line, Table, count, many, number
from ..jobs.formats import preference_of
from ..store.hostlist import compress

if TYPE_CHECKING:
    from ..analysis.chains.exclusion import WaitHours
    from ..analysis.placement import Advice, NodeEvidence, PlacedSet
    from ..jobs.price import WaitingPrice
    from ..jobs.slurm import Wait
    from ..jobs.steering import Steering

_LISTED = 20  # nodes in the table for people; --json has all
_NAMED = 32  # GPUs named for people

_CHOICES = {
    "packed": "the best packed set",
    "spread": "the best set, wherever its GPUs are",
    "exclude": "any node that is not excluded",
}
_RANDOM = {"packed": "a random packed set", "spread": "random GPUs anywhere"}
_AGAINST = {"drained": ", off all slow nodes", "random": ""}
_LEVELS = (3600.0, "hours"), (60.0, "minutes"), (1.0, "s")


def document(steering: Steering) -> dict[str, Any]:
    """The advice and what the scheduler can be told, as `whorl.advise/1`."""
    wait = steering.wait()
    expression, reason = preference_of(steering)
    usable_now = steering.placing
    return {
        "schema": "whorl.advise/1",
        **steering.advice.as_dict(),
        **({} if usable_now is steering.advice else {key: usable_now.as_dict()[key] for key in ("packed", "spread")}),
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


def answer(steering: Steering) -> Iterable[str | Table]:
    """The advice for people."""
    advice = steering.advice
    kinds = advice.kinds or (advice,)
    findings = [f"{kind.workload}: {kind.finding}" for kind in advice.kinds] or [advice.finding]
    if steering.price is not None and not steering.price.worth:
        yield price_verdict(steering.price)
        yield ""
        yield from (f"If waiting cost nothing: {finding}" for finding in findings)
    else:
        yield from findings
        if steering.price is not None:
            yield ""
            yield price_verdict(steering.price)
    if steering.worth_excluding:
        yield ""
        yield Line(f"    sbatch --exclude={compress(steering.worth_excluding)} ...")
    yield ""
    usable_now = {kind.workload: kind for kind in steering.placing.kinds or (steering.placing,)}
    for kind in kinds:
        subject = f"{advice.workload} on {advice.cluster}" + (f", {kind.workload}" if advice.kinds else "")
        yield from _gains(kind, subject)
        yield from _nodes(steering, kind)
        if kind.workload in usable_now:
            yield from _sets(steering, usable_now[kind.workload], kind.workload if advice.kinds else None)
    yield from _compared(advice)
    yield _cost(advice, steering.wait())
    if steering.price is not None:
        yield _price_evidence(steering.price)
    elif steering.price_reason is not None:
        yield _sentence(f"Price in waiting: {steering.price_reason}")
    yield _age(advice)
    yield from (f"Note: {_sentence(remark)}" for remark in (*steering.remarks, *advice.notes))


def _compared(advice: Advice) -> Iterable[str | Table]:
    """What the scores are relative to."""
    sets = [f"{reference}: {reference.usual_ms:,.4g} ms" for reference in advice.references]
    if len(sets) == 1:
        yield f"Compared: {advice.references[0]}, with each other."
    else:
        yield f"Compared, each set with itself (the time of its median GPU): {'; '.join(sets)}."


def _gains(advice: Advice, subject: str) -> Iterable[str | Table]:
    """What each choice saves; first against a random choice that avoids the slow nodes, too.

    A packed set is compared with random packed sets, and GPUs anywhere with random ones anywhere.
    """
    if not advice.repeatable:  # the finding says that there is no gain, or that none is known
        return
    order = list(_AGAINST)
    gains = sorted(advice.gains, key=lambda g: (order.index(g.against) if g.against in order else 9, g.choice))
    any_kind = "packed" if any(gain.choice == "packed" for gain in gains) else "spread"  # of `exclude`
    rows = [
        [
            _CHOICES.get(gain.choice, gain.choice),
            _RANDOM.get(gain.choice, _RANDOM[any_kind]) + _AGAINST.get(gain.against, gain.against),
            percent(gain.median),
            f"[{percent(gain.lower)}, {percent(gain.upper)}]",
            "" if gain.measurable else "no measurable benefit",
        ]
        for gain in gains
    ]
    title = f"Time saved by a job of {many(advice.gpus, 'GPU')} ({subject})"
    yield Table(("choice", "against", "saved", "[90 %]", ""), rows, (2,), title, wrapped=(0, 1, 4))
    yield ""


def _nodes(steering: Steering, advice: Advice) -> Iterable[str | Table]:
    nodes = advice.nodes
    if not nodes:
        return
    head = ["node", "advice", "worst GPU", "slowdown", "[90 %]", "runs", "days ago", "clock", "power", "temperature"]
    rows = [_node(steering, evidence) for evidence in nodes[:_LISTED]]
    leaves = [9, 8, 7, 6, 5, 2]
    if steering.nodes:
        head.append("state")
        leaves.insert(1, 10)
        for row in rows:
            row.append(steering.nodes[row[0]].state if row[0] in steering.nodes else MISSING)
    whose = f" of {advice.workload}" if steering.advice.kinds else ""
    beside = "their own VBIOS" if len(advice.references) > 1 else "the GPUs compared"
    title = f"Slow nodes{whose}, by their slowest GPU; the median of {beside} in brackets"
    yield Table(head, rows, (3, 5, 6), title, leaves=leaves)
    if len(nodes) > _LISTED:
        yield f"and {len(nodes) - _LISTED} more: --json has them"
    yield ""


def _node(steering: Steering, evidence: NodeEvidence) -> list[str]:
    return [
        steering.names.names.get(evidence.node, evidence.node),
        "exclude" if evidence.excluded else "not excluded" if evidence.tier == "hard" else "avoid",
        evidence.worst_gpu_name,
        f"{evidence.slowdown:.3f}",
        f"[{evidence.lower:.3f}, {evidence.upper:.3f}]",
        count(evidence.runs),
        ("simulated" if evidence.simulated else number(evidence.age_days, 2)) + (" (stale)" if evidence.stale else ""),
        _beside(evidence.sm_clock_mhz, evidence.fleet_sm_clock_mhz, "MHz"),
        _beside(evidence.power_w, evidence.fleet_power_w, "W"),
        _beside(evidence.temperature_c, evidence.fleet_temperature_c, "°C"),
    ]


def _beside(value: float | None, fleet: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f} {unit}" + (f" ({fleet:,.0f})" if fleet is not None else "")


def _sets(steering: Steering, advice: Advice, label: str | None) -> Iterable[str | Table]:
    sets = [(name, best) for name, best in (("packed", advice.packed), ("anywhere", advice.spread)) if best]
    if not sets:
        return
    rows = []
    for name, gpu_set in sets:
        interval = f"[{gpu_set.lower:.3f}, {gpu_set.upper:.3f}]"
        rows.append([name, f"{gpu_set.slowdown:.3f}", interval, count(len(gpu_set.nodes))])
    columns = 4 if advice.cost.nodes else 3  # the number of nodes is the last column
    head = ("set", "time", "[90 %]", "nodes")[:columns]
    title = f"Best sets{f' of {label}' if label else ''}: predicted time, 1 = the median GPU"
    yield Table(head, [row[:columns] for row in rows], (1, 3)[: columns - 2], title)
    for name, gpu_set in sets:
        if gpu_set.nodes:
            nodes = compress(steering.names.names.get(node, node) for node in gpu_set.nodes)
            yield Line(f"nodes of the set {name}: {nodes}")
    if advice.break_even is not None:
        yield f"If spanning nodes costs a factor above {advice.break_even:.3f}, the packed set is the faster one."
    name, gpu_set = sets[0]
    nodes_of_set = [steering.nodes.get(steering.names.names.get(node, node)) for node in gpu_set.nodes]
    if not nodes_of_set or sum(node.gpus if node else 0 for node in nodes_of_set) != len(gpu_set.gpus):
        choose = (
            " A scheduler assigns nodes: ask for whole nodes and choose the GPUs in the job." if nodes_of_set else ""
        )
        yield f"GPUs of the set {name}: {_gpus(gpu_set)}.{choose}"
    yield ""


def _gpus(gpu_set: PlacedSet) -> str:
    others = f" and {len(gpu_set.gpus) - _NAMED} more (--json has all)" if len(gpu_set.gpus) > _NAMED else ""
    return ", ".join(gpu_set.gpu_names[:_NAMED]) + others


def price_verdict(price: WaitingPrice) -> str:
    """Whether an exclusion pays, and for which jobs."""
    first = "Excluding pays" if price.worth else "Do not exclude"
    doubt = "" if price.certain else ", though the intervals overlap"
    text = (
        f"{first}{doubt}: a run of {_hours(price.run_time_h)} h saves {_interval(price.saved)}, and jobs wait "
        f"{_interval(price.waits.mean_wait.added)} longer on average."
    )
    if not price.pays_from_h:
        return text
    hint = " (--time says how long yours runs)" if price.run_time_from == "median" else ""
    return (
        f"{text} It pays for jobs that run longer than {_hours(price.pays_from_h)} h, as {price.longer_jobs_pct:.0f} % "
        f"of these do{hint}."
    )


def _price_evidence(price: WaitingPrice) -> str:
    """How the figures were made."""
    waits = price.waits
    size = "" if waits.job_nodes is None else f" of {many(waits.job_nodes, 'node')}"
    left_out = f", without {waits.too_wide_jobs:,} that need more nodes" if waits.too_wide_jobs else ""
    origin = "their median" if price.run_time_from == "median" else "as you said"
    return (
        f"Price: {waits.jobs:,} jobs{size} in {waits.weeks} weeks of {price.source}, to {price.last_day}, replayed "
        f"with {waits.cluster_nodes:,} nodes and with {waits.excluded_nodes:,} fewer for all jobs{left_out}. The run "
        f"of {_hours(price.run_time_h)} h is {origin}; its saving has a 90 % interval, the mean wait one of 95 %, "
        f"from week to week. The wait that 95 % of them do not exceed grows by {_interval(waits.p95_wait.added)}."
    )


def _interval(figure: WaitHours) -> str:
    hours = f"{_hours(figure.hours)} h"
    if figure.low_h is None or figure.high_h is None:
        return f"{hours} [{MISSING}]"
    return f"{hours} [{_hours(figure.low_h)}, {_hours(figure.high_h)}]"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if abs(hours) >= 10 else f"{round(hours, 2) + 0.0:.2g}"  # and never -0


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
    scale, unit = next(level for level in _LEVELS if abs(wait.extra_s) >= level[0])
    return f"{text}{wait.extra_s / scale:.3g} {unit}, by Slurm's own estimate."


def _age(advice: Advice) -> str:
    """How old the measurements are."""
    stale = advice.staleness
    if stale.simulated_gpus == stale.gpus:
        # The simulated fleet has its own clock, so an age in days means nothing.
        text = f"Measurements of {many(stale.gpus, 'simulated GPU')}, at simulated times."
        return f"{text} Stale: {_sentence(stale.says)}" if stale.says else text
    age = "of unknown age" if stale.newest_days is None else f"{_days(stale.newest_days)} old"
    if stale.newest_days is not None and stale.oldest_days is not None and stale.oldest_days > stale.newest_days + 1:
        age = f"{stale.newest_days:,.0f} to {_days(stale.oldest_days)} old"
    text = f"Measurements of {many(stale.gpus, 'GPU')}, {age}."
    return f"{text} Stale: {_sentence(stale.says)}" if stale.says else text


def _days(days: float) -> str:
    return f"{days:,.0f} days" if days >= 1.5 else "at most one day"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
