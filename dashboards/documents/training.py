"""How a training job should use its GPUs: `whorl advise burst`, `spb` and `power-plan`, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from ...analysis.placement import Gain
from ...analysis.placement.notes import percent
from ...analysis.power_classes.job_plans import SyncJobPlan
from ...analysis.training.burst import UNMEASURED_US, BurstAnswer, BurstPlacement, BurstPlan, BurstRow
from ...analysis.training.gang import MeanInterval, SpbPlan
from ...analysis.tuning.power_plan import (
    FULL_CLOCK,
    MOST_NOISE,
    STEP_W,
    WAITING_RANGE,
    ClassRuns,
    Estimate,
    PlanRefusal,
    StepGains,
)
from ..document import Column, Command, Document, Part, Section, Table, TableColumns
from ..words import listed, many, minute, number, with_interval
from .placement import SAVED, percents

_GPUS_NAMED = 20
_AGAINST = {
    "full": "full backpropagation on the same GPUs",
    "roles": "the same GPUs in random order",
    "random": "random GPUs of random nodes, in random order",
}
INDEPENDENT = (
    "jobs that do not wait for each other gain 0.00 to 0.04 % of speed by a limit for each GPU under one budget, "
    "computed in simulation for 4 models, 3 workloads and 3 budgets: give all GPUs of such jobs the same limit"
)
_PLAN_COLUMNS = ("gpu", "name", "node", "time_ms", "power_w", "limit_w", "clock_share", "cap_share", "held", "runs",
                 "plan_limit_w", "plan_power_w")  # fmt: skip


def _share(column: str, explains: str = "", drops: int = 0) -> Column:
    return Column(column, "number", 1, "%", explains=explains, drops=drops)


def _time_saved(gains: Sequence[Gain], reason: str | None) -> Section:
    """What the order of the GPUs saves, against each baseline."""
    columns: TableColumns = [
        (Column("against", "sentence"), lambda gain: _AGAINST[gain.against]),
        (SAVED, percents),
        (Column("", "sentence"), lambda gain: "" if gain.measurable else "no measurable gain"),
    ]
    table = Table.of(gains, columns)
    doubt = [] if reason is None else [f"The GPUs cannot be told apart: {reason}."]
    return Section("Time saved by these GPUs in this order", [table, *doubt])


# -- burst -------------------------------------------------------------------------------------------------------


def burst_mapping(answer: BurstAnswer) -> dict[str, Any]:
    """The answer as `whorl.advise.burst/1`."""
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
        "limit": "data-parallel" if question.limit is None else question.limit,
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
            "the gradients of convolutions count as in DeepPool's planner, nearly nothing; conv-traffic=right counts "
            "4 k k Cin Cout bytes"
        )
    return tuple(notes)


def burst_document(answer: BurstAnswer) -> Document:
    """The plans for people."""
    title = f"Burst-parallel plans of {answer.profile.model}, {many(len(answer.network), 'layer')}"
    parts: list[Part] = [f"{title}: {_fastest(answer.rows)}", _burst_table(answer.rows)]
    for row in answer.rows:
        question = row.plan.question
        name = f"Batch {question.batch}, {many(question.gpus, 'GPU')}, limit {_limit_text(row.plan)}"
        placement = () if row.placement is None else _placement(row.placement)
        parts.append(Section(name, [_idle(row.plan), *placement]))
    return Document(title, parts)


def _fastest(rows: Sequence[BurstRow]) -> str:
    best = min(rows, key=lambda row: row.plan.time_ms)
    saved = _saved_pct(best)
    beside = "" if saved is None else f", {saved:.1f} % less than plain data parallelism"
    question = best.plan.question
    return (
        f"the fastest takes {best.plan.time_ms:.4f} ms an iteration{beside}, on {many(question.gpus, 'GPU')} with "
        f"batch {question.batch}; other jobs can have {percent(best.plan.idle_share)} of the time of its GPUs."
    )


def _saved_pct(row: BurstRow) -> float | None:
    return None if row.data_parallel_ms is None else 100 * (1.0 - row.plan.time_ms / row.data_parallel_ms)


def _burst_table(rows: Sequence[BurstRow]) -> Table:
    columns: TableColumns = [
        (Column("batch", "count"), lambda row: row.plan.question.batch),
        (Column("GPUs", "count"), lambda row: row.plan.question.gpus),
        ("limit", lambda row: _limit_text(row.plan)),
        (Column("ms", "number", 4, explains="time of an iteration"), lambda row: row.plan.time_ms),
        (_share("saved", "of the time of plain data parallelism"), _saved_pct),
        (Column("GPU-ms", "number", 4, drops=1), lambda row: row.plan.gpu_ms),
        (Column("of one GPU", "number", 3, drops=2), lambda row: row.plan.gpu_ms / row.plan.single_gpu_ms),
        (
            _share("idle", "of the time of the plan's GPUs, which other jobs can have"),
            lambda row: 100 * row.plan.idle_share,
        ),
        (
            "GPUs of the layers, in order",
            lambda row: ", ".join(f"{width} x {len(list(run))}" for width, run in groupby(row.plan.layers)),
        ),
    ]
    return Table.of(
        rows,
        columns,
        below="ms: an iteration. saved: of the time of plain data parallelism. idle: of the time of the plan's GPUs, "
        "which other jobs can have. 8 x 31: 31 layers on 8 GPUs each.",
    )


def _limit_text(plan: BurstPlan) -> str:
    return "data-parallel" if plan.question.limit is None else f"{plan.question.limit:g}"


def _idle(plan: BurstPlan) -> str:
    shares = [(share, len(list(run))) for share, run in groupby(round(share, 4) for share in plan.idle_shares)]
    waits = ", ".join(f"{many(gpus, 'GPU')} {percent(share)}" for share, gpus in shares)
    return f"Idle share of an iteration: {waits}"


def _placement(placement: BurstPlacement) -> Iterator[Part]:
    yield (
        f"An iteration there: {placement.time_ms:.4f} ms [{placement.lower_ms:.4f}, {placement.upper_ms:.4f}], by the "
        f"scores of {placement.workload} on {placement.cluster}"
    )
    yield f"GPUs, the one that works in all layers first: {listed(placement.gpus, _GPUS_NAMED)}"
    yield _time_saved(placement.gains, placement.reason)


# -- partial backpropagation -------------------------------------------------------------------------------------


def spb_mapping(plan: SpbPlan) -> dict[str, Any]:
    """The answer as `whorl.advise.spb/1`."""
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


def spb_document(plan: SpbPlan) -> Document:
    """The depths for people."""
    columns: TableColumns = [
        ("GPU", "gpu"),
        (_share("goes back through", "share of the layers, from the last on"), lambda worker: 100 * worker.depth),
        (Column("layers", "count"), "layers"),
        (Column("score", "number", 3), "score"),
        (_share("works", "share of a step"), lambda worker: 100 * worker.busy),
    ]
    if plan.workers[0].layers is None:
        del columns[2]
    slack = [100 * share for share in (plan.slack.mean, plan.slack.lower, plan.slack.upper)]
    parts: list[Part] = [
        f"A step takes {_mean(plan.step)}; with full backpropagation {_mean(plan.full)}. 1 = the median GPU.",
        f"Slack, the share of the GPUs' time that other jobs can have: {with_interval(*slack, unit='%')}",
    ]
    if plan.gradient_shares is not None:
        mean = sum(plan.gradient_shares) / len(plan.gradient_shares)
        parts.append(f"Gradient traffic, layers of equal size: {percent(mean)} of that of full backpropagation")
    title = f"Depth of backpropagation by {plan.workload} on {plan.cluster}"
    below = "goes back through: this share of the layers, from the last on. works: the share of a step."
    parts += [
        Section(title, [Table.of(plan.workers, columns, below=below)], "The deepest is on the fastest GPU."),
        _time_saved(plan.gains, plan.reason),
        "What partial backpropagation does to the quality of training is not simulated.",
    ]
    return Document(title, parts)


def _mean(figure: MeanInterval) -> str:
    return f"{number(figure.mean)} [{number(figure.lower)}, {number(figure.upper)}]"


# -- power limits ------------------------------------------------------------------------------------------------


def power_plan_mapping(answer: SyncJobPlan) -> dict[str, Any]:
    """The answer as `whorl.power-plan/1`."""
    gpus, plan, exchange, curve = answer.gpus, answer.plan, answer.exchange, answer.curve
    waits = None
    if exchange is not None:
        waits = {
            "gpus": [{"gpu": gpu, "slower_pct": 100 * share} for gpu, share in exchange.slower.items()],
            "beside": exchange.beside,
            **_step_gains(exchange.gains),
        }
    return {
        "schema": "whorl.power-plan/1",
        "cluster": gpus["cluster"][0],
        "workload": answer.scope.workload,
        "model": gpus["model"][0],
        "refused": None if plan.refusal is None else plan.refusal.value,
        "reason": None if plan.refusal is None else _refusal(answer),
        "waits_for": waits,
        "budget_w": answer.scope.budget_w,
        "power_w": gpus["power_w"].sum(),
        "plan_power_w": None if plan.power_w is None else float(plan.power_w.sum()),
        **_step_gains(plan.gains),
        "noise_pct": None if curve is None else 100 * curve.noise(),
        "class_gpus": 0 if curve is None else len(curve.speed),
        "class_limits_w": [] if curve is None else curve.limits_w.tolist(),
        "waiting_power": list(WAITING_RANGE),
        "independent_jobs": INDEPENDENT,
        "driver": answer.runs["driver"][0],
        "since": answer.runs["began"].min(),
        "until": answer.runs["began"].max(),
        "rows": gpus.select(_PLAN_COLUMNS).to_dicts(),
        "commands": [{"node": node, "command": command} for node, command in _limit_commands(answer)],
    }


def _step_gains(gains: StepGains | None) -> dict[str, float | None]:
    return {
        f"{end}{name}_pct": None if gains is None else 100 * getattr(getattr(gains, name), field)
        for name in ("saved", "slower")
        for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
    }


def _limit_commands(answer: SyncJobPlan) -> Iterator[tuple[str, str]]:
    """The node and the administrator's command for each GPU whose limit changes; nothing without a plan."""
    if answer.plan.refusal is not None:
        return
    for row in answer.gpus.iter_rows(named=True):
        if row["plan_limit_w"] != row["limit_w"]:
            yield row["node"], f"nvidia-smi -i {row['gpu']} -pl {row['plan_limit_w']:g}"


