"""A plain replay to compare speeds with: event-driven, rigid jobs that keep their GPUs, lists scanned each time.

What a person writes first: at every event the queue is gone through from its head and every node is looked at. The
rules are those of whorl's `packed` under FIFO, with or without EASY backfill, so that both must give the same times; it
shares no code with whorl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class PlainJob:
    """A job; times in seconds."""

    submit: float
    gpus: int
    ideal: float
    limit: float
    start: float = -1.0
    finish: float = -1.0
    on: tuple[int, ...] = ()


def plain_replay(
    jobs: Sequence[PlainJob], nodes: int, per_node: int, score: Sequence[float], locality: float, easy: bool
) -> int:
    """Fill in start and finish of all jobs; the number of events."""
    free = [[True] * per_node for _ in range(nodes)]
    waiting: list[PlainJob] = []
    running: list[PlainJob] = []
    coming = list(jobs)
    events = 0
    while coming or running:
        now = min([job.finish for job in running] + [job.submit for job in coming[:1]])
        for job in [job for job in running if job.finish == now]:
            running.remove(job)
            for gpu in job.on:
                free[gpu // per_node][gpu % per_node] = True
            events += 1
        while coming and coming[0].submit == now:
            waiting.append(coming.pop(0))
            events += 1
        while waiting and (gpus := _pack(free, per_node, waiting[0])):
            _begin(waiting.pop(0), gpus, now, free, per_node, score, locality, running)
        if easy and waiting:
            _backfill(waiting, running, now, free, per_node, score, locality)
    return events


def _backfill(
    waiting: list[PlainJob],
    running: list[PlainJob],
    now: float,
    free: list[list[bool]],
    per_node: int,
    score: Sequence[float],
    locality: float,
) -> None:
    have = sum(map(sum, free))
    ends = sorted((job.start + job.limit, job.gpus) for job in running)
    end = next(planned for planned, _ in ends if have + _returned(ends, planned) >= waiting[0].gpus)
    spare = have + _returned(ends, end) - waiting[0].gpus
    time = max(end, now) - now
    for job in waiting[1:]:
        if job.limit > time and job.gpus > spare:
            continue
        gpus = _pack(free, per_node, job)
        if gpus:
            waiting.remove(job)
            if job.limit > time:
                spare -= job.gpus
            _begin(job, gpus, now, free, per_node, score, locality, running)


def _returned(ends: list[tuple[float, int]], moment: float) -> int:
    return sum(gpus for planned, gpus in ends if planned <= moment)


def _pack(free: list[list[bool]], per_node: int, job: PlainJob) -> list[int]:
    """The GPUs of the snuggest node, or of those with most free ones; none if too few are free."""
    wanted = job.gpus
    counts = [sum(slots) for slots in free]
    if sum(counts) < wanted:
        return []
    holding = [(count, node) for node, count in enumerate(counts) if count >= wanted]
    order = [min(holding)[1]] if holding else sorted(range(len(free)), key=lambda node: (-counts[node], node))
    found: list[int] = []
    for node in order:
        if counts[node]:
            found += [node * per_node + slot for slot in range(per_node) if free[node][slot]][: wanted - len(found)]
        if len(found) == wanted:
            break
    return found


def _begin(
    job: PlainJob,
    gpus: list[int],
    now: float,
    free: list[list[bool]],
    per_node: int,
    score: Sequence[float],
    locality: float,
    running: list[PlainJob],
) -> None:
    for gpu in gpus:
        free[gpu // per_node][gpu % per_node] = False
    slowdown = max(score[gpu] for gpu in gpus) * (locality if len({gpu // per_node for gpu in gpus}) > 1 else 1.0)
    job.start, job.on = now, tuple(sorted(gpus))
    # As whorl keeps it: a speed, and the work divided by it.
    job.finish = now + job.ideal / (1.0 / slowdown)
    running.append(job)
