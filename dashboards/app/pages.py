"""The pages of the dashboard, in the order of the navigation."""

from __future__ import annotations

from . import overview
from .page import Page

_OTHERS: tuple[Page, ...] = ()
PAGES: tuple[Page, ...] = (overview.page(frozenset(page.path for page in _OTHERS)), *_OTHERS)


def find_page(path: str | None) -> Page | None:
    """The page of an address, under whatever prefix: its last part counts."""
    last = (path or "").rpartition("/")[2]
    return next((page for page in PAGES if page.path == last), None)
