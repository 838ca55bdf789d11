"""What a store gives a replay: a fleet for every seed out of what was measured.

The fleets of all seeds are alike in what policies believe. The order of the nodes is drawn too: a policy that takes
the first node that fits would otherwise meet a slow node in every seed or in none, by its name alone. A policy sees
the shrunk scores; jobs run at scores drawn from what these leave open, anew for every seed. So a policy that follows
noise gains nothing here, as it would gain nothing on the real fleet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .fleet import Fleet, Floats, Ints
from .power import Power
from .rates import Rates
from .world import Advised, Beliefs, World

if TYPE_CHECKING:
    from ..placement import Advice, Scores


_PLACES, _SCORES = 1, 2  # words of the random numbers: who stands where, and what the scores are
_NODE = 4  # GPUs of a node, where no node is known


@dataclass(frozen=True)
class EqualFleets:
    """A fleet of equal GPUs: placement can gain only by packing."""

    nodes: int
    gpus_per_node: int
    locality: float = 1.0

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes, in order."""
        return self.draw(0).fleet.node_names

    def draw(self, seed: int) -> World:  # noqa: ARG002 (alike for every seed)
        """The fleet of a seed."""
        return World.regular(self.nodes, self.gpus_per_node, locality=self.locality)


@dataclass(frozen=True)
class MeasuredFleets:
    """The measured fleet, or one of another shape whose GPUs are drawn from it.

    A GPU is drawn with its scores in all workloads, so that these stay as correlated as they were measured. Where
    whole measured nodes have the size asked for, they are drawn as they stand.

    Raises:
        InputError: only one of `nodes` and `gpus_per_node`.
    """

    scores: Scores
    workloads: Sequence[str]  # those that jobs have, each with scores
    nodes: int | None = None  # None: the measured fleet itself
    gpus_per_node: int | None = None
    locality: float = 1.0

    def __post_init__(self) -> None:
        if (self.nodes is None) != (self.gpus_per_node is None):
            raise InputError("--nodes and --gpus-per-node go together: they are the shape of the fleet to replay on")

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes in the order of these names, whatever order a seed draws."""
        return self._nodes[1]

    def draw(self, seed: int) -> World:
        """The fleet of a seed: who stands where, at what scores jobs run, and what is believed of these."""
        places = np.random.default_rng([seed, _PLACES])
        chances = np.random.default_rng([seed, _SCORES])
        node, names = self._nodes
        if self.nodes is None:
            turn = places.permutation(len(names))
            node = np.argsort(turn).astype(np.int32)[node]
            row: Ints = np.argsort(node, kind="stable").astype(np.int32)
            node, names = node[row], tuple(names[place] for place in turn)
            rows = dict.fromkeys(self.workloads, row)
            gpus = tuple(self.scores.gpus[place] for place in row)
            advised = Advised(self.scores, names, self._advice)
        else:
            rows = {name: row for group in self._groups for row in [self._rows(group, places)] for name in group}
            within = np.arange(len(node)) - np.searchsorted(node, node)
            gpus = tuple(f"{names[n]}/{slot}" for n, slot in zip(node, within, strict=True))
            advised = Advised(self._seated(rows, gpus, [names[n] for n in node]), names)
        actual, belief, power, usual = {}, {}, {}, {}
        for name in self.workloads:
            drawn, row = self.scores.one(name).draw(chances), rows[name]
            actual[name] = _or_median(drawn)[row]
            belief[name] = _or_median(self.scores.one(name).belief)[row]
            watts = self.scores.one(name).power_w[row]
            if not np.isnan(watts).all():
                power[name] = watts
            usual[name] = _or_median(self.scores.one(name).usual)[row]
        rates = Rates(Fleet(node, names, gpus), actual, self.locality, power=Power(power) if power else None)
        return World(rates, Beliefs(replace(rates, scores=belief), advised=advised, usual=usual))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed, in sentences."""
        notes = list(self.scores.notes)
        drawn_one_by_one = self.nodes is not None and not self._whole_nodes
        for group in self._groups:
            pool = self._pool(group) if drawn_one_by_one else np.ones(len(self.scores.gpus), dtype=bool)
            total = int(pool.sum())
            missing = {name: int(np.isnan(self.scores.one(name).belief)[pool].sum()) for name in group}
            notes += [
                f"{n:,} of {total:,} GPUs were not measured in {name}; there they have its median score"
                for name, n in missing.items()
                if n
            ]
        if len(self._groups) > 1:
            parted = " and ".join("/".join(group) for group in self._groups)
            notes.append(
                f"no GPU was measured in both {parted}: they are drawn independently, but real GPUs may be correlated"
            )
        if self.nodes is None:
            if lost := sum(name is None for name in self.scores.nodes):
                notes.append(
                    f"the node of {lost:,} GPUs is unknown: they are put, in the order of their names, into invented "
                    f"nodes of {self._size}"
                )
        elif self._whole_nodes:
            notes.append(_drawn_text(self.nodes, "nodes are drawn", len(set(self.scores.nodes)), "measured ones"))
        else:
            for group in self._groups:
                source = f"measured in {', '.join(group)}"
                total = int(self._pool(group).sum())
                notes.append(_drawn_text(self.nodes * self._size, "GPUs are drawn one by one", total, source))
        return tuple(notes)

    @cached_property
    def _advice(self) -> dict[tuple[str, int], Advice | None]:
        """The advice on the measured fleet, which is the same for every seed."""
        return {}

    @cached_property
    def _groups(self) -> list[tuple[str, ...]]:
        """The workloads, those together that some GPU links, directly or over others."""
        groups: list[tuple[list[str], set[int]]] = []
        for name in self.workloads:
            measured = set(np.flatnonzero(~np.isnan(self.scores.one(name).belief)).tolist())
            linked = [group for group in groups if group[1] & measured]
            groups = [group for group in groups if group not in linked]
            names = [linked_name for group in linked for linked_name in group[0]]
            groups.append(([*names, name], measured.union(*(group[1] for group in linked))))
        return [tuple(names) for names, _ in groups]

    @cached_property
    def _size(self) -> int:
        """GPUs of a node: as asked for, else the commonest size measured."""
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        sizes = Counter(Counter(name for name in self.scores.nodes if name is not None).values())
        return max(sizes, key=lambda size: (sizes[size], size)) if sizes else _NODE

    @cached_property
    def _nodes(self) -> tuple[Ints, tuple[str, ...]]:
        """(gpus,) the number of each GPU's node, and the nodes' names."""
        if self.nodes is not None:
            digits = len(str(self.nodes - 1))
            node = np.repeat(np.arange(self.nodes, dtype=np.int32), self._size)
            return node, tuple(f"n{number:0{digits}}" for number in range(self.nodes))
        names = [name for name in self.scores.nodes if name is not None]  # GPUs without a node come last
        lost = len(self.scores.nodes) - len(names)
        names += [f"unknown-{place // self._size + 1}" for place in range(lost)]
        number = {name: place for place, name in enumerate(dict.fromkeys(names))}
        return np.array([number[name] for name in names], np.int32), tuple(number)

    @cached_property
    def _whole_nodes(self) -> bool:
        sizes = Counter(self.scores.nodes)
        return None not in sizes and set(sizes.values()) == {self._size} and len(self._groups) < 2

    def _seated(self, rows: Mapping[str, Ints], gpus: tuple[str, ...], nodes: Sequence[str]) -> Scores:
        """The scores of a drawn fleet: by workload, (gpus,) the measured GPU in each place; and the places' names."""
        by_workload = {name: self.scores.of[name].seated(row) for name, row in rows.items()}
        places = tuple(
            replace(self.scores.places[number], node=node, slot=None)
            for number, node in zip(next(iter(rows.values()), ()), nodes, strict=True)
        )
        return replace(self.scores, workloads=tuple(by_workload), gpus=gpus, places=places, of=by_workload)

    def _rows(self, group: Sequence[str], places: np.random.Generator) -> Ints:
        """(gpus of the fleet,) the measured GPU that is drawn for each place, for a group of linked workloads."""
        if self._whole_nodes:
            units = np.arange(len(self.scores.gpus), dtype=np.int32).reshape(-1, self._size)
        else:
            units = np.flatnonzero(self._pool(group)).astype(np.int32)[:, None]
        rounds = -(-len(self._nodes[0]) // units.size)  # all different until all are drawn, then all once more
        order = np.concatenate([places.permutation(len(units)) for _ in range(rounds)])
        drawn: Ints = units[order].ravel()[: len(self._nodes[0])]
        return drawn

    def _pool(self, group: Sequence[str]) -> NDArray[np.bool_]:
        """(measured GPUs,) those that are drawn from: measured in all of the group, where these are not too few."""
        measured = [~np.isnan(self.scores.one(name).belief) for name in group]
        everywhere, anywhere = np.logical_and.reduce(measured), np.logical_or.reduce(measured)
        pool: NDArray[np.bool_] = everywhere if 2 * everywhere.sum() >= anywhere.sum() else anywhere
        return pool


def _drawn_text(drawn: int, units: str, pool: int, source: str) -> str:
    again = ", some more than once" if drawn > pool else ""
    return f"{drawn:,} {units} from {pool:,} {source}, again for each seed{again}"


def _or_median(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), 1.0, scores)
