"""GPUs that exchange data: every word is compared, sums are exact, and a GPU that hangs is a sentence."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels import peers as exchanges
from whorl.kernels.device import Verdict
from whorl.kernels.inputs import key, mix, word
from whorl.kernels.peers import WINDOWS, AllReduce, Copies, CopyTimes, PeerGpus, open_peers
from whorl.probes.catalogue import find_probe
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.exchange import measure_exchange
from whorl.probes.protocol import Measured, Unrun
from whorl.probes.watch import Recent
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import FakeRuntime, LibraryInStream

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

WINDOW_BYTES = 2048
ASKED = Asked(replace(EFFORTS["quick"], limit_s=0.0, repeats=3))


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime(3)


@pytest.fixture
def peers(blas: LibraryInStream, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerGpus]:
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", WINDOW_BYTES)
    monkeypatch.setattr(exchanges, "REDUCED_BYTES", 3 * 4096)
    opened = open_peers(range(runtime.count))
    yield opened
    opened.close()
    if not any(device.lost for device in opened.devices):
        assert runtime.taken == 0
        assert runtime.alive == 0


def words_at(address: int, count: int) -> Any:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32)), (count,))


def measured(peers: PeerGpus, name: str) -> dict[int, Measured | Unrun]:
    """What a probe gives, by the index of the GPU."""
    gpus = [device.facts.gpu for device in peers.devices]
    watch = Recent(gpus, seconds=10, interval_s=0.1)
    answers = measure_exchange(peers, watch, find_probe(name), ASKED, lambda: False)
    return {device.facts.index: answers[device.facts.gpu] for device in peers.devices}


def figures(answer: Measured | Unrun) -> dict[str, float]:
    assert isinstance(answer, Measured), answer
    return {figure.name: figure.value for figure in answer.figures}


def test_every_pair_both_ways_and_all_at_once(peers: PeerGpus) -> None:
    for index, answer in measured(peers, "pairs").items():
        rates = figures(answer)
        others = {0, 1, 2} - {index}
        assert {name for name in rates if name.startswith("bandwidth")} == {
            "bandwidth_all",
            *(f"bandwidth_to_{peer}{suffix}" for peer in others for suffix in ("", "_both")),
        }
        assert min(rates.values()) == rates["wrong_elements"] == 0
        batches = 2 * (2 + 2 + 2)  # to this one from each: alone, with the way back, and with all
        assert rates["checked_elements"] == batches * WINDOWS * WINDOW_BYTES / 4


def test_a_copy_that_does_not_arrive_is_found(
    peers: PeerGpus, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, copies = runtime.memcpyAsync, []

    def copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
        if size == WINDOW_BYTES:
            copies.append(source)
            if len(copies) == 2 * WINDOWS + 3:  # in the second batch: what came in the first is still there
                return
        usual(target, source, size, kind, stream)

    monkeypatch.setattr(runtime, "memcpyAsync", copy)
    with Copies(peers, 1) as exchange:
        for _ in range(2):
            exchange.run([(0, 2), (1, 2)], CopyTimes())
        assert [verdict.wrong for verdict in exchange.verdicts] == [0, 0, WINDOW_BYTES // 4]
        assert exchange.verdicts[2].first == f"from {peers.devices[0].facts.gpu}, word {WINDOW_BYTES // 4}"
        exchange.run([(0, 2), (1, 2)], CopyTimes())
        assert exchange.verdicts[2].wrong == WINDOW_BYTES // 4, "the next batch is right"


@pytest.mark.parametrize("runtime", [FakeRuntime(count) for count in (2, 3, 8)], ids=lambda runtime: str(runtime.count))
def test_the_sum_is_exact_on_every_gpu(peers: PeerGpus) -> None:
    gpus = len(peers.devices)
    with AllReduce(peers, 7) as exchange:
        for repetition in (1, 2):
            assert exchange.run() > 0
            base = key(7, f"all-reduce {repetition}")
            places = np.arange(exchange.count, dtype=np.uint64)
            streams = mix((base + np.arange(gpus)).astype(np.uint32))
            should = sum(word(int(stream), places) for stream in streams)
            for address in exchange._sums:
                assert np.array_equal(words_at(address, exchange.count), should)
        assert exchange.verdicts == [Verdict(2 * exchange.count, 0, repetitions=2)] * gpus
        assert exchange.count % (4 * gpus) == 0
        assert exchange.moved_bytes == pytest.approx(2 * (gpus - 1) / gpus * 4 * exchange.count)


def test_all_reduces_by_the_ring_and_by_nccl(peers: PeerGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = measured(peers, "all-reduce")
    assert measured(peers, "all-reduce-nccl") == dict.fromkeys(
        range(3), Unrun("this CuPy has no NCCL: install NCCL beside it")
    )
    monkeypatch.setattr("whorl.probes.exchange.nccl_of", lambda: Nccl(peers.runtime))
    nccl = measured(peers, "all-reduce-nccl")
    for answer in (*ring.values(), *nccl.values()):
        rates = figures(answer)
        moved = 4 / 3 * 3 * 4096
        assert rates["bandwidth"] == pytest.approx(moved / rates["time_median"] / 1e6)
        assert rates["wrong_elements"] == 0
        assert rates["checked_elements"] >= 5 * 3 * 1024


class Nccl:
    """`cupy.cuda.nccl` for GPUs whose memory is this process's: as much as is used of it."""

    NCCL_UINT32, NCCL_SUM = 3, 0

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime = runtime
        self._calls: list[tuple[int, int, int, int]] = []
        self.NcclCommunicator = SimpleNamespace(initAll=lambda ordinals: [self] * len(ordinals))

    def groupStart(self) -> None:  # noqa: N802
        self._calls.clear()

    def allReduce(self, source: int, out: int, count: int, kind: int, operation: int, stream: int) -> None:  # noqa: N802
        assert (kind, operation) == (self.NCCL_UINT32, self.NCCL_SUM)
        assert stream
        self._calls.append((source, out, count, stream))

    def groupEnd(self) -> None:  # noqa: N802
        total = sum(words_at(source, count) for source, _, count, _ in self._calls)
        for _, out, _, stream in self._calls:
            self._runtime.memcpyAsync(out, total.ctypes.data, total.nbytes, self._runtime.memcpyDefault, stream)


