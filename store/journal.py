"""A journal: the last minutes of one writer's rows, made durable append by append.

`append` returns when the rows are in the journal's file (and on the disk, where every append is made durable). From
then on every reader of whorl sees them. Every ten minutes the journal is *sealed*: its rows become sorted files, which
other DuckDB clients see too (see `sealing`), and a new file begins: journal/NAME-PID-BEGAN-NUMBER.journal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from . import file_names, journal_file, keys, replacing, sealing
from .journal_file import Encoder, JournalName, Ticks, pack_readings
from .schema import KEY, TELEMETRY, arrow_schema
from .schema import table as table_of
from .system import files
from .system.locks import locked

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    import pyarrow as pa

    Times = int | datetime | np.datetime64 | Sequence[int | datetime | np.datetime64] | np.ndarray

log = logging.getLogger(__name__)

_MOST_ROWS = 1_000_000  # a journal with so many rows is sealed early: sealing sorts them in memory
_MOST_BYTES = journal_file.MOST_BYTES // 4
_COMPACTION_S = 60.0
_LOOK_S = 10.0
_NEAR_US = journal_file.NEAR_US // 2  # the clock may be set meanwhile


class _File:
    """The open file of a journal."""

    def __init__(self, journal_name: JournalName, encoder: Encoder) -> None:
        self.named, self.encoder = journal_name, encoder
        self.handle = files.create(journal_name.path, os.O_WRONLY | os.O_APPEND)
        self.size = 0
        self._unsynced_since: float | None = None

    def write(self, content: bytes, durable_s: float) -> None:
        """Append bytes, all or none, and make them durable if a part has not been for so long. Raises OSError."""
        self.size += len(content)
        while (written := os.write(self.handle, content)) < len(content):
            content = content[written:]
        if durable_s <= 0:
            files.sync(self.handle)
            return
        if self._unsynced_since is None:
            self._unsynced_since = time.monotonic()
        self.sync(durable_s)

    def sync(self, after_s: float = 0.0) -> None:
        """Make all of it durable, if a part has not been for so long. Raises OSError."""
        if self._unsynced_since is not None and time.monotonic() - self._unsynced_since >= after_s:
            files.sync(self.handle)
            self._unsynced_since = None


class Journal:
    """The journal of one writer in a store, made by `Store.journal`: `append` readings, `close` at the end.

    It is a context manager as well. `seal` turns it into files of the tables. With `background` a thread asks for it
    when it is due, and child processes do it where this process has not loaded Arrow; else the caller asks, and this
    process does it. `name` says who writes, as the node; two living processes cannot write under one name.
    `durable_s` is the longest time in seconds that an acknowledged row may not yet be on the disk (0: none; None: what
    suits the file system); a killed process loses none of them either way. Raises StoreError where another process has
    the name, or the store cannot be written.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        durable_s: float | None = None,
        background: bool = True,
        offline: bool = False,
        segment_s: float = 600.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        file_names.check(name, "name of a journal")
        self.name = name
        self._root, self._folder = root, root / journal_file.FOLDER
        self._segment_s, self._clock = segment_s, clock
        self._pace = replacing.pace_of(root, offline=offline)
        try:
            files.make_folder(self._folder)
        except OSError as error:
            raise files.failed("make", self._folder, error) from error
        lock, label = self._folder / f"{name}.lock", f"a journal named {name}"
        try:
            self._hold = locked(lock, label)
        except StoreError:
            # A compaction has the name for a while where it seals what a dead writer left.
            if replacing.newest_note(root).owner is None:
                raise
            self._hold = locked(lock, label, wait_s=_COMPACTION_S)
        self._writer = journal_file.this_writer(name)
        self.durability = files.durability_of(self._folder, durable_s)
        self._written_ns = 0
        self._number = 0
        self._began_us = clock() // 1000
        self._guard = threading.Lock()  # the open file
        self._work = threading.Lock()  # sealing
        self._stop = threading.Event()
        self._files: dict[str, _File] = {}  # by kind of journal
        self._rows = 0
        self._turned_s = self._retry_s = time.monotonic()
        self._waiting: list[JournalName] = []  # to be sealed
        self._closed = False
        self._background = background
        self._thread: threading.Thread | None = None
        try:
            self._waiting = [
                journal_name for journal_name in journal_file.journals(root) if journal_name.writer == name
            ]
            if not (background and self._slow):
                self._seal_waiting()
        except StoreError as error:
            log.warning("%s; rows of an earlier writer stay in its journal", error)
        except BaseException:
            self._hold.release()
            raise
        if background:
            self._thread = threading.Thread(target=self._run, name=f"journal-{name}", daemon=True)
            self._thread.start()

    @property
    def _slow(self) -> bool:
        """Whether minutes pass until all hosts of a network file system see a new file."""
        return self._pace.announce_s > 1

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, ts: Times, gpus: Sequence[str], columns: Mapping[str, Any]) -> None:
        """Store a reading of each of `gpus`; the rows are acknowledged on return.

        `ts` is when it was taken, one time for all or one for each GPU: UTC as ns since 1970, datetime or datetime64.
        `gpus` are their UUIDs. `columns` maps further columns of telemetry, `cluster` among them, each to a value for
        all GPUs or to an array of `len(gpus)` values in the unit of the column; None and NaN are missing. Raises
        StoreError where they do not fit or cannot be written: these rows are not stored then, and those before are.
        """
        self.append_batch(readings(ts, gpus, columns))

    def append_batch(self, batch: pa.RecordBatch, table: str = "telemetry") -> None:
        """Store the rows of a batch whose columns are some of the table's; they are acknowledged on return.

        Raises StoreError as `append`.
        """
        import pyarrow as pa

        if not len(batch):
            return
        shaped = keys.conform(table_of(table), pa.Table.from_batches([batch]))
        if table == TELEMETRY.name:
            self.append_ticks(_ticks(shaped))
        else:
            self.append_columns(_columns(shaped), table)

    def append_columns(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        """Store rows of a table in columns of what JSON can say (times in ns since 1970), without Arrow; they are
        acknowledged on return.

        Raises StoreError as `append`.
        """
        rows = len(next(iter(columns.values()), ()))
        if rows:
            self._append("rows", lambda _, written_ns: journal_file.rows_block(table, columns, written_ns), (), rows)

    def append_ticks(self, ticks: Ticks) -> None:
        """Store readings without Arrow; they are acknowledged on return.

        Raises StoreError as `append`.
        """
        if len(ticks.ts):
            now_us = self._clock() // 1000
            near = now_us - _NEAR_US < min(ticks.ts) and max(ticks.ts) < now_us + _NEAR_US
            kind = "now" if near else "any"
            self._append(kind, lambda encoder, written_ns: encoder.tick(ticks, written_ns), ticks.gpus, len(ticks.ts))

    def _append(
        self, kind: str, encode: Callable[[Encoder, int], bytes], gpus: Sequence[journal_file.Gpu], rows: int
    ) -> None:
        with self._guard:
            if self._closed:
                raise StoreError(f"the journal {self.name} is closed")
            file = self._files.get(kind)
            if file is None or file.size >= _MOST_BYTES or not file.encoder.takes(gpus):
                file = self._open_for(kind, gpus)
            self._written_ns = max(self._written_ns + 1, self._clock())
            content = encode(file.encoder, self._written_ns)
            before = file.size
            try:
                file.write(content, self.durability.seconds)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.handle, before)
                self._turn(kind)  # what a failed disk has kept of a file is not known: nothing more is written to it
                raise self._failed(file.named.path, error) from error
            self._rows += rows

    def _open_for(self, kind: str, gpus: Sequence[journal_file.Gpu]) -> _File:
        """A new file of a kind, that takes rows of these GPUs and of those of the file before."""
        file = self._files.get(kind)
        known_gpus = file.encoder.gpus if file is not None else []
        if len({*known_gpus, *gpus}) > journal_file.MOST_GPUS:
            known_gpus = []
            if len({*gpus}) > journal_file.MOST_GPUS:
                raise StoreError(
                    f"a journal takes readings of {journal_file.MOST_GPUS} GPUs at once: append some first"
                )
        self._turn(kind)
        self._began_us = max(self._began_us + 1, self._clock() // 1000)
        stem = f"{self.name}-{os.getpid()}-{max(self._began_us, 0):x}-{self._number}"
        path = self._folder / journal_file.compose(stem, kind, [*known_gpus, *gpus])
        journal_name = journal_file.parse(path)
        assert journal_name is not None
        self._number += 1
        try:
            file = _File(journal_name, Encoder(self._writer, [*known_gpus, *gpus]))
        except OSError as error:
            raise self._failed(path, error) from error
        try:
            file.write(file.encoder.header(self._clock()), self.durability.seconds)
            if self.durability.seconds <= 0:
                files.sync_folder(self._folder)
        except OSError as error:
            os.close(file.handle)
            files.remove(path)
            raise self._failed(path, error) from error
        self._files[kind] = file
        return file

    def _failed(self, path: Path, error: OSError) -> StoreError:
        failure = files.failed("write", path, error)
        return StoreError(f"{failure}; these rows are not stored, the rows before are")

    def flush(self, after_s: float = 0.0) -> None:
        """Make durable what has not been for so many seconds. Raises StoreError."""
        with self._guard:
            for file in self._files.values():
                try:
                    file.sync(after_s)
                except OSError as error:
                    raise self._failed(file.named.path, error) from error

    # -- sealing --------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Show all rows to other programs: as `seal`. whorl's own readers see each row from its append on."""
        self.seal()

    def seal(self) -> None:
        """Turn the journal into sorted files of its tables and begin the next one.

        Raises StoreError where they cannot be written: the rows stay in the journal.
        """
        with self._guard:
            self._turn()
        self._seal_waiting()

    def _turn(self, *kinds: str) -> None:
        """End the open files, or those of some kinds; their rows wait for sealing."""
        for kind in kinds or list(self._files):
            file = self._files.pop(kind, None)
            if file is not None:
                with contextlib.suppress(OSError):
                    file.sync()
                os.close(file.handle)
                self._waiting.append(file.named)
        if not self._files:
            self._rows, self._turned_s = 0, time.monotonic()

    def _seal_waiting(self) -> None:
        with self._work:
            waiting = list(self._waiting)
            if self._background:
                self._retry_s = time.monotonic() + self._segment_s / 10
                ended = self._stop.is_set if self._slow else None
                sealing.seal_in_child(self._root, waiting, self._pace, hold=self._hold, ended=ended)
            else:
                sealing.seal(self._root, waiting, self._pace)
                replacing.tidy(self._root)
            with self._guard:
                self._waiting = [journal_name for journal_name in self._waiting if journal_name not in waiting]

    def maintain(self) -> None:
        """Do what is due: make rows durable, seal. Raises StoreError."""
        self.flush(self.durability.seconds)
        waits = bool(self._waiting) and time.monotonic() >= self._retry_s
        if waits or time.monotonic() - self._turned_s >= self._segment_s or self._rows >= _MOST_ROWS:
            self.seal()

    def _run(self) -> None:
        last_error = ""
        tick = min(_LOOK_S, self._segment_s / 4)
        if self.durability.seconds > 0:
            tick = min(tick, self.durability.seconds / 2)
        while not self._stop.wait(tick):
            try:
                self.maintain()
                last_error = ""
            except StoreError as error:
                # The rows stay in the journal and the next turn tries again. A full disk is reported once.
                if str(error) != last_error and not self._stop.is_set():
                    last_error = str(error)
                    log.warning("%s; the rows stay in the journal", error)
            except Exception as error:
                # Catch every error: appending goes on, and if this thread ended, nothing would be sealed again.
                if repr(error) != last_error:
                    last_error = repr(error)
                    log.exception("the journal %s could not be sealed; the rows stay in it", self.name)

    def close(self) -> None:
        """Make everything durable, seal, and release the name. A second call does no harm. Raises StoreError.

        On a network file system the journal stays for the next writer of the name, or `compact`: sealing would take
        minutes.
        """
        if self._closed:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
            if not self._slow:
                self.seal()
        finally:
            self._closed = True
            with self._guard:
                self._turn()
            self._hold.release()

    def abandon(self) -> None:
        """Let go of the files in a child process after a fork: the journal is the parent's, which goes on with it."""
        self._closed = True
        self._stop.set()
        for file in self._files.values():
            os.close(file.handle)
        self._files = {}
        self._hold.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def readings(ts: Times, gpus: Sequence[str], columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Readings of GPUs as rows of telemetry; see `Journal.append`. Raises StoreError for what does not fit."""
    import pyarrow as pa

    schema = arrow_schema(TELEMETRY.name)
    unknown = sorted(columns.keys() - {*TELEMETRY.names} | columns.keys() & {"ts", "gpu"})
    if unknown:
        raise StoreError(f"telemetry has no further column {', '.join(unknown)}: `whorl schema` lists them")
    arrays = {}
    for name, values in {"ts": ts, "gpu": list(gpus), **columns}.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
            values = [values] * len(gpus)
        kind = pa.timestamp("ns") if name == "ts" else schema.field(name).type
        try:
            arrays[name] = pa.array(values, kind, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"telemetry, column {name}: {str(error).splitlines()[0]}") from error
        if len(arrays[name]) != len(gpus):
            raise StoreError(f"telemetry, column {name}: {len(arrays[name])} values for {len(gpus)} GPUs")
    return pa.RecordBatch.from_pydict(arrays)


def _columns(rows: pa.Table) -> dict[str, list[Any]]:
    """Rows of a table, in its types, as `Journal.append_columns` takes them. Raises StoreError."""
    import pyarrow as pa

    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            try:
                column = column.cast(pa.timestamp("ns")).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise StoreError(f"column {name}: {error}") from error
        columns[name] = column.to_pylist(maps_as_pydicts="strict")
    return columns


def _ticks(rows: pa.Table) -> Ticks:
    """Rows of telemetry, in the types of the table, as what a file takes."""
    import pyarrow as pa

    names: list[str] = []
    values, nulls, texts = [], [0] * len(rows), {}
    for name in rows.column_names:
        column = rows[name]
        if pa.types.is_string(column.type):
            texts[name] = column.to_pylist()
        elif name not in KEY:
            if column.null_count:
                valid = column.is_valid().to_pylist()
                nulls = [null | (not there) << len(names) for null, there in zip(nulls, valid, strict=True)]
            names.append(name)
            values.append(column.fill_null(0).to_pylist())
    gpus = list(zip(texts.pop("cluster"), texts.pop("gpu"), strict=True))
    texts = {name: column for name, column in texts.items() if any(column)}
    numbers = list(zip(*values, strict=True)) if values else [()] * len(rows)
    columns, packed = pack_readings(names, numbers)
    return Ticks(keys.times(rows).tolist(), gpus, columns, packed, nulls=nulls, texts=texts)
