"""The log of gpu-burn: progress of all GPUs on one line that is written again and again, then a verdict on each GPU.

Each new Gflop/s of a GPU is a repeat of its run. The first one is left out if there are others, as it has the start in
it. Errors are counted anew after each summary. The duration is that of 1e12 FLOP at the rate found.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind, Outcome
from ..rows import Rows, Value

_FLOP = 1e12
_PROGRESS = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%\s+proc'd:")
_RATE = re.compile(r"(-?[0-9]+)\s+\(\s*([0-9]+(?:\.[0-9]+)?|-?nan|inf)\s+Gflop/s\)")
_LISTED = re.compile(r"^\s*GPU\s+([0-9]+):\s+(.+?)\s+\(UUID:\s*(GPU-[0-9a-fA-F-]{36})\)")
_MADE = re.compile(r"Initialized device ([0-9]+) with .*?using (FLOATS|DOUBLES)(.*)$")
_LASTS = re.compile(r"Burning for ([0-9]{1,9}) seconds")
_VERDICT = re.compile(r"^\s*GPU\s+([0-9]+):\s+(OK|FAULTY)\s*$")
_TESTED = re.compile(r"Tested ([0-9]+) GPUs:")
_SUMMARY = re.compile(r"Summary at:\s*(.*?)\s*$")
_CLOCK = re.compile(r"^([0-9]{1,2}):([0-9]{2}):([0-9]{2})$")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_FAILURE = re.compile(
    r"(Couldn't init a GPU test:.*|Failure during compute:.*|Couldn't init CUDA:.*|No CUDA devices.*)"
)
_PRECISIONS = {
    ("FLOATS", False): "fp32",
    ("DOUBLES", False): "fp64",
    ("FLOATS", True): "tf32",
    ("DOUBLES", True): "fp64",
}


@dataclass
class _Gpu:
    """What a log says of one of its GPUs."""

    done: int = 0
    rates: list[tuple[float, int]] = field(default_factory=list)  # Gflop/s, line
    temperatures: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    errors: int = 0  # of all summaries
    last_errors: int = 0  # since the last summary
    died: bool = False
    verdict: str = ""


@dataclass
class _Run:
    """One start of gpu-burn."""

    line: int
    gpus: list[_Gpu] = field(default_factory=list)
    listed: dict[int, tuple[str, str]] = field(default_factory=dict)  # number -> model, UUID
    devices: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    seconds: int | None = None
    percent: float = 0.0
    began: str = ""
    tested: int | None = None
    text: list[str] = field(default_factory=list)

    def ends_before(self, piece: str) -> bool:
        """Whether this piece is of another start: the verdicts are complete, or progress falls.

        The order of other lines says nothing: each process writes what it has buffered when it ends.
        """
        if any(gpu.verdict for gpu in self.gpus):
            return not _VERDICT.match(piece)
        found = _PROGRESS.match(piece)
        return found is not None and float(found[1]) < self.percent


def fits(head: str) -> bool:
    """Whether a file that begins so is a log of gpu-burn."""
    return bool(("proc'd:" in head and _RATE.search(head)) or _LASTS.search(head) or _TESTED.search(head))


def read(text: str, rows: Rows) -> None:
    """Add the runs of every GPU of each start in the log."""
    runs = list(_runs(text))
    for run in runs:
        _add(run, rows)
    if not len(rows):
        why = next((run.failures[0] for run in runs if run.failures), "there is no Gflop/s in it")
        raise InputError(f"{rows.file}: gpu-burn measured nothing: {why}")


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """The pieces of the log, each with its line: progress overwrites itself, with or without a carriage return."""
    for line, whole in enumerate(text.split("\n"), start=1):
        for part in whole.split("\r"):
            starts = [0, *(found.start() for found in _PROGRESS.finditer(part)), len(part)]
            for begin, end in pairwise(starts):
                if part[begin:end].strip():
                    yield line, part[begin:end]


def _runs(text: str) -> Iterator[_Run]:
    run = _Run(1)
    for line, piece in _pieces(text):
        if run.ends_before(piece):
            yield run
            cut = run.tested is None  # what was said before the progress may be of the new start
            run = _Run(line, listed=run.listed, devices=run.devices, kinds=run.kinds) if cut else _Run(line)
        run.text.append(piece)
        _take(run, line, piece)
    yield run


def _take(run: _Run, line: int, piece: str) -> None:
    """What a piece of the log says."""
    if (found := _PROGRESS.match(piece)) is not None:
        run.percent = float(found[1])
        _progress(run, line, piece)
    elif (found := _LISTED.match(piece)) is not None:
        run.listed[int(found[1])] = (found[2], found[3])
    elif (found := _MADE.search(piece)) is not None:
        run.devices.add(int(found[1]))
        run.kinds.add(_PRECISIONS[found[2], "tensor" in found[3].lower()])
    elif (found := _LASTS.search(piece)) is not None:
        run.seconds = int(found[1])
    elif (found := _SUMMARY.search(piece)) is not None:
        for gpu in run.gpus:
            gpu.last_errors = 0
        run.began = run.began or _began(found[1], run)
    elif (found := _TESTED.search(piece)) is not None:
        run.tested = int(found[1])
        run.gpus += [_Gpu() for _ in range(run.tested - len(run.gpus))] if run.tested <= 1024 else []
    elif (found := _VERDICT.match(piece)) is not None and int(found[1]) < len(run.gpus):
        run.gpus[int(found[1])].verdict = found[2]
    if (found := _FAILURE.search(piece)) is not None:
        run.failures.append(found[1].strip())


def _progress(run: _Run, line: int, piece: str) -> None:
    names = ("proc'd:", "errors:", "temps:", "power:")
    begins = {name: piece.find(name) for name in names}
    ends = [*sorted(at for at in begins.values() if at >= 0), len(piece)]

    def part(name: str) -> str:
        at = begins[name]
        return "" if at < 0 else piece[at + len(name) : next(end for end in ends if end > at)].strip()

    def each(name: str) -> list[str]:
        return re.split(r"\s+-\s+", part(name)) if part(name) else []

    rates = list(_RATE.finditer(part("proc'd:")))
    if len(run.gpus) < len(rates):
        run.gpus += [_Gpu() for _ in range(len(rates) - len(run.gpus))]
    for gpu, found in zip(run.gpus, rates, strict=False):
        done, rate = int(found[1]), float(found[2])
        gpu.died |= done == -1
        if done > gpu.done and 0 < rate < float("inf"):  # else it is the last one again
            gpu.rates.append((rate, line))
        gpu.done = max(done, gpu.done)
    for gpu, text in zip(run.gpus, each("errors:"), strict=False):
        gpu.died |= "DIED" in text
        if (counted := re.match(r"[0-9]{1,15}(?![0-9])", text)) is not None:
            errors = int(counted[0])
            gpu.errors += errors - gpu.last_errors if errors >= gpu.last_errors else errors
            gpu.last_errors = errors
    for name, unit, values in (("temps:", "C", "temperatures"), ("power:", "W", "watts")):
        for gpu, text in zip(run.gpus, each(name), strict=False):
            if (reading := re.match(rf"([0-9.]+)\s*{unit}\b", text)) is not None:
                getattr(gpu, values).append(float(reading[1]))


def _began(said: str, run: _Run) -> str:
    """When the run began, by the time of a summary; "" if that cannot be read. Only UTC is known by its name."""
    words = said.split()
    month = next((number for number, name in enumerate(_MONTHS, start=1) if name in words), None)
    day = next((int(word) for word in words if re.fullmatch("[0-9]{1,2}", word)), None)
    year = next((int(word) for word in words if re.fullmatch("[0-9]{4}", word)), None)
    clock = next((found for word in words if (found := _CLOCK.match(word))), None)
    if month is None or day is None or year is None or clock is None:
        return ""
    hour = int(clock[1])
    if "AM" in words or "PM" in words:
        hour = hour % 12 + 12 * ("PM" in words)
    try:
        at = datetime(year, month, day, hour, int(clock[2]), int(clock[3]), tzinfo=UTC)
        at -= timedelta(seconds=round((run.seconds or 0) * run.percent / 100))
    except (ValueError, OverflowError):
        return ""
    return f"{at:%Y-%m-%d %H:%M:%S}" + ("Z" if {"UTC", "GMT"} & set(words) else "")


def _add(run: _Run, rows: Rows) -> None:
    if not run.gpus:
        return
    precision = next(iter(run.kinds)) if len(run.kinds) == 1 else None
    workload = f"gpu-burn {precision}" if precision else "gpu-burn"
    record = hashlib.sha256("\n".join(run.text).encode()).hexdigest()[:16]
    if run.tested is None:
        rows.note("the log of gpu-burn ends before its verdict: it was cut short or killed")
    names = _names(run, rows)
    for gpu, name in zip(run.gpus, names, strict=True):
        common: dict[str, Value] = name | {"workload": workload, "precision": precision, "flop": _FLOP}
        if gpu.temperatures:
            common["temperature [C]"] = statistics.median(gpu.temperatures)
        if gpu.watts:
            common["power [W]"] = statistics.median(gpu.watts)
        if run.began:
            common["began"] = run.began
        event = _judged(gpu, run, workload)
        if event is not None:
            wrong = event.kind == EventKind.WRONG_RESULT
            common |= {"status": Outcome.WRONG_RESULT if wrong else Outcome.FAILED, "status_detail": event.detail}
        keys = [
            rows.add(line, common | {"time [ms]": _FLOP / rate / 1e6, "rate [GFLOP/s]": rate, "repeat": repeat}, record)
            for repeat, (rate, line) in enumerate(gpu.rates[1:] or gpu.rates)
        ]
        if not keys and event is None:
            rows.refuse(run.line, "gpu-burn has no Gflop/s of a GPU")
        elif not keys:
            keys = [rows.add(run.line, common | {"repeat": 0}, record)]
        if event is not None:
            rows.event(keys[0], event)


def _judged(gpu: _Gpu, run: _Run, workload: str) -> Event | None:
    """What is wrong with a GPU: an event, or None."""
    if gpu.died:
        why = f": {run.failures[0]}" if run.failures else ""
        return Event(EventKind.PROBE_FAILED, None, f"gpu-burn stopped on this GPU{why}", workload=workload)
    if gpu.errors or gpu.verdict == "FAULTY":
        said = f"{gpu.errors:,} wrong elements" if gpu.errors else "wrong elements"
        return Event(EventKind.WRONG_RESULT, None, f"gpu-burn found {said}", workload=workload, n=gpu.errors or None)
    return None


def _names(run: _Run, rows: Rows) -> list[dict[str, Value]]:
    """Which GPU each of the tested ones is."""
    tested = len(run.gpus)
    devices = sorted(run.devices)
    if len(devices) != tested:
        devices = list(range(tested))
    sure = len(run.listed) == tested or devices[-1] >= tested  # a number beyond the tested ones is that of `-i`
    if run.listed and not sure:
        if rows.options.gpu is None or tested > 1:
            raise InputError(
                f"{rows.file}: the node has {len(run.listed)} GPUs and gpu-burn tested {tested}, and nothing says "
                "which; give --gpu NAME, or cut the list of the others out of the log"
            )
    elif len({model for model, _ in run.listed.values()}) > 1 and tested > 1:
        if rows.options.node is None:
            raise InputError(
                f"{rows.file}: the node has GPUs of several models, which CUDA may number otherwise than nvidia-smi; "
                "give --node NAME if it ran with CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
    elif run.listed and all(device in run.listed for device in devices):
        return [{"gpu": run.listed[device][1], "model": run.listed[device][0]} for device in devices]
    return [{"index": device} for device in devices]
