"""What changed between two dates, and which GPUs to measure next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...analysis.verdicts.compare import LEAST_GPUS
from ...analysis.verdicts.difference import ERROR_RATE, Difference, Step
from ...analysis.verdicts.plan import Next, Planned, Remark, Why
from ..document import Column, Command, Document, Part, Table, TableColumns
from ..words import duration, in_store, interval, listed, many, minute, number, short_names

_ROWS, _COMMANDS = 20, 10
_NAMES = 8  # GPUs in a sentence
_LONGEST = 16  # GPUs in one command


# -- what changed ------------------------------------------------------------------------------------------------


def difference(changed: Difference, store: str | Path) -> Document:
    """What changed: the fleet, then the GPUs that moved against it, then what else is different."""
    parts: list[Part] = [_steps(changed)] if changed.steps else []
    if not changed.steps:
        parts.append("No GPU was measured both before and after in the same workload: nothing can be compared.")
    if changed.looks:
        compared = f"{many(changed.looks, 'comparison')}, about {100 * ERROR_RATE:g} % of those named may be false"
        parts.append(_moved(changed, compared) if changed.moved else f"No GPU moved against the fleet ({compared}).")
    parts += [
        f"{step.workload}: which GPUs moved cannot be said: {why_not_compared(step)}."
        for step in changed.steps
        if not step.compared
    ]
    parts += [
        f"{word}, {many(len(names), 'GPU')}: {listed(list(short_names(names).values()), _NAMES)}."
        for word, names in (("New", changed.new), ("Gone", changed.gone))
        if names
    ]
    parts += [f"Another {what} than before: {many(n, 'GPU')}." for what, n in changed.identity.items()]
    parts += difference_notes(changed)
    if changed.moved:
        name = changed.moved[0].name
        called = shlex.quote(short_names([name])[name])
        parts.append(Command(f"whorl explain {called} {in_store(store, changed.cluster)}"))
    return Document(f"What changed in cluster {changed.cluster}", parts)


def _steps(changed: Difference) -> Table:
    columns: TableColumns = [
        ("workload", "workload"),
        (Column("ms before", "number", drops=1), "before_ms"),
        (Column("ms after", "number", drops=2), "after_ms"),
        (Column("step [95 %]", "percent"), lambda step: (step.step_pct, step.low_pct, step.high_pct)),
        (Column("GPUs", "count"), "n"),
        (Column("moved", "count"), lambda step: step.moved if step.compared else None),
    ]
    times = f"before {minute(changed.before)} and since {minute(changed.after)} (UTC)"
    return Table.of(changed.steps, columns, f"Cluster {changed.cluster}: {times}")


def _moved(changed: Difference, compared: str) -> Table:
    names = short_names(gpu.name for gpu in changed.moved)
    columns: TableColumns = [
        (Column("GPU", page="gpu"), lambda gpu: names[gpu.name]),
        ("workload", "workload"),
        (Column("change", "percent", drops=1), "change_pct"),
        (Column("against the fleet [95 %]", "percent"), lambda gpu: (gpu.against_pct, gpu.low_pct, gpu.high_pct)),
        (Column("q", drops=2), lambda gpu: "< 1e-6" if gpu.q < 1e-6 else number(gpu.q, 1)),
        (Column("sittings", drops=3), lambda gpu: f"{gpu.sittings_before} and {gpu.sittings_after}"),
    ]
    gpus = len({gpu.gpu for gpu in changed.moved})
    return Table.of(changed.moved, columns, f"{many(gpus, 'GPU')} moved against the fleet ({compared})", most=_ROWS)


def why_not_compared(step: Step) -> str | None:
    """Why the GPUs of a workload could not be told apart, in a sentence; None where they could."""
    return None if step.compared else f"{many(step.n, 'GPU')} measured before and after; {LEAST_GPUS} are needed"


def difference_notes(changed: Difference) -> Iterator[str]:
    """What was left out, in sentences."""
    if changed.undated:
        yield f"left out: {changed.undated:,} runs whose time is not known"
    if changed.lone:
        gpus = f"{many(len(changed.lone), 'GPU')} ({listed(changed.lone, 6)})"
        yield f"not named, as one run alone shows that it moved: {gpus}; measure again to know"


# -- what to measure next ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeCommand:
    """A command for one node, or for a simulated fleet; `node` is None where it is not known, and for a fleet."""

    node: str | None
    words: tuple[str, ...]
    seconds: float
    simulated: bool = False

    def __str__(self) -> str:
        return shlex.join(self.words)

    def brief(self, names: Mapping[str, str]) -> str:
        """The same with shorter names of GPUs, where there are some."""
        return shlex.join([names.get(word, word) for word in self.words])


def commands(planned: Planned, store: str, suite: str, simulated: Mapping[str, str]) -> Iterator[NodeCommand]:
    """`whorl probe run` for each node, in the order in which its GPUs come first.

    `simulated`: by simulated GPU, the backend that measures its fleet again, empty where it is not known. A command
    measures all of a fleet; none measures a GPU whose backend is not known.
    """
    options = ("--suite", suite, "--store", store, "--cluster", planned.cluster)
    before = ("whorl", "probe", "run", *planned.probes, *options)
    for backend in dict.fromkeys(simulated[gpu.gpu] for gpu in planned.gpus if simulated.get(gpu.gpu)):
        seconds = planned.gpus[0].seconds * list(simulated.values()).count(backend)
        yield NodeCommand(None, (*before, "--backend", backend), seconds, simulated=True)
    by_node: dict[str | None, list[Next]] = {}
    for gpu in planned.gpus:
        if gpu.gpu not in simulated:
            by_node.setdefault(gpu.node, []).append(gpu)
    for node, gpus in by_node.items():
        for begin in range(0, len(gpus), _LONGEST):
            chosen = gpus[begin : begin + _LONGEST]
            names = [word for gpu in chosen for word in ("--gpu", gpu.name)]
            yield NodeCommand(node, (*before, *names), sum(gpu.seconds for gpu in chosen))


def plan(planned: Planned, todo: Sequence[NodeCommand], simulated: Mapping[str, str]) -> Document:
    """The GPUs to probe next, why, and the commands. `simulated` as in `commands`."""
    spent = sum(gpu.seconds for gpu in planned.gpus)
    names = short_names(gpu.name for gpu in planned.gpus)
    parts: list[Part] = [
        f"Cluster {planned.cluster}: {many(len(planned.gpus), 'GPU')} to probe, {duration(spent)} of GPU time."
    ]
    if planned.gpus:
        parts.append(_next_gpus(planned, names))
    parts += [
        f"Decided, {decision}: {many(n, 'GPU')}; no probe is needed now." for decision, n in planned.decided.items()
    ]
    if planned.left_out:
        parts.append(f"Worth a probe, beyond the budget: {many(planned.left_out, 'GPU')}.")
    if ranked := passive_ranks(planned):
        parts.append(ranked)
    parts += plan_notes(planned)
    unmet = sum(simulated.get(gpu.gpu) == "" for gpu in planned.gpus)
    if unmet:
        parts.append(
            f"{many(unmet, 'GPU')} of these {'are' if unmet > 1 else 'is'} simulated, and the store does not say how "
            "to measure them again: no command is printed for them."
        )
    for command in todo[:_COMMANDS]:
        node = command.node or "its node, which the store does not know"
        parts.append("The simulated fleet, all of it:" if command.simulated else f"On {node}:")
        parts.append(Command(command.brief(names)))
    if len(todo) > _COMMANDS:
        parts.append(f"and {many(len(todo) - _COMMANDS, 'command')} more: --json has all")
    return Document(f"What to measure next in cluster {planned.cluster}", parts)


def _next_gpus(planned: Planned, names: Mapping[str, str]) -> Table:
    columns: TableColumns = [
        (Column("GPU", page="gpu"), lambda gpu: names[gpu.name]),
        (Column("why", "sentence"), lambda gpu: reason(gpu, planned.threshold_pct)),
        (Column("bits", "number", 3, drops=1, explains="How much a probe is expected to tell."), "bits"),
        (Column("chance of slow", "number", 1, "%"), lambda gpu: 100 * gpu.slow_chance),
        (Column("sittings", "count", drops=2), "sittings"),
        ("last", lambda gpu: None if gpu.last is None else f"{gpu.last:%Y-%m-%d}"),
    ]
    below = (
        "bits: how much a probe is expected to tell; chance of slow: that the GPU is more than "
        f"{planned.threshold_pct:g} % slower than its peers."
    )
    return Table.of(planned.gpus, columns, below=below, most=_ROWS)


def reason(gpu: Next, threshold_pct: float) -> str:
    """Why a GPU is worth measuring, in a line."""
    days = "at an unknown time" if gpu.age_days is None else f"{gpu.age_days:,.0f} days ago"
    match gpu.why:
        case Why.SUSPECTED:
            return f"{_finding(gpu.remark)}: measure again"
        case Why.FOUND:
            return f"{_finding(gpu.remark)} {days}: repaired since?"
        case Why.NEVER:
            return "never measured"
        case Why.PASSIVE:
            return "never measured; the power of its jobs says slow"
        case Why.OLD if gpu.decision == "slow":
            return f"slow {days}: still so?"
        case Why.OLD:
            return f"{'fine' if gpu.decision == 'fine' else 'not decided'}, but measured {days}"
        case _ if gpu.sittings == 1 or gpu.slower_pct is None:
            return "one sitting: another one is needed"
    reach = "" if gpu.low_pct is None or gpu.high_pct is None else f" {interval(gpu.low_pct, gpu.high_pct)}"
    return f"{gpu.slower_pct:+.1f}{reach} %: too near to {threshold_pct:g} %"


def _finding(remark: Remark | None) -> str:
    if remark is None or remark.kind is None:
        return "its newest sitting was slower"
    return f"{remark.kind}, {remark.state}" + (" of its node" if remark.of_node else "")


def passive_ranks(planned: Planned) -> str | None:
    """What the power of ordinary jobs added, in a sentence; None where nothing."""
    ranks = planned.passive
    if ranks is None:
        return None
    return (
        f"{ranks.gpus:,} GPUs that were never probed are ranked by the power of {ranks.workload} jobs (expected rank "
        f"correlation with speed {ranks.spearman:.2f} [{ranks.low:.2f}, {ranks.high:.2f}], n {ranks.n})"
    )


def plan_notes(planned: Planned) -> Iterator[str]:
    """What limits the plan, in sentences."""
    if planned.seconds > planned.budget_s:
        yield f"one GPU takes {planned.seconds:.0f} s, which is longer than the budget"
    if planned.unmeasured:
        yield f"no runs of {' or '.join(planned.probes)} yet: all GPUs are worth the same"
