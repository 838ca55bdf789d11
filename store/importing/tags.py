"""Tags of prologs and epilogs: small files, one an event, that say which GPUs of a node a job of Slurm has.

Slurm tells a prolog the indices of a job's GPUs. An index is the place of a device file in gres.conf, and with
AutoDetect the place by PCI address (in some versions: by device file). A tag holds this node's lines of gres.conf and
the UUID and device file of each GPU, so that an index is taken for a GPU only where that is certain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ...errors import InputError
from .. import hostlist
from ..system import files

SPOOL = "tags"
"""The folder of a store's own tags."""
_HEX = "[0-9a-fA-F]"
_UUID_BODY = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"  # CUDA takes the beginning of a UUID as well
_UUID = re.compile(f"GPU-{_UUID_BODY}|MIG-{_UUID_BODY}|MIG-GPU-{_UUID_BODY}/[0-9]+/[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIELD = re.compile(r'([A-Za-z]+)=("[^"]*"|\S+)')
_FILE = re.compile(r"(?:.*[^0-9\[\]])?(?:([0-9]+)|\[([0-9,-]+)\])")
BOOT_SLACK_S = 120  # the time of booting moves a little, as the clock is set
_LONGEST = 1 << 16  # bytes
_FIRST_S, _LAST_S = 631_152_000, 4_102_444_800  # 1990 to 2100

NO_LIST = "on a node whose GPUs the tag could not list"
NO_NUMBER = "on a node of which nobody said how many GPUs it has (give --set gpus-per-node=N)"
OTHER_NUMBER = "on a node whose driver listed another number of GPUs than Slurm has for it"
INSTANCES = "on a part of a node with MIG instances, and no UUIDs in CUDA_VISIBLE_DEVICES"
GRES_NOT_READ = (
    "on a part of a node whose gres.conf the tag could not read: set WHORL_SLURM_INDEX in the prolog, or tag in jobs"
)
GRES_NO_FILES = "on a part of a node for which gres.conf names no device files of GPUs"
GRES_INCLUDES = "on a part of a node whose gres.conf includes other files or is too long to be kept in a tag"
GRES_OTHER_ORDER = (
    "on a part of a node where Slurm detects GPUs itself (AutoDetect) and device files are numbered in another order "
    "than PCI addresses: list the files in gres.conf"
)
GRES_OTHER_FILES = "on a part of a node whose gres.conf names other device files than the driver has"


@dataclass(frozen=True)
class TagEvent:
    """What one tag says."""

    kind: str  # begin | end
    at_s: int  # since 1970
    node: str
    job: str
    text: Mapping[str, str]
    gpus: tuple[tuple[str, str], ...]  # of the node, by PCI address: UUID, number of its device file
    gres: tuple[str, ...] = ()  # lines of gres.conf
    of_site: bool = False  # its file belongs to root or to who reads it: it may tell of other users' jobs

    @property
    def allocation(self) -> str:
        return f"{self.job}@{self.node}@{self.at_s}"

    @property
    def restart(self) -> int | None:
        count = self.text.get("restart", "")
        return int(count) if count.isdigit() and len(count) < 9 else None

    @property
    def booted_s(self) -> int | None:
        boot = self.text.get("booted", "")
        return int(boot) if boot.isdigit() and _FIRST_S < int(boot) <= self.at_s + BOOT_SLACK_S else None

    @property
    def visible(self) -> list[str] | None:
        """The UUIDs in CUDA_VISIBLE_DEVICES; None where it holds something else."""
        names = self.text.get("visible", "").split(",")
        return sorted(names) if all(_UUID.fullmatch(name) for name in names) else None

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
        count = None if indices is None else len(indices)
        if indices is None or not self.gpus:
            return None, count, NO_LIST
        uuids = [uuid for uuid, _ in self.gpus]
        reachable = sorted(filter(None, self.text.get("reachable", "").split(",")))
        if len(reachable) == count and set(reachable) < set(uuids):  # the job's cgroup hides the others
            return reachable, count, ""
        if "mig" in self.text:
            return None, count, INSTANCES
        by_index, why = gpus_by_index(self.gres, self.node, self.gpus, number)
        if by_index is None and number is None:
            return None, count, NO_NUMBER
        if number not in (None, len(uuids)):
            return None, count, OTHER_NUMBER
        if count == len(uuids):
            return sorted(uuids), count, ""
        if self.text.get("slurm_index") == "minor":
            by_index, why = {int(minor): uuid for uuid, minor in self.gpus if minor.isdecimal()}, NO_LIST
        if by_index is None or not set(indices) <= set(by_index) or len(by_index) < len(uuids):
            return None, count, why or OTHER_NUMBER
        return sorted(by_index[index] for index in indices), count, ""


def gpus_by_index(
    lines: Sequence[str], node: str, gpus: Sequence[tuple[str, str]], number: int | None
) -> tuple[Mapping[int, str] | None, str]:
    """The UUID of each of Slurm's indices, or None and why that is not certain.

    `lines` are those of gres.conf about GPUs, `gpus` the UUID and the number of the device file of each GPU of the
    node, in the order of PCI addresses. With AutoDetect, `number` must say how many GPUs Slurm has for the node: where
    one has vanished from the driver's list, all that stand behind it have moved.
    """
    if not lines:
        return None, GRES_NOT_READ
    records = [{name.lower(): value.strip('"') for name, value in _FIELD.findall(line)} for line in lines]
    try:
        of_node = [record for record in records if node in hostlist.expand(record.get("nodename", node))]
    except InputError:
        return None, GRES_INCLUDES
    if any("include" in line.lower() for line in lines):
        return None, GRES_INCLUDES
    by_minor = {int(minor): uuid for uuid, minor in gpus if minor.isdecimal()}
    detects = [record["autodetect"].lower() for record in of_node if "autodetect" in record]
    if detects and detects[-1] != "off":
        if number is None:
            return None, NO_NUMBER
        by_address = [uuid for uuid, _ in gpus]
        in_order = [uuid for _, uuid in sorted(by_minor.items())] == by_address
        return (dict(enumerate(by_address)), "") if in_order else (None, GRES_OTHER_ORDER)
    of_gpus = [record for record in of_node if record.get("name", "").lower() == "gpu"]
    if not of_gpus or any("file" not in record for record in of_gpus):
        return None, GRES_NO_FILES
    minors = [minor for record in of_gpus for minor in _device_numbers(record["file"])]
    if len(set(minors)) < len(minors) or set(minors) != set(by_minor) or len(by_minor) < len(gpus):
        return None, GRES_OTHER_FILES
    return {index: by_minor[minor] for index, minor in enumerate(minors)}, ""


def _device_numbers(names: str) -> Iterator[int]:
    """The numbers of device files: /dev/nvidia[0-3],/dev/nvidia4; -1 for what is no such name."""
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        match = _FILE.fullmatch(name)
        yield from _numbers(match[1] or match[2]) or [-1] if match else [-1]


def _numbers(text: str) -> list[int] | None:
    """Indices: 0,1 or 0-3; None where it is something else."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers if len(set(numbers)) == len(numbers) else None


@dataclass
class Spool:
    """The events of some folders."""

    events: list[TagEvent] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)  # reason -> names of files


def read(folders: Iterable[Path]) -> Spool:
    """The tags in folders. One that cannot be used is refused with its name. Raises InputError for a missing folder."""
    spool = Spool()
    for folder in folders:
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".tag" and path.name[0] != ".")
        except OSError as error:
            raise InputError(f"--tags {folder} cannot be read: {error.strerror}") from error
        for path in paths:
            event = _event(path)
            if isinstance(event, str):
                spool.refused.setdefault(event, []).append(path.name)
            else:
                spool.events.append(event)
                spool.files.append(path)
    return spool


def _event(path: Path) -> TagEvent | str:
    """What a tag says, or why it cannot be used."""
    try:
        with files.opened(path) as file:
            owner = os.fstat(file.fileno()).st_uid
            content = file.read(_LONGEST + 1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    lines = content.decode("utf-8", "replace").splitlines()
    if len(content) > _LONGEST or lines[:1] != ["whorl-tag=1"] or lines[-1:] != ["end=1"]:
        return "it is no whole tag of whorl"
    pairs = [(key, value) for key, _, value in (line.partition("=") for line in lines)]
    text = {key: value for key, value in pairs if key not in ("gpu", "gres") and value}
    gpus = [(uuid, minor) for uuid, _, minor in (value.partition(":") for key, value in pairs if key == "gpu")]
    if not all(_UUID.fullmatch(uuid) for uuid, _ in gpus):
        return "it names a GPU that is no UUID"
    at_s = text.get("time", "")
    if not (at_s.isdigit() and _FIRST_S < int(at_s) < _LAST_S and text.get("event") in ("begin", "end")):
        return "it does not say when something began or ended"
    if not (_NAME.fullmatch(text.get("node", "")) and _NAME.fullmatch(text.get("job", ""))):
        return "it does not name a node and a job"
    # A user who may write into the folder tells of his own jobs only.
    of_site = owner in (0, os.geteuid())
    if not of_site and str(owner) != text.get("uid"):
        return "its file belongs to another user than its job"
    gres = tuple(value for key, value in pairs if key == "gres")
    return TagEvent(
        text["event"], int(at_s), text["node"], text["job"], text, tuple(dict.fromkeys(gpus)), gres, of_site
    )


def slurm_order(folder: Path, cluster: str) -> Callable[[str, datetime], Mapping[int, str]]:
    """Which GPU Slurm's indices were on a node when a job began (UTC), by the tags in a folder: index -> UUID.

    A tag that was written after the job began, or up to two minutes before, tells of it if the node was not booted
    between: cards stay in their places while a node is up. Only tags of root or of who reads them count, and only where
    gres.conf names the device files. Where no tag tells, the mapping is empty.
    """

    @cache
    def events_of_nodes() -> Mapping[str, Sequence[TagEvent]]:
        by_node: dict[str, list[TagEvent]] = {}
        for event in read([folder]).events if folder.is_dir() else ():
            if event.of_site and event.text.get("cluster", cluster) == cluster and "mig" not in event.text:
                by_node.setdefault(event.node, []).append(event)
        return by_node

    @cache
    def by_index(node: str, began: datetime) -> Mapping[int, str]:
        began_s = began.replace(tzinfo=UTC).timestamp()
        for event in events_of_nodes().get(node, ()):
            if event.booted_s is not None and event.booted_s <= began_s <= event.at_s + BOOT_SLACK_S:
                order, _ = gpus_by_index(event.gres, node, event.gpus, None)
                if order is not None:
                    return order
        return {}

    return by_index
