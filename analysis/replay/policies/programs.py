"""The programs by which Shockwave plans rounds ahead (Zheng et al., NSDI'23), solved by HiGHS.

Formulas are those of the paper's published program (uw-mad-dash/shockwave), restated. There, weights of points stand
for the logarithm, and binaries tie neighbouring points together. Here it is a sum of parts, of which each gains less
than the one before it. The function is concave and maximised, so both are the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from ..fleet import Floats, Ints

POINTS = np.array((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
"""Shares of a job's epochs between which the logarithm of the utility is linear."""
LOGS = np.log(np.maximum(POINTS, 1e-6))
GAP = 1e-3
"""A plan is proven to be this near to the best one, as a share. No wall time limits it, so plans are the same on
every machine."""
NODE_LIMIT = 100
"""Nodes of the tree of branches; after them the best plan so far is taken."""
_INFEASIBLE = 2
"""As `scipy.optimize.milp` numbers it."""


class SolverError(Exception):
    """HiGHS gave no plan; the text is its own message."""


@dataclass(frozen=True)
class Window:
    """The time that is planned ahead, and how the makespan is weighed."""

    gpus: int
    rounds: int = 20
    round_s: float = 120.0
    makespan_weight: float = 1e-3
    """The paper's k: the utility that a second of makespan costs."""


@dataclass(frozen=True)
class Candidates:
    """The jobs to be planned, all (jobs,)."""

    widths: Ints
    """GPUs."""
    epochs: Floats
    """Of the whole job."""
    done: Floats
    """Epochs that are done, whole ones."""
    epoch_s: Floats
    """Seconds of an epoch."""
    left_s: Floats
    """Seconds of work left, as forecast."""


def schedule(
    window: Window, jobs: Candidates, weights: Floats, least_s: Floats | None = None, *, gap: float = GAP
) -> Ints | None:
    """(jobs, rounds) 1 where a job is to run: the most weighted log utility less the weighted makespan.

    The rounds of a job come the sooner the more it weighs. `weights` (jobs,) of the utilities; `least_s` (jobs,) the
    seconds of work that each job must get in the window. None: no plan gives each job that much. Raises
    `SolverError`.
    """
    # How many rounds each job gets is a small program. Which ones nearly always fit into the window then; where wide
    # jobs leave no room for them, the large program decides both.
    for slots in (1, window.rounds):
        planned = _fill(window, jobs, weights, least_s, slots=slots, gap=gap)
        if planned is None:
            return None
        moved = _advance(window, jobs.widths, planned.sum(axis=1), weights, gap=gap)
        if moved is not None:
            return moved
    return planned


