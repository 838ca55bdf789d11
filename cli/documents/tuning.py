"""What `whorl tune` says: of a search for a setting, of a sweep that was measured already, and of a stress search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.tuning.sweep import LABELS, NOISE_PCT, SweepChoice, SweepFile, gpu_spread_pct
from ...dashboards.document import CellSource, Column, Command, Document, Part, Section, Table, TableColumns
from ...dashboards.words import MISSING, many, number

if TYPE_CHECKING:
    from ...analysis.tuning.search import TimeBound, Trial
    from ...jobs.tuning import TuneAnswer, TuneProgress, TuneShare
    from ...jobs.tuning_knobs import UnsetKnob
    from ...jobs.tuning_stress import KernelScore, StressProgress, StressReport

_SCHEMA = "whorl.tune/1"
_KNOBS = {"power_limit_w": ("power limit", "W"), "sm_clock_mhz": ("SM clock", "MHz"),
          "memory_clock_mhz": ("memory clock", "MHz")}  # fmt: skip
_STAGES = {"class": "default on each GPU", "trial": "trial", "default": "default again", "answer": "answer again",
           "check": "answer on each GPU", "rival": "probe of the catalogue", "finalist": "measured again"}  # fmt: skip
_OF_TRIAL = ("setting", "energy_j", "time_s", "ended_early", "failure")
_SWEEPS_LISTED, _KERNELS_LISTED = 24, 10
_GOALS = {"power": "mean power, W", "spread": "variance between GPUs over that between runs"}
_UNIT_OF_WORK = "The energy is that of a unit of work, not that of training to a target."


def _setting(setting: Mapping[str, float]) -> str:
    """A setting in words: power limit 475 W, batch 16."""
    knobs = ((*_KNOBS.get(name, (name, "")), value) for name, value in setting.items())
    return ", ".join(f"{word} {value:g} {unit}".rstrip() for word, unit, value in knobs)


def _heads(names: Sequence[str]) -> list[str]:
    return [", ".join(filter(None, _KNOBS.get(name, (name,)))) for name in names]


def _tenths(value: float | None) -> str:
    """A per cent with one digit; without a sign where it rounds to 0."""
    return MISSING if value is None else f"{value:.1f}".replace("-0.0", "0.0")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    return f"{number(1000 * seconds)} ms" if seconds < 1 else f"{number(seconds)} s"


def _administrator(commands: Sequence[str]) -> list[Part]:
    return (
        [Section("An administrator sets it with:", [Command(f"  {command}") for command in commands])]
        if commands
        else []
    )


def _unset(knobs: Sequence[UnsetKnob]) -> Iterator[Part]:
    """What was not searched, and how an administrator sets it."""
    for knob in knobs:
        word, unit = _KNOBS.get(knob.name, (knob.name, ""))
        span = f" The GPU takes {min(knob.values):g} to {max(knob.values):g} {unit}." if knob.values else ""
        yield f"The {word} was not searched: {knob.reason}.{span}"
        yield from _administrator(knob.commands)


def _torn(line: int | None) -> list[str]:
    return [] if line is None else [f"line {line} of the log had no end, and was measured again"]


# -- a search for a setting ------------------------------------------------------------------------------------------


def tune_mapping(answer: TuneAnswer, notes: Sequence[str]) -> dict[str, Any]:
    """The answer of a search, as `whorl.tune/1`."""
    return {
        "schema": _SCHEMA,
        "workload": answer.label,
        "setting": dict(answer.setting),
        "default": dict(answer.default),
        **_ends("saved", answer.saved),
        **_ends("slower", answer.slower),
        "pairs": answer.saved.n,
        "bound": {**asdict(answer.bound), "bound_s": answer.bound_s},
        **{name: getattr(answer, name) for name in ("within", "noise", "margin", "run_noise", "run_noise_n")},
        **{name: [asdict(row) for row in getattr(answer, name)] for name in ("gpus", "unset")},
        "trials": [
            {name: getattr(trial, name) for name in _OF_TRIAL} | {"over": answer.is_over(trial)}
            for trial in answer.trials
        ],
        "given_up": [dict(setting) for setting in answer.given_up],
        "commands": list(answer.commands),
        "notes": list(notes),
    }


def _ends(name: str, share: TuneShare) -> dict[str, float | None]:
    return {f"{name}_pct": share.pct, f"low_{name}_pct": share.low_pct, f"high_{name}_pct": share.high_pct}


def tune_notes(answer: TuneAnswer) -> list[str]:
    """What somebody should know of how it was measured."""
    return [
        *(f"{gpu.gpu} is left out: {gpu.failure}" for gpu in answer.gpus if gpu.failure),
        *_torn(answer.torn_line),
        *(
            f"{_setting(setting)} was given up: measured again, it failed, was too near the bound or saved nothing"
            for setting in answer.given_up
        ),
    ]


def step_text(progress: TuneProgress) -> str:
    """A measurement that has ended, for the line of progress."""
    step = progress.step
    figures = "failed" if step.time_s is None else f"{_time(step.time_s)}, {number(step.energy_j)} J"
    return f"{_STAGES[step.stage]}: {_setting(step.setting) or 'nothing set'}: {figures}"


def tune_document(answer: TuneAnswer, *, safe: bool, simulated: bool) -> Document:
    """What to set and what it saves, how to set it, then the trials."""
    title = f"Least energy for {answer.label}"
    if not answer.trials:
        return Document(title, [*_plan(answer)])
    parts: list[Part] = [_headline(answer), *(["These GPUs are simulated."] if simulated else [])]
    parts += [*_administrator(answer.commands), _bound(answer), *_checked(answer)]
    parts += [Section("Trials", [_trials(answer, safe=safe)]), *_unset(answer.unset)]
    restored = "" if simulated else " The settings of the GPUs are as they were before."
    return Document(title, [*parts, _UNIT_OF_WORK + restored])


def _headline(answer: TuneAnswer) -> str:
    if answer.is_default:
        held = "" if answer.within else ", and the default itself is over the bound"
        return (
            f"Keep the default, {_setting(answer.default)}: no setting that was tried holds the bound and needs "
            f"less energy for {answer.label}{held}."
        )
    saved, slower = answer.saved, answer.slower
    intervals = "95 % intervals" if saved.low_pct is not None else "which is too few for an interval"
    time = f"{_share(slower)} slower" if slower.pct >= 0 else f"{_share(slower, -1)} faster"
    unsure = "" if saved.low_pct is None or saved.low_pct > 0 else " The interval reaches 0: it may save nothing."
    return (
        f"Set {_setting(answer.setting)} for {answer.label}: {_share(saved)} less energy, "
        f"{time} (n = {many(saved.n, 'pair')} of default and answer, {intervals}).{unsure}"
    )


def _share(share: TuneShare, sign: int = 1) -> str:
    """A share and its interval; with -1 as `sign` that of the opposite."""
    ends = sorted(sign * end for end in (share.low_pct, share.high_pct) if end is not None)
    interval = f" [{', '.join(map(_tenths, ends))}]" if ends else ""
    return f"{_tenths(sign * share.pct)} %{interval}"


def _bound(answer: TuneAnswer) -> str:
    slowdown, noise = answer.bound.max_slowdown, answer.run_noise
    stated = "" if slowdown is None else f"{100 * slowdown:g} % slower than the default, "
    vary = f"; repeated runs vary by {100 * (noise or 0):.2f} % ({many(answer.run_noise_n, 'degree')} of freedom)"
    return (
        f"The bound is {stated}{_time(answer.bound_s)}. A trial counts as within it with a margin of "
        f"{100 * answer.margin:.1f} %, twice the noise{'' if noise is None else vary}."
    )


def _trials(answer: TuneAnswer, *, safe: bool) -> Table:
    over = sum(answer.is_over(trial) for trial in answer.trials)
    failed = sum(trial.failure is not None for trial in answer.trials)
    failures = f", {failed} failed (--json has the reasons in full)" if failed else ""
    rate = " With safe=yes about one trial in nine is over the bound all the same." if safe else ""
    names = list(answer.default)
    columns: TableColumns = [
        (Column("trial", "number"), lambda numbered: str(numbered[0])),
        *((Column(head, "number"), partial(_knob, name)) for head, name in zip(_heads(names), names, strict=True)),
        (Column("time", "number"), lambda numbered: _time(numbered[1].time_s)),
        (Column("energy, J", "number"), lambda numbered: numbered[1].energy_j),
        (Column("", "sentence"), lambda numbered: _remark(numbered[1], answer)),
    ]
    below = f"{over} of {many(len(answer.trials), 'trial')} over the bound{failures}.{rate}"
    return Table.of(enumerate(answer.trials, 1), columns, below=below)


def _knob(name: str, numbered: tuple[int, Trial]) -> str:
    return f"{numbered[1].setting[name]:g}"


def _remark(trial: Trial, answer: TuneAnswer) -> str:
    if trial.failure:
        return shorten(f"failed: {trial.failure}", 100, placeholder=" ...")
    role = "the default" if trial.setting == answer.default else "the answer" if trial.setting == answer.setting else ""
    over = "over the bound, ended early" if trial.ended_early else "over the bound"
    return "; ".join(filter(None, [role, over if answer.is_over(trial) else ""]))


def _checked(answer: TuneAnswer) -> Iterator[str]:
    """On which GPUs the answer holds."""
    measured = [gpu for gpu in answer.gpus if gpu.over is not None]
    over = [gpu for gpu in measured if gpu.over]
    (tuned,) = (gpu.gpu for gpu in answer.gpus if gpu.tuned)
    slow_end = f", at the slow end of {len(answer.gpus)} GPUs of one model" if len(answer.gpus) > 1 else ""
    yield f"Tuned on {tuned}{slow_end}."
    if len(measured) > 1 and not answer.is_default:
        holds = f"is over the bound on {len(over)}" if over else "holds the bound on all of them"
        yield f"Checked by one run on each of {many(len(measured), 'GPU')}: the setting {holds}."
    for gpu in over:
        slower = "" if answer.is_default else f"{number(gpu.slower_pct, 2)} % slower than its own default, "
        yield f"Over the bound: {gpu.gpu}, {slower}{_time(gpu.time_s)}."


def _plan(answer: TuneAnswer) -> Iterator[Part]:
    """No knob can be set here: what was measured at the present setting, and what an administrator can do."""
    yield f"No knob can be set here, so nothing was searched for {answer.label}."
    yield (
        "Run whorl tune again as a user who may set it, or set one value after another, measure each, and give the "
        "table to whorl tune --sweep."
    )
    yield from _unset(answer.unset)
    columns: TableColumns = [
        ("GPU", "gpu"),
        (Column("time", "number"), lambda gpu: _time(gpu.default_time_s)),
        (Column("energy, J", "number"), "default_energy_j"),
    ]
    yield Table.of(answer.gpus, columns, "As the GPUs are set at present, one run each")


# -- a sweep ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepAnswer:
    """The choices in the sweeps of a file, and the bound that they hold."""

    file: SweepFile
    choices: tuple[SweepChoice, ...]
    bound: TimeBound
    across_batches: bool


def sweep_mapping(answer: SweepAnswer) -> dict[str, Any]:
    """The answer of a sweep, as `whorl.tune/1`."""
    return {"schema": _SCHEMA, "rows": [_sweep_row(choice, answer.file.knob) for choice in answer.choices]}


def _sweep_row(choice: SweepChoice, knob: str) -> dict[str, Any]:
    sweep, chosen, default = choice.sweep, choice.chosen, choice.sweep.default
    runs = int(min(sweep.runs[[chosen, default]]))
    saved_pct = choice.saved_pct(chosen) or 0.0
    row: dict[str, Any] = {
        **{label: getattr(sweep.workload, label) for label in LABELS[1:]},
        "batch_size": _json_number(sweep.batch_sizes[chosen]),
        knob: _json_number(sweep.settings[chosen]),
        "saved_pct": saved_pct,
        "slower_pct": choice.slower_pct(chosen),
        f"zeus_{knob}": None if choice.zeus is None else _json_number(sweep.settings[choice.zeus]),
        "zeus_saved_pct": choice.saved_pct(choice.zeus),
        "zeus_slower_pct": choice.slower_pct(choice.zeus),
        "gpu": sweep.workload.gpu,
        "default_batch_size": _json_number(sweep.batch_sizes[default]),
        f"default_{knob}": _json_number(sweep.settings[default]),
        "energy_j": float(sweep.energies_j[chosen]),
        "time_s": float(sweep.times_s[chosen]),
        "default_energy_j": float(sweep.energies_j[default]),
        "default_time_s": float(sweep.times_s[default]),
        "bound_met": choice.bound_met,
        "settings": len(sweep.settings),
        "runs": runs,
        "within_noise": chosen != default and runs == 1 and saved_pct < NOISE_PCT,
    }
    spread = gpu_spread_pct(sweep)
    if sweep.gpu_energies_j is not None and spread is not None:
        row["gpu_spread"] = [
            {knob: _json_number(setting), "spread_pct": share, "gpus": sweep.gpu_energies_j.shape[1]}
            for setting, share in zip(sweep.settings, spread.tolist(), strict=True)
        ]
    return row


def _json_number(value: float) -> float | int | None:
    """A number as JSON has it: whole where it is, null where there is none."""
    if math.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def sweep_notes(answer: SweepAnswer) -> list[str]:
    """What is particular about the file: each note says in how many sweeps, settings or rows."""
    file, word = answer.file, _KNOBS[answer.file.knob][0]
    one_batch = sum(len(np.unique(choice.sweep.batch_sizes)) == 1 for choice in answer.choices)
    notes = {
        f"of {many(len(file.sweeps), 'sweep')} without a {word} that others of the same GPU have: the choice is among "
        "those that were measured, beside the highest of them": file.gaps,
        "settings with several rows: the medians of their times and energies": sum(
            int((sweep.runs > 1).sum()) for sweep in file.sweeps
        ),
        f"rows of {file.path} without a time or an energy: left out": file.blank_rows,
        f"workloads of one batch size: only the {word} is chosen there": one_batch if answer.across_batches else 0,
        f"of {many(len(answer.choices), 'sweep')} in which no setting meets the bound: the default stays": sum(
            not choice.bound_met for choice in answer.choices
        ),
    }
    return [f"{amount} {note}" for note, amount in notes.items() if amount]


def sweep_document(answer: SweepAnswer) -> Document:
    """What the choices save, the choices, and how far the figures can be trusted."""
    file, (word, _) = answer.file, _KNOBS[answer.file.knob]
    rows = sweep_mapping(answer)["rows"]
    settings = sum(len(sweep.settings) for sweep in file.sweeps)
    zeus_pcts = [row["zeus_saved_pct"] for row in rows if row["zeus_saved_pct"] is not None]
    parts: list[Part] = [
        _saving(rows, zeus_pcts, file.knob),
        f"{file.path}: {many(settings, 'setting')} in {many(len(file.sweeps), 'sweep')} of the {word}",
        Section(_bound_words(answer), [_choices(answer, rows)]),
        *_doubts(answer, rows, zeus_pcts),
    ]
    return Document(f"Least energy in {file.path}", parts)


def _saving(rows: Sequence[Mapping[str, Any]], zeus_pcts: Sequence[float], knob: str) -> str:
    """What the choices save, over all sweeps."""
    if len(rows) == 1:
        (row,) = rows
        saved, slower = (_tenths(row[name]) for name in ("saved_pct", "slower_pct"))
        knob = _setting({knob: row[knob]})
        chosen = knob if row["batch_size"] is None else f"{knob}, batch {row['batch_size']}"
        return (
            f"Set {chosen}: it saves {saved} % of the energy and is {slower} % slower (n = {many(row['runs'], 'run')})."
        )
    saved, slower = (_median([row[name] for row in rows]) for name in ("saved_pct", "slower_pct"))
    beside = (
        f"; by Zeus's rule, the lowest {_KNOBS[knob][0]} within the bound, {_median(zeus_pcts)}" if zeus_pcts else ""
    )
    return f"Median saved: {saved}{beside}. Median slower: {slower}. n = {len(rows)}; in brackets is the middle half."


def _doubts(answer: SweepAnswer, rows: Sequence[Mapping[str, Any]], zeus_pcts: Sequence[float]) -> Iterator[str]:
    """How the choices differ from Zeus's rule, and what is noise."""
    word = _KNOBS[answer.file.knob][0]
    differ = sum(row["zeus_saved_pct"] not in (None, row["saved_pct"]) for row in rows)
    yield (
        f"Zeus's rule takes the lowest {word} within the bound: another setting in {differ} of "
        f"{many(len(zeus_pcts), 'sweep')}, and one that uses more energy than the default in "
        f"{sum(saved < 0 for saved in zeus_pcts)}."
    )
    if any(row["runs"] == 1 for row in rows):
        noisy = sum(row["within_noise"] for row in rows)
        yield (
            f"Each setting was measured once, so no figure has an interval of its own, and a saving below about "
            f"{NOISE_PCT:g} % is noise ({noisy} of {many(len(rows), 'choice')})."
        )
    if answer.across_batches:
        yield f"{_UNIT_OF_WORK} Larger batches may need more epochs."
    for row in rows:
        if pcts := [spread["spread_pct"] for spread in row.get("gpu_spread", [])]:
            yield (
                f"The energies of the GPUs of one job range over {min(pcts):.1f} to {max(pcts):.1f} % of their mean, "
                f"at {many(len(pcts), word)} (--json has each). It says how much the GPUs differ, not what limits of "
                "their own would save."
            )


