"""The pages of the dashboard, in the order of the navigation."""

from __future__ import annotations

from .energy import PAGE as ENERGY
from .fleet.linking import PAGE as FLEET
from .gpu.page import PAGE as GPU
from .overview import PAGE as OVERVIEW
from .page import Page
from .placement.page import PAGE as PLACEMENT
from .sql.page import PAGE as SQL
from .telemetry.page import PAGE as TELEMETRY

PAGES: tuple[Page, ...] = (OVERVIEW, FLEET, GPU, TELEMETRY, ENERGY, PLACEMENT, SQL)


def find_page(path: str | None) -> Page | None:
    """The page of an address, under whatever prefix: its last part counts."""
    last = (path or "").rpartition("/")[2]
    return next((page for page in PAGES if page.path == last), None)
