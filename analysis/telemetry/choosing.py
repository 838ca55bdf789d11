"""Which GPUs are meant: by name or key, by node, by cabinet; and which there are that a few letters may mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from ..by_number import by_number
from .readings import Key

if TYPE_CHECKING:
    from ...store import Store

_GPUS = (
    "SELECT cluster, gpu, name, node, cabinet FROM gpus_now WHERE parent IS NULL UNION ALL SELECT cluster, gpu, gpu, "
    "NULL, NULL FROM latest l WHERE NOT EXISTS (SELECT 1 FROM gpus g WHERE g.gpu = l.gpu "
    "AND g.cluster IS NOT DISTINCT FROM l.cluster)"
)
_INSTANCES = "SELECT cluster, gpu, name, node, cabinet FROM gpus_now WHERE parent IS NOT NULL"


class Board(NamedTuple):
    """A GPU, or a MIG instance of one."""

    cluster: str | None
    gpu: str
    name: str
    node: str | None
    cabinet: str | None

    @property
    def key(self) -> Key:
        return self.cluster, self.gpu


@dataclass(frozen=True)
class Boards:
    """The GPUs of a store, in the order of their names; MIG instances apart, as they are parts of these."""

    all: tuple[Board, ...]
    instances: tuple[Board, ...]
    by_name: dict[str, list[Board]] = field(default_factory=dict)
    """By name and by key."""
    by_node: dict[str, list[Board]] = field(default_factory=dict)
    by_cabinet: dict[str, list[Board]] = field(default_factory=dict)
    clusters: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """GPUs that were chosen, each once; `everything` if that is all of the store or of a cluster."""

    boards: tuple[Board, ...]
    everything: bool
    cluster: str | None
    unknown: tuple[str, ...]
    """What was asked for and is not there."""

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(board.key for board in self.boards)


def boards(store: Store) -> Boards:
    """All GPUs that the store knows, also those of which only readings are known."""
    frames = (store.sql(query).polars() for query in (_GPUS, _INSTANCES))
    # Of one node, a longer name has the higher number.
    order = [*by_number("cluster", "node"), pl.col("name").str.len_bytes(), pl.col("name", "gpu")]
    gpus, instances = (tuple(Board(*row) for row in board.sort(order, nulls_last=True).rows()) for board in frames)
    fleet = Boards(gpus, instances, clusters=tuple(dict.fromkeys(board.cluster for board in gpus)))
    for board in (*gpus, *instances):
        for name in dict.fromkeys((board.name, board.gpu)):
            fleet.by_name.setdefault(name, []).append(board)
    for board in gpus:
        if board.node is not None:
            fleet.by_node.setdefault(board.node, []).append(board)
        if board.cabinet is not None:
            fleet.by_cabinet.setdefault(board.cabinet, []).append(board)
    return fleet


def choose(
    fleet: Boards,
    *,
    cluster: str | None = None,
    gpus: Sequence[str] = (),
    nodes: Sequence[str] = (),
    cabinets: Sequence[str] = (),
) -> Chosen:
    """The GPUs of these names or keys, nodes and cabinets; all where none is named. `cluster`: only of this one."""
    choices = [(fleet.by_name, gpus, "GPU "), (fleet.by_node, nodes, "node "), (fleet.by_cabinet, cabinets, "cabinet ")]
    unknown = [] if cluster is None or cluster in fleet.clusters else [f"cluster {cluster}"]

    def here(boards_of: Iterable[Board]) -> list[Board]:
        return [board for board in boards_of if cluster is None or board.cluster == cluster]

    chosen: dict[Board, None] = {}
    for by, names, noun in choices:
        for name in names:
            matches = here(by.get(name, ()))
            chosen |= dict.fromkeys(matches)
            if not matches:
                unknown.append(f"{noun}{name}")
    everything = not any(names for _, names, _ in choices)
    if everything:
        chosen = dict.fromkeys(here(fleet.all))
    return Chosen(tuple(chosen), everything, cluster, tuple(unknown))


def matching(fleet: Boards, text: str, most: int) -> tuple[list[str], list[str], list[str]]:
    """Cabinets, nodes and names of GPUs that have these letters in them, those that begin with them first; `most` of
    each."""
    letters = text.strip().lower()

    def first_with(names: Iterable[str]) -> list[str]:
        matches = [name for name in names if letters in name.lower()]
        if letters:
            matches.sort(key=lambda name: not name.lower().startswith(letters))
        return matches[:most]

    names = first_with(dict.fromkeys(board.name for board in (*fleet.all, *fleet.instances)))
    by_key = (board.name for board in fleet.all if letters and board.gpu.lower().startswith(letters))
    return first_with(fleet.by_cabinet), first_with(fleet.by_node), list(dict.fromkeys((*names, *by_key)))[:most]
