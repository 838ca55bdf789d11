"""What each instruction of PTX does to the registers of the threads that do it together.

An instruction becomes a function of a wave (see interpreter.py) and of the threads that do it. Written from NVIDIA's
"Parallel Thread Execution ISA": what the compilers make of the kernels is here, and nothing else. What is approximate
on a GPU (ex2.approx and the like) is rounded to nearest.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

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

_PACKED = {"f16x2": "fp16", "bf16x2": "bf16"}


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
    if operand.startswith("%"):
        return lambda wave, threads: wave.special(operand)[threads].astype(dtype)
    if operand in kernel.shared:
        return _constant(kernel.shared[operand], dtype)
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


def _rounded_down(nearest: Values, exact: Values) -> Values:
    """`.rm`: the number of the format below `exact`, of the one nearest to it."""
    past = nearest.astype(np.float64) > exact
    return np.where(past, np.nextafter(nearest, nearest.dtype.type(-np.inf)), nearest)


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


def _packed_fma(operands: Sequence[Values], kind: str) -> Values:
    """a x + c of the two 16-bit floats in each register, each rounded once."""
    precision, joint = _PACKED[kind], np.zeros(1, np.uint32)
    for shift in (0, 16):
        halves = [(operand.view(np.uint32) >> shift).astype(np.uint16) for operand in operands]
        numbers = [decode(half.view(np.float16) if precision == "fp16" else half, precision) for half in halves]
        a, x, c = np.broadcast_arrays(*numbers)
        result = encode(fused(a, x, c, precision), precision)
        joint = joint | (result.view(np.uint16).astype(np.uint32) << np.uint32(shift))
    return joint


def _divided(x: Values, y: Values) -> Values:
    return x / y if x.dtype.kind == "f" else x // y


def _shifted(leftwards: bool, x: Values, count: Values) -> Values:
    """Shifts by as many bits as there are, or more, leave zeros, or signs."""
    bits = 8 * x.dtype.itemsize
    within = np.minimum(count, bits - 1).astype(x.dtype)
    result = x << within if leftwards else x >> within
    if leftwards or x.dtype.kind == "u":
        result = np.where(count >= bits, x.dtype.type(0), result)
    return result


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


def _inserted(a: Values, b: Values, position: Values, length: Values) -> Values:
    """bfi: the lowest `length` bits of a stand in b from `position`."""
    bits, unsigned = 8 * a.dtype.itemsize, a.dtype.type
    position, length = (np.minimum(counts & np.uint32(255), bits).astype(np.int64) for counts in (position, length))
    all_set = _shifted(False, np.full(np.shape(length), ~unsigned(0)), bits - length)
    mask = _shifted(True, all_set, position)
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


_OPERATIONS: dict[str, Callable[..., Values]] = {
    "abs": np.abs,
    "neg": np.negative,
    "not": np.invert,
    "sqrt": np.sqrt,
    "rcp": lambda x: x.dtype.type(1) / x,
    "ex2": lambda x: np.exp2(x.astype(np.float64)).astype(x.dtype),
    "popc": lambda x: np.bitwise_count(x).astype(np.uint32),
    "brev": _reversed_bits,
    "bfind": lambda x: np.where(x == 0, ~np.uint32(0), _leading_zeros(x)),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": lambda x, y: np.fmin(x, y) if x.dtype.kind == "f" else np.minimum(x, y),
    "max": lambda x, y: np.fmax(x, y) if x.dtype.kind == "f" else np.maximum(x, y),
    "div": _divided,
    "rem": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "copysign": lambda sign, size: np.copysign(size, sign),
    "shl": lambda x, by: _shifted(True, x, by),
    "shr": lambda x, by: _shifted(False, x, by),
    "prmt": _permuted,
    "bfi": _inserted,
    "mad": lambda x, y, c: x * y + c,
}
_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
_COMPARISONS["ge"] = np.greater_equal


def _wide_product(x: Values, y: Values) -> Values:
    wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
    return x.astype(wide) * y.astype(wide)


def _arithmetic(parts: Sequence[str]) -> Callable[..., Values]:
    """What an operation computes from its operands' values."""
    name, kind = parts[0], parts[-1]
    if name == "fma" and kind in _PACKED:
        return lambda *operands: _packed_fma(operands, kind)
    wide = name == "mul" and "wide" in parts
    unknown = {"hi", "sat", "rp", "rz"} & set(parts) or ("wide" in parts and not wide) or kind in _PACKED
    unknown = unknown or (name == "bfind") != ("shiftamt" in parts) or (name == "div" and kind[0] == "s")
    if name == "fma" and not unknown:
        return lambda a, x, c: _fma(a, x, c, flush="ftz" in parts)
    if name not in _OPERATIONS or unknown:
        raise UnknownInstructionError(".".join(parts))
    return _wide_product if wide else _OPERATIONS[name]


