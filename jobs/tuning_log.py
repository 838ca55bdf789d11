"""The log of a tuning run: a line of JSON for each measurement, so that one that was interrupted can go on.

The first line says what is tuned, each other one holds a `TuneStep`. A line counts when it ends: what a killed process
left half written is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import FileIO
from math import inf
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..analysis.tuning.search import Trial
from ..errors import InputError

if TYPE_CHECKING:
    from ..analysis.tuning.search import Setting

SCHEMA = "whorl.tune.log/1"


@dataclass(frozen=True)
class TuneStep(Trial):
    """A trial that has ended, with what it was for."""

    stage: str = field(kw_only=True)
    """'class', 'trial', 'default', 'answer' or 'check'."""
    gpu: str = field(kw_only=True)


class TuneLog:
    """The measurements of a tuning run; a context manager. Without a path it keeps and writes nothing.

    `head` says what is tuned. Raises InputError where the file cannot be written, is no such log, or has another head.
    """

    def __init__(self, path: Path | None, head: Mapping[str, Any]) -> None:
        self.path = path
        self.torn_line: int | None = None
        """The number of the line that was dropped because it had no end."""
        self._steps: list[TuneStep] = []
        self._file: FileIO | None = None
        if path is not None:
            try:
                self._open(path, json.loads(json.dumps({"schema": SCHEMA, **head})))
            except OSError as error:
                raise self._unwritable(error) from error

    def _open(self, path: Path, head: dict[str, Any]) -> None:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: the log of the trials must be a file, and this is none: choose another path")
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        lines = complete.splitlines()
        if content and not lines:
            raise _no_log(path)
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if number > 1:
                    self._steps.append(_step(row))
            except (ValueError, TypeError) as error:
                raise InputError(f"{path}: line {number} is no trial ({error}): choose another file") from error
            if number == 1:
                _refuse_other(path, row, head)
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again when it is closed
        if complete != content:
            self.torn_line = len(lines) + 1
            self._file.truncate(len(complete))
        if not lines:
            self._write(head)

    def take(self, stage: str, gpu: str, setting: Setting) -> TuneStep | None:
        """A measurement of the file that is this one, each once; None where it is to be made."""
        for place, step in enumerate(self._steps):
            if (step.stage, step.gpu, dict(step.setting)) == (stage, gpu, dict(setting)):
                return self._steps.pop(place)
        return None

    def settings(self, stage: str, gpu: str) -> list[Setting]:
        """What the file holds of a stage on a GPU and nobody has taken, in its order."""
        return [step.setting for step in self._steps if (step.stage, step.gpu) == (stage, gpu)]

    def append(self, step: TuneStep) -> None:
        """Write a measurement down. Raises InputError where that is not possible."""
        try:
            self._write(asdict(step))
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            line = f"{json.dumps(row)}\n".encode()
            while line:  # a disk that is nearly full takes a part, and refuses the next one
                line = line[self._file.write(line) :]

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: the log of the trials cannot be written ({error.strerror})")

    def __enter__(self) -> TuneLog:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _step(row: dict[str, Any]) -> TuneStep:
    """A line of a log. Raises TypeError where a person has changed it into something else."""
    step = TuneStep(**row)
    if not isinstance(step.setting, dict):
        raise TypeError("its setting is no object")
    numbers = (*step.setting.values(), step.energy_j, step.time_s, step.noise)
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise TypeError("its setting, energy, time and noise must be numbers")
    if not all(number is None or 0 < number < inf for number in (step.energy_j, step.time_s)):
        raise TypeError("its energy and time must be above 0")
    if step.time_s is None and step.failure is None:
        raise TypeError("it has neither a time nor a failure")
    return step


def _no_log(path: Path) -> InputError:
    return InputError(f"{path}: this is no log of whorl tune: choose another file")


def _refuse_other(path: Path, row: Any, head: Mapping[str, Any]) -> None:
    """Raises InputError where the first line of a log is of something else than what is tuned."""
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        raise _no_log(path)
    for name, value in head.items():
        if row.get(name) != value:
            theirs, present = (shorten(json.dumps(text), 100, placeholder=" ...") for text in (row.get(name), value))
            raise InputError(
                f"{path}: it is the log of another search (its {name}: {theirs}, and not {present}): choose another "
                "file"
            )
