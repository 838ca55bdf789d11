"""A process for each GPU, bound to the CPUs near it: what hangs or is killed there costs that GPU alone.

`GpuProcess` is the parent's side: it asks for one thing after another. `main` is the child's side: it does that, and
asks the parent meanwhile for telemetry, whether the neighbours are ready, and whether to end. Both write objects into
pipes, each as its length and its pickle, so that half an object is never taken for a whole one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import select
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..collectors.nvml_driver import answer_of, open_library, whole_gpu
from ..errors import DeviceError, WhorlError
from ..kernels.device import Device, finish
from ..store.vocabulary import Outcome
from .exchange import Answers, measure_exchange
from .health import DriverHealth, GpuHealth
from .protocol import Measured, Unrun, measure

if TYPE_CHECKING:
    from ..kernels.peers import PeerGpus
    from ..kernels.work import Facts
    from .catalogue import Probe
    from .conditions import Asked
    from .steps import Task
    from .watch import Reading, Watch, Window

SILENT_S = 600.0
"""A process that says nothing for so long is ended. Everything that whorl waits for itself has a shorter limit, so that
a call of the driver has not returned then."""
ENDING_S = 60.0
"""The same for a process that is to end."""
_LOOK_S = 1.0  # between two looks whether it is to end
_LEAVE_S = 5.0  # a process that was told to end, or killed, is waited for so long
_LENGTH = struct.Struct("<Q")

Opener = tuple[Callable[..., Any], tuple[object, ...]]
"""A function and its arguments that open something in another process; both can be pickled."""


class Pipe:
    """Objects to and from another process through two file descriptors, which belong to the pipe."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        os.set_blocking(write_fd, False)

    def send(self, message: object, *, late: Callable[[], bool] = lambda: False) -> None:
        """Write an object. OSError where the other side is gone, TimeoutError where `late` says so before it is read.

        `late` is asked about every second while nothing moves.
        """
        pickled = pickle.dumps(message)
        unsent = memoryview(_LENGTH.pack(len(pickled)) + pickled)
        while unsent:
            _wait(([], [self._write_fd]), late)
            unsent = unsent[os.write(self._write_fd, unsent) :]

    def receive(self, *, late: Callable[[], bool] = lambda: False) -> Any:
        """The next object. EOFError where the other side is gone, also half way; TimeoutError as in `send`."""
        (length,) = _LENGTH.unpack(self._bytes(_LENGTH.size, late))
        return pickle.loads(self._bytes(length, late))  # noqa: S301 - from a process of our own

    def _bytes(self, count: int, late: Callable[[], bool]) -> bytes:
        received = bytearray()
        while len(received) < count:
            _wait(([self._read_fd], []), late)
            part = os.read(self._read_fd, count - len(received))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def close(self) -> None:
        """Close both ends; the other side sees it."""
        for fd in (self._read_fd, self._write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def _wait(ends: tuple[list[int], list[int]], late: Callable[[], bool]) -> None:
    """Wait until a file descriptor can be read or written. TimeoutError where it is `late` before."""
    while not any(select.select(*ends, [], _LOOK_S)):
        if late():
            raise TimeoutError


# -- the parent's side ------------------------------------------------------------------------------------------------


class GpuProcess:
    """One GPU of this node (or several together), opened in a process of its own. Used from one thread at a time.

    The process begins when the first thing is asked of it. DeviceError, with `gone`, where it ended by itself, was
    killed, or was silent for too long and is killed therefore.
    """

    simulated = False
    pids: ClassVar[set[int]] = set()
    """Of all processes that this one began."""

    def __init__(self, facts: Facts, opener: Opener, *, name: str | None = None, silent_s: float | None = None) -> None:
        """`name` is what errors are about, where that is not one GPU; it is then not bound to CPUs."""
        self.facts = facts
        self._name = name or facts.gpu
        self.cpus: str | None = None
        """The CPUs that it is bound to; None where it is not bound."""
        self._opener, self._silent_s = opener, silent_s or SILENT_S
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._failure: DeviceError | None = None
        self._versions: Mapping[str, str] = {}

    @property
    def versions(self) -> Mapping[str, str]:
        """As `Device.versions`; as they were where the process is gone."""
        with contextlib.suppress(DeviceError):
            self._versions = self.ask(_versions)
        return self._versions

    def now_ns(self) -> int:
        """UTC."""
        return time.time_ns()

    def others(self) -> Sequence[str]:
        """As `Device.others`, without the processes of the other GPUs."""
        try:
            processes: Sequence[str] = self.ask(_others)
        except DeviceError as error:
            return [f"not known: {error}"]
        siblings = {str(pid) for pid in self.pids}
        return [name for name in processes if not siblings & set(re.findall(r"^pid (\d+)", name))]

    def health(self) -> GpuHealth | None:
        """What the driver says of its health now; None where it does not tell."""
        try:
            health: GpuHealth | None = self.ask(_health, self.facts.gpu)
        except DeviceError:
            return None
        return health

    async def pause(self, seconds: float) -> None:
        """Wait; the GPU's context stays."""
        time.sleep(seconds)

    def measure(
        self, watch: Watch, task: Task, *, ended: Callable[[], bool], warm: Callable[[], bool]
    ) -> Measured | Unrun:
        """As `protocol.measure`, in the process."""
        answers = _answers(watch, ended) | {"warm": warm}
        try:
            answer: Measured | Unrun = self.ask(_measure, task, answers=answers)
        finally:
            watch.hurry(self.facts.gpu, on=False)  # which a process that was killed did not ask for
        return answer

    def exchange(self, watch: Watch, probe: Probe, asked: Asked, ended: Callable[[], bool]) -> Answers:
        """As `exchange.measure_exchange`, in the process, which has opened several GPUs."""
        answer: Answers = self.ask(_exchange, probe, asked, answers=_answers(watch, ended))
        return answer

    def standing_for(self, facts: Facts) -> GpuProcess:
        """Itself, from now on as the process of this one of its GPUs."""
        self.facts = facts
        return self

    def ask(
        self,
        function: Callable[..., Any],
        *arguments: object,
        answers: Mapping[str, Callable[..., object]] | None = None,
    ) -> Any:
        """What a function of a module gives there, called with what was opened, the `Parent`, and the arguments.

        What it asks meanwhile, `answers` tell. Its exceptions are raised here.
        """
        answers = answers or {}
        if self._failure is not None:
            raise self._failure
        try:
            pipe = self._started()
            pipe.send((function, arguments), late=self._late(answers))
            while True:
                name, contents = pipe.receive(late=self._late(answers))
                if name == "answer":
                    break
                pipe.send(answers[name](*contents), late=self._late(answers))
        except TimeoutError:
            self._fail(f"its process was silent for {self._limit_s(answers):,.0f} s and was ended", Outcome.HUNG)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._fail(f"its process {self._end()}", Outcome.FAILED)
        if isinstance(contents, BaseException):
            raise contents
        return contents

    def _limit_s(self, answers: Mapping[str, Callable[..., object]]) -> float:
        return min(ENDING_S, self._silent_s) if "ended" in answers and answers["ended"]() else self._silent_s

    def _late(self, answers: Mapping[str, Callable[..., object]]) -> Callable[[], bool]:
        since_s = time.monotonic()
        return lambda: time.monotonic() - since_s > self._limit_s(answers)

    def _started(self) -> Pipe:
        if self._pipe is None:
            # With the path of this process, and without the folder in which it runs, where other modules may lie.
            program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
            command = [sys.executable, "-c", program]
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self.pids.add(self._process.pid)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._pipe = Pipe(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))
            self._process.stdin.close()
            self._process.stdout.close()
            late = self._late({})
            self._pipe.send((self._name, self._opener), late=late)
            self.cpus = self._pipe.receive(late=late)
        return self._pipe

    def _fail(self, sentence: str, outcome: Outcome) -> None:
        self._kill()
        self._failure = DeviceError(f"{self._name}: {sentence}", gone=True, outcome=outcome)
        raise self._failure

    def _end(self) -> str:
        assert self._process is not None
        self._kill(_LEAVE_S)
        status = self._process.poll()
        if status is None or status >= 0:
            return f"ended with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def _kill(self, patience_s: float = 0.0) -> None:
        """End it, after a time in which it may end by itself. One that the kernel does not let go is left behind."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            for seconds in (patience_s, _LEAVE_S):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
                    break
                self._process.kill()

    def close(self) -> None:
        """Leave the GPU, and end the process. Never raises."""
        if self._failure is None:
            self._failure = DeviceError(f"{self._name}: its process was ended", gone=True)
        self._kill(_LEAVE_S)


def _answers(watch: Watch, ended: Callable[[], bool]) -> dict[str, Callable[..., object]]:
    """What the parent answers to a process that measures."""
    return {
        "latest": watch.latest,
        "window": watch.window,
        "hurry": lambda gpu, on: watch.hurry(gpu, on=on),
        "ended": ended,
    }


# -- the child's side -------------------------------------------------------------------------------------------------


class Parent:
    """The parent as the child asks it; also a `Watch`."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def latest(self, gpu: str) -> Reading | None:
        reading: Reading | None = self.ask("latest", gpu)
        return reading

    def window(self, gpu: str, began_ns: int, ended_ns: int) -> Window:
        window: Window = self.ask("window", gpu, began_ns, ended_ns)
        return window

    def hurry(self, gpu: str, *, on: bool) -> None:
        self.ask("hurry", gpu, on)

    def ended(self) -> bool:
        """Whether somebody wants to stop."""
        return bool(self.ask("ended"))

    def warm(self) -> bool:
        """Whether the neighbours are warm too."""
        return bool(self.ask("warm"))

    def ask(self, name: str, *arguments: object) -> Any:
        """What the parent answers to a question."""
        self._pipe.send((name, arguments))
        return self._pipe.receive()


