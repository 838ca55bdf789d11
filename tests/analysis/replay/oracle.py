"""PAL's simulation (SC'24 artifact), plainly: every round a loop over every job, nothing kept, nothing skipped.

It shares no code with whorl, so that the two can be held against each other. Times in seconds.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import mean, median, stdev

TAU = {
    "BERT": 0.179,
    "DCGAN": 0.0469266931,
    "GPT2": 3.5714,
    "PointNet": 0.28125,
    "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}
CLASS = {"resnet50": "A", "vgg19": "C", "PointNet": "D", "BERT": "B", "DCGAN": "B", "GPT2": "B"}

Row = tuple[int, float, float, str]
"""GPUs, submit time, iterations, model."""


@dataclass
class OracleJob:
    k: int
    gpus: int
    submit: float
    iterations: float
    model: str
    done: float = 0.0
    attained: float = 0.0
    waited: float = 0.0
    first: bool = False
    on: tuple[int, ...] = ()
    finish: float | None = None

    @property
    def group(self) -> str:
        return CLASS.get(self.model, "A")

    def order(self, scheduler: str) -> tuple[bool, float]:
        remaining_s = TAU[self.model] * self.iterations - self.attained
        return not self.first, {"fifo": self.submit, "las": self.attained, "srtf": remaining_s}[scheduler]


@dataclass
class Oracle:
    """One policy run. `perf`: times per class A..D in the rows' order."""

    rows: Sequence[Row]
    perf: dict[str, list[float]]
    policy: str
    scheduler: str = "fifo"
    nodes: int = 16
    locality: float = 1.7
    round_s: float = 360
    patience_s: float = 3.6e6
    without: frozenset[int] = frozenset()
    scores: dict[str, list[float]] = field(default_factory=dict)
    end: float = 0.0
    held: float = 0.0

    def __post_init__(self) -> None:
        self.gpus = 4 * self.nodes
        self.rng = random.Random(42)
        drawn: dict[str, list[float]] = {name: [] for name in "ABCD"}
        middles = {name: median(self.perf[name]) for name in "ABCD"}
        for _ in range(self.gpus):
            for name in "ABCD":
                drawn[name].append(self.rng.choice(self.perf[name]) / middles[name])
        self.scores = self.scores or drawn
        self.sf = {name: levels(tuple(scores)) for name, scores in self.scores.items()}
        self.gaps = random.Random(1)
        self.jobs: list[OracleJob] = []
        self.next_submit = self.rows[0][1]

    def run(self) -> list[float]:
        """Job completion times of the trace's jobs, in the trace's order."""
        job_count = len(self.rows)
        t = 0.0
        while True:
            for job in self.jobs:
                if job.on:
                    slow = max(self.scores[job.group][g] for g in job.on)
                    far = self.locality if len({g // 4 for g in job.on}) > 1 else 1.0
                    job.done += self.round_s / (slow * far * TAU[job.model])
                    job.attained += self.round_s
                    self.held += self.round_s * job.gpus
                    if job.done >= job.iterations:
                        job.finish, job.on = t, ()
            if len(self.jobs) >= job_count and all(job.finish is not None for job in self.jobs[:job_count]):
                break
            while self.next_submit <= t:
                self._admit()
            here = [job for job in self.jobs if job.finish is None]
            ran = {job.k for job in here if job.on}
            self._place(here)
            for job in here:
                job.waited = 0.0 if job.on or job.k in ran else job.waited + self.round_s
                job.first |= job.waited >= self.patience_s
            t += self.round_s
        self.end = t
        return [float(job.finish or 0) - job.submit for job in self.jobs[:job_count]]

    def _admit(self) -> None:
        k = len(self.jobs)
        gpus, _, iterations, model = self.rows[k % len(self.rows)]
        self.jobs.append(OracleJob(k, gpus, self.next_submit, iterations, model))
        if k + 1 < len(self.rows):
            self.next_submit = self.rows[k + 1][1]
        else:
            self.next_submit += math.ceil(-math.log(1 - self.gaps.random()) / 2 * 3600)

    def _free(self) -> list[int]:
        held_gpus = {g for job in self.jobs for g in job.on}
        return [g for g in range(self.gpus) if g not in held_gpus and g not in self.without]

    def _place(self, queue: list[OracleJob]) -> None:
        queue.sort(key=lambda job: job.order(self.scheduler))
        kind, _, sticky = self.policy.partition("-")
        if sticky == "sticky":
            self._keep(queue, self._pack if kind == "packed" else self._random)
            return
        for job in queue:
            job.on = ()
        choose: Callable[[OracleJob], tuple[int, ...]] = self._pack if kind == "packed" else self._random
        if self.policy in ("pm-first", "pal"):
            choose = self._pm_first_over_free if self.policy == "pm-first" else self._pal
            total = fits = 0
            while fits < len(queue) and total + queue[fits].gpus <= self.gpus:
                total += queue[fits].gpus
                fits += 1
            queue = sorted(queue[:fits], key=lambda job: job.group) + queue[fits:]
        for job in queue:
            job.on = choose(job)
            if not job.on:
                break

    def _keep(self, queue: list[OracleJob], choose: Callable[[OracleJob], tuple[int, ...]]) -> None:
        launched: set[int] = set()
        for i, job in enumerate(queue):
            if job.on:
                continue
            job.on = choose(job)
            for victim in reversed(queue[i + 1 :]):
                if job.on:
                    break
                if victim.on and victim.k not in launched:
                    victim.on = ()
                    job.on = choose(job)
            if not job.on:
                break
            launched.add(job.k)

    def _by_node(self, gpus: Sequence[int]) -> list[list[int]]:
        return [[g for g in gpus if g // 4 == node] for node in range(self.nodes)]

    def _pack(self, job: OracleJob) -> tuple[int, ...]:
        n, nodes = job.gpus, self._by_node(self._free())
        enough = [free for free in nodes if len(free) >= n]
        if enough:
            return tuple(min(enough, key=len)[:n])
        if sum(map(len, nodes)) < n:
            return ()
        held_gpus: list[int] = []
        while len(held_gpus) < n:
            most = max(nodes, key=len)
            part = most[: n - len(held_gpus)]
            held_gpus += part
            del most[: len(part)]
        return tuple(held_gpus)

    def _random(self, job: OracleJob) -> tuple[int, ...]:
        free = self._free()
        return tuple(self.rng.sample(free, job.gpus)) if len(free) >= job.gpus else ()

    def _pm_first(self, job: OracleJob, candidates: list[int]) -> tuple[int, ...]:
        if len(candidates) < job.gpus:
            return ()
        sf = self.sf[job.group]

        def key(g: int) -> tuple[float, int]:
            equals = sum(1 for candidate in candidates if candidate // 4 == g // 4 and sf[candidate] == sf[g])
            return sf[g], abs(equals - job.gpus)

        return tuple(sorted(candidates, key=key)[: job.gpus])

    def _pm_first_over_free(self, job: OracleJob) -> tuple[int, ...]:
        return self._pm_first(job, self._free())

    def _pal(self, job: OracleJob) -> tuple[int, ...]:
        free, sf, n = self._free(), self.sf[job.group], job.gpus
        if not 2 <= n <= 4:
            return self._pm_first(job, free)
        entries = [(v * far, v, far == 1.0) for v in sorted(set(sf)) for far in (1.0, self.locality)]
        if self.locality == 1.0:
            entries = [(v, v, within) for v in sorted(set(sf)) for within in (True, False)]
        entries.sort(key=lambda entry: entry[0])
        for _, v, within in entries:
            candidates = [g for g in free if sf[g] <= v]
            if not within:
                if len(candidates) >= n:
                    return self._pm_first(job, candidates)
                continue
            nodes = sorted((node for node in self._by_node(candidates) if len(node) >= n), key=lambda node: -len(node))
            sets = [chosen for node in nodes for chosen in itertools.combinations(node, n)]
            if sets:
                return min(sets, key=lambda chosen: max(sf[g] for g in chosen))
        return ()

    @property
    def utilisation(self) -> float:
        return self.held / (self.gpus * self.end)


@cache
def levels(scores: tuple[float, ...]) -> list[float]:
    """The score of each GPU's group over the median group's: k-means by trying every end of every group."""
    limit = mean(scores) + 3 * stdev(scores)
    k = min(2 + sum(score > limit for score in scores), len(set(scores)))
    ordered = sorted(scores)

    def squares(part: Sequence[float]) -> float:
        middle = math.fsum(part) / len(part)
        return math.fsum((x - middle) ** 2 for x in part)

    cost = {(i, j): squares(ordered[i:j]) for i, j in itertools.combinations(range(len(ordered) + 1), 2)}
    best: dict[int, tuple[float, tuple[int, ...]]] = {j: (cost[0, j], (0,)) for j in range(1, len(ordered) + 1)}
    for group in range(1, k):
        best = {
            j: min((best[i][0] + cost[i, j], (*best[i][1], i)) for i in range(group, j))
            for j in range(group + 1, len(ordered) + 1)
        }
    begins = best[len(ordered)][1]
    centres: dict[float, float] = {}
    for i, j in zip(begins, (*begins[1:], len(ordered)), strict=True):
        for x in ordered[i:j]:
            centres[x] = mean(ordered[i:j])
    middle = median(sorted(set(centres.values())))
    return [centres[x] / middle for x in scores]
