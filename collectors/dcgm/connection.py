"""A connection to an engine: the handle, the groups of GPUs and of fields, and what is watched.

All of it dies with the engine, and nothing of it can be used with another handle. So it is made by one function,
`connect`, from nothing, as often as needed. Nothing of it outlives us, and nothing that other clients made is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...store.metrics import METRICS
from .entities import Entity, find_entities
from .reaching import (
    DUPLICATE,
    GONE,
    IN_USE,
    NO_MODULE,
    NO_PERMISSION,
    NO_PROFILING,
    REQUIRES_ROOT,
    Target,
    code_of,
    reach,
    reach_again,
    sentence,
)
from .reading import XID, Reader, Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .bindings import Bindings

_POWER_WATCH = 0x100  # warns at any time at the power limit, which is normal under load
HEALTH_WATCHES = 0xFFFFFFFF & ~_POWER_WATCH
AHEAD_US = 1_000_000  # further from the engine's time, a stamp is of a clock that was set back since
PROFILING_US = 100_000  # profiling values that are asked for more often are wrong
_KEEP_S = 60.0
_EMPTY = 1  # the kind of a group
_NAMES = itertools.count(1)
_TRIES = 100

_BE_ROOT = "run nv-hostengine as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
_WAYS_OUT = {
    NO_PERMISSION: _BE_ROOT,
    REQUIRES_ROOT: _BE_ROOT,
    NO_MODULE: "the engine has no profiling module for these GPUs; on those of data centres, install the package "
    "datacenter-gpu-manager-4-proprietary",
    NO_PROFILING: "these GPUs have no profiling fields",
    IN_USE: "another tool, as Nsight, has the counters: end it, or ask for dcgmi profile --resume",
}
# Where one profiling field is refused so, all are.
_HOPELESS = {NO_MODULE, NO_PROFILING, NO_PERMISSION, REQUIRES_ROOT}


@dataclass(frozen=True)
class Refusal:
    """What the engine will not watch: fields (numbers) of these entities, and the status code."""

    entities: tuple[Entity, ...]
    numbers: tuple[int, ...]
    code: int

    @property
    def way_out(self) -> str:
        """Why it will not watch profiling fields, and what to do."""
        return _WAYS_OUT.get(self.code, f"DCGM's code {self.code}")


@dataclass(eq=False)
class _Watch:
    group: Any
    every_us: int
    next_us: int = 0  # from when on to read
    due_us: int = 0  # when there should be a new sample
    fields: Any = None


@dataclass
class Connection:
    """An open connection. `start_us` is the engine's time when it was made: what was sampled before is not ours."""

    bindings: Bindings
    handle: Any
    where: str
    embedded: bool
    entities: list[Entity] = field(default_factory=list)
    group: Any = None  # of all whole GPUs
    checks_health: bool = False
    start_us: int = 0
    refused: list[Refusal] = field(default_factory=list)
    watched: dict[int, set[int]] = field(default_factory=dict)  # entity -> numbers of its fields
    _groups: list[Any] = field(default_factory=list)
    _watches: list[_Watch] = field(default_factory=list)

    def read(self, reader: Reader, overlap_us: int) -> tuple[Samples, int]:
        """All new samples of what is watched, and those of the last `overlap_us` again; and the engine's time.

        What is sampled slowly is asked for when there should be a sample. After an engine's clock was set back, its
        cache still has samples from before, whose stamps lie ahead: no new sample can have such a stamp.
        """
        parts: list[Samples] = []
        now_us = 0
        for watch in self._watches:
            if 0 < watch.due_us - now_us <= watch.every_us and now_us > 0:
                continue
            since_us = max(watch.next_us - overlap_us, self.start_us)
            try:
                samples, later = reader.read(watch.group, watch.fields, since_us)
            except self.bindings.error:
                if parts:  # they are kept; where the engine is gone, the next read says so
                    break
                raise
            now_us, watch.next_us = now_us or later, later
            if len(samples) and samples.ts.max() > later + AHEAD_US:
                samples = samples.pick(samples.ts <= later + AHEAD_US)
            if len(samples):
                parts.append(samples)
                watch.due_us = int(samples.ts.max()) + watch.every_us
        return Samples.joined(parts), now_us

    def make_group(self, entities: Iterable[Entity]) -> Any:
        """A group of our own in the engine."""
        agent = self.bindings.agent
        group = self._named(lambda name: agent.dcgmGroupCreate(self.handle, _EMPTY, name))
        self._groups.append(group)
        for one in entities:
            agent.dcgmGroupAddEntity(self.handle, group, one.group, one.number)
        return group

    def watch(self, entities: Sequence[Entity], numbers: Sequence[int], every_us: int) -> None:
        """Have the engine sample fields, as many as it is able to; what it refuses is added to `refused`."""
        if not entities or not numbers:
            return
        accepted: dict[tuple[int, ...], list[Entity]] = {}
        try:
            self._watch(entities, numbers, every_us)
            accepted[tuple(numbers)] = list(entities)
        except self.bindings.error as error:
            if code_of(error) == GONE:
                raise
            for one in entities:
                accepted.setdefault(self._accepted(one, numbers, every_us), []).append(one)
            for some, those in accepted.items():
                if some:
                    self._watch(those, some, every_us)
        for some, those in accepted.items():
            for one in those:
                self.watched.setdefault(one.key, set()).update(some)

    def _time_us(self, watch: _Watch) -> int:
        """The engine's time: its clock need not be ours. Nothing is watched yet, so nothing is read."""
        nothing = self.bindings.agent.dcgmFieldValueEntityEnumeration_f(lambda *_: 0)
        ours = time.time_ns() // 1000
        try:
            agent = self.bindings.agent
            return int(agent.dcgmGetValuesSince_v2(self.handle, watch.group, watch.fields, ours, nothing, None))
        except self.bindings.error as error:
            if code_of(error) == GONE:
                raise
            return ours

    def begin_health(self) -> None:
        """Have the engine's health checks run; an engine that cannot is left alone."""
        try:
            self.bindings.agent.dcgmHealthSet(self.handle, self.group, HEALTH_WATCHES)
        except self.bindings.error as error:
            if code_of(error) == GONE:
                raise
        else:
            self.checks_health = True

    def _accepted(self, one: Entity, numbers: Sequence[int], every_us: int) -> tuple[int, ...]:
        """Those of the fields that the engine can watch together on one GPU: as one that it cannot costs all others."""
        chosen: list[int] = []
        refused: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            try:
                self._unwatch(self._watch([one], [*chosen, number], every_us))
                chosen.append(number)
            except self.bindings.error as error:
                code = code_of(error)
                if code == GONE:
                    raise
                refused.setdefault(code, []).append(number)
                if code in _HOPELESS and not chosen:
                    refused[code] += numbers[at + 1 :]
                    break
        for code, those in refused.items():
            self._refuse(one, tuple(those), code)
        return tuple(chosen)

    def _refuse(self, one: Entity, numbers: tuple[int, ...], code: int) -> None:
        for at, known in enumerate(self.refused):
            if (known.numbers, known.code) == (numbers, code):
                self.refused[at] = Refusal((*known.entities, one), numbers, code)
                return
        self.refused.append(Refusal((one,), numbers, code))

    def _watch(self, entities: Sequence[Entity], numbers: Sequence[int], every_us: int) -> _Watch:
        agent = self.bindings.agent
        made = _Watch(self.make_group(entities), every_us)
        try:
            made.fields = self._named(lambda name: agent.dcgmFieldGroupCreate(self.handle, list(numbers), name))
            self.start_us = made.next_us = self.start_us or self._time_us(made)
            keep_s = _keep_s(every_us)  # an age and a number: some engines keep by the one, some by the other
            agent.dcgmWatchFields(
                self.handle, made.group, made.fields, every_us, keep_s, round(2e6 * keep_s / every_us)
            )
        except self.bindings.error:
            self._drop(made)
            raise
        self._watches.append(made)
        return made

    def _unwatch(self, watch: _Watch) -> None:
        self._watches.remove(watch)
        with contextlib.suppress(self.bindings.error):
            self.bindings.agent.dcgmUnwatchFields(self.handle, watch.group, watch.fields)
        self._drop(watch)

    def _drop(self, watch: _Watch) -> None:
        agent, suppress = self.bindings.agent, contextlib.suppress(self.bindings.error)
        if watch.fields is not None:
            with suppress:
                agent.dcgmFieldGroupDestroy(self.handle, watch.fields)
        with suppress:
            agent.dcgmGroupDestroy(self.handle, watch.group)
        self._groups.remove(watch.group)

    def _named(self, make: Any) -> Any:
        """Make something whose name must be the only such one in the engine."""
        for _ in range(_TRIES):
            try:
                return make(f"whorl-{socket.gethostname()}-{os.getpid()}-{next(_NAMES)}")
            except self.bindings.error as error:
                if code_of(error) != DUPLICATE:
                    raise
        raise InputError(f"the DCGM engine at {self.where} has {_TRIES} groups of the names that were tried")

    def close(self) -> None:
        """Take back what was made in the engine, and leave it. Safe to call twice, and where it is gone."""
        if self.handle is None:
            return
        agent, suppress = self.bindings.agent, contextlib.suppress(self.bindings.error)
        for watch in list(self._watches):
            self._unwatch(watch)
        for group in self._groups:
            with suppress:
                agent.dcgmGroupDestroy(self.handle, group)
        with suppress:
            (agent.dcgmStopEmbedded if self.embedded else agent.dcgmDisconnect)(self.handle)
        self.handle, self._groups = None, []


