"""What `whorl tune --sweep` says: settings of least energy within a bound, from a sweep that was measured already."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.tuning.search import TimeBound
from ...analysis.tuning.sweep import (
    NOISE_PCT,
    MeasuredSweep,
    SweepChoice,
    SweepFile,
    gpu_spread_pct,
)
from ..table import MISSING, Table, many, number

SCHEMA = "whorl.tune/1"
_LISTED = 24
_LABELS = ("gpu", "dataset", "network", "optimizer")
_WORDS = {"power_limit_w": ("power limit", "W"), "sm_clock_mhz": ("SM clock", "MHz")}


@dataclass(frozen=True)
class SweepAnswer:
    """The choices in the sweeps of a file, and the bound that they hold."""

    file: SweepFile
    choices: tuple[SweepChoice, ...]
    bound: TimeBound | None
    across_batches: bool


def sweep_document(answer: SweepAnswer) -> dict[str, Any]:
    """The document of a sweep, `whorl.tune/1`."""
    return {"schema": SCHEMA, "rows": [_document_row(choice, answer.file.knob) for choice in answer.choices]}


def _document_row(choice: SweepChoice, knob: str) -> dict[str, Any]:
    sweep, workload = choice.sweep, choice.sweep.workload
    row: dict[str, Any] = {
        "dataset": workload.dataset,
        "network": workload.network,
        "optimizer": workload.optimizer,
        "batch_size": _whole(sweep.batch_sizes[choice.chosen]),
        knob: _whole(sweep.settings[choice.chosen]),
        "saved_pct": choice.saved_pct(choice.chosen),
        "slower_pct": choice.slower_pct(choice.chosen),
        f"zeus_{knob}": None if choice.zeus is None else _whole(sweep.settings[choice.zeus]),
        "zeus_saved_pct": choice.saved_pct(choice.zeus),
        "zeus_slower_pct": choice.slower_pct(choice.zeus),
        "gpu": workload.gpu,
        "default_batch_size": _whole(sweep.batch_sizes[sweep.default]),
        f"default_{knob}": _whole(sweep.settings[sweep.default]),
        "energy_j": float(sweep.energies_j[choice.chosen]),
        "time_s": float(sweep.times_s[choice.chosen]),
        "default_energy_j": float(sweep.energies_j[sweep.default]),
        "default_time_s": float(sweep.times_s[sweep.default]),
        "bound_met": choice.bound_met,
        "settings": len(sweep.settings),
        "runs": int(sweep.runs[choice.chosen]),
        "within_noise": _is_noise(choice),
    }
    spread = gpu_spread_pct(sweep)
    if spread is not None:
        row["gpu_spread"] = [
            {knob: _whole(setting), "spread_pct": float(share), "gpus": _gpus(sweep)}
            for setting, share in zip(sweep.settings, spread, strict=True)
        ]
    return row


def _whole(value: float) -> float | int | None:
    """A number as JSON has it: whole where it is, null where there is none."""
    if math.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def _gpus(sweep: MeasuredSweep) -> int:
    return 1 if sweep.gpu_energies_j is None else sweep.gpu_energies_j.shape[1]


def _is_noise(choice: SweepChoice) -> bool:
    """Whether a choice other than the default saves so little that one measurement cannot tell it from noise."""
    saved = choice.saved_pct(choice.chosen) or 0.0
    return choice.chosen != choice.sweep.default and saved < NOISE_PCT and _runs(choice) == 1


def _runs(choice: SweepChoice) -> int:
    return int(min(choice.sweep.runs[choice.chosen], choice.sweep.runs[choice.sweep.default]))


def sweep_notes(answer: SweepAnswer) -> tuple[str, ...]:
    """What is particular about the file."""
    file, notes = answer.file, []
    word = _WORDS[file.knob][0]
    if file.blank_rows:
        notes.append(f"{many(file.blank_rows, 'row')} of {file.path} without a time or an energy: left out")
    if file.gaps:
        notes.append(
            f"{file.gaps} of {many(len(file.sweeps), 'sweep')} without a {word} that others of the same GPU have: the "
            "choice is among those that were measured"
        )
    if file.lower_defaults:
        notes.append(
            f"{file.lower_defaults} of {many(len(file.sweeps), 'sweep')} without the highest {word} of the GPU: what "
            "is saved there is beside their own highest one"
        )
    single = sum(len(choice.sweep.settings) == 1 for choice in answer.choices)
    if single:
        notes.append(f"{many(single, 'sweep')} of one setting: there is nothing to choose")
    repeated = sum(int((sweep.runs > 1).sum()) for sweep in file.sweeps)
    if repeated:
        ignored = f"; columns that are not used: {', '.join(file.unused_columns)}" if file.unused_columns else ""
        notes.append(f"{many(repeated, 'setting')} with several rows: the medians of their times and energies{ignored}")
    if answer.across_batches:
        alone = sum(len(set(choice.sweep.batch_sizes.tolist())) == 1 for choice in answer.choices)
        if alone:
            notes.append(f"{many(alone, 'workload')} of one batch size: only the {word} is chosen there")
    missed = sum(not choice.bound_met for choice in answer.choices)
    if missed:
        notes.append(
            f"no setting meets the bound in {many(missed, 'sweep')} of {len(answer.choices)}: the default stays"
        )
    return tuple(notes)


def sweep_answer(answer: SweepAnswer) -> Iterator[str | Table]:
    """The choices for people."""
    file, (word, unit) = answer.file, _WORDS[answer.file.knob]
    settings = sum(len(sweep.settings) for sweep in file.sweeps)
    yield f"{file.path}: {many(settings, 'setting')} in {many(len(file.sweeps), 'sweep')} of the {word}"
    yield ""
    if len(answer.choices) == 1:
        yield from _sentence(answer, word, unit)
    else:
        yield _table(answer, word, unit)
        yield ""
        yield from _summary(answer, word)
    noisy = sum(map(_is_noise, answer.choices))
    if any(_runs(choice) == 1 for choice in answer.choices):
        yield (
            f"Each setting was measured once, so no figure has an interval of its own, and a saving below about "
            f"{NOISE_PCT:g} % is noise ({noisy} of {many(len(answer.choices), 'choice')})."
        )
    if answer.across_batches:
        yield (
            "The energy is that of a unit of work, such as an epoch, not that of training to a target: larger batches "
            "may need more epochs."
        )
    for choice in answer.choices:
        yield from _spread(choice, word, unit)


def _bound(answer: SweepAnswer) -> str:
    against = "the middle batch size" if answer.across_batches else "the same batch size"
    if answer.bound is None:
        return "with no bound on the time"
    if answer.bound.max_slowdown is None:
        return f"in at most {number(answer.bound.max_time_s)} s"
    return f"at most {100 * answer.bound.max_slowdown:g} % slower than at the highest setting of {against}"


def _table(answer: SweepAnswer, word: str, unit: str) -> Table:
    labels = [label for label in _LABELS if any(getattr(choice.sweep.workload, label) for choice in answer.choices)]
    zeus = answer.bound is not None
    head = [*labels, "batch", f"{word}, {unit}", "saved, %", "slower, %", "n"]
    head += [f"Zeus's rule, {unit}", "its saving, %"] if zeus else []
    rows = []
    for choice in answer.choices[:_LISTED]:
        sweep = choice.sweep
        rows.append(
            [
                *(str(getattr(sweep.workload, label)) for label in labels),
                _plain(sweep.batch_sizes[choice.chosen]),
                _plain(sweep.settings[choice.chosen]),
                _pct(choice.saved_pct(choice.chosen)),
                _pct(choice.slower_pct(choice.chosen)),
                str(_runs(choice)),
                *([_setting_of(choice), _pct(choice.saved_pct(choice.zeus))] if zeus else []),
            ]
        )
    left_out = len(answer.choices) - len(rows)
    says = f"{many(left_out, 'row')} more: --json has them." if left_out else ""
    first = len(labels)
    return Table(
        head,
        rows,
        tuple(range(first, len(head))),
        f"Least energy {_bound(answer)}",
        says,
        leaves=tuple(labels.index(label) for label in ("optimizer", "gpu") if label in labels),
    )


def _setting_of(choice: SweepChoice) -> str:
    return MISSING if choice.zeus is None else _plain(choice.sweep.settings[choice.zeus])


def _plain(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:g}"


def _pct(value: float | None) -> str:
    """A per cent with one digit; without a sign where it rounds to 0."""
    if value is None:
        return MISSING
    text = f"{value:.1f}"
    return text.lstrip("-") if float(text) == 0 else text


def _sentence(answer: SweepAnswer, word: str, unit: str) -> Iterator[str]:
    """The one choice of a file, and Zeus's beside it."""
    [choice] = answer.choices
    sweep = choice.sweep
    batch, default = sweep.batch_sizes[choice.chosen], f"{sweep.settings[sweep.default]:g} {unit}"
    at_batch = "" if math.isnan(batch) else f" at batch size {batch:g}"
    within = " within the bound" if answer.bound else ""
    if not choice.bound_met:
        yield f"Keep the highest {word}, {default}{at_batch}: no setting meets the bound."
    elif choice.chosen == sweep.default:
        yield f"Keep the highest {word}, {default}{at_batch}: no other setting{within} needs less energy."
    else:
        setting = f"{sweep.settings[choice.chosen]:g} {unit}"
        yield (
            f"Set a {word} of {setting}{at_batch}: {_beside(choice, choice.chosen)} than at {default} "
            f"(n = {many(_runs(choice), 'run')} of each)."
        )
    if choice.zeus is not None and choice.zeus != choice.chosen:
        setting = f"{sweep.settings[choice.zeus]:g} {unit}"
        yield f"Zeus's rule, the lowest {word} within the bound, takes {setting}: {_beside(choice, choice.zeus)}."


