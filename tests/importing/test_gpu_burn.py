"""Logs of gpu-burn: progress lines that overwrite themselves, errors, temperatures, verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.analysis.runs.measurements import measurements
from whorl.analysis.verdicts.judge import judge
from whorl.dashboards.documents.evidence import because
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]
UUIDS = ["GPU-0a1b2c3d-0000-1111-2222-333344445555", "GPU-ffffffff-0000-1111-2222-333344445555"]
LIST = "".join(f"GPU {n}: NVIDIA A100-SXM4-40GB (UUID: {uuid})\n" for n, uuid in enumerate(UUIDS))
MADE = "Initialized device {} with 40326 MB of memory (39900 MB available, using 35910 MB of it), using {}\n"
START = "Burning for 60 seconds.\n" + MADE.format(0, "FLOATS") + MADE.format(1, "FLOATS")


def progress(percent: float, rates: list[tuple[int, int]], errors: str, temps: str = "50 C - 60 C") -> str:
    done = " - ".join(f"{count} ({rate} Gflop/s)" for count, rate in rates)
    return f"\r{percent:.1f}%  proc'd: {done}   errors: {errors}   temps: {temps} "


BURN = (
    progress(10, [(5, 900), (0, 0)], "0 - 0", "-- - --")
    + progress(15, [(10, 1000), (5, 800)], "0 - 7  (WARNING!)")
    + progress(20, [(15, 1250), (5, 800)], "0 - 7  (WARNING!)")
    + "\n\tSummary at:   Thu Oct  1 10:00:12 UTC 2026\n\n"
    + progress(60, [(15, 1250), (10, 500)], "0 - 2  (WARNING!)", "54 C - 64 C")
    + "\nKilling processes with SIGTERM (soft kill)\nFreed memory for dev 0\nUninitted cublas\ndone\n\n"
)
VERDICT = "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n"


def _log(tmp_path: Path, text: str, name: str = "burn.log") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def _rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.sql(sql).to_pylist()]


def test_each_new_rate_is_a_repeat_and_errors_are_an_event(tmp_path: Path, store: Store) -> None:
    report = import_file(store, _log(tmp_path, LIST + START + BURN + VERDICT), Options())
    assert (report.format, report.total.rows, report.total.refused) == ("gpu-burn", 3, 0)
    times = _rows(store, "select gpu, repeat, value from results where figure = 'time' order by gpu, repeat")
    assert times == [(UUIDS[0], 0, 1000.0), (UUIDS[0], 1, 800.0), (UUIDS[1], 0, 2000.0)]
    rates = _rows(store, "select value, unit from results where figure = 'rate' order by gpu, repeat")
    assert rates == [(1000.0, "GFLOP/s"), (1250.0, "GFLOP/s"), (500.0, "GFLOP/s")]
    runs = _rows(store, "select workload, status, temperature_c, began, conditions from runs order by gpu")
    began = at(2026, 10, 1, 10, 0, 0)
    assert [row[:4] for row in runs] == [
        ("gpu-burn fp32", "ok", 50.0, began),
        ("gpu-burn fp32", "wrong_result", 60.0, began),
    ]
    assert runs[0][4]["precision"] == "fp32"
    events = _rows(store, "select kind, gpu, workload, n, detail from events")
    assert events == [("wrong_result", UUIDS[1], "gpu-burn fp32", 9, "gpu-burn found 9 wrong elements")]
    assert _rows(store, "select ts, cluster from events") == [(at(2026, 10, 1, 10, 0, 12), "fleet")]
    assert _rows(store, "select distinct model from gpus") == [("NVIDIA A100-SXM4-40GB",)]
    compared = measurements(store).select(pl.col("gpu").cast(pl.String), "value").rows()
    assert compared == [(UUIDS[0], 900.0)]  # the median of its repeats; nothing of the GPU with wrong results


def test_a_gpu_that_died_failed(tmp_path: Path, store: Store) -> None:
    died = (
        progress(50, [(5, 900), (0, 0)], "0 - 0")
        + "Failure during compute: Error in Read event: CUDA_ERROR_ECC_UNCORRECTABLE\n"
        + progress(70, [(9, 1000), (-1, 0)], "0 - -1  (DIED!)")
    )
    import_file(store, _log(tmp_path, LIST + died + VERDICT), Options())
    runs = _rows(store, "select workload, gpu, status, status_detail from runs order by gpu")
    assert runs[0] == ("gpu-burn", UUIDS[0], "ok", None)
    assert runs[1][:3] == ("gpu-burn", UUIDS[1], "failed")
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in runs[1][3]
    assert _rows(store, "select kind, gpu from events") == [("probe_failed", UUIDS[1])]
    assert _rows(store, "select distinct gpu from results") == [(UUIDS[0],)]


def test_two_starts_in_one_log(tmp_path: Path, parse: Parse) -> None:
    again = LIST + START + progress(50, [(9, 700), (9, 750)], "0 - 0") + "\n"
    found = parse(_log(tmp_path, LIST + START + BURN + VERDICT + again))
    assert found.frame.group_by("gpu").len().sort("gpu")["len"].to_list() == [3, 2]
    assert found.frame["run_id"].n_unique() == 4
    assert any("ends before its verdict" in note for note in found.report.notes)
    cut = parse(_log(tmp_path, LIST + START + BURN + again, "cut.log"))
    assert cut.frame["run_id"].n_unique() == 4


def test_which_gpu_of_several_was_tested(tmp_path: Path, parse: Parse, refusal: Callable[..., str]) -> None:
    one = progress(100, [(5, 900)], "0", "50 C")
    path = _log(tmp_path, LIST + MADE.format(0, "FLOATS") + one)
    assert "has 2 GPUs and gpu-burn tested 1" in refusal(path)
    assert parse(path, gpu="n1/7").frame["gpu"].to_list() == ["n1/7"]
    by_number = parse(_log(tmp_path, LIST + MADE.format(1, "FLOATS") + one))
    assert by_number.frame["gpu"].to_list() == [UUIDS[1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Burning for 10 seconds.\nCouldn't init a GPU test: Error in context\n", "nothing: Couldn't init a GPU test"),
        ("Burning for 10 seconds.\n", "there is no Gflop/s in it"),
        (progress(10, [(0, 0)], "0", "--") + "\nTested 1 GPUs:\n\tGPU 0: OK\n", "no Gflop/s"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_file(_log(tmp_path, text), Options(node="n1"))


def _burn(wrong: str, day: int = 19, gpus: int = 8) -> str:
    """A log of gpu-burn in which the sixth GPU has errors."""
    listed = "".join(f"GPU {n}: A100 (UUID: GPU-aaaaaaaa-0000-0000-0000-00000000000{n:x})\n" for n in range(gpus))
    cells = [f"670 ({15800 + n} Gflop/s)" for n in range(gpus)]
    errors = ["0"] * gpus
    errors[5] = wrong
    line = f"10.0%  proc'd: {' - '.join(cells)}   errors: {' - '.join(errors)}   temps: {' - '.join(['50 C'] * gpus)}\n"
    return f"{listed}{line}\tSummary at:   Wed Feb {day} 01:48:43 UTC 2025\n\nTested {gpus} GPUs:\n" + "".join(
        f"\tGPU {n}: {'FAULTY' if n == 5 else 'OK'}\n" for n in range(gpus)
    )


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("errors", "number", "words"),
    [
        ("211  (WARNING!)", 211, "up to 211"),
        ("-524288000  (WARNING!)", None, "how many was not counted"),
        ("2147483647  (WARNING!)", None, "how many was not counted"),
        ("99999999999999999999  (WARNING!)", None, "how many was not counted"),
        ("0", None, "how many was not counted"),
    ],
)
def test_a_faulty_gpu_has_a_verdict(errors: str, number: int | None, words: str, tmp_path: Path, store: Store) -> None:
    """However its error counter overflowed, and with no peers to compare it with."""
    uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000005"
    for sitting, state in ((19, "suspected"), (21, "confirmed")):
        path = _log(tmp_path, _burn(errors, sitting), f"{sitting}.log")
        import_file(store, path, Options(node="n1", cluster="east"))
        (verdict,) = judge(store, cluster="east").rows
        assert (verdict.name, verdict.kind, verdict.state) == ("n1/5", "wrong results", state)
        assert words in because(verdict)
    assert set(_rows(store, "select cluster, node, count(*) from gpus_now group by all")) == {("east", "n1", 8)}
    assert _rows(store, "select cluster, gpu, node, ts, kind, n from events order by ts") == [
        ("east", uuid, "n1", at(2025, 2, day, 1, 48, 43), "wrong_result", number) for day in (19, 21)
    ]


def test_errors_below_zero_are_wrong_results_also_without_a_verdict(tmp_path: Path, store: Store) -> None:
    import_file(store, _log(tmp_path, _burn("-5").partition("\nTested")[0]), Options())
    assert _rows(store, "select kind, right(gpu, 1), n from events") == [("wrong_result", "5", None)]


def test_what_happened_without_a_time_did_so_when_the_file_was_last_changed(tmp_path: Path, store: Store) -> None:
    text = "".join(line for line in _burn("7").splitlines(keepends=True) if "Summary" not in line)
    path = _log(tmp_path, text)
    os.utime(path, (1_740_000_000, 1_740_000_000))
    report = import_file(store, path, Options())
    assert _rows(store, "select epoch(ts) from events") == [(1_740_000_000.0,)]
    assert any("when the file was last changed (2025-02-19 21:20:00 UTC)" in note for note in report.notes)


def test_logs_of_several_hosts_in_one_file(tmp_path: Path, parse: Parse, refusal: Callable[..., str]) -> None:
    one = LIST + BURN + VERDICT
    hosts = [("n01", one), ("n02", one.replace("1111", "2222"))]
    labelled = "\n".join(f"{host}: {line}" for host, text in hosts for line in text.split("\n"))
    found = parse(_log(tmp_path, labelled), node="elsewhere").frame
    assert set(found.select("node", "gpu", "slot").unique().rows()) == {
        (host, uuid, slot) for host, text in hosts for slot, uuid in enumerate(UUIDS) if uuid in text
    } | {("n02", uuid.replace("1111", "2222"), slot) for slot, uuid in enumerate(UUIDS)}
    one_after_the_other = _log(tmp_path, one + one.replace("1111", "2222"), "both.log")
    assert parse(one_after_the_other).frame["gpu"].n_unique() == 4
    assert "has rows of several hosts" in refusal(one_after_the_other, node="n01")
    killed = (LIST + BURN) + (LIST + BURN).replace("1111", "2222")
    found = parse(_log(tmp_path, killed, "killed.log")).frame
    assert found["gpu"].n_unique() == 4
    mixed = LIST + LIST.replace("1111", "2222") + BURN
    assert "the outputs of several hosts are mixed" in refusal(_log(tmp_path, mixed, "mixed.log"))
    tasks = "\n".join(f"{task}: {line}" for task in range(2) for line in one.split("\n"))
    assert "--output=%N.log" in refusal(_log(tmp_path, tasks))
