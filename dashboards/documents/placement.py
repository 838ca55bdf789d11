"""What the page Placement asks for and gets: the document of `whorl advise`, which `cli/documents/advice.py` writes, as
advice knows schedulers and pages do not."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..document import Column, Document

if TYPE_CHECKING:
    import polars as pl

    from ...analysis.placement import Advice, Gain
    from ...store import Store

SAVED = Column(
    "time saved [90 %]",
    "estimate",
    digits=1,
    unit="%",
    explains="share of a job's time: its median over the draws, and in brackets its 90 % interval",
)


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


def percents(gain: Gain) -> tuple[float, float, float]:
    """A gain with the ends of its interval, %."""
    return 100 * gain.median, 100 * gain.lower, 100 * gain.upper
