"""What `whorl tune --stress` says: the kernel of most power or widest spread, beside the probes of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..dashboards.table import MISSING, Table, many, number
from .tune_report import unset_text

if TYPE_CHECKING:
    from ..jobs.tuning_stress import KernelScore, StressProgress, StressReport

_LISTED = 10
_GOALS = {"power": "mean power, W", "spread": "variance between GPUs over that between runs"}
_STAGES = {"rival": "probe of the catalogue", "trial": "trial", "finalist": "measured again", "check": "last runs"}


def stress_document(report: StressReport, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The document of a stress search, `whorl.tune.stress/1`."""
    return {
        "schema": "whorl.tune.stress/1",
        "goal": report.goal,
        "unit": "W" if report.goal == "power" else "1",
        **_score(report.winner),
        "best_probe": None if report.best_probe is None else _score(report.best_probe),
        "trials": [_score(tried) for tried in report.trials],
        "probes": [_score(tried) for tried in report.rivals],
        "gpus": list(report.gpus),
        "unfit_share": report.unfit_share,
        "unset": [asdict(knob) for knob in report.unset],
        "notes": list(notes),
    }


def _score(tried: KernelScore) -> dict[str, Any]:
    score = tried.score
    return {
        "kernel": tried.label,
        "setting": dict(tried.setting),
        "value": tried.value,
        "low": None if score is None else score.low,
        "high": None if score is None else score.high,
        "gpus_measured": None if score is None else score.gpus,
        "runs": None if score is None else score.runs,
        "figure": tried.figure,
        "failure": tried.failure,
    }


def stress_notes(report: StressReport) -> tuple[str, ...]:
    """What somebody should know of how it was measured."""
    failed = sum(tried.score is None for tried in report.trials)
    notes = [f"{many(failed, 'trial')} of {len(report.trials)} failed"] if failed else []
    if report.torn_line is not None:
        notes.append(f"line {report.torn_line} of the log had no end, and was measured again")
    return tuple(notes)


def stress_step_text(step: StressProgress) -> str:
    """A kernel that was tried, for the line of progress."""
    best = "" if step.best is None else f"; best {number(step.best)}"
    return f"{_STAGES[step.stage]}: {step.tried.label}: {number(step.tried.value)}{best}"


def stress_answer(report: StressReport, *, simulated: bool) -> Iterator[str | Table]:
    """The answer for people."""
    what = "of most power" if report.goal == "power" else "of the widest spread (variance between GPUs over runs)"
    yield f"The kernel {what}: {_figure(report.winner, report.goal)}."
    if report.best_probe is not None:
        yield f"The best probe of the catalogue, {report.best_probe.label}: {_figure(report.best_probe, report.goal)}."
    if simulated:
        yield "These GPUs are simulated."
    yield ""
    yield Table(
        ("knob", "value"),
        [[name, f"{value:g}"] for name, value in report.winner.setting.items()],
        (1,),
        "Its knobs (0 is none of it, or the usual)",
    )
    yield ""
    ordered = sorted((tried for tried in (*report.trials, *report.rivals) if tried.value is not None), key=_descending)
    rows = [[tried.label, number(tried.value), tried.figure] for tried in ordered[:_LISTED]]
    yield Table(
        ("kernel", _GOALS[report.goal], "of"),
        rows,
        (1,),
        f"The best of {many(len(report.trials), 'trial')} and {many(len(report.rivals), 'probe')}",
    )
    yield (
        f"{100 * report.unfit_share:.0f} % of random settings do not fit this GPU; they are known beforehand and were "
        "not tried. Trials are in no store; `whorl probe run stress --knobs FILE` runs it as a probe, FILE being "
        "what --json prints."
    )
    yield from unset_text(report.unset)


def _descending(tried: KernelScore) -> float:
    return -(tried.value or 0.0)


def _figure(tried: KernelScore, goal: str) -> str:
    score = tried.score
    if score is None:
        return tried.failure or MISSING
    ends = "" if score.low is None or score.high is None else f" [{number(score.low)}, {number(score.high)}]"
    what = " W" if goal == "power" else f", of its {tried.figure}"
    runs = f"n = {many(score.gpus, 'GPU')} x {many(score.runs, 'run')}, 95 % interval"
    return f"{number(score.value)}{ends}{what} ({runs})"
