"""The energy of a GPU as a function of time, with an interval: from its counter where that can be trusted, else from
power. `meters` makes one meter a GPU from a store, `meters_of_many` those of many GPUs at a time, as arrays; `over`
gives the energy of any windows.
"""

from __future__ import annotations

from .findings import Note, Problem, Reason
from .idle import IDLE_SOURCES, IdleSource
from .meter import Energies, Meter, Meters
from .power import PowerSource
from .reading import covered, has_telemetry, meters, meters_of_many, rows_since
from .readings import Readings

__all__ = [
    "IDLE_SOURCES",
    "Energies",
    "IdleSource",
    "Meter",
    "Meters",
    "Note",
    "PowerSource",
    "Problem",
    "Readings",
    "Reason",
    "covered",
    "has_telemetry",
    "meters",
    "meters_of_many",
    "rows_since",
]
