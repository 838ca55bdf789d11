"""Where a job should run: what the advice says, for `whorl advise` and the page Placement.

A document opens with the workload, what a job gains there and what to do; then come the evidence, the best sets of
GPUs, the cost and the age of the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...analysis.placement.advice import WorkloadGain
from ...store.hostlist import compress
from ..document import Column, Command, Document, Facts, Part, Section, Table
from ..words import MISSING, count, listed, many, number, with_interval

if TYPE_CHECKING:
    import polars as pl

    from ...analysis.placement import Advice, Gain, NodeEvidence
    from ...store import Store

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
SAVED = Column(
    "time saved [90 %]",
    "estimate",
    unit="%",
    explains="share of a job's time: its median over the draws, and in brackets its 90 % interval",
)


@dataclass(frozen=True)
class PriceWords:
    """What an exclusion costs in waiting, in sentences."""

    worth: bool
    verdict: str
    """Whether it pays, and for which jobs."""
    evidence: str
    """How the figures were made."""


@dataclass(frozen=True)
class SchedulerView:
    """What a scheduler knows beside the advice; empty where none was asked."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The scheduler's name of a node of the store."""
    states: Mapping[str, str] = field(default_factory=dict)
    """State of a node, by the scheduler's name."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs of a node, by the scheduler's name."""
    exclude: Sequence[str] = ()
    """The nodes that are worth excluding, by the scheduler's name."""
    wait_s: float | None = None
    """How much later a job would start for the exclusion; None where that is not known."""
    wait_reason: str = "no scheduler was asked"
    price: PriceWords | None = None
    price_reason: str | None = None
    remarks: Sequence[str] = ()

    def name(self, node: str) -> str:
        """The name of a node for people who use the scheduler."""
        return self.names.get(node, node)


# -- what the page Placement asks for ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlacementQuestion:
    """A job on a cluster: its workload (None: the one in which it gains most), a part of the name of its GPUs' model,
    how many of them, and nodes that it avoids anyway."""

    cluster: str
    workload: str | None
    model: str | None
    gpus: int
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchedulerLines:
    """Lines for a scheduler, or why there are none, and the command that prints them ("" where no command does)."""

    title: str
    text: str
    note: str | None
    command: str


@dataclass(frozen=True)
class PlacementAnswer:
    """The advice as a document, lines for schedulers, and rows to draw."""

    advice: Advice
    document: Document
    lines: tuple[SchedulerLines, ...]
    nodes: dict[str, pl.DataFrame]
    """By kind of the workload, the rows of `analysis.placement.node_rows`."""
    gpus: pl.DataFrame


class Adviser(Protocol):
    """Answers a question about a store. `version`: another one when the store has changed. Raises WhorlError."""

    def __call__(
        self, store: Store, version: Hashable, question: PlacementQuestion, say: Callable[[str], None]
    ) -> PlacementAnswer: ...


# -- the document ------------------------------------------------------------------------------------------------


def advice_document(
    advice: Advice,
    usable_now: Advice | None = None,
    view: SchedulerView = SchedulerView(),
    workloads: Sequence[WorkloadGain] = (),
) -> Document:
    """The advice for people. `usable_now`: the same over nodes that run jobs at this moment, whose sets are the ones
    to ask for; `workloads`: what the job gains in each workload, the most first, where none was named."""
    kinds = advice.kinds or (advice,)
    placing = {kind.workload: kind for kind in ((usable_now or advice).kinds or (usable_now or advice,))}
    parts: list[Part] = [*_opening(advice, view, workloads)]
    if len(workloads) > 1 and any(row.gain is not None for row in workloads):
        parts.append(Section(f"What a job of {many(advice.gpus, 'GPU')} gains, by workload", [_workloads(workloads)]))
    for kind in kinds:
        of_kind = f" of {kind.workload}" if advice.kinds else ""
        if kind.repeatable and kind.gains:  # otherwise the opening says that no gain is known
            parts.append(
                Section(
                    f"Time saved by a job of {many(kind.gpus, 'GPU')}",
                    [gain_table(kind.gains)],
                    f"{advice.workload} on {advice.cluster}" + (f", {kind.workload}" if advice.kinds else ""),
                )
            )
        if kind.nodes:
            parts.append(Section(f"Slow nodes{of_kind}", [_node_table(kind, view)], _beside(kind)))
        sets = [*_sets(placing[kind.workload], view)] if kind.workload in placing else []
        if sets:
            parts.append(Section(f"Best GPUs{of_kind}", sets))
    parts.append(Section("Cost and age", [*_ground(advice, view)]))
    return Document(f"Where a job of {many(advice.gpus, 'GPU')} should run: {advice.workload}", parts)


