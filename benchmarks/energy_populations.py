"""How often the interval of an energy holds what an external power meter on the same board would say.

    python benchmarks/energy_populations.py [--trials 2000] [--seed 0]

Each trial is one board: a true power at 1 kHz of a known kind of load, a sensor of a known generation with the gain and
offset of a real board, polled every 8 ms to 60 s, with late polls and gaps. Its readings come into a store as a
collector would store them, or by `whorl import` of a stream of nvidia-smi. Some windows are asked for: the whole job,
with an idle GPU around it, and others of 1 s to an hour that cut the load anywhere. Beside it stands what people do:
the trapezoid over all polled readings, plus and minus 5 %. Prints JSON: the share of windows whose interval contains
the true energy, with its own 95 % interval (Wilson, a board counted once), and the median and the 90 % quantile of its
half width and of the error of the best estimate; it asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.books import add_up
from whorl.analysis.energy.meter import Meters
from whorl.analysis.energy.readings import meters_of_many
from whorl.benchmarks.energy_sensors import (
    COUNTER_FAULTS,
    POWER_FAULTS,
    SENSORS,
    Poll,
    Sensor,
    gaps,
    heavier_error,
    period,
    poll,
    polls,
    published_error,
)  # fmt: skip
from whorl.benchmarks.energy_truth import LOADS, Board, Floats, Random, truth
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, ends, say
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.instants import times_of_ns

EPOCH_NS = 1_790_000_000 * 10**9
CLUSTER = "fleet"
POLLING_MS = {
    "8-20 ms": (8, 20), "50-200 ms": (50, 200), "1 s": (1000, 1000), "5-15 s": (5000, 15000), "30-60 s": (30000, 60000)
}  # fmt: skip
ROWS = 20_000  # at most of one board
LONGEST_MS = 4_000_000
BATCH = 100
GROUPS = ("load", "sensor", "polling", "window", "counter", "source", "boards", "gaps", "fault", "length")


@dataclass(frozen=True)
class Window:
    """A stretch of time of one board, its true energy, and what the readings alone give by the trapezoid; ms and J."""

    began: float
    ended: float
    true_j: float
    trapezoid_j: float
    kind: str


@dataclass(frozen=True)
class MeteredBoard:
    """A board with its readings, and the windows that are asked for."""

    gpu: str
    sensor: Sensor
    board: Board
    poll: Poll
    windows: list[Window]
    says: dict[str, str]


@dataclass(frozen=True)
class Judged:
    """A window with the interval that was given: best, low, high (J); NaN, with the reason, where there is none."""

    gpu: str
    says: dict[str, str]
    true_j: float
    trapezoid_j: float
    best_j: float
    low_j: float
    high_j: float
    reason: str
    piece: dict[str, Any]
    """The piece of energy that the figures are of."""


FOR_EVER = ("locked", "locked_busy")  # loads that no program keeps up
SUMS = (8, 64)  # boards whose energies are added up


def trial(rng: Random, number: int, longest_ms: float = LONGEST_MS) -> MeteredBoard:
    """A board of any kind, with up to so much time of load."""
    load = str(rng.choice(list(LOADS)))
    kind = str(rng.choice(list(SENSORS)))
    sensor = SENSORS[kind]
    polling = str(rng.choice(list(POLLING_MS)))
    interval = float(rng.uniform(*POLLING_MS[polling]))
    margin = 3.0 * interval + 2000.0
    least, most = max(1e4, 10.0 * interval), max(1e4, 10.0 * interval, min(longest_ms, ROWS * interval))
    inner = least * (most / least) ** rng.random()
    length = int(inner + 2 * margin)
    job = (int(margin), int(margin + inner)) if rng.random() < 0.6 else None
    idle = sensor.idle_w * rng.uniform(0.8, 1.25)
    board = Board(idle, idle + (sensor.limit_w - idle) * rng.uniform(0.5, 1.0), sensor.limit_w)
    ms = period(rng, sensor)
    true = truth(rng, board, load, length, ms, job=job)
    boards = "published" if rng.random() < 0.7 else "heavier tails"
    error = (published_error if boards == "published" else heavier_error)(rng)
    at_ms = polls(rng, 0.0, float(length), interval)
    missing = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    at_ms = at_ms[gaps(rng, at_ms, missing)]
    source = str(rng.choice(["rows", "rows", "rows", "stream", "stream, no model", "stream, power only"]))
    counter = None
    if sensor.counter and source == "rows" and rng.random() < 0.4:
        counter = "full" if rng.random() < 0.7 else "readings"
    readings = poll(rng, true, sensor, ms, error, at_ms, counter=counter)
    fault = "none"
    if len(at_ms) > 1 and rng.random() < 0.1:
        faults = POWER_FAULTS | (COUNTER_FAULTS if counter else {})
        fault = str(rng.choice(list(faults)))
        readings = faults[fault](rng, readings)
    windows = []
    spans = [(float(job[0]), float(job[1]), "job")] if job else []
    for _ in range(2):
        lasted = 1000.0 * (min(inner, 3.6e6) / 1000.0) ** rng.random()
        start = margin + rng.uniform(0.0, inner - lasted)
        spans.append((start, start + lasted, "cut"))
    power = readings.power_w if readings.instant_w is None else readings.instant_w
    known = ~np.isnan(power)
    for began, ended, window in spans:
        joules = float(true.joules(np.array([began]), np.array([ended]))[0])
        windows.append(Window(began, ended, joules, trapezoid(at_ms[known], power[known], began, ended), window))
    says = {
        "load": load, "sensor": kind, "polling": polling, "counter": counter or "none", "source": source,
        "boards": boards, "gaps": "some" if missing else "none", "fault": fault,
    }  # fmt: skip
    return MeteredBoard(f"GPU-{number:08d}", sensor, board, readings, windows, says)


def trapezoid(at_ms: Floats, power_w: Floats, began: float, ended: float) -> float:
    """The trapezoid over all readings from `began` to `ended` (ms), J."""
    inside = (at_ms > began) & (at_ms < ended)
    times = np.concatenate([[began], at_ms[inside], [ended]])
    return float(np.trapezoid(np.interp(times, at_ms, power_w), times) / 1e3)


def length_class(window: Window) -> str:
    """How long a window is, in words."""
    seconds = (window.ended - window.began) / 1e3
    return next(
        (says for most, says in ((10, "1-10 s"), (60, "10-60 s"), (600, "1-10 min")) if seconds < most), "longer"
    )


# -- into a store ---------------------------------------------------------------------------------------------


def nanoseconds(ms: Floats) -> Any:
    """Times of a trial as UTC ns."""
    return EPOCH_NS + np.round(np.asarray(ms) * 1e6).astype(np.int64)


def stored(store: Store, trials: Iterable[MeteredBoard], folder: Path) -> None:
    """Store the readings of the boards, each as its source says."""
    rows, gpus = [], []
    for one in trials:
        if one.says["source"] == "rows":
            rows.append(telemetry(one))
            gpus.append({"cluster": CLUSTER, "gpu": one.gpu, "uuid": one.gpu, "node": "n1", "model": one.sensor.model})
        else:
            path = folder / f"{one.gpu}.csv"
            path.write_text(stream(one))
            import_file(store, path, Options(cluster=CLUSTER, gpu=one.gpu))
    if rows:
        store.append({"telemetry": pl.concat(rows).to_arrow(), "gpus": pl.DataFrame(gpus).to_arrow()}, "rows")


def telemetry(one: MeteredBoard) -> pl.DataFrame:
    """A board's rows of `telemetry`, as the collector stores them."""
    readings, sensor = one.poll, one.sensor

    def whole(values: Floats | None, scale: float) -> pl.Series:
        given = np.full(len(readings.at_ms), np.nan) if values is None else values * scale
        return pl.Series(given, dtype=pl.Float64).fill_nan(None).round().cast(pl.Int64)

    window = sensor.average_ms or sensor.window_ms
    return pl.DataFrame(
        {
            "ts": times_of_ns(pl.Series(nanoseconds(readings.at_ms))),
            "cluster": CLUSTER,
            "gpu": one.gpu,
            "power_mw": whole(readings.power_w, 1e3),
            "power_instant_mw": whole(readings.instant_w, 1e3),
            "power_window_ms": pl.Series([window and int(window)] * len(readings.at_ms), dtype=pl.Int64),
            "energy_mj": whole(readings.energy_j, 1e3),
            "utilization": whole(readings.utilization, 1.0),
            "power_limit_mw": pl.Series([int(sensor.limit_w * 1e3)] * len(readings.at_ms), dtype=pl.Int64),
        }
    )


