"""Energy of an application's own work: spans, nested, over any GPU that can be read.

    from whorl import ledger

    with ledger.span("request") as request:
        with ledger.span("prefill"):
            ...
    print(request.energy_j, request.low_j, request.high_j)     # J, with the 95 % interval

    @ledger.span("train step")
    def step(): ...

A node needs numpy, pyarrow, click and nvidia-ml-py for it. `open` chooses the backend, the GPUs and a store; without it
the first span opens a ledger over the GPUs that CUDA shows to this process. `Ledger` makes further ones.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import Figure, Why
from .ledger import Ledger
from .spans import INHERITED, Parent, Span, current
from .totals import Factor, Quote, Total, Totals
from .waiting import greenest_start

__all__ = [
    "Factor", "Figure", "Ledger", "Quote", "Span", "Total", "Totals", "Why", "close", "current", "greenest_start",
    "open", "problem", "quote", "span", "totals",
]  # fmt: skip

_ledger = Ledger()


def open(**options: Any) -> Ledger:  # noqa: A001 - as of a file
    """Open the ledger of this process anew, with the options of `Ledger`. The one before is closed."""
    global _ledger
    _ledger.close()
    _ledger = Ledger(**options)
    return _ledger.open()


def span(
    name: str, *, parent: Parent = INHERITED, job: str | None = None, weight: float = 1.0, **attributes: Any
) -> Span:
    """A span of the ledger of this process; see `Ledger.span`."""
    return _ledger.span(name, parent=parent, job=job, weight=weight, **attributes)


def totals() -> Totals:
    """What the spans that have ended used so far, by name and attributes."""
    return _ledger.totals()


def quote(
    configurations: Sequence[Mapping[str, Any] | str], *, span: str | None = None, grams_per_kwh: float | None = None
) -> list[Quote]:
    """What each configuration takes, from its spans so far; see `Ledger.quote`."""
    return _ledger.quote(configurations, span=span, grams_per_kwh=grams_per_kwh)


def problem() -> str | None:
    """Why there is no energy, in a sentence; None where there is."""
    return _ledger.problem()


def close() -> None:
    """Settle what has ended, store it, and leave the driver. A later span opens it again."""
    _ledger.close()


atexit.register(close)