def _opening(advice: Advice, view: SchedulerView, workloads: Sequence[WorkloadGain]) -> Iterator[Part]:
    """What a job gains and where, and what to do."""
    findings = [f"{kind.workload}: {kind.finding}" for kind in advice.kinds] or [advice.finding]
    gain = _headline(advice, workloads)
    price = view.price
    if price is not None and not price.worth:
        yield price.verdict
        yield from (f"If waiting cost nothing: {finding}" for finding in findings)
        return
    if gain:
        yield gain
    yield from findings
    if price is not None:
        yield price.verdict
    if view.exclude:
        yield Command(f"sbatch --exclude={compress(view.exclude)} ...")


def _headline(advice: Advice, workloads: Sequence[WorkloadGain]) -> str:
    """The gain of the best GPUs with its interval and n; "" where none is measurable."""
    gain, fair = advice.best_gain(), advice.best_gain("drained")
    if gain is None or not gain.measurable:
        return ""
    packed = "packed " if gain.choice == "packed" else ""
    saves = "GPU saves" if advice.gpus == 1 else f"{advice.gpus} {packed}GPUs save"
    than = "a random one" if advice.gpus == 1 else "random ones"
    lead = f"{advice.workload} gains most of {len(workloads)} workloads" if len(workloads) > 1 else advice.workload
    n = workloads[0] if workloads else None
    compared = sum(reference.gpus for reference in advice.references)
    counted = f"n = {many(compared, 'GPU')}" + (f", {many(n.runs, 'run')}" if n is not None else "")
    beside = ""
    if fair is not None and fair.median != gain.median:
        beside = f", and {_size(fair)} beside {than} off the slow nodes"
    return f"{lead}: the best {saves} {_size(gain)} of the time beside {than}{beside} ({counted})."


def _size(gain: Gain) -> str:
    return with_interval(*percents(gain), unit="%")


def _workloads(workloads: Sequence[WorkloadGain]) -> Table:
    columns: list[Column | str] = [
        "workload", SAVED, Column("GPUs", "count", explains="n: GPUs that are compared"),
        Column("runs", "count", drops=1), Column("", "sentence"),
    ]  # fmt: skip
    rows = []
    for row in workloads:
        remark = "" if row.gain is not None and row.gain.measurable else row.reason or "no measurable gain"
        rows.append([row.workload, None if row.gain is None else percents(row.gain), row.gpus, row.runs, remark])
    return Table(columns, rows, below="The best set of GPUs beside random ones.")


def percents(gain: Gain) -> tuple[float, float, float]:
    """A gain with the ends of its interval, %."""
    return 100 * gain.median, 100 * gain.lower, 100 * gain.upper


def gain_table(gains: Sequence[Gain]) -> Table:
    """What each choice saves; first against a random choice that avoids the slow nodes, too.

    A packed set is compared with random packed sets, and GPUs anywhere with random ones anywhere.
    """
    order = list(_AGAINST)
    ordered = sorted(gains, key=lambda gain: (order.index(gain.against) if gain.against in order else 9, gain.choice))
    any_kind = "packed" if any(gain.choice == "packed" for gain in gains) else "spread"  # of `exclude`
    rows = [
        [
            _CHOICES.get(gain.choice, gain.choice),
            _RANDOM.get(gain.choice, _RANDOM[any_kind]) + _AGAINST.get(gain.against, gain.against),
            percents(gain),
            "" if gain.measurable else "no measurable gain",
        ]
        for gain in ordered
    ]
    columns: list[Column | str] = [Column("choice", "sentence"), Column("against", "sentence"), SAVED]
    return Table([*columns, Column("", "sentence")], rows, cards=True)


# -- nodes and sets ----------------------------------------------------------------------------------------------


def _beside(kind: Advice) -> str:
    medians = "the boards of their own VBIOS" if len(kind.references) > 1 else "all GPUs compared"
    return f"Each by its slowest GPU; in brackets the median of {medians}."


