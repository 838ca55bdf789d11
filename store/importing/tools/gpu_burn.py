"""The log of gpu-burn: progress of all GPUs on one line that is written again and again, then a verdict on each GPU.

Each new Gflop/s of a GPU is a repeat of its run. The first one is left out if there are others, as it has the start in
it. Errors are counted anew after each summary, and a counter that wrapped round says only that there were errors. The
duration is that of 1e12 FLOP at the rate.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ....errors import InputError
from ...events import Event
from ...vocabulary import EventKind, Outcome
from ..lines import written
from ..rows import Rows, Value, at_rate, record_of
from ..times import Times, instant, text_of_ns

_MOST_ERRORS = 2**31 - 1  # gpu-burn counts in 32 bits
_MOST_GPUS = 1024
_PROGRESS = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%\s+proc'd:")
_PARTS = re.compile(r"(proc'd|errors|temps|power):")
_RATE = re.compile(r"(-?[0-9]+)\s+\(\s*([0-9]+(?:\.[0-9]+)?|-?nan|inf)\s+Gflop/s\)")
_ERRORS = re.compile(r"(-?[0-9]{1,20})(?![0-9])")
_READINGS = {  # part of the progress -> what it holds, and a number of it
    "temps": ("temperature [C]", re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*C\b")),
    "power": ("power [W]", re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*W\b")),
}
_LISTED = re.compile(r"^\s*GPU\s+([0-9]{1,4}):\s+(.+?)\s+\(UUID:\s*(GPU-[0-9a-fA-F-]{36})\)", re.MULTILINE)
_INITIALISED = re.compile(r"Initialized device ([0-9]{1,4}) with .*?using (FLOATS|DOUBLES)(.*)$", re.MULTILINE)
_DURATION = re.compile(r"Burning for ([0-9]{1,9}) seconds")
_VERDICT = re.compile(r"^\s*GPU\s+([0-9]{1,4}):\s+(OK|FAULTY)\s*$", re.MULTILINE)
_TESTED = re.compile(r"Tested ([0-9]{1,4}) GPUs:")
_SUMMARY = re.compile(r"Summary at:\s*(.*?)\s*$")
_FAILURE = re.compile(
    r"(?:Couldn't init a GPU test:|Failure during compute:|Couldn't init CUDA:|No CUDA devices)[^\r\n]{0,180}"
)
_ABOUT_GPUS = re.compile(f"{_LISTED.pattern}|{_INITIALISED.pattern}", re.MULTILINE)


@dataclass
class _Gpu:
    """What the progress says of a GPU: `rates` are Gflop/s with their lines, `wrong` whether its results had errors."""

    matrices: int = 0
    rates: list[tuple[float, int]] = field(default_factory=list)
    readings: dict[str, list[float]] = field(default_factory=dict)
    errors: int = 0
    since_summary: int = 0
    wrong: bool = False
    overflowed: bool = False
    died: bool = False
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
    """One start of gpu-burn: the pieces of its log, each with its line.

    `front` has the lines before them that may be about its GPUs.
    """

    line: int = 1
    front: str = ""
    pieces: list[tuple[int, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole log of it."""
        return "\n".join(piece for _, piece in self.pieces)


def fits(head: str) -> bool:
    """Whether a file that begins so is a log of gpu-burn."""
    return bool(("proc'd:" in head and _RATE.search(head)) or _DURATION.search(head) or _TESTED.search(head))


def read(text: str, rows: Rows) -> None:
    """Add the runs of every GPU of each start in the log. Raises InputError where it does not say which GPUs they are,
    or has no result."""
    count = len(rows)
    for start in list(_starts(written(text), rows)):
        _add(start, rows)
    if len(rows) == count:
        why = _failure(text) or "there is no Gflop/s in it"
        raise InputError(f"{rows.file}: gpu-burn measured nothing: {why}")


