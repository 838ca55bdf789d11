"""What `whorl advise power-plan` says: a power limit for each GPU of a job whose steps wait for the slowest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...analysis.power_classes.job_plans import SyncJobPlan
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
from ..table import Line, Table, many, minute, number

INDEPENDENT = (
    "jobs that do not wait for each other gain 0.00 to 0.04 % of speed by a limit for each GPU under one budget, "
    "computed in simulation for 4 models, 3 workloads and 3 budgets: give all GPUs of such jobs the same limit"
)
_COLUMNS = ("gpu", "name", "node", "time_ms", "power_w", "limit_w", "clock_share", "cap_share", "held", "runs",
            "plan_limit_w", "plan_power_w")  # fmt: skip


def document(answer: SyncJobPlan) -> dict[str, Any]:
    """The document of `whorl.power-plan/1`."""
    gpus, plan, exchange, curve = answer.gpus, answer.plan, answer.exchange, answer.curve
    waits = None
    if exchange is not None:
        waits = {
            "gpus": [{"gpu": gpu, "slower_pct": 100 * share} for gpu, share in exchange.slower.items()],
            "beside": exchange.beside,
            **_gains(exchange.gains),
        }
    return {
        "schema": "whorl.power-plan/1",
        "cluster": gpus["cluster"][0],
        "workload": answer.scope.workload,
        "model": gpus["model"][0],
        "refused": None if plan.refusal is None else plan.refusal.value,
        "reason": None if plan.refusal is None else refused(answer),
        "waits_for": waits,
        "budget_w": answer.scope.budget_w,
        "power_w": gpus["power_w"].sum(),
        "plan_power_w": None if plan.power_w is None else float(plan.power_w.sum()),
        **_gains(plan.gains),
        "noise_pct": None if curve is None else 100 * curve.noise(),
        "class_gpus": 0 if curve is None else len(curve.speed),
        "class_limits_w": [] if curve is None else curve.limits_w.tolist(),
        "waiting_power": list(WAITING_RANGE),
        "independent_jobs": INDEPENDENT,
        "driver": answer.runs["driver"][0],
        "since": answer.runs["began"].min(),
        "until": answer.runs["began"].max(),
        "rows": gpus.select(_COLUMNS).to_dicts(),
        "commands": [{"node": node, "command": command} for node, command in commands(answer)],
    }


def _gains(gains: StepGains | None) -> dict[str, float | None]:
    return {
        f"{end}{name}_pct": None if gains is None else 100 * getattr(getattr(gains, name), field)
        for name in ("saved", "slower")
        for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
    }


def commands(answer: SyncJobPlan) -> Iterator[tuple[str, str]]:
    """The node and the administrator's command for each GPU whose limit changes; nothing without a plan."""
    if answer.plan.refusal is not None:
        return
    for row in answer.gpus.iter_rows(named=True):
        if row["plan_limit_w"] != row["limit_w"]:
            yield row["node"], f"nvidia-smi -i {row['gpu']} -pl {row['plan_limit_w']:g}"


def refused(answer: SyncJobPlan) -> str:
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


def answer_of(answer: SyncJobPlan) -> Iterator[str | Table]:
    """The plan for people: who is waited for, then limits, what they do, and the commands."""
    plan, gpus, exchange = answer.plan, answer.gpus, answer.exchange
    if exchange is not None:
        names = dict(zip(gpus["gpu"], gpus["name"], strict=True))
        slower = (f"{names[gpu]} (its work takes {100 * share:.2g} % longer)" for gpu, share in exchange.slower.items())
        yield (
            f"All GPUs wait for {' and '.join(slower)}. It is compared with the median of "
            f"{exchange.beside} GPUs of the model under the same limit."
        )
        yield (
            f"With a usual GPU in its place a step takes {_pct(exchange.gains.slower, -1)} less time and "
            f"{_pct(exchange.gains.saved)} less energy. Exchange or repair it first, measure, and plan again."
        )
        yield ""
    if plan.refusal is not None or plan.gains is None or plan.power_w is None:
        yield refused(answer)
        return
    title = f"Power limits for {answer.scope.workload} on {many(len(gpus), 'GPU')} of {gpus['model'][0]}"
    rows = [
        [
            row["name"], number(row["time_ms"]), number(row["power_w"]), f"{row['limit_w']:g}",
            f"{row['plan_limit_w']:g}", number(row["plan_power_w"]),
        ]
        for row in gpus.iter_rows(named=True)
    ]  # fmt: skip
    yield Table(("GPU", "ms", "W", "limit W", "plan W", "then W"), rows, (1, 2, 3, 4, 5), title)
    yield "ms, W: measured under the present limit. W: as reported; then W: expected under the plan."
    yield ""
    yield f"Energy of a step: {_pct(plan.gains.saved)} less. Time: {_pct(plan.gains.slower)} longer."
    total_w, before_w = (number(float(watts.sum())) for watts in (plan.power_w, gpus["power_w"].to_numpy()))
    yield f"Reported power of all: {total_w} W instead of {before_w} W."
    yield ""
    node = None
    for place, command in commands(answer):
        if place != node:
            yield Line(f"# on {place}, as an administrator")
            node = place
        yield Line(command)


def _pct(figure: Estimate, sign: int = 1) -> str:
    """A share with its interval, as `4.30 % [3.90, 4.70]`."""
    low, high = sorted((100 * sign * figure.low, 100 * sign * figure.high))
    return f"{100 * sign * figure.value:.2f} % [{low:.2f}, {high:.2f}]"


def notes(answer: SyncJobPlan) -> Iterator[str]:
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
