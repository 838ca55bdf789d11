"""Measures a command of the user at a setting, for tuning: its energy from the ledger, its time from it or the clock.

    bench = CommandBench("serve --batch {batch}", [command_knob("batch=8,1,2,4,16,32")], unit_of_work=1000)
    tune(bench, TimeBound(max_time_s=0.016))

A trial is one run of the command, from its start to its end. It may print lines like these, of which the last counts:

    whorl: begin                            the measuring begins here: the model is loaded
    whorl: latency_ms=12.5 work=1000        the latency of a batch, and the units of work since then

Without a latency, the time is that of the run over its units of work; without `work` these are `unit_of_work`. Energy
is that of the GPUs of the command while it runs, idle moments too, over its units of work. What else it prints is
shown only where it fails. A command outlives a whorl that is killed (SIGKILL): end it before the next one starts.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from ..analysis.tuning.search import Knob, Trial
from ..collectors.allocation import visible_gpus
from ..collectors.backend import find_backend
from ..errors import DeviceError, InputError
from ..probes.settings import Settings
from ..store.names import find_gpu
from ..store.system import signals
from ..store.vocabulary import EventKind
from .ledger import Ledger, Unmeasured
from .tuning_knobs import CLOCK, MEMORY, POWER, knobs_of_gpus

if TYPE_CHECKING:
    from ..analysis.tuning.search import Setting
    from ..store.events import Event
    from .ledger import Span
    from .tuning_knobs import UnsetKnob

TIMEOUT_S = 3600.0
MOST_EDGE = 0.05
"""The energy of a run may be wrong by at most this share because the sensor has a new value only now and then."""
USUALLY_LONG_S = 10  # a run of so many seconds is long enough for all sensors
_FIRST_PART = 0.1  # of the work of the default: a trial that is over the bound after so much of it is ended
_GRACE_S, _KILL_S = 5.0, 2.0  # so long after SIGTERM a program is killed, and so long after SIGKILL it is given up
_LOOK_S = 0.05  # at most between looks whether a program has ended that prints nothing
_LAST_LINES, _LINE_LENGTH, _LONGEST_LINE = 5, 200, 1 << 16
_PRINT = "print 'whorl: latency_ms=12.5 work=1000', the latency in milliseconds and the units of work until then"
_PLACE = re.compile(r"\{\{(\w+)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")


class CommandBench:
    """Runs a command on the GPUs of one model of this node, one run at a time; a `TuneBench` and a context manager.

    `command` is split as a shell does, but no shell runs it (`sh -c '...'` does); `{name}` becomes the value of the
    knob `name`, and `{{name}}` is left as `{name}`. To `knobs` are added the power limit and the SM clock where they
    can be set. `unit_of_work` is how many units of work a run does, `timeout_s` how long it may take. Each of `gpus`
    (names, indices or parts of UUIDs) is what one run has, by CUDA_VISIBLE_DEVICES: several with commas between them
    are had together; without it, each GPU that CUDA shows to this process. `tell` hears of settings that could not be
    restored, and of those that a process before this one left.

    Raises InputError where the command does not fit its knobs, a GPU is not there, GPUs are of several models, or their
    energy cannot be read.
    """

    def __init__(
        self,
        command: str,
        knobs: Sequence[Knob],
        *,
        unit_of_work: float | None = None,
        timeout_s: float = TIMEOUT_S,
        gpus: Sequence[str] = (),
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        for subject, number in (("unit of work", unit_of_work), ("timeout", timeout_s)):
            if number is not None and not 0 < number < math.inf:
                raise InputError(f"the {subject} must be a number above 0, not {number:g}")
        self._words = _split(command, [knob.name for knob in knobs])
        self.label = command if unit_of_work is None else f"{command} ({unit_of_work:g} units of work)"
        self._unit_of_work, self._timeout_s, self._tell = unit_of_work, timeout_s, tell
        groups = _groups(gpus)
        self._gpu_knobs = knobs_of_gpus([gpu for group in groups for gpu in group], tell=tell)
        self.gpus = [",".join(group) for group in groups]
        self.knobs: Sequence[Knob] = [*self._gpu_knobs.knobs, *knobs]
        self.unset: Sequence[UnsetKnob] = self._gpu_knobs.unset
        self.commands = self._gpu_knobs.commands
        self._ledgers = {",".join(group): Ledger(gpus=group) for group in groups}
        self._usual_work: float | None = None  # units of work of the first run that ended well; None before
        for ledger in self._ledgers.values():
            if problem := ledger.problem():
                self.__exit__()
                raise InputError(f"the energy of a command cannot be measured here: {problem}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for ledger in self._ledgers.values():
            ledger.close()

    def measure(self, setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        """Run the command once: J for a unit of work and s of what the bound is on.

        With `stop_over_s` (s) a run ends early where a line of its says more, after a tenth of the usual work; one
        without such lines ends when the clock says more. Raises DeviceError where the run fails, takes longer than
        `timeout_s`, tells no usable time or is too short for the sensor; InputError instead where it is the default and
        no run has ended well before, and where the setting is refused.
        """
        words = [_filled(word, setting) for word in self._words]
        # Without the second variable a line of Python comes when the program ends.
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "PYTHONUNBUFFERED": "1"}
        limits = self._gpu_knobs.limits(setting)
        try:
            with signals.Unwinding(apart_s=1.0), Settings(gpu.split(","), **limits, tell=self._tell_trouble):
                with _CommandRun(self._ledgers[gpu]) as run, _running(words, environment) as program:
                    self._watch(program, run, math.inf if stop_over_s is None else stop_over_s)
                return self._trial(setting, run)  # the sensor's last value is of the run, before they are restored
        except _CommandError as failure:
            sentence = f"the command {shlex.join(words)!r} {failure}"
            if self._usual_work is None and dict(setting) == {knob.name: knob.default for knob in self.knobs}:
                raise InputError(sentence) from None
            raise DeviceError(sentence) from None

    def _tell_trouble(self, event: Event) -> None:
        """Pass on what is not as in every trial."""
        if event.kind not in (EventKind.SETTINGS_CHANGED, EventKind.SETTINGS_RESTORED):
            self._tell(event.detail)

    def _watch(self, program: _GroupedProgram, run: _CommandRun, longest_s: float) -> None:
        """Follow a program to its end, or to where its time is known to be over the longest."""
        last_s = time.monotonic() + self._timeout_s
        usual_work = self._usual_work or self._unit_of_work or math.inf
        while not run.ended_early:
            # A run that tells no latency is over by the clock.
            over_s = math.inf if run.latency_s else run.began_s + longest_s * (self._unit_of_work or math.inf)
            try:
                line = program.line(min(last_s, over_s))
            except TimeoutError:
                if over_s > last_s:
                    raise _CommandError(f"did not end within {self._timeout_s:g} s{program.tail()}") from None
                run.ended_early = True
                break
            if line is None:
                break
            run.take(line)
            run.ended_early = (run.latency_s or 0.0) > longest_s and (run.work or 0.0) >= _FIRST_PART * usual_work
        run.end()
        if not run.ended_early:
            program.check()

    def _trial(self, setting: Setting, run: _CommandRun) -> Trial:
        """The figures of a run; no energy of one that ended early. Raises _CommandError where there is none."""
        seconds = run.span.duration_s
        assert seconds is not None
        if run.ended_early:
            return Trial(setting, None, run.latency_s or seconds / (self._unit_of_work or 1.0), ended_early=True)
        work = run.work or self._unit_of_work
        if work is None:
            raise _CommandError(f"told no units of work: {_PRINT}, or state --set unit-of-work=N")
        energy_j = _energy_j(run.span) / work
        self._usual_work = self._usual_work or work
        return Trial(setting, energy_j, run.latency_s or seconds / work)


def command_knob(text: str) -> Knob:
    """The knob of `batch=8,1,2,4`: the first value is in use today, the default. InputError for another text."""
    name, _, values = text.partition("=")
    numbers = [_number(value) for value in values.split(",")]
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or not all(map(math.isfinite, numbers)):
        raise InputError(f"{text!r} is no knob: write its name and numbers, the one in use today first: batch=8,1,2,4")
    if name in (POWER, CLOCK, MEMORY):
        raise InputError(f"{name} is a knob of the GPU, which whorl sets itself: call that of the command otherwise")
    return Knob(name, tuple(sorted(set(numbers))), numbers[0])


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _split(command: str, knobs: Sequence[str]) -> list[str]:
    """The words of a command. Raises InputError where its places are not the knobs."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the command {command!r} cannot be split into words: {error}") from error
    if not words:
        raise InputError("the command is empty: write the program and its arguments, with {name} for each knob")
    places = {match[2] for word in words for match in _PLACE.finditer(word) if match[2]}
    for name in sorted(places.symmetric_difference(knobs)):
        if name in places:
            raise InputError(
                f"the command has {{{name}}} and there is no knob {name}: state it, or write {{{{{name}}}}}"
            )
        raise InputError(f"the command has no place for the knob {name}: write {{{name}}} where its value is to stand")
    return words


