"""A step of a transformer block: large and small matrix products, with what reads and writes between them.

`transformer` goes forward. `transformer-back` goes on with the gradients of the last layers alone: structured partial
back-propagation (Kumar, Subramanian, Venkataraman and Akella, Doing More by Doing Less, arXiv:2111.10672). The
sequences are copies of three, one after another, and each repetition begins with the next of the three: what a step
left from the repetition before, or from a neighbouring sequence, is wrong. Results go round in a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from math import log2, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checking import alike
from .gemm import RING_SHARE, SHORTEST_BLOCK, TRUNCATED, WALK
from .inputs import stream_of
from .rounding import DTYPES, Doubles, encode, nearest, unit
from .sizing import fitting, flop_per_s, room
from .work import (
    COUNTERS,
    Array,
    Buffer,
    Copy,
    Expected,
    Facts,
    Gemm,
    Launch,
    Output,
    Step,
    Unfit,
    Work,
    exactly,
    unchanging,
    zeros,
)

BLOCK = 128
HEAD = 64
"""Width of an attention head; both as in transformer.cu."""

BASES = 3
"""Different sequences. No power of two is a multiple: one bit of an address leads to another of them."""

SLOTS = 8
"""Results in the ring: more than a repeat of 20 ms has. Those `BASES` apart are equal bit for bit."""

DEVIATIONS = 10.0
"""Standard deviations that a result may be off by."""

LAYERS = {"w_qkv": (3, 1), "w_out": (1, 1), "w_up": (4, 1), "w_down": (1, 4)}
"""The layers from first to last: rows and columns of their weights, in widths."""

FACTORS = (1.0, -1.0, 2.0)
"""What gradients are multiplied by, by the sequence that a repetition begins with: stale ones are far off."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a block, and how many of its last layers get gradients."""

    precision: str
    width: int
    tokens: int
    sequences: int
    depth: int = 0

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def layers(self) -> tuple[str, ...]:
        """Those that get gradients, the last first."""
        return tuple(reversed(LAYERS))[: self.depth]

    @property
    def mean(self) -> float:
        """What gradients are divided by: the power of two next to the number of sequences."""
        return float(2.0 ** round(log2(self.sequences)))