def _bound_words(answer: SweepAnswer) -> str:
    slowdown = answer.bound.max_slowdown
    if slowdown is None:
        return f"Least energy in at most {_time(answer.bound.max_time_s)}"
    against = "the middle batch size" if answer.across_batches else "the same batch size"
    return f"Least energy at most {100 * slowdown:g} % slower than at the highest setting of {against}"


def _choices(answer: SweepAnswer, rows: Sequence[Mapping[str, Any]]) -> Table:
    knob = answer.file.knob
    labels = [label for label in LABELS if any(row[label] for row in rows)]
    drops = {"optimizer": 2, "gpu": 1}
    columns: TableColumns = [(Column(label, drops=drops.get(label, 0)), label) for label in labels]
    if any(row["batch_size"] is not None for row in rows):
        columns.append((Column("batch", "count"), _whole("batch_size")))
    columns += [
        (Column(_heads([knob])[0], "number"), _whole(knob)),
        (Column("saved, %", "number", 1), "saved_pct"),
        (Column("slower, %", "number", 1), "slower_pct"),
        (Column("n", "count"), "runs"),
        (Column(f"Zeus's rule, {_KNOBS[knob][1]}", "number"), _whole(f"zeus_{knob}")),
        (Column("its saving, %", "number", 1), "zeus_saved_pct"),
    ]
    return Table.of(rows, columns, most=_SWEEPS_LISTED)


