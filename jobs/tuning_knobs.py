"""The knobs of GPUs that tuning searches: which this user can set, their values, and how an administrator sets them.

The power limit in steps of 25 W, and every second clock that the SMs can be locked to. What cannot be set is named with
its reason. The default of a knob is how the GPU is set when tuning begins: a trial there sets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.tuning.search import Knob
from ..errors import InputError

if TYPE_CHECKING:
    from ..analysis.tuning.search import Setting
    from ..collectors.nvml_settings import Control
    from ..simulation.models import GpuModel

POWER, CLOCK, MEMORY = "power_limit_w", "sm_clock_mhz", "memory_clock_mhz"
_STEP_W = 25.0
_FEWEST, _MOST, _EVEN = 6, 64, 16  # with fewer or more steps of 25 W a range is cut into 16 even parts instead


@dataclass(frozen=True)
class UnsetKnob:
    """A knob that is not searched, because it cannot be set here."""

    name: str  # as of a `Knob`
    reason: str  # a sentence
    commands: tuple[str, ...]
    """With which an administrator sets it, one for each GPU; W, MHZ or MIN,MAX stands for the value."""
    values: tuple[float, ...] = ()  # the values that there are, where they are known


@dataclass(frozen=True)
class GpuKnobs:
    """The knobs of the GPUs of one model on a node."""

    knobs: tuple[Knob, ...]
    unset: tuple[UnsetKnob, ...] = ()
    indices: tuple[int, ...] = ()  # the numbers of the GPUs in `nvidia-smi`

    def limits(self, setting: Setting) -> dict[str, float | None]:
        """The power limit (W) and locked clock (MHz) of a setting, as arguments of `probes.settings.Settings`.

        None where the setting has the knob's default, or no such knob: then nothing is set.
        """
        changed = {knob.name: setting[knob.name] for knob in self.knobs if setting.get(knob.name) != knob.default}
        return {"power_limit_w": changed.get(POWER), "lock_clock_mhz": changed.get(CLOCK)}

    def commands(self, setting: Setting) -> list[str]:
        """With which an administrator makes a setting on every GPU; none for the default."""
        limits = self.limits(setting)
        watt, mhz = limits["power_limit_w"], limits["lock_clock_mhz"]
        lines = []
        for index in self.indices:
            lines += [] if watt is None else [f"nvidia-smi -i {index} -pl {watt:g}"]
            lines += [] if mhz is None else [f"nvidia-smi -i {index} -lgc {mhz:g},{mhz:g}"]
        return lines


def knobs_of_gpus(gpus: Sequence[str], *, tell: Callable[[str], None] = lambda _: None) -> GpuKnobs:
    """The knobs of these GPUs of one model (UUIDs), as the first of them has them.

    What a killed process left changed is restored first, and `tell` hears of it; else it would be taken for the
    default. Each knob is set once and restored, to see whether this user may. Raises InputError where the driver is not
    there, or another process has changed the GPU; DeviceError where it is gone.
    """
    from ..collectors.nvml_settings import Controls
    from ..probes.settings import restore_left_over

    for sentence in restore_left_over():
        tell(sentence)
    with Controls() as session:
        try:
            controls = [session.find(gpu) for gpu in gpus]
        except InputError as error:  # a MIG instance has no settings of its own
            return GpuKnobs((), tuple(UnsetKnob(name, str(error), ()) for name in (POWER, CLOCK)))
        indices = tuple(control.index() for control in controls)
        ranges = list(_ranges(controls[0]))
    knobs, unset = [], []
    for name, knob in ranges:
        reason = knob if isinstance(knob, str) else _refused(gpus[0], knob)
        if isinstance(knob, Knob) and reason is None:
            knobs.append(knob)
        else:
            values = knob.values if isinstance(knob, Knob) else ()
            unset.append(UnsetKnob(name, str(reason), tuple(_COMMAND[name].format(i) for i in indices), values))
    return GpuKnobs(tuple(knobs), tuple(unset), indices)


def knobs_of_model(model: GpuModel, gpus: int) -> GpuKnobs:
    """The knobs of so many simulated GPUs of a model, all of which can be set."""
    limit_w = model.power_limit_w
    power = Knob(POWER, power_values(model.min_power_limit_w, limit_w, limit_w), limit_w)
    return GpuKnobs((power, clock_knob(model.clocks_mhz.tolist())), indices=tuple(range(gpus)))


def power_values(least_w: float, most_w: float, *others_w: float) -> tuple[float, ...]:
    """Power limits to try, ascending, W: the multiples of 25 W in the range, its ends, and `others_w` within it.

    Where these are too few or too many: 16 whole numbers of even distance.
    """
    steps = np.arange(ceil(least_w / _STEP_W) * _STEP_W, most_w + 1e-9, _STEP_W)
    if not _FEWEST <= len(steps) <= _MOST:
        steps = np.unique(np.round(np.linspace(least_w, most_w, _EVEN)))
    ends = {float(watt) for watt in (least_w, most_w, *others_w) if least_w <= watt <= most_w}
    # The driver rounds a limit: two within a watt of each other are one for `probes.settings` as well.
    return tuple(sorted(ends | {float(watt) for watt in steps if all(abs(watt - end) >= 1 for end in ends)}))


def clock_knob(clocks_mhz: Sequence[float]) -> Knob:
    """Every second clock from the highest down. The highest is the default, and means that the clock is not locked."""
    values = tuple(float(mhz) for mhz in sorted(clocks_mhz)[::-1][::2][::-1])
    return Knob(CLOCK, values, values[-1])


def _ranges(control: Control) -> Iterator[tuple[str, Knob | str]]:
    """Names of knobs, each with what it can be, or why there is none."""
    try:
        least_w, most_w = (milliwatt / 1000 for milliwatt in control.power_range_mw())
        present_w, default_w = control.power_limit_mw() / 1000, control.default_power_limit_mw() / 1000
        yield POWER, Knob(POWER, power_values(least_w, most_w, present_w, default_w), present_w)
    except InputError as error:
        yield POWER, str(error)
    try:
        clock, memory_clocks = clock_knob(control.clocks()), control.memory_clocks()
        yield CLOCK, clock
        if len(memory_clocks) > 1:
            yield MEMORY, f"{control.gpu}: whorl does not lock memory clocks, so they are not searched"
    except InputError as error:
        yield CLOCK, str(error)


def _refused(gpu: str, knob: Knob) -> str | None:
    """Why this user cannot set a knob. It is set to the value beside its default for a moment."""
    from ..probes.settings import refusal

    if len(knob.values) < 2:
        return f"{gpu}: its only value is {knob.default:g}"
    place = knob.values.index(knob.default)
    beside = knob.values[place - 1 if place else 1]
    return refusal(gpu, **{"power_limit_w" if knob.name == POWER else "lock_clock_mhz": beside})


_COMMAND = {
    POWER: "nvidia-smi -i {} -pl W",
    CLOCK: "nvidia-smi -i {} -lgc MIN,MAX",
    MEMORY: "nvidia-smi -i {} -lmc MHZ",
}