def _filled(word: str, setting: Setting) -> str:
    """A word of the command with the values of a setting."""
    return _PLACE.sub(lambda match: f"{{{match[1]}}}" if match[1] else f"{setting[match[2]]:.15g}", word)


def _groups(chosen: Sequence[str]) -> list[tuple[str, ...]]:
    """The UUIDs of the GPUs of each run; InputError as of `CommandBench`."""
    backend = find_backend("nvml")()
    try:
        devices = list(backend.devices())
    finally:
        backend.close()
    gpus = {device.gpu: device.row for device in devices if device.parent is None}
    if chosen:
        names = {gpu: (str(row.get("nvml_index")),) for gpu, row in gpus.items()}
        groups = [tuple(dict.fromkeys(find_gpu(name, names) for name in group.split(","))) for group in chosen]
    else:
        visible, _ = visible_gpus(devices, variables=("CUDA_VISIBLE_DEVICES",))
        groups = [(gpu,) for gpu in gpus if gpu in visible]
    if not groups:
        raise InputError("this process has no whole GPU, and the energy of a part of one cannot be measured")
    models = {str(gpus[gpu].get("model")) for group in groups for gpu in group}
    if len(models) > 1:
        raise InputError(f"the GPUs are of several models ({', '.join(sorted(models))}): choose those of one by --gpu")
    return groups


