"""Which probes there are: their names and the files of `library` that hold them, in the order in which they run.

An idle GPU comes first, while it is cool; then what shows most of a GPU, so that little time gives much.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from ..errors import InputError
from .probe import SUITES, Probe

PROBES = {
    "idle": "idle",
    "gemm-fp32": "gemm_fp32",
    "gemm-fp16": "gemm_fp16",
    "fma-fp64": "fma_fp64",
    "stream-triad": "stream_triad",
    "l2-read": "l2_read",
    "chase-dram": "chase_dram",
    "copy-h2d": "copy_h2d",
    "launch": "launch",
    "power-mix": "power_mix",
    "pagerank": "pagerank",
    "fma-fp32": "fma_fp32",
    "fma-int32": "fma_int32",
    "gemm-fp64": "gemm_fp64",
    "gemm-bf16": "gemm_bf16",
    "stream-copy": "stream_copy",
    "chase-l2": "chase_l2",
    "gather": "gather",
    "copy-d2h": "copy_d2h",
    "copy-d2d": "copy_d2d",
    "stencil27": "stencil27",
    "transformer": "transformer",
    "power-staircase": "power_staircase",
    "fma-fp16": "fma_fp16",
    "fma-bf16": "fma_bf16",
    "gemm-tf32": "gemm_tf32",
    "gemm-fp8": "gemm_fp8",
    "stream-scale": "stream_scale",
    "stream-add": "stream_add",
    "chase": "chase",
    "atomics": "atomics",
    "copy-p2p": "copy_p2p",
    "power-square": "power_square",
}
"""Module of `library` by name of the probe; it holds the probe as `PROBE`."""


@cache
def find_probe(name: str) -> Probe:
    """The probe called `name`. InputError where there is none."""
    if name not in PROBES:
        alike = get_close_matches(name, PROBES, n=1)
        meant = f"did you mean {alike[0]}? " if alike else ""
        raise InputError(
            f"there is no probe {name!r}: {meant}`whorl probe list` shows what there is: {', '.join(PROBES)}"
        )
    probe: Probe = import_module(f"{__package__}.library.{PROBES[name]}").PROBE
    return probe


def every() -> tuple[Probe, ...]:
    """All probes."""
    return tuple(find_probe(name) for name in PROBES)


def suite(name: str) -> tuple[Probe, ...]:
    """The probes of a suite, those of the smaller ones included. InputError where there is no such suite."""
    if name not in SUITES:
        raise InputError(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    held = SUITES[: SUITES.index(name) + 1]
    return tuple(probe for probe in every() if probe.suite in held)


def choose(names: Sequence[str]) -> tuple[Probe, ...]:
    """The probes named, each once, in the order in which they run. InputError for a name that there is not."""
    wanted = {find_probe(name).name for name in names}
    return tuple(probe for probe in every() if probe.name in wanted)
