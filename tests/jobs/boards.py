"""Boards whose true power is known, behind a `Backend`, and a clock that a test turns: for the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from whorl.collectors.backend import Backend, Device, Reading, Status
from whorl.store.events import Event
from whorl.store.metrics import FAST, METRICS, ROW

STEP_S = 0.001
Power = Callable[[np.ndarray], np.ndarray]


class HandClock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def wall(self) -> int:
        return self.now + 1_700_000_000_000_000_000

    def steady(self) -> int:
        return self.now

    boot = steady

    def sleep(self, ns: int) -> None:
        self.now += ns

    @property
    def now_s(self) -> float:
        return self.now / 1e9

    def to(self, seconds: float) -> None:
        self.now = round(1e9 * seconds)


@dataclass
class Board:
    """True power (W, by s) up to `until` s; a counter and a reading with new values every `period_s`."""

    power: Power
    until: float = 60.0
    period_s: float = 0.1
    phase_s: float = 0.0
    gain: float = 0.0
    offset_w: float = 0.0
    counter: bool = True
    shows_power: bool = True
    lost: list[tuple[float, float]] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    limit_w: float = 400.0
    model: str = "Quadro RTX 6000"  # its sensor sees all of the time

    def __post_init__(self) -> None:
        times = np.arange(0, self.until, STEP_S)
        self.truth = np.concatenate([[0], np.cumsum(self.power(times + STEP_S / 2)) * STEP_S])

    def used(self, began: float, ended: float) -> float:
        """The true energy between two times, J."""
        grid = np.arange(len(self.truth)) * STEP_S
        a, b = np.interp([began, ended], grid, self.truth)
        return float(b - a)

    def readings(self, at: float) -> dict[str, int]:
        if any(a <= at < b for a, b in self.lost):
            return {}
        update = (np.floor((at - self.phase_s) / self.period_s)) * self.period_s + self.phase_s
        energies = {}
        if self.shows_power:
            mean = self.used(update - self.period_s, update) / self.period_s
            energies["power_mw"] = round(1000 * ((1 + self.gain) * mean + self.offset_w))
            energies["power_window_ms"] = round(1000 * self.period_s)
        if self.counter:
            since = max([0.0, *(reset for reset in self.resets if reset <= update)])
            read = (1 + self.gain) * self.used(since, update) + self.offset_w * (update - since)
            energies["energy_mj"] = round(1000 * read) + (0 if self.resets and since else 5_000_000)
        return energies


class Boards(Backend):
    """Boards as a `Backend`."""

    name = "boards"

    def __init__(self, clock: HandClock, boards: Sequence[Board], names: Sequence[str] | None = None) -> None:
        self.clock, self.boards = clock, boards
        self.period_ms: int | None = round(1000 * max((board.period_s for board in boards), default=0.1))
        self._names = list(names or [f"GPU-{number}" for number in range(len(boards))])
        self.reads = 0
        self.gpus_read: list[str] = []
        self.closed = 0
        self.breaks: type[BaseException] | None = None
        self.looked = 0

    def devices(self) -> list[Device]:
        self.looked += 1
        return [
            Device(
                name, {"nvml_index": number, "model": board.model, "power_limit_max_mw": round(1000 * board.limit_w)}
            )
            for number, (name, board) in enumerate(zip(self._names, self.boards, strict=True))
        ]

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading]:
        if self.breaks is not None:
            raise self.breaks("made to fail")
        self.gpus_read = list(gpus)
        for gpu in gpus:
            self.reads += 1
            gpu_names = self.boards[self._names.index(gpu)].readings(self.clock.now_s)
            statuses = bytearray([Status.UNSUPPORTED if gpu_names else Status.LOST]) * len(METRICS)
            for name in gpu_names:
                statuses[ROW[name]] = Status.OK
            yield Reading(gpu, [gpu_names.get(METRICS[row].name, 0) for row in FAST], bytes(statuses))

    def close(self) -> list[Event]:
        self.closed += 1
        return []
