"""How often the interval of an energy holds what an external power meter on the same board measured.

    python benchmarks/energy_metered.py [FOLDER] [--model STREAM=NAME] [--known-load FOLDER] [--synthetic 60] [--seed 0]

FOLDER has a folder for each stream, or is one: `gpudata.csv` of nvidia-smi, `PMD_data.bin` (or .gz) of the meter and
`PMD_start_ts.txt`, as in JimZeyuYang/GPU_Power_Benchmark. A record of the meter is 18 bytes, little-endian: a tick of
16 bits (2,933.5 a ms, wrapping), then four pairs of voltage and current, the upper 12 of 16 bits, 7.568 mV and 48.8 mA
a step, negative taken as 0. It begins at its start time less 0.05 s. The zone of nvidia-smi's time stamps is found: it
is whole half hours off.

Each stream is imported twice: with the name of its model and without. Windows of 2, 5 and 10 s are laid every half
second, and one over the whole stream. `--known-load` adds two streams of an A100 without a meter, whose loads say when
they ran; what they draw is known from the steady part of one. `--synthetic` adds boards of six models whose power is
known: square waves, steps of 6 s and idle times, with gains and offsets as published boards have them, or with heavier
tails, and with plausible lags. Beside the interval stand what people do: the trapezoid of `power.draw` plus and minus
5 %, and the correction of SC24 (doi 10.1109/SC41406.2024.00028): shifted by half the averaging window and scaled by
gain and offset of the mean of the model's published boards, plus and minus 5 %. Prints JSON; it asserts nothing.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.energy.boards import board_errors
from whorl.analysis.energy.books import add_up
from whorl.analysis.energy.readings import meters_of_many
from whorl.benchmarks.energy_populations import CLUSTER, whole_gpu
from whorl.benchmarks.energy_sensors import heavier_error
from whorl.benchmarks.energy_truth import Floats, Random
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, ends, say
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.power_sensors import MEASURED_BOARDS, sensor_of_model

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
        last, first = (np.interp(when, self.times, upto) for when in (ended, began))
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


STAMP = "%Y/%m/%d %H:%M:%S%.3f"

# -- boards whose power is known ------------------------------------------------------------------------------


def synthetic(rng: Random, number: int) -> MeteredStream:
    """A board with a load as that of the study's transient experiments; its driver shows what others do."""
    model, idle_w, full_w = [
        ("NVIDIA GeForce RTX 3090", 30.0, 350.0), ("NVIDIA GeForce RTX 4090", 25.0, 420.0),
        ("NVIDIA A100-PCIE-40GB", 45.0, 240.0), ("NVIDIA GeForce RTX 2080 Ti", 20.0, 250.0),
        ("Tesla P100-PCIE-16GB", 30.0, 240.0), ("NVIDIA RTX A5000", 80.0, 230.0),
    ][number % 6]  # fmt: skip
    load = str(rng.choice(["steps", "square", "idle"], p=[0.5, 0.25, 0.25]))
    ms = 14_000
    level = np.zeros(ms)
    if load == "steps":
        begins = int(rng.uniform(500, 2500))
        level[begins : begins + 6000] = rng.uniform(0.5, 1.0)
    elif load == "square":
        period, share = 20.0 * 200 ** rng.random(), rng.uniform(0.2, 0.8)
        level[((np.arange(ms) / period) % 1.0) < share] = rng.uniform(0.5, 1.0)
    busy = level > 0
    after = np.convolve(busy, np.full(1800, 1 / 1800), "full")[:ms] * rng.uniform(0.0, 0.2)  # clocks fall later
    share = 1.0 / rng.uniform(5.0, 60.0)  # what capacitors smooth
    warm = 0.03 * np.cumsum(level) / ms
    power = idle_w + (full_w - idle_w) * np.maximum(level + warm, after)
    smooth = np.empty(ms)
    level_w = power[0]
    for at, watts in enumerate(power):
        level_w += share * (watts - level_w)
        smooth[at] = level_w
    true = smooth * (1 + 0.01 * rng.standard_normal(ms))
    zero = 1_690_000_000.0 + 100.0 * number
    return MeteredStream(
        f"{model} {load} {number}", _smi(rng, model, true, busy, zero), zero + np.arange(ms) / 1e3, true, model
    )