def test_a_peer_that_hangs_is_one_sentence(
    peers: PeerGpus, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "LIMIT_S", 0.2)
    first, *others = (device.facts.gpu for device in peers.devices)
    with Copies(peers, 1) as exchange:
        runtime.hang = True
        with pytest.raises(DeviceError) as raised:
            exchange.run([(0, 1)], CopyTimes())
    assert str(raised.value) == (
        f"{first}: copying between GPUs did not end within 0.2 s: it or one of its peers ({', '.join(others)}) hangs"
    )
    assert (raised.value.gone, raised.value.outcome) == (True, "hung")


@pytest.mark.parametrize("reached", ["none", "some"])
def test_gpus_that_cannot_reach_one_another(
    blas: LibraryInStream, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, reached: str
) -> None:
    def reaches(device: int, peer: int) -> int:
        return int(reached == "some" and (device, peer) in ((0, 1), (1, 0)))

    monkeypatch.setattr(runtime, "deviceCanAccessPeer", reaches)
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", WINDOW_BYTES)
    opened = open_peers(range(3))
    pairs, ring = measured(opened, "pairs"), measured(opened, "all-reduce")
    opened.close()
    assert ring[0] == Unrun("GPU 0 cannot reach GPU 2 of the ring without the host")
    if reached == "none":
        assert pairs[0] == Unrun("none of the GPUs can reach another one without the host")
    else:
        assert set(figures(pairs[0])) >= {"bandwidth_to_1", "bandwidth_to_1_both", "bandwidth_all"}
        assert pairs[2] == Unrun("it can reach no other GPU of the node without the host")