_COUNTS = {"shl": (1,), "shr": (1,), "bfi": (2, 3)}
"""Operands that are counts of bits, 32 bits wide whatever the type."""


def arithmetic(kernel: Kernel, instruction: Instruction) -> Action:
    parts, kind = instruction.parts, instruction.type
    function = _arithmetic(parts)
    kinds = [kind] * (len(instruction.operands) - 1)
    for place in _COUNTS.get(parts[0], ()):
        kinds[place] = "u32"
    readers = [
        reader(kernel, operand, operand_kind)
        for operand, operand_kind in zip(instruction.operands[1:], kinds, strict=True)
    ]
    put = writer(kernel, instruction.operands[0])
    flush, down = "ftz" in parts and kind == "f32" and parts[0] != "fma", "rm" in parts

    def action(wave: Wave, threads: Selection) -> None:
        operands = [read(wave, threads) for read in readers]
        if flush:
            operands = [_flushed(operand) for operand in operands]
        result = function(*operands)
        if down:
            result = _rounded_down(np.asarray(result), function(*(operand.astype(np.float64) for operand in operands)))
        put(wave, threads, _flushed(result) if flush else result)

    return action


def comparison(kernel: Kernel, instruction: Instruction) -> Action:
    """setp of two operands."""
    parts, kind = instruction.parts, instruction.type
    name, floating, flush = parts[1], kind[0] == "f", "ftz" in parts and kind == "f32"
    if len(instruction.operands) != 3 or "|" in instruction.operands[0]:
        raise UnknownInstructionError(instruction.text)
    put = writer(kernel, instruction.operands[0])
    x, y = (reader(kernel, operand, kind) for operand in instruction.operands[1:])

    def action(wave: Wave, threads: Selection) -> None:
        a, b = x(wave, threads), y(wave, threads)
        if flush:
            a, b = _flushed(a), _flushed(b)
        unordered = (np.isnan(a) | np.isnan(b)) if floating else np.False_
        if name == "nan":
            put(wave, threads, unordered)
        elif floating and name.endswith("u"):
            put(wave, threads, _COMPARISONS[name[:-1]](a, b) | unordered)
        else:
            put(wave, threads, _COMPARISONS[name](a, b) & ~unordered)

    return action


def selection(kernel: Kernel, instruction: Instruction) -> Action:
    put = writer(kernel, instruction.operands[0])
    yes, no = (reader(kernel, operand, instruction.type) for operand in instruction.operands[1:3])
    choice = reader(kernel, instruction.operands[3], "pred")
    return lambda wave, threads: put(
        wave, threads, np.where(choice(wave, threads), yes(wave, threads), no(wave, threads))
    )


def move(kernel: Kernel, instruction: Instruction) -> Action:
    """mov, and cvta.to.global, which changes nothing here; vectors of registers are parts of the other operand."""
    target, operand = instruction.operands
    kind = instruction.type
    if instruction.parts[0] == "cvta" and instruction.parts[1:3] != ("to", "global"):
        raise UnknownInstructionError(instruction.text)
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


_ROUND = {"rni": np.rint, "rzi": np.trunc}


def conversion(kernel: Kernel, instruction: Instruction) -> Action:
    """cvt between integers and floats."""
    parts, (to, kind) = instruction.parts, instruction.parts[-2:]
    if {"rm", "rp", "rz", "rmi", "rpi"} & set(parts) or not {to, kind} <= set(TYPES) - {"bf16", *_PACKED}:
        raise UnknownInstructionError(instruction.text)
    put, read = writer(kernel, instruction.operands[0]), reader(kernel, instruction.operands[1], kind)
    dtype, flush, saturate = np.dtype(TYPES[to]), "ftz" in parts, "sat" in parts
    to_whole = next((function for name, function in _ROUND.items() if name in parts), None)

    def action(wave: Wave, threads: Selection) -> None:
        values = read(wave, threads)
        if flush and values.dtype == np.float32:
            values = _flushed(values)
        if to_whole is not None:
            values = to_whole(values)
        from_float = values.dtype.kind == "f" and dtype.kind in "iu"
        result = _saturated(values, dtype) if from_float else values.astype(dtype)
        if saturate:
            result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(dtype)
        put(wave, threads, np.asarray(_flushed(result) if flush and dtype == np.float32 else result))

    return action


