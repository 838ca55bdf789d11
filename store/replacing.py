"""Replace files by others in one step for every reader, one process at a time.

No file system renames several files at once. So numbered notes in `replaced/` say which files readers leave out, and
the note with the highest number counts. A note appears by link(2), which only one process can do for a number: who
makes the next one holds the store, and who was taken over meets the number taken and stops.

    claim      a note of the process that replaces files; the time of its newest note is its heartbeat
    step 1     leave out the new files; then they are renamed into place
    step 2     leave out the old files instead: with this one note they have changed places
    release    a note without a process; the old files are removed when queries that began before have ended, and when
               no table log names them

A step 1 has the format that the store had, and a step 2 that of its whorl: in an upgrade an older whorl cannot read the
latter and goes by the former, with which it sees the old files, until `store.toml` refuses it.

A process that died between the steps leaves a store that every reader sees whole. The next one to claim removes the
new files of a step 1 that was never followed, and the old files of a step 2. A claim of a dead process of this host is
taken over at once, one of another host when its heartbeat is `TAKE_OVER_S` old, by the clock of the file system.

The last two notes always stay, so the note that counts follows another one. A note whose number follows none is named
and does not count, until the next process that replaces files removes it.

A table log (`table_logs`: Delta, Iceberg) is read by other programs, which look at no note. So what was replaced stays
until every log of the store has moved on to the files that came instead, and `LOG_GRACE_S` more, for queries that began
before. Who moves a log on holds the store, too, and says so in a note: this needs no library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from ..errors import FormatError, StoreError
from .formats import is_later, other_format
from .schema import FORMAT, LATE, REPLACED, TABLES, arrow_schema
from .system import files, processes

T = TypeVar("T")

_TRIES = 20
_NOTE = re.compile(r"(\d{10})\.parquet")
_OWNER = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{8}-\d{1,10}-[0-9a-f]+")
TABLE_FOLDER = rf"(?:{'|'.join(spec.name for spec in (*TABLES, LATE))})/(?:day=-?\d+-\d\d-\d\d/)?"
"""A pattern of the folders in which the files of tables lie."""
_KEY = re.compile(rb"whorl\.note\x18([\x80-\xff]{0,4}[\x00-\x7f])")  # and how long the text is, as Parquet says it
_PLACE = re.compile(rf"{TABLE_FOLDER}[A-Za-z0-9_-][A-Za-z0-9._-]*\.parquet")
"""What a note may name: no file outside the store, and none that whorl needs."""

Skip = Callable[[Path, str], None]
"""Called with a file that cannot be read, and the reason."""
SETTLE_S = 5.0
GRACE_S = 60.0
TAKE_OVER_S = 600.0
_BEAT_S = 60.0
_LOOK_S = 0.1
_CACHED_S = 65.0  # NFS shows a folder from memory for 30 to 60 s (acdirmin, acdirmax)
ICEBERG = "iceberg"
"""The folder of a store that has the catalogue and the metadata of its Iceberg tables."""
LOG_GRACE_S = 3600.0


# -- notes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableLog:
    """A table log: when its tables last were those of the store, and what they no longer name.

    Times in s since 1970, of the file system; `moved_on_s` is None of a log that was never completed. `released`:
    replaced files that no table of the log names, with the time of that. `place`: the folder of the store then.
    """

    moved_on_s: float | None = None
    released: Mapping[str, float] = field(default_factory=dict)
    place: str = ""

    def waits_for(self, name: str, now_s: float, grace_s: float) -> bool:
        """Whether a replaced file must stay for the readers of this log."""
        released_s = self.released.get(name)
        return released_s is None or 0 <= now_s - released_s < grace_s


@dataclass(frozen=True)
class ReplacementNote:
    """What a note says: who holds the store (None: nobody), the step, the new files of step 1, and the files that
    readers leave out because others replaced them, with the time (s since 1970, of the file system) of that; and the
    table logs by name, "delta" or "iceberg"."""

    number: int = 0
    owner: str | None = None
    step: int = 0
    new: tuple[str, ...] = ()
    old: Mapping[str, float] = field(default_factory=dict)
    format: str = str(FORMAT)
    logs: Mapping[str, TableLog] = field(default_factory=dict)

    @property
    def hidden(self) -> list[str]:
        """The files that readers leave out, as paths under the root."""
        return [*self.old, *(self.new if self.step == 1 else ())]

    def hidden_in(self, root: Path) -> frozenset[Path]:
        """The files of a store that readers leave out."""
        return frozenset(root / name for name in self.hidden)


def note_path(root: Path, number: int) -> Path:
    return root / REPLACED.name / f"{number:010d}.parquet"


def listed_notes(root: Path) -> tuple[list[int], list[int]]:
    """The numbers of notes, in order: up to the highest one that follows another, and beyond. Raises OSError."""
    matches = (_NOTE.fullmatch(name) for name in files.names_in(root / REPLACED.name))
    listed = sorted(int(match[1]) for match in matches if match)
    followers = [place for place in range(1, len(listed)) if listed[place] == listed[place - 1] + 1]
    upto = followers[-1] + 1 if followers else len(listed)
    return listed[:upto], listed[upto:]


def note_numbers(root: Path) -> list[int]:
    """The numbers of the notes of a store, in order, up to the highest one that follows another. Raises OSError."""
    return listed_notes(root)[0]


def newest_note(root: Path, skip: Skip = lambda _path, _reason: None, *, strict: bool = False) -> ReplacementNote:
    """The note that counts. `skip` is told of those that cannot be read or do not count, and the one before counts.

    With `strict` raises FormatError for one of a later format, where else `skip` is told of it. Raises OSError.
    """
    counting, strange = listed_notes(root)
    for number in strange:
        skip(note_path(root, number), "its number follows that of no other note: `whorl store compact` removes it")
    for number in reversed(counting):
        path = note_path(root, number)
        try:
            return _read(path, number)
        except FileNotFoundError:
            continue
        except FormatError as error:
            if strict:  # what it replaced is not for this whorl to judge
                raise FormatError(f"{path}: {error}") from error
            reason = str(error)
        except ValueError as error:
            reason = str(error)
        skip(path, f"{reason}; it says which files were replaced: restore it, or run `whorl store compact`")
    return ReplacementNote()


def _read(path: Path, number: int) -> ReplacementNote:
    """Raises FileNotFoundError, ValueError for a note that is damaged, and FormatError for one of a later format."""
    try:
        with files.opened(path) as source:
            fields = files.parse_json_with_sum(_text_of(source.read()))
        version = str(fields["format"])
        if why := other_format(version, older=True):
            raise (FormatError if is_later(version) else ValueError)(why)
        old = {str(name): float(hidden_since) for name, hidden_since in fields["old"].items()}
        new = tuple(map(str, fields["new"]))
        for name in (*old, *new):
            if not _PLACE.fullmatch(name):
                raise ValueError(f"it names {name!r}, which is not a file that whorl replaces")
        if fields["number"] != number:
            raise ValueError("it is a copy of another note")
        owner = fields["owner"]
        if owner is not None and not _OWNER.fullmatch(owner):
            raise ValueError(f"it names {owner!r}, which is no process")
        logs = {str(name): _log_of(state) for name, state in fields.get("logs", {}).items()}
        return ReplacementNote(number, owner, int(fields["step"]), new, old, version, logs)
    except FileNotFoundError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"it is damaged ({str(error).splitlines()[0] if str(error) else error!r})") from error


def _log_of(state: Mapping[str, Any]) -> TableLog:
    moved_on_s = state["moved_on_s"]
    released = {str(name): float(since_s) for name, since_s in state["released"].items()}
    return TableLog(None if moved_on_s is None else float(moved_on_s), released, str(state["place"]))


def _text_of(content: bytes) -> bytes:
    """The text of a note in the metadata of its file: found by its key, as every reader needs it and not all of them
    Arrow. Raises ValueError."""
    key = _KEY.search(content)
    if key is None:
        raise ValueError("it is damaged")
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(key[1]))
    return content[key.end() : key.end() + length]


def _content(note: ReplacementNote) -> bytes:
    """A note as a Parquet file: rows for plain clients, and the same in its metadata for whorl."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .. import __version__

    schema = arrow_schema(REPLACED.name)
    about = {**(schema.metadata or {}), b"whorl.note": files.json_with_sum(asdict(note) | {"by": __version__})}
    rows = [
        {"number": note.number, "step": note.step, "file": name, "hidden": bool(name)}
        for name in sorted(note.hidden) or [""]  # a row at least: the highest number must be seen
    ]
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema.with_metadata(about)), out)
    return bytes(out.getvalue())


