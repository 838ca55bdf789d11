"""Series: named values of GPUs in base units.

Those of the newest readings are made from the rows of METRICS, also under the names, labels and units of dcgm-exporter,
for dashboards and alerts that were made for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from ...store.metrics import METRICS, ROW, Metric
from ...store.vocabulary import CLOCK_EVENTS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...store.newest import Gpu, Newest


@dataclass(frozen=True, slots=True)
class Unit:
    """A base unit: its word in a name, its code (UCUM), and what a stored value is divided and multiplied by."""

    word: str
    code: str
    over: int = 1
    times: int = 1
    ending: str = ""
    """How the name of a column in the stored unit ends."""


UNITS = {
    "mW": Unit("watts", "W", over=1000, ending="_mw"),
    "mJ": Unit("joules", "J", over=1000, ending="_mj"),
    "MHz": Unit("hertz", "Hz", times=1_000_000, ending="_mhz"),
    "degC": Unit("celsius", "Cel", ending="_c"),
    "%": Unit("ratio", "1", over=100),
    "ppm": Unit("ratio", "1", over=1_000_000, ending="_ppm"),
    "ms": Unit("seconds", "s", over=1000, ending="_ms"),
    "us": Unit("seconds", "s", over=1_000_000, ending="_us"),
    "ns": Unit("seconds", "s", over=1_000_000_000, ending="_ns"),
    "B": Unit("bytes", "By", ending="_bytes"),
    "B/s": Unit("bytes_per_second", "By/s", ending="_bytes_per_s"),
    "": Unit("", "1"),
}
"""By the unit of a column of `telemetry`."""
ONE, SECONDS = UNITS[""], Unit("seconds", "s")
TIMESTAMP, RATIO = Unit("timestamp_seconds", "s"), Unit("ratio", "1")

Kind = Literal["gauge", "counter", "info"]
Labels = Mapping[str, str]
Point = tuple[Labels, float, int]
"""What it is about, the value, and when it was so (ns since 1970)."""


@dataclass(frozen=True)
class Series:
    """A named value of many GPUs. `unit` is a base unit; an info has the value 1, and what it says are its labels.

    A page of a large fleet has hundreds of thousands of points, so they lie in columns.
    """

    name: str
    """Without the unit, as `gpu_power`."""
    unit: Unit
    kind: Kind
    help: str
    labels: Sequence[Labels]
    values: Sequence[float]
    times: Sequence[int]
    spelled: str = ""
    """The whole name, where another tool has chosen it."""

    @property
    def points(self) -> Iterator[Point]:
        """Each label with its value and time."""
        return zip(self.labels, self.values, self.times, strict=True)

    @property
    def prometheus(self) -> str:
        """The name by Prometheus' conventions."""
        if self.spelled:
            return self.spelled
        parts = ["whorl", self.name]
        if self.unit.word and not self.name.endswith(self.unit.word):
            parts.append(self.unit.word)
        ending = {"counter": "total", "info": "info", "gauge": ""}[self.kind]
        return "_".join([*parts, ending] if ending else parts)

    def family(self) -> Family:
        """The series as Prometheus' client takes it. Of a name that another tool has chosen the kind is left out, as
        the client would give a counter another name."""
        name = self.prometheus
        plain = name.removesuffix("_total").removesuffix("_info")
        family = Family(name, self.help, "unknown") if self.spelled else Family(plain, self.help, self.kind)
        family.samples = [
            Sample(name, labels, value)  # type: ignore[arg-type]  # it only reads the labels
            for labels, value in zip(self.labels, self.values, strict=True)
        ]
        return family


def series(name: str, unit: Unit, kind: Kind, meaning: str, points: Sequence[Point]) -> Series:
    """A series of a few points."""
    labels, values, times = ([point[part] for point in points] for part in range(3))
    return Series(name, unit, kind, meaning, labels, values, times)  # type: ignore[arg-type]


def stem(metric: Metric) -> str:
    """The name of a metric's series, without its unit."""
    return f"gpu_{metric.name.removesuffix(UNITS[metric.unit].ending)}"


