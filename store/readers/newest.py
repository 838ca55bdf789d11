"""The newest readings of every GPU, followed while collectors write: for programs that ask again and again.

The table `latest` has a GPU's last row, in which slow metrics are mostly NULL. Here each metric has its newest value
that is not NULL. A look reads only what journals have gained since the look before. Files of telemetry are read in
`catch_up` alone, and only those that end in the time that counts and hold rows that no journal has shown.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import StoreError
from ..metrics import METRICS
from ..rows import journal_file, placing
from ..rows.arranging import gpu_codes, numbers
from ..schema import TELEMETRY
from ..system import light
from . import reading

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from ..store import Store

_NAMES = tuple(metric.name for metric in METRICS)
_COLUMNS = ["ts", "cluster", "gpu", *_NAMES, "quality"]
_NEVER = -(2**63)
_SILENT = frozenset({"lost", "no_driver", "hung"})  # of `quality`: the GPU does not answer, so its readings have ended
_TRIES = 5
_SEALED = 2**62  # the place in a journal that is not read any more

Gpu = tuple[str | None, str | None]
"""Cluster and key of a GPU."""


@dataclass(frozen=True)
class Newest:
    """What is known at one instant: the newest value of each metric of each GPU, if it is not too old."""

    gpus: list[Gpu]
    values: NDArray[np.int64]
    """By metric, in the order of METRICS, and GPU."""
    when: NDArray[np.int64]
    """When each value was read, ns since 1970."""
    known: NDArray[np.bool_]
    """Whether there is a value."""
    seen: NDArray[np.int64]
    """When the last row of each GPU was taken, with or without readings."""
    fresh: NDArray[np.bool_]
    """Whether that is not too long ago."""
    answers: NDArray[np.bool_]
    """Whether the GPU answered then."""
    quality: list[str | None]
    """`telemetry.quality` of that row."""


class Following:
    """Follows the telemetry of a store. `now` gives what is known, with what journals have gained since.

    `age_s`: a value that is older, or lies ahead by more, is left out. One thread may `catch_up` while others look.
    """

    def __init__(self, store: Store, age_s: float) -> None:
        self._store, self._age_ns = store, round(age_s * 1e9)
        self._guard = threading.Lock()
        self._places: dict[Path, int] = {}  # by journal: the byte up to which it was read
        self._headers: dict[Path, journal_file.Header] = {}
        self._numbers: dict[Gpu, int] = {}
        self._hashes: dict[int, list[int]] = {}  # of each GPU, as files name it: its numbers
        self._values = np.zeros((len(_NAMES), 0), np.int64)
        self._when = np.full((len(_NAMES), 0), _NEVER)
        self._seen = np.full(0, _NEVER)
        self._ended = np.full(0, _NEVER)  # when the GPU last did not answer
        self._quality: list[str | None] = []

    def catch_up(self, now_ns: int | None = None) -> None:
        """Read the files that journals have not shown, as at the start or after an import. Raises StoreError."""
        since = (now_ns or time.time_ns()) - self._age_ns
        for _ in range(_TRIES):
            parts = self._parts()
            found = reading.snapshot(self._store.root, [TELEMETRY.name], trusting=True)
            with contextlib.suppress(FileNotFoundError):  # it was replaced by others: look again
                # All are chosen before one is read: a newer file may lack what an older one says of the same GPU.
                for path in [one for one in found.files[TELEMETRY.name] if self._is_new(one, since)]:
                    self._take_file(path, since)
                break
        starts = {part.path: start for part, start in found.journals}
        with self._guard:
            # What is sealed stays for some minutes, and is in a file: it need not be read from its beginning.
            begins = {path: starts.get(path, _SEALED) for path in parts}
            self._places = {path: max(begins.get(path, 0), at) for path, at in self._places.items() if path in begins}
            self._places = begins | self._places
            self._headers = {path: one for path, one in self._headers.items() if path in begins}

    def now(self, now_ns: int | None = None) -> Newest:
        """What is known now. Raises StoreError."""
        since = (now_ns or time.time_ns()) - self._age_ns
        with self._guard:
            self._follow(since)
            n = len(self._numbers)
            values, when, seen, ended = (
                kept[..., :n].copy() for kept in (self._values, self._when, self._seen, self._ended)
            )
            gpus, quality = list(self._numbers), [*self._quality]
        known = (when >= since) & (when > ended)
        return Newest(gpus, values, when, known, seen, seen >= since, seen > ended, quality)

    def _parts(self) -> list[Path]:
        """The journals of telemetry."""
        try:
            parts = journal_file.parts(self._store.root)
            if not parts:  # nobody collects now, or a file system is gone
                (self._store.root / "store.toml").stat()
        except OSError as error:
            raise StoreError(f"cannot read {self._store.root}: {error.strerror or error}") from error
        return [part.path for part in parts if part.table == TELEMETRY.name]

    def _follow(self, since: int) -> None:
        """Take what journals have gained. What cannot be read is left to `catch_up` and the tables' own readers."""
        gained: list[pa.Table] = []
        for path in self._parts():
            at = self._places.get(path, 0)
            with contextlib.suppress(OSError, ValueError):
                if at and path.stat().st_size <= at:
                    continue
                known = self._headers.get(path)
                content = journal_file.read(path, at, table=TELEMETRY.name, header=known)
                self._places[path] = content.upto
                if content.header is not None and content.header.usual:  # it has a batch: its header does not change
                    self._headers[path] = content.header
                if len(content.table):
                    gained.append(content.table)
        if gained:
            import pyarrow as pa

            self._take(pa.concat_tables(gained, promote_options="default"), since)

    def _is_new(self, path: Path, since: int) -> bool:
        """Whether a file has rows that are neither too old nor known. Raises FileNotFoundError."""
        bounds = None if path.name == reading.EMPTY else placing.bounds(path)
        if bounds is None or bounds.last < since:
            return False
        with self._guard:
            return not self._has(bounds)

    def _take_file(self, path: Path, since: int) -> None:
        """Take the rows of a file. Raises FileNotFoundError."""
        import pyarrow as pa

        with contextlib.suppress(pa.ArrowException, ValueError, MemoryError):  # `whorl doctor --store` names it
            try:
                rows = light.read(path, _COLUMNS)
            except FileNotFoundError:
                raise
            except OSError:
                return
            with self._guard:
                self._take(rows, since)

    def _has(self, bounds: placing.Bounds) -> bool:
        """Whether newer rows of all GPUs of a file are known."""
        if bounds.gpus is None:
            return False
        numbers_of = [self._hashes.get(one) for one in bounds.gpus]
        return all(mine and (self._seen[mine] >= bounds.last).all() for mine in numbers_of)

    def _take(self, rows: pa.Table, since: int) -> None:
        """Keep of rows what is newer than what is kept."""
        ts = numbers(rows["ts"])
        # What a clock that was wrong has written far ahead would stay the newest until that time has come.
        recent = np.flatnonzero((ts >= since) & (ts <= since + 2 * self._age_ns))
        if not len(recent):
            return
        codes, gpus = gpu_codes(rows)
        order = recent[np.argsort(ts[recent], kind="stable")]
        mine = np.array([self._number(gpu) for gpu in gpus])[codes[order]]
        ts = ts[order]
        for number, name in enumerate(_NAMES):
            if name not in rows.column_names or rows[name].null_count == len(rows):
                continue
            there = rows[name].is_valid().to_numpy()[order]
            newer = there & (ts >= self._when[number, mine])
            of = mine[newer]
            # Of several rows of one GPU, numpy keeps the last, which is the newest.
            self._values[number, of] = numbers(rows[name])[order[newer]]
            self._when[number, of] = ts[newer]
        self._mark(rows, order, mine, ts)

    def _mark(self, rows: pa.Table, order: NDArray[np.intp], mine: NDArray[np.int64], ts: NDArray[np.int64]) -> None:
        """Note when each GPU was seen last, and what the collector says of it."""
        newer = ts >= self._seen[mine]
        last = np.full(len(self._seen), -1)
        last[mine[newer]] = order[newer]
        self._seen[mine[newer]] = ts[newer]
        changed = np.flatnonzero(last >= 0)
        if "quality" not in rows.column_names:
            for gpu in changed.tolist():
                self._quality[gpu] = None
            return
        quality = rows["quality"].combine_chunks()
        for gpu, text in zip(changed.tolist(), quality.take(light.integers(last[changed])).to_pylist(), strict=True):
            self._quality[gpu] = text
        if quality.null_count < len(quality):
            texts = np.asarray(quality.take(light.integers(order)).to_pylist(), object)
            silent = np.array([text in _SILENT for text in texts])
            np.maximum.at(self._ended, mine[silent], ts[silent])

    def _number(self, key: Gpu) -> int:
        """The place of a GPU in the arrays, which grow where it is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._numbers)
            self._quality.append(None)
            for one in placing.hashes([key]):
                self._hashes.setdefault(one, []).append(found)
            if found >= len(self._seen):
                more = max(64, len(self._seen))
                self._values = np.pad(self._values, ((0, 0), (0, more)))
                self._when = np.pad(self._when, ((0, 0), (0, more)), constant_values=_NEVER)
                self._seen = np.pad(self._seen, (0, more), constant_values=_NEVER)
                self._ended = np.pad(self._ended, (0, more), constant_values=_NEVER)
        return found
