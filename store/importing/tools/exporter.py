"""Pages of exporters: what `curl` saved of one, or of a Prometheus, one page or several; or the JSON of its queries.

A row is a GPU at the time of the page: its time stamps where it has some (also of many scrapes, as promtool's `tsdb
dump` and `dump-openmetrics` write them), else a line with a time in front of it, else --at (and --every for several).
The series of a query become the page that says the same.

Which job had a GPU say the label `hpc_job` of dcgm-exporter, and the gauges `nvidia_gpu_jobId` and `nvidia_gpu_jobUid`
of jobstats. A job began where the file shows it first, and ended where it shows it last; it runs where the last
reading of its GPU still shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ....errors import InputError
from ...exposition import gpus, text
from ...vocabulary import JobSource
from ..meanings import REASON_BITS, TELEMETRY_MEANINGS, labelled
from ..rows import Rows, Value
from ..times import Times

NAME = "prometheus"

_NS = 10**9
BEGIN = re.compile(
    r"^\s*# (?:HELP|TYPE) [A-Za-z_:][A-Za-z0-9_:]* \S|^\s*(?:DCGM|dcgm|nvidia_smi|nvidia_gpu)_[A-Za-z0-9_]+\{|"
    r"^\{__name__=\"",
    re.MULTILINE,
)
ANSWER = re.compile(r'\s*\{\s*"status"\s*:\s*"(?:success|error)"')
_NAMES = {meaning.column: labelled(meaning, meaning.unit) for meaning in TELEMETRY_MEANINGS if meaning.column}
_OURS = re.compile("^(?:DCGM|NVIDIA)_(?:FI|EXP|SMI|GPU)_")  # of what is told when it is not stored
_SHOWN = 6
_MOST_XID = 100_000
_XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
_REASON = re.compile(rf"nvidia_smi_clocks_(?:event|throttle)_reasons_({'|'.join(REASON_BITS)})(?:_active)?")
_JOB_LABEL, _JOB_GAUGE, _USER_GAUGE = "hpc_job", "nvidia_gpu_jobId", "nvidia_gpu_jobUid"


@dataclass(slots=True)
class _Reading:
    """What the file says of one GPU at one time (a text, or ns).

    `values` are by metric: the rank and the number. `jobs` are by what tells of them.
    """

    line: int
    whose: gpus.Whose
    when: str | int
    labels: dict[str, Value] = field(default_factory=dict)
    values: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    xid: int | None = None
    xid_counts: dict[int, tuple[int, int]] = field(default_factory=dict)  # XID -> count, and of how many ms
    reasons: int | None = None
    measured: bool = False  # it says more than who had the GPU
    jobs: dict[str, set[str]] = field(default_factory=dict)
    user: str | None = None

    @property
    def place(self) -> tuple[str, str | int]:
        """Its host, "" where it is not known, and its time."""
        return str(self.labels.get("node", "")), self.when


def read_answer(answer: str, rows: Rows) -> None:
    """Add a row for each GPU and time in the answer. Raises InputError where it has no series of GPUs."""
    read(page_of(answer, rows), rows)


def page_of(answer: str, rows: Rows) -> str:
    """The page that says what an answer of a Prometheus says. Raises InputError where that has no series."""
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise InputError(f"{rows.file} is cut short or damaged ({error}); save the answer again") from error
    if document["status"] == "error":
        raise InputError(f"{rows.file}: the Prometheus answered with an error: {str(document.get('error'))[:200]}")
    try:
        page = "\n".join(_lines_of(document["data"]["result"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{rows.file} is an answer of a Prometheus without series of values; query a metric under /api/v1/query or "
            "/api/v1/query_range"
        ) from error
    if "{" in page and not re.search("^[A-Za-z_:]", page, re.MULTILINE):
        raise InputError(
            f"{rows.file}: its series have no metric's name, as those of a function (rate, avg, ...); query the metric "
            "itself, for example DCGM_FI_DEV_POWER_USAGE"
        )
    return page


def _lines_of(all_series: list[dict[str, Any]]) -> Iterator[str]:
    for series in all_series:
        labels = {key: _escaped(label) for key, label in series["metric"].items()}
        name = labels.pop("__name__", "")
        listed = ",".join(f'{key}="{label}"' for key, label in labels.items())
        for time, value in series.get("values") or [series["value"]]:
            yield f"{name}{{{listed}}} {value} {round(float(time) * 1000)}"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def read(page: str, rows: Rows) -> None:
    """Add a row for each GPU and time in the text, and one for each job. Raises InputError where there is nothing."""
    readings = _readings(page, rows)
    keys = dict.fromkeys(reading.place for reading in readings)
    stamped = all(isinstance(time, int) for _, time in keys)
    places = {key: number for number, key in enumerate(sorted(keys) if stamped else keys)}
    readings.sort(key=lambda reading: places[reading.place])
    for reading in readings:
        if reading.measured:
            key = rows.add(reading.line, _row(reading))
            if reading.whose.instance is None:
                _tell_xids(key, reading, rows)
    _add_jobs(readings, rows)


def stamp_text(when: str | int) -> str:
    """A time, a text or ns, as rows have it."""
    return f"{when // _NS}.{when % _NS:09d}" if isinstance(when, int) else when


def samples(page: str, rows: Rows, times: PageTimes) -> Iterator[text.Sample]:
    """The series of all pages of a file. A line that cannot be read is refused, if it is no time in front of a page."""
    contents = page.split("\n")
    for line in text.lines(page):
        if isinstance(line, text.Sample) and line.value is not None:
            yield line
        elif not times.begins(contents[line.line - 1].strip()):
            if isinstance(line, text.Sample):
                yield line
            else:
                rows.refuse(line.line, line.why)


class PageTimes:
    """The times of the pages of a file, whose lines must be asked for in their order."""

    def __init__(self, rows: Rows) -> None:
        self._times = Times(rows)
        self._number = -1  # of the page; -1 before the first
        self._when: str | None = None
        self._series: set[str] = set()  # of this page

    def begins(self, line: str) -> bool:
        """Whether a line is a time, as `date` prints it, in front of a page."""
        if "{" in line or not self._times.begins(line, self._number + 1):
            return False
        self._series.clear()
        self._when = None
        return True

    def of(self, sample: text.Sample) -> str | int:
        """The time of a sample; a page without any ends where a series comes again."""
        if sample.stamp_ns is not None:
            return sample.stamp_ns
        name = repr(sample.series)
        if self._when is None or name in self._series:
            self._series.clear()
            self._number += 1
            self._when = self._times.of("", self._number)
        self._series.add(name)
        return self._when or ""


def _readings(page: str, rows: Rows) -> list[_Reading]:
    times, readings = PageTimes(rows), dict[tuple[str, str | int], _Reading]()
    about: dict[str, dict[str, Value]] = {}
    others: set[str] = set()  # metrics of GPUs that are not stored
    nameless = False

    for sample in samples(page, rows, times):
        name, labels = sample.series.name, sample.series.labels
        owner, place, reason = gpus.whose(labels), gpus.place(name, labels), _REASON.fullmatch(name)
        is_known = place is not None or reason is not None or name in (_JOB_GAUGE, _USER_GAUGE)
        is_known = is_known or name.upper() == _XID_COUNT
        if owner is not None and (described := gpus.about(name, labels)):
            about[owner.key] = described
        if owner is None or not is_known:
            nameless |= owner is None and (is_known or gpus.column(name) is not None)
            if not is_known and gpus.column(name) is None and _OURS.match(name.upper()):
                others.add(name)
            continue
        time = times.of(sample)
        owners = owner, owner if place is None else place.whose
        reading, of_place = (readings.setdefault((gpu.key, time), _Reading(sample.line, gpu, time)) for gpu in owners)
        for of_gpu in (reading, of_place):
            of_gpu.labels.update(gpus.described(labels))
            of_gpu.measured |= name not in (_JOB_GAUGE, _USER_GAUGE)
        number = int(sample.value) if sample.value is not None and 0 <= sample.value < 2**53 else 0
        if reason is not None:
            reading.reasons = (reading.reasons or 0) | (REASON_BITS[reason[1]] if number else 0)
        elif name == _USER_GAUGE:
            reading.user = str(number)
        elif name == _JOB_GAUGE:
            reading.jobs.setdefault(name, set()).update([str(number)] if number else [])
        elif place is None:
            xid, window = labels.get("xid", ""), labels.get("window_size_in_ms", "")
            if xid.isdecimal() and 0 < int(xid[:7]) < _MOST_XID:
                reading.xid_counts[int(xid)] = (number, int(window[:12]) if window.isdecimal() else 0)
        else:
            if name.upper().startswith("DCGM_"):
                job = labels.get(_JOB_LABEL, "").strip()
                reading.jobs.setdefault(_JOB_LABEL, set()).update([job] if job not in ("", "0") else [])
            _put(sample, place, of_place, rows)
    listed = ", ".join(sorted(others)[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    if not readings:
        why = f"whorl knows none of its metrics ({listed})" if listed else "no metric of DCGM is on the page"
        why = "its series have no UUID of a GPU" if nameless else why
        raise InputError(f"{rows.file}: {why}: nothing to import")
    if listed:
        rows.note(f"metrics without a column: {listed}")
    for reading in readings.values():
        reading.labels = about.get(reading.whose.key, {}) | reading.labels
    return list(readings.values())


def _put(sample: text.Sample, place: gpus.Place, reading: _Reading, rows: Rows) -> None:
    column = place.column
    if column is None:
        number = sample.value if sample.value is not None and 0 < sample.value < _MOST_XID else 0
        reading.xid = max(int(number), reading.xid or 0)
        return
    value, why = gpus.scaled(sample.value, column)
    metric = column.metric.name
    rank, stored = reading.values.get(metric, (place.rank + 1, None))
    if place.rank < rank:
        reading.values[metric] = (place.rank, value)
        if why == "impossible":
            rows.note(f"line {sample.line}: {metric} cannot be {sample.text}, so NULL is stored")
    elif place.rank == rank and stored not in (value, None):
        reading.values[metric] = (rank, None)
        rows.note(f"line {sample.line}: {metric} has two values for one GPU at one time, so NULL is stored")


def _row(reading: _Reading) -> dict[str, Value]:
    labels, instance = reading.labels, reading.whose.instance
    row: dict[str, Value] = {
        "timestamp": stamp_text(reading.when),
        "gpu": reading.whose.uuid,
        "index": labels.get("slot"),
    }
    row |= {"instance": f"GI{instance}"} if instance is not None else {}
    row |= {name: label for name, label in labels.items() if name != "slot" and (name != "mig_profile" or instance)}
    row |= {"clock_event_reasons": reading.reasons} if reading.reasons is not None else {}
    return row | {_NAMES[metric]: number for metric, (_, number) in reading.values.items()}


def _tell_xids(key: int, reading: _Reading, rows: Rows) -> None:
    """An event where the count of an XID rises, or the last XID of a GPU is another than before."""
    gpu, ts_ns = reading.whose.uuid, reading.when if isinstance(reading.when, int) else None
    counts = {code: count for code, (count, _) in reading.xid_counts.items()}
    recent = bool(counts) and all(window_ms for _, window_ms in reading.xid_counts.values())
    rows.xids(key, gpu, counts, ts_ns, source="count", recent=recent)
    if reading.xid is not None:
        rows.xids(key, gpu, {reading.xid: 1}, ts_ns, source="last")


def _add_jobs(readings: list[_Reading], rows: Rows) -> None:
    """Who had each GPU: a job, from the reading that shows it first to the one that shows it last. What jobstats says
    comes before labels."""
    source = _JOB_GAUGE if any(_JOB_GAUGE in reading.jobs for reading in readings) else _JOB_LABEL
    present: dict[str, dict[str, tuple[_Reading, _Reading]]] = {}  # GPU -> job -> its first and last reading
    for reading in readings:
        if source in reading.jobs:
            running = present.setdefault(reading.whose.key, {})
            for job in running.keys() - reading.jobs[source]:
                _add_job(job, running.pop(job), rows, ended=True)
            for job in reading.jobs[source]:
                running[job] = (running.get(job, (reading, reading))[0], reading)
    for running in present.values():
        for job, span in running.items():
            _add_job(job, span, rows, ended=False)


def _add_job(job: str, span: tuple[_Reading, _Reading], rows: Rows, *, ended: bool) -> None:
    first, last = span
    values: dict[str, Value] = {"job": job, "gpu": first.whose.key, "node": first.place[0] or rows.options.node}
    ended_text = stamp_text(last.when) if ended else None
    values |= {"user": first.user, "began": stamp_text(first.when), "ended": ended_text}
    rows.allocation(first.line, values, JobSource.EXPORTER)