class GpuLabels(dict["Gpu", Labels]):
    """The labels of GPUs: `cluster` and `gpu`, and no others on readings, so that a series stays the same for ever."""

    def __missing__(self, gpu: Gpu) -> Labels:
        labels = self[gpu] = {"cluster": gpu[0] or "", "gpu": gpu[1] or ""}
        return labels


def columns(
    newest: Newest, row: int, labels: Sequence[Labels]
) -> tuple[Sequence[Labels], NDArray[np.int64], Sequence[int]]:
    """What is known of a metric: the labels of its GPUs, the values as they are stored, and when they were read."""
    is_known = newest.known[row]
    if is_known.all():
        return labels, newest.values[row], newest.when[row].tolist()
    chosen = [labels[gpu] for gpu in is_known.nonzero()[0].tolist()]
    return chosen, newest.values[row, is_known], newest.when[row, is_known].tolist()


def readings(newest: Newest, gpu_labels: GpuLabels) -> list[Series]:
    """The newest readings: a series for each row of METRICS, and what is known of the readings themselves."""
    labels = [gpu_labels[gpu] for gpu in newest.gpus]
    all_series = []
    for row, metric in enumerate(METRICS):
        unit, (chosen, values, times) = UNITS[metric.unit], columns(newest, row, labels)
        if metric.kind == "mask":
            all_series.append(_reasons(metric, chosen, values, times))
            continue
        kind: Kind = "counter" if metric.kind == "counter" else "gauge"
        scaled = values * unit.times if unit.over == 1 else values / unit.over
        all_series.append(Series(stem(metric), unit, kind, metric.description, chosen, scaled.tolist(), times))
    return [*all_series, *_of_rows(newest, labels)]


def _reasons(metric: Metric, labels: Sequence[Labels], values: NDArray[np.int64], times: Sequence[int]) -> Series:
    """A mask of reasons as a series for each reason that a driver reports by a bit."""
    bits = {event.name: event.bit for event in CLOCK_EVENTS if event.bit is not None}
    return Series(
        stem(metric).removesuffix("s"), ONE, "gauge",
        f"1 where this is a reason for the clock, else 0: {', '.join(bits)}",
        [{**gpu, "reason": name} for name in bits for gpu in labels],
        [true for bit in bits.values() for true in (values & bit != 0).astype(int).tolist()],
        [*times] * len(bits),
    )  # fmt: skip


def _of_rows(newest: Newest, labels: Sequence[Labels]) -> list[Series]:
    """When each GPU was read last, whether it answers, and what is wrong with its sensors."""
    fresh = newest.fresh.nonzero()[0].tolist()
    chosen, times = [labels[gpu] for gpu in fresh], newest.seen[newest.fresh].tolist()
    marks = [
        ({**gpu_labels, "mark": mark}, 1, at)
        for gpu, gpu_labels, at in zip(fresh, chosen, times, strict=True)
        for mark in (newest.quality[gpu] or "").split(",")
        if mark
    ]
    return [
        Series("gpu_answers", ONE, "gauge", "1 where the GPU answered when it was read last, 0 where it is lost, its "
               "driver is gone or a call hangs", chosen, newest.answers[newest.fresh].astype(int).tolist(), times),
        Series("gpu_read", TIMESTAMP, "gauge", "when the GPU was read last, since 1970", chosen,
               [at / 1e9 for at in times], times),
        series("gpu_quality", ONE, "gauge", "1 for each mark of telemetry.quality: lost, power_stuck, power_zero, ...",
               marks),
    ]  # fmt: skip


# -- who the GPUs are --------------------------------------------------------------------------------------------

IDENTITY = (
    "name", "node", "slot", "model", "serial", "vbios", "driver", "pci_bus_id", "nvml_index", "cabinet", "parent",
    "mig_profile",
)  # fmt: skip
"""Columns of `gpus_now` that are labels of `whorl_gpu_info`."""


