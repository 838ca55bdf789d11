"""The control loop and the heat of simulated GPUs, step by step, as arrays over GPUs.

One control step lasts 20 ms, five are a block. In a step every GPU's power follows from its clock and its die's
temperature, the die warms, the reported power passes a filter, and clocks move. At the end of a block the heat
sinks warm and the load's power wobbles.

Source: docs/how-we-know/simulation.md. This is what a simulated hour costs, so it is written for speed: what depends on
the clock alone stands in tables, temperatures are kept as exponents of the leakage, counters that change only at the
highest clock or with the load are added up when that happens, and buffers are reused.
"""

from __future__ import annotations

from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from .draws import Floats
from .fleet import Fleet
from .load import IDLE, Load, Workload
from .models import Noise
from .physics import LEAKAGE_REFERENCE_C, Silicon, power_parts, relative_time

STEP_NS = 20_000_000
STEP_S = 0.02
BLOCK = 5
"""Control steps in a block of 0.1 s."""
AVERAGED_BLOCKS = 10
"""Blocks in the averaged power of a sensor: one second."""

DIE_SHARE, DIE_S = 0.35, 1.5
"""Share of the thermal resistance between die and heat sink, and its time constant (s)."""
SINK_SHARE, SINK_S = 0.65, 35.0
FILTER_S = 0.1
"""Time constant of the filter on the reported power."""

DOWN_ABOVE, UP_BELOW, FAST_ABOVE = 0.9975, 0.985, 1.05
"""Of filtered reported power over cap: where the clock goes down, up, and down by `FAST_BINS`."""
FAST_BINS = 8

WOBBLE_SHARE, WOBBLE_S = 0.004, 1.0
"""Work is not uniform: standard deviation of a load's power as a share of it, and how long it persists (assumed)."""

# How much of a difference goes in one step, or for the heat sink and the wobble in one block.
_DIE_A = 1 - exp(-STEP_S / DIE_S)
_FILTER_A = 1 - exp(-STEP_S / FILTER_S)
_SINK_A = 1 - exp(-STEP_S * BLOCK / SINK_S)
_WOBBLE_A = 1 - exp(-STEP_S * BLOCK / WOBBLE_S)
_WOBBLE_DRAW = WOBBLE_SHARE * (1 - (1 - _WOBBLE_A) ** 2) ** 0.5
_WOBBLE_SALT = 2
_KEPT_BYTES = 64 << 20  # of tables made by `turn`

