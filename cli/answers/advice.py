"""Where a job should run: the function of `whorl advise`."""

from __future__ import annotations

from ...analysis.placement import NodeEvidence
from ...dashboards.answers.reply import Reply, RowList, replying
from ...jobs import steering
from ...jobs.steering import Steering
from ..documents import advice as documents


def _reply(advised: Steering, _: str) -> Reply[Steering]:
    return Reply(
        advised,
        lambda: documents.mapping(advised),
        lambda: documents.document(advised),
        rows=RowList("nodes", NodeEvidence),
    )


advise = replying(steering.advise, _reply)
