"""One forward step of a transformer block: large and small matrix products, with what reads and writes between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gemm import SHORTEST_BLOCK, TRUNCATED
from .inputs import stream_of
from .rounding import DTYPES, Doubles, encode, nearest, unit
from .sizing import fitting, flop_per_s, room
from .work import Array, Buffer, Expected, Facts, Gemm, Kernel, Launch, Output, Step, Unfit, Work, unchanging

BLOCK = 128
HEAD = 64
"""Width of an attention head; both as in transformer.cu."""

DEVIATIONS = 10.0
"""Standard deviations that a result may be off by."""


def build(facts: Facts, *, width: int = 1024, tokens: int = 256, sequences: int | None = None) -> Work | Unfit:
    """FLOP, of the matrix products alone: sequences · tokens · (24 · width² + 4 · tokens · width).

    Bytes: what each step reads and writes. `tokens`: of a sequence; `sequences`: all alike, by default so many that
    a repetition takes about 4 ms at the highest rate. fp16 where there are tensor cores, else fp32.
    """
    if width % BLOCK or tokens % 2 or tokens < 2:
        return Unfit(f"a width of {width} and {tokens} tokens must be multiples of {BLOCK} and of 2")
    precision = "fp16" if facts.capability >= (7, 0) else "fp32"
    one = tokens * (24 * width * width + 4 * tokens * width)
    heads = width // HEAD
    itemsize = np.dtype(DTYPES[precision]).itemsize
    each = itemsize * tokens * ((1 + sum(BETWEEN.values())) * width + heads * tokens)
    weights = itemsize * 12 * width * width + 16 * width
    if sequences is None:
        wanted = flop_per_s(facts, precision, matrix=True) * 4e-3 / one
        sequences = max(1, min(round(wanted), (room(facts) - weights) // each, 1024))
    buffers = _buffers(precision, width, tokens, sequences)
    steps = tuple(_steps(precision, width, tokens, sequences))
    work = Work(
        kernel="transformer",
        precision=precision,
        buffers=buffers,
        turns=(steps,),
        flop=sequences * one,
        bytes=_moved(buffers, steps),
        outputs=(Output("out", unchanging(partial(_expect, precision, width, tokens)), _DERIVATION),),
        parameters={"width": width, "tokens": tokens, "sequences": sequences, "heads": heads},
        activity=0.45,
    )
    return fitting(facts, work)


@dataclass(frozen=True)
class _Input:
    """Numbers that a block is given, uniform about `centre`."""

    name: str
    shape: tuple[int, int]
    half_width: float
    says: str
    precision: str
    centre: float = 0.0

    def draw(self, seed: int) -> Doubles:
        drawn = stream_of(seed, self.name).uniform(-self.half_width, self.half_width, self.shape)
        return nearest(drawn + self.centre, self.precision)

    def stored(self, seed: int) -> NDArray[Any]:
        return encode(self.draw(seed).reshape(-1), self.precision)

    def buffer(self, times: int = 1) -> Buffer:
        count = self.shape[0] * self.shape[1] * times
        return Buffer(self.name, DTYPES[self.precision], count, Array(self.says, self.stored))


def _inputs(precision: str, width: int, tokens: int) -> tuple[_Input, ...]:
    """x, then what layer norms multiply by and add, then the weights, whose variance is 1 / their inner length."""
    norms = (("gain1", 1.0), ("bias1", 0.0), ("gain2", 1.0), ("bias2", 0.0))
    weights = (("w_qkv", 3, 1), ("w_out", 1, 1), ("w_up", 4, 1), ("w_down", 1, 4))
    return (
        _Input("x", (tokens, width), sqrt(3), "uniform, variance 1", precision),
        *(_Input(name, (1, width), 0.5, f"uniform within 1/2 of {at:g}", "fp32", at) for name, at in norms),
        *(
            _Input(
                name,
                (rows * width, inner * width),
                sqrt(3 / (inner * width)),
                f"1 / variance = {inner * width}",
                precision,
            )
            for name, rows, inner in weights
        ),
    )


BETWEEN = {
    "norm": 1,
    "qkv": 3,
    "q": 1,
    "k": 1,
    "v": 1,
    "heads": 1,
    "merged": 1,
    "passed": 1,
    "middle": 1,
    "hidden": 4,
    "out": 1,
}
"""Results, and how many numbers of each there are for a number of x."""


def _buffers(precision: str, width: int, tokens: int, sequences: int) -> tuple[Buffer, ...]:
    dtype, rows = DTYPES[precision], sequences * tokens
    x, *others = _inputs(precision, width, tokens)
    return (
        x.buffer(sequences),
        *(each.buffer() for each in others),
        *(Buffer(name, dtype, times * rows * width) for name, times in BETWEEN.items()),
        Buffer("scores", dtype, rows * tokens * (width // HEAD)),
    )


def _steps(precision: str, width: int, tokens: int, sequences: int) -> Iterator[Step]:
    rows, heads = sequences * tokens, width // HEAD
    matrices = sequences * heads
    names = ("half", "from_fp16", "to_fp16") if precision == "fp16" else ("float", "as_is", "as_is")
    defines = tuple(f"{name}={value}" for name, value in zip(("NUMBER", "READ", "WRITE"), names, strict=True))
    spread = max(1, tokens * HEAD // (8 * BLOCK))

    def launch(function: str, grid: tuple[int, int], *args: str | np.generic) -> Launch:
        return Launch("transformer.cu", function, (*grid, 1), (BLOCK, 1, 1), args, defines)

    shape = (np.int32(tokens), np.int32(heads))
    yield launch("layernorm", (rows, 1), "x", "gain1", "bias1", "norm", np.int32(width))
    yield Gemm(precision, rows, 3 * width, width, "norm", "w_qkv", "qkv")
    yield launch("split", (matrices, spread), "qkv", "q", "k", "v", *shape)
    yield Gemm(precision, tokens, tokens, HEAD, "q", "k", "scores", matrices)
    yield launch("softmax", (matrices * tokens, 1), "scores", np.float32(HEAD**-0.5), np.int32(tokens))
    yield Gemm(precision, tokens, HEAD, tokens, "scores", "v", "heads", matrices)
    yield launch("merge", (matrices, spread), "heads", "merged", *shape)
    yield Gemm(precision, rows, width, width, "merged", "w_out", "passed")
    yield launch("add", (rows * width // BLOCK, 1), "x", "passed", "middle")
    yield launch("layernorm", (rows, 1), "middle", "gain2", "bias2", "norm", np.int32(width))
    yield Gemm(precision, rows, 4 * width, width, "norm", "w_up", "hidden")
    yield launch("gelu", (4 * rows * width // BLOCK, 1), "hidden")
    yield Gemm(precision, rows, width, 4 * width, "hidden", "w_down", "passed")
    yield launch("add", (rows * width // BLOCK, 1), "middle", "passed", "out")


def _moved(buffers: tuple[Buffer, ...], steps: tuple[Step, ...]) -> int:
    """Bytes of the operands of all steps; a buffer that a step changes in place counts twice."""
    size = {buffer.name: buffer.bytes for buffer in buffers}
    total = 0
    for step in steps:
        if isinstance(step, Gemm):
            total += size[step.a] + size[step.b] + size[step.c]
        elif isinstance(step, Launch):
            named = [each for each in step.args if isinstance(each, str)]
            total += sum(size[each] for each in named) * (2 if step.function in ("softmax", "gelu") else 1)
    return total


_DERIVATION = (
    "the variance of rounding errors is carried through every step to first order (u² / 3 of the square of what is "
    "rounded; sums of products as in gemm); 10 standard deviations are allowed"
)


class _Rounded:
    """Numbers and the variance of their errors."""

    def __init__(self, values: Doubles, variance: Doubles | float, precision: str) -> None:
        self.values = values
        self.variance = variance + (unit(precision) * values) ** 2 / 3


def _added(k: int, precision: str) -> float:
    """Variance of the error of a sum of k products, by the sum of their squares: as `gemm.accumulation` has it."""
    if precision == "fp32":
        return k * unit("fp32") ** 2
    return ((k / SHORTEST_BLOCK + sqrt(k)) * TRUNCATED) ** 2


def _product(a: _Rounded, weights: Doubles, precision: str) -> _Rounded:
    squared = weights * weights
    root2 = (a.values * a.values) @ squared.T
    added = _added(weights.shape[1], precision) * root2
    return _Rounded(a.values @ weights.T, a.variance @ squared.T + added, precision)


def _normed(a: _Rounded, gain: Doubles, bias: Doubles, precision: str) -> _Rounded:
    mean = a.values.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt(a.values.var(axis=1, keepdims=True) + 1e-5)
    standard = (a.values - mean) * scale
    shared = a.variance.mean(axis=1, keepdims=True) / a.values.shape[1] * (1 + standard**2)
    return _Rounded(standard * gain + bias, (gain * scale) ** 2 * (a.variance + shared), precision)


def _attention(qkv: _Rounded, width: int, precision: str) -> _Rounded:
    values, variance = np.empty_like(qkv.values[:, :width]), np.empty_like(qkv.values[:, :width])
    scale = HEAD**-0.5
    for start in range(0, width, HEAD):
        q, k, v = (slice(part * width + start, part * width + start + HEAD) for part in range(3))
        query, key, value = qkv.values[:, q], qkv.values[:, k], qkv.values[:, v]
        scores = _Rounded(
            query @ key.T,
            qkv.variance[:, q] @ (key**2).T
            + query**2 @ qkv.variance[:, k].T
            + _added(HEAD, precision) * (query**2 @ (key**2).T),
            precision,
        )
        raised = np.exp(scale * (scores.values - scores.values.max(axis=1, keepdims=True)))
        share = raised / raised.sum(axis=1, keepdims=True)
        moved = scale**2 * scores.variance
        together = (share**2 * moved).sum(axis=1, keepdims=True)
        shares = _Rounded(share, share**2 * (moved * np.abs(1 - 2 * share) + together), precision)
        # Below the normal range fp16 rounds to a fixed step.
        shares.variance += unit(precision) ** 2 * 2.0**-28 if precision == "fp16" else 0.0
        result = _Rounded(
            share @ value,
            shares.variance @ value**2
            + share**2 @ qkv.variance[:, v]
            + _added(len(share), precision) * share**2 @ value**2,
            precision,
        )
        values[:, start : start + HEAD], variance[:, start : start + HEAD] = result.values, result.variance
    done = _Rounded(values, 0.0, precision)
    done.variance = variance
    return done


def _gelu(a: _Rounded, precision: str) -> _Rounded:
    x = a.values
    inner = 0.7978845608 * (x + 0.044715 * x**3)
    bent = np.tanh(inner)
    slope = 0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * 0.7978845608 * (1 + 3 * 0.044715 * x**2)
    # 1 + tanh loses what it has of tanh's last bits where it nears 0: an fp32 rounding of 1, times x / 2.
    return _Rounded(0.5 * x * (1 + bent), slope**2 * a.variance + (2 * unit("fp32") * x) ** 2, precision)


@lru_cache(maxsize=4)
def _expect(precision: str, width: int, tokens: int, seed: int) -> Expected:
    """The block in float64, (tokens, width), and how far roundings can take it."""
    given = {each.name: each.draw(seed) for each in _inputs(precision, width, tokens)}
    x = _Rounded(given["x"], 0.0, precision)
    x.variance = np.zeros_like(x.values)
    qkv = _product(_normed(x, given["gain1"], given["bias1"], precision), given["w_qkv"], precision)
    passed = _product(_attention(qkv, width, precision), given["w_out"], precision)
    middle = _Rounded(x.values + passed.values, passed.variance, precision)
    hidden = _product(_normed(middle, given["gain2"], given["bias2"], precision), given["w_up"], precision)
    passed = _product(_gelu(hidden, precision), given["w_down"], precision)
    out = _Rounded(middle.values + passed.values, middle.variance + passed.variance, precision)
    return Expected(width, out.values, DEVIATIONS * np.sqrt(out.variance))


TRANSFORMER = Kernel(
    name="transformer",
    version="1",
    stresses="tensor cores with memory between",
    says="one forward step of a transformer block: attention and multilayer perceptron of width 1024",
    build=build,
)
