"""What profiling the driver itself gives, and whether exporters answer: findings of `whorl doctor`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..errors import InputError
from ..store.events import Event
from ..store.vocabulary import EventKind
from .finding import Finding

_GPM, _PAGES = "profiling metrics without DCGM", "collect --backend prometheus"
_APART_S = 0.15  # between the two looks of GPM


def gpm_finding() -> Finding:
    """Whether the driver gives profiling metrics by itself (GPM)."""
    from ..collectors.backends import Status
    from ..collectors.collecting import open_backend
    from ..store.metrics import METRICS, Gpm

    try:
        backend = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return Finding("GPM", False, str(error).removeprefix("NVML: "), _GPM)
    assert backend is not None
    devices = backend.devices()
    for looks in range(2):
        if looks:
            time.sleep(_APART_S)
        for device in range(len(devices)):
            backend.read(device, slow=True)
        status = backend.sweep([0] * len(devices)).status
    rows = [row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm)]
    backend.close()
    given = (status[rows] == Status.OK).sum(axis=0).tolist()
    whole = [at if one.parent is None else one.parent for at, one in enumerate(devices)]  # GPU of each device
    able = len({gpu for gpu, number in zip(whole, given, strict=True) if number})
    if not able:
        detail = "no GPU of this node has it with this driver: it needs Hopper or newer"
        return Finding("GPM", False, detail, _GPM)
    return Finding("GPM", True, f"{max(given)} metrics on {able} of {len(set(whole))} GPUs", _GPM, number=able)


def page_finding(urls: Sequence[str]) -> Finding:
    """Whether the pages of exporters can be read, and the GPUs that they show."""
    from ..collectors.exporter.exporter import Exporter

    exporter = Exporter(url=urls)
    try:
        devices = exporter.devices()
        events = [reading for reading in exporter.read([], slow=True) if isinstance(reading, Event)]
    except InputError as error:
        return Finding("exporters", False, str(error), _PAGES)
    finally:
        exporter.close()
    number = sum(device.parent is None for device in devices)
    shown = f"{number} GPU{'s' * (number != 1)} on {len(urls)} page{'s' * (len(urls) != 1)}"
    wrong = any(event.kind == EventKind.SOURCE_GONE for event in events)
    detail = "; ".join([shown, *(event.detail for event in events)])
    return Finding("exporters", not wrong, detail, _PAGES, number=number)