def add_note(root: Path, note: ReplacementNote) -> None:
    """Make the note of a number, which only one process can. Raises FileExistsError, and OSError."""
    path = note_path(root, note.number)
    temporary = files.write(path, _content(note))
    try:
        with files.held(path.parent) as folder:
            try:
                os.link(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                if path.exists():  # a file system without links: two hosts in the same instant are not told apart
                    raise FileExistsError(errno.EEXIST, "it was made just now", str(path)) from error
                os.rename(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
    finally:
        files.remove(temporary)


def too_fast(root: Path) -> StoreError:
    """The error of who found other files each time that it looked."""
    return StoreError(f"the files of {root} change faster than they can be read; run the command again")


def retried(root: Path, look: Callable[[], T]) -> T:
    """What `look` gives, which is called again where it meets a file that was replaced meanwhile. Raises StoreError."""
    with files.readable(root):
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return look()
    raise too_fast(root)


# -- who replaces files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait (s): before new files appear, before the switch, and after it before old files go."""

    announce_s: float = 1.0
    settle_s: float = SETTLE_S
    grace_s: float = GRACE_S


OFFLINE = Pace(0.0, 0.0, 0.0)
_NETWORK = Pace(_CACHED_S, _CACHED_S, _CACHED_S + GRACE_S)


def pace_of(root: Path, *, offline: bool = False) -> Pace:
    """The pace that suits the file system of a store; `offline`: nobody else uses it."""
    if offline:
        return OFFLINE
    return _NETWORK if files.durability_of(root).seconds else Pace()


class NewFiles:
    """Files that are written and durable, under temporary names until they are placed, and the `old` ones that they
    stand for; a context, which removes those that were not placed."""

    def __init__(self, old: Iterable[Path] = ()) -> None:
        self.moves: dict[Path, Path] = {}
        """Temporary files with their places."""
        self.old = list(old)
        self.then: list[Callable[[], object]] = []
        """What is called when they have changed places, before the old ones may go."""
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def add(self, contents: Iterable[tuple[Path, bytes]]) -> None:
        """Write files for these places. Raises StoreError."""
        for path, content in contents:
            try:
                self.moves[files.write(path, content)] = path
                self.bytes += len(content)
            except OSError as error:
                raise files.failed("write", path, error) from error

    def take(self, other: NewFiles) -> None:
        """Take over the files of another one."""
        self.moves |= other.moves
        self.old += other.old
        self.then += other.then
        self.bytes += other.bytes
        other.moves = {}

    def place(self) -> None:
        """Rename the files into their places, durably. Raises OSError."""
        for temporary, path in self.moves.items():
            files.rename(temporary, path)
        for folder in {path.parent for path in self.moves.values()}:
            files.sync_folder(folder)

    def discard(self) -> None:
        """Remove those that still have temporary names, so that they stand for nothing."""
        for temporary in self.moves:
            files.remove(temporary)
        self.moves, self.old = {}, []


_at_work: set[Path] = set()
"""The stores whose files this process replaces now."""


class TakenError(StoreError):
    """Another process replaces files of this store."""


class Compactor:
    """The one process that replaces files of a store, as long as the block runs; at its end all files that it replaces
    change places, and before that where they take much space.

    Entering raises TakenError where another one is at work, after `wait_s` seconds. A long pass should call `beat`.
    `version`: the format of a store that has no note.
    """

    most_bytes: float = 1 << 30
    """New files that take more change places at once."""

    def __init__(self, root: Path, pace: Pace, version: str = str(FORMAT), *, wait_s: float = 0.0) -> None:
        self.root, self.pace, self._version, self._wait_s = root, pace, version, wait_s
        self._owner = processes.owner()
        self._note = ReplacementNote()
        self._beat_s = time.monotonic()
        self._batch = NewFiles()

    def __enter__(self) -> Self:
        until = time.monotonic() + self._wait_s
        while True:
            try:
                self._claim()
                break
            except TakenError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOOK_S)
        _at_work.add(self.root)
        if self._note.step == 1:  # its switch was never made: nobody has read these files
            self._take_back()
        self.tidy()
        return self

    def _claim(self) -> None:
        with files.readable(self.root):
            highest = max(note_numbers(self.root), default=0)
            last = newest_note(self.root, strict=True)
            last = last if last.number else replace(last, format=self._version)
            if last.owner is not None and not self._dead(last):
                raise self._taken(last)
            self._remove_notes(listed_notes(self.root)[1])  # one would count as soon as numbers reach it
        self._note = replace(last, number=highest)
        self._advance(replace(last, owner=self._owner))

    def __exit__(self, *raised: object) -> None:
        try:
            if not any(raised) and (self._batch.moves or self._batch.old):
                self.switch()
        finally:
            self._batch.discard()
            _at_work.discard(self.root)
            with contextlib.suppress(OSError, StoreError):
                if self._note.step == 1:
                    self._take_back()
                self._advance(replace(self._note, owner=None))

    def _take_back(self) -> None:
        """Remove the new files of a step 1 while they are hidden, then the note of it."""
        with files.readable(self.root):
            newest = newest_note(self.root)
            if newest.number > self._note.number and (newest.owner, newest.step) == (self._owner, 2):
                # The switch was made, though an error came behind it.
                self._note = newest
                return
            self._remove(self._note.new)
        self._advance(replace(self._note, step=2 if self._note.old else 0, new=()))

    def _taken(self, note: ReplacementNote) -> TakenError:
        host, _, remainder = (note.owner or "").partition("-")
        holder = f"process {remainder.split('-')[1]} on {host}" if remainder.count("-") >= 2 else "another process"
        return TakenError(
            f"{holder} compacts or prunes {self.root}, or brings its table logs up to date "
            f"({note_path(self.root, note.number)}): wait for it; if it is dead, "
            f"another may take over {TAKE_OVER_S / 60:g} minutes after its last sign of life"
        )

    def _dead(self, note: ReplacementNote) -> bool:
        """Whether the process that made a note is over."""
        assert note.owner is not None
        if note.owner == self._owner:  # it could not say that it had ended, as on a full disk
            return self.root not in _at_work
        alive = processes.owner_alive(note.owner)
        if alive is not None:
            return not alive
        path = note_path(self.root, note.number)
        try:
            return abs(files.clock(path.parent) - path.lstat().st_mtime) > TAKE_OVER_S
        except FileNotFoundError:
            return False

    def _advance(self, note: ReplacementNote) -> None:
        """Make the next note. Raises TakenError where another process did."""
        note = replace(note, number=self._note.number + 1)
        try:
            add_note(self.root, note)
        except FileExistsError:
            raise self._taken(newest_note(self.root)) from None
        except OSError as error:
            raise files.failed("write", self.root / REPLACED.name, error) from error
        if note_numbers(self.root)[-1:] != [note.number]:  # who took over has removed the note of this number since
            with contextlib.suppress(OSError):
                files.remove_inside(self.root, note_path(self.root, note.number))
            raise self._taken(newest_note(self.root))
        self._note = note

    def _check(self) -> None:
        """Raises TakenError where another has taken over."""
        with files.readable(self.root):
            if note_numbers(self.root)[-1:] != [self._note.number]:
                raise self._taken(newest_note(self.root))

    def beat(self) -> None:
        """Say that this process lives. Raises TakenError where another has taken over."""
        if time.monotonic() - self._beat_s < _BEAT_S:
            return
        self._beat_s = time.monotonic()
        self._check()
        with files.readable(self.root):
            os.utime(note_path(self.root, self._note.number))

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (remainder := until - time.monotonic()) > 0:
            time.sleep(min(remainder, _BEAT_S / 2))
            self.beat()

    @property
    def note(self) -> ReplacementNote:
        """The newest note, which this process made."""
        return self._note

    def set_log(self, name: str, log: TableLog | None) -> None:
        """Note the state of a table log; None: there is no such log any more. Raises StoreError."""
        others = {other: state for other, state in self._note.logs.items() if other != name}
        self._advance(replace(self._note, logs=others if log is None else {**others, name: log}))

    @contextlib.contextmanager
    def replacing(self, old: Iterable[Path]) -> Iterator[NewFiles]:
        """The files that the block adds stand for `old` ones, if it ends without an error."""
        with NewFiles(old) as part:
            yield part
            self._batch.take(part)
        if self._batch.bytes > self.most_bytes:
            self.switch()

    def switch(self) -> None:
        """Let all files change places. Raises StoreError; then none did, or all, where only the note's folder could not
        be made durable or be listed."""
        replacement, self._batch = self._batch, NewFiles()
        with replacement:
            self._switch(replacement)
        for call in replacement.then:
            call()
        self.tidy()

    def _switch(self, replacement: NewFiles) -> None:
        new = tuple(sorted(path.relative_to(self.root).as_posix() for path in replacement.moves.values()))
        old = [path.relative_to(self.root).as_posix() for path in replacement.old]
        try:
            if new:
                self._advance(replace(self._note, step=1, new=new))
                self.wait(self.pace.announce_s)
                self._check()  # this machine may have slept for long
                replacement.place()
                self.wait(self.pace.settle_s)
            switched = {**self._note.old, **dict.fromkeys(old, files.clock(self.root / REPLACED.name))}
            self._advance(replace(self._note, step=2, new=(), old=switched, format=str(FORMAT)))
        except BaseException as error:
            if self._note.step == 1:
                with contextlib.suppress(StoreError):
                    self._take_back()
            if isinstance(error, OSError):
                raise files.failed("write", self.root, error) from error
            raise
        replacement.moves = {}

    def tidy(self) -> None:
        """Remove the old files whose time has come, and the notes that no longer count."""
        with contextlib.suppress(OSError, StoreError):
            now_s = files.clock(self.root / REPLACED.name)
            if removable := due(self._note, now_s, self.pace.grace_s):
                self._remove(removable)
                still_hidden = {name: since for name, since in self._note.old.items() if name not in removable}
                self._advance(replace(self._note, step=2 if still_hidden else 0, old=still_hidden))
            self._remove_notes(note_numbers(self.root)[:-2])

    def _remove_notes(self, those: Iterable[int]) -> None:
        """Remove notes, but for new ones: somebody may have listed them in this moment, and not those before them."""
        now_s = files.clock(self.root / REPLACED.name)
        for path in (note_path(self.root, number) for number in those):
            if not self.pace.grace_s or abs(now_s - path.lstat().st_mtime) >= self.pace.grace_s:
                files.remove_inside(self.root, path)

    def _remove(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.remove_inside(self.root, self.root / name)
                folders.add((self.root / name).parent)
        for folder in folders:  # a file that comes back after a power failure would be there twice
            files.sync_folder(folder)


def tidy(root: Path) -> None:
    """Remove old files whose time has come, where nobody holds the store and this user may. Costs a listing if there
    is nothing to do."""
    with contextlib.suppress(OSError, StoreError):
        note, pace = newest_note(root), pace_of(root)
        clock_s = files.clock(root / REPLACED.name) if note.old else 0.0
        if note.step == 1 or due(note, clock_s, pace.grace_s):
            with Compactor(root, pace):
                pass


# -- table logs ----------------------------------------------------------------------------------------------


@dataclass
class LogStatus:
    """A table log: when its tables last were those of the store (s since 1970; None: never), and the replaced files
    that stay because it may name them, since when, and their `bytes`. `damaged`: None, as a note is damaged as a whole,
    and the one before counts then."""

    log: str
    moved_on: float | None
    damaged: None = None
    waiting: int = 0
    bytes: int = 0
    since: float | None = None


def statuses(root: Path, note: ReplacementNote) -> list[LogStatus]:
    """The state of each log, by the newest note. Raises OSError."""
    out = []
    for name, log in sorted(note.logs.items()):
        waiting = {old: since_s for old, since_s in note.old.items() if old not in log.released}
        sizes = [(root / old).stat().st_size for old in waiting if (root / old).exists()]
        since = min(waiting.values(), default=None)
        out.append(LogStatus(name, log.moved_on_s, waiting=len(sizes), bytes=sum(sizes), since=since))
    return out


def due(note: ReplacementNote, now_s: float, grace_s: float) -> list[str]:
    """The replaced files of a note that may be removed at a time (s since 1970), also where their own time lies ahead.

    `grace_s`: how long they stay for readers of the store; 0 where nobody reads it.
    """
    names = [name for name, since_s in note.old.items() if not 0 <= now_s - since_s < grace_s]
    log_grace_s = LOG_GRACE_S if grace_s else 0.0
    return [name for name in names if not any(log.waits_for(name, now_s, log_grace_s) for log in note.logs.values())]
