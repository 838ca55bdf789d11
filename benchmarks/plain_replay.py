"""A plain replay to compare speeds with: event-driven, rigid jobs that keep their GPUs, lists scanned each time.

What a person writes first: at every event the queue is gone through from its head and every node is looked at. The
rules are those of whorl's `packed` under FIFO, with or without EASY backfill, so that both must give the same times; it
shares no code with whorl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
    jobs: Sequence[PlainJob], nodes: int, per_node: int, score: Sequence[float], *, locality: float, easy: bool
) -> int:
    """Fill in start and finish of all jobs; the number of events."""
    cluster = _Cluster([[True] * per_node for _ in range(nodes)], per_node, score, locality)
    waiting: list[PlainJob] = []
    coming = list(jobs)
    events = 0
    while coming or cluster.running:
        now = min([job.finish for job in cluster.running] + [job.submit for job in coming[:1]])
        for job in [job for job in cluster.running if job.finish == now]:
            cluster.end(job)
            events += 1
        while coming and coming[0].submit == now:
            waiting.append(coming.pop(0))
            events += 1
        while waiting and (gpus := cluster.pack(waiting[0])):
            cluster.begin(waiting.pop(0), gpus, now)
        if easy and waiting:
            _backfill(cluster, waiting, now)
    return events


@dataclass
class _Cluster:
    free: list[list[bool]]
    """By node and slot."""
    per_node: int
    score: Sequence[float]
    locality: float
    running: list[PlainJob] = field(default_factory=list)

    def pack(self, job: PlainJob) -> list[int]:
        """The GPUs of the snuggest node, or of those with most free ones; none if too few are free."""
        counts = [sum(slots) for slots in self.free]
        if sum(counts) < job.gpus:
            return []
        holding = [(count, node) for node, count in enumerate(counts) if count >= job.gpus]
        order = [min(holding)[1]] if holding else sorted(range(len(counts)), key=lambda node: (-counts[node], node))
        gpus: list[int] = []
        for node in order:
            idle = [node * self.per_node + slot for slot in range(self.per_node) if self.free[node][slot]]
            gpus += idle[: job.gpus - len(gpus)]
            if len(gpus) == job.gpus:
                break
        return gpus

    def begin(self, job: PlainJob, gpus: list[int], now: float) -> None:
        for gpu in gpus:
            self.free[gpu // self.per_node][gpu % self.per_node] = False
        apart = len({gpu // self.per_node for gpu in gpus}) > 1
        slowdown = max(self.score[gpu] for gpu in gpus) * (self.locality if apart else 1.0)
        job.start, job.on = now, tuple(sorted(gpus))
        # As whorl keeps it: a speed, and the work divided by it. A time limit ends its job.
        job.finish = now + min(job.ideal / (1.0 / slowdown), job.limit)
        self.running.append(job)

    def end(self, job: PlainJob) -> None:
        self.running.remove(job)
        for gpu in job.on:
            self.free[gpu // self.per_node][gpu % self.per_node] = True


def _backfill(cluster: _Cluster, waiting: list[PlainJob], now: float) -> None:
    have = sum(map(sum, cluster.free))
    ends = sorted((job.start + job.limit, job.gpus) for job in cluster.running)
    end = next(planned for planned, _ in ends if have + _returned(ends, planned) >= waiting[0].gpus)
    spare = have + _returned(ends, end) - waiting[0].gpus
    time = max(end, now) - now
    for job in waiting[1:]:
        if job.limit > time and job.gpus > spare:
            continue
        gpus = cluster.pack(job)
        if gpus:
            waiting.remove(job)
            if job.limit > time:
                spare -= job.gpus
            cluster.begin(job, gpus, now)


def _returned(ends: list[tuple[float, int]], moment: float) -> int:
    return sum(gpus for planned, gpus in ends if planned <= moment)
