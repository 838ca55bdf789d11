"""Tags of prologs and epilogs as allocations of GPUs: the script that writes them, and what begins and ends pair to.

`store.importing.tags` reads the files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...store.importing.tags import BOOT_SLACK_S, SPOOL, TagEvent
from ...store.names import this_cluster
from ...store.system import files
from ...store.vocabulary import GpuFrom, JobSource, TagState
from .mapping import gpus_of

SCRIPT = "tag.sh"


# -- the script -----------------------------------------------------------------------------------------------


def script() -> str:
    """The shell script of prologs and epilogs, as text."""
    return resources(__package__).joinpath(SCRIPT).read_text(encoding="utf-8")


def tag(event: str, *, store: str | Path | None = None, folder: Path | None = None) -> str:
    """Note that the job of this process begins or ends; returns what the script complains about, "" if nothing.

    The tag goes into `folder`, else into the store's own folder of tags. Raises InputError where neither is given,
    StoreError where that folder cannot be made.
    """
    if folder is None:
        if store is None:
            raise InputError("say where the tag goes: its folder, or --store S for the store's own folder")
        folder = Path(store) / SPOOL
        try:
            files.make_folder(folder)
        except OSError as error:
            raise files.failed("make", folder, error) from error
    done = subprocess.run(  # noqa: S603  whorl's own script
        ["/bin/sh", "-s", "--", event, str(folder)], input=script(), capture_output=True, text=True, check=False
    )
    return done.stderr.strip()


# -- allocations ----------------------------------------------------------------------------------------------


@dataclass
class Tag:
    """An allocation on one node, as its tags say it; `rows` are its rows of `jobs` without times and state."""

    allocation: str
    cluster: str
    node: str
    job: str
    restart: int | None
    began_s: int
    ended_s: int | None
    state: str
    rows: list[dict[str, Any]]

    @property
    def key(self) -> tuple[str, str]:
        return self.cluster, self.allocation

    @property
    def unshared(self) -> set[str]:
        """GPUs that nobody else can have at the same time."""
        return {row["gpu"] for row in self.rows if row["gpu"] is not None and row["share"] == 1}

    def as_rows(self) -> list[dict[str, Any]]:
        job = {
            "cluster": self.cluster,
            "allocation": self.allocation,
            "node": self.node,
            "raw_id": self.job,
            "restart": self.restart,
            "state": self.state,
            "source": JobSource.TAG.value,
            "began": _time(self.began_s),
            "ended": None if self.ended_s is None else _time(self.ended_s),
        }
        return [{**row, **job} for row in self.rows]

    def begins_as(self, event: TagEvent) -> bool:
        """Whether a begin is told twice: by the same file again, or by the prolog and the job."""
        if self.began_s == event.at_s:
            return True
        again = self.restart is not None and self.restart == event.restart
        return again and self.began_s <= event.at_s and (self.ended_s is None or event.at_s <= self.ended_s)


@dataclass
class Joined:
    """Allocations that begin and end tags give: those that are new or changed, and what was left over."""

    tags: list[Tag]
    ends_alone: int = 0
    backward: int = 0
    unknown: dict[str, int] = field(default_factory=dict)  # why the GPUs are not certain -> how many


def join(events: Sequence[TagEvent], stored: Sequence[Tag], cluster: str | None, capacity: Mapping[str, int]) -> Joined:
    """Pair begins with ends, and close what has no end: at the boot of its node, or when the next job has its GPU.

    `stored` are earlier tags that may belong to these. `cluster` overrides what the tags say. `capacity` says how many
    GPUs a node has (`mapping.gpus_of`).
    """
    joined = Joined([])
    tags = {tag.key: tag for tag in stored}
    of_job: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for tag in stored:
        of_job.setdefault((tag.cluster, tag.node, tag.job), []).append(tag.key)
    in_order = [(cluster or event.text.get("cluster") or this_cluster(), event) for event in events]
    in_order.sort(key=lambda pair: pair[1].at_s)
    begins: dict[tuple[str, str], list[TagEvent]] = {}
    for place, event in in_order:
        if event.kind == "begin":
            runs = of_job.setdefault((place, event.node, event.job), [])
            if not any(tags[key].begins_as(event) for key in runs):
                tag = _begun(place, event, joined, gpus_of(event.node, capacity))
                tags[tag.key] = tag
                runs.append(tag.key)
                begins.setdefault((place, event.node), []).append(event)
    for place, event in in_order:
        if event.kind == "end":
            _end(event, of_job.get((place, event.node, event.job), []), tags, joined)
    without_end: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for tag in tags.values():
        if tag.state != TagState.ENDED:
            without_end.setdefault((tag.cluster, tag.node), []).append(tag.key)
    for on_node, node_begins in begins.items():
        for event in node_begins:
            without_end[on_node] = [key for key in without_end.get(on_node, []) if not _close(key, event, tags)]
    joined.tags = list(tags.values())
    return joined


def _begun(cluster: str, event: TagEvent, joined: Joined, of_node: int | None) -> Tag:
    uuids, count, why = event.job_gpus(of_node)
    if uuids is None:
        joined.unknown[why] = joined.unknown.get(why, 0) + 1
    text = event.text.get
    job = {
        "job_id": text("array") or event.job,
        "user": text("user") or text("uid"),
        "account": text("account"),
        "partition": text("partition"),
        "gpu_from": None if uuids is None else GpuFrom.TAG.value,
        "share": None if uuids is None or "shared" in event.text else 1.0,
    }
    gpus: list[str | None] = [None] if uuids is None else [*uuids]
    return Tag(
        allocation=event.allocation,
        cluster=cluster,
        node=event.node,
        job=event.job,
        restart=event.restart,
        began_s=event.at_s,
        ended_s=None,
        state=TagState.RUNNING.value,
        rows=[{**job, "gpu": gpu, "node_gpus": count if gpu is None else 1} for gpu in gpus],
    )


def _end(event: TagEvent, keys: Sequence[tuple[str, str]], tags: dict[tuple[str, str], Tag], joined: Joined) -> None:
    """The end of the last allocation of this job on this node that began before."""
    runs = [
        tags[key] for key in keys if None in (tags[key].restart, event.restart) or tags[key].restart == event.restart
    ]
    before = [tag for tag in runs if tag.began_s <= event.at_s]
    if not before:
        joined.ends_alone += not runs
        joined.backward += bool(runs)
        return
    latest = max(before, key=lambda tag: tag.began_s)
    if latest.state != TagState.ENDED:
        tags[latest.key] = replace(latest, ended_s=event.at_s, state=TagState.ENDED.value)


def _close(key: tuple[str, str], event: TagEvent, tags: dict[tuple[str, str], Tag]) -> bool:
    """End an allocation without an end, if it must have ended when another job began on its node."""
    tag, following = tags[key], (key[0], event.allocation)
    if key == following or tag.began_s > event.at_s:
        return False
    ends = [event.at_s] if tag.unshared & tags[following].unshared or tag.job == event.job else []
    if event.booted_s is not None and event.booted_s > tag.began_s + BOOT_SLACK_S:
        ends.append(event.booted_s)
    if not ends:
        return False
    if tag.ended_s is None or min(ends) < tag.ended_s:
        tags[key] = replace(tag, ended_s=max(min(ends), tag.began_s), state=TagState.LOST.value)
    return True


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
