"""A ledger: its options, and what an application asks of it. Light to import: the rest comes with the first span."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...collectors.clock import Clock, SystemClock
from ...errors import InputError
from .spans import INHERITED, Parent, Span

if TYPE_CHECKING:
    from ...analysis.energy.options import Quote
    from ...collectors.backend import Backend
    from .book import Book
    from .budgets import Budget, Limit
    from .totals import Totals

_SETTINGS = "energy.toml"  # in a store


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """What a ledger reads and keeps."""

    backend: str | Backend = "nvml"
    """"nvml", "simulated", or an object that satisfies `collectors.backend.Backend`."""
    gpus: Sequence[str | int] | None = None
    """UUIDs or NVML indices; None: those that CUDA shows to this process."""
    store: str | Path | None = None
    """A folder: every span becomes a row of its table `spans`."""
    cluster: str | None = None
    settings: str | Path | None = None
    """The site's energy.toml, for grams; None: that in the store."""
    clock: Clock | None = None
    """With one, no thread runs: the caller reads the sensors, by `look`."""


class Ledger:
    """Counts the energy of spans on some GPUs, by `LedgerOptions`.

    It opens at the first span; what keeps it from working is in `problem()`, and spans then have times and no energy.
    Spans raise nothing into the application.
    """

    def __init__(self, **options: Any) -> None:
        self._options = LedgerOptions(**options)
        self._working: Book | None = None
        self._making = threading.Lock()
        _LEDGERS.add(self)

    def _book(self) -> Book:
        """The ledger at work; it is opened where it is not."""
        book = self._working
        if book is None:
            from .book import Book

            with self._making:
                book = self._working
                if book is None:
                    site = self._options
                    clock = site.clock or SystemClock()
                    book = self._working = Book(
                        site.backend, site.gpus, clock,
                        store=site.store, cluster=site.cluster, threaded=site.clock is None,
                    )  # fmt: skip
        return book

    def open(self, **options: Any) -> Ledger:
        """Reach the driver now, not at the first span: that may take a second. With options, begin anew with these."""
        if options:
            self.close()
            self._options = LedgerOptions(**options)
        self._book()
        return self

    def span(self, name: str, *, parent: Parent = INHERITED, job: str | None = None, **attributes: Any) -> Span:
        """A span, for `with` or as a decorator.

        `parent` is a span, or the `traceparent` of one in another process; without it, the innermost open span of this
        thread or task, else what the environment's TRACEPARENT says; None for none. `job` is the batch job; without it,
        that of the environment. Further words are attributes, which `totals` tells apart.
        """
        return Span(self._book, name, parent, job=job, attributes=attributes)

    def budget(
        self,
        *,
        joules: float | None = None,
        grams_per_hour: float | None = None,
        on_over: Callable[[Budget, Limit], object] | None = None,
        grams_per_kwh: float | None = None,
        name: str = "budget",
        parent: Parent = INHERITED,
    ) -> Budget:
        """A span that says what is left of so many `joules`, or of a rate of `grams_per_hour` of CO2e; see `Budget`.

        What a kWh emits is `grams_per_kwh`, else by the ledger's settings, hour by hour. Raises InputError for a limit
        that is no number above 0, without any, for no `grams_per_kwh` that can be, and where the settings cannot be
        read.
        """
        from .budgets import Budget, Limit

        site = self._options
        emissions: Callable[[int], float | None] | None = None
        if grams_per_kwh is not None:
            if not (isinstance(grams_per_kwh, int | float) and 0 <= grams_per_kwh < math.inf):
                raise InputError(f"grams_per_kwh is a number of 0 or more, and not {grams_per_kwh!r}")
            emissions = lambda _: grams_per_kwh  # noqa: E731
        elif site.settings is not None or (site.store is not None and (Path(site.store) / _SETTINGS).is_file()):
            from .outlook import emissions as of_settings

            emissions = of_settings(site.settings, site.store, site.cluster)
        limits = {Limit.JOULES: joules, Limit.GRAMS_PER_HOUR: grams_per_hour}
        return Budget(self._book, name, parent, limits=limits, emissions=emissions, on_over=on_over)

    def quote(
        self,
        workload: str,
        *,
        gpus: int | Sequence[str] = 1,
        cap: float | str | None = None,
        hour: datetime | str = "now",
        store: str | Path | None = None,
        **job: Any,
    ) -> Quote:
        """What a workload takes before it has run: `s`, `j` and `g` (s, J, g CO2e), each with low, value and high.

        `workload` is one of `runs.workload` or a class, "compute", "memory" or "both". `gpus` are how many, or which;
        `cap` is in W or as "60%"; `hour` is the start: a time with its zone, "now" or "greenest". `job` are further
        fields of `analysis.energy.quote.FutureJob`, as `time_s` and `model`. It is made from the runs and tuned curves
        of `store`, else of the ledger's. Raises InputError where there is no store, and for what cannot be quoted.
        """
        if isinstance(cap, list) or isinstance(hour, list):
            raise InputError("a quote is of one choice: ask for several with quotes(...)")
        return self.quotes(workload, store=store, gpus=gpus, cap=cap, hour=hour, **job)[0]

    def quotes(self, workload: str, *, store: str | Path | None = None, **choices: Any) -> list[Quote]:
        """As `quote`, for several choices beside each other: lists of `cap`, `hour` and `gpus` (of numbers, or of lists
        of names), in all combinations. `pareto` marks those that no other one beats in s, J and g."""
        from .outlook import quotes

        site = self._options
        return quotes(store or site.store, site.settings, workload, **{"cluster": site.cluster} | choices)

    def totals(self) -> Totals:
        """What the spans that have ended used so far, by name and attributes. Waits as `Span.settle` does."""
        book = self._book()
        book.settle(2.0)
        return book.totals

    def look(self) -> None:
        """Read the sensors once, with a `clock` of the caller, and call back for budgets that are over."""
        self._book().check()

    def problem(self) -> str | None:
        """Why there is no energy, in a sentence; None where there is."""
        return self._book().problem

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. A later span opens it again."""
        with self._making:
            book, self._working = self._working, None
        if book is not None:
            book.close()

    def _forked(self) -> None:
        """In a child process there is no thread: it begins anew, and the parent's spans stay the parent's."""
        self._making = threading.Lock()
        book, self._working = self._working, None
        if book is not None:
            book.abandon()


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
