"""Whether a spread belongs to the GPUs: a code for programs, one sentence for people, and the workload to lead with."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from ..statistics.repeatability import Repeatability, mean_of

SOME = 0.25
MOST = 0.5


class Belongs(StrEnum):
    """Whether a spread belongs to the GPUs. docs/how-we-know/statistics.md has the table of cases."""

    GPUS = "gpus"
    """The GPUs differ and the difference repeats."""
    HIDDEN = "hidden"
    """The same, but a few extreme runs hide it."""
    OUTLIERS = "outliers"
    """Only the GPUs outside the fences differ in a way that repeats."""
    PART = "part"
    """A part of it repeats."""
    UNKNOWN = "unknown"
    """There are no repetitions, or too few GPUs."""
    TOO_FEW = "too few"
    """The interval is too wide to say."""
    NONE = "none"
    """It belongs to something else: the runs, or their jobs."""
    ALIKE = "alike"
    """There is no spread."""


_ORDER = (
    (Belongs.GPUS, Belongs.HIDDEN),
    (Belongs.OUTLIERS, Belongs.PART),
    (Belongs.UNKNOWN, Belongs.TOO_FEW),
    (Belongs.NONE, Belongs.ALIKE),
)


class Leading(NamedTuple):
    """The workload to lead with, and whether its spread belongs to the GPUs."""

    workload: str
    belongs: Belongs


def leading(spreads: Iterable[tuple[str, float | None, Belongs]]) -> Leading | None:
    """Of (workload, width of the spread of its GPUs in %, whether it belongs to them) the one to lead with.

    It is the widest spread that belongs to the GPUs; without one, the widest of which a part does, then the widest of
    which nobody knows. None where no spread has a width.
    """
    known = [(workload, width, belongs) for workload, width, belongs in spreads if width is not None]
    for several in _ORDER:
        widths = {workload: (width, belongs) for workload, width, belongs in known if belongs in several}
        if widths:
            workload = max(widths, key=lambda name: widths[name][0])
            return Leading(workload, widths[workload][1])
    return None


class _Repeats(NamedTuple):
    """How much of a spread repeats: all rows, those inside the fences, and the 95 % interval of the first."""

    every: float
    inside: float
    low: float | None
    high: float | None
    belongs: Belongs
    coupled: bool
    """Whether the runs of one job share their time."""


def _repeats(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> _Repeats | None:
    """None where the ICC is not known. At GPU level both are turned into the repeatability of a GPU's median of `runs`
    runs (Spearman-Brown formula; it holds for a mean, and nearly for a median under symmetric noise)."""
    if icc.value is None:
        return None
    trimmed = icc.value if icc.trimmed is None else icc.trimmed
    every, inside, low, high = (
        None if part is None else part if level == "run" else mean_of(part, runs)
        for part in (icc.value, trimmed, icc.low, icc.high)
    )
    assert every is not None
    assert inside is not None
    coupled = icc_job.value is not None and icc_job.value >= MOST
    if coupled and max(every, inside) < MOST and inside < SOME:
        low = high = None  # what the jobs take cannot belong to the GPUs, however wide the interval
    if low is not None and high is not None and low < SOME and high > MOST:
        belongs = Belongs.TOO_FEW
    elif every >= MOST and inside >= MOST:
        belongs = Belongs.GPUS
    elif every >= MOST:
        belongs = Belongs.OUTLIERS
    elif inside >= MOST:
        belongs = Belongs.HIDDEN
    elif min(every, inside) < SOME:
        belongs = Belongs.NONE
    else:
        belongs = Belongs.PART
    return _Repeats(every, inside, low, high, belongs, coupled)


def belongs_to(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> Belongs:
    """Whether the spread of one level belongs to the GPUs. `runs`: the median number of runs per GPU.

    It depends on two numbers: the ICC by GPU, and the ICC of the rows inside the fences.
    """
    repeats = _repeats(level, icc, icc_job, runs)
    if repeats is None:
        return Belongs.ALIKE if icc.alike else Belongs.UNKNOWN
    return repeats.belongs


def finding(level: str, icc: Repeatability, icc_job: Repeatability, runs: float) -> str:
    """The sentence of `belongs_to`, with its numbers."""
    repeats = _repeats(level, icc, icc_job, runs)
    if repeats is None or icc.value is None:
        if icc.alike:
            return "Every run took the same time: there is no spread."
        return f"It is not known whether the spread belongs to the GPUs: {icc.reason}."
    trimmed = icc.value if icc.trimmed is None else icc.trimmed
    shown = f"ICC by GPU {icc.value:.2f}"
    if icc.low is not None and icc.high is not None:
        shown += f", 95 % interval {icc.low:.2f} to {icc.high:.2f}"
    shown += f"; inside the fences {trimmed:.2f}"
    if level != "run":
        shown += f"; of a median of {runs:g} runs {repeats.every:.2f}"
    jobs = f"the runs of one job share their time (ICC by job {icc_job.value:.2f})" if repeats.coupled else ""
    text = {
        Belongs.TOO_FEW: "There are too few data to say whether the spread belongs to the GPUs",
        Belongs.GPUS: "The GPUs differ and the difference repeats",
        Belongs.OUTLIERS: "Only the GPUs outside the fences differ in a way that repeats; the others differ less",
        Belongs.HIDDEN: "The GPUs differ and the difference repeats, but a few extreme runs hide it",
        Belongs.NONE: "The spread is real but does not belong to the GPUs",
        Belongs.PART: "Part of the spread belongs to the GPUs, part does not repeat",
    }[repeats.belongs]
    text += f" ({shown})"
    if repeats.belongs is Belongs.TOO_FEW and jobs:
        text += f"; {jobs}"
    if repeats.belongs is Belongs.NONE:
        text += f": {jobs}; do not rank GPUs by it" if jobs else "; do not rank GPUs by it"
    return text + "."
