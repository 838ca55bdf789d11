"""What a kWh emits here and now, by the site's settings (docs/carbon.md). It needs whorl with all its packages."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...store.names import this_cluster
from .totals import Factor


def factor(settings: str | Path | None, store: str | Path | None, cluster: str | None) -> Factor | None:
    """The factor of now, by the settings in a file, else by those of the store; None where they know none.

    Raises InputError where they cannot be read.
    """
    try:
        from ...analysis.energy.carbon.grid import grid
        from ...analysis.energy.carbon.settings import find_settings
    except ModuleNotFoundError as error:
        raise InputError(
            f"grams need the package {error.name}: install whorl with all it needs, or give grams_per_kwh"
        ) from error
    where = cluster or this_cluster()
    made, now = grid(find_settings(Path(store or "."), settings)), np.array([time.time_ns()])
    steps = made.carbon(where)
    grams, pue = float(steps.at(now)[0]), float(made.pue(where).at(now)[0])
    if np.isnan(grams):
        return None
    source, known = made.sources[int(steps.code_at(now)[0])], None if np.isnan(pue) else pue
    return Factor(grams * (known or 1.0), known, source.zone, source.source, source.year)