def _energy_j(span: Span) -> float:
    """The energy of a run, J. Raises _CommandError where it was too short for its sensor, or was not measured."""
    figure, seconds = span.figure(), span.duration_s
    assert seconds is not None
    if figure.energy_j is None and figure.reason is not Unmeasured.SHORT:
        raise _CommandError(f"has no energy: {'' if figure.reason is None else figure.reason.meaning}")
    edge = math.inf if not figure.energy_j or figure.edge_j is None else figure.edge_j / figure.energy_j
    if edge > MOST_EDGE:
        needed_s = USUALLY_LONG_S if math.isinf(edge) else 1.25 * seconds * edge / MOST_EDGE  # it differs a little
        raise _CommandError(
            f"was measured for {seconds:.2g} s, which is too short for the energy sensor of the GPU: give it work for "
            f"{math.ceil(needed_s)} s or longer"
        )
    assert figure.energy_j is not None
    return figure.energy_j


class _CommandError(Exception):
    """Why a run gives no figures: what follows "the command"."""


class _CommandRun:
    """What is known of a run until now; energy and time are counted while the block runs, or until `end`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.ended_early = False

    def __enter__(self) -> Self:
        self.latency_s: float | None = None
        self.work: float | None = None
        self.began_s = time.monotonic()
        self.span = self._ledger.span("trial", parent=None).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No energy and time are counted from here on."""
        self.span.__exit__(None, None, None)

    def take(self, line: str) -> None:
        """Take in a line of the program. Raises _CommandError where it cannot be used."""
        words = line.removeprefix("whorl:").split()
        if words == ["begin"]:
            self.end()
            self.__enter__()
            return
        figures = dict(word.partition("=")[::2] for word in words)
        if not figures or set(figures) - {"latency_ms", "work"}:
            raise _CommandError(f"printed {line!r}, which is not understood: {_PRINT}")
        numbers = {name: _number(text) for name, text in figures.items()}
        if not all(0 < number < math.inf for number in numbers.values()):
            raise _CommandError(f"printed {line!r}, where a value is no number above 0: {_PRINT}")
        if "latency_ms" in numbers:
            self.latency_s = numbers["latency_ms"] / 1000
        self.work = numbers.get("work", self.work)


