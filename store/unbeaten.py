"""Which of several options are worth choosing: the Pareto set, of spans on a node and of jobs in a store."""

from __future__ import annotations

from collections.abc import Sequence


def unbeaten(points: Sequence[tuple[float, ...] | None]) -> list[bool]:
    """Which points no other one beats: lower in one figure and no higher in any. None is no point."""
    present = [point for point in points if point is not None]
    return [
        point is not None
        and not any(rival != point and all(a <= b for a, b in zip(rival, point, strict=True)) for rival in present)
        for point in points
    ]
