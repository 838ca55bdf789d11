"""What `whorl advise power-plan` says: a power limit for each GPU of a job whose steps wait for the slowest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...analysis.power_classes.job_plans import SyncJobPlan
from ...analysis.tuning.power_plan import (
    BRAKED_SD,
    BRAKED_SHARE,
    COLDER_SD,
    FULL_CLOCK,
    MOST_NOISE,
    STEP_W,
    WAITING_RANGE,
    Estimate,
    PlanRefusal,
    StepGains,
)
from ..table import Line, Table, many, minute, number

SCHEMA = "whorl.power-plan/1"
INDEPENDENT = (
    "jobs that do not wait for each other gain 0.00 to 0.04 % of speed by a limit for each GPU under one budget, "
    "computed in simulation for 4 models, 3 workloads and 3 budgets: give all GPUs the same limit"
)
_COLUMNS = ("gpu", "name", "node", "time_ms", "power_w", "limit_w", "clock_share", "cap_share", "held", "runs",
            "plan_limit_w", "plan_power_w")  # fmt: skip


def independent_document() -> dict[str, Any]:
    """The document where the GPUs run jobs that do not wait for each other."""
    return {"schema": SCHEMA, "refused": PlanRefusal.INDEPENDENT.value, "reason": INDEPENDENT, "rows": []}


def document(answer: SyncJobPlan) -> dict[str, Any]:
    """The document of `whorl.power-plan/1`."""
    plan, exchange, noise = answer.plan, answer.exchange, answer.noise
    waits = None
    if exchange is not None:
        waits = {
            "gpus": [{"gpu": gpu, "slower_pct": 100 * share} for gpu, share in exchange.slower.items()],
            "beside": exchange.beside,
            **_gains(exchange.median),
        }
    return {
        "schema": SCHEMA,
        "cluster": answer.cluster,
        "workload": answer.workload,
        "model": answer.model,
        "refused": None if plan.refusal is None else plan.refusal.value,
        "reason": None if plan.refusal is None else refused(answer),
        "waits_for": waits,
        "budget_w": answer.budget_w,
        "power_w": answer.gpus["power_w"].sum(),
        "plan_power_w": None if plan.power_w is None else float(plan.power_w.sum()),
        **_gains(plan.gains),
        "noise_pct": None if noise is None or noise.sd is None else 100 * noise.sd,
        "noise_gpus": None if noise is None else noise.n,
        "noise_repeated": None if noise is None else noise.repeated,
        "class_gpus": answer.class_gpus,
        "class_limits_w": list(answer.class_limits_w),
        "waiting_power": list(WAITING_RANGE),
        "driver": answer.driver,
        "since": answer.since,
        "until": answer.until,
        "rows": answer.gpus.select(_COLUMNS).to_dicts(),
        "commands": [{"node": node, "command": command} for node, command in commands(answer)],
    }


def _gains(gains: StepGains | None) -> dict[str, float | None]:
    if gains is None:
        names = ("saved_pct", "slower_pct")
        return {f"{end}{name}": None for name in names for end in ("", "low_", "high_")}
    return {
        f"{end}{name}_pct": 100 * getattr(figure, field)
        for name, figure in (("saved", gains.saved), ("slower", gains.slower))
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
    gpus, noise = answer.gpus, answer.noise
    match answer.plan.refusal:
        case PlanRefusal.NOT_HELD:
            return (
                f"no plan: {answer.workload} is not at its power limit. {gpus['held'].sum()} of "
                f"{many(len(gpus), 'GPU')} run below {100 * FULL_CLOCK:g} % of their highest clock or report a power "
                "cap in more than half of their readings, and half of them should; lower limits would save energy only "
                "by making the job slower"
            )
        case PlanRefusal.NOISY:
            if noise is None or noise.sd is None:
                return (
                    "no plan: the noise of a run is not known: run the workload again on these GPUs under the same "
                    "limit, three times or more"
                )
            return (
                f"no plan: runs of {answer.workload} differ by {_pct(noise.sd)} (standard deviation, "
                f"{many(noise.n, 'GPU')}), above {_pct(MOST_NOISE)}: the limits would follow noise; runs on several "
                "days count together, so run it again on other days"
            )
        case PlanRefusal.OVER_BUDGET:
            return (
                f"no plan: {number(answer.budget_w)} W are too few for {many(len(gpus), 'GPU')} even under the lowest "
                f"limit that the class was measured under, {answer.class_limits_w[0]:g} W"
            )
        case _:
            return "no plan: no saving is certain, as the GPUs are too much alike"


def answer_of(answer: SyncJobPlan) -> Iterator[str | Table]:
    """The plan for people: who is waited for, then limits, what they do, and the commands."""
    plan, gpus = answer.plan, answer.gpus
    names = dict(zip(gpus["gpu"], gpus["name"], strict=True))
    if answer.exchange is not None:
        slow, gains = answer.exchange.slower, answer.exchange.median
        listed = " and ".join(f"{names[gpu]} (its work takes {_pct(share)} longer)" for gpu, share in slow.items())
        yield (
            f"All GPUs wait for {listed}. It is compared with the median of {answer.exchange.beside} GPUs of the model "
            "under the same limit."
        )
        yield (
            f"With a usual GPU in its place a step takes {_change(gains.slower, 'longer', 'less')} time and "
            f"{_change(_negative(gains.saved), 'more', 'less')} energy. Exchange or repair it first, measure, and plan "
            "again."
        )
        yield ""
    if plan.refusal is not None:
        yield refused(answer)
        return
    title = f"Power limits for {answer.workload} on {many(len(gpus), 'GPU')} of {answer.model}"
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
    assert plan.gains is not None
    assert plan.power_w is not None
    yield f"Energy of a step: {_change(_negative(plan.gains.saved), 'more', 'less')}."
    yield f"Time of a step: {_change(plan.gains.slower, 'longer', 'shorter')}."
    total = float(gpus["power_w"].sum())
    yield f"Reported power of all: {number(float(plan.power_w.sum()))} W instead of {number(total)} W."
    yield ""
    node = None
    for place, command in commands(answer):
        if place != node:
            yield Line(f"# on {place}, as an administrator")
            node = place
        yield Line(command)


def _pct(share: float) -> str:
    return f"{100 * share:.2g} %"


def _negative(figure: Estimate) -> Estimate:
    return Estimate(-figure.value, -figure.high, -figure.low)


def _change(figure: Estimate, more: str, less: str) -> str:
    """An increase with its interval, as `4.3 % [3.9, 4.7] less`."""
    sign, word = (-1, less) if figure.value < 0 else (1, more)
    ends = sorted(100 * sign * end for end in (figure.low, figure.high))
    return f"{100 * abs(figure.value):.2f} % [{ends[0]:.2f}, {ends[1]:.2f}] {word}"


def notes(answer: SyncJobPlan) -> Iterable[str]:
    """What the plan rests on, and how long it holds."""
    noise, plan = answer.noise, answer.plan
    if answer.exchange is not None:
        yield (
            f"slower: by more than {BRAKED_SD:g} robust standard deviations and more than {_pct(BRAKED_SHARE)} below "
            "the median speed of the model"
        )
    if plan.refusal in (PlanRefusal.NOT_HELD, PlanRefusal.NOISY) or noise is None:
        return
    yield (
        f"curve of the class: {many(answer.class_gpus, 'GPU')} under {answer.class_limits_w[0]:g} to "
        f"{answer.class_limits_w[-1]:g} W ({many(len(answer.class_limits_w), 'limit')})"
    )
    if plan.limit_w is not None and plan.limit_w.min() < answer.class_limits_w[0] + STEP_W:
        yield "a GPU gets the lowest limit that the class was measured under: runs under lower limits may save more"
    source = "repeated runs" if noise.repeated else "runs under neighbouring limits, so at most"
    if noise.sd is not None:
        yield f"noise of a run: {_pct(noise.sd)} (standard deviation; {source}, {many(noise.n, 'GPU')})"
    yield (
        "[95 %]: noise of the runs, curves that differ from GPU to GPU, and a GPU that waits for others using "
        f"{WAITING_RANGE[0]:g} to {WAITING_RANGE[1]:g} of its power at work (assumed)"
    )
    if answer.alone or answer.unsteady:
        why = "beside idle GPUs" if answer.alone else "before its temperature was steady"
        yield (
            f"a GPU was measured {why}, so colder than in the job: speeds may differ by another {_pct(COLDER_SD)}, "
            "which is in the intervals; `--suite full --neighbours busy` of `whorl probe run` avoids it"
        )
    yield (
        "the driver regulates reported power; a GPU whose sensor reads low draws more than it reports: the plan "
        "compares each sensor with itself only"
    )
    driver = "" if answer.driver is None else f", driver {answer.driver}"
    yield (
        f"measured {minute(answer.since)} to {minute(answer.until)}{driver}: measure and plan again after a change of "
        "driver, cooling, GPU or place, and when one of these GPUs is slower by more than the interval says"
    )