def _measure(device: Device, parent: Parent, task: Task) -> Measured | Unrun:
    from ..kernels.catalogue import find_kernel

    return finish(measure(device, parent, task, find_kernel, ended=parent.ended, warm=parent.warm))


@functools.cache
def _driver_health(gpu: str) -> DriverHealth | None:
    try:
        return DriverHealth(gpu)
    except WhorlError:
        return None


def _health(_: object, __: Parent, gpu: str) -> GpuHealth | None:
    driver = _driver_health(gpu)
    return None if driver is None else driver.read()


def _exchange(peers: PeerGpus, parent: Parent, probe: Probe, asked: Asked) -> Answers:
    return measure_exchange(peers, parent, probe, asked, parent.ended)


def _others(device: Device, _: Parent) -> Sequence[str]:
    return list(device.others())


def _versions(device: Device, _: Parent) -> Mapping[str, str]:
    return dict(device.versions)


def bind(gpu: str) -> str | None:
    """Bind this process to those of its CPUs that are near a GPU; the answer names them, as '0-15,32-47'.

    None, and nothing is bound, where NVML does not tell, or none of them may be used.
    """
    allowed = os.sched_getaffinity(0)
    words = max(allowed) // 64 + 1
    try:
        nv, handle = open_library(), whole_gpu(gpu)
    except WhorlError:
        return None
    masks = [int(mask) for mask in answer_of(nv.nvmlDeviceGetCpuAffinity, handle, words) or [0] * words]
    near = {cpu for cpu in allowed if masks[cpu // 64] >> cpu % 64 & 1}
    for task in Path("/proc/self/task").iterdir() if near else ():  # the threads of numpy are there already
        with contextlib.suppress(OSError):  # one that has just ended
            os.sched_setaffinity(int(task.name), near)
    return ranges(near) or None


def ranges(numbers: set[int]) -> str:
    """Numbers as Linux writes sets of CPUs: '0-15,32-47'."""
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def main() -> None:
    """Do what the parent asks, until it closes the pipe. What is printed meanwhile goes to standard error."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent hears them and says when to end
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(os.dup(0), os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is done, or gone
        gpu, (function, arguments) = pipe.receive()
        pipe.send(bind(gpu))
        opened = _called(function, *arguments)
        with contextlib.ExitStack() as stack:
            if not isinstance(opened, BaseException):
                stack.callback(opened.close)
            while True:
                function, arguments = pipe.receive()
                failed = isinstance(opened, BaseException)
                pipe.send(("answer", opened if failed else _called(function, opened, Parent(pipe), *arguments)))


def _called(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function gives; the exception that it raises, unless the parent is gone."""
    try:
        return function(*arguments)
    except (EOFError, BrokenPipeError):
        raise
    except BaseException as error:
        return _portable(error)


def _portable(error: BaseException) -> BaseException:
    """The error, with where it was raised; another one with the same text where it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in the process of the GPU:\n{text}")
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return RuntimeError(text)
    return error
