"""Sweeps that were measured already: the settings of a GPU beside the time and energy of a unit of work at each.

The tables are those of Zeus (You et al., NSDI 2023), its profiles of the GPUs of one job, and any CSV with a column of
settings, one of times and one of energies or powers. The selectors are Zeus's, and whorl's own.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .search import FloatArray, TimeBound

NOISE_PCT = 2.0  # a saving below this is noise in a sweep that was measured once for each setting
LABELS = ("gpu", "dataset", "network", "optimizer")
_SETTINGS, _TIMES, _ENERGIES = (
    ("power_limit_w", "sm_clock_mhz", "window_name"),
    ("time_s", "time_ms"),
    ("gpu_energy_j", "energy_j", "power_w"),
)
"""What a sweep needs one of; where a file has several, the first counts."""
_COLUMNS = {
    "power_limit_w": "power_limit|limit(_w)?|power_cap(_w)?",
    "sm_clock_mhz": "sm_clock|clock_mhz|locked_clock_mhz|frequency_mhz",
    "window_name": "window_name",
    "time_s": "time_per_epoch(_s)?|elapsed_time|time|seconds|latency_s",
    "time_ms": "latency_ms",
    "gpu_energy_j": r"gpu\d+_energy(_j)?",
    "energy_j": "energy|energy_per_epoch(_j)?",
    "power_w": "(average|mean)_power(_w)?|power(_draw(_w)?)?",
    "batch_size": "batch",
    "gpu": "gpu_model|gpu_name",
    "dataset": "dataset",
    "network": "model|workload",
    "optimizer": "optimizer",
}
"""What a column can mean, and a pattern of other names for it. A window_name ends in _ and a power limit."""
_NEEDED = (
    "a sweep needs a column of settings (power_limit or sm_clock_mhz), one of times (time_s, time_ms or "
    "time_per_epoch), and one of energies (energy_j) or powers (average_power)"
)
_FAILED = ("", "nan", "n/a", "na", "none", "null")  # what stands for the time or energy of a setting that failed
_ALIKE = 0.4
"""How far, as a logarithm, most times of a setting are at most from their median if they are of one workload."""
_Points = dict[tuple["SweptWorkload", float | None], dict[float, list[list[float]]]]
"""By workload and batch size: the measurements of each setting, as its time and the energies of the GPUs."""


@dataclass(frozen=True)
class SweptWorkload:
    """What was run, as far as the file says it; None where it has no such column."""

    gpu: str | None = None
    dataset: str | None = None
    network: str | None = None
    optimizer: str | None = None


@dataclass(frozen=True, eq=False)
class MeasuredSweep:
    """The measured settings of one workload: arrays of length n, ordered by batch size, then by setting.

    `default` is the place of the highest setting, of the middle batch where there are several. NaN is the batch size of
    a file without batches. `runs` counts the rows of a setting; more than one give the medians of time and energy.
    `gpu_energies_j`: of shape (n, GPUs of the job), where the file has them.
    """

    workload: SweptWorkload
    batch_sizes: FloatArray
    settings: FloatArray
    times_s: FloatArray
    energies_j: FloatArray
    runs: NDArray[np.int64]
    default: int
    gpu_energies_j: FloatArray | None = None


@dataclass(frozen=True)
class SweepFile:
    """The sweeps of a file, one for each workload and batch size, in the order of the file."""

    path: str
    knob: str  # power_limit_w or sm_clock_mhz
    sweeps: tuple[MeasuredSweep, ...]
    blank_rows: int  # rows without a time or an energy: settings that failed
    has_batches: bool

    @property
    def gaps(self) -> int:
        """How many sweeps lack a setting that another sweep of the same GPU has."""
        settings: dict[str | None, set[float]] = {}
        for sweep in self.sweeps:
            settings.setdefault(sweep.workload.gpu, set()).update(sweep.settings.tolist())
        return sum(len(sweep.settings) < len(settings[sweep.workload.gpu]) for sweep in self.sweeps)


@dataclass(frozen=True)
class SweepChoice:
    """What was chosen in a sweep, by place: None of `zeus` where no setting of the default batch meets the bound."""

    sweep: MeasuredSweep
    chosen: int
    zeus: int | None
    bound_met: bool  # whether a setting meets the bound; if none does, the default is chosen

    def saved_pct(self, place: int | None) -> float | None:
        """How much less energy than at the default a setting takes, in per cent; negative: more."""
        energies = self.sweep.energies_j
        return None if place is None else 100.0 * float(1.0 - energies[place] / energies[self.sweep.default])

    def slower_pct(self, place: int | None) -> float | None:
        """How much longer than at the default a setting takes, in per cent."""
        times = self.sweep.times_s
        return None if place is None else 100.0 * float(times[place] / times[self.sweep.default] - 1.0)


# -- selectors: a sweep in, the place of a setting out; of equal settings the lowest ---------------------------------


def lowest_within(sweep: MeasuredSweep, bound_s: float) -> int | None:
    """Zeus's rule for a slowdown: the lowest setting of the default batch whose time is at most the bound, or None."""
    at_default_batch = np.isclose(sweep.batch_sizes, sweep.batch_sizes[sweep.default], equal_nan=True)
    feasible = np.flatnonzero((sweep.times_s <= bound_s) & at_default_batch)
    return int(feasible[np.argmin(sweep.settings[feasible])]) if len(feasible) else None


