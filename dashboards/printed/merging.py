"""What `whorl store merge` and `whorl import` say of a store that was taken in."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.merging import Merged
from ..table import count, many

_SHOWN = 5


def answer(merged: Merged) -> Iterable[str]:
    """The report on a source, for people."""
    added, known = sum(merged.added.values()), sum(merged.known.values())
    tables = ", ".join(f"{name} {count(rows)}" for name, rows in merged.added.items())
    yield (
        f"{merged.source}: {many(added, 'row')} added{f' ({tables})' if tables else ''}; {count(known)} "
        "were stored before"
    )
    if merged.replaced:
        yield f"  {many(merged.replaced, 'reading')} took the place of ones that were written earlier"
    if merged.pruned:
        yield f"  {many(merged.pruned, 'row')} left out, of minutes that the store has already, pruned or as readings"
    for moved in merged.moved[:_SHOWN]:
        yield (
            f"  {moved['uuid']} is {moved['here']} here and {moved['there']} there: the UUID says which GPU it is, and "
            "both places are kept; if the two clusters are one, give --cluster"
        )
    if len(merged.moved) > _SHOWN:
        yield f"  and so are {count(len(merged.moved) - _SHOWN)} more GPUs"
    for crowded in merged.crowded:
        yield (
            f"  cluster {crowded['cluster']} has other GPUs there, in {many(crowded['places'], 'place')} "
            f"({crowded['place']}, ...): all count as one cluster; if it is another one, merge it into a store without "
            "it, with --cluster NAME"
        )
