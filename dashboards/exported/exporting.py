"""What an exporter keeps: readings, which every look brings up to date, and findings, which a thread of its own reads.

A look never waits for the findings: it takes those of the last time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import __version__
from ...errors import WhorlError
from ...store import Store
from ...store.newest import Following, Gpu, Newest
from . import dcgm, findings, series
from .metered import Metered
from .series import ONE, SECONDS, TIMESTAMP, Labels, Point, Series, Who

log = logging.getLogger(__name__)

_PAUSE_S = 60.0
_SHARE = 20  # at most one part in so many of the time goes into findings
_END_S = 10.0
_NONE, _VERSION = Labels(()), Labels((("version", __version__),))


@dataclass(frozen=True)
class Settings:
    """`age_s`: older readings are left out. `dcgm_names`: readings also under the names of dcgm-exporter."""

    age_s: float = 60.0
    dcgm_names: bool = False


class _Task:
    """Something slow that is done again and again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._said, self._ready = work, "", 0.0
        self.due = 0.0
        """By the clock that is never set."""

    @property
    def rest_s(self) -> float:
        """How long until it may be done again, however much it is wanted."""
        return max(0.0, self._ready - time.monotonic())

    def run(self) -> None:
        """Do it. An error is told once; what was known before stays."""
        began, said = time.monotonic(), ""
        try:
            self._work()
        except WhorlError as error:
            said = str(error)
        except Exception as error:  # it must not end the thread
            said = f"the findings cannot be read ({type(error).__name__}: {error})"
        if said and said != self._said:
            log.warning("%s; the findings stay as they were", said)
        self._said, ended = said, time.monotonic()
        self._ready = ended + _SHARE * (ended - began)
        self.due = max(self._ready, ended + _PAUSE_S)


class Exporter:
    """Gives the series of a store, as often as it is asked."""

    def __init__(self, store: Store, settings: Settings, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._following = Following(store, settings.age_s)
        self._who = Who()
        self._found = findings.Found()
        self._found_at: int | None = None
        self._metered = Metered(store, clock())
        self._took_s = 0.0
        self._asked: set[Gpu] = set()  # GPUs that were not known when they were seen first
        self._met: frozenset[Gpu] = frozenset()  # GPUs that had been seen when identities were read last
        self._wanted = threading.Event()  # such a GPU was seen: findings are read soon
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Bring everything that is slow up to date. Raises WhorlError."""
        began = time.monotonic()
        self._following.catch_up(self._clock())
        met = frozenset(self._following.now(self._clock()).gpus)
        self._found, self._found_at = findings.find(self._store, self._who, self._clock()), self._clock()
        self._met = met
        self._took_s = time.monotonic() - began

    def start(self) -> None:
        """Read what is there, and then keep the findings up to date in a thread, until `close`. Raises WhorlError."""
        self._following.catch_up(self._clock())
        self._thread = threading.Thread(target=self._run, name="findings", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread: as soon as it has done what it does, which is not waited for if it takes long."""
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        """Read findings and meter energy, each once a minute, or less often where it takes long."""
        refresh, meter = _Task(self.refresh), _Task(self._meter)
        while not self._ended.is_set():
            for task in (refresh, meter):
                if task.due <= time.monotonic() and not self._ended.is_set():
                    task.run()
            soonest = min(refresh.due, meter.due) - time.monotonic()
            if self._wanted.wait(max(0.0, soonest)) and not self._ended.wait(refresh.rest_s):
                self._wanted.clear()
                refresh.run()

    def _meter(self) -> None:
        self._metered.advance(self._clock(), self._ended.is_set)

    def series(self) -> list[Series]:
        """All series of this moment. Raises StoreError."""
        began = time.monotonic()
        newest, found = self._following.now(self._clock()), self._found
        unknown = {gpu for gpu in newest.gpus if gpu not in found.identity} - self._asked
        if unknown:
            self._asked |= unknown
            self._wanted.set()
        out = series.readings(newest, self._who)
        out += series.identities(self._shown(newest, found))
        out += found.series
        out += self._metered.series(self._who)
        if self._settings.dcgm_names:
            # Labels say who a GPU is: shown before that is known, its series would be others from then on.
            known = np.array([gpu in self._met or gpu in found.identity for gpu in newest.gpus], bool)
            out += dcgm.readings(replace(newest, known=newest.known & known, fresh=newest.fresh & known), found)
        return [*out, *self._own(time.monotonic() - began)]

    def reads(self) -> bool:
        """Whether any GPU was read lately. Raises StoreError."""
        return bool(self._following.now(self._clock()).fresh.any())

    def rows(self) -> dict[Gpu, dict[str, Any]]:
        """By GPU, its row of `gpus_now`, as it was read last."""
        return self._found.rows

    def _shown(self, newest: Newest, found: findings.Found) -> list[tuple[Point, Point | None]]:
        """Who the GPUs are that other series are about."""
        fresh = {gpu for gpu, there in zip(newest.gpus, newest.fresh.tolist(), strict=True) if there}
        return [found.identity[gpu] for gpu in sorted(fresh | found.about, key=str) if gpu in found.identity]

    def _own(self, took_s: float) -> list[Series]:
        """What the exporter says of itself."""
        now = self._clock()
        at = [] if self._found_at is None else [(_NONE, self._found_at / 1e9, now)]
        return [
            series.series(
                "export_look", SECONDS, "gauge", "how long it took to look for newer readings", [(_NONE, took_s, now)]
            ),
            series.series(
                "export_findings", TIMESTAMP, "gauge", "when findings and identities were read last, since 1970", at
            ),
            series.series("export_findings", SECONDS, "gauge", "how long that took", [(_NONE, self._took_s, now)]),
            series.series(
                "export", ONE, "info", "the version of whorl", [(Labels((("version", __version__),)), 1, now)]
            ),
        ]
