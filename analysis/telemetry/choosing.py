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
    every, parts = (tuple(Board(*row) for row in one.sort(order, nulls_last=True).rows()) for one in frames)
    found = Boards(every, parts, clusters=tuple(dict.fromkeys(one.cluster for one in every)))
    for one in (*every, *parts):
        for name in dict.fromkeys((one.name, one.gpu)):
            found.by_name.setdefault(name, []).append(one)
    for one in every:
        if one.node is not None:
            found.by_node.setdefault(one.node, []).append(one)
        if one.cabinet is not None:
            found.by_cabinet.setdefault(one.cabinet, []).append(one)
    return found


def choose(
    known: Boards,
    *,
    cluster: str | None = None,
    gpus: Sequence[str] = (),
    nodes: Sequence[str] = (),
    cabinets: Sequence[str] = (),
) -> Chosen:
    """The GPUs of these names or keys, nodes and cabinets; all where none is named. `cluster`: only of this one."""
    asked = [(known.by_name, gpus, "GPU "), (known.by_node, nodes, "node "), (known.by_cabinet, cabinets, "cabinet ")]
    unknown = [] if cluster is None or cluster in known.clusters else [f"cluster {cluster}"]

    def here(some: Iterable[Board]) -> list[Board]:
        return [one for one in some if cluster is None or one.cluster == cluster]

    found: dict[Board, None] = {}
    for by, names, what in asked:
        for name in names:
            own = here(by.get(name, ()))
            found |= dict.fromkeys(own)
            if not own:
                unknown.append(f"{what}{name}")
    everything = not any(names for _, names, _ in asked)
    if everything:
        found = dict.fromkeys(here(known.all))
    return Chosen(tuple(found), everything, cluster, tuple(unknown))


def matching(known: Boards, text: str, most: int) -> tuple[list[str], list[str], list[str]]:
    """Cabinets, nodes and names of GPUs that have these letters in them, those that begin with them first; `most` of
    each."""
    letters = text.strip().lower()

    def some(names: Iterable[str]) -> list[str]:
        found = [name for name in names if letters in name.lower()]
        if letters:
            found.sort(key=lambda name: not name.lower().startswith(letters))
        return found[:most]

    names = some(dict.fromkeys(board.name for board in (*known.all, *known.instances)))
    by_key = (board.name for board in known.all if letters and board.gpu.lower().startswith(letters))
    return some(known.by_cabinet), some(known.by_node), list(dict.fromkeys((*names, *by_key)))[:most]
