"""Waits for a GPU with a time limit, and limits how much work is enqueued ahead.

CUDA's own waits have no limit: a kernel that hangs would hold the process for ever, and so would a launch into a full
queue. So events are polled, and few launches are outstanding at any time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from .cuda import NOT_READY, event_calls

OUTSTANDING = 512
"""The most launches that wait on the GPU; the driver's queue holds about a thousand, and blocks when full."""
AHEAD_S = 0.5
"""At most about so much work waits on the GPU, so that an interrupt ends soon."""


class Late(Exception):  # noqa: N818 - not an error: run() decides what it means
    """The deadline has passed and the GPU is not done."""


class Waiting:
    """Polling of events on one GPU."""

    def __init__(self, runtime: Any, stream: int) -> None:
        self._runtime = runtime
        self._stream = stream
        self._query, self._record = event_calls(runtime)
        self._disable_timing = runtime.eventDisableTiming

    def event(self, *, timing: bool = True) -> int:
        return int(self._runtime.eventCreateWithFlags(0 if timing else self._disable_timing))

    def record(self, event: int) -> None:
        self._record(event, self._stream)

    def done(self, event: int) -> bool:
        """Whether what was enqueued before the event is done. Raises what the GPU failed with."""
        status = self._query(event)
        if status == NOT_READY:
            return False
        self._runtime.check_status(status)
        return True

    def until(self, event: int, deadline: float, *, spin: bool = False) -> None:
        """Return when the event is reached; `Late` at `deadline` (`time.monotonic`). `spin` is exact and busy."""
        pause = 20e-6
        while True:
            # The clock comes before the event: what ended while this process was held up is not late.
            late = time.monotonic() > deadline
            if self.done(event):
                return
            if late:
                raise Late
            if not spin:
                time.sleep(pause)
                pause = min(1.5 * pause, 1e-3)

    def drained(self, within_s: float) -> bool:
        """Whether all that is enqueued ends within a time. Raises what the GPU failed with."""
        last = self.event(timing=False)
        late = False
        try:
            self.record(last)
            self.until(last, time.monotonic() + within_s)
        except Late:
            late = True
        finally:
            if not late:  # to destroy an event that is not reached may wait for what hangs
                with suppress(RuntimeError):
                    self._runtime.eventDestroy(last)
        return not late


class Throttle:
    """Lets the host run ahead of the GPU by so much and no more."""

    def __init__(self, waiting: Waiting, markers: tuple[int, int], deadline: float) -> None:
        """`markers` are two events without timing."""
        self._waiting = waiting
        self._markers = markers
        self._deadline = deadline
        self._every = OUTSTANDING // 2
        self._count = 0
        self._turn = 0

    def pace(self, launches: int, seconds: float) -> None:
        """Set the time that a number of launches takes, which limits how many may wait."""
        if seconds > 0:
            self._every = max(1, min(OUTSTANDING // 2, int(AHEAD_S / 2 * launches / seconds)))

    def launched(self) -> None:
        """Count a launch; waits where the GPU is too far behind. `Late` at the deadline."""
        self._count += 1
        if self._count % self._every:
            return
        self._waiting.record(self._markers[self._turn % 2])
        if self._turn:
            self._waiting.until(self._markers[(self._turn - 1) % 2], self._deadline)
        self._turn += 1