def _smi(rng: Random, model: str, true: Floats, busy: Any, zero: float) -> str:
    """What nvidia-smi prints of a board: every 7 to 100 ms, with the lag of its driver."""
    row = sensor_of_model(model)
    assert row is not None
    assert row.period_ms is not None
    if rng.random() < 0.7:
        boards = [board for board in MEASURED_BOARDS if board[0].split()[-1] in model] or list(MEASURED_BOARDS)
        _, gain_pct, offset_w = boards[int(rng.integers(len(boards)))]
        gain = gain_pct / 100
    else:
        error = heavier_error(rng)
        gain, offset_w = error.gain, error.offset_w
    upto = np.concatenate([[0.0], np.cumsum(true)])
    busy_upto = np.concatenate([[0.0], np.cumsum(busy)])
    period, late = row.period_ms * rng.uniform(0.99, 1.04), rng.uniform(0.0, 250.0)
    at_ms = np.arange(int(rng.uniform(200, 300)), len(true), rng.uniform(7.0, 100.0)).astype(np.int64)
    value_at = np.floor((at_ms - late - rng.uniform(0, period)) / period) * period

    def mean(window: float) -> Floats:
        end = np.clip(value_at, 1.0, len(true) - 1.0)
        begin = np.maximum(end - window, 0.0)
        grid = np.arange(len(upto))
        watts = (np.interp(end, grid, upto) - np.interp(begin, grid, upto)) / np.maximum(end - begin, 1e-3)
        return np.asarray(np.round((1 + gain) * watts + offset_w, 2), np.float64)

    used_at = np.floor(at_ms / 200.0) * 200.0
    grid = np.arange(len(busy_upto))
    used = np.interp(used_at, grid, busy_upto) - np.interp(np.maximum(used_at - 200.0, 0.0), grid, busy_upto)
    instant = mean(row.window_ms or (100.0 if rng.random() < 0.5 else 25.0))
    old_driver = rng.random() < 0.3  # it does not average
    draw = instant if old_driver or row.draw_ms in (None, row.window_ms) else mean(float(row.draw_ms))
    columns: dict[str, Any] = {
        "timestamp": [f"{datetime.fromtimestamp(zero + ms / 1e3, UTC):%Y/%m/%d %H:%M:%S.%f}"[:-3] for ms in at_ms],
        "utilization.gpu [%]": np.round(used / 2).astype(np.int64),
        "power.draw [W]": draw,
    }
    if draw is not instant and rng.random() < 0.7:
        columns |= {"power.draw.average [W]": draw, "power.draw.instant [W]": instant}
    return pl.DataFrame(columns).write_csv()


# -- the judgement --------------------------------------------------------------------------------------------


def windows(first: float, last: float) -> dict[str, tuple[Floats, Floats]]:
    """Windows of some lengths at every half second from `first` to `last` (s UTC), and all of that time."""
    spans = {"whole": (np.array([first]), np.array([last]))}
    for seconds in LENGTHS_S:
        began = np.arange(first, last - seconds, EVERY_S)
        if len(began):
            spans[f"{seconds:g} s"] = (began, began + seconds)
    return spans


