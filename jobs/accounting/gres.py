"""gres.conf of a node: which GPU each of Slurm's indices is. Only what it says for certain counts.

Slurm numbers the GPUs of a node from 0 in the order in which gres.conf lists their device files, line by line. With
AutoDetect it asks the driver instead, and numbers them in the order of their PCI addresses (older versions: of their
device files); this is certain where both orders are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ...errors import InputError
from ...store import hostlist

NOT_READ = (
    "on a part of a node whose gres.conf the tag could not read: set WHORL_SLURM_INDEX in the prolog, or tag in jobs"
)
NO_FILES = "on a part of a node for which gres.conf names no device files of GPUs"
INCLUDES = "on a part of a node whose gres.conf includes other files or is too long to be kept in a tag"
OTHER_ORDER = (
    "on a part of a node where Slurm detects GPUs itself (AutoDetect) and device files are numbered in another order "
    "than PCI addresses: list the files in gres.conf"
)
OTHER_FILES = "on a part of a node whose gres.conf names other device files than the driver has"
_FIELD = re.compile(r'([A-Za-z]+)=("[^"]*"|\S+)')
_FILE = re.compile(r"(.*[^0-9\[\]])?(?:([0-9]+)|\[([0-9,-]+)\])")


def gpus_by_index(
    lines: Sequence[str], node: str, gpus: Sequence[tuple[str, str]]
) -> tuple[Mapping[int, str] | None, str]:
    """The UUID of each index, or None and why that is not certain.

    `lines` are those of gres.conf about GPUs, `gpus` the UUID and the number of the device file of each GPU of the
    node, in the order of PCI addresses.
    """
    if not lines:
        return None, NOT_READ
    records = [_fields(line) for line in lines]
    if any("include" in line.lower() for line in lines):
        return None, INCLUDES
    try:
        here = [fields for fields in records if node in hostlist.expand(fields.get("nodename", node))]
    except InputError:
        return None, INCLUDES
    by_minor = {int(minor): uuid for uuid, minor in gpus if minor.isdecimal()}
    detects = [fields["autodetect"].lower() for fields in here if "autodetect" in fields]
    if detects and detects[-1] != "off":
        in_order = [uuid for _, uuid in sorted(by_minor.items())] == [uuid for uuid, _ in gpus]
        return (dict(enumerate(uuid for uuid, _ in gpus)), "") if in_order else (None, OTHER_ORDER)
    own = [fields for fields in here if fields.get("name", "").lower() == "gpu"]
    if not own or any("file" not in fields for fields in own):
        return None, NO_FILES
    minors = [minor for fields in own for minor in _numbers(fields["file"])]
    if len(set(minors)) < len(minors) or set(minors) != set(by_minor) or len(by_minor) < len(gpus):
        return None, OTHER_FILES
    return {index: by_minor[minor] for index, minor in enumerate(minors)}, ""


def _fields(line: str) -> dict[str, str]:
    return {name.lower(): value.strip('"') for name, value in _FIELD.findall(line)}


def _numbers(files: str) -> Iterator[int]:
    """The numbers of device files: /dev/nvidia[0-3], /dev/nvidia4; -1 for what is no such name."""
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", files):
        match = _FILE.fullmatch(name)
        if match is None:
            yield -1
        elif match[2]:
            yield int(match[2])
        else:
            for part in match[3].split(","):
                first, _, last = part.partition("-")
                yield from range(int(first or -1), int(last or first or -1) + 1)