def _whole(name: str) -> CellSource:
    """A whole number as it is."""
    return lambda row: f"{row[name]:g}" if isinstance(row[name], int) else row[name]


def _median(values: Sequence[float]) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:.2f} % [{_tenths(low)}, {_tenths(high)}]"


# -- a stress search -------------------------------------------------------------------------------------------------


def stress_mapping(report: StressReport, notes: Sequence[str]) -> dict[str, Any]:
    """The answer of a stress search, as `whorl.tune.stress/1`."""
    return {
        "schema": "whorl.tune.stress/1",
        "goal": report.goal,
        "unit": "W" if report.goal == "power" else "1",
        **_score(report.winner),
        "best_probe": None if report.best_probe is None else _score(report.best_probe),
        "trials": [_score(tried) for tried in report.trials],
        "probes": [_score(tried) for tried in report.rivals],
        "gpus": list(report.gpus),
        "unset": [asdict(knob) for knob in report.unset],
        "notes": list(notes),
    }


def _score(tried: KernelScore) -> dict[str, Any]:
    return {
        "kernel": tried.label,
        "setting": dict(tried.setting),
        **{name: getattr(tried.score, name, None) for name in ("value", "low", "high")},
        "gpus_measured": getattr(tried.score, "gpus", None),
        "runs": getattr(tried.score, "runs", None),
        "figure": tried.figure,
        "failure": tried.failure,
    }


