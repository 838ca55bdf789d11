"""CSV of nvprof, nsys and ncu: durations of kernels, as the SC'22 study has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file

Parse = Callable[..., Parsed]

HEAD = "==71== NVPROF is profiling process 71, command: ./sgemm 4096\n==71== Profiling result:\n"
TRACE = (
    '"Start","Duration","Grid X","Grid Y","Registers Per Thread","Size","Throughput","Device","Context","Stream",'
    '"System","Name","Correlation_ID"\ns,ms,,,,MB,GB/s,,,,,,\n'
)
V100 = "Tesla V100-SXM2-16GB (0)"
GEMM = "void volta_sgemm<float, int>::run(float*, (anonymous)::Shape, int)"


def _launch(start: float, ms: float, name: str = GEMM, on: str = V100) -> str:
    return f'{start:.6f},{ms:.6f},8,1,122,,,"{on}","1","7",,"{name}",12\n'


def _reading(start: float, value: str, name: str, on: str = V100) -> str:
    return f'{start:.6f},,,,,,,"{on}",,,"{value}","[{name}]",\n'


def _readings(start: float, clock: str, heat: int, power: str) -> str:
    values = (("SM/Memory Clock (MHz)", clock), ("Temperature (C)", str(heat)), ("Power/Limit (mW)", power))
    return "".join(_reading(start, value, name) for name, value in values)


STUDY = (
    HEAD
    + TRACE
    + _readings(0.1, "135/877", 40, "40000/300000")
    + '0.2,1.5,,,,42.0,9.0,"Tesla V100-SXM2-16GB (0)","1","7",,"[CUDA memcpy HtoD]",118\n'
    + _launch(1.0, 30.0)
    + _readings(1.5, "1380/877", 60, "290000/300000")
    + _launch(2.0, 24.0)
    + _readings(2.5, "1350/877", 64, "298000/300000")
    + _launch(3.0, 26.0)
    + _readings(3.5, "1290/877", 68, "299000/300000")
    + _launch(4.0, 40.0)
    + _readings(4.5, "1530/877", 50, "80000/300000")
    + _launch(5.0, 0.001, "fill(float*, int)")
)


def _file(tmp_path: Path, text: str, name: str = "gpu.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def _rows(found: Parsed, *columns: str) -> list[tuple[Any, ...]]:
    return found.frame.select(columns).rows()


def test_a_trace_as_in_the_study(tmp_path: Path, store: Store) -> None:
    report = import_file(store, _file(tmp_path, STUDY), Options(gpu="left"))
    assert (report.format, report.total.rows, report.total.kept) == ("nvprof", 1, 1)
    (run,) = store.sql("select * from runs").to_pylist()
    assert (run["workload"], run["gpu"]) == ("nvprof volta_sgemm.float.int.run", "left")
    medians = [run[name] for name in ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")]
    assert medians == [1350.0, 877.0, 64.0, 298.0]
    assert run["conditions"]["kernels"] == "2"
    assert "volta_sgemm<float, int>::run" in run["conditions"]["kernel"]
    assert store.sql("select figure, value from results").to_pylist() == [{"figure": "time", "value": 25.0}]
    assert store.sql("select model from gpus").to_pylist() == [{"model": "Tesla V100-SXM2-16GB"}]
    assert "1 kernel is not stored: less than 1 % of the time" in report.notes


def test_which_gpu_it_was(tmp_path: Path, parse: Parse) -> None:
    uuid = "GPU-db1d151f-52b4-5768-2609-b47ee37cb73c"
    by_name = parse(_file(tmp_path, STUDY, f"sgemm_{uuid}_run1_node0_gpu0_1649888832.csv"))
    assert _rows(by_name, "gpu", "uuid") == [(uuid, uuid)]
    numbered = parse(_file(tmp_path, STUDY), node="n1")
    assert _rows(numbered, "gpu") == [("n1:0",)]
    assert any("CUDA_VISIBLE_DEVICES" in note for note in numbered.report.notes)
    two = STUDY + _launch(1.0, 50.0, on="Tesla V100-SXM2-16GB (1)")
    assert _rows(parse(_file(tmp_path, two), node="n1"), "gpu", "value") == [("n1:0", 25.0), ("n1:1", 50.0)]


def test_a_summary_names_no_gpu(tmp_path: Path, parse: Parse, refusal: Callable[..., str]) -> None:
    rows = (
        '"GPU activities",97.0,291.0,3,97.0,96.0,98.0,"volta_dgemm_64x64_nn"\n'
        '"GPU activities",3.0,9.0,2,4.5,4.0,5.0,"[CUDA memcpy HtoD]"\n'
        '"API calls",60.0,300.0,5,60.0,1.0,90.0,"cudaMemcpy"\n'
    )
    text = HEAD + '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n' + rows
    path = _file(tmp_path, text)
    assert "--gpu NAME" in refusal(path)
    assert _rows(parse(path, gpu="g"), "workload", "value") == [("nvprof volta_dgemm_64x64_nn", 0.097)]
    old = HEAD + '"Time(%)","Time","Calls","Avg","Min","Max","Name"\n%,ms,,ms,ms,ms,\n90.0,9,3,3,3,3,"k(int)"\n'
    old += '==71== API calls:\n"Time(%)","Time","Calls","Avg","Min","Max","Name"\n%,ms,,ms,ms,ms,\n90.0,9,3,3,3,3,"x"\n'
    assert _rows(parse(_file(tmp_path, old), gpu="g"), "workload", "value") == [("nvprof k", 3.0)]


def test_tables_of_nsys(tmp_path: Path, parse: Parse) -> None:
    trace = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,Device,Ctx,Strm,Name\n" + "".join(
        f'{n}000,{50 + n}000,1,8,1,1,64,NVIDIA A100-SXM4-40GB (1),1,7,"gemm(float *, int)"\n' for n in range(4)
    )
    found = parse(_file(tmp_path, trace), node="n1")
    assert _rows(found, "workload", "gpu", "value", "model") == [("nsys gemm", "n1:1", 0.0515, "NVIDIA A100-SXM4-40GB")]
    summary = (
        "Processing [x.sqlite] with [cuda_gpu_kern_sum.py]...\n\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "99.0,600000,3,200000.0,1,1,1,0.5,gemm\n\n"
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "99.0,600000,3,200000.0,1,1,1,0.5,poll\n"
    )
    assert _rows(parse(_file(tmp_path, summary), gpu="g"), "workload", "value") == [("nsys gemm", 0.2)]


DETAILS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"\n'
)


def metric(launch: int, name: str, unit: str, value: str, host: str = "127.0.0.1", gpu: int = 0) -> str:
    return (
        f'"{launch}","9","app","{host}","gemm(float *, int)","1","7","(256, 1, 1)","(8, 1, 1)","{gpu}","8.0",'
        f'"GPU Speed Of Light Throughput","{name}","{unit}","{value}"\n'
    )


def test_ncu_a_line_for_eachmetric(tmp_path: Path, parse: Parse) -> None:
    text = (
        "==PROF== Connected to process 9\nresult, with, commas: 1\n"
        + DETAILS
        + metric(0, "SM Frequency", "cycle/nsecond", "1.2")
        + metric(0, "Duration", "usecond", "1,024.50")
        + metric(1, "SM Frequency", "Ghz", "1.3")
        + metric(1, "gpu__time_duration.sum", "ns", "1025500")
        + metric(2, "Duration", "ms", "9.00", gpu=1)
        + metric(3, "Duration", "ms", "n/a", gpu=1)
    )
    found = parse(_file(tmp_path, text), node="n1")
    assert _rows(found, "workload", "gpu", "value", "sm_clock_mhz") == [
        ("ncu gemm", "n1:0", 1.025, 1250.0),
        ("ncu gemm", "n1:1", 9.0, None),
    ]
    assert found.report.refusals == {"the duration of a kernel is no number above 0 (n/a)": [9]}
    remote = DETAILS + metric(0, "Duration", "ms", "9.00", host="gpu-node-3")
    assert _rows(parse(_file(tmp_path, remote)), "gpu") == [("gpu-node-3:0",)]


def test_ncu_a_column_for_eachmetric(tmp_path: Path, parse: Parse) -> None:
    text = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
        '"Device","CC","dram__bytes_read.sum","gpu__time_duration.sum","dram__cycles_elapsed.avg.per_second"\n'
        '"","","","","","","","","","","","byte","second","cycle/usecond"\n'
        '"0","1","python","h","w","1","7","(256, 1, 1)","(5, 20, 1)","0","7.0","10,240,000","4.0e-05","877"\n'
        '"1","1","python","h","w","1","7","(256, 1, 1)","(5, 20, 1)","0","7.0","10,240,000","6.0e-05","877"\n'
    )
    found = parse(_file(tmp_path, text))
    assert _rows(found, "gpu", "value", "mem_clock_mhz") == [("h:0", 0.05, 877.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "profile with --print-gpu-trace --csv"),
        (HEAD + TRACE, "no durations of kernels"),
        (HEAD + TRACE.replace("s,ms", "s,MB") + _launch(1, 2), "is no unit of time"),
        (HEAD + TRACE + _launch(1, 2)[:-40], "no durations of kernels"),
        (
            HEAD + '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"\n',
            "no durations of kernels",
        ),
        (DETAILS + metric(0, "Registers Per Thread", "register/thread", "32"), "no kernel has a duration"),
        (DETAILS + metric(0, "Duration", "parsec", "32"), "'parsec' is no unit of time"),
        (DETAILS, "no kernel has a duration"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_file(_file(tmp_path, text), Options(gpu="g"))


def test_a_cut_line_costs_only_itself(tmp_path: Path, parse: Parse) -> None:
    found = parse(_file(tmp_path, STUDY + _launch(6, 2)[:-30] + "\nan application, which prints\n"), gpu="g")
    assert found.report.refusals == {"it is no whole line of the table: it was cut or damaged": [26]}
    assert _rows(found, "value") == [(25.0,)]