class _GroupedProgram:
    """A program in a process group of its own.

    Its lines that begin with "whorl:" are read as they come; the last of all others are kept, for when it fails.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises _CommandError where it cannot be started."""
        self._lines: deque[str] = deque()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._unended = b""  # what it printed behind the last end of a line
        self._prints = True  # whether anybody has its output open
        self._over = False
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the user wants to run
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise _CommandError(f"cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def line(self, until_s: float) -> str | None:
        """The next line, or None where the program has ended. TimeoutError at a time of the monotonic clock."""
        while not (self._lines or self._over):
            # A process that it left may hold its output open. What it printed itself can be read once it has ended.
            ended = self._process.poll() is not None
            if not self._read(last=ended) and not ended:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                select.select([self._output] if self._prints else [], [], [], min(left_s, _LOOK_S))
            self._over = ended
        return self._lines.popleft() if self._lines else None

    def _read(self, *, last: bool) -> bool:
        """Take in all that can be read at this moment, the last time also what has no end; False: nothing."""
        output = None
        with contextlib.suppress(BlockingIOError):
            output = os.read(self._output.fileno(), 1 << 20)
        self._prints = output != b""
        *lines, self._unended = re.split(rb"\r\n?|\n", self._unended + (output or b""))
        if last or not self._prints or len(self._unended) > _LONGEST_LINE:
            lines, self._unended = [*lines, self._unended], b""
        for line in (line.decode(errors="replace").rstrip() for line in lines):
            if line.startswith("whorl:"):
                self._lines.append(line)
            elif line.strip():
                self._last.append(line.strip()[:_LINE_LENGTH])
        return bool(output)

    def check(self) -> None:
        """Raises _CommandError where the program that has ended failed."""
        status = self._process.returncode
        if status:
            ending = f"with exit status {status}" if status > 0 else f"by signal {-status}"
            raise _CommandError(f"ended {ending}{self.tail()}")

    def tail(self) -> str:
        """The last lines that it printed, for a sentence."""
        lines = " | ".join(self._last)
        return f"; its last lines: {lines}" if lines else ""

    def end(self) -> None:
        """End all of its processes. InputError where the program cannot be ended."""
        process = self._process
        with signals.held():
            for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
                    last_s = time.monotonic() + patience_s
                    while time.monotonic() < last_s:
                        process.poll()
                        os.killpg(process.pid, 0)
                        time.sleep(0.02)
            self._output.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_S)
        if process.returncode is None:
            raise InputError(f"process {process.pid} of the command cannot be ended: end it by hand")


@contextlib.contextmanager
def _running(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[_GroupedProgram]:
    """A program that is ended with the block, also where a signal comes while it is started."""
    program = None
    try:
        with signals.held():
            program = _GroupedProgram(words, environment)
        yield program
    finally:
        if program is not None:
            program.end()
