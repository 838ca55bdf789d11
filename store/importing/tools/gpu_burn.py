"""The log of gpu-burn: progress of all GPUs on one line that is written again and again, then a verdict on each GPU.

Each new Gflop/s of a GPU is a repeat of its run. The first one is left out if there are others, as it has the start in
it. Errors are counted anew after each summary, and a counter that wrapped round says only that there were errors. The
duration is that of 1e12 FLOP at the rate found.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind, Outcome
from ..rows import Rows, Value, by_host
from ..times import Times, instant, text_of_ns

_FLOP = 1e12
_MOST_ERRORS = 2**31 - 1  # gpu-burn counts in 32 bits
_MOST_GPUS = 1024
_PROGRESS = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%\s+proc'd:")
_PARTS = re.compile(r"(proc'd|errors|temps|power):")
_RATE = re.compile(r"(-?[0-9]+)\s+\(\s*([0-9]+(?:\.[0-9]+)?|-?nan|inf)\s+Gflop/s\)")
_ERRORS = re.compile(r"(-?[0-9]{1,20})(?![0-9])")
_LISTED = re.compile(r"^\s*GPU\s+([0-9]{1,4}):\s+(.+?)\s+\(UUID:\s*(GPU-[0-9a-fA-F-]{36})\)")
_INITIALISED = re.compile(r"Initialized device ([0-9]{1,4}) with .*?using (FLOATS|DOUBLES)(.*)$")
_DURATION = re.compile(r"Burning for ([0-9]{1,9}) seconds")
_VERDICT = re.compile(r"^\s*GPU\s+([0-9]{1,4}):\s+(OK|FAULTY)\s*$")
_TESTED = re.compile(r"Tested ([0-9]{1,4}) GPUs:")
_SUMMARY = re.compile(r"Summary at:\s*(.*?)\s*$")
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
    """What a log says of a GPU: `rates` are Gflop/s with their lines, `wrong` whether its results had errors."""

    matrices: int = 0
    rates: list[tuple[float, int]] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    errors: int = 0
    since_summary: int = 0
    wrong: bool = False
    overflowed: bool = False
    died: bool = False
    verdict: str = ""
    noticed_ns: int | None = None  # the summary after the first error

    def count(self, text: str) -> None:
        """Take the errors that the progress shows: `0`, `211  (WARNING!)`, `-1  (DIED!)`."""
        counter = _ERRORS.match(text)
        self.died |= "DIED" in text
        if counter is None or "DIED" in text:
            return
        errors = int(counter[1])
        self.wrong |= errors != 0
        self.overflowed |= not 0 <= errors < _MOST_ERRORS
        self.errors += errors - self.since_summary if errors >= self.since_summary else errors
        self.since_summary = errors


@dataclass
class _Start:
    """One start of gpu-burn on a host ("" if no line names it). `listed`: number -> model and UUID."""

    host: str
    line: int
    gpus: list[_Gpu] = field(default_factory=list)
    listed: dict[int, tuple[str, str]] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    precisions: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    seconds: int = 0
    percent: float = 0.0
    began_ns: int | None = None
    tested: int | None = None
    text: list[str] = field(default_factory=list)

    def ends_before(self, piece: str) -> bool:
        """Whether this piece is of another start: the verdicts are complete, progress falls, or other GPUs are listed.

        The order of other lines says nothing: each process writes what it has buffered when it ends.
        """
        if any(gpu.verdict for gpu in self.gpus):
            return not _VERDICT.match(piece)
        if (match := _LISTED.match(piece)) is not None:
            return self.listed.get(int(match[1]), (match[2], match[3]))[1] != match[3]
        progress = _PROGRESS.match(piece)
        return progress is not None and float(progress[1]) < self.percent

    def grow(self, number: int) -> None:
        """Have at least so many GPUs."""
        self.gpus += [_Gpu() for _ in range(min(number, _MOST_GPUS) - len(self.gpus))]


def fits(head: str) -> bool:
    """Whether a file that begins so is a log of gpu-burn."""
    return bool(("proc'd:" in head and _RATE.search(head)) or _DURATION.search(head) or _TESTED.search(head))


def read(text: str, rows: Rows) -> None:
    """Add the runs of every GPU of each start in the log. Raises InputError where it does not say which GPUs they are,
    or has no result."""
    starts = [start for host, lines in by_host(text, rows.file).items() for start in _starts(host, lines, rows)]
    for start in starts:
        _add(start, rows)
    if not len(rows):
        why = next((start.failures[0] for start in starts if start.failures), "there is no Gflop/s in it")
        raise InputError(f"{rows.file}: gpu-burn measured nothing: {why}")


def _pieces(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The pieces of the log, each with its line: progress overwrites itself, with or without a carriage return."""
    for number, line in lines:
        for part in line.split("\r"):
            starts = [0, *(progress.start() for progress in _PROGRESS.finditer(part)), len(part)]
            yield from ((number, part[begin:end]) for begin, end in pairwise(starts) if part[begin:end].strip())


