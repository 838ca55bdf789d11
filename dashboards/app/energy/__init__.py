"""The page Jobs and energy: what energy jobs, users and GPUs used, one job in full, and whether the books balance.

`asked` says what an address asks for, `head` has the inputs and follows the address, `whole` and `job` show it.
"""

from __future__ import annotations

from ..page import TELEMETRY, Page
from .asked import PATH
from .head import layout, register

PAGE = Page(PATH, "Jobs and energy", (TELEMETRY,), layout, register)
