"""What `whorl energy excess` says of fleets whose truth is known. Prints JSON.

    python benchmarks/energy_excess.py > benchmarks/results/energy_excess.json

    healthy   no fault is planted: how many fleets have a GPU shown to cost energy or time though it costs none, beside
              rules that others would use on the same fingerprints; how often the 95 % interval holds the truth.
    planted   2 % of the GPUs are slow, and 2 % hungry: the share that is shown, the excess that is said over the true
              one, and how often the interval holds it.

The truth is in true watts; every board has a sensor of its own, drawn with gain and offset of the 19 boards that were
measured against a meter (`store.sensor_error`; normal with their mean and covariance), or from others. A job takes the
GPU's levels of a random mix of the workloads of its kind, so that no fingerprint has just its work. Shares have 95 %
Wilson intervals. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.excess import BUSY, add_excess, excess
from whorl.analysis.energy.levels import levels
from whorl.analysis.runs.probing import COMPUTE, MEMORY
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, share
from whorl.benchmarks.verdict_fleets import campaign_of
from whorl.store.instants import times_of_ns
from whorl.store.power_sensors import MEASURED_BOARDS

Floats = npt.NDArray[np.float64]

WORK = {"gemm": (297.0, COMPUTE), "fma": (220.0, COMPUTE), "stream": (145.0, MEMORY), "copy": (150.0, MEMORY)}
"""Power (W) and what it stresses."""
IDLE_W = 45.0
LIMIT_W = 300.0
POPULATIONS = ("normal", "alike", "t5 silicon", "narrow sensors", "wide sensors", "held by the limit", "one sitting")
"""GPUs differ by 1.7 % in gemm, 0.5 % in others, 2 % in power (robustly); no differences at all; heavy tails; sensors
that differ by 1 %; by twice as much as the measured ones, with t3 tails; gemm at the power limit, held by the board's
own sensor; each GPU measured in one sitting only."""
SLOW, HUNGRY = 0.12, 0.20
_RUN, _DAY = 0.0015, 0.002
_JOBS = 14
_DAY_S = 86_400.0


@dataclass(frozen=True)
class ExcessFleet:
    """A fleet, what is seen of it, and its true excess."""

    fingerprints: pl.DataFrame
    pieces: pl.DataFrame
    busy: pl.DataFrame
    energy_j: Floats
    """(gpus,) the true excess of each."""
    time_s: Floats
    slow: npt.NDArray[np.bool_]
    hungry: npt.NDArray[np.bool_]


def made(random: np.random.Generator, gpus: int, population: str, planted: float = 0.0) -> ExcessFleet:
    """A fleet of one model; `planted`: the share of its GPUs that is slow, and that is hungry."""
    time, power, gain, offset = _boards(random, gpus, population)
    order = random.permutation(gpus)
    n = round(planted * gpus)
    slow, hungry = (np.isin(np.arange(gpus), some) for some in (order[:n], order[n : 2 * n]))
    time = time + np.log1p(SLOW) * slow[:, None]
    power = power + np.log1p(HUNGRY) * hungry[:, None]
    watts = np.array([watts for watts, _ in WORK.values()]) * np.exp(power)
    if population == "held by the limit":  # the board's own sensor holds what it draws, and the clock follows
        held = (LIMIT_W - offset) / (1 + gain)
        time[:, 0] += np.log(watts[:, 0] / held).clip(min=-0.2) / 2.4
        watts[:, 0] = held
    read = (1 + gain)[:, None] * watts + offset[:, None]
    found = fingerprint(Model(_campaign(random, time, read, 1 if population == "one sitting" else 3)))
    return _with_jobs(random, found, time, watts, gain, offset, slow, hungry)


def _boards(random: np.random.Generator, gpus: int, population: str) -> tuple[Floats, Floats, Floats, Floats]:
    def drawn(shape: tuple[int, ...]) -> Floats:
        return (
            random.standard_t(5, shape) / np.sqrt(5 / 3)
            if population == "t5 silicon"
            else random.standard_normal(shape)
        )

    alike = 0.0 if population == "alike" else 1.0
    silicon, own = drawn((gpus, 1)), drawn((gpus, len(WORK)))
    time = alike * (np.array([0.016, 0.003, 0.001, 0.001]) * silicon + 0.004 * own)
    power = alike * 0.02 * drawn((gpus, 1)) + alike * 0.004 * random.standard_normal((gpus, len(WORK)))
    if population == "narrow sensors" or population == "alike":
        return time, power, 0.01 * random.standard_normal(gpus), 0.5 * random.standard_normal(gpus)
    if population == "wide sensors":
        return time, power, (0.05 * random.standard_t(3, gpus)).clip(-0.5, 0.5), 8 * random.standard_normal(gpus)
    measured = np.array([[gain / 100, offset] for _, gain, offset in MEASURED_BOARDS])
    gain, offset = random.multivariate_normal(measured.mean(axis=0), np.cov(measured.T), gpus).T
    return time, power, gain, offset


def _campaign(random: np.random.Generator, time: Floats, read: Floats, sittings: int) -> Any:
    gpus, runs = len(time), 3
    each = sittings * runs
    gpu = np.repeat(np.arange(gpus), each)
    day = np.tile(np.repeat(np.arange(sittings), runs), gpus)
    at = 1_790_000_000_000_000 + day * 15 * 86_400_000_000 + np.tile(np.arange(runs), gpus * sittings) * 60_000_000
    frames = []
    for place, (name, (_, stresses)) in enumerate(WORK.items()):
        moved = (_DAY * random.standard_normal((gpus, sittings)))[gpu, day] + _RUN * random.standard_normal(len(gpu))
        watts = read[gpu, place] * np.exp(0.002 * random.standard_normal(len(gpu)))
        frames.append(
            pl.DataFrame(
                {
                    "run_id": np.arange(len(gpu)) + place * len(gpu), "gpu_at": gpu, "workload": [name] * len(gpu),
                    "began": at + place * 10_000_000, "value": np.exp(3.0 + time[gpu, place] + moved),
                    "sm_clock_mhz": 1400.0, "power_w": watts, "temperature_c": 60.0, "stresses": [stresses] * len(gpu),
                }
            )
        )  # fmt: skip
    return campaign_of(pl.concat(frames), np.arange(gpus) // 4, gpus)


def _with_jobs(
    random: np.random.Generator, found: pl.DataFrame, time: Floats, watts: Floats, gain: Floats, offset: Floats,
    slow: npt.NDArray[np.bool_], hungry: npt.NDArray[np.bool_],
) -> ExcessFleet:  # fmt: skip
    """Each GPU has jobs of a day: the truth of each, and what is read of it."""
    gpus = len(time)
    kind = random.integers(2, size=(gpus, _JOBS))  # compute or memory
    mix = random.random((gpus, _JOBS))
    busy = random.uniform(0.5, 1.0, (gpus, _JOBS))

    def mixed(of: Floats) -> Floats:
        first = np.where(kind == 0, of[:, [0]], of[:, [2]])
        second = np.where(kind == 0, of[:, [1]], of[:, [3]])
        return mix * first + (1 - mix) * second

    usual_time, usual_energy = np.median(time, axis=0), np.median(time + np.log(watts), axis=0)
    t, e = mixed(time - usual_time), mixed(time + np.log(watts) - usual_energy)
    work_j = busy * _DAY_S * mixed(watts)
    true_j = work_j + (1 - busy) * _DAY_S * IDLE_W
    read_j = (1 + gain)[:, None] * true_j + offset[:, None] * _DAY_S
    rows = gpus * _JOBS
    names = np.repeat([f"GPU-{one:05d}" for one in range(gpus)], _JOBS)
    began = 1_791_000_000_000_000_000 + np.tile(np.arange(_JOBS) * int(_DAY_S * 1e9), gpus)
    since = times_of_ns(pl.Series(began))
    idle_j = np.repeat((1 + gain) * IDLE_W + offset, _JOBS) * _DAY_S
    one = {
        "cluster": ["made"] * rows, "gpu": names, "node": [f"n{at // 4}" for at in np.repeat(np.arange(gpus), _JOBS)],
        "began": since, "ended": since + timedelta(seconds=_DAY_S),
        "kind": ["job"] * rows, "allocation": [str(at) for at in range(rows)], "share": [1.0] * rows,
        "energy_j": read_j.ravel(), "idle_j": idle_j, "idle_low_j": idle_j, "idle_high_j": idle_j,
        "idle_source": [None] * rows,
        "below_j": [0.0] * rows, "above_j": [0.0] * rows, "variance_j2": [0.0] * rows, "sensed_j": read_j.ravel(),
        "sensed_s": [_DAY_S] * rows, "measured_s": [_DAY_S] * rows, "method": ["power"] * rows, "reason": [None] * rows,
    }  # fmt: skip
    use = {
        "cluster": ["made"] * rows, "gpu": names, "allocation": one["allocation"], "busy": busy.ravel(),
        "memory": (busy * np.where(kind == 0, 0.15, 0.8)).ravel(), "workload": [None] * rows,
    }  # fmt: skip
    excess_j, excess_s = (work_j * -np.expm1(-e)).sum(axis=1), (busy * _DAY_S * -np.expm1(-t)).sum(axis=1)
    return ExcessFleet(
        found, pl.DataFrame(one, schema=PIECES), pl.DataFrame(use, schema=BUSY), excess_j, excess_s, slow, hungry
    )


# -- what is said of them -------------------------------------------------------------------------------------------

RULES = ("whorl", "above the median", "5 % above the median", "Tukey's fence")
"""Who costs, of energy: by whorl, and by the energy for the same work, the mean over the workloads, of readings alone.
"""


def by_rules(fleet: ExcessFleet) -> dict[str, npt.NDArray[np.bool_]]:
    """The GPUs that others would name."""
    wide = fleet.fingerprints.filter(pl.col("figure") == "work_per_joule").sort("gpu", "workload")
    values = -np.log(wide["value"].to_numpy().reshape(-1, len(WORK)))
    x = (values - np.median(values, axis=0)).mean(axis=1)
    low, high = np.quantile(x, (0.25, 0.75))
    return dict(zip(RULES[1:], (x > 0, x > np.log(1.05), x > high + 1.5 * (high - low)), strict=True))


def judged(fleet: ExcessFleet, number: int) -> tuple[pl.DataFrame, bool]:
    """A row for each GPU and measure (j, s): what is true, what was said, who names it; and whether the interval of the
    whole fleet's energy holds."""
    limits = fleet.pieces.select("cluster", "gpu").unique().with_columns(limit_w=pl.lit(LIMIT_W))
    rows = excess(fleet.pieces, levels(fleet.fingerprints, limits), fleet.busy)
    by_gpu = add_excess(rows, ["cluster", "gpu"]).sort("gpu")
    fault = np.where(fleet.slow, "slow", np.where(fleet.hungry, "hungry", ""))
    energy_j = fleet.pieces["energy_j"].to_numpy().reshape(-1, _JOBS).sum(axis=1)
    busy_s = _DAY_S * fleet.busy["busy"].to_numpy().reshape(-1, _JOBS).sum(axis=1)
    parts = []
    for unit, truth, scale in (("j", fleet.energy_j, energy_j), ("s", fleet.time_s, busy_s)):
        rules = by_rules(fleet) if unit == "j" else dict.fromkeys(RULES[1:])
        parts.append(
            by_gpu.select(
                pl.lit(number).alias("fleet"), pl.lit(unit).alias("unit"), pl.Series("fault", fault),
                pl.Series("truth", truth), pl.col(f"excess_{unit}").alias("said"),
                pl.col(f"excess_low_{unit}").alias("low"), pl.col(f"excess_high_{unit}").alias("high"),
                pl.Series("scale", scale), pl.col(f"excess_{unit}_shown").fill_null(value=False).alias("whorl"),
                *(pl.lit(None, pl.Boolean).alias(rule) if named is None else pl.Series(rule, named)
                  for rule, named in rules.items()),
            )
        )  # fmt: skip
    total = add_excess(rows, ["cluster"]).row(0, named=True)
    return pl.concat(parts), bool(total["excess_low_j"] <= fleet.energy_j.sum() <= total["excess_high_j"])


