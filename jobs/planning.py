"""Plan what to probe next, as `whorl plan` does, and say it as commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from ..analysis.verdicts.answers.planning import Planned
    from ..store import Store

PROBES = ("gemm-fp32", "stream-triad")
_LONGEST = 16  # GPUs in one command


@dataclass(frozen=True)
class Command:
    """A command for one node."""

    node: str | None
    """None where the node is not known."""
    words: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return shlex.join(self.words)

    def brief(self, names: Mapping[str, str]) -> str:
        """The same with shorter names of GPUs, where there are some."""
        return shlex.join([names.get(word, word) for word in self.words])


def plan(
    store: Store | str | Path,
    *,
    budget: float,
    probes: Sequence[str] = PROBES,
    suite: str = "quick",
    cluster: str | None = None,
    threshold: float = 3.0,
) -> Planned:
    """Which GPUs to probe next. `budget`: seconds of GPU time; `threshold`: per cent slower that matters.

    InputError where there are no GPUs, several clusters and none named, or no such probe.
    """
    from ..analysis.verdicts.answers.planning import planned
    from ..probes.campaign import Plan
    from ..probes.catalogue import choose
    from ..probes.conditions import Asked
    from ..probes.effort import EFFORTS
    from ..store import Store

    if not budget > 0:
        raise InputError("the budget must be longer than 0 s")
    chosen = choose(tuple(probes))
    seconds = Plan(chosen, Asked(EFFORTS[suite]), "plan").expected_s()
    opened = store if isinstance(store, Store) else Store.open(store)
    names = [one.name for one in chosen]
    return planned(opened, names, budget_s=budget, seconds=seconds, cluster=cluster, threshold_pct=threshold)


def commands(found: Planned, store: str | Path, suite: str) -> Iterator[Command]:
    """`whorl probe run` for each node, in the order in which its GPUs come first."""
    by_node: dict[str | None, list[str]] = {}
    seconds: dict[str | None, float] = {}
    for one in found.gpus:
        by_node.setdefault(one.node, []).append(one.name)
        seconds[one.node] = seconds.get(one.node, 0.0) + one.seconds
    for node, names in by_node.items():
        for begin in range(0, len(names), _LONGEST):
            some = names[begin : begin + _LONGEST]
            words = ["whorl", "probe", "run", *found.probes, "--suite", suite, "--store", str(store)]
            words += ["--cluster", found.cluster, *(word for name in some for word in ("--gpu", name))]
            yield Command(node, tuple(words), seconds[node] * len(some) / len(names))
