"""The table of probes, in the order in which they run. A probe is one row.

An idle GPU comes first, while it is cool; then what shows most of a GPU, so that little time gives much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum

from ..errors import InputError

SUITES = ("quick", "standard", "full")
"""How thoroughly is measured; each holds the probes of those before it."""


class Kind(StrEnum):
    """What is done with the kernel."""

    STEADY = "steady"  # warm up, then repeat until the median is known well enough
    IDLE = "idle"  # the kernel is loaded and not run; telemetry alone
    SQUARE = "square"  # load and rest in turns of a chosen period and duty
    STAIRCASE = "staircase"  # load in rising levels
    SCAN = "scan"  # the kernel at several values of one parameter, each measured as STEADY
    PATTERNS = "patterns"  # every turn of the kernel, again and again; it says itself where it found errors
    OVERLAP = "overlap"  # copies beside the kernel, and after it
    EXCHANGE = "exchange"  # all GPUs of a node at once exchange data, in one process, after the other probes
    SOAK = "soak"  # steady load and pulses of load in turns for minutes, all of it checked


@dataclass(frozen=True)
class Probe:
    """An experiment on one GPU: a row of `catalogue.PROBES`."""

    name: str
    """As 'gemm-fp32': `workload` in the tables."""
    version: str
    """Grows when the figures of two versions cannot be compared."""
    stresses: str
    """In a few words."""
    says: str
    """In a sentence."""
    figure: str
    """The figure that stands for it in a table: 'rate', 'bandwidth', 'latency', ... With 'latency', the operations of
    its kernel wait for one another."""
    kernel: str
    """Its name in `kernels.catalogue.KERNELS`."""
    suite: str | None
    """The smallest of `SUITES` that holds it; None where it runs only when it is named."""
    kind: Kind = Kind.STEADY
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    """Of the kernel's `build`."""
    scan: tuple[str, tuple[float | int, ...]] | None = None
    """SCAN: the parameter of the kernel, and its values."""


_FOOTPRINTS = tuple(1 << power for power in range(20, 31, 2))  # 1 MiB to 1 GiB

