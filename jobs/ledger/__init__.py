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

from .budgets import Total, Totals
from .ledger import Ledger, greenest_start
from .spans import LedgerOptions, Span, SpanEnergy, Unmeasured, current

__all__ = [
    "Ledger", "LedgerOptions", "Span", "SpanEnergy", "Total", "Totals", "Unmeasured", "budget", "close", "current",
    "greenest_start", "look", "open", "problem", "quote", "span", "totals",
]  # fmt: skip

_ledger = Ledger()  # of this process
open, span, budget, totals = _ledger.open, _ledger.span, _ledger.budget, _ledger.totals  # noqa: A001 - as of a file
quote, look, problem = _ledger.quote, _ledger.look, _ledger.problem
close = _ledger.close

atexit.register(close)
