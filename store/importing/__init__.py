"""Files of measurements from other tools, turned into the tables of a store."""

from __future__ import annotations

from .importer import Parsed, import_file, read_file
from .options import Options
from .provenance import Report

__all__ = ["Options", "Parsed", "Report", "import_file", "read_file"]
