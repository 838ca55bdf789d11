"""Work for the power supply: everything at full load, and a stated share of the multiprocessors."""

from __future__ import annotations

from dataclasses import replace

from .fma import ROUNDS, chain_buffers, chain_compared, chain_flop, chain_launch
from .gemm import PERIOD, SINCE, product, shape
from .inputs import SWITCHING
from .sizing import bytes_per_s, far_beyond_l2, fitting, flop_per_s, room
from .stream import TILE, moved
from .work import Facts, Unfit, Work

BLOCK = 256
WHOLE_SM = 1024
"""Threads of the only block on a multiprocessor: enough, with 16 chains each, to keep all its units busy."""

PART_S = 1.0e-3
"""About how long each part of the mix takes before the next."""

SLOTS = 8
"""Results of the mix's product that are kept before they are compared: more than a repeat of 20 ms has."""


def build_mix(
    facts: Facts,
    *,
    input: str = "uniform",  # noqa: A002 - the name in conditions and on the command line
    precision: str | None = None,
    n: int | None = None,
    count: int | None = None,
    blocks: int | None = None,
) -> Work | Unfit:
    """FLOP: of the chains (fp32), and the product (2 n² k). Bytes: 12 a word of the triad.

    `precision`: of the product; by default fp16 where there are tensor cores for it, else fp32. `n` (product),
    `count` (triad) and `blocks` (chains): by default such that each takes about 1 ms.
    """
    if precision is None:
        precision = "fp16" if facts.capability >= SINCE["fp16"] else "fp32"
    n, k = shape(facts, precision, SLOTS, seconds=PART_S, n=n)
    wave = chain_flop("fp32", 8 * facts.sms * BLOCK, ROUNDS)
    blocks = blocks or 8 * facts.sms * max(1, round(PART_S * flop_per_s(facts, "fp32") / wave))
    if count is None:
        by_time = max(bytes_per_s(facts) * PART_S / 3, far_beyond_l2(facts) / 3)
        count = int(min(by_time, room(facts) / 6) / 4)
    count = count // TILE * TILE
    if count == 0 or n % PERIOD:
        return Unfit(
            f"the mix needs arrays of at least {TILE} numbers, and a product size that is a multiple of {PERIOD}"
        )
    ring, triad = product(facts, precision, n, k, distribution=input, slots=SLOTS), moved("triad", count, "_triad")
    threads, chains = blocks * BLOCK, chain_launch("fp32", blocks, BLOCK, ROUNDS)
    work = Work(
        kernel="power-mix",
        precision=precision,
        buffers=(*chain_buffers("fp32", ROUNDS), *ring.buffers, *triad.buffers),
        turns=tuple((chains, step, triad.turns[turn % 2]) for turn, step in enumerate(ring.turns)),
        flop=chain_flop("fp32", threads, ROUNDS) + 2 * n * n * k,
        bytes=12 * count,
        outputs=(*ring.outputs, *(replace(triad.outputs[turn % 2], turn=turn) for turn in range(len(ring.turns)))),
        parameters={
            "blocks": blocks,
            "n": n,
            "k": k,
            "count": count,
            "input": input,
            "ring_bytes": ring.buffers[2].bytes,
        },
        activity=(2 + SWITCHING[input]) / 3,  # of the three parts, only the product takes the input
        lap=SLOTS,
        audit=ring.audit,
        compared=chain_compared("fp32", threads) + ring.compared,
    )
    return fitting(facts, work)


def build_share(facts: Facts, *, share: float = 1.0, times: int = 8) -> Work | Unfit:
    """FLOP: 2 · multiprocessors in use · 1024 threads · 16 numbers · rounds · times, in fp32.

    `share`: of the multiprocessors, above 0 and at most 1. One block of 1024 threads is launched for each that is to
    work: the hardware gives blocks to idle multiprocessors first (assumed; NVIDIA documents no order).
    """
    if not 0 < share <= 1:
        return Unfit(f"a share of {share} of the multiprocessors: it must be above 0 and at most 1")
    used = max(1, round(share * facts.sms))
    threads = used * WHOLE_SM
    work = Work(
        kernel="power-share",
        precision="fp32",
        buffers=chain_buffers("fp32", ROUNDS),
        turns=((chain_launch("fp32", used, WHOLE_SM, ROUNDS, times),),),
        flop=chain_flop("fp32", threads, ROUNDS) * times,
        path="none",
        parameters={"share": share, "multiprocessors": used, "times": times, "rounds": ROUNDS},
        # Of the whole GPU: a multiprocessor without a block switches next to nothing (assumed).
        activity=0.9 * used / facts.sms,
        compared=chain_compared("fp32", threads) * times,
    )
    return fitting(facts, work)
