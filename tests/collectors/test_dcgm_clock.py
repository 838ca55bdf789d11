"""An engine whose clock is set back: what it samples from then on is stored, and what it kept from before is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from whorl.collectors.backends import Device, Readings
from whorl.collectors.dcgm.connection import Connection, _Watch
from whorl.collectors.dcgm.dcgm import Dcgm
from whorl.collectors.dcgm.reading import Samples
from whorl.store.metrics import METRICS, ROW

SECOND, HOUR = 1_000_000, 3_600_000_000
FAST, SLOW = ROW["energy_mj"], ROW["fan_speed"]


class Engine:
    """It samples one field a second and one every ten, and keeps all of it, as real ones keep what lies ahead."""

    def __init__(self) -> None:
        self.now_us = 500_000 * HOUR
        self.samples: list[tuple[int, int]] = []  # row of METRICS and stamp
        self.cycles = 0

    def run(self) -> None:
        self.now_us += SECOND
        self.samples += [(row, self.now_us - 1000) for row in ([FAST, SLOW] if self.cycles % 10 == 0 else [FAST])]
        self.cycles += 1

    def read(self, group: int, _: Any, since_us: int) -> tuple[Samples, int]:
        stamps = np.array([ts for row, ts in self.samples if row == group and ts >= since_us], np.int64)
        nothing = np.zeros(len(stamps), np.intp)
        return Samples(nothing, nothing + group, stamps, stamps // SECOND, nothing.astype(np.uint8)), self.now_us + 1


def test_after_a_clock_was_set_back_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stream, looks = Engine(), Dcgm(interval_s=1.0), list[int]()
    made = Connection(None, 1, "x", False, start_us=engine.now_us)  # type: ignore[arg-type]
    made._watches = [_Watch(row, every * SECOND, engine.now_us) for row, every in ((FAST, 1), (SLOW, 10))]
    stream._connection, stream._reader, stream._devices = made, engine, [Device("GPU-1")]  # type: ignore[assignment]
    stream._next_us = stream._chores_us = 0
    expected = np.zeros(len(METRICS), bool)
    expected[FAST] = True
    stream._assembler.meet(SECOND, expected, None)

    def look(_: Connection, readings: Readings, __: object) -> Readings:
        looks.append(engine.now_us)
        return readings

    monkeypatch.setattr(stream, "_look", look)
    given: list[tuple[int, bool]] = []  # the stamp of each row, and whether it has the slow metric
    for poll in range(60):
        if poll == 30:
            engine.now_us -= HOUR
        engine.run()
        readings, _ = stream.poll()
        given += zip((readings.ts // 1000).tolist(), (readings.status[SLOW] == 0).tolist(), strict=True)
    stamps = [ts for ts, _ in given]
    after = [one for one in given if one[0] <= engine.now_us]
    assert len(stamps) == len(set(stamps))
    assert len(stamps) - len(after) >= 29  # the poll in which it was set may be lost, and that before
    assert len(after) >= 28
    assert sum(has for _, has in after) >= 2
    assert len([at for at in looks if at <= engine.now_us]) >= 2
