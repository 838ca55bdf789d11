"""What whorl's meter says of boards of known power, and of streams of nvidia-smi beside an external meter.

`populations` and `metered` are sections of `benchmarks.energy`, which says what they compare.
"""

from __future__ import annotations

import gzip
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.boards import board_errors
from whorl.analysis.energy.books import add_up
from whorl.analysis.energy.meter import Meters
from whorl.analysis.energy.readings import meters_of_many
from whorl.benchmarks.boards import (
    COUNTER_FAULTS,
    LOADS,
    POWER_FAULTS,
    SENSORS,
    SENSORS_BESIDE_METERS,
    Board,
    Floats,
    Poll,
    Random,
    Sensor,
    faulted,
    gaps,
    heavier_error,
    period,
    poll,
    polls,
    published_error,
    truth,
)  # fmt: skip
from whorl.benchmarks.harness import DATA, BenchOptions, ends, say, scratch, share_of
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.instants import times_of_ns
from whorl.store.power_sensors import MEASURED_BOARDS, sensor_of_model

EPOCH_NS = 1_790_000_000 * 10**9
CLUSTER = "fleet"
STAMP = "%Y/%m/%d %H:%M:%S%.3f"

# -- boards of known power ---------------------------------------------------------------------------------------------

POLLING_MS = {
    "8-20 ms": (8, 20), "50-200 ms": (50, 200), "1 s": (1000, 1000), "5-15 s": (5000, 15000), "30-60 s": (30000, 60000)
}  # fmt: skip
ROWS = 20_000  # at most of one board
LONGEST_MS = 4_000_000
BATCH = 100


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
    """A window with the interval that was given: best, low, high (J); NaN where there is none."""

    gpu: str
    says: dict[str, str]
    true_j: float
    trapezoid_j: float
    best_j: float
    low_j: float
    high_j: float
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
        fault = str(rng.choice([*POWER_FAULTS, *(COUNTER_FAULTS if counter else ())]))
        readings = faulted(rng, readings, fault)
    windows = []
    spans = [(float(job[0]), float(job[1]), "job")] if job else []
    for _ in range(2):
        lasted = 1000.0 * (min(inner, 3.6e6) / 1000.0) ** rng.random()
        start = margin + rng.uniform(0.0, inner - lasted)
        spans.append((start, start + lasted, "cut"))
    power = readings.power_w if readings.instant_w is None else readings.instant_w
    is_known = ~np.isnan(power)
    for began, ended, window in spans:
        joules = float(true.joules(np.array([began]), np.array([ended]))[0])
        span_s = np.array([began / 1e3]), np.array([ended / 1e3])
        [plain_j] = trapezoids(at_ms[is_known] / 1e3, power[is_known], *span_s)
        windows.append(Window(began, ended, joules, plain_j, window))
    says = {
        "load": load, "sensor": kind, "polling": polling, "counter": counter or "none", "source": source,
        "boards": boards, "gaps": "some" if missing else "none", "fault": fault,
    }  # fmt: skip
    return MeteredBoard(f"GPU-{number:08d}", sensor, board, readings, windows, says)


def nanoseconds(ms: Floats, zero_ns: int = EPOCH_NS) -> Any:
    """Times of a trial as UTC ns."""
    return zero_ns + np.round(np.asarray(ms) * 1e6).astype(np.int64)


def stored(store: Store, trials: Iterable[MeteredBoard], folder: Path) -> None:
    """Store the readings of the boards, each as its source says."""
    rows, gpus = [], []
    for board in trials:
        if board.says["source"] == "rows":
            rows.append(telemetry(board))
            gpus.append(
                {"cluster": CLUSTER, "gpu": board.gpu, "uuid": board.gpu, "node": "n1", "model": board.sensor.model}
            )
        else:
            path = folder / f"{board.gpu}.csv"
            path.write_text(stream(board.poll, board.sensor, board.says["source"]))
            import_file(store, path, Options(cluster=CLUSTER, gpu=board.gpu))
    if rows:
        store.append({"telemetry": pl.concat(rows).to_arrow(), "gpus": pl.DataFrame(gpus).to_arrow()}, "rows")


