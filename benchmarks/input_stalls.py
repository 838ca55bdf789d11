"""How long preparing a kernel's inputs and references on the host keeps other threads from running.

    python -m benchmarks.input_stalls

A thread prepares, this one looks as often as it can at how much CPU time that one has had: the most between two looks
is what it held Python's lock for. CPU time, because other programs must not count. The least of three tries counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.inputs import stored_table
from whorl.kernels.simulated_device import facts_of
from whorl.kernels.work import Array, Lanes, Unfit, Work
from whorl.simulation.models import H200

MOST_MS = 20.0
TRIES = 3


def prepare(work: Work, seed: int) -> None:
    """What a load makes on the host."""
    for buffer in work.buffers:
        if isinstance(buffer.content, Array):
            buffer.content.make(seed)
        elif isinstance(buffer.content, Lanes):
            stored_table(seed, buffer.name, buffer.content)


def refer(work: Work, seed: int) -> None:
    """What a check makes on the host."""
    for output in work.outputs[:1]:
        output.expect(seed, 5)


def stall_ms(action: Callable[[], None]) -> float:
    """The most CPU time of a thread that acts between two looks of this one, ms."""
    begun, looked = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        looked.wait()
        action()
        begun.clear()
        time.sleep(0.01)

    thread = threading.Thread(target=act)
    thread.start()
    begun.wait()
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    had, most = time.clock_gettime(clock), 0.0
    looked.set()
    while begun.is_set():
        time.sleep(2e-4)
        now = time.clock_gettime(clock)
        most, had = max(most, now - had), now
    return 1000 * most


def main() -> None:
    for name in KERNELS:
        work = find_kernel(name).build(facts_of(H200))
        if isinstance(work, Unfit):
            continue
        inputs, references = (
            min(stall_ms(partial(make, work, seed)) for seed in range(1, TRIES + 1)) for make in (prepare, refer)
        )
        mark = "" if max(inputs, references) < MOST_MS else f"  over {MOST_MS:g} ms"
        print(f"{name:22} inputs {inputs:7.1f} ms  references {references:7.1f} ms{mark}", flush=True)


if __name__ == "__main__":
    main()
