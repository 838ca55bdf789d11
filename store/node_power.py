"""How ipmitool spells the power of a node."""

from __future__ import annotations

import re

DCMI = re.compile(r"(?:Instantaneous power reading|Current Power) *:[ \t]*([0-9]+)[ \t]*Watts")
"""The power in what `ipmitool dcmi power reading` and FreeIPMI's `ipmi-dcmi` print."""
_INACTIVE = re.compile(r"Power reading state is *:[ \t]*deactivated")


def dcmi_watts(text: str) -> int | None:
    """The power in one answer of `ipmitool dcmi power reading`, W.

    None where there is no reading: measuring is deactivated, or the BMC says 0 W, which no running node draws.
    """
    match = DCMI.search(text)
    return None if match is None or _INACTIVE.search(text) else int(match[1]) or None
