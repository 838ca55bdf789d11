"""A ledger: its options, and what an application asks of it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...collectors.clock import Clock, SystemClock
from .book import CLOSING_S, Book
from .figures import Figure, Why, figure_of, missing
from .spans import INHERITED, Parent, Span
from .totals import Factor, Quote, Totals, quote

if TYPE_CHECKING:
    from ...collectors.backend import Backend

_SETTINGS = "energy.toml"  # in a store


class Ledger:
    """Counts the energy of spans on some GPUs: those that CUDA shows to this process, or `gpus` (UUIDs, NVML indices).

    `backend` is "nvml", "simulated" or an object that satisfies `collectors.backend.Backend`. With a `store`, a
    folder, every span becomes a row of its table `spans`. `settings` is the site's energy.toml, for grams; without it,
    that in the store. It opens at the first span; what keeps it from working is in
    `problem()`, and spans then have times and no energy. Nothing raises into the application.
    """

    def __init__(
        self,
        *,
        backend: str | Backend = "nvml",
        gpus: Sequence[str | int] | None = None,
        store: str | Path | None = None,
        cluster: str | None = None,
        settings: str | Path | None = None,
        clock: Clock | None = None,
        thread: bool = True,
    ) -> None:
        self.backend, self.gpus, self.store, self.cluster = backend, gpus, store, cluster
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.thread = thread
        self._book: Book | None = None
        self._making = threading.Lock()
        _LEDGERS.add(self)

    def book(self) -> Book:
        """The ledger at work; it is opened where it is not."""
        book = self._book
        if book is None:
            with self._making:
                book = self._book
                if book is None:
                    book = self._book = Book(self)
        return book

    def open(self) -> Ledger:
        """Reach the driver now, not at the first span: that may take a second."""
        self.book()
        return self

    def span(
        self,
        name: str,
        *,
        parent: Parent = INHERITED,
        job: str | None = None,
        weight: float = 1.0,
        **attributes: Any,
    ) -> Span:
        """A span, for `with` or as a decorator.

        `parent` is a span, or the `id` of one in another process; without it, the innermost open span of this thread
        or task; None for none. `job` is the batch job; without it, that of the environment. Concurrent spans share by
        `weight`. Further words are attributes, which `totals` and `quote` tell apart.
        """
        return Span(self, name, parent, job, weight if weight > 0 else 1.0, attributes)

    def figure(self, span: Span, *, own: bool = False) -> Figure:
        """What a span used; see `Span.figure`."""
        if span.book is None or span.ended_ns is None or span.children:
            return missing(Why.OPEN)
        if not span.finished:
            return missing(Why.SILENT)
        return figure_of(span, own=own)

    def totals(self) -> Totals:
        """What the spans that have ended used so far, by name and attributes. Waits as `Span.settle` does."""
        book = self.book()
        book.settle(CLOSING_S)
        return book.totals

    def quote(
        self,
        configurations: Sequence[Mapping[str, Any] | str],
        *,
        span: str | None = None,
        grams_per_kwh: float | None = None,
    ) -> list[Quote]:
        """What each configuration takes, from its spans so far: s, J and g, and which are worth choosing.

        A configuration is the attributes of its spans (of those called `span`, where it is given), or their name. Grams
        are by `grams_per_kwh`, else by the ledger's settings: the factor of now. Raises InputError where these cannot
        be read.
        """
        by: Factor | None = None
        if grams_per_kwh is not None:
            by = Factor(grams_per_kwh)
        elif self._has_settings():
            from .grams import factor

            by = factor(self.settings, self.store, self.cluster)
        return quote(self.totals(), configurations, span=span, factor=by)

    def _has_settings(self) -> bool:
        return self.settings is not None or (self.store is not None and (Path(self.store) / _SETTINGS).is_file())

    def problem(self) -> str | None:
        """Why there is no energy, in a sentence; None where there is."""
        return self.book().problem

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. A later span opens it again."""
        with self._making:
            book, self._book = self._book, None
        if book is not None:
            book.close()

    def _forked(self) -> None:
        """In a child process there is no thread: it begins anew, and the parent's spans stay the parent's."""
        self._making = threading.Lock()
        book, self._book = self._book, None
        if book is not None:
            book.abandon()


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