def judged(stream: MeteredStream, *, with_model: bool) -> Iterator[dict[str, Any]]:
    """The windows of a stream, with the interval and what else is said of them."""
    with tempfile.TemporaryDirectory() as made_folder:
        path = Path(made_folder) / "smi.csv"
        path.write_text(stream.smi)
        store = Store.create(Path(made_folder) / "store")
        model = stream.model if with_model else None
        import_file(store, path, Options(cluster=CLUSTER, gpu="gpu", model=model))
        (metered,) = meters_of_many(store)
        rows = store.collect(store.scan("telemetry").sort("ts").select(pl.col("ts").dt.epoch("ns"), "power_mw"))
        times, watts = rows["ts"].to_numpy() / 1e9, rows["power_mw"].cast(pl.Float64).to_numpy() / 1e3
        first, last = max(stream.times[0], metered.first_ns[0] / 1e9), min(stream.times[-1], metered.last_ns[0] / 1e9)
        sensor = sensor_of_model(stream.model)
        boards = np.array(
            [
                board[1:]
                for board in MEASURED_BOARDS
                if board[0].split()[0 if board[0] == "A100 PCIe" else -1] in (stream.model or "")
            ]
        )
        for length, (began, ended) in windows(first, last).items():
            windows_ns = [np.round(when * 1e9).astype(np.int64) for when in (began, ended)]
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
    boards = len({row["stream"] for row in rows})
    near, half = {}, 100 * (high - low) / 2 / true
    for name in ("trapezoid", "corrected"):
        values = np.array([row[f"{name}_j"] for row in rows])
        known = ~np.isnan(values)
        near[f"{name}_5_pct"] = share(int((np.abs(values - true) <= 0.05 * values)[known].sum()), int(known.sum()))
    return {
        "streams": boards, **share(int(holds.sum()), len(rows)), "true_above": int((true > high).sum()),
        "true_below": int((true < low).sum()),
        "half_width_pct": [round(float(q), 1) for q in np.quantile(half, [0.5, 0.9])],
        "error_pct": round(float(100 * np.median(np.abs([row["best_j"] for row in rows] / true - 1))), 1), **near,
    }  # fmt: skip


def share(hits: int, windows: int) -> dict[str, Any]:
    """How many hold, in %, with the 95 % interval of Wilson."""
    if not windows:
        return {"windows": 0}
    low, high = ends(hits, windows)
    return {
        "windows": windows, "hold": hits, "hold_pct": round(100 * hits / windows, 1),
        "interval": [round(100 * low, 1), round(100 * high, 1)],
    }  # fmt: skip


def report(rows: list[dict[str, Any]], *, by_stream: bool) -> dict[str, Any]:
    """The tables of all windows, with the model's name and without, by length, and by stream."""
    tables: dict[str, Any] = {}
    for with_model in (True, False):
        some = [row for row in rows if row["named"] == with_model]
        short = [row for row in some if row["length"] != "whole"]
        parts = {"2 to 10 s": short} | {
            length: [row for row in some if row["length"] == length]
            for length in dict.fromkeys(r["length"] for r in some)
        }
        if by_stream:
            parts |= {
                name: [row for row in short if row["stream"] == name]
                for name in dict.fromkeys(r["stream"] for r in some)
            }
        tables["model known" if with_model else "model not known"] = {
            name: table(chosen) for name, chosen in parts.items() if chosen
        }
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a stream with its meter, or a folder of such folders")
    parser.add_argument(
        "--model", action="append", default=[], metavar="STREAM=NAME", help="product name of a stream's GPU"
    )
    parser.add_argument("--known-load", type=Path, metavar="FOLDER", help="two streams of an A100 whose load is known")
    parser.add_argument("--synthetic", type=int, default=60, help="boards whose power is known")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    models = dict(text.split("=", 1) for text in options.model)
    tables: dict[str, Any] = {
        "benchmark": "energy_metered",
        "machine": machine("numpy", "polars"),
        "seed": options.seed,
    }
    if options.folder is not None:
        rows = [
            row
            for stream in streams(options.folder, models)
            for model in (True, False)
            for row in judged(stream, with_model=model)
        ]
        tables["metered"] = report(rows, by_stream=True)
    if options.known_load is not None:
        boards = streams_of_known_load(options.known_load)
        rows = [row for board in boards for model in (True, False) for row in judged(board, with_model=model)]
        tables["known load"] = report(rows, by_stream=True)
    if options.synthetic:
        rng = np.random.default_rng(options.seed)
        rows = []
        for number in range(options.synthetic):
            board = synthetic(rng, number)
            rows += [row for model in (True, False) for row in judged(board, with_model=model)]
            say(f"{number + 1} of {options.synthetic} boards")
        tables["synthetic"] = report(rows, by_stream=False)
    print(as_json(tables))


if __name__ == "__main__":
    main()