# name, version, what it stresses, a sentence, the figure that stands for it, kernel, smallest suite
# fmt: off
_ROWS = (
    Probe("idle", "1", "nothing", "Nothing runs; a context is open.", "power", "launch", "quick", Kind.IDLE),
    Probe("gemm-fp32", "2", "SMs, fp32, power", "Matrix product in fp32: SGEMM.", "rate", "gemm-fp32", "quick"),
    Probe("gemm-fp16", "2", "tensor cores, fp16", "Matrix product, fp16 in, fp32 sums.", "rate", "gemm-fp16", "quick"),
    Probe("fma-fp64", "2", "SMs, fp64", "Chains of multiply-adds.", "rate", "fma-fp64", "quick"),
    Probe("stream-triad", "1", "DRAM bandwidth", "a = b + s c over large arrays.", "bandwidth", "stream-triad",
          "quick"),
    Probe("memory", "1", "DRAM, all of it", "Twelve patterns over the free memory.", "bandwidth", "memory", "quick",
          Kind.PATTERNS),
    Probe("sm", "1", "each multiprocessor", "Patterns and sums, by multiprocessor.", "sm_spread", "sm", "quick",
          Kind.PATTERNS),
    Probe("l2-read", "1", "L2 bandwidth", "Reads of a third of the L2 cache.", "bandwidth", "l2-read", "quick"),
    Probe("copy-h2d", "1", "PCIe, to the GPU", "Copy from pinned host memory.", "bandwidth", "copy-h2d", "quick"),
    Probe("launch", "1", "launch latency", "Empty kernels, one after another.", "latency", "launch", "quick"),
    Probe("power-mix", "2", "the whole board", "Multiply-add, product, triad in turn.", "rate", "power-mix", "quick"),
    Probe("fma-fp32", "2", "SMs, fp32", "Chains of multiply-adds.", "rate", "fma-fp32", "standard"),
    Probe("fma-int32", "2", "SMs, int32", "Chains of integer multiply-adds.", "operation_rate", "fma-int32",
          "standard"),
    Probe("gemm-fp64", "2", "SMs, fp64, power", "Matrix product in fp64: DGEMM.", "rate", "gemm-fp64", "standard"),
    Probe("gemm-bf16", "2", "tensor cores, bf16", "Matrix product, bf16 in, fp32 sums.", "rate", "gemm-bf16",
          "standard"),
    Probe("stream-copy", "1", "DRAM bandwidth", "a = b over large arrays.", "bandwidth", "stream-copy", "standard"),
    Probe("chase-dram", "1", "DRAM latency", "Pointers through four L2 caches.", "latency", "chase", "standard"),
    Probe("chase-l2", "1", "L2 latency", "Pointers through 2 MiB.", "latency", "chase", "standard",
          parameters={"footprint": 2 << 20}),
    Probe("gather", "1", "random DRAM reads", "Words from random places.", "operation_rate", "gather", "standard"),
    Probe("copy-d2h", "1", "PCIe, from the GPU", "Copy to pinned host memory.", "bandwidth", "copy-d2h", "standard"),
    Probe("copy-d2d", "1", "DRAM, copy engine", "Copy within the GPU's memory.", "bandwidth", "copy-d2d", "standard"),
    Probe("pagerank", "1", "irregular reads", "PageRank on a power-law graph.", "operation_rate", "pagerank",
          "standard"),
    Probe("stencil27", "1", "DRAM and caches", "27-point stencil on a 3D grid.", "bandwidth", "stencil27", "standard"),
    Probe("transformer", "2", "tensor cores, memory", "A block of a transformer, forward.", "rate", "transformer",
          "standard"),
    Probe("overlap-embedding", "1", "copies beside kernels", "Rows fetched ahead and summed.", "hidden",
          "overlap-embedding", "standard", Kind.OVERLAP),
    Probe("power-staircase", "2", "power by load", "Load on 0 to 100 % of the SMs.", "power_at_100",
          "power-share", "standard", Kind.STAIRCASE),
    Probe("fma-fp16", "2", "SMs, fp16", "Chains of packed multiply-adds.", "rate", "fma-fp16", "full"),
    Probe("gemm-tf32", "2", "tensor cores, tf32", "Matrix product, tf32, fp32 sums.", "rate", "gemm-tf32", "full"),
    Probe("gemm-fp8", "2", "tensor cores, fp8", "Matrix product, fp8 in, fp32 sums.", "rate", "gemm-fp8", "full"),
    Probe("chase", "1", "latency by footprint", "Pointers through 1 MiB to 1 GiB.", "latency_at_1073741824",
          "chase", "full", Kind.SCAN, scan=("footprint", _FOOTPRINTS)),
    Probe("atomics", "1", "L2 atomics", "Atomic additions to many counters.", "operation_rate", "atomics", "full"),
    Probe("copy-p2p", "1", "GPU to GPU", "Copy to another GPU, past the host.", "bandwidth", "copy-p2p", "full"),
    Probe("overlap-partitions", "1", "copies beside kernels", "Partitions by turns, joined meanwhile.", "hidden",
          "overlap-partitions", "full", Kind.OVERLAP),
    Probe("overlap-activations", "1", "copies beside kernels", "Activations coded, out and back.", "hidden",
          "overlap-activations", "full", Kind.OVERLAP),
    Probe("pairs", "1", "links between GPUs", "Copies of all pairs, alone and at once.", "bandwidth_all", "pairs",
          "full", Kind.EXCHANGE),
    Probe("all-reduce", "1", "links between GPUs", "Ring all-reduce over peer memory.", "bandwidth", "all-reduce",
          "full", Kind.EXCHANGE),
    Probe("all-reduce-nccl", "1", "links between GPUs", "The same by NCCL.", "bandwidth", "all-reduce-nccl", "full",
          Kind.EXCHANGE),
    Probe("power-square", "2", "power sensor", "Full load and rest alternate.", "swing_seen", "power-mix", "full",
          Kind.SQUARE),
    Probe("transformer-back", "1", "tensor cores", "Gradients of a block's last 1 to 4 layers.", "time_median_at_4",
          "transformer-back", None, Kind.SCAN, scan=("depth", (1, 2, 3, 4))),
    Probe("stress", "1", "what its knobs say", "The generated kernel, by its knobs.", "time_median", "stress", None),
    Probe("soak", "1", "the whole board", "Minutes of load and pulses, checked.", "checked_repetitions",
          "power-mix", None, Kind.SOAK),
)
# fmt: on

PROBES = {probe.name: probe for probe in _ROWS}
"""The probes by name."""


def find_probe(name: str) -> Probe:
    """The probe called `name`; `sgemm` is gemm-fp32. InputError where there is none."""
    name = "gemm-fp32" if name == "sgemm" else name
    if name not in PROBES:
        alike = get_close_matches(name, PROBES, n=1)
        meant = f"did you mean {alike[0]}? " if alike else ""
        raise InputError(f"there is no probe {name!r}: {meant}`whorl probe list` lists the probes: {', '.join(PROBES)}")
    return PROBES[name]


def suite(name: str) -> tuple[Probe, ...]:
    """The probes of a suite, those of the smaller ones included. InputError where there is no such suite."""
    if name not in SUITES:
        raise InputError(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    included = SUITES[: SUITES.index(name) + 1]
    return tuple(probe for probe in PROBES.values() if probe.suite in included)


def choose(names: Sequence[str]) -> tuple[Probe, ...]:
    """The probes named, each once, in the order in which they run. InputError for a name that there is not."""
    wanted = {find_probe(name).name for name in names}
    return tuple(probe for probe in PROBES.values() if probe.name in wanted)
