"""The energy of one GPU as a function of time, with an interval: from its counter where that can be trusted, else from
power. `meters` makes one meter a GPU from a store; `Meter.over` gives the energy of any windows.
"""

from __future__ import annotations

from .findings import Note, Problem, Reason
from .meter import Energies, Meter
from .reading import covered, has_telemetry, meters, rows_since
from .readings import Readings

__all__ = [
    "Energies",
    "Meter",
    "Note",
    "Problem",
    "Readings",
    "Reason",
    "covered",
    "has_telemetry",
    "meters",
    "rows_since",
]
