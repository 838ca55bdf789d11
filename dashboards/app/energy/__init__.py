"""The page Jobs and energy: what energy jobs, users and GPUs used, one job in full, and whether the books balance.

`asked` says what an address asks for, `head` has the inputs and follows the address, `whole` and `job` show it.
"""

from __future__ import annotations

from ..page import TELEMETRY, Page
from .head import layout, register


def page(others: frozenset[str]) -> Page:
    """The page; `others` are the paths of the pages that it may lead to."""
    return Page("energy", "Jobs and energy", (TELEMETRY,), layout, lambda app, reading: register(app, reading, others))