def _starts(host: str, lines: Iterable[tuple[int, str]], rows: Rows) -> Iterator[_Start]:
    start = _Start(host, 1)
    for line, piece in _pieces(lines):
        if start.ends_before(piece):
            yield start
            other_host = _LISTED.match(piece) is not None
            if other_host and not start.percent and not start.failures:
                raise InputError(
                    f"{rows.file}: line {line} lists another GPU than before under the same number: the outputs of "
                    "several hosts are mixed; write a file for each host (srun --output=%N.log)"
                )
            # What stands before progress that falls may be of the new start.
            before = _Start(host, line) if other_host or start.tested is not None else start
            start = _Start(host, line, listed=before.listed, devices=before.devices, precisions=before.precisions)
        start.text.append(piece)
        _take(start, line, piece, rows)
    yield start


def _take(start: _Start, line: int, piece: str, rows: Rows) -> None:
    """What a piece of the log says."""
    if (match := _PROGRESS.match(piece)) is not None:
        start.percent = float(match[1])
        _progress(start, line, piece)
    elif (match := _LISTED.match(piece)) is not None:
        start.listed[int(match[1])] = (match[2], match[3])
    elif (match := _INITIALISED.search(piece)) is not None:
        start.devices.add(int(match[1]))
        start.precisions.add(_PRECISIONS[match[2], "tensor" in match[3].lower()])
    elif (match := _DURATION.search(piece)) is not None:
        start.seconds = int(match[1])
    elif (match := _SUMMARY.search(piece)) is not None:
        _summary(start, match[1], rows)
    elif (match := _TESTED.search(piece)) is not None:
        start.tested = int(match[1])
        start.grow(start.tested)
    elif (match := _VERDICT.match(piece)) is not None and int(match[1]) < len(start.gpus):
        start.gpus[int(match[1])].verdict = match[2]
    if (match := _FAILURE.search(piece)) is not None:
        start.failures.append(match[1].strip()[:200])


