"""Which open table logs name the files of a store, and which replaced files each of them no longer names.

A log (`table_logs`: Delta, Iceberg) is read by other programs, which look at no note in `replaced/`. So what was
replaced stays until every log of the store has moved on to the files that came instead, and `GRACE_S` more, for queries
that began before. A file of JSON for each log in `registered/` says so, without the library that the log needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .notes import ReplacementNote
from .system import files

FOLDER = "registered"
ICEBERG = "iceberg"
"""The folder of a store that has the catalogue and the metadata of its Iceberg tables."""
LOGS = ("delta", "iceberg")
"""The names of the logs that whorl writes."""
GRACE_S = 3600.0
_MOST = 1 << 28  # bytes


@dataclass(frozen=True)
class Registration:
    """A log of a store: when its tables last were those of the store, and what they no longer name.

    `moved_on_s`: s since 1970, of the file system; None of a log that was never completed. `released`: replaced files
    that no table of the log names, with the time of that. `place`: the folder of the store then. `damaged`: why the
    file that says this cannot be read; then nothing is released.
    """

    log: str
    moved_on_s: float | None = None
    released: Mapping[str, float] = field(default_factory=dict)
    place: str = ""
    damaged: str | None = None

    def waits_for(self, name: str, now_s: float, grace_s: float) -> bool:
        """Whether a replaced file must stay for the readers of this log."""
        released_s = self.released.get(name)
        return released_s is None or 0 <= now_s - released_s < grace_s


def path_of(root: Path, log: str) -> Path:
    return root / FOLDER / f"{log}.json"


def registrations(root: Path) -> list[Registration]:
    """The logs of a store. Raises OSError where its folder cannot be read."""
    names = files.names_in(root / FOLDER)
    return [_read(root, log) for log in LOGS if f"{log}.json" in names]


def _read(root: Path, log: str) -> Registration:
    try:
        fields = files.parse_json_with_sum(files.read_small(path_of(root, log), _MOST).encode())
        released = {str(name): float(since_s) for name, since_s in fields["released"].items()}
        moved_on_s = fields["moved_on_s"]
        return Registration(log, None if moved_on_s is None else float(moved_on_s), released, str(fields["place"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return Registration(log, damaged=str(error) or repr(error))


def write(root: Path, registration: Registration) -> None:
    """Write what is said of a log, at once and durably. Raises StoreError."""
    path = path_of(root, registration.log)
    try:
        files.put(path, files.json_with_sum(asdict(registration)), below=True)
    except OSError as error:
        raise files.failed("write", path, error) from error


@dataclass
class LogStatus:
    """A table log: when its tables last were those of the store (s since 1970; None: never), and the replaced files
    that stay because it may name them, since when, and their `bytes`. `damaged`: why its state cannot be read."""

    log: str
    moved_on: float | None
    damaged: str | None = None
    waiting: int = 0
    bytes: int = 0
    since: float | None = None


def statuses(root: Path, note: ReplacementNote) -> list[LogStatus]:
    """The state of each log, by the newest note. Raises OSError."""
    out = []
    for registration in registrations(root):
        log = LogStatus(registration.log, registration.moved_on_s, registration.damaged)
        for name, since_s in note.old.items():
            if name not in registration.released and (root / name).exists():
                log.waiting += 1
                log.bytes += (root / name).stat().st_size
                log.since = since_s if log.since is None else min(log.since, since_s)
        out.append(log)
    return out


def due(root: Path, note: ReplacementNote, now_s: float, grace_s: float) -> list[str]:
    """The replaced files of a note that may be removed at a time (s since 1970). Raises OSError.

    `grace_s`: how long they stay for readers of the store; 0 where nobody reads it.
    """
    names = note.due(now_s, grace_s)
    for registration in registrations(root) if names else ():
        names = [name for name in names if not registration.waits_for(name, now_s, GRACE_S if grace_s else 0.0)]
    return names