def build(
    facts: Facts, *, width: int = 1024, tokens: int = 256, sequences: int | None = None, depth: int = 0
) -> Work | Unfit:
    """FLOP, of the matrix products alone, forward: sequences · tokens · (24 · width² + 4 · tokens · width).

    `depth`: layers of `LAYERS` from the last on whose gradients are computed too, by a given slope of the loss. They
    add, in 2 · sequences · tokens · width²: 4 (w_down), 8 (w_up), 5 (w_out) and 4 + 4 · tokens / width (w_qkv).
    Bytes: what each step reads and writes. `tokens`: of a sequence; `sequences`: by default so many that a repetition
    takes about 4 ms at the highest rate. fp16 where there are tensor cores, else fp32.
    """
    if width % BLOCK or tokens % 2 or tokens < 2:
        return Unfit(f"a width of {width} and {tokens} tokens must be multiples of {BLOCK} and of 2")
    if not 0 <= depth <= len(LAYERS):
        return Unfit(f"a depth of {depth}: a block has {len(LAYERS)} layers")
    precision = "fp16" if facts.capability >= (7, 0) else "fp32"
    if sequences is None:
        small = Shape(precision, width, tokens, BASES, depth)
        ring, *gradients = (buffer.bytes for buffer in _rings(small))
        size = sum(buffer.bytes for buffer in _buffers(small)) / BASES
        by_time = flop_per_s(facts, precision, matrix=True) * 4e-3 / (_flop(_steps(small, 0)) / BASES)
        ring_room = max(0.0, RING_SHARE * facts.memory_bytes - sum(gradients))
        most = min(room(facts) / (size + ring / BASES), ring_room / (ring / BASES), 1024)
        sequences = max(1, int(min(by_time, most)) // BASES) * BASES
        if not depth:  # so that the number of a sequence in the ring, too, says which of the three it is
            sequences -= BASES - 1
        while depth and (SLOTS * sequences).bit_length() > ((SLOTS - 1) * sequences).bit_length():
            sequences -= (
                BASES  # a bit of an address would lead from the first slot to the last, to the same of the three
            )
    if depth and sequences % BASES:
        return Unfit(f"{sequences} sequences: gradients need a multiple of {BASES}")
    shape = Shape(precision, width, tokens, sequences, depth)
    rings = _rings(shape)
    turns = tuple(tuple(_steps(shape, turn)) for turn in range(SLOTS * BASES))
    buffers, omitted = (*_buffers(shape), *rings), _omitted(shape)
    work = Work(
        kernel="transformer-back" if depth else "transformer",
        precision=precision,
        buffers=(*buffers, *omitted, COUNTERS),
        turns=turns,
        flop=_flop(turns[0]),
        bytes=_moved(buffers, turns[0]),
        outputs=(
            *(output for turn in range(len(turns)) for output in _outputs(shape, rings, turn)),
            *(Output(buffer.name, unchanging(lambda seed: exactly(0))) for buffer in omitted),  # noqa: ARG005
        ),
        parameters={"width": width, "tokens": tokens, "sequences": sequences, "heads": shape.heads, "depth": depth}
        | {"ring_bytes": sum(ring.bytes for ring in rings)},
        activity=0.45,
        lap=SLOTS,
        audit=tuple(alike(ring, SLOTS, facts.sms, period=BASES) for ring in rings),
        compared=sum(ring.bytes for ring in rings) // SLOTS // 4,
    )
    return fitting(facts, work)


# -- buffers and steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """Numbers that a block is given, uniform about `centre`."""

    name: str
    shape: tuple[int, int]
    half_width: float
    precision: str
    centre: float = 0.0

    def draw(self, seed: int) -> Doubles:
        drawn = stream_of(seed, self.name).uniform(-self.half_width, self.half_width, self.shape)
        return nearest(drawn + self.centre, self.precision)

    def stored(self, seed: int) -> NDArray[Any]:
        return encode(self.draw(seed).reshape(-1), self.precision)

    def buffer(self, count: int = 0) -> Buffer:
        says = f"uniform within {self.half_width:.3g} of {self.centre:g}"
        return Buffer(self.name, DTYPES[self.precision], count or prod(self.shape), Array(says, self.stored))


def _inputs(precision: str, width: int, tokens: int) -> dict[str, _Input]:
    """x and the slopes of the loss by the block's result; what layer norms multiply by and add; the weights, whose
    variance is 1 / their inner length."""
    inputs = [_Input(name, (BASES * tokens, width), sqrt(3), precision) for name in ("x", "slopes")]
    for name, centre in (("gain1", 1.0), ("bias1", 0.0), ("gain2", 1.0), ("bias2", 0.0)):
        inputs.append(_Input(name, (1, width), 0.5, "fp32", centre))
    for name, (rows, inner) in LAYERS.items():
        inputs.append(_Input(name, (rows * width, inner * width), sqrt(3 / inner / width), precision))
    return {array.name: array for array in inputs}


_FORWARD = {"norm1": 1, "qkv": 3, "q": 1, "k": 1, "v": 1, "heads": 1, "merged": 1, "passed": 1, "middle": 1, "norm2": 1}
_FORWARD |= {"hidden": 4, "bent": 4}
_BACK: tuple[dict[str, int], ...] = (
    {"d_out": 1},
    {"d_hidden": 4},
    {"d_norm2": 1, "d_middle": 1},
    {"d_merged": 1, "d_heads": 1, "d_q": 1, "d_k": 1, "d_v": 1, "d_qkv": 3},
)
"""Intermediate results, and how many numbers of each there are for one of x; of the way back, by depth."""


def _buffers(shape: Shape) -> tuple[Buffer, ...]:
    dtype, numbers = DTYPES[shape.precision], shape.rows * shape.width
    inputs = _inputs(shape.precision, shape.width, shape.tokens)
    windows = ("x", "slopes") if shape.depth else ("x",)
    length = (shape.sequences + BASES - 1) * shape.tokens * shape.width
    between = dict(_FORWARD)
    for results in _BACK[: shape.depth]:
        between |= results
    scores = ("scores", "d_scores") if shape.depth == len(LAYERS) else ("scores",)
    return (
        *(inputs[name].buffer(length) for name in windows),
        *(array.buffer() for name, array in inputs.items() if name not in ("x", "slopes")),
        *(Buffer(name, dtype, times * numbers) for name, times in between.items()),
        *(Buffer(name, dtype, shape.rows * shape.tokens * shape.heads) for name in scores),
    )


def _rings(shape: Shape) -> tuple[Buffer, ...]:
    dtype = DTYPES[shape.precision]
    gradients = (Buffer(f"d_{name}", dtype, SLOTS * prod(LAYERS[name]) * shape.width**2) for name in shape.layers)
    return (Buffer("out", dtype, SLOTS * shape.rows * shape.width), *gradients)


def _omitted(shape: Shape) -> tuple[Buffer, ...]:
    """The gradients of the layers that get none: zeros."""
    dtype, names = DTYPES[shape.precision], LAYERS if shape.depth else ()
    return tuple(
        Buffer(f"d_{name}", dtype, prod(LAYERS[name]) * shape.width**2, zeros(dtype))
        for name in names
        if name not in shape.layers
    )


def _steps(shape: Shape, turn: int) -> Iterator[Step]:
    precision, width, tokens, rows, heads = shape.precision, shape.width, shape.tokens, shape.rows, shape.heads
    matrices, slot, first = shape.sequences * heads, turn % SLOTS, turn % BASES * tokens * width
    names = ("half", "from_fp16", "to_fp16") if precision == "fp16" else ("float", "as_is", "as_is")
    defines = tuple(f"{name}={value}" for name, value in zip(("NUMBER", "READ", "WRITE"), names, strict=True))
    spread = max(1, tokens * HEAD // (8 * BLOCK))
    start, here, scale = np.uint64(first), np.uint64(0), np.float32(HEAD**-0.5)
    wide, long = np.int32(width), np.int32(tokens)

    def launch(function: str, grid: tuple[int, int], *args: str | np.generic) -> Launch:
        return Launch("transformer.cu", function, (*grid, 1), (BLOCK, 1, 1), args, defines)

    def by_head(function: str, *args: str) -> Launch:
        return launch(function, (matrices, spread), *args, long, np.int32(heads))

    def gradient(name: str, slopes: str, inputs: str) -> Gemm:
        """Slopes by a layer's result, transposed, times its input."""
        m, n = (factor * width for factor in LAYERS[name])
        alpha = FACTORS[turn % BASES] / shape.mean
        return Gemm(
            precision, m, n, rows, slopes, inputs, f"d_{name}", across=True, plain=True, alpha=alpha, c_at=slot * m * n
        )

    yield launch("layernorm", (rows, 1), "x", start, "gain1", "bias1", "norm1", wide)
    yield Gemm(precision, rows, 3 * width, width, "norm1", "w_qkv", "qkv")
    yield by_head("split", "qkv", "q", "k", "v")
    yield Gemm(precision, tokens, tokens, HEAD, "q", "k", "scores", matrices)
    yield launch("softmax", (matrices * tokens, 1), "scores", scale, long)
    yield Gemm(precision, tokens, HEAD, tokens, "scores", "v", "heads", matrices)
    yield by_head("merge", "heads", "merged")
    yield Gemm(precision, rows, width, width, "merged", "w_out", "passed")
    yield launch("add", (rows * width // BLOCK, 1), "x", start, "passed", "middle", here)
    yield launch("layernorm", (rows, 1), "middle", here, "gain2", "bias2", "norm2", wide)
    yield Gemm(precision, rows, 4 * width, width, "norm2", "w_up", "hidden")
    yield launch("gelu", (4 * rows * width // BLOCK, 1), "hidden", "bent")
    yield Gemm(precision, rows, width, 4 * width, "bent", "w_down", "passed")
    yield launch("add", (rows * width // BLOCK, 1), "middle", here, "passed", "out", np.uint64(slot * rows * width))
    if shape.depth >= 1:
        size = np.dtype(DTYPES[precision]).itemsize
        yield Copy("slopes", "d_out", rows * width * size, source_at=first * size)
        yield gradient("w_down", "d_out", "bent")
    if shape.depth >= 2:
        yield Gemm(precision, rows, 4 * width, width, "d_out", "w_down", "d_hidden", plain=True)
        yield launch("gelu_back", (4 * rows * width // BLOCK, 1), "hidden", "d_hidden")
        yield gradient("w_up", "d_hidden", "norm2")
    if shape.depth >= 3:
        yield Gemm(precision, rows, width, 4 * width, "d_hidden", "w_up", "d_norm2", plain=True)
        yield launch("layernorm_back", (rows, 1), "middle", "gain2", "d_norm2", "d_out", "d_middle", wide)
        yield gradient("w_out", "d_middle", "merged")
    if shape.depth >= 4:
        yield Gemm(precision, rows, width, width, "d_middle", "w_out", "d_merged", plain=True)
        yield by_head("merge_back", "d_merged", "d_heads")
        yield Gemm(precision, tokens, HEAD, tokens, "scores", "d_heads", "d_v", matrices, across=True, plain=True)
        yield Gemm(precision, tokens, tokens, HEAD, "d_heads", "v", "d_scores", matrices, plain=True)
        yield launch("softmax_back", (matrices * tokens, 1), "scores", "d_scores", scale, long)
        yield Gemm(precision, tokens, HEAD, tokens, "d_scores", "k", "d_q", matrices, plain=True)
        yield Gemm(precision, tokens, HEAD, tokens, "d_scores", "q", "d_k", matrices, across=True, plain=True)
        yield by_head("split_back", "d_q", "d_k", "d_v", "d_qkv")
        yield gradient("w_qkv", "d_qkv", "norm1")


def _flop(steps: Iterator[Step] | tuple[Step, ...]) -> int:
    return sum(2 * step.m * step.n * step.k * step.batch for step in steps if isinstance(step, Gemm))


def _moved(buffers: tuple[Buffer, ...], steps: tuple[Step, ...]) -> int:
    """Bytes of the operands of all steps; a buffer that a step changes in place counts twice, of a ring one slot."""
    size = {buffer.name: buffer.bytes for buffer in buffers}
    for name in size:
        if name == "out" or name.startswith("d_w"):
            size[name] //= SLOTS
    total = 0
    for step in steps:
        if isinstance(step, Gemm):
            total += size[step.a] + size[step.b] + size[step.c]
        elif isinstance(step, Copy):
            total += 2 * step.bytes
        else:
            names = [name for name in step.args if isinstance(name, str)]
            total += sum(size[name] for name in names)
            if step.function in ("softmax", "softmax_back", "gelu_back"):
                total += size[names[-1]]
    return total


# -- what comes out ---------------------------------------------------------------------------------------------


def _outputs(shape: Shape, rings: tuple[Buffer, ...], turn: int) -> Iterator[Output]:
    """What is checked after a turn: a slot of each ring."""
    for ring in rings:
        count = ring.count // SLOTS
        expect = partial(_expect, shape, ring.name, turn % BASES)
        yield Output(ring.name, unchanging(expect), turn, turn % SLOTS * count, count)


class _Arithmetic:
    """Float64, or that with the roundings of a precision."""

    def __init__(self, precision: str | None = None) -> None:
        self._precision = precision
        self._draws = np.random.default_rng(1)

    def stored(self, values: Doubles, error: Doubles | float = 0.0) -> Doubles:
        """A result as memory keeps it, with independent errors of a size."""
        if self._precision is None:
            return values
        return nearest(values + error * self._draws.standard_normal(values.shape), self._precision)

    def computed(self, values: Doubles, scale: Doubles | None = None) -> Doubles:
        """A result of some operations in fp32 on numbers of a size."""
        return self.stored(values, 2 * unit("fp32") * np.abs(values if scale is None else scale))

    def product(self, a: Doubles, b: Doubles) -> Doubles:
        """a times b; sums of the products have random signs, and numbers like the others of their row and column."""
        exact: Doubles = a @ b
        if self._precision is None:
            return exact
        k = a.shape[-1]
        sizes = np.sqrt((a**2).sum(-1, keepdims=True) * (b**2).sum(-2, keepdims=True) / k)
        return self.stored(exact, rounding(self._precision, k) * sizes)


def rounding(precision: str, k: int) -> float:
    """Standard deviation of the error of a sum of k products, in roots of the sum of their squares: as
    `gemm.accumulation` has it."""
    if precision == "fp32":
        return sqrt(k) * unit("fp32")
    return (k / SHORTEST_BLOCK + sqrt(k)) * TRUNCATED


def _moments(x: Doubles) -> tuple[Doubles, Doubles]:
    """A row's numbers with mean 0 and variance 1, and what they were multiplied by."""
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - x.mean(-1, keepdims=True)) * scale, scale


def _bend(x: Doubles) -> Doubles:
    return np.tanh(0.7978845608 * (x + 0.044715 * x**3))


def _by_head(x: Doubles, parts: int) -> Doubles:
    """Rows (sequence, token, parts · width) to (parts, sequence, head, token, HEAD)."""
    sequences, tokens, width = x.shape
    return x.reshape(sequences, tokens, parts, width // parts // HEAD, HEAD).transpose(2, 0, 3, 1, 4)


def _in_rows(x: Doubles) -> Doubles:
    parts, sequences, heads, tokens, _ = x.shape
    return x.transpose(1, 3, 0, 2, 4).reshape(sequences, tokens, parts * heads * HEAD)


def forward(inputs: dict[str, Doubles], arithmetic: _Arithmetic) -> dict[str, Doubles]:
    """The block's results by name, of rows (sequence, token, numbers); 'x' and the weights are given."""
    product, computed = arithmetic.product, arithmetic.computed
    got = dict(inputs)
    got["norm1"] = computed(_moments(got["x"])[0] * got["gain1"] + got["bias1"])
    got["q"], got["k"], got["v"] = _by_head(product(got["norm1"], got["w_qkv"].T), 3)
    scores = product(got["q"], got["k"].swapaxes(-1, -2)) * HEAD**-0.5
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    got["shares"] = computed(raised / raised.sum(-1, keepdims=True))
    got["merged"] = _in_rows(product(got["shares"], got["v"])[None])
    got["middle"] = computed(got["x"] + product(got["merged"], got["w_out"].T))
    got["norm2"] = computed(_moments(got["middle"])[0] * got["gain2"] + got["bias2"])
    got["hidden"] = product(got["norm2"], got["w_up"].T)
    got["bent"] = computed(got["hidden"] / 2 * (1 + _bend(got["hidden"])), got["hidden"])
    got["out"] = computed(got["middle"] + product(got["bent"], got["w_down"].T))
    return got


def gradients(got: dict[str, Doubles], arithmetic: _Arithmetic) -> Iterator[tuple[str, tuple[Doubles, Doubles]]]:
    """Of each layer, the last first: slopes of the loss by its result, and its input. The gradient by its weights is
    the one, transposed, times the other. `got` is of `forward`, with 'slopes' by the block's result."""
    product, computed = arithmetic.product, arithmetic.computed
    yield "w_down", (got["slopes"], got["bent"])

    x, bent = got["hidden"], _bend(got["hidden"])
    bends = (1 + bent) / 2 + x / 2 * (1 - bent**2) * 0.7978845608 * (1 + 3 * 0.044715 * x**2)
    slopes = computed(product(got["slopes"], got["w_down"]) * bends)
    yield "w_up", (slopes, got["norm2"])

    slopes = product(slopes, got["w_up"]) * got["gain2"]
    standard, scale = _moments(got["middle"])
    along = (slopes * standard).mean(-1, keepdims=True)
    inner = scale * (slopes - slopes.mean(-1, keepdims=True) - standard * along)
    slopes = computed(got["slopes"] + inner, scale * slopes)
    yield "w_out", (slopes, got["merged"])

    (heads,) = _by_head(product(slopes, got["w_out"]), 1)
    shares = got["shares"]
    slopes = product(heads, got["v"].swapaxes(-1, -2))
    slopes = computed(HEAD**-0.5 * shares * (slopes - (slopes * shares).sum(-1, keepdims=True)))
    by_q, by_k = product(slopes, got["k"]), product(slopes.swapaxes(-1, -2), got["q"])
    by_v = product(shares.swapaxes(-1, -2), heads)
    yield "w_qkv", (_in_rows(np.stack((by_q, by_k, by_v))), got["norm1"])


@dataclass(frozen=True)
class _Period:
    """One period of a result: rows of all bases, or a gradient summed over one copy of each."""

    values: Doubles
    error: Doubles
    """Standard deviation."""
    root: Doubles | None = None
    """Of a gradient: root of the sum of the squares of its products."""


@lru_cache(maxsize=4)
def _results(precision: str, width: int, tokens: int, depth: int, seed: int) -> dict[str, _Period]:
    """By ring, in float64. The error is that of the same with every stored result rounded to the precision, and every
    sum of products off by what tensor cores cut off, with a random sign."""
    drawn = {name: array.draw(seed) for name, array in _inputs(precision, width, tokens).items()}
    drawn |= {name: drawn[name].reshape(BASES, tokens, width) for name in ("x", "slopes")}
    kinds = (_Arithmetic(), _Arithmetic(precision))
    exact, rounded = (forward(drawn, arithmetic) for arithmetic in kinds)
    results = {"out": _Period(_flat(exact["out"]), _spread(_flat(rounded["out"] - exact["out"])))}
    layers = zip(*(gradients(got, kind) for got, kind in zip((exact, rounded), kinds, strict=True)), strict=True)
    for (name, pair), (_, rounded_pair) in islice(layers, depth):
        (slopes, inputs), (rounded_slopes, rounded_inputs) = map(_flat, pair), map(_flat, rounded_pair)
        values, error = slopes.T @ inputs, _spread(rounded_slopes.T @ rounded_inputs - slopes.T @ inputs)
        results[f"d_{name}"] = _Period(values, error, np.sqrt((slopes**2).T @ inputs**2))
    return results


def _flat(x: Doubles) -> Doubles:
    return x.reshape(-1, x.shape[-1])


def _spread(error: Doubles) -> Doubles:
    """Standard deviation of errors that differ by row and by column."""
    squares = error**2
    by_row, by_column = squares.mean(1, keepdims=True), squares.mean(0, keepdims=True)
    return np.asarray(np.sqrt(by_row * by_column / max(squares.mean(), 1e-300)))


@lru_cache(maxsize=32)
def _expect(shape: Shape, ring: str, first: int, seed: int) -> Expected:
    """A slot of a ring after a turn that begins with the base `first`, within `DEVIATIONS`, and two units.

    A gradient's sum over all sequences, copies of three, grows steadily, so that all that is cut off adds up.
    """
    result = _results(shape.precision, shape.width, shape.tokens, shape.depth, seed)[ring]
    values, tolerance = result.values, DEVIATIONS * result.error
    if result.root is None:
        values, tolerance = (np.roll(matrix, -first * shape.tokens, axis=0) for matrix in (values, tolerance))
    else:
        factor, copies = FACTORS[first] / shape.mean, shape.sequences // BASES
        values, tolerance = factor * copies * values, abs(factor) * copies * tolerance
        cut = DEVIATIONS * rounding(shape.precision, shape.rows)
        tolerance += cut * (np.abs(values) + abs(factor) * WALK * result.root)
    return Expected(values.shape[1], values, tolerance + 2 * unit(shape.precision) * np.abs(values))