def stream(one: MeteredBoard) -> str:
    """A board's readings as nvidia-smi prints them."""
    readings = one.poll
    named = one.says["source"] == "stream"
    times = pl.Series(nanoseconds(readings.at_ms)).cast(pl.Datetime("ns")).dt.strftime("%Y/%m/%d %H:%M:%S%.3f")
    columns: dict[str, Any] = {"timestamp": times}
    if named:
        columns["name"] = [one.sensor.model] * len(times)
    columns["power.draw [W]"] = np.round(readings.power_w, 2)
    if one.says["source"] != "stream, power only":
        if readings.instant_w is not None:
            columns["power.draw.instant [W]"] = np.round(readings.instant_w, 2)
        columns["utilization.gpu [%]"] = readings.utilization.astype(np.int64)
        columns["power.limit [W]"] = [one.sensor.limit_w] * len(times)
    return pl.DataFrame(columns).fill_nan(None).write_csv(null_value="[N/A]")


# -- the answers ----------------------------------------------------------------------------------------------


def answers(store: Store, trials: list[MeteredBoard]) -> dict[tuple[str, int], tuple[dict[str, Any], dict[str, Any]]]:
    """By board and number of the window: the figures that whorl gives, and the piece of energy that they are of."""
    windows = {one.gpu: nanoseconds(np.array([[w.began, w.ended] for w in one.windows])) for one in trials}
    found = pl.concat(
        whole_gpu(meters, number, *windows[gpu].T)
        for meters in meters_of_many(store, cluster=CLUSTER)
        for number, (_, gpu) in enumerate(meters.gpus)
    )
    keys = ["board", "window"]
    figures = {(row["board"], row["window"]): row for row in add_up(found, keys).iter_rows(named=True)}
    return {
        (row["board"], row["window"]): (figures[row["board"], row["window"]], row)
        for row in found.iter_rows(named=True)
    }


