"""A long table within an offline page: thousands of rows that a reader sorts, filters and opens, without a network.

The rows are sent as packed columns and not as HTML; the page draws only those that are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: its head, and how many digits stand behind the point."""

    name: str
    digits: int
    signed: bool = False


@dataclass(frozen=True)
class Listing:
    """A long table. `texts`: columns that are the same whatever is chosen; `values`: by choice, the columns of
    `numbers`. None is shown as n/a, and comes last whichever way a column is sorted."""

    title: str
    says: str
    texts: Mapping[str, Sequence[str | None]]
    numbers: Sequence[Numbers]
    values: Mapping[str, Sequence[Sequence[float | None]]]
    chosen: str = ""
    """What a choice is called: `probe`."""

    def data(self) -> dict[str, Any]:
        """What the page is made from, for JSON."""
        return {
            "texts": [[name, list(column)] for name, column in self.texts.items()],
            "numbers": [[one.name, one.digits, one.signed] for one in self.numbers],
            "values": [[choice, self._rounded(columns)] for choice, columns in self.values.items()],
        }

    def _rounded(self, columns: Sequence[Sequence[float | None]]) -> list[list[float | int | None]]:
        pairs = zip(self.numbers, columns, strict=True)
        return [_short(column, one.digits) for one, column in pairs]


def _short(values: Sequence[float | None], digits: int) -> list[float | int | None]:
    """The values to so many digits; None for what is not known."""
    column = np.array(values, dtype=np.float64).round(digits)
    known = np.isfinite(column)
    whole = np.where(known, column, 0.0)
    numbers = (whole if digits else whole.astype(np.int64)).tolist()
    if known.all():
        return list(numbers)
    return [number if there else None for number, there in zip(numbers, known.tolist(), strict=True)]


def placed(listing: Listing, number: int) -> str:
    """The place of a listing in the page, which `SCRIPT` fills."""
    return (
        f'<h3 class="of">{escape(listing.title)}</h3><p class="soft">{escape(listing.says)}</p>'
        f'<div class="listing" data-listing="{number}" data-chosen="{escape(listing.chosen)}"></div>'
    )


STYLE = """
.listing .controls { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; margin: 8px 0;
  font-size: 14px; }
.listing input { font: inherit; padding: 2px 6px; color: inherit; background: var(--band);
  border: 1px solid var(--line); border-radius: 4px; width: 12em; max-width: 100%; }
.listing .rows { overflow: auto; max-height: 460px; border: 1px solid var(--line); border-radius: 6px; }
.listing table { width: 100%; border-collapse: separate; border-spacing: 0; }
.listing th { position: sticky; top: 0; background: var(--band); z-index: 1; padding: 0; }
.listing th button { font: inherit; font-weight: 600; color: var(--soft); background: none; border: 0; cursor: pointer;
  padding: 5px 12px; width: 100%; text-align: inherit; white-space: nowrap; }
.listing td { height: 29px; padding: 0 12px; box-sizing: border-box; }
.listing td:first-child button { font: inherit; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; text-decoration: underline; }
.listing .gap td { padding: 0; border: 0; }
.listing .opened { margin: 10px 0; padding: 8px 14px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--band); overflow-x: auto; }
.listing .opened table { width: auto; }
.listing .opened th { padding: 4px 12px; position: static; }
@media print { .listing .rows { max-height: none; } }
"""

SCRIPT = Path(__file__).with_name("listing.js").read_text(encoding="utf-8")