def stress_notes(report: StressReport) -> list[str]:
    """What somebody should know of how it was measured."""
    failed = sum(tried.score is None for tried in report.trials)
    return [*([f"{failed} of {len(report.trials)} trials failed"] if failed else []), *_torn(report.torn_line)]


def stress_step_text(step: StressProgress) -> str:
    """A kernel that was tried, for the line of progress."""
    best = "" if step.best is None else f"; best {number(step.best)}"
    return f"{_STAGES.get(step.stage, step.stage)}: {step.tried.label}: {number(step.tried.value)}{best}"


def stress_document(report: StressReport, *, simulated: bool) -> Document:
    """The kernel, its knobs and the others beside it."""
    kernel = "of most power" if report.goal == "power" else "of the widest spread (variance between GPUs over runs)"
    parts: list[Part] = [f"The kernel {kernel}: {_figure(report.winner, report.goal)}."]
    if report.best_probe is not None:
        best = _figure(report.best_probe, report.goal)
        parts.append(f"The best probe of the catalogue, {report.best_probe.label}: {best}.")
    parts += ["These GPUs are simulated."] if simulated else []
    parts.append("`whorl probe run stress --set knobs=FILE` runs it as a probe, FILE being what --json prints.")
    knobs = [[name, f"{value:g}"] for name, value in report.winner.setting.items()]
    parts.append(Table(["knob", Column("value", "number")], knobs, "Its knobs (0 is none of it, or the usual)"))
    scored = [kernel for kernel in (*report.trials, *report.rivals) if kernel.value is not None]
    best_first = sorted(scored, key=lambda kernel: -(kernel.value or 0.0))[:_KERNELS_LISTED]
    parts.append(
        Table.of(
            best_first,
            [("kernel", "label"), (Column(_GOALS[report.goal], "number"), "value"), ("of", "figure")],
            f"The best of {many(len(report.trials), 'trial')} and {many(len(report.rivals), 'probe')}",
            "Settings that do not fit this GPU are known beforehand and were not tried. Trials are in no store.",
        )
    )
    return Document(f"Kernel {kernel}", [*parts, *_unset(report.unset)])


def _figure(tried: KernelScore, goal: str) -> str:
    score = tried.score
    if score is None:
        return tried.failure or MISSING
    interval = "" if score.low is None else f" [{number(score.low)}, {number(score.high)}]"
    unit = " W" if goal == "power" else f", of its {tried.figure}"
    runs = f"n = {many(score.gpus, 'GPU')} x {many(score.runs, 'run')}, 95 % interval"
    return f"{number(score.value)}{interval}{unit} ({runs})"
