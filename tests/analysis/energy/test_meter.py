"""The meter of a GPU: its energy against other integrals of the same readings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.metering import Meter, Readings, Reason, meters
from whorl.analysis.energy.metering.building import build
from whorl.store import Store
from whorl.store.importing import Options, import_file

POWER = Path(__file__).resolve().parents[4] / "shared" / "data" / "power"
S = 10**9


def readings(power: object, every_s: float = 1.0, **other: object) -> Readings:
    """Readings of a GPU, one after another."""
    watts = np.asarray(power, float)
    unknown = np.full(len(watts), np.nan)
    given = {
        "ts_ns": (np.arange(len(watts)) * every_s * S).astype(np.int64), "power_w": watts, "instant_w": unknown,
        "counter_j": unknown,
        "utilization": unknown, "window_s": unknown, "stuck": np.zeros(len(watts), bool), "limit_w": 400.0,
    }  # fmt: skip
    return Readings(**(given | other))  # type: ignore[arg-type]


def whole(meter: Meter) -> dict[str, float]:
    energies = meter.over(np.array([meter.first_ns]), np.array([meter.last_ns]))
    return {name: float(getattr(energies, name)[0]) for name in ("energy_j", "below_j", "above_j", "measured_s")}


def real(name: str) -> Path:
    if not (POWER / name).exists():
        pytest.skip(f"{POWER / name} is not there: real measurements are not part of the project")
    return POWER / name


@pytest.mark.parametrize("load", ["square", "transient"])
def test_the_energy_of_a_real_stream_is_that_of_a_trapezoid(store: Store, load: str) -> None:
    path = real(f"nvidia_smi_a100_{load}_gpudata.csv.gz")
    import_file(store, path, Options(time_zone="Europe/London", gpu="a100"))
    (meter,) = meters(store)
    stream = pl.read_csv(path)
    at = stream["timestamp"].str.strip_chars().str.to_datetime("%Y/%m/%d %H:%M:%S%.3f").dt.epoch("ms").to_numpy() / 1e3
    watts = stream[" power.draw.instant [W]"].cast(pl.String).str.strip_chars().cast(pl.Float64).to_numpy()
    assert whole(meter)["energy_j"] == pytest.approx(np.trapezoid(watts, at), rel=1e-3)
    loads = pl.read_csv(real(f"nvidia_smi_a100_{load}_timestamps.csv.gz"))["timestamp"].to_numpy() * 1000
    began, ended = loads[:1], loads[-1:]
    since = (np.array([began[0], ended[0]]) - meter.first_ns) / 1e9 + at[0]
    inside = (at > since[0]) & (at < since[1])
    times = np.concatenate([since[:1], at[inside], since[1:]])
    assert meter.over(began, ended).energy_j[0] == pytest.approx(
        np.trapezoid(np.interp(times, at, watts), times), rel=1e-3
    )


def test_windows_side_by_side_add_up() -> None:
    random = np.random.default_rng(1)
    power = random.uniform(50, 400, 500)
    counter = np.cumsum(power)
    counter[200:] -= counter[200]  # a reset
    meter = build("c", "g", readings(power, counter_j=counter))
    cuts = np.sort(random.integers(meter.first_ns - S, meter.last_ns + S, 50))
    parts, all_of_it = meter.over(cuts[:-1], cuts[1:]), meter.over(cuts[:1], cuts[-1:])
    for name in ("energy_j", "measured_j", "measured_s", "counter_s"):
        assert getattr(parts, name).sum() == pytest.approx(getattr(all_of_it, name)[0], rel=1e-12), name


def test_no_readings_no_figure() -> None:
    meter = build("c", "g", readings([]))
    assert meter.over(np.array([0]), np.array([S])).reason.tolist() == [Reason.NO_TELEMETRY]
    meter = build("c", "g", readings([0.0] * 50))
    assert meter.over(np.array([0]), np.array([20 * S])).reason.tolist() == [Reason.ZERO]
    meter = build("c", "g", readings([100.0] * 50, stuck=np.ones(50, bool)))
    assert meter.over(np.array([0]), np.array([20 * S])).reason.tolist() == [Reason.STUCK]
