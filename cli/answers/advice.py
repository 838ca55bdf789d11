"""Where a job should run: the function of `whorl advise`."""

from __future__ import annotations

from ...analysis.placement import NodeEvidence
from ...dashboards.answers.reply import Reply, RowList, replying
from ...jobs import advice
from ...jobs.advising import Steering
from .. import advise_report


def _advised(steering: Steering, _: str) -> Reply[Steering]:
    return Reply(
        steering,
        lambda: advise_report.document(steering, steering.wait(), steering.remarks),
        lambda: advise_report.answer(steering, steering.wait(), steering.remarks),
        rows=RowList("nodes", NodeEvidence),
    )


advise = replying(advice.advise, _advised)