def least_energy_within(sweep: MeasuredSweep, bound_s: float) -> int | None:
    """whorl's rule: of the settings whose time is at most the bound the one of least energy, or None."""
    feasible = np.flatnonzero(sweep.times_s <= bound_s)
    return int(feasible[np.argmin(sweep.energies_j[feasible])]) if len(feasible) else None


def choose(sweeps: Sequence[MeasuredSweep], bound: TimeBound) -> list[SweepChoice]:
    """The setting of least energy of each sweep within a bound, with Zeus's rule beside it."""
    choices = []
    for sweep in sweeps:
        bound_s = bound.max_time_s or (1.0 + (bound.max_slowdown or 0.0)) * float(sweep.times_s[sweep.default])
        chosen = least_energy_within(sweep, bound_s)
        place = sweep.default if chosen is None else chosen
        choices.append(SweepChoice(sweep, place, lowest_within(sweep, bound_s), bound_met=chosen is not None))
    return choices


def across_batches(sweeps: Sequence[MeasuredSweep]) -> list[MeasuredSweep]:
    """One sweep for each workload with the settings of all its batch sizes, which ascend.

    The default is the highest setting of the middle batch size, the upper one of two.
    """
    joined = []
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        members = [sweep for sweep in sweeps if sweep.workload == workload]
        middle = len(members) // 2
        before = sum(len(member.settings) for member in members[:middle])
        arrays = {
            name: np.concatenate([getattr(member, name) for member in members])
            for name in ("batch_sizes", "settings", "times_s", "energies_j", "runs")
        }
        joined.append(MeasuredSweep(workload, default=before + members[middle].default, **arrays))
    return joined


def gpu_spread_pct(sweep: MeasuredSweep) -> FloatArray | None:
    """At each setting the range of the energies of a job's GPUs over their mean, in per cent: (n,), or None."""
    energies = sweep.gpu_energies_j
    return None if energies is None else 100.0 * np.ptp(energies, axis=1) / energies.mean(axis=1)


# -- reading ---------------------------------------------------------------------------------------------------------


def read_sweeps(path: str | Path) -> SweepFile:
    """The sweeps in a CSV file, plain or gzip: a table of Zeus, a profile of it, or another one.

    Columns are known by their names. Rows of the same setting are measurements of it, and their median counts. Batch
    sizes of a workload ascend. Raises `InputError`, which names the line.
    """
    text = _text(path)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=text.partition("\n")[0].count))
    points: _Points = {}
    blank_rows = 0
    try:
        header = [cell.strip() for cell in next(lines, [])]
        columns = _columns(path, header)
        for cells in filter(None, lines):
            line = f"{path}, line {lines.line_num}"
            if len(cells) != len(header):
                raise InputError(
                    f"{line}: {len(cells)} columns, where the head has {len(header)}: correct or remove the line"
                )
            blank_rows += not _added(points, dict(zip(header, cells, strict=True)), columns, line)
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}") from error
    if not points:
        raise InputError(f"{path} has no row with a time and an energy: {_NEEDED}")
    _check_alike(path, points)
    setting = _first(columns, _SETTINGS)
    workloads = list(dict.fromkeys(workload for workload, _ in points))
    keys = sorted(points, key=lambda key: (workloads.index(key[0]), key[1] or 0.0))
    return SweepFile(
        str(path),
        "power_limit_w" if setting == "window_name" else setting,
        tuple(_sweep(*key, points[key]) for key in keys),
        blank_rows,
        "batch_size" in columns,
    )


