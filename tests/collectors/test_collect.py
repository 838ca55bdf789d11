"""`whorl collect` as it is run: a process, our own NVML library, a store on the disk, and how it all ends."""

from __future__ import annotations

import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.tests import checks
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.sizes import count
from whorl.tests.stores import ask, new_store

PATIENCE_S = 60.0
until = partial(checks.until, every_s=0.4)  # looking costs more than waiting
WHORL = [sys.executable, "-m", "whorl", "collect"]


def collect_here(store: Path, *options: str) -> Result:
    """The verb in this process."""
    return CliRunner().invoke(cli, ["collect", "--store", str(store), "--node", "n1", *options])


def command(store: Path, *options: str) -> list[str]:
    return [*WHORL, "--store", str(store), "--node", "n1", *options]


@contextmanager
def collecting(
    library: NvmlLibrary, store: Path, *options: str, before: Callable[[], object] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A collector that has begun to store rows; killed at the end if it still runs."""
    opened = new_store(store)
    arguments = command(store, "--interval", "0.05", *options)
    process = subprocess.Popen(
        arguments, env=library.environment(), stderr=subprocess.PIPE, text=True, preexec_fn=before
    )
    with process:
        try:
            until(lambda: len(opened.sql("select ts from telemetry limit 1")), process)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def rows(store: Path) -> int:
    return int(ask(store, "select count(*) n from telemetry")[0]["n"])


def kinds(store: Path) -> list[str]:
    return [row["kind"] for row in ask(store, "select kind from events order by ts")]


def ends(process: subprocess.Popen[str]) -> str:
    """Wait for the end; returns what stands on standard error."""
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert "Traceback" not in errors
    return errors


@pytest.mark.long
def test_the_end_of_a_terminal_ends_it_well(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    nvml_library.write("gpus 2")
    with collecting(nvml_library, tmp_path / "S") as process:
        process.send_signal(signal.SIGHUP)
        errors = ends(process)
    assert process.returncode == 0
    stored = rows(tmp_path / "S")
    assert f"SIGHUP received; stored {stored:,} rows" in errors
    assert kinds(tmp_path / "S")[-1] == "collect_ended"
    assert f"{len(kinds(tmp_path / 'S'))} events, in" in errors
    assert not list((tmp_path / "S" / "journal").glob("*.journal"))  # sealed


@pytest.mark.long
def test_live_rows_are_seen_and_kill_9_loses_none(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    nvml_library.write("gpus 2")
    store = tmp_path / "S"
    seen = 0
    for _ in range(count(2, short=1)):
        with collecting(nvml_library, store, "--set", "durable=tick") as process:
            least = seen + 20
            until(lambda: rows(store) >= least, process)  # noqa: B023 - it is called here
            (newest,) = ask(store, "select epoch_ns(max(ts)) ts from telemetry")
            assert time.time() - newest["ts"] / 1e9 < 2.0
            seen = rows(store)
            process.kill()
            process.wait()
        assert rows(store) >= seen
        (told,) = ask(store, "select count(*) n, count(distinct (gpu, ts)) d, count(power_mw) p from telemetry")
        assert told["n"] == told["d"] == told["p"]
        seen = told["n"]
    per_gpu = ask(store, "select count(*) n from telemetry group by gpu")
    assert len({row["n"] for row in per_gpu}) == 1  # whole ticks


@pytest.mark.long
def test_the_second_collector_on_a_node_is_refused(nvml: NvmlLibrary, tmp_path: Path) -> None:
    nvml.write("gpus 2")
    store = tmp_path / "S"
    with collecting(nvml, store) as process:
        second = collect_here(store)
        assert second.exit_code == 3
        assert len(second.stderr.splitlines()) == 1
        assert f"process {process.pid}" in second.stderr
        there = rows(store)
        until(lambda: rows(store) > there, process)
        process.terminate()
        ends(process)
    assert process.returncode == 0


@pytest.mark.long
def test_a_full_disk(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    """Files may not grow beyond 200 kB, as if the disk were full: one sentence, and what was stored stays."""
    nvml_library.write("gpus 8")
    store = tmp_path / "S"

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    with collecting(nvml_library, store, before=full) as process:
        errors = ends(process)
        assert process.returncode == 3
    assert "no space is left" in errors
    assert len([line for line in errors.splitlines() if not line.startswith("whorl: warning")]) <= 3
    (told,) = ask(store, "select count(*) n, count(distinct (gpu, ts)) d, count(power_mw) p from telemetry")
    assert told["n"] == told["d"] == told["p"]
    assert told["n"] > 200
    assert told["n"] % 8 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_may_not_be_written(tmp_path: Path) -> None:
    place = Path("/tmp", f"whorl-test-{os.getpid()}-collect")
    options = ("--backend", "simulated", "--duration", "0.1")
    try:
        new_store(place / "S")
        assert collect_here(tmp_path / "other", *options).exit_code == 0  # another user may not import what is not yet
        os.seteuid(65534)
        try:
            done = collect_here(place / "S", *options)
        finally:
            os.seteuid(0)
        assert done.exit_code == 3, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "this user has no write permission there" in done.stderr
    finally:
        shutil.rmtree(place)


def test_a_store_that_cannot_be_made(nvml: NvmlLibrary, tmp_path: Path) -> None:
    nvml.write("gpus 2")
    (tmp_path / "file").write_text("")
    for where, words in (
        (tmp_path / "file", "is a file, but a store is a folder"),
        (tmp_path / "file" / "S", "cannot"),
    ):
        done = collect_here(where)
        assert done.exit_code == 3
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


@pytest.mark.long
def test_a_call_that_hangs_for_ever_does_not_keep_it(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    nvml_library.write("gpus 3")
    store = tmp_path / "S"
    with collecting(nvml_library, store, "--set", "hung=0.3") as process:
        nvml_library.add("gpu 1 hang")
        until(lambda: "hung" in kinds(store), process)
        query = "select count(power_mw) p from telemetry group by gpu order by p"
        before = [row["p"] for row in ask(store, query)]
        until(lambda: ask(store, query)[1]["p"] > before[1] + 5, process)
        process.terminate()
        errors = ends(process)
    assert process.returncode == 0
    assert "SIGTERM received; stored" in errors
    after = [row["p"] for row in ask(store, query)]
    assert after[0] == before[0]
    assert after[1] == after[2]
    (silent,) = ask(
        store, "select count(distinct gpu) g, count(distinct quality) q from telemetry where quality = 'hung'"
    )
    assert (silent["g"], silent["q"]) == (1, 1)


def test_a_driver_that_hangs_from_the_start_does_not_keep_it(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    nvml_library.write("gpus 2", "gpu 0 hang")
    process = subprocess.Popen(
        command(tmp_path / "S"), env=nvml_library.environment(), stderr=subprocess.PIPE, text=True
    )
    with process:
        called = {"nvmlDeviceGetHandleByIndex_v2"}
        until(lambda: called <= {name for _, name in nvml_library.called()}, process)
        process.send_signal(signal.SIGINT)
        errors = ends(process)
    assert process.returncode == 0
    assert "stopped before anything was read" in errors


def test_without_a_driver_it_says_so_and_what_to_do(tmp_path: Path) -> None:
    empty = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "WHORL_NVML_CONTROL")}
    done = subprocess.run(command(tmp_path / "S"), env=empty, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--backend simulated" in done.stderr
    assert not (tmp_path / "S").exists()


def test_without_a_gpu(nvml: NvmlLibrary, tmp_path: Path) -> None:
    nvml.write("gpus 0")
    done = collect_here(tmp_path / "S")
    assert done.exit_code == 2
    assert "shows no GPU on this machine; without GPUs, use --backend simulated" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--interval", "0.01"], "an interval of 0.01 s is too short"),
        (["--interval", "0"], "an interval of 0 s is too short"),
        (["--interval", "2d"], "an interval of 172800 s is too long"),
        (["--interval", "often"], "'often' is not a time"),
        (["--interval", "nan"], "'nan' is not a time"),
        (["--duration", "0"], "a duration of 0 s is not possible"),
        (["--set", "durable=-1"], "is not a time"),
        (["--backend", "nvml:gpus=4"], "nvml takes nothing more: leave out :gpus=4"),
        (["--backend", "dcgm:gpus=4"], "there is no 'gpus'; there are host, socket"),
        (["--backend", "simulated:gpus"], "'gpus' has no value: write gpus=VALUE"),
        (["--backend", "dcgm:host=n2:5555"], "the engine at n2:5555 is another machine: also give --node"),
        (["--backend", "dcgm:host=10.0.0.7"], "the engine at 10.0.0.7 is another machine: also give --node"),
        (["--backend", "dcgm:host=:5555"], "':5555' is not the address of an engine"),
        (["--backend", "dcgm:host=n2:0"], "'n2:0' is not the address of an engine"),
        (["--backend", "simulated", "--backend", "dcgm"], "simulated and dcgm cannot be used together"),
        (["--backend", "prometheus"], "--backend prometheus needs more: prometheus:url=..."),
        (["--backend", "dcgm:host=n", "--backend", "dcgm:socket=/s"], "host and socket are two ways to one engine"),
        (["--backend", "dcmg"], "there is no backend 'dcmg'; there are nvml, simulated, dcgm, prometheus"),
        (["--backend", "simulated:model=X99"], "no simulated GPU model 'X99'"),
        (["--node", "../n"], "is not a valid"),
        (["--set", "hung=0"], "give hung=0.1 or more"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Path, options: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["collect", "--store", str(tmp_path / "S"), *options])
    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "S").exists()


def test_it_loads_no_library_of_tables_also_when_it_seals(tmp_path: Path) -> None:
    """A collector stays small: children store identities, read what a compaction wrote, and seal."""
    new_store(tmp_path / "S").compact(offline=True)
    code = (
        "import sys, whorl.cli\n"
        "sys.argv = ['whorl', 'collect', '--backend', 'simulated', '--interval', '100ms', '--duration', '1s',"
        " '--store', sys.argv[1]]\n"
        "try:\n    whorl.cli.main()\n"
        "finally:\n    print(*sorted({'duckdb', 'pandas', 'polars', 'pyarrow', 'ssl'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "S"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert not [*(tmp_path / "S" / "journal").glob("*.journal")]
    (told,) = ask(
        tmp_path / "S",
        "select (select count(distinct gpu) from telemetry) t, (select count(*) from gpus) g, "
        "(select count(*) from events where kind = 'collect_ended') e",
    )
    assert told == {"t": 8, "g": 8, "e": 1}


@pytest.mark.long
def test_on_a_terminal_a_line_lives(nvml_library: NvmlLibrary, tmp_path: Path) -> None:
    nvml_library.write("gpus 2")
    ours, theirs = pty.openpty()
    arguments = command(tmp_path / "S", "--interval", "0.1", "--duration", "2.5")
    with subprocess.Popen(arguments, env=nvml_library.environment(), stderr=theirs, stdout=theirs) as process:
        os.close(theirs)
        said = b""
        while select.select([ours], [], [], PATIENCE_S)[0]:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            said += part
    os.close(ours)
    assert process.returncode == 0
    lines = [line for line in said.decode().split("\r") if "rows, " in line and " missed, " in line]
    assert 2 <= len(lines) <= 4
