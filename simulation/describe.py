"""What is simulated of a GPU model, and the source of each number, so that people can judge the simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import nodes
from .control import BLOCK, DIE_S, DIE_SHARE, FILTER_S, SINK_S, SINK_SHARE, STEP_S, WOBBLE_S, WOBBLE_SHARE
from .faults import Fault
from .fleet import CAP_SETTLES_AT, Fleet
from .load import SGEMM
from .models import A100, ASSUMED, FITTED, NOISE_SHARE, NUMBERS, SEEN, SENSORS, V100, GpuModel
from .physics import HOST_SHARED, OVERLAP
from .rates import rates_of
from .spread import Spread

_FIT_GPUS = 392


@dataclass(frozen=True)
class Parameter:
    """One number of the simulation, with what it rests on."""

    name: str
    value: float | str
    unit: str
    basis: str
    """`SEEN`, `FITTED` or `ASSUMED`."""
    meaning: str


# Values of one board that no output of a driver was at hand for.
_UNSEEN = {(A100.name, name) for name in ("power_limit_w", "min_power_limit_w", "memory_clock_mhz", "max_operating_c")}
# of the spread: attribute, unit, basis for V100, meaning
_SPREAD = (
    ("voltage", "", FITTED, "sd of the voltage that a clock needs, as a fraction"),
    ("leakage", "", FITTED, "sd of ln leakage"),
    ("voltage_leakage_correlation", "", FITTED, "fast silicon needs less voltage and leaks more"),
    ("capacitance", "", FITTED, "sd of ln switching power"),
    ("sensor", "", FITTED, "sd of the gain of the power sensor"),
    ("board", "", FITTED, "sd of the board power, as a fraction"),
    ("resistance", "", FITTED, "sd of ln thermal resistance"),
    ("inlet_k", "K", FITTED, "sd of the inlet temperature from node to node"),
    ("preheat_k", "K", FITTED, "how much warmer the rear GPUs' air is without load"),
    ("preheat_k_w", "K/W", FITTED, "increase of that per watt of the GPU upstream"),
    ("compute", "", ASSUMED, "sd of ln speed of the multiprocessors at one clock"),
    ("memory", "", FITTED, "sd of ln speed of the memory"),
    ("link", "", ASSUMED, "sd of ln speed of copies from and to the host"),
    ("peer", "", ASSUMED, "sd of ln speed of copies to another GPU of the node"),
    ("launch", "", ASSUMED, "sd of ln speed of launches from GPU to GPU"),
    ("launch_node", "", ASSUMED, "sd of ln speed of launches from node to node: the host"),
    ("overlap_node", "", ASSUMED, "sd of the share of copies that hides behind a kernel, from node to node"),
    ("host_node", "", ASSUMED, "sd of the share of its link that a GPU has when all of its node copy, by node"),
    ("room_k", "K", FITTED, "sd of the inlet temperature of all GPUs from day to day"),
    ("node_day_k", "K", FITTED, "sd of the inlet temperature of a node from day to day"),
    ("day", "", FITTED, "sd of a GPU's ln time from day to day, over the run-to-run noise of the workload"),
)
_LOOP = (
    ("control_step_s", STEP_S, "s", "step of the simulation and of the power capping"),
    ("filter_s", FILTER_S, "s", "time constant of the filter before the power capping"),
    ("die_share", DIE_SHARE, "", "share of the thermal resistance between die and heat sink"),
    ("die_s", DIE_S, "s", "thermal time constant of the die"),
    ("sink_share", SINK_SHARE, "", "share of the thermal resistance between heat sink and air"),
    ("sink_s", SINK_S, "s", "thermal time constant of the heat sink"),
    ("wobble_share", WOBBLE_SHARE, "", "sd of a load's power over time, as a share of it"),
    ("wobble_s", WOBBLE_S, "s", "correlation time of that variation"),
    ("cap_settles_at", CAP_SETTLES_AT, "", "reported power over cap at steady state"),
)
_NODE = (
    ("node_base_w", nodes.BASE_W, "W", "power of a node's board, fans, network and disks; sd 10 % from node to node"),
    ("node_cpu_idle_w", nodes.CPU_IDLE_W, "W", "power of a node's CPUs and their memory at no load"),
    ("node_cpu_busy_w", nodes.CPU_BUSY_W, "W", "the same at full load"),
    ("node_efficiency", nodes.EFFICIENCY, "", "of the power supplies: power behind them over power at the wall"),
    ("node_meter_gain", nodes.METER_GAIN, "", "sd of the gain of a node's meter"),
    ("node_meter_step_w", nodes.METER_STEP_W, "W", "resolution of a node's meter"),
)
_COPIES = (
    ("overlap", OVERLAP, "", "share of copies and kernels of equal length that hide each other"),
    ("host_shared", HOST_SHARED, "", "share of its link that each GPU of a node has when all of them copy"),
)
# attribute of the model's rates, unit, basis, meaning
_RATES = (
    ("sms", "", SEEN, "multiprocessors"),
    ("l2_mib", "MiB", SEEN, "second-level cache"),
    ("l2_bytes_per_clock", "B", ASSUMED, "of the second-level cache in a clock"),
    ("pcie_gb_s", "GB/s", ASSUMED, "pinned copies from or to the host"),
    ("peer_gb_s", "GB/s", ASSUMED, "copies to another GPU of the node"),
    ("l2_ns", "ns", ASSUMED, "latency of a load within the second-level cache"),
    ("dram_ns", "ns", ASSUMED, "from the memory"),
    ("launch_us", "us", ASSUMED, "from one empty kernel to the next"),
    ("atomics_per_clock", "", ASSUMED, "atomic additions of a multiprocessor in a clock"),
)


def parameters(model: GpuModel) -> tuple[Parameter, ...]:
    """Every number of a model, of the spread over its GPUs, of its control loop and of how fast it works."""
    is_fitted = model is V100
    rows = []
    for name, (_, unit, fitted, assumed, meaning) in NUMBERS.items():
        basis = ASSUMED if (model.name, name) in _UNSEEN else fitted if is_fitted else assumed
        rows.append(Parameter(name, getattr(model, name), unit, basis, meaning))
    spread = Spread()
    rows += [
        Parameter(f"spread_{name}", getattr(spread, name), unit, basis if is_fitted else ASSUMED, meaning)
        for name, unit, basis, meaning in _SPREAD
    ]
    rows += [
        Parameter(name, value, unit, ASSUMED, meaning) for name, value, unit, meaning in (*_LOOP, *_COPIES, *_NODE)
    ]
    rates = rates_of(model)
    for kind, units in (("vector", rates.vector), ("tensor", rates.tensor)):
        per_clock = "of a multiprocessor in a clock" + (", tensor cores" if kind == "tensor" else "")
        rows += [
            Parameter(f"{kind}_{precision}", value, "", SEEN, f"{precision} operations {per_clock}")
            for precision, value in units.items()
        ]
    rows += [Parameter(name, getattr(rates, name), unit, basis, meaning) for name, unit, basis, meaning in _RATES]
    return tuple(rows)


def sensors(model: GpuModel) -> tuple[str, ...]:
    """What the model's power sensor and driver show, a sentence each."""
    row = SENSORS[model.name]
    instant = (
        f"instantaneous power: a new value every {row.instant_period_ms} ms, the mean of the last "
        f"{row.instant_window_ms} ms"
    )
    draw = (
        "power draw: the instantaneous value"
        if row.average_window_ms is None
        else f"power draw: the mean of the last {row.average_window_ms / 1000:g} s, a new value every "
        f"{BLOCK * STEP_S * 1000:g} ms"
    )
    noise = NOISE_SHARE * model.power_limit_w
    return (
        instant,
        draw,
        f"every board's sensor has a gain of its own, and a noise of {noise:.2g} W (standard deviation)",
        "energy: a counter in mJ since the driver was loaded, the exact sum of the true power",
        "temperature in whole degC" + (", memory temperature too" if row.memory_temperature else ""),
    )


