"""Where a job should run: the function of `whorl advise`."""

from __future__ import annotations

from ...analysis.placement import NodeEvidence
from ...dashboards.answers.reply import Reply, RowList, replying
from ...jobs import steering
from ...jobs.steering import Steering
from .. import advise_report


def _reply(advised: Steering, _: str) -> Reply[Steering]:
    return Reply(
        advised,
        lambda: advise_report.document(advised),
        lambda: advise_report.answer(advised),
        rows=RowList("nodes", NodeEvidence),
    )


advise = replying(steering.advise, _reply)
