"""The tables: schemas, append-only writing, reading, SQL."""

from __future__ import annotations

from .store import Store

__all__ = ["Store"]
