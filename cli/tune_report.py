"""What `whorl tune` says of a search: the setting, what it saves, on which GPUs it holds, and who can set it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ..dashboards.printed.tuning import SCHEMA
from ..dashboards.table import MISSING, Line, Table, many, number

if TYPE_CHECKING:
    from ..jobs.tuning import TuneAnswer, TunedGpu, TuneProgress, TuneShare, TuneTrial
    from ..jobs.tuning_knobs import UnsetKnob

_KNOBS = {"power_limit_w": ("power limit", " W"), "sm_clock_mhz": ("SM clock", " MHz"),
          "memory_clock_mhz": ("memory clock", " MHz")}  # fmt: skip
_STAGES = {"class": "default on each GPU", "trial": "trial", "default": "default again", "answer": "answer again",
           "check": "answer on each GPU"}  # fmt: skip
_LONGEST = 100
"""Letters of a failure in the table of trials."""
SAFE_RATE = "about one trial in nine is over the bound all the same"
"""What `--safe` comes to: docs/tune.md has the figure."""


def tune_document(answer: TuneAnswer, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The document of a search, `whorl.tune/1`."""
    saved, slower = answer.saved, answer.slower
    return {
        "schema": SCHEMA,
        "workload": answer.label,
        "setting": dict(answer.setting),
        "default": dict(answer.default),
        "saved_pct": saved.pct,
        "low_saved_pct": saved.low_pct,
        "high_saved_pct": saved.high_pct,
        "slower_pct": slower.pct,
        "low_slower_pct": slower.low_pct,
        "high_slower_pct": slower.high_pct,
        "pairs": saved.n,
        "bound": {**asdict(answer.bound), "bound_s": answer.bound_s},
        "within": answer.within,
        "noise": answer.noise,
        "margin": answer.margin,
        "run_noise": answer.run_noise,
        "run_noise_n": answer.run_noise_n,
        "trials": [asdict(trial) for trial in answer.trials],
        "gpus": [asdict(gpu) for gpu in answer.gpus],
        "given_up": [dict(setting) for setting in answer.given_up],
        "unset": [asdict(knob) for knob in answer.unset],
        "commands": list(answer.commands),
        "notes": list(notes),
    }


def tune_notes(answer: TuneAnswer) -> tuple[str, ...]:
    """What somebody should know of how it was measured."""
    notes = [f"{gpu.gpu} is left out: {gpu.failure}" for gpu in answer.gpus if gpu.failure]
    if answer.torn_line is not None:
        notes.append(f"line {answer.torn_line} of the log had no end, and was measured again")
    notes += [
        f"{setting_text(setting)} was given up: measured again, it was too near the bound or saved nothing"
        for setting in answer.given_up
    ]
    return tuple(notes)


def step_text(progress: TuneProgress) -> str:
    """A measurement that has ended, for the line of progress."""
    step = progress.step
    figures = "failed" if step.time_s is None else f"{_time(step.time_s)}, {number(step.energy_j)} J"
    return f"{_STAGES[step.stage]}: {setting_text(step.setting) or 'nothing set'}: {figures}"


def setting_text(setting: Mapping[str, float], default: Mapping[str, float] | None = None) -> str:
    """A setting in words: power limit 475 W, batch 16. Beside a default it says which values are the same there."""
    parts = []
    for name, value in setting.items():
        word, unit = _KNOBS.get(name, (name, ""))
        same = " (as now)" if default is not None and default.get(name) == value else ""
        parts.append(f"{word} {value:g}{unit}{same}")
    return ", ".join(parts)


def tune_answer(answer: TuneAnswer, *, safe: bool, simulated: bool) -> Iterator[str | Table]:
    """The answer for people."""
    if not answer.trials:
        yield from _plan(answer)
        return
    yield _headline(answer)
    if simulated:
        yield "These GPUs are simulated."
    yield _bound(answer)
    yield ""
    yield from _trials(answer, safe=safe)
    yield ""
    yield from _gpus(answer)
    if answer.commands:
        yield "An administrator sets it with:"
        yield from (Line(f"  {command}") for command in answer.commands)
    yield from unset_text(answer.unset)
    yield (
        "The energy is that of a unit of work, not that of training to a target."
        + ("" if simulated else " The settings of the GPUs are as they were before.")
    )


def _headline(answer: TuneAnswer) -> str:
    saved, slower = answer.saved, answer.slower
    if answer.is_default:
        held = "" if answer.within else ", and the default itself is over the bound"
        return (
            f"Keep the default, {setting_text(answer.default)}: no setting that was tried holds the bound and needs "
            f"less energy for {answer.label}{held}."
        )
    pairs = f"n = {many(saved.n, 'pair')} of default and answer"
    intervals = "95 % intervals" if saved.low_pct is not None else "which is too few for an interval"
    return (
        f"Set {setting_text(answer.setting, answer.default)} for {answer.label}: {_share(saved)} less energy, "
        f"{_share(slower)} slower ({pairs}, {intervals})."
    )


