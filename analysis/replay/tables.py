"""Measured tables of how jobs run: pairs on one GPU, and curves over GPUs, nodes and batch sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from ...errors import InputError
from .fleet import Floats
from .jobs import job_type
from .trace_text import LINE, csv_of

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

ANY_WIDTH = 0  # in a table of pairs without numbers of GPUs: its rows hold for jobs of every width
_MOST_SHARE = 2.0  # more of its speed alone than noise can make of a job that shares a GPU


class JobType(NamedTuple):
    """What a table of pairs is read by."""

    model: str
    batch: int | None
    gpus: int

    def __str__(self) -> str:
        name = job_type(self.model or "a job without a model", self.batch)
        return f"{name} on {self.gpus} GPU{'' if self.gpus == 1 else 's'}"


@dataclass(frozen=True)
class Pairs:
    """The share of its solo speed that a job keeps beside another on the same GPUs."""

    shares: Mapping[tuple[tuple[str, int], tuple[str, int]], float]
    """((name, GPUs), (name of the other, its GPUs)) -> share of the solo speed, at most 1; 0: they do not fit."""
    notes: tuple[str, ...] = ()  # what reading chose or assumed, in sentences

    def find(self, job: JobType, beside: JobType) -> float | None:
        """The share that a job keeps; 0 if the two do not fit into the memory of a GPU, None if nothing says it.

        The table's name of a job is "MODEL (batch size N)" or, where it has no such name, the model alone.
        """
        first, second = self._name(job), self._name(beside)
        share = self.shares.get(((first, job.gpus), (second, beside.gpus)))
        return self.shares.get(((first, ANY_WIDTH), (second, ANY_WIDTH))) if share is None else share

    def share(self, job: JobType, beside: JobType) -> float:
        """The same for a pair that runs. Raises InputError where it is not in the table or does not fit."""
        share = self.find(job, beside)
        if share is None:
            raise InputError(
                f"the table of pairs does not say how fast {job} runs beside {beside}: add the pair, or do not share"
            )
        if not share:
            raise InputError(f"{job} and {beside} do not fit into the memory of one GPU, says the table of pairs")
        return share

    def _name(self, job: JobType) -> str:
        name = job_type(job.model, job.batch)
        return name if name in self._names else job.model

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for pair in self.shares for name, _ in pair)


def read_pairs(path: Path, gpu: str | None = None) -> Pairs:
    """A table of pairs: CSV, gzip if its name ends in .gz, with the columns job_a, job_b, a_share_of_solo,
    b_share_of_solo and, optionally, gpus_a, gpus_b (the rows then hold for jobs of these widths) and gpu.

    `gpu`: the rows of which GPU type are read; without it, those of the first in the file. A share of 0 or none is a
    pair that does not fit; shares above 1, to twice the speed, count as 1. Raises InputError.
    """
    solo_shares, widths = ("a_share_of_solo", "b_share_of_solo"), ("gpus_a", "gpus_b")
    table = csv_of(path, "job_a", "job_b", *solo_shares)
    table.add_absent("gpu", *widths)
    types = table.frame["gpu"].unique(maintain_order=True).to_list()
    if gpu is None:
        gpu = types[0]
    elif gpu not in types:
        raise InputError(f"{path} has no pairs of {gpu}; it has {', '.join(filter(None, types)) or 'no GPU types'}")
    notes = (f"{path.name}: the pairs of {gpu} are used, of {', '.join(types)}",) if len(types) > 1 else ()
    table.frame = table.frame.filter(gpu=gpu)
    table.add(
        *(table.nonnegative(name, ("",)).fill_null(0) for name in solo_shares),
        *(table.nonnegative(name, ("",)).fill_null(ANY_WIDTH) for name in widths),
    )
    for name in solo_shares:
        table.check(pl.col(name) > _MOST_SHARE, f"{name} is {{{name}}}: give shares of the speed alone, not percent")
    fit = pl.min_horizontal(solo_shares) > 0
    table.add(pl.when(fit).then(pl.col(solo_shares).clip(upper_bound=1)).otherwise(0.0))
    for name in widths:
        table.check(pl.col(name) != pl.col(name).floor(), f"{name} is {{{name}}}, which is not a whole number")
    shares: dict[tuple[tuple[str, int], tuple[str, int]], float] = {}
    rows = table.frame.select(LINE, "job_a", "gpus_a", "job_b", "gpus_b", *solo_shares).iter_rows()
    for line, job_a, gpus_a, job_b, gpus_b, share_a, share_b in rows:
        first, second = (job_a, int(gpus_a)), (job_b, int(gpus_b))
        if (first, second) in shares:
            raise InputError(f"{path}, line {line}: the pair of {job_a} and {job_b} stands there twice")
        shares[first, second], shares[second, first] = share_a, share_b
        if first == second:
            shares[first, second] = (share_a + share_b) / 2
    return Pairs(shares, notes)


Placement = tuple[int, ...]  # GPUs of a job by node


@dataclass(frozen=True)
class _Steps:
    """The measured steps of one application."""

    batches: Mapping[Placement, tuple[Floats, Floats]]
    """Placement, in its first rotation -> (n,) batch of one GPU, ascending, and (n, 2) seconds: step, communication."""
    points: Floats  # (m, 3) all that was measured: nodes, GPUs, batch of one GPU
    seconds: Floats  # (m, 2) at each point

    @cached_property
    def over_all(self) -> LinearNDInterpolator | None:
        """The step over nodes, GPUs and batch, for placements that were not measured; None: too few were measured."""
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import QhullError

        try:
            return LinearNDInterpolator(self.points, self.seconds)
        except QhullError:
            return None


@dataclass(frozen=True)
class StepCurves:
    """How long a step takes by placement and batch size, from a table like that of Pollux's simulator (OSDI'21)."""

    steps: Mapping[str, _Steps] = field(repr=False)  # application -> what was measured
    node_gpus: int = 4  # GPUs of the nodes on which it was measured

    def __contains__(self, model: str) -> bool:
        """Whether jobs of a model have a curve; those without are rigid."""
        return model in self.steps

    def step_s(self, application: str, placement: Sequence[int], local_batch: float) -> tuple[float, float]:
        """Seconds of a step with this batch on each GPU, and the part of them that is communication.

        Linear between the measured batches of a placement; rotations of a placement are equal. For a placement that
        was not measured, linear in nodes, GPUs and batch over all. Raises InputError outside what was measured.
        """
        steps = self.steps[application]
        step = sync = math.nan
        batches, seconds = steps.batches.get(_rotation(placement), (None, None))
        if batches is not None and seconds is not None and batches[0] <= local_batch <= batches[-1]:
            step, sync = (float(np.interp(local_batch, batches, seconds[:, column])) for column in (0, 1))
        elif steps.over_all is not None:
            step, sync = steps.over_all([[len(placement), sum(placement), local_batch]])[0].tolist()
        if math.isnan(step):
            raise InputError(
                f"the curve of {application} does not reach to {sum(placement)} GPUs on {len(placement)} nodes with a "
                f"batch of {local_batch:g} on each"
            )
        return step, sync

    def batch_s(self, application: str, placement: Sequence[int], batch: int) -> float:
        """Seconds of one step of a whole batch, of which each GPU takes an equal part.

        A part that is larger than the largest measured is accumulated: all passes but the last one go without
        communication.
        """
        part = math.ceil(batch / sum(placement))
        steps = self.steps[application]
        rotation = _rotation(placement)
        batches = steps.batches[rotation][0] if rotation in steps.batches else steps.points[:, 2]
        passes = max(1, math.ceil(part / float(batches.max())))
        batch_of_pass = max(float(batches.min()), math.ceil(part / passes))
        step, sync = self.step_s(application, placement, batch_of_pass)
        return step + (passes - 1) * (step - sync)

    def speed(self, application: str, placement: Sequence[int], gpus: int, batch: int | None) -> float:
        """The speed on a placement against that of the job's own number of GPUs on as few nodes as they fit on.

        Raises InputError without a batch size, and outside what was measured.
        """
        if batch is None:
            raise InputError(f"the curve of {application} needs a batch size, and the trace says none")
        nodes, left_over = divmod(gpus, self.node_gpus)
        compact = (self.node_gpus,) * nodes + ((left_over,) if left_over else ())
        return self.batch_s(application, compact, batch) / self.batch_s(application, placement, batch)


def read_curves(path: Path) -> StepCurves:
    """A table of steps: CSV with the columns application, placement (a digit per node, its GPUs), nodes, gpus,
    local_batch, step_s, sync_s; rows without a placement are of some placement with those nodes and GPUs.

    Raises InputError.
    """
    at, seconds = ("nodes", "gpus", "local_batch"), ("step_s", "sync_s")
    table = csv_of(path, "application", "placement", *at, *seconds)
    table.add(*(table.nonnegative(name) for name in (*at, *seconds)))
    placement, step, sync = pl.col("placement"), pl.col("step_s"), pl.col("sync_s")
    table.check((step <= 0) | (sync > step), "a step of {step_s:g} s with {sync_s:g} s of communication")
    table.check(~placement.str.contains(r"^\d*$"), "placement is {placement!r}, which is not a digit per node")
    rotations = {digits: "".join(map(str, _rotation([*map(int, digits)]))) for digits in table.frame["placement"]}
    table.add(placement.replace(rotations))
    steps = {}
    for (application,), rows in table.frame.group_by("application", maintain_order=True):
        points = rows.group_by(at, maintain_order=True).agg(step.mean(), sync.mean())
        measured = rows.filter(placement != "").group_by("placement", "local_batch").agg(step.mean(), sync.mean())
        batches = {
            tuple(map(int, digits)): (means["local_batch"].to_numpy(), means.select(seconds).to_numpy())
            for (digits,), means in measured.sort("placement", "local_batch").group_by("placement", maintain_order=True)
        }
        steps[application] = _Steps(batches, points.select(at).to_numpy(), points.select(seconds).to_numpy())
    return StepCurves(steps, max(map(int, "".join(table.frame["placement"])), default=1))


def _rotation(placement: Sequence[int]) -> Placement:
    """The first in order of the rotations of a placement, which stand for each other."""
    return min((tuple(placement[start:]) + tuple(placement[:start]) for start in range(len(placement))), default=())
