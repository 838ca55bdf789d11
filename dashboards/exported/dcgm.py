"""Readings under the names, labels and units of dcgm-exporter, for dashboards and alerts that were made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...store.metrics import METRICS, ROW
from .series import ONE, Kind, Labels, Series, columns

if TYPE_CHECKING:
    from ...store.newest import Gpu, Newest
    from .findings import Found

Identity = Mapping[str, object]
"""A row of `gpus_now`."""

XID = "DCGM_FI_DEV_XID_ERRORS"
_SCALED = {("mW", 1000): "W", ("B", 1 << 20): "MiB", ("ppm", 1_000_000): "0 to 1"}
NAMES = {metric.prometheus[-1]: metric for metric in METRICS if metric.prometheus}
"""By dcgm-exporter's name, of several the one that dashboards know: the metric."""


def labels_of(gpu: Gpu, row: Identity | None) -> Labels:
    """The labels of a GPU as dcgm-exporter writes them. What is not known is left out.

    Where nobody told the driver's own number, as a DCGM engine does not, the GPU's number is that of its slot.
    A MIG instance has its own UUID here, where dcgm-exporter writes that of the whole GPU and the number of the
    instance, which the store does not have.
    """
    row = row or {}
    index = row.get("nvml_index")
    if index is None:
        index = row.get("slot")
    known = {
        "gpu": index,
        "UUID": gpu[1],
        "pci_bus_id": row.get("pci_bus_id"),
        "device": None if index is None else f"nvidia{index}",
        "modelName": row.get("model"),
        "Hostname": row.get("node"),
        "GPU_I_PROFILE": row.get("mig_profile"),
        "DCGM_FI_DRIVER_VERSION": row.get("driver"),
    }
    return Labels(tuple((name, str(value)) for name, value in known.items() if value is not None))


def readings(newest: Newest, known: Found) -> list[Series]:
    """The newest readings with DCGM_FI_* names."""
    made = known.dcgm
    made |= {gpu: labels_of(gpu, known.rows.get(gpu)) for gpu in newest.gpus if gpu not in made}
    labels = [made[gpu] for gpu in newest.gpus]
    found = []
    for name, metric in NAMES.items():
        scale = metric.dcgm.scale if metric.dcgm is not None else 1
        unit = _SCALED.get((metric.unit, scale), metric.unit)
        kind: Kind = "counter" if metric.kind == "counter" else "gauge"
        mine, values, when = columns(newest, ROW[metric.name], labels)
        meaning = f"{metric.description} ({unit})" if unit else metric.description
        shown = (values if scale == 1 else values / scale).tolist()
        found.append(Series("", ONE, kind, meaning, mine, shown, when, spelled=name))
    whole = [gpu for gpu in newest.fresh.nonzero()[0].tolist() if "GPU_I_PROFILE" not in dict(labels[gpu].pairs)]
    last = [known.last_xid.get(newest.gpus[gpu], 0) for gpu in whole]
    meaning = "number of the last XID error that is stored; 0 where there is none"
    return [
        *found,
        Series("", ONE, "gauge", meaning, [labels[g] for g in whole], last, newest.seen[whole].tolist(), spelled=XID),
    ]
