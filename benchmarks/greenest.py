"""What the greenest start of a job saves when only past weeks are known, on made grids. Prints JSON.

    python benchmarks/greenest.py > benchmarks/results/greenest.json

Each case draws eight weeks of hourly intensities and the day and a half that follows, a job of 1 to 12 hours, and a
deadline. The grids are made, not measured: an hour of the day, weekdays, and a disturbance that lasts (autoregressive,
one day) in different parts. `whorl` starts the job when `greenest` says, from the eight weeks; `night` starts it at
02:00 (the next one that fits), as cron would; `best` knows the future. `saved_pct` is what is saved against a start
now, in per cent of the grams at the grid's mean: a mean with its 95 % interval by the normal distribution, over n
cases. `named`: how often whorl names a later start. `worse`: of these, how often it emits more than a start now.
`held`: of these, how often what is saved lies in the 95 % prediction interval that whorl gives. Each of these shares
has its n and 95 % interval.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from whorl.analysis.energy.outlook import WaitingJob, greenest
from whorl.analysis.energy.settings import read_settings
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, share

HOUR = 3600 * 10**9
WEEKS, AHEAD = 8, 48
FIRST = 20_440 * 24  # hours since 1970: a midnight
CASES = 300
KINDS = {  # mean g/kWh; swing over the day, of weekdays, and of what lasts a day, as parts of the mean
    "sun": (350, 0.35, 0.10, 0.10),
    "wind": (300, 0.05, 0.05, 0.35),
    "both": (350, 0.20, 0.10, 0.25),
    "coal": (650, 0.05, 0.03, 0.05),
}
Floats = npt.NDArray[np.float64]


def grid(kind: str, random: np.random.Generator) -> Floats:
    """Hourly g/kWh of the weeks and what follows."""
    mean, day, weekday, lasting = KINDS[kind]
    hours = np.arange(WEEKS * 168 + 24 + AHEAD)
    swing = day * np.cos(2 * np.pi * (hours - 19) / 24) + weekday * ((hours // 24) % 7 < 5)
    kept = float(np.exp(-1 / 24))
    noise = random.normal(0, lasting * np.sqrt(1 - kept**2), len(hours))
    noise[0] = random.normal(0, lasting)
    for at in range(1, len(noise)):
        noise[at] += kept * noise[at - 1]
    return (mean * (1 + swing + noise)).clip(5)


def case(kind: str, random: np.random.Generator, folder: Path) -> tuple[float, float, float, bool | None]:
    """What is saved, in per cent: by whorl, at night, by the best; and whether whorl's interval, if any, held it."""
    values = grid(kind, random)
    at = WEEKS * 168 + int(random.integers(0, 24))  # the hour of now
    known = "".join(f"{(FIRST + i) * 3600},{g:.2f}\n" for i, g in enumerate(values[:at]))
    (folder / "grid.csv").write_text("time,g_per_kwh\n" + known)
    (folder / "energy.toml").write_text('zone = "X"\nintensity = { file = "grid.csv", zone = "X" }\n')
    length = int(random.integers(1, 13))
    within = int(random.integers(length + 6, 37))
    now = (FIRST + at) * HOUR
    job = WaitingJob(length * 3600, 1000.0, now, now + within * HOUR)  # 1 kWh in an hour
    found = greenest(read_settings(folder / "energy.toml"), job)
    assert found.start is not None
    sums = np.convolve(values[at : at + within], np.ones(length), "valid")
    night = next((h for h in range(len(sums)) if (at + h) % 24 == 2), 0)
    starts = ((found.start - now) // HOUR, night, int(sums.argmin()))
    saved = [float(sums[0] - sums[start]) for start in starts]
    ours, by_night, best = (100 * one / (KINDS[kind][0] * length) for one in saved)
    held = None
    if found.low_g is not None and found.high_g is not None:
        held = found.low_g <= saved[0] <= found.high_g
    return ours, by_night, best, held


def mean(values: list[float]) -> dict[str, Any]:
    """A mean with its 95 % interval and n."""
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5
    middle = float(np.mean(values))
    return {"mean": round(middle, 2), "interval": [round(middle - half, 2), round(middle + half, 2)], "n": len(values)}


def main() -> None:
    result: dict[str, Any] = {"machine": machine("numpy"), "weeks": WEEKS, "grids": {}}
    with tempfile.TemporaryDirectory() as folder:
        for number, kind in enumerate(KINDS):
            random = np.random.default_rng([15, number])
            cases = [case(kind, random, Path(folder)) for _ in range(CASES)]
            ours, night, best, held = (list(column) for column in zip(*cases, strict=True))
            later = [one for one in ours if one != 0]
            result["grids"][kind] = {
                "saved_pct": {"whorl": mean(ours), "night": mean(night), "best": mean(best)},
                "named": share(len(later), len(cases)),
                "worse": share(sum(one < 0 for one in later), len(later)),
                "held": share(sum(bool(one) for one in held if one is not None), sum(one is not None for one in held)),
            }
            say(f"{kind}: {result['grids'][kind]}")
    print(as_json(result))


if __name__ == "__main__":
    main()
