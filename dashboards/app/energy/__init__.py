"""The page Jobs and energy: what energy jobs, users and GPUs used, one job in full, and whether the books balance.

`address` says what an address asks for, `inputs` has the inputs and follows the address, `fleet` and `job` show it.
"""

from __future__ import annotations

from ..page import TELEMETRY, Page
from .address import PATH
from .inputs import layout, register

PAGE = Page(PATH, "Jobs and energy", (TELEMETRY,), layout, register)
