"""Files of measurements from other tools, turned into the tables of a store."""

from __future__ import annotations

from .importer import import_file
from .layout import Options
from .report import Report

__all__ = ["Options", "Report", "import_file"]
