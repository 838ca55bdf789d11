"""One sentence that says whether a spread belongs to the GPUs."""

from __future__ import annotations

from ..statistics.repeatability import Repeatability, mean_of

SOME = 0.25
MOST = 0.5


def finding(
    level: str,
    icc: Repeatability,
    icc_job: Repeatability,
    runs: float,
) -> str:
    """The sentence for one level. `runs`: the median number of runs per GPU.

    It depends on two numbers: the ICC by GPU, and the ICC of the rows inside the fences. At GPU level both are first
    turned into the repeatability of a GPU's median of `runs` runs (Spearman-Brown formula; it holds for a mean, and
    nearly for a median under symmetric noise). docs/statistics.md has the table of cases.
    """
    if icc.value is None:
        if icc.alike:
            return "Every run took the same time: there is no spread."
        return f"It is not known whether the spread belongs to the GPUs: {icc.reason}."
    trimmed = icc.value if icc.trimmed is None else icc.trimmed
    at_runs = level == "run"
    of, inside, low, high = (
        None if part is None else part if at_runs else mean_of(part, runs)
        for part in (icc.value, trimmed, icc.low, icc.high)
    )
    assert of is not None
    assert inside is not None
    shown = f"ICC by GPU {icc.value:.2f}"
    if icc.low is not None and icc.high is not None:
        shown += f", 95 % interval {icc.low:.2f} to {icc.high:.2f}"
    shown += f"; inside the fences {trimmed:.2f}"
    if not at_runs:
        shown += f"; of a median of {runs:g} runs {of:.2f}"
    coupled = icc_job.value is not None and icc_job.value >= MOST
    if coupled and max(of, inside) < MOST and inside < SOME:
        low = high = None  # what the jobs take cannot belong to the GPUs, however wide the interval
    if low is not None and high is not None and low < SOME and high > MOST:
        jobs = f"; the runs of one job share their time (ICC by job {icc_job.value:.2f})" if coupled else ""
        return f"There are too few data to say whether the spread belongs to the GPUs ({shown}){jobs}."
    if of >= MOST and inside >= MOST:
        text = f"The GPUs differ and the difference repeats ({shown})"
    elif of >= MOST:
        text = f"Only the GPUs outside the fences differ in a way that repeats; the others differ less ({shown})"
    elif inside >= MOST:
        text = f"The GPUs differ and the difference repeats, but a few extreme runs hide it ({shown})"
    elif _of_no_gpu(of, inside, low, high):
        text = f"The spread is real but does not belong to the GPUs ({shown})"
        if coupled:
            text += f": the runs of one job share their time (ICC by job {icc_job.value:.2f})"
        text += "; do not rank GPUs by it"
    else:
        text = f"Part of the spread belongs to the GPUs, part does not repeat ({shown})"
    return text + "."


def _of_no_gpu(of: float, inside: float, low: float | None, high: float | None) -> bool:
    too_few = low is not None and high is not None and low < SOME and high > MOST
    return not too_few and max(of, inside) < MOST and min(of, inside) < SOME
