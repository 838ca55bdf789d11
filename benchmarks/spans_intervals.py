"""How often the interval of a span holds what an external power meter on the same board would say. Prints JSON.

    python benchmarks/spans_intervals.py [--trials 2000] [--seed 0] > benchmarks/results/spans_intervals.json

Each trial is one board: a true power at 1 kHz of a known kind of load, a sensor of a known generation with the gain and
offset of a board (`energy_truth`, `energy_sensors`), which a ledger reads as its thread does, now and then late. In it
are a root span, and inside it spans of 10 ms to 20 s one after another: cut anywhere, or where its work begins and
ends, as those of a request do. Beside it stands what is done without a ledger: the difference of two readings of the
counter (of the power times the time where there is no counter), plus and minus 5 %.

Shown are the share of spans whose interval holds the true energy, with its own 95 % interval (Wilson; spans of one
board are not independent, so boards are counted too), the share with a figure, and of these the median of the half
width and of the error. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from whorl.benchmarks.energy_sensors import SENSORS, Poll, Sensor, heavier_error, period, poll, published_error
from whorl.benchmarks.energy_truth import LOADS, Board, Floats, Random, Truth, truth
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, share
from whorl.collectors.backend import Backend, Device, Reading, Status
from whorl.jobs.ledger import Ledger
from whorl.store.metrics import FAST, METRICS, ROW

GROUPS = ("load", "sensor", "counter", "length", "cut", "boards", "span")
LENGTHS = ((0.0, 0.1), (0.1, 0.3), (0.3, 1.0), (1.0, 3.0), (3.0, 10.0), (10.0, 1e9))


@dataclass(frozen=True)
class MeteredSpan:
    """A span: its groups, the true energy, its figure's ends and best value, and those of the plain way; J."""

    groups: tuple[str, ...]
    board: int
    truth: float
    low: float
    high: float
    best: float | None
    plain: float


class StoppedClock:
    """A clock that stands where the trial puts it."""

    def __init__(self) -> None:
        self.ms = 0.0

    def steady(self) -> int:
        return round(1e6 * self.ms)

    wall = boot = steady

    def sleep(self, ns: int) -> None:
        self.ms += ns / 1e6


class PolledBoard(Backend):
    """A board that answers with the readings of a `Poll`: with the last one at the time of the clock."""

    name = "polled"

    def __init__(self, clock: StoppedClock, sensor: Sensor, polled: Poll) -> None:
        self._clock, self._sensor, self._polled = clock, sensor, polled

    def devices(self) -> list[Device]:
        return [
            Device("GPU-0", {"model": self._sensor.model, "power_limit_max_mw": round(1000 * self._sensor.limit_w)})
        ]

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading]:  # noqa: ARG002 - it has one GPU
        place = max(int(np.searchsorted(self._polled.at_ms, self._clock.ms, "right")) - 1, 0)
        columns = {
            "power_mw": (self._polled.power_w, 1000),
            "power_instant_mw": (self._polled.instant_w, 1000),
            "energy_mj": (self._polled.energy_j, 1000),
            "utilization": (self._polled.utilization, 1),
        }
        values = {
            name: round(float(column[place]) * factor)
            for name, (column, factor) in columns.items()
            if column is not None and not math.isnan(column[place])
        }
        window_ms = self._sensor.average_ms or self._sensor.window_ms
        if window_ms is not None:
            values["power_window_ms"] = round(window_ms)
        statuses = bytearray([Status.UNSUPPORTED]) * len(METRICS)
        for name in values:
            statuses[ROW[name]] = Status.OK
        yield Reading("GPU-0", [values.get(METRICS[row].name, 0) for row in FAST], bytes(statuses))


def times_of(rng: Random, sensor: Sensor, length: float) -> Floats:
    """When the ledger's thread reads, ms: every 50 ms, or 20 where the sensor is faster, and sometimes late."""
    every = min(max(sensor.period_ms / 2, 20.0), 50.0)
    count = int(length / every) + 1
    late = rng.exponential(1.0, count) + np.where(rng.random(count) < 0.01, rng.exponential(100.0, count), 0.0)
    times: Floats = np.asarray(np.cumsum(every + late).round(), np.float64)
    return times[times < length]


def bounds(rng: Random, load: Truth, length: float, *, at_work: bool) -> list[tuple[float, float]]:
    """Begin and end of spans, ms: anywhere, or where the load's work begins and ends."""
    edges = np.flatnonzero(np.diff((load.busy > 0.5).astype(int)) != 0).astype(float) + 1
    found: list[tuple[float, float]] = []
    at = 2000.0
    while at < length - 2000:
        began, ended = at, at + 10.0 * 2000.0 ** rng.random()
        at = ended + rng.exponential(300.0) + 1.0
        if at_work and len(edges):
            began, ended = (float(edges[min(np.searchsorted(edges, t), len(edges) - 1)]) for t in (began, ended))
            at = max(at, ended + 1.0)
        if began < ended < length - 1000 and (not found or began >= found[-1][1]):
            found.append((began, ended))
    return found


