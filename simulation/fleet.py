"""A simulated fleet: the parameters drawn for each GPU, and its steady state under a workload.

    fleet = Fleet.draw(V100, gpus=392, seed=1)
    steady = fleet.steady(SGEMM, cap=250)
    steady.clock_mhz            # shape (392,)

Source: docs/how-we-know/simulation.md. Devices 1 and 3 of a node sit in the warm air of devices 0 and 2. At steady
state the GPU's own power stands in for that of its upstream neighbour, which is exact as long as both run the same
load; `stepping.Simulation` uses the neighbour's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .draws import Floats, stream
from .faults import HEALTHY, MOST_DRIFT, THROTTLED_TIME, Fault, fault_of, label, plant
from .load import IDLE, Workload
from .models import V100, GpuModel
from .physics import HOST_SHARED, OVERLAP, Silicon, relative_time, settle
from .spread import Spread, population_of, shaped, tail_of

GPUS_PER_NODE = 4
NODES_PER_CABINET = 8

CAP_SETTLES_AT = 0.9925
"""Reported power over cap: the control loop keeps it between 98.5 % and 99.75 %, and this lies within."""


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
    """GPUs of one model, as drawn from a seed. Nodes hold `per_node` GPUs each, in order."""

    model: GpuModel
    seed: int
    silicon: Silicon
    fault: NDArray[np.int64]
    """Index into `FAULTS` per GPU, -1 for a healthy one."""
    size: Floats
    """Size of the fault per GPU, as a share; NaN where it has none."""
    spread: Spread
    """What it was drawn from."""
    revision: NDArray[np.int64]
    """Board revision per GPU: 1, or 2 for the other one."""
    day: int | None = None
    """The day that it is on; None: no day changes it."""
    per_node: int = GPUS_PER_NODE

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
        at: Mapping[int, str] | None = None,
        per_node: int = GPUS_PER_NODE,
    ) -> Fleet:
        """A fleet from a seed.

        Each GPU has each fault with the probability of its row in `FAULTS`, or exactly `faults` GPUs are faulty when
        that is given, the `kinds` (those with a published share, where none is named) taking turns; a fault of a node
        then comes to the healthy GPUs beside it too. A kind may name its size, as in "slow_memory=3%". The GPUs at the
        positions `at` have these kinds instead. InputError when there is no GPU or too few for the faults, for an
        unknown kind, and for a size that it cannot have.
        """
        if gpus < 1:
            raise InputError(f"a fleet needs at least one GPU, not {gpus}")
        spread = spread or Spread()
        fault, size = plant(gpus, seed, faults, kinds, at)
        node = _node_of(gpus, per_node)
        for gpu in np.flatnonzero(fault >= 0).tolist():
            if fault_of(int(fault[gpu]), nan).of_node:
                mates = (node == node[gpu]) & (fault < 0)
                fault[mates], size[mates] = fault[gpu], size[gpu]

        def normal(subject: str, size: int = gpus) -> Floats:
            return stream(seed, subject).standard_normal(size)

        def factor(field: str) -> Floats:
            return _of_faults(fault, size, field)

        corner = shaped(seed, "voltage", gpus, skew=spread.silicon_skew)
        rho = spread.voltage_leakage_correlation
        leak = rho * corner + np.sqrt(1 - rho**2) * normal("leakage")
        capacitance = shaped(seed, "capacitance", gpus, skew=spread.silicon_skew)
        gain, conducts = normal("sensor"), normal("resistance")
        if spread.silicon_tail is not None:
            tail = tail_of(seed, "silicon: tail", gpus, tail=spread.silicon_tail)
            corner, leak, capacitance = corner * tail, leak * tail, capacitance * tail
            gain, conducts = gain * tail, conducts * tail
        cabinet = node // NODES_PER_CABINET
        resistance = model.resistance_k_w * np.exp(spread.resistance * conducts)
        resistance = resistance * factor("resistance_factor")
        if spread.dust:
            resistance = resistance * (1 + spread.dust * stream(seed, "dust").standard_exponential(node[-1] + 1)[node])
        rear = (np.arange(gpus) % per_node % 2).astype(np.float64)
        inlet = model.inlet_c + spread.inlet_k * normal("inlet", node[-1] + 1)[node]
        inlet = inlet + spread.cabinet_k * normal("inlet of a cabinet", cabinet[-1] + 1)[cabinet]
        is_revised = stream(seed, "revision").random(gpus) < spread.revision_share

        def speed(subject: str, sd: float, node_sd: float = 0.0) -> Floats:
            of_node = node_sd * normal(f"{subject} of a node", node[-1] + 1)[node]
            of_gpu = sd * shaped(seed, f"speed: {subject}", gpus, tail=spread.silicon_tail)
            return np.asarray(np.exp(of_gpu + of_node))

        def of_node(subject: str, mean: float, sd: float) -> Floats:
            return np.asarray(mean + sd * normal(f"{subject} of a node", node[-1] + 1)[node])

        preheat = rear * spread.preheat_k_w * model.resistance_k_w / V100.resistance_k_w
        silicon = Silicon(
            voltage=1 + spread.voltage * corner,
            leakage=np.exp(spread.leakage * leak - spread.leakage**2 / 2),
            capacitance=np.exp(spread.capacitance * capacitance),
            board=1 + spread.board * normal("board"),
            sensor=1 + spread.sensor * gain,
            sensor_offset_w=spread.sensor_offset * model.power_limit_w * normal("sensor offset"),
            resistance_k_w=resistance + preheat,
            preheat_k_w=preheat,
            inlet_c=inlet + rear * spread.preheat_k,
            cap_w=model.power_limit_w * factor("cap_factor"),
            ceiling_mhz=model.max_clock_mhz * factor("ceiling_factor"),
            slowdown_share=factor("slowdown_share"),
            memory=speed("memory", spread.memory) * (1 + spread.revision_memory * is_revised) * factor("memory_factor"),
            compute=speed("compute", spread.compute) * (1 + spread.revision_compute * is_revised),
            link=speed("link", spread.link, spread.link_node),
            peer=speed("peer", spread.peer) * factor("peer_factor"),
            launch=speed("launch", spread.launch, spread.launch_node),
            overlap=np.clip(of_node("overlap", OVERLAP, spread.overlap_node) - factor("overlap_loss"), 0.0, 1.0),
            host_shared=np.clip(of_node("host", HOST_SHARED, spread.host_node), 0.05, 1.0),
        )
        return cls(model, seed, silicon, fault, size, spread, 1 + is_revised.astype(np.int64), per_node=per_node)

    def __len__(self) -> int:
        """Number of GPUs."""
        return len(self.fault)

    @property
    def planted(self) -> dict[int, str]:
        """The faulty GPUs, by position, with the kind of their fault."""
        return {gpu: self.fault_of(gpu).kind for gpu in np.flatnonzero(self.fault >= 0).tolist()}

    @property
    def named(self) -> dict[int, str]:
        """As `planted`, but with the size of a fault that has not the usual one: what `draw` takes as kinds."""
        return {gpu: label(self.fault_of(gpu)) for gpu in np.flatnonzero(self.fault >= 0).tolist()}

    def fault_of(self, gpu: int) -> Fault:
        """The fault of the GPU at a position; `HEALTHY` where it has none."""
        return fault_of(int(self.fault[gpu]), float(self.size[gpu]))

    @property
    def node(self) -> NDArray[np.intp]:
        """The number of each GPU's node, from 0."""
        return _node_of(len(self), self.per_node)

    @property
    def population(self) -> str:
        """The name of what it was drawn from."""
        return population_of(self.spread)

    @property
    def vbios(self) -> tuple[str | None, ...]:
        """What the VBIOS of each GPU is called; None where it tells no revisions apart."""
        is_recorded = self.spread.revision_share > 0 and self.spread.revision_recorded
        return tuple(f"simulated {revision}" if is_recorded else None for revision in self.revision.tolist())

    def part(self, gpus: slice, seed: int) -> Fleet:
        """Some of the GPUs as a fleet of their own: of the same silicon and faults, with other random numbers in runs.

        What the whole fleet shares on a day is in it only if the fleet is on that day.
        """
        return replace(
            self,
            seed=seed,
            silicon=self.silicon.take(gpus),
            fault=self.fault[gpus],
            size=self.size[gpus],
            revision=self.revision[gpus],
        )

    def on_day(self, day: int) -> Fleet:
        """The same fleet on a day (its number): the room's and the nodes' inlet air differ a little, and so do times.

        A fleet that is on a day already stays as it is.
        """
        if self.day is not None:
            return self
        node = _node_of(len(self), self.per_node)
        room = stream(self.seed, "room of a day", day).standard_normal()
        nodes = stream(self.seed, "node of a day", day).standard_normal(node[-1] + 1)
        return replace(self.warmed(self.spread.room_k * room + self.spread.node_day_k * nodes[node]), day=day)

    def noise(self, workload: Workload, subject: str, number: int) -> Floats:
        """What the run of this number changes of ln time on each GPU: its noise, and that of the fleet's day."""
        spread, n = self.spread, len(self)
        draws = shaped(self.seed, subject, n, number, tail=spread.run_tail)
        log_noise = workload.noise * (draws + self.noise_of_day(workload))
        if spread.glitch_share:
            random = stream(self.seed, f"{subject}: glitch", number)
            caught = random.random(n) < spread.glitch_share
            log_noise = log_noise + caught * np.log1p(spread.glitch * random.standard_exponential(n))
        return log_noise

    def noise_of_day(self, workload: Workload) -> Floats:
        """What a workload's times differ by on the fleet's day, in units of its run-to-run noise."""
        if self.day is None or not self.spread.day:
            return np.zeros(len(self))
        subject, spread = f"day of {workload.name}", self.spread
        return spread.day * shaped(self.seed, subject, len(self), self.day, tail=spread.day_tail)

    def aged(self, days: float) -> Fleet:
        """The same fleet a number of days later: the drifting GPUs cool worse."""
        rate = _of_faults(self.fault, self.size, "resistance_per_week")
        if not rate.any() or not days:
            return self
        above_inlet_k_w = self.silicon.resistance_k_w - self.silicon.preheat_k_w
        above_inlet_k_w = above_inlet_k_w * (1 + np.clip(rate * days / 7, 0, MOST_DRIFT))
        return replace(self, silicon=replace(self.silicon, resistance_k_w=above_inlet_k_w + self.silicon.preheat_k_w))

    def wrong_elements(self, *, run: int = 0) -> NDArray[np.int64]:
        """How many elements of a run's result are wrong, per GPU: 0 but in some runs of faulty ones."""
        share = _of_faults(self.fault, self.size, "wrong_share")
        random = stream(self.seed, "wrong results", run)
        caught = random.random(len(self)) < share
        return np.where(caught, random.geometric(0.1, len(self)), 0)

    def throttled(self, run: int) -> Fleet:
        """The same fleet in a run: the hardware slows down the GPUs that it throttles in some runs, if this is one."""
        share = _of_faults(self.fault, self.size, "throttled_share")
        caught = stream(self.seed, "throttled", run).random(len(self)) < share
        if not caught.any():
            return self
        slowdown = self.silicon.slowdown_share + THROTTLED_TIME * caught
        return replace(self, silicon=replace(self.silicon, slowdown_share=slowdown))

    def warmed(self, kelvin: Floats | float) -> Fleet:
        """The same fleet in inlet air that is so much warmer (K), everywhere or for each GPU."""
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
        time = relative_time(self.model, self.silicon, workload, clock)
        return Steady(
            clock_mhz=clock,
            temperature_c=temperature,
            reported_power_w=power * self.silicon.sensor + self.silicon.sensor_offset_w,
            true_power_w=power,
            relative_time=time * np.exp(self.noise(workload, f"time of {workload.name}", run)),
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
        capped_w = steady.true_power_w * self.silicon.sensor
        room = CAP_SETTLES_AT * self.silicon.cap_w - capped_w
        step = watts * self.silicon.sensor - capped_w
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


def _node_of(gpus: int, per_node: int) -> NDArray[np.intp]:
    return np.arange(gpus, dtype=np.intp) // per_node


def _of_faults(fault: NDArray[np.int64], size: Floats, field: str) -> Floats:
    values = np.full(len(fault), float(getattr(HEALTHY, field)))
    for gpu in np.flatnonzero(fault >= 0).tolist():
        values[gpu] = getattr(fault_of(int(fault[gpu]), float(size[gpu])), field)
    return values
