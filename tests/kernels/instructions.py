"""What each instruction of PTX does to the registers of the threads that do it together.

An instruction becomes a function of a wave (see interpreter.py) and of the threads that do it. Written from NVIDIA's
"Parallel Thread Execution ISA"; what is approximate on a GPU (ex2.approx and the like) is rounded to nearest here.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whorl.kernels.rounding import decode, encode, fused
from whorl.tests.kernels.compiling import c_library
from whorl.tests.kernels.ptx import TYPES, UNSIGNED, Instruction, Kernel

if TYPE_CHECKING:
    from whorl.tests.kernels.interpreter import Wave

Values = Any
"""An array with an element a thread, or one scalar for all of them."""
Selection = Any
"""The threads that do an instruction: their numbers in the wave, or `slice(None)`."""
Action = Callable[["Wave", Selection], None]
Reader = Callable[["Wave", Selection], Values]
Writer = Callable[["Wave", Selection, Values], None]

SHARED_WINDOW, LOCAL_WINDOW = 1 << 60, 1 << 61
"""Where shared and local memory lie among generic addresses."""

_PACKED = {"f16": "fp16", "f16x2": "fp16", "bf16": "bf16", "bf16x2": "bf16"}


class UnknownInstructionError(NotImplementedError):
    """An instruction, or a form of one, that the interpreter does not know."""


# -- operands


def reader(kernel: Kernel, operand: str, kind: str) -> Reader:
    """The values of an operand as a type of PTX has them."""
    dtype = np.dtype(TYPES[kind])
    if operand in kernel.registers:
        return _register_reader(kernel, operand, dtype)
    if operand.startswith("!"):
        inner = reader(kernel, operand[1:], kind)
        return lambda wave, threads: ~inner(wave, threads)
    if operand.startswith("%") or operand == "WARP_SZ":
        return lambda wave, threads: wave.special(operand)[threads].astype(dtype)
    if operand in kernel.constants:
        return lambda wave, threads: np.uint64(wave.launch.constants + kernel.constants[operand].offset)
    if operand in kernel.shared or operand in kernel.local:
        return _constant(kernel.shared.get(operand, kernel.local.get(operand, 0)), dtype)
    if operand[:2] in ("0f", "0d"):
        return _constant(int(operand[2:], 16), dtype)
    return _constant(int(operand.rstrip("U"), 0), dtype)


def _constant(bits: int, dtype: np.dtype[Any]) -> Reader:
    value: Any = np.bool_(bits)
    if dtype != np.bool_:
        value = np.array(bits & ((1 << 8 * dtype.itemsize) - 1), UNSIGNED[dtype.itemsize]).view(dtype)[()]
    return lambda wave, threads: value


def _register_reader(kernel: Kernel, register: str, dtype: np.dtype[Any]) -> Reader:
    declared = _stored(kernel, register)
    if declared == np.bool_ or declared == dtype:
        return lambda wave, threads: wave.registers[register][threads]
    if declared.itemsize == dtype.itemsize:
        return lambda wave, threads: wave.registers[register].view(dtype)[threads]
    narrow = UNSIGNED[dtype.itemsize]
    return lambda wave, threads: wave.registers[register][threads].astype(narrow).view(dtype)


def _stored(kernel: Kernel, register: str) -> np.dtype[Any]:
    """What a register is held as: bool, or unsigned bits."""
    kind = np.dtype(TYPES[kernel.registers[register]])
    return kind if kind == np.bool_ else np.dtype(UNSIGNED[kind.itemsize])


def raw_bits(values: Values, dtype: np.dtype[Any]) -> Values:
    """Values as the bits of a register of `dtype` (unsigned, or bool): signed ones are extended by their sign."""
    if values.dtype == dtype:
        return values
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "i" and size < dtype.itemsize:
        return values.astype(f"i{dtype.itemsize}").view(dtype)
    if kind in "if":
        return values.view(UNSIGNED[size])
    return values


def writer(kernel: Kernel, operand: str) -> Writer:
    """Puts values into a register; `_` takes none."""
    if operand == "_":
        return lambda wave, threads, values: None
    dtype = _stored(kernel, operand)

    def put(wave: Wave, threads: Selection, values: Values) -> None:
        register = wave.registers.get(operand)
        if register is None:
            register = wave.registers[operand] = np.zeros(wave.size, dtype)
        register[threads] = raw_bits(values, dtype)

    return put


def vector(operand: str) -> list[str]:
    """The operands of `{%r1, %r2}`, or the one."""
    return [register.strip() for register in operand.strip("{} ").split(",")]


def address(kernel: Kernel, operand: str) -> Reader:
    """The addresses of `[%rd1+16]`, as uint64."""
    parts = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
    if parts is None:
        raise UnknownInstructionError(operand)
    base, offset = parts[1], int(parts[2] or 0) & (1 << 64) - 1
    if base in kernel.registers:
        register = _register_reader(kernel, base, np.dtype(TYPES[kernel.registers[base]]))
        return lambda wave, threads: (
            raw_bits(register(wave, threads), np.dtype(np.uint64)).astype(np.uint64) + np.uint64(offset)
        )
    inner = reader(kernel, base, "u64")
    return lambda wave, threads: np.full(wave.count(threads), inner(wave, threads) + np.uint64(offset))


# -- arithmetic


def _flushed(values: Values) -> Values:
    """`.ftz`: numbers below the normal range are zeros of their sign."""
    small = np.abs(values) < np.float32(2.0**-126)
    return np.where(small, np.copysign(np.float32(0), values), values) if small.any() else values


def _directed(result: Values, exact: Values, mode: str) -> Values:
    """`result`, the number of the format nearest to `exact`, moved to the side that .rm, .rp or .rz says."""
    step = {"rm": -np.inf, "rp": np.inf}.get(mode, 0.0)
    if mode == "rz":
        past = np.abs(result.astype(np.float64)) > np.abs(exact)
    else:
        past = (result.astype(np.float64) > exact) if mode == "rm" else (result.astype(np.float64) < exact)
    return np.where(past, np.nextafter(result, result.dtype.type(step)), result)


def _fma(a: Values, x: Values, c: Values, *, flush: bool = False) -> Values:
    """a x + c of float32 or float64, rounded once."""
    operands = [np.ascontiguousarray(operand) for operand in (a, x, c)]  # scalars become arrays of one
    size = max(operand.size for operand in operands)
    scalars = sum(1 << place for place, operand in enumerate(operands) if operand.size < size)
    out = np.empty(size, a.dtype)
    function = _fma_f32() if a.dtype == np.float32 else _fma_f64()
    addresses = [array.__array_interface__["data"][0] for array in (*operands, out)]
    function(size, int(flush), scalars, *addresses)
    return out


@cache
def _fma_f32() -> Callable[..., None]:
    return _typed(c_library("fma.c").fma_f32)


@cache
def _fma_f64() -> Callable[..., None]:
    return _typed(c_library("fma.c").fma_f64)


def _typed(function: Any) -> Callable[..., None]:
    function.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 4]
    function.restype = None
    typed: Callable[..., None] = function
    return typed


_AS_FMA: dict[str, Callable[..., tuple[Values, Values, Values]]] = {
    "fma": lambda a, x, c: (a, x, c),
    "mul": lambda a, x: (a, x, np.copysign(0.0, a * x)),
    "add": lambda a, c: (a, np.float64(1), c),
    "sub": lambda a, c: (a, np.float64(1), -c),
}


def _fused(operands: tuple[Values, Values, Values], precision: str) -> Values:
    a, x, c = np.broadcast_arrays(*operands)
    return fused(a, x, c, precision)


def _half(values: Values, shift: int, precision: str) -> Values:
    """One of the 16-bit floats of a register, as float64."""
    bits = (values.view(UNSIGNED[values.dtype.itemsize]) >> shift).astype(np.uint16)
    return decode(bits.view(np.float16) if precision == "fp16" else bits, precision)


def _packed(operation: str, operands: Sequence[Values], kind: str) -> Values:
    """Arithmetic of 16-bit floats, one or two in a register."""
    precision = _PACKED[kind]
    lanes = []
    for shift in (0, 16) if kind.endswith("x2") else (0,):
        numbers = [_half(operand, shift, precision) for operand in operands]
        if operation in _AS_FMA:
            result = _fused(_AS_FMA[operation](*numbers), precision)
        else:
            result = {"min": np.fmin, "max": np.fmax, "neg": np.negative, "abs": np.abs}[operation](*numbers)
        lanes.append(encode(result, precision).view(np.uint16).astype(np.uint32) << np.uint32(shift))
    return (lanes[0] | lanes[1]) if len(lanes) == 2 else lanes[0].astype(np.uint16)


def _high_product(x: Values, y: Values) -> Values:
    """The upper half of the product of integers."""
    size, signed = x.dtype.itemsize, x.dtype.kind == "i"
    if size < 8:
        wide = np.dtype(f"{'i' if signed else 'u'}{2 * size}")
        return (x.astype(wide) * y.astype(wide) >> wide.type(8 * size)).astype(x.dtype)
    a, b = x.view(np.uint64), y.view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    cross = (a >> half) * (b & low) + ((a & low) * (b & low) >> half)
    middle = (a & low) * (b >> half) + (cross & low)
    high = (a >> half) * (b >> half) + (cross >> half) + (middle >> half)
    if signed:
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return high.view(x.dtype)


def _divided(x: Values, y: Values) -> Values:
    if x.dtype.kind != "i":
        return x / y if x.dtype.kind == "f" else x // y
    unsigned = UNSIGNED[x.dtype.itemsize]
    quotient = (np.abs(x).view(unsigned) // np.abs(y).view(unsigned)).view(x.dtype)
    return np.where((x < 0) ^ (y < 0), -quotient, quotient)


def _shifted(leftwards: bool, x: Values, count: Values) -> Values:
    """Shifts by as many bits as there are, or more, leave zeros, or signs."""
    bits = 8 * x.dtype.itemsize
    within = np.minimum(count, bits - 1).astype(x.dtype)
    result = x << within if leftwards else x >> within
    if leftwards or x.dtype.kind == "u":
        result = np.where(count >= bits, x.dtype.type(0), result)
    return result


def _funnel(leftwards: bool, wrap: bool, low: Values, high: Values, count: Values) -> Values:
    amount = (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.uint64)
    pair = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    if leftwards:
        pair = np.where(amount == 32, pair << np.uint64(31) << np.uint64(1), pair << amount) >> np.uint64(32)
    else:
        pair = pair >> amount
    return pair.astype(np.uint32)


def _permuted(a: Values, b: Values, selector: Values) -> Values:
    """prmt: four bytes of eight; a selector of 8 or more copies the sign of its byte."""
    pair = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    result: Values = np.uint32(0)
    for place in range(4):
        choice = (selector >> np.uint32(4 * place)).astype(np.uint64)
        byte = pair >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(choice & np.uint64(8), sign, byte)
        result = result | (byte.astype(np.uint32) << np.uint32(8 * place))
    return result


def _field(x: Values, position: Values, length: Values) -> Values:
    """bfe: `length` bits from `position`; signed types copy the highest bit of the field."""
    bits, kind = 8 * x.dtype.itemsize, x.dtype
    position, length = (np.minimum(counts & np.uint32(255), bits).astype(np.int64) for counts in (position, length))
    end = np.minimum(position + length, bits)
    width = np.maximum(end - position, 0)
    up = _shifted(True, x, bits - end)
    result = _shifted(False, up, np.minimum(bits - width, bits))
    return np.where(width == 0, kind.type(0), result)


def _inserted(a: Values, b: Values, position: Values, length: Values) -> Values:
    """bfi: the lowest `length` bits of a stand in b from `position`."""
    bits, unsigned = 8 * a.dtype.itemsize, a.dtype.type
    position, length = (np.minimum(counts & np.uint32(255), bits).astype(np.int64) for counts in (position, length))
    ones = _shifted(False, np.full(np.shape(length), ~unsigned(0)), bits - length)
    mask = _shifted(True, ones, position)
    return b & ~mask | _shifted(True, a, position) & mask


def _leading_zeros(x: Values) -> Values:
    bits = 8 * x.dtype.itemsize
    count = np.full(np.shape(x), bits, np.uint32)
    for bit in range(bits):
        count = np.where(x >> x.dtype.type(bit) != 0, np.uint32(bits - 1 - bit), count)
    return count


def _reversed_bits(x: Values) -> Values:
    result = x.dtype.type(0)
    bits = 8 * x.dtype.itemsize
    for bit in range(bits):
        result = result | ((x >> x.dtype.type(bit) & x.dtype.type(1)) << x.dtype.type(bits - 1 - bit))
    return result


def _lookup(a: Values, b: Values, c: Values, table: Values) -> Values:
    """lop3: the bit of `table` that three bits choose."""
    result = np.uint32(0)
    for entry in range(8):
        if int(table) >> entry & 1:
            result = result | (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
    return result


def _in_double(function: Callable[[Any], Any]) -> Callable[[Values], Values]:
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


_ONE: dict[str, Callable[[Values], Values]] = {
    "abs": np.abs,
    "neg": np.negative,
    "not": np.invert,
    "cnot": lambda x: (x == 0).astype(x.dtype),
    "sqrt": np.sqrt,
    "rcp": lambda x: x.dtype.type(1) / x,
    "rsqrt": _in_double(lambda x: 1 / np.sqrt(x)),
    "ex2": _in_double(np.exp2),
    "lg2": _in_double(np.log2),
    "sin": _in_double(np.sin),
    "cos": _in_double(np.cos),
    "tanh": _in_double(np.tanh),
    "popc": lambda x: np.bitwise_count(x).astype(np.uint32),
    "clz": _leading_zeros,
    "brev": _reversed_bits,
    "bfind": lambda x: np.uint32(8 * x.dtype.itemsize - 1) - _leading_zeros(x),
}
_TWO: dict[str, Callable[[Values, Values], Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "div": _divided,
    "rem": lambda x, y: np.fmod(x, y),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "copysign": lambda sign, size: np.copysign(size, sign),
}
_MORE: dict[str, Callable[..., Values]] = {"prmt": _permuted, "bfe": _field, "bfi": _inserted, "lop3": _lookup}
_OPERATIONS: dict[str, Callable[..., Values]] = {**_MORE, **_ONE, **_TWO}
_LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
_COMPARISONS |= {"ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def _product(parts: Sequence[str], x: Values, y: Values) -> Values:
    if "wide" in parts:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
        return x.astype(wide) * y.astype(wide)
    return _high_product(x, y) if "hi" in parts else x * y


def _arithmetic(parts: Sequence[str]) -> Callable[..., Values]:
    """What an operation computes from its operands' values."""
    name, kind = parts[0], parts[-1]
    if kind in _PACKED and name not in ("and", "or", "xor", "not"):
        return lambda *operands: _packed(name, operands, kind)
    if name in ("max", "min"):
        functions = (np.maximum, np.minimum) if "NaN" in parts or kind[0] != "f" else (np.fmax, np.fmin)
        return functions[name == "min"]
    if name == "fma" or (name == "mad" and kind[0] == "f"):
        return lambda a, x, c: _fma(a, x, c, flush="ftz" in parts)
    if name == "mul":
        return lambda x, y: _product(parts, x, y)
    if name == "mad":
        return lambda x, y, c: _product(parts, x, y) + c
    if name in ("shl", "shr"):
        return lambda x, by: _shifted(name == "shl", x, by)
    if name == "shf":
        return lambda low, high, by: _funnel("l" in parts, "wrap" in parts, low, high, by)
    if name == "bfind" and "shiftamt" in parts:
        return lambda x: np.where(x == 0, ~np.uint32(0), _leading_zeros(x))
    if name not in _OPERATIONS:
        raise UnknownInstructionError(name)
    return _OPERATIONS[name]


