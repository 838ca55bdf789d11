"""The table of kernels, and what each asks of V100, A100, H200 and a small slice of a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.errors import InputError
from whorl.kernels.catalogue import EXCHANGES, KERNELS, find_kernel
from whorl.kernels.cupy_library import FOLDER, source
from whorl.kernels.inputs import DISTRIBUTIONS, filled
from whorl.kernels.rounding import DTYPES
from whorl.kernels.sizing import MEMORY_SHARE, MOST_MEMORY, bytes_per_s, flop_per_s
from whorl.kernels.work import Copy, Gemm, Key, Launch, Unfit, Work
from whorl.tests.kernels.hosting import facts_of, work_of

DEVICES = {
    "V100": facts_of((7, 0)),
    "A100": facts_of((8, 0)),
    "H200": facts_of((9, 0)),
    "slice": facts_of((9, 0), model="MIG 1g.10gb", sms=16, memory_bytes=9 << 30, l2_bytes=6 << 20),
    "alone": replace(facts_of((7, 0), model="P100", sms=56), capability=(6, 0), peers=0),
}
NEEDS = {"fma-fp16": (6, 0), "gemm-fp16": (7, 0), "gemm-tf32": (8, 0), "gemm-bf16": (8, 0), "gemm-fp8": (8, 9)}


def built(name: str, device: str) -> Work | Unfit:
    return find_kernel(name).build(DEVICES[device])


def test_every_work_of_the_folder_is_in_the_table() -> None:
    rows = KERNELS | EXCHANGES
    built = {row.build for row in rows.values()}
    for path in FOLDER.glob("*.py"):
        for function in re.findall(r"^def (build\w*)\(", path.read_text(), re.MULTILINE):
            assert f"{path.stem}:{function}" in built
    for name in rows:
        kernel = find_kernel(name.upper())
        assert kernel is find_kernel(name)
        assert (kernel.name, bool(kernel.says)) == (name, True)


def test_a_kernel_that_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match="no kernel 'gemm-fp4'; there are fma-fp64, "):
        find_kernel("gemm-fp4")


def test_the_table_and_every_kernel_need_numpy_only() -> None:
    code = (
        "import sys\nfrom whorl.kernels.catalogue import KERNELS, find_kernel\n"
        "assert 'whorl.kernels.gemm' not in sys.modules\n"
        "[find_kernel(name) for name in KERNELS]\nprint(*sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in loaded
    assert not {"scipy", "polars", "duckdb", "plotly", "rich", "cupy", "pyarrow"} & set(loaded)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_fits_each_device_or_says_why_not(name: str, device: str) -> None:
    facts = DEVICES[device]
    work = built(name, device)
    lacks = facts.capability < NEEDS.get(name, (0, 0)) or (name == "copy-p2p" and facts.peers == 0)
    assert isinstance(work, Unfit) == lacks
    if isinstance(work, Unfit):
        assert work.reason
        return
    assert work.kernel == name
    assert work.precision in DTYPES
    assert work.path in ("dram", "l2", "pcie", "peer", "none")
    assert work.memory_bytes <= MEMORY_SHARE * facts.memory_bytes
    assert work.flop or work.bytes or work.operations
    assert (work.path == "none") == (work.bytes == 0)
    assert json.loads(json.dumps(dict(work.parameters))) == dict(work.parameters)
    assert 0 < work.activity <= 1
    again = work_of(name, facts)
    assert (work.turns, work.flop, work.bytes) == (again.turns, again.flop, again.bytes)
    check_steps(work)


def check_steps(work: Work) -> None:
    """Its steps name buffers that are there and are large enough."""
    buffers = {buffer.name: buffer for buffer in work.buffers}
    assert len(buffers) == len(work.buffers)
    for step in work.steps:
        if isinstance(step, Copy):
            assert step.source_at + step.bytes <= buffers[step.source].bytes
            assert step.target_at + step.bytes <= buffers[step.target].bytes
        elif isinstance(step, Gemm):
            assert buffers[step.a].count == step.batch * step.m * step.k or work.kernel == "transformer"
            assert buffers[step.c].count >= step.c_at + step.batch * step.m * step.n
            assert step.k % 16 == step.n % 16 == step.m % 2 == 0
        else:
            assert {extent for extent in step.args if isinstance(extent, str)} <= set(buffers)
            assert np.prod(step.block) <= 1024
            assert 1 <= step.grid[0] < 2**31
            assert all(1 <= extent < 2**16 for extent in step.grid[1:])
    for output in work.outputs:
        assert output.buffer in buffers


@pytest.mark.parametrize("name", KERNELS)
def test_what_does_not_fit_a_small_memory_is_made_smaller_or_answered(name: str) -> None:
    for memory in (1 << 30, 512 << 20, 64 << 20):
        work = find_kernel(name).build(facts_of((9, 0), memory_bytes=memory))
        assert isinstance(work, Unfit) or work.memory_bytes <= MOST_MEMORY * memory


ODD = [
    (1, 4, None, 0.0, (6, 0), 1 << 20),
    (2, 4, 0.0, 210.0, (7, 5), 4 << 20),
    (3, 24, 50.0, 0.0, (8, 6), 6 << 20),
    (16, 24, None, 1980.0, (12, 0), 126 << 20),
    (160, 288, 8000.0, 1980.0, (10, 0), 126 << 20),
    (132, 4, 4800.0, 1980.0, (9, 0), 50 << 20),
    (7, 16, 900.0, 1530.0, (7, 0), 0),
]
"""Multiprocessors, memory in GiB, bandwidth in GB/s, clock in MHz, compute capability, L2 cache in bytes."""


@pytest.mark.parametrize("odd", ODD, ids=[f"{odd[0]} SMs, {odd[1]} GiB" for odd in ODD])
def test_an_odd_gpu_gets_work_of_its_size_or_a_reason(odd: tuple[int, int, float | None, float, Any, int]) -> None:
    sms, gib, bandwidth, clock, capability, l2 = odd
    facts = replace(facts_of((9, 0)), sms=sms, memory_bytes=gib << 30, bandwidth_gb_s=bandwidth, max_clock_mhz=clock)
    facts = replace(facts, capability=capability, l2_bytes=l2)
    for name in KERNELS:
        work = find_kernel(name).build(facts)
        if isinstance(work, Unfit):
            assert capability < NEEDS.get(name, (0, 0)) or (name in ("l2-read", "sm") and l2 == 0), (name, work.reason)
            continue
        assert work.memory_bytes <= MEMORY_SHARE * facts.memory_bytes + (1 << 20)  # the log of `memory`
        assert float(work.parameters.get("ring_bytes", 0)) <= 0.05 * facts.memory_bytes, name


@pytest.mark.parametrize("device", ["V100", "A100", "H200"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_repetition_takes_milliseconds_by_the_data_sheet(name: str, device: str) -> None:
    facts = DEVICES[device]
    work = built(name, device)
    if isinstance(work, Unfit) or name in ("chase", "atomics", "launch", "l2-read"):
        return
    matrix = any(isinstance(step, Gemm) for step in work.steps)
    rate = {"dram": bytes_per_s(facts), "pcie": 25e9, "peer": 300e9, "none": 1e18}[work.path]
    seconds = max(work.flop / flop_per_s(facts, work.precision, matrix=matrix), work.bytes / rate)
    assert 0.4e-3 < seconds < 30e-3


@pytest.mark.parametrize("device", ["V100", "A100", "H200", "slice"])
def test_memory_kernels_lie_far_beyond_the_l2_cache(device: str) -> None:
    facts = DEVICES[device]
    for name in ("stream-copy", "stream-triad", "chase", "gather", "stencil27"):
        assert max(buffer.bytes for buffer in work_of(name, facts).buffers) >= 4 * facts.l2_bytes
    assert work_of("l2-read", facts).memory_bytes < facts.l2_bytes / 2


C_TYPES = {
    "int": "int32",
    "unsigned int": "uint32",
    "unsigned long long": "uint64",
    "u64": "uint64",
    "word": "uint32",
    "float": "float32",
    "double": "float64",
}
WIDE = {"float2": "float32", "uint4": "uint32"}


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_have_the_types_of_the_source(name: str) -> None:
    """Arguments travel as bytes: a type that differs from the parameter's is read as another number."""
    work = work_of(name, DEVICES["H200"])
    dtypes = {buffer.name: buffer.dtype for buffer in work.buffers}
    for step in work.steps:
        if not isinstance(step, Launch):
            continue
        defined = {"half": "float16", **dict(define.split("=") for define in step.defines)}
        text = re.search(rf"__global__ void {step.function}\(([^)]*)\)", source(step.source))
        assert text
        parameters = [re.sub(r"\bconst\b|__restrict__", "", declared).strip() for declared in text[1].split(",")]
        assert len(parameters) == len(step.args)
        for parameter, argument in zip(parameters, step.args, strict=True):
            kind = parameter.rpartition("*")[0].strip() if "*" in parameter else parameter.rpartition(" ")[0].strip()
            kind = defined.get(kind, kind)
            dtype = WIDE.get(kind) or C_TYPES.get(kind) or defined.get(kind, kind)
            if isinstance(argument, str):
                assert "*" in parameter
                packed = dtype == "uint32" and (
                    step.function == "alike" or (step.source == "fma.cu" and dtypes[argument] in ("float16", "uint16"))
                )
                assert packed or dtype == dtypes[argument], (step.function, parameter, argument)
            else:
                assert "*" not in parameter
                assert ("uint32" if isinstance(argument, Key) else argument.dtype.name) == dtype, (
                    step.function,
                    parameter,
                    argument,
                )


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("gemm-fp32", {"n": 100}, "multiple of 64"),
        ("stream-copy", {"count": 10}, "12288 words"),
        ("chase", {"footprint": 128}, "power of two from 256 bytes"),
        ("chase", {"footprint": 1 << 34}, "chase of this size needs 16384 MiB, but the GPU has 16384 MiB"),
        ("gemm-fp32", {"n": 51200, "k": 51200}, "needs 60000 MiB"),
        ("gather", {"table_bytes": 12345}, "power of two"),
        ("atomics", {"counters": 1000}, "power of two"),
        ("power-share", {"share": 0.0}, "above 0"),
        ("power-share", {"share": 1.5}, "at most 1"),
        ("copy-d2d", {"size": 8}, "256 KiB"),
        ("pagerank", {"vertices": 1}, "two vertices"),
        ("stencil27", {"side": 100}, "multiple of 64"),
        ("stencil27", {"side": 1600}, "of this size"),
        ("transformer", {"width": 100}, "multiples of 128"),
        ("l2-read", {"footprint": 1 << 30}, "do not fit"),
        ("transformer", {"sequences": 5000}, "of this size"),
        ("pagerank", {"vertices": 100_000, "mean_degree": 8, "iterations": 0}, "one iteration"),
        ("transformer-back", {"depth": 5}, "4 layers"),
        ("transformer-back", {"sequences": 4}, "a multiple of 3"),
        ("overlap-embedding", {"turns": 3}, ""),
        ("overlap-partitions", {"capacity": 16}, ""),
        ("overlap-activations", {"bits": 3}, ""),
    ],
)
def test_sizes_that_cannot_be_are_answered(name: str, parameters: dict[str, float], reason: str) -> None:
    answer = find_kernel(name).build(DEVICES["V100"], **parameters)
    assert isinstance(answer, Unfit)
    assert reason in answer.reason


def test_a_distribution_that_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match="no input distribution 'ones'"):
        find_kernel("gemm-fp32").build(DEVICES["V100"], input="ones")


def test_the_graph_has_heavy_tails() -> None:
    work = work_of("pagerank", DEVICES["V100"], vertices=20000)
    row, ends, inverse = (filled(1, buffer) for buffer in work.buffers[:3])
    degrees = np.diff(row.astype(np.int64))
    assert degrees.min() >= 1
    assert degrees.mean() == pytest.approx(8, rel=0.2)
    assert degrees.max() > 20 * degrees.mean()
    assert ends.max() < 20000
    out = np.bincount(ends, minlength=20000)
    np.testing.assert_allclose(inverse[out > 0], 1 / out[out > 0], rtol=1e-7)
    assert (inverse[out == 0] == 0).all()
    assert out.max() > 20 * out.mean()


def test_every_kernel_is_documented() -> None:
    page = (FOLDER.parent / "docs" / "how-we-know" / "kernels.md").read_text()
    table = page.split("## The table")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M)))) == set(
        KERNELS | EXCHANGES
    )
    for name in DISTRIBUTIONS:
        assert f"| `{name}`" in page
