"""What `whorl campaign doctor` says: a table for people, and a document for programs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ..dashboards.table import Line, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..jobs.campaign.doctoring import Answer


def answer(found: Answer, store: str) -> Iterable[Table | Line]:
    """What a node has and lacks, and what to do next."""
    rows = [["yes" if one.works else "no", one.what, one.detail] for one in found.findings]
    yield Line(f"node {found.node}, by job {found.job}, after {found.waited_s:.0f} s")
    yield Table(("works", "what", "detail"), rows, wrapped=(2,))
    if found.works:
        yield Line("a campaign can measure there")
        yield Line(f"next: whorl campaign plan --suite quick --store {shlex.quote(store)}")
    else:
        missing = ", ".join(one.what for one in found.findings if one.vital and not one.works)
        yield Line(f"a campaign cannot measure there: {missing}")


def document(found: Answer) -> dict[str, Any]:
    """`whorl.campaign.doctor/1`."""
    rows = [{"what": one.what, "works": one.works, "detail": one.detail, "needed": one.vital} for one in found.findings]
    return {
        "schema": "whorl.campaign.doctor/1",
        "node": found.node,
        "job": found.job,
        "waited_s": round(found.waited_s, 1),
        "works": found.works,
        "findings": rows,
    }
