"""A simulated fleet: the parameters drawn for each GPU, and its steady state under a workload.

    fleet = Fleet.draw(V100, gpus=392, seed=1)
    steady = fleet.steady(SGEMM, cap=250)
    steady.clock_mhz            # shape (392,)

Source: docs/simulation.md. Devices 1 and 3 of a node sit in the warm air of devices 0 and 2. At steady state the
GPU's own power stands in for that of its upstream neighbour, which is exact as long as both run the same load;
`stepping.Simulation` uses the neighbour's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import stream
from .faults import FAULTS, HEALTHY, MOST_DRIFT, Fault, plant
from .models import V100, GpuModel
from .physics import Floats, Silicon, relative_time, settle
from .workloads import IDLE, Workload

GPUS_PER_NODE = 4

CAP_SETTLES_AT = 0.9925
"""Reported power over cap: the control loop keeps it between 98.5 % and 99.75 %, and this lies within."""


_ROWS = (*FAULTS, HEALTHY)  # index -1 is the healthy row


@dataclass(frozen=True)
class Spread:
    """How much the GPUs of a fleet differ; dimensionless unless the name has a unit. Fitted on V100."""

    voltage: float = 0.0176
    """Standard deviation (sd) of the voltage a clock needs, as a fraction."""
    leakage: float = 0.085
    """sd of ln leakage."""
    voltage_leakage_correlation: float = -0.6
    """Fast silicon needs less voltage and leaks more."""
    capacitance: float = 0.0115
    """sd of ln switching power."""
    sensor: float = 0.0083
    """sd of the gain of the power sensor."""
    board: float = 0.045
    """sd of the board power, as a fraction."""
    resistance: float = 0.045
    """sd of ln thermal resistance."""
    inlet_k: float = 4.2
    """sd of the inlet temperature from node to node."""
    preheat_k: float = 3.0
    """How much warmer the rear positions' air is without load ..."""
    preheat_k_w: float = 0.020
    """... and per watt, for the thermal resistance of a V100; it scales with the resistance."""


@dataclass(frozen=True)
class Steady:
    """Where each GPU settles: arrays of shape (gpus,)."""

    clock_mhz: Floats
    """SM clock; of a GPU under a duty-cycled slowdown the clock between the slow stretches."""
    temperature_c: Floats
    reported_power_w: Floats
    true_power_w: Floats
    relative_time: Floats
    """Run time over that of a GPU at its model's highest clock, with run-to-run noise."""


