"""Tags of prologs and epilogs (tag.sh): small files, one an event, as allocations of GPUs by UUID."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...store.names import this_cluster
from ...store.system import files
from ...store.vocabulary import GpuFrom, JobSource, TagState
from .gres import gpus_by_index

_HEX = "[0-9a-fA-F]"
_WHOLE = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"  # CUDA takes the beginning of a UUID as well
_UUID = re.compile(f"GPU-{_WHOLE}|MIG-{_WHOLE}|MIG-GPU-{_WHOLE}/[0-9]+/[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_BOOT_SLACK_S = 120  # the time of booting moves a little, as the clock is set
_LONGEST = 1 << 16  # bytes
_FIRST, _LAST = 631_152_000, 4_102_444_800  # 1990 to 2100
INSTANCES = "on a part of a node with MIG instances, and no UUIDs in CUDA_VISIBLE_DEVICES"
NO_LIST = "on a node whose GPUs the tag could not list"
NO_NUMBER = "on a node of which nobody said how many GPUs it has (give --gpus-per-node)"
OTHER_NUMBER = "on a node whose driver listed another number of GPUs than Slurm has for it"


@dataclass(frozen=True)
class Event:
    """What one tag says."""

    kind: str  # begin | end
    at: int  # s since 1970
    node: str
    job: str
    text: dict[str, str]
    gpus: tuple[tuple[str, str], ...]  # of the node, by PCI address: UUID, number of its device file
    gres: tuple[str, ...] = ()  # lines of gres.conf

    @property
    def restart(self) -> int | None:
        said = self.text.get("restart", "")
        return int(said) if said.isdigit() and len(said) < 9 else None

    @property
    def booted(self) -> int | None:
        said = self.text.get("booted", "")
        return int(said) if said.isdigit() and _FIRST < int(said) <= self.at + _BOOT_SLACK_S else None

    @property
    def visible(self) -> list[str] | None:
        """The UUIDs in CUDA_VISIBLE_DEVICES; None where it holds something else."""
        found = self.text.get("visible", "").split(",")
        return sorted(found) if all(_UUID.fullmatch(one) for one in found) else None

    @property
    def by_index(self) -> bool:
        """Whether only indices say which GPUs the job has."""
        return self.kind == "begin" and bool(self.gpus) and self.visible is None

    def job_gpus(self, number: int | None) -> tuple[list[str] | None, int | None, str]:
        """The UUIDs of the job's GPUs, or None; how many it has; and why they are not certain.

        `number` is how many GPUs the node has by the scheduler's configuration. Where the driver listed fewer, no
        index counts: nobody knows which GPU is missing.
        """
        if self.visible is not None:
            return self.visible, len(self.visible), ""
        indices = _numbers(self.text.get("slurm_gpus", ""))
        if indices is None or not self.gpus:
            return None, None if indices is None else len(indices), NO_LIST
        reachable = sorted(filter(None, self.text.get("reachable", "").split(",")))
        if len(reachable) == len(indices) < len(self.gpus) and set(reachable) < {uuid for uuid, _ in self.gpus}:
            return reachable, len(indices), ""
        if "mig" in self.text:
            return None, len(indices), INSTANCES
        by_index, why = gpus_by_index(self.gres, self.node, self.gpus)
        if by_index is None and number is None:
            return None, len(indices), NO_NUMBER
        if number is not None and number != len(self.gpus):
            return None, len(indices), OTHER_NUMBER
        if len(indices) == len(self.gpus):
            return sorted(uuid for uuid, _ in self.gpus), len(indices), ""
        if self.text.get("slurm_index") == "minor":
            by_index, why = {int(minor): uuid for uuid, minor in self.gpus if minor.isdecimal()}, NO_LIST
        if by_index is None or not set(indices) <= set(by_index) or len(by_index) < len(self.gpus):
            return None, len(indices), why or OTHER_NUMBER
        return sorted(by_index[index] for index in indices), len(indices), ""


@dataclass
class Tag:
    """An allocation on one node, as its tags say it; `rows` are its rows of `jobs` without times and state."""

    allocation: str
    cluster: str
    node: str
    job: str
    restart: int | None
    began: int
    ended: int | None
    state: str
    rows: list[dict[str, Any]]

    @property
    def whole(self) -> set[str]:
        """GPUs that nobody else can have at the same time."""
        return {row["gpu"] for row in self.rows if row["gpu"] is not None and row["share"] == 1}

    def as_rows(self) -> list[dict[str, Any]]:
        own: dict[str, Any] = {
            "cluster": self.cluster,
            "allocation": self.allocation,
            "node": self.node,
            "raw_id": self.job,
        }
        own |= {"restart": self.restart, "state": self.state, "source": JobSource.TAG.value}
        times = {"began": _time(self.began), "ended": None if self.ended is None else _time(self.ended)}
        return [{**row, **own, **times} for row in self.rows]


@dataclass
class Spool:
    """The events of some folders."""

    events: list[Event] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)  # reason -> names of files


def read(folders: Iterable[Path]) -> Spool:
    """The tags in folders. One that cannot be used is refused with its name. Raises InputError for a missing folder."""
    out = Spool()
    for folder in folders:
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".tag" and path.name[0] != ".")
        except OSError as error:
            raise InputError(f"--tags {folder} cannot be read: {error.strerror}") from error
        for path in paths:
            found = _event(path)
            if isinstance(found, str):
                out.refused.setdefault(found, []).append(path.name)
            else:
                out.events.append(found)
                out.files.append(path)
    return out


def _event(path: Path) -> Event | str:
    """What a tag says, or why it cannot be used."""
    try:
        with files.opened(path) as file:
            about = os.fstat(file.fileno())
            content = file.read(_LONGEST + 1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    lines = content.decode("utf-8", "replace").splitlines()
    if len(content) > _LONGEST or lines[:1] != ["whorl-tag=1"] or lines[-1:] != ["end=1"]:
        return "it is no whole tag of whorl"
    text, gpus, gres = {}, [], []
    for line in lines:
        key, _, value = line.partition("=")
        if key == "gpu":
            uuid, _, minor = value.partition(":")
            if not _UUID.fullmatch(uuid):
                return "it names a GPU that is no UUID"
            gpus.append((uuid, minor))
        elif key == "gres":
            gres.append(value)
        elif value:
            text[key] = value
    at = text.get("time", "")
    if not (at.isdigit() and _FIRST < int(at) < _LAST and text.get("event") in ("begin", "end")):
        return "it does not say when something began or ended"
    if not (_NAME.fullmatch(text.get("node", "")) and _NAME.fullmatch(text.get("job", ""))):
        return "it does not name a node and a job"
    # A user who may write into the folder tells of his own jobs only.
    if about.st_uid not in (0, os.geteuid()) and str(about.st_uid) != text.get("uid"):
        return "its file belongs to another user than its job"
    return Event(text["event"], int(at), text["node"], text["job"], text, tuple(dict.fromkeys(gpus)), tuple(gres))


@dataclass
class Joined:
    """Allocations that begin and end tags give: those that are new or changed, and what was left over."""

    tags: list[Tag]
    ends_alone: int = 0
    backward: int = 0
    unknown: dict[str, int] = field(default_factory=dict)  # why the GPUs are not certain -> how many


def join(
    events: Sequence[Event], stored: Sequence[Tag], cluster: str | None, number: Callable[[str], int | None]
) -> Joined:
    """Pair begins with ends, and close what has no end: at the boot of its node, or when the next job has its GPU.

    `stored` are earlier tags that may belong to these. `cluster` overrides what the tags say. `number` says how many
    GPUs a node has.
    """
    out = Joined([])
    known = {(tag.cluster, tag.allocation): tag for tag in stored}
    of_job: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for key, tag in known.items():
        of_job.setdefault((tag.cluster, tag.node, tag.job), []).append(key)
    named = [(cluster or event.text.get("cluster") or this_cluster(), event) for event in events]
    named.sort(key=lambda one: one[1].at)
    begins: dict[tuple[str, str], list[Event]] = {}
    for where, event in named:
        if event.kind == "begin":
            mine = of_job.setdefault((where, event.node, event.job), [])
            if any(_same(known[key], event) for key in mine):
                continue
            made = _begun(where, event, out, number(event.node))
            known[where, made.allocation] = made
            mine.append((where, made.allocation))
            begins.setdefault((where, event.node), []).append(event)
    for where, event in named:
        if event.kind == "end":
            _end(event, of_job.get((where, event.node, event.job), []), known, out)
    without_end: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, tag in known.items():
        if tag.state != TagState.ENDED:
            without_end.setdefault((tag.cluster, tag.node), []).append(key)
    for place, events_there in begins.items():
        for event in events_there:
            without_end[place] = [key for key in without_end.get(place, []) if not _close(key, event, known)]
    out.tags = list(known.values())
    return out


def _same(tag: Tag, event: Event) -> bool:
    """Whether a begin is told twice: by the same file again, or by the prolog and the job."""
    if tag.began == event.at:
        return True
    again = tag.restart is not None and tag.restart == event.restart
    return again and tag.began <= event.at and (tag.ended is None or event.at <= tag.ended)


def _begun(cluster: str, event: Event, out: Joined, of_node: int | None) -> Tag:
    uuids, number, why = event.job_gpus(of_node)
    if uuids is None:
        out.unknown[why] = out.unknown.get(why, 0) + 1
    say = event.text.get
    common = {
        "job_id": say("array") or event.job,
        "user": say("user") or say("uid"),
        "account": say("account"),
        "partition": say("partition"),
        "gpu_from": None if uuids is None else GpuFrom.TAG.value,
        "share": None if uuids is None or "shared" in event.text else 1.0,
    }
    gpus: list[str | None] = [None] if uuids is None else [*uuids]
    rows = [{**common, "gpu": gpu, "node_gpus": number if gpu is None else 1} for gpu in gpus]
    return Tag(
        _name_of(event), cluster, event.node, event.job, event.restart, event.at, None, TagState.RUNNING.value, rows
    )


def _end(event: Event, mine: list[tuple[str, str]], known: dict[tuple[str, str], Tag], out: Joined) -> None:
    """The end of the last allocation of this job on this node that began before."""
    runs = [
        key
        for key in mine
        if known[key].restart is None or event.restart is None or known[key].restart == event.restart
    ]
    before = [key for key in runs if known[key].began <= event.at]
    if not before:
        out.ends_alone += not runs
        out.backward += bool(runs)
        return
    last = max(before, key=lambda key: known[key].began)
    if known[last].state != TagState.ENDED:
        known[last] = replace(known[last], ended=event.at, state=TagState.ENDED.value)


def _close(key: tuple[str, str], event: Event, known: dict[tuple[str, str], Tag]) -> bool:
    """End an allocation without an end, if it must have ended when another job began on its node."""
    tag, own = known[key], (key[0], _name_of(event))
    if key == own or tag.began > event.at:
        return False
    ends = [event.at] if tag.whole & known[own].whole or tag.job == event.job else []
    ends += [event.booted] if event.booted is not None and event.booted > tag.began + _BOOT_SLACK_S else []
    if not ends:
        return False
    if tag.ended is None or min(ends) < tag.ended:
        known[key] = replace(tag, ended=max(min(ends), tag.began), state=TagState.LOST.value)
    return True


def _name_of(event: Event) -> str:
    return f"{event.job}@{event.node}@{event.at}"


def _numbers(text: str) -> list[int] | None:
    """Indices: 0,1 or 0-3; None where it is something else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found if len(set(found)) == len(found) else None


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
