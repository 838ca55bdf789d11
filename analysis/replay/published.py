"""PAL's simulation (SC'24) as its artifact runs it, on whorl's replay: what makes the published numbers come out.

16 nodes of 4 GPUs, rounds of 360 s, scores drawn from rows of the Longhorn profiles, no cost of moving a job, and a
stream of jobs that never ends. Profiles are times of runs on TACC's Longhorn, in four files of the SC'22 study, as
published; a class of jobs takes one of them. Class C takes BERT's file again, as the artifact does, and SGEMM's file
stays unused. docs/how-we-know/replay.md says what of this is an oddity of the artifact. For a question about a real
fleet use `replay` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from .engine import replay
from .fleet import Floats, Ints
from .jobs import Job, Trace
from .options import Options
from .outcome import Outcome
from .policies.placements import Packed
from .trace_text import TraceText, delimited, first_line, headings, text_of
from .traces import TraceOptions, read_trace
from .world import View, World

CLASSES = ("A", "B", "C", "D")  # from the most sensitive to the GPU to the least: compute-bound to memory-bound
_CLASS_OF_MODEL = {"BERT": "B", "DCGAN": "B", "GPT2": "B", "PointNet": "D", "vgg19": "C"}


def class_of(model: str) -> str:
    """The class whose scores apply to a model; one that PAL names no class for is in A."""
    return _CLASS_OF_MODEL.get(model, "A")


def published_trace(path: Path) -> Trace:
    """The trace at `path`, CSV, plain or compressed. Its `duration` counts iterations, whatever the column's name says.

    The arrival process takes jobs by submit time: others are sorted, ties in the file's order, and a note says so.
    Raises InputError, with the line, if a column is missing or a job cannot be run.
    """
    trace = read_trace(path, "csv", TraceOptions("iterations"))
    jobs = tuple(replace(job, workload=class_of(job.model)) for job in trace.jobs)
    return replace(trace, jobs=jobs, notes=tuple(f"{path.name}: {note}" for note in trace.notes if "sorted" in note))


_EXPERIMENT_OF_CLASS = dict(zip(CLASSES, ("resnet", "bert", "bert", "pagerank"), strict=True))
_PUBLISHED_ROWS = {"resnet": 1404, "bert": 1096, "pagerank": 880, "sgemm": 11087}
"""By what the column `exp` of a published file says."""


@dataclass(frozen=True)
class Profiles:
    """Times by class, each (rows,) in the order of its file, any unit, higher is slower."""

    perf: dict[str, Floats]
    notes: tuple[str, ...] = ()

    def relative(self) -> dict[str, Floats]:
        """(rows,) by class: each time over the median of the file's rows."""
        return {name: times / np.median(times) for name, times in self.perf.items()}


def profiles(paths: Sequence[Path]) -> Profiles:
    """The profiles in these files, and in the CSV files of these folders, in any order, plain or compressed.

    Which file is which is read from its column `exp`. A copy of a file counts once. Raises InputError where a file is
    no profile (in a folder it is passed over), where two differing files hold one profile, and where a class has none.
    """
    files: dict[str, Path] = {}
    perf: dict[str, Floats] = {}
    for path in paths:
        inside = sorted(file for ending in ("*.csv", "*.csv.gz", "*.csv.zst") for file in path.glob(ending))
        for file in inside if path.is_dir() else [path]:
            text = text_of(file)
            table = delimited(file, text) if "exp" in headings(first_line(text)) else None
            experiment = _experiment(table) if table else ""
            if not experiment and file == path:
                raise InputError(
                    f"{file} is not one of the published profiles: it has no column `exp` that says "
                    f"{', '.join(_PUBLISHED_ROWS)}"
                )
            if table is None or experiment not in _EXPERIMENT_OF_CLASS.values():
                continue
            table.need("perf", do="Give the file as it was published")
            numbers = table.number("perf")
            table.check(pl.lit(numbers) <= 0, "perf is {perf}; it must be above 0")
            times = numbers.to_numpy()
            if not np.array_equal(perf.setdefault(experiment, times), times):
                raise InputError(f"{files[experiment]} and {file} both have {experiment} runs; give only one of them")
            files.setdefault(experiment, file)
    missing = {name: experiment for name, experiment in _EXPERIMENT_OF_CLASS.items() if experiment not in perf}
    if missing:
        raise InputError(
            f"no profile of {' and '.join(dict.fromkeys(missing.values()))} runs was given, which class "
            f"{' and '.join(missing)} of jobs needs; there is {' and '.join(perf) or 'none'} in "
            f"{', '.join(map(str, paths)) or 'no file at all'}"
        )
    notes = tuple(
        f"{files[experiment].name} has {perf[experiment].size:,} rows where the published file has {rows:,}: the "
        "draws, and all that follows, differ from the published ones"
        for experiment, rows in _PUBLISHED_ROWS.items()
        if experiment in perf and perf[experiment].size != rows
    )
    return Profiles({name: perf[experiment] for name, experiment in _EXPERIMENT_OF_CLASS.items()}, notes)


