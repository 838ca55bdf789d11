"""How often the interval of a quote under a power cap holds what really happened. Prints JSON.

    python benchmarks/energy_quote.py > benchmarks/results/energy_quote.json

Zeus's sweeps, as in `power_classes.py`: six trainings on two models of GPU, in several settings, under several power
limits. Each training is left out with all its settings, and each of its settings is quoted as a job of `whorl energy
quote` from the other five. `holds` is the share of quotes whose 95 % interval holds the true time or energy; quotes of
one training are alike, so `trainings` says for how many of six it holds in at least nine of ten quotes. `error_pct` is
the mean absolute error, beside that of the rule that others use: a cap costs no time, and power is the cap or what it
was.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np

from whorl.analysis.energy.choices.quoting import CAPS, Ran, caps
from whorl.analysis.power_classes import METHODS, Curve
from whorl.analysis.power_classes.caps import at
from whorl.benchmarks.machine import machine
from whorl.benchmarks.power_classes import MODELS, zeus
from whorl.benchmarks.reporting import as_json, share

LIMIT_W = 250.0
SECONDS = 3600.0


def job(curve: Curve) -> Ran:
    """A setting as a job that is always busy, of an hour under the highest limit."""
    joules = curve.load * LIMIT_W * SECONDS
    return Ran(
        "zeus", ("GPU",), 1, SECONDS, SECONDS, joules, joules, joules, 0.0, 1.0, "any", None, LIMIT_W, None, None
    )


def quotes(known: list[Curve]) -> list[dict[str, Any]]:
    """A row for each cap of each setting: what was said, and what was true, as multiples."""
    rows = []
    for family in sorted({one.family for one in known}):
        others = [one for one in known if one.family != family]
        for curve in (one for one in known if one.family == family):
            ran = job(curve)
            assert ran.energy_j is not None
            for cap, said in zip(CAPS, caps(ran, others), strict=True):
                if said.energy_j is None or said.time_s is None or cap < curve.share[0]:
                    continue
                time, power = at(curve, cap)
                rule = METHODS["limit rule"](others, curve.load, cap)
                rows.append(
                    {
                        "family": family, "cap": cap,
                        "time": (said.time_s / SECONDS, said.time_low_s, said.time_high_s, time * SECONDS, time),
                        "energy": (said.energy_j / ran.energy_j, said.low_j, said.high_j, time * power * ran.energy_j,
                                   time * power),
                        "rule": {"time": rule[0], "energy": rule[0] * rule[1]},
                    }
                )  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Of time or energy."""
    held = [row[what][1] <= row[what][3] <= row[what][2] for row in rows]
    by_family: dict[str, list[bool]] = defaultdict(list)
    for row, holds in zip(rows, held, strict=True):
        by_family[row["family"]].append(holds)
    widths = [100 * (row[what][2] - row[what][1]) / 2 / row[what][3] * row[what][4] for row in rows]
    return {
        "holds": share(sum(held), len(rows)),
        "trainings": sum(sum(one) >= 0.9 * len(one) for one in by_family.values()),
        "median_half_width_pct": round(float(np.median(widths)), 1),
        "error_pct": round(100 * float(np.mean([abs(row[what][0] / row[what][4] - 1) for row in rows])), 2),
        "error_pct_of_the_rule": round(
            100 * float(np.mean([abs(row["rule"][what] / row[what][4] - 1) for row in rows])), 2
        ),
    }


def main() -> None:
    """Print the figures."""
    answer: dict[str, Any] = {"machine": machine(), "models": {}}
    for model in MODELS:
        rows = quotes(zeus(model))
        answer["models"][model] = {
            "quotes": len(rows), "of_trainings": len({row["family"] for row in rows}),
            "time": summary(rows, "time"), "energy": summary(rows, "energy"),
        }  # fmt: skip
    sys.stdout.write(as_json(answer) + "\n")


if __name__ == "__main__":
    main()