def telemetry(board: MeteredBoard) -> pl.DataFrame:
    """A board's rows of `telemetry`, as the collector stores them."""
    readings, sensor = board.poll, board.sensor

    def whole(values: Floats | None, scale: float) -> pl.Series:
        reading_values = np.full(len(readings.at_ms), np.nan) if values is None else values * scale
        return pl.Series(reading_values, dtype=pl.Float64).fill_nan(None).round().cast(pl.Int64)

    window = sensor.average_ms or sensor.window_ms
    return pl.DataFrame(
        {
            "ts": times_of_ns(pl.Series(nanoseconds(readings.at_ms))),
            "cluster": CLUSTER,
            "gpu": board.gpu,
            "power_mw": whole(readings.power_w, 1e3),
            "power_instant_mw": whole(readings.instant_w, 1e3),
            "power_window_ms": pl.Series([window and int(window)] * len(readings.at_ms), dtype=pl.Int64),
            "energy_mj": whole(readings.energy_j, 1e3),
            "utilization": whole(readings.utilization, 1.0),
            "power_limit_mw": pl.Series([int(sensor.limit_w * 1e3)] * len(readings.at_ms), dtype=pl.Int64),
        }
    )


def stream(readings: Poll, sensor: Sensor, source: str, zero_ns: int = EPOCH_NS) -> str:
    """A board's readings as nvidia-smi prints them, from `zero_ns` (UTC) on."""
    times = pl.Series(nanoseconds(readings.at_ms, zero_ns)).cast(pl.Datetime("ns")).dt.strftime(STAMP)
    columns: dict[str, Any] = {"timestamp": times}
    if source == "stream":
        columns["name"] = [sensor.model] * len(times)
    columns["power.draw [W]"] = np.round(readings.power_w, 2)
    if source != "stream, power only":
        if readings.instant_w is not None:
            columns["power.draw.instant [W]"] = np.round(readings.instant_w, 2)
        columns["utilization.gpu [%]"] = readings.utilization.astype(np.int64)
    if source in ("stream", "stream, no model"):
        columns["power.limit [W]"] = [sensor.limit_w] * len(times)
    return pl.DataFrame(columns).fill_nan(None).write_csv(null_value="[N/A]")


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


def judged_boards(seed: int, trials: int, longest_ms: float = LONGEST_MS) -> Iterator[Judged]:
    """Draw boards, store them, ask for the energy of their windows."""
    rng = np.random.default_rng(seed)
    for first in range(0, trials, BATCH):
        boards = [trial(rng, number, longest_ms) for number in range(first, min(first + BATCH, trials))]
        with scratch() as folder:
            store = Store.create(folder / "store")
            stored(store, boards, folder)
            yield from compared(store, boards)
        say(f"{min(first + BATCH, trials)} of {trials} boards")


def compared(store: Store, trials: list[MeteredBoard]) -> Iterator[Judged]:
    """The windows of boards in a store, with what whorl says of them."""
    windows = {board.gpu: nanoseconds(np.array([[w.began, w.ended] for w in board.windows])) for board in trials}
    pieces = pl.concat(
        whole_gpu(meters, number, *windows[gpu].T)
        for meters in meters_of_many(store, cluster=CLUSTER)
        for number, (_, gpu) in enumerate(meters.gpus)
    )
    keys = ["board", "window"]
    of_windows = {(row["board"], row["window"]): row for row in add_up(pieces, keys).iter_rows(named=True)}
    of_pieces = {(row["board"], row["window"]): row for row in pieces.iter_rows(named=True)}
    for board in trials:
        for number, window in enumerate(board.windows):
            figures = of_windows[board.gpu, number]
            best, low, high = (
                math.nan if figures[name] is None else figures[name] for name in ("energy_j", "low_j", "high_j")
            )
            says = {**board.says, "window": window.kind}
            piece = of_pieces[board.gpu, number]
            yield Judged(board.gpu, says, window.true_j, window.trapezoid_j, best, low, high, piece)


