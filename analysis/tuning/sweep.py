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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .process import FloatArray
from .search import TimeBound

NOISE_PCT = 2.0
"""A saving below this is noise in a sweep that was measured once for each setting."""
LABELS = ("gpu", "dataset", "network", "optimizer")
KNOBS = ("power_limit_w", "sm_clock_mhz")
_COLUMNS = {
    "power_limit_w": ("power_limit", "limit_w", "limit", "power_cap_w", "power_cap"),
    "sm_clock_mhz": ("sm_clock", "clock_mhz", "locked_clock_mhz", "frequency_mhz"),
    "time_s": ("time_per_epoch", "time_per_epoch_s", "elapsed_time", "time", "seconds", "latency_s"),
    "time_ms": ("latency_ms",),
    "energy_j": ("energy", "energy_per_epoch", "energy_per_epoch_j"),
    "power_w": ("average_power", "average_power_w", "mean_power_w", "mean_power", "power"),
    "batch_size": ("batch",),
    "gpu": ("gpu_model", "gpu_name"),
    "dataset": (),
    "network": ("model", "workload"),
    "optimizer": (),
    "window_name": (),
}
"""What a column can mean, and under which names it is known."""
MEANINGS = tuple(name for name in _COLUMNS if name != "window_name")
"""What `columns` of `read_sweeps` may give a column."""
_NEEDED = (
    "a sweep needs a column of settings (power_limit or sm_clock_mhz), one of times (time_s, time_ms or "
    "time_per_epoch), and one of energies (energy_j) or powers (average_power)"
)
_GPU_ENERGY = re.compile(r"gpu\d+_energy(_j)?")
_WINDOW = re.compile(r".*_(\d+(?:\.\d+)?)")


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

    @property
    def at_default_batch(self) -> NDArray[np.bool_]:
        """Which settings have the default's batch size."""
        if math.isnan(self.batch_sizes[self.default]):
            return np.ones(len(self.settings), bool)
        return np.asarray(self.batch_sizes == self.batch_sizes[self.default])


@dataclass(frozen=True)
class SweepFile:
    """The sweeps of a file, one for each workload and batch size, in the order of the file."""

    path: str
    knob: str
    """power_limit_w or sm_clock_mhz."""
    sweeps: tuple[MeasuredSweep, ...]
    blank_rows: int
    """Rows without a time or an energy: settings that failed."""
    unused_columns: tuple[str, ...]
    has_batches: bool

    @property
    def gaps(self) -> int:
        """How many sweeps lack a setting that another sweep of the same GPU has."""
        return sum(len(sweep.settings) < len(self._settings(sweep.workload.gpu)) for sweep in self.sweeps)

    @property
    def lower_defaults(self) -> int:
        """How many sweeps lack the highest setting of their GPU, so that their default is a lower one."""
        return sum(sweep.settings[sweep.default] < max(self._settings(sweep.workload.gpu)) for sweep in self.sweeps)

    def _settings(self, gpu: str | None) -> set[float]:
        return {float(value) for sweep in self.sweeps if sweep.workload.gpu == gpu for value in sweep.settings}


@dataclass(frozen=True)
class SweepChoice:
    """What was chosen in a sweep, by place: None of `zeus` where its rule has no answer."""

    sweep: MeasuredSweep
    chosen: int
    zeus: int | None
    bound_met: bool
    """Whether a setting meets the bound; if none does, the default is chosen."""

    def saved_pct(self, place: int | None) -> float | None:
        """How much less energy than at the default a setting takes, in per cent; negative: more."""
        energies = self.sweep.energies_j
        return None if place is None else 100.0 * float(1.0 - energies[place] / energies[self.sweep.default])

    def slower_pct(self, place: int | None) -> float | None:
        """How much longer than at the default a setting takes, in per cent."""
        times = self.sweep.times_s
        return None if place is None else 100.0 * float(times[place] / times[self.sweep.default] - 1.0)


# -- selectors: a sweep in, the place of a setting out; of equal settings the lowest ---------------------------------


def least_energy(sweep: MeasuredSweep) -> int:
    """The setting of least energy."""
    return int(np.argmin(sweep.energies_j))


def least_time(sweep: MeasuredSweep) -> int:
    """The setting of least time."""
    return int(np.argmin(sweep.times_s))


def least_cost(sweep: MeasuredSweep, eta: float, highest_w: float) -> int:
    """Zeus's cost: the setting of least eta E + (1 - eta) P_max T; `highest_w` is P_max, the GPU's highest limit."""
    return int(np.argmin(eta * sweep.energies_j + (1.0 - eta) * highest_w * sweep.times_s))


def lowest_within(sweep: MeasuredSweep, bound_s: float) -> int | None:
    """Zeus's rule for a slowdown: the lowest setting of the default batch whose time is at most the bound, or None."""
    feasible = np.flatnonzero((sweep.times_s <= bound_s) & sweep.at_default_batch)
    return int(feasible[np.argmin(sweep.settings[feasible])]) if len(feasible) else None