_COUNTS = {"shl": (1,), "shr": (1,), "shf": (2,), "bfe": (1, 2), "bfi": (2, 3)}
"""Operands that are counts of bits, 32 bits wide whatever the type."""


def arithmetic(kernel: Kernel, instruction: Instruction) -> Action:
    parts, kind = instruction.parts, instruction.type
    function = _arithmetic(parts)
    kinds = [kind] * (len(instruction.operands) - 1)
    for place in _COUNTS.get(parts[0], ()):
        kinds[place] = "u32"
    if parts[0] == "mad" and "wide" in parts:
        kinds[2] = f"{kind[0]}{2 * int(kind[1:])}"
    readers = [
        reader(kernel, operand, operand_kind)
        for operand, operand_kind in zip(instruction.operands[1:], kinds, strict=True)
    ]
    put = writer(kernel, instruction.operands[0])
    flush, saturate = "ftz" in parts and kind == "f32" and parts[0] != "fma", "sat" in parts
    mode = next((part for part in parts if part in ("rm", "rp", "rz")), None) if kind[0] == "f" else None

    def action(wave: Wave, threads: Selection) -> None:
        operands = [read(wave, threads) for read in readers]
        if flush:
            operands = [_flushed(operand) for operand in operands]
        result = function(*operands)
        if mode is not None and kind == "f32":
            wide = [operand.astype(np.float64) for operand in operands]
            result = _directed(np.asarray(result), function(*wide), mode)
        if flush:
            result = _flushed(result)
        if saturate and kind[0] == "f":
            result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(result.dtype)
        put(wave, threads, result)

    return action