def _experiment(table: TraceText) -> str:
    """Which published file it is by its column `exp`; "" for another."""
    texts = table.frame["exp"].str.to_lowercase()
    return next((name for name in _PUBLISHED_ROWS if texts.str.starts_with(name).all()), "")


def drawn_scores(relative: Mapping[str, Floats], gpus: int, seed: int) -> tuple[dict[str, Floats], Random]:
    """(gpus,) scores by class, drawn from the rows of `relative`, and the generator where the draws leave it.

    Python's own generator, never NumPy's, since the published numbers rest on its very bits; random placements go on
    with it. GPU by GPU and class by class one row is drawn, each for itself: the artifact looks a GPU up under a
    number where the profile has UUIDs, finds nothing, and falls back to any row. So one GPU's scores are independent
    between classes, and the noise of single runs is in them.
    """
    generator = Random(seed)  # noqa: S311  (a simulation, not a secret)
    rows = {name: relative[name].tolist() for name in CLASSES}
    scores = [[generator.choice(rows[name]) for name in CLASSES] for _ in range(gpus)]
    return {name: np.array(column) for name, column in zip(CLASSES, zip(*scores, strict=True), strict=True)}, generator


def outlying(scores: Floats) -> NDArray[np.bool_]:
    """(gpus,) whether each of `scores` (gpus,) is beyond mean + 3 sd (ddof 1): PAL's outliers, on the slow side."""
    if scores.size < 2:
        return np.zeros(scores.size, dtype=np.bool_)
    return np.asarray(scores > scores.mean() + 3 * scores.std(ddof=1))


def levels(scores: Floats) -> Floats:
    """(gpus,) scores (gpus,) in the few levels by which PM-First and PAL distinguish GPUs; run times never use them.

    Groups by k-means, k being two and one more for every outlier, and each GPU has its group's mean over the median of
    these means. PAL's search for a number of groups always ends at two, its first candidate.
    """
    group = grouped(scores, 2 + int(np.count_nonzero(outlying(scores))))
    means = np.bincount(group, weights=scores) / np.bincount(group)
    return np.asarray((means / np.median(means))[group])


def grouped(values: Floats, groups: int) -> Ints:
    """(n,) the group of each of `values` (n,), numbered upwards: the grouping with the least squares about its means.

    The artifact asks scikit-learn for the best of ten random starts; in one dimension the best there is can be had
    exactly. Optimal groups are runs of the sorted values, so one more group is one pass over where it begins. Equal
    values stay together: there are `groups` groups, or as many as distinct values if these are fewer.
    """
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    groups = min(groups, distinct.size)
    if not groups:
        return np.zeros(0, dtype=np.int32)
    centred = distinct - distinct.mean()  # squares of what is left lose no digits
    terms = (counts.astype(np.float64), counts * centred, counts * centred * centred)
    weight, total, square = (np.subtract.outer(*2 * (np.concatenate(([0.0], np.cumsum(term))),)).T for term in terms)
    within = np.maximum(square - total * total / np.maximum(weight, 1.0), 0.0)  # [begin, end]
    within[weight < 0] = np.inf
    least, begins = within[0], []
    for _ in range(groups - 1):
        candidates = least[:, None] + within
        begins.append(candidates.argmin(axis=0))
        least = candidates.min(axis=0)
    group = np.zeros(distinct.size, dtype=np.int32)
    end = distinct.size
    for begin in reversed(begins):
        end = int(begin[end])
        group[end:] += 1
    # A group that rounding leaves empty has no number.
    return np.unique(group[inverse], return_inverse=True)[1].astype(np.int32)


POLICIES = ("packed-sticky", "packed-nonsticky", "random-sticky", "random-nonsticky", "pm-first", "pal")
"""Those of the artifact: what `all` means."""