def whole_gpu(meters: Meters, number: int, began: Any, ended: Any) -> pl.DataFrame:
    """A piece for each window of one GPU (its number): the whole of it had one job."""
    energies, (cluster, gpu) = meters.over(np.full(len(began), number), began, ended), meters.gpus[number]
    reason = [str(text) or None for text in energies.reason]
    columns = {
        "cluster": cluster, "gpu": gpu, "node": None, "began": began, "ended": ended, "kind": "job",
        "allocation": None, "share": 1.0, "energy_j": energies.energy_j, "idle_j": None, "idle_low_j": None,
        "idle_high_j": None, "idle_source": None, "below_j": energies.below_j,
        "above_j": energies.above_j, "variance_j2": energies.variance_j2, "sensed_j": energies.measured_j,
        "sensed_s": energies.measured_s, "measured_s": energies.measured_s, "method": "power", "reason": reason,
    }  # fmt: skip
    frame = pl.DataFrame({"board": gpu, "window": np.arange(len(began)), **columns})
    frame = frame.with_columns(times_of_ns(pl.col("began", "ended")))
    return frame.with_columns(pl.col(name).cast(kind) for name, kind in PIECES.items() if name in frame.columns)


# -- the judgement --------------------------------------------------------------------------------------------


def judged(seed: int, trials: int, longest_ms: float = LONGEST_MS) -> Iterator[Judged]:
    """Draw boards, store them, ask for the energy of their windows."""
    rng = np.random.default_rng(seed)
    for first in range(0, trials, BATCH):
        some = [trial(rng, number, longest_ms) for number in range(first, min(first + BATCH, trials))]
        with tempfile.TemporaryDirectory() as made:
            store = Store.create(Path(made) / "store")
            stored(store, some, Path(made))
            yield from compared(store, some)
        say(f"{min(first + BATCH, trials)} of {trials} boards")


def compared(store: Store, trials: list[MeteredBoard]) -> Iterator[Judged]:
    """The windows of boards in a store, with what whorl says of them."""
    found = answers(store, trials)
    for one in trials:
        for number, window in enumerate(one.windows):
            figures, piece = found[one.gpu, number]
            best, low, high = (
                math.nan if figures[name] is None else figures[name] for name in ("energy_j", "low_j", "high_j")
            )
            says = {**one.says, "window": window.kind, "length": length_class(window)}
            yield Judged(
                one.gpu, says, window.true_j, window.trapezoid_j, best, low, high, figures["reason"] or "", piece
            )