def least_energy_within(sweep: MeasuredSweep, bound_s: float) -> int | None:
    """whorl's rule: of the settings whose time is at most the bound the one of least energy, or None."""
    feasible = np.flatnonzero(sweep.times_s <= bound_s)
    return int(feasible[np.argmin(sweep.energies_j[feasible])]) if len(feasible) else None


def choose(sweeps: Sequence[MeasuredSweep], bound: TimeBound | None = None) -> list[SweepChoice]:
    """The setting of least energy of each sweep within a bound, with Zeus's rule beside it.

    Without a bound all settings are feasible, and Zeus's rule has no answer.
    """
    choices = []
    for sweep in sweeps:
        if bound is None:
            choices.append(SweepChoice(sweep, least_energy(sweep), None, bound_met=True))
            continue
        longest_s = bound.max_time_s or (1.0 + (bound.max_slowdown or 0.0)) * float(sweep.times_s[sweep.default])
        chosen = least_energy_within(sweep, longest_s)
        place = sweep.default if chosen is None else chosen
        choices.append(SweepChoice(sweep, place, lowest_within(sweep, longest_s), bound_met=chosen is not None))
    return choices


def across_batches(sweeps: Sequence[MeasuredSweep]) -> list[MeasuredSweep]:
    """One sweep for each workload with the settings of all its batch sizes.

    The default is the highest setting of the middle batch size, the upper one of two.
    """
    joined = []
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        members = sorted(
            (sweep for sweep in sweeps if sweep.workload == workload), key=lambda member: float(member.batch_sizes[0])
        )
        middle = len(members) // 2
        joined.append(
            MeasuredSweep(
                workload,
                np.concatenate([member.batch_sizes for member in members]),
                np.concatenate([member.settings for member in members]),
                np.concatenate([member.times_s for member in members]),
                np.concatenate([member.energies_j for member in members]),
                np.concatenate([member.runs for member in members]),
                sum(len(member.settings) for member in members[:middle]) + members[middle].default,
            )
        )
    return joined


def gpu_spread_pct(sweep: MeasuredSweep) -> FloatArray | None:
    """At each setting the range of the energies of a job's GPUs over their mean, in per cent: (n,), or None."""
    energies = sweep.gpu_energies_j
    return None if energies is None else 100.0 * np.ptp(energies, axis=1) / energies.mean(axis=1)


# -- reading ---------------------------------------------------------------------------------------------------------


def read_sweeps(path: str | Path, columns: Mapping[str, str] | None = None) -> SweepFile:
    """The sweeps in a CSV file, plain or gzip: a table of Zeus, a profile of it, or another one.

    `columns`: what columns mean, by their names, as {"watts": "power_limit_w"}; the others are known by their names.
    Rows of the same setting are measurements of it, and their median counts. Raises `InputError`, which names the line.
    """
    lines = csv.reader(_lines(path, text := _text(path)), delimiter=_delimiter(text))
    try:
        header = next([cell.strip() for cell in cells] for cells in lines if "".join(cells).strip())
        table = _SweepTable(str(path), header, columns or {})
        for cells in lines:
            if cells:
                table.add(cells, lines.line_num)
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}") from error
    return table.sweeps()


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} is a gzip file that is cut off or damaged: copy it again") from error
    except OSError as error:  # BadGzipFile has no strerror
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no CSV file: give the table as text, plain or gzip") from error
    if not text.strip():
        raise InputError(f"{path} is empty: {_NEEDED}")
    return text


def _lines(path: str | Path, text: str) -> Iterator[str]:
    if "\0" in text:
        raise InputError(f"{path} is no CSV file: it holds zero bytes")
    return io.StringIO(text, newline="")


def _delimiter(text: str) -> str:
    header = text.lstrip().partition("\n")[0]
    return max(",;\t", key=header.count)


