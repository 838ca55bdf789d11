"""Data paths of a GPU: copies from and to the host, within the device and to a peer, and launches."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from .inputs import word_content, words
from .sizing import bytes_per_s, fitting, room
from .work import Buffer, Copy, Expected, Facts, Kernel, Launch, Output, Unfit, Work, unchanging

PERIOD = 1 << 16
HOST_BYTES = 128 << 20
PEER_BYTES = 512 << 20
LAUNCHES = 1000
MARK = 0x5EED
"""What the launched kernel writes."""

ENDS = {"h2d": ("host", "device"), "d2h": ("device", "host"), "d2d": ("device", "device"), "p2p": ("device", "peer")}
WAYS = {"h2d": "pcie", "d2h": "pcie", "d2d": "dram", "p2p": "peer"}


def build_copy(facts: Facts, *, direction: str, size: int | None = None) -> Work | Unfit:
    """Bytes: `size`, twice that within the device (read and written). The host's side is pinned.

    `size` (bytes): by default 128 MiB to and from the host, 512 MiB to a peer, about 4 ms within the device.
    """
    if direction == "p2p" and facts.peers == 0:
        return Unfit("this GPU cannot reach another GPU of its node without the host")
    if size is None:
        size = {"d2d": int(bytes_per_s(facts) * 2e-3), "p2p": PEER_BYTES}.get(direction, HOST_BYTES)
        size = min(size, room(facts) // 2)
    size = size // (PERIOD * 4) * PERIOD * 4
    if size == 0:
        return Unfit(f"a copy needs at least {PERIOD * 4 >> 10} KiB")
    source, target = ENDS[direction]
    work = Work(
        kernel=f"copy-{direction}",
        precision="int32",
        buffers=(
            Buffer("source", "uint32", size // 4, word_content("source", PERIOD), source),
            Buffer("target", "uint32", size // 4, None, target),
        ),
        turns=((Copy("source", "target", size),),),
        flop=0,
        bytes=2 * size if direction == "d2d" else size,
        outputs=(Output("target", unchanging(_expect_words), "none: a copy"),),
        path=WAYS[direction],
        parameters={"size": size},
        activity=0.05,
    )
    return fitting(facts, work)


@lru_cache(maxsize=4)
def _expect_words(seed: int) -> Expected:
    values = words(seed, "source", PERIOD).astype(np.float64).reshape(1, -1)
    return Expected(PERIOD, values, np.zeros_like(values))


def build_launch(facts: Facts, *, launches: int = LAUNCHES) -> Work | Unfit:
    """Operations: launches of one thread, one after another in a stream (in a graph, where the device makes one)."""
    launch = Launch("launch.cu", "mark", (1, 1, 1), (1, 1, 1), ("out", np.uint32(MARK)), times=launches)
    work = Work(
        kernel="launch",
        precision="int32",
        buffers=(Buffer("out", "uint32", 1),),
        turns=((launch,),),
        flop=0,
        bytes=0,
        outputs=(Output("out", unchanging(_expect_mark), "none: one word"),),
        path="none",
        parameters={"launches": launches},
        operations=launches,
        activity=0.03,
    )
    return fitting(facts, work)


def _expect_mark(seed: int) -> Expected:  # noqa: ARG001
    return Expected(1, np.array([[float(MARK)]]), np.zeros((1, 1)))


def _kernel(direction: str, stresses: str, says: str, needs: str = "") -> Kernel:
    return Kernel(f"copy-{direction}", "1", stresses, says, partial(build_copy, direction=direction), needs)


H2D = _kernel("h2d", "host link, in", "a copy from pinned host memory")
D2H = _kernel("d2h", "host link, out", "a copy to pinned host memory")
D2D = _kernel("d2d", "device memory, copy engine", "a copy within the device by the driver")
P2P = _kernel("p2p", "link between GPUs", "a copy to another GPU of the node", "a peer in the node")
LAUNCH = Kernel(
    name="launch",
    version="1",
    stresses="launch latency",
    says="1000 kernels that do almost nothing, one after another; from a graph, not one by one from the program",
    build=build_launch,
)
