"""A simulated fleet over time: its clock, its loads, its faults, and what its drivers report.

    simulation = Simulation(Fleet.draw(V100, 8, seed=1), find_load("gemm"), began_ns=0)
    simulation.advance(60_000_000_000)
    simulation.readings().values["power_mw"]        # shape (8,)

The control loop, a step of 20 ms, and the heat are in `control`. The clock moves by one bin a step: down above
99.75 % of the cap or above the slowdown temperature, up below 98.5 % and a kelvin under it; eight bins down above
105 %. A rear GPU breathes the heat of its upstream neighbour, whatever that one runs. A load's power wobbles by
0.4 %, so that a clock under the cap moves between neighbouring bins instead of resting in one.

The hardware slowdown of a braked board comes and goes faster than a step: power and progress are those of its mean,
and a reading catches the halved clock as often as it lasts.

Source: docs/how-we-know/simulation.md. The same fleet, load and start give the same bits, however the time is cut into
calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..store.vocabulary import EventKind, reason_bit
from .control import BLOCK, STEP_NS, STEP_S, UP_BELOW, Loop, Positions
from .draws import Floats, stream
from .faults import THROTTLED_TIME, onsets
from .fleet import Fleet
from .load import IDLE, Load, Workload
from .models import NOISE_SHARE, SENSORS
from .nodes import NodeReadings, Nodes
from .physics import LEAKAGE_REFERENCE_C, slowed

REASON_IDLE, REASON_POWER_CAP, REASON_SLOWDOWN, REASON_THERMAL, REASON_BRAKE, REASON_HARDWARE = (
    reason_bit(name)
    for name in ("idle", "power_cap", "hw_slowdown", "thermal_software", "power_brake", "thermal_hardware")
)
"""Bits of `clock_event_reasons`."""

_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are spread evenly
_STEPS_A_DAY = 4_320_000
_STEPS_AN_HOUR = 180_000  # how often the drift of a fault is looked at
_NEVER = np.iinfo(np.int64).max // 4
_PCIE_BYTES_S = (40_000, 260_000)  # sent and received under load: commands and results, no data (assumed)
_RETIRED_ERRORS = 12  # errors that were corrected before pages were retired (assumed)
_MEMORY_K = 8.0  # the memory above the heat sink's air at full bandwidth (assumed)


@dataclass(frozen=True)
class Readings:
    """What the drivers of a fleet report at one instant; arrays of shape (gpus,)."""

    ts_ns: int
    """The simulated clock, UTC."""
    values: dict[str, NDArray[np.int64]]
    """By column of the `telemetry` table, in its units; a column that the model does not support is not there."""
    lost: NDArray[np.bool_]
    """GPUs that have fallen off the bus: nothing of theirs is known."""


@dataclass(frozen=True)
class Happening:
    """An event that the driver of one GPU reported, or that a reader would notice."""

    ts_ns: int
    gpu: int
    """Position in the fleet."""
    kind: EventKind
    detail: str
    code: int | None = None
    """Number of the XID."""


class Simulation:
    """A fleet in time, with a clock of its own; see the module's text.

    `began_ns` is the UTC time at which its clock starts: the drivers have just been loaded, so that all counters
    are 0, and the GPUs have long been idle. `span_s` is the time within which the faults set in that do so at some
    time (`faults.onsets`), `age_days` how old the fleet is at the start (`Fleet.aged`). `cap` (W) and `lock` (MHz)
    are as in `Fleet.steady`. InputError for a cap or lock that the model cannot hold.
    """

    def __init__(
        self,
        fleet: Fleet,
        load: Load,
        *,
        began_ns: int,
        span_s: float = 3600.0,
        age_days: float = 0.0,
        cap: float | None = None,
        lock: float | None = None,
    ) -> None:
        self.fleet, self.load, self.began_ns = fleet, load, began_ns
        model, n = fleet.model, len(fleet)
        self._age_days = age_days
        self._limit_mw = round(1000 * min(model.power_limit_w, cap or inf))
        self._noise_w = NOISE_SHARE * model.power_limit_w
        self.sensors = SENSORS[model.name]
        self._loop = Loop(fleet, load, *fleet.limits(cap, lock), age_days)
        works = [load.workload_of(gpu) or IDLE for gpu in range(n)]
        self._used = np.array([work.memory_mib << 20 for work in works], dtype=np.int64)
        self._traffic = np.array([work.bandwidth_share for work in works])
        self._apart = np.array([work.fixed_share for work in works])

        starts = load.starts_s(n)
        self._next_turn = np.where(np.isfinite(starts), np.ceil(np.minimum(starts, 1e9) / STEP_S - 1e-9), _NEVER)
        self._next_turn = self._next_turn.astype(np.int64)
        self._idle_steps = ceil(load.idle_s / STEP_S - 1e-9)
        endless = load.busy_s == inf or not self._idle_steps  # without a gap, work follows work
        self._busy_steps = _NEVER if endless else ceil(load.busy_s / STEP_S - 1e-9)
        self._busy = np.zeros(n, dtype=np.bool_)
        self._blind = np.array([fleet.fault_of(gpu).blind for gpu in range(n)], dtype=np.bool_)
        self._retired = np.array([int(fleet.fault_of(gpu).retires) for gpu in range(n)], dtype=np.int64)
        self._onset_s, self._end_s = onsets(fleet.fault, fleet.seed, span_s)
        self._incidents = self._plan()
        self._happened: list[Happening] = []
        self._lost = np.zeros(n, dtype=np.bool_)
        self.losses: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # how often each was lost
        self._frozen: dict[int, tuple[float, float]] = {}
        self._loaded_at: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # the step since which each driver counts
        self._worked_before: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # steps under load that it forgot
        self._nodes = Nodes(fleet.seed, fleet.node)
        self._due = 0
        self._attend()

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def _step(self) -> int:
        return self._loop.step

    @property
    def now_ns(self) -> int:
        """The simulated clock: the end of the last control step, UTC ns."""
        return self.began_ns + self._step * STEP_NS

    def advance(self, to_ns: int) -> None:
        """Whole control steps up to, not past, a time (UTC ns). InputError for a time that has passed."""
        target = (to_ns - self.began_ns) // STEP_NS
        if target < self._step:
            raise InputError(f"the simulated clock cannot go back from {self.now_ns} ns to {to_ns} ns")
        while self._step < target:
            if self._step == self._due:
                self._attend()
            self._loop.run(min(target, self._due))

    # -- work beside the load ------------------------------------------------------------------------------

    def give(self, gpus: Positions, workload: Workload) -> None:
        """Let GPUs work from now on, at the clock that they have. For a load without work of its own."""
        self._loop.turn(gpus, workload)
        self._traffic[gpus] = workload.bandwidth_share
        self._apart[gpus] = workload.fixed_share
        self._used[gpus] = workload.memory_mib << 20

    def rest(self, gpus: Positions, *, awake: bool) -> None:
        """Take the work from GPUs: their clock rises to the highest and stays there, or falls to the lowest at once."""
        self._loop.turn(gpus, None)
        if not awake:
            self._loop.employ(gpus, np.zeros(len(gpus), dtype=np.bool_))

    def wake(self, gpus: Positions) -> None:
        """Let the clock of GPUs without work jump to the highest, as when a process opens a context on them."""
        self._loop.wake(gpus)

    # -- loads and incidents ------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Do what is due at this step, and find out when something is due next."""
        step = self._step
        turning = np.flatnonzero(self._next_turn == step)
        if len(turning):
            busy = ~self._busy[turning]
            for gpu in turning[busy].tolist():
                self._may_throttle(gpu)
            self._next_turn[turning] += np.where(busy, self._busy_steps, self._idle_steps)
            self._loop.employ(turning, busy & ~self._lost[turning])
            self._busy[turning] = busy
        while self._incidents and self._incidents[0][0] == step:
            _, gpu, kind = self._incidents.pop(0)
            self._befall(gpu, kind)
        if step % _STEPS_AN_HOUR == 0:
            self._loop.age(self._age_days + step / _STEPS_A_DAY)
        upcoming = [int(self._next_turn.min()), (step // _STEPS_AN_HOUR + 1) * _STEPS_AN_HOUR]
        if self._incidents:
            upcoming.append(self._incidents[0][0])
        self._due = min(upcoming)

    def _may_throttle(self, gpu: int) -> None:
        """Draw whether the hardware throttles the turn of the load that begins now."""
        share, workload = self.fleet.fault_of(gpu).throttled_share, self.load.workload_of(gpu)
        if share and workload is not None:
            draw = stream(self.fleet.seed, "throttled turn", self.began_ns // STEP_NS, gpu, self._step).random()
            slowdown = THROTTLED_TIME if draw < share else 0.0
            self._loop.turn(np.array([gpu], dtype=np.intp), replace(workload, slowdown=slowdown))

    def _plan(self) -> list[tuple[int, int, str]]:
        """(step, GPU, what) of everything that faults will do, in order."""
        plan = []
        for gpu in range(len(self.fleet)):
            fault = self.fleet.fault_of(gpu)
            if fault.sticks:
                plan.append((ceil(self._onset_s[gpu] / STEP_S), gpu, "stuck"))
            if fault.retires:
                plan.append((0, gpu, "retired"))
            if fault.falls:
                plan.append((ceil(self._onset_s[gpu] / STEP_S), gpu, "lost"))
                if self._end_s[gpu] < inf:
                    plan.append((ceil(self._end_s[gpu] / STEP_S), gpu, "returned"))
        return sorted(plan)

    def _befall(self, gpu: int, kind: str) -> None:
        alone = np.array([gpu], dtype=np.intp)
        if kind == "stuck":
            instant, average = self._power_w()
            self._frozen[gpu] = (float(instant[gpu]), float(average[gpu]))
            return
        if kind == "retired":
            detail = "XID 63: pages of the memory were retired"
            self._happened.append(Happening(self.now_ns, gpu, EventKind.XID, detail, 63))
            return
        if kind == "lost":
            self._loop.employ(alone, np.array([False]))
            self._lost[gpu] = True
            self.losses[gpu] += 1
            self._happened.append(Happening(self.now_ns, gpu, EventKind.XID, "XID 79: GPU has fallen off the bus", 79))
            self._happened.append(
                Happening(self.now_ns, gpu, EventKind.LOST, "the driver does not reach the GPU any more")
            )
            return
        self._lost[gpu] = False
        self._loop.employ(alone, self._busy[alone])
        self._worked_before[gpu] += self._steps_under_load[gpu]
        self._loaded_at[gpu] = self._step
        self._loop.reset(gpu)
        detail = "the driver reaches the GPU again; its counters start at 0"
        self._happened.append(Happening(self.now_ns, gpu, EventKind.RETURNED, detail))

    # -- what can be read ---------------------------------------------------------------------------------

    @property
    def temperature_c(self) -> Floats:
        """Die temperature, °C."""
        return self._celsius(self._loop.die + self._loop.ground)

    @property
    def true_power_w(self) -> Floats:
        """True board power in the last step, W."""
        watts: Floats = self._loop.rows[(self._step - 1) % BLOCK].copy()
        return watts

    @property
    def filtered_power_w(self) -> Floats:
        """Reported power as the control loop sees it, W."""
        return self._loop.ratio * self._loop.cap_w

    @property
    def clock_mhz(self) -> Floats:
        """SM clock, MHz; of a GPU under a duty-cycled slowdown the clock between the slow stretches."""
        return self._loop.bins_mhz[self._loop.bin]

    @property
    def energy_mj(self) -> Floats:
        """True energy since the driver was loaded, mJ: the sum over the control steps."""
        unfinished = self._loop.rows[: self._step % BLOCK].sum(axis=0)
        return np.asarray(self._loop.energy_mj + unfinished * (1000 * STEP_S))

    @property
    def counted_mj(self) -> Floats:
        """What the drivers' energy counters show, mJ: the true energy, with the error that the fleet gives them."""
        silicon, share = self.fleet.silicon, self.fleet.spread.counter_share
        offset_mj = silicon.sensor_offset_w * (self._step - self._loaded_at) * (1000 * STEP_S)
        return np.asarray(self.energy_mj * (1 + share * (silicon.sensor - 1)) + share * offset_mj)

    @property
    def _steps_under_load(self) -> NDArray[np.int64]:
        """Control steps under load since the driver of each GPU was loaded."""
        loop = self._loop
        return np.asarray(loop.loaded + (self._step - loop.span_since) * (loop.speed > 0))

    @property
    def worked_s(self) -> Floats:
        """Work done, as seconds that it takes a GPU of the model at its highest clock: the integral of the speed."""
        return np.asarray(self._loop.worked * STEP_S)

    @property
    def worked_steps(self) -> Floats:
        """As `worked_s`, in control steps; the array itself, which the next step changes."""
        return self._loop.worked

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which GPUs have fallen off the bus; the array itself."""
        return self._lost

    @property
    def onsets_s(self) -> tuple[Floats, Floats]:
        """When each GPU's fault sets in and ends, s after the start: `faults.onsets`."""
        return self._onset_s, self._end_s

    def happened(self) -> list[Happening]:
        """What happened since the last call, in order of time."""
        since, self._happened = self._happened, []
        return since

    def node_readings(self) -> NodeReadings:
        """What the meters of the nodes would show now."""
        loop = self._loop
        return self._nodes.read(
            self.now_ns,
            self._step * STEP_S,
            loop.means.mean(axis=0),
            working=loop.speed > 0,
            worked_s=np.asarray(STEP_S * (self._steps_under_load + self._worked_before), dtype=np.float64),
        )

    def readings(self) -> Readings:
        """What the drivers would report now."""
        loop, model, sensors, step = self._loop, self.fleet.model, self.sensors, self._step
        n = len(self.fleet)
        instant, average = (np.rint(1000 * watts).astype(np.int64) for watts in self._power_w())
        for gpu, (stuck, stuck_average) in self._frozen.items():
            instant[gpu], average[gpu] = round(1000 * stuck), round(1000 * stuck_average)
        instant[self._blind] = average[self._blind] = 0
        working, under = loop.speed > 0, loop.bin < loop.top
        since = step - loop.span_since
        held, loaded = loop.held + since * under, self._steps_under_load
        braked = self.fleet.silicon.slowdown_share
        throttled = loop.slowed + since * working * loop.throttled
        share = braked + loop.throttled
        caught = working & ((step + np.arange(n)) * _GOLDEN % 1.0 < share)
        clock = np.where(caught, slowed(model, self.clock_mhz), self.clock_mhz)
        exponent = loop.die + loop.ground
        hot, capped = under & (exponent >= loop.too_warm), under & (loop.ratio >= UP_BELOW)
        reasons = REASON_IDLE * ~working + REASON_POWER_CAP * capped + REASON_THERMAL * hot
        reasons += REASON_SLOWDOWN * caught + REASON_BRAKE * (caught & (braked > 0))
        reasons += REASON_HARDWARE * (caught & (loop.throttled > 0))
        age_steps = step % (sensors.instant_period_ms * 1_000_000 // STEP_NS)

        def constant(value: int) -> NDArray[np.int64]:
            return np.full(n, value, dtype=np.int64)

        used = np.where(working, self._used, IDLE.memory_mib << 20)
        values: dict[str, NDArray[np.int64]] = {
            "power_mw": instant if sensors.average_window_ms is None else average,
            "power_instant_mw": instant,
            "power_window_ms": constant(sensors.power_window_ms),
            "power_age_us": constant(age_steps * STEP_NS // 1000),
            "energy_mj": np.maximum(self.counted_mj, 0.0).astype(np.int64),
            "sm_clock_mhz": clock.astype(np.int64),
            "mem_clock_mhz": constant(int(model.memory_clock_mhz)),
            "temperature_c": np.rint(self._celsius(exponent)).astype(np.int64),
            "utilization": np.where(working, 100, 0),
            "memory_utilization": np.where(working, np.rint(100 * self._traffic).astype(np.int64), 0),
            "memory_used": used,
            "memory_free": (model.memory_gb << 30) - used,
            "power_limit_mw": constant(self._limit_mw),
            "pstate": constant(0),
            "clock_event_reasons": reasons,
            "power_violation_ns": np.maximum(held - loop.free - loop.hot, 0) * STEP_NS,
            "thermal_violation_ns": loop.hot * STEP_NS + np.rint(throttled * STEP_NS).astype(np.int64),
            "software_thermal_ns": loop.hot * STEP_NS,
            "hardware_thermal_ns": np.rint(throttled * STEP_NS).astype(np.int64),
            "power_brake_ns": np.rint(loaded * braked * STEP_NS).astype(np.int64),
            "pcie_tx_bytes": np.rint(loaded * (STEP_S * _PCIE_BYTES_S[0])).astype(np.int64),
            "pcie_rx_bytes": np.rint(loaded * (STEP_S * _PCIE_BYTES_S[1])).astype(np.int64),
            "pcie_replays": constant(0),
            "ecc_corrected": _RETIRED_ERRORS * self._retired,
            "ecc_uncorrected": self._retired,
        }
        if sensors.average_window_ms is not None:
            values["power_average_mw"] = average
        if sensors.memory_temperature:
            above = np.where(working, _MEMORY_K * self._traffic, 0.0)
            values["memory_temperature_c"] = np.rint(self._celsius(loop.ground) + above).astype(np.int64)
        if sensors.remapped_rows:
            values["remapped_rows"] = values["remapped_rows_uncorrected"] = self._retired
        if sensors.profiling:
            values |= self._profiled(working)
        return Readings(self.now_ns, values, self._lost.copy())

    def _profiled(self, working: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
        """Profiling metrics: copies and launches leave the SMs without warps, and the memory's traffic is work's."""
        speed = self._loop.speed
        sent, received = (np.where(working, rate, 0) for rate in _PCIE_BYTES_S)
        ratios = {
            "gr_engine_active_ppm": np.ones(len(working)),
            "sm_active_ppm": 1 - self._apart * speed,
            "dram_active_ppm": self._traffic * speed,
        }
        ppm = {name: np.rint(1e6 * working * np.clip(ratio, 0, 1)).astype(np.int64) for name, ratio in ratios.items()}
        return {**ppm, "pcie_tx_bytes_per_s": sent, "pcie_rx_bytes_per_s": received}

    def _celsius(self, exponent: Floats) -> Floats:
        return exponent / self.fleet.model.leakage_per_k + LEAKAGE_REFERENCE_C

    def _power_w(self) -> tuple[Floats, Floats]:
        """What the sensors show now, W: the instantaneous and the averaged value, with gain, offset and noise."""
        loop, silicon, block = self._loop, self.fleet.silicon, self._step // BLOCK
        gain, offset_w = silicon.sensor, silicon.sensor_offset_w
        average = loop.means.mean(axis=0) * gain + offset_w + (self._noise_w / 3) * loop.noise.at(block, salt=1)
        if self.sensors.instant_period_ms * 1_000_000 == STEP_NS:
            watts, tick = loop.rows[(self._step - 1) % BLOCK], self._step
        else:
            watts, tick = loop.last_25_ms, block
        return np.maximum(watts * gain + offset_w + self._noise_w * loop.noise.at(tick), 0.0), np.maximum(average, 0.0)