Positions = NDArray[np.intp]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Loop:
    """GPUs under their control loop: all arrays have the shape (gpus,).

    They begin long idle, each at its lowest clock; `employ` gives them work, `turn` other work than the load's.
    `caps` (W) and `ceilings` (MHz) limit each. Temperatures are kept as (T - 60 °C) times the leakage's growth per
    kelvin: `die` above the sink, and `ground` for sink and inlet together, so that their sum is the exponent of the
    leakage.
    """

    def __init__(self, fleet: Fleet, load: Load, caps: Floats, ceilings: Floats, age_days: float = 0.0) -> None:
        model, n = fleet.model, len(fleet)
        self.fleet, self.load, self.step = fleet, load, 0
        self.cap_w, self.bins_mhz = caps, model.clocks_mhz
        self.noise = Noise(fleet.seed, n)
        self.highest: Counts = np.searchsorted(self.bins_mhz, ceilings + 1e-6, side="right") - 1
        idle_fixed, self._idle_leak = power_parts(model, fleet.silicon, IDLE, np.full(n, model.min_clock_mhz))
        self._idle_fixed = idle_fixed
        self._made: dict[Workload, tuple[Floats, float]] = {}
        self._reach = 0.0
        self._at = self._tables()

        self.bin: Counts = np.zeros(n, dtype=np.int64)
        self.top: Counts = np.zeros(n, dtype=np.int64)  # without work, the lowest
        # The load's power and the leakage at 60 °C (W), and the speed of work: rows of one array, moved together.
        self._state = np.stack([np.zeros(n), self._idle_leak, np.zeros(n)])
        self._load, self._leak, self.speed = self._state
        self._wobble, self._swell = np.zeros(n), np.ones(n)  # the second is one more
        self._up_below = np.full(n, -inf)  # UP_BELOW where the clock can still rise
        # `loaded` and `held` are up to the step `span_since` of each GPU.
        self.span_since: Counts = np.zeros(n, dtype=np.int64)
        self.worked = np.zeros(n)  # steps of work at the model's highest clock
        self.loaded: Counts = np.zeros(n, dtype=np.int64)  # steps under load
        self.held: Counts = np.zeros(n, dtype=np.int64)  # steps below the ceiling
        self.free: Counts = np.zeros(n, dtype=np.int64)  # of these, steps after which the clock rose
        self.hot: Counts = np.zeros(n, dtype=np.int64)  # of these, steps in which the temperature kept it down
        self.throttled = np.zeros(n)  # share of the time: the slowdown that the work brings
        self.slowed = np.zeros(n)  # of the steps under load, those of that slowdown
        self.energy_mj = np.zeros(n)  # up to the end of the last block

        self.age(age_days)
        self._settle(fleet.aged(age_days))
        self._scratch, self._growth = np.empty(n), np.empty(n)
        self._over, self._below = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.bool_)

    # -- commands -----------------------------------------------------------------------------------------

    def run(self, target: int) -> None:
        """Steps up to `target`."""
        # Every name is a local one: this loop is what the simulated hour costs.
        multiply, add, growing = np.multiply, np.add, np.exp
        greater, less, count = np.greater, np.less, np.count_nonzero
        load, leak, speed, idle, swell = self._load, self._leak, self.speed, self._idle_fixed, self._swell
        growth, scratch, worked = self._growth, self._scratch, self.worked
        die, ground, ratio, rows = self.die, self.ground, self.ratio, self.rows
        die_gain, ratio_gain, die_keeps, ratio_keeps = self._die_gain, self._ratio_gain, 1 - _DIE_A, 1 - _FILTER_A
        over, below, up_below = self._over, self._below, self._up_below
        step = self.step
        while step < target:
            row = rows[step % BLOCK]
            add(die, ground, out=scratch)
            growing(scratch, out=growth)
            multiply(leak, growth, out=row)
            multiply(load, swell, out=scratch)
            add(row, scratch, out=row)
            add(row, idle, out=row)
            add(worked, speed, out=worked)
            multiply(die, die_keeps, out=die)
            multiply(row, die_gain, out=scratch)
            add(die, scratch, out=die)
            multiply(ratio, ratio_keeps, out=ratio)
            multiply(row, ratio_gain, out=scratch)
            add(ratio, scratch, out=ratio)
            greater(ratio, DOWN_ABOVE, out=over)
            less(ratio, up_below, out=below)
            step += 1
            if self._near_hot:
                self._throttle(over, below)
            if count(below) or count(over):
                self.step = step
                self._shift(over, below)
            if step % BLOCK == 0:
                self.step = step
                self._end_block()
        self.step = step

    def employ(self, gpus: Positions, busy: Flags) -> None:
        """Give GPUs work, or take it from them: a GPU without work is at its lowest clock at once."""
        self._count_spans(gpus)
        self.bin[gpus] = 0
        self.top[gpus] = np.where(busy, self.highest[gpus], 0)
        idle = np.stack([np.zeros(len(gpus)), self._idle_leak[gpus], np.zeros(len(gpus))])
        self._state[:, gpus] = np.where(busy, self._at[:, 0, gpus], idle)
        self._up_below[gpus] = np.where(self.top[gpus] > 0, UP_BELOW, -inf)

    def turn(self, gpus: Positions, workload: Workload | None) -> None:
        """Give GPUs a workload of their own, or none, at the clock that each has; it may rise from there."""
        self._count_spans(gpus)
        table, warming = self._table(workload or IDLE, bool(workload))
        self._at[:, :, gpus] = table[:, :, gpus]
        self.throttled[gpus] = workload.slowdown if workload else 0.0
        bins = np.minimum(self.bin[gpus], self.highest[gpus])
        self.bin[gpus] = bins
        self.top[gpus] = self.highest[gpus]
        self._state[:, gpus] = table[:, bins, gpus]
        self._up_below[gpus] = np.where(self.top[gpus] > bins, UP_BELOW, -inf)
        self._reach = max(self._reach, warming)
        self._look_out()

    def wake(self, gpus: Positions) -> None:
        """Let the clocks of GPUs without work jump to the highest."""
        self.bin[gpus] = self.highest[gpus]
        self.turn(gpus, None)

    def age(self, days: float) -> None:
        """Set the age of the fleet in days: drifting GPUs conduct their heat worse."""
        self._conduct(self.fleet.aged(days).silicon)

    def reset(self, gpu: int) -> None:
        """Set the counters of a GPU to 0, as when its driver is reloaded."""
        self._count_spans(np.array([gpu], dtype=np.intp))
        self.worked[gpu] = self.slowed[gpu] = 0.0
        for counter in (self.loaded, self.held, self.free, self.hot):
            counter[gpu] = 0
        self.energy_mj[gpu] = -float(self.rows[: self.step % BLOCK, gpu].sum()) * (1000 * STEP_S)

    # -- steps --------------------------------------------------------------------------------------------

    def _throttle(self, over: Flags, below: Flags) -> None:
        """Widen `over` and narrow `below` by the temperature."""
        exponent = self.die + self.ground
        cool = exponent < self.too_warm
        over |= (exponent > self._too_hot) & (self.top > 0)
        below &= cool
        self.hot += ~cool & (self.bin < self.top)

    def _shift(self, over: Flags, below: Flags) -> None:
        """Move the clocks of the GPUs that are over the cap, too hot, or may rise."""
        moving = (over | below).nonzero()[0]
        down, bins, top = over[moving], self.bin[moving], self.top[moving]
        to = bins + np.where(down, -1, 1)
        fast = self.ratio[moving] > FAST_ABOVE
        if np.count_nonzero(fast):
            to[fast] = bins[fast] - FAST_BINS
        np.maximum(to, 0, out=to)
        self.free[moving] += ~down
        crossing = np.maximum(bins, to) == top
        if np.count_nonzero(crossing):
            self._count_spans(moving[crossing])
            self._up_below[moving[crossing]] = np.where(to < top, UP_BELOW, -inf)[crossing]
        self.bin[moving] = to
        self._state[:, moving] = self._at[:, to, moving]

    def _end_block(self) -> None:
        """What happens every 0.1 s: energy, heat sinks, what slow sensors see, the wobble of the loads."""
        rows, block = self.rows, self.step // BLOCK
        mean = self.means[block % AVERAGED_BLOCKS]
        np.add.reduce(rows, axis=0, out=mean)
        self.energy_mj += mean * (1000 * STEP_S)
        mean /= BLOCK
        sink = self._sink
        sink *= 1 - _SINK_A
        sink += self._sink_gain * mean
        sink[1:] += self._upstream_gain[1:] * mean[:-1]
        np.add(self._inlet, sink, out=self.ground)
        # 25 ms: the last step and a quarter of the one before.
        np.multiply(rows[-1], 0.8, out=self.last_25_ms)
        self.last_25_ms += 0.2 * rows[-2]
        wobble = self._wobble
        wobble *= 1 - _WOBBLE_A
        wobble += _WOBBLE_DRAW * self.noise.at(block, salt=_WOBBLE_SALT)
        np.add(wobble, 1.0, out=self._swell)
        self._look_out()

    def _look_out(self) -> None:
        """Whether a die may come near the slowdown temperature in the next block."""
        self._near_hot = bool(np.max(self.die + self.ground) > self.too_warm - self._reach)

    def _count_spans(self, gpus: Positions) -> None:
        """Bring the lazy counters of GPUs up to this step, before what they count changes."""
        steps = self.step - self.span_since[gpus]
        self.loaded[gpus] += steps * (self.speed[gpus] > 0)
        self.slowed[gpus] += steps * (self.speed[gpus] > 0) * self.throttled[gpus]
        self.held[gpus] += steps * (self.bin[gpus] < self.top[gpus])
        self.span_since[gpus] = self.step

    # -- beginnings ---------------------------------------------------------------------------------------

    def _tables(self) -> Floats:
        """What `_state` is by bin and GPU, under that GPU's workload: shape (3, bins, gpus)."""
        model, silicon, n = self.fleet.model, self.fleet.silicon, len(self.fleet)
        table = np.zeros((3, len(self.bins_mhz), n))
        load, leak, speed = table
        groups: dict[Workload, list[int]] = {}
        for gpu in range(n):
            workload = self.load.workload_of(gpu)
            if workload is not None:
                groups.setdefault(workload, []).append(gpu)
        for workload, gpus in groups.items():
            part = silicon.take(np.array(gpus))
            fixed, leak[:, gpus] = power_parts(model, part, workload, self.bins_mhz[:, None])
            load[:, gpus] = fixed - self._idle_fixed[gpus]
            speed[:, gpus] = 1 / relative_time(model, part, workload, self.bins_mhz[:, None])
        return table

    def _table(self, workload: Workload, works: bool) -> tuple[Floats, float]:
        """As `_tables`, of all GPUs under one workload, and how much it warms; those used last are kept."""
        tables = self._made.pop(workload, None)
        if tables is None:
            model, silicon, bins = self.fleet.model, self.fleet.silicon, self.bins_mhz[:, None]
            table = np.zeros((3, len(bins), len(self.fleet)))
            fixed, table[1] = power_parts(model, silicon, workload, bins)
            table[0] = fixed - self._idle_fixed
            if works:
                table[2] = 1 / relative_time(model, silicon, workload, bins)
            tables = table, self._most_warming(table)
            while self._made and (len(self._made) + 1) * table.nbytes > _KEPT_BYTES:
                del self._made[next(iter(self._made))]
        self._made[workload] = tables
        return tables

    def _settle(self, fleet: Fleet) -> None:
        """Heat, filter and sensors of GPUs that have long been idle."""
        model, silicon = fleet.model, fleet.silicon
        per_k = model.leakage_per_k
        idle = fleet.idle().true_power_w
        heating_k = per_k * (silicon.resistance_k_w - silicon.preheat_k_w)
        self._inlet = per_k * (silicon.inlet_c - LEAKAGE_REFERENCE_C)
        self.die = DIE_SHARE * heating_k * idle
        self._sink = SINK_SHARE * heating_k * idle
        self._sink[1:] += per_k * silicon.preheat_k_w[1:] * idle[:-1]
        self.ground = self._inlet + self._sink
        self.ratio = silicon.sensor * idle / self.cap_w
        self._ratio_gain = _FILTER_A * silicon.sensor / self.cap_w
        self.rows = np.tile(idle, (BLOCK, 1))  # true power of the block's steps, W
        self.means = np.tile(idle, (AVERAGED_BLOCKS, 1))  # of the last blocks, W
        self.last_25_ms = idle.copy()  # at the end of the last block, W
        self._too_hot = per_k * (model.slowdown_c - LEAKAGE_REFERENCE_C)
        self.too_warm = self._too_hot - per_k
        self._reach = self._most_warming(self._at)
        self._look_out()

    def _most_warming(self, table: Floats) -> float:
        """No die warms more in a block than by this, at any clock up to 2 K above the slowdown temperature."""
        hottest = exp(self._too_hot + 2 * self.fleet.model.leakage_per_k)
        most_w = self._idle_fixed + table[0] + table[1] * hottest
        return BLOCK * float(np.max(self._die_gain * most_w.max(axis=0))) * (1 + 5 * WOBBLE_SHARE)

    def _conduct(self, silicon: Silicon) -> None:
        """Take up thermal resistances: what a watt adds to die and sink in one step or block."""
        per_k = self.fleet.model.leakage_per_k
        heating_k = per_k * (silicon.resistance_k_w - silicon.preheat_k_w)
        self._die_gain = _DIE_A * DIE_SHARE * heating_k
        self._sink_gain = _SINK_A * SINK_SHARE * heating_k
        self._upstream_gain = _SINK_A * per_k * silicon.preheat_k_w