def comparison(kernel: Kernel, instruction: Instruction) -> Action:
    """setp, with what it is joined to by .and, .or or .xor; set."""
    parts, kind = instruction.parts, instruction.type
    name = parts[1]
    join = next((part for part in parts[2:] if part in _LOGIC), None)
    targets = [writer(kernel, register) for register in instruction.operands[0].split("|")]
    x, y = (reader(kernel, operand, kind) for operand in instruction.operands[1:3])
    joined = reader(kernel, instruction.operands[3], "pred") if join else None
    floating, flush = kind[0] == "f" or kind in _PACKED, "ftz" in parts and kind == "f32"

    def action(wave: Wave, threads: Selection) -> None:
        a, b = x(wave, threads), y(wave, threads)
        if kind == "bf16":
            a, b = decode(a, "bf16"), decode(b, "bf16")
        if flush:
            a, b = _flushed(a), _flushed(b)
        unordered = (np.isnan(a) | np.isnan(b)) if floating else np.False_
        if name in ("num", "nan"):
            result = unordered if name == "nan" else ~unordered
        elif floating and name.endswith("u"):
            result = _COMPARISONS[name[:-1]](a, b) | unordered
        else:
            result = _COMPARISONS[name](a, b) & ~unordered
        results = [result, ~result]
        if join and joined is not None:
            results = [_LOGIC[join](condition, joined(wave, threads)) for condition in results]
        for put, condition in zip(targets, results, strict=False):
            put(wave, threads, condition)

    return action