class _SweepTable:
    """The rows of a file by workload, batch size and setting."""

    def __init__(self, path: str, header: Sequence[str], columns: Mapping[str, str]) -> None:
        self._path, self._header = path, header
        self._gpus = [place for place, name in enumerate(header) if _GPU_ENERGY.fullmatch(name.lower())]
        self._places = self._meanings(columns)
        self._blank = 0
        self._points: dict[tuple[SweptWorkload, float | None], dict[float, list[list[float]]]] = {}
        knobs = [name for name in (*KNOBS, "window_name") if name in self._places]
        times = [name for name in ("time_s", "time_ms") if name in self._places]
        if len(times) > 1:
            names = " and ".join(header[self._places[name]] for name in times)
            raise InputError(f"{path}: {names} are both times; remove one of the columns")
        if not knobs or not times or not (self._gpus or {"energy_j", "power_w"} & self._places.keys()):
            raise InputError(
                f"{path} has the columns {', '.join(header)}: {_NEEDED}; --map COLUMN=MEANING says what a column is"
            )
        self._knob, self._time = knobs[0], times[0]
        self._energy = "energy_j" if "energy_j" in self._places else "power_w"

    def _meanings(self, columns: Mapping[str, str]) -> dict[str, int]:
        """The place of the column of each meaning."""
        for column, meaning in columns.items():
            if column not in self._header:
                raise InputError(f"{self._path} has no column {column!r}; it has {', '.join(self._header)}")
            if meaning not in MEANINGS:
                raise InputError(f"--map {column}={meaning}: a column can be {', '.join(MEANINGS)}")
        places: dict[str, int] = {}
        for meaning, names in _COLUMNS.items():
            chosen = [place for place, name in enumerate(self._header) if columns.get(name) == meaning]
            words = {
                place: re.sub(r"\W+", "_", name.lower()).strip("_")
                for place, name in enumerate(self._header)
                if name not in columns
            }
            spelled = [place for place, word in words.items() if word == meaning]
            candidates = chosen or spelled or [place for place, word in words.items() if word in names]
            if len(candidates) > 1:
                names_of_columns = " and ".join(self._header[place] for place in candidates)
                raise InputError(f"{self._path}: {names_of_columns} are both {meaning}; say with --map which one is")
            if candidates:
                places[meaning] = candidates[0]
        return places

    def add(self, cells: Sequence[str], line: int) -> None:
        """Take in a row."""
        if len(cells) != len(self._header):
            raise InputError(
                f"{self._path}, line {line}: {len(cells)} columns, where the head has {len(self._header)}: correct or "
                "remove the line"
            )
        energies = self._gpus or [self._places[self._energy]]
        if not all(cells[place].strip() for place in (self._places[self._time], *energies)):
            self._blank += 1
            return
        time_s = self._number(cells, self._places[self._time], line) * (0.001 if self._time == "time_ms" else 1.0)
        parts = [self._number(cells, place, line) for place in energies]
        if not self._gpus and self._energy == "power_w":
            parts = [parts[0] * time_s]
        if not 0.0 < sum(parts) < math.inf:
            raise InputError(
                f"{self._path}, line {line}: an energy of {sum(parts):g} J is out of range: correct the line"
            )
        labels = {name: cells[self._places[name]].strip() for name in LABELS if name in self._places}
        batch = self._number(cells, self._places["batch_size"], line) if "batch_size" in self._places else None
        settings = self._points.setdefault((SweptWorkload(**labels), batch), {})
        settings.setdefault(self._setting(cells, line), []).append([time_s, *parts])

    def _setting(self, cells: Sequence[str], line: int) -> float:
        place = self._places[self._knob]
        if self._knob != "window_name":
            return self._number(cells, place, line)
        match = _WINDOW.fullmatch(cells[place].strip())
        if match is None or not float(match[1]) > 0:
            raise InputError(
                f"{self._path}, line {line}: window_name is {cells[place]!r}, and does not end in _ and a power limit"
            )
        return float(match[1])

    def _number(self, cells: Sequence[str], place: int, line: int) -> float:
        try:
            value = float(cells[place])
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise InputError(
                f"{self._path}, line {line}: {self._header[place]} is {cells[place]!r}, which is no number above 0: "
                "correct or remove the line"
            )
        return value

    def sweeps(self) -> SweepFile:
        """What was read, in the order of the file; the batch sizes of a workload ascend."""
        if not self._points:
            raise InputError(f"{self._path} has no row with a time and an energy: {_NEEDED}")
        workloads = list(dict.fromkeys(workload for workload, _ in self._points))
        keys = sorted(self._points, key=lambda key: (workloads.index(key[0]), key[1] or 0.0))
        used = {*self._places.values(), *self._gpus}
        if self._gpus or self._energy == "energy_j":
            used |= {self._places["power_w"]} if "power_w" in self._places else set()
        return SweepFile(
            self._path,
            KNOBS[0] if self._knob == "window_name" else self._knob,
            tuple(self._sweep(*key, self._points[key]) for key in keys),
            self._blank,
            tuple(name for place, name in enumerate(self._header) if place not in used),
            "batch_size" in self._places,
        )

    def _sweep(
        self, workload: SweptWorkload, batch: float | None, points: Mapping[float, list[list[float]]]
    ) -> MeasuredSweep:
        settings = sorted(points)
        medians = np.array([np.median(points[setting], axis=0) for setting in settings])
        return MeasuredSweep(
            workload,
            np.full(len(settings), math.nan if batch is None else batch),
            np.array(settings),
            medians[:, 0],
            medians[:, 1:].sum(axis=1),
            np.array([len(points[setting]) for setting in settings]),
            len(settings) - 1,
            medians[:, 1:] if len(self._gpus) > 1 else None,
        )