def _refusal(answer: SyncJobPlan) -> str:
    """Why there is no plan, in a sentence."""
    gpus, curve, budget_w = len(answer.gpus), answer.curve, answer.scope.budget_w
    if answer.plan.refusal is PlanRefusal.NOT_HELD or curve is None:
        return (
            f"no plan: {answer.scope.workload} is not at its power limit. {answer.gpus['held'].sum()} of "
            f"{many(gpus, 'GPU')} run below {100 * FULL_CLOCK:g} % of their highest clock or report a power cap in "
            "more than half of their readings, and half of them should; lower limits would only make the job slower"
        )
    if answer.plan.refusal is PlanRefusal.NOISY:
        return (
            f"no plan: runs differ by {_noise(curve)} (standard deviation, {many(len(curve.speed), 'GPU')}), and "
            f"{100 * MOST_NOISE:g} % is the most: the limits would follow noise. Of several runs of a GPU under a "
            "limit the median counts, so measure again under the same limits"
        )
    if answer.plan.refusal is PlanRefusal.OVER_BUDGET:
        return (
            f"no plan: {number(budget_w)} W are too few for {many(gpus, 'GPU')} even under the lowest limit that the "
            f"class was measured under, {curve.limits_w[0]:g} W"
        )
    return "no plan: no saving is certain, as the GPUs are too much alike"


