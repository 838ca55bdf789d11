"""What is asked of a store: advice on a workload, over the kinds of its runs on several models of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..store.names import find_workload, plain_workload

if TYPE_CHECKING:
    from ..analysis.placement import Advice, Scores
    from ..store import Store


@dataclass(frozen=True)
class Wanted:
    """What is asked: the options of `whorl advise` that are about the advice."""

    workload: str
    cluster: str | None = None
    model: str | None = None
    gpus: int = 1
    hard: float = 1.1
    soft: float = 1.05
    max_share: float | None = None
    max_age: float = 90.0  # days
    locality: float = 1.0
    replicates: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Asked:
    """What is asked of a store: a workload, as the kinds of its runs on several models, and their scores."""

    store: Store
    wanted: Wanted
    kinds: tuple[str, ...]
    named: bool  # the user gave the name of a kind, and not that of the work
    found: Scores

    @classmethod
    def of(cls, store: Store, wanted: Wanted, found: Scores | None = None) -> Asked:
        """What is asked. `found`: the scores of its cluster, where they are known already. Raises InputError."""
        from ..analysis.placement import available, kinds_of

        every = available(store)
        known = [(cluster, name) for cluster, name in every if wanted.cluster in (None, cluster)]
        said = find_workload(wanted.workload, {one for _, name in known for one in (name, plain_workload(name))})
        clusters = sorted({cluster for cluster, name in known if said in (name, plain_workload(name))})
        if wanted.cluster is None and len(clusters) > 1:
            raise InputError(f"{said} was measured on {', '.join(clusters)}: choose one with --cluster")
        if not clusters and len({cluster for cluster, _ in known}) > 1:
            having = ", ".join(sorted({plain_workload(name) for _, name in known}))
            raise InputError(f"{store.root} has no runs of workload {said}; it has {having}")
        cluster = wanted.cluster or (clusters[0] if clusters else None)
        there = {name for on, name in known if on in clusters}
        kinds = [said] if said in there else sorted(name for name in there if plain_workload(name) == said)
        found = _scores(store, wanted, cluster, known=every) if found is None else found
        chosen = kinds_of(found, said, kinds or [said], wanted.model)
        return cls(store, wanted, tuple(chosen), said in there, found)

    @property
    def nodes(self) -> set[str]:
        """The known nodes with GPUs of these kinds."""
        return {node for kind in self.kinds for node in self._nodes(kind)}

    def _nodes(self, kind: str) -> set[str]:
        runs = self.found.of[kind].runs
        return {node for gpu, node in enumerate(self.found.nodes) if node is not None and runs[gpu]}

    def within(self, usable: set[str]) -> Asked:
        """The same on some nodes. GPUs whose model nobody knows are compared with each other only if they are there.

        Others may be of another model.
        """
        kinds = tuple(kind for kind in self.kinds if self._nodes(kind) & usable)
        unknown = [kind for kind in kinds if self.found.of[kind].references[0].model is None]
        if not any(self._nodes(kind) - usable for kind in unknown):
            return replace(self, kinds=kinds)
        return replace(self, kinds=kinds, found=_scores(self.store, self.wanted, self.found.cluster, usable))

    def advice(self, usable: set[str] | None) -> Advice:
        """The advice on `usable` nodes (all, where None), on each kind for itself and in one."""
        from ..analysis.placement import advise, suspects, together

        wanted = self.wanted
        suspected = suspects(self.store, self.found, self.kinds, wanted.soft)
        options: dict[str, Any] = {"replicates": wanted.replicates, "seed": wanted.seed}
        room = {kind: self._gpus(kind, usable) for kind in self.kinds}
        small = [kind for kind in self.kinds if len(self.kinds) > 1 and room[kind] < wanted.gpus]
        there = " and ".join(f"{room[kind]:,} of {self._model(kind)}" for kind in small)
        if small and len(small) == len(self.kinds):
            raise InputError(f"the job needs {wanted.gpus:,} GPUs of one model, but there are only {there}")
        parts = []
        for kind in self.kinds:
            if kind in small:
                continue
            one = advise(
                self.found,
                kind,
                gpus=wanted.gpus,
                # Nodes that nobody measured count where all GPUs are of one kind.
                partition=usable if usable is None or len(self.kinds) == 1 else usable & self._nodes(kind),
                locality=wanted.locality,
                hard=wanted.hard,
                soft=wanted.soft,
                max_share=wanted.max_share,
                max_age=wanted.max_age,
                suspected=suspected.get(kind, ()),
                **{name: value for name, value in options.items() if value is not None},
            )
            if small:
                left_out = " and ".join(f"{self._model(kind)} (GPUs: {room[kind]:,})" for kind in small)
                note = f"left out, because the job does not fit there: {left_out}"
                one = replace(one, notes=(*one.notes, note))
            parts.append(one)
        return parts[0] if self.named else together(parts)

    def _model(self, kind: str) -> str:
        return self.found.of[kind].references[0].model or kind

    def _gpus(self, kind: str, usable: set[str] | None) -> int:
        runs = self.found.of[kind].runs
        return sum(usable is None or node in usable for gpu, node in enumerate(self.found.nodes) if runs[gpu])


def _scores(
    store: Store, wanted: Wanted, cluster: str | None, nodes: set[str] | None = None,
    known: Sequence[tuple[str, str]] | None = None,
) -> Scores:  # fmt: skip
    from ..analysis.placement import scores

    seed = {} if wanted.seed is None else {"seed": wanted.seed}
    return scores(store, (), cluster=cluster, nodes=nodes, known=known, **seed)