def figures(rows: list[Judged]) -> dict[str, Any]:
    """Coverage and width over some windows. Windows of one board are not independent: intervals count boards."""
    true, near, best, low, high = (
        np.array([getattr(row, name) for row in rows])
        for name in ("true_j", "trapezoid_j", "best_j", "low_j", "high_j")
    )
    known = ~np.isnan(best)
    inside = known & (low <= true) & (true <= high)
    half, error = (high - low)[known] / 2 / true[known], np.abs(best - true)[known] / true[known]
    boards = len({row.gpu for row, there in zip(rows, known, strict=True) if there})
    return {
        "windows": int(known.sum()),
        "boards": boards,
        **_covered(int(inside.sum()), int(known.sum()), boards),
        "half_width_pct": _quantiles(half),
        "error_pct": _quantiles(error),
        "true_above": int((known & (true > high)).sum()),
        "true_below": int((known & (true < low)).sum()),
        "no_figure": int((~known).sum()),
        "trapezoid_5_pct": _covered(int((np.abs(near - true) <= 0.05 * near).sum()), len(rows), boards),
    }


def _covered(hits: int, windows: int, boards: int) -> dict[str, Any]:
    if not windows:
        return {"covered_pct": None, "interval": None}
    low, high = ends(hits * boards / windows, boards) if boards else (0.0, 1.0)
    return {"covered_pct": round(100 * hits / windows, 1), "interval": [round(100 * low, 1), round(100 * high, 1)]}


def _quantiles(shares: Floats) -> list[float] | None:
    """Median and 90 % quantile, %."""
    return [round(float(100 * np.quantile(shares, q)), 1) for q in (0.5, 0.9)] if len(shares) else None


def report(rows: list[Judged]) -> dict[str, Any]:
    """Coverage over all windows, by each property, and by pairs of them where it is clearly too low.

    Loads that are locked to the sensor for ever, which no program keeps up, count in `all` and `by_load` only.
    """
    real = [row for row in rows if row.says["load"] not in FOR_EVER]
    found: dict[str, Any] = {"all": figures(rows), "without_loads_locked_for_ever": figures(real)}
    by: dict[str, dict[str, list[Judged]]] = {group: defaultdict(list) for group in GROUPS}
    pairs: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        by["load"][row.says["load"]].append(row)
    for row in real:
        for i, one in enumerate(GROUPS):
            by[one][row.says[one]] += [] if one == "load" else [row]
            for other in GROUPS[i + 1 :]:
                pairs[f"{one} {row.says[one]}, {other} {row.says[other]}"].append(row)
    found |= {f"by_{group}": {name: figures(some) for name, some in sorted(by[group].items())} for group in GROUPS}
    low = {name: figures(some) for name, some in pairs.items()}
    found["pairs_clearly_below_95_pct"] = {
        name: [one["covered_pct"], one["windows"], one["boards"], one["true_above"], one["true_below"]]
        for name, one in sorted(low.items(), key=lambda item: item[1]["covered_pct"] or 0.0)
        if one["windows"] and one["interval"][1] < 95.0
    }
    found["sums_of_boards"] = {f"{boards} boards": summed(real, boards) for boards in SUMS}
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        if np.isnan(row.best_j):
            reasons[row.reason] += 1
    found["reasons_of_no_figure"] = dict(sorted(reasons.items()))
    return found


def summed(rows: list[Judged], boards: int) -> dict[str, Any]:
    """Coverage of the energy of so many boards together, each with one window and the sensor of a published board."""
    first = {row.gpu: row for row in reversed(rows) if row.says["boards"] == "published" and not np.isnan(row.best_j)}
    some = list(first.values())[: len(first) // boards * boards]
    if not some:
        return {"sums": 0}
    pieces = pl.DataFrame([row.piece for row in some], schema_overrides=PIECES)
    group = np.arange(len(some)) // boards
    got = add_up(pieces.with_columns(pl.Series("group", group)), ["group"])
    true = np.bincount(group, [row.true_j for row in some])
    low, high = got["low_j"].to_numpy(), got["high_j"].to_numpy()
    return {
        "sums": len(true),
        **_covered(int(((low <= true) & (true <= high)).sum()), len(true), len(true)),
        "half_width_pct": _quantiles((high - low) / 2 / true),
        "error_pct": _quantiles(np.abs(got["energy_j"].to_numpy() - true) / true),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="boards to draw")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = list(judged(given.seed, given.trials))
    head = {"benchmark": "energy_populations", "machine": machine("numpy", "polars", "scipy")}
    print(as_json({**head, "boards": given.trials, "seed": given.seed, **report(rows)}))


if __name__ == "__main__":
    main()