def _share(share: TuneShare) -> str:
    if share.low_pct is None or share.high_pct is None:
        return f"{_tenths(share.pct)} %"
    return f"{_tenths(share.pct)} % [{_tenths(share.low_pct)}, {_tenths(share.high_pct)}]"


def _tenths(value: float) -> str:
    """A number with one digit; without a sign where it rounds to 0."""
    text = f"{value:.1f}"
    return text.lstrip("-") if float(text) == 0 else text


def _bound(answer: TuneAnswer) -> str:
    slowdown = answer.bound.max_slowdown
    stated = "" if slowdown is None else f"{100 * slowdown:g} % slower than the default, "
    run_noise = (
        ""
        if answer.run_noise is None
        else f"; repeated runs vary by {100 * answer.run_noise:.2f} % ({answer.run_noise_n} degrees of freedom)"
    )
    return (
        f"The bound is {stated}{_time(answer.bound_s)}. A trial counts as within it with a margin of "
        f"{100 * answer.margin:.1f} %, twice the noise{run_noise}."
    )


def _trials(answer: TuneAnswer, *, safe: bool) -> Iterator[str | Table]:
    names = list(answer.default)
    heads = [f"{word},{unit}" if unit else word for word, unit in (_KNOBS.get(name, (name, "")) for name in names)]
    rows = [
        [
            str(place),
            *(f"{trial.setting[name]:g}" for name in names),
            MISSING if trial.time_s is None else _time(trial.time_s),
            number(trial.energy_j),
            _remark(trial, answer),
        ]
        for place, trial in enumerate(answer.trials, 1)
    ]
    yield Table(
        ("trial", *heads, "time", "energy, J", ""),
        rows,
        tuple(range(len(heads) + 3)),
        "Trials",
        wrapped=(len(heads) + 3,),
    )
    over = sum(trial.over for trial in answer.trials)
    rate = f" With --safe {SAFE_RATE}." if safe else ""
    failed = sum(trial.failure is not None for trial in answer.trials)
    without = f", {failed} failed (--json has the reasons in full)" if failed else ""
    yield f"{over} of {many(len(answer.trials), 'trial')} over the bound{without}.{rate}"


def _remark(trial: TuneTrial, answer: TuneAnswer) -> str:
    remarks = []
    if trial.failure:
        remarks.append(shorten(f"failed: {trial.failure}", _LONGEST, placeholder=" ..."))
    if trial.setting == answer.default:
        remarks.append("the default")
    if trial.setting == answer.setting and not answer.is_default:
        remarks.append("the answer")
    if trial.over:
        remarks.append("over the bound, ended early" if trial.ended_early else "over the bound")
    return "; ".join(remarks)


def _gpus(answer: TuneAnswer) -> Iterator[str]:
    """On whom the answer holds."""
    measured = [gpu for gpu in answer.gpus if gpu.over is not None]
    (tuned,) = (gpu.gpu for gpu in answer.gpus if gpu.tuned)
    slow_end = f", at the slow end of {len(answer.gpus)} GPUs of one model" if len(answer.gpus) > 1 else ""
    yield f"Tuned on {tuned}{slow_end}."
    over = [gpu for gpu in measured if gpu.over]
    if len(measured) > 1 and not answer.is_default:
        holds = "holds the bound on all of them" if not over else f"is over the bound on {len(over)}"
        yield f"Checked by one run on each of {many(len(measured), 'GPU')}: the setting {holds}."
    for gpu in over:
        yield f"Over the bound: {gpu.gpu}, {_slower(gpu)}."


def _slower(gpu: TunedGpu) -> str:
    return f"{number(gpu.slower_pct, 2)} % slower than its own default, {_time(gpu.time_s)}"


def unset_text(knobs: Sequence[UnsetKnob]) -> Iterator[str]:
    """What was not searched, and how an administrator sets it."""
    for knob in knobs:
        word, unit = _KNOBS.get(knob.name, (knob.name, ""))
        span = f" The GPU takes {min(knob.values):g} to {max(knob.values):g}{unit}." if knob.values else ""
        yield f"The {word} was not searched: {knob.reason}.{span}"
        if knob.commands:
            yield "An administrator sets it with:"
            yield from (Line(f"  {command}") for command in knob.commands)


def _plan(answer: TuneAnswer) -> Iterator[str | Table]:
    """No knob can be set here: what was measured at the present setting, and what an administrator can do."""
    yield f"No knob can be set here, so nothing was searched for {answer.label}."
    rows = [
        [gpu.gpu, MISSING if gpu.default_time_s is None else _time(gpu.default_time_s), number(gpu.default_energy_j)]
        for gpu in answer.gpus
    ]
    yield Table(("GPU", "time", "energy, J"), rows, (1, 2), "As the GPUs are set now, one run each")
    yield from unset_text(answer.unset)
    yield (
        "Run whorl tune again as a user who may set it, or set one value after another, measure each, and give the "
        "table to whorl tune --sweep."
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    return f"{number(1000 * seconds)} ms" if seconds < 1 else f"{number(seconds)} s"