def summary(rows: pl.DataFrame, totals: list[bool]) -> dict[str, Any]:
    """The figures of the fleets of one kind."""
    holds = (pl.col("low") <= pl.col("truth")) & (pl.col("truth") <= pl.col("high"))
    answer: dict[str, Any] = {"fleets": len(totals), "gpus": rows.filter(unit="j").height}
    for (unit,), part in rows.with_columns(holds=holds).group_by("unit", maintain_order=True):
        known = part.drop_nulls("said")
        width = known.select((pl.col("high") - pl.col("low")).median() / pl.col("scale").median()).item()
        of_unit: dict[str, Any] = {
            "interval_holds_the_truth": share(int(known["holds"].sum()), known.height),
            "median_width_of_busy": round(float(width), 4),
        }
        innocent = part.filter((pl.col("fault") == "") & (pl.col("truth") <= 0))
        for rule in RULES:
            if part[rule].null_count() == 0:
                false = innocent.filter(pl.col(rule))
                of_unit[f"fleets_with_a_false_one: {rule}"] = share(false["fleet"].n_unique(), len(totals))
                of_unit[f"false_per_1000_gpus: {rule}"] = round(1000 * false.height / part.height, 2)
        answer[f"excess_{unit}"] = of_unit
        for fault in ("slow", "hungry") if unit == "j" else ("slow",):
            faulty = part.filter(fault=fault)
            if faulty.height:
                ratios = faulty.select(pl.col("said") / pl.col("truth")).to_series().drop_nulls().to_numpy()
                answer[f"excess_{unit} {fault}"] = {
                    **{f"shown: {rule}": share(int(faulty[rule].sum()), faulty.height)
                       for rule in RULES if faulty[rule].null_count() == 0},
                    "interval_holds_the_truth": share(int(faulty["holds"].sum()), faulty.height),
                    "said_over_true": [round(float(q), 4) for q in np.quantile(ratios, (0.05, 0.5, 0.95))],
                }  # fmt: skip
    answer["total_interval_holds_the_truth"] = share(sum(totals), len(totals))
    return answer


def measured(fleets: int, gpus: int, seed: int, planted: float) -> list[dict[str, Any]]:
    """The figures of each population."""
    rows = []
    for place, population in enumerate(POPULATIONS):
        say(f"{population}: {fleets} fleets of {gpus} GPUs")
        seeds = ([seed, place, number] for number in range(fleets))
        made_fleets = (made(np.random.default_rng(of), gpus, population, planted) for of in seeds)
        frames, totals = zip(*(judged(fleet, number) for number, fleet in enumerate(made_fleets)), strict=True)
        rows.append({"population": population, "gpus_of_a_fleet": gpus, **summary(pl.concat(frames), list(totals))})
    return rows


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fleets", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=128)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    answer = {
        "machine": machine(), "slow": SLOW, "hungry": HUNGRY,
        "healthy": measured(options.fleets, options.gpus, options.seed, 0.0),
        "planted": measured(options.fleets, options.gpus, options.seed + 1, 0.02),
    }  # fmt: skip
    sys.stdout.write(as_json(answer) + "\n")


if __name__ == "__main__":
    main()
