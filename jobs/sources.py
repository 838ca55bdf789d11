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
    from ..collectors.backend import Reading, Status
    from ..collectors.collect import open_backend
    from ..store.metrics import METRICS, Gpm

    try:
        opened = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return Finding("GPM", False, str(error).removeprefix("NVML: "), _GPM)
    assert opened is not None
    backend, devices = opened
    whole = {device.gpu: device.parent or device.gpu for device in devices}  # the GPU of each device
    rows = [row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm)]
    try:
        list(backend.read(list(whole), slow=True))
        time.sleep(_APART_S)
        readings = [reading for reading in backend.read(list(whole), slow=True) if isinstance(reading, Reading)]
    except InputError as error:
        return Finding("GPM", False, str(error).removeprefix("NVML: "), _GPM)
    finally:
        backend.close()
    numbers = {reading.gpu: sum(reading.statuses[row] == Status.OK for row in rows) for reading in readings}
    able = len({whole[gpu] for gpu, number in numbers.items() if number})
    if not able:
        detail = "no GPU of this node has it with this driver: it needs Hopper or newer"
        return Finding("GPM", False, detail, _GPM)
    return Finding(
        "GPM", True, f"{max(numbers.values())} metrics on {able} of {len(set(whole.values()))} GPUs", _GPM, number=able
    )


def page_finding(urls: Sequence[str]) -> Finding:
    """Whether the pages of exporters can be read, and the GPUs that they show."""
    from ..collectors.exporter.exporter import ExporterPages

    exporter = ExporterPages(url=urls)
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
