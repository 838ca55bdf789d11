"""The newest readings of every GPU, followed while collectors write: for programs that ask again and again.

The table `latest` has a GPU's last row, in which slow metrics are mostly NULL. Here each metric has its newest value
that is not NULL. A look reads what journals have gained since the look before, and those new files of telemetry that
end in the time that counts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import journal_file, keys, parquet, telemetry_files
from .file_names import Bounds
from .metrics import METRICS
from .parquet import DamagedError
from .schema import TELEMETRY
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from .store import Store

_NAMES = tuple(metric.name for metric in METRICS)
_COLUMNS = ["ts", "cluster", "gpu", *_NAMES, "quality"]
_NEVER = -(2**63)
_SEEN, _ENDED = -2, -1  # rows of the times
_SILENT = frozenset(
    {"lost", "no_driver", "hung", "needs_reset"}
)  # of `quality`: the GPU does not answer, so its readings have ended
_TRIES = 5

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

    `age_s`: a value that is older, or lies ahead by more, is left out. Several threads may look at the same time.
    """

    def __init__(self, store: Store, age_s: float) -> None:
        self._store, self._age_ns = store, round(age_s * 1e9)
        self._guard = threading.Lock()
        # By journal: the byte up to which it was read, and its layouts.
        self._places: dict[journal_file.JournalName, tuple[int, dict[int, journal_file.RecordLayout]]] = {}
        self._looked: frozenset[Path] = frozenset()  # files of telemetry
        self._numbers: dict[Gpu, int] = {}
        self._values = np.zeros((len(_NAMES), 0), np.int64)
        # Of each metric when it was read; when the GPU was seen last, and when it last did not answer.
        self._when = np.full((len(_NAMES) + 2, 0), _NEVER)
        self._quality = np.full(0, None)

    def catch_up(self, now_ns: int | None = None) -> None:
        """Read the files that are new, as at the start or after an import. Raises StoreError."""
        since_ns = (now_ns or time.time_ns()) - self._age_ns
        with files.readable(self._store.root):
            for _ in range(_TRIES):
                paths = list(parquet.paths_in(self._store.root, TELEMETRY, Bounds(first_us=since_ns // 1000)))
                with contextlib.suppress(FileNotFoundError):  # it was replaced by others: look again
                    # One that is left out of the tables has the rows of others: no harm.
                    for path in self._store.sound(TELEMETRY.name, [path for path in paths if path not in self._looked]):
                        with contextlib.suppress(DamagedError):  # `whorl doctor --store` names it
                            rows = telemetry_files.read(path, _COLUMNS)
                            with self._guard:
                                self._take(rows, since_ns)
                    self._looked = frozenset(paths)
                    return

    def now(self, now_ns: int | None = None) -> Newest:
        """What is known now. Raises StoreError."""
        since_ns = (now_ns or time.time_ns()) - self._age_ns
        with self._guard:
            self._follow(since_ns)
        self.catch_up(now_ns)  # a journal may have been sealed since the look before
        with self._guard:
            gpus, values, all_times = list(self._numbers), self._values.copy(), self._when.copy()
            quality = self._quality.tolist()
        read_ns, seen_ns, ended = all_times[:_SEEN], all_times[_SEEN], all_times[_ENDED]
        is_known = (read_ns >= since_ns) & (read_ns > ended)
        return Newest(gpus, values, read_ns, is_known, seen_ns, seen_ns >= since_ns, seen_ns > ended, quality)

    def _follow(self, since_ns: int) -> None:
        """Take what journals have gained. What cannot be read is left to `catch_up` and the tables' own readers."""
        gained: list[pa.Table] = []
        with files.readable(self._store.root):
            journals = journal_file.journals(self._store.root)
            if not journals:  # nobody collects now, or a file system is gone
                (self._store.root / "store.toml").stat()
        self._places = {journal: self._places.get(journal, (0, {})) for journal in journals if journal.kind != "rows"}
        for journal_name, (place, layouts) in self._places.items():
            with contextlib.suppress(OSError, ValueError):
                if place and journal_name.path.stat().st_size <= place:
                    continue
                content = journal_file.read(journal_name.path, place, layouts)
                self._places[journal_name] = content.upto, content.layouts
                gained += [rows] if (rows := content.rows.get(TELEMETRY.name)) is not None else []
        if gained:
            import pyarrow as pa

            self._take(pa.concat_tables(gained, promote_options="default"), since_ns)

    def _take(self, rows: pa.Table, since_ns: int) -> None:
        """Keep of rows what is newer than what is kept."""
        ts = 1000 * keys.times(rows)
        # What a clock that was wrong has written far ahead would stay the newest until that time has come.
        recent = np.flatnonzero((ts >= since_ns) & (ts <= since_ns + 2 * self._age_ns))
        if not len(recent):
            return
        codes, gpus = keys.codes_of(rows)
        order = recent[np.argsort(ts[recent], kind="stable")]
        gpu_places = np.array([self._numbers.setdefault(gpu, len(self._numbers)) for gpu in gpus])[codes[order]]
        growth = len(self._numbers) - len(self._quality)
        self._values = np.pad(self._values, ((0, 0), (0, growth)))
        self._when = np.pad(self._when, ((0, 0), (0, growth)), constant_values=_NEVER)
        self._quality = np.concatenate((self._quality, np.full(growth, None)))
        ts = ts[order]
        for number, name in enumerate(_NAMES):
            if name not in rows.column_names or rows[name].null_count == len(rows):
                continue
            present = rows[name].is_valid().to_numpy()[order]
            newer = present & (ts >= self._when[number, gpu_places])
            newer_places = gpu_places[newer]
            # Of several rows of one GPU, numpy keeps the last, which is the newest.
            self._values[number, newer_places] = rows[name].fill_null(0).to_numpy()[order[newer]]
            self._when[number, newer_places] = ts[newer]
        newer = ts >= self._when[_SEEN, gpu_places]
        newer_places = gpu_places[newer]
        self._when[_SEEN, newer_places] = ts[newer]
        self._quality[newer_places] = None
        if "quality" in rows.column_names and rows["quality"].null_count < len(rows):
            quality = np.array(rows["quality"].to_pylist(), object)[order]
            self._quality[newer_places] = quality[newer]
            silent = np.array([text in _SILENT for text in quality])
            np.maximum.at(self._when[_ENDED], gpu_places[silent], ts[silent])
