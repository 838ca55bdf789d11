"""Energy of an application's own work: spans, nested, over any GPU that can be read, and budgets of it.

    from whorl import ledger

    with ledger.span("request") as request:
        with ledger.span("prefill"):
            ...
    print(request.energy_j, request.low_j, request.high_j)     # J, with the 95 % interval

    with ledger.budget(joules=50_000, on_over=stop) as budget:
        ...
        print(budget.left_j, budget.left_s)

A node needs numpy, pyarrow, click and nvidia-ml-py for it. `open` chooses the backend, the GPUs and a store; without it
the first span opens a ledger over the GPUs that CUDA shows to this process. `Ledger` makes further ones.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .ledger import Ledger
from .outlook import greenest_start
from .spans import INHERITED, Parent, Span, SpanEnergy, Unmeasured, current
from .totals import Total, Totals

if TYPE_CHECKING:
    from ...analysis.energy.options import Quote
    from .budgets import Budget, Limit

__all__ = [
    "Ledger", "Span", "SpanEnergy", "Total", "Totals", "Unmeasured", "budget", "close", "current", "greenest_start",
    "open", "problem", "quote", "span", "totals",
]  # fmt: skip

_ledger = Ledger()


def open(**options: Any) -> Ledger:  # noqa: A001 - as of a file
    """Open the ledger of this process anew, with the options of `Ledger`. The one before is closed."""
    global _ledger
    _ledger.close()
    _ledger = Ledger(**options)
    return _ledger.open()


def span(name: str, *, parent: Parent = INHERITED, job: str | None = None, **attributes: Any) -> Span:
    """A span of the ledger of this process; see `Ledger.span`."""
    return _ledger.span(name, parent=parent, job=job, **attributes)


def budget(
    *,
    joules: float | None = None,
    grams_per_hour: float | None = None,
    on_over: Callable[[Budget, Limit], object] | None = None,
    **options: Any,
) -> Budget:
    """A budget of the ledger of this process; see `Ledger.budget`."""
    return _ledger.budget(joules=joules, grams_per_hour=grams_per_hour, on_over=on_over, **options)


def quote(workload: str, **options: Any) -> Quote:
    """What a workload takes before it has run, from the ledger's store or `store=...`; see `Ledger.quote`."""
    return _ledger.quote(workload, **options)


def totals() -> Totals:
    """What the spans that have ended used so far, by name and attributes."""
    return _ledger.totals()


def problem() -> str | None:
    """Why there is no energy, in a sentence; None where there is."""
    return _ledger.problem()


def close() -> None:
    """Settle what has ended, store it, and leave the driver. A later span opens it again."""
    _ledger.close()


atexit.register(close)