def _check_alike(path: str | Path, points: _Points) -> None:
    """Raise InputError where the times of most settings that have several rows are those of several workloads."""
    times_s = [np.array(rows)[:, 0] for settings in points.values() for rows in settings.values() if len(rows) > 1]
    unlike = [times for times in times_s if np.mean(np.abs(np.log(times / np.median(times))) <= _ALIKE) <= 0.5]
    if 2 * len(unlike) > len(times_s):
        apart = f"{unlike[0].min():g} to {unlike[0].max():g} s"
        raise InputError(
            f"{path} has several times for a setting, from {apart}: if they are of several workloads, tell these apart "
            f"in columns {', '.join(LABELS)} or batch_size, else remove those that failed"
        )


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
        return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a gzip file that is cut off or damaged: copy it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no CSV file: give the table as text, plain or gzip") from error


def _columns(path: str | Path, header: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each meaning: one, but of the energies of GPUs. InputError where one is missing or ambiguous."""
    columns: dict[str, list[str]] = {}
    for meaning, pattern in _COLUMNS.items():
        words = {name: re.sub(r"\W+", "_", name.lower()).strip("_") for name in header}
        exact = [name for name in header if words[name] == meaning]
        candidates = exact or [name for name in header if re.fullmatch(pattern, words[name])]
        if len(candidates) > 1 and meaning != "gpu_energy_j":
            raise InputError(f"{path}: {' and '.join(candidates)} are both {meaning}: remove one of the columns")
        if candidates:
            columns[meaning] = candidates
    if {"power_limit_w", "sm_clock_mhz"} <= columns.keys():
        both = " and ".join(columns[meaning][0] for meaning in _SETTINGS[:2])
        raise InputError(
            f"{path}: {both} are both settings, and a sweep is of one: keep the rows of one value of the other, and "
            "remove its column"
        )
    if not all(columns.keys() & group for group in (_SETTINGS, _TIMES, _ENERGIES)):
        raise InputError(f"{path} has the columns {', '.join(header) or 'none'}: {_NEEDED}")
    return columns


def _first(columns: Mapping[str, list[str]], meanings: Sequence[str]) -> str:
    return next(meaning for meaning in meanings if meaning in columns)


def _added(points: _Points, cells: Mapping[str, str], columns: Mapping[str, list[str]], line: str) -> bool:
    """Add a row to the points; False where it has no time or no energy."""
    setting, time, energy = (_first(columns, meanings) for meanings in (_SETTINGS, _TIMES, _ENERGIES))
    if any(cells[column].strip().lower() in _FAILED for column in (*columns[time], *columns[energy])):
        return False

    def numbers(meaning: str) -> list[float]:
        texts = ((name, cells[name]) for name in columns[meaning])
        return [
            _number(name, text.rpartition("_")[2] if meaning == "window_name" else text, line) for name, text in texts
        ]

    time_s = numbers(time)[0] * (0.001 if time == "time_ms" else 1.0)
    energies_j = [value * (time_s if energy == "power_w" else 1.0) for value in numbers(energy)]
    if not 0.0 < sum(energies_j) < math.inf:
        raise InputError(f"{line}: an energy of {sum(energies_j):g} J is out of range: correct the line")
    workload = SweptWorkload(**{label: cells[columns[label][0]].strip() for label in LABELS if label in columns})
    batch = numbers("batch_size")[0] if "batch_size" in columns else None
    settings = points.setdefault((workload, batch), {})
    settings.setdefault(numbers(setting)[0], []).append([time_s, *energies_j])
    return True


def _number(column: str, text: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{line}: {column} is {text!r}, which is no number above 0: correct or remove the line")
    return value


def _sweep(workload: SweptWorkload, batch: float | None, rows: Mapping[float, list[list[float]]]) -> MeasuredSweep:
    settings = sorted(rows)
    medians = np.array([np.median(rows[setting], axis=0) for setting in settings])
    return MeasuredSweep(
        workload,
        np.full(len(settings), math.nan if batch is None else batch),
        np.array(settings),
        medians[:, 0],
        medians[:, 1:].sum(axis=1),
        np.array([len(rows[setting]) for setting in settings]),
        len(settings) - 1,
        medians[:, 1:] if medians.shape[1] > 2 else None,
    )