def _noise(curve: ClassRuns) -> str:
    return f"{number(100 * curve.noise(), 2)} %"


def power_plan_document(answer: SyncJobPlan) -> Document:
    """The plan for people: what it saves, who is waited for, then limits and the commands."""
    plan, gpus = answer.plan, answer.gpus
    title = f"Power limits for {answer.scope.workload} on {many(len(gpus), 'GPU')} of {gpus['model'][0]}"
    exchange = [*_exchange(answer)]
    if plan.refusal is not None or plan.gains is None or plan.power_w is None:
        return Document(title, [*exchange, _refusal(answer)])
    total_w, before_w = (number(float(watts.sum())) for watts in (plan.power_w, gpus["power_w"].to_numpy()))
    opening = (
        f"{title} save {_per_cent(plan.gains.saved)} of the energy of a step, which takes "
        f"{_per_cent(plan.gains.slower)} longer. All report {total_w} W together instead of {before_w} W."
    )
    columns: TableColumns = [
        ("GPU", "name"),
        (Column("ms", "number", explains="measured under the present limit"), "time_ms"),
        (Column("W", "number", explains="as reported, measured under the present limit"), "power_w"),
        (Column("limit W", "number", 0), "limit_w"),
        (Column("plan W", "number", 0, explains="the limit of the plan"), "plan_limit_w"),
        (Column("then W", "number", explains="power that is expected under the plan"), "plan_power_w"),
    ]
    below = "ms, W: measured under the present limit. W: as reported; then W: expected under the plan."
    parts: list[Part] = [*exchange, opening, Table.of(gpus.iter_rows(named=True), columns, below=below)]
    for node, commands in groupby(_limit_commands(answer), key=lambda pair: pair[0]):
        parts.append(Section(f"On {node}, as an administrator", [Command(command) for _, command in commands]))
    return Document(title, parts)


