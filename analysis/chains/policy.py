"""When a policy submits the next job of a chain: how long before the end of the job that runs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InputError


@dataclass(frozen=True, slots=True)
class LeadPolicy:
    """A policy: by its name, at a quantile of the predicted wait, or at a fixed lead."""

    name: str  # reactive (at the end), lead6 (hours), average, test-only, or p75: a quantile
    quantile: float | None = None
    lead_s: float | None = None

    @classmethod
    def parse(cls, name: str, *, further: Sequence[str] = ()) -> LeadPolicy:
        """The policy of that name, which may be one of some `further` names. Raises InputError for another one."""
        lead, quantile = re.fullmatch(r"lead(\d+\.?\d*)h?", name), re.fullmatch(r"p([1-9]\d?)", name)
        if lead:
            return cls(name, lead_s=3600.0 * float(lead[1]))
        if quantile:
            return cls(name, quantile=int(quantile[1]) / 100)
        if name not in ("reactive", "average", "test-only", *further):
            names = ", ".join(["reactive, lead6 (hours), average, test-only", *further])
            raise InputError(f"there is no policy {name!r}: give {names} or p75")
        return cls(name)

    @classmethod
    def of_cost(cls, cost: float, name: str | None = None) -> LeadPolicy:
        """The quantile of the wait to submit by, where an hour of overlap weighs `cost` hours of interruption.

        The expected cost of a lead L for a wait W, E[max(0, W - L)] + cost * E[max(0, L - W)], is least where L is the
        quantile 1 / (1 + cost) of W (the newsvendor problem: Arrow, Harris, Marschak, Econometrica 1951). Raises
        InputError for a cost that no quantile stands for.
        """
        if not (math.isfinite(cost) and 0.01 <= cost <= 99):
            raise InputError(f"an hour of overlap can weigh 0.01 to 99 hours of interruption, not {cost:g}")
        quantile = 1 / (1 + cost)
        return cls(name or f"p{100 * quantile:.0f}", quantile=quantile)
