"""PAL's simulation (SC'24) as its artifact runs it, on whorl's replay: what makes the published numbers come out.

16 nodes of 4 GPUs, rounds of 360 s, scores drawn from rows of the Longhorn profiles, no cost of moving a job, and a
stream of jobs that never ends. docs/how-we-know/replay.md says what of this is an oddity of the artifact. For a
question about a real fleet use `replay` itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .beliefs import View
from .engine import replay
from .job import Job, Trace
from .options import Arrivals, Options
from .outcome import Outcome
from .policies.packed import Packed
from .profiles import CLASSES, Profiles, drawn_scores, levels, outlying
from .world import World

POLICIES = ("packed-sticky", "packed-nonsticky", "random-sticky", "random-nonsticky", "pm-first", "pal")
"""Those of the artifact: what `all` means."""

BASELINE = "drain-outliers"
"""Packed-Sticky that never takes an outlier: not the artifact's, and what its numbers are to be read against."""

SCHEDULERS = ("fifo", "las", "srtf")

NODES, GPUS_PER_NODE = 16, 4
ROUND_S = 360.0
LOCALITY = 1.7
SEED = 42
PATIENCE_S = 3.6e6
"""A job that has not run for this long goes first: it matters under LAS and SRTF alone, and seldom."""

_ARRIVALS_SEED = 1
_ARRIVALS_PER_HOUR = 2
LATER_JOBS = 10_000
"""Later arrivals after which a replay is given up: whorl's limit, the artifact has none."""


def pal_sc24(
    trace: Trace,
    profiles: Profiles,
    policy: str,
    scheduler: str = "fifo",
    *,
    seed: int = SEED,
    clipped: bool = False,
    flat: bool = False,
    record: bool = False,
) -> Outcome:
    """A trace under one of `POLICIES` or `BASELINE`, and one of `SCHEDULERS`, as the artifact simulates it.

    Its figures are `Outcome.metrics(published=True)`. `seed` draws the scores and then the random placements; the
    artifact knows 42 alone. `clipped`: outlying scores are lowered to the next-worst GPU's. `flat`: the policy is shown
    1 for every score. `record` is that of `replay`. Raises InputError as `replay` does, and where later arrivals keep a
    job of the trace from ever ending, as LAS lets them.
    """
    world, generator = published_world(profiles, seed=seed, clipped=clipped)
    world = world.flat() if flat else world
    options = Options(
        round_s=ROUND_S,
        rounds=True,
        quantised=True,
        stops_in_vain=True,
        patience_s=PATIENCE_S,
        users=(lambda: Arrivals(_later(trace)),),
        bins=levels,
        class_order=CLASSES,
        record=record,
    )
    row = _WithoutOutliers if policy == BASELINE else policy
    outcome = replay(trace, world, row, scheduler, options=options, seed=generator)
    return replace(outcome, policy=policy, seed=seed, notes=(*profiles.notes, *outcome.notes))


def published_world(profiles: Profiles, *, seed: int = SEED, clipped: bool = False) -> tuple[World, Random]:
    """The artifact's 64 GPUs with the scores that it draws, and its generator, with which random placements go on."""
    scores, generator = drawn_scores(profiles.relative(), NODES * GPUS_PER_NODE, seed)
    if clipped:
        scores = {name: np.minimum(values, values[~outlying(values)].max()) for name, values in scores.items()}
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