def _node_table(kind: Advice, view: SchedulerView) -> Table:
    columns: list[Column | str] = [
        "node",
        "advice",
        Column("worst GPU", page="gpu"),
        Column("slowdown", "number", 3, explains="its time over that of the median GPU"),
        Column("[90 %]", "interval", 3, drops=1),
        Column("runs", "count", drops=2),
        Column("days ago", drops=3),
        Column("clock", drops=4),
        Column("power", drops=5),
        Column("temperature", drops=6),
    ]
    rows = [_node_row(evidence, view) for evidence in kind.nodes]
    if view.states:
        columns.append(Column("state", drops=5))
        for row, evidence in zip(rows, kind.nodes, strict=True):
            row.append(view.states.get(view.name(evidence.node)))
    return Table(columns, rows, most=_NODES_LISTED)


def _node_row(evidence: NodeEvidence, view: SchedulerView) -> list[str | float | tuple[float, float] | None]:
    age = "simulated" if evidence.simulated else number(evidence.age_days, 2)
    return [
        view.name(evidence.node),
        "exclude" if evidence.excluded else "not excluded" if evidence.tier == "hard" else "avoid",
        evidence.worst_gpu_name,
        evidence.slowdown,
        (evidence.lower, evidence.upper),
        evidence.runs,
        f"{age} (stale)" if evidence.stale else age,
        _with_median(evidence.sm_clock_mhz, evidence.fleet_sm_clock_mhz, "MHz"),
        _with_median(evidence.power_w, evidence.fleet_power_w, "W"),
        _with_median(evidence.temperature_c, evidence.fleet_temperature_c, "°C"),
    ]


def _with_median(value: float | None, median: float | None, unit: str) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f} {unit}" + (f" ({median:,.0f})" if median is not None else "")


def _sets(advice: Advice, view: SchedulerView) -> Iterator[Part]:
    """The best sets: where they are, and the time there."""
    sets = [(name, best) for name, best in (("packed", advice.packed), ("anywhere", advice.spread)) if best]
    if not sets:
        return
    columns: list[Column | str] = ["set", Column("time", "number", 3, explains="1 is that of the median GPU")]
    columns += [Column("[90 %]", "interval", 3), Column("nodes", "count")]
    rows = [[name, best.slowdown, (best.lower, best.upper), len(best.nodes) or None] for name, best in sets]
    yield Table(columns, rows, below="Predicted time of the job; 1 is that on median GPUs.")
    places = [(name, compress(map(view.name, best.nodes))) for name, best in sets if best.nodes]
    if places:
        yield Facts(places, "Their nodes")
    if advice.break_even is not None:
        yield f"If spanning nodes costs a factor above {advice.break_even:.3f}, the packed set is the faster one."
    name, best = sets[0]
    held = [view.gpus.get(view.name(node), 0) for node in best.nodes]
    if not held or sum(held) != len(best.gpus):
        choose = " A scheduler assigns nodes: ask for whole nodes and choose the GPUs in the job." if held else ""
        yield f"GPUs of the set {name}: {listed(best.gpu_names, _GPUS_NAMED)}.{choose}"


# -- cost and age ------------------------------------------------------------------------------------------------


def _ground(advice: Advice, view: SchedulerView) -> Iterator[str]:
    """What the advice costs, what it rests on, and remarks."""
    yield _cost(advice, view)
    if view.price is not None:
        yield view.price.evidence
    elif view.price_reason is not None:
        yield sentence(f"Price in waiting: {view.price_reason}")
    sets = [f"{reference}: {reference.usual_ms:,.4g} ms" for reference in advice.references]
    if len(sets) == 1:
        yield f"Compared: {advice.references[0]}, with each other."
    else:
        yield f"Compared, each set with itself (the time of its median GPU): {'; '.join(sets)}."
    yield _age(advice)
    yield from (f"Note: {sentence(remark)}" for remark in (*view.remarks, *advice.notes))


def _cost(advice: Advice, view: SchedulerView) -> str:
    cost = advice.cost
    if not cost.nodes:
        return "Cost: n/a, because no node is known."
    text = (
        f"Cost: {count(cost.nodes_excluded)} of {many(cost.nodes, 'node')} excluded ({100 * cost.share:.1f} %), "
        f"{many(cost.gpus_left, 'GPU')} left; extra wait "
    )
    if view.wait_s is None:
        return f"{text}{MISSING} ({view.wait_reason.rstrip('.')})."
    if abs(view.wait_s) < 1:
        return f"{text}none, by Slurm's own estimate." if cost.nodes_excluded else f"{text}none."
    scale, unit = next(level for level in _WAITS if abs(view.wait_s) >= level[0])
    return f"{text}{view.wait_s / scale:.3g} {unit}, by Slurm's own estimate."


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
