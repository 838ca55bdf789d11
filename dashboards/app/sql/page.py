"""The page as a whole."""

from __future__ import annotations

from ..page import Page
from .console import layout
from .running import register

PAGE = Page("sql", "SQL", (), layout, register)
