"""The probes: their names differ, their kernels exist, the suites keep their time."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from whorl.kernels.catalogue import EXCHANGES, KERNELS, find_kernel
from whorl.kernels.work import Unfit
from whorl.probes import catalogue
from whorl.probes.catalogue import SUITES, Kind
from whorl.probes.effort import EFFORTS
from whorl.tests.probes.hand_device import FACTS

BIG = replace(FACTS, capability=(9, 0), memory_bytes=80 << 30, l2_bytes=50 << 20, peers=3, max_clock_mhz=1980.0)


def test_every_name_stands_once() -> None:
    assert len(catalogue.PROBES) == len(catalogue._ROWS)


@pytest.mark.parametrize("name", list(catalogue.PROBES))
def test_every_probe_has_a_kernel_that_takes_its_parameters(name: str) -> None:
    probe = catalogue.find_probe(name)
    kernel = find_kernel(probe.kernel)
    if probe.kind is Kind.EXCHANGE:
        assert isinstance(kernel.build(BIG), Unfit), "it takes several real GPUs"
        return
    parameters = inspect.signature(kernel.build).parameters
    scanned = [probe.scan[0]] if probe.scan else []
    assert {*probe.parameters, *scanned} <= set(parameters)
    if probe.kind is Kind.STAIRCASE:
        assert "share" in parameters
    work = kernel.build(BIG, **probe.parameters)
    assert not isinstance(work, Unfit), f"an H100 can run it: {work}"
    if probe.figure == "latency" or probe.figure == "operation_rate":
        assert work.operations or work.precision == "int32"
    if probe.figure == "bandwidth":
        assert work.bytes
        assert work.path != "none"
    if probe.figure == "rate":
        assert work.flop


def test_every_kernel_has_a_probe() -> None:
    assert {probe.kernel for probe in catalogue.PROBES.values()} == {*KERNELS, *EXCHANGES}


def test_each_suite_holds_the_smaller_ones_and_covers_all_that_is_stressed() -> None:
    held = [{probe.name for probe in catalogue.suite(name)} for name in SUITES]
    assert held[0] < held[1] < held[2] == set(catalogue.PROBES) - {"soak", "stress", "transformer-back"}
    assert {"gemm-fp32", "fma-fp64", "stream-triad", "copy-h2d", "power-mix", "idle", "memory", "sm"} <= held[0]
    assert {probe.suite for probe in catalogue.PROBES.values()} <= {*SUITES, None}


@pytest.mark.parametrize(("suite", "most_s"), [("quick", 60), ("standard", 300)])
def test_the_limits_of_a_suite_add_up_to_less_than_it_may_take(suite: str, most_s: float) -> None:
    effort, probes = EFFORTS[suite], catalogue.suite(suite)
    longest = sum(effort.expected_s(probe) for probe in probes) + effort.first_warm_up_s - effort.warm_up_s
    assert longest <= most_s - 0.5 * len(probes), "half a second is left for making each work ready"


def test_probes_run_in_the_tables_order_however_they_are_named() -> None:
    chosen = catalogue.choose(["launch", "idle", "launch", "gemm-fp32"])
    assert [probe.name for probe in chosen] == ["idle", "gemm-fp32", "launch"]