def identity(row: Mapping[str, object], labels: Labels, now_ns: int) -> tuple[Point, Point | None]:
    """Who a GPU is, as a point, and the size of its memory. `row` is that of `gpus_now`."""
    info = {**labels, **{name: str(row[name]) for name in IDENTITY if row[name] is not None}}, 1, now_ns
    memory = row["memory_total"]
    return info, None if memory is None else (labels, int(str(memory)), now_ns)


def identities(points: Iterable[tuple[Point, Point | None]]) -> list[Series]:
    """Who the GPUs are, and what does not change of them."""
    pairs = list(points)
    infos, memories = [info for info, _ in pairs], [memory for _, memory in pairs if memory is not None]
    return [
        series("gpu", ONE, "info", "who a GPU is: join it with other series on cluster and gpu", infos),
        series("gpu_memory", UNITS["B"], "gauge", "size of the device memory", memories),
    ]


# -- the names of dcgm-exporter ----------------------------------------------------------------------------------

DCGM_XID = "DCGM_FI_DEV_XID_ERRORS"
DCGM_NAMES = {metric.prometheus[-1]: metric for metric in METRICS if metric.prometheus}
"""By dcgm-exporter's name, of several the one that dashboards know: the metric."""
_DCGM_UNITS = {("mW", 1000): "W", ("B", 1 << 20): "MiB", ("ppm", 1_000_000): "0 to 1"}


def dcgm_labels(gpu: Gpu, row: Mapping[str, Any] | None) -> Labels:
    """The labels of a GPU as dcgm-exporter writes them; `row` is that of `gpus_now`. What is not known is left out.

    Where nobody told the driver's own number, as a DCGM engine does not, the GPU's number is that of its slot.
    A MIG instance has its own UUID here, where dcgm-exporter writes that of the whole GPU and the number of the
    instance, which the store does not have.
    """
    row = row or {}
    index = row.get("nvml_index")
    if index is None:
        index = row.get("slot")
    labels = {
        "gpu": index,
        "UUID": gpu[1],
        "pci_bus_id": row.get("pci_bus_id"),
        "device": None if index is None else f"nvidia{index}",
        "modelName": row.get("model"),
        "Hostname": row.get("node"),
        "GPU_I_PROFILE": row.get("mig_profile"),
        "DCGM_FI_DRIVER_VERSION": row.get("driver"),
    }
    return {name: str(value) for name, value in labels.items() if value is not None}


def dcgm_readings(newest: Newest, rows: Mapping[Gpu, Mapping[str, Any]], last_xid: Mapping[Gpu, int]) -> list[Series]:
    """The newest readings with DCGM_FI_* names. `rows`: those of `gpus_now`; `last_xid`: the last XID error of GPUs."""
    labels = [dcgm_labels(gpu, rows.get(gpu)) for gpu in newest.gpus]
    all_series = []
    for name, metric in DCGM_NAMES.items():
        scale = metric.dcgm.scale if metric.dcgm is not None else 1
        unit = _DCGM_UNITS.get((metric.unit, scale), metric.unit)
        kind: Kind = "counter" if metric.kind == "counter" else "gauge"
        chosen, values, times = columns(newest, ROW[metric.name], labels)
        meaning = f"{metric.description} ({unit})" if unit else metric.description
        scaled = (values if scale == 1 else values / scale).tolist()
        all_series.append(Series("", ONE, kind, meaning, chosen, scaled, times, spelled=name))
    whole_gpus = [gpu for gpu in newest.fresh.nonzero()[0].tolist() if "GPU_I_PROFILE" not in labels[gpu]]
    codes = [last_xid.get(newest.gpus[gpu], 0) for gpu in whole_gpus]
    meaning = "number of the last XID error that is stored; 0 where there is none"
    chosen, times = [labels[gpu] for gpu in whole_gpus], newest.seen[whole_gpus].tolist()
    return [*all_series, Series("", ONE, "gauge", meaning, chosen, codes, times, spelled=DCGM_XID)]