def _progress(start: _Start, line: int, piece: str) -> None:
    marks = list(_PARTS.finditer(piece))
    ends = [*(mark.start() for mark in marks[1:]), len(piece)]
    parts = {mark[1]: piece[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}
    rates = list(_RATE.finditer(parts.get("proc'd", "")))
    start.grow(len(rates))
    for gpu, match in zip(start.gpus, rates, strict=False):
        matrices, rate = int(match[1]), float(match[2])
        gpu.died |= matrices == -1
        if matrices > gpu.matrices and 0 < rate < float("inf"):  # else it is the last one again
            gpu.rates.append((rate, line))
        gpu.matrices = max(matrices, gpu.matrices)
    cells = {name: re.split(r"\s+-\s+", text) if text else [] for name, text in parts.items()}
    for gpu, text in zip(start.gpus, cells.get("errors", ()), strict=False):
        gpu.count(text)
    for gpu, text in zip(start.gpus, cells.get("temps", ()), strict=False):
        gpu.temperatures += [float(number) for number in re.findall(r"^([0-9]+(?:\.[0-9]+)?)\s*C\b", text)]
    for gpu, text in zip(start.gpus, cells.get("power", ()), strict=False):
        gpu.watts += [float(number) for number in re.findall(r"^([0-9]+(?:\.[0-9]+)?)\s*W\b", text)]


def _summary(start: _Start, date: str, rows: Rows) -> None:
    stamp = Times(rows).of(date, 0) if date else None
    try:
        ns = instant(stamp, rows.options.time_zone, rows.file) if stamp is not None else None
    except InputError:  # a date that no calendar has
        ns = None
    if start.began_ns is None and ns is not None:
        start.began_ns = ns - round(start.seconds * start.percent * 1e7)
    for gpu in start.gpus:
        gpu.since_summary = 0
        if gpu.wrong and gpu.noticed_ns is None:
            gpu.noticed_ns = ns


def _add(start: _Start, rows: Rows) -> None:
    if not start.gpus:
        return
    precision = next(iter(start.precisions)) if len(start.precisions) == 1 else None
    workload = f"gpu-burn {precision}" if precision else "gpu-burn"
    record = hashlib.sha256("\n".join(start.text).encode()).hexdigest()[:16]
    if start.tested is None:
        rows.note("the log of gpu-burn ends before its verdict: it was cut short or killed")
    for gpu, identity in zip(start.gpus, _identities(start, rows), strict=True):
        common: dict[str, Value] = identity | {"workload": workload, "precision": precision, "flop": _FLOP}
        common |= {"node": start.host} if start.host else {}
        common |= {"temperature [C]": statistics.median(gpu.temperatures)} if gpu.temperatures else {}
        common |= {"power [W]": statistics.median(gpu.watts)} if gpu.watts else {}
        common |= {"began": text_of_ns(start.began_ns)} if start.began_ns is not None else {}
        event = _finding(gpu, start, workload)
        if event is not None:
            wrong = event.kind == EventKind.WRONG_RESULT
            common |= {"status": Outcome.WRONG_RESULT if wrong else Outcome.FAILED, "status_detail": event.detail}
        repeats = [
            common | {"time [ms]": _FLOP / rate / 1e6, "rate [GFLOP/s]": rate, "repeat": repeat, "line": line}
            for repeat, (rate, line) in enumerate(gpu.rates[1:] or gpu.rates)
        ]
        if not repeats and event is None:
            rows.refuse(start.line, "gpu-burn has no Gflop/s of a GPU")
            continue
        repeats = repeats or [common | {"repeat": 0, "line": start.line}]
        if event is not None:
            repeats[0]["wrong_elements"] = event.n
        keys = [rows.add(int(str(values.pop("line"))), values, record) for values in repeats]
        if event is not None:
            rows.event(keys[0], event)


def _finding(gpu: _Gpu, start: _Start, workload: str) -> Event | None:
    """What is wrong with a GPU: an event, or None."""
    ts_ns = gpu.noticed_ns or start.began_ns
    if gpu.died:
        why = f": {start.failures[0]}" if start.failures else ""
        return Event(EventKind.PROBE_FAILED, None, f"gpu-burn stopped on this GPU{why}", ts_ns, workload=workload)
    if gpu.wrong or gpu.verdict == "FAULTY":
        number = None if gpu.overflowed else gpu.errors or None
        counted = f"{number:,} wrong elements" if number else "wrong elements, and not how many"
        return Event(EventKind.WRONG_RESULT, None, f"gpu-burn found {counted}", ts_ns, workload=workload, n=number)
    return None


def _identities(start: _Start, rows: Rows) -> list[dict[str, Value]]:
    """Which GPU each of the tested ones is."""
    tested = len(start.gpus)
    devices = sorted(start.devices) if len(start.devices) == tested else list(range(tested))
    beyond = devices[-1] >= tested  # a number beyond the tested ones is that of `-i`
    if start.listed and not beyond and len(start.listed) != tested:
        if rows.options.gpu is None or tested > 1:
            raise InputError(
                f"{rows.file}: the node has {len(start.listed)} GPUs and gpu-burn tested {tested}, and nothing says "
                "which; give --gpu NAME, or cut the list of the others out of the log"
            )
        return [{"index": device} for device in devices]
    if len({model for model, _ in start.listed.values()}) > 1 and tested > 1:
        if rows.options.node is None and not start.host:
            raise InputError(
                f"{rows.file}: the node has GPUs of several models, which CUDA may number otherwise than nvidia-smi; "
                "give --node NAME if it ran with CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        return [{"index": device} for device in devices]
    if start.listed and all(device in start.listed for device in devices):
        return [
            {"gpu": start.listed[device][1], "model": start.listed[device][0], "index": device} for device in devices
        ]
    return [{"index": device} for device in devices]
