"""The pages of the dashboard, in the order of the navigation."""

from __future__ import annotations

from . import energy, overview
from .fleet import linking as fleet
from .gpu import page as gpu
from .page import Page
from .placement.page import PAGE as PLACEMENT
from .sql.page import PAGE as SQL
from .telemetry.page import PAGE as TELEMETRY

_PATHS = frozenset({"fleet", "gpu", "telemetry", "energy", "placement", "sql"})
_OTHERS: tuple[Page, ...] = (fleet.page(_PATHS), gpu.page(_PATHS), TELEMETRY, energy.page(_PATHS), PLACEMENT, SQL)
PAGES: tuple[Page, ...] = (overview.page(frozenset(page.path for page in _OTHERS)), *_OTHERS)


def find_page(path: str | None) -> Page | None:
    """The page of an address, under whatever prefix: its last part counts."""
    last = (path or "").rpartition("/")[2]
    return next((page for page in PAGES if page.path == last), None)
