"""Probes of several GPUs of a node at once, run in one process: copies of all pairs, and all-reduces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from ..kernels.device import Verdict
from ..kernels.peers import AllReduce, Copies, CopyTimes, NcclAllReduce, PeerGpus, Route, nccl_of
from ..store.vocabulary import EndedBy
from . import figures as of
from .figures import Figure, interval_of
from .protocol import Measured, Unrun

if TYPE_CHECKING:
    from .catalogue import Probe
    from .conditions import Asked
    from .watch import Watch

_WARM = 2  # all-reduces that are not counted
_MOST = 1000  # all-reduces that are

Answers = dict[str, Measured | Unrun]
"""By GPU."""


def measure_exchange(peers: PeerGpus, watch: Watch, probe: Probe, asked: Asked, ended: Callable[[], bool]) -> Answers:
    """Run a probe on all these GPUs. DeviceError where one fails, KeyboardInterrupt where somebody wants to stop."""
    gpus = [device.facts.gpu for device in peers.devices]
    if len(gpus) < 2:
        return dict.fromkeys(gpus, Unrun("it needs two or more GPUs of the node"))
    exchange = _ExchangeProbe(peers, watch, asked, ended)
    if probe.kernel == "pairs":
        return exchange.pairs()
    if probe.kernel == "all-reduce":
        return exchange.ring()
    return exchange.nccl()


class _ExchangeProbe:
    def __init__(self, peers: PeerGpus, watch: Watch, asked: Asked, ended: Callable[[], bool]) -> None:
        self._peers, self._watch, self._asked, self._ended = peers, watch, asked, ended
        self._gpus = [device.facts.gpu for device in peers.devices]

    # -- copies -------------------------------------------------------------------------------------------

    def pairs(self) -> Answers:
        """Each route alone, each pair both ways, and all routes at once; of those that lead past the host."""
        routes = sorted(self._peers.routes)
        if not routes:
            return dict.fromkeys(self._gpus, Unrun("none of the GPUs can reach another one without the host"))
        pairs = [route for route in routes if route[0] < route[1] and route[::-1] in self._peers.routes]
        groups: list[list[Route]] = [[route] for route in routes] + [[pair, pair[::-1]] for pair in pairs]
        seconds = self._asked.limit_s / (len(groups) + 1)
        rows: dict[int, list[Figure]] = {position: [] for position in range(len(self._gpus))}
        began_ns = time.time_ns()
        with Copies(self._peers, self._asked.seed) as copies:
            for group in groups:
                times_ms = self._batches(copies, group, seconds).times_ms
                for (sender, receiver), copy_ms in times_ms.items():
                    name = f"bandwidth_to_{self._index(receiver)}" + ("_both" if len(group) > 1 else "")
                    rows[sender].append(Figure(name, "GB/s", copies.window_bytes / median(copy_ms) / 1e6))
            sent = self._batches(copies, _taking_turns(routes, len(self._gpus)), seconds).sent
            for sender, bytes_per_ms in sent.items():
                rows[sender].append(Figure("bandwidth_all", "GB/s", median(bytes_per_ms) / 1e6))
        conditions: dict[str, object] = {"parameters": {"window": copies.window_bytes, "gpus": len(self._gpus)}}
        answers: Answers = {}
        for position, gpu in enumerate(self._gpus):
            if rows[position]:
                answers[gpu] = self._measured(position, began_ns, rows[position], conditions, copies.verdicts[position])
            else:
                answers[gpu] = Unrun("it can reach no other GPU of the node without the host")
        return answers

    def _batches(self, copies: Copies, routes: Sequence[Route], seconds: float) -> CopyTimes:
        """Batches for a time, two at least."""
        times, batches, until = CopyTimes(), 0, time.monotonic() + seconds
        while batches < 2 or time.monotonic() < until:
            self._look()
            copies.run(routes, times)
            batches += 1
        return times

    # -- all-reduces --------------------------------------------------------------------------------------

    def ring(self) -> Answers:
        """Over peer memory; every GPU reads from the one before it."""
        count = len(self._gpus)
        for position in range(count):
            if (position, (position - 1) % count) not in self._peers.routes:
                before = self._index((position - 1) % count)
                reason = f"GPU {self._index(position)} cannot reach GPU {before} of the ring without the host"
                return dict.fromkeys(self._gpus, Unrun(reason))
        return self._all_reduce(AllReduce(self._peers, self._asked.seed))

    def nccl(self) -> Answers:
        library = nccl_of()
        if library is None:
            return dict.fromkeys(self._gpus, Unrun("this CuPy has no NCCL: install NCCL beside it"))
        return self._all_reduce(NcclAllReduce(self._peers, self._asked.seed, library))

    def _all_reduce(self, exchange: AllReduce) -> Answers:
        times: list[float] = []
        with exchange:
            for _ in range(_WARM):
                exchange.run()
            began_ns, until = time.time_ns(), time.monotonic() + self._asked.limit_s
            while len(times) < self._asked.least_repeats or time.monotonic() < until:
                self._look()
                times.append(exchange.run())
                if len(times) >= self._asked.least_repeats and (
                    len(times) >= _MOST or interval_of(np.array(times)).within(self._asked.half_width)
                ):
                    break
        times_ms = np.array(times)
        interval = interval_of(times_ms)
        rows = of.of_times(times_ms, interval)
        rows.append(Figure("bandwidth", "GB/s", exchange.moved_bytes / interval.median / 1e6))
        conditions: dict[str, object] = {
            "bytes": exchange.bytes,
            "parameters": {"gpus": len(self._gpus)},
            "repeats": interval.n,
            "independent": interval.settled,
            "drift": of.drift(times_ms),
        }
        return {
            gpu: self._measured(position, began_ns, rows, conditions, exchange.verdicts[position])
            for position, gpu in enumerate(self._gpus)
        }

    # -- both ---------------------------------------------------------------------------------------------

    def _measured(
        self, position: int, began_ns: int, rows: list[Figure], conditions: dict[str, object], verdict: Verdict
    ) -> Measured:
        ended_ns = time.time_ns()
        window = self._watch.window(self._gpus[position], began_ns, ended_ns)
        conditions = conditions | {"precision": "int32", "path": "peer", "readings": window.readings}
        rows = rows + of.of_verdict(verdict, verdict.repetitions)
        return Measured(began_ns, ended_ns, window, rows, EndedBy.COMPLETE, verdict, conditions)

    def _index(self, position: int) -> int:
        return self._peers.devices[position].facts.index

    def _look(self) -> None:
        if self._ended():
            raise KeyboardInterrupt


def _taking_turns(routes: Sequence[Route], gpus: int) -> list[Route]:
    """All routes, in an order in which at each time every GPU sends to another one."""
    return sorted(routes, key=lambda route: ((route[1] - route[0]) % gpus, route[0]))
