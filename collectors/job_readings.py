"""A job's own readings: its GPUs alone, and a summary of their power, clocks, temperature, throttling and energy.

Means and shares are over readings, which lie on an even grid. Energy is that of the GPU's counter from the first to the
last reading, or without a counter the integral of the power; its 95 % interval is that of a board whose power sensor
nobody has measured (`store.power_sensors`).

Where a job starts a collector in each of its tasks, the tasks of a node may have GPUs of their own or share them. Each
GPU is read by one of them: the one that holds the lock of the GPU in the job's folder.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import StoreError
from ..store.metrics import UNTRUSTED_POWER, power_is_trusted
from ..store.names import gpu_name
from ..store.system import files
from ..store.system.locks import JOURNALS, Lock, locked
from ..store.vocabulary import CLOCK_EVENTS, EventKind
from .allocation import job_gpus
from .recording import StoreRecorder

if TYPE_CHECKING:
    from ..store import Store
    from ..store.journal import Journal
    from ..store.journal_file import Ticks
    from .backend import Device

METRICS = (
    "power_instant_mw",
    "power_mw",
    "energy_mj",
    "sm_clock_mhz",
    "temperature_c",
    "utilization",
    "clock_event_reasons",
)
"""The columns of `telemetry` that a summary is made of; all are of the fast tier."""
REASONS = {
    reason.name: reason.bit
    for reason in CLOCK_EVENTS
    if reason.bit is not None and reason.name not in ("idle", "applications_clocks", "display_clocks")
}
"""By name, the bit of each reason that holds the clock of a busy GPU down."""
TOLD = (EventKind.XID, EventKind.LOST, EventKind.NEEDS_RESET, EventKind.ABSENT, EventKind.HUNG, EventKind.RETURNED)
"""The kinds of events that a summary counts."""


@dataclass(frozen=True)
class GpuSummary:
    """One GPU over a job. A figure is None where the GPU or its driver does not tell it."""

    gpu: str
    name: str
    node: str | None
    model: str | None
    shared: bool
    """Whether it is divided into MIG instances: power and energy are those of the whole GPU, of other jobs too."""
    readings: int
    """How many readings of the power there are."""
    power_mean_w: float | None
    power_max_w: float | None
    sm_clock_mean_mhz: float | None
    temperature_max_c: float | None
    utilization_mean_pct: float | None
    throttled: dict[str, float] | None
    """By reason, the share of readings in which it held the clock down; reasons that never did are left out."""
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    """The 95 % interval."""
    energy_from: str | None
    """`counter` or `power`."""
    energy_s: float
    """The time that the energy is of, s."""
    events: dict[str, int]
    """How often what happened to it, by the codes of `TOLD`."""


@dataclass(frozen=True)
class JobTotal:
    """All GPUs of a job together."""

    gpus: int
    power_mean_w: float | None
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None


@dataclass(slots=True)
class Mean:
    """A running mean of whole numbers."""

    total: int = 0
    readings: int = 0
    highest: int | None = None

    def add(self, value: int | None) -> None:
        """Add a reading; None is none."""
        if value is not None:
            self.total += value
            self.readings += 1
            self.highest = value if self.highest is None else max(self.highest, value)

    def mean(self, unit: float = 1.0) -> float | None:
        """The mean so far, divided by `unit`; None of no readings."""
        return self.total / self.readings / unit if self.readings else None


@dataclass(slots=True)
class GpuSums:
    """Running sums of one GPU, from which its summary is made at any time."""

    model: str | None = None
    power_mw: Mean = field(default_factory=Mean)
    sm_clock_mhz: Mean = field(default_factory=Mean)
    temperature_c: Mean = field(default_factory=Mean)
    utilization: Mean = field(default_factory=Mean)
    masks: Counter[int] = field(default_factory=Counter)
    """How often each mask of `clock_event_reasons` was read."""
    counter_mj: int = 0
    counter_s: float = 0.0
    integral_mj: float = 0.0
    integral_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    _counter: tuple[float, int] | None = None  # when it was read last, and what it was
    _power: tuple[float, int] | None = None

    def add(self, ts_s: float, reading: Sequence[int | None]) -> None:
        """Add a reading of `METRICS`, taken at `ts_s` in s; readings come in their order of time."""
        instant, reported, energy, clock, temperature, utilization, mask = reading
        power = reported if instant is None else instant
        self.power_mw.add(power)
        self.sm_clock_mhz.add(clock)
        self.temperature_c.add(temperature)
        self.utilization.add(utilization)
        if mask is not None:
            self.masks[mask] += 1
        if energy is not None:
            if self._counter is not None and energy >= self._counter[1]:  # one that fell began anew
                self.counter_mj += energy - self._counter[1]
                self.counter_s += ts_s - self._counter[0]
            self._counter = ts_s, energy
        if power is not None:
            if self._power is not None:
                seconds = ts_s - self._power[0]
                self.integral_mj += (power + self._power[1]) / 2 * seconds
                self.integral_s += seconds
            self._power = ts_s, power

    def pause(self) -> None:
        """Nobody reads from here to the next reading: what was used meanwhile is not this job's."""
        self._counter = self._power = None

    def energy(self) -> tuple[float, float, str | None]:
        """Energy in J, the seconds that it is of, and where it is from; the counter of a Grace Hopper module is that of
        its processor too, and does not count."""
        from ..store.power_sensors import sensor_of_model  # at the end only

        sensor = sensor_of_model(self.model)
        if self.counter_s > 0 and not (sensor is not None and sensor.of_module):
            return self.counter_mj / 1e3, self.counter_s, "counter"
        return self.integral_mj / 1e3, self.integral_s, "power" if self.integral_s > 0 else None

    def summary(self, gpu: str, *, name: str, node: str | None, shared: bool) -> GpuSummary:
        """The summary of the readings so far."""
        joules, seconds, source = self.energy()
        low, high = _interval([(joules, seconds)])
        readings = self.masks.total()
        held = {reason: sum(n for mask, n in self.masks.items() if mask & bit) for reason, bit in REASONS.items()}
        highest_mw = self.power_mw.highest
        return GpuSummary(
            gpu=gpu,
            name=name,
            node=node,
            model=self.model,
            shared=shared,
            readings=self.power_mw.readings,
            power_mean_w=self.power_mw.mean(1e3),
            power_max_w=None if highest_mw is None else highest_mw / 1e3,
            sm_clock_mean_mhz=self.sm_clock_mhz.mean(),
            temperature_max_c=self.temperature_c.highest,
            utilization_mean_pct=self.utilization.mean(),
            throttled={reason: n / readings for reason, n in held.items() if n} if readings else None,
            energy_j=joules if source else None,
            energy_low_j=low if source else None,
            energy_high_j=high if source else None,
            energy_from=source,
            energy_s=seconds,
            events=dict(self.events),
        )


