"""A plain replay to compare with: jobs are stopped, moved, filled in, struck by failures; nothing is kept or skipped.

By rounds it decides at every edge, by events after every event, and each time it looks at all jobs and all GPUs. The
rules are those of whorl's `packed` and `packed-nonsticky`, and of EASY backfill under FIFO. A job may be kept off some
nodes, as by Slurm's --exclude. It shares no code with whorl. Time is exact (fractions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil


@dataclass
class Task:
    """A job on its way; times in seconds."""

    number: int
    submit: Fraction
    gpus: int
    ideal: Fraction
    limit: Fraction = Fraction(0)
    """The time of holding GPUs at which it is ended, and what backfill plans with; 0: there is none."""
    off: frozenset[int] = frozenset()
    """Nodes that it is never given."""
    left: Fraction = Fraction(0)
    held: Fraction = Fraction(0)
    """For how long it has held GPUs; nothing again where it started from nothing."""
    on: tuple[int, ...] = ()
    speed: Fraction = Fraction(0)
    since: Fraction = Fraction(0)
    pays_until: Fraction = Fraction(0)
    stays_until: Fraction = Fraction(0)
    lost: bool = False
    start: Fraction | None = None
    finish: Fraction | None = None
    gpu_seconds: Fraction = Fraction(0)
    stops: int = 0
    moves: int = 0
    restarts: int = 0

    def ends(self) -> Fraction:
        done = max(self.since, self.pays_until) + self.left / self.speed
        return min(done, self.since + self.limit - self.held) if self.limit else done

    def bring_to(self, now: Fraction) -> None:
        if self.on:
            self.left -= max(Fraction(0), now - max(self.since, self.pays_until)) * self.speed
            self.held += now - self.since
            self.gpu_seconds += (now - self.since) * len(self.on)
        self.since = now


@dataclass
class Plain:
    """One replay. `failures`: (node, down, up). `round_s`: None to decide after every event."""

    tasks: list[Task]
    nodes: int
    per_node: int
    score: Sequence[float]
    locality: float
    order: str
    sticky: bool
    round_s: int | None
    stop_s: int = 0
    move_s: int = 0
    failures: Sequence[tuple[int, int, int]] = ()
    resumes: bool = False
    easy: bool = False
    away: set[int] = field(default_factory=set)
    now: Fraction = Fraction(0)
    stayed: int = 0
    """Decisions in which a job stayed where it was because of what it had paid."""
    spared: int = 0
    """Jobs that were behind one that waited for GPUs, and ran on."""
    limited: int = 0
    """Jobs that their limit ended."""
    filled: int = 0
    """Jobs that backfill started."""

    def run(self) -> None:
        for task in self.tasks:
            task.left = task.ideal
        changes = sorted(
            [(up, 0, node) for node, _, up in self.failures] + [(down, 1, node) for node, down, _ in self.failures]
        )
        coming = list(self.tasks)
        self.here: list[Task] = []
        while coming or self.here:
            until = self._next_decision(coming, changes)
            while True:
                ends = min([task.ends() for task in self.here if task.on], default=None)
                times = [ends] + [Fraction(row[0]) for row in changes[:1]] + [task.submit for task in coming[:1]]
                ahead = [time for time in times if time is not None and time <= until]
                if not ahead:
                    break
                self.now = min(ahead)
                for task in self.here:
                    task.bring_to(self.now)
                if ends == self.now:
                    self._end()
                elif changes and changes[0][0] == self.now:
                    self._change(*changes.pop(0)[1:])
                else:
                    self.here.append(coming.pop(0))
            self.now = until
            for task in self.here:
                task.bring_to(self.now)
            if self.sticky:
                self._decide_sticky()
            else:
                self._decide_anew()

    def _next_decision(self, coming: list[Task], changes: list[tuple[int, int, int]]) -> Fraction:
        if self.round_s is not None and self.here:
            return (self.now // self.round_s + 1) * Fraction(self.round_s)
        times = [task.ends() for task in self.here if task.on] + [task.submit for task in coming[:1]]
        soonest = min(times + [Fraction(row[0]) for row in changes[:1]])
        return soonest if self.round_s is None else ceil(soonest / self.round_s) * Fraction(self.round_s)

    def _end(self) -> None:
        for task in [task for task in self.here if task.on and (task.left == 0 or task.held == task.limit > 0)]:
            self.limited += task.left > 0
            task.finish, task.on = self.now, ()
            self.here.remove(task)

    def _change(self, goes: int, node: int) -> None:
        if not goes:
            self.away.remove(node)
            return
        self.away.add(node)
        for task in self.here:
            if any(gpu // self.per_node == node for gpu in task.on):
                task.on, task.lost = (), True
                task.restarts += 1
                if not self.resumes:
                    task.left, task.held = task.ideal, Fraction(0)

    def _key(self, task: Task) -> tuple[Fraction, int]:
        return {"fifo": task.submit, "las": task.held, "srtf": task.ideal - task.held}[self.order], task.number

    def _stays(self, task: Task) -> bool:
        return bool(task.on) and self.round_s is not None and task.stays_until > self.now

    def _decide_sticky(self) -> None:
        places = {task.number: task.on for task in self.here if task.on}
        started: set[int] = set()
        while waiting := sorted((task for task in self.here if task.number not in places), key=self._key):
            head = waiting[0]
            lower = [task for task in self.here if self._key(task) > self._key(head)]
            lower = [task for task in lower if task.number in places and task.number not in started]
            if self.order == "fifo":
                lower = []
            self.stayed += any(self._stays(task) for task in lower)
            lower = sorted((task for task in lower if not self._stays(task)), key=self._key)
            free = len(self._free(places, head))
            stopped: list[Task] = []
            while free + sum(task.gpus for task in stopped) < head.gpus and len(stopped) < len(lower):
                stopped.insert(0, lower[-1 - len(stopped)])
            if free + sum(task.gpus for task in stopped) < head.gpus:
                self.spared += len(stopped)
                if self.easy:
                    self._backfill(places, waiting)
                break
            for task in list(stopped):
                if free + sum(task_stopped.gpus for task_stopped in stopped if task_stopped is not task) >= head.gpus:
                    stopped.remove(task)
                    self.spared += 1
            for task in stopped:
                del places[task.number]
            places[head.number] = self._pack(places, head)
            started.add(head.number)
        self._carry_out(places)

    def _decide_anew(self) -> None:
        staying = {task.number: task.on for task in self.here if self._stays(task)}
        places = self._anew({})
        if any(places.get(number) != gpus for number, gpus in staying.items()):
            places = self._anew(staying)
            self.stayed += 1
        self._carry_out(places)

    def _anew(self, staying: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        places = dict(staying)
        for task in sorted((task for task in self.here if task.number not in places), key=self._key):
            if len(self._free(places, task)) < task.gpus:
                break
            places[task.number] = self._pack(places, task)
        return places

    def _backfill(self, places: dict[int, tuple[int, ...]], waiting: list[Task]) -> None:
        """Start those behind the head of the queue that end before it can start, or fit beside it then."""
        head = waiting[0]

        def useful(gpus: Sequence[int]) -> int:
            return sum(gpu // self.per_node not in head.off for gpu in gpus)

        def coming(time: Fraction) -> int:
            return len(self._free(places, head)) + sum(gpus for end, gpus in ends if end <= time)

        running = [task for task in self.here if task.number in places]
        begins = [self.now if task.start is None else task.start for task in running]
        ends = [(at + task.limit, useful(places[task.number])) for at, task in zip(begins, running, strict=True)]
        reserved = min(end for end, _ in ends if coming(end) >= head.gpus)
        spare = coming(reserved) - head.gpus
        for task in waiting[1:]:
            if len(self._free(places, task)) < task.gpus:
                continue
            gpus = self._pack(places, task)
            late = task.limit > max(reserved - self.now, Fraction(0))
            if not late or useful(gpus) <= spare:
                places[task.number] = gpus
                spare -= useful(gpus) if late else 0
                self.filled += 1

    def _carry_out(self, places: dict[int, tuple[int, ...]]) -> None:
        for task in self.here:
            gpus = places.get(task.number, ())
            if gpus == task.on:
                continue
            if not gpus:
                task.stops += 1
            elif task.on:
                task.moves += 1
                self._pay(task, self.move_s)
            elif task.start is None:
                task.start = self.now
            else:
                self._pay(task, 0 if task.lost else self.stop_s)
            task.on = gpus
            if gpus:
                task.lost = False
                spans = len({gpu // self.per_node for gpu in gpus}) > 1
                task.speed = 1 / (
                    max(Fraction(self.score[gpu]) for gpu in gpus) * Fraction(self.locality if spans else 1)
                )
            else:
                task.pays_until = self.now

    def _pay(self, task: Task, cost: int) -> None:
        due = task.pays_until if task.on else self.now
        task.pays_until = max(due, self.now + cost)
        if cost:
            task.stays_until = task.pays_until + cost

    def _free(self, places: dict[int, tuple[int, ...]], task: Task) -> list[int]:
        held_gpus = {gpu for gpus in places.values() for gpu in gpus}
        shut = self.away | task.off
        all_gpus = range(self.nodes * self.per_node)
        return [gpu for gpu in all_gpus if gpu not in held_gpus and gpu // self.per_node not in shut]

    def _pack(self, places: dict[int, tuple[int, ...]], task: Task) -> tuple[int, ...]:
        free = self._free(places, task)
        by_node = [[gpu for gpu in free if gpu // self.per_node == node] for node in range(self.nodes)]
        holding = [gpus for gpus in by_node if len(gpus) >= task.gpus]
        if holding:
            return tuple(min(holding, key=len)[: task.gpus])
        packed: list[int] = []
        for gpus in sorted(by_node, key=len, reverse=True):
            packed += gpus[: task.gpus - len(packed)]
        return tuple(sorted(packed))
