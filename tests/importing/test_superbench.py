"""Results of SuperBench: a line for each node, a key for each benchmark, metric and GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from whorl.analysis.verdicts.judge import judge
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file

Parse = Callable[..., Parsed]


def _line(results: Mapping[str, Any], node: str = "sb-01") -> str:
    return json.dumps({"node": node, **results})


def _file(tmp_path: Path, *lines: str, name: str = "results-summary.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def _times(found: Parsed) -> dict[tuple[str, str, int], Any]:
    rows = found.frame.select("workload", "gpu", "repeat", "value").rows()
    return {row[:3]: pytest.approx(row[3], rel=1e-12) for row in rows}


LAUNCH = {"kernel-launch/return_code:0": 0, "kernel-launch/event_time:0": 0.00542, "kernel-launch/event_time:1": 0.006}


def test_each_metric_of_a_gpu_is_a_run(tmp_path: Path, store: Store) -> None:
    results = LAUNCH | {
        "gemm-flops/return_code:1": 0,
        "gemm-flops/fp32_flops:0": 20_000.0,
        "gemm-flops/int8_tc_iops:0": 500_000.0,
        "cublaslt-gemm/return_code:1": 0,
        "cublaslt-gemm/fp16_0_4096_4096_4096_flops:0": 800.0,
        "mem-bw/h2d_bw:1": 25.0,
        "model-benchmarks:gpt/pytorch-gpt2-small/return_code:1": 0,
        "cudnn-function/return_code:1": 0,
        "model-benchmarks:gpt/pytorch-gpt2-small/fp32_train_step_time:0": 100.0,
        "model-benchmarks:gpt/pytorch-gpt2-small/fp32_train_throughput:0": 320.0,
        "cudnn-function/name_cudnnConvolutionForward_x_1_time:0": 50.0,
    }
    report = import_file(store, _file(tmp_path, _line(results)), Options())
    assert (report.format, report.total.kept, report.total.refused) == ("superbench", 8, 0)
    rows = store.sql(
        "select workload, gpu, value from results where figure = 'time' order by workload, gpu"
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("superbench cublaslt-gemm/fp16_0_4096_4096_4096_flops", "sb-01:0", 1.25),
        ("superbench cudnn-function/name_cudnnConvolutionForward_x_1_time", "sb-01:0", 0.05),
        ("superbench gemm-flops/fp32_flops", "sb-01:0", 50.0),
        ("superbench gemm-flops/int8_tc_iops", "sb-01:0", 2.0),
        ("superbench kernel-launch/event_time", "sb-01:0", 0.00542),
        ("superbench kernel-launch/event_time", "sb-01:1", 0.006),
        ("superbench mem-bw/h2d_bw", "sb-01:1", 40.0),
        ("superbench model-benchmarks.gpt/pytorch-gpt2-small/fp32_train_step_time", "sb-01:0", 100.0),
    ]
    figures = store.sql(
        "select figure, unit, value from results where figure <> 'time' order by figure, value"
    ).to_pylist()
    assert [tuple(row.values()) for row in figures] == [
        ("bandwidth", "GB/s", 25.0),
        ("operation_rate", "Gop/s", 500_000.0),
        ("rate", "GFLOP/s", 20_000.0),
        ("rate", "GFLOP/s", 800_000.0),
    ]
    assert store.sql("select name from gpus_now order by name").to_pylist() == [
        {"name": "sb-01/0"},
        {"name": "sb-01/1"},
    ]


def test_gpus_in_the_name_of_a_metric(tmp_path: Path, parse: Parse) -> None:
    one_process = {
        "gpu-copy-bw/gpu3_to_cpu_by_dma_under_numa0_bw:0": 20.0,
        "gpu-copy-bw/gpu3_to_gpu1_write_by_sm_bw:0": 200.0,
        "gpu-copy-bw/gpu_all_to_gpu_all_write_by_sm_bw:0": 999.0,
        "nvbandwidth/host_to_device_memcpy_ce_cpu0_gpu2_bw:0": 50.0,
        "nvbandwidth/device_to_device_latency_sm_gpu0_gpu2_lat:0": 900.0,
        "nvbandwidth/device_to_host_memcpy_sm_bandwidth_cpu0_gpu2:0": 40.0,
        "gpu-stream/STREAM_COPY_double_gpu_1_buffer_512_block_128_bw:0": 1000.0,
    }
    assert _times(parse(_file(tmp_path, _line(one_process)))) == {
        ("superbench gpu-copy-bw/gpu_to_cpu_by_dma_under_numa0_bw", "sb-01:3", 0): 50.0,
        ("superbench gpu-copy-bw/gpu_to_gpu_write_by_sm_bw", "sb-01:3", 1): 5.0,
        ("superbench nvbandwidth/host_to_device_memcpy_ce_cpu0_gpu_bw", "sb-01:2", 0): 20.0,
        ("superbench nvbandwidth/device_to_device_latency_sm_gpu_gpu_lat", "sb-01:0", 2): 0.0009,
        ("superbench nvbandwidth/device_to_host_memcpy_sm_bandwidth_cpu0_gpu", "sb-01:2", 0): 25.0,
        ("superbench gpu-stream/STREAM_COPY_double_gpu_buffer_512_block_128_bw", "sb-01:1", 0): 1.0,
    }
    a_process_each = {f"gpu-copy-bw/gpu0_to_cpu_by_dma_under_numa0_bw:{rank}": 10.0 for rank in (0, 5)}
    found = _times(parse(_file(tmp_path, _line(a_process_each))))
    assert {gpu for _, gpu, _ in found} == {"sb-01:0", "sb-01:5"}


def test_what_failed_is_an_event_and_never_a_time(tmp_path: Path, store: Store) -> None:
    results = LAUNCH | {
        "gemm-flops/return_code:1": 4,
        "gpu-burn/gpu_0_pass:0": 1,
        "gpu-burn/gpu_1_pass:0": 0,
        "gpu-burn/gpu_3_pass": "0",
        "my-check/memory_passed:4": False,
        "nccl-bw:nvlink/return_code:0": 3,
    }
    path = _file(tmp_path, _line(results))
    os.utime(path, (1_740_000_000, 1_740_000_000))
    report = import_file(store, path, Options(cluster="east"))
    events = store.sql("select kind, gpu, workload from events order by kind, gpu").to_pylist()
    assert [tuple(row.values()) for row in events] == [
        ("probe_failed", "sb-01:1", "superbench gemm-flops"),
        ("wrong_result", "sb-01:1", "superbench gpu-burn"),
        ("wrong_result", "sb-01:3", "superbench gpu-burn"),
        ("wrong_result", "sb-01:4", "superbench my-check"),
    ]
    assert store.sql("select distinct cluster, node, epoch(ts) t from events").to_pylist() == [
        {"cluster": "east", "node": "sb-01", "t": 1_740_000_000}
    ]
    assert {(verdict.name, verdict.kind) for verdict in judge(store, cluster="east").rows} == {
        ("sb-01/1", "wrong results"), ("sb-01/3", "wrong results"), ("sb-01/4", "wrong results"), ("sb-01/1", "failed"),
    }  # fmt: skip
    failed = store.sql("select distinct workload, status from runs where status <> 'ok' order by all").to_pylist()
    assert [tuple(row.values()) for row in failed] == [
        ("superbench gemm-flops", "failed"),
        ("superbench gpu-burn", "wrong_result"),
        ("superbench my-check", "wrong_result"),
    ]
    assert "nccl-bw:nvlink failed with return code 3 on sb-01 (line 1)" in report.notes


def test_what_is_of_no_single_gpu_is_told(tmp_path: Path, parse: Parse) -> None:
    results = LAUNCH | {
        "nccl-bw:nvlink/allreduce_8388608_busbw:0": 200.0,
        "monitor/gpu_temperature:0": 50,
        "megatron-gpt/megatron/fp16_train_step_time:0": 900.0,
        "nvbandwidth/host_to_device_memcpy_ce_sum_bw:0": 400.0,
        "tensorrt-inference/pytorch-resnet50/gpu_time_99:0": 3.0,
        "cpu-stream/copy_throughput": 9.0,
        "model-benchmarks:gpt/pytorch-gpt2/fp32_train_step_time": 4.0,
    }
    found = parse(_file(tmp_path, _line(results)))
    assert set(found.frame["workload"]) == {"superbench kernel-launch/event_time"}
    (note,) = [note for note in found.report.notes if note.startswith("not stored")]
    for name in ("nccl-bw:nvlink (1)", "monitor (1)", "tensorrt-inference (1)", "megatron-gpt (1)"):
        assert name in note


@pytest.mark.parametrize("lost", [slice(5, None), slice(None, -5)])
def test_a_line_whose_begin_or_end_is_lost_is_refused_alone(tmp_path: Path, parse: Parse, lost: slice) -> None:
    lines = [json.dumps(LAUNCH | {"node": f"n{number}"}) for number in range(3)]
    lines[1] = lines[1][lost]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    found = parse(path)
    assert set(found.frame["node"]) == {"n0", "n2"}
    assert [*found.report.refusals.values()] == [[2]]


def test_one_document_and_no_node(tmp_path: Path, parse: Parse) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([LAUNCH], indent=2))
    assert set(parse(path, node="n9").frame["gpu"]) == {"n9:0", "n9:1"}
    path.write_text(json.dumps([LAUNCH, LAUNCH], indent=2))
    with pytest.raises(InputError, match="2 nodes have no name"):
        read_file(path, Options(node="n9"))
    path.write_text(json.dumps([LAUNCH], indent=2)[:-10])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_file(path, Options())
