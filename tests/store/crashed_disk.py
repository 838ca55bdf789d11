"""The files of a folder as they may be after the machine died, by a record of all that was done to them.

tests/native/recorder.c records every change of a file or folder in its order. A file has what was written before its
last fsync began. A name (made, renamed, linked, removed) is as it was when its folder was last made durable; a rename
is one change, durable with either of its folders. Of the rest, there are two models:

ordered    as ext4 with data=ordered: of all changes of names, the first so many happened; of each file, the first so
           many bytes in the order of writing are there
weak       what POSIX allows: any changes of names happened, but those of one name in their order; of each file any
           writes are there, whole or some of their sectors of 512 bytes, and zeros where others would be
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

SECTOR = 512
RECORDER = Path(__file__).parents[1] / "native" / "recorder.c"


@dataclass
class FileOperation:
    """One line of the record: of a file by its number, or of paths. `try` and `ack` are marks of who is recorded."""

    kind: str
    number: int
    place: int
    began: int  # how long the log was when the call began
    paths: list[str]
    content: bytes
    end: int  # where it ends in the log


def recording(log: Path, folder: Path) -> dict[str, str]:
    """The environment of a process whose changes below a folder are recorded."""
    library = log.with_name("recorder.so")
    if not library.exists():
        compiler = [os.environ.get("CC") or "cc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
        subprocess.run([*compiler, "-o", str(library), str(RECORDER), "-ldl"], check=True)
    more = {"LD_PRELOAD": str(library), "WHORL_RECORD": str(log), "WHORL_RECORD_BELOW": str(folder)}
    return os.environ | more


def mark(log: Path, kind: str, about: str, content: bytes = b"") -> None:
    """Write into the record what happens now."""
    text = f"{kind}\t0\t0\t0\t{about}".encode()
    lengths = b"".join(len(part).to_bytes(4, sys.byteorder) for part in (text, content))
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, lengths + text + content)
    os.close(out)


def operations(log: bytes) -> Iterator[FileOperation]:
    """What was recorded, in its order."""
    at = 0
    while at < len(log):
        middle, end = (int.from_bytes(log[at + n : at + n + 4], sys.byteorder) for n in (0, 4))
        middle += at + 8
        end += middle
        kind, number, place, began, *paths = log[at + 8 : middle].decode().split("\t")
        yield FileOperation(kind, int(number), int(place), int(began), paths, log[middle:end], end)
        at = end


@dataclass(eq=False)
class DiskNode:
    """A file or folder, and what was made durable of it."""

    is_folder: bool
    changes: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    """When, where, and what was written; None: the file was cut off there."""
    durable: list[tuple[int, int]] = field(default_factory=list)
    """From when on it is certain, and that all changes until when are durable."""

    def durable_at(self, moment: int) -> int:
        """The last operation of which it is certain that it is durable."""
        return max((until for since, until in self.durable if since <= moment), default=-1)


Name = tuple[DiskNode, str]


@dataclass
class NameChange:
    """Names that were made, linked or removed (None) in one step."""

    order: int
    names: list[tuple[Name, DiskNode | None]]


class CrashedDisk:
    """All operations on a folder and what is below."""

    def __init__(self, root: Path, recorded: list[FileOperation]) -> None:
        self._root, self._top = root, DiskNode(is_folder=True)
        self._changes: list[NameChange] = []
        self._names: dict[Name, DiskNode] = {}
        nodes: dict[int, DiskNode] = {}
        places = {operation.end: order for order, operation in enumerate(recorded)}
        for order, operation in enumerate(recorded):
            match operation.kind:
                case "write" | "truncate":
                    written = operation.content if operation.kind == "write" else None
                    nodes[operation.number].changes.append((order, operation.place, written))
                case "sync":
                    nodes[operation.number].durable.append((order, places.get(operation.began, -1)))
                case "create" | "mkdir":
                    nodes[operation.number] = DiskNode(operation.kind == "mkdir")
                    self._change(order, [(self._name(operation.paths[0]), nodes[operation.number])])
                case "link" | "rename":
                    old, new = map(self._name, operation.paths)
                    node = self._names[old]
                    self._change(order, [(new, node), *([(old, None)] if operation.kind == "rename" else [])])
                case "unlink":
                    self._change(order, [(self._name(operation.paths[0]), None)])

    def _change(self, order: int, names: list[tuple[Name, DiskNode | None]]) -> None:
        self._changes.append(NameChange(order, names))
        self._names.update((name, node) for name, node in names if node is not None)

    def _name(self, path: str) -> Name:
        folder = self._top
        *above, last = Path(path).relative_to(self._root.parent).parts
        for part in above:
            folder = self._names[folder, part]
        return folder, last

    def after(self, moment: int, drawn: Random, *, weak: bool) -> dict[str, bytes | None]:
        """The files by their paths (a folder: None) of a disk whose machine died after an operation."""
        names: dict[DiskNode, dict[str, DiskNode]] = {}
        for change in self._happened(moment, drawn, weak=weak):
            for (folder, name), node in change.names:
                names.setdefault(folder, {}).pop(name, None)
                if node is not None:
                    names[folder][name] = node
        share = drawn.choice([0.0, 0.5, 1.0])
        paths: dict[str, bytes | None] = {}

        def walk(folder: DiskNode, above: str) -> None:
            for name, node in names.get(folder, {}).items():
                paths[above + name] = None if node.is_folder else content(node, moment, drawn, share=share, weak=weak)
                if node.is_folder:
                    walk(node, f"{above}{name}/")

        walk(self._top, "")
        return paths

    def _happened(self, moment: int, drawn: Random, *, weak: bool) -> list[NameChange]:
        """Which changes of names are on the disk, in their order."""
        changes = [change for change in self._changes if change.order <= moment]
        certain = [
            any(folder is self._top or folder.durable_at(moment) >= change.order for (folder, _), _ in change.names)
            for change in changes
        ]
        if not weak:
            least = max((n + 1 for n, is_certain in enumerate(certain) if is_certain), default=0)
            return changes[: drawn.choice([least, len(changes), drawn.randint(least, len(changes))])]
        share = drawn.choice([0.0, 0.5, 1.0, drawn.random()])
        needed, happened = set[Name](), []
        for change, is_certain in zip(reversed(changes), reversed(certain), strict=True):
            if is_certain or drawn.random() < share or any(name in needed for name, _ in change.names):
                needed |= {name for name, _ in change.names}
                happened.append(change)
        return happened[::-1]


def content(node: DiskNode, moment: int, drawn: Random, *, share: float, weak: bool) -> bytes:
    """What a file holds: all that is durable, and of the rest none, all, or (`share` 0.5) some."""
    durable = node.durable_at(moment)
    uncertain = sum(durable < order <= moment for order, _, _ in node.changes)
    remaining = uncertain if weak or share == 1 else drawn.randint(0, uncertain) if share else 0
    result = bytearray()
    for order, place, written in node.changes[: len(node.changes) - sum(w > moment for w, _, _ in node.changes)]:
        if order > durable:
            if not remaining:
                break
            remaining -= 1
            if written and not weak and not remaining and share == 0.5:
                written = written[: drawn.randint(0, len(written))]
            if written and weak and drawn.random() >= share:
                written = torn(bytes(result[place : place + len(written)]), place, written, drawn)
        if written is None:
            del result[place:]
        elif written:
            result += bytes(max(0, place - len(result)))
            result[place : place + len(written)] = written
    return bytes(result)


def torn(before: bytes, place: int, written: bytes, drawn: Random) -> bytes:
    """A write of which nothing, or only some sectors, reached the disk; the others are as before, or zeros."""
    if drawn.random() < 0.25:
        return b""
    before, share = before.ljust(len(written), b"\0"), drawn.choice([0.0, 0.5])
    result = bytearray(before)
    at = 0
    while at < len(written):
        end = min(len(written), at + SECTOR - (place + at) % SECTOR)
        if drawn.random() < share:
            result[at:end] = written[at:end]
        at = end
    return bytes(result)