def sizes(fault: Fault) -> dict[str, float | str | None]:
    """What the size of a fault is, its usual size and the range, in %; None for a kind without size."""
    if fault.size is None:
        return {"size": None, "size_pct": None, "least_pct": None, "most_pct": None}
    usual, least, most = (round(100 * size, 9) for size in (fault.size, fault.least, fault.most))
    return {"size": fault.size_says, "size_pct": usual, "least_pct": least, "most_pct": most}


def steady_point(model: GpuModel) -> dict[str, float]:
    """Where a healthy fleet of the model settles under SGEMM: medians, and the spread of the clock. Seed 1."""
    fleet = Fleet.draw(model, _FIT_GPUS, seed=1, faults=0)
    steady, idle = fleet.steady(SGEMM), fleet.idle()
    quartiles = np.percentile(steady.relative_time, [25, 50, 75])
    return {
        "sm_clock_mhz": float(np.median(steady.clock_mhz)),
        "sm_clock_sd_mhz": float(np.std(steady.clock_mhz, ddof=1)),
        "power_w": float(np.median(steady.reported_power_w)),
        "temperature_c": float(np.median(steady.temperature_c)),
        "idle_power_w": float(np.median(idle.reported_power_w)),
        "time_fence_pct": float(400 * (quartiles[2] - quartiles[0]) / quartiles[1]),
    }