def _exchange(answer: SyncJobPlan) -> Iterator[str]:
    """Who is waited for, and what a usual GPU in its place would save."""
    exchange = answer.exchange
    if exchange is None:
        return
    names = dict(zip(answer.gpus["gpu"], answer.gpus["name"], strict=True))
    slower = (f"{names[gpu]} (its work takes {100 * share:.2g} % longer)" for gpu, share in exchange.slower.items())
    yield (
        f"All GPUs wait for {' and '.join(slower)}. It is compared with the median of "
        f"{exchange.beside} GPUs of the model under the same limit."
    )
    yield (
        f"With a usual GPU in its place a step takes {_per_cent(exchange.gains.slower, -1)} less time and "
        f"{_per_cent(exchange.gains.saved)} less energy. Exchange or repair it first, measure, and plan again."
    )


def _per_cent(figure: Estimate, sign: int = 1) -> str:
    """A share with its interval, as `4.30 % [3.90, 4.70]`."""
    low, high = sorted((100 * sign * figure.low, 100 * sign * figure.high))
    return f"{100 * sign * figure.value:.2f} % [{low:.2f}, {high:.2f}]"


def power_plan_notes(answer: SyncJobPlan) -> Iterator[str]:
    """What the plan rests on, and how long it holds."""
    plan, curve = answer.plan, answer.curve
    if answer.scope.budget_w is not None:
        yield INDEPENDENT
    if plan.gains is None or plan.limit_w is None or curve is None:
        return
    if plan.limit_w.min() < curve.limits_w[0] + STEP_W:
        yield "a GPU gets the lowest limit that the class was measured under: runs under lower limits may save more"
    yield (
        f"[95 %]: from {many(len(curve.speed), 'GPU')} of the model under {many(len(curve.limits_w), 'limit')} of "
        f"{curve.limits_w[0]:g} to {curve.limits_w[-1]:g} W, whose curves differ; the noise of a run (standard "
        f"deviation at most {_noise(curve)}); and a GPU that waits for others using {WAITING_RANGE[0]:g} to "
        f"{WAITING_RANGE[1]:g} of its power at work (assumed). Power is as reported: a sensor is compared with itself"
    )
    if answer.runs["neighbours"][0] == "idle" or not answer.runs["steady"].all():
        yield (
            "measured beside idle GPUs or before the clock was steady, so perhaps colder than in the job: such plans "
            "saved 3.2 % instead of 4.4 % in 24 simulated jobs; use `--suite full --neighbours busy`"
        )
    driver = answer.runs["driver"][0] or "not known"
    since, until = (minute(began) for began in answer.runs["began"].sort()[[0, -1]])
    yield (
        f"measured {since} to {until}, driver {driver}: measure and plan again after a change of "
        "driver, cooling, GPU or place, and when one of these GPUs is slower by more than the interval says"
    )
