"""Every kernel there is: one row each. A module is imported when one of its kernels is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from typing import NamedTuple

from ..errors import InputError
from .work import Facts, Kernel, Unfit


class Row(NamedTuple):
    """A kernel: its version, the module and function that build its work, in words what it does and what a device must
    have for it, and the parameters of the function that make it this kernel."""

    version: str
    build: str
    says: str
    needs: str = ""
    parameters: Mapping[str, str | int] = {}


def _row(version: str, build: str, says: str, needs: str = "", **parameters: str | int) -> Row:
    return Row(version, build, says, needs, parameters)


_CHAINS = "multiply-adds in each thread's registers"
_TO_AND_FRO = "on 32-bit words, to and fro between arrays far larger than the caches"
_CAPABLE = "compute capability"

KERNELS: dict[str, Row] = {
    "fma-fp64": _row("2", "fma:build", f"12 chains of fp64 {_CHAINS}", precision="fp64"),
    "fma-fp32": _row("2", "fma:build", f"16 chains of fp32 {_CHAINS}", precision="fp32"),
    "fma-fp16": _row("2", "fma:build", f"24 chains of fp16 {_CHAINS}", f"{_CAPABLE} 6.0", precision="fp16"),
    "fma-int32": _row("2", "fma:build", f"16 chains of int32 {_CHAINS}", precision="int32"),
    "gemm-fp64": _row("2", "gemm:build", "a square fp64 matrix product by cuBLAS", precision="fp64"),
    "gemm-fp32": _row("2", "gemm:build", "a square fp32 matrix product by cuBLAS", precision="fp32"),
    "gemm-tf32": _row("2", "gemm:build", "a square tf32 matrix product by cuBLAS", f"{_CAPABLE} 8.0", precision="tf32"),
    "gemm-fp16": _row("2", "gemm:build", "a square fp16 matrix product by cuBLAS", f"{_CAPABLE} 7.0", precision="fp16"),
    "gemm-bf16": _row("2", "gemm:build", "a square bf16 matrix product by cuBLAS", f"{_CAPABLE} 8.0", precision="bf16"),
    "gemm-fp8": _row("2", "gemm:build", "a square fp8 matrix product by cuBLAS", f"{_CAPABLE} 8.9", precision="fp8"),
    "stream-copy": _row("2", "stream:build", f"c = a {_TO_AND_FRO}", operation="copy"),
    "stream-triad": _row("2", "stream:build", f"c = a + 3 b {_TO_AND_FRO}", operation="triad"),
    "l2-read": _row(
        "1",
        "access:build_read",
        "all multiprocessors read a third of the L2 cache again and again, past their L1 caches",
    ),
    "chase": _row(
        "2",
        "access:build_chase",
        "one thread follows a random order of cache lines, past its L1 cache; by default through four times the L2",
    ),
    "gather": _row(
        "2",
        "access:build_gather",
        "single words from random places of a table of 1 GiB or more, four times the L2 cache at least",
    ),
    "atomics": _row("2", "access:build_atomics", "atomic additions to 65,536 counters in random order"),
    "memory": _row("1", "memory:build", "twelve patterns, each written over the memory and then read and compared"),
    "sm": _row(
        "1", "sm:build", "patterns in registers, shared memory and caches, and sums of each lane, by multiprocessor"
    ),
    "power-mix": _row(
        "2", "power:build_mix", "fp32 chains, a tensor-core product and a triad in turn, each about 1 ms"
    ),
    "power-share": _row("2", "power:build_share", "fp32 chains on a stated share of the multiprocessors"),
    "stress": _row(
        "1",
        "stress:build",
        "chains in five precisions, loads from memory, the L2 cache and shared memory, in a proportion that is chosen",
    ),
    "copy-h2d": _row("1", "paths:build_copy", "a copy from pinned host memory", direction="h2d"),
    "copy-d2h": _row("1", "paths:build_copy", "a copy to pinned host memory", direction="d2h"),
    "copy-d2d": _row("1", "paths:build_copy", "a copy within the device by the driver", direction="d2d"),
    "copy-p2p": _row(
        "1", "paths:build_copy", "a copy to another GPU of the node", "a peer in the node", direction="p2p"
    ),
    "launch": _row(
        "2",
        "paths:build_launch",
        "1000 kernels that do almost nothing, one after another; from a graph, not one by one from the program",
    ),
    "overlap-embedding": _row("1", "overlap:build_embedding", "embedding rows, fetched ten batches ahead (Bagpipe)"),
    "overlap-partitions": _row("1", "overlap:build_partitions", "graph partitions in BETA order (Marius++)"),
    "overlap-activations": _row("1", "overlap:build_activations", "activations coded, out and back"),
    "pagerank": _row(
        "1",
        "pagerank:build",
        "PageRank by pulling on a power-law graph of half a million vertices and 4.1 million edges",
    ),
    "stencil27": _row(
        "2", "stencil:build", "sweeps of a 27-point stencil in fp32 over a box of 512³ points, to and fro"
    ),
    "transformer": _row(
        "2",
        "transformer:build",
        "one forward step of a transformer block: attention and multilayer perceptron of width 1024",
    ),
    "transformer-back": _row(
        "1",
        "transformer:build",
        "a step of a transformer block of width 512 forward, and the gradients of its last layers",
        width=512,
        depth=4,
    ),
}
EXCHANGES = {
    "pairs": Row("1", "catalogue:build_exchange", "copies between each two GPUs, and between all", "a peer"),
    "all-reduce": Row("1", "catalogue:build_exchange", "a ring all-reduce over peer memory", "a peer"),
    "all-reduce-nccl": Row("1", "catalogue:build_exchange", "the all-reduce of NCCL", "a peer"),
}
"""The same of what several GPUs do together (`peers`), which is no `Work` of one device."""


def find_kernel(name: str) -> Kernel:
    """The kernel of a name, in any case; InputError, naming what there is, when there is none."""
    return _kernel(name.strip().lower())


@cache
def _kernel(name: str) -> Kernel:
    rows = KERNELS | EXCHANGES
    if name not in rows:
        raise InputError(f"no kernel {name!r}; there are {', '.join(rows)}")
    row = rows[name]
    module, _, function = row.build.partition(":")
    build = partial(getattr(import_module(f"{__package__}.{module}"), function), **row.parameters)
    return Kernel(name, row.version, row.says, build, row.needs)


def build_exchange(facts: Facts) -> Unfit:  # noqa: ARG001
    """What several GPUs do together is no work of one."""
    return Unfit("it needs two or more real GPUs in one process")
