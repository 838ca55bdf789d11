"""What quotes of jobs stand on beside the job itself: how the GPUs and models of a cluster compare.

It is read from all of a cluster's fingerprints and runs, and is the same for each of its jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ....store.power_sensors import SENSOR_ERROR, SensorError
from ...power_classes import curves, sweep
from ...power_classes.caps import Curve
from .levels import levels
from .models import medians, sizes
from .placed import fingerprints, identities
from .places import stands

if TYPE_CHECKING:
    from ....store import Store


@dataclass(frozen=True)
class Ground:
    """Of one cluster."""

    notes: Sequence[str]
    named: pl.DataFrame
    """Its GPUs: `placed.identities`."""
    levels: pl.DataFrame
    """`levels.levels`."""
    stands: pl.DataFrame
    """`places.stands`."""
    compared: int
    """GPUs that have a level."""
    models: pl.DataFrame
    """`models.medians`."""
    caps: Sequence[Curve]
    """What power caps did: `power_classes.curves`."""


def ground(store: Store, cluster: str, sensor: SensorError = SENSOR_ERROR) -> Ground:
    """Read what the quotes of all jobs of a cluster stand on."""
    told, notes = fingerprints(store, cluster)
    named = identities(store).filter(pl.col("cluster") == cluster)
    caps = curves(sweep(store, cluster=cluster))
    of = levels(told, named, sensor=sensor)
    compared = of.select("cluster", "gpu").unique().height
    return Ground(notes, named, of, stands(of), compared, medians(told, sizes(store)), caps)