def selection(kernel: Kernel, instruction: Instruction) -> Action:
    put = writer(kernel, instruction.operands[0])
    yes, no = (reader(kernel, operand, instruction.type) for operand in instruction.operands[1:3])
    choice = reader(kernel, instruction.operands[3], "pred")
    return lambda wave, threads: put(
        wave, threads, np.where(choice(wave, threads), yes(wave, threads), no(wave, threads))
    )


def move(kernel: Kernel, instruction: Instruction) -> Action:
    """mov and cvta; vectors of registers are parts of the other operand."""
    target, operand = instruction.operands
    kind = instruction.type
    if instruction.parts[0] == "cvta":
        return _window(kernel, instruction)
    if "{" in operand:
        pieces = vector(operand)
        size = np.dtype(TYPES[kind]).itemsize // len(pieces)
        readers = [reader(kernel, piece, f"u{8 * size}") for piece in pieces]
        put, wide = writer(kernel, target), UNSIGNED[size * len(pieces)]

        def join(wave: Wave, threads: Selection) -> None:
            joint = wide(0)
            for place, piece in enumerate(readers):
                joint = joint | (piece(wave, threads).astype(wide) << wide(8 * size * place))
            put(wave, threads, joint)

        return join
    read = reader(kernel, operand, kind)
    if "{" not in target:
        put = writer(kernel, target)
        return lambda wave, threads: put(wave, threads, read(wave, threads))
    targets = [writer(kernel, piece) for piece in vector(target)]
    bits = 8 * np.dtype(TYPES[kind]).itemsize // len(targets)

    def split(wave: Wave, threads: Selection) -> None:
        joint = raw_bits(read(wave, threads), np.dtype(np.uint64))
        for place, put in enumerate(targets):
            piece = (joint >> joint.dtype.type(bits * place)).astype(UNSIGNED[bits // 8])
            put(wave, threads, piece)

    return split


def _window(kernel: Kernel, instruction: Instruction) -> Action:
    parts = instruction.parts
    window = np.uint64({"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(parts[-2], 0))
    put, read = writer(kernel, instruction.operands[0]), reader(kernel, instruction.operands[1], "u64")
    if "to" in parts:
        return lambda wave, threads: put(wave, threads, read(wave, threads) - window)
    return lambda wave, threads: put(wave, threads, read(wave, threads) + window)


_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def conversion(kernel: Kernel, instruction: Instruction) -> Action:
    """cvt, between integers, floats and packed 16-bit floats."""
    parts = instruction.parts
    to, kind = parts[-2:]
    put = writer(kernel, instruction.operands[0])
    readers = [reader(kernel, operand, kind) for operand in instruction.operands[1:]]
    mode = next((part for part in parts if part in (*_ROUND, "rm", "rp", "rz")), None)
    flush, saturate = "ftz" in parts, "sat" in parts

    def single(values: Values) -> Values:
        if kind == "bf16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if flush and values.dtype == np.float32:
            values = _flushed(values)
        if mode in _ROUND:
            values = _ROUND[mode](values)
        if to.startswith("bf16"):
            return encode(values.astype(np.float64), "bf16")
        dtype = np.dtype(np.float16 if to == "f16x2" else TYPES[to])
        if values.dtype.kind == "f" and dtype.kind in "iu":
            return _saturated(values, dtype)
        if values.dtype.kind in "iu" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return (np.clip(values, limits.min, limits.max) if saturate else values).astype(dtype)
        result = values.astype(dtype)
        if mode in ("rm", "rp", "rz"):
            result = _directed(result, values.astype(np.float64), mode)
        if saturate:
            result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(dtype)
        return _flushed(result) if flush and dtype == np.float32 else result

    def action(wave: Wave, threads: Selection) -> None:
        results = [np.asarray(single(read(wave, threads))) for read in readers]
        if len(results) == 1:
            put(wave, threads, results[0])
        else:  # the first operand is the upper half
            high, low = (half.view(np.uint16).astype(np.uint32) for half in results)
            put(wave, threads, high << np.uint32(16) | low)

    if kind.startswith("e4m3") or to.startswith("e4m3"):
        raise UnknownInstructionError(instruction.text)
    return action


def _saturated(values: Values, dtype: np.dtype[Any]) -> Values:
    """Floats as integers: out of range is the end of the range, and NaN is 0."""
    limits = np.iinfo(dtype)
    inside = np.where(np.isnan(values), 0, values).astype(np.float64)
    low, high = inside <= float(limits.min), inside >= float(limits.max)
    result = np.where(low | high, 0, inside).astype(dtype)
    return np.where(low, dtype.type(limits.min), np.where(high, dtype.type(limits.max), result))


# -- memory


def _space(parts: Sequence[str]) -> str:
    spaces = ("global", "const", "shared", "local", "param")
    return next((part.split("::")[0] for part in parts[1:] if part.split("::")[0] in spaces), "generic")


_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}


def load(kernel: Kernel, instruction: Instruction) -> Action:
    parts, kind = instruction.parts, instruction.type
    targets = [writer(kernel, register) for register in vector(instruction.operands[0])]
    if _space(parts) == "param":
        return _load_parameter(kernel, instruction, targets)
    place, space, dtype = address(kernel, instruction.operands[1]), _space(parts), np.dtype(TYPES[kind])
    strong, fence = bool(_STRONG & set(parts)), "acquire" in parts

    def action(wave: Wave, threads: Selection) -> None:
        columns = wave.load(threads, space, place(wave, threads), (dtype.itemsize, len(targets)), strong=strong)
        for put, column in zip(targets, columns, strict=True):
            put(wave, threads, column.view(dtype))
        if fence:
            wave.fence(threads)

    return action


def _load_parameter(kernel: Kernel, instruction: Instruction, targets: list[Writer]) -> Action:
    parts = re.fullmatch(r"\[([\w$]+)(?:\+(\d+))?\]", instruction.operands[1])
    if parts is None or parts[1] not in kernel.parameters or parts[2]:
        raise UnknownInstructionError(instruction.text)
    place, dtype = list(kernel.parameters).index(parts[1]), np.dtype(TYPES[instruction.type])

    def action(wave: Wave, threads: Selection) -> None:
        targets[0](wave, threads, np.frombuffer(wave.launch.arguments[place].tobytes(), dtype, 1)[0])

    return action


def store(kernel: Kernel, instruction: Instruction) -> Action:
    parts, kind = instruction.parts, instruction.type
    unsigned = f"u{8 * np.dtype(TYPES[kind]).itemsize}"
    sources = [reader(kernel, register, unsigned) for register in vector(instruction.operands[1])]
    place, space = address(kernel, instruction.operands[0]), _space(parts)
    strong, fence = bool(_STRONG & set(parts)), "release" in parts

    def action(wave: Wave, threads: Selection) -> None:
        if fence:
            wave.fence(threads)
        wave.store(threads, space, place(wave, threads), [read(wave, threads) for read in sources], strong=strong)

    return action


def atomic(kernel: Kernel, instruction: Instruction) -> Action:
    """atom and red."""
    parts, kind = instruction.parts, instruction.type
    returns = parts[0] == "atom"
    operands = instruction.operands if returns else ("_", *instruction.operands)
    name = next(part for part in parts if part in wave_atomics())
    bits = kind.startswith("b") and name in ("cas", "exch", "and", "or", "xor")
    values = [reader(kernel, operand, f"u{kind[1:]}" if bits else kind) for operand in operands[2:]]
    unused = operands[0] == "_" or _uses(kernel, operands[0]) == 1
    put, place, space = writer(kernel, operands[0]), address(kernel, operands[1]), _space(parts)
    fence = bool({"acquire", "release", "acq_rel"} & set(parts))

    def action(wave: Wave, threads: Selection) -> None:
        if fence:
            wave.fence(threads)
        changes = [np.broadcast_to(read(wave, threads), wave.count(threads)) for read in values]
        result = wave.atomic(threads, space, place(wave, threads), name, changes, unused=unused)
        if not unused:
            put(wave, threads, result)
        if fence:
            wave.fence(threads)

    return action


def wave_atomics() -> dict[str, Callable[..., Any]]:
    """What an atomic operation leaves in memory, of what was there and its operands."""
    return {
        "add": lambda old, value: old + value,
        "exch": lambda old, value: value,
        "cas": lambda old, expected, value: np.where(old == expected, value, old),
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    }


def _uses(kernel: Kernel, register: str) -> int:
    word = re.compile(re.escape(register) + r"(?!\w)")
    return sum(len(word.findall(step.text)) for step in kernel.code)


# -- threads of a warp


def _of_lanes(wave: Wave, threads: Selection) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The place of each thread's warp among the warps of the wave, and its lane."""
    return wave.warps[threads], wave.lanes[threads]


def shuffle(kernel: Kernel, instruction: Instruction) -> Action:
    """shfl.sync: PTX ISA, "shfl.sync"; a lane that does not take part must not be read."""
    targets = instruction.operands[0].split("|")
    put = writer(kernel, targets[0])
    put_inside = writer(kernel, targets[1] if len(targets) > 1 else "_")
    values, lane_of, clamp_of, mask = (reader(kernel, operand, "u32") for operand in instruction.operands[1:])
    mode = instruction.parts[2]

    def action(wave: Wave, threads: Selection) -> None:
        warps, lanes = _of_lanes(wave, threads)
        by, packed = (
            np.broadcast_to(operand(wave, threads), lanes.shape).astype(np.int64) for operand in (lane_of, clamp_of)
        )
        clamp, segment = packed & 31, packed >> 8 & 31
        largest = (lanes & segment) | (clamp & ~segment)
        smallest = lanes & segment
        if mode == "up":
            source = lanes - by
            inside = source >= largest
        elif mode == "down":
            source = lanes + by
            inside = source <= largest
        else:
            source = lanes ^ by if mode == "bfly" else smallest | (by & ~segment & 31)
            inside = source <= largest
        source = np.where(inside, source, lanes)
        table = np.zeros((wave.warp_count, 32), np.uint32)
        present = np.zeros((wave.warp_count, 32), bool)
        table[warps, lanes] = values(wave, threads)
        present[warps, lanes] = True
        absent = ~present[warps, source] | (mask(wave, threads) >> source.astype(np.uint32) & np.uint32(1) == 0)
        if absent.any():
            first = int(np.flatnonzero(absent)[0])
            wave.fail(threads, first, f"reads lane {source[first]}, which does not take part")
        put(wave, threads, table[warps, source])
        put_inside(wave, threads, inside)

    return action


def vote(kernel: Kernel, instruction: Instruction) -> Action:
    """vote.sync, activemask, match.any.sync, redux.sync."""
    parts = instruction.parts
    put = writer(kernel, instruction.operands[0].split("|")[0])
    operand, mode = None, ""
    if parts[0] != "activemask":
        kind = "pred" if parts[0] == "vote" else parts[-1].replace("b", "u")
        operand = reader(kernel, instruction.operands[1], kind)
        mode = next(part for part in parts if part in (*_VOTES, *_REDUCE))

    mask = None if operand is None else reader(kernel, instruction.operands[-1], "u32")

    def action(wave: Wave, threads: Selection) -> None:
        together, lanes = _of_lanes(wave, threads)
        bits = (np.uint64(1) << lanes.astype(np.uint64)).astype(np.uint32)
        if mask is not None:  # lanes of a warp with different masks are different groups
            keys = together << 32 | np.broadcast_to(mask(wave, threads), lanes.shape)
            together = np.unique(keys, return_inverse=True)[1]
        count = int(together.max()) + 1
        everybody = np.bincount(together, bits, count).astype(np.uint32)[together]
        if operand is None:
            return put(wave, threads, everybody)
        values = np.broadcast_to(operand(wave, threads), lanes.shape)
        if parts[0] == "match":
            same = (values[:, None] == values[None, :]) & (together[:, None] == together[None, :])
            return put(wave, threads, (same * bits[None, :]).sum(axis=1).astype(np.uint32))
        if parts[0] == "redux":
            totals = np.full(count, _REDUCE[mode][1](values.dtype), values.dtype)
            _REDUCE[mode][0].at(totals, together, values)
            return put(wave, threads, totals[together])
        yes = np.bincount(together, np.where(values, bits, np.uint32(0)), count).astype(np.uint32)[together]
        results = {"ballot": yes, "any": yes != 0, "all": yes == everybody, "uni": (yes == 0) | (yes == everybody)}
        return put(wave, threads, results[mode])

    return action


_VOTES = ("any", "all", "uni", "ballot")
_REDUCE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "add": (np.add, lambda dtype: 0),
    "min": (np.minimum, lambda dtype: np.iinfo(dtype).max),
    "max": (np.maximum, lambda dtype: np.iinfo(dtype).min),
    "and": (np.bitwise_and, lambda dtype: np.iinfo(dtype).max),
    "or": (np.bitwise_or, lambda dtype: 0),
    "xor": (np.bitwise_xor, lambda dtype: 0),
}


def fence(kernel: Kernel, instruction: Instruction) -> Action:
    wide = bool({"gl", "sys", "gpu"} & set(instruction.parts))
    return lambda wave, threads: wave.fence(threads) if wide else None


def nothing(kernel: Kernel, instruction: Instruction) -> Action:
    """Hints, and waits that need not be."""
    return lambda wave, threads: None


def trap(kernel: Kernel, instruction: Instruction) -> Action:
    return lambda wave, threads: wave.fail(threads, 0, "stops by trap")


ACTIONS: dict[str, Callable[[Kernel, Instruction], Action]] = {
    **dict.fromkeys(["setp"], comparison),
    "selp": selection,
    **dict.fromkeys(["mov", "cvta"], move),
    "cvt": conversion,
    **dict.fromkeys(["ld", "ldu"], load),
    "st": store,
    **dict.fromkeys(["atom", "red"], atomic),
    "shfl": shuffle,
    **dict.fromkeys(["vote", "activemask", "match", "redux"], vote),
    **dict.fromkeys(["membar", "fence"], fence),
    **dict.fromkeys(["nanosleep", "prefetch", "prefetchu", "pragma", "discard", "applypriority"], nothing),
    "trap": trap,
}
"""Those that are not arithmetic."""

OF_A_WARP = ("shfl", "vote", "match", "redux")
"""Instructions that all threads of their mask do together, with bar.warp.sync."""


def build(kernel: Kernel, instruction: Instruction) -> Action:
    """What an instruction does, but for those that decide what is done next (bra, ret, bar)."""
    return ACTIONS.get(instruction.parts[0], arithmetic)(kernel, instruction)
