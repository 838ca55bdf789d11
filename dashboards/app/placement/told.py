"""What the page needs of `whorl advise`. The command gives it: pages know nothing of schedulers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import polars as pl

    from ....analysis.placement import Advice
    from ....store import Store
    from ...table import Table


@dataclass(frozen=True)
class Question:
    """Advice on what is asked for; `model` is a part of a name of GPUs, `without` are nodes that the job avoids."""

    cluster: str
    workload: str
    model: str | None
    gpus: int
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copied:
    """Text for a scheduler, or why there is none, and the command that prints it ("" where no command does)."""

    title: str
    text: str
    note: str | None
    command: str


@dataclass(frozen=True)
class Told:
    """What `whorl advise` says.

    `parts`: its sentences and tables, in its order. `nodes` and `gpus`: by kind of the workload, the rows of
    `analysis.placement.node_rows`.
    """

    advice: Advice
    parts: tuple[str | Table, ...]
    copied: tuple[Copied, ...]
    nodes: dict[str, pl.DataFrame]
    gpus: pl.DataFrame


class Advises(Protocol):
    """Answers a question about a store. `version`: another one when the store has changed. Raises WhorlError."""

    def __call__(self, store: Store, version: Hashable, question: Question, say: Callable[[str], None]) -> Told: ...