def figures(rows: list[Judged]) -> dict[str, Any]:
    """Coverage and width over some windows. Windows of one board are not independent: intervals count boards."""
    true, near, best, low, high = (
        np.array([getattr(row, name) for row in rows])
        for name in ("true_j", "trapezoid_j", "best_j", "low_j", "high_j")
    )
    is_known = ~np.isnan(best)
    inside = is_known & (low <= true) & (true <= high)
    half, error = (high - low)[is_known] / 2 / true[is_known], np.abs(best - true)[is_known] / true[is_known]
    boards = len({row.gpu for row, is_there in zip(rows, is_known, strict=True) if is_there})
    return {
        "windows": int(is_known.sum()),
        "boards": boards,
        **_covered(int(inside.sum()), int(is_known.sum()), boards),
        "half_width_pct": _quantiles(half),
        "error_pct": _quantiles(error),
        "true_above": int((is_known & (true > high)).sum()),
        "true_below": int((is_known & (true < low)).sum()),
        "no_figure": int((~is_known).sum()),
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


def summed(rows: list[Judged], boards: int) -> dict[str, Any]:
    """Coverage of the energy of so many boards together, each with one window and the sensor of a published board."""
    first = {row.gpu: row for row in reversed(rows) if row.says["boards"] == "published" and not np.isnan(row.best_j)}
    chosen = list(first.values())[: len(first) // boards * boards]
    if not chosen:
        return {"sums": 0}
    pieces = pl.DataFrame([row.piece for row in chosen], schema_overrides=PIECES)
    group = np.arange(len(chosen)) // boards
    got = add_up(pieces.with_columns(pl.Series("group", group)), ["group"])
    true = np.bincount(group, [row.true_j for row in chosen])
    low, high = got["low_j"].to_numpy(), got["high_j"].to_numpy()
    return {
        "sums": len(true),
        **_covered(int(((low <= true) & (true <= high)).sum()), len(true), len(true)),
        "half_width_pct": _quantiles((high - low) / 2 / true),
        "error_pct": _quantiles(np.abs(got["energy_j"].to_numpy() - true) / true),
    }


def populations(options: BenchOptions) -> dict[str, Any]:
    """Coverage over all windows, and by each property of boards and windows.

    Loads that are locked to the sensor for ever, which no program keeps up, count in `all` and `by load` only.
    """
    boards = options.pick(40, 300, 2000)
    rows = list(judged_boards(0, boards, LONGEST_MS if options.size == "long" else 600_000))
    real = [row for row in rows if row.says["load"] not in FOR_EVER]
    tables: dict[str, Any] = {"boards": boards, "all": figures(rows), "without_loads_locked_for_ever": figures(real)}
    for group in ("load", "sensor", "polling", "source"):
        by_name: dict[str, list[Judged]] = defaultdict(list)
        for row in rows if group == "load" else real:
            by_name[row.says[group]].append(row)
        tables[f"by_{group}"] = {name: figures(members) for name, members in sorted(by_name.items())}
    tables["sums_of_boards"] = {f"{boards} boards": summed(real, boards) for boards in SUMS}
    return tables


# -- streams beside a meter -----------------------------------------------------------------------------------------


LENGTHS_S, EVERY_S = (2.0, 5.0, 10.0), 0.5
TICKS_PER_S, TICKS, VOLTS, AMPERES, BEFORE_S = 2_933_500.0, 2**16, 7.568e-3, 48.8e-3, 0.05
NAMES = {  # what folders of that study call models
    "A5000": "NVIDIA RTX A5000", "3090": "NVIDIA GeForce RTX 3090", "4090": "NVIDIA GeForce RTX 4090",
    "3070TI": "NVIDIA GeForce RTX 3070 Ti", "2080TI": "NVIDIA GeForce RTX 2080 Ti", "A100": "NVIDIA A100-PCIE-40GB",
    "P100": "Tesla P100-PCIE-16GB", "K40": "Tesla K40m", "V100": "Tesla V100-PCIE-16GB",
}  # fmt: skip


@dataclass(frozen=True)
class MeteredStream:
    """A stream of nvidia-smi beside a meter: its file, when the meter read what (s UTC, W), the model of its GPU."""

    name: str
    smi: str
    times: Floats
    watts: Floats
    model: str | None

    def joules(self, began: Floats, ended: Floats) -> Floats:
        """The true energy of windows, J."""
        step = np.diff(self.times) * (self.watts[1:] + self.watts[:-1]) / 2
        upto = np.concatenate([[0.0], np.cumsum(step)])
        last, first = (np.interp(at, self.times, upto) for at in (ended, began))
        return np.asarray(last - first, np.float64)


def read_meter(folder: Path) -> tuple[Floats, Floats]:
    """When the meter of a stream read what: s UTC, W."""
    raw = folder / "PMD_data.bin"
    content = raw.read_bytes() if raw.exists() else gzip.decompress((folder / "PMD_data.bin.gz").read_bytes())
    words = np.frombuffer(content[: len(content) // 18 * 18], "<u2").reshape(-1, 9)
    ticks = np.concatenate([[0], np.cumsum(np.mod(np.diff(words[:, 0].astype(np.int64)), TICKS))])
    steps = np.maximum(words[:, 1:].view("<i2") >> 4, 0).astype(np.float64)
    watts = (steps[:, 0::2] * VOLTS * steps[:, 1::2] * AMPERES).sum(axis=1)
    started = int((folder / "PMD_start_ts.txt").read_text().split()[-1]) / 1e6
    return started - BEFORE_S + ticks / TICKS_PER_S, np.asarray(watts, np.float64)


def streams(folder: Path, models: dict[str, str]) -> Iterator[MeteredStream]:
    """The streams of a folder; their time stamps are put to UTC."""
    for path in sorted({file.parent for file in folder.rglob("gpudata.csv*")}):
        times, watts = read_meter(path)
        smi = in_utc(next(path.glob("gpudata.csv*")), float(times[0]))
        last = np.flatnonzero(watts > 0.5 * np.median(watts))[-1]  # the meter's last readings are cut short
        name = next((NAMES[part] for part in NAMES if part in path.name.upper().replace("_", "")), None)
        yield MeteredStream(path.name, smi, times[:last], watts[:last], models.get(path.name, name))


def in_utc(file: Path, began: float) -> str:
    """A file of nvidia-smi that began within minutes of a time (s UTC), with time stamps that are UTC."""
    lines = (gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()).splitlines()
    stamps = pl.Series([line.split(",", 1)[0].strip() for line in lines[1:]]).str.to_datetime(STAMP, strict=False)
    ahead = float(np.round((stamps.drop_nulls()[0].replace(tzinfo=UTC).timestamp() - began) / 1800) * 1800)
    texts = stamps.dt.offset_by(f"{-int(ahead)}s").dt.strftime(STAMP).fill_null("")
    rows = [line.split(",", 1)[1] for line in lines[1:]]
    return "\n".join([lines[0], *(f"{text},{row}" for text, row in zip(texts, rows, strict=True) if text), ""])


def streams_of_known_load(folder: Path) -> Iterator[MeteredStream]:
    """Two streams of an A100 without a meter, whose loads say when they ran: 6 s on and off, and a square wave.

    What the load draws is read in the first, while it is steady, and put to the scale of an external meter by gain and
    offset of the board of that kind that SC24 measured.
    """
    _, gain_pct, offset_w = next(board for board in MEASURED_BOARDS if board[0] == "A100 PCIe")
    levels = np.zeros(2)
    for load in ("transient", "square"):
        file = folder / f"nvidia_smi_a100_{load}_gpudata.csv.gz"
        marks = gzip.decompress((folder / f"nvidia_smi_a100_{load}_timestamps.csv.gz").read_bytes()).decode()
        edges = np.array([int(text) for text in marks.split()[1::2]]) / 1e6  # the file has each time twice
        smi = in_utc(file, float(edges[0]))
        if load == "transient":
            rows = pl.read_csv(smi.encode())
            at = rows["timestamp"].str.strip_chars().str.to_datetime(STAMP).dt.epoch("ms").to_numpy() / 1e3
            watts = rows[" power.draw.instant [W]"].cast(pl.String).str.strip_chars().cast(pl.Float64).to_numpy()
            levels = np.array([np.median(watts[(at > edge + 1) & (at < edge + 3)]) for edge in edges[:2]])
        true = (levels - offset_w) / (1 + gain_pct / 100)
        times = np.repeat(edges, 2)[1:-1] + np.tile([0.0, -1e-6], len(edges) - 1)
        power = np.repeat(np.resize(true, len(edges) - 1), 2)
        yield MeteredStream(load, smi, times, power, "NVIDIA A100-PCIE-40GB")


def synthetic(rng: Random, number: int) -> MeteredStream:
    """A board under a load as that of the study's transient experiments, and what nvidia-smi prints of it for 14 s.

    Some drivers do not average, some do not show what they average, and nobody has measured the window of Ada.
    """
    length_ms, zero_s = 14_000, EPOCH_NS / 1e9 + 100.0 * number
    sensor = SENSORS_BESIDE_METERS[number % len(SENSORS_BESIDE_METERS)]
    if "RTX 40" in sensor.model:
        sensor = replace(sensor, window_ms=float(rng.choice([25.0, 100.0])))
    if rng.random() < 0.3:
        sensor = replace(sensor, average_ms=None)
    load = str(rng.choice(["steady", "square", "nothing"], p=[0.5, 0.25, 0.25]))
    began = int(rng.uniform(500, 2500))
    board = Board(sensor.idle_w, sensor.limit_w * rng.uniform(0.7, 1.0), sensor.limit_w)
    ms = sensor.period_ms * rng.uniform(0.99, 1.04)
    job = (began, began + 6000) if load == "steady" else None
    board = replace(board, tail=rng.uniform(0.0, 0.2))
    true = truth(rng, board, load, length_ms, ms, job=job)
    error = (published_error if rng.random() < 0.7 else heavier_error)(rng)
    at_ms = polls(rng, rng.uniform(200, 300), length_ms, rng.uniform(7.0, 100.0))
    readings = poll(rng, true, sensor, ms, error, at_ms, counter=None)
    if rng.random() < 0.3:
        readings = replace(readings, instant_w=None)
    smi = stream(readings, sensor, "stream, no limit", round(1e9 * zero_s))
    times = zero_s + np.arange(length_ms) / 1e3
    return MeteredStream(f"{sensor.model} {load} {number}", smi, times, true.power, sensor.model)


def windows(first: float, last: float) -> dict[str, tuple[Floats, Floats]]:
    """Windows of some lengths at every half second from `first` to `last` (s UTC), and all of that time."""
    spans = {"whole": (np.array([first]), np.array([last]))}
    for seconds in LENGTHS_S:
        began = np.arange(first, last - seconds, EVERY_S)
        if len(began):
            spans[f"{seconds:g} s"] = (began, began + seconds)
    return spans


def judged_windows(stream: MeteredStream, *, with_model: bool) -> Iterator[dict[str, Any]]:
    """The windows of a stream, with the interval and what else is said of them."""
    with scratch() as folder:
        path = folder / "smi.csv"
        path.write_text(stream.smi)
        store = Store.create(folder / "store")
        model = stream.model if with_model else None
        import_file(store, path, Options(cluster=CLUSTER, gpu="gpu", model=model))
        (metered,) = meters_of_many(store)
        rows = store.collect(store.scan("telemetry").sort("ts").select(pl.col("ts").dt.epoch("ns"), "power_mw"))
        times, watts = rows["ts"].to_numpy() / 1e9, rows["power_mw"].cast(pl.Float64).to_numpy() / 1e3
        first, last = (
            max(stream.times[0], metered["first_ns"][0] / 1e9),
            min(stream.times[-1], metered["last_ns"][0] / 1e9),
        )
        sensor = sensor_of_model(stream.model)
        boards = np.array(
            [
                board[1:]
                for board in MEASURED_BOARDS
                if board[0].split()[0 if board[0] == "A100 PCIe" else -1] in (stream.model or "")
            ]
        )
        for length, (began, ended) in windows(first, last).items():
            windows_ns = [np.round(at * 1e9).astype(np.int64) for at in (began, ended)]
            figures = add_up(whole_gpu(metered, 0, *windows_ns), ["board", "window"], errors=board_errors(store))
            true, lasted = stream.joules(began, ended), ended - began
            plain = trapezoids(times, watts, began, ended)
            corrected = np.full(len(true), np.nan)
            if len(boards) and sensor is not None and sensor.draw_ms:
                gain, offset = boards.mean(axis=0)
                shifted = trapezoids(times - sensor.draw_ms / 2e3, watts, began, ended)
                corrected = (shifted - offset * lasted) / (1 + gain / 100)
            for number, row in enumerate(figures.iter_rows(named=True)):
                yield {
                    "stream": stream.name, "length": length, "named": with_model, "true_j": float(true[number]),
                    "best_j": row["energy_j"], "low_j": row["low_j"], "high_j": row["high_j"],
                    "trapezoid_j": plain[number], "corrected_j": float(corrected[number]),
                }  # fmt: skip


def trapezoids(times: Floats, watts: Floats, began: Floats, ended: Floats) -> list[float]:
    """The plain trapezoid over all readings of windows, J."""
    joules = []
    for first, last in zip(began, ended, strict=True):
        inside = (times > first) & (times < last)
        at = np.concatenate([[first], times[inside], [last]])
        joules.append(float(np.trapezoid(np.interp(at, times, watts), at)))
    return joules


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many windows of a kind there are and hold, and how wide their intervals are."""
    true, low, high = (np.array([row[name] for row in rows], np.float64) for name in ("true_j", "low_j", "high_j"))
    holds = (low <= true) & (true <= high)
    near, half = {}, 100 * (high - low) / 2 / true
    for name in ("trapezoid", "corrected"):
        values = np.array([row[f"{name}_j"] for row in rows])
        is_known = ~np.isnan(values)
        near[f"{name}_5_pct"] = share_of((np.abs(values - true) <= 0.05 * values)[is_known])
    return {
        "streams": len({row["stream"] for row in rows}), "hold": share_of(holds),
        "true_above": int((true > high).sum()),
        "true_below": int((true < low).sum()),
        "half_width_pct": [round(float(q), 1) for q in np.quantile(half, [0.5, 0.9])],
        "error_pct": round(float(100 * np.median(np.abs([row["best_j"] for row in rows] / true - 1))), 1), **near,
    }  # fmt: skip


def metered(options: BenchOptions) -> dict[str, Any]:
    """Windows of 2 to 10 s, with the name of the model and without."""
    random, boards = np.random.default_rng(0), options.pick(2, 24, 60)
    sources: dict[str, list[MeteredStream]] = {
        "simulated": [synthetic(random, number) for number in range(boards)],
    }
    if (DATA / "power" / "metered").is_dir():
        sources["metered"] = list(streams(DATA / "power" / "metered", {"metered": "NVIDIA RTX A5000"}))
        sources["known load"] = list(streams_of_known_load(DATA / "power"))
    tables: dict[str, Any] = {}
    for source, boards_of in sources.items():
        say(f"{source}: {len(boards_of)} streams")
        rows = [
            row for stream in boards_of for model in (True, False) for row in judged_windows(stream, with_model=model)
        ]
        for name, with_model in (("model known", True), ("model not known", False)):
            windows_of = [row for row in rows if row["named"] == with_model]
            short = [row for row in windows_of if row["length"] != "whole"]
            tables[f"{source}, {name}"] = {
                "2 to 10 s": table(short), "whole": table([row for row in windows_of if row["length"] == "whole"]),
            }  # fmt: skip
    return tables
