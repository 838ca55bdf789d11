"""What `whorl advise` says with a scheduler: the advice, what it costs in waiting, and the same for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dashboards.document import Document
from ...dashboards.documents.placement import PriceWords, SchedulerView, advice_document
from ...dashboards.words import MISSING, many
from ...jobs.formats import preference_of
from ...store.hostlist import compress

if TYPE_CHECKING:
    from ...analysis.chains.exclusion import WaitHours
    from ...jobs.price import WaitingPrice
    from ...jobs.steering import Steering


def mapping(steering: Steering) -> dict[str, Any]:
    """The advice and what the scheduler can be told, as `whorl.advise/1`."""
    wait = steering.wait()
    expression, reason = preference_of(steering)
    usable_now = steering.placing
    ranked = {"workloads": [row.as_dict() for row in steering.workloads]} if steering.workloads else {}
    return {
        "schema": "whorl.advise/1",
        **steering.advice.as_dict(),
        **({} if usable_now is steering.advice else {key: usable_now.as_dict()[key] for key in ("packed", "spread")}),
        **ranked,
        "scheduler": {
            "asked": bool(steering.nodes) or steering.foreign,
            "partition": steering.partition,
            "exclude": compress(steering.worth_excluding),
            "prefer": expression or None,
            "prefer_reason": reason or None,
            "nodelist": compress(steering.nodelist()) or None,
            "extra_wait_s": wait.extra_s,
            "extra_wait_reason": wait.reason,
            "unknown_nodes": list(steering.names.unknown),
            "nodes_elsewhere": list(steering.names.elsewhere),
            "nodes_out_of_use": list(steering.unusable),
        },
        "price": steering.price.as_dict() if steering.price is not None else None,
        "price_reason": steering.price_reason,
        "remarks": list(steering.remarks),
    }


def document(steering: Steering) -> Document:
    """The advice for people."""
    wait, price = steering.wait(), steering.price
    view = SchedulerView(
        names=steering.names.names,
        states={name: node.state for name, node in steering.nodes.items()},
        gpus={name: node.gpus for name, node in steering.nodes.items()},
        exclude=steering.worth_excluding,
        wait_s=wait.extra_s,
        wait_reason=wait.reason or "",
        price=None if price is None else PriceWords(price.worth, price_verdict(price), _price_evidence(price)),
        price_reason=steering.price_reason,
        remarks=steering.remarks,
    )
    return advice_document(steering.advice, steering.placing, view, steering.workloads)


def price_verdict(price: WaitingPrice) -> str:
    """Whether an exclusion pays, and for which jobs."""
    first = "Excluding pays" if price.worth else "Do not exclude"
    doubt = "" if price.certain else ", though the intervals overlap"
    text = (
        f"{first}{doubt}: a run of {_hours(price.run_time_h)} h saves {_with_interval(price.saved)}, and jobs wait "
        f"{_with_interval(price.waits.mean_wait.added)} longer on average."
    )
    if not price.pays_from_h:
        return text
    hint = " (--set time=12h says how long yours runs)" if price.run_time_from == "median" else ""
    return (
        f"{text} It pays for jobs that run longer than {_hours(price.pays_from_h)} h, as {price.longer_jobs_pct:.0f} % "
        f"of these do{hint}."
    )


def _price_evidence(price: WaitingPrice) -> str:
    """How the figures were made."""
    waits = price.waits
    size = "" if waits.job_nodes is None else f" of {many(waits.job_nodes, 'node')}"
    left_out = f", without {waits.too_wide_jobs:,} that need more nodes" if waits.too_wide_jobs else ""
    origin = "their median" if price.run_time_from == "median" else "as time= says"
    return (
        f"Price: {waits.jobs:,} jobs{size} in {waits.weeks} weeks of {price.source}, to {price.last_day}, replayed "
        f"with {waits.cluster_nodes:,} nodes and with {waits.excluded_nodes:,} fewer for all jobs{left_out}. The run "
        f"of {_hours(price.run_time_h)} h is {origin}; its saving has a 90 % interval, the mean wait one of 95 %, "
        f"from week to week. The wait that 95 % of them do not exceed grows by {_with_interval(waits.p95_wait.added)}."
    )


def _with_interval(figure: WaitHours) -> str:
    hours = f"{_hours(figure.hours)} h"
    if figure.low_h is None or figure.high_h is None:
        return f"{hours} [{MISSING}]"
    return f"{hours} [{_hours(figure.low_h)}, {_hours(figure.high_h)}]"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if abs(hours) >= 10 else f"{round(hours, 2) + 0.0:.2g}"  # and never -0
