"""A ledger: its options, and what an application asks of it. Light to import: the rest comes with the first span."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, WhorlError
from ...store.instants import nanoseconds
from ...store.names import this_cluster
from .budgets import Budget, Limit, Totals
from .spans import INHERITED, LedgerOptions, Parent, Span

if TYPE_CHECKING:
    from ...analysis.energy.options import Quote
    from ...analysis.energy.outlook import Greenest
    from .book import Book

_HOUR_NS = 3_600_000_000_000
_SETTINGS = "energy.toml"  # in a store


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
        if (book := self._working) is not None:
            return book
        from .book import Book

        with self._making:
            if self._working is None:
                self._working = Book(self._options)
            return self._working

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
        site = self._options
        emissions: Callable[[int], float | None] | None = None
        if grams_per_kwh is not None:
            if not (isinstance(grams_per_kwh, int | float) and 0 <= grams_per_kwh < math.inf):
                raise InputError(f"grams_per_kwh is a number of 0 or more, and not {grams_per_kwh!r}")
            emissions = lambda _: grams_per_kwh  # noqa: E731
        elif site.settings is not None or (site.store is not None and (Path(site.store) / _SETTINGS).is_file()):
            emissions = _emissions(site.settings, site.store, site.cluster)
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
        store = store or self._options.store
        if store is None:
            raise InputError("a quote is from the runs in a store: ledger.open(store=...), or quote(..., store=...)")
        try:
            from ...analysis.energy.quote import FutureJob, quote_workload
            from ...store import Store
        except ModuleNotFoundError as error:
            raise WhorlError(f"a quote needs the package {error.name}: install whorl with all it needs") from error
        future: Any = FutureJob(workload, gpus, cap, hour, **{"cluster": self._options.cluster} | job)  # type: ignore[arg-type]
        return quote_workload(Store.open(store), future, settings=self._options.settings)

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


def _emissions(
    settings: str | Path | None, store: str | Path | None, cluster: str | None
) -> Callable[[int], float | None]:
    """What a kWh that a GPU uses emits at a time (ns since 1970), g CO2e with the site's PUE; None where nobody knows.

    By the settings in a file, else by those of the store. Raises InputError where they cannot be read.
    """
    from ...analysis.energy.outlook import grams_per_kwh
    from ...analysis.energy.settings import find_settings

    site, rules = cluster or this_cluster(), find_settings(Path(store or "."), settings)

    @functools.lru_cache(maxsize=1)
    def of_hour(hour: int) -> float | None:
        factor = grams_per_kwh(rules, site, hour * _HOUR_NS)
        return None if factor.g_per_kwh is None else factor.g_per_kwh * (factor.pue or 1.0)

    of_hour(time.time_ns() // _HOUR_NS)  # what cannot be read shows here
    return lambda at_ns: of_hour(at_ns // _HOUR_NS)


def greenest_start(
    settings: str | Path,
    *,
    hours: float,
    watts: float,
    deadline: datetime,
    now: datetime | None = None,
    cluster: str = "",
    zone: str | None = None,
) -> Greenest:
    """The greenest start of a job of so many `hours` at so many `watts` that must end by `deadline`.

    `settings` is an `energy.toml` with the zone and a file of hours (docs/energy.md). `deadline` and `now` (if not
    given: the time now) need a time zone. The answer has `start_time` (None where nothing is known of the zone),
    `saved_g` with its interval, and `reason`. Raises InputError where the job does not fit or a file cannot be used,
    WhorlError where a service that the settings name does not answer, or a package for analysis is missing.
    """
    from ...analysis.energy.outlook import WaitingJob, greenest
    from ...analysis.energy.settings import read_settings

    began_ns, deadline_ns = _ns(now or datetime.now(UTC), "now"), _ns(deadline, "deadline")
    job = WaitingJob(hours * 3600, watts, began_ns, deadline_ns, cluster, zone)
    try:
        return greenest(read_settings(Path(settings)), job)
    except ModuleNotFoundError as error:
        raise WhorlError(
            f"the greenest start needs the package {error.name}: install whorl with all it needs"
        ) from error


def _ns(moment: datetime, name: str) -> int:
    if moment.tzinfo is None:
        raise InputError(f"{name} has no time zone: write datetime(..., tzinfo=UTC), or call .astimezone() of it")
    return nanoseconds(moment)


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