def total(gpus: Sequence[GpuSummary]) -> JobTotal:
    """All GPUs together; a figure that one of them lacks is that of the others."""
    energies = [(gpu.energy_j, gpu.energy_s) for gpu in gpus if gpu.energy_j is not None]
    watts = [gpu.power_mean_w for gpu in gpus if gpu.power_mean_w is not None]
    low, high = _interval(energies)
    return JobTotal(
        len(gpus),
        sum(watts) if watts else None,
        sum(joules for joules, _ in energies) if energies else None,
        low if energies else None,
        high if energies else None,
    )


def _interval(energies: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The ends of the 95 % interval of a sum over boards: J and s of each."""
    import numpy as np  # at the end only: a collector that runs does without

    from ..store.power_sensors import SENSOR_ERROR

    joules, seconds = np.array(energies, float).reshape(-1, 2).T
    over_boards = SENSOR_ERROR.variance(joules, seconds).sum()
    low, high = SENSOR_ERROR.ends(joules.sum(), seconds.sum(), over_boards)
    return max(float(joules.sum() + min(low, 0.0)), 0.0), float(joules.sum() + max(high, 0.0))


def stored_summaries(store: Store) -> list[GpuSummary]:
    """The summary of each GPU of a job's store, over all runs of its collectors on all nodes, in the order of names."""
    from ..store.catalog import quoted

    boards = store.sql(
        "select cluster, gpu, name, node, model, gpu in (select parent from gpus_now) as shared from gpus_now "
        "where parent is null order by cluster, node, slot, gpu"
    ).table.to_pylist()
    happened = store.sql("select gpu, kind, count(*) as n from events where gpu is not null group by all").table
    counts = Counter({(row["gpu"], row["kind"]): row["n"] for row in happened.to_pylist()})
    query = "select node, epoch_us(ts) as began_us from events where kind = 'collect_began' order by began_us"
    runs = store.sql(query).table.to_pylist()
    summaries = []
    for row in boards:
        began = [run["began_us"] for run in runs if run["node"] == row["node"]]
        sums = GpuSums(row["model"], events=Counter({kind: n for kind in TOLD if (n := counts[row["gpu"], kind])}))
        query = (
            f"select epoch_us(ts), {power_is_trusted()}, {', '.join(METRICS)} from telemetry "
            f"where cluster = {quoted(row['cluster'])} and gpu = {quoted(row['gpu'])} order by ts"
        )
        table = store.sql(query).table
        for ts_us, trusted, *reading in zip(*(column.to_pylist() for column in table.columns), strict=True):
            while began and began[0] <= ts_us:
                sums.pause()
                del began[0]
            sums.add(ts_us / 1e6, reading if trusted else [None, None, *reading[2:]])
        summaries.append(sums.summary(row["gpu"], name=row["name"], node=row["node"], shared=bool(row["shared"])))
    return summaries


def document(gpus: Sequence[GpuSummary], **about: Any) -> dict[str, Any]:
    """What `--json` prints of a job."""
    return {"schema": "whorl.job/1", **about, "gpus": [asdict(gpu) for gpu in gpus], "total": asdict(total(gpus))}


# -- the GPUs of a job --------------------------------------------------------------------------------------------


class GpusTakenError(StoreError):
    """Other collectors of this job read all of its GPUs here."""


class JobPart:
    """The GPUs of this job on this node that this process reads, and their sums so far."""

    def __init__(self, node: str) -> None:
        self.devices: list[Device] = []
        self.note: str | None = None
        """What the job's variables say that is not so; None: nothing."""
        self.sums: defaultdict[str, GpuSums] = defaultdict(GpuSums)
        self._node = node
        self._locks: list[Lock] = []

    def among(self, devices: Sequence[Device]) -> list[Device]:
        """Those of a node's devices that are of the part; the first call chooses them. Raises InputError as
        `job_gpus`."""
        if not self.devices:
            self.devices, self.note = job_gpus(devices)
        gpus = {device.gpu for device in self.devices}
        return [device for device in devices if device.gpu in gpus]

    def claim(self, root: Path, devices: Sequence[Device]) -> list[Device]:
        """Leave out the GPUs that other collectors read into the same store.

        Raises GpusTakenError where none is left, and StoreError where the store cannot be written.
        """
        folder = root / JOURNALS
        try:
            files.make_folder(folder)
        except OSError as error:
            raise files.failed("make", folder, error) from error
        self.devices = [device for device in devices if self._take(folder, device)]
        if not self.devices:
            raise GpusTakenError("another collector of this job reads its GPUs on this node")
        return self.devices

    def _take(self, folder: Path, device: Device) -> bool:
        try:
            self._locks.append(locked(folder / f"{device.gpu}.gpu.lock", f"the GPU {device.gpu}"))
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return False
        return True

    @property
    def journal(self) -> str:
        """The name of the journal: the node's with the first GPU, as each GPU has one reader. Where the scheduler hides
        GPUs, each task may count its own from 0."""
        return f"{self._node}.{self.devices[0].gpu}"

    def summaries(self) -> list[GpuSummary]:
        """The summary of each GPU so far, in the driver's order."""
        parents = {device.parent for device in self.devices}
        summaries = []
        for gpu, row in ((device.gpu, device.row) for device in self.devices if device.parent is None):
            sums = self.sums[gpu]
            sums.model = row.get("model")
            name = gpu_name(gpu, self._node, row.get("slot"))
            summaries.append(sums.summary(gpu, name=name, node=self._node, shared=gpu in parents))
        return summaries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.release()


class JobRecorder(StoreRecorder):
    """What it records is also added to the sums of each GPU."""

    def __init__(self, sums: Mapping[str, GpuSums], root: Path, journal: Journal, **place: str) -> None:
        super().__init__(root, journal, **place)
        self._sums = sums

    def append(self, ticks: Ticks) -> None:
        super().append(ticks)
        numbers, marks = ticks.by_name(), ticks.texts.get("quality")
        columns = [numbers.get(metric) for metric in METRICS]
        for row, (_, gpu) in enumerate(ticks.gpus):
            reading = [None if column is None else column[row] for column in columns]
            if marks and (mark := marks[row]) and any(name in mark for name in UNTRUSTED_POWER):
                reading[:2] = None, None
            self._sums[str(gpu)].add(ticks.ts[row] / 1e6, reading)

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        super().append_rows(columns, table)
        for kind, gpu in zip(columns["kind"], columns["gpu"], strict=True) if table == "events" else ():
            if gpu is not None and kind in TOLD:
                self._sums[gpu].events[kind] += 1