def _pieces(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The pieces of the log, each with its line: progress overwrites itself, with or without a carriage return."""
    for number, line in lines:
        for part in line.split("\r"):
            starts = [0, *(progress.start() for progress in _PROGRESS.finditer(part)), len(part)]
            yield from ((number, part[begin:end]) for begin, end in pairwise(starts) if part[begin:end].strip())


def _starts(lines: Iterable[tuple[int, str]], rows: Rows) -> Iterator[_Start]:
    """The starts in a log. One begins behind the verdicts, where progress falls, or where other GPUs are listed.

    The order of other lines says nothing: each process writes what it has buffered when it ends.
    """
    start, percent, judged = _Start(), 0.0, False
    uuids: dict[str, str] = {}  # of the list of GPUs, by number
    for line, piece in _pieces(lines):
        entry, progress, verdict = _LISTED.match(piece), _PROGRESS.match(piece), _VERDICT.match(piece)
        fallen = progress is not None and float(progress[1]) < percent
        another = entry is not None and uuids.get(entry[1], entry[3]) != entry[3]
        if (judged and not verdict) or fallen or another:
            yield start
            if another and not percent and not _failure(start.text):
                raise InputError(
                    f"{rows.file}: line {line} lists another GPU than before under the same number: the outputs of "
                    "several hosts are mixed; write a file for each host (srun --output=%N.log)"
                )
            front = ""
            if entry is None and not _TESTED.search(start.text):  # what stands before it may be of the new start, too
                lines_about = dict.fromkeys(match[0] for match in _ABOUT_GPUS.finditer(start.front + start.text))
                front = "".join(f"{text}\n" for text in lines_about)
            start, percent, judged, uuids = _Start(line, front), 0.0, False, uuids if front else {}
        start.pieces.append((line, piece))
        percent = float(progress[1]) if progress is not None else percent
        judged |= verdict is not None
        uuids |= {} if entry is None else {entry[1]: entry[3]}
    yield start


def _failure(text: str) -> str:
    """Why gpu-burn stopped, "" where the text does not say so."""
    match = _FAILURE.search(text)
    return match[0].strip() if match is not None else ""


def _measured(start: _Start, rows: Rows) -> tuple[list[_Gpu], int | None]:
    """What the progress says of each GPU, and when the start began (ns since 1970, UTC), from its first summary."""
    gpus: list[_Gpu] = []
    seconds = sum(int(number) for number in _DURATION.findall(start.text)[-1:])
    percent, began_ns = 0.0, None
    for line, piece in start.pieces:
        if (progress := _PROGRESS.match(piece)) is not None:
            percent = float(progress[1])
            _progress(gpus, line, piece)
        elif (summary := _SUMMARY.search(piece)) is not None:
            ns = _instant(summary[1], rows)
            if began_ns is None and ns is not None:
                began_ns = ns - round(seconds * percent * 1e7)
            for gpu in gpus:
                gpu.since_summary = 0
                gpu.noticed_ns = ns if gpu.wrong and gpu.noticed_ns is None else gpu.noticed_ns
    _grow(gpus, sum(int(number) for number in _TESTED.findall(start.text)[-1:]))
    return gpus, began_ns


def _progress(gpus: list[_Gpu], line: int, piece: str) -> None:
    words = _PARTS.split(piece)
    parts = dict(zip(words[1::2], words[2::2], strict=True))
    rates = _RATE.findall(parts.pop("proc'd", ""))
    _grow(gpus, len(rates))
    for gpu, (count, rate) in zip(gpus, rates, strict=False):
        matrices = int(count)
        gpu.died |= matrices == -1
        if matrices > gpu.matrices and 0 < float(rate) < float("inf"):  # else it is the last one again
            gpu.rates.append((float(rate), line))
        gpu.matrices = max(matrices, gpu.matrices)
    for name, part in parts.items():
        for gpu, text in zip(gpus, re.split(r"\s+-\s+", part.strip()), strict=False):
            if name == "errors":
                gpu.count(text)
            elif (match := _READINGS[name][1].match(text)) is not None:
                gpu.readings.setdefault(_READINGS[name][0], []).append(float(match[1]))


def _grow(gpus: list[_Gpu], number: int) -> None:
    gpus += [_Gpu() for _ in range(min(number, _MOST_GPUS) - len(gpus))]


def _instant(date: str, rows: Rows) -> int | None:
    stamp = Times(rows).of(date, 0) if date else None
    try:
        if stamp is not None:
            return instant(stamp, rows.options.time_zone, rows.file)
    except InputError:  # a date that no calendar has
        pass
    rows.note(
        f"gpu-burn's time {date[:40]!r} cannot be read: --at says when it ran (LC_ALL=C gpu_burn ... writes it so)"
    )
    return None


def _add(start: _Start, rows: Rows) -> None:
    gpus, began_ns = _measured(start, rows)
    if not gpus:
        return
    about_gpus = start.front + start.text
    precisions = {
        "fp64" if word == "DOUBLES" else "tf32" if "tensor" in more.lower() else "fp32"
        for _, word, more in _INITIALISED.findall(about_gpus)
    }
    precision = precisions.pop() if len(precisions) == 1 else None
    workload = f"gpu-burn {precision}" if precision else "gpu-burn"
    verdicts = {int(number): verdict for number, verdict in _VERDICT.findall(start.text)}
    record = record_of(start.text)
    if not _TESTED.search(start.text):
        rows.note("the log of gpu-burn ends before its verdict: it was cut short or killed")
    for number, (gpu, identity) in enumerate(zip(gpus, _identities(start, len(gpus), rows), strict=True)):
        common: dict[str, Value] = identity | {"workload": workload, "precision": precision, "flop": 1e12}
        common |= {label: statistics.median(readings) for label, readings in gpu.readings.items()}
        common |= {"began": text_of_ns(began_ns)} if began_ns is not None else {}
        event = None
        if gpu.died:
            why = f": {failure}" if (failure := _failure(start.text)) else ""
            event = Event(EventKind.PROBE_FAILED, None, f"gpu-burn stopped on this GPU{why}")
        elif gpu.wrong or verdicts.get(number) == "FAULTY":
            errors = None if gpu.overflowed else gpu.errors or None
            counted = f"{errors:,} wrong elements" if errors else "wrong elements, and not how many"
            event = Event(EventKind.WRONG_RESULT, None, f"gpu-burn found {counted}", n=errors)
        if event is not None:
            status = Outcome.FAILED if event.kind == EventKind.PROBE_FAILED else Outcome.WRONG_RESULT
            common |= {"status": status, "status_detail": event.detail}
        repeats = [
            (line, common | at_rate("rate [GFLOP/s]", rate) | {"repeat": repeat})
            for repeat, (rate, line) in enumerate(gpu.rates[1:] or gpu.rates)
        ]
        if event is not None:
            repeats = repeats or [(start.line, common | {"repeat": 0})]
            repeats[0][1]["wrong_elements"] = event.n
        elif not repeats:
            rows.refuse(start.line, "gpu-burn has no Gflop/s of a GPU")
        keys = [rows.add(line, values, record) for line, values in repeats]
        if event is not None:
            rows.event(keys[0], replace(event, ts_ns=gpu.noticed_ns or began_ns, workload=workload))


def _identities(start: _Start, tested: int, rows: Rows) -> list[dict[str, Value]]:
    about_gpus = start.front + start.text
    listed = {int(number): (model, uuid) for number, model, uuid in _LISTED.findall(about_gpus)}
    devices = sorted({int(number) for number, _, _ in _INITIALISED.findall(about_gpus)})
    devices = devices if len(devices) == tested else list(range(tested))
    beyond = devices[-1] >= tested  # a number beyond the tested ones is that of `-i`
    of_others = bool(listed) and not beyond and len(listed) != tested
    if of_others and (rows.options.gpu is None or tested > 1):
        raise InputError(
            f"{rows.file}: the node has {len(listed)} GPUs and gpu-burn tested {tested}, and nothing says which; give "
            "--gpu NAME, or cut the list of the others out of the log"
        )
    several_models = len({model for model, _ in listed.values()}) > 1 and tested > 1
    if several_models and rows.options.node is None and not rows.host:
        raise InputError(
            f"{rows.file}: the node has GPUs of several models, which CUDA may number otherwise than nvidia-smi; give "
            "--node NAME if it ran with CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    if of_others or several_models or not all(device in listed for device in devices):
        return [{"index": device} for device in devices]
    return [{"gpu": listed[device][1], "model": listed[device][0], "index": device} for device in devices]
