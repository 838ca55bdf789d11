"""What a kWh emits here and now, by the site's settings (docs/carbon.md). A file of hours needs Polars."""

from __future__ import annotations

import time
from pathlib import Path

from ...store.names import this_cluster
from .totals import Factor


def factor(settings: str | Path | None, store: str | Path | None, cluster: str | None) -> Factor | None:
    """The factor of now, by the settings in a file, else by those of the store; None where they know none.

    Raises InputError where they cannot be read.
    """
    from ...analysis.energy.outlook import grams_per_kwh
    from ...analysis.energy.settings import find_settings

    now = grams_per_kwh(find_settings(Path(store or "."), settings), cluster or this_cluster(), time.time_ns())
    if now.g_per_kwh is None:
        return None
    return Factor(now.g_per_kwh * (now.pue or 1.0), now.pue, now.zone, now.source or "", now.year)
