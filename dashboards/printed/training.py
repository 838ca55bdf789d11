"""What `whorl advise burst` and `whorl advise spb` say: how a training job should use its GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from ...analysis.placement import Gain
from ...analysis.placement.notes import percent
from ...analysis.training.burst import UNMEASURED_US, BurstAnswer, BurstPlacement, BurstPlan, BurstRow
from ...analysis.training.spb import MeanInterval, SpbPlan
from ..table import MISSING, Table, many, number

_LISTED = 20
_AGAINST = {
    "full": "full backpropagation on the same GPUs",
    "roles": "the same GPUs in random order",
    "random": "random GPUs of random nodes, in random order",
}


def burst_document(answer: BurstAnswer) -> dict[str, Any]:
    """The document of `whorl.advise.burst/1`."""
    return {
        "schema": "whorl.advise.burst/1",
        "model": answer.profile.model,
        "unmeasured_layers": list(answer.unmeasured),
        "rows": [_burst_row(row) for row in answer.rows],
    }


def _burst_row(row: BurstRow) -> dict[str, Any]:
    plan, question = row.plan, row.plan.question
    return {
        "batch": question.batch,
        "gpus": question.gpus,
        "limit": _limit(plan),
        "rules": question.rules,
        "time_ms": plan.time_ms,
        "gpu_ms": plan.gpu_ms,
        "layers": list(plan.layers),
        "conv_traffic": "published" if question.published_traffic else "right",
        "bandwidth": question.bandwidth,
        "data_parallel_ms": row.data_parallel_ms,
        "single_gpu_ms": plan.single_gpu_ms,
        "idle_share": plan.idle_share,
        "idle_shares": list(plan.idle_shares),
        "stages": [list(stage) for stage in plan.stages],
        "placement": None if row.placement is None else asdict(row.placement),
    }


def _limit(plan: BurstPlan) -> float | str:
    return "data-parallel" if plan.question.limit is None else plan.question.limit


def _limit_text(plan: BurstPlan) -> str:
    return "data-parallel" if plan.question.limit is None else f"{plan.question.limit:g}"


def burst_notes(answer: BurstAnswer) -> tuple[str, ...]:
    """What the plans assume."""
    notes = []
    if answer.unmeasured:
        kinds = ", ".join(dict.fromkeys(answer.network[layer - 1].kind for layer in answer.unmeasured))
        notes.append(
            f"{answer.profile.file} lacks {many(len(answer.unmeasured), 'layer')} of the network ({kinds}): each "
            f"counts as {UNMEASURED_US:g} us"
        )
    if any(row.plan.question.published_traffic for row in answer.rows):
        notes.append(
            "the gradients of convolutions count as in DeepPool's planner, nearly nothing; --conv-traffic right counts "
            "4 k k Cin Cout bytes"
        )
    return tuple(notes)


def burst_answer(answer: BurstAnswer) -> Iterator[str | Table]:
    """The plans for people."""
    rows = []
    for row in answer.rows:
        plan, question = row.plan, row.plan.question
        saved = None if row.data_parallel_ms is None else 1.0 - plan.time_ms / row.data_parallel_ms
        rows.append(
            [
                str(question.batch),
                str(question.gpus),
                _limit_text(plan),
                f"{plan.time_ms:.4f}",
                MISSING if saved is None else percent(saved),
                f"{plan.gpu_ms:.4f}",
                f"{plan.gpu_ms / plan.single_gpu_ms:.3f}",
                percent(plan.idle_share),
                _widths(plan.layers),
            ]
        )
    head = ("batch", "GPUs", "limit", "ms", "saved", "GPU-ms", "of one GPU", "idle", "GPUs of the layers, in order")
    title = f"Burst-parallel plans of {answer.profile.model}, {many(len(answer.network), 'layer')}"
    yield Table(head, rows, (0, 1, 3, 4, 5, 6, 7), title, leaves=(6, 5))
    yield (
        "ms: an iteration. saved: of the time of plain data parallelism. idle: of the time of the plan's GPUs, which "
        "other jobs can have. 8 x 31: 31 layers on 8 GPUs each."
    )
    for row in answer.rows:
        yield ""
        if len(answer.rows) > 1:
            question = row.plan.question
            yield f"Batch {question.batch}, {many(question.gpus, 'GPU')}, limit {_limit_text(row.plan)}:"
        yield _idle(row.plan)
        if row.placement is not None:
            yield from _placed(row.placement)


def _widths(layers: Sequence[int]) -> str:
    """8 x 31, 1 x 7: 31 layers on 8 GPUs, then 7 on 1."""
    return ", ".join(f"{width} x {len(list(run))}" for width, run in groupby(layers))


def _idle(plan: BurstPlan) -> str:
    shares = [(share, len(list(run))) for share, run in groupby(round(share, 4) for share in plan.idle_shares)]
    waits = ", ".join(f"{many(gpus, 'GPU')} {percent(share)}" for share, gpus in shares)
    return f"Idle share of an iteration: {waits}"


def _placed(placement: BurstPlacement) -> Iterator[str | Table]:
    shown = ", ".join(placement.gpus[:_LISTED])
    more = f" and {len(placement.gpus) - _LISTED} more (--json has all)" if len(placement.gpus) > _LISTED else ""
    yield f"GPUs, the one that works in all layers first: {shown}{more}"
    yield (
        f"An iteration there: {placement.time_ms:.4f} ms [{placement.lower_ms:.4f}, {placement.upper_ms:.4f}], by the "
        f"scores of {placement.workload} on {placement.cluster}"
    )
    yield from _gains(placement.gains, placement.reason)


def _gains(gains: Sequence[Gain], reason: str | None) -> Iterable[str | Table]:
    rows = [
        [
            _AGAINST[gain.against],
            percent(gain.median),
            f"[{percent(gain.lower)}, {percent(gain.upper)}]",
            "" if gain.measurable else "no measurable gain",
        ]
        for gain in gains
    ]
    yield Table(("against", "saved", "[90 %]", ""), rows, (1,), "Time saved by these GPUs in this order")
    if reason is not None:
        yield f"The GPUs cannot be told apart: {reason}."


def spb_document(plan: SpbPlan) -> dict[str, Any]:
    """The document of `whorl.advise.spb/1`."""
    return {
        "schema": "whorl.advise.spb/1",
        "cluster": plan.cluster,
        "workload": plan.workload,
        "gpus": len(plan.workers),
        "backward": plan.backward,
        "full_step": asdict(plan.full),
        "step": asdict(plan.step),
        "gains": [asdict(gain) for gain in plan.gains],
        "slack": asdict(plan.slack),
        "gradient_shares": plan.gradient_shares,
        "reason": plan.reason,
        "rows": [asdict(worker) for worker in plan.workers],
        "notes": list(plan.notes),
    }


def spb_answer(plan: SpbPlan) -> Iterator[str | Table]:
    """The depths for people."""
    layers = plan.workers[0].layers is not None
    head = ["GPU", "goes back through", *(["layers"] if layers else []), "score", "works"]
    rows = [
        [
            worker.gpu,
            percent(worker.depth),
            *([str(worker.layers)] if layers else []),
            f"{worker.score:.3f}",
            percent(worker.busy),
        ]
        for worker in plan.workers
    ]
    title = f"Depth of backpropagation by {plan.workload} on {plan.cluster}, the deepest on the fastest GPU"
    yield Table(head, rows, tuple(range(1, len(head))), title)
    yield "goes back through: this share of the layers, from the last on. works: the share of a step."
    yield ""
    yield f"A step: {_figure(plan.step)}; with full backpropagation {_figure(plan.full)}. 1 = the median GPU."
    yield f"Slack, the share of the GPUs' time that other jobs can have: {_share(plan.slack)}"
    if plan.gradient_shares is not None:
        mean = sum(plan.gradient_shares) / len(plan.gradient_shares)
        yield f"Gradient traffic, layers of equal size: {percent(mean)} of that of full backpropagation"
    yield ""
    yield from _gains(plan.gains, plan.reason)
    yield "What partial backpropagation does to the quality of training is not simulated."


def _figure(figure: MeanInterval) -> str:
    return f"{number(figure.mean)} [{number(figure.lower)}, {number(figure.upper)}]"


def _share(figure: MeanInterval) -> str:
    return f"{percent(figure.mean)} [{percent(figure.lower)}, {percent(figure.upper)}]"
