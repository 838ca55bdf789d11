"""A journal: the last minutes of one collector's readings, made durable batch by batch.

`append` returns when the rows are in the journal's file (and on the disk, where every append is made durable). From
then on every reader of whorl sees them. A thread of the journal *publishes* new rows every half minute as a small
Parquet file, for other DuckDB clients, and every ten minutes *seals* the journal: its rows become one sorted
segment, which takes the place of the journal's files in one step (see `sealing`).

Files: journal/NAME-PID-BEGAN-NUMBER.TABLE.PART.arrow, one *generation* NUMBER per segment. A new PART begins where
rows bring columns or GPUs that no header names, or where a write failed. Two parts of a table may be open: rows of few
columns have one of their own, as a tick of the fast metrics would else carry NULL for all slow ones.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .rows import journal_file, replacing, soundness
from .schema import TELEMETRY, arrow_schema
from .schema import table as table_of
from .system import durability, files, processes
from .system.background import Background, open_background
from .system.locks import COMPACTING, is_free, locked
from .system.memory import give_back
from .writers import sealing
from .writers.journal_stream import Stream, failed_append, gpus_of
from .writers.template import Template

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    import pyarrow as pa

    Times = int | datetime | np.datetime64 | Sequence[int | datetime | np.datetime64] | np.ndarray

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_ROWS = 1_000_000  # a generation with so many rows is sealed early: sealing sorts them in memory
_PARTS = 2  # of a table that are open at once
_WIDE = 2  # a part with so many times the columns of a batch is too wide for it
_HASTY_SETTLE_S = 1.0
_COMPACTION_S = 60.0
_LOOK_S = 10.0  # how often at least to look whether there are many rows


class Journal:
    """The journal of one writer in a store, made by `Store.journal`: `append` readings, `close` at the end.

    It is a context manager as well. `publish` shows its rows to other programs, and `seal` turns it into files of
    telemetry; a thread does both, or the caller.

    `name` says who writes, as the node; two living processes cannot write under one name. `durable_s` is the
    longest time in seconds that an acknowledged row may not yet be on the disk (0: none; None: what suits the
    file system); a killed process loses none of them either way. Raises StoreError where another process has
    the name, or the store cannot be written.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        durable_s: float | None = None,
        segment_s: float = 600.0,
        publish_s: float = 30.0,
        settle_s: float | None = None,
        grace_s: float | None = None,
        clock: Callable[[], int] = time.time_ns,
        thread: bool = True,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise StoreError(f"{name!r} is not a valid name of a journal: use letters, digits, '.', '_' and '-'")
        self.name = name
        self._root = root
        self._folder = root / journal_file.FOLDER
        self._segment_s, self._publish_s = segment_s, publish_s
        usual = replacing.pace_of(root)
        self._pace = replace(
            usual,
            settle_s=usual.settle_s if settle_s is None else settle_s,
            grace_s=usual.grace_s if grace_s is None else grace_s,
            announce_s=usual.announce_s if settle_s is None else 0.0,
            wait=self._wait,
        )
        self._stop = threading.Event()
        self._clock = clock
        try:
            files.make_folder(self._folder)
        except OSError as error:
            raise files.failed("make", self._folder, error) from error
        # A compaction has the name for a while where it seals what a dead collector left.
        wait_s = 0.0 if is_free(root / COMPACTING) else _COMPACTION_S
        self._hold = locked(self._folder / f"{name}.lock", f"a journal named {name}", wait_s=wait_s)
        began = clock()
        self._writer = journal_file.Writer(name, processes.host(), processes.pid_namespace(), os.getpid(), began)
        self.durability = durability.of(self._folder, durable_s)
        self._written = began - 1
        self._number = 0
        self._guard = threading.Lock()  # the streams: appending and turning to the next generation exclude each other
        self._work = threading.Lock()  # publishing and sealing exclude each other
        self._streams: list[Stream] = []
        self._unsynced_since: float | None = None
        self._background: Background | None = None
        self._tried = False  # whether there can be one
        self._began_s = time.monotonic()
        self._rows = 0
        self._sealer = sealing.Sealer(root, self._generation())
        self._waiting: list[sealing.Sealer] = []  # sealed generations that are not in place yet, because that failed
        self._closed = False
        self._thread: threading.Thread | None = None
        self._seals_before = thread and self._slow
        try:
            if not self._seals_before:
                self._seal_before(self._soon())
        except BaseException:
            self._hold.release()
            raise
        if thread:
            self._thread = threading.Thread(target=self._run, name=f"journal-{name}", daemon=True)
            self._thread.start()

    @property
    def _slow(self) -> bool:
        """Whether files change places slowly here: minutes pass until all hosts of a network file system see it."""
        return self._pace.announce_s > 0

    def _soon(self) -> replacing.Pace:
        """The pace when somebody waits."""
        return replacing.Pace(min(_HASTY_SETTLE_S, self._pace.settle_s), self._pace.grace_s)

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise replacing.EndingError(f"the journal {self.name} ends; its rows stay in it")

    def _seal_before(self, pace: replacing.Pace) -> None:
        """Seal what an earlier writer of this name left."""
        try:
            sealing.seal_abandoned(self._root, self.name, pace, but=self._process())
        except replacing.EndingError:
            pass
        except StoreError as error:
            log.warning("%s; rows of an earlier collector stay in its journal", error)

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, ts: Times, gpus: Sequence[str], columns: Mapping[str, Any]) -> None:
        """Store a reading of each of `gpus`; the rows are acknowledged on return: see `append_batch`.

        `ts` is when it was taken, one time for all or one for each GPU: UTC as ns since 1970, datetime or datetime64.
        `gpus` are their UUIDs. `columns` maps further columns of telemetry, `cluster` among them, each to a value for
        all GPUs or to an array of `len(gpus)` values in the unit of the column; None and NaN are missing. Raises
        StoreError where they do not fit or cannot be written: these rows are not stored then, and those before are.
        """
        self.append_batch(readings(ts, gpus, columns))

    def append_batch(self, batch: pa.RecordBatch, table: str = "telemetry", *, sync: bool = True) -> None:
        """Store the rows of a batch whose columns are some of the table's; they are acknowledged on return.

        With `sync` off, where every append is made durable, `flush_soon` sees to that; whatever becomes of the process,
        readers see them from now on.
        Raises StoreError where they cannot be written: these rows are not stored then, and those before are.
        """
        if not len(batch):
            return
        with self._guard:
            if self._closed:
                raise StoreError(f"the journal {self.name} is closed")
            stream = self._stream(table, batch)
            self._written = max(self._written + 1, self._clock())
            self._commit(stream, stream.encode(batch, self._written), len(batch), sync)

    def _commit(self, stream: Stream, message: bytearray, rows: int, sync: bool) -> None:
        try:
            stream.write(message)
            if self.durability.seconds <= 0:
                if sync:
                    files.sync(stream.handle)
                stream.behind = not sync
            elif self._unsynced_since is None:
                self._unsynced_since = time.monotonic()
            elif time.monotonic() - self._unsynced_since >= self.durability.seconds:
                self._sync()
        except OSError as error:
            stream.undo()
            raise failed_append(stream.path, error) from error
        stream.acknowledge()
        self._rows += rows

    def template(self, batch: pa.RecordBatch, table: str = "telemetry") -> Template:
        """The batch as a template to fill in and append many times; nothing is written. Raises StoreError."""
        with self._guard:
            if self._closed:
                raise StoreError(f"the journal {self.name} is closed")
            stream = self._stream(table, batch)
            return Template(stream, stream.encode(batch, 0), stream.schema, len(batch))

    def append_template(self, template: Template, *, sync: bool = True) -> bool:
        """Append a filled-in template, as `append_batch` does with a batch.

        False, and nothing is stored, if the journal has begun another file since. Then make the template anew.
        """
        with self._guard:
            stream: Stream = template.stream
            if self._closed or stream.broken or stream not in self._streams:
                return False
            self._written = max(self._written + 1, self._clock())
            self._commit(stream, template.sealed(self._written), template.rows, sync)
        return True

    def flush(self) -> None:
        """Make every acknowledged row durable. Raises StoreError."""
        with self._guard:
            try:
                self._sync()
            except OSError as error:
                raise failed_append(Path(error.filename or self._folder), error) from error

    def flush_soon(self) -> None:
        """Begin to make durable what was appended with `sync` off; does not wait for it where the kernel can do it.

        If some earlier flushes are still under way, a later call does it. So call it after every append. Raises
        StoreError, also for what failed in an earlier flush.
        """
        with self._guard:
            if self.durability.seconds > 0 or not self._streams:
                return
            handles = [stream.handle for stream in self._streams if stream.behind]
            try:
                if handles and not self._tried:
                    self._background, self._tried = open_background(handles[0]), True
                if self._background is None:
                    self._sync()
                elif self._background.ready() and handles:
                    self._background.begin(handles)
                    for stream in self._streams:
                        stream.behind = False
            except OSError as error:
                raise failed_append(self._folder, error) from error

    def _sync(self) -> None:
        if self._background is not None:
            self._background.ended(wait=True)  # a failure that it was told is told once only
        for stream in self._streams:
            stream.sync()
        self._unsynced_since = None

    def _process(self) -> str:
        return (
            f"{self.name}-{self._writer.pid}-{self._writer.began % 2**64:x}-"  # no sign: a '-' ends a part of the name
        )

    def _generation(self) -> str:
        return f"{self._process()}{self._number}"

    def _stream(self, table: str, batch: pa.RecordBatch) -> Stream:
        """The part that takes a batch, a new one where none does."""
        streams = [one for one in self._streams if one.table == table]
        taking = min((one for one in streams if one.takes(batch)), key=lambda one: len(one.columns), default=None)
        room = len(streams) < _PARTS
        if taking is not None and not (room and len(taking.columns) >= _WIDE * batch.num_columns):
            return taking
        old = None
        if taking is None:  # new GPUs or a failed write end the part with these columns, new columns the widest part
            names = set(batch.schema.names)
            old = next((one for one in streams if one.broken or names <= set(one.columns)), None)
            if old is None and not room:
                old = max(streams, key=lambda one: len(one.columns))
        made = self._next_part(old, streams, table, batch)
        self._streams = [*(one for one in self._streams if one is not old), made]
        return made

    def _next_part(self, old: Stream | None, streams: list[Stream], table: str, batch: pa.RecordBatch) -> Stream:
        table_of(table)
        columns = [*batch.schema.names, *(old.columns if old is not None else ())]
        gpus = gpus_of(batch).union(*(one.gpus for one in streams))
        number = max((one.number + 1 for one in streams), default=0)
        while files.is_seen(path := self._folder / f"{self._generation()}.{table}.{number}.arrow"):
            number += 1  # a disk took neither the header of this part nor its removal
        made = Stream(path, table, number, columns, gpus, self._writer)
        if old is not None:
            with contextlib.suppress(OSError):
                files.sync(old.handle)
            old.close()
        return made

    # -- publishing and sealing ---------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish new rows as Parquet files, for other programs; whorl's own readers see each row from its append on.

        Raises StoreError where they cannot be written: the rows stay in the journal.
        """
        with self._work:
            self._sealer.publish()

    def seal(self, *, settle_s: float | None = None) -> None:
        """Turn the journal into sorted files of telemetry and begin the next one.

        Raises StoreError where they cannot be written: the rows stay in the journal.
        """
        with self._work:
            self._turn()
            self._seal_waiting(self._pace if settle_s is None else self._soon())
            soundness.forget_gone()
        give_back(thoroughly=True)

    def _turn(self) -> None:
        with self._guard:
            for stream in self._streams:
                with contextlib.suppress(OSError):
                    files.sync(stream.handle)
                stream.close()
            if self._streams:
                self._waiting.append(self._sealer)
            self._streams = []
            self._unsynced_since = None
            self._number += 1
            self._rows = 0
            self._began_s = time.monotonic()
            self._sealer = sealing.Sealer(self._root, self._generation())

    def _seal_waiting(self, pace: replacing.Pace) -> None:
        while self._waiting:
            self._waiting[0].seal(pace)
            del self._waiting[0]

    def _due_s(self) -> float:
        """How long until there is something to publish or seal."""
        due = min(self._sealer.published_s + self._publish_s, self._began_s + self._segment_s)
        return due - time.monotonic()

    def maintain(self) -> None:
        """Do what is due: make rows durable, publish, seal, remove what was replaced. Raises StoreError."""
        now = time.monotonic()
        since = self._unsynced_since
        if since is not None and now - since >= self.durability.seconds:
            self.flush()
        if now - self._began_s >= self._segment_s or self._rows >= _MOST_ROWS:
            self.seal()
        elif now - self._sealer.published_s >= self._publish_s:
            self.publish()
            if self._waiting:
                with self._work:
                    self._seal_waiting(self._pace)
            replacing.recover(self._root, self._pace.grace_s)

    def _run(self) -> None:
        last_error = ""
        tick = min(_LOOK_S, self._publish_s / 4, self._segment_s / 4)
        if self.durability.seconds > 0:
            tick = min(tick, self.durability.seconds / 2)
        while not self._stop.wait(min(tick, max(0.1, self._due_s()))):
            try:
                if self._seals_before:
                    self._seals_before = False
                    self._seal_before(self._pace)
                self.maintain()
                last_error = ""
            except replacing.EndingError:
                break
            except StoreError as error:
                # The rows stay in the journal and the next turn tries again. A full disk is reported once.
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("%s; the rows stay in the journal", error)
            except Exception as error:
                # Catch every error: appending goes on, and if this thread ended, nothing would be sealed again.
                if repr(error) != last_error:
                    last_error = repr(error)
                    log.exception("the journal %s could not be sealed; the rows stay in it", self.name)

    def close(self) -> None:
        """Make everything durable, seal, and release the name. A second call does no harm. Raises StoreError.

        On a network file system the rows are published only: sealing would take minutes. The next journal of the name,
        or `compact`, seals them.
        """
        if self._closed:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
            if self._slow:
                with self._work:
                    for sealer in (*self._waiting, self._sealer):
                        sealer.publish()
            else:
                self.seal(settle_s=self._soon().settle_s)
        finally:
            self._closed = True
            with self._guard:
                for stream in self._streams:
                    stream.close()
                if self._background is not None:
                    self._background.close()
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
        try:
            arrays[name] = pa.array(values, schema.field(name).type, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"telemetry, column {name}: {str(error).splitlines()[0]}") from error
        if len(arrays[name]) != len(gpus):
            raise StoreError(f"telemetry, column {name}: {len(arrays[name])} values for {len(gpus)} GPUs")
    return pa.RecordBatch.from_pydict(arrays)