def trial(rng: Random, number: int) -> list[MeteredSpan]:
    name, kind = str(rng.choice(list(SENSORS))), str(rng.choice(list(LOADS)))
    sensor, length = SENSORS[name], float(rng.integers(20_000, 60_000))
    board = Board(sensor.idle_w, sensor.limit_w * rng.uniform(0.6, 1.0), sensor.limit_w)
    period_ms = period(rng, sensor)
    load = truth(rng, board, kind, int(length), period_ms, job=None)
    heavy = bool(rng.random() < 0.5)
    error = (heavier_error if heavy else published_error)(rng)
    counter = str(rng.choice(["full", "readings"])) if sensor.counter and rng.random() < 0.8 else None
    at_ms = times_of(rng, sensor, length)
    polled = poll(rng, load, sensor, period_ms, error, at_ms, counter=counter)
    at_work = bool(rng.random() < 0.5)
    last = length - 500
    times = [(1500.0, last), *bounds(rng, load, length, at_work=at_work)]

    clock = StoppedClock()
    first = int(np.searchsorted(at_ms, 1200.0))  # the sensor has had a value then, as one that runs for long
    clock.ms = float(at_ms[first])
    ledger = Ledger(backend=PolledBoard(clock, sensor, polled), clock=clock).open()
    root = ledger.span("root", parent=None)
    spans = [root, *(ledger.span("inner", parent=root) for _ in times[1:])]
    turns = [(began, 2, span) for (began, _), span in zip(times, spans, strict=True)]
    turns += [(ended, 1, span) for (_, ended), span in zip(times, spans, strict=True)]
    for at, turn, span in sorted([*turns, *((float(at), 0, root) for at in at_ms[first + 1 :])], key=itemgetter(0, 1)):
        clock.ms = at
        if turn == 0:
            ledger.look()
        elif turn == 1:
            span.__exit__(None, None, None)
        else:
            span.__enter__()
    ledger.close()

    powers = polled.power_w
    if polled.instant_w is not None:
        powers = np.where(np.isnan(polled.instant_w), powers, polled.instant_w)
    outcomes = []
    for (began, ended), span in zip(times, spans, strict=True):
        figure = span.figure()
        if figure.low_j is None or figure.high_j is None:
            continue
        seconds = (ended - began) / 1000
        bin_ = next(f"{a:g}-{b:g} s" if b < 1e9 else f"{a:g} s and more" for a, b in LENGTHS if a <= seconds < b)
        groups = (
            kind, name, str(counter), bin_, "at work" if at_work else "anywhere", "heavy" if heavy else "published",
            span.name,
        )  # fmt: skip
        true = float(load.joules(np.array([began]), np.array([ended]))[0])
        plain = _plain(polled, at_ms, powers, began, ended)
        outcomes.append(MeteredSpan(groups, number, true, figure.low_j, figure.high_j, figure.energy_j, plain))
    return outcomes


def _plain(polled: Poll, at_ms: Floats, powers: Floats, began: float, ended: float) -> float:
    """The counter's difference at the readings before begin and end, or power times time."""
    first, last = (max(int(np.searchsorted(at_ms, t, "right")) - 1, 0) for t in (began, ended))
    if polled.energy_j is not None:
        return float(polled.energy_j[last] - polled.energy_j[first])
    return float(powers[last] * (ended - began) / 1000)


def summed(seen: list[MeteredSpan]) -> dict[str, Any]:
    known = [one for one in seen if one.best is not None]
    plain = sum(one.plain * 0.95 <= one.truth <= one.plain * 1.05 for one in seen)
    return {
        "boards": len({one.board for one in seen}),
        "holds": share(sum(one.low <= one.truth <= one.high for one in seen), len(seen)),
        "plain_holds": share(plain, len(seen)),
        "with_a_figure": share(len(known), len(seen)),
        "median_half_width_pct": _median([50 * (one.high - one.low) / (one.best or 1) for one in known]),
        "median_error_pct": _median([100 * abs((one.best or 0) - one.truth) / max(one.truth, 1e-9) for one in known]),
        "plain_median_error_pct": _median([100 * abs(o.plain - o.truth) / max(o.truth, 1e-9) for o in known]),
    }


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 2) if values else None


def run(trials: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    seen: list[MeteredSpan] = []
    for number in range(trials):
        seen += trial(rng, number)
        if number % 200 == 199:
            say(f"{number + 1} boards, {len(seen)} spans")
    tables: dict[str, dict[str, list[MeteredSpan]]] = {group: defaultdict(list) for group in GROUPS}
    for one in seen:
        for group, value in zip(GROUPS, one.groups, strict=True):
            tables[group][value].append(one)
    locked = [one for one in seen if not one.groups[0].startswith("locked")]
    return {
        "machine": machine(),
        "trials": trials,
        "seed": seed,
        "all": summed(seen),
        "without_loads_locked_for_ever": summed(locked),
        "by": {group: {name: summed(ones) for name, ones in sorted(table.items())} for group, table in tables.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(as_json(run(arguments.trials, arguments.seed)))


if __name__ == "__main__":
    main()