def _keep_s(every_us: int) -> float:
    """How long the engine is to keep samples: a poll may be late, and a whole number of seconds counts."""
    return float(max(_KEEP_S, -(-3 * every_us // 1_000_000)))


def connect(bindings: Bindings, target: Target, *, interval_us: int, slow_us: int) -> Connection:
    """Reach an engine and have it sample every GPU and MIG instance. Raises InputError with what to do."""
    found = reach(bindings, target)
    made = Connection(bindings, found.handle, found.where, found.embedded)
    try:
        made.entities = find_entities(bindings, made.handle)
        _watch_all(made, interval_us, slow_us)
    except bindings.error as error:
        made.close()
        raise InputError(sentence(bindings, error, made.where)) from error
    except BaseException:
        made.close()
        raise
    return made


def another(made: Connection) -> Connection:
    """A second connection to the same engine, for what must not meet the watches of the first."""
    if made.embedded:
        raise InputError("an engine within this process keeps none; start nv-hostengine")
    found = reach_again(made.bindings, made.where)
    return Connection(made.bindings, found.handle, found.where, embedded=False)


def _watch_all(made: Connection, interval_us: int, slow_us: int) -> None:
    whole = [one for one in made.entities if one.parent is None]
    parts = [one for one in made.entities if one.parent is not None]
    if not whole:
        raise InputError(f"the DCGM engine at {made.where} shows no GPU")
    made.group = made.make_group(whole)
    made.begin_health()  # first: it watches some of our fields at a slow pace
    # Device fields and profiling fields apart: one profiling field that cannot be watched costs all others.
    made.watch(whole, [*_numbers("fast"), XID], interval_us)
    made.watch(whole, _numbers("slow"), slow_us)
    made.watch(parts, [number for number in _numbers("slow") if number in _OF_INSTANCES], slow_us)
    for tier, every_us in (("fast", interval_us), ("slow", slow_us)):
        made.watch(whole, _numbers(tier, profiling=True), max(every_us, PROFILING_US))
        made.watch(parts, _numbers(tier, profiling=True), max(every_us, PROFILING_US))


# Fields that a part of a GPU has of its own. Its power, clocks and temperature would be those of the whole GPU.
_OF_INSTANCES = {m.dcgm.id for m in METRICS if m.dcgm is not None and m.name in ("memory_used", "memory_free")}


def _numbers(tier: str, *, profiling: bool = False) -> list[int]:
    """The fields of a tier, the energy counter first: its stamp is that of the row."""
    found = [(m.name != "energy_mj", m.dcgm) for m in METRICS if m.tier == tier and m.dcgm is not None]
    return [one.id for _, one in sorted(found, key=lambda each: each[0]) if one.profiling == profiling]
