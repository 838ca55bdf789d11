"""Series: named values of GPUs in base units, and those of the newest readings, made from the rows of METRICS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...store.metrics import METRICS, Metric
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

Kind = Literal["gauge", "counter", "info"]


def escaped(value: str) -> str:
    """A label's value as Prometheus writes it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@dataclass(frozen=True)
class Labels:
    """What a point is of. Thousands of points share one, so its text in Prometheus' format is made once."""

    pairs: tuple[tuple[str, str], ...]
    text: str = field(init=False, repr=False, compare=False)
    _also: dict[tuple[str, str], Labels] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = ",".join(f'{name}="{escaped(value)}"' for name, value in self.pairs)
        object.__setattr__(self, "text", f"{{{inner}}} " if inner else " ")

    def having(self, **more: str) -> Labels:
        """These labels and others."""
        return Labels((*self.pairs, *more.items()))

    def also(self, name: str, value: str) -> Labels:
        """These labels and one of few others, made once."""
        found = self._also.get((name, value))
        if found is None:
            found = self._also[name, value] = self.having(**{name: value})
        return found


Point = tuple[Labels, float, int]
"""What it is of, the value, and when it was so (ns since 1970)."""


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


ONE = UNITS[""]
SECONDS = Unit("seconds", "s")
TIMESTAMP = Unit("timestamp_seconds", "s")
RATIO = Unit("ratio", "1")


def stem(metric: Metric) -> str:
    """The name of a metric's series, without its unit."""
    ending = UNITS[metric.unit].ending
    return f"gpu_{metric.name.removesuffix(ending)}"


class Who:
    """The labels of GPUs: `cluster` and `gpu`, and no others on readings, so that a series stays the same for ever."""

    def __init__(self) -> None:
        self._made: dict[Gpu, Labels] = {}

    def cluster(self, name: str | None) -> Labels:
        """The label of a whole cluster."""
        return Labels((("cluster", name or ""),))

    def __getitem__(self, gpu: Gpu) -> Labels:
        found = self._made.get(gpu)
        if found is None:
            found = self._made[gpu] = Labels((("cluster", gpu[0] or ""), ("gpu", gpu[1] or "")))
        return found


def series(name: str, unit: Unit, kind: Kind, meaning: str, points: Sequence[Point]) -> Series:
    """A series of a few points."""
    labels, values, times = ([point[part] for point in points] for part in range(3))
    return Series(name, unit, kind, meaning, labels, values, times)  # type: ignore[arg-type]


Columns = tuple[Sequence[Labels], "NDArray[np.int64]", Sequence[int]]


def columns(newest: Newest, row: int, labels: Sequence[Labels]) -> Columns:
    """What is known of a metric: whose it is, the values as they are stored, and when they were read."""
    known = newest.known[row]
    if known.all():
        return labels, newest.values[row], newest.when[row].tolist()
    mine = [labels[gpu] for gpu in known.nonzero()[0].tolist()]
    return mine, newest.values[row, known], newest.when[row, known].tolist()


def readings(newest: Newest, who: Who) -> list[Series]:
    """The newest readings: a series for each row of METRICS, and what is known of the readings themselves."""
    labels = [who[gpu] for gpu in newest.gpus]
    found = []
    for row, metric in enumerate(METRICS):
        unit, (mine, values, when) = UNITS[metric.unit], columns(newest, row, labels)
        if metric.kind == "mask":
            found.append(_reasons(metric, mine, values, when))
            continue
        kind: Kind = "counter" if metric.kind == "counter" else "gauge"
        shown = values * unit.times if unit.over == 1 else values / unit.over
        found.append(Series(stem(metric), unit, kind, metric.description, mine, shown.tolist(), when))
    return [*found, *_of_rows(newest, labels)]


def _reasons(metric: Metric, labels: Sequence[Labels], values: NDArray[np.int64], when: Sequence[int]) -> Series:
    """A mask of reasons as a series for each reason that a driver reports by a bit."""
    bits = {one.name: one.bit for one in CLOCK_EVENTS if one.bit is not None}
    return Series(
        stem(metric).removesuffix("s"), ONE, "gauge",
        f"1 where this is a reason for the clock, else 0: {', '.join(bits)}",
        [who.also("reason", name) for name in bits for who in labels],
        [true for bit in bits.values() for true in (values & bit != 0).astype(int).tolist()],
        [*when] * len(bits),
    )  # fmt: skip


def _of_rows(newest: Newest, labels: Sequence[Labels]) -> list[Series]:
    """When each GPU was read last, whether it answers, and what is wrong with its sensors."""
    fresh = newest.fresh.nonzero()[0].tolist()
    mine, seen = [labels[gpu] for gpu in fresh], newest.seen[newest.fresh].tolist()
    marks = [
        (who.also("mark", mark), 1, when)
        for gpu, who, when in zip(fresh, mine, seen, strict=True)
        for mark in (newest.quality[gpu] or "").split(",")
        if mark
    ]
    return [
        Series("gpu_answers", ONE, "gauge", "1 where the GPU answered when it was read last, 0 where it is lost, its "
               "driver is gone or a call hangs", mine, newest.answers[newest.fresh].astype(int).tolist(), seen),
        Series("gpu_read", TIMESTAMP, "gauge", "when the GPU was read last, since 1970", mine,
               [when / 1e9 for when in seen], seen),
        series("gpu_quality", ONE, "gauge", "1 for each mark of telemetry.quality: lost, power_stuck, power_zero, ...",
               marks),
    ]  # fmt: skip


IDENTITY = (
    "name", "node", "slot", "model", "serial", "vbios", "driver", "pci_bus_id", "nvml_index", "cabinet", "parent",
    "mig_profile",
)  # fmt: skip
"""Columns of `gpus_now` that are labels of `whorl_gpu_info`."""


def identity(row: Mapping[str, object], who: Labels, now_ns: int) -> tuple[Point, Point | None]:
    """Who a GPU is, as a point, and the size of its memory. `row` is that of `gpus_now`."""
    info = who.having(**{name: str(row[name]) for name in IDENTITY if row[name] is not None}), 1, now_ns
    memory = row["memory_total"]
    return info, None if memory is None else (who, int(str(memory)), now_ns)


def identities(known: Iterable[tuple[Point, Point | None]]) -> list[Series]:
    """Who the GPUs are, and what does not change of them."""
    listed = list(known)
    return [
        series(
            "gpu", ONE, "info", "who a GPU is: join it with other series on cluster and gpu", [i for i, _ in listed]
        ),
        series("gpu_memory", UNITS["B"], "gauge", "size of the device memory", [m for _, m in listed if m is not None]),
    ]