@dataclass(frozen=True)
class Fleet:
    """GPUs of one model, as drawn from a seed. Nodes hold four GPUs each, in order."""

    model: GpuModel
    seed: int
    silicon: Silicon
    fault: NDArray[np.int64]
    """Index into `FAULTS` per GPU, -1 for a healthy one."""

    @classmethod
    def draw(
        cls,
        model: GpuModel,
        gpus: int,
        seed: int,
        spread: Spread | None = None,
        *,
        faults: int | None = None,
        kinds: Sequence[str] = (),
    ) -> Fleet:
        """A fleet from a seed.

        Each GPU has each fault with the probability of its row in `FAULTS`, or exactly `faults` GPUs are
        faulty when that is given, the `kinds` (those with a published share, where none is named) taking turns.
        InputError when there is no GPU or too few for the faults, and for an unknown kind.
        """
        if gpus < 1:
            raise InputError(f"a fleet needs at least one GPU, not {gpus}")
        spread = spread or Spread()
        fault = plant(gpus, seed, faults, kinds)
        rows = _ROWS

        def normal(subject: str, size: int = gpus) -> Floats:
            return stream(seed, subject).standard_normal(size)

        def factor(values: list[float]) -> Floats:
            return np.array(values)[fault]

        corner = normal("voltage")
        rho = spread.voltage_leakage_correlation
        leak = rho * corner + np.sqrt(1 - rho**2) * normal("leakage")
        resistance = model.resistance_k_w * np.exp(spread.resistance * normal("resistance"))
        resistance = resistance * factor([row.resistance_factor for row in rows])
        rear = (np.arange(gpus) % GPUS_PER_NODE % 2).astype(np.float64)
        nodes = -(-gpus // GPUS_PER_NODE)
        inlet = model.inlet_c + np.repeat(spread.inlet_k * normal("inlet", nodes), GPUS_PER_NODE)[:gpus]
        preheat = rear * spread.preheat_k_w * model.resistance_k_w / V100.resistance_k_w
        silicon = Silicon(
            voltage=1 + spread.voltage * corner,
            leakage=np.exp(spread.leakage * leak - spread.leakage**2 / 2),
            capacitance=np.exp(spread.capacitance * normal("capacitance")),
            board=1 + spread.board * normal("board"),
            sensor=1 + spread.sensor * normal("sensor"),
            resistance_k_w=resistance + preheat,
            preheat_k_w=preheat,
            inlet_c=inlet + rear * spread.preheat_k,
            cap_w=model.power_limit_w * factor([row.cap_factor for row in rows]),
            ceiling_mhz=model.max_clock_mhz * factor([row.ceiling_factor for row in rows]),
            slowdown_share=factor([row.slowdown_share for row in rows]),
            memory=factor([row.memory_factor for row in rows]),
        )
        return cls(model=model, seed=seed, silicon=silicon, fault=fault)

    def __len__(self) -> int:
        """Number of GPUs."""
        return len(self.fault)

    @property
    def planted(self) -> dict[int, str]:
        """The faulty GPUs, by position, with the kind of their fault."""
        return {int(gpu): FAULTS[self.fault[gpu]].kind for gpu in np.flatnonzero(self.fault >= 0)}

    def fault_of(self, gpu: int) -> Fault:
        """The fault of the GPU at a position; `HEALTHY` where it has none."""
        return _ROWS[int(self.fault[gpu])]

    def aged(self, days: float) -> Fleet:
        """The same fleet a number of days later: the drifting GPUs cool worse."""
        rate = np.array([row.resistance_per_week for row in _ROWS])[self.fault]
        if not rate.any() or not days:
            return self
        own = self.silicon.resistance_k_w - self.silicon.preheat_k_w
        own = own * (1 + np.clip(rate * days / 7, 0, MOST_DRIFT))
        return replace(self, silicon=replace(self.silicon, resistance_k_w=own + self.silicon.preheat_k_w))

    def wrong_elements(self, *, run: int = 0) -> NDArray[np.int64]:
        """How many elements of a run's result are wrong, per GPU: 0 but in some runs of faulty ones."""
        share = np.array([row.wrong_share for row in _ROWS])[self.fault]
        random = stream(self.seed, "wrong results", run)
        caught = random.random(len(self)) < share
        return np.where(caught, random.geometric(0.1, len(self)), 0)

    def warmed(self, kelvin: float) -> Fleet:
        """The same fleet in a machine room that is so much warmer (K)."""
        return replace(self, silicon=replace(self.silicon, inlet_c=self.silicon.inlet_c + kelvin))

    def steady(
        self, workload: Workload, cap: float | None = None, lock: float | None = None, *, run: int = 0
    ) -> Steady:
        """Where the GPUs settle under a workload, with a power cap (W) and a clock lock (MHz).

        Each takes the highest clock at which the reported power stays within its cap and the temperature
        below the slowdown threshold. `run` numbers the repetition: it picks the noise on the time and nothing
        else. InputError for a cap or lock that the model cannot hold.
        """
        clock = self._clock(workload, *self.limits(cap, lock))
        power, temperature = settle(self.model, self.silicon, workload, clock)
        noise = stream(self.seed, f"time of {workload.name}", run).standard_normal(len(self))
        time = relative_time(self.model, self.silicon, workload, clock)
        return Steady(
            clock_mhz=clock,
            temperature_c=temperature,
            reported_power_w=power * self.silicon.sensor,
            true_power_w=power,
            relative_time=time * np.exp(workload.noise * noise),
        )

    def relative_time(self, workload: Workload, steady: Steady) -> Floats:
        """Run time over that of a GPU at its model's highest clock, without noise, of a clock that is not at rest.

        The control loop moves a GPU under its power cap between the step of `steady` and the next one, so that its
        mean power is what it settles at: the speed lies between those of the two steps accordingly. Without that,
        the times of a large fleet would come in as many heaps as there are clock steps.
        """
        bins, ceilings = self.model.clocks_mhz, self.limits(None, None)[1]
        following = np.minimum(np.searchsorted(bins, steady.clock_mhz) + 1, len(bins) - 1)
        above = np.where(bins[following] <= ceilings + 1e-6, bins[following], steady.clock_mhz)
        watts, temperature = settle(self.model, self.silicon, workload, above)
        room = CAP_SETTLES_AT * self.silicon.cap_w - steady.reported_power_w
        step = watts * self.silicon.sensor - steady.reported_power_w
        moves = (step > 0) & (temperature <= self.model.slowdown_c)
        share = np.clip(np.where(moves, room / np.where(moves, step, 1.0), 0.0), 0.0, 1.0)
        rate = (1 - share) / relative_time(self.model, self.silicon, workload, steady.clock_mhz)
        return np.asarray(1 / (rate + share / relative_time(self.model, self.silicon, workload, above)))

    def idle(self) -> Steady:
        """Where the GPUs settle without work: the lowest clock, no switching, no memory traffic."""
        return self.steady(IDLE, lock=self.model.min_clock_mhz)

    def limits(self, cap: float | None, lock: float | None) -> tuple[Floats, Floats]:
        """Cap (W) and highest clock (MHz) per GPU: the tighter of what is asked and what is enforced.

        InputError for a cap or lock that the model cannot hold.
        """
        model, caps, ceilings = self.model, self.silicon.cap_w, self.silicon.ceiling_mhz
        if cap is not None:
            if not model.min_power_limit_w <= cap <= model.power_limit_w:
                raise InputError(
                    f"{model.name} takes a power cap from {model.min_power_limit_w:g} to "
                    f"{model.power_limit_w:g} W, not {cap:g} W"
                )
            caps = np.minimum(caps, cap)
        if lock is not None:
            if not model.min_clock_mhz <= lock <= model.max_clock_mhz:
                raise InputError(
                    f"{model.name} takes a clock lock from {model.min_clock_mhz:g} to "
                    f"{model.max_clock_mhz:g} MHz, not {lock:g} MHz"
                )
            ceilings = np.minimum(ceilings, lock)
        return caps, ceilings

    def _clock(self, workload: Workload, caps: Floats, ceilings: Floats) -> Floats:
        """Highest clock (MHz) within both limits; power grows with the clock, so bisection finds it."""
        bins = self.model.clocks_mhz
        low = np.zeros(len(self), dtype=np.int64)
        high = np.searchsorted(bins, ceilings + 1e-6, side="right") - 1
        for _ in range(len(bins).bit_length()):
            middle = (low + high + 1) // 2
            power, temperature = settle(self.model, self.silicon, workload, bins[middle])
            fits = power * self.silicon.sensor <= CAP_SETTLES_AT * caps
            fits &= temperature <= self.model.slowdown_c
            low = np.where(fits, middle, low)
            high = np.maximum(np.where(fits, high, middle - 1), low)
        return bins[low]
