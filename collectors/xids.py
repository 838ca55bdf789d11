"""XIDs, the numbers by which NVIDIA's driver tells of errors, as events."""

from __future__ import annotations

from ..store.events import Event
from ..store.vocabulary import EventKind

FALLEN = 79
_XIDS = {  # the common ones, in words; NVIDIA's "XID Errors" lists them all
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping",
    64: "ECC page retirement or row remapping failed",
    74: "NVLink error",
    FALLEN: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}


def xid_event(gpu: str | None, code: int, *, ts_ns: int | None = None, pci_bus_id: str | None = None) -> Event:
    """An XID of a GPU (its UUID, and where on its node it is) as an event; without a time, it happened now."""
    meaning = _XIDS.get(code, "see NVIDIA's list of XID errors")
    return Event(EventKind.XID, gpu, f"XID {code}: {meaning}", ts_ns=ts_ns, pci_bus_id=pci_bus_id, code=code)
