"""The store: table schemas, append-only writing, reading, SQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import Store

# Loaded on first use: who needs only the schemas does not load the code that reads and writes tables.
_LAZY = {"Store": ".store"}

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