BASELINE = "drain-outliers"
"""Packed-Sticky that never takes an outlier: not the artifact's, and what its numbers are to be read against."""

SCHEDULERS = ("fifo", "las", "srtf")

NODES, GPUS_PER_NODE = 16, 4
ROUND_S = 360.0
LOCALITY = 1.7
SEED = 42
PATIENCE_S = 3.6e6  # a job that has not run for this long goes first: it matters under LAS and SRTF alone, and seldom

_ARRIVALS_SEED = 1
_ARRIVALS_PER_HOUR = 2
LATER_JOBS = 10_000  # later arrivals after which a replay is given up: whorl's limit, the artifact has none


def pal_sc24(
    trace: Trace,
    profiles: Profiles,
    policy: str,
    scheduler: str = "fifo",
    *,
    seed: int = SEED,
    flat: bool = False,
    record: bool = False,
) -> Outcome:
    """A trace under one of `POLICIES` or `BASELINE`, and one of `SCHEDULERS`, as the artifact simulates it.

    Its figures are `Outcome.metrics(published=True)`. `seed` draws the scores and then the random placements; the
    artifact knows 42 alone. `flat`: the policy is shown 1 for every score. `record` is that of `replay`. Raises
    InputError as `replay` does, and where later arrivals keep a job of the trace from ever ending, as LAS lets them.
    """
    world, generator = published_world(profiles, seed=seed)
    world = world.flat() if flat else world
    options = Options(
        round_s=ROUND_S,
        rounds=True,
        quantised=True,
        stops_in_vain=True,
        patience_s=PATIENCE_S,
        others=partial(_later, trace),
        bins=levels,
        class_order=CLASSES,
        record=record,
    )
    row = _WithoutOutliers if policy == BASELINE else policy
    outcome = replay(trace, world, row, scheduler, options=options, seed=generator)
    return replace(outcome, policy=policy, seed=seed, notes=(*profiles.notes, *outcome.notes))


def published_world(profiles: Profiles, *, seed: int = SEED) -> tuple[World, Random]:
    """The artifact's 64 GPUs with the scores that it draws, and its generator, with which random placements go on."""
    scores, generator = drawn_scores(profiles.relative(), NODES * GPUS_PER_NODE, seed)
    return World.regular(NODES, GPUS_PER_NODE, scores, locality=LOCALITY), generator


class _WithoutOutliers(Packed):
    """Packed-Sticky without the GPUs whose score is an outlier (mean + 3 sd) in one of the trace's classes.

    Single GPUs, not nodes. Where too few would be left for the widest job, the least slow of them are kept.
    """

    name = BASELINE
    summary = "packed-sticky that never takes an outlier"
    aliases = ()
    blind = False

    def avoids(self, view: View) -> NDArray[np.bool_]:
        scores = view.beliefs.rates.scores
        avoided = np.zeros(len(view.fleet), dtype=np.bool_)
        worst = np.zeros(len(view.fleet))
        for name in sorted(view.classes & set(scores)):
            avoided |= outlying(scores[name])
            worst = np.maximum(worst, scores[name])
        lacking = view.widest - int(np.count_nonzero(~avoided))
        if lacking > 0:
            candidates = np.flatnonzero(avoided)
            avoided[candidates[np.argsort(worst[candidates], kind="stable")][:lacking]] = False
        return avoided


def _later(trace: Trace) -> Iterator[Job]:
    """The trace's jobs over and over, each whole seconds after the one before it: exponential, two an hour in the mean.

    They load the cluster until the last of the trace's own jobs is done. The generator is a new one for every run.
    """
    jobs = trace.jobs
    now = jobs[-1].submit_s
    generator = Random(_ARRIVALS_SEED)  # noqa: S311  (a simulation, not a secret)
    for copy in range(LATER_JOBS):
        now += math.ceil(-math.log(1 - generator.random()) / _ARRIVALS_PER_HOUR * 3600)
        job = jobs[copy % len(jobs)]
        yield replace(job, name=f"{job.name}, copy {copy // len(jobs) + 1}", submit_s=now)
    raise InputError(
        f"after {LATER_JOBS:,} later arrivals some jobs of the trace have not ended, and may never: "
        f"the copies that the published simulation goes on submitting ask for more than {NODES * GPUS_PER_NODE} GPUs "
        "can do, and this scheduler prefers them; use fifo for this trace"
    )
