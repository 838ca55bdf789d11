"""What `whorl verdicts plan` says: the GPUs to probe next, and the commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...analysis.verdicts.plan import Next, Planned, Remark, Why
from ..table import MISSING, Line, Table, count, many, number
from ..words import short_names as short

_LISTED, _COMMANDS = 20, 10
_LONGEST = 16  # GPUs in one command


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


def commands(plan: Planned, store: str, suite: str, simulated: Mapping[str, str]) -> Iterator[NodeCommand]:
    """`whorl probe run` for each node, in the order in which its GPUs come first.

    `simulated`: by simulated GPU, the backend that measures its fleet again. A command measures all
    of a fleet; none measures a GPU whose backend is not known.
    """
    before = ("whorl", "probe", "run", *plan.probes, "--suite", suite, "--store", store, "--cluster", plan.cluster)
    fleets = dict.fromkeys(simulated[gpu.gpu] for gpu in plan.gpus if simulated.get(gpu.gpu))
    for backend in fleets:
        seconds = plan.gpus[0].seconds * list(simulated.values()).count(backend)
        yield NodeCommand(None, (*before, "--backend", backend), seconds, simulated=True)
    by_node: dict[str | None, list[Next]] = {}
    for gpu in plan.gpus:
        if gpu.gpu not in simulated:
            by_node.setdefault(gpu.node, []).append(gpu)
    for node, gpus in by_node.items():
        for begin in range(0, len(gpus), _LONGEST):
            part = gpus[begin : begin + _LONGEST]
            chosen = [word for gpu in part for word in ("--gpu", gpu.name)]
            yield NodeCommand(node, (*before, *chosen), sum(gpu.seconds for gpu in part))


def document(plan: Planned, todo: Sequence[NodeCommand]) -> dict[str, Any]:
    """The document of `whorl.plan/1`."""
    listed = [{"node": command.node, "command": str(command), "seconds": command.seconds} for command in todo]
    fields = {name: getattr(plan, name) for name in ("cluster", "budget_s", "left_out", "decided")}
    fields |= {"passive": passive_ranks(plan), "probes": list(plan.probes), "notes": list(notes(plan))}
    gpus = [asdict(gpu) | {"reason": reason(gpu, plan.threshold_pct)} for gpu in plan.gpus]
    return {"schema": "whorl.plan/1", **fields, "gpus": gpus, "commands": listed}


def reason(gpu: Next, threshold_pct: float) -> str:
    """Why a GPU is worth measuring, in a line."""
    days = "at an unknown time" if gpu.age_days is None else f"{gpu.age_days:,.0f} days ago"
    match gpu.why:
        case Why.SUSPECTED:
            return f"{_remark(gpu.remark)}: measure again"
        case Why.FOUND:
            return f"{_remark(gpu.remark)} {days}: repaired since?"
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
    # As `explain` has it.
    reach = "" if gpu.low_pct is None or gpu.high_pct is None else f" [{gpu.low_pct:+.1f}, {gpu.high_pct:+.1f}]"
    return f"{gpu.slower_pct:+.1f}{reach} %: too near to {threshold_pct:g} %"


def _remark(remark: Remark | None) -> str:
    if remark is None or remark.kind is None:
        return "its newest sitting was slower"
    return f"{remark.kind}, {remark.state}" + (" of its node" if remark.of_node else "")


def passive_ranks(plan: Planned) -> str | None:
    """What the power of ordinary jobs added, in a sentence; None where nothing."""
    ranks = plan.passive
    if ranks is None:
        return None
    return (
        f"{ranks.gpus:,} GPUs that were never probed are ranked by the power of {ranks.workload} jobs (expected rank "
        f"correlation with speed {ranks.spearman:.2f} [{ranks.low:.2f}, {ranks.high:.2f}], n {ranks.n})"
    )


def notes(plan: Planned) -> Iterator[str]:
    """What limits the plan, in sentences."""
    if plan.seconds > plan.budget_s:
        yield f"one GPU takes {plan.seconds:.0f} s, which is longer than the budget"
    if plan.unmeasured:
        yield f"no runs of {' or '.join(plan.probes)} yet: all GPUs are worth the same"


def answer(plan: Planned, todo: Sequence[NodeCommand], simulated: Mapping[str, str]) -> Iterable[str | Table]:
    """The plan for people; `simulated` as in `commands`."""
    unmet = sum(simulated.get(gpu.gpu) == "" for gpu in plan.gpus)
    spent = sum(gpu.seconds for gpu in plan.gpus)
    yield f"cluster {plan.cluster}: {many(len(plan.gpus), 'GPU')} to probe, {spent / 60:.0f} min of GPU time"
    names = short(gpu.name for gpu in plan.gpus)
    rows = [
        [
            names[gpu.name],
            reason(gpu, plan.threshold_pct),
            number(gpu.bits, 2),
            f"{100 * gpu.slow_chance:.1f}",
            count(gpu.sittings),
            MISSING if gpu.last is None else f"{gpu.last:%Y-%m-%d}",
        ]
        for gpu in plan.gpus[:_LISTED]
    ]
    if rows:
        yield Table(("GPU", "why", "bits", "slow %", "sittings", "last"), rows, (2, 3, 4), wrapped=(1,), leaves=(4, 2))
        if len(plan.gpus) > _LISTED:
            yield f"and {len(plan.gpus) - _LISTED:,} more: --json has all"
        yield (
            "bits: how much a probe is expected to tell; slow %: chance that the GPU is more than "
            f"{plan.threshold_pct:g} % slower than its peers"
        )
    yield ""
    for word, n in plan.decided.items():
        yield f"decided, {word}: {many(n, 'GPU')}; no probe is needed now"
    if plan.left_out:
        yield f"worth a probe, beyond the budget: {many(plan.left_out, 'GPU')}"
    if ranked := passive_ranks(plan):
        yield ranked
    yield from notes(plan)
    if unmet:
        yield (
            f"{many(unmet, 'GPU')} of these {'are' if unmet > 1 else 'is'} simulated, and the store does not say how "
            "to measure them again: no command is printed for them"
        )
    for command in todo[:_COMMANDS]:
        if command.simulated:
            yield Line("# the simulated fleet, all of it:")
        else:
            yield Line(f"# on {command.node or 'its node, which the store does not know'}:")
        yield Line(command.brief(names))
    if len(todo) > _COMMANDS:
        yield f"and {many(len(todo) - _COMMANDS, 'command')} more: --json has all"
