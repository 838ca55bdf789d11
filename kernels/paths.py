"""Data paths of a GPU: copies from and to the host, within the device and to a peer, and launches.

Copies go to and fro, and the data turn by 64 KiB on the way, so that what stands in a place from before is wrong: a
wrong word, or a copy that was not done, is still seen after any number of repetitions.
"""

from __future__ import annotations

from functools import partial

from .inputs import key
from .sizing import bytes_per_s, fitting, room
from .work import Buffer, Copy, Facts, Launch, Output, Unfit, Words, WordsExpected, Work, exactly, zeros

TURN = 1 << 16
"""Bytes by which the data turn."""
LEAST = 4 * TURN
HOST_BYTES = 128 << 20
PEER_BYTES = 512 << 20
LAUNCHES = 1000

ENDS = {"h2d": ("host", "device"), "d2h": ("device", "host"), "d2d": ("device", "device"), "p2p": ("device", "peer")}
WAYS = {"h2d": "pcie", "d2h": "pcie", "d2d": "dram", "p2p": "peer"}


def build_copy(facts: Facts, *, direction: str, size: int | None = None) -> Work | Unfit:
    """Bytes: `size`, twice that within the device (read and written). The host's side is pinned.

    Within the device, a repetition goes there and the next one back. Else every repetition goes there in one copy, and
    the audit takes the data back, untimed: it is the only way to see them all, and takes as long as the repetition.

    `size` (bytes): by default 128 MiB to and from the host, 512 MiB to a peer, about 4 ms within the device.
    """
    if direction == "p2p" and facts.peers == 0:
        return Unfit("this GPU cannot reach another GPU of its node without the host")
    if size is None:
        size = {"d2d": int(bytes_per_s(facts) * 2e-3), "p2p": PEER_BYTES}.get(direction, HOST_BYTES)
        size = min(size, room(facts) // 2)
    size = size // TURN * TURN
    if size < LEAST:
        return Unfit(f"a copy needs at least {LEAST >> 10} KiB")
    source, target = ENDS[direction]
    within = direction == "d2d"
    forth = _turned("source", "target", size) if within else (Copy("source", "target", size),)
    back = _turned("target", "source", size)
    outputs = [Output("target", partial(_expect, 0 if within else 1), turn=0)]
    if within:
        outputs.append(Output("source", partial(_expect, 0), turn=1))
    work = Work(
        kernel=f"copy-{direction}",
        precision="int32",
        buffers=(
            Buffer("source", "uint32", size // 4, Words(), source),
            Buffer("target", "uint32", size // 4, None, target),
        ),
        turns=(forth, back) if within else (forth,),
        bytes=2 * size if within else size,
        outputs=tuple(outputs),
        path=WAYS[direction],
        parameters={"size": size},
        activity=0.05,
        lap=0 if within else 1,
        audit=() if within else back,
    )
    return fitting(facts, work)


def _turned(source: str, target: str, size: int) -> tuple[Copy, Copy]:
    """All from behind the first TURN bytes, and these behind it."""
    return (Copy(source, target, size - TURN, source_at=TURN), Copy(source, target, TURN, target_at=size - TURN))


def _expect(unturned: int, seed: int, repetitions: int) -> WordsExpected:
    """The source's words, turned once a repetition but the `unturned` last ones."""
    return WordsExpected(key(seed, "source"), first=(repetitions - unturned) * TURN // 4)


def build_launch(facts: Facts, *, launches: int = LAUNCHES) -> Work | Unfit:
    """Operations: launches of one thread, one after another in a stream (in a graph, where the device makes one)."""
    work = Work(
        kernel="launch",
        precision="int32",
        buffers=(Buffer("out", "uint32", 1, zeros("uint32")),),
        turns=((Launch("launch.cu", "add_one", (1, 1, 1), (1, 1, 1), ("out",), times=launches),),),
        outputs=(Output("out", lambda seed, repetitions: exactly(launches * repetitions % 2**32)),),  # noqa: ARG005
        path="none",
        parameters={"launches": launches},
        operations=launches,
        activity=0.03,
    )
    return fitting(facts, work)
