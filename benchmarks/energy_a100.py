"""Whether the interval of an energy holds the nominal energy of a known load, on real streams of an A100.

    python benchmarks/energy_a100.py FOLDER

FOLDER holds the files nvidia_smi_a100_{square,transient}_{gpudata,timestamps}.csv.gz of JimZeyuYang/GPU_Power_Benchmark
(SC24): readings of nvidia-smi, and when the load itself went on and off. The square wave has a period of 104.4 ms, the
sensor sees 25 of about 101 ms, and so the readings go up and down in some seconds.

The nominal power of the load is taken from the transient file, where it is on and off for 6 s each. It stands on the
scale of the sensor. SC24 also measured this kind of board with an external power meter: reading = 0.954 x true - 1.2 W.
The nominal energy on that scale must be inside too. Windows of 1 s and longer are laid over the load at every quarter
of a second. Prints JSON; it asserts nothing.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whorl.analysis.energy.books import add_up
from whorl.analysis.energy.readings import meters_of_many
from whorl.benchmarks.energy_populations import CLUSTER, whole_gpu
from whorl.benchmarks.energy_sensors import GAINS, OFFSETS
from whorl.benchmarks.energy_truth import Floats
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json
from whorl.store import Store
from whorl.store.importing import Options, import_file

ZONE = "Europe/London"  # of nvidia-smi's time stamps: the load's are UNIX times, an hour earlier in July
A100 = 14  # of the 19 boards
LENGTHS_S = (1.0, 2.0, 4.0)
EVERY_S = 0.25

Times = npt.NDArray[np.int64]


def switches(folder: Path, name: str) -> Times:
    """When the load went on, off, on, ... (ns UTC). The file has each time twice."""
    text = gzip.decompress((folder / f"nvidia_smi_a100_{name}_timestamps.csv.gz").read_bytes()).decode()
    return np.array([int(us) for us in text.split()[1::2]], dtype=np.int64) * 1000


def on_time(switched: Times, began: Times, ended: Times) -> Floats:
    """For how long the load was on in each window, s."""
    upto = np.concatenate([[0.0], np.cumsum(np.diff(switched) * (np.arange(len(switched) - 1) % 2 == 0))]) / 1e9
    return np.asarray(np.interp(ended, switched, upto) - np.interp(began, switched, upto), np.float64)


def readings(store: Store) -> tuple[Times, Floats]:
    """Times (ns) and power (W) of all readings."""
    rows = store.collect(store.scan("telemetry").sort("ts").select(pl.col("ts").dt.epoch("ns"), "power_instant_mw"))
    return rows["ts"].to_numpy(), rows["power_instant_mw"].to_numpy() / 1e3


def levels(store: Store, switched: Times) -> tuple[float, float]:
    """Power while the load is on and just after it: the medians of seconds 1 to 3 of each, W."""
    times, watts = readings(store)

    def median(since: int) -> float:
        return float(np.median(watts[(times > since + 10**9) & (times < since + 3 * 10**9)]))

    return median(int(switched[0])), median(int(switched[1]))


def windows(switched: Times) -> dict[str, tuple[Times, Times]]:
    """The whole load, and windows of some lengths at every quarter of a second; ns UTC."""
    first, last = int(switched[0]), int(switched[-1])
    found = {"the whole load": (np.array([first]), np.array([last]))}
    for seconds in LENGTHS_S:
        began = np.arange(first, last - round(seconds * 1e9), round(EVERY_S * 1e9))
        found[f"{seconds:g} s"] = (began, began + round(seconds * 1e9))
    return found


def judged(store: Store, switched: Times, on_w: float, off_w: float) -> dict[str, Any]:
    """By length of window: how many intervals hold the nominal energy on both scales, and how wide they are."""
    (metered,) = meters_of_many(store)
    found: dict[str, Any] = {}
    times, watts = readings(store)
    for name, (began, ended) in windows(switched).items():
        figures = add_up(whole_gpu(metered, 0, began, ended), ["board", "window"])
        best, low, high = (figures[column].to_numpy() for column in ("energy_j", "low_j", "high_j"))
        lasted = (ended - began) / 1e9
        on = on_time(switched, began, ended)
        nominal = on * on_w + (lasted - on) * off_w
        external = (nominal - OFFSETS[A100] * lasted) / (1.0 + GAINS[A100] / 100.0)
        plain = np.array([trapezoid(times, watts, a, b) for a, b in zip(began, ended, strict=True)])
        found[name] = {
            "windows": len(best),
            "hold_nominal": int(((low <= nominal) & (nominal <= high)).sum()),
            "hold_external": int(((low <= external) & (external <= high)).sum()),
            "trapezoid_5_pct_holds_external": int((np.abs(plain - external) <= 0.05 * plain).sum()),
            "median_half_width_pct": round(float(100 * np.median((high - low) / 2 / best)), 1),
            "best_over_nominal": [round(float(end), 3) for end in (np.min(best / nominal), np.max(best / nominal))],
            "best_against_trapezoid_pct": round(float(100 * np.max(np.abs(best / plain - 1))), 3),
        }
    return found


def trapezoid(times: Times, watts: Floats, began: int, ended: int) -> float:
    """The plain trapezoid over all readings of a window, J."""
    inside = (times > began) & (times < ended)
    at = np.concatenate([[began], times[inside], [ended]])
    return float(np.trapezoid(np.interp(at, times, watts), (at - began) / 1e9))


def answers(folder: Path) -> dict[str, Any]:
    """The figures of both files."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        stores, switched = {}, {}
        for name in ("transient", "square"):
            stores[name] = Store.create(Path(made) / name)
            options = Options(cluster=CLUSTER, gpu="a100", time_zone=ZONE)
            import_file(stores[name], folder / f"nvidia_smi_a100_{name}_gpudata.csv.gz", options)
            switched[name] = switches(folder, name)
        on_w, off_w = levels(stores["transient"], switched["transient"])
        found["levels_w"] = {"on": on_w, "off": off_w}
        for name, store in stores.items():
            found[name] = judged(store, switched[name], on_w, off_w)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the four files")
    given = parser.parse_args()
    print(as_json({"benchmark": "energy_a100", "machine": machine("numpy", "polars"), **answers(given.folder)}))


if __name__ == "__main__":
    main()