def _beside(choice: SweepChoice, place: int) -> str:
    """A setting beside the default: 4.8 % less energy, 2.0 % slower."""
    saved, slower = choice.saved_pct(place) or 0.0, choice.slower_pct(place) or 0.0
    energy, time = "less" if saved >= 0 else "more", "slower" if slower >= 0 else "faster"
    return f"{_pct(abs(saved))} % {energy} energy, {_pct(abs(slower))} % {time}"


def _summary(answer: SweepAnswer, word: str) -> Iterator[str]:
    """The medians of many choices, and what Zeus's rule would have taken."""
    choices = answer.choices
    pairs = [(choice, saved) for choice in choices if (saved := choice.saved_pct(choice.zeus)) is not None]
    beside = f"; by Zeus's rule {_median([saved for _, saved in pairs])}" if pairs else ""
    saved_pcts = [choice.saved_pct(choice.chosen) or 0.0 for choice in choices]
    slower_pcts = [choice.slower_pct(choice.chosen) or 0.0 for choice in choices]
    yield (
        f"Median saved: {_median(saved_pcts)}{beside}. Median slower: {_median(slower_pcts)}. n = {len(choices)}; in "
        "brackets is the middle half."
    )
    if pairs:
        hungrier = sum(saved < 0 for _, saved in pairs)
        differ = sum(choice.zeus != choice.chosen for choice, _ in pairs)
        yield (
            f"Zeus's rule takes the lowest {word} within the bound: another setting in {differ} of "
            f"{many(len(pairs), 'sweep')}, and one that uses more energy than the default in {hungrier}."
        )


def _median(values: Sequence[float]) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:.2f} % [{_pct(low)}, {_pct(high)}]"


def _spread(choice: SweepChoice, word: str, unit: str) -> Iterator[str | Table]:
    """How much the GPUs of one job differ, where the file has the energy of each."""
    sweep, spread = choice.sweep, gpu_spread_pct(choice.sweep)
    if spread is None:
        return
    rows = [
        [f"{setting:g}", number(time_s), number(energy_j), f"{share:.1f}"]
        for setting, time_s, energy_j, share in zip(
            sweep.settings, sweep.times_s, sweep.energies_j, spread, strict=True
        )
    ]
    yield ""
    yield Table(
        (f"{word}, {unit}", "time, s", "energy of the job, J", "spread, %"),
        rows,
        (0, 1, 2, 3),
        f"The {_gpus(sweep)} GPUs of one job",
        f"Spread: the range of the GPUs' energies at the same work, over their mean; {np.min(spread):.1f} to "
        f"{np.max(spread):.1f} %. It says how much the GPUs differ, not what limits of their own would save.",
    )
