"""From what temperature on heat holds a GPU's clock."""

from __future__ import annotations

import polars as pl

MAX_OPERATING_C = (
    (("V100", "SXM2"), 83),
    (("A100", "PCI"), 85),
    (("H100", "SXM"), 87),
    (("H100", "HBM3"), 87),
    (("H200",), 87),
)
"""Highest operating temperature of models whose driver's output was seen, by words of their names: for files that name
the model alone."""


def max_operating_c(model: str | None) -> int | None:
    """The highest operating temperature of a model, None where it is not known."""
    name = (model or "").upper()
    return next((limit for words, limit in MAX_OPERATING_C if all(word in name for word in words)), None)


def hottest_c(gpus: pl.DataFrame) -> dict[str, float]:
    """By GPU, the lower of its highest operating temperature and its slowdown temperature, where one is known.

    `gpus`: of `probing.Probed`. What the driver says counts more than what is known of the model.
    """
    found = {}
    names = ("gpu", "model", "temperature_slowdown_c", "temperature_max_operating_c")
    for gpu, model, slowdown, *told in gpus.select(name for name in names if name in gpus.columns).iter_rows():
        known = [limit for limit in ((told[0] if told else None) or max_operating_c(model), slowdown) if limit]
        if known:
            found[str(gpu)] = float(min(known))
    return found
