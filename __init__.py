"""whorl: measure every GPU of a fleet, keep what was seen in tables, and say which GPUs differ and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import variability
    from .store import Store

__version__ = "0.1.0"

# Loaded on first use, so that `import whorl` and `whorl --help` stay instant.
_LAZY = {"Store": ".store", "variability": ".analysis"}

__all__ = ["Store", "__version__", "variability"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