def _saturated(values: Values, dtype: np.dtype[Any]) -> Values:
    """Floats as integers: out of range is the end of the range, and NaN is 0."""
    limits = np.iinfo(dtype)
    inside = np.where(np.isnan(values), 0, values).astype(np.float64)
    low, high = inside <= float(limits.min), inside >= float(limits.max)
    result = np.where(low | high, 0, inside).astype(dtype)
    return np.where(low, dtype.type(limits.min), np.where(high, dtype.type(limits.max), result))


# -- memory


def _space(instruction: Instruction) -> str:
    for space in ("global", "shared", "param"):
        if space in instruction.parts:
            return space
    raise UnknownInstructionError(instruction.text)


def load(kernel: Kernel, instruction: Instruction) -> Action:
    space, kind = _space(instruction), instruction.type
    targets = [writer(kernel, register) for register in vector(instruction.operands[0])]
    if space == "param":
        return _load_parameter(kernel, instruction, targets)
    place, dtype = address(kernel, instruction.operands[1]), np.dtype(TYPES[kind])
    strong = "volatile" in instruction.parts

    def action(wave: Wave, threads: Selection) -> None:
        columns = wave.load(threads, space, place(wave, threads), (dtype.itemsize, len(targets)), strong=strong)
        for put, column in zip(targets, columns, strict=True):
            put(wave, threads, column.view(dtype))

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
    unsigned = f"u{8 * np.dtype(TYPES[instruction.type]).itemsize}"
    sources = [reader(kernel, register, unsigned) for register in vector(instruction.operands[1])]
    place, space = address(kernel, instruction.operands[0]), _space(instruction)
    strong = "volatile" in instruction.parts
    return lambda wave, threads: wave.store(
        threads, space, place(wave, threads), [read(wave, threads) for read in sources], strong=strong
    )


ATOMICS = {"add": np.add, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or}
"""What an atomic operation leaves in memory, of what was there and its operand."""


def atomic(kernel: Kernel, instruction: Instruction) -> Action:
    """atom."""
    names = [part for part in instruction.parts if part in ATOMICS]
    if not names or len(instruction.operands) != 3:
        raise UnknownInstructionError(instruction.text)
    target, place, value = instruction.operands
    kind = instruction.type.replace("b", "u")
    read, unused = reader(kernel, value, kind), _uses(kernel, target) == 1
    put, at, space = writer(kernel, target), address(kernel, place), _space(instruction)

    def action(wave: Wave, threads: Selection) -> None:
        values = np.broadcast_to(read(wave, threads), wave.count(threads))
        result = wave.atomic(threads, space, at(wave, threads), ATOMICS[names[0]], values, unused=unused)
        if not unused:
            put(wave, threads, result)

    return action


def _uses(kernel: Kernel, register: str) -> int:
    word = re.compile(re.escape(register) + r"(?!\w)")
    return sum(len(word.findall(step.text)) for step in kernel.code)


# -- threads of a warp


def shuffle(kernel: Kernel, instruction: Instruction) -> Action:
    """shfl.sync.down: PTX ISA, "shfl.sync"; a lane that does not take part must not be read."""
    if instruction.parts[1:3] != ("sync", "down"):
        raise UnknownInstructionError(instruction.text)
    target, _, inside_target = instruction.operands[0].partition("|")
    put, put_inside = writer(kernel, target), writer(kernel, inside_target or "_")
    values, by_of, clamp_of, mask = (reader(kernel, operand, "u32") for operand in instruction.operands[1:])

    def action(wave: Wave, threads: Selection) -> None:
        warps, lanes = wave.warps[threads], wave.lanes[threads]
        by, packed = (
            np.broadcast_to(operand(wave, threads), lanes.shape).astype(np.int64) for operand in (by_of, clamp_of)
        )
        clamp, segment = packed & 31, packed >> 8 & 31
        inside = lanes + by <= (lanes & segment) | (clamp & ~segment)
        source = np.where(inside, lanes + by, lanes)
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


def sleep(kernel: Kernel, instruction: Instruction) -> Action:
    """nanosleep: time is counted in instructions, so that there is nothing to wait for."""
    return lambda wave, threads: None


ACTIONS: dict[str, Callable[[Kernel, Instruction], Action]] = {
    "setp": comparison,
    "selp": selection,
    "mov": move,
    "cvta": move,
    "cvt": conversion,
    "ld": load,
    "st": store,
    "atom": atomic,
    "shfl": shuffle,
    "nanosleep": sleep,
}
"""Those that are not arithmetic."""


def build(kernel: Kernel, instruction: Instruction) -> Action:
    """What an instruction does, but for those that decide what is done next (bra, ret, bar)."""
    return ACTIONS.get(instruction.parts[0], arithmetic)(kernel, instruction)
