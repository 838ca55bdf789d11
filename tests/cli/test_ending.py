"""How a command ends when somebody ends it: quietly, with the status that a shell expects, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whorl.store import Store

LINES = [f"sgemm,GPU-00000000-0000-0000-0000-{i % 40:012d},{1_590_000_000 + i},{2400 + i % 97}" for i in range(80_000)]


def test_a_reader_that_has_enough_ends_it_as_a_signal_would(tmp_path: Path) -> None:
    Store.create(tmp_path / "S")
    query = "select range from range(200000)"
    command = [sys.executable, "-m", "whorl", "sql", "--store", str(tmp_path / "S"), query]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("delay", [0.3, 0.8, 1.5])
def test_an_interrupted_import_can_be_run_again(delay: float, tmp_path: Path) -> None:
    files = []
    for number in range(4):
        files.append(tmp_path / f"{number}.csv")
        files[-1].write_text("\n".join(["exp,uuid,ts,perf", *LINES[number * 20_000 : (number + 1) * 20_000]]))
    store = tmp_path / "S"
    command = [sys.executable, "-m", "whorl", "import", "--store", str(store), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(delay)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT, 0), errors
    if process.returncode == 128 + signal.SIGINT:
        assert "whorl: interrupted" in errors
    if (store / "store.toml").exists():
        counted = Store.open(store).sql("select count(*) n from runs").to_pylist()[0]["n"]
        assert counted % 20_000 == 0
    subprocess.run(command, check=True, capture_output=True)
    assert Store.open(store).sql("select count(*) n from measurements").to_pylist() == [{"n": 80_000}]
