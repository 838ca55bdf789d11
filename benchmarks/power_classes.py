"""How well the effect of a power cap on a workload is predicted from other workloads. Prints JSON.

    python benchmarks/power_classes.py > benchmarks/results/power_classes.json

Zeus's sweeps: six trainings (data set and network) on a V100 and on a Quadro RTX 6000, in several batch sizes and with
several optimizers, each under power limits from 100 W up. Each training is left out in turn, with all its settings.
Its time and power under each limit, as multiples of those under the highest, are predicted from the other five and
from its own power under the highest limit. `nearest` is `analysis.power_classes`; `nearest setting` the same with one
neighbour; `mean curve` is the mean of the other trainings whatever their power; `limit rule` says that a cap costs no
time and that power is the cap or what it was.

Errors are mean absolute errors in %: over a training's settings and caps, then over the trainings; `low` to `high` is
the 95 % interval of the mean over six trainings (Student's t), which six are few for. `less_than` is by how many points
`nearest` is less wrong than another method, paired by training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.power_classes import METHODS, Curve, curves, leave_one_out
from whorl.analysis.power_classes.caps import Method, at, by_distance
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json

POWER = Path(__file__).resolve().parents[2] / "shared" / "data" / "power"
MODELS = {"v100": range(100, 250, 25), "rtx6000": range(100, 260, 25)}
T_5 = 2.5706
"""The 97.5 % point of Student's t with 5 degrees of freedom."""


def zeus(model: str) -> list[Curve]:
    """The curves of a sweep: a family is data set and network, a setting adds batch size and optimizer."""
    table = pl.read_csv(POWER / f"zeus_power_limits_{model}.csv.gz")
    family = pl.concat_str("dataset", "network", separator="/")
    return curves(
        table.select(
            family.alias("family"),
            pl.concat_str(family, "batch_size", "optimizer", separator="/").alias("setting"),
            pl.col("power_limit").cast(pl.Float64).alias("cap"),
            pl.col("time_per_epoch").alias("time"),
            pl.col("average_power").alias("power_w"),
        )
    )


def nearest_setting(known: list[Curve], load: float, share: float) -> tuple[float, float]:
    return at(by_distance(known, load)[0], share)


def main() -> None:
    methods: dict[str, Method] = {**METHODS, "nearest setting": nearest_setting}  # type: ignore[dict-item]
    document: dict[str, Any] = {"benchmark": "power_classes", "machine": machine("polars", "numpy"), "models": {}}
    for model, caps in MODELS.items():
        known = zeus(model)
        highest = 250 if model == "v100" else 260
        families = sorted({one.family for one in known})
        errors = {
            name: np.array([list(leave_one_out(known, cap / highest, method).values()) for cap in caps])
            for name, method in methods.items()
        }  # (caps, families, time and power)
        row: dict[str, Any] = {"settings": len(known), "trainings": len(families), "caps_w": list(caps), "errors": {}}
        for name, found in errors.items():
            of = {what: summary(found[:, :, i].mean(axis=0)) for i, what in enumerate(("time", "power"))}
            by_cap = {what: [round(float(x), 1) for x in found[:, :, i].mean(axis=1)] for i, what in enumerate(of)}
            row["errors"][name] = {
                **of,
                "by_cap": by_cap,
                "by_training": {
                    family: [round(float(x), 1) for x in found[:, i].mean(axis=0)] for i, family in enumerate(families)
                },
            }
        row["less_than"] = {
            name: {
                what: summary((errors[name] - errors["nearest"])[:, :, i].mean(axis=0))
                for i, what in enumerate(("time", "power"))
            }
            for name in methods
            if name != "nearest"
        }
        document["models"][model] = row
    print(as_json(document))


def summary(of_trainings: np.ndarray) -> dict[str, float]:
    """The mean over the trainings, with its 95 % interval."""
    mean, half = of_trainings.mean(), T_5 * of_trainings.std(ddof=1) / np.sqrt(len(of_trainings))
    return {"mean": round(float(mean), 2), "low": round(float(mean - half), 2), "high": round(float(mean + half), 2)}


if __name__ == "__main__":
    main()