def _fill(
    window: Window, jobs: Candidates, weights: Floats, least_s: Floats | None, *, slots: int, gap: float
) -> Ints | None:
    """(jobs, slots) the rounds that each job gets in the window, which is cut into so many slots of equal length."""
    from scipy import sparse

    count, slot_rounds, parts = len(jobs.widths), window.rounds // slots, len(POINTS) - 1
    done = jobs.done / jobs.epochs
    utility = float(weights @ np.interp(done, POINTS, LOGS))
    # Work counts in rounds, and by the parts of the logarithm: those that gain most fill first by themselves.
    total, left = jobs.epochs * jobs.epoch_s / window.round_s, jobs.left_s / window.round_s
    part = np.maximum(POINTS[1:] - np.maximum(POINTS[:-1], done[:, None]), 0.0) * total[:, None]
    gain = np.outer(weights / total, np.diff(LOGS) / np.diff(POINTS))
    # What no plan can do in the window is no part of the cost, or the gap would be a share of that as well.
    late = max(0.0, float(np.max(left)) - window.rounds)
    # Columns: by job and slot the rounds; by job and part its work; the work left after the window, above `late`; 1.
    work = sparse.kron(sparse.eye_array(count), np.ones((1, parts)))
    empty = np.zeros((count, 1))
    rows = sparse.block_array(
        [
            [sparse.kron(jobs.widths[None, :], sparse.eye_array(slots)), None, None, None],
            [sparse.kron(sparse.eye_array(count), np.full((1, slots), -1.0)), work, None, None],
            [None, work, None, empty],
            [None, work, np.ones((count, 1)), None],
        ],
        format="csr",
    )
    unbounded = np.full(count, np.inf)
    least = np.zeros(count) if least_s is None else np.maximum(least_s, 0.0) / window.round_s
    lower = (np.zeros(slots), -unbounded, least, left - late)
    upper = (np.full(slots, window.gpus * slot_rounds), np.zeros(count), unbounded, unbounded)
    share = 1 / (count * window.rounds)
    cost = (np.zeros(count * slots), -share * gain.ravel(), (window.makespan_weight * window.round_s, -share * utility))
    most = np.concatenate((np.full(count * slots, slot_rounds), part.ravel(), (np.inf, 1.0)))
    columns = _Columns(
        cost=np.concatenate(cost),
        fewest=np.arange(len(most)) == len(most) - 1.0,
        most=most,
        integral=np.arange(len(most)) < count * slots,
    )
    solution = _solve(columns, rows, np.concatenate(lower), np.concatenate(upper), gap)
    if solution is None:
        return None
    planned: Ints = np.round(solution[: count * slots]).astype(np.int32).reshape(count, slots)
    return planned


def _advance(window: Window, widths: Ints, lengths: Ints, weights: Floats, *, gap: float) -> Ints | None:
    """(jobs, rounds) a plan in which each job has its number of rounds, those of more weight first; None: they do not
    fit, or the solver finds not how."""
    from scipy import sparse

    planned: Ints = np.zeros((len(widths), window.rounds), dtype=np.int32)
    running = np.flatnonzero(lengths)
    if not len(running):
        return planned
    counts, rounds = lengths[running], np.arange(window.rounds)
    rows = sparse.vstack(
        [
            sparse.kron(widths[running][None, :], sparse.eye_array(window.rounds)),
            sparse.kron(sparse.eye_array(len(running)), np.ones((1, window.rounds))),
        ],
        format="csr",
    )
    cost = np.outer(weights[running] / counts, rounds).ravel()
    columns = _Columns(
        cost, fewest=np.zeros(len(cost)), most=np.ones(len(cost)), integral=np.ones(len(cost), dtype=np.bool_)
    )
    lower = np.concatenate((np.zeros(window.rounds), counts.astype(float)))
    upper = np.concatenate((np.full(window.rounds, float(window.gpus)), counts.astype(float)))
    try:
        solution = _solve(columns, rows, lower, upper, gap)
    except SolverError:
        return None
    if solution is None:
        return None
    planned[running] = np.round(solution).astype(np.int32).reshape(len(running), window.rounds)
    return planned


@dataclass(frozen=True)
class _Columns:
    """The unknowns of a program, all (columns,)."""

    cost: Floats
    fewest: Floats
    most: Floats
    integral: NDArray[np.bool_]
    """Whether each is an integer."""


@contextmanager
def _unprinted() -> Iterator[None]:
    """HiGHS writes to file 1 by itself now and then, which would stand in the middle of an answer."""
    sys.stdout.flush()
    output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(nowhere)


def _solve(columns: _Columns, rows: csr_array, lower: Floats, upper: Floats, gap: float) -> Floats | None:
    """(columns,) the cheapest unknowns for which rows @ unknowns is between the bounds; None: there are none."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    with _unprinted():
        answer = milp(
            columns.cost,
            integrality=columns.integral,
            bounds=Bounds(columns.fewest, columns.most),
            constraints=LinearConstraint(rows, lower, upper),
            options={"mip_rel_gap": gap, "node_limit": NODE_LIMIT},
        )
    if answer.x is None and answer.status != _INFEASIBLE:
        raise SolverError(answer.message)
    solution: Floats | None = answer.x
    return solution
