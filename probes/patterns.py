"""What patterns over the memory, and by multiprocessor, come to: figures, and a sentence for what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import memory
from ..kernels.device import Device
from ..kernels.sm import multiprocessors
from ..kernels.work import Facts, Work
from .figures import Figure

TESTED_SHARE = 0.95
"""Of the free memory that is tested: allocators round up, and other processes may take a little meanwhile."""
LEAST_SHARE = 0.1
"""Of all memory: where less is free, a test of it would say next to nothing of the GPU."""
_MOST_TESTED = 0.8
"""A test of less is pointed out."""
_NAMED = 3
_OUTLYING = 6.0
"""Standard deviations, by the median absolute deviation, from which a multiprocessor is named as slower ..."""
_LEAST_OUTLYING = 0.005
"""... and by what share at least: the counters of time tick in steps."""


def memory_size(device: Device) -> int | str:
    """How many bytes to test on a device, or a sentence why that is not worth while."""
    free, total = device.free_bytes(), device.facts.memory_bytes
    if free >= LEAST_SHARE * total:
        return int(TESTED_SHARE * free)
    others = ", ".join(device.others()) or "processes that the driver does not name"
    return (
        f"only {free / 1e9:.3g} of {total / 1e9:.3g} GB of the memory are free, the rest is taken by {others}: "
        "run it when the GPU is free"
    )


@dataclass(frozen=True)
class Findings:
    """Figures, and what was found wrong in a few words."""

    figures: Sequence[Figure]
    detail: str | None = None
    """Where results were wrong; None where none were."""
    note: str | None = None
    """What is worth saying although no result was wrong."""
    conditions: Mapping[str, object] = field(default_factory=dict)


def of_memory(log: NDArray[Any], work: Work, facts: Facts) -> Findings:
    """Of patterns over the memory, by the log of `memory.cu`."""
    logged, total = memory.findings(log), facts.memory_bytes
    size = int(work.parameters["size"])
    figures = [
        Figure("memory_tested", "GB", size / 1e9),
        Figure("memory_share", "%", 100 * size / total),
        Figure("wrong_addresses", "", float(logged.addresses)),
        Figure("wrong_pages", "", float(logged.pages)),
    ]
    if not logged.errors:
        part = size < _MOST_TESTED * total
        return Findings(figures, note=f"only {100 * size / total:.0f} % of the memory were free" if part else None)
    first = "; ".join(map(str, logged.errors[:_NAMED]))
    count = len(logged.errors)
    return Findings(
        figures,
        f"{first}; the {count:,} errors that were written down are at {logged.addresses:,} addresses in "
        f"{logged.pages:,} pages of 64 KiB; bits of a word that rose from 0 to 1: {logged.rose:#010x}, that fell: "
        f"{logged.fell:#010x}",
    )


def of_multiprocessors(table: NDArray[Any], work: Work, facts: Facts) -> Findings:  # noqa: ARG001
    """Of patterns on each multiprocessor, by the table of `sm.cu`."""
    rows, sms = multiprocessors(table), facts.sms
    bad, slow = [row for row in rows if row.wrong], []
    figures = [Figure("sms_missed", "", float(sms - len(rows)))]
    if rows:
        times_us = np.array([row.block_us for row in rows])
        middle = float(np.median(times_us))
        deviation = 1.4826 * float(np.median(np.abs(times_us - middle)))
        limit_us = middle + max(_OUTLYING * deviation, _LEAST_OUTLYING * middle)
        slow = [row.number for row in rows if row.block_us > limit_us]
        slowest = max(rows, key=lambda row: row.block_us)
        figures += [
            Figure("sm_spread", "%", 100 * float(np.ptp(times_us)) / middle),
            Figure("slowest_sm", "", float(slowest.number)),
            Figure("slow_sms", "", float(len(slow))),
        ]
        for row in rows:
            figures.append(Figure("sm_time", "us", row.block_us, row.number))
            if row.clock_mhz is not None:
                figures.append(Figure("sm_clock", "MHz", row.clock_mhz, row.number))
            if row.wrong:
                figures.append(Figure("sm_wrong", "", float(row.wrong), row.number))
    notes = []
    if len(rows) < sms:
        notes.append(f"{sms - len(rows)} of {sms} multiprocessors were not reached")
    if slow:
        notes.append(f"slower than the others by more than those differ: multiprocessor {', '.join(map(str, slow))}")
    detail = "; ".join(map(str, bad[:_NAMED])) or None
    return Findings(figures, detail, "; ".join(notes) or None, {"slow_sms": slow})


FINDINGS: Mapping[str, tuple[str, Callable[[NDArray[Any], Work, Facts], Findings]]] = {
    "memory": ("log", of_memory),
    "sm": ("sms", of_multiprocessors),
}
"""By kernel: the buffer in which it writes what it found, and how to read it."""
